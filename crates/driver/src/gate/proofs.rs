//! What the gate's own proofs may take.

use std::time::Instant;

use bpf_prove::{Budget, Limits, Options as ProofOptions};

use crate::options::Options;

/// How many proofs, one after the other, find time before the gate's deadline: few need any, and what is not proven is bisected.
const PROOFS: f64 = 4.0;
/// Work for the proofs about one program, in a run that is to end soon.
const SHORT: u64 = 300_000;

/// Work for the proofs about one program; `None`: as much as there is time for.
pub(super) fn work(options: &Options) -> Option<u64> {
    options.is_short().then_some(SHORT)
}

/// How a program is to be proven to run as before by a gate that ends at its `deadline`, and has so much work for it.
pub(super) fn options(deadline: Option<Instant>, work: Option<u64>) -> ProofOptions {
    let now = Instant::now();
    let deadline = deadline.map(|end| now + end.saturating_duration_since(now).div_f64(PROOFS));
    let limits = Limits { deadline, ..Limits::default() };
    ProofOptions { limits, budget: work.map(Budget::new), ..ProofOptions::default() }
}
