//! The instruction type and its operands, with the structural queries every client needs
//! (registers read and written, slots occupied, minimal cpu level).

use std::fmt;

/// One of the eleven registers r0 … r10. r10 is the read-only frame pointer (RFC 9669 §2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u8);

impl Reg {
    /// Return value of calls and of the program.
    pub const R0: Reg = Reg(0);
    /// First argument; the context at entry of a main program.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// Callee-saved.
    pub const R6: Reg = Reg(6);
    /// Callee-saved.
    pub const R7: Reg = Reg(7);
    /// Callee-saved.
    pub const R8: Reg = Reg(8);
    /// Callee-saved.
    pub const R9: Reg = Reg(9);
    /// The frame pointer, read-only.
    pub const R10: Reg = Reg(10);

    /// The register numbered `n`, or `None` above 10.
    pub const fn new(n: u8) -> Option<Reg> {
        if n <= 10 { Some(Reg(n)) } else { None }
    }

    /// The number, 0 … 10.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All eleven registers in order.
    pub fn all() -> impl DoubleEndedIterator<Item = Reg> {
        (0..=10).map(Reg)
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A set of registers as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RegSet(u16);

impl RegSet {
    /// No register.
    pub const EMPTY: RegSet = RegSet(0);
    /// r1 … r5: what a call may read as arguments, and what it clobbers.
    pub const ARGS: RegSet = RegSet(0b111110);
    /// r0 … r5: what a call leaves without a defined old value.
    pub const CALLER_SAVED: RegSet = RegSet(0b111111);
    /// All of r0 … r10.
    pub const ALL: RegSet = RegSet(0x7ff);

    /// The set holding one register.
    pub const fn of(r: Reg) -> RegSet {
        RegSet(1 << r.0)
    }
    /// r1 … rN.
    pub const fn first_args(n: usize) -> RegSet {
        RegSet(((1 << (n + 1)) - 1) & !1)
    }
    /// This set with `r` added.
    #[must_use]
    pub const fn with(self, r: Reg) -> RegSet {
        RegSet(self.0 | 1 << r.0)
    }
    /// This set with `r` removed.
    #[must_use]
    pub const fn without(self, r: Reg) -> RegSet {
        RegSet(self.0 & !(1 << r.0))
    }
    /// Set union.
    #[must_use]
    pub const fn union(self, o: RegSet) -> RegSet {
        RegSet(self.0 | o.0)
    }
    /// Set intersection.
    #[must_use]
    pub const fn intersect(self, o: RegSet) -> RegSet {
        RegSet(self.0 & o.0)
    }
    /// Set difference.
    #[must_use]
    pub const fn minus(self, o: RegSet) -> RegSet {
        RegSet(self.0 & !o.0)
    }
    /// Membership.
    pub const fn contains(self, r: Reg) -> bool {
        self.0 >> r.0 & 1 == 1
    }
    /// Whether no register is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// How many registers are in it.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Reg> {
        Reg::all().filter(move |r| self.contains(*r))
    }
    /// Adds `r` in place.
    pub fn insert(&mut self, r: Reg) {
        *self = self.with(r);
    }
    /// Removes `r` in place.
    pub fn remove(&mut self, r: Reg) {
        *self = self.without(r);
    }
}

impl fmt::Debug for RegSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Operation width of an ALU instruction or a conditional jump (classes ALU/JMP32 and ALU64/JMP).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Width {
    /// 32 bits; results are zero-extended to 64.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// 32 or 64.
    pub const fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }
}

/// Width of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Size {
    /// 1 byte.
    B,
    /// 2 bytes.
    H,
    /// 4 bytes.
    W,
    /// 8 bytes.
    DW,
}

impl Size {
    /// All sizes, ascending.
    pub const ALL: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];

    /// 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::DW => 8,
        }
    }
    /// 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }
    /// The size of `n` bytes, if there is one.
    pub const fn from_bytes(n: u32) -> Option<Size> {
        match n {
            1 => Some(Size::B),
            2 => Some(Size::H),
            4 => Some(Size::W),
            8 => Some(Size::DW),
            _ => None,
        }
    }
}

/// Two-operand arithmetic and logic. Division and modulo by zero are defined: `x / 0 = 0`,
/// `x % 0 = x` (RFC 9669 §4.1). Signed forms are cpu v4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    SDiv,
    Mod,
    SMod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
    Arsh,
}

impl AluOp {
    /// Every operation.
    pub const ALL: [AluOp; 13] = [
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::SDiv,
        AluOp::Mod,
        AluOp::SMod,
        AluOp::Or,
        AluOp::And,
        AluOp::Xor,
        AluOp::Lsh,
        AluOp::Rsh,
        AluOp::Arsh,
    ];
}

/// Condition of a conditional jump (RFC 9669 §4.3). `Set` is `dst & src != 0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Cond {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
    Sgt,
    Sge,
    Slt,
    Sle,
    Set,
}

impl Cond {
    /// Every condition.
    pub const ALL: [Cond; 11] = [
        Cond::Eq,
        Cond::Ne,
        Cond::Gt,
        Cond::Ge,
        Cond::Lt,
        Cond::Le,
        Cond::Sgt,
        Cond::Sge,
        Cond::Slt,
        Cond::Sle,
        Cond::Set,
    ];

    /// The condition true exactly when this one is false; `Set` has none.
    pub const fn negate(self) -> Option<Cond> {
        Some(match self {
            Cond::Eq => Cond::Ne,
            Cond::Ne => Cond::Eq,
            Cond::Gt => Cond::Le,
            Cond::Ge => Cond::Lt,
            Cond::Lt => Cond::Ge,
            Cond::Le => Cond::Gt,
            Cond::Sgt => Cond::Sle,
            Cond::Sge => Cond::Slt,
            Cond::Slt => Cond::Sge,
            Cond::Sle => Cond::Sgt,
            Cond::Set => return None,
        })
    }

    /// The condition `c'` with `a c b == b c' a`.
    pub const fn swap(self) -> Cond {
        match self {
            Cond::Eq => Cond::Eq,
            Cond::Ne => Cond::Ne,
            Cond::Gt => Cond::Lt,
            Cond::Ge => Cond::Le,
            Cond::Lt => Cond::Gt,
            Cond::Le => Cond::Ge,
            Cond::Sgt => Cond::Slt,
            Cond::Sge => Cond::Sle,
            Cond::Slt => Cond::Sgt,
            Cond::Sle => Cond::Sge,
            Cond::Set => Cond::Set,
        }
    }
}

/// Second operand: a register, or an immediate that sign-extends to the operation's width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Src {
    Reg(Reg),
    Imm(i32),
}

impl Src {
    /// The register, if it is one.
    pub const fn reg(self) -> Option<Reg> {
        match self {
            Src::Reg(r) => Some(r),
            Src::Imm(_) => None,
        }
    }
    /// The immediate, if it is one.
    pub const fn imm(self) -> Option<i32> {
        match self {
            Src::Reg(_) => None,
            Src::Imm(i) => Some(i),
        }
    }
}

/// Byte-order operation. `Le`/`Be` convert from host order (on the little-endian hosts we support
/// `Le` truncates), `Swap` always swaps (cpu v4). Results of 16 and 32 bits zero-extend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Endian {
    Le,
    Be,
    Swap,
}

/// Operation of an atomic read-modify-write (RFC 9669 §5.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum AtomicOp {
    /// `fetch` returns the old value in the source register.
    Add {
        fetch: bool,
    },
    Or {
        fetch: bool,
    },
    And {
        fetch: bool,
    },
    Xor {
        fetch: bool,
    },
    /// Always returns the old value in the source register.
    Xchg,
    /// Compares with r0, stores the source register if equal; r0 gets the old value.
    CmpXchg,
}

/// What the 64-bit immediate of an `ld_imm64` stands for: the `src_reg` field (RFC 9669 §5.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Imm64Kind {
    /// 0: the number itself (or, before relocation, an address the loader fills in).
    Const,
    /// 1: `BPF_PSEUDO_MAP_FD`.
    MapFd,
    /// 2: `BPF_PSEUDO_MAP_VALUE`: fd in the low half, offset in the high half.
    MapValue,
    /// 3: `BPF_PSEUDO_BTF_ID`: address of a kernel variable.
    BtfId,
    /// 4: `BPF_PSEUDO_FUNC`: address of a subprogram.
    Func,
    /// 5: `BPF_PSEUDO_MAP_IDX`.
    MapIdx,
    /// 6: `BPF_PSEUDO_MAP_IDX_VALUE`.
    MapIdxValue,
}

/// Target of a `call`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Call {
    /// `src = 0`: helper by number.
    Helper(i32),
    /// `src = 1`: subprogram; the immediate is relative to the next slot (or −1 before relocation).
    Local(i32),
    /// `src = 2`: kfunc by BTF id; `off` is the index into the fd array.
    Kfunc { btf_id: i32, off: i16 },
}

/// One instruction. Offsets of jumps are in slots, relative to the slot after the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Insn {
    /// `dst op= src`
    Alu { op: AluOp, width: Width, dst: Reg, src: Src },
    /// `dst = src`
    Mov { width: Width, dst: Reg, src: Src },
    /// `dst = (s8|s16|s32)src`, cpu v4. `from` is `B`, `H`, or (64-bit only) `W`.
    MovSx { width: Width, from: Size, dst: Reg, src: Reg },
    /// `dst = -dst`
    Neg { width: Width, dst: Reg },
    /// `dst = le16 dst`, `be32`, `bswap64` …; `bits` is 16, 32 or 64.
    Endian { kind: Endian, bits: u8, dst: Reg },
    /// `dst = addr_space_cast(src, to, from)`; `imm` holds `to << 16 | from`.
    AddrSpaceCast { dst: Reg, src: Reg, imm: u32 },
    /// `dst = imm ll`: one instruction, two slots.
    LoadImm64 { dst: Reg, kind: Imm64Kind, imm: u64 },
    /// `dst = *(size *)(base + off)`; `sext` is the cpu v4 sign-extending form (not for `DW`).
    Load { size: Size, sext: bool, dst: Reg, base: Reg, off: i16 },
    /// `*(size *)(base + off) = src`
    Store { size: Size, base: Reg, off: i16, src: Src },
    /// `lock *(size *)(base + off) op= src` and the fetching forms; `size` is `W` or `DW`.
    Atomic { op: AtomicOp, size: Size, base: Reg, off: i16, src: Reg },
    /// `dst = load_acquire((size *)(base + off))`, cpu v4.
    LoadAcquire { size: Size, dst: Reg, base: Reg, off: i16 },
    /// `store_release((size *)(base + off), src)`, cpu v4.
    StoreRelease { size: Size, base: Reg, off: i16, src: Reg },
    /// Legacy packet load: `r0 = *(size *)skb[imm]`, big-endian converted, r6 is the skb; exits with 0 on failure.
    LdAbs { size: Size, imm: i32 },
    /// Legacy packet load: `r0 = *(size *)skb[src + imm]`.
    LdInd { size: Size, src: Reg, imm: i32 },
    /// `goto off` (`long`: the 32-bit form `gotol`, cpu v4).
    Ja { off: i32, long: bool },
    /// `if dst cond src goto off`
    Jcc { cond: Cond, width: Width, dst: Reg, src: Src, off: i16 },
    /// `may_goto off`
    MayGoto { off: i16 },
    /// `call …`
    Call(Call),
    /// `callx reg`
    CallX { reg: Reg },
    /// `exit`
    Exit,
    /// A slot this crate does not understand, bit for bit (little-endian).
    Opaque(u64),
}

/// Where an access goes, how wide it is, and what it does there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOperand {
    /// Register that holds the address.
    pub base: Reg,
    /// Bytes from there.
    pub off: i16,
    /// Width.
    pub size: Size,
    /// Whether the memory is read.
    pub reads: bool,
    /// Whether it is written.
    pub writes: bool,
}

impl Insn {
    /// Slots occupied: 2 for `ld_imm64`, else 1.
    pub const fn slots(&self) -> usize {
        match self {
            Insn::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }

    /// The register this instruction defines with a new value, if exactly one. For calls see
    /// [`Insn::defs`].
    pub fn def(&self) -> Option<Reg> {
        match *self {
            Insn::Alu { dst, .. }
            | Insn::Mov { dst, .. }
            | Insn::MovSx { dst, .. }
            | Insn::Neg { dst, .. }
            | Insn::Endian { dst, .. }
            | Insn::AddrSpaceCast { dst, .. }
            | Insn::LoadImm64 { dst, .. }
            | Insn::Load { dst, .. }
            | Insn::LoadAcquire { dst, .. } => Some(dst),
            Insn::Atomic { op, src, .. } => match op {
                AtomicOp::CmpXchg => Some(Reg::R0),
                AtomicOp::Xchg
                | AtomicOp::Add { fetch: true }
                | AtomicOp::Or { fetch: true }
                | AtomicOp::And { fetch: true }
                | AtomicOp::Xor { fetch: true } => Some(src),
                _ => None,
            },
            _ => None,
        }
    }

    /// Every register written or clobbered: calls and legacy packet loads clobber r0 … r5.
    pub fn defs(&self) -> RegSet {
        match self {
            Insn::Call(_) | Insn::CallX { .. } | Insn::LdAbs { .. } | Insn::LdInd { .. } => RegSet::CALLER_SAVED,
            _ => self.def().map_or(RegSet::EMPTY, RegSet::of),
        }
    }

    /// The memory that an access is to; `None` for what accesses none by itself (calls do so by their rows, legacy packet
    /// loads without an address).
    pub fn memory_operand(&self) -> Option<MemoryOperand> {
        let (size, base, off, reads, writes) = match *self {
            Insn::Load { size, base, off, .. } | Insn::LoadAcquire { size, base, off, .. } => {
                (size, base, off, true, false)
            }
            Insn::Store { size, base, off, .. } | Insn::StoreRelease { size, base, off, .. } => {
                (size, base, off, false, true)
            }
            Insn::Atomic { size, base, off, .. } => (size, base, off, true, true),
            _ => return None,
        };
        Some(MemoryOperand { base, off, size, reads, writes })
    }

    /// The access with this offset from its base; what accesses no memory stays as it is.
    #[must_use]
    pub fn with_memory_offset(mut self, to: i16) -> Insn {
        match &mut self {
            Insn::Load { off, .. }
            | Insn::Store { off, .. }
            | Insn::Atomic { off, .. }
            | Insn::LoadAcquire { off, .. }
            | Insn::StoreRelease { off, .. } => *off = to,
            _ => {}
        }
        self
    }

    /// Every register read. A call is taken to read r1 … r5 (callers that know the prototype narrow
    /// it), `exit` reads r0, legacy packet loads read r6. An opaque slot reads everything.
    pub fn uses(&self) -> RegSet {
        let src = |s: Src| s.reg().map_or(RegSet::EMPTY, RegSet::of);
        match *self {
            Insn::Alu { dst, src: s, .. } => src(s).with(dst),
            Insn::Mov { src: s, .. } => src(s),
            Insn::MovSx { src, .. } | Insn::AddrSpaceCast { src, .. } => RegSet::of(src),
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => RegSet::of(dst),
            Insn::LoadImm64 { .. } => RegSet::EMPTY,
            Insn::Load { base, .. } | Insn::LoadAcquire { base, .. } => RegSet::of(base),
            Insn::Store { base, src: s, .. } => src(s).with(base),
            Insn::StoreRelease { base, src, .. } => RegSet::of(base).with(src),
            Insn::Atomic { op, base, src, .. } => {
                let u = RegSet::of(base).with(src);
                if op == AtomicOp::CmpXchg { u.with(Reg::R0) } else { u }
            }
            Insn::LdAbs { .. } => RegSet::of(Reg::R6),
            Insn::LdInd { src, .. } => RegSet::of(Reg::R6).with(src),
            Insn::Jcc { dst, src: s, .. } => src(s).with(dst),
            Insn::Ja { .. } | Insn::MayGoto { .. } => RegSet::EMPTY,
            Insn::Call(_) => RegSet::ARGS,
            Insn::CallX { reg } => RegSet::ARGS.with(reg),
            Insn::Exit => RegSet::of(Reg::R0),
            Insn::Opaque(_) => RegSet::ALL,
        }
    }

    /// The instruction with every register it names replaced; what it reads or writes without naming it
    /// (calls, `exit`, legacy packet loads, r0 of a compare-and-exchange) stays.
    #[must_use]
    pub fn map_regs(self, f: impl Fn(Reg) -> Reg) -> Insn {
        let s = |src: Src| match src {
            Src::Reg(r) => Src::Reg(f(r)),
            imm => imm,
        };
        match self {
            Insn::Alu { op, width, dst, src } => Insn::Alu { op, width, dst: f(dst), src: s(src) },
            Insn::Mov { width, dst, src } => Insn::Mov { width, dst: f(dst), src: s(src) },
            Insn::MovSx { width, from, dst, src } => Insn::MovSx { width, from, dst: f(dst), src: f(src) },
            Insn::Neg { width, dst } => Insn::Neg { width, dst: f(dst) },
            Insn::Endian { kind, bits, dst } => Insn::Endian { kind, bits, dst: f(dst) },
            Insn::AddrSpaceCast { dst, src, imm } => Insn::AddrSpaceCast { dst: f(dst), src: f(src), imm },
            Insn::LoadImm64 { dst, kind, imm } => Insn::LoadImm64 { dst: f(dst), kind, imm },
            Insn::Load { size, sext, dst, base, off } => Insn::Load { size, sext, dst: f(dst), base: f(base), off },
            Insn::Store { size, base, off, src } => Insn::Store { size, base: f(base), off, src: s(src) },
            Insn::Atomic { op, size, base, off, src } => Insn::Atomic { op, size, base: f(base), off, src: f(src) },
            Insn::LoadAcquire { size, dst, base, off } => Insn::LoadAcquire { size, dst: f(dst), base: f(base), off },
            Insn::StoreRelease { size, base, off, src } => Insn::StoreRelease { size, base: f(base), off, src: f(src) },
            Insn::LdInd { size, src, imm } => Insn::LdInd { size, src: f(src), imm },
            Insn::Jcc { cond, width, dst, src, off } => Insn::Jcc { cond, width, dst: f(dst), src: s(src), off },
            Insn::CallX { reg } => Insn::CallX { reg: f(reg) },
            Insn::LdAbs { .. }
            | Insn::Ja { .. }
            | Insn::MayGoto { .. }
            | Insn::Call(_)
            | Insn::Exit
            | Insn::Opaque(_) => self,
        }
    }

    /// The instruction with its result in another register; `None` if it has none, or also reads what it writes there.
    #[must_use]
    pub fn with_def(self, to: Reg) -> Option<Insn> {
        Some(match self {
            Insn::Mov { width, src, .. } => Insn::Mov { width, dst: to, src },
            Insn::MovSx { width, from, src, .. } => Insn::MovSx { width, from, dst: to, src },
            Insn::AddrSpaceCast { src, imm, .. } => Insn::AddrSpaceCast { dst: to, src, imm },
            Insn::LoadImm64 { kind, imm, .. } => Insn::LoadImm64 { dst: to, kind, imm },
            Insn::Load { size, sext, base, off, .. } => Insn::Load { size, sext, dst: to, base, off },
            Insn::LoadAcquire { size, base, off, .. } => Insn::LoadAcquire { size, dst: to, base, off },
            _ => return None,
        })
    }

    /// The lowest `-mcpu` level that has this instruction, 1 … 4.
    pub fn cpu(&self) -> u8 {
        match *self {
            Insn::MovSx { .. }
            | Insn::AddrSpaceCast { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::MayGoto { .. }
            | Insn::Endian { kind: Endian::Swap, .. }
            | Insn::Ja { long: true, .. }
            | Insn::Load { sext: true, .. }
            | Insn::Alu { op: AluOp::SDiv | AluOp::SMod, .. } => 4,
            Insn::Alu { width: Width::W32, .. }
            | Insn::Mov { width: Width::W32, .. }
            | Insn::Neg { width: Width::W32, .. }
            | Insn::Jcc { width: Width::W32, .. } => 3,
            Insn::Atomic { op: AtomicOp::Add { fetch: false }, .. } => 1,
            Insn::Atomic { .. } => 3,
            Insn::Jcc { cond: Cond::Lt | Cond::Le | Cond::Slt | Cond::Sle, .. } => 2,
            _ => 1,
        }
    }

    /// Jump offset in slots relative to the next slot, for `goto`, `gotol`, conditional jumps and `may_goto`.
    pub fn jump_offset(&self) -> Option<i32> {
        match *self {
            Insn::Ja { off, .. } => Some(off),
            Insn::Jcc { off, .. } | Insn::MayGoto { off } => Some(i32::from(off)),
            _ => None,
        }
    }

    /// This jump with another offset, or `None` if it is not a jump or the offset does not fit it.
    #[must_use]
    pub fn with_jump_offset(self, offset: i32) -> Option<Insn> {
        let short = i16::try_from(offset).ok();
        Some(match self {
            Insn::Ja { long: true, .. } => Insn::Ja { off: offset, long: true },
            Insn::Ja { long: false, .. } => Insn::Ja { off: short?.into(), long: false },
            Insn::Jcc { cond, width, dst, src, .. } => Insn::Jcc { cond, width, dst, src, off: short? },
            Insn::MayGoto { .. } => Insn::MayGoto { off: short? },
            _ => return None,
        })
    }
}
