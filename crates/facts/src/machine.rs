//! Abstract execution: [`Machine`] over [`Value`]s, so that [`bpf_semantics::exec`] is the one and only
//! definition of the instructions.
//!
//! Two things are not plain arithmetic. A 4-byte load of some context fields yields a 64-bit pointer
//! (the verifier rewrites it): such a result travels as [`Abs::Widened`] until the zero-extension.
//! And whenever an address of the frame turns into something that is not tracked as one, the state
//! must record the leak.

use std::convert::Infallible;

use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, RegSet, Size, Src, Width};
use bpf_platform::helpers::Ret;
use bpf_program::{BlockId, ByteOrder, FieldKind, Link, Op, ProgKind, Symbol, ctx_field, may_read_wider};
use bpf_semantics::{Domain, Machine, alu};

use crate::calls::{self, CallEffects};
use crate::{BaseId, Env, Kind, MapInfo, Num, NumDomain, Region, StackSet, State, Value};

/// A value in flight.
#[derive(Clone, Debug)]
pub(crate) enum Abs {
    /// As wide as its `num` (a pointer: 64 bits).
    Plain(Value),
    /// The result of a 32-bit load that may be a full 64-bit value after zero-extension.
    Widened(Value),
}

pub(crate) struct AbstractMachine<'s, 'e, 'm> {
    pub(crate) state: &'s mut State,
    pub(crate) at: (BlockId, usize),
    pub(crate) kind: ProgKind,
    pub(crate) env: &'e Env<'m>,
}

impl State {
    /// Executes one operation, at block and index `at` of a function of this kind. Of a jump inside a path: what its
    /// comparison gives away, not what it teaches.
    pub fn step(&mut self, op: &Op, at: (BlockId, usize), kind: ProgKind, env: &Env<'_>) {
        let mut m = AbstractMachine { state: self, at, kind, env };
        let done = match op.insn {
            Insn::Jcc { cond, width, dst, src, .. } => bpf_semantics::branch(&mut m, cond, width, dst, src).map(|_| ()),
            _ => bpf_semantics::exec(&mut m, op),
        };
        match done {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }
}

fn is_scalar(v: &Abs) -> bool {
    matches!(v, Abs::Plain(Value { kind: Kind::Scalar, .. }) | Abs::Widened(_))
}

fn stack_free(v: &Abs) -> bool {
    !matches!(v, Abs::Plain(v) if v.is_stack())
}

fn bits(v: &Abs) -> Num {
    match v {
        Abs::Plain(v) => v.bits(),
        Abs::Widened(_) => Num::top(32),
    }
}

impl AbstractMachine<'_, '_, '_> {
    /// The value becomes a mere number: if it was an address of the frame, that has leaked.
    fn number(&mut self, v: &Abs) -> Num {
        if !stack_free(v) {
            self.state.leak();
        }
        bits(v)
    }

    fn binary(&mut self, a: &Abs, b: &Abs, f: impl Fn(&mut NumDomain, &Num, &Num) -> Num) -> Abs {
        let num = f(&mut NumDomain, &self.number(a), &self.number(b));
        // Only whole registers can hold something else than a number.
        let kind = if num.bits < 64 || (is_scalar(a) && is_scalar(b)) { Kind::Scalar } else { Kind::Unknown };
        Abs::Plain(Value { kind, num })
    }

    fn comparison(&mut self, a: &Abs, b: &Abs, f: impl Fn(&mut NumDomain, &Num, &Num) -> Option<bool>) -> Option<bool> {
        if let (Abs::Plain(x), Abs::Plain(y)) = (a, b)
            && x.same_base(y)
        {
            return None;
        }
        f(&mut NumDomain, &self.number(a), &self.number(b))
    }

    /// A pointer moved by a number, if `p` is a pointer for which that is one.
    fn moved(p: &Abs, by: &Abs, f: impl Fn(&Num, &Num) -> Num) -> Option<Abs> {
        let (Abs::Plain(p), Abs::Plain(by)) = (p, by) else { return None };
        match (&p.kind, &by.kind) {
            (Kind::Pointer { .. }, Kind::Scalar) if by.num.as_const() == Some(0) => Some(Abs::Plain(p.clone())),
            (Kind::Pointer { nullable: false, .. }, Kind::Scalar | Kind::Unknown) if by.num.bits == 64 => {
                Some(Abs::Plain(Value { kind: p.kind.clone(), num: f(&p.num, &by.num) }))
            }
            _ => None,
        }
    }

    /// Whether a pointer compared with zero is surely not null: its base is not, and its offset is too
    /// small to lead from a kernel address to zero. (A test run may pass a null context.)
    fn surely_not_null(p: &Value) -> bool {
        let near = -(1i64 << 31)..=1i64 << 31;
        matches!(&p.kind, Kind::Pointer { region, nullable: false, .. } if *region != Region::Ctx)
            && near.contains(&p.num.smin)
            && near.contains(&p.num.smax)
    }

    fn load_ctx(&self, offset: Option<i64>, size: Size) -> Abs {
        let scalar = Abs::Plain(Value::scalar(Num::top(size.bits())));
        let anything = match size {
            _ if may_read_wider(offset, size.bytes(), true) => Abs::Widened(Value::unknown()),
            Size::DW => Abs::Plain(Value::unknown()),
            _ => scalar.clone(),
        };
        let Some(offset) = offset else { return anything };
        let Some(field) = ctx_field(self.kind, offset) else { return anything };
        let packet = |region| match size {
            Size::W if offset == i64::from(field.offset) => {
                Abs::Widened(Value::pointer(region, self.state.packet_base(), 0))
            }
            _ => anything.clone(),
        };
        match field.kind {
            FieldKind::PacketData => packet(Region::Packet),
            FieldKind::PacketEnd => packet(Region::PacketEnd),
            FieldKind::PacketMeta => packet(Region::PacketMeta),
            FieldKind::Scalar { .. } => scalar,
            FieldKind::Memory if self.kind == ProgKind::Tracing && size == Size::DW => anything,
            FieldKind::Memory => scalar,
            FieldKind::Pointer if size == Size::DW => Abs::Plain(Value::nullable(Region::Kernel, BaseId::Unknown)),
            FieldKind::Pointer => anything,
        }
    }

    fn load_stack(&mut self, base: &Value, off: i16, size: Size) -> Value {
        let len = size.bytes();
        let at = base.num.as_signed_const().and_then(|o| o.checked_add(i64::from(off)));
        match at {
            Some(at) if (-crate::FRAME..0).contains(&at) => {
                let end = at + i64::from(len);
                if self.state.frame.holds_frame_pointer(at, end) && !self.state.frame.is_piece(at, len) {
                    self.state.leak();
                }
                self.state.frame.load(at, len)
            }
            _ => {
                let touched = self.state.touched(base, off, len);
                if touched.runs().iter().any(|(o, n)| self.state.frame.holds_frame_pointer(*o, o + i64::from(*n))) {
                    self.state.leak();
                }
                unknown_bytes(size)
            }
        }
    }

    /// A store of something through `base`; `exact` is the value, if the place is known.
    fn store_value(&mut self, base: &Value, off: i16, size: Size, v: Value) {
        let touched = self.state.touched(base, off, size.bytes());
        match base.pointer_at() {
            Some((Region::Stack, _, o)) if touched.len() == size.bytes() as usize => {
                if self.state.frame.store(o + i64::from(off), v, self.env.byte_order) {
                    self.state.leak();
                }
            }
            _ => {
                if v.is_stack() {
                    self.state.leak();
                }
                self.state.forget(&touched);
            }
        }
    }

    fn apply(&mut self, e: &CallEffects) {
        self.state.forget(&e.writes);
        if e.leaks {
            self.state.leak();
        }
        if e.row.moves_packet() {
            let here = self.here();
            self.state.move_packet(here);
        }
    }

    fn here(&self) -> BaseId {
        BaseId::Site(self.at.0, self.at.1 as u32)
    }

    fn clobber(&mut self, r0: Value) {
        for r in RegSet::ARGS.iter() {
            self.state.set_reg(r, Value::unknown());
        }
        self.state.set_reg(Reg::R0, r0);
    }
}

/// A load of which nothing is known: 8 bytes may be a pointer, fewer are a number.
fn unknown_bytes(size: Size) -> Value {
    match size {
        Size::DW => Value::unknown(),
        _ => Value::scalar(Num::top(size.bits())),
    }
}

impl Domain for AbstractMachine<'_, '_, '_> {
    type V = Abs;
    type B = Option<bool>;

    fn constant(&mut self, bits: u32, v: u64) -> Abs {
        Abs::Plain(Value::scalar(Num::constant(bits, v)))
    }
    fn add(&mut self, a: &Abs, b: &Abs) -> Abs {
        if let Some(v) = Self::moved(a, b, Num::add).or_else(|| Self::moved(b, a, Num::add)) {
            return v;
        }
        self.binary(a, b, NumDomain::add)
    }
    fn sub(&mut self, a: &Abs, b: &Abs) -> Abs {
        if let (Abs::Plain(x), Abs::Plain(y)) = (a, b)
            && let (Kind::Pointer { .. }, Kind::Pointer { .. }) = (&x.kind, &y.kind)
        {
            if x.same_base(y) {
                return Abs::Plain(Value::scalar(x.num.sub(&y.num)));
            }
            self.number(a);
            self.number(b);
            return Abs::Plain(Value::scalar(Num::top(64)));
        }
        if is_scalar(b)
            && let Some(v) = Self::moved(a, b, Num::sub)
        {
            return v;
        }
        self.binary(a, b, NumDomain::sub)
    }
    fn mul(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::mul)
    }
    fn udiv(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::udiv)
    }
    fn urem(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::urem)
    }
    fn sdiv(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::sdiv)
    }
    fn srem(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::srem)
    }
    fn and(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::and)
    }
    fn or(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::or)
    }
    fn xor(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::xor)
    }
    fn shl(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::shl)
    }
    fn lshr(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::lshr)
    }
    fn ashr(&mut self, a: &Abs, b: &Abs) -> Abs {
        self.binary(a, b, NumDomain::ashr)
    }
    fn extract(&mut self, a: &Abs, lo: u32, bits: u32) -> Abs {
        match a {
            Abs::Plain(v) if lo == 0 && v.num.bits == bits => a.clone(),
            Abs::Widened(_) if lo == 0 && bits == 32 => a.clone(),
            _ => Abs::Plain(Value::scalar(self.number(a).extract(lo, bits))),
        }
    }
    fn zext(&mut self, a: &Abs, bits: u32) -> Abs {
        match a {
            Abs::Widened(v) if bits == 64 => Abs::Plain(v.clone()),
            Abs::Plain(v) if v.num.bits == bits => a.clone(),
            _ => Abs::Plain(Value::scalar(self.number(a).zext(bits))),
        }
    }
    fn sext(&mut self, a: &Abs, bits: u32) -> Abs {
        match a {
            // No kernel accepts it on such a field; should one, the result could be anything.
            Abs::Widened(_) if bits == 64 => Abs::Plain(Value::unknown()),
            Abs::Plain(v) if v.num.bits == bits => a.clone(),
            _ => Abs::Plain(Value::scalar(self.number(a).sext(bits))),
        }
    }
    fn concat(&mut self, high: &Abs, low: &Abs) -> Abs {
        Abs::Plain(Value::scalar(self.number(high).concat(&self.number(low))))
    }
    fn ite(&mut self, c: &Option<bool>, a: &Abs, b: &Abs) -> Abs {
        let (a, b) = match (c, a, b) {
            (Some(true), _, _) => return a.clone(),
            (Some(false), _, _) => return b.clone(),
            (None, Abs::Plain(a), Abs::Plain(b)) => (a, b),
            (None, _, _) => {
                let (a, b) = (self.number(a), self.number(b));
                return Abs::Plain(Value::scalar(a.join(&b)));
            }
        };
        let v = a.join(b);
        if (a.is_stack() || b.is_stack()) && !v.is_stack() {
            self.state.leak();
        }
        Abs::Plain(v)
    }
    fn eq(&mut self, a: &Abs, b: &Abs) -> Option<bool> {
        if let (Abs::Plain(x), Abs::Plain(y)) = (a, b) {
            for (p, q) in [(x, y), (y, x)] {
                if q.kind == Kind::Scalar && q.num.as_const() == Some(0) && p.region().is_some() {
                    return if Self::surely_not_null(p) { Some(false) } else { None };
                }
            }
            if x.same_base(y) {
                return NumDomain.eq(&x.num, &y.num);
            }
        }
        self.comparison(a, b, NumDomain::eq)
    }
    fn ult(&mut self, a: &Abs, b: &Abs) -> Option<bool> {
        self.comparison(a, b, NumDomain::ult)
    }
    fn slt(&mut self, a: &Abs, b: &Abs) -> Option<bool> {
        self.comparison(a, b, NumDomain::slt)
    }
    fn not(&mut self, a: &Option<bool>) -> Option<bool> {
        a.map(|t| !t)
    }
}

impl Machine for AbstractMachine<'_, '_, '_> {
    type Stop = Infallible;

    fn byte_order(&self) -> ByteOrder {
        self.env.byte_order
    }

    fn get(&mut self, r: Reg) -> Result<Abs, Infallible> {
        Ok(Abs::Plain(self.state.reg(r).clone()))
    }

    fn set(&mut self, r: Reg, v: Abs) {
        let v = match v {
            Abs::Plain(v) | Abs::Widened(v) => v,
        };
        self.state.set_reg(r, v);
    }

    fn load(&mut self, base: &Abs, off: i16, size: Size) -> Result<Abs, Infallible> {
        let Abs::Plain(base) = base else { return Ok(Abs::Plain(unknown_bytes(size))) };
        let at = base.num.as_signed_const().and_then(|o| o.checked_add(i64::from(off)));
        // The verifier lets nobody move a pointer whose fields it translates.
        let field = if base.region().is_none() { Some(i64::from(off)) } else { at };
        Ok(match base.region() {
            Some(Region::Stack) => Abs::Plain(self.load_stack(base, off, size)),
            Some(Region::Ctx) => self.load_ctx(at, size),
            Some(Region::Packet | Region::PacketMeta) => Abs::Plain(Value::scalar(Num::top(size.bits()))),
            Some(
                Region::MapValue { .. } | Region::AnyMapValue | Region::Data { .. } | Region::Mem | Region::CallerFrame,
            ) => Abs::Plain(unknown_bytes(size)),
            // The pointer may be the context, whose 32-bit fields may be 64-bit pointers; and fields of kernel objects are
            // translated, too.
            region if may_read_wider(field, size.bytes(), region != Some(&Region::Kernel)) => {
                Abs::Widened(Value::unknown())
            }
            _ => Abs::Plain(unknown_bytes(size)),
        })
    }

    fn store(&mut self, base: &Abs, off: i16, size: Size, v: &Abs, _imm: bool) -> Result<(), Infallible> {
        let v = match v {
            Abs::Plain(v) => v.clone(),
            Abs::Widened(_) => unknown_bytes(size),
        };
        match base {
            Abs::Plain(base) => self.store_value(base, off, size, v),
            Abs::Widened(_) => self.store_value(&Value::unknown(), off, size, v),
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        _op: AtomicOp,
        base: &Abs,
        off: i16,
        size: Size,
        operand: &Abs,
        compare: Option<&Abs>,
    ) -> Result<Abs, Infallible> {
        // What it combines with memory is a number from now on, and what it finds there too.
        self.number(operand);
        if let Some(c) = compare {
            self.number(c);
        }
        if let Abs::Plain(base) = base {
            let touched = self.state.touched(base, off, size.bytes());
            self.state.forget(&touched);
        }
        Ok(Abs::Plain(unknown_bytes(size)))
    }

    fn cmpxchg_result(&mut self, _old: &Abs) -> Abs {
        Abs::Plain(Value::scalar(Num::top(64)))
    }

    fn fence(&mut self, _: &Self::V, _: i16, _: Size, _: Option<&Self::V>) -> Result<(), Infallible> {
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Result<(), Infallible> {
        let effects = calls::effects(self.state, op, self.env);
        let map = effects.row.map_register().and_then(|r| match self.state.reg(r).kind {
            Kind::Pointer { region: Region::MapPtr { map }, .. } => Some(map),
            _ => None,
        });
        // What a call without a row does to memory it is handed, it does to the contents: nothing is known of those.
        if effects.row.ends_fresh && !effects.row.touches_everything {
            let ended = self.state.reg(Reg::R1).clone();
            self.state.end_memory(&ended);
        }
        self.apply(&effects);
        let here = self.here();
        // Values of this operation's earlier executions are no longer "the latest".
        self.state.rename(here, BaseId::Unknown, |region| !region.is_packet());
        let r0 = match effects.row.result {
            Ret::Unknown => Value::unknown(),
            Ret::Scalar | Ret::NoReturnOnSuccess => Value::scalar(Num::top(64)),
            Ret::Void => Value::unknown(),
            Ret::MapValueOrNull => match map.filter(|m| self.env.map(*m).is_some_and(MapInfo::lookup_gives_value)) {
                Some(map) => Value::nullable(Region::MapValue { map }, here),
                None => Value::nullable(Region::Kernel, here),
            },
            Ret::MemOrNull => Value::nullable(Region::Mem, here),
            Ret::SockOrNull | Ret::Ptr | Ret::Slice => Value::nullable(Region::Kernel, here),
        };
        self.clobber(r0);
        Ok(())
    }

    fn legacy_load(&mut self, size: Size, index: Option<&Abs>, _imm: i32) -> Result<(), Infallible> {
        // What it finds there, and whether the program goes on, tells the number.
        if let Some(index) = index {
            self.number(index);
        }
        self.clobber(Value::scalar(Num::top(size.bits()).zext(64)));
        Ok(())
    }

    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<Abs, Infallible> {
        let fixed = |region, offset| Value::pointer(region, BaseId::Fixed, offset);
        Ok(Abs::Plain(match link.map(|l| &l.symbol) {
            None if kind == Imm64Kind::Const => Value::constant(imm),
            Some(Symbol::Map { index, .. }) if matches!(kind, Imm64Kind::Const | Imm64Kind::MapFd) => {
                fixed(Region::MapPtr { map: *index }, 0)
            }
            Some(Symbol::Data { section, offset }) => fixed(Region::Data { section: section.clone() }, *offset),
            Some(Symbol::Func { name }) => fixed(Region::Func { name: name.clone() }, 0),
            _ => Value::unknown(),
        }))
    }

    fn addr_space_cast(&mut self, v: &Abs, _imm: u32) -> Result<Abs, Infallible> {
        self.number(v);
        Ok(Abs::Plain(Value::unknown()))
    }

    fn core_op(&mut self, op: &Op) -> Result<(), Infallible> {
        let immediate = Value::scalar(Num::signed(64, i32::MIN.into(), i32::MAX.into()));
        match op.insn {
            Insn::Alu { op, width, dst, src: Src::Imm(_) } => {
                let a = self.get(dst)?;
                let r = alu(self, op, width, &a, &Abs::Plain(immediate));
                self.set(dst, r);
            }
            Insn::Mov { width: Width::W64, dst, src: Src::Imm(_) } => self.set(dst, Abs::Plain(immediate)),
            Insn::Mov { width: Width::W32, dst, src: Src::Imm(_) } => {
                self.set(dst, Abs::Plain(Value::scalar(Num::top(32).zext(64))));
            }
            Insn::LoadImm64 { dst, .. } => self.set(dst, Abs::Plain(Value::scalar(Num::top(64)))),
            _ => {
                self.core_access(op);
                for r in op.insn.defs().iter() {
                    self.state.set_reg(r, Value::unknown());
                }
            }
        }
        Ok(())
    }
}

impl AbstractMachine<'_, '_, '_> {
    /// A memory access whose offset and width the loader decides, or any other patched instruction.
    fn core_access(&mut self, op: &Op) {
        let base = op.insn.memory_operand().map(|m| m.base);
        let through_stack = base.is_some_and(|b| {
            let v = self.state.reg(b);
            v.is_stack() || self.state.may_be_frame_address(v)
        });
        // Operands other than the base end up where they are not tracked.
        for r in op.insn.uses().iter().filter(|r| Some(*r) != base) {
            let v = Abs::Plain(self.state.reg(r).clone());
            self.number(&v);
        }
        if through_stack {
            if self.state.frame_pointer_spilled() {
                self.state.leak();
            }
            if !matches!(op.insn, Insn::Load { .. } | Insn::LoadAcquire { .. }) {
                self.state.forget(&StackSet::ALL);
            }
        }
    }
}
