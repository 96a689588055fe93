//! A place at which nothing was found is passed over next time only if what was said of it follows from what is compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bpf_facts::Env;
use bpf_isa::parse_listing;
use bpf_passes::{Engine, Pass, Proposal, Quiet, Recorder, Settings, View};
use bpf_program::{Function, Op, ProgKind};
use bpf_prove::{Derivation, Rewrite, Session};
use bpf_testgen::listing;
use rustc_hash::FxHashSet;

fn ops(text: &str) -> Vec<Op> {
    parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

/// Proposes the second in the place of the first, where that is a whole block, if the function may be changed.
struct Swap<F>(Vec<(&'static str, &'static str)>, F);

impl<F: Fn(&View) -> bool> Pass for Swap<F> {
    fn name(&self) -> &'static str {
        "a test"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let is_it = |text: &str| v.ops.iter().map(|o| o.insn).eq(ops(text).iter().map(|o| o.insn));
        let swap = |(_, with): &(&str, &str)| v.replace(0, v.ops.len(), ops(with), "a test");
        // Dead values would be a second chance.
        let all = self.0.iter().filter(|_| !v.fresh && self.1(v));
        all.filter(|(old, _)| is_it(old)).map(swap).collect()
    }
}

/// What one pass makes of a function, knowing that, and what it knows then.
fn run(pass: impl Pass + 'static, f: &Function, settings: Settings, quiet: Quiet) -> (Function, Quiet) {
    // No pass of the usual ones, and no change of shape.
    let settings = Settings { only: Some(vec![]), ..settings };
    let (env, banned) = (Env::empty(), FxHashSet::default());
    let mut session = Session::new(Derivation::new(f.clone()), &env);
    let mut engine = Engine::with_passes(vec![Box::new(pass)], &settings, &banned).knowing(quiet);
    engine.run(&mut session);
    let quiet = engine.into_quiet();
    (session.finish().current().clone(), quiet)
}

/// Settings that count what goes to the prover.
fn counting(asked: &Arc<AtomicUsize>, stop: Option<Arc<AtomicBool>>) -> Settings {
    let (asked, stopping) = (asked.clone(), stop.clone());
    let count = move |_: &Proposal| {
        asked.fetch_add(1, Ordering::Relaxed);
        stopping.iter().for_each(|s| s.store(true, Ordering::Relaxed));
    };
    Settings { stop, recorder: Some(Recorder::new(count)), ..Settings::default() }
}

/// Twice the same answer is the rule.
#[test]
fn what_was_refused_is_not_asked_again() {
    let wrong = || Swap(vec![("r0 = 1\nr0 += 1", "r0 = 3")], |_: &View| true);
    let f = listing::function(ProgKind::Xdp, "r0 = 1\nr0 += 1\nexit");
    let asked = Arc::new(AtomicUsize::new(0));
    let (_, quiet) = run(wrong(), &f, counting(&asked, None), Quiet::default());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    run(wrong(), &f, counting(&asked, None), quiet);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn what_time_has_cut_short_is_asked_again() {
    let wrong = || Swap(vec![("r0 = 1\nr0 += 1", "r0 = 3")], |_: &View| true);
    let f = listing::function(ProgKind::Xdp, "r0 = 1\nr0 += 1\nexit");
    let asked = Arc::new(AtomicUsize::new(0));
    let stop = Some(Arc::new(AtomicBool::new(false)));
    let (_, quiet) = run(wrong(), &f, counting(&asked, stop), Quiet::default());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    run(wrong(), &f, counting(&asked, None), quiet);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn what_hangs_on_the_function_around_is_asked_again() {
    let pass = || Swap(vec![("r0 = 1\nr0 += 1", "r0 = 2")], |v: &View| v.function().name == "another");
    let f = listing::function(ProgKind::Xdp, "r0 = 1\nr0 += 1\nexit");
    let (same, quiet) = run(pass(), &f, Settings::default(), Quiet::default());
    assert_eq!(same, f);
    let another = Function { name: "another".into(), ..f };
    let (shorter, _) = run(pass(), &another, Settings::default(), quiet);
    assert_eq!(shorter.blocks[0].ops, ops("r0 = 2"));
}

/// The second block is asked about before it is known that r2 is 5, and an engine asks nothing twice.
#[test]
fn what_was_refused_with_less_known_is_asked_again() {
    const TEXT: &str = "r3 = *(u32 *)(r1 + 12)\ngoto +3\nr0 = r2\nr0 += 1\nexit\n\
                        r2 = r3\nr2 *= 2\nr2 -= r3\nr2 -= r3\nr2 += 5\ngoto -9";
    let pass = || {
        let late = ("r0 = r2\nr0 += 1", "r0 = 6");
        Swap(vec![late, ("r2 = r3\nr2 *= 2\nr2 -= r3\nr2 -= r3\nr2 += 5", "r2 = 5")], |_: &View| true)
    };
    let f = listing::function(ProgKind::Xdp, TEXT);
    let short = |f: &Function| f.blocks.iter().filter(|b| b.ops == ops("r0 = 6")).count();
    let (half, quiet) = run(pass(), &f, Settings::default(), Quiet::default());
    assert_eq!((half != f, short(&half)), (true, 0));
    let (whole, _) = run(pass(), &half, Settings::default(), quiet);
    assert_eq!(short(&whole), 1);
}
