//! A model of what the kernel gives a main program in `BPF_PROG_TEST_RUN`: context, packet, maps, global data
//! and the common helpers. What has no model here is an error, never a guess.

mod arguments;
mod checksums;
mod contexts;
mod helpers;
mod probes;

use std::collections::BTreeMap;

use bpf_isa::{Call, Imm64Kind, Insn, Reg, Size};
use bpf_platform::helpers::Helper;
use bpf_program::{ByteOrder, FieldKind, Link, Op, ProgKind, Symbol, ctx_field};
use rustc_hash::FxHashMap;

use super::maps::{Map, Update, errno};
use super::packet::Packet;
use super::{Cpu, Fault, Host, Interp, MapSpec, Next};
use arguments::first3;
use contexts::{ETH_HLEN, skb_context, xdp_context};

const CONTEXT: u64 = 0xffff_8880_0000_0000;
const MAPS: u64 = 0xffff_8881_0000_0000;
const MAP_STEP: u64 = 0x1000;
/// Map values, global data and ring buffer records.
const HEAP: u64 = 0xffff_8890_0000_0000;
const TASK: u64 = 0xffff_8882_0000_0000;
/// Unmapped bytes between two allocations, so that overruns are seen.
const GAP: u64 = 64;
/// `BPF_MAX_LOOPS`
const MAX_LOOPS: u32 = 8 << 20;

/// First address that is not a user address (x86-64).
const USER_END: u64 = 1 << 47;

/// What a program sent to user space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The ring buffer or perf event array.
    pub map: String,
    /// The record.
    pub bytes: Vec<u8>,
}

/// The task the program runs in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskInfo {
    /// `bpf_get_current_pid_tgid`
    pub pid_tgid: u64,
    /// `bpf_get_current_uid_gid`
    pub uid_gid: u64,
    /// `bpf_get_current_comm`
    pub comm: [u8; 16],
}

impl Default for TaskInfo {
    fn default() -> Self {
        TaskInfo { pid_tgid: 1 << 32 | 1, uid_gid: 0, comm: *b"bpf-opt\0\0\0\0\0\0\0\0\0" }
    }
}

#[derive(Clone, Debug)]
struct Allocation {
    bytes: Vec<u8>,
    writable: bool,
}

/// The world of a main program.
#[derive(Clone, Debug)]
pub struct KernelHost {
    kind: ProgKind,
    order: ByteOrder,
    context: Vec<u8>,
    packet: Packet,
    regions: BTreeMap<u64, Allocation>,
    next_address: u64,
    maps: Vec<Map>,
    map_names: FxHashMap<String, usize>,
    fds: FxHashMap<u32, usize>,
    symbols: FxHashMap<String, u64>,
    /// Ring buffer records that are neither submitted nor discarded, and their map.
    reserved: FxHashMap<u64, usize>,
    clock: u64,
    random: u64,
    /// Everything sent through ring buffers and perf event arrays.
    pub outputs: Vec<Output>,
    /// The task the program runs in.
    pub task: TaskInfo,
    /// What `perf_event_output` returns: nobody listens in a test run (-ENOENT).
    pub perf_result: i64,
    /// Whether instructions with a CO-RE record are executed as compiled, instead of being a fault.
    pub core_as_compiled: bool,
}

impl KernelHost {
    /// The world of a program of this kind that gets this packet. Other contexts than that of XDP and
    /// `__sk_buff` are zero until [`KernelHost::set_context`].
    pub fn new(kind: ProgKind, packet: &[u8]) -> KernelHost {
        KernelHost::of_order(ByteOrder::Little, kind, packet)
    }

    /// The same on a machine with this byte order. Checksum helpers are modelled on little-endian ones alone.
    pub fn of_order(order: ByteOrder, kind: ProgKind, packet: &[u8]) -> KernelHost {
        let packet = Packet::new(packet);
        let context = match kind {
            ProgKind::Xdp => xdp_context(order),
            ProgKind::Skb => skb_context(order, packet.bytes()),
            _ => vec![0; 256],
        };
        KernelHost {
            kind,
            order,
            context,
            packet,
            regions: BTreeMap::new(),
            next_address: HEAP,
            maps: vec![],
            map_names: FxHashMap::default(),
            fds: FxHashMap::default(),
            symbols: FxHashMap::default(),
            reserved: FxHashMap::default(),
            clock: 1_000_000_000,
            random: 0x9e37_79b9_7f4a_7c15,
            outputs: vec![],
            task: TaskInfo::default(),
            perf_result: errno::ENOENT,
            core_as_compiled: false,
        }
    }

    /// A processor about to enter a main program: r1 is the context.
    pub fn start(self) -> Interp<KernelHost> {
        let mut interp = Interp::new(self);
        interp.cpu.set(Reg::R1, CONTEXT);
        interp
    }

    /// Replaces the bytes of the context. Pointer fields of XDP and `__sk_buff` contexts are not taken from it.
    pub fn set_context(&mut self, bytes: &[u8]) {
        self.context = bytes.to_vec();
    }

    /// The bytes of the context; pointer fields of XDP and `__sk_buff` contexts are not in them.
    pub fn context(&self) -> &[u8] {
        &self.context
    }

    /// Seeds `get_prandom_u32`.
    pub fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    /// Of the packet only so many bytes are before `data_end`, as where the kernel keeps the rest in pages of its own.
    pub fn set_linear(&mut self, bytes: usize) {
        self.packet.set_linear(bytes);
    }

    /// Sets the clock, in nanoseconds.
    pub fn set_clock(&mut self, now: u64) {
        self.clock = now;
    }

    /// Adds memory that a call hands out; its address.
    pub fn add_object(&mut self, bytes: &[u8]) -> u64 {
        self.allocate(bytes.to_vec(), true)
    }

    /// The packet, from `data` to `data_end`.
    pub fn packet(&self) -> &[u8] {
        self.packet.bytes()
    }

    /// The packet's metadata, from `data_meta` to `data`.
    pub fn metadata(&self) -> &[u8] {
        self.packet.metadata()
    }

    /// Adds a map and returns its number.
    pub fn add_map(&mut self, spec: MapSpec) -> usize {
        self.map_names.insert(spec.name.clone(), self.maps.len());
        self.maps.push(Map::new(spec, self.order));
        self.maps.len() - 1
    }

    /// Adds memory that a symbol stands for: a global data section, or a kconfig variable.
    pub fn add_section(&mut self, name: &str, bytes: &[u8], writable: bool) {
        let base = self.allocate(bytes.to_vec(), writable);
        self.symbols.insert(name.to_string(), base);
    }

    /// Adds memory of the task, which only `probe_read_user` and its kin read.
    pub fn add_user_memory(&mut self, address: u64, bytes: &[u8]) {
        self.regions.insert(address, Allocation { bytes: bytes.to_vec(), writable: false });
    }

    /// The bytes of a section now.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.regions.get(self.symbols.get(name)?).map(|r| &*r.bytes)
    }

    /// Makes an unrelocated `ld_imm64` of this descriptor mean this map.
    pub fn bind_fd(&mut self, fd: u32, map: usize) {
        self.fds.insert(fd, map);
    }

    /// The maps, in the order they were added.
    pub fn maps(&self) -> impl Iterator<Item = &MapSpec> {
        self.maps.iter().map(|m| &m.spec)
    }

    /// The map of that name.
    pub fn map_named(&self, name: &str) -> Option<usize> {
        self.map_names.get(name).copied()
    }

    /// Sets an element from outside; the error is the helper's.
    ///
    /// # Errors
    /// A negative errno.
    pub fn map_update(&mut self, map: usize, key: &[u8], value: &[u8]) -> Result<(), i64> {
        match self.update(map, key, value, 0) {
            0 => Ok(()),
            e => Err(e),
        }
    }

    /// An element's value now.
    pub fn map_lookup(&mut self, map: usize, key: &[u8]) -> Option<Vec<u8>> {
        let address = self.lookup(map, key)?;
        self.regions.get(&address).map(|r| r.bytes.clone())
    }

    /// All elements in the order of the keys' bytes. Elements of an array that nobody touched are zero and left
    /// out.
    pub fn map_entries(&self, map: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.maps[map]
            .elements()
            .map(|(k, a)| (k.clone(), self.regions.get(&a).map(|r| r.bytes.clone()).unwrap_or_default()))
            .collect()
    }

    fn allocate(&mut self, bytes: Vec<u8>, writable: bool) -> u64 {
        let base = self.next_address;
        self.next_address += (bytes.len() as u64 + GAP).next_multiple_of(GAP);
        self.regions.insert(base, Allocation { bytes, writable });
        base
    }

    fn lookup(&mut self, map: usize, key: &[u8]) -> Option<u64> {
        if self.maps[map].is_untouched_element(key) {
            let zero = vec![0; self.maps[map].spec.value_size as usize];
            let address = self.allocate(zero, true);
            self.maps[map].place(key.to_vec(), address);
        }
        self.maps[map].lookup(key)
    }

    fn update(&mut self, map: usize, key: &[u8], value: &[u8], flags: u64) -> i64 {
        match self.maps[map].update(key, flags) {
            Err(e) => e,
            Ok(Update::InPlace(address)) => {
                if let Some(region) = self.regions.get_mut(&address) {
                    region.bytes.copy_from_slice(value);
                }
                0
            }
            Ok(Update::Place(key)) => {
                let address = self.allocate(value.to_vec(), true);
                self.maps[map].place(key, address);
                0
            }
        }
    }

    fn map_at(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(MAPS)?;
        let i = usize::try_from(offset / MAP_STEP).ok()?;
        (offset.is_multiple_of(MAP_STEP) && i < self.maps.len()).then_some(i)
    }

    fn map_arg(&self, cpu: &Cpu, n: Reg) -> Result<usize, Fault> {
        let address = cpu.get(n)?;
        self.map_at(address).ok_or_else(|| Fault::Unmodelled(format!("the map at {address:#x}")))
    }

    fn key(&mut self, cpu: &Cpu, map: usize) -> Result<Vec<u8>, Fault> {
        let size = self.maps[map].spec.key_size;
        cpu.read_bytes(self, cpu.get(Reg::R2)?, size.into())
    }

    /// Where an address is: the region and the offset in it, if `size` bytes are there.
    fn region(&mut self, address: u64, size: usize) -> Option<(&mut Allocation, usize)> {
        let (base, region) = self.regions.range_mut(..=address).next_back()?;
        let from = usize::try_from(address - base).ok()?;
        (from.checked_add(size)? <= region.bytes.len()).then_some((region, from))
    }

    /// Offset of an access in the context, if it is one.
    fn in_context(&self, address: u64, size: usize) -> Option<usize> {
        let from = usize::try_from(address.checked_sub(CONTEXT)?).ok()?;
        (from.checked_add(size)? <= self.context.len()).then_some(from)
    }

    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as u32
    }

    fn tick(&mut self, by: u64) -> u64 {
        self.clock += by;
        self.clock
    }
}

impl Host for KernelHost {
    fn byte_order(&self) -> ByteOrder {
        self.order
    }

    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        let fault = Fault::Access { write: false, address, size: out.len() as u64 };
        if let Some(bytes) = self.packet.at(address, out.len()) {
            out.copy_from_slice(bytes);
        } else if let Some(at) = self.in_context(address, out.len()) {
            out.copy_from_slice(&self.context[at..at + out.len()]);
        } else {
            let (region, at) = self.region(address, out.len()).ok_or(fault)?;
            out.copy_from_slice(&region.bytes[at..at + out.len()]);
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let fault = Fault::Access { write: true, address, size: bytes.len() as u64 };
        if let Some(packet) = self.packet.at(address, bytes.len()) {
            packet.copy_from_slice(bytes);
        } else if let Some(at) = self.in_context(address, bytes.len()) {
            if matches!(self.kind, ProgKind::Xdp | ProgKind::Tracing) {
                return Err(fault);
            }
            self.context[at..at + bytes.len()].copy_from_slice(bytes);
        } else {
            match self.region(address, bytes.len()) {
                Some((region, at)) if region.writable => region.bytes[at..at + bytes.len()].copy_from_slice(bytes),
                _ => return Err(fault),
            }
        }
        Ok(())
    }

    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        let n = size.bytes() as usize;
        if matches!(self.kind, ProgKind::Xdp | ProgKind::Skb)
            && let Some(at) = self.in_context(address, n)
            && let Some(field) = ctx_field(self.kind, at as i64)
        {
            let whole = at as u32 == field.offset && size.bytes() == field.size;
            let pointer = match field.kind {
                FieldKind::PacketData => Some(self.packet.data()),
                FieldKind::PacketEnd => Some(self.packet.data_end()),
                FieldKind::PacketMeta => Some(self.packet.data_meta()),
                _ => None,
            };
            match pointer {
                Some(pointer) if whole => return Ok(pointer),
                Some(_) => return Err(Fault::Access { write: false, address, size: n as u64 }),
                // A part of such a field need not be those bytes of it.
                None if !whole && field.kind == (FieldKind::Scalar { narrow: false }) => {
                    return Err(Fault::Unmodelled(format!("{n} bytes of the context at {at}")));
                }
                None => {}
            }
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..n])?;
        Ok(self.order.number(&bytes[..n]))
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let Insn::Call(Call::Helper(id)) = op.insn else {
            return Err(Fault::Unmodelled(format!("`{}`", op.insn)));
        };
        let name = Helper::get(id).map_or("unknown", |h| h.name);
        match name {
            "loop" => {
                let [count, function, context] = first3(cpu)?;
                let count = count as u32;
                if count > MAX_LOOPS || cpu.get(Reg::R4)? != 0 {
                    cpu.set(Reg::R0, if count > MAX_LOOPS { errno::E2BIG } else { errno::EINVAL } as u64);
                    return Ok(Next::Done);
                }
                let rounds = (0..u64::from(count)).map(move |i| [i, context, 0, 0, 0]);
                return Ok(Next::CallBack { function, rounds: Box::new(rounds) });
            }
            "for_each_map_elem" => return self.for_each(cpu),
            _ => {}
        }
        if let Some(v) = self.helper(cpu, name)? {
            cpu.set(Reg::R0, v as u64);
        }
        Ok(Next::Done)
    }

    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault> {
        let missing = |what: &str| Fault::Unmodelled(what.to_string());
        let map = |i: usize| MAPS + i as u64 * MAP_STEP;
        match link.map(|l| &l.symbol) {
            Some(Symbol::Map { name, .. }) => {
                self.map_named(name).map(map).ok_or_else(|| missing(&format!("map {name}")))
            }
            Some(Symbol::Data { section, offset }) => match self.symbols.get(&**section) {
                Some(base) => Ok(base.wrapping_add_signed(*offset)),
                None => Err(missing(&format!("section {section}"))),
            },
            Some(Symbol::Extern { name } | Symbol::Func { name }) => {
                self.symbols.get(&**name).copied().ok_or_else(|| missing(&format!("symbol {name}")))
            }
            Some(Symbol::Core { .. }) => Err(missing("a CO-RE value")),
            None => {
                let bound = self.fds.get(&(imm as u32)).copied();
                match (kind, bound) {
                    (Imm64Kind::MapFd, Some(i)) => Ok(map(i)),
                    (Imm64Kind::MapValue, Some(i)) => {
                        self.lookup(i, &[0; 4]).map(|base| base + (imm >> 32)).ok_or_else(|| missing("a map value"))
                    }
                    _ => Err(missing(&format!("an ld_imm64 of kind {kind:?}"))),
                }
            }
        }
    }

    fn legacy_load(&mut self, context: u64, offset: i32, size: Size) -> Result<Option<u64>, Fault> {
        // `bpf_internal_load_pointer_neg_helper`: offsets from the network and the link layer header.
        const NET_OFF: i32 = -0x10_0000;
        const LL_OFF: i32 = -0x20_0000;
        if self.kind != ProgKind::Skb || context != CONTEXT {
            return Err(Fault::Unmodelled("a legacy packet load without an sk_buff".into()));
        }
        let start = match offset {
            0.. => offset,
            NET_OFF.. => offset - NET_OFF + ETH_HLEN as i32,
            LL_OFF.. => offset - LL_OFF,
            _ => return Ok(None),
        };
        let part = self.packet.part(start as u64, size.bytes().into());
        Ok(part.map(|bytes| bytes.iter().fold(0, |v, b| v << 8 | u64::from(*b))))
    }

    fn relocate(&mut self, op: &Op) -> Result<Insn, Fault> {
        if self.core_as_compiled {
            return Ok(op.insn);
        }
        Err(Fault::Unmodelled(format!("the CO-RE relocation of `{}`", op.insn)))
    }

    fn map_sizes(&self, map: u64) -> Option<(u32, u32)> {
        self.map_at(map).map(|i| (self.maps[i].spec.key_size, self.maps[i].spec.value_size))
    }
}
