//! Calls: the event with all that the callee sees, and what it leaves of memory, context and history.

use std::sync::Arc;

use bpf_facts::FRAME;
use bpf_isa::{Call, Insn, Reg};
use bpf_platform::effects::{Argument, Effects, Extent};
use bpf_platform::helpers::Ret;
use bpf_platform::maps;
use bpf_platform::maps::Element;
use bpf_program::Op;

use super::{LONGEST, Side, Stop, Sym};
use crate::symbolic::context::SatResult;
use crate::symbolic::history::{COPIED, Event, EventKind};
use crate::symbolic::state::{Lookup, memory_of};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey, read_only};
use crate::term::{MemId, TermId};

enum Touch {
    /// At most these bytes, which are written as a whole or in part.
    Bytes { region: MemoryRegion, base: TermId, off: i64, len: u32, read: bool, write: bool },
    /// Whatever is in the region; `None`: in any of them.
    Anything { region: Option<MemoryRegion>, write: bool },
}

/// What a call may have written without our knowing how much or where.
#[derive(Default)]
struct Lost {
    stack: bool,
    regions: Vec<MemoryRegion>,
    all: bool,
}

impl Lost {
    /// The whole of `region`; of all regions but the stack, if it is not known which.
    pub(super) fn add(&mut self, region: Option<MemoryRegion>) {
        match region {
            Some(region) => self.regions.push(region),
            None => self.all = true,
        }
    }

    pub(super) fn region(&self, r: &MemoryRegion) -> bool {
        self.all || self.regions.contains(r)
    }

    pub(super) fn context(&self) -> bool {
        self.region(&MemoryRegion::Ctx)
    }
}

/// A subprogram call's immediate is a distance, which layout changes; the symbol names the callee.
fn normal_call(op: &Op) -> Insn {
    match (op.insn, &op.link) {
        (Insn::Call(Call::Local(_)), Some(_)) => Insn::Call(Call::Local(0)),
        (i, _) => i,
    }
}

impl<'c, 'e> Sym<'c, 'e> {
    /// An event with these arguments that observes these regions; the world moves on.
    pub(super) fn event(&mut self, what: EventKind, args: Vec<TermId>, mems: Vec<(u32, MemId)>) -> u32 {
        self.settle_reach();
        let event = Event { before: self.state.world, what, args, mems };
        let id = self.cx.advance(event, self.guard, self.side == Side::New);
        self.state.world = self.cx.world(id);
        self.state.recent = None;
        id
    }

    /// All memories except the stack, as an observer sees them. While others write, those of shared memory have no
    /// contents: that what was done to them is the same shows in the accesses.
    pub(super) fn outside(&mut self) -> Vec<(u32, MemId)> {
        let mut v = Vec::new();
        for r in 0..self.cx.region_count() {
            let told = self.cx.concurrent && self.cx.is_shared(r);
            if !told && *self.cx.region(r) != MemoryRegion::Stack {
                v.push((r, memory_of(self.cx, &mut self.state, r)));
            }
        }
        v
    }

    pub(super) fn with_stack(&mut self, mut v: Vec<(u32, MemId)>) -> Vec<(u32, MemId)> {
        let (r, m) = self.memory(&MemoryRegion::Stack);
        if !v.iter().any(|(x, _)| *x == r) {
            v.push((r, m));
        }
        v
    }

    /// Forgets the contents of the regions `f` names, as of the current world; but not what nobody writes.
    pub(super) fn forget(&mut self, f: impl Fn(&MemoryRegion) -> bool) {
        for r in 0..self.cx.region_count() {
            let region = self.cx.region(r).clone();
            if f(&region) && !matches!(&region, MemoryRegion::Data(section) if read_only(section)) {
                let m = self.cx.terms.mem_base(r, self.state.world);
                self.set_memory(r, m);
            }
        }
    }

    pub(super) fn clobber(&mut self, id: u32) {
        for r in 1..=5u8 {
            let t = self.cx.var(VarKey::Clobbered(id, r), 64, Meaning::Scalar);
            self.state.regs[r as usize] = t;
        }
    }

    /// What is left in the registers is no other operation's.
    pub(super) fn clobber_apart(&mut self) {
        self.cx.clobbered += 1;
        self.clobber(u32::MAX - self.cx.clobbered);
    }

    fn return_value(&mut self, id: u32, meaning: Meaning) {
        self.state.regs[0] = self.cx.var(VarKey::Ret(id), 64, meaning);
    }

    /// A call about which only its inputs are known.
    pub(super) fn opaque_call(&mut self, op: &Op, nargs: usize) -> Result<(), Stop> {
        let args: Vec<TermId> = (1..=nargs).map(|i| self.state.regs[i]).collect();
        let reaches = !self.cx.frame_not_escaped || args.iter().any(|a| self.cx.may_reach_stack(*a));
        let mut mems = self.outside();
        if reaches {
            mems = self.with_stack(mems);
        }
        let symbol = op.link.as_ref().map(|l| l.symbol.clone());
        let insn = normal_call(op);
        let id = self.event(EventKind::Call(insn, symbol), args, mems);
        self.state.lookups.retain(|l| l.array);
        self.forget(|r| reaches || *r != MemoryRegion::Stack);
        self.state.ctx_version = self.state.world;
        self.state.packet_version = self.state.world;
        self.clobber(id);
        self.return_value(id, Meaning::Unknown);
        Ok(())
    }

    /// A call that nobody notices, of which all in a run give the same: no event.
    fn constant_call(&mut self, op: &Op) {
        self.clobber_apart();
        self.state.regs[0] = self.cx.var(VarKey::Constant(op.insn), 64, Meaning::Scalar);
    }

    pub(super) fn helper_call(&mut self, op: &Op, e: &'static Effects) -> Result<(), Stop> {
        if e.touches_everything {
            return self.opaque_call(op, e.arguments.len());
        }
        if op.link.is_none() && self.cx.is_constant_call(&op.insn) {
            self.constant_call(op);
            return Ok(());
        }
        let mut args: Vec<TermId> = Vec::new();
        let mut mems = if e.no_effect { self.shared_memories() } else { self.outside() };
        // Addresses of the frame in what it reads are spilled there, or have leaked.
        let mut whole_stack = e.indirect && (!self.cx.frame_not_escaped || self.cx.frame_spilled);
        // The program called runs in the same frame: whoever knows its address can read what is left there.
        whole_stack |= e.is_tail_call() && !self.cx.frame_not_escaped;
        let mut writes: Vec<(u8, MemoryRegion, TermId, i64, u32)> = Vec::new();
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
            let elsewhere = a.is_any_address() && self.cx.region_of(value) != Some(MemoryRegion::Stack);
            whole_stack |= elsewhere && self.cx.may_reach_stack(value);
            match self.touched(a, e, value) {
                None => {}
                Some(Touch::Bytes { region, base, off, len, read, write }) => {
                    if region == MemoryRegion::Stack && read && !write && a.is_key_or_value() && !a.access.keeps {
                        // It is copied: where it stood nobody learns.
                        args.pop();
                        args.push(self.cx.terms.constant(64, COPIED));
                    }
                    if region == MemoryRegion::Stack && (read || (write && !a.access.overwrites())) {
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
                    if write && region != Some(MemoryRegion::Stack) {
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
            self.forget(|r| matches!(r, MemoryRegion::MapValue(_) | MemoryRegion::AnyMapValue | MemoryRegion::Data(_)));
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
            Ret::MemOrNull => Meaning::Pointer(MemoryRegion::Fresh),
            Ret::Slice | Ret::Unknown => Meaning::Unknown,
            Ret::SockOrNull | Ret::Ptr => Meaning::Pointer(MemoryRegion::Kernel),
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
                self.cx.found_element = true;
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
            MemoryRegion::Packet => e.writes_packet() || lost.region(r),
            MemoryRegion::CtxBytes => context || lost.region(r),
            // What ends is somebody else's memory from now on.
            MemoryRegion::Fresh => e.writes_fresh || e.ends_fresh || lost.region(r),
            MemoryRegion::Stack => lost.stack,
            MemoryRegion::Ctx | MemoryRegion::PacketEnd | MemoryRegion::Map(_) => false,
            MemoryRegion::MapValue(_) | MemoryRegion::AnyMapValue | MemoryRegion::Data(_) | MemoryRegion::Kernel => {
                true
            }
            MemoryRegion::CallerFrame | MemoryRegion::Anything | MemoryRegion::Unknown => true,
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
        let Some(MemoryRegion::Map(name)) = self.cx.region_of(map) else { return None };
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
            if !matches!(self.cx.check_sat(self.guard, &differ), SatResult::Unsat) {
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
            Some(MemoryRegion::Map(name)) => match self.map_type(&name).map(maps::element) {
                Some(Element::Map | Element::Nothing) | None => Meaning::Unknown,
                Some(Element::KernelObject) => Meaning::Pointer(MemoryRegion::Kernel),
                Some(Element::Value) => Meaning::Pointer(MemoryRegion::MapValue(name)),
            },
            _ => Meaning::Unknown,
        }
    }

    pub(super) fn map_info(&self, name: &str) -> Option<&'e bpf_facts::MapInfo> {
        self.env.maps.iter().find(|m| m.name == name)
    }

    fn map_type(&self, name: &Arc<str>) -> Option<u32> {
        self.map_info(name).and_then(|m| m.map_type)
    }

    pub(super) fn shared_memories(&mut self) -> Vec<(u32, MemId)> {
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
            (None | Some(MemoryRegion::Map(_) | MemoryRegion::PacketEnd), _) => {
                Some(Touch::Anything { region: None, write })
            }
            // The context's fields are no memory of their own.
            (Some(MemoryRegion::Ctx), _) => Some(Touch::Anything { region: Some(MemoryRegion::Ctx), write }),
            (Some(region), Some(len)) if len <= LONGEST => {
                let (base, off) = self.cx.terms.split_address(value);
                Some(Touch::Bytes { region, base, off, len, read, write })
            }
            // However many bytes it reads, they begin there and end where the frame does: the verifier lets no helper read
            // beyond (`check_stack_range_initialized` in kernel/bpf/verifier.c), but for those that probe any address or are
            // given one as a number, of which docs/trust.md says what they find (A14).
            (Some(MemoryRegion::Stack), None) if read && !write && !a.access.keeps => {
                let (base, off) = self.cx.terms.split_address(value);
                let is_frame = Some(base) == self.cx.lookup(&VarKey::Frame);
                match off.checked_neg().and_then(|n| u32::try_from(n).ok()) {
                    Some(len) if is_frame && i64::from(len) <= FRAME && len > 0 => {
                        Some(Touch::Bytes { region: MemoryRegion::Stack, base, off, len, read, write })
                    }
                    _ => Some(Touch::Anything { region: Some(MemoryRegion::Stack), write }),
                }
            }
            (region, _) => Some(Touch::Anything { region, write }),
        }
    }

    fn map_bytes(&mut self, e: &Effects, f: impl Fn(&bpf_facts::MapInfo) -> Option<u32>) -> Option<u32> {
        let map = self.state.regs[e.map_register()?.index()];
        match self.cx.region_of(map) {
            Some(MemoryRegion::Map(name)) => self.map_info(&name).and_then(f),
            _ => None,
        }
    }

    /// The length that a register holds, if it is a constant.
    fn length(&self, r: Reg) -> Option<u32> {
        self.cx.terms.as_const(self.state.regs[r.index()]).and_then(|n| u32::try_from(n).ok())
    }
}
