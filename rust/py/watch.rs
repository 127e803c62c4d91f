//! What a worker has to know of every agent it asks, with as little work as possible: most agents
//! submit nothing and change nothing but their generator.

use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::attributes::changed_attributes;
use super::buffer::Buffer;
use super::graph::replica::Replica;
use super::numbers::numbers as read_numbers;
use super::packed_states::RandomStatePacker;
use super::random::instance_dict;
use super::runtime::Runtime;

/// How many agents ahead of the one that is asked are fetched into the cache.
const DISTANCE: usize = 2;

/// The mark of the first agent; `python/pams_parallel/marks.py` has the others.
const FIRST_MARK: u32 = 2;

/// Where the main process can read which agent is being asked.
struct Mark(Buffer);

impl Mark {
    fn get(obj: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Buffer::get(obj)?;
        match buffer.shared_word(0) {
            Some(_) => Ok(Mark(buffer)),
            None => Err(PyValueError::new_err(
                "mark must be a writable, aligned buffer of at least 4 bytes",
            )),
        }
    }

    fn set(&self, position: usize) {
        if let Some(word) = self.0.shared_word(0) {
            // The reader is another process, which also looks when this one has crashed.
            word.store(
                (position as u32).saturating_add(FIRST_MARK),
                Ordering::Relaxed,
            );
        }
    }
}

/// The attributes of an agent before it was asked.
enum Before {
    /// Those that the replica has recorded.
    Recorded,
    Copy(Py<PyDict>),
}

/// Watches agents while they are asked one after the other.
#[pyclass(module = "pams_parallel._core")]
pub struct Watch {
    agents: Py<PyList>,
    packer: Py<RandomStatePacker>,
    /// The agents are the replica's, and these are their numbers.
    replica: Option<(Py<Replica>, Vec<u32>)>,
    /// Position of the agent that is asked, or of the next one.
    position: usize,
    before: Option<Before>,
    changed: Option<Py<PyList>>,
    is_packed: bool,
    mark: Option<Mark>,
}

#[pymethods]
impl Watch {
    #[new]
    #[pyo3(signature = (agents, packer, replica=None, numbers=None, mark=None))]
    fn new(
        agents: &Bound<'_, PyList>,
        packer: &Bound<'_, RandomStatePacker>,
        replica: Option<&Bound<'_, Replica>>,
        numbers: Option<&Bound<'_, PyAny>>,
        mark: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let replica = match (replica, numbers) {
            (Some(replica), Some(numbers)) => {
                Some((replica.clone().unbind(), read_numbers(numbers)?))
            }
            _ => None,
        };
        Ok(Watch {
            agents: agents.clone().unbind(),
            packer: packer.clone().unbind(),
            replica,
            position: 0,
            before: None,
            changed: None,
            is_packed: false,
            mark: mark.map(Mark::get).transpose()?,
        })
    }

    /// Take note of the attributes of the next agent, which is about to be asked, and mark it.
    fn begin(&mut self, py: Python<'_>) -> PyResult<()> {
        let agent = self.agent(py)?;
        if let Some(mark) = &self.mark {
            mark.set(self.position);
        }
        let dict = instance_dict(&agent)?;
        self.before = match &self.replica {
            Some((replica, numbers)) => {
                let replica = replica.try_borrow(py)?;
                let packer = self.packer.try_borrow(py)?;
                let ahead = self.position + 2 * DISTANCE;
                let numbers_at = |at| [numbers.get(at).copied(), packer.number_at(at)];
                for number in numbers_at(ahead).into_iter().flatten() {
                    replica.graph().prefetch_node(number);
                }
                for number in numbers_at(ahead - DISTANCE).into_iter().flatten() {
                    replica.graph().prefetch(Runtime::get(py)?, number);
                }
                let number = numbers.get(self.position);
                number
                    .is_some_and(|number| replica.is_as_recorded(*number, &agent))
                    .then_some(Before::Recorded)
            }
            None => None,
        };
        if self.before.is_none() {
            let copy = PyDict::new(py);
            copy.update(dict.as_mapping())?;
            self.before = Some(Before::Copy(copy.unbind()));
        }
        Ok(())
    }

    /// Look at the agent after it was asked; returns whether there is nothing to tell.
    #[pyo3(signature = (orders, /))]
    fn end(&mut self, orders: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = orders.py();
        let agent = self.agent(py)?;
        self.changed = self.changes(py, &agent)?;
        let prng = agent.getattr_opt(intern!(py, "prng"))?;
        let prng = prng.unwrap_or_else(|| py.None().into_bound(py));
        self.is_packed = self.packer.try_borrow_mut(py)?.add(&prng)?;
        self.position += 1;
        let orders = orders.cast_exact::<PyList>();
        let is_silent = orders.is_ok_and(|orders| orders.is_empty());
        Ok(is_silent && self.is_packed && self.changed.is_none())
    }

    /// Attributes that the latest agent has added, deleted or assigned another object.
    #[getter]
    fn changed<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        match &self.changed {
            Some(changed) => changed.bind(py).clone(),
            None => PyList::empty(py),
        }
    }

    /// Whether the state of the latest agent's generator was packed.
    #[getter]
    fn is_packed(&self) -> bool {
        self.is_packed
    }
}

impl Watch {
    fn agent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let agents = self.agents.bind(py);
        agents
            .get_item(self.position)
            .map_err(|_| PyIndexError::new_err("all agents have been asked"))
    }

    /// `None` if there are none.
    fn changes(
        &mut self,
        py: Python<'_>,
        agent: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyList>>> {
        let before = match (self.before.take(), &self.replica) {
            (Some(Before::Recorded), Some((replica, numbers))) => {
                let number = numbers[self.position];
                let replica = replica.try_borrow(py)?;
                if replica.is_as_recorded(number, agent) {
                    return Ok(None);
                }
                replica.recorded_attributes(py, number)?
            }
            (Some(Before::Copy(before)), _) => before.bind(py).clone(),
            _ => return Ok(None),
        };
        let changed = changed_attributes(&before, &instance_dict(agent)?)?;
        Ok((!changed.is_empty()).then(|| changed.unbind()))
    }
}
