//! The last gate: the running kernel's verifier.
//!
//! The original's verdict is the yardstick. Where a program loaded and its optimized form does not,
//! the guilty change is found by bisection over the log of changes, whose first n steps can be made
//! again without proving anything; it is banned, and the passes go on from before it. In the worst
//! case the function stays as it was.

use bpf_kernel::{LoadOptions, ObjectVerdict, ProgramVerdict, Verdict};
use bpf_object::{FuncId, Object, RefKind, WriteOptions};
use bpf_passes::Settings;

use crate::DriverError;
use crate::candidate::Candidate;
use crate::optimize::is_program;
use crate::pool::on_deep_stack;
use crate::report::{KernelVerdict, Options, Report};
use crate::unit::Unit;

/// What to compare with.
pub(crate) struct Gate {
    /// Verdict on the original, or why there is none.
    before: Result<ObjectVerdict, String>,
    judge: Judge,
}

/// Gives the verdict on an object: the kernel, or in tests something stricter.
type Judge = Box<dyn Fn(&[u8]) -> Result<ObjectVerdict, String>>;

impl Gate {
    /// Loads the original.
    pub(crate) fn new(input: &[u8], options: &Options) -> Gate {
        let mut load = LoadOptions { program_type: options.program_type.clone() };
        if !options.kernel {
            return Gate { before: Err("switched off".into()), judge: kernel(load) };
        }
        let mut before = bpf_kernel::load_object(input, &load).map_err(|e| e.to_string());
        // A section name that tells libbpf nothing: try the types such objects are made for.
        if load.program_type.is_none() && before.as_ref().is_ok_and(unnamed) {
            for guess in ["classifier", "xdp", "socket", "kprobe"] {
                let with = LoadOptions { program_type: Some(guess.into()) };
                if let Ok(v) = bpf_kernel::load_object(input, &with)
                    && v.is_accepted()
                {
                    before = Ok(v);
                    load = with;
                    break;
                }
            }
        }
        Gate { before, judge: kernel(load) }
    }

    /// The functions' names whose programs loaded before and do not now.
    fn regressions(&self, before: &ObjectVerdict, bytes: &[u8]) -> Result<Vec<String>, String> {
        let after = self.ask(bytes)?;
        Ok(before
            .programs
            .iter()
            .filter(|p| p.verdict.is_accepted())
            .filter(|p| !find(&after, p).is_some_and(|q| q.verdict.is_accepted()))
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

fn unnamed(v: &ObjectVerdict) -> bool {
    !v.programs.iter().any(|p| p.verdict.is_accepted())
        && (v.not_loadable.is_some()
            || v.programs.iter().any(|p| matches!(p.verdict, Verdict::NotLoadable { .. } | Verdict::Rejected { .. })))
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
                report.warnings.push(format!("the kernel could not be asked: {why}"));
            }
            return Ok(());
        }
    };
    if !before.programs.iter().any(|p| p.verdict.is_accepted()) {
        let why =
            before.not_loadable.clone().or_else(|| before.programs.first().map(|p| p.verdict.reason().to_string()));
        report.gate = format!("skipped: the original does not load: {}", why.unwrap_or_default());
        record(gate, before, object, candidates, write)?;
        return Ok(());
    }
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
        let suspects = suspects(unit, candidates, name);
        let guilty = convict(gate, before, object, candidates, &suspects, write, name)?;
        let Some(i) = guilty else {
            // No single function is to blame: give all of them up.
            for i in suspects {
                give_up(unit, settings, object, &mut candidates[i])?;
            }
            continue;
        };
        if patience == 0 {
            give_up(unit, settings, object, &mut candidates[i])?;
            patience = PATIENCE;
            continue;
        }
        patience -= 1;
        mend(gate, before, unit, settings, object, &mut candidates[i], write, name)?;
    }
    report.gate = match report.dropped {
        0 => "accepted".into(),
        n => format!("accepted after dropping {n} rewrite(s) the kernel refused"),
    };
    record(gate, before, object, candidates, write)
}

/// The changed functions a program consists of.
fn suspects(unit: &Unit, candidates: &[Candidate], name: &str) -> Vec<usize> {
    let mut reach: Vec<usize> =
        (0..candidates.len()).filter(|i| is_program(&unit.object, *i) && candidates[*i].report.name == name).collect();
    let mut at = 0;
    while at < reach.len() {
        for r in unit.object.refs(FuncId(reach[at])) {
            if let RefKind::Call { target } | RefKind::FuncAddr { target } = r.kind
                && !reach.contains(&target.0)
            {
                reach.push(target.0);
            }
        }
        at += 1;
    }
    reach.retain(|i| candidates[*i].body.is_some());
    reach
}

/// The function whose original body alone makes the program load again.
fn convict(
    gate: &Gate,
    before: &ObjectVerdict,
    object: &Object,
    candidates: &[Candidate],
    suspects: &[usize],
    write: &WriteOptions,
    name: &str,
) -> Result<Option<usize>, DriverError> {
    if let [only] = suspects {
        return Ok(Some(*only));
    }
    for &i in suspects {
        let mut trial = object.clone();
        trial.reset_body(FuncId(candidates[i].id));
        if loads(gate, before, &trial, write, name)? {
            return Ok(Some(i));
        }
    }
    Ok(None)
}

fn loads(
    gate: &Gate,
    before: &ObjectVerdict,
    object: &Object,
    write: &WriteOptions,
    name: &str,
) -> Result<bool, DriverError> {
    let bytes = object.write(write)?.bytes;
    Ok(gate.regressions(before, &bytes).is_ok_and(|bad| !bad.iter().any(|n| n == name)))
}

/// Finds the first change after which the program no longer loads, bans it, and lets the passes go on from
/// before it.
#[allow(clippy::too_many_arguments)]
fn mend(
    gate: &Gate,
    before: &ObjectVerdict,
    unit: &Unit,
    settings: &Settings,
    object: &mut Object,
    c: &mut Candidate,
    write: &WriteOptions,
    name: &str,
) -> Result<(), DriverError> {
    let (mut good, mut bad) = (0usize, c.steps().len());
    while bad - good > 1 {
        let mid = good + (bad - good) / 2;
        let mut trial = c.clone();
        trial.rewind(unit, settings, mid);
        let mut o = object.clone();
        trial.place(&mut o)?;
        if loads(gate, before, &o, write, name)? {
            good = mid;
        } else {
            bad = mid;
        }
    }
    match c.steps().get(bad.wrapping_sub(1)) {
        Some(step) if step.rewrite().is_some() => {
            let fingerprint = step.mark();
            c.banned.insert(fingerprint);
            c.rewind(unit, settings, good);
            on_deep_stack(|| c.run_passes(unit, settings));
        }
        // How blocks are cut and ordered cannot be banned; what came before it stays.
        Some(_) if good > 0 => c.rewind(unit, settings, good),
        _ => return give_up(unit, settings, object, c),
    }
    c.place(object)
}

fn give_up(unit: &Unit, settings: &Settings, object: &mut Object, c: &mut Candidate) -> Result<(), DriverError> {
    c.revert(unit, settings, "the kernel refuses it after optimization");
    c.place(object)
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
        let mine = |p: &&ProgramVerdict| p.name == c.report.name && p.section == c.report.section;
        c.report.kernel_before = before.programs.iter().find(mine).map(words);
        c.report.kernel_after = after.as_ref().and_then(|v| v.programs.iter().find(mine)).map(words);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_isa::Insn;
    use bpf_kernel::ProgramType;

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
        let gate = Gate { before: without_atomics(OBJECT), judge: Box::new(without_atomics) };
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
