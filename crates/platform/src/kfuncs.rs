//! Kernel functions, by their names: what the optimizer has to know of them beside their BTF.
//!
//! A suffix of three underscores and more may follow a name, which libbpf takes off (`bpf_core_essential_name_len` in
//! tools/lib/bpf/libbpf.c); so names are compared by how they begin.

/// Beginnings of the names of kernel functions that work on objects of types that the program defines: what the object's
/// size is, where its counter or node is, and which of its fields must be given back (`kptr_struct_meta`, `obj_new_size`,
/// `insert_off`; `check_kfunc_call` and `fixup_kfunc_call` in kernel/bpf/verifier.c). A suffix may follow.
const TRANSLATED_FAMILIES: &[&str] =
    &["bpf_obj_", "bpf_percpu_obj_", "bpf_refcount_", "bpf_list_push_", "bpf_rbtree_add"];

/// The kernel function that makes a pointer of any number (`bpf_rdonly_cast` in kernel/bpf/helpers.c); a suffix may follow.
const CAST: &str = "bpf_rdonly_cast";

/// The kernel function that ends a program as an exception; a suffix may follow, which libbpf takes off
/// (`bpf_core_essential_name_len` in tools/lib/bpf/libbpf.c).
const THROW: &str = "bpf_throw";

/// Whether a call of this kernel function is translated by the types that the verifier has seen there.
pub fn is_kfunc_translated_by_type(name: &str) -> bool {
    TRANSLATED_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Whether this kernel function may return any number as a pointer, through which a load must not fault.
pub fn makes_any_address(name: &str) -> bool {
    name.starts_with(CAST)
}

/// Whether this kernel function throws (`bpf_throw` in kernel/bpf/helpers.c): a number that becomes a program's result.
pub fn throws(name: &str) -> bool {
    name.starts_with(THROW)
}

/// Whether nothing of a call is left, and nobody else sees anything of it, once a test run is over. What is not known is
/// harmful.
pub fn is_kfunc_harmless_in_test_run(name: &str) -> bool {
    HARMLESS.contains(&name) || HARMLESS_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Kernel functions of which nothing is left once a test run is over (`kernel/bpf/helpers.c`, `net/core/{filter,xdp}.c`).
const HARMLESS: &[&str] = &[
    "bpf_obj_new_impl",
    "bpf_obj_drop_impl",
    "bpf_percpu_obj_new_impl",
    "bpf_percpu_obj_drop_impl",
    "bpf_refcount_acquire_impl",
    "bpf_rcu_read_lock",
    "bpf_rcu_read_unlock",
    "bpf_cast_to_kern_ctx",
    "bpf_rdonly_cast",
    "bpf_map_sum_elem_count",
    "bpf_xdp_metadata_rx_timestamp",
    "bpf_xdp_metadata_rx_hash",
    "bpf_xdp_metadata_rx_vlan_tag",
];

/// Beginnings of the names of kernel functions that work on the program's own objects: lists and trees of its maps, its
/// dynptrs, counters and masks.
const HARMLESS_FAMILIES: &[&str] =
    &["bpf_list_", "bpf_rbtree_", "bpf_dynptr_", "bpf_iter_num_", "bpf_iter_bits_", "bpf_cpumask_"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_program_are_translated_by_type_and_locks_are_not() {
        assert!(is_kfunc_translated_by_type("bpf_obj_drop_impl") && !is_kfunc_translated_by_type("bpf_rcu_read_lock"));
    }
}
