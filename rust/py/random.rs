//! Native access to `random.Random`: the words in its memory and `gauss_next` in its `__dict__`.

use std::borrow::Cow;
use std::ffi::c_int;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyString, PyTuple, PyType};

use super::errors::owned;
use super::prefetch::{prefetch, CACHE_LINE};
use crate::mersenne::{self, Words, STATE_LEN, WORDS};
use crate::random_states::{Position, HEAD};

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
        let words = mersenne::from_bytes(&bytes);
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
    /// `prng` must be an exact `random.Random`, and no Python code may run while the result
    /// lives.
    unsafe fn words<'a>(&self, prng: &'a Bound<'_, PyAny>) -> Cow<'a, [u8; STATE_LEN]> {
        let place = self.memory(prng).wrapping_add(size_of::<c_int>());
        // SAFETY: `detect` found the words behind the index of every exact instance; they are
        // plain memory of the object, which only Python code changes.
        let bytes = unsafe { &*place.cast::<[u8; STATE_LEN]>() };
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(bytes);
        }
        let mut swapped = *bytes;
        for word in swapped.as_chunks_mut::<4>().0 {
            word.reverse();
        }
        Cow::Owned(swapped)
    }

    /// Calls `use_state` with the state of an exact instance. `None` for one that only pickle
    /// can judge: `gauss_next` is missing or neither `None` nor an exact `float`, or there are
    /// other attributes, which may hide methods. The same for what is no exact instance, as user
    /// code that runs between two looks can give an object another class.
    ///
    /// `use_state` must not run Python code.
    pub fn read<T>(
        &self,
        prng: &Bound<'_, PyAny>,
        use_state: impl FnOnce(Position, &[u8; STATE_LEN]) -> T,
    ) -> PyResult<Option<T>> {
        if !self.is_exact(prng) {
            return Ok(None);
        }
        let Some(gauss_next) = only_gauss_next(&instance_dict(prng)?) else {
            return Ok(None);
        };
        // Making the dict can have run finalizers.
        if !self.is_exact(prng) {
            return Ok(None);
        }
        // SAFETY: an exact instance, and `use_state` runs no Python code.
        let (index, words) = unsafe { (self.index(prng), self.words(prng)) };
        let position = Position {
            index: index as u32,
            gauss_next,
        };
        Ok(Some(use_state(position, &words)))
    }

    /// Whether setting the state of `prng` would call `setstate` of an exact instance's class.
    pub fn has_class_setstate(&self, prng: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !self.is_exact(prng) {
            return Ok(false);
        }
        let dict = instance_dict(prng)?;
        Ok(only_gauss_next(&dict).is_some() || !dict.contains(intern!(prng.py(), "setstate"))?)
    }

    /// Whether an exact instance has these words, judged by the first few of them.
    ///
    /// Drawing numbers leaves all words alone or, about every 624th time, replaces all of them,
    /// and so does seeding; a state that differs in later words only does not come about. The
    /// first ones lie beside the index, where the memory is touched anyway.
    pub fn seems_to_have(&self, prng: &Bound<'_, PyAny>, head: &[u8; HEAD]) -> bool {
        assert!(self.is_exact(prng));
        // SAFETY: an exact instance, and no Python code runs here.
        let own = unsafe { self.words(prng) };
        own[..HEAD] == head[..]
    }

    /// Word index of an exact instance.
    pub fn index_of(&self, prng: &Bound<'_, PyAny>) -> u32 {
        assert!(self.is_exact(prng));
        // SAFETY: an exact instance.
        unsafe { self.index(prng) as u32 }
    }

    /// Fetches what [`RandomLayout::index_of`] reads of an instance, if it is one.
    pub fn prefetch_index(&self, prng: *mut ffi::PyObject) {
        prefetch(prng);
        prefetch(prng.wrapping_byte_add(self.offset));
    }

    /// Fetches all the words of an instance, if it is one.
    pub fn prefetch_words(&self, prng: *mut ffi::PyObject) {
        let end = self.offset + size_of::<c_int>() + STATE_LEN.min(8 * CACHE_LINE);
        for line in (self.offset..end).step_by(CACHE_LINE) {
            prefetch(prng.wrapping_byte_add(line));
        }
    }

    /// Fails unless an object is still an exact instance: a finalizer, for example, can have given
    /// it another class.
    fn require_exact(&self, prng: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_exact(prng) {
            Ok(())
        } else {
            Err(PyRuntimeError::new_err(
                "a random.Random got another class while its state was being set",
            ))
        }
    }

    /// Sets the index of an exact instance whose words and Gauss value are right already.
    pub fn write_index(&self, prng: &Bound<'_, PyAny>, index: u32) {
        assert!(self.is_exact(prng) && index as usize <= WORDS);
        let place = self.memory(prng).cast::<c_int>();
        // SAFETY: as for `index`; nobody else writes while the GIL is held.
        unsafe { place.write_unaligned(index as c_int) };
    }

    /// Sets the position of an exact instance whose words are right already.
    pub fn write_position(&self, prng: &Bound<'_, PyAny>, position: Position) -> PyResult<()> {
        self.require_exact(prng)?;
        self.write_index(prng, position.index);
        let dict = instance_dict(prng)?;
        let bits = |gauss: Option<f64>| gauss.map(f64::to_bits);
        // Mostly there is none before and none after.
        if only_gauss_next(&dict).is_some_and(|now| bits(now) == bits(position.gauss_next)) {
            return Ok(());
        }
        dict.set_item(intern!(prng.py(), "gauss_next"), position.gauss_next)
    }

    /// Sets the state of an exact instance.
    pub fn write(
        &self,
        prng: &Bound<'_, PyAny>,
        position: Position,
        words: &[u8; STATE_LEN],
    ) -> PyResult<()> {
        self.require_exact(prng)?;
        let place = self.memory(prng).wrapping_add(size_of::<c_int>());
        // SAFETY: as for `words`; nobody else writes while the GIL is held. The place need not
        // be aligned.
        unsafe {
            if cfg!(target_endian = "little") {
                place.copy_from_nonoverlapping(words.as_ptr(), STATE_LEN);
            } else {
                place
                    .cast::<Words>()
                    .write_unaligned(mersenne::from_bytes(words));
            }
        }
        self.write_position(prng, position)
    }

    /// A new generator with this state, made without drawing a seed.
    pub fn create<'py>(
        &self,
        py: Python<'py>,
        position: Position,
        words: &[u8; STATE_LEN],
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

/// The pending Gauss value in the dict of a generator, if that is all there is and it is `None`
/// or an exact float.
fn only_gauss_next(dict: &Bound<'_, PyDict>) -> Option<Option<f64>> {
    let py = dict.py();
    let (mut name, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut position = 0;
    // SAFETY: a live dict, and no Python code runs while key and value are used.
    unsafe {
        if dict.len() != 1
            || ffi::PyDict_Next(
                dict.as_ptr(),
                &raw mut position,
                &raw mut name,
                &raw mut value,
            ) == 0
        {
            return None;
        }
        let name = Borrowed::from_ptr(py, name);
        let value = Borrowed::from_ptr(py, value);
        if !name.is(intern!(py, "gauss_next"))
            && !name
                .cast_exact::<PyString>()
                .is_ok_and(|name| name.to_str().is_ok_and(|name| name == "gauss_next"))
        {
            return None;
        }
        if value.is_none() {
            return Some(None);
        }
        value
            .is_exact_instance_of::<PyFloat>()
            .then(|| Some(ffi::PyFloat_AsDouble(value.as_ptr())))
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
