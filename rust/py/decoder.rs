//! Decoding: a stack machine that runs the instructions of a snapshot.
//!
//! The bytes are checked against damage by their checksum, but nothing relies on that: every
//! operand, stack depth and type is checked again, so no bytes can do more than raise.

use std::collections::HashMap;

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyCFunction, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple,
    PyType,
};

use super::buffer::Buffer;
use super::errors::{no_memory, owned, status, SnapshotDecodeError};
use super::late::{require_kept, LateContainers};
use super::numbers::{words, NO_OFFSET};
use super::random::instance_dict;
use super::runtime::Runtime;
use super::types::{is_heap_type, is_plain, new_plain};
use crate::error::{DecodeError, Result as WireResult};
use crate::mersenne::STATE_LEN;
use crate::random_states::{checked_index, read_gauss, Position};
use crate::wire::{self, op, Reader, HEADER_LEN};

/// What a snapshot contains.
#[derive(Default)]
struct Decoded {
    roots: Vec<Py<PyAny>>,
    /// By number.
    objects: Vec<Py<PyAny>>,
    /// Number and offset of each native `random.Random`.
    randoms: Vec<(usize, u64)>,
}

/// Decodes a snapshot; the graphs are built by the constructor.
#[pyclass(module = "pams_parallel._core")]
pub struct Decoder(Decoded);

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (data, externals=None))]
    fn new(data: &Bound<'_, PyAny>, externals: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let externals = match externals {
            None => Vec::new(),
            Some(externals) => externals
                .try_iter()?
                .map(|obj| obj.map(Bound::unbind))
                .collect::<PyResult<_>>()?,
        };
        let _paused = PausedCollector::new();
        Ok(Decoder(decode(data, externals)?))
    }

    /// The roots, in the order in which they were added.
    #[getter]
    fn roots<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.0.roots)
    }

    /// The objects with these numbers (little-endian uint32).
    #[pyo3(signature = (numbers, /))]
    fn objects<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = words::<4>(numbers)?
            .into_iter()
            .map(|word| {
                let number = u32::from_le_bytes(word);
                self.0.objects.get(number as usize).ok_or_else(|| {
                    PyValueError::new_err(format!("no object of the snapshot has number {number}"))
                })
            })
            .collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, found)
    }

    /// As Encoder.random_offsets, for the decoded objects.
    #[pyo3(signature = (prngs, /))]
    fn random_offsets<'py>(
        &self,
        py: Python<'py>,
        prngs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let places: HashMap<usize, u64> = self
            .0
            .randoms
            .iter()
            .filter_map(|(number, offset)| {
                let prng = self.0.objects.get(*number)?;
                Some((prng.as_ptr() as usize, *offset))
            })
            .collect();
        let mut offsets = Vec::new();
        for prng in prngs.try_iter()? {
            let offset = places.get(&(prng?.as_ptr() as usize)).unwrap_or(&NO_OFFSET);
            offsets.extend_from_slice(&offset.to_le_bytes());
        }
        Ok(PyBytes::new(py, &offsets))
    }

    /// Drop the references to the decoded objects.
    fn close(this: &Bound<'_, Self>) {
        // Dropped after the borrow has ended, since that can run user code which comes back here.
        let dropped = std::mem::take(&mut this.borrow_mut().0);
        drop(dropped);
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        let mut all = self.0.roots.iter().chain(&self.0.objects);
        all.try_for_each(|obj| visit.call(obj))
    }

    fn __clear__(&mut self) {
        let dropped = std::mem::take(&mut self.0);
        drop(dropped);
    }
}

/// Decode a snapshot of one root and return the root.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub fn loads(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let _paused = PausedCollector::new();
    let mut decoded = decode(data, Vec::new())?;
    match (decoded.roots.pop(), decoded.roots.is_empty()) {
        (Some(root), true) => Ok(root.clone_ref(py)),
        _ => Err(SnapshotDecodeError::new_err("not a snapshot of one object")),
    }
}

/// Builds the graphs of a snapshot.
fn decode<'py>(data: &Bound<'py, PyAny>, externals: Vec<Py<PyAny>>) -> PyResult<Decoded> {
    let py = data.py();
    let buffer = Buffer::get(data)?;
    let bytes = buffer.constant();
    let (header, stream) = wire::open(&bytes)?;
    let mut machine = Machine {
        py,
        reader: Reader::new(stream),
        externals,
        stack: Vec::new(),
        decoded: Decoded {
            roots: Vec::new(),
            // A hint only: each object takes a byte of the stream at least.
            objects: Vec::with_capacity((header.objects as usize).min(stream.len())),
            randoms: Vec::new(),
        },
        shapes: Vec::new(),
        epoch: 0,
        late: LateContainers::default(),
    };
    machine.run()?;
    if machine.decoded.objects.len() != header.objects as usize || !machine.stack.is_empty() {
        return Err(machine
            .malformed("an end that does not fit the header")
            .into());
    }
    machine.late.settle(py)?;
    Ok(machine.decoded)
}

/// Keeps the garbage collector from walking a graph that is still being built.
struct PausedCollector {
    was_enabled: bool,
}

impl PausedCollector {
    fn new() -> Self {
        // SAFETY: called while attached to the interpreter, as methods of a pyclass are.
        let was_enabled = unsafe { ffi::PyGC_Disable() } != 0;
        PausedCollector { was_enabled }
    }
}

impl Drop for PausedCollector {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// A class and attribute names that its instances have.
struct Shape {
    class: Py<PyType>,
    /// It was when the snapshot was made, but may have got other hooks since.
    is_plain: bool,
    /// When that was checked.
    epoch: u64,
    names: Vec<Py<PyString>>,
}

struct Machine<'py, 'data> {
    py: Python<'py>,
    reader: Reader<'data>,
    externals: Vec<Py<PyAny>>,
    stack: Vec<Py<PyAny>>,
    decoded: Decoded,
    shapes: Vec<Shape>,
    /// Counts calls of user code, any of which may give hooks to a class.
    epoch: u64,
    late: LateContainers,
}

impl<'py> Machine<'py, '_> {
    fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed {
            what,
            at: HEADER_LEN + self.reader.position(),
        }
    }

    fn run(&mut self) -> PyResult<()> {
        let py = self.py;
        loop {
            let at = self.reader.position();
            let code = self.reader.byte()?;
            if code >= op::SMALL_INT {
                self.push_int(i64::from(code - op::SMALL_INT))?;
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
                    let bytes = PyBytes::new(self.py, self.reader.counted()?);
                    self.push_new(bytes.into_any().unbind())?;
                }
                op::BYTEARRAY => {
                    let bytes = PyByteArray::new(self.py, self.reader.counted()?);
                    self.push_new(bytes.into_any().unbind())?;
                }
                op::REF => {
                    let number = self.reader.word()?;
                    let found = self.decoded.objects.get(number as usize);
                    let found = found.map(|obj| obj.clone_ref(self.py));
                    let obj = found.ok_or_else(|| self.malformed("a number without an object"))?;
                    self.push(obj)?;
                }
                op::EXTERNAL => {
                    let index = self.reader.word()?;
                    let found = self.externals.get(index as usize);
                    let obj = found.ok_or(DecodeError::External {
                        index,
                        given: self.externals.len(),
                    })?;
                    self.push(obj.clone_ref(self.py))?;
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
                    let items = self.drain_counted()?;
                    let tuple = PyTuple::new(py, items)?;
                    self.push_new(tuple.into_any().unbind())?;
                }
                op::FROZENSET => {
                    let elements = self.pop_counted()?;
                    let set = PyFrozenSet::new(self.py, elements)?;
                    self.push_new(set.into_any().unbind())?;
                }
                op::SHAPE => self.define_shape()?,
                op::NEW => {
                    let number = self.reader.word()?;
                    let py = self.py;
                    let shape = self.shape_at(number)?;
                    let class = shape.class.bind(py);
                    let obj = if shape.is_plain {
                        new_plain(class)?
                    } else {
                        Runtime::get(py)?.newobj.bind(py).call1((class,))?
                    };
                    self.push_new(obj.unbind())?;
                }
                op::FILL => self.fill()?,
                op::ATTRIBUTES => self.attributes()?,
                op::RANDOM => self.random()?,
                op::PICKLED => {
                    let loads = &Runtime::get(self.py)?.pickle_loads;
                    let data = PyBytes::new(self.py, self.reader.counted()?);
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
                _ => {
                    let at = HEADER_LEN + at;
                    return Err(DecodeError::Instruction { code, at }.into());
                }
            }
        }
    }

    /// Pushes an object and gives it the next number.
    #[inline]
    fn push_new(&mut self, obj: Py<PyAny>) -> PyResult<()> {
        if self.decoded.objects.len() == self.decoded.objects.capacity() {
            self.decoded.objects.try_reserve(1).map_err(no_memory)?;
        }
        self.decoded.objects.push(obj.clone_ref(self.py));
        self.push(obj)
    }

    #[inline(always)] // called for every value
    fn push(&mut self, obj: Py<PyAny>) -> PyResult<()> {
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
    fn push_float(&mut self, bytes: [u8; 8]) -> PyResult<()> {
        // SAFETY: returns an owned reference or null with an exception.
        let float = unsafe { owned(self.py, ffi::PyFloat_FromDouble(f64::from_le_bytes(bytes)))? };
        self.push(float)?;
        Ok(())
    }

    fn big_int(&mut self) -> PyResult<()> {
        let data = PyBytes::new(self.py, self.reader.counted()?);
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

    fn decode_utf8(&self, utf8: &[u8], errors: Option<&std::ffi::CStr>) -> PyResult<Py<PyAny>> {
        // SAFETY: `utf8` is a live slice, `errors` null or a C string; the result is owned.
        let text = unsafe {
            owned(
                self.py,
                ffi::PyUnicode_DecodeUTF8(
                    utf8.as_ptr().cast(),
                    utf8.len() as ffi::Py_ssize_t,
                    errors.map_or(std::ptr::null(), std::ffi::CStr::as_ptr),
                ),
            )
        };
        text.map_err(|_| self.malformed("a string that is no UTF-8").into())
    }

    #[inline]
    fn pop(&mut self) -> WireResult<Py<PyAny>> {
        match self.stack.pop() {
            Some(obj) => Ok(obj),
            None => Err(self.malformed("an empty stack")),
        }
    }

    fn peek(&self) -> WireResult<Bound<'py, PyAny>> {
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
    fn drain_counted(&mut self) -> WireResult<std::vec::Drain<'_, Py<PyAny>>> {
        let count = self.reader.varint()?;
        let start = self.start_of(count)?;
        Ok(self.stack.drain(start..))
    }

    /// Index of the object `count` places below the top of the stack.
    #[inline]
    fn start_of(&self, count: u64) -> WireResult<usize> {
        usize::try_from(count)
            .ok()
            .and_then(|count| self.stack.len().checked_sub(count))
            .ok_or_else(|| self.malformed("fewer objects on the stack than needed"))
    }

    /// Takes objects off the stack, for code that may come back to it.
    fn pop_counted(&mut self) -> WireResult<Vec<Py<PyAny>>> {
        let count = self.reader.varint()?;
        self.pop_many(count)
    }

    #[inline]
    fn pop_many(&mut self, count: u64) -> WireResult<Vec<Py<PyAny>>> {
        let start = self.start_of(count)?;
        Ok(self.stack.split_off(start))
    }

    fn pop_pairs(&mut self) -> WireResult<Vec<(Py<PyAny>, Py<PyAny>)>> {
        let count = self.reader.varint()?;
        let mut items = self.pop_many(count.saturating_mul(2))?.into_iter();
        let mut pairs = Vec::with_capacity(items.len() / 2);
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            pairs.push((key, value));
        }
        Ok(pairs)
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

    fn define_shape(&mut self) -> PyResult<()> {
        let count = self.reader.varint()?;
        let mut names = Vec::new();
        for _ in 0..count {
            let name = self.reader.counted()?;
            let name = self.decode_utf8(name, None)?;
            names.push(interned(name.into_bound(self.py).cast_into()?)?.unbind());
        }
        let class = self.pop()?.into_bound(self.py);
        let class = class
            .cast_into::<PyType>()
            .map_err(|_| self.malformed("a shape of what is no class"))?;
        self.shapes.push(Shape {
            is_plain: is_plain(&class)?,
            epoch: self.epoch,
            class: class.unbind(),
            names,
        });
        Ok(())
    }

    fn shape_at(&mut self, number: u32) -> PyResult<&Shape> {
        let error = self.malformed("an unknown shape");
        let epoch = self.epoch;
        let shape = self.shapes.get_mut(number as usize).ok_or(error)?;
        if shape.epoch != epoch {
            shape.is_plain = is_plain(shape.class.bind(self.py))?;
            shape.epoch = epoch;
        }
        Ok(shape)
    }

    fn fill(&mut self) -> PyResult<()> {
        let number = self.reader.word()?;
        self.shape_at(number)?;
        let shape = &self.shapes[number as usize];
        let count = shape.names.len();
        let start = self.start_of(count as u64 + 1)?;
        let obj = self.stack[start].bind(self.py);
        if !shape.is_plain {
            let state = PyDict::new(self.py);
            for (name, value) in shape.names.iter().zip(&self.stack[start + 1..]) {
                state.set_item(name, value)?;
            }
            let obj = obj.clone();
            self.stack.truncate(start + 1);
            return self.set_state(&obj, state.into_any());
        }
        if !obj.get_type().is(&shape.class) {
            return Err(self.malformed("attributes for another class").into());
        }
        if count > 0 {
            let dict = instance_dict(obj)?;
            for (name, value) in shape.names.iter().zip(&self.stack[start + 1..]) {
                // SAFETY: `dict` is a dict; name and value are live objects.
                status(self.py, unsafe {
                    ffi::PyDict_SetItem(dict.as_ptr(), name.as_ptr(), value.as_ptr())
                })?;
            }
        }
        self.stack.truncate(start + 1);
        Ok(())
    }

    fn attributes(&mut self) -> PyResult<()> {
        let pairs = self.pop_pairs()?;
        let obj = self.peek()?;
        let plain = is_plain(&obj.get_type())?;
        let dict = if plain {
            instance_dict(&obj)?
        } else {
            PyDict::new(self.py)
        };
        for (name, value) in pairs {
            dict.set_item(interned_if_str(name.into_bound(self.py))?, value)?;
        }
        if plain {
            return Ok(());
        }
        self.set_state(&obj, dict.into_any())
    }

    fn random(&mut self) -> PyResult<()> {
        let gauss_next = read_gauss(&mut self.reader)?;
        let index = u32::from_le_bytes(self.reader.array()?);
        let position = Position {
            index: checked_index(u64::from(index), self.reader.position())?,
            gauss_next,
        };
        let offset = (HEADER_LEN + self.reader.position()) as u64;
        let words = self.reader.bytes(STATE_LEN as u64)?;
        let words = words.first_chunk().ok_or(DecodeError::Checksum)?;
        let runtime = Runtime::get(self.py)?;
        let Some(layout) = &runtime.random else {
            return Err(PyTypeError::new_err(
                "random.Random has another memory layout here than where the snapshot was made",
            ));
        };
        let prng = layout.create(self.py, position, words)?.unbind();
        self.decoded
            .randoms
            .push((self.decoded.objects.len(), offset));
        self.push_new(prng)?;
        Ok(())
    }

    fn reduce(&mut self) -> PyResult<()> {
        let arguments = self.pop()?.into_bound(self.py);
        let callable = self.pop()?;
        let arguments = arguments
            .cast_into::<PyTuple>()
            .map_err(|_| self.malformed("arguments that are no tuple"))?;
        let unfilled = self.late.prepare(&arguments)?;
        let callable = callable.bind(self.py);
        let is_builtin = match callable.cast::<PyType>() {
            Ok(class) => !is_heap_type(class),
            // `__newobj__` runs what the class has as `__new__`, mostly the built-in one.
            Err(_) => {
                callable.is_instance_of::<PyCFunction>()
                    || callable.is(&Runtime::get(self.py)?.newobj)
            }
        };
        self.epoch += u64::from(!is_builtin);
        let obj = callable.call1(arguments)?;
        require_kept(&obj, unfilled)?;
        self.push_new(obj.unbind())?;
        Ok(())
    }

    fn build(&mut self) -> PyResult<()> {
        let state = self.pop()?.into_bound(self.py);
        let obj = self.peek()?;
        self.set_state(&obj, state)
    }

    /// Gives a state to an object as `pickle.Unpickler` does.
    fn set_state(&mut self, obj: &Bound<'py, PyAny>, mut state: Bound<'py, PyAny>) -> PyResult<()> {
        let setter = match obj.getattr(intern!(self.py, "__setstate__")) {
            Ok(setter) => Some(setter),
            Err(error) if error.is_instance_of::<PyAttributeError>(self.py) => None,
            Err(error) => return Err(error),
        };
        if let Some(setter) = setter {
            let unfilled = self.late.prepare(&state)?;
            self.epoch += u64::from(is_heap_type(&obj.get_type()));
            setter.call1((state,))?;
            return require_kept(obj, unfilled);
        }
        let mut slots = None;
        let pair = state
            .cast::<PyTuple>()
            .ok()
            .filter(|pair| pair.len() == 2)
            .cloned();
        if let Some(pair) = pair {
            state = pair.get_item(0)?;
            slots = Some(pair.get_item(1)?);
        }
        if !state.is_none() {
            let attributes = self.state_dict(state, "state is not a dictionary")?;
            let dict = obj.getattr(intern!(self.py, "__dict__"))?;
            for (name, value) in attributes.iter() {
                dict.set_item(interned_if_str(name)?, value)?;
            }
        }
        if let Some(slots) = slots {
            let slots = self.state_dict(slots, "slot state is not a dictionary")?;
            for (name, value) in slots.iter() {
                // SAFETY: all three are live objects; names of any type get Python's own error.
                status(self.py, unsafe {
                    ffi::PyObject_SetAttr(obj.as_ptr(), name.as_ptr(), value.as_ptr())
                })?;
            }
        }
        Ok(())
    }

    /// A private copy of a state, so that nothing can change it while it is being set.
    fn state_dict(
        &self,
        state: Bound<'py, PyAny>,
        message: &'static str,
    ) -> PyResult<Bound<'py, PyDict>> {
        match state.cast::<PyDict>() {
            Ok(dict) => dict.copy(),
            Err(_) => {
                let class = Runtime::get(self.py)?.unpickling_error.bind(self.py);
                Err(PyErr::from_value(class.call1((message,))?))
            }
        }
    }
}

fn interned_if_str(name: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if name.is_exact_instance_of::<PyString>() {
        return Ok(interned(name.cast_into::<PyString>()?)?.into_any());
    }
    Ok(name)
}

fn interned(name: Bound<'_, PyString>) -> PyResult<Bound<'_, PyString>> {
    let py = name.py();
    let mut ptr = name.into_ptr();
    // SAFETY: `ptr` is an owned exact str; the call replaces it by an owned interned one.
    let name = unsafe {
        ffi::PyUnicode_InternInPlace(&raw mut ptr);
        Bound::from_owned_ptr(py, ptr)
    };
    Ok(name.cast_into::<PyString>()?)
}
