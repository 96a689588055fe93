//! Classic BPF programs at sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An instruction (`struct sock_filter` in `linux/filter.h`).
#[repr(C)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// A program (`struct sock_fprog`).
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// Lets a socket receive what a program accepts: instructions of code, the two distances, and operand.
pub(crate) fn attach_classic(socket: BorrowedFd<'_>, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    let instruction = |(code, jt, jf, k): &(u16, u8, u8, u32)| Instruction { code: *code, jt: *jt, jf: *jf, k: *k };
    let instructions: Vec<Instruction> = program.iter().map(instruction).collect();
    let length = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = Program { length, instructions: instructions.as_ptr() };
    // SAFETY: the kernel copies `length` instructions from where the program points to, which live until it returns, and reads no
    // more of the option than its size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<Program>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
