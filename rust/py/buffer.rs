//! Read access to objects with the buffer protocol.
//!
//! The limited API has the buffer protocol from Python 3.11 on only, but its functions and the
//! layout of `Py_buffer` are the same in 3.10, so they are declared here.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

use pyo3::ffi::{PyObject, Py_ssize_t};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::status;
use super::runtime::Runtime;

#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

/// `PyBUF_ANY_CONTIGUOUS`
const ANY_CONTIGUOUS: c_int = 0x80 | 0x10 | 0x08;

extern "C" {
    fn PyObject_GetBuffer(obj: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// An exported contiguous buffer.
pub struct Buffer {
    // Boxed: exporters may keep pointers into the view.
    view: Box<View>,
    /// The exporter lets nobody in this process write to the memory.
    is_constant: bool,
}

// SAFETY: the view is only read, and released while attached to the interpreter (see `Drop`).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn get(obj: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<View>::uninit());
        // SAFETY: `obj` is a live object and `view` room for a Py_buffer.
        status(obj.py(), unsafe {
            PyObject_GetBuffer(obj.as_ptr(), view.as_mut_ptr(), ANY_CONTIGUOUS)
        })?;
        // SAFETY: PyObject_GetBuffer succeeded, so it has filled the view.
        let view = unsafe { Box::from_raw(Box::into_raw(view).cast::<View>()) };
        let is_mmap = obj.is_instance(Runtime::get(obj.py())?.mmap.bind(obj.py()))?;
        // Others can be read-only views of memory that somebody else writes to.
        let is_constant = view.readonly != 0 && (is_mmap || obj.is_exact_instance_of::<PyBytes>());
        Ok(Buffer { view, is_constant })
    }

    pub fn readonly(&self) -> bool {
        self.view.readonly != 0
    }

    /// The bytes, which must not change while the slice lives.
    ///
    /// # Safety
    ///
    /// No code that could write to the buffer may run while the slice lives.
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.view.len == 0 {
            return &[];
        }
        // SAFETY: an exported contiguous buffer is `len` readable bytes until it is released;
        // that nobody writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast::<u8>(), self.view.len as usize) }
    }

    /// The bytes to be written to, unless they are read-only.
    ///
    /// # Safety
    ///
    /// No code that could read or write the buffer may run while the slice lives.
    pub unsafe fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.readonly() {
            return None;
        }
        if self.view.len == 0 {
            return Some(&mut []);
        }
        // SAFETY: as for `bytes`, and the exporter allows writing.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.view.buf.cast::<u8>(), self.view.len as usize)
        })
    }

    /// A 32-bit word that other processes may look at, unless the buffer is read-only, too small
    /// or not aligned.
    pub fn shared_word(&self, index: usize) -> Option<&AtomicU32> {
        let word = self.view.buf.cast::<AtomicU32>();
        let n_words = self.view.len as usize / size_of::<AtomicU32>();
        if self.readonly() || index >= n_words || !word.is_aligned() {
            return None;
        }
        // SAFETY: the word lies within the exported, writable memory and is aligned. Whoever else
        // writes to it does so with single stores of words, in this process or another one.
        Some(unsafe { &*word.add(index) })
    }

    /// The bytes for use across calls of Python code: a copy unless they are `bytes` or a file
    /// mapped read-only. For the latter it is a contract with whoever holds the file; the
    /// runners write to a frame only between batches.
    pub fn constant(&self) -> Cow<'_, [u8]> {
        // SAFETY: constant, or copied before any other code runs.
        let bytes = unsafe { self.bytes() };
        if self.is_constant {
            Cow::Borrowed(bytes)
        } else {
            Cow::Owned(bytes.to_vec())
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: the view was filled by PyObject_GetBuffer and is released once.
            unsafe { PyBuffer_Release(&mut *self.view) }
        });
    }
}
