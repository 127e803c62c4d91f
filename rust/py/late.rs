//! Dicts and sets whose keys have a hash that may depend on objects still being built.
//!
//! Pickle fills a container as soon as its items exist, which fails (or gives a broken
//! container) if a key's `__hash__` needs an object around the container. Here such a container
//! is filled at once where that works, so that user code running in between sees what it sees
//! under pickle, and filled again when every object is complete.

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet};

use super::runtime::Runtime;

enum Items {
    Pairs(Vec<(Py<PyAny>, Py<PyAny>)>),
    Elements(Vec<Py<PyAny>>),
}

struct Late {
    container: Py<PyAny>,
    items: Items,
    filled: bool,
}

#[derive(Default)]
pub struct LateContainers(Vec<Late>);

impl LateContainers {
    pub fn set_items(
        &mut self,
        py: Python<'_>,
        container: &Bound<'_, PyAny>,
        pairs: Vec<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<()> {
        self.attempt(py, container, Items::Pairs(pairs))
    }

    pub fn add(
        &mut self,
        py: Python<'_>,
        container: &Bound<'_, PyAny>,
        elements: Vec<Py<PyAny>>,
    ) -> PyResult<()> {
        self.attempt(py, container, Items::Elements(elements))
    }

    fn attempt(
        &mut self,
        py: Python<'_>,
        container: &Bound<'_, PyAny>,
        items: Items,
    ) -> PyResult<()> {
        let filled = match fill(container, &items) {
            Ok(()) => true,
            // Too early; if the hash is broken for good, the error comes again at the end.
            Err(error) if error.is_instance_of::<PyException>(py) => false,
            Err(error) => return Err(error),
        };
        self.0.push(Late {
            container: container.clone().unbind(),
            items,
            filled,
        });
        Ok(())
    }

    /// Fills all containers with the hashes that their keys have now.
    pub fn settle(self, py: Python<'_>) -> PyResult<()> {
        for late in self.0 {
            let container = late.container.bind(py);
            // What user code has put there meanwhile stays, behind the items of the snapshot.
            let present = clear(container)?;
            if !late.filled {
                fill(container, &late.items)?;
            }
            fill(container, &present)?;
        }
        Ok(())
    }
}

fn fill(container: &Bound<'_, PyAny>, items: &Items) -> PyResult<()> {
    let py = container.py();
    match items {
        Items::Pairs(pairs) => {
            let ordered = &Runtime::get(py)?.ordered_dict;
            for (key, value) in pairs {
                if let Ok(dict) = container.cast_exact::<PyDict>() {
                    dict.set_item(key, value)?;
                } else if container.is_instance(ordered.bind(py))? {
                    let set = ordered.bind(py).getattr(intern!(py, "__setitem__"))?;
                    set.call1((container, key, value))?;
                } else {
                    container.set_item(key, value)?;
                }
            }
        }
        Items::Elements(elements) => {
            let set = container.cast::<PySet>()?;
            for element in elements {
                set.add(element)?;
            }
        }
    }
    Ok(())
}

/// Empties a container and returns what was in it.
fn clear(container: &Bound<'_, PyAny>) -> PyResult<Items> {
    let py = container.py();
    if let Ok(set) = container.cast::<PySet>() {
        let elements = set.iter().map(Bound::unbind).collect();
        set.clear();
        return Ok(Items::Elements(elements));
    }
    let ordered = Runtime::get(py)?.ordered_dict.bind(py);
    let dict = container.cast::<PyDict>()?;
    let pairs = dict
        .iter()
        .map(|(key, value)| (key.unbind(), value.unbind()))
        .collect();
    if container.is_instance(ordered)? {
        ordered.getattr(intern!(py, "clear"))?.call1((container,))?;
    } else {
        dict.clear();
    }
    Ok(Items::Pairs(pairs))
}
