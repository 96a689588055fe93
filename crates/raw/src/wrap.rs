//! From an array to an object that libbpf loads.

use std::collections::BTreeSet;

use bpf_isa::slot::{
    BTF_ID, CALL, FUNC, KFUNC, LD_IMM64, MAP_FD, MAP_IDX, MAP_IDX_VALUE, MAP_VALUE, SUBPROGRAM, Slot, starts,
};

use crate::btf::{Btf, CodeRecords, Linkage, code_records};
use crate::elf::{Binding, Elf, RELOC_CALL, RELOC_IMM64, SectionId, SectionKind, SymbolId, SymbolKind};
use crate::error::RawError;
use crate::maps::RawMap;

/// What the program of a wrapped array is called.
pub const PROGRAM: &str = "program";
/// Where its subprograms stand.
const TEXT: &str = ".text";

/// An array as an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrapped {
    /// The object file.
    pub object: Vec<u8>,
    /// Whether maps are named by their index in the loader's list instead of a descriptor.
    pub by_index: bool,
}

/// The numbers of the maps that the code names, each once.
pub fn map_numbers(slots: &[[u8; 8]]) -> Vec<i32> {
    let numbers = starts(slots).filter(|(_, s)| names_map(*s)).map(|(_, s)| s.imm);
    numbers.collect::<BTreeSet<i32>>().into_iter().collect()
}

fn names_map(s: Slot) -> bool {
    s.code == LD_IMM64 && matches!(s.src, MAP_FD | MAP_IDX)
}

/// The object of an array: its beginning is the program, in `section`, and every callee and callback a static subprogram.
///
/// # Errors
/// [`RawError`]: maps that are not among `maps`, and what an object cannot say.
pub fn wrap(slots: &[[u8; 8]], section: &str, maps: &[RawMap]) -> Result<Wrapped, RawError> {
    let unknown: Vec<i32> = map_numbers(slots).into_iter().filter(|n| !maps.iter().any(|m| m.number == *n)).collect();
    if !unknown.is_empty() {
        return Err(RawError::UnknownMaps { numbers: unknown });
    }
    let kinds: BTreeSet<u8> = starts(slots).filter(|(_, s)| names_map(*s)).map(|(_, s)| s.src).collect();
    if kinds.len() > 1 {
        let what = "maps are named by descriptor and by index in one array".to_owned();
        return Err(RawError::Slot { slot: 0, what });
    }
    let functions = Functions::of(slots)?;
    let (elf, btf) = (Elf::default(), Btf::default());
    let mut writer = Writer { slots, functions: &functions, elf, btf, maps: vec![] };
    writer.maps(maps);
    writer.code(section);
    let Writer { mut elf, btf, .. } = writer;
    // What an array is licensed under is not in it; helpers for GPL programs are then judged as called by one.
    elf.section("license", SectionKind::Data, b"GPL\0".to_vec());
    elf.section(".BTF", SectionKind::Info, btf.write());
    Ok(Wrapped { object: elf.write(), by_index: kinds.contains(&MAP_IDX) })
}

/// Where functions begin; the first is the program.
struct Functions(Vec<usize>);

impl Functions {
    fn of(slots: &[[u8; 8]]) -> Result<Functions, RawError> {
        let all: Vec<(usize, Slot)> = starts(slots).collect();
        let mut begins = BTreeSet::from([0]);
        for (slot, s) in &all {
            let fail = |what: &str| RawError::Slot { slot: *slot, what: what.to_owned() };
            if slot + s.slots() > slots.len() {
                return Err(fail("the second half of a 64-bit load is missing"));
            }
            match (s.code, s.src) {
                (CALL, SUBPROGRAM) | (LD_IMM64, FUNC) => {
                    let target = *slot as i64 + 1 + i64::from(s.imm);
                    let target =
                        usize::try_from(target).ok().filter(|t| all.binary_search_by_key(t, |(at, _)| *at).is_ok());
                    let target = target.filter(|t| *t != 0);
                    begins.insert(target.ok_or_else(|| fail("the function that it names is not in the array"))?);
                }
                (CALL, KFUNC) => {
                    return Err(fail("it calls a kernel function by its number in the types of one kernel"));
                }
                (LD_IMM64, MAP_VALUE | MAP_IDX_VALUE) => {
                    return Err(fail("it is the address of a map's value, which no object names by number"));
                }
                (LD_IMM64, BTF_ID) => {
                    return Err(fail("it names a kernel variable by its number in the types of one kernel"));
                }
                _ => {}
            }
        }
        let functions = Functions(begins.into_iter().collect());
        for (slot, s) in &all {
            let Some(off) = s.jump() else { continue };
            let target = *slot as i64 + 1 + off;
            let inside = functions.range(functions.number(*slot), slots.len());
            if !usize::try_from(target).is_ok_and(|t| inside.contains(&t)) {
                let what = "it jumps out of its function".to_owned();
                return Err(RawError::Slot { slot: *slot, what });
            }
        }
        Ok(functions)
    }

    /// The function that holds a slot.
    fn number(&self, slot: usize) -> usize {
        self.0.partition_point(|begin| *begin <= slot) - 1
    }

    fn range(&self, number: usize, end: usize) -> std::ops::Range<usize> {
        self.0[number]..self.0.get(number + 1).copied().unwrap_or(end)
    }

    fn name(&self, number: usize) -> String {
        if number == 0 { PROGRAM.to_owned() } else { format!("subprogram{number}") }
    }
}

struct Writer<'a> {
    slots: &'a [[u8; 8]],
    functions: &'a Functions,
    elf: Elf,
    btf: Btf,
    /// The symbol of each map, by number.
    maps: Vec<(i32, SymbolId)>,
}

impl Writer<'_> {
    fn maps(&mut self, maps: &[RawMap]) {
        if maps.is_empty() {
            return;
        }
        let (mut entries, mut ranges, mut end) = (vec![], vec![], 0);
        for map in maps {
            let (definition, bytes) = map.definition(&mut self.btf, maps);
            entries.push((self.btf.variable(&map.name, Linkage::Global, definition), end, bytes));
            ranges.push(u64::from(end)..u64::from(end + bytes));
            end += bytes;
        }
        self.btf.section(".maps", end, &entries);
        let section = self.elf.section(".maps", SectionKind::Data, vec![0; end as usize]);
        for (map, range) in maps.iter().zip(ranges) {
            let symbol = self.elf.symbol(&map.name, SymbolKind::Object, Binding::Global, Some(section), range);
            self.maps.push((map.number, symbol));
        }
    }

    fn code(&mut self, section: &str) {
        let end = self.slots.len();
        let split = self.functions.range(0, end).end;
        let program = self.section(section, 0..split);
        let text = (split < end).then(|| self.section(TEXT, split..end));
        let mut records = vec![];
        for (id, first, name) in std::iter::once((program.0, 0, section)).chain(text.map(|t| (t.0, split, TEXT))) {
            let mut functions = vec![];
            let numbers = (0..self.functions.0.len()).filter(|n| (*n == 0) == (name == section));
            for number in numbers.collect::<Vec<_>>() {
                let range = self.functions.range(number, end);
                let range = 8 * (range.start - first) as u64..8 * (range.end - first) as u64;
                let (binding, linkage) =
                    if number == 0 { (Binding::Global, Linkage::Global) } else { (Binding::Local, Linkage::Static) };
                let name = self.functions.name(number);
                let result = self.btf.int(4, true);
                functions.push((range.start as u32, self.btf.function(&name, linkage, &[], result)));
                self.elf.symbol(&name, SymbolKind::Func, binding, Some(id), range);
            }
            records.push(CodeRecords { name: self.btf.string(name), functions, lines: vec![] });
        }
        // Callbacks need records of functions; nothing else does, and what is not said cannot be wrong.
        if starts(self.slots).any(|(_, s)| s.code == LD_IMM64 && s.src == FUNC) {
            self.elf.section(".BTF.ext", SectionKind::Info, code_records(&records));
        }
        for (slot, s) in starts(self.slots) {
            let (id, first) = if slot < split { (program.0, 0) } else { (text.map_or(program.0, |t| t.0), split) };
            let at = 8 * (slot - first) as u64;
            match (s.code, s.src) {
                (LD_IMM64, MAP_FD | MAP_IDX) => {
                    if let Some((_, symbol)) = self.maps.iter().find(|(number, _)| *number == s.imm) {
                        self.elf.relocate(id, at, *symbol, RELOC_IMM64);
                    }
                }
                (CALL, SUBPROGRAM) => self.elf.relocate(id, at, text.map_or(program.1, |t| t.1), RELOC_CALL),
                (LD_IMM64, FUNC) => self.elf.relocate(id, at, text.map_or(program.1, |t| t.1), RELOC_IMM64),
                _ => {}
            }
        }
    }

    /// A section of code and its symbol.
    fn section(&mut self, name: &str, range: std::ops::Range<usize>) -> (SectionId, SymbolId) {
        let split = self.functions.range(0, self.slots.len()).end;
        let mut bytes = self.slots[range.clone()].to_vec();
        let here: Vec<(usize, Slot)> = starts(self.slots).filter(|(at, _)| range.contains(at)).collect();
        for (slot, s) in here {
            // Where the target is, counted from the beginning of `.text`: a call counts slots less one, an address bytes.
            let target = (slot as i64 + 1 + i64::from(s.imm) - split as i64) as i32;
            let patched = match (s.code, s.src) {
                (LD_IMM64, MAP_FD | MAP_IDX) => Slot { src: 0, imm: 0, ..s },
                (LD_IMM64, FUNC) => Slot { src: 0, imm: 8 * target, ..s },
                (CALL, SUBPROGRAM) => Slot { imm: target - 1, ..s },
                _ => continue,
            };
            bytes[slot - range.start] = patched.into();
        }
        let id = self.elf.section(name, SectionKind::Code, bytes.concat());
        (id, self.elf.symbol("", SymbolKind::Section, Binding::Local, Some(id), 0..0))
    }
}
