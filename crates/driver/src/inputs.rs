//! Inputs that together reach every block of an object's programs: packets, contexts, map contents.
//!
//! They are found by running (the interpreter) and by asking (the prover's symbolic machine and its solver, along the paths of
//! runs); a block counts as reached only if a run went through it. Where the running kernel can run a program, each input is run
//! there, too: an input counts as run there if it ends as in the interpreter, and the path does not hang on what another run would
//! get otherwise (the clock, random numbers).

mod filled;
pub(crate) mod input;
mod kernel;
mod report;
mod search;
mod settings;
mod traced;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bpf_facts::Facts;
use bpf_object::{FuncId, FuncKind, Object};
use bpf_program::{BlockId, ByteOrder, Function};

use crate::difftest::calls::Calls;
use crate::difftest::{Random, packet};
use crate::module::Module;

pub use filled::filled;
pub use input::{Hook, Input};
pub use report::{BlockReport, Comparison, FoundInput, FunctionInputs, InputsReport, ProgramInputs, Reach};
pub use search::Asked;
pub use settings::Settings;
pub(crate) use traced::Traced;

use input::hook;
use search::Search;
use world::{Block, World};

/// Random packets before anything is asked.
const RANDOM: u64 = 96;

/// Looks for inputs.
///
/// # Errors
/// If the object cannot be read.
pub fn inputs(
    bytes: &[u8],
    settings: &Settings,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<InputsReport, crate::DriverError> {
    let started = Instant::now();
    let deadline = started + settings.time_limit;
    let object = Object::parse(bytes.to_vec())?;
    let module = Module::new(object);
    let object = &module.object;
    let words = Calls::of(bytes).map(|c| c.words()).unwrap_or_default();
    let graphs: Vec<Option<Arc<Function>>> =
        module.graphs.iter().map(|g| g.as_ref().ok().cloned().map(Arc::new)).collect();
    let is_wanted = |name: &str| settings.only.is_empty() || settings.only.iter().any(|o| o == name);
    let programs: Vec<usize> = (0..object.functions().len())
        .filter(|i| object.functions()[*i].kind == FuncKind::Program && is_wanted(&object.functions()[*i].name))
        .collect();
    let dead = dead_blocks(&module, &graphs);
    let mut report = InputsReport::default();
    let mut functions: BTreeMap<usize, FunctionInputs> = BTreeMap::new();
    // Long programs get more of the time.
    let weight = |i: usize| -> u64 {
        object
            .loaded_with([FuncId(i)])
            .iter()
            .filter_map(|f| graphs[f.0].as_ref())
            .map(|g| 4 + g.blocks.len() as u64)
            .sum()
    };
    let mut open: u64 = programs.iter().map(|i| weight(*i)).sum();
    for (done, &number) in programs.iter().enumerate() {
        progress(done, programs.len());
        let function = &object.functions()[number];
        let hook = hook(object, &function.section, graphs[number].as_deref(), settings.program_type.as_deref());
        let mut program = ProgramInputs::new(&function.name, hook);
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left.mul_f64(weight(number) as f64 / open.max(1) as f64);
        open -= weight(number);
        let goals: BTreeSet<Block> = goals(object, number, &graphs, &dead);
        let world = match World::of(object, FuncId(number), &graphs, hook) {
            Ok(world) => world,
            Err(e) => {
                program.not_run = Some(e.to_string());
                report.programs.push(program);
                continue;
            }
        };
        module.with_env(|env| {
            let mut search = Search::new(&world, env, &goals, Instant::now() + share);
            let mut random = Random::of(settings.seed, number as u64);
            for input in simple(hook, &mut random, &words) {
                search.try_input(input, None);
            }
            search.run();
            let needed: BTreeSet<usize> = search.reached.values().copied().collect();
            program.runs = search.runs;
            program.questions = search.questions;
            let names: BTreeMap<usize, usize> = needed.iter().enumerate().map(|(n, k)| (*k, n)).collect();
            program.inputs =
                needed.iter().map(|k| FoundInput::new(&search.kept[*k].input, search.kept[*k].assumed)).collect();
            for block in &goals {
                let entry =
                    functions.entry(block.0).or_insert_with(|| FunctionInputs::new(&object.functions()[block.0].name));
                let reached =
                    search.reached.get(block).map(|k| (function.name.clone(), names[k], search.kept[*k].assumed));
                entry.note(block.1, reached);
            }
            report::explain(&mut functions, &search, &goals, |n| graphs[n].as_deref(), Instant::now() >= deadline);
            program.covers = needed.iter().map(|k| search.kept[*k].blocks.clone()).collect();
        });
        report.programs.push(program);
    }
    progress(programs.len(), programs.len());
    for (number, function) in &mut functions {
        function.dead = dead.get(number).map_or(0, BTreeSet::len);
    }
    if settings.kernel && object.byte_order() == ByteOrder::HOST {
        kernel::confirm(bytes, settings, &module, &graphs, &mut report, &mut functions);
    }
    report.functions = functions.into_values().collect();
    report.finish(&|name| object.functions().iter().position(|f| f.name == name).and_then(|i| graphs[i].clone()));
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Blocks that facts show never to be reached, by function.
fn dead_blocks(module: &Module, graphs: &[Option<Arc<Function>>]) -> BTreeMap<usize, BTreeSet<BlockId>> {
    let of = |f: &Function| -> BTreeSet<BlockId> {
        module.with_env(|env| {
            let facts = Facts::of(f, env);
            f.layout.iter().copied().filter(|b| facts.entry(*b).is_none()).collect()
        })
    };
    graphs.iter().enumerate().filter_map(|(i, g)| Some((i, of(g.as_deref()?)))).collect()
}

fn goals(
    object: &Object,
    program: usize,
    graphs: &[Option<Arc<Function>>],
    dead: &BTreeMap<usize, BTreeSet<BlockId>>,
) -> BTreeSet<Block> {
    let mut goals = BTreeSet::new();
    for FuncId(f) in object.loaded_with([FuncId(program)]) {
        let Some(graph) = &graphs[f] else { continue };
        let alive = |b: &BlockId| !dead.get(&f).is_some_and(|d| d.contains(b));
        goals.extend(graph.layout.iter().copied().filter(alive).map(|b| (f, b)));
    }
    goals
}

/// Inputs to begin with: packets of all lengths, traffic, nothing.
fn simple(hook: Hook, random: &mut Random, words: &[Vec<u8>]) -> Vec<Input> {
    let of = |packet: Vec<u8>| Input { packet, ..Input::default() };
    if !hook.has_packet() {
        return vec![of(vec![0; 64])];
    }
    let cut = |packet: Vec<u8>| if hook.has_ethernet() { packet } else { packet[14..].to_vec() };
    let mut all = vec![of(vec![0; 64]), of(vec![0; 14]), of(vec![0; 512])];
    all.extend((0..RANDOM).map(|_| cut(packet(random, words))).filter(|p| !p.is_empty()).map(of));
    all
}
