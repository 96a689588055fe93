//! Elements of maps, as `bpftool -j map dump` writes them.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::files;

/// A key and its value. A map of each processor has the values of all of them, one behind the other.
pub type Element = (Vec<u8>, Vec<u8>);

/// What several maps are to hold: an object of JSON with a list of elements by map.
pub fn by_map(path: &Path) -> Result<BTreeMap<String, Vec<Element>>, Failure> {
    let hint =
        r#"{"MAP": [{"key": ["0x01", …], "value": ["0x00", …]}, …], …}, lists as `bpftool -j map dump` writes them"#;
    let wrong = |what: String| Failure::bad_input(format!("{}: {what}", path.display())).with_hint(hint);
    let all: Once<BTreeMap<String, Vec<Box<RawValue>>>> =
        serde_json::from_slice(&files::read(path)?).map_err(|e| wrong(e.to_string()))?;
    let of = |(map, list): (String, Vec<Box<RawValue>>)| {
        let elements = of_list(&map, list, true).map_err(wrong)?;
        Ok((map, elements))
    };
    all.0.into_iter().map(of).collect()
}

/// What one map is to hold, which is none of each processor: a list of elements, or such an object.
pub fn of_map(map: &str, path: &Path) -> Result<Vec<Element>, Failure> {
    let hint = r#"[{"key": ["0x01", …], "value": ["0x00", …]}, …], as `bpftool -j map dump` writes it"#;
    let wrong = |what: String| Failure::bad_input(format!("{}: {what}", path.display())).with_hint(hint);
    let bytes = files::read(path)?;
    let is_list = bytes.trim_ascii_start().starts_with(b"[");
    let list = match is_list {
        true => serde_json::from_slice::<Vec<Box<RawValue>>>(&bytes).map_err(|e| wrong(e.to_string()))?,
        false => {
            let all: Once<BTreeMap<String, Vec<Box<RawValue>>>> =
                serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
            let mut all = all.0;
            all.remove(map).ok_or_else(|| wrong(format!("no list of elements by the name of {map}")))?
        }
    };
    of_list(map, list, false).map_err(wrong)
}

/// An object of JSON in which no name comes twice: of two values a reader would take one, and who wrote them meant the other.
struct Once<T>(T);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Once<BTreeMap<String, V>> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
            type Value = BTreeMap<String, V>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of lists by map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((name, value)) = from.next_entry::<String, V>()? {
                    if all.contains_key(&name) {
                        return Err(de::Error::custom(format!("`{name}` is there twice")));
                    }
                    all.insert(name, value);
                }
                Ok(all)
            }
        }
        from.deserialize_map(Members(PhantomData)).map(Once)
    }
}

/// An element as it is dumped. What stands beside (`formatted`) is for people.
#[derive(Deserialize)]
struct Dumped {
    key: Vec<Byte>,
    value: Option<Vec<Byte>>,
    values: Option<Vec<OfProcessor>>,
}

/// The value on one processor.
#[derive(Deserialize)]
struct OfProcessor {
    cpu: Option<usize>,
    value: Vec<Byte>,
}

/// A byte: a number, or text as `"0x1f"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Byte {
    Number(u8),
    Text(String),
}

impl Byte {
    fn get(&self) -> Option<u8> {
        match self {
            Byte::Number(n) => Some(*n),
            Byte::Text(text) => {
                let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'))?;
                u8::from_str_radix(digits, 16).ok()
            }
        }
    }
}

fn of_list(map: &str, list: Vec<Box<RawValue>>, by_processor: bool) -> Result<Vec<Element>, String> {
    let bytes = |what: &str, list: &[Byte]| {
        let list = list.iter().map(Byte::get).collect::<Option<Vec<u8>>>();
        list.ok_or_else(|| format!("map {map}: an element without a {what} of bytes"))
    };
    let element = |element: Box<RawValue>| {
        let element: Dumped = serde_json::from_str(element.get())
            .map_err(|e| format!("map {map}: an element without a key and a value of bytes: {e}"))?;
        let key = bytes("key", &element.key)?;
        let value = match (&element.value, &element.values) {
            (Some(value), None) => bytes("value", value)?,
            (None, Some(values)) if by_processor => {
                if values.iter().enumerate().any(|(i, of)| of.cpu.is_some_and(|cpu| cpu != i)) {
                    return Err(format!("map {map}: an element whose values are not in the order of processors"));
                }
                values.iter().map(|of| bytes("value", &of.value)).collect::<Result<Vec<_>, _>>()?.concat()
            }
            (None, Some(_)) => return Err(format!("map {map}: an element with a value for each processor")),
            (Some(_), Some(_)) => return Err(format!("map {map}: an element with two values")),
            (None, None) => return Err(format!("map {map}: an element without a value of bytes")),
        };
        Ok((key, value))
    };
    list.into_iter().map(element).collect()
}
