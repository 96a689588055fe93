//! `bpf-opt instrument`: a copy of an object that counts how often its blocks run, and what it has counted.

pub mod args;

use std::collections::BTreeSet;
use std::path::Path;

use bpf_driver::counts::Counts;
use bpf_driver::instrument::{self, InstrumentError, Instrumented, SECTION};
use bpf_kernel::{LoadOptions, LoadVerdict, Map, load_object, permitted};
use bpf_object::{FuncId, Object};

use crate::counts;
use crate::elements;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use args::InstrumentArgs;

/// Runs the command.
pub fn run(args: &InstrumentArgs) -> Result<u8, Failure> {
    let object = files::read(&args.file)?;
    let output = match args.read {
        true => Destination::or_stdout(&args.output)?,
        false => Destination::of_object(&args.output)?,
    };
    let besides: Vec<&Path> = std::iter::once(args.file.as_path()).chain(args.dump.as_deref()).collect();
    output.overwrites_none("the result", &besides, "name another output behind -o")?;
    if args.read {
        counts::write(&counted(args, &object)?, &output)?;
        return Ok(exit::YES);
    }
    let made = accepted(args, &object)?;
    output.write(&made.bytes, files::mode_of(&args.file))?;
    for (name, why) in &made.left_out {
        files::complain(format!("note: {name} does not count: {why}"));
    }
    files::complain(format!(
        "{} functions count with {} counters in the map {SECTION}; read them with `bpf-opt instrument {} --read --map-id N -o counts.json`",
        made.functions,
        made.counters,
        args.file.display()
    ));
    Ok(exit::YES)
}

fn failed(path: &Path, error: &InstrumentError) -> Failure {
    match error {
        InstrumentError::Object(e) => Failure::object(path, e),
        _ => Failure::bad_input(format!("{}: {error}", path.display())),
    }
}

/// The copy, without what this kernel takes of the object and refuses of the copy.
fn accepted(args: &InstrumentArgs, object: &[u8]) -> Result<Instrumented, Failure> {
    let fail = |e: InstrumentError| failed(&args.file, &e);
    let mut without = BTreeSet::new();
    let mut because: Vec<(String, String)> = Vec::new();
    let mut made = instrument::instrument(object, &without).map_err(fail)?;
    if args.no_kernel || permitted().require().is_err() {
        return Ok(made);
    }
    let parsed = Object::parse(object.to_vec()).map_err(|e| Failure::object(&args.file, &e))?;
    let options = LoadOptions { program_type: args.program_type.clone(), only: None };
    let ask = |bytes: &[u8]| load_object(bytes, &options).map_err(|e| Failure::kernel(&args.file, &e));
    let before = ask(object)?;
    loop {
        let after = ask(&made.bytes)?;
        let is_refused = |name: &str, verdict: &LoadVerdict| {
            !verdict.is_accepted() && before.programs.iter().any(|p| p.name == name && p.verdict.is_accepted())
        };
        let refused: Vec<_> = after.programs.iter().filter(|p| is_refused(&p.name, &p.verdict)).collect();
        let known = without.len();
        for program in &refused {
            let number = parsed.functions().iter().position(|f| f.name == program.name);
            for FuncId(f) in number.map_or_else(Vec::new, |n| parsed.loaded_with([FuncId(n)]).into_iter().collect()) {
                let name = parsed.functions()[f].name.clone();
                if without.insert(name.clone()) {
                    because.push((
                        name,
                        format!("this kernel refuses {} then: {}", program.name, program.verdict.reason()),
                    ));
                }
            }
        }
        if without.len() == known {
            let said = |(name, why): (String, String)| match because.iter().find(|(n, _)| *n == name) {
                Some((_, because)) => (name, because.clone()),
                None => (name, why),
            };
            made.left_out = made.left_out.into_iter().map(said).collect();
            return Ok(made);
        }
        made = match instrument::instrument(object, &without) {
            Err(InstrumentError::Nothing(_)) => return Err(fail(InstrumentError::Nothing(because))),
            made => made.map_err(fail)?,
        };
    }
}

/// What a copy has counted.
fn counted(args: &InstrumentArgs, object: &[u8]) -> Result<Counts, Failure> {
    let kernel = |e: bpf_kernel::KernelError| {
        Failure::bad_input(e.to_string()).with_hint("`bpftool map` lists the maps that are loaded")
    };
    let value = match (&args.dump, args.map_id, &args.pinned) {
        (Some(file), ..) => match &elements::of_map(SECTION, file)?[..] {
            [(_, value)] => value.clone(),
            all => {
                let many = format!("{}: {} elements, and a map of counters has one", file.display(), all.len());
                return Err(Failure::bad_input(many));
            }
        },
        (None, Some(id), _) => of_map(&Map::by_id(id).map_err(kernel)?)?,
        (None, None, Some(path)) => of_map(&Map::pinned(path).map_err(kernel)?)?,
        (None, None, None) => return Err(Failure::bad_input("--read needs --map-id, --pinned or --dump")),
    };
    instrument::read(object, &value).map_err(|e| {
        let hint = "name the object that the copy was made of, and the map `.data.counts` of the copy";
        failed(&args.file, &e).with_hint(hint)
    })
}

/// The only value of a map.
fn of_map(map: &Map) -> Result<Vec<u8>, Failure> {
    let wrong = |what: &str| Failure::bad_input(format!("map {}: {what}", map.name()));
    if (map.key_size(), map.max_entries()) != (4, 1) {
        return Err(wrong("it has more than one element, and a map of counters has one"));
    }
    let value = map.lookup(&[0; 4]).map_err(|e| wrong(&e.to_string()))?;
    value.ok_or_else(|| wrong("it is empty"))
}
