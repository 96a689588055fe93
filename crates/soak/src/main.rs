//! `bpf-soak`: the campaign from the command line. `make soak` runs it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bpf_soak::campaign::{self, LanePlan, Settings};
use bpf_soak::{lanes, report};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

const HELP: &str = "\
Examples:
  make soak                                  an hour, all lanes; go on where it was stopped by running it again
  SOAK_MINUTES=5 make soak                   five minutes
  bpf-soak --lanes exec,facts --minutes 10   some of the lanes
  bpf-soak --seed 7 --unit exec:1234         one unit again, as a disagreement says

The environment variable BPF_OPT_OBJECTS names more folders of objects, separated by colons.

Exit codes: 0 no disagreement; 1 disagreements, all of them printed; 2 wrong usage or a bad state file;
3 no disagreement, but some lane cannot run here.";

/// Tries everything that could be wrong against something that cannot.
#[derive(Debug, Parser)]
#[command(name = "bpf-soak", version, after_help = HELP, max_term_width = 110)]
struct Args {
    /// Everything random follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minutes for the whole campaign, with those of earlier runs
    #[arg(long, env = "SOAK_MINUTES", default_value_t = 60.0, value_parser = minutes)]
    minutes: f64,
    /// Only these lanes [default: all]
    #[arg(long, value_delimiter = ',')]
    lanes: Vec<String>,
    /// Where the campaign's state is kept [default: target/soak/state-SEED.json]
    #[arg(long)]
    state: Option<PathBuf>,
    /// Worker threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Write what was done to this file, as a table
    #[arg(long)]
    report: Option<PathBuf>,
    /// Repeat one unit and do nothing else
    #[arg(long, value_name = "LANE:INDEX", conflicts_with_all = ["lanes", "state", "report", "slice"])]
    unit: Option<String>,
    /// Do a small, fixed number of units of each lane
    #[arg(long)]
    slice: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(m) if m.is_finite() && (0.0..1e6).contains(&m) => Ok(m),
        _ => Err("not a number of minutes".to_owned()),
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let folder = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("soak");
    let plans = lanes::all(&folder);
    let outcome = match &args.unit {
        Some(unit) => repeat(&plans, &args, unit),
        None => soak(plans, &args, folder),
    };
    ExitCode::from(outcome.unwrap_or_else(|why| {
        eprintln!("bpf-soak: {why}");
        2
    }))
}

fn known(plans: &[LanePlan]) -> String {
    plans.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

fn repeat(plans: &[LanePlan], args: &Args, unit: &str) -> Result<u8, String> {
    let parts = unit.split_once(':').and_then(|(lane, n)| Some((lane, n.parse().ok()?)));
    let (lane, index) = parts.ok_or("--unit takes LANE:INDEX, as in exec:12")?;
    let plan = plans.iter().find(|p| p.name == lane);
    let plan = plan.ok_or_else(|| format!("no lane {lane}; there are {}", known(plans)))?;
    let tally = campaign::repeat(plan, args.seed, index)?;
    for (what, n) in &tally.counts {
        println!("{n} {what}");
    }
    for d in &tally.disagreements {
        println!("DISAGREEMENT: {}", d.what);
    }
    Ok(u8::from(!tally.disagreements.is_empty()))
}

fn soak(plans: Vec<LanePlan>, args: &Args, folder: PathBuf) -> Result<u8, String> {
    if let Some(unknown) = args.lanes.iter().find(|l| !plans.iter().any(|p| p.name == l.as_str())) {
        return Err(format!("no lane {unknown}; there are {}", known(&plans)));
    }
    let plans: Vec<LanePlan> =
        plans.into_iter().filter(|p| args.lanes.is_empty() || args.lanes.iter().any(|l| l == p.name)).collect();
    let state = args.state.clone().unwrap_or_else(|| folder.join(format!("state-{}.json", args.seed)));
    let settings = Settings {
        seed: args.seed,
        time: Duration::from_secs_f64(args.minutes * 60.0),
        jobs: args.jobs.into(),
        // A slice is always the same: it neither goes on from a state nor leaves one, unless one is asked for.
        state: if args.slice { args.state.clone() } else { Some(state) },
        slices: args.slice.then_some(1),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop));
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let plans = Arc::new(plans);
    let state = campaign::run(&plans, &settings, &stop, &|state| bar.set_message(report::line(&plans, state)))?;
    bar.finish_and_clear();
    let text = report::text(&plans, &state, stop.load(Ordering::Relaxed));
    print!("{text}");
    if let Some(path) = &args.report {
        std::fs::write(path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(report::exit_code(&plans, &state))
}
