//! Which loads are checked, and how far.
//!
//! What was checked on every way to a load is not checked again. Where a block begins to read from a base, all that it reads from
//! there is checked at once: the operations of a block are all executed or the packet is rejected, so that it makes no difference
//! which of them rejects it.
//!
//! ```text
//! v0 = packet[12:2]        captured >= 24 ?  v0 = packet[12:2]
//! v1 = packet[23:1]   →                      v1 = packet[23:1]
//! ```

use crate::program::{BlockId, Operation, Program, Register};
use crate::safety::{Checks, Reach};

/// The checks of a program, which [`crate::safety::verify_checks`] verifies.
pub(super) fn plan(program: &Program) -> Checks {
    let mut entries: Vec<Option<Reach>> = vec![None; program.blocks.len()];
    entries[0] = Some(Reach::default());
    let mut checks = Checks::with_capacity(program.blocks.len());
    for (i, block) in program.blocks.iter().enumerate() {
        let mut reach = entries[i].take().unwrap_or_default();
        let mut of_block = vec![None; block.operations.len()];
        for (at, operation) in block.operations.iter().enumerate() {
            if let Some((base, wanted)) = operation.wants()
                && reach.of(base) < Some(wanted)
            {
                let end = furthest(&block.operations[at..], base);
                reach.extend(base, end);
                of_block[at] = Some(end);
            }
            operation.writes().into_iter().for_each(|to| reach.forget(to));
        }
        checks.push(of_block);
        for BlockId(to) in block.end.successors() {
            match &mut entries[to] {
                Some(all) => all.meet(&reach),
                None => entries[to] = Some(reach.clone()),
            }
        }
    }
    checks
}

/// The furthest that operations want from a base while it is the same.
fn furthest(operations: &[Operation], base: Option<Register>) -> u64 {
    let mut end = 0;
    for operation in operations {
        if let Some((b, wanted)) = operation.wants()
            && b == base
        {
            end = end.max(wanted);
        }
        if base.is_some() && operation.writes() == base {
            break;
        }
    }
    end
}
