//! For tests that need what not every machine gives: they are skipped there, and say so.
//!
//! The one idea: a test that was skipped looks like one that has passed, so where the kernel has to be there
//! (`BPF_OPT_REQUIRE_KERNEL` in the environment), nothing is skipped in silence: the test fails.

use std::{fmt::Display, io};

/// Whether programs may be loaded here; if not, the test is to be skipped.
///
/// # Panics
/// If they may not, and must.
#[track_caller]
pub fn permitted() -> bool {
    available(crate::permitted().require()).is_some()
}

/// What a test needs, if it is there; if not, the test is to be skipped.
///
/// # Panics
/// If it is not there, and must be.
#[track_caller]
pub fn available<T, E: Display>(needed: Result<T, E>) -> Option<T> {
    needed
        .map_err(|why| {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "BPF_OPT_REQUIRE_KERNEL is set, but {why}");
            eprintln!("skipped: {why}");
        })
        .ok()
}

/// Runs `action` on a thread of its own that sees a new `/sys/fs/bpf`, as do the processes it starts: what others
/// have pinned on this machine is not in the way, and what `action` pins is gone with it.
///
/// # Errors
/// What the system said when it refused the thread, the namespace or the mount (which take `CAP_SYS_ADMIN`); `action`
/// has not been called then.
///
/// # Panics
/// If `action` does.
pub fn in_private_pins<T: Send>(action: impl FnOnce() -> T + Send) -> io::Result<T> {
    crate::network::after_leaving("private pins", crate::sys::leave_pins, action)
}
