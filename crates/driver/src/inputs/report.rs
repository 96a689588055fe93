//! What was found: by program its inputs, by function its blocks.

use std::collections::{BTreeMap, BTreeSet};

use bpf_program::{BlockId, Function, predecessors};
use bpf_prove::path::Answered;
use serde::{Deserialize, Serialize};

use super::input::{Hook, Input};
use super::search::Search;
use super::world::Block;

/// How far a block was reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Not.
    No,
    /// In the interpreter.
    Interpreter,
    /// In the kernel, too.
    Kernel,
}

/// How the kernel's run of an input went.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// As in the interpreter.
    Same,
    /// It ended otherwise: in words.
    Otherwise(String),
    /// The path hangs on what another run would get otherwise.
    Unsteady,
    /// The kernel does not run it: in words.
    NotRun(String),
}

/// A block.
#[derive(Clone, Debug, Serialize)]
pub struct BlockReport {
    /// Its number, as in `bpf-opt dis --cfg`.
    pub block: u32,
    /// The slot of its first instruction in the function.
    pub slot: Option<usize>,
    /// How far it was reached.
    pub reached: Reach,
    /// By which program's input, if it was.
    pub by: Option<(String, usize)>,
    /// Why not, or why not in the kernel.
    pub reason: Option<String>,
}

/// The blocks of a function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionInputs {
    /// Its name.
    pub name: String,
    /// Blocks that facts show never to be reached; they are not among the others.
    pub dead: usize,
    /// Blocks reached in the kernel.
    pub in_kernel: usize,
    /// Blocks reached in the interpreter alone.
    pub interpreter_only: usize,
    /// Blocks that were not reached.
    pub unreached: usize,
    /// The blocks.
    pub blocks: Vec<BlockReport>,
    #[serde(skip)]
    pub(super) seen: BTreeMap<BlockId, Seen>,
}

/// What is known of a block so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub by: Option<(String, usize)>,
    pub assumed: bool,
    pub in_kernel: bool,
    pub reason: Option<String>,
}

impl FunctionInputs {
    pub(super) fn new(name: &str) -> FunctionInputs {
        FunctionInputs {
            name: name.to_owned(),
            dead: 0,
            in_kernel: 0,
            interpreter_only: 0,
            unreached: 0,
            blocks: vec![],
            seen: BTreeMap::new(),
        }
    }

    /// One program has come to a block, or has not.
    pub(super) fn note(&mut self, block: BlockId, reached: Option<(String, usize, bool)>) {
        let seen = self.seen.entry(block).or_default();
        if let Some((program, input, assumed)) = reached
            && (seen.by.is_none() || seen.assumed && !assumed)
        {
            (seen.by, seen.assumed) = (Some((program, input)), assumed);
        }
    }
}

/// An input, for reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundInput {
    /// The packet, in hexadecimal digits.
    pub packet: String,
    /// Bytes of it before `data_end`, if those are not all: only the interpreter can do that.
    pub linear: Option<usize>,
    /// Bytes of the context that are otherwise than usual: offset and digits.
    pub context: BTreeMap<usize, String>,
    /// Elements of maps, by name: key and value.
    pub maps: BTreeMap<String, Vec<(String, String)>>,
    /// Bytes of global data, by section: offset and digits.
    pub data: BTreeMap<String, BTreeMap<u64, String>>,
    /// What calls are to return, by their number in the run: only the interpreter can do that.
    pub calls: BTreeMap<usize, String>,
    /// Whether no test run can do the same: results of calls were made up (by `calls`, or because the interpreter has no model of
    /// one), fields of the context set that only the kernel sets, or constants that only the loader sets, or not all of the packet is
    /// linear.
    pub made_up: bool,
    /// How the kernel's run of it went; null if there was none.
    pub kernel: Option<Comparison>,
    #[serde(skip)]
    pub(crate) input: Input,
}

impl FoundInput {
    pub(super) fn new(input: &Input, assumed: bool) -> FoundInput {
        let byte = |b: &u8| hex::encode([*b]);
        FoundInput {
            packet: hex::encode(&input.packet),
            linear: input.linear,
            context: input.context.iter().map(|(at, b)| (*at, byte(b))).collect(),
            maps: input
                .maps
                .iter()
                .filter(|(_, entries)| !entries.is_empty())
                .map(|(name, entries)| {
                    (name.clone(), entries.iter().map(|(k, v)| (hex::encode(k), hex::encode(v))).collect())
                })
                .collect(),
            data: input
                .data
                .iter()
                .map(|(s, bytes)| (s.clone(), bytes.iter().map(|(at, b)| (*at, byte(b))).collect()))
                .collect(),
            calls: input.answers.iter().map(|(n, a)| (*n, answered(*a))).collect(),
            made_up: assumed,
            kernel: None,
            input: input.clone(),
        }
    }

    /// The input that a report tells of.
    ///
    /// # Errors
    /// In words, what is no input.
    pub fn read(&self) -> Result<Input, String> {
        let bytes = |text: &str| hex::decode(text).map_err(|e| format!("`{text}`: {e}"));
        let byte = |text: &str| match bytes(text)?[..] {
            [byte] => Ok(byte),
            _ => Err(format!("`{text}` is no byte")),
        };
        let entry = |(key, value): &(String, String)| Ok((bytes(key)?, bytes(value)?));
        let map = |(name, entries): (&String, &Vec<(String, String)>)| {
            Ok((name.clone(), entries.iter().map(entry).collect::<Result<_, String>>()?))
        };
        let section = |(name, all): (&String, &BTreeMap<u64, String>)| {
            let all = all.iter().map(|(at, b)| Ok((*at, byte(b)?)));
            Ok((name.clone(), all.collect::<Result<_, String>>()?))
        };
        let answer = |(call, text): (&usize, &String)| match text.as_str() {
            OBJECT => Ok((*call, Answered::Object)),
            number => match number.parse::<i64>() {
                Ok(n) => Ok((*call, Answered::Number(n.cast_unsigned()))),
                Err(_) => Err(format!("`{number}` is no result of a call")),
            },
        };
        Ok(Input {
            packet: bytes(&self.packet)?,
            linear: self.linear,
            context: self.context.iter().map(|(at, b)| Ok((*at, byte(b)?))).collect::<Result<_, String>>()?,
            maps: self.maps.iter().map(map).collect::<Result<_, String>>()?,
            data: self.data.iter().map(section).collect::<Result<_, String>>()?,
            answers: self.calls.iter().map(answer).collect::<Result<_, String>>()?,
        })
    }
}

/// What a call returns of which nothing but a pointer is known.
const OBJECT: &str = "an object";

fn answered(answer: Answered) -> String {
    match answer {
        Answered::Number(n) => (n as i64).to_string(),
        Answered::Object => OBJECT.to_owned(),
    }
}

/// The inputs of a program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramInputs {
    /// Its name.
    pub name: String,
    /// `BPF_PROG_TYPE_*`; 0 if it is not known.
    pub program_type: u32,
    /// Why there are none, if so.
    pub not_run: Option<String>,
    /// Why the kernel was not asked to run them, if so.
    pub not_in_kernel: Option<String>,
    /// Inputs that together reach all that was reached.
    pub inputs: Vec<FoundInput>,
    /// Runs in the interpreter.
    pub runs: u64,
    /// Questions to the solver.
    pub questions: u64,
    #[serde(skip)]
    pub(super) hook: Option<Hook>,
    /// Blocks that each input goes through.
    #[serde(skip)]
    pub(super) covers: Vec<Vec<Block>>,
}

impl ProgramInputs {
    pub(super) fn new(name: &str, hook: Hook) -> ProgramInputs {
        ProgramInputs {
            name: name.to_owned(),
            program_type: hook.program_type,
            not_run: None,
            not_in_kernel: None,
            inputs: vec![],
            runs: 0,
            questions: 0,
            hook: Some(hook),
            covers: vec![],
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InputsReport {
    /// By program.
    pub programs: Vec<ProgramInputs>,
    /// By function.
    pub functions: Vec<FunctionInputs>,
    /// Wall-clock time.
    pub seconds: f64,
}

impl InputsReport {
    /// Counts, and says of each block what there is to say.
    pub(super) fn finish(&mut self, graphs: &dyn Fn(&str) -> Option<std::sync::Arc<Function>>) {
        for function in &mut self.functions {
            let graph = graphs(&function.name);
            for (block, seen) in &function.seen {
                let reached = match &seen.by {
                    _ if seen.in_kernel => Reach::Kernel,
                    Some(_) => Reach::Interpreter,
                    None => Reach::No,
                };
                let slot = graph.as_ref().and_then(|g| {
                    let b = g.block(*block);
                    b.ops.first().map_or_else(|| b.term.origin(), |op| op.origin)
                });
                let reason = match reached {
                    Reach::Kernel => None,
                    _ => seen.reason.clone(),
                };
                function.blocks.push(BlockReport { block: block.0, slot, reached, by: seen.by.clone(), reason });
            }
            let count = |reach: Reach| function.blocks.iter().filter(|b| b.reached == reach).count();
            let (in_kernel, interpreter_only, unreached) =
                (count(Reach::Kernel), count(Reach::Interpreter), count(Reach::No));
            (function.in_kernel, function.interpreter_only, function.unreached) =
                (in_kernel, interpreter_only, unreached);
        }
    }

    /// Blocks in all, without dead ones; reached in the kernel; reached in the interpreter alone.
    pub fn totals(&self) -> [usize; 3] {
        let sum = |f: fn(&FunctionInputs) -> usize| self.functions.iter().map(f).sum();
        [sum(|f| f.blocks.len()), sum(|f| f.in_kernel), sum(|f| f.interpreter_only)]
    }
}

/// Says of the blocks that a program has not come to, why.
pub(super) fn explain<'g>(
    functions: &mut BTreeMap<usize, FunctionInputs>,
    search: &Search<'_>,
    goals: &BTreeSet<Block>,
    graph: impl Fn(usize) -> Option<&'g Function>,
    late: bool,
) {
    for (number, block) in goals.iter().filter(|b| !search.reached.contains_key(b)) {
        let Some(f) = graph(*number) else { continue };
        let preds = predecessors(f)[block.index()].clone();
        let from: Vec<&BlockId> = preds.iter().filter(|p| search.reached.contains_key(&(*number, **p))).collect();
        let reason = if from.is_empty() {
            match preds.iter().find(|p| goals.contains(&(*number, **p))) {
                Some(p) => format!("behind {p}, which was not reached"),
                None => "its function was not called".to_owned(),
            }
        } else {
            let asked: Vec<_> = from.iter().filter_map(|p| search.asked.get(&(*number, **p, *block))).collect();
            let sum = |f: fn(&super::search::Asked) -> usize| asked.iter().map(|a| f(a)).sum::<usize>();
            let (never, unknown) = (sum(|a| a.never), sum(|a| a.unknown));
            let (missed, not_followed) = (sum(|a| a.missed), sum(|a| a.not_followed));
            let late = if late { "; the time was up" } else { "" };
            let fault = from.iter().find_map(|p| search.faults.get(&(*number, **p)));
            match (never, unknown, missed, not_followed) {
                (0, 0, 0, 0) if fault.is_some() => {
                    format!("runs end before it: {}", fault.map_or("", String::as_str))
                }
                (0, 0, 0, 0) => format!("not asked{late}"),
                (n, 0, 0, 0) => format!("on none of {n} paths does any input go there{late}"),
                (n, 0, 0, k) => format!(
                    "on none of {n} paths does any input go there, and on {k} the condition could not be followed{late}"
                ),
                (n, u, 0, _) => format!("the solver gave up {u} times ({n} paths go elsewhere){late}"),
                (n, u, m, _) => format!(
                    "{m} inputs that were found led elsewhere ({n} paths never go there, the solver gave up {u} times){late}"
                ),
            }
        };
        if let Some(seen) = functions.get_mut(number).and_then(|f| f.seen.get_mut(block)) {
            seen.reason = Some(reason);
        }
    }
}
