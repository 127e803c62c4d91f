//! How instances of a type are encoded.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::runtime::Runtime;

/// Attributes of an instance that would take part in pickling it.
pub const INSTANCE_HOOKS: [&str; 5] = [
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
];

/// What the encoder does with the instances of one exact type.
pub enum Plan {
    /// Class and `__dict__` are the whole state.
    Plain(PlainPlan),
    /// An exact, unmodified `random.Random`.
    Random,
    /// A class, function or other global: as a pickle.
    Global,
    /// Through this function, from `copyreg` or the caller's reducers.
    Reducer(Py<PyAny>),
    /// Through `__reduce_ex__`.
    Reduce,
    /// A `pickle.PickleBuffer`: its bytes.
    PickleBuffer,
}

/// Shapes (sequences of attribute names) that instances of one plain class had so far.
#[derive(Default)]
pub struct PlainPlan {
    pub shapes: Vec<Arc<Shape>>,
}

/// A sequence of attribute names and its number in the snapshot.
pub struct Shape {
    pub number: u32,
    pub names: Vec<Py<PyAny>>,
}

/// Sources of reducers by type, as the pickler consults them.
pub struct Reducers {
    /// From the caller; they win.
    pub additional: Option<Py<PyDict>>,
    /// `copyreg.dispatch_table`.
    pub copyreg: Py<PyDict>,
}

impl Reducers {
    fn find(&self, class: &Bound<'_, PyType>) -> PyResult<Option<Py<PyAny>>> {
        let py = class.py();
        if let Some(additional) = &self.additional {
            if let Some(reducer) = additional.bind(py).get_item(class)? {
                return Ok(Some(reducer.unbind()));
            }
        }
        Ok(self.copyreg.bind(py).get_item(class)?.map(Bound::unbind))
    }
}

/// Chooses the plan for a type that is no exact built-in container or atom.
pub fn plan(class: &Bound<'_, PyType>, reducers: &Reducers) -> PyResult<Plan> {
    let py = class.py();
    let runtime = Runtime::get(py)?;
    // The order is pickle's: functions and the type of types before the reducers.
    if class.is(&runtime.pickle_buffer) {
        return Ok(Plan::PickleBuffer);
    }
    if class.is(py.get_type::<PyType>()) || class.is(&runtime.function) {
        return Ok(Plan::Global);
    }
    if let Some(reducer) = reducers.find(class)? {
        return Ok(Plan::Reducer(reducer));
    }
    if class.is_subclass_of::<PyType>()? {
        return Ok(Plan::Global);
    }
    if let Some(random) = &runtime.random {
        if class.as_type_ptr() == random.class_ptr() {
            return Ok(if random.is_pristine(py) {
                Plan::Random
            } else {
                Plan::Reduce
            });
        }
    }
    // A metaclass with a reducer of its own decides how the class itself travels.
    if is_plain(class)? && reducers.find(&class.get_type())?.is_none() {
        return Ok(Plan::Plain(PlainPlan::default()));
    }
    Ok(Plan::Reduce)
}

/// Whether instances consist of class and `__dict__` alone and pickle treats them so: made by
/// `class` statements without built-in bases, slots, or hooks that pickle or attribute access
/// would call.
pub fn is_plain(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let object = py.get_type::<PyAny>();
    if !is_heap_type(class) {
        return Ok(false);
    }
    for name in ["__reduce_ex__", "__reduce__", "__new__", "__getattribute__"] {
        if !inherits(class, &object, name)? {
            return Ok(false);
        }
    }
    // Python 3.11 gave `object` a `__getstate__`; before that nobody has one by default.
    if !inherits(class, &object, "__getstate__")? {
        return Ok(false);
    }
    for name in [
        "__setstate__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__getattr__",
    ] {
        if lookup(class, name)?.is_some() {
            return Ok(false);
        }
    }
    if !bases_are_plain(class, &object)? {
        return Ok(false);
    }
    // The test with which CPython refuses to copy objects that have memory of their own.
    let size = |name| -> PyResult<isize> { class.getattr(name)?.extract() };
    let mut expected: isize = object.getattr("__basicsize__")?.extract()?;
    for offset in ["__dictoffset__", "__weakrefoffset__"] {
        if size(offset)? > 0 {
            expected += size_of::<*mut c_void>() as isize;
        }
    }
    Ok(size("__itemsize__")? == 0 && size("__basicsize__")? <= expected)
}

/// Whether pickle copies instances without calling code of `class`: all that it would call is
/// what the built-in class `base` has.
pub fn has_default_hooks(class: &Bound<'_, PyType>, base: &Bound<'_, PyType>) -> PyResult<bool> {
    const CALLED: [&str; 5] = [
        "__reduce_ex__",
        "__reduce__",
        "__new__",
        "__getattribute__",
        "__getstate__",
    ];
    // To make an instance of a built-in class and to give it its items.
    const CALLED_FOR_ITEMS: [&str; 8] = [
        "__init__",
        "__iter__",
        "__setitem__",
        "add",
        "append",
        "extend",
        "items",
        "update",
    ];
    let has_items = !base.is(class.py().get_type::<PyAny>());
    let for_items = CALLED_FOR_ITEMS.iter().filter(|_| has_items);
    let runtime = Runtime::get(class.py())?;
    // What `dataclass(frozen=True, slots=True)` makes: all slots, and nothing else.
    let is_of_dataclass = |name: &str| -> PyResult<bool> {
        let Some(hook) = lookup(class, name)? else {
            return Ok(false);
        };
        Ok(runtime.dataclass_hooks.iter().any(|known| hook.is(known)))
    };
    for name in CALLED.iter().chain(for_items) {
        if !inherits(class, base, name)? && !is_of_dataclass(name)? {
            return Ok(false);
        }
    }
    for name in [
        "__setstate__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__getattr__",
    ] {
        if !inherits(class, base, name)? && !is_of_dataclass(name)? {
            return Ok(false);
        }
    }
    bases_are_usual(class, base, true)
}

fn bases_are_plain(class: &Bound<'_, PyType>, object: &Bound<'_, PyType>) -> PyResult<bool> {
    bases_are_usual(class, object, false)
}

/// Whether all bases apart from `root` and its own are made by `class` statements, with an
/// ordinary `__dict__` and `__class__`, and slots if they are `allowed`.
fn bases_are_usual(
    class: &Bound<'_, PyType>,
    root: &Bound<'_, PyType>,
    slots_are_allowed: bool,
) -> PyResult<bool> {
    let runtime = Runtime::get(class.py())?;
    let mro = class.getattr("__mro__")?.cast_into::<PyTuple>()?;
    for base in mro.iter() {
        let base = base.cast_into::<PyType>()?;
        if is_subtype(root, &base) {
            continue;
        }
        if !is_heap_type(&base) {
            return Ok(false);
        }
        let namespace = base.getattr("__dict__")?;
        if namespace.contains("__class__")? {
            return Ok(false);
        }
        if namespace.contains("__dict__")?
            && !namespace
                .get_item("__dict__")?
                .get_type()
                .is(&runtime.getset_descriptor)
        {
            return Ok(false);
        }
        if !slots_are_allowed
            && namespace.contains("__slots__")?
            && !declares_no_slots(&namespace.get_item("__slots__")?)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a `__slots__` names nothing but `__dict__` and `__weakref__`.
fn declares_no_slots(slots: &Bound<'_, PyAny>) -> PyResult<bool> {
    let harmless = |name: &Bound<'_, PyAny>| {
        name.extract::<String>()
            .is_ok_and(|name| name == "__dict__" || name == "__weakref__")
    };
    if slots.is_exact_instance_of::<pyo3::types::PyString>() {
        return Ok(harmless(slots));
    }
    match slots.cast_exact::<PyTuple>() {
        Ok(names) => Ok(names.iter().all(|name| harmless(&name))),
        Err(_) => Ok(false),
    }
}

/// Whether the name of an attribute is that of a hook for pickle.
pub fn is_instance_hook(name: &Bound<'_, PyAny>) -> bool {
    name.cast_exact::<PyString>().is_ok_and(|name| {
        name.to_str()
            .is_ok_and(|name| INSTANCE_HOOKS.contains(&name))
    })
}

pub fn lookup<'py>(class: &Bound<'py, PyType>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match class.getattr(name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_instance_of::<PyAttributeError>(class.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn inherits(class: &Bound<'_, PyType>, object: &Bound<'_, PyType>, name: &str) -> PyResult<bool> {
    Ok(match (lookup(class, name)?, lookup(object, name)?) {
        (Some(own), Some(default)) => own.is(&default),
        (None, None) => true,
        _ => false,
    })
}

/// Whether instances of a class have an attribute only if it is in their `__dict__`.
pub fn has_no_attribute(class: &Bound<'_, PyType>, name: &str) -> PyResult<bool> {
    // A metaclass can hide from a look at the class what instances find.
    let class_of_classes = class.py().get_type::<PyType>();
    Ok(
        inherits(&class.get_type(), &class_of_classes, "__getattribute__")?
            && is_plain(class)?
            && lookup(class, name)?.is_none(),
    )
}

/// Whether `base` is one of the classes that `class` was made from. Unlike `issubclass`, this runs no
/// code, as abstract base classes have, which can say anything and lets other threads run.
pub fn is_subtype(class: &Bound<'_, PyType>, base: &Bound<'_, PyType>) -> bool {
    // SAFETY: two live types.
    unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), base.as_type_ptr()) != 0 }
}

/// Whether a class was made at run time, as those of `class` statements are.
pub fn is_heap_type(class: &Bound<'_, PyType>) -> bool {
    // SAFETY: `class` is a live type.
    let flags = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    flags & ffi::Py_TPFLAGS_HEAPTYPE != 0
}

pub fn slot(class: *mut ffi::PyTypeObject, id: c_int) -> *mut c_void {
    // SAFETY: `class` is a live type and `id` a slot that exists since Python 3.3; from 3.10 on
    // static types are allowed too.
    unsafe { ffi::PyType_GetSlot(class, id) }
}

/// Whether the hash of `key` cannot change while objects that it refers to are being built.
pub fn hash_is_settled(key: &Bound<'_, PyAny>) -> bool {
    const DEPTH: usize = 8;
    settled(key, DEPTH)
}

fn settled(key: &Bound<'_, PyAny>, depth: usize) -> bool {
    if let Ok(items) = key.cast_exact::<PyTuple>() {
        return depth > 0 && items.iter().all(|item| settled(&item, depth - 1));
    }
    let class = key.get_type();
    if !is_heap_type(&class) {
        // Built-in types get their contents when they are created, except for containers.
        return !key.is_exact_instance_of::<pyo3::types::PyFrozenSet>();
    }
    let by_identity = slot(&raw mut ffi::PyBaseObject_Type, ffi::Py_tp_hash);
    slot(class.as_type_ptr(), ffi::Py_tp_hash) == by_identity
}

/// Makes an instance without calling `__init__`, as `object.__new__(class)` does.
///
/// `class` must be plain ([`is_plain`]).
pub fn new_plain<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    let new = slot(&raw mut ffi::PyBaseObject_Type, ffi::Py_tp_new);
    // SAFETY: tp_new of `object` is a newfunc.
    let new = unsafe { std::mem::transmute::<*mut c_void, ffi::newfunc>(new) };
    let no_arguments = PyTuple::empty(class.py());
    // SAFETY: instances of a plain class have the layout that `object.__new__` makes.
    unsafe {
        Bound::from_owned_ptr_or_err(
            class.py(),
            new(
                class.as_type_ptr(),
                no_arguments.as_ptr(),
                std::ptr::null_mut(),
            ),
        )
    }
}
