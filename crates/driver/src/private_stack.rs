//! What hangs on how deep a frame is.
//!
//! A program of `struct_ops` whose structure asks for it (`priv_stack_requested`) gets a stack of its own if one of its
//! functions has a frame of 64 bytes (`BPF_PRIV_STACK_MIN_SIZE`, `check_max_stack_depth_subprog` in
//! kernel/bpf/verifier.c). Only then the kernel leaves out runs of it inside of itself (`bpf_prog_check_recur` in
//! linux/bpf_verifier.h: `jits_use_priv_stack`). So a frame may become smaller, but not from there to here. Which structures
//! ask, each kernel says for itself: all are taken to.

use bpf_facts::{Env, deepest_frame_use};
use bpf_object::FuncId;
use bpf_program::Function;

use crate::module::{Module, is_program};

/// Why a function may not be what it is now.
pub(crate) const OWN_STACK: &str = "a program of struct_ops has a stack of its own, or none, by how deep its frame is";

/// Bytes of a frame from which on there may be such a stack: rounded up to 16 or 32 by kernels of today, as it is by others.
const LIMITS: [i64; 2] = [64, 49];

/// Whether function `i` is a part of a program of `struct_ops`.
pub(crate) fn is_in_struct_ops(module: &Module, FuncId(i): FuncId) -> bool {
    let functions = module.object.functions();
    let is_one = |p: &usize| {
        let section = functions[*p].section.trim_start_matches('?');
        is_program(&module.object, *p) && section.split(['/', '.']).next() == Some("struct_ops")
    };
    let mut open: Vec<usize> = (0..functions.len()).filter(is_one).collect();
    let mut seen = open.clone();
    while let Some(p) = open.pop() {
        for FuncId(callee) in module.object.callees(FuncId(p)) {
            if !seen.contains(&callee) {
                seen.push(callee);
                open.push(callee);
            }
        }
    }
    seen.contains(&i)
}

/// Whether one form of a function has a frame for a stack of its own, and another has not.
pub(crate) fn differs(old: &Function, new: &Function, env: &Env) -> bool {
    let class = |f: &Function| LIMITS.map(|limit| -deepest_frame_use(f, env) >= limit);
    class(old) != class(new)
}
