//! The two programs of the tester, in assembly: one sends at a given rate, the other receives and measures.
//!
//! The one idea: nothing of user space stands in the way of a packet. The sender is a test run with live frames, whose
//! every run either sends a frame or, when none is due, drops it; the receiver counts, and looks for the clock that
//! the sender has written into the first packet of each burst.

use std::fmt::Write as _;

use bpf_assembly::{Map, Surroundings, functions, object};

/// Packets of a burst: as many as the kernel's own queue takes before it hands them over (`DEV_MAP_BULK_SIZE`).
pub const BURST: u32 = 16;
/// Nanoseconds that a bucket of latencies stands for.
pub const BUCKET: u64 = 64;
/// Buckets; the last one has all that is later.
pub const BUCKETS: u32 = 1 << 15;
/// Words of the sender's state: when the next burst is due, nanoseconds from burst to burst, packets left in this one, sent, the clock
/// of this burst.
pub const SENDER_WORDS: usize = 5;
/// What a burst may be late, in nanoseconds. Later ones are left out: the sender had been away.
const LATE: u32 = 100_000;

/// `BPF_F_MMAPABLE` of `linux/bpf.h`.
const MAPPED: u32 = 1 << 10;

/// Before a clock in a packet, to tell it from other bytes: eight bytes.
pub const MARK: u64 = 0x6c6f_6164_7465_7374;

/// The object with the sender, `main`, and its map `state`: packets go out of `device` as they are here, with the clock
/// at `stamp`, after the mark; 0 for a packet that is not the first of its burst.
///
/// # Errors
/// If the packet is longer than offsets go.
pub fn sender(packet: &[u8], stamp: usize, device: u32) -> Result<Vec<u8>, String> {
    let mut text = format!(
        "    r6 = r1
    r0 = 0
{}    r7 = r0
    r8 = *(u64 *)(r7 + 16)
    if r8 != 0 goto send
    call bpf_ktime_get_ns
    r1 = *(u64 *)(r7 + 0)
    if r0 < r1 goto nothing
    r2 = *(u64 *)(r7 + 8)
    r1 += r2
    r3 = r1
    r3 += {LATE}
    if r3 > r0 goto in_time
    r1 = r0
in_time:
    *(u64 *)(r7 + 0) = r1
    *(u64 *)(r7 + 32) = r0
    r8 = {BURST}
send:
    r8 += -1
    *(u64 *)(r7 + 16) = r8
    r1 = *(u64 *)(r7 + 24)
    r1 += 1
    *(u64 *)(r7 + 24) = r1
    r2 = *(u32 *)(r6 + 0)
    r3 = *(u32 *)(r6 + 4)
    r4 = r2
    r4 += {}
    if r4 > r3 goto nothing
",
        element("state", "nothing"),
        packet.len()
    );
    // The frame comes back as the programs before have left it: all of it is written anew.
    for (i, bytes) in packet.chunks(4).enumerate() {
        let at = 4 * i;
        if let Ok(word) = bytes.try_into().map(i32::from_le_bytes) {
            let _ = writeln!(text, "    *(u32 *)(r2 + {at}) = {word}");
        } else {
            for (k, byte) in bytes.iter().enumerate() {
                let _ = writeln!(text, "    *(u8 *)(r2 + {}) = {byte}", at + k);
            }
        }
    }
    let _ = write!(
        text,
        "    r1 = {MARK} ll
    *(u64 *)(r2 + {}) = r1
    r1 = *(u64 *)(r7 + 32)
    *(u64 *)(r2 + {stamp}) = r1
    *(u64 *)(r7 + 32) = 0
    r1 = {device}
    r2 = 0
    call bpf_redirect
    exit
nothing:
    r0 = 1
    exit
",
        stamp - 8
    );
    assembled(&text, &[&format!("state array 4 {} 1 flags {MAPPED}", 8 * SENDER_WORDS)])
}

/// The object with the receiver, `main`, its map `received` (one word) and its map `latency` ([`BUCKETS`] words). The clock stands at
/// `stamp` of what comes; all is dropped.
///
/// # Errors
/// As above.
pub fn receiver(stamp: usize) -> Result<Vec<u8>, String> {
    let text = format!(
        "    r6 = *(u32 *)(r1 + 0)
    r2 = *(u32 *)(r1 + 4)
    r3 = r6
    r3 += {end}
    if r3 > r2 goto out
    r1 = *(u64 *)(r6 + {mark_at})
    r2 = {MARK} ll
    if r1 != r2 goto out
    r7 = *(u64 *)(r6 + {stamp})
    r0 = 0
{received}    if r7 == 0 goto out
    call bpf_ktime_get_ns
    r0 -= r7
    r0 >>= {shift}
    if r0 < {BUCKETS} goto fits
    r0 = {last}
fits:
{latency}out:
    r0 = 1
    exit
",
        received = counted("received", "out"),
        latency = counted("latency", "out"),
        end = stamp + 8,
        mark_at = stamp - 8,
        shift = BUCKET.ilog2(),
        last = BUCKETS - 1,
    );
    assembled(
        &text,
        &[&format!("received array 4 8 1 flags {MAPPED}"), &format!("latency array 4 8 {BUCKETS} flags {MAPPED}")],
    )
}

/// The address of a map's element in r0; its number is there before. Where there is none: on to `otherwise`.
fn element(map: &str, otherwise: &str) -> String {
    format!(
        "    *(u32 *)(r10 - 4) = r0
    r2 = r10
    r2 += -4
    r1 = {map} ll
    call bpf_map_lookup_elem
    if r0 == 0 goto {otherwise}
"
    )
}

/// One more in the element of a map.
fn counted(map: &str, otherwise: &str) -> String {
    element(map, otherwise)
        + "    r1 = *(u64 *)(r0 + 0)
    r1 += 1
    *(u64 *)(r0 + 0) = r1
"
}

fn assembled(text: &str, maps: &[&str]) -> Result<Vec<u8>, String> {
    let maps = maps.iter().map(|m| Map::parse(m)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let around = Surroundings { section: "xdp".into(), maps, ..Surroundings::default() };
    let code = functions(text, "xdp").map_err(|e| e.to_string())?;
    object(&around, &code).map_err(|e| e.to_string())
}
