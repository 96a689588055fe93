//! The few numbers that a value can be, block by block: by the constants that come to a join, by what was asked on the way, and
//! by what was computed from such values.
//!
//! ```text
//! if v9 == 8 goto b3 else b2        b2: if v9 != 56710 goto out else b4
//! b3: ... goto b5                   b4: ... goto b5
//! b5: ; v9 is 8 or 56710, though neither question dominates
//!     if v9 == 8 goto b6 else b7    b7: ; v9 is 56710
//! ```

use bpf_facts::{Num, NumDomain};
use bpf_isa::{Cond, Width};
use bpf_semantics::{alu, compare};

use super::fold::{Definitions, num};
use crate::graph::Graph;
use crate::{Block, Op, Operand, Ssa, Term, Value};

/// Numbers that are told apart, at most.
const MOST: usize = 8;
/// Rounds over a function with loops, at most.
const ROUNDS: usize = 4;
/// Steps of arithmetic between a value and the one that comes to a join, at most.
const STEPS: usize = 4;

/// What a value can be at the entry of each block.
pub(super) struct Values {
    value: Value,
    /// Whether comparisons of the lower half tell the whole.
    is_short: bool,
    at: Vec<Reach>,
}

/// What is known at a block.
#[derive(Clone, PartialEq, Eq)]
enum Reach {
    /// Nothing has come there.
    Never,
    /// One of these, sorted.
    OneOf(Vec<u64>),
    Any,
}

impl Values {
    /// Of a value; `None` if nothing tells more than that it is some number.
    pub(super) fn of(f: &Ssa, graph: &Graph, d: &Definitions, value: Value) -> Option<Values> {
        Values::within(f, graph, d, value, STEPS)
    }

    fn within(f: &Ssa, graph: &Graph, d: &Definitions, value: Value, steps: usize) -> Option<Values> {
        let is_asked = |b: &Block| match &f.block(*b).term {
            Term::Branch { a, b, .. } => *a == Operand::Value(value) && d.constant(*b).is_some(),
            _ => false,
        };
        let home = graph.order.iter().find(|b| defines(f, **b, value)).copied()?;
        let first = match brought(f, graph, d, home, value) {
            Reach::Any => computed(f, graph, d, home, value, steps),
            brought => brought,
        };
        if first == Reach::Any && graph.order.iter().filter(|b| is_asked(b)).count() < 2 {
            return None;
        }
        let is_short = num(f, d, Operand::Value(value)).umax <= u64::from(u32::MAX);
        let mut values = Values { value, is_short, at: vec![Reach::Never; f.blocks.len()] };
        values.at[home.index()] = first;
        for _ in 0..ROUNDS {
            let mut changed = false;
            for &b in graph.order.iter().filter(|b| **b != home && graph.dominates(home, **b)) {
                let all = graph.preds[b.index()].iter().map(|(p, side)| values.on(f, d, *p, *side));
                let found = all.fold(Reach::Never, Reach::or);
                changed |= found != values.at[b.index()];
                values.at[b.index()] = found;
            }
            if !changed {
                return Some(values);
            }
        }
        None
    }

    /// What it can be on an edge.
    fn on(&self, f: &Ssa, d: &Definitions, from: Block, side: usize) -> Reach {
        let before = self.at[from.index()].clone();
        let Term::Branch { cond, width, a, b, taken, fall, .. } = &f.block(from).term else { return before };
        let (true, Some(c)) = (*a == Operand::Value(self.value), d.constant(*b)) else { return before };
        if before == Reach::Never || taken == fall || *width == Width::W32 && !self.is_short {
            return before;
        }
        let c = if *width == Width::W32 { u64::from(c as u32) } else { c as u64 };
        match (before, cond, side == 0) {
            (Reach::Any, Cond::Eq, true) | (Reach::Any, Cond::Ne, false) => Reach::OneOf(vec![c]),
            (Reach::OneOf(mut all), cond, answer) => {
                all.retain(|v| answers(*cond, *width, *v, c).is_none_or(|a| a == answer));
                if all.is_empty() { Reach::Never } else { Reach::OneOf(all) }
            }
            (before, ..) => before,
        }
    }

    /// The answer to a question about it at a block, where `edge` leads there, or whatever does.
    pub(super) fn answer(
        &self,
        f: &Ssa,
        d: &Definitions,
        b: Block,
        edge: Option<(Block, usize)>,
        (cond, width, c): (Cond, Width, i64),
    ) -> Option<bool> {
        let reach = match edge {
            Some((from, side)) => self.on(f, d, from, side),
            None => self.at[b.index()].clone(),
        };
        let Reach::OneOf(all) = reach else { return None };
        let mut answers = all.iter().map(|v| answers(cond, width, *v, c as u64));
        let first = answers.next()??;
        answers.all(|a| a == Some(first)).then_some(first)
    }
}

impl Reach {
    fn or(self, other: Reach) -> Reach {
        match (self, other) {
            (Reach::Never, r) | (r, Reach::Never) => r,
            (Reach::OneOf(mut a), Reach::OneOf(b)) => {
                a.extend(b);
                a.sort_unstable();
                a.dedup();
                if a.len() > MOST { Reach::Any } else { Reach::OneOf(a) }
            }
            _ => Reach::Any,
        }
    }
}

/// What a value can be that is computed, with constants, from one that can be a few.
fn computed(f: &Ssa, graph: &Graph, d: &Definitions, home: Block, value: Value, steps: usize) -> Reach {
    let Some((op, args)) = d.get(value).filter(|_| steps > 0) else { return Reach::Any };
    let Some(Operand::Value(from)) = args.first() else { return Reach::Any };
    let (op, width, by) = match (op, args.get(1).map(|o| d.constant(*o))) {
        (Op::Alu(op, width), Some(Some(by))) => (*op, *width, by),
        (Op::Low32, None) => (bpf_isa::AluOp::And, Width::W64, 0xffff_ffff),
        _ => return Reach::Any,
    };
    let Some(values) = Values::within(f, graph, d, *from, steps - 1) else { return Reach::Any };
    let Reach::OneOf(all) = &values.at[home.index()] else { return Reach::Any };
    let one = |x: &u64| {
        let [x, by] = [*x, by as u64].map(|n| Num::constant(64, n));
        alu(&mut NumDomain, op, width, &x, &by).as_const()
    };
    match all.iter().map(one).collect::<Option<Vec<u64>>>() {
        Some(found) => found.into_iter().fold(Reach::Never, |r, c| r.or(Reach::OneOf(vec![c]))),
        None => Reach::Any,
    }
}

fn answers(cond: Cond, width: Width, x: u64, y: u64) -> Option<bool> {
    compare(&mut NumDomain, cond, width, &Num::constant(64, x), &Num::constant(64, y))
}

fn defines(f: &Ssa, b: Block, value: Value) -> bool {
    let block = f.block(b);
    block.params.contains(&value) || block.insts.iter().any(|i| i.result == Some(value))
}

/// What the edges into its block bring for a parameter, if all bring constants.
fn brought(f: &Ssa, graph: &Graph, d: &Definitions, home: Block, value: Value) -> Reach {
    let Some(at) = f.block(home).params.iter().position(|p| *p == value) else { return Reach::Any };
    let edges = &graph.preds[home.index()];
    let args = edges.iter().map(|(from, side)| f.block(*from).term.edges().nth(*side)?.args.get(at).copied());
    let constants: Option<Vec<u64>> = args.map(|o| d.constant(o?).map(|c| c as u64)).collect();
    match constants {
        Some(all) if !all.is_empty() => all.into_iter().fold(Reach::Never, |r, c| r.or(Reach::OneOf(vec![c]))),
        _ => Reach::Any,
    }
}
