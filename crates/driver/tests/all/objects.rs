//! `verify` compares all that an object declares and holds, not just its code.
//!
//! Every case changes one thing of a real object and says what `verify` has to make of it: *different* with words that
//! name the place, at least *not equal*, or *equal* for what no loader sees.

use std::path::PathBuf;
use std::time::Duration;

use crate::edit::{self, Btf, DATASEC, DECL_TAG, Elf, Ext, FUNC, Reloc, STRUCT, Symbol, Type, VAR, Word};
use bpf_driver::{FunctionVerdict, Options, Silent, VerifyReport};
use bpf_kernel::{LoadOptions, Loader, ObjectVerdict};

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../object/tests/fixtures/compare");
    std::fs::read(folder.join(name)).expect("fixture")
}

fn verify(a: &[u8], b: &[u8]) -> VerifyReport {
    let options = Options { time_limit: Duration::from_secs(20), ..Options::default() };
    bpf_driver::verify(a, b, &options).expect("both can be read")
}

fn changed(name: &str, change: impl FnOnce(&mut Elf)) -> (Vec<u8>, Vec<u8>) {
    let before = fixture(name);
    let mut elf = Elf::parse(&before);
    change(&mut elf);
    (before, elf.bytes())
}

#[track_caller]
fn equal(name: &str, change: impl FnOnce(&mut Elf)) -> VerifyReport {
    let (a, b) = changed(name, change);
    assert_ne!(Elf::parse(&a).bytes(), b, "the case changes nothing");
    let report = verify(&a, &b);
    assert!(report.is_equal(), "{report:#?}");
    report
}

/// Different, outside of the code, with these words.
#[track_caller]
fn different(name: &str, words: &[&str], change: impl FnOnce(&mut Elf)) {
    let (a, b) = changed(name, change);
    for (x, y) in [(&a, &b), (&b, &a)] {
        let report = verify(x, y);
        assert!(report.is_different(), "{report:#?}");
        let said = report.differences.join("\n");
        assert!(words.iter().all(|w| said.contains(w)), "not said: {words:?} in {report:#?}");
    }
}

#[track_caller]
fn unknown(name: &str, words: &str, change: impl FnOnce(&mut Elf)) {
    let (a, b) = changed(name, change);
    for (x, y) in [(&a, &b), (&b, &a)] {
        let report = verify(x, y);
        assert!(!report.is_equal() && !report.is_different(), "{report:#?}");
        assert!(report.unknowns.join("\n").contains(words), "{report:#?}");
    }
}

#[track_caller]
fn not_equal(name: &str, change: impl FnOnce(&mut Elf)) -> VerifyReport {
    let (a, b) = changed(name, change);
    let report = verify(&b, &a);
    assert!(!report.is_equal(), "{report:#?}");
    let report = verify(&a, &b);
    assert!(!report.is_equal(), "{report:#?}");
    report
}

const DECLARATIONS: &str = "declarations.o";

#[track_caller]
fn other_btf(words: &[&str], change: impl FnOnce(&mut Btf, &mut Ext)) {
    different(DECLARATIONS, words, |elf| elf.change_btf(change));
}

fn member<'a>(btf: &'a mut Btf, ty: &str, member: &str) -> &'a mut [Word] {
    let ty = btf.find(STRUCT, ty);
    let at = btf.member(ty, member);
    &mut btf.types[ty].body[at..at + 3]
}

#[test]
fn writing_an_object_anew_changes_nothing() {
    for name in [DECLARATIONS, "two_sections.o"] {
        let before = fixture(name);
        let mut elf = Elf::parse(&before);
        elf.change_btf(|_, _| {});
        let report = verify(&before, &elf.bytes());
        assert!(report.is_equal(), "{report:#?}");
    }
    let twins = fixture("twins.o");
    let report = verify(&twins, &Elf::parse(&twins).bytes());
    assert!(report.is_equal() && report.notes.is_empty(), "{report:#?}");
}

// Finding 11: BTF and sections with relocations.

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

fn core_record<'a>(ext: &'a mut Ext, section: &str, kind: u32) -> &'a mut Vec<Word> {
    let (_, records) = ext.tables[2].1.iter_mut().find(|(name, _)| name == section).expect("records");
    records.iter_mut().find(|r| r[3] == Word::Number(kind)).expect("a record of this kind")
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

// Records of `.BTF.ext` that the kernel refuses (`check_btf_func` and `check_btf_line` in `kernel/bpf/verifier.c`).

fn records<'a>(ext: &'a mut Ext, table: usize, section: &str) -> &'a mut Vec<edit::Record> {
    let (_, records) = ext.tables[table].1.iter_mut().find(|(name, _)| name == section).expect("records");
    records
}

fn number(w: &Word) -> u32 {
    match w {
        Word::Number(n) => *n,
        other => panic!("{other:?} is no number"),
    }
}

/// Unknown because of records, in both directions.
#[track_caller]
fn refused_records(words: &str, change: impl FnOnce(&mut Btf, &mut Ext)) {
    unknown(DECLARATIONS, words, |elf| {
        elf.change_btf(change);
        elf.empty(|name| name == ".rel.BTF.ext");
    });
}

#[test]
fn lines_inside_an_instruction_are_unknown() {
    // The first `ld_imm64` of each section; an existing record is moved to its second half, or one is added there.
    for section in ["xdp", "kprobe/f", "socket"] {
        refused_records("a line record is inside an instruction", |_, ext| {
            let code = Elf::parse(&fixture(DECLARATIONS)).section(section).data.clone();
            let at = (0..code.len()).step_by(8).find(|at| code[*at] == 0x18).expect("an ld_imm64") as u32;
            let lines = records(ext, 1, section);
            let before = lines.iter().rposition(|r| number(&r[0]) <= at).expect("a line before it");
            let mut inside = lines[before].clone();
            inside[0] = Word::Number(at + 8);
            lines.retain(|r| number(&r[0]) != at + 8);
            lines.insert(before + 1, inside);
        });
    }
}

#[test]
fn functions_without_their_first_line_are_unknown() {
    for section in ["xdp", "kprobe/f", "kprobe/g", "socket"] {
        refused_records("its first instruction has no line record", |_, ext| {
            records(ext, 1, section).remove(0);
        });
    }
    refused_records("has no line record, though its caller has some", |_, ext| {
        ext.tables[1].1.retain(|(name, _)| name != ".text");
    });
}

#[test]
fn lines_out_of_order_are_unknown() {
    for section in ["xdp", "kprobe/f", "kprobe/g"] {
        refused_records("its line records are not in order", |_, ext| {
            let lines = records(ext, 1, section);
            assert!(lines.len() >= 3);
            lines.swap(1, 2);
        });
    }
    // Twice the same.
    refused_records("its line records are not in order", |_, ext| {
        let lines = records(ext, 1, "xdp");
        lines.insert(1, lines[1].clone());
    });
}

#[test]
fn lines_without_a_text_are_unknown() {
    for word in [1, 2] {
        refused_records("not among the strings", |_, ext| records(ext, 1, "xdp")[1][word] = Word::Number(0x00ff_ffff));
    }
}

#[test]
fn function_records_that_the_kernel_refuses_are_not_equal() {
    // No function, elsewhere, more than one, none.
    type Change<'c> = &'c dyn Fn(&mut Btf, &mut Ext, &str);
    let changes: [Change<'_>; 4] = [
        &|btf, ext, section| records(ext, 0, section)[0][1] = Word::Type(btf.find(1, "int")),
        &|_, ext, section| records(ext, 0, section)[0][0] = Word::Number(8),
        &|_, ext, section| {
            let all = records(ext, 0, section);
            let mut second = all[0].clone();
            second[0] = Word::Number(8);
            all.insert(1, second);
        },
        &|_, ext, section| ext.tables[0].1.retain(|(name, _)| name != section),
    ];
    for section in ["xdp", ".text", "kprobe/f"] {
        for change in changes {
            not_equal(DECLARATIONS, |elf| {
                elf.change_btf(|btf, ext| change(btf, ext, section));
                elf.empty(|name| name == ".rel.BTF.ext");
            });
        }
    }
}

/// `None` if this machine cannot say: no kernel, no permission, no bpftool.
fn loads_here(file: &[u8]) -> Option<bool> {
    let pid = std::process::id();
    let (path, pins) =
        (std::env::temp_dir().join(format!("bpf-records-{pid}.o")), format!("/sys/fs/bpf/records-{pid}"));
    std::fs::write(&path, file).ok()?;
    let out = std::process::Command::new("bpftool").args(["prog", "loadall"]).arg(&path).arg(&pins).output();
    let _ = std::fs::remove_dir_all(&pins);
    let _ = std::fs::remove_file(&path);
    Some(out.ok()?.status.success())
}

#[test]
fn the_kernel_refuses_the_records_that_are_unknown_and_takes_the_others() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/subprogs.o");
    let before = std::fs::read(example).expect("example");
    if loads_here(&before) != Some(true) {
        let required = std::env::var("BPF_OPT_REQUIRE_KERNEL").is_ok_and(|v| v == "1");
        assert!(!required, "BPF_OPT_REQUIRE_KERNEL=1, but bpftool does not load examples/subprogs.o");
        eprintln!("skipped: bpftool does not load examples/subprogs.o here");
        return;
    }
    let first =
        |ext: &Ext, table: usize| ext.tables[table].1.iter().position(|(name, _)| name != ".text").expect("one");
    let (mut taken, mut refused) = (0, 0);
    for n in 0..13 {
        let mut elf = Elf::parse(&before);
        let code = |elf: &Elf, section: &str| elf.sections[elf.find(section)].data.clone();
        let copy = elf.clone();
        elf.change_btf(|btf, ext| {
            let (f, l) = (first(ext, 0), first(ext, 1));
            match n {
                0 => ext.tables[1].1.clear(),
                1 => drop(ext.tables[1].1[l].1.remove(0)),
                2 => ext.tables[1].1[l].1.swap(1, 2),
                3 => ext.tables[1].1.retain(|(name, _)| name != ".text"),
                4 => ext.tables[1].1.retain(|(name, _)| name == ".text"),
                5 => ext.tables[1].1[l].1[1][2] = Word::Number(0x00ff_ffff),
                6 => ext.tables[0].1[f].1[0][1] = Word::Type(btf.find(1, "int")),
                7 => ext.tables[0].1[f].1[0][0] = Word::Number(8),
                8 => drop(ext.tables[1].1[l].1.remove(1)),
                9 => ext.tables[1].1[l].1[1][1] = Word::Text("elsewhere.c".into()),
                10 => {
                    let second = ext.tables[1].1[l].1[1].clone();
                    ext.tables[1].1[l].1.insert(1, second);
                }
                11 => {
                    let (name, lines) = &mut ext.tables[1].1[l];
                    let code = code(&copy, name);
                    let Some(at) = (0..code.len()).step_by(8).find(|at| code[*at] == 0x18) else { return };
                    let before = lines.iter().rposition(|r| number(&r[0]) <= at as u32).expect("a line before it");
                    let mut inside = lines[before].clone();
                    inside[0] = Word::Number(at as u32 + 8);
                    lines.insert(before + 1, inside);
                }
                _ => {
                    ext.tables[1].0 += 4;
                    ext.tables[1].1.iter_mut().flat_map(|(_, records)| records).for_each(|r| r.push(Word::Number(1)));
                }
            }
        });
        elf.empty(|name| name == ".rel.BTF.ext");
        let after = elf.bytes();
        let options = Options { kernel: false, time_limit: Duration::from_secs(10), ..Options::default() };
        let report = bpf_driver::verify(&before, &after, &options).expect("both can be read");
        let loads = loads_here(&after).expect("bpftool");
        assert_eq!(loads, report.is_equal(), "change {n}: {report:#?}");
        // Loading with lines of its own, the gate refuses the lines that the kernel refuses.
        let verdict = Loader::new(LoadOptions::default()).and_then(|mut l| l.judge(&after, |_, _| true, None));
        assert_eq!(loads, verdict.as_ref().is_ok_and(ObjectVerdict::is_accepted), "change {n}: {verdict:#?}");
        taken += usize::from(loads);
        refused += usize::from(!loads);
    }
    assert!(taken >= 3 && refused >= 6, "{taken} taken, {refused} refused");
}

#[test]
fn records_of_all_functions_may_go_together() {
    equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1.clear());
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    // Without those of a program libbpf loads none of what it calls.
    equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1.retain(|(name, _)| name != "kprobe/f"));
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    // What the kernel does not know of longer records, libbpf leaves out.
    for table in [0, 1] {
        equal(DECLARATIONS, |elf| {
            elf.change_btf(|_, ext| {
                ext.tables[table].0 += 4;
                ext.tables[table].1.iter_mut().flat_map(|(_, records)| records).for_each(|r| r.push(Word::Number(1)));
            });
            elf.empty(|name| name == ".rel.BTF.ext");
        });
    }
}

// Map definitions as libbpf reads them (`parse_btf_map_def`).

fn typedef(btf: &mut Btf, of: usize) -> usize {
    btf.add(Type { name: "around".into(), info: 8 << 24, size_or_type: Word::Type(of), body: vec![] })
}

fn pointer(btf: &mut Btf, to: usize) -> usize {
    btf.add(Type { name: String::new(), info: 2 << 24, size_or_type: Word::Type(to), body: vec![] })
}

fn type_of(w: &Word) -> usize {
    match w {
        Word::Type(id) => *id,
        other => panic!("{other:?} is no type"),
    }
}

/// Replaces the type of a member of a map definition, which may be shared, by what `change` makes of it.
fn change_member(btf: &mut Btf, map: &str, name: &str, change: impl FnOnce(&mut Btf, usize) -> usize) {
    let ty = btf.map(map);
    let at = btf.member(ty, name) + 1;
    let was = type_of(&btf.types[ty].body[at]);
    let is = change(btf, was);
    btf.types[ty].body[at] = Word::Type(is);
}

#[test]
fn numbers_of_a_map_that_libbpf_cannot_read_are_different() {
    for name in ["type", "max_entries", "map_flags", "pinning"] {
        // libbpf wants the array right behind the pointer.
        other_btf(&["map flows", "libbpf", name], |btf, _| {
            change_member(btf, "flows", name, |btf, pointed| {
                let array = type_of(&btf.types[pointed].size_or_type);
                let around = typedef(btf, array);
                pointer(btf, around)
            });
        });
        // `__ulong` is for `map_extra` alone.
        other_btf(&["map flows", "libbpf", name], |btf, _| {
            change_member(btf, "flows", name, |btf, _| {
                let body = vec![Word::Text("value".into()), Word::Number(1)];
                btf.add(Type { name: String::new(), info: 6 << 24 | 1, size_or_type: Word::Number(4), body })
            });
        });
    }
    other_btf(&["map counters", "libbpf", "key_size"], |btf, _| {
        change_member(btf, "counters", "key_size", |btf, pointed| {
            let array = type_of(&btf.types[pointed].size_or_type);
            let around =
                btf.add(Type { info: 10 << 24, name: String::new(), size_or_type: Word::Type(array), body: vec![] });
            pointer(btf, around)
        });
    });
}

#[test]
fn names_around_the_pointer_of_a_number_are_read_by_libbpf_alone() {
    unknown(DECLARATIONS, "not all loaders", |elf| {
        elf.change_btf(|btf, _| change_member(btf, "flows", "max_entries", typedef));
    });
}

#[test]
fn keys_and_values_have_to_be_pointers_themselves() {
    for name in ["key", "value"] {
        other_btf(&["map flows", "libbpf", name], |btf, _| change_member(btf, "flows", name, typedef));
    }
}

/// Moves the member at `from` of a definition to `to`; the offsets stay where they are.
fn move_member(btf: &mut Btf, map: &str, from: usize, to: usize) {
    let ty = btf.map(map);
    let body = &mut btf.types[ty].body;
    let member: Vec<Word> = body.drain(from * 3..from * 3 + 3).collect();
    body.splice(to * 3..to * 3, member);
    for (i, offset) in body.iter_mut().skip(2).step_by(3).enumerate() {
        *offset = Word::Number(i as u32 * 64);
    }
}

#[test]
fn values_have_to_come_last() {
    other_btf(&["map jumps", "libbpf", "last"], |btf, _| move_member(btf, "jumps", 3, 2));
    other_btf(&["map outer", "libbpf", "last"], |btf, _| move_member(btf, "outer", 3, 0));
}

#[test]
fn other_members_of_a_map_may_come_in_any_order() {
    equal(DECLARATIONS, |elf| elf.change_btf(|btf, _| move_member(btf, "flows", 5, 0)));
    equal(DECLARATIONS, |elf| elf.change_btf(|btf, _| move_member(btf, "flows", 1, 3)));
    equal(DECLARATIONS, |elf| elf.change_btf(|btf, _| move_member(btf, "outer", 0, 2)));
}

#[test]
fn initial_values_are_counted_from_the_member_values() {
    other_btf(&["map jumps", "`values`"], |btf, _| {
        let ty = btf.map("jumps");
        let at = btf.member(ty, "values");
        btf.types[ty].body[at + 2] = Word::Number(128);
    });
}

#[test]
fn values_of_another_form_are_different() {
    // Not of size zero.
    other_btf(&["map jumps", "libbpf", "values"], |btf, _| {
        change_member(btf, "jumps", "values", |btf, array| {
            let mut array = btf.types[array].clone();
            array.body[2] = Word::Number(2);
            btf.add(array)
        });
    });
    other_btf(&["map jumps", "libbpf", "values"], |btf, _| change_member(btf, "jumps", "values", typedef));
    // A hash holds neither maps nor programs.
    other_btf(&["map outer", "libbpf", "values"], |btf, _| btf.set_number("outer", "type", 1));
    // The definition of inner maps is no definition.
    other_btf(&["map outer", "libbpf", "inner"], |btf, _| {
        let ty = btf.map("inner_a");
        btf.types[ty].body[0] = Word::Text("map_flags".into());
    });
}

#[test]
fn members_of_a_map_that_repeat_or_that_nobody_knows_are_not_equal() {
    for (name, other) in [("map_flags", "max_entries"), ("pinning", "type"), ("pinning", "colour")] {
        not_equal(DECLARATIONS, |elf| {
            elf.change_btf(|btf, _| {
                let ty = btf.map("flows");
                let at = btf.member(ty, name);
                btf.types[ty].body[at] = Word::Text(other.into());
            });
        });
    }
}

#[test]
fn sizes_that_contradict_types_are_different() {
    for (member, size) in [("key_size", 12), ("value_size", 44), ("key_size", 0)] {
        other_btf(&["map flows", "libbpf", "conflicting"], |btf, _| {
            let (ty, number) = (btf.map("flows"), btf.number(size));
            btf.types[ty].info += 1;
            btf.types[ty].size_or_type = Word::Number(48);
            btf.types[ty].body.extend([Word::Text(member.into()), Word::Type(number), Word::Number(320)]);
        });
    }
}

#[test]
fn a_definition_larger_than_its_variable_is_different() {
    other_btf(&["map flows", "size"], |btf, _| {
        let ty = btf.map("flows");
        btf.types[ty].size_or_type = Word::Number(56);
    });
}

#[test]
fn pinning_has_two_values() {
    other_btf(&["map flows", "pinning"], |btf, _| btf.set_number("flows", "pinning", 2));
}

// Places of variables (`btf_fixup_datasec`).

/// Writes the size of a section and the offsets of its variables, as linkers do.
fn place_variables(elf: &mut Elf, section: &str, place: impl Fn(&str, u64) -> u64) {
    let size = elf.sections[elf.find(section)].data.len() as u32;
    let symbols = elf.symbols();
    elf.change_btf(|btf, _| {
        let section = btf.find(DATASEC, section);
        btf.types[section].size_or_type = Word::Number(size);
        for at in (0..btf.types[section].body.len()).step_by(3) {
            let var = type_of(&btf.types[section].body[at]);
            let name = btf.types[var].name.clone();
            let symbol = symbols.iter().find(|s| s.name == name).expect("a symbol");
            btf.types[section].body[at + 1] = Word::Number(place(&name, symbol.value) as u32);
        }
    });
}

#[test]
fn places_that_a_linker_has_written_are_equal_to_those_of_symbols() {
    for section in [".maps", ".data", ".rodata", ".struct_ops", "license"] {
        equal(DECLARATIONS, |elf| place_variables(elf, section, |_, at| at));
    }
    // Nobody reads relocations on BTF.
    equal(DECLARATIONS, |elf| elf.empty(|name| name == ".rel.BTF"));
    equal(DECLARATIONS, |elf| {
        for section in [".maps", ".data"] {
            place_variables(elf, section, |_, at| at);
        }
        elf.empty(|name| name == ".rel.BTF");
    });
}

#[test]
fn places_in_btf_count_where_the_section_has_a_size() {
    let swapped = |one: &'static str, other: &'static str, at: [u64; 2]| {
        move |name: &str, place: u64| match name {
            _ if name == one => at[1],
            _ if name == other => at[0],
            _ => place,
        }
    };
    different(DECLARATIONS, &["inner_a", "moved"], |elf| {
        place_variables(elf, ".maps", swapped("inner_a", "inner_b", [0, 32]));
    });
    different(DECLARATIONS, &["jumps", "moved"], |elf| {
        place_variables(elf, ".maps", swapped("jumps", "flows", [0x68, 0x98]));
    });
    different(DECLARATIONS, &["total", "moved"], |elf| {
        place_variables(elf, ".data", swapped("total", "hidden", [0, 4]));
    });
    different(DECLARATIONS, &["table", "moved"], |elf| {
        place_variables(elf, ".data", |name, at| if name == "table" { 0 } else { at });
    });
    different(DECLARATIONS, &["counters", "moved"], |elf| {
        place_variables(elf, ".maps", |name, at| if name == "counters" { at + 8 } else { at });
    });
}

/// Gives the section `.maps` sizes and offsets in BTF, and the names of variables to each other.
fn maps_that_exchange_names(one: &str, other: &str) -> (Vec<u8>, Vec<u8>) {
    let (before, _) = changed(DECLARATIONS, |_| {});
    let mut elf = Elf::parse(&before);
    place_variables(&mut elf, ".maps", |_, at| at);
    let placed = elf.bytes();
    // BTF calls each by the other's name; the symbols, and with them what programs refer to, are as before.
    elf.change_btf(|btf, _| {
        let (x, y) = (btf.find(VAR, one), btf.find(VAR, other));
        btf.types[x].name = other.into();
        btf.types[y].name = one.into();
    });
    (placed, elf.bytes())
}

#[test]
fn definitions_of_maps_are_found_by_place_where_btf_has_places() {
    for (one, other) in [("flows", "counters"), ("outer", "jumps"), ("counters", "inner_a")] {
        let (before, after) = maps_that_exchange_names(one, other);
        let maps = |file: &[u8]| bpf_object::Object::parse(file.to_vec()).expect("readable").maps().to_vec();
        let (x, y) = (maps(&before), maps(&after));
        let sizes = |m: &bpf_object::MapDef| (m.map_type, m.key_size, m.value_size, m.max_entries);
        let at = |list: &[bpf_object::MapDef], name: &str| {
            sizes(list.iter().find(|m| m.name == name).unwrap_or_else(|| panic!("no map {name}")))
        };
        assert_ne!(at(&x, one), at(&x, other), "nothing to see");
        // What stands where the symbol `one` is, is what it was there.
        assert_eq!(at(&x, one), at(&y, one));
        assert_eq!(at(&x, other), at(&y, other));
        assert!(!verify(&before, &after).is_equal());
    }
}

#[test]
fn size_of_a_section_in_btf_is_that_of_the_values() {
    for (section, size) in [(".data", 64), (".rodata", 8), (".bss", 64), (".maps", 8)] {
        different(DECLARATIONS, &[section, "size"], |elf| {
            if section != ".bss" {
                place_variables(elf, section, |_, at| at);
            }
            elf.change_btf(|btf, _| {
                let section = btf.find(DATASEC, section);
                btf.types[section].size_or_type = Word::Number(size);
            });
        });
    }
}

#[test]
fn libbpf_takes_the_first_global_variable_of_a_name_for_its_place() {
    not_equal(DECLARATIONS, |elf| {
        let at = elf.symbols()[elf.symbol("total")].clone();
        elf.change_symbol("total", |s| s.kind = 0);
        assert_eq!(at.kind, 1);
    });
}

#[test]
fn a_section_that_only_btf_knows_stops_libbpf() {
    different(DECLARATIONS, &[".more"], |elf| {
        elf.change_btf(|btf, _| {
            btf.add(Type { name: ".more".into(), info: 15 << 24, size_or_type: Word::Number(0), body: vec![] });
        });
    });
    // One more of a name that is there.
    different(DECLARATIONS, &[".data"], |elf| {
        elf.change_btf(|btf, _| {
            btf.add(Type { name: ".data".into(), info: 15 << 24, size_or_type: Word::Number(0), body: vec![] });
        });
    });
}

#[test]
fn libbpf_finds_the_section_of_a_map_by_its_bare_name() {
    // `map_fill_btf_type_info` takes the first type of that name, of whatever kind.
    not_equal(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| {
            let int = btf.find(1, "int");
            btf.add(Type { name: ".data".into(), info: 18 << 24, size_or_type: Word::Type(int), body: vec![] });
            btf.order.rotate_right(1);
        });
    });
}

// BTF that the kernel refuses as a whole (`btf_check_all_metas`, `btf_resolve`).

fn with_type(elf: &mut Elf, make: impl FnOnce(&mut Btf) -> Type) {
    elf.change_btf(|btf, _| {
        let new = make(btf);
        btf.add(new);
    });
}

#[track_caller]
fn refused_type(make: impl FnOnce(&mut Btf) -> Type) {
    unknown(DECLARATIONS, "the kernel", |elf| with_type(elf, make));
}

fn plain(name: &str, info: u32, size_or_type: Word, body: Vec<Word>) -> Type {
    Type { name: name.into(), info, size_or_type, body }
}

fn structure(members: &[(&str, usize, u32)], size: u32) -> Type {
    let word = |&(name, ty, at): &(&str, usize, u32)| [Word::Text(name.into()), Word::Type(ty), Word::Number(at)];
    let info = STRUCT << 24 | members.len() as u32;
    plain("more", info, Word::Number(size), members.iter().flat_map(word).collect())
}

#[test]
fn unused_integers_that_the_kernel_refuses_are_unknown() {
    for (size, encoding) in
        [(4, 200), (4, 33), (4, 3 << 24 | 32), (4, 8 << 24 | 32), (8, 32), (4, 16 << 16 | 32), (32, 136)]
    {
        refused_type(|_| plain("more", 1 << 24, Word::Number(size), vec![Word::Number(encoding)]));
    }
    equal(DECLARATIONS, |elf| with_type(elf, |_| plain("more", 1 << 24, Word::Number(2), vec![Word::Number(16)])));
    equal(DECLARATIONS, |elf| {
        with_type(elf, |_| plain("_Bool", 1 << 24, Word::Number(1), vec![Word::Number(4 << 24 | 8)]));
    });
}

#[test]
fn unused_types_that_never_end_are_unknown() {
    // A typedef of itself, and two qualifiers of each other.
    refused_type(|btf| plain("more", 8 << 24, Word::Type(btf.types.len()), vec![]));
    refused_type(|btf| {
        let volatile = btf.add(plain("", 9 << 24, Word::Type(btf.types.len() + 1), vec![]));
        plain("", 10 << 24, Word::Type(volatile), vec![])
    });
    // A pointer to itself; a struct in itself; an array of itself.
    refused_type(|btf| plain("", 2 << 24, Word::Type(btf.types.len()), vec![]));
    refused_type(|btf| structure(&[("again", btf.types.len(), 0)], 8));
    refused_type(|btf| {
        let int = Word::Type(btf.find(1, "int"));
        plain("", 3 << 24, Word::Number(0), vec![Word::Type(btf.types.len()), int, Word::Number(1)])
    });
    // A list is no such thing.
    equal(DECLARATIONS, |elf| {
        with_type(elf, |btf| {
            let next = pointer(btf, btf.types.len() + 1);
            structure(&[("next", next, 0)], 8)
        });
    });
}

#[test]
fn unused_structs_whose_members_do_not_fit_are_unknown() {
    let int = |btf: &Btf| btf.find(1, "int");
    refused_type(|btf| structure(&[("a", int(btf), 8)], 4));
    refused_type(|btf| structure(&[("a", int(btf), 32)], 4));
    refused_type(|btf| structure(&[("a", int(btf), 32), ("b", int(btf), 0)], 8));
    refused_type(|_| structure(&[("a", 0, 0)], 8));
    refused_type(|btf| structure(&[("a", btf.find(FUNC, "one"), 0)], 8));
    refused_type(|btf| structure(&[("a-b", int(btf), 0)], 4));
    refused_type(|btf| structure(&[("a", btf.find(7, "object"), 0)], 4));
    refused_type(|btf| structure(&[("a", btf.find(STRUCT, "task_struct"), 0)], 24));
    refused_type(|btf| structure(&[("a", btf.find(STRUCT, "xdp_md"), 4)], 32));
    // In a union all are at the start.
    refused_type(|btf| {
        let mut union = structure(&[("a", int(btf), 0), ("b", int(btf), 32)], 8);
        union.info = 5 << 24 | 2;
        union
    });
    // Bit-fields wider than their type, or of no integer.
    refused_type(|btf| {
        let mut fields = structure(&[("a", int(btf), 33 << 24)], 8);
        fields.info |= 1 << 31;
        fields
    });
    refused_type(|btf| {
        let mut fields = structure(&[("a", btf.find(STRUCT, "key"), 3 << 24)], 8);
        fields.info |= 1 << 31;
        fields
    });
    equal(DECLARATIONS, |elf| {
        with_type(elf, |btf| {
            let (int, key) = (int(btf), btf.find(STRUCT, "key"));
            let mut fields = structure(&[("a", int, 3 << 24), ("b", int, 29 << 24 | 3), ("c", key, 32)], 12);
            fields.info |= 1 << 31;
            fields
        });
    });
}

#[test]
fn unused_structs_with_objects_of_the_kernel_are_unknown() {
    refused_type(|btf| {
        let lock = btf.find(STRUCT, "bpf_spin_lock");
        structure(&[("a", lock, 0), ("b", lock, 32)], 8)
    });
}

#[test]
fn unused_types_with_names_the_kernel_refuses_are_unknown() {
    let int = |btf: &Btf| Word::Type(btf.find(1, "int"));
    refused_type(|btf| plain("", 8 << 24, int(btf), vec![]));
    refused_type(|btf| plain("a b", 8 << 24, int(btf), vec![]));
    refused_type(|btf| plain("9", 8 << 24, int(btf), vec![]));
    refused_type(|btf| plain("name", 2 << 24, int(btf), vec![]));
    refused_type(|btf| plain("name", 10 << 24, int(btf), vec![]));
    refused_type(|btf| plain("", 18 << 24, int(btf), vec![]));
    refused_type(|_| plain("", 7 << 24, Word::Number(0), vec![]));
    refused_type(|_| plain("more", 7 << 24, Word::Number(4), vec![]));
    refused_type(|btf| plain("name", 3 << 24, Word::Number(0), vec![int(btf), int(btf), Word::Number(1)]));
    refused_type(|_| plain("more", 6 << 24 | 1, Word::Number(4), vec![Word::Text(String::new()), Word::Number(1)]));
    refused_type(|btf| {
        let proto = Word::Type(type_of(&btf.types[btf.find(FUNC, "one")].size_or_type));
        plain("", 12 << 24, proto, vec![])
    });
    refused_type(|btf| plain(&"x".repeat(600), 8 << 24, int(btf), vec![]));
}

#[test]
fn unused_types_of_forms_the_kernel_refuses_are_unknown() {
    let int = |btf: &Btf| Word::Type(btf.find(1, "int"));
    refused_type(|_| plain("more", 6 << 24, Word::Number(3), vec![]));
    refused_type(|_| plain("more", 16 << 24, Word::Number(3), vec![]));
    refused_type(|btf| plain("more", 1 << 31 | 8 << 24, int(btf), vec![]));
    refused_type(|btf| plain("", 3 << 24, Word::Number(8), vec![int(btf), int(btf), Word::Number(1)]));
    refused_type(|btf| plain("", 3 << 24, Word::Number(0), vec![int(btf), Word::Type(0), Word::Number(1)]));
    refused_type(|btf| plain("", 3 << 24, Word::Number(0), vec![Word::Type(0), int(btf), Word::Number(1)]));
    refused_type(|btf| plain("", 3 << 24, Word::Number(0), vec![int(btf), int(btf), Word::Number(u32::MAX)]));
    refused_type(|btf| plain("more", 12 << 24, int(btf), vec![]));
    refused_type(|btf| {
        let proto = Word::Type(type_of(&btf.types[btf.find(FUNC, "one")].size_or_type));
        plain("more", 12 << 24 | 3, proto, vec![])
    });
    refused_type(|btf| plain("more", VAR << 24, int(btf), vec![Word::Number(7)]));
    refused_type(|_| plain("more", VAR << 24, Word::Type(0), vec![Word::Number(1)]));
    refused_type(|btf| plain("", 13 << 24, Word::Type(btf.find(FUNC, "one")), vec![]));
    refused_type(|btf| {
        plain("", 13 << 24 | 1, int(btf), vec![Word::Text(String::new()), Word::Type(btf.find(7, "object"))])
    });
    refused_type(|btf| {
        let float = btf.add(plain("more", 16 << 24, Word::Number(4), vec![]));
        plain("tag", DECL_TAG << 24, Word::Type(float), vec![Word::Number(u32::MAX)])
    });
    refused_type(|btf| {
        let int = btf.find(1, "int");
        let tagged = btf.add(structure(&[("a", int, 0)], 4));
        plain("tag", DECL_TAG << 24, Word::Type(tagged), vec![Word::Number(1)])
    });
    // Tags come before qualifiers.
    refused_type(|btf| {
        let tag = btf.add(plain("tag", 18 << 24, int(btf), vec![]));
        let constant = btf.add(plain("", 10 << 24, Word::Type(tag), vec![]));
        plain("", 2 << 24, Word::Type(constant), vec![])
    });
}

#[test]
fn unused_types_that_the_kernel_takes_mean_nothing() {
    equal(DECLARATIONS, |elf| with_type(elf, |_| plain("more", 6 << 24, Word::Number(8), vec![])));
    equal(DECLARATIONS, |elf| with_type(elf, |_| plain("more", 16 << 24, Word::Number(8), vec![])));
    equal(DECLARATIONS, |elf| with_type(elf, |_| plain("more", 1 << 31 | 7 << 24, Word::Number(0), vec![])));
    equal(DECLARATIONS, |elf| {
        with_type(elf, |btf| {
            let constant = btf.add(plain("", 10 << 24, Word::Type(btf.find(1, "int")), vec![]));
            let tag = btf.add(plain("tag", 18 << 24, Word::Type(constant), vec![]));
            plain("", 2 << 24, Word::Type(tag), vec![])
        });
    });
    equal(DECLARATIONS, |elf| {
        with_type(elf, |btf| {
            let (int, pointed) = (btf.find(1, "int"), btf.find(STRUCT, "key"));
            let to = pointer(btf, pointed);
            let body = vec![Word::Text("a".into()), Word::Type(int), Word::Text("b".into()), Word::Type(to)];
            let proto = btf.add(plain("", 13 << 24 | 2, Word::Type(int), body));
            plain("more", 12 << 24, Word::Type(proto), vec![])
        });
    });
}

#[test]
fn what_the_kernel_refuses_in_both_objects_is_equal() {
    let (_, strange) = changed(DECLARATIONS, |elf| {
        with_type(elf, |_| plain("more", 1 << 24, Word::Number(4), vec![Word::Number(200)]));
    });
    let mut elf = Elf::parse(&strange);
    elf.change_btf(|btf, _| btf.order.reverse());
    let report = verify(&strange, &elf.bytes());
    assert!(report.is_equal(), "{report:#?}");
}

#[test]
fn headers_of_btf_that_the_kernel_refuses_are_unknown() {
    unknown(DECLARATIONS, "the kernel", |elf| elf.section(".BTF").data[3] = 1);
    unknown(DECLARATIONS, "the kernel", |elf| elf.section(".BTF").data.extend([0; 8]));
    not_equal(DECLARATIONS, |elf| *elf.section(".BTF").data.last_mut().unwrap() = b'x');
}

#[test]
fn tags_that_name_an_exception_callback_are_read_wherever_they_are() {
    not_equal(DECLARATIONS, |elf| {
        with_type(elf, |btf| {
            let key = Word::Type(btf.find(STRUCT, "xdp_md"));
            plain("exception_callback:one", DECL_TAG << 24, key, vec![Word::Number(u32::MAX)])
        });
    });
}

// What loaders look at before they read anything (`bpf_object__elf_collect`, `bpf_object__add_programs`).

#[test]
fn empty_sections_that_stop_libbpf_are_seen() {
    for (name, kind) in [("maps", 1), (".maps", 1), ("license", 1), ("version", 1), (".BTF", 1), (".BTF.ext", 1)] {
        not_equal("twins.o", |elf| {
            let mut empty = elf.sections[elf.find(".text")].clone();
            (empty.name, empty.kind, empty.flags) = (name.into(), kind, 2);
            empty.data.clear();
            elf.sections.push(empty);
        });
    }
    equal(DECLARATIONS, |elf| {
        let mut empty = elf.sections[elf.find(".text")].clone();
        (empty.name, empty.kind, empty.flags) = (".rodata.none".into(), 1, 2);
        empty.data.clear();
        elf.sections.push(empty);
    });
}

#[test]
fn kinds_of_sections_that_libbpf_checks_are_seen() {
    for name in [".BTF", ".BTF.ext"] {
        not_equal(DECLARATIONS, |elf| elf.section(name).kind = 7);
    }
    not_equal(DECLARATIONS, |elf| elf.section("license").kind = 3);
    not_equal(DECLARATIONS, |elf| elf.section("xdp").kind = 7);
    not_equal(DECLARATIONS, |elf| elf.section(".maps").flags |= 4);
}

#[test]
fn sections_that_libbpf_takes_by_their_names_whatever_they_are_are_seen() {
    for name in ["license", "version", "maps", ".maps", ".BTF", ".BTF.ext"] {
        not_equal(DECLARATIONS, |elf| elf.section(".symtab").name = name.into());
        not_equal("twins.o", |elf| {
            let mut nothing = elf.sections[elf.find(".text")].clone();
            (nothing.name, nothing.kind, nothing.flags) = (name.into(), 0, 0);
            elf.sections.push(nothing);
        });
    }
    not_equal(DECLARATIONS, |elf| elf.section(".rel.BTF.ext").name = "license".into());
    // String tables are skipped by their type.
    equal(DECLARATIONS, |elf| elf.section(".strtab").name = "license.".into());
}

#[test]
fn string_tables_that_libelf_refuses_are_seen() {
    const COMPRESSED: u64 = 0x800;
    for name in [".strtab", ".symtab", ".rel.maps", "xdp"] {
        not_equal(DECLARATIONS, |elf| elf.section(name).flags |= COMPRESSED);
    }
    not_equal(DECLARATIONS, |elf| {
        let names = elf.section(".strtab");
        (names.name, names.flags) = (".other".into(), COMPRESSED);
    });
    // Nobody reads these.
    equal(DECLARATIONS, |elf| {
        let mut lines = elf.sections[elf.find("license")].clone();
        (lines.name, lines.flags) = (".debug_line".into(), COMPRESSED);
        elf.sections.push(lines);
    });
}

#[test]
fn relocations_that_libbpf_skips_are_seen() {
    for (section, name) in [
        (".rel.maps", ".rel.mops"),
        (".rel.struct_ops", ".reloc"),
        (".relxdp", ".rel.debug_info"),
        (".relxdp", ".rel.BTF"),
    ] {
        not_equal(DECLARATIONS, |elf| elf.section(section).name = name.into());
    }
    // With addends, as they are not taken by libbpf.
    not_equal(DECLARATIONS, |elf| {
        let relocs = elf.section(".relxdp").data.clone();
        let section = elf.section(".relxdp");
        section.data = relocs.chunks(16).flat_map(|r| r.iter().copied().chain([0; 8])).collect();
        (section.kind, section.entsize) = (4, 24);
    });
    equal(DECLARATIONS, |elf| elf.section(".rel.BTF.ext").name = ".rel.other".into());
}

#[test]
fn headers_of_records_with_flags_are_not_equal() {
    not_equal(DECLARATIONS, |elf| elf.section(".BTF.ext").data[3] = 1);
}

#[test]
fn other_versions_of_elf_are_refused() {
    let mut bytes = fixture(DECLARATIONS);
    bytes[6] = 9;
    assert!(bpf_driver::verify(&fixture(DECLARATIONS), &bytes, &Options::default()).is_err());
}

#[test]
fn second_half_of_a_reference_to_a_map_is_not_ignored() {
    for second in [1_i32, -1, 8] {
        let mut found = 0;
        not_equal(DECLARATIONS, |elf| {
            let maps = elf.find(".maps");
            let symbols = elf.symbols();
            for name in ["xdp", ".text", "socket"] {
                if !elf.sections.iter().any(|s| s.name == format!(".rel{name}")) {
                    continue;
                }
                for r in elf.relocs(&format!(".rel{name}")) {
                    if usize::from(symbols[r.symbol].section) == maps {
                        let at = r.offset as usize + 12;
                        elf.section(name).data[at..at + 4].copy_from_slice(&second.to_le_bytes());
                        found += 1;
                    }
                }
            }
        });
        assert!(found > 0, "no reference to a map");
    }
}

/// The places (section, byte offset) of all references to data.
fn references_to_data(elf: &Elf) -> Vec<(String, u64)> {
    let symbols = elf.symbols();
    let data = |r: &Reloc| {
        let name = &elf.sections[usize::from(symbols[r.symbol].section)].name;
        [".rodata", ".data", ".bss"].iter().any(|p| name.starts_with(p))
    };
    let lists = elf.sections.iter().filter(|s| s.kind == 9).filter_map(|s| s.name.strip_prefix(".rel"));
    let code = lists.filter(|s| elf.sections[elf.find(s)].flags & 4 != 0);
    let all = code.flat_map(|s| elf.relocs(&format!(".rel{s}")).into_iter().map(move |r| (s.to_owned(), r)));
    all.filter(|(_, r)| data(r)).map(|(s, r)| (s, r.offset)).collect()
}

/// Changes each reference to data by itself; none may be equal to what it was.
fn no_reference_to_data_survives(change: impl Fn(&mut Elf, &str, u64)) {
    for name in [DECLARATIONS, "twins.o", "two_sections.o"] {
        let places = references_to_data(&Elf::parse(&fixture(name)));
        assert!(!places.is_empty(), "{name} refers to no data");
        for (section, at) in places.iter().take(6) {
            not_equal(name, |elf| change(elf, section, *at));
        }
    }
}

#[test]
fn second_half_of_a_reference_to_data_is_not_ignored() {
    for second in [1_i32, -1, 8] {
        no_reference_to_data_survives(|elf, section, at| {
            let at = at as usize + 12;
            elf.section(section).data[at..at + 4].copy_from_slice(&second.to_le_bytes());
        });
    }
    // Registers and offset of the second half, which the kernel wants empty (`check_ld_imm`, `bpf_check`).
    for byte in [9, 10, 11] {
        no_reference_to_data_survives(|elf, section, at| elf.section(section).data[at as usize + byte] = 1);
    }
}

#[test]
fn a_relocation_on_the_second_half_is_not_one_on_the_instruction() {
    for distance in [4, 8, 12] {
        no_reference_to_data_survives(|elf, section, at| {
            elf.change_reloc(&format!(".rel{section}"), at, |r| r.offset += distance);
        });
    }
}

#[test]
fn what_a_wanted_program_calls_is_compared_too() {
    let options = |program: &str| Options { programs: vec![program.into()], ..Options::default() };
    let (a, b) = changed(TWINS, |elf| elf.section(".text").data[TWIN + 36] = 0xfd);
    let equal = |program: &str| bpf_driver::verify(&a, &b, &options(program)).expect("both can be read").is_equal();
    assert!(!equal("uses_b"), "it calls the changed one");
    let (a, b) = changed(DECLARATIONS, |elf| elf.section("license").data[0] = b'B');
    assert!(!bpf_driver::verify(&a, &b, &options("reads_task")).expect("both can be read").is_equal());
}

#[test]
fn sizes_and_bindings_of_function_symbols_are_seen() {
    // libbpf takes the size for that of the program, and refuses programs without one.
    for name in ["weigh", "one", "second", "reads_task", "uses_table"] {
        not_equal(DECLARATIONS, |elf| elf.change_symbol(name, |s| s.size = 0));
    }
}

#[test]
fn a_second_local_symbol_on_a_program_stops_libbpf() {
    for name in ["reads_task", "uses_table", "second"] {
        not_equal(DECLARATIONS, |elf| {
            let mut symbols = elf.symbols();
            let mut alias = symbols[elf.symbol(name)].clone();
            (alias.name, alias.bind) = ("alias".into(), 0);
            // In the place of a local symbol that nothing uses, so that no number changes.
            let at = symbols.iter().position(|s| s.bind == 0 && s.kind == 0 && s.section != 0).expect("a label");
            symbols[at] = alias;
            elf.set_symbols(&symbols);
        });
    }
}

#[test]
fn the_first_program_is_the_one_that_bpftool_loads() {
    // Two sections change places, with all that counts sections.
    different(DECLARATIONS, &["first program"], |elf| {
        let (x, y) = (elf.find("xdp"), elf.find("kprobe/f"));
        let moved = |n: usize| {
            if n == x {
                y
            } else if n == y {
                x
            } else {
                n
            }
        };
        elf.sections.swap(x, y);
        for s in elf.sections.iter_mut().filter(|s| s.kind == 9) {
            s.info = moved(s.info as usize) as u32;
        }
        let mut symbols = elf.symbols();
        for s in &mut symbols {
            s.section = moved(s.section as usize) as u16;
        }
        elf.set_symbols(&symbols);
    });
}

// What libbpf sees of a symbol that code refers to, and of the variables of sections.

/// A callback's address, taken through the symbol of `.text`.
const SUBPROGS: &str = "../../../../../examples/subprogs.o";

/// The relocation of the callback's address: in section `xdp`, its place and its symbol.
fn address_of_a_function(elf: &Elf) -> (u64, usize) {
    let code = &elf.sections[elf.find("xdp")].data;
    let text = elf.find(".text");
    let symbols = elf.symbols();
    let relocs = elf.relocs(".relxdp");
    let address = |r: &&Reloc| code[r.offset as usize] == 0x18 && usize::from(symbols[r.symbol].section) == text;
    relocs.iter().find(address).map(|r| (r.offset, r.symbol)).expect("an address of a function")
}

#[test]
fn finding_f8_binding_and_type_of_the_symbol_of_a_functions_address() {
    // Bindings and types, local first: (STB, STT).
    for (bind, kind) in [(0, 0), (0, 1), (0, 2), (0, 12), (1, 3), (1, 0), (1, 1), (2, 3), (15, 12)] {
        different(SUBPROGS, &["address of a function"], |elf| {
            let (_, symbol) = address_of_a_function(elf);
            let mut symbols = elf.symbols();
            (symbols[symbol].bind, symbols[symbol].kind) = (bind, kind);
            if kind == 2 || bind != 0 {
                // Only the reference is to change, no other symbol.
                symbols[symbol].name = String::new();
            }
            let locals = symbols.len();
            elf.set_symbols(&symbols);
            assert_eq!(elf.symbols().len(), locals);
        });
    }
}

#[test]
fn finding_f8_addresses_through_the_functions_own_symbol() {
    let through = |elf: &mut Elf, bind: u8| {
        let (at, _) = address_of_a_function(elf);
        elf.change_symbol("add_one", |s| s.bind = bind);
        let symbol = elf.symbol("add_one");
        elf.change_reloc(".relxdp", at, |r| r.symbol = symbol);
        elf.section("xdp").data[at as usize + 4..at as usize + 8].fill(0);
    };
    // The local symbol of a function is not taken; a global one is, but then so is another function.
    different(SUBPROGS, &["address of a function"], |elf| through(elf, 0));
    not_equal(SUBPROGS, |elf| through(elf, 1));
    not_equal(SUBPROGS, |elf| through(elf, 2));
}

#[test]
fn finding_f8_an_address_without_a_relocation() {
    different(SUBPROGS, &["without a relocation"], |elf| {
        // The code of both sections in one, so that the place can be counted from the instruction.
        let text = fixture(SUBPROGS);
        let base = Elf::parse(&text);
        let at = base.symbols()[base.symbol("add_one")].value as usize;
        let classify = &mut elf.section(".text").data;
        // `ld_imm64` of its own section over the start of `add_one`: its own address.
        classify[at..at + 16].copy_from_slice(&[0x18, 0x42, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    });
}

#[test]
fn finding_f8_undefined_symbols_that_are_not_external() {
    for name in ["kernel_function", "kernel_variable", "LINUX_KERNEL_VERSION", "CONFIG_HZ"] {
        for (bind, kind) in [(0, 0), (1, 1), (2, 2), (1, 3), (10, 0)] {
            not_equal(DECLARATIONS, |elf| elf.change_symbol(name, |s| (s.bind, s.kind) = (bind, kind)));
        }
    }
}

#[test]
fn finding_f8_functions_outside_of_text() {
    // The section of all subprograms under another name.
    for name in [".texts", "text", "xdp/more"] {
        not_equal(SUBPROGS, |elf| elf.section(".text").name = name.into());
    }
    // A later empty-handed `.text` takes its place.
    not_equal(SUBPROGS, |elf| {
        let mut other = elf.sections[elf.find(".text")].clone();
        other.data = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
        elf.sections.push(other);
    });
}

#[test]
fn finding_f8_symbols_of_initial_values() {
    // By name and type libbpf finds programs and maps; what else a symbol says counts for linkers.
    for name in ["inner_a", "inner_b", "first", "second", "slow", "start"] {
        for (bind, kind) in [(0, 3), (2, 1), (1, 0)] {
            not_equal(DECLARATIONS, |elf| elf.change_symbol(name, |s| (s.bind, s.kind) = (bind, kind)));
        }
    }
}

#[test]
fn finding_f8_a_distance_that_libbpf_drops() {
    // Maps and external symbols: libbpf overwrites the immediate.
    for (name, section) in [("flows", "xdp"), ("counters", "xdp"), ("kernel_variable", "xdp"), ("CONFIG_HZ", "xdp")] {
        for distance in [4_i32, 32, -8] {
            not_equal(DECLARATIONS, |elf| {
                let symbol = elf.symbol(name);
                let relocs = elf.relocs(&format!(".rel{section}"));
                let at = relocs.iter().find(|r| r.symbol == symbol).expect("a reference").offset as usize;
                elf.section(section).data[at + 4..at + 8].copy_from_slice(&distance.to_le_bytes());
            });
        }
    }
    // The second map through the section's symbol is the first one to libbpf.
    not_equal(DECLARATIONS, |elf| {
        let (flows, inner) = (elf.symbol("flows"), elf.find(".maps"));
        let place = elf.symbols()[flows].value as i32;
        let at = elf.relocs(".relxdp").iter().find(|r| r.symbol == flows).expect("a reference").offset;
        let mut symbols = elf.symbols();
        let label = symbols.iter().position(|s| s.bind == 0 && s.kind == 0 && s.section != 0).expect("a label");
        symbols[label] = edit::Symbol {
            name: String::new(),
            kind: 3,
            bind: 0,
            visibility: 0,
            section: inner as u16,
            value: 0,
            size: 0,
        };
        elf.set_symbols(&symbols);
        elf.change_reloc(".relxdp", at, |r| r.symbol = label);
        elf.section("xdp").data[at as usize + 4..at as usize + 8].copy_from_slice(&place.to_le_bytes());
    });
}

#[test]
fn finding_f8_what_a_reference_says_it_is_before_libbpf_does() {
    // `BPF_PSEUDO_FUNC` on a reference to a map, data or external symbol: libbpf looks for a function.
    for name in ["flows", "limit", "total", "kernel_variable", "CONFIG_HZ"] {
        not_equal(DECLARATIONS, |elf| {
            let symbol = elf.symbol(name);
            let at = elf.relocs(".relxdp").iter().find(|r| r.symbol == symbol).expect("a reference").offset as usize;
            elf.section("xdp").data[at + 1] |= 4 << 4;
        });
    }
}

/// Changes the entries of a data section in BTF.
fn entries(elf: &mut Elf, section: &str, change: impl Fn(&str, &mut [Word])) {
    elf.change_btf(|btf, _| {
        let section = btf.find(DATASEC, section);
        for at in (0..btf.types[section].body.len()).step_by(3) {
            let name = btf.types[type_of(&btf.types[section].body[at])].name.clone();
            change(&name, &mut btf.types[section].body[at..at + 3]);
        }
    });
}

#[test]
fn finding_f9_sizes_of_configuration_values() {
    for size in [0, 1, 3, 5, 12, 0x404, 0x8000_0004] {
        for value in ["CONFIG_HZ", "LINUX_KERNEL_VERSION"] {
            different(DECLARATIONS, &[value, "size"], |elf| {
                entries(elf, ".kconfig", |name, entry| {
                    if name == value {
                        entry[2] = Word::Number(size);
                    }
                });
            });
        }
    }
    // All that libbpf writes itself.
    equal(DECLARATIONS, |elf| entries(elf, ".kconfig", |_, entry| entry[1] = Word::Number(64)));
    equal(DECLARATIONS, |elf| entries(elf, ".ksyms", |_, entry| entry[2] = Word::Number(64)));
}

#[test]
fn finding_f9_sizes_of_variables_of_all_other_sections() {
    for section in [".maps", ".data", ".rodata", ".bss", ".struct_ops", "license", "version"] {
        for size in [0, 1, 3, 0x404] {
            different(DECLARATIONS, &["size"], |elf| entries(elf, section, |_, entry| entry[2] = Word::Number(size)));
        }
    }
}

#[test]
fn finding_f9_sizes_of_sections_that_only_btf_knows() {
    let more = |size: u32| {
        let mut elf = Elf::parse(&fixture(DECLARATIONS));
        elf.change_btf(|btf, _| {
            let size_or_type = Word::Number(size);
            btf.add(Type { name: ".more".into(), info: DATASEC << 24, size_or_type, body: vec![] });
        });
        elf.bytes()
    };
    assert!(verify(&more(8), &more(8)).is_equal());
    for (x, y) in [(0, 8), (8, 0), (8, 16)] {
        assert!(!verify(&more(x), &more(y)).is_equal(), "{x} became {y}");
    }
}

#[test]
fn records_are_for_the_first_section_of_a_name() {
    // libbpf looks the section up by name, and finds one without code: no record counts.
    for size in [0, 8] {
        not_equal(DECLARATIONS, |elf| {
            let mut other = elf.sections[elf.find("license")].clone();
            (other.name, other.data) = ("kprobe/f".into(), vec![0; size]);
            // In the place of a section that nobody reads.
            let at = elf.find(".debug_abbrev");
            let code = elf.find("kprobe/f");
            elf.sections[at] = elf.sections[code].clone();
            elf.sections[code] = other;
            let mut symbols = elf.symbols();
            for s in symbols.iter_mut().filter(|s| usize::from(s.section) == code) {
                s.section = at as u16;
            }
            elf.set_symbols(&symbols);
        });
    }
}

#[test]
fn records_that_libbpf_does_not_read_are_not_equal() {
    // Nothing behind the header.
    not_equal(DECLARATIONS, |elf| {
        let ext = &mut elf.section(".BTF.ext").data;
        ext.truncate(32);
        ext[8..].fill(0);
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    // A table that holds no more than the size of its records.
    for table in [8, 16, 24] {
        not_equal(DECLARATIONS, |elf| {
            elf.section(".BTF.ext").data[table + 4..table + 8].copy_from_slice(&4_u32.to_le_bytes());
            elf.empty(|name| name == ".rel.BTF.ext");
        });
    }
    // Tables that are not aligned.
    not_equal(DECLARATIONS, |elf| {
        let ext = &mut elf.section(".BTF.ext").data;
        for table in [8, 16, 24] {
            ext[table] += 1;
        }
        ext.insert(32, 0);
        elf.empty(|name| name == ".rel.BTF.ext");
    });
}

/// Appends a list of one CO-RE record: where its section's name is, and the place of its instruction in bytes.
fn with_core_list(elf: &mut Elf, name: u32, place: u32) {
    let ext = &mut elf.section(".BTF.ext").data;
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    let (start, len) = (32 + word(ext, 24) as usize, word(ext, 28) as usize);
    assert_eq!(start + len, ext.len(), "the last table");
    if len == 0 {
        ext.extend(16_u32.to_le_bytes());
    }
    for w in [name, 1, place, 1, 0, 0] {
        ext.extend(w.to_le_bytes());
    }
    let len = (ext.len() - start) as u32;
    ext[28..32].copy_from_slice(&len.to_le_bytes());
}

#[test]
fn core_records_of_no_function_that_stop_libbpf_are_seen() {
    // Without a name of a section; of a section that is not there, but inside an instruction.
    not_equal(DECLARATIONS, |elf| with_core_list(elf, 0, 0));
    for place in [1, 4, 9] {
        not_equal(DECLARATIONS, |elf| with_core_list(elf, 1, place));
    }
    // Nothing stops it, and no instruction is patched.
    equal(DECLARATIONS, |elf| with_core_list(elf, 1, 8));
    // The only record: libbpf now wants the kernel's types. Without it, it wants less.
    let (without, with) = changed("twins.o", |elf| with_core_list(elf, 1, 8));
    assert!(verify(&without, &with).differences.join("\n").contains("CO-RE"));
    assert!(verify(&with, &without).is_equal());
}

#[test]
fn only_the_first_list_of_records_of_a_section_is_read() {
    for table in [0, 1] {
        not_equal(DECLARATIONS, |elf| {
            elf.change_btf(|_, ext| {
                let lists = &mut ext.tables[table].1;
                let at = lists.iter().position(|(_, records)| records.len() > 1).expect("several records");
                let (name, rest) = (lists[at].0.clone(), lists[at].1.split_off(1));
                lists.push((name, rest));
            });
            elf.empty(|name| name == ".rel.BTF.ext");
        });
    }
}

#[test]
fn an_integer_that_only_libbpf_needs_is_not_ignored() {
    // All of 32 bits become 64 in both objects; one of them gets another that nothing uses.
    let mut elf = Elf::parse(&fixture(DECLARATIONS));
    elf.change_btf(|btf, _| {
        for t in btf.types.iter_mut().filter(|t| t.kind() == 1) {
            t.size_or_type = Word::Number(8);
            t.body[0] = Word::Number(64);
        }
    });
    let without = elf.bytes();
    elf.change_btf(|btf, _| {
        btf.add(plain("unused", 1 << 24, Word::Number(4), vec![Word::Number(32)]));
    });
    let with = elf.bytes();
    for (x, y) in [(&without, &with), (&with, &without)] {
        let report = verify(x, y);
        assert!(report.unknowns.join("\n").contains(".ksyms"), "{report:#?}");
    }
}

#[test]
fn names_too_long_to_be_compared_are_refused() {
    let (file, changed) = changed(DECLARATIONS, |elf| elf.change_symbol("total", |s| s.name = "x".repeat(5000)));
    assert!(bpf_driver::verify(&file, &changed, &Options::default()).is_err());
}

#[test]
fn a_license_in_a_section_of_another_type_is_still_read() {
    for name in ["license", "version"] {
        let mut elf = Elf::parse(&fixture(DECLARATIONS));
        elf.section(name).kind = 17;
        let before = elf.bytes();
        elf.section(name).data[0] ^= 1;
        assert!(!verify(&before, &elf.bytes()).is_equal());
    }
}

// What no loader sees.

#[test]
fn order_of_types_strings_and_symbols_means_nothing() {
    let report = equal(DECLARATIONS, |elf| elf.change_btf(|btf, _| btf.order.reverse()));
    assert!(report.notes.iter().any(|n| n.starts_with("section .BTF:")), "{report:#?}");
    equal(DECLARATIONS, |elf| elf.change_btf(|btf, _| btf.reverse_strings = true));
    equal(DECLARATIONS, Elf::reverse_symbols);
    equal("twins.o", Elf::reverse_symbols);
    equal("two_sections.o", |elf| {
        elf.change_btf(|btf, _| {
            btf.order.reverse();
            btf.reverse_strings = true;
        });
        elf.reverse_symbols();
    });
}

#[test]
fn unused_types_source_lines_and_debug_information_mean_nothing() {
    equal(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| {
            let int = btf.find(1, "int");
            let body = vec![Word::Text("x".into()), Word::Type(int), Word::Number(0)];
            let unused = Type { name: "unused".into(), info: STRUCT << 24 | 1, size_or_type: Word::Number(4), body };
            btf.add(unused);
            // In front, so that all other numbers change.
            btf.order.rotate_right(1);
        });
    });
    let report = equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1.clear());
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    assert!(report.notes.iter().any(|n| n.contains("source lines")), "{report:#?}");
    let report = equal(DECLARATIONS, |elf| elf.empty(|name| name.contains(".debug_")));
    assert!(report.notes.iter().any(|n| n.contains(".debug_info")), "{report:#?}");
    equal(DECLARATIONS, |elf| elf.empty(|name| name == ".llvm_addrsig"));
}

/// Of a type of the object's own libbpf writes the number into the instruction, and the linker of objects leaves what stood
/// there: code and record look the same (red team MM).
#[test]
fn numbers_of_own_types_that_a_program_asks_for_count() {
    let asks = |elf: &mut Elf, is_first: bool| {
        elf.change_btf(|btf, ext| {
            core_record(ext, "kprobe/f", 8)[3] = Word::Number(6);
            let unused =
                Type { name: "unused".into(), info: STRUCT << 24, size_or_type: Word::Number(0), body: vec![] };
            btf.add(unused);
            if is_first {
                btf.order.rotate_right(1);
            }
        });
    };
    let [last, first] = [false, true].map(|is_first| changed(DECLARATIONS, |elf| asks(elf, is_first)).1);
    assert!(verify(&last, &last).is_equal());
    for (a, b) in [(&last, &first), (&first, &last)] {
        let report = verify(a, b);
        assert!(report.is_different(), "{report:#?}");
        assert!(report.differences.iter().any(|d| d.contains("own type number")), "{report:#?}");
    }
}

#[test]
fn names_of_types_that_nobody_looks_up_are_noted_only() {
    let report = equal(DECLARATIONS, |elf| {
        elf.change_btf(|btf, _| {
            let (var, array) = (btf.find(VAR, "history"), btf.map("history"));
            let Word::Type(element) = btf.types[array].body[0] else { unreachable!() };
            let (mut array, mut element) = (btf.types[array].clone(), btf.types[element].clone());
            element.name = "my_u64".into();
            array.body[0] = Word::Type(btf.add(element));
            btf.types[var].size_or_type = Word::Type(btf.add(array));
        });
    });
    assert!(report.notes.iter().any(|n| n.contains("my_u64")), "{report:#?}");
}

#[test]
fn order_of_maps_means_nothing() {
    let report = equal(DECLARATIONS, |elf| {
        // Both have the same size, so exchanging the symbols' values exchanges the maps.
        let at = |elf: &Elf, name: &str| elf.symbols()[elf.symbol(name)].value;
        let (a, b) = (at(elf, "inner_a"), at(elf, "inner_b"));
        elf.change_symbol("inner_a", |s| s.value = b);
        elf.change_symbol("inner_b", |s| s.value = a);
    });
    assert!(report.notes.iter().any(|n| n.contains("maps come in another order")), "{report:#?}");
}

#[test]
fn what_opt_writes_is_equal() {
    for name in [DECLARATIONS, "twins.o", "two_sections.o"] {
        let before = fixture(name);
        let options =
            Options { time_limit: Duration::from_secs(10), kernel: false, search: false, ..Options::default() };
        let (after, _) = bpf_driver::optimize(&before, &options, &Silent).expect("it can be optimized");
        let report = verify(&before, &after);
        assert!(report.is_equal(), "{name}: {report:#?}");
    }
}

// Finding 12: names that repeat.

const TWINS: &str = "twins.o";
/// Bytes of each of the two functions `twin`, which stand at the start of `.text`.
const TWIN: usize = 48;

fn exchange_twins(elf: &mut Elf) {
    let text = &mut elf.section(".text").data;
    let (first, second) = text[..2 * TWIN].split_at_mut(TWIN);
    first.swap_with_slice(second);
}

/// Points the call at this slot of section `xdp` to the n-th twin. The relocation is on `.text`.
fn call_twin(elf: &mut Elf, slot: usize, n: usize) {
    let imm = (n * TWIN / 8) as i32 - 1;
    elf.section("xdp").data[slot * 8 + 4..slot * 8 + 8].copy_from_slice(&imm.to_le_bytes());
}

/// The same for the call at the start of `calls_twin`, which has no relocation.
fn direct_call_twin(elf: &mut Elf, n: usize) {
    let slot = 2 * TWIN / 8;
    let imm = (n * TWIN / 8) as i32 - slot as i32 - 1;
    elf.section(".text").data[slot * 8 + 4..slot * 8 + 8].copy_from_slice(&imm.to_le_bytes());
}

#[test]
fn finding_12_two_static_functions_of_one_name_changed_places() {
    let report = not_equal(TWINS, exchange_twins);
    assert!(report.is_different(), "{report:#?}");
}

#[test]
fn finding_12_a_call_goes_to_the_other_function_of_that_name() {
    not_equal(TWINS, |elf| call_twin(elf, 1, 1));
    not_equal(TWINS, |elf| call_twin(elf, 5, 0));
}

#[test]
fn finding_12_callee_of_an_untouched_function() {
    not_equal(TWINS, |elf| direct_call_twin(elf, 0));
    // Bodies and all calls but one change places.
    not_equal(TWINS, |elf| {
        exchange_twins(elf);
        call_twin(elf, 1, 1);
        call_twin(elf, 5, 0);
    });
}

#[test]
fn finding_12_functions_of_one_name_may_change_places_with_all_their_calls() {
    equal(TWINS, |elf| {
        exchange_twins(elf);
        call_twin(elf, 1, 1);
        call_twin(elf, 5, 0);
        direct_call_twin(elf, 0);
        // The relocations of the two are at the same places.
    });
}

#[test]
fn finding_12_functions_of_one_name_with_other_data() {
    // Both write to `state`, each to its own.
    not_equal(TWINS, |elf| elf.section(".text").data[8 + 4] = 4);
    different(TWINS, &["section .data"], |elf| elf.section(".data").data.swap(0, 4));
}

#[test]
fn finding_12_one_of_two_functions_of_one_name_is_another() {
    not_equal(TWINS, |elf| elf.section(".text").data[TWIN + 36] = 0xfd);
    different(TWINS, &["twin"], |elf| {
        let mut symbols = elf.symbols();
        let twin = symbols.iter_mut().rfind(|s: &&mut Symbol| s.name == "twin").unwrap();
        twin.name = "single".into();
        elf.set_symbols(&symbols);
    });
}

const SECTIONS: &str = "two_sections.o";

/// Gives both data sections one name.
fn one_data_name(elf: &mut Elf) {
    for name in [".data.low", ".data.high"] {
        elf.section(name).name = ".data.x".into();
    }
}

#[test]
fn finding_12_two_data_sections_of_one_name() {
    let (_, before) = changed(SECTIONS, one_data_name);
    assert!(verify(&before, &before).is_equal());
    let refused = |change: &dyn Fn(&mut Elf)| {
        let mut elf = Elf::parse(&before);
        change(&mut elf);
        let report = verify(&before, &elf.bytes());
        assert!(!report.is_equal(), "{report:#?}");
        report
    };
    // Contents change places.
    let report = refused(&|elf| {
        for s in elf.sections.iter_mut().filter(|s| s.name == ".data.x") {
            s.data[0] ^= 3;
        }
    });
    assert!(report.is_different(), "{report:#?}");
    // References change places.
    refused(&|elf| {
        let (low, high) = (elf.symbol("low"), elf.symbol("high"));
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
        elf.change_reloc(".relxdp/2", 0, |r| r.symbol = low);
    });
    // One reference goes to the other section.
    refused(&|elf| {
        let high = elf.symbol("high");
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
    });
    // The second alone changes.
    let report = refused(&|elf| elf.sections.iter_mut().rfind(|s| s.name == ".data.x").unwrap().data[0] = 9);
    assert!(report.differences.join("\n").contains(".data.x#"), "{report:#?}");
    // A symbol goes to the other section.
    refused(&|elf| {
        let other = elf.symbols()[elf.symbol("high")].section;
        elf.change_symbol("low", |s| s.section = other);
    });
}

#[test]
fn finding_12_two_code_sections_of_one_name() {
    let (_, before) = changed(SECTIONS, |elf| {
        elf.section("xdp/2").name = "xdp/1".into();
    });
    assert!(verify(&before, &before).is_equal());
    let refused = |change: &dyn Fn(&mut Elf)| {
        let mut elf = Elf::parse(&before);
        change(&mut elf);
        let report = verify(&before, &elf.bytes());
        assert!(!report.is_equal(), "{report:#?}");
    };
    refused(&|elf| elf.sections.iter_mut().rfind(|s| s.name == "xdp/1").unwrap().data[17] ^= 0x10);
    refused(&|elf| {
        let (low, high) = (elf.symbol("low"), elf.symbol("high"));
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
        elf.change_reloc(".relxdp/2", 0, |r| r.symbol = low);
    });
    refused(&|elf| {
        elf.change_symbol("reads_low", |s| s.name = "x".into());
        elf.change_symbol("reads_high", |s| s.name = "reads_low".into());
        elf.change_symbol("x", |s| s.name = "reads_high".into());
    });
}

#[test]
fn verdicts_of_functions_are_still_there() {
    let report = verify(&fixture(TWINS), &fixture(TWINS));
    let names: Vec<&str> = report.functions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["twin", "twin", "calls_twin", "uses_a", "uses_b"]);
    assert!(report.functions.iter().all(|(_, v)| *v == FunctionVerdict::Equal));
}

/// Whether the verifier comes to the read of `tstamp_type` decides how `tstamp` is read; the loader finds it by its name.
#[test]
fn a_field_by_which_others_are_translated_is_found_by_its_name() {
    let [a, b] = ["visited.o", "unvisited.o"].map(fixture);
    let options = Options { kernel: false, time_limit: Duration::from_secs(5), ..Options::default() };
    let report = bpf_driver::verify(&a, &b, &options).expect("both can be read");
    let reads = report.functions.iter().find(|(name, _)| name == "reads").expect("it is compared");
    assert!(matches!(reads.1, FunctionVerdict::Unknown { .. }), "{report:#?}");
    let (_, report) = bpf_driver::optimize(&a, &options, &Silent).expect("it can be read");
    assert!(report.functions.iter().all(|f| f.slots_after == f.slots_before), "{report:#?}");
}

/// `bpftool gen object` puts data where its alignment allows, and takes the strong one of two variables.
#[test]
fn what_a_linker_may_change_is_not_relied_on() {
    let options = Options { time_limit: Duration::from_secs(5), ..Options::default() };
    let (_, report) = bpf_driver::optimize(&fixture("linked.o"), &options, &Silent).expect("it can be read");
    let [stores, clears] =
        ["stores", "clears"].map(|n| report.functions.iter().find(|f| f.name == n).expect("it is there"));
    // That the one before it has shrunk is no change of the one that is left alone.
    assert!(stores.slots_after < stores.slots_before, "{report:#?}");
    let words = stores.listing_after.iter().filter(|line| line.contains("*(u32 *)(r2")).count();
    assert_eq!(words, 2, "its two words are no double word: {:#?}", stores.listing_after);
    assert!(clears.untouched.as_ref().is_some_and(|why| why.contains("linker")), "{report:#?}");
}

/// A variable without a size stands in a section that is empty, and is where it was.
#[test]
fn variables_in_an_empty_section_are_compared_by_its_name() {
    let object = fixture("empty_section.o");
    let report = verify(&object, &object);
    assert!(report.is_equal(), "{report:#?}");
    different("empty_section.o", &["nothing", ".bss"], |elf| elf.change_symbol("nothing", |s| s.value = 8));
}
