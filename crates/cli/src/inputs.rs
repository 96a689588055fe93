//! `bpf-opt inputs`: inputs that together reach every block of an object's programs.

use std::fmt::Write;
use std::path::Path;

use bpf_driver::inputs::{self, InputsReport, Reach, Settings};
use bpf_kernel::in_private_network;
use bpf_object::{FuncKind, Object};
use serde::Serialize;

use crate::args::InputsArgs;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::progress::Programs;

/// Blocks that are listed of one function with why they were not reached, unless all are asked for.
const LISTED: usize = 12;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    input: &'a Path,
    kernel: String,
    seed: u64,
    time_limit: f64,
    #[serde(flatten)]
    found: Option<&'a InputsReport>,
}

/// Runs the command.
pub fn run(args: &InputsArgs) -> Result<u8, Failure> {
    let json = Destination::of_report(args.json.as_deref(), &[&args.file])?;
    let found = look(args);
    let code = match &found {
        Ok(found) if found.functions.iter().all(|f| f.unreached == 0) => exit::YES,
        Ok(_) => exit::UNKNOWN,
        Err(failure) => failure.code,
    };
    if let Some(json) = &json {
        let document = Document {
            head: Head::new("inputs", code, found.as_ref().err()),
            input: &args.file,
            kernel: bpf_kernel::release(),
            seed: args.seed,
            time_limit: args.time_limit.as_secs_f64(),
            found: found.as_ref().ok(),
        };
        files::write_json(json, &document)?;
    }
    let found = found?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&found, args.all))?;
    }
    Ok(code)
}

fn look(args: &InputsArgs) -> Result<InputsReport, Failure> {
    let bytes = files::read(&args.file)?;
    let object = Object::parse(bytes.clone()).map_err(|e| Failure::object(&args.file, &e))?;
    let programs = || object.functions().iter().filter(|f| f.kind == FuncKind::Program).map(|f| f.name.as_str());
    if let Some(wanted) = args.function.iter().find(|w| !programs().any(|p| p == **w)) {
        return Err(Failure::no_such_program(&args.file, wanted, programs()));
    }
    let settings = Settings {
        only: args.function.clone(),
        program_type: args.program_type.clone(),
        time_limit: args.time_limit,
        seed: args.seed,
        kernel: !args.no_kernel,
    };
    let bar = Programs::bar();
    let mut progress = |done: usize, of: usize| bar.tell(done, of);
    let found = match args.no_kernel {
        true => inputs::inputs(&bytes, &settings, &mut progress),
        false => match in_private_network(|| inputs::inputs(&bytes, &settings, &mut progress)) {
            Ok(found) => found,
            Err(e) => {
                files::complain(format!("note: no network namespace for runs in the kernel: {e}; none are made"));
                inputs::inputs(&bytes, &Settings { kernel: false, ..settings.clone() }, &mut |_, _| {})
            }
        },
    };
    bar.finish();
    found.map_err(|e| Failure::bad_input(format!("{}: {e}", args.file.display())))
}

fn text(found: &InputsReport, all: bool) -> String {
    let mut text = String::new();
    let width = found.functions.iter().map(|f| f.name.len()).max().unwrap_or(0).max("function".len());
    let _ = writeln!(text, "{:width$}  blocks  in kernel  interpreter only  not reached  dead", "function");
    for f in &found.functions {
        let blocks = f.blocks.len();
        let (kernel, interpreter, not) = (f.in_kernel, f.interpreter_only, f.unreached);
        let _ =
            writeln!(text, "{:width$}  {blocks:>6}  {kernel:>9}  {interpreter:>16}  {not:>11}  {:>4}", f.name, f.dead);
    }
    let [blocks, kernel, interpreter] = found.totals();
    let percent = |n: usize| if blocks == 0 { 100.0 } else { 100.0 * n as f64 / blocks as f64 };
    let inputs: usize = found.programs.iter().map(|p| p.inputs.len()).sum();
    let _ = writeln!(
        text,
        "{} of {blocks} blocks reached ({:.1}%), {kernel} of them in the kernel ({:.1}%), by {inputs} inputs, in {:.1} s",
        kernel + interpreter,
        percent(kernel + interpreter),
        percent(kernel),
        found.seconds
    );
    for p in &found.programs {
        if let Some(why) = &p.not_run {
            let _ = writeln!(text, "{}: not run: {why}", p.name);
        } else if let Some(why) = &p.not_in_kernel {
            let _ = writeln!(text, "{}: not run in the kernel: {why}", p.name);
        }
    }
    for f in &found.functions {
        let open: Vec<_> = f.blocks.iter().filter(|b| b.reached == Reach::No).collect();
        let shown = if all { open.len() } else { LISTED };
        for b in open.iter().take(shown) {
            let slot = b.slot.map_or_else(String::new, |s| format!(", slot {s}"));
            let _ = writeln!(text, "{} b{}{slot}: {}", f.name, b.block, b.reason.as_deref().unwrap_or("not reached"));
        }
        if open.len() > shown {
            let _ = writeln!(text, "{}: {} more (--all lists them)", f.name, open.len() - shown);
        }
    }
    text
}
