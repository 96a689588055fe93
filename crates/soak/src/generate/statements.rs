//! The statements of random programs.

use bpf_driver::difftest::Random;
use bpf_isa::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::ProgKind;

use super::program::{Body, Item, MAPS};
use super::values::number;
use super::writer::*;

/// The program's entry function.
pub(super) fn main(r: &mut Random, kind: ProgKind, abilities: Abilities, subs: usize) -> Body {
    let budget = 20 + r.below(40) as i32;
    let mut w = Writer::new(r, kind, abilities, budget);
    w.main = true;
    w.subs = subs;
    w.mov(CTX, Src::Reg(Reg::R1));
    w.packet_pointer();
    w.store(Size::W, Reg::R10, KEY, Src::Imm(0));
    w.store(Size::W, Reg::R10, KEY + 4, Src::Imm(0));
    w.add_imm(Reg::R2, Reg::R10, KEY);
    w.body.items.push(Item::Map(Reg::R1, 0));
    w.helper(1);
    let found = w.label();
    w.branch(Cond::Ne, Width::W64, Reg::R0, Src::Imm(0), found);
    w.push(Insn::Exit);
    w.place(found);
    w.mov(VALUE, Src::Reg(Reg::R0));
    for slot in 0..AREA_BYTES / 8 {
        let off = w.r.below(RANGE as u64 - 8) as i16;
        w.load(Size::DW, false, Reg::R0, PACKET, off);
        w.store(Size::DW, Reg::R10, AREA + 8 * slot, Src::Reg(Reg::R0));
    }
    w.numbers = 0;
    w.refill(0b1011_1111);
    w.block(0);
    // The verifier refuses functions that nobody calls.
    for callee in (1..=subs).filter(|c| !w.called.contains(c)).collect::<Vec<_>>() {
        w.call_sub(callee);
    }
    for n in 0..8 {
        if w.numbers >> n & 1 == 1 {
            w.store(Size::DW, VALUE, 8 * n as i16, Src::Reg(reg(n)));
        }
    }
    let kept = w.numbers & 1 == 1 && w.r.one_in(2);
    for slot in 0..AREA_BYTES / 8 {
        w.load(Size::DW, false, Reg::R1, Reg::R10, AREA + 8 * slot);
        w.store(Size::DW, PACKET, 8 * slot, Src::Reg(Reg::R1));
    }
    if !kept {
        w.load(Size::DW, false, Reg::R0, VALUE, 8);
    }
    w.push(Insn::Exit);
    w.body
}

/// A function of three numbers and 16 bytes of its caller's frame.
pub(super) fn sub(r: &mut Random, kind: ProgKind, abilities: Abilities) -> Body {
    let budget = 5 + r.below(15) as i32;
    let mut w = Writer::new(r, kind, abilities, budget);
    w.mov(LENT, Src::Reg(Reg::R4));
    w.numbers = 0b1110;
    for slot in 0..AREA_BYTES / 8 {
        let from = w.number();
        w.store(Size::DW, Reg::R10, AREA + 8 * slot, Src::Reg(from));
    }
    w.refill(0b1010_1111);
    w.block(0);
    w.refill(0b1);
    for n in 1..6 {
        if w.numbers >> n & 1 == 1 {
            w.alu(AluOp::Xor, Width::W64, Reg::R0, Src::Reg(reg(n)));
        }
    }
    w.push(Insn::Exit);
    w.body
}

impl Writer<'_> {
    fn block(&mut self, depth: u32) {
        let n = if depth == 0 { 1000 } else { 1 + self.r.below(8) };
        for _ in 0..n {
            if self.budget <= 0 {
                return;
            }
            self.budget -= 1;
            let from = self.body.items.len();
            self.statement(depth);
            self.body.statements.push((from, self.body.items.len()));
        }
    }

    fn statement(&mut self, depth: u32) {
        match self.r.below(32) {
            0..=8 => self.arithmetic(),
            9..=11 => self.load_statement(),
            12..=14 => self.store_statement(),
            15 | 16 => self.atomic(),
            17 => self.variable_place(),
            18..=20 if depth < 3 => self.if_else(depth),
            21..=23 if self.loops < 2 => self.count(depth),
            24 if self.main => self.map_lookup(),
            25 if self.main => self.map_change(),
            26 | 27 if self.main => self.helper_statement(),
            28 if self.main && self.subs > 0 => self.call(),
            29 if self.main => self.context(),
            30 if self.main && self.kind == ProgKind::Skb && self.subs == 0 => self.legacy(),
            _ => self.arithmetic(),
        }
    }

    fn arithmetic(&mut self) {
        let dst = self.number();
        if dst == Reg::R7 && self.counting {
            return;
        }
        let width = self.width();
        match self.r.below(12) {
            0..=5 => {
                let op = self.r.pick(&AluOp::ALL);
                let mut src = self.operand();
                if let Src::Imm(v) = &mut src {
                    match op {
                        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => *v &= width.bits() as i32 - 1,
                        AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod if *v == 0 => *v = 7,
                        _ => {}
                    }
                }
                self.alu(op, width, dst, src);
            }
            6 => {
                let (to, src) = (self.target(), self.operand());
                self.push(Insn::Mov { width, dst: to, src });
                self.is_number(to);
            }
            7 => {
                let (to, src) = (self.target(), self.number());
                let from = self.r.pick(if width == Width::W64 {
                    &[Size::B, Size::H, Size::W][..]
                } else {
                    &[Size::B, Size::H][..]
                });
                self.push(Insn::MovSx { width, from, dst: to, src });
                self.is_number(to);
            }
            8 => self.push(Insn::Neg { width, dst }),
            9 => {
                let kind = self.r.pick(&[Endian::Le, Endian::Be, Endian::Swap]);
                let bits = self.r.pick(&[16, 32, 64]);
                self.push(Insn::Endian { kind, bits, dst });
            }
            10 => {
                let imm = number(self.r);
                let to = self.target();
                self.push(Insn::LoadImm64 { dst: to, kind: Imm64Kind::Const, imm });
                self.is_number(to);
            }
            _ => {
                // A value that the verifier knows to be small, for what comes after.
                let mask = self.r.pick(&[1, 7, 0xff, 0x3ff]);
                self.alu(AluOp::And, Width::W64, dst, Src::Imm(mask));
            }
        }
    }

    fn load_statement(&mut self) {
        let size = self.r.pick(&Size::ALL);
        let (base, off) = self.anywhere(size);
        let dst = self.target();
        let plain_frame = base == Reg::R10 || base == VALUE;
        if self.abilities.load_acquire && plain_frame && self.r.one_in(6) {
            let off = if base == VALUE { self.value_place(size, true) } else { off };
            self.push(Insn::LoadAcquire { size, dst, base, off });
        } else {
            let sext = size != Size::DW && self.r.one_in(3);
            // Sometimes with the pointer in the register that is loaded.
            if self.r.one_in(3) {
                self.add_imm(dst, base, off);
                self.load(size, sext, dst, dst, 0);
            } else {
                self.load(size, sext, dst, base, off);
            }
        }
        self.is_number(dst);
    }

    fn store_statement(&mut self) {
        let size = self.r.pick(&Size::ALL);
        let (base, off) = self.anywhere(size);
        let src = self.number();
        if self.abilities.load_acquire && (base == Reg::R10 || base == VALUE) && self.r.one_in(6) {
            let off = if base == VALUE { self.value_place(size, true) } else { off };
            self.push(Insn::StoreRelease { size, base, off, src });
            return;
        }
        let src = if self.r.one_in(3) { Src::Imm(self.imm()) } else { Src::Reg(src) };
        self.store(size, base, off, src);
    }

    fn atomic(&mut self) {
        let size = self.r.pick(&[Size::W, Size::DW]);
        let (base, off) = if self.main && self.r.one_in(2) {
            (VALUE, self.value_place(size, true))
        } else {
            (Reg::R10, self.frame_place(size))
        };
        let fetch = base == VALUE && self.r.one_in(2);
        let plain = [AtomicOp::Add { fetch }, AtomicOp::Or { fetch }, AtomicOp::And { fetch }, AtomicOp::Xor { fetch }];
        // Of what an atomic fetches from the frame Linux 6.18 may take a wrong number for certain (see
        // `tests/all/quirks.rs`).
        let op = match base == VALUE && self.r.one_in(3) {
            true => self.r.pick(&[AtomicOp::Xchg, AtomicOp::CmpXchg]),
            false => self.r.pick(&plain),
        };
        let src = self.number();
        if op == AtomicOp::CmpXchg {
            if self.r.one_in(2) {
                // Else it hardly ever finds what it compares with.
                self.load(size, false, Reg::R0, base, off);
                self.is_number(Reg::R0);
            }
            self.refill(1);
        }
        if src == Reg::R7 && self.counting {
            return;
        }
        self.push(Insn::Atomic { op, size, base, off, src });
        if op == AtomicOp::CmpXchg && size == Size::W {
            // On x86 a successful exchange leaves the upper half of rax alone, and Linux 6.18 forgets the zero
            // extension where the reader of the upper half is only seen on another path (see `tests/all/quirks.rs`).
            self.push(Insn::Mov { width: Width::W32, dst: Reg::R0, src: Src::Reg(Reg::R0) });
        }
    }

    /// An access whose place depends on a number.
    fn variable_place(&mut self) {
        let size = self.r.pick(&Size::ALL);
        let n = size.bytes() as i16;
        let index = self.number();
        let pointer = self.target_but(index);
        let src = self.number();
        self.mov(pointer, Src::Reg(index));
        let mut copied = None;
        let (base, off) = match (self.main, self.r.below(3)) {
            (true, 0) => {
                self.alu(AluOp::And, Width::W64, pointer, Src::Imm(0x1f));
                self.alu(AluOp::Add, Width::W64, pointer, Src::Reg(VALUE));
                (pointer, self.r.below((VALUE_BYTES - 31 - n) as u64) as i16)
            }
            (true, 1) => {
                self.variable_packet(pointer, size);
                return;
            }
            _ => {
                self.alu(AluOp::And, Width::W64, pointer, Src::Imm(0x18));
                let off = AREA + n * self.r.below((32 / n) as u64) as i16;
                // A number to which the frame's address is added belongs to the program's own frame, to the verifier (see
                // `tests/all/quirks.rs`).
                if self.main {
                    self.alu(AluOp::Add, Width::W64, pointer, Src::Reg(Reg::R10));
                    (pointer, off)
                } else {
                    let frame = self.target_but(pointer);
                    self.mov(frame, Src::Reg(Reg::R10));
                    self.alu(AluOp::Add, Width::W64, frame, Src::Reg(pointer));
                    copied = Some(frame);
                    (frame, off)
                }
            }
        };
        if src != pointer && Some(src) != copied && self.r.one_in(2) {
            self.store(size, base, off, Src::Reg(src));
            self.mov(pointer, Src::Imm(1));
        } else {
            self.load(size, false, pointer, base, off);
        }
        if let Some(frame) = copied {
            self.mov(frame, Src::Imm(1));
            self.is_number(frame);
            self.keep_counter(frame);
        }
        self.is_number(pointer);
        self.keep_counter(pointer);
    }

    /// `index` becomes a packet pointer, checked against the end.
    fn variable_packet(&mut self, index: Reg, size: Size) {
        let end = self.target_but(index);
        self.alu(AluOp::And, Width::W64, index, Src::Imm(0xff));
        self.alu(AluOp::Add, Width::W64, index, Src::Reg(PACKET));
        self.data_end(end);
        // The comparison needs a pointer past the access.
        self.alu(AluOp::Add, Width::W64, index, Src::Imm(size.bytes() as i32));
        let (outside, done) = (self.label(), self.label());
        self.branch(Cond::Gt, Width::W64, index, Src::Reg(end), outside);
        self.load(size, false, index, index, -(size.bytes() as i16));
        self.go(done);
        self.place(outside);
        self.mov(index, Src::Imm(-1));
        self.place(done);
        self.mov(end, Src::Imm(2));
        self.is_number(end);
        self.is_number(index);
        self.keep_counter(end);
        self.keep_counter(index);
    }

    /// r7 is never a target while it counts; nothing to do but to say so.
    fn keep_counter(&self, r: Reg) {
        debug_assert!(!(self.counting && r == Reg::R7));
    }

    fn data_end(&mut self, dst: Reg) {
        let off = if self.kind == ProgKind::Xdp { 4 } else { 80 };
        self.load(Size::W, false, dst, CTX, off);
    }

    /// r9 = packet with [`RANGE`] bytes, or the program ends. Uses r2 and r3.
    fn packet_pointer(&mut self) {
        let off = if self.kind == ProgKind::Xdp { 0 } else { 76 };
        self.load(Size::W, false, PACKET, CTX, off);
        self.data_end(Reg::R2);
        self.add_imm(Reg::R3, PACKET, RANGE);
        let enough = self.label();
        self.branch(Cond::Le, Width::W64, Reg::R3, Src::Reg(Reg::R2), enough);
        self.mov(Reg::R0, Src::Imm(7));
        self.push(Insn::Exit);
        self.place(enough);
        for r in [Reg::R2, Reg::R3] {
            self.mov(r, Src::Imm(3));
            self.is_number(r);
        }
    }

    fn if_else(&mut self, depth: u32) {
        let (dst, src) = (self.number(), self.operand());
        let (cond, width) = (self.r.pick(&Cond::ALL), self.width());
        let (other, done) = (self.label(), self.label());
        self.branch(cond, width, dst, src, other);
        let before = self.numbers;
        self.block(depth + 1);
        let after = std::mem::replace(&mut self.numbers, before);
        if self.r.one_in(2) {
            self.go(done);
            self.place(other);
            self.block(depth + 1);
        } else {
            self.place(other);
        }
        self.place(done);
        self.numbers &= after;
    }

    /// A loop that ends after a known number of rounds, or after as many as a small number says.
    fn count(&mut self, depth: u32) {
        let inner = self.counting;
        let rounds = if inner { 2 + self.r.below(3) } else { 3 + self.r.below(14) } as i32;
        let (head, out) = (self.label(), self.label());
        self.loops += 1;
        let saved = self.counting;
        if inner {
            self.store(Size::DW, Reg::R10, COUNTER, Src::Imm(0));
        } else {
            self.mov(Reg::R7, Src::Imm(0));
            self.is_not(Reg::R7);
            self.counting = true;
        }
        let entry = self.numbers;
        self.place(head);
        let may_goto = !inner && self.r.one_in(4);
        if may_goto {
            self.body.items.push(Item::Jump(Insn::MayGoto { off: 0 }, out));
        }
        let leave = !inner && self.r.one_in(4);
        if leave {
            // A way out that depends on data.
            let (n, src) = (self.number(), self.operand());
            let cond = self.r.pick(&[Cond::Eq, Cond::Set, Cond::Slt]);
            self.branch(cond, Width::W64, n, src, out);
        }
        self.block(depth + 1);
        self.refill(entry);
        if inner {
            self.load(Size::DW, false, Reg::R5, Reg::R10, COUNTER);
            self.alu(AluOp::Add, Width::W64, Reg::R5, Src::Imm(1));
            self.store(Size::DW, Reg::R10, COUNTER, Src::Reg(Reg::R5));
            self.branch(Cond::Lt, Width::W64, Reg::R5, Src::Imm(rounds), head);
            self.is_number(Reg::R5);
        } else {
            self.alu(AluOp::Add, Width::W64, Reg::R7, Src::Imm(1));
            self.branch(Cond::Lt, Width::W64, Reg::R7, Src::Imm(rounds), head);
        }
        self.place(out);
        self.numbers &= entry;
        self.counting = saved;
        if !self.counting {
            self.is_number(Reg::R7);
        }
        self.loops -= u32::from(inner);
    }

    fn key(&mut self) {
        let n = self.number();
        self.store(Size::W, Reg::R10, KEY, Src::Reg(n));
        if !self.r.one_in(8) {
            // Small keys, or nothing would ever be found.
            self.load(Size::B, false, Reg::R2, Reg::R10, KEY);
            self.alu(AluOp::And, Width::W64, Reg::R2, Src::Imm(7));
            self.store(Size::W, Reg::R10, KEY, Src::Reg(Reg::R2));
        }
        self.add_imm(Reg::R2, Reg::R10, KEY);
        self.is_not(Reg::R2);
    }

    fn map_lookup(&mut self) {
        let map = self.r.below(2) as usize;
        self.key();
        self.body.items.push(Item::Map(Reg::R1, map));
        self.helper(1);
        self.refill(0b10);
        let bytes = MAPS[map].3 as u64;
        let (missing, done) = (self.label(), self.label());
        self.branch(Cond::Eq, Width::W64, Reg::R0, Src::Imm(0), missing);
        for _ in 0..self.r.below(4) {
            let size = self.r.pick(&[Size::W, Size::DW]);
            let off = (u64::from(size.bytes()) * self.r.below(bytes / u64::from(size.bytes()))) as i16;
            match self.r.below(4) {
                0 => self.store(size, Reg::R0, off, Src::Reg(Reg::R1)),
                1 => {
                    let imm = self.imm();
                    self.store(size, Reg::R0, off, Src::Imm(imm));
                }
                2 => self.load(size, false, Reg::R1, Reg::R0, off),
                _ => {
                    let op = AtomicOp::Add { fetch: self.r.one_in(2) };
                    self.push(Insn::Atomic { op, size, base: Reg::R0, off, src: Reg::R1 });
                }
            }
        }
        self.load(Size::DW, false, Reg::R0, Reg::R0, 8);
        self.go(done);
        self.place(missing);
        self.mov(Reg::R0, Src::Imm(-3));
        self.place(done);
    }

    fn map_change(&mut self) {
        let map = self.r.below(2) as usize;
        self.key();
        if self.r.one_in(3) {
            self.body.items.push(Item::Map(Reg::R1, map));
            self.helper(3);
            return;
        }
        let room = AREA_BYTES - MAPS[map].3 as i16;
        let off = AREA + 8 * self.r.below((room / 8) as u64 + 1) as i16;
        self.add_imm(Reg::R3, Reg::R10, off);
        let flags = self.r.pick(&[0, 0, 0, 1, 2, 3]);
        self.mov(Reg::R4, Src::Imm(flags));
        self.body.items.push(Item::Map(Reg::R1, map));
        self.helper(2);
    }

    /// A number of the program as an argument, made small so that the helper does not always refuse.
    fn small(&mut self, dst: Reg, mask: i32, from: Reg) {
        self.mov(dst, Src::Reg(from));
        self.alu(AluOp::And, Width::W64, dst, Src::Imm(mask));
    }

    fn buffer(&mut self, dst: Reg, bytes: i16) {
        let off = AREA + 8 * self.r.below(((AREA_BYTES - bytes) / 8) as u64 + 1) as i16;
        self.add_imm(dst, Reg::R10, off);
    }

    fn helper_statement(&mut self) {
        // r0 and r7 survive the setting up of arguments.
        self.refill(1);
        let n = Reg::R0;
        let size = self.r.pick(&[4, 8, 16, 32]);
        let xdp = self.kind == ProgKind::Xdp;
        let (id, moves) = match self.r.below(8) {
            0 => {
                self.buffer(Reg::R1, size);
                self.mov(Reg::R2, Src::Imm(size.into()));
                self.buffer(Reg::R3, 16);
                self.mov(Reg::R4, Src::Imm(16));
                self.mov(Reg::R5, Src::Reg(n));
                (28, false)
            }
            1 => {
                // From one half of the frame to the other: the kernel copies word by word, forwards, and what it
                // makes of places that overlap is nothing a program may rely on.
                let (to, from) = if self.r.one_in(2) { (AREA, AREA + 32) } else { (AREA + 32, AREA) };
                self.add_imm(Reg::R1, Reg::R10, to);
                self.mov(Reg::R2, Src::Imm(size.into()));
                self.add_imm(Reg::R3, Reg::R10, from);
                (113, false)
            }
            2 | 3 => {
                self.mov(Reg::R1, Src::Reg(CTX));
                self.small(Reg::R2, 0xff, n);
                self.buffer(Reg::R3, size);
                self.mov(Reg::R4, Src::Imm(size.into()));
                (if xdp { 189 } else { 26 }, false)
            }
            4 => {
                self.mov(Reg::R1, Src::Reg(CTX));
                self.small(Reg::R2, 0x7f, n);
                self.buffer(Reg::R3, size);
                self.mov(Reg::R4, Src::Imm(size.into()));
                if !xdp {
                    let flags = self.r.below(2) as i32;
                    self.mov(Reg::R5, Src::Imm(flags));
                }
                (if xdp { 190 } else { 9 }, true)
            }
            5 if xdp => {
                self.mov(Reg::R1, Src::Reg(CTX));
                (188, false)
            }
            _ if xdp => {
                let id = self.r.pick(&[44, 65, 54]);
                self.mov(Reg::R1, Src::Reg(CTX));
                self.small(Reg::R2, 0x1f, n);
                let less = if id == 65 { 20 } else { 24 };
                self.alu(AluOp::Sub, Width::W64, Reg::R2, Src::Imm(less));
                if id == 54 {
                    self.alu(AluOp::And, Width::W64, Reg::R2, Src::Imm(-4));
                }
                (id, true)
            }
            _ => {
                let id = self.r.pick(&[10, 11]);
                self.mov(Reg::R1, Src::Reg(CTX));
                self.small(Reg::R2, 0x7e, n);
                self.mov(Reg::R3, Src::Reg(n));
                self.alu(AluOp::Rsh, Width::W64, Reg::R3, Src::Imm(16));
                self.mov(Reg::R4, Src::Reg(n));
                let flags = self.r.pick(&[0, 2, 4, 4, if id == 11 { 0x12 } else { 2 }, 0x20 * i32::from(id == 11) + 4]);
                if flags == 0 {
                    self.mov(Reg::R3, Src::Imm(0));
                }
                self.mov(Reg::R5, Src::Imm(flags));
                (id, true)
            }
        };
        self.helper(id);
        if moves {
            self.packet_pointer();
        }
    }

    fn call(&mut self) {
        let callee = 1 + self.r.below(self.subs as u64) as usize;
        self.call_sub(callee);
    }

    fn call_sub(&mut self, callee: usize) {
        self.called.push(callee);
        self.refill(0b1110);
        self.buffer(Reg::R4, 16);
        self.body.items.push(Item::Call(callee));
        self.numbers &= !0b11_1110;
        self.numbers |= 1;
    }

    fn context(&mut self) {
        let (dst, src) = (self.target(), self.number());
        let cb = 48 + 4 * self.r.below(5) as i16;
        if self.kind == ProgKind::Xdp {
            let off = self.r.pick(&[12, 16]);
            self.load(Size::W, false, dst, CTX, off);
        } else if self.r.one_in(2) {
            let off = self.r.pick(&[8, 32, cb]);
            self.store(Size::W, CTX, off, Src::Reg(src));
            return;
        } else if self.r.one_in(3) {
            // Parts of a field, and two neighbours at once.
            let (size, off) = self.r.pick(&[(Size::B, 9), (Size::H, 8), (Size::B, 51), (Size::DW, 48), (Size::H, 34)]);
            self.load(size, false, dst, CTX, off);
        } else {
            let off = self.r.pick(&[0, 8, 16, 32, 40, cb]);
            self.load(Size::W, false, dst, CTX, off);
        }
        self.is_number(dst);
    }

    /// `ld_abs` and `ld_ind`, which end the program where there is no such byte.
    fn legacy(&mut self) {
        let size = self.r.pick(&[Size::B, Size::H, Size::W]);
        let imm = self.r.below(90) as i32;
        if self.r.one_in(2) {
            self.push(Insn::LdAbs { size, imm });
        } else {
            let n = self.number();
            self.small(Reg::R1, 0x1f, n);
            self.push(Insn::LdInd { size, src: Reg::R1, imm });
        }
        self.numbers &= !0b11_1110;
        self.numbers |= 1;
    }
}
