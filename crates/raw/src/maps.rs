//! What the maps are like that an array names by numbers.

use bpf_platform::maps as platform;

use crate::btf::{Btf, TypeId};
use crate::error::RawError;

/// A map, as its user describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawMap {
    /// The number that stands for it in the instructions: the descriptor, or the index in the loader's list.
    pub number: i32,
    /// What it is called in the object.
    pub name: String,
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Room.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// The number of the map that its inner maps are like.
    pub inner: Option<i32>,
}

/// Reads descriptions of maps, a line for each: `NUMBER TYPE KEY VALUE ENTRIES`, then in any order `flags N`, `name NAME`,
/// `of NUMBER` (of a map of maps: what the inner ones are like). `#` begins a comment.
///
/// # Errors
/// The line that is not understood, or that describes a number again.
pub fn maps(text: &str) -> Result<Vec<RawMap>, RawError> {
    let mut found: Vec<RawMap> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let fail = |what| RawError::Line { line: at + 1, what };
        if line.trim().is_empty() {
            continue;
        }
        let map = RawMap::parse(line).map_err(fail)?;
        if found.iter().any(|m| m.number == map.number || m.name == map.name) {
            return Err(fail(format!("map {} ({}) is described twice", map.number, map.name)));
        }
        found.push(map);
    }
    Ok(found)
}

impl RawMap {
    fn parse(line: &str) -> Result<RawMap, String> {
        const FORM: &str = "NUMBER TYPE KEY VALUE ENTRIES [flags N] [name NAME] [of NUMBER]";
        let mut words = line.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("no {what}; a line is: {FORM}"));
        let number = unsigned(next("number")?)? as i32;
        let kind = next("type")?;
        let map_type = platform::named(kind).ok_or_else(|| format!("`{kind}` is no map type"))?;
        let mut size = |what| unsigned(next(what)?);
        let (key_size, value_size, max_entries) = (size("size of a key")?, size("size of a value")?, size("length")?);
        let name = format!("map{number}");
        let mut map = RawMap { number, name, map_type, key_size, value_size, max_entries, ..RawMap::default() };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("nothing behind `{word}`"))?;
            match word {
                "flags" => map.flags = unsigned(value)?,
                "name" => map.name = value.to_owned(),
                "of" => map.inner = Some(unsigned(value)? as i32),
                _ => return Err(format!("`{word}` is no property of a map; a line is: {FORM}")),
            }
        }
        Ok(map)
    }

    /// The line that describes it.
    pub fn line(&self) -> String {
        let RawMap { number, name, key_size, value_size, max_entries, .. } = self;
        let kind = platform::name(self.map_type).map_or_else(|| self.map_type.to_string(), str::to_owned);
        let mut line = format!("{number} {kind} {key_size} {value_size} {max_entries}");
        if self.flags != 0 {
            line += &format!(" flags {:#x}", self.flags);
        }
        if let Some(inner) = self.inner {
            line += &format!(" of {inner}");
        }
        line + &format!(" name {name}")
    }

    /// Its definition, and the definition's bytes. It says of pinning that there is none, by which readers see that the map
    /// may be another's: an array names maps that somebody else has made, with types of values that are not told here.
    pub(crate) fn definition(&self, btf: &mut Btf, others: &[RawMap]) -> (TypeId, u32) {
        let pinning = ("pinning", btf.number(0));
        self.defined(btf, others, vec![pinning])
    }

    fn defined(&self, btf: &mut Btf, others: &[RawMap], mut members: Vec<(&'static str, TypeId)>) -> (TypeId, u32) {
        members.push(("type", btf.number(self.map_type)));
        let inner = self.inner.and_then(|number| others.iter().find(|m| m.number == number));
        // Of inner maps libbpf takes the size of the values from itself.
        let value_size = if inner.is_some() { 0 } else { self.value_size };
        let numbers = [
            ("key_size", self.key_size),
            ("value_size", value_size),
            ("max_entries", self.max_entries),
            ("map_flags", self.flags),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
            members.push((name, btf.number(number)));
        }
        if let Some(inner) = inner {
            let (inner, _) = inner.defined(btf, &[], vec![]);
            let inner = btf.pointer(inner);
            members.push(("values", btf.array(inner, 0)));
        }
        btf.map_definition(members)
    }
}

fn unsigned(word: &str) -> Result<u32, String> {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    number.map_err(|_| format!("`{word}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_comes_back_from_its_line() {
        let text = "# of xdp1\n3 percpu_array 4 8 256 name rxcnt\n\n4 hash_of_maps 4 4 10 of 3 flags 0x1 # inner\n";
        let read = maps(text).expect("it parses");
        assert_eq!(read[0].name, "rxcnt");
        assert_eq!((read[1].inner, read[1].flags, read[1].name.as_str()), (Some(3), 1, "map4"));
        let lines: Vec<String> = read.iter().map(RawMap::line).collect();
        assert_eq!(maps(&lines.join("\n")), Ok(read));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let wrong = [
            ("3 percpu_array 4 8", "line 1: no length"),
            ("3 list 4 8 1", "line 1: `list` is no map type"),
            ("\n3 array 4 8 x", "line 2: `x` is no number"),
            ("3 array 4 8 1 lock 1", "line 1: `lock` is no property"),
            ("3 array 4 8 1\n3 hash 4 8 1", "line 2: map 3 (map3) is described twice"),
        ];
        for (text, message) in wrong {
            let said = maps(text).expect_err(text).to_string();
            assert!(said.starts_with(message), "{said}");
        }
    }
}
