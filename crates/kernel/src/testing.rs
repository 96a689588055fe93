//! For tests that need what not every machine gives: they are skipped there, and say so.
//!
//! The one idea: a test that was skipped looks like one that has passed, so where the kernel has to be there
//! (`BPF_OPT_REQUIRE_KERNEL` in the environment), nothing is skipped in silence: the test fails.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
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

/// A classic BPF program in the kernel: at one of two sockets that are connected to each other and to nothing else.
#[derive(Debug)]
pub struct ClassicProgram {
    sender: UnixDatagram,
    receiver: UnixDatagram,
}

impl ClassicProgram {
    /// Attaches a program (`SO_ATTACH_FILTER`), which takes no right: instructions of code, the two distances, and operand.
    ///
    /// # Errors
    /// If the kernel takes no such program.
    pub fn attach(instructions: &[(u16, u8, u8, u32)]) -> io::Result<ClassicProgram> {
        let (sender, receiver) = UnixDatagram::pair()?;
        receiver.set_nonblocking(true)?;
        crate::sys::attach_classic(receiver.as_fd(), instructions)?;
        Ok(ClassicProgram { sender, receiver })
    }

    /// How many bytes of a packet it accepts; `None` if it rejects the packet. No link header was ever set for it.
    ///
    /// # Errors
    /// If the packet does not fit a socket.
    pub fn run(&self, packet: &[u8]) -> io::Result<Option<usize>> {
        self.sender.send(packet)?;
        match self.receiver.recv(&mut vec![0; packet.len()]) {
            Ok(length) => Ok(Some(length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}
