//! Calls of helpers that the verifier translates by what it has seen there; of kernel functions see `kfuncs.rs`.
//!
//! It keeps that once for each call (`struct bpf_insn_aux_data` in include/linux/bpf_verifier.h), whichever way led there:
//! of several types of pointers the one that it came with last counts. So such a call is more than a function of its
//! arguments.

use bpf_isa::Reg;

use crate::effects::Effects;

/// Helpers that take variables of the kernel and objects of the program (`call_with_percpu_alloc_ptr`; `check_helper_call`
/// and `do_misc_fixups` in kernel/bpf/verifier.c).
const HELPERS: &[&str] = &["per_cpu_ptr", "this_cpu_ptr"];

impl Effects {
    /// Whether a call of this helper is translated by the types that the verifier has seen there.
    pub fn is_translated_by_type(&self) -> bool {
        HELPERS.contains(&self.name)
    }

    /// Whether the kernel may make code in the place of a call, which leaves r1 to r5 alone (`allow_fastcall`, and
    /// `verifier_inlines_helper_call` in kernel/bpf/verifier.c): of 6.18's helpers that is `get_smp_processor_id`. Taken for
    /// such are all that give what stands still during a run.
    pub fn may_be_fast_call(&self) -> bool {
        self.constant && self.arguments.is_empty()
    }

    /// Whether the verifier tells a call how to allocate memory by where it has seen it stand (`storage_get_func_atomic`,
    /// `do_misc_fixups` in kernel/bpf/verifier.c).
    pub fn allocates_by_where_it_stands(&self) -> bool {
        self.name.ends_with("_storage_get")
    }

    /// An argument, and up to which number there the code that the verifier may put in the place of a call does what the
    /// helper does. It makes that code only where it comes with one callback and without flags, whichever way led there. The
    /// code of `bpf_loop` compares 64 bits of the number of turns with `BPF_MAX_LOOPS`, the helper 32, and its error is
    /// not extended by its sign (`update_loop_inline_state` and `inline_bpf_loop` in kernel/bpf/verifier.c).
    pub fn made_code_up_to(&self) -> Option<(Reg, u64)> {
        const MAX_LOOPS: u64 = 8 << 20;
        (self.name == "loop").then_some((Reg::R1, MAX_LOOPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helpers::Helper;

    #[test]
    fn the_helpers_are_in_the_table() {
        let storages = (0..1000).filter_map(Helper::get).filter(|h| h.effects.allocates_by_where_it_stands());
        assert_eq!(storages.count(), 4);
        for name in HELPERS {
            assert!(
                (0..1000).filter_map(Helper::get).any(|h| h.name == *name && h.effects.is_translated_by_type()),
                "{name}"
            );
        }
    }
}
