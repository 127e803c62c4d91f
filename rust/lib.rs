//! Rust core of pams-parallel. What each module is for: docs/architecture.md.

pub mod chunking;
pub mod error;
pub mod known_floats;
pub mod mersenne;
pub mod process_watch;
mod py;
pub mod random_states;
pub mod stretches;
pub mod wire;

use pyo3::prelude::*;

/// Extension module; its contract for Python is `python/pams_parallel/_core.pyi`.
// The walkers rely on the GIL between two steps, so free-threaded builds are told so.
#[pymodule(gil_used = true)]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::py::{
        attributes::changed_attributes,
        attributes::positions_with,
        decoder::{loads, Decoder},
        encoder::{slow_path, Encoder},
        errors::{ForeignReferenceError, SnapshotDecodeError},
        functions::{chunk_bounds, index_of},
        graph::{replica::Replica, source::Source},
        packed_states::{RandomStatePacker, RandomStates},
        processes::{end_with_process, process_start_time},
        watch::Watch,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::py::interpreter::check(module.py())
    }
}
