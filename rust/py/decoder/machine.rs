//! The stack machine, and its instructions for values of built-in types.

use pyo3::exceptions::PyUnicodeDecodeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyTuple};

use super::objects::Shape;
use super::updates::Lifted;
use super::{Changes, Decoded};
use crate::error::{DecodeError, Result as WireResult};
use crate::py::errors::{no_memory, owned};
use crate::py::interrupts::Interrupts;
use crate::py::late::{require_kept, LateContainers};
use crate::py::runtime::Runtime;
use crate::wire::{op, Reader, HEADER_LEN};

pub(super) struct Machine<'a, 'py, 'data> {
    pub(super) py: Python<'py>,
    pub(super) reader: Reader<'data>,
    externals: &'a [Py<PyAny>],
    pub(super) stack: Vec<Py<PyAny>>,
    pub(super) decoded: Decoded,
    /// For the frames of a source.
    pub(super) changes: Option<&'a mut Changes>,
    /// Counts calls of user code, any of which may give hooks to a class.
    pub(super) epoch: u64,
    pub(super) late: LateContainers,
    /// Objects with the parts that they are given again at the end.
    pub(super) late_parts: Vec<(Py<PyAny>, Py<PyAny>)>,
    /// Those that instructions can refer to.
    pub(super) floats: Vec<Py<PyAny>>,
    /// Shape of the latest new instance.
    pub(super) last_new: Option<u32>,
    /// Items that are going to other places in their lists. The last list comes first: it is one
    /// that was updated because another one has it as a new item.
    pub(super) lifted: Vec<Lifted>,
    /// Name of the attribute that was set last.
    pub(super) last_name: Option<Py<PyAny>>,
    /// Number of the latest object that was changed.
    pub(super) last_updated: u32,
}

impl<'a, 'py, 'data> Machine<'a, 'py, 'data> {
    pub(super) fn new(
        py: Python<'py>,
        reader: Reader<'data>,
        mut decoded: Decoded,
        externals: &'a [Py<PyAny>],
        changes: Option<&'a mut Changes>,
    ) -> Self {
        for shape in &mut decoded.shapes {
            shape.epoch = Shape::OUTDATED;
        }
        Machine {
            py,
            reader,
            externals,
            stack: Vec::new(),
            decoded,
            changes,
            epoch: 0,
            late: LateContainers::default(),
            late_parts: Vec::new(),
            floats: Vec::new(),
            last_new: None,
            lifted: Vec::new(),
            last_name: None,
            last_updated: 0,
        }
    }

    /// What has been decoded, when all instructions have run.
    pub(super) fn finish(mut self) -> PyResult<Decoded> {
        if !self.stack.is_empty() {
            return Err(self.malformed("an end that does not fit the header").into());
        }
        std::mem::take(&mut self.late).settle(self.py)?;
        self.settle_late_parts()?;
        Ok(self.decoded)
    }

    pub(super) fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed {
            what,
            at: HEADER_LEN + self.reader.position(),
        }
    }

    pub(super) fn run(&mut self) -> PyResult<()> {
        let py = self.py;
        let mut interrupts = Interrupts::default();
        loop {
            interrupts.look(py)?;
            let at = self.reader.position();
            let code = self.reader.byte()?;
            if code >= op::SMALL_INT {
                self.push_int(i64::from(code - op::SMALL_INT))?;
                continue;
            }
            if code >= op::MEDIUM_INT {
                let high = i64::from(code - op::MEDIUM_INT) << 8;
                let value = op::MEDIUM_INT_MIN + high + i64::from(self.reader.byte()?);
                self.push_int(value)?;
                continue;
            }
            match code {
                op::END => return Ok(()),
                op::NONE => self.push(self.py.None())?,
                op::TRUE => self.push_bool(true)?,
                op::FALSE => self.push_bool(false)?,
                op::INT => {
                    let value = i64::from_le_bytes(self.reader.array()?);
                    self.push_int(value)?;
                }
                op::INT_32 => {
                    let value = i32::from_le_bytes(self.reader.array()?);
                    self.push_int(i64::from(value))?;
                }
                op::INT_16 => {
                    let value = i16::from_le_bytes(self.reader.array()?);
                    self.push_int(i64::from(value))?;
                }
                op::BIG_INT => self.big_int()?,
                op::FLOAT => {
                    let bytes = self.reader.array()?;
                    self.push_float(bytes)?;
                }
                op::FLOATS => {
                    let count = self.reader.varint()?;
                    let bytes = self.reader.bytes(count.saturating_mul(8))?;
                    for eight in bytes.as_chunks::<8>().0 {
                        self.push_float(*eight)?;
                    }
                }
                op::STR => self.string(None)?,
                op::STR_SURROGATES => self.string(Some(c"surrogatepass"))?,
                op::BYTES => {
                    let bytes = self.counted_bytes()?;
                    self.push_new(bytes)?;
                }
                op::BYTEARRAY => {
                    let bytes = self.reader.counted()?;
                    let start = bytes.as_ptr().cast();
                    // SAFETY: a live slice; the result is owned.
                    let copy = unsafe {
                        owned(py, ffi::PyByteArray_FromStringAndSize(start, ssize(bytes)))?
                    };
                    self.push_new(copy)?;
                }
                op::REF => {
                    let number = self.reader.number()?;
                    self.push_ref(number)?;
                }
                op::MEDIUM_REF..=op::LAST_MEDIUM_REF => {
                    let word = u16::from_le_bytes(self.reader.array()?);
                    self.push_ref(u32::from(code - op::MEDIUM_REF) << 16 | u32::from(word))?;
                }
                op::EXTERNAL => {
                    let index = self.reader.number()?;
                    self.external(index)?;
                }
                op::SHORT_EXTERNAL..=op::LAST_SHORT_EXTERNAL => {
                    self.external(u32::from(code - op::SHORT_EXTERNAL))?;
                }
                op::LIST => self.push_new(PyList::empty(self.py).into_any().unbind())?,
                op::APPEND => self.append()?,
                op::ATOM_LIST => {
                    let items = self.drain_counted()?;
                    let list = PyList::new(py, items)?;
                    self.push_new(list.into_any().unbind())?;
                }
                op::DICT => self.push_new(PyDict::new(self.py).into_any().unbind())?,
                op::SET_ITEMS => self.set_items()?,
                op::SET_ITEMS_LATE => {
                    let pairs = self.pop_pairs()?;
                    let dict = self.peek()?;
                    if !dict.is_instance_of::<PyDict>() {
                        return Err(self.malformed("late items for what is no dict").into());
                    }
                    self.late.set_items(&dict, pairs)?;
                }
                op::SET => self.push_new(PySet::empty(self.py)?.into_any().unbind())?,
                op::ADD => {
                    let elements = self.pop_counted()?;
                    let set = self.top_set()?;
                    let set = set.cast_exact::<PySet>()?;
                    for element in elements {
                        set.add(element)?;
                    }
                }
                op::ADD_LATE => {
                    let elements = self.pop_counted()?;
                    let set = self.top_set()?;
                    self.late.add(&set, elements)?;
                }
                op::EMPTY_TUPLE => self.push(PyTuple::empty(self.py).into_any().unbind())?,
                op::TUPLE => {
                    let count = self.reader.varint()?;
                    self.tuple(count)?;
                }
                op::FROZENSET => {
                    let elements = self.pop_counted()?;
                    let set = PyFrozenSet::new(self.py, elements)?;
                    self.push_new(set.into_any().unbind())?;
                }
                op::SHAPE => self.define_shape()?,
                op::NEW => {
                    let shape = self.reader.number()?;
                    self.last_new = Some(shape);
                    self.new_instance(shape)?;
                }
                op::NEW_AGAIN => self.new_instance(self.latest_shape()?)?,
                op::FILL => {
                    let shape = self.reader.number()?;
                    self.fill(shape)?;
                }
                op::FILL_NEW => self.fill(self.latest_shape()?)?,
                op::ATTRIBUTES => self.attributes()?,
                op::RANDOM => self.random()?,
                op::PICKLED => {
                    let loads = &Runtime::get(self.py)?.pickle_loads;
                    let data = self.counted_bytes()?;
                    let obj = loads.call1(self.py, (data,))?;
                    self.push_new(obj)?;
                }
                op::REDUCE => self.reduce()?,
                op::BUILD => self.build()?,
                op::STATE_SETTER => {
                    let state = self.pop()?;
                    let setter = self.pop()?;
                    let obj = self.peek()?;
                    let unfilled = self.late.prepare(state.bind(self.py))?;
                    self.epoch += 1;
                    setter.call1(self.py, (obj.clone(), state))?;
                    require_kept(&obj, unfilled)?;
                }
                op::POP => drop(self.drain_counted()?),
                op::ROOT => {
                    let root = self.pop()?;
                    self.decoded.roots.push(root);
                }
                op::SHORT_TUPLE..=op::LAST_SHORT_TUPLE => {
                    self.tuple(u64::from(code - op::SHORT_TUPLE) + 1)?;
                }
                _ => {
                    if self.changes.is_none() || !self.run_update(code)? {
                        let at = HEADER_LEN + at;
                        return Err(DecodeError::Instruction { code, at }.into());
                    }
                }
            }
        }
    }

    /// Pushes an object and gives it the next number.
    #[inline]
    pub(super) fn push_new(&mut self, obj: Py<PyAny>) -> PyResult<()> {
        let objects = &mut self.decoded.objects;
        if objects.len() == objects.capacity() {
            objects.try_reserve(1).map_err(no_memory)?;
        }
        match &mut self.changes {
            None => objects.push(obj.clone_ref(self.py)),
            Some(changes) => {
                let number = self.decoded.free.pop().unwrap_or(objects.len() as u32);
                match objects.get_mut(number as usize) {
                    // What was there is `None`, so dropping it runs no code.
                    Some(place) => *place = obj.clone_ref(self.py),
                    None => objects.push(obj.clone_ref(self.py)),
                }
                changes.created.try_reserve(1).map_err(no_memory)?;
                changes.created.push(number);
            }
        }
        self.push(obj)
    }

    #[inline]
    pub(super) fn object_at(&self, number: u32) -> WireResult<&Py<PyAny>> {
        let found = self.decoded.objects.get(number as usize);
        found.ok_or_else(|| self.malformed("a number without an object"))
    }

    #[inline(always)] // called for every value
    pub(super) fn push(&mut self, obj: Py<PyAny>) -> PyResult<()> {
        if self.stack.len() == self.stack.capacity() {
            self.stack.try_reserve(1).map_err(no_memory)?;
        }
        self.stack.push(obj);
        Ok(())
    }

    fn push_bool(&mut self, value: bool) -> PyResult<()> {
        let value = pyo3::types::PyBool::new(self.py, value).to_owned();
        self.push(value.into_any().unbind())
    }

    #[inline]
    fn push_int(&mut self, value: i64) -> PyResult<()> {
        // SAFETY: returns an owned reference or null with an exception.
        let int = unsafe { owned(self.py, ffi::PyLong_FromLongLong(value))? };
        self.push(int)?;
        Ok(())
    }

    #[inline]
    pub(super) fn push_float(&mut self, bytes: [u8; 8]) -> PyResult<()> {
        // SAFETY: returns an owned reference or null with an exception.
        let float = unsafe { owned(self.py, ffi::PyFloat_FromDouble(f64::from_le_bytes(bytes)))? };
        self.push(float)?;
        Ok(())
    }

    /// The operand as `bytes`. `PyBytes::new` would panic without memory for it.
    fn counted_bytes(&mut self) -> PyResult<Py<PyAny>> {
        let bytes = self.reader.counted()?;
        let start = bytes.as_ptr().cast();
        // SAFETY: a live slice; the result is owned.
        unsafe { owned(self.py, ffi::PyBytes_FromStringAndSize(start, ssize(bytes))) }
    }

    fn big_int(&mut self) -> PyResult<()> {
        let data = self.counted_bytes()?;
        // SAFETY: PyLong_Type is a live static type.
        let class =
            unsafe { Bound::from_borrowed_ptr(self.py, (&raw mut ffi::PyLong_Type).cast()) };
        let options = PyDict::new(self.py);
        options.set_item("signed", true)?;
        let int = class.call_method("from_bytes", (data, "little"), Some(&options))?;
        self.push(int.unbind())?;
        Ok(())
    }

    fn string(&mut self, errors: Option<&std::ffi::CStr>) -> PyResult<()> {
        let utf8 = self.reader.counted()?;
        let text = self.decode_utf8(utf8, errors)?;
        self.push_new(text)?;
        Ok(())
    }

    pub(super) fn decode_utf8(
        &self,
        utf8: &[u8],
        errors: Option<&std::ffi::CStr>,
    ) -> PyResult<Py<PyAny>> {
        // SAFETY: `utf8` is a live slice, `errors` null or a C string; the result is owned.
        let text = unsafe {
            owned(
                self.py,
                ffi::PyUnicode_DecodeUTF8(
                    utf8.as_ptr().cast(),
                    ssize(utf8),
                    errors.map_or(std::ptr::null(), std::ffi::CStr::as_ptr),
                ),
            )
        };
        text.map_err(|error| {
            if error.is_instance_of::<PyUnicodeDecodeError>(self.py) {
                self.malformed("a string that is no UTF-8").into()
            } else {
                error
            }
        })
    }

    #[inline]
    pub(super) fn pop(&mut self) -> WireResult<Py<PyAny>> {
        match self.stack.pop() {
            Some(obj) => Ok(obj),
            None => Err(self.malformed("an empty stack")),
        }
    }

    pub(super) fn peek(&self) -> WireResult<Bound<'py, PyAny>> {
        match self.stack.last() {
            Some(obj) => Ok(obj.bind(self.py).clone()),
            None => Err(self.malformed("an empty stack")),
        }
    }

    /// The topmost object, which must be an exact set: iteration over subclasses runs user code.
    fn top_set(&self) -> WireResult<Bound<'py, PyAny>> {
        let top = self.peek()?;
        if top.is_exact_instance_of::<PySet>() {
            Ok(top)
        } else {
            Err(self.malformed("elements for what is no set"))
        }
    }

    /// As many objects from the top of the stack as the operand says, in the order of their
    /// pushing.
    #[inline]
    pub(super) fn drain_counted(&mut self) -> WireResult<std::vec::Drain<'_, Py<PyAny>>> {
        let count = self.reader.varint()?;
        let start = self.start_of(count)?;
        Ok(self.stack.drain(start..))
    }

    /// Index of the object `count` places below the top of the stack.
    #[inline]
    pub(super) fn start_of(&self, count: u64) -> WireResult<usize> {
        usize::try_from(count)
            .ok()
            .and_then(|count| self.stack.len().checked_sub(count))
            .ok_or_else(|| self.malformed("fewer objects on the stack than needed"))
    }

    /// Takes objects off the stack, for code that may come back to it.
    pub(super) fn pop_counted(&mut self) -> WireResult<Vec<Py<PyAny>>> {
        let count = self.reader.varint()?;
        self.pop_many(count)
    }

    fn tuple(&mut self, count: u64) -> PyResult<()> {
        let py = self.py;
        let start = self.start_of(count)?;
        let tuple = PyTuple::new(py, self.stack.drain(start..))?;
        self.push_new(tuple.into_any().unbind())
    }

    #[inline]
    fn pop_many(&mut self, count: u64) -> WireResult<Vec<Py<PyAny>>> {
        let start = self.start_of(count)?;
        Ok(self.stack.split_off(start))
    }

    pub(super) fn pop_pairs(&mut self) -> WireResult<Vec<(Py<PyAny>, Py<PyAny>)>> {
        let count = self.reader.varint()?;
        let mut items = self.pop_many(count.saturating_mul(2))?.into_iter();
        let mut pairs = Vec::with_capacity(items.len() / 2);
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            pairs.push((key, value));
        }
        Ok(pairs)
    }

    fn push_ref(&mut self, number: u32) -> PyResult<()> {
        let obj = self.object_at(number)?.clone_ref(self.py);
        self.push(obj)
    }

    fn external(&mut self, index: u32) -> PyResult<()> {
        let found = self.externals.get(index as usize);
        let obj = found.ok_or(DecodeError::External {
            index,
            given: self.externals.len(),
        })?;
        self.push(obj.clone_ref(self.py))
    }

    fn append(&mut self) -> PyResult<()> {
        let items = self.pop_counted()?;
        let target = self.peek()?;
        if let Ok(list) = target.cast_exact::<PyList>() {
            for item in items {
                list.append(item)?;
            }
            return Ok(());
        }
        // As pickle: in one go where the class can.
        if let Some(extend) = target.getattr_opt(intern!(self.py, "extend"))? {
            extend.call1((PyList::new(self.py, items)?,))?;
            return Ok(());
        }
        let append = target.getattr(intern!(self.py, "append"))?;
        for item in items {
            append.call1((item,))?;
        }
        Ok(())
    }

    fn set_items(&mut self) -> PyResult<()> {
        let pairs = self.pop_pairs()?;
        let target = self.peek()?;
        if let Ok(dict) = target.cast_exact::<PyDict>() {
            for (key, value) in pairs {
                dict.set_item(key, value)?;
            }
            return Ok(());
        }
        for (key, value) in pairs {
            target.set_item(key, value)?;
        }
        Ok(())
    }
}

/// Length as the C API takes it. No slice is longer than it can tell.
fn ssize(bytes: &[u8]) -> ffi::Py_ssize_t {
    bytes.len() as ffi::Py_ssize_t
}
