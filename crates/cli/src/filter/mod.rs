//! `bpf-opt filter`: tcpdump's filter language, compiled.

mod args;
mod run;
mod source;

use std::fmt::Write as _;

use bpf_filter::{Actions, Classic, ClassicGoal, Filter, Form, Hook, MOST_INSTRUCTIONS};

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
    if args.hook.is_some() && args.output.is_none() && !matches!(args.emit, Some(Emit::Asm | Emit::Stats)) {
        let text = "--hook: nothing is asked for";
        return Err(Failure::bad_input(text).with_hint("-o OUT.o writes an object, --emit asm prints its code"));
    }
    let filter = compile(&text, &options)?;
    if filter.rejects_all() {
        files::complain("bpf-opt: warning: expression rejects all packets");
    }
    if let (Some(output), Some(hook)) = (&args.output, args.hook.map(Hook::from)) {
        let destination = Destination::of(output)?;
        let object = filter.object(hook, actions(args, hook)?).map_err(|e| Failure::bad_input(e.to_string()))?;
        destination.write(&object, None)?;
    }
    if !matches!(args.emit, Some(Emit::Stats)) {
        shown_forms(args).into_iter().for_each(|form| warn_if_unproven(&filter, form));
    }
    match args.emit {
        Some(Emit::Ir) => files::print(&filter.listing()),
        Some(Emit::Asm) => files::print(&assembly(args, &filter)?),
        Some(Emit::Stats) => files::print(&stats(args, &filter)),
        None if args.dump > 0 || args.output.is_none() => files::print(&dump(args, &filter)?),
        None => {}
    }
    Ok(exit::YES)
}

/// The forms of a filter that the arguments ask for.
fn shown_forms(args: &FilterArgs) -> Vec<Form> {
    let printed = match args.emit {
        Some(Emit::Ir) => Some(Form::Here),
        Some(Emit::Asm) => Some(Form::Kernel),
        Some(Emit::Stats) => None,
        None if args.dump > 0 || args.output.is_none() => Some(Form::Classic(goal(args))),
        None => None,
    };
    let written = args.output.is_some().then_some(Form::Kernel);
    written.into_iter().chain(printed.filter(|form| Some(*form) != written)).collect()
}

/// The hook that assembly is shown for.
fn shown_hook(args: &FilterArgs) -> Hook {
    args.hook.map_or(Hook::Xdp, Hook::from)
}

fn actions(args: &FilterArgs, hook: Hook) -> Result<Actions, Failure> {
    let (pass, drop) = hook.pass_and_drop();
    match args.action.as_str() {
        "pass" => Ok(Actions::passing(hook)),
        "drop" => Ok(Actions { matched: drop, other: pass }),
        number => {
            let wrong = |what: &str| Err(Failure::bad_input(format!("--match {number}: {what}")));
            let Ok(n) = number.parse::<i64>() else { return wrong("pass, drop or a number is wanted") };
            // The verifier asks that of these programs (check_return_code).
            if hook == Hook::CgroupSkb && !(0..=1).contains(&n) {
                return wrong("programs of control groups return 0 (drop) or 1 (pass)");
            }
            // Programs return 32 bits, written with a sign or without.
            match i32::try_from(n).or_else(|_| u32::try_from(n).map(u32::cast_signed)) {
                Ok(matched) => Ok(Actions { matched, other: pass }),
                Err(_) => wrong("programs return numbers of 32 bits"),
            }
        }
    }
}

fn assembly(args: &FilterArgs, filter: &Filter) -> Result<String, Failure> {
    let hook = shown_hook(args);
    filter.assembly(hook, actions(args, hook)?).map_err(|e| Failure::bad_input(e.to_string()))
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

fn stats(args: &FilterArgs, filter: &Filter) -> String {
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
    let hook = shown_hook(args);
    match filter.assembly(hook, Actions::passing(hook)) {
        Ok(text) => {
            let lines = text.lines().filter(|l| l.starts_with(' '));
            // A table's address takes two slots.
            let slots: usize = lines.map(|l| if l.ends_with(" ll") { 2 } else { 1 }).sum();
            let _ = writeln!(out, "slots (eBPF, {})          {slots}", hook.section());
        }
        Err(e) => {
            let _ = writeln!(out, "eBPF                       {e}");
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
