//! `bpf-opt filter`: tcpdump's filter language, compiled.

mod args;
mod run;
mod source;

use std::fmt::Write as _;

use bpf_filter::{Actions, Classic, ClassicGoal, EbpfForm, Filter, Hook, MOST_INSTRUCTIONS};

use args::{Emit, GoalArg};
pub use args::{FilterArgs, HELP};
use source::{accepted_length, compile, options, text};

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
    if args.count && args.hook.is_none() {
        let text = "--count: there is nothing that could count";
        let hint = "--read IN.pcap counts the packets of a capture, --hook HOOK those that the hook sees";
        return Err(Failure::bad_input(text).with_hint(hint));
    }
    let filter = compile(&text, &options)?;
    if filter.rejects_all() {
        files::complain("bpf-opt: warning: expression rejects all packets");
    }
    if let (Some(output), Some(hook)) = (&args.output, args.hook.map(Hook::from)) {
        let destination = Destination::of(output)?;
        let object = filter.object_of(&form(args, hook)?).map_err(|e| Failure::bad_input(e.to_string()))?;
        destination.write(&object, None)?;
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

/// The hook that assembly is shown for.
fn shown_hook(args: &FilterArgs) -> Hook {
    args.hook.map_or(Hook::Xdp, Hook::from)
}

fn actions(args: &FilterArgs, hook: Hook) -> Result<Actions, Failure> {
    let (mut pass, drop) = hook.pass_and_drop();
    if hook == Hook::Socket {
        pass = accepted_length(args).cast_signed();
    }
    match args.action.as_str() {
        "pass" => Ok(Actions { matched: pass, other: drop }),
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

/// What is made for a hook.
fn form(args: &FilterArgs, hook: Hook) -> Result<EbpfForm, Failure> {
    Ok(EbpfForm::Program { hook, actions: actions(args, hook)?, counts: args.count })
}

fn assembly(args: &FilterArgs, filter: &Filter) -> Result<String, Failure> {
    let hook = shown_hook(args);
    filter.assembly_of(&form(args, hook)?).map_err(|e| Failure::bad_input(e.to_string()))
}

fn classic(args: &FilterArgs, filter: &Filter) -> Result<Vec<Classic>, Failure> {
    let goal = match args.goal {
        GoalArg::Size => ClassicGoal::Size,
        GoalArg::Latency => ClassicGoal::Time,
    };
    filter.classic(goal).map_err(|e| Failure::bad_input(e.to_string()))
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
    match assembly(args, filter) {
        Ok(text) => {
            let lines = text.lines().filter(|l| l.starts_with(' '));
            // A table's address takes two slots.
            let slots: usize = lines.map(|l| if l.ends_with(" ll") { 2 } else { 1 }).sum();
            let _ = writeln!(out, "slots (eBPF, {})          {slots}", hook.section());
        }
        Err(e) => {
            let _ = writeln!(out, "eBPF                       {}", e.message);
        }
    }
    out
}
