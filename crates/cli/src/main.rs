//! `bpf-opt`: the command line.
//!
//! The one idea: a command computes a value and only then prints or writes; so an error anywhere before leaves
//! nothing half done. Each command is a module with a `run` that returns the exit code or a
//! [`Failure`]. Nothing about BPF is decided here.

/// Proofs make and drop many small objects on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod args;
mod bench;
mod beside;
mod cfg;
mod check;
mod ci;
mod completions;
mod costs;
mod counts;
mod declared;
mod diff;
mod difftest;
mod dis;
mod document;
mod elements;
mod elsewhere;
mod explain;
mod failure;
mod files;
mod filter;
mod guest;
mod input;
mod inputs;
mod instrument;
mod kept_parts;
mod kernels;
mod listing;
mod load;
mod man;
mod many;
mod opt;
mod packets;
mod page;
mod profile;
mod progress;
mod raw;
mod reduce;
mod rules;
mod rules_page;
mod run;
mod specialize;
mod trace;
mod verdict;
mod verify;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use failure::{Failure, exit};

/// Stack of the thread that does the work. It is reserved, not used, so that deep recursion over a large program
/// does not end the process.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let printed = e.print();
            if !e.use_stderr()
                && let Err(failure) = files::printed(printed)
            {
                files::complain(&failure);
                return ExitCode::from(failure.code);
            }
            if let (ErrorKind::InvalidSubcommand, Some(file)) = (e.kind(), object_first()) {
                files::complain(format!("hint: to optimize this object: bpf-opt opt {} -o OUT.o", file.display()));
            }
            return ExitCode::from(if e.use_stderr() { exit::BAD_INPUT } else { exit::YES });
        }
    };
    trace::install();
    let place = note_panics();
    ExitCode::from(guarded(&place, move || command(&cli)))
}

/// The first argument, if it is a file and no command.
fn object_first() -> Option<PathBuf> {
    std::env::args_os().nth(1).map(PathBuf::from).filter(|path| path.is_file())
}

fn command(cli: &Cli) -> u8 {
    let outcome = match &cli.command {
        Command::Opt(args) => many::optimize(args),
        Command::Verify(args) => many::verify(args),
        Command::Check(args) => many::check(args),
        Command::Dis(args) => dis::run(args),
        Command::Load(args) => many::load(args),
        Command::Run(args) => run::run(args),
        Command::Difftest(args) => difftest::run(args),
        Command::Bench(args) => many::bench(args),
        Command::Profile(args) => profile::run(args),
        Command::Specialize(args) => specialize::run(args),
        Command::Inputs(args) => inputs::run(args),
        Command::Instrument(args) => instrument::run(args),
        Command::Reduce(args) => reduce::run(args),
        Command::Rules(args) => rules::run(args),
        Command::Filter(args) => filter::run(args),
        Command::Raw(args) => raw::run(args),
        Command::Kernels(args) => kernels::run(args),
        Command::Ci(args) => many::ci(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Guest => guest::run(),
    };
    outcome.unwrap_or_else(|failure| {
        files::complain(&failure);
        failure.code
    })
}

/// Where the last panic was and what it said.
type Place = Arc<Mutex<String>>;

/// Keeps panics from being printed by the runtime, unless the user asked for backtraces.
fn note_panics() -> Place {
    let place = Place::default();
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        let place = Arc::clone(&place);
        std::panic::set_hook(Box::new(move |info| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string().replace('\n', " ");
        }));
    }
    place
}

/// Runs `work`; a panic in it becomes a message and an exit code.
fn guarded(place: &Place, work: impl FnOnce() -> u8 + Send + 'static) -> u8 {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(|| catch_unwind(AssertUnwindSafe(work)));
    let failure = match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(code))) => return code,
        Ok(_) => {
            // With a backtrace the panic has been printed already.
            let message = match place.lock().unwrap_or_else(PoisonError::into_inner).as_str() {
                "" => "internal error, please report it with the input file".to_owned(),
                place => format!("internal error, please report it with the input file\n  {place}"),
            };
            let hint = Some("RUST_BACKTRACE=1 shows where it comes from".to_owned());
            Failure { code: exit::INTERNAL, message, hint }
        }
        Err(e) => {
            let message = format!("cannot start: no memory for a thread: {e}");
            Failure { code: exit::INTERNAL, message, hint: None }
        }
    };
    files::complain(&failure);
    failure.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_exit_code() {
        let place = Place::default();
        assert_eq!(guarded(&place, || panic!("on purpose")), exit::INTERNAL);
        assert_eq!(guarded(&place, || 3), 3);
    }
}
