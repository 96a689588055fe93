//! Lookups in frozen maps: the same results as with the map itself, and maps that are not taken for frozen.

use bpf_assembly::Map;
use bpf_kernel::testing::permitted;
use bpf_specialize::{Contents, Declared, Element, Form, Stays};

use crate::support::*;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU: u32 = 9;

/// Elements with different keys; half of the keys differ in their last byte alone.
fn elements(random: &mut fastrand::Rng, count: usize, key: usize, value: usize) -> Vec<Element> {
    let mut all: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = std::collections::BTreeMap::new();
    while all.len() < count.min(1 << (8 * key.min(2))) {
        let mut bytes: Vec<u8> = (0..key).map(|_| random.u8(..)).collect();
        if random.bool()
            && let Some(other) = all.keys().next()
        {
            bytes[..key - 1].copy_from_slice(&other[..key - 1]);
        }
        all.insert(bytes, (0..value).map(|_| random.u8(..)).collect());
    }
    all.into_iter().collect()
}

/// A program that copies a key of this size from the packet to the stack, looks it up, and returns what `found` makes of it.
fn reader(key: usize, offset: i32, found: &str) -> String {
    let copies: String =
        (0..key).map(|i| format!("r3 = *(u8 *)(r6 + {i})\n*(u8 *)(r10 - {}) = r3\n", -offset - i as i32)).collect();
    format!(
        "r6 = *(u32 *)(r1 + 0)\nr2 = *(u32 *)(r1 + 4)\nr3 = r6\nr3 += 64\nif r3 > r2 goto out\n{copies}r2 = r10\n\
         r2 += {offset}\nr1 = m ll\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n{found}\nexit\nout:\nr0 = 77\nexit\n"
    )
}

/// Packets that begin with the keys, and with others.
fn packets(random: &mut fastrand::Rng, elements: &[Element], key: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for (bytes, _) in elements {
        let mut packet = bytes.clone();
        packet.resize(64, 3);
        packets.push(packet.clone());
        packet[random.usize(..key)] ^= 1 << random.u32(..8);
        packets.push(packet);
    }
    packets.extend((0..50).map(|_| (0..64).map(|_| random.u8(..)).collect()));
    packets
}

#[test]
fn lookups_in_tables_find_what_those_in_maps_find() {
    if !permitted() {
        return;
    }
    let mut random = fastrand::Rng::with_seed(5);
    let reads = ["r0 = 5", "r0 = *(u32 *)(r0 + 0)", "r1 = *(u64 *)(r0 + 0)\nr0 = *(u16 *)(r0 + 4)\nr0 ^= r1"];
    for (key, offset) in
        [(1, -1), (2, -8), (3, -7), (4, -4), (4, -6), (4, -9), (6, -8), (8, -16), (13, -13), (16, -16), (40, -40)]
    {
        for (count, found) in
            [(1, reads[1]), (5, reads[2]), (8, reads[0]), (60, reads[0]), (200, reads[1]), (200, reads[2])]
        {
            let elements = elements(&mut random, count, key, 8);
            let around = around(vec![map("m", HASH, key as u32, 8, 1000)], vec![]);
            let bytes = build(&around, &reader(key, offset, found));
            let packets = packets(&mut random, &elements, key);
            let want = results(&bytes, "m", &elements, &packets);
            for guard in [false, true] {
                let declared = Declared { guard, ..frozen("m", &elements) };
                let done = specialized(&bytes, &declared);
                assert_eq!((done.maps[0].lookups, done.maps[0].left), (1, 0));
                // The map is not asked, unless it has changed.
                assert_eq!(results(&done.bytes, "m", &[], &packets), want, "{key} bytes, {count} elements");
            }
        }
    }
}

#[test]
fn an_array_is_an_index_and_an_empty_map_finds_nothing() {
    if !permitted() {
        return;
    }
    let number = |n: u32, value: u8| (n.to_le_bytes().to_vec(), vec![value; 6]);
    let elements = [number(0, 9), number(3, 7), number(11, 200)];
    let bytes = build(&around(vec![map("m", ARRAY, 4, 6, 12)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    let mut packets: Vec<Vec<u8>> = (0u32..20).map(|n| [n.to_le_bytes().to_vec(), vec![0; 60]].concat()).collect();
    packets.push(vec![0xff; 64]);
    let done = specialized(&bytes, &zero_beside("m", &elements));
    assert_eq!(results(&done.bytes, "m", &[], &packets), results(&bytes, "m", &elements, &packets));

    let bytes = build(&around(vec![map("m", HASH, 4, 6, 12)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    let done = specialized(&bytes, &frozen("m", &[]));
    assert_eq!(results(&done.bytes, "m", &[], &packets), results(&bytes, "m", &[], &packets));
}

#[test]
fn behind_a_guard_the_map_is_asked_once_it_may_have_changed() {
    if !permitted() {
        return;
    }
    use bpf_kernel::{LoadOptions, LoadedObject};
    let element = |n: u32, value: u8| (n.to_le_bytes().to_vec(), vec![value; 8]);
    let old: Vec<Element> = (0..20).map(|n| element(n, 1)).collect();
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 100)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    let done = specialized(&bytes, &Declared { guard: true, ..frozen("m", &old) });
    let loaded = LoadedObject::load(&done.bytes, &LoadOptions::default()).expect("it loads");
    let run = |n: u32| {
        let packet = [n.to_le_bytes().to_vec(), vec![0; 60]].concat();
        loaded.test_run("main", &packet, None, 1).expect("it runs").retval
    };
    assert_eq!((run(3), run(50)), (1, 77));
    let guard = loaded.map(".data.bpf_opt").expect("the guard has a map");
    guard.update(&[0; 4], &[1, 0, 0, 0, 0, 0, 0, 0]).expect("it can be set");
    let (key, value) = element(50, 4);
    loaded.map("m").expect("m").update(&key, &value).expect("room");
    assert_eq!((run(3), run(50)), (77, 4));
    // All bits of the number count.
    for (generation, want) in [
        (0, (1, 77)),
        (1 << 32, (77, 4)),
        (0, (1, 77)),
        (1 << 63, (77, 4)),
        (u64::MAX << 32, (77, 4)),
        (1 << 31, (77, 4)),
    ] {
        guard.update(&[0; 4], &u64::to_le_bytes(generation)).expect("it can be set");
        assert_eq!((run(3), run(50)), want, "{generation:#x}");
    }
}

#[test]
fn several_lookups_in_a_block_and_in_several_maps() {
    if !permitted() {
        return;
    }
    let text = "r6 = *(u32 *)(r1 + 0)\nr2 = *(u32 *)(r1 + 4)\nr3 = r6\nr3 += 16\nif r3 > r2 goto out\n\
        r3 = *(u32 *)(r6 + 0)\n*(u32 *)(r10 - 4) = r3\nr7 = 0\n\
        r2 = r10\nr2 += -4\nr1 = m ll\ncall bpf_map_lookup_elem\nr8 = r0\n\
        r2 = r10\nr2 += -4\nr1 = n ll\ncall bpf_map_lookup_elem\nr9 = r0\n\
        r2 = r6\nr2 += 4\nr1 = m ll\ncall bpf_map_lookup_elem\n\
        if r8 == 0 goto a\nr1 = *(u32 *)(r8 + 0)\nr7 += r1\na:\nif r9 == 0 goto b\nr1 = *(u32 *)(r9 + 0)\nr7 += r1\nb:\n\
        if r0 == 0 goto c\nr1 = *(u32 *)(r0 + 4)\nr7 ^= r1\nc:\nr0 = r7\nexit\nout:\nr0 = 9\nexit\n";
    let around = around(vec![map("m", HASH, 4, 8, 100), map("n", ARRAY, 4, 8, 30)], vec![]);
    let bytes = build(&around, text);
    let mut random = fastrand::Rng::with_seed(9);
    let of = |list: Vec<u32>| -> Vec<Element> {
        list.into_iter()
            .map(|n| (n.to_le_bytes().to_vec(), (u64::from(n) * 0x1_0000_0101).to_le_bytes().to_vec()))
            .collect()
    };
    let (m, n) = (of(vec![1, 5, 7, 20, 21, 22, 23, 24, 25, 26, 27]), of(vec![0, 5, 29]));
    let mut declared = frozen("m", &m);
    declared.maps.extend(zero_beside("n", &n).maps);
    let done = specialized(&bytes, &declared);
    assert_eq!(done.maps.iter().map(|m| m.lookups).collect::<Vec<_>>(), [2, 1]);
    let packets: Vec<Vec<u8>> = (0..400)
        .map(|_| [random.u32(..32).to_le_bytes(), random.u32(..32).to_le_bytes(), [0; 4], [0; 4]].concat())
        .collect();
    let fill = |bytes: &[u8]| {
        let loaded = bpf_kernel::LoadedObject::load(bytes, &bpf_kernel::LoadOptions::default()).expect("it loads");
        for (name, elements) in [("m", &m), ("n", &n)] {
            let map = loaded.map(name).expect("a map");
            elements.iter().for_each(|(key, value)| map.update(key, value).expect("room"));
        }
        packets.iter().map(|p| loaded.test_run("main", p, None, 1).expect("it runs").retval).collect::<Vec<u32>>()
    };
    assert_eq!(fill(&bytes), fill(&done.bytes));
}

/// What is said of a program with a map `m` of this kind and another map.
fn said(kind: u32, elements: &[Element], text: &str) -> String {
    let maps: Vec<Map> = vec![map("m", kind, 4, 8, 16), map("other", HASH, 4, 8, 16)];
    refusal(&build(&around(maps, vec![]), text), &frozen("m", elements))
}

#[test]
fn a_map_that_the_object_may_change_or_whose_values_get_out_of_sight_is_refused() {
    let begin = "r6 = r1\nr1 = 0\n*(u64 *)(r10 - 8) = r1\nr2 = r10\nr2 += -8\nr1 = m ll\n";
    let end = "r0 = 0\nexit\n";
    let look = "call bpf_map_lookup_elem\nif r0 == 0 goto out\n";
    let element = [(vec![0; 4], vec![1; 8])];
    let update = "r1 = other ll\nr2 = r10\nr2 += -8\nr4 = 0\n";
    for (middle, why) in [
        ("call bpf_map_delete_elem\n".to_owned(), "hands it"),
        ("r3 = r2\nr4 = 0\ncall bpf_map_update_elem\n".to_owned(), "hands it"),
        (format!("{look}r1 = 1\n*(u32 *)(r0 + 0) = r1\nout:\n"), "may write a value"),
        (format!("{look}r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nout:\n"), "may write a value"),
        (
            format!("{look}r7 = r0\nr1 = other ll\nr2 = r7\nr3 = r7\nr4 = 0\ncall bpf_map_update_elem\nout:\n"),
            "hands it",
        ),
        (format!("{look}r1 = r0\nr2 = 8\nr3 = r6\ncall bpf_probe_read_kernel\nout:\n"), "hands it"),
        (
            format!("{look}r7 = r0\nr1 = other ll\nr2 = r10\nr2 += -8\n{look}*(u64 *)(r0 + 0) = r7\nout:\n"),
            "stores its address",
        ),
        (
            format!("{look}*(u64 *)(r10 - 16) = r0\nr1 = *(u64 *)(r10 - 16)\nr2 = 5\n*(u8 *)(r1 + 3) = r2\nout:\n"),
            "may write",
        ),
        (format!("{look}r1 = r0\ncall f\nout:\n"), "hands it"),
        // Spilled, and then handed on with the frame, or copied out of it.
        (format!("{look}*(u64 *)(r10 - 16) = r0\nr1 = r10\nr1 += -16\ncall f\nout:\n"), "hands it"),
        (
            format!("{look}*(u64 *)(r10 - 16) = r0\nr3 = r10\nr3 += -16\n{update}call bpf_map_update_elem\nout:\n"),
            "hands it",
        ),
        (
            format!(
                "{look}*(u64 *)(r10 - 16) = r0\nr1 = r10\nr1 += -24\nr2 = 8\nr3 = r10\nr3 += -16\ncall bpf_probe_read_kernel\nout:\n"
            ),
            "hands it",
        ),
        // Spilled, perhaps written over, and read again.
        (
            format!(
                "{look}*(u64 *)(r10 - 16) = r0\nr2 = 9\n*(u8 *)(r10 - 13) = r2\nr1 = *(u64 *)(r10 - 16)\nr1 ^= r2\nout:\n"
            ),
            "computes with",
        ),
        // Where values are is nobody's business.
        (format!("{look}if w0 s< 0 goto out\nr6 = 1\nout:\n"), "computes with"),
        (format!("{look}if r0 & 16 goto out\nr6 = 1\nout:\n"), "computes with"),
        (format!("{look}r7 = r0\nr0 += 8\nif r0 == r7 goto out\nr6 = 1\nout:\n"), "computes with"),
        // A number of it.
        (format!("{look}r1 = r0\nr1 -= r6\nout:\n"), "computes with"),
    ] {
        let more = if middle.contains("call f") {
            "static f(ptr) u64:\nr2 = 1\n*(u32 *)(r1 + 0) = r2\nr0 = 0\nexit\n"
        } else {
            ""
        };
        let text = said(HASH, &element, &format!("{begin}{middle}{end}{more}"));
        assert!(text.contains(why) && text.contains("map `m`"), "{middle}: {text}");
    }
}

/// Iterators are given addresses of values of whatever map they are attached to; so may be what its loader makes one.
#[test]
fn a_program_that_may_be_an_iterator_writes_only_what_is_its_own() {
    let element = [(vec![0; 4], vec![1; 8])];
    let value = "r2 = *(u64 *)(r1 + 24)\nif r2 == 0 goto out\n";
    let end = "out:\nr0 = 0\nexit\n";
    let write = "r3 = 7\n*(u64 *)(r2 + 0) = r3\n";
    let fill = "r1 = r2\nr2 = 8\ncall bpf_get_current_comm\n";
    let call = "r1 = r2\ncall f\n";
    let f = "static f(ptr) u64:\nr2 = 1\n*(u32 *)(r1 + 0) = r2\nr0 = 0\nexit\n";
    let spilled = "*(u64 *)(r10 - 8) = r2\nr3 = *(u64 *)(r10 - 8)\nlock *(u64 *)(r3 + 0) += r2\n";
    let kept = "*(u64 *)(r10 - 8) = r2\nr1 = other ll\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\n\
                if r0 == 0 goto out\nr1 = 5\n*(u64 *)(r0 + 0) = r1\n";
    let maps: Vec<Map> = vec![map("m", HASH, 4, 8, 16), map("other", HASH, 4, 8, 16)];
    let object = |section: &str, body: &str| {
        let more = if body.contains("call f") { f } else { "" };
        let text = format!("{}program it {section}:\n{value}{body}{end}{more}", reader(4, -4, "r0 = 5"));
        build(&around(maps.clone(), vec![]), &text)
    };
    for section in [
        "iter/bpf_map_elem",
        "?iter.s/bpf_map_elem",
        "custom",
        "?custom",
        "tail-3",
        "xdp_old",
        "freplace/f",
        "iterate",
        "kprobes",
    ] {
        for body in [write, fill, call, spilled] {
            let text = refusal(&object(section, body), &frozen("m", &element));
            assert!(text.contains("`it`") && text.contains("writes where nobody knows"), "{section}: {text}");
        }
        if !section.starts_with("freplace") {
            assert_eq!(specialized(&object(section, kept), &frozen("m", &element)).maps[0].lookups, 1, "{section}");
        }
    }
    // The kernel lets no other program write values that it was given.
    for section in ["xdp", "?tc", "fentry/f", "lsm/f", "struct_ops/f", "tp_btf/f", "raw_tp.w/f", "kprobe/f", "syscall"]
    {
        assert_eq!(specialized(&object(section, write), &frozen("m", &element)).maps[0].lookups, 1, "{section}");
    }
}

#[test]
fn what_has_nothing_to_do_with_the_map_does_not_stand_in_the_way() {
    let text = format!("{}static f(u64) u64:\nr0 = r1\nr0 += 1\nexit\n", reader(4, -4, "r1 = 4\ncall f"));
    let element = [(vec![0; 4], vec![1; 8])];
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![]), &text);
    assert_eq!(specialized(&bytes, &frozen("m", &element)).maps[0].lookups, 1);
}

/// Addresses of values tell elements apart, of those in a table, too.
#[test]
fn addresses_of_values_are_compared_as_before() {
    if !permitted() {
        return;
    }
    let text = "r6 = *(u32 *)(r1 + 0)\nr2 = *(u32 *)(r1 + 4)\nr3 = r6\nr3 += 16\nif r3 > r2 goto out\n\
        r3 = *(u32 *)(r6 + 0)\n*(u32 *)(r10 - 4) = r3\nr3 = *(u32 *)(r6 + 4)\n*(u32 *)(r10 - 8) = r3\n\
        r2 = r10\nr2 += -4\nr1 = m ll\ncall bpf_map_lookup_elem\nr7 = r0\n\
        r2 = r10\nr2 += -8\nr1 = m ll\ncall bpf_map_lookup_elem\n\
        if r7 == 0 goto out\nif r0 == 0 goto out\nif r0 == r7 goto same\nr0 = 2\nexit\nsame:\nr0 = 1\nexit\nout:\nr0 = 9\nexit\n";
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 100)], vec![]), text);
    let mut random = fastrand::Rng::with_seed(4);
    for count in [2u32, 8, 40] {
        let elements: Vec<Element> = (0..count).map(|n| (n.to_le_bytes().to_vec(), vec![1; 8])).collect();
        let packets: Vec<Vec<u8>> = (0..200)
            .map(|_| {
                [random.u32(..count + 1).to_le_bytes(), random.u32(..count + 1).to_le_bytes(), [0; 4], [0; 4]].concat()
            })
            .collect();
        let done = specialized(&bytes, &frozen("m", &elements));
        assert_eq!(done.maps[0].lookups, 2);
        assert_eq!(results(&done.bytes, "m", &[], &packets), results(&bytes, "m", &elements, &packets), "{count}");
        // Of a map that may change meanwhile they are not told apart from those in the map.
        let guarded = specialized(&bytes, &Declared { guard: true, ..frozen("m", &elements) });
        assert_eq!((guarded.maps[0].lookups, guarded.maps[0].left), (0, 2));
        assert_eq!(guarded.maps[0].left_because, [(Stays::Compared, 2)].into());
    }
}

/// Numbers that look like what stands for an address here for a while.
#[test]
fn no_number_is_taken_for_an_address() {
    if !permitted() {
        return;
    }
    let number = 0x6f70_745f_0000_0000u64;
    let text =
        reader(4, -4, &format!("r1 = *(u64 *)(r0 + 0)\nr2 = {number} ll\nr0 = 1\nif r1 == r2 goto yes\nr0 = 2\nyes:"));
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![]), &text);
    let elements: Vec<Element> =
        (0..12u32).map(|n| (n.to_le_bytes().to_vec(), number.to_le_bytes().to_vec())).collect();
    let packets = packets(&mut fastrand::Rng::with_seed(1), &elements, 4);
    let done = specialized(&bytes, &frozen("m", &elements));
    assert!(done.constants > 0);
    assert_eq!(results(&done.bytes, "m", &[], &packets), results(&bytes, "m", &elements, &packets));
}

/// A jump reaches so far only; what a table makes of a lookup is longer than the call.
#[test]
fn lookups_stay_where_a_jump_would_be_too_far() {
    let lookup = "r1 = m ll\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\nif r0 == 0 goto n\nr8 += 1\nn:\n";
    let many: String =
        (0..3000).map(|i| lookup.replace("goto n", &format!("goto n{i}")).replace("n:", &format!("n{i}:"))).collect();
    let text = format!(
        "r6 = *(u32 *)(r1 + 12)\nr8 = 0\n*(u32 *)(r10 - 4) = r6\nif r6 == 12345 goto out\n{many}out:\nr0 = r8\nexit\n\
         program it xdp:\n{}",
        reader(4, -4, "r0 = 5")
    );
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![]), &text);
    let elements: Vec<Element> = (0..8u32).map(|n| (n.to_le_bytes().to_vec(), vec![1; 8])).collect();
    for guard in [false, true] {
        let done = specialized(&bytes, &Declared { guard, ..frozen("m", &elements) });
        assert_eq!((done.maps[0].lookups, done.maps[0].left), (1, 3000));
        assert_eq!(done.maps[0].left_because, [(Stays::TooLong, 3000)].into());
    }
}

/// Dumps of one map come in different orders.
#[test]
fn the_order_of_elements_does_not_count() {
    let number = |n: u32, value: u8| (n.to_le_bytes().to_vec(), vec![value; 8]);
    let bytes_of =
        |kind: u32| build(&around(vec![map("m", kind, 4, 8, 16)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    for (kind, count) in [(HASH, 5), (HASH, 12), (ARRAY, 5)] {
        let bytes = bytes_of(kind);
        let elements: Vec<Element> = (0..count).map(|n| number(n * 5 % 13, n as u8)).collect();
        let mut others = elements.clone();
        others.reverse();
        let declared = |elements: &[Element]| match kind {
            ARRAY => zero_beside("m", elements),
            _ => frozen("m", elements),
        };
        let [one, other] = [&elements, &others].map(|elements| specialized(&bytes, &declared(elements)));
        assert!(one.is_for_the_same(&other));
        assert_eq!(one.bytes, other.bytes);
        let zero = number(15, 0);
        others.push(zero);
        let more = specialized(&bytes, &declared(&others));
        assert_eq!(one.is_for_the_same(&more), kind == ARRAY);
        others.push(number(14, 1));
        assert!(!one.is_for_the_same(&specialized(&bytes, &declared(&others))));
    }
}

/// Pairs of addresses of two networks: 2,500 keys that differ in the last bytes of their words.
#[test]
fn pairs_of_neighbours_have_a_table() {
    let key = |a: u8, b: u8| [10, 0, 0, a, 10, 0, 1, b].to_vec();
    let pairs = (0..50u8).flat_map(|a| (0..50u8).map(move |b| (a.wrapping_mul(5), b.wrapping_mul(5))));
    let elements: Vec<Element> = pairs.map(|(a, b)| (key(a, b), vec![a; 8])).collect();
    let bytes = build(&around(vec![map("m", HASH, 8, 8, 4000)], vec![]), &reader(8, -8, "r0 = *(u8 *)(r0 + 0)"));
    assert_eq!(specialized(&bytes, &frozen("m", &elements)).maps[0].lookups, 1);
}

#[test]
fn declarations_that_do_not_fit_are_refused() {
    let text = reader(4, -4, "r0 = 5");
    let key = |n: u32| n.to_le_bytes().to_vec();
    let value = || vec![0; 8];
    assert!(said(LRU, &[], &text).contains("lru_hash"), "{}", said(LRU, &[], &text));
    assert!(said(HASH, &[(vec![0; 3], value())], &text).contains("a key of 3"));
    assert!(said(HASH, &[(key(1), value()), (key(1), value())], &text).contains("the same key"));
    assert!(said(ARRAY, &[(key(16), value())], &text).contains("outside"));
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![]), &text);
    let no = refusal(&bytes, &frozen("nobody", &[]));
    assert!(no.contains("no map `nobody`") && no.contains("there are: m"), "{no}");
}

/// A loader may make an array longer or shorter than its object says: a list that is not complete tells nothing of that.
#[test]
fn an_array_has_the_length_that_is_told_and_no_element_is_made_up() {
    let number = |n: u32| (n.to_le_bytes().to_vec(), vec![7u8; 6]);
    let bytes = build(&around(vec![map("m", ARRAY, 4, 6, 12)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    let of = |count: u32, length: Option<u32>, others_are_zero: bool| {
        let map = Contents { elements: (0..count).map(number).collect(), length, others_are_zero };
        Declared { maps: [("m".to_owned(), map)].into(), ..Declared::default() }
    };
    assert!(refusal(&bytes, &of(10, None, false)).contains("10 elements are given, and the array has 12"));
    assert!(refusal(&bytes, &of(0, None, false)).contains("0 elements are given"));
    assert!(refusal(&bytes, &of(13, None, false)).contains("outside of the array's 12"));
    assert!(refusal(&bytes, &of(11, Some(10), false)).contains("outside of the array's 10"));
    for (declared, length, line) in [
        (of(12, None, false), 12, "map m has 12 elements, all as given"),
        (of(12, Some(12), true), 12, "map m has 12 elements, all as given"),
        (of(10, Some(10), false), 10, "map m has 10 elements, all as given"),
        (of(40, Some(40), false), 40, "map m has 40 elements, all as given"),
        (of(10, None, true), 12, "map m has 12 elements: 10 given elements, and the others are 0"),
        (of(0, Some(3), true), 3, "map m has 3 elements, which are 0"),
    ] {
        let done = specialized(&bytes, &declared);
        assert_eq!(done.declared.maps["m"].length, Some(length));
        assert_eq!(done.declared.lines(), [line]);
        let noted = Declared::of_note(&bpf_object::Object::parse(done.bytes.clone()).expect("an object"));
        assert_eq!(specialized(&bytes, &noted.expect("a note")).bytes, done.bytes);
    }
    // What the loader does, in the place of the object.
    if permitted() {
        let short = build(&around(vec![map("m", ARRAY, 4, 6, 10)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
        let packets: Vec<Vec<u8>> = (0..15u32).map(|n| [n.to_le_bytes().to_vec(), vec![0; 60]].concat()).collect();
        let elements: Vec<Element> = (0..10).map(number).collect();
        let done = specialized(&bytes, &of(10, Some(10), false));
        assert_eq!(results(&done.bytes, "m", &[], &packets), results(&short, "m", &elements, &packets));
    }
    // A hash map finds what it holds, however much room there is.
    let bytes = build(&around(vec![map("m", HASH, 4, 6, 12)], vec![]), &reader(4, -4, "r0 = *(u8 *)(r0 + 5)"));
    assert_eq!(specialized(&bytes, &of(13, None, false)).declared.maps["m"].length, None);
    assert!(refusal(&bytes, &of(3, None, true)).contains("no array"));
    assert!(refusal(&bytes, &of(3, Some(12), false)).contains("no array"));
}

/// What a definition does not say is for its loader to say.
#[test]
fn a_map_that_may_be_an_inner_map_is_refused() {
    const HASH_OF_MAPS: u32 = 13;
    let element = [(vec![0; 4], vec![1; 8])];
    for (key, value, refused) in [(4, 8, true), (4, 0, true), (0, 8, true), (0, 0, true), (4, 4, false), (8, 0, false)]
    {
        let outer = Map { inner: Some("t".into()), ..map("outer", HASH_OF_MAPS, 4, 4, 4) };
        let maps = vec![map("m", HASH, 4, 8, 16), map("t", HASH, key, value, 16), outer];
        let bytes = build(&around(maps, vec![]), &reader(4, -4, "r0 = 5"));
        match refused {
            true => {
                let text = refusal(&bytes, &frozen("m", &element));
                assert!(text.contains("user space may put it into the map `outer`"), "{key} {value}: {text}");
            }
            false => assert_eq!(specialized(&bytes, &frozen("m", &element)).maps[0].lookups, 1, "{key} {value}"),
        }
    }
}

/// With a guard and without a lookup in a table nothing is assumed of a map, and nothing is there to be set.
#[test]
fn what_is_not_assumed_is_not_noted() {
    let lookup = "r1 = m ll\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\nr0 = *(u32 *)(r0 + 0)\nout:\nexit\n";
    let text = format!("r3 = n ll\nr2 = r3\n{lookup}");
    let variable = bpf_assembly::Variable {
        name: "n".into(),
        section: ".data".into(),
        size: 4,
        value: vec![1, 0, 0, 0],
        pointer: None,
    };
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![variable]), &text);
    let element = [(vec![1, 0, 0, 0], vec![1; 8])];
    let done = specialized(&bytes, &Declared { guard: true, ..frozen("m", &element) });
    assert_eq!(done.maps[0].left_because, [(Stays::Key, 1)].into());
    assert!(done.declared.is_empty() && !done.declared.guard);
    let object = bpf_object::Object::parse(done.bytes.clone()).expect("an object");
    assert!(object.section(".data.bpf_opt").is_none());
    assert_eq!(specialized(&bytes, &Declared::of_note(&object).expect("a note")).bytes, done.bytes);
}

/// In another form it is another way to do the same, and the note says which.
#[test]
fn a_form_without_comparisons_and_one_with_lookups_that_stay() {
    let text = format!("{}program other xdp:\n{}", reader(4, -4, "r0 = 5"), reader(4, -4, "r0 = 5"));
    let bytes = build(&around(vec![map("m", HASH, 4, 8, 16)], vec![]), &text);
    let elements: Vec<Element> = (0..5u32).map(|n| (n.to_le_bytes().to_vec(), vec![1; 8])).collect();
    let first = specialized(&bytes, &frozen("m", &elements));
    assert!(first.compares_keys());
    assert_eq!(first.looks_up_in, ["main".to_owned(), "other".to_owned()].into());
    for (only_hashes, general, lookups) in [(true, &[][..], 2), (false, &["other"], 1), (true, &["other", "main"], 0)] {
        let form = Form { only_hashes, general: general.iter().map(|name| (*name).to_owned()).collect() };
        let done = specialized(&bytes, &Declared { form, ..frozen("m", &elements) });
        assert_eq!((done.maps[0].lookups, done.maps[0].left), (lookups, 2 - lookups));
        assert_eq!(done.compares_keys(), !only_hashes && lookups > 0);
        assert!(done.bytes != first.bytes && done.is_for_the_same(&first));
        let noted = Declared::of_note(&bpf_object::Object::parse(done.bytes.clone()).expect("an object"));
        assert_eq!(specialized(&bytes, &noted.expect("a note")).bytes, done.bytes);
    }
}
