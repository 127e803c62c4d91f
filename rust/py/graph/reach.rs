//! Which objects can still be reached from the roots: objects that refer to each other in a cycle
//! are not let go of by counting references.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyFrozenSet, PyList, PyModule, PyString, PyTuple, PyType};

use super::composite::Base;
use super::recorded::Recorded;
use super::{for_each_part, Graph};
use crate::py::runtime::Runtime;

/// Objects without numbers that are looked into to find out what an object of a class written in
/// C refers to.
const MAX_FOREIGN: usize = 100_000;

/// Numbers of objects that cannot be reached from those with the numbers `roots`;
/// `None` if that would take too long to find out.
pub fn unreachable(
    py: Python<'_>,
    graph: &Graph,
    roots: Vec<u32>,
    number_at: impl Fn(usize) -> Option<u32>,
) -> PyResult<Option<Vec<u32>>> {
    let mut is_reached = vec![false; graph.nodes.len()];
    let mut pending = roots;
    let mut budget = MAX_FOREIGN;
    let mut layouts = HashSet::new();
    while let Some(number) = pending.pop() {
        let node = &graph.nodes[number as usize];
        if std::mem::replace(&mut is_reached[number as usize], true) {
            continue;
        }
        let mut reach = |address| match number_at(address) {
            Some(part) if !is_reached[part as usize] => pending.push(part),
            _ => {}
        };
        for_each_part(py, node, &mut reach);
        if let Recorded::Instance(layout, _) = &node.recorded {
            // Thousands of instances have their names from one layout.
            if layouts.insert(Arc::as_ptr(layout)) {
                layout
                    .names
                    .iter()
                    .for_each(|name| reach(name.as_ptr() as usize));
            }
        }
        if let Recorded::Opaque(fingerprint) = &node.recorded {
            pending.extend(&fingerprint.parts);
            continue;
        }
        let Some(obj) = &node.obj else { continue };
        if is_opaque(obj.bind(py), &node.recorded)
            && !for_each_referent(obj.bind(py), &mut budget, &number_at, reach)?
        {
            return Ok(None);
        }
    }
    let nodes = graph.nodes.iter().zip(&is_reached).enumerate();
    let lost = nodes.filter(|(_, (node, is_reached))| node.obj.is_some() && !**is_reached);
    Ok(Some(lost.map(|(number, _)| number as u32).collect()))
}

/// Whether the shadow does not know all that an object refers to.
fn is_opaque(obj: &Bound<'_, PyAny>, recorded: &Recorded) -> bool {
    match recorded {
        Recorded::NumpyRandom(_) => true,
        // What it holds is no part of the record, since it never changes.
        Recorded::Composite(anatomy, _) => anatomy.base == Base::Immutable,
        Recorded::Leaf => {
            !obj.is_exact_instance_of::<PyTuple>()
                && !obj.is_exact_instance_of::<PyFrozenSet>()
                && !obj.is_exact_instance_of::<PyString>()
        }
        _ => false,
    }
}

/// Calls `take` with the addresses of the numbered objects that an object refers to, directly or
/// through objects without numbers; `false` if there are too many of the latter.
fn for_each_referent(
    obj: &Bound<'_, PyAny>,
    budget: &mut usize,
    number_at: impl Fn(usize) -> Option<u32>,
    mut take: impl FnMut(usize),
) -> PyResult<bool> {
    let py = obj.py();
    let function = Runtime::get(py)?.function.bind(py);
    let is_code = |obj: &Bound<'_, PyAny>| -> PyResult<bool> {
        Ok(obj.is_instance_of::<PyType>()
            || obj.is_instance_of::<PyModule>()
            || obj.is_instance(function)?)
    };
    if is_code(obj)? {
        return Ok(true);
    }
    let referents = py.import("gc")?.getattr("get_referents")?;
    let mut seen = HashSet::new();
    let mut level = vec![obj.clone()];
    while !level.is_empty() {
        let found = referents.call1(PyTuple::new(py, &level)?)?;
        level.clear();
        for part in found.cast::<PyList>()?.iter() {
            let address = part.as_ptr() as usize;
            if number_at(address).is_some() {
                take(address);
            } else if !is_code(&part)? && seen.insert(address) {
                let Some(rest) = budget.checked_sub(1) else {
                    return Ok(false);
                };
                *budget = rest;
                level.push(part);
            }
        }
    }
    Ok(true)
}
