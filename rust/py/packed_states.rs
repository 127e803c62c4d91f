//! Packing and unpacking of generator states for the way back from a worker.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::buffer::Buffer;
use super::numbers::{words, NO_OFFSET};
use super::runtime::Runtime;
use crate::error::DecodeError;
use crate::mersenne::{self, STATE_LEN};
use crate::random_states::{self, Position, Source};

/// Packs the states of pseudo random number generators relative to a snapshot.
#[pyclass(module = "pams_parallel._core")]
pub struct RandomStatePacker {
    frame: Option<Buffer>,
    offsets: std::vec::IntoIter<[u8; 8]>,
    packed: Vec<u8>,
}

#[pymethods]
impl RandomStatePacker {
    #[new]
    #[pyo3(signature = (frame, offsets))]
    fn new(frame: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(RandomStatePacker {
            frame: Some(Buffer::get(frame)?),
            offsets: words::<8>(offsets)?.into_iter(),
            packed: Vec::new(),
        })
    }

    /// Pack the state of the next generator, in the order of the offsets.
    #[pyo3(signature = (prng, /))]
    fn add(&mut self, prng: &Bound<'_, PyAny>) -> PyResult<bool> {
        let offset = self
            .offsets
            .next()
            .ok_or_else(|| PyValueError::new_err("more generators than offsets"))?;
        let Some(frame) = &self.frame else {
            return Err(PyValueError::new_err("the packer is closed"));
        };
        let packed = &mut self.packed;
        let layout = Runtime::get(prng.py())?.random.as_ref();
        // SAFETY: no Python code runs between here and the use of the words in `put_state`,
        // apart from looking up `gauss_next`, which is a plain dict access.
        let base = base_words(unsafe { frame.bytes() }, u64::from_le_bytes(offset))?;
        let added = match layout.filter(|layout| layout.is_exact(prng)) {
            Some(layout) => layout.read(prng, |position, words| {
                random_states::put_state(packed, base, words, position);
            })?,
            None => None,
        };
        if added.is_none() {
            random_states::put_absent(packed);
        }
        Ok(added.is_some())
    }

    /// Release the frame; nothing can be added afterwards.
    fn close(&mut self) {
        self.frame = None;
    }

    /// The packed states of the generators added so far.
    fn finish<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.packed)
    }
}

/// The words at an offset of a frame, `None` if the offset stands for none.
fn base_words(frame: &[u8], offset: u64) -> PyResult<Option<&[u8; STATE_LEN]>> {
    if offset == NO_OFFSET {
        return Ok(None);
    }
    usize::try_from(offset)
        .ok()
        .and_then(|offset| frame.get(offset..)?.first_chunk::<STATE_LEN>())
        .map(Some)
        .ok_or_else(|| PyValueError::new_err(format!("offset {offset} is outside of the frame")))
}

/// Unpacks what RandomStatePacker made.
#[pyclass(module = "pams_parallel._core")]
pub struct RandomStates {
    states: Vec<Option<(Source, Position)>>,
    offsets: Vec<u64>,
    packed: Vec<u8>,
    frame: Option<Buffer>,
}

#[pymethods]
impl RandomStates {
    #[new]
    #[pyo3(signature = (packed, frame, offsets))]
    fn new(
        packed: &Bound<'_, PyAny>,
        frame: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let packed = Buffer::get(packed)?;
        // SAFETY: copied before any Python code runs.
        let packed = unsafe { packed.bytes() }.to_vec();
        let states = random_states::parse(&packed)?;
        let frame = Buffer::get(frame)?;
        let offsets: Vec<u64> = words::<8>(offsets)?
            .into_iter()
            .map(u64::from_le_bytes)
            .collect();
        if offsets.len() != states.len() {
            return Err(DecodeError::Malformed {
                what: "another count of generator states than of generators",
                at: packed.len(),
            }
            .into());
        }
        let result = RandomStates {
            states,
            offsets,
            packed,
            frame: Some(frame),
        };
        // Checked now, so that no state fails after another was applied.
        for (index, state) in result.states.iter().enumerate() {
            if let Some((Source::Twists(_), _)) = state {
                result.base(index)?;
            }
        }
        Ok(result)
    }

    fn __len__(&self) -> usize {
        self.states.len()
    }

    /// State as random.Random.getstate gives it, None if marked as absent.
    #[pyo3(signature = (index, /))]
    fn getstate<'py>(
        &self,
        py: Python<'py>,
        index: usize,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let state = self.with_state(index, |words, position| {
            Ok((mersenne::from_bytes(words), position))
        })?;
        let Some((words, position)) = state else {
            return Ok(None);
        };
        let mut internal = words.to_vec();
        internal.push(position.index);
        let internal = PyTuple::new(py, internal)?;
        let version = 3;
        Ok(Some(
            (version, internal, position.gauss_next).into_pyobject(py)?,
        ))
    }

    /// Set the state of an exact random.Random; returns whether it was set.
    #[pyo3(signature = (index, prng, /))]
    fn apply(&self, py: Python<'_>, index: usize, prng: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(layout) = &Runtime::get(py)?.random else {
            return Ok(false);
        };
        if !layout.has_class_setstate(prng)? {
            return Ok(false);
        }
        if let Some(Some((Source::Twists(0), position))) = self.states.get(index) {
            if layout.seems_to_have(prng, self.base(index)?) {
                layout.write_position(prng, *position)?;
                return Ok(true);
            }
        }
        let applied =
            self.with_state(index, |words, position| layout.write(prng, position, words))?;
        Ok(applied.is_some())
    }

    /// Release the frame.
    fn close(&mut self) {
        self.frame = None;
    }
}

impl RandomStates {
    /// The snapshot's words of a generator.
    fn base(&self, index: usize) -> PyResult<&[u8; STATE_LEN]> {
        let Some(frame) = &self.frame else {
            return Err(PyValueError::new_err("the generator states are closed"));
        };
        // SAFETY: the words are copied before any Python code runs.
        let base = base_words(unsafe { frame.bytes() }, self.offsets[index])?;
        Ok(base.ok_or(DecodeError::Malformed {
            what: "twists of words that are not in the snapshot",
            at: 0,
        })?)
    }

    /// Calls `use_state` with words and position of a state; `None` if it is absent.
    fn with_state<T>(
        &self,
        index: usize,
        use_state: impl FnOnce(&[u8; STATE_LEN], Position) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        let state = self
            .states
            .get(index)
            .ok_or_else(|| PyIndexError::new_err(format!("no generator state {index}")))?;
        let Some((source, position)) = *state else {
            return Ok(None);
        };
        match source {
            Source::Packed(start) => {
                let full = self.packed[start..].first_chunk::<STATE_LEN>();
                let full = full.ok_or(DecodeError::Checksum)?;
                use_state(full, position).map(Some)
            }
            Source::Twists(twists) => {
                let base = self.base(index)?;
                use_state(&random_states::twisted(base, twists), position).map(Some)
            }
        }
    }
}
