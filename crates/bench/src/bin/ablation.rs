//! What each of the prover's optimizations is worth: the paper's Table 4 for this prover.
//!
//! The window queries of one optimizer run are asked again with everything on, then with one
//! optimization after the other switched off in addition, then with each switched off alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf_bench::{Harvest, finish, harvest, objects};
use bpf_prove::{Cache, Options, Switches};
use clap::Parser;

/// Measures the prover's optimizations I to V by switching them off.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Seconds after which a single query is given up
    #[arg(long, default_value_t = 10.0)]
    query_limit: f64,
    /// Seconds after which the rest of an object's queries is left out; the mean is of those asked
    #[arg(long, default_value_t = 60.0)]
    object_limit: f64,
}

/// One column: its heading, and what is on.
fn columns() -> Vec<(&'static str, Switches)> {
    let all = Switches::default();
    let no_v = Switches { cache: false, ..all };
    let no_iv = Switches { windows: false, ..no_v };
    let no_iii = Switches { offsets: false, ..no_iv };
    let no_ii = Switches { maps: false, ..no_iii };
    vec![
        ("I-V", all),
        ("I-IV", no_v),
        ("I-III", no_iv),
        ("I,II", no_iii),
        ("I", no_ii),
        ("none", Switches { regions: false, ..no_ii }),
        ("no I", Switches { regions: false, ..no_v }),
        ("no II", Switches { maps: false, ..no_v }),
        ("no III", Switches { offsets: false, ..no_v }),
    ]
}

/// What one column gave for one object.
struct Cell {
    mean: f64,
    equal: usize,
    asked: usize,
    hits: u64,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let columns = columns();
    print!("| object | queries | equal |");
    columns.iter().for_each(|(name, _)| print!(" {name} (us) |"));
    print!("\n|---|---:|---:|");
    columns.iter().for_each(|_| print!("---:|"));
    println!();
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let h = harvest(&path)?;
        let cells: Vec<Cell> = columns.iter().map(|(_, s)| ask(&h, *s, args)).collect();
        let base = &cells[0];
        print!("| {} | {} | {} |", h.name, base.asked, base.equal);
        for (i, c) in cells.iter().enumerate() {
            match i {
                0 => print!(" {:.1} ({:.0} % remembered) |", c.mean, 100.0 * c.hits as f64 / c.asked.max(1) as f64),
                _ => {
                    let slower = c.mean / cells[1].mean;
                    let proven = if c.asked < base.asked {
                        format!(", {} of {} asked", c.equal, c.asked)
                    } else if c.equal < base.equal {
                        format!(", {} proven", c.equal)
                    } else {
                        String::new()
                    };
                    print!(" {:.1} (x{slower:.1}{proven}) |", c.mean);
                }
            }
        }
        println!();
    }
    Ok(())
}

/// Asks all queries of an object.
fn ask(h: &Harvest, switches: Switches, args: &Args) -> Cell {
    let started = Instant::now();
    let (mut equal, mut asked, mut hits) = (0, 0, 0);
    h.module.with_env(|env| {
        for (_, _, queries) in &h.functions {
            let mut cache = Cache::new();
            for q in queries {
                if started.elapsed().as_secs_f64() > args.object_limit {
                    break;
                }
                let mut options = Options { switches, ..q.options.clone() };
                options.limits.deadline = Instant::now().checked_add(Duration::from_secs_f64(args.query_limit));
                equal += usize::from(cache.ask(&q.function, env, &q.known(), &q.rewrite, &options).is_ok());
                asked += 1;
            }
            hits += cache.hits;
        }
    });
    Cell { mean: started.elapsed().as_secs_f64() * 1e6 / asked.max(1) as f64, equal, asked, hits }
}
