//! Bytes that only go from memory to memory take the widest accesses there are.
//!
//! ```text
//! r1 = *(u16 *)(r7 + 0)     →    r1 = *(u64 *)(r7 + 0)
//! r2 = *(u32 *)(r7 + 6)          r2 = *(u64 *)(r7 + 4)
//! r3 = *(u32 *)(r7 + 2)          r2 >>= 16
//! *(u32 *)(r7 + 0) = r2          *(u64 *)(r7 + 0) = r2
//! r2 = *(u16 *)(r7 + 10)         *(u32 *)(r7 + 6) = r1
//! *(u32 *)(r7 + 8) = r3          r1 >>= 32
//! *(u16 *)(r7 + 6) = r1          *(u16 *)(r7 + 10) = r1
//! *(u16 *)(r7 + 4) = r2
//! ```
//! The one idea: a run of loads and stores says of each stored byte which loaded byte it is. Any stores will do that leave
//! the same bytes; a store may write what a later one writes again. They are looked for from the last one back, fewest
//! first, and then the loads and shifts that feed them. No byte is read or written that was not before.

use std::collections::{BTreeMap, BTreeSet};

use bpf_facts::Region;
use bpf_isa::{AluOp, Insn, Reg, Size, Src, Width};
use bpf_prove::Rewrite;

use super::pass::Pass;
use super::store::aligned;
use crate::View;

pub struct Memcpy;

/// Bytes that a run may write, at most.
const BYTES: usize = 32;
/// Stores that are looked at for one run, at most.
const LOOKED_AT: usize = 3000;

impl Pass for Memcpy {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut out = Vec::new();
        let mut from = 0;
        while from < v.ops.len() {
            let run = Run::at(v, from);
            if let Some(run) = &run
                && let Some(insns) = run.shortest(v)
            {
                let ops = insns.into_iter().map(|insn| v.op_like(from, insn)).collect();
                out.push(v.replace(from, run.end, ops, "memcpy"));
            }
            from = run.map_or(from + 1, |r| r.end);
        }
        out
    }
}

/// A byte of memory, by the register that holds an address and the distance from there.
type Place = (Reg, i32);

/// Bytes in the low end of a register: the first one's place, and how many; zeros above.
#[derive(Clone, Copy)]
struct Held {
    first: Place,
    count: i32,
}

/// Loads and stores, one behind the other, by which bytes go from place to place.
struct Run {
    start: usize,
    /// Behind the last store.
    end: usize,
    /// Where the stored bytes are.
    to: Reg,
    /// What each stored byte is: one that was there before, or zero.
    bytes: BTreeMap<i32, Option<Place>>,
    /// What was loaded.
    read: BTreeSet<Place>,
    /// Registers that are free within the run.
    scratch: Vec<Reg>,
}

/// A store of bytes from `source` on.
#[derive(Clone, Copy)]
struct Put {
    off: i32,
    size: Size,
    source: Place,
    /// Bytes that have to come from there, at least, and at most (zeros behind them).
    count: (i32, i32),
}

/// A load that feeds stores.
type Get = (Place, Size);

impl Run {
    /// The longest run from `start` on of which no register is read later.
    fn at(v: &View, start: usize) -> Option<Run> {
        let mut held: BTreeMap<Reg, Held> = BTreeMap::new();
        let mut bytes: BTreeMap<i32, Option<Place>> = BTreeMap::new();
        let (mut read, mut bases, mut to) = (BTreeSet::new(), BTreeSet::new(), None);
        let (mut stores, mut best) = (0, None);
        for (i, op) in v.ops.iter().enumerate().skip(start) {
            if op.link.is_some() {
                break;
            }
            match op.insn {
                Insn::Load { size, sext: false, dst, base, off }
                    if !bases.contains(&dst) && dst != base && !held.contains_key(&base) =>
                {
                    let count = size.bytes() as i32;
                    let of = |k: i32| match bytes.get(&(i32::from(off) + k)) {
                        Some(written) if to == Some(base) => *written,
                        _ => Some((base, i32::from(off) + k)),
                    };
                    let Some(first) = of(0) else { break };
                    if (0..count).any(|k| of(k) != Some((first.0, first.1 + k))) {
                        break;
                    }
                    read.extend((0..count).map(|k| (first.0, first.1 + k)));
                    bases.insert(base);
                    held.insert(dst, Held { first, count });
                }
                Insn::Alu { op: AluOp::Rsh, width: Width::W64, dst, src: Src::Imm(by @ 8..64) } if by % 8 == 0 => {
                    let Some(h) = held.get_mut(&dst) else { break };
                    h.first.1 += by / 8;
                    h.count = (h.count - by / 8).max(0);
                }
                Insn::Mov { width: Width::W64, dst, src: Src::Reg(s) } if !bases.contains(&dst) => {
                    let Some(h) = held.get(&s).copied() else { break };
                    held.insert(dst, h);
                }
                Insn::Store { size, base, off, src: Src::Reg(s) } if to.is_none_or(|to| to == base) => {
                    let Some(h) = held.get(&s).filter(|_| !held.contains_key(&base)) else { break };
                    bases.insert(base);
                    to = Some(base);
                    for k in 0..size.bytes() as i32 {
                        let source = (k < h.count).then_some((h.first.0, h.first.1 + k));
                        bytes.insert(i32::from(off) + k, source);
                    }
                    stores += 1;
                    if bytes.len() > BYTES {
                        break;
                    }
                    let free = held.keys().all(|r| !v.live_after(i).regs.contains(*r));
                    if free && stores > 1 {
                        let (bytes, read, scratch) = (bytes.clone(), read.clone(), held.keys().copied().collect());
                        best = Some(Run { start, end: i + 1, to: base, bytes, read, scratch });
                    }
                }
                _ => break,
            }
        }
        best
    }

    /// The shortest code that does the same, if it is shorter.
    fn shortest(&self, v: &View) -> Option<Vec<Insn>> {
        let widest = self.bytes.len().div_ceil(Size::DW.bytes() as usize);
        if self.end - self.start <= 2 * widest {
            return None;
        }
        let mut best: Option<Vec<Insn>> = None;
        let mut budget = LOOKED_AT;
        for stores in widest..self.end - self.start {
            let mut sets = Vec::new();
            self.sets(v, stores, &mut BTreeSet::new(), &mut Vec::new(), &mut budget, &mut sets);
            for puts in &sets {
                let most = best.as_ref().map_or(self.end - self.start, Vec::len) - 1;
                if let Some(gets) = self.feed(v, puts, most.saturating_sub(stores))
                    && let Some(insns) = self.schedule(puts, &gets).filter(|insns| insns.len() <= most)
                {
                    best = Some(insns);
                }
            }
            // With more stores there are seldom fewer loads.
            if best.is_some() || budget == 0 {
                break;
            }
        }
        best
    }

    /// Ways to write what is left with so many stores, the last one first. Each store reaches one end of what is left.
    fn sets(
        &self,
        v: &View,
        left: usize,
        done: &mut BTreeSet<i32>,
        puts: &mut Vec<Put>,
        budget: &mut usize,
        out: &mut Vec<Vec<Put>>,
    ) {
        let mut missing = self.bytes.keys().copied().filter(|at| !done.contains(at));
        let Some(lowest) = missing.next() else {
            out.push(puts.clone());
            return;
        };
        let count = 1 + missing.clone().count();
        let highest = missing.next_back().unwrap_or(lowest);
        if count > left * Size::DW.bytes() as usize {
            return;
        }
        for size in Size::ALL.into_iter().rev() {
            let length = size.bytes() as i32;
            for off in lowest - length + 1..=highest {
                let here = off..off + length;
                if !here.contains(&lowest) && !here.contains(&highest) {
                    continue;
                }
                let Some(less) = budget.checked_sub(1) else { return };
                *budget = less;
                let Some(put) = self.put(v, off, size, done) else { continue };
                let new: Vec<i32> = here.filter(|at| done.insert(*at)).collect();
                puts.push(put);
                self.sets(v, left - 1, done, puts, budget, out);
                puts.pop();
                done.retain(|at| !new.contains(at));
            }
        }
    }

    /// A store there whose bytes are right, those that are written again aside.
    fn put(&self, v: &View, off: i32, size: Size, done: &BTreeSet<i32>) -> Option<Put> {
        let length = size.bytes() as i32;
        let at = i16::try_from(off).ok()?;
        if !(0..length).all(|k| self.bytes.contains_key(&(off + k))) || !aligned(v, self.start, self.to, at, size) {
            return None;
        }
        // Others may see each byte of this.
        let private = matches!(
            v.value(self.start, self.to).region(),
            Some(Region::Stack | Region::CallerFrame | Region::Packet | Region::PacketMeta | Region::Mem)
        );
        let (mut source, mut count) = (None, (0, 8));
        for k in 0..length {
            if done.contains(&(off + k)) {
                if !private {
                    return None;
                }
                continue;
            }
            match self.bytes[&(off + k)] {
                Some((base, at)) => {
                    if *source.get_or_insert((base, at - k)) != (base, at - k) {
                        return None;
                    }
                    count.0 = k + 1;
                }
                None => count.1 = count.1.min(k),
            }
        }
        (count.0 <= count.1).then_some(())?;
        Some(Put { off, size, source: source?, count })
    }

    /// The loads for these stores that take the fewest operations together with the shifts, at most so many.
    fn feed(&self, v: &View, puts: &[Put], most: usize) -> Option<Vec<Get>> {
        let mut best = None;
        self.feed_from(v, puts, &mut Vec::new(), most, &mut best);
        best
    }

    fn feed_from(
        &self,
        v: &View,
        puts: &[Put],
        gets: &mut Vec<Get>,
        most: usize,
        best: &mut Option<Vec<Get>>,
    ) -> usize {
        let cost = operations(puts, gets);
        if cost > most {
            return most;
        }
        let Some(put) = puts.get(gets.len()) else {
            *best = Some(gets.clone());
            return cost.saturating_sub(1);
        };
        let mut most = most;
        for size in Size::ALL {
            let length = size.bytes() as i32;
            for shift in 0..length {
                let first = (put.source.0, put.source.1 - shift);
                let is_read = (0..length).all(|k| self.read.contains(&(first.0, first.1 + k)));
                let rest = length - shift;
                let Ok(at) = i16::try_from(first.1) else { continue };
                if !is_read || rest < put.count.0 || rest > put.count.1 || !aligned(v, self.start, first.0, at, size) {
                    continue;
                }
                gets.push((first, size));
                most = self.feed_from(v, puts, gets, most, best);
                gets.pop();
            }
        }
        most
    }

    /// Loads, shifts and stores in an order in which each finds its bytes; `None` if there is none, or registers do not
    /// suffice.
    fn schedule(&self, puts: &[Put], gets: &[Get]) -> Option<Vec<Insn>> {
        let touches = |p: &Put, q: &Put| p.off < q.off + q.size.bytes() as i32 && q.off < p.off + p.size.bytes() as i32;
        let shift = |i: usize| puts[i].source.1 - gets[i].0.1;
        let mut free = self.scratch.clone();
        // Where what was loaded is, and how many bytes it was shifted by.
        let mut loaded: BTreeMap<Get, (Reg, i32)> = BTreeMap::new();
        let mut left: Vec<usize> = (0..puts.len()).rev().collect();
        let mut insns = Vec::new();
        while !left.is_empty() {
            // What has to be loaded before its bytes are written.
            let overwrites = |i: usize| {
                left.iter().any(|&j| {
                    let ((base, first), size) = gets[j];
                    let as_put = Put { off: first, size, ..puts[i] };
                    base == self.to && !loaded.contains_key(&gets[j]) && touches(&puts[i], &as_put)
                })
            };
            // Later stores stand before it in `puts`; those that have its bytes in common wait.
            let waits = |i: usize| {
                left.iter().any(|&j| j > i && touches(&puts[i], &puts[j]))
                    || left.iter().any(|&j| gets[j] == gets[i] && shift(j) < shift(i))
            };
            let ready = left.iter().copied().find(|&i| loaded.contains_key(&gets[i]) && !waits(i) && !overwrites(i));
            if let Some(i) = ready {
                let (dst, before) = loaded[&gets[i]];
                if before != shift(i) {
                    let src = Src::Imm((shift(i) - before) * 8);
                    insns.push(Insn::Alu { op: AluOp::Rsh, width: Width::W64, dst, src });
                    loaded.insert(gets[i], (dst, shift(i)));
                }
                let Put { off, size, .. } = puts[i];
                insns.push(Insn::Store { size, base: self.to, off: off as i16, src: Src::Reg(dst) });
                left.retain(|&j| j != i);
                if left.iter().all(|&j| gets[j] != gets[i]) {
                    free.push(dst);
                }
                continue;
            }
            let next = left.iter().copied().find(|&i| !loaded.contains_key(&gets[i]))?;
            let dst = free.pop()?;
            let ((base, first), size) = gets[next];
            insns.push(Insn::Load { size, sext: false, dst, base, off: first as i16 });
            loaded.insert(gets[next], (dst, 0));
        }
        Some(insns)
    }
}

/// Loads and shifts that feed the first of these stores.
fn operations(puts: &[Put], gets: &[Get]) -> usize {
    let loads: BTreeSet<&Get> = gets.iter().collect();
    let shifts: BTreeSet<(&Get, i32)> =
        puts.iter().zip(gets).map(|(p, g)| (g, p.source.1 - g.0.1)).filter(|(_, by)| *by != 0).collect();
    loads.len() + shifts.len()
}
