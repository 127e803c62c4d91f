//! Reading numbers and items out of exact built-in objects.
//!
//! The limited API only has functions for this; builds for one Python version read the fields.

use pyo3::ffi::{self, PyObject, Py_ssize_t};

macro_rules! field {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $result:ty, $limited:ident, $full:ident) => {
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name(obj: *mut PyObject $(, $arg: $type)*) -> $result {
            #[cfg(feature = "abi3")]
            // SAFETY: the caller's promise.
            return unsafe { ffi::$limited(obj $(, $arg)*) };
            #[cfg(not(feature = "abi3"))]
            // SAFETY: the caller's promise.
            return unsafe { ffi::$full(obj $(, $arg)*) };
        }
    };
}

field! {
    /// # Safety
    ///
    /// `obj` must be a live exact `float`.
    float_value() -> f64, PyFloat_AsDouble, PyFloat_AS_DOUBLE
}
field! {
    /// Borrowed item.
    ///
    /// # Safety
    ///
    /// `obj` must be a live list that is longer than `index`.
    list_item(index: Py_ssize_t) -> *mut PyObject, PyList_GetItem, PyList_GET_ITEM
}
field! {
    /// Borrowed item.
    ///
    /// # Safety
    ///
    /// `obj` must be a live tuple that is longer than `index`.
    tuple_item(index: Py_ssize_t) -> *mut PyObject, PyTuple_GetItem, PyTuple_GET_ITEM
}
