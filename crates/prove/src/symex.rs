//! The symbolic machine: the instruction semantics run over terms.
//!
//! Registers hold terms, memory is a hash-consed value per region, calls advance the world. The
//! machine also keeps a log of the accesses to memory that is not private, because the contract
//! restricts those beyond their final contents (design, "The equivalence contract", 4 and 6).

use std::sync::Arc;

use bpf_facts::Env;
use bpf_isa::{AluOp, AtomicOp, Call, Imm64Kind, Insn, Reg, Size, Width};
use bpf_platform::effects::{Argument, Effects, Extent};
use bpf_platform::helpers::Ret;
use bpf_platform::maps::Element;
use bpf_platform::{ManagedFields, maps};
use bpf_program::{
    FieldKind, Link, Op, ProgKind, Symbol, access_matters, ctx_field, fields_matter, may_read_wider, others_may_change,
    stores_matter,
};
use bpf_semantics::{Domain, Machine, atomic_new};

use crate::access::{Access, Exact, Reason};
use crate::context::{Context, Possible};
use crate::history::{Event, EventKind, WORLD_BITS};
use crate::refinement::{is_aligned, missing};
use crate::state::{Lookup, Recent, State, memory_of};
use crate::term::{MemId, Node, TermId};
use crate::variables::{Meaning, Region, VarKey, read_only};

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
    pub state: State,
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
    Known(Region, TermId, i64),
    /// Somewhere the address does not tell; it stays as it is.
    Unknown(Region, TermId, i64),
}

impl<'c, 'e> Sym<'c, 'e> {
    /// A machine in `state`.
    pub fn new(cx: &'c mut Context, env: &'e Env<'e>, kind: ProgKind, side: Side, state: State) -> Sym<'c, 'e> {
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
    pub fn memory(&mut self, region: &Region) -> (u32, MemId) {
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

    fn locate(&mut self, base: TermId, off: i16, align: u32) -> Result<Place, Stop> {
        let addr = self.cx.terms.add_const(base, i64::from(off));
        let (sym, k) = self.cx.terms.split_address(addr);
        let region = match self.cx.region_of(addr) {
            Some(Region::Map(_) | Region::PacketEnd) | None => {
                let to_frame = if self.cx.concurrent { self.cx.frame_secret } else { self.cx.frame_private };
                if to_frame && self.cx.holds_frame(addr) {
                    return Err(Stop::Unmodelled("an access that may or may not be to the stack".into()));
                }
                match (self.cx.concurrent, self.cx.one_memory) {
                    (true, _) => return Ok(Place::Unknown(Region::Unknown, sym, k)),
                    (false, true) => Region::Anything,
                    (false, false) => return Err(Stop::Provenance),
                }
            }
            // Fields of kernel objects are translated, too.
            Some(Region::Kernel) if self.cx.concurrent => return Ok(Place::Unknown(Region::Kernel, sym, k)),
            Some(r) => r,
        };
        // Every region got its number before execution began: forgetting must reach them all.
        if !self.cx.is_registered(&region) {
            return Err(Stop::Unmodelled(format!("an access to {region:?}")));
        }
        if region == Region::Stack {
            self.check_frame(sym, k, align);
        }
        Ok(Place::Known(region, sym, k))
    }

    /// Memories nobody else sees, but which a pointer of unknown origin may lead to.
    fn private_memories(&mut self, kernel_object: bool) -> Vec<(u32, MemId)> {
        let mut found = Vec::new();
        for r in 0..self.cx.region_count() {
            let hidden = match self.cx.region(r) {
                Region::Stack => self.cx.frame_secret,
                // The registers of a task in a uprobe are the program's context (`bpf_task_pt_regs`).
                Region::CtxBytes if self.kind == ProgKind::Tracing => false,
                _ => kernel_object || self.cx.is_shared(r),
            };
            if !hidden {
                found.push((r, memory_of(self.cx, &mut self.state, r)));
            }
        }
        found
    }

    /// An access that must stay as it is. Gives the value read and the number of the old side's access.
    fn exact_access(
        &mut self,
        (region, base, off): (&Region, TermId, i64),
        size: Size,
        written: Option<TermId>,
    ) -> Result<(TermId, u32), Stop> {
        let droppable = *region == Region::Kernel || size != Size::B;
        let sees = self.private_memories(*region == Region::Kernel);
        let exact = Some(Exact { size: size.bytes(), sees, droppable, reason: Reason::Translated });
        self.shared_access(region, base, off, &[written], exact)?;
        let old = match (self.side, &self.log.last().and_then(|a| a.consumes)) {
            (Side::New, Some(i)) => self.cx.old_accesses.as_ref().map(|o| o.entry(*i).clone()),
            _ => self.log.last().cloned(),
        };
        let old = old.ok_or_else(|| Stop::Unmodelled("a lost access".into()))?;
        Ok((old.value, old.access))
    }

    /// An access of a field that the kernel manages, which the verifier takes in this form alone. Gives the value read.
    fn managed_access(
        &mut self,
        (region, base, off): (&Region, TermId, i64),
        size: Size,
        written: Option<TermId>,
        immediate: bool,
    ) -> Result<TermId, Stop> {
        let reason = Reason::Managed { immediate };
        let exact = Exact { size: size.bytes(), sees: vec![], droppable: true, reason };
        Ok(self.shared_access(region, base, off, &[written], Some(exact))?[0])
    }

    /// Whether an access may be of a field that the kernel manages.
    fn is_managed(&self, region: &Region, base: TermId, off: i64, size: Size) -> bool {
        let offset = self.cx.place_inside(base).map(|start| start.wrapping_add(off));
        let may_be = |fields: &ManagedFields| fields.may_be_accessed(offset, size.bytes());
        match region {
            Region::MapValue(name) => self.map_info(name).is_some_and(|m| may_be(&m.managed)),
            Region::AnyMapValue => self.env.maps.iter().any(|m| may_be(&m.managed)),
            Region::Data(name) => self.env.sections.iter().any(|s| s.name == **name && may_be(&s.managed)),
            _ => false,
        }
    }

    /// An access to shared memory while others write: of these bytes (or of one whole value), which are written or
    /// read. Gives their values.
    fn shared_access(
        &mut self,
        region: &Region,
        base: TermId,
        off: i64,
        written: &[Option<TermId>],
        exact: Option<Exact>,
    ) -> Result<Vec<TermId>, Stop> {
        if self.asks_only {
            return Err(Stop::Unmodelled("a value that others may write".into()));
        }
        self.cx.touched_shared = true;
        self.synchronize();
        let r = self.cx.region_id(region);
        self.accesses += 1;
        let recent = self.state.recent.take().filter(|l| exact.is_none() && l.region == r && l.base == base);
        self.cx.may_forward |= recent.is_some() && self.side == Side::Old;
        // All of it or nothing: half of a value from before and half from now is none that one read finds.
        let all_known =
            |l: &Recent| (0..written.len()).all(|i| l.bytes.iter().any(|(o, _)| *o == off.wrapping_add(i as i64)));
        let recent = recent.filter(|l| self.cx.forward && all_known(l));
        let known = |off: i64| recent.as_ref().and_then(|l| l.bytes.iter().find(|(o, _)| *o == off)).map(|(_, t)| *t);
        let mut entries: Vec<Access> = Vec::with_capacity(written.len());
        for (i, w) in written.iter().enumerate() {
            let at = off.wrapping_add(i as i64);
            let mut forwarded = false;
            let value = match (w, self.side) {
                (Some(w), _) => *w,
                (None, Side::Old) => match known(at) {
                    Some(t) => {
                        forwarded = true;
                        t
                    }
                    None => {
                        self.cx.reads += 1;
                        let bits = exact.as_ref().map_or(8, |e| e.size * 8);
                        let meaning = if bits == 64 { Meaning::Unknown } else { Meaning::Scalar };
                        let low = self.cx.var(VarKey::Read(self.cx.reads, 0), bits, meaning);
                        // It may be a field of the context that is a packet pointer, or one of a socket that is -1.
                        let may_be_context = *region == Region::Unknown;
                        let field = matches!(self.cx.terms.node(base), Node::Var(_)).then_some(at);
                        let wider =
                            |e: &Exact| e.reason == Reason::Translated && may_read_wider(field, e.size, may_be_context);
                        if exact.as_ref().is_some_and(wider) {
                            let upper = self.cx.var(VarKey::ReadUpper(self.cx.reads), 64 - bits, Meaning::Scalar);
                            self.cx.terms.concat(&[low, upper])
                        } else {
                            low
                        }
                    }
                },
                // Filled in below.
                (None, Side::New) => base,
            };
            entries.push(Access {
                guard: self.guard,
                world: self.state.world,
                region: r,
                base,
                off: at,
                value,
                write: w.is_some(),
                access: self.accesses,
                atomic: false,
                exact: exact.clone(),
                forwarded,
                packet: self.state.packet_version,
                consumes: None,
            });
        }
        if self.side == Side::New {
            let mut olds = self.cx.old_accesses.take().unwrap_or_default();
            let found = olds.consume(self.cx, &entries);
            let found = found.ok_or_else(|| Stop::Unmodelled(missing(&entries, region)))?;
            for (e, i) in entries.iter_mut().zip(found) {
                (e.value, e.consumes) = (olds.entry(i).value, Some(i));
            }
            self.cx.old_accesses = Some(olds);
        }
        let values: Vec<TermId> = entries.iter().map(|e| e.value).collect();
        if exact.is_none() {
            let bytes = entries.iter().map(|e| (e.off, e.value)).collect();
            self.state.recent = Some(Recent { region: r, base, bytes });
        }
        self.log.extend(entries);
        Ok(values)
    }

    /// A write through a pointer of unknown origin, the old side's access of this number, may have been anywhere
    /// that private memories are, and to the context.
    fn forget_private(&mut self, number: u32) {
        let version = self.cx.terms.constant(WORLD_BITS, u64::from(WRITES + number));
        for (r, _) in self.private_memories(false) {
            let m = self.cx.terms.mem_base(r, version);
            self.set_memory(r, m);
        }
        self.state.ctx_version = version;
    }

    /// What others have done until now may be seen from here on: another lookup may find another element.
    fn synchronize(&mut self) {
        self.state.lookups.retain(|l| l.array);
    }

    /// Whether accesses to a region are told one by one rather than by its contents.
    fn is_told(&mut self, region: &Region) -> bool {
        let r = self.cx.region_id(region);
        self.cx.concurrent && self.cx.is_shared(r)
    }

    /// A pointer that is one of two, by a condition, as far as that is near the surface of its term.
    /// A null on one side is never dereferenced in a program that was accepted.
    fn choice(&mut self, addr: TermId) -> Option<(TermId, TermId, TermId)> {
        match self.cx.terms.node(addr).clone() {
            crate::term::Node::Ite(c, x, y) if self.cx.holds_pointer(addr) => Some((c, x, y)),
            crate::term::Node::Sum(ts, k) => {
                let i = ts.iter().position(|(t, n)| {
                    *n == 1 && matches!(self.cx.terms.node(*t), crate::term::Node::Ite(..)) && self.cx.holds_pointer(*t)
                })?;
                let crate::term::Node::Ite(c, x, y) = *self.cx.terms.node(ts[i].0) else { return None };
                let mut side = |t: TermId| {
                    let mut v = ts.to_vec();
                    v[i].0 = t;
                    self.cx.terms.sum(64, v, k)
                };
                let (a, b) = (side(x), side(y));
                Some((c, a, b))
            }
            _ => None,
        }
    }

    /// Notes how deep the frame is used and whether an access is aligned to its width.
    fn check_frame(&mut self, sym: TermId, k: i64, align: u32) {
        if self.cx.lookup(&VarKey::Frame) == Some(sym) {
            self.stack_low = self.stack_low.min(k);
            self.misaligned |= k % i64::from(align) != 0;
            self.out_of_frame |= k < -512 || k > -i64::from(align);
        }
    }

    fn record(&mut self, region: u32, base: TermId, off: i64, bytes: &[TermId], write: bool) {
        // A constant place in the frame has been checked by itself.
        if *self.cx.region(region) == Region::Stack && self.cx.lookup(&VarKey::Frame) == Some(base) {
            return;
        }
        self.accesses += 1;
        self.cx.touched_shared |= self.cx.is_shared(region);
        for (i, b) in bytes.iter().enumerate() {
            self.log.push(Access {
                guard: self.guard,
                world: self.state.world,
                region,
                base,
                off: off.wrapping_add(i as i64),
                value: *b,
                write,
                access: self.accesses,
                atomic: false,
                exact: None,
                forwarded: false,
                packet: self.state.packet_version,
                consumes: None,
            });
        }
    }

    /// An instruction that the loader poisons where the kernel has no answer to its CO-RE record
    /// (`bpf_core_poison_insn` in libbpf's relo_core.c), or where the map it names is not to be created
    /// (`bpf_map__set_autocreate`; `poison_map_ldimm64` in libbpf.c). Then it must not be reached: the new side may carry it
    /// out only where the old side does.
    fn may_be_poisoned(&mut self, result: TermId) {
        let private = self.cx.region_id(&Region::CtxBytes);
        self.record(private, result, 0, &[result], false);
    }

    fn read_bytes(&mut self, region: &Region, base: TermId, off: i64, n: u32) -> Vec<TermId> {
        let (_, m) = self.memory(region);
        (0..i64::from(n)).map(|i| self.cx.terms.select(m, base, off.wrapping_add(i))).collect()
    }

    fn write_bytes(&mut self, region: &Region, base: TermId, off: i64, bytes: &[TermId]) {
        let (r, m) = self.memory(region);
        let list: Vec<(i64, TermId)> =
            bytes.iter().enumerate().map(|(i, b)| (off.wrapping_add(i as i64), *b)).collect();
        let m = self.cx.terms.store_bytes(m, base, &list);
        self.set_memory(r, m);
    }

    fn ctx_load(&mut self, off: i64, size: Size) -> Result<TermId, Stop> {
        let n = size.bytes();
        if access_matters(self.kind, off, n) {
            if self.asks_only {
                return Err(Stop::Unmodelled("a read of the context that changes the meaning of others".into()));
            }
            let args = vec![self.state.ctx_version];
            let id = self.event(EventKind::CtxRead(off, n), args, vec![]);
            return Ok(self.cx.var(VarKey::Written(id, 0, 0), n * 8, Meaning::Scalar));
        }
        let field = ctx_field(self.kind, off);
        // Not every kernel has every field, so that a program may first ask which it is: where the old side does not read
        // the field, the verifier may never have come.
        let place = field.map_or(off, |f| f.offset.into());
        let private = self.cx.region_id(&Region::CtxBytes);
        let pointer = self.cx.var(VarKey::CtxPointer, 64, Meaning::Pointer(Region::Ctx));
        self.record(private, pointer, place, &[pointer], false);
        let Some(field) = field else { return Ok(self.ctx_unknown(off, n)) };
        let inside = off.saturating_add(i64::from(n)) <= i64::from(field.offset + field.size);
        let whole = off == i64::from(field.offset) && n == field.size;
        let packet = |s: &mut Self, r: Region| {
            let v = s.state.packet_version;
            Ok(s.cx.var(VarKey::PacketPointer(off, v), 64, Meaning::Pointer(r)))
        };
        match field.kind {
            FieldKind::PacketData if whole => packet(self, Region::Packet),
            FieldKind::PacketMeta if whole => packet(self, Region::Packet),
            FieldKind::PacketEnd if whole => packet(self, Region::PacketEnd),
            FieldKind::Scalar { narrow: true } if inside => {
                let full = self.ctx_cell(i64::from(field.offset), field.size, Meaning::Scalar);
                let lo = (off - i64::from(field.offset)) as u32 * 8;
                Ok(self.cx.terms.extract(full, lo, n * 8))
            }
            FieldKind::Scalar { .. } if whole => Ok(self.ctx_cell(off, n, Meaning::Scalar)),
            FieldKind::Pointer if whole => Ok(self.ctx_cell(off, n, Meaning::Pointer(Region::Kernel))),
            _ => Ok(self.ctx_unknown(off, n)),
        }
    }

    /// A read of a field that others may change: it is made as often as before, and in its place.
    fn ctx_read(&mut self, base: TermId, off: i64, size: Size) -> Result<TermId, Stop> {
        // Nothing is known of a field that the table does not describe: it may be a packet pointer.
        let region = if ctx_field(self.kind, off).is_some() { Region::Kernel } else { Region::Unknown };
        let exact = Exact { size: size.bytes(), sees: vec![], droppable: true, reason: Reason::Translated };
        Ok(self.shared_access(&region, base, off, &[None], Some(exact))?[0])
    }

    /// A field of which nothing is known: four bytes of it may be a pointer of eight.
    fn ctx_unknown(&mut self, off: i64, n: u32) -> TermId {
        let v = self.state.ctx_version;
        let bits = if n == 4 { 64 } else { n * 8 };
        self.cx.var(VarKey::CtxField(off, n, v), bits, Meaning::Unknown)
    }

    fn ctx_cell(&mut self, off: i64, bytes: u32, meaning: Meaning) -> TermId {
        let v = self.state.ctx_version;
        self.cx.var(VarKey::CtxField(off, bytes, v), bytes * 8, meaning)
    }

    fn ctx_bytes(&self, off: i64, n: u32) -> bool {
        (0..i64::from(n))
            .all(|i| ctx_field(self.kind, off.wrapping_add(i)).is_some_and(|f| f.kind == FieldKind::Memory))
    }

    /// An event with these arguments that observes these regions; the world moves on.
    fn event(&mut self, what: EventKind, args: Vec<TermId>, mems: Vec<(u32, MemId)>) -> u32 {
        let event = Event { before: self.state.world, what, args, mems };
        let id = self.cx.advance(event, self.guard, self.side == Side::New);
        self.state.world = self.cx.world(id);
        self.state.recent = None;
        id
    }

    /// All memories except the stack, as an observer sees them. While others write, those of shared memory have no
    /// contents: that what was done to them is the same shows in the accesses.
    fn outside(&mut self) -> Vec<(u32, MemId)> {
        let mut v = Vec::new();
        for r in 0..self.cx.region_count() {
            let told = self.cx.concurrent && self.cx.is_shared(r);
            if !told && *self.cx.region(r) != Region::Stack {
                v.push((r, memory_of(self.cx, &mut self.state, r)));
            }
        }
        v
    }

    fn with_stack(&mut self, mut v: Vec<(u32, MemId)>) -> Vec<(u32, MemId)> {
        let (r, m) = self.memory(&Region::Stack);
        if !v.iter().any(|(x, _)| *x == r) {
            v.push((r, m));
        }
        v
    }

    /// Forgets the contents of the regions `f` names, as of the current world; but not what nobody writes.
    fn forget(&mut self, f: impl Fn(&Region) -> bool) {
        for r in 0..self.cx.region_count() {
            let region = self.cx.region(r).clone();
            if f(&region) && !matches!(&region, Region::Data(section) if read_only(section)) {
                let m = self.cx.terms.mem_base(r, self.state.world);
                self.set_memory(r, m);
            }
        }
    }

    fn clobber(&mut self, id: u32) {
        for r in 1..=5u8 {
            let t = self.cx.var(VarKey::Clobbered(id, r), 64, Meaning::Scalar);
            self.state.regs[r as usize] = t;
        }
    }

    fn return_value(&mut self, id: u32, meaning: Meaning) {
        self.state.regs[0] = self.cx.var(VarKey::Ret(id), 64, meaning);
    }

    /// A call about which only its inputs are known.
    fn opaque_call(&mut self, op: &Op, nargs: usize) -> Result<(), Stop> {
        let args: Vec<TermId> = (1..=nargs).map(|i| self.state.regs[i]).collect();
        let reaches = !self.cx.frame_secret || args.iter().any(|a| self.cx.may_reach_stack(*a));
        let mut mems = self.outside();
        if reaches {
            mems = self.with_stack(mems);
        }
        let symbol = op.link.as_ref().map(|l| l.symbol.clone());
        let insn = normal_call(op);
        let id = self.event(EventKind::Call(insn, symbol), args, mems);
        self.state.lookups.retain(|l| l.array);
        self.forget(|r| reaches || *r != Region::Stack);
        self.state.ctx_version = self.state.world;
        self.state.packet_version = self.state.world;
        self.clobber(id);
        self.return_value(id, Meaning::Unknown);
        Ok(())
    }

    fn helper_call(&mut self, op: &Op, e: &'static Effects) -> Result<(), Stop> {
        if e.touches_everything {
            return self.opaque_call(op, e.arguments.len());
        }
        let mut args: Vec<TermId> = Vec::new();
        let mut mems = if e.no_effect { self.shared_memories() } else { self.outside() };
        // Addresses of the frame in what it reads are spilled there, or have leaked.
        let mut whole_stack = e.indirect && (!self.cx.frame_secret || self.cx.frame_spilled);
        // The program called runs in the same frame: whoever knows its address can read what is left there.
        whole_stack |= e.is_tail_call() && !self.cx.frame_secret;
        let mut writes: Vec<(u8, Region, TermId, i64, u32)> = Vec::new();
        let mut lost = Lost::default();
        for a in &e.arguments {
            let value = self.state.regs[a.register.index()];
            if a.is_optional() && self.is_dead(value) {
                // It keeps its place among the arguments, whatever is in it.
                args.push(self.cx.var(VarKey::Dead, 64, Meaning::Scalar));
                continue;
            }
            args.push(value);
            // A pointer to something else plus the distance to the frame.
            let elsewhere = a.is_any_address() && self.cx.region_of(value) != Some(Region::Stack);
            whole_stack |= elsewhere && self.cx.may_reach_stack(value);
            match self.touched(a, e, value) {
                None => {}
                Some(Touch::Bytes { region, base, off, len, read, write }) => {
                    if region == Region::Stack && (read || (write && !a.access.overwrites())) {
                        args.extend(self.read_bytes(&region, base, off, len));
                    }
                    if write {
                        writes.push((a.register.index() as u8, region, base, off, len));
                    }
                }
                Some(Touch::Anything { region, write }) => {
                    let stack = self.cx.may_reach_stack(value);
                    whole_stack |= stack;
                    lost.stack |= write && stack;
                    if write && region != Some(Region::Stack) {
                        lost.add(region);
                    }
                }
            }
        }
        if whole_stack {
            mems = self.with_stack(mems);
        }
        let lookup = self.lookup_of(e, &args);
        if let Some(l) = &lookup
            && let Some(earlier) = self.earlier_lookup(l)
        {
            self.clobber(earlier);
            let meaning = self.lookup_result(Some(l.map));
            self.return_value(earlier, meaning);
            return Ok(());
        }
        let id = self.event(EventKind::Call(op.insn, None), args, mems);
        // What it finds, or the time, may tell that others have changed a map.
        self.synchronize();
        let map = e.map_register().map(|r| self.state.regs[r.index()]);
        // Nothing is reordered across a call: what others may write is read again behind it, even if the helper
        // touches no map (contract, 4). A lookup alone neither looks at values nor tells the time.
        if e.no_effect {
            self.forget(|r| matches!(r, Region::MapValue(_) | Region::AnyMapValue | Region::Data(_)));
        } else if !e.is_map_lookup() {
            self.forget_after(e, &lost);
        }
        for (arg, region, base, off, len) in writes {
            let bytes: Vec<TermId> =
                (0..len).map(|i| self.cx.var(VarKey::Written(id, arg, i), 8, Meaning::Scalar)).collect();
            self.write_bytes(&region, base, off, &bytes);
        }
        self.clobber(id);
        let meaning = match e.result {
            Ret::Scalar | Ret::Void | Ret::NoReturnOnSuccess => Meaning::Scalar,
            Ret::MapValueOrNull => self.lookup_result(map),
            Ret::MemOrNull => Meaning::Pointer(Region::Fresh),
            Ret::Slice | Ret::Unknown => Meaning::Unknown,
            Ret::SockOrNull | Ret::Ptr => Meaning::Pointer(Region::Kernel),
        };
        self.return_value(id, meaning);
        if let Some(l) = lookup {
            // An array has an element 0, however many the loader gives it.
            if l.array && l.key.iter().all(|b| self.cx.terms.as_const(*b) == Some(0)) {
                let zero = self.cx.terms.constant(64, 0);
                let null = self.cx.terms.eq(self.state.regs[0], zero);
                let found = self.cx.terms.not(null);
                // Only here: elsewhere, what is the same event may be a lookup of another key.
                let here = self.guard;
                let elsewhere = self.cx.terms.not(here);
                let found = self.cx.terms.any(&[elsewhere, found]);
                self.cx.assumptions.push(found);
            }
            self.state.lookups.push(Lookup { id, ..l });
        }
        Ok(())
    }

    /// Forgets what event `id`, a call with these effects, may have changed besides the bytes it surely wrote.
    fn forget_after(&mut self, e: &Effects, lost: &Lost) {
        self.state.lookups.retain(|l| l.array);
        let context = e.changes_context || lost.context();
        self.forget(|r| match r {
            Region::Packet => e.writes_packet() || lost.region(r),
            Region::CtxBytes => context || lost.region(r),
            // What ends is somebody else's memory from now on.
            Region::Fresh => e.writes_fresh || e.ends_fresh || lost.region(r),
            Region::Stack => lost.stack,
            Region::Ctx | Region::PacketEnd | Region::Map(_) => false,
            Region::MapValue(_) | Region::AnyMapValue | Region::Data(_) | Region::Kernel => true,
            Region::CallerFrame | Region::Anything | Region::Unknown => true,
        });
        if context {
            self.state.ctx_version = self.state.world;
        }
        if e.moves_packet() {
            self.state.packet_version = self.state.world;
        }
    }

    /// Whether a register holds what nobody may look at: it was clobbered, or is dead.
    fn is_dead(&self, value: TermId) -> bool {
        let crate::term::Node::Var(v) = self.cx.terms.node(value) else { return false };
        matches!(self.cx.key_of(*v), Some(VarKey::Clobbered(_, 1..=5) | VarKey::Dead))
    }

    /// The lookup that a helper call with these arguments makes, if it is one by a key in the frame in a map
    /// that a lookup does not change.
    fn lookup_of(&mut self, e: &Effects, args: &[TermId]) -> Option<Lookup> {
        let (map, key) = match args {
            [map, _, key @ ..] if e.is_lookup_by_key() && !key.is_empty() => (*map, key.to_vec()),
            _ => return None,
        };
        let Some(Region::Map(name)) = self.cx.region_of(map) else { return None };
        let map_type = self.map_type(&name)?;
        let plain = maps::holds_bytes(map_type) && !maps::evicts(map_type);
        plain.then(|| Lookup { map, key, id: 0, array: maps::is_array(map_type) })
    }

    /// An earlier lookup that surely gave what this one of the old side may give. Only where merging is
    /// asked for: that both find the same element is one of the things that may happen to the old program,
    /// while to the new one anything may happen that can.
    fn earlier_lookup(&mut self, l: &Lookup) -> Option<u32> {
        if self.side == Side::New {
            return None;
        }
        for e in self.state.lookups.clone().iter().rev().filter(|e| e.map == l.map && e.key.len() == l.key.len()) {
            let mut differ = Vec::new();
            for (x, y) in e.key.iter().zip(&l.key).filter(|(x, y)| x != y) {
                let same = self.cx.terms.eq(*x, *y);
                differ.push(self.cx.terms.not(same));
            }
            if !matches!(self.cx.possible(self.guard, &differ), Possible::Never) {
                continue;
            }
            if self.cx.merge_lookups {
                return Some(e.id);
            }
            self.cx.lookups_repeated = true;
        }
        None
    }

    fn lookup_result(&mut self, map: Option<TermId>) -> Meaning {
        match map.and_then(|m| self.cx.region_of(m)) {
            // An element of a map in map is a map, and maps of maps may share inner maps.
            Some(Region::Map(name)) => match self.map_type(&name).map(maps::element) {
                Some(Element::Map | Element::Nothing) | None => Meaning::Unknown,
                Some(Element::KernelObject) => Meaning::Pointer(Region::Kernel),
                Some(Element::Value) => Meaning::Pointer(Region::MapValue(name)),
            },
            _ => Meaning::Unknown,
        }
    }

    fn map_info(&self, name: &str) -> Option<&'e bpf_facts::MapInfo> {
        self.env.maps.iter().find(|m| m.name == name)
    }

    fn map_type(&self, name: &Arc<str>) -> Option<u32> {
        self.map_info(name).and_then(|m| m.map_type)
    }

    fn shared_memories(&mut self) -> Vec<(u32, MemId)> {
        let all = self.outside();
        all.into_iter().filter(|(r, _)| self.cx.is_shared(*r)).collect()
    }

    /// The memory a helper touches through one argument.
    fn touched(&mut self, a: &Argument, e: &Effects, value: TermId) -> Option<Touch> {
        if self.cx.terms.as_const(value) == Some(0) {
            return None;
        }
        let (read, write) = (a.access.reads, a.access.writes());
        let len = match a.extent {
            Extent::Nothing => return None,
            // Known to the verifier by its type: no memory of the program.
            Extent::Unknown if a.access.kernel_object && !self.cx.holds_frame(value) => return None,
            Extent::Unknown if a.access.kernel_object => return Some(Touch::Anything { region: None, write: true }),
            Extent::Unknown => None,
            Extent::Key => self.map_bytes(e, |m| m.key_size),
            Extent::Value if write => self.map_bytes(e, |m| m.value_size),
            Extent::Value => self.map_bytes(e, bpf_facts::MapInfo::value_bytes_read),
            Extent::Bytes(n) => Some(n),
            Extent::Register(r) => self.length(r),
        };
        match (self.cx.region_of(value), len) {
            (None | Some(Region::Map(_) | Region::PacketEnd), _) => Some(Touch::Anything { region: None, write }),
            // The context's fields are no memory of their own.
            (Some(Region::Ctx), _) => Some(Touch::Anything { region: Some(Region::Ctx), write }),
            (Some(region), Some(len)) if len <= LONGEST => {
                let (base, off) = self.cx.terms.split_address(value);
                Some(Touch::Bytes { region, base, off, len, read, write })
            }
            (region, _) => Some(Touch::Anything { region, write }),
        }
    }

    fn map_bytes(&mut self, e: &Effects, f: impl Fn(&bpf_facts::MapInfo) -> Option<u32>) -> Option<u32> {
        let map = self.state.regs[e.map_register()?.index()];
        match self.cx.region_of(map) {
            Some(Region::Map(name)) => self.map_info(&name).and_then(f),
            _ => None,
        }
    }

    /// The length that a register holds, if it is a constant.
    fn length(&self, r: Reg) -> Option<u32> {
        self.cx.terms.as_const(self.state.regs[r.index()]).and_then(|n| u32::try_from(n).ok())
    }
}

/// Bytes that a helper touches one by one; of more, the whole region is taken.
const LONGEST: u32 = 4096;

enum Touch {
    /// At most these bytes, which are written as a whole or in part.
    Bytes { region: Region, base: TermId, off: i64, len: u32, read: bool, write: bool },
    /// Whatever is in the region; `None`: in any of them.
    Anything { region: Option<Region>, write: bool },
}

/// What a call may have written without our knowing how much or where.
#[derive(Default)]
struct Lost {
    stack: bool,
    regions: Vec<Region>,
    all: bool,
}

impl Lost {
    /// The whole of `region`; of all regions but the stack, if it is not known which.
    fn add(&mut self, region: Option<Region>) {
        match region {
            Some(region) => self.regions.push(region),
            None => self.all = true,
        }
    }

    fn region(&self, r: &Region) -> bool {
        self.all || self.regions.contains(r)
    }

    fn context(&self) -> bool {
        self.region(&Region::Ctx)
    }
}

/// A subprogram call's immediate is a distance, which layout changes; the symbol names the callee.
fn normal_call(op: &Op) -> Insn {
    match (op.insn, &op.link) {
        (Insn::Call(Call::Local(_)), Some(_)) => Insn::Call(Call::Local(0)),
        (i, _) => i,
    }
}

impl Domain for Sym<'_, '_> {
    type V = TermId;
    type B = TermId;

    fn constant(&mut self, bits: u32, v: u64) -> TermId {
        self.cx.terms.constant(bits, v)
    }
    fn add(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.add(*a, *b)
    }
    fn sub(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.sub(*a, *b)
    }
    fn mul(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.mul(*a, *b)
    }
    fn udiv(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.udiv(*a, *b)
    }
    fn urem(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.urem(*a, *b)
    }
    fn sdiv(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.sdiv(*a, *b)
    }
    fn srem(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.srem(*a, *b)
    }
    fn and(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.and(*a, *b)
    }
    fn or(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.or(*a, *b)
    }
    fn xor(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.xor(*a, *b)
    }
    fn shl(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.shl(*a, *b)
    }
    fn lshr(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.lshr(*a, *b)
    }
    fn ashr(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ashr(*a, *b)
    }
    fn extract(&mut self, a: &TermId, lo: u32, bits: u32) -> TermId {
        self.cx.terms.extract(*a, lo, bits)
    }
    fn zext(&mut self, a: &TermId, bits: u32) -> TermId {
        // A 32-bit context field may be a 64-bit packet pointer: it is that wide already.
        if self.cx.terms.width(*a) >= bits { *a } else { self.cx.terms.zext(*a, bits) }
    }
    fn sext(&mut self, a: &TermId, bits: u32) -> TermId {
        self.cx.terms.sext(*a, bits)
    }
    fn concat(&mut self, high: &TermId, low: &TermId) -> TermId {
        self.cx.terms.concat(&[*low, *high])
    }
    fn ite(&mut self, c: &TermId, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ite(*c, *a, *b)
    }
    fn eq(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.eq(*a, *b)
    }
    fn ult(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ult(*a, *b)
    }
    fn slt(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.slt(*a, *b)
    }
    fn not(&mut self, a: &TermId) -> TermId {
        self.cx.terms.not(*a)
    }
}

impl Machine for Sym<'_, '_> {
    type Stop = Stop;

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
        if region == Region::Ctx && !self.ctx_bytes(k, size.bytes()) {
            if self.cx.region_of(sym) != Some(Region::Ctx) || self.cx.lookup(&VarKey::CtxPointer) != Some(sym) {
                return Err(Stop::Unmodelled("a context access at a variable offset".into()));
            }
            if self.cx.concurrent && others_may_change(self.kind, k) && !access_matters(self.kind, k, size.bytes()) {
                return self.ctx_read(sym, k, size);
            }
            return self.ctx_load(k, size);
        }
        let region = if region == Region::Ctx { Region::CtxBytes } else { region };
        if self.is_told(&region) {
            if self.is_managed(&region, sym, k, size) {
                return self.managed_access((&region, sym, k), size, None, false);
            }
            let bytes = self.shared_access(&region, sym, k, &vec![None; size.bytes() as usize], None)?;
            return Ok(self.cx.terms.concat(&bytes));
        }
        let bytes = self.read_bytes(&region, sym, k, size.bytes());
        let r = self.cx.region_id(&region);
        self.record(r, sym, k, &bytes, false);
        Ok(self.cx.terms.concat(&bytes))
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
            self.state = crate::state::merge(self.cx, c, &one, &self.state.clone(), bpf_isa::RegSet::ALL);
            return Ok(());
        }
        let (region, sym, k) = match self.locate(*base, off, size.bytes())? {
            Place::Known(region, sym, k) => (region, sym, k),
            Place::Unknown(region, sym, k) => {
                let v = self.cx.terms.extract(*v, 0, size.bits());
                let (_, number) = self.exact_access((&region, sym, k), size, Some(v))?;
                if region == Region::Unknown {
                    self.forget_private(number);
                }
                return Ok(());
            }
        };
        if region == Region::Ctx && !self.ctx_bytes(k, size.bytes()) {
            if self.cx.lookup(&VarKey::CtxPointer) != Some(sym) {
                return Err(Stop::Unmodelled("a context access at a variable offset".into()));
            }
            self.event(EventKind::CtxStore(k, size.bytes()), vec![*v], vec![]);
            self.state.ctx_version = self.state.world;
            return Ok(());
        }
        let region = if region == Region::Ctx { Region::CtxBytes } else { region };
        if self.is_told(&region) && self.is_managed(&region, sym, k, size) {
            self.managed_access((&region, sym, k), size, Some(*v), imm)?;
            return Ok(());
        }
        let bytes: Vec<TermId> = (0..size.bytes()).map(|i| self.cx.terms.extract(*v, i * 8, 8)).collect();
        if self.is_told(&region) {
            let bytes: Vec<Option<TermId>> = bytes.into_iter().map(Some).collect();
            self.shared_access(&region, sym, k, &bytes, None)?;
            return Ok(());
        }
        if let Region::Data(section) = &region
            && read_only(section)
        {
            return Err(Stop::Unmodelled(format!("a store to {section}, which the kernel refuses")));
        }
        if region == Region::Packet && stores_matter(self.kind) {
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
        let (region, sym, k, known_place) = match self.locate(*base, off, size.bytes())? {
            Place::Known(region, sym, k) => (region, sym, k, true),
            Place::Unknown(region, sym, k) => (region, sym, k, false),
        };
        let r = self.cx.region_id(&region);
        let addr = self.cx.terms.address(sym, k);
        let insn = Insn::Atomic { op, size, base: Reg::R0, off: 0, src: Reg::R0 };
        let mut args = vec![addr, *operand];
        args.extend(compare);
        let mems = if known_place { self.shared_memories() } else { self.private_memories(region == Region::Kernel) };
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
                if !known_place && region == Region::Unknown {
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
                self.forget(Region::shared);
            }
        }
        if alone && self.cx.concurrent {
            let first = self.log.len();
            let old_bytes = self.shared_access(&region, sym, k, &vec![None; size.bytes() as usize], None)?;
            let old = self.cx.terms.concat(&old_bytes);
            let new = atomic_new(self, op, &old, operand, compare);
            let new_bytes: Vec<_> = (0..size.bytes()).map(|i| Some(self.cx.terms.extract(new, i * 8, 8))).collect();
            self.shared_access(&region, sym, k, &new_bytes, None)?;
            self.log[first..].iter_mut().for_each(|a| a.atomic = true);
            return Ok(old);
        }
        let old_bytes = self.read_bytes(&region, sym, k, size.bytes());
        let old = self.cx.terms.concat(&old_bytes);
        let new = atomic_new(self, op, &old, operand, compare);
        let new_bytes: Vec<TermId> = (0..size.bytes()).map(|i| self.cx.terms.extract(new, i * 8, 8)).collect();
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
        let mems = self.outside();
        // Which access it is that orders the others matters.
        let mut args = vec![self.cx.terms.add_const(*base, i64::from(off))];
        args.extend(released);
        self.event(EventKind::Fence(size.bytes(), released.is_some()), args, mems);
        self.synchronize();
        // What others wrote until now.
        if !self.cx.concurrent {
            self.forget(Region::shared);
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
        let mut args = vec![self.state.regs[6]];
        args.extend(index);
        let mems = self.outside();
        let id = self.event(EventKind::LegacyLoad(size.bytes(), imm), args, mems);
        self.clobber(id);
        let low = self.cx.var(VarKey::Written(id, 0, 0), size.bits(), Meaning::Scalar);
        self.state.regs[0] = self.cx.terms.zext(low, 64);
        Ok(())
    }

    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<TermId, Stop> {
        let Some(link) = link else {
            return Ok(match kind {
                Imm64Kind::Const => self.cx.terms.constant(64, imm),
                _ => self.cx.var(VarKey::Pseudo(kind as u8, imm), 64, Meaning::Unknown),
            });
        };
        let meaning = match &link.symbol {
            Symbol::Map { name, .. } => Meaning::Pointer(Region::Map(name.clone())),
            Symbol::Data { section, offset } => {
                let start = Symbol::Data { section: section.clone(), offset: 0 };
                let region = Meaning::Pointer(Region::Data(section.clone()));
                let base = self.cx.var(VarKey::Symbol(start), 64, region);
                self.may_be_poisoned(base);
                return Ok(self.cx.terms.add_const(base, *offset));
            }
            Symbol::Func { .. } => Meaning::Scalar,
            // A kernel variable, a function or a kconfig value; never the context.
            Symbol::Extern { .. } => Meaning::Pointer(Region::Kernel),
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
                    Some(Region::Stack | Region::CallerFrame | Region::Packet | Region::Fresh | Region::CtxBytes) => {
                        true
                    }
                    Some(Region::Data(section)) => read_only(section),
                    // Which field it reads, only the loader knows.
                    Some(Region::Ctx) => !fields_matter(self.kind),
                    _ => false,
                };
                if self.cx.concurrent && !private {
                    let droppable = region.as_ref().is_some_and(Region::shared);
                    return self.core_read(symbol, shape, inputs, dst, droppable);
                }
                let mut key_mems = vec![];
                match region {
                    Some(r) if private && r != Region::Ctx => key_mems.push(self.memory(&r).1),
                    _ => {
                        key_mems.extend(self.outside().into_iter().map(|(_, m)| m));
                        let (_, m) = self.memory(&Region::Stack);
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
        let value = self.shared_access(&Region::Unknown, place, 0, &[None], exact)?;
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
