//! What can be wrong with an object file or with a request to change it.
//!
//! The one idea: every error names the place (section and offset) and the problem in words a
//! user can act on; the command line adds the file name. Promise: whatever the input bytes are,
//! the crate answers with one of these and never panics.

/// Why an object cannot be read, changed or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The file does not start with the ELF magic, or is shorter than an ELF header.
    #[error("not an ELF object file")]
    NotElf,
    /// A 32-bit ELF file.
    #[error("a 32-bit ELF file; BPF objects are 64-bit")]
    Not64Bit,
    /// ELF for another machine.
    #[error("not a BPF object: ELF machine {machine}, expected 247 (EM_BPF)")]
    WrongMachine {
        /// `e_machine` as found.
        machine: u16,
    },
    /// An executable or shared object instead of a relocatable one.
    #[error("not a relocatable object file: ELF type {found}, expected 1 (ET_REL)")]
    WrongType {
        /// `e_type` as found.
        found: u16,
    },
    /// Some structure reaches past the end of the file.
    #[error("truncated file: {what} at {offset:#x}, {size:#x} bytes long, reaches past the end at {len:#x}")]
    Truncated {
        /// The structure.
        what: String,
        /// Its file offset.
        offset: u64,
        /// Its size in bytes.
        size: u64,
        /// The size of the file.
        len: u64,
    },
    /// A section whose contents make no sense.
    #[error("section `{section}`, offset {offset:#x}: {problem}")]
    Corrupt {
        /// The section's name.
        section: String,
        /// Byte offset in the section.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// Valid, but nothing this crate can handle.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// A function number which the object does not have.
    #[error("no function number {index}")]
    NoSuchFunction {
        /// The number.
        index: usize,
    },
    /// The function must keep its body; see [`crate::Object::locked`].
    #[error("function `{function}` must stay as it is: {reason}")]
    Locked {
        /// The function's name.
        function: String,
        /// Why.
        reason: String,
    },
    /// A new body that is not well formed.
    #[error("new body of `{function}`, slot {slot}: {problem}")]
    Body {
        /// The function's name.
        function: String,
        /// Slot in the new body.
        slot: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The written file failed the check of this crate itself.
    #[error("internal error: the rewritten object does not read back: {problem}")]
    Internal {
        /// What the check found.
        problem: String,
    },
}

impl ObjectError {
    pub(crate) fn corrupt(section: &str, offset: u64, problem: impl Into<String>) -> Self {
        Self::Corrupt { section: section.to_owned(), offset, problem: problem.into() }
    }
}
