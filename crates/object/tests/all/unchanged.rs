//! Reading and writing without changes, and what reading finds.

use bpf_object::{FuncId, FuncKind, Object, RefKind, ValueType, WriteOptions};

use crate::common::{everything, example, fixture, is_passed_over};

#[test]
fn unchanged_objects_are_written_byte_for_byte() {
    for path in everything() {
        let bytes = std::fs::read(&path).unwrap();
        let mut object = Object::parse(bytes.clone()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(!object.functions().is_empty(), "{}", path.display());
        for f in 0..object.functions().len() {
            if is_passed_over(&object, FuncId(f)) {
                continue;
            }
            assert_eq!(object.locked(FuncId(f)), None, "{}", path.display());
            let body = object.identity_body(FuncId(f)).unwrap();
            object.set_body(FuncId(f), body).unwrap();
        }
        let written = object.write(&WriteOptions::default()).unwrap();
        assert!(written.bytes == bytes, "{}", path.display());
        assert!(written.notes.is_empty());
    }
}

#[test]
fn subprograms_calls_and_callbacks_are_found() {
    let object = Object::parse(example("subprogs.o")).unwrap();
    let kind = |name: &str| object.functions()[object.function_named(name).unwrap().0].kind;
    assert_eq!(kind("entry"), FuncKind::Program);
    assert_eq!(kind("pass"), FuncKind::Program);
    assert_eq!(kind("classify"), FuncKind::Global);
    for name in ["mix", "account", "add_one"] {
        assert_eq!(kind(name), FuncKind::Static);
    }
    let refs = object.refs(object.function_named("entry").unwrap());
    let id = |name: &str| object.function_named(name).unwrap();
    assert!(refs.iter().any(|r| r.kind == RefKind::Call { target: id("classify") }));
    assert!(refs.iter().any(|r| r.kind == RefKind::Call { target: id("account") }));
    assert!(refs.iter().any(|r| r.kind == RefKind::FuncAddr { target: id("add_one") }));
    // `mix` is called from its own section without a relocation.
    assert!(object.refs(id("add_one")).iter().any(|r| r.kind == RefKind::Call { target: id("mix") }));
}

#[test]
fn maps_are_read_from_btf_and_from_legacy_sections() {
    let object = Object::parse(example("subprogs.o")).unwrap();
    let map = |name: &str| object.maps().iter().find(|m| m.name == name).unwrap().clone();
    let totals = map("totals");
    assert_eq!(
        (totals.map_type, totals.key_size, totals.value_size, totals.max_entries),
        (Some(2), Some(4), Some(8), Some(4))
    );
    let inner = map("outer").inner.unwrap();
    assert_eq!((inner.map_type, inner.value_size), (Some(2), Some(4)));
    assert!(map("tails").inner.is_none());
    let object = Object::parse(example("legacy_maps.o")).unwrap();
    let names: Vec<_> = object.maps().iter().map(|m| (m.name.as_str(), m.legacy, m.value_size, m.map_flags)).collect();
    assert_eq!(names, [("drops", true, Some(8), Some(0)), ("sources", true, Some(16), Some(1))]);
}

#[test]
fn signatures_lines_data_and_core_records_are_read() {
    let object = Object::parse(example("globals.o")).unwrap();
    let id = object.function_named("on_getpid").unwrap();
    assert_eq!(object.core_relocs(id).len(), 2);
    assert_eq!(object.core_relocs(id)[0].access, "0:2");
    assert!(object.refs(id).iter().any(
        |r| matches!(&r.kind, RefKind::Data { section, symbol, .. } if section == ".rodata" && symbol == "wanted_pid")
    ));
    assert!(
        object
            .refs(id)
            .iter()
            .any(|r| matches!(&r.kind, RefKind::Data { section, offset: 4, addend: 4, .. } if section == ".data"))
    );
    let first = object.line_of(id, 0).unwrap();
    assert!(first.file.ends_with("globals.c") && first.line > 20 && !first.text.trim().is_empty(), "{first:?}");
    assert_eq!(object.line_of(id, 100_000), None);
    let lines = object.source_lines(id);
    assert!(lines.len() > 2 && lines.is_sorted_by_key(|(slot, _)| *slot), "{lines:?}");
    for slot in 0..object.functions()[id.0].slots {
        let told = lines.iter().rfind(|(at, _)| *at <= slot).map(|(_, line)| line.clone());
        assert_eq!(object.line_of(id, slot), told, "slot {slot}");
    }
    let object = Object::parse(example("xdp_count.o")).unwrap();
    let proto = object.func_proto(FuncId(0)).unwrap();
    assert_eq!(proto.returns, ValueType::Int { bits: 32, signed: true });
    assert_eq!(proto.params[0].value, ValueType::Pointer { name: "xdp_md".into(), size: Some(24) });
    let object = Object::parse(fixture("code_pointers.o")).unwrap();
    let caller = object.function_named("caller").unwrap();
    assert!(object.refs(caller).iter().any(|r| r.kind == RefKind::Extern { name: "kernel_function".into() }));
}

#[test]
fn questions_about_functions_that_do_not_exist_have_empty_answers() {
    let object = Object::parse(example("globals.o")).unwrap();
    let none = FuncId(99);
    assert!(object.code(none).is_empty() && object.refs(none).is_empty() && object.core_relocs(none).is_empty());
    assert!(object.func_proto(none).is_none() && object.source_lines(none).is_empty() && object.locked(none).is_none());
    assert!(object.identity_body(none).is_err());
}

#[test]
fn programs_are_found_by_the_names_that_libbpf_has_for_them() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../driver/tests/fixtures");
    let object = Object::parse(std::fs::read(folder.join("entries.o")).unwrap()).unwrap();
    let entry = |name: &str, section: &str| -> Vec<&str> {
        object.entries(name, section).iter().map(|f| object.functions()[f.0].name.as_str()).collect()
    };
    assert_eq!(entry("switched_off", "cgroup_skb/ingress"), ["switched_off"]);
    assert_eq!(entry("of_this_file", "cgroup_skb/egress"), ["of_this_file"]);
    assert_eq!(entry("one_name", "cgroup/skb"), entry("another_name", "cgroup/skb"));
    assert_eq!(entry("one_name", "cgroup/skb").len(), 1);
    assert!(entry("switched_off", "?cgroup_skb/ingress").is_empty());
    assert!(entry("one_name", "cgroup_skb/egress").is_empty());
}

#[test]
fn exception_callbacks_are_part_of_their_programs() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../driver/tests/fixtures");
    let object = Object::parse(std::fs::read(folder.join("exception.o")).unwrap()).unwrap();
    let id = |name: &str| object.function_named(name).unwrap();
    assert_eq!(object.callees(id("thrower")), [id("caught")]);
    assert_eq!(object.loaded_with([id("thrower")]), [id("thrower"), id("caught")]);
    assert_eq!(object.run_with([id("bystander")]), [id("bystander")]);
    assert!(object.is_exception_callback(id("caught")) && !object.is_exception_callback(id("thrower")));
}
