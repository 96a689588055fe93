//! The abstract state at one program point.
//!
//! # What a state promises
//! For every execution that reaches the point: each register and each known stack byte holds a value
//! its [`Value`] describes; values with one [`BaseId`] (other than `Unknown`) in one region have one
//! base address; every packet pointer points into the packet as it is now; and an address of this
//! function's frame exists outside the values marked as [`Region::Stack`] only if
//! [`State::frame_leaked`].
//!
//! The last one is what lets a store through an unknown pointer leave the frame alone. It counts any
//! number computed from such an address as an address, because a helper may probe it.

use bpf_isa::{Reg, RegSet};
use bpf_program::{Argument, BlockId, ByteOrder, Function, Pointee, ProgKind};

use crate::frame::Frame;
use crate::{BaseId, Kind, Num, Region, StackSet, Value};

/// What is known at one program point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    regs: [Value; 11],
    pub(crate) frame: Frame,
    frame_leaked: bool,
    /// Base of every packet pointer there is.
    packet: BaseId,
    /// Bytes from the start of the packet known to be inside it.
    readable: u32,
}

impl State {
    /// The state at the entry of a function of this kind.
    pub fn entry(kind: ProgKind) -> State {
        let mut s = State {
            regs: std::array::from_fn(|_| Value::unknown()),
            frame: Frame::default(),
            frame_leaked: false,
            packet: BaseId::Fixed,
            readable: 0,
        };
        s.regs[10] = Value::pointer(Region::Stack, BaseId::Fixed, 0);
        if kind != ProgKind::Subprogram {
            s.regs[1] = Value::pointer(Region::Ctx, BaseId::Fixed, 0);
        }
        s
    }

    /// The state at the entry of `f`.
    pub fn entry_of(f: &Function) -> State {
        let Some(arguments) = &f.arguments else { return State::entry(f.kind) };
        let mut s = State::entry(ProgKind::Subprogram);
        for (n, argument) in (1u8..).zip(arguments) {
            let Some(r) = Reg::new(n) else { continue };
            s.set_reg(r, passed(argument, BaseId::argument(n.into())));
        }
        s
    }

    /// Nothing known, not even that the frame's address is private.
    pub fn top() -> State {
        State { frame_leaked: true, packet: BaseId::Unknown, ..State::entry(ProgKind::Subprogram) }
    }

    /// A state put together from its parts, for a question that does not come from an analysis: registers
    /// (r10 is the frame pointer whatever is said of it), pieces of the frame by their offset, whether the
    /// frame's address has leaked, and the base of the packet. The frame is that of a little-endian machine.
    pub fn from_parts(
        regs: impl IntoIterator<Item = (Reg, Value)>,
        stack: impl IntoIterator<Item = (i64, Value)>,
        frame_leaked: bool,
        packet: BaseId,
    ) -> State {
        let mut s = State { frame_leaked, packet, ..State::entry(ProgKind::Subprogram) };
        regs.into_iter().for_each(|(r, v)| s.set_reg(r, v));
        for (off, v) in stack {
            s.frame_leaked |= s.frame.store(off, v, ByteOrder::Little);
        }
        s
    }

    /// What the register holds.
    pub fn reg(&self, r: Reg) -> &Value {
        &self.regs[r.index()]
    }

    /// Sets a register; r10 is read-only.
    pub fn set_reg(&mut self, r: Reg, v: Value) {
        if r != Reg::R10 {
            self.regs[r.index()] = v;
        }
    }

    /// What a load of `len` bytes (1 to 8) at r10 + `off` would give.
    pub fn stack_bytes(&self, off: i64, len: u32) -> Value {
        self.frame.load(off, len.clamp(1, 8))
    }

    /// Whether a register or the frame holds a pointer to the packet's data of which it is known that the function itself has read it
    /// from the context. (An argument may be one to the metadata.)
    pub fn has_packet_data(&self) -> bool {
        let is_one = |v: &Value| match v.kind {
            Kind::Pointer { region: Region::Packet, base, nullable: false } => base.same(base) && !base.is_argument(),
            _ => false,
        };
        self.regs.iter().any(is_one) || self.stack_values().any(|(_, v)| is_one(v))
    }

    /// How many bytes from this packet base are known to be readable.
    pub fn packet_range(&self, base: BaseId) -> u32 {
        if self.packet.same(base) { self.readable } else { 0 }
    }

    /// The base that packet pointers loaded from the context now have.
    pub fn packet_base(&self) -> BaseId {
        self.packet
    }

    /// Whether an address of this function's frame may be anywhere else than in values marked
    /// [`Region::Stack`]. If not, no [`Kind::Unknown`] pointer points into the frame.
    pub fn frame_leaked(&self) -> bool {
        self.frame_leaked
    }

    pub(crate) fn leak(&mut self) {
        self.frame_leaked = true;
    }

    /// Whether a pointer to the frame is (known to be) spilled in the frame.
    pub fn frame_pointer_spilled(&self) -> bool {
        self.frame.holds_frame_pointer(-crate::FRAME, 0)
    }

    /// Whether a pointer to the frame may be spilled, whole or in part, in these bytes of the frame.
    pub(crate) fn frame_pointer_spilled_in(&self, bytes: &StackSet) -> bool {
        bytes.runs().iter().any(|(off, n)| self.frame.holds_frame_pointer(*off, *off + i64::from(*n)))
    }

    /// Whether the value, not marked as a stack pointer, may all the same be an address of the frame.
    pub fn may_be_frame_address(&self, v: &Value) -> bool {
        self.frame_leaked && matches!(v.kind, Kind::Unknown | Kind::Scalar) && v.num.as_const() != Some(0)
    }

    /// The bytes of this function's frame that an access of up to `len` bytes at `base + off` may touch.
    pub fn touched(&self, base: &Value, off: i16, len: u32) -> StackSet {
        if base.is_stack() {
            let lo = i128::from(base.num.smin) + i128::from(off);
            let hi = i128::from(base.num.smax) + i128::from(off) + i128::from(len);
            StackSet::between(lo, hi)
        } else if self.may_be_frame_address(base) {
            StackSet::ALL
        } else {
            StackSet::EMPTY
        }
    }

    /// The same for an address that nobody has checked. A pointer to something else plus a number is one of them: the
    /// number may be the distance to the frame, once the frame's address has leaked.
    pub fn probed(&self, base: &Value, len: u32) -> StackSet {
        let elsewhere = base.region().is_some() && base.num.as_const().is_some() || base.as_const() == Some(0);
        if self.frame_leaked && !base.is_stack() && !elsewhere { StackSet::ALL } else { self.touched(base, 0, len) }
    }

    /// Renames the base of every pointer that carries `base`, in the regions chosen.
    pub(crate) fn rename(&mut self, base: BaseId, to: BaseId, chosen: impl Fn(&Region) -> bool) {
        self.update(
            |v| matches!(&v.kind, Kind::Pointer { region, base: b, .. } if *b == base && chosen(region)),
            |v| {
                if let Kind::Pointer { base, .. } = &mut v.kind {
                    *base = to;
                }
            },
        );
    }

    /// Memory that a helper handed out, and to which `v` points, ends: so do the pointers to it.
    pub(crate) fn end_memory(&mut self, v: &Value) {
        let ended = match v.kind {
            Kind::Pointer { region: Region::Mem, base, .. } => base,
            _ => return,
        };
        let same = |b: BaseId| ended.same(b) || ended == BaseId::Unknown || b == BaseId::Unknown;
        self.update(
            |v| matches!(v.kind, Kind::Pointer { region: Region::Mem, base, .. } if same(base)),
            |v| *v = Value::unknown(),
        );
    }

    /// The packet moves: all pointers to it die, and its next base is `base`.
    pub(crate) fn move_packet(&mut self, base: BaseId) {
        self.update(|v| v.region().is_some_and(Region::is_packet), |v| *v = Value::unknown());
        self.packet = base;
        self.readable = 0;
    }

    pub(crate) fn packet_readable(&mut self, bytes: u32) {
        self.readable = self.readable.max(bytes);
    }

    /// Changes every value, in registers and frame, that is `wanted`.
    pub(crate) fn update(&mut self, wanted: impl Fn(&Value) -> bool, mut change: impl FnMut(&mut Value)) {
        for v in self.regs.iter_mut().filter(|v| wanted(v)) {
            change(v);
        }
        self.frame.update(wanted, change);
    }

    /// Forgets stack bytes that may have been overwritten.
    pub(crate) fn forget(&mut self, bytes: &StackSet) {
        if self.frame.forget(bytes) {
            self.leak();
        }
    }

    /// What holds of an execution that is in one of the two states, at the entry of block `at`. Registers
    /// outside `live` are not read before they are written.
    #[must_use]
    pub(crate) fn join(&self, o: &State, at: BlockId, live: RegSet) -> State {
        if self.packet != o.packet {
            // Both sides' packet pointers are current: give them one new name.
            let here = BaseId::Join(at);
            let renamed = |s: &State| {
                let mut s = s.clone();
                s.rename(s.packet, here, Region::is_packet);
                s.packet = here;
                s
            };
            return renamed(self).join(&renamed(o), at, live);
        }
        let mut leaked = self.frame_leaked || o.frame_leaked;
        let regs = std::array::from_fn(|i| {
            let (a, b) = (&self.regs[i], &o.regs[i]);
            let v = a.join(b);
            let lost = (a.is_stack() || b.is_stack()) && !v.is_stack();
            leaked |= lost && Reg::new(i as u8).is_some_and(|r| live.contains(r));
            v
        });
        let (frame, lost) = self.frame.join(&o.frame, Value::join);
        let readable = self.readable.min(o.readable);
        State { regs, frame, frame_leaked: leaked || lost, packet: self.packet, readable }
    }

    /// A state that describes all that `next` does, such that repeated widening ends; `next` describes
    /// all that `self` does.
    #[must_use]
    pub(crate) fn widen(&self, next: &State, hard: bool) -> State {
        let regs = std::array::from_fn(|i| self.regs[i].widen(&next.regs[i], hard));
        let (frame, lost) = self.frame.join(&next.frame, |a, b| a.widen(b, hard));
        let frame_leaked = next.frame_leaked || lost;
        State { regs, frame, frame_leaked, packet: next.packet, readable: next.readable }
    }
}

/// What a function may take an argument for.
fn passed(argument: &Argument, base: BaseId) -> Value {
    let (pointee, nullable) = match argument {
        Argument::Unknown => return Value::unknown(),
        Argument::Number => return Value::scalar(Num::top(64)),
        Argument::Context => return Value::pointer(Region::Ctx, BaseId::Fixed, 0),
        Argument::Pointer(pointee, nullable) => (pointee, *nullable),
    };
    let region = match pointee {
        Pointee::CallerFrame => Region::CallerFrame,
        Pointee::MapValue(map) => Region::MapValue { map: *map },
        Pointee::AnyMapValue => Region::AnyMapValue,
        Pointee::Packet => Region::Packet,
        Pointee::PacketEnd => Region::PacketEnd,
        Pointee::Map(map) => return Value::pointer(Region::MapPtr { map: *map }, BaseId::Fixed, 0),
        // Somewhere in it, which has one start.
        Pointee::Data(section) => {
            let region = Region::Data { section: section.clone() };
            return Value { kind: Kind::Pointer { region, base: BaseId::Unknown, nullable }, num: Num::top(64) };
        }
    };
    Value { kind: Kind::Pointer { region, base, nullable }, num: Num::constant(64, 0) }
}

/// Where an access at `base + off` goes: region, base and offset, if `base` is a known pointer that is
/// not null.
pub fn address_of(state: &State, base: Reg, off: i16) -> Option<(Region, BaseId, Num)> {
    match &state.reg(base).kind {
        Kind::Pointer { region, base: id, nullable: false } => {
            let offset = state.reg(base).num.add(&Num::constant(64, i64::from(off) as u64));
            Some((region.clone(), *id, offset))
        }
        _ => None,
    }
}
