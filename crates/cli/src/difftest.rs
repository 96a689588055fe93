//! `bpf-opt difftest`: two objects in the running kernel, on the same packets.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bpf_driver::difftest::{Difference, Filled, Pair, Random, Round, Setup};
use bpf_driver::inputs::filled;
use bpf_kernel::{KernelError, in_private_network, permitted};
use bpf_object::FuncKind;
use serde::Serialize;

use crate::args::DifftestArgs;
use crate::counts;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::packets;

/// Packets between two fillings of the maps.
const ROUND: u64 = 100;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    a: &'a Path,
    b: &'a Path,
    kernel: String,
    seed: u64,
    programs: &'a [Tested],
    skipped: Vec<Skipped<'a>>,
    maps_left_alone: &'a [String],
    seconds: f64,
}

#[derive(Serialize)]
struct Skipped<'a> {
    name: &'a str,
    reason: &'a str,
}

/// What came of one program.
#[derive(Serialize)]
struct Tested {
    name: String,
    packets: u64,
    refused: u64,
    unsteady_rounds: u64,
    differed_once: u64,
    /// In words, a difference of which it could not be seen whether it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<String>,
    difference: Option<Difference>,
}

/// What came of the pair.
#[derive(Default)]
struct Outcome {
    programs: Vec<Tested>,
    skipped: Vec<(String, String)>,
    maps_left_alone: Vec<String>,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &DifftestArgs) -> Result<u8, Failure> {
    let inputs: Vec<&Path> = [args.a.as_path(), &args.b]
        .into_iter()
        .chain(args.pcap.as_deref())
        .chain(args.inputs_from.as_deref())
        .collect();
    let json = Destination::of_report(args.json.as_deref(), &inputs)?;
    let outcome = test(args);
    let code = match &outcome {
        Ok(outcome) => exit_code(&outcome.programs),
        Err(failure) => failure.code,
    };
    if let Some(json) = &json {
        let nothing = Outcome::default();
        let o = outcome.as_ref().unwrap_or(&nothing);
        let document = Document {
            head: Head::new("difftest", code, outcome.as_ref().err()),
            a: &args.a,
            b: &args.b,
            kernel: bpf_kernel::release(),
            seed: args.seed,
            programs: &o.programs,
            skipped: o.skipped.iter().map(|(name, reason)| Skipped { name, reason }).collect(),
            maps_left_alone: &o.maps_left_alone,
            seconds: o.seconds,
        };
        files::write_json(json, &document)?;
    }
    let outcome = outcome?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&outcome))?;
    }
    Ok(code)
}

fn test(args: &DifftestArgs) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let given = args.inputs_from.as_deref().map(counts::inputs).transpose()?;
    let source = args.pcap.as_deref().map(packets::capture).transpose()?;
    let bytes = [files::read(&args.a)?, files::read(&args.b)?];
    // A bad file is a bad file wherever one may ask the kernel.
    for (path, bytes) in [(&args.a, &bytes[0]), (&args.b, &bytes[1])] {
        let object = bpf_object::Object::parse(bytes.clone()).map_err(|e| Failure::object(path, &e))?;
        Failure::unless_for_this_kernel(path, &object)?;
        let programs = object.functions().iter().filter(|f| f.kind == FuncKind::Program).map(|f| f.name.as_str());
        let programs: Vec<&str> = programs.collect();
        if let Some(name) = args.program.iter().find(|n| !programs.contains(&n.as_str())) {
            return Err(Failure::no_such_program(path, name, programs.into_iter()));
        }
    }
    let given = given.map(|all| filled(&bytes[0], args.program_type.as_deref(), &counts::possible(all)));
    permitted().require().map_err(|e| Failure::kernel(&args.a, &e))?;
    // Loaded there, too: maps of devices belong to the network they are made in.
    in_private_network(|| compare(args, [&bytes[0], &bytes[1]], source.as_deref(), given.map(Arc::new)))
        .unwrap_or_else(|e| {
            let reason = format!("no network namespace for the runs: {e}");
            Err(Failure::kernel(&args.a, &KernelError::NotPermitted { reason }))
        })
        .map(|outcome| Outcome { seconds: started.elapsed().as_secs_f64(), ..outcome })
}

/// Runs all programs that are asked for and may be run.
fn compare(
    args: &DifftestArgs,
    [a, b]: [&[u8]; 2],
    source: Option<&[Vec<u8>]>,
    given: Option<Arc<BTreeMap<String, Vec<Filled>>>>,
) -> Result<Outcome, Failure> {
    let load = |only: Option<&String>| {
        let setup = Setup {
            program_type: args.program_type.clone(),
            only: only.cloned(),
            allow_effects: args.allow_effects,
            given: given.clone().unwrap_or_default(),
            ..Setup::default()
        };
        Pair::load(a, b, setup).map_err(|e| Failure::kernel(if e.second { &args.b } else { &args.a }, &e.source))
    };
    // Together they may call each other; what is not asked for need not load.
    let pairs = match load(None) {
        Ok(pair) => vec![pair],
        Err(failure) if args.program.is_empty() => return Err(failure),
        Err(_) => args.program.iter().map(|name| load(Some(name))).collect::<Result<_, _>>()?,
    };
    let wanted = |name: &str| args.program.is_empty() || args.program.iter().any(|p| p == name);
    let mut outcome = Outcome::default();
    for mut pair in pairs {
        let names: Vec<String> = pair.programs().filter(|n| wanted(n)).map(str::to_owned).collect();
        outcome.skipped.extend(pair.skipped.iter().filter(|(n, _)| wanted(n)).cloned());
        let is_new = |map: &&String| !outcome.maps_left_alone.contains(map);
        let new: Vec<String> = pair.maps_left_alone.iter().filter(is_new).cloned().collect();
        outcome.maps_left_alone.extend(new);
        for name in names {
            let round = match given {
                Some(_) => pair.on_given(&name),
                None => rounds(&mut pair, &name, args, source),
            };
            outcome.programs.push(tested(name, round));
        }
    }
    Ok(outcome)
}

/// Rounds until enough packets ran or something differs.
fn rounds(pair: &mut Pair, name: &str, args: &DifftestArgs, source: Option<&[Vec<u8>]>) -> Round {
    let mut all = Round::default();
    let mut left = args.packets;
    let mut skip = 0;
    while left > 0 && all.difference.is_none() {
        let n = left.min(ROUND);
        // A capture is gone through from beginning to end, again and again.
        let part = source.map(|s| s.iter().cycle().skip(skip % s.len()).take(n as usize).cloned().collect::<Vec<_>>());
        let mut random = Random::of(args.seed, args.packets - left);
        let round = pair.round(name, &mut random, n as usize, part.as_deref());
        all.add(round);
        left -= n;
        skip += n as usize;
    }
    all
}

fn tested(name: String, all: Round) -> Tested {
    Tested {
        name,
        packets: all.runs,
        refused: all.refused,
        unsteady_rounds: all.unsteady,
        differed_once: all.once,
        open: all.open.filter(|_| all.difference.is_none()),
        difference: all.difference,
    }
}

fn exit_code(programs: &[Tested]) -> u8 {
    if programs.iter().any(|p| p.difference.is_some()) {
        exit::NO
    } else if programs.iter().all(|p| p.packets == 0) || programs.iter().any(|p| p.open.is_some()) {
        exit::UNKNOWN
    } else {
        exit::YES
    }
}

fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for p in &outcome.programs {
        match &p.difference {
            Some(d) => {
                let _ = writeln!(text, "{}: different, packet {} of a round", p.name, d.number + 1);
                for what in &d.what {
                    let _ = writeln!(text, "    first and second: {what}");
                }
                let _ = writeln!(text, "    packet {}", d.packet);
                if let Some(context) = &d.context {
                    let _ = writeln!(text, "    context {context}");
                }
            }
            None if p.open.is_some() => {
                let open = p.open.as_deref().unwrap_or_default();
                let _ = writeln!(
                    text,
                    "{}: not known: once they differed, and it could not be seen whether they always do: {open}",
                    p.name
                );
            }
            None if p.packets == 0 => {
                let _ = writeln!(text, "{}: the kernel ran neither on any packet", p.name);
            }
            None => {
                let _ = writeln!(text, "{}: no difference on {} packets", p.name, p.packets);
            }
        }
        if p.unsteady_rounds > 0 {
            let _ = writeln!(
                text,
                "    {} rounds not compared to their end: the first object itself gives different results (time, random numbers)",
                p.unsteady_rounds
            );
        }
        if p.differed_once > 0 {
            let _ = writeln!(
                text,
                "    on {} of these they differed, and did so no more when they were run again (time, random numbers)",
                p.differed_once
            );
        }
    }
    for (name, why) in &outcome.skipped {
        let _ = writeln!(text, "{name}: not run: {why}");
    }
    if !outcome.maps_left_alone.is_empty() {
        let _ = writeln!(text, "maps not compared: {}", outcome.maps_left_alone.join(", "));
    }
    let different = outcome.programs.iter().filter(|p| p.difference.is_some()).count();
    let runs: u64 = outcome.programs.iter().map(|p| p.packets).sum();
    let nothing = if runs == 0 && different == 0 { "nothing could be run, so nothing is known: " } else { "" };
    let _ = writeln!(text, "{nothing}{different} different; {runs} packets; {:.2} s", outcome.seconds);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_driver::difftest::Scenario;

    #[test]
    fn nothing_run_is_no_yes() {
        let tested = |packets, different: bool| Tested {
            name: "p".into(),
            packets,
            refused: 0,
            unsteady_rounds: 0,
            differed_once: 0,
            open: None,
            difference: different.then(|| Difference {
                program: "p".into(),
                number: 0,
                packet: String::new(),
                context: None,
                what: vec![],
                scenario: Scenario::default(),
            }),
        };
        assert_eq!(exit_code(&[]), 3);
        assert_eq!(exit_code(&[tested(0, false)]), 3);
        assert_eq!(exit_code(&[tested(0, false), tested(5, false)]), 0);
        assert_eq!(exit_code(&[tested(5, false), tested(0, true)]), 1);
        let open = Tested { open: Some("the return value".into()), ..tested(5, false) };
        assert_eq!(exit_code(&[tested(5, false), open]), 3);
    }
}
