//! The state of one side of a proof: registers, memories, history.

use bpf_isa::RegSet;

use crate::symbolic::context::Context;
use crate::symbolic::variables::{Meaning, VarKey};
use crate::term::{MemId, TermId};

/// SymbolicState at one point of one side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolicState {
    /// Registers, 64 bits each.
    pub regs: [TermId; 11],
    /// Memory of each region touched so far, by region number.
    pub mems: Vec<Option<MemId>>,
    /// History.
    pub world: TermId,
    /// Version of the context fields.
    pub ctx_version: TermId,
    /// Version of the packet pointers.
    pub packet_version: TermId,
    /// How long the packet is, as legacy loads have found: 64 bits, 0 as long as none asked. What others have noticed since is
    /// part of the history instead (`symbolic/symex/packets.rs`).
    pub reach: TermId,
    /// Whether the program has stored to the packet since the entry, itself and not by a helper: see [`crate::presence`].
    pub packet_stored: TermId,
    /// Lookups whose answer still stands: nothing since then may have changed it.
    pub lookups: Vec<Lookup>,
    /// The bytes of the latest access to shared memory, if there was one since the last event: nothing stands between
    /// it and the next one.
    pub recent: Option<Recent>,
}

impl SymbolicState {
    /// With these registers, before anything has happened.
    pub fn at_entry(cx: &mut Context, regs: [TermId; 11]) -> SymbolicState {
        cx.entry = Some(regs);
        let zero = cx.entry_world();
        SymbolicState {
            regs,
            mems: Vec::new(),
            world: zero,
            ctx_version: zero,
            packet_version: zero,
            reach: cx.terms.constant(64, 0),
            packet_stored: cx.terms.fls(),
            lookups: Vec::new(),
            recent: None,
        }
    }
}

/// What an access to shared memory has left known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recent {
    pub(crate) region: u32,
    pub(crate) base: TermId,
    pub(crate) bytes: Vec<(i64, TermId)>,
}

/// A map lookup that was made on every path to here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The map.
    pub map: TermId,
    /// The bytes of the key.
    pub key: Vec<TermId>,
    /// The event.
    pub id: u32,
    /// Elements of arrays never move and never vanish.
    pub array: bool,
}

/// The memory of region `r` in `state`: at first touch, its contents at entry.
pub fn memory_of(cx: &mut Context, state: &mut SymbolicState, r: u32) -> MemId {
    let i = r as usize;
    if state.mems.len() <= i {
        state.mems.resize(i + 1, None);
    }
    if let Some(m) = state.mems[i] {
        return m;
    }
    let v = cx.entry_world();
    let m = cx.terms.mem_base(r, v);
    state.mems[i] = Some(m);
    m
}

/// The variable that stands in dead registers.
pub fn dead_value(cx: &mut Context) -> TermId {
    cx.var(VarKey::Dead, 64, Meaning::Scalar)
}

/// The state that is `a` if `c` holds, else `b`; registers that are not live become dead.
pub fn merge(cx: &mut Context, c: TermId, a: &SymbolicState, b: &SymbolicState, live: RegSet) -> SymbolicState {
    if a == b {
        return a.clone();
    }
    let (mut a, mut b) = (a.clone(), b.clone());
    let mut regs = a.regs;
    for r in bpf_isa::Reg::all() {
        let i = r.index();
        if a.regs[i] != b.regs[i] {
            regs[i] = if live.contains(r) { cx.terms.ite(c, a.regs[i], b.regs[i]) } else { dead_value(cx) };
        }
    }
    let n = cx.region_count();
    let mut mems = Vec::with_capacity(n as usize);
    for r in 0..n {
        let (x, y) = (memory_of(cx, &mut a, r), memory_of(cx, &mut b, r));
        mems.push(Some(cx.terms.mem_ite(c, x, y)));
    }
    SymbolicState {
        regs,
        mems,
        world: cx.terms.ite(c, a.world, b.world),
        ctx_version: cx.terms.ite(c, a.ctx_version, b.ctx_version),
        packet_version: cx.terms.ite(c, a.packet_version, b.packet_version),
        reach: cx.terms.ite(c, a.reach, b.reach),
        packet_stored: cx.terms.ite(c, a.packet_stored, b.packet_stored),
        lookups: a.lookups.into_iter().filter(|l| b.lookups.contains(l)).collect(),
        recent: a.recent.filter(|r| b.recent.as_ref() == Some(r)),
    }
}
