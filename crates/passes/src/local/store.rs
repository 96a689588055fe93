//! Neighbouring stores become one.
//!
//! ```text
//! *(u32 *)(r10 - 4) = 0
//! *(u32 *)(r10 - 8) = 1        →    *(u64 *)(r10 - 8) = 1
//!
//! *(u16 *)(r10 - 8) = r1            (r1 has 16 bits)
//! *(u16 *)(r10 - 6) = 0        →    *(u32 *)(r10 - 8) = r1
//!
//! r1 = *(u16 *)(r7 + 0)
//! *(u16 *)(r10 - 4) = r1
//! r1 = *(u16 *)(r7 + 2)
//! *(u16 *)(r10 - 2) = r1       →    r1 = *(u32 *)(r7 + 0)
//!                                   *(u32 *)(r10 - 4) = r1
//! ```

use bpf_facts::Region;
use bpf_isa::{Insn, Reg, Size, Src};
use bpf_program::ByteOrder;
use bpf_prove::Rewrite;

use super::constant::shorten;
use super::pass::Pass;
use crate::View;

pub struct Store;

/// How far apart two stores may stand.
const REACH: usize = 24;

impl Pass for Store {
    fn name(&self) -> &'static str {
        "stores"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        for i in 0..v.ops.len() {
            for j in i + 1..v.ops.len().min(i + REACH) {
                if matches!(v.ops[j].insn, Insn::Call(_) | Insn::CallX { .. }) {
                    break;
                }
                pair(v, i, j, &mut out);
            }
        }
        out
    }
}

#[derive(Clone, Copy)]
struct Part {
    at: usize,
    size: Size,
    base: Reg,
    off: i16,
    src: Src,
}

fn part(v: &View, i: usize) -> Option<Part> {
    match v.ops[i].insn {
        Insn::Store { size, base, off, src } if !v.ops[i].is_core() => Some(Part { at: i, size, base, off, src }),
        _ => None,
    }
}

fn pair(v: &View, i: usize, j: usize, out: &mut Vec<Rewrite>) {
    let (Some(a), Some(b)) = (part(v, i), part(v, j)) else { return };
    if a.base != b.base || v.ops[i..j].iter().any(|o| o.insn.defs().contains(a.base)) {
        return;
    }
    let (low, high) = if a.off < b.off { (a, b) } else { (b, a) };
    if low.size != high.size || i32::from(low.off) + low.size.bytes() as i32 != i32::from(high.off) {
        return;
    }
    let Some(size) = Size::from_bytes(low.size.bytes() * 2) else { return };
    if !aligned(v, i, a.base, low.off, size) {
        return;
    }
    let wide = |src: Src| Insn::Store { size, base: a.base, off: low.off, src };
    // Both constant.
    let constant = |p: &Part| match p.src {
        Src::Imm(x) => Some(x as i64 as u64),
        Src::Reg(r) => v.constant(p.at, r),
    };
    let ctx = v.value(i, a.base).region().is_none_or(|r| *r == Region::Ctx);
    if let (Some(l), Some(h), false) = (constant(&low), constant(&high), ctx) {
        let bits = low.size.bits();
        let m = (1u64 << bits) - 1;
        let (l, h) = if v.byte_order() == ByteOrder::Little { (l, h) } else { (h, l) };
        let value = (l & m) | (h & m) << bits;
        let imm = match size {
            Size::DW => i32::try_from(value as i64).ok(),
            _ => Some(shorten(value as u32 as i32, size.bits())),
        };
        if let Some(imm) = imm {
            push_both(v, i, j, wide(Src::Imm(imm)), out);
            return;
        }
    }
    // One register holds it all: zero-extended, or a scattered value.
    for p in [&low, &high] {
        if let Src::Reg(r) = p.src {
            push_at(v, i, j, p.at, wide(Src::Reg(r)), out);
            let other = if p.at == i { j } else { i };
            if !v.ops[i..j].iter().any(|o| o.insn.defs().contains(r)) {
                push_at(v, i, j, other, wide(Src::Reg(r)), out);
            }
            // The value before the shifts that scatter it.
            if p.at == high.at && low.at > high.at {
                continue;
            }
        }
    }
    copies(v, &low, &high, size, wide, out);
}

/// The wide store in the place of either; the other goes.
fn push_both(v: &View, i: usize, j: usize, wide: Insn, out: &mut Vec<Rewrite>) {
    push_at(v, i, j, j, wide, out);
    push_at(v, i, j, i, wide, out);
}

fn push_at(v: &View, i: usize, j: usize, at: usize, wide: Insn, out: &mut Vec<Rewrite>) {
    let drop = if at == i { j } else { i };
    let with = v.edit(i, j + 1, &[drop], &[(at, v.op_like(at, wide))]);
    out.push(v.replace(i, j + 1, with, "stores"));
}

/// Both values were loaded from neighbouring places: one wide load feeds one wide store.
fn copies(v: &View, low: &Part, high: &Part, size: Size, wide: impl Fn(Src) -> Insn, out: &mut Vec<Rewrite>) {
    let load = |p: &Part| -> Option<(usize, Reg, i16, Reg)> {
        let Src::Reg(r) = p.src else { return None };
        let d = v.def_before(p.at, r)?;
        match v.ops[d].insn {
            Insn::Load { size, sext: false, base, off, dst } if size == p.size && !v.ops[d].is_core() => {
                Some((d, base, off, dst))
            }
            _ => None,
        }
    };
    let (Some(l), Some(h)) = (load(low), load(high)) else { return };
    if l.1 != h.1 || i32::from(l.2) + low.size.bytes() as i32 != i32::from(h.2) || l.0 == h.0 {
        return;
    }
    if !aligned(v, l.0, l.1, l.2, size) {
        return;
    }
    let start = l.0.min(h.0);
    let end = low.at.max(high.at) + 1;
    for (load_at, reg) in [(l.0.min(h.0), l.3), (l.0.max(h.0), l.3), (l.0.min(h.0), h.3), (l.0.max(h.0), h.3)] {
        for store_at in [low.at.min(high.at), low.at.max(high.at)] {
            if store_at < load_at {
                continue;
            }
            let drop: Vec<usize> =
                [l.0, h.0, low.at, high.at].into_iter().filter(|x| *x != load_at && *x != store_at).collect();
            let wide_load = Insn::Load { size, sext: false, dst: reg, base: l.1, off: l.2 };
            let swap = [(load_at, v.op_like(load_at, wide_load)), (store_at, v.op_like(store_at, wide(Src::Reg(reg))))];
            out.push(v.replace(start, end, v.edit(start, end, &drop, &swap), "stores"));
        }
    }
}

/// Whether an access of this width is acceptable there: the stack and the context insist on
/// alignment; packets and map values do not on the machines BPF programs run on.
pub fn aligned(v: &View, i: usize, base: Reg, off: i16, size: Size) -> bool {
    match v.value(i, base).pointer_at() {
        // Where in the caller's frame that is, is not known.
        Some((Region::CallerFrame, ..)) => size == Size::B,
        Some((Region::Stack | Region::Ctx, _, at)) => (at + i64::from(off)) % i64::from(size.bytes()) == 0,
        Some(_) => true,
        None => !matches!(v.value(i, base).region(), Some(Region::Stack | Region::CallerFrame | Region::Ctx) | None),
    }
}
