//! What is cheaper to do before translation: numbers go where they are used, and what nothing uses goes.
//!
//! ```text
//! v1 = 0x800                                (nothing)
//! if v1 == v0 goto b1 else b2        →      if v0 == 0x800 goto b1 else b2
//! ```

use crate::program::{Comparison, End, Operand, Operation, Program, Register};

/// A safe program that does the same.
pub(crate) fn simplify(program: &Program) -> Program {
    let mut program = program.clone();
    let constants = constants(&program);
    let constant = |r: Register| constants[r.0 as usize].number();
    for block in &mut program.blocks {
        for operation in &mut block.operations {
            with_constants(operation, &constant);
        }
        end_with_constants(&mut block.end, &constant);
    }
    remove_unused(&mut program);
    program
}

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Unwritten,
    Constant(u32),
    Varying,
}

impl Known {
    fn number(self) -> Option<u32> {
        match self {
            Known::Constant(n) => Some(n),
            _ => None,
        }
    }
}

/// Registers that are only ever set to one number. They are written before they are read, so that they always hold it.
fn constants(program: &Program) -> Vec<Known> {
    let mut known = vec![Known::Unwritten; program.registers as usize];
    for operation in program.blocks.iter().flat_map(|b| &b.operations) {
        let Some(to) = operation.writes() else { continue };
        let known = &mut known[to.0 as usize];
        *known = match (operation, *known) {
            (Operation::Constant { n, .. }, Known::Unwritten) => Known::Constant(*n),
            (Operation::Constant { n, .. }, Known::Constant(m)) if *n == m => Known::Constant(m),
            _ => Known::Varying,
        };
    }
    known
}

fn with_constants(operation: &mut Operation, constant: &impl Fn(Register) -> Option<u32>) {
    let fold = |o: &mut Operand| {
        if let Some(n) = o.register().and_then(constant) {
            *o = Operand::Constant(n);
        }
    };
    match operation {
        Operation::Binary { a, b, .. } | Operation::IsGreater { a, b, .. } => {
            fold(a);
            fold(b);
        }
        Operation::Load { base, offset, .. } => {
            // Sums beyond 32 bits stay sums.
            if let Some(sum) = base.and_then(constant).and_then(|n| n.checked_add(*offset)) {
                (*base, *offset) = (None, sum);
            }
        }
        _ => {}
    }
}

/// The number of a comparison comes to stand to the right.
fn end_with_constants(end: &mut End, constant: &impl Fn(Register) -> Option<u32>) {
    let End::Branch { a, comparison, yes, no } = end else { return };
    if let Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) = comparison
        && let Some(n) = b.register().and_then(constant)
    {
        *b = Operand::Constant(n);
        return;
    }
    let Some(n) = constant(*a).map(Operand::Constant) else { return };
    let (b, new, negated) = match comparison {
        Comparison::Equal(Operand::Register(b)) => (*b, Comparison::Equal(n), false),
        // n > b: not b >= n.
        Comparison::Greater(Operand::Register(b)) => (*b, Comparison::AtLeast(n), true),
        // n >= b: not b > n.
        Comparison::AtLeast(Operand::Register(b)) => (*b, Comparison::Greater(n), true),
        _ => return,
    };
    (*a, *comparison) = (b, new);
    if negated {
        std::mem::swap(yes, no);
    }
}

/// Constants and the like that nothing reads go; loads and divisions stay, which may reject the packet.
fn remove_unused(program: &mut Program) {
    let mut is_read = vec![false; program.registers as usize];
    for block in &program.blocks {
        block.operations.iter().for_each(|o| o.reads(&mut |r| is_read[r.0 as usize] = true));
        block.end.reads(&mut |r| is_read[r.0 as usize] = true);
    }
    for block in &mut program.blocks {
        block.operations.retain(|o| match o {
            Operation::Constant { to, .. } | Operation::Length { to } => is_read[to.0 as usize],
            _ => true,
        });
    }
}
