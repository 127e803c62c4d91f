//! One pass over all objects that are compared.
//!
//! The objects, what they refer to and the records are more than the caches hold, so a pass would
//! mostly wait for memory, one address after the other. Where the contents of an object lie is
//! noted from pass to pass, so that all of it can be fetched ahead of time. A note that has become
//! wrong costs time and nothing else.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::recorded::{own_dict, Dicts, RandomRecord, Recorded};
use super::Graph;
use crate::py::prefetch::{prefetch, prefetch_range};
use crate::py::random::RandomLayout;
use crate::py::runtime::Runtime;

/// How many objects ahead of the one being compared are fetched.
const DISTANCE: usize = 16;

/// Where the contents of an object were when it was last looked for, which is only fetched.
#[derive(Clone, Copy, Default)]
pub struct Whereabouts {
    /// The `__dict__` of an instance.
    dict: usize,
    /// The items of a list, dict or `__dict__`.
    items: usize,
}

impl Whereabouts {
    fn of(runtime: &Runtime, obj: &Bound<'_, PyAny>) -> Self {
        let items = if let Ok(list) = obj.cast_exact::<PyList>() {
            Some(runtime.lists.address(list))
        } else if let Ok(dict) = obj.cast_exact::<PyDict>() {
            Some(runtime.dicts.address(dict))
        } else {
            None
        };
        if let Some(items) = items {
            return Whereabouts { dict: 0, items };
        }
        match own_dict(obj) {
            Some(dict) => Whereabouts {
                dict: dict.as_ptr() as usize,
                items: runtime.dicts.address(&dict),
            },
            None => Whereabouts::default(),
        }
    }
}

/// Numbers of objects, ascending whenever a pass begins.
#[derive(Default)]
pub struct Tracked {
    numbers: Vec<u32>,
    is_unsorted: bool,
}

impl Tracked {
    pub fn push(&mut self, number: u32) {
        self.is_unsorted |= self.numbers.last().is_some_and(|last| *last > number);
        self.numbers.push(number);
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    fn sort(&mut self) {
        if std::mem::take(&mut self.is_unsorted) {
            self.numbers.sort();
        }
    }
}

impl Graph {
    /// Numbers of the objects that differ from what is recorded, ascending.
    ///
    /// Generators go to `visit` one by one, also those that are as recorded, because their words
    /// should be looked at only once; those for which it returns `false` are among the result.
    /// It must not run Python code.
    pub fn changed(
        &mut self,
        py: Python<'_>,
        dicts: Dicts,
        mut visit: impl FnMut(&RandomLayout, u32, &Bound<'_, PyAny>, &mut RandomRecord) -> bool,
    ) -> PyResult<Vec<u32>> {
        let runtime = Runtime::get(py)?;
        let mut changed = Vec::new();
        let mut kept = 0;
        self.tracked.sort();
        for at in 0..self.tracked.numbers.len() {
            if let Some(ahead) = self.tracked.numbers.get(at + DISTANCE) {
                self.prefetch(runtime, *ahead);
            }
            let number = self.tracked.numbers[at];
            let node = &mut self.nodes[number as usize];
            let Some(obj) = node.obj.as_ref().filter(|_| node.recorded.is_compared()) else {
                node.is_listed = false;
                continue;
            };
            self.tracked.numbers[kept] = number;
            kept += 1;
            let obj = obj.bind(py);
            let is_right = match (&mut node.recorded, &runtime.random) {
                (Recorded::Random(record), Some(layout)) => {
                    layout.is_exact(obj) && visit(layout, number, obj, record)
                }
                (recorded, _) => recorded.is_still(obj, dicts),
            };
            if !is_right {
                changed.push(number);
                node.whereabouts = None;
            } else if node.whereabouts.is_none() {
                node.whereabouts = Some(Whereabouts::of(runtime, obj));
            }
        }
        self.tracked.numbers.truncate(kept);
        Ok(changed)
    }

    /// Fetches an object, its contents and its record.
    pub fn prefetch(&self, runtime: &Runtime, number: u32) {
        let Some(node) = self.nodes.get(number as usize) else {
            return;
        };
        let Some(obj) = &node.obj else { return };
        let whereabouts = node.whereabouts.unwrap_or_default();
        prefetch(obj.as_ptr());
        prefetch(whereabouts.dict as *const u8);
        if let Recorded::Random(record) = &node.recorded {
            prefetch(std::ptr::from_ref(&**record));
            prefetch(whereabouts.items as *const u8);
            if let Some(layout) = &runtime.random {
                layout.prefetch_words(obj.as_ptr());
            }
        } else {
            let items = node.recorded.children();
            let n_bytes = size_of_val(items);
            prefetch_range(items.as_ptr() as usize, n_bytes);
            prefetch_range(whereabouts.items, n_bytes);
        }
    }

    /// Fetches where [`Graph::prefetch`] looks.
    pub fn prefetch_node(&self, number: u32) {
        if let Some(node) = self.nodes.get(number as usize) {
            prefetch(std::ptr::from_ref(node));
        }
    }
}
