//! Whole functions of any size, with loops: a bisimulation, block against block.
//!
//! The relation at a pair of blocks is "every register and stack byte the new side may still read
//! has the same value on both sides, all other memory and the history are equal". From each pair both
//! sides run to their blocks' ends, starting from the facts the *old* side has there, and the relation
//! must hold again at the successors; then it holds wherever the two executions get to (induction on
//! the number of steps), loops included. Either side may also step alone, for blocks the other does
//! not have any more; never more than a few times in a row, so that no side can loop while the other
//! waits.
//!
//! Nothing is guessed about the correspondence of blocks: pairs are discovered from the entries by
//! following equal conditions.

use std::collections::{BTreeSet, VecDeque};

use bpf_facts::{Env, Facts, Liveness};
use bpf_program::{BlockId, Function, Op, Terminator, predecessors};

use crate::context::Stats;
use crate::equiv::{End, Options, Relation, compare};

/// Steps one side may take while the other stands still.
const MAX_ALONE: u32 = 12;

/// A straight run of blocks, each the only way into the next.
struct Chain {
    ops: Vec<Op>,
    last: BlockId,
}

/// How many jumps to shared blocks either side follows within one step, in the order tried: tail
/// merging leaves the two sides with blocks cut at different places.
const EXTENSIONS: [(u32, u32); 6] = [(0, 0), (0, 1), (1, 0), (0, 2), (2, 0), (1, 1)];

/// The run from `start` along jumps to blocks that nothing else leads to, and `extra` others.
fn chain(f: &Function, preds: &[Vec<BlockId>], start: BlockId, extra: u32) -> Chain {
    let mut extra = extra;
    let mut ops = f.block(start).ops.clone();
    let mut last = start;
    let mut seen = BTreeSet::from([start]);
    while let Terminator::Goto(t) = f.block(last).term {
        if t == f.entry() || !seen.insert(t) {
            break;
        }
        if preds[t.index()].len() != 1 {
            if extra == 0 {
                break;
            }
            extra -= 1;
        }
        ops.extend(f.block(t).ops.iter().cloned());
        last = t;
    }
    Chain { ops, last }
}

/// Tries to prove that `new` does what `old` does.
///
/// # Errors
/// Why the relation could not be established; that says nothing about the functions themselves.
pub fn prove(old: &Function, new: &Function, env: &Env, options: &Options) -> Result<Stats, (String, Stats)> {
    let mut stats = Stats::default();
    let (fa, fb) = (Facts::of(old, env), Facts::of(new, env));
    let lb = Liveness::of(new, env, &fb);
    let (pa, pb) = (predecessors(old), predecessors(new));
    let mut seen: BTreeSet<(BlockId, BlockId, u32)> = BTreeSet::new();
    let mut todo: VecDeque<(BlockId, BlockId, u32)> = VecDeque::from([(old.entry(), new.entry(), 0)]);
    while let Some((a, b, alone)) = todo.pop_front() {
        if !seen.insert((a, b, alone)) {
            continue;
        }
        if options.limits.deadline.is_some_and(|d| std::time::Instant::now() >= d) {
            return Err(("the time limit was reached".into(), stats));
        }
        let Some(before) = fa.entry(a) else { continue };
        // The old side's edges that its facts exclude lead nowhere.
        let open = |last: BlockId, taken: bool| fa.edge(old, last, taken).is_some();
        let mut next: Option<Vec<(BlockId, BlockId, u32)>> = None;
        let mut reason: Option<String> = None;
        let mut tried: BTreeSet<(BlockId, BlockId)> = BTreeSet::new();
        for (x, y) in EXTENSIONS {
            let (ca, cb) = (chain(old, &pa, a, x), chain(new, &pb, b, y));
            if !tried.insert((ca.last, cb.last)) {
                continue;
            }
            let (ta, tb) = (&old.block(ca.last).term, &new.block(cb.last).term);
            let Some(end) = both(ta, tb, old) else { continue };
            let live = lb.end(cb.last);
            let (relation, s) = compare(old.kind, env, before, &ca.ops, &cb.ops, live, end, options);
            stats.add(s);
            match relation {
                Ok(relation) => next = pairs(&relation, ta, tb, &|taken| open(ca.last, taken)),
                Err(why) => {
                    reason.get_or_insert(why);
                }
            }
            if next.is_some() {
                break;
            }
        }
        let reason = reason.unwrap_or_else(|| "the blocks end differently".into());
        let (ca, cb) = (chain(old, &pa, a, 0), chain(new, &pb, b, 0));
        let (ta, tb) = (&old.block(ca.last).term, &new.block(cb.last).term);
        if next.is_none() && std::env::var_os("BPF_OPT_TRACE").is_some() {
            eprintln!("lockstep at {a}/{b} ({alone}): not together: {reason}; {ta:?} / {tb:?}");
        }
        if next.is_none() && alone < MAX_ALONE && !matches!(ta, Terminator::Exit { .. } | Terminator::MayGoto { .. }) {
            // The old side goes on alone; the new one has yet to run its block.
            let live = lb.entry(b);
            let (relation, s) = compare(old.kind, env, before, &ca.ops, &[], live, End::Open, options);
            stats.add(s);
            if relation.is_ok() {
                let taken = |t: bool, s: BlockId| open(ca.last, t).then_some((s, b, alone + 1));
                next = Some(match *ta {
                    Terminator::Branch { taken: t, fall, .. } => {
                        [taken(true, t), taken(false, fall)].into_iter().flatten().collect()
                    }
                    Terminator::Goto(t) => vec![(t, b, alone + 1)],
                    _ => vec![],
                });
            }
        }
        if next.is_none()
            && alone < MAX_ALONE
            && let Terminator::Goto(t) = *tb
        {
            let live = lb.end(cb.last);
            let (relation, s) = compare(old.kind, env, before, &[], &cb.ops, live, End::Open, options);
            stats.add(s);
            if relation.is_ok() {
                next = Some(vec![(a, t, alone + 1)]);
            }
        }
        match next {
            Some(pairs) => todo.extend(pairs),
            None => {
                if std::env::var_os("BPF_OPT_TRACE").is_some() {
                    eprintln!("lockstep stuck at {a}/{b} ({alone}): {reason}\nold ends {ta:?}\nnew ends {tb:?}");
                    for (side, ops) in [("old", &ca.ops), ("new", &cb.ops)] {
                        ops.iter().for_each(|o| eprintln!("  {side} {:?} {}", o.origin, o.insn));
                    }
                }
                return Err((reason, stats));
            }
        }
    }
    Ok(stats)
}

/// How to compare two blocks' ends, if both can move at once.
fn both<'t>(a: &'t Terminator, b: &'t Terminator, old: &Function) -> Option<End<'t>> {
    Some(match (a, b) {
        (Terminator::Exit { .. }, Terminator::Exit { .. }) => End::Exit(old.kind.return_bits()),
        (Terminator::Goto(_), Terminator::Goto(_)) | (Terminator::MayGoto { .. }, Terminator::MayGoto { .. }) => {
            End::Open
        }
        (Terminator::Branch { .. } | Terminator::Goto(_), Terminator::Branch { .. } | Terminator::Goto(_)) => {
            End::Branches(a, b)
        }
        _ => return None,
    })
}

/// The successor pairs that can be reached.
fn pairs(
    relation: &Relation,
    a: &Terminator,
    b: &Terminator,
    open: &dyn Fn(bool) -> bool,
) -> Option<Vec<(BlockId, BlockId, u32)>> {
    use Terminator::{Branch, Exit, Goto, MayGoto};
    Some(match (a, b) {
        (Exit { .. }, Exit { .. }) => vec![],
        (Goto(x), Goto(y)) => vec![(*x, *y, 0)],
        (MayGoto { taken: t, fall: f, .. }, MayGoto { taken: u, fall: g, .. }) => vec![(*t, *u, 0), (*f, *g, 0)],
        (Branch { taken: t, fall: f, .. }, Branch { taken: u, fall: g, .. }) => {
            let mut v = Vec::new();
            match relation {
                Relation::Same => {
                    v.extend(open(true).then_some((*t, *u, 0)));
                    v.extend(open(false).then_some((*f, *g, 0)));
                }
                Relation::Negated => {
                    v.extend(open(true).then_some((*t, *g, 0)));
                    v.extend(open(false).then_some((*f, *u, 0)));
                }
                Relation::Constant { old, new } => {
                    v.push((if *old { *t } else { *f }, if *new { *u } else { *g }, 0));
                }
                Relation::Unrelated => return None,
            }
            v
        }
        (Branch { taken: t, fall: f, .. }, Goto(y)) => match relation {
            Relation::Constant { old, .. } => vec![(if *old { *t } else { *f }, *y, 0)],
            _ => return None,
        },
        (Goto(x), Branch { taken: u, fall: g, .. }) => match relation {
            Relation::Constant { new, .. } => vec![(*x, if *new { *u } else { *g }, 0)],
            _ => return None,
        },
        _ => return None,
    })
}
