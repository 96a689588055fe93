//! Maps that are made once and lent to every form of an object.
//!
//! What the verifier makes of a map is its definition; of a hash table it does not even heed the length. So maps are
//! made as short as they may be, since the kernel fills tables with elements beforehand (`prealloc_init` in
//! kernel/bpf/hashtab.c), and kept. Not kept are maps that remember what was loaded with them: those that hold programs
//! belong to the first program that refers to them (`bpf_prog_map_compatible` in kernel/bpf/core.c), and locks, lists and
//! kernel pointers in values belong to the BTF that the map was made with.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use bpf_platform::{
    fields,
    maps::{
        ARENA, ARRAY, ARRAY_OF_MAPS, BLOOM_FILTER, CGROUP_ARRAY, CPUMAP, DEVMAP, DEVMAP_HASH, HASH, HASH_OF_MAPS,
        LPM_TRIE, LRU_HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH, PROG_ARRAY, QUEUE, REUSEPORT_SOCKARRAY,
        RINGBUF, SOCKHASH, SOCKMAP, STACK, STACK_TRACE, STRUCT_OPS, USER_RINGBUF, XSKMAP,
    },
};

use super::complete;
use crate::sys::{self, Definition};

/// `BPF_MAP_TYPE_INSN_ARRAY` in linux/bpf.h: targets of indirect jumps.
const INSN_ARRAY: u32 = 34;

/// Maps whose length nothing in a program depends on. (That of an array decides which lookups cannot fail; see
/// `can_elide_value_nullness` in kernel/bpf/verifier.c.)
const SHORTENED: [u32; 9] =
    [HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH, LPM_TRIE, STACK_TRACE, QUEUE, STACK, BLOOM_FILTER];
/// Ring buffers: libbpf makes their length a multiple of pages.
const RINGS: [u32; 2] = [RINGBUF, USER_RINGBUF];
/// Maps that the kernel does not make without a length; loaders set it.
const WITH_LENGTH: [u32; 15] = [
    ARRAY,
    PERCPU_ARRAY,
    PROG_ARRAY,
    CGROUP_ARRAY,
    ARRAY_OF_MAPS,
    HASH_OF_MAPS,
    DEVMAP,
    DEVMAP_HASH,
    SOCKMAP,
    SOCKHASH,
    CPUMAP,
    XSKMAP,
    BLOOM_FILTER,
    REUSEPORT_SOCKARRAY,
    ARENA,
];
/// Maps that remember what was loaded with them, or that libbpf fills in a way of its own.
const NOT_KEPT: [u32; 7] = [PROG_ARRAY, DEVMAP, DEVMAP_HASH, CPUMAP, STRUCT_OPS, ARENA, INSN_ARRAY];
/// As many elements as any of the shortened ones gets.
const FEW: u32 = 16;

/// The length a map is made with.
fn length(map: &Definition) -> u32 {
    match map.kind {
        kind if RINGS.contains(&kind) => 1,
        kind if SHORTENED.contains(&kind) => map.max_entries.clamp(1, FEW),
        kind if WITH_LENGTH.contains(&kind) => map.max_entries.max(1),
        _ => map.max_entries,
    }
}

/// About how long the kernel takes to make a map at its full length: what it fills beforehand counts. Measured with Linux
/// 6.18; an element that every processor has one of takes longest (`pcpu_alloc`).
fn full_time(map: &Definition) -> Duration {
    const OF_ALL_CPUS: [u32; 3] = [PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH];
    const NANOSECONDS_EACH: u64 = 150;
    const NANOSECONDS_OF_ALL_CPUS: u64 = 1_000;
    let of_all_cpus = OF_ALL_CPUS.contains(&map.kind);
    if map.flags & complete::NO_PREALLOC != 0 || !(of_all_cpus || [HASH, LRU_HASH, STACK_TRACE].contains(&map.kind)) {
        return Duration::ZERO;
    }
    let element = if of_all_cpus { NANOSECONDS_OF_ALL_CPUS } else { NANOSECONDS_EACH };
    let bytes = u64::from(map.key_size).saturating_add(map.value_size.into());
    // Clearing takes about a nanosecond for four bytes.
    Duration::from_nanos(u64::from(map.max_entries).saturating_mul(element + bytes / 4))
}

/// The same for all maps of an object that is open.
pub(super) fn full_time_of_all(object: &sys::Object) -> Duration {
    (0..object.map_count()).map(|index| full_time(&object.map_definition(index))).sum()
}

/// The maps that were made so far.
#[derive(Default)]
pub(super) struct Maps {
    kept: Vec<Kept>,
}

struct Kept {
    definition: Definition,
    /// Number of the BTF it was made with.
    btf: usize,
    fd: OwnedFd,
}

/// What is done about each map of one object.
pub(super) struct Plan {
    /// The definition of each map that is new and to be kept.
    new: Vec<Option<Definition>>,
    btf: usize,
    /// Patterns of maps of maps, which are open until the object is prepared.
    _patterns: Vec<OwnedFd>,
}

impl Maps {
    /// Lends an object that is open what maps there are, and makes the others complete and short; but not those that it
    /// has to do without. Maps that were made with the BTF of number `btf`, which is encoded in these bytes, suit in any
    /// case, because it is the object's.
    pub(super) fn lend(
        &self,
        object: &mut sys::Object,
        btf: usize,
        bytes: Option<&[u8]>,
        left_out: &[usize],
    ) -> std::io::Result<Plan> {
        let bound = bytes.is_some_and(binds_maps);
        let (mut new, mut patterns) = (Vec::new(), Vec::new());
        for index in 0..object.map_count() {
            new.push(None);
            if left_out.contains(&index) {
                object.leave_map_out(index)?;
                continue;
            }
            let definition = object.map_definition(index);
            let suits = |kept: &&Kept| kept.definition == definition && (!bound || kept.btf == btf);
            if let Some(kept) = self.kept.iter().find(suits) {
                object.lend_map(index, kept.fd.as_fd())?;
                continue;
            }
            patterns.extend(make_ready(object, index, &definition, bound)?);
            new[index] = Some(definition).filter(is_kept);
        }
        Ok(Plan { new, btf, _patterns: patterns })
    }

    /// Keeps what was made for a prepared object.
    pub(super) fn keep(&mut self, object: &sys::Object, plan: Plan) {
        for (index, definition) in plan.new.into_iter().enumerate() {
            let fd = object.map_fd(index).and_then(|fd| fd.try_clone_to_owned().ok());
            if let (Some(definition), Some(fd)) = (definition, fd) {
                // An older map of this definition belongs to another BTF.
                self.kept.retain(|kept| kept.definition != definition);
                self.kept.push(Kept { definition, btf: plan.btf, fd });
            }
        }
    }
}

/// Why a map of an object with this BTF cannot be made, if that is clear before the kernel is asked.
pub(super) fn why_not(definition: &Definition, btf: Option<&[u8]>) -> Option<String> {
    let full = match complete::completed(definition) {
        Ok(full) => full,
        Err(why) => return Some(why),
    };
    let pattern = full.inner.as_ref().filter(|_| needs_pattern(definition, &full))?;
    let replaceable = pattern.extra == 0 && !btf.is_some_and(binds_maps);
    (!replaceable).then(|| "its definition leaves open what maps are in it, which belong to their types".to_owned())
}

/// Must the maps in a map be made like another one than its definition describes?
fn needs_pattern(definition: &Definition, full: &Definition) -> bool {
    let lengths = full.inner.as_ref().map(|inner| (inner.max_entries, length(inner)));
    definition.inner != full.inner || lengths.is_some_and(|(said, made)| said == 0 && made != 0)
}

/// Must the object's BTF be loaded with it? libbpf insists where there are struct_ops maps (`kernel_needs_btf`).
pub(super) fn needs_own_btf(object: &sys::Object) -> bool {
    (0..object.map_count()).any(|index| object.map_definition(index).kind == STRUCT_OPS)
}

/// Has a map made with all that its loader would add, and as short as it may be; returns what has to stay open until
/// then.
fn make_ready(
    object: &mut sys::Object,
    index: usize,
    definition: &Definition,
    bound: bool,
) -> std::io::Result<Option<OwnedFd>> {
    let full = complete::completed(definition).map_err(std::io::Error::other)?;
    if full != *definition {
        object.define(index, &full)?;
    }
    let entries = length(&full);
    if entries != full.max_entries {
        object.set_max_entries(index, entries)?;
    }
    let Some(inner) = &full.inner else { return Ok(None) };
    // A pattern without types will do where nothing depends on them.
    let shorter = SHORTENED.contains(&inner.kind) && inner.max_entries > FEW && !bound && inner.extra == 0;
    if !(shorter || needs_pattern(definition, &full)) {
        return Ok(None);
    }
    let pattern = create(inner)?;
    object.set_inner_map(index, pattern.as_fd())?;
    Ok(Some(pattern))
}

fn create(map: &Definition) -> std::io::Result<OwnedFd> {
    // A ring has a number of pages that is a power of two (`ringbuf_map_alloc`). libbpf sees to that for maps that are
    // not in another one. No page is longer.
    const PAGES: u32 = 1 << 16;
    let entries = if RINGS.contains(&map.kind) { PAGES } else { length(map) };
    sys::create_map(map.kind, map.key_size, map.value_size, entries, map.flags, None, None)
}

/// May a map of this definition be used again? The values of kernel options come from libbpf while it prepares.
fn is_kept(map: &Definition) -> bool {
    let same_contents = !map.internal || (map.contents.is_some() && !map.name.ends_with(".kconfig"));
    same_contents && !NOT_KEPT.contains(&map.kind)
}

/// Whether BTF names anything that makes maps belong to it. Its strings are all there is to ask; that some other thing has
/// such a name costs only time.
fn binds_maps(btf: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = btf.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    // `struct btf_header` in linux/btf.h: hdr_len at 4, str_off at 16, str_len at 20.
    let strings = (|| {
        let start = word(4)?.checked_add(word(16)?)?;
        btf.get(start..start.checked_add(word(20)?)?)
    })();
    let Some(strings) = strings else { return true };
    strings.split(|byte| *byte == 0).any(|name| {
        let name = String::from_utf8_lossy(name);
        fields::is_managed_structure(&name) || fields::is_managed_pointer(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: u32, max_entries: u32) -> Definition {
        Definition { name: "m".to_owned(), kind, key_size: 4, value_size: 8, max_entries, ..Definition::default() }
    }

    #[test]
    fn hash_tables_are_short_and_arrays_keep_their_length() {
        assert_eq!(length(&map(HASH, 1 << 20)), FEW);
        assert_eq!(length(&map(LRU_HASH, 3)), 3);
        assert_eq!(length(&map(ARRAY, 1 << 20)), 1 << 20);
        assert_eq!(length(&map(PROG_ARRAY, 100)), 100);
    }

    #[test]
    fn what_the_loader_would_set_is_set() {
        assert_eq!(length(&map(ARRAY, 0)), 1);
        assert_eq!(length(&map(RINGBUF, 0)), 1);
        // Storage of sockets, tasks and the like has no length.
        assert_eq!(length(&map(24, 0)), 0);
    }

    #[test]
    fn maps_of_programs_and_options_are_not_kept() {
        assert!(is_kept(&map(HASH, 1)) && !is_kept(&map(PROG_ARRAY, 1)) && !is_kept(&map(DEVMAP_HASH, 1)));
        let data =
            |name: &str, contents| Definition { internal: true, contents, name: name.to_owned(), ..map(ARRAY, 1) };
        assert!(is_kept(&data(".bss", Some(vec![0]))));
        assert!(!is_kept(&data(".bss", None)) && !is_kept(&data("object.kconfig", Some(vec![0]))));
    }

    #[test]
    fn large_tables_take_long_at_their_full_length() {
        let long = full_time(&map(PERCPU_HASH, 10_000_000));
        assert!(long > Duration::from_secs(5), "{long:?}");
        assert_eq!(full_time(&Definition { flags: 1, ..map(HASH, 10_000_000) }), Duration::ZERO);
        assert!(full_time(&map(HASH, 1000)) < Duration::from_millis(1));
    }

    #[test]
    fn locks_bind_a_map_to_its_btf() {
        let with = |strings: &[u8]| {
            let mut btf = vec![0u8; 24];
            btf[4] = 24;
            btf[20] = strings.len() as u8;
            btf.extend(strings);
            btf
        };
        assert!(!binds_maps(&with(b"\0flow\0key\0")));
        assert!(binds_maps(&with(b"\0flow\0bpf_spin_lock\0")));
        assert!(binds_maps(&with(b"\0kptr_untrusted\0")));
        assert!(binds_maps(&[]), "what cannot be read may hold anything");
    }
}
