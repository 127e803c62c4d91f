//! The stack of the walk: one frame per object whose parts are being encoded.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple, PyType};

use super::profile::Profiled;
use crate::py::graph::changes::Piece;
use crate::py::runtime::Runtime;
use crate::py::types::Shape;

/// How a dict's items are closed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Target {
    Dict,
    Attributes,
}

/// An object whose parts are being encoded.
pub(super) enum Frame {
    List {
        list: Py<PyAny>,
        next: usize,
    },
    Tuple {
        tuple: Py<PyAny>,
        next: usize,
    },
    Set {
        set: Py<PyAny>,
        elements: Py<PyIterator>,
        count: u64,
        settled: bool,
    },
    Dict {
        dict: Py<PyAny>,
        position: ffi::Py_ssize_t,
        len: ffi::Py_ssize_t,
        count: u64,
        key: Option<Py<PyAny>>,
        /// The value under `key`, while the key is being encoded.
        value: Option<Py<PyAny>>,
        settled: bool,
        target: Target,
    },
    Instance {
        dict: Py<PyAny>,
        shape: Arc<Shape>,
        position: ffi::Py_ssize_t,
        next: usize,
    },
    /// An object that a source has recorded: its parts are those of the record.
    Recorded {
        number: u32,
        next: usize,
        /// For instances that have the attributes of this shape.
        shape: Option<Arc<Shape>>,
    },
    /// What has changed in an object.
    Pieces {
        pieces: std::vec::IntoIter<Piece>,
    },
    /// All changes, to be written before what is below, because user code may come to see them.
    Pending,
    /// An object that goes through a reducer; the details are the topmost [`Reduction`].
    Reduce,
    /// Below the frame, if any, of an object whose reducer's cost is wanted.
    Profiled(Box<Profiled>),
    /// The list items of a reduction.
    Items {
        items: Py<PyIterator>,
        index: usize,
        count: u64,
    },
    /// The dict items of a reduction.
    Pairs {
        pairs: Py<PyIterator>,
        key: Option<Py<PyAny>>,
        value: Option<Py<PyAny>>,
        count: u64,
        settled: bool,
        /// The object is a dict, which can be filled again at the end.
        refillable: bool,
    },
}

/// What a reducer returned, and how far it is encoded.
pub(super) struct Reduction {
    pub(super) obj: Py<PyAny>,
    pub(super) stage: Stage,
    pub(super) callable: Py<PyAny>,
    pub(super) arguments: Py<PyAny>,
    pub(super) items: Option<Py<PyAny>>,
    pub(super) pairs: Option<Py<PyAny>>,
    pub(super) state: Option<Py<PyAny>>,
    pub(super) setter: Option<Py<PyAny>>,
    /// The callable is `copyreg.__newobj__`, so the arguments begin with the class.
    pub(super) newobj: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stage {
    Callable,
    Arguments,
    Call,
    Items,
    Pairs,
    Setter,
    State,
    Build,
}

/// Whether a value is written, or a frame for it lies on the stack.
#[derive(PartialEq)]
pub(super) enum Written {
    Yes,
    Pending,
}

impl Reduction {
    /// Replaces an exact dict that is the state by a copy. The default state is the `__dict__`
    /// itself, which a source must not take for an object of its own.
    pub(super) fn detach_state(&mut self, py: Python<'_>) -> PyResult<()> {
        let copy = |state: &Bound<'_, PyAny>| -> PyResult<Option<Py<PyAny>>> {
            match state.cast_exact::<PyDict>() {
                Ok(dict) => Ok(Some(dict.copy()?.into_any().unbind())),
                Err(_) => Ok(None),
            }
        };
        let Some(state) = &self.state else {
            return Ok(());
        };
        let state = state.bind(py);
        let detached = match state.cast_exact::<PyTuple>() {
            Ok(pair) if pair.len() == 2 => match copy(&pair.get_item(0)?)? {
                Some(dict) => {
                    let pair = PyTuple::new(py, [dict, pair.get_item(1)?.unbind()])?;
                    Some(pair.into_any().unbind())
                }
                None => None,
            },
            _ => copy(state)?,
        };
        if detached.is_some() {
            self.state = detached;
        }
        Ok(())
    }

    /// `None` if the value is not what a reducer may return.
    pub(super) fn parse(
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reduced: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Reduction>> {
        let Ok(parts) = reduced.cast::<PyTuple>() else {
            return Ok(None);
        };
        if !(2..=6).contains(&parts.len()) {
            return Ok(None);
        }
        let part = |index: usize| -> PyResult<Option<Py<PyAny>>> {
            if index >= parts.len() {
                return Ok(None);
            }
            let part = parts.get_item(index)?;
            Ok((!part.is_none()).then(|| part.unbind()))
        };
        let (Some(mut callable), Some(arguments)) = (part(0)?, part(1)?) else {
            return Ok(None);
        };
        let (state, items, pairs, setter) = (part(2)?, part(3)?, part(4)?, part(5)?);
        let is_iterator = |part: &Option<Py<PyAny>>| {
            part.as_ref()
                .is_none_or(|part| part.bind(py).cast::<PyIterator>().is_ok())
        };
        let Ok(argument_tuple) = arguments.bind(py).cast::<PyTuple>() else {
            return Ok(None);
        };
        if !callable.bind(py).is_callable()
            || !is_iterator(&items)
            || !is_iterator(&pairs)
            || setter
                .as_ref()
                .is_some_and(|setter| !setter.bind(py).is_callable())
        {
            return Ok(None);
        }
        let runtime = Runtime::get(py)?;
        // pickle goes by the name and has an instruction of its own for these two.
        let name = match callable.bind(py).getattr_opt(intern!(py, "__name__"))? {
            Some(name) => name.extract::<String>().unwrap_or_default(),
            None => String::new(),
        };
        let newobj = name == "__newobj__";
        if newobj || name == "__newobj_ex__" {
            let argument = |index| argument_tuple.get_item(index);
            let fits = if newobj {
                let class = obj.getattr(intern!(py, "__class__"))?;
                argument(0).is_ok_and(|first| first.is(&class))
            } else {
                argument_tuple.len() == 3
                    && argument(0)?.is_instance_of::<PyType>()
                    && argument(1)?.is_instance_of::<PyTuple>()
                    && argument(2)?.is_instance_of::<PyDict>()
            };
            if !fits {
                return Ok(None);
            }
            callable = if newobj {
                runtime.newobj.clone_ref(py)
            } else {
                runtime.newobj_ex.clone_ref(py)
            };
        }
        Ok(Some(Reduction {
            obj: obj.clone().unbind(),
            stage: Stage::Callable,
            callable,
            arguments,
            items,
            pairs,
            state,
            setter,
            newobj,
        }))
    }
}

pub(super) fn dict_frame(dict: &Bound<'_, PyDict>, target: Target) -> Frame {
    Frame::Dict {
        dict: dict.clone().into_any().unbind(),
        position: 0,
        len: dict.len() as ffi::Py_ssize_t,
        count: 0,
        key: None,
        value: None,
        settled: true,
        target,
    }
}
