//! The only part of the crate that knows PyO3 and Python objects.

pub mod attributes;
mod buffer;
mod byte_buffer;
pub mod decoder;
pub mod encoder;
pub mod errors;
pub mod functions;
pub mod graph;
pub mod interpreter;
mod interrupts;
mod late;
mod list_memory;
mod numbers;
mod output;
pub mod packed_states;
mod path;
mod prefetch;
pub mod processes;
mod random;
mod runtime;
mod types;
pub mod watch;
