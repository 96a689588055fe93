//! What each pass is worth: alone, and what all others make without it. Slots, instructions that the verifier processes,
//! and time, as Markdown.
//!
//! No search, so that the rows differ by passes alone. Twins are counted as often as they stand in the objects.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf_bench::{finish, objects};
use bpf_driver::{Options, PassSelection, Silent, optimize};
use bpf_object::Object;
use clap::Parser;

/// The allocator of the tool, so that what is measured is what its users get.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Optimizes objects with each pass alone, and with all passes but one.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Objects of at most so many slots
    #[arg(long, default_value_t = 6000)]
    largest: usize,
    /// Seconds for one object
    #[arg(long, default_value_t = 10.0)]
    time_limit: f64,
    /// Only these passes; the graph is simplified in any case
    #[arg(long, value_delimiter = ',')]
    passes: Vec<String>,
}

/// What one choice of passes gave over all objects.
#[derive(Clone, Copy, Default)]
struct Sum {
    slots: usize,
    /// Of programs that were judged before and after.
    processed: u64,
    time: Duration,
}

/// What simplifies the graph: part of every row, because passes leave the rest of their work to it.
const SHAPE: &str = "jumps";

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let mut inputs = Vec::new();
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let Ok(object) = Object::parse(bytes.clone()) else { continue };
        if object.functions().iter().map(|f| f.slots).sum::<usize>() <= args.largest {
            inputs.push(bytes);
        }
    }
    let known = known();
    if let Some(wrong) = args.passes.iter().find(|p| !known.contains(p)) {
        return Err(format!("no pass is called {wrong}; there are {}", known.join(", ")));
    }
    let all = over(&inputs, &known, args)?;
    let none = over(&inputs, &[SHAPE.to_owned()], args)?;
    println!("{} objects; `{SHAPE}` in all rows.\n", inputs.len());
    println!("| pass | alone: slots saved | verified | s | without it: slots more | verified more | s less |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for pass in known.iter().filter(|p| *p != SHAPE && (args.passes.is_empty() || args.passes.contains(p))) {
        let alone = over(&inputs, &[SHAPE.to_owned(), pass.clone()], args)?;
        let others: Vec<String> = known.iter().filter(|p| *p != pass).cloned().collect();
        let without = over(&inputs, &others, args)?;
        println!(
            "| `{pass}` | {} | {:+} | {:.1} | {} | {:+} | {:.1} |",
            none.slots.saturating_sub(alone.slots),
            difference(alone.processed, none.processed),
            alone.time.as_secs_f64(),
            difference(without.slots as u64, all.slots as u64),
            difference(without.processed, all.processed),
            all.time.as_secs_f64() - without.time.as_secs_f64(),
        );
    }
    for (name, sum) in [("none", none), ("all", all)] {
        println!("\n{name}: {} slots, {} verified, {:.1} s", sum.slots, sum.processed, sum.time.as_secs_f64());
    }
    Ok(())
}

fn difference(a: u64, b: u64) -> i64 {
    a as i64 - b as i64
}

/// The names of all passes, the local ones first.
fn known() -> Vec<String> {
    let global = bpf_ssa::all_passes();
    bpf_passes::names().into_iter().chain(global.iter().map(|p| p.name())).map(str::to_owned).collect()
}

fn over(inputs: &[Vec<u8>], passes: &[String], args: &Args) -> Result<Sum, String> {
    let mut sum = Sum::default();
    for bytes in inputs {
        let options = Options {
            passes: PassSelection::Only(passes.to_vec()),
            time_limit: Duration::from_secs_f64(args.time_limit),
            run_check: false,
            max_verifier_growth: f64::MAX,
            ..Options::default()
        };
        let began = Instant::now();
        let (_, report) = optimize(bytes, &options, &Silent).map_err(|e| e.to_string())?;
        sum.time += began.elapsed();
        for f in &report.functions {
            sum.slots += f.slots_after;
            let both = [&f.kernel_before, &f.kernel_after].map(|k| k.as_ref().and_then(|k| k.processed));
            if let [Some(_), Some(after)] = both {
                sum.processed += after;
            }
        }
    }
    Ok(sum)
}
