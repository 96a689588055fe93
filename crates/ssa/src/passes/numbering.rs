//! Global value numbering: what is computed already is not computed again.
//!
//! ```text
//! before: b1: v3 = add v1, 14        after: b1: v3 = add v1, 14
//!             if v3 > v2 goto ...               if v3 > v2 goto ...
//!         b2: v7 = add v1, 14               b2: if v3 ...
//!             if v7 ...
//! ```
//! A computation without effect, or a call that gives the same all through a run, is replaced by the same one in a block that dominates it; constants, moves and sums are
//! folded on the way (`fold`). Loads of the own frame and of context fields are not looked at here.

use bpf_facts::Env;
use rustc_hash::FxHashMap;

use super::fold::{Definitions, Folded, fold};
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Term, Value};

/// The pass.
pub struct Numbering;

pub(super) type Key = (Op, Vec<Operand>, Option<String>);

impl Pass for Numbering {
    fn name(&self) -> &'static str {
        "ssa-numbering"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let graph = Graph::of(f);
        let kind = f.kind;
        let mut definitions = Definitions::of(f);
        let mut seen: FxHashMap<Key, Vec<(Block, Value)>> = FxHashMap::default();
        let mut with: FxHashMap<Value, Operand> = FxHashMap::default();
        let mut changed = false;
        for &b in &graph.order {
            let mut insts = std::mem::take(&mut f.block_mut(b).insts);
            insts.retain_mut(|i| {
                i.args.iter_mut().for_each(|o| resolve(o, &with));
                loop {
                    match fold(f, &definitions, i) {
                        Folded::Same => break,
                        Folded::Is(o) => {
                            changed = true;
                            with.extend(i.result.map(|v| (v, o)));
                            return false;
                        }
                        Folded::Does(op, args) => {
                            changed = true;
                            (i.op, i.args) = (op, args);
                        }
                    }
                }
                let Some(v) = i.result.filter(|_| i.is_pure() || i.is_constant_call(kind)) else { return true };
                definitions.set(v, i);
                let known = seen.entry(key(i)).or_default();
                match known.iter().find(|(at, _)| graph.dominates(*at, b)) {
                    Some((_, same)) => {
                        changed = true;
                        with.insert(v, Operand::Value(*same));
                        false
                    }
                    None => {
                        known.push((b, v));
                        true
                    }
                }
            });
            let block = f.block_mut(b);
            block.insts = insts;
            block.term.operands_mut().into_iter().for_each(|o| resolve(o, &with));
        }
        // Arguments of edges that lead back, and what only unreachable blocks read.
        f.replace(&with);
        changed | questions(f, &definitions)
    }
}

fn resolve(o: &mut Operand, with: &FxHashMap<Value, Operand>) {
    while let Some(next) = o.value().and_then(|v| with.get(&v)) {
        *o = *next;
    }
}

/// What an instruction computes: equal keys, equal results.
pub(super) fn key(i: &Inst) -> Key {
    // Of an address, what the loader puts there says what it is.
    match (&i.op, &i.link) {
        (Op::Address(insn), Some(link)) => {
            let insn = insn.map_regs(|_| bpf_isa::Reg::R0);
            (Op::Address(insn), i.args.clone(), Some(format!("{:?}", link.symbol)))
        }
        _ => (i.op.clone(), i.args.clone(), None),
    }
}

/// Operands of questions that are constants; questions that have one answer.
fn questions(f: &mut Ssa, d: &Definitions) -> bool {
    let mut changed = false;
    for b in f.layout.clone() {
        let Term::Branch { cond, width, a, b: right, taken, fall, .. } = &f.block(b).term else { continue };
        let (x, y) = (super::fold::num(f, d, *a), super::fold::num(f, d, *right));
        let numbers = |o: Operand| d.constant(o).is_some() || f.fact(o).kind == bpf_facts::Kind::Scalar;
        if numbers(*a)
            && numbers(*right)
            && let Some(answer) = bpf_semantics::compare(&mut bpf_facts::NumDomain, *cond, *width, &x, &y)
            && d.constant(*a).is_some()
        {
            let edge = if answer { taken.clone() } else { fall.clone() };
            f.block_mut(b).term = Term::Goto(edge);
            changed = true;
        } else if taken == fall {
            let edge = taken.clone();
            f.block_mut(b).term = Term::Goto(edge);
            changed = true;
        }
    }
    changed
}
