//! Where a run went: its blocks, and what it found that its program did not compute.
//!
//! Whoever follows the program with other values (the prover's path conditions do) needs no more than this to go the same way.

use bpf_program::BlockId;

/// One thing that a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A function begins: the one that was run, or one of those that were added, by number.
    Enter(Option<usize>),
    /// A block begins.
    Block(BlockId),
    /// A load, or the load of an atomic, found this.
    Load(u64),
    /// A call of something outside of the program is over; r0.
    Call(Option<u64>),
    /// A legacy packet load found this, or ended the program.
    Packet(Option<u64>),
    /// The function ends.
    Leave,
}

/// The steps of a run, if anybody wants to know them.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail(Option<Vec<Step>>);

impl Trail {
    pub fn begin(&mut self) {
        self.0 = Some(Vec::new());
    }

    pub fn take(&mut self) -> Vec<Step> {
        self.0.take().unwrap_or_default()
    }

    #[inline]
    pub fn note(&mut self, step: Step) {
        if let Some(steps) = &mut self.0 {
            steps.push(step);
        }
    }
}
