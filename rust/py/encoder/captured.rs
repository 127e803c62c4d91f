//! Encoding for a source: what a native object consists of is recorded in the shadow first and
//! written from the record, so that user code which runs in between cannot come between the two.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple, PyType,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::frames::{Frame, Written};
use super::{Encoder, Known, State};
use crate::known_floats::KnownFloats;
use crate::py::errors::no_memory;
use crate::py::graph::changes::Piece;
use crate::py::graph::kind::{kind_of_class, Kind};
use crate::py::graph::recorded::Recorded;
use crate::py::graph::Graph;
use crate::py::numbers::NO_NUMBER;
use crate::py::output::Output;
use crate::py::types::{hash_is_settled, plan, Plan, Shape};
use crate::wire::{op, Write};

/// First number of the objects in a fingerprint, above those of a shadow.
pub(super) const FINGERPRINT_NUMBERS: u32 = 1 << 31;

/// What the encoder of a source keeps from frame to frame.
#[derive(Default)]
pub struct Shadow {
    pub graph: Graph,
    /// Numbers that can be given again.
    pub free: Vec<u32>,
    /// Numbers given in the current frame.
    pub created: Vec<u32>,
    /// Numbers of the objects that went through a reducer in the current frame and can change.
    pub reduced: Vec<u32>,
    /// Numbers of the composite objects of the current frame.
    pub composites: Vec<u32>,
    /// Numbers of those of earlier frames.
    pub opaque: FxHashSet<u32>,
    /// Changes of objects that are not yet written.
    pending: FxHashMap<u32, Vec<Piece>>,
    /// In which order they are to be written.
    order: Vec<u32>,
    /// Number of the latest object whose change was written in this frame.
    last_updated: u32,
    /// Name that the latest `SET_ATTRIBUTE` of this frame has.
    last_name: Option<Py<PyAny>>,
    kinds: FxHashMap<usize, Kind>,
}

/// A hash of what the reducer of an object returns, and the numbered objects that are in it.
pub struct Fingerprint {
    pub hash: [u64; 2],
    pub parts: Box<[u32]>,
}

/// What there is to put right after a fingerprint, and to tell about it.
#[derive(Default)]
pub struct FingerprintNotes {
    /// What objects were known as that are written by value.
    pub(super) overwritten: Vec<(usize, Known)>,
    parts: Vec<u32>,
}

impl FingerprintNotes {
    /// Takes note of a reference to a numbered object; whether it is written by its number. Texts
    /// are not, because their numbers may come and go, nor are built-in containers, because the
    /// copy may have got their items instead of them.
    pub(super) fn may_refer_to(&mut self, obj: &Bound<'_, PyAny>, number: u32) -> bool {
        if number >= FINGERPRINT_NUMBERS {
            return true;
        }
        self.parts.push(number);
        !(obj.is_exact_instance_of::<PyString>()
            || obj.is_exact_instance_of::<PyBytes>()
            || obj.is_exact_instance_of::<PyTuple>()
            || obj.is_exact_instance_of::<PyList>()
            || obj.is_exact_instance_of::<PyDict>()
            || obj.is_exact_instance_of::<PySet>()
            || obj.is_exact_instance_of::<PyFrozenSet>()
            || obj.is_exact_instance_of::<PyByteArray>())
    }
}

impl Shadow {
    /// Takes note of changes for the next frame.
    pub fn add_pending(&mut self, number: u32, pieces: Vec<Piece>) {
        self.pending.insert(number, pieces);
        self.order.push(number);
    }
}

impl Encoder {
    /// An encoder of the frames of a source, before the first one.
    pub fn with_shadow(
        py: Python<'_>,
        externals: &[Py<PyAny>],
        reducers: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let externals = PyTuple::new(py, externals)?;
        let reducers = reducers.map(|reducers| reducers.as_any());
        let mut encoder = Encoder::new(py, Some(&externals), None, reducers, None, usize::MAX)?;
        encoder.shadow = Some(Box::default());
        Ok(encoder)
    }

    /// An encoder for [`Encoder::fingerprint`] or a checkpoint.
    pub fn without_shadow(
        py: Python<'_>,
        externals: &[Py<PyAny>],
        reducers: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut encoder = Self::with_shadow(py, externals, reducers)?;
        encoder.shadow = None;
        Ok(encoder)
    }

    /// Takes note of the number of an object that somebody else owns.
    pub fn learn_number(&mut self, address: usize, number: u32) {
        self.memo.insert(address, Known::Number(number));
    }

    /// Forgets what [`Encoder::learn_number`] was told.
    pub fn unlearn(&mut self, address: usize) {
        self.memo.remove(&address);
    }

    /// Begins a frame; `false` if a class is no longer encoded as it was.
    pub fn begin_frame(&mut self, py: Python<'_>) -> PyResult<bool> {
        self.epoch += 1;
        self.shadow_mut().last_updated = 0;
        self.shadow_mut().last_name = None;
        self.last_new = None;
        self.output = Output::new(None, usize::MAX);
        self.output.floats = Some(KnownFloats::default());
        self.state = State::Open;
        for (class, (epoch, known)) in &mut self.plans {
            // SAFETY: `held` owns the classes that have plans.
            let class = unsafe { Bound::from_borrowed_ptr(py, *class as *mut ffi::PyObject) };
            let now = plan(class.cast::<PyType>()?, &self.reducers)?;
            if std::mem::discriminant(&now) != std::mem::discriminant(known) {
                return Ok(false);
            }
            *epoch = self.epoch;
        }
        Ok(true)
    }

    /// Completes a frame.
    pub fn finish_frame<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let created = self.shadow().created.len() as u32;
        self.finish_frame_of(py, created)
    }

    /// Completes a frame that creates so many objects.
    pub fn finish_frame_of<'py>(
        &mut self,
        py: Python<'py>,
        created: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.output.buffer.put_byte(op::END);
        let frame = self.output.finish(py, created)?;
        // Without a sink it is all in memory.
        Ok(frame.unwrap_or_else(|| PyBytes::new(py, b"")))
    }

    /// Encodes an object that is no part of the graph, only to have it numbered.
    pub fn add_aside(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.value(py, obj)?;
        self.run_frames(py)?;
        self.put(op::POP, 1);
        Ok(())
    }

    /// Makes room for so many objects.
    pub fn expect_objects(&mut self, count: usize) {
        self.memo.reserve(count);
        self.held.reserve(count);
    }

    /// How many objects have been numbered.
    pub fn numbered_count(&self) -> usize {
        match &self.shadow {
            Some(shadow) => shadow.graph.nodes.len(),
            None => self.objects as usize,
        }
    }

    /// Whether a class of the user's may have been asked how to copy its instances.
    pub fn has_called_hooks(&self) -> bool {
        self.epoch > 0
    }

    /// How many shapes have been defined.
    pub fn shape_count(&self) -> u32 {
        self.shapes
    }

    /// Defines the shapes that another encoder has, in their order; `false` if not all of them are
    /// known any more.
    pub fn put_shapes_of(&mut self, py: Python<'_>, other: &Encoder) -> PyResult<bool> {
        let mut shapes = Vec::new();
        for (class, (_, plan)) in &other.plans {
            if let Plan::Plain(plain) = plan {
                // SAFETY: `held` owns the classes that have plans.
                let class = unsafe { Bound::from_borrowed_ptr(py, *class as *mut ffi::PyObject) };
                shapes.extend(plain.shapes.iter().map(|shape| (class.clone(), shape)));
            }
        }
        shapes.sort_by_key(|(_, shape)| shape.number);
        for (class, shape) in &shapes {
            self.value(py, class)?;
            self.run_frames(py)?;
            self.put_shape(py, &shape.names)?;
        }
        Ok(shapes.len() == other.shapes as usize)
    }

    /// Where a frame is written to.
    pub fn out(&mut self) -> &mut impl Write {
        &mut self.output.buffer
    }

    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    pub fn shadow(&self) -> &Shadow {
        match &self.shadow {
            Some(shadow) => shadow,
            None => unreachable!("only called for the frames of a source"),
        }
    }

    pub fn shadow_mut(&mut self) -> &mut Shadow {
        match &mut self.shadow {
            Some(shadow) => shadow,
            None => unreachable!("only called for the frames of a source"),
        }
    }

    /// Number of the object at an address, if it has one.
    pub fn number_at(&self, address: usize) -> Option<u32> {
        match self.memo.get(&address) {
            Some(Known::Number(number) | Known::Changed(number)) => Some(*number),
            _ => None,
        }
    }

    /// Lets go of an object; its number can be given again after the frame. Runs user code if
    /// nobody else refers to the object.
    pub fn forget(&mut self, number: u32) {
        let shadow = self.shadow_mut();
        shadow.opaque.remove(&number);
        let pieces = shadow.pending.remove(&number);
        let node = shadow.graph.remove(number);
        if let Some(obj) = &node.obj {
            self.memo.remove(&(obj.as_ptr() as usize));
        }
        drop((pieces, node));
    }

    /// The kind of an object that has gone through a reducer, by its class.
    pub fn kind_of(&mut self, class: &Bound<'_, PyType>) -> PyResult<Kind> {
        let key = class.as_ptr() as usize;
        if let Some(kind) = self.shadow().kinds.get(&key) {
            return Ok(*kind);
        }
        let kind = kind_of_class(class)?;
        self.held.push(class.clone().into_any().unbind());
        self.shadow_mut().kinds.insert(key, kind);
        Ok(kind)
    }

    pub(super) fn number_in_shadow(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.memo.try_reserve(1).map_err(no_memory)?;
        let shadow = self.shadow_mut();
        let number = match shadow.free.pop() {
            Some(number) => number,
            None => u32::try_from(shadow.graph.nodes.len()).unwrap_or(NO_NUMBER),
        };
        if number >= FINGERPRINT_NUMBERS {
            return Err(PyValueError::new_err("too many objects for one snapshot"));
        }
        shadow.created.try_reserve(1).map_err(no_memory)?;
        shadow.graph.nodes.try_reserve(1).map_err(no_memory)?;
        shadow.created.push(number);
        let owned = Some(obj.clone().unbind());
        shadow.graph.insert(number, owned, Recorded::Leaf);
        self.memo
            .insert(obj.as_ptr() as usize, Known::Number(number));
        Ok(())
    }

    /// Writes a list that is `pieces` away from what the list with a number was.
    pub fn clone_list(
        &mut self,
        number: u32,
        list: &Bound<'_, PyAny>,
        recorded: Recorded,
        pieces: Vec<Piece>,
    ) -> PyResult<()> {
        self.put_number(op::CLONE_LIST, number);
        self.put(op::POP, 1);
        self.number(list)?;
        let shadow = self.shadow_mut();
        if let Some(&clone) = shadow.created.last() {
            drop(shadow.graph.record(clone, recorded));
            if !pieces.is_empty() {
                shadow.add_pending(clone, pieces);
            }
        }
        Ok(())
    }

    /// Records the object that got the latest number.
    pub(super) fn record(&mut self, obj: &Bound<'_, PyAny>, kind: Kind) -> PyResult<()> {
        let Some(shadow) = &mut self.shadow else {
            return Ok(());
        };
        let Some(&number) = shadow.created.last() else {
            return Ok(());
        };
        match shadow.graph.capture(kind, obj)? {
            Some(recorded) => drop(shadow.graph.record(number, recorded)),
            None => shadow.graph.is_untrackable = true,
        }
        Ok(())
    }

    /// Takes note of an object that a reducer has taken apart.
    pub(super) fn note_reduced(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.shadow.is_none() {
            return Ok(());
        }
        let class = obj.get_type();
        let mut kind = self.kind_of(&class)?;
        let plan = self.plans.get(&(class.as_ptr() as usize));
        if kind == Kind::Composite && !matches!(plan, Some((_, Plan::Reduce))) {
            // A registered reducer, or one of the instance's own, may leave out anything.
            kind = Kind::Custom;
        }
        let shadow = self.shadow_mut();
        match kind {
            Kind::Custom => shadow.graph.is_untrackable = true,
            Kind::Opaque | Kind::Deletable | Kind::NumpyRandom => {
                shadow.reduced.extend(shadow.created.last());
            }
            Kind::Array => match shadow.graph.capture(kind, obj)? {
                Some(recorded) => {
                    if let Some(&number) = shadow.created.last() {
                        drop(shadow.graph.record(number, recorded));
                    }
                }
                None => shadow.reduced.extend(shadow.created.last()),
            },
            Kind::Composite => {
                shadow.composites.extend(shadow.created.last());
                return self.record(obj, kind);
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins a container that has just got its number.
    pub(super) fn begin_recorded(
        &mut self,
        obj: &Bound<'_, PyAny>,
        kind: Kind,
    ) -> PyResult<Written> {
        self.record(obj, kind)?;
        self.begin_record(None)
    }

    /// Begins an instance that has just got its number.
    pub(super) fn begin_instance(
        &mut self,
        obj: &Bound<'_, PyAny>,
        shape: Arc<Shape>,
    ) -> PyResult<Written> {
        self.record(obj, Kind::Instance)?;
        self.begin_record(Some(shape))
    }

    fn begin_record(&mut self, shape: Option<Arc<Shape>>) -> PyResult<Written> {
        let shadow = self.shadow_mut();
        let Some(&number) = shadow.created.last() else {
            return Ok(Written::Yes);
        };
        let recorded = &shadow.graph.nodes[number as usize].recorded;
        if recorded.children().is_empty() {
            return Ok(Written::Yes);
        }
        let shape = shape.filter(|shape| match recorded {
            Recorded::Instance(layout, _) => layout.has_names(&shape.names),
            _ => false,
        });
        self.begin(Frame::Recorded {
            number,
            next: 0,
            shape,
        })
    }

    /// Encodes the parts of a recorded object until one of them needs a frame of its own.
    pub(super) fn step_recorded(
        &mut self,
        py: Python<'_>,
        number: u32,
        next: &mut usize,
        shape: Option<&Arc<Shape>>,
    ) -> PyResult<Written> {
        loop {
            if shape.is_none() {
                *next += self.recorded_floats(number, *next);
            }
            let part = self.part(number, *next, shape.is_some());
            let Some(part) = part else { break };
            *next += 1;
            // SAFETY: the record owns it, and stays as it is until Python code runs.
            let quick = self.quick(unsafe { Borrowed::from_ptr(py, part) });
            if !quick {
                // SAFETY: as above.
                let part = unsafe { Bound::from_borrowed_ptr(py, part) };
                if self.value(py, &part)? == Written::Pending {
                    return Ok(Written::Pending);
                }
            }
        }
        let recorded = &self.shadow_mut().graph.nodes[number as usize].recorded;
        let settled = |step: usize| {
            let keys = recorded.children().iter().step_by(step);
            keys.into_iter().all(|key| hash_is_settled(key.bind(py)))
        };
        let (code, count) = match recorded {
            Recorded::List(items) => (op::APPEND, items.len()),
            Recorded::Dict(items) if settled(2) => (op::SET_ITEMS, items.len() / 2),
            Recorded::Dict(items) => (op::SET_ITEMS_LATE, items.len() / 2),
            Recorded::Set(items) if settled(1) => (op::ADD, items.len()),
            Recorded::Set(items) => (op::ADD_LATE, items.len()),
            Recorded::Instance(_, values) => (op::ATTRIBUTES, values.len()),
            _ => return Ok(Written::Yes),
        };
        match shape {
            Some(shape) => self.put_fill(shape.number),
            None => self.put(code, count as u64),
        }
        Ok(Written::Yes)
    }

    /// The next part of a recorded object to be written.
    fn part(&mut self, number: u32, next: usize, has_shape: bool) -> Option<*mut ffi::PyObject> {
        let recorded = &self.shadow_mut().graph.nodes[number as usize].recorded;
        let part = match recorded {
            Recorded::Instance(layout, values) if !has_shape => match next % 2 {
                0 => layout.names.get(next / 2),
                _ => values.get(next / 2),
            },
            _ => recorded.children().get(next),
        };
        part.map(Py::as_ptr)
    }

    /// Writes the floats of a recorded list from `start` on; returns how many.
    fn recorded_floats(&mut self, number: u32, start: usize) -> usize {
        let Some(shadow) = &self.shadow else {
            return 0;
        };
        let Recorded::List(items) = &shadow.graph.nodes[number as usize].recorded else {
            return 0;
        };
        let run = items[start..]
            .iter()
            // SAFETY: live objects.
            .take_while(|item| unsafe { ffi::Py_TYPE(item.as_ptr()) } == &raw mut ffi::PyFloat_Type)
            .count();
        if run < 2 {
            return 0;
        }
        let buffer = &mut self.output.buffer;
        buffer.put_byte(op::FLOATS);
        buffer.put_varint(run as u64);
        for item in &items[start..start + run] {
            // SAFETY: an exact float.
            let value = unsafe { ffi::PyFloat_AsDouble(item.as_ptr()) };
            buffer.put_bytes(&value.to_le_bytes());
        }
        run
    }

    /// Writes a reference to an object together with what has changed in it.
    pub(super) fn changed(&mut self, obj: &Bound<'_, PyAny>, number: u32) -> PyResult<Written> {
        let Some(shadow) = &mut self.shadow else {
            self.put_ref(number);
            return Ok(Written::Yes);
        };
        let pieces = shadow.pending.remove(&number);
        self.memo
            .insert(obj.as_ptr() as usize, Known::Number(number));
        let Some(pieces) = pieces else {
            self.put_ref(number);
            return Ok(Written::Yes);
        };
        self.begin_update(number, pieces)
    }

    fn begin_update(&mut self, number: u32, pieces: Vec<Piece>) -> PyResult<Written> {
        let last = std::mem::replace(&mut self.shadow_mut().last_updated, number);
        let buffer = &mut self.output.buffer;
        buffer.put_byte(op::UPDATE);
        buffer.put_signed(i64::from(number) - i64::from(last));
        self.begin(Frame::Pieces {
            pieces: pieces.into_iter(),
        })
    }

    pub(super) fn step_pieces(
        &mut self,
        py: Python<'_>,
        pieces: &mut std::vec::IntoIter<Piece>,
    ) -> PyResult<Written> {
        for piece in pieces {
            match piece {
                Piece::Value(value) => {
                    if self.value(py, value.bind(py))? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                Piece::Code(code) => self.output.buffer.put_byte(code),
                Piece::Count(code, count) => self.put(code, count as u64),
                Piece::Splice(start, removed, count) => {
                    self.put(op::SPLICE, start as u64);
                    self.output.buffer.put_varint(removed as u64);
                    self.output.buffer.put_varint(count as u64);
                }
                Piece::Name(name) => {
                    let last = &self.shadow_mut().last_name;
                    if last.as_ref().is_some_and(|last| last.is(&name)) {
                        self.output.buffer.put_byte(op::LAST_NAME);
                    } else if self.value(py, name.bind(py))? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                Piece::SetAttribute(code, name) => {
                    self.output.buffer.put_byte(code);
                    self.shadow_mut().last_name = Some(name);
                }
                Piece::ReplaceLifted(start, count) => {
                    self.put(op::REPLACE_LIFTED, start as u64);
                    self.output.buffer.put_varint(count as u64);
                }
                Piece::Lift(places) => {
                    self.put(op::LIFT, places.len() as u64);
                    let mut expected = 0;
                    for place in places {
                        let place = place as i64;
                        self.output.buffer.put_signed(place - expected);
                        expected = place + 1;
                    }
                }
                Piece::Patches(patches) => self.put_counted(op::PATCH_ARRAY, &patches),
                Piece::Bytes(bytes) => self.put_counted(op::SET_BYTES, &bytes),
            }
        }
        Ok(Written::Yes)
    }

    /// Has all changes written before the frame on top, whose user code may come to see them.
    pub(super) fn begin_pending(&mut self) -> PyResult<Written> {
        if self
            .shadow
            .as_ref()
            .is_some_and(|shadow| !shadow.pending.is_empty())
        {
            self.begin(Frame::Pending)?;
        }
        Ok(Written::Pending)
    }

    pub(super) fn step_pending(&mut self) -> PyResult<Written> {
        loop {
            let shadow = self.shadow_mut();
            let Some(number) = shadow.order.pop() else {
                return Ok(Written::Yes);
            };
            // Else it is written where it was referred to, or its object is no more.
            let Some(mut pieces) = shadow.pending.remove(&number) else {
                continue;
            };
            let Some(obj) = &shadow.graph.nodes[number as usize].obj else {
                continue;
            };
            let address = obj.as_ptr() as usize;
            self.memo.insert(address, Known::Number(number));
            complete(&mut pieces);
            return self.begin_update(number, pieces);
        }
    }

    /// Marks objects as changed, so that a reference to one writes its change first.
    pub fn mark_pending(&mut self) {
        let Some(shadow) = &self.shadow else { return };
        for number in &shadow.order {
            if let Some(obj) = &shadow.graph.nodes[*number as usize].obj {
                self.memo
                    .insert(obj.as_ptr() as usize, Known::Changed(*number));
            }
        }
    }

    /// Writes all changes.
    pub fn write_pending(&mut self, py: Python<'_>) -> PyResult<()> {
        self.begin_pending()?;
        self.run_frames(py)
    }

    /// The fingerprint of an object: references to numbered objects by their numbers, all else
    /// (and texts) by value.
    pub fn fingerprint(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Fingerprint> {
        let address = obj.as_ptr() as usize;
        let shadow = self.shadow.take();
        let plans = std::mem::take(&mut self.plans);
        let shapes = std::mem::take(&mut self.shapes);
        let last_new = self.last_new.take();
        let output = std::mem::replace(&mut self.output, Output::in_memory());
        let objects = std::mem::replace(&mut self.objects, FINGERPRINT_NUMBERS);
        let known = self.memo.remove(&address);
        self.fingerprint = Some(FingerprintNotes::default());
        let first_held = self.held.len();

        let written = self.by_plan(py, obj).and_then(|_| self.run_frames(py));

        self.frames.clear();
        self.reductions.clear();
        self.reentries.clear();
        let own = self.held.split_off(first_held);
        for obj in &own {
            // Among them are classes, which may have had a number before.
            let key = obj.as_ptr() as usize;
            if matches!(self.memo.get(&key), Some(Known::Number(n)) if *n >= FINGERPRINT_NUMBERS) {
                self.memo.remove(&key);
            }
        }
        let notes = self.fingerprint.take().unwrap_or_default();
        self.memo.extend(notes.overwritten);
        self.memo.extend(known.map(|known| (address, known)));
        self.objects = objects;
        let output = std::mem::replace(&mut self.output, output);
        self.shapes = shapes;
        self.last_new = last_new;
        self.plans = plans;
        self.shadow = shadow;
        written?;
        let hash = |seed: u64| {
            let mut hasher = std::collections::hash_map::DefaultHasher::new();
            hasher.write_u64(seed);
            hasher.write(output.buffer.as_slice());
            // An equal container in the place of another is a change, too.
            notes.parts.hash(&mut hasher);
            hasher.finish()
        };
        Ok(Fingerprint {
            hash: [hash(0), hash(1)],
            parts: notes.parts.into(),
        })
    }
}

/// Adds that the object is no longer needed to the instructions of its update.
fn complete(pieces: &mut Vec<Piece>) {
    match pieces.last_mut() {
        Some(Piece::SetAttribute(code, _)) => *code = op::UPDATED_ATTRIBUTE,
        Some(Piece::Code(code)) if *code == op::SET_ITEM => *code = op::UPDATED_ITEM,
        _ => pieces.push(Piece::Code(op::UPDATED)),
    }
}
