//! The surroundings of a run: a network namespace with addresses, routes and sockets, and maps of every kind.
//!
//! A [`Lab`] belongs to one thread, which it moves to a network namespace of its own: whatever a helper sends or
//! redirects stays there and ends with it. `ip` (iproute2) sets up a pair of virtual devices; where it is missing,
//! recipes that need a route only see failures.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::process::{Command, Stdio};

use bpf_kernel::{Btf, KernelError, Map, ProgramType, RawOptions, RawProgram, own_network, software_event};

use crate::btf::Types;

/// What helpers that read user memory find at `$USER`.
static USER_MEMORY: [u8; 64] = *b"sixty-four bytes of user memory, with a zero right after this:\0!";

/// Set-up of the virtual devices. The neighbours are fixed, so that nothing is asked or sent on its own account.
const NETWORK: &[&str] = &[
    "link set lo up",
    "link add veth0 type veth peer name veth1",
    "link set veth0 address 02:00:00:00:00:01 up",
    "link set veth1 address 02:00:00:00:00:02 up",
    "addr add 10.0.0.1/24 dev veth0",
    "-6 addr add fd00::1/64 dev veth0 nodad",
    "neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent",
    "-6 neigh add fd00::2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent",
    "route add 10.1.0.0/16 via 10.0.0.2 dev veth0",
    "route add blackhole 10.2.0.0/16",
];

/// Switches of the namespace, under `/proc/sys/net`.
const SWITCHES: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/forwarding", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv4/tcp_syncookies", "2"),
];

/// Kernel functions that recipes call by `call kfunc $NAME`: that name, and the kernel's.
pub const KFUNCS: [(&str, &str); 4] = [
    ("TASKACQUIRE", "bpf_task_acquire"),
    ("TASKRELEASE", "bpf_task_release"),
    ("CGROUPFROMID", "bpf_cgroup_from_id"),
    ("CGROUPRELEASE", "bpf_cgroup_release"),
];

/// A prepared namespace with its sockets, and the numbers recipes refer to as `$NAME`.
#[derive(Debug)]
pub struct Lab {
    numbers: BTreeMap<&'static str, i64>,
    tcp: TcpListener,
    _connected: Option<(TcpStream, TcpStream)>,
    _udp: Option<UdpSocket>,
    cgroup: Option<File>,
    /// What could not be set up.
    pub missing: Vec<String>,
}

impl Lab {
    /// Moves this thread to a new network namespace and prepares it.
    ///
    /// # Errors
    /// The namespace or the first socket is refused.
    pub fn enter() -> Result<Lab, KernelError> {
        own_network()?;
        let mut missing = Vec::new();
        for line in NETWORK {
            let status = Command::new("ip").args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !status.is_ok_and(|s| s.success()) {
                missing.push(format!("ip {line}"));
            }
        }
        for (switch, value) in SWITCHES {
            if std::fs::write(format!("/proc/sys/net/{switch}"), value).is_err() {
                missing.push(format!("/proc/sys/net/{switch}"));
            }
        }
        let refused = |source| KernelError::Refused { operation: "listening on 127.0.0.1:8080".into(), source };
        let tcp = TcpListener::bind("127.0.0.1:8080").map_err(refused)?;
        let connected = TcpStream::connect("127.0.0.1:8080").and_then(|c| Ok((c, tcp.accept()?.0))).ok();
        let udp = UdpSocket::bind("127.0.0.1:8080").ok();
        let cgroup = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .iter()
            .find(|d| std::fs::metadata(format!("{d}/cgroup.procs")).is_ok() && is_cgroup2(d))
            .and_then(|d| File::open(d).ok());
        if cgroup.is_none() {
            missing.push("a cgroup2 hierarchy".into());
        }
        let mut lab = Lab { numbers: BTreeMap::new(), tcp, _connected: connected, _udp: udp, cgroup, missing };
        lab.number_things();
        Ok(lab)
    }

    fn number_things(&mut self) {
        let index = |name: &str| {
            let text = Command::new("ip").args(["-o", "link", "show", name]).output().ok()?.stdout;
            String::from_utf8_lossy(&text).split(':').next()?.trim().parse::<i64>().ok()
        };
        self.numbers.insert("LO", 1);
        self.numbers.insert("VETH", index("veth0").unwrap_or(1));
        self.numbers.insert("USER", USER_MEMORY.as_ptr() as i64);
        let client = self._connected.as_ref().and_then(|(c, _)| c.local_addr().ok()).map_or(0, |a| a.port());
        self.numbers.insert("CLIENTPORT", i64::from(client.to_be()));
        if let Ok(ns) = std::fs::metadata("/proc/self/ns/pid") {
            self.numbers.insert("NSDEV", ns.st_dev() as i64);
            self.numbers.insert("NSINO", ns.st_ino() as i64);
        }
        let functions = KFUNCS.iter().map(|(name, of)| (*name, *of, 12));
        for (name, of, kind) in [("TASK", "task_struct", 4)].into_iter().chain(functions) {
            match bpf_kernel::kernel_type_id(of, kind) {
                Ok(id) => drop(self.numbers.insert(name, i64::from(id))),
                Err(e) => self.missing.push(format!("{e}: {}", e.source().map_or(String::new(), |s| s.to_string()))),
            }
        }
    }

    /// The number behind `$name`.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.numbers.get(name).copied()
    }
}

/// cgroup2 directories have this file, those of version 1 have not.
fn is_cgroup2(folder: &str) -> bool {
    std::fs::metadata(format!("{folder}/cgroup.controllers")).is_ok()
}

/// Maps of one run, made when a recipe first names them.
#[derive(Debug, Default)]
pub struct Maps {
    maps: BTreeMap<String, Map>,
    /// What maps refer to, kept open while they live.
    keep: Vec<OwnedFd>,
    programs: Vec<RawProgram>,
    inner: Vec<Map>,
}

/// The contents of a map: key and value of each element. `None` where user space cannot list them.
pub type Snapshot = Option<Vec<(Vec<u8>, Vec<u8>)>>;

/// `BPF_F_ZERO_SEED`: callbacks see the elements of two such maps in the same order.
const ZERO_SEED: u32 = 1 << 6;

/// Length, number of elements and flags of the plain maps: name, type, key, value, elements, `BPF_F_*`.
const PLAIN: &[(&str, u32, u32, u32, u32, u32)] = &[
    ("hash", 1, 4, 8, 4, ZERO_SEED),
    ("array", 2, 4, 64, 4, 0),
    ("bystander", 2, 4, 64, 1, 0),
    ("data", 2, 4, 64, 1, 0),
    ("strings", 2, 4, 256, 1, 1 << 7),
    ("progs", 3, 4, 4, 4, 0),
    ("perf", 4, 4, 4, 2, 0),
    ("percpu_hash", 5, 4, 8, 4, ZERO_SEED),
    ("percpu_array", 6, 4, 8, 4, 0),
    ("stacks", 7, 4, 128, 16, 0),
    ("buildid_stacks", 7, 4, 160, 16, 1 << 5),
    ("cgroups", 8, 4, 4, 2, 0),
    ("lru", 9, 4, 8, 16, ZERO_SEED),
    ("lru_percpu", 10, 4, 8, 16, ZERO_SEED),
    ("lpm", 11, 8, 8, 4, 1),
    ("devmap", 14, 4, 4, 4, 0),
    ("sockmap", 15, 4, 8, 4, 0),
    ("cpumap", 16, 4, 4, 4, 0),
    ("xskmap", 17, 4, 4, 4, 0),
    ("sockhash", 18, 4, 8, 4, 0),
    ("cgroup_storage", 19, 8, 8, 0, 0),
    ("reuseport", 20, 4, 8, 4, 0),
    ("percpu_cgroup_storage", 21, 8, 8, 0, 0),
    ("queue", 22, 0, 8, 2, 0),
    ("addresses", 22, 0, 8, 2, 0),
    ("stack", 23, 0, 8, 2, 0),
    ("devmap_hash", 25, 4, 4, 4, 0),
    ("ringbuf", 27, 0, 0, 4096, 0),
    ("bloom", 30, 0, 8, 16, 0),
    ("user_ringbuf", 31, 0, 0, 4096, 0),
];

/// What a map without types is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Room.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// Its values are maps of the shape [`INNER`].
    pub of_maps: bool,
}

/// Maps inside maps.
pub const INNER: Shape = Shape { map_type: 2, key_size: 4, value_size: 8, max_entries: 2, flags: 0, of_maps: false };

/// Maps of maps: name and type.
const OUTER: [(&str, u32); 2] = [("array_of_maps", 12), ("hash_of_maps", 13)];

/// The shape of the map of this name. Of typed maps only storage of kernel objects: any type without pointers will do
/// for it.
pub fn shape(name: &str) -> Option<Shape> {
    let storage = TYPED.iter().filter(|m| m.0.ends_with("_storage"));
    let flat =
        PLAIN.iter().chain(storage).find(|m| m.0 == name).map(|&(_, map_type, key, value, max_entries, flags)| Shape {
            map_type,
            key_size: key,
            value_size: value,
            max_entries,
            flags,
            of_maps: false,
        });
    let outer = || {
        let map_type = OUTER.iter().find(|m| m.0 == name)?.1;
        Some(Shape { map_type, key_size: 4, value_size: 4, max_entries: 4, flags: 0, of_maps: true })
    };
    flat.or_else(outer)
}

/// Contents of the map `strings`.
pub fn strings() -> [u8; 256] {
    let mut text = [0; 256];
    for (i, s) in STRINGS.iter().enumerate() {
        text[i * 32..i * 32 + s.len()].copy_from_slice(s.as_bytes());
    }
    text
}

/// Puts into a map what the map of this name holds in a laboratory, as far as the kernel lets it.
///
/// # Errors
/// The kernel's refusal.
pub fn furnish(name: &str, map: &Map, lab: &Lab) -> Result<(), KernelError> {
    let mut maps = Maps::default();
    if OUTER.iter().any(|m| m.0 == name) {
        maps.inner.push(INNER.create(None)?);
    }
    // The map keeps what it refers to.
    maps.fill(name, map, lab)
}

impl Shape {
    fn create(&self, inner: Option<&Map>) -> Result<Map, KernelError> {
        Map::create_with(self.map_type, self.key_size, self.value_size, self.max_entries, self.flags, inner)
    }
}

/// Constant strings in the frozen map `strings`, each at a multiple of 32 bytes.
const STRINGS: [&str; 6] = ["%d and %s\0", "abcdef\0", "plain\0", "%pK %llx\0", "%q\0", "abc\0"];

/// Type information of all programs and typed maps: one set for all.
#[derive(Debug)]
pub struct TypeSet {
    /// In the kernel.
    pub btf: Btf,
    /// A static function of one context pointer: the main program.
    pub main: u32,
    /// A static function of four words: any callback.
    pub callback: u32,
    int: u32,
    lock: u32,
    timer: u32,
    kptr: u32,
    plain: u32,
}

impl TypeSet {
    /// Makes it and loads it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn load() -> Result<TypeSet, bpf_kernel::Rejection> {
        let mut t = Types::default();
        let int = t.int("int", 4);
        let long = t.int("long", 8);
        let void = t.pointer(0);
        let callback = t.function("callback", int, &[void, void, void, void]);
        let main = t.function("main", int, &[void]);
        let spin = t.structure("bpf_spin_lock", 4, &[("val", int, 0)]);
        let lock = t.structure("locked", 16, &[("lock", spin, 0), ("a", int, 32), ("b", long, 64)]);
        let opaque = t.structure("bpf_timer", 16, &[("x", long, 0), ("y", long, 64)]);
        let timer = t.structure("timed", 24, &[("timer", opaque, 0), ("a", long, 128)]);
        let task = t.structure("task_struct", 8, &[]);
        let tagged = t.tag("kptr", task);
        let pointer = t.pointer(tagged);
        let kptr = t.structure("holder", 16, &[("task", pointer, 0), ("a", long, 64)]);
        let plain = t.structure("plain", 8, &[("a", long, 0)]);
        let btf = Btf::load(&t.encode())?;
        Ok(TypeSet { btf, main, callback, int, lock, timer, kptr, plain })
    }
}

/// Maps with types: name, type, key, value, elements, flags. The value's type follows from the name.
const TYPED: &[(&str, u32, u32, u32, u32, u32)] = &[
    ("locks", 2, 4, 16, 1, 0),
    ("timers", 2, 4, 24, 1, 0),
    ("kptrs", 2, 4, 16, 1, 0),
    ("sk_storage", 24, 4, 8, 0, 1),
    ("inode_storage", 28, 4, 8, 0, 1),
    ("task_storage", 29, 4, 8, 0, 1),
    ("cgrp_storage", 32, 4, 8, 0, 1),
];

impl Maps {
    /// The map of this name, made and filled if it is not there yet.
    ///
    /// # Errors
    /// No such name, or the kernel's refusal.
    pub fn get(&mut self, name: &str, lab: &Lab, types: &TypeSet) -> Result<&Map, KernelError> {
        if !self.maps.contains_key(name) {
            let map = self.create(name, types)?;
            self.fill(name, &map, lab)?;
            self.maps.insert(name.to_owned(), map);
        }
        Ok(&self.maps[name])
    }

    /// The name of a map there is no recipe for: what goes into the others.
    fn create(&mut self, name: &str, types: &TypeSet) -> Result<Map, KernelError> {
        if let Some(&(_, kind, key, value, entries, flags)) = TYPED.iter().find(|m| m.0 == name) {
            let value_type = match name {
                "locks" => types.lock,
                "timers" => types.timer,
                "kptrs" => types.kptr,
                _ => types.plain,
            };
            return Map::create_typed(kind, key, value, entries, flags, (&types.btf, types.int, value_type));
        }
        let Some(shape) = shape(name) else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(KernelError::Refused { operation: format!("no map is called {name}"), source });
        };
        if !shape.of_maps {
            return shape.create(None);
        }
        let inner = INNER.create(None)?;
        let map = shape.create(Some(&inner))?;
        self.inner.push(inner);
        Ok(map)
    }

    /// Element 1 (0 and 1 of arrays) holds a pattern; maps of descriptors get something to refer to.
    fn fill(&mut self, name: &str, map: &Map, lab: &Lab) -> Result<(), KernelError> {
        let one = 1u32.to_le_bytes();
        let zero = 0u32.to_le_bytes();
        let pattern = |n: usize| -> Vec<u8> { (0..n).map(|i| (i as u8).wrapping_mul(5) ^ 0xa5).collect() };
        match name {
            "hash" | "percpu_hash" | "lru" | "lru_percpu" | "percpu_array" | "array" | "bystander" | "data" => {
                let key = if name == "bystander" || name == "data" { zero } else { one };
                map.update(&key, &pattern(map.value_len()))
            }
            "strings" => {
                map.update(&zero, &strings())?;
                map.freeze()
            }
            "lpm" => map.update(&[24, 0, 0, 0, 10, 0, 0, 0], &pattern(8)),
            "queue" | "stack" | "bloom" => map.update(&[], &[1, 2, 3, 4, 5, 6, 7, 8]),
            "array_of_maps" | "hash_of_maps" => {
                let fd = self.inner.last().map_or(-1, Map::fd);
                map.update(&one, &fd.to_le_bytes())
            }
            "devmap" | "devmap_hash" => {
                let veth = lab.number("VETH").unwrap_or(1) as u32;
                map.update(&one, &veth.to_le_bytes())
            }
            "cpumap" => map.update(&one, &64u32.to_le_bytes()),
            "sockmap" | "sockhash" | "reuseport" => {
                // Without a listening socket there, lookups only fail; that is seen in the counts.
                let _ = map.update(&one, &(lab.tcp.as_raw_fd() as u64).to_le_bytes());
                Ok(())
            }
            "cgroups" => match &lab.cgroup {
                Some(folder) => map.update(&one, &folder.as_raw_fd().to_le_bytes()),
                None => Ok(()),
            },
            "perf" => {
                for (key, config) in [(zero, 10), (one, 0)] {
                    if let Ok(event) = software_event(config, 0) {
                        map.update(&key, &event.as_raw_fd().to_le_bytes())?;
                        self.keep.push(event);
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Puts a program that returns 77 into element 1 of `progs`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn fill_programs(&mut self, kind: ProgramType, options: &RawOptions) -> Result<(), KernelError> {
        let Some(map) = self.maps.get("progs") else { return Ok(()) };
        let code = [0xb7, 0, 0, 0, 77, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        if let Ok(program) = RawProgram::load(kind, &code, options) {
            use std::os::fd::AsFd;
            map.update(&1u32.to_le_bytes(), &program.as_fd().as_raw_fd().to_le_bytes())?;
            self.programs.push(program);
        }
        Ok(())
    }

    /// What all maps hold now.
    pub fn snapshot(&self) -> BTreeMap<String, Snapshot> {
        self.maps.iter().map(|(name, map)| (name.clone(), contents(map))).collect()
    }

    /// A map that was made.
    pub fn made(&self, name: &str) -> Option<&Map> {
        self.maps.get(name)
    }
}

/// Queues are looked at from their ends only.
fn contents(map: &Map) -> Snapshot {
    if map.key_size() == 0 {
        return map.lookup(&[]).ok().map(|v| v.map(|v| (Vec::new(), v)).into_iter().collect());
    }
    let mut entries = map.entries().ok()?;
    if [3, 12, 13].contains(&map.kind()) {
        // Maps and programs in maps are numbers that the kernel gives out.
        entries.iter_mut().for_each(|(_, value)| value.clear());
    }
    entries.sort();
    Some(entries)
}
