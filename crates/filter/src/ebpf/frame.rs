//! Where things stand in a program's stack, in bytes below the frame pointer: no two of them share a place.
//!
//! ```text
//! r10 -  1 …  24    keys of maps, which end where the stack begins; what a load by call brings
//! r10 - 25 …  48    the packet's ends and the context, while a map is asked
//! behind what there is of these: numbers
//! r10 - 505 … 512   the predicate that the packet has come to, if that is reported
//! ```

use crate::program::Program;

/// Keys of maps, and bytes that a load by call brings.
pub(super) const BUFFER: u32 = 24;
/// Registers that a call takes, and where they wait for its end.
pub(super) const KEPT: [(u8, u32); 3] = [(3, 32), (2, 40), (1, 48)];
/// The predicate that the packet has come to.
pub(super) const NOTED: u32 = 512;
/// The key of counters, alone.
const COUNTER: u32 = 8;
/// A program's stack (`MAX_BPF_STACK`).
const STACK: u32 = 512;

/// Numbers on the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Behind this they stand.
    begin: u32,
    end: u32,
    /// Bytes of each.
    size: u32,
}

impl Numbers {
    /// Of four bytes, where loads are calls.
    pub(super) fn behind_loads(program: &Program) -> Numbers {
        Numbers { begin: BUFFER, end: end(program), size: 4 }
    }

    /// Of eight bytes, where packets are read directly.
    pub(super) fn behind_maps(program: &Program) -> Numbers {
        let kept = KEPT.iter().map(|(_, at)| *at).max().unwrap_or(0);
        let begin = if program.maps.is_empty() { COUNTER } else { kept };
        Numbers { begin, end: end(program), size: 8 }
    }

    /// How many there may be.
    pub(super) fn count(self) -> u32 {
        (self.end - self.begin) / self.size
    }

    /// The place of one.
    pub(super) fn place(self, i: u32) -> u32 {
        self.begin + self.size * (i + 1)
    }
}

fn end(program: &Program) -> u32 {
    if program.predicates > 0 { NOTED - 8 } else { STACK }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::updatable::Field;

    #[test]
    fn keys_have_room() {
        for field in [Field::Ipv4, Field::Ipv6, Field::Mac, Field::Port] {
            // Of a prefix the length stands before the address.
            assert!(field.bits() / 8 + 4 <= BUFFER);
        }
        assert!(KEPT.iter().all(|(_, at)| *at >= BUFFER + 8));
    }
}
