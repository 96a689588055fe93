//! Back to BPF: selection, allocation, emission, in several ways of which the shortest is taken.

use bpf_program::{Function, slot_count};
use rustc_hash::FxHashSet;

use crate::allocate::Aim;
use crate::select::{Choice, select};
use crate::{Ssa, allocate, emit, splitting};

/// Orders of joining registers that are tried, for functions of up to this many instructions.
const ORDERS: [(usize, u64); 4] = [(150, 12), (500, 6), (2_000, 3), (usize::MAX, 2)];

/// Instructions of a function up to which both ways of allocating are tried, whatever the first gives.
const SMALL: usize = 2_000;

/// The graph of a function, in the place of `original`; the shortest of several. `None` if there are not enough
/// registers, or if no way was found to put moves in order.
pub fn lower(f: &Ssa, original: &Function) -> Option<Function> {
    let size: usize = f.layout.iter().map(|b| f.block(*b).insts.len() + 1).sum();
    let orders = ORDERS.iter().find(|(most, _)| size <= *most).map_or(1, |(_, n)| *n);
    let mut best: Option<(usize, Function)> = None;
    // Most functions leave little to choose: what is as before gives what it gave.
    let mut machines = vec![];
    for constants_at_joins in [false, true] {
        for frame_at_calls in [false, true] {
            let machine = select(f, Choice { constants_at_joins, frame_at_calls });
            if machines.contains(&machine) {
                continue;
            }
            let mut seen = FxHashSet::default();
            let units = allocate::Units::of(&machine);
            let conflicts = allocate::Conflicts::of(&units);
            let orders = if conflicts.are_too_many(&units) { 0 } else { orders };
            for order in 0..orders {
                let Some(a) = allocate::allocate(&units, &conflicts, &machine.homes, Aim::FewMoves(order)) else {
                    continue;
                };
                if !seen.insert(a.clone()) {
                    continue;
                }
                let Some(mut g) = emit::emit(original, &machine, &units, &a) else { continue };
                bpf_passes::cfg::simplify(&mut g, true);
                let slots = slot_count(&g);
                if best.as_ref().is_none_or(|(n, _)| slots < *n) {
                    best = Some((slots, g));
                }
            }
            machines.push(machine);
        }
    }
    let other = if best.is_none() || size <= SMALL { with_moves(f, original) } else { None };
    match (best, other) {
        (Some((slots, g)), Some(h)) => Some(if slot_count(&h) < slots { h } else { g }),
        (best, other) => best.map(|(_, g)| g).or(other),
    }
}

/// The same with registers that are found by moving values about; the shortest of a few.
pub fn with_moves(f: &Ssa, original: &Function) -> Option<Function> {
    let choices = [false, true].map(|constants_at_joins| Choice { constants_at_joins, frame_at_calls: true });
    let mut machines = choices.map(|choice| select(f, choice)).to_vec();
    machines.dedup();
    let all = machines.iter().filter_map(|machine| {
        let mut g = splitting::lower(original, machine)?;
        bpf_passes::cfg::simplify(&mut g, true);
        Some(g)
    });
    all.min_by_key(slot_count)
}

/// The graph with values where the original has them, as far as possible: easier to compare, and longer.
pub fn in_place(f: &Ssa, original: &Function) -> Option<Function> {
    let machine = select(f, Choice::default());
    let units = allocate::Units::of(&machine);
    let conflicts = allocate::Conflicts::of(&units);
    let a = allocate::allocate(&units, &conflicts, &machine.homes, Aim::Homes)?;
    let mut g = emit::emit(original, &machine, &units, &a)?;
    bpf_passes::cfg::simplify(&mut g, false);
    Some(g)
}
