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
use rustc_hash::FxHashMap;

use crate::blast::Model;
use crate::context::{Context, Limits, Possible, Stats};
use crate::equiv::{End, Options, Relation, compare};
use crate::term::{Node, TermId};

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
    let mut seen: BTreeSet<Pair> = BTreeSet::new();
    let mut todo: VecDeque<Pair> = VecDeque::from([(old.entry(), new.entry(), 0)]);
    let game = Game { old, new, env, fa, lb, pa, pb };
    while let Some(pair) = todo.pop_front() {
        if !seen.insert(pair) {
            continue;
        }
        // Most pairs are easy or hopeless, and the cheap way tells which.
        let cheap = Limits { conflicts: options.limits.conflicts.min(CHEAP), ..options.limits };
        let quick = game.moves(pair, &Options { limits: cheap, ..*options }, false, &mut stats);
        let next = quick.or_else(|_| game.moves(pair, options, true, &mut stats));
        match next {
            Ok(pairs) => todo.extend(pairs),
            Err(reason) => {
                if std::env::var_os("BPF_OPT_TRACE").is_some() {
                    game.show(pair, &reason);
                }
                return Err((reason, stats));
            }
        }
    }
    Ok(stats)
}

/// SAT conflicts per query of the first try.
const CHEAP: u32 = 1_000;

/// A pair of blocks with the steps one side has taken alone.
type Pair = (BlockId, BlockId, u32);

/// Both sides and what is known of them.
struct Game<'f> {
    old: &'f Function,
    new: &'f Function,
    env: &'f Env<'f>,
    /// Facts of the old side.
    fa: Facts,
    /// Liveness of the new side.
    lb: Liveness,
    pa: Vec<Vec<BlockId>>,
    pb: Vec<Vec<BlockId>>,
}

impl Game<'_> {
    /// Where a pair leads, if a step can be proven.
    fn moves(&self, pair: Pair, options: &Options, guided: bool, stats: &mut Stats) -> Result<Vec<Pair>, String> {
        let (a, b, alone) = pair;
        if options.limits.deadline.is_some_and(|d| std::time::Instant::now() >= d) {
            return Err("the time limit was reached".into());
        }
        let Some(before) = self.fa.entry(a) else { return Ok(vec![]) };
        let (old, new, env) = (self.old, self.new, self.env);
        // The old side's edges that its facts exclude lead nowhere.
        let open = |last: BlockId, taken: bool| self.fa.edge(old, last, taken).is_some();
        let mut reason: Option<String> = None;
        let mut tried: BTreeSet<(BlockId, BlockId)> = BTreeSet::new();
        for (x, y) in EXTENSIONS {
            let (ca, cb) = (chain(old, &self.pa, a, x), chain(new, &self.pb, b, y));
            if !tried.insert((ca.last, cb.last)) {
                continue;
            }
            let (ta, tb) = (&old.block(ca.last).term, &new.block(cb.last).term);
            let Some(end) = both(ta, tb, old) else { continue };
            let live = self.lb.end(cb.last);
            let (relation, s) = compare(old.kind, env, before, &ca.ops, &cb.ops, live, end, guided, options);
            stats.add(s);
            let next = match relation {
                Ok(relation) => pairs(&relation, ta, tb, &|taken| open(ca.last, taken))
                    .ok_or_else(|| "the conditions differ at a block's end".to_string()),
                Err(why) => Err(why),
            };
            match next {
                Ok(next) => return Ok(next),
                Err(why) => {
                    reason.get_or_insert(why);
                }
            }
        }
        if alone < MAX_ALONE {
            let ca = chain(old, &self.pa, a, 0);
            let ta = &old.block(ca.last).term;
            if !matches!(ta, Terminator::Exit { .. } | Terminator::MayGoto { .. }) {
                // The old side goes on alone; the new one has yet to run its block.
                let live = self.lb.entry(b);
                let (relation, s) = compare(old.kind, env, before, &ca.ops, &[], live, End::Open, guided, options);
                stats.add(s);
                if relation.is_ok() {
                    let sides = [true, false].into_iter().zip(ta.successors());
                    return Ok(sides.filter(|(t, _)| open(ca.last, *t)).map(|(_, s)| (s, b, alone + 1)).collect());
                }
            }
            let cb = chain(new, &self.pb, b, 0);
            if let Terminator::Goto(t) = new.block(cb.last).term {
                let live = self.lb.end(cb.last);
                let (relation, s) = compare(old.kind, env, before, &[], &cb.ops, live, End::Open, guided, options);
                stats.add(s);
                if relation.is_ok() {
                    return Ok(vec![(a, t, alone + 1)]);
                }
            }
        }
        Err(reason.unwrap_or_else(|| "the blocks end differently".into()))
    }

    /// Tells a developer where the proof got stuck.
    fn show(&self, (a, b, alone): Pair, reason: &str) {
        let (ca, cb) = (chain(self.old, &self.pa, a, 0), chain(self.new, &self.pb, b, 0));
        let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
        eprintln!("lockstep stuck at {a}/{b} ({alone}): {reason}\nold ends {ta:?}\nnew ends {tb:?}");
        for (side, ops) in [("old", &ca.ops), ("new", &cb.ops)] {
            ops.iter().for_each(|o| eprintln!("  {side} {:?} {}", o.origin, o.insn));
        }
    }
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
) -> Option<Vec<Pair>> {
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

/// Assignments that are run to guess which values of the two sides are equal.
const SAMPLES: usize = 6;
/// Guesses that may go to the solver in one comparison.
const GUESSES: u32 = 400;

/// Makes long computations comparable step by step (SAT sweeping): a value of the new side that
/// equals one of the old side in all samples is proven equal to it, at once, and then *is* that one
/// in all that follows. So the solver sees one rewritten expression at a time, not the whole chain.
#[derive(Default)]
pub(crate) struct Guide {
    samples: Vec<(Model, FxHashMap<TermId, u64>)>,
    /// Values of the old side.
    olds: Vec<TermId>,
    /// The first of them with these values in the samples: all 64 bits, or the low 32.
    whole: FxHashMap<Vec<u64>, TermId>,
    low: FxHashMap<Vec<u64>, TermId>,
    asked: u32,
    ready: bool,
}

impl Guide {
    /// Remembers a value of the old side.
    pub(crate) fn note(&mut self, t: TermId) {
        self.olds.push(t);
    }

    /// The old side's value that `t`, of the new side, is proven to equal, or `t`. If that is so of
    /// its low 32 bits only, those are replaced.
    pub(crate) fn canonical(&mut self, cx: &mut Context, t: TermId) -> TermId {
        if !self.ready {
            self.ready = true;
            self.prepare(cx);
        }
        if self.samples.is_empty() || cx.terms.as_const(t).is_some() || cx.terms.width(t) != 64 {
            return t;
        }
        let values = self.values(cx, t);
        let low = values.iter().map(|v| v & 0xffff_ffff).collect::<Vec<_>>();
        let better = match (self.whole.get(&values).copied(), self.low.get(&low).copied()) {
            (Some(u), _) if u == t || self.equal(cx, u, t) => u,
            (_, Some(u)) => {
                let (x, y) = (cx.terms.extract(u, 0, 32), cx.terms.extract(t, 0, 32));
                if x == y || !self.equal(cx, x, y) {
                    return t;
                }
                let high = cx.terms.extract(t, 32, 32);
                cx.terms.concat(&[x, high])
            }
            _ => return t,
        };
        cx.replace(t, better);
        better
    }

    fn equal(&mut self, cx: &mut Context, x: TermId, y: TermId) -> bool {
        if self.asked >= GUESSES {
            return false;
        }
        self.asked += 1;
        let e = cx.terms.eq(x, y);
        let ne = cx.terms.not(e);
        let tru = cx.terms.tru();
        match cx.possible(tru, &[ne]) {
            Possible::Never => true,
            // One more sample tells them apart; the others are not worth another look.
            Possible::Sometimes(_) | Possible::Unknown => false,
        }
    }

    /// Chooses samples that satisfy what is assumed, and runs the old side's values on them.
    fn prepare(&mut self, cx: &mut Context) {
        for seed in 0..4 * SAMPLES as u64 {
            if self.samples.len() == SAMPLES {
                break;
            }
            self.samples.push((Model::default(), FxHashMap::default()));
            let k = self.samples.len() - 1;
            let assumed: Vec<TermId> = cx.assumed().collect();
            if !assumed.into_iter().all(|a| self.run(cx, k, seed, a) != 0) {
                self.samples.pop();
            }
        }
        for t in std::mem::take(&mut self.olds) {
            if cx.terms.width(t) == 64 && cx.terms.as_const(t).is_none() {
                let values = self.values(cx, t);
                let low = values.iter().map(|v| v & 0xffff_ffff).collect();
                self.whole.entry(values).or_insert(t);
                self.low.entry(low).or_insert(t);
            }
        }
    }

    fn values(&mut self, cx: &Context, t: TermId) -> Vec<u64> {
        (0..self.samples.len()).map(|k| self.run(cx, k, k as u64, t)).collect()
    }

    /// The value of `t` in sample `k`, which is made up where nobody has asked yet.
    fn run(&mut self, cx: &Context, k: usize, seed: u64, t: TermId) -> u64 {
        let (model, memo) = &mut self.samples[k];
        let mut todo = vec![t];
        while let Some(&t) = todo.last() {
            if memo.contains_key(&t) {
                todo.pop();
                continue;
            }
            let before = todo.len();
            crate::blast::children(cx.terms.node(t), &mut |c| {
                if !memo.contains_key(&c) {
                    todo.push(c);
                }
            });
            if todo.len() > before {
                continue;
            }
            match *cx.terms.node(t) {
                Node::Var(v) => {
                    model.vars.insert(v, noise(seed, v.index() as u64));
                }
                Node::Select(m, a) => {
                    let a = memo[&a];
                    model.bytes.entry((m, a)).or_insert(noise(seed ^ a, m.index() as u64) as u8);
                }
                _ => {}
            }
            model.eval_memo(&cx.terms, t, memo);
            todo.pop();
        }
        memo[&t]
    }
}

/// A number that looks random, small in every third sample.
fn noise(seed: u64, i: u64) -> u64 {
    let z = (seed << 32 ^ i).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let z = z ^ (z >> 31);
    if seed % 3 == 2 { z & 0xff } else { z }
}
