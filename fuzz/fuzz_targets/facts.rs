//! Random functions run concretely: every state on the way is one that the facts describe (the campaign's lane `facts`).
#![no_main]

use std::cell::RefCell;

use bpf_soak::corpus::Corpus;
use bpf_soak::facts::FactsLane;
use bpf_soak::{Lane, Tally};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static LANE: RefCell<FactsLane> = RefCell::new(FactsLane::new(Corpus::of(&[])));
}

fuzz_target!(|unit: (u64, u64)| {
    let (seed, index) = unit;
    let mut tally = Tally::default();
    LANE.with_borrow_mut(|lane| lane.unit(seed, index, &mut tally));
    assert!(tally.disagreements.is_empty(), "{:?}", tally.disagreements);
});
