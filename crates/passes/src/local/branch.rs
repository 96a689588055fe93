//! Conditional jumps: known ones become `goto`, 64-bit comparisons of 32-bit numbers become 32-bit
//! ones, so that the shifts that prepared them fall away.
//!
//! ```text
//! r1 <<= 32
//! r1 s>>= 32
//! if r1 s> 5 goto L        →    if w1 s> 5 goto L
//! ```

use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_program::Terminator;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Branch;

impl Pass for Branch {
    fn name(&self) -> &'static str {
        "branches"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let n = v.ops.len();
        let Terminator::Branch { cond, width, dst, src, taken, fall, origin } = *v.term else { return vec![] };
        let mut out = Vec::new();
        if taken != fall {
            let known = |r: Reg| !v.value(n, r).is_unknown();
            if known(dst) {
                out.push(v.replace_tail(n, vec![], Terminator::Goto(taken), self.name()));
                out.push(v.replace_tail(n, vec![], Terminator::Goto(fall), self.name()));
            }
        }
        if width == Width::W64 && v.settings.cpu >= 3 {
            let narrow = Terminator::Branch { cond, width: Width::W32, dst, src, taken, fall, origin };
            // Shifts in the block that only prepare the comparison go with it.
            let shifts: Vec<usize> = (0..n)
                .filter(|i| {
                    matches!(v.ops[*i].insn, Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, dst: d, src: Src::Imm(32), .. } if d == dst || src == Src::Reg(d))
                })
                .collect();
            if let (Some(&first), true) = (shifts.first(), shifts.len() >= 2) {
                out.push(v.replace_tail(first, v.edit(first, n, &shifts, &[]), narrow.clone(), self.name()));
                // The compared register may have been a copy made for the shifts.
                if let Some(p) = first.checked_sub(1)
                    && let Insn::Mov { width: Width::W64, dst: c, src: Src::Reg(s) } = v.ops[p].insn
                    && c == dst
                    && let Some(t) = narrow.map_regs(|r| if r == c { s } else { r })
                {
                    let mut drop = shifts.clone();
                    drop.push(p);
                    out.push(v.replace_tail(p, v.edit(p, n, &drop, &[]), t, self.name()));
                }
            }
            out.push(v.replace_tail(n, vec![], narrow, self.name()));
        }
        out
    }
}
