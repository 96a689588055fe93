//! Which part of the work may go on until when.
//!
//! The time limit holds for the run as a whole, so what comes last has its time put aside from the beginning: loading the
//! result, runs of both, whole-function proofs, writing. How much is put aside follows from what the same has been seen to
//! cost. What is not used goes to whatever comes after it.

use std::time::{Duration, Instant};

/// Part of the time limit for runs of original and result, where there are to be any.
pub(crate) const RUNS: f64 = 0.1;
/// Part of the time limit for whole-function proofs.
const OPINIONS: f64 = 0.05;
/// Loads that are put aside, for each of those that the original took: the result's, and some to find what is to blame.
const LOADS: f64 = 1.3;
/// Part of the time limit that is put aside for loads at least; and at most of what the original's loads have left: if
/// there was time for few functions only, few programs have to be loaded.
const FOR_LOADS: (f64, f64) = (0.05, 0.5);

/// What the kernel will need, for each time that it is expected to.
const CARE: f64 = 2.0;
/// The part of the limit for which passes begin again.
const WORTH: f64 = 0.02;

/// The times at which the parts of a run have to end; `None`: never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The limit of the run as a whole.
    end: Option<Instant>,
    limit: Duration,
    loads: Duration,
    /// For runs of both.
    runs: Duration,
    /// For reading what is written and comparing it.
    written: Duration,
}

impl Plan {
    /// For a run of so long that began at `started`, in which the kernel took `load` for the original and it took
    /// `reading` to read it. `runs`: whether both are going to be run.
    pub(crate) fn new(started: Instant, limit: Duration, load: Duration, reading: Duration, runs: bool) -> Plan {
        let (least, most) = FOR_LOADS;
        let left = limit.saturating_sub(load + reading);
        Plan {
            end: started.checked_add(limit),
            limit,
            loads: load.mul_f64(LOADS).min(left.mul_f64(most)).max(limit.mul_f64(least)),
            runs: if runs { limit.mul_f64(RUNS) } else { Duration::ZERO },
            written: (2 * reading).min(limit / 10),
        }
    }

    /// When the passes have to end.
    pub(crate) fn passes(&self) -> Option<Instant> {
        self.before(self.loads + self.opinions() + self.written)
    }

    /// Until when passes may go on now, after a turn that began at `begun`, and of whose result the kernel has been asked
    /// since `asked`. The kernel will need about as long for what they do then; `None` if it is not worth it.
    pub(crate) fn more(&self, begun: Instant, asked: Instant) -> Option<Instant> {
        let (end, now) = (self.runs()?, Instant::now());
        let left = end.checked_duration_since(now)?;
        let passes = asked.saturating_duration_since(begun).as_secs_f64().max(1e-3);
        let kernel = now.saturating_duration_since(asked).as_secs_f64();
        let time = left.div_f64(1.0 + CARE * kernel / passes);
        (time > self.limit.mul_f64(WORTH)).then(|| now + time)
    }

    /// When the search has to end where steps for the verifier follow it ([`crate::lighter`]): these get half of what is left.
    pub(crate) fn search_before_steps(&self) -> Option<Instant> {
        let now = Instant::now();
        self.search().map(|end| now + end.saturating_duration_since(now) / 2)
    }

    /// When the search has to end.
    pub(crate) fn search(&self) -> Option<Instant> {
        self.before(self.loads + self.runs + self.opinions() + self.written)
    }

    /// When runs have to end, with all that follows from them.
    pub(crate) fn runs(&self) -> Option<Instant> {
        self.before(self.opinions() + self.written)
    }

    /// When whole-function proofs have to end.
    pub(crate) fn proofs(&self) -> Option<Instant> {
        self.before(self.written)
    }

    fn opinions(&self) -> Duration {
        self.limit.mul_f64(OPINIONS)
    }

    fn before(&self, kept: Duration) -> Option<Instant> {
        // With a limit as short as that, each part has the time for a first step.
        let kept = kept.min(self.limit.mul_f64(0.75));
        self.end.map(|end| end.checked_sub(kept).unwrap_or(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_ends_later_and_all_within_the_limit() {
        let started = Instant::now();
        for limit in [1, 100, 2_000, 30_000].map(Duration::from_millis) {
            for load in [0, 50, 900, 20_000].map(Duration::from_millis) {
                let plan = Plan::new(started, limit, load, load / 10, true);
                let ends = [plan.search(), plan.runs(), plan.proofs(), started.checked_add(limit)];
                assert!(ends.is_sorted() && plan.search() <= plan.passes(), "{plan:?}");
                assert!(plan.search() > Some(started), "{plan:?}");
            }
        }
    }

    #[test]
    fn a_limit_beyond_all_times_is_none() {
        let plan = Plan::new(Instant::now(), Duration::MAX, Duration::from_secs(1), Duration::ZERO, true);
        assert_eq!((plan.passes(), plan.proofs()), (None, None));
    }
}
