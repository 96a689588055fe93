//! What the kernel hands a program: program types and the fields of their context.
//!
//! Context fields are not memory: the verifier rewrites each access into a load from another kernel
//! structure, so an access is identified by its offset and width, and some 32-bit fields *are* 64-bit
//! pointers. This table says which. Sources: `struct xdp_md`, `struct __sk_buff` and
//! `struct bpf_sock_addr` in `include/uapi/linux/bpf.h`; `xdp_is_valid_access`,
//! `bpf_skb_is_valid_access`, `sock_addr_is_valid_access` in `net/core/filter.c`;
//! `tp_prog_is_valid_access` and `kprobe_prog_is_valid_access` in `kernel/trace/bpf_trace.c`.

use std::ops::RangeInclusive;

use crate::ByteOrder;
use crate::beliefs::reads_wider_than_believed;

/// What a function runs as, as far as its meaning depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ProgKind {
    /// `BPF_PROG_TYPE_XDP`: context `xdp_md`.
    Xdp,
    /// Types whose context is `__sk_buff`: tc, socket filter, cgroup skb, lwt, sk_skb, flow dissector.
    Skb,
    /// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`.
    SockAddr,
    /// Tracepoint, kprobe, raw tracepoint …: the context is plain read-only memory.
    Tracing,
    /// A subprogram: up to five arguments in r1 … r5, full r0 returned.
    Subprogram,
    /// Anything else: nothing is known about its context.
    #[default]
    Other,
}

impl ProgKind {
    /// All of them.
    pub const ALL: [ProgKind; 6] = {
        use ProgKind::{Other, Skb, SockAddr, Subprogram, Tracing, Xdp};
        [Xdp, Skb, SockAddr, Tracing, Subprogram, Other]
    };

    /// Whether it is known that a run stays on its processor (`bpf_prog_run_pin_on_cpu`, include/linux/filter.h; `migrate_disable`
    /// in kernel/bpf/trampoline.c, `bpf_prog_run_array`). Netfilter programs did not before Linux 6.17 (`nf_hook_run_bpf` in
    /// net/netfilter/nf_bpf_link.c).
    pub fn stays_on_its_processor(self) -> bool {
        matches!(self, ProgKind::Xdp | ProgKind::Skb | ProgKind::SockAddr | ProgKind::Tracing)
    }

    /// The kind that libbpf derives from an ELF section name (`section_defs` and `sec_def_matches` in libbpf.c). Of a name
    /// that it does not know the loader says the type, which may be any; but `xdp…`, `socket…` and `classifier…` are taken
    /// at their word, as older loaders do.
    pub fn from_section(section: &str) -> ProgKind {
        let s = section.strip_prefix('?').unwrap_or(section);
        let begins_with = |words: &[&str]| words.iter().any(|w| s.starts_with(w));
        let is_one_of = |names: &[&str]| names.contains(&s);
        match () {
            () if begins_with(&["xdp"]) => ProgKind::Xdp,
            () if begins_with(&["socket", "classifier"]) || is_one_of(SKB_SECTIONS) => ProgKind::Skb,
            () if is_one_of(SOCK_ADDR_SECTIONS) => ProgKind::SockAddr,
            () if is_for(s, TRACING_SECTIONS) => ProgKind::Tracing,
            // Replaces a function of another program: its arguments are that function's.
            () if is_for(s, &["freplace"]) => ProgKind::Subprogram,
            () => ProgKind::Other,
        }
    }

    /// How many low bits of r0 the hook reads at `exit`: the kernel's test-run and every hook of these types take an
    /// `int`/`u32`. Others may see all 64: a program that is tail-called from a subprogram returns to that one's caller.
    pub fn hook_bits(self) -> u32 {
        match self {
            ProgKind::Xdp | ProgKind::Skb | ProgKind::Tracing | ProgKind::SockAddr => 32,
            ProgKind::Subprogram | ProgKind::Other => 64,
        }
    }
}

/// Whether a section is one of those that libbpf writes with a plus: alone, or with what it is for.
fn is_for(section: &str, names: &[&str]) -> bool {
    names.iter().any(|n| section.strip_prefix(n).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Whether a program in this section may be given addresses of values of maps that it did not look up, and may write there.
/// The only ones are iterators over the elements of maps (`struct bpf_iter__bpf_map_elem`), and what replaces a function of
/// one; so it may be each program of which libbpf finds no type by its section, as its loader says what it is. All others
/// the verifier lets write to what they have looked up or made, to packets, and to structures of the kernel's.
pub fn may_be_given_values(section: &str) -> bool {
    let s = section.strip_prefix('?').unwrap_or(section);
    let is_one_of = |names: &[&str]| names.contains(&s);
    let has_type = is_one_of(SKB_SECTIONS)
        || is_one_of(SOCK_ADDR_SECTIONS)
        || is_one_of(OTHER_SECTIONS)
        || is_for(s, TRACING_SECTIONS)
        || is_for(s, OTHER_TARGETS);
    !has_type
}

/// Sections of libbpf's table that are not in the others here, without iterators and `freplace`.
const OTHER_SECTIONS: &[&str] = &[
    "xdp",
    "xdp/devmap",
    "xdp/cpumap",
    "xdp.frags",
    "xdp.frags/devmap",
    "xdp.frags/cpumap",
    "socket",
    "classifier",
    "sk_reuseport",
    "sk_reuseport/migrate",
    "syscall",
    "sockops",
    "sk_msg",
    "sk_lookup",
    "lirc_mode2",
    "netfilter",
    "cgroup/sock",
    "cgroup/sock_create",
    "cgroup/sock_release",
    "cgroup/post_bind4",
    "cgroup/post_bind6",
    "cgroup/sysctl",
    "cgroup/getsockopt",
    "cgroup/setsockopt",
    "cgroup/dev",
];

/// The same of those that libbpf writes with a plus.
const OTHER_TARGETS: &[&str] = &[
    "perf_event",
    "raw_tp.w",
    "raw_tracepoint.w",
    "tp_btf",
    "fentry",
    "fentry.s",
    "fexit",
    "fexit.s",
    "fmod_ret",
    "fmod_ret.s",
    "lsm",
    "lsm.s",
    "lsm_cgroup",
    "struct_ops",
    "struct_ops.s",
];

/// Sections of programs whose context is `__sk_buff`.
const SKB_SECTIONS: &[&str] = &[
    "tc",
    "tc/ingress",
    "tc/egress",
    "tcx/ingress",
    "tcx/egress",
    "action",
    "netkit/primary",
    "netkit/peer",
    "lwt_in",
    "lwt_out",
    "lwt_xmit",
    "lwt_seg6local",
    "sk_skb",
    "sk_skb/stream_parser",
    "sk_skb/stream_verdict",
    "sk_skb/verdict",
    "flow_dissector",
    "cgroup_skb/ingress",
    "cgroup_skb/egress",
    "cgroup/skb",
];

/// Sections of programs whose context is `bpf_sock_addr`.
const SOCK_ADDR_SECTIONS: &[&str] = &[
    "cgroup/bind4",
    "cgroup/bind6",
    "cgroup/connect4",
    "cgroup/connect6",
    "cgroup/connect_unix",
    "cgroup/sendmsg4",
    "cgroup/sendmsg6",
    "cgroup/sendmsg_unix",
    "cgroup/recvmsg4",
    "cgroup/recvmsg6",
    "cgroup/recvmsg_unix",
    "cgroup/getpeername4",
    "cgroup/getpeername6",
    "cgroup/getpeername_unix",
    "cgroup/getsockname4",
    "cgroup/getsockname6",
    "cgroup/getsockname_unix",
];

/// Sections of programs whose context is memory of the kernel's.
const TRACING_SECTIONS: &[&str] = &[
    "tracepoint",
    "tp",
    "raw_tracepoint",
    "raw_tp",
    "kprobe",
    "kretprobe",
    "kprobe.multi",
    "kretprobe.multi",
    "kprobe.session",
    "ksyscall",
    "kretsyscall",
    "uprobe",
    "uprobe.s",
    "uretprobe",
    "uretprobe.s",
    "uprobe.multi",
    "uprobe.multi.s",
    "uretprobe.multi",
    "uretprobe.multi.s",
    "uprobe.session",
    "uprobe.session.s",
    "usdt",
    "usdt.s",
];

/// What a context field means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FieldKind {
    /// A number; `narrow` if loads of fewer bytes read exactly those bytes of it.
    Scalar {
        /// Narrower loads inside the field are allowed and mean the same bytes.
        narrow: bool,
    },
    /// Start of packet data.
    PacketData,
    /// End of packet data.
    PacketEnd,
    /// Start of packet metadata.
    PacketMeta,
    /// Real bytes that behave as memory (`__sk_buff::cb`).
    Memory,
    /// A pointer to some kernel object.
    Pointer,
}

/// A field found by [`ctx_field`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CtxField {
    /// Offset of the field's first byte.
    pub offset: u32,
    /// Width of the field in bytes.
    pub size: u32,
    /// Its meaning.
    pub kind: FieldKind,
}

const SKB_TSTAMP: i64 = 152;
const SKB_DATA: u32 = 76;
const SKB_DATA_END: u32 = 80;
const SKB_CB: u32 = 48;
const SKB_CB_END: u32 = 68;
const SKB_DATA_META: u32 = 140;
const SKB_FLOW_KEYS: u32 = 144;
const SKB_SK: u32 = 168;
/// Fields of `__sk_buff` with four bytes that have one or two in the kernel (`bpf_convert_ctx_access` in
/// net/core/filter.c): pkt_type, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, tc_index, tc_classid,
/// family, remote_port, local_port, gso_segs, gso_size, tstamp_type. A narrow load of their upper bytes gives the lower
/// ones: `convert_ctx_accesses` in kernel/bpf/verifier.c shifts only where the load is narrower than the kernel's field.
const SKB_SHORT: [u32; 14] = [4, 12, 16, 20, 24, 28, 44, 72, 88, 132, 136, 164, 176, 180];

/// The bits that can be set in the four bytes of a field of the context, as far as the kernel's own field says. Nothing is
/// proven by this; an input in which others are set is none that a kernel gives (`bpf_convert_ctx_access` and
/// `sock_addr_convert_ctx_access` in net/core/filter.c).
pub fn possible_bits(kind: ProgKind, offset: u32, order: ByteOrder) -> u32 {
    match (kind, offset) {
        // Three bits of a byte, and one; `remote_port` is shifted on little-endian machines.
        (ProgKind::Skb, 4) => 7,
        (ProgKind::Skb, 20) => 1,
        (ProgKind::Skb, 132) if order == ByteOrder::Little => 0xffff_0000,
        (ProgKind::Skb, o) if SKB_SHORT.contains(&o) => 0xffff,
        // user_family, user_port, family, type, protocol.
        (ProgKind::SockAddr, 0 | 24 | 28 | 32 | 36) => 0xffff,
        _ => u32::MAX,
    }
}

/// Numbers that a context field of four bytes does not hold although they fit. As with [`possible_bits`], nothing is
/// proven by this. Numbers of devices and lengths of packets are not negative (`dev_new_index` in net/core/dev.c, the
/// limits of `sk_buff`); what is less than `MIN_NAPI_ID`, which is one more
/// than the processors a kernel is built for, is read as 0 (`bpf_convert_ctx_access` in net/core/filter.c).
pub fn impossible_numbers(kind: ProgKind, offset: u32) -> Option<RangeInclusive<u32>> {
    match (kind, offset) {
        // len, ingress_ifindex, ifindex, wire_len; ingress_ifindex, egress_ifindex.
        (ProgKind::Skb, 0 | 36 | 40 | 160) | (ProgKind::Xdp, 12 | 20) => Some(1 << 31..=u32::MAX),
        // napi_id; no kernel is built for more processors.
        (ProgKind::Skb, 84) => Some(1..=8192),
        _ => None,
    }
}

/// The field of `kind`'s context that holds byte `offset`; `None` if the context is not described here.
pub fn ctx_field(kind: ProgKind, offset: i64) -> Option<CtxField> {
    let off = u32::try_from(offset).ok()?;
    let word = |kind| Some(CtxField { offset: off & !3, size: 4, kind });
    match kind {
        ProgKind::Xdp => match off & !3 {
            0 => word(FieldKind::PacketData),
            4 => word(FieldKind::PacketEnd),
            8 => word(FieldKind::PacketMeta),
            12..=20 => word(FieldKind::Scalar { narrow: false }),
            _ => None,
        },
        ProgKind::Skb => match off {
            SKB_CB..SKB_CB_END => Some(CtxField { offset: SKB_CB, size: SKB_CB_END - SKB_CB, kind: FieldKind::Memory }),
            SKB_DATA..SKB_DATA_END => word(FieldKind::PacketData),
            SKB_DATA_END..84 => word(FieldKind::PacketEnd),
            SKB_DATA_META..SKB_FLOW_KEYS => word(FieldKind::PacketMeta),
            SKB_FLOW_KEYS..152 => Some(CtxField { offset: SKB_FLOW_KEYS, size: 8, kind: FieldKind::Pointer }),
            SKB_SK..176 => Some(CtxField { offset: SKB_SK, size: 8, kind: FieldKind::Pointer }),
            152..160 => Some(CtxField { offset: 152, size: 8, kind: FieldKind::Scalar { narrow: false } }),
            184..192 => Some(CtxField { offset: 184, size: 8, kind: FieldKind::Scalar { narrow: false } }),
            // Addresses and ports of the socket are read whole (`bpf_skb_is_valid_access`).
            92..140 => word(FieldKind::Scalar { narrow: false }),
            0..192 => word(FieldKind::Scalar { narrow: !SKB_SHORT.contains(&(off & !3)) }),
            _ => None,
        },
        ProgKind::SockAddr => match off {
            // user_port has 16 bits in the kernel: see SKB_SHORT.
            0..4 | 24..40 => word(FieldKind::Scalar { narrow: false }),
            0..60 => word(FieldKind::Scalar { narrow: true }),
            64..72 => Some(CtxField { offset: 64, size: 8, kind: FieldKind::Pointer }),
            _ => None,
        },
        ProgKind::Tracing => Some(CtxField { offset: off, size: 1, kind: FieldKind::Memory }),
        ProgKind::Subprogram | ProgKind::Other => None,
    }
}

/// Whether an access of these bytes, by being there, changes what other accesses of the context mean.
///
/// A read of `__sk_buff::tstamp_type` tells the verifier that the program distinguishes the kinds of time stamps; without
/// one, accesses to `tstamp` are translated differently (`tstamp_type_access` in `bpf_skb_is_valid_access`,
/// `bpf_convert_tstamp_read` and `bpf_convert_tstamp_write` in net/core/filter.c). A context of unknown type may be one.
pub fn access_matters(kind: ProgKind, offset: i64, bytes: u32) -> bool {
    const SKB_TSTAMP_TYPE: i64 = 180;
    // In no other width (`tc_cls_act_is_valid_access`).
    may_be_skb(kind) && (offset, bytes) == (SKB_TSTAMP_TYPE, 1)
}

/// Whether an access of these bytes means something else where another stands that [`access_matters`]: `tstamp`.
pub fn depends_on_access(kind: ProgKind, offset: i64, bytes: u32) -> bool {
    may_be_skb(kind) && (offset, bytes) == (SKB_TSTAMP, 8)
}

fn may_be_skb(kind: ProgKind) -> bool {
    matches!(kind, ProgKind::Skb | ProgKind::Subprogram | ProgKind::Other)
}

/// Whether the context of this kind has fields of which a read matters by being there, or that others may change: then so
/// may a read of a field that only the loader knows ([`access_matters`], [`others_may_change`]).
pub fn fields_matter(kind: ProgKind) -> bool {
    matches!(kind, ProgKind::Skb | ProgKind::SockAddr | ProgKind::Subprogram | ProgKind::Other)
}

/// Whether the kernel clears this byte of the context before programs that access any of them: `cb` (`bpf_needs_clear_cb`
/// in include/linux/filter.h).
pub fn is_cleared(kind: ProgKind, offset: i64) -> bool {
    may_be_skb(kind) && (i64::from(SKB_CB)..i64::from(SKB_CB_END)).contains(&offset)
}

/// Whether stores of the program itself to the packet change what is done before it runs (`bpf_unclone_prologue` in
/// net/core/filter.c); a context of unknown type may be an skb.
pub fn stores_matter(kind: ProgKind) -> bool {
    may_be_skb(kind)
}

/// Whether another read of this context field may find another value although the program has done nothing in between.
///
/// - Fields of `__sk_buff` from `family` to `local_port` are read from the socket, which other CPUs use at the same time;
///   `gso_segs`, `gso_size` and `hwtstamp` from memory that all clones share (`bpf_convert_ctx_access` in
///   net/core/filter.c, `struct skb_shared_info`).
/// - So are `family`, `type` and `protocol` of `bpf_sock_addr`; `sendmsg` and `recvmsg` do not lock the socket
///   (`sock_addr_convert_ctx_access`).
/// - Of a context of which nothing is known, it may be any (`snd_cwnd`, `srtt_us`, `state` … of `bpf_sock_ops`,
///   `sock_ops_convert_ctx_access`).
pub fn others_may_change(kind: ProgKind, offset: i64) -> bool {
    const SKB_FAMILY: i64 = 88;
    const SKB_SHARED_INFO: [std::ops::Range<i64>; 3] = [164..168, 176..180, 184..192];
    const SOCK_ADDR_OF_SOCKET: std::ops::Range<i64> = 28..40;
    match kind {
        ProgKind::Skb => {
            (SKB_FAMILY..i64::from(SKB_DATA_META)).contains(&offset)
                || SKB_SHARED_INFO.iter().any(|f| f.contains(&offset))
        }
        ProgKind::Subprogram | ProgKind::Other => true,
        ProgKind::SockAddr => SOCK_ADDR_OF_SOCKET.contains(&offset),
        ProgKind::Xdp | ProgKind::Tracing => false,
    }
}

/// The first number that the kernel does not take for a queue ([`store_is_compared`]): whatever is smaller may be stored in
/// any form.
pub const NO_QUEUE_MAPPING: u64 = 0xffff;

/// Whether a store to the byte at this offset of the context may depend on more than the bits it stores: of
/// `__sk_buff::queue_mapping` the kernel compares the whole register, and a constant by its sign (`bpf_convert_ctx_access` in
/// net/core/filter.c). Of a context of which nothing is known, it may be that one.
pub fn store_is_compared(kind: ProgKind, offset: i64) -> bool {
    const QUEUE_MAPPING: std::ops::Range<i64> = 12..16;
    matches!(kind, ProgKind::Skb | ProgKind::Subprogram | ProgKind::Other) && QUEUE_MAPPING.contains(&offset)
}

/// Whether a read of `bytes` at this offset from a pointer to a kernel object may give more bits than it has bytes:
/// `bpf_sock::rx_queue_mapping` is 64 ones where there is none, read as a whole or in half (`bpf_sock_convert_ctx_access` in
/// net/core/filter.c; `convert_ctx_accesses` in kernel/bpf/verifier.c masks only what is narrower than the kernel's own
/// field). If the pointer may be the context, four bytes may be a pointer. `None` stands for an offset that is not known.
pub fn may_read_wider(offset: Option<i64>, bytes: u32, may_be_context: bool) -> bool {
    match bytes {
        4 if may_be_context => true,
        2 | 4 => offset.is_none_or(|offset| reads_wider_than_believed(offset, bytes)),
        _ => false,
    }
}

/// Offset of the field that holds this packet pointer: the inverse of [`ctx_field`] for them.
pub fn packet_pointer_offset(kind: ProgKind, field: FieldKind) -> Option<u32> {
    match (kind, field) {
        (ProgKind::Xdp, FieldKind::PacketData) => Some(0),
        (ProgKind::Xdp, FieldKind::PacketEnd) => Some(4),
        (ProgKind::Xdp, FieldKind::PacketMeta) => Some(8),
        (ProgKind::Skb, FieldKind::PacketData) => Some(SKB_DATA),
        (ProgKind::Skb, FieldKind::PacketEnd) => Some(SKB_DATA_END),
        (ProgKind::Skb, FieldKind::PacketMeta) => Some(SKB_DATA_META),
        _ => None,
    }
}
