//! The interpreter against the kernel, opcode by opcode.
//!
//! Each program is the same instruction many times over, with different registers, on operands that come from the
//! packet: the verifier cannot fold anything, and one load serves hundreds of cases. The kernel runs it with
//! `BPF_PROG_TEST_RUN`, the interpreter runs the decoded bytes, and packet, return value and map must agree.
//!
//! Which opcodes there are is asked of the decoder, so that none can be missing silently.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bpf_isa::{AluOp, AtomicOp, Call, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width, decode, encode_all};
use bpf_kernel::testing::{ClassicProgram, permitted};
use bpf_kernel::{Feature, Map, ProgramType, RawOptions, RawProgram, supports};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};
use bpf_semantics::interp::{Interp, KernelHost, MapSpec};

/// Cases that every opcode needs.
const ENOUGH: usize = 200;
/// Longest packet of an XDP test run.
const ROOM: usize = 3500;
/// Bytes of the map's only value.
const VALUE: usize = 64;
const FUEL: u64 = 1 << 20;
/// The packet's start in every program.
const P: Reg = Reg::R9;
/// The map value in programs that have one.
const M: Reg = Reg::R8;
const XDP_PASS: i32 = 2;

const EDGES: [u64; 18] = [
    0,
    1,
    2,
    u64::MAX,
    u64::MAX - 1,
    31,
    32,
    33,
    63,
    64,
    65,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xdead_beef_cafe_babe,
];
const IMMS: [i32; 16] =
    [0, 1, -1, 2, -2, 7, 31, 32, 63, 64, 0x7fff, i32::MAX, i32::MIN, i32::MIN + 1, 0x1234_5678, -0x0edc_ba99];

// ---- which opcodes there are -------------------------------------------------------------------------------

/// Where a memory instruction is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Area {
    Stack,
    Packet,
    Map,
}

/// What the opcode of an instruction is called, or why the kernel cannot be asked about it.
fn opcode(insn: &Insn) -> Result<String, &'static str> {
    let kind = |s: &Src| if s.reg().is_some() { "x" } else { "k" };
    let fetch = |name: &str, fetch: bool| format!("{name}{}", if fetch { "_fetch" } else { "" });
    Ok(match insn {
        Insn::Alu { op, width, src, .. } => format!("{op:?}{} {}", width.bits(), kind(src)),
        Insn::Mov { width, src, .. } => format!("Mov{} {}", width.bits(), kind(src)),
        Insn::MovSx { width, from, .. } => format!("MovSx{} {from:?}", width.bits()),
        Insn::Neg { width, .. } => format!("Neg{}", width.bits()),
        Insn::Endian { kind, bits, .. } => format!("{kind:?}{bits}"),
        Insn::LoadImm64 { kind: Imm64Kind::Const, .. } => "ld_imm64".into(),
        Insn::Load { size, sext, .. } => format!("ldx{} {size:?}", if *sext { "s" } else { "" }),
        Insn::Store { size, src, .. } => format!("st{} {size:?}", if src.reg().is_some() { "x" } else { "" }),
        Insn::Atomic { op, size, .. } => {
            let name = match *op {
                AtomicOp::Add { fetch: f } => fetch("add", f),
                AtomicOp::Or { fetch: f } => fetch("or", f),
                AtomicOp::And { fetch: f } => fetch("and", f),
                AtomicOp::Xor { fetch: f } => fetch("xor", f),
                AtomicOp::Xchg => "xchg".into(),
                AtomicOp::CmpXchg => "cmpxchg".into(),
            };
            format!("atomic {name} {size:?}")
        }
        Insn::LoadAcquire { size, .. } => format!("load_acquire {size:?}"),
        Insn::StoreRelease { size, .. } => format!("store_release {size:?}"),
        Insn::LdAbs { size, .. } => format!("ld_abs {size:?}"),
        Insn::LdInd { size, .. } => format!("ld_ind {size:?}"),
        Insn::Ja { long, .. } => (if *long { "gotol" } else { "goto" }).into(),
        Insn::Jcc { cond, width, src, .. } => format!("J{cond:?}{} {}", width.bits(), kind(src)),
        Insn::MayGoto { .. } => "may_goto".into(),
        Insn::Call(Call::Local(_)) => "call local".into(),
        Insn::Exit => "exit".into(),
        Insn::LoadImm64 { .. } => return Err("addresses are not comparable"),
        Insn::AddrSpaceCast { .. } => return Err("needs an arena"),
        Insn::Call(_) => return Err("helpers and kfuncs are not instructions"),
        Insn::CallX { .. } => return Err("refused by the verifier"),
        Insn::Opaque(_) => return Err("not an instruction"),
    })
}

/// The areas in which the kernel allows a memory instruction.
fn areas(insn: &Insn) -> &'static [Area] {
    match insn {
        Insn::Load { .. } | Insn::Store { .. } => &[Area::Stack, Area::Packet, Area::Map],
        Insn::Atomic { .. } | Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => &[Area::Stack, Area::Map],
        _ => &[],
    }
}

fn key(insn: &Insn, area: Option<Area>) -> String {
    let name = opcode(insn).unwrap_or_else(|why| panic!("{insn}: {why}"));
    area.map_or(name.clone(), |a| format!("{name} {a:?}"))
}

/// Every opcode the decoder knows and the kernel can be asked about, by trying all codes with all selectors.
fn decodable() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let imms = (0..=0xff).chain([0x100, 0x110]);
    for imm in imms {
        for (code, src, off) in
            (0..=255u8).flat_map(|c| (0..3).flat_map(move |s| [0u16, 1, 8, 16, 32].map(|o| (c, s, o))))
        {
            let mut bytes = vec![code, src << 4, off as u8, 0];
            bytes.extend_from_slice(&u32::to_le_bytes(imm));
            bytes.extend_from_slice(&[0; 8]);
            let Ok((insn, _)) = decode(&bytes) else { continue };
            if let Ok(name) = opcode(&insn) {
                match areas(&insn) {
                    [] => _ = all.insert(name),
                    areas => all.extend(areas.iter().map(|a| format!("{name} {a:?}"))),
                }
            }
        }
    }
    all
}

/// The same list written down, so that a decoder that forgets something is noticed too.
fn written_down() -> BTreeSet<String> {
    let mut all: BTreeSet<String> =
        ["ld_imm64", "goto", "gotol", "may_goto", "call local", "exit"].map(String::from).into();
    let mut add = |name: &str, areas: &[Area]| match areas {
        [] => _ = all.insert(name.to_string()),
        areas => all.extend(areas.iter().map(|a| format!("{name} {a:?}"))),
    };
    use Area::{Map, Packet, Stack};
    for w in [32, 64] {
        for s in ["x", "k"] {
            for op in "Add Sub Mul Div SDiv Mod SMod Or And Xor Lsh Rsh Arsh Mov".split(' ') {
                add(&format!("{op}{w} {s}"), &[]);
            }
            for cond in "Eq Ne Gt Ge Lt Le Sgt Sge Slt Sle Set".split(' ') {
                add(&format!("J{cond}{w} {s}"), &[]);
            }
        }
        add(&format!("Neg{w}"), &[]);
    }
    for m in ["MovSx32 B", "MovSx32 H", "MovSx64 B", "MovSx64 H", "MovSx64 W"] {
        add(m, &[]);
    }
    for e in ["Le", "Be", "Swap"] {
        for bits in [16, 32, 64] {
            add(&format!("{e}{bits}"), &[]);
        }
    }
    for size in ["B", "H", "W", "DW"] {
        for m in ["ldx", "st", "stx"] {
            add(&format!("{m} {size}"), &[Stack, Packet, Map]);
        }
        for m in ["load_acquire", "store_release"] {
            add(&format!("{m} {size}"), &[Stack, Map]);
        }
        if size != "DW" {
            add(&format!("ldxs {size}"), &[Stack, Packet, Map]);
            add(&format!("ld_abs {size}"), &[]);
            add(&format!("ld_ind {size}"), &[]);
        }
        if ["W", "DW"].contains(&size) {
            for op in "add or and xor add_fetch or_fetch and_fetch xor_fetch xchg cmpxchg".split(' ') {
                add(&format!("atomic {op} {size}"), &[Stack, Map]);
            }
        }
    }
    all
}

// ---- programs ----------------------------------------------------------------------------------------------

fn reg(n: usize) -> Reg {
    Reg::new(n as u8).unwrap()
}

fn mov(dst: Reg, src: Src) -> Insn {
    Insn::Mov { width: Width::W64, dst, src }
}

fn alu(op: AluOp, dst: Reg, src: Src) -> Insn {
    Insn::Alu { op, width: Width::W64, dst, src }
}

fn ldx(size: Size, dst: Reg, base: Reg, off: usize) -> Insn {
    Insn::Load { size, sext: false, dst, base, off: off as i16 }
}

fn get(dst: Reg, off: usize) -> Insn {
    ldx(Size::DW, dst, P, off)
}

fn stx(base: Reg, off: i16, src: Reg) -> Insn {
    Insn::Store { size: Size::DW, base, off, src: Src::Reg(src) }
}

fn put(off: usize, src: Reg) -> Insn {
    stx(P, off as i16, src)
}

fn jcc(cond: Cond, dst: Reg, src: Src, off: i16) -> Insn {
    Insn::Jcc { cond, width: Width::W64, dst, src, off }
}

/// A seeded generator, biased towards the values where things go wrong.
struct Rng(fastrand::Rng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }
    fn operand(&mut self) -> u64 {
        let v = self.next();
        match self.next() % 8 {
            0 => EDGES[v as usize % EDGES.len()],
            1 => v % 128,
            2 => v as u32 as u64,
            3 => v as i32 as i64 as u64,
            4 => v >> (v % 64),
            5 => 1 << (v % 64),
            _ => v,
        }
    }
}

/// Everything that may differ between two executions.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    retval: u32,
    packet: Vec<u8>,
    value: Option<Vec<u8>>,
}

struct Harness {
    rng: Rng,
    map: Map,
    cases: BTreeMap<String, usize>,
    programs: usize,
    wrong: Vec<String>,
}

/// A program to be tried on packets.
struct Program<'a> {
    kind: ProgramType,
    with_map: bool,
    body: Vec<Insn>,
    /// A function behind the program, which its local calls mean.
    callee: &'a [Insn],
}

impl Program<'_> {
    fn xdp(body: Vec<Insn>) -> Program<'static> {
        Program { kind: ProgramType::XDP, with_map: false, body, callee: &[] }
    }

    fn in_area(area: Area, body: Vec<Insn>) -> Program<'static> {
        Program { with_map: area == Area::Map, ..Program::xdp(body) }
    }

    /// P is the packet, of at least `len` bytes; M the map value; r6 the context.
    fn assemble(&self, map: &Map, len: usize) -> Vec<Insn> {
        let mut v = vec![mov(Reg::R6, Src::Reg(Reg::R1))];
        if self.with_map {
            v.extend([
                Insn::Store { size: Size::W, base: Reg::R10, off: -4, src: Src::Imm(0) },
                mov(Reg::R2, Src::Reg(Reg::R10)),
                alu(AluOp::Add, Reg::R2, Src::Imm(-4)),
                Insn::LoadImm64 { dst: Reg::R1, kind: Imm64Kind::MapFd, imm: map.fd() as u64 },
                Insn::Call(Call::Helper(1)),
                jcc(Cond::Ne, Reg::R0, Src::Imm(0), 1),
                Insn::Exit,
                mov(M, Src::Reg(Reg::R0)),
            ]);
        }
        let (data, end) = if self.kind == ProgramType::XDP { (0, 4) } else { (76, 80) };
        v.extend([
            ldx(Size::W, Reg::R2, Reg::R6, end),
            ldx(Size::W, P, Reg::R6, data),
            mov(Reg::R3, Src::Reg(P)),
            alu(AluOp::Add, Reg::R3, Src::Imm(len as i32)),
            jcc(Cond::Le, Reg::R3, Src::Reg(Reg::R2), 2),
            mov(Reg::R0, Src::Imm(0)),
            Insn::Exit,
        ]);
        v.extend(&self.body);
        if !matches!(v.last(), Some(Insn::Exit)) {
            v.extend([mov(Reg::R0, Src::Imm(XDP_PASS)), Insn::Exit]);
        }
        // A local call's immediate counts from the next slot to the callee, which comes last.
        let slots: usize = v.iter().map(Insn::slots).sum();
        let mut at = 0;
        for insn in &mut v {
            at += insn.slots();
            if let Insn::Call(Call::Local(to)) = insn {
                *to = (slots - at) as i32;
            }
        }
        v
    }
}

fn function(name: &str, kind: ProgKind, bytes: &[u8]) -> Function {
    let decoded = bpf_isa::decode_all(bytes).unwrap();
    let links: HashMap<usize, Link> = decoded
        .iter()
        .filter(|(_, i)| matches!(i, Insn::Call(Call::Local(_))))
        .map(|(slot, _)| (*slot, Link { slot: *slot, symbol: Symbol::Func { name: Arc::from("callee") } }))
        .collect();
    build_from_insns(name, kind, &decoded, links).unwrap_or_else(|e| panic!("{e}"))
}

impl Harness {
    fn new() -> Harness {
        Harness {
            rng: Rng::new(1),
            map: Map::create(2, 4, VALUE as u32, 1).expect("an array"),
            cases: BTreeMap::new(),
            programs: 0,
            wrong: vec![],
        }
    }

    fn value(&self) -> Vec<u8> {
        (0..VALUE as u8).map(|b| b.wrapping_mul(37)).collect()
    }

    /// A packet of `records` records, the words of each made by `record` from its number.
    fn packet(&mut self, records: usize, mut record: impl FnMut(&mut Rng, usize) -> Vec<u64>) -> Vec<u8> {
        (0..records).flat_map(|k| record(&mut self.rng, k)).flat_map(u64::to_le_bytes).collect()
    }

    /// Packets of records of `words` words with every pair of edge values and then random ones in the first two.
    fn packets(&mut self, words: usize, count: usize) -> (usize, Vec<Vec<u8>>) {
        let n = ROOM / (8 * words);
        let packets = (0..count)
            .map(|p| {
                self.packet(n, |rng, k| {
                    let pair = p * n + k;
                    let mut v: Vec<u64> = (0..words).map(|_| rng.operand()).collect();
                    if pair < EDGES.len() * EDGES.len() {
                        v[0] = EDGES[pair % EDGES.len()];
                        v[1] = EDGES[pair / EDGES.len()];
                    }
                    v
                })
            })
            .collect();
        (n, packets)
    }

    /// Runs the program on each packet in the kernel and here. `cases` of `name` are in each.
    fn check(&mut self, name: &str, cases: usize, program: &Program, packets: &[Vec<u8>]) {
        let len = packets.iter().map(Vec::len).min().unwrap();
        let main = encode_all(&program.assemble(&self.map, len)).unwrap();
        let callee = encode_all(program.callee).unwrap();
        self.programs += 1;
        let loaded = match RawProgram::load(program.kind, &[&*main, &*callee].concat(), &RawOptions::default()) {
            Ok(p) => p,
            Err(r) => return self.wrong.push(format!("{name}: refused by the kernel: {r}")),
        };
        let kind = if program.kind == ProgramType::XDP { ProgKind::Xdp } else { ProgKind::Skb };
        let f = function("main", kind, &main);
        let callee = (!callee.is_empty()).then(|| function("callee", ProgKind::Subprogram, &callee));
        for packet in packets {
            let theirs = self.in_kernel(&loaded, program, packet);
            let ours = self.here(&f, callee.as_ref(), program, packet);
            // Two runs that both refuse the packet would agree on nothing.
            let whole = matches!(program.body.last(), Some(Insn::Exit)) || theirs.retval == XDP_PASS as u32;
            assert!(whole && theirs.packet.len() == packet.len(), "{name}: the kernel did not run the whole program");
            if theirs != ours {
                let differ = theirs.packet.chunks(8).zip(ours.packet.chunks(8)).enumerate();
                let differ: Vec<_> = differ.filter(|(_, (a, b))| a != b).take(4).collect();
                let ret = (theirs.retval, ours.retval);
                self.wrong.push(format!("{name}: words (kernel, here) {differ:x?}, retval {ret:?}"));
            }
        }
        *self.cases.entry(name.to_string()).or_default() += cases * packets.len();
    }

    fn in_kernel(&self, loaded: &RawProgram, program: &Program, packet: &[u8]) -> Seen {
        if program.with_map {
            self.map.update(&[0; 4], &self.value()).unwrap();
        }
        let run = loaded.test_run(packet, None, 1).unwrap();
        let value = program.with_map.then(|| self.map.lookup(&[0; 4]).unwrap().unwrap());
        Seen { retval: run.retval, packet: run.data_out, value }
    }

    fn here(&self, f: &Function, callee: Option<&Function>, program: &Program, packet: &[u8]) -> Seen {
        let mut host = KernelHost::new(f.kind, packet);
        let (key_size, value_size) = (4, VALUE as u32);
        let map = host.add_map(MapSpec { name: "map".into(), map_type: 2, key_size, value_size, max_entries: 1 });
        host.map_update(map, &[0; 4], &self.value()).unwrap();
        host.bind_fd(self.map.fd() as u32, map);
        let mut interp: Interp<KernelHost> = host.start();
        if let Some(callee) = callee {
            interp.add_function(callee.clone());
        }
        let outcome = interp.run(f, FUEL).unwrap_or_else(|e| panic!("{e} in\n{f}"));
        let value = program.with_map.then(|| interp.host.map_lookup(map, &[0; 4]).unwrap());
        Seen { retval: outcome.r0 as u32, packet: interp.host.packet().to_vec(), value }
    }

    /// A computation in registers: the words of a record are dst, src, result.
    fn compute(&mut self, name: &str, mut insn: impl FnMut(&mut Rng, usize, Reg, Reg) -> Vec<Insn>) {
        let (n, packets) = self.packets(3, 5);
        let mut body = vec![];
        for k in 0..n {
            let at = 24 * k;
            let (dst, src) = (reg(k % 9), reg(k / 9 % 9));
            body.extend([get(dst, at), get(src, at + 8)]);
            body.extend(insn(&mut self.rng, k, dst, src));
            body.push(put(at + 16, dst));
        }
        self.check(name, n, &Program::xdp(body), &packets);
    }

    fn compute_one(&mut self, mut insn: impl FnMut(&mut Rng, usize, Reg, Reg) -> Insn) {
        let name = key(&insn(&mut Rng::new(0), 0, Reg::R0, Reg::R1), None);
        self.compute(&name, |rng, k, dst, src| vec![insn(rng, k, dst, src)]);
    }

    fn jump(&mut self, mut insn: impl FnMut(&mut Rng, usize, Reg, Reg) -> Insn) {
        let name = key(&insn(&mut Rng::new(0), 0, Reg::R0, Reg::R1), None);
        let (n, packets) = self.packets(3, 5);
        let mut body = vec![];
        for k in 0..n {
            let at = 24 * k;
            let (dst, src) = (reg(k % 9), reg(k / 9 % 9));
            let out = (0..9).map(reg).find(|r| *r != dst && *r != src).unwrap();
            body.extend([get(dst, at), get(src, at + 8), mov(out, Src::Imm(1))]);
            body.push(insn(&mut self.rng, k, dst, src));
            body.extend([mov(out, Src::Imm(0)), put(at + 16, out)]);
        }
        self.check(&name, n, &Program::xdp(body), &packets);
    }

    /// A load: a record is 16 bytes of memory and the result.
    fn load(&mut self, area: Area, size: Size, insn: impl Fn(Reg, Reg, i16) -> Insn) {
        let name = key(&insn(Reg::R0, Reg::R1, 0), Some(area));
        let (n, packets) = self.packets(3, 3);
        let bytes = size.bytes() as usize;
        let mut body = vec![];
        for k in 0..n {
            let at = 24 * k;
            let dst = reg(k % 8);
            let (base, off) = match area {
                Area::Packet => (P, at + k % (17 - bytes)),
                Area::Stack | Area::Map => {
                    let (base, slot) = if area == Area::Map { (M, 16 * (k % 4) as i16) } else { (Reg::R10, -32) };
                    let t = reg((k + 1) % 8);
                    body.extend([get(t, at), stx(base, slot, t), get(t, at + 8), stx(base, slot + 8, t)]);
                    let off = slot + (bytes * (k % (16 / bytes))) as i16;
                    (base, off as usize)
                }
            };
            let off = off as i16;
            // Also with the destination as its own base, and with the offset in the base.
            match k % 3 {
                0 => body.push(insn(dst, base, off)),
                1 => body.extend([mov(dst, Src::Reg(base)), insn(dst, dst, off)]),
                _ => {
                    let t = reg((k + 3) % 8);
                    body.extend([mov(t, Src::Reg(base)), alu(AluOp::Add, t, Src::Imm(off.into())), insn(dst, t, 0)]);
                }
            }
            body.push(put(at + 16, dst));
        }
        self.check(&name, n, &Program::in_area(area, body), &packets);
    }

    /// A store: a record is the value, and 16 bytes of memory before and after.
    fn store(&mut self, area: Area, size: Size, mut insn: impl FnMut(&mut Rng, usize, Reg, Reg, i16) -> Insn) {
        let name = key(&insn(&mut Rng::new(0), 0, Reg::R1, Reg::R0, 0), Some(area));
        let (n, packets) = self.packets(3, 3);
        let bytes = size.bytes() as usize;
        let mut body = vec![];
        for k in 0..n {
            let at = 24 * k;
            let (src, t) = (reg(k % 8), reg((k + 1) % 8));
            if area == Area::Packet {
                body.push(get(src, at));
                body.push(insn(&mut self.rng, k, P, src, (at + 8 + k % (17 - bytes)) as i16));
                continue;
            }
            let (base, slot) = if area == Area::Map { (M, 8 * (k % 8) as i16) } else { (Reg::R10, -16) };
            let off = slot + (bytes * (k % (8 / bytes))) as i16;
            body.extend([get(t, at + 8), stx(base, slot, t), get(src, at)]);
            body.push(insn(&mut self.rng, k, base, src, off));
            body.extend([ldx(Size::DW, t, base, slot as usize), put(at + 16, t)]);
        }
        self.check(&name, n, &Program::in_area(area, body), &packets);
    }

    /// A record: memory, operand, r0, and memory, operand, r0 afterwards.
    fn atomic(&mut self, area: Area, size: Size, op: AtomicOp) {
        let insn = |base, src, off| Insn::Atomic { op, size, base, off, src };
        let name = key(&insn(Reg::R1, Reg::R2, 0), Some(area));
        let n = ROOM / 48;
        let high = |k: usize| if size == Size::W { k % 2 } else { 0 };
        let mut packets = vec![];
        for p in 0..5 {
            packets.push(self.packet(n, |rng, k| {
                let pair = p * n + k;
                let (mut memory, mut operand) = (rng.operand(), rng.operand());
                if pair < EDGES.len() * EDGES.len() {
                    (memory, operand) = (EDGES[pair % EDGES.len()], EDGES[pair / EDGES.len()]);
                }
                let r0 = match (rng.next() % 2, size) {
                    (0, _) => rng.operand(),
                    (_, Size::W) => memory >> (32 * high(k)) << 32 >> 32 | rng.next() << 32,
                    _ => memory,
                };
                vec![memory, operand, r0, 0, 0, 0]
            }));
        }
        let mut body = vec![];
        for k in 0..n {
            let at = 48 * k;
            let src = reg(k % 8);
            let (base, slot) = if area == Area::Map { (M, 8 * (k % 8) as i16) } else { (Reg::R10, -16) };
            body.extend([get(src, at), stx(base, slot, src), get(Reg::R0, at + 16), get(src, at + 8)]);
            body.push(insn(base, src, slot + 4 * high(k) as i16));
            body.extend([put(at + 40, Reg::R0), put(at + 32, src)]);
            body.extend([ldx(Size::DW, src, base, slot as usize), put(at + 24, src)]);
        }
        self.check(&name, n, &Program::in_area(area, body), &packets);
    }

    fn legacy(&mut self, size: Size) {
        let bytes = size.bytes() as usize;
        let n = 100;
        let len = 24 * n;
        let ethernet = |p: &mut Vec<u8>| p[12..14].copy_from_slice(&[8, 0]);
        let classifier = |body| Program { kind: ProgramType::SCHED_CLS, ..Program::xdp(body) };
        let abs = |imm| Insn::LdAbs { size, imm };
        let ind = |src, imm| Insn::LdInd { size, src, imm };
        let (abs_name, ind_name) = (key(&abs(0), None), key(&ind(Reg::R7, 0), None));
        let imms = [0, 1, -1, 17, -1000, 5000, i32::MIN, i32::MAX];

        // In bounds: where the index plus the immediate is known to be inside.
        let mut packets = vec![];
        for _ in 0..3 {
            let mut p = self.packet(n, |rng, k| {
                let place = (rng.next() % (len - bytes) as u64) as i32;
                let index = u64::from(place.wrapping_sub(imms[k % imms.len()]) as u32);
                vec![rng.next(), index | rng.next() << 32, 0]
            });
            ethernet(&mut p);
            packets.push(p);
        }
        let mut body = vec![];
        for k in 0..n {
            let place = self.rng.next() % (len - bytes) as u64;
            body.extend([abs(place as i32), put(24 * k + 16, Reg::R0)]);
        }
        self.check(&abs_name, n, &classifier(body), &packets);
        let mut body = vec![];
        for k in 0..n {
            let r = reg([0, 1, 2, 3, 4, 5, 7, 8][k % 8]);
            body.extend([get(r, 24 * k + 8), ind(r, imms[k % imms.len()]), put(24 * k + 16, Reg::R0)]);
        }
        self.check(&ind_name, n, &classifier(body), &packets);

        // Around every edge: outside, the program ends with 0.
        let finish = [Insn::Alu { op: AluOp::Xor, width: Width::W64, dst: Reg::R0, src: Src::Imm(0x5a5a_5a5a) }];
        let length = 60i32;
        let mut places = vec![i32::MAX, i32::MIN, i32::MIN + 1];
        for start in
            [0, length, -0x10_0000, -0x10_0000 + length, -0x10_0000 + length - 14, -0x20_0000, -0x20_0000 + length]
        {
            places.extend((-9..9).map(|d| start + d));
        }
        let with_index = |rng: &mut Rng, index: i32| {
            let mut p: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
            p[16..24].copy_from_slice(&(u64::from(index as u32) | rng.next() << 32).to_le_bytes());
            ethernet(&mut p);
            p
        };
        let packets: Vec<_> = places.iter().map(|i| with_index(&mut self.rng, *i)).collect();
        let done = [finish[0], Insn::Exit];
        let body = [&[get(Reg::R7, 16), ind(Reg::R7, 0)][..], &done].concat();
        self.check(&ind_name, 1, &classifier(body), &packets);
        for place in places {
            self.check(&abs_name, 1, &classifier([&[abs(place)][..], &done].concat()), &packets[..1]);
        }
    }
}

fn all_opcodes(h: &mut Harness) {
    for width in [Width::W32, Width::W64] {
        for op in AluOp::ALL {
            h.compute_one(|_, _, dst, src| Insn::Alu { op, width, dst, src: Src::Reg(src) });
            h.compute_one(|rng, k, dst, _| {
                let imm = if k % 4 == 3 { rng.next() as i32 } else { IMMS[k % IMMS.len()] };
                let imm = match op {
                    AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => imm & (width.bits() as i32 - 1),
                    AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod if imm == 0 => 3,
                    _ => imm,
                };
                Insn::Alu { op, width, dst, src: Src::Imm(imm) }
            });
        }
        h.compute_one(|_, _, dst, src| Insn::Mov { width, dst, src: Src::Reg(src) });
        h.compute_one(|rng, k, dst, _| {
            let imm = IMMS.get(k).copied().unwrap_or(rng.next() as i32);
            Insn::Mov { width, dst, src: Src::Imm(imm) }
        });
        h.compute_one(|_, _, dst, _| Insn::Neg { width, dst });
        for from in [Size::B, Size::H, Size::W] {
            if from.bits() < width.bits() {
                h.compute_one(|_, _, dst, src| Insn::MovSx { width, from, dst, src });
            }
        }
        for cond in Cond::ALL {
            h.jump(|_, _, dst, src| Insn::Jcc { cond, width, dst, src: Src::Reg(src), off: 1 });
            h.jump(|rng, k, dst, _| {
                let imm = if k % 4 == 3 { rng.next() as i32 } else { IMMS[k % IMMS.len()] };
                Insn::Jcc { cond, width, dst, src: Src::Imm(imm), off: 1 }
            });
        }
    }
    for kind in [Endian::Le, Endian::Be, Endian::Swap] {
        for bits in [16, 32, 64] {
            h.compute_one(|_, _, dst, _| Insn::Endian { kind, bits, dst });
        }
    }
    h.compute_one(|rng, k, dst, _| {
        let imm = EDGES.get(k).copied().unwrap_or(rng.next());
        Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm }
    });
    h.jump(|_, _, _, _| Insn::MayGoto { off: 1 });
    for long in [false, true] {
        // Forward, forward, and backward in between.
        let go = |off| Insn::Ja { off, long };
        h.compute(&key(&go(0), None), |_, _, dst, src| {
            let (add, xor) = (alu(AluOp::Add, dst, Src::Reg(src)), alu(AluOp::Xor, dst, Src::Imm(0x1234)));
            vec![go(2), xor, go(2), add, go(-4)]
        });
    }
    call_and_exit(h);

    for size in Size::ALL {
        for area in [Area::Stack, Area::Packet, Area::Map] {
            for sext in [false, true] {
                if !(sext && size == Size::DW) {
                    h.load(area, size, |dst, base, off| Insn::Load { size, sext, dst, base, off });
                }
            }
            h.store(area, size, |_, _, base, src, off| Insn::Store { size, base, off, src: Src::Reg(src) });
            h.store(area, size, |rng, k, base, _, off| {
                let imm = IMMS.get(k).copied().unwrap_or(rng.next() as i32);
                Insn::Store { size, base, off, src: Src::Imm(imm) }
            });
        }
        for area in [Area::Stack, Area::Map] {
            if supports(Feature::LoadAcquire).unwrap() {
                h.load(area, size, |dst, base, off| Insn::LoadAcquire { size, dst, base, off });
                h.store(area, size, |_, _, base, src, off| Insn::StoreRelease { size, base, off, src });
            }
            if matches!(size, Size::W | Size::DW) {
                for fetch in [false, true] {
                    for op in [
                        AtomicOp::Add { fetch },
                        AtomicOp::Or { fetch },
                        AtomicOp::And { fetch },
                        AtomicOp::Xor { fetch },
                    ] {
                        h.atomic(area, size, op);
                    }
                }
                h.atomic(area, size, AtomicOp::Xchg);
                h.atomic(area, size, AtomicOp::CmpXchg);
            }
        }
        if size != Size::DW {
            h.legacy(size);
        }
    }
}

fn call_and_exit(h: &mut Harness) {
    let (n, packets) = h.packets(3, 3);
    let mut body = vec![];
    for k in 0..n {
        let at = 24 * k;
        body.extend([get(Reg::R1, at), get(Reg::R2, at + 8), mov(Reg::R7, Src::Reg(Reg::R2))]);
        body.extend([Insn::Call(Call::Local(0)), alu(AluOp::Sub, Reg::R0, Src::Reg(Reg::R7)), put(at + 16, Reg::R0)]);
    }
    // Uses a callee-saved register and its own stack.
    let callee = [
        stx(Reg::R10, -8, Reg::R1),
        mov(Reg::R7, Src::Reg(Reg::R2)),
        ldx(Size::DW, Reg::R0, Reg::R10, -8i64 as usize),
        alu(AluOp::Mul, Reg::R0, Src::Reg(Reg::R7)),
        alu(AluOp::Xor, Reg::R0, Src::Reg(Reg::R1)),
        Insn::Exit,
    ];
    let program = Program { callee: &callee, ..Program::xdp(body) };
    h.check("call local", n, &program, &packets);

    let packets: Vec<_> = (0..ENOUGH + 50).map(|_| h.packet(2, |rng, _| vec![rng.operand()])).collect();
    h.check("exit", 1, &Program::xdp(vec![get(Reg::R0, 8), Insn::Exit]), &packets);
}

#[test]
fn every_opcode_of_the_decoder_is_on_the_list() {
    let (decodable, written) = (decodable(), written_down());
    assert_eq!(decodable.difference(&written).collect::<Vec<_>>(), Vec::<&String>::new(), "not on the list");
    assert_eq!(written.difference(&decodable).collect::<Vec<_>>(), Vec::<&String>::new(), "not decoded");
}

#[test]
fn interpreter_agrees_with_kernel_on_every_opcode() {
    if !permitted() {
        return;
    }
    let mut h = Harness::new();
    all_opcodes(&mut h);
    let mut expected = written_down();
    if !supports(Feature::LoadAcquire).unwrap() {
        eprintln!("SKIPPED: this kernel has no load_acquire and store_release");
        expected.retain(|name| !name.starts_with("load_acquire") && !name.starts_with("store_release"));
    }
    for (name, cases) in &h.cases {
        println!("{cases:6} cases  {name}");
    }
    let total: usize = h.cases.values().sum();
    println!("{total} cases of {} opcodes in {} programs", h.cases.len(), h.programs);
    assert!(h.wrong.is_empty(), "{} disagreements:\n{}", h.wrong.len(), h.wrong.join("\n"));
    assert_eq!(h.cases.keys().cloned().collect::<BTreeSet<_>>(), expected);
    let few: Vec<_> = h.cases.iter().filter(|(_, n)| **n < ENOUGH).collect();
    assert!(few.is_empty(), "too few cases: {few:?}");
}

/// What the prover takes a legacy load for: a packet can be read up to its end, and a load finds what is there if it ends
/// there at the latest, wherever it begins and whichever bytes lie in the linear part; else the program ends with 0. The kernel
/// makes eBPF of classic programs (`bpf_convert_filter` in net/core/filter.c), so theirs are such loads.
#[test]
fn a_legacy_load_asks_for_where_it_ends_alone() {
    const LD: [(u16, usize); 3] = [(0x30, 1), (0x28, 2), (0x20, 4)];
    // So long that the kernel puts the end into pages of their own (`unix_dgram_sendmsg` in net/unix/af_unix.c): the linear part ends
    // where whole pages begin behind `SKB_MAX_ALLOC`, and no page holds more than 32768 bytes.
    const LENGTH: usize = 60_000;
    let mut rng = Rng::new(2);
    let packet: Vec<u8> = (0..LENGTH).map(|_| rng.next() as u8).collect();
    let linear = |above: usize| LENGTH - (LENGTH - above).next_multiple_of(4096);
    let starts = [4, linear(16384 - 320), linear(16384 - 320) + 32768, LENGTH, 20_000];
    let (mut there, mut beyond) = (0, 0);
    for at in starts.into_iter().flat_map(|start| start - 4..start + 5) {
        for ((code, bytes), index) in LD.into_iter().flat_map(|l| [(l, false), (l, true)]) {
            let found = packet.get(at..at + bytes).map(|b| b.iter().fold(0u32, |v, b| v << 8 | u32::from(*b)));
            for shift in (0..8 * bytes as u32).step_by(8) {
                // What a program accepts is cut off to that length: a byte of what it has found, and 1.
                let load = match index {
                    // ldx #…; ld [x + 2]
                    true => [(0x01, 0, 0, (at as u32).wrapping_sub(2)), (code ^ 0x60, 0, 0, 2)],
                    false => [(0x01, 0, 0, 0), (code, 0, 0, at as u32)],
                };
                // rsh; and; add; ret a
                let rest = [(0x74, 0, 0, shift), (0x54, 0, 0, 0xff), (0x04, 0, 0, 1), (0x16, 0, 0, 0)];
                let program = ClassicProgram::attach(&[&load[..], &rest].concat()).unwrap();
                let expected = found.map(|v| (v >> shift & 0xff) as usize + 1);
                assert_eq!(program.run(&packet).unwrap(), expected, "{bytes} bytes at {at}, by an index: {index}");
                match expected {
                    Some(_) => there += 1,
                    None => beyond += 1,
                }
            }
        }
    }
    println!("{there} loads found what is there, {beyond} ended the program");
    assert!(there > 400 && beyond > 90);
}
