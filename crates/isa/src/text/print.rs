//! `Display` for [`Insn`]: the text `llvm-objdump -d` prints.
//!
//! One idea: a line is assembled from small printable operands (a hexadecimal number, a register of
//! some width, a memory operand), so that a quirk of LLVM's formatting is written down once.

use std::fmt;

use super::{ALU_TEXT, COND_TEXT, ENDIAN_TEXT, FETCH_TEXT, LOCK_TEXT, XCHG_TEXT};
use crate::slot::{IMM64_KINDS, number_of};
use crate::{AtomicOp, Call, Imm64Kind, Insn, Reg, Size, Src, Width};

/// A number the way LLVM prints immediates: `0x2a`, `-0x2a`.
struct Hex(i64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:#x}", if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs())
    }
}

/// A jump offset, always with its sign: `+0x5`, `-0x3`.
struct Rel(i32);

impl fmt::Display for Rel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:#x}", if self.0 < 0 { "-" } else { "+" }, self.0.unsigned_abs())
    }
}

/// A register under its 32- or 64-bit name.
struct Named(Width, Reg);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.0 == Width::W32 { 'w' } else { 'r' };
        write!(f, "{letter}{}", self.1.index())
    }
}

/// A second operand in an operation of some width.
struct Operand(Width, Src);

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Src::Reg(r) => Named(self.0, r).fmt(f),
            Src::Imm(i) => Hex(i.into()).fmt(f),
        }
    }
}

/// An address: `r1 + 0x4`, `r10 - 0x8`.
struct Addr(Reg, i16);

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:#x}", self.0, if self.1 < 0 { '-' } else { '+' }, self.1.unsigned_abs())
    }
}

/// A typed memory operand without the leading star: `(u32 *)(r1 + 0x4)`.
struct Mem(Size, Reg, i16);

impl fmt::Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(u{} *)({})", self.0.bits(), Addr(self.1, self.2))
    }
}

/// The spelling of `key` in a table.
fn spell<K: PartialEq>(table: &[(K, &'static str)], key: K) -> &'static str {
    number_of(table, key).unwrap_or("?")
}

/// The register name newer cpus use for a value of `size` bytes.
fn value(size: Size, reg: Reg) -> Named {
    Named(if size == Size::DW { Width::W64 } else { Width::W32 }, reg)
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Insn::Alu { op, width, dst, src } => {
                write!(f, "{} {} {}", Named(width, dst), spell(&ALU_TEXT, op), Operand(width, src))
            }
            Insn::Mov { width, dst, src } => write!(f, "{} = {}", Named(width, dst), Operand(width, src)),
            Insn::MovSx { width, from, dst, src } => {
                write!(f, "{} = (s{}){}", Named(width, dst), from.bits(), Named(width, src))
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", Named(width, dst)),
            Insn::Endian { kind, bits, dst } => write!(f, "{dst} = {}{bits} {dst}", spell(&ENDIAN_TEXT, kind)),
            Insn::AddrSpaceCast { dst, src, imm } => {
                write!(f, "{dst} = addr_space_cast({src}, {:#x}, {:#x})", imm >> 16, imm & 0xffff)
            }
            Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm } => write!(f, "{dst} = {} ll", Hex(imm as i64)),
            Insn::LoadImm64 { dst, kind, imm } => {
                let kind = number_of(&IMM64_KINDS, kind).unwrap_or(0);
                write!(f, "ld_pseudo\t{dst}, {kind:#x}, {:#x}", imm as u32)
            }
            Insn::Load { size, sext: false, dst, base, off } => write!(f, "{dst} = *{}", Mem(size, base, off)),
            Insn::Load { size, sext: true, dst, base, off } => {
                write!(f, "{dst} = *(s{} *)({})", size.bits(), Addr(base, off))
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*{} = {}", Mem(size, base, off), Operand(Width::W64, src))
            }
            Insn::Atomic { op, size, base, off, src } => atomic(f, op, size, base, off, src),
            Insn::LoadAcquire { size, dst, base, off } => {
                write!(f, "{} = load_acquire({})", value(size, dst), Mem(size, base, off))
            }
            Insn::StoreRelease { size, base, off, src } => {
                write!(f, "store_release({}, {})", Mem(size, base, off), value(size, src))
            }
            Insn::LdAbs { size, imm } => write!(f, "r0 = *(u{} *)skb[{}]", size.bits(), Hex(imm.into())),
            Insn::LdInd { size, src, imm: 0 } => write!(f, "r0 = *(u{} *)skb[{src}]", size.bits()),
            // LLVM prints no offset here; dropping a nonzero one would misstate the instruction.
            Insn::LdInd { size, src, imm } => {
                let sign = if imm < 0 { '-' } else { '+' };
                write!(f, "r0 = *(u{} *)skb[{src} {sign} {:#x}]", size.bits(), imm.unsigned_abs())
            }
            Insn::Ja { off, long } => write!(f, "{} {}", if long { "gotol" } else { "goto" }, Rel(off)),
            Insn::Jcc { cond, width, dst, src, off } => {
                let (dst, src) = (Named(width, dst), Operand(width, src));
                write!(f, "if {dst} {} {src} goto {}", spell(&COND_TEXT, cond), Rel(off.into()))
            }
            Insn::MayGoto { off } => write!(f, "may_goto {}", Rel(off.into())),
            Insn::Call(Call::Helper(n) | Call::Local(n) | Call::Kfunc { btf_id: n, .. }) => {
                write!(f, "call {}", Hex(n.into()))
            }
            Insn::CallX { reg } => write!(f, "callx {reg}"),
            Insn::Exit => f.write_str("exit"),
            Insn::Opaque(_) => f.write_str("<unknown>"),
        }
    }
}

fn atomic(f: &mut fmt::Formatter<'_>, op: AtomicOp, size: Size, base: Reg, off: i16, src: Reg) -> fmt::Result {
    let reg = value(size, src);
    match op {
        // The one 4-byte atomic old cpus have, printed with the old register name.
        AtomicOp::Add { fetch: false } => write!(f, "lock *{} += {src}", Mem(size, base, off)),
        AtomicOp::Or { fetch: false } | AtomicOp::And { fetch: false } | AtomicOp::Xor { fetch: false } => {
            write!(f, "lock *{} {} {reg}", Mem(size, base, off), spell(&LOCK_TEXT, op))
        }
        AtomicOp::Xchg => write!(f, "{reg} = {}({}, {reg})", exchange(op, size), Addr(base, off)),
        AtomicOp::CmpXchg => {
            let old = value(size, Reg::R0);
            write!(f, "{old} = {}({}, {old}, {reg})", exchange(op, size), Addr(base, off))
        }
        _ => write!(f, "{reg} = {}({}, {reg})", spell(&FETCH_TEXT, op), Mem(size, base, off)),
    }
}

/// The name of an exchange of `size` bytes.
fn exchange(op: AtomicOp, size: Size) -> &'static str {
    spell(&XCHG_TEXT, (op, size))
}
