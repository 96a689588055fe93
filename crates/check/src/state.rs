//! What the verifier knows at one point of one path: registers, stack frames, references held.

use std::rc::Rc;

use bpf_isa::Reg;

use crate::scalar::Scalar;

/// Bytes of a stack frame.
pub const STACK: i64 = 512;
/// Frames of a call chain.
pub const MAX_FRAMES: usize = 8;

/// What kind of thing a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Never written, or clobbered.
    NotInit,
    /// A number.
    Scalar,
    /// The context.
    Ctx,
    /// A map.
    Map(u32),
    /// The template of the inner maps of a map.
    InnerMap(u32),
    /// A value of a map; `inner` if it is one of the map's inner maps.
    MapValue {
        /// Index of the map.
        map: u32,
        /// A value of an inner map.
        inner: bool,
    },
    /// Packet data.
    Packet,
    /// Packet metadata.
    PacketMeta,
    /// The end of the packet.
    PacketEnd,
    /// A stack frame.
    Stack(u8),
    /// A socket.
    Sock(Sock),
    /// Memory of a known size.
    Mem {
        /// How long it is.
        size: u32,
        /// Can be written.
        write: bool,
        /// A ring-buffer reservation.
        ringbuf: bool,
    },
    /// The flow dissector's keys.
    FlowKeys,
    /// A function of the program.
    Func(u32),
    /// A pointer to a kernel object about which this crate knows nothing.
    Opaque,
}

/// Kinds of socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sock {
    /// `struct sock_common`.
    Common,
    /// `struct sock`.
    Full,
    /// `struct tcp_sock`.
    Tcp,
    /// `struct xdp_sock`.
    Xdp,
}

/// One register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegState {
    /// What it holds.
    pub kind: Kind,
    /// May be null instead.
    pub or_null: bool,
    /// Constant part of a pointer's offset; of a scalar, the distance from the others with its id.
    pub off: i32,
    /// The number, or the variable part of a pointer's offset.
    pub num: Scalar,
    /// Registers with the same id are equal, or have the same fate at a null check or a bounds check; 0 for none.
    pub id: u32,
    /// The reference it holds; 0 for none.
    pub reference: u32,
    /// Packet pointers: bytes from the variable part on that are known to be there.
    pub range: u32,
    /// Name of its value in the graph of what was computed from what.
    pub version: u32,
}

impl RegState {
    /// Nothing readable.
    pub const NOT_INIT: RegState = RegState {
        kind: Kind::NotInit,
        or_null: false,
        off: 0,
        num: Scalar::constant(0),
        id: 0,
        reference: 0,
        range: 0,
        version: 0,
    };

    /// A pointer to the start of something.
    pub const fn pointer(kind: Kind) -> RegState {
        RegState { kind, ..RegState::NOT_INIT }
    }

    /// A number.
    pub const fn scalar(num: Scalar, version: u32) -> RegState {
        RegState { kind: Kind::Scalar, num, version, ..RegState::NOT_INIT }
    }

    /// Is it a number?
    pub fn is_scalar(&self) -> bool {
        self.kind == Kind::Scalar
    }

    /// Is it any pointer?
    pub fn is_pointer(&self) -> bool {
        !matches!(self.kind, Kind::Scalar | Kind::NotInit)
    }

    /// Is it the number zero?
    pub fn is_null(&self) -> bool {
        self.is_scalar() && self.num.as_const() == Some(0)
    }

    /// Does it point into the packet, or to its end?
    pub fn is_packet(&self) -> bool {
        matches!(self.kind, Kind::Packet | Kind::PacketMeta | Kind::PacketEnd)
    }

    /// The kernel's name for what it holds.
    pub fn describe(&self) -> String {
        let name = match self.kind {
            Kind::NotInit => "?",
            Kind::Scalar => "scalar",
            Kind::Ctx => "ctx",
            Kind::Map(_) | Kind::InnerMap(_) => "map_ptr",
            Kind::MapValue { .. } => "map_value",
            Kind::Packet => "pkt",
            Kind::PacketMeta => "pkt_meta",
            Kind::PacketEnd => "pkt_end",
            Kind::Stack(_) => "fp",
            Kind::Sock(Sock::Common) => "sock_common",
            Kind::Sock(Sock::Full) => "sock",
            Kind::Sock(Sock::Tcp) => "tcp_sock",
            Kind::Sock(Sock::Xdp) => "xdp_sock",
            Kind::Mem { ringbuf: true, .. } => "ringbuf_mem",
            Kind::Mem { .. } => "mem",
            Kind::FlowKeys => "flow_keys",
            Kind::Func(_) => "func",
            Kind::Opaque => "ptr_",
        };
        format!("{name}{}", if self.or_null { "_or_null" } else { "" })
    }
}

/// What one byte of the stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Byte {
    /// Never written.
    Invalid,
    /// Some number.
    Misc,
    /// Zero.
    Zero,
    /// Part of a stored register.
    Spill,
}

/// Eight bytes of the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackSlot {
    /// The lowest address first.
    pub bytes: [Byte; 8],
    /// The stored register, if bytes are [`Byte::Spill`] (always a run from the lowest address).
    pub spilled: Option<Rc<RegState>>,
}

impl StackSlot {
    /// Never written.
    pub const INVALID: StackSlot = StackSlot { bytes: [Byte::Invalid; 8], spilled: None };

    /// How many bytes of a register are stored here.
    pub fn spill_size(&self) -> u32 {
        self.bytes.iter().take_while(|b| **b == Byte::Spill).count() as u32
    }

    /// Forgets the register, keeping that the bytes were written.
    pub fn scrub(&mut self) {
        if self.spilled.take().is_some() {
            for b in &mut self.bytes {
                if *b == Byte::Spill {
                    *b = Byte::Misc;
                }
            }
        }
    }
}

/// One function on the call chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// r0 … r10.
    pub regs: [RegState; 11],
    /// From the frame pointer down: slot 0 is at −8.
    pub stack: Vec<StackSlot>,
    /// The slot of the call that made it.
    pub callsite: usize,
    /// The function.
    pub sub: usize,
    /// A helper calls it, perhaps again and again.
    pub callback: bool,
    /// How often the callback of the helper called here has returned.
    pub rounds: u64,
}

impl Frame {
    /// A new frame, numbered `depth`.
    pub fn new(sub: usize, callsite: usize, depth: u8) -> Frame {
        let mut regs = [RegState::NOT_INIT; 11];
        regs[10] = RegState::pointer(Kind::Stack(depth));
        Frame { regs, stack: Vec::new(), callsite, sub, callback: false, rounds: 0 }
    }

    /// The slot that holds offset `off` (negative) from the frame pointer; frames grow as they are used.
    pub fn slot_mut(&mut self, off: i64) -> &mut StackSlot {
        let index = slot_index(off);
        if self.stack.len() <= index {
            self.stack.resize(index + 1, StackSlot::INVALID);
        }
        &mut self.stack[index]
    }

    /// The same for reading.
    pub fn slot(&self, off: i64) -> &StackSlot {
        self.stack.get(slot_index(off)).unwrap_or(&StackSlot::INVALID)
    }
}

/// Number of the eight bytes that hold offset `off`, which must be in −512 … −1.
pub fn slot_index(off: i64) -> usize {
    debug_assert!((-STACK..0).contains(&off));
    ((-off - 1) / 8) as usize
}

/// A reference that must be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its id.
    pub id: u32,
    /// Where it was taken.
    pub slot: usize,
}

/// Everything known at one point of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifierState {
    /// The call chain; the last is running.
    pub frames: Vec<Rc<Frame>>,
    /// References held.
    pub held: Vec<Held>,
    /// The lock held: the id of the value it is in.
    pub lock: Option<u32>,
}

impl VerifierState {
    /// Rounds of the callbacks that are under way.
    pub fn rounds(&self) -> u64 {
        self.frames.iter().map(|f| f.rounds).sum()
    }

    /// The running frame.
    pub fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    /// The same for writing.
    pub fn top_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        Rc::make_mut(&mut self.frames[last])
    }

    /// A register of the running frame.
    pub fn reg(&self, r: Reg) -> &RegState {
        &self.top().regs[r.index()]
    }

    /// The same for writing.
    pub fn reg_mut(&mut self, r: Reg) -> &mut RegState {
        &mut self.top_mut().regs[r.index()]
    }

    /// Changes every register, in registers and on the stack, for which `wanted` holds.
    pub fn update(&mut self, wanted: impl Fn(&RegState) -> bool, mut change: impl FnMut(&mut RegState)) {
        for frame in &mut self.frames {
            let hit =
                frame.regs.iter().any(&wanted) || frame.stack.iter().any(|s| s.spilled.as_deref().is_some_and(&wanted));
            if !hit {
                continue;
            }
            let frame = Rc::make_mut(frame);
            frame.regs.iter_mut().filter(|r| wanted(r)).for_each(&mut change);
            for slot in &mut frame.stack {
                if let Some(reg) = slot.spilled.as_mut().filter(|r| wanted(r)) {
                    change(Rc::make_mut(reg));
                }
            }
        }
    }
}
