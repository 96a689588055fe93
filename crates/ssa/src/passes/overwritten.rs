//! Stores to the packet that are overwritten before anyone looks go, at any distance and across branches.
//!
//! ```text
//! before: store u16 [v1 + 12] = 0x1234          after: if v2 > 5 goto b2 else b3
//!         if v2 > 5 goto b2 else b3             b2: store u16 [v1 + 12] = 8
//! b2: store u16 [v1 + 12] = 8                   b3: store u16 [v1 + 12] = 9
//! b3: store u16 [v1 + 12] = 9
//! ```
//!
//! Backwards over the blocks goes which bytes every way from here writes before it reads the packet through another pointer,
//! calls anything, or ends. Map values are not looked at: others see them at any time.

use std::collections::BTreeSet;

use bpf_facts::{Env, Region};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Inst, Op, Operand, Ssa, Value};

/// The pass.
pub struct Overwritten;

impl Pass for Overwritten {
    fn name(&self) -> &'static str {
        "ssa-overwritten"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let (graph, d) = (Graph::of(f), Definitions::of(f));
        let mut entries: Vec<Option<Bytes>> = vec![None; f.blocks.len()];
        let mut changed = false;
        for &b in graph.order.iter().rev() {
            // What comes round a loop is not known yet: then nothing is.
            let behind = f.block(b).term.edges().map(|e| entries[e.to.index()].clone().unwrap_or_default());
            let mut written = behind.reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default();
            let mut dead = Vec::new();
            for (at, inst) in f.block(b).insts.iter().enumerate().rev() {
                if before(&d, inst, &mut written) {
                    dead.push(at);
                }
            }
            changed |= !dead.is_empty();
            for at in dead {
                f.block_mut(b).insts.remove(at);
            }
            entries[b.index()] = Some(written);
        }
        changed
    }
}

/// Bytes of the packet: the value that an address is a constant away from, and how far.
type Bytes = BTreeSet<(Value, i64)>;

/// Goes back over an instruction; whether it is a store that nobody would miss.
fn before(d: &Definitions, inst: &Inst, written: &mut Bytes) -> bool {
    let is_packet = |region: &Option<Region>| matches!(region, Some(Region::Packet));
    match &inst.op {
        Op::Store { size, off } if is_packet(&inst.region) && inst.link.is_none() => {
            let Some(bytes) = bytes(d, inst.args[0], *off, size.bytes()) else { return false };
            if bytes.iter().all(|b| written.contains(b)) {
                return true;
            }
            written.extend(bytes);
        }
        // Through this pointer only what it reads counts; what another one reads may be any of the bytes.
        Op::Load { size, off, .. } if is_packet(&inst.region) && inst.link.is_none() => {
            match bytes(d, inst.args[0], *off, size.bytes()) {
                Some(read) => {
                    let base = read[0].0;
                    written.retain(|b| b.0 == base && !read.contains(b));
                }
                None => written.clear(),
            }
        }
        // Not where the packet could be.
        Op::Load { .. } | Op::Store { .. } if inst.link.is_none() && is_elsewhere(inst.region.as_ref()) => {}
        Op::Store { .. } => {}
        _ if inst.is_pure() => {}
        _ => written.clear(),
    }
    // What is defined here is not known before.
    if let Some(v) = inst.result {
        written.retain(|b| b.0 != v);
    }
    false
}

/// The bytes of an access.
fn bytes(d: &Definitions, address: Operand, off: i16, size: u32) -> Option<Vec<(Value, i64)>> {
    let (base, sum) = d.sum(address);
    let (base, first) = (base.value()?, sum.checked_add(i64::from(off))?);
    Some((0..i64::from(size)).map(|i| (base, first + i)).collect())
}

/// Whether memory is surely none of the packet's.
fn is_elsewhere(region: Option<&Region>) -> bool {
    matches!(
        region,
        Some(
            Region::Stack
                | Region::Ctx
                | Region::MapValue { .. }
                | Region::AnyMapValue
                | Region::Data { .. }
                | Region::CallerFrame
        )
    )
}
