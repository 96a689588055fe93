//! The predicate graph: what a filter tests, in the order of its text, as libpcap's code does without its optimizer.
//!
//! A block sets variables, then tests. Running off the packet's end in either rejects the packet at once; that is part of the
//! meaning.

use std::sync::Arc;

use crate::intervals::Intervals;
use crate::language::Relation;
use crate::post_order::reverse_post_order;
use crate::tuples::Members;
use crate::updatable::SetMap;
use crate::value::{Value, ValueId, Values, Variable};

/// Where to go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Target {
    Block(usize),
    Accept,
    Reject,
}

/// A block.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Block {
    /// What is evaluated first, in order.
    pub(crate) sets: Vec<(Variable, ValueId)>,
    pub(crate) test: Test,
    /// Where to go if the test holds.
    pub(crate) yes: Target,
    /// Where to go if it does not.
    pub(crate) no: Target,
    /// Which predicate of the text it is of, if the filter is to report that: see [`Graph::predicates`].
    pub(crate) predicate: Option<u32>,
}

impl Block {
    /// One of no predicate of the text.
    pub(crate) fn new(sets: Vec<(Variable, ValueId)>, test: Test, yes: Target, no: Target) -> Block {
        Block { sets, test, yes, no, predicate: None }
    }
}

/// What a block tests.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Test {
    Compare(Relation, ValueId, ValueId),
    /// A value is one of a set.
    Member(ValueId, Arc<Intervals>),
    /// Values are the words of a key that is one of a set. Each is read only if those before it are the beginning of a member.
    Among(Vec<ValueId>, Members),
    /// A key, word by word, is in a map that user space changes.
    Lookup(Lookup),
    /// The chain of headers that begins at `start` reaches a protocol.
    Chain(Chain),
}

impl Test {
    /// The values that it evaluates.
    pub(crate) fn values(&self) -> Vec<ValueId> {
        match self {
            Test::Compare(_, a, b) => vec![*a, *b],
            Test::Member(value, _) => vec![*value],
            Test::Among(words, _) => words.clone(),
            Test::Lookup(lookup) => lookup.key.clone(),
            Test::Chain(_) => Vec::new(),
        }
    }
}

/// A question to a map: what it holds may be other by the next question.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lookup {
    /// An index of [`Graph::maps`].
    pub(crate) map: usize,
    /// The key's words, as many as [`crate::updatable::Field::words`] has.
    pub(crate) key: Vec<ValueId>,
}

/// `protochain`: header by header until one is of the wanted protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Chain {
    /// The chain of an IPv6 packet; otherwise of an IPv4 packet.
    pub(crate) is_ip6: bool,
    /// Where the IP header stands.
    pub(crate) start: u32,
    pub(crate) protocol: u32,
}

/// A filter as a graph. Without loops: a block comes before those that it goes to.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) values: Values,
    pub(crate) blocks: Vec<Block>,
    pub(crate) entry: Target,
    /// How many variables there are.
    pub(crate) variables: u32,
    /// Sets that user space changes.
    pub(crate) maps: Vec<SetMap>,
    /// How many predicates the text has, if the filter is to report in which of them the way of a packet ends; otherwise 0.
    pub(crate) predicates: u32,
}

/// A condition that is being built: an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Condition(usize);

#[derive(Clone, Debug)]
enum Part {
    Block(Vec<(Variable, ValueId)>, Test, Option<u32>),
    And(Condition, Condition),
    Or(Condition, Condition),
    Not(Condition),
    /// The second if the first holds, otherwise the third.
    Choice(Condition, Condition, Condition),
}

/// Builds a graph from conditions, each of which is used once.
#[derive(Clone, Default, Debug)]
pub(crate) struct Builder {
    pub(crate) values: Values,
    /// Sets that user space changes.
    pub(crate) maps: Vec<SetMap>,
    /// Which predicate of the text the next tests are of, if the filter is to report that.
    pub(crate) predicate: Option<u32>,
    parts: Vec<Part>,
    variables: u32,
}

impl Builder {
    fn test(&mut self, sets: Vec<(Variable, ValueId)>, test: Test) -> Condition {
        self.part(Part::Block(sets, test, self.predicate))
    }

    fn part(&mut self, part: Part) -> Condition {
        self.parts.push(part);
        Condition(self.parts.len() - 1)
    }

    /// A new variable.
    pub(crate) fn variable(&mut self) -> Variable {
        self.variables += 1;
        Variable(self.variables - 1)
    }

    /// What a variable holds.
    pub(crate) fn read(&mut self, v: Variable) -> ValueId {
        self.values.intern(Value::Variable(v))
    }

    pub(crate) fn compare(&mut self, relation: Relation, a: ValueId, b: ValueId) -> Condition {
        self.test(Vec::new(), Test::Compare(relation, a, b))
    }

    pub(crate) fn compare_with(&mut self, relation: Relation, a: ValueId, n: u32) -> Condition {
        let n = self.values.constant(n);
        self.compare(relation, a, n)
    }

    /// A value is one of a set.
    pub(crate) fn member(&mut self, value: ValueId, set: Arc<Intervals>) -> Condition {
        self.test(Vec::new(), Test::Member(value, set))
    }

    /// The words of a key are those of one of a set.
    pub(crate) fn among(&mut self, words: Vec<ValueId>, members: Members) -> Condition {
        self.test(Vec::new(), Test::Among(words, members))
    }

    /// A key is in a map that user space changes.
    pub(crate) fn lookup(&mut self, map: usize, key: Vec<ValueId>) -> Condition {
        self.test(Vec::new(), Test::Lookup(Lookup { map, key }))
    }

    pub(crate) fn chain(&mut self, chain: Chain) -> Condition {
        self.test(Vec::new(), Test::Chain(chain))
    }

    /// Sets variables, then compares.
    pub(crate) fn set_and_compare(
        &mut self,
        sets: Vec<(Variable, ValueId)>,
        relation: Relation,
        a: ValueId,
        b: ValueId,
    ) -> Condition {
        self.test(sets, Test::Compare(relation, a, b))
    }

    /// Sets variables and holds.
    pub(crate) fn set(&mut self, sets: Vec<(Variable, ValueId)>) -> Condition {
        let zero = self.values.constant(0);
        self.set_and_compare(sets, Relation::Equal, zero, zero)
    }

    /// Sets variables before the first block of `condition` tests.
    pub(crate) fn set_before(&mut self, condition: Condition, sets: Vec<(Variable, ValueId)>) {
        let mut at = condition;
        loop {
            match &mut self.parts[at.0] {
                Part::Block(before, ..) => {
                    before.splice(0..0, sets);
                    return;
                }
                Part::And(a, _) | Part::Or(a, _) | Part::Not(a) | Part::Choice(a, ..) => at = *a,
            }
        }
    }

    /// Holds always, or never.
    pub(crate) fn always(&mut self, holds: bool) -> Condition {
        let (zero, other) = (self.values.constant(0), self.values.constant(u32::from(!holds)));
        self.compare(Relation::Equal, other, zero)
    }

    pub(crate) fn and(&mut self, a: Condition, b: Condition) -> Condition {
        self.part(Part::And(a, b))
    }

    pub(crate) fn or(&mut self, a: Condition, b: Condition) -> Condition {
        self.part(Part::Or(a, b))
    }

    pub(crate) fn not(&mut self, a: Condition) -> Condition {
        self.part(Part::Not(a))
    }

    /// `then` if `a` holds, otherwise `other`.
    pub(crate) fn choice(&mut self, a: Condition, then: Condition, other: Condition) -> Condition {
        self.part(Part::Choice(a, then, other))
    }

    /// All of some conditions, in order.
    pub(crate) fn all(&mut self, conditions: impl IntoIterator<Item = Condition>) -> Option<Condition> {
        conditions.into_iter().reduce(|a, b| self.and(a, b))
    }

    /// Any of some conditions, in order.
    pub(crate) fn any(&mut self, conditions: impl IntoIterator<Item = Condition>) -> Option<Condition> {
        conditions.into_iter().reduce(|a, b| self.or(a, b))
    }

    /// Any of some conditions, in order; of none, one that never holds.
    pub(crate) fn any_or_never(&mut self, conditions: impl IntoIterator<Item = Condition>) -> Condition {
        self.any(conditions).unwrap_or_else(|| self.always(false))
    }

    /// The graph that accepts what `root` holds for.
    ///
    /// Conditions stand behind their operands, so that one way through them from the back gives each its two targets, and none is
    /// visited by recursion: there may be a million.
    pub(crate) fn finish(self, root: Condition) -> Graph {
        let Builder { values, maps, parts, variables, .. } = self;
        // The first block of each part.
        let mut first: Vec<usize> = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            first.push(match part {
                Part::Block(..) => i,
                Part::And(a, _) | Part::Or(a, _) | Part::Not(a) | Part::Choice(a, ..) => first[a.0],
            });
        }
        let mut targets: Vec<Option<(Target, Target)>> = vec![None; parts.len()];
        targets[root.0] = Some((Target::Accept, Target::Reject));
        let mut used: Vec<usize> = Vec::new();
        for (i, part) in parts.iter().enumerate().rev() {
            let Some((yes, no)) = targets[i] else { continue };
            match part {
                Part::Block(..) => used.push(i),
                Part::And(a, b) => {
                    targets[b.0] = Some((yes, no));
                    targets[a.0] = Some((Target::Block(first[b.0]), no));
                }
                Part::Or(a, b) => {
                    targets[b.0] = Some((yes, no));
                    targets[a.0] = Some((yes, Target::Block(first[b.0])));
                }
                Part::Not(a) => targets[a.0] = Some((no, yes)),
                Part::Choice(a, b, c) => {
                    targets[b.0] = Some((yes, no));
                    targets[c.0] = Some((yes, no));
                    targets[a.0] = Some((Target::Block(first[b.0]), Target::Block(first[c.0])));
                }
            }
        }
        // In the order of the conditions a block comes before those that it goes to only if operands were built from left to
        // right, which not all were: by depth.
        let entry = Target::Block(first[root.0]);
        let mut graph = Graph { values, blocks: Vec::with_capacity(used.len()), entry, variables, maps, predicates: 0 };
        let mut place = vec![usize::MAX; parts.len()];
        let next = |part: usize| {
            let (yes, no) = targets[part].unwrap_or((Target::Reject, Target::Reject));
            [yes, no].into_iter().filter_map(|target| match target {
                Target::Block(next) => Some(next),
                _ => None,
            })
        };
        for part in reverse_post_order(parts.len(), first[root.0], next) {
            place[part] = graph.blocks.len();
            let Part::Block(sets, test, predicate) = &parts[part] else { continue };
            let Some((yes, no)) = targets[part] else { continue };
            graph.blocks.push(Block { sets: sets.clone(), test: test.clone(), yes, no, predicate: *predicate });
        }
        let placed = |t: Target| match t {
            Target::Block(i) => Target::Block(place[i]),
            t => t,
        };
        for block in &mut graph.blocks {
            (block.yes, block.no) = (placed(block.yes), placed(block.no));
        }
        graph.entry = placed(graph.entry);
        graph
    }
}

impl Graph {
    /// A graph that gives one answer for all packets.
    pub(crate) fn constant(accept: bool) -> Graph {
        let entry = if accept { Target::Accept } else { Target::Reject };
        Graph { values: Values::default(), blocks: Vec::new(), entry, variables: 0, maps: Vec::new(), predicates: 0 }
    }

    /// Puts blocks before the entry. In their targets `Block(i)` is the i-th of them, and `Block(blocks.len())` the old entry.
    pub(crate) fn prepend(&mut self, blocks: Vec<Block>) {
        let n = blocks.len();
        if n == 0 {
            return;
        }
        let shifted = |t: Target| match t {
            Target::Block(i) => Target::Block(i + n),
            t => t,
        };
        let entry = shifted(self.entry);
        for block in &mut self.blocks {
            (block.yes, block.no) = (shifted(block.yes), shifted(block.no));
        }
        let mut all = blocks;
        for block in &mut all {
            for target in [&mut block.yes, &mut block.no] {
                if *target == Target::Block(n) {
                    *target = entry;
                }
            }
        }
        all.append(&mut self.blocks);
        self.blocks = all;
        self.entry = Target::Block(0);
    }
}
