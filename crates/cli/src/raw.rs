//! `bpf-opt raw`: a program of an object as a bare array of instructions, and an array as an object.

use std::path::Path;

use bpf_object::{FuncKind, Object};
use bpf_raw::Form;

use crate::args::{FormArg, RawCommandArgs};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::{self, Input};

/// Runs the command.
pub fn run(args: &RawCommandArgs) -> Result<u8, Failure> {
    let output = Destination::of(&args.output)?;
    let maps_to = args.write_maps.as_deref().map(Destination::of).transpose()?;
    let read: Vec<&Path> = [args.input.as_path()].into_iter().chain(args.maps.as_deref()).collect();
    let hint = "name another file for one of them";
    output.overwrites_none("what is written", args.maps.as_deref().as_slice(), hint)?;
    if let Some(maps_to) = &maps_to {
        let others: Vec<&Path> = read.into_iter().chain([args.output.as_path()]).collect();
        maps_to.overwrites_none("what the maps are like", &others, hint)?;
    }
    let named = args.form.map(FormArg::form).or_else(|| input::form_of_name(&args.output));
    let bytes = files::read(&args.input)?;
    let is_object = input::is_object(&bytes);
    // An object becomes bytes unless something else is said, an array an object.
    let form = named.unwrap_or(if is_object { Some(Form::Binary) } else { None });
    let (bytes, maps) = match (is_object, form) {
        (true, None) => {
            return Err(
                Failure::bad_input("it is an object already").with_hint("name an output such as prog.bin or prog.c")
            );
        }
        (true, Some(form)) => of_object(args, bytes, form)?,
        (false, _) => {
            // Written as an array again, the object is not seen.
            let (maps, kind) = (args.maps.as_deref(), args.program_type.as_deref());
            let Input { object, array, .. } = Input::of_array(&args.input, &bytes, maps, kind, form.is_some())?;
            match (array, form) {
                (Some(array), Some(form)) => (array.array(&object, form)?, String::new()),
                _ => (object, String::new()),
            }
        }
    };
    if let Some(maps_to) = maps_to {
        maps_to.write(maps.as_bytes(), None)?;
    }
    output.write(&bytes, None)?;
    Ok(exit::YES)
}

/// The array of a program, and the description of its maps.
fn of_object(args: &RawCommandArgs, bytes: Vec<u8>, form: Form) -> Result<(Vec<u8>, String), Failure> {
    let object = Object::parse(bytes.clone()).map_err(|e| Failure::object(&args.input, &e))?;
    let program = chosen(&args.input, &object, args.program.as_deref())?;
    let array = bpf_raw::unwrap(&bytes, &program, &|_| None, false).map_err(|e| input::failure(&args.input, &e))?;
    let mut maps =
        format!("# {program}, of section {}: number, type, bytes of a key, of a value, entries\n", array.section);
    for map in &array.maps {
        maps += &(map.line() + "\n");
    }
    let has_maps = array.maps.is_empty() || args.write_maps.is_some();
    if !has_maps {
        files::complain("note: the array names maps by number; --write-maps FILE writes what they are like");
    }
    Ok((bpf_raw::write(&array.slots, form), maps))
}

/// The program to take: the one that is named, or the only one.
fn chosen(path: &Path, object: &Object, named: Option<&str>) -> Result<String, Failure> {
    let programs = || object.functions().iter().filter(|f| f.kind == FuncKind::Program).map(|f| f.name.as_str());
    match named {
        Some(name) if programs().any(|p| p == name) => Ok(name.to_owned()),
        Some(name) => Err(Failure::no_such_program(path, name, programs())),
        None => {
            let mut all = programs();
            match (all.next(), all.next()) {
                (Some(only), None) => Ok(only.to_owned()),
                (None, _) => Err(Failure::bad_input(format!("{}: no program in it", path.display()))),
                _ => {
                    let names: Vec<&str> = programs().collect();
                    Err(Failure::bad_input(format!("{}: which program? It has {}", path.display(), names.join(", ")))
                        .with_hint("name it with --program"))
                }
            }
        }
    }
}
