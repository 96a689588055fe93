//! The other side of a question first: the verifier walks on behind a jump, and comes back for where it leads to.
//!
//! What it has walked first is what it compares with later. Where the state that it comes back with is covered by one that was
//! there already, it stops.

use bpf_program::{BlockId, Function, Terminator, slot_count};

use super::edit::Form;

/// What it is called in reports.
pub(super) const NAME: &str = "other-side-first";

/// All such forms, one question at a time.
pub(super) fn forms(f: &Function) -> Vec<Form> {
    let slots = slot_count(f);
    let turned = |b: &BlockId| {
        let mut new = f.clone();
        let Terminator::Branch { cond, taken, fall, .. } = &mut new.block_mut(*b).term else { return None };
        *cond = cond.negate()?;
        std::mem::swap(taken, fall);
        lay_out(&mut new);
        (slot_count(&new) <= slots + 2).then(|| Form::new(NAME, new))
    };
    f.layout.iter().filter_map(turned).collect()
}

/// The function with the other side first of every question.
pub(super) fn reversed(f: &Function) -> Form {
    let mut new = f.clone();
    for b in f.layout.clone() {
        if let Terminator::Branch { cond, taken, fall, .. } = &mut new.block_mut(b).term
            && let Some(negated) = cond.negate()
        {
            *cond = negated;
            std::mem::swap(taken, fall);
        }
    }
    lay_out(&mut new);
    Form::new(NAME, new)
}

/// Places blocks so that what is walked first comes next.
fn lay_out(f: &mut Function) {
    let mut order: Vec<BlockId> = Vec::with_capacity(f.layout.len());
    let mut waiting = vec![f.entry()];
    while let Some(b) = waiting.pop() {
        if order.contains(&b) {
            continue;
        }
        order.push(b);
        match f.block(b).term {
            Terminator::Goto(to) => waiting.push(to),
            Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
                waiting.extend([taken, fall]);
            }
            Terminator::Exit { .. } => {}
        }
    }
    f.layout = order;
}
