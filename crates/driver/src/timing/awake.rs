//! Keeps the processor awake while test runs sleep.
//!
//! A test run of an XDP program waits for grace periods of RCU before it begins (`bpf_prog_change_xdp`), some ten milliseconds in which
//! the processor is idle. Behind that its clock takes milliseconds to come up again, longer than a turn takes: the same program takes 45
//! ns or 56 there, by chance. So a thread that is as nice as can be is busy on the processor meanwhile. (Where a quota of processor time is
//! set, it takes of that; and it keeps awake the one processor that runs are kept on.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The least that a thread can be given.
const NICEST: i32 = 19;

/// Until it is dropped, the processors this thread may run on do not sleep; as far as the system lets it.
pub(super) struct Awake {
    done: Arc<AtomicBool>,
    busy: Option<JoinHandle<()>>,
}

impl Awake {
    /// A thread takes its processors from the one that makes it.
    pub fn stay() -> Awake {
        let done = Arc::new(AtomicBool::new(false));
        let busy = std::thread::Builder::new().name("awake".to_owned()).spawn({
            let done = done.clone();
            move || {
                if setpriority_process(Some(gettid()), NICEST).is_ok() {
                    // Not with `spin_loop`: hypervisors take the processor from who waits by that.
                    while !done.load(Ordering::Relaxed) {
                        for n in 0..1000 {
                            std::hint::black_box(n);
                        }
                    }
                }
            }
        });
        Awake { done, busy: busy.ok() }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(busy) = self.busy.take() {
            let _ = busy.join();
        }
    }
}
