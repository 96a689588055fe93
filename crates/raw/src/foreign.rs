//! What looks like an array of `struct bpf_insn` and is none: classic BPF, and programs that the kernel has rewritten.

use bpf_isa::slot::{CALL, EXIT, HELPER, Slot, starts};
use bpf_platform::helpers::Helper;

use crate::error::RawError;

/// `BPF_RET` of classic BPF, of a constant and of the accumulator.
const RETURNS: [u8; 2] = [0x06, 0x16];

/// Whether text is what `bpftool prog dump xlated` or `tcpdump -d` prints.
///
/// # Errors
/// If it is.
pub(crate) fn of_text(text: &str) -> Result<(), RawError> {
    let lines = || text.lines().map(str::trim).filter(|l| !l.is_empty());
    if lines().any(is_translated) {
        return Err(RawError::Translated);
    }
    if lines().any(is_classic) || is_decimal_classic(lines().collect()) || has_classic_macros(text) {
        return Err(RawError::Classic);
    }
    Ok(())
}

/// `  12: (bf) r1 = r6`.
fn is_translated(line: &str) -> bool {
    let Some((slot, rest)) = line.split_once(": (") else { return false };
    let code = rest.get(..3).and_then(|c| c.strip_suffix(')'));
    slot.bytes().all(|c| c.is_ascii_digit()) && code.is_some_and(|c| u8::from_str_radix(c, 16).is_ok())
}

/// `(000) ldh      [12]`, of `tcpdump -d`.
fn is_classic(line: &str) -> bool {
    let numbered = line.strip_prefix('(').and_then(|rest| rest.split_once(") "));
    numbered.is_some_and(|(number, _)| number.len() == 3 && number.bytes().all(|c| c.is_ascii_digit()))
}

/// The number of instructions, then four decimal numbers for each: `tcpdump -ddd`, xt_bpf.
fn is_decimal_classic(lines: Vec<&str>) -> bool {
    let numbers = |line: &str| line.split_whitespace().map(|w| w.parse::<u32>().ok()).collect::<Option<Vec<_>>>();
    let Some((first, rest)) = lines.split_first() else { return false };
    numbers(first).is_some_and(|n| n == [rest.len() as u32])
        && !rest.is_empty()
        && rest.iter().all(|line| numbers(line).is_some_and(|n| n.len() == 4))
}

fn has_classic_macros(text: &str) -> bool {
    ["BPF_STMT(", "BPF_JUMP(", "sock_filter"].iter().any(|word| text.contains(word))
}

/// Whether slots are those of another instruction set, or as the kernel shows them.
///
/// # Errors
/// If they are.
pub(crate) fn of_slots(slots: &[[u8; 8]]) -> Result<(), RawError> {
    let has_exit = starts(slots).any(|(_, s)| s.code == EXIT);
    let last = slots.last().map(|s| Slot::from(*s));
    // In classic BPF a return ends every program, and the fields of registers are the upper half of the code: 0.
    if !has_exit && last.is_some_and(|s| RETURNS.contains(&s.code) && (s.dst, s.src, s.off) == (0, 0, 0)) {
        return Err(RawError::Classic);
    }
    // Calls of helpers are shown by the distance of their addresses, or as 0 (`bpf_insn_prepare_dump`).
    let is_shown =
        |s: Slot| s.code == CALL && s.src == HELPER && Helper::get(s.imm).is_none() && !(1..1000).contains(&s.imm);
    if starts(slots).any(|(_, s)| is_shown(s)) {
        return Err(RawError::Translated);
    }
    Ok(())
}
