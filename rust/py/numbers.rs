//! Arrays of numbers that travel as `bytes`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::buffer::Buffer;

/// Stands for an object without a number.
pub const NO_NUMBER: u32 = u32::MAX;
/// Stands for a generator without a place in the snapshot.
pub const NO_OFFSET: u64 = u64::MAX;

/// Reads numbers of objects (little-endian uint32).
pub fn numbers(data: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let words = words::<4>(data)?;
    Ok(words.into_iter().map(u32::from_le_bytes).collect())
}

/// Reads numbers of objects, `None` for [`NO_NUMBER`].
pub fn numbers_or_none(data: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u32>>> {
    Ok(numbers(data)?
        .into_iter()
        .map(|number| (number != NO_NUMBER).then_some(number))
        .collect())
}

/// Reads an array of little-endian words of `N` bytes.
pub fn words<const N: usize>(data: &Bound<'_, PyAny>) -> PyResult<Vec<[u8; N]>> {
    let buffer = Buffer::get(data)?;
    // SAFETY: no Python code runs while the slice is used.
    let bytes = unsafe { buffer.bytes() };
    let (words, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "expected an array of {N}-byte words, got {} bytes",
            bytes.len()
        )));
    }
    Ok(words.to_vec())
}
