//! Objects from text, and runs of two of them in the kernel.

use std::collections::BTreeMap;

use bpf_assembly::{Map, Surroundings, Variable, functions, object};
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_specialize::{Contents, Declared, Done, Element, SpecializeError, specialize};

/// The surroundings of an XDP program.
pub fn around(maps: Vec<Map>, variables: Vec<Variable>) -> Surroundings {
    Surroundings { section: "xdp".into(), maps, variables, ..Surroundings::default() }
}

pub fn map(name: &str, map_type: u32, key_size: u32, value_size: u32, max_entries: u32) -> Map {
    Map { name: name.into(), map_type, key_size, value_size, max_entries, ..Map::default() }
}

pub fn build(around: &Surroundings, text: &str) -> Vec<u8> {
    object(around, &functions(text, "xdp").expect("functions")).expect("an object")
}

pub fn frozen(name: &str, elements: &[Element]) -> Declared {
    Declared { maps: BTreeMap::from([(name.into(), elements.to_vec().into())]), ..Declared::default() }
}

/// The same of an array that has more elements, which are 0.
pub fn zero_beside(name: &str, elements: &[Element]) -> Declared {
    let map = Contents { elements: elements.to_vec(), others_are_zero: true, ..Contents::default() };
    Declared { maps: BTreeMap::from([(name.into(), map)]), ..Declared::default() }
}

/// Specializes an object whose declaration is in order.
pub fn specialized(bytes: &[u8], declared: &Declared) -> Done {
    specialize(bytes, declared).expect("it can be specialized")
}

/// Why one is not specialized.
pub fn refusal(bytes: &[u8], declared: &Declared) -> String {
    match specialize(bytes, declared) {
        Ok(_) => panic!("it was specialized"),
        Err(SpecializeError::Internal(text)) => panic!("internal error: {text}"),
        Err(e) => e.to_string(),
    }
}

/// What the program `main` of an object returns for each packet, with these elements in a map.
pub fn results(bytes: &[u8], name: &str, elements: &[Element], packets: &[Vec<u8>]) -> Vec<(u32, Vec<u8>)> {
    let loaded = LoadedObject::load(bytes, &LoadOptions::default()).expect("it is an object");
    if !name.is_empty() {
        let map = loaded.map(name).expect("the map is there");
        for (key, value) in elements {
            map.update(key, value).expect("there is room");
        }
    }
    let run = |packet: &Vec<u8>| {
        let result = loaded.test_run("main", packet, None, 1).expect("it runs");
        (result.retval, result.data_out)
    };
    packets.iter().map(run).collect()
}
