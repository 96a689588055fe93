//! Instructions that the loader patches (CO-RE): where they are carried out counts, and what they may be reads of.

use std::collections::HashMap;
use std::sync::Arc;

use bpf_facts::Env;
use bpf_isa::{Call, Insn, parse_listing};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};
use bpf_prove::{Options, functions};

/// The function with this text; lines that end in `; core N` have record N, calls of subprograms lead to `sub`, addresses
/// of 64 bits are those of map `m`.
fn function(kind: ProgKind, text: &str) -> Function {
    let mut slot = 0;
    let (mut insns, mut links) = (Vec::new(), HashMap::new());
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (code, record) = line.split_once("; core ").map_or((line, None), |(code, n)| (code, Some(n)));
        for insn in parse_listing(code).expect("the listing is right") {
            let symbol = match (record, insn) {
                (Some(n), _) => Some(Symbol::Core { kind: 0, type_id: 7, access: Arc::from(n.trim()) }),
                (None, Insn::Call(Call::Local(_))) => Some(Symbol::Func { name: Arc::from("sub") }),
                (None, Insn::LoadImm64 { .. }) => Some(Symbol::Map { name: Arc::from("m"), index: 0 }),
                _ => None,
            };
            links.extend(symbol.map(|symbol| (slot, Link { slot: 0, symbol })));
            insns.push((slot, insn));
            slot += insn.slots();
        }
    }
    let f = build_from_insns("f", kind, &insns, links).expect("a graph");
    let linked = f.blocks.iter().flat_map(|b| &b.ops).filter(|o| o.is_core()).count();
    assert_eq!(linked, text.matches("; core").count(), "{f}");
    f
}

fn equal_as(kind: ProgKind, old: &str, new: &str) -> bool {
    let env = Env { maps: &[], callee_args: &|_| Some(1), ..Env::empty() };
    functions(&function(kind, old), &function(kind, new), &env, &Options::default()).0.is_equal()
}

/// Where the kernel has no such field, the loader puts in an instruction that must not be reached.
#[test]
fn it_is_carried_out_only_where_the_original_does() {
    let guarded = "r6 = 0 ; core exists\nr0 = 1\nif r6 == 0 goto +1\nr0 = 5 ; core size\nexit";
    for early in [
        "r6 = 0 ; core exists\nr7 = 5 ; core size\nr0 = 1\nif r6 == 0 goto +1\nr0 = r7\nexit",
        "r7 = 5 ; core size\nr6 = 0 ; core exists\nr0 = 1\nif r6 == 0 goto +1\nr0 = r7\nexit",
        "r7 = 5 ; core size\nr6 = 0 ; core exists\nr0 = 1\nif r6 == 0 goto +1\nr0 = 5 ; core size\nexit",
    ] {
        assert!(!equal_as(ProgKind::Xdp, guarded, early), "{early}");
    }
    let elsewhere = "r6 = 0 ; core exists\nr0 = 1\nif r6 == 0 goto +2\nr7 = 5 ; core size\nr0 = r7\nexit";
    assert!(equal_as(ProgKind::Xdp, guarded, elsewhere));
    let unused = "r6 = 0 ; core exists\nr7 = 5 ; core size\nr0 = 1\nexit";
    assert!(equal_as(ProgKind::Xdp, unused, "r0 = 1\nexit"));
    let added = "r6 = 0 ; core exists\nr0 = 1\nexit";
    assert!(!equal_as(ProgKind::Xdp, added, unused));
}

/// Which field it reads, only the loader knows.
#[test]
fn a_read_of_a_context_that_others_may_change_is_made_as_often() {
    let two = "r6 = r1\nr2 = *(u32 *)(r6 + 8) ; core cwnd\nr0 = *(u32 *)(r6 + 8) ; core cwnd\nr0 -= r2\nexit";
    let one = "r6 = r1\nr2 = *(u32 *)(r6 + 8) ; core cwnd\nr0 = r2\nr0 -= r2\nexit";
    for kind in [ProgKind::Skb, ProgKind::Other, ProgKind::Subprogram] {
        assert!(!equal_as(kind, two, one), "{kind:?}");
        assert!(equal_as(kind, two, &two.replace("r0 -= r2", "r2 = -r2\nr0 += r2")), "{kind:?}");
    }
    for kind in [ProgKind::Xdp, ProgKind::Tracing] {
        assert!(equal_as(kind, two, one), "{kind:?}");
    }
}

/// It may be the one by which the kernel translates the others.
#[test]
fn a_read_of_a_context_counts_by_being_there() {
    let (read, none) = ("r2 = *(u8 *)(r1 + 8) ; core field\nr0 = 0\nexit", "r0 = 0\nexit");
    for kind in [ProgKind::Skb, ProgKind::Other, ProgKind::Subprogram] {
        assert!(!equal_as(kind, read, none), "{kind:?}");
        assert!(!equal_as(kind, none, read), "{kind:?}");
    }
    for kind in [ProgKind::Xdp, ProgKind::Tracing] {
        assert!(equal_as(kind, read, none), "{kind:?}");
    }
}

/// `struct bpf_map` and what it stands in, read through the address of the map: others update it.
#[test]
fn a_read_of_a_map_itself_is_made_as_often() {
    let two =
        "r6 = map_fd[0] ll\nr2 = *(u32 *)(r6 + 8) ; core count\nr0 = *(u32 *)(r6 + 8) ; core count\nr0 -= r2\nexit";
    assert!(!equal_as(ProgKind::Xdp, two, "r6 = map_fd[0] ll\nr2 = *(u32 *)(r6 + 8) ; core count\nr0 = 0\nexit"));
    assert!(equal_as(ProgKind::Xdp, two, &two.replace("r0 -= r2", "r2 = -r2\nr0 += r2")));
}

#[test]
fn an_address_of_the_frame_that_the_loader_moves_leads_to_the_frame() {
    let old = "*(u64 *)(r10 - 8) = 1\nr1 = r10\nr1 += -8 ; core offset\ncall pc+0\nr0 = *(u64 *)(r10 - 8)\nexit";
    let new = "*(u64 *)(r10 - 8) = 1\nr1 = r10\nr1 += -8 ; core offset\ncall pc+0\nr0 = 1\nexit";
    let lost = "r1 = r10\nr1 += -8 ; core offset\n*(u64 *)(r10 - 8) = 2\ncall pc+0\nr0 = 0\nexit";
    let kept = "*(u64 *)(r10 - 8) = 1\nr1 = r10\nr1 += -8 ; core offset\ncall pc+0\nr0 = 0\nexit";
    for (a, b) in [(old, new), (kept, lost)] {
        assert!(!equal_as(ProgKind::Xdp, a, b), "{b}");
        assert!(equal_as(ProgKind::Xdp, a, a));
    }
}
