//! Original against optimized, in the running kernel: the same packets, the same results.
//!
//! This asks nobody in this project: see `bpf_driver::difftest`, which does it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bpf_driver::difftest::{Pair, Random, Setup};
use bpf_driver::{Options, Silent, optimize};
use bpf_kernel::testing::permitted;
use bpf_testgen::case::Case;

/// Packets per program in `make test`; `BPF_OPT_PACKETS` asks for more.
const PACKETS: u64 = 300;
/// Packets between two fillings of the maps.
const ROUND: u64 = 100;

fn objects() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["examples", "../shared/bench/k2", "../shared/bench/public"]
        .iter()
        .flat_map(|d| std::fs::read_dir(root.join(d)).into_iter().flatten().flatten())
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect()
}

#[test]
fn optimized_programs_do_the_same_in_the_kernel() {
    if !permitted() {
        return;
    }
    bpf_kernel::in_private_network(compare_all).expect("a network namespace");
}

fn compare_all() {
    let packets = std::env::var("BPF_OPT_PACKETS").ok().and_then(|s| s.parse().ok()).unwrap_or(PACKETS);
    let (mut programs, mut runs, mut unsteady) = (0, 0u64, 0);
    for path in objects() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let input = std::fs::read(&path).expect("it is there");
        // What does not load as a whole is not compared; what does must still load afterwards.
        if input.len() >= 1 << 20 || Pair::load(&input, &input, Setup::default()).is_err() {
            continue;
        }
        let options = Options { time_limit: Duration::from_secs(5), jobs: 2, ..Options::default() };
        let (output, _) = optimize(&input, &options, &Silent).expect("it is optimized");
        let mut pair = Pair::load(&input, &output, Setup::default()).expect("what loaded still loads");
        let names: Vec<String> = pair.programs().map(str::to_owned).collect();
        for program in names {
            let mut ran = 0;
            for n in 0..packets.div_ceil(ROUND) {
                let round = pair.round(&program, &mut Random::of(1, n), ROUND as usize, None);
                assert_eq!(round.difference, None, "{name}");
                ran += round.runs;
                unsteady += round.unsteady;
            }
            programs += u32::from(ran > 0);
            runs += ran;
        }
    }
    eprintln!("{programs} programs, {runs} packets each way, {unsteady} rounds unsteady");
    assert!(runs >= packets, "no program ran");
}

/// One of these words is the map's number, which the kernel counts up with every map.
#[test]
fn what_the_kernel_numbers_is_no_difference() {
    if !permitted() {
        return;
    }
    let mut runs = 0;
    for at in (0..256).step_by(4) {
        let text = format!(
            "; A word of a map.\n; section: tc\n; map: m array 4 8 1\n; expect: equal\nbefore:\n    r1 = m ll\n    r0 = *(u32 *)(r1 + {at})\n    \
             r0 &= 1\n    exit\nafter:\n    r2 = m ll\n    r0 = *(u32 *)(r2 + {at})\n    r0 &= 1\n    exit\n"
        );
        let case = Case::parse(&text).expect("a case");
        let (a, b) =
            (case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair"));
        // Not all of them may be read.
        let Ok(mut pair) = Pair::load(&a, &b, Setup::default()) else { continue };
        let name = pair.programs().next().expect("a program").to_owned();
        let round = pair.round(&name, &mut Random::of(1, at), 2, None);
        assert_eq!(round.difference, None, "the word at {at}");
        runs += round.runs + round.unsteady;
    }
    assert!(runs > 0, "no word could be read");
}

/// The kernel refuses a context that is shorter than what the program reads, so one that reads less runs on more of them.
#[test]
fn a_program_may_need_less_context_but_not_more() {
    if !permitted() {
        return;
    }
    let text = "; A far read of the context.\n; section: syscall\n; expect: equal\nbefore:\n    r2 = *(u64 *)(r1 + 1024)\n    \
                r0 = 7\n    exit\nafter:\n    r0 = 7\n    exit\n";
    let case = Case::parse(text).expect("a case");
    let far = case.old_object().expect("it assembles");
    let near = case.new_object().expect("it assembles").expect("a pair");
    let round = |a: &[u8], b: &[u8]| {
        let mut pair = Pair::load(a, b, Setup::default()).expect("both load");
        let program = pair.programs().next().expect("there is one").to_owned();
        pair.round(&program, &mut Random::of(1, 1), 8, None)
    };
    let less = round(&far, &near);
    assert_eq!((less.difference, less.runs, less.refused), (None, 0, 8));
    let more = round(&near, &far).difference.expect("it does not run any more");
    assert!(more.what[0].contains("runs the first, and not the second"), "{:?}", more.what);
}
