//! Instructions whose result nobody reads go: those that reject no packet, and loads that find out what is found out later on every way
//! that accepts.
//!
//! ```text
//! ldb [26]          ldh [30]
//! ldh [30]     →    jeq #5 …
//! jeq #5 …
//! ```

use rustc_hash::FxHashMap;

use super::code::*;
use crate::program::LONGEST;
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

/// How far a packet is known to reach that is accepted from a step on: behind its beginning, and behind what the index register says.
/// What rejects anyway knows all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reach {
    behind_start: u64,
    behind_x: u64,
}

impl Reach {
    const OF_REJECTED: Reach = Reach { behind_start: u64::MAX, behind_x: u64::MAX };

    /// What is known before an instruction.
    fn before(mut self, (code, k): (u16, u32)) -> Reach {
        let is_rejected = self == Reach::OF_REJECTED;
        if is_rejected {
            return self;
        }
        let end = end_of((code, k));
        match end {
            Some(Place::Start(end)) => self.behind_start = end.max(self.behind_start),
            // No load wraps: what reaches behind the index register reaches as far behind the beginning.
            Some(Place::X(end)) => {
                self.behind_x = end.max(self.behind_x);
                self.behind_start = end.max(self.behind_start);
            }
            None => {}
        }
        if effect((code, k)).writes & IN_X != 0 {
            self.behind_x = 0;
        }
        self
    }

    /// Whether a load finds out nothing new.
    fn covers(&self, load: (u16, u32)) -> bool {
        match end_of(load) {
            Some(Place::Start(end)) => self.behind_start >= end,
            Some(Place::X(end)) => self.behind_x >= end,
            None => false,
        }
    }

    /// What is known on both ways.
    fn join(self, other: Reach) -> Reach {
        Reach { behind_start: self.behind_start.min(other.behind_start), behind_x: self.behind_x.min(other.behind_x) }
    }
}

enum Place {
    Start(u64),
    X(u64),
}

/// Where what a load reads ends. What the kernel knows beside the packet has no end.
fn end_of((code, k): (u16, u32)) -> Option<Place> {
    let size = match code & 0x18 {
        HALF => 2,
        BYTE => 1,
        _ => 4,
    };
    let end = u64::from(k) + size;
    match (code & 7, code & 0xe0) {
        (LD, ABS) if end <= LONGEST => Some(Place::Start(end)),
        (LD, IND) => Some(Place::X(end)),
        (LDX, MSH) => Some(Place::Start(u64::from(k) + 1)),
        _ => None,
    }
}

/// The steps without those whose result nobody reads.
pub(super) fn without_spare(steps: &Steps<(u16, u32)>) -> Steps<(u16, u32)> {
    let mut all: Vec<Step<(u16, u32)>> = Vec::with_capacity(steps.all.len());
    let mut known: FxHashMap<Step<(u16, u32)>, usize> = FxHashMap::default();
    // By step: where it is now, and what is read and known from there on.
    let mut place: Vec<(usize, u32, Reach)> = Vec::with_capacity(steps.all.len());
    for step in &steps.all {
        let (step, read, reach) = match step {
            Step::End((code, 0)) => (Step::End((*code, 0)), 0, Reach::OF_REJECTED),
            Step::End(what) => (Step::End(*what), 0, Reach { behind_start: 0, behind_x: 0 }),
            Step::Plain { what, next } => {
                let (next, read, reach) = place[*next];
                let Effect { reads, writes, rejects } = effect(*what);
                if writes & read == 0 && (!rejects || reach.covers(*what)) {
                    place.push((next, read, reach));
                    continue;
                }
                (Step::Plain { what: *what, next }, read & !writes | reads, reach.before(*what))
            }
            Step::Branch { test, yes, no } => {
                let ((yes, after_yes, reach), (no, after_no, other)) = (place[*yes], place[*no]);
                if yes == no {
                    place.push((yes, after_yes, reach));
                    continue;
                }
                let by_x = if test.0 & X != 0 { IN_X } else { 0 };
                (Step::Branch { test: *test, yes, no }, after_yes | after_no | IN_A | by_x, reach.join(other))
            }
        };
        let at = *known.entry(step).or_insert_with_key(|step| {
            all.push(step.clone());
            all.len() - 1
        });
        place.push((at, read, reach));
    }
    Steps { first: place[steps.first].0, all }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a load whose result nobody reads, in front of another one: whether it stays.
    fn stays(first: (u16, u32), second: (u16, u32), between: Option<(u16, u32)>) -> bool {
        const ACCEPT: Step<(u16, u32)> = Step::End((RET, 1));
        let mut all = vec![ACCEPT, Step::End((RET, 0))];
        all.push(Step::Branch { test: (JMP | JEQ, 6), yes: 0, no: 1 });
        for what in [Some(second), between, Some(first)].into_iter().flatten() {
            all.push(Step::Plain { what, next: all.len() - 1 });
        }
        let first_step = all.len() - 1;
        let steps = without_spare(&Steps { all, first: first_step });
        steps.all.iter().any(|step| matches!(step, Step::Plain { what, .. } if *what == first))
    }

    #[test]
    fn a_load_goes_where_a_later_one_looks_as_far() {
        const BYTE_AT: u16 = LD | ABS | BYTE;
        const BYTE_BEHIND: u16 = LD | IND | BYTE;
        assert!(!stays((BYTE_AT, 20), (BYTE_AT, 21), None));
        assert!(stays((BYTE_AT, 22), (BYTE_AT, 21), None));
        assert!(stays((LD | ABS, 19), (BYTE_AT, 21), None));
        assert!(!stays((BYTE_BEHIND, 20), (BYTE_BEHIND, 21), None));
        // What is behind the index register is behind the beginning, and not the other way round.
        assert!(!stays((BYTE_AT, 20), (BYTE_BEHIND, 21), None));
        assert!(stays((BYTE_BEHIND, 20), (BYTE_AT, 21), None));
        // Another index.
        assert!(stays((BYTE_BEHIND, 20), (BYTE_BEHIND, 21), Some((LDX | MSH | BYTE, 14))));
        assert!(!stays((BYTE_AT, 20), (BYTE_BEHIND, 21), Some((LDX | MSH | BYTE, 14))));
    }
}
