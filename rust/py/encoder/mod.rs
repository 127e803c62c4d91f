//! Encoding: a walk over the graph in pickle's order, on an explicit stack.
//!
//! Any call of Python code may change the graph or let another thread do so. Hence every object
//! of which a pointer is kept is owned (`held`, frames), containers are read by position with
//! their size checked anew, and nothing borrowed survives a call.
//!
//! Here are the class that Python sees and the numbering of objects; `steps` has the walk,
//! `frames` its stack, `values` the built-in types, `objects` all others, `captured` what a source
//! records in its shadow first, `trace` the paths in error messages, `profile` what reducers cost.

mod captured;
mod frames;
mod objects;
mod profile;
mod steps;
mod trace;
mod values;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rustc_hash::FxHashMap;

use super::errors::no_memory;
use super::graph::{copy_dict, numbers_of};
use super::interrupts::Interrupts;
use super::numbers::{NO_NUMBER, NO_OFFSET};
use super::output::Output;
use super::path;
use super::runtime::Runtime;
use super::types::{Plan, Reducers};
use crate::wire::{op, Short, Write};
use captured::FingerprintNotes;
pub use captured::{Fingerprint, Shadow};
use frames::{Frame, Reduction, Written};
use objects::Item;
pub use profile::slow_path;
use profile::Profile;
pub use trace::RootNames;

/// What the memo knows of an object.
#[derive(Clone, Copy)]
enum Known {
    /// Its number in the snapshot.
    Number(u32),
    /// As `Number`, but it has changed, and the change is not yet written.
    Changed(u32),
    External(u32),
    Foreign,
}

/// Objects in the latest snapshot: room to reserve for the next one.
static EXPECTED_OBJECTS: AtomicUsize = AtomicUsize::new(0);

/// Encodes object graphs into one snapshot.
#[pyclass(module = "pams_parallel._core")]
pub struct Encoder {
    output: Output,
    memo: FxHashMap<usize, Known>,
    /// Owns everything in `memo`, so that no address is used twice.
    held: Vec<Py<PyAny>>,
    objects: u32,
    /// By class, with the epoch in which the plan was made.
    plans: FxHashMap<usize, (u64, Plan)>,
    /// Counts calls of user code, any of which may give hooks to a class.
    epoch: u64,
    shapes: u32,
    /// Shape of the latest new instance.
    last_new: Option<u32>,
    randoms: Vec<(u32, u64)>,
    reducers: Reducers,
    frames: Vec<Frame>,
    interrupts: Interrupts,
    /// Room for the items of one instance's dict, see `objects`.
    items: Vec<Item>,
    /// One per `Frame::Reduce`, in the same order.
    reductions: Vec<Reduction>,
    reentries: HashMap<usize, u32>,
    state: State,
    /// For the frames of a source.
    shadow: Option<Box<Shadow>>,
    /// While a fingerprint is taken.
    fingerprint: Option<FingerprintNotes>,
    /// If it has been asked for.
    profile: Option<Box<Profile>>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Finished,
    Failed,
}

#[pymethods]
impl Encoder {
    #[new]
    #[pyo3(signature = (externals=None, foreign=None, reducers=None, sink=None, spill_bytes=262_144))]
    fn new(
        py: Python<'_>,
        externals: Option<&Bound<'_, PyAny>>,
        foreign: Option<&Bound<'_, PyAny>>,
        reducers: Option<&Bound<'_, PyAny>>,
        sink: Option<&Bound<'_, PyAny>>,
        spill_bytes: usize,
    ) -> PyResult<Self> {
        let runtime = Runtime::get(py)?;
        let additional = copy_dict(reducers)?;
        let copyreg = runtime
            .copyreg
            .bind(py)
            .getattr("dispatch_table")?
            .cast_into::<PyDict>()?
            .unbind();
        let mut encoder = Encoder {
            shadow: None,
            fingerprint: None,
            profile: None,
            output: Output::new(sink, spill_bytes),
            memo: FxHashMap::default(),
            held: Vec::new(),
            objects: 0,
            plans: FxHashMap::default(),
            epoch: 0,
            shapes: 0,
            last_new: None,
            randoms: Vec::new(),
            reducers: Reducers {
                additional,
                copyreg,
            },
            frames: Vec::new(),
            interrupts: Interrupts::default(),
            items: Vec::new(),
            reductions: Vec::new(),
            reentries: HashMap::new(),
            state: State::Open,
        };
        let mut index = 0;
        if let Some(externals) = externals {
            for obj in externals.try_iter()? {
                encoder.learn(&obj?, Known::External(index));
                index += 1;
            }
        }
        if let Some(foreign) = foreign {
            for obj in foreign.try_iter()? {
                encoder.learn(&obj?, Known::Foreign);
            }
        }
        Ok(encoder)
    }

    /// Append an object as the next root.
    #[pyo3(signature = (obj, name=None))]
    fn add(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.require_open()?;
        self.add_root(py, obj, &RootNames::new(obj, name)?)
    }

    /// Complete the snapshot: its bytes, or None if it went to the sink.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.require_open()?;
        self.output.buffer.put_byte(op::END);
        self.state = State::Failed;
        let data = self.output.finish(py, self.objects)?;
        self.state = State::Finished;
        EXPECTED_OBJECTS.store(self.memo.len(), Ordering::Relaxed);
        Ok(data)
    }

    /// Bytes of the snapshot so far, header included.
    #[getter]
    fn size(&self) -> u64 {
        self.output.len()
    }

    /// How many objects of the snapshot have a number so far.
    #[getter]
    fn object_count(&self) -> u32 {
        self.objects
    }

    /// Numbers of objects in the snapshot, as little-endian uint32.
    #[pyo3(signature = (objs, /))]
    pub fn numbers_of<'py>(
        &self,
        py: Python<'py>,
        objs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        numbers_of(py, objs, |address| self.number_at(address))
    }

    /// Where the states of generators stand in the snapshot, as little-endian uint64.
    #[pyo3(signature = (prngs, /))]
    fn random_offsets<'py>(
        &self,
        py: Python<'py>,
        prngs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut offsets = Vec::new();
        for prng in prngs.try_iter()? {
            let offset = self
                .number_at(prng?.as_ptr() as usize)
                .and_then(|number| {
                    let found = self.randoms.binary_search_by_key(&number, |entry| entry.0);
                    found.ok().map(|index| self.randoms[index].1)
                })
                .unwrap_or(NO_OFFSET);
            offsets.extend_from_slice(&offset.to_le_bytes());
        }
        Ok(PyBytes::new(py, &offsets))
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.held.iter().try_for_each(|obj| visit.call(obj))
    }

    fn __clear__(&mut self) {
        self.state = State::Failed;
        self.memo.clear();
        let held = std::mem::take(&mut self.held);
        drop(held);
    }
}

impl Encoder {
    pub fn add_root(
        &mut self,
        py: Python<'_>,
        root: &Bound<'_, PyAny>,
        names: &RootNames,
    ) -> PyResult<()> {
        self.walk(py, root).map_err(|error| {
            self.state = State::Failed;
            let path = self.path(py, names);
            // Dropping what the walk held can run user code; that is after the walk.
            self.frames.clear();
            self.reductions.clear();
            path::locate(py, error, &path)
        })
    }

    fn require_open(&self) -> PyResult<()> {
        match self.state {
            State::Open => Ok(()),
            State::Finished => Err(PyValueError::new_err("the snapshot is finished")),
            State::Failed => Err(PyValueError::new_err(
                "the encoder is closed because something failed before",
            )),
        }
    }

    fn learn(&mut self, obj: &Bound<'_, PyAny>, known: Known) {
        self.memo.entry(obj.as_ptr() as usize).or_insert_with(|| {
            self.held.push(obj.clone().unbind());
            known
        });
    }

    /// Gives `obj` the next number.
    #[inline]
    fn number(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.shadow.is_some() {
            return self.number_in_shadow(obj);
        }
        let number = self.objects;
        if number == NO_NUMBER {
            return Err(PyValueError::new_err("too many objects for one snapshot"));
        }
        self.held.try_reserve(1).map_err(no_memory)?;
        self.memo.try_reserve(1).map_err(no_memory)?;
        self.objects += 1;
        let key = obj.as_ptr() as usize;
        let former = self.memo.insert(key, Known::Number(number));
        if let (Some(notes), Some(former)) = (&mut self.fingerprint, former) {
            notes.overwritten.push((key, former));
        }
        self.held.push(obj.clone().unbind());
        Ok(())
    }

    /// Writes a code and a count.
    #[inline]
    fn put(&mut self, code: u8, count: u64) {
        self.output.buffer.put_byte(code);
        self.output.buffer.put_varint(count);
    }

    /// Writes a code and a number of an object, external or shape.
    #[inline]
    fn put_number(&mut self, code: u8, number: u32) {
        self.output
            .buffer
            .put_short(Short::with_varint(code, number));
    }

    /// Writes a new instance of a shape.
    #[inline]
    fn put_new(&mut self, shape: u32) {
        if self.last_new == Some(shape) {
            let code = Short::code(op::NEW_AGAIN);
            self.output.buffer.put_short(code);
        } else {
            self.put_number(op::NEW, shape);
            self.last_new = Some(shape);
        }
    }

    /// Gives an instance the attributes of its shape.
    #[inline]
    fn put_fill(&mut self, shape: u32) {
        if self.last_new == Some(shape) {
            self.output.buffer.put_short(Short::code(op::FILL_NEW));
        } else {
            self.put_number(op::FILL, shape);
        }
    }

    /// Writes a reference to a numbered object.
    #[inline]
    fn put_ref(&mut self, number: u32) {
        let high = number >> 16;
        let is_medium =
            number >= 1 << 14 && high <= u32::from(op::LAST_MEDIUM_REF - op::MEDIUM_REF);
        let short = if is_medium {
            Short::with_u16(op::MEDIUM_REF + high as u8, number as u16)
        } else {
            Short::with_varint(op::REF, number)
        };
        self.output.buffer.put_short(short);
    }

    #[inline]
    fn put_external(&mut self, index: u32) {
        if index <= u32::from(op::LAST_SHORT_EXTERNAL - op::SHORT_EXTERNAL) {
            let code = op::SHORT_EXTERNAL + index as u8;
            self.output.buffer.put_short(Short::code(code));
        } else {
            self.put_number(op::EXTERNAL, index);
        }
    }

    /// Begins an object whose parts need visits of their own.
    #[inline]
    fn begin(&mut self, frame: Frame) -> PyResult<Written> {
        // Room for the frame below too, which is put back after this one.
        self.frames.try_reserve(2).map_err(no_memory)?;
        self.frames.push(frame);
        Ok(Written::Pending)
    }

    fn put_counted(&mut self, code: u8, bytes: &[u8]) {
        self.output.buffer.put_byte(code);
        self.output.buffer.put_counted(bytes);
    }
}
