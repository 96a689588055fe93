//! Read-only data that a loader may set before it loads the programs.
//!
//! The verifier reads a frozen map as constants (`bpf_map_is_rdonly`), so what it says of a program holds for the data of
//! the object alone. Here a prepared program is made to refer to copies instead: one of each section that is not frozen,
//! so that the verifier knows nothing of the variables in it; and, for a variable that has to be known (a number that
//! bounds a loop, a text that a helper insists on), a frozen map with the bytes of this variable and nothing else. So no
//! other variable is read as known through its address: such an access is out of bounds.
//!
//! A variable is a symbol, or what BTF calls one where no symbol is (assembly without sizes), told by its name; those that
//! share one, by their place. Bytes without a symbol (texts of the compiler's own) are nobody's to set. Options of the kernel's
//! configuration are such data, too: a loader may say what they are (`kconfig` of `bpf_object_open_opts`).

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use bpf_platform::maps::ARRAY;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use crate::sys::{self, Definition};

/// The section of read-only data, and the start of the names of others.
const RODATA: &str = ".rodata";
/// The section of options.
const KCONFIG: &str = ".kconfig";
/// What the names of those options begin with that only libbpf sets.
const OF_LIBBPF: &str = "LINUX_";
/// `BPF_F_RDONLY_PROG` in linux/bpf.h.
const READ_ONLY: u32 = 1 << 7;

/// The name of a section, and how many of that name stand before it: linkers may leave several.
type Section = (String, usize);

/// A variable in read-only data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Variable {
    section: Section,
    name: String,
    /// Where it stands, if the section has more than one of its name (static variables of several units).
    start: Option<u32>,
}

/// Bytes of a section: those of a variable, or some that have no name.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    range: Range<u32>,
    variable: Option<Variable>,
}

/// The variables in the read-only data of an object.
#[derive(Debug, Default)]
pub(super) struct Constants {
    /// By index of the map, of those that hold a variable.
    sections: Vec<(usize, Definition, Vec<Place>)>,
}

/// An instruction that gives the address of a place.
struct Reference {
    /// Its first slot; the offset stands in the next.
    slot: usize,
    section: usize,
    place: usize,
    /// From the start of the place.
    inside: u32,
}

impl Constants {
    /// Those of an object that is prepared, and whose file holds `bytes`.
    pub(super) fn of(bytes: &[u8], object: &sys::Object) -> Self {
        let definitions = (0..object.map_count()).map(|index| (index, object.map_definition(index)));
        let read_only = definitions.filter(|(_, map)| map.internal && map.flags & READ_ONLY != 0);
        let named: Vec<_> =
            read_only.filter_map(|(index, map)| Some((index, section_of(&map.name)?.to_owned(), map))).collect();
        let before = |at: usize| named[..at].iter().filter(|(_, section, _)| *section == named[at].1).count();
        let numbers: Vec<usize> = (0..named.len()).map(before).collect();
        let Some(file) = object::File::parse(bytes).ok().filter(|_| !named.is_empty()) else { return Self::default() };
        let places = |((index, section, mut map), number): ((usize, String, Definition), usize)| {
            let section = (section, number);
            let symbols = match &*section.0 {
                KCONFIG => options(object),
                _ => with_described(symbols(&file, &section), object.variables_of(&section.0)),
            };
            // libbpf does not tell what it has found out of options.
            let contents = map.contents.take().or_else(|| contents(object, index))?;
            let found = places(symbols, &section, u32::try_from(contents.len()).ok()?);
            map.contents = Some(contents);
            found.iter().any(|place| place.variable.is_some()).then_some((index, map, found))
        };
        Self { sections: named.into_iter().zip(numbers).filter_map(places).collect() }
    }

    /// All that are there.
    pub(super) fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.sections.iter().flat_map(|(.., places)| places.iter().filter_map(|place| place.variable.as_ref()))
    }

    /// The variables that a program of a prepared object refers to.
    pub(super) fn of_program(&self, object: &sys::Object, index: usize) -> BTreeSet<Variable> {
        let references = self.references(object, index);
        references.iter().filter_map(|r| self.sections[r.section].2[r.place].variable.clone()).collect()
    }

    /// Makes a program of a prepared object refer to copies of which the verifier knows the variables `known` and no
    /// others. The copies have to stay open until the program is loaded.
    pub(super) fn lend(
        &self,
        object: &mut sys::Object,
        index: usize,
        known: &BTreeSet<Variable>,
    ) -> io::Result<Vec<OwnedFd>> {
        let references = self.references(object, index);
        let mut code = object.instructions(index).to_vec();
        let mut copies: Vec<((usize, Option<usize>), OwnedFd)> = Vec::new();
        for reference in &references {
            let (_, map, places) = &self.sections[reference.section];
            let place = &places[reference.place];
            let is_open = place.variable.as_ref().is_some_and(|variable| !known.contains(variable));
            let wanted = (reference.section, (!is_open).then_some(reference.place));
            let at = match copies.iter().position(|(copy, _)| *copy == wanted) {
                Some(at) => at,
                None => {
                    let copy = if is_open { open(map)? } else { frozen(map, &place.range)? };
                    copies.push((wanted, copy));
                    copies.len() - 1
                }
            };
            code[reference.slot][4..].copy_from_slice(&copies[at].1.as_raw_fd().to_le_bytes());
            if !is_open {
                code[reference.slot + 1][4..].copy_from_slice(&reference.inside.to_le_bytes());
            }
        }
        if !references.is_empty() {
            object.set_instructions(index, &code)?;
        }
        Ok(copies.into_iter().map(|(_, copy)| copy).collect())
    }

    fn references(&self, object: &sys::Object, index: usize) -> Vec<Reference> {
        /// `BPF_LD | BPF_IMM | BPF_DW`, with `BPF_PSEUDO_MAP_VALUE` as the source.
        const VALUE: (u8, u8) = (0x18, 2);
        let fd = |map: usize| object.map_fd(map).map(|fd| fd.as_raw_fd());
        let fds: Vec<Option<i32>> = self.sections.iter().map(|(map, ..)| fd(*map)).collect();
        let code = object.instructions(index);
        let mut found = Vec::new();
        for (slot, pair) in code.windows(2).enumerate() {
            let [[opcode, registers, _, _, fd @ ..], [_, _, _, _, offset @ ..]] = *pair else { continue };
            if (opcode, registers >> 4) != VALUE {
                continue;
            }
            let (fd, offset) = (i32::from_le_bytes(fd), u32::from_le_bytes(offset));
            let Some(section) = fds.iter().position(|known| *known == Some(fd)) else { continue };
            let places = &self.sections[section].2;
            if let Some(place) = places.iter().position(|place| place.range.contains(&offset)) {
                found.push(Reference { slot, section, place, inside: offset - places[place].range.start });
            }
        }
        found
    }
}

/// The section that a map of global data is made of: libbpf puts the object's name before the usual one
/// (`internal_map_name`).
fn section_of(map: &str) -> Option<&str> {
    if map.starts_with(RODATA) {
        return Some(map);
    }
    [RODATA, KCONFIG].into_iter().find(|section| map.ends_with(section))
}

/// Where the options are that a loader may set, and their names.
fn options(object: &sys::Object) -> Vec<(Range<u32>, String)> {
    let mut all = object.variables_of(KCONFIG);
    all.retain(|(_, name)| !name.starts_with(OF_LIBBPF));
    all
}

/// The bytes of a map of global data of a prepared object.
fn contents(object: &sys::Object, index: usize) -> Option<Vec<u8>> {
    let map = sys::maps::Map::of(object.map_fd(index)?.try_clone_to_owned().ok()?).ok()?;
    let mut bytes = vec![0; map.shape.value_len];
    map.lookup(&[0; 4], &mut bytes).ok()?;
    Some(bytes)
}

/// Where the symbols of a section are, and their names.
fn symbols(file: &object::File<'_>, (section, number): &Section) -> Vec<(Range<u32>, String)> {
    // Of several, libbpf makes several maps of the same name, in their order, but none of what is empty
    // (`bpf_object__init_global_data_maps`).
    let index = file.sections().filter(|s| s.size() > 0 && s.name() == Ok(section)).nth(*number).map(|s| s.index());
    let inside = |s: &object::Symbol<'_, '_>| {
        let is_variable = !matches!(s.kind(), SymbolKind::Section | SymbolKind::File) && s.size() > 0;
        is_variable && index.is_some() && s.section_index() == index
    };
    let place = |s: object::Symbol<'_, '_>| {
        let end = u32::try_from(s.address().checked_add(s.size())?).ok()?;
        Some((u32::try_from(s.address()).ok()?..end, s.name().ok()?.to_owned()))
    };
    file.symbols().filter(inside).filter_map(place).collect()
}

/// Symbols, and the variables of a type where there is no symbol.
fn with_described(
    mut symbols: Vec<(Range<u32>, String)>,
    described: Vec<(Range<u32>, String)>,
) -> Vec<(Range<u32>, String)> {
    let overlap = |a: &Range<u32>, b: &Range<u32>| a.start < b.end && b.start < a.end;
    // Where static variables are, the type of an object that is not linked does not say.
    let free: Vec<_> =
        described.into_iter().filter(|(place, _)| !symbols.iter().any(|(s, _)| overlap(s, place))).collect();
    symbols.extend(free);
    symbols
}

/// Cuts a section of so many bytes into its variables and what is between them. Symbols that overlap are one variable, with
/// the first name.
fn places(mut symbols: Vec<(Range<u32>, String)>, section: &Section, length: u32) -> Vec<Place> {
    symbols.sort_by(|(a, p), (b, q)| (a.start, b.end, p).cmp(&(b.start, a.end, q)));
    let mut places: Vec<Place> = Vec::new();
    let mut end = 0;
    for (range, name) in symbols {
        let (start, stop) = (range.start, range.end.min(length));
        if start < end {
            // The one before goes on.
            if let Some(last) = places.last_mut() {
                last.range.end = last.range.end.max(stop);
                end = last.range.end;
            }
            continue;
        }
        if start >= stop {
            continue;
        }
        if start > end {
            places.push(Place { range: end..start, variable: None });
        }
        let variable = Variable { section: section.clone(), name, start: Some(start) };
        places.push(Place { range: start..stop, variable: Some(variable) });
        end = stop;
    }
    let mut seen = BTreeSet::new();
    let names = places.iter().filter_map(|place| Some(place.variable.as_ref()?.name.clone()));
    let shared: BTreeSet<String> = names.filter(|name| !seen.insert(name.clone())).collect();
    for variable in places.iter_mut().filter_map(|place| place.variable.as_mut()) {
        variable.start = variable.start.filter(|_| shared.contains(&variable.name));
    }
    if end < length {
        places.push(Place { range: end..length, variable: None });
    }
    places
}

/// A copy of a map of which the verifier knows nothing, because user space might still write to it.
fn open(map: &Definition) -> io::Result<OwnedFd> {
    sys::maps::create_map(map.kind, map.key_size, map.value_size, map.max_entries, map.flags, None, None)
}

/// A map with these bytes of another one, and the verifier knows them.
fn frozen(map: &Definition, range: &Range<u32>) -> io::Result<OwnedFd> {
    const KEY_SIZE: u32 = 4;
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let bytes = map.contents.as_ref().and_then(|all| all.get(range.start as usize..range.end as usize));
    let bytes = bytes.ok_or_else(missing)?;
    let fd = sys::maps::create_map(ARRAY, KEY_SIZE, bytes.len() as u32, 1, READ_ONLY, None, None)?;
    let made = sys::maps::Map::of(fd)?;
    made.update(&[0; KEY_SIZE as usize], bytes)?;
    sys::maps::freeze_map(made.fd.as_fd())?;
    Ok(made.fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(symbols: &[(Range<u32>, &str)], length: u32) -> Vec<(Range<u32>, Option<String>)> {
        let symbols = symbols.iter().map(|(range, name)| (range.clone(), (*name).to_owned())).collect();
        let places = places(symbols, &(RODATA.to_owned(), 0), length);
        places.into_iter().map(|place| (place.range, place.variable.map(|v| v.name))).collect()
    }

    #[test]
    fn a_section_is_cut_into_variables_and_what_is_between() {
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(cut(&[(4..8, "b"), (0..4, "a")], 8), [(0..4, name("a")), (4..8, name("b"))]);
        assert_eq!(cut(&[(2..4, "a")], 6), [(0..2, None), (2..4, name("a")), (4..6, None)]);
        assert_eq!(cut(&[], 6), [(0..6, None)]);
        // Names of the same bytes, bytes of two, and what a symbol claims beyond the end.
        assert_eq!(cut(&[(0..4, "a"), (0..8, "whole"), (4..8, "b")], 8), [(0..8, name("whole"))]);
        assert_eq!(cut(&[(0..6, "a"), (4..8, "b")], 8), [(0..8, name("a"))]);
        assert_eq!(cut(&[(0..4, "a"), (4..12, "b"), (9..12, "c")], 8), [(0..4, name("a")), (4..8, name("b"))]);
    }

    #[test]
    fn variables_without_a_symbol_are_those_of_the_type() {
        let named =
            |all: &[(Range<u32>, &str)]| all.iter().map(|(r, n)| (r.clone(), (*n).to_owned())).collect::<Vec<_>>();
        let all = with_described(named(&[(0..4, "a")]), named(&[(0..8, "b"), (8..12, "c")]));
        assert_eq!(all, named(&[(0..4, "a"), (8..12, "c")]));
    }

    #[test]
    fn variables_that_share_their_name_are_told_by_their_place() {
        let symbols = [(0..4, "a"), (4..8, "b"), (8..12, "a")].map(|(range, name)| (range, name.to_owned()));
        let places = places(symbols.to_vec(), &(RODATA.to_owned(), 0), 12);
        let starts: Vec<_> = places.iter().filter_map(|p| p.variable.as_ref()).map(|v| (&*v.name, v.start)).collect();
        assert_eq!(starts, [("a", Some(0)), ("b", None), ("a", Some(8))]);
    }

    #[test]
    fn maps_of_read_only_data_are_told_by_libbpfs_names() {
        assert_eq!(section_of("my_progs.rodata"), Some(".rodata"));
        assert_eq!(section_of(".rodata.str1.1"), Some(".rodata.str1.1"));
        assert_eq!(section_of(".rodata.strict"), Some(".rodata.strict"));
        assert_eq!(section_of("object.kconfig"), Some(".kconfig"));
        assert_eq!(section_of(".data.rodata.x"), None);
    }
}
