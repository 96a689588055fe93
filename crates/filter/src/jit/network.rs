//! Which fields stay in the packet's byte order: those that are only compared for equality with numbers, or have bits tested. The
//! numbers are swapped when the program is translated, instead of the field of each packet.

use crate::program::{Comparison, End, Operand, Operation, Program, Register};

/// By register: the size of the field that it holds in the packet's byte order, or 0.
#[derive(Debug)]
pub(super) struct NetworkOrder(Vec<u8>);

/// The size of what is no field: something else is written to the register, or read from it.
const NOT: u8 = u8::MAX;

impl NetworkOrder {
    pub(super) fn of(program: &Program) -> NetworkOrder {
        let mut sizes = vec![0; program.registers as usize];
        for block in &program.blocks {
            for operation in &block.operations {
                operation.reads(&mut |r| sizes[r.0 as usize] = NOT);
                let Some(to) = operation.writes() else { continue };
                let known = &mut sizes[to.0 as usize];
                *known = match operation {
                    Operation::Load { size: size @ (2 | 4), .. } if *known == 0 || known == size => *size,
                    _ => NOT,
                };
            }
            let is_test = |c: &Comparison| matches!(c, Comparison::Equal(Operand::Constant(_)) | Comparison::AnyBit(_));
            match &block.end {
                End::Branch { comparison, .. } if is_test(comparison) => {}
                end => end.reads(&mut |r| sizes[r.0 as usize] = NOT),
            }
        }
        NetworkOrder(sizes.into_iter().map(|s| if s == NOT { 0 } else { s }).collect())
    }

    /// Whether a register holds bytes in the packet's order.
    pub(super) fn is_swapped(&self, register: Register) -> bool {
        self.0[register.0 as usize] != 0
    }

    /// What a register holds if its field is `n`; a number that it never holds if no field is.
    pub(super) fn number(&self, register: Register, n: u32) -> u32 {
        match self.0[register.0 as usize] {
            // A number beyond 16 bits is as different from every field as it was.
            2 => u16::try_from(n).map_or(n, |n| u32::from(n.swap_bytes())),
            4 => n.swap_bytes(),
            _ => n,
        }
    }

    /// The bits of a register that are those of a mask in its field.
    pub(super) fn mask(&self, register: Register, mask: u32) -> u32 {
        match self.0[register.0 as usize] {
            2 => u32::from((mask as u16).swap_bytes()),
            4 => mask.swap_bytes(),
            _ => mask,
        }
    }
}
