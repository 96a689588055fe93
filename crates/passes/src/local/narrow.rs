//! Loads of which a mask or a shift leaves a part load that part.
//!
//! ```text
//! r2 = *(u32 *)(r10 - 8)
//! w2 &= 255                →    r2 = *(u8 *)(r10 - 8)
//!
//! r3 = *(u64 *)(r7 + 0)
//! r3 >>= 48                →    r3 = *(u16 *)(r7 + 6)
//! ```
//!
//! The verifier forgets what it knows of a spilled number of which a part is loaded; where that matters, the gate takes
//! the change back.

use bpf_isa::{AluOp, Insn, Reg, Size, Src, Width};
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Narrow;

impl Pass for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        (0..v.ops.len()).filter_map(|i| narrowed(v, i)).collect()
    }
}

/// Bits of what was loaded: the first one, and the one behind the last.
#[derive(Clone, Copy)]
struct Part {
    low: u32,
    high: u32,
}

/// The load at `i` as one of the part that the operations behind it leave, if that is one or more whole units.
fn narrowed(v: &View, i: usize) -> Option<Rewrite> {
    let Insn::Load { size, dst, base, off, sext: false } = v.ops[i].insn else { return None };
    if v.ops[i].link.is_some() {
        return None;
    }
    let mut part = Part { low: 0, high: size.bits() };
    let mut dropped = Vec::new();
    let mut best = None;
    for (j, op) in v.ops.iter().enumerate().skip(i + 1) {
        if !op.insn.uses().union(op.insn.defs()).contains(dst) {
            continue;
        }
        let Some(left) = left_by(&op.insn, dst, part).filter(|_| op.link.is_none()) else { break };
        part = left;
        dropped.push(j);
        if let Some((smaller, at)) = unit(part).filter(|(smaller, _)| *smaller < size)
            && let Ok(at) = i16::try_from(i32::from(off) + place(v, size, smaller, at))
        {
            best = Some((j, dropped.clone(), Insn::Load { size: smaller, dst, base, off: at, sext: false }));
        }
    }
    let (last, dropped, load) = best?;
    Some(v.replace(i, last + 1, v.edit(i, last + 1, &dropped, &[(i, v.op_like(i, load))]), "narrow"))
}

/// What an operation on `dst`, which holds this part, leaves of it; `None` if it does something else.
fn left_by(insn: &Insn, dst: Reg, part: Part) -> Option<Part> {
    let within = |part: Part, bits: u32| Part { high: part.high.min(part.low + bits), ..part };
    match *insn {
        Insn::Mov { width: Width::W32, dst: d, src: Src::Reg(s) } if d == dst && s == dst => Some(within(part, 32)),
        Insn::Alu { op, width, dst: d, src: Src::Imm(n) } if d == dst => {
            let part = within(part, width.bits());
            match (op, u32::try_from(n)) {
                (AluOp::And, Ok(mask)) if mask.wrapping_add(1).is_power_of_two() => {
                    Some(within(part, mask.count_ones()))
                }
                (AluOp::Rsh, Ok(by)) if by < width.bits() && part.low + by < part.high => {
                    Some(Part { low: part.low + by, ..part })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Where in memory a unit is that begins so many bytes above the lowest one of a value of this size.
fn place(v: &View, whole: Size, unit: Size, above: u32) -> i32 {
    (v.byte_order().bit(above, unit.bytes(), whole.bytes()) / 8) as i32
}

/// The size of a part that is one unit of memory, and how many bytes it is above the lowest one.
fn unit(part: Part) -> Option<(Size, u32)> {
    let size = match part.high - part.low {
        8 => Size::B,
        16 => Size::H,
        32 => Size::W,
        _ => return None,
    };
    part.low.is_multiple_of(size.bits()).then_some((size, part.low / 8))
}
