//! What the SSA form does to functions: lifted, changed by passes or by none, lowered again, and compared as a whole.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf_bench::{finish, objects};
use bpf_driver::Module;
use bpf_object::Object;
use bpf_passes::Settings;
use bpf_program::{Function, slot_count};
use bpf_prove::{Limits, Options, Verdict, functions};
use clap::Parser;

/// The allocator of the tool, so that what is measured is what its users get.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lifts every function to SSA, lowers it again, and has the result proven.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    paths: Vec<PathBuf>,
    /// Start from what the local passes make of the function
    #[arg(long)]
    local_first: bool,
    /// Let the local passes work on the result, too
    #[arg(long)]
    local_last: bool,
    /// Show this function before and after
    #[arg(long)]
    show: Option<String>,
    /// Seconds for the proof of one function
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// No proof
    #[arg(long)]
    no_proof: bool,
    /// A line for each function
    #[arg(long)]
    each: bool,
    /// Step by step, each step proven; those that are not are left out
    #[arg(long)]
    steps: bool,
    /// Allocate with the crate `regalloc2` alone
    #[arg(long)]
    regalloc2: bool,
    /// Only these passes
    #[arg(long, value_delimiter = ',')]
    passes: Option<Vec<String>>,
    /// Not these passes
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
}

#[derive(Default)]
struct Total {
    functions: usize,
    refused: usize,
    registers: usize,
    equal: usize,
    unknown: usize,
    different: usize,
    grown: usize,
    before: usize,
    after: usize,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let mut all = Total::default();
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let Ok(object) = Object::parse(bytes) else { continue };
        let module = Module::new(object);
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        for graph in module.graphs.iter().flatten() {
            module.with_env(|env| one(args, &name, graph, env, &mut all));
        }
    }
    let Total { functions, refused, registers, equal, unknown, different, grown, before, after } = all;
    println!(
        "functions {functions}: not lifted {refused}, no registers {registers}, equal {equal}, unknown {unknown}, different {different}; longer {grown}; slots {before} -> {after}"
    );
    Ok(())
}

fn one(args: &Args, object: &str, graph: &Function, env: &bpf_facts::Env<'_>, all: &mut Total) {
    let settings = Settings::default();
    let local = |f: &Function| bpf_passes::optimize(f.clone(), env, &settings).into_current();
    let start = if args.local_first { local(graph) } else { graph.clone() };
    all.functions += 1;
    let before = slot_count(&start);
    let began = Instant::now();
    let mut passes = bpf_ssa::all_passes();
    if args.passes.is_some() {
        passes.extend(bpf_ssa::passes::detours());
    }
    passes.retain(|p| {
        let name = p.name().to_owned();
        args.passes.as_ref().is_none_or(|only| only.contains(&name)) && !args.without.contains(&name)
    });
    if args.steps {
        return steps(args, object, graph, &start, env, &passes, all);
    }
    let refs: Vec<&dyn bpf_ssa::passes::Pass> = passes.iter().map(AsRef::as_ref).collect();
    let candidate = match bpf_ssa::candidate(&start, env, &refs) {
        Ok(c) => c,
        Err(bpf_ssa::NoCandidate::Refused(why)) => {
            all.refused += 1;
            println!("{object} {}: {why}", graph.name);
            return;
        }
        Err(bpf_ssa::NoCandidate::Registers) => {
            all.registers += 1;
            println!("{object} {}: not enough registers", graph.name);
            return;
        }
    };
    let mut candidate = candidate;
    if args.regalloc2 {
        match bpf_ssa::with_moves(&candidate.ssa, &start) {
            Some(f) => candidate.function = f,
            None => {
                all.registers += 1;
                return;
            }
        }
    }
    let took = began.elapsed();
    if let Err(why) = bpf_ssa::verify(&candidate.ssa) {
        println!("{object} {}: BROKEN FORM: {why}", graph.name);
    }
    let shown = args.show.as_deref().is_some_and(|s| graph.name.contains(s));
    if shown {
        println!("{start}\n{}\n{}", candidate.ssa, candidate.function);
    }
    let result = if args.local_last { local(&candidate.function) } else { candidate.function };
    if shown && args.local_last {
        println!("{result}");
    }
    let after = slot_count(&result);
    all.before += before;
    all.after += after;
    all.grown += usize::from(after > before);
    let limits =
        Limits { deadline: Instant::now().checked_add(Duration::from_secs_f64(args.seconds)), ..Limits::default() };
    let verdict = if args.no_proof {
        Verdict::Unknown("not asked".into())
    } else {
        functions(graph, &result, env, &Options { limits, ..Options::default() }).0
    };
    let is_equal = verdict.is_equal();
    let word = match verdict {
        Verdict::Equal => {
            all.equal += 1;
            "equal".to_owned()
        }
        Verdict::Unknown(why) => {
            all.unknown += 1;
            format!("unknown: {why}")
        }
        Verdict::Different(mut d) => match bpf_prove::replay(&mut d, graph, &result, env) {
            Some(w) => {
                all.different += 1;
                format!("DIFFERENT: {}", w.lines().join("; "))
            }
            None => {
                all.unknown += 1;
                "unknown: the formula has a difference that does not show when it is run".to_owned()
            }
        },
    };
    if args.each || after > before || !is_equal && !args.no_proof {
        println!("{object} {}: {before} -> {after} {word} ({} ms)", graph.name, took.as_millis());
    }
}

/// A judge that has everything proven, and tells of what is not.
struct Proving<'a> {
    args: &'a Args,
    name: String,
    env: &'a bpf_facts::Env<'a>,
    asked: usize,
    different: usize,
}

impl bpf_ssa::Judge for Proving<'_> {
    fn accepts(&mut self, old: &Function, new: &Function) -> bool {
        self.asked += 1;
        let deadline = Instant::now().checked_add(Duration::from_secs_f64(self.args.seconds));
        let limits = Limits { deadline, ..Limits::default() };
        let verdict = functions(old, new, self.env, &Options { limits, ..Options::default() }).0;
        let why = match verdict {
            Verdict::Equal => return true,
            Verdict::Unknown(why) => why,
            Verdict::Different(mut d) => match bpf_prove::replay(&mut d, old, new, self.env) {
                Some(w) => {
                    self.different += 1;
                    println!("{}: DIFFERENT: {}\n{old}\n{new}", self.name, w.lines().join("; "));
                    return false;
                }
                None => "a difference of the formula that does not show when it is run".into(),
            },
        };
        if self.args.each {
            println!("    {} -> {} unknown: {why}", slot_count(old), slot_count(new));
            if self.args.show.as_deref().is_some_and(|s| self.name.contains(s)) {
                println!("{old}\n{new}");
            }
        }
        false
    }

    fn cost(&mut self, f: &Function) -> usize {
        if !self.args.local_last || slot_count(f) > 300 {
            return slot_count(f);
        }
        slot_count(&bpf_passes::optimize(f.clone(), self.env, &Settings::default()).into_current())
    }
}

/// Goes as far as proven steps lead.
fn steps(
    args: &Args,
    object: &str,
    graph: &Function,
    start: &Function,
    env: &bpf_facts::Env<'_>,
    passes: &[Box<dyn bpf_ssa::passes::Pass>],
    all: &mut Total,
) {
    let settings = Settings::default();
    let local = |f: &Function| bpf_passes::optimize(f.clone(), env, &settings).into_current();
    let began = Instant::now();
    let name = format!("{object} {}", graph.name);
    let mut judge = Proving { args, name, env, asked: 0, different: 0 };
    let found = bpf_ssa::improve(start, env, passes, &mut judge);
    let took = began.elapsed();
    let end = found.last().map_or(start, |s| &s.function);
    let result = if args.local_last { local(end) } else { end.clone() };
    let (before, after) = (slot_count(start), slot_count(&result));
    all.before += before;
    all.after += after;
    all.different += judge.different;
    let names: Vec<String> =
        found.iter().map(|s| format!("{} ({})", s.by.join("+"), slot_count(&s.function))).collect();
    let asked = judge.asked;
    println!(
        "{object} {}: {before} -> {after}; {asked} proofs, {} ms: {}",
        graph.name,
        took.as_millis(),
        names.join(", ")
    );
}
