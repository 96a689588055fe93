//! `opt` over objects with the shapes of real projects ([`bpf_testgen::shapes`]): it keeps its time limit, the kernel
//! judges every program that it would load, what loaded loads, and nothing grows.
//!
//! In `make test` the objects are small, with one seed. `BPF_OPT_SHAPES=large` makes them as large as real ones,
//! `BPF_OPT_SEED=N` chooses others. `cargo run -p bpf-testgen --example shape` writes them to files.
//!
//! A binary of its own: it measures times, so no other tests may run beside it.
#[path = "all/common/mod.rs"]
mod common;

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bpf_check::{MapInfo, Program};
use bpf_driver::agreement::{create, load_linked};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, Loader, Map, ProgramType};
use bpf_object::{FuncId, Object};
use bpf_testgen::shapes::{Expected, Fate, Generated, MISSING, Shape, generate};
use serde_json::Value;

use common::*;

/// What a run may take beside its limit and a tenth of it, on a machine with other things to do. One that does not heed its
/// limit takes far longer with most of these shapes.
const GRACE: Duration = Duration::from_secs(3);
/// When a run is ended.
const HANGING: Duration = Duration::from_secs(120);

/// An object, what became of it, and what was said about that.
struct Run<'o> {
    shape: Shape,
    original: &'o Generated,
    result: Vec<u8>,
    report: Value,
}

/// Optimizes an object of a shape, and holds what came of it against what was promised.
#[track_caller]
fn optimized(shape: Shape) {
    let seed = std::env::var("BPF_OPT_SEED").map_or(1, |n| n.parse().expect("BPF_OPT_SEED is a number"));
    let large = std::env::var_os("BPF_OPT_SHAPES").is_some_and(|size| size == "large");
    // Two fifths of it must be enough for the verifier to look at 60,000 slots.
    let (size, seconds) = if large { (shape.large(), 20) } else { (shape.small(), 2) };
    let original = generate(shape, seed, size).expect("it assembles");
    let run = Run::new(shape, &original, Duration::from_secs(seconds), &[]);
    run.has_grown_nowhere();
    if permitted() {
        run.every_loadable_program_is_judged();
        assert_eq!(run.not_loaded(&original.bytes), Vec::<String>::new(), "{shape:?}: the original");
        assert_eq!(run.not_loaded(&run.result), Vec::<String>::new(), "{shape:?}: the result");
        let alone = Run::new(shape, &original, Duration::from_secs(seconds / 2), &["--no-kernel"]);
        alone.has_grown_nowhere();
        alone.gave_nothing_up();
        alone.was_checked();
        assert_eq!(alone.not_loaded(&alone.result), Vec::<String>::new(), "{shape:?}: made without asking the kernel");
    }
}

impl Run<'_> {
    #[track_caller]
    fn new<'o>(shape: Shape, original: &'o Generated, limit: Duration, more: &[&str]) -> Run<'o> {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("in.o"), &original.bytes).expect("written");
        let mut command = command();
        command.current_dir(folder.path()).stderr(fs::File::create(at("err")).expect("created")).stdout(Stdio::null());
        command.args(["opt", "in.o", "-o", "out.o", "--json", "report.json", "--jobs", "1", "--no-cache"]);
        command.args(["--time-limit", &limit.as_secs().to_string()]);
        command.args(more);
        let started = Instant::now();
        let code = ended(command.spawn().expect("the binary runs"), started);
        let took = started.elapsed();
        let said = fs::read_to_string(at("err")).expect("it says something");
        assert_eq!(code, Some(0), "{shape:?}, after {took:?}:\n{said}");
        eprintln!("{shape:?} {more:?}: {took:.2?}, {}", said.lines().last().unwrap_or_default());
        assert!(took < limit + limit / 10 + GRACE, "{shape:?} took {took:?}, with a limit of {limit:?}:\n{said}");
        let report = fs::read(at("report.json")).expect("the report");
        let report = serde_json::from_slice(&report).expect("JSON");
        Run { shape, original, result: fs::read(at("out.o")).expect("the result"), report }
    }

    /// What the report says of a program.
    #[track_caller]
    fn function(&self, program: &Expected) -> &Value {
        let functions = self.report["functions"].as_array().expect("functions");
        let found = functions.iter().find(|f| f["name"] == *program.name && f["section"] == *program.section);
        found.unwrap_or_else(|| panic!("{:?}: no {program:?} in the report", self.shape))
    }

    #[track_caller]
    fn has_grown_nowhere(&self) {
        let shape = self.shape;
        let mut saved = 0;
        for f in self.report["functions"].as_array().expect("functions") {
            let slots = |when: &str| f[when].as_u64().expect("a number");
            let (before, after) = (slots("slots_before"), slots("slots_after"));
            assert!(after <= before, "{shape:?}: {f:#}");
            saved += before - after;
            let processed = |when: &str| f[when]["processed"].as_u64().filter(|_| f[when]["accepted"] == true);
            if let (Some(before), Some(after)) = (processed("kernel_before"), processed("kernel_after")) {
                assert!(after <= before + 2.max(before / 50), "{shape:?}: more work for the verifier: {f:#}");
            }
        }
        // Where time is short there may be nothing that is saved.
        let judged = self.report["functions"].as_array().expect("functions").iter();
        let judged = judged.filter(|f| f["kernel_before"]["accepted"] == true).count();
        assert!(saved > 0 || judged == 0, "{shape:?}: nothing was done: {:#}", self.report);
    }

    /// What the engine proposes it need not put back when it looks at the whole.
    #[track_caller]
    fn gave_nothing_up(&self) {
        for f in self.report["functions"].as_array().expect("functions") {
            let why = f["untouched"].as_str().unwrap_or_default();
            // Of maps in maps whose template the loader chooses, the verifier may believe what is wrong.
            let in_any_map =
                self.shape == Shape::LoaderMaps && f["name"].as_str().is_some_and(|n| n.starts_with("inner"));
            let stays = in_any_map && why.contains("which of its accesses the verifier visits");
            assert!(why.is_empty() || why.contains("time") || stays, "{:?}: {f:#}", self.shape);
        }
    }

    /// What no kernel judges is judged by `check`.
    #[track_caller]
    fn was_checked(&self) {
        let said = self.report["check"].as_str().unwrap_or_default();
        let count = self.original.programs.len();
        assert!(
            said.contains(&format!("of {count} program(s) that the kernel did not judge")),
            "{:?}: {said}",
            self.shape
        );
        // What check finds fault with of the original, it does not judge; of what loads that must be nothing.
        let unsafe_ones = said.split_once("the original is not safe: ").map_or("", |(_, names)| names);
        for p in self.original.programs.iter().filter(|p| p.fate == Fate::Loads) {
            assert!(!unsafe_ones.contains(&format!("{} (", p.name)), "{:?}: {said}", self.shape);
        }
    }

    #[track_caller]
    fn every_loadable_program_is_judged(&self) {
        for p in &self.original.programs {
            let shape = self.shape;
            let f = self.function(p);
            let (before, after) = (&f["kernel_before"], &f["kernel_after"]);
            let reason = before["reason"].as_str().unwrap_or_default();
            let is_judged = before["accepted"] == true;
            match p.fate {
                Fate::Loads => {
                    assert!(is_judged, "{shape:?}: the kernel loads {}, and was not asked: {f:#}", p.name);
                    assert_eq!(after["accepted"], true, "{shape:?}: {f:#}");
                }
                Fate::Refused => assert!(!is_judged && !reason.is_empty(), "{shape:?}: {f:#}"),
                Fate::Lacks => assert!(!is_judged && reason.contains(MISSING), "{shape:?}: {f:#}"),
            }
        }
    }

    /// The programs that are to load and do not, of the original or a result, and why.
    fn not_loaded(&self, bytes: &[u8]) -> Vec<String> {
        let wanted: Vec<&Expected> = self.original.programs.iter().filter(|p| p.fate == Fate::Loads).collect();
        not_loaded(bytes, &self.original.plain, &wanted)
    }
}

/// The exit code of a process, which must not go on for ever.
#[track_caller]
fn ended(mut child: Child, started: Instant) -> Option<i32> {
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        if started.elapsed() > HANGING {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
            panic!("it still ran after {HANGING:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Which of these programs do not load as the project's own loader would load them, and the kernel's words.
fn not_loaded(bytes: &[u8], plain: &[u8], programs: &[&Expected]) -> Vec<String> {
    let mut loader = Loader::new(LoadOptions::default()).expect("the kernel can be asked");
    let wanted = |name: &str, section: &str| programs.iter().any(|p| p.name == name && p.section == section);
    let verdict = loader.judge(bytes, wanted, None).expect("it answers");
    let accepted = |p: &Expected| {
        let found = verdict.programs.iter().find(|q| q.name == p.name && q.section == p.section);
        found.is_some_and(|q| q.verdict.is_accepted())
    };
    let others: Vec<&&Expected> = programs.iter().filter(|p| !accepted(p)).collect();
    if others.is_empty() {
        return vec![];
    }
    let [object, plain] = [bytes, plain].map(|bytes| Object::parse(bytes.to_vec()).expect("an object"));
    let maps = Program::link(&plain, FuncId(0), 0, 0).maps;
    let refused = |p: &&Expected| load_completed(&object, &maps, p).err().map(|why| format!("{}: {why}", p.name));
    others.into_iter().filter_map(refused).collect()
}

/// Loads a program with the maps of its object's plain form, which are what a loader makes of the object's own.
fn load_completed(object: &Object, maps: &[MapInfo], program: &Expected) -> Result<(), String> {
    let entry = object.entries(&program.name, &program.section);
    let (entry, kind) = match (entry.first(), ProgramType::usual(&program.section).first()) {
        (Some(entry), Some(kind)) => (*entry, *kind),
        _ => return Err("it is not there".to_owned()),
    };
    let linked = Program::link(object, entry, kind.0, kind.1);
    let map = |wanted: &MapInfo| {
        let info = maps.iter().find(|info| info.name == wanted.name)?;
        create(info)
    };
    let maps: Vec<Map> = linked.maps.iter().map(map).collect::<Option<_>>().ok_or("a map cannot be made")?;
    load_linked(&linked, &maps).unwrap_or_else(|| Err("it cannot be linked".to_owned()))
}

macro_rules! shapes {
    ($($test:ident: $shape:ident,)*) => {
        $(#[test] fn $test() { optimized(Shape::$shape) })*

        #[test]
        fn every_shape_has_its_test() {
            assert_eq!(Shape::ALL, [$(Shape::$shape),*]);
        }
    };
}

shapes! {
    legacy_maps: LegacyMaps,
    maps_that_the_loader_completes: LoaderMaps,
    static_programs: StaticPrograms,
    huge_maps: HugeMaps,
    many_programs: ManyPrograms,
    twins: Twins,
    originals_refused_after_a_million_instructions: TooMuchToVerify,
    short_originals_refused_after_a_million_instructions: EndlessLoops,
    programs_of_thousands_of_slots_with_loops: LargeLoops,
    program_arrays_with_a_refused_program: ProgramArrays,
    missing_kernel_functions: MissingKfuncs,
    records_of_tracepoints: TracepointContexts,
}
