//! Pairs of shifts that only cut bits off.
//!
//! ```text
//! r1 <<= 32
//! r1 >>= 32                →    w1 = w1
//!
//! r1 <<= 56
//! r1 >>= 56                →    r1 &= 255
//!
//! r1 <<= 32
//! r1 s>>= 32               →    r1 = (s32)r1          (cpu v4)
//! ```

use bpf_isa::{AluOp, Insn, Size, Src, Width};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Shift;

impl Pass for Shift {
    fn name(&self) -> &'static str {
        "shifts"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for i in 0..v.ops.len() {
            let Insn::Alu { op: AluOp::Lsh, width, dst, src: Src::Imm(k) } = v.ops[i].insn else { continue };
            // The partner: the next operation on the same register.
            let Some(j) = (i + 1..v.ops.len()).find(|j| {
                let o = v.ops[*j].insn;
                o.uses().union(o.defs()).contains(dst)
            }) else {
                continue;
            };
            let Insn::Alu { op: right, width: w, dst: d, src: Src::Imm(m) } = v.ops[j].insn else { continue };
            if (w, d) != (width, dst) || !matches!(right, AluOp::Rsh | AluOp::Arsh) {
                continue;
            }
            let signed = right == AluOp::Arsh;
            let bits = width.bits() as i32;
            let mut push = |insns: Vec<Insn>| {
                let mut with: Vec<_> = insns.into_iter().map(|x| v.op_like(j, x)).collect();
                let between = v.edit(i, j + 1, &[i, j], &[]);
                with.splice(0..0, between);
                out.push(v.replace(i, j + 1, with, self.name()));
            };
            push(vec![]);
            if !signed && k == m {
                if bits == 64 && k == 32 {
                    push(vec![Insn::Mov { width: Width::W32, dst, src: Src::Reg(dst) }]);
                } else if bits - k <= 31 {
                    let mask = (1i64 << (bits - k)) - 1;
                    push(vec![Insn::Alu { op: AluOp::And, width, dst, src: Src::Imm(mask as i32) }]);
                }
            }
            // Only one of the two matters where the other's bits are known.
            if m > k {
                push(vec![Insn::Alu { op: right, width, dst, src: Src::Imm(m - k) }]);
            }
            if k > m {
                push(vec![Insn::Alu { op: AluOp::Lsh, width, dst, src: Src::Imm(k - m) }]);
            }
            if signed && k == m && v.settings.cpu >= 4 {
                let from = match bits - k {
                    8 => Some(Size::B),
                    16 => Some(Size::H),
                    32 if bits == 64 => Some(Size::W),
                    _ => None,
                };
                if let Some(from) = from {
                    push(vec![Insn::MovSx { width, from, dst, src: dst }]);
                }
            }
            // A copy just above the pair, and the pair, are one 32-bit copy.
            if !signed
                && (bits, k, m) == (64, 32, 32)
                && j == i + 1
                && let Some(p) = i.checked_sub(1)
                && let Insn::Mov { width: Width::W64, dst: c, src: Src::Reg(s) } = v.ops[p].insn
                && c == dst
            {
                let with = vec![v.op_like(p, Insn::Mov { width: Width::W32, dst, src: Src::Reg(s) })];
                out.push(v.replace(p, j + 1, with, self.name()));
            }
        }
        // A copy followed by the zero-extension of the copy.
        for i in 1..v.ops.len() {
            if let (
                Insn::Mov { width: Width::W64, dst: c, src: Src::Reg(s) },
                Insn::Mov { width: Width::W32, dst, src: Src::Reg(t) },
            ) = (v.ops[i - 1].insn, v.ops[i].insn)
                && c == dst
                && t == dst
            {
                let with = vec![v.op_like(i, Insn::Mov { width: Width::W32, dst, src: Src::Reg(s) })];
                out.push(v.replace(i - 1, i + 1, with, self.name()));
            }
        }
        out
    }
}
