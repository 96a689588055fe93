//! What the lane `threads` can find, and that it finds nothing where there is nothing.

use std::time::Duration;

use bpf_kernel::testing::{available, permitted};
use bpf_soak::threads::change::Change;
use bpf_soak::threads::explore::Subject;
use bpf_soak::threads::program::{Home, Source};
use bpf_soak::threads::race::{Look, Runner, Track};
use bpf_soak::threads::script::{Script, Value};
use bpf_soak::threads::{Optimizer, Questions, ThreadsLane};
use bpf_soak::{Lane, Tally};
use bpf_testgen::random::{Rng, mix};

/// Every order of steps, and nothing else.
const ORDERS: Questions = Questions { orders: true, races: 0, changes: 0 };
/// The kernel, of every program, and nothing else.
const RACES: Questions = Questions { orders: false, races: 1, changes: 0 };

/// An optimizer that makes this change wherever it can, and asks nobody.
fn wrong(change: Change) -> Optimizer {
    Box::new(move |source, _| {
        let mut r = Rng::new(mix(source.lines.len() as u64));
        let changed = change.apply(source, &mut r).unwrap_or_else(|| source.clone());
        changed.object().map_err(|e| e.to_string())
    })
}

/// Has the lane look until it finds something, in so many units at most; gives what it found.
fn found(change: Change, questions: Questions, units: u64) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lane = available(ThreadsLane::of(wrong(change), questions, folder.path()))?;
    let mut tally = Tally::default();
    for index in 0..units {
        lane.unit(1, index, &mut tally);
        if let Some(d) = tally.disagreements.first() {
            println!("{change:?} in unit {index}: {}", d.what);
            assert!(folder.path().join(format!("threads-1-{index}/README")).exists(), "it is kept");
            return Some(d.what.clone());
        }
    }
    panic!("{change:?} is not found: {:?}", tally.counts);
}

#[test]
fn what_was_read_once_and_is_read_twice_is_found() {
    found(Change::ReadAgain, ORDERS, 30);
}

#[test]
fn the_recheck_of_a_seqlock_that_goes_is_found() {
    found(Change::DropCheck, ORDERS, 30);
}

#[test]
fn a_store_that_is_split_or_half_carried_out_is_found() {
    found(Change::SplitStore, ORDERS, 30);
    found(Change::HalfStore, ORDERS, 30);
}

#[test]
fn accesses_that_change_places_are_found() {
    found(Change::Swap, ORDERS, 30);
}

#[test]
fn a_read_that_is_made_before_its_loop_is_found() {
    found(Change::Hoist, ORDERS, 60);
}

#[test]
fn a_second_read_that_is_taken_for_the_first_is_found() {
    found(Change::Reuse, ORDERS, 30);
}

#[test]
fn an_atomic_that_is_made_of_two_accesses_is_found() {
    found(Change::Unlock, ORDERS, 120);
}

#[test]
fn the_kernel_shows_what_a_wrong_optimizer_does() {
    for change in [Change::ReadAgain, Change::DropCheck] {
        found(change, RACES, 100);
    }
}

/// A program that reads what is written second before what is written first, and the same the other way around: only the
/// second ever finds that the first word is behind.
#[test]
fn the_kernel_shows_two_reads_that_changed_places() {
    let (true, Some(track)) = (permitted(), available(Track::new())) else { return };
    let script = Script::of(vec![(0, Value::Count), (1, Value::Count)]);
    let program = |first: &str, second: &str| {
        let code = format!(
            "r6 = shared ll\n{first}\n{second}\nr9 = 0\nif r7 >= r8 goto out\nr9 = 1\nout:\n*(u32 *)(r10 - 4) = r9\n\
             r2 = r10\nr2 += -4\nr1 = results ll\ncall bpf_map_lookup_elem\nif r0 == 0 goto nothing\nr1 = 1\n\
             lock *(u64 *)(r0 + 0) += r1\nnothing:\nr0 = 0\nexit"
        );
        Source { home: Home::Bss, lines: code.lines().map(str::to_owned).collect() }
    };
    let (older, newer) = ("r7 = *(u64 *)(r6 + 0)", "r8 = *(u64 *)(r6 + 8)");
    let shown = |source: Source| {
        let runner = Runner::load(source.home, &source.object().expect("it is right")).expect("the kernel takes it");
        let race = |n| track.race(&runner, &script, n, Duration::from_millis(10)).expect("it runs");
        (0..20).map(|n| race(n).results.get(&1).copied().unwrap_or(0)).sum::<u64>()
    };
    assert_eq!(shown(program(newer, older)), 0);
    assert!(shown(program(older, newer)) > 0);
}

/// What two stores may show to who looks at both words: the second may still be what the run before has left, the first not.
#[test]
fn what_a_run_may_show_is_a_matter_of_time() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let script = Script::of(vec![(0, Value::Count)]);
    let code = "r6 = shared ll\n*(u32 *)(r6 + 32) = 2147483647\n*(u16 *)(r6 + 34) = 0\n*(u16 *)(r6 + 40) = 0\n\
                *(u16 *)(r6 + 42) = 1\nr0 = 0\nexit";
    let source = Source { home: Home::Bss, lines: code.lines().map(str::to_owned).collect() };
    let subject = Subject::of(&source.object().expect("it is right")).expect("a graph");
    let choices = subject.choices(&script).expect("few accesses");
    let never = |looks: &[Look]| subject.never_shows(&script, &choices, looks).expect("it can be explored");
    // The first word is 0x7fffffff for a moment, while the other holds 0x10000; then it is 0xffff.
    let shown = [Look::new(4, 5, Greater), Look::new(4, 5, Less), Look::new(5, 4, Greater), Look::new(5, 4, Less)];
    assert_eq!(never(&shown), []);
    let hidden = [Look::new(5, 6, Less), Look::new(6, 6, Greater), Look::new(4, 6, Less)];
    assert_eq!(never(&[&shown[..], &hidden[..]].concat()), hidden);
    assert_eq!(never(&[Look::new(6, 7, Equal)]), []);
}

/// A lane of which nothing may be found.
fn quiet(lane: &mut dyn Lane, units: u64) -> Tally {
    let mut tally = Tally::default();
    (0..units).for_each(|index| lane.unit(2, index, &mut tally));
    let what: Vec<&str> = tally.disagreements.iter().map(|d| d.what.as_str()).collect();
    assert!(what.is_empty(), "{}", what.join("\n"));
    println!("{:?}", tally.counts);
    tally
}

#[test]
fn optimized_programs_show_nothing_new() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut lane) = available(ThreadsLane::new(folder.path())) else { return };
    let tally = quiet(&mut lane, 4);
    let count = |what: &str| tally.counts.get(what).copied().unwrap_or(0);
    assert!(count("programs") >= 10 && count("wrong changes") >= 20 && count("raced runs") > 0, "{tally:?}");
    assert!(count("programs that are not interpreted") <= 2, "{tally:?}");
}

/// A load, an addition and a store may become an atomic addition (`docs/trust.md`, 2.6).
#[test]
fn a_change_that_is_allowed_shows_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let questions = Questions { orders: true, races: 8, changes: 0 };
    let Some(mut lane) = available(ThreadsLane::of(wrong(Change::Lock), questions, folder.path())) else { return };
    let tally = quiet(&mut lane, 10);
    assert!(tally.counts["programs"] > tally.counts["programs that stay as they are"], "{tally:?}");
}

#[test]
fn a_program_shows_nothing_that_it_does_not_show_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    // A line that does nothing, so that the objects are not the same bytes.
    let optimizer: Optimizer = Box::new(|source, _| {
        let mut lines = source.lines.clone();
        let end = lines.iter().rposition(|l| l == "exit").expect("each program ends");
        lines.insert(end, "r0 += 0".into());
        source.with(lines).object().map_err(|e| e.to_string())
    });
    let questions = Questions { orders: true, races: 1, changes: 0 };
    let Some(mut lane) = available(ThreadsLane::of(optimizer, questions, folder.path())) else { return };
    quiet(&mut lane, 5);
}
