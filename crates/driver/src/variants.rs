//! Several proven forms of one object, ranked by measurement.
//!
//! A table of latencies says which form should be faster; only runs say which one is (paper §4,
//! "top k"). All forms are proven, so measuring decides nothing but their order. Only programs are run of which a test run is
//! known to be harmless, as for comparing ([`crate::difftest`]), and only while there is time.

use std::time::{Duration, Instant};

use bpf_isa::Goal;
use bpf_kernel::{LoadOptions, LoadedObject, ProgramVerdict, permitted};

use crate::difftest::calls::Calls;
use crate::difftest::{Random, packet, why_not_run};
use crate::error::DriverError;
use crate::options::Options;
use crate::report::{Observer, Report};
use crate::runcheck::isolated;

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
/// Time relative to the original from which on it is told that no form is faster: what is less may be chance.
const NOT_FASTER: f64 = 1.02;
/// Packets each program is timed on.
const PACKETS: u64 = 8;
/// Repetitions of one timing, at most: as many as there is time for.
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
    let ratios = options.kernel.then(|| measure(&all, options, end, observer)).flatten();
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
        if best.ratio.is_some_and(|ratio| ratio > NOT_FASTER) {
            best.report.notes.push("no form was faster than the original when they were timed here".to_owned());
        }
    }
    Ok(forms)
}

/// The time of each object but the first relative to the first, as far as there is time to measure it: of the programs that
/// may be run just to try them ([`why_not_run`]), in a network namespace of their own.
fn measure(objects: &[&[u8]], options: &Options, end: Option<Instant>, observer: &dyn Observer) -> Option<Vec<f64>> {
    permitted().require().ok()?;
    let calls: Vec<Calls> = objects.iter().map(|b| Calls::of(b)).collect::<Option<_>>()?;
    // Without a namespace nothing is run.
    isolated(|| timed(objects, &calls, options, end, observer)).ok().flatten()
}

fn timed(
    objects: &[&[u8]],
    calls: &[Calls],
    options: &Options,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Option<Vec<f64>> {
    let is_over = || observer.stop() || end.is_some_and(|end| Instant::now() >= end);
    let load = LoadOptions { program_type: options.program_type.clone(), only: None };
    let mut loaded: Vec<LoadedObject> = Vec::new();
    for bytes in objects {
        if is_over() {
            return None;
        }
        loaded.push(LoadedObject::load_for_runs(bytes, &load, end).ok()?);
    }
    let may_run = |p: &&ProgramVerdict| calls.iter().all(|c| why_not_run(p, c, false).is_none());
    let programs: Vec<&str> = loaded[0].programs().iter().filter(may_run).map(|p| p.name.as_str()).collect();
    let mut random = Random::new(options.seed);
    let mut logs = vec![0.0; objects.len()];
    let mut measured = 0;
    let mut batches = PACKETS as usize * programs.len() * ROUNDS * objects.len();
    // All programs have the first packet before any has the second.
    for _ in 0..PACKETS {
        for program in &programs {
            let data = packet(&mut random, &[]);
            let left = end.map(|end| end.saturating_duration_since(Instant::now()) / batches.max(1) as u32);
            batches -= ROUNDS * objects.len();
            let Some(times) = times(&loaded, program, &data, left, &is_over) else { continue };
            let median = |t: &Vec<u32>| {
                let mut t = t.clone();
                t.sort_unstable();
                f64::from(t[t.len() / 2].max(1))
            };
            let base = median(&times[0]);
            for (log, t) in logs.iter_mut().zip(&times) {
                *log += (median(t) / base).ln();
            }
            measured += 1;
        }
    }
    (measured > 0).then(|| logs[1..].iter().map(|l| (l / f64::from(measured)).exp()).collect())
}

/// What a program of each object takes on a packet, several times; `None` if one does not run on it, the kernel tells no
/// time of such a program, or the time is up. `left`: what one batch of runs may take.
fn times(
    loaded: &[LoadedObject],
    program: &str,
    data: &[u8],
    left: Option<Duration>,
    is_over: &dyn Fn() -> bool,
) -> Option<Vec<Vec<u32>>> {
    let mut longest = 0;
    for object in loaded {
        if is_over() {
            return None;
        }
        longest = longest.max(object.time(program, data, None, 1, 1).ok()?.median_ns);
    }
    if longest == 0 {
        return None;
    }
    let fit = left.map_or(u128::MAX, |left| left.as_nanos() / u128::from(longest));
    let repeat = fit.clamp(1, u128::from(REPEAT)) as u32;
    let mut times = vec![Vec::with_capacity(ROUNDS); loaded.len()];
    // In turns, so that a disturbance hits all alike.
    for _ in 0..ROUNDS {
        for (object, times) in loaded.iter().zip(&mut times) {
            if is_over() {
                return None;
            }
            times.push(object.time(program, data, None, repeat, 1).ok()?.median_ns);
        }
    }
    Some(times)
}
