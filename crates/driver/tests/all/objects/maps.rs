//! Map definitions as libbpf reads them (`parse_btf_map_def`).

use super::*;

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
