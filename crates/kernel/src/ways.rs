//! Which ways through a program the verifier has not found.
//!
//! What the verifier takes for impossible it removes: a conditional jump of which it has come along one way only becomes
//! an unconditional one, and what nobody comes to is taken out (`opt_hard_wire_dead_code_branches`,
//! `opt_remove_dead_code`, `opt_remove_nops` in kernel/bpf/verifier.c). What it believes is not always true. Then the
//! program that runs is not the one that was loaded, and two programs that are equal may run as two that are not.
//!
//! The one idea: a record of lines goes with an instruction through all that the kernel makes of a program, and out with
//! it (`bpf_adj_linfo_after_remove`). A program that is loaded with a record for each instruction, the number of its slot
//! in the place of a line, tells afterwards which instructions are left and what stands in their places.
//!
//! Promise: a jump that is said to be decided is left in one direction only by the program that runs.

use crate::sys::Line;

/// A program as it was given to the kernel, and the conditional jumps in it that the verifier has decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decided {
    /// Its slots, eight bytes each: those of the entry program, then those of the functions that libbpf has put behind
    /// it. Empty if there are no decided jumps.
    pub linked: Vec<[u8; 8]>,
    /// The slots of the jumps among these, and whether they jump always (or never), in order.
    pub jumps: Vec<(usize, bool)>,
}

/// `BPF_LD | BPF_IMM | BPF_DW`: an instruction of two slots.
const LOAD_WIDE: u8 = 0x18;
/// `BPF_JMP | BPF_JA`, and the same in the class of 32 bits, whose distance is `imm`.
const JA: u8 = 0x05;
const JA_FAR: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_JMP` and `BPF_JMP32`, and the bits that say so.
const JUMPS: [u8; 2] = [0x05, 0x06];
const CLASS: u8 = 0x07;

/// A record for each instruction of a program.
pub(crate) fn lines(code: &[[u8; 8]]) -> Vec<Line> {
    let mut lines = Vec::with_capacity(code.len());
    let mut slot = 0;
    while let Some(insn) = code.get(slot) {
        lines.push(Line { slot: slot as u32, number: slot as u32, ..Line::default() });
        slot += width(insn);
    }
    lines
}

fn width(insn: &[u8; 8]) -> usize {
    if insn[0] == LOAD_WIDE { 2 } else { 1 }
}

fn is_conditional(insn: &[u8; 8]) -> bool {
    JUMPS.contains(&(insn[0] & CLASS)) && ![JA, JA_FAR, CALL, CALL | 8, EXIT].contains(&insn[0])
}

/// Where a jump of any kind leads.
fn target(slot: usize, insn: &[u8; 8]) -> usize {
    let [_, _, o0, o1, imm @ ..] = *insn;
    let distance = if insn[0] == JA_FAR { i32::from_le_bytes(imm) } else { i16::from_le_bytes([o0, o1]).into() };
    (slot + 1).wrapping_add_signed(distance as isize)
}

/// What the kernel's records of a program and its translated code say of the jumps of `code`.
pub(crate) fn decided(code: &[[u8; 8]], lines: &[Line], translated: &[[u8; 8]]) -> Decided {
    let mut place = vec![None; code.len()];
    for line in lines {
        if let Some(place) = place.get_mut(line.number as usize) {
            *place = translated.get(line.slot as usize);
        }
    }
    // The next slot from each one on that is left.
    let mut next = vec![code.len(); code.len() + 1];
    for slot in (0..code.len()).rev() {
        next[slot] = if place[slot].is_some() { slot } else { next[slot + 1] };
    }
    let way = |slot: usize, insn: &[u8; 8]| match place[slot] {
        Some(there) if there[0] == JA => Some(true),
        Some(_) => None,
        // It leads to what now stands behind it. If everything that it jumps over is gone, both ways do.
        None => Some((slot + 1..=next[slot]).contains(&target(slot, insn))),
    };
    let mut seen = vec![false; code.len()];
    let mut open: Vec<usize> = (0..code.len()).filter(|slot| place[*slot].is_some() || *slot == 0).collect();
    let mut jumps = Vec::new();
    while let Some(slot) = open.pop() {
        let Some(insn) = code.get(slot).filter(|_| !std::mem::replace(&mut seen[slot], true)) else { continue };
        match insn[0] {
            JA | JA_FAR => open.push(target(slot, insn)),
            EXIT => {}
            _ if is_conditional(insn) => {
                let way = way(slot, insn);
                jumps.extend(way.map(|taken| (slot, taken)));
                open.extend((way != Some(true)).then_some(slot + 1));
                open.extend((way != Some(false)).then(|| target(slot, insn)));
            }
            _ => open.push(slot + width(insn)),
        }
    }
    jumps.sort_unstable();
    let linked = if jumps.is_empty() { Vec::new() } else { code.to_vec() };
    Decided { linked, jumps }
}

/// Whether the kernel takes these records of a program, whose functions begin at `starts` (`check_btf_line` in
/// kernel/bpf/verifier.c); `is_text` says whether a number is the place of a text in the program's BTF.
pub(crate) fn are_taken(lines: &[Line], code: &[[u8; 8]], starts: &[u32], is_text: impl Fn(u32) -> bool) -> bool {
    let ordered = lines.is_sorted_by(|a, b| a.slot < b.slot);
    let line =
        |l: &Line| code.get(l.slot as usize).is_some_and(|insn| insn[0] != 0) && is_text(l.file) && is_text(l.text);
    let starts_one = |start: &u32| lines.binary_search_by_key(start, |l| l.slot).is_ok();
    lines.is_empty() || ordered && lines.iter().all(line) && starts.iter().all(starts_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u8; 8] = [0xb7, 0, 0, 0, 0, 0, 0, 0];

    fn jump(distance: u8) -> [u8; 8] {
        [0x15, 1, distance, 0, 0, 0, 0, 0]
    }

    fn left(slots: &[(u32, u32)]) -> Vec<Line> {
        slots.iter().map(|&(slot, number)| Line { slot, number, ..Line::default() }).collect()
    }

    #[test]
    fn jumps_that_are_left_gone_or_made_others() {
        let code = [jump(1), NOTHING, jump(1), NOTHING, [EXIT, 0, 0, 0, 0, 0, 0, 0]];
        let exit = code[4];
        let of = |slots: &[(u32, u32)], translated: &[[u8; 8]]| decided(&code, &left(slots), translated).jumps;
        let all: Vec<_> = (0..5).map(|i| (i, i)).collect();
        assert_eq!(of(&all, &code), []);
        let ja = [JA, 0, 1, 0, 0, 0, 0, 0];
        assert_eq!(of(&all, &[ja, NOTHING, jump(1), NOTHING, exit]), [(0, true)]);
        // The first never jumps; the second always does, over what is gone.
        assert_eq!(of(&[(0, 1), (1, 4)], &[NOTHING, exit]), [(0, false), (2, true)]);
        // The second stands in code that is gone with it.
        assert_eq!(decided(&[jump(2), jump(0), NOTHING, exit], &left(&[(0, 3)]), &[exit]).jumps, [(0, true)]);
    }

    #[test]
    fn a_wide_load_has_one_record() {
        let code = [[LOAD_WIDE, 0, 0, 0, 0, 0, 0, 0], [0; 8], NOTHING];
        assert_eq!(lines(&code).iter().map(|l| l.slot).collect::<Vec<_>>(), [0, 2]);
    }
}
