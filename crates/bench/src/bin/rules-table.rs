//! The worth of the domain-specific proposal rules, as in the paper's Table 10: slots saved, and the
//! time to the best, with memory exchange 1 and 2 and contiguous replacement switched on and off.

use std::path::PathBuf;
use std::time::Duration;

use bpf_bench::windows::Optimized;
use bpf_bench::{finish, objects};
use bpf_search::{SETTINGS, Setting};
use clap::Parser;

/// Prints a table like Table 10 of the K2 paper, in Markdown.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
    /// Proposals per window, chain and rule set
    #[arg(long, default_value_t = 200_000)]
    proposals: u64,
    /// Settings, by number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 5])]
    settings: Vec<u8>,
    /// Fewest operations of a window
    #[arg(long, default_value_t = 4)]
    least: usize,
    /// Most operations of a window
    #[arg(long, default_value_t = 12)]
    most: usize,
    /// Windows of each object at most
    #[arg(long, default_value_t = 30)]
    windows: usize,
    /// Take the compiler's code as it is, without the passes
    #[arg(long)]
    untouched: bool,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Name, and which of the rules are on: exchange 1, exchange 2, contiguous.
const SETS: [(&str, [bool; 3]); 6] = [
    ("ME1 & CONT", [true, false, true]),
    ("ME2 & CONT", [false, true, true]),
    ("ME1 only", [true, false, false]),
    ("ME2 only", [false, true, false]),
    ("CONT only", [false, false, true]),
    ("None", [false, false, false]),
];

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

/// The setting with only these rules; a rule that is on has the share that Table 8 gives it.
fn with_rules(mut s: Setting, on: [bool; 3]) -> Setting {
    let share = |on: bool, p: f64| if on { p } else { 0.0 };
    s.rules.exchange1 = share(on[0], 0.17);
    s.rules.exchange2 = share(on[1], 0.17);
    s.rules.contiguous = share(on[2], 0.18);
    s
}

fn run(args: &Args) -> Result<(), String> {
    let chosen: Vec<Setting> = SETTINGS.iter().filter(|s| args.settings.contains(&s.id)).copied().collect();
    if chosen.is_empty() {
        return Err("settings are numbered 1 to 16".into());
    }
    print!("| benchmark | windows |");
    SETS.iter().for_each(|(name, _)| print!(" {name} slots | ms |"));
    println!("\n|---|---:|{}", "---:|---:|".repeat(SETS.len()));
    let (mut best, mut alone) = ([0; SETS.len()], [0; SETS.len()]);
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let o = if args.untouched { Optimized::untouched(&path)? } else { Optimized::read(&path)? };
        let (mut saved, mut time, mut count) = ([0u32; SETS.len()], [Duration::ZERO; SETS.len()], 0);
        o.module.with_env(|env| {
            let places = o.windows(env, args.least, args.most);
            let step = places.len().div_ceil(args.windows).max(1);
            for p in places.iter().step_by(step) {
                count += 1;
                for (i, (_, on)) in SETS.iter().enumerate() {
                    let settings: Vec<Setting> = chosen.iter().map(|s| with_rules(*s, *on)).collect();
                    let found = o.search(env, p, &settings, args.proposals, args.seed);
                    saved[i] += found.saved;
                    time[i] += found.after;
                }
            }
        });
        let most = saved.iter().copied().max().unwrap_or(0);
        let winners = saved.iter().filter(|s| **s == most).count();
        print!("| {} | {count} |", o.name);
        for i in 0..SETS.len() {
            let star = if saved[i] == most { "*" } else { "" };
            print!(" {}{star} | {:.1} |", saved[i], time[i].as_secs_f64() * 1e3);
            best[i] += usize::from(saved[i] == most);
            alone[i] += usize::from(saved[i] == most && winners == 1);
        }
        println!();
    }
    print!("| best | |");
    best.iter().for_each(|n| print!(" {n} | |"));
    print!("\n| only best | |");
    alone.iter().for_each(|n| print!(" {n} | |"));
    println!();
    Ok(())
}
