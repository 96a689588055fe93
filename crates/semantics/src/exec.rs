//! The instruction semantics (RFC 9669 §4 and §5; Linux `kernel/bpf/core.c`, `___bpf_prog_run`).

use bpf_isa::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{ByteOrder, Link, Op};

use crate::Domain;

/// A place to execute: registers, memory, and what calls do.
pub trait Machine: Domain {
    /// Why execution cannot go on: a fault, or something the machine does not model.
    type Stop;

    /// Value of a register, 64 bits.
    ///
    /// # Errors
    /// If it may be uninitialized.
    fn get(&mut self, r: Reg) -> Result<Self::V, Self::Stop>;
    /// Sets a register to a 64-bit value.
    fn set(&mut self, r: Reg, v: Self::V);
    /// The order of the bytes of values in memory.
    fn byte_order(&self) -> ByteOrder;
    /// `size` bytes at `base + off`, as a value of `8 * size` bits, in the machine's byte order.
    ///
    /// # Errors
    /// If the access may fault or is not modelled.
    fn load(&mut self, base: &Self::V, off: i16, size: Size) -> Result<Self::V, Self::Stop>;
    /// Writes a value of `8 * size` bits at `base + off`. `imm` tells that the source is an immediate
    /// (kernels refuse that on some memory).
    ///
    /// # Errors
    /// As [`Machine::load`].
    fn store(&mut self, base: &Self::V, off: i16, size: Size, v: &Self::V, imm: bool) -> Result<(), Self::Stop>;
    /// An atomic read-modify-write: returns the old value after storing. `new` computes the value
    /// stored from the old one; `op` is the whole instruction, `operand` its source (`size` bits).
    ///
    /// # Errors
    /// As [`Machine::load`].
    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &Self::V,
        off: i16,
        size: Size,
        operand: &Self::V,
        compare: Option<&Self::V>,
    ) -> Result<Self::V, Self::Stop>;
    /// r0 after a 32-bit compare-and-exchange that found `old`: zero-extended (RFC 9669 §4.1). What is to hold
    /// on real kernels should not rely on it: on x86 a successful exchange leaves the register alone, and the
    /// verifier, which adds the extension, does not always see that the upper half is read (Linux 6.18).
    fn cmpxchg_result(&mut self, old: &Self::V) -> Self::V {
        self.zext(old, 64)
    }
    /// What a load-acquire or a store-release does besides its access, which orders others: called before the
    /// load, and after the store of `released` (`8 * size` bits).
    ///
    /// # Errors
    /// If it is not modelled.
    fn fence(&mut self, base: &Self::V, off: i16, size: Size, released: Option<&Self::V>) -> Result<(), Self::Stop>;
    /// A call of any kind: reads its arguments, clobbers r1 … r5, defines r0.
    ///
    /// # Errors
    /// If it is not modelled or may fault.
    fn call(&mut self, op: &Op) -> Result<(), Self::Stop>;
    /// `ld_abs` / `ld_ind`: r0 gets the value, r1 … r5 are clobbered; on failure the program exits
    /// with 0.
    ///
    /// # Errors
    /// If it is not modelled.
    fn legacy_load(&mut self, size: Size, index: Option<&Self::V>, imm: i32) -> Result<(), Self::Stop>;
    /// The value of an `ld_imm64`.
    ///
    /// # Errors
    /// If it is not modelled.
    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<Self::V, Self::Stop>;
    /// `addr_space_cast`.
    ///
    /// # Errors
    /// If it is not modelled.
    fn addr_space_cast(&mut self, v: &Self::V, imm: u32) -> Result<Self::V, Self::Stop>;
    /// An instruction patched by a CO-RE relocation: its immediate, offset or width is unknown.
    ///
    /// # Errors
    /// If it is not modelled.
    fn core_op(&mut self, op: &Op) -> Result<(), Self::Stop>;
}

/// `dst op src` for 64-bit operands; the result is 64 bits, zero-extended for 32-bit operations.
pub fn alu<D: Domain + ?Sized>(d: &mut D, op: AluOp, width: Width, dst: &D::V, src: &D::V) -> D::V {
    let bits = width.bits();
    let (a, b) = match width {
        Width::W64 => (dst.clone(), src.clone()),
        Width::W32 => (d.extract(dst, 0, 32), d.extract(src, 0, 32)),
    };
    let r = match op {
        AluOp::Add => d.add(&a, &b),
        AluOp::Sub => d.sub(&a, &b),
        AluOp::Mul => d.mul(&a, &b),
        AluOp::Or => d.or(&a, &b),
        AluOp::And => d.and(&a, &b),
        AluOp::Xor => d.xor(&a, &b),
        AluOp::Div | AluOp::SDiv => {
            let zero = d.constant(bits, 0);
            let by_zero = d.eq(&b, &zero);
            let q = if op == AluOp::Div { d.udiv(&a, &b) } else { d.sdiv(&a, &b) };
            d.ite(&by_zero, &zero, &q)
        }
        AluOp::Mod | AluOp::SMod => {
            let zero = d.constant(bits, 0);
            let by_zero = d.eq(&b, &zero);
            let r = if op == AluOp::Mod { d.urem(&a, &b) } else { d.srem(&a, &b) };
            d.ite(&by_zero, &a, &r)
        }
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => {
            let mask = d.constant(bits, u64::from(bits - 1));
            let amount = d.and(&b, &mask);
            match op {
                AluOp::Lsh => d.shl(&a, &amount),
                AluOp::Rsh => d.lshr(&a, &amount),
                _ => d.ashr(&a, &amount),
            }
        }
    };
    d.zext(&r, 64)
}

/// `a cond b` for 64-bit operands, of which 32-bit comparisons read the low half.
pub fn compare<D: Domain + ?Sized>(d: &mut D, cond: Cond, width: Width, a: &D::V, b: &D::V) -> D::B {
    let (a, b) = match width {
        Width::W64 => (a.clone(), b.clone()),
        Width::W32 => (d.extract(a, 0, 32), d.extract(b, 0, 32)),
    };
    match cond {
        Cond::Eq => d.eq(&a, &b),
        Cond::Ne => {
            let e = d.eq(&a, &b);
            d.not(&e)
        }
        Cond::Lt => d.ult(&a, &b),
        Cond::Gt => d.ult(&b, &a),
        Cond::Ge => {
            let l = d.ult(&a, &b);
            d.not(&l)
        }
        Cond::Le => {
            let l = d.ult(&b, &a);
            d.not(&l)
        }
        Cond::Slt => d.slt(&a, &b),
        Cond::Sgt => d.slt(&b, &a),
        Cond::Sge => {
            let l = d.slt(&a, &b);
            d.not(&l)
        }
        Cond::Sle => {
            let l = d.slt(&b, &a);
            d.not(&l)
        }
        Cond::Set => {
            let both = d.and(&a, &b);
            let zero = d.constant(width.bits(), 0);
            let none = d.eq(&both, &zero);
            d.not(&none)
        }
    }
}

/// The truth of a conditional jump in `m`'s state.
///
/// # Errors
/// If an operand cannot be read.
pub fn branch<M: Machine + ?Sized>(m: &mut M, cond: Cond, width: Width, dst: Reg, src: Src) -> Result<M::B, M::Stop> {
    let a = m.get(dst)?;
    let b = operand(m, src)?;
    Ok(compare(m, cond, width, &a, &b))
}

/// A register's value, or an immediate sign-extended to 64 bits.
fn operand<M: Machine + ?Sized>(m: &mut M, src: Src) -> Result<M::V, M::Stop> {
    match src {
        Src::Reg(r) => m.get(r),
        Src::Imm(i) => Ok(m.constant(64, i64::from(i) as u64)),
    }
}

/// Swaps the bytes of a value whose width is a multiple of 8.
fn byte_swap<D: Domain + ?Sized>(d: &mut D, v: &D::V, bits: u32) -> D::V {
    let mut out = d.extract(v, 0, 8);
    for lo in (8..bits).step_by(8) {
        let byte = d.extract(v, lo, 8);
        out = d.concat(&out, &byte);
    }
    out
}

/// Executes one non-terminator instruction in `m`.
///
/// # Errors
/// What the machine reports. Jumps and `exit` are terminators and are not executed here; handed one,
/// this does nothing.
pub fn exec<M: Machine + ?Sized>(m: &mut M, op: &Op) -> Result<(), M::Stop> {
    if op.is_core() {
        return m.core_op(op);
    }
    match op.insn {
        Insn::Alu { op, width, dst, src } => {
            let a = m.get(dst)?;
            let b = operand(m, src)?;
            let r = alu(m, op, width, &a, &b);
            m.set(dst, r);
        }
        Insn::Mov { width, dst, src } => {
            let v = operand(m, src)?;
            let v = match width {
                Width::W64 => v,
                Width::W32 => {
                    let low = m.extract(&v, 0, 32);
                    m.zext(&low, 64)
                }
            };
            m.set(dst, v);
        }
        Insn::MovSx { width, from, dst, src } => {
            let v = m.get(src)?;
            let low = m.extract(&v, 0, from.bits());
            let wide = m.sext(&low, width.bits());
            let r = m.zext(&wide, 64);
            m.set(dst, r);
        }
        Insn::Neg { width, dst } => {
            let v = m.get(dst)?;
            let zero = m.constant(64, 0);
            let r = alu(m, AluOp::Sub, width, &zero, &v);
            m.set(dst, r);
        }
        Insn::Endian { kind, bits, dst } => {
            let v = m.get(dst)?;
            let low = m.extract(&v, 0, u32::from(bits));
            let swaps = match kind {
                Endian::Le => m.byte_order() != ByteOrder::Little,
                Endian::Be => m.byte_order() != ByteOrder::Big,
                Endian::Swap => true,
            };
            let r = if swaps { byte_swap(m, &low, u32::from(bits)) } else { low };
            let r = m.zext(&r, 64);
            m.set(dst, r);
        }
        Insn::AddrSpaceCast { dst, src, imm } => {
            let v = m.get(src)?;
            let r = m.addr_space_cast(&v, imm)?;
            m.set(dst, r);
        }
        Insn::LoadImm64 { dst, kind, imm } => {
            let r = m.load_imm64(kind, imm, op.link.as_ref())?;
            m.set(dst, r);
        }
        Insn::Load { size, sext, dst, base, off } => {
            let base = m.get(base)?;
            let v = m.load(&base, off, size)?;
            // What the verifier translates may be wider than the access.
            let r = if sext {
                let low = m.extract(&v, 0, size.bits());
                m.sext(&low, 64)
            } else {
                m.zext(&v, 64)
            };
            m.set(dst, r);
        }
        Insn::Store { size, base, off, src } => {
            let base = m.get(base)?;
            let v = operand(m, src)?;
            let v = m.extract(&v, 0, size.bits());
            m.store(&base, off, size, &v, matches!(src, Src::Imm(_)))?;
        }
        Insn::LoadAcquire { size, dst, base, off } => {
            let base = m.get(base)?;
            m.fence(&base, off, size, None)?;
            let v = m.load(&base, off, size)?;
            let r = m.zext(&v, 64);
            m.set(dst, r);
        }
        Insn::StoreRelease { size, base, off, src } => {
            let base = m.get(base)?;
            let v = m.get(src)?;
            let v = m.extract(&v, 0, size.bits());
            m.store(&base, off, size, &v, false)?;
            m.fence(&base, off, size, Some(&v))?;
        }
        Insn::Atomic { op, size, base, off, src } => atomic(m, op, size, base, off, src)?,
        Insn::LdAbs { size, imm } => m.legacy_load(size, None, imm)?,
        Insn::LdInd { size, src, imm } => {
            let index = m.get(src)?;
            m.legacy_load(size, Some(&index), imm)?;
        }
        Insn::Call(_) | Insn::CallX { .. } => m.call(op)?,
        Insn::Ja { .. } | Insn::Jcc { .. } | Insn::MayGoto { .. } | Insn::Exit | Insn::Opaque(_) => {}
    }
    Ok(())
}

fn atomic<M: Machine + ?Sized>(
    m: &mut M,
    op: AtomicOp,
    size: Size,
    base: Reg,
    off: i16,
    src: Reg,
) -> Result<(), M::Stop> {
    let address = m.get(base)?;
    let source = m.get(src)?;
    let operand = m.extract(&source, 0, size.bits());
    let compare = match op {
        AtomicOp::CmpXchg => {
            let r0 = m.get(Reg::R0)?;
            Some(m.extract(&r0, 0, size.bits()))
        }
        _ => None,
    };
    let old = m.atomic(op, &address, off, size, &operand, compare.as_ref())?;
    let old = match (op, size) {
        (AtomicOp::CmpXchg, Size::W) => m.cmpxchg_result(&old),
        _ => m.zext(&old, 64),
    };
    match op {
        AtomicOp::CmpXchg => m.set(Reg::R0, old),
        AtomicOp::Xchg
        | AtomicOp::Add { fetch: true }
        | AtomicOp::Or { fetch: true }
        | AtomicOp::And { fetch: true }
        | AtomicOp::Xor { fetch: true } => m.set(src, old),
        _ => {}
    }
    Ok(())
}

/// The value an atomic stores, from the old one.
pub fn atomic_new<D: Domain + ?Sized>(
    d: &mut D,
    op: AtomicOp,
    old: &D::V,
    operand: &D::V,
    compare: Option<&D::V>,
) -> D::V {
    match op {
        AtomicOp::Add { .. } => d.add(old, operand),
        AtomicOp::Or { .. } => d.or(old, operand),
        AtomicOp::And { .. } => d.and(old, operand),
        AtomicOp::Xor { .. } => d.xor(old, operand),
        AtomicOp::Xchg => operand.clone(),
        AtomicOp::CmpXchg => match compare {
            Some(c) => {
                let same = d.eq(old, c);
                d.ite(&same, operand, old)
            }
            None => operand.clone(),
        },
    }
}
