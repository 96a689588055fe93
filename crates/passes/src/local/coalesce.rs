//! Values computed where they are wanted.
//!
//! ```text
//! r1 = *(u32 *)(r6 + 0)
//! r1 += 1
//! r2 = r1                  →    r2 = *(u32 *)(r6 + 0)
//!                               r2 += 1
//!
//! r0 = *(u8 *)(r1 + 0)
//! r0 <<= 2
//! r2 = r1
//! r2 += r0                 →    r2 = *(u8 *)(r1 + 0)
//!                               r2 <<= 2
//!                               r2 += r1
//! ```

use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_program::Op;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;
use crate::view::rename_all;

pub struct Coalesce;

impl Pass for Coalesce {
    fn name(&self) -> &'static str {
        "coalesce"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for (i, op) in v.ops.iter().enumerate() {
            let Insn::Mov { width, dst: to, src: Src::Reg(from) } = op.insn else { continue };
            if to == from || op.link.is_some() {
                continue;
            }
            if !v.live_after(i).regs.contains(from) {
                if let Some((j, ops)) = backward(v, i, from, to) {
                    out.push(v.replace(j, i + 1, ops, "coalesce"));
                }
                if let Some(r) = forward(v, i, from, to) {
                    out.push(r);
                }
            }
            out.extend(commuted(v, i, from, to, width));
        }
        out
    }
}

/// What is added to the copy at `i`, and read no more, is computed where the sum is wanted, and the copied added to that.
fn commuted(v: &View, i: usize, from: Reg, to: Reg, width: Width) -> Option<Rewrite> {
    let next = v.ops.get(i + 1).filter(|o| o.link.is_none())?;
    let Insn::Alu { op, width: wide, dst, src: Src::Reg(other) } = next.insn else { return None };
    let commutes = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
    if !commutes || (width, wide) == (Width::W32, Width::W64) || dst != to || other == to || other == from {
        return None;
    }
    if v.live_after(i + 1).regs.contains(other) {
        return None;
    }
    let (j, mut ops) = backward(v, i, other, to)?;
    ops.push(v.op_like(i + 1, Insn::Alu { op, width: wide, dst: to, src: Src::Reg(from) }));
    Some(v.replace(j, i + 2, ops, "coalesce"))
}

/// The operations from where `from` is born up to the one before `i`, with `to` in its place, and where that is.
fn backward(v: &View, i: usize, from: Reg, to: Reg) -> Option<(usize, Vec<Op>)> {
    let mut ops = Vec::new();
    for j in (0..i).rev() {
        let op = &v.ops[j];
        let touches = op.insn.uses().union(op.insn.defs());
        let born = op.insn.defs().contains(from) && !op.insn.uses().contains(from);
        // The new name must be free all the way; at the birth it may still be read.
        let clash = if born { op.insn.defs().contains(to) } else { touches.contains(to) };
        if clash || (op.is_core() && touches.contains(from) && !born) {
            return None;
        }
        let mut new = op.clone();
        if born {
            new.insn = op.insn.with_def(to)?;
            ops.push(new);
            ops.reverse();
            return Some((j, ops));
        }
        new.insn = rename_all(&op.insn, from, to)?;
        ops.push(new);
    }
    None
}

/// Keeps the old name: renames `to` back to `from` after the copy, as long as `to` lives.
fn forward(v: &View, i: usize, from: Reg, to: Reg) -> Option<Rewrite> {
    let mut ops = Vec::new();
    for j in i + 1..v.ops.len() {
        let op = &v.ops[j];
        let touches = op.insn.uses().union(op.insn.defs());
        let reborn = op.insn.defs().contains(to) && !op.insn.uses().contains(to);
        if reborn {
            return Some(v.replace(i, j, ops, "coalesce"));
        }
        let dies = !v.live_after(j).regs.contains(to);
        if op.insn.defs().contains(from) && (!dies || op.insn.uses().contains(from)) {
            return None;
        }
        if op.insn.uses().contains(from) || (op.is_core() && touches.contains(to)) {
            return None;
        }
        let mut new = op.clone();
        new.insn = if op.insn.defs().contains(to) {
            rename_all(&op.insn, to, from)?
        } else {
            crate::view::rename_use(&op.insn, to, from)?
        };
        ops.push(new);
        if dies {
            return Some(v.replace(i, j + 1, ops, "coalesce"));
        }
    }
    let n = v.ops.len();
    if v.live[n + 1].regs.contains(to) || !v.term.uses().contains(to) {
        return None;
    }
    let term = v.term.map_regs(|r| if r == to { from } else { r })?;
    Some(v.replace_tail(i, ops, term, "coalesce"))
}
