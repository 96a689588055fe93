//! Which section's name stands for a program type: of an array it is said beside the array.

use crate::RawError;

/// Names that the kernel, bpftool and people use, and the section of libbpf's table `section_defs` (libbpf.c) that means the
/// same. Types that are loaded for a target in the kernel (`fentry`, LSM, `struct_ops`, `freplace`) are not here: a bare
/// array does not name the target.
const NAMES: [(&str, &str); 30] = [
    ("socket_filter", "socket"),
    ("socket", "socket"),
    ("kprobe", "kprobe/array"),
    ("sched_cls", "tc"),
    ("classifier", "tc"),
    ("sched_act", "action"),
    ("tracepoint", "tracepoint/of/array"),
    ("xdp", "xdp"),
    ("perf_event", "perf_event"),
    ("cgroup_skb", "cgroup/skb"),
    ("cgroup_sock", "cgroup/sock"),
    ("lwt_in", "lwt_in"),
    ("lwt_out", "lwt_out"),
    ("lwt_xmit", "lwt_xmit"),
    ("lwt_seg6local", "lwt_seg6local"),
    ("sock_ops", "sockops"),
    ("sk_skb", "sk_skb"),
    ("cgroup_device", "cgroup/dev"),
    ("sk_msg", "sk_msg"),
    ("raw_tracepoint", "raw_tp/array"),
    ("raw_tp", "raw_tp/array"),
    ("cgroup_sock_addr", "cgroup/connect4"),
    ("lirc_mode2", "lirc_mode2"),
    ("sk_reuseport", "sk_reuseport"),
    ("flow_dissector", "flow_dissector"),
    ("cgroup_sysctl", "cgroup/sysctl"),
    ("raw_tracepoint_writable", "raw_tp.w/array"),
    ("cgroup_sockopt", "cgroup/getsockopt"),
    ("sk_lookup", "sk_lookup"),
    ("netfilter", "netfilter"),
];

/// Beginnings of sections of programs that have a target in the kernel.
const WITH_TARGETS: [&str; 12] = [
    "fentry",
    "fexit",
    "fmod_ret",
    "freplace",
    "lsm",
    "struct_ops",
    "iter",
    "tp_btf",
    "uprobe",
    "uretprobe",
    "usdt",
    "fsession",
];

/// The name of the section that says this program type. Names that already are sections' (`tracepoint/xdp/xdp_exception`)
/// stay.
///
/// # Errors
/// [`RawError::NoSection`] for types that a bare array cannot have.
pub fn section_of(program_type: &str) -> Result<&str, RawError> {
    if let Some((_, section)) = NAMES.iter().find(|(name, _)| *name == program_type) {
        return Ok(section);
    }
    let head = program_type.split(['/', '.', '+']).next().unwrap_or_default();
    if head.is_empty() || WITH_TARGETS.contains(&head) || matches!(program_type, "tracing" | "ext" | "unspec") {
        return Err(RawError::NoSection { name: program_type.to_owned() });
    }
    Ok(program_type)
}
