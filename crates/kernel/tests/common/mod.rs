//! What the tests that ask the kernel share.

use bpf_kernel::{Permission, permitted};

/// Tells a test to go on, or why not.
pub fn kernel_answers() -> bool {
    let Permission::No(reason) = permitted() else { return true };
    let required = std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_some_and(|value| value == "1");
    assert!(!required, "BPF_OPT_REQUIRE_KERNEL=1, but bpf() is not permitted: {reason}");
    eprintln!("skipped: bpf() is not permitted here: {reason}");
    false
}
