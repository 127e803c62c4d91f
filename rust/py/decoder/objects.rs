//! Instructions that make objects of classes, natively or by their constructors and states.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple, PyType};

use super::machine::Machine;
use crate::error::{DecodeError, Result as WireResult};
use crate::mersenne::STATE_LEN;
use crate::py::errors::status;
use crate::py::late::require_kept;
use crate::py::random::instance_dict;
use crate::py::runtime::Runtime;
use crate::py::types::{is_heap_type, is_plain, new_plain};
use crate::random_states::{checked_index, read_gauss, Position};
use crate::wire::HEADER_LEN;

/// A class and attribute names that its instances have.
pub(super) struct Shape {
    class: Py<PyType>,
    /// It was when the snapshot was made, but may have got other hooks since.
    is_plain: bool,
    /// When that was checked.
    pub(super) epoch: u64,
    names: Vec<Py<PyString>>,
}

impl Shape {
    /// Epoch of a shape that has to be checked again.
    pub(super) const OUTDATED: u64 = u64::MAX;
}

impl<'py> Machine<'_, 'py, '_> {
    pub(super) fn latest_shape(&self) -> WireResult<u32> {
        self.last_new
            .ok_or_else(|| self.malformed("an unknown shape"))
    }

    pub(super) fn new_instance(&mut self, number: u32) -> PyResult<()> {
        let py = self.py;
        let shape = self.shape_at(number)?;
        let class = shape.class.bind(py);
        let obj = if shape.is_plain {
            new_plain(class)?
        } else {
            Runtime::get(py)?.newobj.bind(py).call1((class,))?
        };
        self.push_new(obj.unbind())
    }

    pub(super) fn define_shape(&mut self) -> PyResult<()> {
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
        self.decoded.shapes.push(Shape {
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
        let shape = self.decoded.shapes.get_mut(number as usize).ok_or(error)?;
        if shape.epoch != epoch {
            shape.is_plain = is_plain(shape.class.bind(self.py))?;
            shape.epoch = epoch;
        }
        Ok(shape)
    }

    pub(super) fn fill(&mut self, number: u32) -> PyResult<()> {
        self.shape_at(number)?;
        let shape = &self.decoded.shapes[number as usize];
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

    pub(super) fn attributes(&mut self) -> PyResult<()> {
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

    pub(super) fn random(&mut self) -> PyResult<()> {
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
        if self.changes.is_none() {
            self.decoded
                .randoms
                .push((self.decoded.objects.len(), offset));
        }
        self.push_new(prng)?;
        Ok(())
    }

    pub(super) fn reduce(&mut self) -> PyResult<()> {
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

    pub(super) fn build(&mut self) -> PyResult<()> {
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

pub(super) fn interned_if_str(name: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
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
