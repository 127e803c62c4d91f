//! A growing byte buffer that becomes a `bytes` object without being copied.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::wire::{Short, Write};

extern "C" {
    // In the limited API, but PyO3 leaves it out there.
    fn _PyBytes_Resize(bytes: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> std::ffi::c_int;
}

/// A `bytes` object that nobody else has seen yet; its size is the buffer's capacity.
pub struct ByteBuffer {
    /// Null before the first byte, and after memory ran out.
    bytes: *mut ffi::PyObject,
    data: *mut u8,
    len: usize,
    capacity: usize,
    /// Size that the buffer will probably need, if it gets large.
    expected: usize,
    exhausted: bool,
}

// SAFETY: the pointers are to an object that this buffer alone owns, and all access to it is
// through methods of pyclasses, which run while attached to the interpreter.
unsafe impl Send for ByteBuffer {}
// SAFETY: as above; `&self` methods only read fields.
unsafe impl Sync for ByteBuffer {}

impl ByteBuffer {
    const FIRST_CAPACITY: usize = 512;
    /// Where the buffer jumps to the expected size. That spares the allocator from moving large
    /// blocks and, if the guess is right, from returning a rest to the system and clearing new
    /// pages the next time.
    const LARGE: usize = 1 << 16;

    pub fn new(expected: usize) -> Self {
        ByteBuffer {
            bytes: std::ptr::null_mut(),
            data: std::ptr::null_mut(),
            len: 0,
            capacity: 0,
            expected,
            exhausted: false,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn as_slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `len` bytes at `data` were written.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `as_slice`; nobody else has the object.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }

    /// Appends a short instruction.
    #[inline]
    pub fn put_short(&mut self, short: Short) {
        if self.capacity - self.len < Short::SIZE {
            self.grow(Short::SIZE);
            if self.exhausted {
                return;
            }
        }
        // SAFETY: there is room for all of the short's bytes; only `short.used()` of them count.
        unsafe {
            self.data
                .add(self.len)
                .copy_from_nonoverlapping(short.bytes().as_ptr(), Short::SIZE);
        }
        self.len += short.used();
    }

    /// Forgets the bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// An error if bytes were dropped because memory ran out.
    pub fn check(&self) -> PyResult<()> {
        if self.exhausted {
            return Err(PyMemoryError::new_err("no memory for the snapshot"));
        }
        Ok(())
    }

    /// The bytes as an object; the buffer is empty afterwards.
    pub fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.check()?;
        let len = std::mem::take(&mut self.len);
        self.capacity = 0;
        self.data = std::ptr::null_mut();
        let mut bytes = std::mem::replace(&mut self.bytes, std::ptr::null_mut());
        if bytes.is_null() {
            return Ok(PyBytes::new(py, &[]));
        }
        // SAFETY: `bytes` is a bytes object with one owner; on failure it is set to null.
        let bytes = unsafe {
            _PyBytes_Resize(&raw mut bytes, len as ffi::Py_ssize_t);
            Bound::from_owned_ptr_or_err(py, bytes)?
        };
        Ok(bytes.cast_into()?)
    }

    #[cold]
    fn grow(&mut self, additional: usize) {
        let needed = self.len.checked_add(additional);
        let capacity = needed
            .map(|needed| match needed {
                ..Self::LARGE => needed.max(self.capacity * 2).max(Self::FIRST_CAPACITY),
                _ if needed < self.expected => self.expected,
                _ => needed + needed / 4,
            })
            .and_then(|capacity| ffi::Py_ssize_t::try_from(capacity).ok());
        let Some(capacity) = capacity else {
            self.exhausted = true;
            return;
        };
        // SAFETY: attached to the interpreter (see `Send`). Either there is no object yet, or
        // this buffer is its only owner; a failed resize frees it and leaves null.
        unsafe {
            if self.bytes.is_null() {
                self.bytes = ffi::PyBytes_FromStringAndSize(std::ptr::null(), capacity);
            } else {
                _PyBytes_Resize(&raw mut self.bytes, capacity);
            }
            if self.bytes.is_null() {
                ffi::PyErr_Clear();
                self.exhausted = true;
                (self.len, self.capacity) = (0, 0);
                self.data = std::ptr::null_mut();
                return;
            }
            self.data = ffi::PyBytes_AsString(self.bytes).cast::<u8>();
        }
        self.capacity = capacity.unsigned_abs();
    }
}

impl Write for ByteBuffer {
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        if self.capacity - self.len < bytes.len() {
            self.grow(bytes.len());
        }
        if self.exhausted {
            return;
        }
        // SAFETY: there is room for the bytes now, and they are not part of this buffer.
        unsafe {
            self.data
                .add(self.len)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.len += bytes.len();
    }
}

impl Drop for ByteBuffer {
    fn drop(&mut self) {
        if !self.bytes.is_null() {
            Python::attach(|py| {
                // SAFETY: the object is owned and not used again.
                drop(unsafe { Bound::from_owned_ptr(py, self.bytes) });
            });
        }
    }
}
