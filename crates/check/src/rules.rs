//! Small tables about helpers, maps and signatures that the helper table of `semantics` does not have. Sources: the
//! `bpf_func_proto`s of the kernel as described in its documentation, `check_map_func_compatibility`, libbpf.

use bpf_object::ValueType;

/// `bpf_get_smp_processor_id`.
pub(crate) const SMP_PROCESSOR_ID: i32 = 8;
/// `bpf_tail_call`.
pub(crate) const TAIL_CALL: i32 = 12;
/// `bpf_get_local_storage`.
pub(crate) const GET_LOCAL_STORAGE: i32 = 81;
/// `bpf_spin_lock`.
pub(crate) const SPIN_LOCK: i32 = 93;
/// `bpf_spin_unlock`.
pub(crate) const SPIN_UNLOCK: i32 = 94;
/// `bpf_ringbuf_reserve`.
pub(crate) const RINGBUF_RESERVE: i32 = 131;

/// Takes a reference that must be given back.
pub(crate) fn acquires(id: i32) -> bool {
    matches!(id, 84 | 85 | 99 | RINGBUF_RESERVE)
}

/// Gives one back.
pub(crate) fn releases(id: i32) -> bool {
    matches!(id, 86 | 132 | 133)
}

/// May be given packet data where it wants memory (`pkt_access`).
pub(crate) fn reads_packet(id: i32) -> bool {
    matches!(id, 1..=3 | 28 | 84 | 85 | 87..=89 | 99 | 100 | 110 | 195 | 204..=207)
}

/// The length of its memory may be zero (`ARG_CONST_SIZE_OR_ZERO`).
pub(crate) fn size_may_be_zero(id: i32) -> bool {
    matches!(
        id,
        4 | 25 | 28 | 45 | 67 | 111
            ..=115 | 119 | 121 | 126 | 127 | 130 | 141 | 148 | 152 | 165 | 176 | 177 | 191 | 201 | 202
    )
}

/// Its memory may be null (`ARG_PTR_TO_MEM | PTR_MAYBE_NULL`).
pub(crate) fn memory_may_be_null(id: i32) -> bool {
    matches!(id, 28 | 119 | 126 | 152 | 165 | 177)
}

/// … even if its length is not zero.
pub(crate) fn null_with_size(id: i32) -> bool {
    matches!(id, 119)
}

/// Its map value may be null.
pub(crate) fn value_may_be_null(id: i32) -> bool {
    matches!(id, 107 | 145 | 156 | 210)
}

/// Its context may be null.
pub(crate) fn context_may_be_null(id: i32) -> bool {
    id == 122
}

/// Helpers that call a function of the program before they return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Callback {
    /// `bpf_loop`: the round, and what the caller passes.
    Loop,
    /// `bpf_for_each_map_elem`: map, key, value, and what the caller passes.
    Elements,
}

/// How a helper calls back.
pub(crate) fn callback(id: i32) -> Option<Callback> {
    match id {
        181 => Some(Callback::Loop),
        164 => Some(Callback::Elements),
        _ => None,
    }
}

/// The argument that must be a constant.
pub(crate) fn constant_argument(id: i32) -> Option<usize> {
    (id == RINGBUF_RESERVE).then_some(2)
}

/// Returns how much it wrote, or an error.
pub(crate) fn returns_length(id: i32) -> bool {
    matches!(id, 45 | 67 | 114 | 115 | 141)
}

/// What an argument that is no plain memory must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    /// A socket.
    Socket,
    /// A ring-buffer reservation.
    Reservation,
    /// A spin lock.
    Lock,
    /// Not described.
    Unknown,
}

/// What helper `id` wants in argument `n`.
pub(crate) fn object(id: i32, n: usize) -> Object {
    match (id, n) {
        (86 | 95 | 96 | 98 | 100 | 110 | 128 | 129, 1) | (107 | 108 | 124, 2) => Object::Socket,
        (132 | 133, 1) => Object::Reservation,
        (SPIN_LOCK | SPIN_UNLOCK, 1) => Object::Lock,
        _ => Object::Unknown,
    }
}

/// What a parameter of a global function takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    /// A number.
    Number,
    /// The context.
    Ctx,
    /// Memory of so many bytes, or null.
    Memory(u32),
    /// Something else.
    Unknown,
}

/// Names of the context structures, by program type.
const CONTEXTS: [(&str, &[u32]); 14] = [
    ("__sk_buff", &[1, 3, 4, 8, 10, 11, 12, 14, 19, 22]),
    ("xdp_md", &[6]),
    ("bpf_user_pt_regs_t", &[2, 7]),
    ("pt_regs", &[2, 7]),
    ("user_pt_regs", &[2, 7]),
    ("bpf_perf_event_data", &[7]),
    ("bpf_raw_tracepoint_args", &[17, 24]),
    ("bpf_sock", &[9]),
    ("bpf_sock_ops", &[13]),
    ("bpf_sock_addr", &[18]),
    ("sk_msg_md", &[16]),
    ("sk_reuseport_md", &[21]),
    ("bpf_sk_lookup", &[30]),
    ("bpf_sockopt", &[25]),
];

/// What a parameter of this type takes in a program of this type.
pub(crate) fn parameter(value: &ValueType, kind: u32) -> Parameter {
    match value {
        ValueType::Int { .. } => Parameter::Number,
        ValueType::Pointer { name, .. } if CONTEXTS.iter().any(|(n, kinds)| n == name && kinds.contains(&kind)) => {
            Parameter::Ctx
        }
        ValueType::Pointer { size: Some(size), .. } if *size > 0 => Parameter::Memory(*size),
        _ => Parameter::Unknown,
    }
}
