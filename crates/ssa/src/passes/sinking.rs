//! What is done at the end of every way into a join is done once, behind the join. What the ways do it with may differ: that
//! goes there as a parameter.
//!
//! ```text
//! before: b3: v7 = load u16 [v1 + 16]           after: b3: v7 = load u16 [v1 + 16]
//!             v8 = be16 v7                                 goto b5(v7)
//!             store u16 [r10 - 58] = v8                b4: v9 = load u16 [v1 + 18]
//!             goto b5                                      goto b5(v9)
//!         b4: v9 = load u16 [v1 + 18]                  b5(v11):
//!             v10 = be16 v9                                v12 = be16 v11
//!             store u16 [r10 - 58] = v10                   store u16 [r10 - 58] = v12
//!             goto b5
//!         b5: ...
//! ```
//! Computations without effect go whose results nobody else reads; addresses of maps, which take two slots; calls at the very end;
//! stores, if nothing behind them on their way may see or undo them.

use bpf_facts::{Env, Region};

use super::fold::Definitions;
use super::numbering::key;
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Term};

/// The pass.
pub struct Sinking;

/// Instructions that are moved into one join, at most.
const MOVES: usize = 64;

impl Pass for Sinking {
    fn name(&self) -> &'static str {
        "ssa-sinking"
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let mut changed = false;
        for &join in &graph.order {
            let ways: Vec<Block> = graph.preds[join.index()].iter().map(|(b, _)| *b).collect();
            let all_end_there = ways.iter().all(|b| matches!(f.block(*b).term, Term::Goto(_)));
            if ways.len() < 2 || !all_end_there || ways.iter().any(|b| graph.dominates(join, *b)) {
                continue;
            }
            for _ in 0..MOVES {
                let Some(same) = shared(f, &ways) else { break };
                sink(f, join, &ways, &same);
                changed = true;
            }
        }
        changed
    }
}

/// For each way the index of an instruction that all of them have, and that may be the last there.
fn shared(f: &Ssa, ways: &[Block]) -> Option<Vec<usize>> {
    let d = Definitions::of(f);
    let uses = f.use_counts();
    let last: Vec<Vec<usize>> = ways.iter().map(|b| movable(f, &d, &uses, *b)).collect();
    last[0].iter().find_map(|&first| {
        let model = &f.block(ways[0]).insts[first];
        let mut same = vec![first];
        for (b, candidates) in ways.iter().zip(&last).skip(1) {
            let insts = &f.block(*b).insts;
            let like = candidates.iter().filter(|i| alike(f, ways[0], model, *b, &insts[**i]));
            // The one that needs the fewest parameters.
            let differing = |i: &usize| insts[*i].args.iter().zip(&model.args).filter(|(x, y)| x != y).count();
            same.push(*like.min_by_key(|i| differing(i))?);
        }
        pays(f, &d, ways, &same).then_some(same)
    })
}

/// The instructions of a block that may be its last, the last first.
fn movable(f: &Ssa, d: &Definitions, uses: &[usize], b: Block) -> Vec<usize> {
    let block = f.block(b);
    let Term::Goto(edge) = &block.term else { return vec![] };
    let leaves_only_there = |i: &Inst| {
        i.result.is_none_or(|v| edge.args.iter().filter(|a| **a == Operand::Value(v)).count() == uses[v.index()])
    };
    let may_move = |i: &Inst| match i.op {
        Op::Keep | Op::Copy | Op::Const(_) | Op::Frame(_) => false,
        // Numbers are rather stored with those beside them.
        Op::Store { .. } => i.link.is_none() && d.constant(i.args[1]).is_none(),
        Op::Call(_) => true,
        _ => i.is_pure(),
    };
    (0..block.insts.len())
        .rev()
        .filter(|&at| {
            let i = &block.insts[at];
            may_move(i) && leaves_only_there(i) && block.insts[at + 1..].iter().all(|other| passes(f, d, i, other))
        })
        .collect()
}

/// Whether an instruction may be moved behind another one, whose operands are not its result.
fn passes(f: &Ssa, d: &Definitions, i: &Inst, other: &Inst) -> bool {
    if i.is_pure() || other.is_pure() || other.op == Op::Keep {
        return true;
    }
    let (Op::Store { .. }, Op::Load { .. } | Op::Store { .. }) = (&i.op, &other.op) else { return false };
    match (in_frame(d, i), in_frame(d, other)) {
        (Some((from, to)), Some((begin, end))) => to <= begin || end <= from,
        // Nobody else sees the frame.
        (Some(_), None) | (None, Some(_)) => {
            let elsewhere = if in_frame(d, i).is_some() { other } else { i };
            let region = elsewhere.region.as_ref().or(f.fact(elsewhere.args[0]).region()).cloned();
            region.is_some_and(|r| !matches!(r, Region::Stack) && !r.may_overlap(&Region::Stack))
        }
        (None, None) => false,
    }
}

/// The bytes of the frame that a load or a store touches: first, and behind the last.
fn in_frame(d: &Definitions, i: &Inst) -> Option<(i64, i64)> {
    let (Op::Load { size, off, .. } | Op::Store { size, off }) = &i.op else { return None };
    let from = d.frame(i.args[0])? + i64::from(*off);
    Some((from, from + i64::from(size.bytes())))
}

/// Whether two instructions at the ends of two ways do the same, with operands that may differ; and what is done with their
/// results is the same.
fn alike(f: &Ssa, a: Block, x: &Inst, b: Block, y: &Inst) -> bool {
    let is_address = matches!(x.op, Op::Address(_));
    let same = if is_address { key(x) == key(y) } else { x.op == y.op && x.link.is_none() && y.link.is_none() };
    let frames = |i: &Inst| -> Vec<Option<Operand>> {
        i.args.iter().map(|o| Some(*o).filter(|o| matches!(o, Operand::Frame(_)))).collect()
    };
    same && x.args.len() == y.args.len()
        && x.region == y.region
        && frames(x) == frames(y)
        && x.result.is_some() == y.result.is_some()
        && places(f, a, x) == places(f, b, y)
}

/// The parameters of the join that the result of an instruction becomes.
fn places(f: &Ssa, b: Block, i: &Inst) -> Vec<usize> {
    let (Term::Goto(edge), Some(v)) = (&f.block(b).term, i.result) else { return vec![] };
    (0..edge.args.len()).filter(|at| edge.args[*at] == Operand::Value(v)).collect()
}

/// Whether it takes fewer slots: constants that differ have to be put into a register.
fn pays(f: &Ssa, d: &Definitions, ways: &[Block], same: &[usize]) -> bool {
    let insts: Vec<&Inst> = ways.iter().zip(same).map(|(b, i)| &f.block(*b).insts[*i]).collect();
    let slots = if matches!(insts[0].op, Op::Address(_)) { 2 } else { 1 };
    let constants: usize = (0..insts[0].args.len())
        .filter(|at| insts.iter().any(|i| i.args[*at] != insts[0].args[*at]))
        .map(|at| insts.iter().filter(|i| d.constant(i.args[at]).is_some()).count())
        .sum();
    (ways.len() - 1) * slots > constants
}

/// Moves the instructions to the beginning of the join.
fn sink(f: &mut Ssa, join: Block, ways: &[Block], same: &[usize]) {
    let places = places(f, ways[0], &f.block(ways[0]).insts[same[0]]);
    let moved: Vec<Inst> = ways.iter().zip(same).map(|(b, i)| f.block_mut(*b).insts.remove(*i)).collect();
    let mut one = moved[0].clone();
    for at in 0..one.args.len() {
        let args: Vec<Operand> = moved.iter().map(|i| i.args[at]).collect();
        if args.iter().all(|o| *o == args[0]) {
            continue;
        }
        let fact = args[1..].iter().fold(f.fact(args[0]), |fact, o| fact.join(&f.fact(*o)));
        let param = f.new_value(fact, None);
        f.block_mut(join).params.push(param);
        for (b, arg) in ways.iter().zip(args) {
            if let Term::Goto(edge) = &mut f.block_mut(*b).term {
                edge.args.push(arg);
            }
        }
        one.args[at] = Operand::Value(param);
    }
    if let Some(v) = one.result {
        let of_join = places.first().map(|at| f.block(join).params[*at]);
        let result = f.new_value_like(of_join.unwrap_or(v));
        one.result = Some(result);
        let with = places.iter().map(|at| (f.block(join).params[*at], Operand::Value(result))).collect();
        f.replace(&with);
        crate::lift::remove_params(f, |v| with.contains_key(&v));
    }
    f.block_mut(join).insts.insert(0, one);
}
