//! The object as its users see it: questions about functions, and new bodies for them.
//!
//! The one idea: what was read never changes; a new body is kept beside it until writing, so that
//! slots in questions and answers always count in the input's numbering. Promise: a body that is
//! accepted can be written.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bpf_platform::{ByteOrder, ManagedFields};

use crate::btf::{Btf, FuncProto};
use crate::btf_ext::{BtfExt, FUNC_INFO, LINE_INFO, Record};
use crate::byte_order::to_little;
use crate::core_relo;
use crate::elf::{Elf, Section, unique_names};
use crate::error::ObjectError;
use crate::functions::{CALL, CoreReloc, FuncId, Function, LD_IMM64, Layout, Parts, Ref, RefKind};
use crate::managed;
use crate::maps::{MapDef, Maps};
use crate::symbols::Symbols;

/// One instruction of a new body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewInsn {
    /// Its encoding, little-endian: 8 bytes, or 16 for `ld_imm64`.
    pub bytes: Vec<u8>,
    /// Slot of the original instruction it comes from: it inherits the source line of that, and
    /// labels there move to it.
    pub origin: Option<usize>,
    /// Slot of the original instruction whose relocations, CO-RE records and call target it carries.
    pub refs_from: Option<usize>,
}

/// A line of source code, as BTF.ext tells it. Shown as `file:line:column`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// The file's name as the compiler was given it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
    /// The text of the line; empty where the compiler did not have it.
    pub text: String,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLine { file, line, column, .. } = self;
        write!(f, "{file}:{line}:{column}")
    }
}

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// Keep the DWARF sections of a changed object, although they describe the old code.
    pub keep_debug: bool,
}

/// A written object.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub bytes: Vec<u8>,
    /// What the user should know, such as sections left out.
    pub notes: Vec<String>,
}

/// Names that are unique in an object, by number.
#[derive(Clone, Debug, Default)]
struct Identities {
    functions: Vec<String>,
    maps: Vec<String>,
}

impl Identities {
    fn of(functions: &[Function], maps: &[MapDef]) -> Self {
        let place = |f: &Function| format!("{}@{}:{:#x}", f.name, f.section_index, f.start * 8);
        let functions = functions.iter().map(|f| (f.name.clone(), place(f)));
        let maps = maps.iter().enumerate().map(|(i, m)| (m.name.clone(), format!("{}#{i}", m.name)));
        Self { functions: unique_names(functions.collect()), maps: unique_names(maps.collect()) }
    }
}

/// An eBPF object file and the changes to be made to it.
#[derive(Clone, Debug)]
pub struct Object {
    /// Of the file. All that was read of it is little-endian.
    pub(crate) byte_order: ByteOrder,
    pub(crate) elf: Elf,
    pub(crate) symbols: Symbols,
    pub(crate) btf: Option<Btf>,
    pub(crate) ext: Option<BtfExt>,
    /// Section number of `.BTF.ext`.
    pub(crate) ext_section: Option<usize>,
    pub(crate) layout: Layout,
    pub(crate) bodies: BTreeMap<usize, Vec<NewInsn>>,
    pub(crate) maps: Maps,
    /// Functions with the exception callbacks that their types name.
    pub(crate) exception_callbacks: Vec<(FuncId, FuncId)>,
    identities: Identities,
    warnings: Vec<String>,
}

impl Object {
    /// Reads an object file.
    ///
    /// # Errors
    /// If the file is not a 64-bit relocatable BPF ELF file, or is corrupt.
    pub fn parse(data: Vec<u8>) -> Result<Object, ObjectError> {
        let (byte_order, data) = to_little(data)?;
        let elf = Elf::parse(data)?;
        let symbols = Symbols::parse(&elf)?;
        let mut warnings = Vec::new();
        let btf = match elf.find(".BTF") {
            Some(section) => {
                let (btf, warning) = Btf::parse(elf.data(section).to_vec())?;
                warnings.extend(warning);
                Some(btf)
            }
            None => None,
        };
        let ext_section = elf.find(".BTF.ext");
        let ext = match ext_section {
            Some(section) => {
                let mut lists = symbols.relocs.iter().filter(|r| r.target == section);
                let relocs = lists.next().map_or(&[][..], |r| &r.relocs);
                if lists.next().is_some() {
                    return Err(ObjectError::corrupt(".BTF.ext", 0, "two relocation sections"));
                }
                let mut ext = BtfExt::parse(elf.data(section), relocs)?;
                // The first of a name, whatever is in it (`elf_sec_by_name` in `tools/lib/bpf/libbpf.c`).
                let all = elf.sections.iter().enumerate().skip(1).rev();
                let by_name: HashMap<&str, usize> = all.map(|(i, s)| (s.name.as_str(), i)).collect();
                let is_code = |i: &usize| elf.sections.get(*i).is_some_and(Section::is_code);
                ext.resolve(|name| by_name.get(btf.as_ref()?.string(name)?.as_str()).copied().filter(is_code));
                Some(ext)
            }
            None => None,
        };
        let maps = Maps::read(&elf, &symbols, btf.as_ref());
        let parts = Parts { elf: &elf, symbols: &symbols, maps: &maps, btf: btf.as_ref(), ext: ext.as_ref() };
        let mut layout = Layout::read(&parts)?;
        warnings.append(&mut layout.warnings);
        let identities = Identities::of(&layout.functions, &maps.defs);
        let exception_callbacks = btf.as_ref().map_or_else(Vec::new, |btf| layout.exception_callbacks(btf));
        let bodies = BTreeMap::new();
        Ok(Object {
            byte_order,
            identities,
            elf,
            symbols,
            btf,
            ext,
            ext_section,
            layout,
            bodies,
            maps,
            exception_callbacks,
            warnings,
        })
    }

    /// The order of the bytes of numbers in the file, and in the memory of the machine it is for.
    #[must_use]
    pub fn byte_order(&self) -> ByteOrder {
        self.byte_order
    }

    /// All functions, by section and start.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.layout.functions
    }

    /// The first function of this name.
    #[must_use]
    pub fn function_named(&self, name: &str) -> Option<FuncId> {
        self.functions().iter().position(|f| f.name == name).map(FuncId)
    }

    /// The code of a function as in the input, whatever [`Object::set_body`] did; empty if there is no such function.
    /// Instructions are in the little-endian encoding, here and in new bodies, whatever the order of the file.
    #[must_use]
    pub fn code(&self, f: FuncId) -> &[u8] {
        self.functions()
            .get(f.0)
            .and_then(|f| self.elf.data(f.section_index).get(f.start * 8..(f.start + f.slots) * 8))
            .unwrap_or(&[])
    }

    /// The references of a function's instructions, by slot.
    #[must_use]
    pub fn refs(&self, f: FuncId) -> &[Ref] {
        self.layout.infos.get(f.0).map_or(&[], |i| &i.refs)
    }

    /// The functions whose addresses stand in data or initial values of maps.
    #[must_use]
    pub fn functions_in_data(&self) -> Vec<FuncId> {
        let target = |r: &crate::functions::DataRef| {
            let at =
                self.functions().iter().position(|f| (f.section_index, f.start) == (r.target_section, r.target))?;
            Some(FuncId(at))
        };
        self.layout.data_refs.iter().filter_map(target).collect()
    }

    /// The CO-RE records of a function's instructions, by slot.
    #[must_use]
    pub fn core_relocs(&self, f: FuncId) -> &[CoreReloc] {
        self.layout.infos.get(f.0).map_or(&[], |i| &i.core)
    }

    /// Whether another object's BTF is this one's, byte for byte, so that numbers of types mean the same.
    pub fn has_types_of(&self, other: &Object) -> bool {
        self.btf.as_ref().map(Btf::bytes) == other.btf.as_ref().map(Btf::bytes)
    }

    /// The names of the members on the way to the field that a CO-RE record is about; none if it is about something else.
    ///
    /// # Errors
    /// What cannot be followed, in words.
    pub fn core_members(&self, record: &CoreReloc) -> Result<Vec<String>, String> {
        let btf = self.btf.as_ref().ok_or("there is no BTF")?;
        core_relo::members(btf, record)
    }

    /// All maps.
    #[must_use]
    pub fn maps(&self) -> &[MapDef] {
        &self.maps.defs
    }

    /// A name for a function that no other of the object has: its own, or where an earlier one has that too, with
    /// the place added. Empty if there is no such function.
    #[must_use]
    pub fn function_identity(&self, f: FuncId) -> &str {
        self.identities.functions.get(f.0).map_or("", String::as_str)
    }

    /// The same for the map with this index in [`Object::maps`].
    #[must_use]
    pub fn map_identity(&self, map: usize) -> &str {
        self.identities.maps.get(map).map_or("", String::as_str)
    }

    /// Size and contents of the section of this name (of several the first, see [`RefKind::Data`]); a section without
    /// contents (`.bss`) has no bytes. Data is in the order of the file ([`Object::byte_order`]).
    #[must_use]
    pub fn section(&self, name: &str) -> Option<(u64, &[u8])> {
        let index = self.elf.sections.iter().position(|s| s.identity == name)?;
        Some((self.elf.sections.get(index)?.size, self.elf.data(index)))
    }

    /// Names of the sections, and the power of two that their start is a multiple of when they are linked.
    pub fn alignments(&self) -> impl Iterator<Item = (&str, u32)> {
        self.elf.sections.iter().map(|s| (s.identity.as_str(), s.align.max(1).trailing_zeros()))
    }

    /// What the kernel manages in the section of global data of this name, unique in the object, as BTF says.
    #[must_use]
    pub fn managed_fields(&self, section: &str) -> ManagedFields {
        let section = self.elf.sections.iter().find(|s| s.identity == section);
        let (Some(btf), Some(section)) = (&self.btf, section) else { return ManagedFields::default() };
        managed::in_section(btf, &self.symbols, section)
    }

    /// What was noticed while reading and will be left as it is, with section and offset.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Why this function must keep its body, if it must.
    #[must_use]
    pub fn locked(&self, f: FuncId) -> Option<&str> {
        self.layout.infos.get(f.0).and_then(|i| i.locked.as_deref())
    }

    /// The signature of a function, if BTF has it.
    #[must_use]
    pub fn func_proto(&self, f: FuncId) -> Option<FuncProto> {
        let function = self.functions().get(f.0)?;
        let btf = self.btf.as_ref()?;
        let by_record = self.records(FUNC_INFO, function).find(|r| r.slot() == function.start).map(|r| r.word(1));
        btf.func_proto(by_record.or_else(|| btf.func_named(&function.name))?)
    }

    /// The functions that are declared and not defined here, and their signatures.
    pub fn extern_functions(&self) -> impl Iterator<Item = (String, FuncProto)> {
        self.btf.iter().flat_map(|btf| btf.extern_functions())
    }

    /// Whether an undefined symbol is to be found in the kernel or its configuration, rather than in another object that
    /// this one is to be linked to.
    #[must_use]
    pub fn is_asked_of_the_kernel(&self, name: &str) -> bool {
        self.btf.as_ref().is_some_and(|btf| btf.is_asked_of_the_kernel(name))
    }

    /// Whether BTF has a type or a tag of this name, whatever it is; yes where there is no BTF.
    pub fn may_mention(&self, name: &str) -> bool {
        let Some(btf) = &self.btf else { return true };
        btf.ids().filter_map(|id| btf.get(id)).any(|t| btf.string(t.name).as_deref() == Some(name))
    }

    /// The signature against which the kernel verifies `f` alone, if it does: its func_info names a FUNC type with global
    /// linkage (`btf_prepare_func_args` in kernel/bpf/btf.c).
    pub fn global_signature(&self, f: FuncId) -> Option<FuncProto> {
        let function = self.functions().get(f.0).filter(|f| f.kind == crate::FuncKind::Global)?;
        let btf = self.btf.as_ref()?;
        let record = self.records(FUNC_INFO, function).find(|r| r.slot() == function.start)?;
        btf.is_global(record.word(1)).then(|| btf.func_proto(record.word(1)))?
    }

    /// The source line of an instruction of the input, if BTF.ext has it.
    #[must_use]
    pub fn line_of(&self, f: FuncId, slot: usize) -> Option<SourceLine> {
        let function = self.functions().get(f.0).filter(|f| slot < f.slots)?;
        let at = function.start + slot;
        let record = self
            .records(LINE_INFO, function)
            .filter(|r| r.slot() >= function.start && r.slot() <= at)
            .max_by_key(|r| r.insn_off)?;
        self.source_line(record)
    }

    /// All source lines of a function of the input, each with the first slot that it stands for; by slot. What stands
    /// between two of them belongs to the first.
    #[must_use]
    pub fn source_lines(&self, f: FuncId) -> Vec<(usize, SourceLine)> {
        let Some(function) = self.functions().get(f.0) else { return Vec::new() };
        let slots = function.start..function.start + function.slots;
        let records = self.records(LINE_INFO, function).filter(|r| slots.contains(&r.slot()));
        let lines = records.filter_map(|r| Some((r.slot() - function.start, self.source_line(r)?)));
        let by_slot: BTreeMap<usize, SourceLine> = lines.collect();
        by_slot.into_iter().collect()
    }

    /// What a record of line information says (`struct bpf_line_info` of `include/uapi/linux/bpf.h`).
    fn source_line(&self, record: &Record) -> Option<SourceLine> {
        let btf = self.btf.as_ref()?;
        let file = btf.string(record.word(1))?;
        let text = btf.string(record.word(2)).unwrap_or_default();
        Some(SourceLine { file, line: record.word(3) >> 10, column: record.word(3) & 0x3ff, text })
    }

    fn records(&self, table: usize, f: &Function) -> impl Iterator<Item = &Record> + '_ {
        let section = f.section_index;
        self.ext.as_ref().into_iter().flat_map(move |e| e.records(table, section))
    }

    /// The body that changes nothing, as a starting point for changed ones.
    ///
    /// # Errors
    /// If there is no such function.
    pub fn identity_body(&self, f: FuncId) -> Result<Vec<NewInsn>, ObjectError> {
        let function = self.functions().get(f.0).ok_or(ObjectError::NoSuchFunction { index: f.0 })?;
        let code = self.code(f);
        let mut body = Vec::with_capacity(function.slots);
        let mut slot = 0;
        while slot < function.slots {
            let size = if code.get(slot * 8) == Some(&LD_IMM64) { 2 } else { 1 };
            let bytes = code.get(slot * 8..(slot + size) * 8).or_else(|| code.get(slot * 8..)).unwrap_or(&[]).to_vec();
            body.push(NewInsn { bytes, origin: Some(slot), refs_from: Some(slot) });
            slot += size;
        }
        Ok(body)
    }

    /// Gives a function a new body. Jumps in it must be final. Immediates of calls and function
    /// addresses need not be: they are set on writing, from what `refs_from` says. The body that
    /// changes nothing takes an earlier change back.
    ///
    /// # Errors
    /// If the function is locked, or the body is not well formed.
    pub fn set_body(&mut self, f: FuncId, body: Vec<NewInsn>) -> Result<(), ObjectError> {
        let function = self.functions().get(f.0).ok_or(ObjectError::NoSuchFunction { index: f.0 })?;
        let same = self.is_identity(f, &body);
        if let Some(reason) = self.locked(f) {
            if same {
                return Ok(());
            }
            return Err(ObjectError::Locked { function: function.name.clone(), reason: reason.to_owned() });
        }
        self.check_body(f, function, &body)?;
        if same {
            self.bodies.remove(&f.0);
        } else {
            self.bodies.insert(f.0, body);
        }
        Ok(())
    }

    /// The new body of a function; `None` if it is as it was.
    pub fn new_body(&self, f: FuncId) -> Option<&[NewInsn]> {
        self.bodies.get(&f.0).map(Vec::as_slice)
    }

    /// Takes a new body back.
    pub fn reset_body(&mut self, f: FuncId) {
        self.bodies.remove(&f.0);
    }

    fn refs_at(&self, f: FuncId, slot: usize) -> &[Ref] {
        let refs = self.refs(f);
        let from = refs.partition_point(|r| r.slot < slot);
        let to = refs.partition_point(|r| r.slot <= slot);
        refs.get(from..to).unwrap_or(&[])
    }

    fn is_identity(&self, f: FuncId, body: &[NewInsn]) -> bool {
        let mut slot = 0;
        let carries = |slot: usize| {
            !self.refs_at(f, slot).is_empty() || self.core_relocs(f).binary_search_by_key(&slot, |c| c.slot).is_ok()
        };
        for insn in body {
            let same_refs = insn.refs_from == Some(slot) || (insn.refs_from.is_none() && !carries(slot));
            if insn.origin != Some(slot) || !same_refs {
                return false;
            }
            slot += insn.bytes.len() / 8;
        }
        body.iter().flat_map(|i| &i.bytes).eq(self.code(f))
    }

    fn check_body(&self, f: FuncId, function: &Function, body: &[NewInsn]) -> Result<(), ObjectError> {
        let mut slot = 0;
        let bad =
            |slot: usize, problem: String| Err(ObjectError::Body { function: function.name.clone(), slot, problem });
        if body.is_empty() {
            return bad(0, "it is empty".into());
        }
        let code = self.layout.code.get(&function.section_index);
        let starts =
            |s: usize| s < function.slots && code.and_then(|c| c.starts.get(function.start + s)) == Some(&true);
        for insn in body {
            let op = insn.bytes.first().copied().unwrap_or(0);
            let want = if op == LD_IMM64 { 16 } else { 8 };
            if insn.bytes.len() != want {
                return bad(slot, format!("{} bytes, expected {want}", insn.bytes.len()));
            }
            for (what, from) in [("origin", insn.origin), ("reference", insn.refs_from)] {
                if let Some(from) = from.filter(|&s| !starts(s)) {
                    return bad(slot, format!("its {what} is slot {from}, where no instruction starts"));
                }
            }
            let refs = insn.refs_from.map_or(&[][..], |s| self.refs_at(f, s));
            let source = insn.bytes.get(1).copied().unwrap_or(0) >> 4;
            let mut code_ref = false;
            for r in refs {
                let fits = match r.kind {
                    RefKind::Map { .. } | RefKind::Data { .. } | RefKind::FuncAddr { .. } => op == LD_IMM64,
                    RefKind::Call { .. } => op == CALL && source == 1,
                    RefKind::Extern { .. } => op == LD_IMM64 || op == CALL,
                    RefKind::Other { .. } => false,
                };
                if !fits {
                    return bad(slot, format!("opcode {op:#04x} cannot carry the reference of slot {}", r.slot));
                }
                code_ref = true;
            }
            if !code_ref && ((op == CALL && source == 1) || (op == LD_IMM64 && source == 4)) {
                return bad(slot, "it points to code, but carries no reference saying where".into());
            }
            slot += insn.bytes.len() / 8;
        }
        Ok(())
    }
}
