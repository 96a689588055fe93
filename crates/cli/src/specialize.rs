//! `bpf-opt specialize`: an object for declared constants and frozen maps, optimized.

use std::path::Path;

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
    let ([_], Some(_)) = (&opt.inputs[..], &opt.output) else {
        return Err(Failure::bad_input("one object is specialized, and the result goes to -o OUT.o"));
    };
    opt.declared = Some(Box::new(declared));
    opt.declared_in = args.declared.files().map(Path::to_owned).collect();
    many::optimize(&opt)
}
