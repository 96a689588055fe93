//! Perf events (`perf_event_open`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::{c_int, c_ulong};

/// `PERF_TYPE_HARDWARE` in include/uapi/linux/perf_event.h.
pub(crate) const HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE`.
pub(crate) const SOFTWARE: u32 = 1;

/// `struct perf_event_attr` in include/uapi/linux/perf_event.h, its first version (`PERF_ATTR_SIZE_VER0`: 64 bytes).
#[derive(Default)]
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    /// The bit field that begins with `disabled`.
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64, "PERF_ATTR_SIZE_VER0");

/// Opens an event of a type and a number: of one process (0: of the calling thread; -1: of all of them), on one processor (-1: on any).
pub(crate) fn open(kind: u32, config: u64, flags: u64, process: c_int, cpu: c_int) -> io::Result<OwnedFd> {
    /// The event is in no group.
    const ALONE: c_int = -1;
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOSED_BY_EXEC: c_ulong = 8;
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes { kind, size, config, flags, ..Attributes::default() };
    // SAFETY: the kernel reads the attributes, whose size they tell, and may write the size that it would want; the others are numbers.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw mut attributes, process, cpu, ALONE, CLOSED_BY_EXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// How long the calling thread was on a processor until now.
#[cfg(test)]
pub(crate) fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
