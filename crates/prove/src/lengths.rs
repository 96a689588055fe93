//! What the verifier knows of elements of arrays, which hangs on how long these are.
//!
//! It takes an element for there if it knows its number and the array is long enough (`can_elide_value_nullness` in
//! kernel/bpf/verifier.c), and a loader may say how long an array is. Here it is asked of a function whether that can count;
//! the kernel is then asked with other lengths.

use bpf_facts::{Env, Facts, MapInfo, Region, State, map_and_key};
use bpf_isa::Insn;
use bpf_platform::Effects;
use bpf_platform::effects::Extent;
use bpf_program::{Function, Op};

/// With which lengths of arrays the kernel's verifier may know something else of the elements that a function looks up than with
/// those that the object says ([`bpf_platform::first_key_of_longer`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HangsOnLengths {
    /// With none: each has the key 0, which every array has, wherever the verifier comes.
    No,
    /// With smaller ones: the keys that it may know are in the arrays as they are.
    OnSmaller,
    /// With any.
    OnAny,
}

/// Whether what the verifier knows of what a function looks up hangs on how long arrays are.
pub fn hangs_on_lengths(f: &Function, env: &Env) -> HangsOnLengths {
    let is_array = |kind: Option<u32>| kind.is_none_or(bpf_platform::maps::is_array);
    let may_be_array = |m: &MapInfo| is_array(m.map_type) || m.first_inner_key_of_longer.is_some();
    let looks_up =
        |op: &Op| matches!(op.insn, Insn::Call(_)) && Effects::of(&op.insn, op.link.is_some()).is_map_lookup();
    if !env.maps.iter().any(may_be_array) || !f.layout.iter().any(|b| f.block(*b).ops.iter().any(looks_up)) {
        return HangsOnLengths::No;
    }
    let facts = Facts::of_every_way(f, env);
    let hangs = |op: &Op, state: &State| {
        let (map, key) = map_and_key(op, state, env);
        if !looks_up(op) || map.is_some_and(|map| !is_array(map.map_type)) {
            return HangsOnLengths::No;
        }
        match key.filter(|key| is_read_as_it_is(op, state, *key)) {
            Some(0) => HangsOnLengths::No,
            Some(key) if map.and_then(MapInfo::first_key_of_longer).is_some_and(|first| key < first.into()) => {
                HangsOnLengths::OnSmaller
            }
            _ => HangsOnLengths::OnAny,
        }
    };
    let all = f.layout.iter().flat_map(|b| {
        let states = facts.states(f, *b);
        f.block(*b).ops.iter().zip(states).map(|(op, state)| hangs(op, &state)).collect::<Vec<_>>()
    });
    all.max().unwrap_or(HangsOnLengths::No)
}

/// Whether the verifier, if it knows the key that a call reads from the function's frame, takes it for this one, as it is: in
/// the upper half of eight bytes it takes the whole number that was stored there for it (`get_constant_map_key` in
/// kernel/bpf/verifier.c).
fn is_read_as_it_is(op: &Op, state: &State, key: u64) -> bool {
    const SLOT: i64 = 8;
    let row = Effects::of(&op.insn, op.link.is_some());
    let Some(argument) = row.arguments.iter().find(|a| a.extent == Extent::Key) else { return false };
    let Some((Region::Stack, _, at)) = state.reg(argument.register).pointer_at() else { return false };
    let is_zero = |slot: i64| state.stack_bytes(slot, 8).as_const() == Some(0);
    let first = at - at.rem_euclid(SLOT);
    at == first || key == 0 && is_zero(first) && (first + SLOT >= at + 4 || is_zero(first + SLOT))
}
