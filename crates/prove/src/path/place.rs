//! Where things are for the solver, and what stands for what an input consists of.

use crate::term::TermId;

/// The context.
pub(super) const CTX: u64 = 0x1000_0000;
/// The start of the packet: below 4 GiB, for context fields of 32 bits.
pub(super) const PACKET: u64 = 0x2000_0100;
/// Elements of maps, by the lookup that found them.
pub(super) const OBJECTS: u64 = 0x40_0000_0000;
/// Maps, sections and the like.
pub(super) const SYMBOLS: u64 = 0x60_0000_0000;
/// Bytes between two of them.
pub(super) const OBJECT_BYTES: u64 = 0x100_0000;
/// The frame pointer of the program.
pub(super) const FRAME: u64 = 0xffff_c900_0001_0000;
/// Bytes of a frame.
pub(super) const FRAME_BYTES: i64 = 512;
/// Shortest and longest packet that a test run takes, with room for more headers.
pub(super) const SHORTEST: u64 = 14;
pub(super) const LONGEST: u64 = 3000;

/// What a variable is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// An address that is always the same.
    Fixed(u64),
    /// Follows from others.
    Derived(TermId),
    /// Part of the input, which a test run can set.
    Input,
    /// Part of the input for the interpreter alone; this in the run.
    Environment(u64),
    /// Not known.
    Unknown,
}

/// A lookup of the path.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// The map.
    pub map: std::sync::Arc<str>,
    /// Conditions before it.
    pub before: usize,
    /// The bytes of its key.
    pub key: Vec<TermId>,
    /// What it returned.
    pub result: TermId,
    /// Whether the run found an element.
    pub found: bool,
    /// Whether an element can be put there, or left out.
    pub settable: bool,
}

/// A call whose result, and what it wrote, a script may say.
#[derive(Clone, Debug)]
pub(super) struct Scripted {
    /// Which call of something outside of the program, from 0.
    pub number: usize,
    /// Conditions before it.
    pub before: usize,
    /// Its result.
    pub result: TermId,
    /// Whether it returns a pointer, where it did not.
    pub chosen: Option<TermId>,
}

/// Where in its section a byte of global data stands.
pub(super) fn offset_of(address: u64) -> u64 {
    address.wrapping_sub(SYMBOLS) % OBJECT_BYTES
}
