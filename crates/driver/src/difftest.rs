//! Two objects in the running kernel: the same packets, the same map contents, the same results?
//!
//! This asks nobody in this project. Both objects are loaded (nothing is attached), every program that
//! the kernel can run on demand gets packets in *rounds*: before a round the maps of both are filled
//! alike, after each packet return value, packet and context are compared, after the round every map.
//!
//! # What no two runs have alike
//! The clock, random numbers, addresses. Nothing is skipped for that: when two results differ, the round
//! up to that packet is run again several times, on freshly loaded objects, and it only is a difference
//! if the first object gives one and the same result every time and the second never that one. Otherwise
//! it is counted as *unsteady*. A round runs on one CPU, so that per-CPU values and processor numbers are
//! the same for both.

mod maps;
mod traffic;

use std::collections::BTreeSet;

use bpf_isa::{Call, Insn, Src};
use bpf_kernel::{Entry, KernelError, LoadOptions, LoadedObject, ProgramType, RunResult};
use bpf_object::{FuncId, Object};
use bpf_program::Symbol;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::unit::Unit;
use maps::{Filling, MapPair};

pub use traffic::{Random, packet};

/// Two objects in the kernel.
pub struct Pair {
    bytes: [Vec<u8>; 2],
    options: LoadOptions,
    loaded: Loaded,
    programs: Vec<Runnable>,
    /// Programs that are not run, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// Maps that are neither filled nor compared.
    pub maps_left_alone: Vec<String>,
    words: Vec<Vec<u8>>,
}

struct Loaded {
    sides: [LoadedObject; 2],
    maps: Vec<MapPair>,
}

#[derive(Clone)]
struct Runnable {
    name: String,
    kind: ProgramType,
    /// It asks for the clock, a random number or the like.
    volatile: bool,
}

/// Why a pair cannot be tested.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct PairError {
    /// Whether it is the second object that is to blame.
    pub second: bool,
    /// What the kernel crate said.
    pub source: KernelError,
}

/// What one round found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Packets that both ran on.
    pub runs: u64,
    /// Packets that the kernel would not run the program on, either of them.
    pub refused: u64,
    /// Results that differ from run to run of one object already.
    pub unsteady: u64,
    /// The first difference.
    pub difference: Option<Difference>,
}

/// An input on which the two do not do the same.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// Which program.
    pub program: String,
    /// Its number in the round; the ones before prepared the maps.
    pub number: usize,
    /// The packet, in hexadecimal digits.
    pub packet: String,
    /// The context, in hexadecimal digits, if one was passed in.
    pub context: Option<String>,
    /// In words: what differs, first and second.
    pub what: Vec<String>,
}

/// A packet and, where the kernel takes one, a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The packet.
    pub packet: Vec<u8>,
    /// Bytes of the context as `BPF_PROG_TEST_RUN` takes it.
    pub context: Option<Vec<u8>>,
}

/// Everything that can be seen of a run; `Err` is the kernel's error number.
type Seen = Result<RunResult, Option<i32>>;

impl Pair {
    /// Loads both.
    ///
    /// # Errors
    /// Whatever keeps the kernel or libbpf from loading one of them.
    pub fn load(a: &[u8], b: &[u8], program_type: Option<&str>) -> Result<Pair, PairError> {
        let options = LoadOptions { program_type: program_type.map(str::to_owned) };
        let loaded = Loaded::new([a, b], &options)?;
        let mut skipped = Vec::new();
        let mut programs = Vec::new();
        let calls = Calls::of(a);
        for p in loaded.sides[0].programs() {
            let other = loaded.sides[1].programs().iter().find(|q| q.name == p.name);
            let why = match other {
                None => Some("the second object has no such program".to_owned()),
                Some(q) if q.kind != p.kind => Some(format!("it is {} here and {} there", p.kind, q.kind)),
                _ if !runs_on_demand(p.kind) => Some(format!("{} programs cannot be run on demand", p.kind)),
                _ => calls.harmful(&p.name).map(|h| format!("it calls {h}, which acts on the caller")),
            };
            match why {
                Some(why) => skipped.push((p.name.clone(), why)),
                None => {
                    programs.push(Runnable { name: p.name.clone(), kind: p.kind, volatile: calls.volatile(&p.name) });
                }
            }
        }
        let (_, maps_left_alone) = maps::pairs(&loaded.sides[0], &loaded.sides[1]);
        let words = calls.words;
        Ok(Pair { bytes: [a.to_vec(), b.to_vec()], options, loaded, programs, skipped, maps_left_alone, words })
    }

    /// Names of the programs that can be run.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|p| p.name.as_str())
    }

    /// One round of `count` packets, taken from `source` if there is one.
    pub fn round(&mut self, program: &str, r: &mut Random, count: usize, source: Option<&[Vec<u8>]>) -> Round {
        let Some(p) = self.programs.iter().find(|p| p.name == program).cloned() else { return Round::default() };
        let _here = Pinned::here();
        let with_context = p.kind == ProgramType::RAW_TRACEPOINT || r.one_in(2);
        let inputs: Vec<Input> = (0..count)
            .map(|i| {
                let packet = match source {
                    Some(packets) if !packets.is_empty() => packets[i % packets.len()].clone(),
                    _ => traffic::packet(r, &self.words),
                };
                let context = if with_context { context(p.kind, &packet, r) } else { None };
                let packet = if p.kind == ProgramType::RAW_TRACEPOINT { vec![] } else { packet };
                Input { packet, context }
            })
            .collect();
        let sample: Vec<Vec<u8>> = inputs.iter().take(16).map(|i| i.packet.clone()).collect();
        let fillings: Vec<Filling> = self.loaded.maps.iter().map(|m| m.filling(r, &sample)).collect();
        self.run_round(&p, &inputs, &fillings)
    }

    fn run_round(&mut self, p: &Runnable, inputs: &[Input], fillings: &[Filling]) -> Round {
        let mut round = Round::default();
        let difference = |number: usize, what: Vec<String>| Difference {
            program: p.name.clone(),
            number,
            packet: maps::hex(&inputs[number].packet),
            context: inputs[number].context.as_deref().map(maps::hex),
            what,
        };
        if let Err(what) = self.loaded.fill(fillings) {
            round.difference = Some(difference(0, vec![what]));
            return round;
        }
        for (i, input) in inputs.iter().enumerate() {
            let [a, b] = [0, 1].map(|side| self.loaded.run(side, &p.name, input));
            if let Some(what) = disagreement(&a, &b) {
                if self.steady(p, &inputs[..=i], fillings, Aspect::Result) {
                    round.difference = Some(difference(i, what));
                    return round;
                }
                round.unsteady += 1;
                // The maps may have gone different ways.
                return round;
            }
            match a {
                Ok(_) => round.runs += 1,
                Err(_) => round.refused += 1,
            }
        }
        if let Some(what) = self.loaded.maps_differ() {
            if self.steady(p, inputs, fillings, Aspect::Maps) {
                let (i, what) = self.first_map_difference(p, inputs, fillings).unwrap_or((inputs.len() - 1, what));
                round.difference = Some(difference(i, vec![what]));
            } else {
                round.unsteady += 1;
            }
        }
        round
    }

    /// Whether the second object keeps giving what the first never gives, and the first always the same.
    fn steady(&mut self, p: &Runnable, inputs: &[Input], fillings: &[Filling], aspect: Aspect) -> bool {
        // Ring buffers and the like have a state that no filling resets.
        if let Ok(fresh) = Loaded::new([&self.bytes[0], &self.bytes[1]], &self.options) {
            self.loaded = fresh;
        }
        let repeats = if p.volatile { 12 } else { 3 };
        let mut seen: [Vec<(Seen, Vec<Vec<Entry>>)>; 2] = [vec![], vec![]];
        for _ in 0..repeats {
            if self.loaded.fill(fillings).is_err() {
                return true;
            }
            for (side, seen) in seen.iter_mut().enumerate() {
                let mut last = Err(None);
                for input in inputs {
                    last = self.loaded.run(side, &p.name, input);
                }
                let maps = match aspect {
                    Aspect::Result => vec![],
                    Aspect::Maps => self.loaded.maps.iter().map(|m| m.contents(side)).collect(),
                };
                seen.push((if aspect == Aspect::Maps { Err(None) } else { plain(last) }, maps));
            }
        }
        let [old, new] = &seen;
        old.iter().all(|o| *o == old[0]) && new.iter().all(|n| *n != old[0])
    }

    fn first_map_difference(&self, p: &Runnable, inputs: &[Input], fillings: &[Filling]) -> Option<(usize, String)> {
        self.loaded.fill(fillings).ok()?;
        for (i, input) in inputs.iter().enumerate() {
            for side in 0..2 {
                let _ = self.loaded.run(side, &p.name, input);
            }
            if let Some(what) = self.loaded.maps_differ() {
                return Some((i, what));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Aspect {
    Result,
    Maps,
}

impl Loaded {
    fn new(bytes: [&[u8]; 2], options: &LoadOptions) -> Result<Loaded, PairError> {
        let load =
            |i: usize| LoadedObject::load(bytes[i], options).map_err(|source| PairError { second: i == 1, source });
        let sides = [load(0)?, load(1)?];
        let (maps, _) = maps::pairs(&sides[0], &sides[1]);
        Ok(Loaded { sides, maps })
    }

    fn fill(&self, fillings: &[Filling]) -> Result<(), String> {
        self.maps.iter().zip(fillings).try_for_each(|(m, f)| m.fill(f))
    }

    fn run(&self, side: usize, program: &str, input: &Input) -> Seen {
        let run = |context| self.sides[side].test_run(program, &input.packet, context, 1);
        match run(input.context.as_deref()) {
            // Not every type takes a context, and none takes every context.
            Err(_) if input.context.is_some() && !input.packet.is_empty() => run(None),
            outcome => outcome,
        }
        .map_err(|e| match e {
            KernelError::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        })
    }

    fn maps_differ(&self) -> Option<String> {
        self.maps.iter().find_map(|m| maps::compare(&m.name, &m.contents(0), &m.contents(1)))
    }
}

/// The result without the time it took.
fn plain(seen: Seen) -> Seen {
    seen.map(|r| RunResult { duration_ns: 0, ..r })
}

/// In which way two results differ.
fn disagreement(a: &Seen, b: &Seen) -> Option<Vec<String>> {
    let (a, b) = match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(a), Err(b)) if a == b => return None,
        (Err(a), Err(b)) => return Some(vec![format!("the kernel refuses to run it: error {a:?} and {b:?}")]),
        (Ok(_), Err(e)) => return Some(vec![format!("the kernel runs the first, and not the second: error {e:?}")]),
        (Err(e), Ok(_)) => return Some(vec![format!("the kernel runs the second, and not the first: error {e:?}")]),
    };
    let mut what = Vec::new();
    if a.retval != b.retval {
        what.push(format!("the return value: {} ({:#x}) and {} ({:#x})", a.retval, a.retval, b.retval, b.retval));
    }
    what.extend(bytes_differ("the packet afterwards", &a.data_out, &b.data_out));
    what.extend(bytes_differ("the context afterwards", &a.ctx_out, &b.ctx_out));
    (!what.is_empty()).then_some(what)
}

fn bytes_differ(name: &str, a: &[u8], b: &[u8]) -> Option<String> {
    if a == b {
        return None;
    }
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    Some(match at {
        Some(at) => {
            format!("{name}: byte {at} is {:02x} and {:02x} (of {} and {} bytes)", a[at], b[at], a.len(), b.len())
        }
        None => format!("{name}: {} and {} bytes", a.len(), b.len()),
    })
}

/// Types whose test run executes the program itself, from where it cannot reach the rest of the system.
fn runs_on_demand(kind: ProgramType) -> bool {
    const SCHED_ACT: u32 = 4;
    const CGROUP_SKB: u32 = 8;
    const LWT: std::ops::RangeInclusive<u32> = 10..=12;
    const LWT_SEG6LOCAL: u32 = 19;
    const FLOW_DISSECTOR: u32 = 22;
    matches!(kind, ProgramType::SOCKET_FILTER | ProgramType::SCHED_CLS | ProgramType::XDP | ProgramType::RAW_TRACEPOINT)
        || matches!(kind.0, SCHED_ACT | CGROUP_SKB | LWT_SEG6LOCAL | FLOW_DISSECTOR)
        || LWT.contains(&kind.0)
}

/// A context that the kernel's test run takes: it insists on zeros in most fields.
fn context(kind: ProgramType, packet: &[u8], r: &mut Random) -> Option<Vec<u8>> {
    const SKB_BYTES: usize = 192;
    const MARK: usize = 8;
    const PRIORITY: usize = 32;
    const CB: usize = 48;
    const ARGUMENTS: usize = 12;
    let number = |r: &mut Random| if r.one_in(2) { r.below(4) as u32 } else { r.next() as u32 };
    match kind {
        ProgramType::XDP => {
            let mut c = vec![0; 24];
            // Metadata in front of the packet: its length stands in `data`.
            let meta = if r.one_in(3) { 4 * r.below(9) as u32 } else { 0 };
            let meta = if packet.len() >= 14 + meta as usize { meta } else { 0 };
            c[0..4].copy_from_slice(&meta.to_le_bytes());
            c[4..8].copy_from_slice(&(packet.len() as u32).to_le_bytes());
            Some(c)
        }
        ProgramType::RAW_TRACEPOINT => {
            let words: Vec<u64> = (0..ARGUMENTS)
                .map(|_| match r.below(4) {
                    0 => 0,
                    1 => r.below(400),
                    2 => u64::from(r.next() as u32),
                    _ => r.next(),
                })
                .collect();
            Some(words.into_iter().flat_map(u64::to_le_bytes).collect())
        }
        _ => {
            let mut c = vec![0; SKB_BYTES];
            let mut put = |at: usize, v: u32| c[at..at + 4].copy_from_slice(&v.to_le_bytes());
            put(MARK, number(r));
            put(PRIORITY, number(r));
            (0..5).for_each(|i| put(CB + 4 * i, number(r)));
            Some(c)
        }
    }
}

/// What the functions of an object call, and the numbers they compare with.
struct Calls {
    /// Function, helpers it calls, functions it calls or takes the address of.
    functions: Vec<(String, BTreeSet<i32>, BTreeSet<String>)>,
    words: Vec<Vec<u8>>,
}

/// Clocks, random numbers, cookies, and what the system changes meanwhile (`enum bpf_func_id`).
const VOLATILE: [i32; 12] = [5, 7, 35, 46, 47, 55, 80, 118, 125, 158, 160, 208];
/// `probe_write_user`, `override_return`, `send_signal`, `send_signal_thread`, and `sys_bpf`, `sys_close`.
const HARMFUL: [(i32, &str); 6] = [
    (36, "bpf_probe_write_user"),
    (58, "bpf_override_return"),
    (109, "bpf_send_signal"),
    (117, "bpf_send_signal_thread"),
    (166, "bpf_sys_bpf"),
    (168, "bpf_sys_close"),
];
/// Numbers to remember, at most.
const WORDS: usize = 256;

impl Calls {
    fn of(bytes: &[u8]) -> Calls {
        let mut calls = Calls { functions: vec![], words: vec![] };
        let Ok(object) = Object::parse(bytes.to_vec()) else { return calls };
        let unit = Unit::new(object);
        let mut words = BTreeSet::new();
        for (i, f) in unit.object.functions().iter().enumerate() {
            let code = bpf_isa::decode_all(unit.object.code(FuncId(i))).unwrap_or_default();
            let helpers = code.iter().filter_map(|(_, insn)| match insn {
                Insn::Call(Call::Helper(id)) => Some(*id),
                _ => None,
            });
            let callees =
                unit.graphs[i].iter().flat_map(|g| &g.blocks).flat_map(|b| &b.ops).filter_map(|op| {
                    match op.link.as_ref().map(|l| &l.symbol) {
                        Some(Symbol::Func { name }) => Some(name.to_string()),
                        _ => None,
                    }
                });
            let (helpers, callees): (BTreeSet<i32>, BTreeSet<String>) = (helpers.collect(), callees.collect());
            // Callees are named by identity, programs by name.
            let identity = unit.object.function_identity(FuncId(i));
            if identity != f.name {
                calls.functions.push((identity.to_owned(), helpers.clone(), callees.clone()));
            }
            calls.functions.push((f.name.clone(), helpers, callees));
            for (_, insn) in &code {
                if let Insn::Jcc { src: Src::Imm(v), .. } = insn
                    && *v != 0
                {
                    match u16::try_from(*v) {
                        Ok(v) => words.extend([v.to_le_bytes().to_vec(), v.to_be_bytes().to_vec()]),
                        Err(_) => words.extend([v.to_le_bytes().to_vec(), v.to_be_bytes().to_vec()]),
                    }
                }
            }
        }
        calls.words = words.into_iter().take(WORDS).collect();
        calls
    }

    /// Helpers that a program may call, also through others.
    fn helpers(&self, program: &str) -> BTreeSet<i32> {
        let (mut helpers, mut seen, mut todo) = (BTreeSet::new(), BTreeSet::new(), vec![program]);
        while let Some(name) = todo.pop() {
            if !seen.insert(name) {
                continue;
            }
            for (_, direct, callees) in self.functions.iter().filter(|f| f.0 == name) {
                helpers.extend(direct);
                todo.extend(callees.iter().map(String::as_str));
            }
        }
        helpers
    }

    fn volatile(&self, program: &str) -> bool {
        self.helpers(program).iter().any(|h| VOLATILE.contains(h))
    }

    fn harmful(&self, program: &str) -> Option<&'static str> {
        let helpers = self.helpers(program);
        HARMFUL.iter().find(|(id, _)| helpers.contains(id)).map(|(_, name)| *name)
    }
}

/// Keeps the thread on the CPU it is on, as far as the system lets it.
struct Pinned(Option<CpuSet>);

impl Pinned {
    fn here() -> Pinned {
        let Ok(before) = sched_getaffinity(None) else { return Pinned(None) };
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        Pinned(sched_setaffinity(None, &here).is_ok().then_some(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_in_words() {
        let result = |retval, data: &[u8]| {
            Ok(RunResult { retval, data_out: data.to_vec(), ctx_out: vec![], duration_ns: retval })
        };
        assert_eq!(disagreement(&result(1, &[1]), &result(1, &[1])), None);
        let what = disagreement(&result(1, &[1, 2]), &result(2, &[1, 3])).unwrap();
        assert_eq!(what[0], "the return value: 1 (0x1) and 2 (0x2)");
        assert_eq!(what[1], "the packet afterwards: byte 1 is 02 and 03 (of 2 and 2 bytes)");
        assert!(disagreement(&result(1, &[]), &Err(Some(22))).is_some());
        assert_eq!(disagreement(&Err(Some(22)), &Err(Some(22))), None);
    }
}
