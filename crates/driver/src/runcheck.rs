//! A second opinion of another kind: does the result do in this kernel what the original does?
//!
//! The proofs share one model of instructions, helpers and contexts. This check shares nothing with it: original and
//! result are loaded and run on the same inputs, as `bpf-opt difftest` does. If they differ, a proof was wrong. Then the
//! change to blame is found and taken back as the gate does it ([`crate::blame`]), the user gets the best result without
//! it, and is told loudly, with everything a bug report needs.
//!
//! Promises: only programs are run that can do no harm ([`crate::difftest::harmless_in_test_run`]), in a network
//! namespace of their own, with maps of their own; no input is tried when the time is up (a tenth of the whole), except
//! that a difference once seen is followed to its end; the result does not change unless a difference is found.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bpf_kernel::in_private_network;
use bpf_object::{Object, WriteOptions};
use bpf_passes::Settings;
use serde::Serialize;

use crate::DriverError;
use crate::blame::{self, Blamed, Context};
use crate::candidate::Candidate;
use crate::difftest::{Difference, Input, Pair, Random, Scenario, Setup, hex};
use crate::gate::{self, Gate};
use crate::optimize::is_program;
use crate::report::{Options, Report};
use crate::unit::Unit;

/// Part of the time limit that the check may take.
const SHARE: f64 = 0.1;
/// Inputs for each program.
const INPUTS: usize = 400;
/// Inputs between two fillings of the maps.
const ROUND: usize = 50;
/// Rounds of a program that end unsteady before it is left alone.
const UNSTEADY: u64 = 3;
/// Changes banned before whole functions are given up.
const PATIENCE: usize = 6;
/// Time for the passes to go on without a banned change, which comes when all time may be used up.
const AFTERMATH: Duration = Duration::from_secs(1);

/// How running original and result went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunCheck {
    /// `no difference`, `different: …`, or `skipped: …`.
    pub status: String,
    /// The programs that were run.
    pub programs: Vec<ProgramRuns>,
    /// Changed programs that were not run.
    pub skipped: Vec<NotRun>,
    /// Inputs that both forms of a program ran on, over all programs.
    pub inputs: u64,
    /// Differences found; what caused them is no longer in the result.
    pub differences: Vec<RunDifference>,
    /// Wall-clock milliseconds.
    pub milliseconds: u64,
}

/// How one program was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramRuns {
    /// Its name.
    pub name: String,
    /// Inputs both forms ran on.
    pub inputs: u64,
    /// Inputs on which the kernel would run neither.
    pub refused: u64,
    /// Rounds broken off because the original itself gives different results.
    pub unsteady_rounds: u64,
}

/// A changed program that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotRun {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A change that was proven equal and is not: a bug of bpf-opt, with all that is needed to report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunDifference {
    /// The program that was run.
    pub program: String,
    /// The function with the guilty change; `None` if no single function is to blame.
    pub function: Option<String>,
    /// The pass that proposed the guilty change; `None` if it is no single rewrite.
    pub change: Option<String>,
    /// What differs, original and result, in words.
    pub what: Vec<String>,
    /// Inputs that prepare the maps.
    pub inputs_before: Vec<HexInput>,
    /// The input that shows the difference.
    pub input: HexInput,
    /// What the maps hold before the first input; others are as the loader makes them.
    pub maps: Vec<MapContents>,
    /// The function as it was compiled.
    pub listing_original: Vec<String>,
    /// The function without the guilty change.
    pub listing_good: Vec<String>,
    /// The function with it.
    pub listing_bad: Vec<String>,
}

/// An input in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HexInput {
    /// The packet.
    pub packet: String,
    /// The context, if one is passed in.
    pub context: Option<String>,
}

/// Elements of one map in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapContents {
    /// The map's name.
    pub name: String,
    /// Keys and values.
    pub entries: Vec<(String, String)>,
}

/// Compares the original with results by running them.
pub(crate) struct RunJudge {
    original: Vec<u8>,
    setup: Setup,
    seed: u64,
    time: Duration,
    /// What is given to the kernel for a result: the result itself, or in tests something worse.
    given: Box<dyn Fn(&[u8]) -> Vec<u8> + Sync>,
}

/// What comparing gave.
#[derive(Default)]
pub(crate) struct Compared {
    pub(crate) programs: Vec<ProgramRuns>,
    pub(crate) skipped: Vec<NotRun>,
    pub(crate) difference: Option<Difference>,
}

/// What `settle` works on besides the candidates.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) unit: &'a Unit,
    pub(crate) settings: &'a Settings,
    pub(crate) write: &'a WriteOptions,
}

impl RunJudge {
    /// One for this original.
    pub(crate) fn new(original: &[u8], options: &Options) -> RunJudge {
        let setup = Setup { program_type: options.program_type.clone(), ..Setup::default() };
        let time = options.time_limit.mul_f64(SHARE);
        RunJudge { original: original.to_vec(), setup, seed: options.seed, time, given: Box::new(<[u8]>::to_vec) }
    }

    /// Runs the programs that `wanted` names, until the time is up or something differs.
    ///
    /// # Errors
    /// Why nothing could be run, in words.
    fn compare(&self, result: &[u8], wanted: &BTreeSet<&str>) -> Result<Compared, String> {
        let setup = Setup { deadline: Instant::now().checked_add(self.time), ..self.setup.clone() };
        let (old, new) = (&self.original, (self.given)(result));
        isolated(|| compare(old, &new, setup, self.seed, &|name| wanted.contains(name)))?
    }

    /// Whether `scenario` shows no difference between the original and `result`.
    fn passes(&self, result: &[u8], scenario: &Scenario) -> bool {
        let (old, new, options) = (&self.original, (self.given)(result), self.setup.load_options());
        isolated(|| !scenario.shows(old, &new, &options)).unwrap_or(true)
    }

    fn reduced(&self, result: &[u8], scenario: Scenario) -> Scenario {
        let (old, new, options) = (&self.original, (self.given)(result), self.setup.load_options());
        let kept = scenario.clone();
        isolated(|| scenario.reduced(old, &new, &options)).unwrap_or(kept)
    }
}

/// [`in_private_network`], with words for its refusal.
pub(crate) fn isolated<T: Send>(action: impl FnOnce() -> T + Send) -> Result<T, String> {
    in_private_network(action).map_err(|e| format!("there is no network namespace for the runs: {e}"))
}

/// Loads two objects and runs the programs that are wanted, in turns, until the setup's deadline, or until enough inputs
/// have been tried, or something differs. To be called in a private network.
pub(crate) fn compare(
    old: &[u8],
    new: &[u8],
    setup: Setup,
    seed: u64,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Compared, String> {
    let deadline = setup.deadline;
    let mut pair = Pair::load(old, new, setup).map_err(|e| e.to_string())?;
    let skipped = pair.skipped.iter().filter(|(name, _)| wanted(name));
    let skipped = skipped.map(|(name, reason)| NotRun { name: name.clone(), reason: reason.clone() }).collect();
    let names = pair.programs().filter(|name| wanted(name)).map(str::to_owned);
    let programs = names.map(|name| ProgramRuns { name, ..ProgramRuns::default() }).collect();
    let mut all = Compared { programs, skipped, difference: None };
    for round in 0..INPUTS.div_ceil(ROUND) {
        for (i, p) in all.programs.iter_mut().enumerate() {
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(all);
            }
            if p.unsteady_rounds >= UNSTEADY {
                continue;
            }
            let mut random = Random::of(seed, (i * INPUTS + round) as u64);
            let found = pair.round(&p.name, &mut random, ROUND, None);
            p.inputs += found.runs;
            p.refused += found.refused;
            p.unsteady_rounds += found.unsteady;
            if found.difference.is_some() {
                return Ok(Compared { difference: found.difference, ..all });
            }
        }
    }
    Ok(all)
}

/// Runs original and result, and takes back changes until they do the same.
pub(crate) fn settle(
    judge: &RunJudge,
    job: Job,
    object: &mut Object,
    candidates: &mut [Candidate],
    report: &mut Report,
) -> Result<RunCheck, DriverError> {
    let started = Instant::now();
    let mut check = RunCheck::default();
    if let Some(why) = job.gate.not_for_runs(judge.time) {
        check.status = format!("skipped: {why}");
        return Ok(check);
    }
    loop {
        let programs: Vec<String> = candidates
            .iter()
            .filter(|c| is_program(&job.unit.object, c.id))
            .filter(|c| !blame::suspects(job.unit, candidates, &c.report.name).is_empty())
            .map(|c| c.report.name.clone())
            .collect();
        if programs.is_empty() && check.differences.is_empty() {
            check.status = "skipped: no program was changed".to_owned();
            break;
        }
        let bytes = object.write(job.write)?.bytes;
        let compared = match judge.compare(&bytes, &programs.iter().map(String::as_str).collect()) {
            Ok(compared) => compared,
            Err(why) => {
                check.status = format!("skipped: {why}");
                break;
            }
        };
        check.take(compared.programs, compared.skipped);
        let Some(difference) = compared.difference else { break };
        let known = check.differences.len();
        take_back(judge, job, object, candidates, difference, &mut check)?;
        report.warnings.extend(check.differences[known..].iter().map(RunDifference::warning));
        // What took the place of the change may be refused.
        gate::settle(job.gate, job.unit, job.settings, object, candidates, job.write, report)?;
    }
    if check.status.is_empty() || !check.differences.is_empty() {
        check.status = match check.differences.len() {
            0 if check.inputs == 0 => "skipped: no program could be run".to_owned(),
            0 => "no difference".to_owned(),
            n => format!("different: {n} wrong change(s) found and taken back"),
        };
    }
    check.milliseconds = started.elapsed().as_millis() as u64;
    Ok(check)
}

/// Finds what makes the program differ, and takes it back.
fn take_back(
    judge: &RunJudge,
    job: Job,
    object: &mut Object,
    candidates: &mut [Candidate],
    difference: Difference,
    check: &mut RunCheck,
) -> Result<(), DriverError> {
    let Job { unit, write, .. } = job;
    let settings = &Settings { deadline: Instant::now().checked_add(AFTERMATH), ..job.settings.clone() };
    let cx = Context { unit, settings, write, why: "it did something else in this kernel after optimization" };
    let bytes = object.write(write)?.bytes;
    let Difference { program, what, scenario, .. } = difference;
    let scenario = judge.reduced(&bytes, scenario);
    let passes = |bytes: &[u8]| judge.passes(bytes, &scenario);
    let suspects = blame::suspects(unit, candidates, &program);
    let guilty = blame::convict(&passes, object, candidates, &suspects, write)?;
    let patient = check.differences.len() < PATIENCE;
    let blamed = match guilty {
        Some(i) => {
            let c = &mut candidates[i];
            let original = c.report.listing_before.clone();
            let mut blamed = Blamed { by: None, listings: [original, c.report.listing_after.clone()] };
            if patient {
                blamed = blame::mend(&passes, cx, object, c)?;
            }
            if !patient || !passes(&object.write(write)?.bytes) {
                blame::give_up(cx, object, c)?;
            }
            Some(blamed)
        }
        None => {
            for i in suspects {
                blame::give_up(cx, object, &mut candidates[i])?;
            }
            None
        }
    };
    let report = guilty.map(|i| &candidates[i].report);
    let [listing_good, listing_bad] = blamed.as_ref().map(|b| b.listings.clone()).unwrap_or_default();
    check.differences.push(RunDifference {
        program,
        function: report.map(|r| r.name.clone()),
        change: blamed.and_then(|b| b.by).map(str::to_owned),
        what,
        inputs_before: scenario.inputs.split_last().map_or(vec![], |(_, rest)| rest.iter().map(HexInput::of).collect()),
        input: scenario.inputs.last().map(HexInput::of).unwrap_or_default(),
        maps: scenario.maps.iter().map(MapContents::of).collect(),
        listing_original: report.map(|r| r.listing_before.clone()).unwrap_or_default(),
        listing_good,
        listing_bad,
    });
    Ok(())
}

impl RunCheck {
    /// Adds what a further comparison has seen.
    fn take(&mut self, programs: Vec<ProgramRuns>, skipped: Vec<NotRun>) {
        self.inputs += programs.iter().map(|p| p.inputs).sum::<u64>();
        for p in programs {
            match self.programs.iter_mut().find(|q| q.name == p.name) {
                Some(q) => {
                    q.inputs += p.inputs;
                    q.refused += p.refused;
                    q.unsteady_rounds += p.unsteady_rounds;
                }
                None => self.programs.push(p),
            }
        }
        self.skipped = skipped;
    }
}

impl RunDifference {
    /// What nobody is to overlook.
    fn warning(&self) -> String {
        let function = self.function.as_deref().unwrap_or("several functions");
        let change = match (&self.change, &self.function) {
            (Some(by), _) => format!("a rewrite by `{by}` in {function}"),
            (None, Some(_)) => format!("the new form of {function}"),
            (None, None) => "the new form of several functions".to_owned(),
        };
        let mut lines = vec![
            format!(
                "WRONG OPTIMIZATION of program {}: proven equal, but this kernel gives another result. The output is \
                 without it: {change} was taken back.",
                self.program
            ),
            "  This is a bug of bpf-opt; please report it with this message and the `run_check` of a `--json` report."
                .to_owned(),
        ];
        lines.extend(self.what.iter().map(|what| format!("  original and result: {what}")));
        lines.push(format!("  packet {}", self.input.packet));
        lines.extend(self.input.context.iter().map(|context| format!("  context {context}")));
        if !self.inputs_before.is_empty() {
            lines.push(format!("  after {} other inputs, which the report holds", self.inputs_before.len()));
        }
        lines.join("\n")
    }
}

impl HexInput {
    fn of(input: &Input) -> HexInput {
        HexInput { packet: hex(&input.packet), context: input.context.as_deref().map(hex) }
    }
}

impl MapContents {
    fn of((name, entries): &(String, Vec<bpf_kernel::Entry>)) -> MapContents {
        MapContents { name: name.clone(), entries: entries.iter().map(|(k, v)| (hex(k), hex(v))).collect() }
    }
}
