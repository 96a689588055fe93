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

use bpf_facts::{Env, Facts, Live, Liveness, State};
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
    /// Jumps to shared blocks that were wanted and not there.
    extra: u32,
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
    Chain { ops, last, extra }
}

/// Tries to prove that `new` does what `old` does.
///
/// # Errors
/// Why the relation could not be established; that says nothing about the functions themselves.
pub fn prove(old: &Function, new: &Function, env: &Env, options: &Options) -> Result<Stats, (String, Stats)> {
    let (fa, fb) = (Facts::of(old, env), Facts::of(new, env));
    let lb = Liveness::of(new, env, &fb);
    let (pa, pb) = (predecessors(old), predecessors(new));
    let mut game = Game { old, new, env, options, fa, lb, pa, pb, played: FxHashMap::default(), lost: BTreeSet::new() };
    let start = Pair::met(old.entry(), new.entry());
    // Each pair takes its first step that leads to no lost pair. A pair without one is lost; then all
    // begins anew, remembering what was compared.
    'anew: loop {
        let mut seen: BTreeSet<Pair> = BTreeSet::new();
        let mut todo: VecDeque<Pair> = VecDeque::from([start]);
        while let Some(pair) = todo.pop_front() {
            if !seen.insert(pair) {
                continue;
            }
            match game.step(pair) {
                Ok(next) => todo.extend(next),
                Err(reason) => {
                    game.show(pair, &reason);
                    if pair == start || game.lost.len() >= MAX_LOST || game.late() {
                        return Err((reason, game.stats()));
                    }
                    game.lost.insert(pair);
                    continue 'anew;
                }
            }
        }
        return Ok(game.stats());
    }
}

/// SAT conflicts per query of the first try.
const CHEAP: u32 = 1_000;
/// Dead ends after which a proof is given up.
const MAX_LOST: usize = 64;

/// Where the two sides stand, at the start of a block each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Pair {
    old: BlockId,
    new: BlockId,
    /// Steps one side has taken alone.
    alone: u32,
    /// The edge, as block and side of its branch, that the old side came by: told only after it went
    /// alone, when its facts of that edge say what the new side has yet to test.
    via: Option<(BlockId, bool)>,
}

impl Pair {
    /// Reached by a step of both sides.
    fn met(old: BlockId, new: BlockId) -> Pair {
        Pair { old, new, alone: 0, via: None }
    }
}

/// A way to move on from a pair.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Both, each following this many jumps to shared blocks.
    Together(u32, u32),
    /// Only the old side.
    Old,
    /// Only the new side.
    New,
    /// Both, with the solver's full effort and a guide.
    Guided(u32, u32),
}

/// Steps tried from one pair.
#[derive(Default)]
struct Played {
    /// Where the steps that could be proven lead.
    found: Vec<Vec<Pair>>,
    /// Steps yet to be tried, the next one last; `None`: not even begun.
    left: Option<Vec<Step>>,
    /// Why the first one failed.
    reason: Option<String>,
}

/// Both sides and what is known of them.
struct Game<'f> {
    old: &'f Function,
    new: &'f Function,
    env: &'f Env<'f>,
    options: &'f Options,
    /// Facts of the old side.
    fa: Facts,
    /// Liveness of the new side.
    lb: Liveness,
    pa: Vec<Vec<BlockId>>,
    pb: Vec<Vec<BlockId>>,
    played: FxHashMap<Pair, (Played, Stats)>,
    /// Pairs from which no step can be proven.
    lost: BTreeSet<Pair>,
}

impl Game<'_> {
    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.played.values().for_each(|(_, s)| sum.add(*s));
        sum
    }

    fn late(&self) -> bool {
        self.options.limits.deadline.is_some_and(|d| std::time::Instant::now() >= d)
    }

    /// The first step from `pair` that leads to no lost one.
    fn step(&mut self, pair: Pair) -> Result<Vec<Pair>, String> {
        let (mut played, mut stats) = self.played.remove(&pair).unwrap_or_default();
        let result = self.step_in(pair, &mut played, &mut stats);
        self.played.insert(pair, (played, stats));
        result
    }

    fn step_in(&self, pair: Pair, played: &mut Played, stats: &mut Stats) -> Result<Vec<Pair>, String> {
        let good = |next: &[Pair]| next.iter().all(|p| !self.lost.contains(p));
        if let Some(next) = played.found.iter().find(|n| good(n)) {
            return Ok(next.clone());
        }
        let mut left = played.left.take().unwrap_or_else(|| {
            let mut steps: Vec<Step> = EXTENSIONS.iter().map(|(x, y)| Step::Together(*x, *y)).collect();
            if pair.alone < MAX_ALONE {
                steps.extend([Step::Old, Step::New]);
            }
            steps.reverse();
            steps
        });
        let mut won = None;
        while let Some(step) = left.pop() {
            if self.late() {
                return Err("the time limit was reached".into());
            }
            let mut effort = Stats::default();
            let outcome = self.play(pair, step, &mut effort);
            stats.add(effort);
            match outcome {
                Ok(next) => {
                    played.found.push(next.clone());
                    if good(&next) {
                        won = Some(next);
                        break;
                    }
                }
                Err(Some(why)) => {
                    if let Step::Together(x, y) = step
                        && effort.undecided > 0
                    {
                        left.insert(0, Step::Guided(x, y));
                    }
                    played.reason.get_or_insert(why);
                }
                Err(None) => {}
            }
        }
        played.left = Some(left);
        won.ok_or_else(|| played.reason.clone().unwrap_or_else(|| "the blocks end differently".into()))
    }

    /// What the old side's facts say at a pair; `None` if it never gets there.
    fn facts(&self, pair: Pair) -> Option<State> {
        match pair.via {
            Some((from, taken)) => self.fa.edge(self.old, from, taken),
            None => self.fa.entry(pair.old).cloned(),
        }
    }

    /// Where one step leads, if it can be proven; or why not, if it makes sense at all.
    fn play(&self, pair: Pair, step: Step, stats: &mut Stats) -> Result<Vec<Pair>, Option<String>> {
        let Pair { old: a, new: b, alone, .. } = pair;
        let Some(before) = &self.facts(pair) else { return Ok(vec![]) };
        let guided = matches!(step, Step::Guided(..));
        let conflicts = if guided { self.options.limits.conflicts } else { self.options.limits.conflicts.min(CHEAP) };
        let options = Options { limits: Limits { conflicts, ..self.options.limits }, ..*self.options };
        let mut compare = |old: &[Op], new: &[Op], live: &Live, end: End| {
            let (relation, s) = compare(self.old.kind, self.env, before, old, new, live, end, guided, &options);
            stats.add(s);
            relation.map_err(Some)
        };
        // The old side's edges that its facts exclude lead nowhere.
        let open = |last: BlockId, taken: bool| self.fa.edge(self.old, last, taken).is_some();
        match step {
            Step::Together(x, y) | Step::Guided(x, y) => {
                let (ca, cb) = (chain(self.old, &self.pa, a, x), chain(self.new, &self.pb, b, y));
                if ca.extra > 0 || cb.extra > 0 {
                    return Err(None);
                }
                let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
                let end = both(ta, tb, self.old).ok_or_else(|| Some("the blocks end differently".to_string()))?;
                let relation = compare(&ca.ops, &cb.ops, self.lb.end(cb.last), end)?;
                pairs(&relation, ta, tb, &|taken| open(ca.last, taken))
                    .ok_or_else(|| Some("the conditions differ at a block's end".to_string()))
            }
            Step::Old => {
                let ca = chain(self.old, &self.pa, a, 0);
                let ta = &self.old.block(ca.last).term;
                if matches!(ta, Terminator::Exit { .. } | Terminator::MayGoto { .. }) {
                    return Err(None);
                }
                // The new side has yet to run its block.
                compare(&ca.ops, &[], self.lb.entry(b), End::Open)?;
                let sides = [true, false].into_iter().zip(ta.successors());
                let gone = |(taken, s)| Pair { old: s, new: b, alone: alone + 1, via: Some((ca.last, taken)) };
                Ok(sides.filter(|(t, _)| open(ca.last, *t)).map(gone).collect())
            }
            Step::New => {
                let cb = chain(self.new, &self.pb, b, 0);
                let tb = &self.new.block(cb.last).term;
                let live = self.lb.end(cb.last);
                let gone = |to| Pair { new: to, alone: alone + 1, ..pair };
                match *tb {
                    Terminator::Goto(t) => {
                        compare(&[], &cb.ops, live, End::Open)?;
                        Ok(vec![gone(t)])
                    }
                    Terminator::Branch { taken, fall, .. } => {
                        let here = Terminator::Goto(a);
                        Ok(match compare(&[], &cb.ops, live, End::Branches(&here, tb))? {
                            Relation::Constant { new, .. } => vec![gone(if new { taken } else { fall })],
                            _ => vec![gone(taken), gone(fall)],
                        })
                    }
                    _ => Err(None),
                }
            }
        }
    }

    /// Tells a developer where the proof got stuck.
    fn show(&self, pair: Pair, reason: &str) {
        if std::env::var_os("BPF_OPT_TRACE").is_none() {
            return;
        }
        let Pair { old: a, new: b, alone, .. } = pair;
        let (ca, cb) = (chain(self.old, &self.pa, a, 0), chain(self.new, &self.pb, b, 0));
        let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
        eprintln!("lockstep stuck at {a}/{b} ({alone}): {reason}\nold ends {ta:?}\nnew ends {tb:?}");
        if let Some(s) = self.facts(pair) {
            let leaked = if s.frame_leaked() { "leaked" } else { "secret" };
            let regs: Vec<String> = bpf_isa::Reg::all().map(|r| format!("{r} {:?}", s.reg(r).kind)).collect();
            eprintln!("frame {leaked}, {}; new reads {:?}", regs.join(", "), self.lb.entry(b).regs);
        }
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
        (Goto(x), Goto(y)) => vec![Pair::met(*x, *y)],
        (MayGoto { taken: t, fall: f, .. }, MayGoto { taken: u, fall: g, .. }) => vec![Pair::met(*t, *u), Pair::met(*f, *g)],
        (Branch { taken: t, fall: f, .. }, Branch { taken: u, fall: g, .. }) => {
            let mut v = Vec::new();
            match relation {
                Relation::Same => {
                    v.extend(open(true).then_some(Pair::met(*t, *u)));
                    v.extend(open(false).then_some(Pair::met(*f, *g)));
                }
                Relation::Negated => {
                    v.extend(open(true).then_some(Pair::met(*t, *g)));
                    v.extend(open(false).then_some(Pair::met(*f, *u)));
                }
                Relation::Constant { old, new } => {
                    v.push(Pair::met(if *old { *t } else { *f }, if *new { *u } else { *g }));
                }
                Relation::Unrelated => return None,
            }
            v
        }
        (Branch { taken: t, fall: f, .. }, Goto(y)) => match relation {
            Relation::Constant { old, .. } => vec![Pair::met(if *old { *t } else { *f }, *y)],
            _ => return None,
        },
        (Goto(x), Branch { taken: u, fall: g, .. }) => match relation {
            Relation::Constant { new, .. } => vec![Pair::met(*x, if *new { *u } else { *g })],
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
