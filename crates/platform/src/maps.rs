//! Map types: their numbers, and what is true of each.
//!
//! A map type is kept as the number that objects and the kernel use (`enum bpf_map_type` in
//! `include/uapi/linux/bpf.h`), because a kernel may know types that this table does not; the predicates answer such
//! a number with the weaker claim.

use crate::helpers::Helper;
use crate::version::KernelVersion;

const fn v(major: u16, minor: u16) -> KernelVersion {
    KernelVersion { major, minor }
}

/// `BPF_MAP_TYPE_UNSPEC`: the kernel makes no such map; a loader has yet to set the type.
pub const UNSPEC: u32 = 0;
/// `BPF_F_MMAPABLE` in `linux/bpf.h`, a flag of arrays: user space may map their memory.
pub const MMAPABLE: u32 = 1 << 10;
/// `BPF_MAP_TYPE_HASH`.
pub const HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`.
pub const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PROG_ARRAY`: programs to tail-call.
pub const PROG_ARRAY: u32 = 3;
/// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
pub const PERF_EVENT_ARRAY: u32 = 4;
/// `BPF_MAP_TYPE_PERCPU_HASH`.
pub const PERCPU_HASH: u32 = 5;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`.
pub const PERCPU_ARRAY: u32 = 6;
/// `BPF_MAP_TYPE_STACK_TRACE`.
pub const STACK_TRACE: u32 = 7;
/// `BPF_MAP_TYPE_CGROUP_ARRAY`.
pub const CGROUP_ARRAY: u32 = 8;
/// `BPF_MAP_TYPE_LRU_HASH`: a lookup changes which element is evicted next.
pub const LRU_HASH: u32 = 9;
/// `BPF_MAP_TYPE_LRU_PERCPU_HASH`.
pub const LRU_PERCPU_HASH: u32 = 10;
/// `BPF_MAP_TYPE_LPM_TRIE`.
pub const LPM_TRIE: u32 = 11;
/// `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
pub const ARRAY_OF_MAPS: u32 = 12;
/// `BPF_MAP_TYPE_HASH_OF_MAPS`.
pub const HASH_OF_MAPS: u32 = 13;
/// `BPF_MAP_TYPE_DEVMAP`.
pub const DEVMAP: u32 = 14;
/// `BPF_MAP_TYPE_SOCKMAP`.
pub const SOCKMAP: u32 = 15;
/// `BPF_MAP_TYPE_CPUMAP`.
pub const CPUMAP: u32 = 16;
/// `BPF_MAP_TYPE_XSKMAP`.
pub const XSKMAP: u32 = 17;
/// `BPF_MAP_TYPE_SOCKHASH`.
pub const SOCKHASH: u32 = 18;
/// `BPF_MAP_TYPE_CGROUP_STORAGE_DEPRECATED`.
pub const CGROUP_STORAGE: u32 = 19;
/// `BPF_MAP_TYPE_REUSEPORT_SOCKARRAY`.
pub const REUSEPORT_SOCKARRAY: u32 = 20;
/// `BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE_DEPRECATED`.
pub const PERCPU_CGROUP_STORAGE: u32 = 21;
/// `BPF_MAP_TYPE_QUEUE`.
pub const QUEUE: u32 = 22;
/// `BPF_MAP_TYPE_STACK`.
pub const STACK: u32 = 23;
/// `BPF_MAP_TYPE_SK_STORAGE`.
pub const SK_STORAGE: u32 = 24;
/// `BPF_MAP_TYPE_DEVMAP_HASH`.
pub const DEVMAP_HASH: u32 = 25;
/// `BPF_MAP_TYPE_STRUCT_OPS`.
pub const STRUCT_OPS: u32 = 26;
/// `BPF_MAP_TYPE_RINGBUF`.
pub const RINGBUF: u32 = 27;
/// `BPF_MAP_TYPE_INODE_STORAGE`.
pub const INODE_STORAGE: u32 = 28;
/// `BPF_MAP_TYPE_TASK_STORAGE`.
pub const TASK_STORAGE: u32 = 29;
/// `BPF_MAP_TYPE_BLOOM_FILTER`.
pub const BLOOM_FILTER: u32 = 30;
/// `BPF_MAP_TYPE_USER_RINGBUF`.
pub const USER_RINGBUF: u32 = 31;
/// `BPF_MAP_TYPE_CGRP_STORAGE`.
pub const CGRP_STORAGE: u32 = 32;
/// `BPF_MAP_TYPE_ARENA`.
pub const ARENA: u32 = 33;
/// `BPF_MAP_TYPE_INSN_ARRAY`: targets of indirect jumps.
pub const INSN_ARRAY: u32 = 34;

/// What map types are called, and the first release of the kernel that has them: `enum bpf_map_type` in
/// include/uapi/linux/bpf.h of the releases' tags (as docs.ebpf.io collects them; docs/kernel-versions.md of bcc says the same).
const TYPES: [(&str, u32, KernelVersion); 35] = [
    ("unspec", UNSPEC, v(3, 18)),
    ("hash", HASH, v(3, 19)),
    ("array", ARRAY, v(3, 19)),
    ("prog_array", PROG_ARRAY, v(4, 2)),
    ("perf_event_array", PERF_EVENT_ARRAY, v(4, 3)),
    ("percpu_hash", PERCPU_HASH, v(4, 6)),
    ("percpu_array", PERCPU_ARRAY, v(4, 6)),
    ("stack_trace", STACK_TRACE, v(4, 6)),
    ("cgroup_array", CGROUP_ARRAY, v(4, 8)),
    ("lru_hash", LRU_HASH, v(4, 10)),
    ("lru_percpu_hash", LRU_PERCPU_HASH, v(4, 10)),
    ("lpm_trie", LPM_TRIE, v(4, 11)),
    ("array_of_maps", ARRAY_OF_MAPS, v(4, 12)),
    ("hash_of_maps", HASH_OF_MAPS, v(4, 12)),
    ("devmap", DEVMAP, v(4, 14)),
    ("sockmap", SOCKMAP, v(4, 14)),
    ("cpumap", CPUMAP, v(4, 15)),
    ("xskmap", XSKMAP, v(4, 18)),
    ("sockhash", SOCKHASH, v(4, 18)),
    ("cgroup_storage", CGROUP_STORAGE, v(4, 19)),
    ("reuseport_sockarray", REUSEPORT_SOCKARRAY, v(4, 19)),
    ("percpu_cgroup_storage", PERCPU_CGROUP_STORAGE, v(4, 20)),
    ("queue", QUEUE, v(4, 20)),
    ("stack", STACK, v(4, 20)),
    ("sk_storage", SK_STORAGE, v(5, 2)),
    ("devmap_hash", DEVMAP_HASH, v(5, 4)),
    ("struct_ops", STRUCT_OPS, v(5, 6)),
    ("ringbuf", RINGBUF, v(5, 8)),
    ("inode_storage", INODE_STORAGE, v(5, 10)),
    ("task_storage", TASK_STORAGE, v(5, 11)),
    ("bloom_filter", BLOOM_FILTER, v(5, 16)),
    ("user_ringbuf", USER_RINGBUF, v(6, 1)),
    ("cgrp_storage", CGRP_STORAGE, v(6, 2)),
    ("arena", ARENA, v(6, 9)),
    ("insn_array", INSN_ARRAY, v(6, 19)),
];

/// The map type with this name (`BPF_MAP_TYPE_` and the name in capitals, in include/uapi/linux/bpf.h).
pub fn named(name: &str) -> Option<u32> {
    TYPES.iter().find(|(n, ..)| *n == name).map(|(_, number, _)| *number)
}

/// The name of a map type, for people; the inverse of [`named`].
pub fn name(map_type: u32) -> Option<&'static str> {
    TYPES.iter().find(|(_, number, _)| *number == map_type).map(|(name, ..)| *name)
}

/// The first release of the kernel that has this map type.
pub fn since(map_type: u32) -> Option<KernelVersion> {
    TYPES.iter().find(|(_, number, _)| *number == map_type).map(|(.., since)| *since)
}

/// `BPF_F_…` of map definitions (include/uapi/linux/bpf.h), each with the first release of the kernel that has it: the tags of the
/// releases, as docs.ebpf.io collects them.
const FLAGS: [(u32, &str, KernelVersion); 18] = [
    (1 << 0, "BPF_F_NO_PREALLOC", v(4, 6)),
    (1 << 1, "BPF_F_NO_COMMON_LRU", v(4, 10)),
    (1 << 2, "BPF_F_NUMA_NODE", v(4, 14)),
    (1 << 3, "BPF_F_RDONLY", v(4, 15)),
    (1 << 4, "BPF_F_WRONLY", v(4, 15)),
    (1 << 5, "BPF_F_STACK_BUILD_ID", v(4, 17)),
    (1 << 6, "BPF_F_ZERO_SEED", v(5, 0)),
    (1 << 7, "BPF_F_RDONLY_PROG", v(5, 2)),
    (1 << 8, "BPF_F_WRONLY_PROG", v(5, 2)),
    (1 << 9, "BPF_F_CLONE", v(5, 4)),
    (MMAPABLE, "BPF_F_MMAPABLE", v(5, 5)),
    (1 << 11, "BPF_F_PRESERVE_ELEMS", v(5, 10)),
    (1 << 12, "BPF_F_INNER_MAP", v(5, 10)),
    (1 << 13, "BPF_F_LINK", v(6, 4)),
    (1 << 14, "BPF_F_PATH_FD", v(6, 5)),
    (1 << 15, "BPF_F_VTYPE_BTF_OBJ_FD", v(6, 9)),
    (1 << 17, "BPF_F_SEGV_ON_FAULT", v(6, 9)),
    (1 << 18, "BPF_F_NO_USER_CONV", v(6, 9)),
];

/// Which of these flags of a map's definition are set, with the first release of the kernel that has each.
pub fn flags_since(flags: u32) -> impl Iterator<Item = (&'static str, KernelVersion)> {
    FLAGS.iter().filter(move |(bit, ..)| flags & bit != 0).map(|(_, name, since)| (*name, *since))
}

/// How many bytes keys or values of a type of maps have, if the definition does not say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenSize {
    /// The kernel takes no other.
    Only(u32),
    /// The kernel takes others, too, but no program that uses such a map shows the verifier any of these bytes.
    NeverSeen(u32),
    /// There are none, or nothing is known of such maps.
    AsItIs,
    /// The verifier checks accesses against it; only the loader knows it.
    OfTheLoader,
}

impl OpenSize {
    /// As many bytes as a definition says, or else the only number that the kernel takes.
    pub fn or_only(self, said: Option<u32>) -> Option<u32> {
        match self {
            OpenSize::Only(size) => said.or(Some(size)),
            _ => said,
        }
    }
}

/// Keys, by what the types' `map_alloc_check` and `map_alloc` want (`kernel/bpf`: `array_map_alloc_check`,
/// `stack_map_alloc`, `dev_map_alloc_check`, `sock_map_alloc`, `cpu_map_alloc`, `xsk_map_alloc`,
/// `bpf_local_storage_map_alloc_check`, `cgroup_storage_map_alloc`, `htab_map_alloc_check`, `trie_alloc`).
pub fn open_key_size(map_type: u32) -> OpenSize {
    match map_type {
        ARRAY | PERCPU_ARRAY | PROG_ARRAY | PERF_EVENT_ARRAY => OpenSize::Only(4),
        CGROUP_ARRAY | ARRAY_OF_MAPS | REUSEPORT_SOCKARRAY | STACK_TRACE => OpenSize::Only(4),
        DEVMAP | DEVMAP_HASH | SOCKMAP | CPUMAP | XSKMAP => OpenSize::Only(4),
        kind if is_local_storage(kind) => OpenSize::Only(4),
        // 8 or 16: `get_local_storage`, the one helper, takes no key.
        CGROUP_STORAGE | PERCPU_CGROUP_STORAGE => OpenSize::NeverSeen(8),
        HASH | PERCPU_HASH | LRU_HASH | LRU_PERCPU_HASH => OpenSize::OfTheLoader,
        HASH_OF_MAPS | SOCKHASH | LPM_TRIE => OpenSize::OfTheLoader,
        _ => OpenSize::AsItIs,
    }
}

/// Values of a map with these flags, by the same functions, and `fd_array_map_alloc_check`, `fd_htab_map_alloc_check`,
/// `reuseport_array_alloc_check`, `queue_stack_map_alloc_check` and `bloom_map_alloc`.
pub fn open_value_size(map_type: u32, flags: u32) -> OpenSize {
    /// `BPF_F_STACK_BUILD_ID` in linux/bpf.h.
    const STACK_BUILD_ID: u32 = 1 << 5;
    match map_type {
        PROG_ARRAY | PERF_EVENT_ARRAY | CGROUP_ARRAY => OpenSize::Only(4),
        ARRAY_OF_MAPS | HASH_OF_MAPS | XSKMAP => OpenSize::Only(4),
        // 4 or 8: to programs the values are sockets, or nothing at all (`check_map_func_compatibility`).
        SOCKMAP | SOCKHASH | CPUMAP | REUSEPORT_SOCKARRAY => OpenSize::NeverSeen(4),
        // The length of a stack: `get_stackid`, the one helper, gives its number.
        STACK_TRACE if flags & STACK_BUILD_ID != 0 => OpenSize::NeverSeen(32),
        STACK_TRACE => OpenSize::NeverSeen(8),
        // 4 or 8, and lookups show them.
        DEVMAP | DEVMAP_HASH => OpenSize::OfTheLoader,
        ARRAY | PERCPU_ARRAY | LPM_TRIE | QUEUE | STACK => OpenSize::OfTheLoader,
        HASH | PERCPU_HASH | LRU_HASH | LRU_PERCPU_HASH => OpenSize::OfTheLoader,
        BLOOM_FILTER | CGROUP_STORAGE | PERCPU_CGROUP_STORAGE => OpenSize::OfTheLoader,
        kind if is_local_storage(kind) => OpenSize::OfTheLoader,
        _ => OpenSize::AsItIs,
    }
}

/// What a successful lookup gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// The address of the value's bytes.
    Value,
    /// An inner map (`array_of_map_lookup_elem`, `htab_of_map_lookup_elem`).
    Map,
    /// A kernel object: a socket (`sock_map_lookup`, `xsk_map_lookup_elem`).
    KernelObject,
    /// Nothing: the map has no lookup for programs (`prog_array_map_ops`: `fd_array_map_lookup_elem`).
    Nothing,
}

/// What a lookup in a map of this type gives, in a program (`check_helper_call` in `kernel/bpf/verifier.c`, and the
/// `map_lookup_elem` of the map's `bpf_map_ops`).
pub fn element(map_type: u32) -> Element {
    match map_type {
        PROG_ARRAY => Element::Nothing,
        ARRAY_OF_MAPS | HASH_OF_MAPS => Element::Map,
        SOCKMAP | SOCKHASH | XSKMAP => Element::KernelObject,
        _ => Element::Value,
    }
}

/// To what power of two the first byte of a value is at a multiple. Eight where it stands behind a key padded to eight bytes,
/// in an array of padded values, or in storage declared so (`htab_elem_value` in `kernel/bpf/hashtab.c`, `array_map_alloc`,
/// `struct bpf_local_storage_data`). In a trie it follows a key of any size, of which the first four bytes stand elsewhere
/// (`trie->data_size`, `struct lpm_trie_node`, whose `data` is behind pointers and two words of 32 bits); in device maps it is a
/// structure of words of 32 bits (`struct bpf_dtab_netdev`, `struct bpf_devmap_val`).
pub fn value_zero_bits(map_type: u32, key_size: Option<u32>) -> u32 {
    const PREFIX: u32 = 4;
    const MOST: u32 = 8;
    match map_type {
        _ if is_local_storage(map_type) => 3,
        HASH | ARRAY | PERCPU_HASH | PERCPU_ARRAY | LRU_HASH | LRU_PERCPU_HASH => 3,
        LPM_TRIE => {
            let behind = key_size.and_then(|size| size.checked_sub(PREFIX)).filter(|size| *size > 0);
            behind.map_or(0, |size| (size | MOST).trailing_zeros())
        }
        DEVMAP | DEVMAP_HASH => 2,
        _ => 0,
    }
}

/// A found element is a socket with a reference to give back (`check_helper_call`: `may_be_acquire_function`,
/// `is_acquire_function` in `kernel/bpf/verifier.c`).
pub fn lookup_acquires(map_type: u32) -> bool {
    matches!(map_type, SOCKMAP | SOCKHASH)
}

/// Elements are numbered, always there, and never move (`kernel/bpf/arraymap.c`).
pub fn is_array(map_type: u32) -> bool {
    matches!(map_type, ARRAY | PERCPU_ARRAY)
}

/// That a program names such a map changes the map or the program, whether it is ever used or not: a table of programs
/// belongs to the first that names it, and takes only programs like it from then on (`bpf_check_tail_call`,
/// `map_type_contains_progs` in `kernel/bpf/core.c` and `include/linux/bpf.h`); storage of cgroups is allocated where the
/// program is attached (`bpf_cgroup_storage_assign`); a program has one arena. So may types that are not known here.
pub fn naming_counts(map_type: u32) -> bool {
    match map_type {
        PROG_ARRAY | DEVMAP | DEVMAP_HASH | CPUMAP => true,
        CGROUP_STORAGE | PERCPU_CGROUP_STORAGE | STRUCT_OPS | ARENA => true,
        other => !(HASH..ARENA).contains(&other),
    }
}

/// Each CPU has values of its own.
pub fn is_per_cpu(map_type: u32) -> bool {
    matches!(map_type, PERCPU_HASH | PERCPU_ARRAY | LRU_PERCPU_HASH | PERCPU_CGROUP_STORAGE)
}

/// How many bytes of the program's memory are read where it hands over a value of `value_size` bytes. Into a new element
/// of a per-CPU hash they are copied in words of eight (`pcpu_init_value` in `kernel/bpf/hashtab.c`, `bpf_long_memcpy`:
/// since 5.10, not in 6.18); user space sees all of them (`bpf_percpu_hash_copy`).
pub fn value_bytes_read(map_type: Option<u32>, value_size: u32) -> u32 {
    let in_words = map_type.is_none_or(|t| matches!(t, PERCPU_HASH | LRU_PERCPU_HASH));
    if in_words { value_size.saturating_add(7) & !7 } else { value_size }
}

/// Full maps drop elements to make room for others (`kernel/bpf/bpf_lru_list.c`); lookups decide which.
pub fn evicts(map_type: u32) -> bool {
    matches!(map_type, LRU_HASH | LRU_PERCPU_HASH)
}

/// Keys and values are plain bytes that programs and user space put there and get back.
pub fn holds_bytes(map_type: u32) -> bool {
    matches!(map_type, HASH | ARRAY | PERCPU_HASH | PERCPU_ARRAY | LRU_HASH | LRU_PERCPU_HASH | LPM_TRIE)
}

/// `map_peek_elem` *reads* its value argument (`bloom_map_peek_elem` in `kernel/bpf/bloom_filter.c`).
pub fn peek_reads_value(map_type: u32) -> bool {
    map_type == BLOOM_FILTER
}

/// Values belong to a kernel object: socket, inode, task or cgroup (`kernel/bpf/bpf_local_storage.c`).
pub fn is_local_storage(map_type: u32) -> bool {
    matches!(map_type, SK_STORAGE | INODE_STORAGE | TASK_STORAGE | CGRP_STORAGE)
}

/// Maps that only certain helpers take, and these helpers.
const MAP_TAKES: [(&[u32], &[&str]); 18] = [
    (&[PROG_ARRAY], &["tail_call"]),
    (
        &[PERF_EVENT_ARRAY],
        &["perf_event_read", "perf_event_output", "perf_event_read_value", "skb_output", "xdp_output"],
    ),
    (&[RINGBUF], &["ringbuf_output", "ringbuf_reserve", "ringbuf_query", "ringbuf_reserve_dynptr"]),
    (&[USER_RINGBUF], &["user_ringbuf_drain"]),
    (&[STACK_TRACE], &["get_stackid"]),
    (&[CGROUP_ARRAY], &["skb_under_cgroup", "current_task_under_cgroup"]),
    (&[CGROUP_STORAGE, PERCPU_CGROUP_STORAGE], &["get_local_storage"]),
    (&[DEVMAP, DEVMAP_HASH], &["redirect_map", "map_lookup_elem"]),
    (&[CPUMAP], &["redirect_map"]),
    (&[XSKMAP], &["redirect_map", "map_lookup_elem"]),
    (&[ARRAY_OF_MAPS, HASH_OF_MAPS], &["map_lookup_elem"]),
    (
        &[SOCKMAP],
        &[
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
            "sk_redirect_map",
            "sock_map_update",
            "msg_redirect_map",
            "sk_select_reuseport",
        ],
    ),
    (
        &[SOCKHASH],
        &[
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
            "sock_hash_update",
            "msg_redirect_hash",
            "sk_redirect_hash",
            "sk_select_reuseport",
        ],
    ),
    (&[REUSEPORT_SOCKARRAY], &["sk_select_reuseport"]),
    (&[QUEUE, STACK], &["map_push_elem", "map_pop_elem", "map_peek_elem"]),
    (&[BLOOM_FILTER], &["map_push_elem", "map_peek_elem"]),
    (&[SK_STORAGE], LOCAL_STORAGE_HELPERS),
    (&[INODE_STORAGE, TASK_STORAGE, CGRP_STORAGE], LOCAL_STORAGE_HELPERS),
];

const LOCAL_STORAGE_HELPERS: &[&str] = &[
    "sk_storage_get",
    "sk_storage_delete",
    "inode_storage_get",
    "inode_storage_delete",
    "task_storage_get",
    "task_storage_delete",
    "cgrp_storage_get",
    "cgrp_storage_delete",
];

/// Helpers that only take certain maps, and these maps.
const HELPER_TAKES: [(&[&str], &[u32]); 14] = [
    (&["tail_call"], &[PROG_ARRAY]),
    (
        &["perf_event_read", "perf_event_output", "perf_event_read_value", "skb_output", "xdp_output"],
        &[PERF_EVENT_ARRAY],
    ),
    (&["ringbuf_output", "ringbuf_reserve", "ringbuf_query", "ringbuf_reserve_dynptr"], &[RINGBUF]),
    (&["get_stackid"], &[STACK_TRACE]),
    (&["skb_under_cgroup", "current_task_under_cgroup"], &[CGROUP_ARRAY]),
    (&["redirect_map"], &[DEVMAP, DEVMAP_HASH, CPUMAP, XSKMAP]),
    (&["sk_redirect_map", "sock_map_update", "msg_redirect_map"], &[SOCKMAP]),
    (&["sock_hash_update", "msg_redirect_hash", "sk_redirect_hash"], &[SOCKHASH]),
    (&["get_local_storage"], &[CGROUP_STORAGE, PERCPU_CGROUP_STORAGE]),
    (&["sk_select_reuseport"], &[SOCKMAP, SOCKHASH, REUSEPORT_SOCKARRAY]),
    (&["map_pop_elem"], &[QUEUE, STACK]),
    (&["map_push_elem", "map_peek_elem"], &[QUEUE, STACK, BLOOM_FILTER]),
    (&["sk_storage_get", "sk_storage_delete"], &[SK_STORAGE]),
    (&["map_lookup_percpu_elem"], &[PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH]),
];

/// Whether the kernel takes a map of this type as the map argument of this helper
/// (`check_map_func_compatibility` in `kernel/bpf/verifier.c`).
pub fn goes_with(map_type: u32, helper: &Helper) -> bool {
    let only = MAP_TAKES.iter().all(|(maps, names)| !maps.contains(&map_type) || names.contains(&helper.name));
    only && HELPER_TAKES.iter().all(|(names, maps)| !names.contains(&helper.name) || maps.contains(&map_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_helper_named_here_exists() {
        let names = MAP_TAKES.iter().flat_map(|r| r.1).chain(HELPER_TAKES.iter().flat_map(|r| r.0));
        for name in names {
            assert!(Helper::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_prog_array_goes_with_tail_calls_only() {
        let fits = |map, name| goes_with(map, Helper::named(name).unwrap());
        assert!(fits(PROG_ARRAY, "tail_call") && !fits(HASH, "tail_call"));
        assert!(!fits(PROG_ARRAY, "map_lookup_elem") && fits(HASH, "map_lookup_elem"));
        assert!(fits(TASK_STORAGE, "task_storage_get") && !fits(TASK_STORAGE, "map_update_elem"));
    }
}
