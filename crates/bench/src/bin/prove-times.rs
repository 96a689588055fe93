//! How long the prover takes: every window query of optimizer runs, and every function as a whole.

use std::path::PathBuf;
use std::time::Instant;

use bpf_bench::{finish, harvest, objects, quantile};
use bpf_prove::{Options, ask, functions};
use clap::Parser;

/// The allocator of the tool, so that what is measured is what its users get.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Times the prover over the queries of real optimizer runs.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    println!(
        "{:28} {:>8} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "object", "queries", "equal", "solver", "median/us", "p90/us", "p99/us", "max/us", "whole/ms"
    );
    let (mut windows, mut wholes) = (Vec::new(), Vec::new());
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let h = harvest(&path)?;
        let (mut times, mut equal, mut solver) = (Vec::new(), 0, 0);
        let mut whole: f64 = 0.0;
        h.module.with_env(|env| {
            for (before, after, queries) in &h.functions {
                for q in queries {
                    let started = Instant::now();
                    let answer = ask(&q.function, env, &q.known(), &q.rewrite, &q.options);
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    let stats = match answer {
                        Ok(stats) => {
                            equal += 1;
                            stats
                        }
                        Err((_, stats)) => stats,
                    };
                    solver += usize::from(stats.sat_calls > 0);
                }
                let started = Instant::now();
                let verdict = functions(before, after, env, &Options::default()).0;
                whole = whole.max(started.elapsed().as_secs_f64() * 1e3);
                if !verdict.is_equal() {
                    println!("{}: {}: {verdict:?}", h.name, before.name);
                }
            }
        });
        times.sort_by(f64::total_cmp);
        let q = |x| quantile(&times, x);
        println!(
            "{:28} {:>8} {equal:>7} {solver:>7} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {whole:>10.2}",
            h.name,
            times.len(),
            q(0.5),
            q(0.9),
            q(0.99),
            q(1.0)
        );
        windows.extend(times);
        wholes.push(whole);
    }
    windows.sort_by(f64::total_cmp);
    wholes.sort_by(f64::total_cmp);
    println!(
        "windows: {} queries, median {:.1} us, 99th percentile {:.2} ms, longest {:.2} ms",
        windows.len(),
        quantile(&windows, 0.5),
        quantile(&windows, 0.99) / 1e3,
        quantile(&windows, 1.0) / 1e3
    );
    println!("whole functions: median {:.1} ms, longest {:.1} ms", quantile(&wholes, 0.5), quantile(&wholes, 1.0));
    Ok(())
}
