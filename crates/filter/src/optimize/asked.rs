//! What is asked for from a block on: of what is known only that can matter there.
//!
//! Of a graph with variables it depends on what these hold which values are asked for: a field behind a tag has another place if the
//! tag stands beside the packet. There the answer is found by block and by what the variables hold, whatever the questions come to.

use std::rc::Rc;

use super::known::Known;
use super::{Variables, Walk};
use crate::graph::{Lookup, Target, Test};
use crate::value::{Binary, Value, ValueId};

impl Walk<'_> {
    /// What of the known can matter from a block on.
    pub(super) fn relevant(&self, i: usize, mut known: Known) -> Known {
        if let Some(asked) = self.asked.get(i) {
            known.facts.retain(|(v, _)| asked.binary_search(v).is_ok());
        }
        if let Some(asked) = self.maps_asked.get(i) {
            known.lookups.retain(|(l, _)| asked.contains(l));
        }
        known
    }

    /// The same where it depends on what variables hold which values are asked for.
    pub(super) fn relevant_with(&mut self, i: usize, mut known: Known) -> Known {
        let asked = self.asked_from(i, &known.variables);
        known.facts.retain(|(v, _)| asked.binary_search(v).is_ok());
        if let Some(asked) = self.maps_asked.get(i) {
            known.lookups.retain(|(l, _)| asked.iter().any(|a| a.map == l.map));
        }
        known
    }

    /// Per block the values that are asked for there or later, and the values that tell of these.
    pub(super) fn asked_later(&self) -> Vec<Rc<Vec<ValueId>>> {
        let graph = self.graph;
        let mut all: Vec<Rc<Vec<ValueId>>> = vec![Rc::default(); graph.blocks.len()];
        for (i, block) in graph.blocks.iter().enumerate().rev() {
            let of = |t: Target| match t {
                Target::Block(i) => all[i].clone(),
                _ => Rc::default(),
            };
            let (yes, no) = (of(block.yes), of(block.no));
            let own = self.questions[i].as_ref().map_or_else(Vec::new, |q| self.telling(q.value));
            all[i] = union(&yes, &no, own);
        }
        all
    }

    /// The values that are asked for in a block or later if variables hold this at first, whatever the answers are, and the values that
    /// tell of these.
    fn asked_from(&mut self, i: usize, variables: &Variables) -> Rc<Vec<ValueId>> {
        let key = (i, variables.clone());
        if let Some(asked) = self.asked_with.get(&key) {
            return asked.clone();
        }
        if self.is_over || self.asked_with.len() > self.limits.walks {
            self.is_over = true;
            return Rc::default();
        }
        let block = &self.graph.blocks[i];
        let mut known = Known { variables: key.1, ..Known::default() };
        for (variable, value) in &block.sets {
            let value = self.resolved(*value, &known);
            known.set(*variable, value);
        }
        let asked = match &block.test {
            Test::Compare(relation, a, b) => {
                let (a, b) = (self.resolved(*a, &known), self.resolved(*b, &known));
                Some(self.question(*relation, a, b).value)
            }
            Test::Member(value, _) => Some(self.resolved(*value, &known)),
            Test::Among(..) | Test::Chain(_) | Test::Lookup(_) => None,
        };
        let own = asked.map_or_else(Vec::new, |value| self.telling(value));
        let [yes, no] = [block.yes, block.no].map(|to| match to {
            Target::Block(next) => self.asked_from(next, &known.variables),
            _ => Rc::default(),
        });
        let all = union(&yes, &no, own);
        self.asked_with.insert((i, variables.clone()), all.clone());
        all
    }

    /// A value that is asked for, and the one that may tell of it.
    fn telling(&self, asked: ValueId) -> Vec<ValueId> {
        match self.values.get(asked) {
            Value::Binary(Binary::And, inner, _) => vec![asked, inner],
            _ => vec![asked],
        }
    }

    /// Per block the questions to maps there or later. Without maps: nothing.
    pub(super) fn maps_asked_later(&self) -> Vec<Rc<Vec<Lookup>>> {
        let blocks = &self.graph.blocks;
        if self.graph.maps.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<Rc<Vec<Lookup>>> = vec![Rc::default(); blocks.len()];
        for (i, block) in blocks.iter().enumerate().rev() {
            let mut here: Vec<Lookup> = Vec::new();
            let later = [block.yes, block.no].into_iter().flat_map(|to| match to {
                Target::Block(next) => all[next].to_vec(),
                _ => Vec::new(),
            });
            let own = if let Test::Lookup(lookup) = &block.test { Some(lookup.clone()) } else { None };
            for lookup in later.chain(own) {
                if !here.contains(&lookup) {
                    here.push(lookup);
                }
            }
            all[i] = Rc::new(here);
        }
        all
    }
}

/// All values of three lists, of which the first two are in order; it is, too.
fn union(yes: &Rc<Vec<ValueId>>, no: &Rc<Vec<ValueId>>, own: Vec<ValueId>) -> Rc<Vec<ValueId>> {
    let covers = |all: &[ValueId], some: &[ValueId]| some.iter().all(|v| all.binary_search(v).is_ok());
    if covers(yes, no) && covers(yes, &own) {
        return yes.clone();
    }
    if covers(no, yes) && covers(no, &own) {
        return no.clone();
    }
    let mut merged: Vec<ValueId> = yes.iter().chain(no.iter()).copied().chain(own).collect();
    merged.sort_unstable();
    merged.dedup();
    Rc::new(merged)
}
