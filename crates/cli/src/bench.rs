//! `bpf-opt bench`: how long objects take in the running kernel, beside each other.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bpf_driver::timing::{self, Bounded, Call, Program, Settings, Timed, TimingError};
use bpf_kernel::{KernelError, in_private_network, permitted};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::counts;
use crate::document::Head;
use crate::elements;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::packets;
use crate::progress::Programs;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    objects: &'a [PathBuf],
    kernel: String,
    seed: u64,
    programs: &'a [Program],
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl<'a> Document<'a> {
    /// On objects for which this came about.
    pub fn new(
        args: &BenchArgs,
        objects: &'a [PathBuf],
        exit_status: u8,
        outcome: Result<&'a [Program], &'a Failure>,
        seconds: Option<f64>,
    ) -> Document<'a> {
        Document {
            head: Head::new("bench", exit_status, outcome.err()),
            objects,
            kernel: bpf_kernel::release(),
            seed: args.seed,
            programs: outcome.unwrap_or_default(),
            seconds,
        }
    }
}

/// Runs the command on objects that are timed beside each other.
pub fn run(args: &BenchArgs) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut inputs: Vec<&Path> = args.objects.iter().map(PathBuf::as_path).collect();
    inputs.extend(args.pcap.iter().chain(&args.maps).chain(&args.inputs_from).map(PathBuf::as_path));
    let json = Destination::of_report(args.json.as_deref(), &inputs)?;
    let csv = Destination::of_report(args.csv.as_deref(), &inputs)?;
    let programs = measured(args, &args.objects, true);
    let code = exit_code(args, programs.as_deref());
    if let Some(json) = &json {
        let seconds = Some(started.elapsed().as_secs_f64());
        files::write_json(json, &Document::new(args, &args.objects, code, programs.as_deref(), seconds))?;
    }
    let programs = programs?;
    if let Some(csv) = &csv {
        csv.write(table(&programs, &args.objects).as_bytes(), None)?;
    }
    if ![&json, &csv].iter().any(|d| matches!(d, Some(Destination::Stdout))) {
        files::print(&text(&programs, &args.objects))?;
    }
    Ok(code)
}

/// The exit code for objects that were timed beside each other.
pub fn exit_code(args: &BenchArgs, outcome: Result<&[Program], &Failure>) -> u8 {
    match outcome {
        Ok(programs) if programs.iter().all(|p| p.classes.is_empty()) => exit::UNKNOWN,
        Ok(programs) if is_too_slow(programs, args.fail_if_slower) => exit::NO,
        Ok(_) => exit::YES,
        Err(failure) => failure.code,
    }
}

/// Times objects beside each other, with a bar if it is to be shown.
pub fn measured(args: &BenchArgs, objects: &[PathBuf], shown: bool) -> Result<Vec<Program>, Failure> {
    let packets = match (&args.packet, &args.pcap) {
        (Some(digits), _) => {
            Some(vec![packets::hex(digits).map_err(|e| Failure::bad_input(format!("--packet: {e}")))?])
        }
        (None, Some(path)) => Some(packets::capture(path)?),
        (None, None) => None,
    };
    let maps = args.maps.as_deref().map(elements::by_map).transpose()?.unwrap_or_default();
    let given = args.inputs_from.as_deref().map(counts::inputs).transpose()?;
    let settings = Settings {
        given: given.map(counts::possible),
        program_type: args.program_type.clone(),
        only: args.program.clone(),
        allow_effects: args.allow_effects,
        packets,
        maps,
        seed: args.seed,
        loads: args.loads.into(),
        rounds: args.rounds.into(),
        serialized: !args.back_to_back,
        ..Settings::default()
    };
    timed(objects, &settings, shown)
}

/// Times objects beside each other by these settings.
pub fn timed(objects: &[PathBuf], settings: &Settings, shown: bool) -> Result<Vec<Program>, Failure> {
    let bytes = objects.iter().map(|path| files::read(path)).collect::<Result<Vec<_>, _>>()?;
    for (path, bytes) in objects.iter().zip(&bytes) {
        let object = bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
        Failure::unless_for_this_kernel(path, &object)?;
    }
    permitted().require().map_err(|e| Failure::kernel(&objects[0], &e))?;
    let bar = if shown { Programs::bar() } else { Programs::hidden() };
    let contents: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    let mut progress = |done: usize, of: usize| bar.tell(done, of);
    // Loaded there, too: maps of devices belong to the network they are made in.
    let timed = in_private_network(|| timing::time(&contents, settings, &mut progress));
    bar.finish();
    let timed = timed.map_err(|e| {
        let reason = format!("no network namespace for the runs: {e}");
        Failure::kernel(&objects[0], &KernelError::NotPermitted { reason })
    })?;
    let programs = timed.map_err(|e| match e {
        TimingError::Load { object, source } => Failure::kernel(&objects[object], &source.source),
        TimingError::Unreadable { object } => Failure::bad_input(format!("{}: {e}", objects[object].display())),
        TimingError::Maps(text) => Failure::bad_input(text),
    })?;
    if let Some(name) = settings.only.iter().find(|name| !programs.iter().any(|p| p.name == **name)) {
        let known = programs.iter().map(|p| p.name.as_str());
        return Err(Failure::no_such_program(&objects[0], name, known));
    }
    Ok(programs)
}

/// Whether an object is slower than the first by more than this share, over all inputs of a program.
fn is_too_slow(programs: &[Program], most: Option<f64>) -> bool {
    let Some(most) = most else { return false };
    let all = programs.iter().filter_map(|p| p.classes.first()).flat_map(|class| &class.objects);
    all.into_iter().any(|timed| {
        timed.call == Call::Slower && timed.comparison.ratio.is_none_or(|ratio| ratio.value > 1.0 + most / 100.0)
    })
}

/// What a class is called.
fn class_name(returns: Option<u32>) -> String {
    returns.map_or_else(|| "all".to_owned(), |returns| format!("returns {}", returns.cast_signed()))
}

fn text(programs: &[Program], objects: &[PathBuf]) -> String {
    let mut out = String::new();
    let width = objects.iter().map(|path| path.display().to_string().len()).max().unwrap_or(0).max(18);
    for program in programs {
        if let Some(why) = &program.skipped {
            let _ = writeln!(out, "{}: not timed: {why}", program.name);
            continue;
        }
        let how = if program.serialized { "each run after the end of the one before" } else { "overlapping runs" };
        let _ = writeln!(out, "{} ({}), {how}", program.name, program.kind);
        let _ = writeln!(out, "  {:width$}  {:>6} {:>9} {:>7} {:>8}", "", "slots", "verified", "bytes", "load ms");
        for (path, facts) in objects.iter().zip(&program.facts) {
            let _ = writeln!(
                out,
                "  {:width$}  {:>6} {:>9} {:>7} {:>8.2}",
                path.display().to_string(),
                facts.slots,
                facts.verified,
                facts.jited_bytes,
                facts.load_ms
            );
        }
        for class in &program.classes {
            let inputs = if class.inputs == 1 { "input" } else { "inputs" };
            let _ = writeln!(
                out,
                "  {}, {} {inputs}; an empty program takes {:.1} ns",
                class_name(class.returns),
                class.inputs,
                class.empty_ns
            );
            for (path, timed) in objects.iter().zip(&class.objects) {
                let _ =
                    writeln!(out, "    {:width$}  {}", path.display().to_string(), line(timed, path == &objects[0]));
            }
            let _ = writeln!(out, "    {:width$}  {}", "the first again", line(&class.again, false));
        }
        if program.differ > 0 {
            let _ = writeln!(
                out,
                "  left out: {} inputs for which an object returns something else than the first",
                program.differ
            );
        }
    }
    out
}

/// Times in words.
fn line(timed: &Timed, is_first: bool) -> String {
    let Timed { ns, cycles, comparison, call } = timed;
    let cycles = cycles.map_or_else(String::new, |cycles| format!("  {:7.1} cycles", cycles.middle));
    let times = format!("{:7.1} ns [{:.1}, {:.1}]{cycles}", ns.middle, ns.lower_quartile, ns.upper_quartile);
    if is_first {
        return times;
    }
    let said = match call {
        Call::Faster => "faster",
        Call::Slower => "slower",
        Call::Noise => "no difference beyond noise",
    };
    let compared = match (&comparison.ratio, &comparison.difference_ns) {
        (Some(Bounded { value, low, high }), _) => format!("{value:.3} [{low:.3}, {high:.3}]"),
        (None, Bounded { value, low, high }) => format!("{value:+.1} ns [{low:+.1}, {high:+.1}]"),
    };
    format!("{times}  {compared}  {said}")
}

/// The same as a table for other programs.
fn table(programs: &[Program], objects: &[PathBuf]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out = "program,class,inputs,object,ns,lower_quartile,upper_quartile,ratio,low,high,difference_ns,difference_low,difference_high,call,cycles\n".to_owned();
    for program in programs {
        for class in &program.classes {
            let again = quoted("the first again");
            let named = objects.iter().map(|path| quoted(&path.display().to_string())).zip(&class.objects);
            for (name, Timed { ns, cycles, comparison, call }) in named.chain([(again, &class.again)]) {
                let call = match call {
                    Call::Faster => "faster",
                    Call::Slower => "slower",
                    Call::Noise => "noise",
                };
                let ratio = comparison.ratio.map_or_else(
                    || ",,".to_owned(),
                    |Bounded { value, low, high }| format!("{value:.4},{low:.4},{high:.4}"),
                );
                let Bounded { value, low, high } = comparison.difference_ns;
                let difference = format!("{value:.2},{low:.2},{high:.2}");
                let (program, class_name, inputs) = (quoted(&program.name), class_name(class.returns), class.inputs);
                let times = format!("{:.2},{:.2},{:.2}", ns.middle, ns.lower_quartile, ns.upper_quartile);
                let cycles = cycles.map_or_else(String::new, |cycles| format!("{:.2}", cycles.middle));
                let _ = writeln!(
                    out,
                    "{program},{class_name},{inputs},{name},{times},{ratio},{difference},{call},{cycles}"
                );
            }
        }
    }
    out
}
