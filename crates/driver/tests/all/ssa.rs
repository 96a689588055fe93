//! Every function there is, lifted to SSA and lowered again, with and without passes: rarely longer without them, never
//! seen to differ from the original. Real objects where they are present, and the programs of `tests/equivalence`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_driver::Module;
use bpf_facts::Env;
use bpf_object::Object;
use bpf_program::{Function, slot_count};
use bpf_prove::{Limits, Options, Verdict, functions, replay};
use bpf_ssa::passes::{Pass, detours};
use bpf_ssa::{all_passes, candidate, lift, verify};
use bpf_testgen::case::Case;
use bpf_testgen::files;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn objects() -> Vec<PathBuf> {
    ["examples", "../shared/bench/k2"].iter().flat_map(|folder| files::below(&root().join(folder), "o")).collect()
}

#[derive(Default, Debug)]
struct Seen {
    functions: usize,
    lowered: usize,
    equal: usize,
    /// Without passes, of the lowered ones.
    grown: Vec<String>,
    different: Vec<String>,
}

/// Slots of functions whose proofs are worth waiting for.
const SMALL: usize = 200;

fn try_all(module: &Module, name: &str, seen: &mut Seen) {
    for f in module.graphs.iter().flatten() {
        module.with_env(|env| {
            seen.functions += 1;
            if let Ok(ssa) = lift(f, env, true) {
                assert_eq!(verify(&ssa), Ok(()), "{name}: {}", f.name);
                let mut changed = ssa;
                for p in all_passes().iter().chain(&detours()) {
                    p.run(&mut changed, env);
                    assert_eq!(verify(&changed), Ok(()), "{name}: {} after {}", f.name, p.name());
                }
            }
            let all = all_passes();
            let all: Vec<&dyn Pass> = all.iter().map(AsRef::as_ref).collect();
            for passes in [&[][..], &all] {
                let Ok(c) = candidate(f, env, passes) else { continue };
                seen.lowered += 1;
                if passes.is_empty() && slot_count(&c.function) > slot_count(f) {
                    seen.grown.push(format!("{name} {}", f.name));
                }
                compare(f, &c.function, env, name, seen);
            }
        });
    }
}

fn compare(old: &Function, new: &Function, env: &Env<'_>, name: &str, seen: &mut Seen) {
    if slot_count(old) > SMALL {
        return;
    }
    let deadline = Instant::now().checked_add(Duration::from_millis(100));
    let options = Options { limits: Limits { deadline, ..Limits::default() }, ..Options::default() };
    match functions(old, new, env, &options).0 {
        Verdict::Equal => seen.equal += 1,
        Verdict::Unknown(_) => {}
        Verdict::Different(mut d) => {
            if let Some(w) = replay(&mut d, old, new, env) {
                seen.different.push(format!("{name} {}: {}\n{old}\n{new}", old.name, w.lines().join("; ")));
            }
        }
    }
}

#[test]
fn real_objects_come_back() {
    let mut seen = Seen::default();
    for path in objects() {
        let Ok(object) = Object::parse(std::fs::read(&path).expect("readable")) else { continue };
        try_all(&Module::new(object), &path.display().to_string(), &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.different.is_empty(), "{}", seen.different.join("\n"));
    assert!(seen.grown.is_empty(), "longer: {:?}", seen.grown);
    assert!(seen.lowered > 20 && seen.equal * 10 >= seen.lowered * 7, "{seen:?}");
}

#[test]
fn programs_of_the_cases_come_back() {
    let paths = files::below(&root().join("tests/equivalence"), "bpf");
    let mut seen = Seen::default();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("readable");
        let Ok(case) = Case::parse(&text) else { continue };
        let Ok(Ok(object)) = case.old_object().map(Object::parse) else { continue };
        try_all(&Module::new(object), &path.display().to_string(), &mut seen);
    }
    let Seen { functions, lowered, equal, grown, .. } = &seen;
    println!("{functions} functions, {lowered} lowered, {equal} equal, {} longer", grown.len());
    assert!(seen.different.is_empty(), "{}", seen.different.join("\n"));
    assert!(seen.lowered > seen.functions, "{seen:?}");
    assert!(seen.grown.len() * 100 <= seen.lowered, "longer: {:?}", seen.grown);
}

#[test]
fn optimizing_with_global_passes_is_never_worse() {
    use bpf_driver::{Options as RunOptions, PassSelection, Silent, optimize};
    let mut paths = objects();
    // The large one takes longer than a test should.
    paths.retain(|p| std::fs::metadata(p).is_ok_and(|m| m.len() < 20_000));
    let (mut without, mut with) = (0, 0);
    for path in &paths {
        let bytes = std::fs::read(path).expect("readable");
        let run = |options: &RunOptions| {
            let (_, report) = optimize(&bytes, options, &Silent).expect("it is an object");
            assert!(report.functions.iter().all(|f| f.refuted.is_none()), "{}: {:?}", path.display(), report.warnings);
            report.slots().1
        };
        let plain = RunOptions { kernel: false, run_check: false, ..RunOptions::default() };
        let global = RunOptions { ssa: true, ..plain.clone() };
        let slots = (run(&plain), run(&global));
        assert!(slots.1 <= slots.0, "{}: {slots:?}", path.display());
        without += slots.0;
        with += slots.1;
        let named = RunOptions { passes: PassSelection::Only(vec!["ssa-exits".into(), "ssa-dead".into()]), ..plain };
        run(&named);
    }
    println!("{without} slots, {with} with global passes");
    assert!(with < without);
}

/// The pair is one of which the direct proof finds nothing: an offset behind up to two tags that has become a moving pointer, in the
/// function of `12-xdp2` of K2's benchmark.
#[test]
fn what_is_not_proven_directly_is_proven_over_what_a_pass_would_first_make_of_it() {
    let case = Case::parse(include_str!("../fixtures/two_tags.bpf")).expect("a case");
    let old = case.old_object().expect("it assembles");
    let new = case.new_object().expect("it assembles").expect("a pair");
    let options = bpf_driver::Options {
        time_limit: Duration::from_secs(300),
        kernel: false,
        run_check: false,
        ..bpf_driver::Options::default()
    };
    let report = bpf_driver::verify(&old, &new, &options).expect("both are objects");
    assert!(report.is_equal(), "{report:?}");
}
