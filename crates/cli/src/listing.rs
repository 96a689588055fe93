//! The code of a function as lines: slot, text, what the numbers in it stand for.
//!
//! The text is LLVM's. References and helper numbers, which are just numbers there, are explained in comments, so
//! that the listing can be read (and parsed again) without the object.

use std::collections::{BTreeMap, BTreeSet};

use bpf_isa::{Call, Insn};
use bpf_object::{FuncId, FuncKind, Object, RefKind, SourceLine};
use bpf_platform::helpers::Helper;

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its first slot within the function.
    pub slot: usize,
    /// Its text; jumps name their target's label.
    pub text: String,
    /// What it refers to; empty if nothing.
    pub comment: String,
    /// Whether a jump of the function comes here.
    pub is_target: bool,
    /// Whether a basic block ends with it.
    pub ends_block: bool,
}

impl Line {
    /// What it does, wherever it is: the text without the distance of a jump.
    pub fn key(&self) -> (&str, &str) {
        let text = match self.text.find("goto") {
            Some(at) => self.text.get(..at + "goto".len()).unwrap_or(&self.text),
            None => &self.text,
        };
        (text, &self.comment)
    }

    /// Text and comment in one.
    pub fn whole(&self) -> String {
        match self.comment.as_str() {
            "" => self.text.clone(),
            comment => format!("{} ; {comment}", self.text),
        }
    }
}

/// `file:line:column | text`
pub fn source(line: &SourceLine) -> String {
    match line.text.trim() {
        "" => line.to_string(),
        text => format!("{line} | {text}"),
    }
}

/// The label of a slot.
pub fn label(slot: usize) -> String {
    format!("L{slot}")
}

/// All instructions of a function; empty if its bytes do not divide into slots.
pub fn lines(object: &Object, f: FuncId) -> Vec<Line> {
    let Ok(insns) = bpf_isa::decode_all(object.code(f)) else { return Vec::new() };
    let starts: BTreeSet<usize> = insns.iter().map(|(slot, _)| *slot).collect();
    let target = |slot: usize, insn: &Insn| {
        let to = slot as i64 + insn.slots() as i64 + i64::from(insn.jump_offset()?);
        Some(usize::try_from(to).ok().filter(|to| starts.contains(to)))
    };
    let targets: BTreeSet<usize> = insns.iter().filter_map(|(slot, insn)| target(*slot, insn)?).collect();
    let mut comments = references(object, f);
    insns
        .iter()
        .map(|&(slot, insn)| {
            let mut comment = comments.remove(&slot).unwrap_or_default();
            comment.extend(about(&insn, comment.is_empty()));
            let text = match target(slot, &insn) {
                Some(Some(to)) => format!("{insn} <{}>", label(to)),
                Some(None) => {
                    comment.push("outside of the function, or inside an instruction".to_owned());
                    insn.to_string()
                }
                None => insn.to_string(),
            };
            let ends_block = insn.jump_offset().is_some() || matches!(insn, Insn::Exit);
            Line { slot, text, comment: comment.join(", "), is_target: targets.contains(&slot), ends_block }
        })
        .collect()
}

/// What the loader will patch in, by slot.
fn references(object: &Object, f: FuncId) -> BTreeMap<usize, Vec<String>> {
    let mut comments: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let name = |id: FuncId| object.functions().get(id.0).map_or("?", |f| f.name.as_str());
    for reference in object.refs(f) {
        let text = match &reference.kind {
            RefKind::Map { map, offset } => {
                let name = object.maps().get(*map).map_or("?", |m| m.name.as_str());
                if *offset == 0 { format!("map {name}") } else { format!("map {name} + {offset:#x}") }
            }
            RefKind::Data { section, symbol, offset, .. } if symbol == section => format!("{section} + {offset:#x}"),
            RefKind::Data { section, symbol, offset, .. } => format!("{section} + {offset:#x} ({symbol})"),
            RefKind::Call { target } => name(*target).to_owned(),
            RefKind::FuncAddr { target } => format!("address of {}", name(*target)),
            RefKind::Extern { name } => format!("extern {name}"),
            RefKind::Other { what } => what.clone(),
            _ => continue,
        };
        comments.entry(reference.slot).or_default().push(text);
    }
    for record in object.core_relocs(f) {
        let kind = core_kind(record.kind);
        let text = format!("CO-RE {kind} of type {} at {}", record.type_id, record.access);
        comments.entry(record.slot).or_default().push(text);
    }
    comments
}

/// What an instruction's own numbers stand for; a call with a reference is not a call of what its number says.
fn about(insn: &Insn, free: bool) -> Option<String> {
    match insn {
        Insn::Call(Call::Helper(id)) if free => Some(match Helper::get(*id) {
            Some(helper) => helper.name.to_owned(),
            None => format!("unknown helper {id}"),
        }),
        Insn::Call(Call::Kfunc { btf_id, .. }) if free => Some(format!("kernel function, BTF type {btf_id}")),
        Insn::Opaque(word) => Some(format!("{word:#018x}")),
        _ => None,
    }
}

/// `enum bpf_core_relo_kind` of `include/uapi/linux/bpf.h`.
fn core_kind(kind: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "byte offset",
        "byte size",
        "existence",
        "signedness",
        "left shift",
        "right shift",
        "local type id",
        "target type id",
        "type existence",
        "type size",
        "enum value existence",
        "enum value",
        "type match",
    ];
    NAMES.get(kind as usize).copied().unwrap_or("relocation of an unknown kind")
}

/// `xdp_count: program in section xdp, 36 slots`
pub fn title(object: &Object, f: FuncId) -> String {
    let Some(function) = object.functions().get(f.0) else { return String::new() };
    let kind = match function.kind {
        FuncKind::Program => "program",
        FuncKind::Static => "static function",
        FuncKind::Global => "global function",
    };
    format!("{}: {kind} in section {}, {} slots", function.name, function.section, function.slots)
}
