//! The traps of the design, each with a rewrite that falls into it.
//!
//! How they are written and judged: `common/mod.rs`. The host is `examples/hooks.o`, which has one function for each
//! kind of hook.

use bpf_driver::FunctionVerdict;

use crate::common::{self, Trap, found, found_two, judge, trap};

const OBJECT: &[u8] = include_bytes!("../../../../examples/hooks.o");

/// A subprogram with two 64-bit arguments and a 64-bit result.
const SUB: &str = "blend";
/// Context `xdp_md`, a result of 32 bits.
const XDP: &str = "on_xdp";
/// Context `__sk_buff`, a result of 32 bits.
const SKB: &str = "on_skb";
/// A tracepoint, with the CO-RE record.
const EVENT: &str = "on_event";

/// "x / 0 = 0; x % 0 = x (32-bit: zero-extended x); INT_MIN / −1; shifts use the low 6 (5) bits of the amount;
/// every 32-bit result zero-extends, mov32 and byte swaps of 16/32 included; immediates sign-extend to 64 bits
/// in ALU64, JMP, ST."
fn arithmetic() -> Vec<Trap> {
    vec![
        trap("32-bit x % 0 is the zero-extended x", SUB,
            "w2 = w2; r0 = r1; w0 %= w2; exit",
            "w2 = w2; r0 = r1; if w2 == 0 goto out; w0 %= w2; out: exit")
        // What was passed as it is may be an address, and of those the verifier has a belief about the lower half.
        .right("w2 = w2; w0 = w1; if w2 == 0 goto out; w0 %= w2; out: exit"),
        trap("32-bit division looks at 32 bits", SUB, "r0 = r1; w0 /= 4; exit", "r0 = r1; r0 /= 4; exit")
            .right("r0 = r1; w0 >>= 2; exit"),
        trap("INT_MIN / -1 wraps, it does not saturate", SUB,
            "r0 = r1; r0 s/= -1; exit",
            "r0 = r1; r0 = -r0; r1 = 0x8000000000000000 ll; if r0 != r1 goto out; r0 = 0x7fffffffffffffff ll; out: exit")
        .right("r0 = r1; r0 = -r0; exit"),
        trap("INT_MIN % -1 is 0", SUB,
            "r0 = r1; r0 s%= -1; exit",
            "r0 = 0; r2 = 0x8000000000000000 ll; if r1 != r2 goto out; r0 = r1; out: exit")
        .right("r0 = 0; exit"),
        trap("signed division is not unsigned", SUB, "r0 = r1; r0 s/= 2; exit", "r0 = r1; r0 /= 2; exit"),
        trap("signed modulo is not unsigned", SUB, "r0 = r1; r0 s%= 4; exit", "r0 = r1; r0 %= 4; exit"),
        trap("32-bit shifts use 5 bits of the amount", SUB, "w0 = w1; w0 >>= w2; exit", "w0 = w1; r0 >>= r2; exit")
            .right("w0 = w1; r2 &= 31; r0 >>= r2; exit"),
        trap("32-bit arithmetic shift takes its sign from bit 31", SUB,
            "w0 = w1; w0 s>>= 4; exit",
            "w0 = w1; r0 s>>= 4; exit"),
        trap("a 32-bit negation is zero-extended", SUB, "w0 = w1; w0 = -w0; exit", "w0 = w1; r0 = -r0; exit"),
        trap("a 32-bit move is no plain copy", SUB, "w0 = w1; exit", "r0 = r1; exit")
            .right("r0 = r1; r0 <<= 32; r0 >>= 32; exit"),
        trap("le16 is not nothing", SUB, "r0 = r1; r0 = le16 r0; exit", "r0 = r1; exit")
            .right("r0 = r1; r0 &= 0xffff; exit"),
        trap("be32 is zero-extended", SUB, "r0 = r1; r0 = be32 r0; exit", "r0 = r1; r0 = be64 r0; r0 s>>= 32; exit")
            .right("r0 = r1; r0 = be64 r0; r0 >>= 32; exit"),
        trap("the immediate of a 64-bit move is sign-extended", SUB, "r0 = -1; exit", "w0 = -1; exit")
            .right("r0 = 0xffffffffffffffff ll; exit"),
        trap("the immediate of a 64-bit comparison is sign-extended", SUB,
            "r0 = 0; if r1 != -1 goto out; r0 = 1; out: exit",
            "r0 = 0; if w1 != -1 goto out; r0 = 1; out: exit")
        .right("r0 = 0; r2 = -1; if r1 != r2 goto out; r0 = 1; out: exit"),
        trap("the immediate of a 64-bit bit test is sign-extended", SUB,
            "r0 = 0; if r1 & -2147483648 goto one; exit; one: r0 = 1; exit",
            "r0 = 0; if w1 & -2147483648 goto one; exit; one: r0 = 1; exit")
        .right("r0 = 0; r1 >>= 31; if r1 != 0 goto one; exit; one: r0 = 1; exit"),
        trap("the immediate of a 64-bit store is sign-extended", XDP,
            found("counts", "*(u64 *)(r6 + 0) = -1"),
            found("counts", "w1 = -1; *(u64 *)(r6 + 0) = r1"))
        .right(found("counts", "r1 = -1; *(u64 *)(r6 + 0) = r1")),
        trap("signed comparison is not unsigned", SUB,
            "r0 = 0; if r1 s> r2 goto one; exit; one: r0 = 1; exit",
            "r0 = 0; if r1 > r2 goto one; exit; one: r0 = 1; exit")
        .right("r0 = 1; if r2 s< r1 goto out; r0 = 0; out: exit"),
    ]
}

/// "cpu v4: movsx, ldsx, bswap, sdiv/smod, gotol […]. Atomics: fetch forms, xchg, cmpxchg through r0, 32-bit
/// ones zero-extend."
fn newer_instructions() -> Vec<Trap> {
    let or32 = "r1 = -1; w1 = atomic_fetch_or((u32 *)(r6 + 0), w1)";
    let swap = "r0 = 7; r2 = 9; r0 = cmpxchg_64(r6 + 0, r0, r2)";
    let swap32 = "r0 = -1; r2 = 9; w0 = cmpxchg32_32(r6 + 0, w0, w2)";
    let with = |atomic: &str, then: &str| found("counts", &format!("{atomic}; {then}; exit"));
    vec![
        trap("movsx repeats the sign", SUB, "r0 = (s8)r1; exit", "r0 = r1; r0 &= 255; exit")
            .right("r0 = r1; r0 <<= 56; r0 s>>= 56; exit"),
        trap("32-bit movsx is zero-extended", SUB, "w0 = (s8)w1; exit", "r0 = (s8)r1; exit")
            .right("r0 = (s8)r1; w0 = w0; exit"),
        trap(
            "ldsx repeats the sign",
            SUB,
            "*(u64 *)(r10 - 8) = r1; r0 = *(s16 *)(r10 - 8); exit",
            "*(u64 *)(r10 - 8) = r1; r0 = *(u16 *)(r10 - 8); exit",
        ),
        trap(
            "bswap16 clears the bits above",
            SUB,
            "r0 = r1; r0 = bswap16 r0; exit",
            "r0 = r1; r0 = bswap64 r0; r0 s>>= 48; exit",
        )
        .right("r0 = r1; r0 = bswap32 r0; r0 >>= 16; exit"),
        trap(
            "gotol to another place",
            SUB,
            "if r1 == 0 goto a; gotol b; a: r0 = 1; exit; b: r0 = 2; exit",
            "if r1 == 0 goto b; gotol a; a: r0 = 1; exit; b: r0 = 2; exit",
        )
        .right("if r1 != 0 goto b; r0 = 1; exit; b: r0 = 2; exit"),
        trap(
            "fetch_add gives the old value",
            XDP,
            with("r1 = 3; r1 = atomic_fetch_add((u64 *)(r6 + 0), r1)", "r0 = r1"),
            with("r1 = 3; r1 = atomic_fetch_add((u64 *)(r6 + 0), r1)", "r0 = r1; r0 += 3"),
        ),
        trap("a 32-bit fetch_or zero-extends", XDP, with(or32, "r0 = r1; r0 >>= 32"), with(or32, "r0 = -1; r0 >>= 32"))
            .right(with(or32, "r0 = 0")),
        trap(
            "xchg gives the old value",
            XDP,
            with("r1 = 5; r1 = xchg_64(r6 + 0, r1)", "r0 = r1"),
            with("r1 = 5; r1 = xchg_64(r6 + 0, r1)", "r0 = 5"),
        ),
        trap("cmpxchg compares with r0", XDP, with(swap, "w0 = 0"), with(swap, "w0 = 0").replace("r0 = 7", "r0 = 8")),
        trap("cmpxchg gives the old value in r0", XDP, with(swap, "r0 += 1"), with(swap, "r0 = 8")),
        trap(
            "a 32-bit cmpxchg zero-extends r0 even if it succeeds",
            XDP,
            with(swap32, "w0 = w0; r0 >>= 32"),
            with(swap32, "w0 = w0; if w0 != -1 goto a; r0 = -1; a: r0 >>= 32"),
        )
        .right(with(swap32, "r0 = 0")),
        trap("an atomic dropped", XDP, with("r1 = 1; lock *(u64 *)(r6 + 0) += r1", "w0 = 1"), with("", "w0 = 1")),
        trap(
            "a 64-bit atomic carries into the upper half",
            XDP,
            with("r1 = 1; lock *(u64 *)(r6 + 0) += r1", "w0 = 1"),
            with("r1 = 1; lock *(u32 *)(r6 + 0) += r1", "w0 = 1"),
        ),
    ]
}

/// "Context fields are not memory. […] `*(u32 *)(ctx + 0)` of an xdp_md IS a 64-bit packet pointer. Widths and
/// offsets allowed differ per program type and field; two neighbours cannot be merged unless the field allows it."
fn context() -> Vec<Trap> {
    let two = "r2 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4)";
    vec![
        trap(
            "neighbouring context fields are not one word",
            SKB,
            "r0 = *(u32 *)(r1 + 0); r2 = *(u32 *)(r1 + 4); r0 += r2; exit",
            "r0 = *(u64 *)(r1 + 0); r2 = r0; r2 >>= 32; r0 += r2; exit",
        )
        .right("r2 = *(u32 *)(r1 + 4); r0 = *(u32 *)(r1 + 0); r0 += r2; exit"),
        trap(
            "part of a field that allows no part",
            XDP,
            "r0 = *(u32 *)(r1 + 16); r0 &= 255; exit",
            "r0 = *(u8 *)(r1 + 16); exit",
        ),
        trap(
            "part of the field `data`",
            XDP,
            "r0 = *(u32 *)(r1 + 0); r0 &= 0xffff; exit",
            "r0 = *(u16 *)(r1 + 0); exit",
        ),
        trap(
            "the order of context stores",
            SKB,
            "r2 = 1; *(u32 *)(r1 + 8) = r2; r2 = 2; *(u32 *)(r1 + 8) = r2; w0 = 0; exit",
            "r2 = 2; *(u32 *)(r1 + 8) = r2; r2 = 1; *(u32 *)(r1 + 8) = r2; w0 = 0; exit",
        ),
        trap(
            "cb[] is memory: its halves merged the wrong way round",
            SKB,
            format!("{two}; *(u32 *)(r1 + 48) = r2; *(u32 *)(r1 + 52) = r3; w0 = 0; exit"),
            format!("{two}; r2 <<= 32; r2 |= r3; *(u64 *)(r1 + 48) = r2; w0 = 0; exit"),
        )
        .right(format!("{two}; r3 <<= 32; r2 |= r3; *(u64 *)(r1 + 48) = r2; w0 = 0; exit")),
    ]
}

/// "Packet pointers survive only with the bounds-check shape the verifier knows, and die at any helper that may
/// move the packet."
fn packet() -> Vec<Trap> {
    let limits = "r7 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4)";
    let byte = |checked: u32, read: u32| {
        format!("r2 = r7; r2 += {checked}; w0 = 0; if r2 > r3 goto out; r0 = *(u8 *)(r7 + {read}); out: exit")
    };
    let moved = |before: &str, after: &str| {
        format!("r6 = r1; {before}; w2 = 4; call 44; {after}; r3 = *(u32 *)(r6 + 4); {}", byte(1, 0))
    };
    let load = "r7 = *(u32 *)(r6 + 0)";
    vec![
        trap("a packet pointer from before adjust_head", XDP, moved(load, load), moved(load, ""))
            .right(moved("", load)),
        trap(
            "a bounds check dropped",
            XDP,
            format!("{limits}; {}", byte(1, 0)),
            format!("{limits}; r0 = *(u8 *)(r7 + 0); exit"),
        ),
        trap(
            "a bounds check one byte short",
            XDP,
            format!("{limits}; {}", byte(2, 1)),
            format!("{limits}; {}", byte(1, 1)),
        ),
        trap(
            "a packet write dropped",
            XDP,
            format!("{limits}; r2 = r7; r2 += 2; w0 = 2; if r2 > r3 goto out; *(u16 *)(r7 + 0) = 8; out: exit"),
            "w0 = 2; exit",
        ),
    ]
}

/// "Stack accesses are aligned to their width […]. Spilled pointers are […] never partially overwritten. Helpers
/// read and write stack buffers: liveness must see them. A stack address that escapes (subprogram, callback,
/// unmodelled call) makes its bytes live until proven otherwise."
fn stack() -> Vec<Trap> {
    let lookup = "r2 = r10; r2 += -4; r1 = &counts; call 1; if r0 == 0 goto out; w0 = 1; out: exit";
    let queue = "r2 = *(u32 *)(r1 + 16)";
    let probe = "r1 = r10; r1 += -16; w2 = 16; r3 = 8; call 113";
    let sum = "r1 = r10; r1 += -16; call sum; exit";
    let count = "*(u64 *)(r10 - 8) = 0; w1 = 4; r2 = &count_up; r3 = r10; r3 += -8; r4 = 0; call 181";
    vec![
        trap(
            "a spill that is partly overwritten",
            SUB,
            "*(u64 *)(r10 - 8) = r1; *(u8 *)(r10 - 8) = r2; r0 = *(u64 *)(r10 - 8); exit",
            "r0 = r1; exit",
        )
        .right("r0 = r1; r0 &= -256; r2 &= 255; r0 |= r2; exit"),
        trap(
            "two halves merged the wrong way round",
            SUB,
            "*(u32 *)(r10 - 8) = r1; *(u32 *)(r10 - 4) = r2; r0 = *(u64 *)(r10 - 8); exit",
            "r1 <<= 32; w2 = w2; r1 |= r2; r0 = r1; exit",
        )
        .right("w1 = w1; r2 <<= 32; r1 |= r2; r0 = r1; exit"),
        trap(
            "the key that a lookup reads",
            XDP,
            format!("{queue}; *(u32 *)(r10 - 4) = 0; *(u32 *)(r10 - 4) = r2; {lookup}"),
            format!("{queue}; *(u32 *)(r10 - 4) = 0; {lookup}"),
        )
        .right(format!("{queue}; *(u32 *)(r10 - 4) = r2; {lookup}")),
        trap(
            "a key stored after the lookup",
            XDP,
            "*(u32 *)(r10 - 4) = 0; *(u32 *)(r10 - 4) = 7; r2 = r10; r2 += -4; r1 = &counts; call 1; w0 = 1; exit",
            "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = &counts; call 1; *(u32 *)(r10 - 4) = 7; w0 = 1; exit",
        ),
        trap(
            "a buffer that a helper writes",
            EVENT,
            format!("*(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; {probe}; r0 = *(u64 *)(r10 - 16); exit"),
            format!("*(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; {probe}; r0 = 0; exit"),
        )
        .right(format!("{probe}; r0 = *(u64 *)(r10 - 16); exit")),
        trap(
            "a buffer that a subprogram reads",
            XDP,
            format!("{queue}; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 8) = r2; {sum}"),
            format!("{queue}; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; {sum}"),
        )
        .right(format!("{queue}; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = r2; {sum}")),
        trap(
            "a variable that a callback changes",
            XDP,
            format!("{count}; r0 = *(u64 *)(r10 - 8); exit"),
            format!("{count}; r0 = 0; exit"),
        ),
    ]
}

/// "Two lookups in one map may return the same element; […] packet, data_meta and what skb helpers write are one
/// memory. Different maps, the stack and the packet never overlap."
fn aliasing() -> Vec<Trap> {
    let write = |then: &str| format!("*(u64 *)(r6 + 0) = 1; *(u64 *)(r7 + 0) = 2; {then}; exit");
    let one_map = |then: &str| found_two("counts", "counts", &write(then));
    let two_maps = |then: &str| found_two("counts", "totals", &write(then));
    let bounds = "r7 = *(u32 *)(r6 + 76); r3 = *(u32 *)(r6 + 80); r2 = r7; r2 += 1; w0 = 0; if r2 > r3 goto out";
    let stored = |last: &str| {
        format!(
            "r6 = r1; {bounds}; r8 = *(u8 *)(r7 + 0); *(u64 *)(r10 - 8) = 77;
             r1 = r6; r2 = 0; r3 = r10; r3 += -8; w4 = 1; r5 = 0; call 9; {bounds}; {last}; out: exit"
        )
    };
    let updated = |last: &str| {
        found(
            "counts",
            &format!(
                "r8 = *(u64 *)(r6 + 0); *(u64 *)(r10 - 24) = 5; *(u64 *)(r10 - 16) = 5;
             r1 = &counts; r2 = r10; r2 += -4; r3 = r10; r3 += -24; r4 = 0; call 2; {last}; r0 += r8; exit"
            ),
        )
    };
    vec![
        trap("two lookups in one map may give one element", XDP, one_map("r0 = *(u64 *)(r6 + 0)"), one_map("r0 = 1")),
        // Neither is 1 for sure: others may write it between the store and the load.
        trap("two lookups in different maps never do", XDP, two_maps("r0 = *(u64 *)(r6 + 0)"), two_maps("r0 = 2"))
            .right(two_maps("r0 = r6; r0 = *(u64 *)(r0 + 0)")),
        trap("skb_store_bytes writes the packet", SKB, stored("r0 = *(u8 *)(r7 + 0)"), stored("r0 = r8")),
        trap(
            "map_update_elem writes the element that was looked up",
            XDP,
            updated("r0 = *(u64 *)(r6 + 0)"),
            updated("r0 = r8"),
        ),
    ]
}

/// "Code that only the loader's choice makes dead (guarded by `.rodata`, kconfig or CO-RE existence) must stay."
/// "CO-RE: an instruction with a relocation record has a value unknown until load […]. `.rodata` and kconfig
/// values may be set before load: constants only if the user says so."
fn loader() -> Vec<Trap> {
    vec![
        trap("a .rodata value is not constant", XDP, "r1 = &limit; r0 = *(u32 *)(r1 + 0); exit", "w0 = 100; exit"),
        trap(
            "code that .rodata guards",
            XDP,
            "r1 = &limit; r1 = *(u32 *)(r1 + 0); w0 = 1; if r1 != 0 goto out; w0 = 2; out: exit",
            "w0 = 1; exit",
        )
        .right("r1 = &limit; r1 = *(u32 *)(r1 + 0); w0 = 2; if r1 == 0 goto out; w0 = 1; out: exit"),
        trap("an immediate with a CO-RE record is not constant", EVENT, "r0 = core; exit", "r0 = 4; exit")
            .right("r1 = core; r0 = r1; exit"),
        trap("a CO-RE record lost", EVENT, "r6 = core; call 14; r0 += r6; exit", "r6 = 4; call 14; r0 += r6; exit")
            .right("call 14; r6 = core; r0 += r6; exit"),
        trap("a write to global data dropped", XDP, "r1 = &seen; *(u64 *)(r1 + 0) = 1; w0 = 2; exit", "w0 = 2; exit"),
        trap(
            "a write to other global data",
            XDP,
            "r1 = &seen; *(u64 *)(r1 + 0) = 1; w0 = 2; exit",
            "r1 = &dropped; *(u64 *)(r1 + 0) = 1; w0 = 2; exit",
        ),
    ]
}

/// "r1–r5 die at a call. […] ALU32 and most ALU on pointers is refused. Null checks are part of a pointer's type
/// on both edges." "BTF.ext offsets, […] section-relative bpf-to-bpf calls, `ld_imm64` of a function address: all
/// move when an instruction goes." "A static subprogram in `.text` is linked into every program that calls it."
fn calls() -> Vec<Trap> {
    let write = "r1 = &seen; *(u64 *)(r1 + 0) = 1";
    let tail = "r1 = r6; r2 = &jumps; w3 = 1; call 12";
    let key = "*(u32 *)(r10 - 4) = 1; r2 = r10; r2 += -4; r1 = &counts; call 1";
    let callback = |name: &str| {
        format!("*(u64 *)(r10 - 8) = 0; w1 = 4; r2 = &{name}; r3 = r10; r3 += -8; r4 = 0; call 181; w0 = 2; exit")
    };
    vec![
        trap("r1 dies at a call", SUB, "r6 = r1; call 5; r0 = r6; exit", "call 5; r0 = r1; exit"),
        trap(
            "calls reordered",
            SUB,
            "call 5; r6 = r0; call 14; r0 -= r6; exit",
            "call 14; r6 = r0; call 5; r0 -= r6; exit",
        ),
        trap("a call dropped because its result is not used", SUB, "call 7; r0 = 0; exit", "r0 = 0; exit"),
        trap(
            "32-bit arithmetic on a pointer",
            XDP,
            format!("{key}; w0 = 2; exit"),
            format!("{key}; w0 = 2; exit").replace("r2 += -4", "w2 += -4"),
        ),
        trap(
            "the edges of a null check swapped",
            XDP,
            format!("{key}; if r0 == 0 goto out; w0 = 1; exit; out: w0 = 2; exit"),
            format!("{key}; if r0 != 0 goto out; w0 = 1; exit; out: w0 = 2; exit"),
        )
        .right(format!("{key}; if r0 != 0 goto out; w0 = 2; exit; out: w0 = 1; exit")),
        trap(
            "a null check dropped",
            XDP,
            format!("{key}; if r0 == 0 goto out; w0 = 1; exit; out: w0 = 2; exit"),
            format!("{key}; w0 = 1; exit"),
        ),
        trap("another map", XDP, found("counts", "w0 = 1; exit"), found("totals", "w0 = 1; exit")),
        trap("another subprogram", XDP, "r1 = 1; r2 = 2; call mix; exit", "r1 = 1; r2 = 2; call blend; exit"),
        trap("another argument", XDP, "r1 = 1; r2 = 2; call mix; exit", "r1 = 1; r2 = 3; call mix; exit")
            .right("r2 = 2; r1 = 1; call mix; exit"),
        trap("another callback", XDP, callback("count_up"), callback("count_down")),
        trap(
            "memory that the tail-called program sees",
            XDP,
            format!("r6 = r1; {write}; {tail}; w0 = 0; exit"),
            format!("r6 = r1; {tail}; w0 = 0; exit"),
        ),
        trap(
            "a write moved behind a tail call",
            XDP,
            format!("r6 = r1; {write}; {tail}; w0 = 0; exit"),
            format!("r6 = r1; {tail}; {write}; w0 = 0; exit"),
        ),
        trap(
            "another index of a tail call",
            XDP,
            format!("r6 = r1; {tail}; w0 = 0; exit"),
            format!("r6 = r1; {tail}; w0 = 0; exit").replace("w3 = 1", "w3 = 2"),
        ),
        trap("a subprogram returns 64 bits", SUB, "r0 = r1; exit", "w0 = w1; exit"),
        trap(
            "a hook reads 32 bits of the result, not 16",
            XDP,
            "r0 = *(u32 *)(r1 + 16); exit",
            "r0 = *(u32 *)(r1 + 16); r0 &= 0xffff; exit",
        )
        .right("r0 = *(u32 *)(r1 + 16); w0 = w0; exit"),
        trap(
            "a subprogram that tail-calls gets 64 bits of the result",
            XDP,
            "r0 = *(u32 *)(r1 + 16); exit",
            "r0 = *(u32 *)(r1 + 16); r2 = -1; r2 <<= 32; r0 |= r2; exit",
        ),
    ]
}

/// What the contract forbids although perhaps no single run shows a difference: none of these may be proven.
fn rules() -> Vec<Trap> {
    let element = |body: &str| found("counts", &format!("{body}; w0 = 1; exit"));
    let (load, store) = ("r1 = *(u64 *)(r6 + 0)", "*(u64 *)(r6 + 0) = r1");
    vec![
        trap(
            "a second read of a map value",
            XDP,
            found("counts", "r0 = *(u64 *)(r6 + 0); r0 += r0; exit"),
            found("counts", "r0 = *(u64 *)(r6 + 0); r1 = *(u64 *)(r6 + 0); r0 += r1; exit"),
        )
        .right(found("counts", "r0 = *(u64 *)(r6 + 0); r0 <<= 1; exit")),
        trap(
            "a second read of global data",
            XDP,
            "r1 = &seen; r0 = *(u64 *)(r1 + 0); r0 += r0; exit",
            "r1 = &seen; r0 = *(u64 *)(r1 + 0); r2 = *(u64 *)(r1 + 0); r0 += r2; exit",
        ),
        trap(
            "a 64-bit read-modify-write narrowed",
            XDP,
            element(&format!("{load}; r1 |= 1; {store}")),
            element("r1 = *(u8 *)(r6 + 0); r1 |= 1; *(u8 *)(r6 + 0) = r1"),
        ),
        trap(
            "a write that writes back what was read",
            XDP,
            found("counts", &format!("{load}; r0 = r1; exit")),
            found("counts", &format!("{load}; {store}; r0 = r1; exit")),
        ),
        // No run: the interpreter loads no more than the 32 bits of the field.
        trap(
            "the 32-bit field `data` is a 64-bit pointer",
            XDP,
            "r0 = *(u32 *)(r1 + 0); r0 >>= 32; exit",
            "w0 = 0; exit",
        ),
        trap(
            "a packet read that was not there",
            XDP,
            "r7 = *(u32 *)(r1 + 0); w0 = 2; exit",
            "r7 = *(u32 *)(r1 + 0); r2 = *(u8 *)(r7 + 0); w0 = 2; exit",
        ),
        trap(
            "a dereference before its null check",
            XDP,
            found("counts", "r8 = *(u64 *)(r6 + 0); w0 = 1; if r8 == 0 goto out; exit"),
            found("counts", "w0 = 1; if r8 == 0 goto out; exit").replace("if r0", "r8 = *(u64 *)(r0 + 0); if r0"),
        ),
    ]
}

/// Every trap that must be refuted.
fn wrong() -> Vec<Trap> {
    let lines = [arithmetic, newer_instructions, context, packet, stack, aliasing, loader, calls];
    lines.into_iter().flat_map(|line| line()).collect()
}

#[test]
fn wrong_rewrites_are_refuted_by_a_run() {
    let traps = wrong();
    assert!(traps.len() >= 30);
    common::all_refuted(OBJECT, &traps);
}

#[test]
fn right_rewrites_are_proven() {
    common::all_proven(OBJECT, &wrong());
    common::all_proven(OBJECT, &rules());
}

#[test]
fn what_breaks_the_rules_is_not_proven() {
    common::none_proven(OBJECT, &rules());
}

/// Merging two writes is allowed, unless the user forbids it.
#[test]
fn strictness_forbids_merging() {
    let old = found("counts", "*(u32 *)(r6 + 0) = 1; *(u32 *)(r6 + 4) = 0");
    let new = found("counts", "*(u64 *)(r6 + 0) = 1");
    assert_eq!(judge(OBJECT, XDP, &old, &new, false), FunctionVerdict::Equal);
    assert_ne!(judge(OBJECT, XDP, &old, &new, true), FunctionVerdict::Equal);
}
