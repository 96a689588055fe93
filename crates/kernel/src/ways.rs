//! Which ways through a program the verifier has not found, and what the kernel has made of its instructions.
//!
//! What the verifier takes for impossible it removes: a conditional jump of which it has come along one way only becomes
//! an unconditional one, and what nobody comes to is taken out (`opt_hard_wire_dead_code_branches`,
//! `opt_remove_dead_code`, `opt_remove_nops` in kernel/bpf/verifier.c). What it believes is not always true. Then the
//! program that runs is not the one that was loaded, and two programs that are equal may run as two that are not.
//!
//! The one idea: a record of lines goes with an instruction through all that the kernel makes of a program, and out with
//! it (`bpf_adj_linfo_after_remove`). A program that is loaded with a record for each instruction, the number of its slot
//! in the place of a line, tells afterwards which instructions are left and what stands in their places. What stands there
//! may follow from what the verifier believes, too: a lookup made for one map, a tail call wired to one element, an access
//! translated by the type of its pointer (`do_misc_fixups`, `convert_ctx_accesses`).
//!
//! Promise: a jump that is said to be decided is left in one direction only by the program that runs; two instructions that
//! are made the same do the same with the same registers, if what their code calls of the program does the same.

use std::collections::BTreeSet;

use crate::{marks::Wired, sys::Line};

/// A program as it was given to the kernel, the conditional jumps in it that the verifier has decided, and what the kernel
/// has made of its calls and accesses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decided {
    /// Its slots, eight bytes each: those of the entry program, then those of the functions that libbpf has put behind
    /// it.
    pub linked: Vec<[u8; 8]>,
    /// The slots of the jumps among these, and whether they jump always (or never), in order.
    pub jumps: Vec<(usize, bool)>,
    /// What has become of calls of the kernel, of accesses to memory, and of arithmetic that has fewer bits now, in order.
    pub made: Vec<Made>,
    /// Spills and fills around calls that are gone though somebody comes to them, in order.
    pub gone: Vec<usize>,
    /// The first slots of its functions of which something is left, in order: those that
    /// [`VerifierStats::stack_depths`](crate::VerifierStats::stack_depths) are of.
    pub functions: Vec<usize>,
    /// What has become of some jump cannot be told; then the program is only what the same instructions are.
    pub unclear: bool,
    /// It is unclear because the kernel does not show what it has made of the program: who asks may not see addresses of
    /// the kernel (`kernel.kptr_restrict`, CAP_SYSLOG), and the program's constants are blinded (`net.core.bpf_jit_harden`).
    /// Or it is so old that it keeps no records of lines.
    pub hidden: bool,
}

impl Decided {
    /// Of a program of which the kernel does not tell what it has made of it. That is not to be taken for nothing.
    pub fn hidden(code: &[[u8; 8]]) -> Self {
        Self { linked: code.to_vec(), unclear: true, hidden: true, ..Self::default() }
    }
}

/// What the kernel has made of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its slot among those of the program.
    pub slot: usize,
    /// The instruction without its registers; but whether an access names one twice.
    pub of: [u8; 8],
    /// It is the first of a function.
    pub is_first: bool,
    /// What it is.
    pub form: Form,
    /// The first slot of the function of the program that its code calls.
    pub calls: Option<usize>,
}

/// What stands in the place of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Itself.
    AsItStands,
    /// These instructions, without registers, places in the frame, and addresses.
    Code(Vec<[u8; 8]>),
    /// A jump to one program of a table.
    Wired {
        /// By this index.
        index: u32,
        /// The table's name, as far as the kernel keeps it.
        map: String,
    },
}

impl Made {
    /// Whether it was arithmetic, of which only that is listed that has fewer bits now.
    pub fn is_narrowed(&self) -> bool {
        !is_made(&self.of)
    }
}

impl Form {
    /// Whether it is one call.
    pub fn is_one_call(&self) -> bool {
        matches!(self, Form::Code(code) if matches!(code[..], [[CALL, ..]]))
    }

    /// Whether it is a load of which the kernel expects that it may fault (`BPF_PROBE_MEM`, `BPF_PROBE_MEMSX` in
    /// linux/filter.h).
    pub fn is_load_that_must_not_fault(&self) -> bool {
        /// `BPF_LDX`, and the bits of the mode.
        const LOAD: u8 = 1;
        const MODE: u8 = 0xe0;
        let is_one = |insn: &[u8; 8]| insn[0] & CLASS == LOAD && [0x20, 0x40].contains(&(insn[0] & MODE));
        matches!(self, Form::Code(code) if code.iter().any(is_one))
    }
}

/// `BPF_LD | BPF_IMM | BPF_DW`: an instruction of two slots.
const LOAD_WIDE: u8 = 0x18;
/// `BPF_JMP | BPF_JA`, and the same in the class of 32 bits, whose distance is `imm`.
const JA: u8 = 0x05;
const JA_FAR: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_JMP | BPF_JCOND`.
const MAY_GOTO: u8 = 0xe5;
/// `BPF_JMP` and `BPF_JMP32`, and the bits that say so.
const JUMPS: [u8; 2] = [0x05, 0x06];
const CLASS: u8 = 0x07;

/// The first slot of the function that an instruction calls, or takes the address of (`BPF_PSEUDO_CALL`,
/// `BPF_PSEUDO_FUNC`).
fn named(slot: usize, insn: &[u8; 8]) -> Option<usize> {
    let [code, registers, _, _, distance @ ..] = *insn;
    let names = matches!((code, registers >> 4), (CALL, 1) | (LOAD_WIDE, 4));
    names.then(|| (slot + 1).wrapping_add_signed(i32::from_le_bytes(distance) as isize))
}

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

/// Whether it stores a register to the frame or loads one from there: kernels since 6.12 take such instructions out around
/// calls that leave registers alone (`remove_fastcall_spills_fills`).
fn is_spill(insn: &[u8; 8]) -> bool {
    /// `BPF_STX | BPF_MEM | BPF_DW`, with r10 as the destination; `BPF_LDX | BPF_MEM | BPF_DW`, with r10 as the source.
    const SPILL: (u8, u8) = (0x7b, 0x0a);
    const FILL: (u8, u8) = (0x79, 0xa0);
    (insn[0], insn[1] & 0x0f) == SPILL || (insn[0], insn[1] & 0xf0) == FILL
}

fn is_jump(insn: &[u8; 8]) -> bool {
    is_conditional(insn) || [JA, JA_FAR].contains(&insn[0])
}

/// Where a jump of any kind leads.
fn target(slot: usize, insn: &[u8; 8]) -> usize {
    let [_, _, o0, o1, imm @ ..] = *insn;
    let distance = if insn[0] == JA_FAR { i32::from_le_bytes(imm) } else { i16::from_le_bytes([o0, o1]).into() };
    (slot + 1).wrapping_add_signed(distance as isize)
}

/// Whether what the kernel makes of an instruction may follow from what the verifier believes: a call of the kernel, or an
/// access to memory.
fn is_made(insn: &[u8; 8]) -> bool {
    is_access(insn) || insn[0] == CALL && insn[1] >> 4 != 1
}

/// Whether the kernel has made arithmetic of 32 bits of that of 64: the verifier has come there with a pointer to an arena
/// (`needs_zext`; `do_misc_fixups` in kernel/bpf/verifier.c), on one way at least.
fn is_narrowed(insn: &[u8; 8], place: &[[u8; 8]]) -> bool {
    /// `BPF_ALU` and `BPF_ALU64`.
    const WORD: u8 = 0x04;
    const LONG: u8 = 0x07;
    let (class, operation) = (insn[0] & CLASS, insn[0] & !CLASS);
    class == LONG && place.last().is_some_and(|last| last[0] == operation | WORD)
}

fn is_access(insn: &[u8; 8]) -> bool {
    /// `BPF_LDX`, `BPF_ST` and `BPF_STX`.
    const ACCESSES: std::ops::RangeInclusive<u8> = 1..=3;
    ACCESSES.contains(&(insn[0] & CLASS))
}

/// An instruction without its registers: a call keeps of which kind it is, others, whether they are one.
fn without_registers(insn: &[u8; 8]) -> [u8; 8] {
    let [code, registers, rest @ ..] = *insn;
    let [a, b, c, d, e, f] = rest;
    let kept = if code == CALL { registers } else { u8::from(registers >> 4 == registers & 15) };
    [code, kept, a, b, c, d, e, f]
}

/// Translated instructions without what differs from one load or place to the other.
fn normal(code: &[[u8; 8]]) -> Vec<[u8; 8]> {
    let mut normal = Vec::with_capacity(code.len());
    let mut slot = 0;
    while let Some(insn) = code.get(slot) {
        let of_frame = is_access(insn) && [insn[1] & 0x0f, insn[1] >> 4].contains(&10);
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = without_registers(insn);
        normal.push(match opcode {
            LOAD_WIDE => [opcode, 0, 0, 0, 0, 0, 0, 0],
            CALL if registers >> 4 == 1 => [opcode, 0x10, 0, 0, 0, 0, 0, 0],
            _ if of_frame => [opcode, 10, 0, 0, i0, i1, i2, i3],
            CALL => [opcode, registers, o0, o1, i0, i1, i2, i3],
            _ => [opcode, 0, o0, o1, i0, i1, i2, i3],
        });
        slot += width(insn);
    }
    normal
}

/// What has become of the instructions that are left; `None` if the kernel wires tail calls where none are.
/// `functions` are those of which something is left.
fn made(left: &Left<'_>, starts: &BTreeSet<usize>, functions: &[usize], wired: &[Wired]) -> Option<Vec<Made>> {
    let mut all = Vec::new();
    let mut found = 0;
    for (slot, insn) in left.code.iter().enumerate() {
        let Some(place) = left.place[slot].filter(|place| is_made(insn) || is_narrowed(insn, place)) else { continue };
        let (of, begin) = (without_registers(insn), left.begin[slot]);
        let wires = wired.iter().find(|w| (begin..begin + place.len()).contains(&(w.slot as usize)));
        let is_first = starts.contains(&slot);
        let stands = match place {
            [only] => only == insn,
            // What was put in front of it belongs to the function.
            [.., last] => is_first && last == insn,
            [] => false,
        };
        let form = match wires {
            Some(wired) => Form::Wired { index: wired.index, map: wired.map.clone() },
            None if stands && insn[0] != CALL => Form::AsItStands,
            None => Form::Code(normal(place)),
        };
        found += usize::from(wires.is_some());
        // Such calls name functions by their numbers among those that are left (`jit_subprogs`). A loop of no turns may call one
        // that is not.
        let call = place.iter().find(|insn| insn[0] == CALL && insn[1] >> 4 == 1);
        let number = call.map(|[.., a, b, c, d]| i32::from_le_bytes([*a, *b, *c, *d]));
        let calls = number.and_then(|number| functions.get(usize::try_from(number).ok()?)).copied();
        all.push(Made { slot, of, is_first, form, calls });
    }
    (found == wired.len()).then_some(all)
}

/// What the kernel's records of a program and its translated code say of `code`.
/// `starts` are those of functions that nothing in the code need name; `wired` are its tail calls that are wired.
pub(crate) fn decided(
    code: &[[u8; 8]],
    starts: &[u32],
    lines: &[Line],
    translated: &[[u8; 8]],
    wired: &[Wired],
) -> Decided {
    let unclear = Decided { linked: code.to_vec(), unclear: true, ..Decided::default() };
    let Some(left) = Left::of(code, lines, translated) else { return unclear };
    let mut seen = vec![false; code.len()];
    let named = code.iter().enumerate().filter_map(|(slot, insn)| named(slot, insn));
    let starts: BTreeSet<usize> = starts.iter().map(|start| *start as usize).chain(named).chain([0]).collect();
    let functions = left.functions(&starts);
    let Some(made) = made(&left, &starts, &functions, wired) else { return unclear };
    // A function may begin with a jump that is gone.
    let begun = functions.iter().copied();
    let mut open: Vec<usize> = (0..code.len()).filter(|slot| left.is_there(*slot)).chain(begun).collect();
    let (mut jumps, mut gone) = (Vec::new(), Vec::new());
    while let Some(slot) = open.pop() {
        let Some(insn) = code.get(slot).filter(|_| !std::mem::replace(&mut seen[slot], true)) else { continue };
        match insn[0] {
            JA | JA_FAR => open.push(target(slot, insn)),
            EXIT if left.is_there(slot) => {}
            _ if is_conditional(insn) => {
                let Some(way) = left.way(slot) else { return unclear };
                jumps.extend(way.taken().map(|taken| (slot, taken)));
                open.extend((way != Way::Always).then_some(slot + 1));
                open.extend((way != Way::Never).then(|| target(slot, insn)));
            }
            // Nobody can come to what is gone because nobody comes to it.
            _ if !left.is_there(slot) && !is_spill(insn) => return unclear,
            _ => {
                gone.extend((!left.is_there(slot)).then_some(slot));
                let behind = slot + width(insn);
                // Some calls do not return.
                let returns = |to: &&[u8; 8]| insn[0] != CALL || left.is_there(behind) || is_jump(to) || is_spill(to);
                open.extend(code.get(behind).filter(returns).map(|_| behind));
            }
        }
    }
    jumps.sort_unstable();
    gone.sort_unstable();
    Decided { linked: code.to_vec(), jumps, made, gone, functions, unclear: false, hidden: false }
}

/// How a conditional jump is left; open also if both ways lead to the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Open,
    Always,
    Never,
}

impl Way {
    /// Whether it jumps, if that is decided.
    fn taken(self) -> Option<bool> {
        match self {
            Way::Open => None,
            Way::Always => Some(true),
            Way::Never => Some(false),
        }
    }
}

/// What is left of a program.
struct Left<'a> {
    code: &'a [[u8; 8]],
    /// For each slot what stands in its place, if it is left: several instructions, where the kernel has put some before it
    /// (the prologue of a program or of a function), or has translated it.
    place: Vec<Option<&'a [[u8; 8]]>>,
    /// For each slot that is left, where that begins.
    begin: Vec<usize>,
    /// From each slot on, the next one that is left.
    next: Vec<usize>,
}

impl<'a> Left<'a> {
    /// `None` if the records are not those of such a program.
    fn of(code: &'a [[u8; 8]], lines: &[Line], translated: &'a [[u8; 8]]) -> Option<Self> {
        let (mut place, mut begin) = (vec![None; code.len()], vec![0; code.len()]);
        for (i, line) in lines.iter().enumerate() {
            let end = lines.get(i + 1).map_or(translated.len(), |next| next.slot as usize);
            let slot = line.number as usize;
            *place.get_mut(slot)? = Some(translated.get(line.slot as usize..end)?);
            begin[slot] = line.slot as usize;
        }
        let mut next = vec![code.len(); code.len() + 1];
        for slot in (0..code.len()).rev() {
            next[slot] = if place[slot].is_some() { slot } else { next[slot + 1] };
        }
        Some(Left { code, place, begin, next })
    }

    /// The functions of which anything is left, of those that begin at `starts`.
    fn functions(&self, starts: &BTreeSet<usize>) -> Vec<usize> {
        let end = |start: usize| starts.range(start + 1..).next().copied().unwrap_or(self.code.len());
        let is_left = |start: &usize| *start < self.code.len() && self.next[*start] < end(*start);
        starts.iter().copied().filter(is_left).collect()
    }

    fn is_there(&self, slot: usize) -> bool {
        self.place[slot].is_some()
    }

    /// What has become of a conditional jump that somebody comes to; `None` if that cannot be told.
    fn way(&self, slot: usize) -> Option<Way> {
        let insn = &self.code[slot];
        let Some(place) = self.place[slot] else {
            // It did nothing but lead to what now stands behind it.
            let end = self.next[slot];
            let way = |only_jumps| [slot + 1, target(slot, insn)].map(|to| self.leads(to, end, only_jumps));
            // Spills may be gone with the way they stand on. Where both ways lead there, it does not matter which it goes.
            return match (way(true), way(false)) {
                ([true, true], _) => Some(Way::Open),
                ([true, false], _) | (_, [true, false]) => Some(Way::Never),
                ([false, true], _) | (_, [false, true]) => Some(Way::Always),
                _ => None,
            };
        };
        // What was put before it does not count.
        match place.last() {
            Some(last) if last[0] == JA => Some(Way::Always),
            Some(last) if is_conditional(last) => Some(Way::Open),
            // It is translated: only the jump that counts its turns is.
            Some(_) if insn[0] == MAY_GOTO => Some(Way::Open),
            _ => None,
        }
    }

    /// Whether one gets from a slot to another one behind it, the next that is left, by jumps that are gone because they led to
    /// what stands behind them; and, if not by `only_jumps`, by spills.
    fn leads(&self, from: usize, end: usize, only_jumps: bool) -> bool {
        let mut seen = vec![false; (end + 1).saturating_sub(from)];
        let mut open = vec![from];
        while let Some(slot) = open.pop() {
            if slot == end {
                return true;
            }
            let Some(at) = slot.checked_sub(from).filter(|at| *at < seen.len()) else { continue };
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            let insn = &self.code[slot];
            match insn[0] {
                JA | JA_FAR => open.push(target(slot, insn)),
                _ if is_conditional(insn) => open.extend([slot + 1, target(slot, insn)]),
                _ if !only_jumps && is_spill(insn) => open.push(slot + 1),
                // It is gone because nobody comes to it.
                _ => {}
            }
        }
        false
    }
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

    fn decided(code: &[[u8; 8]], lines: &[Line], translated: &[[u8; 8]]) -> Decided {
        super::decided(code, &[], lines, translated, &[])
    }

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
    fn arithmetic_that_has_fewer_bits_now_is_listed() {
        let (add, word, exit) =
            ([0x0f, 0x21, 0, 0, 0, 0, 0, 0], [0x0c, 0x21, 0, 0, 0, 0, 0, 0], [EXIT, 0, 0, 0, 0, 0, 0, 0]);
        let narrowed = |translated: [u8; 8]| -> Vec<usize> {
            let found = decided(&[add, exit], &left(&[(0, 0), (1, 1)]), &[translated, exit]);
            assert!(found.made.iter().all(Made::is_narrowed));
            found.made.iter().map(|made| made.slot).collect()
        };
        assert_eq!(narrowed(word), [0]);
        assert_eq!(narrowed(add), [0; 0]);
    }

    #[test]
    fn a_jump_before_one_over_what_is_gone_is_never_taken() {
        let (ja, exit) = ([JA, 0, 1, 0, 0, 0, 0, 0], [EXIT, 0, 0, 0, 0, 0, 0, 0]);
        let code = [jump(1), ja, NOTHING, exit];
        assert_eq!(decided(&code, &left(&[(0, 3)]), &[exit]).jumps, [(0, false)]);
        // It falls to one of its kind.
        let code = [jump(1), jump(1), NOTHING, exit];
        assert_eq!(decided(&code, &left(&[(0, 3)]), &[exit]).jumps, [(0, false), (1, true)]);
        // A spill is gone where nobody comes, or where nobody needs it.
        let (spill, ja) = ([0x7b, 0x1a, 0, 0, 0, 0, 0, 0], [JA, 0, 2, 0, 0, 0, 0, 0]);
        let of = |code: &[[u8; 8]]| decided(code, &left(&[(0, code.len() as u32 - 1)]), &[exit]);
        assert_eq!(of(&[jump(1), spill, exit]).jumps, [(0, true)]);
        assert_eq!(of(&[jump(1), ja, NOTHING, spill, exit]).jumps, [(0, false)]);
        assert_eq!(of(&[jump(1), spill, NOTHING, exit]).jumps, []);
        // Both ways lead to what is gone: so it was not read.
        let code = [jump(1), NOTHING, NOTHING, exit];
        assert!(decided(&code, &left(&[(0, 3)]), &[exit]).unclear);
    }

    #[test]
    fn what_the_kernel_puts_in_front_of_a_jump_is_not_the_jump() {
        let (ja, exit) = ([JA, 0, 1, 0, 0, 0, 0, 0], [EXIT, 0, 0, 0, 0, 0, 0, 0]);
        let code = [jump(1), NOTHING, exit];
        let records = left(&[(0, 0), (3, 1), (4, 2)]);
        let of = |first: [u8; 8]| decided(&code, &records, &[NOTHING, NOTHING, first, NOTHING, exit]);
        assert_eq!(of(ja).jumps, [(0, true)]);
        assert_eq!((of(jump(1)).jumps, of(jump(1)).unclear), (vec![], false));
        assert!(of(NOTHING).unclear);
    }

    #[test]
    fn what_is_made_of_calls_and_accesses_is_told_without_registers() {
        let (load, call, exit) =
            ([0x61, 0x12, 8, 0, 0, 0, 0, 0], [CALL, 0, 0, 0, 1, 0, 0, 0], [EXIT, 0, 0, 0, 0, 0, 0, 0]);
        let tail_call = [CALL, 0, 0, 0, 12, 0, 0, 0];
        let code = [load, call, tail_call, exit];
        let (field, wide) = ([0x61, 0x12, 112, 0, 0, 0, 0, 0], [LOAD_WIDE, 0x13, 0, 0, 1, 2, 3, 4]);
        let translated =
            [NOTHING, field, wide, [0, 0, 0, 0, 5, 6, 7, 8], [0x7b, 0x6a, 8, 0, 0, 0, 0, 0], tail_call, exit];
        let records = left(&[(0, 0), (2, 1), (5, 2), (6, 3)]);
        let wired = [Wired { slot: 5, index: 7, map: "m".to_owned() }];
        let found = super::decided(&code, &[], &records, &translated, &wired).made;
        let bare = |[code, _, rest @ ..]: [u8; 8]| [code, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5], 0];
        assert_eq!(
            found.iter().map(|m| (m.slot, m.of[0], m.is_first)).collect::<Vec<_>>(),
            [(0, load[0], true), (1, CALL, false), (2, CALL, false)]
        );
        let Form::Code(first) = &found[0].form else { panic!("it is translated") };
        assert_eq!(bare(first[1]), bare(field));
        // A place in the frame is none that the program has chosen.
        assert_eq!(found[1].form, Form::Code(vec![[LOAD_WIDE, 0, 0, 0, 0, 0, 0, 0], [0x7b, 10, 0, 0, 0, 0, 0, 0]]));
        assert_eq!(found[2].form, Form::Wired { index: 7, map: "m".to_owned() });
        let nowhere = [Wired { slot: 6, ..wired[0].clone() }];
        assert!(super::decided(&code, &[], &records, &translated, &nowhere).unclear);
        let as_it_stands = decided(&code, &left(&[(0, 0), (1, 1), (2, 2), (3, 3)]), &code).made;
        assert_eq!(as_it_stands[0].form, Form::AsItStands);
        assert!(as_it_stands[1].form.is_one_call());
    }

    #[test]
    fn a_wide_load_has_one_record() {
        let code = [[LOAD_WIDE, 0, 0, 0, 0, 0, 0, 0], [0; 8], NOTHING];
        assert_eq!(lines(&code).iter().map(|l| l.slot).collect::<Vec<_>>(), [0, 2]);
    }
}
