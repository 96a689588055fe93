//! Instructions of classic BPF: their codes, and how tcpdump prints them.

use crate::language::Binary;
use crate::value::Ancillary;

/// An instruction (`struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Classic {
    /// The operation.
    pub code: u16,
    /// Instructions to skip if the test holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// Instructions that the kernel takes at most (`BPF_MAXINSNS`).
pub const MOST_INSTRUCTIONS: usize = 4096;

/// Steps of a program that are written at most: what is longer takes the generator long, and has no use.
pub(super) const MOST_WRITTEN: usize = 1 << 17;

/// Whether a program jumps backward, as code for `protochain` does: the kernel takes no such program.
pub fn has_loop(instructions: &[Classic]) -> bool {
    instructions.iter().any(|i| i.code == JMP | JA && i.k.cast_signed() < 0)
}

/// Why there is no classic program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassicError {
    /// More values are alive than there is memory for.
    #[error("the filter needs more than the 16 words of memory that classic BPF has")]
    Memory,
    /// More instructions than anyone runs.
    #[error(
        "the filter takes more than {MOST_WRITTEN} steps of classic BPF; the kernel takes {MOST_INSTRUCTIONS} instructions"
    )]
    TooLong,
    /// A table, which has no place in classic BPF.
    #[error("classic BPF has no tables")]
    Table,
    /// A set that user space changes.
    #[error("classic BPF has no maps: a set in it cannot be changed (leave --updatable out)")]
    Map,
}

pub(super) const LD: u16 = 0x00;
pub(super) const LDX: u16 = 0x01;
pub(super) const ST: u16 = 0x02;
pub(super) const STX: u16 = 0x03;
pub(super) const ALU: u16 = 0x04;
pub(super) const JMP: u16 = 0x05;
pub(super) const RET: u16 = 0x06;
pub(super) const MISC: u16 = 0x07;
pub(super) const HALF: u16 = 0x08;
pub(super) const BYTE: u16 = 0x10;
pub(super) const ABS: u16 = 0x20;
pub(super) const IND: u16 = 0x40;
pub(super) const MEM: u16 = 0x60;
pub(super) const LEN: u16 = 0x80;
pub(super) const MSH: u16 = 0xa0;
pub(super) const X: u16 = 0x08;
pub(super) const JA: u16 = 0x00;
pub(super) const JEQ: u16 = 0x10;
pub(super) const JGT: u16 = 0x20;
pub(super) const JGE: u16 = 0x30;
pub(super) const JSET: u16 = 0x40;
pub(super) const TAX: u16 = 0x00;
pub(super) const TXA: u16 = 0x80;
pub(super) const NEG: u16 = 0x80;
pub(super) const AND: u16 = 0x50;

/// Words of memory.
pub(super) const MEMORY: usize = 16;

impl Classic {
    /// The instruction at `at` as `tcpdump -d` prints it.
    pub fn listing(&self, at: usize) -> String {
        let class = self.code & 0x07;
        let k = self.k;
        let mode = self.code & 0xe0;
        let size = match self.code & 0x18 {
            HALF => "h",
            BYTE => "b",
            _ => "",
        };
        let (op, operand) = match class {
            LD => {
                let operand = match mode {
                    ABS => ancillary_name(k).map_or(format!("[{k}]"), |n| format!("[{n}]")),
                    IND => format!("[x + {k}]"),
                    MEM => format!("M[{k}]"),
                    LEN => "#pktlen".to_owned(),
                    _ => format!("#{k:#x}"),
                };
                (format!("ld{size}"), operand)
            }
            LDX if mode == MSH => ("ldxb".to_owned(), format!("4*([{k}]&0xf)")),
            LDX => {
                let operand = match mode {
                    MEM => format!("M[{k}]"),
                    LEN => "#pktlen".to_owned(),
                    _ => format!("#{k:#x}"),
                };
                ("ldx".to_owned(), operand)
            }
            ST => ("st".to_owned(), format!("M[{k}]")),
            STX => ("stx".to_owned(), format!("M[{k}]")),
            RET => ("ret".to_owned(), format!("#{k}")),
            MISC => ((if self.code & 0xf8 == TXA { "txa" } else { "tax" }).to_owned(), String::new()),
            ALU => {
                let name = match self.code & 0xf0 {
                    0x00 => "add",
                    0x10 => "sub",
                    0x20 => "mul",
                    0x30 => "div",
                    0x40 => "or",
                    AND => "and",
                    0x60 => "lsh",
                    0x70 => "rsh",
                    0x80 => "neg",
                    0x90 => "mod",
                    _ => "xor",
                };
                let operand = match (name, self.code & X != 0) {
                    ("neg", _) => String::new(),
                    (_, true) => "x".to_owned(),
                    ("and" | "or" | "xor", _) => format!("#{k:#x}"),
                    _ => format!("#{k}"),
                };
                (name.to_owned(), operand)
            }
            _ => {
                let name = match self.code & 0xf0 {
                    JEQ => "jeq",
                    JGT => "jgt",
                    JGE => "jge",
                    JSET => "jset",
                    _ => {
                        let to = (at as i64 + 1 + i64::from(k as i32)) as usize;
                        return format!("({at:03}) {:<8} {to}", "ja");
                    }
                };
                let operand = if self.code & X != 0 { "x".to_owned() } else { format!("#{k:#x}") };
                let (yes, no) = (at + 1 + usize::from(self.jt), at + 1 + usize::from(self.jf));
                return format!("({at:03}) {name:<8} {operand:<16} jt {yes}\tjf {no}");
            }
        };
        format!("({at:03}) {op:<8} {operand}").trim_end().to_owned()
    }
}

/// What libpcap calls the places of what the kernel knows besides.
fn ancillary_name(k: u32) -> Option<&'static str> {
    let names = [
        (Ancillary::PacketType, "type"),
        (Ancillary::InterfaceIndex, "ifidx"),
        (Ancillary::VlanTag, "vlan_tci"),
        (Ancillary::VlanPresent, "vlanp"),
    ];
    names.into_iter().find(|(what, _)| what.classic_offset() == k).map(|(_, name)| name)
}

/// The code of an operation.
pub(super) fn alu(op: Binary) -> u16 {
    match op {
        Binary::Add => 0x00,
        Binary::Sub => 0x10,
        Binary::Mul => 0x20,
        Binary::Div => 0x30,
        Binary::Or => 0x40,
        Binary::And => AND,
        Binary::ShiftLeft => 0x60,
        Binary::ShiftRight => 0x70,
        Binary::Mod => 0x90,
        Binary::Xor => 0xa0,
    }
}
