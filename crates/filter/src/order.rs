//! The order of a program's blocks, and the numbers of its registers.

use rustc_hash::FxHashMap;

use crate::program::{BasicBlock, BlockId, Comparison, End, Operand, Program, Register};

/// Blocks that only go on elsewhere are gone around, those with one predecessor that goes nowhere else are joined with it; those
/// that are not reached go. What is left is ordered so that ways on follow, and registers are numbered by first use.
pub(crate) fn order(program: Program, entry: BlockId) -> Program {
    let Program { mut blocks, tables, maps, predicates, .. } = program;
    let through = |blocks: &[BasicBlock], mut to: BlockId| {
        while let (true, End::Goto(next)) = (blocks[to.0].operations.is_empty(), &blocks[to.0].end) {
            to = *next;
        }
        to
    };
    let entry = through(&blocks, entry);
    for i in 0..blocks.len() {
        let mut end = blocks[i].end.clone();
        end.map(|to| through(&blocks, to));
        if let End::Branch { yes, no, .. } | End::Lookup { yes, no, .. } | End::Member { yes, no, .. } = end
            && yes == no
        {
            end = End::Goto(yes);
        }
        blocks[i].end = end;
    }
    // Join.
    let mut predecessors = vec![0usize; blocks.len()];
    predecessors[entry.0] += 1;
    for to in blocks.iter().flat_map(|b| b.end.successors()) {
        predecessors[to.0] += 1;
    }
    let mut post = Vec::new();
    let mut seen = vec![false; blocks.len()];
    let mut stack = vec![(entry, false)];
    while let Some((at, left)) = stack.pop() {
        if left {
            post.push(at);
            continue;
        }
        if std::mem::replace(&mut seen[at.0], true) {
            continue;
        }
        // Ends are copied to where they are: nothing is executed to get there.
        while let End::Goto(next) = blocks[at.0].end {
            let is_end = blocks[next.0].operations.is_empty();
            if predecessors[next.0] > 1 && !is_end {
                break;
            }
            let joined = blocks[next.0].clone();
            blocks[at.0].operations.extend(joined.operations);
            blocks[at.0].end = joined.end;
        }
        stack.push((at, true));
        // The way that is not taken follows the branch: it is put on the stack last, so that it comes out first.
        for next in blocks[at.0].end.successors() {
            if !seen[next.0] {
                stack.push((next, false));
            }
        }
    }
    post.reverse();
    let place: FxHashMap<BlockId, BlockId> = post.iter().enumerate().map(|(i, b)| (*b, BlockId(i))).collect();
    let mut ordered: Vec<BasicBlock> = post.iter().map(|b| blocks[b.0].clone()).collect();
    for block in &mut ordered {
        block.end.map(|to| place[&to]);
    }
    let registers = renumber(&mut ordered);
    Program { blocks: ordered, registers, tables, maps, predicates }
}

/// Registers in the order of their first use; how many there are.
fn renumber(blocks: &mut [BasicBlock]) -> u32 {
    let mut numbers: FxHashMap<Register, Register> = FxHashMap::default();
    let mut of = |r: &mut Register| {
        let next = Register(numbers.len() as u32);
        *r = *numbers.entry(*r).or_insert(next);
    };
    for block in blocks {
        for operation in &mut block.operations {
            operation.registers(&mut of);
        }
        match &mut block.end {
            End::Branch { a, comparison, .. } => {
                of(a);
                if let Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) = comparison
                    && let Operand::Register(b) = b
                {
                    of(b);
                }
            }
            End::Lookup { keys, .. } => keys.iter_mut().for_each(&mut of),
            End::Member { key, .. } => key.iter_mut().for_each(&mut of),
            _ => {}
        }
    }
    numbers.len() as u32
}
