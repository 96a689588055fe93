//! Do optimized objects load in the running kernel and in others, wherever the originals do? Asked from outside, with the tool
//! as its users have it.
//!
//! A result is kept under the hash of all that it hangs on: the tool, the options and the object. So none of another build
//! is measured. A question without an answer is an error, and never counts as nothing lost.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_bench::{finish, objects};
use clap::Parser;
use serde_json::Value;

/// Optimizes objects, loads originals and results in the running kernel and in others (one boot for each), and counts: the
/// table of docs/kernels.md, as Markdown.
#[derive(Parser)]
struct Args {
    /// Directories with objects, or objects
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The tool
    #[arg(long, default_value = "target/release/bpf-opt")]
    bin: PathBuf,
    /// The kernels beside the running one, as `bpf-opt kernels load` names them
    #[arg(long, required = true)]
    kernels: String,
    /// Do not ask the running kernel
    #[arg(long)]
    no_running: bool,
    /// Where results are kept; what the same tool has made of the same object with the same options is not made again
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

/// What a kernel says of all objects: of each pair the original, then the result.
struct Answers {
    release: String,
    objects: Vec<Value>,
}

#[derive(Default)]
struct Counts {
    programs: usize,
    originals: usize,
    results: usize,
    processed: [u64; 2],
}

/// What there is to complain about.
#[derive(Default)]
struct Remarks {
    /// Programs that are no longer accepted, and objects that no longer load.
    lost: Vec<String>,
    /// Questions without an answer.
    unanswered: Vec<String>,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    finish(|| run(&args))
}

fn run(args: &Args) -> Result<(), String> {
    let tool = read(&args.bin)?;
    let mut pairs = Vec::new();
    for dir in &args.paths {
        let place = dir.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let found = if dir.is_dir() { objects(dir) } else { vec![dir.clone()] };
        for before in found {
            let name = before.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let hash = hash(&[&tool, args.options.as_bytes(), &read(&before)?]);
            let after = args.results.join(&place).join(format!("{hash:016x}-{name}"));
            if optimized(args, &before, &after)? {
                pairs.push(Pair { name: format!("{place}/{name}"), before, after });
            }
        }
    }
    if pairs.is_empty() {
        return Err("none of these objects could be optimized".to_owned());
    }
    let mut kernels = other_kernels(args, &pairs)?;
    if !args.no_running {
        kernels.push(running_kernel(args, &pairs)?);
    }

    println!("| kernel | options | programs | originals load | results load of these | instructions verified | lost |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let mut remarks = Remarks::default();
    for Answers { release, objects } in &kernels {
        let (mut counts, so_far) = (Counts::default(), remarks.lost.len());
        for (pair, answers) in pairs.iter().zip(objects.chunks_exact(2)) {
            count(release, pair, &answers[0], &answers[1], &mut counts, &mut remarks);
        }
        let Counts { programs, originals, results, processed: [before, after] } = counts;
        println!(
            "| {release} | `{}` | {programs} | {originals} | {results} | {} -> {} | {} |",
            args.options,
            grouped(before),
            grouped(after),
            remarks.lost.len() - so_far
        );
    }
    let Remarks { lost, unanswered } = remarks;
    lost.iter().chain(&unanswered).for_each(|line| println!("{line}"));
    match (lost.len(), unanswered.len()) {
        (0, 0) => Ok(()),
        (lost, unanswered) => Err(format!("{lost} no longer load, {unanswered} questions without an answer")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Runs the tool on all objects, and gives the report that it writes.
fn asked(args: &Args, words: &[&str], pairs: &[Pair]) -> Result<Value, String> {
    let report = args.results.join("report.json");
    // One of an earlier run is no answer.
    if report.exists() {
        fs::remove_file(&report).map_err(|e| format!("{}: {e}", report.display()))?;
    }
    let mut command = Command::new(&args.bin);
    command.args(words).arg("--json").arg(&report).args(pairs.iter().flat_map(|p| [&p.before, &p.after]));
    let output = command.output().map_err(|e| format!("{}: {e}", args.bin.display()))?;
    // With 3, the report says which questions have no answer.
    if !matches!(output.status.code(), Some(0 | 1 | 3)) || !report.exists() {
        return Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&read(&report)?).map_err(|e| format!("{}: {e}", report.display()))
}

/// An answer for each object, or none is to be believed.
fn complete(release: &Value, objects: &[Value], pairs: &[Pair]) -> Result<Answers, String> {
    let release = release.as_str().unwrap_or_default().to_owned();
    if release.is_empty() || objects.len() != 2 * pairs.len() {
        return Err(format!("{release}: {} answers about {} objects", objects.len(), 2 * pairs.len()));
    }
    Ok(Answers { release, objects: objects.to_vec() })
}

fn other_kernels(args: &Args, pairs: &[Pair]) -> Result<Vec<Answers>, String> {
    let seconds = args.seconds.to_string();
    let words = ["kernels", "load", "--kernels", &args.kernels, "--time-limit", &seconds];
    let report = asked(args, &words, pairs)?;
    array(&report["kernels"]).iter().map(|k| complete(&k["release"], array(&k["objects"]), pairs)).collect()
}

fn running_kernel(args: &Args, pairs: &[Pair]) -> Result<Answers, String> {
    let report = asked(args, &["load"], pairs)?;
    let objects = array(&report["reports"]);
    complete(objects.first().map_or(&Value::Null, |first| &first["kernel"]), objects, pairs)
}

/// Whether there is a result of an object; what the tool does not take as an input has none.
fn optimized(args: &Args, before: &Path, after: &Path) -> Result<bool, String> {
    if after.exists() {
        return Ok(true);
    }
    let folder = after.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
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
        _ => {
            // What an interruption leaves is not what the options ask for.
            let _ = fs::remove_file(after);
            Err(format!("{}: {}", before.display(), String::from_utf8_lossy(&output.stderr)))
        }
    }
}

/// Why there is no answer about an object, or about one of its programs.
fn unanswered(answer: &Value) -> Option<String> {
    // The kernel had neither memory nor descriptors, or no time: `is_open` of cli/src/load.rs.
    let is_open = |p: &&Value| p["verdict"].as_str().is_none_or(|verdict| verdict.starts_with("out of "));
    let open = array(&answer["programs"]).iter().find(is_open).map(|p| format!("{}: {}", p["name"], p["verdict"]));
    answer["error"].as_str().map(str::to_owned).or(open)
}

/// Counts what a kernel says of an object before and after, and names what it no longer takes.
fn count(release: &str, pair: &Pair, before: &Value, after: &Value, counts: &mut Counts, remarks: &mut Remarks) {
    let said = [("original", before), ("result", after)];
    let open = said.iter().filter_map(|(which, answer)| Some((which, unanswered(answer)?)));
    remarks.unanswered.extend(open.map(|(which, why)| format!("{release}: {}, {which}: {why}", pair.name)));
    // Each program may be accepted by itself where the object as a whole is not.
    if before["not_loadable"].is_null() && !after["not_loadable"].is_null() {
        remarks.lost.push(format!("{release}: {}: {}", pair.name, after["not_loadable"]));
    }
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
                let program = old["name"].as_str().unwrap_or_default();
                remarks.lost.push(format!("{release}: {}: {program}: {why}", pair.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is lost, and what has no answer, where a kernel says this of an original and its result.
    fn remarks(before: &Value, after: &Value) -> (usize, usize) {
        let pair = Pair { name: "a.o".to_owned(), before: PathBuf::new(), after: PathBuf::new() };
        let mut remarks = Remarks::default();
        count("6.1", &pair, before, after, &mut Counts::default(), &mut remarks);
        (remarks.lost.len(), remarks.unanswered.len())
    }

    fn answer(verdict: &str) -> Value {
        let program = json!({ "name": "p", "section": "xdp", "verdict": verdict });
        json!({ "error": null, "not_loadable": null, "programs": [program] })
    }

    #[test]
    fn what_has_no_answer_is_not_counted_as_nothing_lost() {
        let none = json!({ "error": "it did not answer", "not_loadable": null, "programs": [] });
        let [good, bad, open] = ["accepted", "rejected", "out of time"].map(answer);
        assert_eq!(remarks(&good, &good), (0, 0));
        assert_eq!(remarks(&good, &bad), (1, 0));
        assert_eq!(remarks(&bad, &bad), (0, 0));
        assert_eq!(remarks(&none, &good), (0, 1));
        assert_eq!(remarks(&none, &none), (0, 2));
        assert_eq!(remarks(&good, &none), (1, 1));
        assert_eq!(remarks(&open, &good), (0, 1));
        let whole = json!({ "not_loadable": "map m", "programs": good["programs"] });
        assert_eq!(remarks(&good, &whole), (1, 0));
        assert_eq!(remarks(&whole, &whole), (0, 0));
    }

    #[test]
    fn a_result_of_another_tool_or_object_has_another_name() {
        let of =
            |tool: &str, options: &str, object: &str| hash(&[tool.as_bytes(), options.as_bytes(), object.as_bytes()]);
        assert_eq!(of("tool", "-O2", "object"), of("tool", "-O2", "object"));
        for other in [of("tooL", "-O2", "object"), of("tool", "-O1", "object"), of("tool", "-O2", "objecT")] {
            assert_ne!(other, of("tool", "-O2", "object"));
        }
        assert_ne!(of("a", "bc", ""), of("ab", "c", ""));
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
