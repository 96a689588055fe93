//! `bpf-opt filter`: tcpdump's filter language, compiled.

mod args;
mod effects;
mod form;
mod profile;
mod report;
mod run;
mod source;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bpf_filter::{
    Classic, ClassicError, ClassicGoal, EbpfForm, FURTHEST, Filter, Form, MOST_INSTRUCTIONS, Options, SetMap, has_loop,
};

use args::{Emit, GoalArg};
pub use args::{FilterArgs, HELP};
use source::{compile, options, text, warn_if_unproven};

use crate::failure::{Failure, exit};
use crate::files::{self, Destination};

/// Runs the command.
pub fn run(args: &FilterArgs) -> Result<u8, Failure> {
    effects::check(args)?;
    let text = text(args)?;
    let mut options = options(args)?;
    warn_of_unused_sets(args, &text, &options);
    warn_of_empty_maps(args, &options);
    if let Some(capture) = &args.read {
        return run::over_capture(args, capture, &text, &options);
    }
    options.profile = profile::of(args, options.link_type)?;
    let form = form::of(args)?;
    one_has_stdout(args)?;
    let filter = compile(&text, &options)?;
    if filter.rejects_all() {
        files::complain("bpf-opt: warning: expression rejects all packets");
    }
    let shown = shown(args);
    // Statistics say themselves what is proven.
    if !matches!(args.emit, Some(Emit::Stats)) {
        let written = args.output.is_some().then_some(Form::Kernel);
        let printed = shown.map(|shown| form_of(args, shown)).filter(|form| Some(*form) != written);
        written.into_iter().chain(printed).for_each(|form| warn_if_unproven(&filter, form));
    }
    if let Some(end) = form.as_ref().and_then(|form| filter.beyond_reach(form)) {
        files::complain(format!(
            "bpf-opt: warning: a field that ends {end} bytes behind its header, or behind the packet's begin, may be out of reach: the verifier follows a program for {FURTHEST} bytes of a packet, and one that is asked for a field further inside is rejected",
        ));
    }
    write(args, form.as_ref(), &filter, &text, &options)?;
    match (shown, &form) {
        (Some(Shown::Form(Emit::Ast)), _) => {
            let tree = bpf_filter::tree(&text, &options);
            files::print(&tree.map_err(|e| Failure::bad_input(e.render(&text)))?)?;
        }
        (Some(Shown::Form(Emit::Cfg)), _) => files::print(&filter.dot())?,
        (Some(Shown::Form(Emit::Ir)), _) => files::print(&filter.listing())?,
        (Some(Shown::Form(Emit::Asm)), Some(form)) => files::print(&assembly(form, &filter)?)?,
        (Some(Shown::Form(Emit::Stats)), Some(form)) => files::print(&stats(args, form, &filter))?,
        (Some(Shown::Dump), _) => files::print(&dump(args, &filter)?)?,
        _ => {}
    }
    Ok(exit::YES)
}

/// Says so of sets that the filter does not name.
fn warn_of_unused_sets(args: &FilterArgs, text: &str, options: &Options) {
    if args.set.is_empty() {
        return;
    }
    // What is wrong with a text is said where it is compiled.
    let Ok(named) = bpf_filter::sets_of(text, options) else { return };
    let names = args.set.iter().filter_map(|set| set.split_once('=')).map(|(name, _)| name);
    for name in names.filter(|name| !named.contains(*name)) {
        let option = if options.updatable.contains_key(name) { "--updatable" } else { "--set" };
        files::complain(format!("bpf-opt: warning: {option} {name}: the filter does not ask for ${name}"));
    }
}

/// Says so of maps that have lines of a file to hold and are empty in the object.
fn warn_of_empty_maps(args: &FilterArgs, options: &Options) {
    let is_object = args.output.is_some() && args.map_contents.is_none();
    for name in args.updatable.iter().map(|text| text.split(':').next().unwrap_or_default()).filter(|_| is_object) {
        let count = options.sets.get(name).map_or(0, Vec::len);
        if count > 0 {
            files::complain(format!(
                "bpf-opt: warning: --updatable {name}: an object holds no elements, so its map is empty at first; --map-contents writes \
                 the {count} of the file for bpftool"
            ));
        }
    }
}

/// Options that write to standard output.
fn writes_to_stdout(args: &FilterArgs) -> impl Iterator<Item = &'static str> {
    let all = [("-o", &args.output), ("--header", &args.header), ("--map-contents", &args.map_contents)];
    all.into_iter().filter(|(_, path)| path.as_deref().is_some_and(files::is_dash)).map(|(option, _)| option)
}

/// Standard output holds one thing.
fn one_has_stdout(args: &FilterArgs) -> Result<(), Failure> {
    let printed = match shown(args) {
        Some(Shown::Form(_)) => Some("--emit"),
        Some(Shown::Dump) => Some("-d"),
        None => None,
    };
    let all: Vec<&str> = writes_to_stdout(args).chain(printed).collect();
    match all[..] {
        [first, second, ..] => Err(Failure::bad_input(format!("{second}: standard output is taken by {first} -"))
            .with_hint("name a file for one of them")),
        _ => Ok(()),
    }
}

/// What is printed.
#[derive(Clone, Copy)]
enum Shown {
    Form(Emit),
    Dump,
}

/// What the arguments ask to be printed: classic BPF if they ask for nothing.
fn shown(args: &FilterArgs) -> Option<Shown> {
    let writes = args.output.is_some() || args.header.is_some() || args.map_contents.is_some();
    args.emit.map(Shown::Form).or((args.dump > 0 || !writes).then_some(Shown::Dump))
}

/// The form of the filter that is printed.
fn form_of(args: &FilterArgs, shown: Shown) -> Form {
    match shown {
        Shown::Form(Emit::Ast | Emit::Cfg | Emit::Ir) => Form::Here,
        Shown::Form(Emit::Asm | Emit::Stats) => Form::Kernel,
        Shown::Dump => Form::Classic(goal(args)),
    }
}

/// Writes object and header, if they are asked for.
fn write(
    args: &FilterArgs,
    form: Option<&EbpfForm>,
    filter: &Filter,
    text: &str,
    options: &Options,
) -> Result<(), Failure> {
    let Some(form) = form else { return Ok(()) };
    let header = args.header.as_deref().map(Destination::or_stdout).transpose()?;
    let contents = args.map_contents.as_deref().map(Destination::or_stdout).transpose()?;
    let inputs = source::inputs(args);
    let apart_from = |destination: &Destination, what: &str, outputs: &[&Option<PathBuf>]| {
        let others: Vec<&Path> = outputs.iter().copied().flatten().chain(&inputs).map(PathBuf::as_path).collect();
        destination.overwrites_none(what, &others, "name another file for one of them")
    };
    let object = match &args.output {
        Some(output) => {
            let destination = Destination::of_object(output)?;
            apart_from(&destination, "the object", &[&args.header, &args.map_contents])?;
            let object = filter.object_of(form).map_err(|e| Failure::bad_input(e.to_string()))?;
            Some((destination, object))
        }
        None => None,
    };
    contents.iter().try_for_each(|to| apart_from(to, "what the maps hold", &[&args.header]))?;
    header.iter().try_for_each(|to| apart_from(to, "the header", &[]))?;
    let mut outputs: Vec<(Destination, Vec<u8>)> = Vec::new();
    if let Some(destination) = contents {
        let text: String = filter.maps().iter().map(SetMap::batch).collect();
        outputs.push((destination, text.into_bytes()));
    }
    if let (Some(destination), Some(header)) = (header, Filter::header(form, text, options)) {
        outputs.push((destination, header.into_bytes()));
    }
    outputs.extend(object);
    // What may fail in the middle goes first, and the object last: if it is there, so is all the rest.
    outputs.sort_by_key(|(destination, _)| !matches!(destination, Destination::Stream(_)));
    outputs.iter().try_for_each(|(destination, bytes)| destination.write(bytes, None))?;
    if args.report && args.output.is_some() && !filter.predicates().is_empty() {
        let legend = report::Report::new(filter).legend();
        let is_taken = writes_to_stdout(args).next().is_some();
        if is_taken { files::complain(legend.trim_end()) } else { files::print(&legend)? }
    }
    Ok(())
}

fn assembly(form: &EbpfForm, filter: &Filter) -> Result<String, Failure> {
    filter.assembly_of(form).map_err(|e| Failure::bad_input(e.to_string()))
}

fn goal(args: &FilterArgs) -> ClassicGoal {
    match args.goal {
        None | Some(GoalArg::Size) => ClassicGoal::Size,
        Some(GoalArg::Latency) => ClassicGoal::Time,
    }
}

fn classic<'a>(args: &FilterArgs, filter: &'a Filter) -> Result<&'a [Classic], Failure> {
    filter.classic(goal(args)).map_err(|e| {
        let failure = Failure::bad_input(e.to_string());
        if e == ClassicError::TooLong { failure.with_hint(HAS_TABLES) } else { failure }
    })
}

/// What to do where classic BPF is too long.
const HAS_TABLES: &str = "an object (-o OUT.o --hook HOOK) has tables for long lists";

/// Classic BPF as tcpdump prints it.
fn dump(args: &FilterArgs, filter: &Filter) -> Result<String, Failure> {
    let instructions = classic(args, filter)?;
    if instructions.len() > MOST_INSTRUCTIONS {
        files::complain(format!(
            "bpf-opt: warning: {} instructions; the kernel takes {MOST_INSTRUCTIONS} at most: {HAS_TABLES}",
            instructions.len()
        ));
    }
    if has_loop(instructions) {
        files::complain(
            "bpf-opt: warning: the kernel does not take this program: it has a loop, as code for protochain has",
        );
    }
    let mut out = String::new();
    if args.dump >= 3 {
        let _ = writeln!(out, "{}", instructions.len());
    }
    for (i, instruction) in instructions.iter().enumerate() {
        let Classic { code, jt, jf, k } = instruction;
        let _ = match args.dump {
            0 | 1 => writeln!(out, "{}", instruction.listing(i)),
            2 => writeln!(out, "{{ {code:#x}, {jt}, {jf}, {k:#010x} }},"),
            _ => writeln!(out, "{code} {jt} {jf} {k}"),
        };
    }
    Ok(out)
}

fn stats(args: &FilterArgs, form: &EbpfForm, filter: &Filter) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "operations (interpreter)   {}", filter.size());
    match classic(args, filter) {
        Ok(instructions) => {
            let _ = writeln!(out, "instructions (classic BPF) {}", instructions.len());
        }
        Err(e) => {
            let _ = writeln!(out, "classic BPF                {}", e.message);
        }
    }
    match assembly(form, filter) {
        Ok(text) => {
            let lines = text.lines().filter(|l| l.starts_with(' '));
            // A table's address takes two slots.
            let slots: usize = lines.map(|l| if l.ends_with(" ll") { 2 } else { 1 }).sum();
            let place = match form {
                EbpfForm::Program { hook, .. } => hook.section(),
                EbpfForm::Function { .. } => "function",
            };
            let _ = writeln!(out, "slots (eBPF, {place})          {slots}");
        }
        Err(e) => {
            let _ = writeln!(out, "eBPF                       {}", e.message);
        }
    }
    let forms = [
        ("interpreter", Form::Here),
        ("machine code", Form::Machine),
        ("eBPF", Form::Kernel),
        ("classic BPF", Form::Classic(goal(args))),
    ];
    for (name, form) in forms {
        let is_there = match form {
            Form::Here | Form::Kernel => true,
            Form::Machine => filter.jit().is_ok(),
            Form::Classic(_) => classic(args, filter).is_ok(),
        };
        if !is_there {
            continue;
        }
        let state = match filter.unproven(form) {
            _ if !filter.is_optimized() => "as the filter stands".to_owned(),
            Some(why) if filter.goes_without_tables(form) => {
                format!("without tables: with them not proven equal: {why}")
            }
            Some(why) => format!("as the filter stands: not proven equal: {why}"),
            None => "accepts what the filter as it stands accepts: proven".to_owned(),
        };
        let _ = writeln!(out, "{name:<26} {state}");
        if let Some(gain) = filter.gain(form) {
            let _ = writeln!(out, "{:<26} {}", "", profile::text(gain));
        }
    }
    out
}
