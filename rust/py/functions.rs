//! Small functions that need no room of their own.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::chunking;

/// Bounds of consecutive chunks whose sizes differ by at most one, longer first.
#[pyfunction]
#[pyo3(signature = (n_items, n_chunks, /))]
pub fn chunk_bounds(n_items: isize, n_chunks: isize) -> PyResult<Vec<(usize, usize)>> {
    let items = usize::try_from(n_items)
        .map_err(|_| PyValueError::new_err(format!("n_items must not be negative: {n_items}")))?;
    if n_chunks < 1 {
        return Err(PyValueError::new_err(format!(
            "n_chunks must be at least 1: {n_chunks}"
        )));
    }
    Ok(chunking::chunk_bounds(items, n_chunks.unsigned_abs()))
}

/// Index of the first item that is the object, or -1.
#[pyfunction]
#[pyo3(signature = (items, obj, /))]
pub fn index_of(items: &Bound<'_, PyList>, obj: &Bound<'_, PyAny>) -> isize {
    items
        .iter()
        .position(|item| item.is(obj))
        .map_or(-1, |index| index as isize)
}
