//! Cutting code sections into functions and finding out what their instructions refer to.
//!
//! The one idea: symbols say where functions are, relocations and direct calls say what points
//! where, and every pointer into code, wherever it is, becomes one [`CodeRef`] or [`DataRef`]
//! with a resolved target; so moving code later means re-encoding these. Promise: what cannot be
//! understood locks the functions it could concern, with the reason, instead of being guessed.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::btf::{Btf, FUNC};
use crate::btf_ext::{BtfExt, CORE_RELO, FUNC_INFO, LINE_INFO};
use crate::elf::{Elf, SHT_NOBITS, SHT_PROGBITS, u32_at, u64_at};
use crate::error::ObjectError;
use crate::maps::Maps;
use crate::symbols::{
    R_BPF_64_32, R_BPF_64_64, R_BPF_64_ABS32, R_BPF_64_ABS64, R_BPF_64_NODYLD32, Reloc, STB_LOCAL, STB_WEAK, STT_FUNC,
    STT_NOTYPE, STT_SECTION, Symbol, Symbols,
};

pub(crate) const LD_IMM64: u8 = 0x18;
pub(crate) const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNC: u8 = 4;
/// Bounds the work on files in which very many symbols overlap.
const MAX_COVERING: usize = 4;

/// Number of a function of an [`crate::Object`], an index into [`crate::Object::functions`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FuncId(pub usize);

/// How the kernel sees a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FuncKind {
    /// An entry point, attached to a hook.
    Program,
    /// A static (or hidden) subprogram, verified as part of its callers.
    Static,
    /// A global subprogram, verified alone against its BTF signature.
    Global,
}

/// Where the immediate of the second half of an `ld_imm64` is, in bytes.
const SECOND_IMMEDIATE: usize = 12;

/// A function: a range of slots of a code section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Symbol name, or the section's if no symbol names the code.
    pub name: String,
    /// Name of its section.
    pub section: String,
    /// Number of its section in the input file.
    pub section_index: usize,
    /// Program or subprogram.
    pub kind: FuncKind,
    /// Its symbol is local (`STB_LOCAL`): no other object that is linked to this one can call it.
    pub local: bool,
    /// Its symbol is weak (`STB_WEAK`): another object that is linked to this one may have the function that counts.
    pub weak: bool,
    /// First slot, counted from the start of the section.
    pub start: usize,
    /// Number of slots (8 bytes each).
    pub slots: usize,
}

/// What a relocation, or a direct call, refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefKind {
    /// The address of a map.
    Map {
        /// Index into [`crate::Object::maps`].
        map: usize,
        /// Bytes from the map definition's start: 0 in all sane objects.
        offset: u64,
    },
    /// The address of global data.
    Data {
        /// The data section, such as `.rodata`; a later one of the same name carries its number, as in
        /// `.rodata#9`, so that the text names one section ([`crate::Object::section`] takes it).
        section: String,
        /// The symbol; the section's own name for section-relative references.
        symbol: String,
        /// Byte offset in the section: symbol value plus addend.
        offset: u64,
        /// The addend alone, as in the instruction's immediate.
        addend: i64,
    },
    /// A call to a function of this object.
    Call {
        /// The callee.
        target: FuncId,
    },
    /// The address of a function of this object.
    FuncAddr {
        /// The function.
        target: FuncId,
    },
    /// An undefined symbol: kernel function, kernel variable or kconfig value.
    Extern {
        /// Its name.
        name: String,
    },
    /// Anything else; the function is locked.
    Other {
        /// What was found.
        what: String,
    },
}

/// A reference of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref {
    /// Slot within the function.
    pub slot: usize,
    /// What is referred to.
    pub kind: RefKind,
}

/// A CO-RE record of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreReloc {
    /// Slot within the function.
    pub slot: usize,
    /// `enum bpf_core_relo_kind`.
    pub kind: u32,
    /// Root type, a BTF type number.
    pub type_id: u32,
    /// Access string, such as `0:1:2`.
    pub access: String,
}

/// What is known about a function besides its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub refs: Vec<Ref>,
    pub core: Vec<CoreReloc>,
    pub locked: Option<String>,
}

/// How an instruction encodes a pointer into code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Relocated call: immediate counts slots from the symbol, minus one.
    Call { symbol: u32 },
    /// Relocated ld_imm64: immediate counts bytes from the symbol.
    Addr { symbol: u32 },
    /// Call without relocation: immediate counts slots from the next instruction.
    DirectCall,
    /// Pc-relative ld_imm64 (src_reg 4) without relocation.
    DirectAddr,
}

/// A pointer into code held by an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeRef {
    pub slot: usize,
    pub form: Form,
    pub target_section: usize,
    pub target: usize,
}

/// A pointer into code held by a data section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataRef {
    pub section: usize,
    pub offset: usize,
    pub width: usize,
    pub symbol: u32,
    pub target_section: usize,
    pub target: usize,
    /// (index into `Symbols::relocs`, index of the relocation), if the addend is there.
    pub rela: Option<(usize, usize)>,
}

/// One code section.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// Whether an instruction starts at each slot.
    pub starts: Vec<bool>,
    /// Relocations by slot: (index into `Symbols::relocs`, the relocation).
    pub relocs: BTreeMap<usize, Vec<(usize, Reloc)>>,
    pub refs: BTreeMap<usize, CodeRef>,
}

/// Everything about the code of an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub functions: Vec<Function>,
    pub infos: Vec<Info>,
    pub code: BTreeMap<usize, Code>,
    pub data_refs: Vec<DataRef>,
    pub warnings: Vec<String>,
    by_start: HashMap<(usize, usize), usize>,
    /// Functions of each code section, by start.
    by_section: BTreeMap<usize, Vec<usize>>,
    /// Beside them, how far they and all before them reach.
    reach: HashMap<usize, Vec<usize>>,
    locked_sections: HashSet<usize>,
}

pub(crate) struct Parts<'a> {
    pub elf: &'a Elf,
    pub symbols: &'a Symbols,
    pub maps: &'a Maps,
    pub btf: Option<&'a Btf>,
    pub ext: Option<&'a BtfExt>,
}

impl Layout {
    pub fn read(parts: &Parts) -> Result<Self, ObjectError> {
        let mut this = Self::default();
        for index in 0..parts.elf.sections.len() {
            this.cut_section(parts, index);
        }
        this.settle_kinds(parts);
        this.lock_overlaps();
        this.decode(parts);
        this.collect_relocs(parts)?;
        this.resolve(parts);
        this.collect_data_refs(parts)?;
        this.lock_middle_targets();
        this.collect_records(parts);
        Ok(this)
    }

    pub fn function_at(&self, section: usize, slot: usize) -> Option<FuncId> {
        self.by_start.get(&(section, slot)).map(|&i| FuncId(i))
    }

    /// Functions with their exception callbacks: all pairs of functions that have the names that a tag joins. libbpf and the
    /// kernel take fewer (a program, a global function that is not hidden), or refuse the object.
    pub fn exception_callbacks(&self, btf: &Btf) -> Vec<(FuncId, FuncId)> {
        let named = |name: &str| -> Vec<FuncId> {
            let all = self.functions.iter().enumerate();
            all.filter(|(_, f)| f.name == name).map(|(i, _)| FuncId(i)).collect()
        };
        let mut pairs = Vec::new();
        for (callback, on) in btf.exception_callbacks() {
            let Some(program) = on.filter(|t| t.kind == FUNC).and_then(|t| btf.string(t.name)) else { continue };
            let callbacks = named(&callback);
            pairs.extend(named(&program).into_iter().flat_map(|f| callbacks.iter().map(move |g| (f, *g))));
        }
        pairs
    }

    pub fn functions_of(&self, section: usize) -> &[usize] {
        self.by_section.get(&section).map_or(&[], Vec::as_slice)
    }

    fn lock(&mut self, function: usize, reason: &str) {
        let (Some(info), Some(f)) = (self.infos.get_mut(function), self.functions.get(function)) else { return };
        if info.locked.is_none() {
            info.locked = Some(reason.to_owned());
            self.warnings.push(format!(
                "{}+{:#x}: function `{}` is left as it is: {reason}",
                f.section,
                f.start * 8,
                f.name
            ));
        }
    }

    fn lock_section(&mut self, section: usize, reason: &str) {
        if !self.locked_sections.insert(section) {
            return;
        }
        for f in self.functions_of(section).to_vec() {
            self.lock(f, reason);
        }
    }

    /// The functions that cover a slot: one, unless symbols overlap (then they are locked, and of
    /// many only some are given).
    fn covering(&self, section: usize, slot: usize) -> Vec<usize> {
        let list = self.functions_of(section);
        let starts_before = list.partition_point(|&f| self.functions.get(f).is_some_and(|f| f.start <= slot));
        let reach = self.reach.get(&section).map_or(&[][..], Vec::as_slice);
        let candidates = list.iter().zip(reach).take(starts_before).rev().take_while(|&(_, &reach)| reach > slot);
        candidates
            .map(|(&f, _)| f)
            .filter(|&f| self.functions.get(f).is_some_and(|f| slot - f.start < f.slots))
            .take(MAX_COVERING)
            .collect()
    }

    /// Locks whatever function covers a slot.
    fn lock_at(&mut self, section: usize, slot: usize, reason: &str) {
        for f in self.covering(section, slot) {
            self.lock(f, reason);
        }
    }

    fn cut_section(&mut self, parts: &Parts, index: usize) {
        let Some(section) = parts.elf.sections.get(index).filter(|s| s.is_code()) else { return };
        let bytes = parts.elf.data(index).len();
        if !bytes.is_multiple_of(8) {
            self.warnings.push(format!(
                "{}: its {bytes} bytes are not a whole number of instructions; left as it is",
                section.name
            ));
            return;
        }
        let slots = bytes / 8;
        self.code.insert(index, Code { starts: vec![false; slots], ..Code::default() });
        let inside: Vec<&Symbol> = parts.symbols.all.iter().filter(|s| s.section() == Some(index)).collect();
        let mut entries: Vec<&Symbol> = inside.iter().copied().filter(|s| s.kind == STT_FUNC).collect();
        if entries.is_empty() {
            // Before LLVM 9 functions had no type.
            let named = |s: &&Symbol| s.kind == STT_NOTYPE && s.bind != STB_LOCAL && !s.name.is_empty();
            entries = inside.iter().copied().filter(named).collect();
        }
        let mut broken = None;
        let mut found: Vec<(usize, usize, &Symbol)> = Vec::new();
        for s in entries {
            let start = usize::try_from(s.value).unwrap_or(usize::MAX);
            let size = usize::try_from(s.size).unwrap_or(usize::MAX);
            if start % 8 != 0 || size % 8 != 0 || start >= bytes || size > bytes - start {
                broken = Some(format!(
                    "symbol `{}` ({:#x}, {:#x} bytes) does not fit section `{}`",
                    s.name, s.value, s.size, section.name
                ));
                self.warnings.push(format!(
                    "{}+{:#x}: {}; left out",
                    section.name,
                    s.value,
                    broken.as_deref().unwrap_or("")
                ));
            } else {
                found.push((start / 8, size / 8, s));
            }
        }
        // By start, the longest first, and of equals the global one.
        found.sort_by_key(|&(start, size, s)| (start, usize::MAX - size, s.bind == STB_LOCAL));
        let starts: Vec<usize> = found.iter().map(|f| f.0).collect();
        let mut ranges: Vec<(usize, usize, Option<&Symbol>)> = Vec::new();
        let mut of_several_names = HashSet::new();
        for (start, size, s) in found {
            let next = starts.get(starts.partition_point(|&n| n <= start)).copied().unwrap_or(slots);
            let size = if size == 0 { next - start } else { size };
            let alias = ranges.last().is_some_and(|&(at, len, _)| (at, len) == (start, size));
            match alias {
                true => drop(of_several_names.insert(start)),
                false => ranges.push((start, size, Some(s))),
            }
        }
        if ranges.is_empty() && broken.is_none() {
            ranges.push((0, slots, None));
        }
        let (mut covered, mut gap) = (0, None);
        for (start, size, symbol) in ranges {
            if start > covered {
                gap.get_or_insert(covered);
            }
            covered = covered.max(start + size);
            let id = self.functions.len();
            self.functions.push(Function {
                name: symbol.map_or_else(|| section.name.clone(), |s| s.name.clone()),
                section: section.name.clone(),
                section_index: index,
                kind: symbol.map_or(FuncKind::Program, |s| {
                    let hidden = s.bind == STB_LOCAL || s.visibility == 1 || s.visibility == 2;
                    match (section.name == ".text", hidden) {
                        (true, true) => FuncKind::Static,
                        (true, false) => FuncKind::Global,
                        (false, _) if s.bind == STB_LOCAL => FuncKind::Static,
                        (false, _) => FuncKind::Program,
                    }
                }),
                local: symbol.is_some_and(|s| s.bind == STB_LOCAL),
                weak: symbol.is_some_and(|s| s.bind == STB_WEAK),
                start,
                slots: size,
            });
            self.infos.push(Info::default());
            // libbpf makes a program of each name, and applies relocations to one of them (`find_prog_by_sec_insn`).
            if section.name != ".text" && of_several_names.contains(&start) {
                self.lock(id, "it is a program of several names, of which loaders relocate one");
            }
            self.by_start.entry((index, start)).or_insert(id);
            self.by_section.entry(index).or_default().push(id);
            self.reach.entry(index).or_default().push(covered);
        }
        if covered < slots {
            gap.get_or_insert(covered);
        }
        if let Some(at) = gap {
            // Jumps between that code and the functions cannot be excluded here.
            broken.get_or_insert_with(|| format!("the code at {:#x} in its section belongs to no function", at * 8));
        }
        if let Some(reason) = broken {
            self.lock_section(index, &reason);
        }
    }

    /// libbpf: a lone function in `.text` is an entry point.
    fn settle_kinds(&mut self, parts: &Parts) {
        let symbols = parts.symbols.all.iter().filter(|s| s.kind == STT_FUNC && !s.is_undefined()).count();
        if let [only] = self.functions.as_mut_slice()
            && symbols <= 1
        {
            only.kind = FuncKind::Program;
        }
    }

    fn lock_overlaps(&mut self) {
        for list in self.by_section.clone().into_values() {
            let (mut end, mut holder) = (0, None);
            for id in list {
                let Some(f) = self.functions.get(id) else { continue };
                let (start, stop) = (f.start, f.start + f.slots);
                if start < end
                    && let Some(other) = holder
                {
                    self.lock(id, "its symbol overlaps another function's");
                    self.lock(other, "another function's symbol overlaps its code");
                }
                if stop > end {
                    (end, holder) = (stop, Some(id));
                }
            }
        }
    }

    /// Marks instruction starts; decoding starts anew at every function.
    fn decode(&mut self, parts: &Parts) {
        let mut cut = Vec::new();
        for (&section, code) in &mut self.code {
            let data = parts.elf.data(section);
            let mut second = false;
            for (slot, start) in code.starts.iter_mut().enumerate() {
                if second && self.by_start.contains_key(&(section, slot)) {
                    cut.push((section, slot - 1));
                    second = false;
                }
                *start = !second;
                second = *start && data.get(slot * 8) == Some(&LD_IMM64);
            }
            if second {
                cut.push((section, code.starts.len() - 1));
            }
        }
        for (section, slot) in cut {
            self.lock_at(section, slot, &format!("its last instruction, at {:#x}, is cut in half", slot * 8));
        }
    }

    fn collect_relocs(&mut self, parts: &Parts) -> Result<(), ObjectError> {
        for (i, rs) in parts.symbols.relocs.iter().enumerate() {
            let Some(code) = self.code.get_mut(&rs.target) else { continue };
            for r in &rs.relocs {
                let slot = usize::try_from(r.offset / 8).ok().filter(|&s| s < code.starts.len()).ok_or_else(|| {
                    ObjectError::corrupt(parts.elf.name(rs.index), r.offset, "relocation outside its section")
                })?;
                code.relocs.entry(slot).or_default().push((i, *r));
            }
        }
        Ok(())
    }

    /// Works out every reference of every instruction.
    fn resolve(&mut self, parts: &Parts) {
        let mut all = Vec::new();
        for (&section, code) in &self.code {
            let data = parts.elf.data(section);
            for slot in 0..code.starts.len() {
                let relocs = code.relocs.get(&slot).map_or(&[][..], Vec::as_slice);
                let insn = data.get(slot * 8..).unwrap_or(&[]);
                let start = code.starts.get(slot) == Some(&true);
                let found = match relocs {
                    [] if start => self.direct(section, slot, insn),
                    [] => None,
                    [(_, r)] if start && r.offset % 8 == 0 => Some(self.relocated(parts, slot, insn, r)),
                    [_] => Some((other("a relocation inside an instruction".into()), None)),
                    _ => Some((other(format!("{} relocations on one instruction", relocs.len())), None)),
                };
                if let Some((kind, code_ref)) = found {
                    all.push((section, slot, kind, code_ref));
                }
            }
        }
        for (section, slot, kind, code_ref) in all {
            if let RefKind::Other { what } = &kind {
                self.lock_at(section, slot, &format!("{what}, at {:#x}", slot * 8));
            }
            if let RefKind::Data { symbol, .. } = &kind
                && self.is_weak(parts, section, slot)
            {
                let why = format!("`{symbol}` is weak: a linker may take another object's in its place");
                self.lock_at(section, slot, &why);
            }
            if self.is_passed_over(parts, section, slot) {
                let why = format!("its relocations are of a form that loaders pass over, at {:#x}", slot * 8);
                self.lock_at(section, slot, &why);
            }
            for f in self.covering(section, slot) {
                if let (Some(f), Some(info)) = (self.functions.get(f), self.infos.get_mut(f)) {
                    info.refs.push(Ref { slot: slot - f.start, kind: kind.clone() });
                }
            }
            if let Some(code_ref) = code_ref
                && let Some(code) = self.code.get_mut(&section)
            {
                code.refs.insert(slot, code_ref);
            }
        }
    }

    fn direct(&self, section: usize, slot: usize, insn: &[u8]) -> Option<(RefKind, Option<CodeRef>)> {
        let source = insn.get(1)? >> 4;
        let form = match (*insn.first()?, source) {
            (CALL, PSEUDO_CALL) => Form::DirectCall,
            (LD_IMM64, PSEUDO_FUNC) => Form::DirectAddr,
            _ => return None,
        };
        let imm = i64::from(u32_at(insn, 4)? as i32);
        Some(self.pointer(slot, form, section, (slot as i64 + 1).saturating_add(imm)))
    }

    fn relocated(&self, parts: &Parts, slot: usize, insn: &[u8], r: &Reloc) -> (RefKind, Option<CodeRef>) {
        let Some(symbol) = parts.symbols.get(r.symbol) else {
            return (other("a relocation without a symbol".into()), None);
        };
        let (op, imm) = (insn.first().copied().unwrap_or(0), i64::from(u32_at(insn, 4).unwrap_or(0) as i32));
        let what = || format!("relocation of type {} to `{}`", r.kind, symbol.name);
        // LLVM's two kinds for code (Documentation/bpf/llvm_reloc.rst); early versions wrote 0.
        if !matches!((op, r.kind), (LD_IMM64, R_BPF_64_64 | 0) | (CALL, R_BPF_64_32 | 0)) {
            return (other(format!("{}, on an instruction with opcode {op:#x}", what())), None);
        }
        // libbpf overwrites the register that says what the immediate is, unless that says "a function"
        // (`bpf_object__reloc_code`). Compilers leave it empty.
        let to_code = symbol.section().is_some_and(|s| self.code.contains_key(&s));
        match insn.get(1).map(|b| b >> 4) {
            Some(PSEUDO_FUNC) if to_code => {}
            Some(source) if op == LD_IMM64 && source != 0 => {
                return (other(format!("{}, on an instruction of source {source}", what())), None);
            }
            _ => {}
        }
        if symbol.is_undefined() {
            // The immediate is overwritten, too (`bpf_object__relocate_data`).
            if op == LD_IMM64 && r.addend.unwrap_or(imm) != 0 {
                return (other(format!("{}, at a distance from it", what())), None);
            }
            return if symbol.name.is_empty() {
                (other(format!("{}, a symbol without a name", what())), None)
            } else {
                (RefKind::Extern { name: symbol.name.clone() }, None)
            };
        }
        let Some(target) = symbol.section() else { return (other(format!("{}, an absolute symbol", what())), None) };
        let Some(to) = parts.elf.sections.get(target) else { return (other(what()), None) };
        let addend = r.addend.unwrap_or(imm);
        let offset = symbol.value.checked_add_signed(addend);
        // libbpf leaves the second half of references to maps and code as it is, and the kernel wants it empty
        // (`bpf_object__relocate_data`; `resolve_pseudo_ldimm64` in `kernel/bpf/verifier.c`). Of references to data it
        // overwrites it with the place, which other loaders take from elsewhere; compilers leave it empty.
        if op == LD_IMM64 && u32_at(insn, SECOND_IMMEDIATE) != Some(0) {
            return (other(format!("{}, with something in its second half", what())), None);
        }
        if self.code.contains_key(&target) {
            if op == CALL {
                if insn.get(1).is_none_or(|b| b >> 4 != PSEUDO_CALL) {
                    return (other(format!("{}, on a call of another kind", what())), None);
                }
                let slots = match r.addend {
                    // What a RELA addend of a call counts, nobody has written down: only 0 is clear.
                    Some(0) if symbol.kind != STT_SECTION => 0,
                    Some(_) => return (other(format!("{}, a call with an explicit addend", what())), None),
                    None => imm.saturating_add(1),
                };
                let base = (symbol.value / 8) as i64;
                if symbol.value % 8 != 0 {
                    return (other(format!("{}, inside an instruction", what())), None);
                }
                return self.pointer(slot, Form::Call { symbol: r.symbol }, target, base.saturating_add(slots));
            }
            return match offset {
                Some(at) if at % 8 == 0 => self.pointer(slot, Form::Addr { symbol: r.symbol }, target, (at / 8) as i64),
                _ => (other(format!("{}, inside an instruction", what())), None),
            };
        }
        let Some(offset) = offset else { return (other(format!("{}, before its section", what())), None) };
        if op == LD_IMM64 && parts.maps.is_map_section(target) {
            // libbpf takes the map at the symbol's own place, and drops what the immediate says beside that.
            if addend != 0 {
                return (other(format!("{}, at a distance from it", what())), None);
            }
            if let Some((map, offset)) = parts.maps.at(target, symbol.value) {
                return (RefKind::Map { map, offset }, None);
            }
        }
        let data =
            [".data", ".rodata", ".bss", ".arena", ".addr_space.1", ".kconfig"].iter().any(|p| to.name.starts_with(p));
        if op == LD_IMM64 && data && (to.kind == SHT_PROGBITS || to.kind == SHT_NOBITS) {
            return (RefKind::Data { section: to.identity.clone(), symbol: symbol.name.clone(), offset, addend }, None);
        }
        (other(format!("{} in section `{}`", what(), to.name)), None)
    }

    /// Whether what an instruction refers to has a weak symbol.
    fn is_weak(&self, parts: &Parts, section: usize, slot: usize) -> bool {
        let relocs = self.code.get(&section).and_then(|c| c.relocs.get(&slot));
        let mut symbols = relocs.into_iter().flatten().filter_map(|(_, r)| parts.symbols.get(r.symbol));
        symbols.any(|s| s.bind == STB_WEAK)
    }

    /// Whether libbpf may pass over a relocation of an instruction (`ignore_elf_section`, `bpf_object__elf_collect`). Compilers
    /// before LLVM 6 wrote relocations with addends, which loaders of their time applied: such code has two meanings.
    fn is_passed_over(&self, parts: &Parts, section: usize, slot: usize) -> bool {
        let relocs = self.code.get(&section).and_then(|c| c.relocs.get(&slot));
        let mut lists = relocs.into_iter().flatten().filter_map(|&(list, _)| parts.symbols.relocs.get(list));
        lists.any(|list| !list.is_usual(parts.elf))
    }

    fn pointer(&self, slot: usize, form: Form, target_section: usize, target: i64) -> (RefKind, Option<CodeRef>) {
        let slots = self.code.get(&target_section).map_or(0, |c| c.starts.len());
        let Some(target) = usize::try_from(target).ok().filter(|&t| t < slots) else {
            return (other("a reference to code outside its section".into()), None);
        };
        let code_ref = Some(CodeRef { slot, form, target_section, target });
        let kind = match (self.function_at(target_section, target), form) {
            (None, _) => other("a reference to code that starts no function".into()),
            (Some(target), Form::Call { .. } | Form::DirectCall) => RefKind::Call { target },
            (Some(target), Form::Addr { .. } | Form::DirectAddr) => RefKind::FuncAddr { target },
        };
        (kind, code_ref)
    }

    fn collect_data_refs(&mut self, parts: &Parts) -> Result<(), ObjectError> {
        for (i, rs) in parts.symbols.relocs.iter().enumerate() {
            let Some(to) = parts.elf.sections.get(rs.target) else { continue };
            if to.is_debug() || self.code.contains_key(&rs.target) || to.name == ".BTF" || to.name == ".BTF.ext" {
                continue;
            }
            for (n, r) in rs.relocs.iter().enumerate() {
                let Some(symbol) = parts.symbols.get(r.symbol) else { continue };
                let Some(target_section) = symbol.section().filter(|s| self.code.contains_key(s)) else { continue };
                let place = format!("{}+{:#x}", to.name, r.offset);
                let width = match r.kind {
                    R_BPF_64_64 | R_BPF_64_ABS64 => 8,
                    R_BPF_64_ABS32 | R_BPF_64_NODYLD32 | R_BPF_64_32 => 4,
                    _ => {
                        self.lock_section(
                            target_section,
                            &format!("{place} refers to it by an unknown relocation type {}", r.kind),
                        );
                        continue;
                    }
                };
                let data = parts.elf.data(rs.target);
                let offset = usize::try_from(r.offset).unwrap_or(usize::MAX);
                let in_place = if width == 8 {
                    u64_at(data, offset).map(|v| v as i64)
                } else {
                    u32_at(data, offset).map(|v| i64::from(v as i32))
                };
                let Some(in_place) = in_place else {
                    return Err(ObjectError::corrupt(
                        parts.elf.name(rs.index),
                        r.offset,
                        format!("relocation reaches past the end of `{}`", to.name),
                    ));
                };
                let at = symbol.value.checked_add_signed(r.addend.unwrap_or(in_place));
                let slots = self.code.get(&target_section).map_or(0, |c| c.starts.len());
                match at.and_then(|at| usize::try_from(at).ok()) {
                    Some(at) if at % 8 == 0 && at / 8 < slots => self.data_refs.push(DataRef {
                        section: rs.target,
                        offset,
                        width,
                        symbol: r.symbol,
                        target_section,
                        target: at / 8,
                        rela: r.addend.map(|_| (i, n)),
                    }),
                    _ => self.lock_section(target_section, &format!("{place} refers to the middle of an instruction")),
                }
            }
        }
        Ok(())
    }

    fn lock_middle_targets(&mut self) {
        let mut targets: Vec<(usize, usize, String)> = Vec::new();
        for r in self.code.values().flat_map(|c| c.refs.values()) {
            targets.push((
                r.target_section,
                r.target,
                format!("an instruction refers to its middle, {:#x}", r.target.saturating_mul(8)),
            ));
        }
        for r in &self.data_refs {
            targets.push((
                r.target_section,
                r.target,
                format!("data refers to its middle, {:#x}", r.target.saturating_mul(8)),
            ));
        }
        for (section, slot, reason) in targets {
            if self.function_at(section, slot).is_none() {
                self.lock_at(section, slot, &reason);
            }
        }
    }

    fn collect_records(&mut self, parts: &Parts) {
        let Some(ext) = parts.ext else { return };
        let mut reason = ext.frozen.clone();
        if parts.btf.is_none() {
            reason = Some("there are .BTF.ext records but no .BTF".to_owned());
        }
        if let Some(reason) = reason {
            for section in self.code.keys().copied().collect::<Vec<_>>() {
                self.lock_section(section, &reason);
            }
        }
        let Some(btf) = parts.btf else { return };
        let mut names = HashSet::new();
        let twins: Vec<&str> = self.code.keys().map(|&i| parts.elf.name(i)).filter(|n| !names.insert(*n)).collect();
        let twins: HashSet<&str> = twins.into_iter().collect();
        let sections: Vec<(usize, usize)> = self.code.iter().map(|(&i, c)| (i, c.starts.len())).collect();
        for (section, slots) in sections {
            if twins.contains(parts.elf.name(section)) {
                self.lock_section(section, "two code sections have the same name");
            }
            for table in [FUNC_INFO, LINE_INFO, CORE_RELO] {
                let bad = ext.records(table, section).find(|r| r.insn_off % 8 != 0 || r.slot() >= slots);
                if let Some(bad) = bad {
                    self.lock_section(
                        section,
                        &format!(".BTF.ext has a record at {:#x}, which is no instruction", bad.insn_off),
                    );
                }
            }
            for record in ext.records(CORE_RELO, section) {
                let slot = record.slot();
                for f in self.covering(section, slot) {
                    if let (Some(f), Some(info)) = (self.functions.get(f), self.infos.get_mut(f)) {
                        info.core.push(CoreReloc {
                            slot: slot - f.start,
                            type_id: record.word(1),
                            access: btf.string(record.word(2)).unwrap_or_default(),
                            kind: record.word(3),
                        });
                    }
                }
                if self.code.get(&section).and_then(|c| c.starts.get(slot)) == Some(&false) {
                    self.lock_at(section, slot, "a CO-RE record points into the middle of an instruction");
                }
            }
        }
        for info in &mut self.infos {
            info.core.sort_by_key(|c| c.slot);
        }
    }
}

fn other(what: String) -> RefKind {
    RefKind::Other { what }
}
