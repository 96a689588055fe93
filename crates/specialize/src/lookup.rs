//! Code that looks a key up in a table, in place of a call of `bpf_map_lookup_elem`.
//!
//! As of the call, r2 points to the key, r0 is the address of the value or 0 afterwards, and nothing is known of r1 to r5.

use std::collections::HashSet;

use bpf_isa::{AluOp, Call, Cond, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_platform::helpers;
use bpf_program::{Block, BlockId, Function, Op, Terminator};

use crate::table::{Layout, Table};

/// A place in a section to be added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    /// The section's number.
    pub(crate) section: usize,
    /// Bytes from its start.
    pub(crate) offset: u32,
}

/// The places that code names, each by a number of its own until it gets a reference.
#[derive(Default)]
pub(crate) struct Places {
    /// The upper half of these numbers.
    mark: u32,
    all: Vec<Place>,
}

impl Places {
    /// For code to be put into these functions, none of which holds a number that could be taken for a place. They get no other
    /// constants from here on.
    pub(crate) fn apart_from<'a>(functions: impl Iterator<Item = &'a Function>) -> Places {
        let ops = functions.flat_map(|f| f.blocks.iter().flat_map(|b| &b.ops));
        let taken: HashSet<u32> = ops.filter_map(|op| number(&op.insn)).map(|n| (n >> 32) as u32).collect();
        // There are more numbers than instructions.
        let mark = (0x6f70_745f..=u32::MAX).find(|mark| !taken.contains(mark)).unwrap_or(u32::MAX);
        Places { mark, all: Vec::new() }
    }

    fn address(&mut self, dst: Reg, place: Place) -> Insn {
        let number = self.all.iter().position(|p| *p == place).unwrap_or_else(|| {
            self.all.push(place);
            self.all.len() - 1
        });
        Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: u64::from(self.mark) << 32 | number as u64 }
    }

    /// The place that an instruction's number stands for.
    pub(crate) fn of(&self, insn: &Insn) -> Option<Place> {
        let number = number(insn).filter(|n| (n >> 32) as u32 == self.mark)?;
        self.all.get((number & 0xffff_ffff) as usize).copied()
    }
}

fn number(insn: &Insn) -> Option<u64> {
    match insn {
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => Some(*imm),
        _ => None,
    }
}

/// The instruction that makes r0 0.
pub(crate) const NOTHING: Insn = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) };

/// What a lookup is told of the key and its surroundings.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    /// The block of the call, and the call's place in it.
    pub(crate) block: BlockId,
    pub(crate) index: usize,
    /// The address of the key is a multiple of this.
    pub(crate) key_alignment: u32,
    /// Where the number is that says, if it is not 0, that the map has changed.
    pub(crate) guard: Option<Place>,
}

/// Puts a lookup in a table that starts at `place` in place of a call; without a table nothing is found.
pub(crate) fn put(f: &mut Function, site: Site, table: Option<(&Table, Place)>, places: &mut Places) {
    let Block { ops, term } = f.block(site.block).clone();
    let origin = ops.get(site.index).and_then(|op| op.origin);
    let (before, rest) = ops.split_at(site.index.min(ops.len()));
    let mut code = Code { f, places, origin, ops: before.to_vec(), block: site.block, laid_out: Vec::new() };
    let join = code.new_block();
    if let Some(guard) = site.guard {
        let (slow, fast) = (code.new_block(), code.new_block());
        let address = code.places.address(Reg::R0, guard);
        code.add(address);
        code.load(Size::DW, Reg::R0, Reg::R0, 0);
        code.branch(Cond::Ne, Reg::R0, Src::Imm(0), slow, fast);
        code.begin(slow);
        code.ops.extend(rest.first().cloned());
        code.end(Terminator::Goto(join));
        code.begin(fast);
    }
    match table {
        Some((table, place)) => code.look_up(table, place, site.key_alignment, join),
        None => {
            code.add(NOTHING);
            code.end(Terminator::Goto(join));
        }
    }
    code.begin(join);
    code.ops.extend_from_slice(rest.get(1..).unwrap_or_default());
    code.end(term);
    let laid_out = code.laid_out;
    let at = f.layout.iter().position(|b| *b == site.block).unwrap_or(f.layout.len());
    f.layout.splice(at..(at + 1).min(f.layout.len()), laid_out);
}

/// Whether an operation is a call of `bpf_map_lookup_elem`.
pub(crate) fn is_lookup(op: &Op) -> bool {
    op.link.is_none() && op.insn == Insn::Call(Call::Helper(helpers::MAP_LOOKUP))
}

/// Blocks on their way into a function.
struct Code<'a> {
    f: &'a mut Function,
    places: &'a mut Places,
    origin: Option<usize>,
    ops: Vec<Op>,
    block: BlockId,
    laid_out: Vec<BlockId>,
}

impl Code<'_> {
    fn new_block(&mut self) -> BlockId {
        let id = BlockId(self.f.blocks.len() as u32);
        self.f.blocks.push(Block { ops: Vec::new(), term: Terminator::Exit { origin: None } });
        id
    }

    fn begin(&mut self, block: BlockId) {
        self.block = block;
    }

    fn end(&mut self, term: Terminator) {
        *self.f.block_mut(self.block) = Block { ops: std::mem::take(&mut self.ops), term };
        self.laid_out.push(self.block);
    }

    fn add(&mut self, insn: Insn) {
        self.ops.push(Op::with_origin(insn, self.origin));
    }

    fn alu(&mut self, op: AluOp, dst: Reg, src: Src) {
        self.add(Insn::Alu { op, width: Width::W32, dst, src });
    }

    fn alu_wide(&mut self, op: AluOp, dst: Reg, src: Src) {
        self.add(Insn::Alu { op, width: Width::W64, dst, src });
    }

    fn add_pointer(&mut self, dst: Reg, src: Src) {
        self.alu_wide(AluOp::Add, dst, src);
    }

    fn copy(&mut self, dst: Reg, src: Reg) {
        self.add(Insn::Mov { width: Width::W32, dst, src: Src::Reg(src) });
    }

    fn load(&mut self, size: Size, dst: Reg, base: Reg, off: u32) {
        self.add(Insn::Load { size, sext: false, dst, base, off: off as i16 });
    }

    fn branch(&mut self, cond: Cond, dst: Reg, src: Src, taken: BlockId, fall: BlockId) {
        let origin = self.origin;
        // Words of keys are numbers of 32 bits in 64; comparisons of 32 bits are newer than other instructions here.
        self.end(Terminator::Branch { cond, width: Width::W64, dst, src, taken, fall, origin });
    }

    fn address(&mut self, dst: Reg, place: Place, offset: u32) {
        let insn = self.places.address(dst, Place { offset: place.offset + offset, ..place });
        self.add(insn);
    }

    /// Loads a word of the key, in parts as wide as its alignment allows; r3 is overwritten.
    fn key_word(&mut self, dst: Reg, number: u32, table: &Table, alignment: u32) {
        let (mut at, end) = (number * 4, (number * 4 + 4).min(table.key_size));
        let mut shift = 0;
        while at < end {
            let fits = |size: &Size| size.bytes() <= end - at && size.bytes() <= alignment && at % size.bytes() == 0;
            let size = [Size::W, Size::H].into_iter().find(fits).unwrap_or(Size::B);
            let part = if shift == 0 { dst } else { Reg::R3 };
            self.load(size, part, Reg::R2, at);
            if shift > 0 {
                self.alu(AluOp::Lsh, part, Src::Imm(shift));
                self.alu(AluOp::Or, dst, Src::Reg(part));
            }
            shift += size.bits().cast_signed();
            at += size.bytes();
        }
    }

    fn look_up(&mut self, table: &Table, place: Place, alignment: u32, join: BlockId) {
        let miss = self.new_block();
        match &table.layout {
            Layout::Few => {
                self.key_word(Reg::R5, 0, table, alignment);
                self.address(Reg::R0, place, table.value_at);
                for (row, key) in table.keys.iter().enumerate() {
                    if row > 0 && table.value_at > 0 {
                        self.add_pointer(Reg::R0, Src::Imm(table.stride.cast_signed()));
                    }
                    let next = if row + 1 == table.keys.len() { miss } else { self.new_block() };
                    let word = key.first().copied().unwrap_or_default().cast_signed();
                    let number = if word < 0 {
                        self.add(Insn::Mov { width: Width::W32, dst: Reg::R3, src: Src::Imm(word) });
                        Src::Reg(Reg::R3)
                    } else {
                        Src::Imm(word)
                    };
                    self.branch(Cond::Eq, Reg::R5, number, join, next);
                    self.begin(next);
                }
            }
            Layout::Array => {
                self.key_word(Reg::R5, 0, table, alignment);
                let inside = self.new_block();
                let entries = u32::try_from(table.keys.len()).unwrap_or(u32::MAX);
                self.branch(Cond::Ge, Reg::R5, Src::Imm(entries.cast_signed()), miss, inside);
                self.begin(inside);
                self.alu(AluOp::Mul, Reg::R5, Src::Imm(table.stride.cast_signed()));
                self.address(Reg::R0, place, table.value_at);
                self.add_pointer(Reg::R0, Src::Reg(Reg::R5));
                self.end(Terminator::Goto(join));
                self.begin(miss);
            }
            Layout::Hash { multiplier, mixed, hash, displacements } => {
                let key_words = table.key_size.div_ceil(4);
                if key_words == 1 {
                    self.key_word(Reg::R5, 0, table, alignment);
                    self.copy(Reg::R1, Reg::R5);
                } else {
                    self.key_word(Reg::R1, 0, table, alignment);
                }
                for number in 1..key_words {
                    self.mix(*mixed);
                    self.alu(AluOp::Mul, Reg::R1, Src::Imm(multiplier.cast_signed()));
                    self.key_word(Reg::R5, number, table, alignment);
                    self.alu(AluOp::Xor, Reg::R1, Src::Reg(Reg::R5));
                }
                self.mix(*mixed);
                self.slot(hash, place, *displacements);
                self.alu(AluOp::Mul, Reg::R1, Src::Imm(table.stride.cast_signed()));
                self.address(Reg::R0, place, 0);
                self.add_pointer(Reg::R0, Src::Reg(Reg::R1));
                for number in 0..key_words {
                    if key_words > 1 {
                        self.key_word(Reg::R5, number, table, alignment);
                    }
                    self.load(Size::W, Reg::R4, Reg::R0, number * 4);
                    let next = self.new_block();
                    self.branch(Cond::Ne, Reg::R4, Src::Reg(Reg::R5), miss, next);
                    self.begin(next);
                }
                if table.value_at > 0 {
                    self.add_pointer(Reg::R0, Src::Imm(table.value_at.cast_signed()));
                }
                self.end(Terminator::Goto(join));
                self.begin(miss);
            }
        }
        self.add(NOTHING);
        self.end(Terminator::Goto(join));
    }

    /// Mixes the upper half of r1 into the lower one; r3 is overwritten.
    fn mix(&mut self, mixed: bool) {
        if mixed {
            self.copy(Reg::R3, Reg::R1);
            self.alu(AluOp::Rsh, Reg::R3, Src::Imm(16));
            self.alu(AluOp::Xor, Reg::R1, Src::Reg(Reg::R3));
        }
    }

    /// The slot of the number in r1, in its place; r3 and r4 are overwritten.
    fn slot(&mut self, hash: &bpf_perfect_hash::PerfectHash, place: Place, displacements: u32) {
        // The upper half of r1 is 0.
        self.alu_wide(AluOp::Mul, Reg::R1, Src::Imm(hash.multiplier.cast_signed()));
        self.copy(Reg::R3, Reg::R1);
        self.alu(AluOp::Rsh, Reg::R3, Src::Imm(hash.shift().cast_signed()));
        self.alu(AluOp::Lsh, Reg::R3, Src::Imm(1));
        self.address(Reg::R4, place, displacements);
        self.add_pointer(Reg::R4, Src::Reg(Reg::R3));
        self.load(Size::H, Reg::R3, Reg::R4, 0);
        self.add(Insn::Mov { width: Width::W64, dst: Reg::R4, src: Src::Reg(Reg::R1) });
        self.alu_wide(AluOp::Rsh, Reg::R4, Src::Imm(32));
        self.alu(AluOp::Xor, Reg::R1, Src::Reg(Reg::R4));
        self.alu(AluOp::Xor, Reg::R1, Src::Reg(Reg::R3));
        self.alu(AluOp::And, Reg::R1, Src::Imm((hash.slots.len() as u32 - 1).cast_signed()));
    }
}
