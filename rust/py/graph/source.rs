//! The side of the original: frames of a graph, each with what has changed since the last.

use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use rustc_hash::{FxHashMap, FxHashSet};

use super::checkpoint::checkpoint;
use super::kind::Kind;
use super::numpy_random::pickled_state;
use super::reach::unreachable;
use super::recorded::{reference_count, Dicts, Layout, Recorded};
use super::taking::{compare_opaque, take_changes, ChangedRandoms};
use crate::py::encoder::{Encoder, RootNames};
use crate::py::numbers::{numbers as read_numbers, numbers_or_none};
use crate::py::packed_states::RandomStates;
use crate::py::prefetch;
use crate::py::random::RandomLayout;
use crate::random_states::{KnownWords, Position};
use crate::wire::{op, Preface, Write};

/// Compared objects per frame between two searches for unreachable ones, so that these cost little
/// on the average.
const OBJECTS_PER_FRAME: usize = 200;
/// How many times longer it takes, at most, until the next search if the latest were in vain.
const MAX_PATIENCE: usize = 16;

/// Gives frames of an object graph.
#[pyclass(module = "pams_parallel._core")]
pub struct Source {
    id: u64,
    externals: Vec<Py<PyAny>>,
    reducers: Option<Py<PyDict>>,
    /// `None` before the first frame and when the next one has to be a keyframe.
    encoder: Option<Encoder>,
    /// Sequence number of the next frame.
    next_sequence: u64,
    is_keyframe: bool,
    is_closed: bool,
    /// The latest frame may differ from what was recorded, so the next one must be a keyframe.
    is_torn: bool,
    /// Numbers of generators that have been set since the latest frame. Agents can share one.
    disturbed: Mutex<FxHashSet<u32>>,
    /// Numbers of objects that may have been dropped from the graph.
    candidates: Vec<u32>,
    /// Numbers of objects that have been let go of, to be freed by the next frame.
    released: Vec<u32>,
    /// Numbers of the roots of the latest frame.
    roots: Vec<u32>,
    /// Something was dropped from the graph, but is still referred to.
    has_suspects: bool,
    /// Frames since the latest search for unreachable objects.
    n_frames_unsearched: usize,
    /// By how much that takes longer because nothing was found.
    patience: usize,
}

/// What the roots of a frame are called in messages.
type Names<'py> = Option<Bound<'py, PyTuple>>;

#[pymethods]
impl Source {
    #[new]
    #[pyo3(signature = (externals=None, reducers=None))]
    fn new(
        py: Python<'_>,
        externals: Option<&Bound<'_, PyAny>>,
        reducers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        super::kind::prepare(py)?;
        // The keys of a hasher are random, and differ from one to the next.
        let id = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        Ok(Source {
            id,
            externals: super::collect(externals)?,
            reducers: super::copy_dict(reducers)?,
            encoder: None,
            next_sequence: 0,
            is_keyframe: false,
            is_closed: false,
            is_torn: false,
            disturbed: Mutex::default(),
            candidates: Vec::new(),
            released: Vec::new(),
            roots: Vec::new(),
            has_suspects: false,
            n_frames_unsearched: 0,
            patience: 1,
        })
    }

    /// The next frame.
    #[pyo3(signature = (roots, *, names=None, keyframe=false))]
    fn frame<'py>(
        &mut self,
        roots: &Bound<'py, PyTuple>,
        names: Names<'py>,
        keyframe: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if self.is_closed {
            return Err(PyValueError::new_err("the source is closed"));
        }
        let names = root_names(roots, names)?;
        // Dropped at the end: that can run user code.
        let encoder = self.encoder.take();
        if let Some(mut encoder) = encoder {
            if !std::mem::take(&mut self.is_torn) && !keyframe {
                match self.delta(&mut encoder, roots) {
                    Ok(Some(frame)) => {
                        self.encoder = Some(encoder);
                        self.done(false);
                        return Ok(frame);
                    }
                    Ok(None) => {}
                    // A keyframe tells the path from a root to the culprit.
                    Err(error) if error.is_instance_of::<PyException>(roots.py()) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let (encoder, frame) = self.keyframe(roots, &names)?;
        self.encoder = Some(encoder);
        self.done(true);
        Ok(frame)
    }

    /// A keyframe of what the latest frame was about, after which the same deltas follow. None if
    /// the graph has changed since.
    #[pyo3(signature = (roots, *, names=None))]
    fn checkpoint<'py>(
        &mut self,
        roots: &Bound<'py, PyTuple>,
        names: Names<'py>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = roots.py();
        self.latest()?;
        let names = root_names(roots, names)?;
        let reducers = self.reducers.as_ref().map(|reducers| reducers.bind(py));
        let fresh = (
            Encoder::without_shadow(py, &self.externals, reducers)?,
            self.new_encoder(py)?,
        );
        let preface = Preface {
            sequence: self.next_sequence - 1,
            ..self.preface(true)
        };
        let is_torn = self.is_torn || !self.has_roots(roots);
        match &mut self.encoder {
            Some(encoder) if !is_torn => checkpoint(encoder, fresh, preface, roots, &names),
            _ => Ok(None),
        }
    }

    /// Whether the latest frame is a keyframe.
    #[getter]
    fn is_keyframe(&self) -> bool {
        self.is_keyframe
    }

    /// Whether the next frame can be a delta at all.
    #[getter]
    fn is_trackable(&self) -> PyResult<bool> {
        Ok(!self.latest()?.shadow().graph.is_untrackable)
    }

    /// Sequence number of the latest frame.
    #[getter]
    fn sequence(&self) -> PyResult<u64> {
        self.next_sequence
            .checked_sub(1)
            .ok_or_else(|| PyValueError::new_err("there is no frame yet"))
    }

    /// Numbers of objects in the latest frame, as little-endian uint32.
    #[pyo3(signature = (objs, /))]
    fn numbers_of<'py>(
        &self,
        py: Python<'py>,
        objs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.latest()?.numbers_of(py, objs)
    }

    /// The objects with these numbers (little-endian uint32).
    #[pyo3(signature = (numbers, /))]
    fn objects<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let shadow = self.latest()?.shadow();
        super::objects_at(py, numbers, |number| shadow.graph.object(number))
    }

    /// Numbers of the generators of agents (by number, both little-endian uint32).
    #[pyo3(signature = (agents, /))]
    fn prngs_of<'py>(
        &self,
        py: Python<'py>,
        agents: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let encoder = self.latest()?;
        let graph = &encoder.shadow().graph;
        graph.packed_prngs_of(py, agents, |at| encoder.number_at(at))
    }

    /// Unpack the states of generators, packed by a replica at the latest frame.
    #[pyo3(signature = (packed, prngs, /))]
    fn random_states(
        this: &Bound<'_, Self>,
        packed: &Bound<'_, PyAny>,
        prngs: &Bound<'_, PyAny>,
    ) -> PyResult<RandomStates> {
        RandomStates::for_source(packed, this.clone().unbind(), numbers_or_none(prngs)?)
    }

    /// Positions of the objects with these numbers (little-endian uint32) that may have an
    /// attribute.
    #[pyo3(signature = (numbers, name, /))]
    fn positions_with(
        &self,
        numbers: &Bound<'_, PyAny>,
        name: &Bound<'_, PyString>,
    ) -> PyResult<Vec<usize>> {
        self.positions_with_name(&read_numbers(numbers)?, name)
    }

    /// Drop every reference to the graph; there are no more frames.
    fn close(this: &Bound<'_, Self>) -> PyResult<()> {
        // Dropped after the borrow has ended, since that can run user code which comes back here.
        let dropped = {
            let mut this = this.try_borrow_mut()?;
            this.is_closed = true;
            (
                this.encoder.take(),
                std::mem::take(&mut this.externals),
                this.reducers.take(),
            )
        };
        drop(dropped);
        Ok(())
    }
}

impl Source {
    /// Words of a generator at the latest frame.
    pub fn recorded_words(&self, number: u32) -> Option<&KnownWords> {
        self.encoder.as_ref()?.shadow().graph.words_of(number)
    }

    /// The object with a number.
    pub fn recorded_object(&self, py: Python<'_>, number: u32) -> Option<Py<PyAny>> {
        let graph = &self.encoder.as_ref()?.shadow().graph;
        graph.object(number).map(|obj| obj.clone_ref(py))
    }

    /// Sets the word indices of generators (by number) that have been left alone since the latest
    /// frame and keep their words and Gauss values. `move_at` has number and position by index.
    /// Returns the index of the first other one in the range, or its end.
    pub fn set_indices(
        &self,
        py: Python<'_>,
        layout: &RandomLayout,
        range: Range<usize>,
        move_at: impl Fn(usize) -> Option<(u32, Position)>,
    ) -> usize {
        let (Some(encoder), Ok(disturbed)) = (&self.encoder, self.disturbed.lock()) else {
            return range.start;
        };
        let graph = &encoder.shadow().graph;
        let generator = |number: u32| {
            let node = graph.nodes.get(number as usize)?;
            match (&node.obj, &node.recorded) {
                (Some(obj), Recorded::Random(record)) => Some((obj.bind(py), &**record)),
                _ => None,
            }
        };
        for at in range.clone() {
            // Also beyond the range: the next call goes on there.
            if let Some((ahead, _)) = move_at(at + 2 * prefetch::FAR) {
                graph.prefetch_node(ahead);
            }
            let ahead = move_at(at + prefetch::FAR);
            if let Some((prng, record)) = ahead.and_then(|(ahead, _)| generator(ahead)) {
                layout.prefetch_index(prng.as_ptr());
                prefetch::prefetch(std::ptr::from_ref(record));
            }
            let Some((number, position)) = move_at(at) else {
                return at;
            };
            let Some((prng, record)) = generator(number) else {
                return at;
            };
            let is_left_alone = !disturbed.contains(&number)
                && layout.is_exact(prng)
                && layout.seems_to_have(prng, record.words.head());
            if !is_left_alone || !record.position.has_gauss_of(position) {
                return at;
            }
            layout.write_index(prng, position.index);
        }
        range.end
    }

    /// Positions of the objects (by number) that may have an attribute.
    ///
    /// Objects with the same layout need to be looked at only once.
    fn positions_with_name(
        &self,
        numbers: &[u32],
        name: &Bound<'_, PyString>,
    ) -> PyResult<Vec<usize>> {
        let graph = &self.latest()?.shadow().graph;
        let mut layouts: FxHashMap<*const Layout, bool> = FxHashMap::default();
        let mut positions = Vec::new();
        for (position, number) in numbers.iter().enumerate() {
            let lacks_it = match graph.nodes.get(*number as usize).map(|node| &node.recorded) {
                Some(Recorded::Instance(layout, _)) => match layouts.get(&Arc::as_ptr(layout)) {
                    Some(lacks_it) => *lacks_it,
                    None => {
                        let lacks_it = layout.lacks(name)?;
                        layouts.insert(Arc::as_ptr(layout), lacks_it);
                        lacks_it
                    }
                },
                _ => false,
            };
            if !lacks_it {
                positions.push(position);
            }
        }
        Ok(positions)
    }

    /// Takes note that more than the index of a generator is being set.
    pub fn disturb(&self, prng: &Bound<'_, PyAny>) {
        let number_at = |encoder: &Encoder| encoder.number_at(prng.as_ptr() as usize);
        let number = self.encoder.as_ref().and_then(number_at);
        if let (Some(number), Ok(mut numbers)) = (number, self.disturbed.lock()) {
            numbers.insert(number);
        }
    }

    fn latest(&self) -> PyResult<&Encoder> {
        self.encoder
            .as_ref()
            .ok_or_else(|| PyValueError::new_err("there is no frame"))
    }

    fn done(&mut self, is_keyframe: bool) {
        if let Ok(mut numbers) = self.disturbed.lock() {
            numbers.clear();
        }
        self.next_sequence += 1;
        self.is_keyframe = is_keyframe;
    }

    fn new_encoder(&self, py: Python<'_>) -> PyResult<Encoder> {
        let reducers = self.reducers.as_ref().map(|reducers| reducers.bind(py));
        Encoder::with_shadow(py, &self.externals, reducers)
    }

    /// Whether these are the roots of the latest frame.
    fn has_roots(&self, roots: &Bound<'_, PyTuple>) -> bool {
        let Some(encoder) = &self.encoder else {
            return false;
        };
        let numbers = roots
            .iter_borrowed()
            .map(|root| encoder.number_at(root.as_ptr() as usize));
        // Leaves have no numbers.
        numbers.flatten().eq(self.roots.iter().copied())
    }

    fn preface(&self, is_keyframe: bool) -> Preface {
        Preface {
            source: self.id,
            sequence: self.next_sequence,
            is_keyframe,
        }
    }

    fn keyframe<'py>(
        &mut self,
        roots: &Bound<'py, PyTuple>,
        names: &[String],
    ) -> PyResult<(Encoder, Bound<'py, PyBytes>)> {
        let py = roots.py();
        self.candidates.clear();
        self.released.clear();
        self.roots.clear();
        let mut encoder = self.new_encoder(py)?;
        self.preface(true).put(encoder.out());
        for (root, name) in roots.iter().zip(names) {
            encoder.add_root(py, &root, &RootNames::One(name.clone()))?;
        }
        let frame = encoder.finish_frame(py)?;
        self.settle(py, &mut encoder, roots)?;
        Ok((encoder, frame))
    }

    /// `None` if there have been changes that no delta can express.
    fn delta<'py>(
        &mut self,
        encoder: &mut Encoder,
        roots: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = roots.py();
        if encoder.shadow().graph.is_untrackable || !encoder.begin_frame(py)? {
            return Ok(None);
        }
        self.release_unreachable(py, encoder)?;
        let opaque: Vec<u32> = encoder.shadow().opaque.iter().copied().collect();
        for number in opaque {
            if !compare_opaque(py, encoder, number)? {
                return Ok(None);
            }
        }
        self.preface(false).put(encoder.out());
        // From here on no Python code runs until all changes are known.
        let mut randoms = ChangedRandoms::default();
        let graph = &mut encoder.shadow_mut().graph;
        let changed = graph.changed(py, Dicts::Any, |layout, number, obj, record| {
            randoms.visit(layout, number, obj, record)
        })?;
        randoms.put(encoder.out());
        if !take_changes(py, encoder, changed, &mut self.candidates)? {
            return Ok(None);
        }
        self.release(py, encoder);
        let mut freed = std::mem::take(&mut self.released);
        freed.sort_unstable();
        encoder.mark_pending();
        encoder.write_pending(py)?;
        for root in roots.iter() {
            encoder.add_root(py, &root, &RootNames::One("roots".to_owned()))?;
        }
        if !freed.is_empty() {
            let out = encoder.out();
            out.put_byte(op::FREE);
            out.put_varint(freed.len() as u64);
            let mut last = 0;
            for number in &freed {
                out.put_varint(u64::from(number - last));
                last = *number;
            }
        }
        let frame = encoder.finish_frame(py)?;
        encoder.shadow_mut().free.extend(freed);
        self.settle(py, encoder, roots)?;
        Ok(Some(frame))
    }

    /// Lets go of objects that nobody else refers to any more.
    fn release(&mut self, py: Python<'_>, encoder: &mut Encoder) {
        while let Some(number) = self.candidates.pop() {
            let node = &encoder.shadow().graph.nodes[number as usize];
            let Some(obj) = &node.obj else { continue };
            if reference_count(obj.bind(py)) == 1 {
                self.let_go(py, encoder, number);
            } else {
                self.has_suspects = true;
            }
        }
    }

    /// Lets go of objects that can no longer be reached but refer to each other, if that has not
    /// been tried for a while.
    fn release_unreachable(&mut self, py: Python<'_>, encoder: &mut Encoder) -> PyResult<()> {
        self.n_frames_unsearched += 1;
        let interval = self.patience * (encoder.shadow().graph.n_tracked() / OBJECTS_PER_FRAME);
        if !self.has_suspects || self.n_frames_unsearched <= interval {
            return Ok(());
        }
        self.has_suspects = false;
        self.n_frames_unsearched = 0;
        let graph = &encoder.shadow().graph;
        let lost = unreachable(py, graph, self.roots.clone(), |at| encoder.number_at(at))?;
        let lost = lost.unwrap_or_default();
        // Most simulations never leave cycles behind.
        self.patience = match lost.is_empty() {
            true => (2 * self.patience).min(MAX_PATIENCE),
            false => 1,
        };
        for number in lost {
            self.let_go(py, encoder, number);
        }
        Ok(())
    }

    fn let_go(&mut self, py: Python<'_>, encoder: &mut Encoder, number: u32) {
        let node = &encoder.shadow().graph.nodes[number as usize];
        super::for_each_part(py, node, |part| {
            self.candidates.extend(encoder.number_at(part));
        });
        encoder.forget(number);
        self.released.push(number);
    }

    /// After a frame: what it has left behind.
    fn settle(
        &mut self,
        py: Python<'_>,
        encoder: &mut Encoder,
        roots: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let root_numbers = roots
            .iter_borrowed()
            .filter_map(|root| encoder.number_at(root.as_ptr() as usize));
        let roots = root_numbers.collect();
        let former = std::mem::replace(&mut self.roots, roots);
        let dropped = former.iter().filter(|root| !self.roots.contains(root));
        self.candidates.extend(dropped);
        let created = std::mem::take(&mut encoder.shadow_mut().created);
        for number in &created {
            let node = &encoder.shadow().graph.nodes[*number as usize];
            // Only the reducers' results, which are no part of the graph.
            if node
                .obj
                .as_ref()
                .is_some_and(|obj| reference_count(obj.bind(py)) == 1)
            {
                self.candidates.push(*number);
            }
        }
        if encoder.shadow().graph.is_untrackable {
            return Ok(());
        }
        for number in std::mem::take(&mut encoder.shadow_mut().composites) {
            // These were not written from the record; user code may have come in between.
            let node = &encoder.shadow().graph.nodes[number as usize];
            if let Some(obj) = &node.obj {
                self.is_torn |= !node.recorded.is_still(obj.bind(py), Dicts::Any);
            }
        }
        for number in std::mem::take(&mut encoder.shadow_mut().reduced) {
            let node = &encoder.shadow().graph.nodes[number as usize];
            let Some(obj) = node.obj.as_ref().map(|obj| obj.clone_ref(py)) else {
                continue;
            };
            let recorded = match encoder.kind_of(&obj.bind(py).get_type())? {
                Kind::Deletable => Recorded::Deletable,
                Kind::NumpyRandom => Recorded::NumpyRandom(pickled_state(obj.bind(py))?),
                _ => Recorded::Opaque(encoder.fingerprint(py, obj.bind(py))?),
            };
            let shadow = encoder.shadow_mut();
            shadow.opaque.insert(number);
            drop(shadow.graph.record(number, recorded));
        }
        Ok(())
    }
}

fn root_names(roots: &Bound<'_, PyTuple>, names: Names<'_>) -> PyResult<Vec<String>> {
    match names {
        None => Ok((0..roots.len()).map(|at| format!("roots[{at}]")).collect()),
        Some(names) if names.len() == roots.len() => names.extract(),
        Some(_) => Err(PyValueError::new_err("as many names as roots are needed")),
    }
}
