//! The object as its user loads it: all programs at once, by libbpf.
//!
//! The gate judges each program by itself, so that one that does not load is no matter of the others. Whoever loads the
//! object may want all of them, and libbpf then refuses it for what no program alone shows: programs of two types that
//! share a program array (`bpf_prog_map_compatible` in kernel/bpf/core.c), old definitions of maps, a map that other loaders
//! complete. The yardstick is the original again: what loaded as a whole must load as a whole, and of what did not, nobody is
//! told that the kernel accepts it.

use bpf_object::{FuncId, Object};

use super::{Job, LoadsWhole, NOT_JUDGED};
use crate::blame::{self, Context};
use crate::candidate::Candidate;
use crate::error::DriverError;
use crate::report::{KernelVerdict, Report};

/// What a function is told with which libbpf refuses the object.
const REFUSED: &str = "libbpf refuses the object as a whole after optimization";

/// Holds a result that the gate has settled (`written`: its bytes) against the original (`input`), both loaded as wholes, and
/// notes what came of it. Whether changes were taken back: then the result has to be settled and written anew.
pub(crate) fn settle_whole(
    job: Job,
    input: &[u8],
    written: &[u8],
    object: &mut Object,
    candidates: &mut [Candidate],
    report: &mut Report,
) -> Result<bool, DriverError> {
    let gate = job.gate;
    // Where a program does not load by itself, the whole does not, and the report has said so.
    if !gate.accepts_all() {
        return Ok(false);
    }
    let loads = |bytes: &[u8]| (gate.whole)(bytes, gate.deadline.get()).filter(|_| !gate.is_over());
    let original = || if written == input { loads(written) } else { loads(input) };
    let verdict =
        |accepted, reason| KernelVerdict { judged: accepted || reason != NOT_JUDGED, accepted, ..not(reason) };
    match loads(written) {
        None => {
            report.loads_whole = Some(verdict(false, NOT_JUDGED));
            report.gate = by_itself(&report.gate, "not loaded as a whole: time");
        }
        Some(Ok(())) => report.loads_whole = Some(KernelVerdict { reason: None, ..verdict(true, "") }),
        Some(Err(why)) if matches!(original(), Some(Err(_))) => {
            report.loads_whole = Some(verdict(false, &why));
            let text = format!("libbpf refuses the object as a whole, as it does the original: {why}");
            report.gate = by_itself(&report.gate, &text);
        }
        Some(Err(_)) => {
            take_back(job, &loads, object, candidates)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn not(reason: &str) -> KernelVerdict {
    KernelVerdict { reason: Some(reason.to_owned()), ..KernelVerdict::default() }
}

/// The gate's words where they are not of the object as a whole.
fn by_itself(gate: &str, more: &str) -> String {
    let words =
        gate.strip_prefix("accepted").map_or_else(|| gate.to_owned(), |rest| format!("each program accepted{rest}"));
    format!("{words}; {more}")
}

/// Gives the function up with which the object does not load; all, if it takes more than one.
fn take_back(
    job: Job,
    loads: &dyn Fn(&[u8]) -> LoadsWhole,
    object: &mut Object,
    candidates: &mut [Candidate],
) -> Result<(), DriverError> {
    let Job { module, settings, write, .. } = job;
    let is_good = |_: &Object, bytes: &[u8]| loads(bytes).map(|loads| loads.is_ok());
    let changed: Vec<usize> = candidates.iter().filter(|c| c.body.is_some()).map(|c| c.id).collect();
    let guilty = blame::convict(&is_good, object, candidates, &changed, write)?;
    let cx = Context { module, settings, write, why: REFUSED, go_on: false };
    for i in guilty.map_or(changed, |one| vec![one]) {
        blame::give_up(cx, object, &mut candidates[i])?;
        debug_assert!(object.new_body(FuncId(i)).is_none());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bpf_kernel::{ObjectVerdict, Question};
    use bpf_object::WriteOptions;
    use bpf_passes::Settings;

    use super::super::Gate;
    use super::*;
    use crate::module::Module;

    const OBJECT: &[u8] = include_bytes!("../../../../examples/globals.o");
    const WRITE: WriteOptions = WriteOptions { keep_debug: false };

    /// What is left of the example's changed functions, and the report, where libbpf loads as wholes only objects of which
    /// `refuses` says no: it gets the names of the functions that are changed.
    fn settled(refuses: fn(&BTreeSet<String>) -> bool, original_loads: bool) -> (BTreeSet<String>, Report) {
        let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let settings = Settings::default();
        let (mut candidates, mut object) = crate::candidate::after_passes(&module, &settings);
        let all_load = Box::new(|_: &[u8], _: &dyn Fn(&str, &str) -> Question, _| {
            Ok(ObjectVerdict { programs: Vec::new(), not_loadable: None })
        });
        let mut gate = Gate::with(OBJECT, all_load, &|_, _| Question::AsDefined, None, None);
        gate.whole = Box::new(move |bytes, _| {
            let object = Object::parse(bytes.to_vec()).expect("it was written");
            let original = Object::parse(OBJECT.to_vec()).expect("a committed object");
            let ids = (0..object.functions().len()).map(FuncId);
            let changed = ids.filter(|f| object.code(*f) != original.code(*f));
            let changed: BTreeSet<String> = changed.map(|f| object.functions()[f.0].name.clone()).collect();
            let loads = if changed.is_empty() { original_loads } else { !refuses(&changed) };
            Some(if loads { Ok(()) } else { Err("no".to_owned()) })
        });
        let mut report = Report { gate: "accepted".to_owned(), ..Report::default() };
        for _ in 0..4 {
            let bytes = object.write(&WRITE).expect("it is written").bytes;
            let job = gate.job(&module, &settings, &WRITE);
            let again = settle_whole(job, OBJECT, &bytes, &mut object, &mut candidates, &mut report);
            if !again.expect("it settles") {
                let left = candidates.iter().filter(|c| c.body.is_some()).map(|c| c.report.name.clone()).collect();
                return (left, report);
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_function_with_which_the_object_no_longer_loads_goes_back_alone() {
        let (all, report) = settled(|_| false, true);
        assert!(all.len() > 1, "the example no longer tempts the optimizer: {all:?}");
        assert!(report.gate == "accepted" && report.loads_whole.is_some_and(|k| k.accepted));
        let (left, report) = settled(|changed| changed.contains("on_exit"), true);
        assert!(all.contains("on_exit"), "{all:?}");
        assert_eq!(left, all.into_iter().filter(|name| name != "on_exit").collect());
        assert!(report.loads_whole.is_some_and(|k| k.accepted));
    }

    #[test]
    fn where_several_are_to_blame_all_go_back() {
        let (left, report) = settled(|changed| !changed.is_empty(), true);
        assert!(left.is_empty(), "{left:?}");
        assert!(report.loads_whole.is_some_and(|k| k.accepted));
    }

    #[test]
    fn what_did_not_load_before_is_kept_and_not_called_accepted() {
        let (all, _) = settled(|_| false, true);
        let (left, report) = settled(|_| true, false);
        assert_eq!(left, all);
        assert_eq!(
            report.gate,
            "each program accepted; libbpf refuses the object as a whole, as it does the original: no"
        );
        assert!(report.loads_whole.is_some_and(|k| k.judged && !k.accepted));
    }
}
