//! Functions from listings.

use std::collections::HashMap;

use bpf_isa::{Imm64Kind, Insn, decode_all, encode_all, parse_listing};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};

/// The function with this text; an `ld_imm64` of `map_fd[3]` refers to map 3, named `map3`.
///
/// # Panics
/// If the text is no function.
#[track_caller]
pub fn function(kind: ProgKind, text: &str) -> Function {
    linked(kind, text, map_by_number).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The function with this text, of which each instruction refers to what `symbol` says of it.
///
/// # Errors
/// What is wrong with the text, or why it has no graph.
pub fn linked(kind: ProgKind, text: &str, symbol: impl Fn(&Insn) -> Option<Symbol>) -> Result<Function, String> {
    let insns = parse_listing(text).map_err(|e| e.to_string())?;
    let code = encode_all(&insns).map_err(|e| e.to_string())?;
    let decoded = decode_all(&code).map_err(|e| e.to_string())?;
    let links: HashMap<usize, Link> =
        decoded.iter().filter_map(|(slot, insn)| Some((*slot, Link { slot: *slot, symbol: symbol(insn)? }))).collect();
    build_from_insns("test", kind, &decoded, links).map_err(|e| e.to_string())
}

fn map_by_number(insn: &Insn) -> Option<Symbol> {
    match insn {
        Insn::LoadImm64 { kind: Imm64Kind::MapFd, imm, .. } => {
            Some(Symbol::Map { name: format!("map{imm}").into(), index: *imm as usize })
        }
        _ => None,
    }
}
