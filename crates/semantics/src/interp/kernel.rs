//! A model of what the kernel gives a main program in `BPF_PROG_TEST_RUN`: context, packet, maps, global data
//! and the common helpers. What has no model here is an error, never a guess.

use std::collections::BTreeMap;

use bpf_isa::{Call, Imm64Kind, Insn, Reg, Size};
use bpf_program::{FieldKind, Link, Op, ProgKind, Symbol, ctx_field};
use rustc_hash::FxHashMap;

use super::maps::{Map, Update, errno};
use super::packet::{Packet, csum_add, csum_fold_up, csum_partial, csum_replace_by_diff, csum_replace2, csum_replace4};
use super::{Cpu, Fault, Host, Interp, MapSpec, Next};
use bpf_platform::helpers::Helper;

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
/// Bytes of `struct __sk_buff`.
const SKB_BYTES: usize = 192;
const ETH_HLEN: usize = 14;

/// First address that is not a user address (x86-64).
const USER_END: u64 = 1 << 47;

/// Whose memory a helper probes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Kernel,
    /// Decided by the address.
    Either,
}

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
struct Region {
    bytes: Vec<u8>,
    writable: bool,
}

/// The world of a main program.
#[derive(Clone, Debug)]
pub struct KernelHost {
    kind: ProgKind,
    context: Vec<u8>,
    packet: Packet,
    regions: BTreeMap<u64, Region>,
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
        let packet = Packet::new(packet);
        let context = match kind {
            ProgKind::Xdp => xdp_context(),
            ProgKind::Skb => skb_context(packet.bytes()),
            _ => vec![0; 256],
        };
        KernelHost {
            kind,
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
        self.maps.push(Map::new(spec));
        self.maps.len() - 1
    }

    /// Adds memory that a symbol stands for: a global data section, or a kconfig variable.
    pub fn add_section(&mut self, name: &str, bytes: &[u8], writable: bool) {
        let base = self.allocate(bytes.to_vec(), writable);
        self.symbols.insert(name.to_string(), base);
    }

    /// Adds memory of the task, which only `probe_read_user` and its kin read.
    pub fn add_user_memory(&mut self, address: u64, bytes: &[u8]) {
        self.regions.insert(address, Region { bytes: bytes.to_vec(), writable: false });
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
        self.regions.insert(base, Region { bytes, writable });
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
    fn region(&mut self, address: u64, size: usize) -> Option<(&mut Region, usize)> {
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

    /// Copies from the packet to memory; what the packet does not have becomes zeros and an error.
    fn packet_to(&mut self, cpu: &mut Cpu, limit: u64, error: i64) -> Result<i64, Fault> {
        let [offset, to, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        let found = if offset > limit { None } else { self.packet.part(offset, len).map(|p| p.to_vec()) };
        let ok = found.is_some();
        cpu.write(self, to, &found.unwrap_or_else(|| vec![0; len as usize]))?;
        Ok(if ok { 0 } else { error })
    }

    fn packet_from(&mut self, cpu: &mut Cpu, limit: u64, error: i64) -> Result<i64, Fault> {
        let [offset, from, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        let bytes = cpu.read_bytes(self, from, len)?;
        Ok(match self.packet.part(offset, len).filter(|_| offset <= limit) {
            Some(part) => {
                part.copy_from_slice(&bytes);
                0
            }
            None => error,
        })
    }

    fn l3_csum_replace(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [offset, from, to] = args3(cpu)?;
        let flags = cpu.get(Reg::R5)?;
        let offset = u64::from(offset as u32);
        if flags & !0xf != 0 {
            return Ok(errno::EINVAL);
        }
        let check = if offset > 0xffff || offset & 1 != 0 { None } else { self.packet.part(offset, 2) };
        let Some(check) = check else { return Ok(errno::EFAULT) };
        let old = u16::from_le_bytes([check[0], check[1]]);
        let new = match flags & 0xf {
            0 if from == 0 => csum_replace_by_diff(old, to as u32),
            2 => csum_replace2(old, from as u16, to as u16),
            4 => csum_replace4(old, from as u32, to as u32),
            _ => return Ok(errno::EINVAL),
        };
        check.copy_from_slice(&new.to_le_bytes());
        Ok(0)
    }

    fn l4_csum_replace(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        const MARK_MANGLED_0: u64 = 0x20;
        const MARK_ENFORCE: u64 = 0x40;
        const KNOWN: u64 = 0x1f | MARK_MANGLED_0 | MARK_ENFORCE;
        let [offset, from, to] = args3(cpu)?;
        let flags = cpu.get(Reg::R5)?;
        let offset = u64::from(offset as u32);
        if flags & !KNOWN != 0 {
            return Ok(errno::EINVAL);
        }
        let check = if offset > 0xffff || offset & 1 != 0 { None } else { self.packet.part(offset, 2) };
        let Some(check) = check else { return Ok(errno::EFAULT) };
        let old = u16::from_le_bytes([check[0], check[1]]);
        if flags & MARK_MANGLED_0 != 0 && flags & MARK_ENFORCE == 0 && old == 0 {
            return Ok(0);
        }
        let new = match flags & 0xf {
            0 if from == 0 => csum_replace_by_diff(old, to as u32),
            2 => csum_replace4(old, u32::from(from as u16), u32::from(to as u16)),
            4 => csum_replace4(old, from as u32, to as u32),
            _ => return Ok(errno::EINVAL),
        };
        let new = if flags & MARK_MANGLED_0 != 0 && new == 0 { 0xffff } else { new };
        check.copy_from_slice(&new.to_le_bytes());
        Ok(0)
    }

    /// As of Linux 6.13, which takes any length and always folds.
    fn csum_diff(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [from, from_size, to, to_size, seed] = args5(cpu)?;
        let (from_size, to_size, seed) = (from_size as u32, to_size as u32, seed as u32);
        // A size of zero may come with a null pointer.
        let mut bytes =
            |address, size: u32| if size == 0 { Ok(vec![]) } else { cpu.read_bytes(self, address, size.into()) };
        let (from, to) = (bytes(from, from_size)?, bytes(to, to_size)?);
        Ok(match (from_size, to_size) {
            (0, 0) => csum_fold_up(seed).into(),
            (0, _) => csum_fold_up(csum_partial(&to, seed)).into(),
            (_, 0) => csum_fold_up(!csum_partial(&from, !seed)).into(),
            _ => csum_fold_up(csum_add(csum_partial(&to, seed), !csum_partial(&from, 0))).into(),
        })
    }

    /// One byte for `probe_read` and its kin, or the error. Kernel memory is everything but
    /// [`KernelHost::add_user_memory`].
    fn probe(&mut self, cpu: &Cpu, address: u64, space: Space) -> Result<u8, i64> {
        let below = address < USER_END;
        let user = space == Space::User || space == Space::Either && self.user_memory_at(address);
        if user != self.user_memory_at(address) {
            return Err(if user || !below { errno::EFAULT } else { errno::ERANGE });
        }
        let mut b = [0];
        match cpu.read(self, address, &mut b) {
            Ok(()) => Ok(b[0]),
            Err(_) if below && space == Space::Kernel => Err(errno::ERANGE),
            Err(_) => Err(errno::EFAULT),
        }
    }

    fn user_memory_at(&mut self, address: u64) -> bool {
        address < USER_END && self.region(address, 1).is_some()
    }

    /// What is not mapped reads as zeros and an error.
    fn probe_read(&mut self, cpu: &mut Cpu, space: Space) -> Result<i64, Fault> {
        let [to, size, from] = first3(cpu)?;
        let size = u64::from(size as u32);
        let found: Result<Vec<u8>, i64> = (0..size).map(|i| self.probe(cpu, from.wrapping_add(i), space)).collect();
        let error = found.as_ref().err().copied().unwrap_or(0);
        cpu.write(self, to, &found.unwrap_or_else(|_| vec![0; size as usize]))?;
        Ok(error)
    }

    fn probe_read_str(&mut self, cpu: &mut Cpu, space: Space) -> Result<i64, Fault> {
        let [to, size, from] = first3(cpu)?;
        let size = u64::from(size as u32);
        let mut text = vec![];
        while (text.len() as u64) < size && text.last() != Some(&0) {
            match self.probe(cpu, from.wrapping_add(text.len() as u64), space) {
                Ok(b) => text.push(b),
                Err(e) => {
                    cpu.write(self, to, &vec![0; size as usize])?;
                    return Ok(e);
                }
            }
        }
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
        cpu.write(self, to, &text)?;
        Ok(text.len() as i64)
    }

    fn strncmp(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [a, size, b] = first3(cpu)?;
        for i in 0..u64::from(size as u32) {
            let (mut x, mut y) = ([0], [0]);
            cpu.read(self, a.wrapping_add(i), &mut x)?;
            cpu.read(self, b.wrapping_add(i), &mut y)?;
            if x != y {
                return Ok(if x < y { -1 } else { 1 });
            }
            if x == [0] {
                break;
            }
        }
        Ok(0)
    }

    fn redirect_map(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        // No device is in any map: what remains is the action in the flags' low bits.
        const ACTIONS: u64 = 3;
        const BROADCAST: u64 = 1 << 3;
        const EXCLUDE_INGRESS: u64 = 1 << 4;
        const XDP_ABORTED: i64 = 0;
        const XDP_REDIRECT: i64 = 4;
        let [_, _, flags] = first3(cpu)?;
        Ok(match flags {
            f if f & !(ACTIONS | BROADCAST | EXCLUDE_INGRESS) != 0 => XDP_ABORTED,
            f if f & BROADCAST != 0 => XDP_REDIRECT,
            f => (f & ACTIONS) as i64,
        })
    }

    fn redirect(&self, cpu: &Cpu) -> Result<i64, Fault> {
        let flags = cpu.get(Reg::R2)?;
        Ok(match self.kind {
            ProgKind::Xdp if flags == 0 => 4,
            ProgKind::Xdp => 0,
            _ if flags & !1 == 0 => 7,
            _ => 2,
        })
    }

    fn reserve(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let map = self.map_arg(cpu, Reg::R1)?;
        let (size, flags) = (cpu.get(Reg::R2)?, cpu.get(Reg::R3)?);
        if flags != 0 || size > u64::from(self.maps[map].spec.max_entries) {
            return Ok(0);
        }
        let address = self.allocate(vec![0; size as usize], true);
        self.reserved.insert(address, map);
        Ok(address as i64)
    }

    fn finish_record(&mut self, cpu: &Cpu, submit: bool) -> Result<(), Fault> {
        let address = cpu.get(Reg::R1)?;
        let missing = Fault::Access { write: true, address, size: 0 };
        let map = self.reserved.remove(&address).ok_or(missing)?;
        if let (Some(region), true) = (self.regions.remove(&address), submit) {
            self.outputs.push(Output { map: self.maps[map].spec.name.clone(), bytes: region.bytes });
        }
        Ok(())
    }

    fn output(&mut self, map: usize, cpu: &Cpu, data: Reg, size: Reg) -> Result<(), Fault> {
        let bytes = cpu.read_bytes(self, cpu.get(data)?, cpu.get(size)?)?;
        self.outputs.push(Output { map: self.maps[map].spec.name.clone(), bytes });
        Ok(())
    }

    fn for_each(&mut self, cpu: &Cpu) -> Result<Next, Fault> {
        let map = self.map_arg(cpu, Reg::R1)?;
        let [_, function, context] = first3(cpu)?;
        let mut rounds = vec![];
        for key in self.maps[map].keys() {
            let Some(value) = self.lookup(map, &key) else { continue };
            let key = self.allocate(key, false);
            rounds.push([MAPS + map as u64 * MAP_STEP, key, value, context, 0]);
        }
        Ok(Next::CallBack { function, rounds: Box::new(rounds.into_iter()) })
    }

    /// The effect of a helper and its result; `None` where r0 has no value afterwards.
    fn helper(&mut self, cpu: &mut Cpu, name: &str) -> Result<Option<i64>, Fault> {
        let xdp = self.kind == ProgKind::Xdp;
        let skb = self.kind == ProgKind::Skb;
        Ok(Some(match name {
            "map_lookup_elem" | "map_lookup_percpu_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                if name == "map_lookup_percpu_elem" && cpu.get(Reg::R3)? as u32 != 0 {
                    return Ok(Some(0));
                }
                self.lookup(map, &key).unwrap_or(0) as i64
            }
            "map_update_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                let size = self.maps[map].spec.value_size;
                let value = cpu.read_bytes(self, cpu.get(Reg::R3)?, size.into())?;
                self.update(map, &key, &value, cpu.get(Reg::R4)?)
            }
            "map_delete_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                self.maps[map].delete(&key)
            }
            "probe_read" => self.probe_read(cpu, Space::Either)?,
            "probe_read_kernel" => self.probe_read(cpu, Space::Kernel)?,
            "probe_read_user" => self.probe_read(cpu, Space::User)?,
            "probe_read_str" => self.probe_read_str(cpu, Space::Either)?,
            "probe_read_kernel_str" => self.probe_read_str(cpu, Space::Kernel)?,
            "probe_read_user_str" => self.probe_read_str(cpu, Space::User)?,
            "ktime_get_ns" | "ktime_get_boot_ns" | "ktime_get_coarse_ns" | "ktime_get_tai_ns" => self.tick(1000) as i64,
            "jiffies64" => (self.tick(1000) / 4_000_000) as i64,
            "trace_printk" | "trace_vprintk" => {
                let fmt = cpu.read_bytes(self, cpu.get(Reg::R1)?, u64::from(cpu.get(Reg::R2)? as u32))?;
                fmt.len() as i64
            }
            "get_prandom_u32" => i64::from(self.next_random()),
            "get_smp_processor_id" | "get_numa_node_id" => 0,
            "get_current_pid_tgid" => self.task.pid_tgid as i64,
            "get_current_uid_gid" => self.task.uid_gid as i64,
            "get_current_cgroup_id" => 1,
            "get_current_task" | "get_current_task_btf" => TASK as i64,
            "get_current_comm" => {
                let (to, size) = (cpu.get(Reg::R1)?, cpu.get(Reg::R2)? as u32 as usize);
                let mut bytes = vec![0; size];
                let n = size.min(self.task.comm.len());
                bytes[..n].copy_from_slice(&self.task.comm[..n]);
                // Like strscpy: always terminated.
                if let Some(last) = bytes.last_mut() {
                    *last = 0;
                }
                cpu.write(self, to, &bytes)?;
                0
            }
            "skb_load_bytes" if skb => self.packet_to(cpu, i32::MAX as u64, errno::EFAULT)?,
            "skb_store_bytes" if skb => {
                if cpu.get(Reg::R5)? & !3 != 0 {
                    return Ok(Some(errno::EINVAL));
                }
                self.packet_from(cpu, i32::MAX as u64, errno::EFAULT)?
            }
            "skb_pull_data" if skb => {
                if u64::from(cpu.get(Reg::R2)? as u32) <= self.packet.len() {
                    0
                } else {
                    errno::ENOMEM
                }
            }
            "l3_csum_replace" if skb => self.l3_csum_replace(cpu)?,
            "l4_csum_replace" if skb => self.l4_csum_replace(cpu)?,
            "csum_diff" => self.csum_diff(cpu)?,
            "redirect" => self.redirect(cpu)?,
            "redirect_map" if xdp => self.redirect_map(cpu)?,
            "xdp_adjust_head" if xdp => self.packet.adjust_head(cpu.get(Reg::R2)? as i32),
            "xdp_adjust_tail" if xdp => self.packet.adjust_tail(cpu.get(Reg::R2)? as i32),
            "xdp_adjust_meta" if xdp => self.packet.adjust_meta(cpu.get(Reg::R2)? as i32),
            "xdp_get_buff_len" if xdp => self.packet.len() as i64,
            "xdp_load_bytes" if xdp => match self.xdp_range(cpu)? {
                Some(e) => e,
                None => self.packet_to(cpu, 0xffff, errno::EFAULT)?,
            },
            "xdp_store_bytes" if xdp => match self.xdp_range(cpu)? {
                Some(e) => e,
                None => self.packet_from(cpu, 0xffff, errno::EFAULT)?,
            },
            "perf_event_output" => {
                let map = self.map_arg(cpu, Reg::R2)?;
                self.output(map, cpu, Reg::R4, Reg::R5)?;
                self.perf_result
            }
            "ringbuf_output" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                if cpu.get(Reg::R4)? & !3 != 0 {
                    return Ok(Some(errno::EINVAL));
                }
                self.output(map, cpu, Reg::R2, Reg::R3)?;
                0
            }
            "ringbuf_reserve" => self.reserve(cpu)?,
            "ringbuf_submit" | "ringbuf_discard" => {
                self.finish_record(cpu, name == "ringbuf_submit")?;
                return Ok(None);
            }
            "tail_call" => errno::ENOENT,
            "strncmp" => self.strncmp(cpu)?,
            "spin_lock" | "spin_unlock" => return Ok(None),
            _ => return Err(Fault::Unmodelled(format!("helper bpf_{name} in a {:?} program", self.kind))),
        }))
    }

    /// The error of `xdp_load_bytes` and `xdp_store_bytes` on a range the packet does not have. They leave
    /// memory alone then.
    fn xdp_range(&self, cpu: &Cpu) -> Result<Option<i64>, Fault> {
        let [offset, _, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        if offset > 0xffff || len > 0xffff {
            return Ok(Some(errno::EFAULT));
        }
        Ok((offset + len > self.packet.len()).then_some(errno::EINVAL))
    }
}

fn first3(cpu: &Cpu) -> Result<[u64; 3], Fault> {
    Ok([cpu.get(Reg::R1)?, cpu.get(Reg::R2)?, cpu.get(Reg::R3)?])
}

/// The three arguments behind the context.
fn args3(cpu: &Cpu) -> Result<[u64; 3], Fault> {
    Ok([cpu.get(Reg::R2)?, cpu.get(Reg::R3)?, cpu.get(Reg::R4)?])
}

fn args5(cpu: &Cpu) -> Result<[u64; 5], Fault> {
    Ok([cpu.get(Reg::R1)?, cpu.get(Reg::R2)?, cpu.get(Reg::R3)?, cpu.get(Reg::R4)?, cpu.get(Reg::R5)?])
}

/// `struct xdp_md` in a test run: the packet came in on the loopback device.
fn xdp_context() -> Vec<u8> {
    let mut context = vec![0; 24];
    context[12] = 1;
    context
}

/// `struct __sk_buff` of a classifier in a test run (`net/bpf/test_run.c`, `eth_type_trans`).
fn skb_context(packet: &[u8]) -> Vec<u8> {
    const LEN: usize = 0;
    const PKT_TYPE: usize = 4;
    const PROTOCOL: usize = 16;
    const IFINDEX: usize = 40;
    const MULTICAST: u32 = 2;
    const OTHER_HOST: u32 = 3;
    let mut context = vec![0; SKB_BYTES];
    let mut put = |at: usize, v: u32| context[at..at + 4].copy_from_slice(&v.to_le_bytes());
    put(LEN, packet.len() as u32);
    put(IFINDEX, 1);
    if let Some(header) = packet.first_chunk::<ETH_HLEN>() {
        let to = &header[..6];
        // The loopback device's own and broadcast address are zero.
        let pkt_type = match to {
            [0, 0, 0, 0, 0, 0] => 0,
            [first, ..] if first & 1 == 1 => MULTICAST,
            _ => OTHER_HOST,
        };
        put(PKT_TYPE, pkt_type);
        let wire = [header[12], header[13]];
        let protocol = match u16::from_be_bytes(wire) {
            0x600.. => wire,
            _ if packet.get(14..16) == Some(&[0xff, 0xff]) => [0, 1],
            _ => [0, 4],
        };
        put(PROTOCOL, u32::from(u16::from_le_bytes(protocol)));
    }
    context
}

impl Host for KernelHost {
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
        Ok(u64::from_le_bytes(bytes))
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
