//! Events: what the outside world can notice.
//!
//! Calls and the like form a history, the *world*; each event makes a new world from the one before and from everything
//! the callee can observe. Equal histories are equal numbers.

use bpf_isa::Insn;
use bpf_platform::Effects;
use bpf_program::Symbol;

use crate::term::{MemId, TermId};

/// Width of the numbers that name worlds, and versions of memory.
pub const WORLD_BITS: u32 = 32;

/// Stands among an event's arguments for the address of what the callee copies: nobody learns it. Its bytes follow. No
/// pointer has this value, nor is it the one that stands for none.
pub const COPIED: u64 = 1;

/// Something the outside world can notice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Event {
    /// The world before.
    pub before: TermId,
    /// What it is.
    pub what: EventKind,
    /// Arguments and bytes read, in a fixed order for each kind.
    pub args: Vec<TermId>,
    /// Memories it can observe, with their regions.
    pub mems: Vec<(u32, MemId)>,
}

/// Kind of event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EventKind {
    /// A call: helper, kfunc, subprogram.
    Call(Insn, Option<Symbol>),
    /// A store to a context field: offset and width.
    CtxStore(i64, u32),
    /// An atomic read-modify-write.
    Atomic(Insn),
    /// A read of a context field that changes how the kernel translates accesses to others: offset and width.
    CtxRead(i64, u32),
    /// A legacy packet load of so many bytes, at an offset that may mean another place than one in the packet.
    LegacyLoad(u32),
    /// No event, and no world comes after it: the bytes of the packet around an offset, as legacy loads find them.
    PacketBytes,
    /// The packet was as long as legacy loads have asked for; else the function has ended with 0.
    PacketReach,
    /// The ordering that a load-acquire or a store-release brings: bytes of the access, and whether it releases.
    Fence(u32, bool),
    /// A store patched by CO-RE.
    CoreStore(Symbol, Insn),
}

impl EventKind {
    /// Whether it is a call that may have no effect but its result ([`Effects::may_have_no_effect`]).
    pub(crate) fn may_have_no_effect(&self) -> bool {
        matches!(self, EventKind::Call(insn, None) if Effects::of(insn, false).may_have_no_effect())
    }
}
