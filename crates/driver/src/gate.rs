//! The last gate: the running kernel's verifier.
//!
//! The original's verdict is the yardstick. Where a program loaded and its optimized form does not, the guilty change
//! is found and taken back ([`crate::blame`]); in the worst case the function stays as it was.
//!
//! A program is loaded as the type that its section name or the user says, never as another: what the kernel accepts
//! as a classifier says nothing about a program of an unknown type.

use std::time::{Duration, Instant};

use bpf_kernel::{LoadOptions, ObjectVerdict, ProgramType, ProgramVerdict};
use bpf_object::{Object, WriteOptions};
use bpf_passes::Settings;

use crate::DriverError;
use crate::blame::{self, Context};
use crate::candidate::Candidate;
use crate::report::{KernelVerdict, Options, Report};
use crate::unit::Unit;

/// What to compare with.
pub(crate) struct Gate {
    /// Verdict on the original, or why there is none.
    before: Result<ObjectVerdict, String>,
    /// How long loading the original took.
    took: Duration,
    judge: Judge,
}

/// Gives the verdict on an object: the kernel, or in tests something stricter.
type Judge = Box<dyn Fn(&[u8]) -> Result<ObjectVerdict, String>>;

impl Gate {
    /// Loads the original.
    pub(crate) fn new(input: &[u8], options: &Options) -> Gate {
        let load = LoadOptions { program_type: options.program_type.clone(), only: None };
        if !options.kernel {
            return Gate { before: Err("switched off".into()), took: Duration::ZERO, judge: kernel(load) };
        }
        let started = Instant::now();
        let before = bpf_kernel::load_object(input, &load).map_err(|e| e.to_string());
        Gate { before, took: started.elapsed(), judge: kernel(load) }
    }

    /// The programs of the original that the kernel accepts.
    pub(crate) fn accepted(&self) -> Vec<&ProgramVerdict> {
        self.before.iter().flat_map(|v| v.programs.iter().filter(|p| p.verdict.is_accepted())).collect()
    }

    /// Why the original and a result cannot be run within `time`, if that is clear already.
    pub(crate) fn not_for_runs(&self, time: Duration) -> Option<String> {
        match &self.before {
            Err(why) => Some(format!("the kernel could not be asked: {why}")),
            Ok(_) if self.accepted().is_empty() => Some("the original does not load".to_owned()),
            Ok(_) if self.took * 2 > time => {
                let (load, time) = (2.0 * self.took.as_secs_f64(), time.as_secs_f64());
                Some(format!("loading both objects takes {load:.2} s, and a tenth of the time limit is {time:.2} s"))
            }
            Ok(_) => None,
        }
    }

    /// The functions' names whose programs loaded before and do not now.
    fn regressions(&self, before: &ObjectVerdict, bytes: &[u8]) -> Result<Vec<String>, String> {
        let after = self.ask(bytes)?;
        Ok(before
            .programs
            .iter()
            .filter(|p| p.verdict.is_accepted())
            .filter(|p| !find(&after, p).is_some_and(|q| p.replaced_by(q)))
            .map(|p| p.name.clone())
            .collect())
    }

    fn ask(&self, bytes: &[u8]) -> Result<ObjectVerdict, String> {
        (self.judge)(bytes)
    }
}

fn kernel(load: LoadOptions) -> Judge {
    Box::new(move |bytes| bpf_kernel::load_object(bytes, &load).map_err(|e| e.to_string()))
}

/// The programs whose section names tell no type, so that the kernel was not asked about them: loaded as some other
/// type, a program may well be accepted, but its context means something else then.
fn untyped(v: &ObjectVerdict) -> Vec<&str> {
    let untyped = |p: &&ProgramVerdict| p.kind == ProgramType::UNSPEC && !p.verdict.is_accepted();
    v.programs.iter().filter(untyped).map(|p| p.name.as_str()).collect()
}

fn find<'v>(v: &'v ObjectVerdict, p: &ProgramVerdict) -> Option<&'v ProgramVerdict> {
    v.programs.iter().find(|q| q.name == p.name && q.section == p.section)
}

fn words(p: &ProgramVerdict) -> KernelVerdict {
    KernelVerdict {
        accepted: p.verdict.is_accepted(),
        processed: p.stats.as_ref().map(|s| s.processed),
        reason: (!p.verdict.is_accepted()).then(|| p.verdict.reason().to_string()),
    }
}

/// Rewrites banned per object before the gate gives a function up.
const PATIENCE: usize = 12;

/// Changes `candidates` and `object` until the kernel accepts what it accepted before.
pub(crate) fn settle(
    gate: &Gate,
    unit: &Unit,
    settings: &Settings,
    object: &mut Object,
    candidates: &mut [Candidate],
    write: &WriteOptions,
    report: &mut Report,
) -> Result<(), DriverError> {
    let before = match &gate.before {
        Ok(v) => v,
        Err(why) => {
            report.gate = format!("skipped: {why}");
            if why != "switched off" {
                report.warn(format!("the kernel could not be asked: {why}"));
            }
            return Ok(());
        }
    };
    let untyped = untyped(before);
    if !untyped.is_empty() {
        report.warn(format!(
            "the kernel could not be asked about {}: no program type goes with the section name; say it with --type",
            untyped.join(", ")
        ));
    }
    if !before.programs.iter().any(|p| p.verdict.is_accepted()) {
        if !untyped.is_empty() && untyped.len() == before.programs.len() {
            report.gate = "skipped: no program type goes with the section name".to_owned();
            return Ok(());
        }
        let why =
            before.not_loadable.clone().or_else(|| before.programs.first().map(|p| p.verdict.reason().to_string()));
        report.gate = format!("skipped: the original does not load: {}", why.unwrap_or_default());
        record(gate, before, object, candidates, write)?;
        return Ok(());
    }
    let cx = Context { unit, settings, write, why: "the kernel refuses it after optimization" };
    let mut patience = PATIENCE;
    loop {
        let bytes = object.write(write)?.bytes;
        let bad = match gate.regressions(before, &bytes) {
            Ok(bad) => bad,
            Err(why) => {
                report.gate = format!("skipped: {why}");
                return Ok(());
            }
        };
        let Some(name) = bad.first() else { break };
        report.dropped += 1;
        let loads = |bytes: &[u8]| gate.regressions(before, bytes).is_ok_and(|bad| !bad.contains(name));
        let suspects = blame::suspects(unit, candidates, name);
        if suspects.is_empty() {
            report.gate = format!("skipped: the kernel refuses {name}, which is as it was, for now");
            return Ok(());
        }
        let guilty = blame::convict(&loads, object, candidates, &suspects, write)?;
        let Some(i) = guilty else {
            // No single function is to blame: give all of them up.
            for i in suspects {
                blame::give_up(cx, object, &mut candidates[i])?;
            }
            continue;
        };
        if patience == 0 {
            blame::give_up(cx, object, &mut candidates[i])?;
            patience = PATIENCE;
            continue;
        }
        patience -= 1;
        blame::mend(&loads, cx, object, &mut candidates[i])?;
    }
    report.gate = match report.dropped {
        0 => "accepted".into(),
        n => format!("accepted after dropping {n} rewrite(s) the kernel refused"),
    };
    record(gate, before, object, candidates, write)
}

/// Writes both verdicts into the reports.
fn record(
    gate: &Gate,
    before: &ObjectVerdict,
    object: &Object,
    candidates: &mut [Candidate],
    write: &WriteOptions,
) -> Result<(), DriverError> {
    let after = gate.ask(&object.write(write)?.bytes).ok();
    for c in candidates {
        let mine = |p: &&ProgramVerdict| {
            p.name == c.report.name && p.section == c.report.section && p.kind != ProgramType::UNSPEC
        };
        c.report.kernel_before = before.programs.iter().find(mine).map(words);
        c.report.kernel_after = after.as_ref().and_then(|v| v.programs.iter().find(mine)).map(words);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::is_program;
    use bpf_isa::Insn;
    use bpf_kernel::Verdict;
    use bpf_object::FuncId;

    const OBJECT: &[u8] = include_bytes!("../../../examples/globals.o");

    /// A verifier that knows no atomics.
    fn without_atomics(bytes: &[u8]) -> Result<ObjectVerdict, String> {
        let object = Object::parse(bytes.to_vec()).map_err(|e| e.to_string())?;
        let programs = (0..object.functions().len())
            .filter(|i| is_program(&object, *i))
            .map(|i| {
                let f = &object.functions()[i];
                let code = bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default();
                let atomic = code.iter().any(|(_, insn)| matches!(insn, Insn::Atomic { .. }));
                let verdict = match atomic {
                    true => Verdict::Rejected { errno: 22, log: "no atomics here".into() },
                    false => Verdict::Accepted,
                };
                ProgramVerdict {
                    name: f.name.clone(),
                    section: f.section.clone(),
                    kind: ProgramType::XDP,
                    slots: f.slots,
                    verdict,
                    stats: None,
                    info: None,
                }
            })
            .collect();
        Ok(ObjectVerdict { programs, not_loadable: None })
    }

    #[test]
    fn only_the_refused_rewrite_is_taken_back() {
        let unit = Unit::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let settings = Settings::default();
        let mut candidates: Vec<Candidate> =
            (0..unit.object.functions().len()).map(|i| Candidate::new(&unit, i)).collect();
        candidates.iter_mut().for_each(|c| c.run_passes(&unit, &settings));
        let mut object = unit.object.clone();
        for c in &candidates {
            c.place(&mut object).expect("it fits");
        }
        let write = WriteOptions { keep_debug: false };
        let accepted = |o: &Object| {
            without_atomics(&o.write(&write).expect("it is written").bytes).expect("it parses").is_accepted()
        };
        assert!(accepted(&unit.object) && !accepted(&object), "the example no longer tempts the optimizer");
        let gate = Gate { before: without_atomics(OBJECT), took: Duration::ZERO, judge: Box::new(without_atomics) };
        let mut report = Report::default();
        settle(&gate, &unit, &settings, &mut object, &mut candidates, &write, &mut report).expect("it settles");
        assert!(accepted(&object), "{}", report.gate);
        assert!(report.dropped > 0, "{}", report.gate);
        assert!(candidates.iter().all(|c| c.report.untouched.is_none()), "a whole function was given up");
        let (before, after) =
            candidates.iter().fold((0, 0), |(a, b), c| (a + c.report.slots_before, b + c.report.slots_after));
        assert!(after < before, "everything was given up");
    }
}
