//! Fields that the kernel manages are found where they are, in map values and in sections of global data.

use bpf_object::Object;
use bpf_platform::{ManagedField, ManagedFields};

use crate::common;

const UNLINKED: &[u8] = include_bytes!("../fixtures/compare/managed.o");
const LINKED: &[u8] = include_bytes!("../fixtures/compare/managed_linked.o");

fn read(bytes: &[u8]) -> Object {
    Object::parse(bytes.to_vec()).expect("it can be read")
}

fn pointers(starts: &[u32]) -> Vec<ManagedField> {
    starts.iter().map(|at| ManagedField { bytes: *at..at + 8, is_pointer: true }).collect()
}

fn in_map(object: &Object, name: &str) -> ManagedFields {
    object.maps().iter().find(|m| m.name == name).expect("it is there").managed.clone()
}

#[test]
fn map_values_are_walked_through_structures_and_arrays() {
    for bytes in [UNLINKED, LINKED] {
        let object = read(bytes);
        let mut expected = pointers(&[24, 40, 64, 72, 80]);
        expected.extend([8..12, 48..64].map(|bytes| ManagedField { bytes, is_pointer: false }));
        assert_eq!(in_map(&object, "m"), ManagedFields::new(expected));
        assert!(in_map(&object, "plain").is_empty());
    }
}

#[test]
fn variables_are_where_loaders_find_them() {
    for bytes in [UNLINKED, LINKED] {
        let object = read(bytes);
        assert_eq!(object.managed_fields(".data.static"), ManagedFields::new(pointers(&[8])));
        let mut expected = pointers(&[8]);
        expected.push(ManagedField { bytes: 16..20, is_pointer: false });
        assert_eq!(object.managed_fields(".data.hidden"), ManagedFields::new(expected));
        assert!(object.managed_fields(".bss").is_empty());
        assert!(object.managed_fields("tc").is_empty() && object.managed_fields("no section").is_empty());
    }
}

#[test]
fn a_variable_without_a_place_may_be_anywhere_in_its_section() {
    // Once in BTF and once among the symbols, which then do not agree.
    let name = b"\0unseen\0";
    let places = UNLINKED.windows(name.len()).enumerate().filter(|(_, w)| w == name).map(|(at, _)| at + 1);
    let places: Vec<usize> = places.collect();
    assert_eq!(places.len(), 2);
    for at in places {
        let mut changed = UNLINKED.to_vec();
        changed[at] = b'x';
        let found = read(&changed).managed_fields(".data.hidden");
        let everywhere = (0..20).all(|at| found.may_be_accessed(Some(at), 1));
        assert!(everywhere, "{found:?}");
    }
}

#[test]
fn types_that_are_not_read_may_hold_anything() {
    let mut changed = UNLINKED.to_vec();
    let btf = changed.windows(8).position(|w| w == [0x9f, 0xeb, 1, 0, 24, 0, 0, 0]).expect("the section is there");
    // The kind of the first type (`struct btf_type` behind the header), one that there is not yet.
    changed[btf + 24 + 7] = 30;
    let object = read(&changed);
    assert!(object.warnings().iter().any(|w| w.contains("unknown kind")), "{:?}", object.warnings());
    for section in [".data.static", ".data.hidden"] {
        assert!(object.managed_fields(section).may_be_accessed(Some(0), 8));
    }
    // Nothing is known of its values: they are no memory of a known map.
    assert!(object.maps().iter().all(|m| m.map_type.is_none()));
}

#[test]
fn arrays_as_long_as_a_number_can_say_are_not_counted_through() {
    let mut changed = UNLINKED.to_vec();
    // `struct btf_type` of an array and `struct btf_array` behind it.
    let is_array = |w: &[u8]| w[..12] == [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0] && w[21..] == [0; 3];
    let arrays: Vec<usize> = changed.windows(24).enumerate().filter(|(_, w)| is_array(w)).map(|(at, _)| at).collect();
    assert!(arrays.len() > 3, "{arrays:?}");
    for at in arrays {
        changed[at + 20..at + 24].fill(0xff);
    }
    let object = read(&changed);
    assert!(object.managed_fields("license").is_empty());
    let found = in_map(&object, "m");
    assert!((16..u32::MAX - 16).step_by(1 << 20).all(|at| found.may_be_accessed(Some(at.into()), 1)), "{found:?}");
}

#[test]
fn objects_at_hand_are_read() {
    for path in common::everything() {
        let object = Object::parse(std::fs::read(&path).unwrap()).unwrap();
        for map in object.maps() {
            let size = map.value_size.unwrap_or(0);
            assert!(map.managed.iter().all(|f| f.bytes.end <= size), "{}: {map:?}", path.display());
        }
    }
}
