//! How many proposals a chain makes per second of processor time, proofs included, on real windows.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf_bench::windows::{Optimized, cpu_time};
use bpf_bench::{finish, objects, quantile};
use bpf_prove::Cache;
use bpf_search::{Budget, Chain, Progress, Setting};
use clap::Parser;

/// Measures the chain's proposals per second.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
    /// Setting, 1 to 16
    #[arg(long, default_value_t = 2)]
    setting: u8,
    /// Milliseconds per window
    #[arg(long, default_value_t = 100)]
    time: u64,
    /// Fewest operations of a window
    #[arg(long, default_value_t = 8)]
    least: usize,
    /// Most operations of a window
    #[arg(long, default_value_t = 12)]
    most: usize,
    /// Windows of each object at most
    #[arg(long, default_value_t = 20)]
    windows: usize,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Accept as if proposals were symmetric (without the Hastings ratio)
    #[arg(long)]
    symmetric: bool,
    /// Take the compiler's code as it is, without the passes
    #[arg(long)]
    untouched: bool,
    /// Print every window's figures
    #[arg(long)]
    each: bool,
    /// Print what was found
    #[arg(long)]
    found: bool,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let setting = Setting::by_id(args.setting).ok_or("settings are numbered 1 to 16")?;
    let setting = Setting { hastings: !args.symmetric, ..setting };
    println!(
        "{:28} {:>7} {:>8} {:>10} {:>10} {:>7} {:>7} {:>8} {:>6} {:>6}",
        "object", "windows", "untested", "median/s", "slowest/s", "judged", "equal", "refuted", "shown", "slots"
    );
    let mut rates = Vec::new();
    let mut all = Progress::default();
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let o = if args.untouched { Optimized::untouched(&path)? } else { Optimized::read(&path)? };
        let (mut own, mut sum, mut untested, mut slots) = (Vec::new(), Progress::default(), 0, 0);
        o.module.with_env(|env| {
            let places = o.windows(env, args.least, args.most);
            let step = places.len().div_ceil(args.windows).max(1);
            for p in places.iter().step_by(step) {
                let window = o.window(env, p);
                let mut cache = Cache::new();
                let (started, cpu) = (Instant::now(), cpu_time());
                let Some(mut chain) = Chain::new(window, setting, args.seed) else {
                    untested += 1;
                    continue;
                };
                let deadline = Some(started + Duration::from_millis(args.time));
                let mut proving = Duration::ZERO;
                let mut judge = |new: &[bpf_program::Op]| {
                    let t = Instant::now();
                    let a = o.judge(env, p, &mut cache, new);
                    proving += t.elapsed();
                    a
                };
                let best =
                    chain.run(Budget { proposals: u64::MAX >> 1, questions: u64::MAX, deadline }, &mut judge).cloned();
                let n = chain.progress;
                let rate = n.proposals as f64 / (cpu_time() - cpu).as_secs_f64();
                own.push(rate);
                sum.add(&n);
                let before: u32 = window.old.iter().map(|o| o.insn.slots() as u32).sum();
                let saved = best.as_ref().map_or(0, |b| before - b.cost.first);
                slots += saved;
                if args.each {
                    let ms = proving.as_secs_f64() * 1e3;
                    println!("  {}:{}-{} {rate:.0}/s proving {ms:.1} ms saved {saved} {n:?}", p.block, p.start, p.end);
                }
                if let Some(b) = best.filter(|_| args.found && saved > 0) {
                    println!("  {}:{}-{} after {} proposals", p.block, p.start, p.end, n.best_at);
                    window.old.iter().for_each(|op| println!("    - {}", op.insn));
                    b.with.iter().for_each(|op| println!("    + {}", op.insn));
                }
            }
        });
        own.sort_by(f64::total_cmp);
        println!(
            "{:28} {:>7} {untested:>8} {:>10.0} {:>10.0} {:>7} {:>7} {:>8} {:>6} {slots:>6}",
            o.name,
            own.len(),
            quantile(&own, 0.5),
            quantile(&own, 0.0),
            sum.judged,
            sum.equal,
            sum.refuted,
            sum.reproduced,
        );
        rates.extend(own);
        all.add(&sum);
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "{} windows: median {:.0} proposals per second, 10th percentile {:.0}, slowest {:.0}; {all:?}",
        rates.len(),
        quantile(&rates, 0.5),
        quantile(&rates, 0.1),
        quantile(&rates, 0.0)
    );
    Ok(())
}
