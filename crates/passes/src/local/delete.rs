//! What can go, goes: dead results, calls without effect whose results nobody reads, dead stack stores, and everything that
//! changes nothing.
//!
//! ```text
//! r1 = *(u16 *)(r2 + 0)
//! r1 &= 0xffff             →    r1 = *(u16 *)(r2 + 0)
//!
//! r3 &= 0xffff                  (the mask does not reach the two bytes stored)
//! *(u16 *)(r10 - 8) = r3   →    *(u16 *)(r10 - 8) = r3
//! ```
//!
//! The prover decides what "changes nothing" means, from the facts before to what is live after.

use bpf_facts::{Region, has_no_effect};
use bpf_isa::{Insn, Reg, RegSet, Src};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;
use crate::view::is_pure;

pub struct Delete;

impl Pass for Delete {
    fn name(&self) -> &'static str {
        "delete"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for i in (0..v.ops.len()).rev() {
            let insn = v.ops[i].insn;
            match insn.def() {
                Some(d) if is_pure(&insn) => {
                    if !v.live_after(i).regs.contains(d) {
                        return vec![v.replace(i, i + 1, vec![], self.name())];
                    }
                    if v.ops[i].link.is_some() {
                        continue;
                    }
                    if may_be_redundant(v, i, &insn, d) {
                        out.push(v.replace(i, i + 1, vec![], self.name()));
                    }
                    if let Some(r) = until_consumed(v, i, d) {
                        out.push(r);
                    }
                }
                _ => {
                    let is_unread = || RegSet::CALLER_SAVED.intersect(v.live_after(i).regs).is_empty();
                    if matches!(insn, Insn::Call(_)) && is_unread() && has_no_effect(&v.states[i], &v.ops[i], v.env) {
                        return vec![v.replace(i, i + 1, vec![], self.name())];
                    }
                    if dead_store(v, i, &insn) {
                        return vec![v.replace(i, i + 1, vec![], self.name())];
                    }
                    if stores_what_is_there(v, i, &insn) {
                        out.push(v.replace(i, i + 1, vec![], self.name()));
                    }
                    if let Some(r) = overwritten_store(v, i, &insn) {
                        out.push(r);
                    }
                }
            }
        }
        out
    }
}

/// A cheap filter: could this leave its register as it was?
fn may_be_redundant(v: &View, i: usize, insn: &Insn, d: Reg) -> bool {
    if !v.readable(i, d) {
        return false;
    }
    match *insn {
        Insn::Alu { src: Src::Imm(_), .. } | Insn::Endian { .. } | Insn::MovSx { .. } => true,
        Insn::Mov { src, .. } => match src {
            Src::Reg(s) if s == d => true,
            Src::Reg(s) => {
                let (a, b) = (v.value(i, s), v.value(i, d));
                a.same_base(b) || (a.as_const().is_some() && a.as_const() == b.as_const()) || copied(v, i, s, d)
            }
            Src::Imm(_) => v.constant(i, d).is_some(),
        },
        Insn::LoadImm64 { .. } => v.constant(i, d).is_some(),
        // A reload of what was just stored or loaded.
        Insn::Load { base, off, size, .. } => v.ops[..i].iter().any(|o| match o.insn {
            Insn::Load { base: b, off: p, size: z, dst, .. } => (b, p, z) == (base, off, size) && dst == d,
            Insn::Store { base: b, off: p, src: Src::Reg(s), .. } => (b, p) == (base, off) && s == d,
            _ => false,
        }),
        _ => false,
    }
}

/// Whether a copy between the two stands above.
fn copied(v: &View, i: usize, a: Reg, b: Reg) -> bool {
    v.ops[..i].iter().any(|o| match o.insn {
        Insn::Mov { dst, src: Src::Reg(s), .. } => (dst, s) == (a, b) || (dst, s) == (b, a),
        _ => false,
    })
}

/// Deletion judged where the register is dead again: the bits it changes may never be looked at.
fn until_consumed(v: &View, i: usize, d: Reg) -> Option<Rewrite> {
    match v.ops[i].insn {
        Insn::Alu { .. } | Insn::MovSx { .. } | Insn::Endian { .. } | Insn::Neg { .. } => {}
        Insn::Mov { src: Src::Reg(s), .. } if s == d => {}
        _ => return None,
    }
    let mut j = i + 1;
    let mut value_kept = false;
    while j < v.ops.len() && j < i + 12 {
        let insn = &v.ops[j].insn;
        // Only results that forget some bits of the register can make a change invisible.
        value_kept |= insn.uses().contains(d);
        if matches!(insn, Insn::Call(_) | Insn::CallX { .. }) {
            return None;
        }
        j += 1;
        if !v.live[j].regs.contains(d) {
            return value_kept.then(|| v.replace(i, j, v.edit(i, j, &[i], &[]), "delete"));
        }
        if v.ops[j - 1].insn.def() == Some(d) {
            let forgets = matches!(
                v.ops[j - 1].insn,
                Insn::Alu { .. } | Insn::Endian { .. } | Insn::MovSx { .. } | Insn::Mov { .. }
            );
            return forgets.then(|| v.replace(i, j, v.edit(i, j, &[i], &[]), "delete"));
        }
    }
    if j == v.ops.len() && v.term.uses().contains(d) && !v.live[j + 1].regs.contains(d) {
        return Some(v.replace_tail(i, v.edit(i, j, &[i], &[]), v.term.clone(), "delete"));
    }
    None
}

fn dead_store(v: &View, i: usize, insn: &Insn) -> bool {
    let Insn::Store { size, base, off, .. } = *insn else { return false };
    let Some((Region::Stack, _, at)) = v.value(i, base).pointer_at() else { return false };
    let at = at + i64::from(off);
    (0..i64::from(size.bytes())).all(|k| !v.live_after(i).stack.contains(at + k))
}

/// A constant stored to the frame where that constant is known to be.
fn stores_what_is_there(v: &View, i: usize, insn: &Insn) -> bool {
    let Insn::Store { size, base, off, src } = *insn else { return false };
    let Some((Region::Stack, _, at)) = v.value(i, base).pointer_at() else { return false };
    let value = match src {
        Src::Imm(k) => Some(k as i64 as u64),
        Src::Reg(r) => v.constant(i, r),
    };
    let there = v.states[i].stack_bytes(at + i64::from(off), size.bytes()).as_const();
    let mask = u64::MAX >> (64 - size.bits());
    value.is_some_and(|k| there == Some(k & mask))
}

/// A store whose bytes a later one in the block writes again.
fn overwritten_store(v: &View, i: usize, insn: &Insn) -> Option<Rewrite> {
    let Insn::Store { size, base, off, .. } = *insn else { return None };
    for j in i + 1..v.ops.len().min(i + 16) {
        match v.ops[j].insn {
            Insn::Store { size: z, base: b, off: o, .. } if b == base => {
                let (lo, hi) = (i32::from(off), i32::from(off) + size.bytes() as i32);
                let (p, q) = (i32::from(o), i32::from(o) + z.bytes() as i32);
                if p <= lo && hi <= q {
                    return Some(v.replace(i, j + 1, v.edit(i, j + 1, &[i], &[]), "delete"));
                }
            }
            Insn::Call(_) | Insn::CallX { .. } => return None,
            x if x.defs().contains(base) => return None,
            _ => {}
        }
    }
    None
}
