//! What became of a function change by change, told from its derivation afterwards: for people who want to learn from it.

use bpf_object::{FuncId, Object};
use bpf_program::{Function, Op, Terminator, slot_count};
use bpf_prove::{Derivation, Proof, Rewrite, Stats, Step, superblock::Superblock};
use serde::Serialize;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// How it was shown to be right.
    pub proof: ChangeProof,
}

/// How a change was shown to be right.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChangeProof {
    /// By what.
    pub by: ProvenBy,
    /// Wall-clock milliseconds; `None` where they were not taken.
    pub milliseconds: Option<f64>,
}

/// What shows that a change is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProvenBy {
    /// Both sides became the same terms.
    Terms,
    /// The solver.
    Solver,
    /// The same question had been answered before.
    Remembered,
    /// The graphs do the same block by block.
    Blocks,
    /// Old and new function were compared as wholes.
    Whole,
}

impl ChangeProof {
    fn of(step: &Step) -> ChangeProof {
        let Some(Proof { stats, time }) = step.proof() else {
            return ChangeProof { by: ProvenBy::Blocks, milliseconds: None };
        };
        let by = match stats {
            Stats { sat_calls: 1.., .. } => ProvenBy::Solver,
            Stats { cached: 1.., .. } => ProvenBy::Remembered,
            _ => ProvenBy::Terms,
        };
        ChangeProof { by, milliseconds: Some(time.as_secs_f64() * 1e3) }
    }
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
        let proof = ChangeProof { by: ProvenBy::Whole, milliseconds: None };
        changes.push(Change { by, slot: None, line: None, before: vec![], after: vec![], saved, proof });
    }
    derivation.retell(|before, step, after| {
        let (saved, proof) = (less(before, after), ChangeProof::of(step));
        match step.rewrite() {
            Some(rewrite) => {
                let ops = replaced(before, rewrite);
                let slot = ops.iter().chain(&rewrite.with).find_map(|op| op.origin);
                let line = slot.and_then(|slot| object.line_of(f, slot)).map(|line| line.to_string());
                let last = rewrite.path.last().copied().unwrap_or(rewrite.block);
                let old_end = rewrite.term.is_some().then(|| &before.block(last).term);
                let (before, after) = (listing(&ops, old_end), listing(&rewrite.with, rewrite.term.as_ref()));
                changes.push(Change { by: rewrite.by.into(), slot, line, before, after, saved, proof });
            }
            None if saved != 0 => {
                let by = bpf_passes::SHAPE.into();
                changes.push(Change { by, slot: None, line: None, before: vec![], after: vec![], saved, proof });
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
