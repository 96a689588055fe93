//! What the verifier demands of calls of helpers, beyond the classes of their arguments.
//!
//! Sources: the `bpf_func_proto`s of the helpers (each in the file that its row names) and `check_helper_call` in
//! `kernel/bpf/verifier.c`. Helpers are meant by name.

use crate::helpers::Helper;

impl Helper {
    /// Takes a reference that must be given back (`is_acquire_function`).
    pub fn acquires(&self) -> bool {
        matches!(self.name, "sk_lookup_tcp" | "sk_lookup_udp" | "skc_lookup_tcp" | "ringbuf_reserve")
    }

    /// Gives a reference back (`OBJ_RELEASE`).
    pub fn releases(&self) -> bool {
        matches!(self.name, "sk_release" | "ringbuf_submit" | "ringbuf_discard")
    }

    /// May be given packet data where it wants memory (`pkt_access`).
    pub fn takes_packet(&self) -> bool {
        matches!(
            self.name,
            "map_lookup_elem"
                | "map_update_elem"
                | "map_delete_elem"
                | "csum_diff"
                | "sk_lookup_tcp"
                | "sk_lookup_udp"
                | "map_push_elem"
                | "map_pop_elem"
                | "map_peek_elem"
                | "skc_lookup_tcp"
                | "tcp_check_syncookie"
                | "tcp_gen_syncookie"
                | "map_lookup_percpu_elem"
                | "tcp_raw_gen_syncookie_ipv4"
                | "tcp_raw_gen_syncookie_ipv6"
                | "tcp_raw_check_syncookie_ipv4"
                | "tcp_raw_check_syncookie_ipv6"
        )
    }

    /// The length of its memory may be zero (`ARG_CONST_SIZE_OR_ZERO`).
    pub fn size_may_be_zero(&self) -> bool {
        matches!(
            self.name,
            "probe_read"
                | "perf_event_output"
                | "csum_diff"
                | "probe_read_str"
                | "get_stack"
                | "skb_output"
                | "probe_read_user"
                | "probe_read_kernel"
                | "probe_read_user_str"
                | "probe_read_kernel_str"
                | "read_branch_records"
                | "xdp_output"
                | "seq_printf"
                | "seq_write"
                | "ringbuf_output"
                | "get_task_stack"
                | "copy_from_user"
                | "redirect_neigh"
                | "snprintf"
                | "get_branch_snapshot"
                | "trace_vprintk"
                | "copy_from_user_task"
                | "dynptr_read"
                | "dynptr_write"
        )
    }

    /// Its memory may be null (`ARG_PTR_TO_MEM | PTR_MAYBE_NULL`).
    pub fn memory_may_be_null(&self) -> bool {
        matches!(
            self.name,
            "csum_diff" | "read_branch_records" | "seq_printf" | "redirect_neigh" | "snprintf" | "trace_vprintk"
        )
    }

    /// … even if its length is not zero.
    pub fn null_with_size(&self) -> bool {
        matches!(self.name, "read_branch_records")
    }

    /// Its map value may be null (`ARG_PTR_TO_MAP_VALUE_OR_NULL`).
    pub fn value_may_be_null(&self) -> bool {
        matches!(self.name, "sk_storage_get" | "inode_storage_get" | "task_storage_get" | "cgrp_storage_get")
    }

    /// Its context may be null (`ARG_PTR_TO_CTX_OR_NULL`).
    pub fn context_may_be_null(&self) -> bool {
        self.name == "get_netns_cookie"
    }

    /// How it calls back before it returns, if the verifier's rules for that are known here.
    pub fn callback(&self) -> Option<Callback> {
        match self.name {
            "loop" => Some(Callback::Loop),
            "for_each_map_elem" => Some(Callback::Elements),
            _ => None,
        }
    }

    /// The argument, from 1, that must be a constant (`ARG_CONST_ALLOC_SIZE_OR_ZERO`).
    pub fn constant_argument(&self) -> Option<usize> {
        self.reserves().then_some(2)
    }

    /// Returns how much it wrote, or an error (`do_refine_retval_range`).
    pub fn returns_length(&self) -> bool {
        matches!(
            self.name,
            "probe_read_str" | "get_stack" | "probe_read_user_str" | "probe_read_kernel_str" | "get_task_stack"
        )
    }

    /// Hands out memory of a ring buffer.
    pub fn reserves(&self) -> bool {
        self.name == "ringbuf_reserve"
    }

    /// Gives the number of the processor.
    pub fn is_processor_id(&self) -> bool {
        self.name == "get_smp_processor_id"
    }

    /// Gives the storage of the cgroup, which is always there.
    pub fn is_local_storage(&self) -> bool {
        self.name == "get_local_storage"
    }

    /// Takes a spin lock.
    pub fn locks(&self) -> bool {
        self.name == "spin_lock"
    }

    /// Gives a spin lock back.
    pub fn unlocks(&self) -> bool {
        self.name == "spin_unlock"
    }

    /// The socket it gives is a TCP socket.
    pub fn gives_tcp_socket(&self) -> bool {
        self.name == "tcp_sock"
    }

    /// The socket it gives may be a request or time-wait socket.
    pub fn gives_common_socket(&self) -> bool {
        self.name == "skc_lookup_tcp"
    }

    /// It gives the socket it was given, seen as another (`is_ptr_cast_function`).
    pub fn casts_socket(&self) -> bool {
        matches!(self.name, "sk_fullsock" | "tcp_sock")
    }

    /// What argument `n`, from 1, must be, if that is no plain memory.
    pub fn object(&self, n: usize) -> Object {
        match (self.name, n) {
            (
                "sk_release"
                | "sk_fullsock"
                | "tcp_sock"
                | "get_listener_sock"
                | "tcp_check_syncookie"
                | "tcp_gen_syncookie"
                | "sk_cgroup_id"
                | "sk_ancestor_cgroup_id",
                1,
            )
            | ("sk_storage_get" | "sk_storage_delete" | "sk_assign", 2) => Object::Socket,
            ("ringbuf_submit" | "ringbuf_discard", 1) => Object::Reservation,
            ("spin_lock" | "spin_unlock", 1) => Object::Lock,
            _ => Object::Unknown,
        }
    }
}

/// Helpers that call a function of the program before they return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callback {
    /// `bpf_loop`: the round, and what the caller passes.
    Loop,
    /// `bpf_for_each_map_elem`: map, key, value, and what the caller passes.
    Elements,
}

/// What an argument that is no plain memory must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// A socket.
    Socket,
    /// A ring-buffer reservation.
    Reservation,
    /// A spin lock.
    Lock,
    /// Not described.
    Unknown,
}
