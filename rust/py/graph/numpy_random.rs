//! NumPy's generators: their state can be read and set.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::py::runtime::Runtime;

/// Whether instances of a class are generators of NumPy that this module can handle.
pub fn is_generator_class(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let runtime = Runtime::get(class.py())?;
    let is = |known: &Py<PyType>| class.is(known);
    // Subclasses in Python may have more to their state.
    let module: String = class.getattr("__module__")?.extract().unwrap_or_default();
    Ok(is(&runtime.numpy_generator)
        || is(&runtime.numpy_random_state)
        || module.starts_with("numpy.random.")
            && class.is_subclass(runtime.numpy_bit_generator.bind(class.py()))?)
}

/// The state of a generator, new objects all through.
pub fn state<'py>(generator: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = generator.py();
    let runtime = Runtime::get(py)?;
    if generator.get_type().is(&runtime.numpy_random_state) {
        let options = PyDict::new(py);
        options.set_item(intern!(py, "legacy"), false)?;
        return generator.call_method(intern!(py, "get_state"), (), Some(&options));
    }
    holder(generator)?.getattr(intern!(py, "state"))
}

/// Sets what [`state`] gave.
pub fn set_state(generator: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = generator.py();
    if generator
        .get_type()
        .is(&Runtime::get(py)?.numpy_random_state)
    {
        generator.call_method1(intern!(py, "set_state"), (state,))?;
        return Ok(());
    }
    holder(generator)?.setattr(intern!(py, "state"), state)
}

/// The state as bytes that can be compared.
pub fn pickled_state(generator: &Bound<'_, PyAny>) -> PyResult<Box<[u8]>> {
    let py = generator.py();
    let dumps = Runtime::get(py)?.pickle_dumps.bind(py);
    let pickled = dumps.call1((state(generator)?, 5))?;
    Ok(pickled.cast::<PyBytes>()?.as_bytes().into())
}

/// The object with the attribute `state`.
fn holder<'py>(generator: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = generator.py();
    if generator.get_type().is(&Runtime::get(py)?.numpy_generator) {
        generator.getattr(intern!(py, "bit_generator"))
    } else {
        Ok(generator.clone())
    }
}
