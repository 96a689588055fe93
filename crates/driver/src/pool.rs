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
    work(jobs, items, |queue, _| queue.pop_front(), f);
}

/// The same, but that every other thread takes the last items first. Of items in the order of their size many are done
/// soon, and none of the large ones is begun when the other threads have come to their end.
pub(crate) fn each_from_both_ends<T: Send>(jobs: usize, items: impl IntoIterator<Item = T>, f: impl Fn(T) + Sync) {
    let take = |queue: &mut VecDeque<T>, worker: usize| match worker % 2 {
        0 => queue.pop_front(),
        _ => queue.pop_back(),
    };
    work(jobs, items, take, f);
}

/// Calls `f` with each item; `take` says which one a thread, by its number, goes on with.
fn work<T: Send>(
    jobs: usize,
    items: impl IntoIterator<Item = T>,
    take: impl Fn(&mut VecDeque<T>, usize) -> Option<T> + Sync,
    f: impl Fn(T) + Sync,
) {
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.into_iter().collect());
    let count = queue.lock().map_or(0, |q| q.len());
    let next = |worker| queue.lock().ok().and_then(|mut q| take(&mut q, worker));
    let (next, f) = (&next, &f);
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..jobs.clamp(1, count.max(1)))
            .map_while(|worker| {
                let body = move || {
                    while let Some(item) = next(worker) {
                        f(item);
                    }
                };
                std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, body).ok()
            })
            .collect();
        for worker in workers {
            // A worker catches what its items do; nothing is lost if it ended early all the same.
            let _ = worker.join();
        }
    });
}
