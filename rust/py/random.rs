//! Native access to `random.Random`: the words in its memory and `gauss_next` in its `__dict__`.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::errors::owned;
use crate::mersenne::{STATE_LEN, WORDS};
use crate::random_states::Position;

/// Methods of `random.Random` that pickle or the constructor use. If any of them was replaced,
/// instances are no longer what this module takes them for.
const METHODS: [&str; 9] = [
    "__init__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "getstate",
    "setstate",
    "seed",
];

/// Where an exact `random.Random` keeps its index (`int`) and, behind it, its words.
pub struct RandomLayout {
    class: Py<PyType>,
    methods: Vec<(&'static str, Py<PyAny>)>,
    offset: usize,
}

impl RandomLayout {
    /// The layout, checked against `getstate()` of a seeded generator.
    pub fn detect(py: Python<'_>) -> PyResult<Option<Self>> {
        let class = py
            .import("random")?
            .getattr("Random")?
            .cast_into::<PyType>()?;
        let basicsize: usize = class
            .py()
            .import("_random")?
            .getattr("Random")?
            .getattr("__basicsize__")?
            .extract()?;
        let offset: usize = py.get_type::<PyAny>().getattr("__basicsize__")?.extract()?;
        if basicsize < offset + size_of::<c_int>() + STATE_LEN {
            return Ok(None);
        }
        let mut methods = Vec::new();
        for name in METHODS {
            // `__getstate__` of every object came with Python 3.11.
            if let Ok(method) = class.getattr(name) {
                methods.push((name, method.unbind()));
            }
        }
        let layout = RandomLayout {
            class: class.clone().unbind(),
            methods,
            offset,
        };
        let sample = class.call1((20_001,))?;
        sample.call_method0("random")?;
        let expected = sample.call_method0("getstate")?.get_item(1)?;
        let expected = expected.cast::<PyTuple>()?;
        let mut state = Vec::with_capacity(WORDS + 1);
        for word in expected.iter() {
            state.push(word.extract::<u32>()?);
        }
        // SAFETY: basicsize was checked above, so the bytes read lie inside the object.
        let (index, bytes) = unsafe { (layout.index(&sample), layout.words(&sample)) };
        let words = crate::mersenne::from_bytes(&bytes);
        let matches = state.len() == WORDS + 1
            && state[..WORDS] == words[..]
            && i64::from(state[WORDS]) == i64::from(index);
        Ok(matches.then_some(layout))
    }

    /// Whether `random.Random` still has the methods that it had at import.
    pub fn is_pristine(&self, py: Python<'_>) -> bool {
        let class = self.class.bind(py);
        self.methods
            .iter()
            .all(|(name, method)| class.getattr(*name).is_ok_and(|found| found.is(method)))
    }

    pub fn is_exact(&self, obj: &Bound<'_, PyAny>) -> bool {
        obj.get_type().is(&self.class)
    }

    pub fn class_ptr(&self) -> *mut ffi::PyTypeObject {
        self.class.as_ptr().cast()
    }

    fn memory(&self, prng: &Bound<'_, PyAny>) -> *mut u8 {
        prng.as_ptr().cast::<u8>().wrapping_add(self.offset)
    }

    /// # Safety
    ///
    /// `prng` must be an exact `random.Random`.
    unsafe fn index(&self, prng: &Bound<'_, PyAny>) -> c_int {
        // SAFETY: `detect` found an int at this offset of every exact instance.
        unsafe { self.memory(prng).cast::<c_int>().read() }
    }

    /// The words, little endian.
    ///
    /// # Safety
    ///
    /// `prng` must be an exact `random.Random`.
    unsafe fn words(&self, prng: &Bound<'_, PyAny>) -> [u8; STATE_LEN] {
        let mut bytes = [0; STATE_LEN];
        // SAFETY: `detect` found the words behind the index of every exact instance.
        unsafe {
            self.memory(prng)
                .add(size_of::<c_int>())
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), STATE_LEN);
        }
        if cfg!(target_endian = "big") {
            for word in bytes.chunks_exact_mut(4) {
                word.reverse();
            }
        }
        bytes
    }

    /// The state of an exact instance, or `None` if it is one that only pickle can judge (no
    /// `gauss_next`, or one that is neither `None` nor an exact `float`).
    pub fn read(&self, prng: &Bound<'_, PyAny>) -> PyResult<Option<(Position, [u8; STATE_LEN])>> {
        debug_assert!(self.is_exact(prng));
        let py = prng.py();
        let dict = instance_dict(prng)?;
        let Some(gauss) = dict.get_item(intern!(py, "gauss_next"))? else {
            return Ok(None);
        };
        let gauss_next = if gauss.is_none() {
            None
        } else if gauss.is_exact_instance_of::<pyo3::types::PyFloat>() {
            Some(gauss.extract()?)
        } else {
            return Ok(None);
        };
        // SAFETY: the caller gives an exact instance.
        let (index, words) = unsafe { (self.index(prng), self.words(prng)) };
        let position = Position {
            index: index as u32,
            gauss_next,
        };
        Ok(Some((position, words)))
    }

    /// Sets the state of an exact instance. `words` are in the byte order of this machine.
    pub fn write(
        &self,
        prng: &Bound<'_, PyAny>,
        position: Position,
        words: &[u32; WORDS],
    ) -> PyResult<()> {
        assert!(self.is_exact(prng) && position.index as usize <= WORDS);
        // SAFETY: as for `index` and `words`; nobody else writes while the GIL is held.
        unsafe {
            let memory = self.memory(prng);
            memory.cast::<c_int>().write(position.index as c_int);
            memory
                .add(size_of::<c_int>())
                .copy_from_nonoverlapping(words.as_ptr().cast::<u8>(), STATE_LEN);
        }
        instance_dict(prng)?.set_item(intern!(prng.py(), "gauss_next"), position.gauss_next)
    }

    /// A new generator with this state, made without drawing a seed.
    pub fn create<'py>(
        &self,
        py: Python<'py>,
        position: Position,
        words: &[u32; WORDS],
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the class is a live heap type whose instances PyType_GenericAlloc makes: the
        // base only adds plain words, which `write` fills.
        let prng = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(self.class_ptr(), 0))?
        };
        self.write(&prng, position, words)?;
        Ok(prng)
    }
}

/// The dict with an instance's attributes.
pub fn instance_dict<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    // SAFETY: `obj` is a live object; the result is owned.
    let dict = unsafe {
        owned(
            obj.py(),
            ffi::PyObject_GenericGetDict(obj.as_ptr(), std::ptr::null_mut()),
        )?
    };
    Ok(dict.into_bound(obj.py()).cast_into::<PyDict>()?)
}
