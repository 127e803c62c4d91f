//! Dicts and sets whose keys have a hash that may depend on objects still being built.
//!
//! Pickle fills a container as soon as its items exist, which fails (or gives a broken
//! container) if a key's `__hash__` needs an object around the container. Here such a container
//! is filled at once where that works, so that user code running in between sees what it sees
//! under pickle, and filled again when every object is complete. User code that is given a
//! container which cannot be filled yet has to keep it: what it copies from it would be lost.

use std::collections::HashSet;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyModule, PySet, PyTuple, PyType};

use super::runtime::Runtime;

enum Items {
    Pairs(Vec<(Py<PyAny>, Py<PyAny>)>),
    Elements(Vec<Py<PyAny>>),
}

struct Late {
    container: Py<PyAny>,
    items: Items,
    /// The items got into the container when it was last filled. They did not if a hash failed,
    /// or if unfinished keys looked equal.
    filled: bool,
}

/// How items get into a container.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// As pickle does, with the container's own methods.
    OwnMethods,
    /// With those of the built-in class, for items that have been set before.
    BuiltIn,
}

#[derive(Default)]
pub struct LateContainers(Vec<Late>);

impl LateContainers {
    pub fn set_items(
        &mut self,
        dict: &Bound<'_, PyAny>,
        pairs: Vec<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<()> {
        self.attempt(dict, Items::Pairs(pairs))
    }

    pub fn add(&mut self, set: &Bound<'_, PyAny>, elements: Vec<Py<PyAny>>) -> PyResult<()> {
        self.attempt(set, Items::Elements(elements))
    }

    fn attempt(&mut self, container: &Bound<'_, PyAny>, items: Items) -> PyResult<()> {
        let filled = match fill(container, &items, Way::OwnMethods) {
            Ok(()) => holds(container, &items)?,
            // Too early; if the hash is broken for good, the error comes again at the end.
            Err(error) if error.is_instance_of::<PyException>(container.py()) => false,
            Err(error) => return Err(error),
        };
        self.0.push(Late {
            container: container.clone().unbind(),
            items,
            filled,
        });
        Ok(())
    }

    /// Fills what can be filled by now among the containers that user code will see from `obj`,
    /// and returns the others with the reason why they cannot.
    pub fn prepare<'py>(&mut self, obj: &Bound<'py, PyAny>) -> PyResult<Vec<Unfilled<'py>>> {
        let mut unfilled = Vec::new();
        if self.0.iter().all(|late| late.filled) {
            return Ok(unfilled);
        }
        let py = obj.py();
        let visible = reachable(obj)?;
        for late in &mut self.0 {
            let container = late.container.bind(py);
            if late.filled || !visible.contains(&(container.as_ptr() as usize)) {
                continue;
            }
            clear(container)?;
            match fill(container, &late.items, Way::OwnMethods) {
                Ok(()) => late.filled = holds(container, &late.items)?,
                Err(error) if error.is_instance_of::<PyException>(py) => {
                    unfilled.push(Unfilled {
                        container: container.clone(),
                        reason: error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(unfilled)
    }

    /// Fills all containers with the hashes that their keys have now.
    pub fn settle(self, py: Python<'_>) -> PyResult<()> {
        for late in self.0 {
            let container = late.container.bind(py);
            // What user code has put there meanwhile stays, behind the items of the snapshot.
            let mut present = contents(container)?;
            clear(container)?;
            if !late.filled {
                fill(container, &late.items, Way::OwnMethods)?;
                present.remove_keys_of(&late.items);
            }
            fill(container, &present, Way::BuiltIn)?;
        }
        Ok(())
    }
}

/// A container that user code gets before its items.
pub struct Unfilled<'py> {
    container: Bound<'py, PyAny>,
    reason: PyErr,
}

/// Fails unless `obj`, which user code made or changed, kept the containers themselves.
pub fn require_kept(obj: &Bound<'_, PyAny>, unfilled: Vec<Unfilled<'_>>) -> PyResult<()> {
    if unfilled.is_empty() {
        return Ok(());
    }
    let kept = reachable(obj)?;
    for Unfilled { container, reason } in unfilled {
        if !kept.contains(&(container.as_ptr() as usize)) {
            let error = PyRuntimeError::new_err(format!(
                "{} copies a container whose keys cannot be hashed before it is complete",
                obj.get_type().fully_qualified_name()?
            ));
            error.set_cause(obj.py(), Some(reason));
            return Err(error);
        }
    }
    Ok(())
}

impl Items {
    /// Keys or elements.
    fn keys(&self) -> Box<dyn Iterator<Item = &Py<PyAny>> + '_> {
        match self {
            Items::Pairs(pairs) => Box::new(pairs.iter().map(|(key, _)| key)),
            Items::Elements(elements) => Box::new(elements.iter()),
        }
    }

    /// Whether all keys and values of `other` are in here. Order does not matter: `other` may
    /// be one of several batches, and sets have none.
    fn has_same(&self, other: &Items) -> bool {
        let addresses = |items: &Items| -> HashSet<(usize, usize)> {
            match items {
                Items::Pairs(pairs) => pairs
                    .iter()
                    .map(|(key, value)| (key.as_ptr() as usize, value.as_ptr() as usize))
                    .collect(),
                Items::Elements(elements) => elements
                    .iter()
                    .map(|element| (element.as_ptr() as usize, 0))
                    .collect(),
            }
        };
        addresses(self).is_superset(&addresses(other))
    }

    fn remove_keys_of(&mut self, other: &Items) {
        let known: HashSet<usize> = other.keys().map(|key| key.as_ptr() as usize).collect();
        let is_new = |key: &Py<PyAny>| !known.contains(&(key.as_ptr() as usize));
        match self {
            Items::Pairs(pairs) => pairs.retain(|(key, _)| is_new(key)),
            Items::Elements(elements) => elements.retain(is_new),
        }
    }
}

fn fill(container: &Bound<'_, PyAny>, items: &Items, way: Way) -> PyResult<()> {
    let py = container.py();
    match items {
        Items::Elements(elements) => {
            let set = container.cast::<PySet>()?;
            elements.iter().try_for_each(|element| set.add(element))
        }
        Items::Pairs(pairs) => {
            let dict = container.cast::<PyDict>()?;
            if way == Way::OwnMethods && !container.is_exact_instance_of::<PyDict>() {
                return pairs
                    .iter()
                    .try_for_each(|(key, value)| container.set_item(key, value));
            }
            if let Some(ordered) = ordered_dict(container)? {
                let set = ordered.getattr(intern!(py, "__setitem__"))?;
                for (key, value) in pairs {
                    set.call1((container, key, value))?;
                }
                return Ok(());
            }
            pairs
                .iter()
                .try_for_each(|(key, value)| dict.set_item(key, value))
        }
    }
}

/// Whether a container that has just been filled without an error has all its items.
fn holds(container: &Bound<'_, PyAny>, items: &Items) -> PyResult<bool> {
    if container.is_instance_of::<PyDict>() && has_own_setitem(container)? {
        // It decides what is stored, and must not be called twice.
        return Ok(true);
    }
    Ok(contents(container)?.has_same(items))
}

/// Whether a dict's class overrides `__setitem__`.
fn has_own_setitem(dict: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = dict.py();
    let name = intern!(py, "__setitem__");
    let own = dict.get_type().getattr(name)?;
    let ordered = Runtime::get(py)?.ordered_dict.bind(py);
    Ok(!own.is(py.get_type::<PyDict>().getattr(name)?) && !own.is(ordered.getattr(name)?))
}

fn contents(container: &Bound<'_, PyAny>) -> PyResult<Items> {
    if let Ok(set) = container.cast::<PySet>() {
        return Ok(Items::Elements(set.iter().map(Bound::unbind).collect()));
    }
    let dict = container.cast::<PyDict>()?;
    let pairs = dict
        .iter()
        .map(|(key, value)| (key.unbind(), value.unbind()));
    Ok(Items::Pairs(pairs.collect()))
}

fn clear(container: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(set) = container.cast::<PySet>() {
        set.clear();
    } else if let Some(ordered) = ordered_dict(container)? {
        ordered.call_method1("clear", (container,))?;
    } else {
        container.cast::<PyDict>()?.clear();
    }
    Ok(())
}

/// The class `OrderedDict`, whose order is not that of the dict in it, if `dict` is an instance.
fn ordered_dict<'py>(dict: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyType>>> {
    let class = Runtime::get(dict.py())?.ordered_dict.bind(dict.py());
    Ok(dict.is_instance(class)?.then(|| class.clone()))
}

/// Addresses of the objects that can be reached from `obj` without passing through code.
fn reachable(obj: &Bound<'_, PyAny>) -> PyResult<HashSet<usize>> {
    let py = obj.py();
    let referents = py.import("gc")?.getattr("get_referents")?;
    let function = Runtime::get(py)?.function.bind(py);
    let mut seen = HashSet::from([obj.as_ptr() as usize]);
    let mut level = vec![obj.clone()];
    while !level.is_empty() {
        let found = referents.call1(PyTuple::new(py, &level)?)?;
        level.clear();
        for obj in found.cast::<PyList>()?.iter() {
            let is_code = obj.is_instance_of::<PyType>()
                || obj.is_instance_of::<PyModule>()
                || obj.is_instance(function)?;
            if !is_code && seen.insert(obj.as_ptr() as usize) {
                level.push(obj);
            }
        }
    }
    Ok(seen)
}
