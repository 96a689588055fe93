//! How often the blocks of an object's functions ran, and their branches were taken: the data.
//!
//! Counts come from runs in the interpreter ([`crate::counting`]), or from a copy of the object that counts in the kernel
//! ([`crate::instrument`]). Both count the same: how often each block begins, and how often the branch at its end is taken. Blocks are those
//! of the graphs that are built of the object's own code, so counts belong to one object, whose hash they carry ([`Counts::check`]).
//!
//! Promise: counts only weigh ([`bpf_program::Profile`]). Wrong ones cost time, never behaviour.

use std::collections::BTreeMap;

use bpf_kernel::Entry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::inputs::input::Input;

/// Counts of one object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// SHA-256 of the object that ran, in hexadecimal digits.
    pub object: String,
    /// Where they are from: `interpreter` or `kernel`.
    pub source: String,
    /// By function.
    pub functions: Vec<FunctionCounts>,
}

/// Counts of one function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// Its name.
    pub name: String,
    /// The section it is in.
    pub section: String,
    /// Its number in the object.
    pub function: usize,
    /// Its blocks.
    pub blocks: Vec<BlockCount>,
}

/// Counts of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockCount {
    /// Its number, as in `bpf-opt dis --cfg`.
    pub block: u32,
    /// The slot of its first instruction in the function; null if it only jumps.
    pub slot: Option<usize>,
    /// How often it began.
    pub runs: u64,
    /// How often the branch at its end was taken; null if it has none.
    pub taken: Option<u64>,
}

/// Why counts cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CountsError {
    /// They are of another object.
    #[error("they are of another object (SHA-256 {theirs}…, this one has {own}…)", theirs = short(.theirs), own = short(.own))]
    OtherObject {
        /// The hash in the counts.
        theirs: String,
        /// The object's.
        own: String,
    },
    /// They name a function that is not there.
    #[error("the object has no function {name} in section {section} as number {number}")]
    NoFunction {
        /// Its name.
        name: String,
        /// Its section.
        section: String,
        /// Its number.
        number: usize,
    },
    /// Blocks do not fit.
    #[error("function {name}: {why}")]
    Blocks {
        /// The function.
        name: String,
        /// In words.
        why: String,
    },
}

/// The beginning of a hash.
fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}

/// The hash by which counts name an object.
pub fn hash(object: &[u8]) -> String {
    hex::encode(Sha256::digest(object))
}

/// What programs run on.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Packets, if there are no inputs.
    pub packets: Vec<Vec<u8>>,
    /// What maps hold before the first packet, by name.
    pub maps: BTreeMap<String, Vec<Entry>>,
    /// Inputs that a test run can make, by program, each with its own contents of maps.
    pub inputs: Option<BTreeMap<String, Vec<Input>>>,
}

impl Counts {
    /// How often the blocks of all functions ran.
    pub fn total(&self) -> u64 {
        self.functions.iter().flat_map(|f| &f.blocks).map(|b| b.runs).sum()
    }
}
