//! Hit rates of what is remembered, as in the paper's Table 6: candidates in their canonical form that
//! were called equal or different before (within a run), and windows in their canonical form that were
//! solved before (within the object, by the objects before it, and in a second run); how many of those that
//! objects before it answer are answered by a general rule, and how many of these answers hold.

use std::path::PathBuf;

use bpf_bench::windows::Optimized;
use bpf_bench::{finish, objects};
use bpf_prove::Cache;
use bpf_search::canonical::{WindowKey, canonical};
use bpf_search::enumerate::{Effort, enumerate};
use bpf_search::rules::{BY_GENERAL, RuleBody, key_text};
use bpf_search::store::Store;
use bpf_search::{Answer, Budget, Chain, SETTINGS};
use clap::Parser;
use rustc_hash::FxHashSet;

/// Prints a table like Table 6 of the K2 paper, in Markdown.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Proposals of a chain per window
    #[arg(long, default_value_t = 20_000)]
    proposals: u64,
    /// Instructions the enumerator runs per window at most
    #[arg(long, default_value_t = 300_000)]
    steps: u64,
    /// Fewest operations of a window
    #[arg(long, default_value_t = 2)]
    least: usize,
    /// Most operations of a window
    #[arg(long, default_value_t = 8)]
    most: usize,
    /// Windows of each object at most
    #[arg(long, default_value_t = 60)]
    windows: usize,
    /// Take the code after the passes, as the search does, instead of the compiler's
    #[arg(long)]
    optimized: bool,
}

/// Hits and look-ups.
#[derive(Clone, Copy, Default)]
struct Rate(u64, u64);

impl Rate {
    fn add(&mut self, o: Rate) {
        self.0 += o.0;
        self.1 += o.1;
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} ({:.0} %)", self.0, self.1, 100.0 * self.0 as f64 / self.1.max(1) as f64)
    }
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    println!(
        "| object | windows | candidates remembered | windows, same object | windows, other objects too | by general rules | of these right | windows, second run |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut shared = Store::in_memory();
    let mut total = [Rate::default(); 6];
    for path in args.paths.iter().flat_map(|p| if p.is_dir() { objects(p) } else { vec![p.clone()] }) {
        let o = if args.optimized { Optimized::read(&path)? } else { Optimized::untouched(&path)? };
        let rates = object(&o, args, &mut shared);
        println!("| {} | {} |", o.name, row(&rates));
        total.iter_mut().zip(rates).for_each(|(t, r)| t.add(r));
    }
    println!("| all | {} |", row(&total));
    Ok(())
}

fn row(rates: &[Rate; 6]) -> String {
    let cells: Vec<String> = rates.iter().map(Rate::to_string).collect();
    format!("{} | {}", rates[1].1, cells.join(" | "))
}

/// Candidates; windows within the object, with the objects before, by general rules, those of them that are
/// right, in a second run.
fn object(o: &Optimized, args: &Args, shared: &mut Store) -> [Rate; 6] {
    let mut rates = [Rate::default(); 6];
    let mut own: FxHashSet<String> = FxHashSet::default();
    o.module.with_env(|env| {
        let mut places = o.windows(env, args.least, args.most);
        places.truncate(args.windows);
        let mut cache = Cache::new();
        let mut asked = 0;
        let mut learned: Vec<(WindowKey, RuleBody)> = Vec::new();
        for p in &places {
            let w = o.window(env, p);
            let Some((key, renaming)) = canonical(&w) else { continue };
            rates[1].add(Rate(u64::from(!own.insert(key_text(&key))), 1));
            let known = shared.look_up(&key);
            rates[2].add(Rate(u64::from(known.is_some()), 1));
            let general = known.as_ref().filter(|a| a.by == BY_GENERAL).and_then(|a| a.with.as_ref());
            rates[3].add(Rate(u64::from(general.is_some()), 1));
            if let Some(with) = general {
                let instance = renaming.to_window(with);
                let right = instance.is_some_and(|new| matches!(o.judge(env, p, &mut cache, &new), Answer::Equal));
                rates[4].add(Rate(u64::from(right), 1));
            }
            let mut judge = |new: &[bpf_program::Op]| {
                asked += 1;
                o.judge(env, p, &mut cache, new)
            };
            let effort = Effort { steps: args.steps, ..Effort::default() };
            let found = enumerate(&w, &mut judge, effort);
            let mut best = found.found;
            if let Some(mut chain) = Chain::new(w, SETTINGS[0], 1) {
                let other = chain.run(Budget::proposals(args.proposals), &mut judge).cloned();
                best = best.or(other);
                rates[0].add(Rate(chain.progress.remembered, chain.progress.remembered));
            }
            let with = best.and_then(|f| renaming.to_canonical(&f.with));
            let excluded = found.exhausted_to.and_then(|n| u32::try_from(n).ok());
            learned.push((key, RuleBody { with, by: "search".into(), effort: found.steps, excluded }));
        }
        // Only now: what is known above comes from other objects.
        for (key, answer) in learned {
            shared.record(&key, answer);
        }
        rates[0].add(Rate(cache.hits, asked));
        for p in &places {
            let Some((key, _)) = canonical(&o.window(env, p)) else { continue };
            rates[5].add(Rate(u64::from(shared.look_up(&key).is_some()), 1));
        }
    });
    rates
}
