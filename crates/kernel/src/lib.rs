//! The running kernel as the last judge: does it load, what did the verifier say, what does it return, how fast is it.
//!
//! The one idea: nothing here decides anything about a program. A candidate goes to the kernel, and the kernel's answer
//! comes back as data. Everything is loaded and test-run only: no program is attached to any hook, nothing is pinned,
//! and what was loaded is gone when the value that holds it is dropped.
//!
//! | want | use |
//! |---|---|
//! | may this process call bpf() at all | [`permitted`] |
//! | one verdict per program of an ELF object | [`load_object`] |
//! | the same for many forms of one object, in a given time | [`Loader`] |
//! | an object whose programs run and whose maps are read | [`LoadedObject`] |
//! | a handful of instructions without an ELF file | [`RawProgram`], [`Map`] |
//! | test runs that cannot reach the host's network | [`in_private_network`] |
//! | cycles that a thread uses | [`Counter`] |
//! | how often loaded programs ran, and maps by number | [`Observed`], [`Map::by_id`] |
//! | what this kernel can do | [`supports`], [`supports_program_type`], [`supports_helper`] |

mod btf;
mod error;
mod failure;
mod feature;
mod legacy;
mod loader;
mod map;
mod marks;
mod network;
mod object;
mod observed;
mod perf;
mod permission;
mod program_type;
mod raw;
mod run;
mod stats;
mod surroundings;
mod symbols;
mod sys;
pub mod testing;
mod verdict;
mod ways;

pub use btf::{Btf, kernel_type_id};
pub use error::{KernelError, Rejection};
pub use feature::{Feature, processor, release, supports, supports_helper, supports_program_type};
pub use loader::{Loader, Question};
pub use map::{Entry, Map, SharedWords};
pub use marks::Marks;
pub use network::in_private_network;
pub use object::{LoadOptions, LoadedObject, load_object, load_object_file};
pub use observed::{Observed, Runs, Statistics};
pub use perf::{Counter, Event};
pub use permission::{Permission, permitted};
pub use program_type::ProgramType;
pub use raw::{RawOptions, RawProgram};
pub use run::{RunResult, Timing};
pub use stats::{ProgramInfo, VerifierStats};
pub use surroundings::{own_network, software_event};
pub use verdict::{LoadVerdict, ObjectVerdict, ProgramVerdict};
pub use ways::{Decided, Form, Made};
