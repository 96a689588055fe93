//! What two objects must have in common outside their code.

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection, SectionKind};

/// Sections whose bytes may differ between an object and its optimized form: code, and what follows
/// the code's layout.
fn follows_code(name: &str) -> bool {
    name.starts_with(".rel")
        || name.starts_with(".debug")
        || matches!(name, ".symtab" | ".strtab" | ".shstrtab" | ".BTF.ext" | ".llvm_addrsig" | ".eh_frame" | "")
}

/// Data and BTF sections that differ, in words.
pub(crate) fn differences(a: &[u8], b: &[u8]) -> Vec<String> {
    let (Ok(x), Ok(y)) = (ElfFile64::<Endianness>::parse(a), ElfFile64::<Endianness>::parse(b)) else {
        return vec![];
    };
    let mut out = Vec::new();
    for s in x.sections() {
        let name = s.name().unwrap_or("");
        // Where relocations apply, the bytes hold addends that may point into code.
        if follows_code(name) || s.kind() == SectionKind::Text || s.relocations().next().is_some() {
            continue;
        }
        match y.section_by_name(name) {
            None => out.push(format!("section {name} is missing in the second object")),
            Some(t) if s.size() != t.size() || s.data().ok() != t.data().ok() => {
                out.push(format!("section {name} differs"));
            }
            Some(_) => {}
        }
    }
    out
}
