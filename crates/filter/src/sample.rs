//! The packets of a profile, by what a filter sees of them.
//!
//! Packets of which all questions have the same answers take the same way through every form of the filter, and cost the same: one
//! of them stands for all. So ten thousand packets mostly become some hundred rows.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decision::{Decision, DecisionId, Decisions};
use crate::profile::Profile;
use crate::program::{Packet, Program, run_chain};
use crate::updatable::SetMap;
use crate::value::{Value, ValueId, Values, apply};

/// Packets of a profile, each for all that are like it to a filter.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    profile: Arc<Profile>,
    maps: Arc<[SetMap]>,
    pub(crate) rows: Vec<Row>,
}

/// A packet.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its number in the profile.
    packet: usize,
    /// How many packets it stands for.
    pub(crate) weight: u64,
    /// What each value is; `None` where the packet ends before, or a divisor is 0.
    numbers: Vec<Option<u32>>,
}

impl Sample {
    /// The packets of a profile, as filters that consist of these decisions see them. `None`: there are none, or it is too much.
    pub(crate) fn of(
        profile: &Arc<Profile>,
        values: &Values,
        maps: &Arc<[SetMap]>,
        ways: &[(Decisions, DecisionId)],
    ) -> Option<Sample> {
        /// More nodes would take seconds.
        const MOST_NODES: usize = 100_000;
        /// More values of packets would take gigabytes.
        const MOST_NUMBERS: usize = 50_000_000;
        let nodes: Vec<&Decision> =
            ways.iter().flat_map(|(all, root)| all.reached(*root).into_iter().map(|id| all.get(id))).collect();
        if nodes.len() > MOST_NODES || values.len() * profile.len() > MOST_NUMBERS {
            return None;
        }
        let questions = Questions::of(&nodes);
        let mut sample = Sample { profile: profile.clone(), maps: maps.clone(), rows: Vec::new() };
        let mut known: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
        for (i, packet) in profile.packets().enumerate() {
            let numbers = numbers(values, &packet);
            let answers = questions.answers(i, &packet, &numbers);
            match known.get(&answers) {
                Some(row) => sample.rows[*row].weight += 1,
                None => {
                    known.insert(answers, sample.rows.len());
                    sample.rows.push(Row { packet: i, weight: 1, numbers });
                }
            }
        }
        (!sample.rows.is_empty()).then_some(sample)
    }

    /// How many packets there are.
    pub(crate) fn packets(&self) -> u64 {
        self.rows.iter().map(|row| row.weight).sum()
    }

    /// The operations that a program executes over all packets.
    pub(crate) fn operations(&self, program: &Program) -> u64 {
        let mut registers = Vec::new();
        let of = |row: &Row| row.weight * program.run(&self.profile.packet(row.packet), &mut registers).operations;
        self.rows.iter().map(of).sum()
    }

    /// Where a packet goes on; `None` at an end.
    pub(crate) fn next(&self, row: &Row, decision: &Decision) -> Option<DecisionId> {
        let number = |v: ValueId| row.numbers[v.0 as usize];
        let numbers = |all: &[ValueId]| all.iter().map(|v| number(*v)).collect::<Option<Vec<u32>>>();
        let choice = |answer: bool, yes: DecisionId, no: DecisionId| Some(if answer { yes } else { no });
        let packet = || self.profile.packet(row.packet);
        match decision {
            Decision::Reject | Decision::Accept => None,
            Decision::Note { next, .. } => Some(*next),
            Decision::Bound { base, end, next } => reaches(&packet(), &row.numbers, *base, *end).then_some(*next),
            Decision::NotZero { value, next } => number(*value).is_some_and(|n| n != 0).then_some(*next),
            Decision::Switch { value, cases, default } => {
                let n = number(*value)?;
                Some(cases.iter().find(|(set, _)| set.contains(n)).map_or(*default, |(_, to)| *to))
            }
            Decision::Among { words, members, yes, no } => {
                // A word that is not there rejects the packet, or is not read: either way it is no member.
                let key = numbers(words);
                choice(key.is_some_and(|key| members.0.beginning_with(&key).next().is_some()), *yes, *no)
            }
            Decision::Lookup { lookup, yes, no } => {
                choice(self.maps[lookup.map].contains(numbers(&lookup.key)?.into_iter()), *yes, *no)
            }
            Decision::Chain { chain, yes, no } => choice(run_chain(chain, &packet(), &mut 0)?, *yes, *no),
        }
    }

    /// What a value of a packet is.
    pub(crate) fn number(&self, row: &Row, value: ValueId) -> Option<u32> {
        row.numbers.get(value.0 as usize).copied().flatten()
    }

    /// The rows that come to each node; nodes that none comes to are left out.
    pub(crate) fn visits(&self, decisions: &Decisions, root: DecisionId) -> FxHashMap<DecisionId, Vec<usize>> {
        let mut all: FxHashMap<DecisionId, Vec<usize>> = FxHashMap::default();
        for (i, row) in self.rows.iter().enumerate() {
            let mut at = Some(root);
            while let Some(id) = at {
                all.entry(id).or_default().push(i);
                at = self.next(row, decisions.get(id));
            }
        }
        all
    }

    /// How often each switch is asked about which number.
    pub(crate) fn frequencies(&self, decisions: &Decisions, root: DecisionId) -> FxHashMap<DecisionId, Frequencies> {
        let mut all: FxHashMap<DecisionId, Frequencies> = FxHashMap::default();
        for (id, rows) in self.visits(decisions, root) {
            if let Decision::Switch { value, .. } = decisions.get(id) {
                let of = |i: &usize| Some((self.number(&self.rows[*i], *value)?, self.rows[*i].weight));
                all.insert(id, Frequencies::of(rows.iter().filter_map(of)));
            }
        }
        all
    }
}

/// How often a value is which number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frequencies(Vec<(u32, u64)>);

impl Frequencies {
    /// Numbers with how often each is seen, which may be there several times.
    pub(crate) fn of(numbers: impl Iterator<Item = (u32, u64)>) -> Frequencies {
        let mut all: Vec<(u32, u64)> = numbers.collect();
        all.sort_unstable();
        Frequencies(all)
    }

    /// How often the value is from `low` to `high`.
    pub(crate) fn count(&self, low: u32, high: u32) -> u64 {
        let first = self.0.partition_point(|(n, _)| *n < low);
        self.0[first..].iter().take_while(|(n, _)| *n <= high).map(|(_, count)| count).sum()
    }
}

/// All that is asked of a packet.
struct Questions {
    /// Values, each with where an interval of numbers begins that no question tells apart.
    switches: Vec<(ValueId, Vec<u32>)>,
    bounds: Vec<(Option<ValueId>, u64)>,
    /// Values whose every number may make a difference.
    words: Vec<ValueId>,
    /// There is a chain of headers, which no two packets are sure to have in common.
    chains: bool,
}

impl Questions {
    fn of(nodes: &[&Decision]) -> Questions {
        let mut switches: FxHashMap<ValueId, FxHashSet<u32>> = FxHashMap::default();
        let (mut bounds, mut words) = (FxHashSet::default(), FxHashSet::default());
        let mut chains = false;
        for node in nodes {
            match node {
                Decision::Reject | Decision::Accept | Decision::Note { .. } => {}
                Decision::Bound { base, end, .. } => {
                    bounds.insert((*base, *end));
                }
                Decision::NotZero { value, .. } => switches.entry(*value).or_default().extend([1]),
                Decision::Switch { value, cases, .. } => {
                    let all = cases.iter().flat_map(|(set, _)| set.as_slice());
                    let begins = all.flat_map(|(low, high)| [Some(*low), high.checked_add(1)]).flatten();
                    switches.entry(*value).or_default().extend(begins);
                }
                Decision::Among { words: all, .. } => words.extend(all),
                Decision::Lookup { lookup, .. } => words.extend(&lookup.key),
                Decision::Chain { .. } => chains = true,
            }
        }
        let sorted = |set: FxHashSet<u32>| {
            let mut all: Vec<u32> = set.into_iter().collect();
            all.sort_unstable();
            all
        };
        let mut switches: Vec<(ValueId, Vec<u32>)> = switches.into_iter().map(|(v, set)| (v, sorted(set))).collect();
        switches.sort_unstable();
        let mut bounds: Vec<(Option<ValueId>, u64)> = bounds.into_iter().collect();
        bounds.sort_unstable();
        let mut words: Vec<ValueId> = words.into_iter().collect();
        words.sort_unstable();
        Questions { switches, bounds, words, chains }
    }

    /// Equal for packets that are alike.
    fn answers(&self, i: usize, packet: &Packet, numbers: &[Option<u32>]) -> Vec<u32> {
        let number = |v: ValueId| numbers[v.0 as usize];
        let switches = self.switches.iter().map(|(value, begins)| {
            let interval = |n| begins.partition_point(|begin| *begin <= n) as u32;
            number(*value).map_or(u32::MAX, interval)
        });
        let bounds = self.bounds.iter().map(|(base, end)| u32::from(reaches(packet, numbers, *base, *end)));
        let words = self.words.iter().flat_map(|v| [number(*v).unwrap_or(0), u32::from(number(*v).is_some())]);
        switches.chain(bounds).chain(words).chain(self.chains.then_some(i as u32)).collect()
    }
}

/// Whether a packet's captured part ends no less than `end` bytes behind a base.
fn reaches(packet: &Packet, numbers: &[Option<u32>], base: Option<ValueId>, end: u64) -> bool {
    let base = base.map_or(Some(0), |b| numbers[b.0 as usize]);
    base.is_some_and(|base| u64::from(base) + end <= packet.captured.len() as u64)
}

/// What each value of a packet is. Operands come before what is computed of them.
fn numbers(values: &Values, packet: &Packet) -> Vec<Option<u32>> {
    let mut all: Vec<Option<u32>> = Vec::with_capacity(values.len());
    for i in 0..values.len() {
        let of = |v: ValueId| all.get(v.0 as usize).copied().flatten();
        let number = match values.get(ValueId(i as u32)) {
            Value::Constant(n) => Some(n),
            Value::Length => Some(packet.length),
            Value::Ancillary(what) => Some(packet.ancillary(what)),
            // Decisions have none.
            Value::Variable(_) => Some(0),
            Value::Load { base, offset, size } => {
                base.map_or(Some(0), of).and_then(|base| packet.load(base, offset, size))
            }
            Value::Binary(op, a, b) => of(a).zip(of(b)).and_then(|(a, b)| apply(op, a, b)),
            Value::Negate(a) => of(a).map(u32::wrapping_neg),
            Value::IsGreater(a, b) => of(a).zip(of(b)).map(|(a, b)| u32::from(a > b)),
        };
        all.push(number);
    }
    all
}
