//! Instructions with labels as steps that know what comes next: ways that end alike become one.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::post_order::reverse_post_order;
use crate::program::BlockId;

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Label {
    Block(BlockId),
    /// One of the generator's own.
    Own(usize),
}

/// An instruction whose jumps have labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Item<I> {
    Plain(I),
    Branch {
        test: I,
        yes: Label,
        no: Label,
    },
    /// One that ends the program.
    End(I),
    Jump(Label),
    Here(Label),
}

/// An instruction with those that may come next, which have smaller numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step<I> {
    End(I),
    Plain { what: I, next: usize },
    Branch { test: I, yes: usize, no: usize },
}

impl<I> Step<I> {
    /// What may come next.
    pub(crate) fn successors(&self) -> impl DoubleEndedIterator<Item = usize> + use<I> {
        let of = match self {
            Step::End(_) => [None, None],
            Step::Plain { next, .. } => [Some(*next), None],
            Step::Branch { yes, no, .. } => [Some(*yes), Some(*no)],
        };
        of.into_iter().flatten()
    }
}

/// Steps, of which equal ones are the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Steps<I> {
    pub(crate) all: Vec<Step<I>>,
    pub(crate) first: usize,
}

impl<I: Clone + Eq + Hash> Steps<I> {
    /// Ways that end alike become one: what an instruction does depends on what the registers hold, and not on what that is.
    ///
    /// `None` for programs that jump backward.
    pub(crate) fn of(items: &[Item<I>]) -> Option<Steps<I>> {
        let mut labels: FxHashMap<Label, usize> = FxHashMap::default();
        for (i, item) in items.iter().enumerate() {
            if let Item::Here(label) = item {
                labels.insert(*label, i);
            }
        }
        let mut all: Vec<Step<I>> = Vec::new();
        let mut known: FxHashMap<Step<I>, usize> = FxHashMap::default();
        // By item the step that comes there.
        let mut at: Vec<usize> = vec![usize::MAX; items.len() + 1];
        for (i, item) in items.iter().enumerate().rev() {
            let ahead = |label: &Label| labels.get(label).filter(|to| **to > i).map(|to| at[*to]);
            let step = match item {
                Item::Here(_) => {
                    at[i] = at[i + 1];
                    continue;
                }
                Item::Jump(label) => {
                    at[i] = ahead(label)?;
                    continue;
                }
                Item::End(what) => Step::End(what.clone()),
                Item::Plain(what) => Step::Plain { what: what.clone(), next: at[i + 1] },
                Item::Branch { test, yes, no } => match (ahead(yes)?, ahead(no)?) {
                    (yes, no) if yes == no => {
                        at[i] = yes;
                        continue;
                    }
                    (yes, no) => Step::Branch { test: test.clone(), yes, no },
                },
            };
            at[i] = *known.entry(step).or_insert_with_key(|step| {
                all.push(step.clone());
                all.len() - 1
            });
        }
        Some(Steps { all, first: at[0] })
    }

    /// The steps that are reached, each before those that it goes to, ways on in a row where that can be.
    pub(crate) fn order(&self) -> Vec<usize> {
        reverse_post_order(self.all.len(), self.first, |i| self.all[i].successors())
    }
}
