//! Windows run in the interpreter: states of which the facts hold, and what two runs differ in.

use std::collections::BTreeMap;

use bpf_facts::{BaseId, Env, Kind, Region, Value};
use bpf_isa::{Imm64Kind, Reg, Size};
use bpf_platform::effects::{Effects, Extent};
use bpf_platform::helpers::{Arg, Ret};
use bpf_platform::maps;
use bpf_program::{FieldKind, Link, Op, ProgKind, Terminator, ctx_field};
use bpf_prove::reference::{Window, symbol};
use bpf_prove::superblock::SideExit;
use bpf_semantics::branch;
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, Next, Stop};

use bpf_testgen::random::{Rng, mix};
use bpf_testgen::windows::member;

const FRAME_POINTER: u64 = 0xffff_c900_0001_0000;
const FRAME: u64 = 512;
const CTX: u64 = 0x1000_0000;
const CTX_BYTES: u64 = 0x1000;
/// Below 4 GiB: the interpreter loads no more than the 32 bits of the field.
const PACKET: u64 = 0x2000_0000;
const PACKET_BYTES: u64 = 0x1_0000;
const PACKET_START: u64 = PACKET + 0x8000;
const PACKET_LENGTH: u64 = 0x400;
const OBJECTS: u64 = 0x40_0000_0000;
const OBJECT_BYTES: u64 = 0x10_0000;
/// Where pointers to an object start in its area.
const MIDDLE: u64 = OBJECT_BYTES / 2;
/// Longest buffer a helper is taken to write.
const LONGEST: u64 = 1 << 12;

/// A state to start from.
#[derive(Clone, Debug)]
pub struct Entry {
    /// r0 to r10.
    pub regs: [u64; 11],
    /// The frame, lowest address first.
    pub frame: Vec<u8>,
}

/// Initial bytes, and addresses of symbols by the names of [`symbol`].
pub trait World {
    /// The byte at an address.
    fn byte(&mut self, address: u64) -> u8;
    /// The address of a symbol.
    fn symbol(&mut self, key: &str) -> Option<u64>;
    /// What a context field holds, if the context is not memory here.
    fn field(&mut self, address: u64, size: Size) -> Option<u64>;
    /// Whether an access there is one an accepted program may make.
    fn tame(&self, address: u64) -> bool;
    /// Key and value size of the map at an address.
    fn map_sizes(&self, address: u64) -> Option<(u32, u32)>;
    /// The element that a lookup finds in the map at an address.
    fn element(&mut self, _map: u64, _key: &[u8]) -> Option<u64> {
        None
    }
}

/// A world with objects far apart and bytes that look random.
pub struct Random<'a> {
    env: &'a Env<'a>,
    kind: ProgKind,
    seed: u64,
    names: Vec<String>,
}

impl<'a> Random<'a> {
    /// The world with this number.
    pub fn new(env: &'a Env<'a>, kind: ProgKind, seed: u64) -> Random<'a> {
        Random { env, kind, seed, names: vec![] }
    }

    /// The start of the area of what has this name.
    fn area(&mut self, name: &str) -> u64 {
        let i = self.names.iter().position(|n| n == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        OBJECTS + i as u64 * OBJECT_BYTES + MIDDLE
    }

    fn region(&mut self, r: &Region) -> Option<u64> {
        let map = |m: &usize| self.env.maps.get(*m).map(|m| m.name.clone());
        Some(match r {
            Region::Stack => FRAME_POINTER,
            Region::Ctx => CTX,
            Region::Packet => PACKET_START,
            Region::PacketMeta => PACKET_START - 32,
            Region::PacketEnd => PACKET_START + PACKET_LENGTH,
            Region::MapValue { map: m } => {
                let name = format!("values of {}", map(m)?);
                self.area(&name)
            }
            Region::AnyMapValue => {
                let name = format!("values of {}", self.env.maps.first()?.name);
                self.area(&name)
            }
            Region::MapPtr { map: m } => {
                let name = format!("map {}", map(m)?);
                self.area(&name)
            }
            Region::Data { section } => self.area(&format!("section {section}")),
            Region::Func { .. } | Region::Mem | Region::CallerFrame | Region::Kernel => self.area(&format!("{r:?}")),
        })
    }

    /// A state of which the facts hold; `None` if none was found.
    pub fn entry(&mut self, w: &Window, rng: &mut Rng) -> Option<Entry> {
        let mut bases: Vec<((Region, BaseId), u64)> = vec![];
        let mut regs = [0; 11];
        for r in Reg::all() {
            regs[r.index()] = self.value(w, w.before.reg(r), rng, &mut bases)?;
        }
        let mut frame: Vec<u8> = (0..FRAME).map(|_| rng.next() as u8).collect();
        let pieces: Vec<(i64, Value)> = w.before.stack_values().map(|(o, v)| (o, v.clone())).collect();
        for (off, v) in pieces {
            let n = v.num.bits / 8;
            let x = match n {
                8 => self.value(w, &v, rng, &mut bases)?,
                _ => member(rng, &v.num.zext(64))?,
            };
            for i in 0..n {
                let at = usize::try_from(off + i64::from(i) + FRAME as i64).ok()?;
                *frame.get_mut(at)? = (x >> (8 * i)) as u8;
            }
        }
        Some(Entry { regs, frame })
    }

    fn value(&mut self, w: &Window, v: &Value, rng: &mut Rng, bases: &mut Vec<((Region, BaseId), u64)>) -> Option<u64> {
        let (region, base, nullable) = match &v.kind {
            Kind::Unknown => {
                let area = OBJECTS + MIDDLE + OBJECT_BYTES * rng.below(self.names.len().max(1) as u64);
                return Some(match rng.below(6) {
                    0 => PACKET_START + rng.below(32),
                    1 | 2 if !self.names.is_empty() => area + 8 * rng.below(4),
                    3 if w.before.frame_leaked() => FRAME_POINTER - 8 * (1 + rng.below(64)),
                    _ => rng.number(64),
                });
            }
            Kind::Scalar => return member(rng, &v.num),
            Kind::Pointer { region, base, nullable } => (region, *base, *nullable),
        };
        let start = self.region(region)?;
        let only = matches!(
            region,
            Region::Stack | Region::Ctx | Region::MapPtr { .. } | Region::Data { .. } | Region::PacketEnd
        ) || region.is_packet() && base.same(w.before.packet_base());
        let own = if only { start } else { start + rng.one_of(&[0, 0, 8, 32, 0x100]) };
        let b = if base.same(base) {
            match bases.iter().find(|(k, _)| *k == (region.clone(), base)) {
                Some((_, b)) => *b,
                None => {
                    bases.push(((region.clone(), base), own));
                    own
                }
            }
        } else {
            own
        };
        if nullable && rng.chance(3) {
            return Some(0);
        }
        let offset = member(rng, &v.num)?;
        // Farther away is another object.
        ((offset as i64).unsigned_abs() < 0x8000).then(|| b.wrapping_add(offset))
    }
}

impl World for Random<'_> {
    fn byte(&mut self, address: u64) -> u8 {
        mix(address ^ self.seed) as u8
    }

    fn symbol(&mut self, key: &str) -> Option<u64> {
        Some(self.area(key))
    }

    fn field(&mut self, address: u64, _: Size) -> Option<u64> {
        let off = address.wrapping_sub(CTX);
        if off >= CTX_BYTES {
            return None;
        }
        let region = match ctx_field(self.kind, off as i64)?.kind {
            FieldKind::PacketData => Region::Packet,
            FieldKind::PacketMeta => Region::PacketMeta,
            FieldKind::PacketEnd => Region::PacketEnd,
            _ => return None,
        };
        self.region(&region)
    }

    fn tame(&self, a: u64) -> bool {
        let inside = |start: u64, n: u64| a.wrapping_sub(start) < n;
        inside(CTX, CTX_BYTES)
            || inside(PACKET, PACKET_BYTES)
            || inside(OBJECTS, OBJECT_BYTES * self.names.len() as u64)
    }

    fn map_sizes(&self, address: u64) -> Option<(u32, u32)> {
        let i = usize::try_from(address.checked_sub(OBJECTS)? / OBJECT_BYTES).ok()?;
        let name = self.names.get(i)?.strip_prefix("map ")?;
        let m = self.env.maps.iter().find(|m| m.name == name)?;
        Some((m.key_size?, m.value_size?))
    }

    fn element(&mut self, map: u64, key: &[u8]) -> Option<u64> {
        let i = usize::try_from(map.checked_sub(OBJECTS)? / OBJECT_BYTES).ok()?;
        let name = self.names.get(i)?.strip_prefix("map ")?;
        let m = self.env.maps.iter().find(|m| m.name == name)?;
        let of_bytes = m.map_type.is_some_and(maps::holds_bytes);
        let array = m.map_type.is_some_and(maps::is_array);
        let size = u64::from(m.value_size?).next_multiple_of(8).min(0x1000);
        let values = format!("values of {name}");
        let h = key.iter().fold(self.seed, |h, b| mix(h ^ u64::from(*b)));
        // An array has an element 0, whatever size the loader gives it; of others some are there.
        let there = of_bytes && (array && key.iter().all(|b| *b == 0) || h & 1 == 0);
        there.then(|| self.area(&values) + size * (h >> 1 & 3))
    }
}

/// What a run did to memory outside the frame.
struct Books<'w> {
    world: &'w mut dyn World,
    memory: BTreeMap<u64, u8>,
    wild: bool,
    calls: u64,
}

impl Books<'_> {
    fn byte(&mut self, a: u64) -> u8 {
        match self.memory.get(&a) {
            Some(b) => *b,
            None => self.world.byte(a),
        }
    }
}

impl Host for Books<'_> {
    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        for (i, b) in out.iter_mut().enumerate() {
            let a = address.wrapping_add(i as u64);
            self.wild |= !self.world.tame(a);
            *b = self.byte(a);
        }
        Ok(())
    }

    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        if let Some(v) = self.world.field(address, size) {
            return Ok(v);
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..size.bytes() as usize])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        for (i, b) in bytes.iter().enumerate() {
            let a = address.wrapping_add(i as u64);
            self.wild |= !self.world.tame(a);
            self.memory.insert(a, *b);
        }
        Ok(())
    }

    /// Helpers of the table answer by the number of the call, and fill the buffers they may write.
    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let helper = Effects::helper(&op.insn, op.link.is_some());
        let Some(h) = helper.filter(|h| !h.effects.touches_everything && !h.effects.moves_packet()) else {
            return Err(Fault::Unmodelled(op.insn.to_string()));
        };
        self.calls += 1;
        let noise = mix(self.calls << 32 | h.id as u64);
        let map = h.effects.map_register().and_then(|r| cpu.register(r));
        let sizes = map.and_then(|m| self.world.map_sizes(m));
        for (i, arg) in h.effects.arguments.iter().enumerate() {
            if arg.class == Arg::Opaque || arg.class == Arg::Func {
                return Err(Fault::Unmodelled(format!("the arguments of {}", h.name)));
            }
            if !arg.access.writes() {
                continue;
            }
            let length = match arg.extent {
                Extent::Bytes(n) => u64::from(n),
                Extent::Register(r) => cpu.register(r).unwrap_or(0),
                Extent::Value => match sizes {
                    Some((_, v)) => u64::from(v),
                    None => return Err(Fault::Unmodelled("a value of unknown size".into())),
                },
                Extent::Nothing | Extent::Key | Extent::Unknown => {
                    return Err(Fault::Unmodelled(format!("the arguments of {}", h.name)));
                }
            };
            let Some(at) = cpu.arg(i + 1).filter(|a| *a != 0) else { continue };
            if length > LONGEST {
                return Err(Fault::Unmodelled("a long buffer".into()));
            }
            let bytes: Vec<u8> = (0..length).map(|j| mix(noise ^ (i as u64) << 16 ^ j) as u8).collect();
            cpu.write(self, at, &bytes)?;
        }
        match h.ret {
            Ret::Scalar | Ret::NoReturnOnSuccess => cpu.set(Reg::R0, if noise & 3 == 0 { noise } else { noise & 0xff }),
            Ret::Void => {}
            Ret::MapValueOrNull if h.effects.is_lookup_by_key() => {
                let (Some(map), Some(at), Some((n, _))) = (cpu.arg(1), cpu.arg(2), sizes) else {
                    return Err(Fault::Unmodelled("a map of unknown shape".into()));
                };
                let key = cpu.read_bytes(self, at, n.into())?;
                cpu.set(Reg::R0, self.world.element(map, &key).unwrap_or(0));
            }
            // Any other pointer would need an object: it is null.
            _ => cpu.set(Reg::R0, 0),
        }
        Ok(Next::Done)
    }

    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault> {
        match symbol(kind, imm, link) {
            None => Ok(imm),
            Some((key, offset)) => {
                let base = self.world.symbol(&key).ok_or(Fault::Unmodelled(key))?;
                Ok(base.wrapping_add_signed(offset))
            }
        }
    }

    fn map_sizes(&self, map: u64) -> Option<(u32, u32)> {
        self.world.map_sizes(map)
    }
}

/// What both sides did from one state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Both {
    /// The same, as far as it matters.
    Same,
    /// Not the same: what differs.
    Differ(String),
    /// The old side did what no accepted program does, or something has no model.
    Useless,
}

struct Ran {
    cpu: Cpu,
    memory: BTreeMap<u64, u8>,
    condition: Option<bool>,
    /// At which of its jumps the path was left.
    left: Option<usize>,
}

fn run(entry: &Entry, ops: &[Op], tail: Option<&Terminator>, world: &mut dyn World) -> Result<(Ran, bool), Stop> {
    let mut cpu = Cpu::with_frame_pointer(entry.regs[10]);
    for r in Reg::all() {
        cpu.set(r, entry.regs[r.index()]);
    }
    cpu.frame_mut().copy_from_slice(&entry.frame);
    let mut m = Interp::with_cpu(cpu, Books { world, memory: BTreeMap::new(), wild: false, calls: 0 });
    let (mut left, mut jumps) = (None, 0);
    for op in ops {
        if let Some(SideExit { cond, width, dst, src, leaves_if }) = SideExit::of(&op.insn) {
            if branch(&mut m, cond, width, dst, src)? == leaves_if {
                left = Some(jumps);
                break;
            }
            jumps += 1;
        } else {
            m.run_ops(std::slice::from_ref(op))?;
        }
    }
    let condition = match tail {
        Some(Terminator::Branch { cond, width, dst, src, .. }) if left.is_none() => {
            Some(branch(&mut m, *cond, *width, *dst, *src)?)
        }
        _ => None,
    };
    let Interp { cpu, host, .. } = m;
    Ok((Ran { cpu, memory: host.memory, condition, left }, host.wild))
}

/// Runs both sides of a window from one state.
pub fn both(w: &Window, entry: &Entry, world: &mut dyn World) -> Both {
    let tails = w.tail.as_ref();
    let Ok((a, false)) = run(entry, &w.old, tails.map(|t| &t.0), world) else { return Both::Useless };
    let b = match run(entry, &w.new, tails.map(|t| &t.1), world) {
        Ok((b, _)) => b,
        // What a call clobbered may be read as far as the result goes; the verifier refuses it all the same.
        Err(Stop::Fault(Fault::Unmodelled(_) | Fault::OutOfFuel | Fault::Uninitialised(_)) | Stop::Exit) => {
            return Both::Useless;
        }
        Err(Stop::Fault(fault)) => return Both::Differ(format!("only the new one faults: {fault}")),
    };
    if a.left != b.left {
        return Both::Differ(format!("left at {:?} and at {:?}", a.left, b.left));
    }
    let live = match a.left {
        None => &w.live,
        Some(i) => match w.sides.get(i) {
            Some(live) => live,
            None => return Both::Useless,
        },
    };
    for r in live.regs.iter() {
        let (x, y) = (a.cpu.register(r), b.cpu.register(r));
        if x != y {
            return Both::Differ(format!("{r}: {x:x?} and {y:x?}"));
        }
    }
    for off in live.stack.iter() {
        let at = (FRAME as i64 + off) as usize;
        let (x, y) = (a.cpu.frame().get(at), b.cpu.frame().get(at));
        if x != y {
            return Both::Differ(format!("stack {off}: {x:x?} and {y:x?}"));
        }
    }
    for at in a.memory.keys().chain(b.memory.keys()) {
        let initial = world.byte(*at);
        let (x, y) = (a.memory.get(at).unwrap_or(&initial), b.memory.get(at).unwrap_or(&initial));
        if x != y {
            return Both::Differ(format!("byte {at:#x}: {x:#x} and {y:#x}"));
        }
    }
    if a.condition != b.condition {
        return Both::Differ(format!("condition: {:?} and {:?}", a.condition, b.condition));
    }
    if a.cpu.trace != b.cpu.trace {
        return Both::Differ(format!("calls: {:x?} and {:x?}", a.cpu.trace, b.cpu.trace));
    }
    Both::Same
}
