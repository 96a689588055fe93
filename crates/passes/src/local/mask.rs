//! A jump on whether masked bits are zero needs neither the mask nor its result.
//!
//! ```text
//! w1 &= 8
//! if w1 != 0 goto L        →    if w1 & 8 goto L
//!
//! w2 = w1
//! w2 &= 8
//! if w2 != 0 goto L        →    if w1 & 8 goto L
//! ```
//!
//! There is no jump on all bits being zero. Where it pays, [`crate::cfg`] has asked the other way round; but then the side
//! where bits are set may be the one that comes next in memory, and the other one needs a `goto`. That is worth it where a
//! copy goes as well, or where the other side may be laid out next.

use bpf_isa::{AluOp, Cond, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Function, Terminator};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::{View, cfg};

pub struct Mask;

impl Pass for Mask {
    fn name(&self) -> &'static str {
        "masks"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let n = v.ops.len();
        let Terminator::Branch { cond: Cond::Ne, dst, src: Src::Imm(0), taken, fall, origin, .. } = *v.term else {
            return vec![];
        };
        // The result is read by nobody else.
        if v.live.last().is_none_or(|live| live.regs.contains(dst)) {
            return vec![];
        }
        let Some(at) = v.def_before(n, dst) else { return vec![] };
        let Insn::Alu { op: AluOp::And, width, dst: _, src: mask } = v.ops[at].insn else { return vec![] };
        if v.ops[at].link.is_some() || !is_kept(v, at + 1, dst, mask) {
            return vec![];
        }
        // A 32-bit mask tests the same bits in 64 bits if it leaves no upper ones.
        let width = match mask {
            Src::Imm(0..) if v.settings.cpu < 3 => Width::W64,
            _ => width,
        };
        let test = |dst: Reg| Terminator::Branch { cond: Cond::Set, width, dst, src: mask, taken, fall, origin };
        let mut out = Vec::new();
        // What is masked may be a copy made for that.
        if let Some(copy) = v.def_before(at, dst)
            && let Insn::Mov { src: Src::Reg(source), width: copied, .. } = v.ops[copy].insn
            && (copied == Width::W64 || width == Width::W32)
            && is_kept(v, copy + 1, source, mask)
            && !v.ops[copy + 1..at].iter().any(|o| o.insn.uses().contains(dst))
        {
            out.push(v.replace_tail(copy, v.edit(copy, n, &[copy, at], &[]), test(source), self.name()));
        }
        let last = v.path.last().copied().unwrap_or(v.block);
        if next_in_memory(v.function(), last) != Some(taken) || cfg::may_come_next(v.function(), last, fall) {
            out.push(v.replace_tail(at, v.edit(at, n, &[at], &[]), test(dst), self.name()));
        }
        out
    }
}

/// Whether nothing from operation `start` on changes the tested register or the mask's.
fn is_kept(v: &View, start: usize, tested: Reg, mask: Src) -> bool {
    let changes = |insn: &Insn| {
        let set = insn.defs();
        set.contains(tested) || mask.reg().is_some_and(|r| set.contains(r))
    };
    !v.ops[start..].iter().any(|o| changes(&o.insn))
}

fn next_in_memory(f: &Function, b: BlockId) -> Option<BlockId> {
    let here = f.layout.iter().position(|x| *x == b)?;
    f.layout.get(here + 1).copied()
}
