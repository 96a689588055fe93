//! Global data as loaders see it.

use bpf_object::Object;

const GLOBALS: &[u8] = include_bytes!("../../../../examples/globals.o");
const HOOKS: &[u8] = include_bytes!("../../../../examples/hooks.o");

#[test]
fn sections_of_data_have_their_contents() {
    let object = Object::parse(GLOBALS.to_vec()).expect("an object");
    let sections: Vec<_> = object.data_sections().collect();
    let named = |name: &str| sections.iter().find(|s| s.name == name).copied();
    let constants = named(".rodata").expect("constants");
    assert!(constants.is_read_only() && constants.bytes.windows(7).any(|w| w == b"globals"), "{constants:?}");
    let data = named(".data").expect("data");
    assert!(!data.is_read_only() && data.size == data.bytes.len() as u64 && data.bytes.starts_with(&[12]), "{data:?}");
    let zero = named(".bss").expect("zeroes");
    assert!(zero.bytes.is_empty() && zero.size >= 72, "{zero:?}");
    assert!(sections.iter().all(|s| !s.name.starts_with(".rel")), "{sections:?}");
}

#[test]
fn variables_are_in_sections_of_data() {
    let object = Object::parse(GLOBALS.to_vec()).expect("an object");
    let variables: Vec<_> = object.variables().collect();
    let hits = variables.iter().find(|v| v.name == "hits").expect("hits");
    assert_eq!((hits.section, hits.size), (".bss", 64));
    let limit = variables.iter().find(|v| v.name == "limit").expect("limit");
    assert_eq!((limit.section, limit.size), (".data", 4));
    assert!(variables.iter().all(|v| v.name != "on_getpid"));
}

#[test]
fn ordinary_objects_have_symbols_and_no_static_programs() {
    for bytes in [GLOBALS, HOOKS] {
        let object = Object::parse(bytes.to_vec()).expect("an object");
        assert!(!object.is_stripped() && !object.fills_maps());
        assert_eq!(object.static_programs().count(), 0);
    }
}
