//! The macros of the kernel's `include/linux/filter.h` that make instructions, which its tests, and people, write.

use bpf_isa::slot::{CALL, EXIT, LD_IMM64, MAP_FD, Slot};

const X: i64 = 0x08;
const ALU: i64 = 0x04;
const JMP: i64 = 0x05;
const JMP32: i64 = 0x06;
const ALU64: i64 = 0x07;
const MOV: i64 = 0xb0;
const END: i64 = 0xd0;
const MEM: i64 = 0x60;
const MEMSX: i64 = 0x80;
const ATOMIC: i64 = 0xc0;

/// Makes the slots of one use; the number of arguments is right.
type Make = fn(&[i64]) -> Vec<Slot>;

fn one(code: i64, dst: i64, src: i64, off: i64, imm: i64) -> Vec<Slot> {
    // Immediates are written as signed or unsigned numbers of 32 bits.
    vec![Slot { code: code as u8, dst: dst as u8, src: src as u8, off: off as i16, imm: imm as i32 }]
}

fn wide(dst: i64, src: i64, low: i64, high: i64) -> Vec<Slot> {
    [one(LD_IMM64.into(), dst, src, 0, low), one(0, 0, 0, 0, high)].concat()
}

/// Name without `BPF_`, number of arguments, what it makes.
const MACROS: [(&str, usize, Make); 36] = [
    ("ALU64_REG", 3, |a| one(ALU64 | a[0] | X, a[1], a[2], 0, 0)),
    ("ALU32_REG", 3, |a| one(ALU | a[0] | X, a[1], a[2], 0, 0)),
    ("ALU64_REG_OFF", 4, |a| one(ALU64 | a[0] | X, a[1], a[2], a[3], 0)),
    ("ALU32_REG_OFF", 4, |a| one(ALU | a[0] | X, a[1], a[2], a[3], 0)),
    ("ALU64_IMM", 3, |a| one(ALU64 | a[0], a[1], 0, 0, a[2])),
    ("ALU32_IMM", 3, |a| one(ALU | a[0], a[1], 0, 0, a[2])),
    ("ALU64_IMM_OFF", 4, |a| one(ALU64 | a[0], a[1], 0, a[3], a[2])),
    ("ALU32_IMM_OFF", 4, |a| one(ALU | a[0], a[1], 0, a[3], a[2])),
    ("ENDIAN", 3, |a| one(ALU | END | a[0], a[1], 0, 0, a[2])),
    ("BSWAP", 2, |a| one(ALU64 | END, a[0], 0, 0, a[1])),
    ("MOV64_REG", 2, |a| one(ALU64 | MOV | X, a[0], a[1], 0, 0)),
    ("MOV32_REG", 2, |a| one(ALU | MOV | X, a[0], a[1], 0, 0)),
    ("MOVSX64_REG", 3, |a| one(ALU64 | MOV | X, a[0], a[1], a[2], 0)),
    ("MOVSX32_REG", 3, |a| one(ALU | MOV | X, a[0], a[1], a[2], 0)),
    ("MOV64_IMM", 2, |a| one(ALU64 | MOV, a[0], 0, 0, a[1])),
    ("MOV32_IMM", 2, |a| one(ALU | MOV, a[0], 0, 0, a[1])),
    ("LD_IMM64", 2, |a| wide(a[0], 0, a[1], a[1] >> 32)),
    ("LD_IMM64_RAW", 3, |a| wide(a[0], a[1], a[2], a[2] >> 32)),
    ("LD_MAP_FD", 2, |a| wide(a[0], MAP_FD.into(), a[1], 0)),
    ("LD_ABS", 2, |a| one(a[0] | 0x20, 0, 0, 0, a[1])),
    ("LD_IND", 3, |a| one(a[0] | 0x40, 0, a[1], 0, a[2])),
    ("LDX_MEM", 4, |a| one(1 | a[0] | MEM, a[1], a[2], a[3], 0)),
    ("LDX_MEMSX", 4, |a| one(1 | a[0] | MEMSX, a[1], a[2], a[3], 0)),
    ("STX_MEM", 4, |a| one(3 | a[0] | MEM, a[1], a[2], a[3], 0)),
    ("STX_XADD", 4, |a| one(3 | a[0] | ATOMIC, a[1], a[2], a[3], 0)),
    ("ATOMIC_OP", 5, |a| one(3 | a[0] | ATOMIC, a[2], a[3], a[4], a[1])),
    ("ST_MEM", 4, |a| one(2 | a[0] | MEM, a[1], 0, a[2], a[3])),
    ("JMP_REG", 4, |a| one(JMP | a[0] | X, a[1], a[2], a[3], 0)),
    ("JMP_IMM", 4, |a| one(JMP | a[0], a[1], 0, a[3], a[2])),
    ("JMP32_REG", 4, |a| one(JMP32 | a[0] | X, a[1], a[2], a[3], 0)),
    ("JMP32_IMM", 4, |a| one(JMP32 | a[0], a[1], 0, a[3], a[2])),
    ("JMP_A", 1, |a| one(JMP, 0, 0, a[0], 0)),
    ("CALL_REL", 1, |a| one(CALL.into(), 0, 1, 0, a[0])),
    ("EMIT_CALL", 1, |a| one(CALL.into(), 0, 0, 0, a[0])),
    ("RAW_INSN", 5, |a| one(a[0], a[1], a[2], a[3], a[4])),
    ("EXIT_INSN", 0, |_| one(EXIT.into(), 0, 0, 0, 0)),
];

/// The slots that a macro makes of its arguments; `None` if there is no such macro.
pub(crate) fn expand(name: &str, arguments: &[i64]) -> Option<Result<Vec<Slot>, String>> {
    let bare = name.strip_prefix("BPF_")?;
    let (_, count, make) = MACROS.iter().find(|(known, ..)| *known == bare)?;
    Some(if arguments.len() == *count {
        Ok(make(arguments))
    } else {
        Err(format!("`{name}` has {} arguments instead of {count}", arguments.len()))
    })
}
