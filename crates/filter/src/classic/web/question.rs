//! What a node wants of a packet, and asks about a value.

use crate::program::{Comparison, Register};

/// What a packet must have, or it is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Want {
    /// So many bytes behind a place.
    Bound(Option<Register>, u64),
    NotZero(Register),
}

/// A question about a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Question {
    pub(super) a: Register,
    pub(super) comparison: Comparison,
}

impl Question {
    /// The registers that it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = Register> {
        let b = match self.comparison {
            Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) => b.register(),
            Comparison::AnyBit(_) => None,
        };
        [Some(self.a), b].into_iter().flatten()
    }
}
