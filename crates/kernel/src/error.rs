//! What can go wrong besides the kernel's own judgement.
//!
//! A program that the verifier refuses is no error of this crate: it is a [`LoadVerdict`](crate::LoadVerdict) or a
//! [`Rejection`]. A [`KernelError`] means that the question could not be put.

use std::{io, path::PathBuf};

use bpf_platform::ByteOrder;
use thiserror::Error;

/// Why a question to the kernel got no answer.
#[derive(Debug, Error)]
pub enum KernelError {
    /// This process may not load programs.
    #[error("bpf() is not permitted here: {reason}")]
    NotPermitted {
        /// What the attempt ran into.
        reason: String,
    },
    /// The object file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The object is for machines of another byte order than this one.
    #[error("the object is {}, and the kernel of this machine is not", order.name())]
    ByteOrder {
        /// The object's byte order.
        order: ByteOrder,
    },
    /// libbpf could not open the bytes as a BPF object.
    #[error("libbpf cannot open the object: {reason}")]
    Open {
        /// libbpf's own words.
        reason: String,
    },
    /// The object opened, but did not load as a whole.
    #[error("the object does not load: {reason}")]
    Load {
        /// libbpf's own words.
        reason: String,
    },
    /// No entry program of that name in the object.
    #[error("the object has no program named {name}")]
    NoProgram {
        /// The name asked for.
        name: String,
    },
    /// No map of that name in the object.
    #[error("the object has no map named {name}")]
    NoMap {
        /// The name asked for.
        name: String,
    },
    /// A program type that libbpf does not know.
    #[error("no program type is called {name:?}: use a section name such as xdp, classifier, socket or kprobe")]
    UnknownProgramType {
        /// The name asked for.
        name: String,
    },
    /// A key or value of the wrong length for its map.
    #[error("the {what} has {given} bytes, map {map} has {expected}")]
    WrongLength {
        /// The map's name.
        map: String,
        /// "key" or "value".
        what: &'static str,
        /// Bytes passed.
        given: usize,
        /// Bytes the map has.
        expected: usize,
    },
    /// The kernel refused an operation other than loading.
    #[error("{operation}")]
    Refused {
        /// What was tried, with its subject.
        operation: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no way to run programs of this type on demand.
    #[error("the kernel cannot test-run {kind} programs")]
    NotRunnable {
        /// The name of the program type.
        kind: String,
    },
}

impl KernelError {
    pub(crate) fn refused(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Refused { operation, source }
    }
}

/// The kernel's refusal to load a raw program.
#[derive(Debug, Clone, Error)]
#[error("the kernel refuses the program ({}): {}", io::Error::from_raw_os_error(*errno), self.reason())]
pub struct Rejection {
    /// The error number of bpf(BPF_PROG_LOAD).
    pub errno: i32,
    /// The verifier's log; empty when the kernel refused before it verified.
    pub log: String,
}

impl Rejection {
    /// The line of the log that says why: the last one that is not a statistic.
    pub fn reason(&self) -> &str {
        crate::stats::last_complaint(&self.log)
    }
}
