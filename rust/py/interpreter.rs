//! Which interpreters of a process can use the extension.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Refuses interpreters other than the main one: objects that are looked up once
/// ([`super::runtime`]) belong to the interpreter that did it.
///
/// Python itself, from 3.12 on, refuses those with a GIL of their own, but not others.
pub fn check(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the caller is attached to an interpreter, which is the current one.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "pams_parallel cannot be used in a subinterpreter: import it in the main interpreter of \
         the process",
    ))
}
