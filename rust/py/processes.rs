//! Ending a worker process together with the main process.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::process_watch;

/// When a process started, in units that only this machine knows; `None` if that is not known.
#[pyfunction]
#[pyo3(signature = (pid, /))]
pub fn process_start_time(pid: i32) -> Option<u64> {
    process_watch::start_time(pid)
}

/// Have this process end when another one is gone; returns whether this platform can do that.
#[pyfunction]
#[pyo3(signature = (pid, start_time, directory, /))]
pub fn end_with_process(
    pid: i32,
    start_time: Option<u64>,
    directory: Option<PathBuf>,
) -> PyResult<bool> {
    let process = process_watch::Process { pid, start_time };
    Ok(process_watch::end_with(process, directory)?)
}
