//! What a program may call when it is only tried.
//!
//! A test run executes the program itself: what its helpers do, they do to this machine. So a helper or kernel function
//! counts as harmful unless it stands here. It stands here if everything it changes ends with the test run: registers,
//! stack, packet and context of the run, maps of the object (which are fresh and unpinned), sockets and routes of a
//! network namespace without any; or if it changes nothing at all. Reading is harmless, of other tasks' memory too.
//!
//! Left out on purpose, because their effect outlives the run or reaches others:
//! - `trace_printk`, `trace_vprintk`: write into the machine's trace buffer;
//! - `clone_redirect`, `tcp_send_ack`, `setsockopt`, `bind`: packets and sockets;
//! - `skb_set_tunnel_key`, `skb_set_tunnel_opt`: a record per CPU that packets in flight share (`md_dst` in
//!   `net/core/filter.c`);
//! - `probe_write_user`, `override_return`, `send_signal*`, `sys_bpf`, `sys_close`, `btf_find_by_name_kind` (opens a
//!   descriptor): act on the calling process;
//! - timers and work queues: run later, when nobody waits for them;
//! - whatever no type that can be run on demand may call.

use bpf_semantics::helpers::Helper;

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
        Callee::Helper(id) => Helper::get(id).is_some_and(|h| HELPERS.contains(&h.name)),
        Callee::Kfunc(name) => KFUNCS.contains(&name) || KFUNC_FAMILIES.iter().any(|family| name.starts_with(family)),
    }
}

/// Names as in the table of helpers.
const HELPERS: &[&str] = &[
    // Maps of the object.
    "map_lookup_elem",
    "map_update_elem",
    "map_delete_elem",
    "map_push_elem",
    "map_pop_elem",
    "map_peek_elem",
    "map_lookup_percpu_elem",
    "for_each_map_elem",
    "get_local_storage",
    "spin_lock",
    "spin_unlock",
    "kptr_xchg",
    "sk_storage_get",
    "sk_storage_delete",
    "task_storage_get",
    "task_storage_delete",
    "cgrp_storage_get",
    "cgrp_storage_delete",
    "perf_event_read",
    "perf_event_read_value",
    "perf_event_output",
    "ringbuf_output",
    "ringbuf_reserve",
    "ringbuf_submit",
    "ringbuf_discard",
    "ringbuf_query",
    "ringbuf_reserve_dynptr",
    "ringbuf_submit_dynptr",
    "ringbuf_discard_dynptr",
    "user_ringbuf_drain",
    "get_stackid",
    // The program's own memory and control flow; callbacks are looked into like any function.
    "tail_call",
    "loop",
    "strtol",
    "strtoul",
    "strncmp",
    "snprintf",
    "snprintf_btf",
    "csum_diff",
    "dynptr_from_mem",
    "dynptr_read",
    "dynptr_write",
    "dynptr_data",
    // Reads.
    "probe_read",
    "probe_read_str",
    "probe_read_user",
    "probe_read_user_str",
    "probe_read_kernel",
    "probe_read_kernel_str",
    "copy_from_user",
    "ktime_get_ns",
    "ktime_get_boot_ns",
    "ktime_get_coarse_ns",
    "ktime_get_tai_ns",
    "jiffies64",
    "get_prandom_u32",
    "get_smp_processor_id",
    "get_numa_node_id",
    "get_current_pid_tgid",
    "get_ns_current_pid_tgid",
    "get_current_uid_gid",
    "get_current_comm",
    "get_current_task",
    "get_current_task_btf",
    "task_pt_regs",
    "get_current_cgroup_id",
    "get_current_ancestor_cgroup_id",
    "current_task_under_cgroup",
    "get_cgroup_classid",
    "get_route_realm",
    "get_stack",
    "get_task_stack",
    "get_func_ip",
    "get_attach_cookie",
    "get_func_arg",
    "get_func_ret",
    "get_func_arg_cnt",
    "per_cpu_ptr",
    "this_cpu_ptr",
    "kallsyms_lookup_name",
    "get_retval",
    "set_retval",
    // The packet of the run, and the context it comes with.
    "skb_store_bytes",
    "skb_load_bytes",
    "skb_load_bytes_relative",
    "skb_pull_data",
    "skb_change_proto",
    "skb_change_type",
    "skb_change_tail",
    "skb_change_head",
    "skb_adjust_room",
    "skb_vlan_push",
    "skb_vlan_pop",
    "skb_ecn_set_ce",
    "skb_set_tstamp",
    "skb_get_tunnel_key",
    "skb_get_tunnel_opt",
    "skb_get_xfrm_state",
    "skb_under_cgroup",
    "skb_cgroup_id",
    "skb_ancestor_cgroup_id",
    "skb_cgroup_classid",
    "l3_csum_replace",
    "l4_csum_replace",
    "csum_update",
    "csum_level",
    "get_hash_recalc",
    "set_hash_invalid",
    "set_hash",
    "xdp_adjust_head",
    "xdp_adjust_meta",
    "xdp_adjust_tail",
    "xdp_get_buff_len",
    "xdp_load_bytes",
    "xdp_store_bytes",
    "check_mtu",
    // A wish that the hook would carry out, and a test run does not.
    "redirect",
    "redirect_map",
    "redirect_neigh",
    "redirect_peer",
    // Sockets and routes of the run's own network, of which there are none.
    "fib_lookup",
    "get_socket_cookie",
    "get_socket_uid",
    "get_netns_cookie",
    "sk_lookup_tcp",
    "sk_lookup_udp",
    "skc_lookup_tcp",
    "sk_release",
    "sk_fullsock",
    "tcp_sock",
    "get_listener_sock",
    "sk_cgroup_id",
    "sk_ancestor_cgroup_id",
    "skc_to_tcp6_sock",
    "skc_to_tcp_sock",
    "skc_to_tcp_timewait_sock",
    "skc_to_tcp_request_sock",
    "skc_to_udp6_sock",
    "skc_to_unix_sock",
    "skc_to_mptcp_sock",
    "tcp_check_syncookie",
    "tcp_raw_gen_syncookie_ipv4",
    "tcp_raw_gen_syncookie_ipv6",
    "tcp_raw_check_syncookie_ipv4",
    "tcp_raw_check_syncookie_ipv6",
];

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
    fn every_name_is_that_of_a_helper() {
        let known: Vec<&str> = (1..=211).filter_map(|id| Helper::get(id).map(|h| h.name)).collect();
        assert_eq!(HELPERS.iter().filter(|name| !known.contains(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

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
