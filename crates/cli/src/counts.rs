//! How often the parts of an object run, for `--goal latency`: counted in the interpreter, or read from a file.

pub mod args;

use std::collections::BTreeMap;
use std::path::Path;

use bpf_driver::counting::{self, Counted, MOST_PACKETS};
use bpf_driver::counts::{Counts, Traffic};
use bpf_driver::inputs::{FoundInput, Input};
use serde::{Deserialize, Serialize};

use crate::elements;
use crate::failure::Failure;
use crate::files::{self, Destination};
use crate::packets;
use args::CountsArgs;

/// A file of counts; docs/json.md describes it.
#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    tool: String,
    #[serde(flatten)]
    counts: Counts,
}

/// The version of such files.
const FORMAT: u32 = 1;
const TOOL: &str = "bpf-opt counts";

/// What these options give.
pub struct Found {
    /// The counts.
    pub counts: Counts,
    /// What was run, if anything was.
    pub traffic: Option<Traffic>,
    /// Notes on how they came about.
    pub notes: Vec<String>,
}

/// The counts of an object that these options give, if any.
pub fn of(
    args: &CountsArgs,
    maps: Option<&Path>,
    object: &[u8],
    program_type: Option<&str>,
    path: &Path,
) -> Result<Option<Found>, Failure> {
    let driver = |e: bpf_driver::DriverError| Failure::driver(path, &e);
    let (counted, traffic) = match (&args.pcap, &args.inputs_from, &args.counts) {
        (Some(pcap), ..) => {
            let packets = packets::capture(pcap)?;
            let maps = maps.map(elements::by_map).transpose()?.unwrap_or_default();
            known_maps(object, &maps, path)?;
            let mut counted = counting::of_packets(object, &packets, &maps, &[]).map_err(driver)?;
            if packets.len() > MOST_PACKETS {
                counted
                    .not_run
                    .push((format!("{}", pcap.display()), format!("only the first {MOST_PACKETS} packets count")));
            }
            (counted, Traffic { packets, maps, inputs: None })
        }
        (_, Some(file), _) => {
            let given = inputs(file)?;
            let all = |all: &Vec<Given>| all.iter().map(|i| i.input.clone()).collect();
            let all = given.iter().map(|(name, of_program)| (name.clone(), all(of_program))).collect();
            let counted = counting::of_inputs(object, &all, program_type, &[]).map_err(driver)?;
            (counted, Traffic { inputs: Some(possible(given)), ..Traffic::default() })
        }
        (.., Some(file)) => {
            let counts = read(file)?;
            counts.check(object).map_err(|e| {
                Failure::bad_input(format!("{}: these counts do not fit {}: {e}", file.display(), path.display()))
                    .with_hint("count again with this object: `--pcap`, or `bpf-opt instrument`")
            })?;
            return Ok(Some(Found { counts, traffic: None, notes: Vec::new() }));
        }
        (None, None, None) => return Ok(None),
    };
    if let Some(to) = &args.write_counts {
        write(&counted.counts, &Destination::or_stdout(to)?)?;
    }
    let notes = notes(&counted);
    Ok(Some(Found { counts: counted.counts, traffic: Some(traffic), notes }))
}

/// Whether the object has the maps whose contents are given.
fn known_maps(object: &[u8], maps: &BTreeMap<String, Vec<elements::Element>>, path: &Path) -> Result<(), Failure> {
    let object = bpf_object::Object::parse(object.to_vec()).map_err(|e| Failure::object(path, &e))?;
    let has = |name: &String| object.maps().iter().any(|m| m.name == *name);
    match maps.keys().find(|name| !has(name)) {
        Some(name) => {
            Err(Failure::bad_input(format!("{}: it has no map {name} that could hold elements", path.display())))
        }
        None => Ok(()),
    }
}

/// What people should know of it.
fn notes(counted: &Counted) -> Vec<String> {
    let faults = counted
        .faults
        .iter()
        .map(|(name, n, why)| format!("{name}: {n} of the runs that were counted ended early: {why}"));
    let not_run = counted.not_run.iter().map(|(name, why)| format!("{name}: not counted, so guessed: {why}"));
    faults.chain(not_run).collect()
}

/// Reads a file of counts.
fn read(path: &Path) -> Result<Counts, Failure> {
    let hint = "such files are written by `bpf-opt instrument --read` and `--write-counts`";
    let wrong =
        |why: String| Failure::bad_input(format!("{}: no file of counts: {why}", path.display())).with_hint(hint);
    let file: File = serde_json::from_slice(&files::read(path)?).map_err(|e| wrong(e.to_string()))?;
    if (file.format, file.tool.as_str()) != (FORMAT, TOOL) {
        return Err(wrong(format!("it is `{}` of format {}", file.tool, file.format)));
    }
    Ok(file.counts)
}

/// Writes counts to a file.
pub fn write(counts: &Counts, to: &Destination) -> Result<(), Failure> {
    files::write_json(to, &File { format: FORMAT, tool: TOOL.to_owned(), counts: counts.clone() })
}

/// What of a report of `profile --prog-id` is read again.
#[derive(Deserialize)]
struct ProgramRuns {
    runs: Vec<RunsOf>,
}

#[derive(Deserialize)]
struct RunsOf {
    name: String,
    runs: u64,
}

/// How often programs of an object run, by their names, of which the kernel keeps the beginning.
pub fn program_runs(args: &CountsArgs, object: &[u8], path: &Path) -> Result<BTreeMap<String, u64>, Failure> {
    let Some(file) = &args.program_runs else { return Ok(BTreeMap::new()) };
    let wrong = |why: String| {
        Failure::bad_input(format!("{}: no report of runs: {why}", file.display()))
            .with_hint("such files are written by `bpf-opt profile --prog-id N --json FILE`")
    };
    let report: ProgramRuns = serde_json::from_slice(&files::read(file)?).map_err(|e| wrong(e.to_string()))?;
    let object = bpf_object::Object::parse(object.to_vec()).map_err(|e| Failure::object(path, &e))?;
    let mut all = BTreeMap::new();
    for RunsOf { name, runs } in report.runs {
        let is_it =
            |f: &&bpf_object::Function| f.name.as_bytes().get(..KEPT).unwrap_or(f.name.as_bytes()) == name.as_bytes();
        let mut found = object.functions().iter().filter(|f| f.kind == bpf_object::FuncKind::Program).filter(is_it);
        match (found.next(), found.next()) {
            (Some(f), None) => *all.entry(f.name.clone()).or_insert(0) += runs,
            (None, _) => return Err(wrong(format!("{} has no program {name}", path.display()))),
            (Some(_), Some(_)) => {
                return Err(wrong(format!("{} has several programs whose names begin with {name}", path.display())));
            }
        }
    }
    Ok(all)
}

/// Bytes that the kernel keeps of a program's name.
const KEPT: usize = 15;

/// What of a report of `inputs` is read again.
#[derive(Deserialize)]
struct Inputs {
    programs: Vec<OfProgram>,
}

#[derive(Deserialize)]
struct OfProgram {
    name: String,
    inputs: Vec<FoundInput>,
}

/// An input of a report.
pub struct Given {
    /// It.
    pub input: Input,
    /// No test run can do the same.
    pub made_up: bool,
}

/// Those of such a report that a test run can make, by program.
pub fn possible(given: BTreeMap<String, Vec<Given>>) -> BTreeMap<String, Vec<Input>> {
    let of = |all: Vec<Given>| all.into_iter().filter(|i| !i.made_up).map(|i| i.input).collect();
    given.into_iter().map(|(name, all)| (name, of(all))).collect()
}

/// The inputs of such a report, by program.
pub fn inputs(path: &Path) -> Result<BTreeMap<String, Vec<Given>>, Failure> {
    let wrong = |why: String| {
        Failure::bad_input(format!("{}: no report of inputs: {why}", path.display()))
            .with_hint("such files are written by `bpf-opt inputs --json FILE`")
    };
    let report: Inputs = serde_json::from_slice(&files::read(path)?).map_err(|e| wrong(e.to_string()))?;
    let of = |p: OfProgram| {
        let given = p.inputs.iter().map(|i| Ok(Given { input: i.read()?, made_up: i.made_up }));
        Ok((p.name, given.collect::<Result<_, String>>()?))
    };
    report.programs.into_iter().map(of).collect::<Result<_, String>>().map_err(wrong)
}
