//! `bpf-opt opt --list-parts` and `--make-parts`: results of single functions, for whoever spreads the work over machines.

use std::path::Path;

use bpf_driver::{Named, Options, parts};
use serde::Serialize;

use crate::args::OptArgs;
use crate::failure::{Failure, exit};
use crate::files;
use crate::input::Input;
use crate::progress::{Interrupt, Progress};

/// What is printed of an object.
#[derive(Serialize)]
struct Line<'a> {
    input: &'a Path,
    functions: Vec<Named>,
    /// Why there are none.
    error: Option<String>,
}

/// Runs the command on each object; the worst exit code counts.
pub fn run(args: &OptArgs) -> Result<u8, Failure> {
    super::check(args)?;
    let interrupt = Interrupt::listen();
    let mut code = exit::YES;
    for input in &args.inputs {
        let done = if args.list_parts { list(args, input) } else { make(args, input, &interrupt) };
        if let Err(failure) = done {
            if args.inputs.len() == 1 {
                return Err(failure);
            }
            files::complain(&failure);
            if args.list_parts {
                print(&Line { input, functions: Vec::new(), error: Some(failure.message) })?;
            }
            code = failure.code;
        }
        if interrupt.requested() {
            return Ok(exit::INTERRUPTED);
        }
    }
    Ok(code)
}

fn read(args: &OptArgs, path: &Path) -> Result<(Vec<u8>, Options), Failure> {
    let read = Input::read(path, &args.raw, args.program_type.as_deref())?;
    Ok((read.object, args.options()))
}

fn list(args: &OptArgs, path: &Path) -> Result<(), Failure> {
    let (object, options) = read(args, path)?;
    let functions = parts::names(&object, &options).map_err(|e| Failure::driver(path, &e))?;
    print(&Line { input: path, functions, error: None })
}

fn print(line: &Line<'_>) -> Result<(), Failure> {
    let line = serde_json::to_string(line).map_err(|e| Failure::internal(format!("the list is no JSON: {e}")))?;
    files::print(&(line + "\n"))
}

fn make(args: &OptArgs, path: &Path, interrupt: &Interrupt) -> Result<(), Failure> {
    let (object, options) = read(args, path)?;
    let progress = Progress::new(interrupt.clone(), args.quiet);
    let report = parts::make(&object, &options, &progress);
    progress.finish();
    let report = report.map_err(|e| Failure::driver(path, &e))?;
    if !args.quiet {
        files::complain(format!("{}: {} made, {} there already", path.display(), report.made, report.taken));
    }
    Ok(())
}
