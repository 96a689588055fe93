//! The history of what a program shows, and in what two memories differ.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Context, SatResult};
use crate::symbolic::history::{Event, EventKind, WORLD_BITS};
use crate::term::{MemId, TermId};

/// Places of the packet with which another one is compared, the latest first.
const PLACES: usize = 8;

impl Context {
    /// The world at entry.
    pub fn entry_world(&mut self) -> TermId {
        self.terms.constant(WORLD_BITS, 0)
    }

    /// The world after `event`: the number of an identical one, else of one in `known` that provably
    /// is the same when `guard` holds, else a new one.
    pub fn advance(&mut self, event: Event, guard: TermId, match_others: bool) -> u32 {
        if let Some(&i) = self.event_ids.get(&event) {
            return i;
        }
        // Not remembered under the new event's name: the sameness holds under this guard only.
        if match_others && let Some(i) = self.equivalent(&event, guard) {
            return i;
        }
        let i = self.events.len() as u32 + 1;
        self.by_before.entry(event.before).or_default().push(i);
        self.by_kind.entry(event.what.clone()).or_default().push(i);
        self.events.push(event.clone());
        self.event_ids.insert(event, i);
        i
    }

    /// Whether an identical event, or one that provably is the same under `guard`, is known already.
    pub fn find_event(&mut self, event: &Event, guard: TermId) -> Option<u32> {
        if let Some(&i) = self.event_ids.get(event) {
            return Some(i);
        }
        self.equivalent(event, guard)
    }

    /// An event that provably is the same as `event` whenever `guard` holds. Those with the very same
    /// world before are tried first; the worlds of others may be equal all the same, where paths meet
    /// in another order.
    fn equivalent(&mut self, event: &Event, guard: TermId) -> Option<u32> {
        let same_before = self.by_before.get(&event.before).cloned().unwrap_or_default();
        let alike = self.by_kind.get(&event.what).cloned().unwrap_or_default();
        let others: Vec<u32> = alike.iter().copied().filter(|i| !same_before.contains(i)).collect();
        for i in same_before.into_iter().filter(|i| alike.contains(i)).chain(others) {
            let other = self.events[i as usize - 1].clone();
            let e = self.terms.eq(other.before, event.before);
            if self.terms.as_const(e) != Some(0) && self.same_event(&other, event, guard) {
                return Some(i);
            }
        }
        None
    }

    /// The name of the bytes from an offset in the packet on, as it is in a world and with these memories: a
    /// [`PacketBytes`](EventKind::PacketBytes), and how far from that the first byte is. The name that they have if that is
    /// known to be the same when `guard` holds, else a new one.
    pub(crate) fn packet_place(
        &mut self,
        before: TermId,
        mems: Vec<(u32, MemId)>,
        offset: TermId,
        guard: TermId,
    ) -> (u32, i64) {
        let (base, first) = self.terms.split_offset(offset);
        let event = Event { before, what: EventKind::PacketBytes, args: vec![base], mems };
        if let Some(&id) = self.event_ids.get(&event) {
            return (id, first);
        }
        let known = self.by_kind.get(&event.what).cloned().unwrap_or_default();
        // What facts tell of a sum may have given it another form.
        if !known.is_empty()
            && let Some(case) = self.case(guard)
        {
            for id in known.into_iter().rev().take(PLACES) {
                let other = self.events[id as usize - 1].clone();
                let here = Event { args: other.args.clone(), ..event.clone() };
                let e = self.terms.eq(other.before, before);
                if self.terms.as_const(e) != Some(0)
                    && let Some(distance) = self.distance(guard, &case, other.args[0], offset)
                    && self.same_event(&other, &here, guard)
                {
                    return (id, distance);
                }
            }
        }
        (self.advance(event, guard, false), first)
    }

    /// The term for world number `i`.
    pub fn world(&mut self, i: u32) -> TermId {
        self.terms.constant(WORLD_BITS, u64::from(i))
    }

    fn same_event(&mut self, a: &Event, b: &Event, guard: TermId) -> bool {
        if a.args.len() != b.args.len() || a.mems.len() != b.mems.len() {
            return false;
        }
        let mut differ = Vec::new();
        if a.before != b.before {
            let e = self.terms.eq(a.before, b.before);
            differ.push(self.terms.not(e));
        }
        for (x, y) in a.args.iter().zip(&b.args) {
            if x != y {
                if self.terms.width(*x) != self.terms.width(*y) {
                    return false;
                }
                let e = self.terms.eq(*x, *y);
                differ.push(self.terms.not(e));
            }
        }
        for ((r, x), (s, y)) in a.mems.iter().zip(&b.mems) {
            if r != s || self.bases_differ(*x, *y).is_some_and(|c| self.terms.as_const(c) == Some(1)) {
                return false;
            }
            self.memory_differences(*x, *y, &|_, _, _| true, &mut differ);
        }
        matches!(self.check_sat(guard, &differ), SatResult::Unsat)
    }

    /// Adds to `out`, for every byte address written in either memory, the condition that the two
    /// disagree there. `relevant(self, base, offset)` filters addresses.
    pub fn memory_differences(
        &mut self,
        a: MemId,
        b: MemId,
        relevant: &dyn Fn(&mut Context, TermId, i64) -> bool,
        out: &mut Vec<TermId>,
    ) {
        if a == b {
            self.stats.trivial += 1;
            return;
        }
        let mut addrs = Vec::new();
        let mut seen = FxHashSet::default();
        self.terms.written(a, &mut addrs, &mut seen);
        self.terms.written(b, &mut addrs, &mut seen);
        // Base memories of different versions are different memories. The bytes are compared all the same: a run
        // shows those.
        out.extend(self.bases_differ(a, b));
        addrs.sort_unstable();
        addrs.dedup();
        for (base, off) in addrs {
            if !relevant(self, base, off) {
                continue;
            }
            let (x, y) = (self.terms.select(a, base, off), self.terms.select(b, base, off));
            if x != y {
                let e = self.terms.eq(x, y);
                out.push(self.terms.not(e));
            }
        }
    }

    /// When, away from all written addresses, two memories may disagree: their base memories are not the same
    /// one. `None` if that cannot be.
    fn bases_differ(&mut self, a: MemId, b: MemId) -> Option<TermId> {
        let (x, y) = (self.base_choice(a), self.base_choice(b));
        if x == y {
            return None;
        }
        let e = self.terms.eq(x, y);
        let differ = self.terms.not(e);
        let t = self.terms.tru();
        (!matches!(self.check_sat(t, &[differ]), SatResult::Unsat)).then_some(differ)
    }

    /// Which base memory is below, as a number that depends on the joins' conditions.
    fn base_choice(&mut self, m: MemId) -> TermId {
        let mut memo: FxHashMap<MemId, TermId> = FxHashMap::default();
        self.base_choice_memo(m, &mut memo)
    }

    fn base_choice_memo(&mut self, m: MemId, memo: &mut FxHashMap<MemId, TermId>) -> TermId {
        if let Some(&t) = memo.get(&m) {
            return t;
        }
        let r = match self.terms.mem(m).clone() {
            crate::term::MemNode::Base { .. } => self.terms.constant(WORLD_BITS, m.index() as u64),
            crate::term::MemNode::Chunk { prev, .. } => self.base_choice_memo(prev, memo),
            crate::term::MemNode::Ite(c, a, b) => {
                let (x, y) = (self.base_choice_memo(a, memo), self.base_choice_memo(b, memo));
                self.terms.ite(c, x, y)
            }
        };
        memo.insert(m, r);
        r
    }
}
