//! What a function weighs for a goal.

use bpf_facts::MapInfo;
use bpf_isa::Goal;
use bpf_passes::Settings;
use bpf_program::{Function, slot_count};

use crate::estimate;

/// What is less for a goal: slots, then what instructions weigh one by one; or the expected time of a run in picoseconds, then slots.
pub(crate) fn weight(f: &Function, settings: &Settings, maps: &[MapInfo]) -> (u64, u64) {
    const PICOSECONDS: f64 = 1000.0;
    let slots = slot_count(f) as u64;
    match settings.goal {
        Goal::Latency(costs) => {
            let of_map = |i: usize| maps.get(i).and_then(|m| m.map_type);
            let ns = estimate::expected(f, &settings.frequencies(f), costs, &of_map);
            ((ns * PICOSECONDS).round() as u64, slots)
        }
        Goal::Size | Goal::Verifier => (slots, estimate::weights(f, settings.goal.costs())),
    }
}

/// The same in one number.
pub(crate) fn weight_in_one(f: &Function, settings: &Settings, maps: &[MapInfo]) -> usize {
    const SLOTS: u64 = 1 << 15;
    if settings.goal.puts_slots_first() {
        return slot_count(f);
    }
    let (time, slots) = weight(f, settings, maps);
    usize::try_from(time.saturating_mul(SLOTS).saturating_add(slots.min(SLOTS - 1))).unwrap_or(usize::MAX)
}
