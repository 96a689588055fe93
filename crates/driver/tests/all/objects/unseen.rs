//! What no loader sees.

use super::*;

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
