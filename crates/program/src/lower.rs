//! From the graph back to slots: layout, jump offsets, encoding.
//!
//! Blocks come out in [`Function::layout`] order. A `goto` to the next block costs nothing; a branch
//! whose taken side comes next is inverted; a branch with neither side next gets a `goto` behind it.

use bpf_isa::{Cond, EncodeError, Insn};
use bpf_object::NewInsn;
use thiserror::Error;

use crate::{BlockId, Function, Op, Terminator};

/// Why a graph has no encoding.
#[derive(Debug, Error)]
pub enum LowerError {
    /// A conditional jump does not reach its target.
    #[error("a jump of {distance} slots does not fit its 16-bit offset")]
    TooFar {
        /// Slots between the next instruction and the target.
        distance: i64,
    },
    /// An instruction has no encoding.
    #[error("cannot encode: {0}")]
    Encode(#[from] EncodeError),
    /// An edge to a block that is not laid out.
    #[error("block {0} is a jump target but not in the layout")]
    Unplaced(BlockId),
}

/// The lowered function.
#[derive(Debug)]
pub struct Lowered {
    /// Final instructions with their origins, ready for `Object::set_body`.
    pub insns: Vec<NewInsn>,
    /// The same as `(slot, instruction)`, for listings.
    pub listing: Vec<(usize, Insn)>,
}

impl Lowered {
    /// Slots in all.
    pub fn slots(&self) -> usize {
        self.listing.last().map_or(0, |(s, i)| s + i.slots())
    }
}

enum Item {
    Op(Op),
    Jump { insn: Insn, to: BlockId, origin: Option<usize> },
}

impl Item {
    fn slots(&self) -> usize {
        match self {
            Item::Op(op) => op.insn.slots(),
            Item::Jump { insn, .. } => insn.slots(),
        }
    }
}

/// Instructions that end block `b` when `next` follows it in memory.
fn tail(f: &Function, b: BlockId, next: Option<BlockId>) -> Vec<Item> {
    let ja = |to: BlockId, origin| Item::Jump { insn: Insn::Ja { off: 0, long: false }, to, origin };
    match f.block(b).term {
        Terminator::Goto(t) if Some(t) == next => vec![],
        Terminator::Goto(t) => vec![ja(t, None)],
        Terminator::Exit { origin } => vec![Item::Op(Op::with_origin(Insn::Exit, origin))],
        Terminator::MayGoto { taken, fall, origin } => {
            let mut v = vec![Item::Jump { insn: Insn::MayGoto { off: 0 }, to: taken, origin }];
            if Some(fall) != next {
                v.push(ja(fall, origin));
            }
            v
        }
        Terminator::Branch { cond, width, dst, src, taken, fall, origin } => {
            let jcc = |cond: Cond, to| Item::Jump { insn: Insn::Jcc { cond, width, dst, src, off: 0 }, to, origin };
            if Some(fall) == next {
                return vec![jcc(cond, taken)];
            }
            match cond.negate() {
                Some(n) if Some(taken) == next => vec![jcc(n, fall)],
                _ => vec![jcc(cond, taken), ja(fall, origin)],
            }
        }
    }
}

/// Slots the function takes when lowered.
pub fn slot_count(f: &Function) -> usize {
    let mut n = 0;
    for (i, &b) in f.layout.iter().enumerate() {
        n += f.block(b).ops.iter().map(|o| o.insn.slots()).sum::<usize>();
        n += tail(f, b, f.layout.get(i + 1).copied()).len();
    }
    n
}

/// Lowers `f`.
///
/// # Errors
/// [`LowerError`]; the caller then keeps the original function.
pub fn lower(f: &Function) -> Result<Lowered, LowerError> {
    let mut items: Vec<Item> = Vec::new();
    let mut start = vec![None; f.blocks.len()];
    let mut slot = 0usize;
    let mut at = Vec::new();
    for (i, &b) in f.layout.iter().enumerate() {
        start[b.index()] = Some(slot);
        let body = f.block(b).ops.iter().cloned().map(Item::Op);
        for item in body.chain(tail(f, b, f.layout.get(i + 1).copied())) {
            at.push(slot);
            slot += item.slots();
            items.push(item);
        }
    }
    let mut insns = Vec::with_capacity(items.len());
    let mut listing = Vec::with_capacity(items.len());
    for (item, slot) in items.into_iter().zip(at) {
        let (insn, origin, refs_from) = match item {
            Item::Op(op) => (op.insn, op.origin, op.link.map(|l| l.slot)),
            Item::Jump { insn, to, origin } => {
                let target = start[to.index()].ok_or(LowerError::Unplaced(to))?;
                (aim(insn, target as i64 - slot as i64 - 1)?, origin, None)
            }
        };
        let mut bytes = Vec::with_capacity(16);
        bpf_isa::encode(&insn, &mut bytes)?;
        insns.push(NewInsn { bytes, origin, refs_from });
        listing.push((slot, insn));
    }
    Ok(Lowered { insns, listing })
}

fn aim(insn: Insn, distance: i64) -> Result<Insn, LowerError> {
    let short = i16::try_from(distance);
    Ok(match insn {
        Insn::Ja { .. } => match short {
            Ok(off) => Insn::Ja { off: i32::from(off), long: false },
            Err(_) => {
                Insn::Ja { off: i32::try_from(distance).map_err(|_| LowerError::TooFar { distance })?, long: true }
            }
        },
        Insn::Jcc { cond, width, dst, src, .. } => {
            Insn::Jcc { cond, width, dst, src, off: short.map_err(|_| LowerError::TooFar { distance })? }
        }
        Insn::MayGoto { .. } => Insn::MayGoto { off: short.map_err(|_| LowerError::TooFar { distance })? },
        other => other,
    })
}
