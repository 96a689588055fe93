//! Several proven forms of one object, ranked by measurement.
//!
//! A table of latencies says which form should be faster; only runs say which one is (paper §4,
//! "top k"). All forms are proven, so measuring decides nothing but their order.

use std::time::{Duration, Instant};

use bpf_isa::Goal;
use bpf_kernel::{LoadOptions, LoadedObject, permitted};

use crate::difftest::{Random, packet};
use crate::error::DriverError;
use crate::options::Options;
use crate::report::{Observer, Report};

/// A form of the object.
pub struct Variant {
    /// The object.
    pub bytes: Vec<u8>,
    /// How it came about.
    pub report: Report,
    /// Measured time relative to the original, geometric mean over programs and packets; `None` where
    /// nothing could be measured.
    pub ratio: Option<f64>,
}

/// The part of the time that is put aside for measuring.
const MEASURING: f64 = 0.2;
/// Packets each program is timed on.
const PACKETS: u64 = 8;
/// Repetitions of one timing.
const REPEAT: u32 = 2_000;
/// Timings of one program, packet and form; the median counts.
const ROUNDS: usize = 9;

/// Makes up to `count` different forms of `input` in the time given, the fastest first.
///
/// # Errors
/// As [`crate::optimize`].
pub fn variants(
    input: &[u8],
    options: &Options,
    count: usize,
    observer: &dyn Observer,
) -> Result<Vec<Variant>, DriverError> {
    let count = count.max(1);
    let end = Instant::now().checked_add(options.time_limit);
    let share = options.time_limit.mul_f64(1.0 - MEASURING).div_f64(count as f64).max(Duration::from_millis(1));
    let mut forms: Vec<Variant> = Vec::new();
    let mut warnings: Vec<String> = Vec::new();
    for i in 0..count {
        if i > 0 && observer.stop() {
            break;
        }
        // Other goals and other seeds find other code; what is faster will be measured.
        let goal = if i % 2 == 0 { options.goal } else { Goal::Size };
        let seed = options.seed.wrapping_add(i as u64 / 2);
        let with = Options { goal, seed, time_limit: share, ..options.clone() };
        let (bytes, report) = crate::optimize(input, &with, observer)?;
        // What went wrong on the way to any of them, the user is to know.
        warnings.extend(report.warnings.iter().filter(|w| !warnings.contains(w)).cloned().collect::<Vec<_>>());
        if !forms.iter().any(|v| v.bytes == bytes) {
            forms.push(Variant { bytes, report, ratio: None });
        }
    }
    observer.phase("measuring");
    let all: Vec<&[u8]> = std::iter::once(input).chain(forms.iter().map(|v| v.bytes.as_slice())).collect();
    let is_over = || observer.stop() || end.is_some_and(|end| Instant::now() >= end);
    let ratios = options.kernel.then(|| measure(&all, options, &is_over)).flatten();
    for (v, ratio) in forms.iter_mut().zip(ratios.into_iter().flatten()) {
        v.ratio = Some(ratio);
    }
    forms.sort_by(|a, b| {
        let rank = |v: &Variant| (v.ratio.unwrap_or(f64::INFINITY), v.report.slots().1);
        let ((x, m), (y, n)) = (rank(a), rank(b));
        x.total_cmp(&y).then(m.cmp(&n))
    });
    if let Some(best) = forms.first_mut() {
        best.report.warnings = warnings;
    }
    Ok(forms)
}

/// The time of each object but the first relative to the first, as far as there is time to measure it.
fn measure(objects: &[&[u8]], options: &Options, is_over: &dyn Fn() -> bool) -> Option<Vec<f64>> {
    if is_over() {
        return None;
    }
    permitted().require().ok()?;
    let load = LoadOptions { program_type: options.program_type.clone(), only: None };
    let loaded: Vec<LoadedObject> = objects.iter().map(|b| LoadedObject::load(b, &load).ok()).collect::<Option<_>>()?;
    let mut random = Random::new(options.seed);
    let mut logs = vec![0.0; objects.len()];
    let mut measured = 0;
    // All programs have the first packet before any has the second.
    for _ in 0..PACKETS {
        for program in loaded[0].programs() {
            if is_over() {
                break;
            }
            let data = packet(&mut random, &[]);
            let mut times = vec![Vec::with_capacity(ROUNDS); loaded.len()];
            // In turns, so that a disturbance hits all alike.
            for _ in 0..ROUNDS {
                for (object, times) in loaded.iter().zip(&mut times) {
                    let Ok(t) = object.time(&program.name, &data, None, REPEAT, 1) else { continue };
                    times.push(t.median_ns);
                }
            }
            if times.iter().any(|t| t.len() < ROUNDS) {
                continue;
            }
            let median = |t: &mut Vec<u32>| {
                t.sort_unstable();
                f64::from(t[t.len() / 2].max(1))
            };
            let base = median(&mut times[0]);
            for (log, t) in logs.iter_mut().zip(&mut times) {
                *log += (median(t) / base).ln();
            }
            measured += 1;
        }
    }
    (measured > 0).then(|| logs[1..].iter().map(|l| (l / f64::from(measured)).exp()).collect())
}
