//! Lane `queries`: every verdict of our solver, of the samples before it and of its models, against Z3.
//!
//! Even units take a function of the corpus, optimize it, prove the result as a whole, and ask Z3 about
//! the queries that this led to, refused proposals included; a function with many queries is taken up
//! again when all others had their turn. Odd units, and even ones once the corpus is exhausted, make up
//! windows and changes of them, and terms that are equal without being the same node.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bpf_facts::{Env, Live};
use bpf_isa::{Cond, Insn, Width};
use bpf_passes::{Settings, optimize};
use bpf_program::Op;
use bpf_prove::context::Context;
use bpf_prove::smt::{Query, Recorder, Status};
use bpf_prove::superblock::SideExit;
use bpf_prove::{Limits, Options};
use bpf_testgen::random::Rng;
use bpf_testgen::windows::{maps, mutate, nearly, operation, scalar, scene, some_live, source};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::corpus::Corpus;
use crate::term_identities;
use crate::z3::{Z3, Z3Error};
use crate::{Lane, Tally};

/// What Z3 may take for one query.
const LIMIT: Duration = Duration::from_secs(1);
/// Nodes above which a query is only counted: reading it would take Z3 longer than its limit.
const LARGEST: usize = 20_000;
/// What the queries of one unit may take of Z3's time.
const SHARE: Duration = Duration::from_secs(1);
/// Queries of one function that one unit asks Z3 about.
const BATCH: usize = 40;
/// Windows that one unit makes up.
const WINDOWS: u64 = 6;
/// Pairs of equal terms that one unit makes up.
const PAIRS: u64 = 30;
/// What optimizing a large function may take.
const HARVEST: Duration = Duration::from_millis(1500);

/// The lane.
pub struct Queries {
    z3: Z3,
    corpus: Corpus,
    recorder: Recorder,
    harvest: Arc<Mutex<Harvest>>,
    /// Queries of functions that are not all asked yet.
    waiting: FxHashMap<usize, Vec<Asked>>,
    /// Functions whose queries have all been asked.
    exhausted: FxHashSet<usize>,
}

/// A query and what we said.
struct Asked {
    formula: String,
    status: Status,
    by: &'static str,
    /// Whether our model satisfies it.
    holds: bool,
}

#[derive(Default)]
struct Harvest {
    /// Texts seen in this run, by hash.
    seen: FxHashSet<u64>,
    asked: Vec<Asked>,
    repeated: u64,
    too_large: u64,
}

impl Harvest {
    fn see(&mut self, q: &Query) {
        if q.size() > LARGEST {
            self.too_large += 1;
            return;
        }
        let formula = q.formula();
        let mut h = FxHasher::default();
        (&formula, q.status).hash(&mut h);
        if !self.seen.insert(h.finish()) {
            self.repeated += 1;
            return;
        }
        self.asked.push(Asked { formula, status: q.status, by: q.by, holds: q.model_holds() });
    }
}

impl Queries {
    /// The lane over the usual objects.
    ///
    /// # Errors
    /// If there is no Z3.
    pub fn new() -> std::io::Result<Queries> {
        Queries::over(Corpus::usual())
    }

    /// The lane over these objects.
    ///
    /// # Errors
    /// If there is no Z3.
    pub fn over(corpus: Corpus) -> std::io::Result<Queries> {
        let harvest = Arc::new(Mutex::new(Harvest::default()));
        let sink = harvest.clone();
        let recorder = Recorder::new(move |q| {
            if let Ok(mut h) = sink.lock() {
                h.see(q);
            }
        });
        let (waiting, exhausted) = Default::default();
        Ok(Queries { z3: Z3::new(LIMIT)?, corpus, recorder, harvest, waiting, exhausted })
    }

    /// What was recorded since the last time.
    fn take(&self, tally: &mut Tally) -> Vec<Asked> {
        let Ok(mut h) = self.harvest.lock() else { return vec![] };
        tally.count("repeated", std::mem::take(&mut h.repeated));
        tally.count("too_large", std::mem::take(&mut h.too_large));
        std::mem::take(&mut h.asked)
    }

    /// The queries of optimizing and proving function `i`.
    fn function(&self, i: usize, tally: &mut Tally) -> Vec<Asked> {
        let Some((unit, original)) = self.corpus.function(i) else { return vec![] };
        let limits = |d: Duration, l: Limits| Limits { deadline: Instant::now().checked_add(d), ..l };
        let recorder = Some(self.recorder.clone());
        unit.with_env(|env| {
            let usual = Settings::default();
            let settings = Settings {
                limits: limits(HARVEST, usual.limits),
                deadline: Instant::now().checked_add(HARVEST),
                queries: recorder.clone(),
                ..usual
            };
            let optimized = optimize(original.clone(), env, &settings).into_current();
            let options = Options { limits: limits(HARVEST, Limits::default()), recorder, ..Options::default() };
            let _ = bpf_prove::functions(original, &optimized, env, &options);
        });
        tally.count("functions", 1);
        self.take(tally)
    }

    /// The queries of made-up windows.
    fn made_up(&self, seed: u64, index: u64, tally: &mut Tally) -> Vec<Asked> {
        let maps = maps();
        let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
        let mut rng = Rng::of(seed, index);
        for _ in 0..WINDOWS {
            let scene = scene(&mut rng, &env);
            let mut insns: Vec<Insn> = (0..1 + rng.below(8)).map(|_| operation(&mut rng)).collect();
            // Every third is a path through several blocks.
            let exits = if rng.chance(3) { 1 + rng.below(2) } else { 0 };
            for _ in 0..exits {
                let at = rng.below(insns.len() as u64 + 1) as usize;
                insns.insert(at, side_exit(&mut rng).insn());
            }
            let old: Vec<Op> = insns.iter().map(|i| Op::new(*i)).collect();
            for round in 0..4 {
                let gentle = round % 2 == 0;
                let mut changed = insns.clone();
                for _ in 0..1 + rng.below(3) {
                    // Changes that are right are what the solver has to work for.
                    let at = rng.below(changed.len() as u64) as usize;
                    if exits > 0 {
                        // Over a side exit, perhaps; a change must leave these alone.
                        let to = rng.below(changed.len() as u64) as usize;
                        let op = changed.remove(at);
                        changed.insert(to, op);
                        continue;
                    }
                    match nearly(&mut rng, changed[at]) {
                        Some(with) if gentle => drop(changed.splice(at..=at, with)),
                        _ => mutate(&mut rng, &mut changed),
                    }
                }
                let new: Vec<Op> = changed.iter().map(|i| Op::new(*i)).collect();
                let limits = Limits { conflicts: 1_000, work: 400_000, ..Limits::default() };
                let options = Options { limits, recorder: Some(self.recorder.clone()), ..Options::default() };
                let sides: Vec<Live> = (0..exits).map(|_| some_live(&mut rng)).collect();
                let (kind, state, live) = (scene.kind, &scene.state, &scene.live);
                let _ = bpf_prove::along(kind, &env, state, &old, &new, &sides, live, None, &options);
                tally.count(if exits > 0 { "paths" } else { "windows" }, 1);
            }
        }
        for _ in 0..PAIRS {
            let mut cx = Context::new(Limits { conflicts: 1_000, ..Limits::default() });
            cx.recorder = Some(self.recorder.clone());
            term_identities::ask(&mut cx, &mut rng);
        }
        self.take(tally)
    }

    fn batch(&mut self, asked: &[Asked], from: &str, seed: u64, index: u64, tally: &mut Tally) {
        let begun = self.z3.spent;
        for a in asked {
            // A few functions have hardly anything but hard queries.
            if self.z3.spent - begun > SHARE {
                tally.count("skipped", 1);
            } else {
                self.compare(a, from, seed, index, tally);
            }
        }
    }

    fn compare(&mut self, asked: &Asked, from: &str, seed: u64, index: u64, tally: &mut Tally) {
        let told = |what: String| {
            format!(
                "{what}, by the {}; a query of {from}\n(set-info :status {})\n{}(check-sat)",
                asked.by,
                asked.status.name(),
                asked.formula
            )
        };
        if !asked.holds {
            tally.disagree(seed, index, told("our assignment does not satisfy the query".into()));
        }
        if asked.status == Status::Unknown {
            tally.count("ours_unknown", 1);
            return;
        }
        match self.z3.ask(&asked.formula) {
            Ok(Status::Unknown) => tally.count("z3_unknown", 1),
            Ok(s) => {
                tally.count("queries", 1);
                tally.count(s.name(), 1);
                tally.count(asked.by, 1);
                if s != asked.status {
                    let what = format!("we say {}, Z3 says {}", asked.status.name(), s.name());
                    tally.disagree(seed, index, told(what));
                }
            }
            Err(Z3Error::OutOfTime | Z3Error::Ended) => tally.count("z3_unknown", 1),
            // Text that Z3 does not understand is a bug of ours.
            Err(why) => tally.disagree(seed, index, told(why.to_string())),
        }
    }
}

/// A side exit of a made-up superblock.
fn side_exit(rng: &mut Rng) -> SideExit {
    let width = rng.one_of(&[Width::W32, Width::W64]);
    let (cond, dst, src) = (rng.one_of(&Cond::ALL), scalar(rng), source(rng));
    SideExit { cond, width, dst, src, leaves_if: rng.below(2) == 0 }
}

impl Lane for Queries {
    fn name(&self) -> &'static str {
        "queries"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let n = self.corpus.len().max(1);
        let turn = usize::try_from(index / 2).unwrap_or(usize::MAX);
        let (i, start) = (turn % n, (turn / n).saturating_mul(BATCH));
        if index.is_multiple_of(2) && i < self.corpus.len() && !self.exhausted.contains(&i) {
            let all = self.waiting.remove(&i).unwrap_or_else(|| self.function(i, tally));
            let from = self.corpus.name(i);
            let end = all.len().min(start.saturating_add(BATCH));
            self.batch(all.get(start..end).unwrap_or_default(), &from, seed, index, tally);
            if all.len() > start.saturating_add(BATCH) {
                self.waiting.insert(i, all);
            } else {
                self.exhausted.insert(i);
            }
        } else {
            let all = self.made_up(seed, index, tally);
            self.batch(&all, "made-up windows", seed, index, tally);
        }
    }
}
