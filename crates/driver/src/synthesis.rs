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

use bpf_facts::{Analysis, Env};
use bpf_passes::{Engine, Settings, View, paths_of};
use bpf_program::{BlockId, Function, Op};
use bpf_prove::path;
use bpf_prove::{Cache, Limits, Options as ProofOptions, Points, Rewrite, Session, Verdict};
use bpf_search::canonical::{Problem, Renaming, canonical};
use bpf_search::enumerate::{Effort, enumerate};
use bpf_search::rules::{Answered, problem_text};
use bpf_search::store::Store;
use bpf_search::{Answer, Budget, Found, Payoff, Portfolio, Progress, SETTINGS, cost};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::candidate::Candidate;
use crate::optimize::each_candidate;
use crate::places::{Text, class, key, regions, stretches};
use crate::pool;
use crate::report::{Observer, Options};
use crate::unit::Unit;

/// Candidates for each open window, round by round. Windows that change start over.
const EFFORT: [u64; 4] = [16_384, 65_536, 262_144, 524_288];
/// Slots up to which the enumerator tries, at each of these.
const SHORT: [usize; 4] = [2, 3, 3, 4];
/// Steps of the enumerator for each candidate of the chain's budget, at most.
const STEPS: u64 = 8;
/// Rounds at most: each but the last few improves something.
const MAX_ROUNDS: usize = 60;
/// Effort of a window that is known to be as short as can be.
const SETTLED: u64 = u64::MAX;

/// What the search did, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SearchReport {
    /// Windows looked at, counted anew when they changed.
    pub windows: usize,
    /// Windows improved.
    pub improved: usize,
    /// Windows shown to be as short as the enumerator's instructions allow.
    pub settled: usize,
    /// Windows improved by the enumerator, by a chain, by a remembered rule.
    pub by_enumerator: usize,
    /// See `by_enumerator`.
    pub by_chain: usize,
    /// See `by_enumerator`.
    pub by_rule: usize,
    /// Windows whose answer was remembered, and those whose was not.
    pub rule_hits: usize,
    /// See `rule_hits`.
    pub rule_misses: usize,
    /// Candidates the chains tried.
    pub proposals: u64,
    /// Instructions the enumerator ran.
    pub steps: u64,
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
    /// The blocks after it, for a region ([`bpf_prove::path`]).
    path: Vec<BlockId>,
    start: usize,
    end: usize,
    /// What the window is, apart from accidents; `None`: it cannot be remembered.
    canonical: Option<(Problem, Renaming)>,
    key: u64,
    class: u64,
    /// Candidates to try now.
    effort: u64,
    /// Those and all before.
    total: u64,
    /// How often it has been looked at before.
    level: usize,
    /// What is remembered of it.
    rule: Option<Answered>,
}

/// What is known from earlier rounds.
struct Memory {
    /// Candidates tried on a window, by its key.
    spent: FxHashMap<u64, u64>,
    /// Improvements and candidates of windows of a class.
    classes: FxHashMap<u64, (f64, f64)>,
    /// Improvements and cost of the enumerator and of the chains.
    searchers: [(f64, f64); 2],
    /// Which settings paid.
    payoff: Payoff,
    /// Rules from this run and earlier ones.
    store: Store,
}

impl Memory {
    /// Expected improvements per proposal.
    fn rate(&self, class: u64) -> f64 {
        // Without experience: one in a hundred windows at the first effort.
        let (gain, cost) = self.classes.get(&class).copied().unwrap_or_default();
        (gain + 0.01) / (cost + EFFORT[0] as f64)
    }

    /// Steps of the enumerator for a budget of candidates: more where it has paid, and never nothing.
    fn steps(&self, effort: u64) -> u64 {
        let rate = |i: usize| (self.searchers[i].0 + 1.0) / (self.searchers[i].1 + 1e6);
        let share = rate(0) / (rate(0) + rate(1));
        (effort as f64 * STEPS as f64 * share.clamp(0.1, 1.0)) as u64
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
    notes: &mut Vec<String>,
) -> SearchReport {
    let started = Instant::now();
    let mut report = SearchReport::default();
    let store = options.cache.as_deref().map_or_else(Store::in_memory, Store::open);
    let (spent, classes) = Default::default();
    let mut memory = Memory { spent, classes, searchers: [(0.0, 0.0); 2], payoff: Payoff::default(), store };
    for _ in 0..MAX_ROUNDS {
        if over(settings) {
            break;
        }
        let analyses: Vec<Option<Analysed>> = analyze(candidates, unit, wanted, options.jobs);
        let mut items = open_windows(&analyses, unit, settings, &memory);
        if items.is_empty() {
            break;
        }
        items.sort_by(|a, b| memory.rate(b.class).total_cmp(&memory.rate(a.class)).then(a.total.cmp(&b.total)));
        report.windows += items.len();
        // Of windows with the same form one is searched; the others take what it found, as in a later run.
        let followers = followers(&items);
        let leaders: Vec<bool> = followers.iter().map(|f| !f).collect();
        let mut outcomes = Vec::new();
        for turn in [leaders, followers] {
            for (item, _) in items.iter_mut().zip(&turn).filter(|(_, now)| **now) {
                item.rule = item.canonical.as_ref().and_then(|(p, _)| memory.store.look_up(p));
            }
            let results = look(&items, &turn, &analyses, unit, settings, options, observer, &memory, started);
            let base = memory.payoff.clone();
            for (i, result) in results.into_iter().enumerate() {
                let Some(outcome) = result else { continue };
                note(&items[i], &outcome, &base, &mut memory, &mut report);
                outcomes.extend(outcome.found.map(|f| (i, f)));
            }
        }
        outcomes.sort_by_key(|(i, _)| *i);
        let found: Vec<(&Item, Found)> = outcomes.into_iter().map(|(i, f)| (&items[i], f)).collect();
        let applied = apply(candidates, &analyses, &found, unit, settings, options.jobs);
        report.improved += applied;
        if applied > 0 {
            observer.saved(candidates.iter().map(|c| c.report.slots_before.saturating_sub(c.report.slots_after)).sum());
        }
        memory.store.flush();
    }
    notes.append(&mut memory.store.notes);
    report.seconds = started.elapsed().as_secs_f64();
    report
}

/// Which items have the form of one before them.
fn followers(items: &[Item]) -> Vec<bool> {
    let mut seen = FxHashSet::default();
    items.iter().map(|i| i.canonical.as_ref().is_some_and(|(p, _)| !seen.insert((problem_text(p), i.total)))).collect()
}

/// Learns from what came of a window.
fn note(item: &Item, outcome: &Outcome, base: &Payoff, memory: &mut Memory, report: &mut SearchReport) {
    let gained = f64::from(u8::from(outcome.found.is_some()));
    memory.spent.insert(item.key, if outcome.settled { SETTLED } else { item.total });
    let class = memory.classes.entry(item.class).or_default();
    class.0 += gained;
    class.1 += item.effort as f64;
    *(if item.rule.is_some() { &mut report.rule_hits } else { &mut report.rule_misses }) += 1;
    report.settled += usize::from(outcome.settled && !outcome.remembered);
    match outcome.found.as_ref().map(|f| f.by) {
        Some(BY_RULE) => report.by_rule += 1,
        Some(BY_ENUMERATOR) => report.by_enumerator += 1,
        Some(_) => report.by_chain += 1,
        None => {}
    }
    report.proposals += outcome.progress.proposals;
    report.steps += outcome.steps;
    report.judged += outcome.progress.judged;
    report.remembered += outcome.progress.remembered;
    if outcome.remembered {
        return;
    }
    memory.payoff.learn(&outcome.payoff, base);
    let by_enumerator = outcome.found.as_ref().is_some_and(|f| f.by == BY_ENUMERATOR);
    memory.searchers[0].0 += gained * f64::from(u8::from(by_enumerator));
    memory.searchers[0].1 += outcome.steps as f64 / STEPS as f64;
    memory.searchers[1].0 += gained * f64::from(u8::from(!by_enumerator));
    memory.searchers[1].1 += outcome.progress.proposals as f64;
    if !outcome.complete {
        return;
    }
    let Some((problem, renaming)) = &item.canonical else { return };
    let with = outcome.found.as_ref().map(|f| renaming.to_canonical(&f.with));
    // What does not fit the form cannot be remembered, and that nothing was found would be wrong. A later run is to
    // search again, as this one did.
    if matches!(with, Some(None)) {
        memory.store.record_only(problem, Answered::default());
        return;
    }
    let by = outcome.found.as_ref().map_or("", |f| f.by).to_owned();
    let effort = item.total;
    let excluded = outcome.exhausted.and_then(|n| u32::try_from(n).ok());
    memory.store.record(problem, Answered { with: with.flatten(), by, effort, excluded });
}

fn over(settings: &Settings) -> bool {
    settings.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
        || settings.deadline.is_some_and(|d| Instant::now() >= d)
}

/// A function with its facts. What is judged by them is proven again where it is applied.
struct Analysed {
    function: Function,
    analysis: Analysis,
}

impl Analysed {
    /// What is known where an item stands.
    fn points(&self, block: BlockId, path: &[BlockId], env: &Env) -> Option<Points> {
        match path.is_empty() {
            true => Points::of_block(&self.function, block, &self.analysis, env),
            false => Points::of_path(&self.function, block, path, &self.analysis, env),
        }
    }
}

fn analyze(candidates: &[Candidate], unit: &Unit, wanted: &[bool], jobs: usize) -> Vec<Option<Analysed>> {
    let slots: Vec<Mutex<Option<Analysed>>> = candidates.iter().map(|_| Mutex::new(None)).collect();
    pool::each(jobs, candidates.iter().enumerate(), |(i, c)| {
        let Some(function) = c.function().filter(|_| wanted[c.id] && c.report.untouched.is_none()) else {
            return;
        };
        let function = function.clone();
        let analysis = unit.with_env(|env| Analysis::of(&function, env));
        if let Ok(mut slot) = slots[i].lock() {
            *slot = Some(Analysed { function, analysis });
        }
    });
    slots.into_iter().map(|s| s.into_inner().ok().flatten()).collect()
}

/// The windows on which more effort may be spent.
fn open_windows(analyses: &[Option<Analysed>], unit: &Unit, settings: &Settings, memory: &Memory) -> Vec<Item> {
    let mut items = Vec::new();
    for (candidate, analysis) in analyses.iter().enumerate() {
        let Some(a) = analysis else { continue };
        unit.with_env(|env| {
            let mut add = |view: &View, (start, end): (usize, usize)| {
                let text = Text::new(view, start, end);
                let window = text.window(view, start, settings);
                let key = key(&window, candidate);
                let spent = memory.spent.get(&key).copied().unwrap_or(0);
                let mut total = 0;
                let next = EFFORT.iter().enumerate().find_map(|(level, effort)| {
                    total += effort;
                    (total > spent).then_some((level, *effort))
                });
                let Some((level, effort)) = next else { return };
                let canonical = canonical(&window);
                let class = class(window.old);
                let (block, path) = (view.block, view.path.to_vec());
                items.push(Item {
                    candidate,
                    block,
                    path,
                    start,
                    end,
                    canonical,
                    key,
                    class,
                    effort,
                    total,
                    level,
                    rule: None,
                });
            };
            for &block in &a.function.layout {
                let Some(points) = a.points(block, &[], env) else { continue };
                let view = View::new(&a.function, &points, env, settings);
                stretches(view.ops).into_iter().for_each(|s| add(&view, s));
            }
            let mut seen = FxHashSet::default();
            for (block, path) in paths_of(&a.function) {
                let Some(points) = a.points(block, &path, env) else { continue };
                let view = View::new(&a.function, &points, env, settings);
                // Paths that fork have their beginning in common.
                for (start, end) in regions(view.ops) {
                    let blocks = path::jumps(&view.ops[..end]);
                    if seen.insert((block, path[..blocks].to_vec(), start, end)) {
                        add(&view, (start, end));
                    }
                }
            }
        });
    }
    items
}

/// What came of a window.
struct Outcome {
    found: Option<Found>,
    /// The answer was remembered.
    remembered: bool,
    /// Nothing shorter exists among the enumerator's instructions.
    settled: bool,
    /// The effort was spent in full.
    complete: bool,
    /// No replacement of so many slots exists among the enumerator's instructions.
    exhausted: Option<usize>,
    steps: u64,
    progress: Progress,
    payoff: Payoff,
}

/// Searches the windows whose turn it is; `None` for the others and for those not reached in time.
#[allow(clippy::too_many_arguments)]
fn look(
    items: &[Item],
    turn: &[bool],
    analyses: &[Option<Analysed>],
    unit: &Unit,
    settings: &Settings,
    options: &Options,
    observer: &dyn Observer,
    memory: &Memory,
    started: Instant,
) -> Vec<Option<Outcome>> {
    let results: Vec<Mutex<Option<Outcome>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let open = AtomicUsize::new(turn.iter().filter(|t| **t).count());
    let proposals = AtomicU64::new(0);
    let mine = items.iter().zip(&results).zip(turn).filter(|(_, now)| **now).map(|(pair, _)| pair);
    pool::each(options.jobs, mine, |(item, result)| {
        if over(settings) {
            return;
        }
        let Some(a) = &analyses[item.candidate] else { return };
        let search = || {
            let mut outcome = unit.with_env(|env| search_one(item, a, env, settings, options.seed, memory))?;
            // As the rule made of it would give it, down to the lines of source.
            if let (Some(f), Some((_, renaming))) = (&mut outcome.found, &item.canonical)
                && let Some(with) = renaming.to_canonical(&f.with).and_then(|c| renaming.to_window(&c))
            {
                f.with = with;
            }
            Some(outcome)
        };
        // A searcher that breaks has found nothing.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(search)).ok().flatten();
        let left = open.fetch_sub(1, Ordering::Relaxed) - 1;
        if let Some(o) = &outcome {
            let all = proposals.fetch_add(o.progress.proposals, Ordering::Relaxed) + o.progress.proposals;
            observer.searching(left, all as f64 / started.elapsed().as_secs_f64().max(1e-3));
        }
        if let Ok(mut r) = result.lock() {
            *r = outcome;
        }
    });
    results.into_iter().map(|r| r.into_inner().ok().flatten()).collect()
}

fn search_one(
    item: &Item,
    a: &Analysed,
    env: &Env,
    settings: &Settings,
    seed: u64,
    memory: &Memory,
) -> Option<Outcome> {
    let points = a.points(item.block, &item.path, env)?;
    let view = View::new(&a.function, &points, env, settings);
    let text = Text::new(&view, item.start, item.end);
    let window = text.window(&view, item.start, settings);
    let known = view.known();
    let limits = Limits { deadline: settings.deadline, ..settings.limits };
    let proof =
        ProofOptions { limits, strict_shared_memory: settings.strict_shared_memory, switches: settings.switches };
    let mut cache = Cache::new();
    let mut judge = |new: &[Op]| match cache.ask(&a.function, env, &known, &rewrite(item, new.to_vec()), &proof) {
        Ok(_) => Answer::Equal,
        Err((Verdict::Different(d), _)) => Answer::Different(Some(d)),
        Err(_) => Answer::Unknown,
    };
    let mut out = Outcome {
        found: None,
        remembered: false,
        settled: false,
        complete: true,
        exhausted: None,
        steps: 0,
        progress: Progress::default(),
        payoff: memory.payoff.clone(),
    };
    if let (Some(rule), Some((_, renaming))) = (&item.rule, &item.canonical) {
        // The rule says what a search would find with this effort, and saves it.
        let slots = |ops: &[Op]| ops.iter().map(|o| o.insn.slots()).sum::<usize>();
        let best = slots(rule.with.as_deref().unwrap_or(window.old));
        let settled = settings.size && rule.excluded.is_some_and(|n| n as usize + 1 >= best);
        let known = |out: Outcome| Some(Outcome { remembered: true, settled, ..out });
        match &rule.with {
            Some(with) if rule.effort <= item.total => {
                let instance = renaming.to_window(with);
                if let Some(with) = instance
                    && matches!(judge(&with), Answer::Equal)
                {
                    let cost = cost::of(&with, settings.size, cost::latency);
                    out.found = Some(Found { with, cost, by: BY_RULE });
                    return known(out);
                }
            }
            // Not with this effort yet: then the run would go another way than the one that found it.
            Some(_) => return Some(Outcome { remembered: true, ..out }),
            None if settled || rule.effort >= item.total => return known(out),
            None => {}
        }
    }
    // Regions are for the chains alone.
    let steps = if window.region.is_some() { 0 } else { memory.steps(item.effort) };
    let effort = Effort { slots: SHORT[item.level.min(SHORT.len() - 1)], steps };
    let short = match window.region {
        Some(_) => bpf_search::enumerate::Outcome::default(),
        None => enumerate(&window, &mut judge, cost::latency, effort),
    };
    out.steps = short.steps;
    out.exhausted = short.exhausted_to;
    let slots: usize = window.old.iter().map(|o| o.insn.slots()).sum();
    let excluded = short.exhausted_to.map_or(0, |n| n + 1);
    match short.found {
        // It is the shortest: lengths are tried in their order.
        Some(f) if settings.size => {
            out.settled = f.with.iter().map(|o| o.insn.slots()).sum::<usize>() <= excluded;
            out.found = Some(Found { by: BY_ENUMERATOR, ..f });
            return Some(out);
        }
        found => out.found = found.map(|f| Found { by: BY_ENUMERATOR, ..f }),
    }
    if settings.size && excluded >= slots {
        out.settled = true;
        return Some(out);
    }
    // A seed that depends on what the window is, not on where it stands.
    let mut h = FxHasher::default();
    (seed, item.total).hash(&mut h);
    match &item.canonical {
        Some((p, _)) => problem_text(p).hash(&mut h),
        None => window.old.iter().for_each(|o| o.insn.hash(&mut h)),
    }
    let Some(mut portfolio) = Portfolio::new(window, &SETTINGS, h.finish()) else { return Some(out) };
    let budget = Budget { proposals: item.effort, deadline: settings.deadline };
    let found = portfolio.run(budget, &mut out.payoff, &mut judge).cloned();
    out.progress = portfolio.progress();
    out.complete = out.progress.proposals >= item.effort;
    if let Some(f) = found
        && out.found.as_ref().is_none_or(|e| f.cost < e.cost)
    {
        out.found = Some(f);
    }
    Some(out)
}

/// Who found something.
const BY_RULE: &str = "rule";
/// See [`BY_RULE`].
const BY_ENUMERATOR: &str = "enumerator";

fn rewrite(item: &Item, with: Vec<Op>) -> Rewrite {
    let path = item.path.clone();
    Rewrite { block: item.block, path, start: item.start, end: item.end, with, term: None, by: "search" }
}

/// Applies what was found, each proven anew, then lets the passes run; the number of windows improved.
fn apply(
    candidates: &mut Vec<Candidate>,
    analyses: &[Option<Analysed>],
    found: &[(&Item, Found)],
    unit: &Unit,
    settings: &Settings,
    jobs: usize,
) -> usize {
    let applied = AtomicUsize::new(0);
    each_candidate(candidates, unit, settings, jobs, |c| {
        // Candidates are in the order of their functions.
        let Some(a) = &analyses[c.id] else { return };
        let mine: Vec<&(&Item, Found)> = found.iter().filter(|(i, _)| i.candidate == c.id).collect();
        if mine.is_empty() {
            return;
        }
        let mut taken: Vec<(BlockId, usize, usize)> = Vec::new();
        // Blocks of regions that were changed: what is known about them is no longer true.
        let mut stale: FxHashSet<BlockId> = FxHashSet::default();
        let mut done = 0;
        unit.with_env(|env| {
            let Some(derivation) = c.derivation.take() else { return };
            let mut session = Session::new(derivation, env);
            session.analyze();
            let mut engine = Engine::new(settings, &c.banned);
            for (item, best) in mine {
                let mut blocks = std::iter::once(&item.block).chain(&item.path);
                if blocks.any(|b| stale.contains(b)) {
                    continue;
                }
                // Overlapping windows: the first that was found counts; the others are looked at again.
                let straight = item.path.is_empty();
                if straight && taken.iter().any(|(b, s, e)| *b == item.block && item.start < *e && *s < item.end) {
                    continue;
                }
                let all = path::operations(&a.function, item.block, &item.path);
                let now = path::operations(session.function(), item.block, &item.path);
                let (Some(all), Some(now)) = (all, now) else { continue };
                let old = &all[item.start..item.end];
                // Earlier changes in this block have moved it.
                let Some(start) = now.windows(old.len()).position(|w| w == old) else { continue };
                let moved = Rewrite { start, end: start + old.len(), ..rewrite(item, best.with.clone()) };
                if engine.adopt(&mut session, moved) {
                    if straight {
                        taken.push((item.block, item.start, item.end));
                    } else {
                        stale.insert(item.block);
                        stale.extend(&item.path);
                    }
                    done += 1;
                }
            }
            c.report.proofs += engine.tally.proofs;
            c.report.sat_calls += engine.tally.sat_calls;
            c.derivation = Some(session.finish());
        });
        if done > 0 {
            applied.fetch_add(done, Ordering::Relaxed);
            c.run_passes(unit, settings);
        }
    });
    applied.load(Ordering::Relaxed)
}
