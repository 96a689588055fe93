//! BTF that the kernel refuses as a whole (`btf_check_all_metas`, `btf_resolve`).

use super::*;

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
