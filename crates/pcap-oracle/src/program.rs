//! Programs of classic BPF.

use std::fmt;

/// One instruction, as the kernel's and libpcap's `bpf_insn` have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// Class, size or operation, mode or source.
    pub code: u16,
    /// How many instructions to leave out if a condition holds.
    pub jt: u8,
    /// How many if it does not.
    pub jf: u8,
    /// A value, an offset, or the distance of an unconditional jump.
    pub k: u32,
}

/// A program, from its first instruction on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
}

/// As `tcpdump -ddd` prints it, without the line that holds the length: one instruction a line, in decimal numbers.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instructions.iter().try_for_each(|i| writeln!(f, "{} {} {} {}", i.code, i.jt, i.jf, i.k))
    }
}
