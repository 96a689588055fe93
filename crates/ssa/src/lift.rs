//! From the graph of a function to SSA.
//!
//! Registers, and the spill slots that [`crate::slots`] found to be private, are *variables*. A block that several edges
//! lead to gets a parameter for each variable that is live there and set on every way; parameters that can only be one
//! thing go at the end. Moves between registers leave no trace: they only say which value is in which place.
//!
//! What cannot be lifted is refused with a reason, and nothing is done to that function.

use bpf_facts::{Analysis, Effect, Env, State};
use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, RegSet, Src, Width};
use bpf_program::{BlockId, Function, Op as Operation, Terminator, predecessors, reverse_postorder};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::slots::{self, Slots};
use crate::{Block, BlockData, Edge, Inst, Op, Operand, Ssa, Term, Value};

/// Why a function stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// An instruction that the form has no place for.
    #[error("{block}: no form for `{insn}`")]
    NoForm {
        /// Where.
        block: BlockId,
        /// The instruction.
        insn: String,
    },
    /// A register is read that not every way there has set.
    #[error("{block}: {reg} is read, and not set on every way there")]
    Unset {
        /// Where.
        block: BlockId,
        /// The register.
        reg: Reg,
    },
    /// More blocks or instructions than are worked on.
    #[error("the function has {0} instructions, too many")]
    TooLarge(usize),
}

/// Operations of a function at most.
const LARGEST: usize = 20_000;

/// Registers that an instruction names: those it reads, and the one it sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roles {
    /// Registers read; the one that is also set, if any, first.
    pub uses: Vec<Reg>,
    /// The register set.
    pub def: Option<Reg>,
    /// Whether the first register read is the one set.
    pub tied: bool,
}

/// The roles of the registers that an instruction names, for instructions without an implicit register.
pub fn roles(insn: &Insn) -> Roles {
    let (mut uses, mut tied) = (vec![], false);
    match *insn {
        Insn::Alu { dst, src, .. } => {
            uses = vec![dst];
            uses.extend(src.reg());
            tied = true;
        }
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => {
            uses = vec![dst];
            tied = true;
        }
        Insn::Mov { src, .. } => uses.extend(src.reg()),
        Insn::MovSx { src, .. } => uses = vec![src],
        Insn::Load { base, .. } => uses = vec![base],
        Insn::Store { base, src, .. } => {
            uses = vec![base];
            uses.extend(src.reg());
        }
        _ => {}
    }
    Roles { uses, def: insn.def(), tied }
}

/// Lifts a function. Private spill slots become values if `promote`.
///
/// # Errors
/// Why it stays as it is.
pub fn lift(f: &Function, env: &Env<'_>, promote: bool) -> Result<Ssa, Refusal> {
    let size: usize = f.layout.iter().map(|b| f.block(*b).ops.len() + 1).sum();
    if size > LARGEST {
        return Err(Refusal::TooLarge(size));
    }
    let analysis = Analysis::of(f, env);
    let slots = if promote { slots::private(f, &analysis) } else { Slots::default() };
    let mut lifter = Lifter::new(f, env, &analysis, slots);
    lifter.run()?;
    let mut ssa = lifter.out;
    simplify_params(&mut ssa);
    Ok(ssa)
}

/// A register or a slot: registers by their number, slots from 10 on.
type Var = usize;
const FIRST_SLOT: Var = 10;

struct Lifter<'a> {
    f: &'a Function,
    env: &'a Env<'a>,
    analysis: &'a Analysis,
    slots: Slots,
    order: Vec<BlockId>,
    preds: Vec<Vec<BlockId>>,
    /// Variables that may be read, and that are set on every way, at each block's entry.
    live: Vec<Vec<bool>>,
    set: Vec<Vec<bool>>,
    /// What each variable holds at the end of each block.
    end: Vec<Vec<Option<Operand>>>,
    out: Ssa,
}

/// What an operation does to the variables.
struct Touch {
    reads: Vec<Var>,
    /// Set to something.
    sets: Vec<Var>,
    /// Left without a value.
    clears: Vec<Var>,
}

impl<'a> Lifter<'a> {
    fn new(f: &'a Function, env: &'a Env<'a>, analysis: &'a Analysis, slots: Slots) -> Lifter<'a> {
        let order = reverse_postorder(f).0;
        let n = f.blocks.len();
        let none = BlockData { params: vec![], insts: vec![], term: Term::Exit { value: None, origin: None } };
        let out = Ssa {
            name: f.name.clone(),
            kind: f.kind,
            entry_regs: vec![],
            blocks: vec![none; n],
            layout: f.layout.iter().filter(|b| order.contains(b)).map(|b| Block(b.0)).collect(),
            values: vec![],
        };
        let preds = predecessors(f);
        let mut l =
            Lifter { f, env, analysis, slots, order, preds, live: vec![], set: vec![], end: vec![vec![]; n], out };
        l.flow();
        l
    }

    fn vars(&self) -> usize {
        FIRST_SLOT + self.slots.len()
    }

    fn states(&self, b: BlockId) -> Vec<State> {
        let s = self.analysis.facts().states(self.f, b);
        if s.is_empty() { vec![State::top(); self.f.block(b).ops.len() + 1] } else { s }
    }

    fn touch(&self, b: BlockId, i: usize, state: &State) -> Touch {
        let op = &self.f.block(b).ops[i];
        let var = |r: Reg| r.index();
        if let Some((slot, stores)) = self.slots.access(b, i) {
            let slot = FIRST_SLOT + slot;
            return match op.insn {
                Insn::Store { src, .. } if stores => {
                    Touch { reads: src.reg().map(var).into_iter().collect(), sets: vec![slot], clears: vec![] }
                }
                _ => Touch { reads: vec![slot], sets: op.insn.def().map(var).into_iter().collect(), clears: vec![] },
            };
        }
        let reads = Effect::of(state, op, self.env).uses.regs.without(Reg::R10).iter().map(var).collect();
        let defs = op.insn.defs();
        let calls = defs == RegSet::CALLER_SAVED;
        let set = if calls { RegSet::of(Reg::R0) } else { defs };
        Touch { reads, sets: set.iter().map(var).collect(), clears: defs.minus(set).iter().map(var).collect() }
    }

    /// Liveness and definedness of all variables.
    fn flow(&mut self) {
        let (n, vars) = (self.f.blocks.len(), self.vars());
        let touches: Vec<Vec<Touch>> = (0..n as u32)
            .map(|i| {
                let b = BlockId(i);
                let states = self.states(b);
                (0..self.f.block(b).ops.len()).map(|i| self.touch(b, i, &states[i])).collect()
            })
            .collect();
        let mut live = vec![vec![false; vars]; n];
        let mut changed = true;
        while changed {
            changed = false;
            for &b in self.order.iter().rev() {
                let term = &self.f.block(b).term;
                let mut now = vec![false; vars];
                for s in term.successors() {
                    now.iter_mut().zip(&live[s.index()]).for_each(|(x, y)| *x |= *y);
                }
                term.uses().without(Reg::R10).iter().for_each(|r| now[r.index()] = true);
                for t in touches[b.index()].iter().rev() {
                    t.sets.iter().chain(&t.clears).for_each(|v| now[*v] = false);
                    t.reads.iter().for_each(|v| now[*v] = true);
                }
                changed |= now != live[b.index()];
                live[b.index()] = now;
            }
        }
        let entry = self.f.entry();
        let given = if self.f.is_called() { 1..6 } else { 1..2 };
        let mut set = vec![vec![true; vars]; n];
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &self.order {
                let mut now = vec![true; vars];
                if b == entry {
                    now = (0..vars).map(|v| given.contains(&v)).collect();
                }
                for p in &self.preds[b.index()] {
                    let mut out = set[p.index()].clone();
                    for t in &touches[p.index()] {
                        t.clears.iter().for_each(|v| out[*v] = false);
                        t.sets.iter().for_each(|v| out[*v] = true);
                    }
                    now.iter_mut().zip(&out).for_each(|(x, y)| *x &= *y);
                }
                changed |= now != set[b.index()];
                set[b.index()] = now;
            }
        }
        (self.live, self.set) = (live, set);
    }

    /// Variables that a block gets as parameters, if it gets any.
    fn wanted(&self, b: BlockId) -> Vec<Var> {
        (0..self.vars()).filter(|v| self.live[b.index()][*v] && self.set[b.index()][*v]).collect()
    }

    fn has_params(&self, b: BlockId) -> bool {
        b == self.f.entry() || self.preds[b.index()].len() != 1 || {
            // Both sides of one jump.
            let p = self.preds[b.index()][0];
            self.f.block(p).term.successors().filter(|s| *s == b).count() > 1
        }
    }

    fn run(&mut self) -> Result<(), Refusal> {
        let entry = self.f.entry();
        for b in self.order.clone() {
            let states = self.states(b);
            let mut now: Vec<Option<Operand>> = vec![None; self.vars()];
            if self.has_params(b) {
                for v in self.wanted(b) {
                    let fact = match Reg::new(v as u8).filter(|_| v < FIRST_SLOT) {
                        Some(r) => states[0].reg(r).clone(),
                        None => self.slots.known(v - FIRST_SLOT, &states[0]),
                    };
                    let value = self.out.new_value(fact, Reg::new(v as u8).filter(|_| v < FIRST_SLOT));
                    self.out.block_mut(Block(b.0)).params.push(value);
                    now[v] = Some(Operand::Value(value));
                }
            } else {
                now.clone_from(&self.end[self.preds[b.index()][0].index()]);
            }
            for i in 0..self.f.block(b).ops.len() {
                self.operation(b, i, &states, &mut now)?;
            }
            self.end[b.index()] = now;
        }
        for b in self.order.clone() {
            let term = self.terminator(b)?;
            self.out.block_mut(Block(b.0)).term = term;
        }
        self.out.entry_regs = self.wanted(entry).into_iter().filter_map(|v| Reg::new(v as u8)).collect();
        if !self.preds[entry.index()].is_empty() {
            self.entry_before(entry);
        }
        Ok(())
    }

    /// A loop leads back to the entry: a new entry leads into it.
    fn entry_before(&mut self, entry: BlockId) {
        let old = self.out.block(Block(entry.0)).params.clone();
        let params: Vec<Value> = old.iter().map(|v| self.out.new_value_like(*v)).collect();
        let args = params.iter().map(|v| Operand::Value(*v)).collect();
        let new = Block(self.out.blocks.len() as u32);
        self.out.blocks.push(BlockData { params, insts: vec![], term: Term::Goto(Edge { to: Block(entry.0), args }) });
        self.out.layout.insert(0, new);
    }

    fn edge(&self, from: BlockId, to: BlockId) -> Result<Edge, Refusal> {
        let mut args = vec![];
        if self.has_params(to) {
            for v in self.wanted(to) {
                let reg = Reg::new(v.min(9) as u8).unwrap_or(Reg::R0);
                args.push(self.end[from.index()][v].ok_or(Refusal::Unset { block: from, reg })?);
            }
        }
        Ok(Edge { to: Block(to.0), args })
    }

    fn terminator(&self, b: BlockId) -> Result<Term, Refusal> {
        let end = &self.end[b.index()];
        let read = |r: Reg| match r {
            Reg::R10 => Ok(Operand::Frame(0)),
            r => end[r.index()].ok_or(Refusal::Unset { block: b, reg: r }),
        };
        Ok(match &self.f.block(b).term {
            Terminator::Goto(t) => Term::Goto(self.edge(b, *t)?),
            Terminator::Branch { cond, width, dst, src, taken, fall, origin } => Term::Branch {
                cond: *cond,
                width: *width,
                a: read(*dst)?,
                b: match src {
                    Src::Reg(r) => read(*r)?,
                    Src::Imm(i) => Operand::Const(i64::from(*i)),
                },
                taken: self.edge(b, *taken)?,
                fall: self.edge(b, *fall)?,
                origin: *origin,
            },
            Terminator::MayGoto { taken, fall, origin } => {
                Term::MayGoto { taken: self.edge(b, *taken)?, fall: self.edge(b, *fall)?, origin: *origin }
            }
            Terminator::Exit { origin } => Term::Exit { value: end[0], origin: *origin },
        })
    }

    fn operation(
        &mut self,
        b: BlockId,
        i: usize,
        states: &[State],
        now: &mut [Option<Operand>],
    ) -> Result<(), Refusal> {
        let operation: &Operation = &self.f.block(b).ops[i];
        let (insn, origin) = (operation.insn, operation.origin);
        let no_form = || Refusal::NoForm { block: b, insn: insn.to_string() };
        let read = |now: &[Option<Operand>], r: Reg| match r {
            Reg::R10 => Ok(Operand::Frame(0)),
            r => now[r.index()].ok_or(Refusal::Unset { block: b, reg: r }),
        };
        let source = |now: &[Option<Operand>], s: Src| match s {
            Src::Reg(r) => read(now, r),
            Src::Imm(n) => Ok(Operand::Const(i64::from(n))),
        };
        if let Some((slot, stores)) = self.slots.access(b, i) {
            let slot = FIRST_SLOT + slot;
            match insn {
                Insn::Store { src, .. } if stores => now[slot] = Some(source(now, src)?),
                _ => {
                    let dst = insn.def().ok_or_else(no_form)?;
                    now[dst.index()] = Some(now[slot].ok_or(Refusal::Unset { block: b, reg: dst })?);
                }
            }
            return Ok(());
        }
        let region = insn.memory_operand().and_then(|m| states[i].reg(m.base).region().cloned());
        let mut args = Vec::new();
        let op = if operation.is_core() {
            let roles = roles(&insn);
            if matches!(insn, Insn::Atomic { .. }) {
                return Err(no_form());
            }
            for r in &roles.uses {
                args.push(read(now, *r)?);
            }
            Op::Opaque(insn)
        } else {
            match insn {
                Insn::Mov { width: Width::W64, dst, src: Src::Reg(r) } => {
                    now[dst.index()] = Some(read(now, r)?);
                    return Ok(());
                }
                Insn::Mov { width, src: Src::Imm(n), .. } => Op::Const(match width {
                    Width::W64 => i64::from(n),
                    Width::W32 => i64::from(n as u32),
                }),
                Insn::Mov { width: Width::W32, src: Src::Reg(r), .. } => {
                    args.push(read(now, r)?);
                    Op::Low32
                }
                Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } if operation.link.is_none() => {
                    Op::Const(imm as i64)
                }
                Insn::LoadImm64 { .. } => Op::Address(insn),
                Insn::Alu { op, width, dst, src } => {
                    args.extend([read(now, dst)?, source(now, src)?]);
                    match (op, width, args[0], args[1]) {
                        (bpf_isa::AluOp::Add, Width::W64, a, Operand::Const(c))
                            if let Some(n) =
                                self.frame_address(b, a).and_then(|n| i32::try_from(i64::from(n) + c).ok()) =>
                        {
                            args.clear();
                            Op::Frame(n)
                        }
                        _ => Op::Alu(op, width),
                    }
                }
                Insn::MovSx { width, from, src, .. } => {
                    args.push(read(now, src)?);
                    Op::SignExtend(width, from)
                }
                Insn::Neg { width, dst } => {
                    args.push(read(now, dst)?);
                    Op::Neg(width)
                }
                Insn::Endian { kind, bits, dst } => {
                    args.push(read(now, dst)?);
                    Op::Endian(kind, bits)
                }
                Insn::Load { size, sext, base, off, .. } => {
                    args.push(read(now, base)?);
                    Op::Load { size, sext, off }
                }
                Insn::Store { size, base, off, src } => {
                    args.extend([read(now, base)?, source(now, src)?]);
                    Op::Store { size, off }
                }
                Insn::Atomic { op, size, base, off, src } => {
                    args.extend([read(now, base)?, read(now, src)?]);
                    if op == AtomicOp::CmpXchg {
                        args.push(read(now, Reg::R0)?);
                    }
                    Op::Atomic { op, size, off }
                }
                Insn::LdAbs { size, imm } => {
                    args.push(read(now, Reg::R6)?);
                    Op::LdAbs(size, imm)
                }
                Insn::LdInd { size, src, imm } => {
                    args.extend([read(now, Reg::R6)?, read(now, src)?]);
                    Op::LdInd(size, imm)
                }
                Insn::Call(call) => {
                    let read = Effect::of(&states[i], operation, self.env).uses.regs;
                    self.arguments(b, read, now, &mut args)?;
                    Op::Call(call)
                }
                Insn::CallX { reg } => {
                    args.push(read(now, reg)?);
                    self.arguments(b, RegSet::ARGS, now, &mut args)?;
                    Op::CallIndirect
                }
                Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } | Insn::AddrSpaceCast { .. } => {
                    return Err(no_form());
                }
                Insn::Ja { .. } | Insn::Jcc { .. } | Insn::MayGoto { .. } | Insn::Exit | Insn::Opaque(_) => {
                    return Err(no_form());
                }
            }
        };
        let calls = insn.defs() == RegSet::CALLER_SAVED;
        let def = if calls { Some(Reg::R0) } else { insn.def() };
        if calls {
            RegSet::CALLER_SAVED.iter().for_each(|r| now[r.index()] = None);
        }
        let result = def.map(|r| {
            let value = self.out.new_value(states[i + 1].reg(r).clone(), Some(r));
            now[r.index()] = Some(Operand::Value(value));
            value
        });
        let link = operation.link.clone();
        self.out.block_mut(Block(b.0)).insts.push(Inst { op, args, result, link, region, origin });
        Ok(())
    }

    /// The offset, if the operand is a constant address of the frame that was put together in this block or is r10.
    fn frame_address(&self, b: BlockId, o: Operand) -> Option<i32> {
        match o {
            Operand::Frame(n) => Some(n),
            Operand::Value(v) => {
                self.out.block(Block(b.0)).insts.iter().find(|i| i.result == Some(v)).and_then(|i| match i.op {
                    Op::Frame(n) => Some(n),
                    _ => None,
                })
            }
            Operand::Const(_) => None,
        }
    }

    /// The arguments of a call: as many as it reads and are set.
    fn arguments(
        &self,
        b: BlockId,
        read: RegSet,
        now: &[Option<Operand>],
        args: &mut Vec<Operand>,
    ) -> Result<(), Refusal> {
        for r in read.intersect(RegSet::ARGS).iter() {
            match now[r.index()] {
                Some(v) => args.push(v),
                // What a static function declares and does not read need not be set.
                None if (r.index()..=5).all(|n| now[n].is_none()) => {
                    break;
                }
                None => return Err(Refusal::Unset { block: b, reg: r }),
            }
        }
        Ok(())
    }
}

/// Parameters that can only be one thing become that thing.
pub(crate) fn simplify_params(f: &mut Ssa) -> bool {
    let mut changed = false;
    loop {
        let mut with: FxHashMap<Value, Operand> = FxHashMap::default();
        let mut incoming: FxHashMap<Block, Vec<Vec<Operand>>> = FxHashMap::default();
        for b in &f.layout {
            for e in f.block(*b).term.edges() {
                incoming.entry(e.to).or_default().push(e.args.clone());
            }
        }
        for b in f.layout.iter().skip(1) {
            let Some(edges) = incoming.get(b) else { continue };
            for (i, &p) in f.block(*b).params.iter().enumerate() {
                let mut others = edges.iter().map(|a| a[i]).filter(|o| *o != Operand::Value(p));
                let Some(first) = others.next() else { continue };
                let is_known = match first {
                    Operand::Value(v) => !with.contains_key(&v),
                    _ => true,
                };
                if is_known && others.all(|o| o == first) {
                    with.insert(p, first);
                }
            }
        }
        if with.is_empty() {
            return changed;
        }
        changed = true;
        f.replace(&with);
        remove_params(f, |v| with.contains_key(&v));
    }
}

/// Takes parameters away, with their arguments.
pub(crate) fn remove_params(f: &mut Ssa, gone: impl Fn(Value) -> bool) {
    let keep: Vec<Vec<bool>> = f.blocks.iter().map(|b| b.params.iter().map(|v| !gone(*v)).collect()).collect();
    for b in f.layout.clone() {
        let mine = &keep[b.index()];
        let block = f.block_mut(b);
        let mut i = 0;
        block.params.retain(|_| {
            i += 1;
            mine[i - 1]
        });
        for e in block.term.edges_mut() {
            let theirs = &keep[e.to.index()];
            let mut i = 0;
            e.args.retain(|_| {
                i += 1;
                theirs[i - 1]
            });
        }
    }
}
