//! `--also`: what another build has in the place of a function is taken only where it is proven to do the same.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bpf_driver::{Options, PassSelection, Report, Silent, optimize};
use bpf_testgen::c::{Clang, Settings};
use bpf_testgen::case::{Case, Expect};
use bpf_testgen::files;

/// Every how many-th case is tried; the others are as `verify` finds them in `equivalence.rs`.
const EVERY: usize = 7;

fn builds(report: &Report) -> usize {
    let is_build = |(by, _): &&(String, usize)| by.starts_with("build ");
    report.functions.iter().flat_map(|f| &f.rewrites).filter(is_build).count()
}

/// Of each pair of programs that somebody has tried to deceive the prover with, the second as another build of the first.
#[test]
fn wrong_builds_are_never_taken() {
    let paths = files::below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/equivalence"), "bpf");
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let (wrong, right, taken) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(path) = paths.get(EVERY * next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case::parse(&std::fs::read_to_string(path).expect("a file")).expect("a case");
                    let (Ok(old), Ok(Some(new))) = (case.old_object(), case.new_object()) else { continue };
                    let options = Options {
                        kernel: false,
                        run_check: false,
                        strict_shared_memory: case.strict,
                        passes: PassSelection::Only(Vec::new()),
                        time_limit: Duration::from_secs(10),
                        also: vec![("new".into(), new)],
                        ..Options::default()
                    };
                    let Ok((_, report)) = optimize(&old, &options, &Silent) else { continue };
                    let found = builds(&report);
                    match case.expect {
                        // Those with `fails:` are gaps that `docs/trust.md` lists.
                        Some(Expect::Refuted | Expect::NotProven) if !case.asks_kernel && case.fails.is_none() => {
                            wrong.fetch_add(1, Ordering::Relaxed);
                            if found > 0 {
                                problems.lock().expect("no thread broke").push(path.display().to_string());
                            }
                        }
                        Some(Expect::Equal) => {
                            right.fetch_add(1, Ordering::Relaxed);
                            taken.fetch_add(found, Ordering::Relaxed);
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().expect("no thread broke");
    let [wrong, right, taken] = [wrong, right, taken].map(AtomicUsize::into_inner);
    println!("{wrong} wrong builds; of {right} right ones {taken} taken, which are shorter");
    assert!(problems.is_empty(), "taken though wrong:\n{}", problems.join("\n"));
    assert!(wrong > 300 && taken > 30, "{wrong} wrong, {taken} taken");
}

/// clang's levels: with the other one beside it, each comes to what the better one comes to.
#[test]
fn of_two_levels_the_better_beginning_is_taken() {
    let Some(clang) = Clang::find() else {
        eprintln!("skipped: no clang here");
        return;
    };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let read = |name: &str| std::fs::read_to_string(examples.join(name)).expect("an example");
    let source = read("xdp_count.c").replace("#include \"bpf_small.h\"", &read("bpf_small.h"));
    let [low, middle, small] = ["-O1", "-O2", "-Os"]
        .map(|level| clang.compile(&source, Settings { level, cpu: "v3" }).expect("the example compiles"));
    let slots = |first: &[u8], also: Vec<(String, Vec<u8>)>| {
        let options = Options { kernel: false, run_check: false, also, ..Options::default() };
        let (bytes, report) = optimize(first, &options, &Silent).expect("an object");
        let verified = bpf_driver::verify(first, &bytes, &options).expect("objects");
        assert!(verified.is_equal(), "{:?}", verified.functions);
        (report.slots().1, builds(&report))
    };
    let others = || vec![("-O2".to_owned(), middle.clone()), ("-Os".to_owned(), small.clone())];
    let (alone, with_others) = (slots(&low, vec![]).0, slots(&low, others()));
    let best = [&middle, &small].map(|build| slots(build, vec![]).0).into_iter().min().expect("two");
    assert!(best < alone, "-O1 was no worse: {best}, {alone}");
    assert!(with_others.0 <= best && with_others.1 >= 1, "{with_others:?}, alone {alone}, others {best}");
    assert_eq!(slots(&small, vec![("-O1".to_owned(), low.clone())]).0, slots(&small, vec![]).0);
}
