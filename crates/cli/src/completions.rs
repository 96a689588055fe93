//! `bpf-opt completions SHELL`: what a shell needs to complete our commands and options, made from their declarations.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::{Cli, CompletionsArgs};
use crate::failure::{Failure, exit};
use crate::files;

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Result<u8, Failure> {
    files::print(&script(args.shell))?;
    Ok(exit::YES)
}

fn script(shell: Shell) -> String {
    // A hyphen in the name of a program and the step to a subcommand are written alike in bash functions, and `clap_complete`
    // 4.6 takes the one for the other (clap-rs/clap#6421): no option of any command would be offered. So the functions have a name without one.
    let name = if shell == Shell::Bash { "bpf_opt" } else { "bpf-opt" };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    // The lines that say for which program they are.
    if shell == Shell::Bash { script.replace(" bpf_opt\n", " bpf-opt\n") } else { script }
}

/// The command line without what is not for users.
fn shown() -> Command {
    let all = Cli::command();
    let root = Command::new("bpf-opt").args(all.get_arguments()).version(env!("CARGO_PKG_VERSION"));
    all.get_subcommands().filter(|c| !c.is_hide_set()).cloned().fold(root, Command::subcommand)
}
