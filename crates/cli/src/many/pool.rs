//! Working on many objects at once with a bounded number of threads.
//!
//! The one idea: there are so many permits as there may be threads. Who begins an object takes a fair share of those that are
//! free, and gives them back at its end. As long as many objects wait, that is one for each; the last ones get more.

use std::sync::{Condvar, Mutex, PoisonError};

/// Reserved, not used; see `main.rs`.
const STACK: usize = 1 << 30;

struct Free {
    permits: usize,
    /// Pieces that are not begun yet.
    waiting: usize,
}

/// Calls `work` with the number of each piece, in their order, and the threads that it may use: `jobs` at most over all that
/// are at work, which are `at_once` at most.
pub fn each(count: usize, jobs: usize, at_once: usize, work: impl Fn(usize, usize) + Sync) {
    let free = Mutex::new(Free { permits: jobs.max(1), waiting: count });
    let at_once = at_once.clamp(1, jobs.max(1));
    let (freed, work) = (Condvar::new(), &work);
    let worker = || {
        loop {
            let begun = {
                let guard = free.lock().unwrap_or_else(PoisonError::into_inner);
                let none_is_free = |f: &mut Free| f.permits == 0 && f.waiting > 0;
                let mut f = freed.wait_while(guard, none_is_free).unwrap_or_else(PoisonError::into_inner);
                if f.waiting == 0 {
                    return;
                }
                let share = (f.permits / f.waiting.min(at_once)).max(1);
                f.permits -= share;
                f.waiting -= 1;
                (count - f.waiting - 1, share)
            };
            work(begun.0, begun.1);
            free.lock().unwrap_or_else(PoisonError::into_inner).permits += begun.1;
            freed.notify_all();
        }
    };
    std::thread::scope(|s| {
        let start = || std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, worker).is_ok();
        // Where there is no memory for more threads, fewer do.
        let started = (0..at_once.min(count.max(1))).take_while(|_| start()).count();
        if started == 0 {
            worker();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_are_worked_on_by_no_more_threads_than_there_may_be() {
        for (count, jobs) in [(0, 2), (1, 4), (2, 3), (40, 3), (5, 1)] {
            let (done, at_work, most) = (Mutex::new(Vec::new()), AtomicUsize::new(0), AtomicUsize::new(0));
            each(count, jobs, jobs, |i, threads| {
                let now = at_work.fetch_add(threads, Ordering::SeqCst) + threads;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(1));
                at_work.fetch_sub(threads, Ordering::SeqCst);
                done.lock().expect("no panics").push(i);
            });
            let mut done = done.into_inner().expect("no panics");
            done.sort_unstable();
            assert_eq!(done, (0..count).collect::<Vec<_>>());
            assert!(most.into_inner() <= jobs, "{count} {jobs}");
        }
    }

    #[test]
    fn one_alone_gets_all_threads() {
        let seen = AtomicUsize::new(0);
        each(1, 7, 7, |_, threads| seen.store(threads, Ordering::SeqCst));
        assert_eq!(seen.into_inner(), 7);
        let seen = AtomicUsize::new(0);
        each(3, 7, 1, |_, threads| _ = seen.fetch_max(threads, Ordering::SeqCst));
        assert_eq!(seen.into_inner(), 7, "also if it is one at a time");
    }
}
