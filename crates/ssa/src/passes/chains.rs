//! A sum that is needed where a smaller one of the same pointer is not needed any more goes on from there.
//!
//! ```text
//! before: v3 = add v1, 14                after: v3 = add v1, 14
//!         if v3 > v2 goto ...                   if v3 > v2 goto ...
//!         v5 = add v1, 34                       v5 = add v3, 20     ; in the register of v3
//!         if v5 > v2 goto ...                   if v5 > v2 goto ...
//! ```
//! The copy of the pointer is saved.

use bpf_facts::Env;
use bpf_isa::{AluOp, Width};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::{Graph, live_out};
use crate::{Block, Op, Operand, Ssa, Value};

/// The pass.
pub struct Chains;

/// Values of a function at most: each change looks at all of it again.
const LARGEST: usize = 2_000;

struct Sum {
    block: Block,
    at: usize,
    value: Value,
    base: Operand,
    offset: i64,
}

impl Pass for Chains {
    fn name(&self) -> &'static str {
        "ssa-chains"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let mut changed = false;
        if f.values.len() > LARGEST {
            return false;
        }
        while let Some((to, from, offset)) = find(f) {
            if let Some(i) = f.block_mut(to.0).insts.get_mut(to.1) {
                i.args = vec![Operand::Value(from), Operand::Const(offset)];
                changed = true;
            }
        }
        changed
    }
}

/// A sum, the value it can go on from, and what is to be added to that.
fn find(f: &Ssa) -> Option<((Block, usize), Value, i64)> {
    let graph = Graph::of(f);
    let d = Definitions::of(f);
    let live = live_out(f, &graph);
    let mut sums: Vec<Sum> = vec![];
    for &b in &graph.order {
        for (at, i) in f.block(b).insts.iter().enumerate() {
            if let (Op::Alu(AluOp::Add, Width::W64), Some(value)) = (&i.op, i.result)
                && let Some(offset) = d.constant(i.args[1])
            {
                sums.push(Sum { block: b, at, value, base: i.args[0], offset });
            }
        }
    }
    for to in &sums {
        // The base goes on being needed, or the sum could take its register.
        if !is_needed_behind(f, &live, to.block, to.at, to.base) {
            continue;
        }
        for from in &sums {
            let before = from.block == to.block && from.at < to.at
                || from.block != to.block && graph.dominates(from.block, to.block);
            let more = to.offset - from.offset;
            if from.value != to.value
                && from.base == to.base
                && before
                && more != 0
                && i32::try_from(more).is_ok()
                && graph.loop_depth(from.block) == graph.loop_depth(to.block)
                && !is_needed_behind(f, &live, to.block, to.at, Operand::Value(from.value))
            {
                return Some(((to.block, to.at), from.value, more));
            }
        }
    }
    None
}

/// Whether the operand is read behind instruction `at` of the block.
fn is_needed_behind(f: &Ssa, live: &[Vec<bool>], b: Block, at: usize, o: Operand) -> bool {
    let Some(v) = o.value() else { return true };
    let block = f.block(b);
    live[b.index()][v.index()]
        || block.insts[at + 1..].iter().any(|i| i.args.contains(&o))
        || block.term.reads().any(|r| r == o)
        || block.term.edges().any(|e| e.args.contains(&o))
}
