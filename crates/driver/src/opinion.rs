//! What is written is proven as a whole function, however it came about.
//!
//! Every step from the original to the result has a proof of its own (see [`bpf_prove::session`]). The whole is asked
//! about once more, by a proof that relies on none of the facts the steps relied on. *Equal* is what is hoped for.
//! *Unknown* is the answer where time or the method does not suffice; then the steps stand alone, and the report says
//! so. *Different*, shown by a run of both, means that this program is wrong: the function stays as it was, and the
//! user is told loudly, with what is needed to report it.

use std::time::{Duration, Instant};

use bpf_facts::Env;
use bpf_program::{Function, lower};
use bpf_prove::{Options as ProofOptions, Verdict};

use crate::report::FunctionVerdict;

/// Until when the whole-function proofs of an object may run.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    /// `None`: no limit.
    end: Option<Instant>,
    /// For one function.
    each: Duration,
}

impl Budget {
    /// One that ends then, for proofs from now on: each may take half of it, and no more than `most`, so that a hard one
    /// does not take all.
    pub(crate) fn until(end: Option<Instant>, most: Duration) -> Budget {
        let left = end.map_or(most, |end| end.saturating_duration_since(Instant::now()));
        Budget { end, each: (left / 2).min(most) }
    }

    /// When a proof that begins now has to stop; `None` if it is not to begin, because it would not come to its end
    /// after a preparation that takes so long.
    pub(crate) fn deadline(&self, preparation: Duration) -> Option<Instant> {
        let now = Instant::now();
        let deadline = now + self.each;
        let deadline = self.end.map_or(deadline, |end| deadline.min(end));
        (now + preparation < deadline).then_some(deadline)
    }
}

/// The verdict on a whole function.
pub(crate) enum Opinion {
    /// Proven equal.
    Equal,
    /// Not decided, with the reason.
    Unknown(String),
    /// Seen to differ, on this input.
    Different(Vec<String>),
}

/// Compares a function with what was made of it.
pub(crate) fn opinion(original: &Function, result: &Function, env: &Env, options: &ProofOptions) -> Opinion {
    match bpf_prove::functions(original, result, env, options).0 {
        Verdict::Equal => Opinion::Equal,
        Verdict::Unknown(why) => Opinion::Unknown(why),
        Verdict::Different(d) => match crate::replay::explain(d, original, result, env) {
            FunctionVerdict::Different { explanation } => Opinion::Different(explanation),
            FunctionVerdict::Unknown { reason } => Opinion::Unknown(reason),
            FunctionVerdict::Equal => {
                Opinion::Unknown("the formula has a difference, and a run of both has none".into())
            }
        },
    }
}

/// The instructions of a graph, a line each: as slots, if it can be lowered, else as blocks.
pub(crate) fn listing_of(f: &Function) -> Vec<String> {
    match lower(f) {
        Ok(l) => l.listing.iter().map(|(s, i)| format!("{s:4}: {i}")).collect(),
        Err(_) => f.to_string().lines().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use bpf_object::Object;
    use bpf_passes::Settings;
    use bpf_prove::Derivation;

    use super::*;
    use crate::candidate::Candidate;
    use crate::module::Module;
    use crate::optimize::judge;
    use crate::options::Options;

    const LONG: Duration = Duration::from_secs(10);
    const GLOBALS: &[u8] = include_bytes!("../../../examples/globals.o");

    fn module() -> Module {
        Module::new(Object::parse(GLOBALS.to_vec()).expect("a committed object"))
    }

    /// What a wrong prover would have led to: each function with one operation left out. The
    /// steps are missing, as a derivation cannot hold a wrong one.
    fn wrong(module: &Module) -> Vec<(usize, Function)> {
        let mut out = vec![];
        for (id, f) in module.graphs.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref().ok()?))) {
            for &b in &f.layout {
                for i in 0..f.block(b).ops.len() {
                    let mut g = f.clone();
                    g.block_mut(b).ops.remove(i);
                    out.push((id, g));
                }
            }
        }
        out
    }

    fn candidate(module: &Module, id: usize, result: Function, settings: &Settings) -> Candidate {
        let mut c = Candidate::new(module, id);
        c.derivation = Some(Derivation::new(result));
        c.lower(module, settings);
        assert!(c.body.is_some(), "one operation less is a gain");
        c
    }

    fn budget(options: &Options) -> Budget {
        Budget::until(Instant::now().checked_add(options.time_limit), options.whole)
    }

    #[test]
    fn what_is_wrong_as_a_whole_is_not_written_and_reported() {
        let (module, settings) = (module(), Settings::default());
        let mut seen = [0; 3];
        for (id, result) in wrong(&module) {
            let mut c = candidate(&module, id, result, &settings);
            c.second_opinion(&module, &settings, &budget(&Options::default()), 7);
            let Some(refuted) = &c.report.refuted else {
                seen[usize::from(c.report.whole != "equal")] += 1;
                assert!(c.report.whole == "equal" || c.report.whole.starts_with("unknown: "), "{}", c.report.whole);
                // Or it lacks what counts by being there, and is not written either.
                assert!(c.body.is_some() || c.report.untouched.is_some());
                continue;
            };
            seen[2] += 1;
            assert!(c.body.is_none() && c.report.slots_after == c.report.slots_before);
            assert_eq!(c.report.whole, "equal", "what is written is the original");
            assert!(c.report.untouched.is_some());
            assert!(!refuted.explanation.is_empty() && refuted.seed == 7);
            assert_ne!(refuted.listing_original, refuted.listing_refused);
            assert_eq!(c.report.listing_after, c.report.listing_before);
            let text = refuted.text(&c.report.name);
            assert!(text.contains("please report") && text.contains("seed 7") && text.contains("first difference"));
        }
        assert!(seen[2] >= 5, "equal, unknown, refuted: {seen:?}");
    }

    #[test]
    fn the_object_then_holds_the_original_again() {
        let (module, settings) = (module(), Settings::default());
        let options = Options::default();
        let write = bpf_object::WriteOptions { keep_debug: false };
        let original = module.object.clone().write(&write).expect("it is written").bytes;
        let mut refused = 0;
        for (id, result) in wrong(&module) {
            let mut all: Vec<Candidate> = (0..module.graphs.len()).map(|i| Candidate::new(&module, i)).collect();
            all[id] = candidate(&module, id, result, &settings);
            if !judge(&mut all, &module, &settings, &options, &budget(&options)) {
                continue;
            }
            refused += 1;
            assert!(!judge(&mut all, &module, &settings, &options, &budget(&options)), "asked once");
            let mut object = module.object.clone();
            all.iter().for_each(|c| c.place(&mut object).expect("it fits"));
            assert!(object.write(&write).expect("it is written").bytes == original);
        }
        assert!(refused >= 5, "{refused}");
    }

    #[test]
    fn without_time_the_steps_stand_alone_and_the_report_says_so() {
        let (module, settings) = (module(), Settings::default());
        let mut c = Candidate::new(&module, 0);
        c.run_passes(&module, &settings);
        assert!(c.body.is_some(), "the example no longer gains");
        let none = Budget::until(Some(Instant::now()), LONG);
        c.second_opinion(&module, &settings, &none, 1);
        let whole = &c.report.whole;
        assert!(
            whole == "equal" || (whole.starts_with("unknown: ") && whole.ends_with("; every step proven")),
            "{whole}"
        );
        assert!(c.body.is_some() && c.report.refuted.is_none());
    }

    #[test]
    fn no_proof_begins_that_cannot_end_in_time() {
        let budget = Budget::until(Instant::now().checked_add(Duration::from_secs(4)), LONG);
        let most = Instant::now() + Duration::from_secs(3);
        assert!(budget.deadline(Duration::ZERO).is_some_and(|d| d <= most), "half for one function");
        assert_eq!(budget.deadline(Duration::from_secs(3)), None);
        assert_eq!(Budget::until(Some(Instant::now()), LONG).deadline(Duration::ZERO), None);
        let hasty = Budget::until(Instant::now().checked_add(Duration::from_secs(4)), Duration::from_millis(100));
        assert_eq!(hasty.deadline(Duration::from_millis(200)), None);
        assert!(Budget::until(None, LONG).deadline(Duration::from_secs(1)).is_some());
    }
}
