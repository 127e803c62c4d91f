//! Encoding: a walk over the graph in pickle's order, on an explicit stack.
//!
//! Any call of Python code may change the graph or let another thread do so. Hence every object
//! of which a pointer is kept is owned (`held`, frames), containers are read by position with
//! their size checked anew, and nothing borrowed survives a call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFrozenSet, PyIterator, PyList, PySet, PyString, PyTuple, PyType,
};
use rustc_hash::FxHashMap;

use super::buffer::Buffer;
use super::errors::{owned, ForeignReferenceError};
use super::numbers::{NO_NUMBER, NO_OFFSET};
use super::output::{big_int_bytes, Output};
use super::path::{self, Step};
use super::runtime::Runtime;
use super::types::{hash_is_settled, plan, Plan, Reducers, Shape};
use crate::random_states::put_gauss;
use crate::wire::{op, Write};

/// What the memo knows of an object.
#[derive(Clone, Copy)]
enum Known {
    /// Its number in the snapshot.
    Number(u32),
    External(u32),
    Foreign,
}

/// Shapes per class before instances fall back to name-value pairs.
const MAX_SHAPES: usize = 8;
/// Items that pickle passes to `extend` and co. at a time; user code may notice.
const BATCH: u64 = 1000;
/// Reducers within reducers before the graph counts as endless.
const MAX_REDUCE_DEPTH: usize = 1_000_000;
/// Nested visits of one object through its own constructor arguments.
const MAX_REENTRY: u32 = 100;
/// Attributes of an instance that would take part in pickling it.
const INSTANCE_HOOKS: [&str; 5] = [
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
];

/// Objects in the latest snapshot: room to reserve for the next one.
static EXPECTED_OBJECTS: AtomicUsize = AtomicUsize::new(0);

/// How a dict's items are closed.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    Dict,
    Attributes,
}

/// An object whose parts are being encoded.
enum Frame {
    List {
        list: Py<PyAny>,
        next: usize,
    },
    Tuple {
        tuple: Py<PyAny>,
        next: usize,
    },
    Set {
        set: Py<PyAny>,
        elements: Py<PyIterator>,
        count: u64,
        settled: bool,
    },
    Dict {
        dict: Py<PyAny>,
        position: ffi::Py_ssize_t,
        len: ffi::Py_ssize_t,
        count: u64,
        key: Option<Py<PyAny>>,
        /// The value under `key`, while the key is being encoded.
        value: Option<Py<PyAny>>,
        settled: bool,
        target: Target,
    },
    Instance {
        dict: Py<PyAny>,
        shape: Arc<Shape>,
        position: ffi::Py_ssize_t,
        next: usize,
    },
    Reduce(Box<Reduction>),
    /// The list items of a reduction.
    Items {
        items: Py<PyIterator>,
        index: usize,
        count: u64,
    },
    /// The dict items of a reduction.
    Pairs {
        pairs: Py<PyIterator>,
        key: Option<Py<PyAny>>,
        value: Option<Py<PyAny>>,
        count: u64,
        settled: bool,
    },
}

/// What a reducer returned, and how far it is encoded.
struct Reduction {
    obj: Py<PyAny>,
    stage: Stage,
    callable: Py<PyAny>,
    arguments: Py<PyAny>,
    items: Option<Py<PyAny>>,
    pairs: Option<Py<PyAny>>,
    state: Option<Py<PyAny>>,
    setter: Option<Py<PyAny>>,
    /// The callable is `copyreg.__newobj__`, so the arguments begin with the class.
    newobj: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Callable,
    Arguments,
    Call,
    Items,
    Pairs,
    Setter,
    State,
    Build,
}

/// Whether a value is written, or a frame for it lies on the stack.
#[derive(PartialEq)]
enum Written {
    Yes,
    Pending,
}

#[pyclass(module = "pams_parallel._core")]
pub struct Encoder {
    output: Output,
    memo: FxHashMap<usize, Known>,
    /// Owns everything in `memo`, so that no address is used twice.
    held: Vec<Py<PyAny>>,
    objects: u32,
    plans: FxHashMap<usize, Plan>,
    shapes: u64,
    randoms: Vec<(u32, u64)>,
    reducers: Reducers,
    frames: Vec<Frame>,
    reduce_depth: usize,
    reentries: HashMap<usize, u32>,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Finished,
    Failed,
}

#[pymethods]
impl Encoder {
    #[new]
    #[pyo3(signature = (externals=None, foreign=None, reducers=None, sink=None, spill_bytes=262_144))]
    fn new(
        py: Python<'_>,
        externals: Option<&Bound<'_, PyAny>>,
        foreign: Option<&Bound<'_, PyAny>>,
        reducers: Option<&Bound<'_, PyAny>>,
        sink: Option<&Bound<'_, PyAny>>,
        spill_bytes: usize,
    ) -> PyResult<Self> {
        let runtime = Runtime::get(py)?;
        let additional = reducers
            .map(|reducers| -> PyResult<Py<PyDict>> {
                let copy = PyDict::new(py);
                copy.update(reducers.cast()?)?;
                Ok(copy.unbind())
            })
            .transpose()?;
        let copyreg = runtime
            .copyreg
            .bind(py)
            .getattr("dispatch_table")?
            .cast_into::<PyDict>()?
            .unbind();
        let mut encoder = Encoder {
            output: Output::new(sink, spill_bytes),
            memo: FxHashMap::default(),
            held: Vec::new(),
            objects: 0,
            plans: FxHashMap::default(),
            shapes: 0,
            randoms: Vec::new(),
            reducers: Reducers {
                additional,
                copyreg,
            },
            frames: Vec::new(),
            reduce_depth: 0,
            reentries: HashMap::new(),
            state: State::Open,
        };
        let mut index = 0;
        if let Some(externals) = externals {
            for obj in externals.try_iter()? {
                encoder.learn(&obj?, Known::External(index));
                index += 1;
            }
        }
        if let Some(foreign) = foreign {
            for obj in foreign.try_iter()? {
                encoder.learn(&obj?, Known::Foreign);
            }
        }
        Ok(encoder)
    }

    #[pyo3(signature = (obj, name=None))]
    fn add(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.require_open()?;
        let names = RootNames::new(obj, name)?;
        match self.walk(py, obj) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.state = State::Failed;
                let path = self.path(py, &names);
                // Dropping what the walk held can run user code; that is after the walk.
                self.frames.clear();
                Err(path::locate(py, error, &path))
            }
        }
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.require_open()?;
        self.output.buffer.push(op::END);
        self.state = State::Failed;
        let data = self.output.finish(py, self.objects)?;
        self.state = State::Finished;
        EXPECTED_OBJECTS.store(self.memo.len(), Ordering::Relaxed);
        Ok(data)
    }

    #[getter]
    fn size(&self) -> u64 {
        self.output.len()
    }

    #[pyo3(signature = (objs, /))]
    fn numbers_of<'py>(
        &self,
        py: Python<'py>,
        objs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut numbers = Vec::new();
        for obj in objs.try_iter()? {
            let number = self.number_of(&obj?).unwrap_or(NO_NUMBER);
            numbers.extend_from_slice(&number.to_le_bytes());
        }
        Ok(PyBytes::new(py, &numbers))
    }

    #[pyo3(signature = (prngs, /))]
    fn random_offsets<'py>(
        &self,
        py: Python<'py>,
        prngs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut offsets = Vec::new();
        for prng in prngs.try_iter()? {
            let offset = self
                .number_of(&prng?)
                .and_then(|number| {
                    let found = self.randoms.binary_search_by_key(&number, |entry| entry.0);
                    found.ok().map(|index| self.randoms[index].1)
                })
                .unwrap_or(NO_OFFSET);
            offsets.extend_from_slice(&offset.to_le_bytes());
        }
        Ok(PyBytes::new(py, &offsets))
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.held.iter().try_for_each(|obj| visit.call(obj))
    }

    fn __clear__(&mut self) {
        self.state = State::Failed;
        self.memo.clear();
        let held = std::mem::take(&mut self.held);
        drop(held);
    }
}

/// What error messages call a root.
enum RootNames {
    One(String),
    /// Names of the items of a tuple.
    Items(Vec<String>),
}

impl RootNames {
    fn new(obj: &Bound<'_, PyAny>, name: Option<&Bound<'_, PyAny>>) -> PyResult<RootNames> {
        let Some(name) = name else {
            return Ok(RootNames::One("obj".to_owned()));
        };
        if let Ok(names) = name.cast::<PyTuple>() {
            let items = obj.cast_exact::<PyTuple>().map(|items| items.len());
            if items.ok() != Some(names.len()) {
                return Err(PyValueError::new_err(
                    "a tuple of names needs a tuple of the same length",
                ));
            }
            return Ok(RootNames::Items(names.extract()?));
        }
        Ok(RootNames::One(name.extract()?))
    }
}

impl Encoder {
    fn require_open(&self) -> PyResult<()> {
        match self.state {
            State::Open => Ok(()),
            State::Finished => Err(PyValueError::new_err("the snapshot is finished")),
            State::Failed => Err(PyValueError::new_err(
                "the encoder is closed because something failed before",
            )),
        }
    }

    fn number_of(&self, obj: &Bound<'_, PyAny>) -> Option<u32> {
        match self.memo.get(&(obj.as_ptr() as usize)) {
            Some(Known::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn learn(&mut self, obj: &Bound<'_, PyAny>, known: Known) {
        self.memo.entry(obj.as_ptr() as usize).or_insert_with(|| {
            self.held.push(obj.clone().unbind());
            known
        });
    }

    /// Gives `obj` the next number.
    #[inline]
    fn number(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        let number = self.objects;
        if number == NO_NUMBER {
            return Err(PyValueError::new_err("too many objects for one snapshot"));
        }
        self.objects += 1;
        self.memo
            .insert(obj.as_ptr() as usize, Known::Number(number));
        self.held.push(obj.clone().unbind());
        Ok(())
    }

    #[inline]
    fn put(&mut self, code: u8, operand: u64) {
        self.output.buffer.push(code);
        self.output.buffer.put_varint(operand);
    }

    fn put_counted(&mut self, code: u8, bytes: &[u8]) {
        self.output.buffer.push(code);
        self.output.buffer.put_counted(bytes);
    }

    fn walk(&mut self, py: Python<'_>, root: &Bound<'_, PyAny>) -> PyResult<()> {
        let expected = EXPECTED_OBJECTS.load(Ordering::Relaxed);
        if self.objects == 0 && expected > self.memo.capacity() {
            // A guess too high costs room for a moment, a guess too low only time.
            self.memo.reserve(expected.min(1 << 20));
        }
        self.value(py, root)?;
        while let Some(mut frame) = self.frames.pop() {
            let depth = self.frames.len();
            match self.step(py, &mut frame) {
                Ok(Written::Yes) => {}
                Ok(Written::Pending) => self.frames.insert(depth, frame),
                Err(error) => {
                    self.frames.insert(depth, frame);
                    return Err(error);
                }
            }
            self.output.spill(py)?;
        }
        self.output.buffer.push(op::ROOT);
        Ok(())
    }

    /// Encodes the parts of `frame` until one of them needs a frame of its own.
    fn step(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        match frame {
            Frame::List { list, next } => {
                let list = list.bind(py).cast_exact::<PyList>()?;
                while *next < list.len() {
                    let index = *next;
                    let run = self.floats(list, index);
                    if run > 0 {
                        *next += run;
                        continue;
                    }
                    *next += 1;
                    if self.value(py, &list.get_item(index)?)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                self.put(op::APPEND, *next as u64);
            }
            Frame::Tuple { tuple, next } => {
                let tuple = tuple.bind(py).cast_exact::<PyTuple>()?;
                while *next < tuple.len() {
                    let item = tuple.get_item(*next)?;
                    *next += 1;
                    if self.value(py, &item)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                self.close_immutable(tuple, op::TUPLE, *next as u64)?;
            }
            Frame::Set {
                set,
                elements,
                count,
                settled,
            } => {
                for element in elements.bind(py).clone() {
                    let element = element?;
                    *count += 1;
                    *settled &= hash_is_settled(&element);
                    if self.value(py, &element)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                let set = set.bind(py);
                if set.is_exact_instance_of::<PyFrozenSet>() {
                    self.close_immutable(set, op::FROZENSET, *count)?;
                } else {
                    self.put(if *settled { op::ADD } else { op::ADD_LATE }, *count);
                }
            }
            Frame::Dict { .. } => return self.step_dict(py, frame),
            Frame::Instance { .. } => return self.step_instance(py, frame),
            Frame::Reduce(reduction) => return self.step_reduction(py, reduction),
            Frame::Items {
                items,
                index,
                count,
            } => {
                for item in items.bind(py).clone() {
                    let item = item?;
                    if *count == BATCH {
                        self.put(op::APPEND, BATCH);
                        *count = 0;
                    }
                    *index += 1;
                    *count += 1;
                    if self.value(py, &item)? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                if *count > 0 {
                    self.put(op::APPEND, *count);
                }
            }
            Frame::Pairs {
                pairs,
                key,
                value,
                count,
                settled,
            } => loop {
                if let Some(value) = value.take() {
                    if self.value(py, value.bind(py))? == Written::Pending {
                        return Ok(Written::Pending);
                    }
                }
                *key = None;
                let next = pairs.bind(py).clone().next().transpose()?;
                if next.is_none() || *count == BATCH {
                    let code = if *settled {
                        op::SET_ITEMS
                    } else {
                        op::SET_ITEMS_LATE
                    };
                    if *count > 0 {
                        self.put(code, *count);
                    }
                    (*count, *settled) = (0, true);
                }
                let Some(pair) = next else { break };
                let pair = pair.cast_into::<PyTuple>().ok();
                let Some(pair) = pair.filter(|pair| pair.len() == 2) else {
                    return Err(PyTypeError::new_err(
                        "dict items iterator must return 2-tuples",
                    ));
                };
                let next_key = pair.get_item(0)?;
                *settled &= hash_is_settled(&next_key);
                *key = Some(next_key.clone().unbind());
                *value = Some(pair.get_item(1)?.unbind());
                *count += 1;
                if self.value(py, &next_key)? == Written::Pending {
                    return Ok(Written::Pending);
                }
            },
        }
        Ok(Written::Yes)
    }

    fn step_dict(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        let Frame::Dict {
            dict,
            position,
            len,
            count,
            key,
            value,
            settled,
            target,
        } = frame
        else {
            unreachable!("called for dict frames only");
        };
        let dict = dict.bind(py);
        loop {
            if let Some(value) = value.take() {
                if self.value(py, value.bind(py))? == Written::Pending {
                    return Ok(Written::Pending);
                }
            }
            *key = None;
            let Some((next_key, next_value)) = next_item(dict, position, *len)? else {
                break;
            };
            *count += 1;
            if *target == Target::Dict && *settled && !is_common_key(&next_key) {
                *settled = hash_is_settled(&next_key);
            }
            let keyed = next_key.clone().unbind();
            *key = Some(keyed);
            *value = Some(next_value.unbind());
            if self.value(py, &next_key)? == Written::Pending {
                return Ok(Written::Pending);
            }
        }
        let code = match target {
            Target::Attributes => op::ATTRIBUTES,
            Target::Dict if *settled => op::SET_ITEMS,
            Target::Dict => op::SET_ITEMS_LATE,
        };
        self.put(code, *count);
        Ok(Written::Yes)
    }

    fn step_instance(&mut self, py: Python<'_>, frame: &mut Frame) -> PyResult<Written> {
        let Frame::Instance {
            dict,
            shape,
            position,
            next,
        } = frame
        else {
            unreachable!("called for instance frames only");
        };
        let dict = dict.bind(py);
        let len = shape.names.len();
        while let Some((name, value)) = next_item(dict, position, len as ffi::Py_ssize_t)? {
            if !shape
                .names
                .get(*next)
                .is_some_and(|expected| expected.is(&name))
            {
                return Err(changed_dict());
            }
            *next += 1;
            if self.value(py, &value)? == Written::Pending {
                return Ok(Written::Pending);
            }
        }
        if *next != len {
            return Err(changed_dict());
        }
        self.put(op::FILL, shape.number);
        Ok(Written::Yes)
    }

    fn step_reduction(&mut self, py: Python<'_>, reduction: &mut Reduction) -> PyResult<Written> {
        loop {
            let stage = reduction.stage;
            let written = match stage {
                Stage::Callable => {
                    reduction.stage = Stage::Arguments;
                    self.value(py, reduction.callable.bind(py))?
                }
                Stage::Arguments => {
                    reduction.stage = Stage::Call;
                    self.value(py, reduction.arguments.bind(py))?
                }
                Stage::Call => {
                    reduction.stage = Stage::Items;
                    let obj = reduction.obj.bind(py);
                    self.leave_arguments(obj);
                    if let Some(Known::Number(number)) = self.known(obj) {
                        // The arguments refer to the object, so it was completed within them.
                        self.put(op::POP, 2);
                        self.put(op::REF, u64::from(number));
                        self.reduce_depth -= 1;
                        return Ok(Written::Yes);
                    }
                    self.output.buffer.push(op::REDUCE);
                    self.number(obj)?;
                    Written::Yes
                }
                Stage::Items => {
                    reduction.stage = Stage::Pairs;
                    match reduction.items.take() {
                        None => Written::Yes,
                        Some(items) => {
                            self.frames.push(Frame::Items {
                                items: items.bind(py).cast::<PyIterator>()?.clone().unbind(),
                                index: 0,
                                count: 0,
                            });
                            Written::Pending
                        }
                    }
                }
                Stage::Pairs => {
                    reduction.stage = Stage::Setter;
                    match reduction.pairs.take() {
                        None => Written::Yes,
                        Some(pairs) => {
                            self.frames.push(Frame::Pairs {
                                pairs: pairs.bind(py).cast::<PyIterator>()?.clone().unbind(),
                                key: None,
                                value: None,
                                count: 0,
                                settled: true,
                            });
                            Written::Pending
                        }
                    }
                }
                Stage::Setter => {
                    reduction.stage = Stage::State;
                    match &reduction.setter {
                        Some(setter) if reduction.state.is_some() => {
                            self.value(py, setter.bind(py))?
                        }
                        _ => Written::Yes,
                    }
                }
                Stage::State => {
                    reduction.stage = Stage::Build;
                    match &reduction.state {
                        Some(state) => self.value(py, state.bind(py))?,
                        None => Written::Yes,
                    }
                }
                Stage::Build => {
                    if reduction.state.is_some() {
                        self.output.buffer.push(match reduction.setter {
                            Some(_) => op::STATE_SETTER,
                            None => op::BUILD,
                        });
                    }
                    self.reduce_depth -= 1;
                    return Ok(Written::Yes);
                }
            };
            if written == Written::Pending {
                return Ok(Written::Pending);
            }
        }
    }

    #[inline]
    fn known(&self, obj: &Bound<'_, PyAny>) -> Option<Known> {
        self.memo.get(&(obj.as_ptr() as usize)).copied()
    }

    /// Writes a value if that is possible without a frame, else pushes its frame.
    #[inline]
    fn value(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        if self.atom(obj)? {
            return Ok(Written::Yes);
        }
        match self.known(obj) {
            Some(Known::Number(number)) => {
                self.put(op::REF, u64::from(number));
                Ok(Written::Yes)
            }
            Some(Known::External(index)) => {
                self.put(op::EXTERNAL, u64::from(index));
                Ok(Written::Yes)
            }
            Some(Known::Foreign) => Err(ForeignReferenceError::new_err(format!(
                "a reference to an object that the other side does not have: {}",
                describe(obj)
            ))),
            None => self.first_visit(py, obj),
        }
    }

    /// Writes `None`, booleans, integers and floats, which have no number.
    #[inline]
    fn atom(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<bool> {
        let class = exact_type(obj);
        if class == &raw mut ffi::PyFloat_Type {
            // SAFETY: `obj` is an exact float.
            let value = unsafe { ffi::PyFloat_AsDouble(obj.as_ptr()) };
            self.output.buffer.push(op::FLOAT);
            self.output.buffer.extend_from_slice(&value.to_le_bytes());
        } else if class == &raw mut ffi::PyLong_Type {
            self.int(obj)?;
        } else if obj.is_none() {
            self.output.buffer.push(op::NONE);
        } else if class == &raw mut ffi::PyBool_Type {
            self.output.buffer.push(if obj.is_truthy()? {
                op::TRUE
            } else {
                op::FALSE
            });
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn int(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut overflow = 0;
        // SAFETY: `obj` is an exact int.
        let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(obj.as_ptr(), &raw mut overflow) };
        if overflow != 0 {
            self.put_counted(op::BIG_INT, big_int_bytes(obj)?.as_bytes());
        } else if (0..=op::SMALL_INT_MAX).contains(&value) {
            self.output.buffer.push(op::SMALL_INT + value as u8);
        } else {
            self.output.buffer.push(op::INT);
            self.output.buffer.put_zigzag(value);
        }
        Ok(())
    }

    /// Writes the floats from `start` on in one instruction; returns how many, 0 for fewer
    /// than two.
    fn floats(&mut self, list: &Bound<'_, PyList>, start: usize) -> usize {
        let len = list.len();
        let is_float = |index: usize| {
            // SAFETY: the index is below the length, and no Python code runs meanwhile.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) };
            // SAFETY: a list item is a live object.
            (unsafe { ffi::Py_TYPE(item) } == &raw mut ffi::PyFloat_Type).then_some(item)
        };
        let run = (start..len)
            .take_while(|&index| is_float(index).is_some())
            .count();
        if run < 2 {
            return 0;
        }
        self.put(op::FLOATS, run as u64);
        self.output.buffer.reserve(run * 8);
        for item in (start..start + run).map_while(is_float) {
            // SAFETY: `item` is an exact float.
            let value = unsafe { ffi::PyFloat_AsDouble(item) };
            self.output.buffer.extend_from_slice(&value.to_le_bytes());
        }
        run
    }

    /// Writes or begins an object that has no number yet.
    fn first_visit(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        if let Ok(text) = obj.cast_exact::<PyString>() {
            match text.to_str() {
                Ok(utf8) => self.put_counted(op::STR, utf8.as_bytes()),
                Err(_) => {
                    let encoded = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
                    let encoded = encoded.cast_into::<PyBytes>()?;
                    self.put_counted(op::STR_SURROGATES, encoded.as_bytes());
                }
            }
            self.number(obj)?;
        } else if let Ok(dict) = obj.cast_exact::<PyDict>() {
            self.output.buffer.push(op::DICT);
            self.number(obj)?;
            if !dict.is_empty() {
                self.frames.push(dict_frame(dict, Target::Dict));
                return Ok(Written::Pending);
            }
        } else if let Ok(list) = obj.cast_exact::<PyList>() {
            if self.atom_list(list)? {
                return Ok(Written::Yes);
            }
            self.output.buffer.push(op::LIST);
            self.number(obj)?;
            if !list.is_empty() {
                self.frames.push(Frame::List {
                    list: obj.clone().unbind(),
                    next: 0,
                });
                return Ok(Written::Pending);
            }
        } else if let Ok(tuple) = obj.cast_exact::<PyTuple>() {
            if tuple.is_empty() {
                self.output.buffer.push(op::EMPTY_TUPLE);
                return Ok(Written::Yes);
            }
            self.frames.push(Frame::Tuple {
                tuple: obj.clone().unbind(),
                next: 0,
            });
            return Ok(Written::Pending);
        } else if obj.is_exact_instance_of::<PySet>() || obj.is_exact_instance_of::<PyFrozenSet>() {
            if obj.is_exact_instance_of::<PySet>() {
                self.output.buffer.push(op::SET);
                self.number(obj)?;
            }
            self.frames.push(Frame::Set {
                set: obj.clone().unbind(),
                elements: obj.try_iter()?.unbind(),
                count: 0,
                settled: true,
            });
            return Ok(Written::Pending);
        } else if let Ok(bytes) = obj.cast_exact::<PyBytes>() {
            self.put_counted(op::BYTES, bytes.as_bytes());
            self.number(obj)?;
        } else if let Ok(bytes) = obj.cast_exact::<PyByteArray>() {
            // SAFETY: no Python code runs while the bytes are copied.
            self.put_counted(op::BYTEARRAY, unsafe { bytes.as_bytes() });
            self.number(obj)?;
        } else {
            return self.by_plan(py, obj);
        }
        Ok(Written::Yes)
    }

    /// Writes a list of nothing but atoms.
    fn atom_list(&mut self, list: &Bound<'_, PyList>) -> PyResult<bool> {
        let len = list.len();
        let atoms = [
            &raw mut ffi::PyFloat_Type,
            &raw mut ffi::PyLong_Type,
            &raw mut ffi::PyBool_Type,
            // SAFETY: None is a live object.
            unsafe { ffi::Py_TYPE(ffi::Py_None()) },
        ];
        let all_atoms = (0..len).all(|index| {
            // SAFETY: the index is below the length, and no Python code runs meanwhile.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) };
            // SAFETY: a list item is a live object.
            atoms.contains(&unsafe { ffi::Py_TYPE(item) })
        });
        if len == 0 || !all_atoms {
            return Ok(false);
        }
        let mut index = 0;
        while index < len {
            let run = self.floats(list, index);
            if run == 0 {
                self.atom(&list.get_item(index)?)?;
            }
            index += run.max(1);
        }
        self.put(op::ATOM_LIST, len as u64);
        self.number(list)?;
        Ok(true)
    }

    /// Closes a tuple or frozenset, unless it was completed within its own items.
    fn close_immutable(&mut self, obj: &Bound<'_, PyAny>, code: u8, count: u64) -> PyResult<()> {
        if let Some(Known::Number(number)) = self.known(obj) {
            self.put(op::POP, count);
            self.put(op::REF, u64::from(number));
            return Ok(());
        }
        self.put(code, count);
        self.number(obj)
    }

    fn by_plan(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        let class = obj.get_type();
        let key = class.as_ptr() as usize;
        if !self.plans.contains_key(&key) {
            let plan = plan(&class, &self.reducers)?;
            self.held.push(class.clone().into_any().unbind());
            self.plans.insert(key, plan);
        }
        match &self.plans[&key] {
            Plan::Plain(_) => self.instance(py, obj, &class),
            Plan::Random => self.random(py, obj),
            Plan::Global => self.pickled(py, obj, None),
            Plan::PickleBuffer => self.pickle_buffer(py, obj),
            Plan::Reducer(reducer) => {
                let reducer = reducer.clone_ref(py);
                let reduced = reducer.call1(py, (obj,))?;
                self.reduced(py, obj, reduced.bind(py), Some(reducer))
            }
            Plan::Reduce => self.reduce(py, obj),
        }
    }

    /// Begins an instance of a plain class.
    fn instance(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        class: &Bound<'_, PyType>,
    ) -> PyResult<Written> {
        // SAFETY: `obj` is a live object.
        let dict = unsafe {
            owned(
                py,
                ffi::PyObject_GenericGetDict(obj.as_ptr(), std::ptr::null_mut()),
            )
        };
        let dict = match dict {
            Ok(dict) => dict.into_bound(py),
            // Slots all the way down, and empty ones: no attributes at all.
            Err(_) => PyDict::new(py).into_any(),
        };
        let Ok(dict) = dict.cast_exact::<PyDict>() else {
            return self.reduce(py, obj);
        };
        let known = match self.plans.get(&(class.as_ptr() as usize)) {
            Some(Plan::Plain(plain)) => plain
                .shapes
                .iter()
                .rfind(|shape| has_names(dict, &shape.names))
                .cloned(),
            _ => None,
        };
        let shape = match known {
            Some(shape) => shape,
            None => match attribute_names(dict)? {
                Some(names) => self.define_shape(py, class, names)?,
                None => return self.reduce(py, obj),
            },
        };
        self.put(op::NEW, shape.number);
        self.number(obj)?;
        if dict.is_empty() {
            return Ok(Written::Yes);
        }
        self.frames.push(if has_names(dict, &shape.names) {
            Frame::Instance {
                dict: dict.clone().into_any().unbind(),
                shape,
                position: 0,
                next: 0,
            }
        } else {
            dict_frame(dict, Target::Attributes)
        });
        Ok(Written::Pending)
    }

    /// A new shape of `class`, or any of its shapes if the names are too unusual or too varied
    /// for a shape of their own.
    fn define_shape(
        &mut self,
        py: Python<'_>,
        class: &Bound<'_, PyType>,
        names: Names,
    ) -> PyResult<Arc<Shape>> {
        let key = class.as_ptr() as usize;
        let Some(Plan::Plain(plain)) = self.plans.get(&key) else {
            unreachable!("shapes are defined for plain classes");
        };
        let names = match names {
            Names::Usual(names) if plain.shapes.len() < MAX_SHAPES => names,
            _ => match plain.shapes.first() {
                Some(shape) => return Ok(shape.clone()),
                None => Vec::new(),
            },
        };
        self.value(py, class)?;
        self.put(op::SHAPE, names.len() as u64);
        for name in &names {
            let name = name.bind(py).cast::<PyString>()?.to_str()?;
            self.output.buffer.put_counted(name.as_bytes());
        }
        let shape = Arc::new(Shape {
            number: self.shapes,
            names,
        });
        self.shapes += 1;
        if let Some(Plan::Plain(plain)) = self.plans.get_mut(&key) {
            plain.shapes.push(shape.clone());
        }
        Ok(shape)
    }

    fn random(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        let Some(layout) = &Runtime::get(py)?.random else {
            return self.reduce(py, obj);
        };
        let Some((position, words)) = layout.read(obj)? else {
            return self.reduce(py, obj);
        };
        self.output.buffer.push(op::RANDOM);
        put_gauss(&mut self.output.buffer, position.gauss_next);
        self.output
            .buffer
            .extend_from_slice(&position.index.to_le_bytes());
        self.randoms.push((self.objects, self.output.len()));
        self.output.buffer.extend_from_slice(&words);
        self.number(obj)?;
        Ok(Written::Yes)
    }

    /// Writes an object as pickle does, with `reducer` if it needs one that pickle does not know.
    fn pickled(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reducer: Option<Py<PyAny>>,
    ) -> PyResult<Written> {
        let runtime = Runtime::get(py)?;
        let data = match reducer {
            None => runtime.pickle_dumps.bind(py).call1((obj, 5))?,
            Some(reducer) => {
                let file = runtime.bytes_io.bind(py).call0()?;
                let pickler = runtime.pickler.bind(py).call1((&file, 5))?;
                let table = self.reducers.copyreg.bind(py).copy()?;
                table.set_item(obj.get_type(), reducer)?;
                pickler.setattr("dispatch_table", table)?;
                pickler.call_method1("dump", (obj,))?;
                file.call_method0("getvalue")?
            }
        };
        self.put_counted(op::PICKLED, data.cast::<PyBytes>()?.as_bytes());
        self.number(obj)?;
        Ok(Written::Yes)
    }

    fn pickle_buffer(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        let Ok(buffer) = Buffer::get(obj) else {
            return self.pickled(py, obj, None); // pickle has the right error
        };
        let code = if buffer.readonly() {
            op::BYTES
        } else {
            op::BYTEARRAY
        };
        // SAFETY: no Python code runs while the bytes are copied.
        self.put_counted(code, unsafe { buffer.bytes() });
        self.number(obj)?;
        Ok(Written::Yes)
    }

    fn reduce(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        if let Some(method) = obj.getattr_opt(intern!(py, "__reduce_ex__"))? {
            let reduced = method.call1((5,))?;
            return self.reduced(py, obj, &reduced, None);
        }
        match obj.getattr_opt(intern!(py, "__reduce__"))? {
            Some(method) => self.reduced(py, obj, &method.call0()?, None),
            None => self.pickled(py, obj, None), // pickle has the right error
        }
    }

    /// Begins an object with what its reducer returned.
    fn reduced(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reduced: &Bound<'_, PyAny>,
        reducer: Option<Py<PyAny>>,
    ) -> PyResult<Written> {
        if reduced.is_instance_of::<PyString>() {
            return self.pickled(py, obj, reducer);
        }
        let Some(reduction) = Reduction::parse(py, obj, reduced)? else {
            // Malformed: let pickle say what is wrong with it.
            self.pickled(py, obj, reducer)?;
            return Err(PyRuntimeError::new_err(
                "pickle accepts a reducer's result that this package does not understand",
            ));
        };
        let entry = self.reentries.entry(obj.as_ptr() as usize).or_insert(0);
        *entry += 1;
        self.reduce_depth += 1;
        if *entry > MAX_REENTRY || self.reduce_depth > MAX_REDUCE_DEPTH {
            return Err(PyRecursionError::new_err(format!(
                "{} contains itself in the arguments that its reducer returns",
                describe(obj)
            )));
        }
        self.frames.push(Frame::Reduce(Box::new(reduction)));
        Ok(Written::Pending)
    }

    fn leave_arguments(&mut self, obj: &Bound<'_, PyAny>) {
        let key = obj.as_ptr() as usize;
        if let Some(entry) = self.reentries.get_mut(&key) {
            *entry -= 1;
            if *entry == 0 {
                self.reentries.remove(&key);
            }
        }
    }

    /// Path from the root to the object that is being encoded.
    fn path(&self, py: Python<'_>, names: &RootNames) -> String {
        let mut steps = Vec::new();
        // The dict of a state holds attributes, also inside the `(state, slots)` pair.
        let mut in_state = false;
        // The arguments of `__newobj__` begin with the class.
        let mut in_newobj = false;
        for frame in &self.frames {
            let was_in_state = std::mem::replace(&mut in_state, false);
            let skipped = 1 + usize::from(std::mem::replace(&mut in_newobj, false));
            match frame {
                Frame::List { next, .. } => steps.push(Step::Index(next.saturating_sub(1))),
                Frame::Tuple { tuple, next } => {
                    let pair = tuple
                        .bind(py)
                        .cast::<PyTuple>()
                        .is_ok_and(|tuple| tuple.len() == 2);
                    if was_in_state && pair {
                        in_state = true;
                    } else {
                        steps.push(Step::Index(next.saturating_sub(skipped)));
                    }
                }
                Frame::Set { .. } => steps.push(Step::Element),
                Frame::Dict {
                    key, value, target, ..
                } => match (key, value) {
                    (Some(_), Some(_)) => steps.push(Step::DictKey),
                    (Some(key), None) => {
                        let attribute = was_in_state || *target == Target::Attributes;
                        let key = key.bind(py);
                        steps.push(if attribute {
                            Step::attribute(key)
                        } else {
                            Step::key(key)
                        });
                    }
                    (None, _) => {}
                },
                Frame::Pairs { key, value, .. } => match (key, value) {
                    (Some(_), Some(_)) => steps.push(Step::DictKey),
                    (Some(key), None) => steps.push(Step::key(key.bind(py))),
                    (None, _) => {}
                },
                Frame::Instance { shape, next, .. } => {
                    if let Some(name) = shape.names.get(next.saturating_sub(1)) {
                        steps.push(Step::attribute(name.bind(py)));
                    }
                }
                Frame::Items { index, .. } => steps.push(Step::Index(index.saturating_sub(1))),
                Frame::Reduce(reduction) => match reduction.stage {
                    // The stage is the one after what is being encoded.
                    Stage::Arguments => steps.push(Step::Reduced("callable")),
                    Stage::Call if reduction.newobj => in_newobj = true,
                    Stage::Call => steps.push(Step::Reduced("arguments")),
                    Stage::State => steps.push(Step::Reduced("state setter")),
                    Stage::Build => in_state = true,
                    _ => {}
                },
            }
        }
        match names {
            RootNames::One(name) => path::join(name, &steps),
            RootNames::Items(items) => match steps.first() {
                Some(Step::Index(index)) if *index < items.len() => {
                    path::join(&items[*index], &steps[1..])
                }
                _ => path::join("obj", &steps),
            },
        }
    }
}

impl Reduction {
    /// `None` if the value is not what a reducer may return.
    fn parse(
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reduced: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Reduction>> {
        let Ok(parts) = reduced.cast::<PyTuple>() else {
            return Ok(None);
        };
        if !(2..=6).contains(&parts.len()) {
            return Ok(None);
        }
        let part = |index: usize| -> PyResult<Option<Py<PyAny>>> {
            if index >= parts.len() {
                return Ok(None);
            }
            let part = parts.get_item(index)?;
            Ok((!part.is_none()).then(|| part.unbind()))
        };
        let (Some(mut callable), Some(arguments)) = (part(0)?, part(1)?) else {
            return Ok(None);
        };
        let (state, items, pairs, setter) = (part(2)?, part(3)?, part(4)?, part(5)?);
        let is_iterator = |part: &Option<Py<PyAny>>| {
            part.as_ref()
                .is_none_or(|part| part.bind(py).cast::<PyIterator>().is_ok())
        };
        let Ok(argument_tuple) = arguments.bind(py).cast::<PyTuple>() else {
            return Ok(None);
        };
        if !callable.bind(py).is_callable()
            || !is_iterator(&items)
            || !is_iterator(&pairs)
            || setter
                .as_ref()
                .is_some_and(|setter| !setter.bind(py).is_callable())
        {
            return Ok(None);
        }
        let runtime = Runtime::get(py)?;
        // pickle goes by the name and has an instruction of its own for these two.
        let name = match callable.bind(py).getattr_opt(intern!(py, "__name__"))? {
            Some(name) => name.extract::<String>().unwrap_or_default(),
            None => String::new(),
        };
        let newobj = name == "__newobj__";
        if newobj || name == "__newobj_ex__" {
            let class_matches = argument_tuple.get_item(0).is_ok_and(|class| {
                obj.getattr(intern!(py, "__class__"))
                    .is_ok_and(|own| own.is(&class))
            });
            if !class_matches || (!newobj && argument_tuple.len() != 3) {
                return Ok(None);
            }
            callable = if newobj {
                runtime.newobj.clone_ref(py)
            } else {
                runtime.newobj_ex.clone_ref(py)
            };
        }
        Ok(Some(Reduction {
            obj: obj.clone().unbind(),
            stage: Stage::Callable,
            callable,
            arguments,
            items,
            pairs,
            state,
            setter,
            newobj,
        }))
    }
}

/// Attribute names of an instance.
enum Names {
    /// Strings that a shape can hold.
    Usual(Vec<Py<PyAny>>),
    /// Keys of other types, or strings that are not Unicode text.
    Unusual,
}

/// The names in an instance's dict; `None` if one of them takes part in pickling.
fn attribute_names(dict: &Bound<'_, PyDict>) -> PyResult<Option<Names>> {
    let mut names = Vec::with_capacity(dict.len());
    let mut usual = true;
    for (name, _) in dict.iter() {
        match name.cast_exact::<PyString>() {
            Ok(text) => match text.to_str() {
                Ok(text) if INSTANCE_HOOKS.contains(&text) => return Ok(None),
                Ok(_) => {}
                Err(_) => usual = false,
            },
            Err(_) => usual = false,
        }
        names.push(name.unbind());
    }
    Ok(Some(if usual {
        Names::Usual(names)
    } else {
        Names::Unusual
    }))
}

fn has_names(dict: &Bound<'_, PyDict>, names: &[Py<PyAny>]) -> bool {
    if dict.len() != names.len() {
        return false;
    }
    let mut position = 0;
    let mut name = std::ptr::null_mut();
    names.iter().all(|expected| {
        // SAFETY: `dict` is a live dict; no Python code runs between two calls.
        let found = unsafe {
            ffi::PyDict_Next(
                dict.as_ptr(),
                &raw mut position,
                &raw mut name,
                std::ptr::null_mut(),
            )
        };
        found != 0 && name == expected.as_ptr()
    })
}

fn dict_frame(dict: &Bound<'_, PyDict>, target: Target) -> Frame {
    Frame::Dict {
        dict: dict.clone().into_any().unbind(),
        position: 0,
        len: dict.len() as ffi::Py_ssize_t,
        count: 0,
        key: None,
        value: None,
        settled: true,
        target,
    }
}

/// The next item of a dict that must still have `len` items.
#[inline]
fn next_item<'py>(
    dict: &Bound<'py, PyAny>,
    position: &mut ffi::Py_ssize_t,
    len: ffi::Py_ssize_t,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: frames hold dicts only; PyDict_Next checks the position against the dict as it is.
    unsafe {
        if ffi::PyDict_Size(dict.as_ptr()) != len {
            return Err(changed_dict());
        }
        if ffi::PyDict_Next(
            dict.as_ptr(),
            std::ptr::from_mut(position),
            &raw mut key,
            &raw mut value,
        ) == 0
        {
            return Ok(None);
        }
        // Owned before anything else can change the dict.
        Ok(Some((
            Bound::from_borrowed_ptr(dict.py(), key),
            Bound::from_borrowed_ptr(dict.py(), value),
        )))
    }
}

fn changed_dict() -> PyErr {
    PyRuntimeError::new_err("dictionary changed size during iteration")
}

#[inline]
fn exact_type(obj: &Bound<'_, PyAny>) -> *mut ffi::PyTypeObject {
    // SAFETY: `obj` is a live object.
    unsafe { ffi::Py_TYPE(obj.as_ptr()) }
}

/// Strings and integers, whose hash never depends on anything else.
fn is_common_key(key: &Bound<'_, PyAny>) -> bool {
    let class = exact_type(key);
    class == &raw mut ffi::PyUnicode_Type || class == &raw mut ffi::PyLong_Type
}

/// An object for error messages, without calling its code.
fn describe(obj: &Bound<'_, PyAny>) -> String {
    let class = obj.get_type();
    match class.fully_qualified_name() {
        Ok(name) => format!("an object of type {name}"),
        Err(_) => "an object".to_owned(),
    }
}
