//! Keyframes that change nothing for those who have followed the frames so far.
//!
//! A checkpoint encodes the graph as it is at the latest frame from scratch. Doing so numbers its
//! objects anew; instructions at its end give them the numbers, and the shapes, that they have in
//! the shadow of the source. So a copy that is built from a checkpoint goes on with the same
//! deltas as one that has followed the source from its keyframe.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::numpy_random::pickled_state;
use super::recorded::{Dicts, Recorded};
use crate::py::encoder::{Encoder, RootNames};
use crate::wire::{op, Preface, Write};

/// Encodes what the shadow of `known` stands for; `None` if it does not stand for what there is.
///
/// Two encoders are given that have encoded nothing yet. The first one has no shadow and is much
/// faster. Only hooks of classes can make what it writes of an object differ from what the object
/// is before and after; then the other one is taken, which writes what it records.
pub fn checkpoint<'py>(
    known: &mut Encoder,
    (fresh, recording): (Encoder, Encoder),
    preface: Preface,
    roots: &Bound<'py, PyTuple>,
    names: &[String],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = roots.py();
    if known.shadow().graph.is_untrackable {
        return Ok(None);
    }
    for mut fresh in [fresh, recording] {
        fresh.expect_objects(known.shadow().graph.nodes.len());
        preface.put(fresh.out());
        for (root, name) in roots.iter().zip(names) {
            fresh.add_root(py, &root, &RootNames::One(name.clone()))?;
        }
        let Some(mut numbers) = numbers_in_shadow(py, known, &mut fresh)? else {
            return Ok(None);
        };
        let shapes = fresh.shape_count();
        if !fresh.put_shapes_of(py, known)? {
            return Ok(None);
        }
        if fresh.has_called_hooks() && !fresh.has_shadow() {
            continue;
        }
        // Last of all, since anything before it can have run user code.
        let opaque: Vec<u32> = known.shadow().opaque.iter().copied().collect();
        for number in opaque {
            if !is_opaque_unchanged(py, known, number)? {
                return Ok(None);
            }
        }
        if !is_as_recorded(py, known)? || fresh.has_shadow() && !is_as_recorded(py, &mut fresh)? {
            return Ok(None);
        }
        // Writing the shapes can have numbered more objects, e.g. classes.
        numbers.resize(fresh.numbered_count(), None);
        put_numbers(fresh.out(), shapes, &numbers, &known.shadow().free);
        let n_kept = numbers.iter().flatten().count();
        return fresh.finish_frame_of(py, n_kept as u32).map(Some);
    }
    Ok(None)
}

/// Numbers in the shadow of `known` by the numbers that the objects got in `fresh`, which encodes
/// those that it has not met. `None` if one of them is not numbered there.
fn numbers_in_shadow(
    py: Python<'_>,
    known: &Encoder,
    fresh: &mut Encoder,
) -> PyResult<Option<Vec<Option<u32>>>> {
    let mut pairs = Vec::new();
    for (number, node) in known.shadow().graph.nodes.iter().enumerate() {
        let Some(obj) = &node.obj else { continue };
        let address = obj.as_ptr() as usize;
        let mut found = fresh.number_at(address);
        if found.is_none() {
            // Dropped from the graph, but not yet freed: a later frame may refer to it.
            fresh.add_aside(py, obj.bind(py))?;
            found = fresh.number_at(address);
        }
        let Some(found) = found else {
            return Ok(None);
        };
        pairs.push((found, number as u32));
    }
    if pairs.len() + known.shadow().free.len() != known.shadow().graph.nodes.len() {
        return Ok(None);
    }
    let mut numbers = vec![None; fresh.numbered_count()];
    for (found, number) in pairs {
        numbers[found as usize] = Some(number);
    }
    Ok(Some(numbers))
}

/// Whether all that an encoder compares directly is as it has recorded it.
fn is_as_recorded(py: Python<'_>, encoder: &mut Encoder) -> PyResult<bool> {
    let shadow = encoder.shadow_mut();
    if shadow.graph.is_untrackable {
        return Ok(false);
    }
    let changed = shadow
        .graph
        .changed(py, Dicts::Any, |layout, _, prng, record| {
            let is_same = layout.read(prng, |position, words| record.is(position, words));
            matches!(is_same, Ok(Some(true)))
        })?;
    Ok(changed.is_empty())
}

/// Whether an object that went through a reducer is as it was.
pub fn is_opaque_unchanged(py: Python<'_>, encoder: &mut Encoder, number: u32) -> PyResult<bool> {
    let node = &encoder.shadow().graph.nodes[number as usize];
    let Some(obj) = node.obj.as_ref().map(|obj| obj.clone_ref(py)) else {
        return Ok(true);
    };
    let obj = obj.bind(py);
    match &node.recorded {
        Recorded::Deletable => {
            let is_deleted = obj.call_method0(intern!(py, "is_deleted"))?;
            Ok(!is_deleted.is_truthy()?)
        }
        Recorded::NumpyRandom(before) => {
            let before = before.clone();
            Ok(pickled_state(obj)? == before)
        }
        Recorded::Opaque(before) => {
            let before = before.hash;
            Ok(encoder.fingerprint(py, obj)?.hash == before)
        }
        _ => Ok(true),
    }
}

fn put_numbers(out: &mut impl Write, shapes: u32, numbers: &[Option<u32>], free: &[u32]) {
    out.put_byte(op::RENUMBER);
    out.put_varint(u64::from(shapes));
    let follows = |pair: &[Option<u32>]| match (pair[0], pair[1]) {
        (None, None) => true,
        (Some(before), Some(after)) => before + 1 == after,
        _ => false,
    };
    let mut start = 0;
    while start < numbers.len() {
        let run = numbers[start..].windows(2).take_while(|pair| follows(pair));
        let length = 1 + run.count();
        out.put_varint(length as u64);
        out.put_varint(numbers[start].map_or(0, |number| u64::from(number) + 1));
        start += length;
    }
    out.put_varint(0);
    out.put_varint(free.len() as u64);
    for number in free {
        out.put_varint(u64::from(*number));
    }
}
