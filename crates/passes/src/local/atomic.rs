//! Load, add, store becomes one atomic add (goal `size` only: it is slower).
//!
//! ```text
//! r1 = *(u64 *)(r0 + 0)
//! r1 += 1
//! *(u64 *)(r0 + 0) = r1    →    r1 = 1
//!                               lock *(u64 *)(r0 + 0) += r1
//! ```
//! Where a live register already holds the number, not even the move is needed.

use bpf_facts::Region;
use bpf_isa::{AluOp, AtomicOp, Insn, Reg, Size, Src};
use bpf_prove::Rewrite;

use super::constant::set_constant;
use super::pass::Pass;
use crate::View;

pub struct Atomic;

impl Pass for Atomic {
    fn name(&self) -> &'static str {
        "atomics"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        if !v.settings.goal.puts_slots_first() || v.settings.strict_shared_memory {
            return vec![];
        }
        let mut out = Vec::new();
        for k in 0..v.ops.len() {
            at_store(v, k, &mut out);
        }
        out
    }
}

fn at_store(v: &View, k: usize, out: &mut Vec<Rewrite>) {
    let Insn::Store { size: size @ (Size::W | Size::DW), base, off, src: Src::Reg(r) } = v.ops[k].insn else { return };
    // Atomics work on map values and globals; the verifier refuses them on packets and contexts.
    if !matches!(v.value(k, base).region(), Some(Region::MapValue { .. } | Region::AnyMapValue | Region::Data { .. })) {
        return;
    }
    let Some(a) = v.def_before(k, r) else { return };
    let Insn::Alu { op: AluOp::Add, dst, src, .. } = v.ops[a].insn else { return };
    if v.ops[a].link.is_some() || v.ops[k].link.is_some() {
        return;
    }
    let is_load = |i: usize| matches!(v.ops[i].insn, Insn::Load { size: z, base: b, off: o, sext: false, .. } if (z, b, o) == (size, base, off));
    // Which side of the addition was loaded, and what is added.
    let mut forms: Vec<(usize, Src)> = Vec::new();
    if let Some(l) = v.def_before(a, dst)
        && is_load(l)
    {
        forms.push((l, src));
    }
    if let Src::Reg(s) = src
        && let Some(l) = v.def_before(a, s)
        && is_load(l)
    {
        forms.push((l, Src::Reg(dst)));
    }
    for (l, addend) in forms {
        if v.ops[l..k].iter().any(|o| o.insn.defs().contains(base)) {
            continue;
        }
        let atomic = |src: Reg| v.op_like(k, Insn::Atomic { op: AtomicOp::Add { fetch: false }, size, base, off, src });
        match addend {
            Src::Reg(s) => {
                let with = v.edit(l, k + 1, &[l, a], &[(k, atomic(s))]);
                out.push(v.replace(l, k + 1, with, "atomics"));
            }
            Src::Imm(imm) => {
                let c = imm as i64 as u64;
                let m = if size == Size::W { 0xffff_ffff } else { u64::MAX };
                for s in Reg::all().filter(|s| *s != Reg::R10) {
                    if v.constant(k, s).is_some_and(|x| x & m == c & m) && v.readable(k, s) {
                        let with = v.edit(l, k + 1, &[l, a], &[(k, atomic(s))]);
                        out.push(v.replace(l, k + 1, with, "atomics"));
                    }
                }
                let set = v.op_like(a, set_constant(dst, c));
                let with = v.edit(l, k + 1, &[l], &[(a, set), (k, atomic(dst))]);
                out.push(v.replace(l, k + 1, with, "atomics"));
            }
        }
    }
}
