//! What a CO-RE record asks of the kernel, in terms that two objects share.
//!
//! The one idea: a record is a question ("at which offset is `pid` of `struct task_struct`?"), asked through numbers of
//! local types and members. The question is spelled out with names, the way libbpf does before it looks for the answer
//! (`bpf_core_parse_spec` in `tools/lib/bpf/relo_core.c`); what is asked about a type as a whole keeps the type, to be
//! compared structurally. Promise: two records with the same question get the same answer on every kernel.

use std::fmt::Write;

use super::types::{Types, enumerator, kind_name};
use crate::btf::{ARRAY, ENUM, ENUM64, FLOAT, FWD, INT, STRUCT, UNION, member_place};
use crate::core_relo::{
    ENUMVAL_EXISTS, ENUMVAL_VALUE, FIELD_BYTE_OFFSET, FIELD_RSHIFT_U64, TYPE_ID_LOCAL, TYPE_MATCHES, TYPE_SIZE,
};
use crate::functions::CoreReloc;

/// The question of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// All that names and places say, in words.
    pub text: String,
    /// The type it asks about as a whole.
    pub whole: Option<u32>,
}

/// Spells a record out.
///
/// # Errors
/// What cannot be followed, in words.
pub(super) fn question(types: &Types, record: &CoreReloc) -> Result<Question, String> {
    let root = types.get(record.type_id).ok_or_else(|| format!("root type {} is not there", record.type_id))?;
    let name = types.name(root).ok_or("the root type's name is not there")?;
    let root_text = format!("{} {name}", kind_name(root.kind));
    let path = || {
        let steps = record.access.split(':').map(str::parse);
        steps.collect::<Result<Vec<usize>, _>>().map_err(|_| format!("access string `{}` is no path", record.access))
    };
    match record.kind {
        FIELD_BYTE_OFFSET..=FIELD_RSHIFT_U64 => {
            let text =
                format!("{} of {root_text}{}", what_is_asked(record.kind), field(types, record.type_id, &path()?)?);
            Ok(Question { text, whole: None })
        }
        TYPE_ID_LOCAL..=TYPE_SIZE | TYPE_MATCHES => {
            if path()? != [0] {
                return Err(format!("access string `{}` on a record about a whole type", record.access));
            }
            let mut text = format!("{} of {root_text}", what_is_asked(record.kind));
            let (_, plain) = types.btf.and_then(|b| b.plain(record.type_id)).ok_or("the root type leads nowhere")?;
            let _ = write!(text, " ({})", kind_name(plain.kind));
            if record.kind == TYPE_SIZE {
                let _ = write!(text, ", {} bytes here", plain.size_or_type);
            }
            // libbpf writes the number in this object (`bpf_core_calc_type_relo`), and a program may return it.
            if record.kind == TYPE_ID_LOCAL {
                let _ = write!(text, ", {} here", record.type_id);
            }
            // Kind and name are all that libbpf compares of these (`__bpf_core_types_are_compat`), unless asked to
            // match them; pointers, arrays and signatures it follows. What the own number is asked for is unknown.
            let by_name = matches!(plain.kind, INT | STRUCT | UNION | ENUM | ENUM64 | FWD)
                && !matches!(record.kind, TYPE_ID_LOCAL | TYPE_MATCHES);
            Ok(Question { text, whole: (!by_name).then_some(record.type_id) })
        }
        ENUMVAL_EXISTS | ENUMVAL_VALUE => {
            let (plain, btf) = types.btf.and_then(|b| Some((b.plain(record.type_id)?.1, b))).ok_or("no enum")?;
            let index = match path()?.as_slice() {
                [index] if matches!(plain.kind, ENUM | ENUM64) && *index < plain.vlen => *index,
                _ => return Err(format!("access string `{}` is no value of {root_text}", record.access)),
            };
            let (value, number) = enumerator(btf, plain, index).ok_or("an enumerator that is not there")?;
            let text = format!("{} of {root_text}, value `{value}` ({number} here)", what_is_asked(record.kind));
            Ok(Question { text, whole: None })
        }
        kind => Err(format!("CO-RE record of unknown kind {kind}")),
    }
}

fn what_is_asked(kind: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "byte offset",
        "byte size",
        "existence",
        "signedness",
        "left shift",
        "right shift",
        "own type number",
        "kernel's type number",
        "existence",
        "size",
        "existence",
        "value",
        "match",
    ];
    NAMES.get(kind as usize).copied().unwrap_or("?")
}

/// The way from a root type to a field, with the names and places on it and the kind of what is there.
fn field(types: &Types, root: u32, path: &[usize]) -> Result<String, String> {
    let btf = types.btf.ok_or("there is no BTF")?;
    let gone = || "the access string leaves its type".to_owned();
    let (first, rest) = path.split_first().ok_or_else(gone)?;
    let (_, mut t) = btf.plain(root).ok_or_else(gone)?;
    let mut text = format!(" ({})", kind_name(t.kind));
    if *first != 0 {
        let _ = write!(text, "[{first} of {} bytes]", t.size_or_type);
    }
    for &index in rest {
        let next = match t.kind {
            STRUCT | UNION if index < t.vlen => {
                let word = |n: usize| btf.word(t, index * 3 + n).ok_or_else(gone);
                let name = btf.string(word(0)?).ok_or_else(gone)?;
                let (offset, bits) = member_place(t, word(2)?);
                let name = if name.is_empty() { "<unnamed>" } else { &name };
                let _ = write!(text, ".{name} (bit {offset}");
                if bits != 0 {
                    let _ = write!(text, ", {bits} wide");
                }
                text.push(')');
                word(1)?
            }
            ARRAY => {
                let (element, count) = (btf.word(t, 0).ok_or_else(gone)?, btf.word(t, 2).ok_or_else(gone)?);
                // libbpf lets the last array of a struct be indexed past its end.
                let _ = write!(text, "[{index} of {count}]");
                element
            }
            _ => return Err(gone()),
        };
        (_, t) = btf.plain(next).ok_or_else(gone)?;
    }
    let (_, mut last) = (0, t);
    text.push_str(", ");
    while last.kind == ARRAY {
        let _ = write!(text, "array of {} ", btf.word(last, 2).ok_or_else(gone)?);
        (_, last) = btf.plain(btf.word(last, 0).ok_or_else(gone)?).ok_or_else(gone)?;
    }
    text.push_str(kind_name(last.kind));
    match last.kind {
        INT => {
            let _ =
                write!(text, " of {} bytes, encoding {:#x}", last.size_or_type, btf.word(last, 0).ok_or_else(gone)?);
        }
        FLOAT => {
            let _ = write!(text, " of {} bytes", last.size_or_type);
        }
        STRUCT | UNION | ENUM | ENUM64 => {
            let _ = write!(text, " {} of {} bytes", btf.string(last.name).ok_or_else(gone)?, last.size_or_type);
        }
        _ => {}
    }
    Ok(text)
}
