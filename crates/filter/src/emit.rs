//! From decisions to programs: values are computed where they are first asked for, sets become trees or tables.

mod shape;
mod words;

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decision::{Decision, DecisionId, Decisions};
use crate::intervals::Intervals;
use crate::language::Binary;
use crate::order::order;
use crate::passes::{Pass, Passes};
use crate::program::{BasicBlock, BlockId, Comparison, End, LIKELY, Operand, Operation, Program, Register};
use crate::sample::Frequencies;
use crate::tables::Table;
use crate::updatable::SetMap;
use crate::value::{Value, ValueId, Values};

use shape::{Segment, Shape, by_frequency, segments, split};

/// How sets are decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetPolicy {
    /// Up to so many comparisons in a row.
    pub(crate) linear: usize,
    /// Above so many intervals a table, if the set is one of single numbers, or its numbers are close together.
    pub(crate) tree: usize,
    /// Whether tables are allowed.
    pub(crate) tables: bool,
    /// Whether ranges may stand among the comparisons in a row, two for each.
    pub(crate) ranges: bool,
    /// Whether in a row what most numbers lead to comes last, where rows that end alike can be one.
    pub(crate) ends_last: bool,
}

impl SetPolicy {
    /// For the interpreter.
    pub(crate) const FAST: SetPolicy = SetPolicy { linear: 3, tree: 64, tables: true, ranges: false, ends_last: false };
    /// For machine code: a lookup takes no longer than two branches that are predicted wrongly.
    pub(crate) const MACHINE: SetPolicy =
        SetPolicy { linear: 3, tree: 4, tables: true, ranges: false, ends_last: false };
    /// For eBPF, where instructions are what counts first: up to ten comparisons in a row cost no time that shows, and a table
    /// costs about as many instructions as sixteen of them.
    pub(crate) const KERNEL: SetPolicy =
        SetPolicy { linear: 10, tree: 16, tables: true, ranges: false, ends_last: false };
    /// For classic BPF, which has no memory for tables.
    pub(crate) const CLASSIC: SetPolicy =
        SetPolicy { linear: 3, tree: usize::MAX, tables: false, ranges: false, ends_last: false };
    /// The fewest comparisons, however many are executed.
    pub(crate) const SMALL: SetPolicy =
        SetPolicy { linear: 1 << 20, tree: usize::MAX, tables: false, ranges: true, ends_last: false };
    /// Tables of all sets of several numbers.
    pub(crate) const TABLE: SetPolicy = SetPolicy { linear: 1, tree: 1, tables: true, ranges: false, ends_last: false };
    /// Between `CLASSIC` and `SMALL`.
    pub(crate) const SMALLISH: SetPolicy =
        SetPolicy { linear: 12, tree: usize::MAX, tables: false, ranges: true, ends_last: false };
    /// As `SMALL`, with rows that end alike.
    pub(crate) const SHARING: SetPolicy = SetPolicy { ends_last: true, ..SetPolicy::SMALL };
    /// All that classic BPF may have.
    pub(crate) const WITHOUT_TABLES: [SetPolicy; 4] =
        [SetPolicy::CLASSIC, SetPolicy::SMALLISH, SetPolicy::SMALL, SetPolicy::SHARING];
}

/// How often each switch is asked about which number, and what that is used for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) switches: &'a FxHashMap<DecisionId, Frequencies>,
    /// Only the order of comparisons in a row: their number stays.
    pub(crate) keeps_rows: bool,
}

impl SetPolicy {
    /// With what these passes leave of it.
    pub(crate) fn with(self, passes: Passes) -> SetPolicy {
        let of_trees = if passes.has(Pass::Trees) { self } else { SetPolicy { tree: self.tree, ..SetPolicy::SMALL } };
        SetPolicy { tables: self.tables && passes.has(Pass::Tables), ..of_trees }
    }
}

/// Blocks under construction: successors are labels until the order is known.
struct Emitter<'a> {
    values: &'a Values,
    policy: SetPolicy,
    seen: Option<Seen<'a>>,
    /// How often the switch that is emitted is asked about which number, if that is known.
    frequencies: Option<&'a Frequencies>,
    blocks: Vec<BasicBlock>,
    tables: Vec<Table>,
    maps: Arc<[SetMap]>,
    predicates: u32,
    known_tables: FxHashMap<Intervals, usize>,
    /// How many registers there are besides those of values.
    more: u32,
    accept: BlockId,
    reject: BlockId,
}

/// The program of decisions, which may ask these maps and note so many predicates; for packets like those that were seen, if some
/// were.
pub(crate) fn emit(
    values: &Values,
    (maps, predicates): (Arc<[SetMap]>, u32),
    (decisions, root): (&Decisions, DecisionId),
    policy: SetPolicy,
    seen: Option<Seen>,
) -> Program {
    let end = |end| BasicBlock { operations: Vec::new(), end };
    let mut emitter = Emitter {
        values,
        policy,
        seen,
        frequencies: None,
        blocks: vec![end(End::Reject), end(End::Accept)],
        tables: Vec::new(),
        maps,
        predicates,
        known_tables: FxHashMap::default(),
        more: 0,
        reject: BlockId(0),
        accept: BlockId(1),
    };
    let order = decisions.reached(root);
    // What is computed on all ways to a node.
    let mut available: FxHashMap<DecisionId, FxHashSet<ValueId>> = FxHashMap::default();
    let mut entries: FxHashMap<DecisionId, BlockId> = FxHashMap::default();
    entries.insert(DecisionId::REJECT, emitter.reject);
    entries.insert(DecisionId::ACCEPT, emitter.accept);
    // Nodes are given their blocks first, for those before them to go to.
    for id in &order {
        entries.insert(*id, emitter.block(Vec::new(), End::Reject));
    }
    // The predicate that has been noted, if it is the same on all ways to a node.
    let mut noted: FxHashMap<DecisionId, Option<u32>> = FxHashMap::default();
    for id in &order {
        let mut here = noted.remove(id).flatten();
        let is_noted = matches!(decisions.get(*id), Decision::Note { predicate, .. } if here == Some(*predicate));
        if let Decision::Note { predicate, .. } = decisions.get(*id) {
            here = Some(*predicate);
        }
        for next in decisions.get(*id).successors() {
            noted.entry(next).and_modify(|all| *all = all.filter(|p| Some(*p) == here)).or_insert(here);
        }
        let known = available.remove(id).unwrap_or_default();
        emitter.frequencies = seen.and_then(|seen| seen.switches.get(id));
        let after = emitter.node(decisions.get(*id), entries[id], &entries, known);
        if is_noted {
            emitter.blocks[entries[id].0].operations.clear();
        }
        for next in decisions.get(*id).successors() {
            match available.get_mut(&next) {
                Some(all) => all.retain(|v| after.contains(v)),
                None => {
                    available.insert(next, after.clone());
                }
            }
        }
    }
    let entry = entries[&root];
    emitter.finish(entry)
}

impl Emitter<'_> {
    fn block(&mut self, operations: Vec<Operation>, end: End) -> BlockId {
        self.blocks.push(BasicBlock { operations, end });
        BlockId(self.blocks.len() - 1)
    }

    fn register(value: ValueId) -> Register {
        Register(value.0)
    }

    /// Fills the block of a node; what is computed behind it.
    fn node(
        &mut self,
        decision: &Decision,
        block: BlockId,
        entries: &FxHashMap<DecisionId, BlockId>,
        mut known: FxHashSet<ValueId>,
    ) -> FxHashSet<ValueId> {
        let mut operations = Vec::new();
        let end = match decision {
            Decision::Reject => End::Reject,
            Decision::Accept => End::Accept,
            Decision::Bound { base, end, next } => {
                let base = base.map(|b| self.compute(b, &mut known, &mut operations));
                operations.push(Operation::Bound { base, end: *end });
                End::Goto(entries[next])
            }
            Decision::Note { predicate, next } => {
                operations.push(Operation::Note { predicate: *predicate });
                End::Goto(entries[next])
            }
            Decision::NotZero { value, next } => {
                let register = self.compute(*value, &mut known, &mut operations);
                operations.push(Operation::NotZero { register });
                End::Goto(entries[next])
            }
            Decision::Among { words, members, yes, no } => {
                let ends = (entries[yes], entries[no]);
                self.compute(words[0], &mut known, &mut operations);
                let by_tables =
                    if self.policy.tables { self.levels(words, &members.0, ends, known.clone()) } else { None };
                by_tables.unwrap_or_else(|| self.branches(words, &members.0, ends, &known))
            }
            Decision::Chain { chain, yes, no } => End::Chain { chain: *chain, yes: entries[yes], no: entries[no] },
            Decision::Lookup { lookup, yes, no } => {
                let key = lookup.key.iter().map(|v| self.compute(*v, &mut known, &mut operations)).collect();
                End::Member { map: lookup.map, key, yes: entries[yes], no: entries[no] }
            }
            Decision::Switch { value, cases, default } => {
                let cases: Vec<(Intervals, BlockId)> = cases.iter().map(|(s, d)| (s.clone(), entries[d])).collect();
                self.switch(*value, &cases, entries[default], &mut known, &mut operations)
            }
        };
        self.blocks[block.0] = BasicBlock { operations, end };
        known
    }

    /// The register of a value, computed if it is not yet.
    fn compute(&mut self, value: ValueId, known: &mut FxHashSet<ValueId>, operations: &mut Vec<Operation>) -> Register {
        let to = Emitter::register(value);
        if !known.insert(value) {
            return to;
        }
        // If its parts are computed already, the rest is less.
        if let Some((offset, words)) = self.values.header_length(value)
            && !known.contains(&words)
        {
            operations.push(Operation::HeaderLength { to, offset });
            return to;
        }
        let operation = match self.values.get(value) {
            Value::Constant(n) => Operation::Constant { to, n },
            Value::Length => Operation::Length { to },
            Value::Ancillary(what) => Operation::Ancillary { to, what },
            // A variable that nothing has set. Optimized values have none.
            Value::Variable(_) => Operation::Constant { to, n: 0 },
            Value::Load { base, offset, size } => {
                let base = base.map(|b| self.compute(b, known, operations));
                Operation::Load { to, base, offset, size }
            }
            Value::Binary(op, a, b) => {
                let (a, b) = (self.operand(a, known, operations), self.operand(b, known, operations));
                Operation::Binary { op, to, a, b }
            }
            Value::Negate(a) => Operation::Negate { to, a: self.compute(a, known, operations) },
            Value::IsGreater(a, b) => {
                let (a, b) = (self.operand(a, known, operations), self.operand(b, known, operations));
                Operation::IsGreater { to, a, b }
            }
        };
        operations.push(operation);
        to
    }

    fn operand(&mut self, value: ValueId, known: &mut FxHashSet<ValueId>, operations: &mut Vec<Operation>) -> Operand {
        match self.values.as_constant(value) {
            Some(n) => Operand::Constant(n),
            None => Operand::Register(self.compute(value, known, operations)),
        }
    }

    /// Goes on by the set that a value is in.
    fn switch(
        &mut self,
        value: ValueId,
        cases: &[(Intervals, BlockId)],
        default: BlockId,
        known: &mut FxHashSet<ValueId>,
        operations: &mut Vec<Operation>,
    ) -> End {
        let two_way = match cases {
            [(set, to)] if !known.contains(&value) => match (set.single(), set.complement().single()) {
                (Some(n), _) => Some((n, *to, default)),
                (_, Some(n)) => Some((n, default, *to)),
                _ if *set == Intervals::range(1, u32::MAX) => Some((0, default, *to)),
                _ => None,
            },
            _ => None,
        };
        // Comparisons of two values, and tests of bits, need no number of their own.
        if let Some((n, yes, no)) = two_way {
            match (self.values.get(value), n) {
                (Value::Binary(Binary::And, a, mask), 0) if self.values.as_constant(mask).is_some() => {
                    let mask = self.values.as_constant(mask).unwrap_or_default();
                    let a = self.compute(a, known, operations);
                    return End::Branch { a, comparison: Comparison::AnyBit(mask), yes: no, no: yes };
                }
                (Value::Binary(Binary::Sub, a, b), 0) if self.values.as_constant(a).is_none() => {
                    let a = self.compute(a, known, operations);
                    let b = self.operand(b, known, operations);
                    return End::Branch { a, comparison: Comparison::Equal(b), yes, no };
                }
                (Value::IsGreater(a, b), 0 | 1) if self.values.as_constant(a).is_none() => {
                    let a = self.compute(a, known, operations);
                    let b = self.operand(b, known, operations);
                    let (yes, no) = if n == 1 { (yes, no) } else { (no, yes) };
                    return End::Branch { a, comparison: Comparison::Greater(b), yes, no };
                }
                _ => {}
            }
        }
        let segments = segments(cases, default, self.values.greatest(value));
        // All that the value can be leads to one place.
        if let [only] = segments[..] {
            return End::Goto(only.to);
        }
        let a = self.compute(value, known, operations);
        if let [(set, to)] = cases
            && let Some(end) = self.lookup(a, set, *to, default)
        {
            return end;
        }
        self.tree(a, &segments, cases)
    }

    /// Lookups of a set of wide intervals: one for each length of the networks that it consists of, if these are few.
    fn networks(&mut self, a: Register, set: &Intervals, yes: BlockId, no: BlockId) -> Option<End> {
        /// More lengths cost as much as a tree.
        const MOST: usize = 8;
        let lengths = set.networks();
        if lengths.len() > MOST {
            return None;
        }
        let mut next = End::Goto(no);
        for (length, networks) in lengths {
            let otherwise = self.block(Vec::new(), next);
            let (mut operations, mut key) = (Vec::new(), a);
            if length < 32 {
                self.more += 1;
                key = Register(u32::MAX - self.more);
                let mask = Operand::Constant(u32::MAX.checked_shl(32 - length).unwrap_or(0));
                operations.push(Operation::Binary { op: Binary::And, to: key, a: Operand::Register(a), b: mask });
            }
            let set = Intervals::of(networks.iter().map(|n| (*n, *n)).collect());
            let end = match self.table(&set, || Table::hash(&networks)) {
                Some(table) => End::Lookup { keys: vec![key], table, yes, no: otherwise },
                None => return None,
            };
            next = End::Goto(self.block(operations, end));
        }
        Some(next)
    }

    /// A table of a set, if it is large enough.
    fn lookup(&mut self, a: Register, set: &Intervals, yes: BlockId, no: BlockId) -> Option<End> {
        let n = set.as_slice().len();
        if !self.policy.tables || n <= self.policy.tree.min(24) {
            return None;
        }
        let singles: Option<Vec<u32>> = set.as_slice().iter().map(|(l, h)| (l == h).then_some(*l)).collect();
        let is_large = n > self.policy.tree;
        let table = self.table(set, || match (Table::bitmap(set), singles) {
            (Some(bitmap), _) => Some(bitmap),
            (None, Some(members)) if is_large => Table::hash(&members),
            // A set of few intervals that are wide may still be one of not many numbers.
            (None, None) if is_large => Table::hash(&few_members(set)?),
            _ => None,
        });
        match table {
            Some(table) => Some(End::Lookup { keys: vec![a], table, yes, no }),
            None if is_large => self.networks(a, set, yes, no),
            None => None,
        }
    }

    /// A table of a set whose certificate holds, made if there is none yet.
    fn table(&mut self, set: &Intervals, make: impl FnOnce() -> Option<Table>) -> Option<usize> {
        if let Some(table) = self.known_tables.get(set) {
            return Some(*table);
        }
        let table = make().filter(|table| table.is_of(set))?;
        self.tables.push(table);
        self.known_tables.insert(set.clone(), self.tables.len() - 1);
        Some(self.tables.len() - 1)
    }

    /// A tree of comparisons over segments, which are in order and have no gaps.
    fn tree(&mut self, a: Register, segments: &[Segment], cases: &[(Intervals, BlockId)]) -> End {
        if let [only] = segments {
            return End::Goto(only.to);
        }
        if self.keeps_rows()
            && let Some(end) = self.in_a_row(a, segments, cases)
        {
            return end;
        }
        if let Some(frequencies) = self.frequencies {
            return self.shaped(a, &by_frequency(segments, frequencies));
        }
        let middle = split(segments);
        let n = segments[middle].low;
        let (low, high) = (self.subtree(a, &segments[..middle], cases), self.subtree(a, &segments[middle..], cases));
        End::Branch { a, comparison: Comparison::AtLeast(Operand::Constant(n)), yes: high, no: low }
    }

    /// Comparisons stand in a row wherever the policy allows it.
    fn keeps_rows(&self) -> bool {
        self.frequencies.is_none() || self.seen.is_none_or(|seen| seen.keeps_rows)
    }

    /// Comparisons of a shape.
    fn shaped(&mut self, a: Register, shape: &Shape) -> End {
        let (comparison, yes, no) = match shape {
            Shape::To(to) => return End::Goto(*to),
            Shape::Equal { n, yes, no } => (Comparison::Equal(Operand::Constant(*n)), *yes, no),
            Shape::AtLeast { n, yes, no } => {
                (Comparison::AtLeast(Operand::Constant(*n)), self.shaped_block(a, yes), no)
            }
        };
        End::Branch { a, comparison, yes, no: self.shaped_block(a, no) }
    }

    fn shaped_block(&mut self, a: Register, shape: &Shape) -> BlockId {
        match self.shaped(a, shape) {
            End::Goto(to) => to,
            end => self.block(Vec::new(), end),
        }
    }

    fn subtree(&mut self, a: Register, segments: &[Segment], cases: &[(Intervals, BlockId)]) -> BlockId {
        match self.tree(a, segments, cases) {
            End::Goto(to) => to,
            end => self.block(Vec::new(), end),
        }
    }

    /// Few numbers among others that all lead to one place: one comparison each, two for a range.
    fn in_a_row(&mut self, a: Register, segments: &[Segment], cases: &[(Intervals, BlockId)]) -> Option<End> {
        // The widest part is the rest.
        let rest = segments.iter().max_by_key(|s| s.high - s.low)?.to;
        let mut parts: Vec<&Segment> = segments.iter().filter(|s| s.to != rest).collect();
        let several = parts.iter().any(|s| s.to != parts[0].to);
        let most = self.policy.linear + if several { 5 } else { 0 };
        let is_range = |s: &Segment| s.low != s.high;
        let comparisons: usize = parts.iter().map(|s| 1 + usize::from(is_range(s))).sum();
        if comparisons > most || !self.policy.ranges && parts.iter().any(|s| is_range(s)) {
            return None;
        }
        // What is seen most is asked for first; otherwise what the text asks for first.
        let count = |s: &Segment| self.frequencies.map_or(0, |seen| seen.count(s.low, s.high));
        let mut leading_there: FxHashMap<BlockId, usize> = FxHashMap::default();
        if self.policy.ends_last {
            segments.iter().for_each(|s| *leading_there.entry(s.to).or_default() += 1);
        }
        let alike = |s: &Segment| leading_there.get(&s.to).copied().unwrap_or_default();
        parts.sort_by_cached_key(|s| {
            (Reverse(count(s)), alike(s), s.low != LIKELY, cases.iter().position(|(_, to)| *to == s.to))
        });
        let mut end = End::Goto(rest);
        for part in parts.iter().rev() {
            let no = match end {
                End::Goto(to) => to,
                end => self.block(Vec::new(), end),
            };
            let number = |n| Operand::Constant(n);
            let test = |comparison, yes, no| End::Branch { a, comparison, yes, no };
            end = match (part.low, part.high) {
                (low, high) if low == high => test(Comparison::Equal(number(low)), part.to, no),
                // No number is below the first and none above the last segment.
                (0, high) => test(Comparison::Greater(number(high)), no, part.to),
                (low, high) if Some(high) == segments.last().map(|s| s.high) => {
                    test(Comparison::AtLeast(number(low)), part.to, no)
                }
                (low, high) => {
                    let inside = self.block(Vec::new(), test(Comparison::Greater(number(high)), no, part.to));
                    test(Comparison::AtLeast(number(low)), inside, no)
                }
            };
        }
        Some(end)
    }

    /// Orders blocks and numbers registers.
    fn finish(self, entry: BlockId) -> Program {
        let (maps, predicates) = (self.maps, self.predicates);
        order(Program { blocks: self.blocks, registers: 0, tables: self.tables, maps, predicates }, entry)
    }
}

/// The numbers of a set, if they are not many.
fn few_members(set: &Intervals) -> Option<Vec<u32>> {
    const MOST: u64 = 1 << 12;
    (set.count() <= MOST).then(|| set.members().collect())
}
