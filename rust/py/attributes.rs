//! Which attributes an agent assigned or deleted, for the warning about lost changes.

use std::collections::HashSet;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple, PyType,
};
use rustc_hash::FxHashMap;

use super::prefetch;
use super::random::instance_dict;
use super::runtime::Runtime;
use super::types::has_no_attribute;

/// Keys that were added, deleted or assigned another object.
#[pyfunction]
#[pyo3(signature = (before, after, /))]
pub fn changed_attributes<'py>(
    before: &Bound<'py, PyDict>,
    after: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyList>> {
    let py = before.py();
    let changed = PyList::empty(py);
    if same_items(before, after) {
        return Ok(changed);
    }
    // Comparing NumPy numbers runs code that could reach the dicts: work on copies.
    let (before, after) = (before.copy()?, after.copy()?);
    for (name, old) in before.iter() {
        match after.get_item(&name)? {
            Some(new) if new.is(&old) || is_equal_value(&old, &new)? => {}
            _ => changed.append(name)?,
        }
    }
    for name in after.keys().iter() {
        if !before.contains(&name)? {
            changed.append(name)?;
        }
    }
    Ok(changed)
}

/// Positions of the objects that may have an attribute, in ascending order.
///
/// Asking thousands of objects for an attribute that hardly any has would take much longer.
#[pyfunction]
#[pyo3(signature = (objs, name, /))]
pub fn positions_with(
    objs: &Bound<'_, PyList>,
    name: &Bound<'_, PyString>,
) -> PyResult<Vec<usize>> {
    let mut positions = Vec::new();
    // Whether only the `__dict__` of an instance can have the attribute, by class. The classes
    // are kept, so that no address comes to mean another one.
    let mut classes: FxHashMap<usize, (Bound<'_, PyType>, bool)> = FxHashMap::default();
    for position in 0.. {
        // Looking into a dict can run code that changes the list.
        let Ok(obj) = objs.get_item(position) else {
            break;
        };
        if let Ok(ahead) = objs.get_item(position + prefetch::DISTANCE) {
            prefetch::prefetch(ahead.as_ptr());
        }
        let class = obj.get_type();
        let has_only_own = match classes.get(&(class.as_ptr() as usize)) {
            Some((_, has_only_own)) => *has_only_own,
            None => {
                let has_only_own = has_no_attribute(&class, name.to_str()?)?;
                classes.insert(class.as_ptr() as usize, (class, has_only_own));
                has_only_own
            }
        };
        if !has_only_own || instance_dict(&obj)?.contains(name)? {
            positions.push(position);
        }
    }
    Ok(positions)
}

/// Whether both hold the same objects in the same order, the case of nearly every call.
fn same_items(before: &Bound<'_, PyDict>, after: &Bound<'_, PyDict>) -> bool {
    if before.len() != after.len() {
        return false;
    }
    let next = |dict: &Bound<'_, PyDict>, position: &mut ffi::Py_ssize_t| {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `dict` is a live dict, and no Python code runs between two calls.
        let found = unsafe {
            ffi::PyDict_Next(
                dict.as_ptr(),
                std::ptr::from_mut(position),
                &raw mut key,
                &raw mut value,
            )
        };
        (found != 0).then_some((key, value))
    };
    let (mut old, mut new) = (0, 0);
    loop {
        match (next(before, &mut old), next(after, &mut new)) {
            (None, None) => return true,
            (left, right) if left == right => {}
            _ => return false,
        }
    }
}

/// Whether `new` is an immutable value of the same type that equals `old`, signs of zeros
/// included.
fn is_equal_value(old: &Bound<'_, PyAny>, new: &Bound<'_, PyAny>) -> PyResult<bool> {
    // Tuples can nest deeper than the native stack is.
    let mut pairs = vec![(old.clone(), new.clone())];
    // ... and share parts, so that there are many more paths than tuples.
    let mut compared = HashSet::new();
    while let Some((old, new)) = pairs.pop() {
        if old.is(&new) {
            continue;
        }
        if !old.get_type().is(new.get_type()) {
            return Ok(false);
        }
        if let (Ok(old), Ok(new)) = (old.cast_exact::<PyTuple>(), new.cast_exact::<PyTuple>()) {
            if old.len() != new.len() {
                return Ok(false);
            }
            if compared.insert((old.as_ptr() as usize, new.as_ptr() as usize)) {
                pairs.extend(old.iter().zip(new.iter()));
            }
        } else if !is_value_type(&old)? || !old.eq(&new)? || !same_zero_signs(&old, &new)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_value_type(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyComplex>()
        || value.is_exact_instance_of::<PyNone>()
        || value.is_instance(Runtime::get(value.py())?.numpy_number.bind(value.py()))?)
}

/// Whether zeros among two equal numbers have the same signs. Only floating-point numbers,
/// plain or NumPy's, have signed zeros.
fn same_zero_signs(old: &Bound<'_, PyAny>, new: &Bound<'_, PyAny>) -> PyResult<bool> {
    let inexact = Runtime::get(old.py())?.numpy_inexact.bind(old.py());
    if !old.is_exact_instance_of::<PyFloat>()
        && !old.is_exact_instance_of::<PyComplex>()
        && !old.is_instance(inexact)?
    {
        return Ok(true);
    }
    let signs = |value: &Bound<'_, PyAny>| -> PyResult<[bool; 2]> {
        let part = |name: &str| -> PyResult<bool> {
            let part: f64 = value.getattr(name)?.extract()?;
            Ok(part == 0.0 && part.is_sign_negative())
        };
        Ok([part("real")?, part("imag")?])
    };
    Ok(signs(old)? == signs(new)?)
}
