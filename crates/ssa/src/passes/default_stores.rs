//! What a join stores is stored before the question if one answer brings a constant, beside another constant that is stored
//! there: both are one store. The other way stores what it brings over it.
//!
//! ```text
//! before: b1: store u32 [fp - 16], 0              after: b1: store u64 [fp - 16], 0
//!             if v1 > v2 goto b3(0) else b2                  if v1 > v2 goto b3 else b2
//!         b2: v4 = load u32 [v1 + 16]                    b2: v4 = load u32 [v1 + 16]
//!             store u32 [fp - 16], v4                        store u32 [fp - 16], v4
//!             v5 = load u8 [v1 + 9]                          v5 = load u8 [v1 + 9]
//!             goto b3(v5)                                    store u32 [fp - 12], v5
//!         b3(v6): store u32 [fp - 12], v6                    goto b3
//!                                                        b3:
//! ```
//! In the frame only, which nobody else sees.

use bpf_facts::{Env, Region};
use bpf_isa::Size;
use bpf_program::ByteOrder;

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Term};

/// The pass.
pub struct DefaultStores;

impl Pass for DefaultStores {
    fn name(&self) -> &'static str {
        "ssa-default-stores"
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, env: &Env<'_>) -> bool {
        let mut changed = false;
        while let Some(found) = Found::first(f, env.byte_order) {
            found.take(f);
            super::dead::remove(f);
            changed = true;
        }
        changed
    }
}

/// A store to the frame: where, how wide, what.
#[derive(Clone, Copy)]
struct FrameStore {
    at: i64,
    size: Size,
    stored: Operand,
}

impl FrameStore {
    fn of(inst: &Inst) -> Option<FrameStore> {
        match (&inst.op, inst.args.as_slice()) {
            (Op::Store { size, off }, [Operand::Frame(n), stored]) if inst.link.is_none() => {
                Some(FrameStore { at: i64::from(*n) + i64::from(*off), size: *size, stored: *stored })
            }
            _ => None,
        }
    }

    fn touches(&self, other: &FrameStore) -> bool {
        self.at < other.at + i64::from(other.size.bytes()) && other.at < self.at + i64::from(self.size.bytes())
    }
}

/// A store of a join that becomes part of one before the question.
struct Found {
    join: Block,
    /// The store's place in the join.
    at: usize,
    /// The block that asks.
    asks: Block,
    /// Place there of the constant store beside it, and what that becomes.
    beside: usize,
    both: Inst,
    /// The other way, and what it stores at its end.
    other: (Block, Operand),
}

impl Found {
    fn first(f: &Ssa, order: ByteOrder) -> Option<Found> {
        let (graph, d) = (Graph::of(f), Definitions::of(f));
        graph.order.iter().find_map(|join| Found::in_join(f, *join, &graph, &d, order))
    }

    fn in_join(f: &Ssa, join: Block, graph: &Graph, d: &Definitions, order: ByteOrder) -> Option<Found> {
        let [one, two] = graph.preds[join.index()][..] else { return None };
        let block = f.block(join);
        let stores = block.insts.iter().enumerate().take_while(|(_, i)| i.is_pure() || FrameStore::of(i).is_some());
        for (at, store) in stores.filter_map(|(at, i)| Some((at, FrameStore::of(i)?))) {
            // What stands before it in the join must not store there, too.
            let earlier = block.insts[..at].iter().filter_map(FrameStore::of);
            let Some(param) = store.stored.value().and_then(|v| block.params.iter().position(|p| *p == v)) else {
                continue;
            };
            if earlier.into_iter().any(|e| e.touches(&store)) {
                continue;
            }
            for ((asks, side), (way, _)) in [(one, two), (two, one)] {
                let brought = |from: Block, side: usize| Some(f.block(from).term.edges().nth(side)?.args[param]);
                let Term::Branch { .. } = f.block(asks).term else { continue };
                let only_from_there = graph.only_way_in(way) == Some((asks, 1 - side));
                let goes_on = matches!(f.block(way).term, Term::Goto(_));
                if !only_from_there || !goes_on || !f.block(way).insts.iter().all(|i| leaves(i, &store)) {
                    continue;
                }
                let Some(c) = brought(asks, side).and_then(|o| d.constant(o)) else { continue };
                let Some((beside, both)) = merged(f, asks, &store, c, d, order) else { continue };
                let other = (way, brought(way, 0)?);
                return Some(Found { join, at, asks, beside, both, other });
            }
        }
        None
    }

    fn take(self, f: &mut Ssa) {
        let inst = f.block_mut(self.join).insts.remove(self.at);
        f.block_mut(self.asks).insts[self.beside] = self.both;
        let (way, stored) = self.other;
        f.block_mut(way).insts.push(Inst { args: vec![inst.args[0], stored], ..inst });
    }
}

/// Whether an instruction neither sees nor changes what is stored.
fn leaves(inst: &Inst, store: &FrameStore) -> bool {
    if let Some(other) = FrameStore::of(inst) {
        return !other.touches(store);
    }
    let elsewhere = |r: &Region| !matches!(r, Region::Stack);
    match inst.op {
        Op::Load { size, off, .. } => match inst.args[0] {
            Operand::Frame(n) => !store.touches(&FrameStore { at: i64::from(n) + i64::from(off), size, ..*store }),
            _ => inst.region.as_ref().is_some_and(elsewhere),
        },
        Op::Store { .. } => inst.region.as_ref().is_some_and(elsewhere),
        _ => inst.is_pure(),
    }
}

/// The constant store of a block that is one with this constant stored beside it, and what both are.
fn merged(f: &Ssa, b: Block, store: &FrameStore, c: i64, d: &Definitions, order: ByteOrder) -> Option<(usize, Inst)> {
    let wider = match store.size {
        Size::B => Size::H,
        Size::H => Size::W,
        Size::W => Size::DW,
        Size::DW => return None,
    };
    let half = i64::from(store.size.bytes());
    for (at, inst) in f.block(b).insts.iter().enumerate().rev() {
        if let Some(there) = FrameStore::of(inst)
            && there.size == store.size
            && (there.at - store.at).abs() == half
            && there.at.min(store.at) % (2 * half) == 0
            && let Some(k) = d.constant(there.stored)
        {
            let (first, second) = if there.at < store.at { (k, c) } else { (c, k) };
            let (low, high) = if order == ByteOrder::Little { (first, second) } else { (second, first) };
            let number = stored_as(wider, low, high)?;
            let Operand::Frame(n) = inst.args[0] else { continue };
            let off = i16::try_from(there.at.min(store.at) - i64::from(n)).ok()?;
            let args = vec![inst.args[0], Operand::Const(number)];
            return Some((at, Inst { op: Op::Store { size: wider, off }, args, ..inst.clone() }));
        }
        if !leaves(inst, store) {
            return None;
        }
    }
    None
}

/// The immediate of a store of both halves, if there is one: of eight bytes the sign fills the upper half.
fn stored_as(size: Size, low: i64, high: i64) -> Option<i64> {
    let half = size.bits() / 2;
    let most = (1u64 << half) - 1;
    let both = (low as u64 & most) | (high as u64 & most) << half;
    let imm = i64::from(both as u32 as i32);
    (size != Size::DW || imm as u64 == both).then_some(imm)
}
