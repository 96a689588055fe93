//! What only the loader chooses: CO-RE records and kconfig values, which cases as files cannot name.
//!
//! How these are written and judged: `common/mod.rs`. Hosts are `examples/hooks.o` and `examples/kinds.o`. All other traps
//! of the design are cases below `tests/equivalence`.

use crate::common::{self, Trap, trap};

const HOOKS: &[u8] = include_bytes!("../../../../examples/hooks.o");
const KINDS: &[u8] = include_bytes!("../../../../examples/kinds.o");

/// Context `xdp_md`, a result of 32 bits.
const XDP: &str = "on_xdp";
/// A tracepoint, with the CO-RE record.
const EVENT: &str = "on_event";

/// An instruction with a CO-RE record has a value that is unknown until the object is loaded.
fn records() -> Vec<Trap> {
    vec![
        trap("an immediate with a CO-RE record is not constant", EVENT, "r0 = core; exit", "r0 = 4; exit")
            .right("r1 = core; r0 = r1; exit"),
        trap("a CO-RE record lost", EVENT, "r6 = core; call 14; r0 += r6; exit", "r6 = 4; call 14; r0 += r6; exit")
            .right("call 14; r6 = core; r0 += r6; exit"),
    ]
}

/// Code that only the loader's choice makes dead (guarded by kconfig or by what exists in the kernel) must stay.
fn choices() -> Vec<Trap> {
    let hz = "r1 = &CONFIG_HZ; w1 = *(u32 *)(r1 + 0)";
    let exists = |what: &str| format!("r1 = core {what}; w0 = 1; if r1 == 0 goto out; w0 = 2; out: exit");
    let turned = |what: &str| format!("r1 = core {what}; w0 = 2; if r1 != 0 goto out; w0 = 1; out: exit");
    let called =
        |what: &str| format!("r1 = core {what}; if r1 == 0 goto out; w1 = 1; w2 = 0; call 23; out: w0 = 2; exit");
    vec![
        trap(
            "a kconfig value is not constant",
            XDP,
            "r1 = &LINUX_KERNEL_VERSION; w0 = *(u32 *)(r1 + 0); exit",
            "w0 = 0; exit",
        )
        .right("r2 = &LINUX_KERNEL_VERSION; w1 = *(u32 *)(r2 + 0); w0 = w1; exit"),
        trap(
            "code that a missing kconfig value guards",
            XDP,
            format!("{hz}; w0 = 1; if w1 == 0 goto out; w0 = 2; out: exit"),
            "w0 = 1; exit",
        )
        .right(format!("{hz}; w0 = 2; if w1 != 0 goto out; w0 = 1; out: exit")),
        trap(
            "another kconfig value",
            XDP,
            "r1 = &LINUX_KERNEL_VERSION; w0 = *(u32 *)(r1 + 0); exit",
            "r1 = &CONFIG_HZ; w0 = *(u32 *)(r1 + 0); exit",
        ),
        trap("the member may be missing", XDP, exists("field"), "w0 = 2; exit").right(turned("field")),
        trap("the member may exist", XDP, exists("field"), "w0 = 1; exit"),
        trap("the type may be missing", XDP, exists("type"), "w0 = 2; exit").right(turned("type")),
        trap("the type may exist", XDP, exists("type"), "w0 = 1; exit"),
        trap("the enumerator may be missing", XDP, exists("enum"), "w0 = 2; exit").right(turned("enum")),
        trap("the enumerator may have another value", XDP, "r0 = core enum; exit", "r0 = 1; exit")
            .right("r6 = core enum; r0 = r6; exit"),
        trap("another thing exists", XDP, exists("field"), exists("type")),
        trap("a call that only some kernels make", XDP, called("field"), "w0 = 2; exit"),
        trap("a call that only some kernels leave out", XDP, called("type"), "w1 = 1; w2 = 0; call 23; w0 = 2; exit"),
    ]
}

#[test]
fn wrong_rewrites_are_refuted_by_a_run() {
    common::all_refuted(HOOKS, &records());
    common::all_refuted(KINDS, &choices());
}

#[test]
fn right_rewrites_are_proven() {
    common::all_proven(HOOKS, &records());
    common::all_proven(KINDS, &choices());
}
