//! What results that were made without asking the kernel are worth to it: how many of the programs that it loads still
//! load, and which part of what runs with the gate save is saved.
//!
//! Every object is optimized twice, with and without the kernel, by the same seed, rounds and limit. Both results are
//! loaded program by program, and nothing is run or attached.

use std::path::PathBuf;
use std::time::Duration;

use bpf_bench::{finish, objects};
use bpf_driver::{Options, Silent, optimize};
use bpf_kernel::{LoadOptions, Loader, ObjectVerdict};
use bpf_testgen::shapes::{Shape, generate};
use clap::Parser;

/// The allocator of the tool, so that what is measured is what its users get.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compares results made with `--no-kernel` with those of the gate: what loads, what is saved.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
    /// Seeds for generated objects of every shape, beside those
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<u64>,
    /// Generated objects as large as real ones
    #[arg(long)]
    large: bool,
    /// Time for an object, in seconds
    #[arg(long, default_value_t = 5.0)]
    time_limit: f64,
    /// Rounds of the search at most
    #[arg(long)]
    rounds: Option<u64>,
    /// Seed of the optimizer
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fail if fewer percent of the programs load
    #[arg(long, default_value_t = 99.5)]
    least_loaded: f64,
    /// Fail if fewer percent of the slots are saved
    #[arg(long, default_value_t = 97.0)]
    least_saved: f64,
}

/// What was counted of objects.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Programs that load as they come.
    programs: usize,
    /// Of these, those that load when optimized with the kernel, and without.
    loaded: [usize; 2],
    /// Slots saved with the kernel, and without.
    saved: [usize; 2],
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.programs += other.programs;
        for i in [0, 1] {
            self.loaded[i] += other.loaded[i];
            self.saved[i] += other.saved[i];
        }
    }

    fn row(&self, name: &str) -> String {
        let Counts { programs, loaded: [a, b], saved: [c, d] } = self;
        format!("{name:48} {programs:>8} {a:>8} {b:>8} {c:>8} {d:>8} {:>8.2}", percent(*d, *c))
    }
}

fn percent(part: usize, of: usize) -> f64 {
    if of == 0 { 100.0 } else { 100.0 * part as f64 / of as f64 }
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let paths = args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] });
    let files = paths.map(|path| {
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<_, String>((path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), bytes))
    });
    let shapes = args.shapes.iter().flat_map(|seed| Shape::ALL.map(|shape| (shape, *seed)));
    let shapes = shapes.map(|(shape, seed)| {
        let size = if args.large { shape.large() } else { shape.small() };
        let object = generate(shape, seed, size).map_err(|e| format!("{shape:?}: {e}"))?;
        Ok((format!("{shape:?}, seed {seed}"), object.bytes))
    });
    println!(
        "{:48} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "object", "programs", "gate", "without", "saved", "without", "percent"
    );
    let mut total = Counts::default();
    for object in files.chain(shapes) {
        let (name, bytes) = object?;
        match compared(args, &bytes)? {
            Some((counts, remarks)) => {
                println!("{}", counts.row(&name));
                remarks.iter().for_each(|remark| println!("    {remark}"));
                total.add(counts);
            }
            None => println!("{name:48} no program of it loads"),
        }
    }
    println!("{}", total.row("all"));
    let (loaded, saved) = (percent(total.loaded[1], total.programs), percent(total.saved[1], total.saved[0]));
    println!("without the kernel {loaded:.2} % of the programs load and {saved:.2} % of the slots are saved");
    match loaded < args.least_loaded || saved < args.least_saved {
        true => Err(format!("expected at least {} % and {} %", args.least_loaded, args.least_saved)),
        false => Ok(()),
    }
}

/// Optimizes an object both ways; what came of it, and what does not load and why. `None` if none of it loads as it comes.
fn compared(args: &Args, bytes: &[u8]) -> Result<Option<(Counts, Vec<String>)>, String> {
    let original = verdict(bytes)?;
    let loads: Vec<usize> =
        (0..original.programs.len()).filter(|&i| original.programs[i].verdict.is_accepted()).collect();
    if loads.is_empty() {
        return Ok(None);
    }
    let mut counts = Counts { programs: loads.len(), ..Counts::default() };
    let mut remarks = Vec::new();
    for (way, kernel) in [true, false].into_iter().enumerate() {
        let options = Options {
            time_limit: Duration::from_secs_f64(args.time_limit),
            seed: args.seed,
            rounds: args.rounds,
            search: true,
            kernel,
            ..Options::default()
        };
        let (result, report) = optimize(bytes, &options, &Silent).map_err(|e| e.to_string())?;
        let (before, after) = report.slots();
        counts.saved[way] = before - after;
        let made = if kernel { "with the gate" } else { "without the kernel" };
        if report.timed_out {
            remarks.push(format!("{made}: time ended"));
        }
        let after = verdict(&result)?;
        for &at in &loads {
            match after.programs.get(at) {
                Some(p) if original.programs[at].replaced_by(p) => counts.loaded[way] += 1,
                Some(p) => {
                    let why = original.programs[at].made_otherwise(p).unwrap_or(p.verdict.reason());
                    remarks.push(format!("{made}: {} ({}): {why}", p.name, p.section));
                }
                None => remarks.push(format!("{made}: {} is gone", original.programs[at].name)),
            }
        }
    }
    Ok(Some((counts, remarks)))
}

fn verdict(bytes: &[u8]) -> Result<ObjectVerdict, String> {
    let mut loader = Loader::new(LoadOptions::default()).map_err(|e| e.to_string())?;
    loader.judge(bytes, |_, _| true, None).map_err(|e| e.to_string())
}
