//! Verdicts: what is wrong, where, and how one gets there.

use std::rc::Rc;
use std::time::Instant;

use bpf_object::{FuncId, FuncKind, Object};
use bpf_platform::permissions;

use crate::needs::ContextAccess;
use crate::program::{Program, Target};
use crate::state::{Frame, Kind, RegState, VerifierState};
use crate::walk::{Decision, Effort, Walk};
use crate::{Stop, cfg};

/// What came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SafetyVerdict {
    /// No rule is broken on any path.
    Accepted,
    /// A rule is broken.
    Violation,
    /// Something in it is not described here.
    CannotTell,
}

/// What stopped the walk.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Slot in the linked program.
    pub slot: usize,
    /// What is wrong, in the verifier's vocabulary.
    pub what: String,
    /// The decisions at conditional jumps on the way there.
    pub path: Vec<Decision>,
}

/// The verdict on one program.
#[derive(Clone, Debug)]
pub struct Report {
    /// What came out.
    pub verdict: SafetyVerdict,
    /// Why, unless accepted.
    pub problem: Option<Problem>,
    /// What it took.
    pub effort: Effort,
    /// Which of its instructions access the context, and where, as far as the walk came.
    pub contexts: Vec<ContextAccess>,
}

impl Report {
    /// Checks a linked program.
    pub fn of(program: &Program) -> Report {
        Report::until(program, None).0
    }

    /// Checks a linked program; `None` if that is not done at the deadline.
    pub fn within(program: &Program, deadline: Option<Instant>) -> Option<Report> {
        let (report, in_time) = Report::until(program, deadline);
        in_time.then_some(report)
    }

    /// The report, and whether it was made in time.
    fn until(program: &Program, deadline: Option<Instant>) -> (Report, bool) {
        let (mut effort, mut contexts) = (Effort::default(), Vec::new());
        let (stop, path) = match check(program, deadline, &mut effort, &mut contexts) {
            Ok(()) => return (Report { verdict: SafetyVerdict::Accepted, problem: None, effort, contexts }, true),
            Err(found) => *found,
        };
        let (slot, stop) = stop;
        let in_time = stop != Stop::OutOfTime;
        let (verdict, what) = match stop {
            Stop::Violation(what) => (SafetyVerdict::Violation, what),
            Stop::CannotTell(what) => (SafetyVerdict::CannotTell, what),
            Stop::OutOfTime => (SafetyVerdict::CannotTell, "time ended first".to_owned()),
        };
        (Report { verdict, problem: Some(Problem { slot, what, path }), effort, contexts }, in_time)
    }
}

type Found = Box<((usize, Stop), Vec<Decision>)>;

fn check(
    program: &Program,
    deadline: Option<Instant>,
    effort: &mut Effort,
    contexts: &mut Vec<ContextAccess>,
) -> Result<(), Found> {
    let plain = |stop| Box::new((stop, Vec::new()));
    if program.slots.is_empty() {
        return Err(plain((0, Stop::Violation("no instructions".into()))));
    }
    let shape = cfg::check(program).map_err(plain)?;
    if !permissions::knows(program.kind) {
        let what =
            format!("nothing is known of the context of programs of type {} of `enum bpf_prog_type`", program.kind);
        return Err(plain((0, Stop::CannotTell(what))));
    }
    let mut depths = vec![0; program.subs.len()];
    let roots: Vec<usize> = (0..program.subs.len()).filter(|s| *s == 0 || program.subs[*s].global).collect();
    for root in roots {
        let frame = Frame::new(root, usize::MAX - 1, 0);
        let state = VerifierState { frames: vec![Rc::new(frame)], held: Vec::new(), lock: None };
        let mut walk = Walk::new(program, &shape, root, state, &mut depths);
        walk.deadline = deadline;
        let start = walk.at;
        if root == 0 {
            *walk.state.reg_mut(bpf_isa::Reg::R1) = RegState::pointer(Kind::Ctx);
        } else {
            walk.global_entry().map_err(|stop| plain((start, stop)))?;
        }
        let outcome = walk.run();
        let path = walk.path();
        effort.processed += walk.effort.processed;
        effort.states += walk.effort.states;
        contexts.extend(&walk.contexts);
        outcome.map_err(|stop| Box::new((stop, path)))?;
    }
    contexts.sort_unstable();
    contexts.dedup();
    stack_chains(program, &depths).map_err(plain)
}

/// Bytes of stack along a call chain, and calls on it.
const CHAIN: (i64, usize) = (512, 8);
/// Types whose functions get a stack of their own on x86-64 (`bpf_enable_priv_stack`).
const PRIVATE_STACK: [u32; 4] = [2, 5, 7, 17];

/// All frames of a call chain share one stack.
fn stack_chains(program: &Program, depths: &[i64]) -> Result<(), (usize, Stop)> {
    if program.subs.len() == 1 {
        return Ok(());
    }
    let calls: Vec<Vec<usize>> = program
        .subs
        .iter()
        .map(|sub| {
            program.slots[sub.start..sub.end]
                .iter()
                .filter_map(|s| match s.target {
                    Target::Func(f) => program.sub_at(f),
                    _ => None,
                })
                .collect()
        })
        .collect();
    // (function, bytes used before it, frames before it); revisited only with more of either.
    let mut most = vec![(-1, 0); program.subs.len()];
    let mut work = vec![(0usize, 0i64, 1usize)];
    while let Some((sub, before, frames)) = work.pop() {
        let total = before + (depths[sub] + 15) / 16 * 16;
        let start = program.subs[sub].start;
        if total > CHAIN.0 && !PRIVATE_STACK.contains(&program.kind) {
            let what = format!("combined stack size of {frames} calls is {total}. Too large");
            return Err((start, Stop::Violation(what)));
        }
        if frames > CHAIN.1 {
            return Err((start, Stop::Violation(format!("the call stack of {frames} frames is too deep !"))));
        }
        if most[sub].0 >= total && most[sub].1 >= frames {
            continue;
        }
        most[sub] = (total.max(most[sub].0), frames.max(most[sub].1));
        work.extend(calls[sub].iter().map(|c| (*c, total, frames + 1)));
    }
    Ok(())
}

/// The entry programs of an object.
pub fn programs(object: &Object) -> Vec<FuncId> {
    let functions = object.functions().iter().enumerate();
    functions.filter(|(_, f)| f.kind == FuncKind::Program).map(|(i, _)| FuncId(i)).collect()
}
