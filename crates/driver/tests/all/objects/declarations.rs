//! Finding 11: BTF and sections with relocations.

use super::*;

#[test]
fn finding_11_name_of_a_field_that_the_kernel_is_asked_for() {
    let words = ["reads_task", "byte offset of struct task_struct", ".tid", ".pid"];
    other_btf(&words[1..2], |btf, _| member(btf, "task_struct", "pid")[0] = Word::Text("tid".into()));
    let (a, b) = changed(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| member(btf, "task_struct", "pid")[0] = Word::Text("tid".into()));
    });
    let said = verify(&a, &b).differences.join("\n");
    assert!(said.contains("reads_task") && said.contains(".tid"), "{said}");
}

#[test]
fn finding_11_access_string() {
    other_btf(&["reads_task", "CO-RE", "task_struct"], |_, ext| {
        core_record(ext, "kprobe/f", 0)[2] = Word::Text("0:1".into());
    });
    other_btf(&["reads_parent", "CO-RE"], |_, ext| core_record(ext, "kprobe/g", 0)[2] = Word::Text("0:2:1".into()));
    other_btf(&["reads_parent", "CO-RE"], |_, ext| core_record(ext, "kprobe/g", 0)[2] = Word::Text("1:3".into()));
}

#[test]
fn finding_11_access_string_that_leads_nowhere() {
    unknown(DECLARATIONS, "the access string leaves its type", |elf| {
        elf.change_btf(|_, ext| core_record(ext, "kprobe/f", 0)[2] = Word::Text("0:99".into()));
    });
    unknown(DECLARATIONS, "is no path", |elf| {
        elf.change_btf(|_, ext| core_record(ext, "kprobe/f", 0)[2] = Word::Text("0:x".into()));
    });
    unknown(DECLARATIONS, "unknown kind 77", |elf| {
        elf.change_btf(|_, ext| core_record(ext, "kprobe/f", 0)[3] = Word::Number(77));
    });
}

#[test]
fn finding_11_root_type_kind_and_enumerator_of_a_record() {
    other_btf(&["reads_task", "CO-RE"], |btf, ext| {
        let other = btf.find(STRUCT, "key");
        core_record(ext, "kprobe/f", 0)[1] = Word::Type(other);
    });
    other_btf(&["reads_task", "CO-RE"], |_, ext| core_record(ext, "kprobe/f", 0)[3] = Word::Number(2));
    other_btf(&["value of enum state", "value `BUS"], |btf, _| {
        let state = btf.find(6, "state");
        let at = btf.member(state, "BUSY");
        btf.types[state].body[at] = Word::Text("BUSIER".into());
    });
    // Existence of a whole type.
    other_btf(&["existence of struct val"], |btf, _| {
        let value = btf.find(STRUCT, "value");
        btf.types[value].name = "valeur".into();
    });
}

#[test]
fn finding_11_local_layout_behind_a_record() {
    other_btf(&["reads_parent", "CO-RE"], |btf, _| member(btf, "task_struct", "parent")[2] = Word::Number(256));
}

#[test]
fn finding_11_a_record_on_another_instruction_is_not_equal() {
    not_equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| {
            let record = core_record(ext, "kprobe/f", 0);
            let Word::Number(at) = record[0] else { unreachable!() };
            record[0] = Word::Number(at + 8);
        });
    });
}

#[test]
fn finding_11_numbers_of_a_map_definition() {
    other_btf(&["map flows", "`max_entries` was"], |btf, _| btf.set_number("flows", "max_entries", 7));
    other_btf(&["map flows", "`type` was"], |btf, _| btf.set_number("flows", "type", 9));
    other_btf(&["map flows", "`map_flags` was"], |btf, _| btf.set_number("flows", "map_flags", 2));
    other_btf(&["map flows", "`pinning` was"], |btf, _| btf.set_number("flows", "pinning", 0));
    other_btf(&["map counters", "`value_size` was"], |btf, _| btf.set_number("counters", "value_size", 16));
    other_btf(&["map counters", "`key_size` was"], |btf, _| btf.set_number("counters", "key_size", 8));
}

#[test]
fn finding_11_members_of_a_map_definition() {
    other_btf(&["map flows", "object says `pinning`", "object says `map_extra`"], |btf, _| {
        let (ty, text) = (btf.map("flows"), Word::Text("map_extra".into()));
        let at = btf.member(ty, "pinning");
        btf.types[ty].body[at] = text;
    });
}

#[test]
fn finding_11_inner_map() {
    other_btf(&["map outer", "inner map", "`max_entries`"], |btf, _| {
        // The definition of the inner maps is shared; `outer` gets one of its own.
        let shared = btf.map("inner_a");
        let mut own = btf.types[shared].clone();
        let more = btf.number(64);
        let at = btf.member(shared, "max_entries");
        own.body[at + 1] = Word::Type(more);
        let own = btf.add(own);
        let pointer = Type { name: String::new(), info: 2 << 24, size_or_type: Word::Type(own), body: vec![] };
        let pointer = btf.add(pointer);
        let outer = btf.map("outer");
        let at = btf.member(outer, "values");
        let Word::Type(values) = btf.types[outer].body[at + 1] else { unreachable!() };
        btf.types[values].body[0] = Word::Type(pointer);
    });
    other_btf(&["map outer", "`values`"], |btf, _| {
        let (outer, jumps) = (btf.map("outer"), btf.map("jumps"));
        let (at, from) = (btf.member(outer, "values"), btf.member(jumps, "values"));
        btf.types[outer].body[at + 1] = btf.types[jumps].body[from + 1].clone();
    });
}

#[test]
fn finding_11_types_of_keys_and_values() {
    // A lock by any other name is none.
    other_btf(&["map flows", "`value`", "member `lock`", "bpf_spin_lock"], |btf, _| {
        let lock = btf.find(STRUCT, "bpf_spin_lock");
        btf.types[lock].name = "my_spin_lock".into();
    });
    other_btf(&["map flows", "member `held`", "kptr"], |btf, _| {
        let tag = btf.find(18, "kptr");
        btf.types[tag].name = "kptr_untrusted".into();
    });
    // What a pointer points to is found by name.
    other_btf(&["map flows", "member `held`", "`object`"], |btf, _| {
        let object = btf.find(7, "object");
        btf.types[object].name = "subject".into();
    });
    other_btf(&["map flows", "struct key", "member `port`"], |btf, _| {
        member(btf, "key", "port")[0] = Word::Text("harbour".into());
    });
    other_btf(&["map flows", "member `seen`", "number of elements"], |btf, _| {
        let value = btf.find(STRUCT, "value");
        let at = btf.member(value, "seen");
        let Word::Type(array) = btf.types[value].body[at + 1] else { unreachable!() };
        let mut longer = btf.types[array].clone();
        longer.body[2] = Word::Number(3);
        let longer = btf.add(longer);
        btf.types[value].body[at + 1] = Word::Type(longer);
    });
}

#[test]
fn finding_11_types_of_configuration_and_kernel_symbols() {
    let int = |btf: &Btf| Word::Type(btf.find(1, "int"));
    for name in ["CONFIG_HZ", "kernel_variable"] {
        other_btf(&["variable", name], |btf, _| {
            let (var, int) = (btf.find(VAR, name), int(btf));
            btf.types[var].size_or_type = int;
        });
    }
    other_btf(&["LINUX_KERNEL_VERSION"], |btf, _| {
        let (var, long) = (btf.find(VAR, "LINUX_KERNEL_VERSION"), btf.find(8, "__u64"));
        btf.types[var].size_or_type = Word::Type(long);
    });
    other_btf(&["kernel_function", "signature"], |btf, _| {
        let function = btf.find(FUNC, "kernel_function");
        let Word::Type(proto) = btf.types[function].size_or_type else { unreachable!() };
        let mut other = btf.types[proto].clone();
        other.body[1] = Word::Type(btf.find(8, "__u64"));
        let other = btf.add(other);
        btf.types[function].size_or_type = Word::Type(other);
    });
    other_btf(&["CONFIG_HZ", "CONFIG_HZ_1000"], |btf, _| {
        let var = btf.find(VAR, "CONFIG_HZ");
        btf.types[var].name = "CONFIG_HZ_1000".into();
    });
}

#[test]
fn finding_11_weak_and_strong_externals() {
    for name in ["kernel_variable", "kernel_function", "CONFIG_HZ"] {
        different(DECLARATIONS, &["external symbol", name, "weak", "strong"], |elf| {
            elf.change_symbol(name, |s| s.bind = 1);
        });
    }
    different(DECLARATIONS, &["external symbol kernel_elsewhere"], |elf| {
        elf.change_symbol("kernel_variable", |s| s.name = "kernel_elsewhere".into());
    });
}

#[test]
fn finding_11_data_beside_a_relocation() {
    // `table` is at 8: a pointer, its weight at 16.
    different(DECLARATIONS, &["section .data", "0x10"], |elf| elf.section(".data").data[16] = 6);
    different(DECLARATIONS, &["section .data", "function one", "function two"], |elf| {
        let data = &mut elf.section(".data").data;
        let (one, two) = (data[8], data[24]);
        data[8] = two;
        assert_ne!(one, two, "the case changes nothing");
    });
    different(DECLARATIONS, &["section .data", "only one of the two has a relocation"], |elf| {
        let relocs: Vec<Reloc> = elf.relocs(".rel.data").into_iter().take(1).collect();
        elf.set_relocs(".rel.data", &relocs);
    });
    different(DECLARATIONS, &["section .data"], |elf| {
        let slow = elf.symbol("slow");
        elf.change_reloc(".rel.data", 8, |r| r.symbol = slow);
    });
    unknown(DECLARATIONS, "unknown type 99", |elf| elf.change_reloc(".rel.data", 8, |r| r.kind = 99));
}

#[test]
fn finding_11_initial_values_of_maps() {
    let slots = |elf: &Elf| elf.relocs(".rel.maps").iter().map(|r| r.offset).collect::<Vec<_>>();
    // inner_a, inner_b of `outer`; first, -, second of `jumps`.
    different(DECLARATIONS, &["map jumps", "function first", "function second"], |elf| {
        let (at, second) = (slots(elf)[2], elf.symbol("second"));
        elf.change_reloc(".rel.maps", at, |r| r.symbol = second);
    });
    different(DECLARATIONS, &["map jumps", "only one of the two has a relocation"], |elf| {
        let at = slots(elf)[2];
        elf.change_reloc(".rel.maps", at, |r| r.offset += 8);
    });
    different(DECLARATIONS, &["map jumps", "only one of the two has a relocation"], |elf| {
        let relocs: Vec<Reloc> = elf.relocs(".rel.maps").into_iter().take(3).collect();
        elf.set_relocs(".rel.maps", &relocs);
    });
    different(DECLARATIONS, &["map outer", "map inner_a", "map inner_b"], |elf| {
        let (at, b) = (slots(elf)[0], elf.symbol("inner_b"));
        elf.change_reloc(".rel.maps", at, |r| r.symbol = b);
    });
}

#[test]
fn finding_11_slots_of_struct_ops() {
    different(DECLARATIONS, &["section .struct_ops", "function slow", "function start"], |elf| {
        let start = elf.symbol("start");
        elf.change_reloc(".rel.struct_ops", 0, |r| r.symbol = start);
    });
    different(DECLARATIONS, &["section .struct_ops", "0x10"], |elf| elf.section(".struct_ops").data[16] = 5);
    other_btf(&["mine", "tcp_congestion_ops"], |btf, _| {
        let ops = btf.find(STRUCT, "tcp_congestion_ops");
        btf.types[ops].name = "sched_ext_ops".into();
    });
    other_btf(&["mine", "member `init`"], |btf, _| {
        member(btf, "tcp_congestion_ops", "init")[0] = Word::Text("release".into());
    });
    different(DECLARATIONS, &["struct_ops/ssthresh", "struct_ops/undo"], |elf| {
        elf.change_btf(|_, ext| {
            for (name, _) in ext.tables.iter_mut().flat_map(|t| &mut t.1) {
                *name = name.replace("struct_ops/ssthresh", "struct_ops/undo");
            }
        });
        elf.section("struct_ops/ssthresh").name = "struct_ops/undo".into();
    });
}

#[test]
fn finding_11_tags_of_functions() {
    let tag = |btf: &Btf, text: &str| btf.find(DECL_TAG, text);
    other_btf(&["function weigh", "tag `arg:"], |btf, _| {
        let tag = tag(btf, "arg:nonnull");
        btf.types[tag].name = "arg:nullable".into();
    });
    other_btf(&["function weigh", "tag `arg:"], |btf, _| {
        let tag = tag(btf, "arg:ctx");
        btf.types[tag].name = "arg:arena".into();
    });
    other_btf(&["function weigh", "arg:nonnull"], |btf, _| {
        let tag = tag(btf, "arg:nonnull");
        btf.types[tag].body[0] = Word::Number(0);
    });
    other_btf(&["function weigh", "arg:nonnull"], |btf, _| {
        let (tag, other) = (tag(btf, "arg:nonnull"), btf.find(FUNC, "one"));
        btf.types[tag].size_or_type = Word::Type(other);
    });
    other_btf(&["function weigh", "arg:nonnull"], |btf, _| {
        let tag = tag(btf, "arg:nonnull");
        btf.order.retain(|t| *t != tag);
    });
}

#[test]
fn finding_11_signatures_of_functions() {
    let proto = |btf: &Btf, name: &str| match btf.types[btf.find(FUNC, name)].size_or_type {
        Word::Type(proto) => proto,
        _ => unreachable!(),
    };
    other_btf(&["function weigh", "parameter 3"], |btf, _| {
        let (proto, long) = (proto(btf, "weigh"), btf.find(8, "__u64"));
        btf.types[proto].body[5] = Word::Type(long);
    });
    other_btf(&["function weigh", "return type"], |btf, _| {
        let (proto, long) = (proto(btf, "weigh"), btf.find(8, "__u64"));
        btf.types[proto].size_or_type = Word::Type(long);
    });
    other_btf(&["function weigh", "parts"], |btf, _| {
        let proto = proto(btf, "weigh");
        btf.types[proto].info -= 1;
        btf.types[proto].body.truncate(4);
    });
    // Static: verified with its callers; global: alone.
    other_btf(&["function weigh", "linkage"], |btf, _| {
        let function = btf.find(FUNC, "weigh");
        btf.types[function].info &= !0xffff;
    });
    other_btf(&["function one", "BTF type"], |btf, ext| {
        let other = btf.find(FUNC, "slow");
        let (one, records) = (btf.find(FUNC, "one"), &mut ext.tables[0].1);
        let record = records.iter_mut().flat_map(|t| &mut t.1).find(|r| r[1] == Word::Type(one)).unwrap();
        record[1] = Word::Type(other);
    });
}

#[test]
fn finding_11_global_variables() {
    other_btf(&["variable total in .data"], |btf, _| {
        let (var, unsigned) = (btf.find(VAR, "total"), btf.find(8, "__u32"));
        btf.types[var].size_or_type = Word::Type(unsigned);
    });
    other_btf(&["limit", "bound"], |btf, _| {
        let var = btf.find(VAR, "limit");
        btf.types[var].name = "bound".into();
    });
    other_btf(&["variable total in .data", "size"], |btf, _| {
        let (section, var) = (btf.find(DATASEC, ".data"), btf.find(VAR, "total"));
        let at = btf.types[section].body.iter().position(|w| *w == Word::Type(var)).unwrap();
        btf.types[section].body[at + 2] = Word::Number(8);
    });
    different(DECLARATIONS, &["variable hidden in .data", "moved"], |elf| {
        elf.change_btf(|btf, _| {
            let (section, var) = (btf.find(DATASEC, ".data"), btf.find(VAR, "hidden"));
            let at = btf.types[section].body.iter().position(|w| *w == Word::Type(var)).unwrap();
            let Word::Number(offset) = btf.types[section].body[at + 1] else { unreachable!() };
            btf.types[section].body[at + 1] = Word::Number(offset + 4);
        });
    });
    different(DECLARATIONS, &["symbol sum", "symbol total"], |elf| {
        elf.change_symbol("total", |s| s.name = "sum".into());
    });
    different(DECLARATIONS, &["symbol history", "size"], |elf| elf.change_symbol("history", |s| s.size = 8));
    different(DECLARATIONS, &["section .bss", "size"], |elf| elf.section(".bss").size += 8);
    different(DECLARATIONS, &["section .rodata"], |elf| elf.section(".rodata").data[0] ^= 1);
}

#[test]
fn licence_version_and_what_a_section_says_of_its_program() {
    different(DECLARATIONS, &["section license"], |elf| elf.section("license").data[0] = b'B');
    different(DECLARATIONS, &["section version"], |elf| elf.section("version").data[2] = 5);
    for other in ["socket1", "?socket"] {
        different(DECLARATIONS, &["uses_table", "socket", other], |elf| elf.section("socket").name = other.into());
    }
}

#[test]
fn binding_and_visibility_of_functions() {
    different(DECLARATIONS, &["weigh", "global function", "static function"], |elf| {
        elf.change_symbol("weigh", |s| s.visibility = 2);
    });
    different(DECLARATIONS, &["symbol weigh", "weak"], |elf| elf.change_symbol("weigh", |s| s.bind = 2));
    different(DECLARATIONS, &["second"], |elf| elf.change_symbol("second", |s| s.name = "third".into()));
}

#[test]
fn types_of_a_kind_nobody_knows_are_not_equal() {
    unknown(DECLARATIONS, "unknown kind 31", |elf| {
        elf.change_btf(|btf, _| {
            let body = vec![];
            btf.add(Type { name: "new".into(), info: 31 << 24, size_or_type: Word::Number(0), body });
        });
    });
    // The same bytes on both sides are the same types, understood or not.
    let (_, strange) = changed(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| {
            let body = vec![];
            btf.add(Type { name: "new".into(), info: 31 << 24, size_or_type: Word::Number(0), body });
        });
    });
    assert!(verify(&strange, &strange).is_equal());
}

#[test]
fn a_type_that_is_not_there_is_unknown() {
    for name in ["total", "kernel_variable", "mine", "flows"] {
        unknown(DECLARATIONS, name, |elf| {
            elf.change_btf(|btf, _| {
                let var = btf.find(VAR, name);
                btf.types[var].size_or_type = Word::Number(0xffff);
            });
        });
    }
    different(DECLARATIONS, &["inner_a"], |elf| {
        let entry = elf.relocs(".rel.BTF").iter().find(|r| r.symbol == elf.symbol("inner_a")).unwrap().offset as usize;
        elf.section(".BTF").data[entry - 4..entry].copy_from_slice(&0xffff_u32.to_le_bytes());
    });
}

#[test]
fn a_broken_type_that_nothing_uses_is_unknown_because_the_kernel_reads_all() {
    let (a, b) = changed(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| {
            let body = vec![];
            btf.add(Type { name: String::new(), info: 2 << 24, size_or_type: Word::Number(0xffff), body });
        });
    });
    let report = verify(&a, &b);
    assert!(!report.is_equal() && !report.is_different(), "{report:#?}");
}

#[test]
fn a_second_declaration_that_libbpf_would_take_for_an_external_is_seen() {
    for name in ["kernel_variable", "CONFIG_HZ", "kernel_function"] {
        different(DECLARATIONS, &["BTF of external", name], |elf| {
            elf.change_btf(|btf, _| {
                let size_or_type = Word::Type(btf.find(1, "int"));
                btf.add(Type { name: name.into(), info: VAR << 24, size_or_type, body: vec![Word::Number(0)] });
                btf.order.rotate_right(1);
            });
        });
    }
}

#[test]
fn relocations_of_a_wrong_kind_on_code_are_not_equal() {
    for kind in [2, 3, 4, 10, 0x101] {
        not_equal(DECLARATIONS, |elf| {
            let at = elf.relocs(".relxdp")[0].offset;
            elf.change_reloc(".relxdp", at, |r| r.kind = kind);
        });
    }
}

#[test]
fn what_an_instruction_holds_under_a_record_is_checked_by_libbpf() {
    different(DECLARATIONS, &["reads_task", "libbpf checks that"], |elf| {
        let mut at = None;
        elf.change_btf(|_, ext| at = Some(core_record(ext, "kprobe/f", 0)[0].clone()));
        let Some(Word::Number(at)) = at else { unreachable!() };
        elf.section("kprobe/f").data[at as usize + 7] ^= 1;
    });
}

#[test]
fn source_lines_that_cannot_be_read_are_unknown() {
    let (a, b) = changed(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1[0].1[1][2] = Word::Number(0x00ff_ffff));
    });
    let report = verify(&a, &b);
    assert!(!report.is_equal() && !report.is_different(), "{report:#?}");
}
