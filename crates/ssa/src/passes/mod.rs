//! Global optimizations on the form, one file each, with before and after in its header.

use bpf_facts::Env;

use crate::Ssa;

mod chains;
mod dead;
mod decisions;
mod default_stores;
mod defaults;
mod elements;
mod equals;
mod exits;
mod fill;
pub(crate) mod fold;
mod key_slots;
mod late_calls;
mod loads;
mod melding;
mod moving;
mod numbering;
mod one_side;
mod overwritten;
mod packet_loads;
mod pass;
mod predicates;
mod presets;
mod rebase;
mod repair;
mod sinking;
mod untested;
mod values;
mod ways;
mod wide_copies;

pub use late_calls::late_calls;
pub use one_side::one_side;
pub use pass::Pass;

/// All of them, in the order in which they run.
pub fn all_passes() -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(melding::Melding),
        Box::new(untested::Untested),
        Box::new(elements::Elements),
        Box::new(fill::Fill),
        Box::new(numbering::Numbering),
        Box::new(loads::Loads),
        Box::new(overwritten::Overwritten),
        Box::new(wide_copies::WideCopies),
        Box::new(packet_loads::PacketLoads),
        Box::new(key_slots::KeySlots),
        Box::new(predicates::Predicates),
        Box::new(moving::Moving),
        Box::new(exits::Exits),
        Box::new(sinking::Sinking),
        Box::new(dead::Dead),
        Box::new(rebase::Rebase),
        Box::new(chains::Chains),
        Box::new(ways::Ways),
        Box::new(default_stores::DefaultStores),
        Box::new(decisions::Decisions),
        Box::new(equals::Equals),
        Box::new(defaults::Defaults),
        Box::new(presets::Presets),
    ]
}

/// Passes that make a function longer so that a step is small enough to be proven; the next steps make it shorter.
pub fn detours() -> Vec<Box<dyn Pass>> {
    vec![Box::new(moving::Beside)]
}

/// Rounds at most.
const ROUNDS: usize = 8;

/// Runs the passes in turn until none of them changes anything, then those that come last.
pub fn run(f: &mut Ssa, env: &Env<'_>, passes: &[&dyn Pass]) {
    let step = |f: &mut Ssa, p: &dyn Pass| {
        let changed = p.run(f, env);
        debug_assert_eq!(crate::verify(f), Ok(()), "{} broke the form of {}", p.name(), f.name);
        changed
    };
    for _ in 0..ROUNDS {
        let mut changed = false;
        for p in passes.iter().filter(|p| !p.is_last()) {
            changed |= step(f, *p);
        }
        if !changed {
            break;
        }
    }
    for p in passes.iter().filter(|p| p.is_last()) {
        step(f, *p);
    }
}
