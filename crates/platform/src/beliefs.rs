//! What the kernel's verifier believes wrongly.
//!
//! It has code removed that it takes for impossible (`opt_hard_wire_dead_code_branches` and `opt_remove_dead_code` in
//! kernel/bpf/verifier.c). So where a belief of its is wrong, a program does not do what its instructions say, and another
//! program with the same meaning may do something else. These are the calls and loads of which that is known, as of 6.18;
//! what is known of arithmetic and jumps stands in `prove/src/beliefs.rs`. Between 6.14 and early 6.18 the verifier did not see
//! what more helpers write (repaired by commit 37cce22dbd51): that is an assumption of `docs/trust.md`.

use std::ops::Range;

use crate::effects::Effects;
use crate::maps::{ARRAY, PERCPU_ARRAY, is_array};

/// The kernel function that may give back the buffer it was given, as memory of another kind
/// (`bpf_dynptr_slice_rdwr` in kernel/bpf/helpers.c): for a packet in pieces. A suffix may follow.
const HANDS_BACK_ITS_BUFFER: &str = "bpf_dynptr_slice_rdwr";

/// The helper whose prototype says that it only reads its attributes (`bpf_sys_bpf_proto` in kernel/bpf/syscall.c).
const WRITES_UNSEEN: &str = "sys_bpf";

/// Kernel functions of whose results the verifier believes something wrong: a lock that cannot be had gives a negative `int`,
/// which counts as one of 64 bits (`check_kfunc_call` in kernel/bpf/verifier.c, "resilient lock"); an iterator that has come to its end counts
/// as one that stays there, and these begin again (`bpf_iter_dmabuf_next` in kernel/bpf/dmabuf_iter.c, `bpf_iter_scx_dsq_next` in
/// kernel/sched/ext.c).
const MISJUDGED: &[&str] = &["bpf_res_spin_lock", "bpf_iter_dmabuf_next", "bpf_iter_scx_dsq_next"];

/// Whether the verifier believes something wrong of this kernel function's result. A suffix may follow.
pub fn is_result_misjudged(name: &str) -> bool {
    MISJUDGED.iter().any(|begin| name.starts_with(begin))
}

/// Where `rx_queue_mapping` is in `struct bpf_sock`.
const RX_QUEUE_MAPPING: Range<i64> = 76..80;

/// Whether this kernel function may give back its third argument: what is stored to the one is in the other, and the
/// verifier does not know.
pub fn hands_back_its_buffer(name: &str) -> bool {
    name.starts_with(HANDS_BACK_ITS_BUFFER)
}

/// Whether a load of `bytes` at this offset from a `struct bpf_sock` gives more bits than the verifier believes: 64 ones,
/// where a socket has no receive queue (`bpf_sock_convert_ctx_access` in net/core/filter.c).
pub fn reads_wider_than_believed(offset: i64, bytes: u32) -> bool {
    matches!(bytes, 2 | 4) && offset < RX_QUEUE_MAPPING.end && RX_QUEUE_MAPPING.start < offset + i64::from(bytes)
}

/// Whether maps may take the place of this one in a map of maps that have fewer elements, which the verifier does not
/// believe: `can_elide_value_nullness` and the code that it makes of lookups ask the template. Per-CPU arrays of any length do
/// (`percpu_array_map_ops` in kernel/bpf/arraymap.c), and arrays with `BPF_F_INNER_MAP` (`array_map_meta_equal`). A template
/// that the loader chooses may be one of these.
pub fn inner_maps_may_be_shorter(template: Option<(Option<u32>, Option<u32>)>) -> bool {
    /// `BPF_F_INNER_MAP`.
    const ANY_LENGTH: u32 = 1 << 12;
    match template {
        Some((Some(ARRAY), flags)) => flags.is_some_and(|flags| flags & ANY_LENGTH != 0),
        Some((Some(kind), _)) => kind == PERCPU_ARRAY,
        Some((None, _)) | None => true,
    }
}

/// The first constant key that the verifier may take for there (`can_elide_value_nullness`) if a map is not what the object says
/// of it: its loader makes it longer, or chooses its type. `None`: lookups in it are never so.
pub fn first_key_of_longer(map_type: Option<u32>, max_entries: Option<u32>) -> Option<u32> {
    match map_type {
        Some(kind) if is_array(kind) => Some(max_entries.unwrap_or(0).max(1)),
        Some(_) => None,
        None => Some(0),
    }
}

impl Effects {
    /// Whether a call of this helper writes to memory that the verifier takes for unchanged.
    pub fn writes_unseen(&self) -> bool {
        self.name == WRITES_UNSEEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helpers::Helper;
    use crate::maps::HASH;

    #[test]
    fn inner_arrays_have_the_length_of_their_template_but_some() {
        let may = |kind, flags| inner_maps_may_be_shorter(Some((Some(kind), flags)));
        assert!(!may(ARRAY, None) && !may(ARRAY, Some(0)) && !may(HASH, Some(1 << 12)));
        assert!(may(ARRAY, Some(1 << 12)) && may(PERCPU_ARRAY, None) && inner_maps_may_be_shorter(None));
    }

    #[test]
    fn keys_that_a_loader_may_make_known() {
        assert_eq!(first_key_of_longer(Some(ARRAY), Some(4)), Some(4));
        assert_eq!(first_key_of_longer(Some(PERCPU_ARRAY), None), Some(1));
        assert_eq!(first_key_of_longer(Some(HASH), Some(4)), None);
        assert_eq!(first_key_of_longer(None, Some(4)), Some(0));
    }

    #[test]
    fn the_helper_is_in_the_table() {
        assert_eq!((0..1000).filter_map(Helper::get).filter(|h| h.effects.writes_unseen()).count(), 1);
    }
}
