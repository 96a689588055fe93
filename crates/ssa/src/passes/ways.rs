//! What is done to a join of constants is done on the ways into it, where the constants are immediates or change nothing.
//!
//! ```text
//! before: b1: if v1 > 9 goto b3(1) else b2        after: b1: if v1 > 9 goto b4 else b2
//!         b2: goto b3(0)                                 b2: goto b3(v5)
//!         b3(v6): v7 = add v5, v6                        b4: v8 = add v5, 1
//!                                                            goto b3(v8)
//!                                                        b3(v7):
//!
//! before: b1: if v1 != 0 goto b3(1) else b2       after: b1: store u32 [fp - 4], 1
//!         b2: goto b3(0)                                     if v1 != 0 goto b3 else b2
//!         b3(v2): store u32 [fp - 4], v2                 b2: store u32 [fp - 4], 0
//!                                                            goto b3
//!                                                        b3:
//! ```
//! A store on a way that shares its beginning with another is for the own frame alone, where the other way stores, too.

use bpf_facts::{Env, Value as Fact};
use bpf_isa::{AluOp, Width};

use super::fold::Definitions;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, BlockData, Edge, Inst, Op, Operand, Ssa, Term, Value};

/// Ways into a join, at most: each gets an operation of its own.
const WAYS: usize = 3;

/// The pass.
pub struct Ways;

impl Pass for Ways {
    fn name(&self) -> &'static str {
        "ssa-ways"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let mut changed = false;
        while let Some(found) = Found::first(f) {
            found.take(f);
            super::dead::remove(f);
            changed = true;
        }
        changed
    }
}

/// An operation on a join of constants.
struct Found {
    join: Block,
    /// Its place in the join.
    at: usize,
    /// The edges into the join, with the number that each brings.
    ways: Vec<(Block, usize, i64)>,
    /// The parameter that is the number.
    number: Value,
}

impl Found {
    fn first(f: &Ssa) -> Option<Found> {
        let (graph, d, counts) = (Graph::of(f), Definitions::of(f), f.use_counts());
        graph.order.iter().find_map(|join| Found::at(f, *join, &graph, &d, &counts))
    }

    fn at(f: &Ssa, join: Block, graph: &Graph, d: &Definitions, counts: &[usize]) -> Option<Found> {
        let edges = &graph.preds[join.index()];
        if !(2..=WAYS).contains(&edges.len()) || edges.iter().any(|(from, _)| graph.dominates(join, *from)) {
            return None;
        }
        let block = f.block(join);
        block.params.iter().enumerate().find_map(|(param, &number)| {
            let at = block.insts.iter().position(|i| i.args.contains(&Operand::Value(number)))?;
            let brought = |(from, side): (Block, usize)| {
                let edge = f.block(from).term.edges().nth(side)?;
                Some((from, side, d.constant(edge.args[param])?))
            };
            let ways: Vec<_> = edges.iter().map(|way| brought(*way)).collect::<Option<_>>()?;
            let found = Found { join, at, ways, number };
            (counts[number.index()] == 1 && found.pays(f, graph)).then_some(found)
        })
    }

    fn pays(&self, f: &Ssa, graph: &Graph) -> bool {
        let block = f.block(self.join);
        let inst = &block.insts[self.at];
        let is_short = |c: i64| i32::try_from(c).is_ok();
        if inst.link.is_some() || !self.ways.iter().all(|way| is_short(way.2)) {
            return false;
        }
        match inst.op {
            Op::Alu(op, width) => {
                let own = |o: Operand| block.insts.iter().any(|i| i.result.is_some() && i.result == o.value());
                let some_stay = self.ways.iter().any(|way| is_identity(op, width, way.2));
                inst.args[1] == Operand::Value(self.number) && some_stay && !own(inst.args[0])
            }
            Op::Store { .. } => {
                let is_frame = matches!(inst.args[0], Operand::Frame(_));
                let early = block.insts[..self.at].iter().all(Inst::is_pure);
                is_frame && early && self.ways.iter().all(|way| self.has_store_on_all(f, graph, way))
            }
            _ => false,
        }
    }

    /// Whether a store at the end of the block where this way begins is followed by another on every other way from there.
    fn has_store_on_all(&self, f: &Ssa, graph: &Graph, &(from, side, _): &(Block, usize, i64)) -> bool {
        let term = &f.block(from).term;
        let Some(other) = term.edges().nth(1 - side).filter(|_| !matches!(term, Term::Goto(_))) else { return true };
        let next = f.block(other.to);
        let goes_on = matches!(&next.term, Term::Goto(e) if e.to == self.join);
        goes_on && graph.only_way_in(other.to).is_some() && next.insts.iter().all(Inst::is_pure)
    }

    fn take(&self, f: &mut Ssa) {
        let inst = f.block_mut(self.join).insts.remove(self.at);
        match (inst.op.clone(), inst.result) {
            (Op::Alu(op, width), Some(result)) => {
                let params = f.block(self.join).params.clone();
                f.block_mut(self.join).params.push(result);
                for &(from, side, c) in &self.ways {
                    let Some(edge) = f.block(from).term.edges().nth(side).cloned() else { continue };
                    let x = match inst.args[0].value().and_then(|v| params.iter().position(|p| *p == v)) {
                        Some(param) => edge.args[param],
                        None => inst.args[0],
                    };
                    if is_identity(op, width, c) {
                        push_arg(f, from, side, x);
                        continue;
                    }
                    let home = f.values[result.index()].home;
                    let v = f.new_value(Fact::unknown(), home);
                    let new = Inst::new(inst.op.clone(), vec![x, Operand::Const(c)], Some(v), inst.origin);
                    let from_here = place(f, from, side, new);
                    push_arg(f, from_here.0, from_here.1, Operand::Value(v));
                }
            }
            _ => {
                for &(from, _, c) in &self.ways {
                    let store = Inst { args: vec![inst.args[0], Operand::Const(c)], ..inst.clone() };
                    f.block_mut(from).insts.push(store);
                }
            }
        }
    }
}

fn push_arg(f: &mut Ssa, from: Block, side: usize, arg: Operand) {
    if let Some(edge) = f.block_mut(from).term.edges_mut().nth(side) {
        edge.args.push(arg);
    }
}

/// Puts an instruction on an edge; the block and side of the edge that it then stands before.
fn place(f: &mut Ssa, from: Block, side: usize, inst: Inst) -> (Block, usize) {
    if let Term::Goto(_) = f.block(from).term {
        f.block_mut(from).insts.push(inst);
        return (from, 0);
    }
    let new = Block(f.blocks.len() as u32);
    let edge =
        f.block_mut(from).term.edges_mut().nth(side).map(|e| std::mem::replace(e, Edge { to: new, args: vec![] }));
    let Some(edge) = edge else { return (from, side) };
    f.blocks.push(BlockData { params: vec![], insts: vec![inst], term: Term::Goto(edge) });
    let after = f.layout.iter().position(|b| *b == from).map_or(f.layout.len(), |i| i + 1);
    f.layout.insert(after, new);
    (new, 0)
}

/// Whether the operation with this number on its right changes nothing.
fn is_identity(op: AluOp, width: Width, c: i64) -> bool {
    let zero = matches!(op, AluOp::Add | AluOp::Sub | AluOp::Or | AluOp::Xor | AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
    width == Width::W64 && (zero && c == 0 || op == AluOp::Mul && c == 1)
}
