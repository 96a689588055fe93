//! What depends on the byte order of the machine, and what does not: pairs of functions with the verdict in each order. Each
//! verdict `different` must show in a run.

use bpf_facts::Env;
use bpf_program::{ByteOrder, Function, ProgKind};
use bpf_prove::{Options, Verdict, functions, replay};
use bpf_testgen::listing::linked;

/// In which orders two functions are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Equal {
    Little,
    Big,
    Both,
    Neither,
}

use Equal::{Big, Both, Little, Neither};

fn function(kind: ProgKind, text: &str, byte_order: ByteOrder) -> Function {
    let f = linked(kind, text, |_| None).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Function { byte_order, ..f }
}

fn judge(kind: ProgKind, old: &str, new: &str, byte_order: ByteOrder) -> bool {
    let env = Env { byte_order, ..Env::empty() };
    let [old, new] = [old, new].map(|text| function(kind, text, byte_order));
    match functions(&old, &new, &env, &Options::default()).0 {
        Verdict::Equal => true,
        Verdict::Different(mut d) => {
            assert!(replay(&mut d, &old, &new, &env).is_some(), "no run shows it in {byte_order:?}:\n{old}{new}");
            false
        }
        Verdict::Unknown(why) => panic!("{byte_order:?}: {why}\n{old}{new}"),
    }
}

fn check(kind: ProgKind, cases: &[(&str, &str, Equal)]) {
    for (old, new, equal) in cases {
        for (order, is) in
            [(ByteOrder::Little, matches!(equal, Little | Both)), (ByteOrder::Big, matches!(equal, Big | Both))]
        {
            assert_eq!(judge(kind, old, new, order), is, "{order:?}: {equal:?}\n{old}\n-- against --\n{new}");
        }
    }
}

#[test]
fn conversions() {
    let cases = [
        ("r0 = r1\nr0 = be16 r0\nexit", "r0 = r1\nr0 &= 65535\nexit", Big),
        ("r0 = r1\nr0 = le16 r0\nexit", "r0 = r1\nr0 &= 65535\nexit", Little),
        ("r0 = r1\nr0 = be32 r0\nexit", "w0 = w1\nexit", Big),
        ("r0 = r1\nr0 = le32 r0\nexit", "w0 = w1\nexit", Little),
        ("r0 = r1\nr0 = be64 r0\nexit", "r0 = r1\nexit", Big),
        ("r0 = r1\nr0 = bswap32 r0\nexit", "r0 = r1\nr0 = be32 r0\nexit", Little),
        ("r0 = r1\nr0 = bswap64 r0\nexit", "r0 = r1\nr0 = le64 r0\nexit", Big),
        ("r0 = r1\nr0 = be64 r0\nr0 = le64 r0\nexit", "r0 = r1\nr0 = bswap64 r0\nexit", Both),
        ("r0 = r1\nr0 = be16 r0\nexit", "r0 = r1\nr0 = be32 r0\nexit", Neither),
    ];
    check(ProgKind::Subprogram, &cases);
}

#[test]
fn parts_of_what_is_stored_in_the_frame() {
    let cases = [
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u8 *)(r10 - 8)\nexit", "r0 = r1\nr0 &= 255\nexit", Little),
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u8 *)(r10 - 8)\nexit", "r0 = r1\nr0 >>= 56\nexit", Big),
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u32 *)(r10 - 4)\nexit", "w0 = w1\nexit", Big),
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u16 *)(r10 - 6)\nexit", "r0 = r1\nr0 >>= 32\nr0 &= 65535\nexit", Big),
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u16 *)(r10 - 6)\nexit", "r0 = r1\nr0 >>= 16\nr0 &= 65535\nexit", Little),
        (
            "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 2\nr0 = *(u64 *)(r10 - 8)\nexit",
            "r0 = 0x100000002 ll\nexit",
            Big,
        ),
        (
            "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 2\nr0 = *(u64 *)(r10 - 8)\nexit",
            "r0 = 0x200000001 ll\nexit",
            Little,
        ),
        // What is read as it was stored depends on nothing, an address neither.
        ("*(u64 *)(r10 - 8) = r1\nr0 = *(u64 *)(r10 - 8)\nexit", "r0 = r1\nexit", Both),
        (
            "*(u64 *)(r10 - 16) = r10\nr1 = *(u64 *)(r10 - 16)\n*(u64 *)(r1 - 8) = 7\nr0 = *(u64 *)(r10 - 8)\nexit",
            "r0 = 7\nexit",
            Both,
        ),
        // An atomic counts numbers of the machine.
        (
            "*(u64 *)(r10 - 8) = 255\nr1 = 1\nlock *(u64 *)(r10 - 8) += r1\nr0 = *(u8 *)(r10 - 2)\nexit",
            "*(u64 *)(r10 - 8) = 255\nr1 = 1\nlock *(u64 *)(r10 - 8) += r1\nr0 = 1\nexit",
            Big,
        ),
    ];
    check(ProgKind::Subprogram, &cases);
}

#[test]
fn bytes_of_the_packet() {
    let head = "r6 = *(u32 *)(r1 + 0)\nr2 = *(u32 *)(r1 + 4)\nr0 = 0\nr3 = r6\nr3 += 8\nif r3 > r2 goto L1\n";
    let with = |text: &str| format!("{head}{text}\nL1:\nexit");
    let cases = [
        ("r0 = *(u8 *)(r6 + 0)\nr0 <<= 8\nr4 = *(u8 *)(r6 + 1)\nr0 |= r4", "r0 = *(u16 *)(r6 + 0)", Big),
        ("r0 = *(u8 *)(r6 + 1)\nr0 <<= 8\nr4 = *(u8 *)(r6 + 0)\nr0 |= r4", "r0 = *(u16 *)(r6 + 0)", Little),
        ("r0 = *(u32 *)(r6 + 0)\nr0 = be32 r0", "r0 = *(u32 *)(r6 + 0)", Big),
        ("*(u8 *)(r6 + 0) = 1\n*(u8 *)(r6 + 1) = 2", "*(u16 *)(r6 + 0) = 0x102", Big),
        ("*(u8 *)(r6 + 0) = 1\n*(u8 *)(r6 + 1) = 2", "*(u16 *)(r6 + 0) = 0x201", Little),
        (
            "r4 = *(u32 *)(r6 + 0)\n*(u32 *)(r6 + 4) = r4",
            "r4 = *(u32 *)(r6 + 0)\nr4 = be32 r4\n*(u32 *)(r6 + 4) = r4",
            Big,
        ),
    ];
    let texts: Vec<(String, String, Equal)> = cases.iter().map(|(a, b, e)| (with(a), with(b), *e)).collect();
    let cases: Vec<(&str, &str, Equal)> = texts.iter().map(|(a, b, e)| (a.as_str(), b.as_str(), *e)).collect();
    check(ProgKind::Xdp, &cases);
}

#[test]
fn parts_of_fields_of_the_context() {
    // `mark`: `bpf_ctx_narrow_access_offset` in include/linux/filter.h.
    let cases = [
        ("r0 = *(u32 *)(r1 + 8)\nr0 &= 255\nexit", "r0 = *(u8 *)(r1 + 8)\nexit", Little),
        ("r0 = *(u32 *)(r1 + 8)\nr0 &= 255\nexit", "r0 = *(u8 *)(r1 + 11)\nexit", Big),
        ("r0 = *(u32 *)(r1 + 8)\nr0 >>= 16\nexit", "r0 = *(u16 *)(r1 + 8)\nexit", Big),
        // `cb` is memory.
        ("*(u32 *)(r1 + 48) = 7\nr0 = *(u8 *)(r1 + 48)\nexit", "*(u32 *)(r1 + 48) = 7\nr0 = 7\nexit", Little),
        ("*(u32 *)(r1 + 48) = 7\nr0 = *(u8 *)(r1 + 51)\nexit", "*(u32 *)(r1 + 48) = 7\nr0 = 7\nexit", Big),
    ];
    check(ProgKind::Skb, &cases);
}

#[test]
fn functions_for_different_machines_are_not_compared() {
    let text = "r0 = 0\nexit";
    let little = function(ProgKind::Xdp, text, ByteOrder::Little);
    let big = function(ProgKind::Xdp, text, ByteOrder::Big);
    for (old, new, byte_order) in [(&little, &big, ByteOrder::Little), (&big, &little, ByteOrder::Big)] {
        let env = Env { byte_order, ..Env::empty() };
        let verdict = functions(old, new, &env, &Options::default()).0;
        assert!(matches!(verdict, Verdict::Unknown(_)), "they are called equal or different");
    }
}
