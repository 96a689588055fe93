//! An assignment with every object at an address of its own.

use std::ops::RangeInclusive;

use bpf_isa::Reg;
use bpf_platform::{Effects, ResultRange, impossible_numbers, possible_bits};
use bpf_program::{ProgKind, Symbol};
use bpf_semantics::interp::Cpu;
use rustc_hash::FxHashMap;

use super::fields::fields_stay;
use super::layout::{CTX, OBJECT_BYTES, OBJECTS, PACKET, PACKET_BYTES, PACKET_START, Places, SKB_META, XDP_META};
use crate::solver::blast::Model;
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::history::{Event, EventKind};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{MemNode, Node, TermId};

/// Events that are looked at in pairs.
const MAX_EVENTS: usize = 40;

/// Bytes for which it is said that nobody else writes them.
const MAX_UNDISTURBED: usize = 4096;

/// Solves again with objects where they cannot be confused.
///
/// `apart`: two events that the formula tells apart do differ in what they ask. Without that the answers
/// may differ all the same, which no run would show.
pub(super) fn place(cx: &mut Context, kind: ProgKind, differ: TermId, apart: bool) -> Option<(Model, Places)> {
    let frame = Cpu::default().register(Reg::R10)?;
    let mut constraints = fields_stay(cx);
    let mut homes: FxHashMap<MemoryRegion, Vec<u64>> = FxHashMap::default();
    let mut vars: Vec<(VarKey, TermId, Meaning)> = cx.variables();
    vars.sort_by_key(|(_, t, _)| *t);
    let mut places = Places(Vec::new());
    for (n, (key, t, meaning)) in vars.iter().enumerate() {
        let home = OBJECTS + n as u64 * OBJECT_BYTES;
        let c = match (key, meaning) {
            (VarKey::Frame, _) => is_one_of(cx, *t, &[frame]),
            (VarKey::CtxField(off, 4, _), _) => {
                let field = u32::try_from(*off).unwrap_or(0);
                constraints.extend(impossible_numbers(kind, field).map(|range| outside(cx, *t, range)));
                no_others(cx, *t, possible_bits(kind, field, cx.byte_order))
            }
            (VarKey::Ret(event), Meaning::Scalar) => {
                let event = (*event as usize).checked_sub(1).and_then(|i| cx.events.get(i));
                let range = match event.map(|e| &e.what) {
                    Some(EventKind::Call(insn, link)) => Effects::of(insn, link.is_some()).result_range,
                    _ => ResultRange::Any,
                };
                in_range(cx, *t, range)
            }
            (VarKey::Constant(insn), Meaning::Scalar) => in_range(cx, *t, Effects::of(insn, false).result_range),
            (VarKey::CtxPointer, _) => is_one_of(cx, *t, &[CTX]),
            (VarKey::PacketPointer(..), Meaning::Pointer(r)) => {
                if *r == MemoryRegion::Packet && is_entry(cx, key) && !is_meta(key) {
                    is_one_of(cx, *t, &[PACKET_START])
                } else {
                    constraints.extend(in_order(cx, &vars, key, *t));
                    within(cx, *t)
                }
            }
            (VarKey::Symbol(Symbol::Func { .. }), _) => is_one_of(cx, *t, &[home]),
            // What the loader puts into the program is there, and each thing but once.
            (VarKey::Symbol(_), Meaning::Pointer(r)) => {
                let name = match r {
                    MemoryRegion::Map(m) => format!("map {m}"),
                    MemoryRegion::Data(section) => section.to_string(),
                    r => format!("{r:?}"),
                };
                places.0.push((home, name));
                is_one_of(cx, *t, &[home])
            }
            (_, Meaning::Pointer(MemoryRegion::Packet | MemoryRegion::PacketEnd)) => within(cx, *t),
            (_, Meaning::Pointer(MemoryRegion::Stack | MemoryRegion::Ctx | MemoryRegion::CtxBytes)) => continue,
            (_, Meaning::Pointer(r)) => {
                let known = homes.entry(r.clone()).or_default();
                known.push(home);
                let name = match r {
                    MemoryRegion::MapValue(m) => format!("{m} element {}", known.len()),
                    r => format!("{r:?} {}", known.len()),
                };
                places.0.push((home, name));
                // Two lookups may find one element; two reservations are never the same.
                let mut may = if *r == MemoryRegion::Fresh { vec![home] } else { known.clone() };
                may.push(0);
                is_one_of(cx, *t, &may)
            }
            _ => continue,
        };
        constraints.push(c);
    }
    constraints.extend(fields_agree(cx, kind, &vars));
    constraints.extend(linear_part_fits(cx, kind, &vars));
    constraints.extend(undisturbed(cx));
    if apart {
        constraints.extend(events_apart(cx));
    }
    let all = cx.terms.all(&constraints);
    match cx.check_sat(all, &[differ]) {
        SatResult::Sat(m) => Some((m, places)),
        _ => None,
    }
}

/// Reads of one field of the context in two widths find the same bits.
fn fields_agree(cx: &mut Context, kind: ProgKind, vars: &[(VarKey, TermId, Meaning)]) -> Vec<TermId> {
    let mut out = Vec::new();
    // Of others no part may be read.
    if !matches!(kind, ProgKind::Skb | ProgKind::SockAddr) {
        return out;
    }
    for (a, t, _) in vars {
        for (b, u, _) in vars {
            let (VarKey::CtxField(at, n, v), VarKey::CtxField(from, m, w)) = (a, b) else { continue };
            let skip = at - from;
            // Where the kernel's field is shorter, upper bytes are not what a narrow read of them finds.
            let whole = u32::try_from(*from).is_ok_and(|o| possible_bits(kind, o, cx.byte_order) == u32::MAX);
            if v != w || n >= m || skip < 0 || skip + i64::from(*n) > i64::from(*m) {
                continue;
            }
            let lo = cx.byte_order.bit(skip as u32, *n, *m);
            if lo > 0 && !whole {
                continue;
            }
            let (narrow, wide) = (cx.terms.extract(*t, 0, 8 * n), cx.terms.extract(*u, lo, 8 * n));
            out.push(cx.terms.eq(narrow, wide));
        }
    }
    out
}

/// The linear part of an skb, from `data` to `data_end`, is part of its `len` bytes (`skb_headlen` in
/// include/linux/skbuff.h), at the start of the program.
fn linear_part_fits(cx: &mut Context, kind: ProgKind, vars: &[(VarKey, TermId, Meaning)]) -> Option<TermId> {
    const LEN: i64 = 0;
    let entry = |is: &dyn Fn(&VarKey, &Meaning) -> bool| vars.iter().find(|(k, _, m)| is(k, m)).map(|(_, t, _)| *t);
    let pointer =
        |to: MemoryRegion| entry(&|k, m| is_entry(cx, k) && !is_meta(k) && *m == Meaning::Pointer(to.clone()));
    let (start, end) = (pointer(MemoryRegion::Packet)?, pointer(MemoryRegion::PacketEnd)?);
    let at_entry = |k: &VarKey| matches!(k, VarKey::CtxField(LEN, 4, v) if cx.terms.as_const(*v) == Some(0));
    let len = entry(&|k, _| kind == ProgKind::Skb && at_entry(k))?;
    let (whole, part) = (cx.terms.extract(len, 0, 32), cx.terms.sub(end, start));
    let whole = cx.terms.zext(whole, 64);
    let longer = cx.terms.ult(whole, part);
    Some(cx.terms.not(longer))
}

/// Nobody else writes: what the program finds after each atomic and the like is what was there before it, as in the interpreter,
/// which runs alone; and so after each call that may have no effect, which the contract lets the new side leave out or make elsewhere.
fn undisturbed(cx: &mut Context) -> Vec<TermId> {
    let mut out = Vec::new();
    let mut at = 0;
    // Looking before one atomic may find what was forgotten at another one: new terms are looked at, too.
    while let Some(t) = cx.terms.nth(at).filter(|_| out.len() < MAX_UNDISTURBED) {
        at += 1;
        let Node::Select(m, address) = *cx.terms.node(t) else { continue };
        let MemNode::Base { region, version } = *cx.terms.mem(m) else { continue };
        let event = cx.terms.as_const(version).and_then(|w| cx.events.get((w as usize).checked_sub(1)?));
        let is_quiet = |e: &&Event| match &e.what {
            EventKind::Fence(..) | EventKind::Atomic(_) => true,
            what => what.may_have_no_effect(),
        };
        let Some(e) = event.filter(is_quiet) else { continue };
        let Some((_, before)) = e.mems.iter().find(|(r, _)| *r == region).copied() else { continue };
        let (base, off) = cx.terms.split_address(address);
        let found = cx.terms.select(before, base, off);
        out.push(cx.terms.eq(t, found));
    }
    out
}

/// For each pair of alike events: something that they ask with differs.
fn events_apart(cx: &mut Context) -> Vec<TermId> {
    let mut out = Vec::new();
    let events = cx.events.clone();
    for (i, e) in events.iter().enumerate().take(MAX_EVENTS) {
        for other in &events[..i] {
            if e.what != other.what || e.args.len() != other.args.len() || e.mems.len() != other.mems.len() {
                continue;
            }
            let pairs = e.args.iter().zip(&other.args).chain([(&e.before, &other.before)]);
            let mut differ = Vec::new();
            for (x, y) in pairs.filter(|(x, y)| x != y) {
                if cx.terms.width(*x) == cx.terms.width(*y) {
                    let same = cx.terms.eq(*x, *y);
                    differ.push(cx.terms.not(same));
                }
            }
            for ((_, x), (_, y)) in e.mems.iter().zip(&other.mems) {
                cx.memory_differences(*x, *y, &|_, _, _| true, &mut differ);
            }
            out.push(cx.terms.any(&differ));
        }
    }
    out
}

/// Whether a packet pointer is that of the entry.
pub(super) fn is_entry(cx: &Context, key: &VarKey) -> bool {
    matches!(key, VarKey::PacketPointer(_, v) if cx.terms.as_const(*v) == Some(0))
}

/// Whether a packet pointer is the start of the metadata.
fn is_meta(key: &VarKey) -> bool {
    matches!(key, VarKey::PacketPointer(XDP_META | SKB_META, _))
}

/// `data_meta ≤ data ≤ data_end`, as of each version of the packet.
fn in_order(cx: &mut Context, vars: &[(VarKey, TermId, Meaning)], key: &VarKey, t: TermId) -> Vec<TermId> {
    let VarKey::PacketPointer(_, version) = key else { return vec![] };
    let rank = |key: &VarKey, m: &Meaning| match m {
        Meaning::Pointer(MemoryRegion::PacketEnd) => 2,
        _ if is_meta(key) => 0,
        _ => 1,
    };
    let Some(mine) = vars.iter().find(|v| v.0 == *key).map(|v| rank(key, &v.2)) else { return vec![] };
    let mut out = Vec::new();
    // Metadata comes in words of four bytes (`xdp_metalen_invalid`).
    if is_meta(key) && is_entry(cx, key) {
        let (low, start) = (cx.terms.extract(t, 0, 2), cx.terms.constant(2, PACKET_START & 3));
        out.push(cx.terms.eq(low, start));
    }
    for (other, u, m) in vars {
        let VarKey::PacketPointer(_, w) = other else { continue };
        if w != version || rank(other, m) >= mine {
            continue;
        }
        let above = cx.terms.ult(t, *u);
        out.push(cx.terms.not(above));
    }
    out
}

fn is_one_of(cx: &mut Context, t: TermId, values: &[u64]) -> TermId {
    let mut any = Vec::new();
    for v in values {
        let k = cx.terms.constant(64, *v);
        any.push(cx.terms.eq(t, k));
    }
    cx.terms.any(&any)
}

/// Of the low 32 bits, only these are set.
fn no_others(cx: &mut Context, t: TermId, bits: u32) -> TermId {
    let low = cx.terms.extract(t, 0, 32);
    let others = cx.terms.constant(32, u64::from(!bits));
    let set = cx.terms.and(low, others);
    let zero = cx.terms.constant(32, 0);
    cx.terms.eq(set, zero)
}

/// The low 32 bits are no number of this range.
pub(super) fn outside(cx: &mut Context, t: TermId, range: RangeInclusive<u32>) -> TermId {
    let low = cx.terms.extract(t, 0, 32);
    let [first, last] = [range.start(), range.end()].map(|k| cx.terms.constant(32, u64::from(*k)));
    let (below, above) = (cx.terms.ult(low, first), cx.terms.ult(last, low));
    cx.terms.any(&[below, above])
}

/// That `t` is a number of such a range.
fn in_range(cx: &mut Context, t: TermId, range: ResultRange) -> TermId {
    let low = cx.terms.extract(t, 0, 32);
    let number = match range {
        ResultRange::U32 => cx.terms.zext(low, 64),
        ResultRange::Int => cx.terms.sext(low, 64),
        ResultRange::Any => return cx.terms.tru(),
    };
    cx.terms.eq(t, number)
}

pub(super) fn within(cx: &mut Context, t: TermId) -> TermId {
    let lo = cx.terms.constant(64, PACKET);
    let hi = cx.terms.constant(64, PACKET + PACKET_BYTES);
    let below = cx.terms.ult(t, lo);
    let above = cx.terms.ult(hi, t);
    let (a, b) = (cx.terms.not(below), cx.terms.not(above));
    cx.terms.all(&[a, b])
}
