//! How an input is run, and what a run of it takes.

use bpf_kernel::{Counter, KernelError, RunResult};

/// What a run takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    /// Nanoseconds, as the kernel tells them.
    pub ns: f64,
    /// What a counter counted; not a number if there is none.
    pub counted: f64,
}

/// One of the things that a run takes.
pub(super) type Part = fn(&Spent) -> f64;

impl Spent {
    /// Of a run that was not made: nothing is known to be taken off.
    pub const NONE: Spent = Spent { ns: 0.0, counted: f64::NAN };
}

/// How an input is run.
#[derive(Clone, Copy)]
pub(super) enum Turns {
    /// So many repetitions in one system call.
    Repeated(u32),
    /// So many system calls of one run.
    Single(u32),
}

impl Turns {
    /// What a run takes; `run` takes how often. `None`: the kernel does not run it.
    pub fn mean(self, counter: Option<&Counter>, run: impl Fn(u32) -> Result<RunResult, KernelError>) -> Option<Spent> {
        let (calls, runs) = match self {
            Turns::Repeated(n) => (1, n),
            Turns::Single(n) => (n, 1),
        };
        let read = || counter.and_then(|counter| counter.read().ok());
        let mut all = Spent::default();
        for _ in 0..calls {
            let before = read();
            let ns = run(runs).ok()?.duration_ns;
            let counted = before.zip(read()).map_or(f64::NAN, |(before, after)| after.wrapping_sub(before) as f64);
            all.ns += f64::from(ns);
            // The kernel tells the time of one run, and a counter what all of them took.
            all.counted += counted / f64::from(runs);
        }
        Some(Spent { ns: all.ns / f64::from(calls), counted: all.counted / f64::from(calls) })
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use bpf_kernel::Event;
    use bpf_kernel::testing::available;

    use super::*;

    /// So many runs, of which the kernel tells 7 ns for each.
    fn runs(times: u32) -> Result<RunResult, KernelError> {
        (0..20_000 * times).for_each(|n| {
            black_box(n);
        });
        Ok(RunResult { retval: 0, data_out: Vec::new(), ctx_out: Vec::new(), duration_ns: 7 })
    }

    #[test]
    fn without_a_counter_nothing_is_counted() {
        for turns in [Turns::Repeated(3), Turns::Single(3)] {
            let spent = turns.mean(None, runs).expect("it runs");
            assert!(spent.ns == 7.0 && spent.counted.is_nan(), "{spent:?}");
        }
        let refused = |_| Err(KernelError::NotRunnable { kind: "none".to_owned() });
        assert!(Turns::Single(3).mean(None, refused).is_none());
    }

    #[test]
    fn what_is_counted_is_of_one_run() {
        let Some(counter) = available(Counter::open(Event::TaskClock)) else { return };
        let of = |turns: Turns| turns.mean(Some(&counter), runs).expect("it runs").counted;
        let [one, repeated, single] = [Turns::Repeated(1), Turns::Repeated(50), Turns::Single(50)].map(of);
        // A mean over fifty calls or runs is far from their sum, whatever else the machine does.
        assert!(one > 0.0 && repeated < 25.0 * single && single < 25.0 * repeated, "{one} {repeated} {single}");
    }
}
