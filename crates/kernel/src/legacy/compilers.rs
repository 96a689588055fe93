//! What old compilers wrote, as newer ones write it.
//!
//! Before LLVM 9 functions were symbols without a type and without a size, of which old loaders needed none, and before
//! LLVM 6 relocations had numbers of their own to add. libbpf passes over both without a word. The one idea: a section of
//! code without a function has those that its other symbols name, or is one, under its own name; as `bpf-object` sees it.

use object::elf;

use super::image::{Image, Symbol};

/// Bytes of `Elf64_Rela` and of `Elf64_Rel`.
const WITH_ADDEND: usize = 24;
const WITHOUT_ADDEND: usize = 16;

/// Changes what libbpf would not see; whether there was anything.
pub(super) fn modernize(image: &mut Image) -> Option<bool> {
    let code: Vec<usize> = image.sections().filter(|&section| image.is_code(section)).collect();
    let symbols = image.symbols()?;
    let mut changed = false;
    for &section in &code {
        let here: Vec<&Symbol> = symbols.iter().filter(|s| s.section == section).collect();
        if here.iter().all(|s| s.kind != elf::STT_FUNC) {
            changed |= name_functions(image, section, &here)?;
        }
    }
    for section in image.sections().filter(|&s| image.is_with_addends(s)).collect::<Vec<_>>() {
        if code.contains(&image.applies_to(section)?) {
            changed |= drop_addends(image, section)?;
        }
    }
    Some(changed)
}

fn name_functions(image: &mut Image, section: usize, symbols: &[&Symbol]) -> Option<bool> {
    let length = image.data(section)?.len() as u64;
    let named = |s: &&&Symbol| s.kind == elf::STT_NOTYPE && s.binding != elf::STB_LOCAL && !s.name.is_empty();
    let mut functions: Vec<&Symbol> = symbols.iter().filter(named).copied().filter(|s| s.value < length).collect();
    functions.sort_by_key(|s| s.value);
    if functions.is_empty() {
        let Some(whole) = symbols.iter().find(|s| s.kind == elf::STT_SECTION && s.value == 0) else {
            return Some(false);
        };
        let name = image.name(section)?.to_owned();
        image.rename_symbol(whole, &name)?;
        image.make_function(whole, length);
        return Some(true);
    }
    for s in &functions {
        let end = functions.iter().map(|next| next.value).find(|next| *next > s.value).unwrap_or(length);
        image.make_function(s, end - s.value);
    }
    Some(true)
}

/// Makes relocations such that nothing is to be added; `false` if there is.
fn drop_addends(image: &mut Image, section: usize) -> Option<bool> {
    let (records, rest) = image.data(section)?.as_chunks::<WITH_ADDEND>();
    if !rest.is_empty() || records.iter().any(|record| record[WITHOUT_ADDEND..] != [0; 8]) {
        return Some(false);
    }
    let without: Vec<u8> = records.iter().flat_map(|record| &record[..WITHOUT_ADDEND]).copied().collect();
    image.set_data(section, &without);
    image.set_without_addends(section, WITHOUT_ADDEND as u64);
    Some(true)
}
