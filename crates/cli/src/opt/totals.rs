//! Sums over all functions of an object.

use bpf_driver::{FunctionReport, KernelVerdict, Report};
use serde::Serialize;

use crate::diff::is_changed;

/// Sums over all functions.
#[derive(Serialize)]
pub struct Totals {
    pub functions: usize,
    pub changed: usize,
    pub untouched: usize,
    pub slots_before: usize,
    pub slots_after: usize,
    pub saved_percent: f64,
    pub proofs: usize,
    pub refused: usize,
    pub sat_calls: u64,
    pub verified_before: Option<u64>,
    pub verified_after: Option<u64>,
}

impl Totals {
    /// Of a report.
    pub fn of(report: &Report) -> Totals {
        let all = &report.functions;
        let (slots_before, slots_after) = report.slots();
        let verified = |which: fn(&FunctionReport) -> Option<&KernelVerdict>| {
            all.iter().filter_map(|f| which(f)?.processed).reduce(|a, b| a + b)
        };
        Totals {
            functions: all.len(),
            changed: all.iter().filter(|f| is_changed(f)).count(),
            untouched: all.iter().filter(|f| f.untouched.is_some()).count(),
            slots_before,
            slots_after,
            saved_percent: saved_percent(slots_before, slots_after),
            proofs: all.iter().map(|f| f.proofs).sum(),
            refused: all.iter().map(|f| f.refused).sum(),
            sat_calls: all.iter().map(|f| f.sat_calls).sum(),
            verified_before: verified(|f| f.kernel_before.as_ref()),
            verified_after: verified(|f| f.kernel_after.as_ref()),
        }
    }
}

/// Slots saved, in percent of those before.
pub fn saved_percent(before: usize, after: usize) -> f64 {
    if before == 0 { 0.0 } else { 100.0 * (before as f64 - after as f64) / before as f64 }
}
