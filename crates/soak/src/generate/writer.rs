//! Writing instructions, and which register and which place may be used for what.

use bpf_driver::difftest::Random;
use bpf_isa::{AluOp, Call, Cond, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::ProgKind;

use super::program::{Body, Item, Label};
use super::values::number;

/// Bytes of the packet that a program may touch.
pub const RANGE: i16 = 96;

/// The frame: bytes that statements use, the key of a lookup, the counter of an inner loop.
pub(super) const AREA: i16 = -80;
pub(super) const AREA_BYTES: i16 = 64;
pub(super) const KEY: i16 = -16;
pub(super) const COUNTER: i16 = -8;
pub(super) const CTX: Reg = Reg::R6;
pub(super) const VALUE: Reg = Reg::R8;
pub(super) const VALUE_BYTES: i16 = 64;
pub(super) const PACKET: Reg = Reg::R9;
/// Where subprograms find 16 bytes of their caller's frame.
pub(super) const LENT: Reg = Reg::R6;

/// What the generator may use.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// load_acquire and store_release.
    pub load_acquire: bool,
}

/// Writes one function.
pub(super) struct Writer<'r> {
    pub(super) r: &'r mut Random,
    pub(super) kind: ProgKind,
    pub(super) abilities: Abilities,
    pub(super) main: bool,
    pub(super) subs: usize,
    pub(super) body: Body,
    pub(super) labels: usize,
    /// Bit n: rn holds a number.
    pub(super) numbers: u16,
    /// Subprograms that are called somewhere.
    pub(super) called: Vec<usize>,
    /// r7 counts a loop.
    pub(super) counting: bool,
    pub(super) loops: u32,
    pub(super) budget: i32,
}

pub(super) fn reg(n: u16) -> Reg {
    Reg::new(n as u8).unwrap_or(Reg::R0)
}

impl<'r> Writer<'r> {
    pub(super) fn new(r: &'r mut Random, kind: ProgKind, abilities: Abilities, budget: i32) -> Writer<'r> {
        Writer {
            r,
            kind,
            abilities,
            main: false,
            subs: 0,
            body: Body::default(),
            labels: 0,
            numbers: 0,
            called: vec![],
            counting: false,
            loops: 0,
            budget,
        }
    }

    // ---- instructions ----------------------------------------------------------------------------------------------

    pub(super) fn push(&mut self, insn: Insn) {
        self.body.items.push(Item::Insn(insn));
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        self.labels
    }

    pub(super) fn place(&mut self, l: Label) {
        self.body.items.push(Item::Label(l));
    }

    pub(super) fn branch(&mut self, cond: Cond, width: Width, dst: Reg, src: Src, to: Label) {
        self.body.items.push(Item::Jump(Insn::Jcc { cond, width, dst, src, off: 0 }, to));
    }

    pub(super) fn go(&mut self, to: Label) {
        let long = self.r.one_in(4);
        self.body.items.push(Item::Jump(Insn::Ja { off: 0, long }, to));
    }

    pub(super) fn mov(&mut self, dst: Reg, src: Src) {
        self.push(Insn::Mov { width: Width::W64, dst, src });
    }

    pub(super) fn alu(&mut self, op: AluOp, width: Width, dst: Reg, src: Src) {
        self.push(Insn::Alu { op, width, dst, src });
    }

    pub(super) fn add_imm(&mut self, dst: Reg, base: Reg, off: i16) {
        self.mov(dst, Src::Reg(base));
        self.alu(AluOp::Add, Width::W64, dst, Src::Imm(off.into()));
    }

    pub(super) fn load(&mut self, size: Size, sext: bool, dst: Reg, base: Reg, off: i16) {
        self.push(Insn::Load { size, sext, dst, base, off });
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Src) {
        self.push(Insn::Store { size, base, off, src });
    }

    /// A helper call: r1 … r5 are gone, r0 is a number.
    pub(super) fn helper(&mut self, id: i32) {
        self.push(Insn::Call(Call::Helper(id)));
        self.numbers &= !0b11_1110;
        self.numbers |= 1;
    }

    // ---- registers -------------------------------------------------------------------------------------------------

    /// A register that holds a number.
    pub(super) fn number(&mut self) -> Reg {
        let all: Vec<u16> = (0..8).filter(|n| self.numbers >> n & 1 == 1).collect();
        if all.is_empty() {
            self.refill(0b10);
            return Reg::R1;
        }
        reg(self.r.pick(&all))
    }

    /// A register to be written.
    pub(super) fn target(&mut self) -> Reg {
        let n = self.r.below(if self.counting { 6 } else { 7 }) as u16;
        if n == 6 { Reg::R7 } else { reg(n) }
    }

    /// A register to be written that is not `other`.
    pub(super) fn target_but(&mut self, other: Reg) -> Reg {
        let t = self.target();
        if t != other {
            t
        } else if other == Reg::R5 {
            Reg::R4
        } else {
            Reg::R5
        }
    }

    pub(super) fn is_number(&mut self, r: Reg) {
        self.numbers |= 1 << r.index();
    }

    pub(super) fn is_not(&mut self, r: Reg) {
        self.numbers &= !(1 << r.index());
    }

    /// Gives registers of the set that hold no number one.
    pub(super) fn refill(&mut self, set: u16) {
        for n in (0..8).filter(|n| set >> n & 1 == 1) {
            if self.numbers >> n & 1 == 1 {
                continue;
            }
            let r = reg(n);
            if self.main && self.r.one_in(2) {
                let (size, off) = self.packet_place();
                self.load(size, false, r, PACKET, off);
            } else if self.r.one_in(2) {
                let off = AREA + 8 * self.r.below(8) as i16;
                self.load(Size::DW, false, r, Reg::R10, off);
            } else {
                let imm = number(self.r);
                self.push(Insn::LoadImm64 { dst: r, kind: Imm64Kind::Const, imm });
            }
            self.is_number(r);
        }
    }

    pub(super) fn imm(&mut self) -> i32 {
        number(self.r) as i32
    }

    pub(super) fn operand(&mut self) -> Src {
        if self.r.one_in(2) { Src::Reg(self.number()) } else { Src::Imm(self.imm()) }
    }

    pub(super) fn width(&mut self) -> Width {
        self.r.pick(&[Width::W32, Width::W64])
    }

    pub(super) fn packet_place(&mut self) -> (Size, i16) {
        let size = self.r.pick(&Size::ALL);
        (size, self.r.below((RANGE as u64) - u64::from(size.bytes()) + 1) as i16)
    }

    pub(super) fn frame_place(&mut self, size: Size) -> i16 {
        let n = size.bytes() as i16;
        AREA + n * self.r.below((AREA_BYTES / n) as u64) as i16
    }

    pub(super) fn value_place(&mut self, size: Size, aligned: bool) -> i16 {
        let n = size.bytes() as i16;
        if aligned {
            n * self.r.below((VALUE_BYTES / n) as u64) as i16
        } else {
            self.r.below((VALUE_BYTES - n) as u64 + 1) as i16
        }
    }

    /// Somewhere a load or store of this size may go.
    pub(super) fn anywhere(&mut self, size: Size) -> (Reg, i16) {
        match (self.main, self.r.below(3)) {
            (true, 0) => (PACKET, self.r.below((RANGE as u64) - u64::from(size.bytes()) + 1) as i16),
            (true, 1) => (VALUE, self.value_place(size, false)),
            (false, 0) => (LENT, size.bytes() as i16 * self.r.below(16 / u64::from(size.bytes())) as i16),
            _ => (Reg::R10, self.frame_place(size)),
        }
    }
}
