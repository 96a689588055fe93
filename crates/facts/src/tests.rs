//! Tests: numbers against arithmetic, states and liveness against random runs, and one program per
//! promise.

mod calls;
mod concrete;
mod liveness;
mod numbers;
mod random;
mod states;

use std::sync::Arc;

use bpf_isa::Reg;
use bpf_program::{BlockId, Function, Link, Symbol};
pub(crate) use bpf_testgen::listing::function;

use crate::{Env, Facts, MapInfo, State};

/// Marks operation `i` of block `b` as patched by a CO-RE relocation.
pub(crate) fn with_core(mut f: Function, b: u32, i: usize) -> Function {
    let symbol = Symbol::Core { kind: 0, type_id: 1, access: Arc::from("0:1") };
    f.block_mut(BlockId(b)).ops[i].link = Some(Link { slot: 0, symbol });
    f
}

/// Map 0: a hash of 16-byte keys and 8-byte values. Map 1: an array of maps.
pub(crate) fn maps() -> Vec<MapInfo> {
    let map = |name: &str, map_type, key, value| MapInfo {
        name: name.into(),
        map_type: Some(map_type),
        key_size: Some(key),
        value_size: Some(value),
        max_entries: Some(1),
        ..MapInfo::default()
    };
    vec![map("hash", 1, 16, 8), map("outer", 12, 4, 4)]
}

pub(crate) fn no_arity(_: &str) -> Option<usize> {
    None
}

/// The state before the terminator of block `b`.
pub(crate) fn at_end(f: &Function, b: u32) -> State {
    let maps = maps();
    let facts = Facts::of(f, &Env { maps: &maps, callee_args: &no_arity, ..Env::empty() });
    facts.states(f, BlockId(b)).pop().expect("the block is reachable")
}

pub(crate) fn r(n: u8) -> Reg {
    Reg::new(n).unwrap()
}
