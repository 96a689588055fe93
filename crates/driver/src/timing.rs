//! How long programs take in the running kernel, beside each other.
//!
//! All objects are loaded several times, the first one twice as often, and run by `BPF_PROG_TEST_RUN` on the same inputs with the same
//! map contents, nothing attached. In each round each has its turn, with an empty program of the same type among them, whose time is
//! taken off: the rest is the program's own. What times say is decided in [`Comparison`] and [`Call`]; the first object against its second
//! loads is the check that the method calls nothing a difference that is none.
//!
//! ```text
//! round 1:  A₁ B₁ A₁' ∅     round 2:  B₂ A₂' ∅ A₂     …      A₁, A₂: loads of the first object
//! ```
//!
//! Times are those that the kernel takes of its repetitions, whole nanoseconds: around the system call stand, for XDP, milliseconds in
//! which it puts the program into its dispatcher (`bpf_prog_change_xdp`, which waits for a grace period of RCU).
//!
//! A run begins when the one before has ended (`timing/serialized.rs`), where the kernel takes that; else, and on request, it begins while an
//! out-of-order core is still at work on another, and what an operation waits for does not show.
//!
//! Where the kernel lets this thread count the processor's cycles, those around each test run are counted, too, and the empty program's
//! are taken off likewise; no call is made of them.
//!
//! A test run repeats a program on the packet as it has left it. An input that is another one then (a header went, a lifetime ended) is
//! run once a system call.

mod awake;
mod chosen;
mod empty;
mod estimates;
mod report;
mod serialized;
mod spent;
mod statistics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bpf_isa::Costs;
use bpf_kernel::{Counter, Entry, Event, LoadedObject, ProgramType, ProgramVerdict};
use fastrand::Rng;

use crate::difftest::calls::Calls;
use crate::difftest::inputs::{context_alone, inputs as made};
use crate::difftest::maps::SharedMap;
use crate::difftest::scenario::{Loaded, OneCpu};
use crate::difftest::{Input, PairError, Random, Setup, why_not_run};

use crate::estimate::Estimate;
use crate::inputs;
use awake::Awake;
use chosen::{Chooser, Chosen};
pub use report::{Class, Facts, Pair, Program, Timed};
use spent::{Part, Spent};
pub use statistics::{Bounded, Call, Comparison, Summary};
use statistics::{ByLoad, Times};

/// How objects are timed.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Load every program as this type instead of what its section name says.
    pub program_type: Option<String>,
    /// Time these programs only; empty: all.
    pub only: Vec<String>,
    /// Time programs, too, that may call what is not known to be harmless in a test run.
    pub allow_effects: bool,
    /// Packets to take instead of made ones.
    pub packets: Option<Vec<Vec<u8>>>,
    /// What maps hold, by name, instead of made contents.
    pub maps: BTreeMap<String, Vec<Entry>>,
    /// Inputs to take instead of all that, by program, each with its own contents of maps ([`crate::inputs`]).
    pub given: Option<BTreeMap<String, Vec<crate::inputs::Input>>>,
    /// Seed of inputs, map contents and draws.
    pub seed: u64,
    /// How often each object is loaded. XDP programs are timed in twelve of the loads at most.
    pub loads: usize,
    /// Rounds for each load; of XDP a quarter, each sixteen times as long: its test runs cost milliseconds besides.
    pub rounds: usize,
    /// What the repetitions of one input take.
    pub turn: Duration,
    /// Have a run begin when the one before has ended, where that can be.
    pub serialized: bool,
    /// Inputs that are looked at to find classes.
    pub candidates: usize,
    /// Inputs that are taken.
    pub inputs: usize,
    /// Estimate times by this table, too, and compare every object with every other ([`Class::estimates`], [`Class::pairs`]).
    pub costs: Option<&'static Costs>,
    /// What is counted beside times, where the kernel lets it be: cycles, but for tests on machines without.
    pub counted: Event,
    /// When nothing further begins; a program of which less than two loads have had a round then is not timed.
    pub until: Option<Instant>,
}

impl Settings {
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            program_type: None,
            only: Vec::new(),
            allow_effects: false,
            packets: None,
            maps: BTreeMap::new(),
            given: None,
            seed: 1,
            loads: 24,
            rounds: 16,
            turn: Duration::from_micros(100),
            serialized: true,
            candidates: 256,
            inputs: 8,
            costs: None,
            counted: Event::Cycles,
            until: None,
        }
    }
}

/// Why objects cannot be timed.
#[derive(Debug, thiserror::Error)]
pub enum TimingError {
    /// One does not load.
    #[error("{}", .source.source)]
    Load {
        /// Which.
        object: usize,
        /// What the kernel said.
        source: PairError,
    },
    /// One cannot be read.
    #[error("its functions cannot be read")]
    Unreadable {
        /// Which.
        object: usize,
    },
    /// A map of the caller's does not exist, or does not take what it is to hold.
    #[error("{0}")]
    Maps(String),
}

/// Inputs of the caller's that are timed of one program, at most.
const GIVEN: usize = 24;

/// Times the programs of some objects: all that the first one has and the others, too.
///
/// `progress` is told the programs that are done and how many there are.
///
/// # Errors
/// If an object does not load, or maps do not take what they are to hold.
pub fn time(
    objects: &[&[u8]],
    settings: &Settings,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Program>, TimingError> {
    let setup = Setup {
        program_type: settings.program_type.clone(),
        only: if let [only] = &settings.only[..] { Some(only.clone()) } else { None },
        ..Setup::default()
    };
    let mut loads = Vec::with_capacity(objects.len());
    let mut calls = Vec::with_capacity(objects.len());
    for (object, bytes) in objects.iter().enumerate() {
        calls.push(Calls::of(bytes).ok_or(TimingError::Unreadable { object })?);
        loads.push(Load::of(bytes, &setup, settings).map_err(|source| TimingError::Load { object, source })?);
    }
    let load = |objects: &[&[u8]]| {
        // Each load of all objects, and of the first one again.
        let sides: Vec<&[u8]> = (0..settings.loads).flat_map(|_| objects.iter().copied().chain([objects[0]])).collect();
        Loaded::new(&sides, &setup, settings.until).map_err(|source| TimingError::Load { object: 0, source })
    };
    let copies = settings.serialized.then(|| {
        // Of some types the kernel takes no program that does nothing.
        let mut kinds: BTreeMap<ProgramType, bool> = BTreeMap::new();
        let programs = loads
            .iter()
            .flat_map(|load| &load.programs)
            .filter(|p| *kinds.entry(p.kind).or_insert_with(|| serialized::empty(p.kind).is_some()));
        let copies = serialized::copies(objects, &programs.map(|p| p.name.as_str()).collect())?;
        let bytes: Vec<&[u8]> = copies.objects.iter().map(Vec::as_slice).collect();
        let loaded = load(&bytes).ok()?;
        serialized::state(&loaded, 0).is_some().then_some((loaded, copies.programs))
    });
    let copies = copies.flatten();
    let (loaded, serialized) = match copies {
        Some(copies) => copies,
        None => (load(objects)?, BTreeSet::new()),
    };
    let programs: Vec<(String, ProgramType)> = loaded.programs(0).iter().map(|p| (p.name.clone(), p.kind)).collect();
    let is_wanted = |name: &String| settings.only.is_empty() || settings.only.contains(name);
    let programs: Vec<(String, ProgramType)> = programs.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let counter = Counter::open(settings.counted).ok();
    let contest =
        Contest { loaded, objects: objects.len(), bytes: objects, settings, loads, calls, serialized, counter };
    let _here = OneCpu::stay();
    let mut all = Vec::with_capacity(programs.len());
    for (i, (name, kind)) in programs.iter().enumerate() {
        progress(i, programs.len());
        all.push(contest.program(name, *kind)?);
    }
    progress(programs.len(), programs.len());
    Ok(all)
}

/// An object as it is, without anything that timing adds.
struct Load {
    /// The median of a few loads, in milliseconds.
    ms: f64,
    programs: Vec<ProgramVerdict>,
}

impl Load {
    fn of(bytes: &[u8], setup: &Setup, settings: &Settings) -> Result<Load, PairError> {
        const TIMES: usize = 3;
        let mut all = Vec::with_capacity(TIMES);
        let mut programs = Vec::new();
        for _ in 0..TIMES {
            let begin = Instant::now();
            let loaded = LoadedObject::load_for_runs(bytes, &setup.load_options(), settings.until);
            // Unloading is no part of it.
            let taken = begin.elapsed();
            programs = loaded.map_err(|source| PairError { second: false, source })?.programs().to_vec();
            all.push(taken.as_secs_f64() * 1e3);
        }
        all.sort_unstable_by(f64::total_cmp);
        Ok(Load { ms: all[TIMES / 2], programs })
    }
}

/// All that is loaded.
struct Contest<'a> {
    loaded: Loaded,
    objects: usize,
    bytes: &'a [&'a [u8]],
    settings: &'a Settings,
    loads: Vec<Load>,
    calls: Vec<Calls>,
    /// Programs that are loaded as copies that are serialized.
    serialized: BTreeSet<String>,
    /// Of this thread; `None`: the kernel counts nothing.
    counter: Option<Counter>,
}

impl Contest<'_> {
    /// Where a load of an object is; `object` may be one more than there are: the first one again.
    fn side(&self, load: usize, object: usize) -> usize {
        load * (self.objects + 1) + object
    }

    fn program(&self, name: &str, kind: ProgramType) -> Result<Program, TimingError> {
        let none = |why: &str| Ok(Program::skipped(name, kind, why.to_owned()));
        if let Some(why) = self.why_not(name, kind) {
            return Ok(Program::skipped(name, kind, why));
        }
        if let Some(given) = &self.settings.given {
            return self.on_given(name, kind, given.get(name).map_or(&[], Vec::as_slice));
        }
        let mut random = Random::new(self.settings.seed);
        let words: Vec<Vec<u8>> = self.calls.iter().flat_map(Calls::words).collect();
        let source = self.settings.packets.as_deref();
        let most = self.settings.candidates;
        let candidates = made(kind, &mut random, most.min(source.map_or(most, <[_]>::len)), source, &words);
        let contents = self.fill(&mut random, &candidates)?;
        let (chosen, differ) = self.chooser(name, kind).chosen(candidates);
        if chosen.is_empty() {
            return none("the kernel runs it on none of the inputs");
        }
        let Some(times) = self.times(name, kind, &chosen) else {
            let is_late = self.settings.is_late();
            return none(if is_late { "there was no time" } else { "a run failed that had succeeded before" });
        };
        let estimates = self.settings.costs.map(|costs| {
            estimates::of(
                self.bytes,
                name,
                &chosen.iter().map(|c| (&c.input, c.returns)).collect::<Vec<_>>(),
                &contents,
                costs,
            )
        });
        let estimates = estimates.unwrap_or_default();
        let classes = self.classes(&chosen, &times, &estimates);
        Ok(self.timed(name, kind, &chosen, classes, differ))
    }

    /// All inputs together, and by what is returned.
    fn classes(&self, chosen: &[Chosen], times: &[ByLoad<Spent>], estimates: &[Vec<Option<Estimate>>]) -> Vec<Class> {
        let mut rng = Rng::with_seed(self.settings.seed);
        let mut returns: Vec<u32> = chosen.iter().map(|c| c.returns).collect();
        returns.sort_unstable();
        returns.dedup();
        let mut classes = vec![self.class(None, chosen, times, estimates, &mut rng)];
        if returns.len() > 1 {
            classes.extend(returns.into_iter().map(|r| self.class(Some(r), chosen, times, estimates, &mut rng)));
        }
        classes
    }

    /// A program on inputs of the caller's, one after the other, each with its own contents of maps.
    fn on_given(&self, name: &str, kind: ProgramType, given: &[inputs::Input]) -> Result<Program, TimingError> {
        let program_type = self.settings.program_type.as_deref();
        // Of many as many as there is time for, from all over them.
        let step = given.len().div_ceil(GIVEN).max(1);
        let taken: Vec<inputs::Input> = given.iter().step_by(step).cloned().collect();
        let ready = inputs::filled(self.bytes[0], program_type, &BTreeMap::from([(name.to_owned(), taken)]));
        let Some(ready) = ready.get(name) else {
            return Ok(Program::skipped(name, kind, "it cannot be interpreted".to_owned()));
        };
        let (mut chosen, mut times, mut differ) = (Vec::new(), Vec::<ByLoad<Spent>>::new(), 0);
        for one in ready {
            let fillings: Vec<Vec<Entry>> = self.loaded.maps.iter().map(|m| m.holding(one)).collect();
            self.loaded.fill(&fillings).map_err(TimingError::Maps)?;
            let (one, others) = self.chooser(name, kind).chosen(vec![one.input.clone()]);
            differ += others;
            // What is looked at before has left something there.
            self.loaded.fill(&fillings).map_err(TimingError::Maps)?;
            let Some(of_one) = (!one.is_empty()).then(|| self.times(name, kind, &one)).flatten() else { continue };
            // Where there was no time for all loads of one, the others say more without it.
            if times.first().zip(of_one.first()).is_some_and(|(all, of_one)| of_one.len() < all.len()) {
                continue;
            }
            chosen.extend(one);
            match times.is_empty() {
                true => times = of_one,
                false => statistics::add(&mut times, of_one),
            }
        }
        if chosen.is_empty() {
            return Ok(Program::skipped(name, kind, "the kernel runs it on none of the inputs".to_owned()));
        }
        let classes = self.classes(&chosen, &times, &[]);
        Ok(self.timed(name, kind, &chosen, classes, differ))
    }

    fn chooser<'b>(&'b self, name: &'b str, kind: ProgramType) -> Chooser<'b> {
        Chooser {
            loaded: &self.loaded,
            objects: self.objects,
            name,
            kind,
            serialized: self.serialized.contains(name),
            most: self.settings.inputs,
            turn: self.settings.turn,
            until: self.settings.until,
        }
    }

    /// A program that was timed on these inputs.
    fn timed(&self, name: &str, kind: ProgramType, chosen: &[Chosen], classes: Vec<Class>, differ: usize) -> Program {
        Program {
            name: name.to_owned(),
            kind: kind.to_string(),
            skipped: None,
            serialized: chosen.iter().all(|c| c.goes_on.iter().all(|goes_on| *goes_on)),
            facts: self.facts(name),
            classes,
            differ,
        }
    }

    fn why_not(&self, name: &str, kind: ProgramType) -> Option<String> {
        // Such runs give no duration (`bpf_prog_test_run_raw_tp`, `bpf_prog_test_run_syscall`).
        if context_alone(kind) {
            return Some("the kernel tells no time of runs of such programs".to_owned());
        }
        for object in 0..self.objects {
            match self.loaded.programs(object).iter().find(|p| p.name == name) {
                None => return Some("not all objects have such a program".to_owned()),
                Some(p) if p.kind != kind => return Some(format!("it is {kind} here and {} there", p.kind)),
                Some(p) => {
                    let why = why_not_run(p, &self.calls[object], self.settings.allow_effects);
                    if why.is_some() {
                        return why;
                    }
                }
            }
        }
        None
    }

    fn rounds(&self, kind: ProgramType) -> usize {
        if kind == ProgramType::XDP { self.settings.rounds.div_ceil(4) } else { self.settings.rounds }
    }

    fn loads(&self, kind: ProgramType) -> usize {
        const OF_XDP: usize = 12;
        if kind == ProgramType::XDP { self.settings.loads.min(OF_XDP) } else { self.settings.loads }
    }

    fn facts(&self, name: &str) -> Vec<Facts> {
        let of = |object: usize| {
            let program = self.loads[object].programs.iter().find(|p| p.name == name);
            let info = program.and_then(|p| p.info.as_ref());
            Facts {
                slots: program.map_or(0, |p| p.slots),
                verified: info.map_or(0, |i| i.verified_insns),
                jited_bytes: info.map_or(0, |i| i.jited_bytes),
                load_ms: self.loads[object].ms,
            }
        };
        (0..self.objects).map(of).collect()
    }

    /// Gives all objects the same contents of maps, and returns them by the maps' names.
    fn fill(&self, random: &mut Random, inputs: &[Input]) -> Result<BTreeMap<String, Vec<Entry>>, TimingError> {
        let sample: Vec<Vec<u8>> = inputs.iter().take(16).map(|i| i.packet.clone()).collect();
        let given = &self.settings.maps;
        let own = self.loaded.maps.iter().map(|m| &m.name).filter(|name| *name != serialized::SECTION);
        let known: Vec<&String> = own.collect();
        if let Some(name) = given.keys().find(|name| !known.contains(name)) {
            return Err(TimingError::Maps(format!("map {name}: all objects must have one that can be filled")));
        }
        let of = |m: &SharedMap| {
            if m.name == serialized::SECTION {
                return m.initial.clone();
            }
            // Without contents of their own maps are made such as programs meet them.
            given.get(&m.name).cloned().unwrap_or_else(|| m.filling(random, &sample))
        };
        let fillings: Vec<Vec<Entry>> = self.loaded.maps.iter().map(of).collect();
        self.loaded.fill(&fillings).map_err(TimingError::Maps)?;
        Ok(self.loaded.maps.iter().map(|m| m.name.clone()).zip(fillings).collect())
    }

    /// By object (the first one again behind the last, then the empty programs, the second of which goes on behind its exit), load, round
    /// and input: what a run takes. `None`: a run failed, or the time was over before two loads had had a round.
    fn times(&self, name: &str, kind: ProgramType, chosen: &[Chosen]) -> Option<Vec<ByLoad<Spent>>> {
        let empties = [empty::empty(kind), serialized::empty(kind)];
        let contestants = self.objects + 1 + empties.len();
        let counter = self.counter.as_ref();
        let _awake = (kind == ProgramType::XDP).then(Awake::stay);
        let loads = self.loads(kind);
        let mut all = vec![vec![Vec::new(); loads]; contestants];
        let mut step = Duration::ZERO;
        // One round more than counts: the first warms caches and predictors.
        let rounds = 0..=self.rounds(kind);
        for (round, load) in rounds.flat_map(|round| (0..loads).map(move |load| (round, load))) {
            // The loads need not have been timed equally often.
            if self.settings.until.is_some_and(|until| Instant::now() + step > until) {
                match (round, load) {
                    (0, _) | (1, 0 | 1) => return None,
                    // Fewer loads than were to be timed, and at least two.
                    (1, _) => all.iter_mut().for_each(|loads| loads.truncate(load)),
                    _ => {}
                }
                break;
            }
            let begin = Instant::now();
            for turn in 0..contestants {
                // Nobody is always the first, or always behind the same one.
                let who = (turn + round + load) % contestants;
                let of_round = chosen.iter().map(|Chosen { input, turns, goes_on, .. }| {
                    let Some(way) = who.checked_sub(self.objects + 1) else {
                        return turns.mean(counter, |n| self.loaded.repeat(self.side(load, who), name, input, n));
                    };
                    // What no object needs is not run.
                    match &empties[way] {
                        Some(empty) if goes_on.iter().any(|goes_on| usize::from(*goes_on) == way) => {
                            turns.mean(counter, |n| empty.test_run(&input.packet, input.context.as_deref(), n))
                        }
                        _ => Some(Spent::NONE),
                    }
                });
                let of_round = of_round.collect::<Option<Vec<Spent>>>()?;
                if round > 0 {
                    all[who][load].push(of_round);
                }
            }
            step = begin.elapsed();
        }
        Some(all)
    }

    /// The times of inputs for which the first object returns this.
    fn class(
        &self,
        returns: Option<u32>,
        chosen: &[Chosen],
        times: &[ByLoad<Spent>],
        estimates: &[Vec<Option<Estimate>>],
        rng: &mut Rng,
    ) -> Class {
        let ns: Part = |spent| spent.ns;
        let counted: Part = |spent| spent.counted;
        let members: Vec<usize> =
            (0..chosen.len()).filter(|i| returns.is_none_or(|r| chosen[*i].returns == r)).collect();
        let mean = |part: Part, of_round: &[Spent]| {
            members.iter().map(|i| part(&of_round[*i])).sum::<f64>() / members.len() as f64
        };
        // The empty program's part in the same rounds.
        let empty = |who: usize, part: Part| -> Times {
            let object = if who == self.objects { 0 } else { who };
            let of = |i: &usize, load: usize, round: usize| {
                part(&times[self.objects + 1 + usize::from(chosen[*i].goes_on[object])][load][round][*i])
            };
            let of_round = |load, round| members.iter().map(|i| of(i, load, round)).sum::<f64>() / members.len() as f64;
            let of_load = |(load, rounds): (usize, &Vec<Vec<Spent>>)| {
                (0..rounds.len()).map(|round| of_round(load, round)).collect()
            };
            times[self.objects + 1].iter().enumerate().map(of_load).collect()
        };
        let net = |who: usize, part: Part| -> Times {
            let of_load = |(a, e): (&Vec<Vec<Spent>>, Vec<f64>)| {
                // The empty program's time of one round is as disturbed as any: the middle counts.
                let off = Summary::of(&vec![e]).middle;
                a.iter().map(|round| mean(part, round) - off).collect()
            };
            times[who].iter().zip(empty(who, part)).map(of_load).collect()
        };
        let first = net(0, ns);
        let timed = |who: usize, rng: &mut Rng| {
            let own = net(who, ns);
            let same = |value| Bounded { value, low: value, high: value };
            let comparison = if who == 0 {
                Comparison { ratio: Some(same(1.0)), difference_ns: same(0.0) }
            } else {
                statistics::compare(&own, &first, rng)
            };
            let cycles = Summary::of_known(&net(who, counted));
            Timed { ns: Summary::of(&own), cycles, comparison, call: statistics::call(&comparison) }
        };
        let beside = |to: usize, rng: &mut Rng| {
            let of = (to + 1..self.objects).filter(|_| self.settings.costs.is_some());
            let pair = |of: usize| {
                let comparison = statistics::compare(&net(of, ns), &net(to, ns), rng);
                Pair { of, to, comparison, call: statistics::call(&comparison) }
            };
            of.map(pair).collect::<Vec<Pair>>()
        };
        Class {
            pairs: (0..self.objects).flat_map(|to| beside(to, rng)).collect(),
            estimates: estimates.iter().map(|all| estimates::mean(members.iter().map(|i| all[*i]))).collect(),
            returns,
            inputs: members.len(),
            empty_ns: Summary::of(&empty(0, ns)).middle,
            objects: (0..self.objects).map(|who| timed(who, rng)).collect(),
            again: timed(self.objects, rng),
        }
    }
}
