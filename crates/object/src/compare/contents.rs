//! Whether sections hold the same: bytes, and beside them what relocations put there.
//!
//! The one idea: words under a relocation are compared by what they lead to, all other bytes as they are. Maps are
//! compared one by one, because their order in the section means nothing. Code belongs to the functions and is left
//! out, but for code that no function covers.

use std::ops::Range;

use super::findings::{Findings, in_section};
use super::matching::Matching;
use super::reference::{Place, describe, follow, identity, place, same, same_place};
use crate::elf::{SHF_EXECINSTR, SHT_GROUP, SHT_LLVM_ADDRSIG, SHT_NOBITS, SHT_STRTAB, SHT_SYMTAB, Section};
use crate::object::Object;
use crate::symbols::Reloc;

/// What comparing a section by contents is.
#[derive(PartialEq, Eq)]
enum Sort {
    /// Bytes and relocations.
    Data,
    /// One map after the other.
    Maps,
    /// The functions are compared.
    Code,
    /// Compared elsewhere by meaning: symbols, BTF.
    Meaning,
    /// Without effect on what is loaded.
    Ignored,
}

fn sort(o: &Object, index: usize, s: &Section) -> Sort {
    match s.kind {
        0 | SHT_SYMTAB | SHT_STRTAB => return Sort::Meaning,
        SHT_LLVM_ADDRSIG => return Sort::Ignored,
        // Some names libbpf takes whatever the type is (`bpf_object__elf_collect`).
        SHT_GROUP if !matches!(s.name.as_str(), "license" | "version" | "maps" | ".maps") => return Sort::Ignored,
        _ => {}
    }
    match s.name.as_str() {
        _ if s.size == 0 || s.is_reloc() => Sort::Meaning,
        ".BTF" | ".BTF.ext" => Sort::Meaning,
        _ if s.is_code() => Sort::Code,
        // Executable under such a name: nobody's idea of a section without effect.
        _ if s.flags & SHF_EXECINSTR != 0 => Sort::Data,
        ".llvm_addrsig" | ".comment" => Sort::Ignored,
        _ if s.is_debug() => Sort::Ignored,
        _ if o.maps.is_map_section(index) => Sort::Maps,
        _ => Sort::Data,
    }
}

/// Compares all sections.
pub(super) fn compare(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    let (mut only_first, mut only_second) = (Vec::new(), Vec::new());
    for (i, s) in a.elf.sections.iter().enumerate() {
        let partner = m.sections.get(i).copied().flatten();
        let here = sort(a, i, s);
        let Some((j, t)) = partner.and_then(|j| Some((j, b.elf.sections.get(j)?))) else {
            alone(s, &here, "first", &mut only_first, out);
            continue;
        };
        let place = in_section(s);
        if here != sort(b, j, t) {
            out.different(place, "it is a section of another kind in the second object".into());
            continue;
        }
        match here {
            Sort::Meaning => {}
            Sort::Ignored if a.elf.data(i) == b.elf.data(j) => {}
            Sort::Ignored => out.note(place, "it differs, which no loader looks at".into()),
            Sort::Code => code_outside_functions(a, i, b, j, m, out),
            Sort::Maps => header(s, t, out),
            Sort::Data => {
                header(s, t, out);
                if s.size != t.size {
                    out.different(place, format!("its size was {} bytes, is {}", s.size, t.size));
                    continue;
                }
                let (p, q) = (Piece::of(a, i, 0..s.size), Piece::of(b, j, 0..t.size));
                piece(&p, &q, m, &place, out);
            }
        }
    }
    for (j, t) in b.elf.sections.iter().enumerate() {
        if m.sections_back.get(j).copied().flatten().is_none() {
            alone(t, &sort(b, j, t), "second", &mut only_second, out);
        }
    }
    for (names, which) in [(only_first, "first"), (only_second, "second")] {
        if !names.is_empty() {
            out.note(format!("sections {}", names.join(", ")), format!("only the {which} object has them"));
        }
    }
    maps(a, b, m, out);
}

fn alone<'a>(s: &'a Section, sort: &Sort, which: &str, ignored: &mut Vec<&'a str>, out: &mut Findings) {
    match sort {
        // Missing functions, symbols and types are said where those are compared.
        Sort::Meaning | Sort::Code => {}
        Sort::Ignored => ignored.push(&s.identity),
        Sort::Data | Sort::Maps => out.different(in_section(s), format!("only the {which} object has it")),
    }
}

fn header(s: &Section, t: &Section, out: &mut Findings) {
    if (s.kind == SHT_NOBITS) != (t.kind == SHT_NOBITS) {
        out.different(in_section(s), "only one of the two has contents in the file".into());
    } else if s.flags != t.flags || s.kind != t.kind {
        let what = format!("type {} with flags {:#x} became type {} with {:#x}", s.kind, s.flags, t.kind, t.flags);
        out.different(in_section(s), what);
    }
    if s.align != t.align {
        out.note(in_section(s), format!("it was aligned to {}, is to {}", s.align, t.align));
    }
}

/// A range of a section with the relocations in it.
struct Piece<'a> {
    object: &'a Object,
    section: usize,
    range: Range<u64>,
    relocs: Vec<Reloc>,
}

impl<'a> Piece<'a> {
    fn of(object: &'a Object, section: usize, range: Range<u64>) -> Self {
        let lists = object.symbols.relocs.iter().filter(|l| l.target == section);
        let mut relocs: Vec<Reloc> =
            lists.flat_map(|l| &l.relocs).copied().filter(|r| range.contains(&r.offset)).collect();
        relocs.sort_by_key(|r| r.offset);
        Piece { object, section, range, relocs }
    }

    /// The bytes; none for a section without contents.
    fn bytes(&self) -> &'a [u8] {
        let at = |x: u64| usize::try_from(x).unwrap_or(usize::MAX);
        self.object.elf.data(self.section).get(at(self.range.start)..at(self.range.end)).unwrap_or(&[])
    }
}

/// Compares two ranges; says only the first thing that differs.
fn piece(p: &Piece, q: &Piece, m: &Matching, place: &str, out: &mut Findings) {
    let distance = |piece: &Piece, r: &Reloc| r.offset - piece.range.start;
    let mut patched: Vec<Range<usize>> = Vec::new();
    let places = |piece: &Piece| piece.relocs.iter().map(|r| distance(piece, r)).collect::<Vec<_>>();
    let (at_p, at_q) = (places(p), places(q));
    if at_p != at_q {
        let odd = at_p.iter().find(|x| !at_q.contains(x)).or_else(|| at_q.iter().find(|x| !at_p.contains(x)));
        let at = odd.copied().unwrap_or(0);
        out.different(place.to_owned(), format!("only one of the two has a relocation at {at:#x}"));
        return;
    }
    for (x, y) in p.relocs.iter().zip(&q.relocs) {
        let at = distance(p, x);
        match (follow(p.object, p.section, x), follow(q.object, q.section, y)) {
            (Ok(x), Ok(y)) => {
                if !same(m, &x, &y) {
                    let what = format!(
                        "at {at:#x} it refers to {}, in the second object to {}",
                        describe(p.object, &x),
                        describe(q.object, &y)
                    );
                    out.different(place.to_owned(), what);
                    return;
                }
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                patched.push(start..start.saturating_add(x.width));
            }
            (Err(why), _) | (_, Err(why)) => {
                out.unknown(place.to_owned(), why);
                return;
            }
        }
    }
    let (x, y) = (p.bytes(), q.bytes());
    if x.len() != y.len() {
        out.different(place.to_owned(), format!("{} bytes became {}", x.len(), y.len()));
        return;
    }
    // Both ranges have their relocations in the same order, so one pass goes over words and bytes.
    let mut next = patched.into_iter().peekable();
    let mut at = 0;
    while at < x.len() {
        if let Some(word) = next.next_if(|w| w.start <= at) {
            at = at.max(word.end);
            continue;
        }
        if let (Some(p), Some(q)) = (x.get(at), y.get(at))
            && p != q
        {
            out.different(place.to_owned(), format!("the byte at {at:#x} was {p:#04x}, is {q:#04x}"));
            return;
        }
        at += 1;
    }
}

/// The definitions of maps: sizes, bytes and initial contents (relocations).
fn maps(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    let (ranges_a, ranges_b) = (map_ranges(a), map_ranges(b));
    for (i, range) in ranges_a.iter().enumerate() {
        let name = a.map_identity(i);
        let Some((section, range)) = range else { continue };
        let partner = m.maps.get(i).copied().flatten().and_then(|j| ranges_b.get(j)?.clone());
        let Some((other, other_range)) = partner else {
            out.different(format!("map {name}"), "it is missing in the second object".into());
            continue;
        };
        let place = format!("map {name}");
        if range.end - range.start != other_range.end - other_range.start {
            out.different(place, "its definition has another size".into());
            continue;
        }
        let (p, q) = (Piece::of(a, *section, range.clone()), Piece::of(b, other, other_range));
        piece(&p, &q, m, &place, out);
    }
    for j in (0..ranges_b.len()).filter(|j| m.map_back(*j).is_none()) {
        out.different(format!("map {}", b.map_identity(j)), "only the second object has it".into());
    }
    // Bytes before the first map belong to none.
    for (o, which) in [(a, "first"), (b, "second")] {
        for (s, section) in o.elf.sections.iter().enumerate() {
            if o.maps.is_map_section(s) && section.size > 0 && o.maps.at(s, 0).is_none() {
                out.unknown(in_section(section), format!("in the {which} object it starts with no map"));
            }
        }
    }
}

/// For each map, its section and the range of its definition there.
fn map_ranges(o: &Object) -> Vec<Option<(usize, Range<u64>)>> {
    let mut ranges = vec![None; o.maps.defs.len()];
    let mut places = o.maps.places.iter().peekable();
    while let Some((&(section, start), &map)) = places.next() {
        let next = places.peek().filter(|((s, _), _)| *s == section).map(|((_, at), _)| *at);
        let end = next.or_else(|| o.elf.sections.get(section).map(|s| s.size)).unwrap_or(start);
        if let Some(range) = ranges.get_mut(map) {
            *range = Some((section, start..end.max(start)));
        }
    }
    ranges
}

/// Code that belongs to no function must be there byte for byte, in a section that is the same as a whole.
fn code_outside_functions(a: &Object, i: usize, b: &Object, j: usize, m: &Matching, out: &mut Findings) {
    let uncovered = |o: &Object, s: usize| {
        let functions = o.layout.functions_of(s).iter().filter_map(|&f| o.functions().get(f));
        let mut ranges: Vec<(usize, usize)> = functions.map(|f| (f.start * 8, (f.start + f.slots) * 8)).collect();
        ranges.sort_unstable();
        let mut reach = 0;
        for (start, end) in ranges {
            if start > reach {
                return true;
            }
            reach = reach.max(end);
        }
        reach < o.elf.data(s).len()
    };
    if (uncovered(a, i) || uncovered(b, j)) && !same_as_it_stands(a, i, b, j, m) {
        let place = a.elf.sections.get(i).map_or_else(String::new, in_section);
        out.unknown(place, "it holds code that belongs to no function, and the section changed".into());
    }
}

/// Whether two code sections have equal bytes and relocations to the same symbols.
pub(super) fn same_as_it_stands(a: &Object, i: usize, b: &Object, j: usize, m: &Matching) -> bool {
    let whole = |o: &'_ Object, s: usize| o.elf.sections.get(s).map_or(0, |s| s.size);
    let (p, q) = (Piece::of(a, i, 0..whole(a, i)), Piece::of(b, j, 0..whole(b, j)));
    let same = |x: &Reloc, y: &Reloc| {
        let (Some(s), Some(t)) = (a.symbols.get(x.symbol), b.symbols.get(y.symbol)) else { return false };
        let (Some(to), Some(other)) = (place(a, s, 0), place(b, t, 0)) else { return false };
        (x.offset, x.kind, x.addend) == (y.offset, y.kind, y.addend)
            && same_place(m, &to, &other)
            && identity(s) == identity(t)
            // libbpf takes it for the length of a table of jumps (`create_jt_map`). That of a function is its body's.
            && (matches!(to, Place::Function(..)) || s.size == t.size)
    };
    a.elf.data(i) == b.elf.data(j)
        && p.relocs.len() == q.relocs.len()
        && p.relocs.iter().zip(&q.relocs).all(|(x, y)| same(x, y))
}
