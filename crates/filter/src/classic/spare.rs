//! Instructions whose result nobody reads, and that reject no packet, go.

use rustc_hash::FxHashMap;

use super::code::*;
use crate::steps::{Step, Steps};

/// Bits for what is read later: words of memory, then the accumulator and the index register.
const IN_A: u32 = 1 << MEMORY;
const IN_X: u32 = 1 << (MEMORY + 1);

/// What an instruction reads and writes, and whether it may reject the packet.
struct Effect {
    reads: u32,
    writes: u32,
    rejects: bool,
}

fn effect((code, k): (u16, u32)) -> Effect {
    let word = 1u32.checked_shl(k).unwrap_or(0);
    let of = |reads, writes, rejects| Effect { reads, writes, rejects };
    match (code & 7, code & 0xe0) {
        (LD, ABS) => of(0, IN_A, true),
        (LD, IND) => of(IN_X, IN_A, true),
        (LD, MEM) => of(word, IN_A, false),
        (LD, _) => of(0, IN_A, false),
        (LDX, MSH) => of(0, IN_X, true),
        (LDX, MEM) => of(word, IN_X, false),
        (LDX, _) => of(0, IN_X, false),
        (ST, _) => of(IN_A, word, false),
        (STX, _) => of(IN_X, word, false),
        (MISC, _) if code & 0xf8 == TXA => of(IN_X, IN_A, false),
        (MISC, _) => of(IN_A, IN_X, false),
        // Of a division by what is in the index register 0 may come.
        _ => {
            let is_by_x = code & X != 0 && code != ALU | NEG;
            of(IN_A | if is_by_x { IN_X } else { 0 }, IN_A, is_by_x)
        }
    }
}

/// The steps without those whose result nobody reads.
pub(super) fn without_spare(steps: &Steps<(u16, u32)>) -> Steps<(u16, u32)> {
    let mut all: Vec<Step<(u16, u32)>> = Vec::with_capacity(steps.all.len());
    let mut known: FxHashMap<Step<(u16, u32)>, usize> = FxHashMap::default();
    // By step: where it is now, and what is read from there on.
    let mut place: Vec<(usize, u32)> = Vec::with_capacity(steps.all.len());
    for step in &steps.all {
        let (step, read) = match step {
            Step::End(what) => (Step::End(*what), 0),
            Step::Plain { what, next } => {
                let (next, read) = place[*next];
                let Effect { reads, writes, rejects } = effect(*what);
                if !rejects && writes & read == 0 {
                    place.push((next, read));
                    continue;
                }
                (Step::Plain { what: *what, next }, read & !writes | reads)
            }
            Step::Branch { test, yes, no } => {
                let ((yes, after_yes), (no, after_no)) = (place[*yes], place[*no]);
                if yes == no {
                    place.push((yes, after_yes));
                    continue;
                }
                let by_x = if test.0 & X != 0 { IN_X } else { 0 };
                (Step::Branch { test: *test, yes, no }, after_yes | after_no | IN_A | by_x)
            }
        };
        let at = *known.entry(step).or_insert_with_key(|step| {
            all.push(step.clone());
            all.len() - 1
        });
        place.push((at, read));
    }
    Steps { first: place[steps.first].0, all }
}
