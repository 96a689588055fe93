//! Walking all paths of a program, depth first, as the kernel's verifier does.
//!
//! One idea carries it: at the places where paths meet, states are remembered, and a path ends where an old state
//! covers the present one. "Covers" only asks about live registers, about stack slots that were read later, and about
//! numbers whose bounds mattered later; all three are learned while walking.

use std::rc::Rc;
use std::time::Instant;

use bpf_isa::{Insn, Reg};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Stop;
use crate::cfg::{Shape, operands};
use crate::compare::{Exactness, equal, forget_lonely_ids};
use crate::graph::Values;
use crate::program::Program;
use crate::scalar::Scalar;
use crate::state::{Kind, MAX_FRAMES, RegState, VerifierState};

/// `BPF_COMPLEXITY_LIMIT_INSNS`.
const MOST_PROCESSED: u64 = 1_000_000;
/// `BPF_COMPLEXITY_LIMIT_JMP_SEQ`.
const MOST_PENDING: usize = 8192;
/// Steps of history after which a state is remembered anyway.
const LONGEST_HISTORY: u32 = 40;
/// Instructions after which the clock is looked at again.
const PATIENCE: u64 = 1024;
/// No node.
const NONE: u32 = u32::MAX;

/// What comes after an instruction.
pub(crate) enum Next {
    /// The instruction at this slot.
    At(usize),
    /// Nothing: the path ends.
    End,
}

/// One bit for every eight bytes, for each frame.
pub(crate) type SlotSets = [u64; MAX_FRAMES];

/// A remembered state.
struct Node {
    parent: u32,
    /// Paths from here that are not walked to their end.
    branches: u32,
    state: VerifierState,
    /// Stack slots read after it.
    read: SlotSets,
    /// Stack slots written between its parent and it.
    written: SlotSets,
    time: u32,
    /// Where it is.
    at: usize,
    /// What was read and needed after it is not known completely: a path below it ended in a callback's next round.
    partial: bool,
    hits: u32,
    misses: u32,
}

/// A branch to be walked later.
struct Pending {
    state: VerifierState,
    at: usize,
    node: u32,
    written: SlotSets,
    path: u32,
}

/// One decision on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The conditional jump.
    pub slot: usize,
    /// Which way.
    pub taken: bool,
}

/// How much work a walk was.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Instructions processed.
    pub processed: u64,
    /// States remembered.
    pub states: u64,
}

/// A walk under way.
pub(crate) struct Walk<'a> {
    pub p: &'a Program,
    pub shape: &'a Shape,
    pub values: Values,
    pub state: VerifierState,
    pub at: usize,
    /// The function verified: 0, or a global one.
    pub root: usize,
    /// Deepest stack use of each function.
    pub depths: &'a mut Vec<i64>,
    pub effort: Effort,
    /// Accesses of the context: slot and byte.
    pub contexts: FxHashSet<(usize, i64)>,
    /// When the walk is broken off.
    pub deadline: Option<Instant>,
    nodes: Vec<Node>,
    visited: FxHashMap<usize, Vec<u32>>,
    node: u32,
    written: SlotSets,
    pending: Vec<Pending>,
    path: u32,
    decisions: Vec<(u32, Decision)>,
    next_id: u32,
    jumps: u64,
    last_jumps: u64,
    /// Jumps and stack accesses since the last state was remembered.
    history: u32,
    last_processed: u64,
}

impl<'a> Walk<'a> {
    pub fn new(p: &'a Program, shape: &'a Shape, root: usize, state: VerifierState, depths: &'a mut Vec<i64>) -> Self {
        Walk {
            p,
            shape,
            values: Values::default(),
            state,
            at: p.subs[root].start,
            root,
            depths,
            effort: Effort::default(),
            contexts: FxHashSet::default(),
            deadline: None,
            nodes: Vec::new(),
            visited: FxHashMap::default(),
            node: NONE,
            written: [u64::MAX; MAX_FRAMES],
            pending: Vec::new(),
            path: NONE,
            decisions: Vec::new(),
            next_id: 1000,
            jumps: 0,
            last_jumps: 0,
            history: 0,
            last_processed: 0,
        }
    }

    /// Walks everything; the slot says where it stopped.
    pub fn run(&mut self) -> Result<(), (usize, Stop)> {
        loop {
            let here = self.at;
            self.effort.processed += 1;
            if self.effort.processed > MOST_PROCESSED {
                let what = format!("BPF program is too large. Processed {} insn", self.effort.processed);
                return Err((here, Stop::Violation(what)));
            }
            let over = |deadline| Instant::now() >= deadline;
            if self.effort.processed.is_multiple_of(PATIENCE) && self.deadline.is_some_and(over) {
                return Err((here, Stop::OutOfTime));
            }
            let pruned = self.shape.prune.get(here) == Some(&true) && self.meet().map_err(|s| (here, s))?;
            let next = if pruned { Next::End } else { self.step().map_err(|s| (here, s))? };
            match next {
                Next::At(slot) => self.at = slot,
                Next::End => {
                    self.end_of_path();
                    let Some(next) = self.pending.pop() else { return Ok(()) };
                    (self.state, self.at, self.node) = (next.state, next.at, next.node);
                    (self.written, self.path) = (next.written, next.path);
                }
            }
        }
    }

    /// The decisions that led here, first to last.
    pub fn path(&self) -> Vec<Decision> {
        let mut path = Vec::new();
        let mut n = self.path;
        while let Some(&(parent, decision)) = self.decisions.get(n as usize) {
            path.push(decision);
            n = parent;
        }
        path.reverse();
        path
    }

    /// A fresh id.
    pub fn fresh(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Notes which way the path goes at a conditional jump.
    pub fn decide(&mut self, taken: bool) {
        self.decisions.push((self.path, Decision { slot: self.at, taken }));
        self.path = (self.decisions.len() - 1) as u32;
    }

    /// Counts a jump.
    pub fn jump(&mut self) {
        self.jumps += 1;
        self.history += 1;
    }

    /// Puts a branch aside.
    pub fn postpone(&mut self, state: VerifierState, at: usize, taken: bool) -> Result<(), Stop> {
        if self.pending.len() >= MOST_PENDING {
            let what = format!("The sequence of {} jumps is too complex.", self.pending.len() + 1);
            return Err(Stop::Violation(what));
        }
        self.decisions.push((self.path, Decision { slot: self.at, taken }));
        let path = (self.decisions.len() - 1) as u32;
        if let Some(node) = self.nodes.get_mut(self.node as usize) {
            node.branches += 1;
        }
        self.pending.push(Pending { state, at, node: self.node, written: self.written, path });
        Ok(())
    }

    fn end_of_path(&mut self) {
        let mut n = self.node;
        while let Some(node) = self.nodes.get_mut(n as usize) {
            node.branches -= 1;
            if node.branches > 0 {
                break;
            }
            n = node.parent;
        }
    }

    /// Notes that stack slots of a frame are read.
    pub fn stack_read(&mut self, frame: usize, slots: u64) {
        self.history += 1;
        let mut slots = slots & !self.written[frame];
        let mut n = self.node;
        while slots != 0
            && let Some(node) = self.nodes.get_mut(n as usize)
        {
            slots &= !node.read[frame];
            node.read[frame] |= slots;
            slots &= !node.written[frame];
            n = node.parent;
        }
    }

    /// Notes that stack slots of a frame are overwritten whole.
    pub fn stack_written(&mut self, frame: usize, slots: u64) {
        self.history += 1;
        self.written[frame] |= slots;
    }

    /// Compares with the states remembered here, and remembers this one. True if the path ends.
    fn meet(&mut self) -> Result<bool, Stop> {
        let mut remember = self.jumps - self.last_jumps >= 2 && self.effort.processed - self.last_processed >= 8;
        let calls_back = self.shape.calls_back[self.at];
        let forced = calls_back || self.history > LONGEST_HISTORY;
        remember |= forced;
        let mut known = self.visited.remove(&self.at).unwrap_or_default();
        let mut hit = None;
        let mut dead = Vec::new();
        for (position, &n) in known.iter().enumerate() {
            let node = &self.nodes[n as usize];
            let exact = match node.branches {
                0 if node.partial => Exactness::CoversAll,
                0 => Exactness::Covers,
                _ if calls_back => Exactness::CoversAll,
                _ => Exactness::Same,
            };
            let same = equal(
                &node.state,
                &self.state,
                (&self.values, node.time),
                self.at,
                &self.shape.live,
                &node.read,
                exact,
            );
            match (same, exact) {
                // `callback_unroll_depth`: another round of a callback is no endless loop.
                (true, Exactness::Same) if node.state.rounds() == self.state.rounds() => {
                    self.visited.insert(self.at, known);
                    return Err(Stop::Violation(format!("infinite loop detected at insn {}", self.at)));
                }
                (true, Exactness::Covers | Exactness::CoversAll) => {
                    hit = Some(n);
                    break;
                }
                _ => {}
            }
            if exact == Exactness::Same
                && !forced
                && self.jumps - self.last_jumps < 20
                && self.effort.processed - self.last_processed < 100
            {
                // In a loop: not too often.
                remember = false;
            }
            let node = &mut self.nodes[n as usize];
            if remember {
                node.misses += 1;
            }
            if node.misses > node.hits * 3 + 3 {
                dead.push(position);
            }
        }
        for position in dead.into_iter().rev() {
            let n = known.remove(position);
            // Its place in the tree stays, its contents are of no use any more.
            let node = &mut self.nodes[n as usize];
            node.state = VerifierState { frames: Vec::new(), held: Vec::new(), lock: None };
        }
        if let Some(n) = hit {
            self.nodes[n as usize].hits += 1;
            self.inherit(n);
            if self.nodes[n as usize].partial || self.nodes[n as usize].branches > 0 {
                self.know_partly();
            }
        } else if remember {
            known.push(self.remember());
        }
        self.visited.insert(self.at, known);
        Ok(hit.is_some())
    }

    /// The states between here and the helper that calls back will be incomplete.
    fn know_partly(&mut self) {
        let mut n = self.node;
        while let Some(node) = self.nodes.get_mut(n as usize).filter(|node| !self.shape.calls_back[node.at]) {
            node.partial = true;
            n = node.parent;
        }
    }

    /// After a round of a callback: forgets the numbers that changed and whose bounds did not matter, so that rounds
    /// soon look alike.
    pub fn widen(&mut self, callsite: usize) {
        let mut n = self.node;
        while let Some(node) = self.nodes.get(n as usize) {
            if node.at == callsite && node.state.frames.len() == self.state.frames.len() {
                break;
            }
            n = node.parent;
        }
        let Some(node) = self.nodes.get(n as usize) else { return };
        let values = &mut self.values;
        let mut settle = |old: &RegState, new: &mut RegState| {
            let scalars = old.is_scalar() && new.is_scalar() && old.num != new.num;
            if scalars && !values.is_precise(old.version, node.time) && !values.is_precise(new.version, node.time) {
                *new = RegState::scalar(Scalar::TOP, values.new_value(0, 0));
            }
        };
        for (old, new) in node.state.frames.iter().zip(&mut self.state.frames) {
            let new = Rc::make_mut(new);
            old.regs.iter().zip(&mut new.regs).for_each(|(a, b)| settle(a, b));
            for (a, b) in old.stack.iter().zip(&mut new.stack) {
                if let (Some(a), Some(b)) = (&a.spilled, &mut b.spilled) {
                    settle(a, Rc::make_mut(b));
                }
            }
        }
    }

    fn remember(&mut self) -> u32 {
        let n = self.nodes.len() as u32;
        forget_lonely_ids(&mut self.state);
        self.nodes.push(Node {
            parent: self.node,
            branches: 1,
            state: self.state.clone(),
            read: [0; MAX_FRAMES],
            written: std::mem::take(&mut self.written),
            time: self.values.tick(),
            at: self.at,
            partial: false,
            hits: 0,
            misses: 0,
        });
        self.node = n;
        self.last_jumps = self.jumps;
        self.history = 0;
        self.last_processed = self.effort.processed;
        self.effort.states += 1;
        n
    }

    /// What was read and needed after an old state is read and needed after this one, which ends there.
    fn inherit(&mut self, n: u32) {
        let (read, time) = (self.nodes[n as usize].read, self.nodes[n as usize].time);
        for (frame, slots) in read.into_iter().enumerate() {
            self.stack_read(frame, slots);
        }
        let mut needed = Vec::new();
        let old = &self.nodes[n as usize].state;
        let values = &self.values;
        let mut pair = |a: &RegState, b: &RegState| {
            if a.kind == Kind::Scalar && values.is_precise(a.version, time) {
                needed.push(b.version);
            }
        };
        for (a, b) in old.frames.iter().zip(&self.state.frames) {
            a.regs.iter().zip(&b.regs).for_each(|(a, b)| pair(a, b));
            for (a, b) in a.stack.iter().zip(&b.stack) {
                if let (Some(a), Some(b)) = (&a.spilled, &b.spilled) {
                    pair(a, b);
                }
            }
        }
        for v in needed {
            self.values.need(v);
        }
    }

    /// A register that must have a value.
    pub fn read(&self, r: Reg) -> Result<RegState, Stop> {
        let reg = *self.state.reg(r);
        if reg.kind == Kind::NotInit { bad(format!("R{} !read_ok", r.index())) } else { Ok(reg) }
    }

    /// Number of the running frame.
    pub fn depth(&self) -> usize {
        self.state.frames.len() - 1
    }

    fn step(&mut self) -> Result<Next, Stop> {
        let Some(insn) = self.p.slots.get(self.at).and_then(|s| s.insn) else {
            return bad("invalid insn idx");
        };
        operands(&insn)?;
        let next = self.at + insn.slots();
        match insn {
            Insn::Alu { op, width, dst, src } => self.alu(op, width, dst, src)?,
            Insn::Mov { width, dst, src } => self.mov(width, dst, src)?,
            Insn::MovSx { width, from, dst, src } => self.mov_sx(width, from, dst, src)?,
            Insn::Neg { width, dst } => self.negate(width, dst)?,
            Insn::Endian { bits, dst, .. } => self.swap(bits, dst)?,
            Insn::LoadImm64 { dst, kind, imm } => self.load_imm64(dst, kind, imm)?,
            Insn::Load { size, sext, dst, base, off } => self.load(size, sext, dst, base, off)?,
            Insn::LoadAcquire { size, dst, base, off } => self.load(size, false, dst, base, off)?,
            Insn::Store { size, base, off, src } => self.store(size, base, off, src)?,
            Insn::StoreRelease { size, base, off, src } => self.store(size, base, off, bpf_isa::Src::Reg(src))?,
            Insn::Atomic { op, size, base, off, src } => self.atomic(op, size, base, off, src)?,
            Insn::LdAbs { .. } => self.packet_load(None)?,
            Insn::LdInd { src, .. } => self.packet_load(Some(src))?,
            Insn::Ja { off, .. } => {
                self.jump();
                return Ok(Next::At((next as i64 + i64::from(off)) as usize));
            }
            Insn::Jcc { cond, width, dst, src, off } => {
                self.jump();
                let target = (next as i64 + i64::from(off)) as usize;
                return self.branch(cond, width, dst, src, target).map(Next::At);
            }
            Insn::Call(call) => return self.call(call).map(Next::At),
            Insn::Exit => return self.exit(),
            Insn::MayGoto { .. } => return unsure("may_goto loops are not followed"),
            Insn::AddrSpaceCast { .. } => return unsure("arenas are not followed"),
            Insn::CallX { .. } | Insn::Opaque(_) => return bad("unknown opcode"),
        }
        Ok(Next::At(next))
    }
}

/// A violation.
pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Violation(what.into()))
}

/// Something this crate does not follow.
pub(crate) fn unsure<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::CannotTell(what.into()))
}
