//! What can be wrong with bytes that claim to be a snapshot.

use thiserror::Error;

/// A damaged, truncated or foreign snapshot. Offsets count from the start of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("not a snapshot: it does not begin with the magic bytes")]
    Magic,
    #[error("a snapshot of format version {found}, but this package reads version {expected}")]
    Version { found: u16, expected: u16 },
    #[error("truncated snapshot: {needed} bytes needed at offset {at}, {left} left")]
    Truncated { at: usize, needed: u64, left: usize },
    #[error("damaged snapshot: the checksum does not match")]
    Checksum,
    #[error("damaged snapshot: unknown instruction {code:#04x} at offset {at}")]
    Instruction { code: u8, at: usize },
    #[error("damaged snapshot: a number of more than 64 bits at offset {at}")]
    Varint { at: usize },
    #[error("damaged snapshot: {what} at offset {at}")]
    Malformed { what: &'static str, at: usize },
    #[error("the snapshot refers to external object {index}, but {given} were given")]
    External { index: u32, given: usize },
    #[error(
        "frame {found} does not follow the latest frame that the replica has ({}) of the same \
         source: a keyframe is needed",
        latest.map_or("none".to_owned(), |latest| latest.to_string())
    )]
    Sequence { found: u64, latest: Option<u64> },
}

pub type Result<T> = std::result::Result<T, DecodeError>;
