//! What is declared to `specialize` and to `verify --assume`: read from the command line, done, and told.

use std::path::Path;

use bpf_driver::{Options, Report, Unfit, UnfitBecause, Yardstick};
use bpf_object::Object;
use bpf_specialize::{Declared, Done, Given, SpecializeError};
use serde::Serialize;

use crate::args::{DeclaredArgs, VerifyArgs};
use crate::failure::{Failure, exit};
use crate::{elements, packets};

/// What the command line declares.
pub fn declared(args: &DeclaredArgs) -> Result<Declared, Failure> {
    let mut declared = Declared { guard: args.guard, ..Declared::default() };
    let twice = |what: &str, name: &str| Failure::bad_input(format!("{what} {name} is declared twice"));
    for text in &args.rodata {
        let (name, value) = text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value)));
        let given = value.map_or(Ok(Given::AsIs), |value| given(name, value))?;
        if declared.variables.insert(name.to_owned(), given).is_some() {
            return Err(twice("variable", name));
        }
    }
    for text in &args.kconfig {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Failure::bad_input(format!("--kconfig {text}: its value is missing")).with_hint("--kconfig CONFIG_HZ=250")
        })?;
        let n = number(value).ok_or_else(|| {
            Failure::bad_input(format!("--kconfig {text}: not a number"))
                .with_hint("of a bool 0 or 1, of a tristate 0, 1 or 2 for n, y or m")
        })?;
        if declared.kconfig.insert(name.to_owned(), n).is_some() {
            return Err(twice("kconfig variable", name));
        }
    }
    for text in &args.frozen_map {
        let (name, file) = text.split_once('=').ok_or_else(|| {
            Failure::bad_input(format!("--frozen-map {text}: the file with its elements is missing"))
                .with_hint("--frozen-map NAME=FILE, as `bpftool -j map dump name NAME` writes it")
        })?;
        let elements = elements::of_map(name, Path::new(file))?;
        if declared.maps.insert(name.to_owned(), elements.into()).is_some() {
            return Err(twice("map", name));
        }
    }
    let unknown = |option: &str, name: &str| {
        Failure::bad_input(format!("{option} {name}: nothing else is declared of that map"))
            .with_hint(format!("--frozen-map {name}=FILE"))
    };
    for text in &args.array_length {
        let (name, length) = text.split_once('=').ok_or_else(|| {
            Failure::bad_input(format!("--array-length {text}: the number is missing"))
                .with_hint("--array-length NAME=NUMBER")
        })?;
        let length = number(length).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        let length = length
            .ok_or_else(|| Failure::bad_input(format!("--array-length {text}: not a number from 1 to {}", u32::MAX)))?;
        let map = declared.maps.get_mut(name).ok_or_else(|| unknown("--array-length", name))?;
        if map.length.replace(length).is_some() {
            return Err(twice("the length of map", name));
        }
    }
    for name in &args.zero_others {
        declared.maps.get_mut(name).ok_or_else(|| unknown("--zero-others", name))?.others_are_zero = true;
    }
    Ok(declared)
}

fn given(name: &str, value: &str) -> Result<Given, Failure> {
    let bad = |what: String| Failure::bad_input(format!("--rodata {name}={value}: {what}"));
    if let Some(digits) = value.strip_prefix("hex:") {
        return packets::hex(digits).map(Given::Bytes).map_err(bad);
    }
    let n = match value {
        "true" => Some(1),
        "false" => Some(0),
        _ => number(value),
    };
    n.map(Given::Number).ok_or_else(|| {
        bad("no number".into()).with_hint("-5, 0x1f, true, false, or all bytes as they stand in memory: hex:0a000001")
    })
}

fn number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    // Rust's own reader takes a second sign.
    if digits.contains(['+', '-']) {
        return None;
    }
    let n = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(sign * i128::from(n))
}

/// The object at `path` for what is declared.
pub fn specialized(path: &Path, object: &[u8], declared: &Declared) -> Result<Done, Failure> {
    bpf_specialize::specialize(object, declared).map_err(|e| match e {
        SpecializeError::Object(e) => Failure::object(path, &e),
        SpecializeError::Internal(text) => Failure::internal(format!("{}: {text}", path.display())),
        other => Failure::bad_input(format!("{}: {other}", path.display())),
    })
}

/// The object at `path` for what is declared, in the first form in which each program is taken that is taken of the original,
/// and is not more work for the verifier than `options` allow; and what to say of it.
pub fn fitted(
    path: &Path,
    object: &[u8],
    declared: &Declared,
    options: &Options,
) -> Result<(Done, Vec<String>), Failure> {
    let yardstick = Yardstick::of(object, options).map_err(|e| Failure::driver(path, &e))?;
    let mut declared = declared.clone();
    let mut notes = Vec::new();
    loop {
        let done = specialized(path, object, &declared)?;
        let unfit = yardstick.unfit(&done.bytes).map_err(|e| Failure::driver(path, &e))?;
        let Some(first) = unfit.first() else { return Ok((done, notes)) };
        // Of the elements of tables that are compared one after the other the verifier knows which was found, and goes on
        // for each of them.
        if done.compares_keys() && !declared.form.only_hashes {
            declared.form.only_hashes = true;
            notes.push(format!("note: no keys are compared one after the other: {}", against(first)));
            continue;
        }
        let general = &mut declared.form.general;
        let mut more = false;
        for program in &unfit {
            let new = program.functions.iter().filter(|name| done.looks_up_in.contains(*name));
            let count = general.len();
            general.extend(new.cloned());
            if general.len() > count {
                more = true;
                notes.push(format!("note: all lookups of `{}` stay: {}", program.program, against(program)));
            }
        }
        if !more {
            return Err(refusal(path, first));
        }
    }
}

/// What stands against a program, in words.
fn against(unfit: &Unfit) -> String {
    let name = &unfit.program;
    let who = if unfit.by_kernel { "this kernel" } else { "check" };
    match &unfit.because {
        UnfitBecause::Refused(why) => format!("{who} refuses `{name}` once it is specialized: {why}"),
        UnfitBecause::NotJudged(why) => format!("{who} has not judged `{name}` as it is specialized: {why}"),
        UnfitBecause::Heavier(before, after) => {
            format!("the verifier's work on `{name}` grows from {before} to {after} instructions")
        }
    }
}

fn refusal(path: &Path, unfit: &Unfit) -> Failure {
    let hint = match unfit.because {
        UnfitBecause::Heavier(..) => "--max-verifier-growth says how much it may grow",
        UnfitBecause::NotJudged(_) => "more time: --time-limit",
        UnfitBecause::Refused(_) => "declare less, or report it",
    };
    Failure { code: exit::NO, message: format!("{}: {}", path.display(), against(unfit)), hint: Some(hint.into()) }
}

/// What of an object's specialization is told in reports.
#[derive(Serialize)]
pub struct Specialized {
    /// One line for each thing assumed.
    assumed: Vec<String>,
    /// Loads that have become constants.
    constants: usize,
    maps: Vec<Map>,
    /// Why it is written in another form than the first.
    notes: Vec<String>,
    #[serde(skip)]
    guard_is_missing: bool,
}

#[derive(Serialize)]
struct Map {
    name: String,
    elements: usize,
    lookups: usize,
    lookups_left: usize,
    left_because: Vec<String>,
    table_bytes: usize,
}

impl Specialized {
    /// Of what was done.
    pub fn of(done: &Done, wanted: &Declared, notes: Vec<String>) -> Specialized {
        let map = |m: &bpf_specialize::MapUse| Map {
            name: m.name.clone(),
            elements: m.elements,
            lookups: m.lookups,
            lookups_left: m.left,
            left_because: m.left_because.iter().map(|(why, n)| format!("{n} stay: {why}")).collect(),
            table_bytes: m.bytes,
        };
        Specialized {
            assumed: done.declared.lines(),
            constants: done.constants,
            maps: done.maps.iter().map(map).collect(),
            notes,
            guard_is_missing: wanted.guard && !done.declared.guard,
        }
    }

    /// The same for people, line by line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.assumed.iter().map(|line| format!("assumed: {line}")).collect();
        if self.constants > 0 {
            lines.push(format!("{} loads are constants now", self.constants));
        }
        for m in &self.maps {
            let left: String = m.left_because.iter().map(|why| format!("; {why}")).collect();
            lines.push(format!("map {}: {} lookups in a table of {} bytes{left}", m.name, m.lookups, m.table_bytes));
        }
        if self.guard_is_missing {
            lines.push(
                "warning: no lookup has become one in a table, so there is nothing to guard: no .data.bpf_opt"
                    .to_owned(),
            );
        }
        lines.extend_from_slice(&self.notes);
        if self.constants == 0 && self.maps.iter().all(|m| m.lookups + m.lookups_left == 0) {
            lines.push("warning: nothing in the object depends on what is declared".to_owned());
        }
        lines
    }
}

/// Tells slots before as the original has them.
pub fn correct(report: &mut Report, original: &Object) {
    for (told, f) in report.functions.iter_mut().zip(original.functions()) {
        told.slots_before = f.slots;
    }
}

/// What `verify --assume` takes for granted, and the first object under it.
pub struct Assumed {
    /// The object that the second has to be equal to.
    pub object: Vec<u8>,
    /// One line for each thing assumed.
    pub lines: Vec<String>,
}

/// Of the note of object `b`, which has to say what the command line declares, if it declares something; `None`: nothing is
/// assumed.
pub fn assumed(
    args: &VerifyArgs,
    [path_a, path_b]: [&Path; 2],
    a: &[u8],
    b: &[u8],
) -> Result<Option<Assumed>, Failure> {
    let wanted = declared(&args.declared)?;
    if !args.assume {
        return match wanted.is_empty() {
            true => Ok(None),
            false => Err(Failure::bad_input("declarations go with --assume")),
        };
    }
    let of_b = |e: SpecializeError| Failure::bad_input(format!("{}: {e}", path_b.display()));
    let object = Object::parse(b.to_vec()).map_err(|e| Failure::object(path_b, &e))?;
    let noted = Declared::of_note(&object).map_err(of_b)?;
    let done = specialized(path_a, a, &noted)?;
    if !wanted.is_empty() && !specialized(path_a, a, &wanted)?.is_for_the_same(&done) {
        let message = format!("{} was specialized for something else than is declared", path_b.display());
        let hint = Some("`--assume` alone tells what it was specialized for".into());
        return Err(Failure { code: exit::NO, message, hint });
    }
    Ok(Some(Assumed { object: done.bytes, lines: done.declared.lines() }))
}
