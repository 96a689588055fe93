//! An interpreter of classic BPF that counts. It means what libpcap's `bpf_filter` does, and shares nothing with it.
//!
//! Unconditional jumps may go back, as in code for `protochain`; a program that does not end runs forever, in libpcap,
//! too. A load beyond the captured bytes and a division by zero end the program with 0. Loads of Linux (offsets from
//! `0xfffff000` on) lie beyond every packet.

use crate::program::{Instruction, Program};

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the program returned: how many bytes are accepted, 0 for none.
    pub verdict: u32,
    /// How many instructions were executed, the return too.
    pub executed: u64,
}

/// How many words of memory a program has (`BPF_MEMWORDS`).
const WORDS: usize = 16;

/// The registers of one run.
#[derive(Default)]
struct Machine {
    a: u32,
    x: u32,
    memory: [u32; WORDS],
}

/// Runs `program` on a packet of which `captured` is there and `length` bytes were on the wire.
///
/// # Panics
/// If the program has an instruction that classic BPF does not know, runs past its end, or names memory that is not
/// there: [`crate::Libpcap::valid`] takes no such program.
pub fn run(program: &Program, captured: &[u8], length: u32) -> Outcome {
    let mut machine = Machine::default();
    let (mut at, mut executed) = (0, 0);
    loop {
        let i = &program.instructions[at];
        executed += 1;
        at += 1;
        match i.code & 7 {
            CLASS_RET => return Outcome { verdict: if i.code & 0x18 == 0x10 { machine.a } else { i.k }, executed },
            CLASS_JMP if i.code == JA => at = at.wrapping_add_signed(i.k as i32 as isize),
            CLASS_JMP => at += usize::from(if machine.holds(i) { i.jt } else { i.jf }),
            _ => {
                if machine.step(i, captured, length).is_none() {
                    return Outcome { verdict: 0, executed };
                }
            }
        }
    }
}

const CLASS_LD: u16 = 0;
const CLASS_LDX: u16 = 1;
const CLASS_ST: u16 = 2;
const CLASS_STX: u16 = 3;
const CLASS_ALU: u16 = 4;
const CLASS_JMP: u16 = 5;
const CLASS_RET: u16 = 6;
const JA: u16 = 0x05;

impl Machine {
    /// Executes what neither jumps nor returns; nothing if the program ends here with 0.
    fn step(&mut self, i: &Instruction, captured: &[u8], length: u32) -> Option<()> {
        match i.code & 7 {
            CLASS_LD => self.a = self.loaded(i, captured, length)?,
            CLASS_LDX => self.x = self.loaded(i, captured, length)?,
            CLASS_ST => self.memory[i.k as usize] = self.a,
            CLASS_STX => self.memory[i.k as usize] = self.x,
            CLASS_ALU => self.a = self.computed(i)?,
            // CLASS_MISC
            _ if i.code & 0xf8 == 0x80 => self.a = self.x,
            _ if i.code & 0xf8 == 0 => self.x = self.a,
            _ => panic!("no such instruction: {i:?}"),
        }
        Some(())
    }

    /// What a load gives: mode in the upper three bits, size in the next two.
    fn loaded(&self, i: &Instruction, captured: &[u8], length: u32) -> Option<u32> {
        let width = match i.code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => panic!("no such size: {i:?}"),
        };
        let big_endian = |at: u32| {
            let bytes = captured.get(at as usize..at as usize + width)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        match i.code & 0xe0 {
            0x00 => Some(i.k),
            0x20 => big_endian(i.k),
            0x40 => big_endian(self.x.checked_add(i.k)?),
            0x60 => Some(self.memory[i.k as usize]),
            0x80 => Some(length),
            0xa0 => Some((big_endian(i.k)? & 0xf) << 2),
            _ => panic!("no such mode: {i:?}"),
        }
    }

    /// What arithmetic gives; nothing for a division by zero.
    fn computed(&self, i: &Instruction) -> Option<u32> {
        let (a, b) = (self.a, self.operand(i));
        Some(match i.code & 0xf0 {
            0x00 => a.wrapping_add(b),
            0x10 => a.wrapping_sub(b),
            0x20 => a.wrapping_mul(b),
            0x30 => a.checked_div(b)?,
            0x40 => a | b,
            0x50 => a & b,
            0x60 => a.checked_shl(b).unwrap_or(0),
            0x70 => a.checked_shr(b).unwrap_or(0),
            0x80 => a.wrapping_neg(),
            0x90 => a.checked_rem(b)?,
            0xa0 => a ^ b,
            _ => panic!("no such operation: {i:?}"),
        })
    }

    /// Whether the condition of a jump holds.
    fn holds(&self, i: &Instruction) -> bool {
        let (a, b) = (self.a, self.operand(i));
        match i.code & 0xf0 {
            0x10 => a == b,
            0x20 => a > b,
            0x30 => a >= b,
            0x40 => a & b != 0,
            _ => panic!("no such condition: {i:?}"),
        }
    }

    fn operand(&self, i: &Instruction) -> u32 {
        if i.code & 0x08 == 0 { i.k } else { self.x }
    }
}
