//! Two objects in the running kernel: the same packets, the same map contents, the same results?
//!
//! This asks nobody in this project. Both objects are loaded (nothing is attached), every program that
//! the kernel can run on demand gets packets in *rounds*: before a round the maps of both are filled
//! alike, after each packet return value, packet and context are compared, after the round every map.
//!
//! # What no two runs have alike
//! The clock, random numbers, addresses, stack bytes that nobody wrote. Nothing is skipped for that: when two results differ, the round
//! up to that packet is played again several times, on freshly loaded objects, and it only is a difference
//! if the first object gives one and the same result every time and the second never that one (see
//! [`Scenario`]). Otherwise it is counted as *unsteady*. A round runs on one CPU, so that per-CPU values and
//! processor numbers are the same for both.
//!
//! # What a program may do meanwhile
//! A program is run only if everything it can call is known to be harmless in a test run, unless the caller
//! insists ([`Setup::allow_effects`]); and whoever calls this does so inside
//! [`bpf_kernel::in_private_network`].

pub(crate) mod calls;
mod harmless;
pub(crate) mod inputs;
pub(crate) mod maps;
mod poison;
pub(crate) mod scenario;
mod setup;
mod traffic;

use std::sync::Arc;
use std::time::Instant;

use bpf_kernel::{KernelError, ProgramVerdict};

use calls::Calls;
use scenario::{Aspect, Loaded, OneCpu, Open, Runnable, Seen};

pub use harmless::{Callee, harmless_in_test_run};
pub(crate) use inputs::runs_on_demand;
pub use inputs::{Filled, Input};
pub use scenario::Scenario;
pub use setup::{Furnish, PairError, Setup};
pub use traffic::{Random, packet};

/// Packets of a round on which a program that differs from run to run may do so just where the first object, run once more, does
/// not (one byte in 256 of a clock); the round goes on.
const CHANCES: usize = 4;

/// Two objects in the kernel.
pub struct Pair {
    bytes: [Vec<u8>; 2],
    setup: Setup,
    loaded: Loaded,
    programs: Vec<Runnable>,
    /// Programs that are not run, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// Maps that are neither filled nor compared.
    pub maps_left_alone: Vec<String>,
    words: Vec<Vec<u8>>,
    /// A program may lead to others by tail calls through maps that the object fills.
    tail_calls: bool,
    /// What is loaded has a state that no filling of maps resets.
    used: bool,
}

/// What one round found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Packets that both ran on.
    pub runs: u64,
    /// Packets that the kernel would not run the program on, either of them.
    pub refused: u64,
    /// Results that differ from run to run of one object already.
    pub unsteady: u64,
    /// Packets among `runs` on which the two differed, and did so no more when they were run again.
    pub once: u64,
    /// The first difference.
    pub difference: Option<Difference>,
    /// In words, a difference of which it could not be seen whether it lasts, and why.
    pub open: Option<String>,
}

impl Round {
    /// Goes on with another round of the same program.
    pub fn add(&mut self, next: Round) {
        self.runs += next.runs;
        self.refused += next.refused;
        self.unsteady += next.unsteady;
        self.once += next.once;
        self.difference = next.difference;
        self.open = self.open.take().or(next.open);
    }
}

/// An input on which the two do not do the same.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// Which program.
    pub program: String,
    /// Its number in the round; the ones before prepared the maps.
    pub number: usize,
    /// The packet, in hexadecimal digits.
    pub packet: String,
    /// The context, in hexadecimal digits, if one was passed in.
    pub context: Option<String>,
    /// In words: what differs, first and second.
    pub what: Vec<String>,
    /// All that is needed to see it again.
    #[serde(skip)]
    pub scenario: Scenario,
}

impl Pair {
    /// Loads both.
    ///
    /// # Errors
    /// Whatever keeps the kernel or libbpf from loading one of them.
    pub fn load(a: &[u8], b: &[u8], setup: Setup) -> Result<Pair, PairError> {
        let unreadable = |second| {
            move || {
                let reason = "its functions cannot be read".to_owned();
                PairError { second, source: KernelError::Open { reason } }
            }
        };
        let read = (Calls::of(a), Calls::of(b));
        // The first once more, where the clock or random numbers may make it differ from itself.
        let twice = [&read.0, &read.1].into_iter().flatten().any(Calls::any_volatile);
        let loaded = Loaded::new(&sides(a, b, twice), &setup, setup.load_until)?;
        let calls = [read.0.ok_or_else(unreadable(false))?, read.1.ok_or_else(unreadable(true))?];
        let mut skipped = Vec::new();
        let mut programs = Vec::new();
        for p in loaded.programs(0).iter().filter(|p| setup.only.as_ref().is_none_or(|only| *only == p.name)) {
            let other = loaded.programs(1).iter().find(|q| q.name == p.name);
            let why = match other {
                None => Some("the second object has no such program".to_owned()),
                Some(q) if q.kind != p.kind => Some(format!("it is {} here and {} there", p.kind, q.kind)),
                _ => calls.iter().find_map(|c| why_not_run(p, c, setup.allow_effects)),
            };
            match why {
                Some(why) => skipped.push((p.name.clone(), why)),
                None => {
                    let volatile = calls.iter().any(|c| c.volatile(&p.name));
                    programs.push(Runnable { name: p.name.clone(), kind: p.kind, volatile });
                }
            }
        }
        let is_wanted = |p: &&ProgramVerdict| setup.only.as_ref().is_none_or(|only| *only == p.name);
        let is_new = |p: &&ProgramVerdict| loaded.programs(0).iter().all(|q| q.name != p.name);
        let of_second = loaded.programs(1).iter().filter(is_wanted).filter(is_new);
        skipped.extend(of_second.map(|p| (p.name.clone(), "the first object has no such program".to_owned())));
        let maps_left_alone = loaded.left_alone.clone();
        let words = calls.iter().flat_map(Calls::words).collect();
        let tail_calls = calls.iter().any(Calls::fills_program_arrays);
        let bytes = [a.to_vec(), b.to_vec()];
        let used = false;
        Ok(Pair { bytes, setup, loaded, programs, skipped, maps_left_alone, words, tail_calls, used })
    }

    /// Names of the programs that can be run.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|p| p.name.as_str())
    }

    /// One round of at most `count` packets, taken from `source` if there is one.
    pub fn round(&mut self, program: &str, r: &mut Random, count: usize, source: Option<&[Vec<u8>]>) -> Round {
        let Some(p) = self.programs.iter().find(|p| p.name == program).cloned() else { return Round::default() };
        let _here = OneCpu::stay();
        if !self.is_fresh() {
            return Round { unsteady: 1, ..Round::default() };
        }
        let inputs = inputs::inputs(p.kind, r, count, source, &self.words);
        let sample: Vec<Vec<u8>> = inputs.iter().take(16).map(|i| i.packet.clone()).collect();
        let maps = self.loaded.maps.iter().map(|m| (m.name.clone(), m.filling(r, &sample))).collect();
        self.run_round(Scenario { program: p, inputs, maps, aspects: vec![] })
    }

    /// Rounds of one input each, on those that the caller has for this program ([`Setup::given`]), until there is a difference.
    pub fn on_given(&mut self, program: &str) -> Round {
        let Some(p) = self.programs.iter().find(|p| p.name == program).cloned() else { return Round::default() };
        let _here = OneCpu::stay();
        let given = Arc::clone(&self.setup.given);
        let mut all = Round::default();
        for filled in given.get(program).into_iter().flatten() {
            if self.setup.deadline.is_some_and(|d| Instant::now() >= d) {
                break;
            }
            if !self.is_fresh() {
                all.unsteady += 1;
                continue;
            }
            let maps = self.loaded.maps.iter().map(|m| (m.name.clone(), m.holding(filled))).collect();
            let inputs = vec![filled.input.clone()];
            all.add(self.run_round(Scenario { program: p.clone(), inputs, maps, aspects: vec![] }));
            if all.difference.is_some() || all.open.is_some() {
                break;
            }
        }
        all
    }

    /// Loads the objects anew if what is loaded has been used up; false if that cannot be done.
    fn is_fresh(&mut self) -> bool {
        if std::mem::take(&mut self.used) {
            let [a, b] = &self.bytes;
            let objects = sides(a, b, self.loaded.count() > 2);
            match Loaded::new(&objects, &self.setup, None) {
                Ok(fresh) => self.loaded = fresh,
                // What it holds from before would make the two differ.
                Err(_) => {
                    self.used = true;
                    return false;
                }
            }
        }
        self.used = self.loaded.keeps_state;
        true
    }

    fn run_round(&mut self, whole: Scenario) -> Round {
        let mut round = Round::default();
        let fillings: Vec<_> = whole.maps.iter().map(|(_, entries)| entries.clone()).collect();
        if self.loaded.fill(&fillings).is_err() {
            // The maps are of one shape, so it is the system that would not.
            round.unsteady += 1;
            return round;
        }
        // It is run along, so that what it does otherwise by itself is known.
        let again = (self.loaded.count() > 2 && whole.program.volatile).then_some(2);
        let mut chances = CHANCES;
        let mut played = Vec::new();
        for input in &whole.inputs {
            if self.setup.deadline.is_some_and(|d| Instant::now() >= d) {
                break;
            }
            let a = self.loaded.run(0, whole.program(), input);
            if scenario::is_too_short(whole.program.kind, &a) {
                round.refused += 1;
                continue;
            }
            let mut b = self.loaded.run(1, whole.program(), input);
            if let Some(again) = again {
                take_unsteady(&a, &mut b, &self.loaded.run(again, whole.program(), input));
            }
            played.push(input.clone());
            let what = disagreement(&a, &b);
            if !what.is_empty() {
                let scenario = Scenario { inputs: played.clone(), ..whole.clone() };
                let judged = self.judged(round.clone(), scenario, what);
                let is_chance = again.is_some() && judged.difference.is_none() && judged.open.is_none();
                if !is_chance || chances == 0 {
                    return judged;
                }
                chances -= 1;
                round.once += 1;
            }
            match a {
                Ok(_) => round.runs += 1,
                Err(_) => round.refused += 1,
            }
        }
        let what = self.loaded.maps_differ(again.is_some());
        if !what.is_empty() {
            let scenario = Scenario { inputs: played, ..whole };
            if let Some((beginning, what)) = self.first_map_difference(&scenario, again.is_some()) {
                let judged = self.judged(round.clone(), beginning, what);
                if judged.difference.is_some() || judged.open.is_some() {
                    return judged;
                }
            }
            // Perhaps it took all of it.
            return self.judged(round, scenario, what);
        }
        round
    }

    /// A round that ends in a disagreement, which is a difference if it lasts.
    fn judged(&mut self, round: Round, scenario: Scenario, what: Vec<(Aspect, String)>) -> Round {
        // Ring buffers and the like have a state that no filling resets, and the maps may have gone different ways.
        self.used = true;
        let [a, b] = &self.bytes;
        let words = what.iter().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join("; ");
        let scenario = Scenario { aspects: what.iter().map(|(aspect, _)| aspect.clone()).collect(), ..scenario };
        // The program by itself is loaded more quickly.
        let only = if self.tail_calls { self.setup.only.clone() } else { Some(scenario.program().to_owned()) };
        let aspects = match scenario.lasting(a, b, &Setup { only, ..self.setup.clone() }) {
            Ok(aspects) => aspects,
            Err(Open::Late) => return Round { open: Some(format!("{words}; the time was up")), ..round },
            Err(Open::NotRun(why)) => return Round { open: Some(format!("{words}; not run again: {why}")), ..round },
        };
        let unsteady = Round { unsteady: round.unsteady + 1, ..round.clone() };
        let Some(last) = scenario.inputs.last().filter(|_| !aspects.is_empty()) else { return unsteady };
        let difference = Difference {
            program: scenario.program().to_owned(),
            number: scenario.inputs.len() - 1,
            packet: hex::encode(&last.packet),
            context: last.context.as_deref().map(hex::encode),
            what: what.into_iter().filter(|(aspect, _)| aspects.contains(aspect)).map(|(_, words)| words).collect(),
            scenario: Scenario { aspects, ..scenario },
        };
        Round { difference: Some(difference), ..round }
    }

    /// The beginning of a round after which the maps differ first, with words for it.
    fn first_map_difference(&self, whole: &Scenario, steady: bool) -> Option<(Scenario, Vec<(Aspect, String)>)> {
        let fillings: Vec<_> = whole.maps.iter().map(|(_, entries)| entries.clone()).collect();
        self.loaded.fill(&fillings).ok()?;
        whole.inputs.iter().enumerate().find_map(|(i, input)| {
            for side in 0..self.loaded.count() {
                let _ = self.loaded.run(side, whole.program(), input);
            }
            let what = self.loaded.maps_differ(steady);
            let beginning = || Scenario { inputs: whole.inputs[..=i].to_vec(), ..whole.clone() };
            (!what.is_empty()).then(|| (beginning(), what))
        })
    }
}

/// What is loaded to compare two objects. `twice`: the first one once more.
fn sides<'a>(a: &'a [u8], b: &'a [u8], twice: bool) -> Vec<&'a [u8]> {
    if twice { vec![a, b, a] } else { vec![a, b] }
}

/// Makes of the second result what the first is, as far as the first object, run once more, gives something else.
fn take_unsteady(a: &Seen, b: &mut Seen, again: &Seen) {
    match (a, &mut *b, again) {
        (Ok(a), Ok(b), Ok(again)) => {
            if a.retval != again.retval {
                b.retval = a.retval;
            }
            for (a, b, again) in
                [(&a.data_out, &mut b.data_out, &again.data_out), (&a.ctx_out, &mut b.ctx_out, &again.ctx_out)]
            {
                match a.len() == again.len() {
                    true => maps::take_unsteady(a, b, again),
                    false => b.clone_from(a),
                }
            }
        }
        (Ok(_), _, Err(_)) | (Err(_), _, Ok(_)) => b.clone_from(a),
        (Err(e), _, Err(again)) if e != again => b.clone_from(a),
        _ => {}
    }
}

/// Why a program is not to be run, if so.
pub(crate) fn why_not_run(p: &ProgramVerdict, calls: &Calls, allow_effects: bool) -> Option<String> {
    match inputs::runs_on_demand(p.kind) {
        false => Some(format!("{} programs cannot be run on demand", p.kind)),
        true if allow_effects => None,
        true => calls.harmful(&p.name),
    }
}

/// In which way two results differ.
fn disagreement(a: &Seen, b: &Seen) -> Vec<(Aspect, String)> {
    let runs = |words: String| vec![(Aspect::Runs, words)];
    let (a, b) = match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(a), Err(b)) if a == b => return vec![],
        (Err(a), Err(b)) => return runs(format!("the kernel refuses to run it: error {a:?} and {b:?}")),
        (Ok(_), Err(e)) => return runs(format!("the kernel runs the first, and not the second: error {e:?}")),
        (Err(e), Ok(_)) => return runs(format!("the kernel runs the second, and not the first: error {e:?}")),
    };
    let mut what = Vec::new();
    if a.retval != b.retval {
        let words = format!("the return value: {} ({:#x}) and {} ({:#x})", a.retval, a.retval, b.retval, b.retval);
        what.push((Aspect::ReturnValue, words));
    }
    let bytes = |aspect, name, a: &[u8], b: &[u8]| bytes_differ(name, a, b).map(|words| (aspect, words));
    what.extend(bytes(Aspect::Packet, "the packet afterwards", &a.data_out, &b.data_out));
    what.extend(bytes(Aspect::Context, "the context afterwards", &a.ctx_out, &b.ctx_out));
    what
}

fn bytes_differ(name: &str, a: &[u8], b: &[u8]) -> Option<String> {
    if a == b {
        return None;
    }
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    Some(match at {
        Some(at) => {
            format!("{name}: byte {at} is {:02x} and {:02x} (of {} and {} bytes)", a[at], b[at], a.len(), b.len())
        }
        None => format!("{name}: {} and {} bytes", a.len(), b.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_kernel::RunResult;

    #[test]
    fn differences_are_told_in_words() {
        let result = |retval, data: &[u8]| {
            Ok(RunResult { retval, data_out: data.to_vec(), ctx_out: vec![], duration_ns: retval })
        };
        let disagreement =
            |a: &Seen, b: &Seen| -> Vec<String> { super::disagreement(a, b).into_iter().map(|w| w.1).collect() };
        assert!(disagreement(&result(1, &[1]), &result(1, &[1])).is_empty());
        let what = disagreement(&result(1, &[1, 2]), &result(2, &[1, 3]));
        assert_eq!(what[0], "the return value: 1 (0x1) and 2 (0x2)");
        assert_eq!(what[1], "the packet afterwards: byte 1 is 02 and 03 (of 2 and 2 bytes)");
        assert!(disagreement(&result(1, &[]), &Err(Some(22))).len() == 1);
        assert!(disagreement(&Err(Some(22)), &Err(Some(22))).is_empty());
    }
}
