//! Proof that a change of a graph's shape changes nothing else.
//!
//! What a change of shape may do: cut blocks elsewhere, order them anew, turn a jump with its condition, lead an edge
//! past an empty block, let two
//! edges share a copy of the same code, drop a conditional jump of which both ways are the same, drop what cannot be
//! reached. The operations a run carries out, the conditions it asks and the way it ends must stay. That needs no
//! solver: both graphs are one deterministic automaton whose points are operations and jumps, and the two entries must
//! be bisimilar in it.
//!
//! The relation is the coarsest partition in which points of a class have the same *label* (the operation with what the
//! loader patches into it; the condition of a jump; `exit`; running on forever without doing anything) and successors
//! in the same classes, found by Hopcroft's algorithm in O(n log n). A conditional jump whose two successors are
//! in one class asks about nothing; it is then taken for a `goto`, and the partition is computed anew, until there is
//! no such jump. (Jumps about nothing that can only be seen to be so all at once, around a loop, are not found.) A cycle without an operation or a question is divergence, a label of its own: it may be neither made
//! nor removed.
//!
//! It promises that every run of one graph is a run of the other, in the same order, forever if need be. It knows
//! nothing of how the passes change graphs. Beyond behaviour, it keeps what must not be shared or doubled:
//! instructions with CO-RE records (each has its own) and `may_goto`.

use bpf_isa::{Call, Cond, Imm64Kind, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Function, Op, Symbol, Terminator, reverse_postorder};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::function::same::same_op;
use crate::symbolic::symex::has_meaning;

/// Why a graph is not another shape of the same function.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ShapeDifference {
    /// The two are run as different things.
    #[error("the kinds of program differ")]
    Kind,
    /// A jump, or the layout, names a block that does not exist.
    #[error("{0} does not exist")]
    NoSuchBlock(BlockId),
    /// A block that is reached has no place in memory.
    #[error("{0} is reached but not laid out")]
    NotLaidOut(BlockId),
    /// A block stands twice in memory.
    #[error("{0} is laid out twice")]
    LaidOutTwice(BlockId),
    /// A block of the new graph cannot be reached.
    #[error("{0} is laid out but cannot be reached")]
    Unreachable(BlockId),
    /// An instruction whose meaning depends on where it stands, or that is not understood.
    #[error("`{0}` cannot be moved")]
    Positional(Insn),
    /// CO-RE records or `may_goto` were doubled, shared or dropped.
    #[error("instructions that must be there exactly once are not: {0}")]
    NotOnce(&'static str),
    /// Instructions that are not shared may have 32 bits in the one place and 64 in the other, and have 32 for all ways that
    /// lead there once they are (`needs_zext` in kernel/bpf/verifier.c).
    #[error("pointers may be to an arena")]
    Arena,
    /// Something is done, asked or left out that the other graph does not.
    #[error("the runs of the two graphs differ")]
    Behaviour,
}

/// Shows that `new` is another shape of `old`.
///
/// # Errors
/// Why it is not, as far as could be shown.
pub fn same_behaviour(old: &Function, new: &Function) -> Result<(), ShapeDifference> {
    if (old.kind, old.byte_order) != (new.kind, new.byte_order) {
        return Err(ShapeDifference::Kind);
    }
    let (a, b) = (reachable(old)?, reachable(new)?);
    let mut placed = vec![false; new.blocks.len()];
    for &block in &new.layout {
        if std::mem::replace(&mut placed[block.index()], true) {
            return Err(ShapeDifference::LaidOutTwice(block));
        }
    }
    if let Some(block) = b.iter().find(|block| !placed[block.index()]) {
        return Err(ShapeDifference::NotLaidOut(*block));
    }
    if b.len() != new.layout.len() {
        let mut reached = vec![false; new.blocks.len()];
        b.iter().for_each(|block| reached[block.index()] = true);
        let lost = new.layout.iter().copied().find(|block| !reached[block.index()]);
        return Err(ShapeDifference::Unreachable(lost.unwrap_or(new.entry())));
    }
    if core_records(old, &a) != core_records(new, &b) {
        return Err(ShapeDifference::NotOnce("CO-RE records"));
    }
    if may_gotos(old, &a) != may_gotos(new, &b) {
        return Err(ShapeDifference::NotOnce("may_goto"));
    }
    let mut automaton = Automaton::new();
    let entries = [automaton.add(old, &a)?, automaton.add(new, &b)?];
    match automaton.bisimilar(entries) {
        true => Ok(()),
        false => Err(ShapeDifference::Behaviour),
    }
}

/// The blocks that can be reached, all of which exist.
fn reachable(f: &Function) -> Result<Vec<BlockId>, ShapeDifference> {
    let exists = |b: BlockId| b.index() < f.blocks.len();
    if f.layout.is_empty() {
        return Err(ShapeDifference::NoSuchBlock(BlockId(0)));
    }
    let named = f.layout.iter().copied().chain(f.blocks.iter().flat_map(|b| b.term.successors()));
    if let Some(b) = named.into_iter().find(|b| !exists(*b)) {
        return Err(ShapeDifference::NoSuchBlock(b));
    }
    Ok(reverse_postorder(f).0)
}

/// The slots whose CO-RE records are in use, each as often as it is.
fn core_records(f: &Function, blocks: &[BlockId]) -> Vec<usize> {
    let ops = blocks.iter().flat_map(|b| &f.block(*b).ops).filter(|o| o.is_core());
    let mut slots: Vec<usize> = ops.filter_map(|o| o.link.as_ref().map(|l| l.slot)).collect();
    slots.sort_unstable();
    slots
}

/// The `may_goto` in use, by the slot they come from.
fn may_gotos(f: &Function, blocks: &[BlockId]) -> Vec<Option<usize>> {
    let jump = |b: &BlockId| match f.block(*b).term {
        Terminator::MayGoto { origin, .. } => Some(origin),
        _ => None,
    };
    let mut origins: Vec<Option<usize>> = blocks.iter().filter_map(jump).collect();
    origins.sort_unstable();
    origins
}

/// What one can tell of a point without looking further.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Label {
    /// Where a point has no such successor.
    None,
    /// Running on forever without doing anything.
    Diverge,
    /// This operation.
    Op(usize),
    /// This question: first successor if the answer is yes, second if it is no.
    Branch(Cond, Width, Reg, Src),
    /// `may_goto`, by the slot it comes from.
    MayGoto(Option<usize>),
    /// `exit`
    Exit,
}

type Point = usize;

/// A point that has no meaning: what is behind `exit`.
const NOWHERE: Point = 0;
/// The point of running on forever without doing anything.
const DIVERGE: Point = 1;

/// The points of any number of graphs.
struct Automaton<'f> {
    labels: Vec<Label>,
    next: Vec<[Point; 2]>,
    /// Operations that differ, by instruction without the distance of a linked call.
    ops: FxHashMap<Insn, Vec<(&'f Op, usize)>>,
    kinds_of_ops: usize,
}

impl<'f> Automaton<'f> {
    fn new() -> Automaton<'f> {
        Automaton {
            labels: vec![Label::None, Label::Diverge],
            next: vec![[NOWHERE; 2], [DIVERGE, NOWHERE]],
            ops: FxHashMap::default(),
            kinds_of_ops: 0,
        }
    }

    /// Adds the blocks of a graph; its entry.
    fn add(&mut self, f: &'f Function, blocks: &[BlockId]) -> Result<Point, ShapeDifference> {
        let mut first = vec![NOWHERE; f.blocks.len()];
        for &b in blocks {
            let block = f.block(b);
            first[b.index()] = self.labels.len();
            for op in &block.ops {
                let label = self.label(op)?;
                self.labels.push(label);
                let behind = self.labels.len();
                self.next.push([behind, NOWHERE]);
            }
            let label = match block.term {
                // No point of its own: what would be one is where it leads, found below.
                Terminator::Goto(_) => Label::None,
                Terminator::Branch { cond, width, dst, src, .. } => Label::Branch(positive(cond).0, width, dst, src),
                Terminator::MayGoto { origin, .. } => Label::MayGoto(origin),
                Terminator::Exit { .. } => Label::Exit,
            };
            self.labels.push(label);
            self.next.push([NOWHERE; 2]);
        }
        let ends: Vec<Point> = blocks.iter().map(|b| first[b.index()] + f.block(*b).ops.len()).collect();
        let mut gotos: FxHashMap<Point, Point> = FxHashMap::default();
        for (&b, &end) in blocks.iter().zip(&ends) {
            match f.block(b).term {
                Terminator::Goto(to) => {
                    gotos.insert(end, first[to.index()]);
                }
                Terminator::Branch { cond, taken, fall, .. } => {
                    let (yes, no) = if positive(cond).1 { (fall, taken) } else { (taken, fall) };
                    self.next[end] = [first[yes.index()], first[no.index()]];
                }
                Terminator::MayGoto { taken, fall, .. } => {
                    self.next[end] = [first[taken.index()], first[fall.index()]];
                }
                Terminator::Exit { .. } => {}
            }
        }
        self.skip(&gotos);
        Ok(destination(&gotos, first[f.entry().index()]))
    }

    /// The label of an operation.
    fn label(&mut self, op: &'f Op) -> Result<Label, ShapeDifference> {
        let linked = op.link.is_some();
        let here = matches!(
            op.insn,
            Insn::Call(Call::Local(_)) | Insn::LoadImm64 { kind: Imm64Kind::Func, .. } if !linked
        );
        if here || !has_meaning(op) {
            return Err(ShapeDifference::Positional(op.insn));
        }
        let key = match op.insn {
            Insn::Call(Call::Local(_)) => Insn::Call(Call::Local(0)),
            insn => insn,
        };
        let alike = self.ops.entry(key).or_default();
        let found = alike.iter().find(|(o, _)| same_op(o, op) && same_record(o, op));
        let n = found.map(|(_, n)| *n).unwrap_or_else(|| {
            alike.push((op, self.kinds_of_ops));
            self.kinds_of_ops += 1;
            self.kinds_of_ops - 1
        });
        Ok(Label::Op(n))
    }

    /// Leads all edges past the points in `gotos`.
    fn skip(&mut self, gotos: &FxHashMap<Point, Point>) {
        if gotos.is_empty() {
            return;
        }
        for next in self.next.iter_mut().flatten() {
            *next = destination(gotos, *next);
        }
        // Nothing leads there any more: they need not be told apart.
        for p in gotos.keys() {
            self.labels[*p] = Label::None;
            self.next[*p] = [NOWHERE; 2];
        }
    }

    /// Whether two points are.
    fn bisimilar(mut self, mut entries: [Point; 2]) -> bool {
        loop {
            // Questions with one and the same successor first: where those go that lead to different copies, a graph
            // whose copies have been shared already may no longer be like the one whose copies have not.
            let gotos = self.idle_questions(|a, b| a == b);
            if !gotos.is_empty() {
                entries = entries.map(|e| destination(&gotos, e));
                self.skip(&gotos);
                continue;
            }
            let class = self.coarsest_partition();
            if class[entries[0]] == class[entries[1]] {
                return true;
            }
            let gotos = self.idle_questions(|a, b| class[a] == class[b]);
            if gotos.is_empty() {
                return false;
            }
            entries = entries.map(|e| destination(&gotos, e));
            self.skip(&gotos);
        }
    }

    /// The conditional jumps whose successors are the same, with one of them.
    fn idle_questions(&self, same: impl Fn(Point, Point) -> bool) -> FxHashMap<Point, Point> {
        let idle = |p: &Point| {
            let [taken, fall] = self.next[*p];
            matches!(self.labels[*p], Label::Branch(..)) && same(taken, fall)
        };
        (0..self.labels.len()).filter(idle).map(|p| (p, self.next[p][0])).collect()
    }

    /// The class of each point in the coarsest partition in which points of a class have the same label and their
    /// successors the same classes (Hopcroft, 1971).
    fn coarsest_partition(&self) -> Vec<usize> {
        let n = self.labels.len();
        let mut numbers: FxHashMap<Label, usize> = FxHashMap::default();
        let start: Vec<usize> = self
            .labels
            .iter()
            .map(|l| {
                let fresh = numbers.len();
                *numbers.entry(*l).or_insert(fresh)
            })
            .collect();
        let mut partition = Partition::new(&start, numbers.len());
        let before = [0, 1].map(|way| Inverse::new(n, |p| self.next[p][way]));
        let mut waiting: Vec<usize> = (0..numbers.len()).collect();
        let mut is_waiting = vec![true; numbers.len()];
        let mut splitter = Vec::new();
        while let Some(c) = waiting.pop() {
            is_waiting[c] = false;
            splitter.clear();
            splitter.extend_from_slice(partition.members(c));
            for inverse in &before {
                splitter.iter().flat_map(|p| inverse.of(*p)).for_each(|p| partition.mark(*p));
                partition.split(|old, new, old_is_larger| {
                    is_waiting.resize(new + 1, false);
                    let add = if is_waiting[old] || old_is_larger { new } else { old };
                    is_waiting[add] = true;
                    waiting.push(add);
                });
            }
        }
        partition.class
    }
}

/// The same question for a condition and its opposite; whether the answer is the opposite, too.
fn positive(cond: Cond) -> (Cond, bool) {
    match cond.negate() {
        Some(opposite) if opposite < cond => (opposite, true),
        _ => (cond, false),
    }
}

/// Where one comes from `p` along `gotos`.
fn destination(gotos: &FxHashMap<Point, Point>, p: Point) -> Point {
    let mut at = p;
    for _ in 0..=gotos.len() {
        match gotos.get(&at) {
            Some(to) => at = *to,
            None => return at,
        }
    }
    DIVERGE
}

/// Instructions with CO-RE records are themselves only.
fn same_record(a: &Op, b: &Op) -> bool {
    let record = |o: &Op| o.link.as_ref().filter(|l| matches!(l.symbol, Symbol::Core { .. })).map(|l| l.slot);
    record(a) == record(b)
}

/// For each point, those before it along edges of one kind.
struct Inverse {
    from: Vec<usize>,
    points: Vec<Point>,
}

impl Inverse {
    fn new(n: usize, next: impl Fn(Point) -> Point) -> Inverse {
        let mut from = vec![0; n + 1];
        (0..n).for_each(|p| from[next(p) + 1] += 1);
        (0..n).for_each(|p| from[p + 1] += from[p]);
        let mut at = from.clone();
        let mut points = vec![0; n];
        for p in 0..n {
            let slot = &mut at[next(p)];
            points[*slot] = p;
            *slot += 1;
        }
        Inverse { from, points }
    }

    fn of(&self, p: Point) -> &[Point] {
        &self.points[self.from[p]..self.from[p + 1]]
    }
}

/// A partition that can be refined: points of a class stand together, the marked ones first.
struct Partition {
    points: Vec<Point>,
    place: Vec<usize>,
    class: Vec<usize>,
    /// First place of each class, one past its last, and how many of it are marked.
    bounds: Vec<(usize, usize, usize)>,
    touched: Vec<usize>,
}

impl Partition {
    fn new(class: &[usize], classes: usize) -> Partition {
        let mut points: Vec<Point> = (0..class.len()).collect();
        points.sort_by_key(|p| class[*p]);
        let mut place = vec![0; points.len()];
        let mut bounds = vec![(usize::MAX, 0, 0); classes];
        for (i, p) in points.iter().enumerate() {
            place[*p] = i;
            let b = &mut bounds[class[*p]];
            *b = (b.0.min(i), i + 1, 0);
        }
        Partition { points, place, class: class.to_vec(), bounds, touched: Vec::new() }
    }

    fn members(&self, c: usize) -> &[Point] {
        let (from, to, _) = self.bounds[c];
        &self.points[from..to]
    }

    fn mark(&mut self, p: Point) {
        let c = self.class[p];
        let (from, _, marked) = &mut self.bounds[c];
        let (i, j) = (self.place[p], *from + *marked);
        if i < j {
            return;
        }
        if *marked == 0 {
            self.touched.push(c);
        }
        *marked += 1;
        let q = self.points[j];
        self.points.swap(i, j);
        (self.place[p], self.place[q]) = (j, i);
    }

    /// Parts the marked points of each class from the others, and calls `parted` with the class that keeps the
    /// others, the new one with the marked, and whether the first is the larger.
    fn split(&mut self, mut parted: impl FnMut(usize, usize, bool)) {
        for c in std::mem::take(&mut self.touched) {
            let (from, to, marked) = self.bounds[c];
            self.bounds[c].2 = 0;
            if from + marked == to {
                continue;
            }
            let new = self.bounds.len();
            self.bounds.push((from, from + marked, 0));
            self.bounds[c].0 = from + marked;
            for i in from..from + marked {
                self.class[self.points[i]] = new;
            }
            parted(c, new, to - from - marked >= marked);
        }
    }
}
