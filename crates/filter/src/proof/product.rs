//! Two graphs walked side by side: on every way both must come to the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use rustc_hash::FxHashSet;

use super::error::Unproven;
use super::graph::{Node, NodeId, Nodes};
use super::term::{Term, TermId, Terms};
use crate::intervals::Intervals;
use crate::language::Binary;
use crate::tuples::{Keys, Tuples};
use crate::value::apply;

/// What is known of a packet on a way: the set that each term is in, by term.
type Facts = Vec<(TermId, Rc<Intervals>)>;

/// Both graphs come to the same for every packet.
///
/// Where a place is come to in many ways, what is known on all of them is tried first; if that is too little, everything.
///
/// # Errors
/// If there is a way on which they do not, or there are too many ways.
pub(super) fn equal(
    terms: &Terms,
    nodes: &Nodes,
    first: NodeId,
    second: NodeId,
    effort: Effort,
) -> Result<(), Unproven> {
    /// Ways to one place that are kept apart at first.
    const APART: usize = 8;
    let walk = |apart| {
        let open = BTreeMap::default();
        Walk { graphs: Graphs { terms, nodes }, open, left: effort.steps() }.equal(first, second, apart)
    };
    walk(APART).or_else(|why| match (effort, why) {
        (Effort::Little, Unproven::TooLarge) => Err(Unproven::TooLarge),
        _ => walk(usize::MAX),
    })
}

/// How long a proof is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// A third of a second.
    Little,
    /// As long as there are not too many ways: seconds.
    All,
}

impl Effort {
    /// Answers that may be looked at, each with all that is known before it.
    fn steps(self) -> usize {
        match self {
            Effort::Little => 300_000,
            Effort::All => usize::MAX,
        }
    }
}

#[derive(Clone, Copy)]
struct Graphs<'a> {
    terms: &'a Terms,
    nodes: &'a Nodes,
}

struct Walk<'a> {
    graphs: Graphs<'a>,
    /// What is known on each way to a place, which is two nodes. A node's number is larger than those of all that it goes on to,
    /// so that all ways to the place with the largest numbers are known.
    open: BTreeMap<(u64, NodeId, NodeId), FxHashSet<Facts>>,
    /// What is left of [`Effort::steps`].
    left: usize,
}

impl Walk<'_> {
    fn equal(mut self, first: NodeId, second: NodeId, apart: usize) -> Result<(), Unproven> {
        /// More ways than that take seconds.
        const MOST: usize = 400_000;
        let mut walked = 0;
        self.come_to(first, second, Facts::new())?;
        while let Some(((_, first, second), mut ways)) = self.open.pop_last() {
            if ways.len() > apart {
                ways = ways.into_iter().reduce(|a, b| joined(&a, &b)).into_iter().collect();
            }
            walked += ways.len();
            if walked > MOST {
                return Err(Unproven::TooLarge);
            }
            // The first is followed where it still asks, otherwise the second.
            let graphs = self.graphs;
            let nodes = graphs.nodes;
            let (asking, is_first) = match nodes.get(first) {
                Node::Ask { .. } => (first, true),
                _ => (second, false),
            };
            let Node::Ask { term, parts } = nodes.get(asking) else { continue };
            for facts in ways {
                let work = parts.len() * (1 + facts.len());
                self.left = self.left.checked_sub(work).ok_or(Unproven::TooLarge)?;
                let possible = graphs.possible(*term, &facts);
                for (set, to) in parts {
                    let inside = possible.intersection(set);
                    if inside.is_empty() {
                        continue;
                    }
                    let (first, second) = if is_first { (*to, second) } else { (first, *to) };
                    self.come_to(first, second, with_fact(&facts, *term, inside))?;
                }
            }
        }
        Ok(())
    }

    /// Notes a place that is come to, unless there is nothing to see from there on.
    fn come_to(&mut self, first: NodeId, second: NodeId, mut facts: Facts) -> Result<(), Unproven> {
        let graphs = self.graphs;
        let nodes = graphs.nodes;
        let (first, second) = (self.graphs.forward(first, &facts), self.graphs.forward(second, &facts));
        if first == second || nodes.come_to_one_end(first, second) {
            return Ok(());
        }
        if first.is_end() && second.is_end() {
            return Err(self.graphs.difference(first, &facts));
        }
        // What can matter from there on.
        let (a, b) = (nodes.asked(first), nodes.asked(second));
        facts.retain(|(term, _)| a.binary_search(term).is_ok() || b.binary_search(term).is_ok());
        self.open.entry((first.number() + second.number(), first, second)).or_default().insert(facts);
        Ok(())
    }
}

impl Graphs<'_> {
    /// The first node from one on whose question has more than one answer.
    fn forward(&self, mut at: NodeId, facts: &Facts) -> NodeId {
        while let Node::Ask { term, parts } = self.nodes.get(at) {
            let possible = self.possible(*term, facts);
            let mut open = parts.iter().filter(|(set, _)| match possible.single() {
                Some(n) => set.contains(n),
                None => !possible.is_disjoint(set),
            });
            match (open.next(), open.next()) {
                (Some((_, only)), None) => at = *only,
                _ => break,
            }
        }
        at
    }

    /// The numbers that a term can be, or more.
    fn possible<'a>(&'a self, term: TermId, facts: &'a Facts) -> Cow<'a, Intervals> {
        /// How deep it is looked at what a term is computed of: terms of headers behind headers share theirs, and going through all
        /// would take twice as long with each.
        const DEPTH: usize = 6;
        self.possible_within(term, facts, DEPTH)
    }

    fn possible_within<'a>(&'a self, term: TermId, facts: &'a Facts, depth: usize) -> Cow<'a, Intervals> {
        let known = match facts.binary_search_by_key(&term, |(t, _)| *t) {
            Ok(i) => Cow::Borrowed(&*facts[i].1),
            Err(_) => Cow::Owned(self.terms.possible(term)),
        };
        let computed = match self.terms.get(term) {
            _ if depth == 0 => None,
            Term::Binary(op, a, b) => {
                let computed = self.computed((a, b), facts, depth - 1, |x, y| apply(op, x, y));
                match (op, self.terms.as_constant(b)) {
                    (Binary::And, Some(mask)) => computed.or_else(|| self.masked(a, mask, facts, depth - 1)),
                    _ => computed,
                }
            }
            Term::Among(table, words) => self.among(table, &words, facts, depth - 1),
            Term::IsGreater(a, b) => self.computed((a, b), facts, depth - 1, |x, y| Some(u32::from(x > y))),
            _ => None,
        };
        match computed {
            Some(computed) => Cow::Owned(computed.intersection(&known)),
            None => known,
        }
    }

    /// Whether words are those of a key: known if none of those that they can be is one, or each.
    fn among(&self, table: usize, words: &[Option<TermId>], facts: &Facts, depth: usize) -> Option<Intervals> {
        let of = |word: &TermId| self.possible_within(*word, facts, depth);
        let possible: Vec<Cow<Intervals>> = words.iter().flatten().map(of).collect();
        match found(self.terms.keys(table), &possible) {
            Found::None => Some(Intervals::one(0)),
            Found::All => Some(Intervals::one(1)),
            Found::Some => None,
        }
    }

    /// The numbers under a mask of upper bits, and others between them.
    fn masked(&self, a: TermId, mask: u32, facts: &Facts, depth: usize) -> Option<Intervals> {
        let is_upper = mask.leading_ones() + mask.trailing_zeros() == 32;
        let of = |set: &Intervals| set.as_slice().iter().map(|(low, high)| (low & mask, high & mask)).collect();
        is_upper.then(|| Intervals::of(of(&self.possible_within(a, facts, depth))))
    }

    /// What comes of two terms that can be few numbers.
    fn computed(
        &self,
        (a, b): (TermId, TermId),
        facts: &Facts,
        depth: usize,
        f: impl Fn(u32, u32) -> Option<u32>,
    ) -> Option<Intervals> {
        const FEW: u64 = 64;
        let (a, b) = (self.possible_within(a, facts, depth), self.possible_within(b, facts, depth));
        if a.count().saturating_mul(b.count()) > FEW {
            return None;
        }
        let results = a.members().flat_map(|x| b.members().filter_map(|y| f(x, y)).collect::<Vec<u32>>());
        Some(Intervals::of(results.map(|n| (n, n)).collect()))
    }

    /// What is known where both come to different ends.
    fn difference(&self, first: NodeId, facts: &Facts) -> Unproven {
        const MOST: usize = 16;
        let facts = facts.iter().take(MOST).map(|(term, set)| format!("{} in {set}", self.terms.text(*term)));
        let what = if first == NodeId::ACCEPT { "accepts" } else { "rejects" };
        Unproven::Differ { what, facts: facts.collect::<Vec<String>>().join(", ") }
    }
}

/// How many of some words are keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    None,
    Some,
    All,
}

/// Whether some or all ways to choose a possible number for each word are keys.
fn found(keys: &Tuples, possible: &[Cow<Intervals>]) -> Found {
    // More than there are keys cannot all be some. Which ones are, need then not be counted.
    let all = possible.iter().fold(1u64, |all, set| all.saturating_mul(set.count()));
    let most = if all <= keys.len() as u64 { all } else { 1 };
    match count_up_to(most, keys.keys(), 0, possible) {
        0 => Found::None,
        n if n == all => Found::All,
        _ => Found::Some,
    }
}

/// How many keys, which are in order and equal up to `word`, go on with numbers that are possible: `most`, if there are more.
fn count_up_to(most: u64, keys: Keys, word: usize, possible: &[Cow<Intervals>]) -> u64 {
    let Some(set) = possible.get(word) else { return (keys.len() as u64).min(most) };
    let mut n = 0;
    // From number to number that is both possible and a key's: what is not is leapt over on either side.
    let (mut keys, mut ranges) = (keys, set.as_slice());
    while n < most {
        let Some(next) = keys.word(word) else { break };
        ranges = &ranges[ranges.partition_point(|(_, high)| *high < next)..];
        let Some((low, _)) = ranges.first() else { break };
        if *low > next {
            keys = keys.split(word, *low).1;
            continue;
        }
        let same = match next.checked_add(1) {
            Some(behind) => {
                let (same, rest) = keys.split(word, behind);
                keys = rest;
                same
            }
            None => std::mem::take(&mut keys),
        };
        n += count_up_to(most - n, same, word + 1, possible);
    }
    n
}

fn with_fact(facts: &Facts, term: TermId, set: Intervals) -> Facts {
    let mut facts = facts.clone();
    match facts.binary_search_by_key(&term, |(t, _)| *t) {
        Ok(i) => facts[i].1 = Rc::new(set),
        Err(i) => facts.insert(i, (term, Rc::new(set))),
    }
    facts
}

/// What both know.
fn joined(a: &Facts, b: &Facts) -> Facts {
    let both = |(term, set): &(TermId, Rc<Intervals>)| {
        let i = b.binary_search_by_key(term, |(t, _)| *t).ok()?;
        let other = &b[i].1;
        Some((*term, if set == other { set.clone() } else { Rc::new(set.union(other)) }))
    };
    a.iter().filter_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_words_can_be_is_compared_with_all_keys() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut seen = FxHashSet::default();
        for _ in 0..20_000 {
            let width = random.usize(1..4);
            // Numbers at both ends, so that intervals wrap nowhere.
            let number = |random: &mut fastrand::Rng| random.u32(0..4).wrapping_sub(2);
            let keys = (0..random.usize(1..12)).map(|_| (0..width).map(|_| number(&mut random)).collect());
            let keys = Tuples::of(width, keys.collect::<Vec<Vec<u32>>>());
            let possible: Vec<Intervals> = (0..width)
                .map(|_| match random.u8(0..8) {
                    0 => Intervals::range(0, u32::MAX),
                    1 => Intervals::one(number(&mut random)).complement(),
                    _ => Intervals::of((0..random.u8(0..4)).map(|_| number(&mut random)).map(|n| (n, n)).collect()),
                })
                .collect();
            let are = keys.iter().filter(|key| key.iter().zip(&possible).all(|(n, set)| set.contains(*n))).count();
            let all: u128 = possible.iter().map(|set| u128::from(set.count())).product();
            let wanted = match are as u128 {
                0 => Found::None,
                n if n == all => Found::All,
                _ => Found::Some,
            };
            let sets: Vec<Cow<Intervals>> = possible.iter().map(Cow::Borrowed).collect();
            assert_eq!(found(&keys, &sets), wanted, "{keys:?} {possible:?}");
            seen.insert((width, wanted as u8));
        }
        assert_eq!(seen.len(), 9);
    }
}
