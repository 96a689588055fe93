//! What is copied out of a map's value in parts is copied by one wider access, which takes in bytes beside them that are
//! stored over at once.
//!
//! ```text
//! before: v3 = load u16 [v1 + 4]                 after: v5 = load u64 [v1 + 0]
//!         store u16 [v2 + 4] = v3                       store u64 [v2 + 0] = v5
//!         v4 = load u32 [v1 + 0]                        ...
//!         store u32 [v2 + 0] = v4                       store u32 [v2 + 6] = v6
//!         ...
//!         store u32 [v2 + 6] = v6
//! ```
//! Into the packet, which nobody else sees in between (of the frame the verifier would know less afterwards, and walk further);
//! out of a value that is long enough on every way, at an aligned place. Not with `--strict-shared-memory`: the prover refuses it.

use std::collections::BTreeSet;

use bpf_facts::{Env, Region};
use bpf_isa::Size;

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa};

/// The pass.
pub struct WideCopies;

impl Pass for WideCopies {
    fn name(&self) -> &'static str {
        "ssa-wide-copies"
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, env: &Env<'_>) -> bool {
        let mut changed = false;
        while let Some((block, wide)) = first(f, env) {
            wide.take(f, block);
            changed = true;
        }
        changed
    }
}

fn first(f: &Ssa, env: &Env<'_>) -> Option<(Block, Wide)> {
    let (graph, d, counts) = (Graph::of(f), Definitions::of(f), f.use_counts());
    graph.order.iter().find_map(|&b| {
        let copies = copies(f, b, &d, &counts);
        let wide = copies.iter().find_map(|c| wide(f, b, env, &graph, &d, &copies, c))?;
        Some((b, wide))
    })
}

/// An address: an operand, and how far from there.
type Place = (Operand, i64);

/// A load and the store of what it loaded, which nobody else reads.
#[derive(Clone, Copy)]
struct Copied {
    load: usize,
    store: usize,
    size: Size,
    from: Place,
    to: Place,
}

impl Copied {
    /// The bytes that are stored.
    fn bytes(&self) -> std::ops::Range<i64> {
        self.to.1..self.to.1 + i64::from(self.size.bytes())
    }

    /// Whether both are copied alike, each byte as far.
    fn goes_with(&self, o: &Copied) -> bool {
        (self.from.0, self.to.0) == (o.from.0, o.to.0) && self.to.1 - self.from.1 == o.to.1 - o.from.1
    }
}

/// What stands in the place of several copies.
struct Wide {
    /// Places of their loads and stores.
    parts: Vec<usize>,
    /// The first load and the first store of them, and how much lower the wide ones begin.
    load: (usize, i64),
    store: (usize, i64),
    size: Size,
}

fn is_map_value(r: Option<&Region>) -> bool {
    matches!(r, Some(Region::MapValue { .. } | Region::AnyMapValue))
}

fn is_packet(inst: &Inst) -> bool {
    matches!(inst.region, Some(Region::Packet))
}

fn place(d: &Definitions, address: Operand, off: i16) -> Place {
    let (base, sum) = d.sum(address);
    (base, sum + i64::from(off))
}

fn copies(f: &Ssa, b: Block, d: &Definitions, counts: &[usize]) -> Vec<Copied> {
    let insts = &f.block(b).insts;
    let copied = |(load, inst): (usize, &Inst)| {
        let Op::Load { size, sext: false, off } = inst.op else { return None };
        let v = inst.result.filter(|v| counts[v.index()] == 1 && inst.link.is_none())?;
        is_map_value(inst.region.as_ref()).then_some(())?;
        let store = insts.iter().position(|i| i.args.get(1) == Some(&Operand::Value(v)))?;
        let Op::Store { size: stored, off: to } = insts[store].op else { return None };
        let fits = stored == size && insts[store].link.is_none() && is_packet(&insts[store]);
        let to = place(d, insts[store].args[0], to);
        fits.then_some(Copied { load, store, size, from: place(d, inst.args[0], off), to })
    };
    insts.iter().enumerate().filter_map(copied).collect()
}

/// One access for this copy and those behind it that go with it.
fn wide(
    f: &Ssa,
    b: Block,
    env: &Env<'_>,
    graph: &Graph,
    d: &Definitions,
    all: &[Copied],
    first: &Copied,
) -> Option<Wide> {
    let insts = &f.block(b).insts;
    let (mut parts, mut bytes) = (BTreeSet::new(), BTreeSet::new());
    let mut best = None;
    for c in all.iter().filter(|c| c.load >= first.load && c.goes_with(first)) {
        if c.bytes().any(|at| !bytes.insert(at)) {
            break;
        }
        parts.extend([c.load, c.store]);
        let (start, end) = (first.load, *parts.last()?);
        if !(start..=end).all(|i| parts.contains(&i) || insts[i].is_pure()) {
            continue;
        }
        let written = written_behind(insts, end, d, first.to.0);
        for size in [Size::W, Size::DW] {
            let (low, length) = (*bytes.first()?, i64::from(size.bytes()));
            let source = low + first.from.1 - first.to.1;
            let below = source.rem_euclid(length);
            let begin = low - below;
            let is_all = bytes.iter().all(|at| *at < begin + length);
            let over = (begin..begin + length).all(|at| bytes.contains(&at) || written.contains(&at));
            let room = || room(f, env, graph, first.from.0, &mut vec![]);
            if parts.len() > 2 && is_all && over && room().is_some_and(|r| source - below + length <= r) {
                best = Some(Wide {
                    parts: parts.iter().copied().collect(),
                    load: (first.load, first.from.1 - (source - below)),
                    store: (first.store, first.to.1 - begin),
                    size,
                });
            }
        }
    }
    best
}

/// The bytes, counted from this address, that are stored behind an instruction before anybody may look.
fn written_behind(insts: &[Inst], at: usize, d: &Definitions, to: Operand) -> BTreeSet<i64> {
    let mut written = BTreeSet::new();
    for inst in &insts[at + 1..] {
        match inst.op {
            Op::Store { size, off } if inst.link.is_none() => {
                let (base, first) = place(d, inst.args[0], off);
                if base == to {
                    written.extend(first..first + i64::from(size.bytes()));
                }
            }
            Op::Load { .. } if inst.link.is_none() && is_map_value(inst.region.as_ref()) => {}
            _ if inst.is_pure() => {}
            _ => break,
        }
    }
    written
}

/// Bytes from a pointer to the end of the value that it leads into, on every way.
fn room(f: &Ssa, env: &Env<'_>, graph: &Graph, pointer: Operand, seen: &mut Vec<Operand>) -> Option<i64> {
    if seen.contains(&pointer) {
        return Some(i64::MAX);
    }
    seen.push(pointer);
    let fact = f.fact(pointer);
    if let Some(Region::MapValue { map }) = fact.region() {
        let offset = fact.num.as_const()? as i64;
        return i64::from(env.maps.get(*map)?.value_size?).checked_sub(offset);
    }
    let v = pointer.value()?;
    let (join, at) = graph.order.iter().find_map(|b| Some((*b, f.block(*b).params.iter().position(|p| *p == v)?)))?;
    let mut least = None;
    for (from, side) in &graph.preds[join.index()] {
        let brought = f.block(*from).term.edges().nth(*side)?.args[at];
        let n = room(f, env, graph, brought, seen)?;
        least = Some(least.map_or(n, |l: i64| l.min(n)));
    }
    least
}

impl Wide {
    fn take(&self, f: &mut Ssa, b: Block) {
        let load = f.block(b).insts[self.load.0].clone();
        let Some(old) = load.result else { return };
        let v = f.new_value(bpf_facts::Value::unknown(), f.values[old.index()].home);
        let insts = &mut f.block_mut(b).insts;
        let lower = |op: &Op, by: i64| match op {
            Op::Load { off, sext, .. } => {
                Op::Load { size: self.size, sext: *sext, off: i16::try_from(i64::from(*off) - by).unwrap_or(*off) }
            }
            Op::Store { off, .. } => {
                Op::Store { size: self.size, off: i16::try_from(i64::from(*off) - by).unwrap_or(*off) }
            }
            other => other.clone(),
        };
        let store = insts[self.store.0].clone();
        let wide_load = Inst { op: lower(&load.op, self.load.1), result: Some(v), ..load };
        let wide_store =
            Inst { op: lower(&store.op, self.store.1), args: vec![store.args[0], Operand::Value(v)], ..store };
        insts[self.load.0] = wide_load;
        insts[self.store.0] = wide_store;
        for at in self.parts.iter().rev().filter(|at| **at != self.load.0 && **at != self.store.0) {
            insts.remove(*at);
        }
    }
}
