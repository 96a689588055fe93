//! A jump to a short end of the function becomes that end.
//!
//! ```text
//!     r0 = 1                    r0 = 1
//!     goto out            →     exit
//!     …                         …
//! out: exit                out: exit
//! ```
//! The verifier processes the jump, too. Longer ends are put in the place of jumps where something of them is known there.

use bpf_program::{BlockId, Function, Op, Terminator, drop_unreachable, predecessors};

use super::edit::Form;

/// What it is called in reports.
pub(super) const NAME: &str = "ends-in-place";
/// Operations of an end at most.
const LONGEST: usize = 6;

/// All such forms: with all ends of at most so many operations in their places, and one by one.
pub(super) fn forms(f: &Function) -> Vec<Form> {
    let preds = predecessors(f);
    let mut places: Vec<(BlockId, BlockId)> = Vec::new();
    for &b in &f.layout {
        let Terminator::Goto(end) = f.block(b).term else { continue };
        let ops = &f.block(end).ops;
        let is_end = !matches!(f.block(end).term, Terminator::MayGoto { .. }) && end != b;
        if is_end && ops.len() <= LONGEST && !ops.iter().any(Op::is_core) && preds[end.index()].len() > 1 {
            places.push((b, end));
        }
    }
    let mut forms = Vec::new();
    for longest in [0, 1, LONGEST] {
        let short = |(_, end): &&(BlockId, BlockId)| {
            f.block(*end).ops.len() <= longest && matches!(f.block(*end).term, Terminator::Exit { .. })
        };
        let some: Vec<_> = places.iter().filter(short).copied().collect();
        if some.len() > 1 {
            forms.push(Form::new(NAME, with(f, &some)));
        }
    }
    forms.extend(places.iter().map(|place| Form::new(NAME, with(f, &[*place]))));
    forms
}

/// The function with these ends in the places of jumps to them.
fn with(f: &Function, places: &[(BlockId, BlockId)]) -> Function {
    let mut new = f.clone();
    for (b, end) in places {
        let end = f.block(*end).clone();
        let block = new.block_mut(*b);
        block.ops.extend(end.ops);
        block.term = end.term;
    }
    drop_unreachable(&mut new);
    new
}
