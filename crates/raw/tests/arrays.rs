//! Arrays in all their forms, into objects and back.

use bpf_raw::{Form, RawError, maps, read, unwrap, wrap, write};

/// The slots of a listing.
fn assembled(listing: &str) -> Vec<[u8; 8]> {
    let insns = bpf_isa::parse_listing(listing).expect("a listing");
    bpf_isa::encode_all(&insns).expect("it encodes").as_chunks().0.to_vec()
}

fn of(text: &str) -> Result<Vec<[u8; 8]>, RawError> {
    read(text.as_bytes(), &maps("3 array 4 8 1 name counters").expect("a map")).map(|a| a.slots)
}

#[test]
fn every_form_comes_back() {
    let slots =
        assembled("r1 = 0x1122334455667788 ll\nr0 = -1\n*(u32 *)(r10 - 4) = r0\nif r0 s> 5 goto +1\nr0 = 1\nexit");
    for form in [Form::Binary, Form::C, Form::Hex] {
        let array = read(&write(&slots, form), &[]).expect("its own form");
        assert_eq!((array.slots, array.form), (slots.clone(), form));
    }
}

#[test]
fn pasted_forms_are_read() {
    let exit = assembled("r0 = 1\nexit");
    let same = [
        "b7 00 00 00 01 00 00 00\n95 00 00 00 00 00 00 00",
        "b700000001000000 9500000000000000",
        "0x00000001000000b7, 0x0000000000000095,",
        "\"\\xb7\\x00\\x00\\x00\\x01\\x00\\x00\\x00\"\n\"\\x95\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"",
        "       0:\tb7 00 00 00 01 00 00 00\tr0 = 0x1\n       1:\t95 00 00 00 00 00 00 00\texit\n",
        "{0xb7, 0, 0, 0, 1}, {0x95, 0, 0, 0, 0},",
        "#include <linux/bpf.h>\nstatic const struct bpf_insn prog[] = {\n  /* two */\n  BPF_MOV64_IMM(BPF_REG_0, 1),\n  \
         BPF_EXIT_INSN(), // done\n};\n",
        "struct bpf_insn p[2] = {{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 1 }, { .code = BPF_JMP \
         | BPF_EXIT },};",
    ];
    for text in same {
        assert_eq!(of(text).as_ref(), Ok(&exit), "{text}");
    }
}

#[test]
fn macros_make_what_the_assembler_makes() {
    let listing = "r2 = r10\nr2 += -4\n*(u32 *)(r10 - 4) = 7\nr1 = *(u16 *)(r6 + 12)\n*(u64 *)(r10 - 16) = r1\n\
                   lock *(u32 *)(r10 - 4) += r1\nif w1 != 8 goto +2\nif r1 s< r2 goto +1\nr0 = be16 r0\ncall 1\n\
                   r3 = 0xfffffffff ll\nw4 = w5\nr1 = r6\nexit";
    let text = "BPF_MOV64_REG(BPF_REG_2, BPF_REG_FP), BPF_ALU64_IMM(BPF_ADD, BPF_REG_2, -4), \
                BPF_ST_MEM(BPF_W, BPF_REG_10, -4, 7), BPF_LDX_MEM(BPF_H, BPF_REG_1, BPF_REG_6, 8 + 4), \
                BPF_STX_MEM(BPF_DW, BPF_REG_10, BPF_REG_1, -16), \
                BPF_ATOMIC_OP(BPF_W, BPF_ADD, BPF_REG_10, BPF_REG_1, -4), BPF_JMP32_IMM(BPF_JNE, BPF_REG_1, 8, 2), \
                BPF_JMP_REG(BPF_JSLT, BPF_REG_1, BPF_REG_2, 1), BPF_ENDIAN(BPF_TO_BE, BPF_REG_0, 16), \
                BPF_EMIT_CALL(BPF_FUNC_map_lookup_elem), BPF_LD_IMM64(BPF_REG_3, 0xfffffffffULL), \
                BPF_MOV32_REG(BPF_REG_4, BPF_REG_5), BPF_RAW_INSN(0xbf, 1, 6, 0, 0), BPF_EXIT_INSN()";
    let show = |slots: &[[u8; 8]]| String::from_utf8(write(slots, Form::C)).expect("text");
    assert_eq!(show(&of(text).expect("they are known")), show(&assembled(listing)));
}

#[test]
fn a_map_may_be_named() {
    let slots = of("BPF_LD_MAP_FD(BPF_REG_1, counters), BPF_EXIT_INSN()").expect("it is described");
    assert_eq!(bpf_raw::map_numbers(&slots), [3]);
}

#[test]
fn what_is_no_such_array_is_told_apart() {
    let classic = [
        "{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 1, 0x00000800 },\n{ 0x6, 0, 0, 0x00040000 },",
        "(000) ldh      [12]\n(001) jeq      #0x800           jt 2\tjf 3\n",
        "3\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n",
        "BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12), BPF_STMT(BPF_RET | BPF_K, 0)",
        "28 00 00 00 0c 00 00 00 06 00 00 00 00 00 04 00",
    ];
    for text in classic {
        assert_eq!(of(text), Err(RawError::Classic), "{text}");
    }
    let translated = [
        "   0: (79) r2 = *(u64 *)(r1 +8)\n   1: (95) exit\n",
        "int xdp(struct xdp_md * ctx):\n; return 1;\n   0: (b4) w0 = 1\n   1: (95) exit\n",
        // A call as the kernel shows it: a distance.
        "85 00 00 00 d0 53 ff ff 95 00 00 00 00 00 00 00",
    ];
    for text in translated {
        assert_eq!(of(text), Err(RawError::Translated), "{text}");
    }
}

#[test]
fn errors_name_the_line() {
    let wrong = [
        ("BPF_EXIT_INSN(),\nBPF_MOV64_IMM(BPF_REG_0),", "line 2: `BPF_MOV64_IMM` has 1 arguments instead of 2"),
        ("BPF_EXIT_INSN(),\nBPF_WHAT(1),", "line 2: `BPF_WHAT` is no macro that is known here"),
        ("{0x95, 0, 0, 0, 0},\n{0x95, 16, 0, 0, 0}", "line 2: dst_reg 16 does not fit"),
        ("{ .code = FOO }", "line 1: `FOO` is no constant that is known here"),
        ("95 00 00 00 00 00 00 00\nexit", "line 2: `exit` is neither bytes in hexadecimal digits nor C"),
        ("95 00 00", "3 bytes are no whole number of instructions (8 bytes each)"),
        ("// nothing", "no instruction found"),
        (
            "{0x95,0,0,0,0}, }; struct bpf_insn b[] = { {0x95,0,0,0,0} };",
            "line 1: another array begins here; give one at a time",
        ),
    ];
    for (text, message) in wrong {
        assert_eq!(of(text).expect_err(text).to_string(), message);
    }
}

/// A program with two subprograms, one of which is called from the other, and a callback.
#[test]
fn functions_are_cut_out_and_come_back() {
    let mut slots =
        assembled("r6 = r1\ncall pc+4\nr1 = 4\nr2 = 0x0 ll\nexit\nr1 = 1\ncall pc+1\nexit\nr0 = 2\nexit\nr0 = 0\nexit");
    // The load at slot 3 becomes the address of the last function, whose distance counts from the next slot.
    slots[3] = [0x18, 0x42, 0, 0, 7, 0, 0, 0];
    let wrapped = wrap(&slots, "xdp", &[]).expect("it wraps");
    let object = bpf_object::Object::parse(wrapped.object.clone()).expect("an object");
    let names: Vec<(&str, usize)> = object.functions().iter().map(|f| (f.name.as_str(), f.slots)).collect();
    assert_eq!(names, [("program", 6), ("subprogram1", 3), ("subprogram2", 2), ("subprogram3", 2)]);
    let back = unwrap(&wrapped.object, "program", &|_| None, false).expect("it unwraps");
    assert_eq!(write(&back.slots, Form::C), write(&slots, Form::C));
}

#[test]
fn maps_come_back_under_their_numbers() {
    let slots =
        of("BPF_LD_MAP_FD(BPF_REG_1, 3), BPF_RAW_INSN(0x18, 2, 1, 0, 7), BPF_RAW_INSN(0,0,0,0,0), BPF_EXIT_INSN()");
    let slots = slots.expect("known");
    let text = "3 percpu_hash 4 8 100 flags 0x1 name counters\n7 hash_of_maps 4 4 5 of 3 name outer\n";
    let described = maps(text).expect("a description");
    let wrapped = wrap(&slots, "tc", &described).expect("it wraps");
    let number = |name: &str| described.iter().find(|m| m.name == name).map(|m| m.number);
    let back = unwrap(&wrapped.object, "program", &number, wrapped.by_index).expect("it unwraps");
    assert_eq!((back.slots, back.section.as_str()), (slots.clone(), "tc"));
    assert_eq!(back.maps.iter().find(|m| m.number == 3), Some(&described[0]));
    let missing = wrap(&slots, "tc", &described[..1]);
    assert_eq!(missing, Err(RawError::UnknownMaps { numbers: vec![7] }));
}

#[test]
fn what_an_object_cannot_say_is_refused() {
    let refused = [
        ("BPF_RAW_INSN(0x18, 1, 2, 0, 3), BPF_RAW_INSN(0,0,0,0,0), BPF_EXIT_INSN()", "a map's value"),
        ("BPF_RAW_INSN(0x85, 0, 2, 0, 77), BPF_EXIT_INSN()", "a kernel function"),
        ("BPF_CALL_REL(5), BPF_EXIT_INSN()", "is not in the array"),
        ("BPF_CALL_REL(-1), BPF_EXIT_INSN()", "is not in the array"),
        ("BPF_CALL_REL(1), BPF_JMP_A(1), BPF_MOV64_IMM(0, 0), BPF_EXIT_INSN()", "jumps out of its function"),
        ("BPF_EXIT_INSN(), BPF_RAW_INSN(0x18, 1, 0, 0, 3)", "second half"),
    ];
    for (text, words) in refused {
        let said = wrap(&of(text).expect("it parses"), "xdp", &[]).expect_err(text).to_string();
        assert!(said.contains(words), "{text}: {said}");
    }
}
