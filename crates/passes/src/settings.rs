//! What the engine may do, and who sees what it proposes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bpf_facts::Env;
use bpf_isa::Goal;
use bpf_program::{BlockId, Frequencies, Function, Profile};
use bpf_prove::{Known, Limits, Options, Rewrite, Switches};

/// What the engine may do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Highest cpu level of new instructions, 1 … 4.
    pub cpu: u8,
    /// What code is to have less of.
    pub goal: Goal,
    /// How often the parts of functions ran, by the function's name; what is not here is guessed. It only weighs.
    pub profiles: Option<Arc<BTreeMap<String, Profile>>>,
    /// What is guessed of functions as they were, by their name, so that all forms of one are weighed alike.
    pub guesses: Option<Arc<BTreeMap<String, Profile>>>,
    /// How much each function counts beside the others, by its name, from 0 to 1; what is not here counts 1.
    pub importance: Option<Arc<BTreeMap<String, f64>>>,
    /// Forbid merging shared accesses and load-add-store to atomics.
    pub strict_shared_memory: bool,
    /// Names of the passes that run; `None`: all.
    pub only: Option<Vec<String>>,
    /// Limits of one proof.
    pub limits: Limits,
    /// What makes proofs fast.
    pub switches: Switches,
    /// When to stop.
    pub deadline: Option<Instant>,
    /// Set from outside to stop early; what was proven until then stands.
    pub stop: Option<Arc<AtomicBool>>,
    /// Sees every query of the prover.
    pub queries: Option<bpf_prove::Recorder>,
    /// Sees every proposal that goes to the prover.
    pub recorder: Option<Recorder>,
}

impl Settings {
    /// What was counted of the function of this name.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.as_ref().and_then(|all| all.get(name))
    }

    /// How much it counts what a block takes, for each of a function's: 1 where slots come first.
    pub fn weights(&self, f: &Function) -> Vec<f64> {
        // What never runs is worth some work, and what runs a thousand times is no end of it.
        const BETWEEN: (f64, f64) = (0.02, 100.0);
        if self.goal.puts_slots_first() {
            return vec![1.0; f.blocks.len()];
        }
        let of_function = self.importance.as_ref().and_then(|all| all.get(&f.name)).copied().unwrap_or(1.0);
        let frequencies = self.frequencies(f);
        let weight = |i: usize| frequencies.block(BlockId(i as u32)).clamp(BETWEEN.0, BETWEEN.1) * of_function;
        (0..f.blocks.len()).map(weight).collect()
    }

    /// How often the blocks of a function run.
    pub fn frequencies(&self, f: &Function) -> Frequencies {
        let counted = self.profile(&f.name).filter(|p| p.entries() > 0);
        let guessed = || self.guesses.as_ref().and_then(|all| all.get(&f.name));
        Frequencies::of(f, counted.or_else(guessed))
    }

    /// How something is to be proven by this time.
    pub fn proof_options(&self, deadline: Option<Instant>) -> Options {
        Options {
            limits: Limits { deadline, ..self.limits },
            strict_shared_memory: self.strict_shared_memory,
            switches: self.switches,
            recorder: self.queries.clone(),
            ..Options::default()
        }
    }
}

/// A proposal as it goes to the prover, for those who want to ask again.
pub struct Proposal<'a> {
    /// The function as it stands.
    pub function: &'a Function,
    /// What the function is part of.
    pub env: &'a Env<'a>,
    /// What is known about the block.
    pub known: &'a Known<'a>,
    /// The change.
    pub rewrite: &'a Rewrite,
    /// How it is to be proven.
    pub options: &'a Options,
}

/// Calls a function with every proposal, before the prover sees it.
#[derive(Clone)]
pub struct Recorder(pub(crate) Arc<dyn Fn(&Proposal) + Send + Sync>);

impl Recorder {
    /// A recorder that calls `f`.
    pub fn new(f: impl Fn(&Proposal) + Send + Sync + 'static) -> Recorder {
        Recorder(Arc::new(f))
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cpu: 3,
            goal: Goal::Size,
            profiles: None,
            guesses: None,
            importance: None,
            strict_shared_memory: false,
            only: None,
            limits: Limits { conflicts: 2_000, work: 2_000_000, ..Limits::default() },
            switches: Switches::default(),
            deadline: None,
            stop: None,
            queries: None,
            recorder: None,
        }
    }
}
