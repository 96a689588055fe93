#!/usr/bin/env python3
"""Writes src/helpers.tsv: what every BPF helper does with its arguments.

The kernel documents its helpers in the comments of the uapi header, one C prototype each, in the form that
scripts/bpf_doc.py parses. This script reads those prototypes and the numbers (FN(...) in ___BPF_FUNC_MAPPER), and
gives every argument a class: what memory the helper may read or write through it, and how long that is.

The one idea: rules over types and parameter names settle the common shapes, and short override tables, whose source
is the kernel's own `struct bpf_func_proto` arg types (classes) and the bodies of the helpers (effects), settle the
rest. Where neither is sure, the answer is the weaker claim: `mem_rw` (read and written), `opaque` (escapes), `copy`,
`write-some`, `fail-partly`; a helper changes the context and is harmful unless a list says otherwise.

Rerun after a change of this script or of the header (only python3 is needed):

    python3 crates/platform/gen/helpers.py [HEADER]        # HEADER defaults to /usr/include/linux/bpf.h

Helper numbers are frozen uapi and no more helpers will come (kfuncs took over). A header older than 6.2 lacks
helpers 210 and 211; their prototypes are in LATER below. With another header only the last column may differ: checked
with those of Linux 6.1 and of libbpf 1.7 (which also calls kptr_xchg's first argument `dst`).
"""

import re
import sys
from pathlib import Path

HEADER = "/usr/include/linux/bpf.h"
OUTPUT = Path(__file__).resolve().parent.parent / "src" / "helpers.tsv"

# Helpers newer than the oldest header supported here: id, prototype (include/uapi/linux/bpf.h of Linux 6.2).
LATER = [
    (210, "void *bpf_cgrp_storage_get(struct bpf_map *map, struct cgroup *cgroup, void *value, u64 flags)"),
    (211, "long bpf_cgrp_storage_delete(struct bpf_map *map, struct cgroup *cgroup)"),
]

# The first helper of each release that has new ones: numbers are given in order, so that each helper has come with the last
# release whose first number is not above its own. Sources: BPF_FUNC_* in include/uapi/linux/bpf.h of the releases' tags, as
# collected by docs.ebpf.io (data/feature-versions.yaml) and, for 4.1's get_prandom_u32, docs/kernel-versions.md of bcc. Where bcc
# names an older release, it is the one under way when the commit was written; the tag of that release does not have the helper.
FIRST = {
    "3.19": 1, "4.1": 4, "4.2": 12, "4.3": 17, "4.4": 23, "4.5": 26, "4.6": 27, "4.8": 31, "4.9": 37, "4.10": 42,
    "4.11": 45, "4.12": 46, "4.13": 48, "4.14": 51, "4.15": 54, "4.16": 58, "4.17": 60, "4.18": 65, "4.19": 81,
    "4.20": 84, "5.0": 91, "5.1": 93, "5.2": 99, "5.3": 109, "5.4": 110, "5.5": 111, "5.6": 116, "5.7": 119, "5.8": 125,
    "5.9": 136, "5.10": 142, "5.11": 156, "5.12": 163, "5.13": 164, "5.14": 166, "5.15": 169, "5.16": 176, "5.17": 180,
    "5.18": 186, "5.19": 194, "6.0": 204, "6.1": 208, "6.2": 210,
}

# Tracing programs pass a BTF pointer where these prototypes say `ctx`: bpf_skb_output_proto, bpf_xdp_output_proto
# (kernel/trace/bpf_trace.c uses ARG_PTR_TO_BTF_ID).
CTX_IS_A_KERNEL_OBJECT = {"skb_output", "xdp_output"}

# Types of a first parameter that name the program's context.
CTX_TYPES = {
    "struct sk_buff *", "struct xdp_buff *", "struct pt_regs *", "struct bpf_sock_ops *", "struct bpf_sock_addr *",
    "struct bpf_sysctl *", "struct bpf_perf_event_data *", "struct sk_msg_buff *", "struct sk_reuseport_md *",
    "struct bpf_sk_lookup *",
}
CTX_NAMES = {"ctx", "skb", "bpf_socket"}

# Names that mark the scalar after a pointer as the length of what it points to.
LENGTH_NAMES = {
    "size", "len", "size_of_buf", "from_size", "to_size", "optlen", "buf_size", "addr_len", "plen", "param_len",
    "tuple_size", "iph_len", "th_len", "buf_len", "fmt_size", "data_len", "sz", "str_size", "btf_ptr_size", "ptr_size",
    "attr_size", "name_sz", "s1_sz",
}
MEMORY_TYPES = {
    "void *", "char *", "__be32 *", "u64 *", "struct bpf_tunnel_key *", "struct bpf_perf_event_value *",
    "struct sockaddr *", "struct bpf_xfrm_state *", "struct bpf_fib_lookup *", "struct bpf_sock_tuple *",
    "struct tcphdr *", "struct bpf_pidns_info *", "struct btf_ptr *", "struct bpf_redir_neigh *",
}

# One class per argument where the rules cannot know. After each group, the `struct bpf_func_proto` it was taken from.
#   ARG_PTR_TO_UNINIT_MEM              -> mem_w   (old contents are neither read nor required)
#   ARG_PTR_TO_MEM | MEM_RDONLY        -> mem_r
#   ARG_PTR_TO_MEM (| MEM_WRITE)       -> mem_rw  (older verifiers require it initialised)
#   ARG_PTR_TO_FIXED_SIZE_MEM          -> fixed_*
#   ARG_ANYTHING for an address        -> probe_r (kernel address) or scalar (user address)
#   ARG_DONTCARE (variable arguments)  -> vararg
ARGUMENTS = {
    # kernel/trace/bpf_trace.c
    "probe_read": {1: "mem_w:2", 3: "probe_r:2"},
    "probe_read_str": {1: "mem_w:2", 3: "probe_r:2"},
    "probe_read_user": {1: "mem_w:2", 3: "scalar"},
    "probe_read_user_str": {1: "mem_w:2", 3: "scalar"},
    "probe_read_kernel": {1: "mem_w:2", 3: "probe_r:2"},
    "probe_read_kernel_str": {1: "mem_w:2", 3: "probe_r:2"},
    "probe_write_user": {1: "scalar", 2: "mem_r:3"},
    "trace_printk": {1: "mem_r:2"},
    "trace_vprintk": {1: "mem_r:2", 3: "mem_r:4"},
    "perf_event_read_value": {3: "mem_w:4"},
    "perf_event_output": {4: "mem_r:5"},
    "perf_prog_read_value": {2: "mem_w:3"},
    "read_branch_records": {2: "mem_rw:3"},
    "get_branch_snapshot": {1: "mem_w:2"},
    "get_func_arg": {3: "fixed_w:8"},
    "get_func_ret": {2: "fixed_w:8"},
    "seq_printf": {2: "mem_r:3", 4: "mem_r:5"},
    "seq_write": {2: "mem_r:3"},
    "seq_printf_btf": {2: "mem_r:3"},
    "snprintf_btf": {1: "mem_rw:2", 3: "mem_r:4"},
    "d_path": {2: "mem_rw:3"},
    "skb_output": {4: "mem_r:5"},
    "xdp_output": {4: "mem_r:5"},
    # kernel/bpf/stackmap.c
    "get_stack": {2: "mem_w:3"},
    "get_task_stack": {2: "mem_w:3"},
    # kernel/bpf/helpers.c
    "get_current_comm": {1: "mem_w:2"},
    "get_ns_current_pid_tgid": {3: "mem_w:4"},
    "strtol": {1: "mem_r:2", 4: "fixed_w:8"},
    "strtoul": {1: "mem_r:2", 4: "fixed_w:8"},
    "strncmp": {1: "mem_r:2", 3: "opaque"},  # s2: ARG_PTR_TO_CONST_STR, a string in a frozen map
    "snprintf": {1: "mem_rw:2", 3: "opaque", 4: "mem_r:5"},  # fmt: ARG_PTR_TO_CONST_STR
    "copy_from_user": {1: "mem_w:2", 3: "scalar"},
    "copy_from_user_task": {1: "mem_w:2", 3: "scalar"},
    "dynptr_from_mem": {1: "opaque"},  # the dynptr keeps pointing to the memory after the call
    "dynptr_read": {1: "mem_w:2"},
    "dynptr_write": {3: "mem_r:4"},
    "dynptr_data": {3: "scalar"},
    "kptr_xchg": {1: "opaque", 2: "opaque"},
    # kernel/bpf/ringbuf.c: ARG_CONST_MAP_PTR under the name `void *ringbuf`
    "ringbuf_output": {1: "map", 2: "mem_r:3"},
    "ringbuf_reserve": {1: "map", 2: "scalar"},
    "ringbuf_query": {1: "map"},
    "ringbuf_reserve_dynptr": {1: "map", 2: "scalar"},
    "ringbuf_submit": {1: "opaque"},
    "ringbuf_discard": {1: "opaque"},
    # kernel/bpf/cgroup.c, kernel/bpf/local_storage.c
    "get_local_storage": {1: "map"},
    "sysctl_get_name": {2: "mem_rw:3"},
    "sysctl_get_current_value": {2: "mem_rw:3"},
    "sysctl_get_new_value": {2: "mem_rw:3"},
    "sysctl_set_new_value": {2: "mem_r:3"},
    # kernel/bpf/syscall.c, kernel/bpf/btf.c
    "sys_bpf": {2: "mem_rw:3"},
    "btf_find_by_name_kind": {1: "mem_r:2"},
    "kallsyms_lookup_name": {1: "mem_r:2", 4: "fixed_w:8"},
    # kernel/bpf/bpf_lsm.c
    "ima_inode_hash": {2: "mem_w:3"},
    "ima_file_hash": {2: "mem_w:3"},
    # net/core/filter.c
    "skb_load_bytes": {3: "mem_w:4"},
    "skb_load_bytes_relative": {3: "mem_w:4"},
    "xdp_load_bytes": {3: "mem_w:4"},
    "xdp_store_bytes": {3: "mem_r:4"},
    "skb_store_bytes": {3: "mem_r:4"},
    "skb_get_tunnel_key": {2: "mem_w:3"},
    "skb_set_tunnel_key": {2: "mem_r:3"},
    "skb_get_tunnel_opt": {2: "mem_w:3"},
    "skb_set_tunnel_opt": {2: "mem_r:3"},
    "skb_get_xfrm_state": {3: "mem_w:4"},
    "csum_diff": {1: "mem_r:2", 3: "mem_r:4"},
    "setsockopt": {4: "mem_r:5"},
    "getsockopt": {4: "mem_w:5"},
    "bind": {2: "mem_r:3"},
    "fib_lookup": {2: "mem_rw:3"},
    "check_mtu": {3: "fixed_rw:4"},
    "redirect_neigh": {2: "mem_r:3"},
    "lwt_push_encap": {3: "mem_r:4"},
    "lwt_seg6_store_bytes": {3: "mem_r:4"},
    "lwt_seg6_action": {3: "mem_r:4"},
    "sk_lookup_tcp": {2: "mem_r:3"},
    "sk_lookup_udp": {2: "mem_r:3"},
    "skc_lookup_tcp": {2: "mem_r:3"},
    "tcp_check_syncookie": {2: "mem_r:3", 4: "mem_r:5"},
    "tcp_gen_syncookie": {2: "mem_r:3", 4: "mem_r:5"},
    "tcp_raw_gen_syncookie_ipv4": {1: "fixed_r:20", 2: "mem_r:3"},
    "tcp_raw_gen_syncookie_ipv6": {1: "fixed_r:40", 2: "mem_r:3"},
    "tcp_raw_check_syncookie_ipv4": {1: "fixed_r:20", 2: "fixed_r:20"},
    "tcp_raw_check_syncookie_ipv6": {1: "fixed_r:40", 2: "fixed_r:20"},
    "load_hdr_opt": {2: "mem_rw:3"},
    "store_hdr_opt": {2: "mem_r:3"},
}

# Return classes that the C return type does not tell. RET_PTR_TO_MAP_VALUE_OR_NULL, RET_PTR_TO_RINGBUF_MEM_OR_NULL,
# RET_PTR_TO_SOCK_COMMON_OR_NULL and so on in the protos of the files named above.
RETURNS = {
    "map_lookup_elem": "map_value_or_null",
    "map_lookup_percpu_elem": "map_value_or_null",
    "sk_storage_get": "map_value_or_null",
    "inode_storage_get": "map_value_or_null",
    "task_storage_get": "map_value_or_null",
    "cgrp_storage_get": "map_value_or_null",
    "ringbuf_reserve": "mem_or_null",
    "sk_lookup_tcp": "sock_or_null",
    "sk_lookup_udp": "sock_or_null",
    "skc_lookup_tcp": "sock_or_null",
    "sk_fullsock": "sock_or_null",
    "tcp_sock": "sock_or_null",
    "get_listener_sock": "sock_or_null",
    "dynptr_data": "slice",
    "task_pt_regs": "ptr",  # `long` in the prototype, RET_PTR_TO_BTF_ID in the proto
    "tail_call": "noreturn_on_success",
}

FLAGS = {
    # bpf_helper_changes_pkt_data() of net/core/filter.c, Linux 6.18; and dynptr_write, which the verifier adds to it
    # for a dynptr over an skb (check_helper_call() in kernel/bpf/verifier.c). tail_call: since 6.13; newer kernels
    # narrow it to tail calls in subprograms.
    "moves_packet": """
        clone_redirect l3_csum_replace l4_csum_replace lwt_push_encap lwt_seg6_action lwt_seg6_adjust_srh
        lwt_seg6_store_bytes msg_pop_data msg_pull_data msg_push_data skb_adjust_room skb_change_head
        skb_change_proto skb_change_tail skb_pull_data skb_store_bytes skb_vlan_pop skb_vlan_push store_hdr_opt
        xdp_adjust_head xdp_adjust_meta xdp_adjust_tail tail_call dynptr_write""",
    # May change packet bytes the program can read: all of the above that write, and two that write in place.
    "writes_packet": """
        clone_redirect l3_csum_replace l4_csum_replace lwt_push_encap lwt_seg6_action lwt_seg6_adjust_srh
        lwt_seg6_store_bytes msg_pop_data msg_pull_data msg_push_data skb_adjust_room skb_change_head
        skb_change_proto skb_change_tail skb_pull_data skb_store_bytes skb_vlan_pop skb_vlan_push store_hdr_opt
        xdp_adjust_head xdp_adjust_meta xdp_adjust_tail tail_call dynptr_write
        xdp_store_bytes skb_ecn_set_ce""",
    # Nothing that anyone could observe changes, and no memory argument is read: an unused result is a dead call.
    # Two calls may still give two results (time, random numbers): never merge them.
    "pure_read": """
        ktime_get_ns ktime_get_boot_ns ktime_get_coarse_ns ktime_get_tai_ns jiffies64 get_prandom_u32
        get_smp_processor_id get_numa_node_id get_current_pid_tgid get_current_uid_gid get_current_task
        get_current_task_btf get_current_cgroup_id get_current_ancestor_cgroup_id get_cgroup_classid
        get_route_realm get_socket_uid skb_cgroup_id skb_ancestor_cgroup_id skb_cgroup_classid
        get_func_ip get_attach_cookie get_func_arg_cnt get_retval xdp_get_buff_len""",
    # The program's own function runs, during the call or (timer) later.
    "calls_back": "loop for_each_map_elem timer_set_callback find_vma user_ringbuf_drain",
    # A map's elements, their number, or what is stored in them may differ afterwards.
    "map_write": """
        map_update_elem map_delete_elem map_push_elem map_pop_elem sock_map_update sock_hash_update get_stackid
        sk_storage_get sk_storage_delete inode_storage_get inode_storage_delete task_storage_get
        task_storage_delete cgrp_storage_get cgrp_storage_delete kptr_xchg dynptr_write sys_bpf tail_call
        timer_init timer_set_callback timer_start timer_cancel user_ringbuf_drain
        spin_lock spin_unlock""",
    # Addresses stored in the memory read are followed in turn (%s arguments, struct btf_ptr, union bpf_attr).
    "indirect": "trace_printk trace_vprintk seq_printf snprintf snprintf_btf seq_printf_btf sys_bpf",
    # What it does is not described any closer: like a call without a row.
    "everything": "loop for_each_map_elem timer_set_callback find_vma user_ringbuf_drain sys_bpf",
    # The context's fields (other than packet pointers) surely read back as before. Checked against the bodies: these
    # read the context, or do not get at it. All others may change it, whether or not they take it: set_retval
    # (run_ctx->retval, which is ctx->retval), override_return (pt_regs), get_hash_recalc (skb->hash) ...
    "context_same": """
        map_lookup_elem map_update_elem map_delete_elem map_push_elem map_pop_elem map_peek_elem
        map_lookup_percpu_elem probe_read probe_read_str probe_read_user probe_read_user_str probe_read_kernel
        probe_read_kernel_str copy_from_user ktime_get_ns ktime_get_boot_ns ktime_get_coarse_ns ktime_get_tai_ns
        jiffies64 get_prandom_u32 get_smp_processor_id get_numa_node_id get_current_pid_tgid get_current_uid_gid
        get_current_comm get_current_task get_current_task_btf get_current_cgroup_id
        get_current_ancestor_cgroup_id current_task_under_cgroup get_ns_current_pid_tgid task_pt_regs
        get_cgroup_classid skb_cgroup_classid skb_cgroup_id skb_ancestor_cgroup_id skb_under_cgroup get_route_realm
        get_socket_cookie get_socket_uid get_netns_cookie skb_load_bytes skb_load_bytes_relative skb_get_tunnel_key
        skb_get_tunnel_opt skb_get_xfrm_state csum_diff fib_lookup check_mtu redirect redirect_map redirect_neigh
        redirect_peer perf_event_read perf_event_read_value perf_prog_read_value perf_event_output skb_output
        xdp_output get_stackid get_stack get_task_stack read_branch_records get_branch_snapshot trace_printk
        trace_vprintk seq_printf seq_write seq_printf_btf snprintf snprintf_btf strtol strtoul strncmp d_path
        ringbuf_output ringbuf_reserve ringbuf_submit ringbuf_discard ringbuf_query ringbuf_reserve_dynptr
        ringbuf_submit_dynptr ringbuf_discard_dynptr dynptr_from_mem dynptr_read dynptr_data
        get_local_storage sk_storage_get sk_storage_delete inode_storage_get inode_storage_delete task_storage_get
        task_storage_delete cgrp_storage_get cgrp_storage_delete sk_lookup_tcp sk_lookup_udp skc_lookup_tcp
        sk_release sk_fullsock tcp_sock get_listener_sock sk_cgroup_id sk_ancestor_cgroup_id sock_from_file
        skc_to_tcp6_sock skc_to_tcp_sock skc_to_tcp_timewait_sock skc_to_tcp_request_sock skc_to_udp6_sock
        skc_to_unix_sock skc_to_mptcp_sock tcp_check_syncookie tcp_gen_syncookie tcp_raw_gen_syncookie_ipv4
        tcp_raw_gen_syncookie_ipv6 tcp_raw_check_syncookie_ipv4 tcp_raw_check_syncookie_ipv6 per_cpu_ptr
        this_cpu_ptr btf_find_by_name_kind kallsyms_lookup_name get_func_ip get_attach_cookie get_func_arg
        get_func_ret get_func_arg_cnt get_retval xdp_get_buff_len xdp_load_bytes ima_inode_hash ima_file_hash
        spin_lock spin_unlock timer_init timer_start timer_cancel kptr_xchg""",
    # Memory that a helper handed out ends with the call: the argument is null, or not to be used any more
    # (OBJ_RELEASE with ARG_PTR_TO_RINGBUF_MEM; of a dynptr the slices end).
    "fresh_ends": "ringbuf_submit ringbuf_discard ringbuf_submit_dynptr ringbuf_discard_dynptr",
    # May write memory that a helper handed out, other than through an argument that points there.
    "fresh_writes": "dynptr_write",
    # The result is the same for all calls of one run. Programs stay on one CPU while they run: bpf_prog_run_pin_on_cpu
    # of include/linux/filter.h, __bpf_prog_enter* of kernel/bpf/trampoline.c (sleepable ones since 5.12); and in one
    # task.
    "constant": """
        get_smp_processor_id get_numa_node_id get_current_task get_current_task_btf get_func_ip
        get_attach_cookie get_func_arg_cnt""",
    # Another run of the same program with the same input may get something else: clocks, random numbers, cookies,
    # counters, what the system changes meanwhile.
    "volatile": """
        ktime_get_ns ktime_get_boot_ns ktime_get_coarse_ns ktime_get_tai_ns jiffies64 get_prandom_u32
        get_smp_processor_id get_numa_node_id get_current_task get_current_task_btf get_current_pid_tgid
        get_current_cgroup_id get_current_ancestor_cgroup_id get_socket_cookie get_socket_uid get_netns_cookie
        perf_event_read perf_event_read_value perf_prog_read_value get_stack get_stackid get_task_stack task_pt_regs
        read_branch_records get_branch_snapshot get_hash_recalc tcp_gen_syncookie tcp_check_syncookie
        tcp_raw_gen_syncookie_ipv4 tcp_raw_gen_syncookie_ipv6 tcp_raw_check_syncookie_ipv4
        tcp_raw_check_syncookie_ipv6 probe_read probe_read_str probe_read_user probe_read_user_str probe_read_kernel
        probe_read_kernel_str copy_from_user copy_from_user_task get_current_comm sk_lookup_tcp sk_lookup_udp
        skc_lookup_tcp timer_start timer_cancel timer_init timer_set_callback ringbuf_query snprintf_btf""",
    # Calling it in BPF_PROG_TEST_RUN, in a network namespace of its own and with maps of its own, changes nothing
    # else on the machine. A redirect only gives a code there (bpf_test_run, net/bpf/test_run.c). Not: clone_redirect
    # and tcp_send_ack send; trace_printk and trace_vprintk write to the trace pipe everybody reads; storage of
    # sockets, inodes, tasks and cgroups belongs to others; sk_assign, setsockopt, bind and rc_* act on real devices
    # and sockets; a timer runs on after the test; tail_call runs another program, which has to be asked about itself.
    "harmless": """
        map_lookup_elem map_update_elem map_delete_elem map_push_elem map_pop_elem map_peek_elem
        map_lookup_percpu_elem probe_read probe_read_str probe_read_user probe_read_user_str probe_read_kernel
        probe_read_kernel_str copy_from_user ktime_get_ns ktime_get_boot_ns ktime_get_coarse_ns ktime_get_tai_ns
        jiffies64 get_prandom_u32 get_smp_processor_id get_numa_node_id get_current_pid_tgid get_current_uid_gid
        get_current_comm get_current_task get_current_task_btf get_current_cgroup_id
        get_current_ancestor_cgroup_id current_task_under_cgroup get_ns_current_pid_tgid task_pt_regs
        get_cgroup_classid skb_cgroup_classid skb_cgroup_id skb_ancestor_cgroup_id skb_under_cgroup get_route_realm
        get_socket_cookie get_socket_uid get_netns_cookie skb_load_bytes skb_load_bytes_relative skb_store_bytes
        l3_csum_replace l4_csum_replace skb_vlan_push skb_vlan_pop skb_get_tunnel_key 
        skb_get_tunnel_opt skb_get_xfrm_state csum_diff csum_update csum_level set_hash
        set_hash_invalid get_hash_recalc skb_change_proto skb_change_type skb_change_tail skb_change_head
        skb_pull_data skb_adjust_room skb_ecn_set_ce skb_set_tstamp fib_lookup check_mtu redirect redirect_map
        redirect_neigh redirect_peer xdp_adjust_head xdp_adjust_meta xdp_adjust_tail xdp_get_buff_len xdp_load_bytes
        xdp_store_bytes perf_event_read perf_event_read_value perf_prog_read_value perf_event_output skb_output
        xdp_output get_stackid get_stack get_task_stack read_branch_records get_branch_snapshot snprintf
        snprintf_btf strtol strtoul strncmp d_path ringbuf_output ringbuf_reserve ringbuf_submit ringbuf_discard
        ringbuf_query ringbuf_reserve_dynptr ringbuf_submit_dynptr ringbuf_discard_dynptr dynptr_from_mem
        dynptr_read dynptr_write dynptr_data user_ringbuf_drain get_local_storage sk_lookup_tcp sk_lookup_udp
        skc_lookup_tcp sk_release sk_fullsock tcp_sock get_listener_sock sk_cgroup_id sk_ancestor_cgroup_id
        sock_from_file skc_to_tcp6_sock skc_to_tcp_sock skc_to_tcp_timewait_sock skc_to_tcp_request_sock
        skc_to_udp6_sock skc_to_unix_sock skc_to_mptcp_sock tcp_check_syncookie tcp_gen_syncookie
        tcp_raw_gen_syncookie_ipv4 tcp_raw_gen_syncookie_ipv6 tcp_raw_check_syncookie_ipv4
        tcp_raw_check_syncookie_ipv6 per_cpu_ptr this_cpu_ptr kallsyms_lookup_name
        get_func_ip get_attach_cookie get_func_arg get_func_ret get_func_arg_cnt get_retval set_retval lwt_push_encap
        lwt_seg6_store_bytes lwt_seg6_adjust_srh spin_lock spin_unlock 
        loop for_each_map_elem kptr_xchg""",
}

# What the helper does with the memory that an argument of this class points to, unless ACCESS says otherwise.
ACCESS_BY_CLASS = {
    "map": "-", "ctx": "-", "size": "-", "scalar": "-", "flags": "-", "func": "-",
    "key": "read copy", "value": "read copy", "outvalue": "read copy write-all fail-partly",
    "mem_r": "read copy", "fixed_r": "read copy", "probe_r": "read copy", "vararg": "read copy",
    "mem_w": "write-some fail-partly", "fixed_w": "write-some fail-partly",
    "mem_rw": "read copy write-some fail-partly", "fixed_rw": "read copy write-some fail-partly",
    "opaque": "read copy keep write-some fail-partly", "cbctx": "read copy keep write-some fail-partly",
}

# A typed kernel object (ARG_PTR_TO_BTF_ID, ARG_PTR_TO_SOCK_COMMON ...): the verifier lets no memory of the program be
# one. Other opaque arguments of these helpers are given in ACCESS.
KERNEL_OBJECTS = {
    "struct bpf_sock *", "struct seq_file *", "struct inode *", "struct task_struct *", "struct path *",
    "struct linux_binprm *", "struct file *", "struct cgroup *",
}
KERNEL_OBJECT_NAMES = {"sk", "sock", "tp", "percpu_ptr", "tsk"}

# A dynptr on the stack, sizeof(struct bpf_dynptr) (include/uapi/linux/bpf.h).
DYNPTR_BYTES = 16

# Rows whose bodies say more than the class does; the helper's function in the file of its row (SOURCES) is the source.
_CLEARED = "write-all fail-zeroed"  # an error path clears all bytes: memset(dst, 0, size)
_OUTPUT = "read write-some fail-partly"  # not read, but older verifiers want it initialised
ACCESS = {
    "probe_read": {1: _CLEARED},
    "probe_read_user": {1: _CLEARED},
    "probe_read_kernel": {1: _CLEARED},
    "probe_read_str": {1: "write-some fail-zeroed"},  # strncpy_from_*_nofault: up to the NUL
    "probe_read_user_str": {1: "write-some fail-zeroed"},
    "probe_read_kernel_str": {1: "write-some fail-zeroed"},
    "copy_from_user": {1: _CLEARED},
    "copy_from_user_task": {1: "write-all fail-partly"},  # flags != 0: untouched; a fault: cleared
    "get_current_comm": {1: "write-some fail-zeroed"},  # strscpy, which does not pad, from 5.17 to 6.3 (f3f213497797)
    "skb_load_bytes": {3: _CLEARED},
    "skb_load_bytes_relative": {3: _CLEARED},
    "skb_get_tunnel_key": {2: _CLEARED},  # all fields since 4.17 (1fbc2e0cfcf0)
    "skb_get_tunnel_opt": {2: _CLEARED},
    "skb_get_xfrm_state": {3: _CLEARED},  # all fields since 4.17 (1fbc2e0cfcf0)
    "perf_event_read_value": {3: _CLEARED},
    "perf_prog_read_value": {2: _CLEARED},
    "get_ns_current_pid_tgid": {3: _CLEARED},
    # get_stack: __bpf_get_stack clears on its own errors, but raw tracepoints (-EBUSY of get_bpf_raw_tp_regs) and perf
    # events (bad flags) return before it; get_task_stack where the task's stack is gone. So: the class's default.
    "xdp_load_bytes": {3: "write-all fail-untouched"},
    "get_func_arg": {3: "write-all fail-untouched"},
    "get_func_ret": {2: "write-all fail-untouched"},
    "strtol": {4: "write-all fail-partly"},  # untouched before 6.12, 0 since
    "strtoul": {4: "write-all fail-partly"},
    "kallsyms_lookup_name": {4: "write-all fail-partly"},
    "check_mtu": {3: "read copy write-all fail-partly"},
    "dynptr_read": {1: "write-all fail-partly", 3: "read"},
    "dynptr_write": {1: "read"},
    "dynptr_data": {1: "read"},
    "dynptr_from_mem": {1: "read copy keep", 4: "write-some fail-partly"},
    "ringbuf_reserve_dynptr": {4: "write-some fail-partly"},
    "ringbuf_submit_dynptr": {1: "read write-some fail-partly"},
    "ringbuf_discard_dynptr": {1: "read write-some fail-partly"},
    "d_path": {2: _OUTPUT},
    "snprintf": {1: _OUTPUT, 3: "read copy"},
    "snprintf_btf": {1: _OUTPUT},
    "map_peek_elem": {2: "read copy write-some fail-partly"},  # a bloom filter leaves the value alone
    "strncmp": {3: "read copy"},
    "read_branch_records": {2: _OUTPUT},
    "sysctl_get_name": {2: _OUTPUT},
    "sysctl_get_current_value": {2: _OUTPUT},
    "sysctl_get_new_value": {2: _OUTPUT},
    "skb_output": {1: "object"},
    "xdp_output": {1: "object"},
}

# The file whose bpf_NAME (or BPF_CALL of it) is the helper; net/core/filter.c for all others.
SOURCES = {
    "kernel/bpf/helpers.c": """
        map_lookup_elem map_update_elem map_delete_elem map_push_elem map_pop_elem map_peek_elem
        map_lookup_percpu_elem get_smp_processor_id get_numa_node_id ktime_get_ns ktime_get_boot_ns
        ktime_get_coarse_ns ktime_get_tai_ns jiffies64 get_current_pid_tgid get_current_uid_gid get_current_comm
        get_current_cgroup_id get_current_ancestor_cgroup_id get_ns_current_pid_tgid spin_lock spin_unlock strtol
        strtoul strncmp copy_from_user copy_from_user_task per_cpu_ptr this_cpu_ptr snprintf timer_init
        timer_set_callback timer_start timer_cancel kptr_xchg dynptr_from_mem dynptr_read dynptr_write dynptr_data
        get_local_storage""",
    "kernel/bpf/core.c": "tail_call get_prandom_u32",
    "kernel/bpf/stackmap.c": "get_stackid get_stack get_task_stack",
    "kernel/bpf/ringbuf.c": """
        ringbuf_output ringbuf_reserve ringbuf_submit ringbuf_discard ringbuf_query ringbuf_reserve_dynptr
        ringbuf_submit_dynptr ringbuf_discard_dynptr user_ringbuf_drain""",
    "kernel/bpf/cgroup.c": """
        get_retval set_retval sysctl_get_name sysctl_get_current_value sysctl_get_new_value sysctl_set_new_value""",
    "kernel/bpf/syscall.c": "sys_bpf sys_close kallsyms_lookup_name",
    "kernel/bpf/btf.c": "btf_find_by_name_kind",
    "kernel/bpf/bpf_lsm.c": "bprm_opts_set ima_inode_hash ima_file_hash",
    "kernel/bpf/bpf_iter.c": "for_each_map_elem loop",
    "kernel/bpf/task_iter.c": "find_vma",
    "kernel/bpf/bpf_inode_storage.c": "inode_storage_get inode_storage_delete",
    "kernel/bpf/bpf_task_storage.c": "task_storage_get task_storage_delete",
    "kernel/bpf/bpf_cgrp_storage.c": "cgrp_storage_get cgrp_storage_delete",
    "kernel/trace/bpf_trace.c": """
        probe_read probe_read_str probe_read_user probe_read_user_str probe_read_kernel probe_read_kernel_str
        probe_write_user trace_printk trace_vprintk seq_printf seq_write seq_printf_btf perf_event_read
        perf_event_read_value perf_event_output get_current_task get_current_task_btf task_pt_regs
        current_task_under_cgroup override_return send_signal send_signal_thread perf_prog_read_value
        read_branch_records get_branch_snapshot get_func_ip get_attach_cookie get_func_arg get_func_ret
        get_func_arg_cnt snprintf_btf d_path""",
    "net/core/bpf_sk_storage.c": "sk_storage_get sk_storage_delete",
    "net/core/sock_map.c": """
        sock_map_update sock_hash_update sk_redirect_map sk_redirect_hash msg_redirect_map msg_redirect_hash""",
    "net/ipv4/bpf_tcp_ca.c": "tcp_send_ack",
    "drivers/media/rc/bpf-lirc.c": "rc_repeat rc_keydown rc_pointer_rel",
}

LEGEND = """\
What every BPF helper does with its arguments. Generated by gen/helpers.py from the kernel's uapi header: do not edit.
columns: id, name, ret, args (`;`-separated `class:name`, the name after the last colon), access (`;`-separated words,
  one group for each argument), flags (words), source, since, prototype
classes: N is the number of the argument (from 1) that holds the length; BYTES is a length
  map        the map                            key, value  key_size / value_size bytes (value may be NULL)
  outvalue   value_size bytes may be written; map_peek_elem of a bloom filter READS them instead
  ctx        the program's context              mem_r:N  mem_w:N  mem_rw:N  memory read / written / both (or NULL)
  fixed_r:BYTES  fixed_w:BYTES  fixed_rw:BYTES  the same with a constant length
  probe_r:N  any address, from which up to N bytes are probed: usually kernel memory, legally the program's own stack
  size       the length of a memory argument    scalar, flags  plain values
  vararg     may be uninitialised; else a value, or a pointer to a string that is read
  func       a function of this program         cbctx  pointer (or NULL) that the callback gets
  opaque     kernel objects, locks, timers, kptrs, constant strings; opaque:BYTES  a dynptr on the stack
access: what happens to the memory an argument points to; `-` if it is none
  read         up to all of its bytes are read, or have to be initialised
  copy         what is read may come back: it is stored where someone can read it, or the result tells it
  keep         the address is remembered after the call
  write-all    all bytes are written where the call succeeds     write-some  perhaps some of them
  fail-zeroed  where it fails, all bytes are zero afterwards     fail-untouched  as before     fail-partly  anything
  object       a kernel object, never memory of the program
ret: scalar, void (r0 unreadable), map_value_or_null, mem_or_null (fresh), sock_or_null, ptr (any other, maybe NULL),
  slice (NULL, or a part of what a dynptr describes),
  noreturn_on_success (falls through with a scalar on failure)
flags: see the comments of FLAGS in gen/helpers.py
source: the kernel file (Linux 6.18) that has the helper's body
since: the first release of the kernel that has the helper"""

PROTOTYPE = re.compile(r" \* ?((?:.+ \**)bpf_\w+\(.*\))$")
PARTS = re.compile(r"(?P<ret>.+?[ *])bpf_(?P<name>\w+)\((?P<args>.*)\)$")


def documented_prototypes(header):
    """name -> the C prototypes in the helper documentation (a few helpers have one per program type)."""
    comment = header.split("Start of BPF helper function descriptions:", 1)[1].split("*/", 1)[0]
    prototypes = {}
    for line in comment.splitlines():
        match = PROTOTYPE.match(line)
        if match:
            text = match.group(1)
            prototypes.setdefault(PARTS.match(text).group("name"), []).append(text)
    return prototypes


def numbered_names(header):
    """The helper numbers, from either form of the mapper: FN(name) in order, or FN(name, number, ...)."""
    mapper = header.split("__BPF_FUNC_MAPPER(FN", 1)[1]
    mapper = mapper.split("\n\n", 1)[0]
    names = {}
    for position, (name, number) in enumerate(re.findall(r"\bFN\((\w+)(?:, (\d+))?", mapper)):
        names[int(number) if number else position] = name
    names.pop(0)  # unspec
    return names


def parameters(prototype):
    """[(C type, name)] of a prototype; `...` becomes the three arguments that are left of five."""
    text = PARTS.match(prototype).group("args")
    if text == "void":
        return []
    found = []
    for part in text.split(", "):
        if part == "...":
            found += [("...", f"arg{number}") for number in range(len(found) + 1, 6)]
        else:
            match = re.match(r"(.*?[ *])(\w+)$", part)
            found.append((match.group(1).strip(), match.group(2)))
    return found


def length_of(position, params):
    """The argument number of the length that belongs to the pointer at `position`: the next argument, by custom."""
    if position < len(params):
        ctype, name = params[position]
        if "*" not in ctype and name in LENGTH_NAMES:
            return position + 1
    return None


def by_rule(helper, position, params):
    """The class that type and name alone tell."""
    ctype, name = params[position - 1]
    bare = ctype.removeprefix("const ")
    if ctype == "...":
        return "vararg"
    if "*" not in ctype:
        return "flags" if name == "flags" else "scalar"
    if bare == "struct bpf_map *":
        return "map"
    if position == 1 and (bare in CTX_TYPES or name in CTX_NAMES):
        return "opaque" if helper in CTX_IS_A_KERNEL_OBJECT else "ctx"
    if name == "callback_fn":
        return "func"
    if name == "callback_ctx" or (helper == "user_ringbuf_drain" and name == "ctx"):
        return "cbctx"
    if bare == "void *" and name == "key":
        return "key"
    if bare == "void *" and name == "value":
        return "outvalue" if helper in ("map_pop_elem", "map_peek_elem") else "value"
    if bare == "struct bpf_dynptr *":
        return f"opaque:{DYNPTR_BYTES}"
    length = length_of(position, params)
    if length and bare in MEMORY_TYPES:
        return f"mem_r:{length}" if ctype.startswith("const ") else f"mem_rw:{length}"
    return "opaque"


def argument_classes(helper, params):
    overrides = ARGUMENTS.get(helper, {})
    classes = [overrides.get(i, by_rule(helper, i, params)) for i in range(1, len(params) + 1)]
    for word in list(classes):
        kind, _, number = word.partition(":")
        if kind in ("mem_r", "mem_w", "mem_rw", "probe_r"):
            length = int(number) - 1
            assert "*" not in params[length][0], f"{helper}: argument {number} is no length"
            classes[length] = "size"
    return classes


def accesses(helper, classes, params):
    """What happens to the memory behind each argument."""
    overrides = ACCESS.get(helper, {})
    for position, (word, (ctype, name)) in enumerate(zip(classes, params), 1):
        kind = word.split(":")[0]
        typed = ctype.removeprefix("const ") in KERNEL_OBJECTS or name in KERNEL_OBJECT_NAMES
        usual = "object" if kind == "opaque" and typed else ACCESS_BY_CLASS[kind]
        yield overrides.get(position, usual)


def source(helper):
    found = [file for file, names in SOURCES.items() if helper in names.split()]
    assert len(found) <= 1, f"{helper} has several sources"
    return found[0] if found else "net/core/filter.c"


def return_class(helper, prototype):
    ctype = PARTS.match(prototype).group("ret").strip()
    if helper in RETURNS:
        return RETURNS[helper]
    if "*" in ctype:
        return "ptr"
    return "void" if ctype == "void" else "scalar"


def rows(header):
    prototypes = documented_prototypes(header)
    names = numbered_names(header)
    for number, text in LATER:
        name = PARTS.match(text).group("name")
        assert names.setdefault(number, name) == name, f"{number} is {names[number]}, not {name}"
        prototypes.setdefault(name, [text])
    known = set(names.values())
    lists = [*map(str.split, FLAGS.values()), *map(str.split, SOURCES.values())]
    for table in [ARGUMENTS, RETURNS, CTX_IS_A_KERNEL_OBJECT, ACCESS, *lists]:
        assert known.issuperset(table), f"no such helper: {set(table) - known}"
    assert sorted(names) == list(range(1, len(names) + 1)), "helper numbers are dense"
    for number, name in sorted(names.items()):
        prototype = prototypes[name][0]
        params = parameters(prototype)
        classes = argument_classes(name, params)
        args = ";".join(f"{c}:{p}" for c, (_, p) in zip(classes, params))
        access = ";".join(accesses(name, classes, params))
        flags = " ".join(word for word, helpers in FLAGS.items() if name in helpers.split())
        returns = return_class(name, prototype)
        since = max((first, release) for release, first in FIRST.items() if first <= number)[1]
        yield [str(number), name, returns, args, access, flags, source(name), since, " | ".join(prototypes[name])]


def main():
    header = Path(sys.argv[1] if len(sys.argv) > 1 else HEADER).read_text()
    lines = [f"# {line}" for line in LEGEND.splitlines()]
    table = list(rows(header))
    lines += ["\t".join(row) for row in table]
    OUTPUT.write_text("\n".join(lines) + "\n")
    print(f"{OUTPUT}: {len(table)} helpers")


if __name__ == "__main__":
    main()
