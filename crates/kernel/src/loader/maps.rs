//! Maps that are made once and lent to every form of an object.
//!
//! What the verifier makes of a map is its definition; of a hash table it does not even heed the length. So maps are
//! made as short as they may be, since the kernel fills tables with elements beforehand (`prealloc_init` in
//! kernel/bpf/hashtab.c), and kept. Not kept are maps that remember what was loaded with them: those that hold programs
//! belong to the first program that refers to them (`bpf_prog_map_compatible` in kernel/bpf/core.c), and locks, lists and
//! kernel pointers in values belong to the BTF that the map was made with.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use bpf_platform::{
    fields,
    maps::{
        ARENA, ARRAY, ARRAY_OF_MAPS, BLOOM_FILTER, CGROUP_ARRAY, CPUMAP, DEVMAP, DEVMAP_HASH, HASH, HASH_OF_MAPS,
        INSN_ARRAY, LPM_TRIE, LRU_HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH, PROG_ARRAY, QUEUE,
        REUSEPORT_SOCKARRAY, RINGBUF, SOCKHASH, SOCKMAP, STACK, STACK_TRACE, STRUCT_OPS, USER_RINGBUF, XSKMAP,
        is_array, is_per_cpu,
    },
};

use super::complete;
use crate::sys::{self, Definition};

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

/// An array: the map of that name, or those in it.
pub(super) type Place = (String, bool);

/// How long arrays are made at least for a program; those that are not named with one element.
pub(super) type Shortest = BTreeMap<Place, u32>;

/// How long maps are made at most.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    /// Elements of the shortened ones.
    table: u32,
    /// Bytes of a ring, which the kernel rounds up to a page.
    ring: u32,
    /// Bytes of all elements of an array.
    array: u64,
    /// Elements of an array that every processor has one of.
    array_of_all_cpus: u32,
    /// Elements of those that hold pointers: programs, maps, devices, sockets. Of two thousand millions the kernel makes 16 GB.
    pointers: u32,
}

/// As their definitions say.
pub(super) const AS_DEFINED: Lengths =
    Lengths { table: u32::MAX, ring: u32::MAX, array: u64::MAX, array_of_all_cpus: u32::MAX, pointers: u32::MAX };
/// For verdicts, all is made in milliseconds. An array that is shortened is treated as one whose length is the loader's
/// ([`complete::has_length_of_loader`]).
const FOR_VERDICTS: Lengths =
    Lengths { table: 16, ring: 1, array: 16 << 20, array_of_all_cpus: 8192, pointers: 1 << 16 };
/// The same where arrays are not shortened.
const WITH_WHOLE_ARRAYS: Lengths = Lengths { array: u64::MAX, array_of_all_cpus: u32::MAX, ..FOR_VERDICTS };
/// For so long whole arrays may be made.
const WHOLE_ARRAYS: Duration = Duration::from_millis(100);

/// The lengths of an object's maps for verdicts: what the verifier takes for there hangs on those of arrays.
pub(super) fn for_verdicts(object: &sys::Object) -> Lengths {
    if time_to_make_all(object, WITH_WHOLE_ARRAYS) <= WHOLE_ARRAYS { WITH_WHOLE_ARRAYS } else { FOR_VERDICTS }
}

/// For runs, tables get enough elements for none to be full, or to evict anything, soon; arrays get all that programs may
/// ask for.
pub(super) const FOR_RUNS: Lengths = Lengths { table: 4096, ..AS_DEFINED };

/// The length a map is made with.
pub(super) fn length(map: &Definition, most: Lengths) -> u32 {
    match map.kind {
        kind if RINGS.contains(&kind) => map.max_entries.clamp(1, most.ring),
        kind if SHORTENED.contains(&kind) => map.max_entries.clamp(1, most.table),
        ARRAY if !map.internal => {
            let fit = most.array / u64::from(map.value_size).next_multiple_of(8).max(8);
            map.max_entries.clamp(1, u32::try_from(fit).unwrap_or(u32::MAX).max(1))
        }
        PERCPU_ARRAY => map.max_entries.clamp(1, most.array_of_all_cpus),
        // No memory is made for it.
        ARENA => map.max_entries.max(1),
        kind if WITH_LENGTH.contains(&kind) => map.max_entries.clamp(1, most.pointers),
        _ => map.max_entries,
    }
}

/// Is this array, or are those in this map, made with fewer elements than their definition says, or does it not say?
pub(super) fn is_short_array(map: &Definition, most: Lengths) -> bool {
    complete::has_length_of_loader(map)
        || is_array(map.kind) && length(map, most) < map.max_entries
        || map.inner.as_ref().is_some_and(|inner| is_short_array(inner, most))
}

/// How long the kernel takes at most, or nearly so, to make a map with so many elements at most: what it fills beforehand
/// counts. Measured with Linux 6.18 on a virtual machine. A byte costs two nanoseconds where memory is used for the first
/// time, and a fifth of that otherwise; an element that every processor has one of takes longest (`pcpu_alloc`).
fn time_to_make(map: &Definition, most: Lengths, processors: u32) -> Duration {
    const NANOSECONDS_A_BYTE: u64 = 2;
    const NANOSECONDS_EACH: u64 = 100;
    const NANOSECONDS_EACH_OF_ALL: u64 = 1_500;
    /// `struct htab_elem` and, in a table of twice the length at most, `struct bucket`.
    const OF_A_TABLE: u64 = 48 + 2 * 16;
    let padded = |bytes: u32| u64::from(bytes).next_multiple_of(8);
    let (key, value) = (padded(map.key_size), padded(map.value_size));
    let filled = map.flags & complete::NO_PREALLOC == 0;
    let copies = if is_per_cpu(map.kind) { u64::from(processors) } else { 1 };
    let (each, bytes) = match map.kind {
        HASH | LRU_HASH if filled => (NANOSECONDS_EACH, OF_A_TABLE + key + value),
        PERCPU_HASH | LRU_PERCPU_HASH if filled => (NANOSECONDS_EACH_OF_ALL, OF_A_TABLE + key + value * copies),
        PERCPU_ARRAY => (NANOSECONDS_EACH_OF_ALL, 8 + value * copies),
        ARRAY | QUEUE | STACK => (0, value),
        STACK_TRACE => (NANOSECONDS_EACH, OF_A_TABLE + value),
        RINGBUF | USER_RINGBUF | BLOOM_FILTER => (0, 1 + value),
        // A pointer for each.
        _ => (0, 16),
    };
    let elements = u64::from(length(map, most));
    Duration::from_nanos(elements.saturating_mul(each + bytes * NANOSECONDS_A_BYTE))
}

/// The same for all maps of an object that is open.
pub(super) fn time_to_make_all(object: &sys::Object, most: Lengths) -> Duration {
    let processors = sys::possible_cpus().map_or(u32::MAX, |count| count as u32);
    (0..object.map_count()).map(|index| time_to_make(&object.map_definition(index), most, processors)).sum()
}

/// Makes all maps of an object that is open complete, with the lengths that `most` allows, but for those that are unknown
/// or cannot be completed, which it will do without. What is returned has to stay open until it is loaded.
pub(super) fn make_all_ready(
    object: &mut sys::Object,
    unknown: &[(String, String)],
    most: Lengths,
) -> std::io::Result<Vec<OwnedFd>> {
    let bytes = object.btf_bytes();
    let bound = bytes.as_deref().is_some_and(binds_maps);
    let mut patterns = Vec::new();
    for index in 0..object.map_count() {
        let map = object.map_definition(index);
        if unknown.iter().any(|(name, _)| *name == map.name) || why_not(&map, bytes.as_deref()).is_some() {
            object.leave_map_out(index)?;
        } else {
            patterns.extend(make_ready(object, index, &map, bound, most)?);
        }
    }
    Ok(patterns)
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
    /// case, because it is the object's. Maps with definitions among `filled` are made as these say.
    pub(super) fn lend(
        &self,
        object: &mut sys::Object,
        btf: usize,
        bytes: Option<&[u8]>,
        left_out: &[usize],
        filled: &[Definition],
    ) -> std::io::Result<Plan> {
        let bound = bytes.is_some_and(binds_maps);
        let most = for_verdicts(object);
        let (mut new, mut patterns) = (Vec::new(), Vec::new());
        for index in 0..object.map_count() {
            new.push(None);
            if left_out.contains(&index) {
                object.leave_map_out(index)?;
                continue;
            }
            let own = object.map_definition(index);
            let definition = filled.iter().find(|filled| filled.name == own.name).cloned().unwrap_or(own);
            let suits = |kept: &&Kept| kept.definition == definition && (!bound || kept.btf == btf);
            if let Some(kept) = self.kept.iter().find(suits) {
                object.lend_map(index, kept.fd.as_fd())?;
                continue;
            }
            patterns.extend(make_ready(object, index, &definition, bound, most)?);
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
    let lengths = full.inner.as_ref().map(|inner| (inner.max_entries, length(inner, FOR_VERDICTS)));
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
    most: Lengths,
) -> std::io::Result<Option<OwnedFd>> {
    let full = complete::completed(definition).map_err(std::io::Error::other)?;
    let own = object.map_definition(index);
    if full != own {
        object.define(index, &full)?;
    }
    let entries = length(&full, most);
    if entries != own.max_entries {
        object.set_max_entries(index, entries)?;
    }
    let Some(inner) = &full.inner else { return Ok(None) };
    // A pattern without types will do where nothing depends on them.
    let shorter = length(inner, most) < inner.max_entries && !RINGS.contains(&inner.kind) && !bound && inner.extra == 0;
    if !(shorter || needs_pattern(&own, &full)) {
        return Ok(None);
    }
    let pattern = create(inner, most)?;
    object.set_inner_map(index, pattern.as_fd())?;
    Ok(Some(pattern))
}

fn create(map: &Definition, most: Lengths) -> std::io::Result<OwnedFd> {
    // A ring has a number of pages that is a power of two (`ringbuf_map_alloc`). libbpf sees to that for maps that are
    // not in another one. No page is longer.
    const PAGES: u32 = 1 << 16;
    let entries = if RINGS.contains(&map.kind) { PAGES } else { length(map, most) };
    sys::maps::create_map(map.kind, map.key_size, map.value_size, entries, map.flags, None, None)
}

/// May a map of this definition be used again? The values of kernel options come from libbpf while it prepares.
fn is_kept(map: &Definition) -> bool {
    let same_contents = !map.internal || (map.contents.is_some() && !map.name.ends_with(".kconfig"));
    same_contents && !NOT_KEPT.contains(&map.kind)
}

/// Whether BTF names anything that makes maps belong to it. Its strings are all there is to ask; that some other thing has
/// such a name costs only time.
pub(super) fn binds_maps(btf: &[u8]) -> bool {
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
    fn hash_tables_are_short_and_arrays_keep_their_length_if_it_is_not_huge() {
        assert_eq!(length(&map(HASH, 1 << 20), FOR_VERDICTS), 16);
        assert_eq!(length(&map(LRU_HASH, 3), FOR_VERDICTS), 3);
        assert_eq!(length(&map(ARRAY, 1 << 20), FOR_VERDICTS), 1 << 20);
        assert_eq!(length(&map(PROG_ARRAY, 100), FOR_VERDICTS), 100);
        let huge = map(PROG_ARRAY, i32::MAX as u32);
        assert!(length(&huge, FOR_VERDICTS) <= 1 << 16 && length(&huge, FOR_RUNS) == huge.max_entries);
        assert_eq!(length(&map(ARENA, 1 << 20), FOR_VERDICTS), 1 << 20);
        let is_short = |map: &Definition| is_short_array(map, FOR_VERDICTS);
        assert!(!is_short(&map(ARRAY, 1 << 20)) && !is_short(&map(HASH, 1 << 20)));
        for huge in [map(ARRAY, 1 << 30), map(PERCPU_ARRAY, 1 << 20)] {
            assert!(is_short(&huge) && length(&huge, FOR_VERDICTS) < huge.max_entries);
            assert!(!is_short_array(&huge, WITH_WHOLE_ARRAYS));
            assert_eq!(length(&huge, FOR_RUNS), huge.max_entries);
            assert!(is_short(&Definition { inner: Some(Box::new(huge)), ..map(HASH_OF_MAPS, 3) }));
        }
        // Global data is one element, however large.
        let data = Definition { internal: true, value_size: 1 << 30, ..map(ARRAY, 1) };
        assert_eq!(length(&data, FOR_VERDICTS), 1);
    }

    #[test]
    fn what_the_loader_would_set_is_set() {
        assert_eq!(length(&map(ARRAY, 0), FOR_VERDICTS), 1);
        assert_eq!(length(&map(RINGBUF, 0), FOR_VERDICTS), 1);
        // Storage of sockets, tasks and the like has no length.
        assert_eq!(length(&map(24, 0), FOR_VERDICTS), 0);
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
    fn large_maps_take_long_at_their_full_length() {
        let full = |map: Definition| time_to_make(&map, AS_DEFINED, 2);
        assert!(full(map(PERCPU_HASH, 10_000_000)) > Duration::from_secs(5));
        // Two seconds where the memory is new.
        assert!(full(Definition { value_size: 300, ..map(HASH, 3_000_000) }) > Duration::from_secs(2));
        assert!(full(Definition { value_size: 300, ..map(ARRAY, 3_000_000) }) > Duration::from_millis(1400));
        assert!(full(Definition { flags: 1, ..map(HASH, 10_000_000) }) < Duration::from_secs(1));
        assert!(full(map(HASH, 1000)) < Duration::from_millis(1));
        // Tables are shortened, and arrays are not.
        let short = |map: Definition| time_to_make(&map, FOR_RUNS, 2);
        assert!(short(map(PERCPU_HASH, 10_000_000)) < Duration::from_millis(20));
        assert_eq!(short(map(ARRAY, 10_000_000)), full(map(ARRAY, 10_000_000)));
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
