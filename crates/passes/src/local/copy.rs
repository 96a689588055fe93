//! Copies that need not be made: the users read the original.
//!
//! ```text
//! r2 = r7
//! r3 = *(u8 *)(r2 + 4)     →    r3 = *(u8 *)(r7 + 4)
//!
//! r1 = 1                        (r6 is 1)
//! lock *(u64 *)(r0 + 0) += r1 → lock *(u64 *)(r0 + 0) += r6
//! ```

use bpf_isa::{Insn, Reg, Src, Width};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;
use crate::view::rename_use;

pub struct Copy;

impl Pass for Copy {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for (i, op) in v.ops.iter().enumerate() {
            let (copy, original) = match op.insn {
                Insn::Mov { width: Width::W64, dst, src: Src::Reg(s) } if dst != s => (dst, s),
                // A 32-bit copy of a number that has no more bits.
                Insn::Mov { width: Width::W32, dst, src: Src::Reg(s) } if dst != s => (dst, s),
                // A constant that another register holds already.
                Insn::Mov { dst, src: Src::Imm(_), .. } if op.link.is_none() => {
                    let c = v.states[i + 1].reg(dst).as_const();
                    let twins =
                        Reg::all().filter(|s| *s != dst && c.is_some() && v.constant(i, *s) == c && v.readable(i, *s));
                    out.extend(twins.filter_map(|s| forward(v, i, dst, s)));
                    continue;
                }
                _ => continue,
            };
            if op.link.is_none()
                && let Some(r) = forward(v, i, copy, original)
            {
                out.push(r);
            }
        }
        out
    }
}

/// Replaces all reads of `copy` after `i` by `original` and drops the copy.
fn forward(v: &View, i: usize, copy: Reg, original: Reg) -> Option<Rewrite> {
    let mut with = Vec::new();
    for j in i + 1..v.ops.len() {
        let op = &v.ops[j];
        if op.insn.uses().contains(copy) {
            if op.is_core() {
                return None;
            }
            let insn = rename_use(&op.insn, copy, original)?;
            let mut new = op.clone();
            new.insn = insn;
            with.push(new);
        } else {
            with.push(op.clone());
        }
        let done = op.insn.defs().contains(copy) || !v.live_after(j).regs.contains(copy);
        if done {
            return Some(v.replace(i, j + 1, with, "copies"));
        }
        if op.insn.defs().contains(original) {
            return None;
        }
    }
    let n = v.ops.len();
    if v.live[n + 1].regs.contains(copy) || !v.term.uses().contains(copy) {
        return None;
    }
    let term = v.term.map_regs(|r| if r == copy { original } else { r })?;
    Some(v.replace_tail(i, with, term, "copies"))
}
