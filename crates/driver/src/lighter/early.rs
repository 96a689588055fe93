//! A constant that several ways set at their ends is set once, before they part.
//!
//! ```text
//!     if r2 > r3 goto out                   r0 = 2
//!     …                                     if r2 > r3 goto out
//!     if r4 != 8 goto out             →     …
//!     …                                     if r4 != 8 goto out
//! out: r0 = 2                               …
//!     exit                             out: exit
//! ```
//! The verifier comes to `out` once for each way into it, and to what stands before the first question once.

use std::collections::BTreeMap;

use bpf_facts::Analysis;
use bpf_isa::{Imm64Kind, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Dominators, Function, Op, Terminator, predecessors};

use super::edit::Form;

/// What it is called in reports.
pub(super) const NAME: &str = "set-early";
/// Blocks upward from where the constant is set, at most.
const FURTHEST: usize = 24;

/// All such forms: of each constant, from the block that is furthest up.
pub(super) fn forms(f: &Function, analysis: &Analysis) -> Vec<Form> {
    let preds = predecessors(f);
    let dominators = Dominators::of(f);
    // Where each constant is set first of all.
    let mut places: BTreeMap<(usize, u64), Vec<(BlockId, usize)>> = BTreeMap::new();
    for &b in &f.layout {
        for (i, op) in f.block(b).ops.iter().enumerate() {
            let Some((r, value)) = constant(op) else { continue };
            let before = &f.block(b).ops[..i];
            if !before.iter().any(|o| o.insn.uses().contains(r) || o.insn.defs().contains(r)) {
                places.entry((r.index(), value)).or_default().push((b, i));
            }
        }
    }
    let mut forms = Vec::new();
    for ((r, _), places) in places {
        let Some(r) = Reg::new(r as u8) else { continue };
        let mut from: Vec<BlockId> = Vec::new();
        for (b, _) in &places {
            let mut at = *b;
            for _ in 0..FURTHEST {
                let Some(up) = dominators.idom(at) else { break };
                if !from.contains(&up) {
                    from.push(up);
                }
                at = up;
            }
        }
        from.sort_by_key(|d| f.layout.iter().position(|b| b == d));
        for d in from {
            if analysis.live().after(d, f.block(d).ops.len()).regs.contains(r) {
                continue;
            }
            let here: Vec<(BlockId, usize)> = places
                .iter()
                .copied()
                .filter(|(b, i)| *b != d && dominators.dominates(d, *b) && is_clear(f, &preds, d, *b, *i, r))
                .collect();
            if here.is_empty() {
                continue;
            }
            let mut new = f.clone();
            let (first, at) = here[0];
            let op = f.block(first).ops[at].clone();
            for (b, i) in &here {
                new.block_mut(*b).ops.remove(*i);
            }
            if !ends_with(&f.block(d).ops, r, &op.insn) {
                new.block_mut(d).ops.push(op);
            }
            forms.push(Form::new(NAME, new));
        }
    }
    forms
}

/// The register and the constant that an operation sets it to; of `w1 = 5` and `r1 = 5` the same.
fn constant(op: &Op) -> Option<(Reg, u64)> {
    if op.link.is_some() {
        return None;
    }
    match op.insn {
        Insn::Mov { width: Width::W64, dst, src: Src::Imm(i) } => Some((dst, i64::from(i) as u64)),
        Insn::Mov { width: Width::W32, dst, src: Src::Imm(i) } => Some((dst, u64::from(i as u32))),
        Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm } => Some((dst, imm)),
        _ => None,
    }
}

/// Whether the last thing that operations do to a register is just that.
fn ends_with(ops: &[Op], r: Reg, insn: &Insn) -> bool {
    ops.iter().rev().find(|o| o.insn.defs().contains(r)).is_some_and(|o| o.link.is_none() && o.insn == *insn)
}

/// Whether nothing on any way from the end of `d` to operation `i` of `b` reads or writes a register.
fn is_clear(f: &Function, preds: &[Vec<BlockId>], d: BlockId, b: BlockId, i: usize, r: Reg) -> bool {
    if f.block(d).term.uses().contains(r) || !matches!(f.block(d).term, Terminator::Goto(_) | Terminator::Branch { .. })
    {
        return false;
    }
    // Backwards from `b` to `d`, which dominates it.
    let mut between = vec![];
    let mut waiting: Vec<BlockId> = preds[b.index()].clone();
    while let Some(x) = waiting.pop() {
        if x == d || between.contains(&x) {
            continue;
        }
        between.push(x);
        waiting.extend(&preds[x.index()]);
    }
    let touches = |o: &Op| o.insn.uses().contains(r) || o.insn.defs().contains(r);
    between.iter().all(|x| {
        // The place itself, come to again: what follows it there must leave the constant alone.
        let ops = &f.block(*x).ops;
        let ops: Vec<&Op> = ops.iter().enumerate().filter(|(n, _)| *x != b || *n != i).map(|(_, o)| o).collect();
        !ops.into_iter().any(touches) && !f.block(*x).term.uses().contains(r)
    })
}
