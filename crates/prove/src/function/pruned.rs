//! Functions without the jumps that never happen.

use bpf_facts::{Env, Facts};
use bpf_program::{BlockId, Function, Terminator};

use crate::compare::stretch::constant_condition;
use crate::options::{Limits, Options, Stats};

/// Rounds in which one impossible jump may reveal another.
const PRUNINGS: usize = 4;

/// SAT conflicts per query of the first try.
pub(super) const CHEAP: u32 = 1_000;

/// `f` with `goto` for each branch whose condition is proven constant; `None` if there is none.
pub(super) fn without_impossible_jumps(f: &Function, env: &Env, options: &Options) -> (Option<Function>, Stats) {
    let mut stats = Stats::default();
    let mut pruned: Option<Function> = None;
    let options = Options { limits: Limits { conflicts: CHEAP, ..options.limits }, ..options.clone() };
    for _ in 0..PRUNINGS {
        let now = pruned.as_ref().unwrap_or(f);
        let facts = Facts::of(now, env);
        let mut constant: Vec<(BlockId, BlockId)> = Vec::new();
        for &b in &now.layout {
            let (Some(before), Terminator::Branch { taken, fall, .. }) = (facts.entry(b), &now.block(b).term) else {
                continue;
            };
            let term = &now.block(b).term;
            let sides = [true, false].map(|t| facts.edge(now, b, t).is_some());
            if sides != [true, true] {
                constant.push((b, if sides[0] { *taken } else { *fall }));
                continue;
            }
            let (condition, effort) = constant_condition(now.kind, env, before, &now.block(b).ops, term, &options);
            stats.add(effort);
            constant.extend(condition.map(|c| (b, if c { *taken } else { *fall })));
        }
        if constant.is_empty() {
            break;
        }
        let mut next = now.clone();
        for (b, to) in constant {
            next.block_mut(b).term = Terminator::Goto(to);
        }
        pruned = Some(next);
    }
    (pruned, stats)
}
