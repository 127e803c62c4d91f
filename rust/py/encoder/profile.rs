//! What goes through reducers, and what that costs: on demand, to see why a graph is slow.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyType;
use rustc_hash::FxHashMap;

use super::frames::{Frame, Written};
use super::trace::RootNames;
use super::Encoder;
use crate::py::graph::kind::{kind_of_class, Kind};
use crate::py::graph::recorded::Recorded;

/// How a source finds out whether an object has changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Tracking {
    /// By its parts, or it never changes.
    Native,
    /// By what its reducer returns.
    Reducer,
    /// Not at all.
    None,
}

impl Tracking {
    fn of(kind: Kind, obj: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(match kind {
            Kind::Custom => Tracking::None,
            Kind::Opaque => Tracking::Reducer,
            Kind::Array if Recorded::capture(kind, obj)?.is_none() => Tracking::Reducer,
            _ => Tracking::Native,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Tracking::Native => "native",
            Tracking::Reducer => "reducer",
            Tracking::None => "none",
        }
    }
}

/// What is known of the objects of one class that are tracked alike.
struct Group {
    class: Py<PyType>,
    tracking: Tracking,
    /// Path of the first of them.
    path: String,
    n_objects: u64,
    n_bytes: u64,
    time: Duration,
    /// How many of them are being encoded, one within the other.
    open: usize,
    /// Position and time at which the outermost of these began.
    began: (u64, Duration),
}

/// Collects what goes through reducers.
pub(super) struct Profile {
    name: String,
    groups: Vec<Group>,
    indices: FxHashMap<(usize, Tracking), usize>,
    /// By class; the groups own the classes.
    kinds: FxHashMap<usize, Kind>,
    started: Instant,
    /// What the profile itself took.
    excluded: Duration,
}

impl Profile {
    fn new(name: &str) -> Self {
        Profile {
            name: name.to_owned(),
            groups: Vec::new(),
            indices: FxHashMap::default(),
            kinds: FxHashMap::default(),
            started: Instant::now(),
            excluded: Duration::ZERO,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.excluded)
    }
}

/// An object that is about to go through its reducer, or is on its way.
pub(super) struct Profiled {
    obj: Py<PyAny>,
    /// Instead of `__reduce_ex__`.
    reducer: Option<Py<PyAny>>,
    /// Index of its group, once it is on its way.
    group: Option<usize>,
}

impl Profiled {
    pub(super) fn frame(obj: &Bound<'_, PyAny>, reducer: Option<Py<PyAny>>) -> Frame {
        Frame::Profiled(Box::new(Profiled {
            obj: obj.clone().unbind(),
            reducer,
            group: None,
        }))
    }
}

impl Encoder {
    /// The frame lies where the object's reducer would have been called without a profile, so all
    /// frames below are in place for the path, and it is on top again when the object is complete.
    pub(super) fn step_profiled(
        &mut self,
        py: Python<'_>,
        profiled: &mut Profiled,
    ) -> PyResult<Written> {
        if profiled.group.is_none() {
            let obj = profiled.obj.bind(py);
            profiled.group = Some(self.enter_group(py, obj)?);
            let reducer = profiled.reducer.take();
            if self.reduce_now(py, obj, reducer)? == Written::Pending {
                return Ok(Written::Pending);
            }
        }
        let position = self.output.len();
        if let (Some(profile), Some(index)) = (&mut self.profile, profiled.group) {
            let now = profile.now();
            let group = &mut profile.groups[index];
            group.open -= 1;
            if group.open == 0 {
                group.n_bytes += position - group.began.0;
                group.time += now.saturating_sub(group.began.1);
            }
        }
        Ok(Written::Yes)
    }

    /// Notes that an object begins; returns the index of its group.
    fn enter_group(&mut self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<usize> {
        let entered = Instant::now();
        let class = obj.get_type();
        let address = class.as_ptr() as usize;
        let profile = self.profile();
        let kind = match profile.kinds.get(&address) {
            Some(kind) => *kind,
            None => kind_of_class(&class)?,
        };
        let tracking = Tracking::of(kind, obj)?;
        let index = match profile.indices.get(&(address, tracking)) {
            Some(index) => *index,
            None => {
                let names = RootNames::One(profile.name.clone());
                // This calls `__repr__` of keys, and that is user code.
                self.epoch += 1;
                let path = self.path(py, &names);
                let profile = self.profile();
                let index = profile.groups.len();
                profile.kinds.insert(address, kind);
                profile.indices.insert((address, tracking), index);
                profile.groups.push(Group {
                    class: class.unbind(),
                    tracking,
                    path,
                    n_objects: 0,
                    n_bytes: 0,
                    time: Duration::ZERO,
                    open: 0,
                    began: (0, Duration::ZERO),
                });
                index
            }
        };
        // Within its own constructor arguments an object begins more than once.
        let is_new = !self.reentries.contains_key(&(obj.as_ptr() as usize));
        let position = self.output.len();
        let profile = self.profile();
        profile.excluded += entered.elapsed();
        let now = profile.now();
        let group = &mut profile.groups[index];
        group.n_objects += u64::from(is_new);
        if group.open == 0 {
            group.began = (position, now);
        }
        group.open += 1;
        Ok(index)
    }

    fn profile(&mut self) -> &mut Profile {
        match &mut self.profile {
            Some(profile) => profile,
            None => unreachable!("only called with a profile"),
        }
    }
}

/// Class, path of the first object, number of objects, bytes, seconds, tracking.
type Row = (Py<PyType>, String, u64, u64, f64, &'static str);

/// Encode a graph and tell what went through reducers.
#[pyfunction]
#[pyo3(signature = (obj, name, externals=None, reducers=None, /))]
pub fn slow_path(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    name: &str,
    externals: Option<&Bound<'_, PyAny>>,
    reducers: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Row>> {
    let mut encoder = Encoder::new(py, externals, None, reducers, None, usize::MAX)?;
    encoder.profile = Some(Box::new(Profile::new(name)));
    encoder.add_root(py, obj, &RootNames::One(name.to_owned()))?;
    let groups = std::mem::take(&mut encoder.profile().groups);
    let row = |group: Group| {
        (
            group.class,
            group.path,
            group.n_objects,
            group.n_bytes,
            group.time.as_secs_f64(),
            group.tracking.name(),
        )
    };
    Ok(groups.into_iter().map(row).collect())
}
