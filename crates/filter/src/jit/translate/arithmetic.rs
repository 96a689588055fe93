//! Arithmetic of 32 bits. A result may go to where an operand is.

use super::super::assembler::{Arithmetic, Condition, Gp, Place, Shift};
use super::{SCRATCH, Translator};
use crate::language::Binary;
use crate::program::{Operand, Register};

impl Translator<'_> {
    /// Loads an operand.
    fn operand(&mut self, to: Gp, operand: &Operand) {
        match operand {
            Operand::Constant(n) => self.asm.constant(to, u64::from(*n)),
            Operand::Register(r) => {
                let from = self.home(*r);
                self.asm.load(to, from);
            }
        }
    }

    pub(super) fn binary(&mut self, op: Binary, to: Place, a: &Operand, b: &Operand) {
        match op {
            Binary::Add => self.two_operands(Arithmetic::Add, to, a, b),
            Binary::Sub => self.two_operands(Arithmetic::Sub, to, a, b),
            Binary::And => self.two_operands(Arithmetic::And, to, a, b),
            Binary::Or => self.two_operands(Arithmetic::Or, to, a, b),
            Binary::Xor => self.two_operands(Arithmetic::Xor, to, a, b),
            Binary::Mul => self.multiply(to, a, b),
            Binary::Div => self.divide(to, a, b, Gp::RAX),
            Binary::Mod => self.divide(to, a, b, Gp::RDX),
            Binary::ShiftLeft => self.shift(Shift::Left, to, a, b),
            Binary::ShiftRight => self.shift(Shift::Right, to, a, b),
        }
    }

    /// Where to compute `a op b`: where the result goes, unless that is where `b` is still read.
    fn destination(&self, to: Place, b: &Operand) -> Gp {
        match b {
            Operand::Register(b) if self.home(*b) == to => SCRATCH,
            _ => Translator::work_register(to),
        }
    }

    fn two_operands(&mut self, op: Arithmetic, to: Place, a: &Operand, b: &Operand) {
        let r = self.destination(to, b);
        self.operand(r, a);
        match b {
            Operand::Constant(n) => self.asm.arithmetic_constant(op, Place::Register(r), *n),
            Operand::Register(b) => {
                let b = self.home(*b);
                self.asm.arithmetic(op, r, b);
            }
        }
        self.asm.store(to, r);
    }

    fn multiply(&mut self, to: Place, a: &Operand, b: &Operand) {
        let r = self.destination(to, b);
        match (a, b) {
            (Operand::Register(a), Operand::Constant(n)) => {
                let a = self.home(*a);
                self.asm.multiply_constant(r, a, *n);
            }
            (a, Operand::Register(b)) => {
                self.operand(r, a);
                let b = self.home(*b);
                self.asm.multiply(r, b);
            }
            (a, Operand::Constant(n)) => {
                self.operand(r, a);
                self.asm.multiply_constant(r, Place::Register(r), *n);
            }
        }
        self.asm.store(to, r);
    }

    /// Rejects the packet if the divisor is 0.
    pub(super) fn check_divisor(&mut self, divisor: &Operand) {
        match divisor {
            Operand::Constant(0) => self.asm.jump(self.reject),
            Operand::Constant(_) => {}
            Operand::Register(b) => {
                let b = self.home(*b);
                self.compare_with(b, 0);
                self.asm.jump_if(Condition::Equal, self.reject);
            }
        }
    }

    /// Quotient or remainder, by the register that the machine puts it into. `rcx` and `rdx` hold no values in programs that divide.
    fn divide(&mut self, to: Place, a: &Operand, b: &Operand, result: Gp) {
        self.operand(Gp::RAX, a);
        let by = match b {
            // Never reached with 0.
            Operand::Constant(n) => {
                self.asm.constant(Gp::RCX, u64::from(*n));
                Place::Register(Gp::RCX)
            }
            Operand::Register(b) => self.home(*b),
        };
        self.asm.arithmetic(Arithmetic::Xor, Gp::RDX, Place::Register(Gp::RDX));
        self.asm.divide(by);
        self.asm.store(to, result);
    }

    /// Shifts by more than 31 give 0; the machine takes the low five bits.
    fn shift(&mut self, op: Shift, to: Place, a: &Operand, b: &Operand) {
        match b {
            Operand::Constant(n) => {
                let r = Translator::work_register(to);
                match u8::try_from(*n) {
                    Ok(n) if n < 32 => {
                        self.operand(r, a);
                        self.asm.shift_constant(op, r, n);
                    }
                    _ => self.asm.constant(r, 0),
                }
                self.asm.store(to, r);
            }
            Operand::Register(_) => {
                self.operand(Gp::RCX, b);
                self.operand(SCRATCH, a);
                self.asm.shift(op, SCRATCH);
                self.asm.arithmetic_constant(Arithmetic::Compare, Place::Register(Gp::RCX), 32);
                self.asm.ones_if_below(Gp::RCX);
                self.asm.arithmetic(Arithmetic::And, SCRATCH, Place::Register(Gp::RCX));
                self.asm.store(to, SCRATCH);
            }
        }
    }

    pub(super) fn negate(&mut self, to: Place, a: Register) {
        let r = Translator::work_register(to);
        self.operand(r, &Operand::Register(a));
        self.asm.negate(r);
        self.asm.store(to, r);
    }

    pub(super) fn is_greater(&mut self, to: Place, a: &Operand, b: &Operand) {
        self.compare(a, b);
        self.asm.set(Condition::Above);
        self.asm.store(to, SCRATCH);
    }

    /// Sets flags by comparing two operands.
    pub(super) fn compare(&mut self, a: &Operand, b: &Operand) {
        let a = match a {
            Operand::Register(a) => self.home(*a),
            Operand::Constant(n) => {
                self.asm.constant(SCRATCH, u64::from(*n));
                Place::Register(SCRATCH)
            }
        };
        match (a, b) {
            (a, Operand::Constant(n)) => self.compare_with(a, *n),
            (Place::Register(a), Operand::Register(b)) => {
                let b = self.home(*b);
                self.asm.arithmetic(Arithmetic::Compare, a, b);
            }
            (a, Operand::Register(b)) => match self.home(*b) {
                // What only this comparison reads may be in the scratch register.
                Place::Register(b) => self.asm.arithmetic_to(Arithmetic::Compare, a, b),
                b => {
                    self.asm.load(SCRATCH, a);
                    self.asm.arithmetic(Arithmetic::Compare, SCRATCH, b);
                }
            },
        }
    }
}
