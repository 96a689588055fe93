//! The machine that writes: each operation of the semantics becomes a definition.

use std::rc::Rc;

use bpf_facts::{Kind, Region, Value};
use bpf_isa::{AtomicOp, Imm64Kind, Reg, Size};
use bpf_program::{ByteOrder, FieldKind, Link, Op, ProgKind, ctx_field};
use bpf_semantics::{Domain, Machine, atomic_new};

use super::text::{Access, Ended, Text, V, symbol};
use crate::solver::smt::number;

/// The address of byte `i` of an access.
fn at(start: &V, i: u32) -> String {
    format!("(bvadd {} {})", start.name, number(64, i.into()))
}

/// The machine that writes.
pub(super) struct Reference<'a> {
    pub(super) text: &'a mut Text,
    pub(super) kind: ProgKind,
    pub(super) order: ByteOrder,
    pub(super) end: Ended,
    /// Under which condition it comes to the current operation.
    pub(super) guard: Rc<str>,
    /// What the facts say of the base register of the current operation.
    pub(super) place: Option<Value>,
    pub(super) perhaps_frame: bool,
    /// Where accesses are noted.
    pub(super) accesses: &'a mut Vec<Access>,
}

impl Reference<'_> {
    /// The offset of a context access by cell; `None`: it is to memory.
    fn cell(&self, off: i16, n: u32) -> Result<Option<i64>, String> {
        let Some(Value { kind: Kind::Pointer { region: Region::Ctx, .. }, num }) = &self.place else { return Ok(None) };
        let Some(k) = num.as_signed_const() else { return Err("a context access at a variable offset".into()) };
        let k = k.wrapping_add(i64::from(off));
        let memory =
            |i| ctx_field(self.kind, k.wrapping_add(i64::from(i))).is_some_and(|f| f.kind == FieldKind::Memory);
        Ok((!(0..n).all(memory)).then_some(k))
    }

    fn ctx_cell(&mut self, off: i64, bytes: u32) -> V {
        let version = self.end.stores.len();
        self.text.unknown(format!("context {off} {bytes} after {version} stores"), bytes * 8)
    }

    fn ctx_load(&mut self, off: i64, n: u32) -> V {
        let Some(field) = ctx_field(self.kind, off) else { return self.ctx_cell(off, n) };
        let start = i64::from(field.offset);
        let whole = off == start && n == field.size;
        let inside = off + i64::from(n) <= start + i64::from(field.size);
        match field.kind {
            FieldKind::PacketData | FieldKind::PacketMeta | FieldKind::PacketEnd if whole => {
                self.text.unknown(format!("packet pointer {off}"), 64)
            }
            FieldKind::Scalar { narrow: true } if inside => {
                let all = self.ctx_cell(start, field.size);
                let lo = self.order.bit((off - start) as u32, n, field.size);
                self.extract(&all, lo, n * 8)
            }
            _ => self.ctx_cell(off, n),
        }
    }

    fn address(&mut self, base: &V, off: i16, n: u32) -> V {
        let off = self.constant(64, i64::from(off) as u64);
        let start = self.add(base, &off);
        let region = self.place.as_ref().and_then(|v| v.region().cloned());
        let guard = self.guard.clone();
        self.accesses.push(Access { guard, region, perhaps_frame: self.perhaps_frame, start: start.clone(), len: n });
        start
    }

    fn read(&mut self, start: &V, n: u32) -> V {
        let byte = |i| format!("(select {} {})", self.end.memory, at(start, i));
        let mut bytes: Vec<String> = (0..n).map(byte).collect();
        // The highest one first.
        if self.order == ByteOrder::Little {
            bytes.reverse();
        }
        let all = bytes.into_iter().reduce(|a, b| format!("(concat {a} {b})")).unwrap_or_default();
        self.text.bits(n * 8, all)
    }

    fn write(&mut self, start: &V, n: u32, v: &V) {
        for i in 0..n {
            let at = at(start, i);
            let lo = self.order.bit(i, 1, n);
            let byte = format!("((_ extract {} {lo}) {})", lo + 7, v.name);
            let stored = format!("(store {} {at} {byte})", self.end.memory);
            self.end.memory = self.text.define("(Array (_ BitVec 64) (_ BitVec 8))", stored);
        }
    }

    fn two(&mut self, op: &str, a: &V, b: &V) -> V {
        self.text.bits(a.bits, format!("({op} {} {})", a.name, b.name))
    }

    fn truth(&mut self, op: &str, a: &V, b: &V) -> Rc<str> {
        self.text.define("Bool", format!("({op} {} {})", a.name, b.name))
    }
}

impl Domain for Reference<'_> {
    type V = V;
    type B = Rc<str>;

    fn constant(&mut self, bits: u32, v: u64) -> V {
        V { bits, name: number(bits, v).into() }
    }
    fn add(&mut self, a: &V, b: &V) -> V {
        self.two("bvadd", a, b)
    }
    fn sub(&mut self, a: &V, b: &V) -> V {
        self.two("bvsub", a, b)
    }
    fn mul(&mut self, a: &V, b: &V) -> V {
        self.two("bvmul", a, b)
    }
    fn udiv(&mut self, a: &V, b: &V) -> V {
        self.two("bvudiv", a, b)
    }
    fn urem(&mut self, a: &V, b: &V) -> V {
        self.two("bvurem", a, b)
    }
    fn sdiv(&mut self, a: &V, b: &V) -> V {
        self.two("bvsdiv", a, b)
    }
    fn srem(&mut self, a: &V, b: &V) -> V {
        self.two("bvsrem", a, b)
    }
    fn and(&mut self, a: &V, b: &V) -> V {
        self.two("bvand", a, b)
    }
    fn or(&mut self, a: &V, b: &V) -> V {
        self.two("bvor", a, b)
    }
    fn xor(&mut self, a: &V, b: &V) -> V {
        self.two("bvxor", a, b)
    }
    fn shl(&mut self, a: &V, b: &V) -> V {
        self.two("bvshl", a, b)
    }
    fn lshr(&mut self, a: &V, b: &V) -> V {
        self.two("bvlshr", a, b)
    }
    fn ashr(&mut self, a: &V, b: &V) -> V {
        self.two("bvashr", a, b)
    }
    fn extract(&mut self, a: &V, lo: u32, bits: u32) -> V {
        self.text.bits(bits, format!("((_ extract {} {lo}) {})", lo + bits - 1, a.name))
    }
    fn zext(&mut self, a: &V, bits: u32) -> V {
        // A 32-bit context field may be a 64-bit packet pointer: it is that wide already.
        if a.bits >= bits {
            return a.clone();
        }
        self.text.bits(bits, format!("((_ zero_extend {}) {})", bits - a.bits, a.name))
    }
    fn sext(&mut self, a: &V, bits: u32) -> V {
        if a.bits >= bits {
            return a.clone();
        }
        self.text.bits(bits, format!("((_ sign_extend {}) {})", bits - a.bits, a.name))
    }
    fn concat(&mut self, high: &V, low: &V) -> V {
        self.text.bits(high.bits + low.bits, format!("(concat {} {})", high.name, low.name))
    }
    fn ite(&mut self, c: &Rc<str>, a: &V, b: &V) -> V {
        self.text.bits(a.bits, format!("(ite {c} {} {})", a.name, b.name))
    }
    fn eq(&mut self, a: &V, b: &V) -> Rc<str> {
        self.truth("=", a, b)
    }
    fn ult(&mut self, a: &V, b: &V) -> Rc<str> {
        self.truth("bvult", a, b)
    }
    fn slt(&mut self, a: &V, b: &V) -> Rc<str> {
        self.truth("bvslt", a, b)
    }
    fn not(&mut self, a: &Rc<str>) -> Rc<str> {
        self.text.define("Bool", format!("(not {a})"))
    }
}

impl Machine for Reference<'_> {
    type Stop = String;

    fn byte_order(&self) -> ByteOrder {
        self.order
    }

    fn get(&mut self, r: Reg) -> Result<V, String> {
        Ok(self.end.regs[r.index()].clone())
    }

    fn set(&mut self, r: Reg, v: V) {
        self.end.regs[r.index()] = v;
    }

    fn load(&mut self, base: &V, off: i16, size: Size) -> Result<V, String> {
        if let Some(k) = self.cell(off, size.bytes())? {
            return Ok(self.ctx_load(k, size.bytes()));
        }
        let start = self.address(base, off, size.bytes());
        Ok(self.read(&start, size.bytes()))
    }

    fn store(&mut self, base: &V, off: i16, size: Size, v: &V, _imm: bool) -> Result<(), String> {
        if let Some(k) = self.cell(off, size.bytes())? {
            self.end.stores.push((k, v.clone()));
            return Ok(());
        }
        let start = self.address(base, off, size.bytes());
        self.write(&start, size.bytes(), v);
        Ok(())
    }

    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &V,
        off: i16,
        size: Size,
        operand: &V,
        compare: Option<&V>,
    ) -> Result<V, String> {
        if self.cell(off, size.bytes())?.is_some() {
            return Err("an atomic on the context".into());
        }
        let start = self.address(base, off, size.bytes());
        let old = self.read(&start, size.bytes());
        let new = atomic_new(self, op, &old, operand, compare);
        self.write(&start, size.bytes(), &new);
        Ok(old)
    }

    fn fence(&mut self, _: &Self::V, _: i16, _: Size, _: Option<&Self::V>) -> Result<(), String> {
        Ok(())
    }

    fn call(&mut self, _: &Op) -> Result<(), String> {
        Err("a call".into())
    }

    fn legacy_load(&mut self, _: Size, _: Option<&V>, _: i32) -> Result<(), String> {
        Err("a legacy packet load".into())
    }

    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<V, String> {
        Ok(match symbol(kind, imm, link) {
            None => self.constant(64, imm),
            Some((key, offset)) => {
                let base = self.text.unknown(key, 64);
                let offset = self.constant(64, offset as u64);
                self.add(&base, &offset)
            }
        })
    }

    fn addr_space_cast(&mut self, _: &V, _: u32) -> Result<V, String> {
        Err("an address space cast".into())
    }

    fn core_op(&mut self, _: &Op) -> Result<(), String> {
        Err("a CO-RE instruction".into())
    }
}
