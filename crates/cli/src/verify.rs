//! `bpf-opt verify`: are two objects equal?

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use bpf_driver::{DriverError, FunctionVerdict, Options, Refused, RunsFirst, VerifyReport};
use serde::Serialize;

use crate::args::VerifyArgs;
use crate::declared;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::Input;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    a: &'a Path,
    b: &'a Path,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    assumed: &'a [String],
    functions: Vec<Function<'a>>,
    differences: &'a [String],
    unknowns: &'a [String],
    notes: &'a [String],
    refused: &'a [Refused],
    runs: &'a RunsFirst,
    seconds: f64,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(flatten)]
    verdict: &'a FunctionVerdict,
}

impl<'a> Document<'a> {
    /// On two objects for which this came about; `empty` stands for a report where there is none.
    pub fn new(
        [a, b]: [&'a Path; 2],
        exit_status: u8,
        outcome: Result<&'a Verified, &'a Failure>,
        empty: &'a VerifyReport,
    ) -> Document<'a> {
        let report = outcome.map_or(empty, |verified| &verified.report);
        Document {
            head: Head::new("verify", exit_status, outcome.err()),
            a,
            b,
            assumed: outcome.map_or(&[], |verified| &verified.assumed),
            functions: report.functions.iter().map(|(name, verdict)| Function { name, verdict }).collect(),
            differences: &report.differences,
            unknowns: &report.unknowns,
            notes: &report.notes,
            refused: &report.refused,
            runs: &report.runs,
            seconds: report.seconds,
        }
    }
}

/// Runs the command on two objects.
pub fn run(args: &VerifyArgs, a: &Path, b: &Path) -> Result<u8, Failure> {
    let inputs: Vec<&Path> = [a, b].into_iter().chain(args.declared.files()).chain(args.raw.maps.as_deref()).collect();
    let json = Destination::of_report(args.json.as_deref(), &inputs)?;
    if [a, b].iter().all(|path| files::is_dash(path)) {
        return Err(Failure::bad_input("standard input (`-`) holds one object"));
    }
    let outcome = compare(args, a, b, args.table.jobs());
    let code = exit_code(outcome.as_ref());
    if let Some(json) = &json {
        let empty = VerifyReport::default();
        files::write_json(json, &Document::new([a, b], code, outcome.as_ref(), &empty))?;
    }
    let Verified { report, assumed } = outcome?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&assumed.iter().map(|line| format!("assumed: {line}\n")).collect::<String>())?;
        files::print(&text(&report))?;
    }
    Ok(code)
}

/// The verdicts, and what they take for granted.
pub struct Verified {
    /// The verdicts.
    pub report: VerifyReport,
    /// What is taken for granted, line by line.
    pub assumed: Vec<String>,
}

/// Compares two objects, with so many threads.
pub fn compare(args: &VerifyArgs, a: &Path, b: &Path, jobs: usize) -> Result<Verified, Failure> {
    let read = |path| Input::read(path, &args.raw, args.program_type.as_deref());
    let (first, second) = (read(a)?, read(b)?);
    let program_type = first.forced_type(args.program_type.as_deref());
    let (first, second) = (first.object, second.object);
    // Which of the two is bad is not in the pipeline's error.
    for (path, bytes) in [(a, &first), (b, &second)] {
        bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
    }
    let assumed = declared::assumed(args, [a, b], &first, &second)?;
    // What is taken of the original has to be taken of the second, however the first looks for what is assumed.
    let original = assumed.is_some().then(|| Arc::new(first.clone()));
    let (first, assumed) = assumed.map_or((first, Vec::new()), |assumed| (assumed.object, assumed.lines));
    let queries = args.dump_queries.as_deref().map(files::query_folder).transpose()?;
    let recorder = queries.as_ref().map(|q| q.recorder());
    let options = Options { queries: recorder, program_type, jobs, original, ..args.options() };
    let outcome = bpf_driver::verify(&first, &second, &options);
    files::queries_written(queries)?;
    outcome.map(|report| Verified { report, assumed }).map_err(|e| match e {
        DriverError::NoSuchProgram { .. } => Failure::bad_input(e.to_string()),
        other => Failure::driver(a, &other),
    })
}

/// The exit code for two objects.
pub fn exit_code(outcome: Result<&Verified, &Failure>) -> u8 {
    outcome.map_or_else(|failure| failure.code, |verified| code_of(&verified.report))
}

fn code_of(report: &VerifyReport) -> u8 {
    if report.is_different() {
        exit::NO
    } else if report.is_equal() {
        exit::YES
    } else {
        exit::UNKNOWN
    }
}

fn text(report: &VerifyReport) -> String {
    let mut text = String::new();
    let mut counts = [0usize; 3];
    for (name, verdict) in &report.functions {
        let _ = match verdict {
            FunctionVerdict::Equal => {
                counts[0] += 1;
                writeln!(text, "{name}: equal")
            }
            FunctionVerdict::Different { explanation } => {
                counts[1] += 1;
                let lines: String = explanation.iter().map(|line| format!("    {line}\n")).collect();
                write!(text, "{name}: different\n{lines}")
            }
            FunctionVerdict::Unknown { reason } => {
                counts[2] += 1;
                writeln!(text, "{name}: unknown ({reason})")
            }
        };
    }
    for difference in &report.differences {
        let _ = writeln!(text, "outside of the code: {difference}");
    }
    for unknown in &report.unknowns {
        let _ = writeln!(text, "outside of the code, unknown: {unknown}");
    }
    for Refused { name, reason } in &report.refused {
        let _ = writeln!(text, "{name}: equal, but this kernel takes the first and refuses the second: {reason}");
    }
    for note in &report.notes {
        let _ = writeln!(text, "ignored: {note}");
    }
    let [equal, different, unknown] = counts;
    let _ = writeln!(text, "{equal} equal, {different} different, {unknown} unknown; {:.2} s", report.seconds);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: Vec<FunctionVerdict>) -> VerifyReport {
        let functions = verdicts.into_iter().map(|v| ("f".to_owned(), v)).collect();
        VerifyReport { functions, ..VerifyReport::default() }
    }

    #[test]
    fn one_difference_outweighs_everything() {
        let unknown = || FunctionVerdict::Unknown { reason: "too large".into() };
        let different = || FunctionVerdict::Different { explanation: vec!["r1 = 0".into()] };
        assert_eq!(code_of(&report(vec![FunctionVerdict::Equal])), 0);
        assert_eq!(code_of(&report(vec![FunctionVerdict::Equal, unknown()])), 3);
        assert_eq!(code_of(&report(vec![unknown(), different()])), 1);
        let outside = VerifyReport { differences: vec!["map m is missing".into()], ..report(vec![unknown()]) };
        assert_eq!(code_of(&outside), 1);
        let unread = VerifyReport { unknowns: vec!["section .BTF: kind 31".into()], ..report(vec![]) };
        assert_eq!(code_of(&unread), 3);
        let noted = VerifyReport { notes: vec!["section .comment".into()], ..report(vec![]) };
        assert_eq!(code_of(&noted), 0);
    }
}
