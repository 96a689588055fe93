//! A program as a graph of questions about terms, whatever registers it keeps them in.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::error::Unproven;
use super::term::{NO, OFF, Term, TermId, Terms, YES};
use crate::intervals::Intervals;
use crate::language::Binary;
use crate::program::{BasicBlock, BlockId, Comparison, End, Operand, Operation, Program, Register};
use crate::tables::Table;
use crate::tuples::{MOST_WORDS, Tuples};

/// A node: an index of [`Nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct NodeId(u32);

impl NodeId {
    pub(super) const REJECT: NodeId = NodeId(0);
    pub(super) const ACCEPT: NodeId = NodeId(1);

    /// Larger than those of all that it goes on to.
    pub(super) fn number(self) -> u64 {
        u64::from(self.0)
    }

    pub(super) fn is_end(self) -> bool {
        self <= NodeId::ACCEPT
    }
}

/// What is done next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    Reject,
    Accept,
    /// Goes on by the set that a term is in. The sets are disjoint and hold all numbers.
    Ask {
        term: TermId,
        parts: Vec<(Intervals, NodeId)>,
    },
}

/// The nodes of both programs: equal ones are the same.
#[derive(Debug)]
pub(super) struct Nodes {
    all: Vec<Node>,
    known: FxHashMap<Node, NodeId>,
    /// Per node the terms that are asked for there or later and those that they are computed from, in order.
    asked: Vec<Rc<Vec<TermId>>>,
    /// Per node the ends that it may come to.
    ends: Vec<Ends>,
}

/// Ends that a node may come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ends {
    accept: bool,
    reject: bool,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes {
            all: vec![Node::Reject, Node::Accept],
            known: FxHashMap::default(),
            asked: vec![Rc::default(), Rc::default()],
            ends: vec![Ends { reject: true, accept: false }, Ends { reject: false, accept: true }],
        }
    }
}

impl Nodes {
    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.all[id.0 as usize]
    }

    /// The terms that are asked for at a node or later and those that they are computed from, in order.
    pub(super) fn asked(&self, id: NodeId) -> &Rc<Vec<TermId>> {
        &self.asked[id.0 as usize]
    }

    /// One end is all that both may come to.
    pub(super) fn come_to_one_end(&self, first: NodeId, second: NodeId) -> bool {
        let (a, b) = (self.ends[first.0 as usize], self.ends[second.0 as usize]);
        a == b && a.accept != a.reject
    }

    /// A question: sets that lead to one place are one, and numbers that no packet gives lead nowhere.
    fn ask(&mut self, terms: &Terms, term: TermId, parts: Vec<(Intervals, NodeId)>) -> NodeId {
        let possible = terms.possible(term);
        let mut grouped: Vec<(Vec<(u32, u32)>, NodeId)> = Vec::new();
        // Each word of a long list's keys may lead somewhere else.
        let mut places: FxHashMap<NodeId, usize> = FxHashMap::default();
        for (set, to) in parts {
            let set = set.intersection(&possible);
            if set.is_empty() {
                continue;
            }
            let place = *places.entry(to).or_insert(grouped.len());
            match grouped.get_mut(place) {
                Some((all, _)) => all.extend(set.as_slice()),
                None => grouped.push((set.as_slice().to_vec(), to)),
            }
        }
        let mut parts: Vec<(Intervals, NodeId)> = grouped.into_iter().map(|(s, to)| (Intervals::of(s), to)).collect();
        parts.sort_unstable_by_key(|(_, to)| *to);
        match parts[..] {
            [(_, only)] => only,
            _ => self.intern(terms, Node::Ask { term, parts }),
        }
    }

    fn intern(&mut self, terms: &Terms, node: Node) -> NodeId {
        if let Some(id) = self.known.get(&node) {
            return *id;
        }
        let id = NodeId(self.all.len() as u32);
        if let Node::Ask { term, parts } = &node {
            let below = parts.iter().map(|(_, to)| self.asked(*to));
            // Such a list has with each term those that it is computed from.
            let has = |all: &Rc<Vec<TermId>>, some: &Rc<Vec<TermId>>| {
                Rc::ptr_eq(all, some) || some.iter().all(|t| all.binary_search(t).is_ok())
            };
            let all = match below.clone().max_by_key(|b| b.len()) {
                Some(longest) if longest.binary_search(term).is_ok() && below.clone().all(|b| has(longest, b)) => {
                    longest.clone()
                }
                _ => {
                    let mut all: Vec<TermId> = below.flat_map(|b| b.iter().copied()).collect();
                    all.extend(computed_from(terms, *term));
                    all.sort_unstable();
                    all.dedup();
                    Rc::new(all)
                }
            };
            let ends = parts.iter().map(|(_, to)| self.ends[to.0 as usize]);
            let ends = ends.reduce(|a, b| Ends { accept: a.accept || b.accept, reject: a.reject || b.reject });
            self.asked.push(all);
            self.ends.push(ends.unwrap_or_default());
        }
        self.all.push(node.clone());
        self.known.insert(node, id);
        id
    }
}

/// A term and all that it is computed from, each once.
fn computed_from(terms: &Terms, term: TermId) -> FxHashSet<TermId> {
    let mut all = FxHashSet::default();
    let mut open = vec![term];
    while let Some(term) = open.pop() {
        if all.insert(term) {
            open.extend(terms.operands(term));
        }
    }
    all
}

/// Whether no way from a node asks a map for the same key twice.
///
/// What is known of a term on a way holds for all that is asked there. A map may answer otherwise the next time, so that what is
/// known of its first answer would leave ways out that the program can go.
pub(super) fn asks_maps_once(terms: &Terms, nodes: &Nodes, root: NodeId) -> bool {
    let mut seen = FxHashSet::default();
    let mut open = vec![root];
    while let Some(at) = open.pop() {
        let Node::Ask { term, parts } = nodes.get(at) else { continue };
        if !seen.insert(at) {
            continue;
        }
        let is_map = matches!(terms.get(*term), Term::Member { .. });
        if is_map && parts.iter().any(|(_, to)| nodes.asked(*to).binary_search(term).is_ok()) {
            return false;
        }
        open.extend(parts.iter().map(|(_, to)| *to));
    }
    true
}

/// What registers hold: those without an entry hold 0.
type Registers = FxHashMap<Register, TermId>;

/// The graph of a program; where it begins.
///
/// # Errors
/// If the program is too large, or has what no term stands for.
pub(super) fn graph(terms: &mut Terms, nodes: &mut Nodes, program: &Program) -> Result<NodeId, Unproven> {
    let mut unfolding = Unfolding { terms, nodes, program, live: live(program), done: FxHashMap::default() };
    unfolding.block(BlockId(0), &Registers::default())
}

/// Whether a register is in a range, both ends included.
struct InRange {
    register: Register,
    range: (u32, u32),
    yes: BlockId,
    no: BlockId,
}

struct Unfolding<'a> {
    terms: &'a mut Terms,
    nodes: &'a mut Nodes,
    program: &'a Program,
    /// Per block the registers that are read there or later before they are written, in order.
    live: Vec<Rc<Vec<Register>>>,
    /// By block and what its live registers hold.
    done: FxHashMap<(BlockId, Vec<TermId>), NodeId>,
}

impl Unfolding<'_> {
    fn held(&mut self, registers: &Registers, r: Register) -> TermId {
        registers.get(&r).copied().unwrap_or_else(|| self.terms.constant(0))
    }

    fn operand(&mut self, registers: &Registers, operand: Operand) -> TermId {
        match operand {
            Operand::Constant(n) => self.terms.constant(n),
            Operand::Register(r) => self.held(registers, r),
        }
    }

    fn block(&mut self, at: BlockId, before: &Registers) -> Result<NodeId, Unproven> {
        /// More copies of blocks than any filter has whose variables are few.
        const MOST: usize = 1 << 20;
        let live = self.live[at.0].clone();
        let holding = live.iter().map(|r| self.held(before, *r)).collect();
        let key = (at, holding);
        if let Some(id) = self.done.get(&key) {
            return Ok(*id);
        }
        if self.done.len() > MOST {
            return Err(Unproven::TooLarge);
        }
        let mut registers: Registers = live.iter().copied().zip(key.1.iter().copied()).collect();
        // What must be there, or the packet is rejected: a term and the numbers that it may be.
        let mut wanted: Vec<(TermId, Intervals)> = Vec::new();
        let program = self.program;
        let mut is_over = false;
        for operation in &program.blocks[at.0].operations {
            if self.operation(operation, &mut registers, &mut wanted)?.is_none() {
                is_over = true;
                break;
            }
        }
        let end = if is_over { NodeId::REJECT } else { self.end(at, &registers)? };
        let node = wanted.into_iter().rev().fold(end, |next, (term, set)| {
            let (term, set) = self.terms.simplest(term, set);
            let outside = set.complement();
            self.nodes.ask(self.terms, term, vec![(set, next), (outside, NodeId::REJECT)])
        });
        self.done.insert(key, node);
        Ok(node)
    }

    /// `None`: every packet is rejected here.
    fn operation(
        &mut self,
        operation: &Operation,
        registers: &mut Registers,
        wanted: &mut Vec<(TermId, Intervals)>,
    ) -> Result<Option<()>, Unproven> {
        let (to, term) = match operation {
            Operation::Constant { to, n } => (to, self.terms.constant(*n)),
            Operation::Copy { to, from } => (to, self.held(registers, *from)),
            Operation::Length { to } => (to, self.terms.intern(Term::Length)),
            Operation::Ancillary { to, what } => (to, self.terms.intern(Term::Ancillary(*what))),
            Operation::Bound { base, end } => {
                let base = base.map(|r| self.held(registers, r));
                return self.room(base, *end, wanted);
            }
            // What a filter reports is no part of its verdict.
            Operation::Note { .. } => return Ok(Some(())),
            Operation::NotZero { register } => {
                let term = self.held(registers, *register);
                wanted.push((term, Intervals::one(0).complement()));
                return Ok(Some(()));
            }
            Operation::Load { to, base, offset, size } => {
                let base = base.map(|r| self.held(registers, r));
                match self.load(base, *offset, *size, wanted)? {
                    Some(term) => (to, term),
                    None => return Ok(None),
                }
            }
            Operation::HeaderLength { to, offset } => {
                let Some(byte) = self.load(None, *offset, 1, wanted)? else { return Ok(None) };
                let (mask, two) = (self.terms.constant(0xf), self.terms.constant(2));
                let half = self.terms.binary(Binary::And, byte, mask);
                match half.and_then(|half| self.terms.binary(Binary::ShiftLeft, half, two)) {
                    Some(term) => (to, term),
                    None => return Ok(None),
                }
            }
            Operation::Binary { op, to, a, b } => {
                let (a, b) = (self.operand(registers, *a), self.operand(registers, *b));
                if matches!(op, Binary::Div | Binary::Mod) {
                    wanted.push((b, Intervals::one(0).complement()));
                }
                match self.terms.binary(*op, a, b) {
                    Some(term) => (to, term),
                    None => return Ok(None),
                }
            }
            Operation::Negate { to, a } => {
                let (zero, a) = (self.terms.constant(0), self.held(registers, *a));
                match self.terms.binary(Binary::Sub, zero, a) {
                    Some(term) => (to, term),
                    None => return Ok(None),
                }
            }
            Operation::IsGreater { to, a, b } => {
                let (a, b) = (self.operand(registers, *a), self.operand(registers, *b));
                (to, self.terms.is_greater(a, b))
            }
        };
        registers.insert(*to, term);
        Ok(Some(()))
    }

    /// The packet must reach `end` bytes behind the base.
    fn room(
        &mut self,
        base: Option<TermId>,
        end: u64,
        wanted: &mut Vec<(TermId, Intervals)>,
    ) -> Result<Option<()>, Unproven> {
        if end == 0 {
            // Of a base behind the packet's end there is no room, but 0 bytes would be no more than that.
            return Err(Unproven::Unknown("a bound of no bytes"));
        }
        let Some((base, end)) = self.terms.place(base, end) else { return Ok(None) };
        let room = self.terms.intern(Term::Room(base));
        wanted.push((room, Intervals::range(end, u32::MAX)));
        Ok(Some(()))
    }

    fn load(
        &mut self,
        base: Option<TermId>,
        offset: u32,
        size: u8,
        wanted: &mut Vec<(TermId, Intervals)>,
    ) -> Result<Option<TermId>, Unproven> {
        if self.room(base, u64::from(offset) + u64::from(size), wanted)?.is_none() {
            return Ok(None);
        }
        // There is a place, because there is one for the end.
        let place = self.terms.place(base, u64::from(offset));
        Ok(place.map(|(base, offset)| self.terms.intern(Term::Load { base, offset, size })))
    }

    fn end(&mut self, at: BlockId, registers: &Registers) -> Result<NodeId, Unproven> {
        let program = self.program;
        match &program.blocks[at.0].end {
            End::Accept => Ok(NodeId::ACCEPT),
            End::Reject => Ok(NodeId::REJECT),
            End::Goto(to) => self.block(*to, registers),
            End::Chain { chain, yes, no } => {
                let term = self.terms.intern(Term::Chain(*chain));
                let (yes, no) = (self.block(*yes, registers)?, self.block(*no, registers)?);
                let parts = [(NO, no), (YES, yes), (OFF, NodeId::REJECT)];
                let parts = parts.into_iter().map(|(n, to)| (Intervals::one(n), to)).collect();
                Ok(self.nodes.ask(self.terms, term, parts))
            }
            End::Member { map, key, yes, no } => {
                let mut words = key.iter().map(|r| self.held(registers, *r));
                let key = std::array::from_fn(|_| words.next());
                let term = self.terms.intern(Term::Member { map: *map, key });
                let (yes, no) = (self.block(*yes, registers)?, self.block(*no, registers)?);
                // Not joined with what asks the same next: that may get another answer.
                Ok(self.nodes.ask(self.terms, term, vec![(Intervals::one(NO), no), (Intervals::one(YES), yes)]))
            }
            End::Branch { .. } | End::Lookup { .. } => {
                let (term, parts) = self.in_a_row(at, registers)?;
                self.asked(term, parts)
            }
        }
    }

    /// A question, and those behind it about the same term that nothing else is asked between.
    fn asked(&mut self, term: TermId, parts: Vec<(Intervals, NodeId)>) -> Result<NodeId, Unproven> {
        let mut all: Vec<(Intervals, NodeId)> = Vec::new();
        for (set, to) in parts {
            match self.nodes.get(to) {
                Node::Ask { term: same, parts } if *same == term => {
                    all.extend(parts.iter().map(|(s, to)| (s.intersection(&set), *to)).filter(|(s, _)| !s.is_empty()));
                }
                _ => all.push((set, to)),
            }
        }
        Ok(self.nodes.ask(self.terms, term, all))
    }

    /// The question of a block, and those of the blocks to which its `no` leads, one after the other, if they ask about the same
    /// register in the same way: one question instead of thousands.
    fn in_a_row(&mut self, at: BlockId, registers: &Registers) -> Result<(TermId, Vec<(Intervals, NodeId)>), Unproven> {
        let (term, members, yes, no) = match self.comparison(at) {
            Some(InRange { register, range, yes, mut no }) => {
                let mut ranges = vec![range];
                while let Some(next) = self.comparison(no)
                    && (next.register, next.yes) == (register, yes)
                    && self.program.blocks[no.0].operations.is_empty()
                {
                    ranges.push(next.range);
                    no = next.no;
                }
                let held = self.held(registers, register);
                let (term, members) = self.terms.simplest(held, Intervals::of(ranges));
                (term, members, yes, no)
            }
            None => self.question(at, registers),
        };
        let outside = members.complement();
        let (yes, no) = (self.block(yes, registers)?, self.block(no, registers)?);
        Ok((term, vec![(members, yes), (outside, no)]))
    }

    /// The end of a block, if it asks whether a register is in a range: by one comparison, or by two.
    fn comparison(&self, at: BlockId) -> Option<InRange> {
        let blocks = &self.program.blocks;
        let End::Branch { a: register, comparison, yes, no } = blocks[at.0].end else { return None };
        match comparison {
            Comparison::Equal(Operand::Constant(n)) => Some(InRange { register, range: (n, n), yes, no }),
            Comparison::AtLeast(Operand::Constant(low)) => match &blocks[yes.0] {
                BasicBlock {
                    operations,
                    end:
                        End::Branch {
                            a,
                            comparison: Comparison::Greater(Operand::Constant(high)),
                            yes: above,
                            no: in_range,
                        },
                } if operations.is_empty() && *a == register && *above == no && low <= *high => {
                    Some(InRange { register, range: (low, *high), yes: *in_range, no })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// What a block asks at its end, as simple as that can be: a term, a set, and where members and others go.
    fn question(&mut self, at: BlockId, registers: &Registers) -> (TermId, Intervals, BlockId, BlockId) {
        let program = self.program;
        let (term, set, yes, no) = match &program.blocks[at.0].end {
            End::Lookup { keys, table, yes, no } => {
                let (term, set) = self.looked_up(registers, keys, &program.tables[*table]);
                (term, set, *yes, *no)
            }
            End::Branch { a, comparison, yes, no } => {
                let a = self.held(registers, *a);
                let (term, set) = self.compared(registers, a, *comparison);
                (term, set, *yes, *no)
            }
            _ => (self.terms.constant(0), Intervals::none(), at, at),
        };
        let (term, set) = self.terms.simplest(term, set);
        (term, set, yes, no)
    }

    /// Whether a key is in a table, as a term and a set.
    fn looked_up(&mut self, registers: &Registers, keys: &[Register], table: &Table) -> (TermId, Intervals) {
        let members = match table {
            Table::Bitmap { first, words } => bits(*first, words),
            // A hit needs equality with what is in the slot, so that only what stands in the slot that it is sent to is found.
            Table::Hash(hash) => {
                let found = hash.slots.iter().enumerate().filter(|(i, x)| hash.slot(**x) == *i);
                Intervals::of(found.map(|(_, x)| (*x, *x)).collect())
            }
            Table::Tuples(tuples) => {
                let mut words = [None; MOST_WORDS];
                words.iter_mut().zip(keys).for_each(|(word, r)| *word = Some(self.held(registers, *r)));
                let table = self.terms.table(Tuples::of(tuples.columns.len(), tuples.found()));
                return (self.terms.intern(Term::Among(table, words)), Intervals::one(1));
            }
        };
        // Verified: there is one key.
        (self.held(registers, keys[0]), members)
    }

    fn compared(&mut self, registers: &Registers, a: TermId, comparison: Comparison) -> (TermId, Intervals) {
        let b = match comparison {
            Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) => self.operand(registers, b),
            Comparison::AnyBit(mask) => {
                let mask = self.terms.constant(mask);
                let bits = self.terms.binary(Binary::And, a, mask);
                return (bits.unwrap_or(mask), Intervals::one(0).complement());
            }
        };
        match comparison {
            Comparison::Equal(_) => {
                let difference = self.terms.binary(Binary::Sub, a, b);
                (difference.unwrap_or(a), Intervals::one(0))
            }
            Comparison::Greater(_) => (self.terms.is_greater(a, b), Intervals::one(1)),
            _ => (self.terms.is_greater(b, a), Intervals::one(0)),
        }
    }
}

/// The numbers that a bitmap holds, as a lookup finds them.
fn bits(first: u32, words: &[u32]) -> Intervals {
    let mut all = Vec::new();
    for (i, word) in words.iter().enumerate() {
        // As a lookup counts: modulo 2^32.
        let bits = (0..32u32).filter(|b| word >> b & 1 == 1);
        let numbers = bits.map(|b| first.wrapping_add(32 * i as u32).wrapping_add(b));
        all.extend(numbers.map(|x| (x, x)));
    }
    Intervals::of(all)
}

/// Per block the registers that are read there or later before they are written, in order.
fn live(program: &Program) -> Vec<Rc<Vec<Register>>> {
    let mut all: Vec<Rc<Vec<Register>>> = vec![Rc::default(); program.blocks.len()];
    for (i, block) in program.blocks.iter().enumerate().rev() {
        let next = block.end.successors();
        let mut own = FxHashSet::default();
        block.end.reads(&mut |r| {
            own.insert(r);
        });
        // A block without operations that asks about a register that lives anyway: the list of what comes is its own, too.
        if let [first, rest @ ..] = &next[..]
            && block.operations.is_empty()
        {
            let first = &all[first.0];
            let longest = rest.iter().map(|b| &all[b.0]).fold(first, |a, b| if b.len() > a.len() { b } else { a });
            let covers = |some: &[Register]| some.iter().all(|r| longest.binary_search(r).is_ok());
            let own: Vec<Register> = own.iter().copied().collect();
            if covers(&own) && next.iter().all(|b| covers(&all[b.0])) {
                all[i] = longest.clone();
                continue;
            }
        }
        own.extend(next.iter().flat_map(|b| all[b.0].iter().copied()));
        for operation in block.operations.iter().rev() {
            if let Some(to) = operation.writes() {
                own.remove(&to);
            }
            operation.reads(&mut |r| {
                own.insert(r);
            });
        }
        let mut sorted: Vec<Register> = own.into_iter().collect();
        sorted.sort_unstable();
        all[i] = Rc::new(sorted);
    }
    all
}
