//! What a thread uses of its processor, as the kernel's perf events count it.
//!
//! The one idea: a counter belongs to the thread that opens it and counts nothing of any other, so the difference of two readings is what
//! this thread did in between, and no more. Where the kernel gives no such counter (no right, no counters in the processor, as in most
//! virtual machines), opening one says so.

use std::fs::File;
use std::io::Read;

use crate::{KernelError, sys::perf};

/// What a [`Counter`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Cycles of the processor while it runs the kernel, BPF programs among it, for this thread (`PERF_COUNT_HW_CPU_CYCLES`).
    Cycles,
    /// Nanoseconds in which the thread is on a processor (`PERF_COUNT_SW_TASK_CLOCK`). Every machine has it.
    TaskClock,
}

impl Event {
    /// Type, number and flags, as include/uapi/linux/perf_event.h has them.
    fn attributes(self) -> (u32, u64, u64) {
        /// It is never taken turns with other events: either it counts all the time, or reading it fails.
        const PINNED: u64 = 1 << 2;
        const EXCLUDE_USER: u64 = 1 << 4;
        const CPU_CYCLES: u64 = 0;
        const TASK_CLOCK: u64 = 1;
        match self {
            Event::Cycles => (perf::HARDWARE, CPU_CYCLES, PINNED | EXCLUDE_USER),
            Event::TaskClock => (perf::SOFTWARE, TASK_CLOCK, PINNED),
        }
    }
}

/// Counts for the thread that has opened it, as long as this value lives.
#[derive(Debug)]
pub struct Counter {
    file: File,
}

impl Counter {
    /// Counts from here on.
    ///
    /// # Errors
    /// If the kernel has no such counter, or does not let this process have it.
    pub fn open(event: Event) -> Result<Counter, KernelError> {
        const THIS_THREAD: i32 = 0;
        const ANY_PROCESSOR: i32 = -1;
        let (kind, config, flags) = event.attributes();
        let fd = perf::open(kind, config, flags, THIS_THREAD, ANY_PROCESSOR);
        let fd = fd.map_err(KernelError::refused(format!("opening a perf event ({event:?})")))?;
        Ok(Counter { file: File::from(fd) })
    }

    /// What was counted until now.
    ///
    /// # Errors
    /// If something else has taken the processor's counter.
    pub fn read(&self) -> Result<u64, KernelError> {
        let mut count = [0; size_of::<u64>()];
        (&self.file).read_exact(&mut count).map_err(KernelError::refused("reading a perf event"))?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::available;

    /// Uses the processor for so long; how long it was.
    fn busy(time: Duration) -> Duration {
        let begin = perf::thread_time();
        loop {
            let used = perf::thread_time() - begin;
            if used >= time {
                return used;
            }
        }
    }

    #[test]
    fn what_a_thread_uses_is_counted_and_what_another_uses_is_not() {
        const TIME: Duration = Duration::from_millis(20);
        let Some(counter) = available(Counter::open(Event::TaskClock)) else { return };
        let counted = |action: &dyn Fn() -> Duration| {
            let before = counter.read().expect("a count");
            let used = action();
            (counter.read().expect("a count") - before) as f64 / used.as_nanos() as f64
        };
        let own = counted(&|| busy(TIME));
        assert!((0.25..4.0).contains(&own), "{own} of the time");
        let others = counted(&|| std::thread::spawn(|| busy(TIME)).join().expect("it ends"));
        assert!(others < 0.5, "{others} of the time");
    }
}
