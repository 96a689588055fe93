//! The program types that `BPF_PROG_TEST_RUN` runs here, and what each is given to run on.
//!
//! Source: `net/bpf/test_run.c` and the `test_run` members of `bpf_prog_ops` in `net/core/filter.c`. Not run: `fentry` and
//! the like (a test run calls the function they are attached to, and nothing is attached here) and `struct_ops` (one
//! kernel module's dummy only).

use bpf_kernel::ProgramType;
use bpf_platform::ProgKind;

/// How a program reaches its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet {
    /// By `data` and `data_end` in the context, at these offsets.
    Direct {
        /// Offset of `data`.
        data: u32,
        /// Offset of `data_end`.
        end: u32,
    },
    /// By helpers only, or there is none.
    No,
}

/// A program type that can be run.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Name in recipes and reports.
    pub name: &'static str,
    /// The kernel's number.
    pub program: ProgramType,
    /// `enum bpf_attach_type` expected at load.
    pub attach: u32,
    /// `BPF_F_*` flags of the load.
    pub flags: u32,
    /// What the table of context fields calls it.
    pub model: ProgKind,
    /// How it reaches the packet.
    pub packet: Packet,
    /// Bytes of context handed in; 0 for the kernel's own choice.
    pub context_bytes: usize,
    /// Does a test run take a packet?
    pub takes_packet: bool,
    /// Bytes in front of what the program sees that the run puts back, zeroed or as they were.
    pub strips_ethernet: bool,
}

const SKB: Packet = Packet::Direct { data: 76, end: 80 };
const XDP: Packet = Packet::Direct { data: 0, end: 4 };

const fn skb(name: &'static str, number: u32, attach: u32, packet: Packet, strips_ethernet: bool) -> Kind {
    Kind {
        name,
        program: ProgramType(number),
        attach,
        flags: 0,
        model: ProgKind::Skb,
        packet,
        context_bytes: 0,
        takes_packet: true,
        strips_ethernet,
    }
}

const fn bare(name: &'static str, number: u32, flags: u32, context_bytes: usize, model: ProgKind) -> Kind {
    Kind {
        name,
        program: ProgramType(number),
        attach: 0,
        flags,
        model,
        packet: Packet::No,
        context_bytes,
        takes_packet: false,
        strips_ethernet: false,
    }
}

/// All of them. Flag 16 is `BPF_F_SLEEPABLE`.
pub const KINDS: [Kind; 14] = [
    skb("tc", 3, 0, SKB, false),
    skb("act", 4, 0, SKB, false),
    skb("socket", 1, 0, Packet::No, true),
    skb("cgroup_skb", 8, 0, SKB, true),
    skb("cgroup_skb_out", 8, 1, SKB, true),
    skb("lwt_in", 10, 0, SKB, true),
    skb("lwt_out", 11, 0, SKB, true),
    skb("lwt_xmit", 12, 0, SKB, true),
    Kind {
        name: "xdp",
        program: ProgramType::XDP,
        attach: 37,
        flags: 0,
        model: ProgKind::Xdp,
        packet: XDP,
        context_bytes: 0,
        takes_packet: true,
        strips_ethernet: false,
    },
    Kind { attach: 17, ..skb("flow_dissector", 22, 17, SKB, false) },
    Kind {
        attach: 36,
        context_bytes: 72,
        takes_packet: false,
        model: ProgKind::Other,
        packet: Packet::No,
        ..skb("sk_lookup", 30, 36, Packet::No, false)
    },
    Kind { model: ProgKind::Other, ..skb("netfilter", 32, 45, Packet::No, true) },
    bare("raw_tp", 17, 0, 40, ProgKind::Tracing),
    bare("syscall", 31, 16, 128, ProgKind::Other),
];

/// Program types that load but cannot be run on demand: how their accesses are translated can be seen all the same.
pub const LOADED: [Kind; 14] = [
    skb("lwt_seg6local", 19, 0, SKB, true),
    skb("sk_skb", 14, 4, SKB, false),
    bare("perf_event", 7, 0, 0, ProgKind::Other),
    Kind { attach: 2, ..bare("cgroup_sock", 9, 0, 0, ProgKind::Other) },
    Kind { attach: 3, ..bare("sock_ops", 13, 0, 0, ProgKind::Other) },
    Kind { attach: 6, ..bare("cgroup_device", 15, 0, 0, ProgKind::Other) },
    Kind { attach: 7, ..bare("sk_msg", 16, 0, 0, ProgKind::Other) },
    Kind { attach: 8, ..bare("cgroup_bind4", 18, 0, 0, ProgKind::SockAddr) },
    Kind { attach: 11, ..bare("cgroup_connect6", 18, 0, 0, ProgKind::SockAddr) },
    Kind { attach: 15, ..bare("cgroup_sendmsg6", 18, 0, 0, ProgKind::SockAddr) },
    Kind { attach: 39, ..bare("sk_reuseport", 21, 0, 0, ProgKind::Other) },
    Kind { attach: 18, ..bare("cgroup_sysctl", 23, 0, 0, ProgKind::Other) },
    Kind { attach: 21, ..bare("cgroup_getsockopt", 25, 0, 0, ProgKind::Other) },
    Kind { attach: 22, ..bare("cgroup_setsockopt", 25, 0, 0, ProgKind::Other) },
];

/// The kind with this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.name == name)
}

impl Kind {
    /// Is its context a `__sk_buff`?
    pub fn is_skb(&self) -> bool {
        self.model == ProgKind::Skb
    }

    /// Is its context plain memory that nobody translates?
    pub fn context_is_memory(&self) -> bool {
        self.program == ProgramType::RAW_TRACEPOINT || self.program == ProgramType::SYSCALL
    }

    /// The packet a run is given: Ethernet, IPv4 with a TCP segment or UDP datagram, 100 bytes.
    pub fn packet_in(&self) -> Vec<u8> {
        if !self.takes_packet {
            return Vec::new();
        }
        let packet = ethernet_tcp();
        if self.name == "netfilter" { packet[14..].to_vec() } else { packet }
    }

    /// The context a run is given; empty for none.
    pub fn context_in(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.context_bytes).map(|i| (i as u8).wrapping_mul(7).wrapping_add(1)).collect();
        if self.name == "sk_lookup" {
            sk_lookup_context(&mut bytes);
        }
        bytes
    }
}

/// `struct bpf_sk_lookup` of `include/uapi/linux/bpf.h`: an IPv4 TCP connection to 127.0.0.1:8080.
fn sk_lookup_context(bytes: &mut [u8]) {
    bytes.fill(0);
    let mut word = |at: usize, v: u32| bytes[at..at + 4].copy_from_slice(&v.to_le_bytes());
    word(8, 2); // AF_INET
    word(12, 6); // IPPROTO_TCP
    word(16, u32::from_le_bytes([127, 0, 0, 1]));
    word(36, u32::from(4711u16.to_be()));
    word(40, u32::from_le_bytes([127, 0, 0, 1]));
    word(60, 8080);
}

/// 14 bytes Ethernet, 20 bytes IPv4 (127.0.0.1 → 127.0.0.1), 20 bytes TCP (4711 → 8080, ACK), 46 bytes of pattern.
pub fn ethernet_tcp() -> Vec<u8> {
    let mut p = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 8, 0];
    p.extend([0x45, 0x02, 0, 86, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    let sum: u32 = p[14..34].chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
    let sum = !(sum + (sum >> 16)) as u16;
    p[24..26].copy_from_slice(&sum.to_be_bytes());
    p.extend([0x12, 0x67, 0x1f, 0x90, 0, 0, 0, 9, 0, 0, 0, 7, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    p.extend((0..46u8).map(|i| i.wrapping_mul(3).wrapping_add(0x40)));
    p
}
