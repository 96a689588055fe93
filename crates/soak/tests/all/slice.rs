//! A slice of the lanes that need no Z3, and the harness itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bpf_driver::Options;
use bpf_kernel::testing::permitted;
use bpf_object::{FuncId, Object, WriteOptions};
use bpf_soak::campaign::{self, CampaignState, LanePlan, MakeLane, Settings};
use bpf_soak::clang::{ClangLane, Optimizer};
use bpf_soak::corpus::Corpus;
use bpf_soak::exec::Exec;
use bpf_soak::facts::FactsLane;
use bpf_soak::packets::{Packets, Subject};
use bpf_soak::{Lane, Tally, report};

/// Units until the time is over, at least one; nothing may disagree.
fn slice(lane: &mut dyn Lane, counter: &str, at_least: u64) -> Tally {
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut index = 0;
    while tally.counts.get(counter).is_none_or(|n| *n < at_least) {
        lane.unit(1, index, &mut tally);
        index += 1;
        assert!(started.elapsed() < Duration::from_secs(60), "too slow: {:?}", tally.counts);
    }
    let wrong: Vec<&str> = tally.disagreements.iter().map(|d| d.what.as_str()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{:?} in {:.1} s", tally.counts, started.elapsed().as_secs_f64());
    tally
}

#[test]
fn random_programs_run_alike_in_interpreter_and_kernel() {
    if !permitted() {
        return;
    }
    let tally = slice(&mut Exec::new().expect("permitted"), "instructions", 300_000);
    let refused = tally.counts.get("programs refused by the verifier").copied().unwrap_or(0);
    assert!(refused * 10 <= tally.counts["programs"], "most programs must load: {:?}", tally.counts);
}

#[test]
fn facts_describe_what_happens() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut lane = FactsLane::new(Corpus::of(&[examples]));
    slice(&mut lane, "points", 300_000);
    // Every kind of function.
    let mut tally = Tally::default();
    (0..8).for_each(|i| lane.unit(2, i, &mut tally));
    assert_eq!(tally.disagreements, []);
}

/// The lane, unless there is no kernel or no clang; says so then.
fn clang(optimizer: Option<Optimizer>, keep: &Path) -> Option<ClangLane> {
    if !permitted() {
        return None;
    }
    let lane = match optimizer {
        Some(optimizer) => ClangLane::of(optimizer, keep),
        None => ClangLane::new(keep),
    };
    match lane {
        Ok(lane) => Some(lane),
        Err(why) => {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_CLANG").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

#[test]
fn optimized_c_programs_do_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut lane) = clang(None, folder.path()) else { return };
    let tally = slice(&mut lane, "runs", 2_000);
    let all: u64 = tally.counts.iter().filter(|(what, _)| what.starts_with("programs")).map(|(_, n)| n).sum();
    assert!(tally.counts["programs"] * 10 >= all * 7, "most programs must be compared: {tally:?}");
}

/// An optimizer that takes every 64-bit `xor` for an addition.
fn wrong_optimizer(object: &[u8], _: &Options) -> Result<Vec<u8>, String> {
    let mut object = Object::parse(object.to_vec()).map_err(|e| e.to_string())?;
    for f in (0..object.functions().len()).map(FuncId) {
        let mut body = object.identity_body(f).map_err(|e| e.to_string())?;
        // `r ^= r` is 0xaf, `r += r` 0x0f.
        body.iter_mut().filter(|i| i.bytes[0] == 0xaf).for_each(|i| i.bytes[0] = 0x0f);
        object.set_body(f, body).map_err(|e| e.to_string())?;
    }
    object.write(&WriteOptions::default()).map(|w| w.bytes).map_err(|e| e.to_string())
}

#[test]
fn a_wrong_optimizer_is_found_and_the_program_shrunk() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut lane) = clang(Some(wrong_optimizer), folder.path()) else { return };
    let mut tally = Tally::default();
    let mut index = 0;
    while tally.disagreements.is_empty() {
        lane.unit(1, index, &mut tally);
        index += 1;
        assert!(index < 30, "not found: {:?}", tally.counts);
    }
    let find = folder.path().join(format!("clang-1-{}", index - 1));
    let source = std::fs::read_to_string(find.join("find.c")).expect("it is kept");
    let code = source.split_once("_license").expect("there is code").1;
    assert!(code.contains('^') && code.lines().count() < 40, "not shrunk:\n{code}");
    assert!(find.join("before.o").exists() && find.join("after.o").exists());
}

fn example() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/xdp_count.o")).expect("it is committed")
}

/// The example with one instruction changed.
fn changed(from: [u8; 8], to: [u8; 8]) -> Vec<u8> {
    let mut bytes = example();
    let at = bytes.windows(8).position(|w| w == from).expect("the example has this instruction");
    bytes[at..at + 8].copy_from_slice(&to);
    bytes
}

fn packets(optimized: Vec<u8>) -> Packets {
    let subjects = vec![Subject::given("xdp_count.o", example(), optimized)];
    Packets::new(Arc::new(subjects), None).expect("permitted")
}

#[test]
fn equal_objects_do_the_same() {
    if permitted() {
        slice(&mut packets(example()), "packets", 2_000);
    }
}

#[test]
fn a_wrong_return_value_is_found() {
    if !permitted() {
        return;
    }
    // `w0 = 2` becomes `w0 = 1`.
    let broken = changed([0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]);
    let mut tally = Tally::default();
    (0..3).for_each(|i| packets(broken.clone()).unit(1, i, &mut tally));
    let what = &tally.disagreements.first().expect("it is found").what;
    assert!(what.contains("xdp_count") && what.contains("the return value: 2"), "{what}");
}

#[test]
fn a_wrong_map_value_is_found() {
    if !permitted() {
        return;
    }
    // The counter counts by three instead of by one.
    let broken = changed([0xb7, 1, 0, 0, 1, 0, 0, 0], [0xb7, 1, 0, 0, 3, 0, 0, 0]);
    let mut tally = Tally::default();
    (0..3).for_each(|i| packets(broken.clone()).unit(1, i, &mut tally));
    let what = &tally.disagreements.first().expect("it is found").what;
    assert!(what.contains("map counters, key"), "{what}");
}

// ---- the harness -----------------------------------------------------------------------------------------------

/// Counts, and is wrong about one unit and panics in another if told so.
struct Fake {
    wrong: Option<u64>,
    panics: Option<u64>,
}

impl Lane for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        tally.count("things", 1 + (seed + index) % 7);
        assert!(self.panics != Some(index), "on purpose");
        if self.wrong == Some(index) {
            tally.disagree(seed, index, "two and two are five");
        }
    }
}

fn plan(name: &'static str, wrong: Option<u64>, panics: Option<u64>) -> LanePlan {
    let make: MakeLane = Box::new(move || Ok(Box::new(Fake { wrong, panics })));
    LanePlan { name, counter: "things", per_hour: 1000, slice: 10, make }
}

fn settings(slices: u64, state: Option<&Path>) -> Settings {
    let time = Duration::from_secs(60);
    Settings { seed: 3, time, jobs: 2, state: state.map(Path::to_owned), slices: Some(slices) }
}

fn run(plans: &[LanePlan], settings: &Settings) -> CampaignState {
    campaign::run(plans, settings, &AtomicBool::new(false), &|_| {}).expect("it runs")
}

fn without_times(mut state: CampaignState) -> CampaignState {
    state.seconds = 0.0;
    state.lanes.values_mut().for_each(|l| l.seconds = 0.0);
    state
}

#[test]
fn a_resumed_campaign_does_what_one_run_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("deep/state.json");
    let plans = [plan("a", Some(4), None), plan("b", None, None)];
    let whole = run(&plans, &settings(3, None));
    for slices in 1..=3 {
        run(&plans, &settings(slices, Some(&file)));
    }
    let resumed = CampaignState::read(&file).expect("readable").expect("there");
    assert_eq!(without_times(resumed), without_times(whole.clone()));
    assert_eq!(whole.lanes["a"].tally.counts["units"], 30);
    assert_eq!(whole.disagreements().count(), 1);
}

#[test]
fn units_left_behind_are_done_first_and_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.json");
    let plans = [plan("a", None, None)];
    // As after a crash: units 0 to 9 handed out, 2 and 7 never finished.
    let mut state = CampaignState { seed: 3, ..CampaignState::default() };
    let mut done = Tally::default();
    for i in (0..10).filter(|i| ![2, 7].contains(i)) {
        Fake { wrong: None, panics: None }.unit(3, i, &mut done);
        done.count("units", 1);
    }
    let lane = campaign::LaneState { next: 10, begun: [2, 7].into(), tally: done, ..Default::default() };
    state.lanes.insert("a".into(), lane);
    state.write(&file).expect("written");
    let resumed = run(&plans, &settings(2, Some(&file)));
    assert_eq!(without_times(resumed), without_times(run(&plans, &settings(2, None))));
}

#[test]
fn a_wrong_judge_is_exit_code_1_and_can_be_repeated() {
    let plans = [plan("a", None, None), plan("b", Some(6), None)];
    let state = run(&plans, &settings(1, None));
    assert_eq!(report::exit_code(&plans, &state), 1);
    let text = report::text(&plans, &state, false);
    assert!(text.contains("two and two are five") && text.contains("bpf-soak --seed 3 --unit b:6"), "{text}");
    let again = campaign::repeat(&plans[1], 3, 6).expect("it runs");
    assert_eq!(again.disagreements.len(), 1);
    assert_eq!(campaign::repeat(&plans[1], 3, 5).expect("it runs").disagreements, []);
}

#[test]
fn a_panic_is_a_disagreement_and_the_campaign_goes_on() {
    let plans = [plan("a", None, Some(2))];
    let state = run(&plans, &settings(1, None));
    let what: Vec<&str> = state.disagreements().map(|(_, d)| d.what.as_str()).collect();
    assert_eq!(what, ["a panic: on purpose"]);
    assert_eq!(state.lanes["a"].tally.counts["units"], 9);
}

#[test]
fn a_lane_that_cannot_run_is_exit_code_3() {
    let mut plans = vec![plan("a", None, None)];
    plans.push(LanePlan { make: Box::new(|| Err("no such tool".into())), ..plan("b", None, None) });
    let state = run(&plans, &settings(1, None));
    assert_eq!(report::exit_code(&plans, &state), 3);
    assert!(report::text(&plans, &state, false).contains("CANNOT RUN HERE: no such tool"));
    assert_eq!(report::exit_code(&plans[..1], &run(&plans[..1], &settings(1, None))), 0);
}

#[test]
fn a_state_of_another_seed_or_no_state_at_all_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.json");
    let plans = [plan("a", None, None)];
    run(&plans, &settings(1, Some(&file)));
    let other = Settings { seed: 4, ..settings(1, Some(&file)) };
    assert!(campaign::run(&plans, &other, &AtomicBool::new(false), &|_| {}).is_err());
    std::fs::write(&file, "{").expect("written");
    assert!(campaign::run(&plans, &settings(1, Some(&file)), &AtomicBool::new(false), &|_| {}).is_err());
}
