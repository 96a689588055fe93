//! Making an object smaller while somebody still finds it interesting.
//!
//! One idea: an edit is something of an object that can be left out; all edits of one kind make a list, and
//! [`bpf_shrink::shrink`] finds out how much of it can go. Kinds that remove much come first, and all are tried again
//! until none removes anything. Candidates are always written by the object writer and read back, so whatever comes
//! out can be parsed; nothing is promised about what it means.

use std::collections::HashSet;

use bpf_isa::{Insn, Reg, Src, Width};
use bpf_object::{FuncId, Object, WriteOptions};
use bpf_program::{Block, BlockId, Function, Op, Terminator, build, drop_unreachable, lower, slot_count};

use crate::error::DriverError;
use crate::report::Observer;

/// A smaller object.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The object.
    pub bytes: Vec<u8>,
    /// Slots of all functions before and after.
    pub slots: (usize, usize),
    /// Candidates that were tried.
    pub tests: usize,
}

/// The kinds of edits, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A function becomes `r0 = 0; exit`.
    Functions,
    /// A block ends with `r0 = 0; exit`.
    Blocks,
    /// A conditional jump is never taken.
    Falls,
    /// A conditional jump is always taken.
    Jumps,
    /// An instruction goes.
    Instructions,
    /// An instruction becomes `r = 0`.
    Zeroes,
}

const KINDS: [Kind; 6] = [Kind::Functions, Kind::Blocks, Kind::Falls, Kind::Jumps, Kind::Instructions, Kind::Zeroes];

/// Where an edit is: function, block, operation. What a kind does not need is 0.
type Place = (usize, BlockId, usize);

/// The smallest object found that `interesting` says yes to. `input` itself is taken to be interesting. Once
/// [`Observer::stop`] says so, no more candidates are tried.
///
/// # Errors
/// An object that cannot be read.
pub fn reduce(
    input: &[u8],
    mut interesting: impl FnMut(&[u8]) -> bool,
    observer: &dyn Observer,
) -> Result<Reduced, DriverError> {
    let mut best = Graphs::of(input.to_vec())?;
    let before = best.slots();
    let mut tests = 0;
    loop {
        let start = best.bytes.clone();
        for kind in KINDS {
            let graphs = best.clone();
            bpf_shrink::shrink(graphs.places(kind), |kept| {
                if observer.stop() {
                    return false;
                }
                let Some(candidate) = graphs.without(kind, kept) else { return false };
                tests += 1;
                observer.phase(&format!("{} of {before} slots left, {tests} candidates tried", best.slots()));
                if !interesting(&candidate.bytes) {
                    return false;
                }
                best = candidate;
                true
            });
        }
        if best.bytes == start || observer.stop() {
            break;
        }
    }
    Ok(Reduced { slots: (before, best.slots()), bytes: best.bytes, tests })
}

/// An object with the graphs of the functions that have one.
#[derive(Clone)]
struct Graphs {
    bytes: Vec<u8>,
    object: Object,
    graphs: Vec<Option<Function>>,
}

impl Graphs {
    fn of(bytes: Vec<u8>) -> Result<Graphs, DriverError> {
        let object = Object::parse(bytes.clone())?;
        let ids = (0..object.functions().len()).map(FuncId);
        let graphs = ids.map(|id| object.locked(id).is_none().then(|| build(&object, id).ok()).flatten()).collect();
        Ok(Graphs { bytes, object, graphs })
    }

    fn slots(&self) -> usize {
        self.object.functions().iter().map(|f| f.slots).sum()
    }

    /// Everything that an edit of this kind could change.
    fn places(&self, kind: Kind) -> Vec<Place> {
        let mut places = vec![];
        for (i, f) in self.graphs.iter().enumerate().filter_map(|(i, f)| Some((i, f.as_ref()?))) {
            if kind == Kind::Functions {
                places.extend((slot_count(f) > 2).then_some((i, f.entry(), 0)));
                continue;
            }
            for b in f.layout.iter().copied() {
                let block = f.block(b);
                match kind {
                    Kind::Functions => {}
                    Kind::Blocks => places.extend((!is_stub(block)).then_some((i, b, 0))),
                    Kind::Falls | Kind::Jumps => {
                        let two = block.term.successors().count() == 2;
                        places.extend(two.then_some((i, b, 0)));
                    }
                    Kind::Instructions => places.extend((0..block.ops.len()).map(|n| (i, b, n))),
                    Kind::Zeroes => {
                        let able = block.ops.iter().enumerate().filter(|(_, op)| zero_of(op).is_some());
                        places.extend(able.map(|(n, _)| (i, b, n)));
                    }
                }
            }
        }
        places
    }

    /// The object with the edits of a kind at all places but these; `None` if that is no object.
    fn without(&self, kind: Kind, kept: &[Place]) -> Option<Graphs> {
        let kept: HashSet<Place> = kept.iter().copied().collect();
        let gone: HashSet<Place> = self.places(kind).into_iter().filter(|p| !kept.contains(p)).collect();
        let mut object = self.object.clone();
        for (i, f) in self.graphs.iter().enumerate().filter_map(|(i, f)| Some((i, f.as_ref()?))) {
            if gone.iter().all(|p| p.0 != i) {
                continue;
            }
            let mut f = f.clone();
            edit(&mut f, i, kind, &gone);
            tidy(&mut f);
            object.set_body(FuncId(i), lower(&f).ok()?.insns).ok()?;
        }
        Graphs::of(object.write(&WriteOptions::default()).ok()?.bytes).ok()
    }
}

fn edit(f: &mut Function, index: usize, kind: Kind, gone: &HashSet<Place>) {
    if kind == Kind::Functions {
        *f.block_mut(f.entry()) = stub();
        return;
    }
    for b in f.layout.clone() {
        let at = |n| gone.contains(&(index, b, n));
        let block = f.block_mut(b);
        match kind {
            Kind::Functions => {}
            Kind::Blocks if at(0) => *block = stub(),
            Kind::Falls | Kind::Jumps if at(0) => {
                let mut successors = block.term.successors();
                let side = if kind == Kind::Jumps { successors.next() } else { successors.nth(1) };
                if let Some(side) = side {
                    drop(successors);
                    block.term = Terminator::Goto(side);
                }
            }
            Kind::Instructions => {
                let ops = std::mem::take(&mut block.ops);
                block.ops = ops.into_iter().enumerate().filter(|(n, _)| !at(*n)).map(|(_, op)| op).collect();
            }
            Kind::Zeroes => {
                for (_, op) in block.ops.iter_mut().enumerate().filter(|(n, _)| at(*n)) {
                    if let Some(zero) = zero_of(op) {
                        *op = zero;
                    }
                }
            }
            Kind::Blocks | Kind::Falls | Kind::Jumps => {}
        }
    }
}

/// Leaves out blocks that nothing leads to, and goes past empty ones.
fn tidy(f: &mut Function) {
    let blocks = f.blocks.clone();
    let past = |mut b: BlockId| {
        // A cycle of empty blocks has no end.
        for _ in 0..blocks.len() {
            match &blocks[b.index()] {
                Block { ops, term: Terminator::Goto(next) } if ops.is_empty() => b = *next,
                _ => break,
            }
        }
        b
    };
    f.blocks.iter_mut().for_each(|block| block.term.map_successors(past));
    drop_unreachable(f);
}

fn stub() -> Block {
    let zero = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) };
    Block { ops: vec![Op::new(zero)], term: Terminator::Exit { origin: None } }
}

/// Whether a block is `r0 = 0; exit` or `exit`.
fn is_stub(block: &Block) -> bool {
    matches!(block.term, Terminator::Exit { .. }) && block.ops.iter().all(|op| op.insn == stub().ops[0].insn)
}

/// `r = 0` in place of an operation that gives r its value; `None` if it gives none or is that already.
fn zero_of(op: &Op) -> Option<Op> {
    let defs = op.insn.defs();
    let dst = match op.insn {
        Insn::Call(_) => Reg::R0,
        _ => (0..10).filter_map(Reg::new).find(|r| defs.contains(*r))?,
    };
    let zero = Insn::Mov { width: Width::W64, dst, src: Src::Imm(0) };
    (op.insn != zero).then(|| Op::with_origin(zero, op.origin))
}
