//! What is assumed: as the user says it, and as the note in the object has it.

use std::collections::BTreeMap;
use std::fmt::Write;

use bpf_object::Object;
use serde::{Deserialize, Serialize};

use crate::error::SpecializeError;

/// The section in which an object says what it was specialized for.
pub const NOTE_SECTION: &str = ".note.bpf_opt";
/// The owner of the ELF note in it.
pub const NOTE_OWNER: &str = "bpf-opt";

/// The value of a variable, as the user gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Given {
    /// What the object has.
    AsIs,
    /// A number; the variable has 1, 2, 4 or 8 bytes.
    Number(i128),
    /// All bytes, as they stand in memory.
    Bytes(Vec<u8>),
}

/// The key and the value of an element of a map, as they stand in memory.
pub type Element = (Vec<u8>, Vec<u8>);

/// What will hold whenever a program of the object runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    /// Variables in `.rodata` and the like that hold these values.
    pub variables: BTreeMap<String, Given>,
    /// Kconfig variables and what the loader gives them.
    pub kconfig: BTreeMap<String, u64>,
    /// Maps that hold these elements and no others.
    pub maps: BTreeMap<String, Vec<Element>>,
    /// The maps do so only while the variable `bpf_opt_generation` of the section `.data.bpf_opt` is 0.
    pub guard: bool,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Note {
    variables: BTreeMap<String, String>,
    kconfig: BTreeMap<String, u64>,
    maps: BTreeMap<String, Vec<(String, String)>>,
    guard: bool,
}

impl Declared {
    /// Whether nothing is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.kconfig.is_empty() && self.maps.is_empty()
    }

    /// What an object says that it was specialized for.
    ///
    /// # Errors
    /// If it says nothing, or nothing that can be read.
    pub fn of_note(object: &Object) -> Result<Declared, SpecializeError> {
        let text = object.note(NOTE_SECTION, NOTE_OWNER).ok_or(SpecializeError::NoNote)?;
        Declared::of_json(text)
    }

    /// Reads the text of a note.
    ///
    /// # Errors
    /// If it is no such text.
    pub fn of_json(text: &[u8]) -> Result<Declared, SpecializeError> {
        let bad = |e: String| SpecializeError::BadNote(e);
        let note: Note = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        let bytes = |hex: &str| of_hex(hex).ok_or_else(|| bad(format!("`{hex}` are no bytes")));
        let variables = note.variables.iter().map(|(name, hex)| Ok((name.clone(), Given::Bytes(bytes(hex)?))));
        let elements = |list: &Vec<(String, String)>| {
            list.iter().map(|(k, v)| Ok((bytes(k)?, bytes(v)?))).collect::<Result<Vec<Element>, SpecializeError>>()
        };
        let maps = note.maps.iter().map(|(name, list)| Ok((name.clone(), elements(list)?)));
        Ok(Declared {
            variables: variables.collect::<Result<_, SpecializeError>>()?,
            maps: maps.collect::<Result<_, SpecializeError>>()?,
            kconfig: note.kconfig,
            guard: note.guard,
        })
    }

    /// The text of the note. Variables are said by all their bytes: [`Given::Bytes`].
    #[must_use]
    pub fn to_json(&self) -> String {
        let value = |given: &Given| match given {
            Given::Bytes(bytes) => hex(bytes),
            _ => String::new(),
        };
        let note = Note {
            variables: self.variables.iter().map(|(name, given)| (name.clone(), value(given))).collect(),
            kconfig: self.kconfig.clone(),
            maps: (self.maps.iter())
                .map(|(name, list)| (name.clone(), list.iter().map(|(k, v)| (hex(k), hex(v))).collect()))
                .collect(),
            guard: self.guard,
        };
        serde_json::to_string(&note).unwrap_or_default()
    }

    /// One line for each thing assumed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, given) in &self.variables {
            lines.push(match given {
                Given::AsIs => format!("variable {name} holds what the object says"),
                Given::Number(n) => format!("variable {name} is {n}"),
                Given::Bytes(bytes) => match number(bytes) {
                    Some(n) => format!("variable {name} is {n} (bytes {})", hex(bytes)),
                    None => format!("variable {name} holds the bytes {}", hex(bytes)),
                },
            });
        }
        lines.extend(self.kconfig.iter().map(|(name, n)| format!("kconfig variable {name} is {n}")));
        let guard = if self.guard { ", while bpf_opt_generation is 0" } else { "" };
        for (name, elements) in &self.maps {
            let elements = match elements.len() {
                0 => "no element".to_owned(),
                1 => "1 given element and no other".to_owned(),
                n => format!("{n} given elements and no other"),
            };
            lines.push(format!("map {name} holds {elements}{guard}"));
        }
        lines
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len()).filter(|_| bytes.len().is_power_of_two())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| Some((*pair.first()? << 4 | pair.get(1)?) as u8));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_as_it_was_written() {
        let declared = Declared {
            variables: BTreeMap::from([("a".into(), Given::Bytes(vec![1, 0xff]))]),
            kconfig: BTreeMap::from([("CONFIG_HZ".into(), 250)]),
            maps: BTreeMap::from([("m".into(), vec![(vec![1, 2, 3, 4], vec![])])]),
            guard: true,
        };
        assert_eq!(Declared::of_json(declared.to_json().as_bytes()).unwrap(), declared);
        assert_eq!(declared.lines().len(), 3);
        assert!(Declared::of_json(br#"{"variables": {"a": "0"}}"#).is_err());
        assert!(Declared::of_json(b"7").is_err());
    }
}
