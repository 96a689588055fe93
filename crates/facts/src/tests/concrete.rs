//! A concrete domain and machine, as small as can be, to hold the abstract one against.

use bpf_isa::{AtomicOp, Call, Imm64Kind, Insn, Reg, Size};
use bpf_program::{ByteOrder, Link, Op};
use bpf_semantics::{Domain, Machine, atomic_new};

use bpf_testgen::random::Rng;

/// Bit vectors `(width, value)`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Concrete;

type Bv = (u32, u64);

fn cut(bits: u32, v: u64) -> Bv {
    (bits, if bits >= 64 { v } else { v & ((1 << bits) - 1) })
}
fn signed(a: &Bv) -> i64 {
    ((a.1 << (64 - a.0)) as i64) >> (64 - a.0)
}

impl Domain for Concrete {
    type V = Bv;
    type B = bool;
    fn constant(&mut self, bits: u32, v: u64) -> Bv {
        cut(bits, v)
    }
    fn add(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1.wrapping_add(b.1))
    }
    fn sub(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1.wrapping_sub(b.1))
    }
    fn mul(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1.wrapping_mul(b.1))
    }
    fn udiv(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1.checked_div(b.1).unwrap_or(0))
    }
    fn urem(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1.checked_rem(b.1).unwrap_or(0))
    }
    fn sdiv(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, if b.1 == 0 { 0 } else { signed(a).wrapping_div(signed(b)) as u64 })
    }
    fn srem(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, if b.1 == 0 { 0 } else { signed(a).wrapping_rem(signed(b)) as u64 })
    }
    fn and(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1 & b.1)
    }
    fn or(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1 | b.1)
    }
    fn xor(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1 ^ b.1)
    }
    fn shl(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1 << b.1)
    }
    fn lshr(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, a.1 >> b.1)
    }
    fn ashr(&mut self, a: &Bv, b: &Bv) -> Bv {
        cut(a.0, (signed(a) >> b.1) as u64)
    }
    fn extract(&mut self, a: &Bv, lo: u32, bits: u32) -> Bv {
        cut(bits, a.1 >> lo)
    }
    fn zext(&mut self, a: &Bv, bits: u32) -> Bv {
        cut(bits, a.1)
    }
    fn sext(&mut self, a: &Bv, bits: u32) -> Bv {
        cut(bits, signed(a) as u64)
    }
    fn concat(&mut self, high: &Bv, low: &Bv) -> Bv {
        cut(high.0 + low.0, high.1 << low.0 | low.1)
    }
    fn ite(&mut self, c: &bool, a: &Bv, b: &Bv) -> Bv {
        if *c { *a } else { *b }
    }
    fn eq(&mut self, a: &Bv, b: &Bv) -> bool {
        a.1 == b.1
    }
    fn ult(&mut self, a: &Bv, b: &Bv) -> bool {
        a.1 < b.1
    }
    fn slt(&mut self, a: &Bv, b: &Bv) -> bool {
        signed(a) < signed(b)
    }
    fn not(&mut self, a: &bool) -> bool {
        !a
    }
}

/// Where the frame of [`Cpu`] ends.
pub(crate) const R10: u64 = 0xffff_9000_0000_2000;

/// Registers and a stack; calls give random numbers.
#[derive(Clone)]
pub(crate) struct Cpu {
    pub(crate) regs: [u64; 11],
    pub(crate) stack: [u8; 512],
    /// Feeds call results: the same seed gives the same run.
    pub(crate) seed: u64,
    /// Of what is stored.
    pub(crate) order: ByteOrder,
}

/// An access outside the stack.
#[derive(Debug)]
pub(crate) struct Fault;

impl Cpu {
    pub(crate) fn new(rng: &mut Rng) -> Cpu {
        let mut regs = std::array::from_fn(|_| rng.number(64));
        regs[10] = R10;
        let stack = std::array::from_fn(|_| rng.next() as u8);
        Cpu { regs, stack, seed: rng.next() | 1, order: ByteOrder::Little }
    }

    /// The same of a machine with this byte order.
    pub(crate) fn in_order(self, order: ByteOrder) -> Cpu {
        Cpu { order, ..self }
    }

    fn place(&self, base: u64, off: i16, size: Size) -> Result<usize, Fault> {
        let at = base.wrapping_add(i64::from(off) as u64).wrapping_sub(R10 - 512);
        let end = at.checked_add(u64::from(size.bytes())).ok_or(Fault)?;
        if end <= 512 { Ok(at as usize) } else { Err(Fault) }
    }

    /// The number at frame offset `off`.
    pub(crate) fn stack_at(&self, off: i64, len: usize) -> u64 {
        let at = (off + 512) as usize;
        let bytes = self.stack[at..at + len].iter();
        let number = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self.order {
            ByteOrder::Little => bytes.rev().fold(0, number),
            ByteOrder::Big => bytes.fold(0, number),
        }
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $t:ty),*) -> $r:ty;)*) => {
        $(fn $name(&mut self, $($arg: $t),*) -> $r { Concrete.$name($($arg),*) })*
    };
}

impl Domain for Cpu {
    type V = Bv;
    type B = bool;
    delegate! {
        constant(bits: u32, v: u64) -> Bv;
        add(a: &Bv, b: &Bv) -> Bv;
        sub(a: &Bv, b: &Bv) -> Bv;
        mul(a: &Bv, b: &Bv) -> Bv;
        udiv(a: &Bv, b: &Bv) -> Bv;
        urem(a: &Bv, b: &Bv) -> Bv;
        sdiv(a: &Bv, b: &Bv) -> Bv;
        srem(a: &Bv, b: &Bv) -> Bv;
        and(a: &Bv, b: &Bv) -> Bv;
        or(a: &Bv, b: &Bv) -> Bv;
        xor(a: &Bv, b: &Bv) -> Bv;
        shl(a: &Bv, b: &Bv) -> Bv;
        lshr(a: &Bv, b: &Bv) -> Bv;
        ashr(a: &Bv, b: &Bv) -> Bv;
        extract(a: &Bv, lo: u32, bits: u32) -> Bv;
        zext(a: &Bv, bits: u32) -> Bv;
        sext(a: &Bv, bits: u32) -> Bv;
        concat(high: &Bv, low: &Bv) -> Bv;
        ite(c: &bool, a: &Bv, b: &Bv) -> Bv;
        eq(a: &Bv, b: &Bv) -> bool;
        ult(a: &Bv, b: &Bv) -> bool;
        slt(a: &Bv, b: &Bv) -> bool;
        not(a: &bool) -> bool;
    }
}

impl Machine for Cpu {
    type Stop = Fault;
    fn byte_order(&self) -> ByteOrder {
        self.order
    }
    fn get(&mut self, r: Reg) -> Result<Bv, Fault> {
        Ok((64, self.regs[r.index()]))
    }
    fn set(&mut self, r: Reg, v: Bv) {
        assert_eq!(v.0, 64);
        self.regs[r.index()] = v.1;
    }
    fn load(&mut self, base: &Bv, off: i16, size: Size) -> Result<Bv, Fault> {
        let at = self.place(base.1, off, size)?;
        Ok((size.bits(), self.stack_at(at as i64 - 512, size.bytes() as usize)))
    }
    fn store(&mut self, base: &Bv, off: i16, size: Size, v: &Bv, _imm: bool) -> Result<(), Fault> {
        let at = self.place(base.1, off, size)?;
        assert_eq!(v.0, size.bits());
        let n = size.bytes() as usize;
        for i in 0..n {
            let byte = if self.order == ByteOrder::Little { i } else { n - 1 - i };
            self.stack[at + i] = (v.1 >> (8 * byte)) as u8;
        }
        Ok(())
    }
    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &Bv,
        off: i16,
        size: Size,
        operand: &Bv,
        compare: Option<&Bv>,
    ) -> Result<Bv, Fault> {
        let old = self.load(base, off, size)?;
        let new = atomic_new(self, op, &old, operand, compare);
        self.store(base, off, size, &new, false)?;
        Ok(old)
    }
    fn fence(&mut self, _: &Self::V, _: i16, _: Size, _: Option<&Self::V>) -> Result<(), Fault> {
        Ok(())
    }
    fn call(&mut self, op: &Op) -> Result<(), Fault> {
        assert!(matches!(op.insn, Insn::Call(Call::Helper(_))));
        let mut rng = Rng::new(self.seed);
        self.regs[0] = rng.number(64);
        for r in &mut self.regs[1..6] {
            *r = rng.number(64);
        }
        self.seed = rng.next();
        Ok(())
    }
    fn legacy_load(&mut self, _: Size, _: Option<&Bv>, _: i32) -> Result<(), Fault> {
        Err(Fault)
    }
    fn load_imm64(&mut self, _: Imm64Kind, imm: u64, _: Option<&Link>) -> Result<Bv, Fault> {
        Ok((64, imm))
    }
    fn addr_space_cast(&mut self, _: &Bv, _: u32) -> Result<Bv, Fault> {
        Err(Fault)
    }
    fn core_op(&mut self, _: &Op) -> Result<(), Fault> {
        Err(Fault)
    }
}
