//! Variables of a program that is not optimized: where headers begin that stand at varying places. Each has a word of memory.

use rustc_hash::{FxHashMap, FxHashSet};

use super::chain;
use super::code::ClassicError;
use crate::program::{Operation, Program, Register};

/// The variables of a program.
#[derive(Default, Debug)]
pub(super) struct Variables {
    /// The word of each.
    pub(super) words: FxHashMap<Register, u32>,
    /// Those that are read on some way before they are set, where they are 0.
    pub(super) are_read_first: FxHashSet<Register>,
}

impl Variables {
    /// The variables of a program: what is copied to.
    ///
    /// # Errors
    /// If memory has no words for all of them.
    pub(super) fn of(program: &Program) -> Result<Variables, ClassicError> {
        let mut words = FxHashMap::default();
        for operation in program.blocks.iter().flat_map(|b| &b.operations) {
            if let Operation::Copy { to, .. } = operation {
                let next = words.len() as u32;
                words.entry(*to).or_insert(next);
            }
        }
        // The last word is that of loops. Some are left to compute with.
        if words.len() as u32 > chain::WORD {
            return Err(ClassicError::Memory);
        }
        let are_read_first = if words.is_empty() { FxHashSet::default() } else { read_first(program, &words) };
        Ok(Variables { words, are_read_first })
    }
}

/// The variables that are read on some way on which nothing was copied to them.
fn read_first(program: &Program, words: &FxHashMap<Register, u32>) -> FxHashSet<Register> {
    // What is set on all ways to a block. Jumps lead forward.
    let mut before: Vec<Option<FxHashSet<Register>>> = vec![None; program.blocks.len()];
    let mut first = FxHashSet::default();
    before[0] = Some(FxHashSet::default());
    for (i, block) in program.blocks.iter().enumerate() {
        let Some(mut set) = before[i].take() else { continue };
        let mut read = |set: &FxHashSet<Register>, r: Register| {
            if words.contains_key(&r) && !set.contains(&r) {
                first.insert(r);
            }
        };
        for operation in &block.operations {
            operation.reads(&mut |r| read(&set, r));
            if let Operation::Copy { to, .. } = operation {
                set.insert(*to);
            }
        }
        block.end.reads(&mut |r| read(&set, r));
        for next in block.end.successors() {
            match &mut before[next.0] {
                Some(known) => known.retain(|r| set.contains(r)),
                none => *none = Some(set.clone()),
            }
        }
    }
    first
}
