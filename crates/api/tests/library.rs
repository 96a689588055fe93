//! The library as others use it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf_opt::{
    Declared, Error, Given, Hook, Observer, Options, Verdict, check, filter, optimize, optimize_with, specialize,
    verify,
};

fn example(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name))
        .expect("the examples are there")
}

fn quick() -> Options {
    Options { kernel: false, run_check: false, ..Options::default() }.at_level(1)
}

#[test]
fn an_object_is_optimized_and_proven_equal() {
    let object = example("xdp_count.o");
    let done = optimize(&object, &quick()).expect("it is an object");
    assert!(done.slots().1 < done.slots().0, "{:?}", done.slots());
    assert!(done.report_json().contains("\"slots_after\""));
    assert!(verify(&object, &done.object, &quick()).expect("both are objects").is_equal());
    let other = verify(&object, &example("subprogs.o"), &quick()).expect("both are objects");
    assert!(!other.is_equal());
}

#[test]
fn an_observer_sees_functions_and_may_stop() {
    struct Seen(AtomicUsize);
    impl Observer for Seen {
        fn function(&self, _index: usize, _count: usize, _name: &str, _slots: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn stop(&self) -> bool {
            self.0.load(Ordering::Relaxed) > 0
        }
    }
    let seen = Seen(AtomicUsize::new(0));
    let done = optimize_with(&example("subprogs.o"), &quick(), &seen).expect("it is an object");
    assert!(seen.0.load(Ordering::Relaxed) > 0 && done.slots().0 > 0);
}

#[test]
fn programs_are_judged_filters_compiled_and_constants_declared() {
    let object = filter("tcp port 80", Hook::Xdp).expect("a filter");
    let judged = check(&object, None).expect("an object");
    assert!(judged.iter().all(|c| c.verdict == Verdict::Safe) && !judged.is_empty(), "{judged:?}");
    let mistake = filter("tcp prot 80", Hook::Xdp);
    assert!(matches!(&mistake, Err(Error::Filter(text)) if text.contains('^')), "{mistake:?}");
    let mut declared = Declared::default();
    declared.variables.insert("strict".into(), Given::Number(1));
    assert_eq!(specialize(&example("allow_list.o"), &declared).expect("declared").constants, 1);
    declared.variables.insert("nobody".into(), Given::AsIs);
    assert!(matches!(specialize(&example("allow_list.o"), &declared), Err(Error::Specialize(_))));
}

#[test]
fn what_is_no_object_is_an_error() {
    assert!(optimize(b"no object", &quick()).is_err());
    assert!(verify(b"no object", b"nor this", &quick()).is_err());
    assert!(check(b"", None).is_err());
    assert!(matches!(check(&example("hooks.o"), Some("nothing")), Err(Error::ProgramType(_))));
}
