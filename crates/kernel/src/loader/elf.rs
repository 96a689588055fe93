//! What libbpf knows of an object file and does not tell; and small changes to a copy of it, so that one program that
//! cannot load does not keep libbpf from opening all others.

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind, SymbolScope, elf};

use super::{quoted, telling};
use crate::{KernelError, LoadOptions, legacy, object::open, sys};

/// An object file, as it is given to libbpf.
pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    /// What the kernel is told: empty without a `license` section, as with libbpf.
    pub(super) license: String,
    /// Functions that libbpf changes the BTF of (`bpf_object__sanitize_and_load_btf`).
    pub(super) hidden: Vec<String>,
    /// Kernel functions that this kernel does not have.
    pub(super) missing: Vec<String>,
    /// Maps have an attribute with a name that no loader knows.
    pub(super) pins_forgotten: bool,
    /// Maps that nobody knows how to make, and why.
    pub(super) unknown_maps: Vec<(String, String)>,
}

/// Bytes of a symbol (`Elf64_Sym`), and where in it its binding and type are.
const SYMBOL: usize = 24;
const INFO: usize = 4;

impl Source {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let (bytes, unknown_maps) = match legacy::convert(bytes) {
            Some(converted) => (converted.bytes, converted.impossible),
            // A copy of its own: headers can be read only where they are aligned.
            None => (bytes.to_vec(), Vec::new()),
        };
        let mut source = Self {
            bytes: Vec::new(),
            license: String::new(),
            hidden: Vec::new(),
            missing: Vec::new(),
            pins_forgotten: false,
            unknown_maps,
        };
        if let Ok(file) = object::File::parse(&*bytes) {
            // Of several, libbpf keeps what it read last (`bpf_object__elf_collect`).
            let license = file.sections().filter(|s| s.name() == Ok("license")).last();
            let license = license.and_then(|s| s.data().ok()).unwrap_or_default();
            let end = license.iter().position(|b| *b == 0).unwrap_or(license.len());
            source.license = String::from_utf8_lossy(&license[..end]).into_owned();
            let hidden = |s: &object::Symbol<'_, '_>| {
                s.kind() == SymbolKind::Text && s.is_global() && s.scope() == SymbolScope::Linkage
            };
            let names = file.symbols().filter(hidden).filter_map(|s| s.name().ok().map(str::to_owned));
            source.hidden = names.collect();
        }
        Self { bytes, ..source }
    }

    /// Opens the object, with its static programs and its ways of pinning maps made such that libbpf takes them; or
    /// libbpf's words.
    pub(super) fn open(&mut self, options: &LoadOptions) -> Result<sys::Object, String> {
        loop {
            let reason = match open(&self.bytes, options, self.pins_forgotten) {
                Ok(object) => return Ok(object),
                Err(KernelError::Open { reason }) => reason,
                Err(error) => return Err(error.to_string()),
            };
            let changed = match quoted(&reason, "program '", "' is static") {
                Some(name) => self.export(name),
                // Nothing is pinned here in any way.
                None => reason.contains("invalid pinning value") && self.forget_pins(),
            };
            if !changed {
                return Err(telling(&reason));
            }
        }
    }

    /// Makes the object load without a function of the kernel: only who calls it is refused then. Whether there was
    /// anything to do.
    pub(super) fn do_without(&mut self, function: &str) -> bool {
        let weakened = self.rebind(function, elf::STB_WEAK, |s| s.is_undefined() && !s.is_weak());
        if weakened {
            self.missing.push(function.to_owned());
        }
        weakened
    }

    /// Makes a static program one that libbpf takes. Other loaders do not care how a program's symbol is bound.
    pub(super) fn export(&mut self, program: &str) -> bool {
        self.rebind(program, elf::STB_GLOBAL, |s| s.kind() == SymbolKind::Text && s.is_local())
    }

    /// Gives the attribute that says how maps are pinned a name that says nothing. Whether there was such an attribute.
    pub(super) fn forget_pins(&mut self) -> bool {
        const NAME: &[u8] = b"\0pinning\0";
        let Ok(file) = object::File::parse(&*self.bytes) else { return false };
        let Some((at, size)) = file.section_by_name(".BTF").and_then(|s| s.file_range()) else { return false };
        let types = at as usize..(at + size) as usize;
        let name = self.bytes[types.clone()].windows(NAME.len()).position(|window| window == NAME);
        if let Some(name) = name.filter(|_| !self.pins_forgotten) {
            self.bytes[types.start + name + 1] = b'_';
            self.pins_forgotten = true;
            return true;
        }
        false
    }

    fn rebind(&mut self, name: &str, binding: u8, which: impl Fn(&object::Symbol<'_, '_>) -> bool) -> bool {
        let Ok(file) = object::File::parse(&*self.bytes) else { return false };
        let Some((table, _)) = file.section_by_name(".symtab").and_then(|s| s.file_range()) else { return false };
        let symbols = file.symbols().filter(|s| s.name() == Ok(name) && which(s));
        let places: Vec<usize> = symbols.map(|s| table as usize + s.index().0 * SYMBOL + INFO).collect();
        for &at in &places {
            self.bytes[at] = binding << 4 | self.bytes[at] & 0xf;
        }
        !places.is_empty()
    }
}
