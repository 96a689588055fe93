//! Search after the passes: which windows, in which order, for how long.
//!
//! The work goes in rounds. In each, every open window of every function gets an effort, larger from
//! round to round; windows that are likely to pay come first. What is found is proven again where it
//! is applied, because the code around it may have changed; then the passes run over it, and windows
//! whose code or surroundings changed are open again. A round's result does not depend on how many
//! threads work on it.

use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bpf_facts::{Env, Facts, Live, Liveness, State};
use bpf_isa::Insn;
use bpf_passes::{Engine, Settings, View};
use bpf_program::{BlockId, Function, Op};
use bpf_prove::{Cache, Known, Limits, Options as ProofOptions, Rewrite, Verdict};
use bpf_search::{Answer, Budget, Found, Payoff, Portfolio, Progress, SETTINGS, Window};
use rustc_hash::{FxHashMap, FxHasher};

use crate::candidate::Candidate;
use crate::optimize::each_candidate;
use crate::pool;
use crate::report::{Observer, Options};
use crate::unit::Unit;

/// Operations of a window at most. Longer stretches are covered by overlapping windows.
const LONGEST: usize = 12;
/// Distance of overlapping windows.
const STRIDE: usize = 5;
/// Proposals for each open window, round by round. Windows that change start over.
const EFFORT: [u64; 4] = [16_384, 65_536, 262_144, 1_048_576];
/// Rounds at most: each but the last few improves something.
const MAX_ROUNDS: usize = 60;

/// What the search did, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SearchReport {
    /// Windows looked at, counted anew when they changed.
    pub windows: usize,
    /// Windows improved.
    pub improved: usize,
    /// Candidates tried.
    pub proposals: u64,
    /// Candidates that went to the prover.
    pub judged: u64,
    /// Candidates known to be refused without asking again.
    pub remembered: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// A stretch of code to look at.
struct Item {
    candidate: usize,
    block: BlockId,
    start: usize,
    end: usize,
    key: u64,
    class: u64,
    effort: u64,
}

/// What is known about a window from earlier rounds.
#[derive(Default)]
struct Memory {
    /// Proposals spent on a window, by its key.
    spent: FxHashMap<u64, u64>,
    /// Improvements and proposals of windows of a class.
    classes: FxHashMap<u64, (f64, f64)>,
    /// Which settings paid.
    payoff: Payoff,
}

impl Memory {
    /// Expected improvements per proposal.
    fn rate(&self, class: u64) -> f64 {
        // Without experience: one in a hundred windows at the first effort.
        let (gain, cost) = self.classes.get(&class).copied().unwrap_or_default();
        (gain + 0.01) / (cost + EFFORT[0] as f64)
    }
}

/// Improves the candidates until nothing is open, the time is over or the user wants to stop.
pub(crate) fn run(
    candidates: &mut Vec<Candidate>,
    unit: &Unit,
    wanted: &[bool],
    settings: &Settings,
    options: &Options,
    observer: &dyn Observer,
) -> SearchReport {
    let started = Instant::now();
    let mut report = SearchReport::default();
    let mut memory = Memory::default();
    for _ in 0..MAX_ROUNDS {
        if over(settings) {
            break;
        }
        let analyses: Vec<Option<Analysis>> = analyze(candidates, unit, wanted, options.jobs);
        let mut items = open_windows(&analyses, unit, settings, &memory);
        if items.is_empty() {
            break;
        }
        items.sort_by(|a, b| memory.rate(b.class).total_cmp(&memory.rate(a.class)).then(a.effort.cmp(&b.effort)));
        report.windows += items.len();
        let results = look(&items, &analyses, unit, settings, options, observer, &memory, started);
        let mut found: Vec<(Item, Found)> = Vec::new();
        let base = memory.payoff.clone();
        for (item, result) in items.into_iter().zip(results) {
            let Some((best, progress, payoff)) = result else { continue };
            *memory.spent.entry(item.key).or_default() += item.effort;
            let class = memory.classes.entry(item.class).or_default();
            class.0 += f64::from(u8::from(best.is_some()));
            class.1 += progress.proposals as f64;
            memory.payoff.learn(&payoff, &base);
            report.proposals += progress.proposals;
            report.judged += progress.judged;
            report.remembered += progress.remembered;
            found.extend(best.map(|b| (item, b)));
        }
        let applied = apply(candidates, analyses, found, unit, settings, options.jobs);
        report.improved += applied;
        if applied > 0 {
            let saved = candidates.iter().map(|c| c.report.slots_before.saturating_sub(c.report.slots_after)).sum();
            observer.saved(saved);
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    report
}

fn over(settings: &Settings) -> bool {
    settings.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
        || settings.deadline.is_some_and(|d| Instant::now() >= d)
}

/// A function with its facts.
struct Analysis {
    function: Function,
    facts: Facts,
    live: Liveness,
}

fn analyze(candidates: &[Candidate], unit: &Unit, wanted: &[bool], jobs: usize) -> Vec<Option<Analysis>> {
    let slots: Vec<Mutex<Option<Analysis>>> = candidates.iter().map(|_| Mutex::new(None)).collect();
    pool::each(jobs, candidates.iter().enumerate(), |(i, c)| {
        let Some(function) = c.function.clone().filter(|_| wanted[c.id] && c.report.untouched.is_none()) else {
            return;
        };
        let analysis = unit.with_env(|env| {
            let facts = Facts::of(&function, env);
            let live = Liveness::of(&function, env, &facts);
            Analysis { function, facts, live }
        });
        if let Ok(mut slot) = slots[i].lock() {
            *slot = Some(analysis);
        }
    });
    slots.into_iter().map(|s| s.into_inner().ok().flatten()).collect()
}

/// The windows on which more effort may be spent.
fn open_windows(analyses: &[Option<Analysis>], unit: &Unit, settings: &Settings, memory: &Memory) -> Vec<Item> {
    let mut items = Vec::new();
    for (candidate, analysis) in analyses.iter().enumerate() {
        let Some(a) = analysis else { continue };
        unit.with_env(|env| {
            for &block in &a.function.layout {
                let Some(view) = View::new(&a.function, block, &a.facts, &a.live, env, settings, false) else {
                    continue;
                };
                for (start, end) in stretches(view.ops) {
                    let key = key(&view.ops[start..end], &view.states[start], &view.live[end], candidate);
                    let spent = memory.spent.get(&key).copied().unwrap_or(0);
                    let mut total = 0;
                    let Some(effort) = EFFORT.iter().copied().find(|e| {
                        total += e;
                        total > spent
                    }) else {
                        continue;
                    };
                    items.push(Item { candidate, block, start, end, key, class: class(&view.ops[start..end]), effort });
                }
            }
        });
    }
    items
}

/// Overlapping windows between calls.
fn stretches(ops: &[Op]) -> Vec<(usize, usize)> {
    let strange = |o: &Op| {
        matches!(o.insn, Insn::Call(_) | Insn::CallX { .. } | Insn::LdAbs { .. } | Insn::LdInd { .. } | Insn::Opaque(_))
    };
    let mut out = Vec::new();
    let mut at = 0;
    for run in ops.split(strange) {
        let (start, end) = (at, at + run.len());
        at = end + 1;
        if run.len() < 2 {
            continue;
        }
        let mut s = start;
        loop {
            let e = (s + LONGEST).min(end);
            out.push((s, e));
            if e == end {
                break;
            }
            s = (s + STRIDE).min(end - LONGEST.min(end - start));
        }
    }
    out
}

/// Identity of a window with what matters around it.
fn key(ops: &[Op], before: &State, live: &Live, candidate: usize) -> u64 {
    let mut h = FxHasher::default();
    candidate.hash(&mut h);
    for o in ops {
        o.insn.hash(&mut h);
        o.link.hash(&mut h);
    }
    live.regs.hash(&mut h);
    live.stack.hash(&mut h);
    let read = ops.iter().rev().fold(live.regs, |l, o| l.minus(o.insn.defs()).union(o.insn.uses()));
    read.iter().for_each(|r| before.reg(r).hash(&mut h));
    h.finish()
}

/// Windows that are alike in what they are made of.
fn class(ops: &[Op]) -> u64 {
    let count = |f: fn(&Insn) -> bool| ops.iter().filter(|o| f(&o.insn)).count().min(3) as u64;
    let loads = count(|i| matches!(i, Insn::Load { .. }));
    let stores = count(|i| matches!(i, Insn::Store { .. }));
    let shifts = count(
        |i| matches!(i, Insn::Alu { op, .. } if matches!(op, bpf_isa::AluOp::Lsh | bpf_isa::AluOp::Rsh | bpf_isa::AluOp::Arsh)),
    );
    let moves = count(|i| matches!(i, Insn::Mov { .. }));
    loads | stores << 2 | shifts << 4 | moves << 6 | (ops.len() as u64 / 4) << 8
}

type Outcome = Option<(Option<Found>, Progress, Payoff)>;

/// Searches all windows; `None` for those not reached in time.
#[allow(clippy::too_many_arguments)]
fn look(
    items: &[Item],
    analyses: &[Option<Analysis>],
    unit: &Unit,
    settings: &Settings,
    options: &Options,
    observer: &dyn Observer,
    memory: &Memory,
    started: Instant,
) -> Vec<Outcome> {
    let results: Vec<Mutex<Outcome>> = items.iter().map(|_| Mutex::new(None)).collect();
    let open = AtomicUsize::new(items.len());
    let proposals = AtomicU64::new(0);
    pool::each(options.jobs, items.iter().zip(&results), |(item, result)| {
        if over(settings) {
            return;
        }
        let Some(a) = &analyses[item.candidate] else { return };
        let seed = options.seed ^ item.key;
        let search = || unit.with_env(|env| search_one(item, a, env, settings, seed, memory.payoff.clone()));
        // A searcher that breaks has found nothing.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(search)).ok().flatten();
        let left = open.fetch_sub(1, Ordering::Relaxed) - 1;
        if let Some((_, p, _)) = &outcome {
            let all = proposals.fetch_add(p.proposals, Ordering::Relaxed) + p.proposals;
            observer.searching(left, all as f64 / started.elapsed().as_secs_f64().max(1e-3));
        }
        if let Ok(mut r) = result.lock() {
            *r = outcome;
        }
    });
    results.into_iter().map(|r| r.into_inner().ok().flatten()).collect()
}

fn search_one(item: &Item, a: &Analysis, env: &Env, settings: &Settings, seed: u64, mut payoff: Payoff) -> Outcome {
    let view = View::new(&a.function, item.block, &a.facts, &a.live, env, settings, false)?;
    let window = Window {
        kind: a.function.kind,
        env,
        before: &view.states[item.start],
        old: &view.ops[item.start..item.end],
        live: &view.live[item.end],
        cpu: settings.cpu,
        size: settings.size,
        deadline: settings.deadline,
    };
    let known = Known { states: &view.states, live: &view.live };
    let limits = Limits { deadline: settings.deadline, ..settings.limits };
    let proof =
        ProofOptions { limits, strict_shared_memory: settings.strict_shared_memory, switches: settings.switches };
    let mut cache = Cache::new();
    let mut judge = |new: &[Op]| {
        let rewrite = rewrite(item, new.to_vec());
        match cache.prove(&a.function, env, &known, rewrite, &proof) {
            Ok(_) => Answer::Equal,
            Err((Verdict::Different(d), _)) => Answer::Different(Some(d)),
            Err(_) => Answer::Unknown,
        }
    };
    let Some(mut portfolio) = Portfolio::new(window, &SETTINGS, seed) else {
        return Some((None, Progress::default(), payoff));
    };
    let budget = Budget { proposals: item.effort, deadline: settings.deadline };
    let found = portfolio.run(budget, &mut payoff, &mut judge).cloned();
    Some((found, portfolio.progress(), payoff))
}

fn rewrite(item: &Item, with: Vec<Op>) -> Rewrite {
    Rewrite { block: item.block, start: item.start, end: item.end, with, term: None, by: "search" }
}

/// Applies what was found, each proven anew, then lets the passes run; the number of windows improved.
fn apply(
    candidates: &mut Vec<Candidate>,
    analyses: Vec<Option<Analysis>>,
    found: Vec<(Item, Found)>,
    unit: &Unit,
    settings: &Settings,
    jobs: usize,
) -> usize {
    let applied = AtomicUsize::new(0);
    let analyses = &analyses;
    let found = &found;
    each_candidate(candidates, unit, settings, jobs, |c| {
        // Candidates are in the order of their functions.
        let (Some(a), Some(f)) = (&analyses[c.id], &mut c.function) else { return };
        let mine: Vec<&(Item, Found)> = found.iter().filter(|(i, _)| i.candidate == c.id).collect();
        if mine.is_empty() {
            return;
        }
        let mut taken: Vec<(BlockId, usize, usize)> = Vec::new();
        let mut done = 0;
        unit.with_env(|env| {
            let mut engine = Engine::new(env, settings, &c.banned);
            for (item, best) in mine {
                // Overlapping windows: the first that was found counts; the others are looked at again.
                if taken.iter().any(|(b, s, e)| *b == item.block && item.start < *e && *s < item.end) {
                    continue;
                }
                let old = &a.function.block(item.block).ops[item.start..item.end];
                // Earlier changes in this block have moved it.
                let now = &f.block(item.block).ops;
                let Some(start) = now.windows(old.len()).position(|w| w == old) else { continue };
                let moved = Rewrite { start, end: start + old.len(), ..rewrite(item, best.with.clone()) };
                if engine.adopt(f, &a.facts, &a.live, moved) {
                    taken.push((item.block, item.start, item.end));
                    done += 1;
                }
            }
            c.report.proofs += engine.tally.proofs;
            c.report.sat_calls += engine.tally.sat_calls;
            c.log.append(&mut engine.log);
        });
        if done > 0 {
            applied.fetch_add(done, Ordering::Relaxed);
            c.run_passes(unit, settings);
        }
    });
    applied.load(Ordering::Relaxed)
}
