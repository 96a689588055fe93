//! Terms: what a register holds, as a function of the packet.
//!
//! These are not the optimizer's values: two programs are compared, and what simplified one of them must not vouch for it.

use rustc_hash::FxHashMap;

use crate::graph::Chain;
use crate::intervals::Intervals;
use crate::tuples::{MOST_WORDS, Tuples};
use crate::value::{Ancillary, Binary, apply};

/// A term: an index of [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct TermId(u32);

/// A number below 2^32 that each packet has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Term {
    Constant(u32),
    Length,
    Ancillary(Ancillary),
    /// How many bytes were captured behind a base; 0 if it is not in the packet.
    Room(Option<TermId>),
    /// In network byte order; asked for only where there is room.
    Load {
        base: Option<TermId>,
        offset: u32,
        size: u8,
    },
    /// Wraps. Asked for only where no divisor is 0.
    Binary(Binary, TermId, TermId),
    /// 1 or 0.
    IsGreater(TermId, TermId),
    /// 1 if the words are those of a key of a table, otherwise 0. Words behind the table's width are none.
    Among(usize, [Option<TermId>; MOST_WORDS]),
    /// Whether a map that user space changes holds a key: [`YES`] or [`NO`]. A program may ask that once on each way only
    /// (`graph::asks_maps_once`), for it may get another answer the next time.
    Member {
        map: usize,
        key: [Option<TermId>; MOST_WORDS],
    },
    /// What following a chain of headers comes to: [`NO`], [`YES`], or [`OFF`] the packet.
    Chain(Chain),
}

/// The chain does not reach the protocol.
pub(super) const NO: u32 = 0;
/// The chain reaches the protocol.
pub(super) const YES: u32 = 1;
/// The chain leads off the packet.
pub(super) const OFF: u32 = 2;

/// All terms of a proof: equal ones are the same.
#[derive(Default, Debug)]
pub(super) struct Terms {
    all: Vec<(Term, u32)>,
    known: FxHashMap<Term, TermId>,
    /// The keys that lookups in tables find.
    tables: Vec<Tuples>,
}

impl Terms {
    pub(super) fn get(&self, id: TermId) -> Term {
        self.all[id.0 as usize].0
    }

    /// No packet gives the term a larger number.
    pub(super) fn most(&self, id: TermId) -> u32 {
        self.all[id.0 as usize].1
    }

    pub(super) fn as_constant(&self, id: TermId) -> Option<u32> {
        match self.get(id) {
            Term::Constant(n) => Some(n),
            _ => None,
        }
    }

    pub(super) fn intern(&mut self, term: Term) -> TermId {
        if let Some(id) = self.known.get(&term) {
            return *id;
        }
        let id = TermId(self.all.len() as u32);
        self.all.push((term, self.bound(term)));
        self.known.insert(term, id);
        id
    }

    /// A set of keys, for [`Term::Among`].
    pub(super) fn table(&mut self, keys: Tuples) -> usize {
        let known = self.tables.iter().position(|other| *other == keys);
        known.unwrap_or_else(|| {
            self.tables.push(keys);
            self.tables.len() - 1
        })
    }

    /// The keys of a set.
    pub(super) fn keys(&self, table: usize) -> &Tuples {
        &self.tables[table]
    }

    /// The numbers that a term can be, of whatever packet.
    pub(super) fn possible(&self, id: TermId) -> Intervals {
        match self.get(id) {
            Term::Constant(n) => Intervals::one(n),
            _ => Intervals::range(0, self.most(id)),
        }
    }

    /// Whether one term is greater than another.
    pub(super) fn is_greater(&mut self, a: TermId, b: TermId) -> TermId {
        match (self.as_constant(a), self.as_constant(b)) {
            (Some(a), Some(b)) => self.constant(u32::from(a > b)),
            _ => self.intern(Term::IsGreater(a, b)),
        }
    }

    pub(super) fn constant(&mut self, n: u32) -> TermId {
        self.intern(Term::Constant(n))
    }

    /// A base and a distance from it, the constants of both together; `None` if that is behind every packet.
    pub(super) fn place(&self, base: Option<TermId>, distance: u64) -> Option<(Option<TermId>, u32)> {
        let placed = |base, distance: u64| Some((base, u32::try_from(distance).ok()?));
        let Some(id) = base else { return placed(None, distance) };
        match self.get(id) {
            Term::Constant(n) => placed(None, u64::from(n) + distance),
            Term::Binary(Binary::Add, a, b) => match self.as_constant(b) {
                Some(n) if self.most(a).checked_add(n).is_some() => self.place(Some(a), distance + u64::from(n)),
                _ => placed(base, distance),
            },
            _ => placed(base, distance),
        }
    }

    /// Arithmetic; `None` for a division by the constant 0.
    pub(super) fn binary(&mut self, op: Binary, a: TermId, b: TermId) -> Option<TermId> {
        let (x, y) = (self.as_constant(a), self.as_constant(b));
        if let (Some(x), Some(y)) = (x, y) {
            return apply(op, x, y).map(|n| self.constant(n));
        }
        let commutes = matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor);
        let (a, b, y) = if commutes && x.is_some() { (b, a, x) } else { (a, b, y) };
        let (a, b) = if commutes && y.is_none() { (a.min(b), a.max(b)) } else { (a, b) };
        match (op, y) {
            (Binary::Div | Binary::Mod, Some(0)) => return None,
            (Binary::Add | Binary::Sub | Binary::Or | Binary::Xor, Some(0))
            | (Binary::ShiftLeft | Binary::ShiftRight, Some(0))
            | (Binary::Mul | Binary::Div, Some(1)) => return Some(a),
            (Binary::And, Some(mask)) if mask & ones(self.most(a)) == ones(self.most(a)) => return Some(a),
            _ => {}
        }
        Some(self.intern(Term::Binary(op, a, b)))
    }

    fn bound(&self, term: Term) -> u32 {
        match term {
            Term::Constant(n) => n,
            Term::Load { size: 1, .. } => 0xff,
            Term::Load { size: 2, .. } | Term::Ancillary(Ancillary::VlanTag) => 0xffff,
            // Of a term and itself.
            Term::Binary(Binary::Sub | Binary::Xor | Binary::Mod, a, b) | Term::IsGreater(a, b) if a == b => 0,
            Term::Binary(Binary::Div, a, b) if a == b => 1,
            Term::Ancillary(Ancillary::VlanPresent) | Term::IsGreater(..) | Term::Among(..) => 1,
            Term::Member { .. } => YES,
            Term::Chain(_) => OFF,
            Term::Length | Term::Ancillary(_) | Term::Room(_) | Term::Load { .. } => u32::MAX,
            Term::Binary(op, a, b) => {
                let (x, y, n) = (self.most(a), self.most(b), self.as_constant(b));
                match (op, n) {
                    (Binary::Add, _) => x.saturating_add(y),
                    (Binary::Mul, _) => x.saturating_mul(y),
                    (Binary::And, _) => x.min(y),
                    (Binary::Or | Binary::Xor, _) => ones(x | y),
                    (Binary::ShiftRight, Some(n)) => x.checked_shr(n).unwrap_or(0),
                    (Binary::ShiftRight | Binary::Div, _) => x,
                    (Binary::ShiftLeft, Some(n)) => match u64::from(x).checked_shl(n) {
                        Some(n) => u32::try_from(n).unwrap_or(u32::MAX),
                        None => 0,
                    },
                    // What is left is less than the divisor, and not more than what was divided.
                    (Binary::Mod, _) => x.min(y.saturating_sub(1)),
                    (Binary::Sub | Binary::ShiftLeft, _) => u32::MAX,
                }
            }
        }
    }

    /// The terms that a term is computed from.
    pub(super) fn operands(&self, id: TermId) -> impl Iterator<Item = TermId> {
        let of = match self.get(id) {
            Term::Constant(_) | Term::Length | Term::Ancillary(_) | Term::Chain(_) => [None; MOST_WORDS],
            Term::Room(base) | Term::Load { base, .. } => [base, None, None, None],
            Term::Binary(_, a, b) | Term::IsGreater(a, b) => [Some(a), Some(b), None, None],
            Term::Among(_, words) => words,
            Term::Member { key, .. } => key,
        };
        of.into_iter().flatten()
    }

    /// A term as text, to be read: headers behind headers share what their places are computed of, which as a tree has no end.
    pub(super) fn text(&self, id: TermId) -> String {
        const DEEPEST: usize = 6;
        self.text_to(id, DEEPEST)
    }

    /// What is deeper is left out.
    fn text_to(&self, id: TermId, deepest: usize) -> String {
        let Some(left) = deepest.checked_sub(1) else { return "…".to_owned() };
        let text = |id: TermId| self.text_to(id, left);
        let behind = |base: Option<TermId>| base.map_or(String::new(), |b| format!("{} + ", text(b)));
        match self.get(id) {
            Term::Constant(n) => n.to_string(),
            Term::Length => "len".to_owned(),
            Term::Ancillary(what) => format!("{what:?}"),
            Term::Room(base) => format!("room[{}0]", behind(base)),
            Term::Load { base, offset, size } => format!("packet[{}{offset}:{size}]", behind(base)),
            Term::Binary(op, a, b) => format!("({} {} {})", text(a), op.symbol(), text(b)),
            Term::IsGreater(a, b) => format!("({} > {})", text(a), text(b)),
            Term::Among(table, words) => {
                let words: Vec<String> = words.iter().flatten().map(|word| text(*word)).collect();
                format!("({}) among {} keys", words.join(", "), self.tables[table].len())
            }
            Term::Member { map, key } => {
                let words: Vec<String> = key.into_iter().flatten().map(text).collect();
                format!("({} in map {map})", words.join(" . "))
            }
            Term::Chain(chain) => format!("protochain {}", chain.protocol),
        }
    }

    /// The same question about what a term is computed from: `term` is in `set` if and only if what comes back is in its set.
    pub(super) fn simplest(&mut self, mut term: TermId, mut set: Intervals) -> (TermId, Intervals) {
        while let Some((inner, of)) = self.simpler(term, &set) {
            (term, set) = (inner, of);
        }
        (term, set)
    }

    fn simpler(&mut self, term: TermId, set: &Intervals) -> Option<(TermId, Intervals)> {
        let (op, a, b) = match self.get(term) {
            Term::Binary(op, a, b) => (op, a, b),
            Term::IsGreater(a, b) => return self.compared(a, b, set),
            _ => return None,
        };
        let (x, y) = (self.as_constant(a), self.as_constant(b));
        let most = self.most(a);
        let set = match (op, x, y) {
            (Binary::Sub, Some(x), _) => return Some((b, set.mirrored(x))),
            // Whether two terms are equal is one question, whatever is taken from what.
            (Binary::Sub, None, None) if a > b && is_zero_or_not(set) => {
                return Some((self.intern(Term::Binary(op, b, a)), set.clone()));
            }
            (Binary::Add, _, Some(n)) => set.shifted(n.wrapping_neg()),
            (Binary::Sub, _, Some(n)) => set.shifted(n),
            (Binary::Xor, _, Some(n)) => {
                // Only the numbers count that the term can be.
                let possible = self.possible(term);
                match (set.intersection(&possible).single(), possible.without(set).single()) {
                    (Some(one), _) => Intervals::one(one ^ n),
                    (_, Some(other)) => Intervals::one(other ^ n).complement(),
                    _ => return None,
                }
            }
            (Binary::And, _, Some(mask)) => masked(set, mask, most)?,
            (Binary::ShiftRight, _, Some(n)) if n < 32 => {
                scaled(set, |low| u64::from(low) << n, |high| (u64::from(high) << n) + (1 << n) - 1)
            }
            (Binary::Div, _, Some(n)) if n > 0 => {
                let n = u64::from(n);
                scaled(set, |low| u64::from(low) * n, |high| u64::from(high) * n + n - 1)
            }
            (Binary::ShiftLeft, _, Some(n)) if n < 32 && most.checked_mul(1 << n).is_some() => divided(set, 1 << n),
            (Binary::Mul, _, Some(n)) if n > 0 && most.checked_mul(n).is_some() => divided(set, n),
            _ => return None,
        };
        Some((a, set))
    }

    /// Whether a term is greater than a constant, or a constant than a term.
    fn compared(&self, a: TermId, b: TermId, set: &Intervals) -> Option<(TermId, Intervals)> {
        let (term, greater) = match (self.as_constant(a), self.as_constant(b)) {
            (_, Some(n)) => (a, Intervals::range(0, n).complement()),
            (Some(n), _) => (b, n.checked_sub(1).map_or(Intervals::none(), |last| Intervals::range(0, last))),
            _ => return None,
        };
        match (set.contains(0), set.contains(1)) {
            (false, true) => Some((term, greater)),
            (true, false) => Some((term, greater.complement())),
            _ => None,
        }
    }
}

fn is_zero_or_not(set: &Intervals) -> bool {
    set.single() == Some(0) || set.complement().single() == Some(0)
}

/// The number whose bits are those up to the highest one of `n`.
fn ones(n: u32) -> u32 {
    if n == 0 { 0 } else { u32::MAX >> n.leading_zeros() }
}

/// The numbers up to `most` that give a member under a mask; `None` if that is too many intervals to write down.
fn masked(set: &Intervals, mask: u32, most: u32) -> Option<Intervals> {
    /// More intervals cost more than they help.
    const MOST: u64 = 512;
    let width = ones(most);
    let mask = mask & width;
    // The bits below the mask are free, and so are those that it leaves out: for each of these there is another interval.
    let low = mask.trailing_zeros().min(width.count_ones());
    let below = 1u32.checked_shl(low).map_or(u32::MAX, |n| n - 1);
    let free = width & !mask & !below;
    if free.count_ones() > 8 {
        return None;
    }
    // What the mask can leave, if that is little; or intervals of it, where the mask has no holes.
    if free == 0 {
        let mut all = Vec::new();
        for (l, h) in set.as_slice() {
            let l = u64::from(*l).next_multiple_of(u64::from(below) + 1);
            let h = u64::from(h & !below);
            if l <= h && l <= u64::from(width) {
                all.push((l as u32, (h.min(u64::from(width)) as u32) | below));
            }
        }
        return Some(Intervals::of(all));
    }
    // A mask leaves no greater number than itself: what else a set has of such is in no interval to come.
    let left = Intervals::range(0, mask);
    let (inside, outside) = (left.intersection(set), left.without(set));
    let is_complement = inside.count() > outside.count();
    let of = if is_complement { &outside } else { &inside };
    if of.count() > MOST || of.count() << free.count_ones() > MOST {
        return None;
    }
    let mut all = Vec::new();
    for n in of.members().filter(|n| n & !mask == 0) {
        // All numbers of free bits, in order.
        let mut bits = 0u32;
        loop {
            all.push((n | bits, n | bits | below));
            bits = bits.wrapping_sub(free) & free;
            if bits == 0 {
                break;
            }
        }
    }
    let found = Intervals::of(all);
    Some(if is_complement { found.complement() } else { found })
}

/// The numbers from `least(low)` to `greatest(high)` of each interval.
fn scaled(set: &Intervals, least: impl Fn(u32) -> u64, greatest: impl Fn(u32) -> u64) -> Intervals {
    let of = |(low, high): &(u32, u32)| {
        let low = u32::try_from(least(*low)).ok()?;
        Some((low, u32::try_from(greatest(*high)).unwrap_or(u32::MAX)))
    };
    Intervals::of(set.as_slice().iter().filter_map(of).collect())
}

/// The numbers whose product with `n`, which does not wrap, is a member.
fn divided(set: &Intervals, n: u32) -> Intervals {
    let of = |(low, high): &(u32, u32)| {
        let (low, high) = (low.div_ceil(n), high / n);
        (low <= high).then_some((low, high))
    };
    Intervals::of(set.as_slice().iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// A question and its simplest form have the same answer, whatever the byte or word they are about.
    #[test]
    fn simplest_questions_have_the_same_answers() {
        let ops = Binary::ALL;
        let mut random = Rng::with_seed(7);
        let mut simpler = 0;
        for round in 0..20_000 {
            let size = [1u8, 2, 4][round % 3];
            let mut terms = Terms::default();
            let leaf = terms.intern(Term::Load { base: None, offset: 0, size });
            let mut steps = Vec::new();
            let mut term = leaf;
            for _ in 0..1 + random.u32(0..3) {
                let op = ops[random.usize(0..ops.len())];
                let n = match random.u32(0..4) {
                    0 => random.u32(0..6),
                    1 => u32::MAX << (random.u32(0..32)),
                    2 => random.u32(..) & 0xffff,
                    _ => random.u32(..) << 1,
                };
                let constant = terms.constant(n);
                let first = random.u8(0..5) == 0;
                let (a, b) = if first { (constant, term) } else { (term, constant) };
                let Some(next) = terms.binary(op, a, b) else { continue };
                steps.push((op, n, first));
                term = next;
            }
            let set = Intervals::of(
                (0..1 + random.u32(0..3))
                    .map(|_| {
                        let low = random.u32(..) >> (random.u32(0..32));
                        (low, low.saturating_add(random.u32(0..5)))
                    })
                    .collect(),
            );
            let (inner, of) = terms.simplest(term, set.clone());
            simpler += usize::from(inner != term);
            let value = |x: u32, until: TermId, terms: &mut Terms| -> Option<u32> {
                // The number of the term `until`, which is one on the way from the leaf.
                let (mut at, mut n) = (leaf, x);
                for (op, k, first) in &steps {
                    if at == until {
                        return Some(n);
                    }
                    let k_term = terms.constant(*k);
                    let (a, b) = if *first { (k_term, at) } else { (at, k_term) };
                    at = terms.binary(*op, a, b)?;
                    n = if *first { apply(*op, *k, n)? } else { apply(*op, n, *k)? };
                    assert!(n <= terms.most(at), "{op:?} {k}: {n} is more than {}", terms.most(at));
                }
                (at == until).then_some(n)
            };
            for _ in 0..40 {
                let mask = if size == 4 { u32::MAX } else { (1 << (8 * size)) - 1 };
                let near = set.as_slice()[0].0.wrapping_add(random.u32(0..16));
                let x = if random.bool() { random.u32(..) << 1 } else { near } & mask;
                let Some(whole) = value(x, term, &mut terms) else { continue };
                let Some(part) = value(x, inner, &mut terms) else { continue };
                assert_eq!(set.contains(whole), of.contains(part), "{steps:?} {set:?} of {x:#x}: {of:?}");
            }
        }
        assert!(simpler > 5_000, "{simpler}");
    }

    /// Each term is used twice by the next: as a tree it has 2^64 nodes.
    #[test]
    fn the_text_of_a_term_has_an_end() {
        let mut terms = Terms::default();
        let mut term = terms.intern(Term::Load { base: None, offset: 12, size: 1 });
        for offset in 0..64 {
            let loaded = terms.intern(Term::Load { base: Some(term), offset, size: 1 });
            term = terms.intern(Term::Binary(Binary::Add, term, loaded));
        }
        let text = terms.text(term);
        assert!(text.len() < 2000 && text.contains('…'), "{text}");
    }
}
