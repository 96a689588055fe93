//! Variables and kconfig variables with declared values.

use std::collections::BTreeMap;

use bpf_assembly::Variable;
use bpf_kernel::testing::permitted;
use bpf_object::Object;
use bpf_specialize::{Declared, Given};

use crate::support::*;

fn variable(name: &str, section: &str, size: u32, value: &[u8]) -> Variable {
    Variable { name: name.into(), section: section.into(), size, value: value.to_vec(), pointer: None }
}

fn variables(given: &[(&str, Given)]) -> Declared {
    let variables = given.iter().map(|(name, given)| ((*name).to_owned(), given.clone()));
    Declared { variables: variables.collect::<BTreeMap<_, _>>(), ..Declared::default() }
}

const TEXT: &str = "r1 = a ll\nr0 = *(u32 *)(r1 + 0)\nr2 = b ll\nr3 = *(u64 *)(r2 + 0)\nr4 = *(u16 *)(r2 + 2)\n\
    r5 = c ll\nr5 = *(u8 *)(r5 + 0)\nr0 ^= r3\nr0 += r4\nr0 -= r5\nr3 >>= 32\nr0 ^= r3\nexit\n";

fn object() -> Vec<u8> {
    let all = vec![
        variable("a", ".rodata", 4, &[1, 2, 3, 4]),
        variable("b", ".rodata", 8, &[5; 8]),
        variable("c", ".data", 1, &[6]),
    ];
    build(&around(vec![], all), TEXT)
}

#[test]
fn loads_give_what_is_declared_and_the_object_holds_it() {
    let bytes = object();
    let given = [("a", Given::Number(-2)), ("b", Given::Bytes((1..=8).collect()))];
    let done = specialized(&bytes, &variables(&given));
    assert_eq!(done.constants, 3);
    let read = Object::parse(done.bytes.clone()).unwrap();
    let (_, rodata) = read.section(".rodata").unwrap();
    assert_eq!(rodata, [0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(Declared::of_note(&read).unwrap(), done.declared);
    let as_is = specialized(&bytes, &variables(&[("a", Given::AsIs)]));
    assert_eq!((as_is.constants, as_is.declared.variables["a"].clone()), (1, Given::Bytes(vec![1, 2, 3, 4])));
    if !permitted() {
        return;
    }
    let packets = [vec![0; 64]];
    assert_eq!(results(&as_is.bytes, "", &[], &packets), results(&bytes, "", &[], &packets));
    // What the loader would have set by hand.
    let all = vec![
        variable("a", ".rodata", 4, &[0xfe, 0xff, 0xff, 0xff]),
        variable("b", ".rodata", 8, &[1, 2, 3, 4, 5, 6, 7, 8]),
        variable("c", ".data", 1, &[6]),
    ];
    let by_hand = build(&around(vec![], all), TEXT);
    assert_eq!(results(&done.bytes, "", &[], &packets), results(&by_hand, "", &[], &packets));
}

#[test]
fn values_that_do_not_fit_and_variables_that_are_not_frozen_are_refused() {
    let bytes = object();
    let said = |name: &str, given: Given| refusal(&bytes, &variables(&[(name, given)]));
    assert!(said("a", Given::Number(1 << 32)).contains("does not fit"));
    assert!(said("a", Given::Bytes(vec![1])).contains("it has 4"));
    assert!(said("c", Given::Number(1)).contains(".data"));
    assert!(said("d", Given::AsIs).contains("there are: a, b"));
    let kconfig = Declared { kconfig: [("CONFIG_HZ".to_owned(), 250)].into(), ..Declared::default() };
    assert!(refusal(&bytes, &kconfig).contains("CONFIG_HZ"));
    assert!(Declared::of_note(&Object::parse(bytes).unwrap()).is_err());
}

#[test]
fn a_function_that_gets_too_long_is_named() {
    let loads = "r3 = *(u64 *)(r2 + 0)\n".repeat(17_000);
    let text = format!("r0 = 0\nr1 = *(u32 *)(r1 + 12)\nif r1 == 5 goto out\nr2 = b ll\n{loads}out:\nexit\n");
    let bytes = build(&around(vec![], vec![variable("b", ".rodata", 8, &[5; 8])]), &text);
    let why = refusal(&bytes, &variables(&[("b", Given::AsIs)]));
    assert!(why.contains("function `main`") && why.contains("a jump"), "{why}");
}

#[test]
fn a_specialized_object_is_not_specialized_again() {
    let done = specialized(&object(), &variables(&[("a", Given::AsIs)]));
    assert!(refusal(&done.bytes, &variables(&[("b", Given::AsIs)])).contains("already"));
}

#[test]
fn the_same_declaration_gives_the_same_bytes() {
    let declared = variables(&[("a", Given::Number(3))]);
    assert_eq!(specialized(&object(), &declared).bytes, specialized(&object(), &declared).bytes);
}
