//! Several proven forms of one object, ranked by measurement (the top k of the paper on K2, §8).
//!
//! A table of latencies says which form should be faster; only runs say which one is. The forms are states of one search
//! ([`States`](crate::synthesis::States)): proven, and through the gate, so measuring decides nothing but their order. What is not told
//! from chance leaves the order of the estimates as it is. A form of which any program is slower than the original's comes last, whatever
//! the others gain, and if there is no other form, the original stays.
//! Only programs are run of which a test run is known to be harmless, as for comparing ([`crate::difftest`]), and only while there is
//! time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bpf_kernel::permitted;
use bpf_object::{ByteOrder, Object};

use crate::error::DriverError;
use crate::inputs::Input;
use crate::options::{Options, PassSelection};
use crate::report::{Observer, Report};
use crate::runcheck::isolated;
use crate::timing::{self, Call, Settings};

/// A form of the object.
pub struct Variant {
    /// The object.
    pub bytes: Vec<u8>,
    /// How it came about.
    pub report: Report,
    /// What timing said of it; `None` where nothing could be timed.
    pub measured: Option<Measured>,
}

/// How long a form takes, beside the original.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Its time relative to the original's, what a run of an empty program takes included: geometric mean over programs.
    pub ratio: f64,
    /// What is to be believed of that: `Slower` if a program is, `Faster` if one is and none is slower.
    pub call: Call,
}

/// The part of the time that is put aside for measuring.
const MEASURING: f64 = 0.3;

/// Makes up to `options.forms` different forms of `input` in the time given, the best first.
///
/// # Errors
/// As [`crate::optimize`].
pub fn variants(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<Vec<Variant>, DriverError> {
    let end = Instant::now().checked_add(options.time_limit);
    let with = Options { time_limit: options.time_limit.mul_f64(1.0 - MEASURING), ..options.clone() };
    let forms = crate::optimize::forms(input, &with, None, observer)?;
    let is_for_here = Object::parse(input.to_vec()).is_ok_and(|o| o.byte_order() == ByteOrder::HOST);
    let may_measure = options.kernel && is_for_here && !observer.stop() && forms[0].0 != input;
    let measured = may_measure.then(|| measure(input, &forms, options, end, observer)).flatten();
    let of = |i: usize| measured.as_ref().map(|m| m[i]);
    let mut variants: Vec<Variant> =
        forms.into_iter().enumerate().map(|(i, (bytes, report))| Variant { bytes, report, measured: of(i) }).collect();
    // What went wrong on the way to any of them, the user is to know.
    let mut warnings: Vec<String> = Vec::new();
    for warning in variants.iter().flat_map(|v| &v.report.warnings) {
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    // Stable: by what is expected of them where measuring does not tell.
    variants.sort_by(|a, b| rank(a.measured).partial_cmp(&rank(b.measured)).unwrap_or(std::cmp::Ordering::Equal));
    if original_stays(variants.iter().map(|v| v.measured)) {
        variants.truncate(options.forms.max(2) - 1);
        variants.insert(0, original(input, options, observer)?);
    }
    variants[0].report.warnings = warnings;
    Ok(variants)
}

/// What is less comes first.
fn rank(measured: Option<Measured>) -> (u8, f64) {
    match measured {
        Some(Measured { ratio, call: Call::Faster }) => (0, ratio),
        Some(Measured { ratio, call: Call::Slower }) => (2, ratio),
        _ => (1, 0.0),
    }
}

/// Whether no form is one to take: each makes a program slower.
fn original_stays(mut forms: impl Iterator<Item = Option<Measured>>) -> bool {
    forms.all(|measured| measured.is_some_and(|m| m.call == Call::Slower))
}

/// What is said of a form with programs of which that is said: no gain of one makes up for the loss of another.
fn together(calls: &[Call]) -> Call {
    [Call::Slower, Call::Faster].into_iter().find(|call| calls.contains(call)).unwrap_or(Call::Noise)
}

/// The object as it is.
fn original(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<Variant, DriverError> {
    let only_read =
        Options { passes: PassSelection::None, ssa: false, search: false, run_check: false, ..options.clone() };
    let (bytes, mut report) = crate::optimize(input, &only_read, observer)?;
    report.notes.push("the original stays: of all forms that were made a program is slower here".to_owned());
    Ok(Variant { bytes, report, measured: Some(Measured { ratio: 1.0, call: Call::Noise }) })
}

/// What timing says of each form, as far as there is time: of the programs that may be run just to try them, in a network namespace of
/// their own.
fn measure(
    input: &[u8],
    forms: &[(Vec<u8>, Report)],
    options: &Options,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Option<Vec<Measured>> {
    permitted().require().ok()?;
    observer.phase("measuring");
    let all: Vec<&[u8]> = std::iter::once(input).chain(forms.iter().map(|f| f.0.as_slice())).collect();
    let traffic = options.traffic.as_deref().cloned().unwrap_or_default();
    let settings = Settings {
        packets: Some(traffic.packets).filter(|packets| !packets.is_empty()),
        maps: traffic.maps,
        given: traffic.inputs.map(few),
        program_type: options.program_type.clone(),
        seed: options.seed,
        // Where the kernel puts the code makes more of a difference than what else runs: rather many loads than many rounds.
        loads: 6,
        rounds: 4,
        turn: Duration::from_micros(50),
        candidates: 12,
        inputs: 2,
        until: end,
        ..Settings::default()
    };
    // Without a namespace nothing is run.
    let programs = isolated(|| timing::time(&all, &settings, &mut |_, _| ())).ok()?.ok()?;
    // Of some types the kernel tells no time.
    let takes_time = |class: &&timing::Class| class.objects[0].ns.middle + class.empty_ns > 0.0;
    let timed: Vec<&timing::Class> = programs.iter().filter_map(|p| p.classes.first()).filter(takes_time).collect();
    if timed.is_empty() {
        return None;
    }
    let of = |i: usize| {
        let mean = timed.iter().map(|class| ratio(class, i).ln()).sum::<f64>() / timed.len() as f64;
        let calls: Vec<Call> = timed.iter().map(|class| class.objects[i].call).collect();
        Measured { ratio: mean.exp(), call: together(&calls) }
    };
    Some((1..all.len()).map(of).collect())
}

/// Inputs of each program for which there is time, from all over them.
fn few(inputs: BTreeMap<String, Vec<Input>>) -> BTreeMap<String, Vec<Input>> {
    const FEW: usize = 6;
    let of = |all: Vec<Input>| {
        let step = all.len().div_ceil(FEW).max(1);
        all.into_iter().step_by(step).collect()
    };
    inputs.into_iter().map(|(name, all)| (name, of(all))).collect()
}

/// The time of an object relative to the first one's.
fn ratio(class: &timing::Class, object: usize) -> f64 {
    // The kernel's clock may find less than nothing.
    let whole = |i: usize| (class.objects[i].ns.middle + class.empty_ns).max(0.1);
    whole(object) / whole(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_changes_the_order_of_estimates_only_beyond_chance() {
        let of = |ratio, call| Some(Measured { ratio, call });
        let mut forms = [
            ("noise, first by its estimate", of(1.02, Call::Noise)),
            ("slower", of(1.2, Call::Slower)),
            ("not measured", None),
            ("noise", of(0.97, Call::Noise)),
            ("faster", of(0.9, Call::Faster)),
            ("fastest", of(0.8, Call::Faster)),
        ];
        forms.sort_by(|a, b| rank(a.1).partial_cmp(&rank(b.1)).expect("numbers"));
        let names = forms.map(|f| f.0);
        let wanted = ["fastest", "faster", "noise, first by its estimate", "not measured", "noise", "slower"];
        assert_eq!(names, wanted);
    }

    #[test]
    fn a_form_with_a_program_that_is_slower_is_not_taken_for_what_others_gain() {
        assert_eq!(together(&[Call::Faster, Call::Slower, Call::Faster]), Call::Slower);
        assert_eq!(together(&[Call::Noise, Call::Faster]), Call::Faster);
        assert_eq!(together(&[Call::Noise, Call::Noise]), Call::Noise);
        let of = |call| Some(Measured { ratio: 0.9, call });
        assert!(original_stays([of(Call::Slower), of(Call::Slower)].into_iter()));
        assert!(!original_stays([of(Call::Slower), of(Call::Noise)].into_iter()), "it costs no time and is smaller");
        assert!(!original_stays([of(Call::Slower), None].into_iter()), "nothing is known of it");
    }
}
