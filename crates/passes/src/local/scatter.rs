//! A number that is stored piece by piece is stored whole.
//!
//! ```text
//! *(u8 *)(r8 + 0) = r9     →    *(u32 *)(r8 + 0) = r9
//! r1 = r9
//! r1 >>= 24                     r1 = r9
//! *(u8 *)(r8 + 3) = r1          r1 >>= 24
//! r1 = r9
//! r1 >>= 16                     r1 = r9
//! *(u8 *)(r8 + 2) = r1          r1 >>= 16
//! r9 >>= 8                      r9 >>= 8
//! *(u8 *)(r8 + 1) = r9
//! ```
//! The pieces may come in any order. What shifted them is dead afterwards.

use std::collections::BTreeMap;

use bpf_isa::{AluOp, Insn, Reg, Size, Src};
use bpf_program::ByteOrder;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Scatter;

impl Pass for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let held = held(v);
        let mut out = Vec::new();
        for (at, pieces) in pieces(v, &held) {
            // The longest run of pieces from the lowest bits on.
            let whole = [Size::DW, Size::W, Size::H].into_iter().find(|size| tiles(&pieces, *size));
            let Some(size) = whole else { continue };
            let used: Vec<usize> = pieces.range(..size.bytes()).map(|(_, piece)| piece.op).collect();
            let (Some(&first), Some(&last)) = (used.iter().min(), used.iter().max()) else { continue };
            let begin = match v.byte_order() {
                ByteOrder::Little => at.off,
                ByteOrder::Big => at.off - size.bytes() as i32,
            };
            let Ok(off) = i16::try_from(begin) else { continue };
            // Where a register holds the number: behind all other pieces, or before them.
            let place = [last, first].into_iter().find_map(|op| {
                let source = Reg::all().find(|r| held[op][r.index()] == at.number)?;
                let Insn::Store { base, .. } = v.ops[op].insn else { return None };
                Some((op, Insn::Store { size, base, off, src: Src::Reg(source) }))
            });
            let Some((op, store)) = place else { continue };
            let dropped: Vec<usize> = used.into_iter().filter(|i| *i != op).collect();
            let with = v.edit(first, last + 1, &dropped, &[(op, v.op_like(op, store))]);
            out.push(v.replace(first, last + 1, with, self.name()));
        }
        out
    }
}

/// What a register holds: a number, named by the operation that made it (or the register in which it came), without so many
/// of its lowest bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    number: usize,
    without: u32,
}

/// Where pieces of a number are stored: what the base holds, and at which offset the lowest bits belong; in big-endian order,
/// behind them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    base: Held,
    off: i32,
    number: Held,
}

/// A store of a piece.
struct Piece {
    op: usize,
    bytes: u32,
}

/// What registers hold before each operation.
fn held(v: &View) -> Vec<[Held; 11]> {
    let mut now: [Held; 11] = std::array::from_fn(|number| Held { number, without: 0 });
    let mut all = Vec::with_capacity(v.ops.len());
    for (i, op) in v.ops.iter().enumerate() {
        all.push(now);
        let new = Held { number: now.len() + i, without: 0 };
        for r in op.insn.defs().iter() {
            let before = now[r.index()];
            now[r.index()] = match op.insn {
                _ if op.link.is_some() => new,
                Insn::Mov { src: Src::Reg(source), .. } => now[source.index()],
                Insn::Alu { op: AluOp::Rsh, src: Src::Imm(by @ 0..64), .. } => {
                    Held { without: before.without + by as u32, ..before }
                }
                // The lowest byte stays.
                Insn::Alu { op: AluOp::And, src: Src::Imm(255), .. } => before,
                _ => new,
            };
        }
    }
    all
}

/// The pieces that are stored, by their distance in bytes from the lowest ones.
fn pieces(v: &View, held: &[[Held; 11]]) -> BTreeMap<Place, BTreeMap<u32, Piece>> {
    let mut all: BTreeMap<Place, BTreeMap<u32, Piece>> = BTreeMap::new();
    for (i, op) in v.ops.iter().enumerate() {
        let Insn::Store { size, base, off, src: Src::Reg(source) } = op.insn else { continue };
        let Held { number, without } = held[i][source.index()];
        if op.link.is_some() || size == Size::DW || !without.is_multiple_of(8) {
            continue;
        }
        let distance = without / 8;
        let number = Held { number, without: 0 };
        let off = match v.byte_order() {
            ByteOrder::Little => i32::from(off) - distance as i32,
            ByteOrder::Big => i32::from(off) + (size.bytes() + distance) as i32,
        };
        let place = Place { base: held[i][base.index()], off, number };
        all.entry(place).or_default().insert(distance, Piece { op: i, bytes: size.bytes() });
    }
    all
}

/// Whether two or more pieces make up the lowest bytes of this size, one beside the other.
fn tiles(pieces: &BTreeMap<u32, Piece>, size: Size) -> bool {
    let mut end = 0;
    for (distance, piece) in pieces.range(..size.bytes()) {
        if *distance != end {
            return false;
        }
        end += piece.bytes;
    }
    end == size.bytes() && pieces.range(..end).nth(1).is_some()
}
