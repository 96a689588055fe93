//! What runs in the kernel come to: a true difference is told, whatever else differs from run to run beside it, and equal
//! programs are never called different. And what is run to be timed may be run at all, and in time.

use std::path::Path;
use std::time::{Duration, Instant};

use bpf_driver::difftest::{Pair, Random, Round, Setup};
use bpf_driver::{Options, Silent, variants};
use bpf_kernel::testing::{available, permitted};
use bpf_testgen::case::Case;

/// Whether programs may be loaded and run in a network of their own; says so if not.
fn kernel() -> bool {
    permitted() && available(bpf_kernel::in_private_network(|| ())).is_some()
}

/// Two objects: `text` begins with the surroundings, and `A` becomes `first` in the one and `second` in the other.
fn objects(surroundings: &str, text: &str, [first, second]: [&str; 2]) -> [Vec<u8>; 2] {
    let text = format!(
        "; Two.\n{surroundings}; expect: equal\nbefore:\n{}after:\n{}",
        text.replace("$A", first),
        text.replace("$A", second)
    );
    let case = Case::parse(&text).expect("a case");
    [case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair")]
}

/// Rounds of so many inputs each on the first program.
fn rounds([a, b]: &[Vec<u8>; 2], setup: Setup, count: usize, rounds: u64) -> Vec<Round> {
    bpf_kernel::in_private_network(|| {
        let mut pair = Pair::load(a, b, setup).expect("both load");
        let name = pair.programs().next().expect("there is one").to_owned();
        (0..rounds).map(|n| pair.round(&name, &mut Random::of(1, n), count, None)).collect()
    })
    .expect("a network namespace")
}

fn differs(objects: &[Vec<u8>; 2]) -> bool {
    rounds(objects, Setup::default(), 50, 1)[0].difference.is_some()
}

const LOOKUP: &str = "
    *(u32 *)(r10 - 4) = 0
    r1 = m ll
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r6 = r0
";

#[test]
fn a_time_stamp_beside_a_wrong_number_does_not_hide_it() {
    if !kernel() {
        return;
    }
    let text = format!(
        "{LOOKUP}    call bpf_ktime_get_ns\n    *(u64 *)(r6 + 0) = r0\n    *(u64 *)(r6 + 8) = $A\nout:\n    r0 = 0\n    exit\n"
    );
    let around = "; section: xdp\n; map: m array 4 16 1\n";
    assert!(differs(&objects(around, &text, ["1", "2"])));
    assert!(!differs(&objects(around, &text, ["1", "1"])));
}

#[test]
fn padding_beside_a_wrong_number_does_not_hide_it() {
    if !kernel() {
        return;
    }
    let text = "
    *(u32 *)(r10 - 24) = 0
    *(u64 *)(r10 - 16) = $A
    r1 = m ll
    r2 = r10
    r2 += -24
    r3 = r10
    r3 += -16
    r4 = 0
    call bpf_map_update_elem
    r0 = 0
    exit
";
    let around = "; section: xdp\n; map: m hash 4 16 8\n";
    assert!(differs(&objects(around, text, ["1", "2"])));
    assert!(!differs(&objects(around, text, ["1", "1"])));
}

#[test]
fn a_time_stamp_in_every_packet_does_not_hide_what_comes_later() {
    if !kernel() {
        return;
    }
    // Every packet gets a time stamp; another result for IPv6 alone.
    let text = "
    r6 = *(u32 *)(r1 + 0)
    r7 = *(u32 *)(r1 + 4)
    r2 = r6
    r2 += 14
    if r2 > r7 goto out
    r8 = *(u16 *)(r6 + 12)
    call bpf_ktime_get_ns
    *(u64 *)(r6 + 0) = r0
    r0 = $A
    if r8 == 0xdd86 goto end
out:
    r0 = 2
end:
    exit
";
    assert!(differs(&objects("; section: xdp\n", text, ["2", "1"])));
    let equal = rounds(&objects("; section: xdp\n", text, ["2", "2"]), Setup::default(), 50, 1);
    assert_eq!((&equal[0].difference, equal[0].runs), (&None, 50), "{equal:?}");
}

/// One clock in 64 ends in such bits: the two rarely differ, and not when they are run again.
#[test]
fn what_differs_by_chance_is_no_difference_and_is_told() {
    if !kernel() {
        return;
    }
    let text = "    call bpf_ktime_get_ns\n    r1 = r0\n    r0 = $A\n    r1 &= 63\n    if r1 == 9 goto end\n    r0 = 0\nend:\n    exit\n";
    let all = rounds(&objects("; section: xdp\n", text, ["1", "3"]), Setup::default(), 50, 40);
    // That they do last is as rare as that chance comes three times.
    let (once, runs) = all.iter().fold((0, 0), |(once, runs), r| (once + r.once + r.unsteady, runs + r.runs));
    assert!(once > 0 && runs > 1000, "{once} of {runs}");
}

#[test]
fn who_asks_for_the_clock_is_not_excused_for_what_the_clock_does_not_change() {
    if !kernel() {
        return;
    }
    let late = || Setup { patience: Some(Instant::now()), ..Setup::default() };
    let text = "    call bpf_ktime_get_ns\n    r0 = $A\n    exit\n";
    let round = &rounds(&objects("; section: xdp\n", text, ["1", "2"]), late(), 50, 1)[0];
    assert!(round.open.is_some(), "{round:?}");
    // What it does change is no difference, however late it is.
    let text = "    r6 = $A\n    call bpf_ktime_get_ns\n    exit\n";
    let round = &rounds(&objects("; section: xdp\n", text, ["1", "2"]), late(), 50, 1)[0];
    assert!(round.open.is_none() && round.difference.is_none(), "{round:?}");
}

/// A program that counts its runs in a map that is too large to be filled and compared.
fn counting(otherwise: &str) -> String {
    format!(
        "
    *(u32 *)(r10 - 4) = 0
    r1 = large ll
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r7 = *(u64 *)(r0 + 0)
    r7 += 1
    *(u64 *)(r0 + 0) = r7
    r1 = m ll
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    if {otherwise} goto out
    *(u64 *)(r0 + 0) = $A
out:
    r0 = 0
    exit
"
    )
}

#[test]
fn what_is_left_in_maps_that_are_not_filled_hides_nothing() {
    if !kernel() {
        return;
    }
    let around = "; section: xdp\n; map: large array 4 8 5000\n; map: m array 4 8 1\n";
    assert!(differs(&objects(around, &counting("r7 < 10"), ["1", "2"])));
    assert!(differs(&objects(around, &counting("r7 != 10"), ["1", "2"])));
    // Each round begins from the same state, so that what one shows can be shown again.
    let later = rounds(&objects(around, &counting("r7 < 60"), ["1", "2"]), Setup::default(), 50, 4);
    assert!(later.iter().all(|r| r.unsteady == 0), "{later:?}");
}

#[test]
fn the_order_of_a_hash_is_no_difference() {
    if !kernel() {
        return;
    }
    let text = "
    r6 = $A
    *(u32 *)(r10 - 4) = 1
    *(u64 *)(r10 - 16) = 0
    r1 = m ll
    r2 = r10
    r2 += -4
    r3 = r10
    r3 += -16
    r4 = 0
    call bpf_map_update_elem
    *(u32 *)(r10 - 4) = 2
    r1 = m ll
    r2 = r10
    r2 += -4
    r3 = r10
    r3 += -16
    r4 = 0
    call bpf_map_update_elem
    r1 = m ll
    r2 = cb ll
    r3 = r10
    r3 += -16
    r4 = 0
    call bpf_for_each_map_elem
    r0 = *(u64 *)(r10 - 16)
    exit
static cb(ptr, ptr, ptr, ptr) u64:
    r1 = *(u32 *)(r2 + 0)
    *(u64 *)(r4 + 0) = r1
    r0 = 1
    exit
";
    let pair = objects("; section: xdp\n; map: m hash 4 8 2\n", text, ["1", "2"]);
    let wrong = (0..200).filter(|_| rounds(&pair, Setup::default(), 1, 1)[0].difference.is_some()).count();
    assert_eq!(wrong, 0);
}

#[test]
fn global_data_of_another_layout_is_no_difference() {
    if !kernel() {
        return;
    }
    let text =
        "    r1 = a ll\n    r2 = *(u64 *)(r1 + 0)\n    r2 += 1\n    *(u64 *)(r1 + 0) = r2\n    r0 = r2\n    exit\n";
    let of = |data: &str| {
        let text = format!("; One.\n; section: xdp\n{data}; expect: equal\nbefore:\n{text}after:\n{text}");
        Case::parse(&text).expect("a case").old_object().expect("it assembles")
    };
    let (a, b) = ("; data: a .bss 8\n", "; data: b .bss 8\n");
    let pair = [of(&format!("{a}{b}")), of(&format!("{b}{a}"))];
    let all = rounds(&pair, Setup::default(), 50, 4);
    assert!(all.iter().all(|r| r.difference.is_none() && r.runs == 50), "{all:?}");
    // What the layout has nothing to do with is still seen.
    let wrong = text.replace("r0 = r2", "r0 = 7");
    let wrong = format!("; One.\n; section: xdp\n{b}{a}; expect: equal\nbefore:\n{wrong}after:\n{wrong}");
    let wrong = Case::parse(&wrong).expect("a case").old_object().expect("it assembles");
    assert!(differs(&[pair[0].clone(), wrong]));
}

#[test]
fn what_is_pushed_and_sent_is_compared() {
    if !kernel() {
        return;
    }
    let push = "
    *(u64 *)(r10 - 8) = $A
    r1 = m ll
    r2 = r10
    r2 += -8
    r3 = 2
    call bpf_map_push_elem
    r0 = 0
    exit
";
    let send = "
    *(u64 *)(r10 - 8) = $A
    r1 = m ll
    r2 = r10
    r2 += -8
    r3 = 8
    r4 = 0
    call bpf_ringbuf_output
    r0 = 0
    exit
";
    for (map, text) in [("queue 0 8 16", push), ("stack 0 8 16", push), ("ringbuf 0 0 4096", send)] {
        let around = format!("; section: xdp\n; map: m {map}\n");
        assert!(differs(&objects(&around, text, ["1", "2"])), "{map}");
        let equal = rounds(&objects(&around, text, ["1", "1"]), Setup::default(), 50, 4);
        assert!(equal.iter().all(|r| r.difference.is_none() && r.unsteady == 0 && r.runs == 50), "{map}: {equal:?}");
    }
}

#[test]
fn a_program_that_only_the_second_object_has_is_told() {
    if !kernel() {
        return;
    }
    let of = |more: &str| {
        let text = format!(
            "; One.\n; section: xdp\n; expect: equal\nbefore:\n    r0 = 0\n    exit\n{more}after:\n    r0 = 0\n    exit\n{more}"
        );
        Case::parse(&text).expect("a case").old_object().expect("it assembles")
    };
    let pair =
        Pair::load(&of(""), &of("program more xdp:\n    r0 = 1\n    exit\n"), Setup::default()).expect("both load");
    assert!(
        pair.skipped.iter().any(|(name, why)| name == "more" && why.contains("first object")),
        "{:?}",
        pair.skipped
    );
}

/// The time of each form, as far as there are times.
fn ratios(input: &[u8], limit: u64) -> Vec<Option<f64>> {
    let time_limit = Duration::from_secs(limit);
    let options = Options { time_limit, forms: 2, search: false, run_check: false, ..Options::default() };
    variants(input, &options, &Silent).expect("forms").iter().map(|form| Some(form.measured?.ratio)).collect()
}

fn object(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/objects").join(name))
        .expect("it is committed")
}

#[test]
fn only_what_may_be_run_is_timed() {
    if !kernel() {
        return;
    }
    assert!(ratios(&object("cloner.o"), 3).iter().all(Option::is_none), "it sends packets");
    assert!(ratios(&object("unwritten.o"), 20).iter().all(Option::is_some), "it may be run");
    // The kernel tells no time of these.
    let text = "    r2 = *(u64 *)(r1 + 0)\n    r2 = *(u64 *)(r1 + 0)\n    r0 = 0\n    exit\n";
    let [syscall, _] = objects("; section: syscall\n", text, ["", ""]);
    assert!(ratios(&syscall, 3).iter().all(Option::is_none), "the kernel tells no time");
}

#[test]
fn timing_ends_with_the_time() {
    if !kernel() {
        return;
    }
    let text = "
    r6 = r1
    r6 = r1
    r1 = 1000000
    r2 = cb ll
    r3 = 0
    r4 = 0
    call bpf_loop
    r0 = 0
    exit
static cb(u64, ptr) u64:
    r0 = 0
    exit
";
    let [slow, _] = objects("; section: xdp\n", text, ["", ""]);
    let started = Instant::now();
    let ratios = ratios(&slow, 4);
    assert!(started.elapsed() < Duration::from_secs(6), "{:?} {ratios:?}", started.elapsed());
}
