//! How a filter is compiled.

use std::collections::HashMap;
use std::sync::Arc;

use crate::link::LinkType;
use crate::name_files::NameFiles;
use crate::passes::{Pass, Passes};
use crate::profile::Profile;
use crate::updatable::Updatable;

/// Where packets come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Source {
    /// A capture file: all that is known of a packet is in it.
    #[default]
    File,
    /// An interface, as libpcap has one that is for compiling only (`pcap_open_dead`, `tcpdump -y TYPE -d`): the kernel knows direction
    /// and interface, families have this system's numbers, and VLAN tags are in the packet.
    Interface,
    /// The driver, before the kernel has looked at the packet: VLAN tags are in it.
    Xdp,
    /// A socket buffer at ingress or egress.
    Tc,
    /// A socket.
    Socket,
    /// A socket buffer at a control group, from its network header on.
    CgroupSkb,
    /// A capture file, on whose packets a program of the kernel is run: all that is known of a packet is in it, but a program has no
    /// loops.
    Replay,
}

impl Source {
    /// Packets are those of a capture file, which another host may have written.
    pub(crate) fn is_file(self) -> bool {
        matches!(self, Source::File | Source::Replay)
    }

    /// The program may have no loops: it is eBPF, or classic BPF that the kernel is to take.
    pub(crate) fn is_kernel(self) -> bool {
        !matches!(self, Source::File | Source::Interface)
    }

    /// The kernel may have taken the outermost VLAN tag out of the packet.
    pub(crate) fn strips_vlan(self) -> bool {
        matches!(self, Source::Tc | Source::Socket | Source::CgroupSkb)
    }

    /// The kernel says whether a packet comes or goes.
    pub(crate) fn has_packet_type(self) -> bool {
        self.strips_vlan() || self == Source::Interface
    }
}

/// What the words of a filter mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// What they mean to libpcap.
    #[default]
    Libpcap,
    /// Transport protocols over IPv6 behind its extension headers (RFC 8200, section 4) as over IPv4; what is behind VLAN tags as
    /// what has none; tunnels as `vxlan (…)`, `geneve (…)`, `gre (…)`, which leave what follows about the outer packet.
    Modern,
}

/// What is accepted of a packet where nothing says less, in bytes: as much as of any (`MAXIMUM_SNAPLEN` of libpcap).
pub const MOST_ACCEPTED: u32 = 262_144;

/// How the interpreter and machine code look for a number in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lookup {
    /// As suits the set: some comparisons in a row, a tree, or a table.
    #[default]
    Suited,
    /// By comparisons in a row, for measurements.
    Linear,
    /// By a perfect hash, or a bitmap of numbers that are close together, for measurements.
    Table,
}

/// How a filter is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the packets of the link begin with.
    pub link_type: LinkType,
    /// What the words of the filter mean.
    pub dialect: Dialect,
    /// Where packets come from.
    pub source: Source,
    /// The capture was written by a host of the other byte order.
    pub is_swapped: bool,
    /// The network mask of the interface, for `ip broadcast`.
    pub netmask: Option<u32>,
    /// Where names are looked up.
    pub names: NameFiles,
    /// What a filter may name as `$NAME`, entry by entry, as text.
    pub sets: HashMap<String, Vec<String>>,
    /// Which of these sets user space may change while the filter runs: they become maps.
    pub updatable: HashMap<String, Updatable>,
    /// What is accepted of a packet: the verdict of classic programs.
    pub accepted_length: u32,
    /// Whether the optimizer runs.
    pub optimize: bool,
    /// Which parts of the optimizer run, if it does. Without any the filter stays as it stands.
    pub passes: Passes,
    /// Whether the filter is to tell in which of its predicates the way of a packet ended ([`crate::Run::decided`]). Each predicate
    /// is then asked as the text has it, also where others are asked for the same field.
    pub report: bool,
    /// How the optimized filter looks for a number in a set, when it is interpreted or machine code.
    pub lookup: Lookup,
    /// Packets that the optimized filter is to decide with few operations.
    pub profile: Option<Arc<Profile>>,
}

impl Options {
    /// Whether anything of the optimizer runs.
    pub fn runs_optimizer(&self) -> bool {
        self.optimize && !self.passes.are_none()
    }

    /// Whether lists of addresses and ports are questions about sets.
    pub(crate) fn joins_lists(&self) -> bool {
        self.optimize && self.passes.has(Pass::Lists) && !self.report
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            link_type: LinkType::EN10MB,
            dialect: Dialect::Libpcap,
            source: Source::File,
            is_swapped: false,
            netmask: None,
            names: NameFiles::default(),
            sets: HashMap::new(),
            updatable: HashMap::new(),
            accepted_length: MOST_ACCEPTED,
            optimize: true,
            passes: Passes::default(),
            report: false,
            lookup: Lookup::default(),
            profile: None,
        }
    }
}
