//! What a candidate costs (paper §3.2): wrong results, slots or time, unsafe accesses.

use bpf_isa::{Costs, Goal, Insn};
use bpf_program::Op;

use crate::batch::Score;
use crate::settings::{Counted, Setting};
use crate::window::{Cost, NOP};

/// What an unsafe candidate costs more.
pub const ERR_MAX: f64 = 100.0;

/// Estimated time of an operation in picoseconds ([`Costs::time`]); none for what only holds a place.
#[inline]
pub fn time(op: &Op, costs: &Costs) -> u32 {
    if op.insn == NOP { 0 } else { costs.time(&op.insn) }
}

/// Slots of an operation; none for what only holds a place.
#[inline]
pub fn slots(insn: &Insn) -> u32 {
    if *insn == NOP { 0 } else { insn.slots() as u32 }
}

/// The cost of a sequence in the order of the goal, by its table.
pub fn of(ops: &[Op], goal: Goal) -> Cost {
    let slots = ops.iter().map(|o| slots(&o.insn)).sum();
    let time = ops.iter().map(|o| time(o, goal.costs())).sum();
    if goal.puts_slots_first() { Cost { first: slots, second: time } } else { Cost { first: time, second: slots } }
}

/// How many slots and how much time more `new` takes than `old`.
#[inline]
pub fn more(new: &Op, old: &Op, costs: &Costs) -> (i32, i32) {
    let time = |o: &Op| time(o, costs) as i32;
    (slots(&new.insn) as i32 - slots(&old.insn) as i32, time(new) - time(old))
}

/// The one number the chain walks by; `extra` is the performance cost relative to the original, in
/// slots (or in the time of a plain operation).
#[inline]
pub fn total(s: &Setting, score: Score, tests: u32, unequal: bool, extra: f64) -> f64 {
    let weight = if s.average { 1.0 / f64::from(tests.max(1)) } else { 1.0 };
    let counted = match s.counted {
        _ if !unequal => 0,
        Counted::Failed => score.failed,
        Counted::Passed => tests - score.failed.min(tests),
    };
    let unsafe_ = if score.faults > 0 { ERR_MAX } else { 0.0 };
    s.error * (weight * score.distance as f64 + f64::from(counted)) + s.performance * extra + s.safety * unsafe_
}
