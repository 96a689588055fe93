//! Loads, stores and atomics: what may be accessed where, and what a load gives.

use std::rc::Rc;

use bpf_isa::{AtomicOp, Reg, Size, Src};
use bpf_platform::permissions::{self, Field};

use crate::Stop;
use crate::alu::MAX_OFFSET;
use crate::scalar::Scalar;
use crate::state::{Byte, Held, Kind, RegState, STACK, Sock, StackSlot, slot_index};
use crate::walk::{Walk, bad, unsure};

/// Why memory is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The program loads.
    Load,
    /// The program stores.
    Store,
    /// A helper reads.
    HelperRead,
    /// A helper writes.
    HelperWrite,
}

impl Use {
    pub(crate) fn writes(self) -> bool {
        matches!(self, Use::Store | Use::HelperWrite)
    }
}

impl Walk<'_> {
    pub(crate) fn load(&mut self, size: Size, sext: bool, dst: Reg, base: Reg, off: i16) -> Result<(), Stop> {
        let p = self.read(base)?;
        let bytes = size.bytes();
        let mut new = self.loaded(base, &p, i64::from(off), bytes)?;
        if new.is_scalar() && bytes < 8 {
            new.num = new.num.cast(bytes, sext);
        }
        *self.state.reg_mut(dst) = new;
        Ok(())
    }

    fn loaded(&mut self, base: Reg, p: &RegState, off: i64, bytes: u32) -> Result<RegState, Stop> {
        match p.kind {
            Kind::Ctx => return self.context_access(base, p, off, bytes, false),
            Kind::Stack(frame) if !p.or_null => return self.stack_load(base, p, usize::from(frame), off, bytes),
            _ => {}
        }
        self.access(base, p, off, i64::from(bytes), Use::Load)?;
        if let Kind::MapValue { map, inner: false } = p.kind
            && let Some(contents) = &self.p.maps[map as usize].frozen
            && p.num.as_const() == Some(0)
            && let Ok(at) = usize::try_from(i64::from(p.off) + off)
            && let Some(value) = contents.get(at..at + bytes as usize)
        {
            // Nobody can change `.rodata` any more when the verifier looks at it.
            return Ok(self.number(Scalar::constant(self.p.order.number(value))));
        }
        Ok(self.number(Scalar::TOP))
    }

    pub(crate) fn store(&mut self, size: Size, base: Reg, off: i16, src: Src) -> Result<(), Stop> {
        let p = self.read(base)?;
        let value = match src {
            Src::Reg(r) => self.read(r)?,
            Src::Imm(i) => self.number(Scalar::constant(i64::from(i) as u64)),
        };
        let (off, bytes) = (i64::from(off), size.bytes());
        match p.kind {
            Kind::Ctx => self.context_access(base, &p, off, bytes, true).map(|_| ()),
            Kind::Stack(frame) if !p.or_null => {
                self.stack_store(base, &p, usize::from(frame), off, bytes, Some(&value))
            }
            _ => self.access(base, &p, off, i64::from(bytes), Use::Store),
        }
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp, size: Size, base: Reg, off: i16, src: Reg) -> Result<(), Stop> {
        self.read(src)?;
        if op == AtomicOp::CmpXchg {
            self.read(Reg::R0)?;
        }
        let p = self.read(base)?;
        if matches!(p.kind, Kind::Ctx | Kind::FlowKeys | Kind::Sock(_)) || p.is_packet() {
            return bad(format!("BPF_ATOMIC stores into R{} {} is not allowed", base.index(), p.describe()));
        }
        let (off, bytes) = (i64::from(off), size.bytes());
        let unaligned = match p.num.as_const() {
            Some(var) => (i64::from(p.off) + off + var as i64) % i64::from(bytes) != 0,
            None => {
                let low = u64::from(bytes) - 1;
                let t = p.num.w.tnum;
                let fixed = (i64::from(p.off) + off) as u64;
                t.mask & low != 0 || t.value.wrapping_add(fixed) & low != 0
            }
        };
        if unaligned {
            return bad(format!("misaligned access off {}+{off} size {bytes}", p.off));
        }
        let result = match (op, src) {
            (AtomicOp::CmpXchg, _) => Some(Reg::R0),
            (AtomicOp::Xchg, src)
            | (
                AtomicOp::Add { fetch: true }
                | AtomicOp::Or { fetch: true }
                | AtomicOp::And { fetch: true }
                | AtomicOp::Xor { fetch: true },
                src,
            ) => Some(src),
            _ => None,
        };
        let old = self.loaded(base, &p, off, bytes)?;
        match p.kind {
            Kind::Stack(frame) => self.stack_store(base, &p, usize::from(frame), off, bytes, None)?,
            _ => self.access(base, &p, off, i64::from(bytes), Use::Store)?,
        }
        if let Some(r) = result {
            // What was there may have been a number about which something is known; a pointer is none any more.
            let num = if old.is_scalar() { old.num.cast(bytes, false) } else { Scalar::of_bytes(bytes) };
            let version = self.values.new_value(old.version, 0);
            *self.state.reg_mut(r) = RegState::scalar(num, version);
        }
        Ok(())
    }

    /// Legacy packet loads.
    pub(crate) fn packet_load(&mut self, index: Option<Reg>) -> Result<(), Stop> {
        if !matches!(self.p.kind, 1 | 3 | 4) {
            return bad("BPF_LD_[ABS|IND] instructions not allowed for this program type");
        }
        if let Some(&Held { id, slot }) = self.state.held.first() {
            return bad(format!("Unreleased reference id={id} alloc_insn={slot}: BPF_LD_[ABS|IND] would lead to leak"));
        }
        if self.read(Reg::R6)?.kind != Kind::Ctx {
            return bad("at the time of BPF_LD_ABS|IND R6 != pointer to skb");
        }
        if let Some(r) = index {
            self.read(r)?;
        }
        for r in 1..=5 {
            self.state.top_mut().regs[r] = RegState::NOT_INIT;
        }
        *self.state.reg_mut(Reg::R0) = self.number(Scalar::TOP);
        Ok(())
    }

    fn context_access(&mut self, base: Reg, p: &RegState, off: i64, bytes: u32, write: bool) -> Result<RegState, Stop> {
        let r = base.index();
        let Some(var) = p.num.as_const() else {
            return bad(format!("variable ctx access var_off size={bytes} through R{r} prohibited"));
        };
        let at = off + i64::from(p.off) + var as i64;
        if p.off != 0 && self.p.kind != 31 {
            return bad(format!("dereference of modified ctx ptr R{r} off={} disallowed", p.off));
        }
        let Some(field) = permissions::context(self.p.kind, self.p.attach, write, at, bytes) else {
            return bad(format!("invalid bpf_context access off={at} size={bytes}"));
        };
        self.contexts.insert((self.at, at));
        let with = |kind, or_null: bool, id| RegState { or_null, id, ..RegState::pointer(kind) };
        Ok(match field {
            Field::Scalar => self.number(Scalar::of_bytes(bytes)),
            Field::Packet => RegState::pointer(Kind::Packet),
            Field::PacketMeta => RegState::pointer(Kind::PacketMeta),
            Field::PacketEnd => RegState::pointer(Kind::PacketEnd),
            Field::FlowKeys => RegState::pointer(Kind::FlowKeys),
            Field::SockCommon { or_null } => with(Kind::Sock(Sock::Common), or_null, self.fresh()),
            Field::Sock { or_null } => with(Kind::Sock(Sock::Full), or_null, self.fresh()),
            Field::Opaque => RegState::pointer(Kind::Opaque),
        })
    }

    /// Checks an access outside of context and stack by `bytes` from `p + off`.
    pub(crate) fn access(&mut self, base: Reg, p: &RegState, off: i64, bytes: i64, why: Use) -> Result<(), Stop> {
        let r = base.index();
        if p.or_null {
            return bad(format!("R{r} invalid mem access '{}'", p.describe()));
        }
        let write = why.writes();
        match p.kind {
            Kind::MapValue { map, inner } => {
                let map = self.map(map, inner);
                let (size, name) = (map.value_size, "map value");
                if write && !map.writable() {
                    return bad(format!(
                        "write into map forbidden, value_size={size} off={} size={bytes}",
                        i64::from(p.off) + off
                    ));
                }
                if !write && !map.readable() {
                    return bad(format!(
                        "read from map forbidden, value_size={size} off={} size={bytes}",
                        i64::from(p.off) + off
                    ));
                }
                region(r, p, off, bytes, size, name)
            }
            Kind::Mem { size, write: writable, .. } => {
                if write && !writable {
                    return bad(format!("R{r} cannot write into rdonly_mem"));
                }
                region(r, p, off, bytes, size, "memory")
            }
            Kind::Packet | Kind::PacketMeta => {
                if !permissions::packet_access(self.p.kind, write) {
                    let what = if write {
                        "cannot write into packet"
                    } else {
                        "no direct packet access for this program type"
                    };
                    return bad(what);
                }
                packet(r, p, off, bytes)
            }
            Kind::PacketEnd => bad(format!("R{r} invalid mem access 'pkt_end'")),
            Kind::Sock(kind) => {
                let at = i64::from(p.off) + off;
                if write {
                    return bad(format!("R{r} cannot write into {}", p.describe()));
                }
                let allowed = match kind {
                    Sock::Common | Sock::Full => permissions::sock_field(at, bytes as u32, kind == Sock::Common),
                    Sock::Tcp => {
                        at >= 0 && at % bytes == 0 && at + bytes <= 120 && (bytes == 4 || (bytes == 8 && at >= 72))
                    }
                    Sock::Xdp => at == 0 && bytes == 4,
                };
                if !allowed || p.num.as_const() != Some(0) {
                    return bad(format!("R{r} invalid {} access off={at} size={bytes}", p.describe()));
                }
                Ok(())
            }
            Kind::FlowKeys => {
                // `struct bpf_flow_keys`.
                let at = i64::from(p.off) + off;
                if at < 0 || at + bytes > 56 {
                    return bad(format!("invalid access to flow keys off={at} size={bytes}"));
                }
                Ok(())
            }
            Kind::Opaque => unsure("kernel objects are not described here (BTF of the kernel needed)"),
            Kind::Map(_) | Kind::InnerMap(_) if !write => unsure("fields of struct bpf_map are not described here"),
            _ => bad(format!("R{r} invalid mem access '{}'", p.describe())),
        }
    }

    /// A map, or the template of its inner maps.
    pub(crate) fn map(&self, map: u32, inner: bool) -> &crate::program::MapInfo {
        let m = &self.p.maps[map as usize];
        if inner { m.inner.as_deref().unwrap_or(m) } else { m }
    }

    /// The offsets from the frame's top that `p + off` may have; checked to be on the stack.
    pub(crate) fn on_stack(
        &mut self,
        base: Reg,
        p: &RegState,
        off: i64,
        bytes: i64,
        why: Use,
    ) -> Result<(i64, i64), Stop> {
        let r = base.index();
        let what = if why.writes() { "write to" } else { "read from" };
        let fixed = i64::from(p.off) + off;
        let constant = p.num.as_const();
        if constant.is_none() && (p.num.w.smin <= -MAX_OFFSET || p.num.w.smax >= MAX_OFFSET) {
            return bad(format!("invalid unbounded variable-offset {what} stack R{r}"));
        }
        let (lo, hi) = (fixed + p.num.w.smin, fixed + p.num.w.smax);
        let Kind::Stack(frame) = p.kind else { return bad("not a stack pointer") };
        if lo < -STACK || hi + bytes > 0 || (bytes == 0 && hi >= 0 && matches!(why, Use::Load | Use::Store)) {
            return bad(match constant {
                Some(_) => format!("invalid {what} stack R{r} off={lo} size={bytes}"),
                None => format!("invalid variable-offset {what} stack R{r} off={lo} size={bytes}"),
            });
        }
        let sub = self.state.frames[usize::from(frame)].sub;
        self.depths[sub] = self.depths[sub].max(-lo);
        Ok((lo, hi))
    }

    fn stack_load(&mut self, base: Reg, p: &RegState, frame: usize, off: i64, bytes: u32) -> Result<RegState, Stop> {
        let size = i64::from(bytes);
        self.stack_aligned(p, off, size)?;
        let (lo, hi) = self.on_stack(base, p, off, size, Use::Load)?;
        self.stack_read(frame, span(lo, hi + size));
        if lo != hi {
            let zero =
                (lo..hi + size).all(|o| self.state.frames[frame].slot(o).bytes[(o + STACK) as usize % 8] == Byte::Zero);
            return Ok(self.number(if zero { Scalar::constant(0) } else { Scalar::of_bytes(bytes) }));
        }
        let slot = self.state.frames[frame].slot(lo).clone();
        let first = (lo + STACK) as usize % 8;
        let stored = slot.spill_size();
        if let Some(reg) = slot.spilled.as_deref()
            && stored > 0
        {
            if bytes == 8 && stored == 8 {
                if reg.is_scalar() && reg.id == 0 && reg.num.as_const().is_none() {
                    let id = self.fresh();
                    if let Some(reg) = Rc::make_mut(&mut self.state.frames[frame]).slot_mut(lo).spilled.as_mut() {
                        Rc::make_mut(reg).id = id;
                    }
                    return Ok(RegState { id, ..*reg });
                }
                return Ok(*reg);
            }
            if !reg.is_scalar() {
                return bad("invalid size of register fill");
            }
            // The lower bytes of what was stored (`bpf_stack_narrow_access_ok` in kernel/bpf/verifier.c).
            let inside = first as u32 + bytes <= stored;
            if inside && self.p.order.bit(first as u32, bytes, stored) == 0 {
                let id = if reg.num.w.umax >> (bytes * 8 - 1) > 1 { 0 } else { reg.id };
                return Ok(RegState { id, ..*reg });
            }
            return Ok(self.number(Scalar::of_bytes(bytes)));
        }
        let zero = slot.bytes.iter().skip(first).take(bytes as usize).all(|b| *b == Byte::Zero);
        Ok(self.number(if zero { Scalar::constant(0) } else { Scalar::of_bytes(bytes) }))
    }

    fn stack_aligned(&self, p: &RegState, off: i64, size: i64) -> Result<(), Stop> {
        let fixed = i64::from(p.off) + off;
        let aligned = match p.num.as_const() {
            Some(var) => (fixed + var as i64) % size == 0,
            None => {
                let low = size as u64 - 1;
                p.num.w.tnum.mask & low == 0 && p.num.w.tnum.value.wrapping_add(fixed as u64) & low == 0
            }
        };
        if aligned { Ok(()) } else { bad(format!("misaligned stack access off {}+{off} size {size}", p.off)) }
    }

    /// Stores `value`, or some number.
    fn stack_store(
        &mut self,
        base: Reg,
        p: &RegState,
        frame: usize,
        off: i64,
        bytes: u32,
        value: Option<&RegState>,
    ) -> Result<(), Stop> {
        let size = i64::from(bytes);
        self.stack_aligned(p, off, size)?;
        let (lo, hi) = self.on_stack(base, p, off, size, Use::Store)?;
        let depth = self.depth();
        if lo != hi {
            // Somewhere in a range: everything there may have changed, and what was there may remain.
            let zero = value.filter(|v| v.is_null()).is_some();
            if let Some(v) = value {
                self.values.need(v.version);
            }
            let f = Rc::make_mut(&mut self.state.frames[frame]);
            for o in lo..hi + size {
                let slot = f.slot_mut(o);
                let at = (o + STACK) as usize % 8;
                if !(zero && slot.bytes[at] == Byte::Zero) {
                    slot.scrub();
                    slot.bytes[at] = Byte::Misc;
                }
            }
            return Ok(());
        }
        let first = (lo + STACK) as usize % 8;
        if let Some(v) = value.filter(|v| v.is_pointer()) {
            if bytes != 8 {
                return bad("invalid size of register spill");
            }
            if frame != depth && matches!(v.kind, Kind::Stack(f) if usize::from(f) == depth) {
                return bad("cannot spill pointers to stack into stack frame of the caller");
            }
        }
        if bytes == 8 {
            self.stack_written(frame, 1 << slot_index(lo));
        }
        let value = value.copied();
        let mut needed = None;
        let mut spill = None;
        if let Some(v) = value
            && first == 0
            && (v.is_pointer() || bytes <= 8)
        {
            let mut v = v;
            if v.is_scalar() && bytes < 8 {
                if v.num.w.umax >> (bytes * 8) != 0 {
                    v.id = 0;
                }
                v.num = v.num.cast(bytes, false);
            }
            if v.is_scalar() && v.num.as_const().is_some() {
                v.id = 0;
            }
            spill = Some(v);
        }
        let f = Rc::make_mut(&mut self.state.frames[frame]);
        let slot = f.slot_mut(lo);
        match spill {
            Some(v) => {
                slot.scrub();
                slot.spilled = Some(Rc::new(v));
                slot.bytes[..bytes as usize].fill(Byte::Spill);
            }
            None => {
                slot.scrub();
                let zero = value.filter(RegState::is_null);
                needed = zero.map(|v| v.version);
                let fill = if zero.is_some() { Byte::Zero } else { Byte::Misc };
                slot.bytes[first..first + bytes as usize].fill(fill);
            }
        }
        if let Some(v) = needed {
            self.values.need(v);
        }
        Ok(())
    }

    /// A helper reads or writes `bytes` on the stack.
    pub(crate) fn helper_on_stack(
        &mut self,
        base: Reg,
        p: &RegState,
        frame: usize,
        bytes: i64,
        why: Use,
    ) -> Result<(), Stop> {
        let (lo, hi) = self.on_stack(base, p, 0, bytes, why)?;
        if bytes == 0 {
            return Ok(());
        }
        if why.writes() {
            let f = Rc::make_mut(&mut self.state.frames[frame]);
            for o in lo..hi + bytes {
                let slot: &mut StackSlot = f.slot_mut(o);
                slot.scrub();
                slot.bytes[(o + STACK) as usize % 8] = Byte::Misc;
            }
        } else {
            self.stack_read(frame, span(lo, hi + bytes));
        }
        Ok(())
    }
}

/// The slots that hold offsets `lo .. end`.
fn span(lo: i64, end: i64) -> u64 {
    let (lo, end) = (lo.max(-STACK), end.min(0));
    if lo >= end {
        return 0;
    }
    (slot_index(end - 1)..=slot_index(lo)).fold(0, |set, i| set | 1 << i)
}

/// An access to memory of a known size.
fn region(r: usize, p: &RegState, off: i64, bytes: i64, size: u32, name: &str) -> Result<(), Stop> {
    let fixed = i64::from(p.off) + off;
    let (lo, hi) = (p.num.w.smin, p.num.w.umax);
    let inside = |at: i64| at >= 0 && at + bytes <= i64::from(size);
    if lo < 0 && lo.checked_add(fixed).is_none_or(|at| at < 0) && p.num.as_const().is_none() {
        return bad(format!("R{r} min value is negative, either use unsigned index or do a if (index >=0) check."));
    }
    let outside = |at: i64, which: &str| {
        let var = if p.num.as_const().is_some() { String::new() } else { format!(", the {which} value of R{r}") };
        bad(format!("invalid access to {name}, size={size} off={at} size={bytes}{var}"))
    };
    if !inside(lo.saturating_add(fixed)) {
        return outside(lo.saturating_add(fixed), "min");
    }
    if hi >= MAX_OFFSET as u64 && p.num.as_const().is_none() {
        return bad(format!("R{r} unbounded memory access, make sure to bounds check any such access"));
    }
    let hi = if p.num.as_const().is_some() { lo } else { hi as i64 };
    if !inside(hi + fixed) {
        return outside(hi + fixed, "max");
    }
    Ok(())
}

/// An access to packet data.
pub(crate) fn packet(r: usize, p: &RegState, off: i64, bytes: i64) -> Result<(), Stop> {
    if p.num.w.smin < 0 {
        return bad(format!("R{r} min value is negative, either use unsigned index or do a if (index >=0) check."));
    }
    let at = i64::from(p.off) + off;
    if at < 0 || at + bytes > i64::from(p.range) {
        return bad(format!("invalid access to packet, off={at} size={bytes}, R{r}(r={})", p.range));
    }
    Ok(())
}
