//! Hooks of the kernel, and what their contexts hold.

use bpf_assembly::AssemblyError;

use crate::options::{MOST_ACCEPTED, Source};
use crate::value::Ancillary;

/// Where in the kernel a filter runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// The driver.
    Xdp,
    /// A classifier with direct action at ingress or egress.
    Tc,
    /// A control group's socket buffers, which begin at the network header.
    CgroupSkb,
    /// A socket, whose programs say how much of a packet it gets.
    Socket,
}

/// What the program returns for packets that match and those that do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actions {
    /// For a packet that the filter accepts.
    pub matched: i32,
    /// For any other.
    pub other: i32,
}

impl Actions {
    /// Lets through what matches, and drops the rest.
    pub fn passing(hook: Hook) -> Actions {
        let (matched, other) = hook.pass_and_drop();
        Actions { matched, other }
    }
}

/// Why there is no eBPF program.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// Something that eBPF, or the hook, does not have.
    #[error("{0}")]
    Unsupported(String),
    /// The assembler.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
}

impl EbpfError {
    pub(super) fn chain() -> EbpfError {
        let text = "'protochain' of a filter for captures is a loop; for the kernel it is compiled with the hook as its source";
        EbpfError::Unsupported(text.to_owned())
    }
}

/// Offsets in the context (`struct xdp_md`, `struct __sk_buff`).
impl Hook {
    /// Where the packet begins and ends, if its programs may know (`may_access_direct_pkt_data` in the kernel).
    pub(super) fn data(self) -> Option<(u32, u32)> {
        match self {
            Hook::Xdp => Some((0, 4)),
            Hook::Tc | Hook::CgroupSkb => Some((76, 80)),
            Hook::Socket => None,
        }
    }

    pub(super) fn offset_of(self, what: Ancillary) -> Result<u32, EbpfError> {
        let offset = match (self, what) {
            (Hook::Xdp, Ancillary::InterfaceIndex) => Some(12),
            (Hook::Xdp, _) => None,
            (_, Ancillary::PacketType) => Some(4),
            (_, Ancillary::VlanPresent) => Some(20),
            (_, Ancillary::VlanTag) => Some(24),
            (_, Ancillary::InterfaceIndex) => Some(40),
        };
        offset.ok_or_else(|| EbpfError::Unsupported(format!("{}: this hook does not know it", what.asked_for_by())))
    }

    /// Where the packets of its programs come from.
    pub fn source(self) -> Source {
        match self {
            Hook::Xdp => Source::Xdp,
            Hook::Tc => Source::Tc,
            Hook::CgroupSkb => Source::CgroupSkb,
            Hook::Socket => Source::Socket,
        }
    }

    /// What its programs return to let a packet through, and to drop it.
    pub fn pass_and_drop(self) -> (i32, i32) {
        match self {
            // XDP_PASS, XDP_DROP
            Hook::Xdp => (2, 1),
            // TC_ACT_OK, TC_ACT_SHOT
            Hook::Tc => (0, 2),
            Hook::CgroupSkb => (1, 0),
            // Bytes.
            Hook::Socket => (MOST_ACCEPTED.cast_signed(), 0),
        }
    }

    /// The structure of its programs' contexts.
    pub(super) fn context(self) -> &'static str {
        match self {
            Hook::Xdp => "xdp_md",
            Hook::Tc | Hook::CgroupSkb | Hook::Socket => "__sk_buff",
        }
    }

    /// Its programs bring together what they read of a packet that is in pieces. A control group's have no call for that.
    pub(super) fn pulls_data(self) -> bool {
        self == Hook::Tc
    }

    /// The section in which libbpf looks for such programs.
    pub fn section(self) -> &'static str {
        match self {
            Hook::Xdp => "xdp",
            Hook::Tc => "tc",
            Hook::CgroupSkb => "cgroup_skb/ingress",
            Hook::Socket => "socket",
        }
    }
}
