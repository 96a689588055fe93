//! What the tests that ask the kernel share.

use bpf_kernel::Permission;

/// Whether the kernel may be asked; where it must, and may not, the test fails.
pub fn permitted() -> bool {
    match bpf_kernel::permitted() {
        Permission::Yes => true,
        Permission::No(reason) => {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "bpf() is required: {reason}");
            eprintln!("SKIPPED: bpf() is not permitted here ({reason})");
            false
        }
    }
}
