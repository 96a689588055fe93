//! When a remembered state makes walking on from the present one unnecessary: everything the present one allows, the
//! remembered one allowed too, as far as anyone looked.

use bpf_isa::{Reg, RegSet};

use rustc_hash::FxHashMap;

use crate::graph::Values;
use crate::scalar::Scalar;
use crate::state::{Byte, Frame, Kind, RegState, StackSlot, VerifierState};

/// How alike two states must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// The old one covers the new one, where it was looked at.
    Covers,
    /// The old one covers the new one everywhere.
    CoversAll,
    /// They are the same: a path that comes back to such a state never ends.
    Same,
}

/// A one-to-one relation of ids.
#[derive(Default)]
struct Ids(Vec<(u32, u32)>);

impl Ids {
    fn agree(&mut self, old: u32, new: u32) -> bool {
        if (old == 0) != (new == 0) {
            return false;
        }
        if old == 0 {
            return true;
        }
        for &(a, b) in &self.0 {
            if a == old {
                return b == new;
            }
            if b == new {
                return false;
            }
        }
        self.0.push((old, new));
        true
    }
}

/// Takes the ids away from numbers that have no copy: they say nothing.
pub fn forget_lonely_ids(state: &mut VerifierState) {
    let mut count: FxHashMap<u32, u32> = FxHashMap::default();
    for frame in &state.frames {
        let spilled = frame.stack.iter().filter_map(|s| s.spilled.as_deref());
        for reg in frame.regs.iter().chain(spilled).filter(|r| r.is_scalar() && r.id != 0) {
            *count.entry(reg.id).or_default() += 1;
        }
    }
    state.update(|r| r.is_scalar() && count.get(&r.id) == Some(&1), |r| (r.id, r.off) = (0, 0));
}

/// Compares states at one slot. `live` gives the live registers at a slot, `read` the stack slots of each frame that
/// were read after the old state, one bit for each eight bytes; `time` is when it was remembered.
pub fn equal(
    old: &VerifierState,
    new: &VerifierState,
    (values, time): (&Values, u32),
    at: usize,
    live: &[RegSet],
    read: &[u64],
    exact: Exactness,
) -> bool {
    if old.frames.len() != new.frames.len() || old.lock.is_some() != new.lock.is_some() {
        return false;
    }
    let mut c = Comparison { values, time, exact, ids: Ids::default(), alone: u32::MAX };
    if old.held.len() != new.held.len() || !old.held.iter().zip(&new.held).all(|(a, b)| c.ids.agree(a.id, b.id)) {
        return false;
    }
    let last = old.frames.len() - 1;
    (0..=last).all(|depth| {
        let (a, b) = (&old.frames[depth], &new.frames[depth]);
        // What is live in a caller is what is live after its call, and r0 comes from the callee; but a callback
        // returns to the call itself.
        let registers = match old.frames.get(depth + 1) {
            None => live_at(live, at),
            Some(callee) if callee.callback => live_at(live, callee.callsite),
            Some(callee) => live_at(live, callee.callsite + 1).minus(RegSet::CALLER_SAVED),
        };
        a.callsite == b.callsite && a.sub == b.sub && c.frame(a, b, registers, read.get(depth).copied().unwrap_or(0))
    })
}

fn live_at(live: &[RegSet], at: usize) -> RegSet {
    live.get(at).copied().unwrap_or(RegSet::ALL)
}

struct Comparison<'a> {
    values: &'a Values,
    time: u32,
    exact: Exactness,
    ids: Ids,
    /// Names for numbers without copies, counted down.
    alone: u32,
}

impl Comparison<'_> {
    fn frame(&mut self, old: &Frame, new: &Frame, live: RegSet, read: u64) -> bool {
        Reg::all().filter(|r| live.contains(*r) && *r != Reg::R10).all(|r| {
            let i = r.index();
            self.reg(&old.regs[i], &new.regs[i])
        }) && self.stack(old, new, read)
    }

    fn reg(&mut self, old: &RegState, new: &RegState) -> bool {
        if old.kind == Kind::NotInit {
            return true;
        }
        if self.exact == Exactness::Same {
            return RegState { version: 0, ..*old } == RegState { version: 0, ..*new };
        }
        if old.kind != new.kind || old.or_null != new.or_null {
            return false;
        }
        match old.kind {
            Kind::Scalar => {
                (self.exact == Exactness::Covers && !self.values.is_precise(old.version, self.time))
                    || (old.num.includes(&new.num) && self.copies(old, new))
            }
            Kind::Packet | Kind::PacketMeta => {
                old.range <= new.range
                    && old.off == new.off
                    && (old.id == 0 || self.ids.agree(old.id, new.id))
                    && old.num.includes(&new.num)
            }
            Kind::MapValue { .. } | Kind::Mem { .. } | Kind::Sock(_) => {
                old.off == new.off
                    && old.num.includes(&new.num)
                    && self.ids.agree(old.id, new.id)
                    && self.ids.agree(old.reference, new.reference)
            }
            _ => {
                old.off == new.off
                    && old.num == new.num
                    && self.ids.agree(old.id, new.id)
                    && self.ids.agree(old.reference, new.reference)
            }
        }
    }

    /// Numbers that were copies of each other still are, at the same distances.
    fn copies(&mut self, old: &RegState, new: &RegState) -> bool {
        if old.id == 0 {
            return true;
        }
        if new.id == 0 {
            // A number without copies is like one with an id of its own.
            self.alone -= 1;
            return self.ids.agree(old.id, self.alone);
        }
        old.off == new.off && self.ids.agree(old.id, new.id)
    }

    fn stack(&mut self, old: &Frame, new: &Frame, read: u64) -> bool {
        for (index, a) in old.stack.iter().enumerate() {
            if self.exact == Exactness::Covers && read >> index & 1 == 0 {
                continue;
            }
            let b = new.stack.get(index).unwrap_or(&StackSlot::INVALID);
            if !self.slot(a, b) {
                return false;
            }
        }
        true
    }

    fn slot(&mut self, a: &StackSlot, b: &StackSlot) -> bool {
        let covers = self.exact != Exactness::Same;
        let number = |s: &StackSlot| s.spilled.as_deref().is_some_and(RegState::is_scalar);
        // A stored number whose bounds did not matter is as good as any number.
        let vague = self.exact == Exactness::Covers
            && a.spilled.as_deref().is_some_and(|r| r.is_scalar() && !self.values.is_precise(r.version, self.time));
        for (x, y) in a.bytes.iter().zip(&b.bytes) {
            let x = if vague && *x == Byte::Spill { Byte::Misc } else { *x };
            let covered = match (x, *y) {
                (Byte::Invalid, _) => covers || *y == Byte::Invalid,
                (Byte::Misc, Byte::Zero | Byte::Misc | Byte::Invalid) => covers || *y == Byte::Misc,
                (Byte::Misc, Byte::Spill) => covers && number(b),
                (x, y) => x == y,
            };
            if !covered {
                return false;
            }
        }
        match (&a.spilled, &b.spilled) {
            _ if vague => true,
            // Unknown bytes in place of a number of which something had to be known.
            (Some(x), None) => x.is_scalar() && x.num == Scalar::TOP,
            (Some(x), Some(y)) => self.reg(x, y),
            (None, _) => true,
        }
    }
}
