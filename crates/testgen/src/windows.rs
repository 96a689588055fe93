//! Random states, random windows and changes of them that are right, or nearly.
//!
//! The states hold a packet, two maps, pointers that may be equal, and numbers of which something is
//! known; the windows are straight-line code over them.

use bpf_facts::{BaseId, Env, Kind, Live, MapInfo, Num, Region, StackSet, State, Tnum, Value};
use bpf_isa::{AluOp, AtomicOp, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{BlockId, Op, ProgKind};

use crate::random::Rng;

/// Bytes of a value of the maps.
pub const VALUE_SIZE: u64 = 32;

/// The register of this number; r0 for a number that none has.
pub fn r(n: u8) -> Reg {
    Reg::new(n).unwrap_or(Reg::R0)
}

/// The maps of the states.
pub fn maps() -> Vec<MapInfo> {
    let map = |name: &str| MapInfo {
        name: name.into(),
        map_type: Some(bpf_platform::maps::HASH),
        key_size: Some(4),
        value_size: Some(VALUE_SIZE as u32),
        max_entries: Some(16),
        ..MapInfo::default()
    };
    vec![map("one"), map("two")]
}

/// A fact about a register.
pub fn number(rng: &mut Rng) -> Num {
    match rng.below(8) {
        0..=2 => Num::top(64),
        3 => {
            let (a, b) = (rng.number(64), rng.number(64));
            Num::unsigned(64, a.min(b), a.max(b))
        }
        4 => {
            let (a, b) = (rng.number(64) as i64, rng.number(64) as i64);
            Num::signed(64, a.min(b), a.max(b))
        }
        5 => Num::unsigned(64, 0, rng.one_of(&[1, 7, 8, 15, 31, 63, 255, 256, 0xffff, 0xffff_ffff])),
        6 => {
            let mask = rng.number(64);
            Num::with_bits(64, Tnum { value: rng.number(64) & !mask, mask })
        }
        _ => Num::constant(64, rng.number(64)),
    }
}

/// A number of which the fact holds, often one at its edge.
pub fn member(rng: &mut Rng, n: &Num) -> Option<u64> {
    let candidates = [
        n.umin,
        n.umax,
        n.smin as u64,
        n.smax as u64,
        n.umin.wrapping_add(rng.below(4)),
        n.umax.wrapping_sub(rng.below(4)),
        n.tnum.value | (rng.next() & n.tnum.mask),
        n.tnum.value | (rng.number(64) & n.tnum.mask),
        n.umin.wrapping_add(rng.next() % (n.umax - n.umin).max(1)),
    ];
    let from = rng.below(9) as usize;
    (0..9).map(|i| candidates[(from + i) % 9]).find(|v| n.contains(*v))
}

/// A state to start from, and what matters at the end.
pub struct Scene {
    /// Facts.
    pub state: State,
    /// What is live.
    pub live: Live,
    /// Kind of the program.
    pub kind: ProgKind,
    /// Stores to the frame that lead from `first` to `state`.
    pub prologue: Vec<Op>,
    /// Facts before them.
    pub first: State,
    /// Whether pointers may be of any origin.
    pub wild: bool,
}

/// A random one.
pub fn scene(rng: &mut Rng, env: &Env) -> Scene {
    let wild = rng.chance(8);
    let (kind, mut s) =
        if wild { (ProgKind::Subprogram, State::top()) } else { (ProgKind::Xdp, State::entry(ProgKind::Xdp)) };
    for n in [0, 1, 2, 3] {
        let v = if wild && rng.chance(2) { Value::unknown() } else { Value::scalar(number(rng)) };
        s.set_reg(r(n), v);
    }
    let packet_base = s.packet_base();
    let index = Num::with_bits(64, Tnum { value: 0, mask: rng.one_of(&[1, 4, 7, 0x18, 0x3f]) });
    s.set_reg(r(6), Value::pointer(Region::Packet, packet_base, 0));
    let five = match rng.below(4) {
        0 => Value { kind: Value::pointer(Region::Packet, packet_base, 0).kind, num: index },
        1 => Value::unknown(),
        2 => Value::pointer(Region::Packet, packet_base, 4),
        _ => Value::scalar(number(rng)),
    };
    s.set_reg(r(5), five);
    s.set_reg(r(7), Value::pointer(Region::MapValue { map: 0 }, BaseId::Site(BlockId(0), 0), 0));
    let eight = match rng.below(4) {
        0 => Value { kind: s.reg(r(7)).kind.clone(), num: index },
        1 => Value::pointer(Region::MapValue { map: 1 }, BaseId::Site(BlockId(0), 1), 0),
        2 => Value::pointer(Region::MapValue { map: 0 }, BaseId::Unknown, 0),
        _ => Value::pointer(Region::MapValue { map: 0 }, BaseId::Site(BlockId(0), 1), 0),
    };
    s.set_reg(r(8), eight);
    let slot = -8 * (1 + rng.below(4) as i64);
    let varying = Num::constant(64, -40i64 as u64).add(&Num::with_bits(64, Tnum { value: 0, mask: 0x18 }));
    let nine = Value::pointer(Region::Stack, BaseId::Fixed, slot);
    let nine = if rng.chance(4) { Value { kind: nine.kind, num: varying } } else { nine };
    s.set_reg(r(9), nine);
    s.set_reg(r(4), Value::scalar(index));
    let first = s.clone();
    let mut prologue = vec![];
    for i in 0..rng.below(4) {
        let size = rng.one_of(&Size::ALL);
        let off = -(size.bytes() as i16) * (1 + rng.below(40 / u64::from(size.bytes())) as i16);
        let src = r(rng.one_of(&[0, 1, 2, 3, 4, 6, 9]));
        let size = if matches!(s.reg(src).kind, Kind::Pointer { .. }) { Size::DW } else { size };
        let off = if size == Size::DW { off & !7 } else { off };
        let op = Op::new(Insn::Store { size, base: Reg::R10, off, src: Src::Reg(src) });
        s.step(&op, (BlockId(0), 10 + i as usize), kind, env);
        prologue.push(op);
    }
    let live = some_live(rng);
    Scene { state: s, live, kind, prologue, first, wild }
}

/// Random places that matter.
pub fn some_live(rng: &mut Rng) -> Live {
    let mut live = Live::default();
    for n in 0..10 {
        if rng.chance(2) {
            live.regs.insert(r(n));
        }
    }
    live.stack = match rng.below(4) {
        0 => StackSet::ALL,
        1 => StackSet::EMPTY,
        _ => StackSet::range(-8 * (1 + rng.below(5) as i64), 1 + rng.below(16) as u32),
    };
    live
}

/// An immediate, mostly an interesting one.
pub fn immediate(rng: &mut Rng) -> i32 {
    rng.number(32) as i32
}

/// A register that holds a number.
pub fn scalar(rng: &mut Rng) -> Reg {
    r(rng.below(5) as u8)
}

/// A register with a number, or an immediate.
pub fn source(rng: &mut Rng) -> Src {
    if rng.chance(2) { Src::Reg(scalar(rng)) } else { Src::Imm(immediate(rng)) }
}

/// Base register and offset of an access.
pub fn place(rng: &mut Rng, size: Size) -> (Reg, i16) {
    let n = size.bytes() as i16;
    match rng.below(10) {
        0..=3 => (Reg::R10, -n * (1 + rng.below(40 / n as u64) as i16)),
        4 => (r(9), n * rng.below(8 / n as u64) as i16),
        5 | 6 => (r(6), rng.below(12) as i16),
        7 => (r(7), n * rng.below(16 / n as u64) as i16),
        8 => (r(8), n * rng.below(16 / n as u64) as i16),
        _ => (r(5), n * rng.below(3) as i16),
    }
}

/// A random operation.
pub fn operation(rng: &mut Rng) -> Insn {
    let width = rng.one_of(&[Width::W32, Width::W64, Width::W64]);
    let (dst, src) = (scalar(rng), scalar(rng));
    match rng.below(24) {
        0..=6 => {
            let op = rng.one_of(&AluOp::ALL);
            let s = match op {
                AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if rng.chance(2) => {
                    Src::Imm(rng.below(width.bits().into()) as i32)
                }
                AluOp::Mul | AluOp::Div | AluOp::Mod if !rng.chance(4) => Src::Imm(1 << rng.below(9)),
                _ => source(rng),
            };
            Insn::Alu { op, width, dst, src: s }
        }
        7 | 8 => Insn::Mov { width, dst, src: source(rng) },
        9 => Insn::MovSx { width, from: rng.one_of(&[Size::B, Size::H]), dst, src },
        10 => {
            if rng.chance(2) {
                Insn::Neg { width, dst }
            } else {
                let kind = rng.one_of(&[Endian::Le, Endian::Be, Endian::Swap]);
                Insn::Endian { kind, bits: rng.one_of(&[16, 32, 64]), dst }
            }
        }
        11 => Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: rng.number(64) },
        12 => {
            // Pointers move.
            let p = r(5 + rng.below(5) as u8);
            match rng.below(3) {
                0 => Insn::Mov { width: Width::W64, dst: r(5), src: Src::Reg(p) },
                1 => Insn::Alu { op: AluOp::Add, width: Width::W64, dst: p, src: Src::Imm(rng.below(9) as i32) },
                _ => Insn::Alu { op: AluOp::Add, width: Width::W64, dst: p, src: Src::Reg(r(4)) },
            }
        }
        13..=16 => {
            let size = rng.one_of(&Size::ALL);
            let (base, off) = place(rng, size);
            Insn::Load { size, sext: size != Size::DW && rng.chance(4), dst, base, off }
        }
        17..=21 => {
            let size = rng.one_of(&Size::ALL);
            let (base, off) = place(rng, size);
            let src = if rng.chance(6) { Src::Reg(r(rng.below(10) as u8)) } else { source(rng) };
            Insn::Store { size, base, off, src }
        }
        22 => {
            let fetch = rng.chance(2);
            let op = rng.one_of(&[
                AtomicOp::Add { fetch: false },
                AtomicOp::Add { fetch },
                AtomicOp::Or { fetch },
                AtomicOp::And { fetch },
                AtomicOp::Xor { fetch },
                AtomicOp::Xchg,
                AtomicOp::CmpXchg,
            ]);
            let size = rng.one_of(&[Size::W, Size::DW]);
            let (base, off) = place(rng, size);
            Insn::Atomic { op, size, base, off, src }
        }
        _ => {
            let size = rng.one_of(&Size::ALL);
            let (base, off) = place(rng, size);
            if rng.chance(2) {
                Insn::LoadAcquire { size, dst, base, off }
            } else {
                Insn::StoreRelease { size, base, off, src }
            }
        }
    }
}

/// Rewrites that are right, or nearly: `None` where the instruction has none.
pub fn nearly(rng: &mut Rng, insn: Insn) -> Option<Vec<Insn>> {
    let shift = |i: i32| (i > 0 && i & (i - 1) == 0).then(|| Src::Imm(i.trailing_zeros() as i32));
    Some(match insn {
        Insn::Alu { op: AluOp::Mul, width, dst, src: Src::Imm(i) } => {
            vec![Insn::Alu { op: AluOp::Lsh, width, dst, src: shift(i)? }]
        }
        Insn::Alu { op: AluOp::Lsh, width, dst, src: Src::Imm(i) } if (0..31).contains(&i) => {
            vec![Insn::Alu { op: AluOp::Mul, width, dst, src: Src::Imm(1 << i) }]
        }
        Insn::Alu { op: op @ (AluOp::Div | AluOp::SDiv), width, dst, src: Src::Imm(i) } => {
            let to = if op == AluOp::Div { AluOp::Rsh } else { AluOp::Arsh };
            vec![Insn::Alu { op: to, width, dst, src: shift(i)? }]
        }
        Insn::Alu { op: AluOp::Mod, width, dst, src: Src::Imm(i) } if i > 0 => {
            vec![Insn::Alu { op: AluOp::And, width, dst, src: Src::Imm(i - 1) }]
        }
        Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(i) } => {
            vec![Insn::Alu { op: AluOp::Sub, width, dst, src: Src::Imm(i.wrapping_neg()) }]
        }
        Insn::Alu { op: AluOp::Sub, width, dst, src: Src::Imm(i) } => {
            vec![Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(i.wrapping_neg()) }]
        }
        Insn::Alu { op: AluOp::Sub, width, dst, src: Src::Reg(s) } if s == dst => {
            vec![Insn::Mov { width, dst, src: Src::Imm(0) }]
        }
        Insn::Alu { op, width: Width::W64, dst, src } => vec![Insn::Alu { op, width: Width::W32, dst, src }],
        Insn::Alu { op: AluOp::Arsh, width: Width::W32, dst, src } => vec![
            Insn::MovSx { width: Width::W64, from: Size::W, dst, src: dst },
            Insn::Alu { op: AluOp::Arsh, width: Width::W64, dst, src },
            Insn::Mov { width: Width::W32, dst, src: Src::Reg(dst) },
        ],
        Insn::Neg { width, dst } => vec![
            Insn::Alu { op: AluOp::Xor, width, dst, src: Src::Imm(-1) },
            Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(1) },
        ],
        Insn::Mov { width: Width::W32, dst, src: Src::Reg(s) } => vec![
            Insn::Mov { width: Width::W64, dst, src: Src::Reg(s) },
            Insn::Alu { op: AluOp::Lsh, width: Width::W64, dst, src: Src::Imm(32) },
            Insn::Alu { op: AluOp::Rsh, width: Width::W64, dst, src: Src::Imm(32) },
        ],
        Insn::MovSx { width: Width::W64, from, dst, src } => {
            let s = Src::Imm(64 - from.bits() as i32);
            vec![
                Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) },
                Insn::Alu { op: AluOp::Lsh, width: Width::W64, dst, src: s },
                Insn::Alu { op: AluOp::Arsh, width: Width::W64, dst, src: s },
            ]
        }
        Insn::Endian { kind: Endian::Be, bits, dst } => vec![Insn::Endian { kind: Endian::Swap, bits, dst }],
        Insn::Endian { kind: Endian::Le, bits: 32, dst } => {
            vec![Insn::Mov { width: Width::W32, dst, src: Src::Reg(dst) }]
        }
        Insn::LoadImm64 { dst, imm, .. } => {
            vec![Insn::Mov { width: rng.one_of(&[Width::W32, Width::W64]), dst, src: Src::Imm(imm as i32) }]
        }
        Insn::Load { size: Size::DW, dst, base, off, .. } if dst != base => vec![
            Insn::Load { size: Size::W, sext: false, dst: r(4), base, off },
            Insn::Load { size: Size::W, sext: false, dst, base, off: off + 4 },
            Insn::Alu { op: AluOp::Lsh, width: Width::W64, dst, src: Src::Imm(32) },
            Insn::Alu { op: AluOp::Or, width: Width::W64, dst, src: Src::Reg(r(4)) },
        ],
        Insn::Load { size, sext: true, dst, base, off } => {
            let s = Src::Imm(64 - size.bits() as i32);
            vec![
                Insn::Load { size, sext: false, dst, base, off },
                Insn::Alu { op: AluOp::Lsh, width: Width::W64, dst, src: s },
                Insn::Alu { op: AluOp::Arsh, width: Width::W64, dst, src: s },
            ]
        }
        Insn::Store { size: Size::DW, base, off, src: Src::Imm(i) } => vec![
            Insn::Store { size: Size::W, base, off, src: Src::Imm(i) },
            Insn::Store { size: Size::W, base, off: off + 4, src: Src::Imm(i >> 31) },
        ],
        Insn::Store { size: Size::W, base, off, src: Src::Imm(i) } => vec![
            Insn::Store { size: Size::H, base, off: off + 2, src: Src::Imm(i >> 16) },
            Insn::Store { size: Size::H, base, off, src: Src::Imm(i) },
        ],
        Insn::Atomic { op: AtomicOp::Add { fetch: false }, size, base, off, src } => {
            let width = if size == Size::W { Width::W32 } else { Width::W64 };
            vec![
                Insn::Load { size, sext: false, dst: r(2), base, off },
                Insn::Alu { op: AluOp::Add, width, dst: r(2), src: Src::Reg(src) },
                Insn::Store { size, base, off, src: Src::Reg(r(2)) },
            ]
        }
        _ => return None,
    })
}

/// One change of operand, operation, width, immediate or offset.
pub fn tweak(rng: &mut Rng, insn: Insn) -> Insn {
    let reg = |rng: &mut Rng| r(rng.below(10) as u8);
    let near = |rng: &mut Rng, off: i16| off + rng.one_of(&[-8, -4, -1, 1, 4, 8]);
    match insn {
        Insn::Alu { op, width, dst, src } => match rng.below(4) {
            0 => Insn::Alu { op: rng.one_of(&AluOp::ALL), width, dst, src },
            1 => Insn::Alu { op, width: rng.one_of(&[Width::W32, Width::W64]), dst, src },
            2 => Insn::Alu { op, width, dst, src: source(rng) },
            _ => Insn::Alu { op, width, dst: scalar(rng), src },
        },
        Insn::Mov { dst, src, .. } => match rng.below(3) {
            0 => Insn::Mov { width: rng.one_of(&[Width::W32, Width::W64]), dst, src },
            1 => Insn::Mov { width: Width::W64, dst: scalar(rng), src },
            _ => Insn::Mov { width: Width::W64, dst, src: source(rng) },
        },
        Insn::Load { size, sext, dst, base, off } => match rng.below(4) {
            0 => Insn::Load { size: rng.one_of(&Size::ALL[..3]), sext, dst, base, off },
            1 => Insn::Load { size, sext, dst: scalar(rng), base, off },
            2 => Insn::Load { size, sext, dst, base: reg(rng), off },
            _ => Insn::Load { size, sext, dst, base, off: near(rng, off) },
        },
        Insn::Store { size, base, off, src } => match rng.below(4) {
            0 => Insn::Store { size: rng.one_of(&Size::ALL), base, off, src },
            1 => Insn::Store { size, base, off: near(rng, off), src },
            2 => Insn::Store { size, base: rng.one_of(&[Reg::R10, base, r(9)]), off, src },
            _ => Insn::Store { size, base, off, src: source(rng) },
        },
        Insn::Atomic { op, size, base, off, src } => match rng.below(3) {
            0 => Insn::Atomic { op: AtomicOp::Add { fetch: true }, size, base, off, src },
            1 => Insn::Atomic { op, size: rng.one_of(&[Size::W, Size::DW]), base, off, src },
            _ => Insn::Atomic { op, size, base, off, src: scalar(rng) },
        },
        Insn::Endian { bits, dst, .. } => Insn::Endian { kind: Endian::Swap, bits, dst },
        Insn::MovSx { width, dst, src, .. } => Insn::MovSx { width, from: rng.one_of(&[Size::B, Size::H]), dst, src },
        Insn::Neg { dst, .. } => Insn::Neg { width: Width::W32, dst },
        _ => operation(rng),
    }
}

/// Changes a window somewhere.
pub fn mutate(rng: &mut Rng, ops: &mut Vec<Insn>) {
    let n = ops.len() as u64;
    let i = rng.below(n) as usize;
    match rng.below(12) {
        0..=4 => {
            // The first instruction from there on that has one.
            for j in (0..ops.len()).map(|j| (i + j) % ops.len()) {
                if let Some(with) = nearly(rng, ops[j]) {
                    ops.splice(j..=j, with);
                    return;
                }
            }
        }
        5 if n > 1 => {
            ops.remove(i);
        }
        6 if n > 1 => {
            let j = (i + 1) % ops.len();
            ops.swap(i, j);
        }
        7 => {
            let j = rng.below(n + 1) as usize;
            ops.insert(j, ops[i]);
        }
        8 => {
            let j = rng.below(n + 1) as usize;
            ops.insert(j, operation(rng));
        }
        9 => {
            // A load of what was just stored becomes a copy.
            for j in 0..ops.len() {
                if let Insn::Load { size: Size::DW, dst, base, off, .. } = ops[j]
                    && let Some(src) = ops[..j].iter().rev().find_map(|s| match *s {
                        Insn::Store { size: Size::DW, base: b, off: o, src } if (b, o) == (base, off) => Some(src),
                        _ => None,
                    })
                {
                    ops[j] = Insn::Mov { width: Width::W64, dst, src };
                }
            }
        }
        _ => ops[i] = tweak(rng, ops[i]),
    }
}

/// Operations, one per line.
pub fn listing(ops: &[Op]) -> String {
    ops.iter().map(|o| format!("    {}\n", o.insn)).collect()
}
