//! Changes an object until the kernel, or `bpf_check` in its place, accepts of it what it accepted of the original.

use std::collections::BTreeSet;
use std::time::Instant;

use bpf_kernel::{LoadVerdict, ObjectVerdict, ProgramType, ProgramVerdict};
use bpf_object::Object;
use bpf_passes::Settings;
use rustc_hash::FxHashSet;

use super::{Checked, Gate, Job, Known, NOT_JUDGED, Original, Unasked, untyped, words};
use crate::blame::{self, Blamed, Context};
use crate::candidate::Candidate;
use crate::error::DriverError;
use crate::pool::on_deep_stack;
use crate::report::{KernelVerdict, Report, TakenBack};

/// Rewrites banned per object before the gate gives a function up.
const PATIENCE: usize = 12;

/// Changes banned per program because of the verifier's work, before what remains without the next one is taken.
const PATIENCE_WITH_WORK: usize = 6;

/// Changes of a function from which on it is told what a pass has made from beginning to end.
const MANY: usize = 64;

/// Passes that are left out of a function by turns.
const LEFT_OUT: usize = 4;

/// What a function is told that the kernel refuses.
const REFUSED: &str = "the kernel refuses it after optimization";

/// What a function is told that `bpf_check` refuses, where no kernel judges.
const UNSAFE: &str = "check finds it unsafe after optimization";

/// What a function is told in which no change can be kept for the verifier's work.
const HEAVIER: &str = "the kernel's verifier has more work after optimization";

/// Changes `candidates` and `object` until what was accepted before is accepted.
pub(crate) fn settle(
    job: Job,
    object: &mut Object,
    candidates: &mut [Candidate],
    report: &mut Report,
) -> Result<(), DriverError> {
    let Job { gate, .. } = job;
    let unasked = ObjectVerdict { programs: Vec::new(), not_loadable: None };
    let before = gate.before.as_ref().unwrap_or(&unasked);
    if let Err(why) = &gate.before
        && *why != Unasked::SwitchedOff
    {
        report.warn(format!("the kernel could not be asked: {why}"));
    }
    let untyped = untyped(before);
    if !untyped.is_empty() {
        report.warn(format!(
            "the kernel could not be asked about {}: no program type goes with the section name; say it with --type",
            untyped.join(", ")
        ));
    }
    settle_changes(job, object, candidates, report)?;
    record(job, before, object, candidates)?;
    let late = &gate.memory.borrow().late;
    report.gate = match &gate.before {
        Ok(_) => summary(job, before, late, candidates, report),
        Err(why) => format!("skipped: {why}"),
    };
    report.check = (!gate.checked.is_empty()).then(|| of_the_checked(gate, late, candidates, report.unsafe_changes));
    Ok(())
}

/// The same, of which the report is told only what was taken back.
pub(super) fn settle_changes(
    job: Job,
    object: &mut Object,
    candidates: &mut [Candidate],
    report: &mut Report,
) -> Result<(), DriverError> {
    let Job { gate, module, settings, write } = job;
    let cx = Context { module, settings, write, why: REFUSED, go_on: true };
    let late = Vec::new();
    let mut settling = Settling { gate, cx, object, candidates, report, patience: PATIENCE, late };
    settling.keep_what_was_not_judged()?;
    settling.run()?;
    let late = settling.late;
    gate.memory.borrow_mut().late.extend(late);
    Ok(())
}

/// The work of [`settle`].
struct Settling<'a> {
    gate: &'a Gate,
    cx: Context<'a>,
    object: &'a mut Object,
    candidates: &'a mut [Candidate],
    report: &'a mut Report,
    patience: usize,
    /// Programs that have gone back since time is up.
    late: Vec<usize>,
}

impl Settling<'_> {
    /// Programs whose originals were not judged in time stay as they were: there is nothing to compare with.
    fn keep_what_was_not_judged(&mut self) -> Result<(), DriverError> {
        for (program, why) in self.gate.programs_not_judged() {
            if !self.suspects(program).is_empty() {
                self.late.push(program);
                self.give_up(program, &why)?;
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), DriverError> {
        let programs = self.gate.before.iter().flat_map(|v| v.programs.iter().enumerate());
        let accepted = programs.filter(|(_, p)| p.verdict.is_accepted()).map(|(program, _)| program);
        let safe = self.gate.checked().filter(|(_, c)| matches!(c.original, Original::Taken(_)));
        let accepted: Vec<usize> = accepted.chain(safe.map(|(program, _)| program)).collect();
        loop {
            let changed: Vec<usize> = accepted.iter().copied().filter(|&p| !self.suspects(p).is_empty()).collect();
            let unknown: Vec<usize> = changed.iter().copied().filter(|&p| self.known(p).is_none()).collect();
            if !unknown.is_empty() {
                let bytes = self.object.write(self.cx.write)?.bytes;
                self.gate.ask(self.cx.module, self.object, &bytes, &unknown);
            }
            self.remember(&changed);
            if let Some(&late) = unknown.iter().find(|&&p| self.known(p).is_none()) {
                self.go_back(late)?;
            } else if let Some(&bad) = changed.iter().find(|&&p| self.known(p).is_some_and(|k| !k.good)) {
                match bad < self.gate.first_checked() {
                    true => self.report.dropped += 1,
                    false => self.report.unsafe_changes += 1,
                }
                self.take_back(bad)?;
            } else if let Some(&heavy) = changed.iter().find(|&&p| self.is_heavier(p)) {
                self.report.heavier += 1;
                self.lighten(heavy)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Finds the change that a program is refused for, and takes it back; if need be, all of them.
    fn take_back(&mut self, program: usize) -> Result<(), DriverError> {
        let gate = self.gate;
        // The kernel may have taken it, and something else stand against it.
        let other = self.known(program).filter(|known| known.words.accepted).and_then(|known| known.words.reason);
        let why = match &other {
            _ if program >= gate.first_checked() => UNSAFE,
            Some(why) => why,
            None => REFUSED,
        };
        let settings = self.mending();
        let why = &*gate.says(why);
        let cx = Context { why, settings: &settings, ..self.cx };
        let Context { module, write, .. } = cx;
        let is_good = |object: &Object, bytes: &[u8]| gate.is_good(module, object, bytes, program);
        let suspects = self.suspects(program);
        let guilty = blame::convict(&is_good, self.object, self.candidates, &suspects, write)?;
        match guilty {
            None if gate.is_over() => self.go_back(program),
            // No single function is to blame: give all of them up.
            None => self.give_up(program, cx.why),
            Some(i) if self.patience == 0 => {
                self.patience = PATIENCE;
                blame::give_up(cx, self.object, &mut self.candidates[i])
            }
            Some(i) => {
                self.patience -= 1;
                let blamed = blame::mend(&is_good, cx, self.object, &mut self.candidates[i])?;
                self.note(i, &blamed, cx.why);
                self.remember_if_better(program, blamed.good)?;
                if gate.is_over() { self.go_back(program) } else { Ok(()) }
            }
        }
    }

    /// Tells which change went back, and why.
    fn note(&mut self, function: usize, blamed: &Blamed, why: &str) {
        let function = self.candidates[function].report.name.clone();
        let change = blamed.by.map(str::to_owned);
        self.report.taken_back.push(TakenBack { function, change, reason: why.to_owned() });
    }

    fn is_heavier(&self, program: usize) -> bool {
        self.known(program).is_some_and(|known| self.gate.is_heavier(program, &known))
    }

    /// Finds the change that makes more work for the verifier, and takes it back; if there are too many of that kind, all
    /// that came after it, too.
    fn lighten(&mut self, program: usize) -> Result<(), DriverError> {
        let Context { module, write, .. } = self.cx;
        let gate = self.gate;
        let is_light = |object: &Object, bytes: &[u8]| {
            let good = gate.is_good(module, object, bytes, program)?;
            let known = gate.known(module, object, program);
            Some(good && known.is_some_and(|known| !gate.is_heavier(program, &known)))
        };
        let suspects = self.suspects(program);
        match blame::convict(&is_light, self.object, self.candidates, &suspects, write)? {
            Some(i) => {
                let (times, banned) = {
                    let lightened = &mut gate.memory.borrow_mut().lightened;
                    let first = || (0, self.candidates[i].banned.clone());
                    let (times, banned) = lightened.entry(program).or_insert_with(first);
                    *times += 1;
                    (*times, banned.clone())
                };
                if times == 2 && self.leave_out(i, &is_light, &banned)? {
                    return Ok(());
                }
                let settings = self.mending();
                let go_on = times <= PATIENCE_WITH_WORK;
                let why = &*gate.says(HEAVIER);
                let cx = Context { why, go_on, settings: &settings, ..self.cx };
                let blamed = blame::mend(&is_light, cx, self.object, &mut self.candidates[i])?;
                self.note(i, &blamed, cx.why);
                self.remember_if_better(program, blamed.good)?;
            }
            // It takes more than one function. As many are given up, from the first, as are needed.
            None => {
                let why = &*gate.says(HEAVIER);
                let cx = Context { why, ..self.cx };
                for i in suspects {
                    blame::give_up(cx, self.object, &mut self.candidates[i])?;
                    if is_light(self.object, &self.object.write(write)?.bytes) != Some(false) {
                        break;
                    }
                }
            }
        }
        if gate.is_over() { self.go_back(program) } else { Ok(()) }
    }

    /// The settings where passes go on after a change was taken back: half of what is left.
    fn mending(&self) -> Settings {
        let now = Instant::now();
        let half = |end: Instant| now + end.saturating_duration_since(now) / 2;
        let settings = self.cx.settings;
        Settings { deadline: settings.deadline.map(half), ..settings.clone() }
    }

    /// Leaves a pass out of a function of which one change was not to blame: what makes more work is often what one pass
    /// makes everywhere. Of the passes that have made most of its changes, the first without which the object `is_light`.
    fn leave_out(&mut self, i: usize, is_light: blame::IsGood, banned: &FxHashSet<u64>) -> Result<bool, DriverError> {
        let Context { module, write, .. } = self.cx;
        let mut made: Vec<(usize, &'static str)> = Vec::new();
        for by in self.candidates[i].steps().iter().filter_map(|s| s.rewrite().map(|r| r.by)) {
            match made.iter_mut().find(|(_, name)| *name == by) {
                Some((n, _)) => *n += 1,
                None => made.push((1, by)),
            }
        }
        if made.iter().map(|(n, _)| n).sum::<usize>() < MANY {
            return Ok(false);
        }
        made.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        for (_, pass) in made.into_iter().take(LEFT_OUT) {
            if self.gate.is_over() {
                break;
            }
            let settings = &self.mending();
            let without = || self.candidates[i].without_pass(module, settings, pass, banned);
            let Some(trial) = on_deep_stack(without) else { continue };
            let mut o = self.object.clone();
            trial.place(&mut o)?;
            if trial.body.is_some() && is_light(&o, &o.write(write)?.bytes) == Some(true) {
                let name = trial.report.name.clone();
                let reason = self.gate.says(HEAVIER).into_owned();
                self.report.taken_back.push(TakenBack { function: name, change: Some(pass.to_owned()), reason });
                self.candidates[i] = trial;
                self.candidates[i].place(self.object)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Time is up: the program is what it was when nothing was found fault with last. If that does not last because functions are
    /// shared with others that went back too, it is what it was in the beginning.
    fn go_back(&mut self, program: usize) -> Result<(), DriverError> {
        let accepted = self.gate.memory.borrow().accepted.get(&program).cloned();
        match accepted {
            Some(accepted) if !self.late.contains(&program) => {
                self.late.push(program);
                for function in self.functions(program) {
                    match accepted.iter().find(|c| c.id == function) {
                        Some(c) => self.candidates[function] = c.clone(),
                        None => self.candidates[function].revert(self.cx.module, self.cx.settings, NOT_JUDGED),
                    }
                    self.candidates[function].place(self.object)?;
                }
                Ok(())
            }
            _ => {
                self.late.push(program);
                self.give_up(program, NOT_JUDGED)
            }
        }
    }

    /// All of a program is as it was in the beginning.
    fn give_up(&mut self, program: usize, why: &str) -> Result<(), DriverError> {
        for i in self.suspects(program) {
            blame::give_up(Context { why, ..self.cx }, self.object, &mut self.candidates[i])?;
        }
        Ok(())
    }

    /// Keeps the functions of programs that need no further change.
    fn remember(&self, programs: &[usize]) {
        let fine = |known: Known, program| known.good && !self.gate.is_heavier(program, &known);
        for &program in programs.iter().filter(|&&p| self.known(p).is_some_and(|known| fine(known, p))) {
            let functions = self.suspects(program).into_iter().map(|i| self.candidates[i].clone()).collect();
            self.gate.memory.borrow_mut().accepted.insert(program, functions);
        }
    }

    /// Keeps a program with this form of one of its functions, if it is known to need no further change then, and is
    /// shorter than what is kept of it.
    fn remember_if_better(&self, program: usize, function: Candidate) -> Result<(), DriverError> {
        let mut trial = self.object.clone();
        function.place(&mut trial)?;
        let known = self.gate.known(self.cx.module, &trial, program);
        if function.body.is_none() || !known.is_some_and(|known| known.good && !self.gate.is_heavier(program, &known)) {
            return Ok(());
        }
        let others = self.suspects(program).into_iter().filter(|i| *i != function.id);
        let mut functions: Vec<Candidate> = others.map(|i| self.candidates[i].clone()).collect();
        functions.push(function);
        let saved = |cs: &[Candidate]| -> i64 {
            cs.iter().map(|c| c.report.slots_before as i64 - c.report.slots_after as i64).sum()
        };
        let accepted = &mut self.gate.memory.borrow_mut().accepted;
        if accepted.get(&program).is_none_or(|kept| saved(kept) < saved(&functions)) {
            accepted.insert(program, functions);
        }
        Ok(())
    }

    fn known(&self, program: usize) -> Option<Known> {
        self.gate.known(self.cx.module, self.object, program)
    }

    fn functions(&self, program: usize) -> Vec<usize> {
        self.gate.functions(self.cx.module, program)
    }

    /// The changed functions of a program.
    fn suspects(&self, program: usize) -> Vec<usize> {
        let mut functions = self.functions(program);
        functions.retain(|i| self.candidates[*i].body.is_some());
        functions
    }
}

/// Writes both verdicts into the reports. What the kernel has refused of the original it is asked about once more, in its
/// last form.
fn record(job: Job, before: &ObjectVerdict, object: &Object, candidates: &mut [Candidate]) -> Result<(), DriverError> {
    let Job { gate, module, write, .. } = job;
    let changed = |program: usize, candidates: &[Candidate]| {
        gate.functions(module, program).iter().any(|i| candidates[*i].body.is_some())
    };
    let refused: Vec<usize> = before
        .programs
        .iter()
        .enumerate()
        .filter(|(program, p)| matches!(p.verdict, LoadVerdict::Rejected { .. }) && changed(*program, candidates))
        .filter(|(program, _)| gate.known(module, object, *program).is_none())
        .map(|(program, _)| program)
        .collect();
    if !refused.is_empty() {
        gate.ask(module, object, &object.write(write)?.bytes, &refused);
    }
    for (program, p) in before.programs.iter().enumerate().filter(|(_, p)| p.kind != ProgramType::UNSPEC) {
        let after = match changed(program, candidates) {
            false => Some(words(p)),
            true if matches!(p.verdict, LoadVerdict::Accepted | LoadVerdict::Rejected { .. }) => {
                Some(gate.known(module, object, program).map_or_else(not_judged, |known| known.words))
            }
            // What this place cannot load of the original it cannot load of the result.
            true => Some(words(p)),
        };
        let entry = module.object.entries(&p.name, &p.section).first().and_then(|f| candidates.get_mut(f.0));
        if let Some(c) = entry {
            c.report.kernel_before = gate.first(program).map(words);
            c.report.kernel_after = after;
        }
    }
    Ok(())
}

fn not_judged() -> KernelVerdict {
    KernelVerdict { reason: Some(NOT_JUDGED.to_owned()), ..KernelVerdict::default() }
}

/// How it went with the programs that `bpf_check` judges, in words.
fn of_the_checked(gate: &Gate, late: &BTreeSet<usize>, candidates: &[Candidate], taken_back: usize) -> String {
    let (mut safe, mut unfollowed, mut refused, mut not_in_time) = (0, Vec::new(), Vec::new(), Vec::new());
    for (program, Checked { id, original, .. }) in gate.checked() {
        let name = &candidates[id.0].report.name;
        match (original, original.unfollowed()) {
            (Original::OutOfTime, _) => not_in_time.push(name.clone()),
            (Original::Taken(_), _) if late.contains(&program) => not_in_time.push(name.clone()),
            (Original::Taken(_), None) => safe += 1,
            (Original::Taken(_), Some(why)) => unfollowed.push(format!("{name} ({why})")),
            (Original::Refused(why), _) => refused.push(format!("{name} ({why})")),
        }
    }
    let all = gate.checked.len();
    let mut text = format!("{safe} of {all} program(s) that the kernel did not judge are safe as before");
    if taken_back > 0 {
        text.push_str(&format!(" after taking back {taken_back} change(s) that made one unsafe"));
    }
    let original = gate.original_in_words();
    for (what, who) in [
        (format!("not followed to the end, as {original}"), unfollowed.join(", ")),
        (format!("not judged, because {original} is not safe"), refused.join(", ")),
        (NOT_JUDGED.to_owned(), not_in_time.join(", ")),
    ] {
        if !who.is_empty() {
            text.push_str(&format!("; {what}: {who}"));
        }
    }
    text
}

fn is_for_want_of_means(p: &ProgramVerdict) -> bool {
    matches!(p.verdict, LoadVerdict::OutOfMeans { .. })
}

/// How it went, in words.
fn summary(
    job: Job,
    before: &ObjectVerdict,
    late: &BTreeSet<usize>,
    candidates: &[Candidate],
    report: &Report,
) -> String {
    let Job { gate, module, .. } = job;
    let &Report { dropped, heavier, .. } = report;
    let unjudged = before.programs.iter().filter(|p| p.verdict.is_open()).count();
    if !before.programs.iter().any(|p| p.verdict.is_accepted()) && unjudged == 0 {
        let all_untyped = !before.programs.is_empty() && super::untyped(before).len() == before.programs.len();
        if all_untyped {
            return "skipped: no program type goes with the section name".to_owned();
        }
        let first = before.programs.first().map(|p| p.verdict.reason().to_owned());
        let why = before.not_loadable.clone().or(first).filter(|why| !why.trim().is_empty());
        let why = why.unwrap_or_else(|| "it has no programs that libbpf knows".to_owned());
        return format!("skipped: {} does not load: {why}", gate.original_in_words());
    }
    let mut text = match dropped {
        0 => "accepted".to_owned(),
        n => format!(
            "accepted after dropping {n} rewrite(s) with which a program was refused, or not proven to run as before"
        ),
    };
    if heavier > 0 {
        text.push_str(&format!("; {heavier} change(s) taken back that made more work for the verifier"));
    }
    let after = |p: &ProgramVerdict| {
        let entry = module.object.entries(&p.name, &p.section).first().and_then(|f| candidates.get(f.0));
        entry.and_then(|c| c.report.kernel_after.as_ref())
    };
    let rejected = |p: &&ProgramVerdict| matches!(p.verdict, LoadVerdict::Rejected { .. });
    let now_accepted = |p: &&ProgramVerdict| after(p).is_some_and(|k| k.accepted);
    let names =
        |programs: Vec<&ProgramVerdict>| programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    let (better, as_before): (Vec<_>, Vec<_>) = before.programs.iter().filter(rejected).partition(now_accepted);
    let elsewhere = before.programs.iter().filter(|p| p.verdict.is_of_the_place() || is_for_want_of_means(p));
    let mut elsewhere: Vec<String> = elsewhere.map(|p| format!("{} ({})", p.name, p.verdict.reason())).collect();
    let unheard_of = gate.unheard_of(module).into_iter().filter(|i| candidates[*i].body.is_some());
    elsewhere.extend(unheard_of.map(|i| format!("{} (libbpf knows no such program)", candidates[i].report.name)));
    let is_late = |(i, p): &(usize, &ProgramVerdict)| late.contains(i) || p.verdict == LoadVerdict::OutOfTime;
    let late = before.programs.iter().enumerate().filter(|x| is_late(x) && !is_for_want_of_means(x.1));
    let late: Vec<_> = late.map(|(_, p)| p).collect();
    for (what, who) in [
        ("accepted, while the original was refused", names(better)),
        ("refused as before", names(as_before)),
        ("not judged", elsewhere.join(", ")),
        (NOT_JUDGED, names(late)),
    ] {
        if !who.is_empty() {
            text.push_str(&format!("; {what}: {who}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Instant;

    use bpf_isa::Insn;
    use bpf_kernel::{Decided, Question};
    use bpf_object::FuncId;

    use super::super::{Growth, Judge, checked};
    use super::*;
    use crate::module::{Module, is_program};
    use bpf_object::WriteOptions;
    use bpf_passes::Settings;

    const OBJECT: &[u8] = include_bytes!("../../../../examples/globals.o");

    /// The verdicts of a verifier that says this to a program's code.
    fn verdicts(
        bytes: &[u8],
        wanted: &dyn Fn(&str, &str) -> Question,
        says: impl Fn(&[(usize, Insn)]) -> LoadVerdict,
    ) -> Result<ObjectVerdict, Unasked> {
        let object = Object::parse(bytes.to_vec()).map_err(|e| Unasked::Failed(e.to_string()))?;
        let programs = (0..object.functions().len())
            .filter(|i| is_program(&object, *i))
            .filter(|i| wanted(&object.functions()[*i].name, &object.functions()[*i].section) != Question::Nothing)
            .map(|i| {
                let f = &object.functions()[i];
                let verdict = says(&bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default());
                ProgramVerdict::new(f.name.clone(), f.section.clone(), ProgramType::XDP, f.slots, verdict)
            })
            .collect();
        Ok(ObjectVerdict { programs, not_loadable: None })
    }

    /// A verifier that knows no atomics.
    fn without_atomics(code: &[(usize, Insn)]) -> LoadVerdict {
        match code.iter().any(|(_, insn)| matches!(insn, Insn::Atomic { .. })) {
            true => LoadVerdict::Rejected { errno: 22, log: "no atomics here".into() },
            false => LoadVerdict::Accepted,
        }
    }

    /// An object that was optimized, and what a gate did to it.
    struct Run {
        module: Module,
        object: Object,
        candidates: Vec<Candidate>,
        report: Report,
    }

    const WRITE: WriteOptions = WriteOptions { keep_debug: false };

    impl Run {
        /// Optimizes the example.
        fn new() -> Run {
            Run::of(OBJECT)
        }

        /// Optimizes an object.
        fn of(bytes: &[u8]) -> Run {
            let module = Module::new(Object::parse(bytes.to_vec()).expect("a committed object"));
            let settings = Settings::default();
            let (candidates, object) = crate::candidate::after_passes(&module, &settings);
            Run { module, object, candidates, report: Report::default() }
        }

        /// Has it settled by a gate with this judge, whose time is up when the judge says so.
        fn settle(&mut self, gate: &Gate) {
            let Run { module, object, candidates, report } = self;
            settle(gate.job(module, &Settings::default(), &WRITE), object, candidates, report).expect("it settles");
        }

        fn bytes(&self) -> Vec<u8> {
            self.object.write(&WRITE).expect("it is written").bytes
        }

        fn accepted(&self) -> bool {
            verdicts(&self.bytes(), &|_, _| Question::AsDefined, without_atomics).expect("it parses").is_accepted()
        }

        fn slots(&self) -> (usize, usize) {
            self.candidates.iter().fold((0, 0), |(a, b), c| (a + c.report.slots_before, b + c.report.slots_after))
        }
    }

    /// A gate that asks a verifier which has so much work with each atomic, and one instruction otherwise; so often, and
    /// then has no time left; and how often it asked.
    fn with_heavy_atomics(work: u64, questions: usize) -> (Gate, Rc<RefCell<usize>>) {
        let asked = Rc::new(RefCell::new(0));
        let count = asked.clone();
        let judge: Judge = Box::new(move |bytes, wanted, _| {
            let late = *count.borrow() >= questions;
            *count.borrow_mut() += usize::from(!late);
            let mut verdict =
                verdicts(bytes, wanted, |_| if late { LoadVerdict::OutOfTime } else { LoadVerdict::Accepted })?;
            let object = Object::parse(bytes.to_vec()).map_err(|e| Unasked::Failed(e.to_string()))?;
            for p in &mut verdict.programs {
                let id = object.function_named(&p.name).ok_or_else(|| Unasked::Failed("it is gone".into()))?;
                let code = bpf_isa::decode_all(object.code(id)).map_err(|e| Unasked::Failed(e.to_string()))?;
                let each = |insn: &Insn| if matches!(insn, Insn::Atomic { .. }) { work } else { 1 };
                let processed = code.iter().map(|(_, insn)| each(insn)).sum();
                p.stats = Some(bpf_kernel::VerifierStats { processed, ..Default::default() });
            }
            Ok(verdict)
        });
        (Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, None), asked)
    }

    /// No program makes more work than its original.
    fn is_light(run: &Run) -> bool {
        let works: Vec<(u64, u64)> = run.candidates.iter().filter_map(work).collect();
        !works.is_empty() && works.iter().all(|(before, after)| after <= &(before + 2))
    }

    #[test]
    fn whenever_time_ends_no_program_makes_more_work_for_the_verifier() {
        let mut sizes = Vec::new();
        for questions in 1.. {
            let mut run = Run::new();
            let (gate, asked) = with_heavy_atomics(1000, questions);
            run.settle(&gate);
            assert!(is_light(&run), "after {questions} questions: {}", run.report.gate);
            sizes.push(run.slots().1);
            if *asked.borrow() < questions {
                break;
            }
            assert!(questions < 1000, "it does not end");
        }
        assert_eq!(sizes.iter().min(), sizes.last(), "more questions gave a larger object: {sizes:?}");
    }

    fn work(c: &Candidate) -> Option<(u64, u64)> {
        Some((c.report.kernel_before.as_ref()?.processed?, c.report.kernel_after.as_ref()?.processed?))
    }

    #[test]
    fn what_makes_more_work_for_the_verifier_is_taken_back_and_nothing_else() {
        let mut run = Run::new();
        run.settle(&with_heavy_atomics(1, usize::MAX).0);
        let (all, light) = (run.slots(), run.report.gate.clone());
        assert_eq!((light.as_str(), run.report.heavier), ("accepted", 0));
        let mut run = Run::new();
        run.settle(&with_heavy_atomics(1000, usize::MAX).0);
        assert!(run.report.heavier > 0 && run.report.dropped == 0, "{}", run.report.gate);
        assert!(run.report.gate.contains("more work for the verifier"), "{}", run.report.gate);
        assert!(is_light(&run), "{}", run.report.gate);
        let named = |t: &TakenBack| t.change.is_some() && t.reason == HEAVIER;
        assert!(run.report.taken_back.iter().any(named), "{:?}", run.report.taken_back);
        let (before, after) = run.slots();
        assert!(after > all.1, "the example no longer tempts the optimizer");
        assert!(after < before, "everything was given up");
        // Two instructions more are no reason.
        let mut run = Run::new();
        run.settle(&with_heavy_atomics(2, usize::MAX).0);
        assert_eq!(run.report.heavier, 0, "{}", run.report.gate);
    }

    #[test]
    fn where_the_verifiers_work_is_the_goal_it_does_not_grow_at_all() {
        let mut grew = 0;
        for work in 1..30 {
            let growth = |may_grow: Growth| {
                let mut run = Run::new();
                run.settle(&Gate { may_grow, ..with_heavy_atomics(work, usize::MAX).0 });
                let works: Vec<(u64, u64)> = run.candidates.iter().filter_map(super::tests::work).collect();
                assert!(!works.is_empty());
                works.into_iter().map(|(before, after)| after.saturating_sub(before)).max().unwrap_or(0)
            };
            assert_eq!(growth(Growth::NONE), 0, "an atomic is {work} instructions");
            let allowed = growth(Growth::default());
            assert!(allowed <= 2, "an atomic is {work} instructions: {allowed} more");
            grew += usize::from(allowed > 0);
        }
        assert!(grew > 0, "the example no longer tempts the optimizer");
    }

    #[test]
    fn a_pass_that_is_left_out_makes_nothing() {
        let run = Run::new();
        let mut left_out = 0;
        for c in run.candidates.iter().filter(|c| c.body.is_some()) {
            for by in c.steps().iter().filter_map(|s| s.rewrite().map(|r| r.by)) {
                let without = c.without_pass(&run.module, &Settings::default(), by, &c.banned);
                assert!(without.steps().iter().all(|s| s.rewrite().is_none_or(|r| r.by != by)), "{by}");
                left_out += 1;
            }
        }
        assert!(left_out > 0, "the example no longer tempts the optimizer");
    }

    /// A gate that asks a verifier without atomics so often, the original included, and then has no time left; and how
    /// often it asked.
    fn patient_for(questions: usize) -> (Gate, Rc<RefCell<usize>>) {
        let asked = Rc::new(RefCell::new(0));
        let count = asked.clone();
        let judge: Judge = Box::new(move |bytes, wanted, _| {
            let late = *count.borrow() >= questions;
            *count.borrow_mut() += usize::from(!late);
            verdicts(bytes, wanted, |code| if late { LoadVerdict::OutOfTime } else { without_atomics(code) })
        });
        (Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, None), asked)
    }

    /// The kernel takes all, and does not show what it makes of it: that is said, and not that it refuses something.
    #[test]
    fn what_the_kernel_hides_is_taken_back_for_that() {
        let judge: Judge = Box::new(|bytes, wanted, _| {
            let object = Object::parse(bytes.to_vec()).map_err(|e| Unasked::Failed(e.to_string()))?;
            let mut all = verdicts(bytes, wanted, |_| LoadVerdict::Accepted)?;
            for p in &mut all.programs {
                let entry = object.entries(&p.name, &p.section)[0];
                let slots = object.code(entry).chunks_exact(8).map(|slot| slot.try_into().expect("eight bytes"));
                p.decided = Some(Decided::hidden(&slots.collect::<Vec<[u8; 8]>>()));
            }
            Ok(all)
        });
        let mut run = Run::new();
        run.settle(&Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, None));
        assert!(run.report.dropped > 0, "{}", run.report.gate);
        let is_so = |t: &TakenBack| t.reason == crate::decided::HIDDEN;
        assert!(run.report.taken_back.iter().all(is_so), "{:?}", run.report.taken_back);
    }

    #[test]
    fn only_the_refused_rewrite_is_taken_back() {
        let mut run = Run::new();
        assert!(!run.accepted(), "the example no longer tempts the optimizer");
        let (gate, _) = patient_for(usize::MAX);
        run.settle(&gate);
        assert!(run.accepted(), "{}", run.report.gate);
        assert!(run.report.dropped > 0, "{}", run.report.gate);
        let named = |t: &TakenBack| t.change.is_some() && t.reason == REFUSED;
        assert!(run.report.taken_back.iter().all(named), "{:?}", run.report.taken_back);
        assert_eq!(run.report.taken_back.len(), run.report.dropped);
        assert!(run.candidates.iter().all(|c| c.report.untouched.is_none()), "a whole function was given up");
        let (before, after) = run.slots();
        assert!(after < before, "everything was given up");
    }

    #[test]
    fn a_form_that_was_judged_is_not_loaded_again() {
        let mut run = Run::new();
        let (gate, asked) = patient_for(usize::MAX);
        run.settle(&gate);
        let questions = *asked.borrow();
        let bytes = run.bytes();
        run.settle(&gate);
        assert_eq!(*asked.borrow(), questions);
        assert_eq!(run.bytes(), bytes);
        // Nor is one that has not changed.
        let mut run = Run::new();
        let (gate, asked) = patient_for(usize::MAX);
        for c in &mut run.candidates {
            c.revert(&run.module, &Settings::default(), "for the test");
            c.place(&mut run.object).expect("it fits");
        }
        run.settle(&gate);
        assert_eq!(*asked.borrow(), 1);
        assert_eq!(run.report.gate, "accepted");
    }

    #[test]
    fn an_original_that_was_not_judged_in_time_is_written_as_it_was() {
        let mut run = Run::new();
        let (gate, _) = patient_for(0);
        run.settle(&gate);
        assert_eq!(run.bytes(), OBJECT);
        let kept = |c: &Candidate| c.report.untouched.as_deref() == Some(NOT_JUDGED);
        assert!(run.candidates.iter().any(kept), "{:?}", run.report.gate);
        assert!(run.report.gate.contains(NOT_JUDGED), "{}", run.report.gate);
    }

    #[test]
    fn an_original_for_which_there_were_no_means_is_written_as_it_was() {
        let why = || LoadVerdict::OutOfMeans { reason: "Too many open files".into() };
        let judge: Judge = Box::new(move |bytes, wanted, _| verdicts(bytes, wanted, |_| why()));
        let mut run = Run::new();
        run.settle(&Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, None));
        assert_eq!(run.bytes(), OBJECT);
        let kept = |c: &Candidate| c.report.untouched.as_deref() == Some("not judged: Too many open files");
        assert!(run.candidates.iter().any(kept), "{}", run.report.gate);
        assert!(run.report.gate.contains("Too many open files"), "{}", run.report.gate);
    }

    #[test]
    fn where_asking_about_the_original_fails_no_function_is_to_be_changed() {
        let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let kept = |why: Unasked| {
            let judge: Judge = Box::new(move |_, _, _| Err(why.clone()));
            Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, None).not_judged(&module).len()
        };
        assert_eq!(kept(Unasked::Failed("no descriptors".into())), module.object.functions().len());
        assert_eq!(kept(Unasked::NotPermitted("no rights".into())) + kept(Unasked::SwitchedOff), 0);
    }

    #[test]
    fn whenever_time_ends_the_object_is_one_that_was_accepted() {
        let mut best = usize::MAX;
        let mut all = usize::MAX;
        for questions in 1.. {
            let mut run = Run::new();
            let (gate, asked) = patient_for(questions);
            run.settle(&gate);
            assert!(run.accepted(), "after {questions} questions: {}", run.report.gate);
            let (before, after) = run.slots();
            assert!(after <= before);
            best = best.min(after);
            if *asked.borrow() < questions {
                all = after;
                break;
            }
            assert!(questions < 1000, "it does not end");
        }
        assert_eq!(best, all, "more questions gave a larger object");
    }

    #[test]
    fn a_later_form_that_was_not_judged_in_time_gives_way_to_the_one_accepted_before() {
        let mut run = Run::new();
        // Only what is accepted at once, so that one question is enough.
        for c in &mut run.candidates {
            let n = (0..=c.steps().len()).rev().find(|&n| {
                let mut trial = c.clone();
                trial.rewind(&run.module, &Settings::default(), n);
                let mut object = run.module.object.clone();
                trial.place(&mut object).expect("it fits");
                let bytes = object.write(&WRITE).expect("it is written").bytes;
                verdicts(&bytes, &|_, _| Question::AsDefined, without_atomics).expect("it parses").is_accepted()
            });
            c.rewind(&run.module, &Settings::default(), n.expect("the original is accepted"));
            c.place(&mut run.object).expect("it fits");
        }
        let (gate, asked) = patient_for(2);
        run.settle(&gate);
        assert_eq!((run.report.gate.as_str(), *asked.borrow()), ("accepted", 2));
        let accepted = run.bytes();
        assert_ne!(accepted, OBJECT);
        run.candidates.iter_mut().for_each(|c| c.run_passes(&run.module, &Settings::default()));
        for c in &run.candidates {
            c.place(&mut run.object).expect("it fits");
        }
        assert_ne!(run.bytes(), accepted, "the passes found nothing more");
        run.settle(&gate);
        assert_eq!(run.bytes(), accepted);
        assert!(run.report.gate.contains(NOT_JUDGED), "{}", run.report.gate);
    }

    #[test]
    fn nothing_is_asked_when_time_is_up() {
        let judge: Judge = Box::new(|bytes, wanted, deadline| {
            assert!(deadline.is_none(), "a result was loaded");
            verdicts(bytes, wanted, without_atomics)
        });
        let gate = Gate::with(OBJECT, judge, &|_, _| Question::AsDefined, None, Some(Instant::now()));
        let mut run = Run::new();
        run.settle(&gate);
        assert_eq!(run.bytes(), OBJECT);
    }

    #[test]
    fn what_the_kernel_does_not_look_at_check_judges() {
        const TEMPTING: &[u8] = include_bytes!("../../tests/fixtures/entries.o");
        let safe = |bytes: &[u8]| {
            let object = Object::parse(bytes.to_vec()).expect("an object");
            let all = checked::originals(&object, &[0, 1, 2], None, None);
            let safe = all.iter().filter(|c| matches!(c.original, Original::Taken(_)));
            safe.map(|c| object.functions()[c.id.0].name.clone()).collect::<Vec<_>>()
        };
        // This place can load one of them only.
        let judge: Judge = Box::new(|bytes, wanted, _| {
            let mut verdict = verdicts(bytes, wanted, |_| LoadVerdict::Accepted)?;
            for p in verdict.programs.iter_mut().filter(|p| p.name != "one_name") {
                p.verdict = LoadVerdict::NotLoadable { reason: "no such map".into() };
            }
            Ok(verdict)
        });
        let mut run = Run::of(TEMPTING);
        assert_eq!(safe(TEMPTING), ["switched_off", "of_this_file", "one_name"]);
        // A program of two names is not changed.
        assert_eq!(safe(&run.bytes()), ["of_this_file", "one_name"], "the example no longer tempts the optimizer");
        let mut gate = Gate::with(TEMPTING, judge, &|_, _| Question::AsDefined, None, None);
        gate.checked = checked::originals(&run.module.object, &gate.not_looked_at(&run.module.object), None, None);
        run.settle(&gate);
        let Report { unsafe_changes, dropped, check, gate, .. } = &run.report;
        assert!(*unsafe_changes > 0 && *dropped == 0, "{gate}; {check:?}");
        assert!(check.as_deref().is_some_and(|c| c.starts_with("2 of 2 program(s) ")), "{check:?}");
        assert_eq!(safe(&run.bytes()), ["switched_off", "of_this_file", "one_name"]);
    }
}
