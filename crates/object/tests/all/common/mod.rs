//! What the tests share: finding objects, an independent reader of ELF and BTF.ext that knows
//! nothing of the crate, and moving instructions about with their jumps fixed.

pub mod edit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_object::{FuncId, NewInsn, Object};

pub const GOTO_NEXT: [u8; 8] = [5, 0, 0, 0, 0, 0, 0, 0];

fn objects_in(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "o")).collect();
    found.sort();
    found
}

/// The committed objects.
pub fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = objects_in(&root.join("../../examples"));
    found.extend(objects_in(&root.join("tests/fixtures")));
    assert!(found.len() >= 5, "fixtures are missing");
    found
}

/// The benchmark objects, if they are there.
pub fn bench() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench");
    let found: Vec<PathBuf> = ["k2", "public"].iter().flat_map(|d| objects_in(&root.join(d))).collect();
    if found.is_empty() {
        eprintln!("skipped: no benchmark objects in {}", root.display());
    }
    found
}

pub fn everything() -> Vec<PathBuf> {
    fixtures().into_iter().chain(bench()).collect()
}

pub fn example(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)).expect("example")
}

pub fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).expect("fixture")
}

pub fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// A section as an independent reader sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct RawSection {
    pub name: String,
    pub kind: u32,
    pub offset: usize,
    pub data: Vec<u8>,
    pub link: u32,
    pub info: u32,
}

fn text(table: &[u8], at: usize) -> String {
    let end = table[at..].iter().position(|&c| c == 0).unwrap();
    String::from_utf8_lossy(&table[at..at + end]).into_owned()
}

pub fn sections(file: &[u8]) -> Vec<RawSection> {
    let shoff = u64_at(file, 40) as usize;
    let (count, names) = (u16_at(file, 60) as usize, u16_at(file, 62) as usize);
    let header = |i: usize| &file[shoff + i * 64..shoff + (i + 1) * 64];
    let data = |i: usize| {
        let h = header(i);
        let (offset, size) = (u64_at(h, 24) as usize, u64_at(h, 32) as usize);
        if u32_at(h, 4) == 8 || u32_at(h, 4) == 0 { Vec::new() } else { file[offset..offset + size].to_vec() }
    };
    let table = data(names);
    (0..count)
        .map(|i| {
            let h = header(i);
            RawSection {
                name: text(&table, u32_at(h, 0) as usize),
                kind: u32_at(h, 4),
                offset: u64_at(h, 24) as usize,
                data: data(i),
                link: u32_at(h, 40),
                info: u32_at(h, 44),
            }
        })
        .collect()
}

pub fn section(file: &[u8], name: &str) -> RawSection {
    sections(file).into_iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no section {name}"))
}

/// A symbol: (name, section index, value, size).
pub fn symbols(file: &[u8]) -> Vec<(String, u16, u64, u64)> {
    let all = sections(file);
    let Some(table) = all.iter().find(|s| s.kind == 2) else { return Vec::new() };
    let strings = &all[table.link as usize].data;
    table
        .data
        .chunks(24)
        .map(|s| (text(strings, u32_at(s, 0) as usize), u16_at(s, 6), u64_at(s, 8), u64_at(s, 16)))
        .collect()
}

/// The records of `.BTF.ext`: for each of func, line and core, by section name, (offset, rest).
pub type Records = [BTreeMap<String, Vec<(u32, Vec<u8>)>>; 3];

pub fn ext_records(file: &[u8]) -> Records {
    let all = sections(file);
    let mut out = Records::default();
    let (Some(btf), Some(ext)) = (all.iter().find(|s| s.name == ".BTF"), all.iter().find(|s| s.name == ".BTF.ext"))
    else {
        return out;
    };
    let strings = &btf.data[u32_at(&btf.data, 4) as usize + u32_at(&btf.data, 16) as usize..];
    let header = u32_at(&ext.data, 4) as usize;
    for (i, table) in out.iter_mut().enumerate() {
        if 16 + i * 8 > header {
            continue;
        }
        let (at, len) = (u32_at(&ext.data, 8 + i * 8) as usize, u32_at(&ext.data, 12 + i * 8) as usize);
        let data = &ext.data[header + at..header + at + len];
        let mut rest = data.get(4..).unwrap_or(&[]);
        while !rest.is_empty() {
            let (size, count) = (u32_at(data, 0) as usize, u32_at(rest, 4) as usize);
            let records = rest[8..8 + size * count].chunks(size).map(|r| (u32_at(r, 0), r[4..].to_vec())).collect();
            table.insert(text(strings, u32_at(rest, 0) as usize), records);
            rest = &rest[8 + size * count..];
        }
    }
    out
}

/// Whether a tool can be started.
pub fn have(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok()
}

/// A small generator: the same numbers for the same seed.
pub struct Rng(fastrand::Rng);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// The jump target of an instruction at a slot, if it is a jump.
pub fn jump_target(bytes: &[u8], slot: usize) -> Option<usize> {
    let (op, class) = (bytes[0], bytes[0] & 7);
    let distance = match (class, op) {
        (5, 0x85 | 0x95) => return None,
        (6, 0x06) => i64::from(u32_at(bytes, 4) as i32),
        (5 | 6, _) => i64::from(u16_at(bytes, 2) as i16),
        _ => return None,
    };
    usize::try_from(slot as i64 + 1 + distance).ok()
}

/// Lays out instructions anew: each either an old one (by index in `old`) or a new one. Jumps of
/// old ones go to their old targets, or to the next old one still there, by way of the new ones
/// in front of it (which would be unreachable behind a `goto` otherwise). `None` if a jump would
/// get too long.
pub fn relayout(old: &[NewInsn], order: &[Result<usize, NewInsn>]) -> Option<Vec<NewInsn>> {
    let mut place = BTreeMap::new();
    let (mut slot, mut fresh) = (0, None);
    for item in order {
        let insn = match item {
            Ok(i) => {
                place.insert(old[*i].origin.unwrap(), fresh.take().unwrap_or(slot));
                &old[*i]
            }
            Err(insn) => {
                fresh.get_or_insert(slot);
                insn
            }
        };
        slot += insn.bytes.len() / 8;
    }
    let end = slot;
    slot = 0;
    let mut out = Vec::new();
    for item in order {
        let mut insn = match item {
            Ok(i) => old[*i].clone(),
            Err(insn) => insn.clone(),
        };
        if let Ok(i) = item
            && let Some(target) = jump_target(&insn.bytes, old[*i].origin.unwrap())
        {
            let to = place.range(target..).next().map_or(end, |(_, &s)| s);
            let distance = to as i64 - slot as i64 - 1;
            if insn.bytes[0] == 6 {
                insn.bytes[4..8].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
            } else {
                insn.bytes[2..4].copy_from_slice(&i16::try_from(distance).ok()?.to_le_bytes());
            }
        }
        slot += insn.bytes.len() / 8;
        out.push(insn);
    }
    Some(out)
}

pub fn goto_next() -> NewInsn {
    NewInsn { bytes: GOTO_NEXT.to_vec(), origin: None, refs_from: None }
}

/// Inserts `goto +0` before instructions chosen by `at`, in all functions that allow it; returns
/// the new slots of the inserted ones by function.
pub fn insert_nops(object: &mut Object, mut at: impl FnMut(usize, usize) -> bool) -> BTreeMap<usize, Vec<usize>> {
    let mut inserted = BTreeMap::new();
    for f in 0..object.functions().len() {
        if object.locked(FuncId(f)).is_some() {
            continue;
        }
        let old = object.identity_body(FuncId(f)).unwrap();
        let mut order = Vec::new();
        for i in 0..old.len() {
            if at(f, i) {
                order.push(Err(goto_next()));
            }
            order.push(Ok(i));
        }
        let Some(body) = relayout(&old, &order) else { continue };
        let mut slot = 0;
        let mut places = Vec::new();
        for insn in &body {
            if insn.origin.is_none() {
                places.push(slot);
            }
            slot += insn.bytes.len() / 8;
        }
        object.set_body(FuncId(f), body).unwrap();
        inserted.insert(f, places);
    }
    inserted
}

/// Deletes the instructions at slots of the functions.
pub fn delete(object: &mut Object, slots: &BTreeMap<usize, Vec<usize>>) {
    for (&f, slots) in slots {
        let old = object.identity_body(FuncId(f)).unwrap();
        let order: Vec<Result<usize, NewInsn>> =
            (0..old.len()).filter(|&i| !slots.contains(&old[i].origin.unwrap())).map(Ok).collect();
        object.set_body(FuncId(f), relayout(&old, &order).unwrap()).unwrap();
    }
}

/// Everything attached to each instruction of each function, the inserted ones left out: bytes
/// without what may move, references, CO-RE records, source line.
pub fn attachments(object: &Object, skip: &BTreeMap<usize, Vec<usize>>) -> Vec<Vec<String>> {
    (0..object.functions().len())
        .map(|f| {
            let id = FuncId(f);
            let mut list = vec![object.functions()[f].name.clone()];
            for insn in object.identity_body(id).unwrap() {
                let slot = insn.origin.unwrap();
                if skip.get(&f).is_some_and(|s| s.contains(&slot)) {
                    continue;
                }
                let mut bytes = insn.bytes.clone();
                if jump_target(&bytes, slot).is_some() {
                    let at = if bytes[0] == 6 { 4 } else { 2 };
                    bytes[at..at + 2].fill(0);
                }
                let refs: Vec<_> = object.refs(id).iter().filter(|r| r.slot == slot).map(|r| r.kind.clone()).collect();
                if refs
                    .iter()
                    .any(|r| matches!(r, bpf_object::RefKind::Call { .. } | bpf_object::RefKind::FuncAddr { .. }))
                {
                    bytes[4..8].fill(0);
                }
                let core: Vec<_> = object
                    .core_relocs(id)
                    .iter()
                    .filter(|c| c.slot == slot)
                    .map(|c| (c.kind, c.type_id, c.access.clone()))
                    .collect();
                list.push(format!("{bytes:02x?} {refs:?} {core:?} {:?}", object.line_of(id, slot)));
            }
            list
        })
        .collect()
}

/// Whether a function stays as it is because loaders pass over its relocations.
pub fn is_passed_over(object: &Object, f: FuncId) -> bool {
    object.locked(f).is_some_and(|why| why.contains("loaders pass over"))
}
