//! A graph without variables: of each block one copy for all that its variables may hold.
//!
//! Where a header begins may depend on the way that was taken (a tag, a link's header of varying length). Such a place is a variable, which
//! a block sets. With the variables that are read from a block on replaced by what they hold, graphs with and without them are optimized
//! alike.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::{Block, Graph, Lookup, Target, Test};
use crate::need::needs;
use crate::value::{Value, ValueId, Values, Variable};

/// What variables hold, in order; those without an entry hold 0.
type Held = Vec<(Variable, ValueId)>;

/// The same graph without variables. What is left of a block's sets are the values for which something must be there.
///
/// `None`: that takes more than so many blocks.
pub(crate) fn without_variables(graph: &Graph, most: usize) -> Option<Graph> {
    let mut values = graph.values.clone();
    let read = read_later(graph);
    // Per block its copies, by what variables hold there. A block comes before those that it goes to, so that all are known when it is
    // its turn.
    let mut copies: Vec<BTreeMap<Held, usize>> = vec![BTreeMap::new(); graph.blocks.len()];
    let mut blocks: Vec<Block> = Vec::new();
    // Where blocks go: a block, and which of its copies. They have no place yet.
    let mut targets: Vec<[(Target, usize); 2]> = Vec::new();
    let mut first = Vec::with_capacity(graph.blocks.len());
    if let Target::Block(entry) = graph.entry {
        copies[entry].insert(Held::new(), 0);
    }
    for (i, block) in graph.blocks.iter().enumerate() {
        first.push(blocks.len());
        // Copies stand in the order in which they were found.
        let mut here: Vec<(Held, usize)> = std::mem::take(&mut copies[i]).into_iter().collect();
        here.sort_by_key(|(_, number)| *number);
        if blocks.len() + here.len() > most {
            return None;
        }
        for (held, _) in here {
            let mut place = Place { held, known: FxHashMap::default() };
            let mut sets = Vec::new();
            for (variable, value) in &block.sets {
                let value = place.resolved(&mut values, *value);
                let mut all = Vec::new();
                needs(&values, value, &mut all);
                if !all.is_empty() {
                    sets.push((*variable, value));
                }
                place.set(*variable, value);
            }
            let test = place.resolved_test(&mut values, &block.test);
            targets.push([block.yes, block.no].map(|to| {
                let Target::Block(next) = to else { return (to, 0) };
                let there = place.held.iter().filter(|(v, _)| read[next].binary_search(v).is_ok()).copied().collect();
                let number = copies[next].len();
                (to, *copies[next].entry(there).or_insert(number))
            }));
            blocks.push(Block { sets, test, ..block.clone() });
        }
    }
    let placed = |(to, copy): (Target, usize)| match to {
        Target::Block(i) => Target::Block(first[i] + copy),
        to => to,
    };
    for (block, [yes, no]) in blocks.iter_mut().zip(targets) {
        (block.yes, block.no) = (placed(yes), placed(no));
    }
    let entry = placed((graph.entry, 0));
    Some(Graph { values, blocks, entry, variables: 0, maps: graph.maps.clone(), predicates: graph.predicates })
}

/// What variables hold at a place, and what values come to there.
struct Place {
    held: Held,
    /// Values that were looked at: those of headers behind headers share theirs, and to go through all takes twice as long with each.
    known: FxHashMap<ValueId, ValueId>,
}

impl Place {
    fn set(&mut self, variable: Variable, value: ValueId) {
        self.known.clear();
        match self.held.binary_search_by_key(&variable, |(v, _)| *v) {
            Ok(i) => self.held[i].1 = value,
            Err(i) => self.held.insert(i, (variable, value)),
        }
    }

    /// A value with variables replaced by what they hold.
    fn resolved(&mut self, values: &mut Values, value: ValueId) -> ValueId {
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        let found = match values.get(value) {
            Value::Variable(v) => {
                let of = self.held.binary_search_by_key(&v, |(v, _)| *v).ok().map(|i| self.held[i].1);
                of.unwrap_or_else(|| values.constant(0))
            }
            Value::Load { base: Some(base), offset, size } => {
                let base = Some(self.resolved(values, base));
                values.intern(Value::Load { base, offset, size })
            }
            Value::Binary(op, a, b) => {
                let (a, b) = (self.resolved(values, a), self.resolved(values, b));
                values.binary(op, a, b)
            }
            Value::Negate(a) => {
                let a = self.resolved(values, a);
                values.intern(Value::Negate(a))
            }
            Value::IsGreater(a, b) => {
                let (a, b) = (self.resolved(values, a), self.resolved(values, b));
                values.intern(Value::IsGreater(a, b))
            }
            _ => value,
        };
        self.known.insert(value, found);
        found
    }

    fn resolved_test(&mut self, values: &mut Values, test: &Test) -> Test {
        let mut of = |value: &ValueId| self.resolved(values, *value);
        match test {
            Test::Compare(relation, a, b) => Test::Compare(*relation, of(a), of(b)),
            Test::Member(value, set) => Test::Member(of(value), set.clone()),
            Test::Among(words, members) => Test::Among(words.iter().map(of).collect(), members.clone()),
            Test::Lookup(Lookup { map, key }) => Test::Lookup(Lookup { map: *map, key: key.iter().map(of).collect() }),
            Test::Chain(chain) => Test::Chain(*chain),
        }
    }
}

/// Per block the variables that are read there or later before they are set, in order.
fn read_later(graph: &Graph) -> Vec<Vec<Variable>> {
    let mut all: Vec<Vec<Variable>> = vec![Vec::new(); graph.blocks.len()];
    for (i, block) in graph.blocks.iter().enumerate().rev() {
        let of = |to: Target| match to {
            Target::Block(next) => all[next].as_slice(),
            _ => &[],
        };
        let mut read = [of(block.yes), of(block.no)].concat();
        let read_by = |read: &mut Vec<Variable>, value| variables(&graph.values, value, read);
        block.test.values().into_iter().for_each(|value| read_by(&mut read, value));
        for (variable, value) in block.sets.iter().rev() {
            read.retain(|v| v != variable);
            read_by(&mut read, *value);
        }
        read.sort_unstable();
        read.dedup();
        all[i] = read;
    }
    all
}

/// Adds the variables that a value is computed of.
fn variables(values: &Values, value: ValueId, out: &mut Vec<Variable>) {
    let (mut stack, mut seen) = (vec![value], FxHashSet::default());
    while let Some(value) = stack.pop() {
        if let Value::Variable(v) = values.get(value) {
            out.push(v);
        } else if seen.insert(value) {
            stack.extend(values.operands(value));
        }
    }
}
