//! How the new side's run follows the old one's: which of its calls are made, which left out, and where they stand.

use bpf_isa::{Insn, Reg};
use bpf_platform::helpers::Helper;
use bpf_platform::{Effects, maps};
use bpf_program::{Op, Symbol};
use bpf_semantics::interp::{ArgValue, Cpu, Event as Call, Fault, Next};
use rustc_hash::FxHashMap;

use super::recording::{PacketLoad, Recording, words};
use super::world::{Follow, World, is_without_effect};
use crate::symbolic::variables::VarKey;

impl World<'_> {
    /// The old side's calls that the new one leaves out in front of what it asks now count as made.
    pub(super) fn leave_out(&mut self, cpu: &mut Cpu, op: &Op, Follow { old, choices }: Follow) {
        let Some(asked) = cpu.trace.pop() else { return };
        // In front of a call that does something, a call that may have no effect may be missing though it is not one of fewer: on
        // this way only.
        let rest = old.calls.iter().zip(&old.without_effect).skip(self.recording.effects.len());
        let missing = rest.take_while(|(call, without)| **without && **call != asked).count();
        let stands_behind = old.calls.get(self.recording.effects.len() + missing) == Some(&asked);
        let mut passes = if stands_behind && !is_without_effect(op) { missing } else { 0 };
        for k in self.recording.effects.len().. {
            let (Some(call), Some(effect), Some(id)) = (old.calls.get(k), old.effects.get(k), old.worlds.get(k)) else {
                break;
            };
            let is_fewer = self.fewer.has_named(&call.call);
            if !is_fewer && passes == 0
                || *call == asked && !self.leaves_out_equal(&asked, &old.calls[k + 1..], choices)
            {
                break;
            }
            passes = passes.saturating_sub(1);
            if !is_fewer {
                self.recording.passed_over.push(call.clone());
            }
            cpu.trace.push(call.clone());
            self.recording.memory.push(self.overlay.clone());
            self.recording.frames.push(cpu.frame().to_vec());
            // What others have written by then.
            self.recording.others_wrote |= !effect.1.is_empty();
            self.overlay.extend(effect.1.iter().copied());
            self.recording.effects.push(effect.clone());
            self.recording.without_effect.push(true);
            self.recording.worlds.push(*id);
            self.passed.push(u64::from(*id));
        }
        cpu.trace.push(asked);
    }

    /// Whether a call of the old side, which is what the new one asks, is left out and a `later` one meant: as `choices` say.
    fn leaves_out_equal(&mut self, asked: &Call, later: &[Call], choices: u32) -> bool {
        later.contains(asked) && self.chooses(choices)
    }

    /// What `choices` say where the run comes to the next choice.
    fn chooses(&mut self, choices: u32) -> bool {
        let n = self.recording.choices;
        self.recording.choices += 1;
        choices.checked_shr(n).is_some_and(|bits| bits & 1 == 1)
    }

    /// The new side's call `k`: if it asks what the old one asked, it gets the same answer.
    pub(super) fn follow_call(&mut self, cpu: &mut Cpu, op: &Op, old: &Recording, k: usize) -> Result<Next, Fault> {
        let asks = old.calls.get(k) == cpu.trace.last();
        let same_frame = old.frames.get(k).is_some_and(|f| same_frame(cpu, op, f));
        // A call that may have no effect sees what it is given, which the call itself tells, and nothing else.
        let same_memory =
            is_without_effect(op) || old.memory.get(k).is_some_and(|m| same_memory(m, &self.overlay, &self.initial));
        let same = asks && same_frame && same_memory;
        // Where in the frame an object lies is private, what it begins with is not.
        if let (Some(x), Some(y), Some(frame)) = (old.calls.get(k), cpu.trace.last(), old.frames.get(k))
            && x.call == y.call
            && x.args.iter().zip(&y.args).any(|(x, y)| x != y && begin_alike(cpu, (x, frame), (y, cpu.frame())))
        {
            return Err(Fault::Unmodelled("an object at another place of the frame".into()));
        }
        if !asks && self.may_stand_elsewhere(cpu, op, old, k) {
            return Err(Fault::Unmodelled("calls that may have no effect stand elsewhere".into()));
        }
        if !same {
            let now = cpu.trace.last().map_or_else(String::new, words);
            let then = old.calls.get(k).map_or_else(|| "nothing".into(), words);
            let what = match asks {
                true => format!("at call {} ({now}) memory the callee can see differs", k + 1),
                false => format!("call {} is {now} where the old one does {then}", k + 1),
            };
            self.recording.diverged = Some(what.clone());
            return Err(Fault::Unmodelled(what));
        }
        let answer = if is_without_effect(op) { self.answer(old, k) } else { k };
        let (Some((r0, writes)), Some(id)) = (old.effects.get(answer), old.worlds.get(k)) else {
            return Err(Fault::Unmodelled("a call that the old function did not survive".into()));
        };
        cpu.set(Reg::R0, *r0);
        for (a, b) in writes {
            cpu.write(self, *a, &[*b])?;
        }
        self.passed.push(u64::from(*id));
        self.recording.effects.push((*r0, writes.clone()));
        self.recording.worlds.push(*id);
        self.behind(op)
    }

    /// Which of the old side's calls gives the answer to call `k`, which may have no effect: itself, or the next equal one with
    /// another answer and nothing between that has an effect, as the choices say. Nothing orders the two, so that each may have
    /// been the other.
    fn answer(&mut self, old: &Recording, k: usize) -> usize {
        let answer = self.recording.exchanged.get(&k).copied().unwrap_or(k);
        let none = (k + 1..old.calls.len()).take_while(|q| old.without_effect.get(*q) == Some(&true));
        let others = none.map(|q| (q, self.recording.exchanged.get(&q).copied().unwrap_or(q)));
        let equal = others.filter(|(q, _)| old.calls[*q] == old.calls[k]).find(|(_, a)| {
            let (x, y) = (old.effects.get(answer), old.effects.get(*a));
            x.zip(y).is_some_and(|(x, y)| x.0 != y.0 && x.1.is_empty() && y.1.is_empty())
        });
        let (Some((q, other)), Some(follow)) = (equal, self.follow) else { return answer };
        if !self.chooses(follow.choices) {
            return answer;
        }
        self.recording.exchanged.insert(q, answer);
        other
    }

    /// What the old side's packet load of this kind has found: with as many calls before that may change the packet, and the same
    /// stored there. Calls without effect and stores to fields of the context are nothing to it.
    pub(super) fn followed_load(&self, load: &PacketLoad) -> Result<Option<&PacketLoad>, Fault> {
        let Some(Follow { old, .. }) = self.follow else { return Ok(None) };
        let same = |l: &&PacketLoad| (l.offset, l.size) == (load.offset, load.size) && self.is_of_the_same(l, load);
        let at = self.recording.packet_loads.len();
        if let Some(same) = old.packet_loads.get(at).filter(same) {
            return Ok(Some(same));
        }
        let mut all = old.packet_loads.iter().filter(same);
        let first = all.next();
        match all.all(|l| first.is_some_and(|f| f.found == l.found)) {
            true => Ok(first),
            false => Err(Fault::Unmodelled("equal packet loads that find different bytes".into())),
        }
    }

    /// The byte that a load of the old side has found at an offset, where this one now looks for it.
    pub(super) fn followed_byte(&self, load: &PacketLoad, at: i64) -> Result<Option<u8>, Fault> {
        let Some(Follow { old, .. }) = self.follow else { return Ok(None) };
        let byte = |l: &PacketLoad| {
            let behind = i64::from(l.offset) + i64::from(l.size) - 1 - at;
            (0..i64::from(l.size)).contains(&behind).then(|| (l.found >> (8 * behind)) as u8)
        };
        let mut all = old.packet_loads.iter().filter(|l| self.is_of_the_same(l, load)).filter_map(byte);
        let first = all.next();
        match all.all(|b| first == Some(b)) {
            true => Ok(first),
            false => Err(Fault::Unmodelled("packet loads that find different bytes in one place".into())),
        }
    }

    /// Whether two loads are from the same packet: with as many calls before that may change it, and the same stored there.
    fn is_of_the_same(&self, a: &PacketLoad, b: &PacketLoad) -> bool {
        a.calls == b.calls && same_memory(&a.packet, &b.packet, &self.initial)
    }

    /// Whether what the new side asks now, and the old one does not, may be a call that stands elsewhere there. It may have no
    /// effect itself, and the old side asks the same
    /// - with nothing between but calls that may have no effect,
    /// - before, if its result hangs on no call between: it has no arguments, or is an element of an array, or of a map that those
    ///   calls leave alone,
    /// - or anywhere, if it is the same all through a run. Of calls that were taken out of the old side before the run, nobody
    ///   knows where they stood.
    fn may_stand_elsewhere(&self, cpu: &Cpu, op: &Op, old: &Recording, k: usize) -> bool {
        let Some(now) = cpu.trace.last() else { return false };
        let places = || (0..old.calls.len()).filter(|p| old.calls[*p] == *now);
        // A call that has an effect may have others in front of it that are made behind it here.
        if !is_without_effect(op) {
            return places().any(|p| p >= k && (k..p).all(|q| old.without_effect.get(q) == Some(&true)));
        }
        let row = Effects::of(&op.insn, false);
        let map = row.map_register().and_then(|r| now.args.get(r.index() - 1));
        let is_none = |q: usize| old.without_effect.get(q) == Some(&true);
        let is_over = |q: usize| match map.filter(|_| row.is_lookup_by_key()) {
            Some(map) => is_none(q) || self.is_array(map) || leaves_alone(&old.calls[q], map),
            None => is_none(q) || row.arguments.is_empty(),
        };
        // In front of a call that has an effect nothing is moved, and whether the new side makes that call is not yet known.
        let is_moved = |p: usize| match p < k {
            true => (p..k.min(old.calls.len())).all(is_over),
            false => (k..p).all(is_none),
        };
        row.is_constant() && places().next().is_some() || self.taken_out.has_named(&now.call) || places().any(is_moved)
    }

    /// Whether this argument is an array.
    fn is_array(&self, map: &ArgValue) -> bool {
        self.env.maps.iter().any(|m| {
            let symbol = Symbol::Map { name: m.name.as_str().into(), index: 0 };
            let at = self.cx.lookup(&VarKey::Symbol(symbol)).map(|t| self.model.eval(&self.cx.terms, t));
            at.is_some_and(|at| *map == ArgValue::Plain(at)) && m.map_type.is_some_and(maps::is_array)
        })
    }
}

/// Whether a call leaves this map as it is: a helper of which the table tells what it does, and which is not given the map.
fn leaves_alone(call: &Call, map: &ArgValue) -> bool {
    let is_known = Helper::named(&call.call).is_some_and(|h| {
        let row = Effects::of(&Insn::Call(bpf_isa::Call::Helper(h.id)), false);
        !row.touches_everything && !row.is_tail_call()
    });
    is_known && !call.args.contains(map)
}

/// Whether the callee sees the same frame from the lowest address on that it is given. What helpers with
/// known buffers read is in the trace.
fn same_frame(cpu: &Cpu, op: &Op, old: &[u8]) -> bool {
    let known = !Effects::of(&op.insn, op.link.is_some()).touches_everything;
    let top = cpu.register(Reg::R10).unwrap_or(0);
    let below = |v: u64| top.wrapping_sub(v) as usize;
    let given = cpu.trace.last().into_iter().flat_map(|e| &e.args).filter_map(|a| match a {
        ArgValue::Plain(v) if cpu.in_stack(*v) => Some(below(*v)),
        _ => None,
    });
    match given.max() {
        Some(n) if !known && n <= old.len() => cpu.frame()[old.len() - n..] == old[old.len() - n..],
        _ => true,
    }
}

/// Whether both arguments lead into the frame, to the same bytes: at least one, at most those of a word.
fn begin_alike(cpu: &Cpu, (x, old): (&ArgValue, &[u8]), (y, new): (&ArgValue, &[u8])) -> bool {
    let top = cpu.register(Reg::R10).unwrap_or(0);
    let from = |a: &ArgValue, frame: &[u8]| match a {
        ArgValue::Plain(v) if cpu.in_stack(*v) => {
            let below = usize::try_from(top.wrapping_sub(*v)).ok()?;
            Some(frame[frame.len().checked_sub(below)?..].to_vec())
        }
        _ => None,
    };
    let (Some(a), Some(b)) = (from(x, old), from(y, new)) else { return false };
    let n = a.len().min(b.len()).min(8);
    n > 0 && a[..n] == b[..n]
}

/// Whether two memories that began as `initial` hold the same.
pub(super) fn same_memory(a: &FxHashMap<u64, u8>, b: &FxHashMap<u64, u8>, initial: &FxHashMap<u64, u8>) -> bool {
    let at = |m: &FxHashMap<u64, u8>, k: &u64| m.get(k).or(initial.get(k)).copied().unwrap_or(0);
    a.keys().chain(b.keys()).all(|k| at(a, k) == at(b, k))
}
