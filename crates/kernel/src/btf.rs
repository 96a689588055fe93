//! Type information in the kernel: what a raw program or map needs for callbacks, locks, timers and kernel pointers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{KernelError, Rejection, sys};

/// BTF that the kernel has accepted; it lives as long as this value or what was loaded with it.
#[derive(Debug)]
pub struct Btf {
    fd: OwnedFd,
}

impl Btf {
    /// Loads encoded BTF (header, types, strings).
    ///
    /// # Errors
    /// The kernel's refusal with its log.
    pub fn load(bytes: &[u8]) -> Result<Self, Rejection> {
        let mut log = vec![0; 1 << 16];
        let outcome = sys::load_btf(bytes, &mut log);
        outcome
            .map(|fd| Self { fd })
            .map_err(|error| Rejection { errno: error.raw_os_error().unwrap_or(22), log: sys::text(&log) })
    }
}

impl AsFd for Btf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The id of the kernel's own type with this name and kind (`BTF_KIND_*`: 4 struct, 12 function, 14 variable), for
/// `BPF_PSEUDO_BTF_ID` loads.
///
/// # Errors
/// The kernel has no BTF, or no such type in it.
pub fn kernel_type_id(name: &str, kind: u32) -> Result<u32, KernelError> {
    sys::kernel_type_id(name, kind).map_err(KernelError::refused(format!("looking for kernel type {name}")))
}
