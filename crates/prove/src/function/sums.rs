//! Sums of the old side's registers that places of the new side may hold: a pointer that moves, where the old side adds an
//! offset to one that stays.
//!
//! These are guesses. What is guessed is shown at the end of each step, and asked of the old side's state at the start of the
//! next; so nothing hangs on which they are but what can be proven.

use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_program::Function;

/// Sums that are tried of a function, at most.
const SUMS: usize = 24;

/// What a function adds to registers that hold pointers, or to copies of them: offsets in registers first, then constants.
pub(super) fn sums(f: &Function) -> Vec<(Reg, Src)> {
    let mut found = Vec::new();
    for &b in &f.layout {
        let ops = &f.block(b).ops;
        for (i, op) in ops.iter().enumerate() {
            let Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: by } = op.insn else { continue };
            let copied = match i.checked_sub(1).map(|i| ops[i].insn) {
                Some(Insn::Mov { width: Width::W64, dst: copy, src: Src::Reg(base) }) if copy == dst => Some(base),
                _ => None,
            };
            let itself = Some(dst).filter(|_| by.reg().is_some());
            let bases = [itself, copied].into_iter().flatten().filter(|base| *base != Reg::R10);
            found.extend(bases.map(|base| (by.reg().is_none(), base, by)));
        }
    }
    // Each once, in the order in which they stand.
    let mut sums: Vec<(Reg, Src)> = Vec::new();
    for constant in [false, true] {
        for (_, base, by) in found.iter().filter(|(is_constant, _, _)| *is_constant == constant) {
            if !sums.contains(&(*base, *by)) {
                sums.push((*base, *by));
            }
        }
    }
    sums.truncate(SUMS);
    sums
}
