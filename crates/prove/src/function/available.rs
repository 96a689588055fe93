//! Available expressions: which registers hold the result of a few operations that would give the same again here.
//!
//! ```text
//! r2 = *(u16 *)(r3 + 64)
//! if r1 > 9 goto …            both ways: `r2 = *(u16 *)(r3 + 64)` would change nothing
//! ```
//!
//! An optimizer makes use of that across blocks, so a proof that goes block by block needs it at their borders. An
//! expression is a piece of code. So it means the same in every block, and the symbolic machine says what it gives: nothing
//! here knows about aliases, calls or widths. It is available at the end of a block if, carried out there, it gives the term
//! that its register holds; and at the start of a block if it is at the ends of all blocks that lead there (a greatest
//! fixpoint, so loops are covered). An expression that reads the packet begins with a load or store of those bytes that was
//! executed ([`Pool::candidates`]), and does not outlive a call that moves the packet: so the bytes are there.

use std::collections::BTreeSet;

use bpf_facts::{Env, Facts};
use bpf_isa::Reg;
use bpf_program::{BlockId, Function, predecessors, reverse_postorder};

use crate::function::expression::{Expression, ExpressionId, Pool, assume};
use crate::options::Options;
use crate::symbolic::context::Context;
use crate::symbolic::entry::{Entry, register_regions};
use crate::symbolic::state::SymbolicState;
use crate::term::TermId;

/// Visits of a block after which nothing is said about its end.
const VISITS: u32 = 12;

/// Which expressions are available where in a function.
pub struct AvailableExpressions {
    start: Vec<Vec<ExpressionId>>,
    end: Vec<Vec<ExpressionId>>,
}

impl AvailableExpressions {
    /// Finds them.
    pub fn of(f: &Function, env: &Env, facts: &Facts, pool: &mut Pool, options: &Options) -> AvailableExpressions {
        let n = f.blocks.len();
        let mut starts = vec![BTreeSet::new(); n];
        let mut ends: Vec<Option<BTreeSet<ExpressionId>>> = vec![None; n];
        let (order, _) = reverse_postorder(f);
        let preds = predecessors(f);
        let mut rank = vec![usize::MAX; n];
        order.iter().enumerate().for_each(|(i, b)| rank[b.index()] = i);
        let mut visits = vec![0u32; n];
        let mut todo: BTreeSet<usize> = (0..order.len()).collect();
        while let Some(at) = todo.pop_first() {
            let b = order[at];
            let i = b.index();
            // Where no execution gets, nothing is to be said, and nothing comes from there.
            let Some(before) = facts.entry(b) else { continue };
            let start = if b == f.entry() { BTreeSet::new() } else { meet(&ends, &preds[i]) };
            visits[i] += 1;
            let late = visits[i] > VISITS || options.is_over();
            let mut end = BTreeSet::new();
            if !late {
                if ends[i].is_some() && start == starts[i] {
                    continue;
                }
                let wanted = pool.candidates(&f.block(b).ops, &start);
                end = stand(f, env, before, b, pool, &start, wanted, options);
                // Only ever less: so it ends.
                if let Some(earlier) = &ends[i] {
                    end = end.intersection(earlier).copied().collect();
                }
            }
            starts[i] = start;
            if ends[i].as_ref() != Some(&end) {
                ends[i] = Some(end);
                todo.extend(f.block(b).term.successors().map(|t| rank[t.index()]));
            }
        }
        let end = ends.into_iter().map(|e| e.into_iter().flatten().collect()).collect();
        AvailableExpressions { start: starts.into_iter().map(|s| s.into_iter().collect()).collect(), end }
    }

    /// Those that stand at the start of a block.
    pub fn start(&self, b: BlockId) -> &[ExpressionId] {
        &self.start[b.index()]
    }

    /// Those that stand at its end.
    pub fn end(&self, b: BlockId) -> &[ExpressionId] {
        &self.end[b.index()]
    }
}

/// What stands at the ends of all these blocks, as far as they have been visited.
fn meet(ends: &[Option<BTreeSet<ExpressionId>>], blocks: &[BlockId]) -> BTreeSet<ExpressionId> {
    let mut ends = blocks.iter().filter_map(|p| ends[p.index()].as_ref());
    let Some(first) = ends.next() else { return BTreeSet::new() };
    ends.fold(first.clone(), |s, t| s.intersection(t).copied().collect())
}

/// Which of `wanted` stand at the end of a block, if `start` stand at its start.
#[allow(clippy::too_many_arguments)]
fn stand(
    f: &Function,
    env: &Env,
    before: &bpf_facts::State,
    b: BlockId,
    pool: &mut Pool,
    start: &BTreeSet<ExpressionId>,
    wanted: BTreeSet<ExpressionId>,
    options: &Options,
) -> BTreeSet<ExpressionId> {
    let ops = &f.block(b).ops;
    let start: Vec<Expression> = start.iter().map(|id| pool.get(*id).clone()).collect();
    let start: Vec<&Expression> = start.iter().collect();
    let mut cx = Context::of(options);
    let named = wanted.iter().flat_map(|id| pool.get(*id).ops());
    register_regions(&mut cx, env, ops.iter().chain(named));
    let mut state = Entry::new(env.maps, f.kind).state(&mut cx, before);
    assume(&mut cx, env, f.kind, before, &mut state, &start);
    let packet = state.packet_version;
    let Ok(state) = crate::symbolic::straight::run(&mut cx, env, f.kind, state, ops, before) else {
        return BTreeSet::new();
    };
    let mut wanted = wanted;
    wanted.extend(neighbours(&mut cx, &state).into_iter().map(|c| pool.id(c)));
    // A helper may move the packet and change nothing in it.
    let has_moved = state.packet_version != packet;
    let stands = |id: &ExpressionId| {
        let c = pool.get(*id);
        let held = cx.better(state.regs[c.dst.index()]);
        c.value(&mut cx, env, f.kind, &state) == Some(held)
            && !(has_moved && c.may_read_packet(&mut cx, env, f.kind, &state))
    };
    wanted.into_iter().filter(stands).collect()
}

/// Registers that are some way off from others.
fn neighbours(cx: &mut Context, state: &SymbolicState) -> Vec<Expression> {
    let places: Vec<(TermId, i64)> = state.regs[..10].iter().map(|t| cx.terms.split_address(*t)).collect();
    let mut found = Vec::new();
    for (i, (base, k)) in places.iter().enumerate().filter(|(_, (base, _))| cx.terms.as_const(*base).is_none()) {
        // Those with higher numbers outlive calls.
        let others = places.iter().enumerate().skip(i + 1).filter(|(_, (b, _))| b == base);
        let regs = |n: usize| Reg::all().nth(n);
        found.extend(others.filter_map(|(j, (_, l))| Expression::offset(regs(i)?, regs(j)?, k.wrapping_sub(*l))));
    }
    found
}
