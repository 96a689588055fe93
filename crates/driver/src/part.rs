//! What became of one function, as data; how it is made and used is in [`crate::parts`].

use std::fmt::Debug;

use bpf_object::NewInsn;
use serde::{Deserialize, Serialize};

/// What became of one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Why it was left as it was, if there is a reason.
    pub untouched: Option<String>,
    /// The passes, in the order of first use.
    pub by: Vec<String>,
    /// Its instructions; `None`: as they were.
    pub body: Option<Vec<Piece>>,
}

/// An instruction of a body: its bytes as hexadecimal digits, and the slots of the original from which it has its source line
/// and what the loader patches ([`NewInsn`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece(String, Option<usize>, Option<usize>);

/// Where parts are kept, by name. What cannot be read or written counts as missing.
pub trait Parts: Debug + Send + Sync {
    /// The part of this name, if there is one.
    fn get(&self, name: &str) -> Option<Part>;
    /// Keeps it.
    fn put(&self, name: &str, part: &Part);
}

/// A function, and the name of its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Symbol name.
    pub function: String,
    /// Section.
    pub section: String,
    /// Instruction slots.
    pub slots: usize,
    /// The name of the part; `None`: nothing can be done with the function, or it is not wanted.
    pub part: Option<String>,
}

impl Piece {
    fn of(insn: &NewInsn) -> Piece {
        Piece(hex::encode(&insn.bytes), insn.origin, insn.refs_from)
    }

    fn insn(&self) -> Option<NewInsn> {
        let Piece(digits, origin, refs_from) = self;
        let bytes = hex::decode(digits).ok()?;
        Some(NewInsn { bytes, origin: *origin, refs_from: *refs_from })
    }
}

impl Part {
    pub(crate) fn new(untouched: Option<String>, by: Vec<String>, body: Option<&[NewInsn]>) -> Part {
        Part { untouched, by, body: body.map(|body| body.iter().map(Piece::of).collect()) }
    }

    /// Its instructions; `None` if they are as they were, or what stands there is none.
    pub(crate) fn insns(&self) -> Option<Vec<NewInsn>> {
        self.body.as_ref()?.iter().map(Piece::insn).collect()
    }
}
