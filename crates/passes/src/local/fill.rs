//! Zeros behind a short number are stored with it, whatever else is stored between them.
//!
//! ```text
//! *(u32 *)(r10 - 28) = 0
//! *(u16 *)(r10 - 30) = 1        →    *(u64 *)(r10 - 32) = r1    (r1 has 16 bits)
//! *(u16 *)(r10 - 32) = r1            *(u16 *)(r10 - 30) = 1
//! ```
//!
//! In the frame only: others would see what is between for a moment. Bytes that nobody stores count, too, if nobody reads
//! them.

use bpf_isa::{Insn, Reg, Size, Src};
use bpf_program::ByteOrder;
use bpf_prove::Rewrite;
use bpf_prove::superblock::is_side_exit;

use super::pass::Pass;
use crate::View;

pub struct Fill;

/// How far apart the stores may stand.
const REACH: usize = 24;

impl Pass for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let wider = [Size::DW, Size::W, Size::H];
        (0..v.ops.len()).flat_map(|i| wider.into_iter().filter_map(move |size| filled(v, i, size))).collect()
    }
}

/// A store to the frame: where, how many bytes, and what.
fn store(v: &View, i: usize) -> Option<(i16, Size, Src)> {
    match v.ops[i].insn {
        Insn::Store { size, base: Reg::R10, off, src } if v.ops[i].link.is_none() => Some((off, size, src)),
        _ => None,
    }
}

/// The store at `i`, of a number that is short enough, as one of this size that stores the zeros behind it.
fn filled(v: &View, i: usize, size: Size) -> Option<Rewrite> {
    let (off, own, Src::Reg(number)) = store(v, i)? else { return None };
    // The number's own bytes are the lowest ones.
    let (whole, short) = (size.bytes() as i32, own.bytes() as i32);
    let (off, beside) = match v.byte_order() {
        ByteOrder::Little => (off, short..whole),
        ByteOrder::Big => (i16::try_from(i32::from(off) + short - whole).ok()?, 0..whole - short),
    };
    if own >= size || off.rem_euclid(size.bytes() as i16) != 0 || v.value(i, number).bits().umax >> own.bits() != 0 {
        return None;
    }
    let ends_a_stretch = |insn: &Insn| matches!(insn, Insn::Call(_) | Insn::CallX { .. }) || is_side_exit(insn);
    let before = (i.saturating_sub(REACH)..i).rev().take_while(|k| !ends_a_stretch(&v.ops[*k].insn));
    let behind = (i + 1..v.ops.len().min(i + REACH)).take_while(|k| !ends_a_stretch(&v.ops[*k].insn));
    let (mut zeros, mut earlier) = (Vec::new(), Vec::new());
    for k in before.chain(behind) {
        let Some((at, bytes, src)) = store(v, k) else { continue };
        let (begin, end) = (i32::from(at) - i32::from(off), i32::from(at) - i32::from(off) + bytes.bytes() as i32);
        if end <= 0 || begin >= size.bytes() as i32 {
            continue;
        }
        if begin < beside.start || end > beside.end {
            return None;
        }
        let is_zero = match src {
            Src::Imm(n) => n == 0,
            Src::Reg(r) => v.constant(k, r) == Some(0),
        };
        match is_zero {
            true => zeros.push(k),
            false if k < i => earlier.push(k),
            false => {}
        }
    }
    let first = *zeros.iter().chain(&earlier).chain([&i]).min()?;
    let last = *zeros.iter().chain([&i]).max()?;
    // What comes behind the wide store now has to have the same to store there.
    let changed = |k: &usize| v.ops[*k..i].iter().any(|o| !v.ops[*k].insn.uses().intersect(o.insn.defs()).is_empty());
    if zeros.is_empty() || earlier.iter().any(changed) {
        return None;
    }
    let wide = v.op_like(i, Insn::Store { size, base: Reg::R10, off, src: Src::Reg(number) });
    let mut with = Vec::with_capacity(last + 1 - first);
    for k in first..=last {
        if k == i {
            with.push(wide.clone());
            with.extend(earlier.iter().rev().map(|k| v.ops[*k].clone()));
        } else if !zeros.contains(&k) && !earlier.contains(&k) {
            with.push(v.ops[k].clone());
        }
    }
    Some(v.replace(first, last + 1, with, "fill"))
}
