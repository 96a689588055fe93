//! What each setting of the chain finds alone, as in the paper's Table 9: slots saved in windows of real objects.

use std::path::PathBuf;
use std::time::Duration;

use bpf_bench::windows::Optimized;
use bpf_bench::{finish, objects};
use bpf_search::settings::BEST;
use bpf_search::{SETTINGS, Setting};
use clap::Parser;

/// Prints a table like Table 9 of the K2 paper, in Markdown.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
    /// Print what the settings are, as in the paper's Table 8, and search nothing
    #[arg(long)]
    describe: bool,
    /// Proposals per window and setting
    #[arg(long, default_value_t = 100_000)]
    proposals: u64,
    /// All sixteen settings, not only the five of the paper's Table 8
    #[arg(long)]
    all: bool,
    /// Fewest operations of a window
    #[arg(long, default_value_t = 4)]
    least: usize,
    /// Most operations of a window
    #[arg(long, default_value_t = 12)]
    most: usize,
    /// Windows of each object at most
    #[arg(long, default_value_t = 8)]
    windows: usize,
    /// Take the compiler's code as it is, without the passes
    #[arg(long)]
    untouched: bool,
    /// Accept as if proposals were symmetric (without the Hastings ratio)
    #[arg(long)]
    symmetric: bool,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

/// The parameters of settings, a column for each.
fn describe(settings: &[Setting]) {
    type Row = (&'static str, fn(&Setting) -> String);
    const ROWS: [Row; 12] = [
        ("error of a value", |s| format!("{:?}", s.distance)),
        ("error divided by the number of tests", |s| s.average.to_string()),
        ("tests counted where not equal", |s| format!("{:?}", s.counted)),
        ("weight of the error (α)", |s| s.error.to_string()),
        ("weight of performance (β)", |s| s.performance.to_string()),
        ("weight of safety (γ)", |s| s.safety.to_string()),
        ("inverse temperature", |s| s.cold.to_string()),
        ("instruction replaced", |s| s.rules.instruction.to_string()),
        ("operand replaced", |s| s.rules.operand.to_string()),
        ("replaced by nothing", |s| s.rules.nop.to_string()),
        ("memory exchange 1, 2", |s| format!("{}, {}", s.rules.exchange1, s.rules.exchange2)),
        ("two in a row replaced", |s| s.rules.contiguous.to_string()),
    ];
    print!("| setting |");
    settings.iter().for_each(|s| print!(" {} |", s.id));
    println!("\n|---|{}", "---:|".repeat(settings.len()));
    for (name, of) in ROWS {
        print!("| {name} |");
        settings.iter().for_each(|s| print!(" {} |", of(s)));
        println!();
    }
}

fn run(args: &Args) -> Result<(), String> {
    let settings = if args.all { &SETTINGS[..] } else { &SETTINGS[..BEST] };
    let settings: Vec<Setting> = settings.iter().map(|s| Setting { hastings: !args.symmetric, ..*s }).collect();
    if args.describe {
        describe(&settings);
        return Ok(());
    }
    print!("| benchmark | windows | slots |");
    settings.iter().for_each(|s| print!(" {} |", s.id));
    println!(" smallest by | ms to the smallest |\n|---|---:|---:|{}---:|---:|", "---:|".repeat(settings.len()));
    let (mut all, mut best) = (vec![0; settings.len()], vec![0; settings.len()]);
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let o = if args.untouched { Optimized::untouched(&path)? } else { Optimized::read(&path)? };
        let (mut saved, mut time) = (vec![0; settings.len()], vec![Duration::ZERO; settings.len()]);
        let (mut count, mut slots) = (0, 0);
        o.module.with_env(|env| {
            let places = o.windows(env, args.least, args.most);
            let step = places.len().div_ceil(args.windows).max(1);
            for p in places.iter().step_by(step) {
                count += 1;
                for (i, s) in settings.iter().enumerate() {
                    let found = o.search(env, p, &[*s], args.proposals, args.seed);
                    slots += if i == 0 { found.old } else { 0 };
                    saved[i] += found.saved;
                    time[i] += found.after;
                }
            }
        });
        let most = saved.iter().copied().max().unwrap_or(0);
        let winners = saved.iter().filter(|n| **n == most).count();
        let first = time.iter().zip(&saved).filter(|(_, n)| **n == most).map(|(t, _)| *t).min().unwrap_or_default();
        print!("| {} | {count} | {slots} |", o.name);
        for (i, n) in saved.iter().enumerate() {
            print!(" {n}{} |", if *n == most { "*" } else { "" });
            all[i] += n;
            best[i] += usize::from(*n == most);
        }
        println!(" {} % | {:.0} |", 100 * winners / settings.len(), first.as_secs_f64() * 1e3);
    }
    print!("| saved in all | | |");
    all.iter().for_each(|n| print!(" {n} |"));
    print!(" | |\n| best | | |");
    best.iter().for_each(|n| print!(" {n} |"));
    println!(" | |");
    Ok(())
}
