//! Less code and fewer assumptions: what a rule does not need.

use bpf_facts::{Env, Kind, Num, Region, StackSet, Value};
use bpf_isa::{Insn, Reg};
use bpf_program::Op;

use super::index::Walk;
use super::prover::Prover;
use super::{General, mentioned};
use crate::canonical::WindowKey;
use crate::cost;

/// Operations at either end that may differ without need, at most.
const NOISE: usize = 2;
/// Places at which a replacement with several changes is cut, at most.
const SPLITS: usize = 4;
/// Operations around what differs without which it cannot be seen to be right, at most.
const AROUND: usize = 3;

/// The stretch of a window that a replacement really changes, in a form of its own, proven again.
pub(super) fn core(p: &WindowKey, with: &[Op], by: &str, prover: &mut Prover) -> Option<General> {
    let new = straighten(p, with.to_vec(), prover);
    let new = first_place(p, &new, prover).unwrap_or(new);
    let alike = |(a, b): &(&Op, &Op)| a.insn == b.insn && a.link == b.link;
    let start = p.old.iter().zip(&new).take_while(alike).count();
    let rest = p.old.len().min(new.len()) - start;
    let end = p.old.iter().rev().zip(new.iter().rev()).take(rest).take_while(alike).count();
    if !worth(p, &new) {
        return None;
    }
    let maps = p.map_table();
    let env = Env { maps: &maps, ..Env::empty() };
    let walk = Walk::of(p, &env);
    // What differs may be right only with some of what follows, or of what stands before.
    for around in 0..=AROUND {
        for before in 0..=around {
            let after = around - before;
            if before > start || after > end || around == start + end {
                continue;
            }
            let (from, tail) = (start - before, end - after);
            let Some((q, names)) = walk.form(p, &env, from, p.old.len() - tail) else { continue };
            let Some(changed) = names.to_canonical(&new[from..new.len() - tail]) else { continue };
            if worth(&q, &changed) {
                let g = General::fixed(q, &changed, by);
                if prover.holds(&g) {
                    return Some(g);
                }
            }
        }
    }
    Some(General::fixed(p.clone(), &new, by)).filter(|g| prover.holds(g))
}

/// Whether it costs less.
fn worth(p: &WindowKey, new: &[Op]) -> bool {
    cost::of(new, p.goal) < cost::of(&p.old, p.goal)
}

/// The replacement with its first change only, if it makes several that are apart.
fn first_place(p: &WindowKey, new: &[Op], prover: &mut Prover) -> Option<Vec<Op>> {
    let same = |i: usize, j: usize| match (p.old.get(i), new.get(j)) {
        (Some(a), Some(b)) => a.insn == b.insn && a.link == b.link,
        _ => false,
    };
    let start = (0..p.old.len().min(new.len())).find(|i| !same(*i, *i))?;
    let mut tries = SPLITS;
    for i in start + 1..p.old.len() {
        // The code goes on as it was, two operations at least, with fewer before it than there were.
        for j in (start..i.min(new.len())).rev() {
            if !same(i, j) || !same(i + 1, j + 1) {
                continue;
            }
            let other = [&new[..j], &p.old[i..]].concat();
            if other.len() == new.len() && other.iter().zip(new).all(|(a, b)| a.insn == b.insn) {
                return None;
            }
            if worth(p, &other) && prover.specific(p, &other) {
                return Some(other);
            }
            tries -= 1;
            if tries == 0 {
                return None;
            }
        }
    }
    None
}

/// Undoes changes at the ends that bring nothing: a search leaves such noise.
fn straighten(p: &WindowKey, mut new: Vec<Op>, prover: &mut Prover) -> Vec<Op> {
    for from_end in [true, false] {
        let mut noise = NOISE;
        let mut at = 0;
        while at < p.old.len().min(new.len()) {
            let (i, j) = if from_end { (p.old.len() - 1 - at, new.len() - 1 - at) } else { (at, at) };
            if new[j].insn != p.old[i].insn || new[j].link != p.old[i].link {
                let mut other = new.clone();
                other[j] = p.old[i].clone();
                let cheap = cost::of(&other, p.goal) < cost::of(&p.old, p.goal);
                let same_place = new[j].insn.defs() == p.old[i].insn.defs();
                if noise == 0 || !same_place || !cheap || !prover.specific(p, &other) {
                    break;
                }
                noise -= 1;
                new = other;
            }
            at += 1;
        }
    }
    new
}

/// Drops or weakens what a rule assumes, and lets more be live, as far as the proof goes through.
pub(super) fn weaken(g: &mut General, prover: &mut Prover) {
    let mut least = g.clone();
    least.window.regs.retain(|(_, v)| stays(v));
    least.window.stack.retain(|(_, v)| stays(v));
    if least != *g && prover.holds(&least) {
        *g = least;
    } else {
        one_by_one(g, prover);
    }
    if !g.window.frame_leaked {
        let mut other = g.clone();
        other.window.frame_leaked = true;
        prover.keep(g, other);
    }
}

/// Whether nothing weaker can be said of it: of a pointer to the frame or the context, "unknown" is not
/// less but something else.
fn stays(v: &Value) -> bool {
    matches!(v.region(), Some(Region::Stack | Region::Ctx))
}

fn one_by_one(g: &mut General, prover: &mut Prover) {
    let mut i = 0;
    while i < g.window.regs.len() {
        let (r, v) = g.window.regs[i].clone();
        if stays(&v) {
            i += 1;
            continue;
        }
        let mut other = g.clone();
        other.window.regs.remove(i);
        if prover.keep(g, other) {
            continue;
        }
        if let Some(w) = weaker(&v) {
            let mut other = g.clone();
            other.window.regs[i] = (r, w);
            prover.keep(g, other);
        }
        i += 1;
    }
    let mut i = 0;
    while i < g.window.stack.len() {
        let (off, v) = g.window.stack[i].clone();
        let mut other = g.clone();
        other.window.stack.remove(i);
        if stays(&v) || !prover.keep(g, other) {
            if let Some(w) = weaker(&v) {
                let mut other = g.clone();
                other.window.stack[i] = (off, w);
                prover.keep(g, other);
            }
            i += 1;
        }
    }
}

/// The next weaker thing to say of a number: a power of two above it, or that it is a number.
fn weaker(v: &Value) -> Option<Value> {
    if v.kind != Kind::Scalar || v.num.is_top() {
        return None;
    }
    let bits = v.num.bits;
    let limits = [0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64];
    let limit = limits.into_iter().find(|l| v.num.umax <= *l && *l < Num::top(bits).umax);
    let w = Value::scalar(limit.map_or(Num::top(bits), |l| Num::unsigned(bits, 0, l)));
    (w != *v).then_some(w)
}

/// Lets more be read afterwards.
pub(super) fn enliven(g: &mut General, prover: &mut Prover) {
    let written = mentioned(g.window.old.iter().chain(g.with.iter().map(|(o, _)| o)));
    let dead: Vec<Reg> = written.minus(g.window.live.regs).without(Reg::R10).iter().collect();
    let mut touched = StackSet::EMPTY;
    for o in &g.window.old {
        if let Insn::Store { size, base: Reg::R10, off, .. } | Insn::Load { size, base: Reg::R10, off, .. } = o.insn {
            touched.insert_range(off.into(), size.bytes());
        }
    }
    let bytes = !touched.minus(&g.window.live.stack).is_empty();
    let with = |g: &General, regs: &[Reg], frame: bool| {
        let mut other = g.clone();
        regs.iter().for_each(|r| other.window.live.regs.insert(*r));
        if frame {
            other.window.live.stack = other.window.live.stack.union(&touched);
        }
        other
    };
    if (!dead.is_empty() || bytes) && prover.keep(g, with(g, &dead, bytes)) {
        return;
    }
    if bytes && !dead.is_empty() {
        prover.keep(g, with(g, &[], true));
    }
    if dead.len() > 1 || bytes {
        for r in dead {
            prover.keep(g, with(g, &[r], false));
        }
    }
}
