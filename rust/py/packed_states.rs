//! Packing and unpacking of generator states for the way back from a worker.

use std::ops::Range;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::buffer::Buffer;
use super::graph::replica::Replica;
use super::graph::source::Source;
use super::numbers::{words, NO_OFFSET};
use super::runtime::Runtime;
use crate::error::DecodeError;
use crate::mersenne::{self, STATE_LEN};
use crate::random_states::{self, Base, Origin, Position};

/// The words that states are packed relative to, one for each state.
enum Bases {
    Closed,
    /// In a snapshot, at these offsets.
    Frame(Buffer, Vec<u64>),
    /// Recorded by a source under these numbers.
    Source(Py<Source>, Vec<Option<u32>>),
    /// Recorded by a replica under these numbers.
    Replica(Py<Replica>, Vec<Option<u32>>),
}

type WordBytes = [u8; STATE_LEN];

impl Bases {
    fn in_frame(frame: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        let offsets = words::<8>(offsets)?;
        let offsets = offsets.into_iter().map(u64::from_le_bytes).collect();
        Ok(Bases::Frame(Buffer::get(frame)?, offsets))
    }

    fn len(&self) -> usize {
        match self {
            Bases::Closed => 0,
            Bases::Frame(_, offsets) => offsets.len(),
            Bases::Source(_, numbers) | Bases::Replica(_, numbers) => numbers.len(),
        }
    }

    /// Calls `use_words` with the words of a generator, if it has any. That must not run Python
    /// code, apart from plain dict accesses.
    fn with<T>(
        &self,
        py: Python<'_>,
        index: usize,
        use_words: impl FnOnce(Option<Base<'_>>) -> PyResult<T>,
    ) -> PyResult<T> {
        match self {
            Bases::Closed => Err(PyValueError::new_err("the generator states are closed")),
            Bases::Frame(frame, offsets) => {
                // SAFETY: no Python code runs while the words are used.
                let words = words_at(unsafe { frame.bytes() }, offsets[index])?;
                use_words(words.map(Base::Bytes))
            }
            Bases::Source(source, numbers) => {
                let source = source.try_borrow(py)?;
                let known = numbers[index].and_then(|number| source.recorded_words(number));
                use_words(known.map(Base::Known))
            }
            Bases::Replica(replica, numbers) => {
                let replica = replica.try_borrow(py)?;
                let known = numbers[index].and_then(|number| replica.recorded_words(number));
                use_words(known.map(Base::Known))
            }
        }
    }
}

/// The words at an offset of a frame, `None` if the offset stands for none.
fn words_at(frame: &[u8], offset: u64) -> PyResult<Option<&WordBytes>> {
    if offset == NO_OFFSET {
        return Ok(None);
    }
    usize::try_from(offset)
        .ok()
        .and_then(|offset| frame.get(offset..)?.first_chunk::<STATE_LEN>())
        .map(Some)
        .ok_or_else(|| PyValueError::new_err(format!("offset {offset} is outside of the frame")))
}

/// Packs the states of pseudo random number generators relative to a snapshot.
#[pyclass(module = "pams_parallel._core")]
pub struct RandomStatePacker {
    bases: Bases,
    next: usize,
    packed: Vec<u8>,
}

impl RandomStatePacker {
    /// Relative to what a replica has recorded under these numbers.
    pub fn for_replica(replica: Py<Replica>, numbers: Vec<Option<u32>>) -> Self {
        RandomStatePacker {
            bases: Bases::Replica(replica, numbers),
            next: 0,
            packed: Vec::new(),
        }
    }

    /// Number of a generator in the replica that the packer belongs to.
    pub fn number_at(&self, index: usize) -> Option<u32> {
        match &self.bases {
            Bases::Replica(_, numbers) => *numbers.get(index)?,
            _ => None,
        }
    }
}

#[pymethods]
impl RandomStatePacker {
    #[new]
    #[pyo3(signature = (frame, offsets))]
    fn new(frame: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(RandomStatePacker {
            bases: Bases::in_frame(frame, offsets)?,
            next: 0,
            packed: Vec::new(),
        })
    }

    /// Pack the state of the next generator, in the order of the offsets.
    #[pyo3(signature = (prng, /))]
    pub fn add(&mut self, prng: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = prng.py();
        if let Bases::Closed = self.bases {
            return Err(PyValueError::new_err("the packer is closed"));
        }
        if self.next >= self.bases.len() {
            return Err(PyValueError::new_err("more generators than offsets"));
        }
        let packed = &mut self.packed;
        let layout = Runtime::get(py)?.random.as_ref();
        let added = self.bases.with(py, self.next, |base| {
            match layout.filter(|layout| layout.is_exact(prng)) {
                Some(layout) => layout.read(prng, |position, words| {
                    random_states::put_state(packed, base, words, position);
                }),
                None => Ok(None),
            }
        })?;
        self.next += 1;
        if added.is_none() {
            random_states::put_absent(packed);
        }
        Ok(added.is_some())
    }

    /// Release the frame; nothing can be added afterwards.
    fn close(&mut self) {
        self.bases = Bases::Closed;
    }

    /// The packed states of the generators added so far.
    fn finish<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.packed)
    }
}

/// Unpacks what RandomStatePacker made.
#[pyclass(module = "pams_parallel._core")]
pub struct RandomStates {
    states: Vec<Option<(Origin, Position)>>,
    packed: Vec<u8>,
    bases: Bases,
}

impl RandomStates {
    /// Relative to what a source has recorded under these numbers.
    pub fn for_source(
        packed: &Bound<'_, PyAny>,
        source: Py<Source>,
        numbers: Vec<Option<u32>>,
    ) -> PyResult<Self> {
        Self::relative_to(packed, Bases::Source(source, numbers))
    }

    fn relative_to(packed: &Bound<'_, PyAny>, bases: Bases) -> PyResult<Self> {
        let py = packed.py();
        let packed = Buffer::get(packed)?;
        // SAFETY: copied before any Python code runs.
        let packed = unsafe { packed.bytes() }.to_vec();
        let states = random_states::parse(&packed)?;
        if bases.len() != states.len() {
            return Err(DecodeError::Malformed {
                what: "another count of generator states than of generators",
                at: packed.len(),
            }
            .into());
        }
        let result = RandomStates {
            states,
            packed,
            bases,
        };
        // Checked now, so that no state fails after another was applied.
        for (index, state) in result.states.iter().enumerate() {
            if let Some((Origin::Twists(_), _)) = state {
                result.with_base(py, index, |_| Ok(()))?;
            }
        }
        Ok(result)
    }
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
        Self::relative_to(packed, Bases::in_frame(frame, offsets)?)
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
        let state = self.with_state(py, index, |words, position| {
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
        if let Bases::Source(source, _) = &self.bases {
            source.try_borrow(py)?.disturb(prng);
        }
        if let Some(Some((Origin::Twists(0), position))) = self.states.get(index) {
            let has_base = self.with_base(py, index, |base| {
                layout.read(prng, |_, words| base.are(words))
            })?;
            if has_base == Some(true) {
                layout.write_position(prng, *position)?;
                return Ok(true);
            }
        }
        let applied = self.with_state(py, index, |words, position| {
            layout.write(prng, position, words)
        })?;
        Ok(applied.is_some())
    }

    /// Set states of the generators that a source has recorded; returns where it stopped.
    #[pyo3(signature = (start, stop, /))]
    fn apply_recorded(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<usize> {
        let Bases::Source(source, numbers) = &self.bases else {
            return Ok(start);
        };
        let mut index = start;
        while index < stop {
            index = self.apply_indices(py, source, numbers, index..stop)?;
            if index == stop {
                break;
            }
            let recorded = match numbers.get(index) {
                Some(Some(number)) => source.try_borrow(py)?.recorded_object(py, *number),
                _ => None,
            };
            match recorded {
                Some(prng) if self.apply(py, index, prng.bind(py))? => index += 1,
                _ => return Ok(index),
            }
        }
        Ok(stop)
    }

    /// Release the frame.
    fn close(&mut self) {
        self.bases = Bases::Closed;
    }
}

impl RandomStates {
    /// The case of most agents: all that the generator of the frame has got is another index.
    /// Returns the index of the first other one in the range, or its end.
    fn apply_indices(
        &self,
        py: Python<'_>,
        source: &Py<Source>,
        numbers: &[Option<u32>],
        range: Range<usize>,
    ) -> PyResult<usize> {
        let Some(layout) = &Runtime::get(py)?.random else {
            return Ok(range.start);
        };
        let move_at = |at: usize| match self.states.get(at)? {
            Some((Origin::Twists(0), position)) => Some(((*numbers.get(at)?)?, *position)),
            _ => None,
        };
        let source = source.try_borrow(py)?;
        Ok(source.set_indices(py, layout, range, move_at))
    }

    /// Calls `use_words` with the words in the snapshot.
    fn with_base<T>(
        &self,
        py: Python<'_>,
        index: usize,
        use_words: impl FnOnce(Base<'_>) -> PyResult<T>,
    ) -> PyResult<T> {
        self.bases.with(py, index, |base| {
            use_words(base.ok_or(DecodeError::Malformed {
                what: "twists of words that are not in the snapshot",
                at: 0,
            })?)
        })
    }

    /// Calls `use_state` with words and position of a state; `None` if it is absent.
    fn with_state<T>(
        &self,
        py: Python<'_>,
        index: usize,
        use_state: impl FnOnce(&WordBytes, Position) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        let state = self
            .states
            .get(index)
            .ok_or_else(|| PyIndexError::new_err(format!("no generator state {index}")))?;
        let Some((origin, position)) = *state else {
            return Ok(None);
        };
        match origin {
            Origin::Packed(start) => {
                let full = self.packed[start..].first_chunk::<STATE_LEN>();
                let full = full.ok_or(DecodeError::Checksum)?;
                use_state(full, position).map(Some)
            }
            Origin::Twists(twists) => {
                let words = self.with_base(py, index, |base| {
                    Ok(random_states::twisted(base.bytes(), twists))
                })?;
                use_state(&words, position).map(Some)
            }
        }
    }
}
