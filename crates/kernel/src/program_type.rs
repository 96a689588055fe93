//! Program types: the kernel's numbers, and the names people give them.
//!
//! Two vocabularies exist: section names, which bpftool takes (`xdp`, `classifier`, `cgroup/skb`), and the kernel's
//! enum names (`sched_cls`). Both are understood; the tables are libbpf's, so nothing is listed twice.

use std::fmt;

use crate::{KernelError, sys};

/// An `enum bpf_prog_type` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramType(pub u32);

impl ProgramType {
    /// Not known: the section name told nothing.
    pub const UNSPEC: Self = Self(0);
    /// Socket filters.
    pub const SOCKET_FILTER: Self = Self(1);
    /// Traffic control classifiers (tc).
    pub const SCHED_CLS: Self = Self(3);
    /// Tracepoints.
    pub const TRACEPOINT: Self = Self(5);
    /// Express data path.
    pub const XDP: Self = Self(6);
    /// Raw tracepoints; test-run takes a context and nothing else.
    pub const RAW_TRACEPOINT: Self = Self(17);
    /// Raw tracepoints that may write what they are given; test-run as [`Self::RAW_TRACEPOINT`].
    pub const RAW_TRACEPOINT_WRITABLE: Self = Self(24);
    /// Programs that make system calls; test-run takes a context and nothing else.
    pub const SYSCALL: Self = Self(31);

    /// Names of types to try where a section's name says nothing.
    pub const USUAL: [&str; 4] = ["classifier", "xdp", "socket", "kprobe"];

    /// Numbers of program and attach types to try for a section: what libbpf says, or, where it says nothing, the usual
    /// ones.
    pub fn usual(section: &str) -> Vec<(u32, u32)> {
        // Older loaders put names of their own behind a slash.
        let whole = section.strip_prefix('?').unwrap_or(section);
        let head = section.split('/').next().unwrap_or(section);
        let known = [whole, head].iter().find_map(|name| Self::named(name).ok());
        let usual = || Self::USUAL.iter().filter_map(|name| Self::named(name).ok()).collect();
        let found: Vec<(Self, u32)> = known.map_or_else(usual, |one| vec![one]);
        found.into_iter().map(|(kind, attach)| (kind.0, attach)).collect()
    }

    /// Finds a type, and the attach type that goes with it, by section name as `bpftool prog load … type NAME` does, or
    /// by the kernel's enum name.
    pub fn named(name: &str) -> Result<(Self, u32), KernelError> {
        // As bpftool does: names such as `kprobe` are found only with the slash of a section name.
        [name.to_owned(), format!("{name}/")]
            .iter()
            .find_map(|section| sys::program_type_by_section(section))
            .map(|(kind, attach)| (Self(kind), attach))
            .or_else(|| Self::by_enum_name(name).map(|kind| (kind, 0)))
            .ok_or_else(|| KernelError::UnknownProgramType { name: name.to_owned() })
    }

    /// The type that loaders other than today's libbpf read off the beginning of a section name that libbpf does not know,
    /// such as `xdp/tail` and `socket1`: libbpf before 1.0, iproute2, the kernel's samples, cilium/ebpf. These are the names
    /// that proofs rely on, too (`bpf_platform::ProgKind::from_section`); of others, any loader may say anything.
    pub(crate) fn of_older_loaders(section: &str) -> Option<(Self, u32)> {
        const BEGINNINGS: [&str; 3] = ["xdp", "socket", "classifier"];
        let section = section.strip_prefix('?').unwrap_or(section);
        BEGINNINGS.iter().find(|name| section.starts_with(**name)).and_then(|name| Self::named(name).ok())
    }

    fn by_enum_name(name: &str) -> Option<Self> {
        (0..)
            .map_while(|kind| Some((kind, sys::program_type_name(kind)?)))
            .find(|(_, n)| n == name)
            .map(|(k, _)| Self(k))
    }

    /// May a test run of this type hand in and get back packet data, a changed context and a duration?
    pub(crate) fn runs_on_context_alone(self) -> bool {
        matches!(self, Self::RAW_TRACEPOINT | Self::RAW_TRACEPOINT_WRITABLE | Self::SYSCALL)
    }
}

impl fmt::Display for ProgramType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match sys::program_type_name(self.0) {
            Some(name) => f.write_str(&name),
            None => write!(f, "program type {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_names_of_older_loaders_are_those_that_proofs_rely_on() {
        let kind = |section: &str| ProgramType::of_older_loaders(section).map(|(kind, _)| kind);
        assert_eq!(kind("xdp/tail"), Some(ProgramType::XDP));
        assert_eq!(kind("?socket1"), Some(ProgramType::SOCKET_FILTER));
        assert_eq!(kind("classifier-of-mine"), Some(ProgramType::SCHED_CLS));
        for section in ["tail-32", "tcp", "ingress", "cgroup/sock1", ""] {
            assert_eq!(kind(section), None, "{section}");
        }
        for section in ["xdp/tail", "socket1", "classifier-of-mine"] {
            assert_ne!(bpf_platform::ProgKind::from_section(section), bpf_platform::ProgKind::Other);
        }
    }
}
