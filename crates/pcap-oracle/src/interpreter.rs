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
    is_kernel: bool,
}

/// Runs `program` on a packet of which `captured` is there and `length` bytes were on the wire.
///
/// # Panics
/// If the program has an instruction that classic BPF does not know, runs past its end, or names memory that is not
/// there: [`crate::Libpcap::valid`] takes no such program.
pub fn run(program: &Program, captured: &[u8], length: u32) -> Outcome {
    run_on(Machine::default(), program, captured, length)
}

/// The same as the kernel means it (`bpf_convert_filter`): a shift by a register is one modulo 32, and a place that is a sum wraps.
///
/// # Panics
/// As [`run`].
pub fn run_as_kernel(program: &Program, captured: &[u8], length: u32) -> Outcome {
    run_on(Machine { is_kernel: true, ..Machine::default() }, program, captured, length)
}

fn run_on(mut machine: Machine, program: &Program, captured: &[u8], length: u32) -> Outcome {
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

/// Changes a packet so that a program goes a random way on it: where it tests a field, that is made to have the one answer or the other.
/// Returns the ends of the fields that it loads on that way.
pub fn steer(program: &Program, bytes: &mut [u8], random: &mut fastrand::Rng) -> Vec<usize> {
    let length = bytes.len() as u32;
    let mut machine = Machine::default();
    let mut ends = Vec::new();
    let mut is_fixed = vec![false; bytes.len()];
    // The field that the accumulator holds, and which of its bits.
    let mut held: Option<(usize, usize, u32)> = None;
    let mut at = 0;
    while let Some(i) = program.instructions.get(at) {
        at += 1;
        let width = [4, 2, 1, 4][usize::from(i.code >> 3 & 3)];
        match i.code & 7 {
            CLASS_RET => break,
            CLASS_JMP if i.code == JA => at = at.wrapping_add_signed(i.k as i32 as isize),
            CLASS_JMP => {
                if let Some((place, width, bits)) = held.filter(|_| i.code & 0x08 == 0)
                    && !is_fixed[place..place + width].contains(&true)
                {
                    let is_wanted = random.bool();
                    let n = match (i.code & 0xf0, is_wanted) {
                        (0x10, true) | (0x20, false) | (0x30, true) => i.k,
                        (0x10, false) => i.k ^ 1 << random.u32(0..8),
                        (0x20, true) => i.k.saturating_add(1),
                        (0x30, false) => i.k.saturating_sub(1),
                        (_, true) => i.k & random.u32(..),
                        (_, false) => machine.a & !i.k,
                    };
                    let bytes = &mut bytes[place..place + width];
                    let old = bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
                    bytes.copy_from_slice(&(old & !bits | n & bits).to_be_bytes()[4 - width..]);
                    machine.a = bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)) & bits;
                    is_fixed[place..place + width].fill(true);
                }
                at += usize::from(if machine.holds(i) { i.jt } else { i.jf });
            }
            class => {
                let place = match i.code & 0xe0 {
                    0x20 if class == CLASS_LD => Some(i.k as usize),
                    0x40 if class == CLASS_LD => Some(machine.x.wrapping_add(i.k) as usize),
                    _ => None,
                };
                if machine.step(i, bytes, length).is_none() {
                    break;
                }
                ends.extend(place.map(|place| place + width));
                held = match class {
                    CLASS_LD => place.map(|place| (place, width, u32::MAX)),
                    CLASS_ALU if i.code & 0xf8 == 0x50 => held.map(|(at, width, bits)| (at, width, bits & i.k)),
                    CLASS_ALU => None,
                    CLASS_LDX | CLASS_ST | CLASS_STX => held,
                    _ if i.code & 0xf8 == 0x80 => None,
                    _ => held,
                };
            }
        }
    }
    ends
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
            0x40 if self.is_kernel => big_endian(self.x.wrapping_add(i.k)),
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
            0x60 if self.is_kernel => a.wrapping_shl(b),
            0x70 if self.is_kernel => a.wrapping_shr(b),
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
