//! More traps of the design: kinds of maps and memory, what only the loader or the kernel chooses, ordering.
//!
//! How they are written and judged: `common/mod.rs`. The host is `examples/kinds.o`. Where the interpreter has no
//! model of a thing, or where a single run cannot show the difference (order, ownership, who else writes), it is
//! enough that the wrong rewrite is not proven.

use bpf_driver::FunctionVerdict;

use crate::common::{self, Trap, found, found_two, judge, trap};

const OBJECT: &[u8] = include_bytes!("../../../../examples/kinds.o");

/// Context `xdp_md`, a result of 32 bits.
const XDP: &str = "on_xdp";
/// Context `__sk_buff`, a result of 32 bits.
const SKB: &str = "on_skb";

/// `body` with r6 pointing to an element of `counts`.
fn element(body: &str) -> String {
    found("counts", &format!("{body}; exit"))
}

/// Writes 1 through r6, 2 through r7, then does `then`.
fn write_both(then: &str) -> String {
    format!("*(u64 *)(r6 + 0) = 1; *(u64 *)(r7 + 0) = 2; {then}; exit")
}

/// "per-CPU values of different CPUs are distinct": those of one CPU are not.
fn per_cpu() -> Vec<Trap> {
    let key = "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = &per_cpu";
    let one = |cpu: u32, body: &str| {
        format!("{key}; w3 = {cpu}; call 195; if r0 == 0 goto out; r6 = r0; {body}; out: w0 = 2; exit")
    };
    let two = |cpus: [u32; 2], then: &str| {
        let then = write_both(then);
        one(cpus[0], &format!("{key}; w3 = {}; call 195; if r0 == 0 goto out; r7 = r0; {then}", cpus[1]))
    };
    let mine = |then: &str| {
        let then = write_both(then);
        found("per_cpu", &one(0, &format!("r7 = r0; {then}")).replace("r6 = r0; ", "").replace("out: w0 = 2; exit", ""))
    };
    vec![
        trap("the value of another CPU", XDP, one(0, "w0 = 1; exit"), one(1, "w0 = 1; exit"))
            .right(one(0, "w0 = 1; exit").replace("if r0 == 0 goto out", "if r0 != 0 goto in; goto out; in: r6 = r0")),
        trap(
            "two lookups for one CPU give one element",
            XDP,
            two([1, 1], "r0 = *(u64 *)(r6 + 0)"),
            two([1, 1], "r0 = 1"),
        ),
        trap("this CPU's value may be that of CPU 0", XDP, mine("r0 = *(u64 *)(r6 + 0)"), mine("r0 = 1"))
            .right(mine("r0 = r6; r0 = *(u64 *)(r0 + 0)")),
        trap(
            "a write to a per-CPU value dropped",
            XDP,
            one(1, "*(u64 *)(r6 + 0) = 1; w0 = 1; exit"),
            one(1, "w0 = 1; exit"),
        ),
    ]
}

/// "The inner maps of a map-in-map may be one map."
fn map_in_map() -> Vec<Trap> {
    let inner = |key: u32, to: &str| {
        format!(
            "*(u32 *)(r10 - 4) = {key}; r2 = r10; r2 += -4; r1 = &outer; call 1; if r0 == 0 goto out;
             *(u32 *)(r10 - 8) = 1; r2 = r10; r2 += -8; r1 = r0; call 1; if r0 == 0 goto out; {to} = r0"
        )
    };
    let two = |keys: [u32; 2], then: &str| {
        format!("{}; {}; {}; out: w0 = 2; exit", inner(keys[0], "r6"), inner(keys[1], "r7"), write_both(then))
    };
    let direct = |then: &str| found("inner", &format!("{}; {}", inner(0, "r7"), write_both(then)));
    let one = |key: u32, then: &str| format!("{}; {then}; exit; out: w0 = 2; exit", inner(key, "r6"));
    vec![
        trap("two inner maps may be one map", XDP, two([0, 1], "r0 = *(u64 *)(r6 + 0)"), two([0, 1], "r0 = 1")),
        trap("an inner map may be a map with a name", XDP, direct("r0 = *(u64 *)(r6 + 0)"), direct("r0 = 1")),
        trap("another inner map", XDP, one(0, "w0 = 1"), one(1, "w0 = 1")).right(one(0, "w0 = 2; w0 -= 1")),
        trap(
            "an outer array of maps may be empty",
            XDP,
            "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = &outer; call 1; if r0 == 0 goto out; w0 = 1; exit; out: w0 = 2; exit",
            "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = &outer; call 1; w0 = 1; exit",
        ),
        trap(
            "a write to an element of an inner map dropped",
            XDP,
            one(0, "*(u64 *)(r6 + 0) = 1; w0 = 1"),
            one(0, "w0 = 1"),
        )
        .right(one(0, "r1 = 1; *(u64 *)(r6 + 0) = r1; w0 = 1")),
    ]
}

const RESERVE: &str = "r1 = &events; r2 = 8; r3 = 0; call 131; if r0 == 0 goto out";

/// "A ring-buffer reservation is fresh"; it is private until it is submitted.
fn ring_buffer() -> Vec<Trap> {
    let submit = "r1 = r6; r2 = 0; call 132";
    let one = |body: &str| format!("{RESERVE}; r6 = r0; {body}; w0 = 1; exit; out: w0 = 2; exit");
    vec![
        trap(
            "a write to what is submitted dropped",
            XDP,
            one(&format!("*(u64 *)(r6 + 0) = 5; *(u64 *)(r6 + 0) = 6; {submit}")),
            one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")),
        )
        .right(one(&format!("*(u64 *)(r6 + 0) = 6; {submit}"))),
        trap(
            "a reservation submitted without its contents",
            XDP,
            one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")),
            one(submit),
        ),
        trap(
            "discard instead of submit",
            XDP,
            one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")),
            one(&format!("*(u64 *)(r6 + 0) = 5; {}", submit.replace("132", "133"))),
        ),
        trap("a submission dropped", XDP, one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")), one("*(u64 *)(r6 + 0) = 5")),
        trap(
            "other flags of a submission",
            XDP,
            one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")),
            one(&format!("*(u64 *)(r6 + 0) = 5; {}", submit.replace("r2 = 0", "r2 = 1"))),
        ),
        trap(
            "a write moved behind the submission",
            XDP,
            one(&format!("*(u64 *)(r6 + 0) = 5; {submit}")),
            one(&format!("{submit}; *(u64 *)(r6 + 0) = 5")),
        ),
        trap("another size", XDP, one(submit), one(submit).replace("r2 = 8", "r2 = 16")),
    ]
}

/// Two reservations with 1 and 2 in them, then `then`, which leaves the result in r8.
fn reserved_twice(then: &str) -> String {
    let submit = "r1 = r6; r2 = 0; call 132";
    format!(
        "{RESERVE}; r6 = r0; {}; r7 = r0; *(u64 *)(r6 + 0) = 1; *(u64 *)(r7 + 0) = 2; {then};
         {submit}; r1 = r7; r2 = 0; call 132; r0 = r8; exit; half: {submit}; out: w0 = 2; exit",
        RESERVE.replace("goto out", "goto half")
    )
}

/// `then` with r6 at 4 bytes of metadata and r7 at 4 bytes of the packet.
fn with_metadata(then: &str) -> String {
    format!(
        "r6 = *(u32 *)(r1 + 8); r7 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4);
         r2 = r6; r2 += 4; if r2 > r7 goto out; r2 = r7; r2 += 4; if r2 > r3 goto out;
         {then}; exit; out: w0 = 2; exit"
    )
}

/// Writes to metadata and to the packet.
const BOTH: &str = "*(u32 *)(r6 + 0) = 1; *(u32 *)(r7 + 0) = 3";

/// "Packet, data_meta and what skb helpers write are one memory."
fn metadata() -> Vec<Trap> {
    let body = with_metadata;
    let grown = |before: &str, after: &str| {
        format!(
            "r8 = r1; {before}; r1 = r8; w2 = -4; call 54; {after}; r7 = *(u32 *)(r8 + 0); w0 = 0;
             r2 = r6; r2 += 4; if r2 > r7 goto out; r0 = *(u32 *)(r6 + 0); out: exit"
        )
    };
    let load = "r6 = *(u32 *)(r8 + 8)";
    vec![
        trap(
            "metadata is not the packet",
            XDP,
            body(&format!("{BOTH}; w0 = *(u32 *)(r6 + 0)")),
            body(&format!("{BOTH}; w0 = 3")),
        ),
        trap("a write to metadata dropped", XDP, body("*(u32 *)(r6 + 0) = 1; w0 = 1"), body("w0 = 1"))
            .right(body("w1 = 1; *(u32 *)(r6 + 0) = w1; w0 = 1")),
        trap("a metadata pointer from before adjust_meta", XDP, grown(load, load), grown(load, ""))
            .right(grown("", load)),
        trap(
            "a metadata write moved behind adjust_meta",
            XDP,
            body("*(u32 *)(r6 + 0) = 1; w2 = -4; call 54; w0 = 1"),
            body("w2 = -4; call 54; *(u32 *)(r6 + 0) = 1; w0 = 1"),
        ),
        trap(
            "another change of the metadata's size",
            XDP,
            grown(load, load),
            grown(load, load).replace("w2 = -4", "w2 = -8"),
        ),
    ]
}

/// "Code that only the loader's choice makes dead (guarded by `.rodata`, kconfig or CO-RE existence) must stay."
fn loader() -> Vec<Trap> {
    let hz = "r1 = &CONFIG_HZ; w1 = *(u32 *)(r1 + 0)";
    let exists = |what: &str| format!("r1 = core {what}; w0 = 1; if r1 == 0 goto out; w0 = 2; out: exit");
    let turned = |what: &str| format!("r1 = core {what}; w0 = 2; if r1 != 0 goto out; w0 = 1; out: exit");
    let called = |what: &str| format!("r1 = core {what}; if r1 == 0 goto out; call 7; out: w0 = 2; exit");
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
        trap(
            "code that .rodata guards",
            XDP,
            "r1 = &limit; w1 = *(u32 *)(r1 + 0); if w1 == 100 goto out; call 7; out: w0 = 2; exit",
            "w0 = 2; exit",
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
        trap("a call that only some kernels leave out", XDP, called("type"), "call 7; w0 = 2; exit"),
    ]
}

/// `may_goto`: how often it falls through is the kernel's choice. The proof follows it block by block only, so
/// there is no formula whose assignment could be run.
fn may_goto() -> Vec<Trap> {
    let count = |body: &str| format!("w0 = 0; again: may_goto out; {body}; goto again; out: exit");
    let bounded = |before: &str| format!("w0 = 0; again: {before}; w0 += 1; if w0 != 10 goto again; out: exit");
    vec![
        trap("a loop that the kernel ends at any time, dropped", XDP, count("w0 += 1"), "w0 = 0; exit")
            .right(count("w0 -= -1")),
        trap("another body of such a loop", XDP, count("w0 += 1"), count("w0 += 2")),
        trap("may_goto taken for never taken", XDP, "may_goto out; w0 = 1; exit; out: w0 = 2; exit", "w0 = 1; exit"),
        trap("may_goto taken for always taken", XDP, "may_goto out; w0 = 1; exit; out: w0 = 2; exit", "w0 = 2; exit"),
        trap(
            "the edges of may_goto swapped",
            XDP,
            "may_goto out; w0 = 1; exit; out: w0 = 2; exit",
            "may_goto out; w0 = 2; exit; out: w0 = 1; exit",
        ),
        trap("may_goto dropped where a counter ends the loop, too", XDP, bounded("may_goto out"), bounded("w0 += 0"))
            .right(bounded("may_goto out").replace("w0 += 1", "w0 -= -1")),
        trap("may_goto that was not there", XDP, bounded("w0 += 0"), bounded("may_goto out")),
    ]
}

/// Arenas: an address space of its own, shared with everybody. The interpreter has no casts.
fn arena() -> Vec<Trap> {
    let at = |offset: u32, to: &str| {
        format!("r1 = &seen; r1 = *(u64 *)(r1 + {offset}); {to} = addr_space_cast(r1, 0x0, 0x1)")
    };
    let one = |body: &str| format!("{}; {body}; exit", at(0, "r6"));
    let two = |then: &str| {
        format!(
            "r1 = &seen; r6 = *(u64 *)(r1 + 0); r1 = &ready; r7 = *(u64 *)(r1 + 0);
        r6 = addr_space_cast(r6, 0x0, 0x1); r7 = addr_space_cast(r7, 0x0, 0x1); {}",
            write_both(then)
        )
    };
    vec![
        trap(
            "a cast dropped",
            XDP,
            one("r0 = *(u64 *)(r6 + 0)"),
            one("r0 = *(u64 *)(r6 + 0)").replace("r6 = addr_space_cast(r1, 0x0, 0x1)", "r6 = r1"),
        ),
        trap("a cast the other way", XDP, one("r0 = r6"), one("r0 = r6").replace("0x0, 0x1", "0x1, 0x0")),
        trap("two arena addresses may be one", XDP, two("r0 = *(u64 *)(r6 + 0)"), two("r0 = 1")),
        trap("a write to an arena dropped", XDP, one("*(u64 *)(r6 + 0) = 1; w0 = 1"), one("w0 = 1")),
        trap(
            "a write to an arena seen half",
            XDP,
            one("*(u64 *)(r6 + 0) = 1; w0 = 1"),
            one("*(u32 *)(r6 + 4) = 0; *(u32 *)(r6 + 0) = 1; w0 = 1"),
        ),
        trap(
            "a second read of an arena",
            XDP,
            one("r0 = *(u64 *)(r6 + 0); r0 += r0"),
            one("r0 = *(u64 *)(r6 + 0); r1 = *(u64 *)(r6 + 0); r0 += r1"),
        ),
    ]
}

/// Callbacks: what their context leads to is read and written by the callee.
fn callbacks() -> Vec<Trap> {
    let run = |stores: &str, nr: u32, at: i32, then: &str| {
        format!("{stores}; w1 = {nr}; r2 = &count_up; r3 = r10; r3 += {at}; r4 = 0; call 181; {then}; exit")
    };
    let queue = "r6 = *(u32 *)(r1 + 16)";
    let stored = format!("{queue}; *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 8) = r6");
    let below = format!("{queue}; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0");
    vec![
        trap(
            "what a callback reads",
            XDP,
            run(&stored, 4, -8, "w0 = 1"),
            run(&format!("{queue}; *(u64 *)(r10 - 8) = 0"), 4, -8, "w0 = 1"),
        )
        .right(run(&format!("{queue}; *(u64 *)(r10 - 8) = r6"), 4, -8, "w0 = 1")),
        trap(
            "what a callback writes",
            XDP,
            run(&stored, 4, -8, "r0 = *(u64 *)(r10 - 8)"),
            run(&stored, 4, -8, "r0 = r6"),
        ),
        trap(
            "a callback may reach above its context",
            XDP,
            run(&format!("{below}; *(u64 *)(r10 - 8) = r6"), 4, -16, "w0 = 1"),
            run(&below, 4, -16, "w0 = 1"),
        ),
        trap("another number of rounds", XDP, run(&stored, 4, -8, "w0 = 1"), run(&stored, 5, -8, "w0 = 1")),
        trap(
            "another context",
            XDP,
            run(&format!("{below}; *(u64 *)(r10 - 8) = 7"), 4, -16, "r0 = *(u64 *)(r10 - 8)"),
            run(&format!("{below}; *(u64 *)(r10 - 8) = 7"), 4, -8, "r0 = *(u64 *)(r10 - 8)"),
        ),
        trap(
            "a loop without an effect on registers dropped",
            XDP,
            run(&stored, 4, -8, "w0 = 1"),
            format!("{stored}; w0 = 1; exit"),
        ),
    ]
}

/// Tail calls: the next program sees packet, context, maps; not the stack.
fn tail_calls() -> Vec<Trap> {
    let tail = "r1 = r6; r2 = &jumps; w3 = 1; call 12; w0 = 0; exit";
    let packet = |before: &str, after: &str| {
        format!(
            "r6 = r1; r7 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4); r2 = r7; r2 += 1; w0 = 2; if r2 > r3 goto out;
             {before}; {}; out: w0 = 2; exit",
            tail.replace("w0 = 0", &format!("{after}; w0 = 0"))
        )
    };
    let write = "*(u8 *)(r7 + 0) = 9";
    let mark = "r2 = 5; *(u32 *)(r6 + 8) = r2";
    let after = |before: &str, after: &str| {
        format!("r6 = r1; {before}; {}", tail.replace("w0 = 0", &format!("{after}; w0 = 0")))
    };
    let value = |before: &str| {
        found("counts", &format!("{before}; {tail}"))
            .replacen("*(u32 *)(r10 - 4)", "r9 = r1; *(u32 *)(r10 - 4)", 1)
            .replace("r1 = r6", "r1 = r9")
    };
    vec![
        trap("a packet write that the next program sees", XDP, packet(write, "w1 = 0"), packet("w1 = 0", "w1 = 0")),
        trap("a context store that the next program sees", SKB, after(mark, ""), after("", "")),
        trap("a context store moved behind a tail call", SKB, after(mark, ""), after("", mark)),
        trap("a map write that the next program sees", XDP, value("*(u64 *)(r6 + 0) = 7"), value(""))
            .right(value("r1 = 7; *(u64 *)(r6 + 0) = r1")),
        trap("a tail call dropped", XDP, after("*(u64 *)(r10 - 8) = 1", ""), "w0 = 0; exit").right(after("", "")),
        trap("a call moved across a tail call", XDP, after("call 7", ""), after("", "call 7")),
    ]
}

/// cpu v4, and what 32-bit atomics leave in the upper halves.
fn newer_instructions() -> Vec<Trap> {
    let on = |insns: &str| element(insns);
    let swap = "r0 = *(u32 *)(r6 + 0); r2 = -1; w0 = cmpxchg32_32(r6 + 0, w0, w2)";
    vec![
        trap(
            "ldsx of 32 bits repeats the sign",
            XDP,
            on("r0 = *(s32 *)(r6 + 0); r0 >>= 32"),
            on("r0 = *(u32 *)(r6 + 0); r0 >>= 32"),
        )
        .right(on("r0 = *(u32 *)(r6 + 0); r0 <<= 32; r0 s>>= 32; r0 >>= 32")),
        trap(
            "ldsx of 8 bits repeats the sign into all 64",
            XDP,
            "r1 = *(u32 *)(r1 + 12); *(u64 *)(r10 - 8) = r1; r0 = *(s8 *)(r10 - 8); exit",
            "r1 = *(u32 *)(r1 + 12); *(u64 *)(r10 - 8) = r1; r0 = *(s8 *)(r10 - 8); w0 = w0; exit",
        ),
        trap(
            "bswap32 is zero-extended",
            XDP,
            "r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = bswap32 r0; exit",
            "r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = bswap64 r0; r0 s>>= 32; exit",
        )
        .right("r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = bswap64 r0; r0 >>= 32; exit"),
        trap(
            "bswap16 reads the low half only",
            XDP,
            "r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = bswap16 r0; exit",
            "r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = bswap32 r0; w0 &= 0xffff; exit",
        )
        .right("r1 = *(u32 *)(r1 + 12); r0 = r1; r0 = be16 r0; exit"),
        trap(
            "a 32-bit cmpxchg stores 32 bits",
            XDP,
            on(&format!("{swap}; w0 = 1")),
            on(&format!("{swap}; w0 = 1"))
                .replace("w0 = cmpxchg32_32(r6 + 0, w0, w2)", "r0 = cmpxchg_64(r6 + 0, r0, r2)"),
        ),
        trap(
            "a 32-bit xchg zero-extends",
            XDP,
            on("r1 = -1; w1 = xchg32_32(r6 + 0, w1); r0 = r1; r0 >>= 32"),
            on("r1 = -1; w1 = xchg32_32(r6 + 0, w1); r0 = -1; r0 >>= 32"),
        )
        .right(on("r1 = -1; w1 = xchg32_32(r6 + 0, w1); r0 = 0")),
        trap(
            "gotol past a store",
            XDP,
            on("r1 = *(u64 *)(r6 + 8); if r1 == 0 goto a; *(u64 *)(r6 + 0) = 1; a: w0 = 1"),
            on("r1 = *(u64 *)(r6 + 8); gotol a; *(u64 *)(r6 + 0) = 1; a: w0 = 1"),
        ),
    ]
}

/// Atomics, acquire, release and locks: never dropped, weakened, moved, or moved across; and what is read again
/// behind one is not what was read before it, because others wrote meanwhile. The interpreter runs alone, so it
/// cannot show most of these.
fn ordering() -> Vec<Trap> {
    let add = "r3 = 1; r3 = atomic_fetch_add((u64 *)(r6 + 0), r3)";
    let plus = "r4 = 1; r4 = atomic_fetch_add((u64 *)(r6 + 8), r4)";
    let retry = |then: &str| {
        element(&format!(
            "r1 = *(u64 *)(r6 + 0); r2 = r1; r2 += 1; r0 = r1; r0 = cmpxchg_64(r6 + 0, r0, r2); {then}; w0 = 1"
        ))
    };
    let (ld0, ld8) = ("r1 = *(u64 *)(r6 + 0)", "r2 = *(u64 *)(r6 + 8)");
    let (la0, la8) = ("r1 = load_acquire((u64 *)(r6 + 0))", "r2 = load_acquire((u64 *)(r6 + 8))");
    let (st0, st8) = ("*(u64 *)(r6 + 0) = r3", "*(u64 *)(r6 + 8) = r3");
    let (sr0, sr8) = ("store_release((u64 *)(r6 + 0), r3)", "store_release((u64 *)(r6 + 8), r3)");
    let loads = |a: &str, b: &str| element(&format!("{a}; {b}; r0 = r1; r0 -= r2"));
    let stores = |a: &str, b: &str| element(&format!("r3 = 1; {a}; {b}; w0 = 1"));
    vec![
        trap("a cmpxchg may fail", XDP, retry("if r0 != r1 goto out"), retry("")),
        trap(
            "fetch_add gives what it found, not what was read before",
            XDP,
            element(&format!("{ld0}; {add}; r0 = r3")),
            element(&format!("{ld0}; {add}; r0 = r1")),
        ),
        trap(
            "xchg gives what it found, not what was written before",
            XDP,
            element("*(u64 *)(r6 + 0) = 7; r3 = 1; r3 = xchg_64(r6 + 0, r3); r0 = r3"),
            element("*(u64 *)(r6 + 0) = 7; r3 = 1; r3 = xchg_64(r6 + 0, r3); r0 = 7"),
        ),
        trap(
            "a value from before an atomic",
            XDP,
            element(&format!("{ld8}; {add}; r0 = *(u64 *)(r6 + 8); r0 -= r2")),
            element(&format!("{ld8}; {add}; r0 = 0")),
        ),
        trap(
            "a read moved before an atomic",
            XDP,
            element(&format!("{add}; {ld8}; r0 = r2; r0 += r3")),
            element(&format!("{ld8}; {add}; r0 = r2; r0 += r3")),
        ),
        trap(
            "a write moved behind an atomic",
            XDP,
            element(&format!("*(u64 *)(r6 + 8) = 1; {add}; w0 = 1")),
            element(&format!("{add}; *(u64 *)(r6 + 8) = 1; w0 = 1")),
        ),
        trap(
            "a write moved before an atomic",
            XDP,
            element(&format!("{add}; *(u64 *)(r6 + 8) = 1; w0 = 1")),
            element(&format!("*(u64 *)(r6 + 8) = 1; {add}; w0 = 1")),
        ),
        trap(
            "two atomics swapped",
            XDP,
            element(&format!("{add}; {plus}; w0 = 1")),
            element(&format!("{plus}; {add}; w0 = 1")),
        ),
        trap(
            "a fetch dropped weakens the order",
            XDP,
            element(&format!("{add}; w0 = 1")),
            element("r3 = 1; lock *(u64 *)(r6 + 0) += r3; w0 = 1"),
        ),
        trap("acquire weakened to plain", XDP, loads(la0, ld8), loads(ld0, ld8))
            .right(element(&format!("{la0}; {ld8}; r1 -= r2; r0 = r1"))),
        trap(
            "an acquire whose value nobody needs",
            XDP,
            element(&format!("{la0}; {ld8}; r0 = r2")),
            element(&format!("{ld8}; r0 = r2")),
        ),
        trap("a read moved before an acquire", XDP, loads(la0, ld8), loads(ld8, la0)),
        trap("the acquire moved to another read", XDP, loads(la0, ld8), loads(la8, ld0)),
        trap("two acquires swapped", XDP, loads(la0, la8), loads(la8, la0)),
        trap(
            "a value from before an acquire",
            XDP,
            element(&format!("{ld8}; {la0}; r0 = *(u64 *)(r6 + 8); r0 -= r2")),
            element(&format!("{ld8}; {la0}; r0 = 0")),
        ),
        trap(
            "an acquire narrowed",
            XDP,
            element(&format!("{la0}; r0 = r1; r0 &= 255")),
            element("r0 = load_acquire((u8 *)(r6 + 0))"),
        ),
        trap("release weakened to plain", XDP, stores(st0, sr8), stores(st0, st8))
            .right(element(&format!("w3 = 1; {st0}; {sr8}; w0 = 1"))),
        trap("a write moved behind a release", XDP, stores(st0, sr8), stores(sr8, st0)),
        trap("the release moved to another write", XDP, stores(st0, sr8), stores(st8, sr0)),
        trap("two releases swapped", XDP, stores(sr0, sr8), stores(sr8, sr0)),
        trap("a release written twice", XDP, stores(sr0, "r3 = 2"), stores(sr0, sr0)),
        trap(
            "a release traded for an acquire",
            XDP,
            element(&format!("r3 = 1; {st0}; {la8}; r0 = r2")),
            element(&format!("r3 = 1; {sr0}; {ld8}; r0 = r2")),
        ),
        trap(
            "a release narrowed",
            XDP,
            element(&format!("r3 = 1; *(u64 *)(r6 + 0) = r3; {sr0}; w0 = 1")),
            element("r3 = 1; *(u64 *)(r6 + 0) = r3; store_release((u8 *)(r6 + 0), w3); w0 = 1"),
        ),
        trap(
            "what is read behind a call is not what was read before it",
            XDP,
            element("r7 = *(u64 *)(r6 + 0); call 5; r0 = *(u64 *)(r6 + 0); r0 -= r7"),
            element("r7 = *(u64 *)(r6 + 0); call 5; r0 = 0"),
        )
        .right(element("r8 = *(u64 *)(r6 + 0); call 5; r1 = *(u64 *)(r6 + 0); r1 -= r8; r0 = r1")),
        trap(
            "nor behind a call that looks at no map",
            XDP,
            element("*(u64 *)(r6 + 0) = 7; r1 = 1; r2 = 0; call 23; r0 = *(u64 *)(r6 + 0)"),
            element("*(u64 *)(r6 + 0) = 7; r1 = 1; r2 = 0; call 23; r0 = 7"),
        ),
    ]
}

/// Spin locks: nothing moves across taking or giving back.
fn locks() -> Vec<Trap> {
    let (take, give) = ("r1 = r6; call 93", "r1 = r6; call 94");
    let on = |body: &str| found("locked", &format!("{body}; w0 = 1; exit"));
    let load = "r7 = *(u64 *)(r6 + 8)";
    let bump = "r7 += 1; *(u64 *)(r6 + 8) = r7";
    vec![
        trap(
            "what was read before the lock",
            XDP,
            on(&format!("r8 = *(u64 *)(r6 + 8); {take}; {load}; {bump}; {give}; r0 = r8")),
            on(&format!("r8 = *(u64 *)(r6 + 8); {take}; r7 = r8; {bump}; {give}; r0 = r8")),
        ),
        trap(
            "a write moved behind the unlock",
            XDP,
            on(&format!("{take}; {load}; {bump}; {give}")),
            on(&format!("{take}; {load}; {give}; {bump}")),
        ),
        trap(
            "a write moved into the lock",
            XDP,
            on(&format!("*(u64 *)(r6 + 16) = 1; {take}; {load}; {bump}; {give}")),
            on(&format!("{take}; *(u64 *)(r6 + 16) = 1; {load}; {bump}; {give}")),
        ),
        trap(
            "a value of the locked stretch after it",
            XDP,
            on(&format!("{take}; {load}; {give}; r0 = *(u64 *)(r6 + 8); r0 -= r7; *(u64 *)(r6 + 16) = r0")),
            on(&format!("{take}; {load}; {give}; r0 = 0; *(u64 *)(r6 + 16) = r0")),
        ),
        trap("an empty locked stretch dropped", XDP, on(&format!("{take}; {give}")), on("w0 = 1")),
        trap(
            "the lock of another element",
            XDP,
            found_two("locked", "locked", &format!("{take}; {give}; w0 = 1; exit")),
            found_two("locked", "locked", &format!("{take}; {give}; w0 = 1; exit").replace("r1 = r6", "r1 = r7")),
        ),
    ]
}

/// The same object, its arena an array: where a program has an arena, callbacks may leave pointers to it, and nothing is said
/// of who calls them.
fn without_arena() -> Vec<u8> {
    // The BTF type `int (*)[33]`, by which the map says that it is an arena: element type, index type, length.
    let arena = [2, 4, 33].map(u32::to_le_bytes).concat();
    let array = [2, 4, 2].map(u32::to_le_bytes).concat();
    let places: Vec<usize> = (0..OBJECT.len()).filter(|at| OBJECT[*at..].starts_with(&arena)).collect();
    let [at] = places[..] else { panic!("{} types of 33 elements", places.len()) };
    let mut bytes = OBJECT.to_vec();
    bytes[at..at + arena.len()].copy_from_slice(&array);
    bytes
}

/// What must be refuted by a run.
fn wrong() -> Vec<Trap> {
    let lines = [per_cpu, map_in_map, ring_buffer, metadata, loader, tail_calls, newer_instructions, locks];
    lines.into_iter().flat_map(|line| line()).collect()
}

/// What must not be proven; why no run shows it is said with each line.
fn rules() -> Vec<Trap> {
    [may_goto, arena, ordering].into_iter().flat_map(|line| line()).collect()
}

/// Right rewrites that the prover does not see through: what they are, the old and the new body.
fn beyond() -> Vec<(&'static str, String, String)> {
    vec![
        // Fresh objects are not assumed apart: the formula has two addresses that may be equal.
        ("two reservations are two", reserved_twice("r8 = *(u64 *)(r6 + 0)"), reserved_twice("r8 = 1")),
        // `data_meta + 4 <= data` keeps them apart only if the sum does not wrap, which the formula does not know.
        (
            "metadata is not the packet",
            with_metadata(&format!("{BOTH}; w0 = *(u32 *)(r6 + 0)")),
            with_metadata(&format!("{BOTH}; w0 = 1")),
        ),
    ]
}

#[test]
fn wrong_rewrites_are_refuted_by_a_run() {
    let traps = wrong();
    assert!(traps.len() + callbacks().len() >= 55);
    common::all_refuted(OBJECT, &traps);
    common::all_refuted(&without_arena(), &callbacks());
    common::none_proven(OBJECT, &callbacks());
}

#[test]
fn right_rewrites_are_proven() {
    common::all_proven(OBJECT, &wrong());
    common::all_proven(OBJECT, &rules());
    common::all_proven(&without_arena(), &callbacks());
}

#[test]
fn what_breaks_the_rules_is_not_proven() {
    common::none_proven(OBJECT, &rules());
}

/// A run never refutes what is right. A line that comes to be proven belongs to its trap.
#[test]
fn what_is_beyond_the_prover_stays_unknown() {
    for (name, old, right) in beyond() {
        let verdict = judge(OBJECT, XDP, &old, &right, false);
        assert!(matches!(verdict, FunctionVerdict::Unknown { .. }), "{name}: {verdict:?}");
    }
}

/// The wrong twin of the first line above. It is refused, but no replayed run shows it yet.
#[test]
fn two_reservations_are_not_one() {
    let (old, wrong) = (reserved_twice("r8 = *(u64 *)(r6 + 0)"), reserved_twice("r8 = 2"));
    assert_ne!(judge(OBJECT, XDP, &old, &wrong, false), FunctionVerdict::Equal);
}
