//! Is a program safe? The question the kernel's verifier asks, answered without a kernel, with a reason.
//!
//! Programs are walked path by path ([`Report::of`]), numbers kept as known bits and ranges (`bpf_facts`), pointers
//! with what they point into; states at places where paths meet are remembered, so that a path ends where an older one
//! covers it. The measure of this crate is agreement with Linux 6.18 as a privileged loader sees it, so it refuses what
//! the kernel refuses, in the kernel's words, even where no input leads there.
//!
//! | module | holds |
//! |---|---|
//! | `program` | linking a program with its functions, as libbpf does |
//! | `cfg` | the shape of the code: encodings, jumps, reachability, live registers |
//! | `walk` | walking all paths; remembering and comparing states |
//! | `compare`, `graph` | when one state covers another; which numbers' bounds mattered |
//! | `state`, `scalar` | what is known at one point |
//! | `alu`, `branch`, `memory`, `call` | what each instruction does to it, and what it may not do |
//! | `rules` | what helpers and maps allow; for program types and contexts see `bpf_platform::permissions` |
//! | `needs` | which releases of the kernel have what a program uses |
//! | `agreement` | the running kernel's verdict beside ours |
//! | `report` | verdicts, and how to say them |

mod alu;
mod branch;
mod call;
mod cfg;
mod compare;
mod graph;
mod memory;
mod needs;
mod program;
mod report;
mod rules;
mod scalar;
mod state;
mod walk;

pub use needs::{ContextAccess, Need, Place, first_release, needs};
pub use program::{MapInfo, Program, Slot, Sub, Target, is_gpl};
pub use report::{Problem, Report, SafetyVerdict, programs};
pub use walk::{Decision, Effort};

/// Why a walk stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The program breaks a rule.
    Violation(String),
    /// Something is not described here.
    CannotTell(String),
    /// Time ended first.
    OutOfTime,
}
