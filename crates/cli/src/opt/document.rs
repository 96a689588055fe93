//! The JSON report on one object; docs/json.md describes it.

use std::path::{Path, PathBuf};

use bpf_driver::timing::Call;
use bpf_driver::{Report, Variant};
use serde::Serialize;

use super::job::Job;
use super::totals::Totals;
use crate::declared::Specialized;
use crate::document::Head;
use crate::failure::Failure;

/// The report.
#[derive(Serialize)]
pub struct Document<'a> {
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

impl<'a> Document<'a> {
    /// Of an object that was worked on with this outcome: the report, the forms that were kept, what it was specialized for.
    pub fn new(
        job: &Job<'a>,
        exit_status: u8,
        interrupted: bool,
        outcome: Result<(&'a Report, &'a [Kept], Option<&'a Specialized>), &'a Failure>,
    ) -> Document<'a> {
        let report = outcome.ok().map(|(report, ..)| report);
        let command = if job.args.declared.is_some() { "specialize" } else { "opt" };
        Document {
            head: Head::new(command, exit_status, outcome.err()),
            input: job.input,
            output: job.output,
            goal: job.args.goal.name(),
            seed: job.args.seed,
            time_limit: job.args.time_limit().as_secs_f64(),
            rounds: job.args.rounds,
            interrupted,
            totals: report.map(Totals::of),
            variants: outcome.map_or(&[], |(_, kept, _)| kept),
            specialized: outcome.ok().and_then(|(.., specialized)| specialized),
            report,
        }
    }
}

/// One of the forms that `--keep` asks for.
#[derive(Serialize)]
pub struct Kept {
    /// Where it is; `None`: it was made to be measured, and is not the best.
    pub output: Option<PathBuf>,
    /// Instruction slots.
    pub slots: usize,
    /// Its time, in parts of the original's.
    pub time_ratio: Option<f64>,
    /// What is to be believed of that.
    pub time_call: Option<Call>,
    /// Time that it took to make it.
    pub seconds: f64,
}

impl Kept {
    /// Of a form that was written there, if it was.
    pub fn of(form: &Variant, output: Option<PathBuf>) -> Kept {
        let (slots, seconds) = (form.report.slots().1, form.report.seconds);
        let (time_ratio, time_call) = (form.measured.map(|m| m.ratio), form.measured.map(|m| m.call));
        Kept { output, slots, time_ratio, time_call, seconds }
    }
}
