//! A constant that several ways bring to a join is set once, where these ways begin.
//!
//! ```text
//! before: b1: if v1 > v2 goto b9(0) else b2     after: b1: v7 = 0
//!         b2: if v3 > v2 goto b9(0) else b3                if v1 > v2 goto b9(v7) else b2
//!         b3: v4 = load u8 [v1 + 9]                    b2: if v3 > v2 goto b9(v7) else b3
//!             goto b9(v4)                              b3: v4 = load u8 [v1 + 9]
//!                                                          goto b9(v4)
//! ```
//! It pays if the register of the join is free in between; whether it is, allocation tells, and the shorter form is taken.

use bpf_facts::{Env, Value as Fact};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Value};

/// An edge (block and side), with the argument that it brings.
type Way = (Block, usize, Operand);

/// The pass.
pub struct Defaults;

impl Pass for Defaults {
    fn name(&self) -> &'static str {
        "ssa-defaults"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let d = Definitions::of(f);
        let mut changed = false;
        for &join in &graph.order {
            for at in 0..f.block(join).params.len() {
                // Constants that more than one way brings.
                let mut brought: Vec<(i64, Vec<Way>)> = vec![];
                for &(from, side) in &graph.preds[join.index()] {
                    let Some(arg) = f.block(from).term.edges().nth(side).map(|e| e.args[at]) else { continue };
                    let Some(c) = d.constant(arg) else { continue };
                    match brought.iter_mut().find(|(k, _)| *k == c) {
                        Some((_, ways)) => ways.push((from, side, arg)),
                        None => brought.push((c, vec![(from, side, arg)])),
                    }
                }
                for (c, ways) in brought {
                    let first = ways[0].2;
                    if ways.len() < 2 || first.value().is_some() && ways.iter().all(|w| w.2 == first) {
                        continue;
                    }
                    let home = ways.iter().map(|w| w.0).reduce(|a, b| graph.meet(a, b)).unwrap_or(join);
                    let set = constant(f, home, c);
                    for (from, side, _) in ways {
                        if let Some(e) = f.block_mut(from).term.edges_mut().nth(side) {
                            e.args[at] = Operand::Value(set);
                        }
                    }
                    changed = true;
                }
            }
        }
        changed | super::dead::remove(f)
    }
}

fn constant(f: &mut Ssa, home: Block, c: i64) -> Value {
    let v = f.new_value(Fact::constant(c as u64), None);
    let origin = f.block(home).insts.last().and_then(|i| i.origin);
    f.block_mut(home).insts.push(Inst::new(Op::Const(c), vec![], Some(v), origin));
    v
}
