//! The text syntax, without LLVM at hand: round trip, hand-written forms, listings, errors.

use bpf_isa::*;

use crate::common::{Random, variety};

/// The instruction LLVM's text for `insn` stands for: where that text holds less than the
/// instruction, another one.
fn as_printed(insn: Insn) -> Insn {
    match insn {
        Insn::Call(Call::Local(n) | Call::Kfunc { btf_id: n, .. }) => Insn::Call(Call::Helper(n)),
        Insn::LoadImm64 { kind: Imm64Kind::Const, .. } => insn,
        Insn::LoadImm64 { dst, kind, imm } => Insn::LoadImm64 { dst, kind, imm: imm & 0xffff_ffff },
        _ => insn,
    }
}

#[test]
fn printed_text_parses_back() {
    for insn in variety() {
        let text = insn.to_string();
        assert_eq!(parse(&text), Ok(as_printed(insn)), "{text}");
    }
}

#[test]
fn operands_print_as_llvm_prints_them() {
    let lines = [
        "r1 = *(u32 *)(r2 + 0x4)",
        "r1 = *(s8 *)(r2 - 0x8000)",
        "*(u8 *)(r10 - 0x1) = r2",
        "*(u64 *)(r1 + 0x0) = -0x5",
        "w1 += -0x1",
        "r1 s>>= 0x3",
        "w1 s%= w2",
        "r1 = -0x80000000",
        "w1 = -w1",
        "w3 = (s8)w2",
        "r3 = (s32)r2",
        "r1 = be16 r1",
        "r1 = le64 r1",
        "r1 = bswap32 r1",
        "r1 = addr_space_cast(r2, 0x0, 0x1)",
        "r1 = -0x8000000000000000 ll",
        "ld_pseudo\tr1, 0x1, 0xffffffff",
        "lock *(u64 *)(r1 + 0x0) += r2",
        "lock *(u32 *)(r1 + 0x0) += r2",
        "lock *(u32 *)(r1 + 0x0) |= w2",
        "r3 = atomic_fetch_add((u64 *)(r1 - 0x8), r3)",
        "w3 = atomic_fetch_xor((u32 *)(r1 + 0x0), w3)",
        "r2 = xchg_64(r1 + 0x0, r2)",
        "w2 = xchg32_32(r1 + 0x0, w2)",
        "r0 = cmpxchg_64(r1 + 0x0, r0, r2)",
        "w0 = cmpxchg32_32(r1 + 0x0, w0, w2)",
        "w1 = load_acquire((u8 *)(r2 + 0x0))",
        "r1 = load_acquire((u64 *)(r2 + 0x8))",
        "store_release((u16 *)(r1 - 0x2), w2)",
        "r0 = *(u8 *)skb[0x5]",
        "r0 = *(u16 *)skb[-0x4]",
        "r0 = *(u32 *)skb[r7]",
        "r0 = *(u32 *)skb[r7 - 0x4]",
        "goto -0x3",
        "gotol +0x7fffffff",
        "if w1 s> -0x3 goto +0x5",
        "if r1 & r2 goto -0x8000",
        "may_goto +0x1",
        "call 0x1",
        "call -0x1",
        "callx r3",
        "exit",
    ];
    for line in lines {
        assert_eq!(parse(line).map(|i| i.to_string()).as_deref(), Ok(line));
    }
    assert_eq!(Insn::Opaque(0).to_string(), "<unknown>");
}

#[test]
fn hand_written_forms_parse() {
    let forms = [
        ("r1=5", "r1 = 0x5"),
        ("  r1   =   -5 ", "r1 = -0x5"),
        ("r1 = +5", "r1 = 0x5"),
        ("w1 = 0xffffffff", "w1 = -0x1"),
        ("*(u32*)(r1+4) = 0xffffffff", "*(u32 *)(r1 + 0x4) = -0x1"),
        ("w1 = *(u8 *)(r2 + 0)", "r1 = *(u8 *)(r2 + 0x0)"),
        ("*(u32 *)(r1) = w2", "*(u32 *)(r1 + 0x0) = r2"),
        ("lock *(u32 *)(r1 + 0) += w2", "lock *(u32 *)(r1 + 0x0) += r2"),
        ("r1 = 0xffffffffffffffff ll", "r1 = -0x1 ll"),
        ("goto 5", "goto +0x5"),
        ("if r1 s<= 0x10 goto -12", "if r1 s<= 0x10 goto -0xc"),
        ("if r1 != 0 goto +2 <prog+0x18>", "if r1 != 0x0 goto +0x2"),
        ("r1 = map_fd[3] ll", "ld_pseudo\tr1, 0x1, 0x3"),
    ];
    for (text, printed) in forms {
        assert_eq!(parse(text).map(|i| i.to_string()).as_deref(), Ok(printed), "{text}");
    }
}

#[test]
fn calls_and_pseudo_immediates_have_unambiguous_forms() {
    assert_eq!(parse("call 7"), Ok(Insn::Call(Call::Helper(7))));
    assert_eq!(parse("call pc+7"), Ok(Insn::Call(Call::Local(7))));
    assert_eq!(parse("call pc-0x2"), Ok(Insn::Call(Call::Local(-2))));
    assert_eq!(parse("call kfunc 100"), Ok(Insn::Call(Call::Kfunc { btf_id: 100, off: 0 })));
    let kinds = [
        ("map_fd", Imm64Kind::MapFd),
        ("map_value", Imm64Kind::MapValue),
        ("btf_id", Imm64Kind::BtfId),
        ("func", Imm64Kind::Func),
        ("map_idx", Imm64Kind::MapIdx),
        ("map_idx_value", Imm64Kind::MapIdxValue),
    ];
    for (name, kind) in kinds {
        let insn = Insn::LoadImm64 { dst: Reg::R1, kind, imm: 0x8_0000_0003 };
        assert_eq!(parse(&format!("r1 = {name}[0x800000003] ll")), Ok(insn));
    }
}

#[test]
fn wrong_lines_are_explained() {
    let wrong = [
        ("", "expected an instruction at the end"),
        ("<unknown>", "expected an instruction, found `<`"),
        ("frobnicate r1", "`frobnicate` begins no instruction"),
        ("r1", "expected `=` or an operation such as `+=` at the end"),
        ("r11 = 0", "`r11` begins no instruction"),
        ("r01 = 0", "`r01` begins no instruction"),
        ("r1 = w2", "expected a register r0 … r10, found `w2`"),
        ("r1 = 0xffffffff", "4294967295 does not fit a signed 32-bit immediate"),
        ("r1 = 0x", "`0x` is not a number of at most 64 bits (cannot parse integer from empty string)"),
        ("r1 = 5 6", "unexpected number 6 after the instruction"),
        ("r1 = r2 @", "unexpected character '@'"),
        ("r1 = -r2", "only the register itself can be negated: r1 = -r1"),
        ("r1 = be16 r2", "expected the register before the `=`, r1, again, found `r2`"),
        ("r1 = be12 r1", "byte-order operations exist for 16, 32 and 64 bits only"),
        ("w1 = (s32)w2", "a sign-extending move needs a source narrower than its width"),
        ("r1 = *(s64 *)(r2 + 0)", "an 8-byte load cannot sign-extend"),
        ("w1 = *(u64 *)(r2 + 0)", "the result has 64 bits: write r1"),
        ("r1 = *(u32 *)(w2 + 0)", "expected a register r0 … r10, found `w2`"),
        ("r1 = *(u32 *)(r2 + 0x8000)", "32768 does not fit a 16-bit offset"),
        ("r1 = *(u32 *)(r2", "expected `)` at the end"),
        ("*(u64 *)(r1 + 0) = w2", "expected a register r0 … r10 for 8 bytes, found `w2`"),
        ("lock *(u8 *)(r1 + 0) += r2", "atomics exist for 4 and 8 bytes only"),
        ("lock *(u64 *)(r1 + 0) -= r2", "expected one of `+=`, `|=`, `&=`, `^=`, found `-=`"),
        ("r2 = cmpxchg_64(r1 + 0, r2, r3)", "cmpxchg compares with r0 and returns in r0"),
        ("w1 = 5 ll", "the result has 64 bits: write r1"),
        ("goto +0x8000", "the offset of goto has 16 bits (gotol has 32)"),
        ("if r1 s== 0 goto +1", "expected a comparison, found `s`"),
        ("if r1 == 0 call 1", "expected `goto`, found `call`"),
        ("goto out", "label `out` has a meaning only in a listing"),
    ];
    for (text, message) in wrong {
        assert_eq!(parse(text), Err(ParseError { line: 1, message: message.to_string() }), "{text:?}");
    }
}

#[test]
fn listing_with_labels_and_comments() {
    let listing = "
        ; counts to ten
        start:  r0 = 0              // two on one line
                r1 = 0x123456789 ll ; two slots
        loop:
                if r0 >= 10 goto done
                r0 += 1             # a step
                goto loop
        done:
                goto start
                may_goto done
                gotol end
                exit
        end:
    ";
    let printed: Vec<String> = parse_listing(listing).unwrap().iter().map(Insn::to_string).collect();
    let golden = [
        "r0 = 0x0",
        "r1 = 0x123456789 ll",
        "if r0 >= 0xa goto +0x2",
        "r0 += 0x1",
        "goto -0x3",
        "goto -0x7",
        "may_goto -0x2",
        "gotol +0x1",
        "exit",
    ];
    assert_eq!(printed, golden);
}

#[test]
fn listing_as_llvm_prints_it() {
    let listing = "
       7:\tr1 = 0x0 ll
       9:\tcall 0x1
      10:\tif r0 == 0x0 goto +0x1 <prog+0x60>
      11:\t*(u64 *)(r0 + 0x0) = r1
      12:\texit
";
    let insns = parse_listing(listing).unwrap();
    let printed: Vec<String> = insns.iter().map(Insn::to_string).collect();
    assert_eq!(printed, ["r1 = 0x0 ll", "call 0x1", "if r0 == 0x0 goto +0x1", "*(u64 *)(r0 + 0x0) = r1", "exit"]);
}

#[test]
fn listing_errors_name_the_line() {
    let far = format!("goto end\n{}end:\nexit", "r0 = 0\n".repeat(0x8000));
    let wrong = [
        ("r0 = 0\n\nr1 = = 2", 3, "expected a number, found `=`"),
        ("goto out\nexit", 1, "undefined label `out`"),
        ("a:\nexit\na:", 3, "label `a` is already defined in line 1"),
        (&far, 1, "label `end` is too far away for this jump"),
    ];
    for (text, line, message) in wrong {
        assert_eq!(parse_listing(text), Err(ParseError { line, message: message.to_string() }));
    }
    assert_eq!(parse_listing("\n ; nothing\n"), Ok(vec![]));
}

/// Mutilated and shuffled texts: any answer, but no panic.
#[test]
fn no_text_panics() {
    let mut random = Random::new(3);
    let pieces: Vec<String> = variety().iter().map(Insn::to_string).collect();
    let spice = ["", " ", "é", "\t", ":", "0x", "-", "<", ">", "[", "ll", "s", "99999999999999999999", "#", "\n", "w1"];
    for _ in 0..100_000 {
        let piece = &pieces[random.next() as usize % pieces.len()];
        let at = random.next() as usize % (piece.len() + 1);
        let to = at + random.next() as usize % (piece.len() + 1 - at);
        let text = [&piece[..at], spice[random.next() as usize % spice.len()], &piece[to..]].concat();
        let _ = parse(&text);
        let _ = parse_listing(&text);
    }
}

/// Even instructions without encoding print.
#[test]
fn everything_prints() {
    let odd = [
        Insn::Endian { kind: Endian::Be, bits: 12, dst: Reg::R1 },
        Insn::Load { size: Size::DW, sext: true, dst: Reg::R1, base: Reg::R2, off: 0 },
        Insn::Atomic { op: AtomicOp::Xchg, size: Size::B, base: Reg::R1, off: 0, src: Reg::R2 },
        Insn::Ja { off: i32::MIN, long: false },
    ];
    assert!(odd.iter().all(|insn| !insn.to_string().is_empty()));
}
