//! The instruction semantics over several inputs at once.
//!
//! A value is one number per lane, and [`bpf_semantics::exec`], the one definition of the
//! instructions, runs over it: [`Lanes`] is its domain, [`LaneMachine`] its machine. What memory is,
//! the machine leaves to a [`Memory`]: the sparse one in which the original is watched, or the
//! sandbox in which candidates run.

use std::convert::Infallible;

use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, Size};
use bpf_program::{Link, Op};
use bpf_semantics::{Domain, Machine, atomic_new};

use crate::rng::mix;

/// A bit vector per lane; bits above the width are zero.
#[derive(Clone, Copy, Debug)]
pub struct Lanes<const N: usize> {
    /// Width of each.
    pub bits: u32,
    /// The numbers.
    pub v: [u64; N],
}

/// The low `bits` bits set; `bits` is 1 to 64.
#[inline(always)]
pub(crate) const fn ones(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

#[inline(always)]
fn signed(bits: u32, v: u64) -> i64 {
    let up = 64 - bits;
    ((v << up) as i64) >> up
}

impl<const N: usize> Lanes<N> {
    /// The same number in every lane.
    #[inline(always)]
    pub fn splat(bits: u32, v: u64) -> Lanes<N> {
        Lanes { bits, v: [v & ones(bits); N] }
    }

    #[inline(always)]
    fn zip(&self, o: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let mask = ones(self.bits);
        let mut v = [0; N];
        for (i, x) in v.iter_mut().enumerate() {
            *x = f(self.v[i], o.v[i]) & mask;
        }
        Lanes { bits: self.bits, v }
    }

    #[inline(always)]
    fn map(&self, bits: u32, f: impl Fn(u64) -> u64) -> Self {
        let mask = ones(bits);
        Lanes { bits, v: self.v.map(|x| f(x) & mask) }
    }

    #[inline(always)]
    fn test(&self, o: &Self, f: impl Fn(u64, u64) -> bool) -> [u64; N] {
        let mut v = [0; N];
        for (i, x) in v.iter_mut().enumerate() {
            *x = 0u64.wrapping_sub(u64::from(f(self.v[i], o.v[i])));
        }
        v
    }
}

/// What loads and stores do. A fault does not stop the run: it is counted.
pub trait Memory<const N: usize> {
    /// `size` bytes at the addresses: usually `8 * size` bits, 64 where a context field is a pointer.
    fn load(&mut self, addr: &[u64; N], size: Size, world: &[u64; N]) -> Lanes<N>;
    /// Writes them; `true` if it changed nothing here but is an event to be noted.
    fn store(&mut self, addr: &[u64; N], size: Size, v: &Lanes<N>) -> Stored;
    /// What the loader puts into an instruction.
    fn symbol(&mut self, link: &Link) -> [u64; N];
}

/// Where a store went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Into memory.
    Memory,
    /// To this context field, which is an event.
    Field(u32),
}

/// Registers r0 … r10, and the history of events in the place of an eleventh.
pub type Regs<const N: usize> = [[u64; N]; 12];

/// Index of the history.
pub const WORLD: usize = 11;

/// Registers over a memory.
pub struct LaneMachine<'m, const N: usize, M> {
    /// Registers.
    pub regs: Regs<N>,
    /// Memory.
    pub memory: &'m mut M,
}

impl<const N: usize, M> LaneMachine<'_, N, M> {
    /// Notes an event in the history.
    fn event(&mut self, what: u64, v: &[u64; N]) {
        for (w, v) in self.regs[WORLD].iter_mut().zip(v) {
            *w = mix(mix(*w, what), *v);
        }
    }
}

impl<const N: usize, M: Memory<N>> Domain for LaneMachine<'_, N, M> {
    type V = Lanes<N>;
    /// All ones for true.
    type B = [u64; N];

    #[inline(always)]
    fn constant(&mut self, bits: u32, v: u64) -> Lanes<N> {
        Lanes::splat(bits, v)
    }
    #[inline(always)]
    fn add(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, u64::wrapping_add)
    }
    #[inline(always)]
    fn sub(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, u64::wrapping_sub)
    }
    #[inline(always)]
    fn mul(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, u64::wrapping_mul)
    }
    #[inline(always)]
    fn udiv(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x.checked_div(y).unwrap_or(0))
    }
    #[inline(always)]
    fn urem(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x.checked_rem(y).unwrap_or(0))
    }
    #[inline(always)]
    fn sdiv(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        let bits = a.bits;
        a.zip(b, |x, y| if y == 0 { 0 } else { signed(bits, x).wrapping_div(signed(bits, y)) as u64 })
    }
    #[inline(always)]
    fn srem(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        let bits = a.bits;
        a.zip(b, |x, y| if y == 0 { 0 } else { signed(bits, x).wrapping_rem(signed(bits, y)) as u64 })
    }
    #[inline(always)]
    fn and(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x & y)
    }
    #[inline(always)]
    fn or(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x | y)
    }
    #[inline(always)]
    fn xor(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x ^ y)
    }
    #[inline(always)]
    fn shl(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x << (y & 63))
    }
    #[inline(always)]
    fn lshr(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        a.zip(b, |x, y| x >> (y & 63))
    }
    #[inline(always)]
    fn ashr(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        let bits = a.bits;
        a.zip(b, |x, y| (signed(bits, x) >> (y & 63)) as u64)
    }
    #[inline(always)]
    fn extract(&mut self, a: &Lanes<N>, lo: u32, bits: u32) -> Lanes<N> {
        a.map(bits, |x| x >> lo)
    }
    #[inline(always)]
    fn zext(&mut self, a: &Lanes<N>, bits: u32) -> Lanes<N> {
        Lanes { bits, v: a.v }
    }
    #[inline(always)]
    fn sext(&mut self, a: &Lanes<N>, bits: u32) -> Lanes<N> {
        let from = a.bits;
        a.map(bits, |x| signed(from, x) as u64)
    }
    #[inline(always)]
    fn concat(&mut self, high: &Lanes<N>, low: &Lanes<N>) -> Lanes<N> {
        let mut v = low.v;
        for (x, h) in v.iter_mut().zip(&high.v) {
            *x |= h << low.bits;
        }
        Lanes { bits: high.bits + low.bits, v }
    }
    #[inline(always)]
    fn ite(&mut self, c: &[u64; N], a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        let mut v = [0; N];
        for (i, x) in v.iter_mut().enumerate() {
            *x = (a.v[i] & c[i]) | (b.v[i] & !c[i]);
        }
        Lanes { bits: a.bits, v }
    }
    #[inline(always)]
    fn eq(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> [u64; N] {
        a.test(b, |x, y| x == y)
    }
    #[inline(always)]
    fn ult(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> [u64; N] {
        a.test(b, |x, y| x < y)
    }
    #[inline(always)]
    fn slt(&mut self, a: &Lanes<N>, b: &Lanes<N>) -> [u64; N] {
        let bits = a.bits;
        a.test(b, |x, y| signed(bits, x) < signed(bits, y))
    }
    #[inline(always)]
    fn not(&mut self, a: &[u64; N]) -> [u64; N] {
        a.map(|x| !x)
    }
}

/// `base + off` in every lane.
#[inline(always)]
fn address<const N: usize>(base: &Lanes<N>, off: i16) -> [u64; N] {
    base.v.map(|x| x.wrapping_add(i64::from(off) as u64))
}

impl<const N: usize, M: Memory<N>> Machine for LaneMachine<'_, N, M> {
    type Stop = Infallible;

    #[inline(always)]
    fn get(&mut self, r: Reg) -> Result<Lanes<N>, Infallible> {
        Ok(Lanes { bits: 64, v: self.regs[r.index()] })
    }

    #[inline(always)]
    fn set(&mut self, r: Reg, v: Lanes<N>) {
        self.regs[r.index()] = v.v;
    }

    #[inline(always)]
    fn load(&mut self, base: &Lanes<N>, off: i16, size: Size) -> Result<Lanes<N>, Infallible> {
        Ok(self.memory.load(&address(base, off), size, &self.regs[WORLD]))
    }

    #[inline(always)]
    fn store(&mut self, base: &Lanes<N>, off: i16, size: Size, v: &Lanes<N>, _imm: bool) -> Result<(), Infallible> {
        if let Stored::Field(field) = self.memory.store(&address(base, off), size, v) {
            self.event(u64::from(field) << 8 | u64::from(size.bytes()), &v.v);
        }
        Ok(())
    }

    #[inline(never)]
    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &Lanes<N>,
        off: i16,
        size: Size,
        operand: &Lanes<N>,
        compare: Option<&Lanes<N>>,
    ) -> Result<Lanes<N>, Infallible> {
        let addr = address(base, off);
        let old = self.memory.load(&addr, size, &self.regs[WORLD]);
        let old = Lanes { bits: size.bits(), ..old };
        let new = atomic_new(self, op, &old, operand, compare);
        self.memory.store(&addr, size, &new);
        Ok(old)
    }

    #[inline(always)]
    fn fence(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    /// Windows have no calls.
    fn call(&mut self, _op: &Op) -> Result<(), Infallible> {
        Ok(())
    }

    /// Windows have no legacy loads.
    fn legacy_load(&mut self, _: Size, _: Option<&Lanes<N>>, _: i32) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline(never)]
    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<Lanes<N>, Infallible> {
        Ok(match link {
            Some(link) => Lanes { bits: 64, v: self.memory.symbol(link) },
            None if kind == Imm64Kind::Const => Lanes::splat(64, imm),
            None => Lanes::splat(64, mix(kind as u64 + 1, imm)),
        })
    }

    #[inline(never)]
    fn addr_space_cast(&mut self, v: &Lanes<N>, imm: u32) -> Result<Lanes<N>, Infallible> {
        Ok(v.map(64, |x| mix(u64::from(imm), x)))
    }

    /// What CO-RE patches is some function of its inputs, the same for every copy.
    #[inline(never)]
    fn core_op(&mut self, op: &Op) -> Result<(), Infallible> {
        let mut v = [0x6a09_e667_f3bc_c908; N];
        if let Some(link) = &op.link {
            v = self.memory.symbol(link);
        }
        for r in op.insn.uses().iter() {
            for (x, y) in v.iter_mut().zip(&self.regs[r.index()]) {
                *x = mix(*x, *y);
            }
        }
        match op.insn {
            Insn::Mov { width: bpf_isa::Width::W32, dst, .. } | Insn::Alu { width: bpf_isa::Width::W32, dst, .. } => {
                self.set(dst, Lanes { bits: 64, v: v.map(|x| x & ones(32)) });
            }
            _ => match op.insn.def() {
                Some(dst) => self.set(dst, Lanes { bits: 64, v }),
                None => self.event(1, &v),
            },
        }
        Ok(())
    }
}
