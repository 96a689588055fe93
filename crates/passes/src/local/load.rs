//! Values assembled from narrow loads become wide loads.
//!
//! ```text
//! r1 = *(u8 *)(r7 + 12)
//! r3 = *(u8 *)(r7 + 13)
//! r3 <<= 8
//! r3 |= r1                 →    r3 = *(u16 *)(r7 + 12)
//! ```
//! The other byte order becomes a wide load and a byte swap.

use bpf_isa::{AluOp, Endian, Insn, Reg, Size, Src};
use bpf_program::ByteOrder;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Load;

impl Pass for Load {
    fn name(&self) -> &'static str {
        "loads"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for k in 0..v.ops.len() {
            if let Insn::Alu { op: AluOp::Or | AluOp::Add, dst, src: Src::Reg(s), .. } = v.ops[k].insn {
                assemble(v, k, dst, s, &mut out);
            }
        }
        out
    }
}

/// The operations that compute `r` before `k`, back to loads; `None` if anything else feeds it.
fn chain(v: &View, k: usize, r: Reg, into: &mut Vec<usize>, depth: u32) -> Option<()> {
    if depth == 0 {
        return None;
    }
    let d = v.def_before(k, r)?;
    if into.contains(&d) {
        return Some(());
    }
    match v.ops[d].insn {
        Insn::Load { .. } if !v.ops[d].is_core() => into.push(d),
        Insn::Alu { op: AluOp::Lsh, src: Src::Imm(_), .. } => {
            into.push(d);
            chain(v, d, r, into, depth - 1)?;
        }
        Insn::Alu { op: AluOp::Or | AluOp::Add, src: Src::Reg(s), .. } => {
            into.push(d);
            chain(v, d, r, into, depth - 1)?;
            chain(v, d, s, into, depth - 1)?;
        }
        Insn::Alu { op: AluOp::And, src: Src::Imm(_), .. } => {
            into.push(d);
            chain(v, d, r, into, depth - 1)?;
        }
        Insn::Mov { src: Src::Reg(s), .. } => {
            into.push(d);
            chain(v, d, s, into, depth - 1)?;
        }
        _ => return None,
    }
    Some(())
}

fn assemble(v: &View, k: usize, dst: Reg, src: Reg, out: &mut Vec<Rewrite>) {
    let mut parts = vec![k];
    if chain(v, k, dst, &mut parts, 20).is_none() || chain(v, k, src, &mut parts, 20).is_none() {
        return;
    }
    let loads: Vec<(usize, Reg, i16, Size)> = parts
        .iter()
        .filter_map(|i| match v.ops[*i].insn {
            Insn::Load { base, off, size, sext: false, .. } => Some((*i, base, off, size)),
            _ => None,
        })
        .collect();
    if loads.len() < 2 {
        return;
    }
    let base = loads[0].1;
    if loads.iter().any(|l| l.1 != base) {
        return;
    }
    let lo = loads.iter().map(|l| i32::from(l.2)).min().unwrap_or(0);
    let hi = loads.iter().map(|l| i32::from(l.2) + l.3.bytes() as i32).max().unwrap_or(0);
    let Some(size) = Size::from_bytes((hi - lo) as u32) else { return };
    let first = parts.iter().copied().min().unwrap_or(k);
    // The base must be the same at the end, or the load has to stand at the first one's place.
    let wide = Insn::Load { size, sext: false, dst, base, off: lo as i16 };
    // What swaps bytes there.
    let kind = if v.byte_order() == ByteOrder::Little { Endian::Be } else { Endian::Le };
    let swap = Insn::Endian { kind, bits: size.bits() as u8, dst };
    let rest = v.edit(first, k + 1, &parts, &[]);
    let base_kept = !v.ops[first..=k].iter().any(|o| o.insn.defs().contains(base) && !parts_only(v, &parts, base));
    for insns in [vec![wide], vec![wide, swap]] {
        let new: Vec<_> = insns.iter().map(|i| v.op_like(k, *i)).collect();
        if base_kept {
            let mut with = rest.clone();
            with.extend(new.iter().cloned());
            out.push(v.replace(first, k + 1, with, "loads"));
        }
        let mut with = new;
        with.extend(rest.iter().cloned());
        out.push(v.replace(first, k + 1, with, "loads"));
    }
}

/// Whether the base is defined only by operations that go.
fn parts_only(v: &View, parts: &[usize], base: Reg) -> bool {
    parts.iter().any(|i| v.ops[*i].insn.defs().contains(base))
}
