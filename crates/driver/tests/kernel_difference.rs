//! Original against optimized, in the running kernel: the same packets, the same results.
//!
//! This asks nobody in this project: both objects are loaded, every program that the kernel can run on
//! a packet gets random and protocol-shaped ones, and return value, packet and maps are compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bpf_driver::{Options, Silent, optimize};
use bpf_isa::{Call, Insn};
use bpf_kernel::{LoadOptions, LoadedObject, permitted};
use bpf_object::{FuncId, Object};

/// Packets per program in `make test`; `BPF_OPT_PACKETS` asks for more.
const PACKETS: u64 = 300;

fn objects() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["examples", "../shared/bench/k2", "../shared/bench/public"]
        .iter()
        .flat_map(|d| std::fs::read_dir(root.join(d)).into_iter().flatten().flatten())
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect()
}

/// A small generator: the same packets in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Ethernet, perhaps VLAN, then IPv4, IPv6 or noise, then TCP, UDP, ICMP or noise.
fn packet(r: &mut Random) -> Vec<u8> {
    let mut p: Vec<u8> = (0..12).map(|_| r.next() as u8).collect();
    for _ in 0..r.below(3).saturating_sub(1) {
        p.extend([0x81, 0x00, r.next() as u8, r.next() as u8]);
    }
    let protocol = [6u8, 17, 1, 4, 58, r.next() as u8][r.below(6) as usize];
    match r.below(5) {
        0 | 1 => {
            let options = if r.below(4) == 0 { r.below(11) as u8 } else { 0 };
            p.extend([0x08, 0x00, 0x45 + options, r.next() as u8]);
            let fragment = if r.below(4) == 0 { r.next() as u8 } else { 0 };
            p.extend([0, 60, r.next() as u8, r.next() as u8, fragment, 0, r.below(3) as u8, protocol]);
            p.extend((0..10 + usize::from(options) * 4).map(|_| r.next() as u8));
        }
        2 | 3 => {
            p.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, r.below(3) as u8]);
            p.extend((0..32).map(|_| r.next() as u8));
        }
        _ => p.extend([r.next() as u8, r.next() as u8]),
    }
    p.extend((0..r.below(60)).map(|_| r.next() as u8));
    if r.below(4) == 0 {
        let cut = 14 + r.below(p.len() as u64 - 13) as usize;
        p.truncate(cut);
    }
    p
}

/// Hash, array, their per-CPU and LRU forms, and LPM trie (`enum bpf_map_type`).
const VALUE_MAPS: [u32; 7] = [1, 2, 5, 6, 9, 10, 11];

/// Keys, and values in lanes of eight bytes.
type Entries = Vec<(Vec<u8>, Vec<u64>)>;

/// Map contents, comparable between two objects: of per-CPU values the sum over the CPUs.
fn contents(object: &LoadedObject) -> Vec<(String, Entries)> {
    let mut all = Vec::new();
    for map in object.maps().expect("the maps") {
        // Frozen and special maps cannot be listed; they hold nothing programs write.
        let Ok(entries) = map.entries() else { continue };
        // Plain values only: program arrays and maps of maps hold identifiers. Huge maps take too long.
        if !VALUE_MAPS.contains(&map.kind()) || map.max_entries() > 4096 {
            continue;
        }
        let lane = |v: &[u8]| -> Vec<u64> {
            let mut sums = vec![0u64; (map.value_size() as usize).div_ceil(8)];
            let step = (map.value_size() as usize).div_ceil(8) * 8;
            for cpu in v.chunks(step) {
                for (s, c) in sums.iter_mut().zip(cpu.chunks(8)) {
                    let mut b = [0; 8];
                    b[..c.len()].copy_from_slice(c);
                    *s = s.wrapping_add(u64::from_le_bytes(b));
                }
            }
            sums
        };
        let mut list: Entries = entries.iter().map(|e| (e.0.clone(), lane(&e.1))).collect();
        list.sort();
        all.push((map.name().to_string(), list));
    }
    all.sort();
    all
}

/// Whether the object calls for the time or a random number, which no two runs get alike.
fn asks_the_clock(input: &[u8]) -> bool {
    let object = Object::parse(input.to_vec()).expect("it was optimized");
    (0..object.functions().len()).any(|i| {
        let code = bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default();
        code.iter().any(|(_, insn)| matches!(insn, Insn::Call(Call::Helper(5 | 7 | 118 | 125 | 160 | 208))))
    })
}

#[test]
fn optimized_programs_do_the_same_in_the_kernel() {
    if let Err(e) = permitted().require() {
        assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "{e}");
        eprintln!("skipped: {e}");
        return;
    }
    let packets = std::env::var("BPF_OPT_PACKETS").ok().and_then(|s| s.parse().ok()).unwrap_or(PACKETS);
    let (mut programs, mut runs) = (0, 0u64);
    for path in objects() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let input = std::fs::read(&path).expect("it is there");
        let (Ok(old), true) = (LoadedObject::load(&input, &LoadOptions::default()), input.len() < 1 << 20) else {
            continue;
        };
        let options = Options { time_limit: Duration::from_secs(5), jobs: 2, ..Options::default() };
        let (output, _) = optimize(&input, &options, &Silent).expect("it is optimized");
        let new = LoadedObject::load(&output, &LoadOptions::default()).expect("what loaded still loads");
        if asks_the_clock(&input) {
            continue;
        }
        for p in old.programs() {
            let mut r = Random(0x9e37_79b9_7f4a_7c15);
            let mut ran = 0u64;
            for i in 0..packets {
                let data = packet(&mut r);
                let (Ok(a), Ok(b)) = (old.test_run(&p.name, &data, None, 1), new.test_run(&p.name, &data, None, 1))
                else {
                    // Not a program that runs on packets, or one that random input drives elsewhere.
                    continue;
                };
                ran += 1;
                assert_eq!(a.retval, b.retval, "{name}: {}: packet {i}: {data:02x?}", p.name);
                assert_eq!(a.data_out, b.data_out, "{name}: {}: packet {i}: {data:02x?}", p.name);
            }
            programs += u32::from(ran > 0);
            runs += ran;
        }
        assert_eq!(contents(&old), contents(&new), "{name}: the maps differ");
    }
    eprintln!("{programs} programs, {runs} packets each way");
    assert!(runs >= packets, "no program ran");
}
