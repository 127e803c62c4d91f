//! Decoding: a stack machine that runs the instructions of a snapshot.
//!
//! The bytes are checked against damage by their checksum, but nothing relies on that: every
//! operand, stack depth and type is checked again, so no bytes can do more than raise.
//!
//! Here are what Python sees and the tables that instructions refer to; `machine` runs the
//! instructions, `objects` has those that make objects of classes, `updates` those that occur in
//! the frames of a source only.

mod machine;
mod objects;
mod updates;

use std::collections::HashMap;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::buffer::Buffer;
use super::errors::{no_memory, SnapshotDecodeError};
use super::graph::{collect, objects_at};
use super::numbers::NO_OFFSET;
use crate::error::DecodeError;
use crate::wire::{self, Reader};
use machine::Machine;
use objects::Shape;
pub use updates::set_bytearray;

/// What a snapshot contains, and what later frames of the same source refer to.
#[derive(Default)]
pub struct Decoded {
    pub roots: Vec<Py<PyAny>>,
    /// By number; `None` (the object) stands for one that has been freed.
    pub objects: Vec<Py<PyAny>>,
    /// Number and offset of each native `random.Random`.
    randoms: Vec<(usize, u64)>,
    shapes: Vec<Shape>,
    /// Numbers that can be given again.
    free: Vec<u32>,
}

/// What a frame has changed.
#[derive(Default)]
pub struct Changes {
    /// Numbers of new objects.
    pub created: Vec<u32>,
    /// Numbers of objects that were updated, possibly several times.
    pub updated: Vec<u32>,
    /// Numbers of generators of which only the word index has changed, with the new index.
    pub moved: Vec<(u32, u32)>,
    /// Numbers that were freed, with their objects.
    pub freed: Vec<(u32, Py<PyAny>)>,
    /// Objects that have got no number.
    pub dropped: Vec<Py<PyAny>>,
}

/// Decodes a snapshot; the graphs are built by the constructor.
#[pyclass(module = "pams_parallel._core")]
pub struct Decoder(Decoded);

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (data, externals=None))]
    fn new(data: &Bound<'_, PyAny>, externals: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let externals = collect(externals)?;
        let _paused = PausedCollector::new();
        Ok(Decoder(decode(data, externals)?))
    }

    /// The roots, in the order in which they were added.
    #[getter]
    fn roots<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.0.roots)
    }

    /// The objects with these numbers (little-endian uint32).
    #[pyo3(signature = (numbers, /))]
    fn objects<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.0.objects_at(py, numbers)
    }

    /// As Encoder.random_offsets, for the decoded objects.
    #[pyo3(signature = (prngs, /))]
    fn random_offsets<'py>(
        &self,
        py: Python<'py>,
        prngs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let places: HashMap<usize, u64> = self
            .0
            .randoms
            .iter()
            .filter_map(|(number, offset)| {
                let prng = self.0.objects.get(*number)?;
                Some((prng.as_ptr() as usize, *offset))
            })
            .collect();
        let mut offsets = Vec::new();
        for prng in prngs.try_iter()? {
            let offset = places.get(&(prng?.as_ptr() as usize)).unwrap_or(&NO_OFFSET);
            offsets.extend_from_slice(&offset.to_le_bytes());
        }
        Ok(PyBytes::new(py, &offsets))
    }

    /// Drop the references to the decoded objects.
    fn close(this: &Bound<'_, Self>) {
        // Dropped after the borrow has ended, since that can run user code which comes back here.
        let dropped = std::mem::take(&mut this.borrow_mut().0);
        drop(dropped);
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        let mut all = self.0.roots.iter().chain(&self.0.objects);
        all.try_for_each(|obj| visit.call(obj))
    }

    fn __clear__(&mut self) {
        let dropped = std::mem::take(&mut self.0);
        drop(dropped);
    }
}

/// Decode a snapshot of one root and return the root.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub fn loads(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let _paused = PausedCollector::new();
    let mut decoded = decode(data, Vec::new())?;
    match (decoded.roots.pop(), decoded.roots.is_empty()) {
        (Some(root), true) => Ok(root.clone_ref(py)),
        _ => Err(SnapshotDecodeError::new_err("not a snapshot of one object")),
    }
}

/// Builds the graphs of a snapshot.
fn decode<'py>(data: &Bound<'py, PyAny>, externals: Vec<Py<PyAny>>) -> PyResult<Decoded> {
    let buffer = Buffer::get(data)?;
    let bytes = buffer.constant();
    let (header, stream) = wire::open(&bytes)?;
    let mut decoded = Decoded::default();
    decoded.expect_objects(header.objects, stream.len())?;
    let mut machine = Machine::new(data.py(), Reader::new(stream), decoded, &externals, None);
    machine.run()?;
    let decoded = machine.finish()?;
    if decoded.objects.len() != header.objects as usize {
        return Err(wrong_count().into());
    }
    Ok(decoded)
}

/// Applies the instructions of a frame, after its preface.
pub fn update(
    py: Python<'_>,
    reader: Reader<'_>,
    mut decoded: Decoded,
    new_objects: u32,
    externals: &[Py<PyAny>],
) -> PyResult<(Decoded, Changes)> {
    let _paused = PausedCollector::new();
    decoded.expect_objects(new_objects, reader.remaining())?;
    decoded.roots.clear();
    let mut changes = Changes::default();
    let mut machine = Machine::new(py, reader, decoded, externals, Some(&mut changes));
    machine.run()?;
    let decoded = machine.finish()?;
    if changes.created.len() != new_objects as usize {
        return Err(wrong_count().into());
    }
    Ok((decoded, changes))
}

fn wrong_count() -> DecodeError {
    DecodeError::Malformed {
        what: "an end that does not fit the header",
        at: 0,
    }
}

impl Decoded {
    pub fn objects_at<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        objects_at(py, numbers, |number| {
            let found = self.objects.get(number as usize);
            found.filter(|obj| !obj.is_none(py))
        })
    }

    /// Makes room. `new` is a hint only: each object takes a byte of the stream at least.
    fn expect_objects(&mut self, new: u32, stream_len: usize) -> PyResult<()> {
        let expected = (new as usize).min(stream_len);
        self.objects.try_reserve(expected).map_err(no_memory)
    }
}

/// Keeps the garbage collector from walking a graph that is still being built.
struct PausedCollector {
    was_enabled: bool,
}

impl PausedCollector {
    fn new() -> Self {
        // SAFETY: called while attached to the interpreter, as methods of a pyclass are.
        let was_enabled = unsafe { ffi::PyGC_Disable() } != 0;
        PausedCollector { was_enabled }
    }
}

impl Drop for PausedCollector {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
