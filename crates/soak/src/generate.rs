//! Random programs that the verifier accepts, because every register's type is known while they are made.
//!
//! Registers have fixed roles: r6 is the context (in a subprogram a pointer into the caller's frame), r8 a value
//! of the array map, r9 the packet, checked for [`RANGE`] bytes. r0 … r5 and r7 hold numbers; a pointer is only in one
//! of them within a statement. At the end everything a program computed goes where it can be seen: registers into the
//! map, the frame into the packet.

use bpf_driver::difftest::Random;
use bpf_program::ProgKind;

mod program;
mod statements;
mod values;
mod writer;

pub use program::{MAPS, Program, map_infos};
pub use values::{contents, number, packet};
pub use writer::{Abilities, RANGE};

/// A random program.
pub fn program(r: &mut Random, abilities: Abilities) -> Program {
    let kind = if r.one_in(2) { ProgKind::Xdp } else { ProgKind::Skb };
    let subs = r.below(4).saturating_sub(1) as usize;
    let mut functions = vec![statements::main(r, kind, abilities, subs)];
    functions.extend((0..subs).map(|_| statements::sub(r, kind, abilities)));
    Program { kind, functions }
}
