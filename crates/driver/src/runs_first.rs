//! Before `verify` proves anything, it looks whether a run shows a difference at once.
//!
//! Two sources, which know nothing of each other: this kernel, where the programs can be run in it without harm
//! ([`crate::difftest`]), and the interpreter, which needs no kernel and runs more types of programs. What either shows
//! must hold however often one looks, and must not come from the clock, random numbers, addresses or memory that nobody
//! wrote; else nothing is said and the proofs decide.
//!
//! Promise: equal programs are never called different. So a program is left alone wherever running it as if on the same
//! data could mislead: where maps or the layout of global data differ, and in the interpreter also where the program
//! faults, writes its context, or asks for what only a kernel knows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bpf_facts::MapInfo;
use bpf_object::{FuncId, Object, Variable};
use bpf_platform::maps::{ARRAY, LRU_HASH, LRU_PERCPU_HASH, PERCPU_ARRAY};
use bpf_program::ProgKind;
use bpf_semantics::interp::{MapSpec, Output};

use crate::difftest::calls::Calls;
use crate::difftest::{Random, Setup, packet};
use crate::interpret::{MapState, Program, RunState};
use crate::module::{Module, is_program};
use crate::options::Options;
use crate::report::{NotRun, RunsFirst};
use crate::runcheck::{compare, isolated};

/// Time for the runs in the kernel, and as much for the interpreter, at most.
const TIME: Duration = Duration::from_millis(700);
/// The part of the time limit that each may take at most.
const SHARE: f64 = 0.05;
/// The part of the time limit that loading both objects may take at most.
const LOADING: f64 = 0.2;
/// The part of the time limit after which it is left open whether a difference lasts.
const LASTING: f64 = 0.5;
/// Inputs for each program in the interpreter.
const INTERPRETED: u64 = 200;
/// Inputs through which maps and global data are kept.
const ROUND: u64 = 20;
/// Steps of one of these runs.
const FUEL: u64 = 1 << 18;
/// Bytes by which addresses are moved to see whether a result depends on them.
const SHIFTS: [usize; 2] = [0x1040, 0x2_3f80];

/// Tries the programs that both objects have.
pub(crate) fn try_runs(a: &[u8], b: &[u8], ua: &Module, ub: &Module, options: &Options) -> RunsFirst {
    let mut all = RunsFirst::default();
    if !options.run_check || ua.maps != ub.maps || data_layout(&ua.object) != data_layout(&ub.object) {
        return all;
    }
    let names = |u: &Module| -> BTreeSet<String> {
        let wanted = |name: &str| options.programs.is_empty() || options.programs.iter().any(|p| p == name);
        let programs = (0..u.object.functions().len()).filter(|i| is_program(&u.object, *i));
        programs.map(|i| u.object.functions()[i].name.clone()).filter(|name| wanted(name)).collect()
    };
    let programs: Vec<String> = names(ua).intersection(&names(ub)).cloned().collect();
    let time = TIME.min(options.time_limit.mul_f64(SHARE));
    if options.kernel {
        in_kernel(a, b, &programs, options, time, &mut all);
    }
    let deadline = Instant::now().checked_add(time);
    let calls = [a, b].map(Calls::of);
    for name in &programs {
        if all.different.iter().any(|(known, _)| known == name) || calls.iter().any(|c| may_mislead(c.as_ref(), name)) {
            continue;
        }
        let program = |module: &Module| {
            let id = (0..module.object.functions().len())
                .find(|i| is_program(&module.object, *i) && module.object.functions()[*i].name == *name)?;
            Program::of(&module.object, FuncId(id)).ok()
        };
        let (Some(p), Some(q)) = (program(ua), program(ub)) else { continue };
        // Of other contexts nothing is known here, and which element of an LRU map goes depends on who looked.
        let lru = |m: &MapInfo| matches!(m.map_type, Some(LRU_HASH | LRU_PERCPU_HASH));
        if !matches!(p.kind(), ProgKind::Xdp | ProgKind::Skb | ProgKind::Tracing) || ua.maps.iter().any(lru) {
            continue;
        }
        let words = calls.iter().flatten().flat_map(Calls::words).collect::<Vec<_>>();
        let both = Both { sides: [p, q], seed: options.seed, words };
        let (runs, difference) = both.compare(deadline);
        all.interpreted_inputs += runs;
        all.different.extend(difference.map(|lines| (name.clone(), lines)));
    }
    all
}

fn in_kernel(a: &[u8], b: &[u8], programs: &[String], options: &Options, time: Duration, all: &mut RunsFirst) {
    let none = |reason: String| programs.iter().map(|p| NotRun { name: p.clone(), reason: reason.clone() }).collect();
    if let Err(e) = bpf_kernel::permitted().require() {
        all.not_in_kernel = none(e.to_string());
        return;
    }
    let deadline = Instant::now().checked_add(time);
    let load_until = Instant::now().checked_add(options.time_limit.mul_f64(LOADING));
    let patience = Instant::now().checked_add(options.time_limit.mul_f64(LASTING));
    let program_type = options.program_type.clone();
    let setup = Setup { program_type, deadline, load_until, patience, ..Setup::default() };
    let mut open = Vec::new();
    let compared = isolated(|| {
        let mut compared = compare(a, b, &setup, options.seed, programs);
        // Of the others something may be known all the same.
        while let Some(one) = compared.open.take() {
            let left: Vec<String> = programs
                .iter()
                .filter(|p| **p != one.name && open.iter().all(|o: &NotRun| o.name != **p))
                .cloned()
                .collect();
            open.push(one);
            if compared.difference.is_none() && !left.is_empty() {
                let ran = compared.programs;
                compared = compare(a, b, &setup, options.seed, &left);
                compared.programs.extend(ran);
            }
        }
        if let Some(d) = &mut compared.difference {
            d.scenario = std::mem::take(&mut d.scenario).reduced(a, b, &setup);
        }
        compared
    });
    match compared {
        Err(why) => all.not_in_kernel = none(why),
        Ok(compared) => {
            all.kernel_inputs = compared.programs.iter().map(|p| p.inputs).sum();
            all.not_in_kernel = compared.skipped;
            all.open = open;
            all.different.extend(compared.difference.map(|d| {
                let mut lines = vec!["run in this kernel, with everything it calls, on the same input:".to_owned()];
                lines.extend(d.what.iter().map(|what| format!("first and second: {what}")));
                lines.push(format!("packet {}", d.packet));
                lines.extend(d.context.iter().map(|context| format!("context {context}")));
                if d.scenario.inputs.len() > 1 || !d.scenario.maps.is_empty() {
                    let nth = d.scenario.inputs.len();
                    lines.push(format!("as input {nth} of a round with filled maps; see `bpf-opt difftest`"));
                }
                (d.program, lines)
            }));
        }
    }
}

/// Names, addresses and sizes of all global data: programs that agree on them mean the same bytes of a section.
fn data_layout(object: &Object) -> BTreeSet<Variable<'_>> {
    let sections = object.data_sections().map(|s| Variable { section: s.name, name: "", offset: 0, size: s.size });
    sections.chain(object.variables()).filter(|v| !v.section.starts_with(".rodata")).collect()
}

/// Whether the interpreter's answer for this program may depend on what it makes up.
fn may_mislead(calls: Option<&Calls>, program: &str) -> bool {
    calls.is_none_or(|c| c.volatile(program) || c.has_core_relocations(program))
}

/// The same program of both objects, in the interpreter.
struct Both {
    sides: [Program; 2],
    seed: u64,
    words: Vec<Vec<u8>>,
}

/// What can be seen of a run from outside.
#[derive(PartialEq, Eq)]
struct View {
    /// The part that every hook sees at most.
    r0: u32,
    packet: Vec<u8>,
    metadata: Vec<u8>,
    outputs: Vec<Output>,
    maps: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    sections: Vec<(String, Vec<u8>)>,
}

/// A packet, and a context where the program takes none of packets.
type Given = (Vec<u8>, Option<Vec<u8>>);

impl Both {
    /// Runs both until `deadline`; on how many inputs, and the first difference in words.
    fn compare(mut self, deadline: Option<Instant>) -> (u64, Option<Vec<String>>) {
        let mut runs = 0;
        for round in 0..INTERPRETED / ROUND {
            let mut r = Random::of(self.seed, round);
            let inputs: Vec<Given> = (0..ROUND).map(|_| self.input(&mut r)).collect();
            let mut states = self.starts();
            for (i, input) in inputs.iter().enumerate() {
                if deadline.is_some_and(|d| Instant::now() >= d) {
                    return (runs, None);
                }
                let Some([x, y]) = self.step(input, &mut states) else { continue };
                runs += 1;
                if x == y {
                    continue;
                }
                // What changes with the addresses is not the program's doing.
                let steady = SHIFTS.iter().all(|shift| {
                    self.sides.iter_mut().for_each(|p| p.address_shift = *shift);
                    let mut states = self.starts();
                    let mut last = None;
                    for input in &inputs[..=i] {
                        last = self.step(input, &mut states);
                    }
                    last.is_some_and(|[u, v]| u == x && v == y)
                });
                if steady {
                    return (runs, Some(x.against(&y, input, i)));
                }
                // Nor is anything that comes after.
                return (runs, None);
            }
        }
        (runs, None)
    }

    fn input(&self, r: &mut Random) -> Given {
        let packet = packet(r, &self.words);
        match self.sides[0].kind() {
            ProgKind::Xdp | ProgKind::Skb => (packet, None),
            _ => (packet, Some(r.bytes(256))),
        }
    }

    fn starts(&self) -> [RunState; 2] {
        self.sides.each_ref().map(Program::start)
    }

    /// One run of each from where the last one ended. A run that does not count changes nothing.
    fn step(&self, input: &Given, states: &mut [RunState; 2]) -> Option<[View; 2]> {
        let [p, q] = &self.sides;
        let (x, after_x) = view(p, input, &states[0])?;
        let (y, after_y) = view(q, input, &states[1])?;
        *states = [after_x, after_y];
        Some([x, y])
    }
}

/// `None` unless the run ends as it should and leaves the context alone, of which the interpreter knows too little.
fn view(program: &Program, (packet, context): &Given, before: &RunState) -> Option<(View, RunState)> {
    let (world, outcome) = program.run(packet, context.as_deref(), before, FUEL);
    let outcome = outcome.ok()?;
    let untouched = match context {
        Some(bytes) => bytes.clone(),
        None => program.host(packet).context().to_vec(),
    };
    if world.host.context() != untouched {
        return None;
    }
    let state = program.state(&world.host);
    // An element of an array is there whether anybody looked at it or not.
    let zero = |value: &[u8]| value.iter().all(|b| *b == 0);
    let seen = |(map, spec): (&MapState, &MapSpec)| {
        let array = matches!(spec.map_type, ARRAY | PERCPU_ARRAY);
        map.entries.iter().filter(|(_, v)| !array || !zero(v)).cloned().collect()
    };
    let writable = |(name, _): &&(String, Vec<u8>)| !name.starts_with(".rodata");
    let view = View {
        r0: outcome.r0 as u32,
        packet: world.host.packet().to_vec(),
        metadata: world.host.metadata().to_vec(),
        outputs: world.host.outputs.clone(),
        maps: state.maps.iter().zip(world.host.maps()).map(seen).collect(),
        sections: state.sections.iter().filter(writable).cloned().collect(),
    };
    Some((view, state))
}

impl View {
    fn against(&self, other: &View, (packet, context): &Given, earlier: usize) -> Vec<String> {
        let mut lines = vec!["interpreted, with everything it calls, on the same input:".to_owned()];
        if self.r0 != other.r0 {
            lines.push(format!("first and second: the return value: {:#x} and {:#x}", self.r0, other.r0));
        }
        let parts = [
            ("the packet afterwards", self.packet != other.packet || self.metadata != other.metadata),
            ("what is sent to user space", self.outputs != other.outputs),
            ("the maps afterwards", self.maps != other.maps),
            ("global data afterwards", self.sections != other.sections),
        ];
        let differing = parts.iter().filter(|(_, differs)| *differs);
        lines.extend(differing.map(|(what, _)| format!("first and second: {what}; see `bpf-opt run`")));
        lines.push(format!("packet {}", hex::encode(packet)));
        lines.extend(context.as_ref().map(|c| format!("context {}", hex::encode(c))));
        if earlier > 0 {
            lines.push(format!(
                "as input {} of a round; maps and global data are kept from one to the next",
                earlier + 1
            ));
        }
        lines
    }
}
