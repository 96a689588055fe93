//! The decision graph: what is left to decide, with the ends of fields that must be there.
//!
//! Where the predicate graph has tests in the order of the text, a decision looks at one value and goes on by which set it is in.
//! Nodes are pure: whatever leads to one, from there on it gives the same verdict. Equal ones are the same.

mod rebuilt;

use rustc_hash::FxHashMap;

use crate::graph::{Chain, Lookup};
use crate::intervals::Intervals;
use crate::tuples::Members;
use crate::value::ValueId;

/// A node: an index of [`Decisions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct DecisionId(pub(crate) u32);

impl DecisionId {
    pub(crate) const REJECT: DecisionId = DecisionId(0);
    pub(crate) const ACCEPT: DecisionId = DecisionId(1);
}

/// A node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Decision {
    Reject,
    Accept,
    /// Rejects a packet whose captured part ends less than `end` bytes behind `base`.
    Bound {
        base: Option<ValueId>,
        end: u64,
        next: DecisionId,
    },
    /// Rejects a packet for which a divisor is 0.
    NotZero {
        value: ValueId,
        next: DecisionId,
    },
    /// The way has come to a predicate of the text, where the filter reports that.
    Note {
        predicate: u32,
        next: DecisionId,
    },
    /// Goes on by what a value is. The sets are disjoint, and no two lead to the same.
    Switch {
        value: ValueId,
        cases: Vec<(Intervals, DecisionId)>,
        default: DecisionId,
    },
    /// Goes on by whether the words of a key are those of a member. Each is read only if those before it are the beginning of one;
    /// a packet that ends before one that is read is rejected. The first is there.
    Among {
        words: Vec<ValueId>,
        members: Members,
        yes: DecisionId,
        no: DecisionId,
    },
    /// Goes on by whether a map that user space changes holds a key, which is there.
    Lookup {
        lookup: Lookup,
        yes: DecisionId,
        no: DecisionId,
    },
    Chain {
        chain: Chain,
        yes: DecisionId,
        no: DecisionId,
    },
}

impl Decision {
    /// Where it may go on.
    pub(crate) fn successors(&self) -> Vec<DecisionId> {
        match self {
            Decision::Reject | Decision::Accept => Vec::new(),
            Decision::Bound { next, .. } | Decision::NotZero { next, .. } | Decision::Note { next, .. } => vec![*next],
            Decision::Switch { cases, default, .. } => cases.iter().map(|(_, d)| *d).chain([*default]).collect(),
            Decision::Among { yes, no, .. } | Decision::Chain { yes, no, .. } | Decision::Lookup { yes, no, .. } => {
                vec![*yes, *no]
            }
        }
    }
}

/// Nodes, each of which stands behind those that it goes on to.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    all: Vec<Decision>,
    known: FxHashMap<Decision, DecisionId>,
    /// Questions about one value come together behind others.
    reorders: bool,
}

impl Decisions {
    /// None yet but the ends.
    pub(crate) fn new(reorders: bool) -> Decisions {
        Decisions { all: vec![Decision::Reject, Decision::Accept], known: FxHashMap::default(), reorders }
    }

    pub(crate) fn get(&self, id: DecisionId) -> &Decision {
        &self.all[id.0 as usize]
    }

    fn intern(&mut self, decision: Decision) -> DecisionId {
        if let Some(id) = self.known.get(&decision) {
            return *id;
        }
        let id = DecisionId(self.all.len() as u32);
        self.all.push(decision.clone());
        self.known.insert(decision, id);
        id
    }

    /// The packet must reach `end` bytes behind `base`.
    pub(crate) fn bound(&mut self, base: Option<ValueId>, end: u64, next: DecisionId) -> DecisionId {
        match self.get(next) {
            _ if next == DecisionId::REJECT => next,
            Decision::Bound { base: b, end: e, .. } if *b == base && *e >= end => next,
            _ => self.intern(Decision::Bound { base, end, next }),
        }
    }

    /// A divisor must not be 0.
    pub(crate) fn not_zero(&mut self, value: ValueId, next: DecisionId) -> DecisionId {
        if next == DecisionId::REJECT { next } else { self.intern(Decision::NotZero { value, next }) }
    }

    /// Notes a predicate, unless another is noted before anything can end the way.
    pub(crate) fn note(&mut self, predicate: u32, next: DecisionId) -> DecisionId {
        match self.get(next) {
            Decision::Note { .. } => next,
            _ => self.intern(Decision::Note { predicate, next }),
        }
    }

    /// Whether words are those of a member.
    pub(crate) fn among(
        &mut self,
        words: Vec<ValueId>,
        members: Members,
        yes: DecisionId,
        no: DecisionId,
    ) -> DecisionId {
        // Also if both are the same: the packet may end before a word.
        if yes == DecisionId::REJECT && no == DecisionId::REJECT {
            return DecisionId::REJECT;
        }
        self.intern(Decision::Among { words, members, yes, no })
    }

    pub(crate) fn chain(&mut self, chain: Chain, yes: DecisionId, no: DecisionId) -> DecisionId {
        // Also if both are the same: the chain may run off the packet.
        if yes == DecisionId::REJECT && no == DecisionId::REJECT {
            return DecisionId::REJECT;
        }
        self.intern(Decision::Chain { chain, yes, no })
    }

    /// A map is asked, unless that makes no difference.
    pub(crate) fn lookup(&mut self, lookup: Lookup, yes: DecisionId, no: DecisionId) -> DecisionId {
        if yes == no { yes } else { self.intern(Decision::Lookup { lookup, yes, no }) }
    }

    /// `yes` if the value is in `set`, otherwise `no`.
    pub(crate) fn switch(&mut self, value: ValueId, set: &Intervals, yes: DecisionId, no: DecisionId) -> DecisionId {
        let no = self.absorb(value, set, yes, no);
        let (set, no) = match no {
            Absorbed::Nothing(no) => (set.clone(), no),
            Absorbed::More(set, no) => (set, no),
        };
        let mut parts: Vec<(Intervals, DecisionId)> = Vec::new();
        self.parts(value, yes, &set, &mut parts);
        let mut default = no;
        if let Decision::Switch { value: v, cases, default: d } = self.get(no)
            && *v == value
        {
            parts.extend(cases.iter().map(|(s, to)| (s.without(&set), *to)).filter(|(s, _)| !s.is_empty()));
            default = *d;
        }
        let mut grouped: Vec<(Vec<(u32, u32)>, DecisionId)> = Vec::new();
        for (set, to) in parts {
            if to == default {
                continue;
            }
            match grouped.iter_mut().find(|(_, t)| *t == to) {
                Some((all, _)) => all.extend(set.as_slice()),
                None => grouped.push((set.as_slice().to_vec(), to)),
            }
        }
        if grouped.is_empty() {
            return default;
        }
        // In the order in which they are asked for.
        let cases: Vec<(Intervals, DecisionId)> =
            grouped.into_iter().map(|(all, to)| (Intervals::of(all), to)).collect();
        self.intern(Decision::Switch { value, cases, default })
    }

    /// Where the numbers of `set` lead if a value that is one of them comes to `to`.
    fn parts(&self, value: ValueId, to: DecisionId, set: &Intervals, parts: &mut Vec<(Intervals, DecisionId)>) {
        match self.get(to) {
            Decision::Switch { value: v, cases, default } if *v == value => {
                let mut rest = set.clone();
                for (s, to) in cases {
                    let part = s.intersection(set);
                    rest = rest.without(s);
                    if !part.is_empty() {
                        parts.push((part, *to));
                    }
                }
                if !rest.is_empty() {
                    parts.push((rest, *default));
                }
            }
            _ => parts.push((set.clone(), to)),
        }
    }

    /// If what comes after `no` asks for the same value again and leads to the same, it is asked for at once: behind questions that
    /// lead there, too, or to what comes to the same for those that both would send away.
    ///
    /// Fields that must be there may stand between only if a packet without them is rejected in any case: `to` is that.
    fn absorb(&mut self, value: ValueId, set: &Intervals, to: DecisionId, no: DecisionId) -> Absorbed {
        const FAR: usize = 12;
        if !self.reorders {
            return Absorbed::Nothing(no);
        }
        let mut between = Vec::new();
        let mut at = no;
        loop {
            if between.len() > FAR {
                return Absorbed::Nothing(no);
            }
            match self.get(at) {
                Decision::Switch { value: v, cases, default } => {
                    let [(s, t)] = &cases[..] else { return Absorbed::Nothing(no) };
                    if *v == value {
                        // Without questions between, the plain way merges these.
                        if *t != to || between.is_empty() {
                            return Absorbed::Nothing(no);
                        }
                        let (union, rest, s) = (set.union(s), *default, s.clone());
                        if !self.are_passed(&between, value, &s, to) {
                            return Absorbed::Nothing(no);
                        }
                        let rebuilt =
                            between.into_iter().rev().fold(rest, |rest, id: DecisionId| self.on_top(id, rest));
                        return Absorbed::More(union, rebuilt);
                    }
                    between.push(at);
                    at = *default;
                }
                Decision::Bound { next, .. } if to == DecisionId::REJECT => {
                    between.push(at);
                    at = *next;
                }
                _ => return Absorbed::Nothing(no),
            }
        }
    }

    /// Whether a packet whose value is in `set` comes to the same if it goes to `to` before the questions between.
    fn are_passed(&mut self, between: &[DecisionId], value: ValueId, set: &Intervals, to: DecisionId) -> bool {
        /// What is left of larger nodes is not looked at.
        const FEW: usize = 64;
        between.iter().all(|id| match self.get(*id).clone() {
            Decision::Switch { value: v, cases, .. } => {
                let (s, t) = &cases[0];
                // Where both hold, both must come to the same.
                *t == to || self.restricted(to, v, s, FEW) == self.restricted(*t, value, set, FEW)
            }
            _ => true,
        })
    }

    /// The node with another way on from its default.
    fn on_top(&mut self, id: DecisionId, rest: DecisionId) -> DecisionId {
        match self.get(id).clone() {
            Decision::Switch { value, cases, .. } => {
                let (set, to) = &cases[0];
                self.switch(value, set, *to, rest)
            }
            Decision::Bound { base, end, .. } => self.bound(base, end, rest),
            _ => id,
        }
    }

    /// The nodes that are reached from one, each before those that it goes on to. Ends are not among them.
    pub(crate) fn reached(&self, root: DecisionId) -> Vec<DecisionId> {
        let mut is_reached = vec![false; self.all.len()];
        is_reached[root.0 as usize] = true;
        let mut order = Vec::new();
        // What a node goes on to stands before it.
        for i in (2..=root.0).rev() {
            if !is_reached[i as usize] {
                continue;
            }
            order.push(DecisionId(i));
            for next in self.all[i as usize].successors() {
                is_reached[next.0 as usize] = true;
            }
        }
        order
    }
}

enum Absorbed {
    Nothing(DecisionId),
    More(Intervals, DecisionId),
}
