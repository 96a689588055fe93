//! Whether a function has the same code as another, with all that its instructions refer to.
//!
//! The one idea: this is for functions that nobody can read as programs. Every instruction has to be the same, but for
//! immediates that hold what a reference says, and these have to lead to partners. Promise: where a reference is not
//! understood, only sections that are the same as a whole will do.

use std::collections::HashMap;

use super::contents::same_as_it_stands;
use super::matching::Matching;
use crate::elf::{u16_at, u32_at};
use crate::functions::{FuncId, LD_IMM64, RefKind};
use crate::object::Object;

/// Whether two functions are the same as they stand; CO-RE records are compared by the caller.
pub(super) fn same(a: &Object, i: FuncId, b: &Object, j: FuncId, m: &Matching) -> bool {
    let (Some(f), Some(g)) = (a.functions().get(i.0), b.functions().get(j.0)) else { return false };
    let understood = |o: &Object, f: FuncId| !o.refs(f).iter().any(|r| matches!(r.kind, RefKind::Other { .. }));
    if !understood(a, i) || !understood(b, j) {
        return (f.start, f.slots) == (g.start, g.slots)
            && same_as_it_stands(a, f.section_index, b, g.section_index, m);
    }
    let refs = |o: &Object, f: FuncId| o.refs(f).iter().map(|r| (r.slot, r.kind.clone())).collect::<HashMap<_, _>>();
    let (x, y) = (refs(a, i), refs(b, j));
    let (code, other) = (a.code(i), b.code(j));
    if code.len() != other.len() || x.len() != y.len() || x.len() != a.refs(i).len() || y.len() != b.refs(j).len() {
        return false;
    }
    for (slot, (p, q)) in code.chunks(8).zip(other.chunks(8)).enumerate() {
        let patched = match (x.get(&slot), y.get(&slot)) {
            (None, None) => false,
            (Some(r), Some(s)) if same_target(a, r, b, s, m) => !matches!(r, RefKind::Extern { .. }),
            _ => return false,
        };
        // What the loader writes is in the last four bytes; the second half of an `ld_imm64` is a slot of its own, and
        // empty where there is a reference.
        let kept = if patched { 4 } else { 8 };
        if p.get(..kept) != q.get(..kept) {
            return false;
        }
    }
    true
}

fn same_target(a: &Object, x: &RefKind, b: &Object, y: &RefKind, m: &Matching) -> bool {
    match (x, y) {
        (RefKind::Call { target: f }, RefKind::Call { target: g })
        | (RefKind::FuncAddr { target: f }, RefKind::FuncAddr { target: g }) => m.function(*f) == Some(*g),
        (RefKind::Map { map: p, offset: x }, RefKind::Map { map: q, offset: y }) => {
            m.map_back(*q) == Some(*p) && x == y
        }
        (RefKind::Data { section: s, offset: x, .. }, RefKind::Data { section: t, offset: y, .. }) => {
            m.section_name_back(a, b, t).is_some_and(|back| back == s) && x == y
        }
        (RefKind::Extern { name: x }, RefKind::Extern { name: y }) => x == y,
        _ => false,
    }
}

/// What the instruction at a slot holds where a CO-RE record would patch it: the offset of a load or store, else the
/// immediate (`bpf_core_patch_insn` in `tools/lib/bpf/relo_core.c`).
pub(super) fn patched_field(code: &[u8], slot: usize) -> Option<u64> {
    let at = slot.checked_mul(8)?;
    let op = *code.get(at)?;
    let low = u32_at(code, at + 4)?;
    Some(match op & 7 {
        _ if op == LD_IMM64 => u64::from(u32_at(code, at + 12)?) << 32 | u64::from(low),
        1..=3 => u64::from(u16_at(code, at + 2)?),
        _ => u64::from(low),
    })
}
