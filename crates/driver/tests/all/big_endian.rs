//! Objects for big-endian machines: the examples and `tests/big-endian`, compiled by clang for both byte orders, are optimized,
//! proven equal, and run in the interpreter beside what clang makes of the same source for a little-endian machine.

use std::path::{Path, PathBuf};

use bpf_driver::interpret::Program;
use bpf_driver::{Options, Report, Silent, optimize, verify};
use bpf_isa::{Endian, Insn, Size, Src, decode, encode};
use bpf_object::{ByteOrder, FuncId, FuncKind, Object, WriteOptions};
use bpf_testgen::c::Clang;
use bpf_testgen::random::Rng;

/// Sources by name, without those that only another source includes.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let of = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder of sources");
        entries.map(|e| e.expect("an entry").path()).filter(|p| p.extension().is_some_and(|e| e == "c"))
    };
    let programs = |p: &PathBuf| std::fs::read_to_string(p).is_ok_and(|text| text.contains("SEC(\""));
    let mut all: Vec<PathBuf> = of("examples").chain(of("tests/big-endian")).filter(programs).collect();
    all.sort();
    assert!(all.len() >= 14, "{all:?}");
    all
}

fn clang() -> Option<Clang> {
    let found = Clang::find();
    if found.is_none() {
        println!("skipped: there is no clang");
    }
    found
}

fn name(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn optimized(bytes: &[u8]) -> (Vec<u8>, Report) {
    let options = Options { rounds: Some(1), search: true, ssa: true, ..Options::default() };
    optimize(bytes, &options, &Silent).expect("it can be read")
}

fn slots(object: &Object) -> usize {
    object.functions().iter().map(|f| f.slots).sum()
}

#[test]
fn big_endian_objects_are_optimized_and_verify() {
    let Some(clang) = clang() else { return };
    let (mut before, mut after) = (0, 0);
    println!("{:<16} {:>6} {:>6}", "object", "slots", "after");
    for source in sources() {
        let name = name(&source);
        let bytes = clang.compile_file(&source, "bpfeb").expect("clang takes it");
        let object = Object::parse(bytes.clone()).expect("an object");
        assert_eq!(object.byte_order(), ByteOrder::Big, "{name}");
        assert!(object.write(&WriteOptions::default()).expect("it is written").bytes == bytes, "{name}: other bytes");
        let (result, report) = optimized(&bytes);
        let made = Object::parse(result.clone()).expect("what is written can be read");
        assert_eq!(made.byte_order(), ByteOrder::Big, "{name}");
        // No function is left alone for its byte order, and this kernel has no say.
        assert!(report.functions.iter().all(|f| f.untouched.is_none()), "{name}: {:?}", report.functions);
        if ByteOrder::HOST == ByteOrder::Little {
            assert!(report.notes.iter().any(|n| n.contains("the object is big-endian")), "{name}: {:?}", report.notes);
        }
        let verdict = verify(&bytes, &result, &Options::default()).expect("both can be read");
        assert!(verdict.is_equal(), "{name}: {verdict:?}");
        println!("{name:<16} {:>6} {:>6}", slots(&object), slots(&made));
        before += slots(&object);
        after += slots(&made);
    }
    println!("{:<16} {before:>6} {after:>6}", "total");
    assert!(after * 10 < before * 9, "{before} slots became {after}");
}

/// The object with one instruction changed as a confusion of byte orders would; nothing if there is none to change.
fn confused(object: &Object, f: FuncId, n: usize) -> Option<Vec<u8>> {
    let mut body = object.identity_body(f).expect("a function");
    let changed = |insn: Insn| {
        Some(match insn {
            Insn::Endian { kind: Endian::Le, bits, dst } => Insn::Endian { kind: Endian::Be, bits, dst },
            Insn::Endian { kind: Endian::Be, bits, dst } => Insn::Endian { kind: Endian::Le, bits, dst },
            Insn::Store { size: Size::H, base, off, src: Src::Imm(k) } => {
                let k = i32::from((k as i16).swap_bytes());
                Insn::Store { size: Size::H, base, off, src: Src::Imm(k) }
            }
            Insn::Store { size: Size::W, base, off, src: Src::Imm(k) } => {
                Insn::Store { size: Size::W, base, off, src: Src::Imm(k.swap_bytes()) }
            }
            // A number of the network, taken for the machine's.
            Insn::Jcc { cond, width, dst, src: Src::Imm(k @ 256..=0xffff), off } => {
                Insn::Jcc { cond, width, dst, src: Src::Imm(i32::from((k as u16).swap_bytes())), off }
            }
            // The byte at the other end of its word.
            Insn::Load { size: Size::B, sext, dst, base, off } => {
                Insn::Load { size: Size::B, sext, dst, base, off: off ^ 3 }
            }
            _ => return None,
        })
    };
    let mut candidates = body.iter_mut().filter_map(|insn| {
        let now = decode(&insn.bytes).ok()?.0;
        let new = changed(now).filter(|new| *new != now)?;
        Some((insn, new))
    });
    let (insn, new) = candidates.nth(n)?;
    insn.bytes.clear();
    encode(&new, &mut insn.bytes).expect("it has an encoding");
    let mut object = object.clone();
    object.set_body(f, body).expect("a body like the one before");
    Some(object.write(&WriteOptions::default()).expect("it is written").bytes)
}

#[test]
fn confusions_of_byte_orders_are_not_equal() {
    let Some(clang) = clang() else { return };
    let mut mutants = 0;
    for source in sources() {
        let bytes = clang.compile_file(&source, "bpfeb").expect("clang takes it");
        let object = Object::parse(bytes.clone()).expect("an object");
        for f in (0..object.functions().len()).map(FuncId) {
            for n in 0..4 {
                let Some(mutant) = confused(&object, f, n) else { break };
                let verdict = verify(&bytes, &mutant, &Options::default()).expect("both can be read");
                assert!(!verdict.is_equal(), "{}: change {n} of function {f:?} is called equal", name(&source));
                mutants += 1;
            }
        }
    }
    assert!(mutants > 20, "only {mutants} changes were tried");
}

/// A packet, mostly of IP, with other bytes here and there.
fn packet(r: &mut Rng) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..54 + r.below(40)).map(|_| r.next() as u8).collect();
    let kinds: [[u8; 2]; 4] = [[8, 0], [0x86, 0xdd], [0x81, 0], [8, 6]];
    let kind = if r.chance(2) { 0 } else { r.below(4) as usize };
    packet[12..14].copy_from_slice(&kinds[kind]);
    packet[14] = if packet[12] == 8 { 0x45 } else { 0x60 };
    packet[20..22].fill(0);
    // Hop limit or time to live.
    packet[if kind == 1 { 21 } else { 22 }] = r.below(4) as u8;
    packet[23] = if r.chance(2) { 17 } else { 6 };
    packet[26] = if r.chance(2) { 10 } else { 192 };
    packet
}

/// What a program returns, and the packet that it leaves, for packets one after the other, with its maps kept.
fn runs(bytes: &[u8], f: FuncId, packets: &[Vec<u8>]) -> Vec<Option<(u64, Vec<u8>)>> {
    let object = Object::parse(bytes.to_vec()).expect("an object");
    let program = Program::of(&object, f).expect("a program");
    let mut state = program.start();
    packets
        .iter()
        .map(|packet| {
            let (world, outcome) = program.run(packet, None, &state, 1 << 16);
            state = program.state(&world.host);
            // Of a structure that only some kernels have, nobody knows more.
            Some((outcome.ok()?.r0, world.host.packet().to_vec()))
        })
        .collect()
}

#[test]
fn programs_do_the_same_to_packets_on_machines_of_both_orders() {
    let Some(clang) = clang() else { return };
    let mut r = Rng::new(5);
    let packets: Vec<Vec<u8>> = (0..300).map(|_| packet(&mut r)).collect();
    let (mut compared, mut changed) = (0, 0);
    for source in sources().into_iter().filter(|s| s.parent().is_some_and(|p| p.ends_with("big-endian"))) {
        let [little, big] = ["bpfel", "bpfeb"].map(|t| clang.compile_file(&source, t).expect("clang takes it"));
        let (fast, _) = optimized(&big);
        let object = Object::parse(big.clone()).expect("an object");
        let programs = object.functions().iter().enumerate().filter(|(_, f)| f.kind == FuncKind::Program);
        for (n, f) in programs.filter(|(_, f)| f.section == "xdp" || f.section == "tc") {
            let [little, big, fast] = [&little, &big, &fast].map(|bytes| runs(bytes, FuncId(n), &packets));
            for (i, ((a, b), c)) in little.iter().zip(&big).zip(&fast).enumerate() {
                assert_eq!(a, b, "{}: little-endian against big-endian, packet {:02x?}", f.name, packets[i]);
                assert_eq!(b, c, "{}: original against optimized, packet {:02x?}", f.name, packets[i]);
                compared += usize::from(a.is_some());
                changed += usize::from(a.as_ref().is_some_and(|(_, after)| *after != packets[i]));
            }
        }
    }
    assert!(compared > 1_000 && changed > 150, "{compared} runs compared, {changed} of which change the packet");
}

#[test]
fn damaged_big_endian_objects_are_refused_or_come_back_as_they_were() {
    let Some(clang) = clang() else { return };
    let mut r = Rng::new(9);
    let (mut read, mut refused) = (0, 0);
    for source in sources() {
        let bytes = clang.compile_file(&source, "bpfeb").expect("clang takes it");
        for _ in 0..150 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + r.below(3) {
                let at = r.below(damaged.len() as u64) as usize;
                damaged[at] = r.next() as u8;
            }
            if r.chance(8) {
                damaged.truncate(r.below(damaged.len() as u64) as usize);
            }
            // Where it says that it is little-endian now, it is another file.
            match Object::parse(damaged.clone()) {
                Ok(object) => {
                    read += 1;
                    let written = object.write(&WriteOptions::default()).expect("nothing has changed").bytes;
                    assert!(written == damaged, "{}: other bytes", name(&source));
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}
