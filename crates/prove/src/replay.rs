//! From a formula's assignment to a run: a refutation only counts when the interpreter shows it.
//!
//! The assignment is solved once more with every object at a place of its own, so that addresses mean
//! something. The old function then runs in the interpreter, in a world that answers every call and
//! every context access as the assignment says, and is recorded; the new one runs in the same world as
//! long as it asks the same questions. The first event, byte or bit of the result in which they differ
//! is the witness.

use std::ops::RangeInclusive;

use bpf_facts::{Env, Facts, Liveness};
use bpf_isa::{Imm64Kind, Insn, Reg, RegSet, Size, Src};
use bpf_platform::{Effects, ResultRange, impossible_numbers, possible_bits};
use bpf_program::{Argument, FieldKind, Function, Link, Op, ProgKind, Symbol, ctx_field};
use bpf_semantics::interp::{ArgValue, Cpu, Event as Call, Fault, Host, Interp, Next};
use rustc_hash::FxHashMap;

use crate::blast::Model;
use crate::context::{Context, Possible};
use crate::history::EventKind;
use crate::term::{MemNode, Node, TermId};
use crate::variables::{Meaning, Region, VarKey};
use crate::verdict::Difference;

const CTX: u64 = 0x1000_0000;
const CTX_BYTES: u64 = 0x1000;
/// Below 4 GiB: the interpreter loads no more than the 32 bits of the field.
const PACKET: u64 = 0x2000_0000;
const PACKET_BYTES: u64 = 0x1_0000;
/// Where the packet starts at entry: metadata and room for a new head are below.
const PACKET_START: u64 = PACKET + 0x100;
const OBJECTS: u64 = 0x40_0000_0000;
const OBJECT_BYTES: u64 = 0x10_0000;
const FUEL: u64 = 1 << 22;
/// Events that are looked at in pairs.
const MAX_EVENTS: usize = 40;
/// Offsets of `data_meta` in `xdp_md` and `__sk_buff`.
const XDP_META: i64 = 8;
const SKB_META: i64 = 140;
/// Offset of `data` in `__sk_buff`.
const SKB_DATA: i64 = 76;
/// Bytes for which it is said that nobody else writes them.
const MAX_UNDISTURBED: usize = 4096;
/// Parts of a difference that are tried on their own, where a run does not show the whole.
const MAX_PARTS: usize = 24;

/// An input on which two functions were seen to differ, in words a BPF developer understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// What the input is: context, packet, results of calls.
    pub input: Vec<String>,
    /// The first difference.
    pub difference: String,
    /// How the old and the new function ended.
    pub outcomes: [String; 2],
}

impl Witness {
    /// One line each: difference, outcomes, input.
    pub fn lines(&self) -> Vec<String> {
        let [old, new] = &self.outcomes;
        let mut lines =
            vec![format!("first difference: {}", self.difference), format!("old: {old}"), format!("new: {new}")];
        lines.extend(self.input.iter().map(|l| format!("input: {l}")));
        lines
    }
}

/// Replays a refutation of `old` against `new`. `None` if the difference does not show in a run: then
/// the formula is coarser than the machine, and nothing is refuted.
pub fn replay(d: &mut Difference, old: &Function, new: &Function, env: &Env) -> Option<Witness> {
    let whole = d.context.difference?;
    let mut parts = vec![whole];
    // The solver likes differences that nobody sees, such as an atomic with another operand that ends
    // the same: then each byte or bit of the result on its own.
    parts.extend(disjuncts(&mut d.context, whole).into_iter().take(MAX_PARTS));
    let mut first_apart =
        |apart: bool| parts.iter().find_map(|part| try_part(&mut d.context, *part, apart, old, new, env));
    first_apart(true).or_else(|| first_apart(false))
}

fn try_part(cx: &mut Context, part: TermId, apart: bool, old: &Function, new: &Function, env: &Env) -> Option<Witness> {
    let (model, places) = place(cx, old.kind, part, apart)?;
    let cx = &*cx;
    let mut recording = Recording::default();
    let a = run(cx, &model, env, old, &mut recording, None);
    let mut replayed = Recording::default();
    let b = run(cx, &model, env, new, &mut replayed, Some(&recording));
    let found = compare(&a, &b, &recording, &replayed, &places)?;
    let words = |r: &Result<u64, Fault>, rec: &Recording, state: &Option<String>| match r {
        Ok(r0) => {
            let state = state.as_ref().map_or_else(String::new, |s| format!(", {s}"));
            format!("returns {r0:#x} after {} call(s){state}", rec.calls.len())
        }
        Err(f) if rec.diverged.is_some() => format!("takes another way ({f})"),
        Err(f) => format!("fails: {f}"),
    };
    Some(Witness {
        input: describe(cx, &model, &recording, &places, read_at_entry(old, env).union(read_at_entry(new, env))),
        difference: found.difference,
        outcomes: [words(&a, &recording, &found.states[0]), words(&b, &replayed, &found.states[1])],
    })
}

/// The alternatives of a disjunction; none if it is not one.
fn disjuncts(cx: &mut Context, t: TermId) -> Vec<TermId> {
    let Node::Not(inner) = *cx.terms.node(t) else { return vec![] };
    let Node::All(parts) = cx.terms.node(inner).clone() else { return vec![] };
    parts.iter().map(|p| cx.terms.not(*p)).collect()
}

fn low(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v & ((1 << bits) - 1) }
}

/// What is where, for the words of a witness.
struct Places(Vec<(u64, String)>);

impl Places {
    fn words(&self, address: u64) -> String {
        let object = |(start, name): &(u64, String)| {
            let off = address.checked_sub(*start).filter(|o| *o < OBJECT_BYTES)?;
            Some(format!("{name} + {off}"))
        };
        match address {
            a if (PACKET..PACKET + PACKET_BYTES).contains(&a) && a >= PACKET_START => {
                format!("packet[{}]", a - PACKET_START)
            }
            a if (PACKET..PACKET_START).contains(&a) => format!("packet[-{}]", PACKET_START - a),
            a if in_ctx(a) => format!("context[{}]", a - CTX),
            a => self.0.iter().find_map(object).unwrap_or_else(|| format!("{a:#x}")),
        }
    }
}

/// Solves again with objects where they cannot be confused.
///
/// `apart`: two events that the formula tells apart do differ in what they ask. Without that the answers
/// may differ all the same, which no run would show.
fn place(cx: &mut Context, kind: ProgKind, differ: TermId, apart: bool) -> Option<(Model, Places)> {
    let frame = Cpu::default().register(Reg::R10)?;
    let mut constraints = Vec::new();
    let mut homes: FxHashMap<Region, Vec<u64>> = FxHashMap::default();
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
                no_others(cx, *t, possible_bits(kind, field))
            }
            (VarKey::Ret(event), Meaning::Scalar) => in_range(cx, *t, *event),
            (VarKey::CtxPointer, _) => is_one_of(cx, *t, &[CTX]),
            (VarKey::PacketPointer(..), Meaning::Pointer(r)) => {
                if *r == Region::Packet && is_entry(cx, key) && !is_meta(key) {
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
                    Region::Map(m) => format!("map {m}"),
                    Region::Data(section) => section.to_string(),
                    r => format!("{r:?}"),
                };
                places.0.push((home, name));
                is_one_of(cx, *t, &[home])
            }
            (_, Meaning::Pointer(Region::Packet | Region::PacketEnd)) => within(cx, *t),
            (_, Meaning::Pointer(Region::Stack | Region::Ctx | Region::CtxBytes)) => continue,
            (_, Meaning::Pointer(r)) => {
                let known = homes.entry(r.clone()).or_default();
                known.push(home);
                let name = match r {
                    Region::MapValue(m) => format!("{m} element {}", known.len()),
                    r => format!("{r:?} {}", known.len()),
                };
                places.0.push((home, name));
                // Two lookups may find one element; two reservations are never the same.
                let mut may = if *r == Region::Fresh { vec![home] } else { known.clone() };
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
    match cx.possible(all, &[differ]) {
        Possible::Sometimes(m) => Some((m, places)),
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
            let whole = u32::try_from(*from).is_ok_and(|o| possible_bits(kind, o) == u32::MAX);
            if v != w || n >= m || skip < 0 || skip + i64::from(*n) > i64::from(*m) || skip > 0 && !whole {
                continue;
            }
            let (narrow, wide) = (cx.terms.extract(*t, 0, 8 * n), cx.terms.extract(*u, 8 * skip as u32, 8 * n));
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
    let pointer = |to: Region| entry(&|k, m| is_entry(cx, k) && !is_meta(k) && *m == Meaning::Pointer(to.clone()));
    let (start, end) = (pointer(Region::Packet)?, pointer(Region::PacketEnd)?);
    let at_entry = |k: &VarKey| matches!(k, VarKey::CtxField(LEN, 4, v) if cx.terms.as_const(*v) == Some(0));
    let len = entry(&|k, _| kind == ProgKind::Skb && at_entry(k))?;
    let (whole, part) = (cx.terms.extract(len, 0, 32), cx.terms.sub(end, start));
    let whole = cx.terms.zext(whole, 64);
    let longer = cx.terms.ult(whole, part);
    Some(cx.terms.not(longer))
}

/// Nobody else writes: what the program finds after each atomic and the like is what was there before it, as
/// in the interpreter, which runs alone.
fn undisturbed(cx: &mut Context) -> Vec<TermId> {
    let mut out = Vec::new();
    let mut at = 0;
    // Looking before one atomic may find what was forgotten at another one: new terms are looked at, too.
    while let Some(t) = cx.terms.nth(at).filter(|_| out.len() < MAX_UNDISTURBED) {
        at += 1;
        let Node::Select(m, address) = *cx.terms.node(t) else { continue };
        let MemNode::Base { region, version } = *cx.terms.mem(m) else { continue };
        let event = cx.terms.as_const(version).and_then(|w| cx.events.get((w as usize).checked_sub(1)?));
        let Some(e) = event.filter(|e| matches!(e.what, EventKind::Fence(..) | EventKind::Atomic(_))) else { continue };
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
fn is_entry(cx: &Context, key: &VarKey) -> bool {
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
        Meaning::Pointer(Region::PacketEnd) => 2,
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
fn outside(cx: &mut Context, t: TermId, range: RangeInclusive<u32>) -> TermId {
    let low = cx.terms.extract(t, 0, 32);
    let [first, last] = [range.start(), range.end()].map(|k| cx.terms.constant(32, u64::from(*k)));
    let (below, above) = (cx.terms.ult(low, first), cx.terms.ult(last, low));
    cx.terms.any(&[below, above])
}

/// That `t` is a number which the helper that event `id` calls may return.
fn in_range(cx: &mut Context, t: TermId, id: u32) -> TermId {
    let event = (id as usize).checked_sub(1).and_then(|i| cx.events.get(i));
    let range = match event.map(|e| &e.what) {
        Some(EventKind::Call(insn, link)) => Effects::of(insn, link.is_some()).result_range,
        _ => ResultRange::Any,
    };
    let low = cx.terms.extract(t, 0, 32);
    let number = match range {
        ResultRange::U32 => cx.terms.zext(low, 64),
        ResultRange::Int => cx.terms.sext(low, 64),
        ResultRange::Any => return cx.terms.tru(),
    };
    cx.terms.eq(t, number)
}

fn within(cx: &mut Context, t: TermId) -> TermId {
    let lo = cx.terms.constant(64, PACKET);
    let hi = cx.terms.constant(64, PACKET + PACKET_BYTES);
    let below = cx.terms.ult(t, lo);
    let above = cx.terms.ult(hi, t);
    let (a, b) = (cx.terms.not(below), cx.terms.not(above));
    cx.terms.all(&[a, b])
}

/// A store to a context field: calls made before, offset, bytes, value.
type CtxStore = (usize, i64, u32, u64);

/// What a run did, as far as the outside can tell.
#[derive(Default)]
struct Recording {
    calls: Vec<Call>,
    /// For each call its result and what it wrote.
    effects: Vec<(u64, Vec<(u64, u8)>)>,
    /// For each call the world after it.
    worlds: Vec<u32>,
    /// For each call the frame before it.
    frames: Vec<Vec<u8>>,
    /// For each call the memory written so far.
    memory: Vec<FxHashMap<u64, u8>>,
    /// Stores to context fields.
    ctx_stores: Vec<CtxStore>,
    /// Bytes of context fields that were read before anything was stored there.
    ctx_read: FxHashMap<i64, u8>,
    /// Memory written in all.
    last: FxHashMap<u64, u8>,
    /// The call at which the run left the recorded one.
    diverged: Option<String>,
    /// Initial bytes that were read.
    read: FxHashMap<u64, u8>,
}

impl Recording {
    /// The bytes that stores have left in the context's fields by the call of this number.
    fn context(&self, calls: usize) -> FxHashMap<i64, u8> {
        let mut bytes = FxHashMap::default();
        for (_, off, n, v) in self.ctx_stores.iter().filter(|(c, ..)| *c <= calls) {
            bytes.extend((0..i64::from(*n)).map(|i| (off + i, (v >> (8 * i)) as u8)));
        }
        bytes
    }
}

/// The first call, and the byte, before which the two sides leave the context differently.
fn context_differs(old: &Recording, new: &Recording) -> Option<(usize, i64)> {
    let mut calls: Vec<usize> = old.ctx_stores.iter().chain(&new.ctx_stores).map(|s| s.0).collect();
    calls.sort_unstable();
    calls.into_iter().find_map(|n| {
        let (a, b) = (old.context(n), new.context(n));
        // What nobody has stored to is as it was.
        let before = |k: &i64| old.ctx_read.get(k).or(new.ctx_read.get(k));
        let differs = |k: &&i64| a.get(k).or(before(k)) != b.get(k).or(before(k));
        a.keys().chain(b.keys()).filter(differs).min().map(|k| (n, *k))
    })
}

struct World<'a> {
    cx: &'a Context,
    model: &'a Model,
    env: &'a Env<'a>,
    kind: ProgKind,
    initial: FxHashMap<u64, u8>,
    overlay: FxHashMap<u64, u8>,
    /// Worlds passed, oldest first.
    passed: Vec<u64>,
    memo: FxHashMap<TermId, u64>,
    recording: &'a mut Recording,
    follow: Option<&'a Recording>,
}

fn run(
    cx: &Context,
    model: &Model,
    env: &Env,
    f: &Function,
    recording: &mut Recording,
    follow: Option<&Recording>,
) -> Result<u64, Fault> {
    let mut initial = FxHashMap::default();
    let mut memo = FxHashMap::default();
    let mut cpu = Cpu::default();
    let top = cpu.register(Reg::R10).unwrap_or(0);
    for ((m, addr), byte) in &model.bytes {
        if let MemNode::Base { version, .. } = cx.terms.mem(*m)
            && model.eval_memo(&cx.terms, *version, &mut memo) == 0
        {
            initial.insert(*addr, *byte);
            if let Some(i) = addr.checked_sub(top - 512).filter(|i| *i < 512) {
                cpu.frame_mut()[i as usize] = *byte;
            }
        }
    }
    if f.kind == ProgKind::Subprogram || f.arguments.is_some() {
        for r in (1..=5u8).filter_map(Reg::new) {
            let known = cx.entry.map(|entry| model.eval(&cx.terms, entry[r.index()]));
            cpu.set(r, known.unwrap_or(0));
        }
        if f.arguments.as_ref().is_some_and(|a| a[0] == Argument::Context) {
            cpu.set(Reg::R1, CTX);
        }
    } else {
        cpu.set(Reg::R1, CTX);
    }
    let world = World {
        cx,
        model,
        env,
        kind: f.kind,
        initial,
        overlay: FxHashMap::default(),
        passed: vec![0],
        memo,
        recording,
        follow,
    };
    let mut interp = Interp::with_cpu(cpu, world);
    let r = interp.run(f, FUEL);
    let Interp { cpu, host, .. } = interp;
    host.recording.calls = cpu.trace;
    host.recording.last = host.overlay;
    r.map(|o| o.r0)
}

impl World<'_> {
    fn eval(&mut self, t: TermId) -> u64 {
        self.model.eval_memo(&self.cx.terms, t, &mut self.memo)
    }

    fn byte(&mut self, addr: u64) -> u8 {
        if let Some(b) = self.overlay.get(&addr) {
            return *b;
        }
        let b = self.initial.get(&addr).copied().unwrap_or(0);
        self.recording.read.insert(addr, b);
        b
    }

    /// Worlds from which the next event may start: the present one, and those that events without a
    /// trace in a run (fences, atomics) lead to.
    fn present(&mut self) -> Vec<u64> {
        let mut v = vec![*self.passed.last().unwrap_or(&0)];
        let mut at = 0;
        while at < v.len() && v.len() < 64 {
            for (i, e) in self.cx.events.iter().enumerate() {
                let silent = matches!(e.what, EventKind::Fence(..) | EventKind::Atomic(_));
                if silent && self.eval(e.before) == v[at] && !v.contains(&(i as u64 + 1)) {
                    v.push(i as u64 + 1);
                }
            }
            at += 1;
        }
        v
    }

    /// The event that happens next, of those `fits` admits.
    fn next_event(&mut self, fits: impl Fn(&EventKind) -> bool, args: &[u64]) -> Option<u32> {
        let present = self.present();
        let events = &self.cx.events;
        for (i, e) in events.iter().enumerate() {
            if !fits(&e.what) || !present.contains(&self.model.eval_memo(&self.cx.terms, e.before, &mut self.memo)) {
                continue;
            }
            // Bytes that the callee reads stand between the arguments.
            let registers = e.args.iter().filter(|t| self.cx.terms.width(**t) > 8);
            let same = registers.zip(args).all(|(t, v)| self.model.eval_memo(&self.cx.terms, *t, &mut self.memo) == *v);
            if same {
                return Some(i as u32 + 1);
            }
        }
        None
    }

    /// Goes on to the world after event `id`; the bytes are what it made of memory that was forgotten there.
    fn moves_on(&mut self, id: u32) -> Vec<(u64, u8)> {
        self.passed.push(u64::from(id));
        let mut bytes = Vec::new();
        for ((m, a), b) in &self.model.bytes {
            if let MemNode::Base { version, .. } = self.cx.terms.mem(*m)
                && self.model.eval_memo(&self.cx.terms, *version, &mut self.memo) == u64::from(id)
            {
                bytes.push((*a, *b));
            }
        }
        bytes.sort_unstable();
        bytes
    }

    /// A context cell as of the latest version that the formula mentions.
    fn cell(&mut self, key: impl Fn(TermId) -> VarKey) -> Option<u64> {
        for w in self.passed.clone().into_iter().rev() {
            for (k, t, _) in self.cx.variables() {
                let version = match &k {
                    VarKey::CtxField(_, _, v) | VarKey::PacketPointer(_, v) => *v,
                    _ => continue,
                };
                if k == key(version) && self.eval(version) == w {
                    return Some(self.eval(t));
                }
            }
        }
        None
    }

    fn ctx_load(&mut self, off: i64, size: Size) -> u64 {
        let n = size.bytes();
        if let Some(f) = ctx_field(self.kind, off) {
            let start = i64::from(f.offset);
            let inside = off + i64::from(n) <= start + i64::from(f.size);
            let whole = off == start && n == f.size;
            match f.kind {
                FieldKind::PacketData | FieldKind::PacketEnd | FieldKind::PacketMeta if whole => {
                    return self.packet_pointer(off);
                }
                FieldKind::Scalar { narrow: true } if inside => {
                    if let Some(full) = self.cell(|v| VarKey::CtxField(start, f.size, v)) {
                        return full >> ((off - start) * 8);
                    }
                }
                _ => {}
            }
        }
        self.cell(|v| VarKey::CtxField(off, n, v)).unwrap_or(0)
    }

    /// A packet pointer; where the formula has none, the packet is empty.
    fn packet_pointer(&mut self, off: i64) -> u64 {
        let data = if self.kind == ProgKind::Xdp { 0 } else { SKB_DATA };
        let at = |s: &mut Self, off: i64| s.cell(|v| VarKey::PacketPointer(off, v));
        at(self, off).or_else(|| at(self, data)).unwrap_or(PACKET_START)
    }

    /// The new side's call `k`: if it asks what the old one asked, it gets the same answer.
    fn follow_call(&mut self, cpu: &mut Cpu, op: &Op, old: &Recording, k: usize) -> Result<Next, Fault> {
        let asks = old.calls.get(k) == cpu.trace.last();
        let same_frame = old.frames.get(k).is_some_and(|f| same_frame(cpu, op, f));
        let same =
            asks && same_frame && old.memory.get(k).is_some_and(|m| same_memory(m, &self.overlay, &self.initial));
        // Where in the frame an object lies is private, what it begins with is not.
        if let (Some(x), Some(y), Some(frame)) = (old.calls.get(k), cpu.trace.last(), old.frames.get(k))
            && x.call == y.call
            && x.args.iter().zip(&y.args).any(|(x, y)| x != y && begin_alike(cpu, (x, frame), (y, cpu.frame())))
        {
            return Err(Fault::Unmodelled("an object at another place of the frame".into()));
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
        let (Some((r0, writes)), Some(id)) = (old.effects.get(k), old.worlds.get(k)) else {
            return Err(Fault::Unmodelled("a call that the old function did not survive".into()));
        };
        cpu.set(Reg::R0, *r0);
        for (a, b) in writes {
            cpu.write(self, *a, &[*b])?;
        }
        self.passed.push(u64::from(*id));
        self.recording.effects.push((*r0, writes.clone()));
        self.recording.worlds.push(*id);
        Ok(Next::Done)
    }

    fn keeps(&self, off: i64) -> bool {
        ctx_field(self.kind, off).is_some() && u32::try_from(off).is_ok_and(|o| possible_bits(self.kind, o) == u32::MAX)
    }

    fn plain_ctx(&self, address: u64, size: u64) -> bool {
        (0..size).all(|i| ctx_field(self.kind, (address - CTX + i) as i64).is_some_and(|f| f.kind == FieldKind::Memory))
    }
}

fn in_ctx(address: u64) -> bool {
    (CTX..CTX + CTX_BYTES).contains(&address)
}

impl Host for World<'_> {
    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        for (i, b) in out.iter_mut().enumerate() {
            *b = self.byte(address.wrapping_add(i as u64));
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        for (i, b) in bytes.iter().enumerate() {
            self.overlay.insert(address.wrapping_add(i as u64), *b);
        }
        Ok(())
    }

    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        if in_ctx(address) && !self.plain_ctx(address, size.bytes().into()) {
            let off = (address - CTX) as i64;
            let n = size.bytes();
            let overlaps = |s: &&CtxStore| s.1 < off + i64::from(n) && off < s.1 + i64::from(s.2);
            return match self.recording.ctx_stores.iter().rfind(overlaps) {
                None => {
                    let v = self.ctx_load(off, size);
                    let bytes = (0..i64::from(n)).map(|i| (off + i, (v >> (8 * i)) as u8));
                    self.recording.ctx_read.extend(bytes);
                    Ok(v)
                }
                // A field as wide as in the kernel keeps what is stored.
                Some((_, at, 4, v)) if (*at, n) == (off, 4) && self.keeps(off) => Ok(*v),
                Some(_) => Err(Fault::Unmodelled("a field of the context read behind its store".into())),
            };
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..size.bytes() as usize])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, size: Size, v: u64, _imm: bool) -> Result<(), Fault> {
        if in_ctx(address) && !self.plain_ctx(address, size.bytes().into()) {
            let off = (address - CTX) as i64;
            let n = self.recording.effects.len();
            let field = u32::try_from(off).ok().filter(|_| size.bytes() == 4);
            let stored = v & field.map_or(u64::MAX, |o| possible_bits(self.kind, o).into());
            self.recording.ctx_stores.push((n, off, size.bytes(), low(stored, size.bits())));
            let kind = EventKind::CtxStore(off, size.bytes());
            if let Some(id) = self.next_event(|k| *k == kind, &[low(v, size.bits())]) {
                let bytes = self.moves_on(id);
                self.overlay.extend(bytes);
            }
            return Ok(());
        }
        self.write(address, &v.to_le_bytes()[..size.bytes() as usize])
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let k = self.recording.effects.len();
        // Beyond the arguments that the callee has, registers hold leftovers.
        if let Some(e) = cpu.trace.last_mut() {
            e.args.truncate(arity(op, self.env));
        }
        self.recording.memory.push(self.overlay.clone());
        self.recording.frames.push(cpu.frame().to_vec());
        if let Some(old) = self.follow {
            return self.follow_call(cpu, op, old, k);
        }
        let args: Vec<u64> = (1..=5).map(|n| cpu.arg(n).unwrap_or(0)).collect();
        let symbol = op.link.as_ref().map(|l| l.symbol.clone());
        let insn = match (op.insn, &op.link) {
            (Insn::Call(bpf_isa::Call::Local(_)), Some(_)) => Insn::Call(bpf_isa::Call::Local(0)),
            (i, _) => i,
        };
        let wanted = EventKind::Call(insn, symbol);
        let nargs = cpu.trace.last().map_or(0, |e| e.args.len()).min(5);
        let Some(id) = self.next_event(|k| *k == wanted, &args[..nargs]) else {
            return Err(Fault::Unmodelled(format!("`{}`: not on the path the formula describes", op.insn)));
        };
        let range = Effects::of(&op.insn, op.link.is_some()).result_range;
        let r0 = range.within(self.cx.lookup(&VarKey::Ret(id)).map_or(0, |t| self.eval(t)));
        cpu.set(Reg::R0, r0);
        let mut writes = self.moves_on(id);
        for (key, t, _) in self.cx.variables() {
            if let VarKey::Written(e, arg, i) = key
                && e == id
                && arg > 0
            {
                let b = self.eval(t) as u8;
                let at = args[usize::from(arg) - 1].wrapping_add(u64::from(i));
                writes.push((at, b));
            }
        }
        for (a, b) in &writes {
            cpu.write(self, *a, &[*b])?;
        }
        self.recording.effects.push((r0, writes));
        self.recording.worlds.push(id);
        Ok(Next::Done)
    }

    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault> {
        let Some(link) = link else {
            let t = self.cx.lookup(&VarKey::Pseudo(kind as u8, imm));
            return Ok(t.map_or(imm, |t| self.eval(t)));
        };
        let (symbol, offset) = match &link.symbol {
            Symbol::Map { name, .. } => (Symbol::Map { name: name.clone(), index: 0 }, 0),
            Symbol::Data { section, offset } => (Symbol::Data { section: section.clone(), offset: 0 }, *offset),
            s => (s.clone(), 0),
        };
        match self.cx.lookup(&VarKey::Symbol(symbol)) {
            Some(t) => Ok(self.eval(t).wrapping_add(offset as u64)),
            None => Err(Fault::Unmodelled(format!("{:?}", link.symbol))),
        }
    }

    fn legacy_load(&mut self, _context: u64, offset: i32, size: Size) -> Result<Option<u64>, Fault> {
        let found = self.next_event(|k| matches!(k, EventKind::LegacyLoad(n, _) if *n == size.bytes()), &[]);
        let Some(id) = found else { return Err(Fault::Unmodelled(format!("a packet load at {offset}"))) };
        let v = self.cx.lookup(&VarKey::Written(id, 0, 0)).map_or(0, |t| self.eval(t));
        let bytes = self.moves_on(id);
        self.overlay.extend(bytes);
        Ok(Some(v))
    }

    fn relocate(&mut self, op: &Op) -> Result<Insn, Fault> {
        let unmodelled = || Fault::Unmodelled(format!("the CO-RE relocation of `{}`", op.insn));
        // Only constants: what else a record patches depends on the registers, too.
        let (Insn::Mov { dst, src: Src::Imm(_), .. } | Insn::LoadImm64 { dst, .. }) = op.insn else {
            return Err(unmodelled());
        };
        let symbol = op.link.as_ref().map(|l| &l.symbol);
        let mut found = self.cx.variables().into_iter().filter(|(k, ..)| {
            matches!(k, VarKey::Core(s, shape, inputs, _)
                if Some(s) == symbol && inputs.is_empty() && same_shape(*shape, op.insn))
        });
        match (found.next(), found.next()) {
            (Some((_, t, _)), None) => Ok(Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: self.eval(t) }),
            _ => Err(unmodelled()),
        }
    }

    fn map_sizes(&self, map: u64) -> Option<(u32, u32)> {
        self.env.maps.iter().find_map(|m| {
            let symbol = Symbol::Map { name: m.name.as_str().into(), index: 0 };
            let t = self.cx.lookup(&VarKey::Symbol(symbol))?;
            (self.model.eval(&self.cx.terms, t) == map).then_some(())?;
            Some((m.key_size?, m.value_size?))
        })
    }
}

/// Whether two constants to be patched are the same but for the register they go to.
fn same_shape(a: Insn, b: Insn) -> bool {
    match (a, b) {
        (Insn::Mov { width, src, .. }, Insn::Mov { width: w, src: s, .. }) => width == w && src == s,
        (Insn::LoadImm64 { kind, imm, .. }, Insn::LoadImm64 { kind: k, imm: i, .. }) => kind == k && imm == i,
        _ => false,
    }
}

/// How many argument registers a call has.
fn arity(op: &Op, env: &Env) -> usize {
    match (op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::Call(_), Some(symbol)) => env.arguments_of(symbol).map_or(5, |n| n.min(5)),
        _ => 5,
    }
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

fn same_memory(a: &FxHashMap<u64, u8>, b: &FxHashMap<u64, u8>, initial: &FxHashMap<u64, u8>) -> bool {
    let at = |m: &FxHashMap<u64, u8>, k: &u64| m.get(k).or(initial.get(k)).copied().unwrap_or(0);
    a.keys().chain(b.keys()).all(|k| at(a, k) == at(b, k))
}

fn words(call: &Call) -> String {
    let args: Vec<String> = call
        .args
        .iter()
        .map(|a| match a {
            ArgValue::Plain(v) => format!("{v:#x}"),
            ArgValue::StackBuffer => "stack".into(),
            ArgValue::Uninitialised => "?".into(),
        })
        .collect();
    let mut s = format!("{}({})", call.call, args.join(", "));
    for (arg, bytes) in &call.memory {
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        s.push_str(&format!(" with argument {arg} → {}", hex.join(" ")));
    }
    s
}

/// A difference, and how each side left what differs, where its result does not tell.
struct Found {
    difference: String,
    states: [Option<String>; 2],
}

impl Found {
    fn new(difference: impl Into<String>) -> Found {
        Found { difference: difference.into(), states: [None, None] }
    }
}

fn compare(
    a: &Result<u64, Fault>,
    b: &Result<u64, Fault>,
    old: &Recording,
    new: &Recording,
    places: &Places,
) -> Option<Found> {
    // The old program runs to its end on every input, or the world was not good enough for it.
    let x = a.as_ref().ok()?;
    if let Some(d) = &new.diverged {
        return Some(Found::new(d.clone()));
    }
    let y = match b {
        Ok(y) => y,
        Err(Fault::Unmodelled(_)) => return None,
        Err(f) => return Some(Found::new(format!("the new function fails: {f}"))),
    };
    if old.calls.len() > new.calls.len() {
        let missing = words(&old.calls[new.calls.len()]);
        return Some(Found::new(format!("call {} is missing: {missing}", new.calls.len() + 1)));
    }
    if let Some((calls, off)) = context_differs(old, new) {
        let at = |r: &Recording| match r.context(calls).get(&off) {
            Some(v) => format!("{v:#04x} in the byte of the context at {off} after {calls} call(s)"),
            None => format!("the byte of the context at {off} as it was after {calls} call(s)"),
        };
        let (p, q) = (at(old), at(new));
        return Some(Found {
            difference: format!("stores to the context leave {p}, and {q} in the new one"),
            states: [Some(format!("leaving {p}")), Some(format!("leaving {q}"))],
        });
    }
    let mut keys: Vec<&u64> = old.last.keys().chain(new.last.keys()).collect();
    keys.sort_unstable();
    for k in keys {
        let at = |r: &Recording| r.last.get(k).or(old.read.get(k)).or(new.read.get(k)).copied();
        let (p, q) = (at(old).unwrap_or(0), at(new).unwrap_or(0));
        if p != q {
            let place = places.words(*k);
            return Some(Found {
                difference: format!("the byte at {place} ends as {p:#04x}, and as {q:#04x} in the new one"),
                states: [p, q].map(|v| Some(format!("leaving {v:#04x} at {place}"))),
            });
        }
    }
    (x != y).then(|| Found::new(format!("the result is {x:#x}, and {y:#x} in the new one")))
}

/// The input in words, as far as the old function looked at it.
/// The registers that a function may read before it sets them.
fn read_at_entry(f: &Function, env: &Env) -> RegSet {
    Liveness::of(f, env, &Facts::of(f, env)).entry(f.entry()).regs
}

fn describe(cx: &Context, model: &Model, recording: &Recording, places: &Places, read: RegSet) -> Vec<String> {
    let mut out = Vec::new();
    let mut vars = cx.variables();
    vars.sort_by_key(|(_, t, _)| *t);
    for (key, t, meaning) in vars {
        let v = model.eval(&cx.terms, t);
        match key {
            VarKey::CtxField(off, n, _) => out.push(format!("context field of {n} bytes at {off} = {v:#x}")),
            VarKey::PacketPointer(..) if meaning == Meaning::Pointer(Region::PacketEnd) && is_entry(cx, &key) => {
                out.push(format!("packet of {} bytes", v.wrapping_sub(PACKET_START)));
            }
            VarKey::EntryReg(n) if Reg::new(n).is_some_and(|r| read.contains(r)) => out.push(format!("r{n} = {v:#x}")),
            _ => {}
        }
    }
    let mut bytes: Vec<(&u64, &u8)> = recording.read.iter().collect();
    bytes.sort_unstable();
    for (a, b) in bytes.into_iter().take(64) {
        out.push(format!("{} = {b:#04x}", places.words(*a)));
    }
    for (i, (call, (r0, _))) in recording.calls.iter().zip(&recording.effects).enumerate() {
        out.push(format!("call {} {} returns {r0:#x}", i + 1, words(call)));
    }
    out
}
