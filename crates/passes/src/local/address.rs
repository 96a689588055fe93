//! Addresses without arithmetic: the access starts from a pointer that is there already.
//!
//! ```text
//! r3 = r7
//! r3 += 14
//! r1 = *(u8 *)(r3 + 9)     →    r1 = *(u8 *)(r7 + 23)
//! ```
//! So does a legacy packet load, which adds a number to its offset (`bpf_gen_ld_abs` in net/core/filter.c):
//!
//! ```text
//! r8 += 6
//! r0 = *(u8 *)skb[r8]      →    r0 = *(u8 *)skb[r8 + 6]
//! ```

use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_program::Op;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Address;

impl Pass for Address {
    fn name(&self) -> &'static str {
        "addresses"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for i in 0..v.ops.len() {
            out.extend(rebase(v, i));
            out.extend(indirect(v, i));
        }
        out
    }
}

/// Every access through the pointer that operation `i` computes goes through another pointer to the
/// same object; then operation `i` (and the copy before it) has no user left.
fn rebase(v: &View, i: usize) -> Option<Rewrite> {
    let Insn::Alu { op: AluOp::Add, width: Width::W64, dst: p, src: Src::Imm(_) } = v.ops[i].insn else { return None };
    if v.ops[i].link.is_some() {
        return None;
    }
    // The copy that started the address, if it stands directly above.
    let start = match i.checked_sub(1).map(|j| v.ops[j].insn) {
        Some(Insn::Mov { width: Width::W64, dst, src: Src::Reg(_) }) if dst == p => i - 1,
        _ => i,
    };
    let mut with = Vec::new();
    for j in i + 1..v.ops.len() {
        let op = &v.ops[j];
        let mut new = op.clone();
        if op.insn.uses().contains(p) {
            if op.is_core() {
                return None;
            }
            new.insn = through_other(v, j, start, p)?;
        }
        with.push(new);
        if op.insn.defs().contains(p) || !v.live_after(j).regs.contains(p) {
            return Some(v.replace(start, j + 1, with, "addresses"));
        }
    }
    None
}

/// The packet load at `j` by the number that was there before the addition whose sum nobody else reads.
fn indirect(v: &View, j: usize) -> Option<Rewrite> {
    let Insn::LdInd { size, src: p, imm } = v.ops[j].insn else { return None };
    let i = v.ops[..j].iter().rposition(|o| o.insn.defs().contains(p))?;
    let is_read = v.ops[i + 1..j].iter().any(|o| o.insn.uses().contains(p));
    // What the load leaves in the register is nothing of the sum.
    let is_read_later = !v.ops[j].insn.defs().contains(p) && v.live_after(j).regs.contains(p);
    if is_read || v.ops[i].link.is_some() || is_read_later {
        return None;
    }
    let insn = match v.ops[i].insn {
        Insn::Alu { op: AluOp::Add, dst, src: Src::Imm(more), .. } if dst == p => {
            Insn::LdInd { size, src: p, imm: imm.checked_add(more)? }
        }
        Insn::Mov { dst, src: Src::Imm(start), .. } if dst == p => Insn::LdAbs { size, imm: imm.checked_add(start)? },
        _ => return None,
    };
    let load = Op { insn, ..v.ops[j].clone() };
    let with = v.ops[i + 1..j].iter().cloned().chain([load]).collect();
    Some(v.replace(i, j + 1, with, "addresses"))
}

/// The access at `j` through a register that held the same object before `start` and still does.
fn through_other(v: &View, j: usize, start: usize, p: Reg) -> Option<Insn> {
    let pointer = v.value(j, p);
    let candidates = Reg::all().rev().filter(|r| *r != p);
    for r in candidates {
        let other = v.value(j, r);
        if !pointer.same_base(other) || !v.readable(start, r) {
            continue;
        }
        if v.ops[start..j].iter().any(|o| o.insn.defs().contains(r)) {
            continue;
        }
        let d = pointer.num.as_signed_const()?.checked_sub(other.num.as_signed_const()?)?;
        let shift = |off: i16| i16::try_from(i64::from(off) + d).ok();
        let insn = match v.ops[j].insn {
            Insn::Load { size, sext, dst, base, off } if base == p => {
                Insn::Load { size, sext, dst, base: r, off: shift(off)? }
            }
            Insn::Store { size, base, off, src } if base == p && src != Src::Reg(p) => {
                Insn::Store { size, base: r, off: shift(off)?, src }
            }
            Insn::Atomic { op, size, base, off, src } if base == p && src != p => {
                Insn::Atomic { op, size, base: r, off: shift(off)?, src }
            }
            _ => return None,
        };
        return Some(insn);
    }
    None
}
