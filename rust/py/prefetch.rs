//! Fetching objects into the cache before they are looked at.
//!
//! A walk over a graph larger than the cache mostly waits for memory, one object at a time. The
//! items of a container are known before they are visited, so the waits can overlap.

use pyo3::ffi::PyObject;

/// How many list items ahead of the one being written are fetched.
pub const DISTANCE: usize = 8;

/// Asks for the cache line at `obj` and runs on. Any address is allowed.
#[inline]
pub fn prefetch(obj: *mut PyObject) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing and never faults; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(obj.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = obj;
}
