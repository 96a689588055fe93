//! Times of machine code, the interpreter and libpcap's `bpf_filter`, in one run: nanoseconds per packet, for each filter of
//! `filters.tsv` over the Ethernet packets of captures. `cargo run --release -p bpf-filter --example jit-times [FOLDER]`
//!
//! Rounds of the three alternate, so that what slows the machine slows all; the medians of rounds are printed.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bpf_filter::{Beside, Options, Packet, compile};
use libloading::{Library, Symbol};

/// `struct pcap_pkthdr` of a 64-bit system.
#[repr(C)]
struct Header {
    time: [i64; 2],
    captured: u32,
    length: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct Classic {
    length: c_uint,
    instructions: *mut c_void,
}

type Interpreter = unsafe extern "C" fn(*const c_void, *const u8, c_uint, c_uint) -> c_uint;

struct Captured {
    bytes: Vec<u8>,
    length: u32,
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()) {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
    found.sort();
}

/// The Ethernet packets of all captures that libpcap reads.
fn packets(pcap: &Library, folder: &Path) -> Vec<Captured> {
    let mut paths = Vec::new();
    files(folder, &mut paths);
    let mut all = Vec::new();
    // SAFETY: the signatures are those of pcap/pcap.h; handles are used between open and close; bytes are copied at once.
    unsafe {
        let open: Symbol<unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_void> =
            pcap.get(b"pcap_open_offline").expect("libpcap has it");
        let link: Symbol<unsafe extern "C" fn(*mut c_void) -> c_int> =
            pcap.get(b"pcap_datalink").expect("libpcap has it");
        let next: Symbol<unsafe extern "C" fn(*mut c_void, *mut *const Header, *mut *const u8) -> c_int> =
            pcap.get(b"pcap_next_ex").expect("libpcap has it");
        let close: Symbol<unsafe extern "C" fn(*mut c_void)> = pcap.get(b"pcap_close").expect("libpcap has it");
        for path in paths {
            let path = CString::new(path.to_string_lossy().as_bytes()).expect("a path");
            let mut error = [0 as c_char; 256];
            let handle = open(path.as_ptr(), error.as_mut_ptr());
            if handle.is_null() {
                continue;
            }
            let (mut header, mut bytes) = (std::ptr::null(), std::ptr::null());
            while link(handle) == 1 && next(handle, &mut header, &mut bytes) == 1 {
                let Header { captured, length, .. } = *header;
                let bytes = std::slice::from_raw_parts(bytes, captured as usize).to_vec();
                all.push(Captured { bytes, length });
            }
            close(handle);
        }
    }
    all
}

/// libpcap's program of a filter, optimized.
fn classic(pcap: &Library, text: &str) -> Result<Classic, String> {
    let text = CString::new(text).map_err(|e| e.to_string())?;
    // SAFETY: as above. The program is not freed.
    unsafe {
        let dead: Symbol<unsafe extern "C" fn(c_int, c_int) -> *mut c_void> =
            pcap.get(b"pcap_open_dead").expect("libpcap has it");
        let compile: Symbol<unsafe extern "C" fn(*mut c_void, *mut Classic, *const c_char, c_int, c_uint) -> c_int> =
            pcap.get(b"pcap_compile").expect("libpcap has it");
        let error: Symbol<unsafe extern "C" fn(*mut c_void) -> *const c_char> =
            pcap.get(b"pcap_geterr").expect("libpcap has it");
        let handle = dead(1, 262_144);
        let mut program = Classic { length: 0, instructions: std::ptr::null_mut() };
        if compile(handle, &mut program, text.as_ptr(), 1, 0xffff_ff00) != 0 {
            return Err(CStr::from_ptr(error(handle)).to_string_lossy().into_owned());
        }
        Ok(program)
    }
}

/// Nanoseconds per packet of one round.
fn round(packets: &[Captured], times: usize, mut f: impl FnMut(&Captured) -> bool) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        for packet in packets {
            black_box(f(black_box(packet)));
        }
    }
    start.elapsed().as_nanos() as f64 / (packets.len() * times) as f64
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    const ROUNDS: usize = 15;
    let folder = std::env::args().nth(1).map_or_else(|| PathBuf::from("../shared/filter"), PathBuf::from);
    // SAFETY: libpcap's initialization has no conditions.
    let pcap = match unsafe { Library::new("libpcap.so.0.8") } {
        Ok(pcap) => pcap,
        Err(e) => return println!("skipped: {e}"),
    };
    // SAFETY: the signature is that of pcap/bpf.h.
    let interpret: Symbol<Interpreter> = unsafe { pcap.get(b"bpf_filter") }.expect("libpcap has it");
    let packets = packets(&pcap, &folder.join("captures"));
    let text = std::fs::read_to_string(folder.join("filters.tsv")).expect("filters.tsv");
    println!("{} Ethernet packets, {ROUNDS} rounds; ns per packet (medians)", packets.len());
    println!("{:20} {:>9} {:>11} {:>9} {:>8} {:>7}", "filter", "libpcap", "interpreter", "JIT", "ratio", "bytes");
    for (name, text) in text.lines().filter_map(|l| l.split_once('\t')) {
        let options = Options { netmask: Some(0xffff_ff00), ..Options::default() };
        let filter = compile(text, &options).expect("a filter");
        let jit = filter.jit().expect("machine code");
        let classic = classic(&pcap, text);
        let packet = |p: &Captured| -> bool {
            jit.run(&Packet { captured: &p.bytes, length: p.length, beside: Beside::default() })
        };
        let [mut theirs, mut ours, mut interpreted] = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            if let Ok(c) = &classic {
                theirs.push(round(&packets, 2, |p| {
                    // SAFETY: the program is libpcap's, the packet has so many bytes.
                    unsafe { interpret(c.instructions, p.bytes.as_ptr(), p.length, p.bytes.len() as c_uint) != 0 }
                }));
            }
            ours.push(round(&packets, 4, packet));
            interpreted.push(round(&packets, 1, |p| {
                filter.count(&Packet { captured: &p.bytes, length: p.length, beside: Beside::default() }).accepted
            }));
        }
        let (ours, interpreted) = (median(ours), median(interpreted));
        let theirs = if theirs.is_empty() { f64::NAN } else { median(theirs) };
        println!("{name:20} {theirs:9.2} {interpreted:11.2} {ours:9.2} {:8.2} {:7}", theirs / ours, jit.code().len());
    }
}
