//! Where an encoder's bytes go: into memory, or in pieces into a file.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::byte_buffer::ByteBuffer;
use crate::known_floats::KnownFloats;
use crate::wire::{Header, Short, Write as _, HEADER_LEN};

/// Size of the latest snapshot in memory, with room for the last instruction.
static EXPECTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A file for snapshots that outgrow the buffer.
enum Sink {
    /// Written to without releasing the GIL, so other threads cannot change the graph between
    /// two pieces.
    Descriptor(File),
    /// A file-like object without a descriptor (or any file on Windows).
    Object(Py<PyAny>),
}

impl Sink {
    fn new(file: &Bound<'_, PyAny>) -> Sink {
        #[cfg(unix)]
        if let Some(duplicate) = duplicate(file) {
            return Sink::Descriptor(duplicate);
        }
        Sink::Object(file.clone().unbind())
    }

    fn rewind(&mut self, py: Python<'_>) -> PyResult<()> {
        match self {
            Sink::Descriptor(file) => {
                file.seek(SeekFrom::Start(0))?;
            }
            Sink::Object(file) => {
                file.call_method1(py, "seek", (0,))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, py: Python<'_>, mut bytes: &[u8]) -> PyResult<()> {
        match self {
            Sink::Descriptor(file) => Ok(file.write_all(bytes)?),
            Sink::Object(file) => {
                while !bytes.is_empty() {
                    let piece = PyBytes::new(py, bytes);
                    // Raw files may take less than they are given, and `None` means nothing.
                    let taken: Option<usize> =
                        file.call_method1(py, "write", (piece,))?.extract(py)?;
                    match taken {
                        Some(taken) if (1..=bytes.len()).contains(&taken) => {
                            bytes = &bytes[taken..];
                        }
                        _ => return Err(PyOSError::new_err("the sink takes no more bytes")),
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(unix)]
fn duplicate(file: &Bound<'_, PyAny>) -> Option<File> {
    use std::os::fd::BorrowedFd;
    let descriptor: i32 = file.call_method0("fileno").ok()?.extract().ok()?;
    if descriptor < 0 {
        return None;
    }
    // SAFETY: `file` keeps its descriptor open during this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().ok().map(File::from)
}

/// Collects the instructions of one snapshot.
pub struct Output {
    /// Bytes not yet written to the sink; begins with room for the header until then.
    pub buffer: ByteBuffer,
    flushed: u64,
    hasher: crc32fast::Hasher,
    sink: Option<Sink>,
    spill_bytes: usize,
    /// Those that can be referred to, where that is worthwhile.
    pub floats: Option<KnownFloats>,
}

impl Output {
    pub fn new(sink: Option<&Bound<'_, PyAny>>, spill_bytes: usize) -> Output {
        // With a sink the buffer never gets far beyond `spill_bytes`.
        let expected = match sink {
            Some(_) => spill_bytes,
            None => EXPECTED_BYTES.load(Ordering::Relaxed),
        };
        let mut buffer = ByteBuffer::new(expected);
        buffer.put_bytes(&[0; HEADER_LEN]);
        Output {
            buffer,
            flushed: 0,
            hasher: crc32fast::Hasher::new(),
            sink: sink.map(Sink::new),
            spill_bytes: spill_bytes.max(HEADER_LEN),
            floats: None,
        }
    }

    /// For bytes that are no snapshot.
    pub fn in_memory() -> Output {
        Output {
            buffer: ByteBuffer::new(0),
            flushed: 0,
            hasher: crc32fast::Hasher::new(),
            sink: None,
            spill_bytes: 0,
            floats: None,
        }
    }

    /// Bytes so far, header included.
    pub fn len(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Empties a full buffer into the sink, if there is one.
    #[inline]
    pub fn spill(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.buffer.len() >= self.spill_bytes && self.sink.is_some() {
            self.flush(py)?;
        }
        Ok(())
    }

    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        self.buffer.check()?;
        let bytes = self.buffer.as_slice();
        if self.flushed == 0 {
            sink.rewind(py)?;
            self.hasher.update(&bytes[HEADER_LEN..]);
        } else {
            self.hasher.update(bytes);
        }
        sink.write(py, bytes)?;
        self.flushed += bytes.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Completes the snapshot: its bytes, or `None` if they are in the sink.
    pub fn finish<'py>(
        &mut self,
        py: Python<'py>,
        objects: u32,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.buffer.check()?;
        let stream_len = self.len() - HEADER_LEN as u64;
        if self.flushed > 0 {
            self.flush(py)?;
            self.buffer.take(py)?;
            let header = Header::new(stream_len, objects, self.hasher.clone());
            if let Some(sink) = &mut self.sink {
                sink.rewind(py)?;
                sink.write(py, &header.to_bytes())?;
            }
            return Ok(None);
        }
        let bytes = self.buffer.as_mut_slice();
        self.hasher.update(&bytes[HEADER_LEN..]);
        let header = Header::new(stream_len, objects, self.hasher.clone());
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.flushed = bytes.len() as u64;
        EXPECTED_BYTES.store(bytes.len() + Short::SIZE, Ordering::Relaxed);
        self.buffer.take(py).map(Some)
    }
}

/// `int.to_bytes` for integers beyond 64 bits: two's complement, little endian.
pub fn big_int_bytes<'py>(int: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = int.py();
    // SAFETY: PyLong_Type is a live static type.
    let class = unsafe { Bound::from_borrowed_ptr(py, (&raw mut ffi::PyLong_Type).cast()) };
    let bits: usize = class.call_method1("bit_length", (int,))?.extract()?;
    let options = pyo3::types::PyDict::new(py);
    options.set_item("signed", true)?;
    Ok(class
        .call_method("to_bytes", (int, bits / 8 + 1, "little"), Some(&options))?
        .cast_into()?)
}
