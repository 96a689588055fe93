//! The surroundings of a run: memory, context and calls as an assignment, or the run before, has them.

use bpf_facts::Env;
use bpf_isa::{Imm64Kind, Insn, Reg, Size, Src};
use bpf_platform::{Effects, possible_bits};
use bpf_program::{Argument, ByteOrder, FieldKind, Function, Link, Op, ProgKind, Symbol, ctx_field};
use bpf_semantics::interp::{ArgValue, Cpu, Event as Call, Fault, Host, Interp, Next};
use rustc_hash::FxHashMap;

use super::layout::{CTX, PACKET_START, SKB_DATA, in_ctx, low};
use super::recording::{CtxStore, Recording, words};
use crate::solver::blast::Model;
use crate::symbolic::context::Context;
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::VarKey;
use crate::term::{MemNode, TermId};
use crate::unread::Fewer;

const FUEL: u64 = 1 << 22;

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
    follow: Option<Follow<'a>>,
    /// Calls that the new side may leave out.
    fewer: &'a Fewer,
    /// Those of which some were taken out of the old side, since nobody reads them.
    taken_out: &'a Fewer,
}

/// What the new side's run follows.
#[derive(Clone, Copy)]
pub(super) struct Follow<'a> {
    /// The old side's run.
    pub(super) old: &'a Recording,
    /// Which of the calls that the old side makes again later are left out, a bit for each, the first the lowest.
    pub(super) choices: u32,
}

pub(super) fn run(
    cx: &Context,
    model: &Model,
    env: &Env,
    f: &Function,
    recording: &mut Recording,
    follow: Option<Follow>,
    [fewer, taken_out]: [&Fewer; 2],
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
    if f.is_called() {
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
    recording.byte_order = env.byte_order;
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
        fewer,
        taken_out,
    };
    let mut interp = Interp::with_cpu(cpu, world);
    let r = interp.run(f, FUEL);
    let Interp { cpu, host, .. } = interp;
    host.recording.calls = cpu.trace;
    host.recording.last = host.overlay;
    r.map(|o| o.r0)
}

impl World<'_> {
    pub(super) fn eval(&mut self, t: TermId) -> u64 {
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
            // Bytes that the callee reads stand between the arguments; of some arguments nothing but these counts.
            let registers = e.args.iter().filter(|t| self.cx.terms.width(**t) > 8);
            let same = registers
                .zip(args)
                .all(|(t, v)| self.cx.is_unseen(*t) || self.model.eval_memo(&self.cx.terms, *t, &mut self.memo) == *v);
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
                        return full >> self.env.byte_order.bit((off - start) as u32, n, f.size);
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

    /// The old side's calls that the new one leaves out in front of what it asks now count as made.
    fn leave_out(&mut self, cpu: &mut Cpu, op: &Op, Follow { old, choices }: Follow) {
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
        if !later.contains(asked) {
            return false;
        }
        let n = self.recording.choices;
        self.recording.choices += 1;
        choices.checked_shr(n).is_some_and(|bits| bits & 1 == 1)
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
        self.behind(op)
    }

    /// Whether what the new side asks now, and the old one does not, may be a call that stands elsewhere there. It may have no
    /// effect itself, and the old side asks the same
    /// - with nothing between but calls that may have no effect, or
    /// - before, if what it gives does not depend on what was called before, as no argument tells; or anywhere, if it is the same all
    ///   through a run. Of calls that were taken out of the old side before the run, nobody knows where they stood.
    fn may_stand_elsewhere(&self, cpu: &Cpu, op: &Op, old: &Recording, k: usize) -> bool {
        let Some(now) = cpu.trace.last() else { return false };
        let may_be_none = |calls: std::ops::Range<usize>| {
            old.without_effect.get(calls).is_some_and(|calls| calls.iter().all(|without| *without))
        };
        let places = || (0..old.calls.len()).filter(|p| old.calls[*p] == *now);
        // A call that has an effect may have others in front of it that are made behind it here.
        if !is_without_effect(op) {
            return places().any(|p| p >= k && may_be_none(k..p));
        }
        let row = Effects::of(&op.insn, false);
        let depends_on_nothing = row.is_constant() || row.arguments.is_empty();
        let is_moved = |p| match p < k {
            true => depends_on_nothing || may_be_none(p..k),
            false => row.is_constant() || may_be_none(k..p),
        };
        self.taken_out.has_named(&now.call) || places().any(is_moved)
    }

    /// What comes after a call: nothing, if that throws. The program ends there, and so does the run.
    fn behind(&mut self, op: &Op) -> Result<Next, Fault> {
        match op.link.as_ref().map(|l| &l.symbol) {
            Some(Symbol::Extern { name }) if bpf_platform::throws(name) => {
                self.recording.thrown = true;
                Err(Fault::Unmodelled(format!("{name} does not come back")))
            }
            _ => Ok(Next::Done),
        }
    }

    fn keeps(&self, off: i64) -> bool {
        ctx_field(self.kind, off).is_some()
            && u32::try_from(off).is_ok_and(|o| possible_bits(self.kind, o, self.env.byte_order) == u32::MAX)
    }

    fn plain_ctx(&self, address: u64, size: u64) -> bool {
        (0..size).all(|i| ctx_field(self.kind, (address - CTX + i) as i64).is_some_and(|f| f.kind == FieldKind::Memory))
    }
}

impl Host for World<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.env.byte_order
    }

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
                    let bytes = self.env.byte_order.bytes(v, n as usize);
                    self.recording.ctx_read.extend((off..off + i64::from(n)).zip(bytes));
                    Ok(v)
                }
                // A field as wide as in the kernel keeps what is stored.
                Some((_, at, 4, v)) if (*at, n) == (off, 4) && self.keeps(off) => Ok(*v),
                Some(_) => Err(Fault::Unmodelled("a field of the context read behind its store".into())),
            };
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..size.bytes() as usize])?;
        Ok(self.env.byte_order.number(&bytes[..size.bytes() as usize]))
    }

    fn store(&mut self, address: u64, size: Size, v: u64, _imm: bool) -> Result<(), Fault> {
        if in_ctx(address) && !self.plain_ctx(address, size.bytes().into()) {
            let off = (address - CTX) as i64;
            let n = self.recording.calls_that_see();
            let field = u32::try_from(off).ok().filter(|_| size.bytes() == 4);
            let stored = v & field.map_or(u64::MAX, |o| possible_bits(self.kind, o, self.env.byte_order).into());
            self.recording.ctx_stores.push((n, off, size.bytes(), low(stored, size.bits())));
            let kind = EventKind::CtxStore(off, size.bytes());
            if let Some(id) = self.next_event(|k| *k == kind, &[low(v, size.bits())]) {
                let bytes = self.moves_on(id);
                self.overlay.extend(bytes);
            }
            return Ok(());
        }
        let n = size.bytes() as usize;
        let bytes = self.env.byte_order.bytes(v, n);
        self.write(address, &bytes[..n])
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let row = Effects::of(&op.insn, op.link.is_some());
        if op.link.is_none() && self.cx.is_constant_call(&op.insn) {
            cpu.trace.pop();
            let r0 = self.cx.lookup(&VarKey::Constant(op.insn)).map_or(0, |t| self.eval(t));
            cpu.set(Reg::R0, row.result_range.within(r0));
            return Ok(Next::Done);
        }
        // Beyond the arguments that the callee has, registers hold leftovers.
        if let Some(e) = cpu.trace.last_mut() {
            e.args.truncate(arity(op, self.env));
        }
        if let Some(follow) = self.follow {
            self.leave_out(cpu, op, follow);
        }
        let k = self.recording.effects.len();
        self.recording.without_effect.push(is_without_effect(op));
        self.recording.memory.push(self.overlay.clone());
        self.recording.frames.push(cpu.frame().to_vec());
        if let Some(Follow { old, .. }) = self.follow {
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
        let r0 = row.result_range.within(self.cx.lookup(&VarKey::Ret(id)).map_or(0, |t| self.eval(t)));
        if op.link.is_none() && row.constant {
            self.recording.constants.push((wanted_name(cpu), r0));
        }
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
        self.behind(op)
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
        let found = self.next_event(|k| matches!(k, EventKind::LegacyLoad(n) if *n == size.bytes()), &[]);
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

/// Whether a call is of those that may have no effect but their result.
fn is_without_effect(op: &Op) -> bool {
    op.link.is_none() && Effects::of(&op.insn, false).may_have_no_effect()
}

/// The name of the call that is made.
fn wanted_name(cpu: &Cpu) -> String {
    cpu.trace.last().map_or_else(String::new, |call| call.call.to_string())
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
