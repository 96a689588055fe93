//! Threads with deep stacks: deep graphs recurse in the term normalizer.

use std::collections::VecDeque;
use std::sync::Mutex;

/// Bytes of stack of a worker thread.
const STACK: usize = 256 << 20;

/// Runs `f` on a thread with a deep stack; `None` if that failed.
pub fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|s| {
        std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, f).ok().and_then(|h| h.join().ok())
    })
}

/// Calls `f` with each item, on `jobs` threads, taking the items in their order.
pub(crate) fn each<T: Send>(jobs: usize, items: impl IntoIterator<Item = T>, f: impl Fn(T) + Sync) {
    work(jobs, items, |queue, _| queue.pop_front(), f, || ());
}

/// The same, but that every other thread takes the last items first. Of items in the order of their size many are done
/// soon, and none of the large ones is begun when the other threads have come to their end. One of the threads does what is
/// `beside` first, which is the calling one; what that gives.
pub(crate) fn each_from_both_ends<T: Send, R>(
    jobs: usize,
    items: impl IntoIterator<Item = T>,
    f: impl Fn(T) + Sync,
    beside: impl FnOnce() -> R,
) -> R {
    let take = |queue: &mut VecDeque<T>, worker: usize| match worker % 2 {
        0 => queue.pop_front(),
        _ => queue.pop_back(),
    };
    work(jobs, items, take, f, beside)
}

/// Calls `f` with each item; `take` says which one a thread, by its number, goes on with. One of the threads begins when the
/// calling one has done what is `beside`.
fn work<T: Send, R>(
    jobs: usize,
    items: impl IntoIterator<Item = T>,
    take: impl Fn(&mut VecDeque<T>, usize) -> Option<T> + Sync,
    f: impl Fn(T) + Sync,
    beside: impl FnOnce() -> R,
) -> R {
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.into_iter().collect());
    let count = queue.lock().map_or(0, |q| q.len());
    let next = |worker| queue.lock().ok().and_then(|mut q| take(&mut q, worker));
    let (next, f) = (&next, &f);
    let jobs = jobs.max(1);
    std::thread::scope(|s| {
        let spawn = |worker: usize| {
            let body = move || {
                while let Some(item) = next(worker) {
                    f(item);
                }
            };
            std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, body).ok()
        };
        let at_once = count.min(jobs - 1);
        let mut workers: Vec<_> = (0..at_once).map_while(spawn).collect();
        let result = beside();
        workers.extend((at_once..count.min(jobs)).map_while(spawn));
        for worker in workers {
            // A worker catches what its items do; nothing is lost if it ended early all the same.
            let _ = worker.join();
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn others_begin_beside_what_the_calling_thread_does_and_one_alone_does_it_first() {
        let done = AtomicUsize::new(0);
        let (tell, told) = mpsc::channel();
        let wait = || told.recv_timeout(Duration::from_secs(60)).is_ok();
        let work = |_| {
            let _ = tell.send(());
            done.fetch_add(1, Ordering::SeqCst);
        };
        assert!(each_from_both_ends(2, 0..9, work, wait), "the other thread has begun");
        assert_eq!(done.swap(0, Ordering::SeqCst), 9);
        let before = each_from_both_ends(1, 0..9, work, || done.load(Ordering::SeqCst));
        assert_eq!((before, done.load(Ordering::SeqCst)), (0, 9));
        assert_eq!(each_from_both_ends(4, 0..0, work, || 7), 7);
    }
}
