//! The instructions of x86-64 that filters need, as bytes.
//!
//! Jumps are written last, each in two bytes where its target is near enough. They go forward only: a label is bound behind the
//! jumps to it. Tables stand behind the code and are addressed relative to it. (Intel's manual, volume 2, chapter 2 has the
//! encoding.) An own emitter, since all of it is a page; `dynasm-rs` has a licence that this project does not take.

/// A general register, by its number in the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Gp(pub(super) u8);

#[rustfmt::skip]
impl Gp {
    pub(super) const RAX: Gp = Gp(0);  pub(super) const RCX: Gp = Gp(1);  pub(super) const RDX: Gp = Gp(2);
    pub(super) const RBX: Gp = Gp(3);  pub(super) const RSP: Gp = Gp(4);  pub(super) const RBP: Gp = Gp(5);
    pub(super) const RSI: Gp = Gp(6);  pub(super) const RDI: Gp = Gp(7);  pub(super) const R8: Gp = Gp(8);
    pub(super) const R9: Gp = Gp(9);   pub(super) const R10: Gp = Gp(10); pub(super) const R11: Gp = Gp(11);
    pub(super) const R12: Gp = Gp(12); pub(super) const R13: Gp = Gp(13); pub(super) const R14: Gp = Gp(14);
    pub(super) const R15: Gp = Gp(15);
}

/// A register or a place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Register(Gp),
    /// `base + index * 2^scale + displacement`
    Memory {
        base: Gp,
        index: Option<(Gp, u8)>,
        displacement: i32,
    },
}

impl Place {
    /// `base + displacement`
    pub(super) fn at(base: Gp, displacement: i32) -> Place {
        Place::Memory { base, index: None, displacement }
    }

    /// `base + index * 2^scale`
    pub(super) fn indexed(base: Gp, index: Gp, scale: u8) -> Place {
        Place::Memory { base, index: Some((index, scale)), displacement: 0 }
    }
}

/// When a jump jumps, by its number in the encoding. Comparisons are unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    Below = 2,
    AtLeast = 3,
    Equal = 4,
    NotEqual = 5,
    AtMost = 6,
    Above = 7,
}

impl Condition {
    pub(super) fn negated(self) -> Condition {
        match self {
            Condition::Below => Condition::AtLeast,
            Condition::AtLeast => Condition::Below,
            Condition::Equal => Condition::NotEqual,
            Condition::NotEqual => Condition::Equal,
            Condition::AtMost => Condition::Above,
            Condition::Above => Condition::AtMost,
        }
    }
}

/// Arithmetic of two operands, by its number in the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arithmetic {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Compare = 7,
}

/// Shifts and the like, by their number in the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shift {
    RotateLeft = 0,
    Left = 4,
    Right = 5,
}

/// A place in the code that jumps go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

/// A position in the code: bytes before it without jumps, and jumps before it.
#[derive(Clone, Copy, Debug)]
struct Position {
    bytes: usize,
    jumps: usize,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    at: usize,
    condition: Option<Condition>,
    to: Label,
}

/// Code under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    bytes: Vec<u8>,
    jumps: Vec<Jump>,
    labels: Vec<Option<Position>>,
    data: Vec<u8>,
    /// Where the code has 32 bits for how far a byte of the data is from behind them.
    references: Vec<(Position, usize)>,
}

/// Finished code, with its tables behind it.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    /// Where instructions end.
    pub(super) instructions: usize,
}

/// An instruction's parts.
struct Instruction<'a> {
    prefix: Option<u8>,
    is_wide: bool,
    opcode: &'a [u8],
    register: u8,
    place: Place,
}

impl<'a> Instruction<'a> {
    /// Of 32 bits.
    fn new(opcode: &'a [u8], register: u8, place: Place) -> Instruction<'a> {
        Instruction { prefix: None, is_wide: false, opcode, register, place }
    }

    /// Of 64 bits.
    fn wide(opcode: &'a [u8], register: u8, place: Place) -> Instruction<'a> {
        Instruction { is_wide: true, ..Instruction::new(opcode, register, place) }
    }

    /// Of 16 bits.
    fn half(opcode: &'a [u8], register: u8, place: Place) -> Instruction<'a> {
        Instruction { prefix: Some(0x66), ..Instruction::new(opcode, register, place) }
    }
}

impl Assembler {
    fn emit(&mut self, instruction: &Instruction) {
        let Instruction { prefix, is_wide, opcode, register, place } = instruction;
        let (base, index) = match place {
            Place::Register(r) => (*r, None),
            Place::Memory { base, index, .. } => (*base, *index),
        };
        let high = |n: u8| n >> 3;
        let rex =
            u8::from(*is_wide) << 3 | high(*register) << 2 | high(index.map_or(0, |(i, _)| i.0)) << 1 | high(base.0);
        self.bytes.extend(prefix);
        if rex != 0 {
            self.bytes.push(0x40 | rex);
        }
        self.bytes.extend_from_slice(opcode);
        let register = (register & 7) << 3;
        let Place::Memory { displacement, .. } = *place else {
            self.bytes.push(0xc0 | register | base.0 & 7);
            return;
        };
        // The base 101 without displacement means something else: it gets one of 0.
        let mode = match displacement {
            0 if base.0 & 7 != 5 => 0,
            -128..=127 => 1,
            _ => 2,
        };
        match index {
            // The base 100 says that index and scale follow; the index 100 that there is none.
            None if base.0 & 7 != 4 => self.bytes.push(mode << 6 | register | base.0 & 7),
            None => self.bytes.extend([mode << 6 | register | 4, 4 << 3 | base.0 & 7]),
            Some((i, scale)) => self.bytes.extend([mode << 6 | register | 4, scale << 6 | (i.0 & 7) << 3 | base.0 & 7]),
        }
        match mode {
            0 => {}
            1 => self.bytes.push(displacement as u8),
            _ => self.bytes.extend(displacement.to_le_bytes()),
        }
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn here(&self) -> Position {
        Position { bytes: self.bytes.len(), jumps: self.jumps.len() }
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.here());
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push(Jump { at: self.bytes.len(), condition: None, to });
    }

    pub(super) fn jump_if(&mut self, condition: Condition, to: Label) {
        self.jumps.push(Jump { at: self.bytes.len(), condition: Some(condition), to });
    }

    /// Puts data behind the code: its place there.
    pub(super) fn data(&mut self, data: impl Iterator<Item = u8>) -> usize {
        self.data.resize(self.data.len().next_multiple_of(64), 0);
        let at = self.data.len();
        self.data.extend(data);
        at
    }

    /// The address of data.
    pub(super) fn address(&mut self, to: Gp, data: usize) {
        // RIP-relative: base 101 without displacement.
        self.bytes.extend([0x48 | (to.0 >> 3) << 2, 0x8d, (to.0 & 7) << 3 | 5]);
        self.references.push((self.here(), data));
        self.bytes.extend([0; 4]);
    }

    pub(super) fn load(&mut self, to: Gp, from: Place) {
        if from != Place::Register(to) {
            self.emit(&Instruction::new(&[0x8b], to.0, from));
        }
    }

    pub(super) fn load_wide(&mut self, to: Gp, from: Place) {
        self.emit(&Instruction::wide(&[0x8b], to.0, from));
    }

    pub(super) fn store(&mut self, to: Place, from: Gp) {
        if to != Place::Register(from) {
            self.emit(&Instruction::new(&[0x89], from.0, to));
        }
    }

    pub(super) fn load_byte(&mut self, to: Gp, from: Place) {
        self.emit(&Instruction::new(&[0x0f, 0xb6], to.0, from));
    }

    pub(super) fn load_half(&mut self, to: Gp, from: Place) {
        self.emit(&Instruction::new(&[0x0f, 0xb7], to.0, from));
    }

    /// Loads four bytes in reverse.
    pub(super) fn movbe(&mut self, to: Gp, from: Place) {
        self.emit(&Instruction::new(&[0x0f, 0x38, 0xf0], to.0, from));
    }

    pub(super) fn bswap(&mut self, r: Gp) {
        if r.0 >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.extend([0x0f, 0xc8 | r.0 & 7]);
    }

    /// Exchanges the two low bytes; the others stay.
    pub(super) fn swap_half(&mut self, r: Gp) {
        self.emit(&Instruction::half(&[0xc1], Shift::RotateLeft as u8, Place::Register(r)));
        self.bytes.push(8);
    }

    /// Sets all 64 bits. Leaves flags alone.
    pub(super) fn constant(&mut self, to: Gp, n: u64) {
        if let Ok(n) = u32::try_from(n) {
            self.emit_constant(to, &n.to_le_bytes(), 0x40);
        } else {
            self.emit_constant(to, &n.to_le_bytes(), 0x48);
        }
    }

    fn emit_constant(&mut self, to: Gp, n: &[u8], rex: u8) {
        let rex = rex | to.0 >> 3;
        if rex != 0x40 {
            self.bytes.push(rex);
        }
        self.bytes.push(0xb8 | to.0 & 7);
        self.bytes.extend_from_slice(n);
    }

    pub(super) fn store_constant(&mut self, to: Place, n: u32) {
        match to {
            Place::Register(r) => self.constant(r, u64::from(n)),
            memory => {
                self.emit(&Instruction::new(&[0xc7], 0, memory));
                self.bytes.extend(n.to_le_bytes());
            }
        }
    }

    pub(super) fn arithmetic(&mut self, op: Arithmetic, to: Gp, from: Place) {
        self.emit(&Instruction::new(&[(op as u8) << 3 | 3], to.0, from));
    }

    /// With the result in the place.
    pub(super) fn arithmetic_to(&mut self, op: Arithmetic, to: Place, from: Gp) {
        self.emit(&Instruction::new(&[(op as u8) << 3 | 1], from.0, to));
    }

    pub(super) fn arithmetic_wide(&mut self, op: Arithmetic, to: Gp, from: Place) {
        self.emit(&Instruction::wide(&[(op as u8) << 3 | 3], to.0, from));
    }

    pub(super) fn arithmetic_constant(&mut self, op: Arithmetic, to: Place, n: u32) {
        self.immediate(op as u8, to, n as i32, false);
    }

    pub(super) fn arithmetic_constant_wide(&mut self, op: Arithmetic, to: Gp, n: i32) {
        self.immediate(op as u8, Place::Register(to), n, true);
    }

    fn immediate(&mut self, op: u8, to: Place, n: i32, is_wide: bool) {
        match i8::try_from(n) {
            Ok(n) => {
                self.emit(&Instruction { is_wide, ..Instruction::new(&[0x83], op, to) });
                self.bytes.push(n as u8);
            }
            Err(_) => {
                self.emit(&Instruction { is_wide, ..Instruction::new(&[0x81], op, to) });
                self.bytes.extend(n.to_le_bytes());
            }
        }
    }

    pub(super) fn compare_byte(&mut self, place: Place, n: u8) {
        self.emit(&Instruction::new(&[0x80], Arithmetic::Compare as u8, place));
        self.bytes.push(n);
    }

    /// Sets flags by the bits that two have in common.
    pub(super) fn test(&mut self, a: Gp, b: Gp) {
        self.emit(&Instruction::new(&[0x85], b.0, Place::Register(a)));
    }

    pub(super) fn test_constant(&mut self, place: Place, mask: u32) {
        self.emit(&Instruction::new(&[0xf7], 0, place));
        self.bytes.extend(mask.to_le_bytes());
    }

    /// In memory only: of registers, some have no low byte without a prefix.
    pub(super) fn test_byte(&mut self, memory: Place, mask: u8) {
        self.emit(&Instruction::new(&[0xf6], 0, memory));
        self.bytes.push(mask);
    }

    /// Tests the bit of `bits` that the low five bits of `index` name: the condition is `Below` if it is set.
    pub(super) fn test_bit(&mut self, bits: Gp, index: Gp) {
        self.emit(&Instruction::new(&[0x0f, 0xa3], index.0, Place::Register(bits)));
    }

    pub(super) fn multiply(&mut self, to: Gp, from: Place) {
        self.emit(&Instruction::new(&[0x0f, 0xaf], to.0, from));
    }

    pub(super) fn multiply_constant(&mut self, to: Gp, from: Place, n: u32) {
        self.emit(&Instruction::new(&[0x69], to.0, from));
        self.bytes.extend(n.to_le_bytes());
    }

    /// Multiplies `eax`: the product's lower half comes to `eax`, the upper one to `edx`.
    pub(super) fn multiply_to_both(&mut self, by: Place) {
        self.emit(&Instruction::new(&[0xf7], 4, by));
    }

    /// Divides `edx:eax`: the quotient comes to `eax`, the remainder to `edx`.
    pub(super) fn divide(&mut self, by: Place) {
        self.emit(&Instruction::new(&[0xf7], 6, by));
    }

    pub(super) fn negate(&mut self, r: Gp) {
        self.emit(&Instruction::new(&[0xf7], 3, Place::Register(r)));
    }

    pub(super) fn shift_constant(&mut self, op: Shift, r: Gp, n: u8) {
        self.emit(&Instruction::new(&[0xc1], op as u8, Place::Register(r)));
        self.bytes.push(n);
    }

    /// By the low five bits of `cl`.
    pub(super) fn shift(&mut self, op: Shift, r: Gp) {
        self.emit(&Instruction::new(&[0xd3], op as u8, Place::Register(r)));
    }

    /// All ones if the condition `Below` holds, otherwise 0.
    pub(super) fn ones_if_below(&mut self, r: Gp) {
        self.emit(&Instruction::new(&[0x1b], r.0, Place::Register(r)));
    }

    /// 1 in `eax` if the condition holds, otherwise 0.
    pub(super) fn set(&mut self, condition: Condition) {
        self.bytes.extend([0x0f, 0x90 | condition as u8, 0xc0, 0x0f, 0xb6, 0xc0]);
    }

    /// The address of a place.
    pub(super) fn sum(&mut self, to: Gp, place: Place) {
        self.emit(&Instruction::wide(&[0x8d], to.0, place));
    }

    pub(super) fn push(&mut self, r: Gp) {
        if r.0 >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x50 | r.0 & 7);
    }

    pub(super) fn pop(&mut self, r: Gp) {
        if r.0 >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x58 | r.0 & 7);
    }

    pub(super) fn call(&mut self, r: Gp) {
        self.emit(&Instruction::new(&[0xff], 2, Place::Register(r)));
    }

    pub(super) fn ret(&mut self) {
        self.bytes.push(0xc3);
    }

    /// The bytes, with jumps in place. `None`: code and data together are beyond 2 GiB, or a jump does not go forward.
    pub(super) fn finish(self) -> Option<Code> {
        let prefix = self.jump_sizes()?;
        let address = |p: Position| p.bytes + prefix[p.jumps];
        let mut bytes = Vec::with_capacity(self.bytes.len() + prefix[self.jumps.len()] + 64 + self.data.len());
        let mut copied = 0;
        for (i, jump) in self.jumps.iter().enumerate() {
            bytes.extend_from_slice(&self.bytes[copied..jump.at]);
            copied = jump.at;
            let size = prefix[i + 1] - prefix[i];
            let far = address(self.labels[jump.to.0]?).checked_sub(bytes.len() + size)?;
            match (size, jump.condition) {
                (2, None) => bytes.extend([0xeb, far as u8]),
                (2, Some(c)) => bytes.extend([0x70 | c as u8, far as u8]),
                (_, None) => bytes.push(0xe9),
                (_, Some(c)) => bytes.extend([0x0f, 0x80 | c as u8]),
            }
            if size > 2 {
                bytes.extend(i32::try_from(far).ok()?.to_le_bytes());
            }
        }
        bytes.extend_from_slice(&self.bytes[copied..]);
        let instructions = bytes.len();
        let data = instructions.next_multiple_of(64);
        for (at, of) in &self.references {
            let at = address(*at);
            let far = i32::try_from((data + of).checked_sub(at + 4)?).ok()?;
            bytes[at..at + 4].copy_from_slice(&far.to_le_bytes());
        }
        if !self.data.is_empty() {
            bytes.resize(data, 0xcc);
            bytes.extend_from_slice(&self.data);
        }
        Some(Code { bytes, instructions })
    }

    /// The bytes of all jumps before each. Jumps start short, and grow until all reach.
    fn jump_sizes(&self) -> Option<Vec<usize>> {
        let mut is_long = vec![false; self.jumps.len()];
        loop {
            let mut prefix = Vec::with_capacity(self.jumps.len() + 1);
            prefix.push(0);
            for (jump, long) in self.jumps.iter().zip(&is_long) {
                let size = if !*long { 2 } else { 5 + usize::from(jump.condition.is_some()) };
                prefix.push(prefix[prefix.len() - 1] + size);
            }
            let mut changed = false;
            for (i, jump) in self.jumps.iter().enumerate() {
                let to = self.labels[jump.to.0]?;
                let far = (to.bytes + prefix[to.jumps]).checked_sub(jump.at + prefix[i + 1])?;
                if far > 127 && !is_long[i] {
                    is_long[i] = true;
                    changed = true;
                }
            }
            if !changed {
                return Some(prefix);
            }
        }
    }
}
