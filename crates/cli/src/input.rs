//! A program as a command takes it: an object, or with `--raw` a bare array of instructions, which is wrapped into one.

use std::path::Path;

use bpf_raw::{Form, RawError, RawMap, Wrapped};

use crate::args::RawArgs;
use crate::failure::Failure;
use crate::files;

/// The section of an array of which only a listing is wanted: no program type.
const NO_TYPE: &str = "array";

/// A file that was read.
pub struct Input {
    /// As it was read.
    pub bytes: Vec<u8>,
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
        Input::taken(path, raw, program_type, false)
    }

    /// Reads a file for a command that only shows it; what is not said of an array does not matter then.
    pub fn read_to_show(path: &Path, raw: &RawArgs, program_type: Option<&str>) -> Result<Input, Failure> {
        Input::taken(path, raw, program_type, true)
    }

    fn taken(path: &Path, raw: &RawArgs, program_type: Option<&str>, only_shown: bool) -> Result<Input, Failure> {
        if raw.maps.is_some() && !raw.raw {
            return Err(Failure::bad_input("--maps says what the maps of an array are like: it needs --raw"));
        }
        let bytes = files::read(path)?;
        if !raw.raw || is_object(&bytes) {
            return Ok(Input { object: bytes.clone(), bytes, array: None });
        }
        Input::of_array(path, &bytes, raw.maps.as_deref(), program_type, only_shown)
    }

    /// The object of an array that was read from `path`. `maps`: the file that describes its maps. If it is `only_shown`, its
    /// type may be left open, and then its maps, too.
    pub fn of_array(
        path: &Path,
        bytes: &[u8],
        maps: Option<&Path>,
        program_type: Option<&str>,
        only_shown: bool,
    ) -> Result<Input, Failure> {
        let mut maps = described(maps)?;
        let fail = |e: RawError| failure(path, &e);
        let array = bpf_raw::read(bytes, &maps).map_err(fail)?;
        let section = match program_type {
            Some(kind) => bpf_raw::section_of(kind).map_err(fail)?,
            None if only_shown => {
                let known = |n: &i32| maps.iter().any(|m| m.number == *n);
                let unknown: Vec<i32> = bpf_raw::map_numbers(&array.slots).into_iter().filter(|n| !known(n)).collect();
                maps.extend(unknown.into_iter().map(stand_in));
                NO_TYPE
            }
            None => {
                let what = format!("{}: an array does not say what type of program it is", path.display());
                return Err(Failure::bad_input(what)
                    .with_hint("say it with --type (`xdp`, `tc`, `socket`, `tracepoint/syscalls/sys_enter_open` …)"));
            }
        };
        let Wrapped { object, by_index } = bpf_raw::wrap(&array.slots, section, &maps).map_err(fail)?;
        Ok(Input { bytes: bytes.to_vec(), object, array: Some(ArrayOrigin { form: array.form, maps, by_index }) })
    }
}

/// Whether a file is an object, not an array.
pub fn is_object(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// A map of which nothing is known but its number.
fn stand_in(number: i32) -> RawMap {
    let (name, bytes) = (format!("map{number}"), 4);
    RawMap { number, name, map_type: 2, key_size: bytes, value_size: bytes, max_entries: 1, ..RawMap::default() }
}

fn described(path: Option<&Path>) -> Result<Vec<RawMap>, Failure> {
    let Some(path) = path else { return Ok(Vec::new()) };
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
