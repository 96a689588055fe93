//! What is assumed: as the user says it, and as the note in the object has it.

use std::collections::{BTreeMap, BTreeSet};

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

/// What a map holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Its elements: all of them.
    pub elements: Vec<Element>,
    /// How many it has if it is an array, as its loader says; `None`: as many as the object says.
    pub length: Option<u32>,
    /// It is an array, and the elements that are not given are 0.
    pub others_are_zero: bool,
}

impl From<Vec<Element>> for Contents {
    fn from(elements: Vec<Element>) -> Contents {
        Contents { elements, ..Contents::default() }
    }
}

/// How it is written, which assumes nothing: what the verifier has less work with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Form {
    /// No keys are compared one after the other, however few there are.
    pub only_hashes: bool,
    /// In functions of these names all lookups stay.
    pub general: BTreeSet<String>,
}

/// What will hold whenever a program of the object runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    /// Variables in `.rodata` and the like that hold these values.
    pub variables: BTreeMap<String, Given>,
    /// Kconfig variables and what the loader gives them.
    pub kconfig: BTreeMap<String, i128>,
    /// Maps that hold these elements and no others.
    pub maps: BTreeMap<String, Contents>,
    /// The maps do so only while the variable `bpf_opt_generation` of the section `.data.bpf_opt` is 0.
    pub guard: bool,
    /// How the object is written.
    pub form: Form,
}

#[derive(Serialize, Deserialize, Default)]
// What is not understood may be something that is assumed.
#[serde(default, deny_unknown_fields)]
struct Note {
    variables: BTreeMap<String, String>,
    kconfig: BTreeMap<String, i128>,
    maps: BTreeMap<String, Vec<(String, String)>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lengths: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    others_are_zero: BTreeSet<String>,
    guard: bool,
    #[serde(skip_serializing_if = "is_false")]
    only_hashes: bool,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    general: BTreeSet<String>,
}

fn is_false(is: &bool) -> bool {
    !is
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
        let notes =
            object.notes(NOTE_SECTION, NOTE_OWNER).ok_or_else(|| SpecializeError::BadNote("it ends early".into()))?;
        match notes.as_slice() {
            [] => Err(SpecializeError::NoNote),
            [text] => Declared::of_json(text),
            several => Err(SpecializeError::Linked(several.len())),
        }
    }

    /// Reads the text of a note.
    ///
    /// # Errors
    /// If it is no such text.
    pub fn of_json(text: &[u8]) -> Result<Declared, SpecializeError> {
        let bad = |e: String| SpecializeError::BadNote(e);
        let note: Note = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        let bytes = |digits: &str| hex::decode(digits).map_err(|_| bad(format!("`{digits}` are no bytes")));
        let variables = note.variables.iter().map(|(name, hex)| Ok((name.clone(), Given::Bytes(bytes(hex)?))));
        let elements = |list: &Vec<(String, String)>| {
            list.iter().map(|(k, v)| Ok((bytes(k)?, bytes(v)?))).collect::<Result<Vec<Element>, SpecializeError>>()
        };
        let contents = |name: &String, list| -> Result<Contents, SpecializeError> {
            let length = note.lengths.get(name).copied();
            Ok(Contents { elements: elements(list)?, length, others_are_zero: note.others_are_zero.contains(name) })
        };
        let maps = note.maps.iter().map(|(name, list)| Ok((name.clone(), contents(name, list)?)));
        Ok(Declared {
            variables: variables.collect::<Result<_, SpecializeError>>()?,
            maps: maps.collect::<Result<_, SpecializeError>>()?,
            kconfig: note.kconfig,
            guard: note.guard,
            form: Form { only_hashes: note.only_hashes, general: note.general },
        })
    }

    /// The text of the note. Variables are said by all their bytes: [`Given::Bytes`].
    #[must_use]
    pub fn to_json(&self) -> String {
        let value = |given: &Given| match given {
            Given::Bytes(bytes) => hex::encode(bytes),
            _ => String::new(),
        };
        let note = Note {
            variables: self.variables.iter().map(|(name, given)| (name.clone(), value(given))).collect(),
            kconfig: self.kconfig.clone(),
            maps: (self.maps.iter())
                .map(|(name, map)| {
                    (name.clone(), map.elements.iter().map(|(k, v)| (hex::encode(k), hex::encode(v))).collect())
                })
                .collect(),
            lengths: self.maps.iter().filter_map(|(name, map)| Some((name.clone(), map.length?))).collect(),
            others_are_zero: (self.maps.iter())
                .filter(|(_, map)| map.others_are_zero)
                .map(|(name, _)| name.clone())
                .collect(),
            guard: self.guard,
            only_hashes: self.form.only_hashes,
            general: self.form.general.clone(),
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
                    Some(n) => format!("variable {name} is {n} (bytes {})", hex::encode(bytes)),
                    None => format!("variable {name} holds the bytes {}", hex::encode(bytes)),
                },
            });
        }
        lines.extend(self.kconfig.iter().map(|(name, n)| format!("kconfig variable {name} is {n}")));
        let guard = if self.guard { ", while bpf_opt_generation is 0" } else { "" };
        for (name, map) in &self.maps {
            let given = match map.elements.len() {
                1 => "1 given element".to_owned(),
                n => format!("{n} given elements"),
            };
            let holds = match (map.elements.len(), map.length.map(u64::from)) {
                (0, None) => "holds no element".to_owned(),
                (_, None) => format!("holds {given} and no other"),
                (0, Some(all)) => format!("has {all} elements, which are 0"),
                (n, Some(all)) if n as u64 == all => format!("has {all} elements, all as given"),
                (_, Some(all)) => format!("has {all} elements: {given}, and the others are 0"),
            };
            lines.push(format!("map {name} {holds}{guard}"));
        }
        lines
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len()).filter(|_| bytes.len().is_power_of_two())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_as_it_was_written() {
        let declared = Declared {
            variables: BTreeMap::from([("a".into(), Given::Bytes(vec![1, 0xff]))]),
            kconfig: BTreeMap::from([("CONFIG_A".into(), -7), ("CONFIG_B".into(), u64::MAX.into())]),
            maps: BTreeMap::from([(
                "m".into(),
                Contents { elements: vec![(vec![1, 2, 3, 4], vec![])], length: Some(4), others_are_zero: true },
            )]),
            guard: true,
            form: Form { only_hashes: true, general: ["f".to_owned()].into() },
        };
        assert!(declared.lines()[3].contains("has 4 elements: 1 given element, and the others are 0"));
        assert_eq!(Declared::of_json(declared.to_json().as_bytes()).unwrap(), declared);
        assert_eq!(declared.lines().len(), 4);
        assert!(Declared::of_json(br#"{"variables": {"a": "0"}}"#).is_err());
        assert!(Declared::of_json(b"7").is_err());
        // What a later version may assume.
        assert!(Declared::of_json(br#"{"guard": true, "moon": "full"}"#).is_err());
    }
}
