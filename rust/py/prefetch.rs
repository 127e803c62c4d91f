//! Fetching objects into the cache before they are looked at.
//!
//! A walk over a graph larger than the cache mostly waits for memory, one object at a time. The
//! items of a container are known before they are visited, so the waits can overlap.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

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

/// Where lists and dicts keep the addresses of their contents.
///
/// These places are not part of CPython's API. They are only read if the objects are as large as
/// those of the versions that are known, and what is found there is only fetched, so another
/// layout would cost time and nothing else.
pub struct ContentsLayout {
    is_list_known: bool,
    is_dict_known: bool,
}

impl ContentsLayout {
    /// Bytes of a list, and the place of the address of its items.
    const LIST: (usize, usize) = (40, 24);
    /// Bytes of a dict, and the places of the addresses of its values and of its keys with their
    /// values: the first is 0 unless the dict belongs to an instance.
    const DICT: (usize, usize, usize) = (48, 40, 32);

    pub fn detect(py: Python<'_>) -> PyResult<Self> {
        let size = |class: Bound<'_, PyAny>| class.getattr("__basicsize__")?.extract::<usize>();
        Ok(ContentsLayout {
            is_list_known: size(py.get_type::<PyList>().into_any())? == Self::LIST.0,
            is_dict_known: size(py.get_type::<PyDict>().into_any())? == Self::DICT.0,
        })
    }

    /// Where the contents of an exact list or dict probably are, for [`prefetch_range`].
    pub fn address_in(&self, obj: &Bound<'_, PyAny>) -> usize {
        let word = |place: usize| {
            let place = obj.as_ptr().wrapping_byte_add(place).cast::<usize>();
            // SAFETY: a live object, and the place is inside of it, as its size says.
            unsafe { place.read() }
        };
        if obj.is_exact_instance_of::<PyList>() && self.is_list_known {
            word(Self::LIST.1)
        } else if obj.is_exact_instance_of::<PyDict>() && self.is_dict_known {
            match word(Self::DICT.1) {
                0 => word(Self::DICT.2),
                values => values,
            }
        } else {
            0
        }
    }
}
