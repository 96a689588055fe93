//! A constant that one edge of a question brings to a join is set before the question.
//!
//! ```text
//! before: b1: if v1 == 0x800 goto b7 else b2        after: b1: v7 = 3
//!         b2: if v1 == 0x86dd goto b8 else b3                  if v1 == 0x800 goto b5(v7) else b2
//!         b7: v7 = 3                                       b2: v8 = 4
//!             goto b5(v7)                                      if v1 == 0x86dd goto b5(v8) else b3
//!         b8: v8 = 4                                       b5(v2): ...
//!             goto b5(v8)
//!         b5(v2): ...
//! ```
//! A block of its own has to jump. The register is that of the join, which the other ways set, too: if it
//! is free there, allocation finds out, and the shorter form is taken.

use bpf_facts::{Env, Value as Fact};
use rustc_hash::FxHashMap;

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Edge, Inst, Op, Operand, Ssa, Term, Value};

/// The pass.
pub struct Presets;

impl Pass for Presets {
    fn name(&self) -> &'static str {
        "ssa-presets"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let mut changed = false;
        for &join in &graph.order {
            let sets: Vec<Block> =
                graph.preds[join.index()].iter().map(|(b, _)| *b).filter(|b| only_sets(f, &graph, *b)).collect();
            let brings = |(b, side): &(Block, usize)| {
                let edge = f.block(*b).term.edges().nth(*side);
                matches!(f.block(*b).term, Term::Branch { .. })
                    && edge.is_some_and(|e| e.args.iter().any(|a| a.constant().is_some()))
            };
            let is_wanted = !sets.is_empty() || graph.preds[join.index()].iter().any(brings);
            if !is_wanted || graph.preds[join.index()].len() < 2 {
                continue;
            }
            for b in sets {
                set_before(f, &graph, b);
            }
            f.drop_unreachable();
            once_each(f, join);
            changed = true;
        }
        changed | super::dead::remove(f)
    }
}

/// Whether a block does nothing but set constants, on one edge of a question.
fn only_sets(f: &Ssa, graph: &Graph, b: Block) -> bool {
    let block = f.block(b);
    let is_constant = |i: &Inst| matches!(i.op, Op::Const(_)) && i.link.is_none();
    let from_question = match graph.preds[b.index()][..] {
        [(from, _)] => matches!(&f.block(from).term, Term::Branch { taken, fall, .. } if taken.to != fall.to),
        _ => false,
    };
    from_question
        && block.params.is_empty()
        && matches!(block.term, Term::Goto(_))
        && block.insts.iter().all(is_constant)
}

/// Does what such a block does before the question that leads there.
fn set_before(f: &mut Ssa, graph: &Graph, b: Block) {
    let (from, side) = graph.preds[b.index()][0];
    let Term::Goto(edge) = f.block(b).term.clone() else { return };
    let insts = std::mem::take(&mut f.block_mut(b).insts);
    let before = f.block_mut(from);
    before.insts.extend(insts);
    if let Some(e) = before.term.edges_mut().nth(side) {
        *e = edge;
    }
}

/// Lets each question that leads to the join set the constants itself that it brings: one that was set further up would be lost
/// in between, unless the question right above brings the same.
fn once_each(f: &mut Ssa, join: Block) {
    let d = Definitions::of(f);
    let graph = Graph::of(f);
    // What each block has in the place of a parameter at its end.
    let mut held: FxHashMap<(Block, usize), (i64, Value)> = FxHashMap::default();
    for &b in &graph.order {
        if !matches!(f.block(b).term, Term::Branch { .. }) {
            continue;
        }
        let edges: Vec<(usize, Edge)> =
            f.block(b).term.edges().cloned().enumerate().filter(|(_, e)| e.to == join).collect();
        for (side, edge) in edges {
            for (at, arg) in edge.args.iter().enumerate() {
                let Some(c) = d.constant(*arg) else { continue };
                let is_own = |v: &Value| f.block(b).insts.iter().any(|i| i.result == Some(*v));
                let above = match graph.preds[b.index()][..] {
                    [(p, _)] => held.get(&(p, at)).filter(|(k, _)| *k == c).map(|(_, v)| *v),
                    _ => None,
                };
                let v = match above.or(arg.value().filter(is_own)) {
                    Some(v) => v,
                    None => {
                        let v = f.new_value(Fact::constant(c as u64), None);
                        let origin = f.block(b).insts.last().and_then(|i| i.origin);
                        f.block_mut(b).insts.push(Inst::new(Op::Const(c), vec![], Some(v), origin));
                        v
                    }
                };
                held.insert((b, at), (c, v));
                if let Some(e) = f.block_mut(b).term.edges_mut().nth(side) {
                    e.args[at] = Operand::Value(v);
                }
            }
        }
    }
}
