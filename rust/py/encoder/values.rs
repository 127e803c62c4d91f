//! Values of built-in types, and what every value goes through.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

use super::captured::FINGERPRINT_NUMBERS;
use super::frames::{dict_frame, Frame, Target, Written};
use super::{Encoder, Known};
use crate::py::errors::ForeignReferenceError;
use crate::py::graph::kind::Kind;
use crate::py::output::big_int_bytes;
use crate::py::prefetch::{prefetch, DISTANCE};
use crate::wire::{op, Short, Write};

/// Items of a tuple that are fetched at a time.
const MAX_PREFETCHED: usize = 16;

impl Encoder {
    #[inline]
    pub(super) fn known(&self, obj: &Bound<'_, PyAny>) -> Option<Known> {
        self.memo.get(&(obj.as_ptr() as usize)).copied()
    }

    /// Writes an atom or a reference to an object that has a number. Runs no Python code, so the
    /// object need not be owned.
    #[inline]
    pub(super) fn quick(&mut self, obj: Borrowed<'_, '_, PyAny>) -> bool {
        if self.atom(&obj) {
            return true;
        }
        match self.known(&obj) {
            Some(Known::Number(number)) => {
                if let Some(notes) = &mut self.fingerprint {
                    if !notes.may_refer_to(&obj, number) {
                        return false;
                    }
                }
                self.put_ref(number);
            }
            Some(Known::External(index)) => self.put_external(index),
            Some(Known::Foreign | Known::Changed(_)) | None => return false,
        }
        true
    }

    /// Writes a value if that is possible without a frame, else pushes its frame.
    #[inline]
    pub(super) fn value(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        if self.quick(obj.as_borrowed()) {
            return Ok(Written::Yes);
        }
        let known = self.known(obj);
        if let Some(Known::Changed(number)) = known {
            return self.changed(obj, number);
        }
        if let Some(Known::Foreign) = known {
            return Err(ForeignReferenceError::new_err(format!(
                "a reference to an object that the other side does not have: {}",
                describe(obj)
            )));
        }
        self.first_visit(py, obj)
    }

    /// Writes an atom ([`is_atom`]), unless it is an integer of more than 64 bits.
    #[inline(always)] // called for most of the values of a simulation
    fn atom(&mut self, obj: &Bound<'_, PyAny>) -> bool {
        let class = exact_type(obj);
        let buffer = &mut self.output.buffer;
        if class == &raw mut ffi::PyFloat_Type {
            // SAFETY: `obj` is an exact float.
            let bits = unsafe { ffi::PyFloat_AsDouble(obj.as_ptr()) }.to_bits();
            let known = self.output.floats.as_mut();
            match known.map(|known| known.look_up(bits)) {
                None => buffer.put_short(Short::with_u64(op::FLOAT, bits)),
                Some(None) => buffer.put_short(Short::with_u64(op::NEW_FLOAT, bits)),
                Some(Some(back)) => buffer.put_short(Short::with_varint(op::FLOAT_AGAIN, back)),
            }
        } else if class == &raw mut ffi::PyLong_Type {
            let mut overflow = 0;
            // SAFETY: `obj` is an exact int, for which the call does not fail.
            let value =
                unsafe { ffi::PyLong_AsLongLongAndOverflow(obj.as_ptr(), &raw mut overflow) };
            if overflow != 0 {
                return false;
            }
            if (0..=op::SMALL_INT_MAX).contains(&value) {
                buffer.put_short(Short::code(op::SMALL_INT + value as u8));
            } else if (op::MEDIUM_INT_MIN..=op::MEDIUM_INT_MAX).contains(&value) {
                let [low, high] = ((value - op::MEDIUM_INT_MIN) as u16).to_le_bytes();
                buffer.put_short(Short::with_u8(op::MEDIUM_INT + high, low));
            } else if let Ok(value) = i16::try_from(value) {
                buffer.put_short(Short::with_u16(op::INT_16, value.cast_unsigned()));
            } else if let Ok(value) = i32::try_from(value) {
                buffer.put_short(Short::with_u32(op::INT_32, value.cast_unsigned()));
            } else {
                buffer.put_short(Short::with_u64(op::INT, value.cast_unsigned()));
            }
        } else if obj.is_none() {
            buffer.put_short(Short::code(op::NONE));
        } else if class == &raw mut ffi::PyBool_Type {
            // SAFETY: True is a live object.
            let is_true = obj.as_ptr() == unsafe { ffi::Py_True() };
            buffer.put_short(Short::code(if is_true { op::TRUE } else { op::FALSE }));
        } else {
            return false;
        }
        true
    }

    fn big_int(&mut self, int: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put_counted(op::BIG_INT, big_int_bytes(int)?.as_bytes());
        Ok(())
    }

    /// Writes the floats from `start` on in one instruction; returns how many, 0 for fewer
    /// than two.
    pub(super) fn floats(&mut self, list: &Bound<'_, PyList>, start: usize) -> usize {
        let len = list.len();
        let is_float = |index: usize| {
            // SAFETY: the index is below the length, and no Python code runs meanwhile.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) };
            // SAFETY: a list item is a live object.
            (unsafe { ffi::Py_TYPE(item) } == &raw mut ffi::PyFloat_Type).then_some(item)
        };
        let run = (start..len)
            .take_while(|&index| is_float(index).is_some())
            .count();
        if run < 2 {
            return 0;
        }
        self.put(op::FLOATS, run as u64);
        for item in (start..start + run).map_while(is_float) {
            // SAFETY: `item` is an exact float.
            let value = unsafe { ffi::PyFloat_AsDouble(item) };
            self.output.buffer.put_bytes(&value.to_le_bytes());
        }
        run
    }

    /// Writes or begins an object that has no number yet.
    fn first_visit(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        self.interrupts.look(py)?;
        if let Ok(text) = obj.cast_exact::<PyString>() {
            if !self.unicode_text(obj)? {
                let encoded = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
                let encoded = encoded.cast_into::<PyBytes>()?;
                self.put_counted(op::STR_SURROGATES, encoded.as_bytes());
                self.number(obj)?;
            }
        } else if let Ok(dict) = obj.cast_exact::<PyDict>() {
            self.output.buffer.put_byte(op::DICT);
            self.number(obj)?;
            if self.shadow.is_some() {
                return self.begin_recorded(obj, Kind::Dict);
            }
            if !dict.is_empty() {
                return self.begin(dict_frame(dict, Target::Dict));
            }
        } else if let Ok(list) = obj.cast_exact::<PyList>() {
            if self.shadow.is_none() && self.atom_list(list)? {
                return Ok(Written::Yes);
            }
            self.output.buffer.put_byte(op::LIST);
            self.number(obj)?;
            if self.shadow.is_some() {
                return self.begin_recorded(obj, Kind::List);
            }
            if !list.is_empty() {
                return self.begin(Frame::List {
                    list: obj.clone().unbind(),
                    next: 0,
                });
            }
        } else if let Ok(tuple) = obj.cast_exact::<PyTuple>() {
            if tuple.is_empty() {
                self.output.buffer.put_byte(op::EMPTY_TUPLE);
                return Ok(Written::Yes);
            }
            let next = self.quick_items(tuple)?;
            if next == tuple.len() {
                // Nothing was visited that could have completed the tuple itself.
                self.put_completed(op::TUPLE, next as u64);
                self.number(obj)?;
                return Ok(Written::Yes);
            }
            return self.begin(Frame::Tuple {
                tuple: obj.clone().unbind(),
                next,
            });
        } else if obj.is_exact_instance_of::<PySet>() || obj.is_exact_instance_of::<PyFrozenSet>() {
            if obj.is_exact_instance_of::<PySet>() {
                self.output.buffer.put_byte(op::SET);
                self.number(obj)?;
                if self.shadow.is_some() {
                    return self.begin_recorded(obj, Kind::Set);
                }
            }
            return self.begin(Frame::Set {
                set: obj.clone().unbind(),
                elements: obj.try_iter()?.unbind(),
                count: 0,
                settled: true,
            });
        } else if obj.is_exact_instance_of::<PyInt>() {
            self.big_int(obj)?;
        } else if let Ok(bytes) = obj.cast_exact::<PyBytes>() {
            self.put_counted(op::BYTES, bytes.as_bytes());
            self.number(obj)?;
        } else if let Ok(bytes) = obj.cast_exact::<PyByteArray>() {
            // SAFETY: no Python code runs while the bytes are copied.
            self.put_counted(op::BYTEARRAY, unsafe { bytes.as_bytes() });
            self.number(obj)?;
            self.record(obj, Kind::ByteArray)?;
        } else {
            return self.by_plan(py, obj);
        }
        Ok(Written::Yes)
    }

    /// Writes an exact string without lone surrogates. Runs no Python code.
    pub(super) fn unicode_text(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<bool> {
        match obj.cast_exact::<PyString>().map(|text| text.to_str()) {
            Ok(Ok(utf8)) => {
                self.put_counted(op::STR, utf8.as_bytes());
                self.number(obj)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Writes the first items of a tuple as far as no Python code has to run; returns how many.
    fn quick_items(&mut self, tuple: &Bound<'_, PyTuple>) -> PyResult<usize> {
        let len = tuple.len();
        let mut fetched = [std::ptr::null_mut(); MAX_PREFETCHED];
        let mut start = 0;
        while start < len {
            let count = (len - start).min(MAX_PREFETCHED);
            for (offset, place) in fetched[..count].iter_mut().enumerate() {
                let index = (start + offset) as ffi::Py_ssize_t;
                // SAFETY: the index is below the length.
                *place = unsafe { ffi::PyTuple_GetItem(tuple.as_ptr(), index) };
                prefetch(*place);
            }
            for (offset, &item) in fetched[..count].iter().enumerate() {
                // SAFETY: a tuple owns its items and keeps them.
                let item = unsafe { Borrowed::from_ptr(tuple.py(), item) };
                if !self.atom(&item) && !self.quick(item) && !self.unicode_text(&item)? {
                    return Ok(start + offset);
                }
            }
            start += count;
        }
        Ok(len)
    }

    /// Writes a list of nothing but atoms.
    fn atom_list(&mut self, list: &Bound<'_, PyList>) -> PyResult<bool> {
        let len = list.len();
        let all_atoms = (0..len).all(|index| {
            if index + DISTANCE < len {
                // SAFETY: the index is below the length.
                prefetch(unsafe {
                    ffi::PyList_GetItem(list.as_ptr(), (index + DISTANCE) as ffi::Py_ssize_t)
                });
            }
            // SAFETY: the index is below the length, and no Python code runs meanwhile.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) };
            // SAFETY: a list item is a live object.
            is_atom(&*unsafe { Borrowed::from_ptr(list.py(), item) })
        });
        if len == 0 || !all_atoms {
            return Ok(false);
        }
        let mut index = 0;
        while index < len {
            let run = self.floats(list, index);
            if run == 0 {
                let item = list.get_item(index)?;
                if !self.atom(&item) {
                    self.big_int(&item)?;
                }
            }
            index += run.max(1);
        }
        self.put(op::ATOM_LIST, len as u64);
        self.number(list)?;
        Ok(true)
    }

    /// Closes a tuple or frozenset, unless it was completed within its own items.
    pub(super) fn close_immutable(
        &mut self,
        obj: &Bound<'_, PyAny>,
        code: u8,
        count: u64,
    ) -> PyResult<()> {
        let own = |number: &u32| self.fingerprint.is_none() || *number >= FINGERPRINT_NUMBERS;
        let completed = match self.known(obj) {
            Some(Known::Number(number)) => Some(number).filter(own),
            _ => None,
        };
        if let Some(number) = completed {
            self.put(op::POP, count);
            self.put_ref(number);
            return Ok(());
        }
        self.put_completed(code, count);
        self.number(obj)
    }

    /// Writes what makes a tuple or frozenset of so many objects.
    fn put_completed(&mut self, code: u8, count: u64) {
        let last_short = u64::from(op::LAST_SHORT_TUPLE - op::SHORT_TUPLE) + 1;
        if code == op::TUPLE && (1..=last_short).contains(&count) {
            let code = op::SHORT_TUPLE + (count - 1) as u8;
            self.output.buffer.put_byte(code);
        } else {
            self.put(code, count);
        }
    }
}

#[inline]
fn exact_type(obj: &Bound<'_, PyAny>) -> *mut ffi::PyTypeObject {
    // SAFETY: `obj` is a live object.
    unsafe { ffi::Py_TYPE(obj.as_ptr()) }
}

/// `None`, booleans, integers and floats, which have no number.
#[inline]
fn is_atom(obj: &Bound<'_, PyAny>) -> bool {
    let class = exact_type(obj);
    class == &raw mut ffi::PyFloat_Type
        || class == &raw mut ffi::PyLong_Type
        || class == &raw mut ffi::PyBool_Type
        || obj.is_none()
}

/// Strings and integers, whose hash never depends on anything else.
pub(super) fn is_common_key(key: &Bound<'_, PyAny>) -> bool {
    let class = exact_type(key);
    class == &raw mut ffi::PyUnicode_Type || class == &raw mut ffi::PyLong_Type
}

/// An object for error messages, without calling its code.
pub(super) fn describe(obj: &Bound<'_, PyAny>) -> String {
    let class = obj.get_type();
    match class.fully_qualified_name() {
        Ok(name) => format!("an object of type {name}"),
        Err(_) => "an object".to_owned(),
    }
}
