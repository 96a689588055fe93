//! Windows of real programs, as the search gets them: what the passes have left.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bpf_driver::Module;
use bpf_facts::{Analysis, Env, Live, State};
use bpf_isa::Goal;
use bpf_passes::View;
use bpf_program::{BlockId, Function, Op};
use bpf_prove::{Cache, Known, Limits, Options, Points, Rewrite, Verdict};
use bpf_search::window::plain;
use bpf_search::{Answer, Budget, Chain, Setting, Window};

/// A stretch of a block, with everything the prover needs to know about the block.
pub struct Place {
    /// Index into the module's functions.
    pub function: usize,
    /// The block.
    pub block: BlockId,
    /// First operation.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// States before each operation of the block and before its terminator.
    pub states: Vec<State>,
    /// What is live before each operation, before the terminator, and at the end.
    pub live: Vec<Live>,
}

/// An object whose functions have been through the passes.
pub struct Optimized {
    /// The object's file name without `.o`.
    pub name: String,
    /// The object.
    pub module: Module,
    /// Its functions as they are now.
    pub functions: Vec<Function>,
}

/// What a search of one window came to.
#[derive(Clone, Copy)]
pub struct Searched {
    /// Slots of the window.
    pub old: u32,
    /// Those that were saved.
    pub saved: u32,
    /// The time until the last of them was.
    pub after: Duration,
}

impl Optimized {
    /// Reads the object at `path` and runs the passes.
    ///
    /// # Errors
    /// In words: the file cannot be read or is no BPF object.
    pub fn read(path: &Path) -> Result<Optimized, String> {
        let h = crate::harvest(path)?;
        let functions = h.functions.into_iter().map(|(_, after, _)| after).collect();
        Ok(Optimized { name: h.name, module: h.module, functions })
    }

    /// Reads the object at `path` and leaves it as the compiler has made it.
    ///
    /// # Errors
    /// In words: the file cannot be read or is no BPF object.
    pub fn untouched(path: &Path) -> Result<Optimized, String> {
        let h = crate::harvest(path)?;
        let functions = h.functions.into_iter().map(|(before, _, _)| before).collect();
        Ok(Optimized { name: h.name, module: h.module, functions })
    }

    /// Its windows of `least` to `most` operations: of each stretch without calls the whole, or, where
    /// it is too long, pieces that overlap by half.
    pub fn windows(&self, env: &Env, least: usize, most: usize) -> Vec<Place> {
        let settings = bpf_passes::Settings::default();
        let mut out = Vec::new();
        for (i, f) in self.functions.iter().enumerate() {
            let analysis = Analysis::of(f, env);
            for &block in &f.layout {
                let Some(points) = Points::of_block(f, block, &analysis, env) else { continue };
                let view = View::new(f, &points, env, &settings);
                let stretches = view.ops.split(|o| !plain(&o.insn));
                let mut at = 0;
                for s in stretches {
                    let (first, n) = (at, s.len());
                    at += n + 1;
                    let mut start = 0;
                    while n >= least + start {
                        let len = most.min(n - start);
                        let (start_at, end) = (first + start, first + start + len);
                        let (states, live) = (view.states.to_vec(), view.live.to_vec());
                        out.push(Place { function: i, block, start: start_at, end, states, live });
                        if start + len == n {
                            break;
                        }
                        start += most / 2;
                    }
                }
            }
        }
        out
    }

    /// The window at a place.
    pub fn window<'a>(&'a self, env: &'a Env<'a>, p: &'a Place) -> Window<'a> {
        let f = &self.functions[p.function];
        Window {
            kind: f.kind,
            env,
            before: &p.states[p.start],
            old: &f.block(p.block).ops[p.start..p.end],
            live: &p.live[p.end],
            cpu: self.module.cpu.max(3),
            goal: Goal::Size,
            deadline: None,
            superblock: None,
        }
    }

    /// Searches the window at a place by chains, one for each of some settings and one after the other, with so many proposals each.
    pub fn search(&self, env: &Env, p: &Place, settings: &[Setting], proposals: u64, seed: u64) -> Searched {
        /// After so many it is looked whether something was found.
        const SLICE: u64 = 2_048;
        let window = self.window(env, p);
        let old: u32 = window.old.iter().map(|o| o.insn.slots() as u32).sum();
        let none = Searched { old, saved: 0, after: Duration::ZERO };
        let mut found = none;
        let mut cache = Cache::new();
        let started = Instant::now();
        for setting in settings {
            let Some(mut chain) = Chain::new(window, *setting, seed) else { return none };
            let mut judge = |new: &[Op]| self.judge(env, p, &mut cache, new);
            let mut left = proposals;
            while left > 0 {
                let slice = left.min(SLICE);
                left -= slice;
                if let Some(f) = chain.run(Budget::proposals(slice), &mut judge)
                    && f.cost.first < old - found.saved
                {
                    found = Searched { old, saved: old - f.cost.first, after: started.elapsed() };
                }
            }
        }
        found
    }

    /// Asks the prover about a replacement.
    pub fn judge(&self, env: &Env, p: &Place, cache: &mut Cache, new: &[Op]) -> Answer {
        let known = Known { states: &p.states, live: &p.live, sides: &[] };
        let (block, start, end, path) = (p.block, p.start, p.end, vec![]);
        let rewrite = Rewrite { block, path, start, end, with: new.to_vec(), term: None, by: "search" };
        let limits = Limits { conflicts: 2_000, work: 2_000_000, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        match cache.ask(&self.functions[p.function], env, &known, &rewrite, &options) {
            Ok(_) => Answer::Equal,
            Err((Verdict::Different(d), _)) => Answer::Different(Some(d)),
            Err(_) => Answer::Unknown,
        }
    }
}

/// Time this thread has spent on a processor, where the system tells (Linux's `schedstat`); else the
/// time since the first call. What else runs on the machine does not count.
pub fn cpu_time() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let wall = FIRST.get_or_init(Instant::now).elapsed();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = stat.and_then(|s| s.split_whitespace().next().and_then(|n| n.parse().ok()));
    ns.map_or(wall, Duration::from_nanos)
}
