//! The items of a list as a slice.
//!
//! A call for every item takes ten times as long as comparing it, and histories have hundreds of
//! thousands of items. The place of the items is not part of CPython's stable interface, so it is
//! checked once.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList};

/// Bytes of a list.
const SIZE: usize = 40;
/// Where a list has the address of its items.
const ITEMS: usize = 24;

/// Access to the items of exact lists.
pub struct ListMemory {
    is_known: bool,
}

impl ListMemory {
    pub fn detect(py: Python<'_>) -> PyResult<Self> {
        let size: usize = py
            .get_type::<PyList>()
            .getattr("__basicsize__")?
            .extract()?;
        let mut memory = ListMemory {
            is_known: size == SIZE && size_of::<usize>() == 8,
        };
        let expected = [
            PyBool::new(py, true).as_ptr(),
            py.None().as_ptr(),
            PyBool::new(py, false).as_ptr(),
        ];
        let sample = PyList::new(py, [Some(true), None, Some(false)])?;
        // SAFETY: no Python code runs meanwhile. All CPython versions with lists of this size keep
        // the items where this looks for them.
        memory.is_known = unsafe { memory.items(&sample) } == Some(&expected);
        Ok(memory)
    }

    /// Where the items probably are.
    pub fn address(&self, list: &Bound<'_, PyList>) -> usize {
        if !self.is_known {
            return 0;
        }
        let place = list.as_ptr().wrapping_byte_add(ITEMS).cast::<usize>();
        // SAFETY: a live list, and the place is inside of it, as its size says.
        unsafe { place.read() }
    }

    /// The items, if it is known where they are.
    ///
    /// # Safety
    ///
    /// No Python code may run while the result lives.
    pub unsafe fn items<'a>(
        &self,
        list: &'a Bound<'_, PyList>,
    ) -> Option<&'a [*mut ffi::PyObject]> {
        if !self.is_known || !list.is_exact_instance_of::<PyList>() {
            return None;
        }
        match list.len() {
            0 => Some(&[]),
            len => {
                let items = self.address(list) as *const *mut ffi::PyObject;
                // SAFETY: the list keeps its items there (`detect`), and nobody changes them.
                Some(unsafe { std::slice::from_raw_parts(items, len) })
            }
        }
    }
}
