//! Fetching objects into the cache before they are looked at.
//!
//! A walk over a graph larger than the cache mostly waits for memory, one object at a time. The
//! items of a container are known before they are visited, so the waits can overlap.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How many list items ahead of the one being written are fetched.
pub const DISTANCE: usize = 8;

/// The same where hardly anything is done with an object.
pub const FAR: usize = 24;

/// Bytes that come into the cache together.
pub const CACHE_LINE: usize = 64;

/// Asks for the cache line at an address and runs on. Any address is allowed.
#[inline]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing and never faults; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for the beginning of a stretch of memory: more of it comes by itself, once it is read.
#[inline]
pub fn prefetch_range(start: usize, n_bytes: usize) {
    const MAX_BYTES: usize = 4 * CACHE_LINE;
    for offset in (0..n_bytes.min(MAX_BYTES)).step_by(CACHE_LINE) {
        prefetch(start.wrapping_add(offset) as *const u8);
    }
}

/// Where dicts keep the addresses of their contents.
///
/// These places are not part of CPython's API. They are only read if dicts are as large as those of
/// the versions that are known, and what is found there is only fetched, so another layout would
/// cost time and nothing else.
pub struct DictMemory {
    is_known: bool,
}

impl DictMemory {
    /// Bytes of a dict.
    const SIZE: usize = 48;
    /// Where the address of the values is, or 0 unless the dict belongs to an instance.
    const VALUES: usize = 40;
    /// Where the address of the keys is, with which are the values otherwise.
    const KEYS: usize = 32;

    pub fn detect(py: Python<'_>) -> PyResult<Self> {
        let size: usize = py
            .get_type::<PyDict>()
            .getattr("__basicsize__")?
            .extract()?;
        Ok(DictMemory {
            is_known: size == Self::SIZE,
        })
    }

    /// Where the values of an exact dict probably are, for [`prefetch_range`].
    pub fn address(&self, dict: &Bound<'_, PyDict>) -> usize {
        if !self.is_known || !dict.is_exact_instance_of::<PyDict>() {
            return 0;
        }
        let word = |place: usize| {
            let place = dict.as_ptr().wrapping_byte_add(place).cast::<usize>();
            // SAFETY: a live dict, and the place is inside of it, as its size says.
            unsafe { place.read() }
        };
        match word(Self::VALUES) {
            0 => word(Self::KEYS),
            values => values,
        }
    }
}
