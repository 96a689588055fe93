//! `bpf-opt load`: the kernel's verdict on each program, and what it cost the verifier.

use std::path::Path;

use bpf_kernel::{KernelError, LoadOptions, LoadVerdict, ObjectVerdict, ProgramVerdict};
use serde::Serialize;

use crate::args::{LoadArgs, RawArgs};
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::Input;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    input: &'a Path,
    kernel: String,
    not_loadable: Option<&'a str>,
    programs: Vec<Program<'a>>,
}

impl<'a> Document<'a> {
    /// On an object for which this came about.
    pub fn new(file: &'a Path, exit_status: u8, outcome: Result<&'a ObjectVerdict, &'a Failure>) -> Document<'a> {
        let object = outcome.ok();
        Document {
            head: Head::new("load", exit_status, outcome.err()),
            input: file,
            kernel: bpf_kernel::release(),
            not_loadable: object.and_then(|o| o.not_loadable.as_deref()),
            programs: object.map_or(&[][..], |o| &o.programs).iter().map(Program::of).collect(),
        }
    }
}

/// One program's report.
#[derive(Serialize)]
pub struct Program<'a> {
    name: &'a str,
    section: &'a str,
    #[serde(rename = "type")]
    kind: String,
    slots: usize,
    verdict: &'static str,
    reason: Option<&'a str>,
    processed: Option<u64>,
    total_states: Option<u64>,
    peak_states: Option<u64>,
    max_states_per_insn: Option<u64>,
    stack_depths: &'a [u32],
    verification_micros: Option<u64>,
    xlated_bytes: Option<u32>,
    jited_bytes: Option<u32>,
    log: Option<&'a str>,
}

impl<'a> Program<'a> {
    /// On a program with this verdict.
    pub fn of(p: &'a ProgramVerdict) -> Program<'a> {
        let stats = p.stats.as_ref();
        Program {
            name: &p.name,
            section: &p.section,
            kind: p.kind.to_string(),
            slots: p.slots,
            verdict: verdict(&p.verdict),
            reason: Some(p.verdict.reason()).filter(|r| !r.is_empty()),
            processed: stats.map(|s| s.processed),
            total_states: stats.map(|s| s.total_states),
            peak_states: stats.map(|s| s.peak_states),
            max_states_per_insn: stats.map(|s| s.max_states_per_insn),
            stack_depths: stats.map_or(&[], |s| &s.stack_depths),
            verification_micros: stats.map(|s| s.micros),
            xlated_bytes: p.info.map(|i| i.xlated_bytes),
            jited_bytes: p.info.map(|i| i.jited_bytes),
            log: match &p.verdict {
                LoadVerdict::Rejected { log, .. } => Some(log),
                _ => None,
            },
        }
    }
}

const OUT_OF_MEANS: &str = "out of descriptors or memory";
const OUT_OF_TIME: &str = "out of time";

/// Whether a word of [`verdict`] says that the kernel came to none, and may come to one another time.
pub fn is_open(verdict: &str) -> bool {
    [OUT_OF_MEANS, OUT_OF_TIME].contains(&verdict)
}

/// A word for a verdict, in tables and reports.
pub fn verdict(verdict: &LoadVerdict) -> &'static str {
    match verdict {
        LoadVerdict::Accepted => "accepted",
        LoadVerdict::Rejected { .. } => "rejected",
        LoadVerdict::Unsupported { .. } => "unsupported",
        LoadVerdict::NotLoadable { .. } => "not loadable",
        LoadVerdict::OutOfMeans { .. } => OUT_OF_MEANS,
        LoadVerdict::OutOfTime => OUT_OF_TIME,
    }
}

/// Runs the command on one object.
pub fn run(args: &LoadArgs, file: &Path) -> Result<u8, Failure> {
    let json = Destination::of_report(args.json.as_deref(), &[file])?;
    let outcome = ask(&args.raw, args.program_type.as_deref(), file);
    let code = exit_code(outcome.as_ref());
    if let Some(json) = &json {
        files::write_json(json, &Document::new(file, code, outcome.as_ref()))?;
    }
    let object = outcome?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&object, args.log))?;
    }
    Ok(code)
}

/// The exit code for an object.
pub fn exit_code(outcome: Result<&ObjectVerdict, &Failure>) -> u8 {
    match outcome {
        Ok(verdict) if verdict.is_accepted() => exit::YES,
        Ok(_) => exit::NO,
        Err(failure) => failure.code,
    }
}

/// Asks the kernel about an object, or about a bare array if `raw` says so.
pub fn ask(raw: &RawArgs, program_type: Option<&str>, file: &Path) -> Result<ObjectVerdict, Failure> {
    let input = Input::read(file, raw, program_type)?;
    let program_type = input.forced_type(program_type);
    let bytes = input.object;
    let object = bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(file, &e))?;
    Failure::unless_for_this_kernel(file, &object)?;
    let options = LoadOptions { program_type, only: None };
    bpf_kernel::load_object(&bytes, &options).map_err(|e: KernelError| Failure::kernel(file, &e))
}

fn text(object: &ObjectVerdict, logs: bool) -> String {
    const HEAD: [&str; 12] = [
        "program", "section", "type", "verdict", "slots", "insns", "states", "peak", "stack", "usec", "xlated", "jited",
    ];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(object.programs.iter().map(row));
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            // Names to the left, numbers to the right.
            .map(|(i, (cell, &w))| if i < 4 { format!("{cell:<w$}") } else { format!("{cell:>w$}") })
            .collect();
        text += &(cells.join("  ") + "\n");
    }
    for p in object.programs.iter().filter(|p| !p.verdict.is_accepted()) {
        text += &format!("{}: {}: {}\n", p.name, verdict(&p.verdict), p.verdict.reason());
        if let (LoadVerdict::Rejected { log, .. }, true) = (&p.verdict, logs) {
            text.extend(log.lines().map(|line| format!("    {line}\n")));
        }
    }
    if let Some(reason) = &object.not_loadable {
        text += &format!("the object does not load: {}\n", reason.trim_end());
    }
    text
}

fn row(p: &ProgramVerdict) -> [String; 12] {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let stats = p.stats.as_ref();
    let stack =
        stats.map_or("-".to_owned(), |s| s.stack_depths.iter().map(u32::to_string).collect::<Vec<_>>().join("+"));
    [
        p.name.clone(),
        p.section.clone(),
        p.kind.to_string(),
        verdict(&p.verdict).to_owned(),
        p.slots.to_string(),
        number(stats.map(|s| s.processed)),
        number(stats.map(|s| s.total_states)),
        number(stats.map(|s| s.peak_states)),
        stack,
        number(stats.map(|s| s.micros)),
        number(p.info.map(|i| i.xlated_bytes.into())),
        number(p.info.map(|i| i.jited_bytes.into())),
    ]
}
