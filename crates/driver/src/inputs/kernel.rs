//! The same inputs in the running kernel.
//!
//! A block counts as reached there if an input that goes through it in the interpreter, whatever clock and random numbers say,
//! ends in the kernel as in the interpreter: with the same result, packet and maps. No result of a call was made up then.

use std::collections::BTreeMap;
use std::sync::Arc;

use bpf_kernel::{LoadOptions, LoadedObject, Map};
use bpf_object::FuncId;
use bpf_platform::maps;
use bpf_program::{Function, ProgKind};

use super::input::{Hook, Input};
use super::report::{Comparison, FunctionInputs, InputsReport};
use super::settings::Settings;
use super::world::{Run, World};
use crate::difftest::calls::Calls;
use crate::difftest::scenario::OneCpu;
use crate::difftest::why_not_run;
use crate::module::Module;

/// Elements of an array that are put back after each run, at most.
const LARGEST_ARRAY: u32 = 4096;

/// Runs all inputs of a report whose runs made nothing up, and notes what they reach.
pub(super) fn confirm(
    bytes: &[u8],
    settings: &Settings,
    module: &Module,
    graphs: &[Option<Arc<Function>>],
    report: &mut InputsReport,
    functions: &mut BTreeMap<usize, FunctionInputs>,
) {
    let options = LoadOptions { program_type: settings.program_type.clone(), only: None };
    let loaded = match bpf_kernel::permitted().require() {
        Err(e) => Err(e.to_string()),
        Ok(()) => LoadedObject::load_for_runs(bytes, &options, None).map_err(|e| e.to_string()),
    };
    let all = |report: &mut InputsReport, why: &str| {
        report.programs.iter_mut().for_each(|p| p.not_in_kernel = Some(why.to_owned()));
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(why) => return all(report, &why),
    };
    let (Some(calls), Ok(maps)) = (Calls::of(bytes), loaded.maps()) else {
        return all(report, "its functions cannot be read");
    };
    let kernel = Kernel { loaded: &loaded, begin: maps.iter().map(contents).collect(), maps };
    let _here = OneCpu::stay();
    for program in &mut report.programs {
        let verdict = loaded.programs().iter().find(|p| p.name == program.name);
        let why_not = match verdict {
            None => Some("the kernel has no such program".to_owned()),
            Some(v) if !v.verdict.is_accepted() => Some(v.verdict.reason().to_owned()),
            Some(v) => why_not_run(v, &calls, false),
        };
        let (Some(hook), None) = (program.hook, &why_not) else {
            program.not_in_kernel = why_not;
            continue;
        };
        let number = module.object.functions().iter().position(|f| f.name == program.name);
        let Some(number) = number else { continue };
        let Ok(world) = World::of(&module.object, FuncId(number), graphs, hook) else { continue };
        for (found, covers) in program.inputs.iter_mut().zip(&program.covers) {
            if found.made_up {
                continue;
            }
            let comparison = kernel.compare(&world, &program.name, &found.input);
            if comparison == Comparison::Same {
                for (function, block) in covers {
                    if let Some(seen) = functions.get_mut(function).and_then(|f| f.seen.get_mut(block)) {
                        seen.in_kernel = true;
                    }
                }
            }
            found.kernel = Some(comparison);
        }
    }
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// What is loaded.
struct Kernel<'a> {
    loaded: &'a LoadedObject,
    maps: Vec<Map>,
    /// What the loader has put into each map; `None`: it is left alone.
    begin: Vec<Option<Entries>>,
}

/// What is in a map that can be filled and emptied.
fn contents(map: &Map) -> Option<Entries> {
    let plain = maps::holds_bytes(map.kind()) && (!maps::is_array(map.kind()) || map.max_entries() <= LARGEST_ARRAY);
    let entries = if plain { map.entries().ok()? } else { return None };
    // What cannot be written is frozen.
    let writable = entries.first().is_none_or(|(k, v)| map.update(k, v).is_ok());
    writable.then_some(entries)
}

impl Kernel<'_> {
    fn compare(&self, world: &World, name: &str, input: &Input) -> Comparison {
        let runs = [1, 2, 3].map(|seed| world.run(input, seed));
        let blocks = runs.each_ref().map(|r| world.blocks(&r.trail).0);
        let [first, second, third] = &runs;
        let result = |r: &Run| r.outcome.as_ref().ok().map(|o| o.r0 as u32);
        let Some(expected) = result(first) else {
            return Comparison::NotRun(first.outcome.as_ref().err().map_or_else(String::new, ToString::to_string));
        };
        if blocks[0] != blocks[1] || blocks[0] != blocks[2] || Some(expected) != result(second) {
            return Comparison::Unsteady;
        }
        if let Err(why) = self.fill(world, input) {
            return Comparison::NotRun(why);
        }
        let packet = packet(world.hook, input);
        let context = context(world, input);
        let ran = match self.loaded.test_run(name, &packet, context.as_deref(), 1) {
            Ok(ran) => ran,
            Err(e) => return Comparison::NotRun(e.to_string()),
        };
        if ran.retval != expected {
            return Comparison::Otherwise(format!(
                "it returns {} there, and {expected} in the interpreter",
                ran.retval as i32
            ));
        }
        let steady = first.packet == second.packet && first.packet == third.packet;
        if world.hook.has_packet() && steady && ran.data_out != first.packet && !ran.data_out.ends_with(&first.packet) {
            return Comparison::Otherwise("it leaves another packet there".to_owned());
        }
        match self.map_that_differs(first, second) {
            Some(map) => Comparison::Otherwise(format!("it leaves something else in map {map} there")),
            None => Comparison::Same,
        }
    }

    /// Gives the maps what the input says, and else what they began with.
    fn fill(&self, world: &World, input: &Input) -> Result<(), String> {
        let mut wanted: Vec<&str> = input.maps.iter().filter(|(_, m)| !m.is_empty()).map(|(n, _)| n.as_str()).collect();
        wanted.extend(input.data.keys().map(String::as_str));
        for (map, begin) in self.maps.iter().zip(&self.begin) {
            let name = map.name();
            let entries = input.maps.get(name);
            let data = input.data.get(name);
            wanted.retain(|w| *w != name);
            if let Some(begin) = begin {
                if !maps::is_array(map.kind()) {
                    for key in map.keys().unwrap_or_default() {
                        let _ = map.delete(&key);
                    }
                }
                for (key, value) in begin {
                    let mut value = value.clone();
                    for (at, byte) in data.into_iter().flatten() {
                        if let Some(place) = usize::try_from(*at).ok().and_then(|at| value.get_mut(at)) {
                            *place = *byte;
                        }
                    }
                    map.update(key, &value).map_err(|e| format!("map {name}: {e}"))?;
                }
            } else if data.is_some() {
                return Err(format!("{name} cannot be set"));
            }
            for (key, value) in entries.into_iter().flatten() {
                let cpus = if maps::is_per_cpu(map.kind()) {
                    map.value_len() / value.len().next_multiple_of(8).max(1)
                } else {
                    1
                };
                let mut one = value.clone();
                if cpus > 1 || map.value_len() > value.len() {
                    one.resize(map.value_len() / cpus.max(1), 0);
                }
                map.update(key, &one.repeat(cpus.max(1))).map_err(|e| format!("map {name}: {e}"))?;
            }
        }
        let _ = world;
        match wanted.first() {
            Some(name) => Err(format!("{name} cannot be set")),
            None => Ok(()),
        }
    }

    /// The first map that does not hold what the run in the interpreter has left in it.
    fn map_that_differs(&self, first: &Run, second: &Run) -> Option<String> {
        for (map, _) in self.maps.iter().zip(&self.begin).filter(|(_, b)| b.is_some()) {
            let Some(entries) = first.maps.get(map.name()) else { continue };
            if maps::is_per_cpu(map.kind()) || second.maps.get(map.name()) != Some(entries) || maps::evicts(map.kind())
            {
                continue;
            }
            if entries.iter().any(|(key, value)| map.lookup(key).ok().flatten().as_ref() != Some(value)) {
                return Some(map.name().to_owned());
            }
        }
        None
    }
}

/// The packet for the kernel, which takes an Ethernet header away where the program sees none.
pub(super) fn packet(hook: Hook, input: &Input) -> Vec<u8> {
    const PROTOCOL: usize = 16;
    match hook.has_packet() {
        true if hook.has_ethernet() => input.packet.clone(),
        true => {
            let byte = |at: usize, usual: u8| input.context.get(&(PROTOCOL + at)).copied().unwrap_or(usual);
            let mut whole = vec![0; 12];
            whole.extend([byte(0, 8), byte(1, 0)]);
            whole.extend(&input.packet);
            whole
        }
        false => vec![],
    }
}

/// The context for the kernel, if it is to have one.
pub(super) fn context(world: &World, input: &Input) -> Option<Vec<u8>> {
    const SKB_BYTES: usize = 192;
    const PROTOCOL: std::ops::Range<usize> = 16..20;
    match world.hook.kind {
        ProgKind::Skb => {
            let set = || input.context.iter().filter(|(at, b)| **b != 0 && !PROTOCOL.contains(at));
            set().next()?;
            let mut context = vec![0; SKB_BYTES];
            for (at, byte) in set() {
                *context.get_mut(*at)? = *byte;
            }
            Some(context)
        }
        ProgKind::Xdp => None,
        _ => {
            let mut context = world.context(input);
            context.truncate(96);
            Some(context)
        }
    }
}
