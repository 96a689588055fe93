//! A program as a command takes it: an object, or with `--raw` a bare array of instructions, which is wrapped into one.

use std::path::Path;

use bpf_raw::{Form, RawError, RawMap, Wrapped};

use crate::args::RawArgs;
use crate::failure::Failure;
use crate::files;

/// What the kernel's types are for an array of which only a listing is wanted.
const NO_TYPE: &str = "array";

/// A file that was read.
pub struct Input {
    /// The object.
    pub object: Vec<u8>,
    /// How it was made of an array.
    pub array: Option<ArrayOrigin>,
}

/// The array that an object was made of.
pub struct ArrayOrigin {
    /// How it is written.
    pub form: Form,
    maps: Vec<RawMap>,
    by_index: bool,
}

impl ArrayOrigin {
    /// The array of a changed object.
    pub fn array(&self, object: &[u8], form: Form) -> Result<Vec<u8>, Failure> {
        let number = |name: &str| self.maps.iter().find(|m| m.name == name).map(|m| m.number);
        let program = bpf_raw::unwrap(object, bpf_raw::PROGRAM, &number, self.by_index).map_err(|e| Failure {
            code: crate::failure::exit::INTERNAL,
            message: e.to_string(),
            hint: None,
        })?;
        Ok(bpf_raw::write(&program.slots, form))
    }
}

impl Input {
    /// The type to load programs as instead of what their sections say: that of an array's object does.
    pub fn forced_type(&self, said: Option<&str>) -> Option<String> {
        said.filter(|_| self.array.is_none()).map(str::to_owned)
    }

    /// Reads a file for a command that judges or changes programs; of an array `--type` says the type.
    pub fn read(path: &Path, raw: &RawArgs, program_type: Option<&str>) -> Result<Input, Failure> {
        Input::wrapped(path, raw, |_| {
            let missing = || {
                Failure::bad_input(format!("{}: an array does not say what type of program it is", path.display()))
                    .with_hint("say it with --type (`xdp`, `tc`, `socket`, `tracepoint/syscalls/sys_enter_open` …)")
            };
            program_type.ok_or_else(missing)
        })
    }

    /// Reads a file for a command that only shows it; what is not said of an array does not matter then.
    pub fn read_to_show(path: &Path, raw: &RawArgs, program_type: Option<&str>) -> Result<Input, Failure> {
        Input::wrapped(path, raw, |_| Ok(program_type.unwrap_or(NO_TYPE)))
    }

    fn wrapped<'a>(
        path: &Path,
        raw: &RawArgs,
        program_type: impl FnOnce(()) -> Result<&'a str, Failure>,
    ) -> Result<Input, Failure> {
        let bytes = files::read(path)?;
        if !raw.raw || bytes.starts_with(b"\x7fELF") {
            return Ok(Input { object: bytes, array: None });
        }
        let mut maps = described(raw)?;
        let fail = |e: RawError| failure(path, &e);
        let array = bpf_raw::read(&bytes, &maps).map_err(fail)?;
        let kind = program_type(())?;
        if kind == NO_TYPE {
            let known = |n: &i32| maps.iter().any(|m| m.number == *n);
            let unknown: Vec<i32> = bpf_raw::map_numbers(&array.slots).into_iter().filter(|n| !known(n)).collect();
            maps.extend(unknown.into_iter().map(stand_in));
        }
        let section = bpf_raw::section_of(kind).map_err(fail)?;
        let Wrapped { object, by_index } = bpf_raw::wrap(&array.slots, section, &maps).map_err(fail)?;
        Ok(Input { object, array: Some(ArrayOrigin { form: array.form, maps, by_index }) })
    }
}

/// A map of which nothing is known but its number.
fn stand_in(number: i32) -> RawMap {
    let (name, bytes) = (format!("map{number}"), 4);
    RawMap { number, name, map_type: 2, key_size: bytes, value_size: bytes, max_entries: 1, ..RawMap::default() }
}

fn described(raw: &RawArgs) -> Result<Vec<RawMap>, Failure> {
    let Some(path) = &raw.maps else { return Ok(Vec::new()) };
    let text = files::read(path)?;
    bpf_raw::maps(&String::from_utf8_lossy(&text)).map_err(|e| failure(path, &e))
}

/// An array, or a description of maps, that is not understood.
pub fn failure(path: &Path, error: &RawError) -> Failure {
    let failure = Failure::bad_input(format!("{}: {error}", path.display()));
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// The form that the name of a file says; `None` for objects.
pub fn form_of_name(path: &Path) -> Option<Option<Form>> {
    Some(match path.extension()?.to_str()? {
        "o" => None,
        "c" | "h" | "inc" => Some(Form::C),
        "hex" | "txt" => Some(Form::Hex),
        "bin" | "raw" | "insns" => Some(Form::Binary),
        _ => return None,
    })
}
