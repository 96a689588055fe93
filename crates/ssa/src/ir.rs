//! The data structure: values, instructions, blocks with parameters, edges with arguments.
//!
//! One idea: a register is a place, a [`Value`] is what is in it. Every value has one definition: an instruction, or a
//! parameter of a block, to which each edge into the block gives an argument (this is what other compilers write as
//! φ). What an instruction reads are [`Operand`]s: values, constants, and addresses of the own frame.
//!
//! Whatever has an effect (loads, stores, calls) stays in the order in which it stands in its block; nothing but a pass
//! that knows why moves it. Loads and stores carry the region that the facts gave their address.

use bpf_facts::{Region, Value as Fact};
use bpf_isa::{AluOp, AtomicOp, Call, Cond, Endian, Insn, Reg, Size, Width};
use bpf_platform::Effects;
use bpf_program::{Link, ProgKind};

/// A value: the result of one instruction, or a parameter of a block. Index into [`Ssa::values`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Value(pub u32);

impl Value {
    /// The index as a `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A block. Index into [`Ssa::blocks`]; blocks of the lifted function keep their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block(pub u32);

impl Block {
    /// The index as a `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Operand {
    /// A value.
    Value(Value),
    /// A number.
    Const(i64),
    /// The address `r10 + n`.
    Frame(i32),
}

impl Operand {
    /// The value, if it is one.
    pub fn value(self) -> Option<Value> {
        match self {
            Operand::Value(v) => Some(v),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn constant(self) -> Option<i64> {
        match self {
            Operand::Const(c) => Some(c),
            _ => None,
        }
    }
}

/// What an instruction does. The operands it reads stand in [`Inst::args`], in the order given here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A number put into a register. No operand.
    Const(i64),
    /// The address `r10 + n` put into a register. No operand.
    Frame(i32),
    /// The operand itself: stands in the place of an instruction that turned out to compute a known value.
    Copy,
    /// Nothing: the operand is in some register here, and no code says so. See [`crate::passes::detours`].
    Keep,
    /// Arithmetic: left, right.
    Alu(AluOp, Width),
    /// The low 32 bits, zero-extended.
    Low32,
    /// Sign-extension of the low bits.
    SignExtend(Width, Size),
    /// `-x`
    Neg(Width),
    /// A change of byte order.
    Endian(Endian, u8),
    /// A load: address. Plus this offset.
    Load {
        /// Width.
        size: Size,
        /// Sign-extending.
        sext: bool,
        /// Bytes from the address.
        off: i16,
    },
    /// A store: address, what is stored.
    Store {
        /// Width.
        size: Size,
        /// Bytes from the address.
        off: i16,
    },
    /// An atomic operation: address, operand; of a compare-and-exchange also the expected value.
    Atomic {
        /// Operation.
        op: AtomicOp,
        /// Width.
        size: Size,
        /// Bytes from the address.
        off: i16,
    },
    /// A legacy packet load at a constant: the socket buffer.
    LdAbs(Size, i32),
    /// A legacy packet load: the socket buffer, the index.
    LdInd(Size, i32),
    /// A call: its arguments, r1 first.
    Call(Call),
    /// A call of a function whose address is in a register: the address, then its arguments.
    CallIndirect,
    /// An `ld_imm64` that stands for something else than a number: a map, a section, a function. No operand.
    Address(Insn),
    /// An instruction that the loader patches (CO-RE), or whose parts are not looked into: the registers it names, in the
    /// order of [`roles`](crate::roles).
    Opaque(Insn),
}

/// An instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub args: Vec<Operand>,
    /// The value it defines.
    pub result: Option<Value>,
    /// What the loader patches in.
    pub link: Option<Link>,
    /// Region of its address, where it has one and the facts know.
    pub region: Option<Region>,
    /// Slot of the original instruction that it descends from.
    pub origin: Option<usize>,
}

impl Inst {
    /// An instruction without address and link.
    pub fn new(op: Op, args: Vec<Operand>, result: Option<Value>, origin: Option<usize>) -> Inst {
        Inst { op, args, result, link: None, region: None, origin }
    }

    /// Whether it does nothing but compute its result from its operands: it may be removed, moved and shared.
    pub fn is_pure(&self) -> bool {
        match &self.op {
            Op::Const(_)
            | Op::Frame(_)
            | Op::Copy
            | Op::Alu(..)
            | Op::Low32
            | Op::SignExtend(..)
            | Op::Neg(_)
            | Op::Endian(..) => self.link.is_none(),
            Op::Address(_) => true,
            _ => false,
        }
    }

    /// Whether it is a call that does nothing but give what all such calls of a run of such a program give.
    pub fn is_constant_call(&self, kind: ProgKind) -> bool {
        let is_constant = |call| Effects::of(&Insn::Call(call), self.link.is_some()).is_constant();
        kind.stays_on_its_processor() && matches!(self.op, Op::Call(call) if is_constant(call))
    }

    /// Whether it may go if nobody reads its result. An instruction with a CO-RE record goes with its record.
    pub fn is_removable(&self) -> bool {
        match &self.op {
            Op::Load { .. } => true,
            Op::Call(call) => Effects::of(&Insn::Call(*call), self.link.is_some()).may_be_left_out(),
            Op::Opaque(insn) => matches!(
                insn,
                Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::LoadImm64 { .. } | Insn::Load { .. }
            ),
            _ => self.is_pure(),
        }
    }
}

/// An edge: where it leads, and what the parameters there become.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// The block.
    pub to: Block,
    /// One argument for each of its parameters.
    pub args: Vec<Operand>,
}

/// How a block ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// On to another block.
    Goto(Edge),
    /// A question.
    Branch {
        /// Condition.
        cond: Cond,
        /// Compare 32 or 64 bits.
        width: Width,
        /// Left operand.
        a: Operand,
        /// Right operand.
        b: Operand,
        /// Where it leads if it holds.
        taken: Edge,
        /// Where it leads if it does not.
        fall: Edge,
        /// Original slot.
        origin: Option<usize>,
    },
    /// A question that the kernel answers.
    MayGoto {
        /// Where it leads when the budget is spent.
        taken: Edge,
        /// Where it leads otherwise.
        fall: Edge,
        /// Original slot.
        origin: Option<usize>,
    },
    /// The end, with what r0 holds.
    Exit {
        /// r0; `None` if nothing has set it (a function that returns nothing).
        value: Option<Operand>,
        /// Original slot.
        origin: Option<usize>,
    },
}

impl Term {
    /// The edges, taken first.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        let (a, b) = match self {
            Term::Goto(e) => (Some(e), None),
            Term::Branch { taken, fall, .. } | Term::MayGoto { taken, fall, .. } => (Some(taken), Some(fall)),
            Term::Exit { .. } => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// The edges for changing, taken first.
    pub fn edges_mut(&mut self) -> impl Iterator<Item = &mut Edge> {
        let (a, b) = match self {
            Term::Goto(e) => (Some(e), None),
            Term::Branch { taken, fall, .. } | Term::MayGoto { taken, fall, .. } => (Some(taken), Some(fall)),
            Term::Exit { .. } => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// What the question itself, or the end, reads; not the arguments of edges.
    pub fn reads(&self) -> impl Iterator<Item = Operand> {
        let (a, b) = match self {
            Term::Branch { a, b, .. } => (Some(*a), Some(*b)),
            Term::Exit { value, .. } => (*value, None),
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// All operands, those of edges included, for changing.
    pub fn operands_mut(&mut self) -> Vec<&mut Operand> {
        match self {
            Term::Goto(e) => e.args.iter_mut().collect(),
            Term::Branch { a, b, taken, fall, .. } => {
                [a, b].into_iter().chain(&mut taken.args).chain(&mut fall.args).collect()
            }
            Term::MayGoto { taken, fall, .. } => taken.args.iter_mut().chain(&mut fall.args).collect(),
            Term::Exit { value, .. } => value.iter_mut().collect(),
        }
    }

    /// All operands, those of edges included.
    pub fn operands(&self) -> Vec<Operand> {
        self.reads().chain(self.edges().flat_map(|e| e.args.iter().copied())).collect()
    }
}

/// A block: parameters, instructions in order, an end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockData {
    /// Values that the edges into the block define.
    pub params: Vec<Value>,
    /// Instructions in order.
    pub insts: Vec<Inst>,
    /// How it ends.
    pub term: Term,
}

/// What is known of a value wherever it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueData {
    /// Number or pointer, known bits and range, as the facts have it where the value is defined.
    pub fact: Fact,
    /// The register in which the original function held it: a hint for allocation.
    pub home: Option<Reg>,
}

/// A function in SSA form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ssa {
    /// Symbol name.
    pub name: String,
    /// What the kernel runs it as.
    pub kind: ProgKind,
    /// Registers set at the entry, and the values they hold: the parameters of the entry block.
    pub entry_regs: Vec<Reg>,
    /// Blocks, by number. Those not in `layout` are gone.
    pub blocks: Vec<BlockData>,
    /// Blocks in the order of memory; the first is the entry, and no edge leads there.
    pub layout: Vec<Block>,
    /// What is known of each value.
    pub values: Vec<ValueData>,
}

impl Ssa {
    /// The entry block.
    pub fn entry(&self) -> Block {
        self.layout.first().copied().unwrap_or(Block(0))
    }

    /// The block.
    pub fn block(&self, b: Block) -> &BlockData {
        &self.blocks[b.index()]
    }

    /// The block, for changing.
    pub fn block_mut(&mut self, b: Block) -> &mut BlockData {
        &mut self.blocks[b.index()]
    }

    /// A new value of which this is known.
    pub fn new_value(&mut self, fact: Fact, home: Option<Reg>) -> Value {
        self.values.push(ValueData { fact, home });
        Value(self.values.len() as u32 - 1)
    }

    /// A new value like another.
    pub fn new_value_like(&mut self, v: Value) -> Value {
        let data = self.values[v.index()].clone();
        self.values.push(data);
        Value(self.values.len() as u32 - 1)
    }

    /// What is known of an operand.
    pub fn fact(&self, o: Operand) -> Fact {
        match o {
            Operand::Value(v) => self.values[v.index()].fact.clone(),
            Operand::Const(c) => Fact::constant(c as u64),
            Operand::Frame(n) => Fact::pointer(Region::Stack, bpf_facts::BaseId::Fixed, i64::from(n)),
        }
    }

    /// Replaces values by operands wherever they are read, through chains.
    pub fn replace(&mut self, with: &rustc_hash::FxHashMap<Value, Operand>) {
        if with.is_empty() {
            return;
        }
        let find = |mut o: Operand| {
            for _ in 0..=with.len() {
                match o.value().and_then(|v| with.get(&v)) {
                    Some(next) => o = *next,
                    None => break,
                }
            }
            o
        };
        for b in self.layout.clone() {
            let block = self.block_mut(b);
            block.insts.iter_mut().flat_map(|i| &mut i.args).for_each(|o| *o = find(*o));
            block.term.operands_mut().into_iter().for_each(|o| *o = find(*o));
        }
    }

    /// How often each value is read.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut n = vec![0; self.values.len()];
        for b in &self.layout {
            let block = self.block(*b);
            let reads = block.insts.iter().flat_map(|i| i.args.iter().copied()).chain(block.term.operands());
            reads.filter_map(Operand::value).for_each(|v| n[v.index()] += 1);
        }
        n
    }
}
