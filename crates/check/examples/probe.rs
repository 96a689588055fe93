//! Asks the running kernel which context fields and helpers each program type has, and prints the tables of `bpf_platform::permissions`.
//!
//! `cargo run --release -p bpf-check --example probe -- context > crates/platform/src/permissions/context.tsv`, the same with
//! `helpers`. Every line is the verifier's own answer to a program of three instructions; nothing is attached.

use std::collections::BTreeMap;

use bpf_kernel::{ProgramType, RawOptions, RawProgram};

/// `enum bpf_prog_type` and `enum bpf_attach_type` of what is asked about, with the name used in the tables.
const TYPES: &[(u32, u32)] = &[
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 37),
    (6, 33),
    (7, 0),
    (8, 0),
    (8, 1),
    (9, 2),
    (9, 12),
    (9, 13),
    (9, 34),
    (10, 0),
    (11, 0),
    (12, 0),
    (13, 3),
    (14, 4),
    (15, 6),
    (16, 7),
    (17, 0),
    (18, 8),
    (18, 9),
    (18, 10),
    (18, 11),
    (18, 14),
    (18, 15),
    (18, 19),
    (18, 20),
    (18, 29),
    (18, 30),
    (18, 31),
    (18, 32),
    (19, 0),
    (21, 39),
    (22, 17),
    (23, 18),
    (24, 0),
    (25, 21),
    (25, 22),
    (30, 36),
    (31, 0),
    (32, 45),
];

fn ask(kind: u32, attach: u32, insns: &[u64], license: &str, level: u32) -> Result<String, String> {
    let code: Vec<u8> = insns.iter().flat_map(|i| i.to_le_bytes()).collect();
    let flags = if kind == 31 { 1 << 4 } else { 0 };
    let options = RawOptions { license: license.to_owned(), expected_attach_type: attach, log_level: level, flags };
    match RawProgram::load(ProgramType(kind), &code, &options) {
        Ok(p) => Ok(p.log().to_owned()),
        Err(e) => Err(e.log),
    }
}

const EXIT: u64 = 0x95;
const ONE: u64 = 0x1_0000_00b7;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("context") => context(),
        Some("helpers") => helpers(),
        _ => eprintln!("say `context` or `helpers`"),
    }
}

/// What `r0` is called after instruction 0, as the log of level 2 says.
fn result(log: &str) -> Option<String> {
    let line = log.lines().find(|l| l.starts_with("0: (") && l.contains("R0"))?;
    let from = &line[line.find(" R0")? + 1..];
    let from = &from[from.find('=')? + 1..];
    let end = from.find(['(', ' ']).unwrap_or(from.len());
    let kind = &from[..end];
    Some(if kind.starts_with(|c: char| c.is_ascii_digit() || c == '-') { "scalar".to_owned() } else { kind.to_owned() })
}

fn context() {
    println!(
        "# Context accesses that the verifier allows: program type, attach type, r/w, bytes, what a load gives, offsets."
    );
    println!("# Generated from Linux {} by examples/probe.rs: do not edit.", bpf_kernel::release());
    for &(kind, attach) in TYPES {
        let mut found: BTreeMap<(char, u32, String), Vec<u32>> = BTreeMap::new();
        let mut last = 0u32;
        for off in 0..320u32 {
            if off > last + 72 {
                break;
            }
            for (bytes, ldx, stx) in [(1u32, 0x71u64, 0x73u64), (2, 0x69, 0x6b), (4, 0x61, 0x63), (8, 0x79, 0x7b)] {
                if off % bytes != 0 {
                    continue;
                }
                let load = ldx | 1 << 12 | u64::from(off) << 16;
                let log = match ask(kind, attach, &[load, ONE, EXIT], "GPL", 2) {
                    Ok(l) | Err(l) => l,
                };
                if let Some(what) = result(&log).filter(|_| !log.contains("context access")) {
                    found.entry(('r', bytes, what)).or_default().push(off);
                    last = off;
                }
                // r2 = 0; *(r1 + off) = r2
                let store = stx | 1 << 8 | 2 << 12 | u64::from(off) << 16;
                let log = match ask(kind, attach, &[0x2b7, store, ONE, EXIT], "GPL", 2) {
                    Ok(l) | Err(l) => l,
                };
                if log.contains("2: (") {
                    found.entry(('w', bytes, "-".to_owned())).or_default().push(off);
                }
            }
        }
        for ((rw, bytes, what), offsets) in found {
            println!("{kind}\t{attach}\t{rw}\t{bytes}\t{what}\t{}", ranges(&offsets, bytes));
        }
    }
}

/// `0-20` for every multiple of `step` from 0 to 20.
fn ranges(offsets: &[u32], step: u32) -> String {
    let mut out: Vec<(u32, u32)> = Vec::new();
    for &o in offsets {
        match out.last_mut() {
            Some((_, end)) if *end + step == o => *end = o,
            _ => out.push((o, o)),
        }
    }
    let text: Vec<String> = out.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    text.join(",")
}

fn helpers() {
    println!(
        "# Helpers that each program type may call: program type, attach type, all, those that need a GPL licence."
    );
    println!("# Generated from Linux {} by examples/probe.rs: do not edit.", bpf_kernel::release());
    for &(kind, attach) in TYPES {
        let (mut all, mut gpl) = (Vec::new(), Vec::new());
        for id in 1..=211u32 {
            let call = 0x85 | u64::from(id) << 32;
            let log = match ask(kind, attach, &[call, ONE, EXIT], "GPL", 1) {
                Ok(l) | Err(l) => l,
            };
            if log.trim().is_empty()
                || log.contains("cannot use helper")
                || log.contains("invalid func")
                || log.contains("unknown func")
            {
                continue;
            }
            all.push(id);
            let log = match ask(kind, attach, &[call, ONE, EXIT], "Proprietary", 1) {
                Ok(l) | Err(l) => l,
            };
            if log.contains("GPL-restricted") || log.contains("cannot use helper") {
                gpl.push(id);
            }
        }
        println!("{kind}\t{attach}\t{}\t{}", ranges(&all, 1), ranges(&gpl, 1));
    }
}
