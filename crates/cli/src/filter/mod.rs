//! `bpf-opt filter`: tcpdump's filter language, compiled.

mod args;
mod form;
mod run;
mod source;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bpf_filter::{Classic, ClassicGoal, EbpfForm, Filter, Form, MOST_INSTRUCTIONS, Options};

use args::{Emit, GoalArg};
pub use args::{FilterArgs, HELP};
use source::{compile, options, text, warn_if_unproven};

use crate::failure::{Failure, exit};
use crate::files::{self, Destination};

/// Runs the command.
pub fn run(args: &FilterArgs) -> Result<u8, Failure> {
    let text = text(args)?;
    let options = options(args)?;
    if let Some(capture) = &args.read {
        return run::over_capture(args, capture, &text, &options);
    }
    let form = form::of(args)?;
    let filter = compile(&text, &options)?;
    if filter.rejects_all() {
        files::complain("bpf-opt: warning: expression rejects all packets");
    }
    if !matches!(args.emit, Some(Emit::Stats)) {
        shown_forms(args).into_iter().for_each(|form| warn_if_unproven(&filter, form));
    }
    write(args, form.as_ref(), &filter, &text, &options)?;
    let writes = args.output.is_some() || args.header.is_some();
    match (args.emit, &form) {
        (Some(Emit::Ir), _) => files::print(&filter.listing()),
        (Some(Emit::Asm), Some(form)) => files::print(&assembly(form, &filter)?),
        (Some(Emit::Stats), Some(form)) => files::print(&stats(args, form, &filter)),
        _ if args.dump > 0 || !writes => files::print(&dump(args, &filter)?),
        _ => {}
    }
    Ok(exit::YES)
}

/// The forms of a filter that the arguments ask for.
fn shown_forms(args: &FilterArgs) -> Vec<Form> {
    let printed = match args.emit {
        Some(Emit::Ir) => Some(Form::Here),
        Some(Emit::Asm) => Some(Form::Kernel),
        Some(Emit::Stats) => None,
        None if args.dump > 0 || args.output.is_none() && args.header.is_none() => Some(Form::Classic(goal(args))),
        None => None,
    };
    let written = args.output.is_some().then_some(Form::Kernel);
    written.into_iter().chain(printed.filter(|form| Some(*form) != written)).collect()
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
    let object = match &args.output {
        Some(output) => {
            let destination = Destination::of(output)?;
            let header: Vec<&Path> = args.header.iter().map(PathBuf::as_path).collect();
            destination.overwrites_none("the object", &header, "name another file behind --header")?;
            let object = filter.object_of(form).map_err(|e| Failure::bad_input(e.to_string()))?;
            Some((destination, object))
        }
        None => None,
    };
    if let Some((destination, object)) = object {
        destination.write(&object, None)?;
    }
    if let (Some(destination), Some(header)) = (header, Filter::header(form, text, options)) {
        destination.write(header.as_bytes(), None)?;
    }
    Ok(())
}

fn assembly(form: &EbpfForm, filter: &Filter) -> Result<String, Failure> {
    filter.assembly_of(form).map_err(|e| Failure::bad_input(e.to_string()))
}

fn goal(args: &FilterArgs) -> ClassicGoal {
    match args.goal {
        GoalArg::Size => ClassicGoal::Size,
        GoalArg::Latency => ClassicGoal::Time,
    }
}

fn classic<'a>(args: &FilterArgs, filter: &'a Filter) -> Result<&'a [Classic], Failure> {
    filter.classic(goal(args)).map_err(|e| Failure::bad_input(e.to_string()))
}

/// Classic BPF as tcpdump prints it.
fn dump(args: &FilterArgs, filter: &Filter) -> Result<String, Failure> {
    let instructions = classic(args, filter)?;
    if instructions.len() > MOST_INSTRUCTIONS {
        files::complain(format!(
            "bpf-opt: warning: {} instructions; the kernel takes {MOST_INSTRUCTIONS} at most",
            instructions.len()
        ));
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
    let forms = [("interpreter", Form::Here), ("eBPF", Form::Kernel), ("classic BPF", Form::Classic(goal(args)))];
    for (name, form) in forms {
        let state = match filter.unproven(form) {
            _ if !filter.is_optimized() => "as the filter stands".to_owned(),
            Some(why) => format!("as the filter stands: not proven equal: {why}"),
            None => "accepts what the filter as it stands accepts: proven".to_owned(),
        };
        let _ = writeln!(out, "{name:<26} {state}");
    }
    out
}
