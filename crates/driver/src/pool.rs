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
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.into_iter().collect());
    let count = queue.lock().map_or(0, |q| q.len());
    let next = || queue.lock().ok().and_then(|mut q| q.pop_front());
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..jobs.clamp(1, count.max(1)))
            .map_while(|_| {
                let body = || {
                    while let Some(item) = next() {
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
