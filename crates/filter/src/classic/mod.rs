//! Classic BPF, as `tcpdump -d` prints it and sockets, `xt_bpf` and `dumpcap` take it.
//!
//! There is one accumulator and one index register, and sixteen words of memory. A value is loaded again where it is wanted again
//! and no register holds it: that costs as much as to read it from memory, and saves the store. What does cost more is kept in a word
//! of memory if one is free, and computed again if none is. Whether that pays for what is loaded from a place that is computed shows at the
//! end: both are written, and the shorter one is taken. Where the words do not suffice for what is meanwhile on its way, the program
//! is written once more: of two operands the one that takes more words is then computed first, as Sethi and Ullman have it.
//!
//! Variables, which programs have that are not optimized, have a word of memory each.
//!
//! libpcap's interpreter (`bpf_filter`) and the kernel (`bpf_convert_filter`) run the same programs, but not with the same results,
//! and what is written here has one result with both:
//!
//! | | libpcap | kernel | here |
//! |---|---|---|---|
//! | a load from 2^31 on | behind the packet: 0 is returned | negative: headers, what is beside the packet, or no such program | what reads there rejects |
//! | `x` + `k` beyond 32 bits | behind the packet | wraps | `x` is compared first, if it may be so large |
//! | a shift by 32 and more in `x` | 0 | modulo 32 | `x` is compared first, if it may be so large |
//! | a word of memory, read behind a return before which it is not stored on all ways | read | refused | returns come last |
//! | a constant divisor of 0, a constant shift by 32 and more | refused | refused | not there |

mod chain;
mod code;
mod expected;
mod generator;
mod layout;
mod spare;
mod variables;
mod web;

use rustc_hash::{FxHashMap, FxHashSet};

use code::*;
pub use code::{Classic, ClassicError, MOST_INSTRUCTIONS, has_loop};
pub(crate) use expected::{expected, is_less};
use generator::{Generator, Held};
use layout::{Item, instructions};
use variables::Variables;
pub(crate) use web::forms;

use crate::language::Binary;
use crate::program::{BasicBlock, BlockId, Comparison, End, LONGEST, Operand, Operation, Program, Register};
use crate::ranges::Ranges;
use crate::simplify::simplify;
use crate::steps::Label;

/// The classic program of a program.
///
/// # Errors
/// If the program has more than classic BPF can do.
pub(crate) fn classic(program: &Program, accepted_length: u32) -> Result<Vec<Classic>, ClassicError> {
    let with = |stores_loads| match written(program, accepted_length, stores_loads, false) {
        Err(ClassicError::Memory) => written(program, accepted_length, stores_loads, true),
        written => written,
    };
    match (with(true)?, with(false)) {
        (stored, Ok(loaded)) if loaded.len() < stored.len() => Ok(loaded),
        (stored, _) => Ok(stored),
    }
}

fn written(
    program: &Program,
    accepted_length: u32,
    stores_loads: bool,
    is_frugal: bool,
) -> Result<Vec<Classic>, ClassicError> {
    // What is not optimized has numbers in registers.
    let program = simplify(program);
    let ranges = Ranges::of(&program);
    let program = &without_rejected(&program, &ranges);
    let variables = Variables::of(program)?;
    let mut definitions = definitions(program);
    definitions.retain(|r, _| !variables.words.contains_key(r));
    let mut generator = Generator {
        ranges,
        last_reads: last_reads(program, &definitions),
        definitions,
        uses: uses(program),
        items: Vec::new(),
        held: Held::default(),
        slots: FxHashMap::default(),
        kept: Vec::new(),
        is_frugal,
        stores_loads,
        variables,
        here: 0,
        labels: 0,
    };
    let mut entry: Vec<Option<Held>> = vec![None; program.blocks.len()];
    entry[0] = Some(Held { stored: generator.variables.words.clone(), ..Held::default() });
    for (i, block) in program.blocks.iter().enumerate() {
        let Some(held) = entry[i].take() else { continue };
        generator.held = held;
        generator.here = i;
        generator.items.push(Item::Here(Label::Block(BlockId(i))));
        let brought = generator.brought(block);
        for operation in &block.operations {
            generator.check(operation, &brought)?;
        }
        generator.end(&block.end, accepted_length)?;
        if let End::Goto(next) = block.end
            && next.0 != i + 1
        {
            generator.items.push(Item::Jump(Label::Block(next)));
        }
        for next in block.end.successors() {
            match &mut entry[next.0] {
                Some(held) => held.join(&generator.held),
                none => *none = Some(generator.held.clone()),
            }
        }
    }
    Ok(instructions(generator.items))
}

/// The program without what only packets do that are rejected by it: a field behind every packet, and a division by 0. There is no
/// instruction for either that both the kernel and libpcap take.
fn without_rejected(program: &Program, ranges: &Ranges) -> Program {
    let rejects = |operation: &Operation| match operation {
        Operation::NotZero { register } => ranges.range(*register).greatest == 0,
        Operation::Binary { op: Binary::Div | Binary::Mod, b, .. } => ranges.operand(*b).greatest == 0,
        operation => operation.wants().is_some_and(|(base, end)| {
            let least = base.map_or(0, |base| ranges.range(base).least);
            end + u64::from(least) > LONGEST
        }),
    };
    let mut program = program.clone();
    for block in program.blocks.iter_mut().filter(|block| block.operations.iter().any(rejects)) {
        *block = BasicBlock { operations: Vec::new(), end: End::Reject };
    }
    program
}

fn definitions(program: &Program) -> FxHashMap<Register, Operation> {
    let mut all = FxHashMap::default();
    for operation in program.blocks.iter().flat_map(|b| &b.operations) {
        if let Some(to) = operation.writes() {
            all.insert(to, operation.clone());
        }
    }
    all
}

/// The last block that reads a register, itself or by way of what is computed of it.
fn last_reads(program: &Program, definitions: &FxHashMap<Register, Operation>) -> FxHashMap<Register, usize> {
    let mut last: FxHashMap<Register, usize> = FxHashMap::default();
    for (i, block) in program.blocks.iter().enumerate() {
        let mut open: Vec<Register> = Vec::new();
        for operation in &block.operations {
            operation.reads(&mut |r| open.push(r));
        }
        block.end.reads(&mut |r| open.push(r));
        while let Some(r) = open.pop() {
            if last.insert(r, i) != Some(i)
                && let Some(definition) = definitions.get(&r)
            {
                definition.reads(&mut |r| open.push(r));
            }
        }
    }
    last
}

/// In how many blocks a register is read.
fn uses(program: &Program) -> FxHashMap<Register, usize> {
    let mut all: FxHashMap<Register, usize> = FxHashMap::default();
    for block in &program.blocks {
        let mut here: FxHashSet<Register> = FxHashSet::default();
        for operation in &block.operations {
            operation.reads(&mut |r| {
                here.insert(r);
            });
        }
        block.end.reads(&mut |r| {
            here.insert(r);
        });
        for r in here {
            *all.entry(r).or_default() += 1;
        }
    }
    all
}

impl Generator {
    /// What rejects packets and has no number that anyone reads.
    ///
    /// A load rejects what does not reach so far, but only one that is `brought`: what nothing reads is never loaded.
    fn check(&mut self, operation: &Operation, brought: &[Operation]) -> Result<(), ClassicError> {
        match operation {
            Operation::Bound { base, end } => {
                if brought.iter().filter_map(Operation::wants).any(|(b, e)| b == *base && e >= *end) {
                    return Ok(());
                }
                // The last byte is there: no greater number has come so far.
                let k = (end - 1) as u32;
                match base {
                    None => self.plain(LD | BYTE | ABS, k),
                    Some(base) => {
                        self.bring_base(*base, *end)?;
                        self.plain(LD | BYTE | IND, k);
                    }
                }
                self.held.a = None;
            }
            Operation::NotZero { register } => {
                self.bring_to_a(*register)?;
                self.reject_if(JMP | JEQ, 0);
            }
            Operation::Copy { to, from } => {
                self.bring_to_a(*from)?;
                self.set(*to);
            }
            Operation::Constant { to, n } if self.variables.are_read_first.contains(to) => {
                let is_load = |item: &&Item| !matches!(item, Item::Plain((ST, _)));
                if self.items.iter().rev().find(is_load) != Some(&Item::Plain((LD, *n))) {
                    self.plain(LD, *n);
                }
                self.set(*to);
            }
            _ => {}
        }
        Ok(())
    }

    /// What a block's checks and its branch read, themselves or by way of what is computed of it. Each is computed in the
    /// block, or was on every way to it.
    fn brought(&self, block: &BasicBlock) -> Vec<Operation> {
        let mut open: Vec<Register> = Vec::new();
        for operation in &block.operations {
            if let Operation::NotZero { register } = operation {
                open.push(*register);
            }
        }
        block.end.reads(&mut |r| open.push(r));
        let mut seen: FxHashSet<Register> = FxHashSet::default();
        let mut all = Vec::new();
        while let Some(r) = open.pop() {
            if seen.insert(r)
                && let Some(definition) = self.definitions.get(&r)
            {
                definition.reads(&mut |r| open.push(r));
                all.push(definition.clone());
            }
        }
        all
    }

    fn end(&mut self, end: &End, accepted_length: u32) -> Result<(), ClassicError> {
        match end {
            End::Accept => self.plain(RET, accepted_length),
            End::Reject => self.plain(RET, 0),
            End::Goto(_) => {}
            End::Lookup { .. } => return Err(ClassicError::Table),
            End::Member { .. } => return Err(ClassicError::Map),
            End::Chain { chain, yes, no } => {
                let (items, labels) = chain::chain(chain, (Label::Block(*yes), Label::Block(*no)), self.labels);
                self.items.extend(items);
                self.labels = labels;
                self.held = Held { stored: std::mem::take(&mut self.held.stored), ..Held::default() };
                self.held.stored.retain(|_, slot| *slot != chain::WORD);
            }
            End::Branch { a, comparison, yes, no } => {
                let (code, operand) = match comparison {
                    Comparison::Equal(b) => (JEQ, *b),
                    Comparison::Greater(b) => (JGT, *b),
                    Comparison::AtLeast(b) => (JGE, *b),
                    Comparison::AnyBit(mask) => (JSET, Operand::Constant(*mask)),
                };
                let (code, k) = match operand {
                    Operand::Constant(k) => {
                        if let Some((a, bits)) = self.tested_bits(*a).filter(|_| code == JEQ && k == 0) {
                            self.bring_to_a(a)?;
                            let (yes, no) = (Label::Block(*no), Label::Block(*yes));
                            self.items.push(Item::Branch { test: (JMP | JSET, bits), yes, no });
                            return Ok(());
                        }
                        self.bring_to_a(*a)?;
                        (JMP | code, k)
                    }
                    Operand::Register(b) => {
                        self.bring_both(*a, b)?;
                        (JMP | code | X, 0)
                    }
                };
                let (yes, no) = (Label::Block(*yes), Label::Block(*no));
                self.items.push(Item::Branch { test: (code, k), yes, no });
            }
        }
        Ok(())
    }

    /// Of a value that is nowhere yet, and is some bits of another one: that, and the bits.
    fn tested_bits(&self, value: Register) -> Option<(Register, u32)> {
        let is_there = self.held.a == Some(value) || self.held.stored.contains_key(&value);
        match self.definitions.get(&value).filter(|_| !is_there)? {
            Operation::Binary { op: Binary::And, a: Operand::Register(a), b: Operand::Constant(bits), .. } => {
                Some((*a, *bits))
            }
            _ => None,
        }
    }
}
