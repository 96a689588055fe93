//! The data structure: functions, basic blocks, operations with their origin, symbolic references.

use std::fmt;
use std::sync::Arc;

use bpf_isa::{Cond, Insn, Reg, RegSet, Src, Width};

use crate::{ByteOrder, ProgKind};

/// Index of a basic block in [`Function::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The index as a `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// What a relocated instruction refers to. Names are unique within one object; to compare two objects, the names of
/// one are replaced by those of their partners in the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Symbol {
    /// The map of this identity; `index` is its place in the object's map table.
    Map {
        /// Unique name.
        name: Arc<str>,
        /// Index into the object's map table.
        index: usize,
    },
    /// A byte of a global data section (`.data`, `.rodata`, `.bss`).
    Data {
        /// Unique section name.
        section: Arc<str>,
        /// Byte offset inside the section.
        offset: i64,
    },
    /// A function of this object: callee of a bpf-to-bpf call, or a callback whose address is taken.
    Func {
        /// Unique name, which its graph has too.
        name: Arc<str>,
    },
    /// An undefined symbol: kernel variable, kfunc, kconfig value.
    Extern {
        /// Symbol name.
        name: Arc<str>,
    },
    /// A value patched by a CO-RE relocation: unknown until load.
    Core {
        /// `bpf_core_relo_kind`.
        kind: u32,
        /// BTF type id of the root type.
        type_id: u32,
        /// Access string such as `0:1:2`.
        access: Arc<str>,
    },
}

/// The tie between an instruction and the records of the original slot it stands for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    /// Slot in the original function whose relocation and CO-RE records travel with this instruction.
    pub slot: usize,
    /// What the loader will put there.
    pub symbol: Symbol,
}

/// A non-terminator instruction with its history.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// The instruction. For linked ones the patched field is meaningless until load.
    pub insn: Insn,
    /// Slot of the original instruction this one descends from, for line information.
    pub origin: Option<usize>,
    /// Present when the loader patches this instruction.
    pub link: Option<Link>,
}

impl Op {
    /// An instruction without history or relocation.
    pub fn new(insn: Insn) -> Op {
        Op { insn, origin: None, link: None }
    }

    /// The same with a line-information origin.
    pub fn with_origin(insn: Insn, origin: Option<usize>) -> Op {
        Op { insn, origin, link: None }
    }

    /// Whether a CO-RE record hangs on it: such an instruction must keep its shape.
    pub fn is_core(&self) -> bool {
        matches!(self.link, Some(Link { symbol: Symbol::Core { .. }, .. }))
    }
}

/// How a block ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Terminator {
    /// Unconditional transfer (an explicit `goto`, or falling through).
    Goto(BlockId),
    /// Conditional jump.
    Branch {
        /// Condition.
        cond: Cond,
        /// Compare 32 or 64 bits.
        width: Width,
        /// Left operand.
        dst: Reg,
        /// Right operand.
        src: Src,
        /// Successor when the condition holds.
        taken: BlockId,
        /// Successor when it does not.
        fall: BlockId,
        /// Original slot.
        origin: Option<usize>,
    },
    /// `may_goto`: a bounded-loop break the kernel decides at run time.
    MayGoto {
        /// Successor when the kernel's budget is spent.
        taken: BlockId,
        /// Successor otherwise.
        fall: BlockId,
        /// Original slot.
        origin: Option<usize>,
    },
    /// `exit`
    Exit {
        /// Original slot.
        origin: Option<usize>,
    },
}

impl Terminator {
    /// Successors in order taken, fall-through.
    pub fn successors(&self) -> impl Iterator<Item = BlockId> {
        let (a, b) = match *self {
            Terminator::Goto(t) => (Some(t), None),
            Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
                (Some(taken), Some(fall))
            }
            Terminator::Exit { .. } => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// Rewrites every successor through `f`.
    pub fn map_successors(&mut self, mut f: impl FnMut(BlockId) -> BlockId) {
        match self {
            Terminator::Goto(t) => *t = f(*t),
            Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
                *taken = f(*taken);
                *fall = f(*fall);
            }
            Terminator::Exit { .. } => {}
        }
    }

    /// The branch with every register it names replaced; `None` for what ends a block otherwise, which names none.
    #[must_use]
    pub fn map_regs(&self, f: impl Fn(Reg) -> Reg) -> Option<Terminator> {
        let Terminator::Branch { cond, width, dst, src, taken, fall, origin } = *self else { return None };
        let (dst, src) = (f(dst), src.reg().map_or(src, |r| Src::Reg(f(r))));
        Some(Terminator::Branch { cond, width, dst, src, taken, fall, origin })
    }

    /// Registers the terminator itself reads.
    pub fn uses(&self) -> RegSet {
        match self {
            Terminator::Branch { dst, src, .. } => {
                let u = RegSet::of(*dst);
                src.reg().map_or(u, |r| u.with(r))
            }
            Terminator::Exit { .. } => RegSet::of(Reg::R0),
            _ => RegSet::EMPTY,
        }
    }

    /// Original slot, where the terminator was an instruction.
    pub fn origin(&self) -> Option<usize> {
        match self {
            Terminator::Goto(_) => None,
            Terminator::Branch { origin, .. } | Terminator::MayGoto { origin, .. } | Terminator::Exit { origin } => {
                *origin
            }
        }
    }
}

/// A basic block: straight-line operations, then one terminator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// Operations in order; none of them transfers control (`ld_abs` may exit, as an event).
    pub ops: Vec<Op>,
    /// How it ends.
    pub term: Terminator,
}

/// What all callers of a subprogram pass in one argument register.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Argument {
    /// Anything: a number, a pointer to memory, or to the context.
    #[default]
    Unknown,
    /// A number.
    Number,
    /// The context of the program, which [`Function::kind`] describes.
    Context,
    /// A pointer into memory of this kind, or null if it may be.
    Pointer(Pointee, bool),
}

/// What memory an argument points into.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Pointee {
    /// The frame of a caller.
    CallerFrame,
    /// A value of the map with this index.
    MapValue(usize),
    /// A value of some map.
    AnyMapValue,
    /// The map with this index itself.
    Map(usize),
    /// A data section.
    Data(Arc<str>),
    /// Packet data or metadata.
    Packet,
    /// The packet's end.
    PacketEnd,
}

impl Argument {
    /// What holds of an argument that is one of the two.
    #[must_use]
    pub fn join(&self, o: &Argument) -> Argument {
        match (self, o) {
            (a, b) if a == b => a.clone(),
            (Argument::Pointer(p, m), Argument::Pointer(q, n)) if p == q => Argument::Pointer(p.clone(), *m || *n),
            (Argument::Pointer(p, m), Argument::Pointer(q, n)) => match (p, q) {
                (Pointee::MapValue(_) | Pointee::AnyMapValue, Pointee::MapValue(_) | Pointee::AnyMapValue) => {
                    Argument::Pointer(Pointee::AnyMapValue, *m || *n)
                }
                _ => Argument::Unknown,
            },
            _ => Argument::Unknown,
        }
    }
}

/// One function as a graph. Block 0 is the entry. [`Function::layout`] is the order in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Symbol name, for messages.
    pub name: String,
    /// What the kernel runs it as; of a subprogram that is only called by programs of one kind, with their context in
    /// r1, that kind.
    pub kind: ProgKind,
    /// What all callers pass in r1 to r5, if it is a subprogram whose callers are known.
    pub arguments: Option<[Argument; 5]>,
    /// The order of bytes of the machine it is for.
    pub byte_order: ByteOrder,
    /// Blocks, indexed by [`BlockId`]. A block absent from `layout` is dead.
    pub blocks: Vec<Block>,
    /// Order of the live blocks in memory; the first is the entry.
    pub layout: Vec<BlockId>,
}

impl Function {
    /// Whether functions of the program call it, or may: what [`Function::kind`] tells is that of their context if it is given
    /// that.
    pub fn is_called(&self) -> bool {
        self.kind == ProgKind::Subprogram || self.arguments.is_some()
    }

    /// The block with this id.
    pub fn block(&self, b: BlockId) -> &Block {
        &self.blocks[b.index()]
    }

    /// The block with this id, for changing.
    pub fn block_mut(&mut self, b: BlockId) -> &mut Block {
        &mut self.blocks[b.index()]
    }

    /// The entry block.
    pub fn entry(&self) -> BlockId {
        self.layout.first().copied().unwrap_or(BlockId(0))
    }

    /// Lets the operations of a block from this one on stand behind its branch, once on each side: in new blocks at the end of the
    /// layout, each with the block that it leads to. That is the same program if none of them sets what the branch asks for.
    pub fn move_behind_branch(&mut self, b: BlockId, from: usize) -> Vec<(BlockId, BlockId)> {
        let moved = self.block_mut(b).ops.split_off(from);
        let mut term = self.block(b).term.clone();
        let mut made = Vec::new();
        term.map_successors(|to| {
            let new = BlockId(self.blocks.len() as u32);
            self.blocks.push(Block { ops: moved.clone(), term: Terminator::Goto(to) });
            self.layout.push(new);
            made.push((new, to));
            new
        });
        self.block_mut(b).term = term;
        made
    }
}

impl fmt::Display for Terminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Terminator::Goto(t) => write!(f, "goto {t}"),
            Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
                let jcc = Insn::Jcc { cond: *cond, width: *width, dst: *dst, src: *src, off: 0 }.to_string();
                let head = jcc.split(" goto").next().unwrap_or("");
                write!(f, "{head} goto {taken} else {fall}")
            }
            Terminator::MayGoto { taken, fall, .. } => write!(f, "may_goto {taken} else {fall}"),
            Terminator::Exit { .. } => write!(f, "exit"),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in &self.layout {
            writeln!(f, "{b}:")?;
            for op in &self.block(b).ops {
                writeln!(f, "    {}", op.insn)?;
            }
            writeln!(f, "    {}", self.block(b).term)?;
        }
        Ok(())
    }
}
