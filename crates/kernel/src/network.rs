//! A network namespace of one's own, for test runs.
//!
//! The one idea: a test run takes its devices, routes and sockets from the network namespace of the thread that asks for
//! it (`bpf_prog_test_run_skb`, `bpf_prog_test_run_xdp` in `net/bpf/test_run.c`), and maps of devices belong to that of
//! the thread that creates them. A thread that has left the host's network before it loads and runs anything can send
//! packets only to itself: the new namespace has a loopback device, which is down, and nothing else.
//!
//! Promises: only the thread made for this leaves the host's network; the namespace is gone with it.

use std::io;

use crate::sys;

/// Runs `action` on a thread of its own, in a network namespace of its own.
///
/// # Errors
/// What the system said when it refused the thread or the namespace (which takes `CAP_SYS_ADMIN`); `action` has not
/// been called then.
///
/// # Panics
/// If `action` does.
pub fn in_private_network<T: Send>(action: impl FnOnce() -> T + Send) -> io::Result<T> {
    after_leaving("private network", sys::leave_network, action)
}

/// Runs `action` on a thread of its own that has first left, with `leave`, something which threads share.
pub(crate) fn after_leaving<T: Send>(
    name: &str,
    leave: fn() -> io::Result<()>,
    action: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let body = || leave().map(|()| action());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
