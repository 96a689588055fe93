//! What is asked for from a block on: of what is known only that can matter there.

use std::rc::Rc;

use super::Walk;
use super::known::Known;
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
