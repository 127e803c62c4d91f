//! NumPy arrays: their bytes are compared, sent as far as they have changed, and restored.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::intern;
use pyo3::prelude::*;

use crate::py::buffer::Buffer;
use crate::py::runtime::Runtime;
use crate::wire::{Reader, Write};

/// Bytes that are compared and sent together.
const BLOCK: usize = 64;

/// What an array consisted of.
pub struct ArrayRecord {
    form: Form,
    bytes: Box<[u8]>,
}

/// All but the numbers.
struct Form {
    dtype: Py<PyAny>,
    shape: Vec<isize>,
    strides: Vec<isize>,
    is_writable: bool,
}

impl Form {
    fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let flags = array.getattr(intern!(py, "flags"))?;
        Ok(Form {
            dtype: array.getattr(intern!(py, "dtype"))?.unbind(),
            shape: array.getattr(intern!(py, "shape"))?.extract()?,
            strides: array.getattr(intern!(py, "strides"))?.extract()?,
            is_writable: flags.getattr(intern!(py, "writeable"))?.extract()?,
        })
    }

    fn is_same(&self, other: &Form) -> bool {
        self.dtype.is(&other.dtype)
            && self.shape == other.shape
            && self.strides == other.strides
            && self.is_writable == other.is_writable
    }
}

/// A hash of all but the items of an array; 0 for anything else.
pub fn form_hash(obj: &Bound<'_, PyAny>) -> PyResult<u64> {
    if !obj.get_type().is(&Runtime::get(obj.py())?.numpy_array) {
        return Ok(0);
    }
    let form = Form::of(obj)?;
    let mut hasher = DefaultHasher::new();
    (form.dtype.as_ptr() as usize).hash(&mut hasher);
    (form.shape, form.strides, form.is_writable).hash(&mut hasher);
    Ok(hasher.finish())
}

impl ArrayRecord {
    /// `None` for an array that has no plain memory of numbers, or is a window on such.
    pub fn capture(array: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = array.py();
        if !array.get_type().is(&Runtime::get(py)?.numpy_array) {
            return Ok(None);
        }
        let form = Form::of(array)?;
        let has_objects = form.dtype.bind(py).getattr(intern!(py, "hasobject"))?;
        // NumPy has no buffers of dates, for instance.
        let buffer = Buffer::get(array).ok();
        let Some(buffer) = buffer.filter(|_| !has_objects.is_truthy().unwrap_or(true)) else {
            return Ok(None);
        };
        // SAFETY: no Python code runs while the bytes are copied.
        let bytes = unsafe { buffer.bytes() }.into();
        Ok(Some(ArrayRecord { form, bytes }))
    }

    pub fn is_still(&self, array: &Bound<'_, PyAny>) -> bool {
        let form = Form::of(array);
        form.is_ok_and(|form| form.is_same(&self.form))
            && Buffer::get(array).is_ok_and(|buffer| {
                // SAFETY: no Python code runs during the comparison.
                unsafe { buffer.bytes() == &self.bytes[..] }
            })
    }

    /// Writes the bytes back; `false` if more than the bytes has changed.
    pub fn restore(&self, array: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !self.form.is_writable || !Form::of(array)?.is_same(&self.form) {
            return Ok(false);
        }
        write(array, 0, &self.bytes)
    }

    /// What leads from this record to a later one; `None` if that is another kind of array.
    pub fn patches_to(&self, new: &ArrayRecord) -> Option<Vec<u8>> {
        if !self.form.is_writable || !self.form.is_same(&new.form) {
            return None;
        }
        let mut patches = Vec::new();
        let mut start = 0;
        let differs = |at: usize| {
            let stop = (at + BLOCK).min(new.bytes.len());
            self.bytes[at..stop] != new.bytes[at..stop]
        };
        while start < new.bytes.len() {
            if !differs(start) {
                start += BLOCK;
                continue;
            }
            let mut stop = start;
            while stop < new.bytes.len() && differs(stop) {
                stop += BLOCK;
            }
            let stop = stop.min(new.bytes.len());
            patches.put_varint(start as u64);
            patches.put_counted(&new.bytes[start..stop]);
            start = stop;
        }
        Some(patches)
    }
}

/// Applies what [`ArrayRecord::patches_to`] gave; `false` if it does not fit the array.
pub fn patch(array: &Bound<'_, PyAny>, patches: &[u8]) -> PyResult<bool> {
    let mut reader = Reader::new(patches);
    while reader.remaining() > 0 {
        let start = reader.varint()?;
        let bytes = reader.counted()?;
        let Ok(start) = usize::try_from(start) else {
            return Ok(false);
        };
        if !array.get_type().is(&Runtime::get(array.py())?.numpy_array)
            || !write(array, start, bytes)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write(array: &Bound<'_, PyAny>, start: usize, bytes: &[u8]) -> PyResult<bool> {
    let has_objects = array
        .getattr(intern!(array.py(), "dtype"))?
        .getattr(intern!(array.py(), "hasobject"))?;
    let mut buffer = Buffer::get(array)?;
    if has_objects.is_truthy()? {
        return Ok(false);
    }
    // SAFETY: no Python code runs during the copy, and the array holds plain numbers.
    let Some(target) = (unsafe { buffer.bytes_mut() }) else {
        return Ok(false);
    };
    let target = start
        .checked_add(bytes.len())
        .and_then(|stop| target.get_mut(start..stop));
    match target {
        Some(target) => target.copy_from_slice(bytes),
        None => return Ok(false),
    }
    Ok(true)
}
