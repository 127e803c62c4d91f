//! Objects of other than the exact built-in types, each by the plan for its class.

use std::sync::Arc;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

use super::frames::{dict_frame, Frame, Reduction, Target, Written};
use super::profile::Profiled;
use super::values::describe;
use super::Encoder;
use crate::py::buffer::Buffer;
use crate::py::errors::{no_memory, owned};
use crate::py::graph::kind::Kind;
use crate::py::prefetch::prefetch;
use crate::py::runtime::Runtime;
use crate::py::types::{is_heap_type, plan, Plan, Shape, INSTANCE_HOOKS};
use crate::random_states::put_gauss;
use crate::wire::{op, Write};

/// Shapes per class before instances fall back to name-value pairs.
const MAX_SHAPES: usize = 8;
/// Reducers within reducers before the graph counts as endless.
const MAX_REDUCE_DEPTH: usize = 200_000;
/// Nested visits of one object through its own constructor arguments.
const MAX_REENTRY: u32 = 100;
impl Encoder {
    pub(super) fn by_plan(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        let class = obj.get_type();
        let key = class.as_ptr() as usize;
        let is_current = match self.plans.get(&key) {
            // These are right whatever hooks the class has.
            Some((_, Plan::Reduce | Plan::Global | Plan::PickleBuffer)) => true,
            Some((epoch, _)) => *epoch == self.epoch,
            None => false,
        };
        if !is_current {
            self.make_plan(&class)?;
        }
        match &self.plans[&key].1 {
            Plan::Plain(_) => self.instance(py, obj, &class),
            Plan::Random => self.random(py, obj),
            Plan::Global => self.pickled(py, obj, None),
            Plan::PickleBuffer => self.pickle_buffer(py, obj),
            Plan::Reducer(reducer) => {
                let reducer = reducer.clone_ref(py);
                self.epoch += 1;
                self.reduce(py, obj, Some(reducer))
            }
            Plan::Reduce => {
                if is_heap_type(&class) {
                    self.epoch += 1;
                }
                self.reduce(py, obj, None)
            }
        }
    }

    /// Makes or renews the plan for a class.
    fn make_plan(&mut self, class: &Bound<'_, PyType>) -> PyResult<()> {
        let mut plan = plan(class, &self.reducers)?;
        match self.plans.remove(&(class.as_ptr() as usize)) {
            Some((_, Plan::Plain(old))) => {
                if let Plan::Plain(new) = &mut plan {
                    new.shapes = old.shapes;
                }
            }
            Some(_) => {}
            None => self.held.push(class.clone().into_any().unbind()),
        }
        self.plans
            .insert(class.as_ptr() as usize, (self.epoch, plan));
        Ok(())
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
            return self.reduce(py, obj, None);
        };
        self.read_items(dict);
        let known = match self.plans.get(&(class.as_ptr() as usize)) {
            Some((_, Plan::Plain(plain))) => plain
                .shapes
                .iter()
                .rfind(|shape| has_names(&self.items, shape))
                .cloned(),
            _ => None,
        };
        if let Some(shape) = known {
            self.put_new(shape.number);
            self.number(obj)?;
            if self.shadow.is_some() {
                return self.begin_instance(obj, shape);
            }
            return self.first_attributes(py, dict, shape);
        }
        let Some(names) = attribute_names(dict)? else {
            return self.reduce(py, obj, None);
        };
        let shape = self.define_shape(py, class, names)?;
        self.put_new(shape.number);
        self.number(obj)?;
        if self.shadow.is_some() {
            return self.begin_instance(obj, shape);
        }
        // Pickling the class has run Python code.
        self.read_items(dict);
        if has_names(&self.items, &shape) {
            return self.first_attributes(py, dict, shape);
        }
        if dict.is_empty() {
            return Ok(Written::Yes);
        }
        self.begin(dict_frame(dict, Target::Attributes))
    }

    /// Reads an instance's dict into `items`. They are borrowed: they hold until Python code runs.
    fn read_items(&mut self, dict: &Bound<'_, PyDict>) {
        self.items.clear();
        let (mut name, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut position = 0;
        // SAFETY: `dict` is a live dict, and no Python code runs between two calls.
        while unsafe {
            ffi::PyDict_Next(
                dict.as_ptr(),
                &raw mut position,
                &raw mut name,
                &raw mut value,
            )
        } != 0
        {
            prefetch(value);
            self.items.push(Item {
                name: name as usize,
                value: value as usize,
                next_position: position,
            });
        }
    }

    /// Writes the attributes in `items` up to the first that could run Python code, and leaves
    /// the others to a frame.
    fn first_attributes(
        &mut self,
        py: Python<'_>,
        dict: &Bound<'_, PyDict>,
        shape: Arc<Shape>,
    ) -> PyResult<Written> {
        let items = std::mem::take(&mut self.items);
        let (mut position, mut next) = (0, 0);
        for item in &items {
            // SAFETY: the dict owns the value, and no Python code has run since it was read.
            let value = unsafe { Borrowed::from_ptr(py, item.value as *mut ffi::PyObject) };
            if !self.quick(value) && !self.unicode_text(&value)? {
                break;
            }
            position = item.next_position;
            next += 1;
        }
        let complete = next == items.len();
        self.items = items;
        if !complete {
            return self.begin(Frame::Instance {
                dict: dict.clone().into_any().unbind(),
                shape,
                position,
                next,
            });
        }
        if next > 0 {
            self.put_fill(shape.number);
        }
        Ok(Written::Yes)
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
        let Some((_, Plan::Plain(plain))) = self.plans.get(&key) else {
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
        self.put_shape(py, &names)?;
        let shape = Arc::new(Shape {
            number: self.shapes,
            names,
        });
        self.shapes += 1;
        if let Some((_, Plan::Plain(plain))) = self.plans.get_mut(&key) {
            plain.shapes.push(shape.clone());
        }
        Ok(shape)
    }

    /// Defines the next shape, of the class that has just been written.
    pub(super) fn put_shape(&mut self, py: Python<'_>, names: &[Py<PyAny>]) -> PyResult<()> {
        self.put(op::SHAPE, names.len() as u64);
        for name in names {
            let name = name.bind(py).cast::<PyString>()?.to_str()?;
            self.output.buffer.put_counted(name.as_bytes());
        }
        Ok(())
    }

    fn random(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Written> {
        let Some(layout) = &Runtime::get(py)?.random else {
            return self.reduce(py, obj, None);
        };
        let (output, number) = (&mut self.output, self.objects);
        let offset = layout.read(obj, |position, words| {
            output.buffer.put_byte(op::RANDOM);
            put_gauss(&mut output.buffer, position.gauss_next);
            output.buffer.put_bytes(&position.index.to_le_bytes());
            let offset = output.len();
            output.buffer.put_bytes(words);
            offset
        })?;
        let Some(offset) = offset else {
            return self.reduce(py, obj, None);
        };
        if self.shadow.is_none() {
            self.randoms.push((number, offset));
        }
        self.number(obj)?;
        self.record(obj, Kind::Random)?;
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

    /// Has an object go through `reducer`, or its `__reduce_ex__`.
    fn reduce(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reducer: Option<Py<PyAny>>,
    ) -> PyResult<Written> {
        if self.profile.is_some() {
            return self.begin(Profiled::frame(obj, reducer));
        }
        self.reduce_now(py, obj, reducer)
    }

    pub(super) fn reduce_now(
        &mut self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        reducer: Option<Py<PyAny>>,
    ) -> PyResult<Written> {
        if let Some(reducer) = reducer {
            let reduced = reducer.call1(py, (obj,))?;
            return self.reduced(py, obj, reduced.bind(py), Some(reducer));
        }
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
        let Some(mut reduction) = Reduction::parse(py, obj, reduced)? else {
            // Malformed: let pickle say what is wrong with it.
            self.pickled(py, obj, reducer)?;
            return Err(PyRuntimeError::new_err(
                "pickle accepts a reducer's result that this package does not understand",
            ));
        };
        if self.shadow.is_some() && self.kind_of(&obj.get_type())? == Kind::Composite {
            reduction.detach_state(py)?;
        }
        let entry = self.reentries.entry(obj.as_ptr() as usize).or_insert(0);
        *entry += 1;
        if *entry > MAX_REENTRY || self.reductions.len() >= MAX_REDUCE_DEPTH {
            return Err(PyRecursionError::new_err(format!(
                "{} contains itself in the arguments that its reducer returns",
                describe(obj)
            )));
        }
        self.reductions.try_reserve(2).map_err(no_memory)?;
        self.reductions.push(reduction);
        self.begin(Frame::Reduce)?;
        self.begin_pending()
    }

    pub(super) fn leave_arguments(&mut self, obj: &Bound<'_, PyAny>) {
        let key = obj.as_ptr() as usize;
        if let Some(entry) = self.reentries.get_mut(&key) {
            *entry -= 1;
            if *entry == 0 {
                self.reentries.remove(&key);
            }
        }
    }
}

/// An item of an instance's dict: addresses of name and value, and where `PyDict_Next` goes on.
pub(super) struct Item {
    name: usize,
    value: usize,
    next_position: ffi::Py_ssize_t,
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
    // A list of them, since looking at a name can make an exception and so run finalizers.
    for name in dict.keys().iter() {
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

fn has_names(items: &[Item], shape: &Shape) -> bool {
    items.len() == shape.names.len()
        && items
            .iter()
            .zip(&shape.names)
            .all(|(item, name)| item.name == name.as_ptr() as usize)
}
