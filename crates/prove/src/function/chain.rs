//! Straight runs of blocks.

use std::collections::BTreeSet;

use bpf_program::{BlockId, Function, Op, Terminator};

/// A straight run of blocks, each the only way into the next.
pub(super) struct Chain {
    pub(super) ops: Vec<Op>,
    pub(super) last: BlockId,
    /// Jumps to shared blocks that were wanted and not there.
    pub(super) extra: u32,
}

/// The run from `start` along jumps to blocks that nothing else leads to, and `extra` others.
pub(super) fn chain(f: &Function, preds: &[Vec<BlockId>], start: BlockId, extra: u32) -> Chain {
    let mut extra = extra;
    let mut ops = f.block(start).ops.clone();
    let mut last = start;
    let mut seen = BTreeSet::from([start]);
    while let Terminator::Goto(t) = f.block(last).term {
        if t == f.entry() || !seen.insert(t) {
            break;
        }
        if preds[t.index()].len() != 1 {
            if extra == 0 {
                break;
            }
            extra -= 1;
        }
        ops.extend(f.block(t).ops.iter().cloned());
        last = t;
    }
    Chain { ops, last, extra }
}
