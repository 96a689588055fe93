//! From assembly to an object file that libbpf loads.
//!
//! One idea: everything around the code (maps, data, kernel functions) is declared once, in [`Surroundings`], and two
//! versions of the code are assembled in the same surroundings; so two such objects differ in code alone.
//!
//! The listing is LLVM's syntax, as [`bpf_isa::parse_listing`] reads it, with names where an object has relocations:
//! `r1 = NAME ll` is the address of a map, a variable (`NAME + 8 ll`) or a function, `call NAME` calls a function, a
//! declared kernel function, or a helper by its name (`bpf_map_lookup_elem`; `call 1` still works).

mod declarations;
mod words;

use bpf_isa::{Call, Imm64Kind, Insn};
use bpf_platform::helpers::Helper;

use bpf_raw::btf::{Btf, CodeRecords, Linkage, TypeId, code_records};
use bpf_raw::elf::{Binding, Elf, RELOC_CALL, RELOC_IMM64, SectionId, SectionKind, SymbolId, SymbolKind};
use declarations::managed_pointer;
pub use declarations::{Map, MapForm, Signature, Special, Type, Variable};
pub use words::{AssemblyError, hex};
use words::{number, syntax};

/// What there is beside the code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// The section of the first program, such as `xdp`.
    pub section: String,
    /// Maps, in order.
    pub maps: Vec<Map>,
    /// Variables, in order.
    pub variables: Vec<Variable>,
    /// Kernel functions that are called.
    pub kfuncs: Vec<Signature>,
    /// Kernel functions without which the object loads, too (`__weak`): their address is 0 then.
    pub weak_kfuncs: Vec<Signature>,
    /// How maps are defined.
    pub map_form: MapForm,
    /// Without `.BTF` and `.BTF.ext`, as `clang` writes objects without `-g`.
    pub untyped: bool,
    /// The object is to be linked to others: the license is theirs, and its variables are seen here alone.
    pub linkable: bool,
    /// Each instruction has a record that says which line of source it comes from.
    pub lines: bool,
}

/// How a function is seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An entry point.
    Program,
    /// A subprogram that is verified with its callers; callbacks, too. In a program's section, a program whose symbol
    /// is local.
    Static,
    /// A subprogram that is verified alone.
    Global,
    /// A subprogram that files linked to this one call, and that is verified with its callers (`__hidden` of libbpf).
    Hidden,
}

/// A function as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name and type.
    pub signature: Signature,
    /// What it is.
    pub role: Role,
    /// The section it stands in.
    pub section: String,
    /// Its listing.
    pub listing: String,
}

/// The C structure of the context, by how a section's name begins (libbpf's `section_defs` with the program types'
/// entries in the kernel's `include/linux/bpf_types.h`); the longest beginning counts.
const CONTEXTS: [(&str, &str); 24] = [
    ("xdp", "xdp_md"),
    ("tc", "__sk_buff"),
    ("tcx", "__sk_buff"),
    ("classifier", "__sk_buff"),
    ("action", "__sk_buff"),
    ("socket", "__sk_buff"),
    ("cgroup_skb", "__sk_buff"),
    ("cgroup/skb", "__sk_buff"),
    ("lwt", "__sk_buff"),
    ("sk_skb", "__sk_buff"),
    ("flow_dissector", "__sk_buff"),
    ("netkit", "__sk_buff"),
    ("sk_msg", "sk_msg_md"),
    ("sockops", "bpf_sock_ops"),
    ("cgroup/sock", "bpf_sock"),
    ("cgroup/bind", "bpf_sock_addr"),
    ("cgroup/connect", "bpf_sock_addr"),
    ("cgroup/getsockopt", "bpf_sockopt"),
    ("cgroup/setsockopt", "bpf_sockopt"),
    ("cgroup/sysctl", "bpf_sysctl"),
    ("sk_lookup", "bpf_sk_lookup"),
    ("kprobe", "bpf_user_pt_regs_t"),
    ("perf_event", "bpf_perf_event_data"),
    ("raw_tp", "bpf_raw_tracepoint_args"),
];

/// About as many instructions as a line of C has.
const INSNS_OF_A_LINE: u32 = 3;

/// Where subprograms stand.
const TEXT: &str = ".text";

/// Cuts code into functions. `static NAME(TYPES) TYPE:` and `global NAME(TYPES) TYPE:` begin a subprogram,
/// `program NAME SECTION:` another program; what stands before the first such line is the program `main`.
///
/// # Errors
/// A line that begins no function and looks as if it did.
pub fn functions(text: &str, section: &str) -> Result<Vec<Function>, AssemblyError> {
    let returns = Type::Int { bytes: 4, signed: true };
    let program = |name: &str, section: &str| Function {
        signature: Signature { name: name.into(), params: vec![Type::Context], returns: returns.clone() },
        role: Role::Program,
        section: section.into(),
        listing: String::new(),
    };
    let mut found = vec![program("main", section)];
    for line in text.lines() {
        let bare = without_comment(line).trim();
        let heading = bare.strip_suffix(':').and_then(|h| h.split_once(' '));
        let subprogram = |role, text| {
            Ok(Function { signature: Signature::parse(text)?, role, section: TEXT.into(), listing: String::new() })
        };
        match heading {
            Some(("static", text)) => found.push(subprogram(Role::Static, text)?),
            Some(("global", text)) => found.push(subprogram(Role::Global, text)?),
            Some(("program", text)) => {
                let (name, section) = text.split_once(' ').ok_or_else(|| syntax(text, "program (`NAME SECTION`)"))?;
                found.push(program(name, section.trim()));
            }
            _ => {
                let f = found.last_mut().ok_or_else(|| syntax(line, "line of a function"))?;
                f.listing += line;
                f.listing.push('\n');
            }
        }
    }
    found.retain(|f| f.listing.lines().any(|l| !without_comment(l).trim().is_empty()));
    Ok(found)
}

/// An instruction's reference by name.
struct Named {
    insn: usize,
    name: String,
    addend: u64,
}

/// The object of these functions in these surroundings.
///
/// # Errors
/// [`AssemblyError`].
pub fn object(around: &Surroundings, functions: &[Function]) -> Result<Vec<u8>, AssemblyError> {
    let context =
        CONTEXTS.iter().filter(|(head, _)| around.section.starts_with(head)).max_by_key(|(head, _)| head.len());
    let context = context.map_or("unknown_ctx", |(_, name)| name);
    let (elf, btf) = (Elf::default(), Btf::default());
    let mut writer = Writer { around, functions, context, elf, btf, symbols: vec![], held: vec![] };
    writer.maps();
    writer.variables();
    writer.kfuncs();
    writer.code()?;
    let Writer { mut elf, btf, .. } = writer;
    if !around.linkable {
        elf.section("license", SectionKind::Data, b"GPL\0".to_vec());
    }
    if !around.untyped {
        elf.section(".BTF", SectionKind::Info, btf.write());
    }
    Ok(elf.write())
}

struct Writer<'a> {
    around: &'a Surroundings,
    functions: &'a [Function],
    context: &'a str,
    elf: Elf,
    btf: Btf,
    /// What maps, variables and kernel functions are called.
    symbols: Vec<(String, SymbolId)>,
    /// Where maps hold programs, and which.
    held: Vec<(SectionId, u64, String)>,
}

/// A section of code: its functions with their instructions.
struct Code<'a> {
    id: SectionId,
    symbol: SymbolId,
    name: &'a str,
}

impl<'a> Writer<'a> {
    fn maps(&mut self) {
        match self.around.map_form {
            _ if self.around.maps.is_empty() => {}
            MapForm::Typed => self.typed_maps(),
            MapForm::Legacy { bytes, apart } => self.legacy_maps(bytes, apart),
        }
    }

    fn legacy_maps(&mut self, bytes: u32, apart: bool) {
        let definition = |map: &Map| {
            let numbers = [map.map_type, map.key_size, map.value_size, map.max_entries, map.flags];
            let mut definition = numbers.map(u32::to_le_bytes).concat();
            definition.resize(bytes as usize, 0);
            definition
        };
        let maps = &self.around.maps;
        let together = (!apart).then(|| {
            let all: Vec<u8> = maps.iter().flat_map(definition).collect();
            self.elf.section("maps", SectionKind::Data, all)
        });
        for (at, map) in maps.iter().enumerate() {
            let (section, at) = match together {
                Some(section) => (section, at as u64),
                None => (self.elf.section(&format!("maps/{}", map.name), SectionKind::Data, definition(map)), 0),
            };
            let range = at * u64::from(bytes)..(at + 1) * u64::from(bytes);
            let symbol = self.elf.symbol(&map.name, SymbolKind::Object, Binding::Global, Some(section), range);
            self.symbols.push((map.name.clone(), symbol));
        }
    }

    fn typed_maps(&mut self) {
        let (mut entries, mut places, mut end) = (vec![], vec![], 0);
        for map in &self.around.maps {
            let (definition, bytes) = map.definition(&mut self.btf, &self.around.maps);
            let variable = self.btf.variable(&map.name, Linkage::Global, definition);
            // Behind the definition stands a pointer to each program that the map holds.
            let room = bytes + 8 * map.programs.len() as u32;
            entries.push((variable, end, room));
            places.push((u64::from(end)..u64::from(end + room), u64::from(end + bytes)));
            end += room;
        }
        self.btf.section(".maps", end, &entries);
        let section = self.elf.section(".maps", SectionKind::Data, vec![0; end as usize]);
        for (map, (range, first)) in self.around.maps.iter().zip(places) {
            let held = (first..).step_by(8).zip(&map.programs);
            self.held.extend(held.map(|(at, program)| (section, at, program.clone())));
            let symbol = self.elf.symbol(&map.name, SymbolKind::Object, Binding::Global, Some(section), range);
            self.symbols.push((map.name.clone(), symbol));
        }
    }

    fn variables(&mut self) {
        let mut sections: Vec<&str> = vec![];
        for v in &self.around.variables {
            if !sections.contains(&v.section.as_str()) {
                sections.push(&v.section);
            }
        }
        for name in sections {
            let (mut bytes, mut entries, mut found) = (vec![], vec![], vec![]);
            for v in self.around.variables.iter().filter(|v| v.section == name) {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                let at = bytes.len();
                bytes.extend(v.value.iter().take(v.size as usize));
                bytes.resize(at + v.size as usize, 0);
                // User space maps sections with variables that it may see, and the kernel none with its pointers
                // (`map_is_mmapable` in libbpf.c, `bpf_map_mmap` in kernel/bpf/syscall.c).
                let (linkage, ty) = match &v.pointer {
                    Some(tag) => (Linkage::Static, managed_pointer(&mut self.btf, tag)),
                    None if self.around.variables.iter().any(|w| w.section == name && w.pointer.is_some()) => {
                        (Linkage::Static, self.bytes(v.size))
                    }
                    None if self.around.linkable => (Linkage::Static, self.bytes(v.size)),
                    None => (Linkage::Global, self.bytes(v.size)),
                };
                entries.push((self.btf.variable(&v.name, linkage, ty), at as u32, v.size));
                found.push((v.name.clone(), at as u64..bytes.len() as u64));
            }
            let kind = match name {
                _ if name.starts_with(".bss") => SectionKind::Zeroes,
                _ if name.starts_with(".rodata") => SectionKind::ReadOnly,
                _ => SectionKind::Data,
            };
            self.btf.section(name, bytes.len() as u32, &entries);
            let section = self.elf.section(name, kind, bytes);
            let binding = if self.around.linkable { Binding::Local } else { Binding::Global };
            for (name, range) in found {
                let symbol = self.elf.symbol(&name, SymbolKind::Object, binding, Some(section), range);
                self.symbols.push((name, symbol));
            }
        }
    }

    fn bytes(&mut self, count: u32) -> TypeId {
        let byte = self.btf.int(1, false);
        self.btf.array(byte, count)
    }

    fn kfuncs(&mut self) {
        let mut entries = vec![];
        let strong = self.around.kfuncs.iter().map(|k| (k, Binding::Global));
        let weak = self.around.weak_kfuncs.iter().map(|k| (k, Binding::Weak));
        for (k, binding) in strong.chain(weak) {
            entries.push((k.id(&mut self.btf, Linkage::Extern, self.context), 0, 0));
            let symbol = self.elf.symbol(&k.name, SymbolKind::Unknown, binding, None, 0..0);
            self.symbols.push((k.name.clone(), symbol));
        }
        if !entries.is_empty() {
            self.btf.section(".ksyms", 0, &entries);
        }
    }

    fn code(&mut self) -> Result<(), AssemblyError> {
        let parsed: Vec<(Vec<Insn>, Vec<Named>)> =
            self.functions.iter().map(|f| self.parse(f)).collect::<Result<_, _>>()?;
        let slots = |insns: &[Insn]| insns.iter().map(|i| i.slots()).sum::<usize>();
        let mut ends: Vec<(&str, usize)> = vec![];
        let mut starts = vec![];
        for (f, (insns, _)) in self.functions.iter().zip(&parsed) {
            let known = ends.iter().position(|(name, _)| *name == f.section);
            let known = known.unwrap_or_else(|| {
                ends.push((&f.section, 0));
                ends.len() - 1
            });
            starts.push(ends[known].1);
            ends[known].1 += slots(insns);
        }
        let mut sections = vec![];
        for (name, _) in ends {
            let mut bytes = vec![];
            for (f, (insns, named)) in self.functions.iter().zip(&parsed).filter(|(f, _)| f.section == name) {
                let mut encoded = bpf_isa::encode_all(insns)
                    .map_err(|e| syntax(format!("{}: {e}", f.signature.name), "encodable function"))?;
                self.set_addends(insns, named, &starts, &mut encoded);
                bytes.extend(encoded);
            }
            let id = self.elf.section(name, SectionKind::Code, bytes);
            let symbol = self.elf.symbol("", SymbolKind::Section, Binding::Local, Some(id), 0..0);
            sections.push(Code { id, symbol, name });
        }
        let mut records = vec![];
        for code in &sections {
            let mut functions = vec![];
            let mut lines = vec![];
            for (i, f) in self.functions.iter().enumerate().filter(|(_, f)| f.section == code.name) {
                let range = 8 * starts[i] as u64..8 * (starts[i] + slots(&parsed[i].0)) as u64;
                let (binding, linkage) = match f.role {
                    Role::Static => (Binding::Local, Linkage::Static),
                    Role::Program | Role::Global => (Binding::Global, Linkage::Global),
                    Role::Hidden => (Binding::Hidden, Linkage::Global),
                };
                let symbol = self.elf.symbol(&f.signature.name, SymbolKind::Func, binding, Some(code.id), range);
                for (section, at, _) in self.held.iter().filter(|(_, _, program)| *program == f.signature.name) {
                    self.elf.relocate(*section, *at, symbol, RELOC_IMM64);
                }
                functions.push((8 * starts[i] as u32, f.signature.id(&mut self.btf, linkage, self.context)));
                if self.around.lines {
                    let file = self.btf.string("generated.c");
                    let line = |(n, slot)| (8 * (starts[i] + slot) as u32, file, 1 + n as u32 / INSNS_OF_A_LINE);
                    lines.extend(slots_of(&parsed[i].0).into_iter().enumerate().map(line));
                }
                self.relocations(code, starts[i], &parsed[i], &sections);
            }
            records.push(CodeRecords { name: self.btf.string(code.name), functions, lines });
        }
        if !self.around.untyped {
            self.elf.section(".BTF.ext", SectionKind::Info, code_records(&records));
        }
        Ok(())
    }

    /// Writes what is added to a symbol's value. Functions are reached from their section: a call counts slots less one,
    /// an address bytes.
    fn set_addends(&self, insns: &[Insn], named: &[Named], starts: &[usize], bytes: &mut [u8]) {
        let starts_of = slots_of(insns);
        for n in named {
            let at = 8 * starts_of[n.insn] + 4;
            let target = self.functions.iter().position(|f| f.signature.name == n.name).map(|t| starts[t] as i32);
            let addend = match (target, insns[n.insn]) {
                (Some(start), Insn::Call(_)) => start - 1,
                (Some(start), _) => 8 * start,
                (None, Insn::Call(_)) => -1,
                (None, _) => n.addend as i32,
            };
            bytes[at..at + 4].copy_from_slice(&addend.to_le_bytes());
        }
    }

    fn relocations(&mut self, code: &Code, start: usize, parsed: &(Vec<Insn>, Vec<Named>), sections: &[Code]) {
        let (insns, named) = parsed;
        let starts_of = slots_of(insns);
        for n in named {
            let kind = if matches!(insns[n.insn], Insn::Call(_)) { RELOC_CALL } else { RELOC_IMM64 };
            let function = self.functions.iter().find(|f| f.signature.name == n.name);
            let symbol = match function {
                Some(f) => sections.iter().find(|s| s.name == f.section).map(|s| s.symbol),
                None => self.symbols.iter().find(|s| s.0 == n.name).map(|s| s.1),
            };
            if let Some(symbol) = symbol {
                self.elf.relocate(code.id, 8 * (start + starts_of[n.insn]) as u64, symbol, kind);
            }
        }
    }

    /// Instructions with stand-ins for what has a name, and the names.
    fn parse(&self, f: &Function) -> Result<(Vec<Insn>, Vec<Named>), AssemblyError> {
        let (mut lines, mut named, mut count) = (vec![], vec![], 0);
        for line in f.listing.lines() {
            let line = without_comment(line);
            let (labels, insn) = split_labels(line);
            let stand_in = match name_in(insn) {
                None => insn.to_string(),
                Some((name, addend)) => {
                    let known = self.symbols.iter().any(|s| s.0 == name)
                        || self.functions.iter().any(|f| f.signature.name == name);
                    let helper = helper_named(name);
                    match (insn.strip_prefix("call "), known, helper) {
                        (Some(_), false, Some(id)) => format!("call {id}"),
                        (call, true, _) => {
                            named.push(Named { insn: count, name: name.into(), addend });
                            let dst = insn.split(' ').next().unwrap_or_default();
                            if call.is_some() { "call pc+0".into() } else { format!("{dst} = 0 ll") }
                        }
                        _ => {
                            return Err(AssemblyError::Unknown {
                                function: f.signature.name.clone(),
                                name: name.into(),
                            });
                        }
                    }
                }
            };
            count += usize::from(!insn.is_empty());
            lines.push(format!("{labels}{stand_in}"));
        }
        let insns = bpf_isa::parse_listing(&lines.join("\n"))
            .map_err(|source| AssemblyError::Listing { function: f.signature.name.clone(), source })?;
        debug_assert_eq!(insns.len(), count, "each line holds one instruction");
        debug_assert!(named.iter().all(|n| matches!(
            insns[n.insn],
            Insn::Call(Call::Local(_)) | Insn::LoadImm64 { kind: Imm64Kind::Const, .. }
        )));
        Ok((insns, named))
    }
}

/// The slot of each instruction within its function.
fn slots_of(insns: &[Insn]) -> Vec<usize> {
    let mut end = 0;
    let mut starts = Vec::with_capacity(insns.len());
    for insn in insns {
        starts.push(end);
        end += insn.slots();
    }
    starts
}

fn without_comment(line: &str) -> &str {
    let end = [";", "//", "#"].into_iter().filter_map(|c| line.find(c)).min();
    &line[..end.unwrap_or(line.len())]
}

/// The labels at the beginning of a line, and the rest.
fn split_labels(line: &str) -> (&str, &str) {
    let is_label = |text: &str| {
        let text = text.trim();
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
    };
    let mut at = 0;
    while let Some(colon) = line[at..].find(':').filter(|c| is_label(&line[at..at + c])) {
        at += colon + 1;
    }
    (&line[..at], line[at..].trim())
}

/// The name in `rN = NAME ll`, `rN = NAME + K ll` or `call NAME`, with K.
fn name_in(insn: &str) -> Option<(&str, u64)> {
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
    };
    if let Some(callee) = insn.strip_prefix("call ") {
        return Some((callee.trim(), 0)).filter(|(name, _)| is_name(name));
    }
    let (_, value) = insn.strip_suffix(" ll")?.split_once(" = ")?;
    let (name, addend) = match value.split_once('+') {
        Some((name, addend)) => (name.trim(), number(addend.trim()).ok()?.into()),
        None => (value.trim(), 0),
    };
    Some((name, addend)).filter(|(name, _)| is_name(name))
}

/// The number of a helper, with or without `bpf_` before its name.
fn helper_named(name: &str) -> Option<i32> {
    /// More than there are (`enum bpf_func_id` ends at 211 and takes no new ones).
    const END: i32 = 256;
    let bare = name.strip_prefix("bpf_").unwrap_or(name);
    (1..END).find(|id| Helper::get(*id).is_some_and(|h| h.name == bare))
}
