//! The result of a call that was found to equal a constant is that constant, where one is brought to a join.
//!
//! ```text
//! before: v3 = call map_lookup_elem        after: v3 = call map_lookup_elem
//!         if v3 == 0 goto b9(0)                   if v3 == 0 goto b9(v3)
//!         ...                                     ...
//!         b9(v5): exit v5                         b9(v5): exit v5
//! ```
//! It needs no instruction if the register of the join is the one that it is in: r0, where a function returns.

use bpf_facts::{Env, Kind};
use bpf_isa::{Cond, Width};

use super::fold::{Definitions, num};
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Op, Operand, Ssa, Term};

/// The pass.
pub struct Equals;

impl Pass for Equals {
    fn name(&self) -> &'static str {
        "ssa-equals"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let d = Definitions::of(f);
        let graph = Graph::of(f);
        let mut changed = false;
        for b in f.layout.clone() {
            let Term::Branch { cond, width, a, b: right, .. } = f.block(b).term else { continue };
            let (Operand::Value(v), Some(c)) = (a, d.constant(right)) else { continue };
            if !matches!(d.get(v), Some((Op::Call(_), _))) {
                continue;
            }
            let side = match cond {
                Cond::Eq => 0,
                Cond::Ne => 1,
                _ => continue,
            };
            let is_short = f.fact(a).kind == Kind::Scalar && num(f, &d, a).umax <= u64::from(u32::MAX);
            if width == Width::W32 && !is_short {
                continue;
            }
            let c = if width == Width::W32 { i64::from(c as u32) } else { c };
            // The edge itself, and those of a block that it alone leads to.
            let Some(to) = f.block(b).term.edges().nth(side).map(|e| e.to) else { continue };
            let behind = Some(to).filter(|to| graph.preds[to.index()].len() == 1);
            for (block, side) in [(Some(b), Some(side)), (behind, None)] {
                let Some(block) = block else { continue };
                let edges = f.block_mut(block).term.edges_mut().enumerate();
                let args = edges.filter(|(i, _)| side.is_none_or(|side| side == *i)).flat_map(|(_, e)| &mut e.args);
                for arg in args.filter(|arg| d.constant(**arg) == Some(c)) {
                    *arg = a;
                    changed = true;
                }
            }
        }
        changed | super::dead::remove(f)
    }
}
