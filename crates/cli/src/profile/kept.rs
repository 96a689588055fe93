//! `bpf-opt profile --prog-id`: how often programs run that are loaded, as the kernel counts.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use bpf_kernel::{Observed, Runs, Statistics, permitted};
use serde::Serialize;

use crate::args::ProfileArgs;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    kernel: String,
    seconds: f64,
    runs: &'a [Told],
}

/// What is told of a program.
#[derive(Clone, Serialize)]
struct Told {
    id: u32,
    name: String,
    kind: String,
    runs: u64,
    nanoseconds: u64,
    /// Null if it did not run.
    ns_per_run: Option<f64>,
}

impl Told {
    /// What came to what was counted before.
    fn since(now: Runs, before: Option<&Runs>) -> Told {
        let runs = now.runs.saturating_sub(before.map_or(0, |b| b.runs));
        let nanoseconds = now.nanoseconds.saturating_sub(before.map_or(0, |b| b.nanoseconds));
        let ns_per_run = (runs > 0).then(|| nanoseconds as f64 / runs as f64);
        Told { id: now.id, name: now.name, kind: now.kind.to_string(), runs, nanoseconds, ns_per_run }
    }
}

/// Runs the command.
pub fn run(args: &ProfileArgs) -> Result<u8, Failure> {
    let json = Destination::of_report(args.json.as_deref(), &[])?;
    let told = look(args);
    let code = match &told {
        Ok(told) if told.iter().any(|t| t.runs > 0) => exit::YES,
        Ok(_) => exit::UNKNOWN,
        Err(failure) => failure.code,
    };
    if let Some(json) = &json {
        let seconds = args.enable_stats.map_or(0.0, |d| d.as_secs_f64());
        let runs = told.as_deref().unwrap_or_default();
        let head = Head::new("profile", code, told.as_ref().err());
        files::write_json(json, &Document { head, kernel: bpf_kernel::release(), seconds, runs })?;
    }
    let told = told?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&told))?;
    }
    if code == exit::UNKNOWN {
        files::complain(match args.enable_stats {
            Some(_) => "note: none of these programs ran meanwhile",
            None => {
                "note: no runs were counted; the kernel counts with --enable-stats SECONDS, or kernel.bpf_stats_enabled=1"
            }
        });
    }
    Ok(code)
}

fn look(args: &ProfileArgs) -> Result<Vec<Told>, Failure> {
    let refused = |e: bpf_kernel::KernelError| Failure { code: exit::BAD_INPUT, message: e.to_string(), hint: None };
    permitted().require().map_err(|e| Failure {
        code: exit::UNKNOWN,
        message: e.to_string(),
        hint: Some("run it with sudo".to_owned()),
    })?;
    let programs = args.prog_id.iter().map(|id| Observed::by_id(*id)).collect::<Result<Vec<_>, _>>();
    let programs = programs.map_err(|e| refused(e).with_hint("`bpftool prog` lists the programs that are loaded"))?;
    let all = || programs.iter().map(Observed::runs).collect::<Result<Vec<Runs>, _>>().map_err(refused);
    let Some(time) = args.enable_stats else {
        return Ok(all()?.into_iter().map(|now| Told::since(now, None)).collect());
    };
    let counting = Statistics::enable().map_err(refused)?;
    let before = all()?;
    thread::sleep(time.min(Duration::from_secs(3600)));
    let after = all()?;
    drop(counting);
    Ok(after.into_iter().zip(&before).map(|(now, before)| Told::since(now, Some(before))).collect())
}

fn text(told: &[Told]) -> String {
    let mut out = format!("{:>8}  {:15}  {:16} {:>14} {:>10}\n", "id", "program", "type", "runs", "ns a run");
    for t in told {
        let each = t.ns_per_run.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"));
        let _ = writeln!(out, "{:>8}  {:15}  {:16} {:>14} {each:>10}", t.id, t.name, t.kind, t.runs);
    }
    out
}
