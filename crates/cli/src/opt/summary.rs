//! What people read of one object, line by line.

use std::fmt::Write;

use bpf_driver::timing::Call;
use bpf_driver::{FunctionReport, KernelVerdict, MadeAcceptable, OtherVerdicts, Reached, Report, RunCheck, TakenBack};

use super::document::Kept;
use super::job::Job;
use super::totals::{Totals, saved_percent};
use crate::files;
use crate::verdict;

/// What people read, line by line; `remarks` are about the object as a whole.
pub fn summary(report: &Report, job: &Job<'_>, remarks: &[String], interrupted: bool) -> Vec<String> {
    if job.args.quiet {
        return report.warnings.iter().map(|w| format!("warning: {w}")).collect();
    }
    let mut lines: Vec<String> = report.functions.iter().map(function_line).collect();
    if job.args.stats {
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
        if files::is_dash(job.output) { "standard output".into() } else { job.output.display().to_string() }
    ));
    lines
}

/// What is to be said of the object as a whole, line by line.
pub fn remarks(report: &Report, job: &Job<'_>, interrupted: bool) -> Vec<String> {
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
    lines.extend(report.other_kernels.iter().map(other_kernel_line));
    lines.extend(report.made_acceptable.iter().map(acceptable_line));
    lines.extend(report.check.iter().map(|check| format!("check: {check}")));
    lines.extend(taken_back(&report.taken_back));
    if let Some(check) = &report.run_check {
        lines.push(runs_line(check));
    }
    // Who interrupts knows why it ended.
    if report.timed_out && !interrupted {
        lines.push(format!("note: the time limit of {} s cut the search short", job.args.time_limit().as_secs_f64()));
    }
    lines
}

/// A form that was written.
pub fn form_line(kept: &Kept) -> Option<String> {
    let time = match (kept.time_ratio, kept.time_call) {
        (Some(ratio), Some(call)) => {
            let beyond = if call == Call::Noise { ", no difference beyond noise" } else { "" };
            format!("{:.1} % of the original's time{beyond}", 100.0 * ratio)
        }
        _ => "not measured".to_owned(),
    };
    Some(format!("{}: {} slots, {time}", kept.output.as_ref()?.display(), kept.slots))
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
    let states = states(f).unwrap_or_default();
    format!("{}: {shape}{time}{states}, smallest after {seconds:.2} s and {proposals} proposals", f.name)
}

/// What another kernel says of original and result.
fn other_kernel_line(of: &OtherVerdicts) -> String {
    let (takes, took): (Vec<_>, Vec<_>) = of.programs.iter().partition(|p| p.before.accepted);
    let all = of.programs.len();
    let mut text = match takes.len() {
        0 => format!("{}: takes no program of the original", of.kernel),
        n if n == all => format!("{}: accepted", of.kernel),
        n => format!("{}: accepted, {n} of {all} programs", of.kernel),
    };
    let changes = of.taken_back + of.heavier;
    if changes > 0 {
        let _ = write!(text, " after taking back {changes} change(s)");
    }
    let now: Vec<&str> = took.iter().filter(|p| p.after.accepted).map(|p| p.name.as_str()).collect();
    if !now.is_empty() {
        let _ = write!(text, "; accepted, while the original was refused: {}", now.join(", "));
    }
    text
}

/// What made a program acceptable that the kernel refuses.
fn acceptable_line(made: &MadeAcceptable) -> String {
    let MadeAcceptable { program, refused, by, processed } = made;
    let times = |(name, times): &(String, usize)| match times {
        1 => name.clone(),
        times => format!("{name} ({times} times)"),
    };
    let by: Vec<String> = by.iter().map(times).collect();
    let count = processed.map_or_else(String::new, |n| format!("; {n} instructions processed"));
    format!("{program}: the original was refused: {refused} Accepted after: {}{count}", by.join(", "))
}

/// What the verifier's work on a program was and is, beside the number of instructions.
fn states(f: &FunctionReport) -> Option<String> {
    let (before, after) = (f.kernel_before.as_ref()?, f.kernel_after.as_ref()?);
    let stack = |v: &KernelVerdict| v.stack_depths.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
    Some(format!(
        ", {} -> {} states, at most {} -> {} at once, stack {} -> {}",
        before.states?,
        after.states?,
        before.peak_states?,
        after.peak_states?,
        stack(before),
        stack(after)
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::Path;

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
        let job = Job {
            args: &args,
            input: Path::new("in.o"),
            output: Path::new("out.o"),
            jobs: 1,
            kernels: &[],
            shared: None,
        };
        let report = Report { timed_out: true, ..Report::default() };
        let blamed = |interrupted| remarks(&report, &job, interrupted).iter().any(|line| line.contains("time limit"));
        assert!(blamed(false) && !blamed(true));
    }

    #[test]
    fn one_proof_is_one() {
        assert_eq!([0, 1, 2].map(proofs), ["0 proofs", "1 proof", "2 proofs"]);
    }
}
