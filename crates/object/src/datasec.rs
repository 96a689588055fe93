//! Where the variables of a data section are, which BTF alone does not always say.

use std::collections::HashMap;

use crate::btf::{SectionVariable, Type};
use crate::symbols::{STB_GLOBAL, STB_WEAK, STT_OBJECT, Symbol, Symbols};

/// `BTF_VAR_GLOBAL_ALLOCATED`: libbpf asks for no symbol of variables of another linkage.
const GLOBAL_ALLOCATED: u32 = 1;

/// Where in its section each variable is.
pub(crate) struct Places<'a> {
    /// The first symbol of each name that libbpf takes for a variable; none if BTF itself says the places.
    symbols: Option<HashMap<&'a str, &'a Symbol>>,
}

impl<'a> Places<'a> {
    /// For the variables of a DATASEC type. clang leaves its size and the offsets to loaders, which ask
    /// the symbol table; linkers write both, and then BTF counts (libbpf: `btf_fixup_datasec`, `find_elf_var_sym`).
    pub fn of(symbols: &'a Symbols, t: Type) -> Self {
        let variables = || {
            let mut found = HashMap::new();
            let variable = |s: &&Symbol| s.kind == STT_OBJECT && matches!(s.bind, STB_GLOBAL | STB_WEAK);
            for s in symbols.all.iter().filter(variable) {
                found.entry(s.name.as_str()).or_insert(s);
            }
            found
        };
        Places { symbols: (t.size_or_type == 0).then(variables) }
    }

    /// Where in the section the variable of this name and linkage is; `None` where libbpf finds no place.
    pub fn offset(&self, name: &str, linkage: Option<u32>, entry: SectionVariable) -> Option<u64> {
        match &self.symbols {
            // libbpf leaves static variables alone.
            Some(symbols) if linkage == Some(GLOBAL_ALLOCATED) => symbols.get(name).map(|s| s.value),
            _ => Some(u64::from(entry.offset)),
        }
    }
}
