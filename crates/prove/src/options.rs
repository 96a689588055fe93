//! How hard and how strictly to prove, and what it took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::solver::smt::Recorder;

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// SAT conflicts per query.
    pub conflicts: u32,
    /// Elementary term operations for the whole proof.
    pub work: u64,
    /// When to give up, checked between queries.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { conflicts: 20_000, work: 20_000_000, deadline: None }
    }
}

/// Work that may be done by all proofs that share it. A deadline ends them elsewhere on each machine; this does not. A unit is
/// what it takes to tell the solver a clause: some tenths of a microsecond.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicU64>);

impl Budget {
    /// So many units.
    #[must_use]
    pub fn new(units: u64) -> Budget {
        Budget(Arc::new(AtomicU64::new(units)))
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Units that are left.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn spend(&self, units: u64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(units)));
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
    /// Work for all proofs with these options together; `None`: it is not counted.
    pub budget: Option<Budget>,
    /// Forbid merging accesses to shared memory.
    pub strict_shared_memory: bool,
    /// What makes it fast.
    pub switches: Switches,
    /// Sees every query with its answer.
    pub recorder: Option<Recorder>,
    /// Helpers of which all calls in a run give one number, and are no events. Set where the new side has fewer of them.
    pub constant_calls: Vec<i32>,
}

impl Options {
    /// Whether the time or the work for these proofs is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.limits.deadline.is_some_and(|d| Instant::now() >= d) || self.budget.as_ref().is_some_and(Budget::is_spent)
    }
}
