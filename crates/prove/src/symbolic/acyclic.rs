//! Symbolic execution of a whole acyclic graph.
//!
//! Blocks run once, in topological order. Where paths join, a value is the decision tree of the
//! branches between the join's immediate dominator and the join (gated single assignment): paths that
//! do not reach the join leave no trace in it, and two versions of a program whose branches decide the
//! same things get the same tree however their blocks are cut.

use bpf_facts::Env;
use bpf_isa::RegSet;
use bpf_program::{BlockId, Dominators, Function, Terminator, reverse_postorder};
use bpf_semantics::{branch, exec};
use rustc_hash::FxHashMap;

use crate::symbolic::access::Access;
use crate::symbolic::context::Context;
use crate::symbolic::state::{SymbolicState, dead_value, merge};
use crate::symbolic::symex::{Side, Stop, Sym, has_meaning};
use crate::term::TermId;

/// What one side did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Joined state at `exit`.
    pub exit: SymbolicState,
    /// Accesses outside the stack.
    pub log: Vec<Access>,
    /// Lowest frame offset accessed.
    pub stack_low: i64,
    /// Some frame access was misaligned.
    pub misaligned: bool,
    /// Some frame access was out of bounds.
    pub out_of_frame: bool,
}

/// Where a decision tree ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Block(BlockId),
    Exit,
}

struct Run<'f> {
    f: &'f Function,
    doms: Dominators,
    rank: Vec<usize>,
    out: Vec<Option<SymbolicState>>,
    cond: Vec<Option<TermId>>,
    guard: Vec<Option<TermId>>,
}

/// Executes `f`, which must not have loops, from `entry`. `live` gives the registers live at the
/// start of each block: the others are not joined.
///
/// # Errors
/// [`Stop`] where something has no model.
pub fn execute(
    cx: &mut Context,
    env: &Env,
    f: &Function,
    side: Side,
    entry: SymbolicState,
    live: &dyn Fn(BlockId) -> RegSet,
) -> Result<Outcome, Stop> {
    let (order, cyclic) = reverse_postorder(f);
    if cyclic {
        return Err(Stop::Unmodelled("a loop".into()));
    }
    let n = f.blocks.len();
    let mut rank = vec![usize::MAX; n];
    for (i, b) in order.iter().enumerate() {
        rank[b.index()] = i;
    }
    let mut edges_in: Vec<Vec<BlockId>> = vec![Vec::new(); n];
    for &b in &order {
        for s in f.block(b).term.successors() {
            edges_in[s.index()].push(b);
        }
    }
    let mut run =
        Run { f, doms: Dominators::of(f), rank, out: vec![None; n], cond: vec![None; n], guard: vec![None; n] };
    let mut sym = Sym::new(cx, env, f.kind, side, entry.clone());
    let tru = sym.cx.terms.tru();
    for &b in &order {
        let preds = &edges_in[b.index()];
        let (guard, state) = match preds[..] {
            [] => (tru, entry.clone()),
            [p] => (run.edge_guard(sym.cx, p, b), run.out_of(p)?.clone()),
            _ => {
                let d = run.doms.idom(b).ok_or_else(|| Stop::Unmodelled("a block without dominator".into()))?;
                run.join(sym.cx, d, Target::Block(b), preds, live(b))?
            }
        };
        run.guard[b.index()] = Some(guard);
        sym.guard = guard;
        sym.state = state;
        for op in &f.block(b).ops {
            if !has_meaning(op) {
                return Err(Stop::Unmodelled(format!("`{}` inside a block", op.insn)));
            }
            exec(&mut sym, op)?;
        }
        match f.block(b).term {
            Terminator::Branch { cond, width, dst, src, .. } => {
                run.cond[b.index()] = Some(branch(&mut sym, cond, width, dst, src)?);
            }
            Terminator::MayGoto { .. } => return Err(Stop::Unmodelled("may_goto".into())),
            _ => {}
        }
        run.out[b.index()] = Some(sym.state.clone());
        if sym.cx.exhausted() {
            return Err(Stop::TooLarge);
        }
    }
    let exits: Vec<BlockId> =
        order.iter().copied().filter(|b| matches!(f.block(*b).term, Terminator::Exit { .. })).collect();
    let exit = match exits[..] {
        [] => return Err(Stop::Unmodelled("a function that never exits".into())),
        [e] => run.out_of(e)?.clone(),
        _ => {
            let r0 = RegSet::of(bpf_isa::Reg::R0);
            run.join(sym.cx, order[0], Target::Exit, &exits, r0)?.1
        }
    };
    Ok(Outcome {
        exit,
        log: sym.log,
        stack_low: sym.stack_low,
        misaligned: sym.misaligned,
        out_of_frame: sym.out_of_frame,
    })
}

impl Run<'_> {
    fn out_of(&self, b: BlockId) -> Result<&SymbolicState, Stop> {
        self.out[b.index()].as_ref().ok_or_else(|| Stop::Unmodelled("a block executed out of order".into()))
    }

    fn edge_guard(&self, cx: &mut Context, p: BlockId, b: BlockId) -> TermId {
        let g = self.guard[p.index()].unwrap_or_else(|| cx.terms.tru());
        match (&self.f.block(p).term, self.cond[p.index()]) {
            (Terminator::Branch { taken, fall, .. }, Some(c)) if taken != fall => {
                let c = if *taken == b { c } else { cx.terms.not(c) };
                cx.terms.all(&[g, c])
            }
            _ => g,
        }
    }

    /// Guard and state where the paths from `d` meet in `to`.
    fn join(
        &self,
        cx: &mut Context,
        d: BlockId,
        to: Target,
        preds: &[BlockId],
        live: RegSet,
    ) -> Result<(TermId, SymbolicState), Stop> {
        // The blocks between, last first: those from which `to` is reached without passing `d` again.
        let mut between = vec![];
        let mut seen = vec![false; self.f.blocks.len()];
        let mut todo: Vec<BlockId> = preds.to_vec();
        let mut back: Vec<Vec<BlockId>> = vec![Vec::new(); self.f.blocks.len()];
        for &b in &self.f.layout {
            for s in self.f.block(b).term.successors() {
                back[s.index()].push(b);
            }
        }
        while let Some(b) = todo.pop() {
            if std::mem::replace(&mut seen[b.index()], true) || self.rank[b.index()] == usize::MAX {
                continue;
            }
            between.push(b);
            if b != d {
                todo.extend(back[b.index()].iter().copied());
            }
        }
        between.sort_by_key(|b| std::cmp::Reverse(self.rank[b.index()]));
        let mut tree: FxHashMap<BlockId, (SymbolicState, TermId)> = FxHashMap::default();
        let tru = cx.terms.tru();
        let fls = cx.terms.fls();
        for &b in &between {
            let side =
                |s: BlockId, tree: &FxHashMap<BlockId, (SymbolicState, TermId)>| -> Option<(SymbolicState, TermId)> {
                    if to == Target::Block(s) {
                        self.out[b.index()].clone().map(|s| (s, tru))
                    } else if Some(self.rank[s.index()]) > Some(self.rank[b.index()]) {
                        tree.get(&s).cloned()
                    } else {
                        None
                    }
                };
            let v = match &self.f.block(b).term {
                Terminator::Exit { .. } if to == Target::Exit => self.out[b.index()].clone().map(|s| (s, tru)),
                Terminator::Goto(t) => side(*t, &tree),
                Terminator::Branch { taken, fall, .. } => {
                    let c = self.cond[b.index()].ok_or_else(|| Stop::Unmodelled("a lost condition".into()))?;
                    match (side(*taken, &tree), side(*fall, &tree)) {
                        (Some((x, p)), Some((y, q))) => Some((merge(cx, c, &x, &y, live), cx.terms.ite(c, p, q))),
                        (Some((x, p)), None) => Some((x, cx.terms.ite(c, p, fls))),
                        (None, Some((y, q))) => Some((y, cx.terms.ite(c, fls, q))),
                        (None, None) => None,
                    }
                }
                _ => None,
            };
            if let Some(v) = v {
                tree.insert(b, v);
            }
        }
        let (mut state, reach) = tree.remove(&d).ok_or_else(|| Stop::Unmodelled("an unreachable join".into()))?;
        let dead = dead_value(cx);
        for r in bpf_isa::Reg::all() {
            if !live.contains(r) && r != bpf_isa::Reg::R10 {
                state.regs[r.index()] = dead;
            }
        }
        let g = self.guard[d.index()].unwrap_or(tru);
        Ok((cx.terms.all(&[g, reach]), state))
    }
}
