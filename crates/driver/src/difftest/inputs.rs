//! What a program is run on: a packet, and the context as `BPF_PROG_TEST_RUN` takes it.

use std::collections::BTreeMap;

use bpf_kernel::ProgramType;

use super::traffic::{self, Random};

/// A packet and, where the kernel takes one, a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The packet.
    pub packet: Vec<u8>,
    /// Bytes of the context as `BPF_PROG_TEST_RUN` takes it.
    pub context: Option<Vec<u8>>,
}

/// An input with what maps and global data hold before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// The packet and the context.
    pub input: Input,
    /// Elements of maps, by name and key; of a map for each processor, one value for all.
    pub maps: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Bytes of global data, by section.
    pub data: BTreeMap<String, BTreeMap<u64, u8>>,
}

/// Types whose test run executes the program itself, from where it cannot reach the rest of the system.
pub(crate) fn runs_on_demand(kind: ProgramType) -> bool {
    const SCHED_ACT: u32 = 4;
    const CGROUP_SKB: u32 = 8;
    const LWT: std::ops::RangeInclusive<u32> = 10..=12;
    const LWT_SEG6LOCAL: u32 = 19;
    const FLOW_DISSECTOR: u32 = 22;
    const NETFILTER: u32 = 32;
    matches!(kind, ProgramType::SOCKET_FILTER | ProgramType::SCHED_CLS | ProgramType::XDP)
        || matches!(kind.0, SCHED_ACT | CGROUP_SKB | LWT_SEG6LOCAL | FLOW_DISSECTOR | NETFILTER)
        || LWT.contains(&kind.0)
        || context_alone(kind)
}

/// Whether a test run of this type takes a context and no packet.
pub(crate) fn context_alone(kind: ProgramType) -> bool {
    matches!(kind, ProgramType::RAW_TRACEPOINT | ProgramType::SYSCALL)
}

/// `count` inputs, with packets from `source` if there is one.
pub(crate) fn inputs(
    kind: ProgramType,
    r: &mut Random,
    count: usize,
    source: Option<&[Vec<u8>]>,
    words: &[Vec<u8>],
) -> Vec<Input> {
    let with_context = context_alone(kind) || r.one_in(2);
    (0..count)
        .map(|i| {
            let packet = match source {
                Some(packets) if !packets.is_empty() => packets[i % packets.len()].clone(),
                _ => traffic::packet(r, words),
            };
            let context = if with_context { context(kind, &packet, r) } else { None };
            Input { packet: if context_alone(kind) { vec![] } else { packet }, context }
        })
        .collect()
}

/// A context that the kernel's test run takes: it insists on zeros in most fields.
fn context(kind: ProgramType, packet: &[u8], r: &mut Random) -> Option<Vec<u8>> {
    const SKB_BYTES: usize = 192;
    const MARK: usize = 8;
    const PRIORITY: usize = 32;
    const CB: usize = 48;
    const ARGUMENTS: usize = 12;
    /// More than most syscall programs read.
    const SYSCALL_WORDS: usize = 64;
    let number = |r: &mut Random| if r.one_in(2) { r.below(4) as u32 } else { r.next() as u32 };
    let numbers = |r: &mut Random, count: usize| -> Vec<u8> {
        let word = |_| match r.below(4) {
            0 => 0,
            1 => r.below(400),
            2 => u64::from(r.next() as u32),
            _ => r.next(),
        };
        (0..count).map(word).flat_map(u64::to_le_bytes).collect()
    };
    match kind {
        ProgramType::XDP => {
            let mut c = vec![0; 24];
            // Metadata in front of the packet: its length stands in `data`.
            let meta = if r.one_in(3) { 4 * r.below(9) as u32 } else { 0 };
            let meta = if packet.len() >= 14 + meta as usize { meta } else { 0 };
            c[0..4].copy_from_slice(&meta.to_le_bytes());
            c[4..8].copy_from_slice(&(packet.len() as u32).to_le_bytes());
            Some(c)
        }
        ProgramType::RAW_TRACEPOINT => Some(numbers(r, ARGUMENTS)),
        ProgramType::SYSCALL => Some(numbers(r, SYSCALL_WORDS)),
        _ => {
            let mut c = vec![0; SKB_BYTES];
            let mut put = |at: usize, v: u32| c[at..at + 4].copy_from_slice(&v.to_le_bytes());
            put(MARK, number(r));
            put(PRIORITY, number(r));
            (0..5).for_each(|i| put(CB + 4 * i, number(r)));
            Some(c)
        }
    }
}
