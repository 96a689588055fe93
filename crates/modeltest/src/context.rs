//! Context fields, run: what each access gives, what reads back after a write, and which presence changes others.
//!
//! A program loads everything that may be loaded and writes it down. Variants of it store into one field first, or hold,
//! in a branch that is never taken, one access more. Whatever such an access changes, its *presence* changes: the
//! verifier translates a program's accesses together (`bpf_convert_ctx_access` and `bpf_convert_tstamp_read` in
//! `net/core/filter.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bpf_isa::{Call, Cond, Imm64Kind, Insn, Reg, Size, Src, Width, encode_all};
use bpf_kernel::{Map, RawProgram};
use bpf_platform::{CtxField, FieldKind, access_matters, ctx_field};

use crate::fields::{self, Field, LONGEST};
use crate::kinds::{KINDS, Kind, LOADED};

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// One program type of each family.
    Slice,
    /// All of them.
    Everything,
}

/// What was found for one program type.
#[derive(Debug, Default)]
pub struct KindReport {
    /// Loads that the verifier allows.
    pub loads: usize,
    /// Sign-extending loads that it allows.
    pub signed: usize,
    /// Stores that it allows.
    pub stores: usize,
    /// Pairs of accesses of which one was only present.
    pub pairs: usize,
    /// Field offset, and the low bits of a stored number that read back.
    pub reads_back: BTreeMap<(u32, u32), u32>,
    /// Stores that change another field: offset of the store, offset of the field.
    pub changes_others: BTreeSet<(u32, u32)>,
    /// Accesses whose presence changes another: description.
    pub presence: BTreeSet<String>,
    /// Loads of which the table says nothing.
    pub unknown: BTreeSet<Field>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct FieldReport {
    /// By program type.
    pub kinds: BTreeMap<&'static str, KindReport>,
    /// What table and kernel disagree on.
    pub contradictions: BTreeSet<String>,
    /// Program types that could not be tried, and why.
    pub broken: BTreeMap<&'static str, String>,
}

/// Tries the context fields of all program types, or of some.
pub fn all(extent: Extent) -> FieldReport {
    const SLICE: [&str; 9] =
        ["tc", "xdp", "socket", "cgroup_skb", "lwt_xmit", "sk_lookup", "flow_dissector", "raw_tp", "syscall"];
    let mut report = FieldReport::default();
    for kind in KINDS.iter().filter(|k| extent == Extent::Everything || SLICE.contains(&k.name)) {
        match Subject::new(kind).and_then(|s| s.examine(extent, &mut report.contradictions)) {
            Ok(found) => drop(report.kinds.insert(kind.name, found)),
            Err(why) => drop(report.broken.insert(kind.name, why)),
        }
    }
    for kind in LOADED.iter().filter(|_| extent == Extent::Everything) {
        match Subject::new(kind).and_then(|s| s.examine_loaded(&mut report.contradictions)) {
            Ok(found) => drop(report.kinds.insert(kind.name, found)),
            Err(why) => drop(report.broken.insert(kind.name, why)),
        }
    }
    report
}

/// An access that is only present, or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Access {
    offset: u32,
    width: u32,
    store: bool,
}

/// Values that are stored.
const STORED: [u64; 6] = [0, 0x0102_0304_0506_0708, 0xffff_ffff_ffff_ffff, 0x1_2345, 0xffff, 0xc321];

struct Subject {
    kind: &'static Kind,
    loads: Vec<Field>,
    stores: Vec<(u32, u32)>,
    /// Loads sign-extend.
    signed: bool,
    /// Element 0: the word that keeps branches from being taken, always 0.
    guard: Map,
    out: Map,
}

/// Bytes of the output.
const OUT: u32 = 8192;
/// Offset of what is read after a store.
const MARK: i64 = 0x5a5a;

impl Subject {
    fn new(kind: &'static Kind) -> Result<Subject, String> {
        let end = if kind.context_bytes > 0 { kind.context_bytes as u32 } else { LONGEST };
        let mut loads = Vec::new();
        let mut stores = Vec::new();
        for offset in 0..end {
            for width in [1, 2, 4, 8] {
                if offset % width != 0 {
                    // Unaligned accesses of a context are refused whatever the field (check_ptr_alignment).
                    continue;
                }
                loads.extend(fields::loads(kind, offset, width));
                if fields::stores(kind, offset, width) {
                    stores.push((offset, width));
                }
            }
        }
        let map = |bytes| Map::create(2, 4, bytes, 1).map_err(|e| e.to_string());
        Ok(Subject { kind, loads, stores, signed: false, guard: map(8)?, out: map(OUT)? })
    }

    fn examine(&self, extent: Extent, contradictions: &mut BTreeSet<String>) -> Result<KindReport, String> {
        let mut found = KindReport { loads: self.loads.len(), stores: self.stores.len(), ..KindReport::default() };
        let base = self.run(&[], None, false)?;
        self.compare_loads(&base, contradictions, &mut found);
        self.signs(&base, false, contradictions, &mut found)?;
        if let Ok(staged) = self.run(&[], None, true) {
            self.compare_loads(&staged, contradictions, &mut found);
            self.signs(&staged, true, contradictions, &mut found)?;
        }
        self.stores(extent, &base, contradictions, &mut found)?;
        self.translations(contradictions, &mut found)?;
        // Translations show the same sooner; a slice leaves it at that.
        for staged in [false, true].into_iter().filter(|_| extent == Extent::Everything) {
            self.presence(staged, contradictions, &mut found)?;
        }
        Ok(found)
    }

    /// What can be said of a program type that cannot be run.
    fn examine_loaded(&self, contradictions: &mut BTreeSet<String>) -> Result<KindReport, String> {
        let mut found = KindReport { loads: self.loads.len(), stores: self.stores.len(), ..KindReport::default() };
        for f in &self.loads {
            let Some(row) = ctx_field(self.kind.model, i64::from(f.offset)) else {
                found.unknown.insert(*f);
                continue;
            };
            let pointer = !matches!(row.kind, FieldKind::Scalar { .. } | FieldKind::Memory);
            if f.offset + f.width > row.offset + row.size && !f.pointer && !pointer {
                // Two neighbours at once (`bpf_ctx_wide_access_ok`): the row is about one of them.
                found.unknown.insert(*f);
            } else if pointer != f.pointer {
                contradictions.insert(format!("{}: {f:?} is allowed, the table says {row:?}", self.kind.name));
            }
        }
        self.translations(contradictions, &mut found)?;
        Ok(found)
    }

    /// Runs a program that makes `store`, loads everything, and holds `present` in a branch that is not taken. `staged`
    /// first gives a packet a delivery time (`bpf_skb_set_tstamp`), where that helper is offered.
    fn run(&self, present: &[Access], store: Option<(u32, u32, u64)>, staged: bool) -> Result<Vec<u64>, String> {
        let (map, at) = (|fd: i32| u64::from(fd as u32), |i: usize| (8 * i) as i16);
        let mov = |dst, src| Insn::Mov { width: Width::W64, dst, src };
        let mut code = vec![
            mov(Reg::R6, Src::Reg(Reg::R1)),
            Insn::LoadImm64 { dst: Reg::R7, kind: Imm64Kind::MapValue, imm: map(self.out.fd()) },
            Insn::LoadImm64 { dst: Reg::R8, kind: Imm64Kind::MapValue, imm: map(self.guard.fd()) },
            load(Reg::R8, Reg::R8, 0, 8),
        ];
        // bpf_skb_set_tstamp(skb, 12345, 1) and bpf_skb_vlan_push(skb, 0x8100, 0xc321).
        let staging = [(192, 12_345, 1), (18, 0x0081, 0xc321)];
        for (helper, second, third) in staging.into_iter().filter(|_| staged) {
            code.push(mov(Reg::R1, Src::Reg(Reg::R6)));
            code.extend([(Reg::R2, second), (Reg::R3, third)].map(|(r, n)| mov(r, Src::Imm(n))));
            code.push(Insn::Call(Call::Helper(helper)));
        }
        if !present.is_empty() {
            let slots = present.len() as i16 + 1;
            code.push(Insn::Jcc { cond: Cond::Eq, width: Width::W64, dst: Reg::R8, src: Src::Imm(0), off: slots });
            code.push(mov(Reg::R2, Src::Imm(0)));
            code.extend(present.iter().map(|a| a.insn(Reg::R2)));
        }
        if let Some((offset, width, value)) = store {
            code.push(Insn::LoadImm64 { dst: Reg::R2, kind: Imm64Kind::Const, imm: value });
            code.push(Access { offset, width, store: true }.insn(Reg::R2));
        }
        for (i, f) in self.loads.iter().enumerate() {
            let size = Size::from_bytes(f.width).unwrap_or(Size::DW);
            code.push(Insn::Load { size, sext: self.signed, dst: Reg::R2, base: Reg::R6, off: f.offset as i16 });
            code.push(Insn::Store { size: Size::DW, base: Reg::R7, off: at(i), src: Src::Reg(Reg::R2) });
        }
        let done = (OUT - 8) as i16;
        code.push(Insn::Store { size: Size::DW, base: Reg::R7, off: done, src: Src::Imm(MARK as i32) });
        code.extend([mov(Reg::R0, Src::Imm(0)), Insn::Exit]);
        let code = encode_all(&code).map_err(|e| e.to_string())?;
        self.out.update(&[0; 4], &vec![0; OUT as usize]).map_err(|e| e.to_string())?;
        let program = RawProgram::load(self.kind.program, &code, &fields::options(self.kind))
            .map_err(|r| format!("{}: {}", self.kind.name, r.reason()))?;
        let context = context_in(self.kind);
        let context = (!context.is_empty()).then_some(context);
        program.test_run(&self.kind.packet_in(), context.as_deref(), 1).map_err(|e| format!("{e:?}"))?;
        let bytes = self.out.lookup(&[0; 4]).map_err(|e| e.to_string())?.ok_or("the output is gone")?;
        let words: Vec<u64> = bytes.chunks(8).map(|c| u64::from_le_bytes(std::array::from_fn(|i| c[i]))).collect();
        if words[done as usize / 8] != MARK as u64 {
            return Err("the program did not come to its end".into());
        }
        Ok(words[..self.loads.len()].to_vec())
    }

    /// Does every load give what the table says?
    fn compare_loads(&self, base: &[u64], contradictions: &mut BTreeSet<String>, found: &mut KindReport) {
        let name = self.kind.name;
        for (f, value) in self.loads.iter().zip(base) {
            let Some(row) = ctx_field(self.kind.model, i64::from(f.offset)) else {
                found.unknown.insert(*f);
                continue;
            };
            let mut say = |what: String| {
                contradictions.insert(format!("{name}: load of {} bytes at {}: {what}", f.width, f.offset));
            };
            if f.offset + f.width > row.offset + row.size && row.kind != FieldKind::Memory {
                say(format!("leaves the field, which is {row:?}"));
                continue;
            }
            let whole = (f.offset, f.width) == (row.offset, row.size);
            match row.kind {
                FieldKind::Scalar { .. } | FieldKind::Memory if f.pointer => say("gives a pointer".into()),
                FieldKind::Scalar { .. } | FieldKind::Memory => {
                    if f.width < 8 && *value >> (8 * f.width) != 0 {
                        say(format!("gives more than its bytes: {value:#x}"));
                    }
                    // Where the table does not promise the field's bytes, they need not come.
                    let promised = row.kind == FieldKind::Scalar { narrow: true } && !whole;
                    if let Some(all) = self.value_of(row, base).filter(|_| promised) {
                        let part = all >> (8 * (f.offset - row.offset)) & ones(f.width);
                        if part != *value {
                            say(format!("gives {value:#x}, those bytes of the field are {part:#x}"));
                        }
                    }
                }
                _ if !f.pointer => say(format!("gives a number, the table says {:?}", row.kind)),
                FieldKind::Pointer => {}
                _ => {
                    if *value >> 32 == 0 {
                        say(format!("gives {value:#x}, which is no 64-bit address"));
                    }
                }
            }
        }
    }

    /// A sign-extending load gives what the plain one does, with its sign.
    fn signs(
        &self,
        base: &[u64],
        staged: bool,
        contradictions: &mut BTreeSet<String>,
        found: &mut KindReport,
    ) -> Result<(), String> {
        let pairs = self.loads.iter().zip(base).filter(|(f, _)| fields::loads_signed(self.kind, **f));
        let (loads, plain): (Vec<Field>, Vec<u64>) = pairs.map(|(f, v)| (*f, *v)).unzip();
        found.signed = loads.len();
        let signed = Subject { loads, signed: true, ..self.without(LONGEST)? };
        for ((f, plain), value) in signed.loads.iter().zip(plain).zip(signed.run(&[], None, staged)?) {
            let shift = 64 - 8 * f.width;
            let expected = ((plain << shift) as i64 >> shift) as u64;
            if value != expected {
                contradictions.insert(format!(
                    "{}: sign-extending load of {} bytes at {}: gives {value:#x}, not {expected:#x}",
                    self.kind.name, f.width, f.offset
                ));
            }
        }
        Ok(())
    }

    /// What a load of the whole field gives, if there is one.
    fn value_of(&self, row: CtxField, values: &[u64]) -> Option<u64> {
        if row.kind == FieldKind::Memory {
            return None;
        }
        self.loads.iter().zip(values).find(|(f, _)| (f.offset, f.width) == (row.offset, row.size)).map(|(_, v)| *v)
    }

    /// What reads back, and what else changes.
    fn stores(
        &self,
        extent: Extent,
        base: &[u64],
        contradictions: &mut BTreeSet<String>,
        found: &mut KindReport,
    ) -> Result<(), String> {
        // Plain memory has no surprises: a slice tries some of it.
        let step = if extent == Extent::Slice && self.kind.context_is_memory() { 23 } else { 1 };
        for &(offset, width) in self.stores.iter().step_by(step) {
            let memory = ctx_field(self.kind.model, i64::from(offset)).is_some_and(|r| r.kind == FieldKind::Memory);
            let values = if extent == Extent::Slice && memory { &STORED[1..2] } else { &STORED[..] };
            let mut kept = ones(width);
            for &value in values {
                let after = self.run(&[], Some((offset, width, value)), false)?;
                self.compare_loads(&after, contradictions, found);
                for ((f, before), after) in self.loads.iter().zip(base).zip(&after) {
                    let overlaps = f.offset < offset + width && offset < f.offset + f.width;
                    if (f.offset, f.width) == (offset, width) {
                        kept &= !(value & ones(width) ^ after);
                    }
                    // Packets lie elsewhere in every run.
                    if !overlaps && !f.pointer && before != after {
                        found.changes_others.insert((offset, f.offset));
                    }
                    if memory && overlaps {
                        self.memory_reads_back((offset, width, value), *f, *before, *after, contradictions);
                    }
                }
            }
            found.reads_back.insert((offset, width), kept.trailing_ones());
        }
        Ok(())
    }

    /// After a store, memory holds the stored bytes and, beside them, what was there before.
    fn memory_reads_back(
        &self,
        (offset, width, value): (u32, u32, u64),
        f: Field,
        before: u64,
        after: u64,
        contradictions: &mut BTreeSet<String>,
    ) {
        let byte = |i: u32| {
            let at = f.offset + i;
            if (offset..offset + width).contains(&at) { value >> (8 * (at - offset)) } else { before >> (8 * i) }
        };
        let expected = (0..f.width).fold(0, |sum, i| sum | (byte(i) & 0xff) << (8 * i));
        if expected != after {
            contradictions.insert(format!(
                "{}: memory at {offset}: after a store of {width} bytes, {} bytes at {} read {after:#x}, not {expected:#x}",
                self.kind.name, f.width, f.offset
            ));
        }
    }

    /// Which access, never made, changes what others give by being there?
    fn presence(
        &self,
        staged: bool,
        contradictions: &mut BTreeSet<String>,
        found: &mut KindReport,
    ) -> Result<(), String> {
        if self.run(&[], None, staged).is_err() {
            // The helpers of the stage are not offered.
            return Ok(());
        }
        let all = self.translated_accesses();
        for present in &all {
            // What is read anyway cannot change anything by being there once more.
            let lean = self.without(present.offset)?;
            let stores = all.iter().filter(|a| a.store).map(|a| Some((a.offset, a.width, STORED[1])));
            for store in [None].into_iter().chain(stores) {
                let before = lean.run(&[], store, staged)?;
                let after = lean.run(&[*present], store, staged)?;
                found.pairs += 1;
                lean.note(*present, store, [&before, &after], staged, contradictions, found);
            }
        }
        Ok(())
    }

    /// The widest accesses of all fields that the kernel translates; plain memory is left alone.
    fn translated_accesses(&self) -> Vec<Access> {
        if self.kind.context_is_memory() {
            return Vec::new();
        }
        let reads = self.loads.iter().map(|f| Access { offset: f.offset, width: f.width, store: false });
        let writes = self.stores.iter().map(|(o, w)| Access { offset: *o, width: *w, store: true });
        let memory = |at| ctx_field(self.kind.model, i64::from(at)).is_some_and(|r| r.kind == FieldKind::Memory);
        reads.chain(writes).filter(|a| self.is_widest(a.offset, a.width) && !memory(a.offset)).collect()
    }

    /// Is the translation of two accesses that of each alone, one after the other? If not, the presence of one changes the
    /// other, or the other way round. This is seen whatever the state of the packet: test runs reach few.
    fn translations(&self, contradictions: &mut BTreeSet<String>, found: &mut KindReport) -> Result<(), String> {
        let all = self.translated_accesses();
        let empty = self.translated(&[])?;
        let alone = all.iter().map(|a| self.translated(&[*a])).collect::<Result<Vec<_>, _>>()?;
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate().skip(i) {
                found.pairs += 1;
                let both = self.translated(&[*a, *b])?;
                if both + empty == alone[i] + alone[j] {
                    continue;
                }
                found.presence.insert(format!("{a} and {b} are translated together"));
                let kept = |x: &Access| access_matters(self.kind.model, i64::from(x.offset), x.width);
                if !kept(a) && !kept(b) {
                    contradictions
                        .insert(format!("{}: {a} and {b} are translated together: {both} bytes", self.kind.name));
                }
            }
        }
        Ok(())
    }

    /// Bytes of the kernel's translation of a program with these accesses.
    fn translated(&self, accesses: &[Access]) -> Result<u32, String> {
        let zero = |dst| Insn::Mov { width: Width::W64, dst, src: Src::Imm(0) };
        let mut code = vec![Insn::Mov { width: Width::W64, dst: Reg::R6, src: Src::Reg(Reg::R1) }];
        for a in accesses {
            code.extend([zero(Reg::R2), a.insn(Reg::R2)]);
        }
        code.extend([zero(Reg::R0), Insn::Exit]);
        let code = encode_all(&code).map_err(|e| e.to_string())?;
        let program = RawProgram::load(self.kind.program, &code, &fields::options(self.kind))
            .map_err(|r| format!("{}: {}", self.kind.name, r.reason()))?;
        program.info().map(|i| i.xlated_bytes).map_err(|e| e.to_string())
    }

    fn note(
        &self,
        present: Access,
        store: Option<(u32, u32, u64)>,
        [before, after]: [&[u64]; 2],
        staged: bool,
        contradictions: &mut BTreeSet<String>,
        found: &mut KindReport,
    ) {
        for ((f, a), b) in self.loads.iter().zip(before).zip(after) {
            if a == b || f.pointer {
                continue;
            }
            let stage = if staged { " (delivery time and VLAN tag set)" } else { "" };
            let behind = store.map_or(String::new(), |(at, ..)| format!(" after a store at {at}"));
            let text = format!(
                "the presence of {present} changes the load of {} bytes at {}{behind}{stage}: {a:#x}, {b:#x}",
                f.width, f.offset
            );
            if !access_matters(self.kind.model, i64::from(present.offset), present.width) {
                contradictions.insert(format!("{}: {text}", self.kind.name));
            }
            found.presence.insert(text);
        }
    }

    /// No wider access that is allowed covers this one.
    fn is_widest(&self, offset: u32, width: u32) -> bool {
        let wider = |o: u32, w: u32| w > width && o <= offset && offset + width <= o + w;
        !self.loads.iter().any(|f| wider(f.offset, f.width)) && !self.stores.iter().any(|(o, w)| wider(*o, *w))
    }

    /// The same program type with the widest loads of all fields but the one at `offset`.
    fn without(&self, offset: u32) -> Result<Subject, String> {
        let loads = self.loads.iter().copied().filter(|f| f.offset != offset && self.is_widest(f.offset, f.width));
        let map = |bytes| Map::create(2, 4, bytes, 1).map_err(|e| e.to_string());
        Ok(Subject {
            kind: self.kind,
            loads: loads.collect(),
            stores: self.stores.clone(),
            signed: false,
            guard: map(8)?,
            out: map(OUT)?,
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.store { "a store" } else { "a load" };
        write!(f, "{what} of {} bytes at {}", self.width, self.offset)
    }
}

impl Access {
    fn insn(&self, register: Reg) -> Insn {
        let size = Size::from_bytes(self.width).unwrap_or(Size::DW);
        let off = self.offset as i16;
        if self.store {
            return Insn::Store { size, base: Reg::R6, off, src: Src::Reg(register) };
        }
        load(register, Reg::R6, self.offset, self.width)
    }
}

fn load(dst: Reg, base: Reg, offset: u32, width: u32) -> Insn {
    let size = Size::from_bytes(width).unwrap_or(Size::DW);
    Insn::Load { size, sext: false, dst, base, off: offset as i16 }
}

fn ones(bytes: u32) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

/// A context in which as many fields as possible are not zero. For `__sk_buff` these are all that
/// `convert___skb_to_skb` of `net/bpf/test_run.c` takes.
fn context_in(kind: &Kind) -> Vec<u8> {
    if !kind.is_skb() || kind.name == "flow_dissector" {
        return kind.context_in();
    }
    let mut bytes = vec![0; 192];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(8, &0xa1b2_c3d4u32.to_le_bytes());
    put(32, &0x1122_3344u32.to_le_bytes());
    put(48, &std::array::from_fn::<u8, 20, _>(|i| 0x30 + i as u8));
    put(152, &0x1122_3344_5566_7788u64.to_le_bytes());
    put(160, &200u32.to_le_bytes());
    put(164, &3u32.to_le_bytes());
    put(176, &0x1234u32.to_le_bytes());
    bytes
}

impl fmt::Display for FieldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, k) in &self.kinds {
            writeln!(
                f,
                "{name}: {} loads ({} with sign) and {} stores allowed, {} pairs, {} loads without a row",
                k.loads,
                k.signed,
                k.stores,
                k.pairs,
                k.unknown.len()
            )?;
            for ((offset, width), bits) in k.reads_back.iter().filter(|((_, w), bits)| **bits != 8 * w) {
                writeln!(f, "  a store of {width} bytes at {offset}: the low {bits} bits read back")?;
            }
            for what in &k.presence {
                writeln!(f, "  {what}")?;
            }
            for (store, field) in &k.changes_others {
                writeln!(f, "  a store at {store} changes the field at {field}")?;
            }
        }
        for (name, why) in &self.broken {
            writeln!(f, "{name}: {why}")?;
        }
        writeln!(f, "contradictions about context fields: {}", self.contradictions.len())?;
        for c in &self.contradictions {
            writeln!(f, "  {c}")?;
        }
        Ok(())
    }
}
