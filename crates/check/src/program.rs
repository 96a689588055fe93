//! The code the kernel would get: a program with the subprograms it reaches, one after the other, as libbpf links them.
//!
//! Slots are numbered through the whole; references to maps, data and functions are resolved to indices, so nothing
//! after this module knows of sections or relocations.

use bpf_isa::{Call, Imm64Kind, Insn};
use bpf_object::{FuncId, FuncKind, FuncProto, MapDef, Object, RefKind};
use bpf_platform::{ByteOrder, maps};
use rustc_hash::FxHashMap;

/// What the operand of an instruction stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing but its number.
    None,
    /// A map.
    Map(usize),
    /// A place in the only value of a map (global data).
    MapValue(usize, u64),
    /// A function, by its first slot.
    Func(usize),
    /// Something this crate cannot resolve.
    Unknown(String),
}

/// One slot of the linked code.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The instruction that starts here; `None` in the second half of an `ld_imm64`.
    pub insn: Option<Insn>,
    /// What it refers to.
    pub target: Target,
    /// The function of the object and the slot in it.
    pub origin: (FuncId, usize),
}

/// A function of the linked code.
#[derive(Clone, Debug)]
pub struct Sub {
    /// First slot.
    pub start: usize,
    /// The slot after the last.
    pub end: usize,
    /// Its name.
    pub name: String,
    /// Verified alone, against its signature.
    pub global: bool,
    /// Its signature, if BTF has it.
    pub proto: Option<FuncProto>,
}

/// A map.
#[derive(Clone, Debug, Default)]
pub struct MapInfo {
    /// Its name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Number of elements.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// The contents that no one can change, of `.rodata`.
    pub frozen: Option<Vec<u8>>,
    /// The template of the inner maps.
    pub inner: Option<Box<MapInfo>>,
}

/// Programs may not write its values.
const RDONLY_PROG: u32 = 1 << 7;
/// Programs may not read its values.
const WRONLY_PROG: u32 = 1 << 8;

impl MapInfo {
    /// May programs write values in place?
    pub fn writable(&self) -> bool {
        self.flags & RDONLY_PROG == 0
    }
    /// May programs read values?
    pub fn readable(&self) -> bool {
        self.flags & WRONLY_PROG == 0
    }

    fn of(def: &MapDef) -> MapInfo {
        let (kind, flags) = (def.map_type.unwrap_or(0), def.map_flags.unwrap_or(0));
        MapInfo {
            name: def.name.clone(),
            kind,
            key_size: maps::open_key_size(kind).or_only(def.key_size).unwrap_or(0),
            value_size: maps::open_value_size(kind, flags).or_only(def.value_size).unwrap_or(0),
            max_entries: def.max_entries.unwrap_or(0),
            flags,
            frozen: None,
            inner: def.inner.as_deref().map(|d| Box::new(MapInfo::of(d))),
        }
    }
}

/// A program as the kernel would see it.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its ELF section.
    pub section: String,
    /// All slots.
    pub slots: Vec<Slot>,
    /// Its functions by start; the first is the program itself.
    pub subs: Vec<Sub>,
    /// The maps.
    pub maps: Vec<MapInfo>,
    /// `enum bpf_prog_type`.
    pub kind: u32,
    /// `enum bpf_attach_type`.
    pub attach: u32,
    /// Whether its licence opens the GPL-only helpers.
    pub gpl: bool,
    /// The order of bytes of the machine it is for, whose kernel is asked.
    pub order: ByteOrder,
}

/// Licences the kernel takes for compatible with the GPL (`license_is_gpl_compatible`).
const GPL: [&str; 6] = ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];

/// Is a licence one of those that open all helpers?
pub fn is_gpl(license: &str) -> bool {
    GPL.contains(&license)
}

impl Program {
    /// Links the function `main` of an object with all it calls.
    pub fn link(object: &Object, main: FuncId, kind: u32, attach: u32) -> Program {
        let function = &object.functions()[main.0];
        let license = object.section("license").map_or(String::new(), |(_, bytes)| {
            String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or(&[])).into_owned()
        });
        let mut linker =
            Linker { object, maps: object.maps().iter().map(MapInfo::of).collect(), data: FxHashMap::default() };
        let mut program = Program {
            name: function.name.clone(),
            section: function.section.clone(),
            kind,
            attach,
            gpl: is_gpl(&license),
            order: object.byte_order(),
            ..Program::default()
        };
        // Functions in the order in which calls to them are found.
        let mut order = vec![main];
        let mut starts: FxHashMap<FuncId, usize> = FxHashMap::default();
        let mut next = 0;
        while let Some(&f) = order.get(next) {
            next += 1;
            starts.insert(f, program.slots.len());
            let known = &object.functions()[f.0];
            let start = program.slots.len();
            linker.append(f, &mut program.slots);
            program.subs.push(Sub {
                start,
                end: program.slots.len(),
                name: known.name.clone(),
                global: f != main && known.kind == FuncKind::Global,
                proto: object.func_proto(f),
            });
            for r in object.refs(f) {
                if let RefKind::Call { target } | RefKind::FuncAddr { target } = r.kind
                    && !order.contains(&target)
                {
                    order.push(target);
                }
            }
        }
        // Until here functions are named by their number in the object.
        for slot in &mut program.slots {
            if let Target::Func(f) = slot.target {
                slot.target = starts.get(&FuncId(f)).map_or(Target::Unknown("a function".into()), |s| Target::Func(*s));
            }
        }
        program.maps = linker.maps;
        program
    }

    /// A program of bare instructions, where map file descriptors are indices into `maps`, and calls and function
    /// addresses count slots; for a little-endian machine.
    pub fn of_insns(insns: &[Insn], maps: Vec<MapInfo>, kind: u32, attach: u32, gpl: bool) -> Program {
        let mut slots: Vec<Slot> = Vec::new();
        let mut starts = vec![0usize];
        for insn in insns {
            let at = slots.len();
            let relative = |by: i64| usize::try_from(at as i64 + 1 + by).unwrap_or(usize::MAX);
            let target = match *insn {
                Insn::LoadImm64 { kind: Imm64Kind::MapFd | Imm64Kind::MapIdx, imm, .. } => {
                    Target::Map(imm as u32 as usize)
                }
                Insn::LoadImm64 { kind: Imm64Kind::MapValue | Imm64Kind::MapIdxValue, imm, .. } => {
                    Target::MapValue(imm as u32 as usize, imm >> 32)
                }
                Insn::LoadImm64 { kind: Imm64Kind::Func, imm, .. } => Target::Func(relative((imm as i32).into())),
                Insn::LoadImm64 { kind: Imm64Kind::BtfId, .. } => Target::Unknown("a kernel variable".into()),
                Insn::Call(Call::Local(by)) => Target::Func(relative(by.into())),
                _ => Target::None,
            };
            if let Target::Func(start) = target {
                starts.push(start);
            }
            let origin = (FuncId(0), at);
            slots.push(Slot { insn: Some(*insn), target, origin });
            slots.extend((1..insn.slots()).map(|_| Slot { insn: None, target: Target::None, origin }));
        }
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|s| *s < slots.len());
        let ends = starts.iter().copied().skip(1).chain([slots.len()]);
        let subs = starts
            .iter()
            .zip(ends)
            .map(|(&start, end)| Sub { start, end, name: format!("sub{start}"), global: false, proto: None })
            .collect();
        let order = ByteOrder::Little;
        Program { name: "program".into(), section: String::new(), slots, subs, maps, kind, attach, gpl, order }
    }

    /// The function that holds a slot.
    pub fn sub_of(&self, slot: usize) -> usize {
        self.subs.partition_point(|s| s.start <= slot).saturating_sub(1)
    }

    /// The function that starts at a slot.
    pub fn sub_at(&self, slot: usize) -> Option<usize> {
        self.subs.binary_search_by_key(&slot, |s| s.start).ok()
    }
}

struct Linker<'a> {
    object: &'a Object,
    maps: Vec<MapInfo>,
    /// The map of each data section.
    data: FxHashMap<String, usize>,
}

impl Linker<'_> {
    fn append(&mut self, f: FuncId, slots: &mut Vec<Slot>) {
        let base = slots.len();
        let refs = self.object.refs(f);
        for (at, insn) in bpf_isa::decode_all(self.object.code(f)).unwrap_or_default() {
            slots.resize_with((base + at).max(slots.len()), || unreachable_slot(f));
            let mut target = match insn {
                Insn::Call(Call::Local(_)) | Insn::LoadImm64 { kind: Imm64Kind::Func, .. } => {
                    Target::Unknown("a function".into())
                }
                Insn::LoadImm64 { kind, .. } if kind != Imm64Kind::Const => Target::Unknown("an address".into()),
                _ => Target::None,
            };
            for r in refs.iter().filter(|r| r.slot == at) {
                target = self.resolve(&r.kind);
            }
            slots.push(Slot { insn: Some(insn), target, origin: (f, at) });
            slots.extend((1..insn.slots()).map(|_| Slot { insn: None, target: Target::None, origin: (f, at) }));
        }
    }

    fn resolve(&mut self, kind: &RefKind) -> Target {
        match kind {
            RefKind::Map { map, offset: 0 } => Target::Map(*map),
            RefKind::Data { section, offset, .. } => match self.data_map(section) {
                Some(map) => Target::MapValue(map, *offset),
                None => Target::Unknown(format!("section {section}")),
            },
            RefKind::Call { target } | RefKind::FuncAddr { target } => Target::Func(target.0),
            RefKind::Extern { name } if name.starts_with("CONFIG_") || name.starts_with("LINUX_") => {
                // libbpf's `.kconfig` map: known to the loader alone.
                Target::MapValue(self.kconfig(), 0)
            }
            RefKind::Extern { name } => Target::Unknown(format!("the kernel symbol {name}")),
            other => Target::Unknown(format!("{other:?}")),
        }
    }

    fn kconfig(&mut self) -> usize {
        let next = self.maps.len();
        let index = *self.data.entry(".kconfig".to_owned()).or_insert(next);
        if index == next {
            self.maps.push(MapInfo {
                name: ".kconfig".to_owned(),
                kind: 2,
                key_size: 4,
                value_size: 4096,
                max_entries: 1,
                flags: RDONLY_PROG,
                ..MapInfo::default()
            });
        }
        index
    }

    fn data_map(&mut self, section: &str) -> Option<usize> {
        if let Some(&known) = self.data.get(section) {
            return Some(known);
        }
        let (size, bytes) = self.object.section(section)?;
        let constant = section.starts_with(".rodata");
        self.maps.push(MapInfo {
            name: section.to_owned(),
            kind: 2,
            key_size: 4,
            value_size: u32::try_from(size).ok()?,
            max_entries: 1,
            flags: if constant { RDONLY_PROG } else { 0 },
            frozen: constant.then(|| bytes.to_vec()),
            inner: None,
        });
        self.data.insert(section.to_owned(), self.maps.len() - 1);
        Some(self.maps.len() - 1)
    }
}

fn unreachable_slot(f: FuncId) -> Slot {
    Slot { insn: None, target: Target::None, origin: (f, 0) }
}
