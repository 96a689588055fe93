//! Runs the cases of `tests/equivalence/**/*.bpf`, which anyone may add to; `README.md` there says how they are written.
//! A binary of its own, since scripts run it by name.
//!
//! One test runs them all in parallel. A case with `after:` goes through [`bpf_driver::verify`], as `bpf-opt verify`
//! would; one without goes through [`bpf_driver::optimize`], with the passes alone and with a short search. With
//! `; run:` the kernel runs both versions, too, where it is there.
//!
//! - `BPF_OPT_CASES=frame` runs the cases with that in their path only.
//! - `BLESS=1` rewrites `; expect:`, `result:` and `; fails:` to what was found.
//! - `BPF_OPT_REQUIRE_KERNEL=1` makes it a failure that a `; run:` cannot be done.
//!
//! A case with `; fails:` is known to fail for now. When it passes, that line has to go, and the test says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bpf_driver::difftest::{Pair, Random, Setup};
use bpf_driver::{FunctionVerdict, Goal, Options, PassSelection, Report, Silent, optimize, verify};
use bpf_isa::Insn;
use bpf_kernel::{LoadOptions, LoadVerdict, load_object};
use bpf_object::{FuncId, Object};
use bpf_testgen::case::{Case, Expect, Run, with_expect, with_result, without_fails};
use bpf_testgen::files;
use similar::TextDiff;

/// For the proof of one function.
const PROOF: Duration = Duration::from_secs(10);
/// For `opt` with the search.
const SEARCH: Duration = Duration::from_secs(3);
/// How much longer a proof or an optimization that stopped for want of time may take: a busy machine is no finding.
const PATIENCE: u32 = 6;
/// Runs of both versions: rounds, and packets in each. Maps are filled anew for each round.
const ROUNDS: u64 = 6;
const PACKETS: usize = 50;

/// What came of a case.
enum Outcome {
    Passed,
    /// It fails, and says so.
    FailsForNow,
    Failed(String),
}

/// A case's outcome, and what else is to be told.
struct Finding {
    name: String,
    outcome: Outcome,
    notes: Vec<String>,
    seconds: f64,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/equivalence")
}

#[test]
fn every_case_is_judged_as_it_says() {
    let root = folder();
    let mut paths = files::below(&root, "bpf");
    let filter = std::env::var("BPF_OPT_CASES").unwrap_or_default();
    let name = |p: &Path| p.strip_prefix(&root).unwrap_or(p).to_string_lossy().into_owned();
    paths.retain(|p| name(p).contains(&filter));
    assert!(!paths.is_empty(), "no case in {} has `{filter}` in its path", root.display());
    let kernel = bpf_kernel::permitted().require().map_err(|e| e.to_string());
    if let Err(why) = &kernel {
        assert!(!is_required(), "{why}");
        eprintln!("`; run:` is skipped: {why}");
    }
    let (next, findings) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(paths.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    let mut notes = vec![];
                    let outcome = judge(path, kernel.is_ok(), &mut notes);
                    let seconds = started.elapsed().as_secs_f64();
                    findings.lock().unwrap().push(Finding { name: name(path), outcome, notes, seconds });
                }
            });
        }
    });
    let mut findings = findings.into_inner().unwrap();
    findings.sort_by(|a, b| a.name.cmp(&b.name));
    report(&findings);
}

/// Prints what was found, and fails if anything failed.
fn report(findings: &[Finding]) {
    let mut topics: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for f in findings {
        let topic = topics.entry(f.name.split('/').next().unwrap_or("")).or_default();
        topic[usize::from(matches!(f.outcome, Outcome::FailsForNow))] += 1;
        for note in &f.notes {
            println!("{}: {note}", f.name);
        }
        if f.seconds > 5.0 {
            println!("{}: took {:.1} s", f.name, f.seconds);
        }
    }
    for (topic, [passed, fails]) in topics {
        let fails = if fails > 0 { format!(", {fails} known to fail") } else { String::new() };
        println!("{topic:<24} {passed} cases{fails}");
    }
    let failed: Vec<String> = findings
        .iter()
        .filter_map(|f| match &f.outcome {
            Outcome::Failed(why) => Some(format!("{}: {why}", f.name)),
            _ => None,
        })
        .collect();
    assert!(failed.is_empty(), "{} of {} cases failed\n\n{}", failed.len(), findings.len(), failed.join("\n\n"));
}

/// Whether a file's demands are met; rewrites the file if that is asked for.
fn judge(path: &Path, kernel: bool, notes: &mut Vec<String>) -> Outcome {
    let bless = std::env::var_os("BLESS").is_some_and(|v| v == "1");
    let text = std::fs::read_to_string(path).expect("the case can be read");
    let case = match Case::parse(&text) {
        Ok(case) => case,
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    let mut better = text.clone();
    let mut problems = vec![];
    let checked = match &case.after {
        Some(_) => pair(&case, kernel, &mut better, &mut problems, notes),
        None => optimized(&case, kernel, &mut better, &mut problems, notes),
    };
    if let Err(why) = checked {
        return Outcome::Failed(why);
    }
    if kernel && case.run.is_none() {
        // A case may be about what this kernel cannot load; its writer should know.
        let why = case.old_object().map(|old| refusal(&case, &old)).unwrap_or_default();
        if !why.is_empty() {
            notes.push(format!("`before` does not load: {why}"));
        }
    }
    match (&case.fails, problems.is_empty()) {
        (None, true) => Outcome::Passed,
        (Some(_), false) => {
            notes.push(format!("fails for now ({})", case.fails.as_deref().unwrap_or_default()));
            Outcome::FailsForNow
        }
        (Some(_), true) if bless => {
            notes.push("blessed: it passes now".into());
            write(path, &without_fails(&text))
        }
        (Some(why), true) => {
            Outcome::Failed(format!("it passes: the line `; fails: {why}` has to go (BLESS=1 removes it)"))
        }
        (None, false) if bless && better != text => {
            notes.push(format!("blessed: {}", problems.join("\n")));
            write(path, &better)
        }
        (None, false) => Outcome::Failed(problems.join("\n")),
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    match std::fs::write(path, text) {
        Ok(()) => Outcome::Passed,
        Err(e) => Outcome::Failed(format!("it cannot be rewritten: {e}")),
    }
}

/// A case of two versions.
fn pair(
    case: &Case,
    kernel: bool,
    better: &mut String,
    problems: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let old = case.old_object().map_err(|e| format!("before: {e}"))?;
    let new = case.new_object().map_err(|e| format!("after: {e}"))?.unwrap_or_default();
    if case.asks_kernel && !kernel {
        notes.push("not judged: it is about what the kernel says".into());
        return Ok(());
    }
    let expect = case.expect.unwrap_or(Expect::Equal);
    let (mut found, mut detail) = verdict_within(PROOF, case, &old, &new)?;
    if found == Expect::NotProven && matches!(expect, Expect::Equal | Expect::Refuted) && case.fails.is_none() {
        (found, detail) = verdict_within(PROOF * PATIENCE, case, &old, &new)?;
    }
    let met = match expect {
        Expect::NotProven => found != Expect::Equal,
        Expect::NotRefuted => found != Expect::Refuted,
        _ => found == expect,
    };
    if !met {
        *better = with_expect(better, found);
        problems.push(format!(
            "expected {}, found {}: {detail}\n{}",
            expect.word(),
            found.word(),
            diff(&listing(&old), &listing(&new))
        ));
    }
    // What the kernel shows is no matter of what the prover can do: `; fails:` does not cover it.
    let mut unlike = vec![];
    run(case, kernel, &old, &new, &mut unlike, notes);
    if unlike.is_empty() { Ok(()) } else { Err(unlike.join("\n")) }
}

/// What `verify` says of a case's two versions, and why.
fn verdict_within(limit: Duration, case: &Case, old: &[u8], new: &[u8]) -> Result<(Expect, String), String> {
    // What the proofs say, without the runs that would come first.
    let options = Options {
        time_limit: limit,
        strict_shared_memory: case.strict,
        run_check: case.asks_kernel,
        program_type: case.program_type.clone(),
        ..Options::default()
    };
    let report = verify(old, new, &options).map_err(|e| e.to_string())?;
    let refused = report.refused.iter().map(|p| format!("{}: {}", p.name, p.reason));
    let not_replaced = refused.chain(report.unknowns.iter().cloned()).next().filter(|_| case.asks_kernel);
    let refuted = report.functions.iter().find_map(|(name, v)| match v {
        FunctionVerdict::Different { explanation } => Some((name, explanation)),
        _ => None,
    });
    let unknown = report.functions.iter().find_map(|(name, v)| match v {
        FunctionVerdict::Unknown { reason } => Some(format!("{name}: {reason}")),
        _ => None,
    });
    Ok(match (refuted, unknown, report.differences.first()) {
        (Some((name, explanation)), ..) => {
            shown(explanation).map_err(|e| format!("{name} is refuted, and the run does not show it: {e}"))?;
            (Expect::Refuted, format!("{name}:\n  {}", explanation.join("\n  ")))
        }
        (None, Some(why), _) => (Expect::NotProven, why),
        (None, None, Some(difference)) => (Expect::NotProven, difference.clone()),
        (None, None, None) if not_replaced.is_some() => (Expect::NotProven, not_replaced.unwrap_or_default()),
        (None, None, None) => (Expect::Equal, "proven equal".into()),
    })
}

/// Two outcomes that differ, as a refutation must have.
fn shown(explanation: &[String]) -> Result<(), String> {
    // What running both has shown, before any proof: it lists differences only.
    if explanation.iter().any(|l| l.starts_with("first and second: ")) {
        return Ok(());
    }
    let line = |what: &str| explanation.iter().find_map(|l| l.strip_prefix(what)).ok_or(format!("no line `{what}`"));
    let (old, new) = (line("old: ")?, line("new: ")?);
    line("first difference: ")?;
    if old == new { Err(format!("both {old}")) } else { Ok(()) }
}

/// A case about what `opt` makes of one version.
fn optimized(
    case: &Case,
    kernel: bool,
    better: &mut String,
    problems: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let old = case.old_object().map_err(|e| format!("before: {e}"))?;
    // Some passes alone are shown on code that no kernel need take.
    let alone = !case.passes.is_empty();
    for search in [false, true].into_iter().filter(|search| !(*search && alone)) {
        let mut found = optimized_within(SEARCH, search, case, kernel, &old, better, notes)?;
        if found.wrong.is_empty() && !found.missed.is_empty() && case.fails.is_none() {
            found = optimized_within(SEARCH * PATIENCE, search, case, kernel, &old, better, notes)?;
        }
        problems.extend(found.wrong.into_iter().chain(found.missed));
    }
    Ok(())
}

/// What is not as a case says of `opt`'s result.
#[derive(Default)]
struct Unmet {
    /// What must not be: never tried again.
    wrong: Vec<String>,
    /// What was to be found, and may take longer.
    missed: Vec<String>,
}

/// What is not as the case says of `opt`'s result, with or without the search.
fn optimized_within(
    limit: Duration,
    search: bool,
    case: &Case,
    kernel: bool,
    old: &[u8],
    better: &mut String,
    notes: &mut Vec<String>,
) -> Result<Unmet, String> {
    let alone = !case.passes.is_empty();
    let mut unmet = Unmet::default();
    let options = Options {
        passes: if alone { PassSelection::Only(case.passes.clone()) } else { PassSelection::All },
        cpu: case.cpu,
        goal: if case.latency { Goal::latency() } else { Goal::Size },
        kernel: !alone,
        time_limit: limit,
        // The case is about what the proofs let through.
        run_check: false,
        strict_shared_memory: case.strict,
        ssa: case.global,
        search,
        program_type: case.program_type.clone(),
        ..Options::default()
    };
    let (new, report) = optimize(old, &options, &Silent).map_err(|e| e.to_string())?;
    let with = if search { "with the search" } else { "with the passes" };
    let insns = instructions(&new);
    for keep in case.keeps.iter().filter(|k| !insns.contains(k)) {
        unmet.wrong.push(format!("{with}, `{keep}` is gone\n{}", diff(&listing(old), &listing(&new))));
    }
    for drop in case.drops.iter().filter(|d| insns.contains(d)) {
        unmet.missed.push(format!("{with}, `{drop}` is still there\n{}", diff(&listing(old), &listing(&new))));
    }
    let after = listing(&new);
    for text in case.shows.iter().filter(|t| !after.contains(t.as_str())) {
        unmet.missed.push(format!("{with}, no `{text}`\n{}", diff(&listing(old), &after)));
    }
    for text in case.hides.iter().filter(|t| after.contains(t.as_str())) {
        unmet.missed.push(format!("{with}, `{text}` is still there\n{}", diff(&listing(old), &after)));
    }
    // What the search comes to depends on the time it has.
    if let (Some(expected), false) = (&case.result, search) {
        let found = result(&report);
        if found != *expected {
            unmet.missed.push(format!("opt comes to another result\n{}", diff(expected, &found)));
            *better = with_result(better, &found);
        }
    }
    if case.asks_kernel && kernel {
        let options = Options { time_limit: PROOF, program_type: case.program_type.clone(), ..Options::default() };
        let report = verify(old, &new, &options).map_err(|e| e.to_string())?;
        let refused: Vec<_> = report.refused.iter().map(|p| format!("{}: {}", p.name, p.reason)).collect();
        if !report.is_equal() {
            let why = [refused, report.unknowns, report.differences].concat().join("; ");
            unmet
                .wrong
                .push(format!("{with}, it is not worth the same: {why}\n{}", diff(&listing(old), &listing(&new))));
        }
    }
    run(case, kernel, old, &new, &mut unmet.wrong, notes);
    Ok(unmet)
}

/// What `result:` holds.
fn result(report: &Report) -> String {
    let mut text = String::new();
    for f in &report.functions {
        text += &format!("{}:\n", f.name);
        for line in &f.listing_after {
            text += &format!("    {}\n", line.trim());
        }
    }
    text
}

/// Runs both in the kernel, in a network of their own, if the case asks for it.
fn run(case: &Case, kernel: bool, old: &[u8], new: &[u8], problems: &mut Vec<String>, notes: &mut Vec<String>) {
    let Some(expected) = case.run.filter(|_| kernel) else { return };
    let mut said = vec![];
    match bpf_kernel::in_private_network(|| compare(case, expected, old, new, &mut said, notes)) {
        Ok(()) => problems.extend(said),
        Err(e) => notes.push(format!("not run: no network namespace: {e}")),
    }
}

/// Whether the kernel notes something else of a program of the new version.
fn noted_otherwise(case: &Case, old: &[u8], new: &[u8]) -> bool {
    let load = LoadOptions { program_type: case.program_type.clone(), only: None };
    let [Ok(old), Ok(new)] = [old, new].map(|bytes| load_object(bytes, &load)) else { return false };
    old.programs.iter().any(|p| new.program(&p.name).is_some_and(|q| p.made_otherwise(q).is_some()))
}

fn compare(case: &Case, expected: Run, old: &[u8], new: &[u8], problems: &mut Vec<String>, notes: &mut Vec<String>) {
    let setup = Setup { program_type: case.program_type.clone(), allow_effects: true, ..Setup::default() };
    let mut pair = match Pair::load(old, new, setup) {
        Ok(_) if expected == Run::Refused => {
            if !noted_otherwise(case, old, new) {
                problems.push("the kernel takes both versions, and notes the same of them".into());
            }
            return;
        }
        Ok(pair) => pair,
        Err(e) if e.second && expected == Run::Refused => return,
        Err(e) if e.second => {
            return problems.push(format!("the kernel refuses the new version: {}", refusal(case, new)));
        }
        Err(_) if is_required() && !is_refused_by_the_place(case, old) => {
            return problems.push(format!("the kernel refuses the old version: {}", refusal(case, old)));
        }
        Err(_) => return notes.push(format!("not run: {}", refusal(case, old))),
    };
    let packets = case.packet.clone().map(|p| vec![p]);
    let names: Vec<String> = pair.programs().map(str::to_owned).collect();
    let (mut runs, mut difference, mut open) = (0, None, None);
    for (name, round) in names.iter().flat_map(|n| (0..ROUNDS).map(move |r| (n, r))) {
        let found = pair.round(name, &mut Random::of(1, round), PACKETS, packets.as_deref());
        runs += found.runs;
        difference = difference.or(found.difference);
        open = open.or(found.open);
    }
    match (expected, difference) {
        (_, None) if runs == 0 => problems.push(format!("no program runs in the kernel: {:?}", pair.skipped)),
        (Run::Same, Some(d)) => problems.push(format!(
            "the kernel shows a difference in {}: {}\n{}",
            d.program,
            d.what.join("; "),
            diff(&listing(old), &listing(new))
        )),
        (_, None) if open.is_some() => problems.push(format!("a run differs, perhaps not always: {open:?}")),
        (Run::Differs, None) => problems.push(format!("{runs} runs in the kernel show no difference")),
        _ => {}
    }
}

/// Whether a run that cannot be done is a failure.
fn is_required() -> bool {
    std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_some()
}

/// Whether programs of such a type may not be loaded here, or the kernel lacks what they need: nothing was found wrong with them.
fn is_refused_by_the_place(case: &Case, bytes: &[u8]) -> bool {
    let options = LoadOptions { program_type: case.program_type.clone(), ..LoadOptions::default() };
    let Ok(verdict) = load_object(bytes, &options) else { return false };
    let mut refused = verdict.programs.iter().map(|p| &p.verdict).filter(|v| !v.is_accepted()).peekable();
    refused.peek().is_some() && refused.all(|v| matches!(v, LoadVerdict::Unsupported { .. }))
}

/// Why the kernel does not load an object.
fn refusal(case: &Case, bytes: &[u8]) -> String {
    let options = LoadOptions { program_type: case.program_type.clone(), ..LoadOptions::default() };
    let verdict = match load_object(bytes, &options) {
        Ok(verdict) => verdict,
        Err(e) => return e.to_string(),
    };
    let refused = verdict.programs.iter().filter(|p| !p.verdict.is_accepted());
    let refused = refused.map(|p| format!("{}: {}", p.name, p.verdict.reason()));
    refused.chain(verdict.not_loadable.clone()).collect::<Vec<_>>().join("; ")
}

/// The functions of an object with their instructions.
fn listing(bytes: &[u8]) -> String {
    let Ok(object) = Object::parse(bytes.to_vec()) else { return String::new() };
    let mut text = String::new();
    for (i, f) in object.functions().iter().enumerate() {
        text += &format!("{}:\n", f.name);
        for (_, insn) in bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default() {
            text += &format!("    {insn}\n");
        }
    }
    text
}

fn instructions(bytes: &[u8]) -> Vec<Insn> {
    let Ok(object) = Object::parse(bytes.to_vec()) else { return vec![] };
    let code = (0..object.functions().len()).map(|i| bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default());
    code.flatten().map(|(_, insn)| insn).collect()
}

fn diff(old: &str, new: &str) -> String {
    TextDiff::from_lines(old, new).unified_diff().context_radius(100).header("before", "after").to_string()
}
