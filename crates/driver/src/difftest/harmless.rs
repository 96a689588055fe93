//! What a program may call when it is only tried.
//!
//! A test run executes the program itself: what its helpers do, they do to this machine. So a helper or kernel function
//! counts as harmful unless it is known to be harmless. The helpers' table ([`bpf_platform::Effects::harmless`]) knows
//! those of which everything that they change ends with the test run: registers, stack, packet and context of the run,
//! maps of the object (which are fresh and unpinned), sockets and routes of a network namespace without any. Reading is
//! harmless, of other tasks' memory too. Kernel functions stand here.

use bpf_platform::helpers::Helper;

/// Somebody a program calls who is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee<'a> {
    /// A helper, by its number in `enum bpf_func_id`.
    Helper(i32),
    /// A kernel function, by its name.
    Kfunc(&'a str),
}

/// Whether nothing of a call is left, and nobody else sees anything of it, once a test run is over.
pub fn harmless_in_test_run(callee: Callee<'_>) -> bool {
    match callee {
        // What a tail call leads to is looked into by itself.
        Callee::Helper(id) => Helper::get(id).is_some_and(|h| h.effects.harmless || h.effects.is_tail_call()),
        Callee::Kfunc(name) => KFUNCS.contains(&name) || KFUNC_FAMILIES.iter().any(|family| name.starts_with(family)),
    }
}

/// Kernel functions (`kernel/bpf/helpers.c`, `net/core/{filter,xdp}.c`).
const KFUNCS: &[&str] = &[
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
const KFUNC_FAMILIES: &[&str] =
    &["bpf_list_", "bpf_rbtree_", "bpf_dynptr_", "bpf_iter_num_", "bpf_iter_bits_", "bpf_cpumask_"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_harmless_is_harmful() {
        let (map_lookup, clone_redirect, unheard_of) = (1, 13, 5000);
        assert!(harmless_in_test_run(Callee::Helper(map_lookup)));
        assert!(!harmless_in_test_run(Callee::Helper(clone_redirect)));
        assert!(!harmless_in_test_run(Callee::Helper(unheard_of)));
        assert!(harmless_in_test_run(Callee::Kfunc("bpf_dynptr_from_xdp")));
        assert!(!harmless_in_test_run(Callee::Kfunc("bpf_wq_start_impl")));
        assert!(!harmless_in_test_run(Callee::Kfunc("bpf_xdp_ct_alloc")));
    }
}
