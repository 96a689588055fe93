//! Since which release of the kernel something is there: instructions, program and attach types, fields of contexts, what
//! programs as a whole may do. Helpers and map types have theirs in their own tables ([`crate::helpers::Helper`],
//! [`crate::maps::since`]).
//!
//! Releases are those of kernel.org, by their first two numbers. Distributions take things back into older ones, so that a kernel
//! may know more than its number says. Each row names the commit that brought it.

use std::collections::HashMap;
use std::sync::LazyLock;

use bpf_isa::{AluOp, AtomicOp, Call, Cond, Endian, Imm64Kind, Insn, Width};

use crate::version::KernelVersion;

/// Something that came with a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// The first release that has it.
    pub since: KernelVersion,
}

const fn feature(name: &'static str, major: u16, minor: u16) -> Feature {
    Feature { name, since: KernelVersion { major, minor } }
}

/// `BPF_JLT`, `BPF_JLE`, `BPF_JSLT`, `BPF_JSLE`: 92b31a9af73b.
pub const LESS_THAN: Feature = feature("jump if less", 4, 14);
/// `BPF_JMP32`: 092ed0968bb6.
pub const JUMPS_OF_32_BITS: Feature = feature("32-bit jump", 5, 1);
/// Atomics beside the addition that gives nothing back: 5ca419f2864a, 5ffa25502b5a, 981f94c3e921.
pub const ATOMICS: Feature = feature("atomic operation", 5, 12);
/// Loads and moves that extend the sign: 1f9a1ea821ff, 8100928c8814.
pub const SIGN_EXTENSION: Feature = feature("sign extension", 6, 6);
/// `bswap` without condition: 0845c3db7bf5.
pub const SWAP: Feature = feature("bswap", 6, 6);
/// Signed division and remainder: ec0e2da95f72.
pub const SIGNED_DIVISION: Feature = feature("signed division", 6, 6);
/// `gotol`: 4cd58e9af8b9.
pub const LONG_JUMP: Feature = feature("gotol", 6, 6);
/// `may_goto`: 011832b97b31.
pub const MAY_GOTO: Feature = feature("may_goto", 6, 9);
/// `addr_space_cast`: 6082b6c328b5.
pub const ADDR_SPACE_CAST: Feature = feature("addr_space_cast", 6, 9);
/// Loads that acquire and stores that release: 880442305a39.
pub const ACQUIRE_AND_RELEASE: Feature = feature("load-acquire or store-release", 6, 15);
/// Addresses of values of maps, which is how libbpf reaches `.data`, `.rodata` and `.bss` (`BPF_PSEUDO_MAP_VALUE`): d8eca5bbb2be.
pub const GLOBAL_DATA: Feature = feature("global data", 5, 2);
/// Addresses of variables of the kernel's (`BPF_PSEUDO_BTF_ID`): 4976b718c355.
pub const KERNEL_VARIABLES: Feature = feature("address of a kernel variable", 5, 10);
/// Addresses of functions of the program, for callbacks (`BPF_PSEUDO_FUNC`): 69c087ba6225.
pub const CALLBACKS: Feature = feature("address of a function", 5, 13);
/// Calls of functions of the program (`BPF_PSEUDO_CALL`): cc8b0b92a169.
pub const CALLS: Feature = feature("call of a function of the program", 4, 16);
/// Calls of kernel functions (`BPF_PSEUDO_KFUNC_CALL`): e6ac2450d6de.
pub const KERNEL_FUNCTIONS: Feature = feature("call of a kernel function", 5, 13);
/// Tail calls in programs with functions, on x86-64: e411901c0b77 (arm64: 6.0, d4609a5d8c70).
pub const TAIL_CALLS_BESIDE_CALLS: Feature = feature("tail call beside functions of the program", 5, 10);
/// Jumps back: 2589726d12a1. Before, `check_cfg` in kernel/bpf/verifier.c refuses every one.
pub const LOOPS: Feature = feature("loop", 5, 3);
/// Programs of more than [`SHORT_PROGRAM`] instructions: c04c0d2b968a.
pub const LONG_PROGRAMS: Feature = feature("program of more than 4096 instructions", 5, 2);
/// `BPF_MAXINSNS` (include/uapi/linux/bpf_common.h).
pub const SHORT_PROGRAM: usize = 4096;

impl KernelVersion {
    /// The highest instruction set level of which it takes everything, as in clang's `-mcpu` ([`instruction`] tells of
    /// one).
    pub fn cpu(self) -> u8 {
        match self {
            v if v >= SIGN_EXTENSION.since => 4,
            v if v >= ATOMICS.since => 3,
            v if v >= LESS_THAN.since => 2,
            _ => 1,
        }
    }
}

/// What a kernel has to know for this instruction, if not every one does. A helper's number is none of it.
pub fn instruction(insn: &Insn) -> Option<Feature> {
    Some(match *insn {
        Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => ACQUIRE_AND_RELEASE,
        Insn::MayGoto { .. } => MAY_GOTO,
        Insn::AddrSpaceCast { .. } => ADDR_SPACE_CAST,
        Insn::MovSx { .. } | Insn::Load { sext: true, .. } => SIGN_EXTENSION,
        Insn::Endian { kind: Endian::Swap, .. } => SWAP,
        Insn::Ja { long: true, .. } => LONG_JUMP,
        Insn::Alu { op: AluOp::SDiv | AluOp::SMod, .. } => SIGNED_DIVISION,
        Insn::Atomic { op: AtomicOp::Add { fetch: false }, .. } => return None,
        Insn::Atomic { .. } => ATOMICS,
        Insn::Jcc { width: Width::W32, .. } => JUMPS_OF_32_BITS,
        Insn::Jcc { cond: Cond::Lt | Cond::Le | Cond::Slt | Cond::Sle, .. } => LESS_THAN,
        Insn::Call(Call::Local(_)) => CALLS,
        Insn::Call(Call::Kfunc { .. }) => KERNEL_FUNCTIONS,
        Insn::LoadImm64 { kind: Imm64Kind::Func, .. } => CALLBACKS,
        Insn::LoadImm64 { kind: Imm64Kind::BtfId, .. } => KERNEL_VARIABLES,
        Insn::LoadImm64 { kind: Imm64Kind::MapValue | Imm64Kind::MapIdxValue, .. } => GLOBAL_DATA,
        _ => return None,
    })
}

/// Releases by number of `enum bpf_prog_type` (include/uapi/linux/bpf.h of the tags; docs.ebpf.io and docs/kernel-versions.md of
/// bcc say the same, but for `BPF_PROG_TYPE_SYSCALL`, which is in the header of 5.14).
const PROGRAM_TYPES: [(u16, u16); 33] = [
    (3, 18),
    (3, 19), // socket filter
    (4, 1),  // kprobe
    (4, 1),  // sched_cls
    (4, 1),  // sched_act
    (4, 7),  // tracepoint
    (4, 8),  // xdp
    (4, 9),  // perf_event
    (4, 10), // cgroup_skb
    (4, 10), // cgroup_sock
    (4, 10), // lwt_in
    (4, 10), // lwt_out
    (4, 10), // lwt_xmit
    (4, 13), // sock_ops
    (4, 14), // sk_skb
    (4, 15), // cgroup_device
    (4, 17), // sk_msg
    (4, 17), // raw_tracepoint
    (4, 17), // cgroup_sock_addr
    (4, 18), // lwt_seg6local
    (4, 18), // lirc_mode2
    (4, 19), // sk_reuseport
    (4, 20), // flow_dissector
    (5, 2),  // cgroup_sysctl
    (5, 2),  // raw_tracepoint_writable
    (5, 3),  // cgroup_sockopt
    (5, 5),  // tracing
    (5, 6),  // struct_ops
    (5, 6),  // ext
    (5, 7),  // lsm
    (5, 9),  // sk_lookup
    (5, 14), // syscall
    (6, 4),  // netfilter
];

/// The first release that has programs of this type.
pub fn program_type(kind: u32) -> Option<KernelVersion> {
    let &(major, minor) = PROGRAM_TYPES.get(usize::try_from(kind).ok()?)?;
    Some(KernelVersion { major, minor })
}

/// Attach types that a program has to be loaded with or attached as: number and name of `enum bpf_attach_type`, release, commit.
/// Those are left out that have come with their program type, and those that loaders send only to kernels that know them
/// (`SEC_ATTACHABLE_OPT` in libbpf.c).
const ATTACH_TYPES: [(u32, Feature); 33] = [
    (12, feature("BPF_CGROUP_INET4_POST_BIND", 4, 17)),  // aac3fc320d94
    (13, feature("BPF_CGROUP_INET6_POST_BIND", 4, 17)),  // aac3fc320d94
    (14, feature("BPF_CGROUP_UDP4_SENDMSG", 4, 18)),     // 1cedee13d25a
    (15, feature("BPF_CGROUP_UDP6_SENDMSG", 4, 18)),     // 1cedee13d25a
    (19, feature("BPF_CGROUP_UDP4_RECVMSG", 5, 2)),      // 983695fa6765
    (20, feature("BPF_CGROUP_UDP6_RECVMSG", 5, 2)),      // 983695fa6765
    (26, feature("BPF_MODIFY_RETURN", 5, 7)),            // ae24082331d9
    (28, feature("BPF_TRACE_ITER", 5, 8)),               // 15d83c4d7cef
    (29, feature("BPF_CGROUP_INET4_GETPEERNAME", 5, 8)), // 1b66d253610c
    (30, feature("BPF_CGROUP_INET6_GETPEERNAME", 5, 8)), // 1b66d253610c
    (31, feature("BPF_CGROUP_INET4_GETSOCKNAME", 5, 8)), // 1b66d253610c
    (32, feature("BPF_CGROUP_INET6_GETSOCKNAME", 5, 8)), // 1b66d253610c
    (33, feature("BPF_XDP_DEVMAP", 5, 8)),               // fbee97feed9b
    (34, feature("BPF_CGROUP_INET_SOCK_RELEASE", 5, 9)), // f5836749c9c0
    (35, feature("BPF_XDP_CPUMAP", 5, 9)),               // 9216477449f3
    (40, feature("BPF_SK_REUSEPORT_SELECT_OR_MIGRATE", 5, 14)), // d5e4ddaeb6ab
    (42, feature("BPF_TRACE_KPROBE_MULTI", 5, 18)),      // 0dcac2725406
    (43, feature("BPF_LSM_CGROUP", 6, 0)),               // 69fd337a975c
    (48, feature("BPF_TRACE_UPROBE_MULTI", 6, 6)),       // 89ae89f53d20
    (49, feature("BPF_CGROUP_UNIX_CONNECT", 6, 7)),      // 859051dd165e
    (50, feature("BPF_CGROUP_UNIX_SENDMSG", 6, 7)),      // 859051dd165e
    (51, feature("BPF_CGROUP_UNIX_RECVMSG", 6, 7)),      // 859051dd165e
    (52, feature("BPF_CGROUP_UNIX_GETPEERNAME", 6, 7)),  // 859051dd165e
    (53, feature("BPF_CGROUP_UNIX_GETSOCKNAME", 6, 7)),  // 859051dd165e
    (54, feature("BPF_NETKIT_PRIMARY", 6, 7)),           // 35dfaad7188c
    (55, feature("BPF_NETKIT_PEER", 6, 7)),              // 35dfaad7188c
    (56, feature("BPF_TRACE_KPROBE_SESSION", 6, 10)),    // 535a3692ba72
    (57, feature("BPF_TRACE_UPROBE_SESSION", 6, 13)),    // d920179b3d48
    (46, feature("BPF_TCX_INGRESS", 6, 6)),              // e420bed02507
    (47, feature("BPF_TCX_EGRESS", 6, 6)),               // e420bed02507
    (24, feature("BPF_TRACE_FENTRY", 5, 5)),             // fec56f5890d9
    (25, feature("BPF_TRACE_FEXIT", 5, 5)),              // fec56f5890d9
    (27, feature("BPF_LSM_MAC", 5, 7)),                  // fc611f47f218
];

/// What a kernel has to know for programs of this attach type.
pub fn attach_type(attach: u32) -> Option<Feature> {
    ATTACH_TYPES.iter().find(|(number, _)| *number == attach).map(|(_, feature)| *feature)
}

/// What the name of a section asks for beside a type (`section_defs` in libbpf.c).
const SECTIONS: [(&[&str], &str, Feature); 3] = [
    (&["fentry", "fexit", "fmod_ret", "lsm"], ".s", feature("sleepable program", 5, 10)), // 1e6c62a88215
    (&["uprobe", "uretprobe", "usdt"], ".s", feature("sleepable probe", 6, 0)),           // 64ad7556c75e
    (&["xdp"], ".frags", feature("XDP program for packets in several buffers", 5, 18)),   // c2f2cdbeffda
];

/// What a kernel has to know for programs in this section, beside their type.
pub fn section(name: &str) -> Option<Feature> {
    let name = name.strip_prefix('?').unwrap_or(name);
    let head = name.split('/').next().unwrap_or(name);
    let fits = |(heads, ending, _): &&(&[&str], &str, Feature)| {
        head.strip_suffix(ending).is_some_and(|bare| heads.contains(&bare))
    };
    SECTIONS.iter().find(fits).map(|(.., feature)| *feature)
}

/// The structures of contexts, by program type (`BPF_PROG_TYPE` in include/linux/bpf_types.h).
const CONTEXTS: [(&[u32], &str); 11] = [
    (&[1, 3, 4, 8, 10, 11, 12, 14, 19, 22], "__sk_buff"),
    (&[6], "xdp_md"),
    (&[9], "bpf_sock"),
    (&[13], "bpf_sock_ops"),
    (&[15], "bpf_cgroup_dev_ctx"),
    (&[16], "sk_msg_md"),
    (&[18], "bpf_sock_addr"),
    (&[21], "sk_reuseport_md"),
    (&[23], "bpf_sysctl"),
    (&[25], "bpf_sockopt"),
    (&[30], "bpf_sk_lookup"),
];

/// A row of `fields.tsv`.
struct Row {
    /// Program types; none: all.
    kinds: Vec<u32>,
    first: u32,
    bytes: u32,
    feature: Feature,
}

static FIELDS: LazyLock<HashMap<&'static str, Vec<Row>>> = LazyLock::new(|| {
    let mut table: HashMap<&str, Vec<Row>> = HashMap::new();
    for line in include_str!("permissions/fields.tsv").lines().filter(|l| !l.starts_with('#')) {
        let &[structure, kinds, first, bytes, name, since, _] = &line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        let (Ok(first), Ok(bytes), Ok(since)) = (first.parse(), bytes.parse(), since.parse()) else { continue };
        let kinds = kinds.split(',').filter_map(|k| k.parse().ok()).collect();
        table.entry(structure).or_default().push(Row { kinds, first, bytes, feature: Feature { name, since } });
    }
    table
});

/// A field of a context: the structure, and the field with the first release in which programs of this type may read it.
pub fn field(kind: u32, off: i64) -> Option<(&'static str, Feature)> {
    let off = u32::try_from(off).ok()?;
    let (_, structure) = CONTEXTS.iter().find(|(kinds, _)| kinds.contains(&kind))?;
    let rows = FIELDS.get(structure)?.iter();
    let about =
        rows.filter(|r| (r.kinds.is_empty() || r.kinds.contains(&kind)) && (r.first..r.first + r.bytes).contains(&off));
    about.map(|r| (*structure, r.feature)).max_by_key(|(_, feature)| feature.since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permissions;

    fn v(text: &str) -> KernelVersion {
        text.parse().unwrap()
    }

    #[test]
    fn every_row_of_the_fields_is_read() {
        let lines = include_str!("permissions/fields.tsv").lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(FIELDS.values().map(Vec::len).sum::<usize>(), lines);
        assert!(FIELDS.keys().all(|name| CONTEXTS.iter().any(|(_, structure)| structure == name)));
    }

    /// No byte that Linux 6.18 lets a program read is left out.
    #[test]
    fn every_field_that_may_be_read_has_its_release() {
        for (kinds, structure) in CONTEXTS {
            for &kind in kinds {
                let attaches = 0..60;
                let may_read =
                    |off| attaches.clone().any(|attach| permissions::context(kind, attach, false, off, 1).is_some());
                let without: Vec<i64> = (0..320).filter(|off| may_read(*off) && field(kind, *off).is_none()).collect();
                assert_eq!(without, Vec::<i64>::new(), "{structure}, program type {kind}");
            }
        }
    }

    #[test]
    fn fields_have_the_release_of_the_type_that_reads_them() {
        let of = |kind, off| field(kind, off).map(|(structure, f)| (structure, f.name, f.since));
        assert_eq!(of(3, 76), Some(("__sk_buff", "data", v("4.7"))));
        assert_eq!(of(8, 76), Some(("__sk_buff", "data", v("5.0"))));
        assert_eq!(of(6, 20), Some(("xdp_md", "egress_ifindex", v("5.8"))));
        assert_eq!(of(6, 24), None);
        assert_eq!(of(2, 0), None);
    }

    #[test]
    fn sections_ask_for_more_than_a_type() {
        assert_eq!(section("?lsm.s/file_open").map(|f| f.since), Some(v("5.10")));
        assert_eq!(section("xdp.frags/devmap").map(|f| f.since), Some(v("5.18")));
        assert_eq!(section("xdp"), None);
        assert_eq!(section("lsm/file.s"), None);
    }

    #[test]
    fn kernels_take_levels() {
        assert_eq!(["4.13", "4.19", "5.15", "6.6"].map(|text| v(text).cpu()), [1, 2, 3, 4]);
    }

    /// What a level of clang's `-mcpu` has is there in the first kernel that is said to take the level.
    #[test]
    fn levels_of_cpu_agree_with_their_instructions() {
        for level in [LESS_THAN, JUMPS_OF_32_BITS, ATOMICS, SIGN_EXTENSION, SWAP, SIGNED_DIVISION, LONG_JUMP] {
            let before = KernelVersion { minor: level.since.minor - 1, ..level.since };
            assert!(before.cpu() < level.since.cpu() || level == JUMPS_OF_32_BITS, "{}", level.name);
        }
        // The loosest of level 3 is not enough for the level.
        assert_eq!(JUMPS_OF_32_BITS.since.cpu(), 2);
    }
}
