//! From an object to the array of one of its programs.

use bpf_isa::slot::{FUNC, LD_IMM64, MAP_FD, MAP_IDX, SUBPROGRAM, Slot};
use bpf_object::{ByteOrder, FuncId, FuncKind, MapDef, Object, RefKind};

use crate::error::RawError;
use crate::maps::RawMap;

/// A program without its object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its instructions, then those of the subprograms that it reaches.
    pub slots: Vec<[u8; 8]>,
    /// The section that it stood in, which says its type.
    pub section: String,
    /// The maps that it names.
    pub maps: Vec<RawMap>,
}

/// The array of a program of an object. `numbers`: what stands for a map, by its name; without, maps are numbered from 1, in
/// the order of the object. `by_index`: they are indices in the loader's list, not descriptors.
///
/// # Errors
/// [`RawError`]: no such program, and what a bare array cannot say: global data, CO-RE, externals.
pub fn unwrap(
    bytes: &[u8],
    program: &str,
    numbers: &dyn Fn(&str) -> Option<i32>,
    by_index: bool,
) -> Result<Program, RawError> {
    let object = Object::parse(bytes.to_vec()).map_err(|e| RawError::Object(e.to_string()))?;
    let not_bare = |what: String| RawError::NotBare { program: program.to_owned(), what };
    if object.byte_order() != ByteOrder::Little {
        return Err(not_bare("the object is big-endian, and arrays are taken for little-endian".to_owned()));
    }
    let all = object.functions();
    let is_it = |f: &&usize| all[**f].name == program && all[**f].kind == FuncKind::Program;
    let ids: Vec<usize> = (0..all.len()).collect();
    let main = *ids.iter().find(is_it).ok_or_else(|| not_bare("the object has no such program".to_owned()))?;
    let mut functions = vec![main];
    functions.extend(object.loaded_with([FuncId(main)]).into_iter().map(|f| f.0).filter(|f| *f != main));
    functions[1..].sort_unstable_by_key(|f| (all[*f].section_index, all[*f].start));
    let mut begins = vec![0; all.len()];
    let mut end = 0;
    for f in &functions {
        begins[*f] = end;
        end += all[*f].slots;
    }
    let mut array = Program { slots: vec![], section: all[main].section.clone(), maps: vec![] };
    for f in functions {
        let id = FuncId(f);
        if !object.core_relocs(id).is_empty() {
            return Err(not_bare(format!(
                "{} has CO-RE accesses, which only a loader of objects can set",
                all[f].name
            )));
        }
        let (code, rest) = object.code(id).as_chunks();
        if !rest.is_empty() {
            return Err(not_bare(format!("{} is no whole number of instructions", all[f].name)));
        }
        let mut slots = code.to_vec();
        for r in object.refs(id) {
            let at = r.slot;
            let old = Slot::from(slots[at]);
            let distance = |target: FuncId| begins[target.0] as i32 - (begins[f] + at) as i32 - 1;
            let new = match &r.kind {
                RefKind::Map { map, offset: 0 } => {
                    let def = &object.maps()[*map];
                    let number = numbers(&def.name).unwrap_or(*map as i32 + 1);
                    if !array.maps.iter().any(|m| m.number == number) {
                        array.maps.extend(described(def, number).map_err(&not_bare)?);
                    }
                    Slot { src: if by_index { MAP_IDX } else { MAP_FD }, imm: number, ..old }
                }
                RefKind::Call { target } => Slot { src: SUBPROGRAM, imm: distance(*target), ..old },
                RefKind::FuncAddr { target } => Slot { src: FUNC, imm: distance(*target), ..old },
                RefKind::Data { section, .. } => {
                    return Err(not_bare(format!(
                        "it uses global data ({section}), which only a loader of objects makes"
                    )));
                }
                RefKind::Extern { name } => return Err(not_bare(format!("it uses `{name}`, which a loader looks up"))),
                other => return Err(not_bare(format!("slot {at}: {other:?}"))),
            };
            slots[at] = new.into();
            if new.code == LD_IMM64 {
                slots[at + 1] = Slot::default().into();
            }
        }
        array.slots.extend(slots);
    }
    array.maps.sort_unstable_by_key(|m| m.number);
    Ok(array)
}

/// The description of a map, and of what its inner maps are like.
fn described(def: &MapDef, number: i32) -> Result<Vec<RawMap>, String> {
    /// Numbers of the descriptions of inner maps, which no instruction names.
    const INNER: i32 = 1000;
    let known = |value: Option<u32>| value.unwrap_or(0);
    let map_type = def.map_type.ok_or_else(|| format!("map {}: its loader says its type", def.name))?;
    let map = RawMap {
        number,
        name: def.name.clone(),
        map_type,
        key_size: known(def.key_size),
        value_size: known(def.value_size),
        max_entries: known(def.max_entries),
        flags: known(def.map_flags),
        inner: def.inner.as_ref().map(|_| number + INNER),
    };
    let mut found = vec![map];
    if let Some(inner) = &def.inner {
        let named = MapDef { name: format!("{}_inner", def.name), ..(**inner).clone() };
        found.extend(described(&named, number + INNER)?);
    }
    Ok(found)
}
