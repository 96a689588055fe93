//! Two legacy loads from neighbouring places of the packet become one wider one. Each is a call, some ten times as slow as an
//! instruction.
//!
//! ```text
//! before: v3 = ldind u16 6, v1, v2                after: v9 = ldind u32 6, v1, v2
//!         ...                                            v3 = rsh v9, 16
//!         v5 = ldind u8 9, v1, v2                        ...
//!                                                        v5 = and v9, 0xff
//! ```
//! The second one is made on every way behind which it stands in any case, or a packet too short for it ends the program behind
//! it all the same: that is for the prover to see. It reads the bytes in the order of the network, the first one the highest.

use bpf_facts::{Env, Num, Value as Fact};
use bpf_isa::{AluOp, Size, Width};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Value};

/// The pass.
pub struct PacketLoads;

impl Pass for PacketLoads {
    fn name(&self) -> &'static str {
        "ssa-packet-loads"
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let mut changed = false;
        while let Some(pair) = first(f) {
            pair.join(f);
            changed = true;
        }
        changed
    }
}

/// A legacy load: where it stands, and which bytes it reads.
#[derive(Clone, Copy)]
struct Load {
    block: Block,
    at: usize,
    skb: Operand,
    /// Counted from this; `None`: from the start of the packet.
    base: Option<Operand>,
    start: i64,
    /// The instruction's own part of that.
    imm: i32,
    size: Size,
    result: Value,
}

impl Load {
    fn end(&self) -> i64 {
        self.start.saturating_add(self.size.bytes().into())
    }
}

/// Two loads, the first of which is on every way to the second, and the wide one that takes the first one's place.
struct Pair {
    first: Load,
    second: Load,
    start: i64,
    /// The wide one's own part of that, as the first one's index is.
    imm: i32,
    size: Size,
}

fn loads(f: &Ssa, graph: &Graph, d: &Definitions) -> Vec<Load> {
    let mut out = vec![];
    for &block in &graph.order {
        for (at, inst) in f.block(block).insts.iter().enumerate() {
            let (size, imm, base, start) = match inst.op {
                Op::LdAbs(size, imm) => (size, imm, None, imm.into()),
                Op::LdInd(size, imm) => {
                    let (base, more) = d.sum(inst.args[1]);
                    (size, imm, Some(base), more.saturating_add(imm.into()))
                }
                _ => continue,
            };
            if let Some(result) = inst.result {
                out.push(Load { block, at, skb: inst.args[0], base, start, imm, size, result });
            }
        }
    }
    out
}

fn first(f: &Ssa) -> Option<Pair> {
    let (graph, d) = (Graph::of(f), Definitions::of(f));
    let all = loads(f, &graph, &d);
    let follows = |a: &Load, b: &Load| {
        if a.block == b.block { a.at < b.at } else { graph.dominates(a.block, b.block) }
    };
    all.iter().find_map(|a| {
        let others = all.iter().filter(|b| follows(a, b) && (a.skb, a.base) == (b.skb, b.base));
        others.filter(|b| is_left_alone(f, &graph, a, b)).find_map(|b| wide(f, a, b))
    })
}

/// One load for both, if there is one so wide.
fn wide(f: &Ssa, first: &Load, second: &Load) -> Option<Pair> {
    let (start, end) = (first.start.min(second.start), first.end().max(second.end()));
    let size = [Size::B, Size::H, Size::W].into_iter().find(|s| i64::from(s.bytes()) >= end.saturating_sub(start))?;
    // Rather in front of what is asked for, where the packet surely is, than behind it.
    let lower = end - i64::from(size.bytes());
    let least = first.base.map_or(0, |b| f.fact(b).bits().umin);
    let is_inside = i64::try_from(least).is_ok_and(|l| l.checked_add(lower).is_some_and(|at| at >= 0));
    let start = if is_inside { lower } else { start };
    let imm = i32::try_from(i64::from(first.imm) + start - first.start).ok()?;
    Some(Pair { first: *first, second: *second, start, imm, size })
}

/// Whether nothing on the ways from one load to another may write to the packet.
fn is_left_alone(f: &Ssa, graph: &Graph, a: &Load, b: &Load) -> bool {
    let writes = |i: &Inst| {
        matches!(i.op, Op::Store { .. } | Op::Atomic { .. } | Op::Call(_) | Op::CallIndirect | Op::Opaque(_))
            && !matches!(i.region, Some(bpf_facts::Region::Stack))
    };
    let quiet = |block: Block, from: usize, to: usize| !f.block(block).insts[from..to].iter().any(writes);
    if a.block == b.block {
        return quiet(a.block, a.at, b.at);
    }
    let (mut seen, mut todo) = (vec![a.block, b.block], vec![b.block]);
    while let Some(block) = todo.pop() {
        for (p, _) in &graph.preds[block.index()] {
            if !seen.contains(p) {
                seen.push(*p);
                todo.push(*p);
                if !quiet(*p, 0, f.block(*p).insts.len()) {
                    return false;
                }
            }
        }
    }
    quiet(a.block, a.at, f.block(a.block).insts.len()) && quiet(b.block, 0, b.at)
}

impl Pair {
    fn join(self, f: &mut Ssa) {
        let Pair { first, second, start, imm, size } = self;
        let fact = Fact::scalar(Num::top(size.bits()).zext(64));
        let wide = f.new_value(fact, f.values[first.result.index()].home);
        let end = start + i64::from(size.bytes());
        // The later one first, so that the places of instructions stay true.
        let part = self.part(f, &second, wide, end);
        f.block_mut(second.block).insts.splice(second.at..=second.at, part);
        let mut part = self.part(f, &first, wide, end);
        let mut load = f.block(first.block).insts[first.at].clone();
        load.result = Some(wide);
        if let Op::LdAbs(s, at) | Op::LdInd(s, at) = &mut load.op {
            (*s, *at) = (size, imm);
        }
        part.insert(0, load);
        f.block_mut(first.block).insts.splice(first.at..=first.at, part);
    }

    /// What one of them has read, out of what is read now.
    fn part(&self, f: &mut Ssa, load: &Load, wide: Value, end: i64) -> Vec<Inst> {
        let origin = f.block(load.block).insts[load.at].origin;
        let above = load.start > self.start;
        let shift = 8 * (end - load.end());
        let step = |op, with: i64, of: Value, to: Value| {
            let args = vec![Operand::Value(of), Operand::Const(with)];
            Inst::new(Op::Alu(op, Width::W64), args, Some(to), origin)
        };
        match (shift, above) {
            (0, false) => vec![Inst::new(Op::Copy, vec![Operand::Value(wide)], Some(load.result), origin)],
            (0, true) => vec![step(AluOp::And, (1 << load.size.bits()) - 1, wide, load.result)],
            (_, false) => vec![step(AluOp::Rsh, shift, wide, load.result)],
            (_, true) => {
                let moved = f.new_value(Fact::scalar(Num::top(32).zext(64)), None);
                let mask = (1 << load.size.bits()) - 1;
                vec![step(AluOp::Rsh, shift, wide, moved), step(AluOp::And, mask, moved, load.result)]
            }
        }
    }
}
