//! Objects of the standard library that the walkers compare with or call, looked up once.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::list_memory::ListMemory;
use super::prefetch::DictMemory;
use super::random::RandomLayout;

pub struct Runtime {
    pub pickle_dumps: Py<PyAny>,
    pub pickle_loads: Py<PyAny>,
    pub pickler: Py<PyAny>,
    pub bytes_io: Py<PyAny>,
    pub pickling_error: Py<PyType>,
    pub unpickling_error: Py<PyType>,
    pub pickle_buffer: Py<PyType>,
    pub function: Py<PyType>,
    pub getset_descriptor: Py<PyType>,
    pub ordered_dict: Py<PyType>,
    pub counter: Py<PyType>,
    pub default_dict: Py<PyType>,
    pub deque: Py<PyType>,
    /// Hooks for pickle that the module `dataclasses` gives to classes.
    pub dataclass_hooks: Vec<Py<PyAny>>,
    pub member_descriptor: Py<PyType>,
    pub mmap: Py<PyType>,
    /// Some class that a `class` statement has made.
    pub python_class: Py<PyType>,
    pub copyreg: Py<PyAny>,
    pub newobj: Py<PyAny>,
    pub newobj_ex: Py<PyAny>,
    pub numpy_array: Py<PyType>,
    pub numpy_bit_generator: Py<PyType>,
    pub numpy_generator: Py<PyType>,
    pub numpy_random_state: Py<PyType>,
    pub numpy_number: Py<PyType>,
    pub numpy_inexact: Py<PyType>,
    pub lists: ListMemory,
    pub dicts: DictMemory,
    /// `None` where the memory layout of `random.Random` is not the expected one.
    pub random: Option<RandomLayout>,
}

static RUNTIME: PyOnceLock<Runtime> = PyOnceLock::new();

impl Runtime {
    pub fn get(py: Python<'_>) -> PyResult<&Runtime> {
        RUNTIME.get_or_try_init(py, || Runtime::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Runtime> {
        let attribute = |module: &str, name: &str| py.import(module)?.getattr(name);
        let class = |module: &str, name: &str| -> PyResult<Py<PyType>> {
            Ok(attribute(module, name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(Runtime {
            pickle_dumps: attribute("pickle", "dumps")?.unbind(),
            pickle_loads: attribute("pickle", "loads")?.unbind(),
            pickler: attribute("pickle", "Pickler")?.unbind(),
            bytes_io: attribute("io", "BytesIO")?.unbind(),
            pickling_error: class("pickle", "PicklingError")?,
            unpickling_error: class("pickle", "UnpicklingError")?,
            pickle_buffer: class("pickle", "PickleBuffer")?,
            function: class("types", "FunctionType")?,
            getset_descriptor: class("types", "GetSetDescriptorType")?,
            ordered_dict: class("collections", "OrderedDict")?,
            counter: class("collections", "Counter")?,
            default_dict: class("collections", "defaultdict")?,
            deque: class("collections", "deque")?,
            dataclass_hooks: ["_dataclass_getstate", "_dataclass_setstate"]
                .iter()
                .filter_map(|name| attribute("dataclasses", name).ok().map(Bound::unbind))
                .collect(),
            member_descriptor: class("types", "MemberDescriptorType")?,
            mmap: class("mmap", "mmap")?,
            python_class: class("fractions", "Fraction")?,
            copyreg: py.import("copyreg")?.into_any().unbind(),
            newobj: attribute("copyreg", "__newobj__")?.unbind(),
            newobj_ex: attribute("copyreg", "__newobj_ex__")?.unbind(),
            numpy_array: class("numpy", "ndarray")?,
            numpy_bit_generator: class("numpy.random", "BitGenerator")?,
            numpy_generator: class("numpy.random", "Generator")?,
            numpy_random_state: class("numpy.random", "RandomState")?,
            numpy_number: class("numpy", "number")?,
            numpy_inexact: class("numpy", "inexact")?,
            lists: ListMemory::detect(py)?,
            dicts: DictMemory::detect(py)?,
            random: RandomLayout::detect(py)?,
        })
    }
}
