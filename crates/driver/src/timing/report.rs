//! What timing says of programs, as plain data.

use bpf_kernel::ProgramType;

use super::statistics::{Call, Comparison, Summary};
use crate::estimate::Estimate;

/// What is known of one object's program beside its times.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Facts {
    /// Its instruction slots in the object.
    pub slots: usize,
    /// Instructions that the verifier processed.
    pub verified: u32,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Milliseconds that loading the whole object took: the median.
    pub load_ms: f64,
}

/// How long one object takes for some inputs.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Timed {
    /// Nanoseconds an input, without the empty program's.
    pub ns: Summary,
    /// Cycles an input, likewise, or what else is counted ([`Settings::counted`](super::Settings)); `None` where the kernel counts none.
    pub cycles: Option<Summary>,
    /// Against the first object.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// What is to be believed of that.
    pub call: Call,
}

/// Inputs for which the first object returns the same.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Class {
    /// What it returns; `None`: all inputs together.
    pub returns: Option<u32>,
    /// How many inputs.
    pub inputs: usize,
    /// Nanoseconds of an empty program, with what stands behind the exits of the first object's.
    pub empty_ns: f64,
    /// By object. The first is compared with itself.
    pub objects: Vec<Timed>,
    /// The second loads of the first object: the check.
    pub again: Timed,
    /// By object, if there is a table ([`Settings::costs`](super::Settings)); `None` where the interpreter does not run the inputs as the
    /// kernel does.
    #[serde(skip)]
    pub estimates: Vec<Option<Estimate>>,
    /// Likewise: every object against each before it.
    #[serde(skip)]
    pub pairs: Vec<Pair>,
}

/// Two objects beside each other.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The one.
    pub of: usize,
    /// What it is compared with.
    pub to: usize,
    /// How much longer it takes.
    pub comparison: Comparison,
    /// What is to be believed of that.
    pub call: Call,
}

/// What came of one program.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Why it was not timed, if so.
    pub skipped: Option<String>,
    /// Each run began when the one before had ended.
    pub serialized: bool,
    /// By object.
    pub facts: Vec<Facts>,
    /// All inputs together first, then by what is returned; empty if it was not timed.
    pub classes: Vec<Class>,
    /// Inputs for which an object returns something else than the first.
    pub differ: usize,
}

impl Program {
    /// One that was not timed, and why.
    pub(super) fn skipped(name: &str, kind: ProgramType, why: String) -> Program {
        Program {
            name: name.to_owned(),
            kind: kind.to_string(),
            skipped: Some(why),
            serialized: false,
            facts: Vec::new(),
            classes: Vec::new(),
            differ: 0,
        }
    }
}
