//! Effects of calls on the context: what they may change is read again, what they leave alone need not be.

use bpf_facts::Env;
use bpf_program::ProgKind;
use bpf_prove::{Options, functions};
use bpf_testgen::listing::function;

fn equal(kind: ProgKind, old: &str, new: &str) -> bool {
    let env = Env { maps: &[], callee_args: &|_| None, ..Env::empty() };
    functions(&function(kind, old), &function(kind, new), &env, &Options::default()).0.is_equal()
}

/// A field of the context is read before and after a call, or before only.
fn reread(call: &str) -> (String, String) {
    let body = |second: &str| format!("r6 = r1\nr7 = *(u32 *)(r6 + 8)\n{call}\n{second}\nr0 <<= 8\nr0 ^= r7\nexit");
    (body("r0 = *(u32 *)(r6 + 8)"), body("r0 = r7"))
}

#[test]
fn a_helper_may_change_the_context_without_taking_it() {
    for (name, call) in [
        ("set_retval", "r1 = 5\ncall 187"),
        ("probe_write_user", "r1 = 0\nr2 = r10\nr2 += -8\nr3 = 8\ncall 36"),
        ("send_signal", "r1 = 9\ncall 109"),
        ("a kernel function", "r1 = 5\ncall kfunc 12"),
        ("a helper without a row", "r1 = 5\ncall 4000"),
        ("setsockopt", "r1 = r6\nr2 = 1\nr3 = 1\nr4 = r10\nr4 += -8\nr5 = 8\ncall 49"),
    ] {
        let (old, new) = reread(call);
        for kind in [ProgKind::Skb, ProgKind::Other] {
            assert!(!equal(kind, &old, &new), "{name}, {kind:?}");
            // Who is called by a number of the kernel's BTF may be translated by what the verifier sees.
            let right = equal(kind, &old, &old.replace("r0 <<= 8", "r0 *= 256"));
            assert_eq!(right, name != "a kernel function", "{name}, {kind:?}, a right rewrite");
        }
    }
}

#[test]
fn a_helper_that_leaves_the_context_alone_lets_it_stand() {
    for (name, call) in [
        ("get_retval", "call 186"),
        ("ktime_get_ns", "call 5"),
        ("get_current_comm", "r1 = r10\nr1 += -16\nr2 = 16\ncall 16"),
    ] {
        let (old, new) = reread(call);
        assert!(equal(ProgKind::Skb, &old, &new), "{name}");
        // Others may change what this kind of context shows.
        assert!(!equal(ProgKind::Other, &old, &new), "{name}");
    }
}
