//! Symbols that only the files see that are linked together (`STV_HIDDEN`).

/// `sh_type` of the symbol table.
const SHT_SYMTAB: u32 = 2;
const HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// In a symbol: where its visibility is (`st_other`).
const OTHER: usize = 5;
const STV_HIDDEN: u8 = 2;

/// Hides symbols of a file that [`bpf_raw::elf::Elf::write`] has written.
pub(super) fn hide(file: &mut [u8], names: &[&str]) {
    let number = |at: usize, bytes: usize| {
        let all = file.get(at..at + bytes).unwrap_or_default();
        all.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b))
    };
    let (table, count) = (number(40, 8), number(60, 2));
    let header = |i: usize| table + i * HEADER_BYTES;
    let range = |i: usize| number(header(i) + 24, 8)..number(header(i) + 24, 8) + number(header(i) + 32, 8);
    let Some(symbols) = (0..count).find(|i| number(header(*i) + 4, 4) == SHT_SYMTAB as usize) else { return };
    let strings = range(number(header(symbols) + 40, 4));
    let is_named = |at: &usize| {
        let name = &file[strings.start + number(*at, 4)..strings.end];
        names.iter().any(|n| name.starts_with(n.as_bytes()) && name.get(n.len()) == Some(&0))
    };
    let found: Vec<usize> = range(symbols).step_by(SYMBOL_BYTES).filter(is_named).collect();
    found.into_iter().for_each(|at| file[at + OTHER] = STV_HIDDEN);
}
