//! Operations to instructions.
//!
//! `rdi` is the packet, `rsi` how much of it was captured, `edx` its length and `rcx` what else is known of it, as the caller gives
//! them. `rax` is scratch. Programs with divisions, variable shifts or tables also take `rcx` and `rdx` for scratch, and keep length
//! and the rest in `r11` and `r10`. All other registers hold values; those that the caller wants back are saved if they are used.

mod arithmetic;
mod ends;
mod packet;

use rustc_hash::FxHashMap;

use super::assembler::{Arithmetic, Assembler, Code, Condition, Gp, Label, Place};
use super::bounds;
use super::error::JitError;
use super::network::NetworkOrder;
use crate::allocate::{Allocation, Home, Pool, allocate};
use crate::language::Binary;
use crate::program::{BasicBlock, BlockId, End, Operand, Operation, Program, Register};
use crate::safety;
use crate::simplify::simplify;

const PACKET: Gp = Gp::RDI;
const CAPTURED: Gp = Gp::RSI;
const SCRATCH: Gp = Gp::RAX;

/// Registers that the caller wants back.
const SAVED: [Gp; 6] = [Gp::RBX, Gp::RBP, Gp::R12, Gp::R13, Gp::R14, Gp::R15];

/// What a program needs of the machine.
#[derive(Clone, Copy, Debug)]
struct Needs {
    length: bool,
    known: bool,
    more_scratch: bool,
}

impl Needs {
    fn of(program: &Program) -> Needs {
        let any = |f: &dyn Fn(&Operation) -> bool| program.blocks.iter().flat_map(|b| &b.operations).any(f);
        let is_shift = |op: &Binary| matches!(op, Binary::ShiftLeft | Binary::ShiftRight);
        Needs {
            length: any(&|o| matches!(o, Operation::Length { .. })),
            known: any(&|o| matches!(o, Operation::Ancillary { .. })),
            more_scratch: program.blocks.iter().any(|b| matches!(b.end, End::Lookup { .. }))
                || any(&|o| match o {
                    Operation::Binary { op: Binary::Div | Binary::Mod, .. } => true,
                    Operation::Binary { op, b: Operand::Register(_), .. } => is_shift(op),
                    _ => false,
                }),
        }
    }

    fn length_register(self) -> Gp {
        if self.more_scratch { Gp::R11 } else { Gp::RDX }
    }

    fn known_register(self) -> Gp {
        if self.more_scratch { Gp::R10 } else { Gp::RCX }
    }

    /// Registers for values, cheapest first.
    fn pool(self) -> Vec<Gp> {
        let mut pool = vec![Gp::R8, Gp::R9, Gp::R10, Gp::R11];
        if !self.more_scratch {
            pool.extend([Gp::RCX, Gp::RDX]);
        }
        pool.retain(|r| !(self.length && *r == self.length_register() || self.known && *r == self.known_register()));
        pool.extend(SAVED);
        pool
    }
}

/// A program under translation.
struct Translator<'a> {
    program: &'a Program,
    asm: Assembler,
    needs: Needs,
    order: NetworkOrder,
    allocation: Allocation<Gp>,
    has_movbe: bool,
    /// Where values are, of registers that blocks do not share.
    local: FxHashMap<Register, Home<Gp>>,
    blocks: Vec<Label>,
    accept: Label,
    reject: Label,
    saved: Vec<Gp>,
    /// Bytes of the stack frame below the saved registers.
    frame: u32,
    /// Where tables are in the data, once they are.
    tables: Vec<Option<Vec<usize>>>,
}

/// Verifies and translates a program.
///
/// # Errors
/// If it is not safe, or too large.
pub(super) fn translate(program: &Program) -> Result<Code, JitError> {
    translate_for(program, is_x86_feature_detected_movbe())
}

fn is_x86_feature_detected_movbe() -> bool {
    std::arch::is_x86_feature_detected!("movbe")
}

/// Translates for a machine with or without `movbe`.
pub(super) fn translate_for(program: &Program, has_movbe: bool) -> Result<Code, JitError> {
    const LARGEST_FRAME: u32 = 2048;
    safety::verify(program)?;
    let program = &simplify(program);
    safety::verify(program)?;
    let checks = bounds::plan(program);
    safety::verify_checks(program, &checks)?;
    let needs = Needs::of(program);
    let allocation = allocate(program, Pool { registers: &needs.pool(), kept: None, scratch: SCRATCH });
    let frame = (allocation.slots * 4).next_multiple_of(8);
    if frame > LARGEST_FRAME {
        return Err(JitError::TooLarge);
    }
    let mut asm = Assembler::default();
    let blocks = program.blocks.iter().map(|_| asm.label()).collect();
    let (accept, reject) = (asm.label(), asm.label());
    let mut translator = Translator {
        program,
        needs,
        order: NetworkOrder::of(program),
        saved: SAVED.into_iter().filter(|r| allocation.uses(*r)).collect(),
        allocation,
        has_movbe,
        local: FxHashMap::default(),
        blocks,
        accept,
        reject,
        frame,
        tables: vec![None; program.tables.len()],
        asm,
    };
    translator.begin();
    for (i, block) in program.blocks.iter().enumerate() {
        if translator.is_emitted(i) {
            translator.block(i, block, &checks[i]);
        }
    }
    translator.finish();
    translator.asm.finish().ok_or(JitError::TooLarge)
}

impl Translator<'_> {
    fn begin(&mut self) {
        for r in self.saved.clone() {
            self.asm.push(r);
        }
        if self.frame > 0 {
            self.asm.arithmetic_constant_wide(Arithmetic::Sub, Gp::RSP, self.frame as i32);
        }
        if self.needs.more_scratch && self.needs.length {
            self.asm.load(self.needs.length_register(), Place::Register(Gp::RDX));
        }
        if self.needs.more_scratch && self.needs.known {
            self.asm.load_wide(self.needs.known_register(), Place::Register(Gp::RCX));
        }
    }

    fn has_frame(&self) -> bool {
        self.frame > 0 || !self.saved.is_empty()
    }

    fn finish(&mut self) {
        self.asm.bind(self.accept);
        self.leave(1);
        self.asm.bind(self.reject);
        self.leave(0);
    }

    /// Returns a verdict.
    fn leave(&mut self, verdict: u32) {
        match verdict {
            0 => self.asm.arithmetic(Arithmetic::Xor, Gp::RAX, Place::Register(Gp::RAX)),
            n => self.asm.constant(Gp::RAX, u64::from(n)),
        }
        if self.frame > 0 {
            self.asm.arithmetic_constant_wide(Arithmetic::Add, Gp::RSP, self.frame as i32);
        }
        for r in self.saved.clone().into_iter().rev() {
            self.asm.pop(r);
        }
        self.asm.ret();
    }

    /// A block that only ends has no code of its own: what goes to it goes to the end of the code.
    fn is_emitted(&self, block: usize) -> bool {
        let BasicBlock { operations, end } = &self.program.blocks[block];
        block == 0 || !operations.is_empty() || !matches!(end, End::Accept | End::Reject)
    }

    /// Where to jump for a block.
    fn target(&self, BlockId(block): BlockId) -> Label {
        match &self.program.blocks[block].end {
            _ if self.is_emitted(block) => self.blocks[block],
            End::Accept => self.accept,
            _ => self.reject,
        }
    }

    /// What follows the code of a block.
    fn following(&self, block: usize) -> Label {
        let next = (block + 1..self.program.blocks.len()).find(|b| self.is_emitted(*b));
        next.map_or(self.accept, |b| self.blocks[b])
    }

    fn block(&mut self, i: usize, block: &BasicBlock, checks: &[Option<u64>]) {
        self.asm.bind(self.blocks[i]);
        self.local.clear();
        let mut rest = block.operations.as_slice();
        // A field that is only compared with a number is compared where it is.
        let compared = self.compared_in_memory(i, block);
        if compared {
            rest = &rest[..rest.len() - 1];
        }
        for (at, operation) in rest.iter().enumerate() {
            self.check(operation, checks[at]);
            self.operation(operation, self.allocation.writes[i][at]);
        }
        match (compared, block.operations.last(), &block.end) {
            (true, Some(load), End::Branch { comparison, yes, no, .. }) => {
                self.check(load, checks[block.operations.len() - 1]);
                let condition = self.compare_in_memory(load, comparison);
                self.branch(i, condition, *yes, *no);
            }
            (_, _, end) => self.end(i, end),
        }
    }

    fn home(&self, r: Register) -> Place {
        // Verified: what is read was written, so that it has a home.
        let home = self.allocation.shared.get(&r).or_else(|| self.local.get(&r));
        self.place(*home.expect("a register that is read has a home"))
    }

    fn place(&self, home: Home<Gp>) -> Place {
        match home {
            Home::Register(r) => Place::Register(r),
            Home::Slot(n) => Place::at(Gp::RSP, n as i32 * 4),
        }
    }

    fn operation(&mut self, operation: &Operation, home: Option<Home<Gp>>) {
        if let Operation::NotZero { register } = operation {
            let place = self.home(*register);
            self.compare_with(place, 0);
            self.asm.jump_if(Condition::Equal, self.reject);
        }
        if let Operation::Binary { op: Binary::Div | Binary::Mod, b, .. } = operation {
            self.check_divisor(b);
        }
        // Nothing else has effects of its own.
        let (Some(to), Some(home)) = (operation.writes(), home) else { return };
        let place = self.place(home);
        match operation {
            Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. } => {}
            Operation::Constant { n, .. } => self.asm.store_constant(place, *n),
            Operation::Copy { from, .. } => self.copy(place, *from),
            Operation::Length { .. } => self.asm.store(place, self.needs.length_register()),
            Operation::Ancillary { what, .. } => self.ancillary(place, *what),
            Operation::Load { base, offset, size, .. } => {
                self.load(place, *base, *offset, *size, self.order.is_swapped(to));
            }
            Operation::HeaderLength { offset, .. } => self.header_length(place, *offset),
            Operation::Binary { op, a, b, .. } => self.binary(*op, place, a, b),
            Operation::Negate { a, .. } => self.negate(place, *a),
            Operation::IsGreater { a, b, .. } => self.is_greater(place, a, b),
        }
        self.local.insert(to, home);
    }

    /// Where an operation on a register works: where its result goes, if that is one.
    fn work_register(place: Place) -> Gp {
        match place {
            Place::Register(r) => r,
            Place::Memory { .. } => SCRATCH,
        }
    }

    fn copy(&mut self, to: Place, from: Register) {
        let from = self.home(from);
        match (to, from) {
            (Place::Register(r), from) => self.asm.load(r, from),
            (to, Place::Register(r)) => self.asm.store(to, r),
            (to, from) => {
                self.asm.load(SCRATCH, from);
                self.asm.store(to, SCRATCH);
            }
        }
    }

    /// Sets flags by comparing a place with a number.
    fn compare_with(&mut self, place: Place, n: u32) {
        match place {
            // Shorter. A test leaves the carry flag at 0, as a comparison with 0 does.
            Place::Register(r) if n == 0 => self.asm.test(r, r),
            place => self.asm.arithmetic_constant(Arithmetic::Compare, place, n),
        }
    }
}
