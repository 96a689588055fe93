//! A second opinion of another kind: does the result do in this kernel what the original does?
//!
//! The proofs share one model of instructions, helpers and contexts. This check shares nothing with it: original and
//! result are loaded and run on the same inputs, as `bpf-opt difftest` does. If they differ, a proof was wrong. Then the
//! change to blame is found and taken back as the gate does it ([`crate::blame`]), the user gets the best result without
//! it, and is told loudly, with everything a bug report needs.
//!
//! Promises: only programs are run that can do no harm ([`crate::difftest::harmless_in_test_run`]), in a network
//! namespace of their own, with maps of their own; nothing is run when the time is up (a tenth of the whole); a difference
//! of which it is not known by then whether it lasts costs the program all its changes. The result does not change unless
//! a difference is found, or the kernel refuses a program of it that it takes of the original.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf_kernel::{LoadOptions, LoadVerdict, Loader, ObjectVerdict, ProgramVerdict, in_private_network, load_object};
use bpf_object::Object;
use bpf_passes::Settings;

use crate::blame::{self, Context};
use crate::candidate::Candidate;
use crate::difftest::calls::Calls;
use crate::difftest::{Difference, Pair, Random, Scenario, Setup, runs_on_demand, why_not_run};
use crate::error::DriverError;
use crate::gate::{self, Gate, Job};
use crate::inputs::filled;
use crate::module::is_program;
use crate::options::Options;
use crate::plan::RUNS;
use crate::report::{HexInput, MapContents, NotRun, ProgramRuns, Report, RunCheck, RunDifference};

/// Part of the check's time in which inputs are tried. The rest is kept for seeing whether a difference lasts.
const TRYING: f64 = 0.6;
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

/// Compares the original with results by running them.
pub(crate) struct RunJudge {
    original: Vec<u8>,
    setup: Setup,
    seed: u64,
    time: Duration,
    /// When the check has to be at its end.
    until: Option<Instant>,
    /// What is given to the kernel for a result: the result itself, or in tests something worse.
    given: Given,
}

/// From the bytes of a result to those that the kernel gets.
type Given = Box<dyn Fn(&[u8]) -> Vec<u8> + Sync>;

/// What comparing gave.
#[derive(Default)]
pub(crate) struct Compared {
    pub(crate) programs: Vec<ProgramRuns>,
    pub(crate) skipped: Vec<NotRun>,
    /// A program that the kernel takes of the original and refuses of the result, with its words: what the gate is for.
    pub(crate) refused: Option<NotRun>,
    pub(crate) difference: Option<Difference>,
    /// A program that did something else once, and it could not be seen whether it always does.
    pub(crate) open: Option<NotRun>,
}

impl RunJudge {
    /// One for this original.
    pub(crate) fn new(original: &[u8], options: &Options, until: Option<Instant>) -> RunJudge {
        let program_type = options.program_type.clone();
        let given = options.traffic.as_ref().and_then(|traffic| traffic.inputs.as_ref());
        let given = given.map(|inputs| filled(original, program_type.as_deref(), inputs)).unwrap_or_default();
        let setup = Setup { program_type, given: Arc::new(given), ..Setup::default() };
        let time = options.time_limit.mul_f64(RUNS);
        let given = Box::new(<[u8]>::to_vec);
        RunJudge { original: original.to_vec(), setup, seed: options.seed, time, until, given }
    }

    /// The programs that may be run, and the others: known before anything is loaded.
    fn sorted_out(&self, programs: &[String], accepted: &[&ProgramVerdict]) -> (Vec<String>, Vec<NotRun>) {
        let (mut may, mut may_not) = (vec![], vec![]);
        let calls = Calls::of(&self.original);
        for name in programs {
            let why = match (accepted.iter().find(|p| p.name == *name), &calls) {
                (Some(p), Some(calls)) => why_not_run(p, calls, self.setup.allow_effects),
                _ => Some("its functions cannot be read".to_owned()),
            };
            match why {
                None => may.push(name.clone()),
                Some(reason) => may_not.push(NotRun { name: name.clone(), reason }),
            }
        }
        (may, may_not)
    }

    /// Runs these programs until the time is up or something differs. `whole`: the kernel takes all programs of the
    /// original; else each of them is loaded alone, because nothing ends the load of one that takes long to verify.
    fn compare(&self, result: &[u8], programs: &[String], whole: bool) -> Compared {
        let now = Instant::now();
        let until = self.until.map(|until| until.max(now));
        let deadline = now.checked_add(self.time.mul_f64(TRYING)).or(until);
        let setup = Setup { deadline: deadline.min(until.or(deadline)), patience: until, ..self.setup.clone() };
        let (old, new) = (&self.original, (self.given)(result));
        let run = || match whole {
            true => compare(old, &new, &setup, self.seed, programs),
            false => one_by_one(old, &new, &setup, self.seed, programs, Duration::ZERO),
        };
        isolated(run).unwrap_or_else(|why| Compared::none(programs, &why))
    }

    /// Whether `scenario` shows no difference between the original and `result`; `None` if it could not be seen.
    fn passes(&self, result: &[u8], scenario: &Scenario) -> Option<bool> {
        let (old, new, setup) = (&self.original, (self.given)(result), self.setup_for(scenario));
        isolated(|| scenario.still_shows(old, &new, &setup)).ok().flatten().map(|shows| !shows)
    }

    /// One program is enough, and quicker to load.
    fn setup_for(&self, scenario: &Scenario) -> Setup {
        Setup { only: Some(scenario.program().to_owned()), ..self.setup.clone() }
    }

    fn reduced(&self, result: &[u8], scenario: Scenario) -> Scenario {
        let (old, new, setup) = (&self.original, (self.given)(result), self.setup_for(&scenario));
        let kept = scenario.clone();
        isolated(|| scenario.reduced(old, &new, &setup)).unwrap_or(kept)
    }
}

/// [`in_private_network`], with words for its refusal.
pub(crate) fn isolated<T: Send>(action: impl FnOnce() -> T + Send) -> Result<T, String> {
    in_private_network(action).map_err(|e| format!("there is no network namespace for the runs: {e}"))
}

impl Compared {
    /// Nothing was run, for this reason.
    fn none(programs: &[String], why: &str) -> Compared {
        let not_run = |name: &String| NotRun { name: name.clone(), reason: why.to_owned() };
        Compared { skipped: programs.iter().map(not_run).collect(), ..Compared::default() }
    }
}

/// Why a program was not run.
const NO_TIME_TO_LOAD: &str = "there is no time to load it";

/// Loads two objects and runs these programs, in turns, until the setup's deadline, or until enough inputs have been
/// tried, or something differs. To be called in a private network.
pub(crate) fn compare(old: &[u8], new: &[u8], setup: &Setup, seed: u64, programs: &[String]) -> Compared {
    let started = Instant::now();
    match Pair::load(old, new, setup.clone()) {
        // With large maps, a round takes about as long as loading.
        Ok(pair) => run(pair, setup.deadline, started.elapsed() / 2, seed, programs),
        Err(_) if is_over(setup.load_until, Duration::ZERO) => Compared::none(programs, NO_TIME_TO_LOAD),
        Err(e) if programs.len() == 1 && setup.only.is_some() => {
            let refused = programs.iter().filter(|_| e.second).find_map(|name| refused(old, new, setup, name));
            Compared { refused, ..Compared::none(programs, &why_not_loaded(&e.to_string())) }
        }
        // Perhaps each of them loads; which makes the maps anew each time.
        Err(_) => one_by_one(old, new, setup, seed, programs, started.elapsed()),
    }
}

/// Why a program does not load alone, in the words of libbpf, if these are for others than who wrote libbpf.
fn why_not_loaded(words: &str) -> String {
    match words.contains("failed to initialize slot") {
        true => "it can only be loaded with the programs that a map of its object is filled with".to_owned(),
        false => words.to_owned(),
    }
}

/// The same with each program alone in its objects. `longest`: how long loading one has taken at most.
fn one_by_one(
    old: &[u8],
    new: &[u8],
    setup: &Setup,
    seed: u64,
    programs: &[String],
    mut longest: Duration,
) -> Compared {
    let mut all = Compared::default();
    for (i, name) in programs.iter().enumerate() {
        let setup = Setup { only: Some(name.clone()), ..setup.clone() };
        let name = std::slice::from_ref(name);
        let began = Instant::now();
        let one = match is_over(setup.deadline, longest) {
            true => Compared::none(name, NO_TIME_TO_LOAD),
            false => compare(old, new, &setup, seed.wrapping_add(i as u64), name),
        };
        if one.programs.is_empty() {
            longest = longest.max(began.elapsed());
        }
        all.programs.extend(one.programs);
        all.skipped.extend(one.skipped);
        (all.difference, all.refused, all.open) = (one.difference, one.refused, one.open);
        if all.difference.is_some() || all.refused.is_some() || all.open.is_some() {
            break;
        }
    }
    all
}

/// The verifier's words on a program of the second object, if it has looked at it and refused it, and takes the first's;
/// or libbpf's, if the loader that the gate asks says something else: whoever loads the result asks libbpf.
fn refused(old: &[u8], new: &[u8], setup: &Setup, name: &str) -> Option<NotRun> {
    let options = LoadOptions { program_type: setup.program_type.clone(), only: None };
    let mut loader = Loader::new(options.clone()).ok()?;
    let ours = |loader: &mut Loader, bytes: &[u8]| loader.judge(bytes, |program, _| program == name, None).ok();
    let of = |object: Option<ObjectVerdict>| object?.program(name).map(|p| p.verdict.clone());
    let refuses = |verdict: &LoadVerdict| matches!(verdict, LoadVerdict::Rejected { .. });
    let verdict = match of(ours(&mut loader, new)).filter(refuses) {
        Some(verdict) => {
            of(ours(&mut loader, old)).filter(LoadVerdict::is_accepted)?;
            verdict
        }
        None => {
            let alone = LoadOptions { only: Some(name.to_owned()), ..options };
            let verdict = of(load_object(new, &alone).ok()).filter(refuses)?;
            of(load_object(old, &alone).ok()).filter(LoadVerdict::is_accepted)?;
            verdict
        }
    };
    Some(NotRun { name: name.to_owned(), reason: verdict.reason().to_owned() })
}

fn run(mut pair: Pair, deadline: Option<Instant>, mut longest: Duration, seed: u64, programs: &[String]) -> Compared {
    let skipped = pair.skipped.iter().filter(|(name, _)| programs.contains(name));
    let skipped = skipped.map(|(name, reason)| NotRun { name: name.clone(), reason: reason.clone() }).collect();
    let names = pair.programs().map(str::to_owned).filter(|name| programs.contains(name));
    let programs = names.map(|name| ProgramRuns { name, ..ProgramRuns::default() }).collect();
    let mut all = Compared { programs, skipped, ..Compared::default() };
    for round in 0..=INPUTS.div_ceil(ROUND) {
        for (i, p) in all.programs.iter_mut().enumerate().filter(|(_, p)| p.unsteady_rounds < UNSTEADY) {
            if is_over(deadline, longest) {
                return all;
            }
            let started = Instant::now();
            // First those that were made to reach something.
            let found = match round {
                0 => pair.on_given(&p.name),
                _ => pair.round(&p.name, &mut Random::of(seed, (i * INPUTS + round - 1) as u64), ROUND, None),
            };
            longest = longest.max(started.elapsed());
            p.inputs += found.runs;
            p.refused += found.refused;
            p.unsteady_rounds += found.unsteady;
            p.differed_once += found.once;
            let open = found.open.map(|reason| NotRun { name: p.name.clone(), reason });
            if found.difference.is_some() || open.is_some() {
                return Compared { difference: found.difference, open, ..all };
            }
        }
    }
    all
}

/// Whether there is no time for something that takes so long.
fn is_over(deadline: Option<Instant>, takes: Duration) -> bool {
    deadline.is_some_and(|d| Instant::now() + takes >= d)
}

/// Whether the kernel runs any program of the original on demand.
pub(crate) fn any_runs(gate: &Gate) -> bool {
    gate.accepted().iter().any(|p| runs_on_demand(p.kind))
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
    let accepted = job.gate.accepted();
    let mut known: Option<Difference> = None;
    let mut refused: Vec<String> = Vec::new();
    // Programs given up because of runs of which not enough could be seen.
    let mut open: Vec<NotRun> = Vec::new();
    loop {
        let programs: Vec<String> = candidates
            .iter()
            .filter(|c| is_program(&job.module.object, c.id))
            .filter(|c| accepted.iter().any(|p| p.name == c.report.name))
            .filter(|c| !blame::suspects(job.module, candidates, &c.report.name).is_empty())
            .map(|c| c.report.name.clone())
            .collect();
        if programs.is_empty() {
            // Nothing of it is left to blame, or there never was.
            let changed = candidates.iter().any(|c| c.body.is_some());
            check.status = match changed && check.differences.is_empty() {
                false if !open.is_empty() => OPEN,
                true => "skipped: no program that was changed can be run: their symbols are local, or they do not load",
                false => "skipped: no program was changed",
            }
            .to_owned();
            break;
        }
        let bytes = object.write(job.write)?.bytes;
        let (programs, skipped) = judge.sorted_out(&programs, &accepted);
        check.skipped = skipped;
        if programs.is_empty() {
            break;
        }
        // The passes may have found the same again in another place.
        let again = known.take().filter(|d: &Difference| judge.passes(&bytes, &d.scenario) != Some(true));
        let difference = match again {
            Some(difference) => difference,
            None => {
                let compared = judge.compare(&bytes, &programs, job.gate.accepts_all());
                check.take(compared.programs, compared.skipped);
                if let Some(NotRun { name, reason }) = compared.refused {
                    let why = "this kernel refuses it after optimization";
                    let cx =
                        Context { module: job.module, settings: job.settings, write: job.write, why, go_on: false };
                    for i in blame::suspects(job.module, candidates, &name) {
                        blame::give_up(cx, object, &mut candidates[i])?;
                    }
                    report.warn(format!(
                        "THE KERNEL REFUSES program {name} as it was optimized, and the gate has not seen it: {reason}. The \
                         program is what it was. This is a bug of bpf-opt; please report it with this message."
                    ));
                    refused.push(name);
                    gate::settle(job, object, candidates, report)?;
                    continue;
                }
                if let Some(NotRun { name, reason }) = compared.open {
                    let why = "it did something else in a run, and it could not be seen whether it always does";
                    let cx =
                        Context { module: job.module, settings: job.settings, write: job.write, why, go_on: false };
                    for i in blame::suspects(job.module, candidates, &name) {
                        blame::give_up(cx, object, &mut candidates[i])?;
                    }
                    open.push(NotRun { name, reason: format!("{why}: {reason}") });
                    gate::settle(job, object, candidates, report)?;
                    continue;
                }
                let Some(found) = compared.difference else { break };
                Difference { scenario: judge.reduced(&bytes, found.scenario.clone()), ..found }
            }
        };
        let patient = check.differences.len() < PATIENCE;
        let wrong = take_back(judge, job, object, candidates, &difference, patient)?;
        report.warn(wrong.warning());
        check.differences.push(wrong);
        known = Some(difference);
        // What took the place of the change may be refused.
        gate::settle(job, object, candidates, report)?;
    }
    if check.status.is_empty() || !check.differences.is_empty() {
        check.status = match check.differences.len() {
            0 if check.inputs == 0 => check.why_nothing().to_owned(),
            0 => "no difference".to_owned(),
            n => format!("different: {n} wrong change(s) found and taken back"),
        };
    }
    if !refused.is_empty() && check.differences.is_empty() {
        check.status = format!("refused: all changes taken back of {}", refused.join(", "));
    }
    check.skipped.extend(open);
    check.milliseconds = started.elapsed().as_millis() as u64;
    Ok(check)
}

/// What became of a check that ended with nothing left to run.
const OPEN: &str = "skipped: it could not be seen whether what differed always does; such programs are as they were";

/// Finds what makes the program differ, and takes it back: one change if one may be patient, else whole functions.
fn take_back(
    judge: &RunJudge,
    job: Job,
    object: &mut Object,
    candidates: &mut [Candidate],
    difference: &Difference,
    patient: bool,
) -> Result<RunDifference, DriverError> {
    let Job { module, write, .. } = job;
    let aftermath = Instant::now().checked_add(AFTERMATH);
    let settings = &Settings { deadline: judge.until.or(aftermath).min(aftermath), ..job.settings.clone() };
    let cx = Context {
        module,
        settings,
        write,
        why: "it did something else in this kernel after optimization",
        go_on: true,
    };
    let Difference { program, what, scenario, .. } = difference;
    let passes = |_: &Object, bytes: &[u8]| {
        if is_over(judge.until, Duration::ZERO) { None } else { judge.passes(bytes, scenario) }
    };
    let suspects = blame::suspects(module, candidates, program);
    let guilty = blame::convict(&passes, object, candidates, &suspects, write)?;
    let mut change = None;
    let mut listings = [vec![], vec![]];
    match guilty {
        Some(i) if patient => {
            let blamed = blame::mend(&passes, cx, object, &mut candidates[i])?;
            (change, listings) = (blamed.by, blamed.listings);
        }
        Some(i) => {
            let report = &candidates[i].report;
            listings = [report.listing_before.clone(), report.listing_after.clone()];
            blame::give_up(cx, object, &mut candidates[i])?;
        }
        None => {
            for i in suspects {
                blame::give_up(cx, object, &mut candidates[i])?;
            }
        }
    }
    let report = guilty.map(|i| &candidates[i].report);
    let [listing_good, listing_bad] = listings;
    Ok(RunDifference {
        program: program.clone(),
        function: report.map(|r| r.name.clone()),
        change: change.map(str::to_owned),
        what: what.clone(),
        inputs_before: scenario.inputs.split_last().map_or(vec![], |(_, rest)| rest.iter().map(HexInput::of).collect()),
        input: scenario.inputs.last().map(HexInput::of).unwrap_or_default(),
        maps: scenario.maps.iter().map(MapContents::of).collect(),
        listing_original: report.map(|r| r.listing_before.clone()).unwrap_or_default(),
        listing_good,
        listing_bad,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;
    use bpf_object::WriteOptions;

    const OBJECT: &[u8] = include_bytes!("../../../examples/xdp_count.o");
    /// `r2 = *(u16 *)(r7 + 12)`, which merging two loads of bytes makes.
    const MERGED: [u8; 8] = [0x69, 0x72, 12, 0, 0, 0, 0, 0];
    /// The same from two bytes before.
    const WRONG: [u8; 8] = [0x69, 0x72, 10, 0, 0, 0, 0, 0];

    /// Whether programs may be loaded and run here; says so if not.
    fn kernel() -> bool {
        bpf_kernel::testing::permitted() && bpf_kernel::testing::available(isolated(|| ())).is_some()
    }

    fn has(bytes: &[u8], insn: [u8; 8]) -> bool {
        bytes.chunks_exact(8).any(|slot| slot == insn)
    }

    /// Every `from` in the object becomes `to`.
    fn replaced(bytes: &[u8], from: [u8; 8], to: [u8; 8]) -> Vec<u8> {
        bytes.chunks(8).flat_map(|slot| if *slot == from { to.to_vec() } else { slot.to_vec() }).collect()
    }

    /// Optimizes the example and compares it by a judge that is given `given` for a result.
    fn settled(given: impl Fn(&[u8]) -> Vec<u8> + Sync + 'static) -> (Object, Vec<Candidate>, RunCheck, Report) {
        let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let settings = Settings::default();
        let (mut candidates, mut object) = crate::candidate::after_passes(&module, &settings);
        let write = WriteOptions { keep_debug: false };
        let options = Options::default();
        let gate = Gate::new(OBJECT, &module, &options, Instant::now());
        let judge = RunJudge { given: Box::new(given), ..RunJudge::new(OBJECT, &options, None) };
        let job = gate.job(&module, &settings, &write);
        let mut report = Report::default();
        let check = settle(&judge, job, &mut object, &mut candidates, &mut report).expect("it settles");
        (object, candidates, check, report)
    }

    fn written(object: &Object) -> Vec<u8> {
        object.write(&WriteOptions::default()).expect("it is written").bytes
    }

    #[test]
    fn a_right_result_is_run_and_kept() {
        if !kernel() {
            return;
        }
        let (object, candidates, check, report) = settled(<[u8]>::to_vec);
        assert_eq!((check.status.as_str(), check.inputs), ("no difference", INPUTS as u64), "{check:?}");
        assert!(has(&written(&object), MERGED), "the example no longer tempts the optimizer");
        assert!(candidates[0].banned.is_empty() && report.warnings.is_empty());
    }

    #[test]
    fn a_wrong_rewrite_is_found_by_running_taken_back_and_reported() {
        if !kernel() {
            return;
        }
        let (object, candidates, check, report) = settled(|bytes| replaced(bytes, MERGED, WRONG));
        let first = &check.differences[0];
        assert_eq!((first.program.as_str(), first.change.as_deref()), ("xdp_count", Some("loads")), "{check:?}");
        assert!(!has(&written(&object), MERGED));
        let c = &candidates[0];
        assert!(
            c.report.untouched.is_none() && c.report.slots_after < c.report.slots_before,
            "all was given up: {check:#?}"
        );
        assert_eq!(c.banned.len(), check.differences.len());
        // What a bug report needs: an input, the change, all listings.
        assert!(first.input.packet.len() >= 28 && first.inputs_before.is_empty(), "{first:?}");
        assert_ne!(first.listing_good, first.listing_bad);
        assert_eq!(first.listing_original.len(), 67);
        assert!(report.warnings[0].starts_with("WRONG OPTIMIZATION of program xdp_count"), "{:?}", report.warnings);
        assert!(report.warnings[0].contains(&first.input.packet));
        assert!(check.status.starts_with("different"), "{}", check.status);
    }

    #[test]
    fn a_result_that_the_kernel_refuses_and_the_gate_has_not_seen_is_taken_back() {
        if !kernel() {
            return;
        }
        // Behind all that was asked for of the packet.
        const OUTSIDE: [u8; 8] = [0x69, 0x72, 0, 0x70, 0, 0, 0, 0];
        let (object, candidates, check, report) = settled(|bytes| replaced(bytes, MERGED, OUTSIDE));
        assert!(candidates[0].body.is_none() && written(&object) == OBJECT, "{check:?}");
        assert!(check.status.starts_with("refused") && check.differences.is_empty(), "{check:?}");
        assert!(report.warnings[0].starts_with("THE KERNEL REFUSES program xdp_count"), "{:?}", report.warnings);
    }

    #[test]
    fn a_function_that_no_ban_mends_stays_as_it_was() {
        if !kernel() {
            return;
        }
        // `w0 = 2` becomes `w0 = 1`, whatever the optimizer does.
        let (object, candidates, check, _) =
            settled(|bytes| replaced(bytes, [0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]));
        assert!(!check.differences.is_empty());
        assert!(candidates[0].body.is_none());
        assert_eq!(written(&object), OBJECT);
    }
}
