//! What reads the packet, behind checks of its length.

use super::super::assembler::{Arithmetic, Condition, Place, Shift};
use super::super::memory::Known;
use super::{CAPTURED, PACKET, SCRATCH, Translator};
use crate::program::{BasicBlock, Comparison, End, Operand, Operation, Register};
use crate::value::Ancillary;

impl Translator<'_> {
    /// Rejects the packet if it has not so many bytes from the operation's base on. 64 bits: no sum wraps.
    pub(super) fn check(&mut self, operation: &Operation, end: Option<u64>) {
        let (Some(end), Some((base, _))) = (end, operation.wants()) else { return };
        match (base.map(|b| self.home(b)), i32::try_from(end)) {
            (None, Ok(end)) => {
                self.asm.arithmetic_constant_wide(Arithmetic::Compare, CAPTURED, end);
                self.asm.jump_if(Condition::Below, self.reject);
                return;
            }
            (None, Err(_)) => self.asm.constant(SCRATCH, end),
            (Some(Place::Register(base)), Ok(end)) => self.asm.sum(SCRATCH, Place::at(base, end)),
            (Some(base), _) => {
                self.asm.load(SCRATCH, base);
                self.add_to_scratch(end);
            }
        }
        self.asm.arithmetic_wide(Arithmetic::Compare, SCRATCH, Place::Register(CAPTURED));
        self.asm.jump_if(Condition::Above, self.reject);
    }

    /// Adds a number of any size to all 64 bits of the scratch register.
    fn add_to_scratch(&mut self, mut n: u64) {
        while n > 0 {
            let part = i32::try_from(n).unwrap_or(i32::MAX);
            self.asm.arithmetic_constant_wide(Arithmetic::Add, SCRATCH, part);
            n -= part as u64;
        }
    }

    /// Where bytes of the packet are.
    fn packet(&mut self, base: Option<Register>, offset: u32) -> Place {
        let base = base.map(|b| self.home(b));
        let (index, displacement) = match (base, i32::try_from(offset)) {
            (None, Ok(offset)) => return Place::at(PACKET, offset),
            (None, Err(_)) => {
                self.asm.constant(SCRATCH, u64::from(offset));
                (SCRATCH, 0)
            }
            (Some(Place::Register(base)), Ok(offset)) => (base, offset),
            (Some(base), Ok(offset)) => {
                self.asm.load(SCRATCH, base);
                (SCRATCH, offset)
            }
            (Some(base), Err(_)) => {
                self.asm.load(SCRATCH, base);
                self.add_to_scratch(u64::from(offset));
                (SCRATCH, 0)
            }
        };
        Place::Memory { base: PACKET, index: Some((index, 0)), displacement }
    }

    /// Loads a field, in the packet's byte order if it may stay so.
    pub(super) fn load(&mut self, to: Place, base: Option<Register>, offset: u32, size: u8, swapped: bool) {
        let from = self.packet(base, offset);
        let r = Translator::work_register(to);
        match (size, swapped) {
            (1, _) => self.asm.load_byte(r, from),
            (2, _) => self.asm.load_half(r, from),
            (_, false) if self.has_movbe => self.asm.movbe(r, from),
            (_, _) => self.asm.load(r, from),
        }
        match (size, swapped) {
            (2, false) => self.asm.swap_half(r),
            (4, false) if !self.has_movbe => self.asm.bswap(r),
            _ => {}
        }
        self.asm.store(to, r);
    }

    pub(super) fn header_length(&mut self, to: Place, offset: u32) {
        let from = self.packet(None, offset);
        let r = Translator::work_register(to);
        self.asm.load_byte(r, from);
        self.asm.arithmetic_constant(Arithmetic::And, Place::Register(r), 0xf);
        self.asm.shift_constant(Shift::Left, r, 2);
        self.asm.store(to, r);
    }

    pub(super) fn ancillary(&mut self, to: Place, what: Ancillary) {
        let at = match what {
            Ancillary::InterfaceIndex => Known::INTERFACE,
            Ancillary::PacketType => Known::PACKET_TYPE,
            Ancillary::VlanPresent => Known::VLAN_PRESENT,
            Ancillary::VlanTag => Known::VLAN_TAG,
        };
        let r = Translator::work_register(to);
        self.asm.load(r, Place::at(self.needs.known_register(), at));
        self.asm.store(to, r);
    }

    /// Whether a block ends by loading a field and comparing it with a number, and nothing else reads the field. Halves are not
    /// compared in memory: numbers of 16 bits in instructions are slow to decode.
    pub(super) fn compared_in_memory(&self, i: usize, block: &BasicBlock) -> bool {
        let (Some(Operation::Load { to, size, .. }), End::Branch { a, comparison, .. }) =
            (block.operations.last(), &block.end)
        else {
            return false;
        };
        let is_scratch = self.allocation.writes[i].last().copied().flatten();
        let fits = match comparison {
            Comparison::Equal(Operand::Constant(n)) => *size == 4 || *size == 1 && *n <= 0xff,
            Comparison::AnyBit(mask) => *size == 4 || *size == 1 && *mask <= 0xff,
            _ => false,
        };
        let is_plain = *size == 1 || self.order.is_swapped(*to);
        a == to && fits && is_plain && is_scratch == Some(super::Home::Register(SCRATCH))
    }

    /// Compares a field in the packet: the condition under which the comparison holds.
    pub(super) fn compare_in_memory(&mut self, load: &Operation, comparison: &Comparison) -> Condition {
        let Operation::Load { to, base, offset, size } = load else { unreachable!("the operation is a load") };
        let place = self.packet(*base, *offset);
        match comparison {
            Comparison::AnyBit(mask) => {
                match size {
                    1 => self.asm.test_byte(place, *mask as u8),
                    _ => self.asm.test_constant(place, self.order.mask(*to, *mask)),
                }
                Condition::NotEqual
            }
            Comparison::Equal(Operand::Constant(n)) => {
                match size {
                    1 => self.asm.compare_byte(place, *n as u8),
                    _ => self.asm.arithmetic_constant(Arithmetic::Compare, place, self.order.number(*to, *n)),
                }
                Condition::Equal
            }
            _ => unreachable!("the comparison is with a number"),
        }
    }
}
