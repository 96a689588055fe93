//! Many objects with one command: `opt`, `verify`, `check`, `load`, `bench` and `ci` on lists and folders.
//!
//! [`inputs`] says which objects, [`work`] has each worked on and gives account of all, [`pool`] keeps the number of threads.
//! A file for each command says what it does with one object and what its table shows ([`table`], [`query`]); reports wait in
//! a [`spool`] until all are there. What is to be done with one object is not said here, but by the command itself.

pub mod args;
pub mod inputs;

mod bench;
mod check;
mod ci;
mod compare;
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
    const HINT: &str = "many objects go to a folder: `bpf-opt opt IN.o … -d DIR`";
    let of_many = args.many.first_given(args.csv.as_deref());
    if args.list_parts || args.make_parts {
        return match of_many {
            Some(option) => Err(Failure::bad_input(format!("{option} does not go with --list-parts or --make-parts"))
                .with_hint("name the objects; no table is made of them")),
            None => crate::opt::parts::run(args),
        };
    }
    match (&args.inputs[..], &args.output, &args.directory, of_many) {
        (_, _, Some(folder), _) => opt::run(args, folder),
        ([input], Some(output), _, None) => crate::opt::run(args, input, output),
        ([_] | [], Some(_), _, Some(option)) => Err(is_about_many(option, HINT)),
        _ => Err(Failure::bad_input("-o takes what is made of one object").with_hint(HINT)),
    }
}

/// An option of many objects where there is one, or one beside others.
fn is_about_many(option: &str, hint: &str) -> Failure {
    Failure::bad_input(format!("{option} is for many objects")).with_hint(hint)
}

/// `verify`: two objects, or many against those in a folder.
pub fn verify(args: &VerifyArgs) -> Result<u8, Failure> {
    const HINT: &str = "many with those in a folder: `bpf-opt verify A.o … -d DIR`";
    match (&args.objects[..], &args.directory, args.many.first_given(args.table.csv.as_deref())) {
        (_, Some(folder), _) => verify::run(args, folder),
        ([a, b], None, None) => crate::verify::run(args, a, b),
        (_, None, Some(option)) => Err(is_about_many(option, HINT)),
        _ => Err(Failure::bad_input("two objects are compared").with_hint(HINT)),
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
    const HINT: &str = "those in a folder beside others: `bpf-opt bench A.o … -d DIR`";
    // Its `--csv` is for objects beside each other, too.
    match (&args.directory, args.many.first_given(None)) {
        (Some(folder), _) => bench::run(args, folder),
        (None, Some(option)) => Err(is_about_many(option, HINT)),
        (None, None) => crate::bench::run(args),
    }
}

/// `ci`: always a table.
pub fn ci(args: &CiArgs) -> Result<u8, Failure> {
    ci::run(args)
}
