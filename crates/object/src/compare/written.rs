//! Whether what was written is the original but for the bodies that were changed.
//!
//! The one idea: here it is known which part came from which (functions and maps keep their numbers, sections their
//! order), so nothing has to be matched by name, and far more than what loaders see has to be the same: BTF byte for
//! byte, symbols and relocations one by one, and the records of `.BTF.ext` at the instructions that they were at. On
//! top of that the comparison by meaning has to find nothing. Promise: if nothing is found, the second object differs
//! from the first in the bodies of the changed functions, in what follows their lengths, and in debug information.
//! What changed bodies *do* is the caller's to prove.

use std::collections::{BTreeSet, HashSet};

use super::Comparison;
use super::contents::same_as_it_stands;
use super::findings::{Finding, Findings, in_section};
use super::matching::Matching;
use super::reference::{Place, place};
use crate::btf_ext::{CORE_RELO, FUNC_INFO, LINE_INFO, Record};
use crate::elf::{SHF_INFO_LINK, SHT_GROUP, SHT_LLVM_ADDRSIG, SHT_STRTAB, SHT_SYMTAB, Section};
use crate::functions::{FuncId, RefKind};
use crate::object::{NewInsn, Object};
use crate::symbols::{Reloc, STT_SECTION, SYM_SIZE, Symbol};

/// The parts of the ELF header that hold no place of the section table: identity, type, machine, entry; flags and sizes.
const ELF_HEADER: [std::ops::Range<usize>; 2] = [0..40, 48..60];

/// What differs between an object and what was written from it, beside the bodies of the functions in `changed`.
/// `original` still has the new bodies ([`Object::set_body`]), whose origins say where source lines belong.
#[must_use]
pub fn beside_bodies(original: &Object, written: &Object, changed: &BTreeSet<FuncId>) -> Vec<Finding> {
    let mut out = Findings::default();
    match in_place(original, written) {
        Ok(matching) => {
            let mut comparison = Comparison::of(original, written);
            let found = comparison.findings(&matching, &|_| true);
            out.differences.extend(found.differences);
            out.unknowns.extend(found.unknowns);
            let check = Check::new(original, written, &matching, changed);
            check.header(&mut out);
            check.sections(&mut out);
            check.symbols(&mut out);
            check.relocations(&mut out);
            check.functions(&comparison, &mut out);
            check.records(&mut out);
            check.lines(&mut out);
        }
        Err(finding) => out.differences.push(finding),
    }
    out.differences.append(&mut out.unknowns);
    out.differences
}

/// Everything with what stands in its place; sections with debug information may be missing.
fn in_place(a: &Object, b: &Object) -> Result<Matching, Finding> {
    let wrong = |place: String, what: &str| Err(Finding { place, what: what.into() });
    let mut sections = vec![None; a.elf.sections.len()];
    let mut sections_back = vec![None; b.elf.sections.len()];
    let mut next = 0;
    for ((i, s), to) in a.elf.sections.iter().enumerate().zip(&mut sections) {
        match b.elf.sections.get(next) {
            Some(t) if (&t.name, t.kind) == (&s.name, s.kind) => {
                *to = Some(next);
                if let Some(back) = sections_back.get_mut(next) {
                    *back = Some(i);
                }
                next += 1;
            }
            _ if s.is_debug() => {}
            _ => return wrong(in_section(s), "it is missing, or no longer in its place"),
        }
    }
    if let Some(more) = b.elf.sections.get(next) {
        return wrong(in_section(more), "the original has no such section");
    }
    let function = |(f, g): (&crate::Function, &crate::Function)| {
        (&f.name, f.kind, f.local) == (&g.name, g.kind, g.local)
            && sections.get(f.section_index) == Some(&Some(g.section_index))
    };
    if a.functions().len() != b.functions().len() || !a.functions().iter().zip(b.functions()).all(function) {
        return wrong("functions".into(), "they are not the original's, in its order");
    }
    let place = |o: &Object, map: usize| o.maps.places.iter().find(|(_, m)| **m == map).map(|((s, at), _)| (*s, *at));
    let map = |i: usize| {
        let moved = place(a, i).map(|(s, at)| (sections.get(s).copied().flatten(), at));
        a.map_identity(i) == b.map_identity(i) && moved == place(b, i).map(|(s, at)| (Some(s), at))
    };
    if a.maps().len() != b.maps().len() || !(0..a.maps().len()).all(map) {
        return wrong("maps".into(), "they are not the original's, in its order");
    }
    Ok(Matching::in_place(a.functions().len(), a.maps().len(), sections, sections_back))
}

struct Check<'a> {
    a: &'a Object,
    b: &'a Object,
    m: &'a Matching,
    changed: &'a BTreeSet<FuncId>,
    /// The numbers of the original's symbols in the written object.
    symbols: Vec<Option<u32>>,
}

impl<'a> Check<'a> {
    fn new(a: &'a Object, b: &'a Object, m: &'a Matching, changed: &'a BTreeSet<FuncId>) -> Self {
        let mut this = Check { a, b, m, changed, symbols: vec![None; a.symbols.all.len()] };
        let kept: Vec<usize> = this.kept_symbols().map(|(old, _)| old).collect();
        for (new, old) in kept.into_iter().enumerate() {
            if let Some(number) = this.symbols.get_mut(old) {
                *number = Some(new as u32);
            }
        }
        this
    }

    /// The number of a section of the original in the written object.
    fn section(&self, i: usize) -> Option<usize> {
        self.m.sections.get(i).copied().flatten()
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, &Section, usize, &Section)> {
        let pair = |(i, s)| {
            let j = self.section(i)?;
            Some((i, s, j, self.b.elf.sections.get(j)?))
        };
        self.a.elf.sections.iter().enumerate().filter_map(pair)
    }

    fn header(&self, out: &mut Findings) {
        let part = |o: &Object, range: &std::ops::Range<usize>| o.elf.bytes.get(range.clone()).map(<[u8]>::to_vec);
        if ELF_HEADER.iter().any(|range| part(self.a, range) != part(self.b, range)) {
            out.different("ELF header".into(), "it changed".into());
        }
    }

    /// Headers of all sections; contents of those that name no code.
    fn sections(&self, out: &mut Findings) {
        let point_to_code: HashSet<usize> = self.a.layout.data_refs.iter().map(|r| r.section).collect();
        for (i, s, j, t) in self.pairs() {
            let own = |s: &Section| (s.flags, s.addr, s.align, s.entsize);
            // The null section's link counts nothing.
            let link = if s.kind == 0 { Some(s.link as usize) } else { self.section(s.link as usize) };
            let counts_sections = s.is_reloc() || s.flags & SHF_INFO_LINK != 0;
            let info = if counts_sections { self.section(s.info as usize) } else { Some(t.info as usize) };
            if own(s) != own(t) || link != Some(t.link as usize) || info != Some(t.info as usize) {
                out.different(in_section(s), "its header changed".into());
            }
            let follows = s.is_code() || s.is_reloc() || s.name == ".BTF.ext" || point_to_code.contains(&i);
            let renumbered = self.symbols.contains(&None);
            let counted =
                matches!(s.kind, SHT_SYMTAB | SHT_STRTAB | SHT_GROUP) || s.kind == SHT_LLVM_ADDRSIG && renumbered;
            if !follows && !counted && (s.size != t.size || self.a.elf.data(i) != self.b.elf.data(j)) {
                out.different(in_section(s), "its contents changed".into());
            }
        }
    }

    /// All symbols, in their order; those of sections that were left out are gone.
    fn symbols(&self, out: &mut Findings) {
        let kept: Vec<(usize, &Symbol)> = self.kept_symbols().collect();
        if kept.len() != self.b.symbols.all.len() {
            let what = format!("{} symbols to keep, {} written", kept.len(), self.b.symbols.all.len());
            return out.different("symbol table".into(), what);
        }
        // Binding, type and visibility, and what else stands beside these.
        let info = |o: &'a Object, n: usize| o.elf.data(o.symbols.table).get(n * SYM_SIZE + 4..n * SYM_SIZE + 6);
        for (n, ((old, s), t)) in kept.iter().zip(&self.b.symbols.all).enumerate() {
            let same_section = match s.section() {
                Some(i) => self.section(i) == t.section() && t.section().is_some(),
                None => s.shndx == t.shndx,
            };
            let same_info = info(self.a, *old) == info(self.b, n);
            if s.name != t.name || !same_info || !same_section || !self.same_extent(s, t) {
                out.different(format!("symbol {}", s.name), format!("it became {} at {:#x}", t.name, t.value));
            }
        }
    }

    fn kept_symbols(&self) -> impl Iterator<Item = (usize, &Symbol)> {
        let kept = |s: &&Symbol| s.section().is_none_or(|i| self.section(i).is_some());
        self.a.symbols.all.iter().enumerate().filter(move |(_, s)| kept(s))
    }

    /// Whether two symbols are at the same place and end at the same place.
    fn same_extent(&self, s: &Symbol, t: &Symbol) -> bool {
        let code = s.section().and_then(|i| self.a.elf.sections.get(i)).is_some_and(Section::is_code);
        if !code || s.kind == STT_SECTION {
            return (s.value, s.size) == (t.value, t.size);
        }
        let (Some(x), Some(y)) = (place(self.a, s, 0), place(self.b, t, 0)) else { return false };
        let length = |o: &Object, f: FuncId| o.functions().get(f.0).map(|f| f.slots as u64 * 8);
        match (x, y) {
            (Place::Function(f, 0), Place::Function(g, 0)) if f == g => {
                s.size == t.size && !self.changed.contains(&f)
                    || Some(s.size) == length(self.a, f) && Some(t.size) == length(self.b, g)
                    || s.size == 0 && t.size == 0
            }
            (Place::Function(f, x), Place::Function(g, y)) if f == g => {
                s.size == t.size && y == self.body(f).map_or(x, |body| label(body, x))
            }
            // Of code at the end of its function that nothing reaches nothing is left: the label is where the function ends.
            (Place::Function(f, x), _) if self.body(f).is_some() => self.body(f).is_some_and(|body| {
                let g = self.b.functions().get(f.0);
                let section = g.map(|g| g.section_index);
                let end = g.map(|g| (g.start + g.slots) as u64 * 8);
                let is_end = g.is_some_and(|g| label(body, x) == g.slots as u64 * 8);
                s.size == t.size && is_end && t.section() == section && Some(t.value) == end
            }),
            // Code of no function: its section is never changed.
            (Place::Section(i, x), Place::Section(j, y)) => {
                self.section(i) == Some(j) && (s.size == t.size) && (x == y || self.after_changes(i, x) == Some(y))
            }
            _ => false,
        }
    }

    /// Where the end of a section's last function is now, if that is what `at` was.
    fn after_changes(&self, section: usize, at: u64) -> Option<u64> {
        let end = |o: &Object, s: usize| Some(o.elf.sections.get(s)?.size);
        (end(self.a, section)? == at).then(|| end(self.b, self.section(section)?))?
    }

    /// The relocations of all sections; those of code are where their instructions are now.
    fn relocations(&self, out: &mut Findings) {
        for list in &self.a.symbols.relocs {
            let (Some(index), Some(s)) = (self.section(list.index), self.a.elf.sections.get(list.target)) else {
                continue;
            };
            let place = format!("relocations of section {}", s.identity);
            let partner = self.b.symbols.relocs.iter().find(|l| l.index == index);
            let Some(other) = partner.filter(|l| Some(l.target) == self.section(list.target)) else {
                out.different(place, "they are missing, or of another section".into());
                continue;
            };
            if s.name == ".BTF.ext" {
                // Compared with the records that they are on.
                continue;
            }
            let mut wanted = Vec::with_capacity(list.relocs.len());
            for r in &list.relocs {
                let slots = match s.is_code() {
                    true => self.carriers(list.target, (r.offset / 8) as usize),
                    false => vec![(r.offset / 8) as usize],
                };
                wanted.extend(slots.into_iter().map(|slot| (slot as u64 * 8 + r.offset % 8, self.said_by(r))));
            }
            let mut there: Vec<_> = other.relocs.iter().map(|r| (r.offset, self.said_by_written(r))).collect();
            if s.is_code() {
                wanted.sort_by_key(|(at, _)| *at);
                there.sort_by_key(|(at, _)| *at);
            }
            if wanted != there {
                out.different(place, "they changed".into());
            }
        }
    }

    /// What a relocation of the original says in the written object: symbol, type, addend. Where a pointer to code leads,
    /// is followed elsewhere.
    fn said_by(&self, r: &Reloc) -> (Option<u32>, u32, Option<i64>) {
        let symbol = self.symbols.get(r.symbol as usize).copied().flatten();
        (symbol, r.kind, r.addend.map(|addend| if self.to_code(self.a, r) { 0 } else { addend }))
    }

    fn said_by_written(&self, r: &Reloc) -> (Option<u32>, u32, Option<i64>) {
        (Some(r.symbol), r.kind, r.addend.map(|addend| if self.to_code(self.b, r) { 0 } else { addend }))
    }

    fn to_code(&self, o: &Object, r: &Reloc) -> bool {
        o.symbols.get(r.symbol).and_then(Symbol::section).is_some_and(|i| o.layout.code.contains_key(&i))
    }

    /// The slots of the written section at which relocations and CO-RE records of an old slot have to be.
    fn carriers(&self, section: usize, slot: usize) -> Vec<usize> {
        let Some(f) = self.function_of(self.a, section, slot) else { return vec![slot] };
        let (Some(was), Some(is)) = (self.a.functions().get(f.0), self.b.functions().get(f.0)) else { return vec![] };
        let inside = slot - was.start;
        let Some(body) = self.body(f) else { return vec![is.start + inside] };
        let mut at = is.start;
        let mut found = Vec::new();
        for insn in body {
            if insn.refs_from == Some(inside) {
                found.push(at);
            }
            at += insn.bytes.len() / 8;
        }
        found
    }

    fn body(&self, f: FuncId) -> Option<&'a Vec<NewInsn>> {
        self.a.bodies.get(&f.0).filter(|_| self.changed.contains(&f))
    }

    fn function_of(&self, o: &Object, section: usize, slot: usize) -> Option<FuncId> {
        let covers = |f: &&usize| o.functions().get(**f).is_some_and(|f| (f.start..f.start + f.slots).contains(&slot));
        o.layout.functions_of(section).iter().find(covers).map(|f| FuncId(*f))
    }

    /// Functions that nobody changed.
    fn functions(&self, comparison: &Comparison, out: &mut Findings) {
        for f in (0..self.a.functions().len()).map(FuncId).filter(|f| !self.changed.contains(f)) {
            let place = || format!("function {}", self.a.function_identity(f));
            if !comparison.same_code(self.m, f, f) && !self.same_instructions(f) {
                out.different(
                    place(),
                    "nothing changed it, but its code is another, or refers to something else".into(),
                );
            }
        }
    }

    /// Whether a function that nobody understands has its instructions and relocations, where all that it could refer
    /// to is where it was.
    fn same_instructions(&self, f: FuncId) -> bool {
        let Some((was, is)) = self.a.functions().get(f.0).zip(self.b.functions().get(f.0)) else { return false };
        let odd = |o: &Object| o.refs(f).iter().any(|r| matches!(r.kind, RefKind::Other { .. }));
        let whole = |i: usize, j: usize| same_as_it_stands(self.a, i, self.b, j, self.m);
        odd(self.a) && (was.start, was.slots) == (is.start, is.slots) && whole(was.section_index, is.section_index)
    }

    /// Function records stay with their functions, CO-RE records go where their instructions are.
    fn records(&self, out: &mut Findings) {
        let frozen = |o: &Object| o.ext.as_ref().and_then(|e| e.frozen.clone());
        if frozen(self.a) != frozen(self.b) {
            out.different("section .BTF.ext".into(), "its form changed".into());
        }
        for (table, what) in [(FUNC_INFO, "function"), (CORE_RELO, "CO-RE")] {
            let mut wanted = Vec::new();
            for (section, r) in records(self.a, table) {
                let moved = |slot: usize| (section.and_then(|s| self.section(s)), slot, r.insn_off % 8, self.said(r));
                match section {
                    Some(s) if table == CORE_RELO => wanted.extend(self.carriers(s, r.slot()).into_iter().map(moved)),
                    Some(s) => wanted.push(moved(self.moved(s, r.slot()))),
                    None => wanted.push(moved(r.slot())),
                }
            }
            let there = records(self.b, table).into_iter();
            let mut there: Vec<_> =
                there.map(|(s, r)| (s, r.slot(), r.insn_off % 8, self.said_in_written(r))).collect();
            wanted.sort();
            there.sort();
            if wanted != there {
                out.different("section .BTF.ext".into(), format!("{what} records did not follow the code"));
            }
        }
    }

    /// Where a slot that begins a function, or belongs to none that changed, is now.
    fn moved(&self, section: usize, slot: usize) -> usize {
        let function = self.function_of(self.a, section, slot);
        let places =
            function.and_then(|f| Some((self.a.functions().get(f.0)?.start, self.b.functions().get(f.0)?.start)));
        places.map_or(slot, |(was, is)| slot - was + is)
    }

    /// What a record of the original says, in the symbol numbers of the written object.
    fn said(&self, r: &'a Record) -> Said<'a> {
        let reloc = r.reloc().map(|r| (self.symbols.get(r.symbol as usize).copied().flatten(), r.kind));
        Said { words: r.rest(), reloc }
    }

    fn said_in_written(&self, r: &'a Record) -> Said<'a> {
        Said { words: r.rest(), reloc: r.reloc().map(|r| (Some(r.symbol), r.kind)) }
    }

    /// Each instruction has the source line that the one it came from had.
    fn lines(&self, out: &mut Findings) {
        let was = Lines::of(self.a, &|r| self.said(r));
        let is = Lines::of(self.b, &|r| self.said_in_written(r));
        for f in (0..self.a.functions().len()).map(FuncId) {
            let same = match self.body(f) {
                Some(body) => {
                    let mut slot = 0;
                    is.whole_slots(f)
                        && body.iter().all(|insn| {
                            let at = slot;
                            slot += insn.bytes.len() / 8;
                            let before = insn.origin.and_then(|origin| was.at(f, origin));
                            before.is_none() || before == is.at(f, at)
                        })
                }
                None => was.of_function(f) == is.of_function(f),
            };
            if !same {
                let place = format!("function {}", self.a.function_identity(f));
                out.different(place, "source lines did not follow the instructions".into());
            }
        }
    }
}

/// Where a label of a changed function is now: at the first instruction that came from where it was, or from as little
/// behind that as there is.
fn label(body: &[NewInsn], at: u64) -> u64 {
    let mut place = 0;
    let mut found: Option<(usize, u64)> = None;
    for insn in body {
        if let Some(from) = insn.origin.or(insn.refs_from).filter(|from| *from as u64 >= at / 8)
            && found.is_none_or(|(best, _)| from < best)
        {
            found = Some((from, place));
        }
        place += insn.bytes.len() as u64;
    }
    found.map_or(place, |(_, place)| place) + at % 8
}

/// What a record says but for its instruction: its words, and symbol and type of the relocation on it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Said<'a> {
    words: &'a [u8],
    reloc: Option<(Option<u32>, u32)>,
}

/// The records of one kind, with their code sections.
fn records(o: &Object, table: usize) -> Vec<(Option<usize>, &Record)> {
    let subs = o.ext.iter().flat_map(|e| e.tables.get(table)).flat_map(|t| &t.subs);
    subs.flat_map(|s| s.records.iter().map(move |r| (s.section, r))).collect()
}

/// The line records of an object by function: place in bytes and what the record says.
struct Lines<'a>(Vec<Vec<(usize, Said<'a>)>>);

impl<'a> Lines<'a> {
    fn of(o: &'a Object, said: &dyn Fn(&'a Record) -> Said<'a>) -> Self {
        let of_function = |f: &crate::Function| {
            let all = o.ext.iter().flat_map(|e| e.records(LINE_INFO, f.section_index));
            let inside = all.filter(|r| (f.start..f.start + f.slots).contains(&r.slot()));
            let mut found: Vec<_> = inside.map(|r| (r.insn_off as usize - f.start * 8, said(r))).collect();
            found.sort_by_key(|(at, _)| *at);
            found
        };
        Lines(o.functions().iter().map(of_function).collect())
    }

    fn of_function(&self, f: FuncId) -> &[(usize, Said<'a>)] {
        self.0.get(f.0).map_or(&[], Vec::as_slice)
    }

    fn whole_slots(&self, f: FuncId) -> bool {
        self.of_function(f).iter().all(|(at, _)| at % 8 == 0)
    }

    /// What is said of the instruction at a slot.
    fn at(&self, f: FuncId, slot: usize) -> Option<&Said<'a>> {
        let all = self.of_function(f);
        all.get(all.partition_point(|(at, _)| *at <= slot * 8).checked_sub(1)?).map(|(_, said)| said)
    }
}
