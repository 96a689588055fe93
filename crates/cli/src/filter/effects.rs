//! Which options have an effect on what is asked for. One that has none is an error: whoever wrote it expects something of it.
//!
//! The one idea: what is asked for are things that are made ([`Made`]), and a row of a table says of an option for which of these it
//! counts. clap is asked for nothing of that: it looks at two options at a time, and forgets that one needs another where a third
//! stands beside it.

use bpf_filter::Pass;

use super::args::{Emit, Engine, FilterArgs, GoalArg, HookArg};
use crate::failure::Failure;

/// What a run makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    /// The verdicts on a capture's packets.
    Capture,
    /// A program of eBPF, as an object or as assembly.
    Program,
    /// A function of eBPF, as an object, as assembly or as a header.
    Function,
    Classic,
    /// The interpreter's program, or what is tested.
    Graph,
    Tree,
    Statistics,
}

use Made::{Capture, Classic, Function, Graph, Program, Statistics, Tree};

/// An option, whether it is there, whether it has an effect, and what it is for.
struct Row {
    option: &'static str,
    is_said: bool,
    has_effect: bool,
    is_for: &'static str,
}

/// Says so if an option has no effect.
pub(super) fn check(args: &FilterArgs) -> Result<(), Failure> {
    let row = rows(args).into_iter().find(|row| row.is_said && !row.has_effect);
    match row {
        Some(Row { option, is_for, .. }) => {
            let text = format!("{option}: it has no effect {}", place(args));
            Err(Failure::bad_input(text).with_hint(format!("leave it out: it is for {is_for}")))
        }
        None => Ok(()),
    }
}

/// What the arguments ask for, as they say it.
fn place(args: &FilterArgs) -> String {
    let hook = args.hook.map(|hook| match hook {
        HookArg::Xdp => "--hook xdp",
        HookArg::Tc => "--hook tc",
        HookArg::CgroupSkb => "--hook cgroup-skb",
        HookArg::Socket => "--hook socket",
    });
    let emit = args.emit.map(|emit| match emit {
        Emit::Ast => "--emit ast",
        Emit::Cfg => "--emit cfg",
        Emit::Ir => "--emit ir",
        Emit::Asm => "--emit asm",
        Emit::Stats => "--emit stats",
    });
    let is_optimized_not = args.no_optimize.then_some("--no-optimize");
    let all = [
        args.read.is_some().then_some("--read"),
        args.function.is_some().then_some("--function"),
        hook,
        emit,
        (args.dump > 0).then_some("-d"),
        is_optimized_not,
    ];
    let all: Vec<&str> = all.into_iter().flatten().collect();
    if all.is_empty() { "on classic BPF".to_owned() } else { format!("with {}", all.join(" ")) }
}

/// What is made.
fn made(args: &FilterArgs) -> Vec<Made> {
    if args.read.is_some() {
        return vec![Capture];
    }
    let mut all = Vec::new();
    let writes = args.output.is_some() || args.header.is_some() || args.map_contents.is_some();
    let is_asm = args.emit == Some(Emit::Asm);
    if writes || is_asm {
        all.push(if args.function.is_some() { Function } else { Program });
    }
    match args.emit {
        Some(Emit::Ast) => all.push(Tree),
        Some(Emit::Cfg | Emit::Ir) => all.push(Graph),
        Some(Emit::Stats) => all.push(Statistics),
        Some(Emit::Asm) => {}
        None if args.dump > 0 || !writes => all.push(Classic),
        None => {}
    }
    all
}

fn rows(args: &FilterArgs) -> Vec<Row> {
    let made = made(args);
    let makes = |wanted: &[Made]| made.iter().any(|made| wanted.contains(made));
    let is_optimized = makes(&[Capture, Program, Function, Classic, Graph, Statistics]);
    let is_latency = args.goal == Some(GoalArg::Latency);
    let is_suited = makes(&[Capture, Program, Function, Graph, Statistics]) || is_latency;
    let passes = args.passes.unwrap_or_default();
    let orders = passes.has(Pass::Order) && passes.has(Pass::Trees);
    let is_for_kernel = args.hook.is_some() || args.function.is_some();
    let counts = makes(&[Capture]) || args.hook.is_some() && makes(&[Program]);
    let has_maps = makes(&[Program, Function, Graph, Statistics]);
    let is_at_socket = args.hook == Some(HookArg::Socket) && makes(&[Program]);
    let is_machine_code = args.engine == Some(Engine::Jit);
    let of = |option, is_said, has_effect, is_for| Row { option, is_said, has_effect, is_for };
    vec![
        of("-d", args.dump > 0, makes(&[Classic]), "classic BPF, without --read and --emit"),
        of("--match", args.action.is_some(), makes(&[Program]) || makes(&[Statistics]), "programs at hooks"),
        of("--name", args.name.is_some(), makes(&[Function]) && args.function.is_some(), "--function"),
        of("--header", args.header.is_some(), args.function.is_some(), "--function"),
        of("--no-optimize", args.no_optimize, is_optimized, "all but the tree of the text"),
        of("--passes", args.passes.is_some(), is_optimized, "all but the tree of the text"),
        of(
            "--profile",
            args.profile.is_some(),
            is_optimized && is_suited && orders,
            "all but the tree and the smallest classic BPF (--goal latency), with the passes order and trees",
        ),
        of(
            "--goal",
            args.goal.is_some(),
            makes(&[Classic, Statistics]) && !args.no_optimize,
            "classic BPF that is optimized: as it stands a filter has one form",
        ),
        of(
            "--snaplen",
            args.snaplen.is_some(),
            makes(&[Classic]) || is_at_socket || args.verdicts && makes(&[Capture]),
            "classic BPF, programs of sockets (--hook socket), and --read with --verdicts",
        ),
        of("--write", args.write.is_some(), makes(&[Capture]), "--read"),
        of("--verdicts", args.verdicts, makes(&[Capture]), "--read"),
        of("--engine", args.engine.is_some(), makes(&[Capture]), "--read"),
        of(
            "--engine jit",
            is_machine_code,
            !args.report,
            "--read without --report: machine code does not tell what decided",
        ),
        of("--count", args.count, counts, "--read IN.pcap and --hook HOOK"),
        of("--report", args.report, counts, "--read IN.pcap and --hook HOOK"),
        of(
            "--updatable",
            !args.updatable.is_empty(),
            has_maps,
            "programs and functions of eBPF: captures and classic BPF have no maps",
        ),
        of(
            "--max-entries",
            args.max_entries.is_some(),
            !args.updatable.is_empty() && makes(&[Program, Function]),
            "programs and functions with --updatable",
        ),
        of(
            "--map-contents",
            args.map_contents.is_some(),
            !args.updatable.is_empty() && is_for_kernel,
            "programs and functions (--hook, --function) with --updatable",
        ),
    ]
}
