//! A tree of questions about one number becomes a row of tests, those that lead to one place together.
//!
//! ```text
//! before: b1: if v1 s> 0x8846 goto b6 else b2       after: b1: if v1 == 0x8100 goto b9(1) else b2
//!         b2: if v1 == 0x8100 goto b9(1) else b3           b2: if v1 == 0x88a8 goto b9(1) else b3
//!         b3: if v1 == 0x86dd goto b9(4) else b8           b3: if v1 == 0x86dd goto b9(4) else b8
//!         b6: if v1 == 0x88a8 goto b9(1) else b8
//! ```
//! Compilers search for the case by halving; a row needs no question that only halves, and sets what its cases bring to the
//! join once for all of them. Only where it is not longer, and of so few tests that it takes hardly more time.

use bpf_facts::{Env, Num, NumDomain};
use bpf_isa::{AluOp, Cond, Width};
use bpf_semantics::compare;

use super::fold::{Definitions, num};
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, BlockData, Edge, Inst, Op, Operand, Ssa, Term, Value};

/// The pass.
pub struct Decisions;

/// Tests of a row, at most.
const TESTS: usize = 10;

impl Pass for Decisions {
    fn name(&self) -> &'static str {
        "ssa-decisions"
    }

    fn is_last(&self) -> bool {
        true
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let mut changed = false;
        let graph = Graph::of(f);
        let d = Definitions::of(f);
        let mut taken: Vec<Block> = vec![];
        for &root in &graph.order {
            if taken.contains(&root) {
                continue;
            }
            let Some(tree) = Tree::at(f, &graph, &d, root) else { continue };
            if let Some(row) = tree.row() {
                taken.extend(&tree.nodes);
                tree.replace(f, &row);
                changed = true;
            }
        }
        if changed {
            f.drop_unreachable();
            super::dead::remove(f);
        }
        changed
    }
}

/// Numbers from the first to the last.
type Interval = (u64, u64);

/// Questions about one number.
struct Tree {
    value: Value,
    /// What it can be.
    range: Interval,
    width: Width,
    origin: Option<usize>,
    /// The blocks that ask, the first of all first.
    nodes: Vec<Block>,
    /// Where they lead to.
    leaves: Vec<Edge>,
    /// Which numbers lead where: intervals in their order.
    cases: Vec<(Interval, usize)>,
}

/// A question: about the number with `plus` added.
struct Question {
    value: Value,
    plus: i64,
    cond: Cond,
    width: Width,
    with: i64,
}

fn question(f: &Ssa, d: &Definitions, b: Block) -> Option<Question> {
    let Term::Branch { cond, width, a, b: right, .. } = f.block(b).term else { return None };
    // Which numbers have a bit is no matter of where they lie.
    if cond == Cond::Set {
        return None;
    }
    let (v, with) = (a.value()?, d.constant(right)?);
    let (value, plus) = match d.get(v) {
        Some((Op::Alu(AluOp::Add, w), args)) if *w == Width::W64 || width == Width::W32 => {
            match (args[0].value(), d.constant(args[1])) {
                (Some(base), Some(plus)) if f.block(b).insts.iter().any(|i| i.result == Some(v)) => (base, plus),
                _ => (v, 0),
            }
        }
        _ => (v, 0),
    };
    Some(Question { value, plus, cond, width, with })
}

impl Question {
    fn mask(&self) -> u64 {
        if self.width == Width::W32 { u64::from(u32::MAX) } else { u64::MAX }
    }

    /// Numbers from which on the answer may be another one.
    fn breaks(&self) -> Vec<u64> {
        let half = self.mask() ^ (self.mask() >> 1);
        let at = |n: u64| n.wrapping_sub(self.plus as u64) & self.mask();
        let with = self.with as u64;
        vec![at(with), at(with.wrapping_add(1)), at(0), at(half)]
    }

    fn answer(&self, number: u64) -> Option<bool> {
        let asked = Num::constant(64, number.wrapping_add(self.plus as u64));
        compare(&mut NumDomain, self.cond, self.width, &asked, &Num::constant(64, self.with as u64))
    }
}

impl Tree {
    fn at(f: &Ssa, graph: &Graph, d: &Definitions, root: Block) -> Option<Tree> {
        let first = question(f, d, root)?;
        let known = num(f, d, Operand::Value(first.value));
        // So comparisons of either width and sign are the same.
        if f.fact(Operand::Value(first.value)).kind != bpf_facts::Kind::Scalar || known.umax > i32::MAX as u64 {
            return None;
        }
        let Term::Branch { origin, width, .. } = f.block(root).term else { return None };
        let range = (known.umin, known.umax);
        let (value, nodes) = (first.value, vec![root]);
        let mut tree = Tree { value, range, width, origin, nodes, leaves: vec![], cases: vec![] };
        let mut at = 0;
        while let Some(&b) = tree.nodes.get(at) {
            for edge in f.block(b).term.edges() {
                if tree.is_node(f, graph, d, edge.to) && !tree.nodes.contains(&edge.to) {
                    tree.nodes.push(edge.to);
                }
            }
            at += 1;
        }
        if tree.nodes.len() < 2 || tree.nodes.len() > 2 * TESTS {
            return None;
        }
        let mut breaks: Vec<u64> =
            tree.nodes.iter().filter_map(|b| question(f, d, *b)).flat_map(|q| q.breaks()).collect();
        breaks.push(range.0);
        breaks.retain(|n| (range.0..=range.1).contains(n));
        breaks.sort_unstable();
        breaks.dedup();
        for (i, from) in breaks.iter().enumerate() {
            let to = breaks.get(i + 1).map_or(range.1, |next| next - 1);
            let leaf = tree.leaf(f, graph, d, *from)?;
            let leaf = match tree.leaves.iter().position(|l| *l == leaf) {
                Some(at) => at,
                None => {
                    tree.leaves.push(leaf);
                    tree.leaves.len() - 1
                }
            };
            match tree.cases.last_mut() {
                Some((interval, same)) if *same == leaf => interval.1 = to,
                _ => tree.cases.push(((*from, to), leaf)),
            }
        }
        Some(tree)
    }

    /// Whether a block does nothing but ask about the number, or set constants on the way.
    fn is_node(&self, f: &Ssa, graph: &Graph, d: &Definitions, b: Block) -> bool {
        let block = f.block(b);
        let asks = question(f, d, b).is_some_and(|q| q.value == self.value);
        let is_alone = graph.preds[b.index()].len() == 1 && block.params.is_empty();
        let is_asked = |v: Value| block.term.reads().any(|o| o == Operand::Value(v));
        let is_brought = |v: Value| block.term.edges().any(|e| e.args.contains(&Operand::Value(v)));
        let does_nothing = |i: &Inst| match i.op {
            // It is set where it is needed.
            Op::Const(_) => i.link.is_none(),
            Op::Alu(..) => i.result.is_some_and(|v| is_asked(v) && !is_brought(v)),
            _ => false,
        };
        let is_own = |i: &Inst| i.result.is_some_and(|v| !is_read_elsewhere(f, b, v));
        asks && is_alone && block.insts.iter().all(|i| does_nothing(i) && is_own(i))
    }

    /// Where a number leads.
    fn leaf(&self, f: &Ssa, graph: &Graph, d: &Definitions, number: u64) -> Option<Edge> {
        let mut b = self.nodes[0];
        for _ in 0..=self.nodes.len() {
            let side = usize::from(!question(f, d, b)?.answer(number)?);
            let edge = f.block(b).term.edges().nth(side)?;
            if !self.nodes[1..].contains(&edge.to) {
                return Some(self.end(f, graph, d, edge));
            }
            b = edge.to;
        }
        None
    }

    /// An edge past a block that only sets constants.
    fn end(&self, f: &Ssa, graph: &Graph, d: &Definitions, edge: &Edge) -> Edge {
        let over = f.block(edge.to);
        let is_alone = graph.preds[edge.to.index()].len() == 1 && over.params.is_empty();
        let only_sets = |i: &Inst| {
            let is_own = i.result.is_some_and(|v| !is_read_elsewhere(f, edge.to, v));
            matches!(i.op, Op::Const(_)) && i.link.is_none() && is_own
        };
        let edge = match &over.term {
            Term::Goto(on) if is_alone && over.insts.iter().all(only_sets) => on,
            _ => edge,
        };
        let constant = |o: &Operand| d.constant(*o).map_or(*o, Operand::Const);
        Edge { to: edge.to, args: edge.args.iter().map(constant).collect() }
    }

    /// What the tests of an interval cost.
    fn tests(&self, (from, to): Interval) -> usize {
        1 + usize::from(from != to && from != self.range.0 && to != self.range.1)
    }

    /// The leaves in the order of the row, the last one without tests; `None` if it is no better.
    fn row(&self) -> Option<Vec<usize>> {
        let cost =
            |leaf: usize| -> usize { self.cases.iter().filter(|(_, l)| *l == leaf).map(|(i, _)| self.tests(*i)).sum() };
        let rest = (0..self.leaves.len()).max_by_key(|l| cost(*l))?;
        let mut row: Vec<usize> = (0..self.leaves.len()).filter(|l| *l != rest).collect();
        let tests: usize = row.iter().map(|l| cost(*l)).sum();
        // Those that need a range last: what is before them they need not ask about.
        row.sort_by_key(|l| cost(*l) > self.cases.iter().filter(|(_, x)| x == l).count());
        row.push(rest);
        (tests <= TESTS.min(self.nodes.len()) && !row[..row.len() - 1].is_empty()).then_some(row)
    }

    fn replace(&self, f: &mut Ssa, row: &[usize]) {
        let (rest, tested) = row.split_last().map_or((0, &[][..]), |(rest, tested)| (*rest, tested));
        let mut tests: Vec<(Cond, u64, Option<usize>)> = vec![];
        for leaf in tested {
            for ((from, to), _) in self.cases.iter().filter(|(_, l)| l == leaf) {
                match (*from == self.range.0, *to == self.range.1) {
                    _ if from == to => tests.push((Cond::Eq, *from, Some(*leaf))),
                    (true, _) => tests.push((Cond::Le, *to, Some(*leaf))),
                    (_, true) => tests.push((Cond::Ge, *from, Some(*leaf))),
                    // Past the next test.
                    _ => tests.extend([(Cond::Lt, *from, None), (Cond::Le, *to, Some(*leaf))]),
                }
            }
        }
        let first = f.blocks.len();
        let place = |i: usize| match i {
            0 => self.nodes[0],
            _ => Block((first + i - 1) as u32),
        };
        let to = |i: usize| match i < tests.len() {
            true => Edge { to: place(i), args: vec![] },
            false => self.leaves[rest].clone(),
        };
        let terms: Vec<Term> = tests
            .iter()
            .enumerate()
            .map(|(i, (cond, with, leaf))| Term::Branch {
                cond: *cond,
                width: self.width,
                a: Operand::Value(self.value),
                b: Operand::Const(*with as i64),
                taken: leaf.map_or_else(|| to(i + 2), |leaf| self.leaves[leaf].clone()),
                fall: to(i + 1),
                origin: self.origin,
            })
            .collect();
        let root = self.nodes[0];
        let mut at = f.layout.iter().position(|b| *b == root).map_or(f.layout.len(), |i| i + 1);
        for (i, term) in terms.into_iter().enumerate() {
            if i == 0 {
                f.block_mut(root).term = term;
                continue;
            }
            f.blocks.push(BlockData { params: vec![], insts: vec![], term });
            f.layout.insert(at, place(i));
            at += 1;
        }
    }
}

/// Whether a value is read in another block than this one.
fn is_read_elsewhere(f: &Ssa, b: Block, v: Value) -> bool {
    let read = |o: &Operand| *o == Operand::Value(v);
    f.layout.iter().filter(|x| **x != b).any(|x| {
        let block = f.block(*x);
        block.insts.iter().any(|i| i.args.iter().any(read)) || block.term.operands().iter().any(read)
    })
}
