//! Fields of map values that the kernel manages: locks, timers, lists, trees, pointers to its objects.
//!
//! The one idea: the kernel finds such fields by names in the BTF of a value, and allows accesses to them only in
//! fixed forms. A pointer may be read and, if it holds no reference, be written, by a plain access of all its eight bytes
//! at an offset that the verifier knows; no other field may be read or written at all (`check_map_access` and
//! `check_map_kptr_access` in `kernel/bpf/verifier.c`).
//!
//! Names may only be added here: a field that is taken for a managed one by mistake keeps its accesses as they are.

use std::ops::Range;

/// Bytes of a pointer, and of each access to one.
const POINTER_BYTES: u32 = 8;

/// What structures are called that the kernel manages (`btf_get_field_type` in `kernel/bpf/btf.c`).
const STRUCTURES: [&str; 10] = [
    "bpf_spin_lock",
    "bpf_res_spin_lock",
    "bpf_timer",
    "bpf_wq",
    "bpf_task_work",
    "bpf_list_head",
    "bpf_list_node",
    "bpf_rb_root",
    "bpf_rb_node",
    "bpf_refcount",
];

/// What the type tags of managed pointers hold (`btf_find_kptr` in `kernel/bpf/btf.c`): `kptr`, `kptr_untrusted`,
/// `percpu_kptr`, `uptr`, and `kptr_ref` until Linux 6.3.
const POINTER_TAGS: [&str; 2] = ["kptr", "uptr"];

/// Whether the kernel manages structures of this name.
pub fn is_managed_structure(name: &str) -> bool {
    STRUCTURES.contains(&name)
}

/// Whether the kernel manages pointers whose target has this type tag.
pub fn is_managed_pointer(tag: &str) -> bool {
    POINTER_TAGS.iter().any(|part| tag.contains(part))
}

/// A field that the kernel manages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ManagedField {
    /// Its bytes, counted from the start of the map's value.
    pub bytes: Range<u32>,
    /// It is a pointer, or may be one: programs may access it.
    pub is_pointer: bool,
}

/// The fields of a map's value that the kernel manages; a section of global data is the one value of a map.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct ManagedFields(Vec<ManagedField>);

impl ManagedFields {
    /// These.
    pub fn new(mut fields: Vec<ManagedField>) -> ManagedFields {
        fields.sort_by_key(|f| (f.bytes.start, f.bytes.end, f.is_pointer));
        fields.dedup();
        ManagedFields(fields)
    }

    /// Those of both.
    pub fn union(&self, other: &ManagedFields) -> ManagedFields {
        ManagedFields::new(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &ManagedField> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a read or write of `bytes` bytes, by a program that the verifier accepts, may be one of a managed field.
    /// `offset` counts from the start of the value; `None` if it is not known here. The verifier may know it all the same,
    /// because it walks path by path, so that any access as wide as a pointer may be one.
    pub fn may_be_accessed(&self, offset: Option<i64>, bytes: u32) -> bool {
        let overlaps = |at: i64, f: &ManagedField| {
            at < i64::from(f.bytes.end) && i64::from(f.bytes.start) < at.saturating_add(bytes.into())
        };
        self.0.iter().any(|f| match offset {
            Some(at) => overlaps(at, f),
            None => f.is_pointer && bytes == POINTER_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> ManagedFields {
        ManagedFields::new(vec![
            ManagedField { bytes: 16..24, is_pointer: true },
            ManagedField { bytes: 0..4, is_pointer: false },
        ])
    }

    #[test]
    fn accesses_at_known_offsets_are_of_the_fields_they_overlap() {
        let fields = fields();
        let of = |offset, bytes| fields.may_be_accessed(Some(offset), bytes);
        assert!(of(16, 8) && of(20, 4) && of(23, 1) && of(12, 8), "the pointer");
        assert!(of(0, 8) && of(3, 1), "the lock");
        assert!(!of(4, 4) && !of(8, 8) && !of(24, 8) && !of(-8, 8) && !of(i64::MAX, 8), "what lies between");
    }

    #[test]
    fn accesses_at_unknown_offsets_may_be_of_a_pointer_if_they_are_as_wide() {
        let fields = fields();
        assert!(fields.may_be_accessed(None, 8));
        assert!(!fields.may_be_accessed(None, 4));
        let lock = ManagedFields::new(vec![ManagedField { bytes: 0..4, is_pointer: false }]);
        assert!(!lock.may_be_accessed(None, 8), "no access to a lock is accepted");
        assert!(!ManagedFields::default().may_be_accessed(None, 8));
    }

    #[test]
    fn names_are_those_of_the_kernel() {
        for tag in ["kptr", "kptr_untrusted", "kptr_ref", "percpu_kptr", "uptr"] {
            assert!(is_managed_pointer(tag), "{tag}");
        }
        for tag in ["user", "percpu", "rcu", "arena"] {
            assert!(!is_managed_pointer(tag), "{tag}");
        }
        assert!(is_managed_structure("bpf_res_spin_lock") && !is_managed_structure("bpf_sock"));
    }
}
