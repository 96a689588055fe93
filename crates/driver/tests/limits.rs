//! The kernel is part of the time limit: its verifier may look at one program for as long as at a million instructions.
//!
//! A binary of its own: it measures times, so no proofs of other tests may run beside it.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bpf_driver::{Observer, Options, Silent, optimize};
use bpf_kernel::testing::permitted;
use bpf_object::{FuncId, Object};

/// An example whose program begins with a loop that the verifier follows for about a second, and then refuses.
fn with_a_long_loop() -> Vec<u8> {
    let mut bytes = include_bytes!("../../../examples/xdp_count.o").to_vec();
    let object = Object::parse(bytes.clone()).expect("a committed object");
    let code = object.code(FuncId(0)).to_vec();
    let at = bytes.windows(code.len()).position(|window| window == code).expect("the code is there");
    let [l0, l1, l2, l3] = 400_000i32.to_le_bytes();
    let start = [
        [0xb7, 0, 0, 0, 0, 0, 0, 0],           // r0 = 0
        [0x07, 0, 0, 0, 1, 0, 0, 0],           // r0 += 1
        [0xa5, 0, 0xfe, 0xff, l0, l1, l2, l3], // if r0 < 400000 goto -2
    ];
    bytes[at..at + 24].copy_from_slice(start.as_flattened());
    bytes
}

#[test]
fn an_original_that_takes_too_long_to_verify_is_kept_and_the_limit_too() {
    if !permitted() {
        return;
    }
    let bytes = with_a_long_loop();
    let limit = Duration::from_millis(250);
    let started = Instant::now();
    let (written, report) =
        optimize(&bytes, &Options { time_limit: limit, ..Options::default() }, &Silent).expect("it is an object");
    let took = started.elapsed();
    assert!(took < limit + Duration::from_millis(500), "{took:?}");
    assert!(report.gate.contains("not judged: time"), "{}", report.gate);
    assert_eq!(written, bytes);
    assert_eq!(report.functions[0].untouched.as_deref(), Some("not judged: time"));
    let before = report.functions[0].kernel_before.as_ref().expect("it is a program");
    assert_eq!((before.accepted, before.reason.as_deref()), (false, Some("not judged: time")));
}

/// Remembers what it is told, and stops the run after so many functions.
struct Watching {
    saved: Mutex<Vec<usize>>,
    functions: AtomicUsize,
    patience: usize,
}

impl Observer for Watching {
    fn stop(&self) -> bool {
        self.functions.load(SeqCst) > self.patience
    }
    fn function(&self, _index: usize, _count: usize, _name: &str, _slots: usize) {
        self.functions.fetch_add(1, SeqCst);
    }
    fn saved(&self, slots: usize) {
        self.saved.lock().expect("not poisoned").push(slots);
    }
}

fn watching(patience: usize) -> (Watching, bpf_driver::Report) {
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hooks.o");
    let options = Options { search: false, kernel: false, jobs: 1, ..Options::default() };
    let watching = Watching { saved: Default::default(), functions: Default::default(), patience };
    let (_, report) = optimize(&std::fs::read(object).expect("readable"), &options, &watching).expect("an object");
    (watching, report)
}

#[test]
fn what_is_said_to_be_saved_is_the_sum_of_all_functions() {
    let (watching, report) = watching(usize::MAX);
    let saved = watching.saved.into_inner().expect("not poisoned");
    let (before, after) = report.slots();
    assert!(saved.is_sorted() && saved.len() > 1, "{saved:?}");
    assert_eq!(saved.last(), Some(&(before - after)));
}

#[test]
fn functions_that_an_interruption_keeps_from_their_turn_have_a_word() {
    let (_, report) = watching(1);
    let words: Vec<_> = report.functions.iter().filter(|f| f.slots_after == f.slots_before).collect();
    assert!(words.len() > 1 && words.iter().skip(1).all(|f| f.untouched.is_some()), "{words:#?}");
}
