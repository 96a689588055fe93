//! Whether this process may load programs, found out by loading one.
//!
//! Capabilities, sysctls, seccomp filters and lockdown all have a say, so the one idea is to ask the kernel for the
//! smallest program there is and to believe the answer. It is one that the verifier takes only from who may see addresses
//! (`allow_ptr_leaks`): of others it refuses much that it takes from root, and a refusal is then none of the program.

use std::io;

use crate::failure::is_of_means;
use crate::{KernelError, ProgramType, RawOptions, RawProgram, Rejection};

/// `r0 = r10; exit`: "R0 leaks addr as return value" without CAP_PERFMON (`check_return_code` in kernel/bpf/verifier.c).
const TRIVIAL: [u8; 16] = [0xbf, 0xa0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// May this process use bpf()?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// A small program was loaded, or there was only no descriptor or memory left for it.
    Yes,
    /// It was refused, for this reason.
    No(String),
}

impl Permission {
    /// Is it [`Permission::Yes`]?
    pub fn is_granted(&self) -> bool {
        *self == Self::Yes
    }

    /// Turns a missing permission into an error.
    pub fn require(self) -> Result<(), KernelError> {
        match self {
            Self::Yes => Ok(()),
            Self::No(reason) => Err(KernelError::NotPermitted { reason }),
        }
    }
}

/// Tries to load a small XDP program, which needs every capability that the other questions need.
pub fn permitted() -> Permission {
    match RawProgram::load(ProgramType::XDP, &TRIVIAL, &RawOptions::default()) {
        Ok(_) => Permission::Yes,
        Err(rejection) if is_of_means(rejection.errno) => Permission::Yes,
        Err(rejection) => Permission::No(explain(&rejection)),
    }
}

fn explain(rejection: &Rejection) -> String {
    let cause = io::Error::from_raw_os_error(rejection.errno);
    match cause.kind() {
        io::ErrorKind::PermissionDenied => format!("{cause} (needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)"),
        io::ErrorKind::Unsupported => format!("{cause} (a kernel without bpf(), or a sandbox that hides it)"),
        _ => cause.to_string(),
    }
}
