//! Counting in the interpreter, and whether counts are those of an object.

use std::collections::BTreeMap;

use bpf_kernel::Entry;
use bpf_object::{FuncId, FuncKind, Object};
use bpf_program::{BlockId, Function, Profile, Terminator};

use crate::counts::{BlockCount, Counts, CountsError, FunctionCounts, hash};
use crate::inputs::{Input, Traced};
use crate::interpret::{Program, Visit};
use crate::module::Module;

/// Steps of one run.
const FUEL: u64 = 1 << 20;
/// Packets of a capture that are run.
pub const MOST_PACKETS: usize = 10_000;

/// What came of counting.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The counts.
    pub counts: Counts,
    /// Runs, of all programs.
    pub runs: u64,
    /// Runs of these programs ended in a fault, or lack of a model, with the first reason; they count as far as they went.
    pub faults: Vec<(String, u64, String)>,
    /// Programs that did not run, and why.
    pub not_run: Vec<(String, String)>,
}

/// By function and block: runs, and how often the branch at the end was taken.
pub(crate) type Numbers = Vec<Vec<(u64, u64)>>;

/// Counts while runs go on.
struct Tally<'a> {
    module: &'a Module,
    numbers: Numbers,
    counted: Counted,
}

impl<'a> Tally<'a> {
    fn new(bytes: &[u8], module: &'a Module) -> Tally<'a> {
        let blocks = |g: &Result<Function, String>| g.as_ref().map_or(0, |g| g.blocks.len());
        let numbers = module.graphs.iter().map(|g| vec![(0, 0); blocks(g)]).collect();
        let counts = Counts { object: hash(bytes), source: "interpreter".to_owned(), functions: Vec::new() };
        Tally { module, numbers, counted: Counted { counts, runs: 0, faults: Vec::new(), not_run: Vec::new() } }
    }

    fn note(&mut self, program: &str, visits: &[Visit], fault: Option<String>) {
        self.counted.runs += 1;
        for visit in visits {
            let Ok(f) = &self.module.graphs[visit.function] else { continue };
            let Some((runs, taken)) = self.numbers[visit.function].get_mut(visit.block.index()) else { continue };
            *runs += 1;
            *taken += u64::from(visit.next.is_some_and(|next| is_taken(f, visit.block, next)));
        }
        let Some(reason) = fault else { return };
        match self.counted.faults.iter_mut().find(|(name, ..)| name == program) {
            Some((_, n, _)) => *n += 1,
            None => self.counted.faults.push((program.to_owned(), 1, reason)),
        }
    }

    fn done(self) -> Counted {
        let functions = functions(self.module, &self.numbers);
        Counted { counts: Counts { functions, ..self.counted.counts }, ..self.counted }
    }
}

/// Whether control that went on to `next` has taken the branch at the end of a block.
fn is_taken(f: &Function, block: BlockId, next: BlockId) -> bool {
    match f.block(block).term {
        Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
            taken != fall && taken == next
        }
        _ => false,
    }
}

/// The functions of an object with these numbers.
pub(crate) fn functions(module: &Module, numbers: &Numbers) -> Vec<FunctionCounts> {
    let symbols = module.object.functions().iter().enumerate();
    let of = |(number, symbol): (usize, &bpf_object::Function)| {
        let f = module.graphs[number].as_ref().ok()?;
        let block = |b: &BlockId| {
            let (runs, taken) = numbers[number][b.index()];
            let is_branch = matches!(f.block(*b).term, Terminator::Branch { .. } | Terminator::MayGoto { .. });
            BlockCount { block: b.0, slot: slot(f, *b), runs, taken: is_branch.then_some(taken) }
        };
        let (name, section) = (symbol.name.clone(), symbol.section.clone());
        Some(FunctionCounts { name, section, function: number, blocks: f.layout.iter().map(block).collect() })
    };
    symbols.filter_map(of).collect()
}

/// The slot of a block's first instruction.
fn slot(f: &Function, b: BlockId) -> Option<usize> {
    let block = f.block(b);
    block.ops.first().map_or_else(|| block.term.origin(), |op| op.origin)
}

/// Counts what runs of all programs that take packets do on these packets, in the interpreter; maps hold these elements before the
/// first one, and keep what runs leave there. Of many packets the first [`MOST_PACKETS`] are run.
///
/// # Errors
/// If the object cannot be read.
pub fn of_packets(
    bytes: &[u8],
    packets: &[Vec<u8>],
    maps: &BTreeMap<String, Vec<Entry>>,
    only: &[String],
) -> Result<Counted, crate::DriverError> {
    let object = Object::parse(bytes.to_vec())?;
    let module = Module::new(object);
    let mut tally = Tally::new(bytes, &module);
    for (number, name) in programs(&module.object, only) {
        let mut program = match Program::of(&module.object, FuncId(number)) {
            Ok(program) if program.takes_packets() => program,
            Ok(_) => {
                tally.counted.not_run.push((name, "it takes no packets".to_owned()));
                continue;
            }
            Err(e) => {
                tally.counted.not_run.push((name, e.to_string()));
                continue;
            }
        };
        (program.core_as_compiled, program.leaves_trail) = (true, true);
        let mut state = program.start();
        program.fill(&mut state, maps);
        for packet in packets.iter().take(MOST_PACKETS) {
            let (mut interp, outcome) = program.run(packet, None, &state, FUEL);
            tally.note(&name, &program.visits(&interp.take_trail()), outcome.err().map(|e| e.to_string()));
            state = program.state(&interp.host);
        }
    }
    Ok(tally.done())
}

/// Counts what runs on inputs do, each with its own contents of maps, by the names of the programs that they are for.
///
/// # Errors
/// If the object cannot be read.
pub fn of_inputs(
    bytes: &[u8],
    inputs: &BTreeMap<String, Vec<Input>>,
    program_type: Option<&str>,
    only: &[String],
) -> Result<Counted, crate::DriverError> {
    let object = Object::parse(bytes.to_vec())?;
    let module = Module::new(object);
    let mut tally = Tally::new(bytes, &module);
    for (number, name) in programs(&module.object, only) {
        let Some(inputs) = inputs.get(&name) else {
            tally.counted.not_run.push((name, "there are no inputs for it".to_owned()));
            continue;
        };
        let traced = match Traced::new(&module, number, program_type) {
            Ok(traced) => traced,
            Err(e) => {
                tally.counted.not_run.push((name, e.to_string()));
                continue;
            }
        };
        for input in inputs {
            let (visits, fault) = traced.run(input);
            tally.note(&name, &visits, fault);
        }
    }
    Ok(tally.done())
}

/// The programs of an object: number and name.
fn programs(object: &Object, only: &[String]) -> Vec<(usize, String)> {
    let all = object.functions().iter().enumerate().filter(|(_, f)| f.kind == FuncKind::Program);
    let wanted = all.filter(|(_, f)| only.is_empty() || only.contains(&f.name));
    wanted.map(|(number, f)| (number, f.name.clone())).collect()
}

impl Counts {
    /// Whether they are of this object, block by block.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, bytes: &[u8]) -> Result<(), CountsError> {
        let own = hash(bytes);
        if self.object != own {
            return Err(CountsError::OtherObject { theirs: self.object.clone(), own });
        }
        // One that cannot be read is told of by whoever reads it.
        let Ok(object) = Object::parse(bytes.to_vec()) else { return Ok(()) };
        let module = Module::new(object);
        let known = functions(&module, &self.numbers(&module));
        for counted in &self.functions {
            let FunctionCounts { name, section, function, blocks } = counted;
            let place = known.iter().find(|k| (&k.name, &k.section, k.function) == (name, section, *function));
            let Some(place) = place else {
                let (name, section) = (name.clone(), section.clone());
                return Err(CountsError::NoFunction { name, section, number: *function });
            };
            let wrong = |why: String| Err(CountsError::Blocks { name: name.clone(), why });
            if blocks.len() != place.blocks.len() {
                return wrong(format!("it has {} blocks, and counts of {}", place.blocks.len(), blocks.len()));
            }
            for (counted, there) in blocks.iter().zip(&place.blocks) {
                let BlockCount { block, slot, runs, taken } = *counted;
                if (block, slot, taken.is_some()) != (there.block, there.slot, there.taken.is_some()) {
                    return wrong(format!("block b{block} is another one than in the object"));
                }
                if taken.is_some_and(|taken| taken > runs) {
                    return wrong(format!("the branch of block b{block} is taken more often than the block runs"));
                }
            }
        }
        Ok(())
    }

    fn numbers(&self, module: &Module) -> Numbers {
        let blocks = |g: &Result<Function, String>| g.as_ref().map_or(0, |g| g.blocks.len());
        let mut numbers: Numbers = module.graphs.iter().map(|g| vec![(0, 0); blocks(g)]).collect();
        for counted in &self.functions {
            for b in &counted.blocks {
                let place = numbers.get_mut(counted.function).and_then(|n| n.get_mut(b.block as usize));
                if let Some(place) = place {
                    *place = (b.runs, b.taken.unwrap_or(0));
                }
            }
        }
        numbers
    }

    /// What they say of each function, by the name of its graph.
    pub(crate) fn profiles(&self, module: &Module) -> BTreeMap<String, Profile> {
        let numbers = self.numbers(module);
        let graphs = module.graphs.iter().zip(&numbers).filter_map(|(g, n)| Some((g.as_ref().ok()?, n)));
        let profile = |(f, n): (&Function, &Vec<(u64, u64)>)| {
            (f.name.clone(), Profile::new(f, |b| n[b.index()].0, |b| n[b.index()].1))
        };
        graphs.map(profile).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = include_bytes!("../../../examples/xdp_count.o");

    fn counted() -> Counts {
        let packets = vec![vec![0; 64], vec![0; 8], vec![0; 128]];
        of_packets(OBJECT, &packets, &BTreeMap::new(), &[]).expect("a committed object").counts
    }

    #[test]
    fn each_run_begins_once_and_goes_one_way() {
        let counts = counted();
        let entries: u64 = counts.functions.iter().map(|f| f.blocks[0].runs).sum();
        assert!(entries >= 3, "{counts:?}");
        assert_eq!(counts.check(OBJECT), Ok(()));
        assert_eq!(counts, counted(), "the same packets give the same counts");
    }

    #[test]
    fn counts_of_another_object_are_refused_with_what_does_not_fit() {
        let other = include_bytes!("../../../examples/globals.o");
        assert!(matches!(counted().check(other), Err(CountsError::OtherObject { .. })));
        let mut fewer = counted();
        fewer.functions[0].blocks.pop();
        let why = fewer.check(OBJECT).expect_err("a block is missing").to_string();
        assert!(why.contains(&fewer.functions[0].name), "{why}");
        let mut renamed = counted();
        renamed.functions[0].name = "nobody".to_owned();
        assert!(matches!(renamed.check(OBJECT), Err(CountsError::NoFunction { .. })));
        let mut moved = counted();
        moved.functions[0].blocks[0].slot = Some(77);
        assert!(moved.check(OBJECT).expect_err("another block").to_string().contains("b0"));
    }
}
