//! Calls of functions that an object does not have, because it is still to be linked with another one.
//!
//! libbpf opens no such object. The one idea: the calls become calls of a helper that no kernel has, as libbpf does with
//! kernel functions that are not there, so that only who calls is refused.

use super::image::Image;

/// Bytes of `Elf64_Rel`, and where in it the number of the symbol is.
const RELOCATION: usize = 16;
const SYMBOL: usize = 12;
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;

/// A copy of an object without this function; `None` if it is not only called.
pub(crate) fn without_calls_of(bytes: &[u8], function: &str, instead: i32) -> Option<Vec<u8>> {
    let mut image = Image::parse(bytes)?;
    let symbols = image.symbols()?;
    let number = symbols.iter().position(|s| s.name == function && s.section == 0)?;
    for section in image.sections() {
        let Some(code) = image.applies_to(section).filter(|&code| image.is_relocations(section) && image.is_code(code))
        else {
            continue;
        };
        let (records, rest) = image.data(section)?.as_chunks::<RELOCATION>();
        let names = |record: &&[u8; RELOCATION]| record[SYMBOL..] == (number as u32).to_le_bytes();
        let (of_it, others): (Vec<&[u8; RELOCATION]>, Vec<_>) = records.iter().partition(names);
        if of_it.is_empty() {
            continue;
        }
        let places: Vec<usize> =
            of_it.iter().map(|r| u64::from_le_bytes(*r.first_chunk().unwrap_or(&[0; 8])) as usize).collect();
        let others: Vec<u8> = others.into_iter().flatten().chain(rest).copied().collect();
        let mut code_bytes = image.data(code)?.to_vec();
        for at in places {
            let call = code_bytes.get_mut(at..)?.get_mut(..8).filter(|insn| insn[0] == CALL)?;
            call[1] = 0;
            call[4..].copy_from_slice(&instead.to_le_bytes());
        }
        image.set_data(section, &others);
        image.set_data(code, &code_bytes);
    }
    // What has no name is nothing to libbpf (`bpf_object__collect_externs`).
    image.forget_name(&symbols[number]);
    Some(image.into_bytes())
}
