//! What the verifier makes of signatures. Source: `btf_prepare_func_args` in `kernel/bpf/btf.c`. What it demands of calls
//! of helpers is in `bpf_platform::verifier`.

use bpf_object::ValueType;

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
