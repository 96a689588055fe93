//! Jumps that lead to a test whose answer is known on that way lead where the answer does (jump threading).
//!
//! ```text
//! if r1 > r2 goto L            if r1 > r2 goto M
//! r3 = 0                       …
//! goto T                  →
//! L:
//! r3 = -22
//! T:
//! if w3 != 0 goto M
//! …
//! ```
//!
//! Two steps, each proven by what is there: every way gets a copy of the test, which changes the graph's shape alone
//! ([`bpf_prove::shape`]); then each copy is a block with facts of its own, and what they decide is a rewrite as any other.
//! Copies of which nothing is decided are not made. This is what `ssa-predicates` does, for functions of any size.

use bpf_facts::{Analysis, Env, Facts};
use bpf_isa::{Insn, Reg, Src};
use bpf_program::{Block, BlockId, Function, Terminator, predecessors, slot_count};

use crate::cfg;

/// Name under which users select it.
pub const NAME: &str = "threads";

/// Blocks for copies that a function gets at most.
const COPIES: usize = 4096;

/// A copy of a test.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    /// The test.
    of: BlockId,
    /// Where the way begins that leads to the copy only.
    from: BlockId,
    /// The copy.
    pub(crate) block: BlockId,
    /// Where it goes on that way.
    pub(crate) to: BlockId,
}

/// A function in which ways have tests of their own, and what these come to; `None` if nothing is to be had by that.
pub(crate) fn copy(f: &Function, env: &Env, may_cost: bool) -> Option<(Function, Vec<Copy>)> {
    let all = decided(f, env);
    if pays(f, &all, env, may_cost) {
        return Some((with(f, &all), all));
    }
    // Each test by itself.
    let mut tests: Vec<BlockId> = all.iter().map(|c| c.of).collect();
    tests.dedup();
    let mut good = Vec::new();
    for test in tests {
        let of_it: Vec<Copy> = numbered(f, all.iter().filter(|c| c.of == test));
        if pays(f, &of_it, env, may_cost) {
            good.extend(of_it);
        }
    }
    let good = numbered(f, good.iter());
    pays(f, &good, env, may_cost).then(|| (with(f, &good), good))
}

/// These copies, numbered from the end of the function's blocks.
fn numbered<'c>(f: &Function, copies: impl Iterator<Item = &'c Copy>) -> Vec<Copy> {
    let number = |n: usize| BlockId((f.blocks.len() + n) as u32);
    copies.enumerate().map(|(n, c)| Copy { block: number(n), ..*c }).collect()
}

/// All ways to tests which these answer.
fn decided(f: &Function, env: &Env) -> Vec<Copy> {
    let preds = predecessors(f);
    let is_test = |b: &&BlockId| {
        let Block { ops, term } = f.block(**b);
        ops.is_empty()
            && matches!(term, Terminator::Branch { taken, fall, .. } if taken != fall && ![taken, fall].contains(b))
    };
    let mut copies = Vec::new();
    for &of in f.layout.iter().filter(|b| **b != f.entry()).filter(is_test) {
        let mut ways = preds[of.index()].clone();
        ways.sort_unstable();
        ways.dedup();
        ways.retain(|p| *p != of && !matches!(f.block(*p).term, Terminator::MayGoto { .. }));
        copies.extend(ways.into_iter().map(|from| Copy { of, from, block: of, to: of }));
    }
    copies.truncate(COPIES);
    let copies = numbered(f, copies.iter());
    let copied = with(f, &copies);
    let facts = Facts::of(&copied, env);
    let answered = copies.into_iter().filter_map(|c| {
        let Terminator::Branch { taken, fall, .. } = copied.block(c.block).term else { return None };
        facts.entry(c.block)?;
        let to = match [true, false].map(|way| facts.edge(&copied, c.block, way).is_some()) {
            [true, false] => taken,
            [false, true] => fall,
            _ => return None,
        };
        Some(Copy { to, ..c })
    });
    let answered: Vec<Copy> = answered.collect();
    numbered(f, answered.iter())
}

/// The function with these copies.
fn with(f: &Function, copies: &[Copy]) -> Function {
    let mut new = f.clone();
    for c in copies {
        let test = f.block(c.of).clone();
        new.blocks.push(test);
        new.block_mut(c.from).term.map_successors(|s| if s == c.of { c.block } else { s });
        new.layout.push(c.block);
    }
    // Those that are left without a way to them.
    bpf_program::drop_unreachable(&mut new);
    new
}

/// Whether the function has fewer slots with these copies gone where they lead to; as many, if it may cost what it saves.
fn pays(f: &Function, copies: &[Copy], env: &Env, may_cost: bool) -> bool {
    if copies.is_empty() {
        return false;
    }
    let mut new = with(f, copies);
    for c in copies {
        new.block_mut(c.block).term = Terminator::Goto(c.to);
    }
    // What was set for the test alone goes, too.
    let analysis = Analysis::of(&new, env);
    let mut idle: Vec<(BlockId, Reg)> = Vec::new();
    for c in copies {
        let Terminator::Branch { dst, src, .. } = f.block(c.of).term else { continue };
        for r in [Some(dst), if let Src::Reg(r) = src { Some(r) } else { None }].into_iter().flatten() {
            let sets = |o: &&bpf_program::Op| o.insn.defs().contains(r);
            let set = f.block(c.from).ops.iter().rev().find(sets);
            let is_set_for_nothing = set.is_some_and(|o| matches!(o.insn, Insn::Mov { .. }))
                && !new.block(c.from).term.uses().contains(r)
                && new.block(c.from).term.successors().all(|s| !analysis.live().entry(s).regs.contains(r));
            if is_set_for_nothing && !idle.contains(&(c.from, r)) {
                idle.push((c.from, r));
            }
        }
    }
    cfg::simplify(&mut new, true);
    let (before, after) = (slot_count(f), slot_count(&new).saturating_sub(idle.len()));
    after < before || may_cost && after == before
}
