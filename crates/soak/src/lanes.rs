//! The lanes there are, and what each is to reach.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::campaign::{LanePlan, MakeLane};
use crate::clang::ClangLane;
use crate::exec::Exec;
use crate::facts::FactsLane;
use crate::helpers::HelpersLane;
use crate::mutants::Mutants;
use crate::packets::{self, Packets, Subject};
use crate::queries::Queries;
use crate::threads::ThreadsLane;
use crate::{Lane, corpus};

/// All lanes. The targets are twice what a campaign of an hour has promised. What is worth keeping of a
/// disagreement goes into `folder`.
pub fn all(folder: &Path) -> Vec<LanePlan> {
    let plan = |name, counter, per_hour, slice, make: MakeLane| LanePlan { name, counter, per_hour, slice, make };
    let boxed = |lane| -> Box<dyn Lane> { Box::new(lane) };
    let boxed_threads = |lane| -> Box<dyn Lane> { Box::new(lane) };
    let boxed_clang = |lane| -> Box<dyn Lane> { Box::new(lane) };
    let keep = folder.to_owned();
    // The objects are loaded once, by the first worker that needs them.
    let subjects: OnceLock<Arc<Vec<Subject>>> = OnceLock::new();
    let make_packets: MakeLane = Box::new(move || {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        let subjects = subjects.get_or_init(|| Arc::new(packets::subjects(&packets::folders())));
        Packets::new(Arc::clone(subjects), Some(keep.clone())).map(|l| -> Box<dyn Lane> { Box::new(l) })
    });
    let boxed_helpers = |lane| -> Box<dyn Lane> { Box::new(lane) };
    let (finds, helper_finds, watched) = (folder.to_owned(), folder.to_owned(), folder.to_owned());
    vec![
        plan("exec", "instructions", 10_000_000, 4, Box::new(move || Exec::new().map(boxed))),
        plan("packets", "packets", 400_000, 4, make_packets),
        plan("clang", "runs", 300_000, 4, Box::new(move || ClangLane::new(&finds).map(boxed_clang))),
        plan("helpers", "runs", 200_000, 2, Box::new(move || HelpersLane::new(&helper_finds).map(boxed_helpers))),
        plan("threads", "programs", 5_000, 4, Box::new(move || ThreadsLane::new(&watched).map(boxed_threads))),
        plan("queries", "queries", 100_000, 4, Box::new(|| with_z3(Queries::new()))),
        plan("mutants", "mutants", 40_000, 4, Box::new(|| with_z3(Mutants::new()))),
        plan(
            "facts",
            "points",
            20_000_000,
            8,
            Box::new(|| Ok(Box::new(FactsLane::new(corpus::Corpus::of(&packets::folders()))))),
        ),
    ]
}

/// A lane that needs Z3, or why there is none.
fn with_z3<L: Lane + 'static>(made: std::io::Result<L>) -> Result<Box<dyn Lane>, String> {
    made.map(|lane| -> Box<dyn Lane> { Box::new(lane) }).map_err(|e| format!("z3 cannot be run here: {e}"))
}
