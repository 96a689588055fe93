//! Records of functions and lines of the size that everyone knows.
//!
//! `.BTF.ext` says how long its records are. libbpf hands longer ones to the kernel, which takes them where what it does not
//! know of them is zero (`bpf_check_uarg_tail_zero`, kernel/bpf/verifier.c); but it shows them to nobody
//! (`bpf_program__func_info` of another size gives null). So they are cut to what is known, in a copy of the object.

use object::{Object as _, ObjectSection as _};

/// Bytes of `struct bpf_func_info` and of `struct bpf_line_info`, in the order in which the header names them.
const USUAL: [usize; 2] = [8, 16];

/// The longest records that the kernel takes (`MAX_FUNCINFO_REC_SIZE` and `MAX_LINEINFO_REC_SIZE`, kernel/bpf/verifier.c).
const LONGEST: usize = 252;

/// Where `struct btf_ext_header` has its own length, and behind it offset and length of each kind of record.
const HEADER_LENGTH: usize = 4;
const KINDS: usize = 8;

/// Cuts longer records whose rest is zero.
pub(super) fn shorten(bytes: &mut [u8]) {
    let section = || object::File::parse(&*bytes).ok()?.section_by_name(".BTF.ext")?.file_range();
    let Some((start, size)) = section() else { return };
    let (Ok(start), Ok(size)) = (usize::try_from(start), usize::try_from(size)) else { return };
    let Some(ext) = start.checked_add(size).and_then(|end| bytes.get_mut(start..end)) else { return };
    let Some(header) = word(ext, HEADER_LENGTH) else { return };
    for (n, usual) in USUAL.into_iter().enumerate() {
        let place = KINDS + 8 * n;
        let (Some(at), Some(length)) = (word(ext, place), word(ext, place + 4)) else { continue };
        let range = || Some(header.checked_add(at)?..header.checked_add(at)?.checked_add(length)?);
        let Some(records) = range().and_then(|r| ext.get_mut(r)) else { continue };
        let Some(short) = shortened(records, usual) else { continue };
        records[..short.len()].copy_from_slice(&short);
        let length = (short.len() as u32).to_le_bytes();
        ext[place + 4..place + 8].copy_from_slice(&length);
    }
}

/// These records with `usual` bytes each, if they are longer, and zero behind them.
fn shortened(records: &[u8], usual: usize) -> Option<Vec<u8>> {
    /// Of each section of code: the offset of its name, and how many records follow.
    const SECTION: usize = 8;
    let size = word(records, 0).filter(|size| (usual + 1..=LONGEST).contains(size))?;
    let mut short = (usual as u32).to_le_bytes().to_vec();
    let mut rest = &records[4..];
    while !rest.is_empty() {
        let (head, behind) = rest.split_at_checked(SECTION)?;
        let (own, others) = behind.split_at_checked(word(head, 4)?.checked_mul(size)?)?;
        short.extend(head);
        for record in own.chunks_exact(size) {
            let (known, unknown) = record.split_at(usual);
            short.extend(known);
            if unknown.iter().any(|b| *b != 0) {
                return None;
            }
        }
        rest = others;
    }
    Some(short)
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(word.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(size: u32, all: &[&[u8]]) -> Vec<u8> {
        let head = [size, 7, all.len() as u32].into_iter().flat_map(u32::to_le_bytes);
        head.chain(all.iter().flat_map(|r| r.iter().copied())).collect()
    }

    #[test]
    fn longer_records_are_cut_where_the_rest_is_zero() {
        let (one, two) = ([1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2]);
        let longer = |r: [u8; 8], rest: [u8; 4]| [&r[..], &rest].concat();
        let (a, b) = (longer(one, [0; 4]), longer(two, [0; 4]));
        assert_eq!(shortened(&records(12, &[&a, &b]), 8), Some(records(8, &[&one, &two])));
        let odd = longer(two, [0, 0, 1, 0]);
        assert_eq!(shortened(&records(12, &[&a, &odd]), 8), None);
        assert_eq!(shortened(&records(8, &[&one, &two]), 8), None);
        assert_eq!(shortened(&records(12, &[&a, &b])[..20], 8), None);
        assert_eq!(shortened(&[], 8), None);
        let zeroes = vec![0; 248];
        let long = |n: usize| [&one[..], &zeroes[..n - 8]].concat();
        assert_eq!(shortened(&records(252, &[&long(252)]), 8), Some(records(8, &[&one])));
        assert_eq!(shortened(&records(256, &[&long(256)]), 8), None);
    }
}
