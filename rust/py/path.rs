//! Where in a graph something failed, in the notation of Python.

use pyo3::exceptions::{
    PyAttributeError, PyException, PyNotImplementedError, PyRecursionError, PyRuntimeError,
    PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use super::runtime::Runtime;

/// One step from an object to a part of it.
pub enum Step {
    Attribute(String),
    Index(usize),
    Key(String),
    /// A key of a dict, not its value.
    DictKey,
    Element,
    /// Part of what a reducer returned.
    Reduced(&'static str),
}

impl Step {
    /// Step to the value under `key`, which may be any object.
    pub fn key(key: &Bound<'_, PyAny>) -> Step {
        let text = match key.repr() {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_) => format!("<{}>", type_name(key)),
        };
        Step::Key(shortened(text))
    }

    /// Step to the attribute `name`, which may be any object.
    pub fn attribute(name: &Bound<'_, PyAny>) -> Step {
        match name.cast::<PyString>() {
            Ok(name) => Step::Attribute(shortened(name.to_string_lossy().into_owned())),
            Err(_) => Step::key(name),
        }
    }
}

fn type_name(obj: &Bound<'_, PyAny>) -> String {
    obj.get_type()
        .name()
        .map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// Longest text of a key in a path, in characters.
const MAX_KEY: usize = 100;
/// Steps at either end of a long path that are spelt out.
const MAX_STEPS: usize = 20;

fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_KEY) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Joins a root's name and steps, e.g. `simulator.agents[3].rule`.
pub fn join(root: &str, steps: &[Step]) -> String {
    let mut path = root.to_owned();
    let left_out = MAX_STEPS..steps.len().saturating_sub(MAX_STEPS);
    for (index, step) in steps.iter().enumerate() {
        if left_out.contains(&index) {
            if index == left_out.start {
                path.push_str(&format!(" ...({} more)... ", left_out.len()));
            }
            continue;
        }
        match step {
            Step::Attribute(name) => {
                path.push('.');
                path.push_str(name);
            }
            Step::Index(index) => path.push_str(&format!("[{index}]")),
            Step::Key(key) => path.push_str(&format!("[{key}]")),
            Step::DictKey => path.push_str(".<key>"),
            Step::Element => path.push_str(".<element>"),
            Step::Reduced(part) => path.push_str(&format!(".<{part}>")),
        }
    }
    path
}

/// Adds the path to an exception: to its message where that is its only argument and its class
/// is known to be no more than that, else as a note (Python 3.11 and later).
pub fn locate(py: Python<'_>, error: PyErr, path: &str) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let suffix = format!("(found at {path})");
    let value = error.value(py);
    let plain = is_plain_exception(&value.get_type());
    let message = value
        .getattr("args")
        .ok()
        .and_then(|args| args.extract::<(String,)>().ok());
    let added = match message {
        Some((message,)) if plain => PyTuple::new(py, [format!("{message} {suffix}")])
            .and_then(|args| value.setattr("args", args)),
        _ => value.call_method1("add_note", (&suffix,)).map(drop),
    };
    // Without either way (a class of the user's on Python 3.10) the exception stays as it is.
    drop(added);
    error
}

fn is_plain_exception(class: &Bound<'_, PyType>) -> bool {
    let py = class.py();
    let known = [
        py.get_type::<PyTypeError>(),
        py.get_type::<PyAttributeError>(),
        py.get_type::<PyValueError>(),
        py.get_type::<PyRuntimeError>(),
        py.get_type::<PyRecursionError>(),
        py.get_type::<PyNotImplementedError>(),
        py.get_type::<super::errors::ForeignReferenceError>(),
    ];
    known.iter().any(|known| known.is(class))
        || Runtime::get(py).is_ok_and(|runtime| class.is(&runtime.pickling_error))
}
