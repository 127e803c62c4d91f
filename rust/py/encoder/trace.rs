//! The path from a root to the object at which a walk failed.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::frames::{Frame, Stage, Target};
use super::Encoder;
use crate::py::graph::recorded::Recorded;
use crate::py::path::{self, Step};

/// What error messages call a root.
pub enum RootNames {
    One(String),
    /// Names of the items of a tuple.
    Items(Vec<String>),
}

impl RootNames {
    pub(super) fn new(
        obj: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<RootNames> {
        let Some(name) = name else {
            return Ok(RootNames::One("obj".to_owned()));
        };
        if let Ok(names) = name.cast::<PyTuple>() {
            let items = obj.cast_exact::<PyTuple>().map(|items| items.len());
            if items.ok() != Some(names.len()) {
                return Err(PyValueError::new_err(
                    "a tuple of names needs a tuple of the same length",
                ));
            }
            return Ok(RootNames::Items(names.extract()?));
        }
        Ok(RootNames::One(name.extract()?))
    }
}

impl Encoder {
    /// Path from the root to the object that is being encoded.
    pub(super) fn path(&self, py: Python<'_>, names: &RootNames) -> String {
        let mut steps = Vec::new();
        let mut reductions = self.reductions.iter();
        // The dict of a state holds attributes, also inside the `(state, slots)` pair.
        let mut in_state = false;
        // The arguments of `__newobj__` begin with the class.
        let mut in_newobj = false;
        for frame in &self.frames {
            let was_in_state = std::mem::replace(&mut in_state, false);
            let skipped = 1 + usize::from(std::mem::replace(&mut in_newobj, false));
            match frame {
                Frame::List { next, .. } => steps.push(Step::Index(next.saturating_sub(1))),
                Frame::Tuple { tuple, next } => {
                    let pair = tuple
                        .bind(py)
                        .cast::<PyTuple>()
                        .is_ok_and(|tuple| tuple.len() == 2);
                    if was_in_state && pair {
                        in_state = true;
                    } else {
                        steps.push(Step::Index(next.saturating_sub(skipped)));
                    }
                }
                Frame::Set { .. } => steps.push(Step::Element),
                Frame::Dict {
                    key, value, target, ..
                } => match (key, value) {
                    (Some(_), Some(_)) => steps.push(Step::DictKey),
                    (Some(key), None) => {
                        let attribute = was_in_state || *target == Target::Attributes;
                        let key = key.bind(py);
                        steps.push(if attribute {
                            Step::attribute(key)
                        } else {
                            Step::key(key)
                        });
                    }
                    (None, _) => {}
                },
                Frame::Pairs { key, value, .. } => match (key, value) {
                    (Some(_), Some(_)) => steps.push(Step::DictKey),
                    (Some(key), None) => steps.push(Step::key(key.bind(py))),
                    (None, _) => {}
                },
                Frame::Instance { shape, next, .. } => {
                    if let Some(name) = shape.names.get(next.saturating_sub(1)) {
                        steps.push(Step::attribute(name.bind(py)));
                    }
                }
                Frame::Recorded {
                    number,
                    next,
                    shape,
                } => {
                    let parts = (*number, *next, shape.is_some());
                    steps.extend(self.recorded_step(py, parts, was_in_state));
                }
                // Whoever gets an error takes a keyframe instead, which has a path from a root.
                Frame::Pieces { .. } | Frame::Pending => {}
                Frame::Profiled(_) => {}
                Frame::Items { index, .. } => steps.push(Step::Index(index.saturating_sub(1))),
                // The stage is the one after what is being encoded.
                Frame::Reduce => match reductions.next().map(|r| (r.stage, r.newobj)) {
                    Some((Stage::Arguments, _)) => steps.push(Step::Reduced("callable")),
                    Some((Stage::Call, true)) => in_newobj = true,
                    Some((Stage::Call, false)) => steps.push(Step::Reduced("arguments")),
                    Some((Stage::State, _)) => steps.push(Step::Reduced("state setter")),
                    Some((Stage::Build, _)) => in_state = true,
                    _ => {}
                },
            }
        }
        match names {
            RootNames::One(name) => path::join(name, &steps),
            RootNames::Items(items) => match steps.first() {
                Some(Step::Index(index)) if *index < items.len() => {
                    path::join(&items[*index], &steps[1..])
                }
                _ => path::join("obj", &steps),
            },
        }
    }
    fn recorded_step(
        &self,
        py: Python<'_>,
        (number, next, has_shape): (u32, usize, bool),
        is_state: bool,
    ) -> Option<Step> {
        let shadow = self.shadow.as_ref()?;
        let done = next.checked_sub(1)?;
        Some(match &shadow.graph.nodes[number as usize].recorded {
            Recorded::Dict(items) if done % 2 == 1 => {
                let key = items.get(done - 1)?.bind(py);
                match is_state {
                    true => Step::attribute(key),
                    false => Step::key(key),
                }
            }
            Recorded::Dict(_) => Step::DictKey,
            Recorded::Set(_) => Step::Element,
            Recorded::Instance(layout, _) => {
                let at = if has_shape { done } else { done / 2 };
                Step::attribute(layout.names.get(at)?.bind(py))
            }
            _ => Step::Index(done),
        })
    }
}
