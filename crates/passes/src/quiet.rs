//! Places at which the passes found nothing, with all that their answer depends on.
//!
//! What a pass proposes and the prover says of it follows from the operations of a block or path, the facts where
//! control comes in, and what is live where it goes out. Where none of that has changed since nothing was found,
//! nothing is found again, so the engine need not ask. That holds from round to round, from run to run on the same
//! function, and from form to form of it: after a small change of a large function only what the change can be seen from is
//! looked at again.
//!
//! Everything is compared in full, not by a hash. Where more had an influence (`View::look_beyond`: the order of blocks, how often
//! they run, a refusal from when less was known), or time has cut an answer short, nothing is noted.

use bpf_facts::{Live, State};
use bpf_program::{BlockId, Op, Terminator};
use bpf_prove::superblock::is_side_exit;
use rustc_hash::FxHashMap;

use crate::view::View;

/// What the engine remembers of a function from run to run; it is about one set of passes, settings and banned
/// rewrites that only grows.
#[derive(Clone, Debug, Default)]
pub struct Quiet {
    blocks: FxHashMap<BlockId, Seen>,
    paths: FxHashMap<(BlockId, Vec<BlockId>), Seen>,
    /// Blocks as they are with what is known of dead values.
    revived: FxHashMap<BlockId, Seen>,
}

/// All that the answer of the passes depends on at one place.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    ops: Vec<Op>,
    term: Terminator,
    /// The facts at its beginning and behind its jumps; between, they follow from the operations.
    facts: Vec<State>,
    /// What is live at its end and where its jumps leave.
    live: Vec<Live>,
}

impl Seen {
    fn of(view: &View) -> Seen {
        Seen {
            ops: view.ops.to_vec(),
            term: view.term.clone(),
            facts: entries(view).cloned().collect(),
            live: exits(view).copied().collect(),
        }
    }

    fn is(&self, view: &View) -> bool {
        self.ops == view.ops
            && self.term == *view.term
            && self.live.iter().eq(exits(view))
            && self.facts.iter().eq(entries(view))
    }
}

/// The facts where control comes into each block of a view.
fn entries<'v>(view: &'v View) -> impl Iterator<Item = &'v State> {
    let begins = |i: usize| i == 0 || is_side_exit(&view.ops[i - 1].insn);
    view.states.iter().enumerate().filter(move |(i, _)| begins(*i)).map(|(_, s)| s)
}

/// What is live where a view is left.
fn exits<'v>(view: &'v View) -> impl Iterator<Item = &'v Live> {
    view.sides.iter().chain(view.live.last())
}

impl Quiet {
    /// Whether nothing is to be found in this view.
    pub(crate) fn is(&self, view: &View) -> bool {
        let seen = match (view.path.is_empty(), view.fresh) {
            (false, _) => self.paths.get(&(view.block, view.path.to_vec())),
            (true, false) => self.blocks.get(&view.block),
            (true, true) => self.revived.get(&view.block),
        };
        seen.is_some_and(|seen| seen.is(view))
    }

    /// Notes that nothing was found in this view.
    pub(crate) fn note(&mut self, view: &View) {
        let seen = Seen::of(view);
        match (view.path.is_empty(), view.fresh) {
            (false, _) => self.paths.insert((view.block, view.path.to_vec()), seen),
            (true, false) => self.blocks.insert(view.block, seen),
            (true, true) => self.revived.insert(view.block, seen),
        };
    }
}
