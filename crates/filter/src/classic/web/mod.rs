//! A program as a web of questions about values, whatever registers hold when: what classic programs are made shorter in.
//!
//! A node first wants something of the packet, then asks about a value. Values are computed where they are asked for, and what that
//! wants of the packet is wanted there. Questions can be left out and change places without a look at what is loaded where; the program
//! that is made of the web computes a value where it is not there on all ways.
//!
//! | file | does |
//! |---|---|
//! | `question` | what is wanted of a packet and asked about a value |
//! | `facts` | what is known on a way |
//! | `settle` | leaves out questions whose answer is known, and makes equal nodes one |
//! | `gather` | questions about one value come together |
//! | `forms` | the programs that come of it |

mod facts;
mod forms;
mod gather;
mod question;
mod settle;

pub(crate) use forms::forms;

use rustc_hash::{FxHashMap, FxHashSet};

use facts::Facts;
use question::{Question, Want};

use crate::intervals::Intervals;
use crate::language::Binary;
use crate::order::order;
use crate::post_order::reverse_post_order;
use crate::program::{BasicBlock, BlockId, End, Operand, Operation, Program, Register};
use crate::ranges::Ranges;
use crate::simplify::simplify;

/// A node: an index of [`Web::nodes`].
type NodeId = usize;

const REJECT: NodeId = 0;
const ACCEPT: NodeId = 1;

/// What a node does behind what it wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Ask {
    Reject,
    Accept,
    Then(NodeId),
    If { question: Question, yes: NodeId, no: NodeId },
}

impl Ask {
    fn successors(&self) -> impl Iterator<Item = NodeId> + use<> {
        let of = match self {
            Ask::Reject | Ask::Accept => [None, None],
            Ask::Then(next) => [Some(*next), None],
            Ask::If { yes, no, .. } => [Some(*yes), Some(*no)],
        };
        of.into_iter().flatten()
    }

    fn map(&mut self, f: impl Fn(NodeId) -> NodeId) {
        match self {
            Ask::Reject | Ask::Accept => {}
            Ask::Then(next) => *next = f(*next),
            Ask::If { yes, no, .. } => (*yes, *no) = (f(*yes), f(*no)),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    /// Variables that are set first, and to what: only at the entry, so that they are values like others behind it.
    sets: Vec<(Register, Register)>,
    wants: Vec<Want>,
    ask: Ask,
}

/// Nodes without loops.
#[derive(Clone, PartialEq, Debug)]
struct Web {
    nodes: Vec<Node>,
    entry: NodeId,
    definitions: FxHashMap<Register, Operation>,
    /// What is known of values whatever the packet.
    known: Facts,
    registers: u32,
}

impl Web {
    /// The web of a program. `None`: it has what no node stands for, or is too large.
    fn of(program: &Program) -> Option<Web> {
        /// In larger ones it takes seconds to see what is known.
        const MOST: usize = 12_000;
        if program.blocks.len() > MOST {
            return None;
        }
        let program = simplify(program);
        let ranges = Ranges::of(&program);
        let Program { blocks, registers, .. } = program;
        let mut web =
            Web { nodes: Vec::new(), entry: 2, definitions: FxHashMap::default(), known: Facts::default(), registers };
        let copied = |operation: &Operation| match operation {
            Operation::Copy { to, from } => Some((*to, *from)),
            _ => None,
        };
        let sets: Vec<(Register, Register)> = blocks.first()?.operations.iter().filter_map(copied).collect();
        let variables: FxHashSet<Register> = sets.iter().map(|(to, _)| *to).collect();
        if variables.len() != sets.len() || sets.iter().any(|(_, from)| variables.contains(from)) {
            return None;
        }
        for (i, operation) in blocks.iter().enumerate().flat_map(|(i, b)| b.operations.iter().map(move |o| (i, o))) {
            if matches!(operation, Operation::Copy { .. }) && i > 0 || matches!(operation, Operation::Note { .. }) {
                return None;
            }
            let Some(to) = operation.writes().filter(|to| !variables.contains(to)) else { continue };
            match web.definitions.get(&to) {
                None => {}
                Some(known) if known == operation => continue,
                // The same of other operations.
                Some(Operation::HeaderLength { .. }) => continue,
                Some(_) if matches!(operation, Operation::HeaderLength { .. }) => {}
                Some(_) => return None,
            }
            web.definitions.insert(to, operation.clone());
            let range = ranges.range(to);
            if (range.least, range.greatest) != (0, u32::MAX) {
                web.known.is_among(to, Intervals::range(range.least, range.greatest));
            }
        }
        let place = |to: &BlockId| match blocks[to.0] {
            BasicBlock { ref operations, end: End::Reject } if operations.is_empty() => REJECT,
            BasicBlock { ref operations, end: End::Accept } if operations.is_empty() => ACCEPT,
            _ => to.0 + 2,
        };
        web.nodes.extend([Ask::Reject, Ask::Accept].map(|ask| Node { sets: Vec::new(), wants: Vec::new(), ask }));
        for block in &blocks {
            let ask = match &block.end {
                End::Reject => Ask::Then(REJECT),
                End::Accept => Ask::Then(ACCEPT),
                End::Goto(to) => Ask::Then(place(to)),
                End::Branch { a, comparison, yes, no } => {
                    Ask::If { question: Question { a: *a, comparison: *comparison }, yes: place(yes), no: place(no) }
                }
                End::Chain { .. } | End::Lookup { .. } | End::Member { .. } => return None,
            };
            let wants = block.operations.iter().filter_map(|operation| match operation {
                Operation::Bound { base, end } => Some(Want::Bound(*base, *end)),
                Operation::NotZero { register } => Some(Want::NotZero(*register)),
                _ => None,
            });
            web.nodes.push(Node { sets: Vec::new(), wants: wants.collect(), ask });
        }
        web.nodes[2].sets = sets;
        // What a block loads and does not ask for itself is there, or is to be there.
        for (i, block) in blocks.iter().enumerate() {
            let mut asked = variables.clone();
            web.nodes[i + 2].sets.iter().for_each(|(_, from)| web.closure(*from, &mut asked));
            web.nodes[i + 2].ask_reads().for_each(|r| web.closure(r, &mut asked));
            for want in web.nodes[i + 2].wants.clone() {
                web.want_reads(want).into_iter().for_each(|r| web.closure(r, &mut asked));
            }
            for operation in &block.operations {
                let is_loaded = operation.writes().is_none_or(|to| asked.contains(&to));
                if let Some((base, end)) = operation.wants().filter(|_| !is_loaded) {
                    web.nodes[i + 2].wants.push(Want::Bound(base, end));
                }
                if let Operation::Binary { op: Binary::Div | Binary::Mod, b: Operand::Register(b), .. } = operation
                    && !is_loaded
                {
                    web.nodes[i + 2].wants.push(Want::NotZero(*b));
                }
            }
        }
        web.shorten();
        Some(web)
    }

    /// Header lengths are one operation.
    fn shorten(&mut self) {
        let find = |r: &Operand| r.register().and_then(|r| self.definitions.get(&r));
        let mut lengths = Vec::new();
        for operation in self.definitions.values() {
            if let Operation::Binary { op: Binary::ShiftLeft, to, a: half, b: Operand::Constant(2) } = operation
                && let Some(Operation::Binary { op: Binary::And, a: byte, b: Operand::Constant(0xf), .. }) = find(half)
                && let Some(Operation::Load { base: None, offset, size: 1, .. }) = find(byte)
            {
                lengths.push((*to, *offset));
            }
        }
        for (to, offset) in lengths {
            self.definitions.insert(to, Operation::HeaderLength { to, offset });
        }
    }

    fn want_reads(&self, want: Want) -> Option<Register> {
        match want {
            Want::Bound(base, _) => base,
            Want::NotZero(r) => Some(r),
        }
    }

    /// A register, and all that it is computed of.
    fn closure(&self, r: Register, seen: &mut FxHashSet<Register>) {
        if seen.insert(r)
            && let Some(definition) = self.definitions.get(&r)
        {
            definition.reads(&mut |r| self.closure(r, seen));
        }
    }

    /// What a value wants of the packet, in order.
    fn wants_of(&self, r: Register, seen: &mut FxHashSet<Register>, wants: &mut Vec<Want>) {
        if !seen.insert(r) {
            return;
        }
        let Some(definition) = self.definitions.get(&r) else { return };
        definition.reads(&mut |r| self.wants_of(r, seen, wants));
        if let Some((base, end)) = definition.wants() {
            wants.push(Want::Bound(base, end));
        }
        if let Operation::Binary { op: Binary::Div | Binary::Mod, b: Operand::Register(b), .. } = definition {
            wants.push(Want::NotZero(*b));
        }
    }

    /// All that a node wants of the packet before it goes on.
    fn all_wants(&self, node: &Node) -> Vec<Want> {
        let (mut all, mut seen) = (Vec::new(), FxHashSet::default());
        node.sets.iter().for_each(|(_, from)| self.wants_of(*from, &mut seen, &mut all));
        for want in &node.wants {
            self.want_reads(*want).into_iter().for_each(|r| self.wants_of(r, &mut seen, &mut all));
            all.push(*want);
        }
        node.ask_reads().for_each(|r| self.wants_of(r, &mut seen, &mut all));
        all
    }

    /// The nodes that are reached, each before those that it goes on to.
    fn order(&self) -> Vec<NodeId> {
        reverse_post_order(self.nodes.len(), self.entry, |i| self.nodes[i].ask.successors())
    }

    /// The ways that lead to each node; the entry has one more.
    fn predecessors(&self) -> Vec<Vec<NodeId>> {
        let mut all = vec![Vec::new(); self.nodes.len()];
        for from in self.order() {
            for to in self.nodes[from].ask.successors() {
                all[to].push(from);
            }
        }
        all
    }

    /// The program of the web: a value is computed where it is not there on all ways.
    fn program(&self, like: &Program) -> Program {
        let order_of = self.order();
        let mut there: Vec<Option<(FxHashSet<Register>, FxHashSet<Want>)>> = vec![None; self.nodes.len()];
        there[self.entry] = Some(Default::default());
        let end = |end| BasicBlock { operations: Vec::new(), end };
        let mut blocks = vec![end(End::Reject); self.nodes.len()];
        for at in order_of {
            let Some((mut known, mut wanted)) = there[at].take() else { continue };
            let node = &self.nodes[at];
            let mut operations = Vec::new();
            for (to, from) in &node.sets {
                self.compute(*from, &mut known, &mut operations);
                operations.push(Operation::Copy { to: *to, from: *from });
            }
            for want in &node.wants {
                self.want_reads(*want).into_iter().for_each(|r| self.compute(r, &mut known, &mut operations));
                if wanted.insert(*want) {
                    operations.push(match *want {
                        Want::Bound(base, end) => Operation::Bound { base, end },
                        Want::NotZero(register) => Operation::NotZero { register },
                    });
                }
            }
            node.ask_reads().for_each(|r| self.compute(r, &mut known, &mut operations));
            let end = match node.ask {
                Ask::Reject => End::Reject,
                Ask::Accept => End::Accept,
                Ask::Then(next) => End::Goto(BlockId(next)),
                Ask::If { question: Question { a, comparison }, yes, no } => {
                    End::Branch { a, comparison, yes: BlockId(yes), no: BlockId(no) }
                }
            };
            blocks[at] = BasicBlock { operations, end };
            for next in node.ask.successors() {
                match &mut there[next] {
                    Some((registers, wants)) => {
                        registers.retain(|r| known.contains(r));
                        wants.retain(|w| wanted.contains(w));
                    }
                    none => *none = Some((known.clone(), wanted.clone())),
                }
            }
        }
        let (maps, predicates, registers) = (like.maps.clone(), like.predicates, self.registers);
        order(Program { blocks, registers, tables: Vec::new(), maps, predicates }, BlockId(self.entry))
    }

    fn compute(&self, r: Register, known: &mut FxHashSet<Register>, operations: &mut Vec<Operation>) {
        if !known.insert(r) {
            return;
        }
        if let Some(definition) = self.definitions.get(&r) {
            definition.reads(&mut |r| self.compute(r, known, operations));
            operations.push(definition.clone());
        }
    }
}

impl Node {
    fn ask_reads(&self) -> impl Iterator<Item = Register> + use<> {
        let question = match self.ask {
            Ask::If { question, .. } => Some(question),
            _ => None,
        };
        question.into_iter().flat_map(|q| q.reads().collect::<Vec<Register>>())
    }
}
