//! What loaders look at before they read anything (`bpf_object__elf_collect`, `bpf_object__add_programs`).

use super::*;

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
