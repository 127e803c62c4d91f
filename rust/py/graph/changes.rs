//! How the difference between two records of an object is expressed in a frame.

use std::collections::HashMap;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rustc_hash::{FxHashMap, FxHashSet};

use super::kind::has_simple_keys;
use super::recorded::{dict_is, own_dict, same_items, with_list_items, Recorded};
use crate::py::types::hash_is_settled;
use crate::stretches::edits;
use crate::wire::op;

/// Items that have to move within a list for it to be worthwhile to say so.
const MIN_LIFTED: usize = 4;

/// A part of the instructions that update an object.
pub enum Piece {
    Value(Py<PyAny>),
    Code(u8),
    /// A code and its count.
    Count(u8, usize),
    /// A name that the latest `SET_ATTRIBUTE` may have had.
    Name(Py<PyAny>),
    /// A code that sets an attribute of that name.
    SetAttribute(u8, Py<PyAny>),
    /// Distance from the one before and count of items that go to other places.
    ReplaceLifted(usize, usize),
    /// Start, length and count of a stretch.
    Splice(usize, usize, usize),
    /// Where items that go to other places stand in a list.
    Lift(Vec<usize>),
    /// New contents of a `bytearray`.
    Bytes(Box<[u8]>),
    /// Changed bytes of an array.
    Patches(Vec<u8>),
}

/// Addresses of objects that are no longer part of an object.
pub type Removed = Vec<usize>;

/// What makes `recorded` of `old`, to be encoded behind the object; `None` if only a new object can
/// have this record. Lists go through [`list_edits`].
pub fn pieces(
    py: Python<'_>,
    old: &Recorded,
    recorded: &Recorded,
    removed: &mut Removed,
) -> Option<Vec<Piece>> {
    Some(match (old, recorded) {
        (Recorded::Dict(old), Recorded::Dict(new)) => {
            let keys = |items: &[Py<PyAny>]| items.iter().step_by(2).cloned_in(py);
            let values = |items: &[Py<PyAny>]| items.iter().skip(1).step_by(2).cloned_in(py);
            let old = (keys(old), values(old));
            let new = (keys(new), values(new));
            let (old, new) = ((&old.0[..], &old.1[..]), (&new.0[..], &new.1[..]));
            mapping_pieces(py, old, new, Target::Dict, removed)
        }
        (Recorded::Set(old), Recorded::Set(new)) => {
            removed.extend(addresses(old));
            // From nothing, so that the order becomes the one that pickle gives.
            let mut pieces = vec![Piece::Code(op::CLEAR)];
            pieces.extend(new.iter().map(|item| Piece::Value(item.clone_ref(py))));
            let is_settled = new.iter().all(|item| hash_is_settled(item.bind(py)));
            let code = if is_settled { op::ADD } else { op::ADD_LATE };
            pieces.push(Piece::Count(code, new.len()));
            pieces
        }
        (Recorded::ByteArray(_), Recorded::ByteArray(new)) => vec![Piece::Bytes(new.clone())],
        (Recorded::Instance(layout, old), Recorded::Instance(new_layout, new)) => {
            if !layout.class.is(&new_layout.class) {
                return None;
            }
            let old = (&layout.names[..], &old[..]);
            mapping_pieces(
                py,
                old,
                (&new_layout.names, new),
                Target::Attributes,
                removed,
            )
        }
        (Recorded::Array(old), Recorded::Array(new)) => {
            vec![Piece::Patches(old.patches_to(new)?)]
        }
        (Recorded::Composite(anatomy, old), Recorded::Composite(new_anatomy, new)) => {
            if !anatomy.class.is(&new_anatomy.class) {
                return None;
            }
            removed.extend(old.children().map(|part| part.as_ptr() as usize));
            let state = anatomy.state(py, new).ok()?.into_any().unbind();
            let code = match recorded.has_unsettled_keys() {
                true => op::ASSEMBLE_LATE,
                false => op::ASSEMBLE,
            };
            vec![Piece::Value(state), Piece::Code(code)]
        }
        _ => return None,
    })
}

fn addresses(items: &[Py<PyAny>]) -> impl Iterator<Item = usize> + '_ {
    items.iter().map(|item| item.as_ptr() as usize)
}

trait ClonedIn {
    fn cloned_in(self, py: Python<'_>) -> Vec<Py<PyAny>>;
}

impl<'a, I: Iterator<Item = &'a Py<PyAny>>> ClonedIn for I {
    fn cloned_in(self, py: Python<'_>) -> Vec<Py<PyAny>> {
        self.map(|item| item.clone_ref(py)).collect()
    }
}

/// Items that take the place of others in a list.
pub struct ListEdit {
    /// Counts in the list as it is when all earlier edits are done.
    start: usize,
    removed: usize,
    inserted: Vec<Py<PyAny>>,
}

/// What makes the present list of the recorded one. No other item than the new ones is touched.
pub fn list_edits(recorded: &[Py<PyAny>], list: &Bound<'_, PyList>) -> Vec<ListEdit> {
    let take = |item: *mut ffi::PyObject| {
        // SAFETY: the list owns its items, which are never null.
        unsafe { Bound::from_borrowed_ptr(list.py(), item) }.unbind()
    };
    let find = |items: &[*mut ffi::PyObject]| {
        let same = |old: usize, new: usize| recorded[old].as_ptr() == items[new];
        edits(recorded.len(), items.len(), same)
            .into_iter()
            .map(|edit| ListEdit {
                start: edit.start,
                removed: edit.removed,
                inserted: items[edit.inserted].iter().copied().map(take).collect(),
            })
            .collect()
    };
    // SAFETY: no Python code runs meanwhile.
    unsafe { with_list_items(list, find) }
}

/// Addresses of what the edits put into a list.
pub fn inserted_addresses(edits: &[ListEdit]) -> FxHashSet<usize> {
    let items = edits.iter().flat_map(|edit| &edit.inserted);
    items.map(|item| item.as_ptr() as usize).collect()
}

/// Brings the record of a list up to date. What it loses is returned, since dropping it can run
/// Python code.
pub fn apply_list_edits(items: &mut Vec<Py<PyAny>>, edits: Vec<ListEdit>) -> Vec<Py<PyAny>> {
    let mut lost = Vec::new();
    for edit in edits {
        let range = edit.start..edit.start + edit.removed;
        lost.extend(items.splice(range, edit.inserted));
    }
    lost
}

/// Where the items that edits take out of a list stand in it, by their addresses.
fn removed_places(recorded: &[Py<PyAny>], edits: &[ListEdit]) -> FxHashMap<usize, usize> {
    let mut places = FxHashMap::default();
    let (mut added, mut removed) = (0, 0);
    for edit in edits {
        let start = edit.start + removed - added;
        let stretch = start..start + edit.removed;
        places.extend(stretch.map(|place| (recorded[place].as_ptr() as usize, place)));
        added += edit.inserted.len();
        removed += edit.removed;
    }
    places
}

/// Instructions for the edits of a list.
pub struct ListPieces {
    pub pieces: Vec<Piece>,
    /// How many items are put into the list that do not only change their places in it.
    pub n_new: usize,
}

impl ListPieces {
    pub fn new(py: Python<'_>, recorded: &[Py<PyAny>], edits: &[ListEdit]) -> Self {
        let inserted = || edits.iter().flat_map(|edit| &edit.inserted);
        // Many items only move to another place, as those of heaps do.
        let places = match edits.len() {
            0 | 1 => FxHashMap::default(),
            _ => removed_places(recorded, edits),
        };
        let place_of = |item: &Py<PyAny>| places.get(&(item.as_ptr() as usize)).copied();
        let moved: Vec<usize> = inserted().filter_map(place_of).collect();
        let n_new = inserted().count() - moved.len();
        let are_lifted = moved.len() >= MIN_LIFTED;
        let mut pieces = Vec::new();
        if are_lifted {
            pieces.push(Piece::Lift(moved));
        }
        let mut stop = 0;
        for edit in edits {
            let mut n_lifted = 0;
            let is_lifted = |item| are_lifted && place_of(item).is_some();
            if edit.removed == edit.inserted.len() && edit.inserted.iter().all(is_lifted) {
                pieces.push(Piece::ReplaceLifted(edit.start - stop, edit.removed));
                stop = edit.start + edit.removed;
                continue;
            }
            for item in &edit.inserted {
                if is_lifted(item) {
                    n_lifted += 1;
                    continue;
                }
                if n_lifted > 0 {
                    pieces.push(Piece::Count(op::LIFTED, std::mem::take(&mut n_lifted)));
                }
                pieces.push(Piece::Value(item.clone_ref(py)));
            }
            if n_lifted > 0 {
                pieces.push(Piece::Count(op::LIFTED, n_lifted));
            }
            pieces.push(Piece::Splice(edit.start, edit.removed, edit.inserted.len()));
        }
        ListPieces { pieces, n_new }
    }
}

/// A value of an instance or dict, to be recorded in this place among the record's children.
pub type NewValue = (usize, Py<PyAny>);

/// The values that differ, if that is all that differs: an instance or dict mostly keeps its class
/// and keys. No other object than the new values is touched.
pub fn new_values(recorded: &Recorded, obj: &Bound<'_, PyAny>) -> Option<Vec<NewValue>> {
    let dict = match recorded {
        Recorded::Instance(layout, _) => {
            let is_same_class = obj.get_type().is(&layout.class);
            let is_simple = is_same_class && has_simple_keys(layout.names.iter());
            own_dict(obj).filter(|dict| is_simple && dict.is_exact_instance_of::<PyDict>())?
        }
        Recorded::Dict(items) => {
            let dict = obj.cast_exact::<PyDict>().ok()?;
            has_simple_keys(items.iter().step_by(2)).then(|| dict.clone())?
        }
        _ => return None,
    };
    let mut values = Vec::new();
    let mut take = |place: usize, old: &Py<PyAny>, new: *mut ffi::PyObject| {
        if old.as_ptr() != new {
            // SAFETY: the dict owns its value, and no Python code runs meanwhile.
            let new = unsafe { Bound::from_borrowed_ptr(obj.py(), new) };
            values.push((place, new.unbind()));
        }
        true
    };
    let has_same_keys = match recorded {
        Recorded::Instance(layout, items) => dict_is(&dict, items.len(), |at, key, value| {
            layout.names[at].as_ptr() == key && take(at, &items[at], value)
        }),
        recorded => {
            let items = recorded.children();
            dict_is(&dict, items.len() / 2, |at, key, value| {
                let place = 2 * at + 1;
                items[place - 1].as_ptr() == key && take(place, &items[place], value)
            })
        }
    };
    has_same_keys.then_some(values)
}

/// Records new values. What they replace is returned, since dropping it can run Python code.
pub fn apply_new_values(recorded: &mut Recorded, values: Vec<NewValue>) -> Vec<Py<PyAny>> {
    let items = recorded.children_mut();
    values
        .into_iter()
        .map(|(place, value)| std::mem::replace(&mut items[place], value))
        .collect()
}

pub fn value_pieces(py: Python<'_>, recorded: &Recorded, values: &[NewValue]) -> Vec<Piece> {
    if let [(place, value)] = values {
        let value = Piece::Value(value.clone_ref(py));
        return match recorded {
            Recorded::Instance(layout, _) => {
                let name = || layout.names[*place].clone_ref(py);
                vec![
                    Piece::Name(name()),
                    value,
                    Piece::SetAttribute(op::SET_ATTRIBUTE, name()),
                ]
            }
            recorded => {
                let key = Piece::Value(recorded.children()[place - 1].clone_ref(py));
                vec![key, value, Piece::Code(op::SET_ITEM)]
            }
        };
    }
    let mut pieces = Vec::new();
    for (place, value) in values {
        let key = match recorded {
            Recorded::Instance(layout, _) => &layout.names[*place],
            recorded => &recorded.children()[place - 1],
        };
        pieces.push(Piece::Value(key.clone_ref(py)));
        pieces.push(Piece::Value(value.clone_ref(py)));
    }
    let code = match recorded {
        Recorded::Instance(..) => op::SET_ATTRIBUTES,
        _ => op::SET_ITEMS,
    };
    if !values.is_empty() {
        pieces.push(Piece::Count(code, values.len()));
    }
    pieces
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    Dict,
    Attributes,
}

/// Keys and values.
type Mapping<'a> = (&'a [Py<PyAny>], &'a [Py<PyAny>]);

fn mapping_pieces(
    py: Python<'_>,
    old: Mapping,
    new: Mapping,
    target: Target,
    removed: &mut Removed,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut set = |pairs: &mut dyn Iterator<Item = (&Py<PyAny>, &Py<PyAny>)>| {
        let mut count = 0;
        let mut is_settled = true;
        for (key, value) in pairs {
            is_settled &= hash_is_settled(key.bind(py));
            pieces.push(Piece::Value(key.clone_ref(py)));
            pieces.push(Piece::Value(value.clone_ref(py)));
            count += 1;
        }
        let code = match target {
            Target::Attributes => op::SET_ATTRIBUTES,
            Target::Dict if is_settled => op::SET_ITEMS,
            Target::Dict => op::SET_ITEMS_LATE,
        };
        if count > 0 {
            pieces.push(Piece::Count(code, count));
        }
        std::mem::take(&mut pieces)
    };
    // Other keys can have any notion of equality.
    if !has_simple_keys(old.0.iter().chain(new.0)) {
        removed.extend(addresses(old.0).chain(addresses(old.1)));
        return from_nothing(set(&mut new.0.iter().zip(new.1)));
    }
    let places: Option<HashMap<usize, usize>> = (!same_items(old.0, new.0)).then(|| {
        let indices = new.0.iter().enumerate();
        indices
            .map(|(at, key)| (key.as_ptr() as usize, at))
            .collect()
    });
    let place = |at: usize| match &places {
        None => Some(at),
        Some(places) => places.get(&(old.0[at].as_ptr() as usize)).copied(),
    };
    // What is left of the old keys has to be what the new ones begin with.
    let mut deleted = Vec::new();
    let mut changed = Vec::new();
    let mut kept = 0;
    for at in 0..old.0.len() {
        match place(at) {
            Some(place) if place == kept => {
                if old.1[at].as_ptr() != new.1[place].as_ptr() {
                    removed.push(old.1[at].as_ptr() as usize);
                    changed.push(place);
                }
                kept += 1;
            }
            Some(_) => {
                removed.extend(addresses(old.0).chain(addresses(old.1)));
                return from_nothing(set(&mut new.0.iter().zip(new.1)));
            }
            None => {
                removed.extend([old.0[at].as_ptr() as usize, old.1[at].as_ptr() as usize]);
                deleted.push(at);
            }
        }
    }
    changed.extend(kept..new.0.len());
    if deleted.len() > kept {
        return from_nothing(set(&mut new.0.iter().zip(new.1)));
    }
    let mut all: Vec<Piece> = deleted
        .iter()
        .map(|at| Piece::Value(old.0[*at].clone_ref(py)))
        .collect();
    if !deleted.is_empty() {
        all.push(Piece::Count(op::DELETE, deleted.len()));
    }
    all.extend(set(&mut changed
        .iter()
        .map(|at| (&new.0[*at], &new.1[*at]))));
    all
}

fn from_nothing(pieces: Vec<Piece>) -> Vec<Piece> {
    std::iter::once(Piece::Code(op::CLEAR))
        .chain(pieces)
        .collect()
}
