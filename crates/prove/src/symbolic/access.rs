//! Accesses to memory that others see, too, as the symbolic machine logs them.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::term::{MemId, TermId};

/// One byte accessed in memory that is not the function's stack; or a whole access, if `exact`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Condition under which it happens.
    pub guard: TermId,
    /// History at that moment.
    pub world: TermId,
    /// Region number.
    pub region: u32,
    /// Symbolic part of the address.
    pub base: TermId,
    /// Constant part.
    pub off: i64,
    /// The byte read or written; the whole value of an exact access.
    pub value: TermId,
    /// Whether it writes.
    pub write: bool,
    /// Number of the access within its side, in program order.
    pub access: u32,
    /// Part of an atomic that stands for a plain load and store.
    pub atomic: bool,
    /// For accesses that must stay as they are: what they are.
    pub exact: Option<Exact>,
    /// Version of the packet at that moment: pointers to it die when it moves.
    pub packet: TermId,
    /// On the old side: a read of what its very last access has left, taken to find that. The new side does not make it
    /// again: it could find something else.
    pub forwarded: bool,
    /// On the new side: the entry of the old side's log that it consumes, if that is known already.
    pub consumes: Option<usize>,
    /// On the new side: a byte of a read that the old side does not read, inside of the same value. What it finds is a
    /// variable of its own, so nothing that counts depends on it.
    pub beside: bool,
}

/// What an access is that must stay as it is, and what it may see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exact {
    /// Bytes accessed.
    pub size: u32,
    /// Memories nobody else sees, but which the pointer may lead to.
    pub sees: Vec<(u32, MemId)>,
    /// Whether it may be dropped if nobody uses its value.
    pub droppable: bool,
    /// Why it must stay.
    pub reason: Reason,
}

/// Why an access must stay as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The verifier may translate it: it may be to the context or to a kernel object.
    Translated,
    /// It may be of a field that the kernel manages ([`bpf_platform::fields`]).
    Managed {
        /// It writes an immediate.
        immediate: bool,
    },
}

/// Region, symbolic and constant part of the address of a byte.
pub(crate) type Place = (u32, TermId, i64);

/// The old side's accesses, looked up by the new side while that runs.
#[derive(Clone, Default, Debug)]
pub struct OldAccesses {
    pub(crate) log: Vec<Access>,
    pub(crate) by_place: FxHashMap<Place, Vec<usize>>,
    pub(crate) taken: FxHashSet<usize>,
    /// Which access of the new side an access of the old side belongs to.
    pub(crate) owner: FxHashMap<u32, u32>,
    /// Condition and last old access of each access of the new side so far.
    pub(crate) done: Vec<(TermId, u32)>,
}

/// The entries of a log by what they access.
pub(crate) fn places(log: &[Access]) -> FxHashMap<Place, Vec<usize>> {
    let mut by_place: FxHashMap<Place, Vec<usize>> = FxHashMap::default();
    for (i, a) in log.iter().enumerate() {
        by_place.entry((a.region, a.base, a.off)).or_default().push(i);
    }
    by_place
}
