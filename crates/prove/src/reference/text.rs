//! The text of an encoding: definitions one after the other, and the names in it.

use std::fmt::Write;
use std::rc::Rc;

use bpf_facts::Region;
use bpf_isa::Imm64Kind;
use bpf_program::{Link, Symbol};
use rustc_hash::FxHashMap;

/// The text so far.
pub(super) struct Text {
    pub(super) out: String,
    pub(super) next: usize,
    pub(super) consts: FxHashMap<String, V>,
}

/// A bit vector by name, or a literal.
#[derive(Clone, Debug)]
pub struct V {
    pub(super) bits: u32,
    pub(super) name: Rc<str>,
}

impl Text {
    pub(super) fn new() -> Text {
        let out = "(set-logic QF_ABV)\n(declare-fun m0 () (Array (_ BitVec 64) (_ BitVec 8)))\n".to_owned();
        Text { out, next: 0, consts: FxHashMap::default() }
    }

    pub(super) fn assume(&mut self, truth: String) {
        let _ = writeln!(self.out, "(assert {truth})");
    }

    /// An unknown with a name of its own.
    pub(super) fn named(&mut self, name: &str, bits: u32) -> V {
        let _ = writeln!(self.out, "(declare-fun {name} () (_ BitVec {bits}))");
        V { bits, name: name.into() }
    }

    /// The unknown for `key`, the same whenever it is asked for.
    pub(super) fn unknown(&mut self, key: String, bits: u32) -> V {
        if let Some(v) = self.consts.get(&key) {
            return v.clone();
        }
        let name = format!("u{}", self.consts.len());
        let _ = writeln!(self.out, "; {name}: {}", key.replace(['\n', '\r'], " "));
        let v = self.named(&name, bits);
        self.consts.insert(key, v.clone());
        v
    }

    pub(super) fn define(&mut self, sort: &str, expression: String) -> Rc<str> {
        let name: Rc<str> = format!("e{}", self.next).into();
        self.next += 1;
        let _ = writeln!(self.out, "(define-fun {name} () {sort} {expression})");
        name
    }

    pub(super) fn bits(&mut self, bits: u32, expression: String) -> V {
        V { bits, name: self.define(&format!("(_ BitVec {bits})"), expression) }
    }
}

/// What an `ld_imm64` loads: the name of an unknown in an [`Encoding`](super::Encoding) and what is added to it; `None`: a
/// plain number.
pub fn symbol(kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Option<(String, i64)> {
    Some(match link.map(|l| &l.symbol) {
        None if kind == Imm64Kind::Const => return None,
        None => (format!("pseudo {kind:?} {imm}"), 0),
        Some(Symbol::Map { name, .. }) => (map_key(name), 0),
        Some(Symbol::Data { section, offset }) => (data_key(section), *offset),
        Some(other) => (format!("symbol {other:?}"), 0),
    })
}

pub(super) fn data_key(section: &str) -> String {
    format!("section {section}")
}

pub(super) fn map_key(name: &str) -> String {
    format!("map {name}")
}

/// An access of a sequence.
pub(super) struct Access {
    /// Under which condition it happens.
    pub(super) guard: Rc<str>,
    /// Where to, if that is known.
    pub(super) region: Option<Region>,
    /// It may be to the frame although the facts know no region.
    pub(super) perhaps_frame: bool,
    pub(super) start: V,
    pub(super) len: u32,
}

impl Access {
    /// A truth that holds where the access happens.
    pub(super) fn when(&self, truth: String) -> String {
        if &*self.guard == "true" { truth } else { format!("(=> {} {truth})", self.guard) }
    }
}

/// A side at its end, or where it comes to a jump.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) regs: [V; 11],
    pub(super) memory: Rc<str>,
    pub(super) stores: Vec<(i64, V)>,
}
