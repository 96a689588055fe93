//! From a formula's assignment to a run: a refutation only counts when the interpreter shows it.
//!
//! The assignment is solved once more with every object at a place of its own, so that addresses mean
//! something. The old function then runs in the interpreter, in a world that answers every call and
//! every context access as the assignment says, and is recorded; the new one runs in the same world as
//! long as it asks the same questions. The first event, byte or bit of the result in which they differ
//! is the witness.

use bpf_facts::Env;
use bpf_isa::{Imm64Kind, Insn, Reg, Size};
use bpf_program::{FieldKind, Function, Link, Op, ProgKind, Symbol, ctx_field};
use bpf_semantics::interp::{Cpu, Event as Call, Fault, Host, Interp, Next};
use rustc_hash::FxHashMap;

use crate::blast::Model;
use crate::context::{Context, EventKind, Meaning, Possible, Region, VarKey};
use crate::equiv::Difference;
use crate::term::{MemNode, TermId};

const CTX: u64 = 0x1000_0000;
const CTX_BYTES: u64 = 0x1000;
const PACKET: u64 = 0x2000_0000;
const PACKET_BYTES: u64 = 0x1_0000;
const OBJECTS: u64 = 0x40_0000_0000;
const OBJECT_BYTES: u64 = 0x10_0000;
const FUEL: u64 = 1 << 22;

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
    /// One line each: input, outcomes, difference.
    pub fn lines(&self) -> Vec<String> {
        let mut v: Vec<String> = self.input.iter().map(|l| format!("input: {l}")).collect();
        v.push(format!("old: {}", self.outcomes[0]));
        v.push(format!("new: {}", self.outcomes[1]));
        v.push(format!("first difference: {}", self.difference));
        v
    }
}

/// Replays a refutation of `old` against `new`. `None` if the difference does not show in a run: then
/// the formula is coarser than the machine, and nothing is refuted.
pub fn replay(d: &mut Difference, old: &Function, new: &Function, env: &Env) -> Option<Witness> {
    let differ = d.context.difference?;
    let model = place(&mut d.context, differ)?;
    let cx = &d.context;
    let mut recording = Recording::default();
    let a = run(cx, &model, env, old, &mut recording, None);
    let mut replayed = Recording::default();
    let b = run(cx, &model, env, new, &mut replayed, Some(&recording));
    let difference = compare(&a, &b, &recording, &replayed, old.kind.return_bits())?;
    let words = |r: &Result<u64, Fault>, rec: &Recording| match r {
        Ok(r0) => format!("returns {:#x} after {} call(s)", low(*r0, old.kind.return_bits()), rec.calls.len()),
        Err(f) if rec.diverged.is_some() => format!("takes another way ({f})"),
        Err(f) => format!("fails: {f}"),
    };
    Some(Witness {
        input: describe(cx, &model, &recording),
        difference,
        outcomes: [words(&a, &recording), words(&b, &replayed)],
    })
}

fn low(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v & ((1 << bits) - 1) }
}

/// Solves again with objects where they cannot be confused.
fn place(cx: &mut Context, differ: TermId) -> Option<Model> {
    let vars: Vec<(VarKey, TermId, Meaning)> = cx.variables();
    let frame = Cpu::default().register(Reg::R10)?;
    let mut constraints = Vec::new();
    let mut homes: FxHashMap<Region, Vec<u64>> = FxHashMap::default();
    let mut vars = vars;
    vars.sort_by_key(|(_, t, _)| *t);
    for (n, (key, t, meaning)) in vars.iter().enumerate() {
        let home = OBJECTS + n as u64 * OBJECT_BYTES;
        let c = match (key, meaning) {
            (VarKey::Frame, _) => is_one_of(cx, *t, &[frame]),
            (VarKey::CtxPointer, _) => is_one_of(cx, *t, &[CTX]),
            (VarKey::PacketPointer(..), Meaning::Pointer(Region::PacketEnd)) => within(cx, *t),
            (VarKey::PacketPointer(..), _) => is_one_of(cx, *t, &[PACKET]),
            (_, Meaning::Pointer(Region::Packet | Region::PacketEnd)) => within(cx, *t),
            (_, Meaning::Pointer(Region::Stack | Region::Ctx | Region::CtxBytes)) => continue,
            (_, Meaning::Pointer(r)) => {
                let known = homes.entry(r.clone()).or_default();
                known.push(home);
                let mut places = known.clone();
                places.push(0);
                is_one_of(cx, *t, &places)
            }
            _ => continue,
        };
        constraints.push(c);
    }
    let all = cx.terms.all(&constraints);
    match cx.possible(all, &[differ]) {
        Possible::Sometimes(m) => Some(m),
        _ => None,
    }
}

fn is_one_of(cx: &mut Context, t: TermId, values: &[u64]) -> TermId {
    let mut any = Vec::new();
    for v in values {
        let k = cx.terms.constant(64, *v);
        any.push(cx.terms.eq(t, k));
    }
    cx.terms.any(&any)
}

fn within(cx: &mut Context, t: TermId) -> TermId {
    let lo = cx.terms.constant(64, PACKET);
    let hi = cx.terms.constant(64, PACKET + PACKET_BYTES);
    let below = cx.terms.ult(t, lo);
    let above = cx.terms.ult(hi, t);
    let (a, b) = (cx.terms.not(below), cx.terms.not(above));
    cx.terms.all(&[a, b])
}

/// What a run did, as far as the outside can tell.
#[derive(Default)]
struct Recording {
    calls: Vec<Call>,
    /// For each call its result and what it wrote.
    effects: Vec<(u64, Vec<(u64, u8)>)>,
    /// For each call the memory written so far.
    memory: Vec<FxHashMap<u64, u8>>,
    /// Stores to context fields: calls made before, offset, bytes, value.
    ctx_stores: Vec<(usize, i64, u32, u64)>,
    /// Memory written in all.
    last: FxHashMap<u64, u8>,
    /// The call at which the run left the recorded one.
    diverged: Option<String>,
    /// Initial bytes that were read.
    read: FxHashMap<u64, u8>,
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
    let value = |k: &VarKey| cx.lookup(k).map(|t| model.eval(&cx.terms, t));
    if f.kind == ProgKind::Subprogram {
        for n in 1..=5u8 {
            if let Some(r) = Reg::new(n) {
                cpu.set(r, value(&VarKey::EntryReg(n)).unwrap_or(0));
            }
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
                let silent = matches!(e.what, EventKind::Fence | EventKind::Atomic(_));
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
            let same =
                e.args.iter().zip(args).all(|(t, v)| self.model.eval_memo(&self.cx.terms, *t, &mut self.memo) == *v);
            if same {
                return Some(i as u32 + 1);
            }
        }
        None
    }

    fn moves_on(&mut self, id: u32) {
        self.passed.push(u64::from(id));
        // What an event made of memory that was forgotten there.
        let bytes: Vec<(u64, u8)> = self
            .model
            .bytes
            .iter()
            .filter(|((m, _), _)| match self.cx.terms.mem(*m) {
                MemNode::Base { version, .. } => self.cx.terms.as_const(*version) == Some(u64::from(id)),
                _ => false,
            })
            .map(|((_, a), b)| (*a, *b))
            .collect();
        self.overlay.extend(bytes);
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
            match f.kind {
                FieldKind::PacketData | FieldKind::PacketEnd | FieldKind::PacketMeta => {
                    return self.cell(|v| VarKey::PacketPointer(off, v)).unwrap_or(PACKET);
                }
                FieldKind::Scalar { narrow: true } => {
                    let start = i64::from(f.offset);
                    if let Some(full) = self.cell(|v| VarKey::CtxField(start, f.size, v)) {
                        return full >> ((off - start) * 8);
                    }
                }
                _ => {}
            }
        }
        self.cell(|v| VarKey::CtxField(off, n, v)).unwrap_or(0)
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
            return Ok(self.ctx_load((address - CTX) as i64, size));
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..size.bytes() as usize])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, size: Size, v: u64, _imm: bool) -> Result<(), Fault> {
        if in_ctx(address) && !self.plain_ctx(address, size.bytes().into()) {
            let off = (address - CTX) as i64;
            let n = self.recording.effects.len();
            self.recording.ctx_stores.push((n, off, size.bytes(), low(v, size.bits())));
            let kind = EventKind::CtxStore(off, size.bytes());
            if let Some(id) = self.next_event(|k| *k == kind, &[low(v, size.bits())]) {
                self.moves_on(id);
            }
            return Ok(());
        }
        self.write(address, &v.to_le_bytes()[..size.bytes() as usize])
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let k = self.recording.effects.len();
        self.recording.memory.push(self.overlay.clone());
        if let Some(old) = self.follow {
            let same = old.calls.get(k) == cpu.trace.last()
                && old.memory.get(k).is_some_and(|m| same_memory(m, &self.overlay, &self.initial));
            if !same {
                let now = cpu.trace.last().map_or_else(String::new, words);
                let then = old.calls.get(k).map_or_else(|| "nothing".into(), words);
                let what = match old.calls.get(k) == cpu.trace.last() {
                    true => format!("at call {} ({now}) memory the callee can see differs", k + 1),
                    false => format!("call {} is {now} where the old one does {then}", k + 1),
                };
                self.recording.diverged = Some(what.clone());
                return Err(Fault::Unmodelled(what));
            }
            if let Some((r0, writes)) = old.effects.get(k) {
                cpu.set(Reg::R0, *r0);
                for (a, b) in writes {
                    cpu.write(self, *a, &[*b])?;
                }
                self.recording.effects.push((*r0, writes.clone()));
            }
        }
        let args: Vec<u64> = (1..=5).map(|n| cpu.arg(n).unwrap_or(0)).collect();
        let symbol = op.link.as_ref().map(|l| l.symbol.clone());
        let insn = match (op.insn, &op.link) {
            (Insn::Call(bpf_isa::Call::Local(_)), Some(_)) => Insn::Call(bpf_isa::Call::Local(0)),
            (i, _) => i,
        };
        let wanted = EventKind::Call(insn, symbol);
        let nargs = cpu.trace.last().map_or(0, |e| e.args.len()).min(5);
        let found = self.next_event(|k| *k == wanted, &args[..nargs]);
        let Some(id) = found else {
            // Followed calls have their effects already; a recorded one must be in the formula.
            return match self.follow {
                Some(_) => Ok(Next::Done),
                None => Err(Fault::Unmodelled(format!("`{}`: not on the path the formula describes", op.insn))),
            };
        };
        if self.follow.is_some() {
            self.moves_on(id);
            return Ok(Next::Done);
        }
        let r0 = self.cx.lookup(&VarKey::Ret(id)).map_or(0, |t| self.eval(t));
        cpu.set(Reg::R0, r0);
        let mut writes = Vec::new();
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
        self.moves_on(id);
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
        self.moves_on(id);
        Ok(Some(v))
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

fn same_memory(a: &FxHashMap<u64, u8>, b: &FxHashMap<u64, u8>, initial: &FxHashMap<u64, u8>) -> bool {
    let at = |m: &FxHashMap<u64, u8>, k: &u64| m.get(k).or(initial.get(k)).copied().unwrap_or(0);
    a.keys().chain(b.keys()).all(|k| at(a, k) == at(b, k))
}

fn words(call: &Call) -> String {
    let args: Vec<String> = call
        .args
        .iter()
        .map(|a| match a {
            bpf_semantics::interp::ArgValue::Plain(v) => format!("{v:#x}"),
            bpf_semantics::interp::ArgValue::StackBuffer => "stack".into(),
            bpf_semantics::interp::ArgValue::Uninitialised => "?".into(),
        })
        .collect();
    let mut s = format!("{}({})", call.call, args.join(", "));
    for (arg, bytes) in &call.memory {
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        s.push_str(&format!(" with argument {arg} → {}", hex.join(" ")));
    }
    s
}

fn compare(
    a: &Result<u64, Fault>,
    b: &Result<u64, Fault>,
    old: &Recording,
    new: &Recording,
    bits: u32,
) -> Option<String> {
    // The old program runs to its end on every input, or the world was not good enough for it.
    let x = a.as_ref().ok()?;
    if let Some(d) = &new.diverged {
        return Some(d.clone());
    }
    let y = match b {
        Ok(y) => y,
        Err(Fault::Unmodelled(_)) => return None,
        Err(f) => return Some(format!("the new function {f}")),
    };
    if old.calls.len() > new.calls.len() {
        return Some(format!("call {} is missing: {}", new.calls.len() + 1, words(&old.calls[new.calls.len()])));
    }
    if old.ctx_stores != new.ctx_stores {
        return Some("stores to the context differ".into());
    }
    let mut keys: Vec<&u64> = old.last.keys().chain(new.last.keys()).collect();
    keys.sort_unstable();
    for k in keys {
        let at = |r: &Recording| r.last.get(k).or(old.read.get(k)).copied();
        let (p, q) = (at(old).unwrap_or(0), at(new).unwrap_or(0));
        if p != q {
            return Some(format!("the byte at {} ends as {p:#04x}, and as {q:#04x} in the new one", place_words(*k)));
        }
    }
    if low(*x, bits) != low(*y, bits) {
        return Some(format!("the result is {:#x}, and {:#x} in the new one", low(*x, bits), low(*y, bits)));
    }
    None
}

fn place_words(address: u64) -> String {
    match address {
        a if (PACKET..PACKET + PACKET_BYTES).contains(&a) => format!("packet[{}]", a - PACKET),
        a if in_ctx(a) => format!("context[{}]", a - CTX),
        a if a >= OBJECTS => format!("object {} + {}", (a - OBJECTS) / OBJECT_BYTES, (a - OBJECTS) % OBJECT_BYTES),
        a => format!("{a:#x}"),
    }
}

/// The input in words, as far as the old function looked at it.
fn describe(cx: &Context, model: &Model, recording: &Recording) -> Vec<String> {
    let mut out = Vec::new();
    let mut vars = cx.variables();
    vars.sort_by_key(|(_, t, _)| *t);
    for (key, t, meaning) in vars {
        let v = model.eval(&cx.terms, t);
        match key {
            VarKey::CtxField(off, n, _) => out.push(format!("context field of {n} bytes at {off} = {v:#x}")),
            VarKey::PacketPointer(..) if meaning == Meaning::Pointer(Region::PacketEnd) => {
                out.push(format!("packet of {} bytes", v.wrapping_sub(PACKET)));
            }
            VarKey::EntryReg(n) => out.push(format!("r{n} = {v:#x}")),
            _ => {}
        }
    }
    let mut bytes: Vec<(&u64, &u8)> = recording.read.iter().collect();
    bytes.sort_unstable();
    for (a, b) in bytes.into_iter().take(64) {
        out.push(format!("{} = {b:#04x}", place_words(*a)));
    }
    for (i, (call, (r0, _))) in recording.calls.iter().zip(&recording.effects).enumerate() {
        out.push(format!("call {} {} returns {r0:#x}", i + 1, words(call)));
    }
    out
}
