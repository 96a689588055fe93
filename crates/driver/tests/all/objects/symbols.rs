//! What libbpf sees of a symbol that code refers to, and of the variables of sections.

use super::*;

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
