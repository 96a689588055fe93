//! The stochastic chain: Metropolis–Hastings over programs of the window's length (paper §3). A state is accepted by its cost and by
//! how likely the proposal and the way back are (`propose/density.rs`).
//!
//! A candidate is run on the tests from its first changed operation; it is given up as soon as it is
//! too far away to be accepted. One that passes all tests and costs less than the best so far goes to
//! the judge, unless it was refused before. What the judge refutes becomes a test.
//!
//! Safety (paper §3.2, §6) is judged in the same step: an access that a test shows to be out of bounds is a fault, and what
//! passes all tests and breaks a rule of the verifier ([`well_typed`]) is unsafe whatever the input. Either costs
//! [`ERR_MAX`](cost::ERR_MAX), and neither goes to the judge.

use std::hash::{Hash, Hasher};
use std::time::Instant;

use bpf_isa::{Class, Costs, Insn, RegSet};
use bpf_program::Op;
use bpf_prove::superblock::is_side_exit;
use rustc_hash::{FxHashSet, FxHasher};

use crate::batch::{Batch, Score, exit_of};
use crate::cost;
use crate::counterexample;
use crate::inputs::Input;
use crate::pointer_rules::well_typed;
use crate::propose::Pool;
use crate::rng::Rng;
use crate::settings::Setting;
use crate::window::{Answer, Cost, Found, Judge, NOP, Window};

/// Tests in one batch.
pub const LANES: usize = 8;
/// Batches made from the facts alone.
const FIRST: usize = 2;
/// Inputs drawn for the exits of a superblock.
const DRAWN: u64 = 6 * LANES as u64;
/// Counterexamples kept.
const KEPT: usize = 2 * LANES;
/// Proposals after which the chain starts again from the best or the original.
const EPISODE: u64 = 1 << 15;
/// Logarithms in the table.
const LOGS: usize = 1 << 10;
/// Proposals between looks at the clock.
const CLOCK: u64 = 512;

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Proposals at most.
    pub proposals: u64,
    /// Questions to the judge at most: one takes as long as very many proposals.
    pub questions: u64,
    /// Until when.
    pub deadline: Option<Instant>,
}

impl Budget {
    /// So many proposals, however long they take.
    pub const fn proposals(n: u64) -> Budget {
        Budget { proposals: n, questions: u64::MAX, deadline: None }
    }
}

/// What a chain did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Proposals made.
    pub proposals: u64,
    /// Those that changed nothing, or were not well formed.
    pub idle: u64,
    /// Those that became the chain's next state.
    pub accepted: u64,
    /// Those that passed all tests.
    pub passed: u64,
    /// Those that went to the judge.
    pub judged: u64,
    /// Those the judge called equal.
    pub equal: u64,
    /// Those that pass all tests, cost less and break a rule of the verifier.
    pub violations: u64,
    /// Those that had been refused before.
    pub remembered: u64,
    /// Those the judge refuted with an input, and how many of these inputs show it in a test.
    pub refuted: u64,
    /// See `refuted`.
    pub reproduced: u64,
    /// The proposal that was the best.
    pub best_at: u64,
}

impl Progress {
    /// Adds another chain's.
    pub fn add(&mut self, o: &Progress) {
        self.proposals += o.proposals;
        self.idle += o.idle;
        self.accepted += o.accepted;
        self.passed += o.passed;
        self.judged += o.judged;
        self.equal += o.equal;
        self.violations += o.violations;
        self.remembered += o.remembered;
        self.refuted += o.refuted;
        self.reproduced += o.reproduced;
    }
}

/// A chain over one window.
pub struct Chain<'a> {
    window: Window<'a>,
    setting: Setting,
    rng: Rng,
    pool: Pool,
    costs: &'static Costs,
    ops: Vec<Op>,
    total: f64,
    /// Slots and time beyond the original's.
    beyond: (i32, i32),
    logs: Vec<f64>,
    batches: Vec<Batch<LANES>>,
    /// How many of them were made from the facts alone.
    first: usize,
    /// What the judge came up with, and by which exit the original leaves then.
    counterexamples: Vec<(usize, Input)>,
    refused: FxHashSet<u64>,
    /// What breaks a rule of the verifier.
    violating: FxHashSet<u64>,
    old_cost: Cost,
    best: Option<Found>,
    /// How many proven states are kept.
    keep: usize,
    /// Those that cost least, in this order, unless only one is kept; states that take each other's place are told apart by their code.
    kept: Vec<Found>,
    /// What it did so far.
    pub progress: Progress,
}

impl<'a> Chain<'a> {
    /// A chain that starts at the window's own code. `None` if the window cannot be tested: it is
    /// empty, or has calls.
    pub fn new(window: Window<'a>, setting: Setting, seed: u64) -> Option<Chain<'a>> {
        if window.old.is_empty() || !window.is_plain() {
            return None;
        }
        let batches = first_tests(&window, seed);
        if batches.is_empty() {
            return None;
        }
        let old_cost = cost::of(window.old, window.goal);
        Some(Chain {
            window,
            setting,
            rng: Rng::new(seed ^ u64::from(setting.id) << 56),
            pool: Pool::new(&window),
            costs: window.goal.costs(),
            ops: window.old.to_vec(),
            total: 0.0,
            beyond: (0, 0),
            logs: (0..LOGS).map(|i| -(((i as f64 + 0.5) / LOGS as f64).ln())).collect(),
            first: batches.len(),
            batches,
            counterexamples: Vec::new(),
            refused: FxHashSet::default(),
            violating: FxHashSet::default(),
            old_cost,
            best: None,
            keep: 1,
            kept: Vec::new(),
            progress: Progress::default(),
        })
    }

    /// The same, which keeps so many states (paper §8: top k): the cheapest that are proven, cost no more than the original, and are
    /// not it.
    #[must_use]
    pub fn keeping(mut self, count: usize) -> Chain<'a> {
        self.keep = count;
        self
    }

    /// The states that were to be kept ([`Chain::keeping`]), the cheapest first.
    pub fn kept(&self) -> &[Found] {
        &self.kept
    }

    /// The best so far that was called equal.
    pub fn best(&self) -> Option<&Found> {
        self.best.as_ref()
    }

    /// Goes on from what another chain of the same window found.
    pub fn adopt(&mut self, found: &Found) {
        if found.cost < self.best_cost() && found.with.len() <= self.window.old.len() {
            self.best = Some(found.clone());
            self.restart();
        }
    }

    /// Walks until the budget is spent.
    pub fn run(&mut self, budget: Budget, judge: &mut dyn Judge) -> Option<&Found> {
        let end = self.progress.proposals + budget.proposals;
        let last = self.progress.judged.saturating_add(budget.questions);
        while self.progress.proposals < end && self.progress.judged < last {
            let n = self.progress.proposals;
            if n.is_multiple_of(CLOCK) && budget.deadline.or(self.window.deadline).is_some_and(|d| Instant::now() >= d)
            {
                break;
            }
            if n % EPISODE == EPISODE - 1 {
                self.restart();
            }
            self.progress.proposals += 1;
            self.step(judge);
        }
        self.best.as_ref()
    }

    fn best_cost(&self) -> Cost {
        self.best.as_ref().map_or(self.old_cost, |b| b.cost)
    }

    /// Performance relative to the original, in slots or plain operations.
    fn extra(&self, (slots, time): (i32, i32)) -> f64 {
        let (slots, time) = (f64::from(slots), f64::from(time));
        if self.window.goal.puts_slots_first() {
            slots + time / 10_000.0
        } else {
            time / f64::from(self.costs.class_time(Class::Alu64).max(1)) + slots / 100.0
        }
    }

    /// Slots and time of the current program beyond the original's.
    fn beyond(&self) -> (i32, i32) {
        let c = cost::of(&self.ops, self.window.goal);
        let d = |a: u32, b: u32| a as i32 - b as i32;
        let (first, second) = (d(c.first, self.old_cost.first), d(c.second, self.old_cost.second));
        if self.window.goal.puts_slots_first() { (first, second) } else { (second, first) }
    }

    /// By how much a state may be worse than the present one and still be accepted.
    fn patience(&mut self) -> f64 {
        let i = self.rng.below(LOGS);
        // The rarest throws are thrown again, so that the table has no end.
        let x = if i == 0 { -((self.rng.unit().max(1e-300) / LOGS as f64).ln()) } else { self.logs[i] };
        x / self.setting.cold
    }

    fn tests(&self) -> u32 {
        (self.batches.len() * LANES) as u32
    }

    fn step(&mut self, judge: &mut dyn Judge) {
        let Some(from) = self.pool.propose(&mut self.ops, &self.setting.rules, &mut self.rng) else {
            self.progress.idle += 1;
            return;
        };
        // The dice are thrown first: what is worse than this will not be accepted.
        let mut limit = Limit::new(self.total + self.patience(), &self.setting);
        let mut beyond = self.beyond;
        for (at, old) in self.pool.changes() {
            let (slots, time) = cost::more(&self.ops[*at], old, self.costs);
            beyond = (beyond.0 + slots, beyond.1 + time);
        }
        let extra = self.extra(beyond);
        let tests = self.tests();
        let mut score = Score::default();
        let mut ran = 0;
        for b in &mut self.batches {
            b.run(&self.ops, from);
            ran += 1;
            score.add(b.score(self.setting.distance));
            if !score.perfect() {
                let least = cost::total(&self.setting, score, tests, false, extra);
                if limit.is_below(least, &self.pool, &self.ops, &self.setting) {
                    self.reject(ran);
                    return;
                }
            }
        }
        let mut unequal = true;
        if score.perfect() {
            self.progress.passed += 1;
            match self.passes(judge) {
                Passed::Fine => unequal = false,
                Passed::Refused => {}
                Passed::Unsafe => score.faults += 1,
                Passed::Tested => {
                    // There are new tests: this one starts from the state before.
                    return;
                }
            }
        }
        let total = cost::total(&self.setting, score, tests, unequal, extra);
        if total <= limit.exact(&self.pool, &self.ops, &self.setting) {
            self.batches.iter_mut().for_each(Batch::accept);
            self.total = total;
            self.beyond = beyond;
            self.progress.accepted += 1;
        } else {
            self.reject(ran);
        }
    }

    fn reject(&mut self, ran: usize) {
        self.batches[..ran].iter_mut().for_each(Batch::reject);
        self.pool.take_back(&mut self.ops);
    }

    /// What becomes of a candidate that passes all tests.
    fn passes(&mut self, judge: &mut dyn Judge) -> Passed {
        let with = stripped(&self.window, &self.ops);
        let key = fingerprint(&with);
        if self.violating.contains(&key) {
            return Passed::Unsafe;
        }
        if self.refused.contains(&key) {
            self.progress.remembered += 1;
            return Passed::Refused;
        }
        let cost = cost::of(&with, self.window.goal);
        if cost >= self.best_cost() && !self.is_one_to_keep(&with, cost) {
            return Passed::Fine;
        }
        if !well_typed(&self.window, &with) {
            self.violating.insert(key);
            self.progress.violations += 1;
            return Passed::Unsafe;
        }
        self.progress.judged += 1;
        match judge.judge(&with) {
            Answer::Equal => {
                self.progress.equal += 1;
                let found = Found { with, cost, by: "chain" };
                if self.keep > 1 {
                    keep(&mut self.kept, &found, self.keep);
                }
                if cost < self.best_cost() {
                    self.progress.best_at = self.progress.proposals;
                    self.best = Some(found);
                }
                Passed::Fine
            }
            Answer::Different(Some(d)) => {
                self.refused.insert(key);
                self.progress.refuted += 1;
                let n = self.progress.refuted;
                let inputs = counterexample::inputs(&self.window, &d, n);
                self.batches.iter_mut().for_each(Batch::reject);
                let candidate = self.ops.clone();
                self.pool.take_back(&mut self.ops);
                self.learn(inputs, &candidate);
                Passed::Tested
            }
            Answer::Different(None) | Answer::Unknown => {
                self.refused.insert(key);
                Passed::Refused
            }
        }
    }

    /// Whether a state that is not the best is among those to keep, if it can be proven.
    fn is_one_to_keep(&self, with: &[Op], cost: Cost) -> bool {
        self.keep > 1
            && cost <= self.old_cost
            && self.kept.get(self.keep - 1).is_none_or(|last| cost < last.cost)
            && !is_same(with, self.window.old)
            && !self.kept.iter().any(|k| is_same(&k.with, with))
    }

    /// Adds tests, and looks whether they show what they are said to show.
    fn learn(&mut self, inputs: Vec<Input>, candidate: &[Op]) {
        let before = self.counterexamples.len();
        for input in inputs {
            // The original must be able to run on it.
            let alone: [Input; LANES] = std::array::from_fn(|_| input.clone());
            let Some(mut b) = Batch::<LANES>::new(&self.window, &alone) else { continue };
            b.run(candidate, 0);
            if !b.score(self.setting.distance).perfect() {
                self.counterexamples.push((b.exit(), input));
            }
        }
        if self.counterexamples.len() == before {
            return;
        }
        self.progress.reproduced += 1;
        if self.counterexamples.len() > KEPT {
            self.counterexamples.drain(..LANES);
        }
        self.batches.truncate(self.first);
        let exits = self.window.superblock.map_or(1, |r| r.exits.len());
        for exit in 0..exits {
            let mine: Vec<&Input> = self.counterexamples.iter().filter(|(e, _)| *e == exit).map(|(_, i)| i).collect();
            for some in mine.chunks(LANES) {
                let inputs = std::array::from_fn(|l| some[l % some.len()].clone());
                self.batches.extend(Batch::new(&self.window, &inputs));
            }
        }
        self.reset();
    }

    /// Starts again from the best or the original.
    fn restart(&mut self) {
        let n = self.window.old.len();
        self.ops = self.window.old.to_vec();
        if let Some(best) = &self.best
            && !self.rng.one_in(4)
        {
            if self.window.superblock.is_some() {
                self.ops = spread(self.window.old, &best.with).unwrap_or_else(|| self.window.old.to_vec());
                self.reset();
                return;
            }
            // Holes between the operations leave room to put something in.
            let nop = Op::with_origin(NOP, self.window.old[0].origin);
            self.ops = vec![nop; n];
            let mut at = 0;
            for (i, op) in best.with.iter().enumerate() {
                let room = n - at - (best.with.len() - i);
                at += if room == 0 { 0 } else { self.rng.below(room.min(2) + 1) };
                self.ops[at] = op.clone();
                at += 1;
            }
        }
        self.reset();
    }

    /// Runs the current program on all tests anew.
    fn reset(&mut self) {
        let mut score = Score::default();
        for b in &mut self.batches {
            b.reset(&self.ops);
            score.add(b.score_current(self.setting.distance));
        }
        self.beyond = self.beyond();
        let extra = self.extra(self.beyond);
        self.total = cost::total(&self.setting, score, self.tests(), !score.perfect(), extra);
    }
}

/// What a candidate may cost at most to be accepted. How likely the proposal is beside the way back moves that, and is found out only
/// where it may matter: most candidates cost too much either way.
struct Limit {
    value: f64,
    is_exact: bool,
}

/// The logarithm of a Hastings ratio counts no further than this: the way back is e^12 times as likely.
const MOST_RATIO: f64 = 12.0;

impl Limit {
    fn new(value: f64, setting: &Setting) -> Limit {
        Limit { value, is_exact: !setting.hastings }
    }

    /// Whether a cost is beyond it, for a proposal that `pool` has made of `ops`.
    fn is_below(&mut self, cost: f64, pool: &Pool, ops: &[Op], setting: &Setting) -> bool {
        if !self.is_exact && cost > self.value && cost <= self.value + MOST_RATIO / setting.cold {
            self.exact(pool, ops, setting);
        }
        cost > self.value
    }

    fn exact(&mut self, pool: &Pool, ops: &[Op], setting: &Setting) -> f64 {
        if !self.is_exact {
            self.value += pool.log_ratio(ops, &setting.rules).min(MOST_RATIO) / setting.cold;
            self.is_exact = true;
        }
        self.value
    }
}

enum Passed {
    /// It may be equal.
    Fine,
    /// It is known not to be.
    Refused,
    /// It breaks a rule of the verifier.
    Unsafe,
    /// It was refuted, and the tests have changed.
    Tested,
}

/// Puts a state among the `count` cheapest ones, unless it is there.
pub(crate) fn keep(kept: &mut Vec<Found>, found: &Found, count: usize) {
    if !kept.iter().any(|k| is_same(&k.with, &found.with)) {
        let at = kept.partition_point(|k| k.cost <= found.cost);
        kept.insert(at, found.clone());
        kept.truncate(count);
    }
}

/// Whether two sequences are the same code, whatever it was made from.
fn is_same(a: &[Op], b: &[Op]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.insn == b.insn && a.link == b.link)
}

/// Tests made from the facts alone; of a superblock, some for each exit that inputs were found for.
fn first_tests(w: &Window, seed: u64) -> Vec<Batch<LANES>> {
    let Some(superblock) = w.superblock else {
        let batch = |b: u64| {
            let inputs = std::array::from_fn(|l| Input::new(w, seed, b * LANES as u64 + l as u64));
            Batch::new(w, &inputs)
        };
        return (0..FIRST as u64).filter_map(batch).collect();
    };
    let mut by_exit: Vec<Vec<Input>> = vec![Vec::new(); superblock.exits.len()];
    for n in 0..DRAWN {
        let input = Input::new(w, seed, n);
        if let Some(e) = exit_of(w, superblock, &input) {
            by_exit[e].push(input);
        }
    }
    let batches = |inputs: &Vec<Input>| {
        let chunk = |some: &[Input]| Batch::new(w, &std::array::from_fn(|l| some[l % some.len()].clone()));
        inputs.chunks(LANES).take(FIRST).filter_map(chunk).collect::<Vec<_>>()
    };
    by_exit.iter().flat_map(batches).collect()
}

/// `best` with its side exits in the places in which they stand in `old`, and room before each.
fn spread(old: &[Op], best: &[Op]) -> Option<Vec<Op>> {
    let nop = Op::with_origin(NOP, old.first()?.origin);
    let mut ops: Vec<Op> = Vec::with_capacity(old.len());
    let mut places = (0..old.len()).filter(|i| is_side_exit(&old[*i].insn)).chain([old.len()]);
    let mut at = places.next()?;
    for op in best {
        if is_side_exit(&op.insn) {
            ops.resize(at, nop.clone());
            at = places.next()?;
        } else if ops.len() == at {
            return None;
        }
        ops.push(op.clone());
    }
    (ops.len() <= old.len()).then(|| {
        ops.resize(old.len(), nop);
        ops
    })
}

/// The operations without those that hold a place or set what nobody reads.
pub fn stripped(w: &Window, ops: &[Op]) -> Vec<Op> {
    let mut kept: Vec<Op> = Vec::with_capacity(ops.len());
    let mut look = |op: &Op, wanted: &mut RegSet| {
        let pure = op.insn.def().is_some() && !matches!(op.insn, Insn::Atomic { .. } | Insn::LoadAcquire { .. });
        if op.insn == NOP || (pure && op.insn.defs().intersect(*wanted).is_empty()) {
            return;
        }
        *wanted = wanted.minus(op.insn.defs()).union(op.insn.uses());
        kept.push(op.clone());
    };
    match w.superblock {
        Some(superblock) => superblock.backwards(ops, look),
        None => {
            let mut wanted: RegSet = w.live.regs;
            ops.iter().rev().for_each(|op| look(op, &mut wanted));
        }
    }
    kept.reverse();
    kept
}

fn fingerprint(ops: &[Op]) -> u64 {
    let mut h = FxHasher::default();
    for op in ops {
        op.insn.hash(&mut h);
        op.link.as_ref().map(|l| l.slot).hash(&mut h);
    }
    h.finish()
}
