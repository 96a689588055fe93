//! Accesses through a pointer that has moved on go through the new one, at a smaller offset.
//!
//! ```text
//! before: v3 = add v1, 4                 after: v3 = add v1, 4     ; v1 += 4: v1 is not needed any more
//!         if v3 > v2 goto ...                   if v3 > v2 goto ...
//!         load u16 [v1 + 2]                     load u16 [v3 - 2]
//! ```
//! Only if all that may read the old pointer after the sum are accesses that the sum dominates.

use bpf_facts::{Env, Region};
use bpf_isa::{AluOp, Width};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Op, Operand, Ssa, Value};

/// The pass.
pub struct Rebase;

impl Pass for Rebase {
    fn name(&self) -> &'static str {
        "ssa-rebase"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let d = Definitions::of(f);
        let mut sums: Vec<(Block, usize, Value, Value, i64)> = vec![];
        for &b in &graph.order {
            for (n, i) in f.block(b).insts.iter().enumerate() {
                if let (Op::Alu(AluOp::Add, Width::W64), Some(q), Some(p)) =
                    (&i.op, i.result, i.args.first().and_then(|o| o.value()))
                    && let Some(c) = d.constant(i.args[1])
                    && matches!(f.fact(Operand::Value(p)).region(), Some(Region::Packet | Region::MapValue { .. }))
                {
                    sums.push((b, n, q, p, c));
                }
            }
        }
        // Of a pointer with several sums on one way, none is the one to go on with.
        let alone: Vec<bool> = sums
            .iter()
            .map(|s| {
                let mut others = sums.iter().filter(|o| o.3 == s.3 && (o.0, o.1) != (s.0, s.1)).peekable();
                let behind = others.peek().map(|_| graph.reached_from(f, s.0));
                others.all(|o| {
                    let leads_here = || graph.reached_from(f, o.0)[s.0.index()];
                    o.0 != s.0 && behind.as_ref().is_some_and(|b| !b[o.0.index()]) && !leads_here()
                })
            })
            .collect();
        let mut changed = false;
        for (&(b, n, q, p, c), _) in sums.iter().zip(alone).filter(|(_, alone)| *alone) {
            changed |= rebase(f, &graph, (b, n), q, p, c);
        }
        changed
    }
}

fn rebase(f: &mut Ssa, graph: &Graph, at: (Block, usize), q: Value, p: Value, c: i64) -> bool {
    let (me, new) = (Operand::Value(p), Operand::Value(q));
    let reached = graph.reached_from(f, at.0);
    if reached[at.0.index()] {
        return false;
    }
    let mut accesses = vec![];
    for &b in &graph.order {
        let block = f.block(b);
        for (n, i) in block.insts.iter().enumerate().filter(|(_, i)| i.args.contains(&me)) {
            let behind = if b == at.0 { n > at.1 } else { reached[b.index()] };
            if !behind {
                continue;
            }
            let off = match i.op {
                Op::Load { off, .. } | Op::Store { off, .. } | Op::Atomic { off, .. } => off,
                _ => return false,
            };
            let fits = i16::try_from(i64::from(off) - c).is_ok() && i.link.is_none() && !i.args[1..].contains(&me);
            if !fits || b != at.0 && !graph.dominates(at.0, b) {
                return false;
            }
            accesses.push((b, n));
        }
        if block.term.operands().contains(&me) && (b == at.0 || reached[b.index()]) {
            return false;
        }
    }
    for &(b, n) in &accesses {
        let i = &mut f.block_mut(b).insts[n];
        i.args[0] = new;
        match &mut i.op {
            Op::Load { off, .. } | Op::Store { off, .. } | Op::Atomic { off, .. } => *off -= c as i16,
            _ => {}
        }
    }
    !accesses.is_empty()
}
