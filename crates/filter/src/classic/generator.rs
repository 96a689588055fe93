//! Values on their way to the machine's registers and words of memory.
//!
//! A value is computed when it is wanted, by what is held at that point on all ways; nothing here knows blocks.

use rustc_hash::FxHashMap;

use super::code::*;
use super::layout::Item;
use super::variables::Variables;
use crate::language::Binary;
use crate::program::{LONGEST, Operand, Operation, Register};
use crate::ranges::Ranges;
use crate::steps::Label;

/// What the machine's registers and memory hold.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) a: Option<Register>,
    pub(super) x: Option<Register>,
    /// What a word of memory holds.
    pub(super) stored: FxHashMap<Register, u32>,
    /// Numbers that were compared: those that go on are no greater.
    pub(super) most: FxHashMap<Register, u32>,
}

impl Held {
    /// What is held on both ways.
    pub(super) fn join(&mut self, other: &Held) {
        if self.a != other.a {
            self.a = None;
        }
        if self.x != other.x {
            self.x = None;
        }
        self.stored.retain(|r, slot| other.stored.get(r) == Some(slot));
        self.most.retain(|r, _| other.most.contains_key(r));
        self.most.iter_mut().for_each(|(r, most)| *most = (*most).max(other.most[r]));
    }
}

pub(super) struct Generator {
    pub(super) ranges: Ranges,
    pub(super) definitions: FxHashMap<Register, Operation>,
    pub(super) uses: FxHashMap<Register, usize>,
    pub(super) items: Vec<Item>,
    pub(super) held: Held,
    /// In which word a value was stored last: where ways meet, it is in one word on all of them.
    pub(super) slots: FxHashMap<Register, u32>,
    /// Values on their way, whose words are not for others.
    pub(super) kept: Vec<Register>,
    /// Words of memory did not suffice.
    pub(super) is_frugal: bool,
    /// What is loaded is stored, too, if its place is not at hand: that pays if it will not be when it is wanted again.
    pub(super) stores_loads: bool,
    pub(super) variables: Variables,
    /// The last block that reads a register, itself or by way of what is computed of it.
    pub(super) last_reads: FxHashMap<Register, usize>,
    /// The block at hand.
    pub(super) here: usize,
    pub(super) labels: usize,
}

impl Generator {
    pub(super) fn plain(&mut self, code: u16, k: u32) {
        self.items.push(if code == RET { Item::End((code, k)) } else { Item::Plain((code, k)) });
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label::Own(self.labels - 1)
    }

    /// Rejects the packet if a test holds.
    pub(super) fn reject_if(&mut self, code: u16, k: u32) {
        let (rejected, other) = (self.label(), self.label());
        self.items.push(Item::Branch { test: (code, k), yes: rejected, no: other });
        self.items.push(Item::Here(rejected));
        self.plain(RET, 0);
        self.items.push(Item::Here(other));
    }

    /// Instructions that a value costs if no register holds it, as far as it matters: three is many.
    pub(super) fn cost(&self, value: Register) -> u32 {
        self.cost_below(value, 3)
    }

    /// The same up to `most`: what is computed of headers behind headers is not gone through to its end.
    pub(super) fn cost_below(&self, value: Register, most: u32) -> u32 {
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

    pub(super) fn cost_in_x(&self, value: Register, most: u32) -> u32 {
        match self.definitions.get(&value) {
            Some(Operation::HeaderLength { .. } | Operation::Constant { .. } | Operation::Length { .. }) => 1,
            _ => 1 + self.cost_below(value, most),
        }
    }

    /// Brings a value to the accumulator. The index register may change.
    pub(super) fn bring_to_a(&mut self, value: Register) -> Result<(), ClassicError> {
        if self.held.a == Some(value) {
            return Ok(());
        }
        if let Some(slot) = self.held.stored.get(&value) {
            self.plain(LD | MEM, *slot);
        } else if self.held.x == Some(value) {
            self.plain(MISC | TXA, 0);
        } else {
            let is_load = matches!(self.definitions.get(&value), Some(Operation::Load { .. }));
            let may = self.stores_loads || !is_load;
            let worth = may && self.uses.get(&value).is_some_and(|n| *n > 1) && self.cost(value) > 2;
            self.compute(value)?;
            if worth && let Some(slot) = self.free_slot(value) {
                self.store(value, slot);
            }
        }
        self.held.a = Some(value);
        Ok(())
    }

    /// Stores the accumulator, which holds a value.
    pub(super) fn store(&mut self, value: Register, slot: u32) {
        self.plain(ST, slot);
        self.held.stored.retain(|_, taken| *taken != slot);
        self.held.stored.insert(value, slot);
        self.slots.insert(value, slot);
    }

    /// The accumulator is a variable's new value.
    pub(super) fn set(&mut self, variable: Register) {
        let slot = self.held.stored[&variable];
        self.plain(ST, slot);
        // What was computed of it before is another number now; other variables are what they were.
        let stored = self.variables.words.clone();
        let mut most = std::mem::take(&mut self.held.most);
        most.retain(|r, _| *r != variable && stored.contains_key(r));
        self.held = Held { a: Some(variable), x: None, stored, most };
    }

    /// A word of memory for a value, if one is free.
    pub(super) fn free_slot(&mut self, value: Register) -> Option<u32> {
        // A word whose value nobody reads any more is free again.
        let (last_reads, variables, here) = (&self.last_reads, &self.variables.words, self.here);
        let is_read = |r: &Register| variables.contains_key(r) || last_reads.get(r).is_some_and(|last| *last >= here);
        self.slots.retain(|r, _| is_read(r));
        self.held.stored.retain(|r, _| is_read(r));
        let is_free = |slot: &u32| self.held.stored.values().all(|taken| taken != slot);
        let last = self.slots.get(&value).copied().filter(is_free);
        let of_nobody =
            || (0..MEMORY as u32).find(|slot| is_free(slot) && self.slots.values().all(|taken| taken != slot));
        last.or_else(of_nobody).or_else(|| (0..MEMORY as u32).find(is_free))
    }

    /// A word of memory for a value: if none is free, that of one that can be computed again.
    pub(super) fn slot(&mut self, value: Register) -> Result<u32, ClassicError> {
        if let Some(slot) = self.held.stored.get(&value) {
            return Ok(*slot);
        }
        if let Some(slot) = self.free_slot(value) {
            return Ok(slot);
        }
        let is_kept = |r: &Register| self.variables.words.contains_key(r) || self.kept.contains(r);
        let others = self.held.stored.iter().filter(|(r, _)| !is_kept(r));
        let slot = others.map(|(_, slot)| *slot).min().filter(|_| self.is_frugal).ok_or(ClassicError::Memory)?;
        self.held.stored.retain(|_, taken| *taken != slot);
        Ok(slot)
    }

    pub(super) fn compute(&mut self, value: Register) -> Result<(), ClassicError> {
        if self.items.len() > MOST_WRITTEN {
            return Err(ClassicError::TooLong);
        }
        let size_code = |size: u8| match size {
            1 => BYTE,
            2 => HALF,
            _ => 0,
        };
        match self.definitions.get(&value).cloned() {
            None => self.plain(LD, 0),
            Some(Operation::Constant { n, .. }) => self.plain(LD, n),
            Some(Operation::Length { .. }) => self.plain(LD | LEN, 0),
            Some(Operation::Ancillary { what, .. }) => {
                self.plain(LD | ABS | size_code(what.classic_size()), what.classic_offset());
            }
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
                        let commutes = matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor);
                        let turns = commutes && !self.comes_without_memory(a, b) && self.comes_without_memory(b, a);
                        let (a, b) = if turns { (b, a) } else { (a, b) };
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
            // Variables are stored.
            Some(
                Operation::Copy { .. } | Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. },
            ) => {}
        }
        Ok(())
    }

    /// Computes a value of the accumulator and the index register, which holds `b`.
    pub(super) fn by_x(&mut self, code: u16, value: Register, b: Register) -> Result<(), ClassicError> {
        let is_shift = [Binary::ShiftLeft, Binary::ShiftRight].map(|op| ALU | alu(op)).contains(&code);
        if !is_shift || self.ranges.range(b).greatest <= 31 {
            self.plain(code | X, 0);
            return Ok(());
        }
        // A word holds the operand meanwhile.
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
    pub(super) fn bring_base(&mut self, base: Register, end: u64) -> Result<(), ClassicError> {
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
    pub(super) fn bring_to_x(&mut self, value: Register) -> Result<(), ClassicError> {
        if self.held.x == Some(value) {
            return Ok(());
        }
        match self.definitions.get(&value) {
            _ if self.held.stored.contains_key(&value) => self.plain(LDX | MEM, self.held.stored[&value]),
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

    /// Whether a value comes to the index register and leaves the accumulator as it is.
    pub(super) fn keeps_a(&self, value: Register) -> bool {
        use Operation::{Constant, HeaderLength, Length};
        let definition = self.definitions.get(&value);
        self.held.stored.contains_key(&value)
            || matches!(definition, Some(HeaderLength { .. } | Constant { .. } | Length { .. }))
    }

    /// Whether the first comes to the accumulator and the second to the index register without a word of memory for either.
    pub(super) fn comes_without_memory(&self, a: Register, b: Register) -> bool {
        self.keeps_a(b) || self.keeps_x(a, b)
    }

    /// The first to the accumulator, the second to the index register.
    pub(super) fn bring_both(&mut self, a: Register, b: Register) -> Result<(), ClassicError> {
        if self.held.x == Some(b) && self.keeps_x(a, b) {
            return self.bring_to_a(a);
        }
        if self.keeps_a(b) {
            self.kept.push(b);
            self.bring_to_a(a)?;
            self.kept.pop();
            return self.bring_to_x(b);
        }
        if self.keeps_x(a, b) {
            self.bring_to_x(b)?;
            // A word that was to be read may have been taken.
            if self.keeps_x(a, b) {
                return self.bring_to_a(a);
            }
        }
        if self.is_frugal && self.words(a) > self.words(b) {
            self.bring_stored(a)?;
            self.bring_to_x(b)?;
            self.kept.pop();
            return self.bring_to_a(a);
        }
        self.bring_stored(b)?;
        self.bring_to_a(a)?;
        self.kept.pop();
        self.bring_to_x(b)
    }

    /// Brings a value to a word of memory, which holds it until it is no longer among those that are kept.
    pub(super) fn bring_stored(&mut self, value: Register) -> Result<(), ClassicError> {
        self.bring_to_a(value)?;
        let slot = self.slot(value)?;
        if !self.held.stored.contains_key(&value) {
            self.store(value, slot);
        }
        self.kept.push(value);
        Ok(())
    }

    /// How many words of memory it takes to compute a value of nothing.
    pub(super) fn words(&self, value: Register) -> u32 {
        fn of(
            definitions: &FxHashMap<Register, Operation>,
            value: Register,
            known: &mut FxHashMap<Register, u32>,
        ) -> u32 {
            if let Some(words) = known.get(&value) {
                return *words;
            }
            let mut operands = Vec::new();
            if let Some(definition) = definitions.get(&value) {
                definition.reads(&mut |r| operands.push(of(definitions, r, known)));
            }
            operands.sort_unstable();
            let words = match operands[..] {
                [] => 0,
                [one] => one,
                // The one that takes less is computed while the other one is stored.
                [less, more, ..] => more.max(less + 1),
            };
            known.insert(value, words);
            words
        }
        of(&self.definitions, value, &mut FxHashMap::default())
    }

    /// Whether a value comes to the accumulator while the index register holds `x`, and leaves it there.
    pub(super) fn keeps_x(&self, value: Register, x: Register) -> bool {
        if value == x || self.held.stored.contains_key(&value) {
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
