//! An input: all that a program is given, in changes of what every run begins with.

use std::collections::BTreeMap;

use bpf_kernel::ProgramType;
use bpf_object::Object;
use bpf_platform::packet_pointer_offset;
use bpf_program::{ByteOrder, FieldKind, Function, ProgKind};
use bpf_prove::path::{Answered, Assignment};
use bpf_semantics::interp::KernelHost;

/// Number of `BPF_PROG_TYPE_*` where the packet begins with its Ethernet header (`bpf_prog_test_run_skb`: `is_l2`).
const WITH_ETHERNET: [u32; 3] = [3, 4, 6];
const RAW_TRACEPOINT: u32 = 17;
const RAW_TRACEPOINT_WRITABLE: u32 = 24;
const SYSCALL: u32 = 31;
/// Bytes of the arguments of a raw tracepoint (`MAX_BPF_FUNC_ARGS`).
const ARGUMENTS: u64 = 96;
/// Offset of `protocol` in `struct __sk_buff`.
const PROTOCOL: usize = 16;
const PKT_TYPE: usize = 4;
/// Fields of `struct __sk_buff` that a test run takes (`convert___skb_to_skb` in net/bpf/test_run.c): mark, priority,
/// ingress_ifindex, cb, gso_segs, gso_size.
const SKB_FIELDS: [std::ops::Range<u64>; 6] = [8..12, 32..36, 36..40, 48..68, 164..168, 176..180];

/// What a program runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hook {
    /// Which context.
    pub kind: ProgKind,
    /// `BPF_PROG_TYPE_*`; 0 if it is not known.
    pub program_type: u32,
    /// The byte order of its machine.
    pub byte_order: ByteOrder,
}

impl Hook {
    /// Whether the packet begins with its Ethernet header.
    pub fn has_ethernet(self) -> bool {
        self.kind == ProgKind::Xdp || WITH_ETHERNET.contains(&self.program_type)
    }

    /// Whether it has a packet.
    pub fn has_packet(self) -> bool {
        packet_pointer_offset(self.kind, FieldKind::PacketData).is_some()
    }

    /// Whether a test run can set this byte of the context.
    pub fn sets_context(self, offset: u64) -> bool {
        match (self.kind, self.program_type) {
            (_, RAW_TRACEPOINT | RAW_TRACEPOINT_WRITABLE) => offset < ARGUMENTS,
            (_, SYSCALL) => true,
            // Of the header that the kernel takes away.
            (ProgKind::Skb, _) if !self.has_ethernet() && (16..20).contains(&offset) => true,
            (ProgKind::Skb, _) => SKB_FIELDS.iter().any(|f| f.contains(&offset)),
            _ => false,
        }
    }

    /// The context that a run begins with.
    pub fn context(self, packet: &[u8]) -> Vec<u8> {
        let mut context = KernelHost::of_order(self.byte_order, self.kind, packet).context().to_vec();
        if self.kind == ProgKind::Skb && !self.has_ethernet() {
            context[PKT_TYPE..PKT_TYPE + 4].fill(0);
            let protocol = self.byte_order.number(&[8, 0]);
            context[PROTOCOL..PROTOCOL + 4].copy_from_slice(&self.byte_order.bytes(protocol, 4)[..4]);
        }
        context
    }
}

/// What a program runs as.
pub(super) fn hook(object: &Object, section: &str, graph: Option<&Function>, program_type: Option<&str>) -> Hook {
    let named = program_type.and_then(|name| ProgramType::named(name).ok()).map(|(kind, _)| kind.0);
    let of_section = || match &ProgramType::usual(section)[..] {
        [(kind, _)] => *kind,
        _ => 0,
    };
    let number = named.unwrap_or_else(of_section);
    let kind = match number {
        6 => ProgKind::Xdp,
        1 | 3 | 4 | 8 | 10..=12 | 19 | 22 => ProgKind::Skb,
        18 => ProgKind::SockAddr,
        2 | 5 | 7 | 17 | 24 => ProgKind::Tracing,
        _ => graph.map_or(ProgKind::Other, |g| g.kind),
    };
    // A name that libbpf does not know may be one that other loaders do.
    const XDP: u32 = 6;
    let number = if number == 0 && kind == ProgKind::Xdp { XDP } else { number };
    Hook { kind, program_type: number, byte_order: object.byte_order() }
}

/// An input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// The packet as the program sees it.
    pub packet: Vec<u8>,
    /// Bytes of it before `data_end`, if those are not all. No test run of this kernel can do that.
    pub linear: Option<usize>,
    /// Bytes of the context that are otherwise than every run begins with.
    pub context: BTreeMap<usize, u8>,
    /// Elements of maps, by name and key.
    pub maps: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Bytes of global data, by section. No test run can do that in a section that is read-only: it is the loader's.
    pub data: BTreeMap<String, BTreeMap<u64, u8>>,
    /// What calls return instead of what they would, by their number. No test run can do that.
    pub answers: BTreeMap<usize, Answered>,
}

impl Input {
    /// It with changes; `value_size` says how long values of a map are.
    pub fn changed(&self, by: &Assignment, value_size: impl Fn(&str) -> Option<usize>) -> Input {
        let mut to = self.clone();
        if let Some((length, linear)) = by.packet_len {
            to.packet.resize(length, 0);
            to.linear = (linear < length).then_some(linear);
        }
        for (at, byte) in &by.packet {
            if let Some(place) = to.packet.get_mut(*at) {
                *place = *byte;
            }
        }
        to.context.extend(&by.context);
        for ((section, at), byte) in &by.data {
            to.data.entry(section.to_string()).or_default().insert(*at, *byte);
        }
        // First what is not to be found, then what is: two keys may change places.
        let settable = || by.lookups.iter().filter(|l| l.settable);
        let old = self.maps.clone();
        for lookup in settable().filter(|l| !l.found || l.key != l.old_key) {
            if let Some(map) = to.maps.get_mut(&*lookup.map) {
                map.remove(&lookup.key);
            }
        }
        for lookup in settable().filter(|l| l.found) {
            let Some(size) = value_size(&lookup.map) else { continue };
            let before = old.get(&*lookup.map).and_then(|m| m.get(&lookup.old_key));
            let map = to.maps.entry(lookup.map.to_string()).or_default();
            let value = map.entry(lookup.key.clone()).or_insert_with(|| before.cloned().unwrap_or_default());
            value.resize(size, 0);
            for (at, byte) in &lookup.value {
                if let Some(place) = usize::try_from(*at).ok().and_then(|at| value.get_mut(at)) {
                    *place = *byte;
                }
            }
        }
        to.answers.extend(by.answers.iter().map(|(n, a)| (*n, *a)));
        to
    }
}
