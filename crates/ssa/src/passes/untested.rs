//! The first element of an array is always there: the test for it goes, where all kernels that are to take the result know that
//! (`--min-kernel 6.14`).
//!
//! ```text
//! before: *(u32 *)(r10 - 4) = 0            after: *(u32 *)(r10 - 4) = 0
//!         r0 = call map_lookup_elem               r0 = call map_lookup_elem
//!         if r0 == 0 goto none                    r1 = *(u64 *)(r0 + 0)
//!         r1 = *(u64 *)(r0 + 0)
//! ```
//! Verifiers before that take no access to an element that was not tested (`can_elide_value_nullness` in
//! kernel/bpf/verifier.c). It takes the key for known only where it stands alone in a slot of the stack, so the kernel may still
//! refuse one.

use bpf_facts::{Env, Facts};
use bpf_platform::KernelVersion;
use bpf_program::{Function, Terminator, drop_unreachable};

use super::elements::{looks_up, without_element};
use super::pass::Pass;
use crate::Ssa;

/// The pass.
pub struct Untested;

impl Pass for Untested {
    fn name(&self) -> &'static str {
        "ssa-untested"
    }

    fn run(&self, _: &mut Ssa, _: &Env<'_>) -> bool {
        false
    }

    fn is_of_graphs(&self) -> bool {
        true
    }

    fn min_kernel(&self) -> Option<KernelVersion> {
        Some(KernelVersion::KNOWS_ELEMENTS)
    }

    /// One graph without all such tests.
    fn graphs(&self, f: &Function, env: &Env<'_>) -> Vec<Function> {
        if !f.layout.iter().flat_map(|b| &f.block(*b).ops).any(looks_up) {
            return vec![];
        }
        let facts = Facts::of(f, env);
        let mut g = f.clone();
        let mut any = false;
        for &b in &f.layout {
            if let (Some(none), Terminator::Branch { taken, fall, .. }) =
                (without_element(f, b, &facts, env), &f.block(b).term)
            {
                g.block_mut(b).term = Terminator::Goto(if *taken == none { *fall } else { *taken });
                any = true;
            }
        }
        drop_unreachable(&mut g);
        if any { vec![g] } else { vec![] }
    }
}
