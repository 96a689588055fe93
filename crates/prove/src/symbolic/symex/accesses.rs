//! Loads and stores of memory: which region an address is in, and what is logged of accesses that others see.

use bpf_isa::Size;
use bpf_platform::ManagedFields;
use bpf_program::{ProgKind, may_read_wider};

use super::{Place, Side, Stop, Sym, WRITES};
use crate::compare::refinement::{is_aligned, missing};
use crate::symbolic::access::{Access, Exact, Reason};
use crate::symbolic::history::WORLD_BITS;
use crate::symbolic::state::{Recent, memory_of};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{MemId, Node, TermId};

impl<'c, 'e> Sym<'c, 'e> {
    pub(super) fn locate(&mut self, base: TermId, off: i16, align: u32) -> Result<Place, Stop> {
        let addr = self.cx.terms.add_const(base, i64::from(off));
        let (sym, k) = self.cx.terms.split_address(addr);
        let region = match self.cx.region_of(addr) {
            Some(MemoryRegion::Map(_) | MemoryRegion::PacketEnd) | None => {
                let to_frame = if self.cx.concurrent { self.cx.frame_not_escaped } else { self.cx.frame_apart };
                if to_frame && self.cx.holds_frame(addr) {
                    return Err(Stop::Unmodelled("an access that may or may not be to the stack".into()));
                }
                match (self.cx.concurrent, self.cx.one_memory) {
                    (true, _) => return Ok(Place::Unknown(MemoryRegion::Unknown, sym, k)),
                    (false, true) => MemoryRegion::Anything,
                    (false, false) => return Err(Stop::Provenance),
                }
            }
            // Fields of kernel objects are translated, too.
            Some(MemoryRegion::Kernel) if self.cx.concurrent => {
                return Ok(Place::Unknown(MemoryRegion::Kernel, sym, k));
            }
            Some(r) => r,
        };
        // Every region got its number before execution began: forgetting must reach them all.
        if !self.cx.is_registered(&region) {
            return Err(Stop::Unmodelled(format!("an access to {region:?}")));
        }
        if region == MemoryRegion::Stack {
            self.check_frame(sym, k, align);
        }
        Ok(Place::Known(region, sym, k))
    }

    /// Memories nobody else sees, but which a pointer of unknown origin may lead to.
    pub(super) fn private_memories(&mut self, kernel_object: bool) -> Vec<(u32, MemId)> {
        let mut found = Vec::new();
        for r in 0..self.cx.region_count() {
            let hidden = match self.cx.region(r) {
                MemoryRegion::Stack => self.cx.frame_not_escaped,
                // The registers of a task in a uprobe are the program's context (`bpf_task_pt_regs`).
                MemoryRegion::CtxBytes if self.kind == ProgKind::Tracing => false,
                _ => kernel_object || self.cx.is_shared(r),
            };
            if !hidden {
                found.push((r, memory_of(self.cx, &mut self.state, r)));
            }
        }
        found
    }

    /// An access that must stay as it is. Gives the value read and the number of the old side's access.
    pub(super) fn exact_access(
        &mut self,
        (region, base, off): (&MemoryRegion, TermId, i64),
        size: Size,
        written: Option<TermId>,
    ) -> Result<(TermId, u32), Stop> {
        let droppable = *region == MemoryRegion::Kernel || size != Size::B;
        let sees = self.private_memories(*region == MemoryRegion::Kernel);
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
    pub(super) fn managed_access(
        &mut self,
        (region, base, off): (&MemoryRegion, TermId, i64),
        size: Size,
        written: Option<TermId>,
        immediate: bool,
    ) -> Result<TermId, Stop> {
        let reason = Reason::Managed { immediate };
        let exact = Exact { size: size.bytes(), sees: vec![], droppable: true, reason };
        Ok(self.shared_access(region, base, off, &[written], Some(exact))?[0])
    }

    /// Whether an access may be of a field that the kernel manages.
    pub(super) fn is_managed(&self, region: &MemoryRegion, base: TermId, off: i64, size: Size) -> bool {
        let offset = self.cx.place_inside(base).map(|start| start.wrapping_add(off));
        let may_be = |fields: &ManagedFields| fields.may_be_accessed(offset, size.bytes());
        match region {
            MemoryRegion::MapValue(name) => self.map_info(name).is_some_and(|m| may_be(&m.managed)),
            MemoryRegion::AnyMapValue => self.env.maps.iter().any(|m| may_be(&m.managed)),
            MemoryRegion::Data(name) => self.env.sections.iter().any(|s| s.name == **name && may_be(&s.managed)),
            _ => false,
        }
    }

    /// An access to shared memory while others write: of these bytes (or of one whole value), which are written or
    /// read. Gives their values.
    pub(super) fn shared_access(
        &mut self,
        region: &MemoryRegion,
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
                        let may_be_context = *region == MemoryRegion::Unknown;
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
                beside: false,
            });
        }
        if self.side == Side::New {
            let mut olds = self.cx.old_accesses.take().unwrap_or_default();
            let with_others = self.may_take_in_others(region, &entries);
            let found = olds.consume(self.cx, &entries, with_others);
            let found = found.ok_or_else(|| Stop::Unmodelled(missing(&entries, region)))?;
            for (e, i) in entries.iter_mut().zip(found) {
                match i {
                    Some(i) => (e.value, e.consumes) = (olds.entry(i).value, Some(i)),
                    None => {
                        self.cx.beside += 1;
                        e.value = self.cx.var(VarKey::Beside(self.cx.beside), 8, Meaning::Scalar);
                        e.beside = true;
                    }
                }
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

    /// Whether an access of the new side may take in bytes that the old side does not access there: a plain read inside of
    /// one value of a map of which is known that the kernel manages nothing in it (design, equivalence contract, 4). The old
    /// side accesses some of its bytes, so the value is there.
    fn may_take_in_others(&mut self, region: &MemoryRegion, bytes: &[Access]) -> bool {
        let (first, size) = (&bytes[0], bytes.len() as i64);
        let MemoryRegion::MapValue(name) = region else { return false };
        let Some(length) =
            self.map_info(name).filter(|m| m.values_known && m.managed.is_empty()).and_then(|m| m.value_size)
        else {
            return false;
        };
        let Some(start) = self.cx.place_inside(first.base) else { return false };
        let begin = start.checked_add(first.off);
        let is_inside =
            begin.is_some_and(|b| b >= 0 && b.checked_add(size).is_some_and(|end| end <= i64::from(length)));
        let is_plain = bytes.iter().all(|b| !b.write && !b.atomic && b.exact.is_none());
        is_inside && is_plain && is_aligned(self.cx, first.base, first.off, bytes.len() as u32)
    }

    /// A write through a pointer of unknown origin, the old side's access of this number, may have been anywhere
    /// that private memories are, and to the context.
    pub(super) fn forget_private(&mut self, number: u32) {
        let version = self.cx.terms.constant(WORLD_BITS, u64::from(WRITES + number));
        for (r, _) in self.private_memories(false) {
            let m = self.cx.terms.mem_base(r, version);
            self.set_memory(r, m);
        }
        self.state.ctx_version = version;
    }

    /// What others have done until now may be seen from here on: another lookup may find another element.
    pub(super) fn synchronize(&mut self) {
        self.state.lookups.retain(|l| l.array);
    }

    /// Whether accesses to a region are told one by one rather than by its contents.
    pub(super) fn is_told(&mut self, region: &MemoryRegion) -> bool {
        let r = self.cx.region_id(region);
        self.cx.concurrent && self.cx.is_shared(r)
    }

    /// A pointer that is one of two, by a condition, as far as that is near the surface of its term.
    /// A null on one side is never dereferenced in a program that was accepted.
    pub(super) fn choice(&mut self, addr: TermId) -> Option<(TermId, TermId, TermId)> {
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

    pub(super) fn record(&mut self, region: u32, base: TermId, off: i64, bytes: &[TermId], write: bool) {
        // A constant place in the frame has been checked by itself.
        if *self.cx.region(region) == MemoryRegion::Stack && self.cx.lookup(&VarKey::Frame) == Some(base) {
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
                beside: false,
            });
        }
    }

    /// An instruction that the loader poisons where the kernel has no answer to its CO-RE record
    /// (`bpf_core_poison_insn` in libbpf's relo_core.c), or where the map it names is not to be created
    /// (`bpf_map__set_autocreate`; `poison_map_ldimm64` in libbpf.c). Then it must not be reached: the new side may carry it
    /// out only where the old side does.
    pub(super) fn may_be_poisoned(&mut self, result: TermId) {
        let private = self.cx.region_id(&MemoryRegion::CtxBytes);
        self.record(private, result, 0, &[result], false);
    }

    pub(super) fn read_bytes(&mut self, region: &MemoryRegion, base: TermId, off: i64, n: u32) -> Vec<TermId> {
        let (_, m) = self.memory(region);
        (0..i64::from(n)).map(|i| self.cx.terms.select(m, base, off.wrapping_add(i))).collect()
    }

    pub(super) fn write_bytes(&mut self, region: &MemoryRegion, base: TermId, off: i64, bytes: &[TermId]) {
        let (r, m) = self.memory(region);
        let list: Vec<(i64, TermId)> =
            bytes.iter().enumerate().map(|(i, b)| (off.wrapping_add(i as i64), *b)).collect();
        let m = self.cx.terms.store_bytes(m, base, &list);
        self.set_memory(r, m);
    }
}
