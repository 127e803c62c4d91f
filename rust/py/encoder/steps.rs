//! The walk: encodes the parts of the topmost frame until one of them needs its own.

use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyIterator, PyList, PyTuple};

use super::frames::{Frame, Reduction, Stage, Target, Written};
use super::values::is_common_key;
use super::{Encoder, Known, EXPECTED_OBJECTS};
use crate::py::graph::kind::has_stable_hash;
use crate::py::prefetch::{prefetch, DISTANCE};
use crate::py::types::hash_is_settled;
use crate::wire::{op, Write};

/// Items that pickle passes to `extend` and co. at a time; user code may notice.
const BATCH: u64 = 1000;

impl Encoder {
    pub(super) fn walk(&mut self, py: Python<'_>, root: &Bound<'_, PyAny>) -> PyResult<()> {
        let expected = EXPECTED_OBJECTS.load(Ordering::Relaxed);
        if self.objects == 0 && expected > self.memo.capacity() {
            // A guess too high costs room for a moment, a guess too low only time.
            self.memo.reserve(expected.min(1 << 20));
        }
        self.value(py, root)?;
        self.run_frames(py)?;
        self.output.buffer.put_byte(op::ROOT);
        Ok(())
    }

    /// Encodes what the frames on the stack stand for.
    pub(super) fn run_frames(&mut self, py: Python<'_>) -> PyResult<()> {
        while let Some(mut frame) = self.frames.pop() {
            let depth = self.frames.len();
            match self.step(py, &mut frame) {
                Ok(Written::Yes) => {}
                Ok(Written::Pending) => self.frames.insert(depth, frame),
                Err(error) => {
                    self.frames.insert(depth, frame);
                    return Err(error);
                }
            }
            self.output.spill(py)?;
        }
        Ok(())
    }

    /// Encodes the parts of `frame` until one of them needs a frame of its own.
    fn step(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        match frame {
            Frame::List { list, next } => {
                let list = list.bind(py).cast_exact::<PyList>()?;
                while *next < list.len() {
                    let index = *next;
                    if index + DISTANCE < list.len() {
                        // SAFETY: the index is below the length.
                        prefetch(unsafe {
                            ffi::PyList_GetItem(
                                list.as_ptr(),
                                (index + DISTANCE) as ffi::Py_ssize_t,
                            )
                        });
                    }
                    let run = self.floats(list, index);
                    if run > 0 {
                        *next += run;
                        continue;
                    }
                    *next += 1;
                    // SAFETY: the index is below the length; the item is used before any Python
                    // code runs.
                    let quick = unsafe {
                        let item = ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t);
                        self.quick(Borrowed::from_ptr(py, item))
                    };
                    if !quick && self.value(py, &list.get_item(index)?)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                self.put(op::APPEND, *next as u64);
            }
            Frame::Tuple { tuple, next } => {
                let tuple = tuple.bind(py).cast_exact::<PyTuple>()?;
                while *next < tuple.len() {
                    // A tuple's items stay, so they need not be owned here.
                    let item = tuple.get_borrowed_item(*next)?;
                    *next += 1;
                    if self.value(py, &item)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                self.close_immutable(tuple, op::TUPLE, *next as u64)?;
            }
            Frame::Set {
                set,
                elements,
                count,
                settled,
            } => {
                for element in elements.bind(py).clone() {
                    let element = element?;
                    *count += 1;
                    *settled &= hash_is_settled(&element);
                    if self.value(py, &element)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                let set = set.bind(py);
                if set.is_exact_instance_of::<PyFrozenSet>() {
                    if let (Some(shadow), false) = (&mut self.shadow, *settled) {
                        let mut elements = set.try_iter()?;
                        let is_stable =
                            elements.all(|element| element.is_ok_and(|key| has_stable_hash(&key)));
                        shadow.graph.has_unsettled_frozenset |= !is_stable;
                    }
                    self.close_immutable(set, op::FROZENSET, *count)?;
                } else {
                    self.put(if *settled { op::ADD } else { op::ADD_LATE }, *count);
                }
            }
            Frame::Dict { .. } => return self.step_dict(py, frame),
            Frame::Instance { .. } => return self.step_instance(py, frame),
            Frame::Recorded {
                number,
                next,
                shape,
            } => return self.step_recorded(py, *number, next, shape.as_ref()),
            Frame::Pieces { pieces } => return self.step_pieces(py, pieces),
            Frame::Pending => return self.step_pending(),
            Frame::Profiled(profiled) => return self.step_profiled(py, profiled),
            Frame::Reduce => {
                let Some(mut reduction) = self.reductions.pop() else {
                    unreachable!("there is a reduction for each of its frames");
                };
                let depth = self.reductions.len();
                let written = self.step_reduction(py, &mut reduction);
                if !matches!(written, Ok(Written::Yes)) {
                    self.reductions.insert(depth, reduction);
                }
                return written;
            }
            Frame::Items {
                items,
                index,
                count,
            } => {
                for item in items.bind(py).clone() {
                    let item = item?;
                    if *count == BATCH {
                        self.put(op::APPEND, BATCH);
                        *count = 0;
                    }
                    *index += 1;
                    *count += 1;
                    if self.value(py, &item)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                if *count > 0 {
                    self.put(op::APPEND, *count);
                }
            }
            Frame::Pairs {
                pairs,
                key,
                value,
                count,
                settled,
                refillable,
            } => loop {
                if let Some(value) = value.take() {
                    if self.value(py, value.bind(py))? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                *key = None;
                let next = pairs.bind(py).clone().next().transpose()?;
                if next.is_none() || *count == BATCH {
                    let code = if *settled || !*refillable {
                        op::SET_ITEMS
                    } else {
                        op::SET_ITEMS_LATE
                    };
                    if *count > 0 {
                        self.put(code, *count);
                    }
                    (*count, *settled) = (0, true);
                }
                let Some(pair) = next else { break };
                let pair = pair.cast_into::<PyTuple>().ok();
                let Some(pair) = pair.filter(|pair| pair.len() == 2) else {
                    return Err(PyTypeError::new_err(
                        "dict items iterator must return 2-tuples",
                    ));
                };
                let next_key = pair.get_item(0)?;
                *settled &= hash_is_settled(&next_key);
                *key = Some(next_key.clone().unbind());
                *value = Some(pair.get_item(1)?.unbind());
                *count += 1;
                if self.value(py, &next_key)? == Written::Pending {
                    return Ok(Written::Pending);
                }
            },
        }
        Ok(Written::Yes)
    }

    fn step_dict(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        let Frame::Dict {
            dict,
            position,
            len,
            count,
            key,
            value,
            settled,
            target,
        } = frame
        else {
            unreachable!("called for dict frames only");
        };
        let dict = dict.bind(py);
        loop {
            if let Some(value) = value.take() {
                if self.value(py, value.bind(py))? == Written::Pending {
                    return Ok(Written::Pending);
                }
            }
            *key = None;
            // SAFETY: both are used or owned before any Python code runs.
            let next = unsafe { next_item(dict, position, *len)? };
            let Some((next_key, next_value)) = next else {
                break;
            };
            *count += 1;
            *value = Some(next_value.to_owned().unbind());
            let next_key = next_key.to_owned();
            *key = Some(next_key.clone().unbind());
            *settled &= is_common_key(&next_key) || hash_is_settled(&next_key);
            if self.value(py, &next_key)? == Written::Pending {
                return Ok(Written::Pending);
            }
        }
        let code = match target {
            Target::Attributes => op::ATTRIBUTES,
            Target::Dict if *settled => op::SET_ITEMS,
            Target::Dict => op::SET_ITEMS_LATE,
        };
        self.put(code, *count);
        Ok(Written::Yes)
    }

    fn step_instance(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        let Frame::Instance {
            dict,
            shape,
            position,
            next,
        } = frame
        else {
            unreachable!("called for instance frames only");
        };
        let dict = dict.bind(py);
        let len = shape.names.len();
        loop {
            // SAFETY: both are used or owned before any Python code runs.
            let item = unsafe { next_item(dict, position, len as ffi::Py_ssize_t)? };
            let Some((name, value)) = item else { break };
            if !shape
                .names
                .get(*next)
                .is_some_and(|expected| expected.is(name))
            {
                return Err(changed_dict());
            }
            *next += 1;
            if !self.quick(value) && self.value(py, &value.to_owned())? == Written::Pending {
                return Ok(Written::Pending);
            }
        }
        if *next != len {
            return Err(changed_dict());
        }
        self.put_fill(shape.number);
        Ok(Written::Yes)
    }

    fn step_reduction(&mut self, py: Python<'_>, reduction: &mut Reduction) -> PyResult<Written> {
        loop {
            let stage = reduction.stage;
            let written = match stage {
                Stage::Callable => {
                    reduction.stage = Stage::Arguments;
                    self.value(py, reduction.callable.bind(py))?
                }
                Stage::Arguments => {
                    reduction.stage = Stage::Call;
                    self.value(py, reduction.arguments.bind(py))?
                }
                Stage::Call => {
                    reduction.stage = Stage::Items;
                    let obj = reduction.obj.bind(py);
                    self.leave_arguments(obj);
                    if let Some(Known::Number(number)) = self.known(obj) {
                        // The arguments refer to the object, so it was completed within them.
                        self.put(op::POP, 2);
                        self.put_ref(number);
                        return Ok(Written::Yes);
                    }
                    self.output.buffer.put_byte(op::REDUCE);
                    self.number(obj)?;
                    self.note_reduced(obj)?;
                    Written::Yes
                }
                Stage::Items => {
                    reduction.stage = Stage::Pairs;
                    match reduction.items.take() {
                        None => Written::Yes,
                        Some(items) => {
                            return self.begin(Frame::Items {
                                items: items.bind(py).cast::<PyIterator>()?.clone().unbind(),
                                index: 0,
                                count: 0,
                            });
                        }
                    }
                }
                Stage::Pairs => {
                    reduction.stage = Stage::Setter;
                    match reduction.pairs.take() {
                        None => Written::Yes,
                        Some(pairs) => {
                            return self.begin(Frame::Pairs {
                                pairs: pairs.bind(py).cast::<PyIterator>()?.clone().unbind(),
                                key: None,
                                value: None,
                                count: 0,
                                settled: true,
                                refillable: reduction.obj.bind(py).is_instance_of::<PyDict>(),
                            });
                        }
                    }
                }
                Stage::Setter => {
                    reduction.stage = Stage::State;
                    match &reduction.setter {
                        Some(setter) if reduction.state.is_some() => {
                            self.value(py, setter.bind(py))?
                        }
                        _ => Written::Yes,
                    }
                }
                Stage::State => {
                    reduction.stage = Stage::Build;
                    match &reduction.state {
                        Some(state) => self.value(py, state.bind(py))?,
                        None => Written::Yes,
                    }
                }
                Stage::Build => {
                    if reduction.state.is_some() {
                        self.output.buffer.put_byte(match reduction.setter {
                            Some(_) => op::STATE_SETTER,
                            None => op::BUILD,
                        });
                    }
                    return Ok(Written::Yes);
                }
            };
            if written == Written::Pending {
                return Ok(Written::Pending);
            }
        }
    }
}

/// The next item of a dict that must still have `len` items.
///
/// # Safety
///
/// The borrowed key and value must be used or owned before any Python code runs.
#[inline]
unsafe fn next_item<'a, 'py>(
    dict: &'a Bound<'py, PyAny>,
    position: &mut ffi::Py_ssize_t,
    len: ffi::Py_ssize_t,
) -> PyResult<Option<(Borrowed<'a, 'py, PyAny>, Borrowed<'a, 'py, PyAny>)>> {
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: frames hold dicts only; PyDict_Next checks the position against the dict as it is.
    unsafe {
        if ffi::PyDict_Size(dict.as_ptr()) != len {
            return Err(changed_dict());
        }
        let found = ffi::PyDict_Next(
            dict.as_ptr(),
            std::ptr::from_mut(position),
            &raw mut key,
            &raw mut value,
        );
        Ok((found != 0).then(|| {
            (
                Borrowed::from_ptr(dict.py(), key),
                Borrowed::from_ptr(dict.py(), value),
            )
        }))
    }
}

fn changed_dict() -> PyErr {
    PyRuntimeError::new_err("dictionary changed size during iteration")
}
