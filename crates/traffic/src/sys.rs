//! The unsafe edge: namespaces, links, frames that are sent, and processors. Nothing outside this module is unsafe.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;

/// `XDP_FLAGS_DRV_MODE` of `linux/if_link.h`: the driver runs the program, or nobody.
const IN_DRIVER: u32 = 1 << 2;
/// `BPF_F_TEST_XDP_LIVE_FRAMES` of `linux/bpf.h`.
const LIVE_FRAMES: u32 = 1 << 1;

fn result(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

/// The network namespace of the calling thread.
pub fn network_of_thread() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}

/// Moves the calling thread, and no other, to a network namespace.
pub fn enter_network(network: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an open descriptor and a number; what changes is which network the calling thread sees.
    result(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Lets a device of the calling thread's network run an XDP program, until the descriptor is closed.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
    let options = bpf::bpf_link_create_opts {
        sz: size_of::<bpf::bpf_link_create_opts>() as bpf::size_t,
        flags: IN_DRIVER,
        ..Default::default()
    };
    let interface = interface.cast_signed();
    // SAFETY: an open descriptor, a number, and options that live through the call.
    let link = unsafe { bpf::bpf_link_create(program.as_raw_fd(), interface, bpf::BPF_XDP, &options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: libbpf returned a descriptor that it just created and gave away.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Puts another program in the place of the attached one.
pub fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two open descriptors; options may be null.
    let code = unsafe { bpf::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

/// Runs an XDP program so often on copies of a packet, which go where the program sends them (`xdp_test_run_batch` in
/// net/bpf/test_run.c).
pub fn run_live(program: BorrowedFd<'_>, packet: &[u8], runs: u32, batch: u32) -> io::Result<()> {
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        repeat: runs.min(i32::MAX as u32).cast_signed(),
        flags: LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: the packet is as long as said and lives through the call; the kernel writes to the options alone.
    let code = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// Keeps a thread, or with 0 the calling one, on one processor and before others that are not in a hurry.
pub fn keep_on(thread: i32, processor: usize) -> io::Result<()> {
    // SAFETY: a set of processors is plain bits; the kernel reads as many bytes as are said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        result(libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set))?;
        result(libc::setpriority(libc::PRIO_PROCESS, thread.cast_unsigned(), -20)).map(drop)
    }
}

/// The processors that the calling thread may run on.
pub fn processors() -> Vec<usize> {
    // SAFETY: the kernel writes at most as many bytes as are said, to a set that is plain bits.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// A descriptor's path for other programs of this machine.
pub fn path_of(descriptor: &impl AsFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_fd().as_raw_fd())
}
