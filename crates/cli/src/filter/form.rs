//! Which eBPF is asked for: a program for a hook, or a function.

use bpf_filter::{Actions, EbpfForm, FunctionName, Hook, Takes};

use super::args::{Emit, FilterArgs, FunctionArg, HookArg};
use super::source::accepted_length;
use crate::failure::Failure;

/// What is asked for, if eBPF is.
pub(super) fn of(args: &FilterArgs) -> Result<Option<EbpfForm>, Failure> {
    let wrong = |text: &str, hint: &str| Err(Failure::bad_input(text).with_hint(hint));
    let is_shown = matches!(args.emit, Some(Emit::Asm | Emit::Stats));
    let form = match (args.hook.map(Hook::from), args.function) {
        (hook, Some(function)) => function_of(args, hook, function)?,
        (Some(hook), None) => EbpfForm::Program { hook, actions: actions(args, hook)?, counts: args.count },
        (None, None) => {
            if args.output.is_some() {
                return wrong(
                    "-o: nothing says what the object is for",
                    "--hook HOOK makes a program, --function data a function",
                );
            }
            if !is_shown {
                return Ok(None);
            }
            EbpfForm::program(Hook::Xdp, actions(args, Hook::Xdp)?)
        }
    };
    let writes = args.output.is_some() || args.header.is_some() || args.map_contents.is_some();
    // Sockets take classic BPF, too.
    let is_classic = args.dump > 0 && args.hook == Some(HookArg::Socket) && args.function.is_none();
    if !writes && !is_shown && !is_classic && (args.hook.is_some() || args.function.is_some()) {
        let asked = if args.function.is_some() { "--function" } else { "--hook" };
        return wrong(
            &format!("{asked}: nothing is asked for"),
            "-o OUT.o writes an object, --emit asm prints its code; -d prints classic BPF, with --hook socket for a socket",
        );
    }
    Ok(Some(form))
}

fn function_of(args: &FilterArgs, hook: Option<Hook>, function: FunctionArg) -> Result<EbpfForm, Failure> {
    let wrong = |text: &str, hint: &str| Err(Failure::bad_input(text).with_hint(hint));
    if args.action.is_some() {
        return wrong(
            "--match: a function returns 1 for what matches, 0 for the rest",
            "leave it out: the caller decides",
        );
    }
    if args.count {
        return wrong("--count: a function does not count", "leave it out: the caller may count, or say --hook alone");
    }
    if args.snaplen.is_some() {
        return wrong("--snaplen: a function accepts no number of bytes", "leave it out: the caller decides");
    }
    let takes = match (function, hook) {
        (FunctionArg::Data, Some(Hook::Socket)) => {
            return wrong(
                "--function data: programs of sockets may not read packets directly",
                "--function ctx is given their context",
            );
        }
        (FunctionArg::Data, _) => Takes::Data,
        (FunctionArg::Ctx, Some(hook)) => Takes::Context(hook),
        (FunctionArg::Ctx, None) => {
            return wrong(
                "--function ctx: the hook says which context",
                "name it: --hook xdp, tc, cgroup-skb or socket",
            );
        }
    };
    let name = FunctionName::new(args.name.as_deref().unwrap_or("filter"));
    let name = name.map_err(|e| Failure::bad_input(format!("--name {e}")))?;
    Ok(EbpfForm::Function { name, takes })
}

fn actions(args: &FilterArgs, hook: Hook) -> Result<Actions, Failure> {
    let (mut pass, drop) = hook.pass_and_drop();
    if hook == Hook::Socket {
        pass = accepted_length(args).cast_signed();
    }
    match args.action.as_deref() {
        None | Some("pass") => Ok(Actions { matched: pass, other: drop }),
        Some("drop") => Ok(Actions { matched: drop, other: pass }),
        Some(number) => {
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
