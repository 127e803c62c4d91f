//! The one mapping from this crate's errors to Python exceptions.

use pyo3::create_exception;
use std::collections::TryReserveError;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::DecodeError;

create_exception!(
    pams_parallel._core,
    SnapshotDecodeError,
    PyValueError,
    "The bytes are not an undamaged snapshot of this version."
);
create_exception!(
    pams_parallel._core,
    ForeignReferenceError,
    PyRuntimeError,
    "An object that Encoder was told to refuse has been met."
);

impl From<DecodeError> for PyErr {
    fn from(error: DecodeError) -> Self {
        SnapshotDecodeError::new_err(error.to_string())
    }
}

/// For `try_reserve` ahead of what grows with the user's data: running out of memory is an
/// exception, not the end of the process.
pub fn no_memory(_: TryReserveError) -> PyErr {
    PyMemoryError::new_err("no memory for the snapshot")
}

/// `Ok` for a pointer that the C API returned, the pending exception for a null.
///
/// # Safety
///
/// `ptr` must be null with an exception set, or an owned reference.
#[inline]
pub unsafe fn owned(py: Python<'_>, ptr: *mut pyo3::ffi::PyObject) -> PyResult<Py<PyAny>> {
    // SAFETY: the caller's promise.
    unsafe { Bound::from_owned_ptr_or_err(py, ptr).map(Bound::unbind) }
}

/// `Ok` unless a C API function returned its failure code.
#[inline]
pub fn status(py: Python<'_>, code: std::ffi::c_int) -> PyResult<()> {
    if code < 0 {
        Err(PyErr::fetch(py))
    } else {
        Ok(())
    }
}
