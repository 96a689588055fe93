//! Classic BPF, as `tcpdump -d` prints it and sockets, `xt_bpf` and `dumpcap` take it.
//!
//! There is one accumulator and one index register, and sixteen words of memory. A value is loaded again where it is wanted again
//! and no register holds it: that costs as much as to read it from memory, and saves the store.
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
mod layout;

use rustc_hash::{FxHashMap, FxHashSet};

use code::*;
pub use code::{Classic, ClassicError, MOST_INSTRUCTIONS, has_loop};
use layout::{Item, instructions};

use crate::language::Binary;
use crate::program::{BasicBlock, BlockId, Comparison, End, LONGEST, Operand, Operation, Program, Register};
use crate::ranges::Ranges;
use crate::steps::Label;

/// What the machine's registers and memory hold.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Held {
    a: Option<Register>,
    x: Option<Register>,
    stored: FxHashSet<Register>,
    /// Numbers that were compared: those that go on are no greater.
    most: FxHashMap<Register, u32>,
}

impl Held {
    /// What is held on both ways.
    fn join(&mut self, other: &Held) {
        if self.a != other.a {
            self.a = None;
        }
        if self.x != other.x {
            self.x = None;
        }
        self.stored.retain(|r| other.stored.contains(r));
        self.most.retain(|r, _| other.most.contains_key(r));
        self.most.iter_mut().for_each(|(r, most)| *most = (*most).max(other.most[r]));
    }
}

/// The classic program of an optimized program.
///
/// # Errors
/// If the program has more than classic BPF can do.
pub(crate) fn classic(program: &Program, accepted_length: u32) -> Result<Vec<Classic>, ClassicError> {
    if program.blocks.iter().flat_map(|b| &b.operations).any(|o| matches!(o, Operation::Copy { .. })) {
        return Err(ClassicError::Variables);
    }
    let ranges = Ranges::of(program);
    let program = &without_rejected(program, &ranges);
    let mut generator = Generator {
        ranges,
        definitions: definitions(program),
        uses: uses(program),
        items: Vec::new(),
        held: Held::default(),
        slots: FxHashMap::default(),
        last_reads: last_reads(program),
        here: 0,
        labels: 0,
    };
    let mut entry: Vec<Option<Held>> = vec![None; program.blocks.len()];
    entry[0] = Some(Held::default());
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
fn last_reads(program: &Program) -> FxHashMap<Register, usize> {
    let definitions = definitions(program);
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

struct Generator {
    ranges: Ranges,
    definitions: FxHashMap<Register, Operation>,
    uses: FxHashMap<Register, usize>,
    items: Vec<Item>,
    held: Held,
    slots: FxHashMap<Register, u32>,
    /// The last block that reads a register, itself or by way of what is computed of it.
    last_reads: FxHashMap<Register, usize>,
    /// The block at hand.
    here: usize,
    labels: usize,
}

impl Generator {
    fn plain(&mut self, code: u16, k: u32) {
        self.items.push(if code == RET { Item::End((code, k)) } else { Item::Plain((code, k)) });
    }

    fn label(&mut self) -> Label {
        self.labels += 1;
        Label::Own(self.labels - 1)
    }

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
            _ => {}
        }
        Ok(())
    }

    /// Rejects the packet if a test holds.
    fn reject_if(&mut self, code: u16, k: u32) {
        let (rejected, other) = (self.label(), self.label());
        self.items.push(Item::Branch { test: (code, k), yes: rejected, no: other });
        self.items.push(Item::Here(rejected));
        self.plain(RET, 0);
        self.items.push(Item::Here(other));
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

    /// Instructions that a value costs if no register holds it, as far as it matters: three is many.
    fn cost(&self, value: Register) -> u32 {
        self.cost_below(value, 3)
    }

    /// The same up to `most`: what is computed of headers behind headers is not gone through to its end.
    fn cost_below(&self, value: Register, most: u32) -> u32 {
        if most <= 1 {
            return 1;
        }
        match self.definitions.get(&value) {
            Some(Operation::Load { base: Some(base), .. }) if self.held.x != Some(*base) => {
                1 + self.cost_in_x(*base, most - 1)
            }
            Some(Operation::Binary { a, b, .. }) => {
                let of = |o: &Operand| match o {
                    Operand::Register(r) => self.cost_below(*r, most - 1),
                    Operand::Constant(_) => 0,
                };
                1 + of(a) + of(b)
            }
            Some(Operation::Negate { a, .. }) => 1 + self.cost_below(*a, most - 1),
            _ => 1,
        }
    }

    fn cost_in_x(&self, value: Register, most: u32) -> u32 {
        match self.definitions.get(&value) {
            Some(Operation::HeaderLength { .. } | Operation::Constant { .. } | Operation::Length { .. }) => 1,
            _ => 1 + self.cost_below(value, most),
        }
    }

    /// Brings a value to the accumulator. The index register may change.
    fn bring_to_a(&mut self, value: Register) -> Result<(), ClassicError> {
        if self.held.a == Some(value) {
            return Ok(());
        }
        if self.held.stored.contains(&value) {
            self.plain(LD | MEM, self.slots[&value]);
        } else if self.held.x == Some(value) {
            self.plain(MISC | TXA, 0);
        } else {
            let worth = self.uses.get(&value).is_some_and(|n| *n > 1) && self.cost(value) > 2;
            self.compute(value)?;
            if worth {
                let slot = self.slot(value)?;
                self.plain(ST, slot);
                self.held.stored.insert(value);
            }
        }
        self.held.a = Some(value);
        Ok(())
    }

    fn slot(&mut self, value: Register) -> Result<u32, ClassicError> {
        if let Some(slot) = self.slots.get(&value) {
            return Ok(*slot);
        }
        // A word whose value nobody reads any more is free again.
        let is_over = |s: &Self, r: &Register| s.last_reads.get(r).is_none_or(|last| *last < s.here);
        let over: Vec<Register> = self.slots.keys().copied().filter(|r| is_over(self, r)).collect();
        for r in over {
            self.slots.remove(&r);
            self.held.stored.remove(&r);
        }
        let Some(free) = (0..MEMORY as u32).find(|slot| self.slots.values().all(|taken| taken != slot)) else {
            return Err(ClassicError::Memory);
        };
        self.slots.insert(value, free);
        Ok(free)
    }

    fn compute(&mut self, value: Register) -> Result<(), ClassicError> {
        let size_code = |size: u8| match size {
            1 => BYTE,
            2 => HALF,
            _ => 0,
        };
        match self.definitions.get(&value).cloned() {
            None => self.plain(LD, 0),
            Some(Operation::Constant { n, .. }) => self.plain(LD, n),
            Some(Operation::Length { .. }) => self.plain(LD | LEN, 0),
            Some(Operation::Ancillary { what, .. }) => self.plain(LD | ABS, what.classic_offset()),
            Some(Operation::Load { base: None, offset, size, .. }) => self.plain(LD | ABS | size_code(size), offset),
            Some(Operation::Load { base: Some(base), offset, size, .. }) => {
                self.bring_base(base, u64::from(offset) + u64::from(size))?;
                self.plain(LD | IND | size_code(size), offset);
            }
            Some(Operation::HeaderLength { .. }) => {
                self.bring_to_x(value)?;
                self.plain(MISC | TXA, 0);
            }
            Some(Operation::Negate { a, .. }) => {
                self.bring_to_a(a)?;
                self.plain(ALU | NEG, 0);
            }
            Some(Operation::Binary { op, a, b, .. }) => {
                let code = ALU | alu(op);
                match (a, b) {
                    (Operand::Register(a), Operand::Constant(k)) => {
                        self.bring_to_a(a)?;
                        // A shift by more is not allowed with a constant: nothing is left.
                        let far = matches!(op, Binary::ShiftLeft | Binary::ShiftRight) && k > 31;
                        if far { self.plain(ALU | alu(Binary::And), 0) } else { self.plain(code, k) }
                    }
                    (Operand::Register(a), Operand::Register(b)) => {
                        self.bring_both(a, b)?;
                        self.by_x(code, value, b)?;
                    }
                    (Operand::Constant(n), Operand::Register(b)) => {
                        self.bring_to_x(b)?;
                        self.plain(LD, n);
                        self.by_x(code, value, b)?;
                    }
                    (Operand::Constant(a), Operand::Constant(b)) => {
                        self.plain(LD, a);
                        self.plain(code, b);
                    }
                }
            }
            // What is compared is compared by a branch.
            Some(Operation::IsGreater { a, b, .. }) => {
                let (yes, no, done) = (self.label(), self.label(), self.label());
                match (a, b) {
                    (Operand::Register(a), Operand::Register(b)) => self.bring_both(a, b)?,
                    (Operand::Constant(n), Operand::Register(b)) => {
                        self.bring_to_x(b)?;
                        self.plain(LD, n);
                    }
                    (Operand::Register(a), Operand::Constant(_)) => self.bring_to_a(a)?,
                    (Operand::Constant(a), Operand::Constant(_)) => self.plain(LD, a),
                }
                let (code, k) = match b {
                    Operand::Register(_) => (JMP | JGT | X, 0),
                    Operand::Constant(k) => (JMP | JGT, k),
                };
                self.items.push(Item::Branch { test: (code, k), yes, no });
                self.items.push(Item::Here(yes));
                self.plain(LD, 1);
                self.items.push(Item::Jump(done));
                self.items.push(Item::Here(no));
                self.plain(LD, 0);
                self.items.push(Item::Here(done));
            }
            Some(Operation::Copy { .. }) => return Err(ClassicError::Variables),
            Some(Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. }) => {}
        }
        Ok(())
    }

    /// Computes a value of the accumulator and the index register, which holds `b`.
    fn by_x(&mut self, code: u16, value: Register, b: Register) -> Result<(), ClassicError> {
        let is_shift = [Binary::ShiftLeft, Binary::ShiftRight].map(|op| ALU | alu(op)).contains(&code);
        if !is_shift || self.ranges.range(b).greatest <= 31 {
            self.plain(code | X, 0);
            return Ok(());
        }
        // The value's own word holds its operand meanwhile.
        let slot = self.slot(value)?;
        let (far, near, done) = (self.label(), self.label(), self.label());
        self.plain(ST, slot);
        self.plain(MISC | TXA, 0);
        self.items.push(Item::Branch { test: (JMP | JGT, 31), yes: far, no: near });
        self.items.push(Item::Here(near));
        self.plain(LD | MEM, slot);
        self.plain(code | X, 0);
        self.items.push(Item::Jump(done));
        self.items.push(Item::Here(far));
        self.plain(LD, 0);
        self.items.push(Item::Here(done));
        Ok(())
    }

    /// Brings a number to the index register from which on a field is read that ends so far behind it. The accumulator may change.
    fn bring_base(&mut self, base: Register, end: u64) -> Result<(), ClassicError> {
        // The sum is not negative, and so does not wrap either.
        let most = u32::try_from(LONGEST.saturating_sub(end)).unwrap_or(u32::MAX);
        if self.ranges.range(base).greatest <= most || self.held.most.get(&base).is_some_and(|known| *known <= most) {
            return self.bring_to_x(base);
        }
        self.bring_to_a(base)?;
        self.reject_if(JMP | JGT, most);
        self.held.most.insert(base, most);
        if self.held.x != Some(base) {
            self.plain(MISC | TAX, 0);
            self.held.x = Some(base);
        }
        Ok(())
    }

    /// Brings a value to the index register. The accumulator may change.
    fn bring_to_x(&mut self, value: Register) -> Result<(), ClassicError> {
        if self.held.x == Some(value) {
            return Ok(());
        }
        match self.definitions.get(&value) {
            _ if self.held.stored.contains(&value) => self.plain(LDX | MEM, self.slots[&value]),
            Some(Operation::HeaderLength { offset, .. }) => self.plain(LDX | MSH | BYTE, *offset),
            Some(Operation::Constant { n, .. }) => self.plain(LDX, *n),
            Some(Operation::Length { .. }) => self.plain(LDX | LEN, 0),
            _ => {
                self.bring_to_a(value)?;
                self.plain(MISC | TAX, 0);
            }
        }
        self.held.x = Some(value);
        Ok(())
    }

    /// The first to the accumulator, the second to the index register.
    fn bring_both(&mut self, a: Register, b: Register) -> Result<(), ClassicError> {
        let keeps_a = self.held.stored.contains(&b)
            || matches!(
                self.definitions.get(&b),
                Some(Operation::HeaderLength { .. } | Operation::Constant { .. } | Operation::Length { .. })
            );
        if self.held.x == Some(b) && self.keeps_x(a, b) {
            return self.bring_to_a(a);
        }
        if keeps_a {
            self.bring_to_a(a)?;
            return self.bring_to_x(b);
        }
        if self.keeps_x(a, b) {
            self.bring_to_x(b)?;
            return self.bring_to_a(a);
        }
        self.bring_to_a(b)?;
        let slot = self.slot(b)?;
        if !self.held.stored.contains(&b) {
            self.plain(ST, slot);
            self.held.stored.insert(b);
        }
        self.bring_to_a(a)?;
        self.bring_to_x(b)
    }

    /// Whether a value comes to the accumulator while the index register holds `x`, and leaves it there.
    fn keeps_x(&self, value: Register, x: Register) -> bool {
        if value == x || self.held.stored.contains(&value) {
            return true;
        }
        match self.definitions.get(&value) {
            Some(Operation::Load { base, .. }) => base.is_none_or(|b| b == x),
            Some(Operation::HeaderLength { .. } | Operation::IsGreater { .. }) => false,
            Some(Operation::Negate { a, .. }) => self.keeps_x(*a, x),
            Some(Operation::Binary { a, b, .. }) => {
                let keeps = |o: &Operand| match o {
                    Operand::Register(r) => self.keeps_x(*r, x),
                    Operand::Constant(_) => true,
                };
                matches!(b, Operand::Constant(_)) && keeps(a)
            }
            _ => true,
        }
    }
}
