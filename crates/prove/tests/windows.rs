//! The judge against the interpreter: windows it calls equal must do the same on every input, and an
//! input it calls different must be one.

mod common;

use std::collections::BTreeMap;

use bpf_facts::{BaseId, Env, Kind, Live, MapInfo, Num, Region, StackSet, State, Tnum, Value};
use bpf_isa::{AluOp, AtomicOp, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{BlockId, Link, Op, ProgKind};
use bpf_prove::context::{Context, Region as ProofRegion, VarKey};
use bpf_prove::{Difference, Limits, Options, Verdict, window};
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, Next};
use common::{Rng, mix, rounds};

const PACKET: u64 = 0xffff_8880_1000_0100;
const VALUES: u64 = 0xffff_8881_2000_0000;
const VALUE_SIZE: u64 = 32;
const FRAME_POINTER: u64 = 0xffff_c900_0001_0000;

fn r(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn maps() -> Vec<MapInfo> {
    let map = |name: &str| MapInfo {
        name: name.into(),
        map_type: Some(1),
        key_size: Some(4),
        value_size: Some(VALUE_SIZE as u32),
        max_entries: Some(16),
    };
    vec![map("one"), map("two")]
}

// ---- a world that keeps books ---------------------------------------------------------------------

/// Flat memory that notes every access.
struct Books<'a> {
    initial: &'a dyn Fn(u64) -> u8,
    memory: BTreeMap<u64, u8>,
    reads: BTreeMap<u64, u32>,
    writes: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Books<'a> {
    fn new(initial: &'a dyn Fn(u64) -> u8) -> Books<'a> {
        Books { initial, memory: BTreeMap::new(), reads: BTreeMap::new(), writes: BTreeMap::new() }
    }
    fn byte(&self, a: u64) -> u8 {
        self.memory.get(&a).copied().unwrap_or_else(|| (self.initial)(a))
    }
}

impl Host for Books<'_> {
    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        for (i, b) in out.iter_mut().enumerate() {
            let a = address.wrapping_add(i as u64);
            *self.reads.entry(a).or_default() += 1;
            *b = self.byte(a);
        }
        Ok(())
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        for (i, b) in bytes.iter().enumerate() {
            let a = address.wrapping_add(i as u64);
            self.writes.entry(a).or_default().push(*b);
            self.memory.insert(a, *b);
        }
        Ok(())
    }
    fn call(&mut self, _: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        Err(Fault::Unmodelled(op.insn.to_string()))
    }
    fn address_of(&mut self, _: Imm64Kind, _: u64, _: Option<&Link>) -> Result<u64, Fault> {
        Err(Fault::Unmodelled("an address".into()))
    }
}

/// A concrete entry state.
#[derive(Clone, Debug)]
struct Input {
    regs: [u64; 11],
    frame: Vec<u8>,
    seed: u64,
}

struct Ran<'a> {
    cpu: Cpu,
    books: Books<'a>,
}

fn run<'a>(input: &Input, ops: &[Op], initial: &'a dyn Fn(u64) -> u8) -> Option<Ran<'a>> {
    let mut cpu = Cpu::with_frame_pointer(input.regs[10]);
    for (i, v) in input.regs.iter().enumerate() {
        cpu.set(r(i as u8), *v);
    }
    cpu.frame_mut().copy_from_slice(&input.frame);
    let mut m = Interp::with_cpu(cpu, Books::new(initial));
    m.run_ops(ops).ok()?;
    Some(Ran { cpu: m.cpu, books: m.host })
}

/// Whether every access was where an accepted program may go.
fn tame(b: &Books) -> bool {
    b.reads
        .keys()
        .chain(b.writes.keys())
        .all(|a| (PACKET - 0x100..PACKET + 0x1000).contains(a) || (VALUES - 0x100..VALUES + 0x1000).contains(a))
}

/// What the new side does that the old one does not, if anything.
fn difference(old: &Ran, new: &Ran, live: &Live) -> Option<String> {
    for reg in live.regs.iter() {
        let (x, y) = (old.cpu.register(reg), new.cpu.register(reg));
        if x != y {
            return Some(format!("{reg}: {x:x?} and {y:x?}"));
        }
    }
    for off in live.stack.iter() {
        let at = (512 + off) as usize;
        let (x, y) = (old.cpu.frame()[at], new.cpu.frame()[at]);
        if x != y {
            return Some(format!("stack {off}: {x:#x} and {y:#x}"));
        }
    }
    for a in old.books.memory.keys().chain(new.books.memory.keys()) {
        let (x, y) = (old.books.byte(*a), new.books.byte(*a));
        if x != y {
            return Some(format!("byte {a:#x}: {x:#x} and {y:#x}"));
        }
    }
    None
}

/// What the new side does to memory that the contract forbids even if the contents agree.
fn misbehaviour(old: &Books, new: &Books) -> Option<String> {
    for (a, n) in &new.reads {
        let was = old.reads.get(a).copied().unwrap_or(0);
        let private = *a < VALUES - 0x100;
        if was == 0 && !(private && old.writes.contains_key(a)) || !private && *n > was {
            return Some(format!("{n} reads of {a:#x}, {was} before"));
        }
    }
    for (a, values) in &new.writes {
        let private = *a < VALUES - 0x100;
        let Some(was) = old.writes.get(a) else {
            // A private byte may be written back as it was.
            if private && old.reads.contains_key(a) {
                continue;
            }
            return Some(format!("a write of {a:#x}"));
        };
        if !private && (values.len() > was.len() || values.iter().any(|v| !was.contains(v))) {
            return Some(format!("writes of {a:#x}: {values:x?}, {was:x?} before"));
        }
    }
    None
}

// ---- random facts -----------------------------------------------------------------------------------

/// A fact about a register and how to pick a value of which it holds.
fn number(rng: &mut Rng) -> Num {
    let n = match rng.below(8) {
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
    };
    assert!(n.umin <= n.umax && n.smin <= n.smax);
    n
}

fn member(rng: &mut Rng, n: &Num) -> Option<u64> {
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

struct Scene {
    state: State,
    live: Live,
    kind: ProgKind,
    /// Executed before the window, to fill the stack.
    prologue: Vec<Op>,
    /// Facts before the prologue.
    first: State,
    wild: bool,
}

fn scene(rng: &mut Rng, env: &Env) -> Scene {
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
    Scene { state: s, live, kind, prologue, first, wild }
}

/// Concrete entries of which the facts hold. Pointers of different regions are far apart; values of one
/// map are the same or neighbours.
fn input(rng: &mut Rng, scene: &Scene) -> Option<Input> {
    let mut regs = [0u64; 11];
    regs[10] = FRAME_POINTER;
    let mut sites: BTreeMap<(usize, bool), u64> = BTreeMap::new();
    let seed = rng.next();
    for n in 0..10usize {
        let v = scene.first.reg(r(n as u8));
        regs[n] = match &v.kind {
            Kind::Unknown => match rng.below(5) {
                0 => PACKET + rng.below(16),
                1 => VALUES + rng.below(16),
                2 if scene.wild => regs[10] - 8 * (1 + rng.below(6)),
                3 if scene.wild => regs[10] - 1 - rng.below(48),
                _ => PACKET + 4 * rng.below(4),
            },
            Kind::Scalar => member(rng, &v.num)?,
            Kind::Pointer { region, base, .. } => {
                let base = match region {
                    Region::Packet => PACKET,
                    Region::Stack => regs[10],
                    Region::MapValue { map } => {
                        let fresh = VALUES + 0x400 * *map as u64 + VALUE_SIZE * rng.below(2);
                        match base {
                            BaseId::Unknown => fresh,
                            b => *sites.entry((*map, *b == BaseId::Site(BlockId(0), 0))).or_insert(fresh),
                        }
                    }
                    _ => return None,
                };
                base.wrapping_add(member(rng, &v.num)?)
            }
        };
    }
    let frame: Vec<u8> = (0..512).map(|_| rng.next() as u8 & if rng.chance(2) { 0xff } else { 0x81 }).collect();
    let start = Input { regs, frame, seed };
    let nothing = |_: u64| 0u8;
    let ran = run(&start, &scene.prologue, &nothing)?;
    assert!(ran.books.writes.is_empty(), "the prologue writes only the stack");
    let frame = ran.cpu.frame().to_vec();
    Some(Input { frame, ..start })
}

// ---- random windows -----------------------------------------------------------------------------------

fn immediate(rng: &mut Rng) -> i32 {
    rng.number(32) as i32
}

fn scalar(rng: &mut Rng) -> Reg {
    r(rng.below(5) as u8)
}

fn source(rng: &mut Rng) -> Src {
    if rng.chance(2) { Src::Reg(scalar(rng)) } else { Src::Imm(immediate(rng)) }
}

/// Base register and offset of an access.
fn place(rng: &mut Rng, size: Size) -> (Reg, i16) {
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

fn operation(rng: &mut Rng) -> Insn {
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
fn nearly(rng: &mut Rng, insn: Insn) -> Option<Vec<Insn>> {
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
fn tweak(rng: &mut Rng, insn: Insn) -> Insn {
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

fn mutate(rng: &mut Rng, ops: &mut Vec<Insn>) {
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

fn listing(ops: &[Op]) -> String {
    ops.iter().map(|o| format!("    {}\n", o.insn)).collect()
}

// ---- models back to inputs --------------------------------------------------------------------------

/// The input a refutation describes, with every region's addresses moved to where that region is here:
/// the formula's own may coincide. `None` if the formula speaks about one memory or about later ones.
fn replayable(d: &mut Difference, scene: &Scene) -> Option<(Input, BTreeMap<u64, u8>)> {
    let model = d.model.clone();
    let cx: &mut Context = &mut d.context;
    if cx.one_memory {
        return None;
    }
    let world = cx.entry_world();
    let value = |cx: &Context, key: &VarKey| cx.lookup(key).map_or(0, |t| model.eval(&cx.terms, t));
    let number = |cx: &Context, n: &Num, key: &VarKey| (value(cx, key) & n.tnum.mask) | n.tnum.value;
    // How far each region moves.
    let mut moved: Vec<(ProofRegion, u64)> = vec![];
    let mut shift = |region: ProofRegion, base: u64, to: u64| -> u64 {
        match moved.iter().find(|(r, _)| *r == region) {
            Some((_, by)) => *by,
            None => {
                let by = to.wrapping_sub(base);
                moved.push((region, by));
                by
            }
        }
    };
    let mut bases: Vec<((Region, BaseId), u64)> = vec![];
    let mut entry = |cx: &Context, v: &Value, key: &VarKey| -> u64 {
        let (region, base) = match &v.kind {
            Kind::Unknown => return value(cx, key),
            Kind::Scalar => return number(cx, &v.num, key),
            Kind::Pointer { region, base, .. } => (region, *base),
        };
        let mut own = false;
        let b = match region {
            Region::Stack => value(cx, &VarKey::Frame),
            Region::Ctx => value(cx, &VarKey::CtxPointer),
            Region::Packet if base.same(scene.state.packet_base()) && scene.kind == ProgKind::Xdp => {
                value(cx, &VarKey::PacketPointer(0, world))
            }
            _ if base.same(base) => match bases.iter().find(|(k, _)| *k == (region.clone(), base)) {
                Some((_, b)) => *b,
                None => {
                    let b = value(cx, &VarKey::EntryBase(bases.len() as u32 + 1));
                    bases.push(((region.clone(), base), b));
                    b
                }
            },
            _ => {
                own = true;
                value(cx, key)
            }
        };
        let by = match region {
            Region::Stack => shift(ProofRegion::Stack, b, FRAME_POINTER),
            Region::Packet => shift(ProofRegion::Packet, b, PACKET),
            Region::MapValue { map } => {
                let name = if *map == 0 { "one" } else { "two" };
                shift(ProofRegion::MapValue(name.into()), b, VALUES + 0x400 * *map as u64)
            }
            _ => 0,
        };
        let offset = if own { 0 } else { number(cx, &v.num, key) };
        b.wrapping_add(by).wrapping_add(offset)
    };
    let mut regs = [0; 11];
    for reg in Reg::all() {
        regs[reg.index()] = entry(cx, scene.state.reg(reg), &VarKey::EntryReg(reg.index() as u8));
    }
    let slots: Vec<(i64, u32, u64)> = scene
        .state
        .stack_values()
        .map(|(off, v)| (off, v.num.bits / 8, entry(cx, v, &VarKey::EntrySlot(off))))
        .collect();
    let mut bytes = BTreeMap::new();
    let mut frame = vec![0u8; 512];
    for ((m, a), b) in &model.bytes {
        let bpf_prove::term::MemNode::Base { region, version } = cx.terms.mem(*m) else { continue };
        let region = cx.region(*region);
        let by = moved.iter().find(|(r, _)| r == region).map_or(0, |(_, by)| *by);
        let a = a.wrapping_add(by);
        if *version != world {
            return None;
        }
        if *region == ProofRegion::Stack {
            let at = a.wrapping_sub(FRAME_POINTER).wrapping_add(512);
            *frame.get_mut(usize::try_from(at).ok()?)? = *b;
        } else {
            bytes.insert(a, *b);
        }
    }
    for (off, n, v) in slots {
        for i in 0..n {
            frame[(512 + off) as usize + i as usize] = (v >> (8 * i)) as u8;
        }
    }
    Some((Input { regs, frame, seed: 0 }, bytes))
}

/// Whether pointers are only used as addresses: then moving regions changes nothing else.
fn only_addresses(scene: &Scene, ops: &[Op]) -> bool {
    let pointer = |r: Reg| r.index() >= 5;
    scene.state.stack_values().all(|(_, v)| v.region().is_none())
        && ops.iter().all(|o| match o.insn {
            Insn::Load { dst, .. } => !pointer(dst),
            Insn::Store { src, .. } => !src.reg().is_some_and(pointer),
            i => !i.uses().union(i.defs()).iter().any(pointer),
        })
}

fn has_events(ops: &[Op]) -> bool {
    ops.iter().any(|o| matches!(o.insn, Insn::Atomic { .. } | Insn::LoadAcquire { .. } | Insn::StoreRelease { .. }))
}

#[derive(Default, Debug)]
struct Tally {
    equal: u64,
    equal_by_solver: u64,
    solver_queries: u64,
    different: u64,
    unknown: u64,
    runs: u64,
    replayed: u64,
    not_replayable: u64,
    overflowed: u64,
}

#[test]
fn verdicts_hold_in_the_interpreter() {
    let maps = maps();
    let env = Env { maps: &maps, callee_args: &|_| None };
    let mut tally = Tally::default();
    let mut failures = vec![];
    let first = std::env::var("BPF_OPT_FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..rounds(300), |s: u64| s..s + 1);
    for seed in seeds {
        let mut rng = Rng(mix(seed));
        one_window(seed, &mut rng, &env, &mut tally, &mut failures);
    }
    println!("{tally:?}");
    assert!(failures.is_empty(), "{} failures, the first:\n{}", failures.len(), failures[0]);
    if first.is_none() {
        assert!(tally.equal > 200 && tally.different > 100 && tally.replayed > 50, "{tally:?}");
    }
}

fn one_window(seed: u64, rng: &mut Rng, env: &Env, tally: &mut Tally, failures: &mut Vec<String>) {
    let scene = scene(rng, env);
    let n = 1 + rng.below(6);
    let insns: Vec<Insn> = (0..n).map(|_| operation(rng)).collect();
    let old: Vec<Op> = insns.iter().map(|i| Op::new(*i)).collect();
    let initial_seed = rng.next();
    let inputs: Vec<Input> = (0..24).filter_map(|_| input(rng, &scene)).collect();
    for _ in 0..4 {
        let mut changed = insns.clone();
        for _ in 0..1 + rng.below(2) {
            mutate(rng, &mut changed);
        }
        let new: Vec<Op> = changed.iter().map(|i| Op::new(*i)).collect();
        // Either may be the original.
        let (old, new) = if rng.chance(3) { (new, old.clone()) } else { (old.clone(), new) };
        let limits = Limits { conflicts: 300, work: 400_000, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        // Known: offsets near `i64::MAX` overflow in symex (`trust.rs`); anything else is a failure.
        let ask = || window(scene.kind, env, &scene.state, &old, &new, &scene.live, None, &options);
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
        let (verdict, stats) = match judged {
            Ok(judged) => judged,
            Err(why) if why.downcast_ref::<&str>().is_some_and(|w| w.contains("overflow")) => {
                tally.overflowed += 1;
                continue;
            }
            Err(why) => {
                let why = why.downcast_ref::<String>().map_or("no reason", |w| w);
                failures.push(format!("seed {seed}: panic: {why}\nold\n{}new\n{}", listing(&old), listing(&new)));
                continue;
            }
        };
        let story = |why: &str, input: &Input| {
            format!(
                "seed {seed}: {why}\nold\n{}new\n{}live {:?}\n{:x?}\nstack facts {:?}\nregisters {:?}",
                listing(&old),
                listing(&new),
                scene.live,
                input.regs,
                scene.state.stack_values().collect::<Vec<_>>(),
                Reg::all().map(|r| scene.state.reg(r).clone()).collect::<Vec<_>>(),
            )
        };
        tally.solver_queries += stats.sat_calls;
        match verdict {
            Verdict::Equal => {
                tally.equal += 1;
                tally.equal_by_solver += u64::from(stats.sat_calls > 0);
                for i in &inputs {
                    let initial = |a: u64| mix(a ^ initial_seed ^ i.seed) as u8;
                    let Some(a) = run(i, &old, &initial).filter(|a| tame(&a.books)) else { continue };
                    tally.runs += 1;
                    let Some(b) = run(i, &new, &initial) else {
                        failures.push(story("the new side faults", i));
                        break;
                    };
                    let what = difference(&a, &b, &scene.live).or_else(|| misbehaviour(&a.books, &b.books));
                    if let Some(what) = what {
                        failures.push(story(&format!("called equal, {what}"), i));
                        break;
                    }
                }
            }
            Verdict::Different(mut d) => {
                tally.different += 1;
                let varying = scene.state.reg(r(9)).num.as_const().is_none();
                let plain = |ops| !has_events(ops) && only_addresses(&scene, ops);
                if !plain(&old) || !plain(&new) || varying {
                    tally.not_replayable += 1;
                    continue;
                }
                let Some((i, bytes)) = replayable(&mut d, &scene) else {
                    tally.not_replayable += 1;
                    continue;
                };
                let initial = |a: u64| bytes.get(&a).copied().unwrap_or(0);
                let (a, b) = (run(&i, &old, &initial), run(&i, &new, &initial));
                let (Some(a), Some(b)) = (a, b) else {
                    tally.not_replayable += 1;
                    continue;
                };
                tally.replayed += 1;
                if difference(&a, &b, &scene.live).is_none() {
                    failures.push(story("called different, the same here", &i));
                }
            }
            Verdict::Unknown(_) => tally.unknown += 1,
        }
    }
}
