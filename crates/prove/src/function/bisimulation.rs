//! Whole functions of any size, with loops: a bisimulation, block against block.
//!
//! The relation at a pair of blocks is "every register and stack byte the new side may still read
//! has the same value on both sides, all other memory and the history are equal". From each pair both
//! sides run to their blocks' ends, starting from the facts the *old* side has there, and the relation
//! must hold again at the successors; then it holds wherever the two executions get to (induction on
//! the number of steps), loops included. Either side may also take stuttering steps, alone, for blocks the other does
//! not have any more; never more than a few times in a row, so that no side can loop while the other
//! waits.
//!
//! Nothing is guessed about the correspondence of blocks: pairs are discovered from the entries by
//! following equal conditions.
//!
//! Two things join neighbouring blocks. What the old side has computed and would compute again
//! ([`crate::function::available`]) is taken for granted where it is available. And a location of the new side may hold something
//! else than the old side's, if it can be told from the old side's state ([`Relocations`]): it is told at the
//! end of one step, and asked of that same state at the start of the next. Where the old side adds an offset to a pointer at
//! each use and the new side moves the pointer, that is the sum of two of the old side's registers.

use std::collections::{BTreeSet, VecDeque};

use bpf_facts::{Env, Facts, Live, Liveness, StackSet, State};
use bpf_isa::{Reg, Src};
use bpf_program::{BlockId, Function, Op, Terminator, predecessors};
use rustc_hash::FxHashMap;
use tracing::{Level, enabled, trace};

use crate::compare::relation::{Known, Location, Origin, Relation, is_read};
use crate::compare::stretch::{End, Stretch, compare};
use crate::function::available::AvailableExpressions;
use crate::function::chain::{Chain, chain};
use crate::function::expression::{Expression, ExpressionId, Pool};
use crate::function::pruned::{CHEAP, without_impossible_jumps};
use crate::function::sums::sums;
use crate::options::{Limits, Options, Stats};
use crate::superblock::side_exit;

/// Stuttering steps in a row: those that one side takes while the other waits.
const MAX_STUTTERING: u32 = 12;

/// How many jumps to shared blocks either side follows within one step, in the order tried: tail
/// merging leaves the two sides with blocks cut at different places.
const EXTENSIONS: [(u32, u32); 6] = [(0, 0), (0, 1), (1, 0), (0, 2), (2, 0), (1, 1)];

/// Tries to prove that `new` does what `old` does.
///
/// # Errors
/// Why the relation could not be established; that says nothing about the functions themselves.
pub fn prove(old: &Function, new: &Function, env: &Env, options: &Options) -> Result<Stats, (String, Stats)> {
    let (reason, mut stats) = match explore(old, new, env, options, &[]) {
        Ok(stats) => return Ok(stats),
        Err(e) => e,
    };
    let sums = sums(old);
    if !sums.is_empty() {
        match explore(old, new, env, options, &sums) {
            Ok(more) => {
                stats.add(more);
                return Ok(stats);
            }
            Err((_, more)) => stats.add(more),
        }
    }
    // The facts may know more once jumps that never happen are gone; and blocks that such a jump parts on one side only
    // are run in one.
    let (pruned_old, effort) = without_impossible_jumps(old, env, options);
    stats.add(effort);
    let (pruned_new, effort) = without_impossible_jumps(new, env, options);
    stats.add(effort);
    let mut tries: Vec<(&Function, &Function)> = Vec::new();
    tries.extend(pruned_old.as_ref().zip(pruned_new.as_ref()));
    tries.extend(pruned_old.as_ref().map(|f| (f, new)));
    tries.extend(pruned_new.as_ref().map(|f| (old, f)));
    for (f, g) in tries {
        match explore(f, g, env, options, &[]) {
            Ok(more) => {
                stats.add(more);
                return Ok(stats);
            }
            Err((_, more)) => stats.add(more),
        }
    }
    Err((reason, stats))
}

/// One attempt, in which places of the new side may hold these sums of the old side's registers.
fn explore(
    old: &Function,
    new: &Function,
    env: &Env,
    options: &Options,
    sums: &[(Reg, Src)],
) -> Result<Stats, (String, Stats)> {
    let (fa, fb) = (Facts::of(old, env), Facts::of(new, env));
    let lb = Liveness::of(new, env, &fb);
    let (pa, pb) = (predecessors(old), predecessors(new));
    let mut pool = Pool::default();
    let sa = AvailableExpressions::of(old, env, &fa, &mut pool, options);
    let sb = AvailableExpressions::of(new, env, &fb, &mut pool, options);
    let places =
        |(base, by): &(Reg, Src)| Reg::all().filter_map(|dst| Expression::sum(dst, *base, *by)).collect::<Vec<_>>();
    let sums = sums.iter().flat_map(places).filter(|e| e.dst != Reg::R10).map(|e| pool.id(e)).collect();
    let (explored, lost) = (FxHashMap::default(), BTreeSet::new());
    let mut product = Product { old, new, env, options, fa, fb, lb, pa, pb, sa, sb, sums, pool, explored, lost };
    let start = Pair::met(old.entry(), new.entry());
    // Each pair takes its first step that leads to no lost pair. A pair without one is lost; then all
    // begins anew, remembering what was compared.
    let limit = 100 + 8 * (old.blocks.len() + new.blocks.len());
    'anew: loop {
        let mut seen: BTreeSet<Pair> = BTreeSet::new();
        let mut todo: VecDeque<Pair> = VecDeque::from([start.clone()]);
        while let Some(pair) = todo.pop_front() {
            if !seen.insert(pair.clone()) {
                continue;
            }
            if seen.len() > limit {
                return Err(("too many ways in which the two sides stand apart".into(), product.stats()));
            }
            match product.step(&pair) {
                Ok(next) => todo.extend(next),
                Err(reason) => {
                    product.show(&pair, &reason);
                    if pair == start || product.lost.len() >= MAX_LOST || options.is_over() {
                        return Err((reason, product.stats()));
                    }
                    product.lost.insert(pair);
                    continue 'anew;
                }
            }
        }
        return Ok(product.stats());
    }
}

/// Dead ends after which a proof is given up.
const MAX_LOST: usize = 256;

/// Jumps that one step goes through at most.
const DEPTH: usize = 4;

/// Operations of a path at most.
const LONGEST: usize = 400;

/// Compares two sequences, as [`compare`] does, from where the step starts.
type Compare<'c> = &'c mut dyn FnMut(&[Op], &[Op], Wanted, End) -> Result<(Relation, Known), Option<String>>;

/// What is live on the new side at some point, and what it has computed there.
type Wanted<'w> = (&'w Live, &'w [ExpressionId]);

/// Told of a pair that is come to: what is known there, the old side's edge, and both blocks.
type Reach<'r> = &'r mut dyn FnMut(&Known, (BlockId, bool), BlockId, BlockId);

/// Where the two sides stand, at the start of a block each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Pair {
    old: BlockId,
    new: BlockId,
    /// Stuttering steps: those that one side has taken alone, in a row.
    stuttering: u32,
    /// The edge, as block and side of its end, that the old side came by, where its facts of that edge
    /// matter: they may say what the new side has yet to test. Left out where the block's own do.
    via: Option<(BlockId, bool)>,
    /// What is known of both besides.
    known: Known,
}

impl Pair {
    /// Reached by a step of both sides.
    fn met(old: BlockId, new: BlockId) -> Pair {
        Pair { old, new, stuttering: 0, via: None, known: Known::default() }
    }
}

/// A way to move on from a pair.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Both, each following this many jumps to shared blocks.
    Together(u32, u32),
    /// Both, through blocks that only they lead to: what is known before a jump counts behind it.
    Superblock {
        /// With the solver's full effort and SAT sweeping.
        swept: bool,
    },
    /// Only the old side.
    Old,
    /// Only the new side.
    New,
    /// Both, with the solver's full effort and SAT sweeping.
    Swept(u32, u32),
}

/// Steps tried from one pair.
#[derive(Default)]
struct Explored {
    /// Where the steps that could be proven lead.
    found: Vec<Vec<Pair>>,
    /// Steps yet to be tried, the next one last; `None`: not even begun.
    left: Option<Vec<Step>>,
    /// Why the first one failed.
    reason: Option<String>,
}

/// Both sides and what is known of them.
struct Product<'f> {
    old: &'f Function,
    new: &'f Function,
    env: &'f Env<'f>,
    options: &'f Options,
    /// Facts of the old side.
    fa: Facts,
    /// Facts of the new side: of a place that holds the same on both they are as good, and the new side's code may
    /// let more be known.
    fb: Facts,
    /// Liveness of the new side.
    lb: Liveness,
    pa: Vec<Vec<BlockId>>,
    pb: Vec<Vec<BlockId>>,
    /// What either side has computed.
    sa: AvailableExpressions,
    sb: AvailableExpressions,
    /// Sums that places of the new side may hold.
    sums: Vec<ExpressionId>,
    pool: Pool,
    explored: FxHashMap<Pair, (Explored, Stats)>,
    /// Pairs from which no step can be proven.
    lost: BTreeSet<Pair>,
}

impl Product<'_> {
    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.explored.values().for_each(|(_, s)| sum.add(*s));
        sum
    }

    /// The first step from `pair` that leads to no lost one.
    fn step(&mut self, pair: &Pair) -> Result<Vec<Pair>, String> {
        let (mut explored, mut stats) = self.explored.remove(pair).unwrap_or_default();
        let result = self.step_in(pair, &mut explored, &mut stats);
        self.explored.insert(pair.clone(), (explored, stats));
        result
    }

    fn step_in(&self, pair: &Pair, explored: &mut Explored, stats: &mut Stats) -> Result<Vec<Pair>, String> {
        // Pairs the two meet at are tried with the facts of the block first, which more edges share; likewise without
        // what the old side holds twice.
        let good = |next: &[Pair]| -> Option<Vec<Pair>> {
            let open = |p: &Pair| {
                let stutters = p.stuttering > 0;
                let plain = Pair { known: p.known.plain(), ..p.clone() };
                let tried = if p.known.is_plain() { vec![plain] } else { vec![plain, p.clone()] };
                let both = |p: Pair| [Pair { via: None, ..p.clone() }, p].into_iter().skip(usize::from(stutters));
                tried.into_iter().flat_map(both).find(|p| !self.lost.contains(p))
            };
            next.iter().map(open).collect()
        };
        if let Some(next) = explored.found.iter().find_map(|n| good(n)) {
            return Ok(next);
        }
        let mut left = explored.left.take().unwrap_or_else(|| {
            let mut steps: Vec<Step> = EXTENSIONS.iter().map(|(x, y)| Step::Together(*x, *y)).collect();
            steps.push(Step::Superblock { swept: false });
            if pair.stuttering < MAX_STUTTERING {
                steps.extend([Step::Old, Step::New]);
            }
            steps.reverse();
            steps
        });
        let mut won = None;
        while let Some(step) = left.pop() {
            if self.options.is_over() {
                return Err("the time limit was reached, or all work that it may take was done".into());
            }
            let mut effort = Stats::default();
            let outcome = self.try_step(pair, step, &mut effort);
            stats.add(effort);
            match outcome {
                Ok(next) => {
                    won = good(&next);
                    explored.found.push(next);
                    if won.is_some() {
                        break;
                    }
                }
                Err(why) => {
                    // What the solver could not decide is tried with SAT sweeping at once: that the blocks belong
                    // together is likelier than that they do not.
                    if effort.undecided > 0 {
                        match step {
                            Step::Together(x, y) => left.push(Step::Swept(x, y)),
                            Step::Superblock { swept: false } => left.push(Step::Superblock { swept: true }),
                            _ => {}
                        }
                    }
                    if let Some(why) = why {
                        explored.reason.get_or_insert(why);
                    }
                }
            }
        }
        explored.left = Some(left);
        won.ok_or_else(|| explored.reason.clone().unwrap_or_else(|| "the blocks end differently".into()))
    }

    /// What the old side's facts say at a pair, and those of the new one about what holds the same; `None` if the
    /// old side never gets there.
    fn facts(&self, pair: &Pair) -> Option<State> {
        let mut facts = match pair.via {
            Some((from, taken)) => self.fa.edge(self.old, from, taken),
            None => self.fa.entry(pair.old).cloned(),
        }?;
        if let Some(new) = self.fb.entry(pair.new) {
            let mut same = *self.lb.entry(pair.new);
            for (place, _) in &pair.known.moved {
                match place {
                    Location::Reg(r) => same.regs = same.regs.without(*r),
                    Location::Byte(off) => same.stack = same.stack.minus(&StackSet::range(*off, 1)),
                }
            }
            facts.learn_numbers(new, &same);
        }
        Some(facts)
    }

    /// What the old side has computed at a pair.
    fn available(&self, pair: &Pair) -> &[ExpressionId] {
        match pair.via {
            Some((from, _)) => self.sa.end(from),
            None => self.sa.start(pair.old),
        }
    }

    /// What the new side may still use behind a block, and in front of one.
    fn behind(&self, b: BlockId) -> Wanted<'_> {
        (self.lb.end(b), self.sb.end(b))
    }

    fn at(&self, b: BlockId) -> Wanted<'_> {
        (self.lb.entry(b), self.sb.start(b))
    }

    /// Where one step leads, if it can be proven; or why not, if it makes sense at all.
    fn try_step(&self, pair: &Pair, step: Step, stats: &mut Stats) -> Result<Vec<Pair>, Option<String>> {
        let Pair { old: a, new: b, stuttering, .. } = *pair;
        let Some(before) = &self.facts(pair) else { return Ok(vec![]) };
        let swept = matches!(step, Step::Swept(..) | Step::Superblock { swept: true });
        let conflicts = if swept { self.options.limits.conflicts } else { self.options.limits.conflicts.min(CHEAP) };
        let options = Options { limits: Limits { conflicts, ..self.options.limits }, ..self.options.clone() };
        let available = self.available(pair);
        let came = pair.via.map(|(from, taken)| (&self.old.block(from).term, taken));
        let moved_before = pair.known.moved.iter().filter_map(|(_, s)| match s {
            Origin::Computed(id) => Some(*id),
            _ => None,
        });
        let moved_before: Vec<ExpressionId> = moved_before.collect();
        let mut compare = |old: &[Op], new: &[Op], (live, carried): Wanted, end: End| {
            let carried = &[carried, &moved_before[..]].concat()[..];
            let (pool, sums, known) = (&self.pool, &self.sums, &pair.known);
            let stretch = Stretch { before, known, came, old, new, live, end, available, carried, sums, pool };
            let (relation, s) = compare(self.old.kind, self.env, &stretch, swept, &options);
            stats.add(s);
            relation.map_err(Some)
        };
        // Of what moved, each successor keeps what it may read.
        let with = |known: &Known, mut next: Pair| {
            let live = self.lb.entry(next.new);
            let wanted = |p: Location| match p {
                Location::Reg(r) => live.regs.contains(r),
                Location::Byte(o) => live.stack.contains(o),
            };
            let either = |(p, q): &(Reg, Reg)| live.regs.contains(*p) || live.regs.contains(*q);
            next.known = Known {
                moved: known.moved.iter().copied().filter(|(p, _)| wanted(*p)).collect(),
                twins: known.twins.iter().copied().filter(either).collect(),
                spills: known.spills.iter().copied().filter(|(_, off, n)| is_read(*off, *n, &live.stack)).collect(),
                ahead: known.ahead,
            };
            next
        };
        // The old side's edges that its facts exclude lead nowhere.
        let open = |last: BlockId, taken: bool| self.fa.edge(self.old, last, taken).is_some();
        match step {
            Step::Together(x, y) | Step::Swept(x, y) => {
                let (ca, cb) = (chain(self.old, &self.pa, a, x), chain(self.new, &self.pb, b, y));
                if ca.extra > 0 || cb.extra > 0 {
                    return Err(None);
                }
                let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
                let end = both(ta, tb).ok_or_else(|| Some("the blocks end differently".to_string()))?;
                let (relation, known) = compare(&ca.ops, &cb.ops, self.behind(cb.last), end)?;
                pairs(&relation, ta, tb, &|taken| open(ca.last, taken))
                    .map(|next| {
                        let met = |(taken, old, new)| {
                            with(&known, Pair { via: Some((ca.last, taken)), ..Pair::met(old, new) })
                        };
                        next.into_iter().map(met).collect()
                    })
                    .ok_or_else(|| Some("the conditions differ at a block's end".to_string()))
            }
            Step::Superblock { .. } => {
                let (ca, cb) = (chain(self.old, &self.pa, a, 0), chain(self.new, &self.pb, b, 0));
                let mut next = Vec::new();
                self.along_superblocks(&ca, &cb, 0, &mut compare, &mut |known, taken, old, new| {
                    next.push(with(known, Pair { via: Some(taken), ..Pair::met(old, new) }));
                })?;
                Ok(next)
            }
            Step::Old => {
                let ca = chain(self.old, &self.pa, a, 0);
                let ta = &self.old.block(ca.last).term;
                if matches!(ta, Terminator::Exit { .. } | Terminator::MayGoto { .. }) {
                    return Err(None);
                }
                // The new side has yet to run its block.
                let here = Terminator::Goto(b);
                let end = if matches!(ta, Terminator::Branch { .. }) { End::Branches(ta, &here) } else { End::Open };
                let (relation, known) = compare(&ca.ops, &[], self.at(b), end)?;
                let sides = [true, false].into_iter().zip(ta.successors());
                let gone = |(taken, s)| {
                    let via = Some((ca.last, taken));
                    with(&known, Pair { old: s, stuttering: stuttering + 1, via, ..pair.clone() })
                };
                let never = |taken: bool| matches!(relation, Relation::Constant { old, .. } if old != taken);
                Ok(sides.filter(|(t, _)| open(ca.last, *t) && !never(*t)).map(gone).collect())
            }
            Step::New => {
                let cb = chain(self.new, &self.pb, b, 0);
                let tb = &self.new.block(cb.last).term;
                let live = self.behind(cb.last);
                let gone =
                    |known: &Known, to| with(known, Pair { new: to, stuttering: stuttering + 1, ..pair.clone() });
                match *tb {
                    Terminator::Goto(t) => {
                        let (_, known) = compare(&[], &cb.ops, live, End::Open)?;
                        Ok(vec![gone(&known, t)])
                    }
                    Terminator::Branch { taken, fall, .. } => {
                        let here = Terminator::Goto(a);
                        let (relation, known) = compare(&[], &cb.ops, live, End::Branches(&here, tb))?;
                        Ok(match relation {
                            Relation::Constant { new, .. } => vec![gone(&known, if new { taken } else { fall })],
                            _ => vec![gone(&known, taken), gone(&known, fall)],
                        })
                    }
                    _ => Err(None),
                }
            }
        }
    }

    /// Goes on from the ends of two paths into blocks that only they lead to, as far as needed; `reach` is told of
    /// every pair that is come to, with the edge of the old side.
    fn along_superblocks(
        &self,
        ca: &Chain,
        cb: &Chain,
        depth: usize,
        compare: Compare,
        reach: Reach,
    ) -> Result<(), Option<String>> {
        let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
        let end = both(ta, tb).ok_or(None)?;
        let open = |taken: bool| self.fa.edge(self.old, ca.last, taken).is_some();
        // With a path behind, the end may be as any block's.
        if depth > 0
            && let Ok((relation, known)) = compare(&ca.ops, &cb.ops, self.behind(cb.last), end)
            && let Some(next) = pairs(&relation, ta, tb, &open)
        {
            next.into_iter().for_each(|(taken, old, new)| reach(&known, (ca.last, taken), old, new));
            return Ok(());
        }
        let (Terminator::Branch { .. }, Terminator::Branch { .. }) = (ta, tb) else { return Err(None) };
        if depth == DEPTH {
            return Err(None);
        }
        let (relation, _) = compare(&ca.ops, &cb.ops, (&Live::default(), &[]), end)?;
        if !matches!(relation, Relation::Same | Relation::Negated) {
            return Err(None);
        }
        for (taken, old, new) in pairs(&relation, ta, tb, &open).ok_or(None)? {
            let (Some(ja), Some(jb)) = (side_exit(ta, old), side_exit(tb, new)) else { return Err(None) };
            let (mut xa, mut xb) = (ca.ops.clone(), cb.ops.clone());
            xa.push(ja);
            xb.push(jb);
            let only = |preds: &[Vec<BlockId>], f: &Function, b: BlockId| preds[b.index()].len() == 1 && b != f.entry();
            if only(&self.pa, self.old, old) && only(&self.pb, self.new, new) {
                let (na, nb) = (chain(self.old, &self.pa, old, 0), chain(self.new, &self.pb, new, 0));
                xa.extend(na.ops);
                xb.extend(nb.ops);
                if xa.len().max(xb.len()) > LONGEST {
                    return Err(None);
                }
                self.along_superblocks(&Chain { ops: xa, ..na }, &Chain { ops: xb, ..nb }, depth + 1, compare, reach)?;
            } else {
                let (_, known) = compare(&xa, &xb, self.at(new), End::Open)?;
                reach(&known, (ca.last, taken), old, new);
            }
        }
        Ok(())
    }

    /// Traces for a developer where the proof got stuck.
    fn show(&self, pair: &Pair, reason: &str) {
        if !enabled!(Level::TRACE) {
            return;
        }
        let Pair { old: a, new: b, stuttering, .. } = *pair;
        let (ca, cb) = (chain(self.old, &self.pa, a, 0), chain(self.new, &self.pb, b, 0));
        let (ta, tb) = (&self.old.block(ca.last).term, &self.new.block(cb.last).term);
        trace!(
            "bisimulation stuck at {a}/{b} ({stuttering}) {:?}: {reason}\nold ends {ta:?}\nnew ends {tb:?}",
            pair.known
        );
        if let Some(s) = self.facts(pair) {
            let leaked = if s.frame_leaked() { "leaked" } else { "secret" };
            let regs: Vec<String> = bpf_isa::Reg::all().map(|r| format!("{r} {:?}", s.reg(r).kind)).collect();
            trace!("frame {leaked}, {}; new reads {:?}", regs.join(", "), self.lb.entry(b).regs);
            let stack: Vec<String> = s.stack_values().map(|(o, v)| format!("fp{o}: {:?}", v.num)).collect();
            trace!("{}; new reads {:?}", stack.join(", "), self.lb.entry(b).stack.runs());
        }
        for id in self.available(pair) {
            let ops: Vec<String> = self.pool.get(*id).ops().iter().map(|o| o.insn.to_string()).collect();
            trace!("available {}", ops.join("; "));
        }
        for (side, ops) in [("old", &ca.ops), ("new", &cb.ops)] {
            ops.iter().for_each(|o| trace!("{side} {:?} {}", o.origin, o.insn));
        }
    }
}

/// How to compare two blocks' ends, if both can move at once.
fn both<'t>(a: &'t Terminator, b: &'t Terminator) -> Option<End<'t>> {
    Some(match (a, b) {
        (Terminator::Exit { .. }, Terminator::Exit { .. }) => End::Exit,
        (Terminator::Goto(_), Terminator::Goto(_)) | (Terminator::MayGoto { .. }, Terminator::MayGoto { .. }) => {
            End::Open
        }
        (Terminator::Branch { .. } | Terminator::Goto(_), Terminator::Branch { .. } | Terminator::Goto(_)) => {
            End::Branches(a, b)
        }
        _ => return None,
    })
}

/// The successor pairs that can be reached, each with the side of the old block's end that leads there.
fn pairs(
    relation: &Relation,
    a: &Terminator,
    b: &Terminator,
    open: &dyn Fn(bool) -> bool,
) -> Option<Vec<(bool, BlockId, BlockId)>> {
    use Terminator::{Branch, Exit, Goto, MayGoto};
    let side = |taken: bool, t: BlockId, f: BlockId| if taken { t } else { f };
    Some(match (a, b) {
        (Exit { .. }, Exit { .. }) => vec![],
        (Goto(x), Goto(y)) => vec![(true, *x, *y)],
        (MayGoto { taken: t, fall: f, .. }, MayGoto { taken: u, fall: g, .. }) => vec![(true, *t, *u), (false, *f, *g)],
        (Branch { taken: t, fall: f, .. }, Branch { taken: u, fall: g, .. }) => match *relation {
            Relation::Constant { old, new } => vec![(old, side(old, *t, *f), side(new, *u, *g))],
            Relation::Unrelated => return None,
            Relation::Same | Relation::Negated => {
                let same = *relation == Relation::Same;
                let both = [true, false].into_iter().filter(|taken| open(*taken));
                both.map(|taken| (taken, side(taken, *t, *f), side(taken == same, *u, *g))).collect()
            }
        },
        (Branch { taken: t, fall: f, .. }, Goto(y)) => match *relation {
            Relation::Constant { old, .. } => vec![(old, side(old, *t, *f), *y)],
            _ => return None,
        },
        (Goto(x), Branch { taken: u, fall: g, .. }) => match *relation {
            Relation::Constant { new, .. } => vec![(true, *x, side(new, *u, *g))],
            _ => return None,
        },
        _ => return None,
    })
}
