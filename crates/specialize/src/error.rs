//! What can be wrong with a declaration.

use bpf_object::ObjectError;
use thiserror::Error;

/// Why an object is not specialized.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpecializeError {
    /// The object cannot be read or written.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A declared variable or map that the object does not have.
    #[error("there is no {what} `{name}`; there are: {known}")]
    Unknown {
        /// Variable, kconfig variable or map.
        what: &'static str,
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A value that does not fit its variable.
    #[error("variable `{name}`: {problem}")]
    Variable {
        /// The variable.
        name: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A map that cannot be taken for frozen, or elements that it cannot have.
    #[error("map `{name}`: {problem}")]
    Map {
        /// The map.
        name: String,
        /// What stands against it.
        problem: String,
    },
    /// A function that would be too long.
    #[error("function `{name}`: {problem}")]
    Function {
        /// The function.
        name: String,
        /// What stands against it.
        problem: String,
    },
    /// A big-endian object: what this writes is for little-endian machines.
    #[error("the object is big-endian, and only little-endian ones are specialized")]
    BigEndian,
    /// An object that is specialized already.
    #[error("the object is specialized already: begin with the one that it was made of")]
    Already,
    /// An object that is not specialized for anything.
    #[error("the object does not say what it was specialized for: it has no note section `.note.bpf_opt`")]
    NoNote,
    /// An object that several specialized ones have become.
    #[error("the object was linked of {0} that were specialized: compare these, each with its original")]
    Linked(usize),
    /// A note that cannot be read.
    #[error("the note of what the object was specialized for cannot be read: {0}")]
    BadNote(String),
    /// What would be written is not right; nothing is.
    #[error("internal error: {0}")]
    Internal(String),
}

impl SpecializeError {
    pub(crate) fn map(name: &str, problem: impl Into<String>) -> SpecializeError {
        SpecializeError::Map { name: name.to_owned(), problem: problem.into() }
    }
}
