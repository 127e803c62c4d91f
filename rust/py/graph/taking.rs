//! What a source does with the objects that differ from their records: their changes are recorded,
//! and left pending in the encoder, which writes them.

use pyo3::prelude::*;
use pyo3::types::PyList;
use rustc_hash::FxHashSet;

use super::changes::{
    apply_list_edits, apply_new_values, inserted_addresses, list_edits, new_values, pieces,
    value_pieces, ListEdit, ListPieces, NewValue, Piece, Removed,
};
use super::checkpoint::is_opaque_unchanged;
use super::kind::Kind;
use super::numpy_random::{pickled_state, state};
use super::recorded::{RandomRecord, Recorded};
use crate::py::encoder::Encoder;
use crate::py::random::RandomLayout;
use crate::random_states::{self, put_change, Base};
use crate::wire::{op, Write};

/// Items that a list needs for a clone to be worthwhile.
const MIN_CLONED: usize = 16;

/// New states of generators, in the form in which a frame has them.
#[derive(Default)]
pub struct ChangedRandoms(random_states::Changes);

impl ChangedRandoms {
    /// Records the state of a generator; `false` if it is not one that can be read. Numbers
    /// ascend from call to call.
    pub fn visit(
        &mut self,
        layout: &RandomLayout,
        number: u32,
        prng: &Bound<'_, PyAny>,
        record: &mut RandomRecord,
    ) -> bool {
        let visited = layout.read(prng, |position, words| {
            if record.is(position, words) {
                return;
            }
            let (base, old) = (Base::Known(&record.words), record.position);
            let has_old_words = self
                .0
                .add(number, |out| put_change(out, base, old, words, position));
            record.position = position;
            if !has_old_words {
                record.words.replace(words);
            }
        });
        matches!(visited, Ok(Some(())))
    }

    pub fn put(self, out: &mut impl Write) {
        let (count, changes) = self.0.finish();
        if count > 0 {
            out.put_byte(op::RANDOM_STATES);
            out.put_varint(count);
            out.put_bytes(&changes);
        }
    }
}

/// Records the changed objects anew, and leaves the changes pending. `false` if only a keyframe
/// can express a change. Numbers of what objects have lost are added to `candidates`.
pub fn take_changes(
    py: Python<'_>,
    encoder: &mut Encoder,
    changed: Vec<u32>,
    candidates: &mut Vec<u32>,
) -> PyResult<bool> {
    let mut captured = Vec::new();
    let mut changed = changed;
    let graph = &encoder.shadow().graph;
    if !changed.is_empty() {
        // What has changed may be the hash of a key.
        if graph.has_unsettled_frozenset {
            return Ok(false);
        }
        let known: FxHashSet<u32> = changed.iter().copied().collect();
        changed.extend(graph.unsettled.difference(&known));
    }
    for number in changed {
        let graph = &mut encoder.shadow_mut().graph;
        let node = &graph.nodes[number as usize];
        let Some(obj) = node.obj.as_ref().map(|obj| obj.clone_ref(py)) else {
            continue;
        };
        let kind = node.recorded.kind();
        if kind == Kind::Random {
            // One whose state only pickle can tell.
            return Ok(false);
        }
        let change = match (&node.recorded, obj.bind(py).cast_exact::<PyList>()) {
            (Recorded::List(items), Ok(list)) => Change::List(list_edits(items, list)),
            (recorded, _) => match new_values(recorded, obj.bind(py)) {
                Some(values) => Change::Values(values),
                None => match graph.capture(kind, obj.bind(py))? {
                    Some(recorded) => Change::Record(recorded),
                    None => return Ok(false),
                },
            },
        };
        captured.push((number, change));
    }
    for (number, change) in &captured {
        if let Change::Values(values) = change {
            clone_lists(py, encoder, *number, values)?;
        }
    }
    // Pending changes are taken from the end: those that depend on hashes come last.
    let unsettled = &encoder.shadow().graph.unsettled;
    captured.sort_by_key(|(number, _)| !unsettled.contains(number));
    for (number, change) in captured {
        let graph = &mut encoder.shadow_mut().graph;
        let mut removed = Removed::default();
        let pieces = match change {
            Change::List(edits) => {
                let Recorded::List(items) = &mut graph.nodes[number as usize].recorded else {
                    return Ok(false);
                };
                let pieces = ListPieces::new(py, items, &edits).pieces;
                let inserted = inserted_addresses(&edits);
                let lost = apply_list_edits(items, edits);
                let lost = lost.iter().map(|item| item.as_ptr() as usize);
                removed.extend(lost.filter(|address| !inserted.contains(address)));
                pieces
            }
            Change::Values(values) => {
                let recorded = &mut graph.nodes[number as usize].recorded;
                let pieces = value_pieces(py, recorded, &values);
                let lost = apply_new_values(recorded, values);
                removed.extend(lost.iter().map(|value| value.as_ptr() as usize));
                pieces
            }
            Change::Record(recorded) => {
                let former = graph.record(number, recorded);
                let recorded = &graph.nodes[number as usize].recorded;
                match pieces(py, &former, recorded, &mut removed) {
                    Some(pieces) => pieces,
                    None => return Ok(false),
                }
            }
        };
        // Objects that still have their numbers are held by their nodes, so what was dropped
        // are at most numbers and the like.
        candidates.extend(
            removed
                .iter()
                .filter_map(|address| encoder.number_at(*address)),
        );
        encoder.shadow_mut().add_pending(number, pieces);
    }
    Ok(true)
}

/// A change of an object, before it is recorded.
enum Change {
    List(Vec<ListEdit>),
    /// Other values under the same keys.
    Values(Vec<NewValue>),
    Record(Recorded),
}

/// Sends a new list that begins as the one that it replaces did as a clone with changes.
///
/// A market of pams, for instance, gets new lists with all of its history and more room every
/// hundred steps.
fn clone_lists(
    py: Python<'_>,
    encoder: &mut Encoder,
    number: u32,
    values: &[NewValue],
) -> PyResult<()> {
    let recorded = &encoder.shadow().graph.nodes[number as usize].recorded;
    if !matches!(recorded, Recorded::Instance(..)) {
        return Ok(());
    }
    let is_list = |value: &Py<PyAny>| value.bind(py).is_exact_instance_of::<PyList>();
    let replaced: Vec<_> = values
        .iter()
        .map(|(place, new)| (&recorded.children()[*place], new))
        .filter(|(old, new)| is_list(old) && is_list(new))
        .map(|(old, new)| (old.clone_ref(py), new.clone_ref(py)))
        .collect();
    for (old, new) in replaced {
        let (old, new) = (old.bind(py), new.bind(py));
        let address = |list: &Bound<'_, PyAny>| list.as_ptr() as usize;
        let Some(old) = encoder.number_at(address(old)) else {
            continue;
        };
        if encoder.number_at(address(new)).is_some() {
            continue;
        }
        let Ok(list) = new.cast_exact::<PyList>() else {
            continue;
        };
        let Recorded::List(old_items) = &encoder.shadow().graph.nodes[old as usize].recorded else {
            continue;
        };
        if list.len() < MIN_CLONED {
            continue;
        }
        let edits = list_edits(old_items, list);
        let ListPieces { pieces, n_new } = ListPieces::new(py, old_items, &edits);
        if n_new > list.len() / 2 {
            continue;
        }
        let Some(new_items) = Recorded::capture(Kind::List, new)? else {
            continue;
        };
        encoder.clone_list(old, new, new_items, pieces)?;
    }
    Ok(())
}

/// Whether an object that went through a reducer is as it was, or its change is now pending.
pub fn compare_opaque(py: Python<'_>, encoder: &mut Encoder, number: u32) -> PyResult<bool> {
    if is_opaque_unchanged(py, encoder, number)? {
        return Ok(true);
    }
    let node = &encoder.shadow().graph.nodes[number as usize];
    let Some(obj) = node.obj.as_ref().map(|obj| obj.clone_ref(py)) else {
        return Ok(true);
    };
    if !matches!(node.recorded, Recorded::NumpyRandom(_)) {
        return Ok(false);
    }
    let (now, recorded) = (state(obj.bind(py))?, pickled_state(obj.bind(py))?);
    let shadow = encoder.shadow_mut();
    drop(shadow.graph.record(number, Recorded::NumpyRandom(recorded)));
    let pieces = vec![Piece::Value(now.unbind()), Piece::Code(op::SET_STATE)];
    shadow.add_pending(number, pieces);
    Ok(true)
}
