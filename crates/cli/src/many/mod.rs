//! Many objects with one command: `opt`, `verify`, `check`, `load`, `bench` and `ci` on lists and folders.
//!
//! [`inputs`] says which objects, [`work`] has each worked on and gives account of all, [`pool`] keeps the number of threads.
//! A file for each command says what it does with one object and what its table shows ([`table`], [`query`]); reports wait in
//! a [`spool`] until all are there. What is to be done with one object is not said here, but by the command itself.

pub mod args;

mod bench;
mod check;
mod ci;
mod compare;
mod inputs;
mod load;
mod opt;
mod pool;
mod query;
mod spool;
mod table;
mod verify;
mod work;

use crate::args::{BenchArgs, CheckArgs, CiArgs, LoadArgs, OptArgs, VerifyArgs};
use crate::failure::Failure;

/// `opt`: one object to a file, many to a folder.
pub fn optimize(args: &OptArgs) -> Result<u8, Failure> {
    if args.list_parts || args.make_parts {
        return crate::opt::parts::run(args);
    }
    match (&args.inputs[..], &args.output, &args.directory) {
        (_, _, Some(folder)) => opt::run(args, folder),
        ([input], Some(output), _) if !args.many.asks_for_a_table() => crate::opt::run(args, input, output),
        _ => Err(Failure::bad_input("-o takes what is made of one object")
            .with_hint("many objects go to a folder: `bpf-opt opt IN.o … -d DIR`")),
    }
}

/// `verify`: two objects, or many against those in a folder.
pub fn verify(args: &VerifyArgs) -> Result<u8, Failure> {
    match (&args.objects[..], &args.directory) {
        (_, Some(folder)) => verify::run(args, folder),
        ([a, b], None) if !args.many.asks_for_a_table() && args.table.csv.is_none() => crate::verify::run(args, a, b),
        _ => Err(Failure::bad_input("two objects are compared")
            .with_hint("many with those in a folder: `bpf-opt verify A.o … -d DIR`")),
    }
}

/// `check`: one object in words, many in a table.
pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    match args.table.only_one(&args.files, &args.many) {
        Some(file) => crate::check::run(args, file),
        None => check::run(args),
    }
}

/// `load`: one object in words, many in a table, two beside each other.
pub fn load(args: &LoadArgs) -> Result<u8, Failure> {
    let one = args.table.only_one(&args.files, &args.many).filter(|_| !args.compare);
    if args.log && one.is_none() {
        return Err(Failure::bad_input("--log prints the logs of one object").with_hint("--json has those of many"));
    }
    match one {
        None if args.compare => compare::run(args),
        Some(file) => crate::load::run(args, file),
        None => load::run(args),
    }
}

/// `bench`: objects beside each other, or many beside those in a folder.
pub fn bench(args: &BenchArgs) -> Result<u8, Failure> {
    match &args.directory {
        Some(folder) => bench::run(args, folder),
        None if args.many.asks_for_a_table() => {
            Err(Failure::bad_input("--list, --sort and --only are for many objects")
                .with_hint("those in a folder beside others: `bpf-opt bench A.o … -d DIR`"))
        }
        None => crate::bench::run(args),
    }
}

/// `ci`: always a table.
pub fn ci(args: &CiArgs) -> Result<u8, Failure> {
    ci::run(args)
}
