//! How hard and how strictly to prove, and what it took.

use crate::solver::smt::Recorder;

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// SAT conflicts per query.
    pub conflicts: u32,
    /// Elementary term operations for the whole proof.
    pub work: u64,
    /// When to give up, checked between queries.
    pub deadline: Option<std::time::Instant>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { conflicts: 20_000, work: 20_000_000, deadline: None }
    }
}

/// What makes proofs fast, each with a switch so that its worth can be measured (paper §5 and Table 4).
/// All are on by default. Switching one off never makes a proof wrong, only slower or impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Switches {
    /// Optimization I: one memory per region. Off: one memory for everything but context fields.
    pub regions: bool,
    /// Optimization II: one memory per map. Off: one for the values of all maps.
    pub maps: bool,
    /// Optimization III: addresses of one object are compared by their constant offsets. Off: by the solver.
    pub offsets: bool,
    /// Optimization IV: a change is proven as a window. Off: as a change of the whole function.
    pub windows: bool,
    /// Optimization V: verdicts are remembered by the canonical form of the question.
    pub cache: bool,
}

impl Default for Switches {
    fn default() -> Switches {
        Switches { regions: true, maps: true, offsets: true, windows: true, cache: true }
    }
}

/// Counters of a proof, for reports and benchmarks.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Equalities decided because both sides were the same node.
    pub trivial: u64,
    /// Queries that went to the SAT solver.
    pub sat_calls: u64,
    /// Those it did not decide within its limit.
    pub undecided: u64,
    /// Questions answered from memory.
    pub cached: u64,
}

impl Stats {
    /// Adds another proof's counters.
    pub fn add(&mut self, o: Stats) {
        self.trivial += o.trivial;
        self.sat_calls += o.sat_calls;
        self.undecided += o.undecided;
        self.cached += o.cached;
    }
}

/// How strictly and how hard to prove.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Limits of one proof.
    pub limits: Limits,
    /// Forbid merging accesses to shared memory.
    pub strict_shared_memory: bool,
    /// What makes it fast.
    pub switches: Switches,
    /// Sees every query with its answer.
    pub recorder: Option<Recorder>,
    /// Helpers of which all calls in a run give one number, and are no events. Set where the new side has fewer of them.
    pub constant_calls: Vec<i32>,
}
