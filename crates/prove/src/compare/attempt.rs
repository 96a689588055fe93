//! Attempts at one proof under different views of what others may do meanwhile.

use crate::compare::judge::Judged;
use crate::compare::relation::{Known, Relation};
use crate::options::Options;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::Context;
use crate::symbolic::symex::Stop;

/// Tries a proof. Others write shared memory while it is made; if that does not show the two equal, once more with
/// repeated lookups of the old side taken for one. Only then, and only where `refute` asks for it, is a difference looked
/// for that shows where a program runs alone, as in the interpreter: with a memory per region first; with one memory if
/// provenance is unknown somewhere.
pub(crate) fn attempt<T: Settled>(
    options: &Options,
    refute: bool,
    mut f: impl FnMut(&mut Context) -> Result<T, Stop>,
) -> (Result<T, Stop>, Context) {
    let mut ask = |concurrent: bool, one_memory: bool, merge_lookups: bool, forward: bool| {
        let mut cx = Context::of(options);
        cx.mend_answers(!refute);
        cx.concurrent = concurrent;
        cx.one_memory |= one_memory;
        cx.merge_lookups = merge_lookups;
        cx.forward = forward;
        (f(&mut cx), cx)
    };
    let equal = |result: &Result<T, Stop>| result.as_ref().is_ok_and(T::equal);
    let (result, cx) = ask(true, false, false, false);
    if equal(&result) {
        return (result, cx);
    }
    let (merge, forward) = (cx.lookups_repeated, cx.may_forward);
    let others = [(true, false), (false, true), (true, true)];
    for (merge, forward) in others.into_iter().filter(|(m, f)| (merge || !m) && (forward || !f)) {
        let (other, cx) = ask(true, false, merge, forward);
        if equal(&other) {
            return (other, cx);
        }
    }
    if !refute || !cx.touched_shared || cx.exhausted() {
        return (result, cx);
    }
    let (mut alone, mut context) = ask(false, false, false, false);
    if matches!(alone, Err(Stop::Provenance)) {
        (alone, context) = ask(false, true, false, false);
    }
    context.stats.add(cx.stats);
    match &alone {
        Ok(found) if found.different() => (alone, context),
        _ => {
            // Equal to one that runs alone is not enough.
            let why = match result {
                Err(stop) => stop,
                Ok(found) => Stop::Unmodelled(found.reason()),
            };
            (Err(why), context)
        }
    }
}

/// Results that may say "equal" or "different".
pub(crate) trait Settled {
    fn equal(&self) -> bool;
    fn different(&self) -> bool;
    /// Why it is not "equal", where that is not for a difference.
    fn reason(&self) -> String;
}

/// Why a difference that needs others to write is none that a run would show.
const OTHERS_WRITE: &str = "what others may write meanwhile makes a difference";

impl Settled for (Judged, Outcome, Outcome) {
    fn equal(&self) -> bool {
        matches!(self.0, Judged::Equal)
    }

    fn different(&self) -> bool {
        matches!(self.0, Judged::Different(_))
    }

    fn reason(&self) -> String {
        match &self.0 {
            Judged::Unknown(why) => why.clone(),
            _ => OTHERS_WRITE.into(),
        }
    }
}

impl Settled for Result<(Relation, Known), String> {
    fn equal(&self) -> bool {
        self.is_ok()
    }

    fn different(&self) -> bool {
        false
    }

    fn reason(&self) -> String {
        self.as_ref().err().cloned().unwrap_or_else(|| OTHERS_WRITE.into())
    }
}
