//! `bpf-opt opt`: optimize, write, tell.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bpf_driver::timing::Call;
use bpf_driver::{
    FunctionReport, KernelVerdict, Options, PassSelection, Reached, Report, RunCheck, TakenBack, Variant,
};
use bpf_object::Object;
use serde::Serialize;

use crate::args::{FormArg, GoalArg, OptArgs};
use crate::declared::{self, Specialized};
use crate::diff::{self, is_changed};
use crate::document::Head;
use crate::explain;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::{Input, form_of_name};
use crate::page::{self, Top};
use crate::progress::{Interrupt, Progress};
use crate::verdict;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    input: &'a Path,
    output: &'a Path,
    goal: &'static str,
    seed: u64,
    time_limit: f64,
    rounds: Option<u64>,
    interrupted: bool,
    totals: Option<Totals>,
    variants: &'a [Kept],
    #[serde(skip_serializing_if = "Option::is_none")]
    specialized: Option<&'a Specialized>,
    #[serde(flatten)]
    report: Option<&'a Report>,
}

/// One of the forms that `--keep` asks for.
#[derive(Serialize)]
struct Kept {
    /// Where it is; `None`: it was made to be measured, and is not the best.
    output: Option<PathBuf>,
    slots: usize,
    time_ratio: Option<f64>,
    time_call: Option<Call>,
    /// Time that it took to make it.
    seconds: f64,
}

impl Kept {
    fn of(form: &Variant, output: Option<PathBuf>) -> Kept {
        let (slots, seconds) = (form.report.slots().1, form.report.seconds);
        let (time_ratio, time_call) = (form.measured.map(|m| m.ratio), form.measured.map(|m| m.call));
        Kept { output, slots, time_ratio, time_call, seconds }
    }
}

/// Sums over all functions.
#[derive(Serialize)]
struct Totals {
    functions: usize,
    changed: usize,
    untouched: usize,
    slots_before: usize,
    slots_after: usize,
    saved_percent: f64,
    proofs: usize,
    refused: usize,
    sat_calls: u64,
    verified_before: Option<u64>,
    verified_after: Option<u64>,
}

impl Totals {
    fn of(report: &Report) -> Totals {
        let all = &report.functions;
        let (slots_before, slots_after) = report.slots();
        let verified = |which: fn(&FunctionReport) -> Option<&KernelVerdict>| {
            all.iter().filter_map(|f| which(f)?.processed).reduce(|a, b| a + b)
        };
        Totals {
            functions: all.len(),
            changed: all.iter().filter(|f| is_changed(f)).count(),
            untouched: all.iter().filter(|f| f.untouched.is_some()).count(),
            slots_before,
            slots_after,
            saved_percent: saved_percent(slots_before, slots_after),
            proofs: all.iter().map(|f| f.proofs).sum(),
            refused: all.iter().map(|f| f.refused).sum(),
            sat_calls: all.iter().map(|f| f.sat_calls).sum(),
            verified_before: verified(|f| f.kernel_before.as_ref()),
            verified_after: verified(|f| f.kernel_after.as_ref()),
        }
    }
}

/// Runs the command.
pub fn run(args: &OptArgs) -> Result<u8, Failure> {
    let cache = args.cache_file();
    let besides: Vec<&Path> = [args.input.as_path(), &args.output].into_iter().chain(cache.as_deref()).collect();
    let json = Destination::of_report(args.json.as_deref(), &besides)?;
    if matches!(json, Some(Destination::Stdout)) {
        for (option, wanted) in [("--diff", args.diff), ("--explain", args.explain)] {
            if wanted {
                return Err(Failure::bad_input(format!("{option} and --json - both want standard output")));
            }
        }
    }
    let page = args.report.as_deref().map(Destination::of).transpose()?;
    if let Some(page) = &page {
        let besides: Vec<&Path> = besides.iter().copied().chain(args.json.as_deref()).collect();
        page.overwrites_none("the report", &besides, "name another file behind --report")?;
    }
    let interrupt = Interrupt::listen();
    if args.keep.is_some_and(|n| n > 1) && args.goal != GoalArg::Latency {
        return Err(Failure::bad_input("--keep ranks by time: it needs --goal latency"));
    }
    let outcome = optimize(args, &interrupt, page.as_ref());
    let interrupted = interrupt.requested();
    let code = match &outcome {
        Ok(_) if interrupted => exit::INTERRUPTED,
        Ok(_) => exit::YES,
        Err(failure) => failure.code,
    };
    if let Some(json) = json {
        files::write_json(&json, &document(args, code, interrupted, outcome.as_ref()))?;
    }
    let done = outcome?;
    files::print(&done.diff);
    for line in done.summary {
        files::complain(line);
    }
    Ok(code)
}

fn document<'a>(
    args: &'a OptArgs,
    exit_status: u8,
    interrupted: bool,
    outcome: Result<&'a Done, &'a Failure>,
) -> Document<'a> {
    Document {
        head: Head::new(if args.declared.is_some() { "specialize" } else { "opt" }, exit_status, outcome.err()),
        input: &args.input,
        output: &args.output,
        goal: args.goal.name(),
        seed: args.seed,
        time_limit: args.time_limit().as_secs_f64(),
        rounds: args.rounds,
        interrupted,
        totals: outcome.ok().map(|done| Totals::of(&done.report)),
        variants: outcome.ok().map_or(&[], |done| &done.kept),
        specialized: outcome.ok().and_then(|done| done.specialized.as_ref()),
        report: outcome.ok().map(|done| &done.report),
    }
}

/// What is left to do once the output is written.
struct Done {
    report: Report,
    kept: Vec<Kept>,
    specialized: Option<Specialized>,
    diff: String,
    summary: Vec<String>,
}

/// Everything up to the written output, which comes last.
fn optimize(args: &OptArgs, interrupt: &Interrupt, page: Option<&Destination>) -> Result<Done, Failure> {
    const HINT: &str = "name another output behind -o";
    let started = Instant::now();
    let output = Destination::of(&args.output)?;
    let cache = args.cache_file();
    output.overwrites_none("the result", cache.as_deref().as_slice(), HINT)?;
    let taken = [Some(args.input.as_path()), args.json.as_deref(), args.report.as_deref(), cache.as_deref()];
    let also = args.also.iter().map(PathBuf::as_path);
    let taken: Vec<&Path> = taken.into_iter().flatten().chain(also).collect();
    for path in (2..=args.keep.unwrap_or(1).into()).map(|n| beside(&args.output, n)) {
        Destination::of(&path)?.overwrites_none("a form kept by --keep", &taken, HINT)?;
    }
    let progress = Progress::new(interrupt.clone(), args.quiet);
    let taken = Input::read(&args.input, &args.raw, args.program_type.as_deref())?;
    let (program_type, array, input) = (taken.forced_type(args.program_type.as_deref()), taken.array, taken.object);
    let original = input;
    let done = args.declared.as_ref().map(|d| declared::specialized(&args.input, &original, d)).transpose()?;
    let specialized = done.as_ref().map(Specialized::of);
    if let Some(done) = done.as_ref().filter(|_| !args.no_kernel) {
        declared::loads(&args.input, &original, &done.bytes, args.program_type.as_deref())?;
    }
    let input = done.map_or_else(|| original.clone(), |done| done.bytes);
    // What is optimized is an object; what is written is what was read, unless another form is asked for.
    let as_written = |object: &[u8]| match &array {
        None => Ok(object.to_vec()),
        Some(array) => match args.form.map(FormArg::form).or_else(|| form_of_name(&args.output)) {
            Some(None) => Ok(object.to_vec()),
            Some(Some(form)) => array.array(object, form),
            None => array.array(object, array.form),
        },
    };
    let mode = files::mode_of(&args.input);
    let queries = args.dump_queries.as_deref().map(files::query_folder).transpose()?;
    let recorder = queries.as_ref().map(|q| q.recorder());
    let also = args.also.iter().map(|path| {
        let other = Input::read(path, &args.raw, args.program_type.as_deref())?.object;
        Object::parse(other.clone()).map_err(|e| Failure::object(path, &e))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), other))
    });
    let also = also.collect::<Result<_, Failure>>()?;
    let mut options = Options { queries: recorder, program_type, also, ..args.options() };
    let several = options.forms > 1;
    // What is wrong with it is told by whoever optimizes it.
    let object = Object::parse(original).ok();
    let stripped = object.as_ref().is_some_and(Object::is_stripped);
    if stripped {
        (options.passes, options.ssa, options.search) = (PassSelection::None, false, false);
    }
    let outcome = match several {
        false => bpf_driver::optimize(&input, &options, &progress)
            .map(|(bytes, report)| vec![Variant { bytes, report, measured: None }]),
        true => bpf_driver::variants(&input, &options, &progress),
    };
    progress.finish();
    files::queries_written(queries)?;
    let mut forms = outcome.map_err(|e| Failure::driver(&args.input, &e))?;
    let mut kept = Vec::new();
    // The best comes last, so that the others are there when it is. Nobody finds files beside it that were not asked for.
    for (i, form) in forms.iter().enumerate().skip(1).rev() {
        let path = args.keep.map(|_| beside(&args.output, i + 1));
        if let Some(path) = &path {
            Destination::of(path)?.write(&as_written(&form.bytes)?, mode)?;
        }
        kept.push(Kept::of(form, path));
    }
    let mut best = forms.swap_remove(0);
    if several {
        kept.push(Kept::of(&best, Some(args.output.clone())));
        kept.reverse();
        // All forms were made, and measured.
        best.report.seconds = started.elapsed().as_secs_f64();
    }
    if stripped {
        best.report.warnings.push(format!("{}: {STRIPPED}", args.input.display()));
    }
    best.report.notes.extend(object.as_ref().and_then(about_static_programs));
    let fewer = args.keep.filter(|n| *n > 1 && kept.len() < (*n).into());
    let fewer = fewer.map(|n| format!("note: only {} of the {n} forms asked for came about", kept.len()));
    let mut report = best.report;
    if let Some(original) = object.as_ref().filter(|_| specialized.is_some()) {
        declared::correct(&mut report, original);
    }
    let mut diff = if args.explain { explain::report(&report) } else { String::new() };
    // It is ours, and was read again already.
    let result = (args.diff || page.is_some()).then(|| Object::parse(best.bytes.clone()).ok()).flatten();
    let both = object.as_ref().zip(result.as_ref());
    if let Some((before, after)) = both.filter(|_| args.diff) {
        diff += &diff::report(&report, before, after, &diff::Options { full: args.full, lines: args.lines });
    }
    let remarks = remarks(&report, args, interrupt.requested());
    let mut summary = summary(&report, args, &remarks, interrupt.requested());
    if let Some((page, (before, after))) = page.zip(both) {
        let html = page::html(&top(args, &report, remarks), &report, before, after);
        let html = html.map_err(|e| Failure::internal(format!("the report is no JSON: {e}")))?;
        page.write(html.as_bytes(), None)?;
    }
    if !args.quiet {
        summary.splice(0..0, specialized.iter().flat_map(Specialized::lines));
        summary.extend(fewer);
        summary.extend(kept.iter().filter_map(form_line));
    }
    output.write(&as_written(&best.bytes)?, mode)?;
    Ok(Done { report, kept, specialized, diff, summary })
}

/// A form that was written.
fn form_line(kept: &Kept) -> Option<String> {
    let time = match (kept.time_ratio, kept.time_call) {
        (Some(ratio), Some(call)) => {
            let beyond = if call == Call::Noise { ", no difference beyond noise" } else { "" };
            format!("{:.1} % of the original's time{beyond}", 100.0 * ratio)
        }
        _ => "not measured".to_owned(),
    };
    Some(format!("{}: {} slots, {time}", kept.output.as_ref()?.display(), kept.slots))
}

/// Of an object without symbols.
const STRIPPED: &str = "it has no symbol table (fully stripped), so nothing can load it; left as it was";

/// A note about programs whose symbols are local, if there are any: the kernel takes them, and libbpf does not.
fn about_static_programs(object: &Object) -> Option<String> {
    let names: Vec<&str> = object.static_programs().collect();
    (!names.is_empty()).then(|| {
        format!(
            "libbpf loads no object with static programs; here they are judged as if they were not: {}",
            names.join(", ")
        )
    })
}

/// `out.o` and 2: `out.2.o`.
fn beside(output: &Path, number: usize) -> PathBuf {
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    let extension = output.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    output.with_file_name(format!("{name}.{number}{extension}"))
}

/// What people read, line by line; `remarks` are about the object as a whole.
fn summary(report: &Report, args: &OptArgs, remarks: &[String], interrupted: bool) -> Vec<String> {
    if args.quiet {
        return report.warnings.iter().map(|w| format!("warning: {w}")).collect();
    }
    let mut lines: Vec<String> = report.functions.iter().map(function_line).collect();
    if args.stats {
        lines.extend(report.functions.iter().map(stats_line));
    }
    lines.extend_from_slice(remarks);
    let totals = Totals::of(report);
    lines.push(format!(
        "total: {}, {}, {:.2} s; {}{}",
        slots(totals.slots_before, totals.slots_after),
        proofs(totals.proofs),
        report.seconds,
        if interrupted { "interrupted, best result so far written to " } else { "written to " },
        args.output.display()
    ));
    lines
}

/// What is to be said of the object as a whole, line by line.
fn remarks(report: &Report, args: &OptArgs, interrupted: bool) -> Vec<String> {
    // What has a line of its own needs no second one.
    let told = |w: &&String| {
        let line = |f: &FunctionReport| {
            f.untouched.as_ref().is_some_and(|why| **w == format!("{}: left as it was: {why}", f.name))
        };
        !report.functions.iter().any(line)
    };
    let mut lines: Vec<String> = report.warnings.iter().filter(told).map(|w| format!("warning: {w}")).collect();
    lines.extend(report.notes.iter().map(|n| format!("note: {n}")));
    if !report.gate.is_empty() {
        lines.push(format!("kernel: {}", report.gate));
    }
    lines.extend(report.check.iter().map(|check| format!("check: {check}")));
    lines.extend(taken_back(&report.taken_back));
    if let Some(check) = &report.run_check {
        lines.push(runs_line(check));
    }
    // Who interrupts knows why it ended.
    if report.timed_out && !interrupted {
        lines.push(format!("note: the time limit of {} s cut the search short", args.time_limit().as_secs_f64()));
    }
    lines
}

/// What stands above the report for a browser.
fn top<'a>(args: &OptArgs, report: &'a Report, remarks: Vec<String>) -> Top<'a> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Top {
        version: env!("CARGO_PKG_VERSION"),
        input: name(&args.input),
        output: name(&args.output),
        goal: args.goal.name(),
        seed: args.seed,
        kernel: (!args.no_kernel).then(bpf_kernel::release),
        // A table has them.
        remarks: remarks.into_iter().filter(|r| !r.starts_with("taken back: ")).collect(),
        taken_back: &report.taken_back,
        search: report.search.as_ref(),
        seconds: report.seconds,
    }
}

/// What the paper's Tables 1 and 7 have of a function.
fn stats_line(f: &FunctionReport) -> String {
    let shape = f.shape.map_or_else(
        || "no graph".to_owned(),
        |s| match s.longest_path {
            Some(path) => format!("{} blocks, {path} on the longest path", s.blocks),
            None => format!("{} blocks, with loops", s.blocks),
        },
    );
    let time =
        f.estimated_ns.map_or_else(String::new, |(before, after)| format!(", {before:.1} -> {after:.1} ns estimated"));
    let Reached { seconds, proposals, .. } = f.reached;
    format!("{}: {shape}{time}, smallest after {seconds:.2} s and {proposals} proposals", f.name)
}

/// What was taken back of which function, a line for each pass or rule and reason.
fn taken_back(changes: &[TakenBack]) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for TakenBack { function, change, reason } in changes {
        let what = change.as_ref().map_or_else(|| "a change".to_owned(), |by| format!("`{by}`"));
        let line = format!("taken back: {what} in {function}: {reason}");
        match lines.iter_mut().find(|(l, _)| *l == line) {
            Some((_, times)) => *times += 1,
            None => lines.push((line, 1)),
        }
    }
    lines.into_iter().map(|(line, times)| if times > 1 { format!("{line} ({times} times)") } else { line }).collect()
}

/// How running both went.
fn runs_line(check: &RunCheck) -> String {
    if check.inputs == 0 {
        let reasons: Vec<String> = check.skipped.iter().map(|s| format!("{}: {}", s.name, s.reason)).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        return format!("runs: {}{reasons}", check.status);
    }
    let programs = check.programs.iter().filter(|p| p.inputs > 0).count();
    format!("runs: {}; {programs} program(s), {} inputs, {} ms", check.status, check.inputs, check.milliseconds)
}

fn function_line(f: &FunctionReport) -> String {
    if let Some(reason) = &f.untouched {
        return format!("{}: {} slots, left as it was: {reason}", f.name, f.slots_before);
    }
    let mut line = format!("{}: {}, {}", f.name, slots(f.slots_before, f.slots_after), proofs(f.proofs));
    if let Some(verdict) = verdict::phrase(f.kernel_before.as_ref(), f.kernel_after.as_ref()) {
        let _ = write!(line, ", kernel: {verdict}");
    }
    let _ = write!(line, ", {:.2} s", f.seconds);
    line
}

/// `36 -> 30 slots (-16.7%)`
fn slots(before: usize, after: usize) -> String {
    if before == after {
        return format!("{before} slots, none saved");
    }
    let change = -saved_percent(before, after);
    // No change is shown as none.
    let digits = if change.abs() < 0.05 { 4 } else { 1 };
    format!("{before} -> {after} slots ({change:+.digits$}%)")
}

fn proofs(n: usize) -> String {
    if n == 1 { "1 proof".to_owned() } else { format!("{n} proofs") }
}

fn saved_percent(before: usize, after: usize) -> f64 {
    if before == 0 { 0.0 } else { 100.0 * (before as f64 - after as f64) / before as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn slots_show_the_change_in_percent() {
        assert_eq!(slots(36, 30), "36 -> 30 slots (-16.7%)");
        assert_eq!(slots(36, 36), "36 slots, none saved");
        assert_eq!(slots(60_000, 59_999), "60000 -> 59999 slots (-0.0017%)");
        assert_eq!(slots(0, 0), "0 slots, none saved");
    }

    #[test]
    fn an_interruption_is_not_blamed_on_the_time_limit() {
        let cli = Cli::try_parse_from(["bpf-opt", "opt", "in.o", "-o", "out.o"]).expect("it parses");
        let Command::Opt(args) = cli.command else { panic!("it is `opt`") };
        let report = Report { timed_out: true, ..Report::default() };
        let blamed = |interrupted| remarks(&report, &args, interrupted).iter().any(|line| line.contains("time limit"));
        assert!(blamed(false) && !blamed(true));
    }

    #[test]
    fn one_proof_is_one() {
        assert_eq!([0, 1, 2].map(proofs), ["0 proofs", "1 proof", "2 proofs"]);
    }
}
