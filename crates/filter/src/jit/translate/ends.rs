//! The ends of blocks: branches, lookups, chains of headers.

use super::super::assembler::{Arithmetic, Condition, Gp, Place, Shift};
use super::super::memory;
use super::{CAPTURED, PACKET, SCRATCH, Translator};
use crate::graph::Chain;
use crate::program::{BlockId, Comparison, End, Operand, Register};
use crate::tables::Table;
use bpf_perfect_hash::PerfectHash;

impl Translator<'_> {
    pub(super) fn end(&mut self, block: usize, end: &End) {
        match end {
            End::Accept => self.verdict(1),
            End::Reject => self.verdict(0),
            End::Goto(next) => self.go(block, *next),
            End::Branch { a, comparison, yes, no } => {
                let condition = self.comparison(*a, comparison);
                self.branch(block, condition, *yes, *no);
            }
            End::Lookup { keys, table, yes, no } => {
                let condition = self.lookup(keys, *table, *no);
                self.branch(block, condition, *yes, *no);
            }
            // Programs with maps are not translated (`Jit::new`).
            End::Member { .. } => self.verdict(0),
            End::Chain { chain, yes, no } => {
                self.chain(chain);
                self.asm.jump_if(Condition::Above, self.reject);
                self.branch(block, Condition::Equal, *yes, *no);
            }
        }
    }

    fn verdict(&mut self, verdict: u32) {
        match (self.has_frame(), verdict) {
            (false, verdict) => self.leave(verdict),
            (true, 0) => self.asm.jump(self.reject),
            (true, _) => self.asm.jump(self.accept),
        }
    }

    fn go(&mut self, block: usize, next: BlockId) {
        let to = self.target(next);
        if to == self.following(block) {
            return;
        }
        match to {
            accept if accept == self.accept => self.verdict(1),
            to => self.asm.jump(to),
        }
    }

    /// Goes to one block if the condition holds, otherwise to the other. Flags are set.
    pub(super) fn branch(&mut self, block: usize, condition: Condition, yes: BlockId, no: BlockId) {
        let (to, otherwise) = (self.target(yes), self.target(no));
        let following = self.following(block);
        let accepts_here = to == self.accept && otherwise != self.accept && otherwise != following && !self.has_frame();
        if to == following || accepts_here {
            self.asm.jump_if(condition.negated(), otherwise);
            self.go(block, yes);
        } else {
            self.asm.jump_if(condition, to);
            self.go(block, no);
        }
    }

    /// Sets flags; the condition under which the comparison holds.
    fn comparison(&mut self, a: Register, comparison: &Comparison) -> Condition {
        match comparison {
            Comparison::AnyBit(mask) => {
                let place = self.home(a);
                self.asm.test_constant(place, self.order.mask(a, *mask));
                Condition::NotEqual
            }
            Comparison::Equal(Operand::Constant(n)) => {
                let place = self.home(a);
                self.compare_with(place, self.order.number(a, *n));
                Condition::Equal
            }
            Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) => {
                self.compare(&Operand::Register(a), b);
                match comparison {
                    Comparison::Equal(_) => Condition::Equal,
                    Comparison::Greater(_) => Condition::Above,
                    _ => Condition::AtLeast,
                }
            }
        }
    }

    /// Looks a key up: the condition under which it is a member. `rcx` and `rdx` hold no values in programs with tables.
    fn lookup(&mut self, keys: &[Register], table: usize, no: BlockId) -> Condition {
        let places = self.table(table);
        // Verified: there is one for each word of the table's keys.
        let keys: Vec<Place> = keys.iter().map(|r| self.home(*r)).collect();
        let a = keys[0];
        match &self.program.tables[table] {
            Table::Bitmap { first, words } => {
                self.asm.load(SCRATCH, a);
                if *first > 0 {
                    self.asm.arithmetic_constant(Arithmetic::Sub, Place::Register(SCRATCH), *first);
                }
                // Verified: there are at most 2^27 words.
                let numbers = words.len() as u64 * 32;
                if let Ok(numbers) = u32::try_from(numbers) {
                    self.asm.arithmetic_constant(Arithmetic::Compare, Place::Register(SCRATCH), numbers);
                    let no = self.target(no);
                    self.asm.jump_if(Condition::AtLeast, no);
                }
                self.asm.load(Gp::RCX, Place::Register(SCRATCH));
                self.asm.shift_constant(Shift::Right, Gp::RCX, 5);
                self.asm.address(Gp::RDX, places[0]);
                self.asm.load(Gp::RCX, Place::indexed(Gp::RDX, Gp::RCX, 2));
                self.asm.test_bit(Gp::RCX, SCRATCH);
                Condition::Below
            }
            Table::Hash(hash) => {
                self.slot(a, hash, places[0]);
                self.compare_entry(places[1], a);
                Condition::Equal
            }
            Table::Tuples(tuples) => {
                self.asm.load(SCRATCH, a);
                for word in &keys[1..] {
                    self.asm.multiply_constant(SCRATCH, Place::Register(SCRATCH), tuples.multiplier);
                    self.asm.arithmetic(Arithmetic::Xor, SCRATCH, *word);
                }
                self.slot(Place::Register(SCRATCH), &tuples.hash, places[0]);
                let no = self.target(no);
                for (i, (word, column)) in keys.iter().zip(&places[1..]).enumerate() {
                    if i > 0 {
                        self.asm.jump_if(Condition::NotEqual, no);
                    }
                    self.compare_entry(*column, *word);
                }
                Condition::Equal
            }
        }
    }

    /// Compares a word with what stands in the slot whose number is in the scratch register.
    fn compare_entry(&mut self, column: usize, word: Place) {
        self.asm.address(Gp::RDX, column);
        self.asm.load(Gp::RCX, Place::indexed(Gp::RDX, SCRATCH, 2));
        self.asm.arithmetic(Arithmetic::Compare, Gp::RCX, word);
    }

    /// Computes the slot of a number, as [`PerfectHash::slot`] does.
    fn slot(&mut self, a: Place, hash: &PerfectHash, displacements: usize) {
        // The product's lower half comes to the scratch register, the upper one to `edx`.
        self.asm.load(SCRATCH, a);
        self.asm.constant(Gp::RCX, u64::from(hash.multiplier));
        self.asm.multiply_to_both(Place::Register(Gp::RCX));
        match u8::try_from(hash.shift()) {
            Ok(shift) if shift < 32 => {
                self.asm.load(Gp::RCX, Place::Register(SCRATCH));
                self.asm.shift_constant(Shift::Right, Gp::RCX, shift);
            }
            _ => self.asm.constant(Gp::RCX, 0),
        }
        self.asm.arithmetic(Arithmetic::Xor, SCRATCH, Place::Register(Gp::RDX));
        self.asm.address(Gp::RDX, displacements);
        self.asm.load_half(Gp::RCX, Place::indexed(Gp::RDX, Gp::RCX, 1));
        self.asm.arithmetic(Arithmetic::Xor, SCRATCH, Place::Register(Gp::RCX));
        self.asm.arithmetic_constant(Arithmetic::And, Place::Register(SCRATCH), (hash.slots.len() - 1) as u32);
    }

    /// Where a table's parts are in the data.
    fn table(&mut self, table: usize) -> Vec<usize> {
        if let Some(places) = &self.tables[table] {
            return places.clone();
        }
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let places = match &self.program.tables[table] {
            Table::Bitmap { words: all, .. } => vec![self.asm.data(words(all).into_iter())],
            Table::Hash(hash) => {
                let displacements = hash.displacements.iter().flat_map(|d| d.to_le_bytes());
                vec![self.asm.data(displacements), self.asm.data(words(&hash.slots).into_iter())]
            }
            Table::Tuples(tuples) => {
                let displacements = tuples.hash.displacements.iter().flat_map(|d| d.to_le_bytes());
                let mut places = vec![self.asm.data(displacements)];
                places.extend(tuples.columns.iter().map(|column| self.asm.data(words(column).into_iter())));
                places
            }
        };
        self.tables[table] = Some(places.clone());
        places
    }

    /// Calls what follows a chain, and compares its result with 1: above says that the packet is rejected, equal that it is found.
    fn chain(&mut self, chain: &Chain) {
        let kept = self.kept_over_calls();
        for r in &kept {
            self.asm.push(*r);
        }
        // At the entry the stack pointer is 8 above a multiple of 16; for a call it has to be one.
        let pushed = 8 * (1 + self.saved.len() + kept.len()) as u32 + self.frame;
        let padding = i32::from(!pushed.is_multiple_of(16)) * 8;
        if padding > 0 {
            self.asm.arithmetic_constant_wide(Arithmetic::Sub, Gp::RSP, padding);
        }
        // The packet and its captured length are where they are wanted.
        self.asm.constant(Gp::RDX, u64::from(chain.is_ip6));
        self.asm.constant(Gp::RCX, u64::from(chain.start));
        self.asm.constant(Gp::R8, u64::from(chain.protocol));
        self.asm.constant(SCRATCH, memory::chain as *const () as u64);
        self.asm.call(SCRATCH);
        if padding > 0 {
            self.asm.arithmetic_constant_wide(Arithmetic::Add, Gp::RSP, padding);
        }
        for r in kept.iter().rev() {
            self.asm.pop(*r);
        }
        self.asm.arithmetic_constant(Arithmetic::Compare, Place::Register(SCRATCH), 1);
    }

    /// What a call may change and the filter may read afterwards.
    fn kept_over_calls(&self) -> Vec<Gp> {
        let mut kept = vec![PACKET, CAPTURED];
        if self.needs.length {
            kept.push(self.needs.length_register());
        }
        if self.needs.known {
            kept.push(self.needs.known_register());
        }
        let values = [Gp::R8, Gp::R9, Gp::R10, Gp::R11, Gp::RCX, Gp::RDX];
        kept.extend(values.into_iter().filter(|r| self.allocation.uses(*r)));
        kept
    }
}
