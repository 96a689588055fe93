//! Running a call and writing down what changed. Nothing here knows what a helper is supposed to do.

use std::collections::BTreeMap;

use bpf_kernel::{Map, RawProgram, RunResult};

use crate::fields::{self, Field};
use crate::kinds::{Kind, Packet};
use crate::lab::{Lab, Maps, Snapshot, TypeSet};
use crate::program::{self, Assembled, Descriptors, Variant};
use crate::recipe::{Argument, Call, Failure};

/// How a run fills what is arbitrary: every byte of one filling differs from that of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filling {
    /// A pattern.
    One,
    /// Its complement.
    Other,
}

impl Filling {
    fn byte(self, at: usize) -> u8 {
        let byte = ((at as u32).wrapping_mul(0x9e37_79b1) >> 13) as u8;
        if self == Filling::One { byte } else { !byte }
    }
}

/// What one run showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// r0 after the call; 0 for helpers without a result.
    pub result: u64,
    /// r6 … r10 before and after.
    pub registers: [[u64; 5]; 2],
    /// The frame before and after, lowest byte first.
    pub frame: [Vec<u8>; 2],
    /// Context fields before and after.
    pub context: [Vec<u64>; 2],
    /// The packet as the run gave it back, and as it does without the call.
    pub packet: [Vec<u8>; 2],
    /// Maps with the call, and without.
    pub maps: [BTreeMap<String, Snapshot>; 2],
    /// The context as the run gave it back, and as it does without the call.
    pub context_out: [Vec<u8>; 2],
}

/// See [`Bench::without`].
#[derive(Clone, Debug)]
pub struct Baseline {
    packet: Vec<u8>,
    maps: BTreeMap<String, Snapshot>,
    context_out: Vec<u8>,
}

/// Why there is no observation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// This program type may not call the helper on this kernel.
    NotOffered,
    /// The verifier refuses the program for another reason.
    Rejected(String),
    /// The run did not come to the call.
    NotReached,
    /// The call did not come back: another program has taken over.
    Gone,
    /// The run itself was refused, or the recipe cannot be built.
    Broken(String),
}

/// Everything runs need that stays the same.
#[derive(Debug)]
pub struct Bench {
    /// Surroundings.
    pub lab: Lab,
    /// Type information.
    pub types: TypeSet,
    /// Context fields to look at, per program type.
    pub fields: BTreeMap<&'static str, Vec<Field>>,
}

struct Namer<'a> {
    bench: &'a Bench,
    maps: Maps,
}

impl Descriptors for Namer<'_> {
    fn descriptor(&mut self, name: &str) -> Result<i32, String> {
        self.maps.get(name, &self.bench.lab, &self.bench.types).map(Map::fd).map_err(|e| explain(&e))
    }
    fn number(&self, name: &str) -> Option<i64> {
        self.bench.lab.number(name)
    }
}

fn explain(e: &dyn std::error::Error) -> String {
    match e.source() {
        Some(source) => format!("{e}: {source}"),
        None => e.to_string(),
    }
}

/// A loaded program with its maps.
struct Loaded<'a> {
    program: RawProgram,
    maps: Maps,
    input: Map,
    output: Map,
    _bench: &'a Bench,
}

impl Bench {
    /// Moves this thread to a namespace of its own and asks for the context fields of all kinds.
    ///
    /// # Errors
    /// What could not be made.
    pub fn new() -> Result<Bench, String> {
        Bench::with_fields(crate::kinds::KINDS.iter().map(|k| (k.name, fields::whole(k))).collect())
    }

    /// The same with context fields that somebody has asked for before.
    ///
    /// # Errors
    /// What could not be made.
    pub fn with_fields(fields: BTreeMap<&'static str, Vec<Field>>) -> Result<Bench, String> {
        let lab = Lab::enter().map_err(|e| explain(&e))?;
        let types = TypeSet::load().map_err(|e| e.to_string())?;
        Ok(Bench { lab, types, fields })
    }

    /// Whether the verifier lets programs of this kind make the call.
    pub fn takes(&self, call: &Call, kind: &Kind) -> bool {
        self.load(call, kind, Variant::Call).is_ok()
    }

    fn load(&self, call: &Call, kind: &Kind, variant: Variant) -> Result<Loaded<'_>, Refusal> {
        let broken = |e: bpf_kernel::KernelError| Refusal::Broken(explain(&e));
        let input = Map::create(2, 4, program::IN_BYTES, 1).map_err(broken)?;
        let output = Map::create(2, 4, program::OUT_BYTES, 1).map_err(broken)?;
        let mut namer = Namer { bench: self, maps: Maps::default() };
        namer.descriptor("bystander").map_err(Refusal::Broken)?;
        let fields = &self.fields[kind.name];
        let Assembled { code, functions } =
            program::assemble(call, variant, fields, (input.fd(), output.fd()), &mut namer).map_err(Refusal::Broken)?;
        let types: Vec<(u32, u32)> = functions
            .iter()
            .enumerate()
            .map(|(i, slot)| (*slot, if i == 0 { self.types.main } else { self.types.callback }))
            .collect();
        let options = fields::options(kind);
        let program = RawProgram::load_with_btf(kind.program, &code, &options, &self.types.btf, &types)
            .map_err(|r| refusal(&r))?;
        namer.maps.fill_programs(kind.program, &options).map_err(broken)?;
        Ok(Loaded { program, maps: namer.maps, input, output, _bench: self })
    }

    /// What a run changes without the call; `None` if that does not load (a reference nobody releases).
    pub fn without(&self, call: &Call, kind: &Kind) -> Option<Baseline> {
        let loaded = self.load(call, kind, Variant::Without).ok()?;
        let run = loaded.run(call, kind, Filling::One, None).ok()?;
        Some(Baseline { packet: run.data_out, maps: loaded.maps.snapshot(), context_out: run.ctx_out })
    }

    /// Runs a call once; `baseline` says what the run changes without it.
    ///
    /// # Errors
    /// Why there is nothing to see.
    pub fn observe(
        &self,
        call: &Call,
        kind: &Kind,
        filling: Filling,
        flip: Option<usize>,
        baseline: Option<&Baseline>,
    ) -> Result<Observation, Refusal> {
        let with = self.load(call, kind, Variant::Call)?;
        let before = with.maps.snapshot();
        let run = with.run(call, kind, filling, flip)?;
        let out = with.output.lookup(&[0; 4]).ok().flatten().unwrap_or_default();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| out.get(at + i).copied().unwrap_or(0)));
        match word(program::REACHED) {
            2 => {}
            1 => return Err(Refusal::Gone),
            _ => return Err(Refusal::NotReached),
        }
        let (packet, maps, context_out) = match baseline {
            Some(b) => (b.packet.clone(), b.maps.clone(), b.context_out.clone()),
            None => (run.data_out.clone(), before, run.ctx_out.clone()),
        };
        let frame = |at: usize| out[at..at + call.frame as usize].to_vec();
        let words = |at: usize, n: usize| (0..n).map(|i| word(at + 8 * i)).collect::<Vec<u64>>();
        let n = self.fields[kind.name].len().min(program::FIELDS);
        Ok(Observation {
            result: word(program::RESULT),
            registers: [program::REGISTERS_BEFORE, program::REGISTERS_AFTER]
                .map(|at| std::array::from_fn(|i| word(at + 8 * i))),
            frame: [frame(program::FRAME_BEFORE), frame(program::FRAME_AFTER)],
            context: [words(program::CONTEXT_BEFORE, n), words(program::CONTEXT_AFTER, n)],
            packet: [packet, run.data_out],
            maps: [maps, with.maps.snapshot()],
            context_out: [context_out, run.ctx_out],
        })
    }

    /// Does the verifier let a packet pointer from before the call be used after it? `None` where that cannot be asked.
    pub fn keeps_packet_pointers(&self, call: &Call, kind: &Kind) -> Option<bool> {
        if matches!(kind.packet, Packet::No) {
            return None;
        }
        let call = &Call { taken: vec![7], ..call.clone() };
        self.load(call, kind, Variant::NewPacketPointer(kind.packet)).ok()?;
        Some(self.load(call, kind, Variant::OldPacketPointer(kind.packet)).is_ok())
    }
}

fn refusal(rejection: &bpf_kernel::Rejection) -> Refusal {
    let log = &rejection.log;
    let not_offered = [
        "cannot use helper",
        "unknown func",
        "program of this type cannot use helper",
        "invalid func",
        "not supported for program type",
    ];
    if not_offered.iter().any(|t| log.contains(t)) {
        return Refusal::NotOffered;
    }
    Refusal::Rejected(rejection.reason().to_owned())
}

impl Loaded<'_> {
    fn run(&self, call: &Call, kind: &Kind, filling: Filling, flip: Option<usize>) -> Result<RunResult, Refusal> {
        let broken = |e: bpf_kernel::KernelError| Refusal::Broken(explain(&e));
        let mut bytes: Vec<u8> = (0..program::IN_BYTES as usize).map(|i| filling.byte(i)).collect();
        for (at, byte) in inputs(call) {
            bytes[at] = byte;
        }
        if let Some(at) = flip {
            bytes[at] ^= 0xff;
        }
        self.input.update(&[0; 4], &bytes).map_err(broken)?;
        let context = kind.context_in();
        let context = (!context.is_empty()).then_some(context);
        self.program.test_run(&kind.packet_in(), context.as_deref(), 1).map_err(broken)
    }
}

/// The frame bytes that a recipe prescribes: index from the lowest byte of the frame, and value.
pub fn inputs(call: &Call) -> Vec<(usize, u8)> {
    let mut found = Vec::new();
    for argument in &call.arguments {
        if let Argument::Buffer { offset, content: Some(content), .. } = argument {
            let at = (offset + call.frame as i32) as usize;
            found.extend(content.iter().enumerate().map(|(i, b)| (at + i, *b)));
        }
    }
    found
}

impl Observation {
    /// Did the call fail, by its own account?
    pub fn failed(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Negative => (self.result as i64) < 0 || (self.result as i32) < 0 && self.result >> 32 == 0,
            Failure::Null => self.result == 0,
            Failure::Never | Failure::Void => false,
            Failure::Returning => true,
            Failure::Is(numbers) => numbers.contains(&i64::from(self.result as i32)),
        }
    }

    /// Frame bytes that changed, by index from the lowest.
    pub fn changed_frame(&self) -> Vec<usize> {
        (0..self.frame[0].len()).filter(|i| self.frame[0][*i] != self.frame[1][*i]).collect()
    }

    /// The result as far as it is the same every time: an address is only null or not.
    pub fn steady_result(&self, failure: &Failure) -> u64 {
        if *failure == Failure::Null { u64::from(self.result != 0) } else { self.result }
    }

    /// What a client could tell apart: everything but the bytes that were there before.
    pub fn visible(&self, failure: &Failure) -> Visible {
        let changed = self.changed_frame();
        Visible {
            result: self.steady_result(failure),
            written: changed.iter().map(|i| (*i, self.frame[1][*i])).collect(),
            packet: self.packet[1].clone(),
            maps: self.maps[1].clone(),
            context_out: self.context_out[1].clone(),
        }
    }
}

/// See [`Observation::visible`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visible {
    /// r0.
    pub result: u64,
    /// Frame bytes that changed, with their new values.
    pub written: Vec<(usize, u8)>,
    /// The packet.
    pub packet: Vec<u8>,
    /// The maps.
    pub maps: BTreeMap<String, Snapshot>,
    /// The context.
    pub context_out: Vec<u8>,
}
