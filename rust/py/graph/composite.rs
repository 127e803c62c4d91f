//! Objects of several parts: slots, a `__dict__`, and what a built-in base class holds.
//!
//! These are the instances of classes with `__slots__`, of subclasses of `list`, `dict`, `set`
//! and `deque`, and the exact `deque`, `OrderedDict` and `defaultdict`, as long as pickle needs
//! none of their own code to copy them. They are made by their reducer, as pickle makes them, and
//! compared, changed and restored part by part.

use std::ffi::c_void;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
    PyType,
};

use super::recorded::{
    dict_is, for_each_item, list_items, own_dict, restore_dict, same_items, set_generically,
    set_items, Dicts, Items,
};
use crate::py::errors::status;
use crate::py::runtime::Runtime;
use crate::py::types::{has_default_hooks, is_subtype, slot};

/// What a class gets from a built-in base class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Object,
    List,
    Dict,
    DefaultDict,
    OrderedDict,
    Set,
    Deque,
    /// `str`, `int`, `tuple` etc.: what it holds never changes.
    Immutable,
}

/// How the instances of one class are taken apart.
pub struct Anatomy {
    pub class: Py<PyType>,
    pub base: Base,
    /// Names and descriptors of the slots.
    slots: Vec<(Py<PyString>, Py<PyAny>)>,
    has_dict: bool,
    /// Pickle copies slots and attributes.
    copies_attributes: bool,
}

/// The parts of an object. An absent slot is `None`.
pub struct Parts {
    slots: Box<[Option<Py<PyAny>>]>,
    /// Names and values in turn.
    attributes: Items,
    /// List items, keys and values in turn, or elements.
    items: Items,
    /// `default_factory` of a `defaultdict`, `maxlen` of a deque.
    setting: Option<Py<PyAny>>,
}

impl Anatomy {
    /// `None` if instances cannot be taken apart, because pickle would call code of the class.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<Option<Self>> {
        let py = class.py();
        let runtime = Runtime::get(py)?;
        let candidates = [
            (runtime.ordered_dict.bind(py).clone(), Base::OrderedDict),
            (runtime.default_dict.bind(py).clone(), Base::DefaultDict),
            (runtime.deque.bind(py).clone(), Base::Deque),
            (py.get_type::<PyList>(), Base::List),
            (py.get_type::<PyDict>(), Base::Dict),
            (py.get_type::<PySet>(), Base::Set),
            (py.get_type::<PyString>(), Base::Immutable),
            (py.get_type::<PyBytes>(), Base::Immutable),
            (py.get_type::<PyInt>(), Base::Immutable),
            (py.get_type::<PyFloat>(), Base::Immutable),
            (py.get_type::<PyComplex>(), Base::Immutable),
            (py.get_type::<PyTuple>(), Base::Immutable),
            (py.get_type::<PyFrozenSet>(), Base::Immutable),
            (py.get_type::<PyAny>(), Base::Object),
        ];
        let mut found = None;
        for (candidate, base) in candidates {
            if class.is_subclass(&candidate)? {
                found = Some((candidate, base));
                break;
            }
        }
        let Some((base_class, base)) = found else {
            return Ok(None);
        };
        // The reducer of `Counter` gives all of its items, too.
        let is_known = class.is(&base_class) || class.is(&runtime.counter);
        if !is_known && !has_default_hooks(class, &base_class)? {
            return Ok(None);
        }
        let mut slots: Vec<(Py<PyString>, Py<PyAny>)> = Vec::new();
        for parent in class.getattr("__mro__")?.cast_into::<PyTuple>()?.iter() {
            if is_subtype(&base_class, parent.cast::<PyType>()?) {
                continue;
            }
            let namespace = parent.getattr("__dict__")?;
            for name in namespace.call_method0("keys")?.try_iter()? {
                let name = name?;
                let member = namespace.get_item(&name)?;
                if member.get_type().is(&runtime.member_descriptor) {
                    if slots
                        .iter()
                        .any(|(other, _)| name.eq(other).unwrap_or(true))
                    {
                        return Ok(None); // pickle sees only one of the two
                    }
                    slots.push((name.cast_into::<PyString>()?.unbind(), member.unbind()));
                }
            }
        }
        let dict_offset: isize = class.getattr("__dictoffset__")?.extract()?;
        Ok(Some(Anatomy {
            base,
            slots,
            has_dict: dict_offset != 0,
            // The reducers of these two leave them out.
            copies_attributes: base != Base::DefaultDict
                && !class.is_subclass(runtime.counter.bind(py))?,
            class: class.clone().unbind(),
        }))
    }

    /// The parts of an instance.
    pub fn dissect(&self, obj: &Bound<'_, PyAny>) -> PyResult<Parts> {
        let py = obj.py();
        let slots = self
            .slots
            .iter()
            .map(|(_, member)| read(member.bind(py), obj));
        let mut attributes = Vec::new();
        if let Some(dict) = self.dict(obj) {
            for_each_item(&dict, |name, value| attributes.extend([name, value]));
        }
        Ok(Parts {
            slots: slots.collect(),
            attributes: attributes.into(),
            items: self.items(obj)?,
            setting: self.setting(obj)?,
        })
    }

    /// See [`Parts`]. Whatever the class overrides, it is that of the built-in base.
    fn setting(&self, obj: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let py = obj.py();
        let runtime = Runtime::get(py)?;
        let (class, name) = match self.base {
            Base::DefaultDict => (&runtime.default_dict, "default_factory"),
            Base::Deque => (&runtime.deque, "maxlen"),
            _ => return Ok(None),
        };
        let descriptor = class.bind(py).getattr(name)?;
        let value = descriptor.call_method1(intern!(py, "__get__"), (obj,))?;
        Ok(Some(value.unbind()))
    }

    /// Whether an object has this setting.
    fn setting_is(&self, obj: &Bound<'_, PyAny>, setting: Option<&Py<PyAny>>) -> bool {
        let py = obj.py();
        match (self.setting(obj), setting) {
            (Ok(Some(now)), Some(then)) => {
                // A length is another object every time, and an exact integer if it is not None.
                let is_equal = self.base == Base::Deque && now.bind(py).eq(then).unwrap_or(false);
                now.is(then) || is_equal
            }
            (now, then) => now.is_ok_and(|now| now.is_none()) && then.is_none(),
        }
    }

    fn restore_setting(&self, obj: &Bound<'_, PyAny>, setting: &Py<PyAny>) -> PyResult<()> {
        let py = obj.py();
        let runtime = Runtime::get(py)?;
        if self.base == Base::DefaultDict {
            let class = runtime.default_dict.bind(py);
            let descriptor = class.getattr(intern!(py, "default_factory"))?;
            descriptor.call_method1(intern!(py, "__set__"), (obj, setting))?;
        } else if !self.setting_is(obj, Some(setting)) {
            let init = self.base_method(py, "__init__")?;
            init.call1((obj, PyTuple::empty(py), setting))?;
        }
        Ok(())
    }

    fn dict<'py>(&self, obj: &Bound<'py, PyAny>) -> Option<Bound<'py, PyDict>> {
        if self.has_dict {
            own_dict(obj)
        } else {
            None
        }
    }

    fn items(&self, obj: &Bound<'_, PyAny>) -> PyResult<Items> {
        let py = obj.py();
        Ok(match self.base {
            Base::Object | Base::Immutable => Items::default(),
            Base::List => list_items(obj.cast::<PyList>()?),
            Base::Set => set_items(obj.cast::<PySet>()?)?,
            Base::Dict | Base::DefaultDict => {
                let mut items = Vec::new();
                for_each_item(obj.cast::<PyDict>()?, |key, value| {
                    items.extend([key, value])
                });
                items.into()
            }
            Base::OrderedDict => {
                let class = Runtime::get(py)?.ordered_dict.bind(py);
                let view = class.call_method1(intern!(py, "items"), (obj,))?;
                let mut items = Vec::new();
                for pair in view.try_iter()? {
                    let pair = pair?.cast_into::<PyTuple>()?;
                    items.extend([pair.get_item(0)?.unbind(), pair.get_item(1)?.unbind()]);
                }
                items.into()
            }
            Base::Deque => {
                let class = Runtime::get(py)?.deque.bind(py);
                let iterator = class.call_method1(intern!(py, "__iter__"), (obj,))?;
                let items = iterator.try_iter()?;
                items
                    .map(|item| item.map(Bound::unbind))
                    .collect::<PyResult<_>>()?
            }
        })
    }

    /// Whether an object still consists of these parts.
    pub fn is_still(&self, obj: &Bound<'_, PyAny>, parts: &Parts, dicts: Dicts) -> bool {
        let py = obj.py();
        if !obj.get_type().is(&self.class) {
            return false;
        }
        let slots_are = self
            .slots
            .iter()
            .zip(&parts.slots)
            .all(|((_, member), old)| {
                let now = read(member.bind(py), obj);
                let address = |value: &Option<Py<PyAny>>| value.as_ref().map(Py::as_ptr);
                address(&now) == address(old)
            });
        let attributes = &parts.attributes;
        let attributes_are = match self.dict(obj) {
            Some(dict) if !dicts.allow(&dict) => false,
            Some(dict) => dict_is(&dict, attributes.len() / 2, |at, name, value| {
                attributes[2 * at].as_ptr() == name && attributes[2 * at + 1].as_ptr() == value
            }),
            None => attributes.is_empty(),
        };
        slots_are
            && attributes_are
            && self.setting_is(obj, parts.setting.as_ref())
            && self
                .items(obj)
                .is_ok_and(|now| same_items(&now, &parts.items))
    }

    /// Gives an object these parts.
    pub fn restore(
        &self,
        obj: &Bound<'_, PyAny>,
        parts: &Parts,
        dropped: &mut Vec<Py<PyAny>>,
    ) -> PyResult<()> {
        let py = obj.py();
        if !obj.get_type().is(&self.class) {
            set_generically(obj, intern!(py, "__class__"), self.class.bind(py))?;
        }
        for ((_, member), value) in self.slots.iter().zip(&parts.slots) {
            dropped.extend(read(member.bind(py), obj));
            write(
                member.bind(py),
                obj,
                value.as_ref().map(|value| value.bind(py)),
            )?;
        }
        if self.has_dict {
            let attributes = parts.attributes.chunks_exact(2);
            restore_dict(obj, attributes.map(|pair| (&pair[0], &pair[1])), dropped)?;
        }
        if !same_items(&self.items(obj)?, &parts.items)
            || !self.setting_is(obj, parts.setting.as_ref())
        {
            dropped.extend(self.items(obj)?);
            dropped.extend(self.setting(obj)?);
            if let Some(setting) = &parts.setting {
                self.restore_setting(obj, setting)?;
            }
            self.refill(obj, parts)?;
        }
        Ok(())
    }

    /// Keys or elements among the parts.
    pub fn keys<'a>(&self, parts: &'a Parts) -> impl Iterator<Item = &'a Py<PyAny>> + Clone {
        let (items, step): (&[_], _) = match self.base {
            Base::Set => (&parts.items, 1),
            Base::Dict | Base::DefaultDict | Base::OrderedDict => (&parts.items, 2),
            _ => (&[], 1),
        };
        items.iter().step_by(step)
    }

    /// Puts the items in their places again.
    pub fn refill(&self, obj: &Bound<'_, PyAny>, parts: &Parts) -> PyResult<()> {
        self.clear_items(obj)?;
        self.add_items(obj, &parts.items)
    }

    /// Calls a method of the built-in base class, whatever the class overrides.
    fn base_method<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let runtime = Runtime::get(py)?;
        let class = match self.base {
            Base::Object | Base::Immutable => py.get_type::<PyAny>(),
            Base::List => py.get_type::<PyList>(),
            Base::Set => py.get_type::<PySet>(),
            Base::Dict | Base::DefaultDict => py.get_type::<PyDict>(),
            Base::OrderedDict => runtime.ordered_dict.bind(py).clone(),
            Base::Deque => runtime.deque.bind(py).clone(),
        };
        class.getattr(name)
    }

    fn clear_items(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        if !matches!(self.base, Base::Object | Base::Immutable) {
            self.base_method(obj.py(), "clear")?.call1((obj,))?;
        }
        Ok(())
    }

    fn add_items(&self, obj: &Bound<'_, PyAny>, items: &[Py<PyAny>]) -> PyResult<()> {
        let py = obj.py();
        match self.base {
            Base::Object | Base::Immutable => {}
            Base::List | Base::Deque => {
                let items = PyList::new(py, items)?;
                self.base_method(py, "extend")?.call1((obj, items))?;
            }
            Base::Set => {
                let add = self.base_method(py, "add")?;
                for item in items {
                    add.call1((obj, item))?;
                }
            }
            Base::Dict | Base::DefaultDict | Base::OrderedDict => {
                let set = self.base_method(py, "__setitem__")?;
                for pair in items.chunks_exact(2) {
                    set.call1((obj, &pair[0], &pair[1]))?;
                }
            }
        }
        Ok(())
    }

    /// The parts as a value that [`Anatomy::assemble`] takes, for the way to a replica.
    pub fn state<'py>(&self, py: Python<'py>, parts: &Parts) -> PyResult<Bound<'py, PyTuple>> {
        let present = self.slots.iter().zip(&parts.slots);
        let slots = PyDict::new(py);
        for ((name, _), value) in present {
            if let Some(value) = value.as_ref().filter(|_| self.copies_attributes) {
                slots.set_item(name, value)?;
            }
        }
        let attributes: &[Py<PyAny>] = match self.copies_attributes {
            true => &parts.attributes,
            false => &[],
        };
        (
            slots,
            PyTuple::new(py, attributes)?,
            PyTuple::new(py, &parts.items)?,
            &parts.setting,
        )
            .into_pyobject(py)
    }

    /// Gives an object the parts that a value of [`Anatomy::state`] describes; `None` if it is
    /// no such value.
    pub fn parse_state(&self, state: &Bound<'_, PyAny>) -> Option<Parts> {
        let py = state.py();
        let state = state.cast_exact::<PyTuple>().ok()?;
        let slots = state.get_item(0).ok()?.cast_into_exact::<PyDict>().ok()?;
        let items = |at| -> Option<Items> {
            let items = state.get_item(at).ok()?.cast_into_exact::<PyTuple>().ok()?;
            Some(items.iter().map(Bound::unbind).collect())
        };
        let value = |name: &Py<PyString>| slots.get_item(name.bind(py)).ok().flatten();
        let setting = state.get_item(3).ok()?;
        let names = self.slots.iter().map(|(name, _)| name);
        Some(Parts {
            slots: names.map(|name| value(name).map(Bound::unbind)).collect(),
            attributes: items(1)?,
            items: items(2)?,
            setting: matches!(self.base, Base::DefaultDict | Base::Deque).then(|| setting.unbind()),
        })
    }
}

impl Parts {
    /// Names of the attributes in the `__dict__`.
    pub fn names(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.attributes.iter().step_by(2)
    }

    /// Objects that the parts refer to.
    pub fn children(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let slots = self.slots.iter().flatten();
        slots
            .chain(&self.attributes)
            .chain(&self.items)
            .chain(&self.setting)
    }
}

/// The value of a slot, if it has one.
fn read(member: &Bound<'_, PyAny>, obj: &Bound<'_, PyAny>) -> Option<Py<PyAny>> {
    let get = slot(member.get_type().as_type_ptr(), ffi::Py_tp_descr_get);
    // SAFETY: tp_descr_get of a member descriptor is a descrgetfunc.
    let get = unsafe { std::mem::transmute::<*mut c_void, Option<ffi::descrgetfunc>>(get) }?;
    let class = obj.get_type();
    // SAFETY: three live objects; the descriptor checks that it fits the object.
    let value = unsafe {
        Bound::from_owned_ptr_or_err(obj.py(), get(member.as_ptr(), obj.as_ptr(), class.as_ptr()))
    };
    value.ok().map(Bound::unbind)
}

/// Sets or deletes the value of a slot.
fn write(
    member: &Bound<'_, PyAny>,
    obj: &Bound<'_, PyAny>,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let set = slot(member.get_type().as_type_ptr(), ffi::Py_tp_descr_set);
    // SAFETY: tp_descr_set of a member descriptor is a descrsetfunc.
    let set = unsafe { std::mem::transmute::<*mut c_void, Option<ffi::descrsetfunc>>(set) };
    let (Some(set), false) = (set, value.is_none() && read(member, obj).is_none()) else {
        return Ok(());
    };
    let value = value.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: live objects, or null for a deletion; the descriptor checks that it fits.
    status(obj.py(), unsafe {
        set(member.as_ptr(), obj.as_ptr(), value)
    })
}
