//! What a program may call when it is only tried.
//!
//! A test run executes the program itself: what its helpers do, they do to this machine. So a helper or kernel function
//! counts as harmful unless it is known to be harmless. The helpers' table ([`bpf_platform::Effects::harmless`]) knows
//! those of which everything that they change ends with the test run: registers, stack, packet and context of the run,
//! maps of the object (which are fresh and unpinned), sockets and routes of a network namespace without any. Reading is
//! harmless, of other tasks' memory too. For kernel functions there is a list of names
//! ([`bpf_platform::is_kfunc_harmless_in_test_run`]).

use bpf_platform::helpers::Helper;

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
        // What a tail call leads to is looked into by itself.
        Callee::Helper(id) => Helper::get(id).is_some_and(|h| h.effects.harmless || h.effects.is_tail_call()),
        Callee::Kfunc(name) => bpf_platform::is_kfunc_harmless_in_test_run(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
