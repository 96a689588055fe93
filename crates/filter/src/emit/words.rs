//! Keys of several words: each word is read only if those before it are the beginning of a member.

use rustc_hash::FxHashSet;

use super::Emitter;
use super::shape::segments;
use crate::intervals::Intervals;
use crate::need::{Need, needs};
use crate::program::{BlockId, Comparison, End, Operand, Operation, Register};
use crate::tables::Table;
use crate::tuples::Tuples;
use crate::value::ValueId;

impl Emitter<'_> {
    /// A lookup for each word, in a table of the beginnings of keys up to there. What all members have in common is compared. The
    /// first word is computed.
    pub(super) fn levels(
        &mut self,
        words: &[ValueId],
        members: &Tuples,
        (yes, no): (BlockId, BlockId),
        mut known: FxHashSet<ValueId>,
    ) -> Option<End> {
        /// Fewer are compared.
        const FEW: usize = 16;
        if members.len() < FEW {
            return None;
        }
        // By word what is done before it is asked for.
        let mut before: Vec<Vec<Operation>> = vec![Vec::new()];
        for word in &words[1..] {
            before.push(self.read(*word, &mut known));
        }
        let keys: Vec<Register> = words.iter().map(|word| Emitter::register(*word)).collect();
        // How many words all members have in common.
        let common = (1..=words.len()).take_while(|n| members.beginnings(*n).len() == 1).count();
        let mut yes = yes;
        for word in (0..words.len()).rev() {
            let beginnings = members.beginnings(word + 1);
            let end = if word < common {
                let n = beginnings.iter().next().map_or(0, |key| key[word]);
                End::Branch { a: keys[word], comparison: Comparison::Equal(Operand::Constant(n)), yes, no }
            } else if word == common {
                let set = Intervals::of(beginnings.iter().map(|key| (key[word], key[word])).collect());
                self.set(words[word], &[(set, yes)], no)
            } else {
                let distinct = beginnings.iter().map(|key| key[common..].to_vec());
                let table = self.tuples(&Tuples::of(word + 1 - common, distinct))?;
                End::Lookup { keys: keys[common..=word].to_vec(), table, yes, no }
            };
            if word == 0 {
                return Some(end);
            }
            yes = self.block(std::mem::take(&mut before[word]), end);
        }
        None
    }

    /// A table of keys.
    fn tuples(&mut self, members: &Tuples) -> Option<usize> {
        let table = Table::tuples(members).filter(|table| table.is_of_tuples(members))?;
        let known = self.tables.iter().position(|other| *other == table);
        Some(known.unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        }))
    }

    /// Comparisons without tables. The first word is computed.
    pub(super) fn branches(
        &mut self,
        words: &[ValueId],
        members: &Tuples,
        ends: (BlockId, BlockId),
        known: &FxHashSet<ValueId>,
    ) -> End {
        self.branches_behind(words, members, &mut Vec::new(), ends, known)
    }

    /// Comparisons for the members that begin with some words.
    fn branches_behind(
        &mut self,
        words: &[ValueId],
        members: &Tuples,
        first: &mut Vec<u32>,
        (yes, no): (BlockId, BlockId),
        known: &FxHashSet<ValueId>,
    ) -> End {
        let word = first.len();
        let is_last = word + 1 == words.len();
        let numbers = members.next_words(first);
        if is_last {
            let set = Intervals::of(numbers.into_iter().map(|n| (n, n)).collect());
            return self.set(words[word], &[(set, yes)], no);
        }
        let mut cases = Vec::with_capacity(numbers.len());
        for n in numbers {
            let mut known = known.clone();
            let operations = self.read(words[word + 1], &mut known);
            first.push(n);
            let end = self.branches_behind(words, members, first, (yes, no), &known);
            first.pop();
            cases.push((Intervals::one(n), self.block(operations, end)));
        }
        self.set(words[word], &cases, no)
    }

    /// Goes on by the set that a value is in, which is computed.
    fn set(&mut self, value: ValueId, cases: &[(Intervals, BlockId)], default: BlockId) -> End {
        let a = Emitter::register(value);
        if let [(set, to)] = cases
            && let Some(end) = self.lookup(a, set, *to, default)
        {
            return end;
        }
        let segments = segments(cases, default, self.values.greatest(value));
        self.tree(a, &segments, cases)
    }

    /// What computes a value whose bytes may not be there.
    fn read(&mut self, value: ValueId, known: &mut FxHashSet<ValueId>) -> Vec<Operation> {
        let mut wanted = Vec::new();
        needs(self.values, value, &mut wanted);
        let mut operations = Vec::new();
        for need in wanted {
            let operation = match need {
                Need::Bound(base, end) => {
                    Operation::Bound { base: base.map(|b| self.compute(b, known, &mut operations)), end }
                }
                Need::NotZero(value) => Operation::NotZero { register: self.compute(value, known, &mut operations) },
            };
            operations.push(operation);
        }
        self.compute(value, known, &mut operations);
        operations
    }
}
