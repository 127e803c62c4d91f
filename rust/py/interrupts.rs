//! Interrupts (Ctrl-C) of what can take seconds.

use pyo3::prelude::*;

/// Steps between two looks: together they take a few milliseconds.
const INTERVAL: u32 = 1 << 16;

/// Counts steps, and looks now and then whether there is a signal that Python has to handle.
#[derive(Default)]
pub struct Interrupts {
    n_steps: u32,
}

impl Interrupts {
    /// Takes note of a step. Runs the handler of a signal, once in a while.
    #[inline]
    pub fn look(&mut self, py: Python<'_>) -> PyResult<()> {
        self.n_steps = self.n_steps.wrapping_add(1);
        if self.n_steps.is_multiple_of(INTERVAL) {
            return py.check_signals();
        }
        Ok(())
    }
}
