//! `bpf-opt profile`: what operations cost on this machine, and whether a table of costs tells which of two programs is faster.

mod check;
mod forms;
mod kept;

use std::fmt::Write;
use std::time::{Duration, Instant};

use bpf_driver::profile::{self, Measured, Number, Settings};
use bpf_isa::Origin;
use bpf_kernel::{in_private_network, permitted};
use serde::Serialize;

use crate::args::ProfileArgs;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::progress::Programs;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    kernel: String,
    cpu: String,
    date: String,
    /// By class; empty if a table was given.
    costs: &'a [Measured],
    /// What `--check` found.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'a check::Checked>,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &ProfileArgs) -> Result<u8, Failure> {
    if !args.prog_id.is_empty() {
        return kept::run(args);
    }
    let started = Instant::now();
    let output = Destination::of_report(args.output.as_deref(), &[])?;
    let json = Destination::of_report(args.json.as_deref(), &[])?;
    let outcome = work(args);
    let code = match &outcome {
        Ok((_, Some(checked))) if checked.pairs.is_empty() => exit::UNKNOWN,
        Ok(_) => exit::YES,
        Err(failure) => failure.code,
    };
    if let Some(json) = &json {
        let (costs, check) = outcome.as_ref().map_or((&[][..], None), |(costs, check)| (&costs[..], check.as_ref()));
        let document = Document {
            head: Head::new("profile", code, outcome.as_ref().err()),
            kernel: bpf_kernel::release(),
            cpu: bpf_kernel::processor().unwrap_or_default(),
            date: today(),
            costs,
            check,
            seconds: started.elapsed().as_secs_f64(),
        };
        files::write_json(json, &document)?;
    }
    let (measured, checked) = outcome?;
    if let Some(output) = &output {
        output.write(table(&measured).as_bytes(), None)?;
    }
    if ![&json, &output].iter().any(|d| matches!(d, Some(Destination::Stdout))) {
        let costs = if measured.is_empty() { String::new() } else { text(&measured) };
        let checked = checked.map_or_else(String::new, |checked| check::text(&checked, args.pairs));
        files::print(&format!("{costs}{checked}"))?;
    }
    Ok(code)
}

/// What was measured of costs, unless a table was given, and what came of the check, if one was asked for.
fn work(args: &ProfileArgs) -> Result<(Vec<Measured>, Option<check::Checked>), Failure> {
    permitted()
        .require()
        .map_err(|e| Failure { hint: Some("run it with sudo".to_owned()), ..failure(&e.to_string(), exit::UNKNOWN) })?;
    let measured = if args.costs.is_some() { Vec::new() } else { measured(args)? };
    let costs = args.costs.unwrap_or_else(|| profile::costs(&measured, origin()).keep());
    let checked = args.check.then(|| check::check(args, costs)).transpose()?;
    Ok((measured, checked))
}

fn measured(args: &ProfileArgs) -> Result<Vec<Measured>, Failure> {
    let settings = Settings { rounds: args.rounds.into(), turn: Duration::from_micros(args.turn.into()) };
    let bar = Programs::bar();
    let measured = in_private_network(|| profile::measure(&settings, &mut |done, of| bar.tell(done, of)));
    bar.finish();
    let measured = measured.map_err(|e| failure(&format!("no network namespace for the runs: {e}"), exit::UNKNOWN))?;
    measured.map_err(|e| failure(&e.to_string(), exit::BAD_INPUT))
}

fn failure(message: &str, code: u8) -> Failure {
    Failure { code, message: message.to_owned(), hint: None }
}

fn origin() -> Origin {
    Origin {
        arch: std::env::consts::ARCH.to_owned(),
        cpu: bpf_kernel::processor().unwrap_or_default(),
        kernel: bpf_kernel::release(),
        date: today(),
        source: "measured by bpf-opt profile".to_owned(),
    }
}

fn table(measured: &[Measured]) -> String {
    let remark = |n: &Option<Number>| n.map(|n| format!("{:.0} … {:.0}", n.lower_quartile, n.upper_quartile));
    profile::costs(measured, origin()).to_text(|class| {
        let m = measured.iter().find(|m| m.class == class.name())?;
        let both = [remark(&m.dependent), remark(&m.independent)];
        Some(both.into_iter().flatten().collect::<Vec<_>>().join(", "))
    })
}

fn text(measured: &[Measured]) -> String {
    let mut out = format!("{:26} {:>24} {:>24}\n", "nanoseconds", "in a chain", "beside others");
    let number = |n: &Option<Number>| {
        n.map_or_else(String::new, |n| {
            let [median, low, high] = [n.median, n.lower_quartile, n.upper_quartile].map(|ps| ps / 1000.0);
            format!("{median:.2} [{low:.2}, {high:.2}]")
        })
    };
    for m in measured {
        let _ =
            writeln!(out, "{:26} {:>24} {:>24}  {}", m.class, number(&m.dependent), number(&m.independent), m.meaning);
    }
    out
}

/// The day, in UTC.
fn today() -> String {
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs());
    // Days to a date of the Gregorian calendar, whose years begin in March here (H. Hinnant, "chrono-compatible date algorithms").
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{date:02}", era * 400 + year + carry)
}
