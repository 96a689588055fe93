//! Places of variables (`btf_fixup_datasec`).

use super::*;

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
