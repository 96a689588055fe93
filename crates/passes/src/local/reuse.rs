//! What was loaded or stored before need not be loaded again.
//!
//! ```text
//! r3 = *(u32 *)(r6 + 4)
//! …                                (r3, r6 and the memory stay)
//! r2 = *(u32 *)(r6 + 4)    →    r2 = r3
//!
//! *(u64 *)(r10 - 8) = r1
//! …
//! r2 = *(u64 *)(r10 - 8)   →    r2 = r1
//! ```

use bpf_isa::{Insn, Reg, Src, Width};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Reuse;

/// How far back the value may have come from.
const REACH: usize = 48;

impl Pass for Reuse {
    fn name(&self) -> &'static str {
        "reuse"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        (0..v.ops.len()).filter_map(|j| reuse(v, j)).collect()
    }
}

fn reuse(v: &View, j: usize) -> Option<Rewrite> {
    let op = &v.ops[j];
    let dst = match op.insn {
        Insn::Load { dst, .. } if !op.is_core() => dst,
        Insn::LoadImm64 { dst, .. } if !op.is_core() => dst,
        _ => return None,
    };
    let mut kept = bpf_isa::RegSet::ALL;
    for i in (j.saturating_sub(REACH)..j).rev() {
        let earlier = &v.ops[i];
        if let Some(q) = holder(&op.insn, &earlier.insn)
            && earlier.link.as_ref().map(|l| &l.symbol) == op.link.as_ref().map(|l| &l.symbol)
            && kept.contains(q)
        {
            let copy = Insn::Mov { width: Width::W64, dst, src: Src::Reg(q) };
            return Some(match q == dst {
                true => v.replace(i, j + 1, v.edit(i, j + 1, &[j], &[]), "reuse"),
                false => v.replace(i, j + 1, v.edit(i, j + 1, &[], &[(j, v.op_like(j, copy))]), "reuse"),
            });
        }
        kept = kept.minus(earlier.insn.defs());
        // Another base is another place.
        if !op.insn.uses().minus(kept).is_empty() {
            return None;
        }
    }
    None
}

/// The register in which `earlier` leaves what `load` will find.
fn holder(load: &Insn, earlier: &Insn) -> Option<Reg> {
    match (*load, *earlier) {
        (Insn::Load { size, sext, base, off, .. }, Insn::Load { size: s, sext: x, base: b, off: o, dst })
            if (size, sext, base, off) == (s, x, b, o) && dst != b =>
        {
            Some(dst)
        }
        (Insn::Load { size, base, off, .. }, Insn::Store { size: s, base: b, off: o, src: Src::Reg(q) })
            if (size, base, off) == (s, b, o) =>
        {
            Some(q)
        }
        (Insn::LoadImm64 { kind, imm, .. }, Insn::LoadImm64 { kind: k, imm: i, dst }) if (kind, imm) == (k, i) => {
            Some(dst)
        }
        _ => None,
    }
}
