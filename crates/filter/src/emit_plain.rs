//! From the predicate graph to a program as it stands: without the optimizer.

use rustc_hash::FxHashSet;

use crate::graph::{Graph, Lookup, Target, Test};
use crate::intervals::Intervals;
use crate::language::Relation;
use crate::order::order;
use crate::program::{BasicBlock, BlockId, Comparison, End, Operand, Operation, Program, Register};
use crate::tuples::Tuples;
use crate::value::{Value, ValueId, Values, Variable};

/// The program of a graph as it is: every block evaluates what it needs.
pub(crate) fn emit_plainly(graph: &Graph) -> Program {
    let values = &graph.values;
    let n = graph.blocks.len();
    let mut plain = Plain {
        values,
        next: values.len() as u32,
        variables: graph.variables,
        operations: Vec::new(),
        evaluated: FxHashSet::default(),
        more: Vec::new(),
        first_more: n + 2,
    };
    let target = |t: Target| match t {
        Target::Block(i) => BlockId(i),
        Target::Accept => BlockId(n),
        Target::Reject => BlockId(n + 1),
    };
    let mut blocks = Vec::with_capacity(n + 2);
    for block in &graph.blocks {
        plain.operations.extend(block.predicate.map(|predicate| Operation::Note { predicate }));
        for (variable, value) in &block.sets {
            let from = plain.evaluate(*value);
            let to = plain.variable(*variable);
            plain.operations.push(Operation::Copy { to, from });
            // What was computed of the variable before is another number now.
            plain.evaluated.clear();
        }
        let (yes, no) = (target(block.yes), target(block.no));
        let end = match &block.test {
            Test::Lookup(Lookup { map, key }) => {
                let key = key.iter().map(|value| plain.evaluate(*value)).collect();
                End::Member { map: *map, key, yes, no }
            }
            Test::Chain(chain) => End::Chain { chain: *chain, yes, no },
            Test::Member(value, set) => {
                let a = plain.evaluate(*value);
                plain.member(a, set, yes, no)
            }
            Test::Among(words, members) => {
                plain.evaluate(words[0]);
                plain.among(words, &members.0, &mut Vec::new(), yes, no)
            }
            Test::Compare(relation, a, b) => {
                let (a, b) = (plain.evaluate(*a), plain.evaluate(*b));
                let (first, second) = (Operand::Register(a), Operand::Register(b));
                match relation {
                    Relation::Equal => End::Branch { a, comparison: Comparison::Equal(second), yes, no },
                    Relation::NotEqual => End::Branch { a, comparison: Comparison::Equal(second), yes: no, no: yes },
                    Relation::Greater => End::Branch { a, comparison: Comparison::Greater(second), yes, no },
                    Relation::LessEqual => End::Branch { a, comparison: Comparison::Greater(second), yes: no, no: yes },
                    Relation::GreaterEqual => End::Branch { a, comparison: Comparison::AtLeast(second), yes, no },
                    Relation::Less => End::Branch { a: b, comparison: Comparison::Greater(first), yes, no },
                }
            }
        };
        plain.evaluated.clear();
        blocks.push(BasicBlock { operations: std::mem::take(&mut plain.operations), end });
    }
    // Variables are 0 before they are set. Machine code takes no register that nothing has written.
    if let Target::Block(entry) = graph.entry {
        let zero = |v| Operation::Constant { to: plain.variable(Variable(v)), n: 0 };
        blocks[entry].operations.splice(0..0, (0..graph.variables).map(zero));
    }
    blocks.push(BasicBlock { operations: Vec::new(), end: End::Accept });
    blocks.push(BasicBlock { operations: Vec::new(), end: End::Reject });
    // Comparisons with the members of sets stand behind all others.
    blocks.append(&mut plain.more);
    let registers = plain.next + plain.variables;
    let (tables, maps) = (Vec::new(), graph.maps.clone().into());
    order(Program { blocks, registers, tables, maps, predicates: graph.predicates }, target(graph.entry))
}

/// Evaluates values and remembers none behind its block.
struct Plain<'a> {
    values: &'a Values,
    next: u32,
    variables: u32,
    operations: Vec<Operation>,
    /// What the block has computed of other values.
    evaluated: FxHashSet<ValueId>,
    /// Blocks that stand behind those of the graph, from `first_more` on.
    more: Vec<BasicBlock>,
    first_more: usize,
}

impl Plain<'_> {
    fn variable(&self, variable: Variable) -> Register {
        Register(self.next + variable.0)
    }

    /// A comparison with each interval of a set.
    fn member(&mut self, a: Register, set: &Intervals, yes: BlockId, no: BlockId) -> End {
        let constant = |n: u32| Operand::Constant(n);
        let mut end = End::Goto(no);
        for (low, high) in set.as_slice().iter().rev() {
            let next = self.block(end);
            end = if low == high {
                End::Branch { a, comparison: Comparison::Equal(constant(*low)), yes, no: next }
            } else {
                let inside =
                    self.block(End::Branch { a, comparison: Comparison::Greater(constant(*high)), yes: next, no: yes });
                End::Branch { a, comparison: Comparison::AtLeast(constant(*low)), yes: inside, no: next }
            };
        }
        end
    }

    /// Comparisons for the members that begin with some words. The next word is in its register.
    fn among(&mut self, words: &[ValueId], members: &Tuples, first: &mut Vec<u32>, yes: BlockId, no: BlockId) -> End {
        let a = Register(words[first.len()].0);
        let mut cases = Vec::new();
        for n in members.next_words(first) {
            let to = match words.get(first.len() + 1) {
                None => yes,
                Some(next) => {
                    self.evaluated.clear();
                    let before = std::mem::take(&mut self.operations);
                    self.evaluate(*next);
                    let operations = std::mem::replace(&mut self.operations, before);
                    first.push(n);
                    let end = self.among(words, members, first, yes, no);
                    first.pop();
                    self.block_of(operations, end)
                }
            };
            cases.push((n, to));
        }
        self.halved(a, &cases, no)
    }

    /// Goes on by which of some numbers a register holds: compared with the middle one first.
    fn halved(&mut self, a: Register, cases: &[(u32, BlockId)], no: BlockId) -> End {
        let constant = |n: u32| Operand::Constant(n);
        match cases {
            [] => End::Goto(no),
            [(n, yes)] => End::Branch { a, comparison: Comparison::Equal(constant(*n)), yes: *yes, no },
            _ => {
                let (low, high) = cases.split_at(cases.len() / 2);
                let middle = constant(high[0].0);
                let (low, high) = (self.halved(a, low, no), self.halved(a, high, no));
                let (yes, no) = (self.block(high), self.block(low));
                End::Branch { a, comparison: Comparison::AtLeast(middle), yes, no }
            }
        }
    }

    fn block(&mut self, end: End) -> BlockId {
        self.block_of(Vec::new(), end)
    }

    fn block_of(&mut self, operations: Vec<Operation>, end: End) -> BlockId {
        self.more.push(BasicBlock { operations, end });
        BlockId(self.first_more + self.more.len() - 1)
    }

    fn evaluate(&mut self, value: ValueId) -> Register {
        let to = Register(value.0);
        if self.values.operands(value).next().is_some() && !self.evaluated.insert(value) {
            return to;
        }
        let operation = match self.values.get(value) {
            Value::Constant(n) => Operation::Constant { to, n },
            Value::Length => Operation::Length { to },
            Value::Ancillary(what) => Operation::Ancillary { to, what },
            Value::Variable(v) => return self.variable(v),
            Value::Load { base, offset, size } => {
                Operation::Load { to, base: base.map(|b| self.evaluate(b)), offset, size }
            }
            Value::Binary(op, a, b) => {
                let (a, b) = (Operand::Register(self.evaluate(a)), Operand::Register(self.evaluate(b)));
                Operation::Binary { op, to, a, b }
            }
            Value::Negate(a) => Operation::Negate { to, a: self.evaluate(a) },
            Value::IsGreater(a, b) => {
                let (a, b) = (Operand::Register(self.evaluate(a)), Operand::Register(self.evaluate(b)));
                Operation::IsGreater { to, a, b }
            }
        };
        self.operations.push(operation);
        to
    }
}
