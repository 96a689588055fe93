//! CO-RE records: the kinds there are, and what their access strings lead through.

use crate::btf::{ARRAY, Btf, STRUCT, UNION};
use crate::functions::CoreReloc;

// `enum bpf_core_relo_kind` in `include/uapi/linux/bpf.h`.
pub(crate) const FIELD_BYTE_OFFSET: u32 = 0;
pub(crate) const FIELD_RSHIFT_U64: u32 = 5;
pub(crate) const TYPE_ID_LOCAL: u32 = 6;
pub(crate) const TYPE_ID_TARGET: u32 = 7;
pub(crate) const TYPE_SIZE: u32 = 9;
pub(crate) const ENUMVAL_EXISTS: u32 = 10;
pub(crate) const ENUMVAL_VALUE: u32 = 11;
pub(crate) const TYPE_MATCHES: u32 = 12;

/// The names of the members on the way to the field that a record is about; none if it is about something else.
///
/// # Errors
/// What cannot be followed, in words.
pub(crate) fn members(btf: &Btf, record: &CoreReloc) -> Result<Vec<String>, String> {
    let gone = || "the access string leaves its type".to_owned();
    let mut names = Vec::new();
    if record.kind > FIELD_RSHIFT_U64 {
        return Ok(names);
    }
    let (_, mut t) = btf.plain(record.type_id).ok_or_else(gone)?;
    for step in record.access.split(':').skip(1) {
        let index: usize = step.parse().map_err(|_| gone())?;
        let next = match t.kind {
            STRUCT | UNION if index < t.vlen => {
                let word = |n: usize| btf.word(t, index * 3 + n).ok_or_else(gone);
                names.push(btf.string(word(0)?).ok_or_else(gone)?);
                word(1)?
            }
            ARRAY => btf.word(t, 0).ok_or_else(gone)?,
            _ => return Err(gone()),
        };
        (_, t) = btf.plain(next).ok_or_else(gone)?;
    }
    Ok(names)
}
