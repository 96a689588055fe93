//! Definitions of maps that a loader completes, completed.
//!
//! Many objects leave to their loader what it knows better: sizes of keys and values, lengths, the maps in maps. The one
//! idea: nothing is filled in on which a verdict could hang. A field gets a value if the kernel makes no map of that type
//! with any other, or if the verifier never looks at it; the same for the original and for every other form. Where neither
//! holds, the map is *open*, for the reason that is returned here: it is not made for all programs, but for each as its
//! first form needs it ([`super::open_maps`]).

use bpf_platform::maps::{self, MMAPABLE, OpenSize};

use crate::sys::Definition;

/// `BPF_F_NO_PREALLOC` and `BPF_F_NUMA_NODE` in linux/bpf.h.
pub(super) const NO_PREALLOC: u32 = 1;
const NUMA_NODE: u32 = 1 << 2;

/// The flags a map is made with. Tries and the storage of kernel objects are never filled beforehand, and arenas always
/// shared with user space: the kernel wants these flags (`trie_alloc`, `bpf_local_storage_map_alloc_check`,
/// `arena_map_alloc`). On which memory a map lies no program can tell.
fn flags(map: &Definition) -> u32 {
    let wanted = match map.kind {
        maps::LPM_TRIE => NO_PREALLOC,
        maps::ARENA => MMAPABLE,
        kind if maps::is_local_storage(kind) => NO_PREALLOC,
        _ => 0,
    };
    (map.flags | wanted) & !NUMA_NODE
}

/// A definition with all that the kernel wants but its length; or why that cannot be known.
pub(super) fn completed(map: &Definition) -> Result<Definition, String> {
    if map.internal {
        return Ok(map.clone());
    }
    let filled = |size: u32, rule: OpenSize, what: &str| match rule {
        OpenSize::Only(default) | OpenSize::NeverSeen(default) if size == 0 => Ok(default),
        OpenSize::OfTheLoader if size == 0 => Err(format!("its definition does not say how long its {what} are")),
        _ => Ok(size),
    };
    let inner = match &map.inner {
        Some(inner) => {
            Some(Box::new(completed(inner).map_err(|why| format!("the definition of the maps in it: {why}"))?))
        }
        None if maps::element(map.kind) == maps::Element::Map => {
            return Err("its definition does not say what the maps in it are like".to_owned());
        }
        None => None,
    };
    Ok(Definition {
        key_size: filled(map.key_size, maps::open_key_size(map.kind), "keys")?,
        value_size: filled(map.value_size, maps::open_value_size(map.kind, map.flags), "values")?,
        flags: flags(map),
        inner,
        ..map.clone()
    })
}

/// What is tried for what the definition of a map leaves open. None of it is used where the definition says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fill {
    /// Type of the maps in it.
    pub(super) inner: u32,
    /// Bytes of a key.
    pub(super) key_size: u32,
    /// Bytes of a value.
    pub(super) value_size: u32,
}

/// How the open maps of a program are made.
#[derive(Debug, Clone)]
pub(super) struct Filling {
    /// With the shortest keys and values with which its first form loads.
    pub(super) short: Vec<Definition>,
    /// With the longest.
    pub(super) long: Vec<Definition>,
}

/// An open definition with these sizes in it; `None` if it leaves open more than one size of a sort, or nothing.
pub(super) fn filled(map: &Definition, fill: Fill) -> Option<Definition> {
    /// What the kernel wants at least of a ring.
    const RING_BYTES: u32 = 4096;
    let mut open = [0, 0];
    let mut fill_in = |size: u32, rule: OpenSize, with: u32, sort: usize| match rule {
        OpenSize::OfTheLoader if size == 0 => {
            open[sort] += 1;
            with
        }
        _ => size,
    };
    let mut definition = map.clone();
    definition.key_size = fill_in(map.key_size, maps::open_key_size(map.kind), fill.key_size, 0);
    definition.value_size = fill_in(map.value_size, maps::open_value_size(map.kind, map.flags), fill.value_size, 1);
    if maps::element(map.kind) == maps::Element::Map {
        let length = if fill.inner == maps::RINGBUF { RING_BYTES } else { 1 };
        let missing = || Definition { kind: fill.inner, max_entries: length, ..Definition::default() };
        let mut inner = map.inner.as_deref().cloned().unwrap_or_else(missing);
        inner.key_size = fill_in(inner.key_size, maps::open_key_size(inner.kind), fill.key_size, 0);
        inner.value_size =
            fill_in(inner.value_size, maps::open_value_size(inner.kind, inner.flags), fill.value_size, 1);
        definition.inner = Some(Box::new(inner));
    }
    let unambiguous = open.iter().all(|count| *count <= 1);
    (unambiguous && !map.internal && definition != *map && completed(&definition).is_ok()).then_some(definition)
}

/// Does the length that this map is going to have decide which lookups cannot fail? An array has as many elements as its
/// definition says; if that says nothing, it is made with one, which every array has. Then a program is not refused for a
/// lookup of another element without a test, which would be right in the longer array (`can_elide_value_nullness` in
/// kernel/bpf/verifier.c). What is taken of a short array is taken of a longer one.
pub(super) fn has_length_of_loader(map: &Definition) -> bool {
    maps::is_array(map.kind) && !map.internal && map.max_entries == 0
        || map.inner.as_ref().is_some_and(|inner| has_length_of_loader(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: u32, key_size: u32, value_size: u32) -> Definition {
        Definition { kind, key_size, value_size, ..Definition::default() }
    }

    #[test]
    fn sizes_that_only_one_value_fits_are_filled_in() {
        for kind in [maps::PERF_EVENT_ARRAY, maps::PROG_ARRAY, maps::CGROUP_ARRAY, maps::XSKMAP] {
            let made = completed(&map(kind, 0, 0)).unwrap();
            assert_eq!((made.key_size, made.value_size), (4, 4), "{kind}");
        }
        assert_eq!(completed(&map(maps::ARRAY, 0, 24)).unwrap(), map(maps::ARRAY, 4, 24));
        // What is said stays, also if the kernel is going to refuse it.
        assert_eq!(completed(&map(maps::ARRAY, 8, 24)).unwrap(), map(maps::ARRAY, 8, 24));
        assert_eq!(completed(&map(maps::RINGBUF, 0, 0)).unwrap(), map(maps::RINGBUF, 0, 0));
    }

    #[test]
    fn sizes_that_the_verifier_sees_are_not_guessed() {
        for (kind, key_size, value_size, what) in [
            (maps::HASH, 0, 8, "keys"),
            (maps::HASH, 4, 0, "values"),
            (maps::ARRAY, 4, 0, "values"),
            (maps::DEVMAP, 4, 0, "values"),
            (maps::QUEUE, 0, 0, "values"),
        ] {
            let why = completed(&map(kind, key_size, value_size)).unwrap_err();
            assert_eq!(why, format!("its definition does not say how long its {what} are"), "{kind}");
        }
        let why = completed(&map(maps::ARRAY_OF_MAPS, 4, 4)).unwrap_err();
        assert_eq!(why, "its definition does not say what the maps in it are like");
        let inner = Some(Box::new(map(maps::HASH, 0, 4)));
        let why = completed(&Definition { inner, ..map(maps::ARRAY_OF_MAPS, 4, 4) }).unwrap_err();
        assert!(why.ends_with("how long its keys are"), "{why}");
    }

    #[test]
    fn what_is_open_is_filled_in_and_nothing_else() {
        let fill = Fill { inner: maps::HASH, key_size: 7, value_size: 9 };
        assert_eq!(filled(&map(maps::HASH, 0, 0), fill), Some(map(maps::HASH, 7, 9)));
        assert_eq!(filled(&map(maps::HASH, 4, 0), fill), Some(map(maps::HASH, 4, 9)));
        assert_eq!(filled(&map(maps::HASH, 4, 8), fill), None);
        let outer = map(maps::ARRAY_OF_MAPS, 4, 4);
        let inner = |key_size, value_size| {
            Some(Box::new(Definition { max_entries: 1, ..map(maps::HASH, key_size, value_size) }))
        };
        let made = filled(&outer, fill).expect("it is open");
        assert_eq!(made, Definition { inner: inner(7, 9), ..outer.clone() });
        let ring =
            filled(&outer, Fill { inner: maps::RINGBUF, ..fill }).expect("it is open").inner.expect("there is one");
        assert_eq!((ring.kind, ring.key_size, ring.value_size, ring.max_entries), (maps::RINGBUF, 0, 0, 4096));
        // Which of two keys would be the longer one?
        assert_eq!(filled(&map(maps::HASH_OF_MAPS, 0, 4), fill), None);
        let said = Definition { inner: inner(4, 0), ..map(maps::HASH_OF_MAPS, 0, 4) };
        assert_eq!(filled(&said, fill), Some(Definition { key_size: 7, inner: inner(4, 9), ..said.clone() }));
    }

    #[test]
    fn flags_without_which_the_kernel_makes_no_such_map_are_set() {
        assert_eq!(completed(&map(maps::LPM_TRIE, 8, 4)).unwrap().flags, NO_PREALLOC);
        let there = Definition { flags: NUMA_NODE | 2, ..map(maps::LRU_HASH, 4, 4) };
        assert_eq!(completed(&there).unwrap().flags, 2);
    }

    #[test]
    fn only_arrays_without_a_length_have_one_of_the_loader() {
        let long = |kind, max_entries| Definition { max_entries, ..map(kind, 4, 4) };
        assert!(has_length_of_loader(&long(maps::ARRAY, 0)) && !has_length_of_loader(&long(maps::ARRAY, 3)));
        assert!(!has_length_of_loader(&long(maps::HASH, 0)));
        let inner = Some(Box::new(long(maps::PERCPU_ARRAY, 0)));
        assert!(has_length_of_loader(&Definition { inner, ..long(maps::HASH_OF_MAPS, 3) }));
    }
}
