//! What is in the kernel already, by its number or its place in the BPF file system.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_sys as bpf;

use super::{checked, owned};

/// What the kernel keeps of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    pub(crate) id: u32,
    pub(crate) kind: u32,
    pub(crate) name: String,
    pub(crate) runs: u64,
    pub(crate) nanoseconds: u64,
}

pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: nothing but a number is passed.
    owned(unsafe { bpf::bpf_map_get_fd_by_id(id) })
}

pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: nothing but a number is passed.
    owned(unsafe { bpf::bpf_prog_get_fd_by_id(id) })
}

/// What is pinned there, which need not be a map.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero, and lives until the call is over.
    owned(unsafe { bpf::bpf_obj_get(path.as_ptr()) })
}

/// The kernel counts runs and their time as long as this descriptor is open.
pub(crate) fn enable_statistics() -> io::Result<OwnedFd> {
    // SAFETY: nothing but a number is passed.
    owned(unsafe { bpf::bpf_enable_stats(bpf::BPF_STATS_RUN_TIME) })
}

pub(crate) fn kept(fd: BorrowedFd<'_>) -> io::Result<Kept> {
    let mut info = bpf::bpf_prog_info::default();
    let mut length = size_of::<bpf::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes of `info`, and nothing else, as all its lengths are 0.
    checked(unsafe { bpf::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) })?;
    let name = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect::<Vec<u8>>();
    Ok(Kept {
        id: info.id,
        kind: info.type_,
        name: String::from_utf8_lossy(&name).into_owned(),
        runs: info.run_cnt,
        nanoseconds: info.run_time_ns,
    })
}
