//! What was loaded or stored is not loaded again.
//!
//! ```text
//! before: store u32 [r10 - 4] = v7       after: store u32 [r10 - 4] = v7
//!         v9 = call map_lookup_elem             v9 = call map_lookup_elem
//!         v12 = load u32 [r10 - 4]              if v7 == 17 goto ...      ; v7 has 32 bits
//!         if v12 == 17 goto ...
//! ```
//! Of the own frame, the context and the packet, which nobody else writes while the program runs: never of memory that
//! is shared. What is there is known if it was loaded or stored on every way, and nothing in between may have changed
//! it: a store that may overlap, or a call that may write there by its row in the table of helpers.

use bpf_facts::{Env, Region};
use bpf_isa::{Insn, Size};
use bpf_platform::{effects, effects::Effects};
use rustc_hash::FxHashMap;

use super::fold::{Definitions, num};
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Inst, Op, Operand, Ssa, Value};

/// The pass.
pub struct Loads;

/// Which memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Memory {
    Frame,
    Context,
    Packet,
}

/// A place: base (none for the frame, whose offsets count from r10), offset, width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    memory: Memory,
    base: Option<Operand>,
    off: i64,
    size: Size,
}

impl Place {
    fn overlaps(&self, o: &Place) -> bool {
        let ends = |p: &Place| p.off + i64::from(p.size.bytes());
        self.memory == o.memory && (self.base != o.base || self.off < ends(o) && o.off < ends(self))
    }
}

/// What is known to be where. A place that was stored to holds what the low bits of the operand are.
type Known = FxHashMap<Place, Operand>;

impl Pass for Loads {
    fn name(&self) -> &'static str {
        "ssa-loads"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let d = Definitions::of(f);
        let mut out: FxHashMap<crate::Block, Known> = FxHashMap::default();
        let mut with: FxHashMap<Value, Operand> = FxHashMap::default();
        for &b in &graph.order {
            let mut known: Option<Known> = None;
            for (p, _) in &graph.preds[b.index()] {
                // Behind a loop's head, what its body does is not known yet.
                let Some(other) = out.get(p) else {
                    known = None;
                    break;
                };
                known = Some(match known {
                    None => other.clone(),
                    Some(mut k) => {
                        k.retain(|place, o| other.get(place) == Some(o));
                        k
                    }
                });
                if known.as_ref().is_some_and(Known::is_empty) {
                    break;
                }
            }
            let mut known = known.unwrap_or_default();
            for i in &f.block(b).insts {
                step(f, &d, i, &mut known, &mut with);
            }
            out.insert(b, known);
        }
        if with.is_empty() {
            return false;
        }
        for b in f.layout.clone() {
            f.block_mut(b).insts.retain(|i| i.result.is_none_or(|v| !with.contains_key(&v)));
        }
        f.replace(&with);
        true
    }
}

fn place(f: &Ssa, d: &Definitions, i: &Inst, off: i16, size: Size) -> Option<Place> {
    let base = i.args[0];
    let off = i64::from(off);
    if let Some(n) = d.frame(base) {
        return Some(Place { memory: Memory::Frame, base: None, off: n + off, size });
    }
    let memory = match i.region.as_ref().or(f.fact(base).region())? {
        Region::Ctx => Memory::Context,
        Region::Packet => Memory::Packet,
        _ => return None,
    };
    Some(Place { memory, base: Some(base), off, size })
}

fn step(f: &Ssa, d: &Definitions, i: &Inst, known: &mut Known, with: &mut FxHashMap<Value, Operand>) {
    match &i.op {
        Op::Load { size, sext: false, off } if i.link.is_none() => {
            let (Some(at), Some(v)) = (place(f, d, i, *off, *size), i.result) else { return };
            match known.get(&at) {
                Some(o) => {
                    with.insert(v, *o);
                }
                None => {
                    known.insert(at, Operand::Value(v));
                }
            }
        }
        Op::Store { size, off } if i.link.is_none() => match place(f, d, i, *off, *size) {
            Some(at) => {
                // What the kernel does with a field may change others.
                let is_context = |p: &Place| p.memory == Memory::Context && at.memory == Memory::Context;
                known.retain(|p, _| !p.overlaps(&at) && !is_context(p));
                // Only what a load would give back as it is.
                let most = u64::MAX >> (64 - size.bits());
                let mut value = i.args[1];
                while let Some(o) = value.value().and_then(|v| with.get(&v)) {
                    value = *o;
                }
                if at.memory != Memory::Context && (*size == Size::DW || num(f, d, value).umax <= most) {
                    known.insert(at, value);
                }
            }
            None => written(i.region.as_ref(), known),
        },
        Op::Atomic { size, off, .. } => match place(f, d, i, *off, *size) {
            Some(at) => known.retain(|p, _| !p.overlaps(&at)),
            None => written(i.region.as_ref(), known),
        },
        Op::Call(call) => call_writes(f, i, Effects::of(&Insn::Call(*call), i.link.is_some()), known),
        Op::CallIndirect => known.clear(),
        Op::Opaque(Insn::Store { .. }) => known.clear(),
        Op::LdAbs(..) | Op::LdInd(..) => known.retain(|p, _| p.memory == Memory::Frame),
        Op::Store { .. } => known.clear(),
        _ => {}
    }
}

/// A store somewhere in this region.
fn written(region: Option<&Region>, known: &mut Known) {
    match region {
        Some(Region::MapValue { .. } | Region::AnyMapValue | Region::Data { .. } | Region::Mem) => {}
        Some(Region::Packet | Region::PacketMeta) => known.retain(|p, _| p.memory != Memory::Packet),
        _ => known.clear(),
    }
}

fn call_writes(f: &Ssa, i: &Inst, row: &Effects, known: &mut Known) {
    if row.touches_everything || row.calls_back || row.indirect {
        return known.clear();
    }
    if row.packet != effects::Packet::Untouched {
        known.retain(|p, _| p.memory != Memory::Packet);
    }
    if row.changes_context {
        known.retain(|p, _| p.memory != Memory::Context);
    }
    for (argument, o) in row.arguments.iter().zip(&i.args) {
        if !argument.access.writes() {
            continue;
        }
        let fact = f.fact(*o);
        match fact.region() {
            // From there upwards.
            Some(Region::Stack) => {
                known.retain(|p, _| p.memory != Memory::Frame || p.off + i64::from(p.size.bytes()) <= fact.num.smin)
            }
            other => written(other, known),
        }
    }
}
