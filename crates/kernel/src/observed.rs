//! What is in the kernel already: a map that somebody else has made, and how often programs ran that somebody else has loaded.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::{KernelError, Map, ProgramType, permitted, sys::observed};

/// Where the kernel says whether it counts runs for everybody.
const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl Map {
    /// The map with this number.
    ///
    /// # Errors
    /// If there is none, or it may not be read.
    pub fn by_id(id: u32) -> Result<Map, KernelError> {
        permitted().require()?;
        let fd = observed::map_by_id(id).map_err(KernelError::refused(format!("opening map {id}")))?;
        Map::described(fd, format!("{id}"))
    }

    /// The map that is pinned at a path.
    ///
    /// # Errors
    /// If there is none, or it may not be read.
    pub fn pinned(path: &Path) -> Result<Map, KernelError> {
        permitted().require()?;
        let name = path.display().to_string();
        let fd = observed::pinned(path).map_err(KernelError::refused(format!("opening map {name}")))?;
        Map::described(fd, name)
    }
}

/// How often a program ran, as the kernel has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// Its number.
    pub id: u32,
    /// Its name in the kernel, the first 15 characters.
    pub name: String,
    /// Its type.
    pub kind: ProgramType,
    /// Runs that were counted.
    pub runs: u64,
    /// What these took.
    pub nanoseconds: u64,
}

/// A program that somebody has loaded.
#[derive(Debug)]
pub struct Observed {
    id: u32,
    fd: OwnedFd,
}

impl Observed {
    /// The program with this number. It stays loaded as long as this value lives.
    ///
    /// # Errors
    /// If there is none, or it may not be looked at.
    pub fn by_id(id: u32) -> Result<Observed, KernelError> {
        permitted().require()?;
        let fd = observed::program_by_id(id).map_err(KernelError::refused(format!("opening program {id}")))?;
        Ok(Observed { id, fd })
    }

    /// What the kernel has counted until now.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn runs(&self) -> Result<Runs, KernelError> {
        let doing = format!("describing program {}", self.id);
        let kept = observed::kept(self.fd.as_fd()).map_err(KernelError::refused(doing))?;
        let kind = ProgramType(kept.kind);
        Ok(Runs { id: kept.id, name: kept.name, kind, runs: kept.runs, nanoseconds: kept.nanoseconds })
    }
}

/// The kernel counts runs while this value lives (`BPF_ENABLE_STATS`), and then does again what it did before.
#[derive(Debug)]
pub struct Statistics {
    _open: OwnedFd,
}

impl Statistics {
    /// Has it count. Each run of any program takes some nanoseconds more meanwhile.
    ///
    /// # Errors
    /// If it may not be told to.
    pub fn enable() -> Result<Statistics, KernelError> {
        let open =
            observed::enable_statistics().map_err(KernelError::refused("having the kernel count runs".to_owned()))?;
        Ok(Statistics { _open: open })
    }

    /// Whether it counts for everybody, without being asked (`kernel.bpf_stats_enabled`).
    pub fn are_on() -> bool {
        fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() != "0")
    }
}
