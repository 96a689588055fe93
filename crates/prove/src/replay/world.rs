//! The surroundings of a run: memory, context and calls as an assignment, or the run before, has them.

use bpf_facts::Env;
use bpf_isa::{Imm64Kind, Insn, Reg, Size, Src};
use bpf_platform::{Effects, possible_bits};
use bpf_program::{Argument, ByteOrder, FieldKind, Function, Link, Op, ProgKind, Symbol, ctx_field};
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, Next};
use rustc_hash::FxHashMap;

use super::layout::{CTX, PACKET_START, SKB_DATA, in_ctx, in_packet, low};
use super::recording::{CtxStore, PacketLoad, Recording};
use crate::solver::blast::Model;
use crate::symbolic::context::Context;
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::VarKey;
use crate::term::{MemNode, TermId};
use crate::unread::Fewer;

const FUEL: u64 = 1 << 22;

pub(super) struct World<'a> {
    pub(super) cx: &'a Context,
    pub(super) model: &'a Model,
    pub(super) env: &'a Env<'a>,
    pub(super) kind: ProgKind,
    pub(super) initial: FxHashMap<u64, u8>,
    pub(super) overlay: FxHashMap<u64, u8>,
    /// Worlds passed, oldest first.
    pub(super) passed: Vec<u64>,
    pub(super) memo: FxHashMap<TermId, u64>,
    pub(super) recording: &'a mut Recording,
    pub(super) follow: Option<Follow<'a>>,
    /// Calls that the new side may leave out.
    pub(super) fewer: &'a Fewer,
    /// Those of which some were taken out of the old side, since nobody reads them.
    pub(super) taken_out: &'a Fewer,
}

/// What the new side's run follows.
#[derive(Clone, Copy)]
pub(super) struct Follow<'a> {
    /// The old side's run.
    pub(super) old: &'a Recording,
    /// Which of the calls that the old side makes again later are left out, or get each other's answers: a bit for each, the first
    /// the lowest.
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
                let silent = matches!(e.what, EventKind::Fence(..) | EventKind::Atomic(_) | EventKind::PacketReach);
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

    /// What a legacy load in the packet finds: the bytes that the old side's loads have found, else those of the formula.
    fn packet_bytes(&mut self, load: &PacketLoad) -> Result<u64, Fault> {
        let mut value = 0;
        for at in (load.offset.into()..).take(load.size as usize) {
            let byte = match self.followed_byte(load, at)? {
                Some(byte) => byte,
                None => self.packet_byte(at)?,
            };
            value = value << 8 | u64::from(byte);
        }
        Ok(value)
    }

    /// The byte of the packet at an offset, as the formula has it now; where that asks for none, any will do.
    fn packet_byte(&mut self, at: i64) -> Result<u8, Fault> {
        let present = self.present();
        let mut found = None;
        for (key, t, _) in self.cx.variables() {
            let VarKey::PacketByte(id, k) = key else { continue };
            let Some(event) = self.cx.events.get(id as usize - 1) else { continue };
            let (before, base) = (event.before, event.args[0]);
            if !present.contains(&self.eval(before)) || self.eval(base).wrapping_add(k as u64) != at as u64 {
                continue;
            }
            let byte = self.eval(t) as u8;
            if found.is_some_and(|other| other != byte) {
                return Err(Fault::Unmodelled(format!("a byte of the packet at {at} that is two")));
            }
            found = Some(byte);
        }
        Ok(found.unwrap_or(0))
    }

    /// A packet pointer; where the formula has none, the packet is empty.
    fn packet_pointer(&mut self, off: i64) -> u64 {
        let data = if self.kind == ProgKind::Xdp { 0 } else { SKB_DATA };
        let at = |s: &mut Self, off: i64| s.cell(|v| VarKey::PacketPointer(off, v));
        at(self, off).or_else(|| at(self, data)).unwrap_or(PACKET_START)
    }

    /// What comes after a call: nothing, if that throws. The program ends there, and so does the run.
    pub(super) fn behind(&mut self, op: &Op) -> Result<Next, Fault> {
        match op.link.as_ref().map(|l| &l.symbol) {
            Some(Symbol::Extern { name }) if bpf_platform::throws(name) => {
                self.recording.thrown = true;
                Err(Fault::Unmodelled(format!("{name} does not come back")))
            }
            _ => Ok(Next::Done),
        }
    }

    /// That a field has the value that was found there before, on this side or the other one, if no call that may change it was made
    /// between: neither a store to another field nor a call without effect does. An assignment in which it has another one is
    /// nothing that happens.
    fn keeps_its_value(&mut self, read: (usize, i64, u32), value: u64) -> Result<(), Fault> {
        let of_old = self.follow.and_then(|f| f.old.fields.get(&read));
        let known = *of_old.unwrap_or(self.recording.fields.entry(read).or_insert(value));
        match known == value {
            true => Ok(()),
            false => Err(Fault::Unmodelled("a field of the context that changes while nobody stores to it".into())),
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
                    self.keeps_its_value((self.recording.calls_that_see(), off, n), v)?;
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
        if is_without_effect(op) {
            // Only what others have changed.
            writes.retain(|(a, b)| self.overlay.get(a).or(self.initial.get(a)).copied().unwrap_or(0) != *b);
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

    fn legacy_load(&mut self, context: u64, offset: i32, size: Size) -> Result<Option<u64>, Fault> {
        let packet = self.overlay.iter().filter(|(a, _)| in_packet(**a)).map(|(a, b)| (*a, *b)).collect();
        let calls = self.recording.calls_that_see();
        let mut load = PacketLoad { calls, offset, size: size.bytes(), packet, found: 0, world: None, writes: vec![] };
        match self.followed_load(&load)? {
            Some(old) => {
                (load.found, load.world) = (old.found, old.world);
                load.writes.clone_from(&old.writes);
                self.passed.extend(load.world.map(u64::from));
            }
            None => {
                let asks = [context, u64::from(offset as u32)];
                match self.next_event(|k| matches!(k, EventKind::LegacyLoad(n) if *n == size.bytes()), &asks) {
                    Some(id) => {
                        load.found = self.cx.lookup(&VarKey::Written(id, 0, 0)).map_or(0, |t| self.eval(t));
                        load.world = Some(id);
                        load.writes = self.moves_on(id);
                    }
                    None => load.found = self.packet_bytes(&load)?,
                }
            }
        }
        self.overlay.extend(load.writes.iter().copied());
        let found = load.found;
        self.recording.packet_loads.push(load);
        Ok(Some(found))
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
pub(super) fn is_without_effect(op: &Op) -> bool {
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
