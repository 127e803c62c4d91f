//! The side of the copy: applying frames, and undoing what has been done to the copy since.

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
    PyType,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::array::form_hash;
use super::changes::{apply_list_edits, apply_new_values, list_edits, new_values};
use super::kind::{has_stable_hash, kind_of_class, Kind};
use super::numpy_random::pickled_state;
use super::recorded::{own_dict, Dicts, RandomRecord, Recorded};
use super::Graph;
use crate::error::DecodeError;
use crate::py::buffer::Buffer;
use crate::py::decoder::{update, Changes, Decoded};
use crate::py::encoder::{Encoder, Fingerprint};
use crate::py::numbers::numbers_or_none;
use crate::py::packed_states::RandomStatePacker;
use crate::py::prefetch;
use crate::py::random::RandomLayout;
use crate::py::runtime::Runtime;
use crate::py::types::{is_plain, lookup};
use crate::random_states::KnownWords;
use crate::wire::{self, Preface, Reader};

/// Rounds of restoring before a replica counts as lost: what is dropped can run finalizers, which
/// can change the replica again.
const MAX_ROUNDS: usize = 3;

/// A copy of an object graph that follows the frames of a source.
#[pyclass(module = "pams_parallel._core")]
pub struct Replica {
    externals: Vec<Py<PyAny>>,
    reducers: Option<Py<PyDict>>,
    contents: Contents,
    /// Of the latest frame; `None` if a keyframe is needed.
    latest: Option<Preface>,
}

/// All that belongs to the frames since the latest keyframe.
#[derive(Default)]
struct Contents {
    decoded: Decoded,
    /// Nodes of the objects that can change only.
    graph: Graph,
    kinds: FxHashMap<usize, Kind>,
    /// Owns the classes in `kinds`.
    classes: Vec<Py<PyType>>,
    /// Numbers of the objects that are compared by what their reducers return.
    opaque: FxHashSet<u32>,
    /// Takes fingerprints. It knows the numbers of all objects in `graph`.
    encoder: Option<Encoder>,
    /// Numbers by address, if they have been asked for.
    numbers: Option<FxHashMap<usize, u32>>,
}

#[pymethods]
impl Replica {
    #[new]
    #[pyo3(signature = (externals=None, reducers=None))]
    fn new(
        externals: Option<&Bound<'_, PyAny>>,
        reducers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Replica {
            externals: super::collect(externals)?,
            reducers: super::copy_dict(reducers)?,
            contents: Contents::default(),
            latest: None,
        })
    }

    /// Update the copy in place.
    #[pyo3(signature = (frame, /))]
    fn apply(&mut self, frame: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = frame.py();
        let latest = self.latest.take();
        let mut contents = std::mem::take(&mut self.contents);
        let buffer = Buffer::get(frame)?;
        let bytes = buffer.constant();
        let (header, stream) = wire::open(&bytes)?;
        let mut reader = Reader::new(stream);
        let preface = Preface::read(&mut reader)?;
        if preface.is_keyframe {
            // The old copy goes first, so that there are never two of them.
            contents = Contents::default();
        } else {
            let follows = latest.is_some_and(|latest| {
                latest.source == preface.source
                    && latest.sequence.checked_add(1) == Some(preface.sequence)
            });
            if !follows {
                return Err(DecodeError::Sequence {
                    found: preface.sequence,
                    latest: latest.map(|latest| latest.sequence),
                }
                .into());
            }
        }
        let decoded = std::mem::take(&mut contents.decoded);
        let (decoded, changes) = update(py, reader, decoded, header.objects, &self.externals)?;
        contents.decoded = decoded;
        if preface.is_keyframe {
            let reducers = self.reducers.as_ref().map(|reducers| reducers.bind(py));
            contents.encoder = Some(Encoder::without_shadow(py, &self.externals, reducers)?);
        }
        let has_finalizers = contents.take_up(py, changes)?;
        // Finalizers of what was dropped may have changed the rest.
        if has_finalizers && !contents.roll_back(py)? {
            return Err(PyRuntimeError::new_err(
                "the finalizer of an object that was dropped has changed the copy for good",
            ));
        }
        self.contents = contents;
        self.latest = Some(preface);
        Ok(())
    }

    /// Undo everything that has been done to the copy since the latest frame.
    fn roll_back(&mut self, py: Python<'_>) -> PyResult<bool> {
        let latest = self.latest.take();
        if latest.is_none() {
            return Ok(false);
        }
        match self.contents.roll_back(py) {
            Ok(true) => {
                self.latest = latest;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sequence number of the latest frame, None if a keyframe is needed.
    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.latest.map(|latest| latest.sequence)
    }

    /// The roots of the latest frame.
    #[getter]
    fn roots<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.contents.decoded.roots)
    }

    /// Numbers of objects in the latest frame, as little-endian uint32.
    #[pyo3(signature = (objs, /))]
    fn numbers_of<'py>(
        &mut self,
        py: Python<'py>,
        objs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let contents = &mut self.contents;
        let known = contents.numbers.get_or_insert_with(|| {
            let numbered = contents.decoded.objects.iter().enumerate();
            numbered
                .filter(|(_, obj)| !obj.is_none(py))
                .map(|(number, obj)| (obj.as_ptr() as usize, number as u32))
                .collect()
        });
        super::numbers_of(py, objs, |address| known.get(&address).copied())
    }

    /// The objects with these numbers (little-endian uint32).
    #[pyo3(signature = (numbers, /))]
    fn objects<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.contents.decoded.objects_at(py, numbers)
    }

    /// Numbers of the generators of agents (by number, both little-endian uint32), as they were at
    /// the latest frame.
    #[pyo3(signature = (agents, /))]
    fn prngs_of<'py>(
        &self,
        py: Python<'py>,
        agents: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let contents = &self.contents;
        let number_at = |at| contents.encoder.as_ref()?.number_at(at);
        contents.graph.packed_prngs_of(py, agents, number_at)
    }

    /// A packer of the states of generators (by number), relative to the latest frame.
    #[pyo3(signature = (prngs, /))]
    fn random_state_packer(
        this: &Bound<'_, Self>,
        prngs: &Bound<'_, PyAny>,
    ) -> PyResult<RandomStatePacker> {
        let numbers = numbers_or_none(prngs)?;
        Ok(RandomStatePacker::for_replica(
            this.clone().unbind(),
            numbers,
        ))
    }

    /// Whether any of these objects is one of the copy's that can change.
    #[pyo3(signature = (objs, /))]
    fn owns_any(&self, objs: &Bound<'_, PyAny>) -> PyResult<bool> {
        for obj in objs.try_iter()? {
            if self.contents.owns(&obj?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether all of these objects are the copy's and consist of what they did at the latest
    /// frame.
    #[pyo3(signature = (objs, /))]
    fn are_unchanged(&self, objs: &Bound<'_, PyAny>) -> PyResult<bool> {
        for obj in objs.try_iter()? {
            if !self.contents.is_unchanged(&obj?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Drop the copy; a keyframe is needed afterwards.
    fn close(this: &Bound<'_, Self>) -> PyResult<()> {
        // Dropped after the borrow has ended, since that can run user code which comes back here.
        let dropped = {
            let mut this = this.try_borrow_mut()?;
            this.latest = None;
            std::mem::take(&mut this.contents)
        };
        drop(dropped);
        Ok(())
    }
}

/// A hash of what the reducer of an object returns, and of what reducers of arrays leave out.
fn fingerprint(encoder: &mut Encoder, obj: &Bound<'_, PyAny>) -> PyResult<Fingerprint> {
    let mut fingerprint = encoder.fingerprint(obj.py(), obj)?;
    fingerprint.hash[0] ^= form_hash(obj)?;
    Ok(fingerprint)
}

/// Restores the position of a generator; whether that was necessary. `None` if more than the
/// position has changed.
fn restore_random(
    layout: &RandomLayout,
    prng: &Bound<'_, PyAny>,
    record: &RandomRecord,
) -> Option<bool> {
    let read = layout.read(prng, |now, words| record.words.are(words).then_some(now));
    let now = read.ok()???;
    own_dict(prng).filter(|dict| Dicts::Own.allow(dict))?;
    if now.is(record.position) {
        return Some(false);
    }
    layout.write_position(prng, record.position).ok()?;
    Some(true)
}

/// Whether the class of any of these objects has a finalizer.
fn any_has_finalizer<'a, 'py: 'a>(
    objs: impl Iterator<Item = &'a Bound<'py, PyAny>>,
) -> PyResult<bool> {
    let mut known = FxHashSet::default();
    for obj in objs {
        let class = obj.get_type();
        if known.insert(class.as_ptr() as usize) && lookup(&class, "__del__")?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_unsettled_frozenset(obj: &Bound<'_, PyAny>) -> bool {
    let set = obj.cast_exact::<PyFrozenSet>();
    set.is_ok_and(|set| !set.iter().all(|element| has_stable_hash(&element)))
}

/// Whether dropping an object runs no code.
fn is_inert(obj: &Bound<'_, PyAny>) -> bool {
    obj.is_none()
        || obj.is_exact_instance_of::<PyFloat>()
        || obj.is_exact_instance_of::<PyInt>()
        || obj.is_exact_instance_of::<PyString>()
}

impl Replica {
    pub fn graph(&self) -> &Graph {
        &self.contents.graph
    }

    /// Whether an object is the one with this number, and consists of what is recorded.
    pub fn is_as_recorded(&self, number: u32, obj: &Bound<'_, PyAny>) -> bool {
        let node = self.contents.graph.nodes.get(number as usize);
        node.is_some_and(|node| {
            matches!(node.recorded, Recorded::Instance(..))
                && node.obj.as_ref().is_some_and(|own| own.is(obj))
                && node.recorded.is_still(obj, Dicts::Any)
        })
    }

    /// Attributes of an instance at the latest frame.
    pub fn recorded_attributes<'py>(
        &self,
        py: Python<'py>,
        number: u32,
    ) -> PyResult<Bound<'py, PyDict>> {
        let attributes = PyDict::new(py);
        let node = self.contents.graph.nodes.get(number as usize);
        if let Some(Recorded::Instance(layout, values)) = node.map(|node| &node.recorded) {
            for (name, value) in layout.names.iter().zip(values) {
                attributes.set_item(name, value)?;
            }
        }
        Ok(attributes)
    }

    /// Words of a generator at the latest frame.
    pub fn recorded_words(&self, number: u32) -> Option<&KnownWords> {
        self.contents.graph.words_of(number)
    }
}

impl Contents {
    /// Whether an object is one of those that are compared.
    fn owns(&self, obj: &Bound<'_, PyAny>) -> bool {
        let number_at = |encoder: &Encoder| encoder.number_at(obj.as_ptr() as usize);
        self.encoder.as_ref().and_then(number_at).is_some()
    }

    /// Whether an object is one of those that are compared, and consists of what is recorded.
    fn is_unchanged(&self, obj: &Bound<'_, PyAny>) -> bool {
        let number_at = |encoder: &Encoder| encoder.number_at(obj.as_ptr() as usize);
        let number = self.encoder.as_ref().and_then(number_at);
        let node = number.and_then(|number| self.graph.nodes.get(number as usize));
        node.is_some_and(|node| {
            node.recorded.is_compared() && node.recorded.is_still(obj, Dicts::Any)
        })
    }

    /// Records what a frame has changed; returns whether what was dropped has finalizers.
    fn take_up(&mut self, py: Python<'_>, changes: Changes) -> PyResult<bool> {
        self.numbers = None;
        let freed = changes.freed.iter().map(|(_, obj)| obj);
        let dropped = freed.chain(&changes.dropped).map(|obj| obj.bind(py));
        let has_finalizers = any_has_finalizer(dropped)?;
        for (number, obj) in &changes.freed {
            self.opaque.remove(number);
            if let Some(encoder) = &mut self.encoder {
                encoder.unlearn(obj.as_ptr() as usize);
            }
            if (*number as usize) < self.graph.nodes.len() {
                drop(self.graph.remove(*number));
            }
        }
        let mut opaque = Vec::new();
        for number in changes.created {
            if self.graph.is_untrackable {
                break;
            }
            let obj = self.decoded.objects[number as usize].bind(py).clone();
            let kind = self.kind_of(&obj)?;
            match kind {
                Kind::Leaf => {
                    self.graph.has_unsettled_frozenset |= is_unsettled_frozenset(&obj);
                    continue;
                }
                Kind::Custom => {
                    self.graph = Graph {
                        is_untrackable: true,
                        ..Graph::default()
                    };
                    break;
                }
                Kind::Opaque => opaque.push(number),
                _ => {}
            }
            let recorded = match self.graph.capture(kind, &obj)? {
                Some(recorded) => recorded,
                None if kind == Kind::Array => {
                    opaque.push(number);
                    Recorded::Leaf
                }
                None => {
                    self.graph.is_untrackable = true;
                    break;
                }
            };
            if let Some(encoder) = &mut self.encoder {
                encoder.learn_number(obj.as_ptr() as usize, number);
            }
            if matches!(kind, Kind::Deletable | Kind::NumpyRandom) {
                self.opaque.insert(number);
            }
            self.graph.insert(number, Some(obj.unbind()), recorded);
        }
        if self.graph.is_untrackable {
            return Ok(false);
        }
        self.graph.move_randoms(&changes.moved);
        let runtime = Runtime::get(py)?;
        for (at, number) in changes.updated.iter().enumerate() {
            if let Some(ahead) = changes.updated.get(at + prefetch::FAR) {
                self.graph.prefetch_node(*ahead);
            }
            if let Some(ahead) = changes.updated.get(at + prefetch::DISTANCE) {
                self.graph.prefetch(runtime, *ahead);
            }
            let number = *number;
            let Some(node) = self.graph.nodes.get_mut(number as usize) else {
                continue;
            };
            let Some(obj) = node.obj.as_ref().map(|obj| obj.bind(py)) else {
                continue;
            };
            if node.recorded.refresh_random(obj)?.is_some() {
                continue;
            }
            if let (Recorded::List(items), Ok(list)) =
                (&mut node.recorded, obj.cast_exact::<PyList>())
            {
                let edits = list_edits(items, list);
                drop(apply_list_edits(items, edits));
                continue;
            }
            if let Some(values) = new_values(&node.recorded, obj) {
                drop(apply_new_values(&mut node.recorded, values));
                continue;
            }
            let obj = obj.clone().unbind();
            let kind = node.recorded.kind();
            match self.graph.capture(kind, obj.bind(py))? {
                Some(recorded) => drop(self.graph.record(number, recorded)),
                None => self.graph.is_untrackable = true,
            }
        }
        for number in opaque {
            if let (Some(encoder), Some(obj)) = (&mut self.encoder, self.graph.object(number)) {
                let fingerprint = fingerprint(encoder, obj.bind(py))?;
                drop(self.graph.record(number, Recorded::Opaque(fingerprint)));
                self.opaque.insert(number);
            }
        }
        Ok(has_finalizers)
    }

    fn kind_of(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<Kind> {
        let py = obj.py();
        let class = obj.get_type();
        let key = class.as_ptr() as usize;
        if let Some(kind) = self.kinds.get(&key) {
            return Ok(*kind);
        }
        let is = |other: Bound<'_, PyType>| class.is(&other);
        let random = Runtime::get(py)?.random.as_ref();
        let kind = if is(py.get_type::<PyList>()) {
            Kind::List
        } else if is(py.get_type::<PyDict>()) {
            Kind::Dict
        } else if is(py.get_type::<PySet>()) {
            Kind::Set
        } else if is(py.get_type::<PyByteArray>()) {
            Kind::ByteArray
        } else if is(py.get_type::<PyTuple>())
            || is(py.get_type::<PyString>())
            || is(py.get_type::<PyFrozenSet>())
        {
            Kind::Leaf
        } else if random.is_some_and(|random| random.is_exact(obj)) {
            Kind::Random
        } else if is_plain(&class)? {
            Kind::Instance
        } else {
            kind_of_class(&class)?
        };
        self.kinds.insert(key, kind);
        self.classes.push(class.unbind());
        Ok(kind)
    }

    fn roll_back(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.graph.is_untrackable {
            return Ok(false);
        }
        let mut is_undone = false;
        for round in 0.. {
            let mut is_any_random_restored = false;
            let changed = self
                .graph
                .changed(py, Dicts::Own, |layout, _, prng, record| {
                    let restored = restore_random(layout, prng, record);
                    is_any_random_restored |= restored == Some(true);
                    restored.is_some()
                })?;
            is_undone |= is_any_random_restored;
            if changed.is_empty() {
                break;
            }
            if round == MAX_ROUNDS {
                return Ok(false);
            }
            is_undone = true;
            let mut dropped = Vec::new();
            for number in changed {
                let node = &self.graph.nodes[number as usize];
                let Some(obj) = &node.obj else { continue };
                if !node.recorded.restore(obj.bind(py), &mut dropped)? {
                    return Ok(false);
                }
            }
            // Only finalizers could change anything again.
            if dropped.iter().all(|obj| is_inert(obj.bind(py))) {
                break;
            }
        }
        if is_undone && self.graph.has_unsettled_frozenset {
            return Ok(false);
        }
        if is_undone && !self.graph.unsettled.is_empty() {
            for number in &self.graph.unsettled {
                let node = &self.graph.nodes[*number as usize];
                if let Some(obj) = &node.obj {
                    node.recorded.refill(obj.bind(py))?;
                }
            }
            let changed = self
                .graph
                .changed(py, Dicts::Own, |layout, _, prng, record| {
                    matches!(restore_random(layout, prng, record), Some(false))
                })?;
            if !changed.is_empty() {
                return Ok(false);
            }
        }
        for number in &self.opaque {
            let Some(obj) = self.graph.object(*number) else {
                continue;
            };
            let obj = obj.bind(py);
            let is_unchanged = match &self.graph.nodes[*number as usize].recorded {
                Recorded::Deletable => !obj.call_method0(intern!(py, "is_deleted"))?.is_truthy()?,
                Recorded::Opaque(before) => match &mut self.encoder {
                    Some(encoder) => fingerprint(encoder, obj)?.hash == before.hash,
                    None => false,
                },
                Recorded::NumpyRandom(before) => {
                    if pickled_state(obj)? != *before {
                        let recorded = &self.graph.nodes[*number as usize].recorded;
                        recorded.restore(obj, &mut Vec::new())?;
                    }
                    pickled_state(obj)? == *before
                }
                _ => true,
            };
            if !is_unchanged {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
