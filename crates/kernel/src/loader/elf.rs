//! What libbpf knows of an object file and does not tell; and small changes to a copy of it, so that one program that
//! cannot load does not keep libbpf from opening all others.

use bpf_platform::maps::STRUCT_OPS;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SymbolKind, SymbolScope, elf};

use crate::{
    KernelError, LoadOptions, ProgramType,
    failure::{quoted, telling},
    legacy,
    loader::records,
    object::open,
    sys,
};

/// An object file, as it is given to libbpf.
pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    /// What the kernel is told: empty without a `license` section, as with libbpf.
    pub(super) license: String,
    /// Functions that libbpf changes the BTF of (`bpf_object__sanitize_and_load_btf`).
    pub(super) hidden: Vec<String>,
    /// Kernel functions that this kernel does not have.
    pub(super) missing: Vec<String>,
    /// Functions that the object would get when it is linked.
    pub(super) unlinked: Vec<String>,
    /// Variables and options of the kernel that this kernel does not have.
    missing_values: Vec<String>,
    /// Maps have an attribute with a name that no loader knows.
    pins_forgotten: bool,
    /// Optional structures are left to the object, which does without them: their maps, or other programs of theirs, keep
    /// the object from being loaded.
    pub(super) without_optional: bool,
    /// Maps that nobody knows how to make, and why.
    pub(super) unknown_maps: Vec<(String, String)>,
}

/// A helper that no kernel has, called in the place of functions that are not linked; beside libbpf's own such numbers
/// (`POISON_CALL_KFUNC_BASE`).
const UNLINKED: i32 = 2_003_000_000;

/// Bytes of a symbol (`Elf64_Sym`), and where in it its binding and type are.
const SYMBOL: usize = 24;
const INFO: usize = 4;

impl Source {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let (mut bytes, unknown_maps) = match legacy::convert(bytes) {
            Some(converted) => (converted.bytes, converted.impossible),
            // A copy of its own: headers can be read only where they are aligned.
            None => (bytes.to_vec(), Vec::new()),
        };
        records::shorten(&mut bytes);
        let mut source = Self {
            bytes: Vec::new(),
            license: String::new(),
            hidden: Vec::new(),
            missing: Vec::new(),
            unlinked: Vec::new(),
            missing_values: Vec::new(),
            pins_forgotten: false,
            without_optional: false,
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

    /// Opens the object, with its static programs, its ways of pinning maps and the names of its sections made such that
    /// libbpf takes them; or libbpf's words.
    pub(super) fn open(&mut self, options: &LoadOptions) -> Result<sys::Object, String> {
        loop {
            let reason = match open(&self.bytes, options, self.pins_forgotten) {
                Ok(mut object) => {
                    set_older_types(&mut object);
                    if !self.without_optional {
                        ask_for_structures(&mut object);
                    }
                    return Ok(object);
                }
                Err(KernelError::Open { reason }) => reason,
                Err(error) => return Err(error.to_string()),
            };
            let changed = match quoted(&reason, "program '", "' is static") {
                Some(name) => self.export(name),
                // Nothing is pinned here in any way.
                None if reason.contains("invalid pinning value") => self.forget_pins(),
                None => quoted(&reason, "failed to find BTF for extern '", "'").is_some_and(|name| self.cut_off(name)),
            };
            if !changed {
                return Err(telling(&reason));
            }
        }
    }

    /// Leaves the maps that the object puts programs or maps into without them: libbpf loads no program alone whose object
    /// fills a program array with others. Whether there was anything to do.
    pub(super) fn empty_slots(&mut self) -> bool {
        /// Of `Elf64_Ehdr` the place of `e_shoff`; of `Elf64_Shdr` its length, and the place of `sh_size`.
        const SECTIONS: usize = 40;
        const SECTION: usize = 64;
        const SIZE: usize = 32;
        let section = || Some(object::File::parse(&*self.bytes).ok()?.section_by_name(".rel.maps")?.index().0);
        let headers = self.bytes.get(SECTIONS..SECTIONS + 8).and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?)));
        let place = headers.and_then(|at| usize::try_from(at).ok()).zip(section());
        let place = place.and_then(|(at, index)| at.checked_add(SECTION.checked_mul(index)?)?.checked_add(SIZE));
        let size = place.and_then(|at| self.bytes.get_mut(at..at.checked_add(8)?));
        let Some(size) = size.filter(|size| size.iter().any(|b| *b != 0)) else { return false };
        size.fill(0);
        true
    }

    /// Makes the object load without a function of the kernel: only who calls it is refused then. Whether there was
    /// anything to do.
    pub(super) fn do_without(&mut self, function: &str) -> bool {
        let weakened = self.weaken(function);
        if weakened {
            self.missing.push(function.to_owned());
        }
        weakened
    }

    /// Makes the object load without a variable or an option of the kernel, which is 0 then: see [`Source::lacks`].
    pub(super) fn do_without_value(&mut self, name: &str) -> bool {
        let weakened = self.weaken(name);
        if weakened {
            self.missing_values.push(name.to_owned());
        }
        weakened
    }

    /// What a program refers to and this kernel does not have; or any function, if it `calls` some. What the verifier says of
    /// a 0 in its place is no word on the program.
    pub(super) fn lacks(&self, program: &str, section: &str, calls: bool) -> Option<&str> {
        const TEXT: &str = ".text";
        if self.missing_values.is_empty() {
            return None;
        }
        let file = object::File::parse(&*self.bytes).ok()?;
        let named = file.symbols().find(|s| {
            let of_section = s.section_index().and_then(|index| file.section_by_index(index).ok());
            let here = of_section.is_some_and(|s| s.name().is_ok_and(|name| name.trim_start_matches('?') == section));
            here && s.kind() == SymbolKind::Text && s.name() == Ok(program)
        });
        // Where it is not found, it may be anywhere.
        let own = named.and_then(|s| Some((s.section_index()?, s.address()..s.address() + s.size())));
        for code in file.sections() {
            let is_text = code.name() == Ok(TEXT);
            for (at, relocation) in code.relocations() {
                let inside = own.as_ref().is_none_or(|(index, range)| *index == code.index() && range.contains(&at));
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let name = file.symbol_by_index(symbol).ok().and_then(|s| s.name().ok()).unwrap_or_default();
                let missing = self.missing_values.iter().find(|missing| *missing == name);
                if let Some(missing) = missing.filter(|_| inside || calls && is_text) {
                    return Some(missing);
                }
            }
        }
        None
    }

    /// Whether there was such a symbol to make weak.
    fn weaken(&mut self, name: &str) -> bool {
        self.rebind(name, elf::STB_WEAK, |s| s.is_undefined() && !s.is_weak())
    }

    /// Makes a static program one that libbpf takes. Other loaders do not care how a program's symbol is bound.
    pub(super) fn export(&mut self, program: &str) -> bool {
        self.rebind(program, elf::STB_GLOBAL, |s| s.kind() == SymbolKind::Text && s.is_local())
    }

    /// Makes the object open without a function that it would be linked with.
    fn cut_off(&mut self, function: &str) -> bool {
        match legacy::without_calls_of(&self.bytes, function, UNLINKED) {
            Some(bytes) => {
                self.bytes = bytes;
                self.unlinked.push(function.to_owned());
                true
            }
            None => false,
        }
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

/// Gives programs of whose section libbpf does not know the type the one that other loaders would.
/// Asks for the maps of optional structures, too: libbpf loads no programs of which no map is made
/// (`bpf_object_adjust_struct_ops_autoload`), so the kernel would not be asked about them.
fn ask_for_structures(object: &mut sys::Object) {
    for index in 0..object.map_count() {
        if object.map_definition(index).kind == STRUCT_OPS {
            // Of an open object it does not fail (`bpf_map__set_autocreate`).
            let _ = object.ask_for_map(index);
        }
    }
}

fn set_older_types(object: &mut sys::Object) {
    for index in 0..object.program_count() {
        if object.program_type(index) == ProgramType::UNSPEC.0
            && let Some((kind, attach)) = ProgramType::of_older_loaders(&object.program_section(index))
        {
            object.set_program_type(index, kind.0, attach);
        }
    }
}
