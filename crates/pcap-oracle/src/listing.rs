//! Listings as `tcpdump -d` prints them, read back.
//!
//! ```text
//! (000) ldh      [12]
//! (001) jeq      #0x800           jt 2    jf 3
//! (002) ret      #262144
//! (003) ret      #0
//! ```

use crate::program::{Instruction, Program};

/// Names of loads of Linux, in the order of their numbers, which are 4 apart (`SKF_AD_*` in `linux/filter.h`, `offsets` in libpcap's
/// `bpf_image.c`).
const ANCILLARY: [&str; 16] = [
    "proto",
    "type",
    "ifidx",
    "nla",
    "nlan",
    "mark",
    "queue",
    "hatype",
    "rxhash",
    "cpu",
    "xor_x",
    "vlan_tci",
    "vlanp",
    "poff",
    "random",
    "vlan_tpid",
];
/// Offset of the first of them (`SKF_AD_OFF`).
const ANCILLARY_START: u32 = -0x1000_i32 as u32;

/// Operations of arithmetic, with their codes for an immediate operand.
const ARITHMETIC: [(&str, u16); 10] = [
    ("add", 0x04),
    ("sub", 0x14),
    ("mul", 0x24),
    ("div", 0x34),
    ("or", 0x44),
    ("and", 0x54),
    ("lsh", 0x64),
    ("rsh", 0x74),
    ("mod", 0x94),
    ("xor", 0xa4),
];
/// Conditional jumps, with their codes for an immediate operand.
const CONDITIONS: [(&str, u16); 4] = [("jeq", 0x15), ("jgt", 0x25), ("jge", 0x35), ("jset", 0x45)];
/// What is added to the code if the operand is `x`.
const OPERAND_X: u16 = 0x08;

/// Reads a listing; empty lines do not count.
///
/// # Errors
/// The first line that is none of a listing.
pub fn parse(text: &str) -> Result<Program, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = |(number, line)| instruction(number, line).ok_or_else(|| format!("no line of a listing: `{line}`"));
    Ok(Program { instructions: lines.enumerate().map(read).collect::<Result<_, String>>()? })
}

/// The instruction of one line, which must say the number at which it stands.
fn instruction(number: usize, line: &str) -> Option<Instruction> {
    let (head, rest) = line.strip_prefix('(')?.split_once(')')?;
    if head.parse() != Ok(number) {
        return None;
    }
    let rest = rest.trim();
    let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let plain = |code, k| Some(Instruction { code, jt: 0, jf: 0, k });
    let operands = operands.trim();
    if let Some((_, code)) = CONDITIONS.iter().find(|(known, _)| *known == name) {
        return conditional(number, *code, operands);
    }
    if let Some((_, code)) = ARITHMETIC.iter().find(|(known, _)| *known == name) {
        let (source, k) = value(operands)?;
        return plain(code + source, k);
    }
    match (name, operands) {
        ("ret", "") => plain(0x16, 0),
        ("ret", k) => plain(0x06, immediate(k)?),
        // It may go back: the distance is a signed number then.
        ("ja", target) => plain(0x05, target.parse::<u32>().ok()?.wrapping_sub(number as u32 + 1)),
        ("neg", "") => plain(0x84, 0),
        ("tax", "") => plain(0x07, 0),
        ("txa", "") => plain(0x87, 0),
        ("st", word) => plain(0x02, memory(word)?),
        ("stx", word) => plain(0x03, memory(word)?),
        ("ldx", "#pktlen") => plain(0x81, 0),
        ("ldx", k) if k.starts_with('#') => plain(0x01, immediate(k)?),
        ("ldx", word) => plain(0x61, memory(word)?),
        ("ldxb", nibble) => plain(0xb1, number_of(nibble.strip_prefix("4*([")?.strip_suffix("]&0xf)")?)?),
        ("ld", "#pktlen") => plain(0x80, 0),
        ("ld", k) if k.starts_with('#') => plain(0x00, immediate(k)?),
        ("ld", word) if word.starts_with('M') => plain(0x60, memory(word)?),
        ("ld", at) => load(0x00, at),
        ("ldh", at) => load(0x08, at),
        ("ldb", at) => load(0x10, at),
        _ => None,
    }
}

/// `#0x800           jt 2    jf 3`
fn conditional(number: usize, code: u16, operands: &str) -> Option<Instruction> {
    let words: Vec<&str> = operands.split_whitespace().collect();
    let [operand, "jt", jt, "jf", jf] = words[..] else { return None };
    let (source, k) = value(operand)?;
    let jump = |target| u8::try_from(distance(number, target)?).ok();
    Some(Instruction { code: code + source, jt: jump(jt)?, jf: jump(jf)?, k })
}

/// How far it is from the instruction behind `number` to that at `target`.
fn distance(number: usize, target: &str) -> Option<u32> {
    let target: usize = target.parse().ok()?;
    u32::try_from(target.checked_sub(number + 1)?).ok()
}

/// `[12]`, `[x + 12]` or `[vlanp]`
fn load(size: u16, operand: &str) -> Option<Instruction> {
    let inner = operand.strip_prefix('[')?.strip_suffix(']')?;
    let (mode, k) = if let Some(k) = inner.strip_prefix("x + ") {
        (0x40, number_of(k)?)
    } else if let Some(known) = ANCILLARY.iter().position(|name| *name == inner) {
        (0x20, ANCILLARY_START + 4 * known as u32)
    } else {
        (0x20, number_of(inner)?)
    };
    Some(Instruction { code: mode + size, jt: 0, jf: 0, k })
}

/// What is to be added to the code, and the value: `x` or `#5`.
fn value(operand: &str) -> Option<(u16, u32)> {
    if operand == "x" { Some((OPERAND_X, 0)) } else { Some((0, immediate(operand)?)) }
}

fn immediate(operand: &str) -> Option<u32> {
    number_of(operand.strip_prefix('#')?)
}

fn memory(operand: &str) -> Option<u32> {
    number_of(operand.strip_prefix("M[")?.strip_suffix(']')?)
}

/// A decimal number, which libpcap prints with a sign, or a hexadecimal one.
fn number_of(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i32>().ok().map(|signed| signed as u32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_line() {
        let text = "(000) ldxb     4*([14]&0xf)\n(001) ldh      [x + 16]\n(002) jset     #0x1fff          jt 5\tjf 3\n\
                    (003) ldb      [vlanp]\n(004) ja       6\n(005) sub      x\n(006) ret      #-1\n(007) ret      ";
        let expected = [
            (0xb1, 0, 0, 14),
            (0x48, 0, 0, 16),
            (0x45, 2, 0, 0x1fff),
            (0x30, 0, 0, 0xffff_f030),
            (0x05, 0, 0, 1),
            (0x1c, 0, 0, 0),
            (0x06, 0, 0, u32::MAX),
            (0x16, 0, 0, 0),
        ];
        let read: Vec<_> = parse(text).unwrap().instructions.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn jumps_may_go_back() {
        let program = parse("(000) tax\n(001) ja       0").unwrap();
        assert_eq!(program.instructions[1].k as i32, -2);
    }

    #[test]
    fn refuses_what_is_none() {
        for line in ["(001) tax", "(000) jeq #0x1", "(000) ja x", "(000) ldh M[1]", "(000) ret 5", "tax"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
