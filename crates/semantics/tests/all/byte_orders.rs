//! The interpreter in both byte orders, against an evaluator that shares nothing with it.
//!
//! The evaluator is written from RFC 9669 alone: it takes the bytes of a program as they stand in an object of that byte
//! order, takes the fields of instructions apart itself (section 3: offset and immediate in the order of the machine, the two
//! registers in their byte the other way round on big-endian ones), and carries them out on bytes. The interpreter gets the
//! same program as the rest of the project would.

use bpf_isa::{
    AluOp, AtomicOp, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width, decode_all, encode_all, parse_listing,
};
use bpf_program::{ByteOrder, Function, ProgKind, build_from_insns};
use bpf_semantics::interp::{Interp, KernelHost, MapSpec, Oracle};
use fastrand::Rng;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];
const PROGRAMS: usize = 10_000;
/// Where memory that is no stack begins, and how much of it programs use.
const MEMORY: u64 = 0x1_0000;
const MEMORY_BYTES: usize = 64;
const STACK_BYTES: usize = 64;

/// The machine of RFC 9669.
struct Evaluator {
    big: bool,
    r: [u64; 11],
    /// The bytes below r10, and those at [`MEMORY`].
    stack: [u8; STACK_BYTES],
    memory: [u8; MEMORY_BYTES],
    top: u64,
}

impl Evaluator {
    fn place(&mut self, address: u64, n: usize) -> &mut [u8] {
        let bottom = self.top - STACK_BYTES as u64;
        if address >= bottom {
            let at = (address - bottom) as usize;
            &mut self.stack[at..at + n]
        } else {
            let at = (address - MEMORY) as usize;
            &mut self.memory[at..at + n]
        }
    }

    fn read(&mut self, address: u64, n: usize) -> u64 {
        let big = self.big;
        let bytes = self.place(address, n).to_vec();
        let mut value = 0;
        for (i, byte) in bytes.iter().enumerate() {
            let significance = if big { n - 1 - i } else { i };
            value += u64::from(*byte) << (8 * significance);
        }
        value
    }

    fn write(&mut self, address: u64, n: usize, value: u64) {
        let big = self.big;
        let bytes = self.place(address, n);
        for (i, byte) in bytes.iter_mut().enumerate() {
            let significance = if big { n - 1 - i } else { i };
            *byte = (value >> (8 * significance)) as u8;
        }
    }

    /// Runs the code, the bytes of an object's section, and returns r0.
    fn run(&mut self, code: &[u8]) -> u64 {
        let big = self.big;
        let half = |at: usize| {
            let b = [code[at], code[at + 1]];
            if big { i16::from_be_bytes(b) } else { i16::from_le_bytes(b) }
        };
        let word = |at: usize| {
            let b = [code[at], code[at + 1], code[at + 2], code[at + 3]];
            if big { i32::from_be_bytes(b) } else { i32::from_le_bytes(b) }
        };
        let mut pc = 0;
        loop {
            let at = pc * 8;
            let opcode = code[at];
            let (low, high) = (usize::from(code[at + 1] & 15), usize::from(code[at + 1] >> 4));
            let (dst, src) = if big { (high, low) } else { (low, high) };
            let (off, imm) = (half(at + 2), word(at + 4));
            pc += 1;
            let class = opcode & 7;
            match class {
                // LD: only the wide instruction.
                0 => {
                    assert_eq!(opcode, 0x18);
                    let next = word(pc * 8 + 4);
                    self.r[dst] = u64::from(imm as u32) | u64::from(next as u32) << 32;
                    pc += 1;
                }
                1 => {
                    let n = size(opcode);
                    let value = self.read(self.r[src].wrapping_add(off as i64 as u64), n);
                    self.r[dst] = match opcode & 0xe0 {
                        0x60 => value,
                        0x80 => match n {
                            1 => value as i8 as i64 as u64,
                            2 => value as i16 as i64 as u64,
                            _ => value as i32 as i64 as u64,
                        },
                        mode => panic!("mode {mode:#x}"),
                    };
                }
                2 => self.write(self.r[dst].wrapping_add(off as i64 as u64), size(opcode), i64::from(imm) as u64),
                3 if opcode & 0xe0 == 0xc0 => self.atomic(opcode, dst, src, off, imm),
                3 => self.write(self.r[dst].wrapping_add(off as i64 as u64), size(opcode), self.r[src]),
                4 | 7 => self.r[dst] = self.arithmetic(opcode, dst, src, off, imm),
                _ => {
                    let code = opcode >> 4;
                    if code == 9 {
                        return self.r[0];
                    }
                    let right = if opcode & 8 != 0 { self.r[src] } else { i64::from(imm) as u64 };
                    let (a, b) = match class {
                        5 => (self.r[dst], right),
                        // The upper halves do not count; signed ones are extended from here.
                        _ => (self.r[dst] as i32 as i64 as u64, right as i32 as i64 as u64),
                    };
                    let (ua, ub) = if class == 5 { (a, b) } else { (a & 0xffff_ffff, b & 0xffff_ffff) };
                    let goes = match code {
                        0 => true,
                        1 => ua == ub,
                        2 => ua > ub,
                        3 => ua >= ub,
                        4 => ua & ub != 0,
                        5 => ua != ub,
                        6 => a as i64 > b as i64,
                        7 => a as i64 >= b as i64,
                        10 => ua < ub,
                        11 => ua <= ub,
                        12 => (a as i64) < b as i64,
                        13 => a as i64 <= b as i64,
                        code => panic!("jump {code}"),
                    };
                    if goes {
                        pc = (pc as i64 + i64::from(off)) as usize;
                    }
                }
            }
        }
    }

    fn arithmetic(&self, opcode: u8, dst: usize, src: usize, off: i16, imm: i32) -> u64 {
        let wide = opcode & 7 == 7;
        let by_register = opcode & 8 != 0;
        if opcode >> 4 == 13 {
            let n = imm as u32 / 8;
            let cut = |v: u64| if n == 8 { v } else { v & ((1 << (8 * n)) - 1) };
            let low = cut(self.r[dst]);
            let turned = (0..n).fold(0, |sum, i| sum << 8 | low >> (8 * i) & 0xff);
            // Class ALU64: always; else source bit 0: to little-endian, 1: to big-endian.
            let turns = wide || by_register != self.big;
            return if turns { turned } else { low };
        }
        let (mut a, mut b) = (self.r[dst], if by_register { self.r[src] } else { i64::from(imm) as u64 });
        if !wide {
            (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff);
        }
        let bits = if wide { 64 } else { 32 };
        let signed = |v: u64| if wide { v as i64 } else { i64::from(v as i32) };
        let result = match opcode >> 4 {
            0 => a.wrapping_add(b),
            1 => a.wrapping_sub(b),
            2 => a.wrapping_mul(b),
            3 if b == 0 => 0,
            3 if off == 1 => signed(a).wrapping_div(signed(b)) as u64,
            3 => a / b,
            4 => a | b,
            5 => a & b,
            6 => a << (b % bits),
            7 => a >> (b % bits),
            8 => a.wrapping_neg(),
            9 if b == 0 => a,
            9 if off == 1 => signed(a).wrapping_rem(signed(b)) as u64,
            9 => a % b,
            10 => a ^ b,
            11 => match off {
                0 => b,
                8 => b as i8 as i64 as u64,
                16 => b as i16 as i64 as u64,
                _ => b as i32 as i64 as u64,
            },
            12 => (signed(a) >> (b % bits)) as u64,
            code => panic!("operation {code}"),
        };
        if wide { result } else { result & 0xffff_ffff }
    }

    fn atomic(&mut self, opcode: u8, dst: usize, src: usize, off: i16, imm: i32) {
        let n = size(opcode);
        let address = self.r[dst].wrapping_add(off as i64 as u64);
        let cut = |v: u64| if n == 4 { v & 0xffff_ffff } else { v };
        let (old, operand) = (self.read(address, n), cut(self.r[src]));
        let new = match imm & 0xf0 {
            0x00 => cut(old.wrapping_add(operand)),
            0x40 => old | operand,
            0x50 => old & operand,
            0xa0 => old ^ operand,
            0xe0 => operand,
            0xf0 if old == cut(self.r[0]) => operand,
            0xf0 => old,
            code => panic!("atomic {code:#x}"),
        };
        self.write(address, n, new);
        match imm {
            0xf1 => self.r[0] = old,
            fetches if fetches & 1 != 0 => self.r[src] = old,
            _ => {}
        }
    }
}

fn size(opcode: u8) -> usize {
    match opcode & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

/// Instructions as they stand in an object of this byte order.
fn in_object(little: &[u8], order: ByteOrder) -> Vec<u8> {
    let mut bytes = little.to_vec();
    if order == ByteOrder::Big {
        for slot in bytes.chunks_exact_mut(8) {
            slot[1] = slot[1].rotate_left(4);
            slot.swap(2, 3);
            slot[4..8].reverse();
        }
    }
    bytes
}

fn number(rng: &mut Rng) -> u64 {
    match rng.u32(..4) {
        0 => rng.u64(..8),
        1 => (rng.u64(..8)).wrapping_neg(),
        2 => 1 << rng.u32(..64),
        _ => rng.u64(..),
    }
}

/// A random program: registers get values, then anything but calls happens, and jumps lead forwards.
fn program(rng: &mut Rng) -> Vec<Insn> {
    let reg = |n: u8| Reg::new(n).expect("a register");
    // r9 points to memory.
    let any = |rng: &mut Rng| reg(rng.u8(..9));
    let mut insns: Vec<Insn> = (0..9)
        .map(|n| Insn::LoadImm64 { dst: reg(n), kind: Imm64Kind::Const, imm: number(rng) })
        .chain([Insn::LoadImm64 { dst: Reg::R9, kind: Imm64Kind::Const, imm: MEMORY }])
        .collect();
    for _ in 0..4 + rng.usize(..20) {
        let width = if rng.bool() { Width::W32 } else { Width::W64 };
        let src = if rng.bool() { Src::Reg(any(rng)) } else { Src::Imm(number(rng) as i32) };
        let pick = Size::ALL[rng.usize(..4)];
        let place = |rng: &mut Rng, size: Size, aligned: bool| {
            let n = size.bytes() as i16;
            let at = rng.i16(0..=MEMORY_BYTES as i16 - n);
            let at = if aligned { at / n * n } else { at };
            if rng.bool() { (Reg::R10, at - STACK_BYTES as i16) } else { (Reg::R9, at) }
        };
        insns.push(match rng.u32(..12) {
            0 | 1 => Insn::Alu { op: AluOp::ALL[rng.usize(..AluOp::ALL.len())], width, dst: any(rng), src },
            2 => Insn::Mov { width, dst: any(rng), src },
            3 => {
                let from = if rng.bool() { Size::B } else { Size::H };
                Insn::MovSx { width, from, dst: any(rng), src: any(rng) }
            }
            4 => Insn::Neg { width, dst: any(rng) },
            5 => {
                let kind = [Endian::Le, Endian::Be, Endian::Swap][rng.usize(..3)];
                Insn::Endian { kind, bits: [16, 32, 64][rng.usize(..3)], dst: any(rng) }
            }
            6 | 7 => {
                let (base, off) = place(rng, pick, false);
                Insn::Store { size: pick, base, off, src }
            }
            8 | 9 => {
                let (base, off) = place(rng, pick, false);
                Insn::Load { size: pick, sext: pick != Size::DW && rng.bool(), dst: any(rng), base, off }
            }
            10 => {
                let size = if rng.bool() { Size::W } else { Size::DW };
                let (base, off) = place(rng, size, true);
                let fetch = rng.bool();
                let op = match rng.u32(..6) {
                    0 => AtomicOp::Add { fetch },
                    1 => AtomicOp::Or { fetch },
                    2 => AtomicOp::And { fetch },
                    3 => AtomicOp::Xor { fetch },
                    4 => AtomicOp::Xchg,
                    _ => AtomicOp::CmpXchg,
                };
                Insn::Atomic { op, size, base, off, src: any(rng) }
            }
            // Over the next instruction, whatever that is.
            _ => Insn::Jcc { cond: Cond::ALL[rng.usize(..Cond::ALL.len())], width, dst: any(rng), src, off: 1 },
        });
        // What is jumped over has one slot: all but `ld_imm64`, which come first.
    }
    insns.push(Insn::Mov { width: Width::W64, dst: Reg::R1, src: Src::Reg(Reg::R1) });
    insns.push(Insn::Exit);
    insns
}

fn initial(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9) >> 8) as u8
}

fn function(code: &[u8], order: ByteOrder) -> Function {
    let decoded = decode_all(code).expect("whole slots");
    let f = build_from_insns("random", ProgKind::Subprogram, &decoded, Default::default()).expect("a graph");
    Function { byte_order: order, ..f }
}

#[test]
fn random_programs_do_what_the_standard_says_in_both_orders() {
    let mut rng = Rng::with_seed(17);
    let mut apart = 0;
    for n in 0..PROGRAMS {
        let insns = program(&mut rng);
        let code = encode_all(&insns).expect("instructions that there are");
        let results = ORDERS.map(|order| {
            let mut interp = Interp::new(Oracle::new(initial).in_order(order));
            let top = interp.cpu.register(Reg::R10).expect("a frame");
            let ran = interp.run(&function(&code, order), 1 << 16);
            let frame = interp.cpu.frame();
            let stack = frame[frame.len() - STACK_BYTES..].to_vec();
            let memory: Vec<u8> = (0..MEMORY_BYTES as u64).map(|i| interp.host.memory.byte(MEMORY + i)).collect();
            let mut expected = Evaluator {
                big: order == ByteOrder::Big,
                r: [0; 11],
                stack: [0; STACK_BYTES],
                memory: std::array::from_fn(|i| initial(MEMORY + i as u64)),
                top,
            };
            expected.r[10] = top;
            let r0 = expected.run(&in_object(&code, order));
            let listing: Vec<String> = insns.iter().map(ToString::to_string).collect();
            let listing = listing.join("\n");
            assert_eq!(ran.expect("it ends").r0, r0, "program {n}, {order:?}:\n{listing}");
            assert_eq!(stack, expected.stack, "program {n}, {order:?}, stack:\n{listing}");
            assert_eq!(memory, expected.memory, "program {n}, {order:?}, memory:\n{listing}");
            (r0, memory)
        });
        apart += usize::from(results[0] != results[1]);
    }
    // Most of them tell the orders apart.
    assert!(apart > PROGRAMS / 2, "only {apart} of {PROGRAMS} depend on the byte order");
}

fn run(order: ByteOrder, kind: ProgKind, packet: &[u8], text: &str) -> u64 {
    let insns = parse_listing(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let f = function(&encode_all(&insns).expect("instructions"), order);
    let f = Function { kind, ..f };
    KernelHost::of_order(order, kind, packet).start().run(&f, 1_000).expect("it ends").r0
}

#[test]
fn what_comes_from_the_network_is_the_same_number_in_both_orders() {
    let packet: Vec<u8> = (0..64).collect();
    for order in ORDERS {
        // Legacy loads give network numbers; direct ones need `be`, which does nothing on big-endian machines.
        let legacy = "r6 = r1\nr0 = *(u32 *)skb[12]\nexit";
        assert_eq!(run(order, ProgKind::Skb, &packet, legacy), 0x0c0d_0e0f, "{order:?}");
        let direct = "r1 = *(u32 *)(r1 + 0)\nr0 = *(u32 *)(r1 + 12)\nr0 = be32 r0\nexit";
        assert_eq!(run(order, ProgKind::Xdp, &packet, direct), 0x0c0d_0e0f, "{order:?}");
    }
}

#[test]
fn fields_of_the_context_are_numbers_of_the_machine() {
    let mut packet = vec![0; 64];
    packet[12..14].copy_from_slice(&[8, 0]);
    for (order, protocol, low) in [(ByteOrder::Little, 8, 0), (ByteOrder::Big, 0x800, 3)] {
        assert_eq!(run(order, ProgKind::Skb, &packet, "r0 = *(u32 *)(r1 + 0)\nexit"), 64, "{order:?}: len");
        // `bpf_ctx_narrow_access_offset`: the lowest byte is at the other end.
        let narrow = format!("r0 = *(u8 *)(r1 + {low})\nexit");
        assert_eq!(run(order, ProgKind::Skb, &packet, &narrow), 64, "{order:?}: a byte of len");
        assert_eq!(run(order, ProgKind::Skb, &packet, "r0 = *(u32 *)(r1 + 16)\nexit"), protocol, "{order:?}");
        assert_eq!(run(order, ProgKind::Xdp, &packet, "r0 = *(u32 *)(r1 + 12)\nexit"), 1, "{order:?}: ifindex");
    }
}

#[test]
fn keys_of_arrays_are_numbers_of_the_machine() {
    const ARRAY: u32 = 2;
    for order in ORDERS {
        let mut host = KernelHost::of_order(order, ProgKind::Xdp, &[0; 64]);
        let spec = MapSpec { name: "m".into(), map_type: ARRAY, key_size: 4, value_size: 8, max_entries: 4 };
        let map = host.add_map(spec);
        let key = |n: u64| order.bytes(n, 4)[..4].to_vec();
        assert_eq!(host.map_update(map, &key(3), &[1; 8]), Ok(()), "{order:?}");
        assert!(host.map_update(map, &key(4), &[1; 8]).is_err(), "{order:?}");
    }
}

#[test]
fn a_function_does_not_run_in_a_world_of_the_other_order() {
    let f = function(&encode_all(&parse_listing("r0 = 0\nexit").expect("a program")).expect("code"), ByteOrder::Big);
    let ran = KernelHost::new(ProgKind::Xdp, &[]).start().run(&f, 10);
    assert!(ran.is_err_and(|fault| fault.to_string().contains("a big-endian function, in a little-endian world")));
}
