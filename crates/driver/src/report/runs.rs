//! What running original and result in this kernel gave, as plain data. Inputs and map contents are kept in hexadecimal
//! digits, so that a report holds all that is needed to run them again.

use bpf_kernel::Entry;
use serde::Serialize;

use crate::difftest::Input;

/// How running original and result went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunCheck {
    /// `no difference`, `different: …`, `refused: …`, or `skipped: …`.
    pub status: String,
    /// The programs that were run.
    pub programs: Vec<ProgramRuns>,
    /// Changed programs that were not run.
    pub skipped: Vec<NotRun>,
    /// Inputs that both forms of a program ran on, over all programs.
    pub inputs: u64,
    /// Differences found; what caused them is no longer in the result.
    pub differences: Vec<RunDifference>,
    /// Wall-clock milliseconds.
    pub milliseconds: u64,
}

/// How one program was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramRuns {
    /// Its name.
    pub name: String,
    /// Inputs both forms ran on.
    pub inputs: u64,
    /// Inputs on which the kernel would run neither.
    pub refused: u64,
    /// Rounds broken off because the original itself gives different results.
    pub unsteady_rounds: u64,
    /// Inputs among `inputs` on which the two differed, and did so no more when they were run again.
    pub differed_once: u64,
}

/// A changed program that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotRun {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A change that was proven equal and is not: a bug of bpf-opt, with all that is needed to report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunDifference {
    /// The program that was run.
    pub program: String,
    /// The function with the guilty change; `None` if no single function is to blame.
    pub function: Option<String>,
    /// The pass that proposed the guilty change; `None` if it is no single rewrite.
    pub change: Option<String>,
    /// What differs, original and result, in words.
    pub what: Vec<String>,
    /// Inputs that prepare the maps.
    pub inputs_before: Vec<HexInput>,
    /// The input that shows the difference.
    pub input: HexInput,
    /// What the maps hold before the first input; others are as the loader makes them.
    pub maps: Vec<MapContents>,
    /// The function as it was compiled.
    pub listing_original: Vec<String>,
    /// The function without the guilty change.
    pub listing_good: Vec<String>,
    /// The function with it.
    pub listing_bad: Vec<String>,
}

/// An input in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HexInput {
    /// The packet.
    pub packet: String,
    /// The context, if one is passed in.
    pub context: Option<String>,
}

/// Elements of one map in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapContents {
    /// The map's name.
    pub name: String,
    /// Keys and values.
    pub entries: Vec<(String, String)>,
}

impl RunCheck {
    /// Why no run could be compared.
    pub(crate) fn why_nothing(&self) -> &'static str {
        let tried = |p: &ProgramRuns| p.refused + p.unsteady_rounds > 0;
        match (self.programs.is_empty(), self.programs.iter().any(tried)) {
            (true, _) => "skipped: no program could be run",
            (false, true) => "skipped: no run could be compared",
            (false, false) => "skipped: the time was up before anything ran",
        }
    }

    /// Adds what a further comparison has seen.
    pub(crate) fn take(&mut self, programs: Vec<ProgramRuns>, skipped: Vec<NotRun>) {
        self.inputs += programs.iter().map(|p| p.inputs).sum::<u64>();
        for p in programs {
            match self.programs.iter_mut().find(|q| q.name == p.name) {
                Some(q) => {
                    q.inputs += p.inputs;
                    q.refused += p.refused;
                    q.unsteady_rounds += p.unsteady_rounds;
                    q.differed_once += p.differed_once;
                }
                None => self.programs.push(p),
            }
        }
        self.skipped.extend(skipped);
    }
}

impl RunDifference {
    /// What nobody is to overlook.
    pub(crate) fn warning(&self) -> String {
        let function = self.function.as_deref().unwrap_or("several functions");
        let change = match (&self.change, &self.function) {
            (Some(by), _) => format!("a rewrite by `{by}` in {function}"),
            (None, Some(_)) => format!("the new form of {function}"),
            (None, None) => "the new form of several functions".to_owned(),
        };
        let mut lines = vec![
            format!(
                "WRONG OPTIMIZATION of program {}: proven equal, but this kernel gives another result. The output is \
                 without it: {change} was taken back.",
                self.program
            ),
            "  This is a bug of bpf-opt; please report it with this message and the `run_check` of a `--json` report."
                .to_owned(),
        ];
        lines.extend(self.what.iter().map(|what| format!("  original and result: {what}")));
        lines.push(format!("  packet {}", self.input.packet));
        lines.extend(self.input.context.iter().map(|context| format!("  context {context}")));
        if !self.inputs_before.is_empty() {
            lines.push(format!("  after {} other inputs, which the report holds", self.inputs_before.len()));
        }
        lines.join("\n")
    }
}

impl HexInput {
    pub(crate) fn of(input: &Input) -> HexInput {
        HexInput { packet: hex::encode(&input.packet), context: input.context.as_deref().map(hex::encode) }
    }
}

impl MapContents {
    pub(crate) fn of((name, entries): &(String, Vec<Entry>)) -> MapContents {
        MapContents {
            name: name.clone(),
            entries: entries.iter().map(|(k, v)| (hex::encode(k), hex::encode(v))).collect(),
        }
    }
}
