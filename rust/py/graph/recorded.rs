//! What is recorded of an object, by kind: recording, comparing and restoring it.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyIterator, PyList, PySet, PyString, PyType};

use super::array::ArrayRecord;
use super::composite::{Anatomy, Parts};
use super::kind::{has_simple_keys, has_stable_hash, Kind};
use super::numpy_random::{pickled_state, set_state};
use crate::mersenne::STATE_LEN;
use crate::py::decoder::set_bytearray;
use crate::py::encoder::Fingerprint;
use crate::py::errors::status;
use crate::py::random::instance_dict;
use crate::py::runtime::Runtime;
use crate::py::types::{has_no_attribute, lookup, slot};
use crate::random_states::{KnownWords, Position};

/// Objects that an object consists of, by identity.
pub type Items = Box<[Py<PyAny>]>;

/// Class and attribute names of instances.
pub struct Layout {
    pub class: Py<PyType>,
    pub names: Items,
    /// Where `prng` stands among the names.
    pub prng: Option<usize>,
}

impl Layout {
    pub fn new(class: Bound<'_, PyType>, names: &[Py<PyAny>]) -> Self {
        let py = class.py();
        let is_prng = |name: &Py<PyAny>| {
            let name = name.bind(py).cast_exact::<PyString>();
            name.is_ok_and(|name| name.to_str().is_ok_and(|name| name == "prng"))
        };
        Layout {
            prng: names.iter().position(is_prng),
            class: class.unbind(),
            names: names.iter().map(|name| name.clone_ref(py)).collect(),
        }
    }

    pub fn has_names(&self, names: &[Py<PyAny>]) -> bool {
        same_items(&self.names, names)
    }

    /// Whether `prng` of an instance is the entry of its `__dict__`, if there is one.
    pub fn has_own_prng(&self, py: Python<'_>) -> PyResult<bool> {
        let found = lookup(self.class.bind(py), "prng")?;
        Ok(found.is_none_or(|found| {
            slot(found.get_type().as_type_ptr(), ffi::Py_tp_descr_set).is_null()
        }))
    }

    /// Whether instances certainly have no attribute with this name, neither of their own nor
    /// from their class.
    pub fn lacks(&self, name: &Bound<'_, PyString>) -> PyResult<bool> {
        let (py, name) = (name.py(), name.to_str()?);
        let class = self.class.bind(py);
        if !has_no_attribute(class, name)? {
            return Ok(false);
        }
        let is_another = |own: &Py<PyAny>| {
            let own = own.bind(py).cast_exact::<PyString>();
            own.is_ok_and(|own| own.to_str().is_ok_and(|own| own != name))
        };
        Ok(self.names.iter().all(is_another))
    }
}

fn are_settled<'a>(keys: impl Iterator<Item = &'a Py<PyAny>> + Clone) -> bool {
    has_simple_keys(keys.clone())
        || Python::attach(|py| keys.clone().all(|key| has_stable_hash(key.bind(py))))
}

/// State of a generator.
pub struct RandomRecord {
    pub position: Position,
    pub words: KnownWords,
}

impl RandomRecord {
    /// Whether this is the recorded state.
    pub fn is(&self, position: Position, words: &[u8; STATE_LEN]) -> bool {
        position.is(self.position) && self.words.are(words)
    }
}

/// Which `__dict__` an instance may have to be as recorded.
#[derive(Clone, Copy, PartialEq)]
pub enum Dicts {
    /// Any exact dict: a user's instances can share one.
    Any,
    /// One that nobody else refers to, as each instance of a replica has.
    Own,
}

impl Dicts {
    /// Whether an instance may have this dict, to which the caller has the only other reference.
    pub fn allow(self, dict: &Bound<'_, PyDict>) -> bool {
        dict.is_exact_instance_of::<PyDict>() && (self == Dicts::Any || is_only_owner(dict))
    }
}

/// What an object consisted of when it was recorded.
#[derive(Default)]
pub enum Recorded {
    /// Nothing is compared.
    #[default]
    Leaf,
    List(Vec<Py<PyAny>>),
    /// Keys and values in turn.
    Dict(Items),
    /// In the order of iteration.
    Set(Items),
    ByteArray(Box<[u8]>),
    /// Values of the attributes that the layout names.
    Instance(Arc<Layout>, Items),
    Random(Box<RandomRecord>),
    Composite(Arc<Anatomy>, Box<Parts>),
    Array(Box<ArrayRecord>),
    /// The pickled state.
    NumpyRandom(Box<[u8]>),
    /// A JAX array that was alive.
    Deletable,
    /// What the reducer returned.
    Opaque(Fingerprint),
}

impl Recorded {
    /// What an object of this kind consists of now; `None` if it is not what the kind promises.
    /// Instances go through [`super::Graph::capture`].
    pub fn capture(kind: Kind, obj: &Bound<'_, PyAny>) -> PyResult<Option<Recorded>> {
        Ok(Some(match kind {
            Kind::List => Recorded::List(list_items(obj.cast_exact::<PyList>()?).into()),
            Kind::Dict => Recorded::Dict(dict_items(obj.cast_exact::<PyDict>()?)),
            Kind::Set => Recorded::Set(set_items(obj.cast_exact::<PySet>()?)?),
            Kind::ByteArray => {
                let bytes = obj.cast_exact::<PyByteArray>()?;
                // SAFETY: no Python code runs while the bytes are copied.
                Recorded::ByteArray(unsafe { bytes.as_bytes() }.into())
            }
            Kind::Random => {
                let Some(layout) = &Runtime::get(obj.py())?.random else {
                    return Ok(None);
                };
                if !layout.is_exact(obj) {
                    return Ok(None);
                }
                let record = layout.read(obj, |position, words| {
                    Box::new(RandomRecord {
                        position,
                        words: KnownWords::new(words),
                    })
                })?;
                return Ok(record.map(Recorded::Random));
            }
            Kind::Array => {
                return Ok(ArrayRecord::capture(obj)?
                    .map(Box::new)
                    .map(Recorded::Array))
            }
            Kind::NumpyRandom => Recorded::NumpyRandom(pickled_state(obj)?),
            Kind::Deletable => Recorded::Deletable,
            // The last two go through the graph, which knows their classes.
            Kind::Leaf | Kind::Opaque | Kind::Custom | Kind::Instance | Kind::Composite => {
                Recorded::Leaf
            }
        }))
    }

    /// Whether [`Recorded::is_still`] compares anything.
    pub fn is_compared(&self) -> bool {
        !matches!(
            self,
            Recorded::Leaf | Recorded::NumpyRandom(_) | Recorded::Deletable | Recorded::Opaque(_)
        )
    }

    /// The kind to record the object as again.
    pub fn kind(&self) -> Kind {
        match self {
            Recorded::Leaf => Kind::Leaf,
            Recorded::List(_) => Kind::List,
            Recorded::Dict(_) => Kind::Dict,
            Recorded::Set(_) => Kind::Set,
            Recorded::ByteArray(_) => Kind::ByteArray,
            Recorded::Instance(..) => Kind::Instance,
            Recorded::Random(_) => Kind::Random,
            Recorded::Composite(..) => Kind::Composite,
            Recorded::Array(_) => Kind::Array,
            Recorded::NumpyRandom(_) => Kind::NumpyRandom,
            Recorded::Deletable => Kind::Deletable,
            Recorded::Opaque(_) => Kind::Opaque,
        }
    }

    /// Records a generator anew. `None` if this is no generator, or none any more whose state can be
    /// read.
    pub fn refresh_random(&mut self, obj: &Bound<'_, PyAny>) -> PyResult<Option<()>> {
        let Recorded::Random(record) = self else {
            return Ok(None);
        };
        let Some(layout) = &Runtime::get(obj.py())?.random else {
            return Ok(None);
        };
        if !layout.is_exact(obj) {
            return Ok(None);
        }
        layout.read(obj, |position, words| {
            record.position = position;
            if !record.words.are(words) {
                record.words.replace(words);
            }
        })
    }

    /// Whether the hash of a key or element may depend on what is in the graph.
    pub fn has_unsettled_keys(&self) -> bool {
        match self {
            Recorded::Dict(items) => !are_settled(items.iter().step_by(2)),
            Recorded::Set(items) => !are_settled(items.iter()),
            Recorded::Composite(anatomy, parts) => !are_settled(anatomy.keys(parts)),
            _ => false,
        }
    }

    /// Puts the items of a container in their places again.
    pub fn refill(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        match self {
            Recorded::Dict(items) => {
                let dict = obj.cast_exact::<PyDict>()?;
                dict.clear();
                for pair in items.chunks_exact(2) {
                    dict.set_item(&pair[0], &pair[1])?;
                }
            }
            Recorded::Set(items) => {
                let set = obj.cast_exact::<PySet>()?;
                set.clear();
                items.iter().try_for_each(|item| set.add(item))?;
            }
            Recorded::Composite(anatomy, parts) => anatomy.refill(obj, parts)?,
            _ => {}
        }
        Ok(())
    }

    /// Objects that the record refers to.
    pub fn children(&self) -> &[Py<PyAny>] {
        match self {
            Recorded::List(items) => items,
            Recorded::Dict(items) | Recorded::Set(items) | Recorded::Instance(_, items) => items,
            _ => &[],
        }
    }

    /// As [`Recorded::children`], to be replaced by others.
    pub fn children_mut(&mut self) -> &mut [Py<PyAny>] {
        match self {
            Recorded::List(items) => items,
            Recorded::Dict(items) | Recorded::Set(items) | Recorded::Instance(_, items) => items,
            _ => &mut [],
        }
    }

    /// Whether an object still consists of what is recorded. Runs no Python code, apart from
    /// what the garbage collector may run on Python 3.11 and older.
    pub fn is_still(&self, obj: &Bound<'_, PyAny>, dicts: Dicts) -> bool {
        match self {
            Recorded::Leaf
            | Recorded::NumpyRandom(_)
            | Recorded::Deletable
            | Recorded::Opaque(_) => true,
            Recorded::Array(record) => record.is_still(obj),
            Recorded::List(items) => match obj.cast_exact::<PyList>() {
                Ok(list) => list_is(list, items),
                Err(_) => false,
            },
            Recorded::Dict(items) => match obj.cast_exact::<PyDict>() {
                Ok(dict) => dict_is(dict, items.len() / 2, |at, key, value| {
                    items[2 * at].as_ptr() == key && items[2 * at + 1].as_ptr() == value
                }),
                Err(_) => false,
            },
            Recorded::Set(items) => match obj.cast_exact::<PySet>() {
                Ok(set) => set_items(set).is_ok_and(|now| same_items(items, &now)),
                Err(_) => false,
            },
            Recorded::ByteArray(bytes) => match obj.cast_exact::<PyByteArray>() {
                // SAFETY: no Python code runs during the comparison.
                Ok(now) => unsafe { now.as_bytes() == &bytes[..] },
                Err(_) => false,
            },
            Recorded::Instance(layout, values) => {
                if !obj.get_type().is(&layout.class) {
                    return false;
                }
                match own_dict(obj) {
                    Some(dict) if !dicts.allow(&dict) => false,
                    Some(dict) => dict_is(&dict, values.len(), |at, name, value| {
                        layout.names[at].as_ptr() == name && values[at].as_ptr() == value
                    }),
                    None => values.is_empty(),
                }
            }
            Recorded::Random(record) => random_is(obj, record),
            Recorded::Composite(anatomy, parts) => anatomy.is_still(obj, parts, dicts),
        }
    }

    /// Gives an object what is recorded. What it loses goes to `dropped`, since dropping it can
    /// run Python code. `false` if that does not work.
    pub fn restore(&self, obj: &Bound<'_, PyAny>, dropped: &mut Vec<Py<PyAny>>) -> PyResult<bool> {
        let py = obj.py();
        match self {
            Recorded::Leaf => {}
            Recorded::Deletable | Recorded::Opaque(_) => return Ok(false),
            Recorded::Array(record) => return record.restore(obj),
            Recorded::NumpyRandom(state) => {
                let state = PyBytes::new(py, state);
                let state = Runtime::get(py)?.pickle_loads.bind(py).call1((state,))?;
                set_state(obj, &state)?;
            }
            Recorded::List(items) => {
                let list = obj.cast_exact::<PyList>()?;
                dropped.extend(list_items(list));
                list.set_slice(0, list.len(), PyList::new(py, items)?.as_any())?;
            }
            Recorded::Dict(items) => {
                let dict = obj.cast_exact::<PyDict>()?;
                dropped.extend(dict_items(dict));
                set_pairs(dict, items.chunks_exact(2).map(|pair| (&pair[0], &pair[1])))?;
            }
            Recorded::Set(_) => {
                let set = obj.cast_exact::<PySet>()?;
                dropped.extend(set_items(set)?);
                self.refill(obj)?;
            }
            Recorded::ByteArray(bytes) => set_bytearray(obj.cast_exact::<PyByteArray>()?, bytes)?,
            Recorded::Instance(layout, values) => {
                if !obj.get_type().is(&layout.class) {
                    set_generically(obj, intern!(py, "__class__"), layout.class.bind(py))?;
                }
                restore_dict(obj, layout.names.iter().zip(values), dropped)?;
            }
            Recorded::Composite(anatomy, parts) => anatomy.restore(obj, parts, dropped)?,
            Recorded::Random(record) => {
                let Some(layout) = &Runtime::get(py)?.random else {
                    return Ok(false);
                };
                if !layout.is_exact(obj) {
                    return Ok(false);
                }
                let dict = own_dict(obj).filter(|dict| Dicts::Own.allow(dict));
                let same_words = layout.read(obj, |_, words| record.words.are(words))?;
                match (&dict, same_words) {
                    (Some(_), Some(true)) => layout.write_position(obj, record.position)?,
                    (Some(_), Some(false)) => {
                        layout.write(obj, record.position, record.words.bytes())?
                    }
                    _ => {
                        if let Some(dict) = own_dict(obj) {
                            dropped.extend(dict_items(&dict));
                            dropped.push(dict.into_any().unbind());
                        }
                        replace_dict(obj)?;
                        layout.write(obj, record.position, record.words.bytes())?;
                    }
                }
                return Ok(true);
            }
        }
        // Sets may come back in another order, and keys of the user's may no longer be found.
        Ok(self.is_still(obj, Dicts::Own))
    }
}

/// Makes the `__dict__` of an object consist of these names and values.
pub fn restore_dict<'a>(
    obj: &Bound<'_, PyAny>,
    attributes: impl Iterator<Item = (&'a Py<PyAny>, &'a Py<PyAny>)> + Clone,
    dropped: &mut Vec<Py<PyAny>>,
) -> PyResult<()> {
    let Some(dict) = own_dict(obj) else {
        return Ok(());
    };
    dropped.extend(dict_items(&dict));
    // Another instance, or anything else, may have been made to share the dict, or it is of a
    // subclass.
    let dict = if Dicts::Own.allow(&dict) {
        dict
    } else {
        dropped.push(dict.into_any().unbind());
        replace_dict(obj)?
    };
    set_pairs(&dict, attributes)
}

/// Makes a dict consist of these items, in this order.
fn set_pairs<'a>(
    dict: &Bound<'_, PyDict>,
    pairs: impl Iterator<Item = (&'a Py<PyAny>, &'a Py<PyAny>)> + Clone,
) -> PyResult<()> {
    let keys_are_right = has_simple_keys(pairs.clone().map(|(key, _)| key))
        && dict_is(dict, pairs.clone().count(), {
            let mut expected = pairs.clone();
            move |_, key, _| {
                expected
                    .next()
                    .is_some_and(|(name, _)| name.as_ptr() == key)
            }
        });
    if !keys_are_right {
        dict.clear();
    }
    for (key, value) in pairs {
        // SAFETY: a dict and two live objects.
        status(dict.py(), unsafe {
            ffi::PyDict_SetItem(dict.as_ptr(), key.as_ptr(), value.as_ptr())
        })?;
    }
    Ok(())
}

/// How many references to an object there are.
pub fn reference_count(obj: &Bound<'_, PyAny>) -> ffi::Py_ssize_t {
    // SAFETY: a live object.
    unsafe { ffi::Py_REFCNT(obj.as_ptr()) }
}

/// Whether nobody but its instance refers to a dict (and the caller, once).
fn is_only_owner(dict: &Bound<'_, PyDict>) -> bool {
    reference_count(dict.as_any()) <= 2
}

fn replace_dict<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(obj.py());
    set_generically(obj, intern!(obj.py(), "__dict__"), dict.as_any())?;
    Ok(dict)
}

/// `object.__setattr__`, whatever the class overrides.
pub fn set_generically(
    obj: &Bound<'_, PyAny>,
    name: &Bound<'_, pyo3::types::PyString>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    // SAFETY: three live objects.
    status(obj.py(), unsafe {
        ffi::PyObject_GenericSetAttr(obj.as_ptr(), name.as_ptr(), value.as_ptr())
    })
}

pub fn own_dict<'py>(obj: &Bound<'py, PyAny>) -> Option<Bound<'py, PyDict>> {
    instance_dict(obj).ok()
}

/// Names and values of an instance's attributes; `None` if they are not in an exact dict.
pub fn attributes(obj: &Bound<'_, PyAny>) -> PyResult<Option<(Vec<Py<PyAny>>, Items)>> {
    // SAFETY: a live object; the result is owned.
    let dict = unsafe {
        crate::py::errors::owned(
            obj.py(),
            ffi::PyObject_GenericGetDict(obj.as_ptr(), std::ptr::null_mut()),
        )
    };
    let Ok(dict) = dict else {
        return Ok(Some((Vec::new(), Items::default())));
    };
    let Ok(dict) = dict.bind(obj.py()).cast_exact::<PyDict>().cloned() else {
        return Ok(None);
    };
    let mut names = Vec::with_capacity(dict.len());
    let mut values = Vec::with_capacity(dict.len());
    for_each_item(&dict, |name, value| {
        names.push(name);
        values.push(value);
    });
    Ok(Some((names, values.into())))
}

fn random_is(obj: &Bound<'_, PyAny>, record: &RandomRecord) -> bool {
    let Ok(Some(layout)) = Runtime::get(obj.py()).map(|runtime| runtime.random.as_ref()) else {
        return false;
    };
    if !layout.is_exact(obj) {
        return false;
    }
    let same = layout.read(obj, |position, words| record.is(position, words));
    matches!(same, Ok(Some(true)))
}

pub fn same_items(left: &[Py<PyAny>], right: &[Py<PyAny>]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| left.as_ptr() == right.as_ptr())
}

fn list_is(list: &Bound<'_, PyList>, items: &[Py<PyAny>]) -> bool {
    // SAFETY: no Python code runs meanwhile.
    unsafe { with_list_items(list, |now| same_addresses(items, now)) }
}

/// Calls `use_items` with the items of an exact list.
///
/// # Safety
///
/// `use_items` must not run Python code.
pub unsafe fn with_list_items<T>(
    list: &Bound<'_, PyList>,
    use_items: impl FnOnce(&[*mut ffi::PyObject]) -> T,
) -> T {
    let memory = Runtime::get(list.py()).map(|runtime| &runtime.lists);
    // SAFETY: `use_items` runs no Python code.
    if let Some(items) = memory.ok().and_then(|memory| unsafe { memory.items(list) }) {
        return use_items(items);
    }
    let item_at = |index: usize| {
        // SAFETY: the index is below the length.
        unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) }
    };
    let items: Vec<_> = (0..list.len()).map(item_at).collect();
    use_items(&items)
}

fn same_addresses(items: &[Py<PyAny>], now: &[*mut ffi::PyObject]) -> bool {
    items.len() == now.len()
        && items
            .iter()
            .zip(now)
            .all(|(item, now)| item.as_ptr() == *now)
}

/// Whether a dict has so many items and all of them, as addresses, are right.
pub fn dict_is(
    dict: &Bound<'_, PyDict>,
    len: usize,
    mut is_right: impl FnMut(usize, *mut ffi::PyObject, *mut ffi::PyObject) -> bool,
) -> bool {
    if dict.len() != len {
        return false;
    }
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut position, mut at) = (0, 0);
    // SAFETY: a live dict, and no Python code runs between two calls.
    while unsafe {
        ffi::PyDict_Next(
            dict.as_ptr(),
            &raw mut position,
            &raw mut key,
            &raw mut value,
        )
    } != 0
    {
        if at == len || !is_right(at, key, value) {
            return false;
        }
        at += 1;
    }
    at == len
}

pub fn for_each_item(dict: &Bound<'_, PyDict>, mut take: impl FnMut(Py<PyAny>, Py<PyAny>)) {
    let py = dict.py();
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut position = 0;
    // SAFETY: a live dict, and no Python code runs between two calls; both are owned at once.
    unsafe {
        while ffi::PyDict_Next(
            dict.as_ptr(),
            &raw mut position,
            &raw mut key,
            &raw mut value,
        ) != 0
        {
            take(
                Bound::from_borrowed_ptr(py, key).unbind(),
                Bound::from_borrowed_ptr(py, value).unbind(),
            );
        }
    }
}

fn dict_items(dict: &Bound<'_, PyDict>) -> Items {
    let mut items = Vec::with_capacity(2 * dict.len());
    for_each_item(dict, |key, value| items.extend([key, value]));
    items.into()
}

pub fn list_items(list: &Bound<'_, PyList>) -> Items {
    list.iter().map(Bound::unbind).collect()
}

pub fn set_items(set: &Bound<'_, PySet>) -> PyResult<Items> {
    // An exact set: its iterator runs no Python code.
    let elements: Bound<'_, PyIterator> = set.as_any().try_iter()?;
    elements.map(|element| element.map(Bound::unbind)).collect()
}
