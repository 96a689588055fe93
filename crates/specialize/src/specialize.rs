//! From an object and what is declared to the object for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use bpf_driver::Module;
use bpf_object::{Addition, ByteOrder, KconfigKind, MapDef, Object};
use bpf_platform::maps;
use bpf_program::{Function, LowerError};

use crate::constants::Known;
use crate::declared::{Contents, Declared, Element, Form, Given, NOTE_SECTION};
use crate::error::SpecializeError;
use crate::lookup::{self, Place, Places, Site};
use crate::readers::{Lookup, Use};
use crate::table::{Layout, Table};
use crate::{certificate, write};

/// No more bytes of tables are written.
const MOST_BYTES: usize = 64 << 20;

/// No key is longer: it stands in a frame, or is read from a packet word by word.
const LONGEST_KEY: u32 = 512;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Done {
    /// The object.
    pub bytes: Vec<u8>,
    /// What it is for, with all values in full.
    pub declared: Declared,
    /// How many loads have become constants.
    pub constants: usize,
    /// What became of each map.
    pub maps: Vec<MapUse>,
    /// The names of functions that look up in tables.
    pub looks_up_in: BTreeSet<String>,
}

/// What became of a declared map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapUse {
    /// Its name.
    pub name: String,
    /// Whether it is an array.
    pub is_array: bool,
    /// Its elements.
    pub elements: usize,
    /// Lookups in it that are now lookups in a table.
    pub lookups: usize,
    /// Lookups that stay.
    pub left: usize,
    /// Why, and how many.
    pub left_because: BTreeMap<Stays, usize>,
    /// Bytes of the table.
    pub bytes: usize,
    /// Keys are compared one after the other.
    pub compares: bool,
}

/// Why a lookup stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stays {
    /// Its key is neither on the stack nor in the packet.
    Key,
    /// So says the [`Form`](crate::Form): the verifier refuses a program with tables there, or has too much work.
    Verifier,
    /// The function would be so long with tables that a jump could not reach its target.
    TooLong,
    /// Addresses of values are compared with each other, and they would not all be in the table.
    Compared,
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Stays::Verifier => "with tables in their function a program is too much for the verifier, or refused",
            Stays::Key => "their key is neither on the stack nor in the packet",
            Stays::TooLong => "a jump in their function would be too far with tables",
            Stays::Compared => "addresses of values are compared, and not all would be in the table",
        })
    }
}

impl Done {
    /// Whether this is for the same as another result for the same object: maps with the same elements, in whatever order;
    /// those of an array that are not given are 0.
    #[must_use]
    pub fn is_for_the_same(&self, other: &Done) -> bool {
        let assumed = |done: &Done| {
            let mut declared = Declared { form: Form::default(), ..done.declared.clone() };
            for map in declared.maps.values_mut().filter(|map| map.length.is_some()) {
                map.elements.retain(|(_, value)| value.iter().any(|byte| *byte != 0));
                map.others_are_zero = true;
            }
            declared
        };
        assumed(self) == assumed(other)
    }

    /// Whether keys are compared one after the other somewhere.
    #[must_use]
    pub fn compares_keys(&self) -> bool {
        self.maps.iter().any(|map| map.compares)
    }
}

/// Writes the object that may take the place of another one as long as what is declared holds.
///
/// The same object and declaration give the same bytes.
///
/// # Errors
/// If something declared is not there, does not fit, or may be changed by the object itself.
pub fn specialize(input: &[u8], declared: &Declared) -> Result<Done, SpecializeError> {
    let object = Object::parse(input.to_vec())?;
    if object.byte_order() == ByteOrder::Big {
        return Err(SpecializeError::BigEndian);
    }
    if object.section(NOTE_SECTION).is_some() {
        return Err(SpecializeError::Already);
    }
    let mut declared = declared.clone();
    let mut known = Known::default();
    let contents = variables(&object, &mut declared, &mut known)?;
    for (name, n) in &declared.kconfig {
        known.kconfig.insert(name.clone(), kconfig(&object, name, *n)?);
    }
    let bytes = object.with_addition(&Addition { contents, ..Addition::default() })?;
    let mut module = Module::new(Object::parse(bytes)?);
    let mut changed = vec![false; module.graphs.len()];
    let mut constants = fold(&mut module, &known, &mut changed);
    for (name, map) in &mut declared.maps {
        map.length = Frozen::new(&module, name, map)?.length;
        map.others_are_zero &= map.length.is_some_and(|length| map.elements.len() < length as usize);
        // In which order elements are given does not count.
        map.elements.sort();
    }
    let maps = declared.maps.clone();
    let frozen = maps.iter().map(|(name, map)| Frozen::new(&module, name, map));
    let frozen = frozen.collect::<Result<Vec<Frozen>, SpecializeError>>()?;
    let used = |module: &Module, map: &Frozen| {
        Use::of(module, map.number)
            .map_err(|who| SpecializeError::map(&map.def.name, format!("it cannot be frozen: {who}")))
    };
    for map in &frozen {
        used(&module, map)?;
        // Behind a guard, values may be others.
        if !declared.guard {
            known.values.insert(map.number, map.common());
        }
    }
    constants += fold(&mut module, &known, &mut changed);
    let uses = frozen.iter().map(|map| used(&module, map)).collect::<Result<Vec<Use>, SpecializeError>>()?;

    let mut stay = Staying { asked: declared.form.general.clone(), too_long: BTreeSet::new() };
    loop {
        let Placed { functions, places, tables, guard, maps, looks_up_in } =
            placed(&module, &changed, (&frozen, &uses), &stay, &declared)?;
        match write::lowered(&functions) {
            Ok(lowered) => {
                // The note has what somebody needs to come to the same bytes, and nothing that is not assumed.
                declared.form.general = stay.asked.union(&stay.too_long).cloned().collect();
                if declared.guard {
                    declared.maps.retain(|name, _| maps.iter().any(|map| map.name == *name && map.lookups > 0));
                    declared.guard = guard;
                }
                let bytes = write::write(&module.object, lowered, &places, tables, guard, &declared)?;
                return Ok(Done { bytes, declared, constants, maps, looks_up_in });
            }
            Err((f, LowerError::TooFar { distance })) => {
                let name = module.object.functions().get(f).map(|f| f.name.clone()).unwrap_or_default();
                if uses.iter().flat_map(|found| &found.lookups).any(|l| l.function == f)
                    && !stay.asked.contains(&name)
                    && stay.too_long.insert(name.clone())
                {
                    continue;
                }
                let problem = format!("with constants in the place of loads a jump would have to go {distance} slots");
                return Err(SpecializeError::Function { name, problem });
            }
            Err((f, e)) => return Err(SpecializeError::Internal(format!("function {f}: {e}"))),
        }
    }
}

/// The names of functions in which lookups stay.
struct Staying {
    /// As the form says.
    asked: BTreeSet<String>,
    /// As jumps would be too far with tables.
    too_long: BTreeSet<String>,
}

/// Functions with tables in the place of maps.
struct Placed {
    /// All that have changed.
    functions: BTreeMap<usize, Function>,
    places: Places,
    /// The bytes of all tables.
    tables: Vec<u8>,
    /// Whether there is a guard.
    guard: bool,
    maps: Vec<MapUse>,
    /// The names of functions that look up in tables.
    looks_up_in: BTreeSet<String>,
}

/// Puts tables in the place of maps in all functions but those in which lookups stay.
fn placed(
    module: &Module,
    changed: &[bool],
    (frozen, uses): (&[Frozen], &[Use]),
    stay: &Staying,
    declared: &Declared,
) -> Result<Placed, SpecializeError> {
    let guard = declared.guard;
    let name = |l: &Lookup| module.object.functions().get(l.function).map_or("", |f| f.name.as_str());
    let mut bytes: Vec<u8> = Vec::new();
    // By map, and where in these bytes each is.
    let mut tables: Vec<Option<(Table, Place)>> = Vec::new();
    let mut maps = Vec::new();
    let (mut sites, mut looks_up_in) = (BTreeMap::new(), BTreeSet::new());
    for (map, found) in frozen.iter().zip(uses) {
        let (asked, others): (Vec<&Lookup>, Vec<&Lookup>) =
            found.lookups.iter().partition(|l| stay.asked.contains(name(l)));
        let (long, mut lookups): (Vec<&Lookup>, Vec<&Lookup>) =
            others.into_iter().partition(|l| stay.too_long.contains(name(l)));
        let mut left =
            BTreeMap::from([(Stays::Key, found.left), (Stays::Verifier, asked.len()), (Stays::TooLong, long.len())]);
        // An address in the table is no address in the map: where they could be compared with each other, all stays.
        if found.compares && (guard || left.values().any(|n| *n > 0)) {
            left.insert(Stays::Compared, lookups.drain(..).count());
        }
        left.retain(|_, n| *n > 0);
        let table = if lookups.is_empty() { None } else { map.table(found.uses_values, &declared.form)? };
        let place = Place { section: 0, offset: bytes.len() as u32 };
        if let Some(table) = &table {
            bytes.extend_from_slice(&table.bytes);
            if bytes.len() > MOST_BYTES {
                return Err(map.too_large());
            }
        }
        maps.push(MapUse {
            name: map.def.name.clone(),
            is_array: map.length.is_some(),
            elements: map.elements.len(),
            lookups: lookups.len(),
            left: left.values().sum(),
            left_because: left,
            bytes: table.as_ref().map_or(0, |t| t.bytes.len()),
            compares: table.as_ref().is_some_and(|t| t.layout == Layout::Few),
        });
        looks_up_in.extend(lookups.iter().map(|l| name(l).to_owned()));
        for site in lookups {
            let at = (site.function, site.block, std::cmp::Reverse(site.index));
            sites.insert(at, (site.key_alignment, tables.len()));
        }
        tables.push(table.map(|table| (table, place)));
    }
    let guard = (guard && !sites.is_empty()).then_some(Place { section: usize::from(!bytes.is_empty()), offset: 0 });
    let mut places = Places::apart_from(module.graphs.iter().flatten());
    let of = |i: usize| module.graphs.get(i)?.as_ref().ok().cloned();
    let changed = changed.iter().enumerate().filter(|(_, changed)| **changed).map(|(i, _)| i);
    let all = changed.chain(sites.keys().map(|(function, ..)| *function));
    let mut functions: BTreeMap<usize, Function> = all.filter_map(|i| Some((i, of(i)?))).collect();
    for ((function, block, index), (key_alignment, table)) in &sites {
        let Some(f) = functions.get_mut(function) else { continue };
        let site = Site { block: *block, index: index.0, key_alignment: *key_alignment, guard };
        let table = tables.get(*table).and_then(Option::as_ref);
        lookup::put(f, site, table.map(|(table, place)| (table, *place)), &mut places);
    }
    Ok(Placed { functions, places, tables: bytes, guard: guard.is_some(), maps, looks_up_in })
}

/// Puts constants in place in all functions; how many.
fn fold(module: &mut Module, known: &Known, changed: &mut [bool]) -> usize {
    let mut count = 0;
    for (i, changed) in changed.iter_mut().enumerate() {
        let Some(Ok(f)) = module.graphs.get(i) else { continue };
        let mut f = f.clone();
        let here = known.put_in(&mut f, module);
        if here > 0 {
            *changed = true;
            count += here;
            module.graphs[i] = Ok(f);
        }
    }
    count
}

/// Notes the bytes of the declared variables, which are told in full from here on; what is to be written to the sections.
fn variables(
    object: &Object,
    declared: &mut Declared,
    known: &mut Known,
) -> Result<Vec<(String, u64, Vec<u8>)>, SpecializeError> {
    let mut contents = Vec::new();
    for (name, given) in &mut declared.variables {
        let mut all = object.variables().filter(|v| v.name == name && v.size > 0);
        let (found, second) = (all.next(), all.next());
        let bad = |problem: String| SpecializeError::Variable { name: name.clone(), problem };
        let Some(variable) = found else {
            let known = object.variables().filter(|v| v.section.starts_with(".rodata") && v.size > 0).map(|v| v.name);
            return Err(SpecializeError::Unknown { what: "variable", name: name.clone(), known: list(known) });
        };
        if second.is_some() {
            return Err(bad("there are several of that name".into()));
        }
        if !variable.section.starts_with(".rodata") {
            let section = variable.section;
            return Err(bad(format!(
                "it is in {section}, where programs and user space may change it; only constants in .rodata are frozen"
            )));
        }
        if object.data_sections().filter(|s| s.name == variable.section).count() > 1 {
            return Err(bad(format!("there are several sections {}", variable.section)));
        }
        if object.is_relocated(variable.section, variable.offset, variable.size) {
            return Err(bad("it holds an address, which the loader fills in".into()));
        }
        let size = variable.size as usize;
        let (_, section) = object.section(variable.section).unwrap_or_default();
        let at = variable.offset as usize;
        let now = section.get(at..at.saturating_add(size));
        let now = now.ok_or_else(|| bad("it lies outside of its section".into()))?;
        let bytes = match given {
            Given::AsIs => now.to_vec(),
            Given::Bytes(bytes) if bytes.len() == size => bytes.clone(),
            Given::Bytes(bytes) => return Err(bad(format!("{} bytes are given, and it has {size}", bytes.len()))),
            Given::Number(n) => number(*n, size).map_err(bad)?,
        };
        if bytes != now {
            contents.push((variable.section.to_owned(), variable.offset, bytes.clone()));
        }
        let places = known.sections.entry(variable.section.to_owned()).or_default();
        for (at, byte) in (variable.offset..).zip(&bytes) {
            if places.insert(at, *byte).is_some_and(|other| other != *byte) {
                return Err(bad("another variable at the same place is given another value".into()));
            }
        }
        *given = Given::Bytes(bytes);
    }
    Ok(contents)
}

/// The bytes of a number of this size, signed or not.
fn number(n: i128, size: usize) -> Result<Vec<u8>, String> {
    if ![1, 2, 4, 8].contains(&size) {
        return Err(format!("it has {size} bytes, so that its value has to be given as bytes: `hex:…`"));
    }
    let bits = 8 * size as u32;
    if n >= 1 << bits || n < -(1 << (bits - 1)) {
        return Err(format!("{n} does not fit {size} bytes"));
    }
    Ok(n.to_le_bytes().into_iter().take(size).collect())
}

/// The bytes of a kconfig variable that is given this number, if libbpf would give it to one of its type.
fn kconfig(object: &Object, name: &str, n: i128) -> Result<Vec<u8>, SpecializeError> {
    let all = object.kconfig_variables();
    let Some(variable) = all.iter().find(|there| there.name == name) else {
        let known = list(all.iter().map(|there| there.name.as_str()));
        return Err(SpecializeError::Unknown { what: "kconfig variable", name: name.to_owned(), known });
    };
    let bad = |problem: String| SpecializeError::Variable { name: name.to_owned(), problem };
    let bits = 8 * variable.size;
    let (range, is) = match variable.kind {
        KconfigKind::Bool => (0..=1, "a bool, 0 or 1"),
        KconfigKind::Tristate => (0..=2, "a tristate: 0, 1 or 2 for n, y or m"),
        KconfigKind::Number { is_signed: true } if bits <= 64 => {
            (-(1i128 << (bits - 1))..=(1 << (bits - 1)) - 1, "a number with a sign")
        }
        KconfigKind::Number { is_signed: false } if bits <= 64 => (0..=(1i128 << bits) - 1, "a number without a sign"),
        _ => return Err(bad(format!("it is no number, but something of {} bytes", variable.size))),
    };
    if !range.contains(&n) {
        return Err(bad(format!("{n} does not fit: it is {is}, of {} bytes", variable.size)));
    }
    Ok(n.to_le_bytes().into_iter().take(variable.size as usize).collect())
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A declared map.
struct Frozen<'a> {
    number: usize,
    def: MapDef,
    key_size: u32,
    value_size: u32,
    /// How many elements it has, if it is an array.
    length: Option<u32>,
    elements: &'a [Element],
    others_are_zero: bool,
}

impl<'a> Frozen<'a> {
    fn new(module: &Module, name: &str, given: &'a Contents) -> Result<Frozen<'a>, SpecializeError> {
        let elements = &given.elements;
        let all = module.object.maps();
        let bad = |problem: String| SpecializeError::map(name, problem);
        let Some(number) = all.iter().position(|m| m.name == name) else {
            let known = list(all.iter().map(|m| m.name.as_str()));
            return Err(SpecializeError::Unknown { what: "map", name: name.to_owned(), known });
        };
        let def = all.get(number).cloned().unwrap_or_default();
        if all.iter().filter(|m| m.name == name).count() > 1 {
            return Err(bad("there are several of that name".into()));
        }
        let kind = def.map_type.unwrap_or(maps::UNSPEC);
        if ![maps::HASH, maps::ARRAY].contains(&kind) {
            let kind = maps::name(kind).unwrap_or("of no known type");
            return Err(bad(format!("it is {kind}; only hash maps and arrays can be frozen")));
        }
        let (Some(key_size), Some(value_size)) = (def.key_size, def.value_size) else {
            return Err(bad("its definition does not say the sizes of keys and values".into()));
        };
        let is_array = kind == maps::ARRAY;
        // How many a hash map has room for, which its loader may change, says nothing of what it holds.
        let length = if is_array { given.length.or(def.max_entries) } else { None };
        if is_array && length.is_none() {
            return Err(bad("its definition does not say how many elements it has; --array-length does".into()));
        }
        if !is_array && (given.others_are_zero || given.length.is_some()) {
            return Err(bad("it is no array, and has no elements but those that are given".into()));
        }
        if key_size > LONGEST_KEY {
            return Err(bad(format!(
                "its keys have {key_size} bytes; those of frozen maps have {LONGEST_KEY} at most"
            )));
        }
        if !def.managed.is_empty() {
            return Err(bad("the kernel manages fields of its values".into()));
        }
        let mut seen = HashMap::new();
        for (i, (key, value)) in elements.iter().enumerate() {
            let sizes = (key.len(), value.len());
            if sizes != (key_size as usize, value_size as usize) {
                return Err(bad(format!(
                    "element {i} has a key of {} and a value of {} bytes; the map has {key_size} and {value_size}",
                    sizes.0, sizes.1
                )));
            }
            if let Some(first) = seen.insert(key.as_slice(), i) {
                return Err(bad(format!("elements {first} and {i} have the same key")));
            }
            if let Some(length) = length
                && crate::table::words(key).first().is_none_or(|n| *n >= length)
            {
                return Err(bad(format!(
                    "element {i} is outside of the array's {length}; --array-length says if its loader makes it longer"
                )));
            }
        }
        if let Some(length) = length.filter(|n| elements.len() < *n as usize && !given.others_are_zero) {
            return Err(bad(format!(
                "{} elements are given, and the array has {length}: --zero-others says that the others are 0, \
                 --array-length if its loader makes it shorter",
                elements.len()
            )));
        }
        let others_are_zero = given.others_are_zero;
        Ok(Frozen { number, def, key_size, value_size, length, elements, others_are_zero })
    }

    /// The bytes that all values have in common, by their place in a value.
    fn common(&self) -> BTreeMap<u64, u8> {
        let zero = vec![0; self.value_size as usize];
        let all = || self.elements.iter().map(|(_, value)| value).chain(self.others_are_zero.then_some(&zero));
        let Some(first) = all().next() else { return BTreeMap::new() };
        let same =
            |(at, byte): (usize, &u8)| all().all(|value| value.get(at) == Some(byte)).then_some((at as u64, *byte));
        first.iter().enumerate().filter_map(same).collect()
    }

    fn too_large(&self) -> SpecializeError {
        SpecializeError::map(&self.def.name, format!("its table would have more than {MOST_BYTES} bytes"))
    }

    /// Its table, with the certificate; `None` if it has no elements.
    fn table(&self, with_values: bool, form: &Form) -> Result<Option<Table>, SpecializeError> {
        let rows = self.length.map_or(2 * self.elements.len(), |length| length as usize);
        let row = (self.key_size as usize + self.value_size as usize).max(8);
        if rows.saturating_mul(row) > MOST_BYTES {
            return Err(self.too_large());
        }
        let table = if let Some(length) = self.length {
            Table::of_array(self.elements, length, self.value_size)
        } else if self.elements.is_empty() {
            return Ok(None);
        } else {
            let none = || {
                SpecializeError::map(
                    &self.def.name,
                    format!("no perfect hash of its {} keys of {} bytes is found", self.elements.len(), self.key_size),
                )
            };
            Table::of_hash(self.elements, self.key_size, with_values, form.only_hashes).ok_or_else(none)?
        };
        certificate::check(&table, self.elements).map_err(SpecializeError::Internal)?;
        Ok(Some(table))
    }
}
