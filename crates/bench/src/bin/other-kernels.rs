//! Do optimized objects load in other kernels wherever the originals do? Asked from outside, with the tool as its users have it.

use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_bench::{finish, objects};
use clap::Parser;
use serde_json::Value;

/// Optimizes objects, loads originals and results in other kernels (one boot for each), and counts.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The tool
    #[arg(long, default_value = "target/release/bpf-opt")]
    bin: PathBuf,
    /// The kernels, as `bpf-opt kernels load` names them
    #[arg(long, required = true)]
    kernels: String,
    /// Where results are kept; one that is there is not made again
    #[arg(long)]
    results: PathBuf,
    /// How objects are optimized
    #[arg(long, default_value = "-O2 --time-limit 10", allow_hyphen_values = true)]
    options: String,
    /// Seconds for a kernel
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// An object before and after.
struct Pair {
    name: String,
    before: PathBuf,
    after: PathBuf,
}

#[derive(Default)]
struct Counts {
    programs: usize,
    originals: usize,
    results: usize,
    processed: [u64; 2],
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let mut pairs = Vec::new();
    for dir in &args.paths {
        let place = dir.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let found = if dir.is_dir() { objects(dir) } else { vec![dir.clone()] };
        for before in found {
            let name = before.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let after = args.results.join(&place).join(&name);
            if optimized(args, &before, &after)? {
                pairs.push(Pair { name: format!("{place}/{name}"), before, after });
            }
        }
    }
    let report = args.results.join("kernels.json");
    let mut load = Command::new(&args.bin);
    load.args(["kernels", "load", "--kernels", &args.kernels, "--time-limit", &args.seconds.to_string(), "--json"])
        .arg(&report)
        .args(pairs.iter().flat_map(|p| [&p.before, &p.after]));
    let output = load.output().map_err(|e| format!("{}: {e}", args.bin.display()))?;
    if !matches!(output.status.code(), Some(0 | 1 | 3)) || !report.exists() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = std::fs::read(&report).map_err(|e| format!("{}: {e}", report.display()))?;
    let report: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;

    println!("| kernel | programs | originals load | results load of these | instructions verified | lost |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut lost = Vec::new();
    for kernel in array(&report["kernels"]) {
        let (mut counts, so_far) = (Counts::default(), lost.len());
        let release = kernel["release"].as_str().unwrap_or_default();
        for (pair, answers) in pairs.iter().zip(array(&kernel["objects"]).chunks_exact(2)) {
            lost.extend(
                count(pair, &answers[0], &answers[1], &mut counts).into_iter().map(|l| format!("{release}: {l}")),
            );
        }
        let Counts { programs, originals, results, processed: [before, after] } = counts;
        println!(
            "| {release} | {programs} | {originals} | {results} | {before} -> {after} | {} |",
            lost.len() - so_far
        );
    }
    lost.iter().for_each(|line| println!("{line}"));
    if lost.is_empty() { Ok(()) } else { Err(format!("{} programs no longer load", lost.len())) }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Whether there is a result of an object; what the tool does not take as an input has none.
fn optimized(args: &Args, before: &Path, after: &Path) -> Result<bool, String> {
    if after.exists() {
        return Ok(true);
    }
    let folder = after.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut opt = Command::new(&args.bin);
    opt.arg("opt")
        .arg(before)
        .arg("-o")
        .arg(after)
        .args(["--jobs", "1", "--no-cache"])
        .args(args.options.split_whitespace());
    let output = opt.output().map_err(|e| format!("{}: {e}", args.bin.display()))?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(2) => Ok(false),
        _ => Err(format!("{}: {}", before.display(), String::from_utf8_lossy(&output.stderr))),
    }
}

/// Counts what a kernel says of an object before and after, and names what it no longer takes.
fn count(pair: &Pair, before: &Value, after: &Value, counts: &mut Counts) -> Vec<String> {
    let mut lost = Vec::new();
    let key = |p: &Value| (p["name"].clone(), p["section"].clone());
    for old in array(&before["programs"]) {
        counts.programs += 1;
        if old["verdict"] != "accepted" {
            continue;
        }
        counts.originals += 1;
        let new = array(&after["programs"]).iter().find(|p| key(p) == key(old));
        match new.filter(|p| p["verdict"] == "accepted") {
            Some(new) => {
                counts.results += 1;
                let processed = [old, new].map(|p| p["processed"].as_u64().unwrap_or(0));
                for (sum, of) in counts.processed.iter_mut().zip(processed) {
                    *sum += of;
                }
            }
            None => {
                let why = new.map_or(&after["error"], |p| &p["reason"]);
                lost.push(format!("{}: {}: {}", pair.name, old["name"].as_str().unwrap_or_default(), why));
            }
        }
    }
    lost
}
