//! Along a trail: the instructions of a run, over terms.

use std::sync::Arc;

use bpf_facts::Env;
use bpf_isa::{Insn, Reg, Size};
use bpf_platform::packet_pointer_offset;
use bpf_program::{BlockId, FieldKind, Function, Op, ProgKind, Symbol, Terminator};
use bpf_semantics::interp::Step;
use bpf_semantics::{branch, exec};

use super::given::Given;
use super::leaves::Leaves;
use super::observe::Observed;
use super::place::{FRAME_BYTES, Lookup, PACKET, Role, Scripted};
use crate::options::Limits;
use crate::symbolic::context::Context;
use crate::symbolic::entry::register_regions;
use crate::symbolic::state::{SymbolicState, dead_value};
use crate::symbolic::symex::{Side, Stop, Sym};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{Node, TermId};

/// A branch of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Branch {
    /// The function: the one that was run, or one of those beside it.
    pub function: Option<usize>,
    /// The block that ends with it.
    pub block: BlockId,
    /// Whether the run took it.
    pub taken: bool,
}

/// A condition that holds in the run.
pub(super) struct Condition {
    pub term: TermId,
    /// The branch; `None`: what must hold for the run to get on.
    pub branch: Option<Branch>,
    pub leaves: Leaves,
}

/// The conditions of a run's path.
pub struct Path<'a> {
    pub(super) cx: Context,
    pub(super) given: &'a dyn Given,
    pub(super) observed: Observed,
    pub(super) conditions: Vec<Condition>,
    pub(super) lookups: Vec<Lookup>,
    pub(super) scripted: Vec<Scripted>,
    /// Start, end and length of the packet, if the program has one.
    pub(super) packet: Option<[TermId; 3]>,
    /// How many bytes are behind its linear part, if it may have such.
    pub(super) tail: Option<TermId>,
    /// Branches that were met, though of some no condition is known.
    branches: usize,
}

/// The number of the made-up variable for the part of a packet that is not linear.
pub(super) const TAIL: u32 = 1 << 19;

/// Why a walk does not go on.
pub(super) enum End {
    /// The trail ends here.
    Trail,
    /// The program has ended early.
    Exit,
}

/// A walk.
pub(super) struct Walk<'a, 'c, 'e> {
    pub sym: Sym<'c, 'e>,
    pub given: &'a dyn Given,
    pub observed: Observed,
    pub conditions: Vec<Condition>,
    pub lookups: Vec<Lookup>,
    pub scripted: Vec<Scripted>,
    pub packet: Option<[TermId; 3]>,
    pub tail: Option<TermId>,
    pub env: &'a Env<'a>,
    /// Calls of something outside of the program so far.
    pub calls: usize,
    /// Maps that the program has changed so far.
    pub changed: Vec<Arc<str>>,
    others: &'a [Arc<Function>],
    trail: &'a [Step],
    at: usize,
    depth: i64,
    branches: usize,
}

impl<'a> Path<'a> {
    /// Follows `main`, which may call `others`, along a trail that a run on `given` has left.
    pub fn along(
        main: &Function,
        others: &'a [Arc<Function>],
        trail: &'a [Step],
        given: &'a dyn Given,
        env: &'a Env<'a>,
        limits: Limits,
    ) -> Path<'a> {
        let mut cx = Context::new(limits);
        // Nobody else writes meanwhile, and no address of the frame is anywhere but where it is seen.
        cx.concurrent = false;
        cx.frame_not_escaped = true;
        cx.frame_spilled = false;
        let ops = std::iter::once(main).chain(others.iter().map(Arc::as_ref));
        register_regions(&mut cx, env, ops.flat_map(|f| f.blocks.iter()).flat_map(|b| &b.ops));
        let state = entry(&mut cx);
        let mut walk = Walk {
            sym: Sym::new(&mut cx, env, main.kind, Side::Old, state),
            given,
            observed: Observed::new(),
            conditions: Vec::new(),
            lookups: Vec::new(),
            scripted: Vec::new(),
            packet: None,
            tail: None,
            env,
            calls: 0,
            changed: Vec::new(),
            others,
            trail,
            at: 0,
            depth: 0,
            branches: 0,
        };
        walk.begin(main.kind);
        if walk.next() == Some(Step::Enter(None)) {
            // However it ends: what is known so far is known.
            let _ = walk.function(main, None);
        }
        let Walk { observed, conditions, lookups, scripted, packet, tail, branches, .. } = walk;
        Path { cx, given, observed, conditions, lookups, scripted, packet, tail, branches }
    }

    /// The branches of the run on which a question can be asked, with the number to ask by.
    pub fn branches(&self) -> impl Iterator<Item = (usize, Branch)> + '_ {
        let asked = |(i, c): (usize, &Condition)| Some((i, c.branch.filter(|_| !c.leaves.unknown)?));
        self.conditions.iter().enumerate().filter_map(asked)
    }

    /// How many branches of the run hang on its input as far as is known, and how many there were.
    pub fn followed(&self) -> (usize, usize) {
        (self.conditions.iter().filter(|c| c.branch.is_some()).count(), self.branches)
    }
}

/// The state at entry of a program.
fn entry(cx: &mut Context) -> SymbolicState {
    let dead = dead_value(cx);
    let mut regs = [dead; 11];
    regs[1] = cx.var(VarKey::CtxPointer, 64, Meaning::Pointer(MemoryRegion::Ctx));
    regs[10] = cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack));
    SymbolicState::at_entry(cx, regs)
}

impl Walk<'_, '_, '_> {
    /// What stands for the packet.
    fn begin(&mut self, kind: ProgKind) {
        let cx = &mut *self.sym.cx;
        let zero = cx.entry_world();
        let mut pointer = |field, to| {
            let offset = packet_pointer_offset(kind, field)?;
            Some(cx.var(VarKey::PacketPointer(i64::from(offset), zero), 64, Meaning::Pointer(to)))
        };
        let data = pointer(FieldKind::PacketData, MemoryRegion::Packet);
        let meta = pointer(FieldKind::PacketMeta, MemoryRegion::Packet);
        let end = pointer(FieldKind::PacketEnd, MemoryRegion::PacketEnd);
        let (Some(data), Some(end)) = (data, end) else { return };
        self.observed.set_role(cx, data, Role::Fixed(PACKET));
        self.observed.set_role(cx, end, Role::Input);
        self.observed.set_value(cx, end, PACKET + self.given.linear() as u64);
        if let Some(meta) = meta {
            self.observed.set_role(cx, meta, Role::Fixed(PACKET));
        }
        let start = cx.terms.constant(64, PACKET);
        let length = cx.terms.sub(end, start);
        self.packet = Some([data, end, length]);
        if kind != ProgKind::Skb {
            return;
        }
        // What the kernel makes of a packet.
        const PROTOCOL: i64 = 16;
        let field = |cx: &mut Context, offset| cx.var(VarKey::CtxField(offset, 4, zero), 32, Meaning::Scalar);
        let tail = cx.var(VarKey::EntryBase(TAIL), 64, Meaning::Scalar);
        let behind = self.given.packet().len().saturating_sub(self.given.linear());
        self.observed.set_role(cx, tail, Role::Environment(behind as u64));
        self.tail = Some(tail);
        let len = field(cx, 0);
        let whole = cx.terms.add(length, tail);
        let low = cx.terms.extract(whole, 0, 32);
        self.observed.set_role(cx, len, Role::Derived(low));
        if self.given.has_ethernet() {
            let protocol = field(cx, PROTOCOL);
            let region = cx.region_id(&MemoryRegion::Packet);
            let memory = cx.terms.mem_base(region, zero);
            let [high, low] = [12, 13].map(|at| cx.terms.select(memory, data, at));
            let word = cx.value_of(&[high, low]);
            let word = cx.terms.zext(word, 32);
            // Below 0x600 it is a length, and what is in the field another question.
            let seen = self.observed.value(self.sym.cx, self.given, &[], word);
            if self.sym.cx.byte_order.bytes(seen, 2)[0] >= 6 {
                self.observed.set_role(self.sym.cx, protocol, Role::Derived(word));
                let six = self.sym.cx.terms.constant(8, 6);
                let below = self.sym.cx.terms.ult(high, six);
                let real = self.sym.cx.terms.not(below);
                self.holds(real, None);
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        let step = self.trail.get(self.at).copied();
        self.at += 1;
        step
    }

    pub(super) fn peek(&self) -> Option<Step> {
        self.trail.get(self.at).copied()
    }

    /// The value of a term in the run.
    pub(super) fn observe(&mut self, t: TermId) -> u64 {
        self.observed.value(self.sym.cx, self.given, &self.lookups, t)
    }

    /// Notes a condition that should hold in the run. One that does not is misunderstood, and left out.
    pub(super) fn holds(&mut self, term: TermId, branch: Option<Branch>) {
        if self.sym.cx.terms.as_const(term).is_some() || self.observe(term) == 0 {
            return;
        }
        let leaves = Leaves::of(self.sym.cx, &self.observed, term);
        self.conditions.push(Condition { term, branch, leaves });
    }

    /// The blocks of a function, which has begun.
    pub(super) fn function(&mut self, f: &Function, number: Option<usize>) -> Result<(), End> {
        let Some(Step::Block(mut at)) = self.next() else { return Err(End::Trail) };
        loop {
            if self.sym.cx.exhausted() {
                return Err(End::Trail);
            }
            let block = f.block(at);
            for op in &block.ops {
                match self.op(op) {
                    Ok(()) => {}
                    Err(End::Exit) => {
                        self.next();
                        return Ok(());
                    }
                    Err(End::Trail) => return Err(End::Trail),
                }
            }
            // Of accesses it is only asked what they find.
            self.sym.log.clear();
            if let Terminator::Exit { .. } = block.term {
                return if self.next() == Some(Step::Leave) { Ok(()) } else { Err(End::Trail) };
            }
            let condition = match block.term {
                Terminator::Branch { cond, width, dst, src, taken, fall, .. } if taken != fall => {
                    Some((branch(&mut self.sym, cond, width, dst, src), taken))
                }
                _ => None,
            };
            let Some(Step::Block(next)) = self.next() else { return Err(End::Trail) };
            if let Some((condition, taken)) = condition {
                self.branches += 1;
                let branch = Branch { function: number, block: at, taken: next == taken };
                if let Ok(condition) = condition {
                    let condition = if branch.taken { condition } else { self.sym.cx.terms.not(condition) };
                    self.holds(condition, Some(branch));
                }
            }
            at = next;
        }
    }

    fn op(&mut self, op: &Op) -> Result<(), End> {
        // The interpreter executes these as they were compiled.
        let compiled;
        let op = match op.is_core() {
            true => {
                compiled = Op { link: None, ..op.clone() };
                &compiled
            }
            false => op,
        };
        match op.insn {
            Insn::Call(_) | Insn::CallX { .. } => self.call(op),
            Insn::LdAbs { .. } | Insn::LdInd { .. } => self.packet_load(op),
            Insn::Load { dst, size, sext, .. } => {
                let done = exec(&mut self.sym, op);
                let Some(Step::Load(found)) = self.next() else { return Err(End::Trail) };
                let found = if sext { sign_extended(found, size) } else { found };
                self.loaded(done, dst, found);
                Ok(())
            }
            Insn::Atomic { .. } | Insn::LoadAcquire { .. } => {
                let before = self.sym.state.clone();
                let done = exec(&mut self.sym, op);
                let Some(Step::Load(found)) = self.next() else { return Err(End::Trail) };
                self.restore(&before, done.is_ok());
                for r in op.insn.defs().iter() {
                    self.sym.state.regs[r.index()] = self.sym.cx.terms.constant(64, found);
                }
                Ok(())
            }
            Insn::Store { .. } | Insn::StoreRelease { .. } => {
                let before = self.sym.state.clone();
                if exec(&mut self.sym, op).is_err() {
                    // Nobody knows where it went.
                    self.sym.state = before;
                }
                self.sym.state.ctx_version = self.sym.cx.entry_world();
                Ok(())
            }
            _ => {
                if exec(&mut self.sym, op).is_err() {
                    for r in op.insn.defs().iter() {
                        self.sym.state.regs[r.index()] = dead_value(self.sym.cx);
                    }
                }
                Ok(())
            }
        }
    }

    /// What follows from others, as it does.
    fn followed_from(&self, t: TermId) -> TermId {
        match self.sym.cx.terms.node(t) {
            Node::Var(v) if !self.observed.is_element(t) => match self.observed.role(*v) {
                Role::Derived(from) => from,
                _ => t,
            },
            _ => t,
        }
    }

    /// A load has found this. Where its term says something else, or nothing, it counts as that number.
    fn loaded(&mut self, done: Result<(), Stop>, dst: Reg, found: u64) {
        let t = self.sym.state.regs[dst.index()];
        if done.is_ok() {
            let t = self.followed_from(t);
            self.sym.state.regs[dst.index()] = t;
            let address = self.sym.cx.holds_pointer(t) || self.sym.cx.region_of(t).is_some();
            if address || self.sym.cx.terms.as_const(t) == Some(found) {
                return;
            }
            if self.observe(t) == found && !Leaves::of(self.sym.cx, &self.observed, t).unknown {
                return;
            }
        }
        self.sym.state.regs[dst.index()] = self.sym.cx.terms.constant(64, found);
    }

    /// A call leaves memory and context as they were, save what is known to be written.
    pub(super) fn restore(&mut self, before: &SymbolicState, keep_stack: bool) {
        let stack = self.sym.cx.region_id(&MemoryRegion::Stack) as usize;
        let now = std::mem::take(&mut self.sym.state.mems);
        self.sym.state.mems.clone_from(&before.mems);
        if keep_stack && let Some(Some(m)) = now.get(stack) {
            if self.sym.state.mems.len() <= stack {
                self.sym.state.mems.resize(stack + 1, None);
            }
            self.sym.state.mems[stack] = Some(*m);
        }
        self.sym.state.ctx_version = before.ctx_version;
        self.sym.state.packet_version = before.packet_version;
        self.sym.state.lookups.clear();
    }

    fn call(&mut self, op: &Op) -> Result<(), End> {
        let Some(Step::Enter(Some(number))) = self.peek() else { return self.outside(op) };
        let named = op.link.as_ref().is_some_and(|l| matches!(l.symbol, Symbol::Func { .. }));
        if !named {
            return self.outside(op);
        }
        self.next();
        self.enter(number)
    }

    /// A function of the program in a frame of its own.
    pub(super) fn enter(&mut self, number: usize) -> Result<(), End> {
        let Some(f) = self.others.get(number).cloned() else { return Err(End::Trail) };
        let saved = self.sym.state.regs;
        let dead = dead_value(self.sym.cx);
        for r in [0, 6, 7, 8, 9] {
            self.sym.state.regs[r] = dead;
        }
        self.depth += 1;
        let frame = self.sym.cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack));
        self.sym.state.regs[10] = self.sym.cx.terms.add_const(frame, -FRAME_BYTES * self.depth);
        self.function(&f, Some(number))?;
        self.depth -= 1;
        let result = self.sym.state.regs[0];
        self.sym.state.regs = saved;
        self.sym.state.regs[0] = result;
        for r in 1..=5 {
            self.sym.state.regs[r] = dead;
        }
        Ok(())
    }
}

fn sign_extended(v: u64, size: Size) -> u64 {
    let up = 64 - size.bits();
    (((v << up) as i64) >> up) as u64
}
