//! The shadow graph: what the objects of a graph consisted of when it was last looked at.
//!
//! A [`source::Source`] (main process) compares its graph with the shadow, and encodes what
//! differs as a frame. A [`replica::Replica`] (worker) applies frames to a copy, and puts back
//! whatever somebody has done to it since, because the shadow still has it. Both number objects
//! alike, so the numbers name objects across processes.
//!
//! The shadow holds strong references to all that it compares by identity, so no address can be
//! used for something else meanwhile. Comparing runs no Python code; `recorded` has what is
//! recorded, compared and restored per kind of object, `kind` which kind a class belongs to,
//! `changes` how the difference between two records is expressed, `taking` what a source does with
//! what has changed, and `checkpoint` its keyframes for new copies only.

pub mod array;
pub mod changes;
mod checkpoint;
pub mod composite;
pub mod kind;
pub mod numpy_random;
pub mod reach;
pub mod recorded;
pub mod replica;
mod scan;
pub mod source;
mod taking;

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyTuple};
use rustc_hash::{FxHashMap, FxHashSet};

use super::numbers::{numbers as read_numbers, NO_NUMBER};
use super::prefetch;
use super::types::is_instance_hook;
use crate::random_states::KnownWords;
use composite::Anatomy;
use kind::Kind;
use recorded::{Layout, Recorded};
use scan::{Tracked, Whereabouts};

/// Layouts remembered per class.
const MAX_LAYOUTS: usize = 8;

/// One numbered object.
#[derive(Default)]
pub struct Node {
    /// `None` for a free number, and for what a replica need not look after.
    pub obj: Option<Py<PyAny>>,
    pub recorded: Recorded,
    /// The number is in `tracked`.
    is_listed: bool,
    /// `None` before they are looked for.
    whereabouts: Option<Whereabouts>,
}

/// The shadow of a graph.
#[derive(Default)]
pub struct Graph {
    /// By number.
    pub nodes: Vec<Node>,
    /// The objects whose contents are compared, and some that are no more.
    tracked: Tracked,
    /// Instances of one class mostly have the same attributes in the same order.
    layouts: FxHashMap<usize, Vec<Arc<Layout>>>,
    anatomies: FxHashMap<usize, Arc<Anatomy>>,
    /// Numbers of containers in which the place of an item depends on its contents.
    pub unsettled: FxHashSet<u32>,
    /// There is a frozenset in which the place of an element depends on its contents.
    pub has_unsettled_frozenset: bool,
    /// An object has been met whose state is not all visible.
    pub is_untrackable: bool,
}

impl Graph {
    /// Takes up an object under a number that is free.
    pub fn insert(&mut self, number: u32, obj: Option<Py<PyAny>>, recorded: Recorded) {
        self.unsettled.remove(&number);
        let index = number as usize;
        if index >= self.nodes.len() {
            self.nodes.resize_with(index + 1, Node::default);
        }
        let node = &mut self.nodes[index];
        node.obj = obj;
        node.recorded = recorded;
        node.whereabouts = None;
        self.list(number);
    }

    /// Records what an object consists of.
    ///
    /// The former record is returned, to be dropped when that may run Python code.
    pub fn record(&mut self, number: u32, recorded: Recorded) -> Recorded {
        self.unsettled.remove(&number);
        let former = std::mem::replace(&mut self.nodes[number as usize].recorded, recorded);
        self.list(number);
        former
    }

    fn list(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        if node.recorded.is_compared() && !node.is_listed {
            node.is_listed = true;
            self.tracked.push(number);
        }
        if node.recorded.has_unsettled_keys() {
            self.unsettled.insert(number);
        }
    }

    /// Removes an object. It is returned, since dropping it can run Python code.
    pub fn remove(&mut self, number: u32) -> Node {
        self.unsettled.remove(&number);
        let node = &mut self.nodes[number as usize];
        Node {
            obj: node.obj.take(),
            recorded: std::mem::take(&mut node.recorded),
            ..Node::default()
        }
    }

    /// What an object of this kind consists of now; `None` if it is not what the kind promises.
    pub fn capture(&mut self, kind: Kind, obj: &Bound<'_, PyAny>) -> PyResult<Option<Recorded>> {
        match kind {
            Kind::Instance => self.capture_instance(obj),
            Kind::Composite => self.capture_composite(obj),
            _ => Recorded::capture(kind, obj),
        }
    }

    fn capture_instance(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<Option<Recorded>> {
        let Some((names, values)) = recorded::attributes(obj)? else {
            return Ok(None);
        };
        let class = obj.get_type();
        let layouts = self.layouts.entry(class.as_ptr() as usize).or_default();
        let known = layouts.iter().rfind(|layout| layout.has_names(&names));
        let layout = match known {
            Some(layout) => layout.clone(),
            None => {
                if names
                    .iter()
                    .any(|name| is_instance_hook(name.bind(obj.py())))
                {
                    return Ok(None);
                }
                let layout = Arc::new(Layout::new(class, &names));
                if layouts.len() < MAX_LAYOUTS {
                    layouts.push(layout.clone());
                }
                layout
            }
        };
        Ok(Some(Recorded::Instance(layout, values)))
    }

    fn capture_composite(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<Option<Recorded>> {
        let class = obj.get_type();
        let key = class.as_ptr() as usize;
        let anatomy = match self.anatomies.get(&key) {
            Some(anatomy) => anatomy.clone(),
            None => {
                let Some(anatomy) = Anatomy::of(&class)? else {
                    return Ok(None);
                };
                let anatomy = Arc::new(anatomy);
                self.anatomies.insert(key, anatomy.clone());
                anatomy
            }
        };
        let parts = Box::new(anatomy.dissect(obj)?);
        if parts
            .names()
            .any(|name| is_instance_hook(name.bind(obj.py())))
        {
            return Ok(None);
        }
        Ok(Some(Recorded::Composite(anatomy, parts)))
    }

    /// Count of objects whose contents are compared, more or less.
    pub fn n_tracked(&self) -> usize {
        self.tracked.len()
    }

    /// Numbers of the generators of agents, as recorded: of what they have as `prng`.
    ///
    /// `None` for an agent with another kind of attribute or generator.
    fn prngs_of(
        &self,
        py: Python<'_>,
        agents: &[u32],
        number_at: impl Fn(usize) -> Option<u32>,
    ) -> PyResult<Vec<Option<u32>>> {
        // Whether it is the attribute in the `__dict__` that counts, by layout.
        let mut layouts: FxHashMap<*const Layout, bool> = FxHashMap::default();
        // Agents were mostly numbered alike: the number of the one before, counted from its agent,
        // is right for the next one, too, and that is quickly made sure of.
        let mut distance = 0;
        let is_generator = |number: u32| {
            let node = self.nodes.get(number as usize);
            node.is_some_and(|node| matches!(node.recorded, Recorded::Random(_)))
        };
        let mut numbers = Vec::with_capacity(agents.len());
        for (at, agent) in agents.iter().enumerate() {
            if let Some(ahead) = agents.get(at + prefetch::FAR) {
                self.prefetch_node(*ahead);
                self.prefetch_node(ahead.wrapping_add(distance));
            }
            let node = self.nodes.get(*agent as usize);
            let Some(Recorded::Instance(layout, values)) = node.map(|node| &node.recorded) else {
                numbers.push(None);
                continue;
            };
            let has_own = match layouts.get(&Arc::as_ptr(layout)) {
                Some(has_own) => *has_own,
                None => {
                    let has_own = layout.has_own_prng(py)?;
                    layouts.insert(Arc::as_ptr(layout), has_own);
                    has_own
                }
            };
            let prng = layout.prng.and_then(|place| values.get(place));
            let number = prng.filter(|_| has_own).and_then(|prng| {
                let guess = agent.wrapping_add(distance);
                let guessed = self.nodes.get(guess as usize);
                let guessed = guessed.and_then(|node| node.obj.as_ref());
                if guessed.is_some_and(|obj| obj.is(prng)) {
                    return Some(guess);
                }
                number_at(prng.as_ptr() as usize)
            });
            if let Some(number) = number {
                distance = number.wrapping_sub(*agent);
            }
            numbers.push(number.filter(|number| is_generator(*number)));
        }
        Ok(numbers)
    }

    /// As [`Graph::prngs_of`], of and as little-endian uint32.
    pub fn packed_prngs_of<'py>(
        &self,
        py: Python<'py>,
        agents: &Bound<'py, PyAny>,
        number_at: impl Fn(usize) -> Option<u32>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let prngs = self.prngs_of(py, &read_numbers(agents)?, number_at)?;
        let bytes = prngs
            .iter()
            .flat_map(|number| number.unwrap_or(NO_NUMBER).to_le_bytes());
        Ok(PyBytes::new(py, &bytes.collect::<Vec<u8>>()))
    }

    /// Records new word indices of generators, by number.
    pub fn move_randoms(&mut self, moved: &[(u32, u32)]) {
        for (at, (number, index)) in moved.iter().enumerate() {
            if let Some((ahead, _)) = moved.get(at + 2 * prefetch::FAR) {
                self.prefetch_node(*ahead);
            }
            let ahead = moved.get(at + prefetch::FAR);
            let ahead = ahead.and_then(|(ahead, _)| self.nodes.get(*ahead as usize));
            if let Some(Recorded::Random(record)) = ahead.map(|node| &node.recorded) {
                prefetch::prefetch(std::ptr::from_ref(&**record));
            }
            let node = self.nodes.get_mut(*number as usize);
            if let Some(Recorded::Random(record)) = node.map(|node| &mut node.recorded) {
                record.position.index = *index;
            }
        }
    }

    /// Words of a generator, as recorded.
    pub fn words_of(&self, number: u32) -> Option<&KnownWords> {
        match &self.nodes.get(number as usize)?.recorded {
            Recorded::Random(record) => Some(&record.words),
            _ => None,
        }
    }

    /// The object with a number, if it has a node.
    pub fn object(&self, number: u32) -> Option<&Py<PyAny>> {
        self.nodes.get(number as usize)?.obj.as_ref()
    }
}

/// Addresses of the objects that an object consists of, as far as the shadow knows.
pub(super) fn for_each_part(py: Python<'_>, node: &Node, mut take: impl FnMut(usize)) {
    if let Recorded::Composite(_, parts) = &node.recorded {
        parts
            .children()
            .for_each(|part| take(part.as_ptr() as usize));
    }
    for part in node.recorded.children() {
        take(part.as_ptr() as usize);
    }
    let Some(obj) = &node.obj else { return };
    if let Ok(tuple) = obj.bind(py).cast_exact::<PyTuple>() {
        tuple
            .iter_borrowed()
            .for_each(|part| take(part.as_ptr() as usize));
    } else if let Ok(set) = obj.bind(py).cast_exact::<PyFrozenSet>() {
        set.iter().for_each(|part| take(part.as_ptr() as usize));
    }
}

/// Numbers of objects by their addresses, as little-endian uint32.
pub(super) fn numbers_of<'py>(
    py: Python<'py>,
    objs: &Bound<'py, PyAny>,
    find: impl Fn(usize) -> Option<u32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut numbers = Vec::new();
    for obj in objs.try_iter()? {
        let number = find(obj?.as_ptr() as usize).unwrap_or(NO_NUMBER);
        numbers.extend_from_slice(&number.to_le_bytes());
    }
    Ok(PyBytes::new(py, &numbers))
}

/// The objects with these numbers (little-endian uint32).
pub(super) fn objects_at<'py, 'a>(
    py: Python<'py>,
    numbers: &Bound<'py, PyAny>,
    find: impl Fn(u32) -> Option<&'a Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let found = read_numbers(numbers)?
        .into_iter()
        .map(|number| {
            find(number).ok_or_else(|| {
                PyValueError::new_err(format!("no object of the snapshot has number {number}"))
            })
        })
        .collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, found)
}

pub(super) fn collect(objs: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Py<PyAny>>> {
    match objs {
        None => Ok(Vec::new()),
        Some(objs) => objs.try_iter()?.map(|obj| obj.map(Bound::unbind)).collect(),
    }
}

pub(super) fn copy_dict(dict: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Py<PyDict>>> {
    dict.map(|dict| {
        let copy = PyDict::new(dict.py());
        copy.update(dict.cast()?)?;
        Ok(copy.unbind())
    })
    .transpose()
}
