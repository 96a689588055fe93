//! Lane `helpers`: its programs load, repeat, show a wrong optimizer, and agree with the right one.

use std::path::Path;
use std::time::{Duration, Instant};

use bpf_driver::Options;
use bpf_kernel::testing::available;
use bpf_object::{FuncId, Object, WriteOptions};
use bpf_soak::finds::{Optimizer, REAL};
use bpf_soak::helpers::HelpersLane;
use bpf_soak::{Lane, Tally};

/// The lane, where it can run.
fn lane(optimizer: Optimizer, keep: &Path) -> Option<HelpersLane> {
    available(HelpersLane::of(optimizer, keep))
}

#[test]
fn optimized_programs_that_call_helpers_do_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut lane) = lane(REAL, folder.path()) else { return };
    let (started, mut tally, mut index) = (Instant::now(), Tally::default(), 0);
    while tally.counts.get("programs").is_none_or(|n| *n < 12) {
        lane.unit(1, index, &mut tally);
        index += 1;
        assert!(started.elapsed() < Duration::from_secs(60), "too slow: {:?}", tally.counts);
    }
    println!("{:?} in {:.1} s", tally.counts, started.elapsed().as_secs_f64());
    let wrong: Vec<&str> = tally.disagreements.iter().map(|d| d.what.as_str()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all: u64 = tally.counts.iter().filter(|(what, _)| what.starts_with("programs")).map(|(_, n)| n).sum();
    let refused = tally.counts.get("programs that the kernel refuses").copied().unwrap_or(0);
    assert!(refused * 10 < all * 3, "most programs must load: {tally:?}");
    assert_eq!(tally.counts.get("programs that cannot be assembled"), None);
    let called: usize = tally.names.values().map(|names| names.len()).sum();
    assert!(called >= 12, "most programs call other helpers: {tally:?}");
}

#[test]
fn equal_seeds_give_equal_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(mut a), Some(mut b)) = (lane(REAL, folder.path()), lane(REAL, folder.path())) else { return };
    let listing = |lane: &mut HelpersLane, seed, n| lane.listing(seed, 3, n).expect("a listing");
    // What one lane has asked the kernel before changes nothing.
    let _ = listing(&mut a, 9, 5);
    for n in 0..3 {
        assert_eq!(listing(&mut a, 1, n), listing(&mut b, 1, n));
    }
    assert_ne!(listing(&mut a, 1, 0), listing(&mut a, 2, 0));
}

/// Changes every function by its instructions' bytes.
fn with_changed_bodies(object: &[u8], change: impl Fn(&mut [Vec<u8>])) -> Result<Vec<u8>, String> {
    let mut object = Object::parse(object.to_vec()).map_err(|e| e.to_string())?;
    for f in (0..object.functions().len()).map(FuncId) {
        let mut body = object.identity_body(f).map_err(|e| e.to_string())?;
        let mut bytes: Vec<Vec<u8>> = body.iter().map(|i| i.bytes.clone()).collect();
        change(&mut bytes);
        for (insn, bytes) in body.iter_mut().zip(bytes) {
            insn.bytes = bytes;
        }
        object.set_body(f, body).map_err(|e| e.to_string())?;
    }
    object.write(&WriteOptions::default()).map(|w| w.bytes).map_err(|e| e.to_string())
}

/// Frame bytes that a load from r10, or a store to it, is about: offset and length.
fn frame_access(insn: &[u8], store: bool) -> Option<(i16, i16)> {
    let (class, mode, registers) = (insn[0] & 7, insn[0] & 0xe0, insn[1]);
    let base = if store { registers & 15 } else { registers >> 4 };
    let wanted = if store { matches!(class, 2 | 3) } else { class == 1 };
    let length = match insn[0] & 0x18 {
        0 => 4,
        8 => 2,
        0x10 => 1,
        _ => 8,
    };
    (wanted && mode == 0x60 && base == 10).then(|| (i16::from_le_bytes([insn[2], insn[3]]), length))
}

/// An optimizer that takes a frame store for dead if no instruction loads what it left: as if no helper read the frame.
fn blind_to_helpers(object: &[u8], _: &Options) -> Result<Vec<u8>, String> {
    with_changed_bodies(object, |body| {
        let loads: Vec<(i16, i16)> = body.iter().filter_map(|i| frame_access(i, false)).collect();
        for insn in body.iter_mut() {
            let dead = frame_access(insn, true)
                .is_some_and(|(at, length)| loads.iter().all(|(l, n)| at + length <= *l || l + n <= at));
            if dead {
                // `goto +0`
                insn.copy_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
            }
        }
    })
}

/// Whether a jump (not a call, not an exit) leads back.
fn jumps_back(insn: &[u8]) -> bool {
    matches!(insn[0] & 7, 5 | 6) && !matches!(insn[0] & 0xf0, 0x80 | 0x90) && insn[3] & 0x80 != 0
}

/// An optimizer that takes what a frame store of a number left for what is there after the calls that follow. It knows
/// better than to do so in loops.
fn forwards_over_calls(object: &[u8], _: &Options) -> Result<Vec<u8>, String> {
    with_changed_bodies(object, |body| {
        if body.iter().any(|insn| jumps_back(insn)) {
            return;
        }
        let mut known: Vec<(i16, i16, i32)> = vec![];
        for insn in body.iter_mut() {
            if let Some((at, length)) = frame_access(insn, true) {
                known.retain(|(k, n, _)| at + length <= *k || k + n <= at);
                if insn[0] & 7 == 2 {
                    known.push((at, length, i32::from_le_bytes([insn[4], insn[5], insn[6], insn[7]])));
                }
            }
            let found = frame_access(insn, false).and_then(|(at, length)| {
                known.iter().find(|(k, n, _)| (*k, *n) == (at, length)).map(|(_, _, value)| (*value, length))
            });
            if let Some((value, length)) = found {
                let value = match length {
                    1 => value & 0xff,
                    2 => value & 0xffff,
                    _ => value,
                };
                // `rN = value`, `wN = value` for four bytes
                insn[0] = if length == 4 { 0xb4 } else { 0xb7 };
                insn[1] &= 15;
                insn[2..4].fill(0);
                insn[4..8].copy_from_slice(&value.to_le_bytes());
            }
        }
    })
}

/// The listing of the first find.
fn first_find(optimizer: Optimizer) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lane = lane(optimizer, folder.path())?;
    let (mut tally, mut index) = (Tally::default(), 0);
    while tally.disagreements.is_empty() {
        lane.unit(1, index, &mut tally);
        index += 1;
        assert!(index < 20, "not found: {:?}", tally.counts);
    }
    let find = folder.path().join(format!("helpers-1-{}", tally.disagreements[0].index));
    assert!(find.join("before.o").exists() && find.join("after.o").exists());
    Some(std::fs::read_to_string(find.join("find.s")).expect("it is kept"))
}

#[test]
fn a_dropped_store_that_only_a_helper_reads_is_found_and_shrunk() {
    let Some(listing) = first_find(blind_to_helpers) else { return };
    assert!(listing.contains("call ") && listing.lines().count() < 70, "not shrunk:\n{listing}");
}

#[test]
fn a_value_forwarded_over_a_call_that_changes_it_is_found_and_shrunk() {
    let Some(listing) = first_find(forwards_over_calls) else { return };
    assert!(listing.contains("call ") && listing.lines().count() < 70, "not shrunk:\n{listing}");
}
