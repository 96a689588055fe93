//! Redundant predicate elimination (BPF+, SIGCOMM 1999, §6.1), and jump threading.
//!
//! ```text
//! before: b1: if v1 != 8 goto b3         after: b1: if v1 != 8 goto b5
//!         b2: ...                               b2: ...
//!             goto b3                               goto b3
//!         b3: if v1 == 8 goto b4 else b5        b3: goto b4
//! ```
//! An edge knows what every edge that dominates it has answered. If that answers the question of the block it leads to,
//! the edge goes past that block to where the answer leads. What the block computes is copied where it is still needed,
//! and only if nothing has to be: a question is saved, not code added.
//!
//! What is known of two operands is which of the five ways two numbers can stand to each other are left (equal; below
//! or above, unsigned and signed), which is the paper's table 1 and more; of a number compared with constants, its known
//! bits and range, and the few numbers that it can be ([`super::values`]). A packet pointer that is not beyond the end is not so with a smaller offset either.

use bpf_facts::{Env, Num, NumDomain, Region, refine};
use bpf_isa::{Cond, Width};

use super::fold::{Definitions, num};
use super::pass::Pass;
use super::repair::repair;
use super::values::Values;
use crate::graph::Graph;
use crate::{Block, Edge, Inst, Operand, Ssa, Term, Value};

/// The pass.
pub struct Predicates;

/// A question, and the answer known for it.
#[derive(Clone, Copy, Debug)]
struct Assertion {
    question: Question,
    answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    cond: Cond,
    width: Width,
    a: Operand,
    b: Operand,
}

/// Questions looked at above an edge, at most.
const ABOVE: usize = 64;
/// Edges redirected in one run, at most: each changes the graph.
const AT_ONCE: usize = 400;

impl Pass for Predicates {
    fn name(&self) -> &'static str {
        "ssa-predicates"
    }

    fn is_hard(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let mut changed = false;
        for _ in 0..AT_ONCE {
            let graph = Graph::of(f);
            let d = Definitions::of(f);
            let answered = settle(f, &graph, &d);
            if answered {
                changed = true;
                f.drop_unreachable();
                continue;
            }
            let Some((from, side, answer)) = find(f, &graph, &d) else { break };
            thread(f, from, side, answer);
            f.drop_unreachable();
            crate::lift::simplify_params(f);
            changed = true;
        }
        changed
    }
}

fn question(f: &Ssa, b: Block) -> Option<Question> {
    match f.block(b).term {
        Term::Branch { cond, width, a, b, .. } => Some(Question { cond, width, a, b }),
        _ => None,
    }
}

/// What is known on an edge.
fn assertions(f: &Ssa, edges: &[(Block, usize)]) -> Vec<Assertion> {
    let known = edges.iter().filter_map(|(b, side)| {
        let both = match &f.block(*b).term {
            Term::Branch { taken, fall, .. } => taken.to == fall.to && taken.args == fall.args,
            _ => false,
        };
        (!both).then_some(Assertion { question: question(f, *b)?, answer: *side == 0 })
    });
    known.take(ABOVE).collect()
}

/// Answers questions that have one answer whatever way leads there; whether there were any.
fn settle(f: &mut Ssa, graph: &Graph, d: &Definitions) -> bool {
    let mut changed = false;
    for &b in &graph.order {
        let Some(q) = question(f, b) else { continue };
        let known = assertions(f, &graph.edges_above(b));
        let Some(answer) = predict(f, d, &known, q).or_else(|| of_few(f, graph, d, b, None, q)) else { continue };
        if let Term::Branch { taken, fall, .. } = &f.block(b).term {
            let edge = if answer { taken.clone() } else { fall.clone() };
            f.block_mut(b).term = Term::Goto(edge);
            changed = true;
        }
    }
    changed
}

/// An edge that may go past the block it leads to.
fn find(f: &Ssa, graph: &Graph, d: &Definitions) -> Option<(Block, usize, bool)> {
    for &b in &graph.order {
        let Some(q) = question(f, b) else { continue };
        if graph.preds[b.index()].len() < 2 || !may_be_passed(f, b) {
            continue;
        }
        for &(from, side) in &graph.preds[b.index()] {
            // A loop's head is passed only by what comes from outside.
            if graph.dominates(b, from) {
                continue;
            }
            let Some(edge) = f.block(from).term.edges().nth(side) else { continue };
            let inside = |o: Operand| match o.value() {
                Some(v) => match f.block(b).params.iter().position(|p| *p == v) {
                    Some(i) => Some(edge.args[i]),
                    None if f.block(b).insts.iter().any(|i| i.result == Some(v)) => None,
                    None => Some(o),
                },
                None => Some(o),
            };
            let (Some(x), Some(y)) = (inside(q.a), inside(q.b)) else { continue };
            let known = assertions(f, &graph.dominating_edges(from, side));
            let q = Question { a: x, b: y, ..q };
            if let Some(answer) = predict(f, d, &known, q).or_else(|| of_few(f, graph, d, b, Some((from, side)), q)) {
                return Some((from, side, answer));
            }
        }
    }
    None
}

/// Whether a way past the block needs nothing of what it does: all of it is without effect, and read by nobody else.
fn may_be_passed(f: &Ssa, b: Block) -> bool {
    let block = f.block(b);
    if !block.insts.iter().all(Inst::is_pure) {
        return false;
    }
    let own: Vec<Value> = block.insts.iter().filter_map(|i| i.result).collect();
    if own.is_empty() {
        return true;
    }
    let is_own = |o: &Operand| o.value().is_some_and(|v| own.contains(&v));
    let outside = f.layout.iter().filter(|x| **x != b).any(|x| {
        let block = f.block(*x);
        block.insts.iter().any(|i| i.args.iter().any(is_own)) || block.term.operands().iter().any(is_own)
    });
    !outside && !block.term.edges().any(|e| e.args.iter().any(is_own))
}

/// Lets the edge go past its target, whose question is answered.
fn thread(f: &mut Ssa, from: Block, side: usize, answer: bool) {
    let Some(edge) = f.block(from).term.edges().nth(side).cloned() else { return };
    let over = edge.to;
    let params = f.block(over).params.clone();
    let Some(on) = f.block(over).term.edges().nth(usize::from(!answer)).cloned() else { return };
    // A block in between, which takes the place of the one passed.
    let copies: Vec<Value> = params.iter().map(|p| f.new_value_like(*p)).collect();
    let between = Block(f.blocks.len() as u32);
    let with = |o: Operand| match o.value().and_then(|v| params.iter().position(|p| *p == v)) {
        Some(i) => Operand::Value(copies[i]),
        None => o,
    };
    let args = on.args.iter().map(|o| with(*o)).collect();
    let term = Term::Goto(Edge { to: on.to, args });
    f.blocks.push(crate::BlockData { params: copies.clone(), insts: vec![], term });
    let at = f.layout.iter().position(|b| *b == from).map_or(f.layout.len(), |i| i + 1);
    f.layout.insert(at, between);
    if let Some(e) = f.block_mut(from).term.edges_mut().nth(side) {
        e.to = between;
    }
    for (p, c) in params.iter().zip(&copies) {
        let graph = Graph::of(f);
        repair(f, &graph, *p, &[(over, Operand::Value(*p)), (between, Operand::Value(*c))]);
    }
}

/// The five ways in which two numbers can stand to each other: equal; below or above unsigned, each below or above
/// signed.
fn ways(c: Cond) -> Option<u8> {
    const EQ: u8 = 1;
    const BELOW: u8 = 2 | 4;
    const ABOVE: u8 = 8 | 16;
    const SIGNED_BELOW: u8 = 2 | 8;
    const SIGNED_ABOVE: u8 = 4 | 16;
    Some(match c {
        Cond::Eq => EQ,
        Cond::Ne => BELOW | ABOVE,
        Cond::Lt => BELOW,
        Cond::Le => BELOW | EQ,
        Cond::Gt => ABOVE,
        Cond::Ge => ABOVE | EQ,
        Cond::Slt => SIGNED_BELOW,
        Cond::Sle => SIGNED_BELOW | EQ,
        Cond::Sgt => SIGNED_ABOVE,
        Cond::Sge => SIGNED_ABOVE | EQ,
        Cond::Set => return None,
    })
}

/// The answer to a question, if what is known gives it.
fn predict(f: &Ssa, d: &Definitions, known: &[Assertion], q: Question) -> Option<bool> {
    const ALL: u8 = 31;
    let mut left = ALL;
    let same = |x: Operand, y: Operand| x == y || d.constant(x).is_some() && d.constant(x) == d.constant(y);
    for k in known {
        let (p, answer) = (k.question, k.answer);
        let straight = same(p.a, q.a) && same(p.b, q.b);
        let turned = same(p.a, q.b) && same(p.b, q.a);
        if straight && p.cond == q.cond && p.width == q.width {
            return Some(answer);
        }
        if (straight || turned)
            && p.width == q.width
            && let Some(w) = ways(if straight { p.cond } else { p.cond.swap() })
        {
            left &= if answer { w } else { ALL & !w };
        }
        if let Some(answer) = packet(f, d, k, q) {
            return Some(answer);
        }
    }
    if let Some(w) = ways(q.cond) {
        if left & !w == 0 {
            return Some(true);
        }
        if left & w == 0 {
            return Some(false);
        }
    }
    // A number and a constant.
    let y = Num::constant(64, d.constant(q.b)? as u64);
    let is_pointer = f.fact(q.a).region().is_some() || f.fact(q.a).kind == bpf_facts::Kind::Unknown;
    let mut x = if is_pointer { Num::top(64) } else { num(f, d, q.a) };
    for k in known.iter().filter(|k| k.question.a == q.a) {
        let Some(c) = d.constant(k.question.b) else { continue };
        let c = Num::constant(64, c as u64);
        match refine(k.question.cond, k.question.width, k.answer, &x, &c) {
            Some((better, _)) => x = better,
            None => return None,
        }
    }
    if is_pointer && d.constant(q.b) != Some(0) {
        return None;
    }
    bpf_semantics::compare(&mut NumDomain, q.cond, q.width, &x, &y)
}

/// The answer to a question about one of few numbers.
fn of_few(
    f: &Ssa,
    graph: &Graph,
    d: &Definitions,
    b: Block,
    edge: Option<(Block, usize)>,
    q: Question,
) -> Option<bool> {
    let (value, c) = (q.a.value()?, d.constant(q.b)?);
    if f.fact(q.a).kind != bpf_facts::Kind::Scalar {
        return None;
    }
    Values::of(f, graph, d, value)?.answer(f, d, b, edge, (q.cond, q.width, c))
}

/// `p + c > end` where `p + d > end` is known to be false and `d` is no smaller.
fn packet(f: &Ssa, d: &Definitions, k: &Assertion, q: Question) -> Option<bool> {
    let beyond = |q: Question, answer: bool| match (q.cond, answer) {
        (Cond::Gt, _) => Some((q.a, q.b, answer)),
        (Cond::Le, _) => Some((q.a, q.b, !answer)),
        (Cond::Lt, _) => Some((q.b, q.a, answer)),
        (Cond::Ge, _) => Some((q.b, q.a, !answer)),
        _ => None,
    };
    let (p, end, is_beyond) = beyond(k.question, k.answer)?;
    let (r, other_end, holds) = beyond(q, true)?;
    if end != other_end || f.fact(end).region() != Some(&Region::PacketEnd) || k.question.width != q.width {
        return None;
    }
    let ((base, c), (other, e)) = (d.sum(p), d.sum(r));
    if base != other || f.fact(base).region() != Some(&Region::Packet) || c < 0 || e < 0 {
        return None;
    }
    // Not beyond with more: not beyond with less. Beyond with less: beyond with more.
    match is_beyond {
        false if e <= c => Some(!holds),
        true if e >= c => Some(holds),
        _ => None,
    }
}
