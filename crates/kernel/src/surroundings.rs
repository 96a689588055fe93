//! What a test run needs around it: a network of its own, and counters to read.

use std::os::fd::OwnedFd;

use crate::{KernelError, sys, sys::perf};

/// Moves the calling thread, and the processes and sockets it will make, to a new network namespace. It ends with the
/// last of them. Other threads stay where they are.
///
/// # Errors
/// The kernel's refusal, usually for lack of CAP_SYS_ADMIN.
pub fn own_network() -> Result<(), KernelError> {
    sys::leave_network().map_err(KernelError::refused("making a network namespace"))
}

/// Opens the software perf event `config` (`PERF_COUNT_SW_*`; 10 takes output of BPF programs) on one CPU.
///
/// # Errors
/// The kernel's refusal.
pub fn software_event(config: u64, cpu: i32) -> Result<OwnedFd, KernelError> {
    const EVERY_PROCESS: i32 = -1;
    let event = perf::open(perf::SOFTWARE, config, 0, EVERY_PROCESS, cpu);
    event.map_err(KernelError::refused(format!("opening software event {config}")))
}
