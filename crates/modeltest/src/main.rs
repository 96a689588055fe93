//! `bpf-modeltest`: the long comparison of the tables with the kernel. `make soak` runs it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bpf_modeltest::campaign::{Random, Report};
use bpf_modeltest::{context, observe::Bench, recipe};
use clap::Parser;

/// Calls every helper this kernel offers to programs that can be run, and compares what it does with the table.
#[derive(Debug, Parser)]
#[command(name = "bpf-modeltest", version)]
struct Args {
    /// Everything random follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds for varied calls, after every recipe has run as written
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only recipes of helpers whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out the context fields
    #[arg(long)]
    no_fields: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("bpf-modeltest: {why}");
            ExitCode::from(3)
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
    let mut recipes = recipe::all().map_err(|e| e.to_string())?;
    recipes.calls.retain(|c| c.name.contains(&args.only));
    let bench = Bench::new()?;
    for missing in &bench.lab.missing {
        eprintln!("not available: {missing}");
    }
    let mut report = Report::default();
    report.as_written(&bench, &recipes);
    let until = Instant::now() + Duration::from_secs(args.seconds);
    report.varied(&bench, &recipes, &mut Random::new(args.seed), until);
    print!("{report}");
    let mut good = report.contradictions.is_empty() && report.unexplained().is_empty();
    if !args.no_fields {
        let fields = context::all(context::Extent::Everything);
        print!("{fields}");
        good &= fields.contradictions.is_empty();
    }
    Ok(good)
}
