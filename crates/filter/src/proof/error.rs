//! Why there is no proof.

use crate::safety::Unsafe;

/// Why two programs are not proven equal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unproven {
    /// There are too many ways.
    #[error("there are too many ways through it")]
    TooLarge,
    /// There may be a packet that one accepts and the other does not.
    #[error("where {facts}, the filter {what} a packet, and its optimized form may not")]
    Differ {
        /// What the first does.
        what: &'static str,
        /// What is known of such packets.
        facts: String,
    },
    /// A program that is none: no order, or what it names is not there.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// Something that no term stands for.
    #[error("it has {0}")]
    Unknown(&'static str),
}
