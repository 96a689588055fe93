//! Global data: sections that loaders make maps of, and the variables in them.

use crate::btf::{Btf, DATASEC, ENUM, ENUM64, INT, Type, VAR};
use crate::elf::SHT_NOBITS;
use crate::object::Object;

/// Beginnings of the names of sections that become maps of global data (tools/lib/bpf/libbpf.c,
/// `bpf_object__init_global_data_maps`).
const BEGINNINGS: [&str; 3] = [".data", ".rodata", ".bss"];

/// A section of global data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataSection<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size in bytes.
    pub size: u64,
    /// Its contents; none if all is zero (`.bss`).
    pub bytes: &'a [u8],
}

impl DataSection<'_> {
    /// Whether programs only read it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.name.starts_with(".rodata")
    }
}

/// A variable in a section of global data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Variable<'a> {
    /// The section's name.
    pub section: &'a str,
    /// The symbol's name.
    pub name: &'a str,
    /// Where in the section.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// A variable that the loader gives a value of the kernel's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KconfigVariable {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u32,
    /// What a loader takes it for.
    pub kind: KconfigKind,
}

/// What libbpf takes a kconfig variable for (tools/lib/bpf/libbpf.c, `find_kcfg_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KconfigKind {
    /// 0 or 1.
    Bool,
    /// `enum libbpf_tristate`: 0, 1, 2.
    Tristate,
    /// A number, with a sign or without.
    Number {
        /// Whether it has one.
        is_signed: bool,
    },
    /// Something else: a text.
    Other,
}

impl Object {
    /// The sections that a loader makes maps of global data from.
    pub fn data_sections(&self) -> impl Iterator<Item = DataSection<'_>> {
        let sections = self.elf.sections.iter().enumerate();
        let data = sections.filter(|(_, s)| !s.is_reloc() && is_data(&s.name));
        data.map(|(i, s)| {
            let bytes = if s.kind == SHT_NOBITS { &[] } else { self.elf.data(i) };
            DataSection { name: &s.name, size: s.size, bytes }
        })
    }

    /// Whether some of these bytes of a section are what a relocation makes of them.
    #[must_use]
    pub fn is_relocated(&self, section: &str, from: u64, len: u64) -> bool {
        let here = |target: usize| self.elf.name(target) == section;
        let inside = |at: u64| at.saturating_add(8) > from && at < from.saturating_add(len);
        self.symbols.relocs.iter().any(|list| here(list.target) && list.relocs.iter().any(|r| inside(r.offset)))
    }

    /// The kconfig variables.
    #[must_use]
    pub fn kconfig_variables(&self) -> Vec<KconfigVariable> {
        let Some(btf) = &self.btf else { return Vec::new() };
        let sections = btf.ids().filter_map(|id| btf.get(id)).filter(|t| t.kind == DATASEC);
        let kconfig = sections.filter(|t| btf.string(t.name).as_deref() == Some(".kconfig"));
        let entries = kconfig.flat_map(|t| btf.section_variables(t));
        let variables = entries.filter_map(|entry| btf.get(entry.id)).filter(|v| v.kind == VAR);
        let variable = |v: Type| {
            let (name, size) = (btf.string(v.name)?, btf.size_of(v.size_or_type)?);
            Some(KconfigVariable { name, size, kind: kconfig_kind(btf, v.size_or_type, size) })
        };
        variables.filter_map(variable).collect()
    }

    /// The symbols in sections of global data.
    pub fn variables(&self) -> impl Iterator<Item = Variable<'_>> {
        self.symbols.all.iter().filter_map(|s| {
            let section = self.elf.name(s.section()?);
            is_data(section).then_some(Variable { section, name: &s.name, offset: s.value, size: s.size })
        })
    }
}

fn kconfig_kind(btf: &Btf, id: u32, size: u32) -> KconfigKind {
    const SIGNED: u32 = 1;
    const BOOL: u32 = 4;
    let Some((_, t)) = btf.plain(id) else { return KconfigKind::Other };
    match t.kind {
        INT => {
            let encoding = btf.word(t, 0).unwrap_or_default() >> 24;
            match (encoding & BOOL != 0, size) {
                (true, 1) => KconfigKind::Bool,
                (false, 1 | 2 | 4 | 8) => KconfigKind::Number { is_signed: encoding & SIGNED != 0 },
                _ => KconfigKind::Other,
            }
        }
        ENUM if size != 4 => KconfigKind::Other,
        ENUM | ENUM64 if btf.string(t.name).as_deref() == Some("libbpf_tristate") => KconfigKind::Tristate,
        _ => KconfigKind::Other,
    }
}

fn is_data(name: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}
