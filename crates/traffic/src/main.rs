//! Load tests: XDP programs under traffic between two network namespaces, originals beside what `bpf-opt` makes of them. `make load-tests`.

mod document;
mod measure;
mod network;
mod packets;
mod programs;
mod scenario;
mod sys;
mod trial;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use bpf_kernel::Permission;
use clap::Parser;

use document::{FORMS, Row};
use measure::{Extent, measure};
use network::Place;
use scenario::{SCENARIOS, Scenario, Subject, Traffic};
use trial::Bench;

/// Measures throughput, latency and loss of XDP programs under traffic, as the K2 paper's Tables 2 and 3 and its Appendix H do, between two
/// network namespaces of this machine. Two processors are needed, and the right to load programs; nothing outside the namespaces is
/// touched.
#[derive(Parser)]
struct Args {
    /// The document whose tables are written anew
    #[arg(default_value = "docs/results.md")]
    document: PathBuf,
    /// The program `bpf-opt`
    #[arg(long, default_value = "target/release/bpf-opt")]
    bin: PathBuf,
    /// The folder of the benchmark's objects
    #[arg(long, default_value = "../shared/bench")]
    bench: PathBuf,
    /// Only these programs, by the names in the tables
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Milliseconds of a window
    #[arg(long, default_value_t = 100)]
    window: u64,
    /// Windows of each form at each load
    #[arg(long, default_value_t = 9)]
    windows: usize,
    /// Loads of a curve
    #[arg(long, default_value_t = 10)]
    loads: usize,
    /// Seconds of search for each object, and for its inputs
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

/// Whether all programs could be measured.
fn run(args: &Args) -> Result<bool, String> {
    if let Permission::No(why) = bpf_kernel::permitted() {
        return Err(format!("bpf() is not permitted: {why}"));
    }
    let known: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--only {unknown}: there are {}", known.join(", ")));
    }
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|s| args.only.is_empty() || args.only.iter().any(|name| name == s.name)).collect();
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for (i, scenario) in chosen.iter().enumerate() {
        eprintln!("{}/{}: {}", i + 1, chosen.len(), scenario.name);
        // Namespaces belong to threads: each program has a thread of its own.
        let row = std::thread::scope(|scope| {
            scope.spawn(|| one(args, scenario)).join().unwrap_or_else(|_| Err("a fault of the load test itself".into()))
        });
        match row {
            Ok(row) => {
                rows.push(row);
                // Whoever ends it keeps what has been measured.
                document::write(&args.document, &machine(args), &rows, &missing)?;
            }
            Err(why) => {
                eprintln!("left out: {}: {why}", scenario.name);
                missing.push(format!("{}: {why}", scenario.name));
            }
        }
    }
    if rows.is_empty() {
        return Err("nothing could be measured".into());
    }
    document::write(&args.document, &machine(args), &rows, &missing)?;
    Ok(missing.is_empty())
}

/// One program, in namespaces of its own.
fn one(args: &Args, scenario: &Scenario) -> Result<Row, String> {
    let path = args.bench.join(scenario.object);
    let original = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let better = optimized(args, &path)?;
    let place = Place::new()?;
    let subjects = |traffic: &Traffic| -> Result<Vec<Subject>, String> {
        [&original, &better, &original].into_iter().map(|bytes| Subject::load(bytes, traffic)).collect()
    };
    let mut chosen = None;
    for traffic in scenario.traffic(&path, &args.bin, args.seconds)? {
        let loaded = subjects(&traffic)?;
        if loaded[0].comes_back() || scenario.source != scenario::Source::Found {
            chosen = Some((traffic, loaded));
            break;
        }
    }
    let (traffic, subjects) = chosen.ok_or("no input was found with which the packet comes back")?;
    let first = &subjects[0];
    if let Some((form, _)) =
        FORMS.iter().zip(&subjects).find(|(_, s)| (s.verdict, s.stamp_back) != (first.verdict, first.stamp_back))
    {
        return Err(format!("{form} does otherwise than the original"));
    }
    let fds: Vec<BorrowedFd<'_>> = subjects
        .iter()
        .map(|s| s.object.program_fd(&s.program))
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    let stamps = (traffic.packet.stamp, first.stamp_back.unwrap_or(traffic.packet.stamp));
    let bench = Bench::new(place, &traffic.packet.bytes, stamps, fds[0])?;
    let extent =
        Extent { window: Duration::from_millis(args.window), windows: args.windows.max(1), loads: args.loads.max(1) };
    let measured = measure(&bench, &fds, first.comes_back(), extent)?;
    let slots = |i: usize| subjects[i].object.programs().first().map_or(0, |p| p.slots);
    Ok(Row {
        name: scenario.name.to_owned(),
        verdict: first.verdict,
        slots: (slots(0), slots(1)),
        bytes: traffic.packet.bytes.len(),
        comes_back: first.comes_back(),
        paper: scenario.paper,
        measured,
    })
}

fn optimized(args: &Args, path: &Path) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let out = folder.path().join("out.o");
    let mut command = Command::new(&args.bin);
    command.arg("opt").arg(path).arg("-o").arg(&out).args(["--goal", "latency", "--no-cache", "-q"]);
    command.args(["--time-limit", &args.seconds.to_string()]);
    let output = command.output().map_err(|e| format!("{}: {e} (`make build` makes it)", args.bin.display()))?;
    if !output.status.success() {
        return Err(format!("bpf-opt opt: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::read(&out).map_err(|e| e.to_string())
}

fn machine(args: &Args) -> String {
    let name = bpf_kernel::processor().unwrap_or_default();
    let date = Command::new("date").args(["-u", "+%F"]).output().map(|o| o.stdout).unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "Measured on {} by `make load-tests`: {name}, Linux {}, load {} at the end; {} windows of {} ms of each form at each load, search of \
         at most {} s an object.",
        String::from_utf8_lossy(&date).trim(),
        bpf_kernel::release(),
        load.split_whitespace().next().unwrap_or("unknown"),
        args.windows,
        args.window,
        args.seconds
    )
}
