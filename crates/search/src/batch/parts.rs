//! A batch taken apart, for a searcher with an order of execution of its own.

use super::{Batch, Check};
use crate::lanes::PLACES;
use crate::test_memory::TestMemory;

/// Start, memory and target of some tests.
pub(crate) struct Parts<const N: usize> {
    /// Registers at the start.
    pub start: [[u64; N]; PLACES],
    /// Memory as it is at the start.
    pub sandbox: TestMemory<N>,
    /// Registers that must agree at the end, and their values.
    pub want: Vec<(usize, [u64; N])>,
    /// Words of memory that must: where, which bits, what.
    pub words: Vec<Word<N>>,
}

/// Places of a word in all lanes, the bits that count, and their values.
pub(crate) type Word<const N: usize> = ([u32; N], [u64; N], [u64; N]);

impl<const N: usize> Batch<N> {
    /// Takes it apart.
    pub(crate) fn into_parts(mut self) -> Parts<N> {
        self.sandbox.undo(&self.writes);
        self.sandbox.journal.clear();
        self.sandbox.faults = 0;
        let words = self.checks.iter().map(|Check { at, mask, want }| (*at, *mask, *want)).collect();
        Parts { start: std::array::from_fn(|r| self.values[r]), sandbox: self.sandbox, want: self.want, words }
    }
}
