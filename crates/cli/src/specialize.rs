//! `bpf-opt specialize`: an object for declared constants and frozen maps, optimized.

use crate::args::SpecializeArgs;
use crate::declared::declared;
use crate::failure::Failure;
use crate::many;

/// Runs the command.
pub fn run(args: &SpecializeArgs) -> Result<u8, Failure> {
    let declared = declared(&args.declared)?;
    if declared.is_empty() {
        return Err(Failure::bad_input("nothing is declared: what is the object to be specialized for?").with_hint(
            "--rodata NAME=VALUE, --kconfig NAME=VALUE, --frozen-map NAME=FILE; `bpf-opt help specialize`",
        ));
    }
    let mut opt = args.opt.clone();
    for (option, wanted) in [("--raw", opt.raw.raw), ("--also", !opt.also.is_empty()), ("-d", opt.directory.is_some())]
    {
        if wanted {
            return Err(Failure::bad_input(format!("{option} does not go with specialize")));
        }
    }
    opt.declared = Some(Box::new(declared));
    many::optimize(&opt)
}
