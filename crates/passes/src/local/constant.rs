//! Constants go where they are used.
//!
//! ```text
//! r1 = 0                        *(u32 *)(r10 - 4) = 0
//! *(u32 *)(r10 - 4) = r1   →    (r1 is dead)
//!
//! r2 = 5 ll                →    r2 = 5
//! if r1 == r3 (r3 is 7)    →    if r1 == 7
//! ```

use bpf_facts::Region;
use bpf_isa::{AluOp, Imm64Kind, Insn, Reg, Src, Width};
use bpf_program::Terminator;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Constant;

impl Pass for Constant {
    fn name(&self) -> &'static str {
        "constants"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for (i, op) in v.ops.iter().enumerate() {
            if op.link.is_some() {
                continue;
            }
            if let Some(insn) = with_immediate(v, i, &op.insn) {
                out.push(v.replace(i, i + 1, vec![v.op_like(i, insn)], self.name()));
            } else if let Some(insn) = whole_result(v, i, &op.insn) {
                out.push(v.replace(i, i + 1, vec![v.op_like(i, insn)], self.name()));
            }
        }
        let n = v.ops.len();
        if let Terminator::Branch { cond, width, dst, src: Src::Reg(s), taken, fall, origin } = *v.term {
            let term =
                |cond, dst, imm| Terminator::Branch { cond, width, dst, src: Src::Imm(imm), taken, fall, origin };
            if let Some(imm) = v.constant(n, s).and_then(|c| immediate(c, width)) {
                out.push(v.replace_tail(n, vec![], term(cond, dst, imm), self.name()));
            } else if let Some(imm) = v.constant(n, dst).and_then(|c| immediate(c, width)) {
                out.push(v.replace_tail(n, vec![], term(cond.swap(), s, imm), self.name()));
            }
        }
        out
    }
}

/// The immediate that means `value` to an operation of this width.
pub fn immediate(value: u64, width: Width) -> Option<i32> {
    match width {
        Width::W64 => i32::try_from(value as i64).ok(),
        Width::W32 => Some(value as u32 as i32),
    }
}

/// The cheapest way to set a register to `value`, one slot if there is one.
pub fn set_constant(dst: Reg, value: u64) -> Insn {
    if let Some(imm) = immediate(value, Width::W64) {
        Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) }
    } else if value <= u64::from(u32::MAX) {
        Insn::Mov { width: Width::W32, dst, src: Src::Imm(value as u32 as i32) }
    } else {
        Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: value }
    }
}

fn with_immediate(v: &View, i: usize, insn: &Insn) -> Option<Insn> {
    match *insn {
        Insn::Alu { op, width, dst, src: Src::Reg(s) } => {
            let c = v.constant(i, s)?;
            let imm = immediate(c, width)?;
            let bits = width.bits();
            let fine = match op {
                AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod => imm != 0,
                AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => (0..bits as i32).contains(&imm),
                _ => true,
            };
            fine.then_some(Insn::Alu { op, width, dst, src: Src::Imm(imm) })
        }
        Insn::Mov { dst, src: Src::Reg(s), .. } => {
            let c = v.constant(i, s)?;
            let c = if matches!(insn, Insn::Mov { width: Width::W32, .. }) { c & 0xffff_ffff } else { c };
            Some(set_constant(dst, c)).filter(|i| i.slots() == 1)
        }
        Insn::Store { size, base, off, src: Src::Reg(s) } => {
            // Older kernels refuse to store an immediate to the context.
            if v.value(i, base).region().is_none_or(|r| *r == Region::Ctx) {
                return None;
            }
            let c = v.constant(i, s)?;
            let width = if size.bytes() == 8 { Width::W64 } else { Width::W32 };
            let imm = immediate(c, width)?;
            Some(Insn::Store { size, base, off, src: Src::Imm(shorten(imm, size.bits())) })
        }
        Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm } => Some(set_constant(dst, imm)).filter(|i| i.slots() == 1),
        _ => None,
    }
}

/// The immediate of a narrow store in its canonical, sign-extended form.
pub fn shorten(imm: i32, bits: u32) -> i32 {
    if bits >= 32 { imm } else { imm << (32 - bits) >> (32 - bits) }
}

/// An operation whose result the facts know.
fn whole_result(v: &View, i: usize, insn: &Insn) -> Option<Insn> {
    let dst = match *insn {
        Insn::Alu { dst, .. } | Insn::Neg { dst, .. } | Insn::Endian { dst, .. } | Insn::MovSx { dst, .. } => dst,
        Insn::Load { dst, .. } => dst,
        _ => return None,
    };
    let c = v.states[i + 1].reg(dst).as_const()?;
    Some(set_constant(dst, c)).filter(|i| i.slots() == 1)
}
