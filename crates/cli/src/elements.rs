//! Elements of maps, as `bpftool -j map dump` writes them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;
use crate::files;

/// A key and its value. A map of each processor has the values of all of them, one behind the other.
pub type Element = (Vec<u8>, Vec<u8>);

/// What several maps are to hold: an object of JSON with a list of elements by map.
pub fn by_map(path: &Path) -> Result<BTreeMap<String, Vec<Element>>, Failure> {
    let hint =
        r#"{"MAP": [{"key": ["0x01", …], "value": ["0x00", …]}, …], …}, lists as `bpftool -j map dump` writes them"#;
    let wrong = |what: String| Failure::bad_input(format!("{}: {what}", path.display())).with_hint(hint);
    let all: BTreeMap<String, Vec<Value>> =
        serde_json::from_slice(&files::read(path)?).map_err(|e| wrong(e.to_string()))?;
    all.into_iter().map(|(map, list)| Ok((map.clone(), of_list(&map, &list).map_err(wrong)?))).collect()
}

/// What one map is to hold: a list of elements, or such an object.
pub fn of_map(map: &str, path: &Path) -> Result<Vec<Element>, Failure> {
    let hint = r#"[{"key": ["0x01", …], "value": ["0x00", …]}, …], as `bpftool -j map dump` writes it"#;
    let wrong = |what: String| Failure::bad_input(format!("{}: {what}", path.display())).with_hint(hint);
    let all: Value = serde_json::from_slice(&files::read(path)?).map_err(|e| wrong(e.to_string()))?;
    let list = all.as_array().or_else(|| all.get(map)?.as_array());
    let list = list.ok_or_else(|| wrong(format!("no list of elements, and none by the name of {map}")))?;
    of_list(map, list).map_err(wrong)
}

fn of_list(map: &str, list: &[Value]) -> Result<Vec<Element>, String> {
    let bytes = |what: &str, list: &Value| {
        let byte = |value: &Value| match value {
            Value::String(text) => u8::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
            other => other.as_u64().and_then(|n| u8::try_from(n).ok()),
        };
        let list = list.as_array().and_then(|list| list.iter().map(byte).collect::<Option<Vec<u8>>>());
        list.ok_or_else(|| format!("map {map}: an element without a {what} of bytes"))
    };
    let element = |element: &Value| {
        let key = bytes("key", &element["key"])?;
        let value = match element["values"].as_array() {
            Some(values) => {
                let all = values.iter().map(|value| bytes("value", &value["value"]));
                all.collect::<Result<Vec<_>, _>>()?.concat()
            }
            None => bytes("value", &element["value"])?,
        };
        Ok((key, value))
    };
    list.iter().map(element).collect()
}
