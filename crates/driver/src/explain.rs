//! What became of a function change by change, told from its derivation afterwards: for people who want to learn from it.

use bpf_object::{FuncId, Object};
use bpf_program::{Function, Op, Terminator, slot_count};
use bpf_prove::{Derivation, Rewrite, superblock::Superblock};
use serde::Serialize;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The passes or the rule; `jumps` for how blocks are cut and ordered.
    pub by: String,
    /// Slot of the original function where it is, if an instruction there descends from one.
    pub slot: Option<usize>,
    /// Source file, line and column of that slot, where the object tells.
    pub line: Option<String>,
    /// The instructions before, a line each; none where the whole function was taken anew.
    pub before: Vec<String>,
    /// The instructions after.
    pub after: Vec<String>,
    /// Slots saved by it. It may be less than none, where what comes after it saves more.
    pub saved: i64,
}

/// The changes of function `f`, in their order: the global `steps` from `original`, if there were any, then those of the
/// derivation. What neither saves anything nor changes instructions is left out.
pub(crate) fn changes(
    object: &Object,
    f: FuncId,
    original: &Function,
    steps: &[String],
    derivation: &Derivation,
) -> Vec<Change> {
    let less = |before: &Function, after: &Function| slot_count(before) as i64 - slot_count(after) as i64;
    let mut changes = vec![];
    if !steps.is_empty() {
        let by = steps.join(", then ");
        let saved = less(original, derivation.original());
        changes.push(Change { by, slot: None, line: None, before: vec![], after: vec![], saved });
    }
    derivation.retell(|before, step, after| {
        let saved = less(before, after);
        match step.rewrite() {
            Some(rewrite) => {
                let ops = replaced(before, rewrite);
                let slot = ops.iter().chain(&rewrite.with).find_map(|op| op.origin);
                let line = slot.and_then(|slot| object.line_of(f, slot));
                let line = line.map(|(file, line, column)| format!("{file}:{line}:{column}"));
                let last = rewrite.path.last().copied().unwrap_or(rewrite.block);
                let old_end = rewrite.term.is_some().then(|| &before.block(last).term);
                let (before, after) = (listing(&ops, old_end), listing(&rewrite.with, rewrite.term.as_ref()));
                changes.push(Change { by: rewrite.by.into(), slot, line, before, after, saved });
            }
            None if saved != 0 => {
                let by = bpf_passes::SHAPE.into();
                changes.push(Change { by, slot: None, line: None, before: vec![], after: vec![], saved });
            }
            None => {}
        }
    });
    changes
}

/// The operations that a rewrite replaces.
fn replaced(f: &Function, rewrite: &Rewrite) -> Vec<Op> {
    let ops = match &rewrite.path[..] {
        [] => f.block(rewrite.block).ops.clone(),
        path => Superblock::of(f, rewrite.block, path).map(Superblock::into_ops).unwrap_or_default(),
    };
    ops.get(rewrite.start..rewrite.end).map(<[Op]>::to_vec).unwrap_or_default()
}

fn listing(ops: &[Op], end: Option<&Terminator>) -> Vec<String> {
    ops.iter().map(|op| op.insn.to_string()).chain(end.map(ToString::to_string)).collect()
}
