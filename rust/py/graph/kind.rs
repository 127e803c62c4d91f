//! Which kind of object the instances of a class are, as far as the shadow is concerned.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyFrozenSet, PyString, PyTuple, PyType};

use super::composite::Anatomy;
use super::numpy_random::is_generator_class;
use crate::py::runtime::Runtime;
use crate::py::types::{hash_is_settled, is_heap_type, slot};

/// What is recorded and compared of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It never changes.
    Leaf,
    List,
    Dict,
    Set,
    ByteArray,
    /// An instance of a plain class.
    Instance,
    Random,
    /// See [`super::composite`].
    Composite,
    /// A NumPy array, if it has plain memory.
    Array,
    /// A generator of NumPy.
    NumpyRandom,
    /// An array of JAX: immutable, but it can be deleted.
    Deletable,
    /// An object of a class written in C. Its state is what its reducer returns.
    Opaque,
    /// An instance of a class written in Python with hooks that pickle calls: there may be more
    /// to it than what pickle gets to see.
    Custom,
}

/// Classes whose instances never change, or whose changes do not belong to the graph.
struct LeafClasses {
    /// Exact.
    classes: Vec<Py<PyType>>,
    /// These and their subclasses.
    bases: Vec<Py<PyType>>,
    /// `numpy.void`, the one NumPy scalar that can be changed.
    numpy_void: Py<PyType>,
    numpy_generic: Py<PyType>,
}

static LEAF_CLASSES: PyOnceLock<LeafClasses> = PyOnceLock::new();

/// Built-in and standard library classes of immutable objects.
const LEAVES: &[(&str, &[&str])] = &[
    (
        "builtins",
        &[
            "bool",
            "bytes",
            "complex",
            "ellipsis",
            "float",
            "frozenset",
            "int",
            "range",
            "slice",
            "str",
            "tuple",
        ],
    ),
    (
        "types",
        &[
            "BuiltinFunctionType",
            "EllipsisType",
            "FunctionType",
            "MethodType",
            "NoneType",
            "NotImplementedType",
        ],
    ),
    (
        "datetime",
        &["date", "datetime", "time", "timedelta", "timezone"],
    ),
    ("decimal", &["Decimal"]),
    ("fractions", &["Fraction"]),
    ("re", &["Pattern"]),
    ("uuid", &["UUID"]),
    ("zoneinfo", &["ZoneInfo"]),
    ("numpy", &["dtype"]),
];

const LEAF_BASES: &[(&str, &str)] = &[
    ("builtins", "type"),
    ("enum", "Enum"),
    ("pathlib", "PurePath"),
    ("numpy", "dtype"),
];

impl LeafClasses {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        LEAF_CLASSES.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let class = |module: &str, name: &str| -> PyResult<Option<Py<PyType>>> {
            let found = py.import(module)?.getattr_opt(name)?;
            Ok(found.and_then(|class| class.cast_into::<PyType>().ok().map(Bound::unbind)))
        };
        let mut classes = Vec::new();
        for (module, names) in LEAVES {
            for name in *names {
                classes.extend(class(module, name)?);
            }
        }
        let mut bases = Vec::new();
        for (module, name) in LEAF_BASES {
            bases.extend(class(module, name)?);
        }
        let required = |name| -> PyResult<Py<PyType>> {
            Ok(py
                .import("numpy")?
                .getattr(name)?
                .cast_into::<PyType>()?
                .unbind())
        };
        Ok(LeafClasses {
            classes,
            bases,
            numpy_void: required("void")?,
            numpy_generic: required("generic")?,
        })
    }
}

/// Imports what [`kind_of_class`] needs, so that a walk need not, in which other threads would run.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    LeafClasses::get(py).map(|_| ())
}

/// The kind of an object of a class that is not plain; `Kind::Instance` is never returned.
pub fn kind_of_class(class: &Bound<'_, PyType>) -> PyResult<Kind> {
    let py = class.py();
    let leaves = LeafClasses::get(py)?;
    if leaves.classes.iter().any(|leaf| class.is(leaf)) {
        return Ok(Kind::Leaf);
    }
    for base in &leaves.bases {
        if class.is_subclass(base.bind(py))? {
            return Ok(Kind::Leaf);
        }
    }
    if class.is_subclass(leaves.numpy_generic.bind(py))?
        && !class.is_subclass(leaves.numpy_void.bind(py))?
        && !is_python_class(class)?
    {
        return Ok(Kind::Leaf);
    }
    if is_bare_immutable(class)? {
        return Ok(Kind::Leaf);
    }
    if is_jax_array(class)? {
        return Ok(Kind::Deletable);
    }
    if class.is(&Runtime::get(py)?.numpy_array) {
        return Ok(Kind::Array);
    }
    if is_generator_class(class)? {
        return Ok(Kind::NumpyRandom);
    }
    if Anatomy::of(class)?.is_some() {
        return Ok(Kind::Composite);
    }
    Ok(if is_python_class(class)? {
        Kind::Custom
    } else {
        Kind::Opaque
    })
}

/// Whether a class was made by a `class` statement (or `type`), not by an extension module.
fn is_python_class(class: &Bound<'_, PyType>) -> PyResult<bool> {
    // All such classes have the same deallocator, which no other type has.
    let known = Runtime::get(class.py())?.python_class.bind(class.py());
    let dealloc = |class: &Bound<'_, PyType>| slot(class.as_type_ptr(), ffi::Py_tp_dealloc);
    Ok(is_heap_type(class) && dealloc(class) == dealloc(known))
}

/// Whether instances are tuples, strings, numbers etc. without attributes of their own, e.g.
/// named tuples.
fn is_bare_immutable(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let bases = [
        py.get_type::<PyTuple>(),
        py.get_type::<PyString>(),
        py.get_type::<PyBytes>(),
        py.get_type::<PyFrozenSet>(),
        py.get_type::<pyo3::types::PyInt>(),
        py.get_type::<pyo3::types::PyFloat>(),
        py.get_type::<pyo3::types::PyComplex>(),
    ];
    let size = |class: &Bound<'_, PyType>, name: &str| -> PyResult<isize> {
        class.getattr(name)?.extract()
    };
    for base in bases {
        if class.is_subclass(&base)? {
            return Ok(
                size(class, "__dictoffset__")? == size(&base, "__dictoffset__")?
                    && size(class, "__basicsize__")? == size(&base, "__basicsize__")?,
            );
        }
    }
    Ok(false)
}

/// JAX is not imported for the comparison: without it there are no arrays of it either.
fn is_jax_array(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let text = |name: &str| -> PyResult<String> {
        Ok(class.getattr(name)?.extract::<String>().unwrap_or_default())
    };
    Ok(text("__name__")? == "ArrayImpl"
        && ["jax", "jaxlib"].contains(&text("__module__")?.split('.').next().unwrap_or("")))
}

/// Whether the hash of a key stays as it is, whatever else in the graph changes.
pub fn has_stable_hash(key: &Bound<'_, PyAny>) -> bool {
    hash_is_settled(key)
        || (!key.is_instance_of::<PyTuple>()
            && !key.is_instance_of::<PyFrozenSet>()
            && kind_of_class(&key.get_type()).is_ok_and(|kind| kind == Kind::Leaf))
}

/// Whether keys of a dict are compared without running code of the user's.
pub fn has_simple_keys<'a>(mut keys: impl Iterator<Item = &'a Py<PyAny>>) -> bool {
    keys.all(|key| {
        // SAFETY: a live object.
        let class = unsafe { ffi::Py_TYPE(key.as_ptr()) };
        class == &raw mut ffi::PyUnicode_Type || class == &raw mut ffi::PyLong_Type
    })
}
