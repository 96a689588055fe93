//! The instruction semantics over several inputs at once.
//!
//! A value is one number per lane, and [`bpf_semantics::exec`], the one definition of the
//! instructions, runs over it: [`Lanes`] is its domain, [`LaneMachine`] its machine. What memory is,
//! the machine leaves to a [`Memory`]: the sparse one in which the original is watched, or the
//! sandbox in which candidates run.

use std::convert::Infallible;

use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, Size};
use bpf_program::{ByteOrder, Link, Op};
use bpf_prove::superblock::SideExit;
use bpf_semantics::{Domain, Machine, atomic_new, branch};

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

/// An array made lane by lane. [`std::array::from_fn`] and `map` are often not inlined, and then not
/// vectorized either.
#[inline(always)]
pub(crate) fn lanes<const N: usize, T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut v = [T::default(); N];
    for (i, x) in v.iter_mut().enumerate() {
        *x = f(i);
    }
    v
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
        Lanes { bits: self.bits, v: lanes(|i| f(self.v[i], o.v[i]) & mask) }
    }

    #[inline(always)]
    fn map(&self, bits: u32, f: impl Fn(u64) -> u64) -> Self {
        let mask = ones(bits);
        Lanes { bits, v: lanes(|i| f(self.v[i]) & mask) }
    }

    #[inline(always)]
    fn test(&self, o: &Self, f: impl Fn(u64, u64) -> bool) -> [u64; N] {
        lanes(|i| 0u64.wrapping_sub(u64::from(f(self.v[i], o.v[i]))))
    }
}

/// What loads and stores do. A fault does not stop the run: it is counted.
pub trait Memory<const N: usize> {
    /// The order of the bytes of values in it.
    fn byte_order(&self) -> ByteOrder;
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

/// Registers r0 … r10, the history of events in the place of an eleventh, and the turns taken.
pub const PLACES: usize = 13;

/// Their values.
pub type Regs<const N: usize> = [[u64; N]; PLACES];

/// Where a machine keeps its registers.
pub trait Registers<const N: usize> {
    /// The value in a register.
    fn read(&self, r: usize) -> &[u64; N];
    /// Sets it.
    fn write(&mut self, r: usize, v: [u64; N]);
}

impl<const N: usize> Registers<N> for Regs<N> {
    #[inline(always)]
    fn read(&self, r: usize) -> &[u64; N] {
        &self[r]
    }

    #[inline(always)]
    fn write(&mut self, r: usize, v: [u64; N]) {
        self[r] = v;
    }
}

/// Index of the history.
pub const WORLD: usize = 11;

/// Index of the turns: a bit for each side exit of a superblock, by its place.
pub const TURNS: usize = 12;

/// Values that one operation can set: a register and the history.
pub const SETS: usize = 2;

/// Where each register's value is, among [`File`]'s values.
pub type Map = [u16; PLACES];

/// Registers, renamed: each operation has places of its own for what it sets, so that the state before
/// an operation is a map of a few bytes. Values below `fresh` are those of the program before.
pub struct File<'m, const N: usize> {
    /// Values of the program before.
    pub old: &'m [[u64; N]],
    /// Values of this one.
    pub new: &'m mut [[u64; N]],
    /// First place of this program's values.
    pub fresh: usize,
    /// Where the registers are.
    pub map: Map,
    /// Where the next value goes.
    pub next: usize,
}

impl<const N: usize> Registers<N> for File<'_, N> {
    #[inline(always)]
    fn read(&self, r: usize) -> &[u64; N] {
        let at = usize::from(self.map[r]);
        if at >= self.fresh { &self.new[at] } else { &self.old[at] }
    }

    #[inline(always)]
    fn write(&mut self, r: usize, v: [u64; N]) {
        self.new[self.next] = v;
        self.map[r] = self.next as u16;
        self.next += 1;
    }
}

impl<const N: usize> File<'_, N> {
    /// Operation `i` begins.
    #[inline(always)]
    pub fn at(&mut self, i: usize) {
        self.next = PLACES + SETS * i;
    }
}

/// Registers over a memory.
pub struct LaneMachine<'m, const N: usize, M, R = Regs<N>> {
    /// Registers.
    pub regs: R,
    /// Memory.
    pub memory: &'m mut M,
}

impl<const N: usize, M, R: Registers<N>> LaneMachine<'_, N, M, R> {
    /// Notes an event in the history.
    #[inline(never)]
    fn event(&mut self, what: u64, v: &[u64; N]) {
        let w = *self.regs.read(WORLD);
        self.regs.write(WORLD, lanes(|i| mix(mix(w[i], what), v[i])));
    }
}

impl<const N: usize, M: Memory<N>, R: Registers<N>> LaneMachine<'_, N, M, R> {
    /// Notes the truth of the condition of the side exit that stands at `place`.
    #[inline(never)]
    pub fn turn(&mut self, op: &Op, place: usize) {
        let Some(SideExit { cond, width, dst, src, .. }) = SideExit::of(&op.insn) else { return };
        let Ok(c) = branch(self, cond, width, dst, src);
        let so_far = *self.regs.read(TURNS);
        let bit = 1u64 << (place % 64);
        self.regs.write(TURNS, lanes(|i| so_far[i] | (c[i] & bit)));
    }
}

impl<const N: usize, M: Memory<N>, R: Registers<N>> Domain for LaneMachine<'_, N, M, R> {
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
        Lanes { bits: high.bits + low.bits, v: lanes(|i| low.v[i] | high.v[i] << low.bits) }
    }
    #[inline(always)]
    fn ite(&mut self, c: &[u64; N], a: &Lanes<N>, b: &Lanes<N>) -> Lanes<N> {
        Lanes { bits: a.bits, v: lanes(|i| (a.v[i] & c[i]) | (b.v[i] & !c[i])) }
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
        lanes(|i| !a[i])
    }
}

/// `base + off` in every lane.
#[inline(always)]
fn address<const N: usize>(base: &Lanes<N>, off: i16) -> [u64; N] {
    lanes(|i| base.v[i].wrapping_add(i64::from(off) as u64))
}

impl<const N: usize, M: Memory<N>, R: Registers<N>> Machine for LaneMachine<'_, N, M, R> {
    type Stop = Infallible;

    #[inline(always)]
    fn byte_order(&self) -> ByteOrder {
        self.memory.byte_order()
    }

    #[inline(always)]
    fn get(&mut self, r: Reg) -> Result<Lanes<N>, Infallible> {
        Ok(Lanes { bits: 64, v: *self.regs.read(r.index()) })
    }

    #[inline(always)]
    fn set(&mut self, r: Reg, v: Lanes<N>) {
        self.regs.write(r.index(), v.v);
    }

    #[inline(always)]
    fn load(&mut self, base: &Lanes<N>, off: i16, size: Size) -> Result<Lanes<N>, Infallible> {
        Ok(self.memory.load(&address(base, off), size, self.regs.read(WORLD)))
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
        let old = self.memory.load(&addr, size, self.regs.read(WORLD));
        let old = Lanes { bits: size.bits(), ..old };
        let new = atomic_new(self, op, &old, operand, compare);
        self.memory.store(&addr, size, &new);
        Ok(old)
    }

    #[inline(always)]
    fn fence(&mut self, _: &Self::V, _: i16, _: Size, _: Option<&Self::V>) -> Result<(), Infallible> {
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
            for (x, y) in v.iter_mut().zip(self.regs.read(r.index())) {
                *x = mix(*x, *y);
            }
        }
        match op.insn {
            Insn::Mov { width: bpf_isa::Width::W32, dst, .. } | Insn::Alu { width: bpf_isa::Width::W32, dst, .. } => {
                self.set(dst, Lanes { bits: 64, v: lanes(|i| v[i] & ones(32)) });
            }
            _ => match op.insn.def() {
                Some(dst) => self.set(dst, Lanes { bits: 64, v }),
                None => self.event(1, &v),
            },
        }
        Ok(())
    }
}
