//! The symbolic machine: the instruction semantics run over terms.
//!
//! Registers hold terms, memory is a hash-consed value per region, calls advance the world. The
//! machine also keeps a log of the accesses to memory that is not private, because the contract
//! restricts those beyond their final contents (design, "The equivalence contract", 4 and 6).

mod accesses;
mod calls;
mod fields;
pub(crate) mod packets;
mod values;

use bpf_facts::Env;
use bpf_isa::{AluOp, AtomicOp, Call, Imm64Kind, Insn, Reg, Size, Width};
use bpf_platform::effects::Effects;
use bpf_program::{
    ByteOrder, Link, Op, ProgKind, Symbol, access_matters, fields_matter, others_may_change, stores_matter,
};
use bpf_semantics::{Domain, Machine, atomic_new};

use crate::compare::refinement::is_aligned;
use crate::symbolic::access::{Access, Exact, Reason};
use crate::symbolic::context::Context;
use crate::symbolic::history::{Event, EventKind};
use crate::symbolic::state::{SymbolicState, memory_of};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey, read_only};
use crate::term::{MemId, TermId};

/// Versions of memory that writes through pointers of unknown origin make have numbers from here on.
const WRITES: u32 = 1 << 31;

/// Why a proof cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Memory is accessed through a value whose provenance is unknown: try again with one memory.
    #[error("a memory access through a pointer of unknown provenance")]
    Provenance,
    /// Something without a model.
    #[error("{0}")]
    Unmodelled(String),
    /// The work limit is spent.
    #[error("the proof became too large")]
    TooLarge,
}

/// Which program is being executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The original: it defines the events.
    Old,
    /// The replacement: its events are matched with those of the original.
    New,
}

/// The machine that executes one side.
pub struct Sym<'c, 'e> {
    /// Shared graph.
    pub cx: &'c mut Context,
    /// Map sizes, callees.
    pub env: &'e Env<'e>,
    /// Program kind, for context fields.
    pub kind: ProgKind,
    /// Which side runs.
    pub side: Side,
    /// Condition of the current block.
    pub guard: TermId,
    /// Current state.
    pub state: SymbolicState,
    /// Accesses so far.
    pub log: Vec<Access>,
    /// Lowest constant frame offset accessed.
    pub stack_low: i64,
    /// Some frame access was not aligned to its width.
    pub misaligned: bool,
    /// Some frame access was outside the 512 bytes.
    pub out_of_frame: bool,
    /// Only asks what would be found: an access that others could notice has no answer then.
    pub asks_only: bool,
    accesses: u32,
}

/// Where an access goes.
enum Place {
    /// To this region, at a symbolic base plus a constant.
    Known(MemoryRegion, TermId, i64),
    /// Somewhere the address does not tell; it stays as it is.
    Unknown(MemoryRegion, TermId, i64),
}

impl<'c, 'e> Sym<'c, 'e> {
    /// A machine in `state`.
    pub fn new(cx: &'c mut Context, env: &'e Env<'e>, kind: ProgKind, side: Side, state: SymbolicState) -> Sym<'c, 'e> {
        cx.byte_order = env.byte_order;
        let guard = cx.terms.tru();
        Sym {
            cx,
            env,
            kind,
            side,
            guard,
            state,
            log: Vec::new(),
            stack_low: 0,
            misaligned: false,
            out_of_frame: false,
            asks_only: false,
            accesses: 0,
        }
    }

    /// The memory of a region in the current state.
    pub fn memory(&mut self, region: &MemoryRegion) -> (u32, MemId) {
        let r = self.cx.region_id(region);
        (r, memory_of(self.cx, &mut self.state, r))
    }

    fn set_memory(&mut self, r: u32, m: MemId) {
        let i = r as usize;
        if self.state.mems.len() <= i {
            self.state.mems.resize(i + 1, None);
        }
        self.state.mems[i] = Some(m);
    }
}

/// Bytes that a helper touches one by one; of more, the whole region is taken.
const LONGEST: u32 = 4096;

impl Machine for Sym<'_, '_> {
    type Stop = Stop;

    fn byte_order(&self) -> ByteOrder {
        self.env.byte_order
    }

    fn get(&mut self, r: Reg) -> Result<TermId, Stop> {
        Ok(self.state.regs[r.index()])
    }

    fn set(&mut self, r: Reg, v: TermId) {
        self.state.regs[r.index()] = v;
    }

    fn load(&mut self, base: &TermId, off: i16, size: Size) -> Result<TermId, Stop> {
        if self.cx.exhausted() {
            return Err(Stop::TooLarge);
        }
        if let Some((c, x, y)) = self.choice(*base) {
            // Each side of a joined pointer on its own, so that it meets the original's separate accesses.
            let outer = self.guard;
            self.guard = self.cx.terms.all(&[outer, c]);
            let v = self.load(&x, off, size)?;
            let nc = self.cx.terms.not(c);
            self.guard = self.cx.terms.all(&[outer, nc]);
            let w = self.load(&y, off, size)?;
            self.guard = outer;
            let n = self.cx.terms.width(v).max(self.cx.terms.width(w));
            let (v, w) = (self.zext(&v, n), self.zext(&w, n));
            return Ok(self.cx.terms.ite(c, v, w));
        }
        let (region, sym, k) = match self.locate(*base, off, size.bytes())? {
            Place::Known(region, sym, k) => (region, sym, k),
            Place::Unknown(region, sym, k) => return Ok(self.exact_access((&region, sym, k), size, None)?.0),
        };
        if region == MemoryRegion::Ctx && !self.ctx_bytes(k, size.bytes()) {
            if self.cx.region_of(sym) != Some(MemoryRegion::Ctx) || self.cx.lookup(&VarKey::CtxPointer) != Some(sym) {
                return Err(Stop::Unmodelled("a context access at a variable offset".into()));
            }
            if self.cx.concurrent && others_may_change(self.kind, k) && !access_matters(self.kind, k, size.bytes()) {
                return self.ctx_read(sym, k, size);
            }
            return self.ctx_load(k, size);
        }
        let region = if region == MemoryRegion::Ctx { MemoryRegion::CtxBytes } else { region };
        if self.is_told(&region) {
            if self.is_managed(&region, sym, k, size) {
                return self.managed_access((&region, sym, k), size, None, false);
            }
            let bytes = self.shared_access(&region, sym, k, &vec![None; size.bytes() as usize], None)?;
            return Ok(self.cx.value_of(&bytes));
        }
        let bytes = self.read_bytes(&region, sym, k, size.bytes());
        let r = self.cx.region_id(&region);
        self.record(r, sym, k, &bytes, false);
        Ok(self.cx.value_of(&bytes))
    }

    fn store(&mut self, base: &TermId, off: i16, size: Size, v: &TermId, imm: bool) -> Result<(), Stop> {
        if self.cx.exhausted() {
            return Err(Stop::TooLarge);
        }
        if let Some((c, x, y)) = self.choice(*base) {
            let outer = self.guard;
            let before = self.state.clone();
            self.guard = self.cx.terms.all(&[outer, c]);
            self.store(&x, off, size, v, imm)?;
            let one = std::mem::replace(&mut self.state, before);
            let nc = self.cx.terms.not(c);
            self.guard = self.cx.terms.all(&[outer, nc]);
            self.store(&y, off, size, v, imm)?;
            self.guard = outer;
            self.state = crate::symbolic::state::merge(self.cx, c, &one, &self.state.clone(), bpf_isa::RegSet::ALL);
            return Ok(());
        }
        let (region, sym, k) = match self.locate(*base, off, size.bytes())? {
            Place::Known(region, sym, k) => (region, sym, k),
            Place::Unknown(region, sym, k) => {
                self.settle_reach();
                let v = self.cx.terms.extract(*v, 0, size.bits());
                let (_, number) = self.exact_access((&region, sym, k), size, Some(v))?;
                if region == MemoryRegion::Unknown {
                    self.forget_private(number);
                }
                return Ok(());
            }
        };
        if region != MemoryRegion::Stack {
            self.settle_reach();
        }
        if region == MemoryRegion::Ctx && !self.ctx_bytes(k, size.bytes()) {
            if self.cx.lookup(&VarKey::CtxPointer) != Some(sym) {
                return Err(Stop::Unmodelled("a context access at a variable offset".into()));
            }
            self.event(EventKind::CtxStore(k, size.bytes()), vec![*v], vec![]);
            self.state.ctx_version = self.state.world;
            return Ok(());
        }
        let region = if region == MemoryRegion::Ctx { MemoryRegion::CtxBytes } else { region };
        if self.is_told(&region) && self.is_managed(&region, sym, k, size) {
            self.managed_access((&region, sym, k), size, Some(*v), imm)?;
            return Ok(());
        }
        let bytes = self.cx.bytes_of(*v, size.bytes());
        if self.is_told(&region) {
            let bytes: Vec<Option<TermId>> = bytes.into_iter().map(Some).collect();
            self.shared_access(&region, sym, k, &bytes, None)?;
            return Ok(());
        }
        if let MemoryRegion::Data(section) = &region
            && read_only(section)
        {
            return Err(Stop::Unmodelled(format!("a store to {section}, which the kernel refuses")));
        }
        if region == MemoryRegion::Packet && stores_matter(self.kind) {
            self.state.packet_stored = self.cx.terms.tru();
        }
        let r = self.cx.region_id(&region);
        self.record(r, sym, k, &bytes, true);
        self.write_bytes(&region, sym, k, &bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &TermId,
        off: i16,
        size: Size,
        operand: &TermId,
        compare: Option<&TermId>,
    ) -> Result<TermId, Stop> {
        if self.asks_only {
            return Err(Stop::Unmodelled("an atomic".into()));
        }
        self.settle_reach();
        let (region, sym, k, known_place) = match self.locate(*base, off, size.bytes())? {
            Place::Known(region, sym, k) => (region, sym, k, true),
            Place::Unknown(region, sym, k) => (region, sym, k, false),
        };
        let r = self.cx.region_id(&region);
        let addr = self.cx.terms.address(sym, k);
        let insn = Insn::Atomic { op, size, base: Reg::R0, off: 0, src: Reg::R0 };
        let mut args = vec![addr, *operand];
        args.extend(compare);
        let mems =
            if known_place { self.shared_memories() } else { self.private_memories(region == MemoryRegion::Kernel) };
        let event = Event { before: self.state.world, what: EventKind::Atomic(insn), args, mems };
        let shared = self.cx.is_shared(r);
        self.cx.touched_shared |= shared;
        let plain = op == (AtomicOp::Add { fetch: false });
        // The original's atomics are events. A new one that matches none may still stand for a plain
        // load, add and store, which it then has to consume.
        let known = if self.side == Side::New { self.cx.find_event(&event, self.guard) } else { None };
        // Atomics must be aligned, whatever the CPU allows others (`check_atomic_rmw` in kernel/bpf/verifier.c).
        let alone = known.is_none()
            && (self.side == Side::New && plain && shared && known_place)
            && is_aligned(self.cx, sym, k, size.bytes());
        if !alone {
            let id = match known {
                Some(id) => id,
                None => self.cx.advance(event, self.guard, false),
            };
            self.state.world = self.cx.world(id);
            self.state.recent = None;
            self.synchronize();
            // What others wrote until now: a cmpxchg may fail just behind a load of the same place.
            if self.cx.concurrent && shared {
                let bits = size.bits();
                if !known_place && region == MemoryRegion::Unknown {
                    let world = self.state.world;
                    for (r, _) in self.private_memories(false) {
                        let m = self.cx.terms.mem_base(r, world);
                        self.set_memory(r, m);
                    }
                    self.state.ctx_version = world;
                }
                return Ok(self.cx.var(VarKey::Written(id, 0, 0), bits, Meaning::Unknown));
            }
            if !self.cx.concurrent {
                self.forget(MemoryRegion::shared);
            }
        }
        if alone && self.cx.concurrent {
            let first = self.log.len();
            let old_bytes = self.shared_access(&region, sym, k, &vec![None; size.bytes() as usize], None)?;
            let old = self.cx.value_of(&old_bytes);
            let new = atomic_new(self, op, &old, operand, compare);
            let new_bytes: Vec<_> = self.cx.bytes_of(new, size.bytes()).into_iter().map(Some).collect();
            self.shared_access(&region, sym, k, &new_bytes, None)?;
            self.log[first..].iter_mut().for_each(|a| a.atomic = true);
            return Ok(old);
        }
        let old_bytes = self.read_bytes(&region, sym, k, size.bytes());
        let old = self.cx.value_of(&old_bytes);
        let new = atomic_new(self, op, &old, operand, compare);
        let new_bytes = self.cx.bytes_of(new, size.bytes());
        if alone {
            let first = self.log.len();
            self.record(r, sym, k, &old_bytes, false);
            self.record(r, sym, k, &new_bytes, true);
            self.log[first..].iter_mut().for_each(|a| a.atomic = true);
        }
        self.write_bytes(&region, sym, k, &new_bytes);
        Ok(old)
    }

    fn cmpxchg_result(&mut self, old: &TermId) -> TermId {
        // The exchange was an event; its upper half is a value of that event nobody knows.
        let event = self.cx.terms.as_const(self.state.world).unwrap_or(0) as u32;
        let upper = self.cx.var(VarKey::Clobbered(event, 0), 32, Meaning::Scalar);
        self.cx.terms.concat(&[*old, upper])
    }

    fn fence(&mut self, base: &TermId, off: i16, size: Size, released: Option<&TermId>) -> Result<(), Stop> {
        self.settle_reach();
        let mems = self.outside();
        // Which access it is that orders the others matters.
        let mut args = vec![self.cx.terms.add_const(*base, i64::from(off))];
        args.extend(released);
        self.event(EventKind::Fence(size.bytes(), released.is_some()), args, mems);
        self.synchronize();
        // What others wrote until now.
        if !self.cx.concurrent {
            self.forget(MemoryRegion::shared);
        }
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Result<(), Stop> {
        if self.cx.exhausted() {
            return Err(Stop::TooLarge);
        }
        // No read of shared memory is merged across a call, even if that is an earlier one's repetition.
        self.state.recent = None;
        match (op.insn, &op.link) {
            (Insn::Call(Call::Helper(_)), None) => self.helper_call(op, Effects::of(&op.insn, false)),
            (Insn::Call(_), Some(Link { symbol: symbol @ (Symbol::Func { .. } | Symbol::Extern { .. }), .. })) => {
                self.opaque_call(op, self.env.arguments_of(symbol).map_or(5, |n| n.min(5)))
            }
            (Insn::CallX { reg }, _) => {
                let target = self.state.regs[reg.index()];
                let _ = target;
                Err(Stop::Unmodelled("an indirect call".into()))
            }
            _ => self.opaque_call(op, 5),
        }
    }

    fn legacy_load(&mut self, size: Size, index: Option<&TermId>, imm: i32) -> Result<(), Stop> {
        self.packet_load(size, index, imm)
    }

    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<TermId, Stop> {
        let Some(link) = link else {
            return Ok(match kind {
                Imm64Kind::Const => self.cx.terms.constant(64, imm),
                _ => self.cx.var(VarKey::Pseudo(kind as u8, imm), 64, Meaning::Unknown),
            });
        };
        let meaning = match &link.symbol {
            Symbol::Map { name, .. } => Meaning::Pointer(MemoryRegion::Map(name.clone())),
            Symbol::Data { section, offset } => {
                let start = Symbol::Data { section: section.clone(), offset: 0 };
                let region = Meaning::Pointer(MemoryRegion::Data(section.clone()));
                let base = self.cx.var(VarKey::Symbol(start), 64, region);
                self.may_be_poisoned(base);
                return Ok(self.cx.terms.add_const(base, *offset));
            }
            Symbol::Func { .. } => Meaning::Scalar,
            // A kernel variable, a function or a kconfig value; never the context.
            Symbol::Extern { .. } => Meaning::Pointer(MemoryRegion::Kernel),
            Symbol::Core { .. } => Meaning::Scalar,
        };
        // The name decides, not the place in the map table, which two objects need not share.
        let symbol = match &link.symbol {
            Symbol::Map { name, .. } => Symbol::Map { name: name.clone(), index: 0 },
            s => s.clone(),
        };
        let is_map = matches!(symbol, Symbol::Map { .. });
        let t = self.cx.var(VarKey::Symbol(symbol), 64, meaning);
        if is_map {
            self.may_be_poisoned(t);
        }
        Ok(t)
    }

    fn addr_space_cast(&mut self, v: &TermId, imm: u32) -> Result<TermId, Stop> {
        // Arithmetic on arena pointers has 32 bits, and accesses may fault silently.
        let _ = (v, imm);
        Err(Stop::Unmodelled("an arena".into()))
    }

    fn core_op(&mut self, op: &Op) -> Result<(), Stop> {
        let Some(Link { symbol, .. }) = &op.link else { return Err(Stop::Unmodelled("a lost CO-RE record".into())) };
        let symbol = symbol.clone();
        // Registers are named by what they hold, so that a renamed copy is the same.
        let inputs: Vec<TermId> = op.insn.uses().iter().map(|r| self.state.regs[r.index()]).collect();
        let shape = shape_of(op.insn);
        match op.insn {
            Insn::Alu { dst, .. } | Insn::Mov { dst, .. } | Insn::MovSx { dst, .. } | Insn::LoadImm64 { dst, .. } => {
                // An offset added to a pointer stays in the object.
                let meaning = match (op.insn, inputs.first().map(|t| self.cx.region_of(*t))) {
                    (Insn::Alu { op: AluOp::Add, width: Width::W64, .. }, Some(Some(r))) => Meaning::Pointer(r),
                    (Insn::Alu { .. }, Some(None)) => Meaning::Unknown,
                    (_, None) => Meaning::Scalar,
                    _ => return Err(Stop::Unmodelled("a CO-RE record at other arithmetic on a pointer".into())),
                };
                let t = self.cx.var(VarKey::Core(symbol, shape, inputs, vec![]), 64, meaning);
                self.may_be_poisoned(t);
                self.state.regs[dst.index()] = t;
                Ok(())
            }
            Insn::Load { dst, .. } => {
                let region = inputs.first().and_then(|t| self.cx.region_of(*t));
                let private = match &region {
                    Some(
                        MemoryRegion::Stack
                        | MemoryRegion::CallerFrame
                        | MemoryRegion::Packet
                        | MemoryRegion::Fresh
                        | MemoryRegion::CtxBytes,
                    ) => true,
                    Some(MemoryRegion::Data(section)) => read_only(section),
                    // Which field it reads, only the loader knows.
                    Some(MemoryRegion::Ctx) => !fields_matter(self.kind),
                    _ => false,
                };
                if self.cx.concurrent && !private {
                    let droppable = region.as_ref().is_some_and(MemoryRegion::shared);
                    return self.core_read(symbol, shape, inputs, dst, droppable);
                }
                let mut key_mems = vec![];
                match region {
                    Some(r) if private && r != MemoryRegion::Ctx => key_mems.push(self.memory(&r).1),
                    _ => {
                        key_mems.extend(self.outside().into_iter().map(|(_, m)| m));
                        let (_, m) = self.memory(&MemoryRegion::Stack);
                        key_mems.push(m);
                    }
                }
                let mut deps = inputs;
                // Which field it is only the loader knows; one that tells where the packet is changes with the packet.
                deps.extend([self.state.ctx_version, self.state.packet_version]);
                let t = self.cx.var(VarKey::Core(symbol, shape, deps, key_mems), 64, Meaning::Unknown);
                // Where it reads is unknown until load, too.
                self.may_be_poisoned(t);
                self.state.regs[dst.index()] = t;
                Ok(())
            }
            Insn::Store { .. } => {
                let mems = self.outside();
                let mems = self.with_stack(mems);
                self.event(EventKind::CoreStore(symbol, shape), inputs, mems);
                self.synchronize();
                self.forget(|_| true);
                self.state.ctx_version = self.state.world;
                Ok(())
            }
            // libbpf patches atomics, too (`bpf_core_patch_insn` takes the class STX).
            _ => Err(Stop::Unmodelled(format!("a CO-RE record at `{}`", op.insn))),
        }
    }
}

impl Sym<'_, '_> {
    /// A CO-RE load from memory that others may write. Where it reads and how much the loader decides; so it stays as it is.
    /// One that may be of a context stays even if nobody uses its value: it may matter by being there.
    fn core_read(
        &mut self,
        symbol: Symbol,
        shape: Insn,
        inputs: Vec<TermId>,
        dst: Reg,
        droppable: bool,
    ) -> Result<(), Stop> {
        let place = self.cx.var(VarKey::Core(symbol, shape, inputs, vec![]), 64, Meaning::Unknown);
        let sees = self.private_memories(false);
        let exact = Some(Exact { size: 8, sees, droppable, reason: Reason::Translated });
        let value = self.shared_access(&MemoryRegion::Unknown, place, 0, &[None], exact)?;
        self.state.regs[dst.index()] = value[0];
        Ok(())
    }
}

/// The instruction with its registers erased: they are accounted for by their values.
fn shape_of(insn: Insn) -> Insn {
    let z = Reg::R0;
    match insn {
        Insn::Alu { op, width, src, .. } => Insn::Alu { op, width, dst: z, src: erase(src) },
        Insn::Mov { width, src, .. } => Insn::Mov { width, dst: z, src: erase(src) },
        Insn::MovSx { width, from, .. } => Insn::MovSx { width, from, dst: z, src: z },
        Insn::LoadImm64 { kind, imm, .. } => Insn::LoadImm64 { dst: z, kind, imm },
        Insn::Load { size, sext, off, .. } => Insn::Load { size, sext, dst: z, base: z, off },
        // Stores have two inputs whose roles the order of register numbers would blur: kept whole.
        other => other,
    }
}

fn erase(src: bpf_isa::Src) -> bpf_isa::Src {
    match src {
        bpf_isa::Src::Reg(_) => bpf_isa::Src::Reg(Reg::R0),
        i => i,
    }
}

/// Whether an operation may stand inside a block: jumps may not, and what nobody knows has no meaning.
pub(crate) fn has_meaning(op: &Op) -> bool {
    let jump =
        matches!(op.insn, Insn::Jcc { .. } | Insn::Ja { .. } | Insn::MayGoto { .. } | Insn::Exit | Insn::Opaque(_));
    !jump && !op.insn.defs().contains(Reg::R10)
}
