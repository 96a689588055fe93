//! Functions from listings.

use std::collections::HashMap;
use std::sync::Arc;

use bpf_isa::{Imm64Kind, Insn, parse_listing};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};

/// Builds a function; an `ld_imm64` of `map_fd[m]` refers to map `m`.
pub fn function(kind: ProgKind, text: &str) -> Function {
    let insns = parse_listing(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut slot = 0;
    let (mut decoded, mut links) = (Vec::new(), HashMap::new());
    for insn in insns {
        if let Insn::LoadImm64 { kind: Imm64Kind::MapFd, imm, .. } = insn {
            let symbol = Symbol::Map { name: Arc::from(format!("map{imm}")), index: imm as usize };
            links.insert(slot, Link { slot, symbol });
        }
        decoded.push((slot, insn));
        slot += insn.slots();
    }
    build_from_insns("test", kind, &decoded, links).unwrap_or_else(|e| panic!("{e}\n{text}"))
}
