//! Random states, straight-line code over them, changes of it, and a world that keeps books of what it does.

use std::collections::BTreeMap;

use bpf_facts::{BaseId, Kind, Live, Region};
use bpf_isa::Imm64Kind;
use bpf_program::{BlockId, ByteOrder, Link, Op};
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, Next};

pub use bpf_testgen::windows::*;

use super::Rng;

pub const PACKET: u64 = 0xffff_8880_1000_0100;
pub const VALUES: u64 = 0xffff_8881_2000_0000;
pub const FRAME_POINTER: u64 = 0xffff_c900_0001_0000;

// ---- a world that keeps books ---------------------------------------------------------------------

/// Flat memory that notes every access.
pub struct Books<'a> {
    pub initial: &'a dyn Fn(u64) -> u8,
    pub memory: BTreeMap<u64, u8>,
    pub reads: BTreeMap<u64, u32>,
    pub writes: BTreeMap<u64, Vec<u8>>,
    pub order: ByteOrder,
}

impl<'a> Books<'a> {
    pub fn new(initial: &'a dyn Fn(u64) -> u8, order: ByteOrder) -> Books<'a> {
        Books { initial, memory: BTreeMap::new(), reads: BTreeMap::new(), writes: BTreeMap::new(), order }
    }
    pub fn byte(&self, a: u64) -> u8 {
        self.memory.get(&a).copied().unwrap_or_else(|| (self.initial)(a))
    }
}

impl Host for Books<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.order
    }
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
pub struct Input {
    pub regs: [u64; 11],
    pub frame: Vec<u8>,
    pub seed: u64,
    /// Of the machine.
    pub order: ByteOrder,
}

pub struct Ran<'a> {
    pub cpu: Cpu,
    pub books: Books<'a>,
}

pub fn run<'a>(input: &Input, ops: &[Op], initial: &'a dyn Fn(u64) -> u8) -> Option<Ran<'a>> {
    let mut cpu = Cpu::with_frame_pointer(input.regs[10]);
    for (i, v) in input.regs.iter().enumerate() {
        cpu.set(r(i as u8), *v);
    }
    cpu.frame_mut().copy_from_slice(&input.frame);
    let mut m = Interp::with_cpu(cpu, Books::new(initial, input.order));
    m.run_ops(ops).ok()?;
    Some(Ran { cpu: m.cpu, books: m.host })
}

/// Whether every access was where an accepted program may go.
pub fn tame(b: &Books) -> bool {
    b.reads
        .keys()
        .chain(b.writes.keys())
        .all(|a| (PACKET - 0x100..PACKET + 0x1000).contains(a) || (VALUES - 0x100..VALUES + 0x1000).contains(a))
}

/// What the new side does that the old one does not, if anything.
pub fn difference(old: &Ran, new: &Ran, live: &Live) -> Option<String> {
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
pub fn misbehaviour(old: &Books, new: &Books) -> Option<String> {
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

/// Concrete entries of which the facts hold. Pointers of different regions are far apart; values of one
/// map are the same or neighbours.
pub fn input(rng: &mut Rng, scene: &Scene, order: ByteOrder) -> Option<Input> {
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
    let start = Input { regs, frame, seed, order };
    let nothing = |_: u64| 0u8;
    let ran = run(&start, &scene.prologue, &nothing)?;
    assert!(ran.books.writes.is_empty(), "the prologue writes only the stack");
    let frame = ran.cpu.frame().to_vec();
    Some(Input { frame, ..start })
}

// ---- random windows -----------------------------------------------------------------------------------
