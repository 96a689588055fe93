//! The common entry state of both sides, built from the facts at that point.
//!
//! A register that the facts know partly becomes a term of known and unknown bits, so that
//! normalization sees the knowledge; what does not fit in bits (ranges, non-null) becomes an
//! assumption. Pointers to the same object share the variable of its base address.

use std::sync::Arc;

use bpf_facts::{BaseId, Env, Kind, Num, Region, Value};
use bpf_isa::Reg;
use bpf_program::{FieldKind, ProgKind, Symbol, packet_pointer_offset};
use rustc_hash::FxHashMap;

use crate::symbolic::context::Context;
use crate::symbolic::state::SymbolicState;
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{TermId, mask};

/// Numbers every region either side can touch. Must run before execution.
pub fn register_regions<'a>(cx: &mut Context, env: &Env, ops: impl Iterator<Item = &'a bpf_program::Op>) {
    cx.byte_order = env.byte_order;
    for r in [
        MemoryRegion::Stack,
        MemoryRegion::CtxBytes,
        MemoryRegion::Packet,
        MemoryRegion::Fresh,
        MemoryRegion::CallerFrame,
        MemoryRegion::Kernel,
        MemoryRegion::Anything,
        MemoryRegion::Unknown,
    ] {
        cx.region_id(&r);
    }
    for s in env.sections {
        cx.aligns_section(&s.name, s.zero_bits);
    }
    for m in env.maps {
        let name: Arc<str> = Arc::from(m.name.as_str());
        cx.aligns_values(name.clone(), m.value_zero_bits());
        cx.region_id(&MemoryRegion::MapValue(name));
    }
    for op in ops {
        if let Some(Symbol::Data { section, .. }) = op.link.as_ref().map(|l| &l.symbol) {
            cx.region_id(&MemoryRegion::Data(section.clone()));
        }
    }
}

/// Builds entry terms; one per proof.
pub struct Entry<'a> {
    maps: &'a [bpf_facts::MapInfo],
    bases: FxHashMap<(Region, BaseId), TermId>,
    next: u32,
    kind: ProgKind,
    packet: BaseId,
}

impl<'a> Entry<'a> {
    /// For a program with these maps.
    pub fn new(maps: &'a [bpf_facts::MapInfo], kind: ProgKind) -> Entry<'a> {
        Entry { maps, bases: FxHashMap::default(), next: 0, kind, packet: BaseId::Unknown }
    }

    /// The state both sides start from. Assumptions go into the context.
    pub fn state(&mut self, cx: &mut Context, facts: &bpf_facts::State) -> SymbolicState {
        self.packet = facts.packet_base();
        let world = cx.entry_world();
        let mut regs = [world; 11];
        for r in Reg::all() {
            let key = VarKey::EntryReg(r.index() as u8);
            regs[r.index()] = self.value(cx, facts.reg(r), key);
        }
        let mut state = SymbolicState::at_entry(cx, regs);
        self.stack(cx, facts, &mut state);
        state
    }

    fn stack(&mut self, cx: &mut Context, facts: &bpf_facts::State, state: &mut SymbolicState) {
        let frame = cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack));
        let stack = cx.region_id(&MemoryRegion::Stack);
        let mut bytes: Vec<(i64, TermId)> = Vec::new();
        for (off, v) in facts.stack_values() {
            let n = v.num.bits / 8;
            let t = match n {
                8 => self.value(cx, v, VarKey::EntrySlot(off)),
                _ => {
                    let wide = Value::scalar(v.num.zext(64));
                    let t = self.value(cx, &wide, VarKey::EntrySlot(off));
                    cx.terms.extract(t, 0, n * 8)
                }
            };
            bytes.extend((off..).zip(cx.bytes_of(t, n)));
        }
        if bytes.is_empty() {
            return;
        }
        let m = crate::symbolic::state::memory_of(cx, state, stack);
        let m = cx.terms.store_bytes(m, frame, &bytes);
        state.mems[stack as usize] = Some(m);
    }

    /// A term for a value of which the facts know this much.
    fn value(&mut self, cx: &mut Context, v: &Value, key: VarKey) -> TermId {
        match &v.kind {
            Kind::Unknown => cx.var(key, 64, Meaning::Unknown),
            Kind::Scalar => number(cx, &v.num, key),
            Kind::Pointer { region, base, nullable } => self.pointer(cx, region, *base, *nullable, &v.num, key),
        }
    }

    fn pointer(
        &mut self,
        cx: &mut Context,
        region: &Region,
        base: BaseId,
        nullable: bool,
        offset: &Num,
        key: VarKey,
    ) -> TermId {
        let Some(r) = self.region(region) else { return own(cx, key, Meaning::Foreign, offset) };
        if r == MemoryRegion::AnyMapValue {
            cx.confuse_maps();
        }
        // Null is the whole value: only a pointer of its own can say that, and a base that may be null itself. Frame,
        // context, maps, global data and packet are never null, however often one meets null at a join.
        let start = self.zero_bits(region, base);
        let own = |cx: &mut Context| {
            let t = own(cx, key.clone(), Meaning::Pointer(r.clone()), offset);
            cx.is_multiple(t, start.min((offset.tnum.value | offset.tnum.mask).trailing_zeros()));
            if let Some(k) = offset.as_const().filter(|_| !base.is_argument()) {
                cx.is_inside(t, k as i64);
            }
            t
        };
        if nullable && (has_an_address(region) || !base.same(base) || offset.as_const() != Some(0)) {
            return own(cx);
        }
        let base_term = match region {
            Region::Stack => cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack)),
            Region::Ctx => cx.var(VarKey::CtxPointer, 64, Meaning::Pointer(MemoryRegion::Ctx)),
            Region::MapPtr { .. } => {
                let MemoryRegion::Map(name) = &r else { return cx.var(key, 64, Meaning::Unknown) };
                let symbol = Symbol::Map { name: name.clone(), index: 0 };
                cx.var(VarKey::Symbol(symbol), 64, Meaning::Pointer(r.clone()))
            }
            Region::Data { section } => {
                // The operations in question need not name it themselves.
                cx.region_id(&r);
                let symbol = Symbol::Data { section: section.clone(), offset: 0 };
                cx.var(VarKey::Symbol(symbol), 64, Meaning::Pointer(r.clone()))
            }
            Region::Packet | Region::PacketMeta | Region::PacketEnd
                if base.same(self.packet) && packet_field(self.kind, region).is_some() =>
            {
                // What a load of that context field gives here.
                let off = packet_field(self.kind, region).unwrap_or(0);
                let now = cx.entry_world();
                cx.var(VarKey::PacketPointer(off, now), 64, Meaning::Pointer(r.clone()))
            }
            _ if base.same(base) => {
                let k = (region.clone(), base);
                match self.bases.get(&k) {
                    Some(t) => *t,
                    None => {
                        self.next += 1;
                        let t = cx.var(VarKey::EntryBase(self.next), 64, Meaning::Pointer(r.clone()));
                        cx.is_multiple(t, start);
                        // What a caller has passed may lie anywhere in a value.
                        if !base.is_argument() {
                            cx.is_inside(t, 0);
                        }
                        self.bases.insert(k, t);
                        t
                    }
                }
            }
            // Not even the same object for sure: a pointer of its own, offset included.
            _ => return own(cx),
        };
        if nullable {
            return base_term;
        }
        let zero = cx.terms.constant(64, 0);
        let null = cx.terms.eq(base_term, zero);
        // A test run may pass no context (`bpf_prog_test_run_raw_tp` in net/bpf/test_run.c).
        if *region != Region::Ctx && cx.terms.as_const(null).is_none() {
            let nonnull = cx.terms.not(null);
            if !cx.assumptions.contains(&nonnull) {
                cx.assumptions.push(nonnull);
            }
        }
        match offset.as_const() {
            Some(k) => cx.terms.add_const(base_term, k as i64),
            None => {
                let o = number(cx, offset, key);
                cx.terms.add(base_term, o)
            }
        }
    }

    /// To what power of two the place that offsets count from is a multiple. What a caller has passed may lie anywhere in a
    /// value.
    fn zero_bits(&self, region: &Region, base: BaseId) -> u32 {
        let known = match region {
            Region::MapValue { map } => self.maps.get(*map).map(bpf_facts::MapInfo::value_zero_bits),
            Region::AnyMapValue => {
                let gives_none = |m: &&bpf_facts::MapInfo| m.map_type.is_some() && !m.lookup_gives_value();
                self.maps.iter().filter(|m| !gives_none(m)).map(bpf_facts::MapInfo::value_zero_bits).min()
            }
            _ => None,
        };
        known.filter(|_| !base.is_argument()).unwrap_or(0)
    }

    fn region(&self, r: &Region) -> Option<MemoryRegion> {
        let name = |i: &usize| self.maps.get(*i).map(|m| Arc::from(m.name.as_str()));
        Some(match r {
            Region::Stack => MemoryRegion::Stack,
            Region::Ctx => MemoryRegion::Ctx,
            Region::Packet | Region::PacketMeta => MemoryRegion::Packet,
            Region::PacketEnd => MemoryRegion::PacketEnd,
            Region::MapValue { map } => MemoryRegion::MapValue(name(map)?),
            Region::AnyMapValue => MemoryRegion::AnyMapValue,
            Region::MapPtr { map } => MemoryRegion::Map(name(map)?),
            Region::Data { section } => MemoryRegion::Data(section.clone()),
            Region::Mem => MemoryRegion::Fresh,
            Region::CallerFrame => MemoryRegion::CallerFrame,
            // Kernel objects and values of maps that have no name here: they may be anything but the frame.
            Region::Kernel | Region::Func { .. } => return None,
        })
    }
}

/// A variable for a pointer, offset included. Of one that was moved by a number that nobody knows, a helper may be told
/// that it is the address of the frame.
fn own(cx: &mut Context, key: VarKey, meaning: Meaning, offset: &Num) -> TermId {
    let t = cx.var(key, 64, meaning);
    if offset.as_const().is_none() {
        cx.leads_anywhere(t);
    }
    t
}

/// Whether there is one object of this region, or one start of it, whose address a variable of its own stands for.
fn has_an_address(region: &Region) -> bool {
    match region {
        Region::Stack | Region::Ctx | Region::MapPtr { .. } | Region::Data { .. } => true,
        Region::Packet | Region::PacketMeta | Region::PacketEnd => true,
        Region::MapValue { .. } | Region::AnyMapValue | Region::Mem | Region::CallerFrame => false,
        Region::Kernel | Region::Func { .. } => false,
    }
}

/// Offset of the context field that holds this packet pointer.
fn packet_field(kind: ProgKind, region: &Region) -> Option<i64> {
    let field = match region {
        Region::Packet => FieldKind::PacketData,
        Region::PacketEnd => FieldKind::PacketEnd,
        Region::PacketMeta => FieldKind::PacketMeta,
        _ => return None,
    };
    packet_pointer_offset(kind, field).map(i64::from)
}

/// A number with known bits as constants, and its range as an assumption.
fn number(cx: &mut Context, n: &Num, key: VarKey) -> TermId {
    let (value, unknown) = (n.tnum.value, n.tnum.mask);
    if unknown == 0 {
        return cx.terms.constant(64, value);
    }
    let v = cx.var(key, 64, Meaning::Scalar);
    let t = cx.with_bits(v, value, unknown);
    if n.umin > value {
        let k = cx.terms.constant(64, n.umin);
        let below = cx.terms.ult(t, k);
        let a = cx.terms.not(below);
        cx.assumptions.push(a);
    }
    if n.umax < value | unknown {
        let k = cx.terms.constant(64, n.umax);
        let above = cx.terms.ult(k, t);
        let a = cx.terms.not(above);
        cx.assumptions.push(a);
    }
    if n.smin > i64::MIN && (n.smin as u64) > mask(63) {
        let k = cx.terms.constant(64, n.smin as u64);
        let below = cx.terms.slt(t, k);
        let a = cx.terms.not(below);
        cx.assumptions.push(a);
    }
    if n.smax < i64::MAX && n.umax > mask(63) {
        let k = cx.terms.constant(64, n.smax as u64);
        let above = cx.terms.slt(k, t);
        let a = cx.terms.not(above);
        cx.assumptions.push(a);
    }
    t
}
