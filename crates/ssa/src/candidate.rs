//! One function all the way: lifted, changed, lowered.

use bpf_facts::Env;
use bpf_program::{Function, slot_count};
use thiserror::Error;

use crate::passes::Pass;
use crate::{Refusal, Ssa, in_place, lift, lower};

/// Why there is nothing to propose.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoCandidate {
    /// The function was not lifted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be put into registers without spilling.
    #[error("not enough registers")]
    Registers,
}

/// What SSA makes of a function: a proposal.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The form that was lowered.
    pub ssa: Ssa,
    /// The function.
    pub function: Function,
}

/// Lifts `f`, runs the passes until none changes anything, and lowers the result. Where registers do not suffice, less is
/// tried: no spill slot made a value, then no passes.
///
/// # Errors
/// [`NoCandidate`]: the function stays as it is.
pub fn candidate(f: &Function, env: &Env<'_>, passes: &[&dyn Pass]) -> Result<Candidate, NoCandidate> {
    Forms::of(f, env).candidate(passes)
}

/// What SSA makes of one function by several sets of passes. Most passes find nothing to do in most functions, so that many sets lead
/// to one form: it is lifted once, and each form lowered once.
struct Forms<'a> {
    of: &'a Function,
    env: &'a Env<'a>,
    /// Without spill slots made values, and with.
    lifted: [Option<Result<Ssa, Refusal>>; 2],
    lowered: Vec<(Ssa, Option<Function>)>,
}

impl<'a> Forms<'a> {
    fn of(f: &'a Function, env: &'a Env<'a>) -> Forms<'a> {
        Forms { of: f, env, lifted: [None, None], lowered: vec![] }
    }

    /// [`candidate`] by these passes.
    fn candidate(&mut self, passes: &[&dyn Pass]) -> Result<Candidate, NoCandidate> {
        let mut last = NoCandidate::Registers;
        for (promote, passes) in [(true, passes), (false, passes), (false, &[])] {
            let lifted =
                self.lifted[usize::from(promote)].get_or_insert_with(|| lift(self.of, self.env, promote)).clone();
            let mut ssa = match lifted {
                Ok(s) => s,
                Err(why) => {
                    last = why.into();
                    continue;
                }
            };
            crate::passes::run(&mut ssa, self.env, passes);
            ssa.drop_unreachable();
            if let Some(function) = self.lower(&ssa) {
                return Ok(Candidate { ssa, function });
            }
            last = NoCandidate::Registers;
        }
        Err(last)
    }

    fn lower(&mut self, ssa: &Ssa) -> Option<Function> {
        if let Some((_, function)) = self.lowered.iter().find(|(known, _)| known == ssa) {
            return function.clone();
        }
        let function = lower(ssa, self.of);
        self.lowered.push((ssa.clone(), function.clone()));
        function
    }
}

/// A step from one function to another: the passes that made it, and what it led to.
#[derive(Clone, Debug)]
pub struct Step {
    /// Names of the passes.
    pub by: Vec<&'static str>,
    /// The function.
    pub function: Function,
}

/// Who judges what the passes propose.
pub trait Judge {
    /// Whether `new` may stand in the place of `old`.
    fn accepts(&mut self, old: &Function, new: &Function) -> bool;
    /// Whether there is no time for more.
    fn is_late(&self) -> bool {
        false
    }
    /// How good a function is: the smaller the better.
    fn cost(&mut self, f: &Function) -> usize {
        slot_count(f)
    }
}

/// Goes from `f` to something better, in steps that the judge accepts. Tried are in each round first what passes make of the graph; then
/// detours over something longer that makes each step small enough to be proven ([`crate::passes::detours`]); then all other
/// passes at once, all but one, each alone, and none, the best result first. What comes out are accepted steps alone, in
/// order. The passes of the graph that come last are left to [`finish`].
pub fn improve(f: &Function, env: &Env<'_>, passes: &[Box<dyn Pass>], judge: &mut dyn Judge) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut now = f.clone();
    let mut cost = judge.cost(&now);
    for _ in 0..ROUNDS {
        if judge.is_late() {
            break;
        }
        if let Some((less, step)) = graphs(&now, env, passes, false, cost, judge) {
            (now, cost) = (step.function.clone(), less);
            steps.push(step);
            continue;
        }
        // Where there is a detour, the direct way is rarely proven.
        if let Some((less, over)) = detour(&now, env, passes, cost, judge) {
            now = over[1].function.clone();
            cost = less;
            steps.extend(over);
            continue;
        }
        let proposals = proposals(&now, env, passes, cost, judge);
        let Some((less, step)) = first_accepted(&now, proposals, passes, judge) else { break };
        (now, cost) = (step.function.clone(), less);
        steps.push(step);
    }
    steps
}

/// Goes on from `f` by what those passes of the graph make of it that come last, in steps that the judge accepts.
pub fn finish(f: &Function, env: &Env<'_>, passes: &[Box<dyn Pass>], judge: &mut dyn Judge) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut now = f.clone();
    let mut cost = judge.cost(&now);
    for _ in 0..ROUNDS {
        let Some((less, step)) = graphs(&now, env, passes, true, cost, judge) else { break };
        (now, cost) = (step.function.clone(), less);
        steps.push(step);
    }
    steps
}

/// What a pass makes of the graph of `now`, if it costs less than `cost`, and is accepted: the best. Of those that come last,
/// or of the others.
fn graphs(
    now: &Function,
    env: &Env<'_>,
    passes: &[Box<dyn Pass>],
    last: bool,
    cost: usize,
    judge: &mut dyn Judge,
) -> Option<(usize, Step)> {
    if judge.is_late() {
        return None;
    }
    let chosen = passes.iter().filter(|p| p.is_last() == last);
    let all = chosen.flat_map(|p| p.graphs(now, env).into_iter().map(|g| (p.name(), g)));
    let mut found: Vec<(usize, Step)> =
        all.map(|(by, function)| (judge.cost(&function), Step { by: vec![by], function })).collect();
    found.retain(|(less, _)| *less < cost);
    found.sort_by_key(|(less, _)| *less);
    found.into_iter().find(|(_, step)| judge.accepts(now, &step.function))
}

/// What passes make of `now` that costs less than `cost`, the best first, each form once.
fn proposals(
    now: &Function,
    env: &Env<'_>,
    passes: &[Box<dyn Pass>],
    cost: usize,
    judge: &mut dyn Judge,
) -> Vec<(usize, Step)> {
    let of_forms: Vec<&dyn Pass> = passes.iter().map(AsRef::as_ref).filter(|p| !p.is_of_graphs()).collect();
    if of_forms.is_empty() {
        return vec![];
    }
    let all: Vec<&dyn Pass> = of_forms.iter().copied().filter(|p| !p.stands_alone()).collect();
    let mut sets: Vec<Vec<&dyn Pass>> = vec![all.clone()];
    for i in 0..all.len() {
        let mut rest = all.clone();
        rest.remove(i);
        sets.push(rest);
    }
    // Those that say where a constant comes from get in each other's way.
    if slot_count(now) <= SMALL {
        for without in [["ssa-exits", "ssa-defaults"], ["ssa-defaults", "ssa-presets"], ["ssa-exits", "ssa-presets"]] {
            sets.push(all.iter().copied().filter(|p| !without.contains(&p.name())).collect());
        }
    }
    sets.extend(of_forms.iter().map(|p| vec![*p]));
    // A step of its own, and what comes last anyway.
    let alone = of_forms.iter().filter(|p| p.stands_alone());
    sets.extend(alone.map(|p| std::iter::once(*p).chain(all.iter().copied().filter(|p| p.is_last())).collect()));
    sets.push(vec![]);
    let mut found: Vec<(usize, Step)> = vec![];
    let mut forms = Forms::of(now, env);
    for set in sets {
        if judge.is_late() {
            break;
        }
        let Ok(Candidate { function, .. }) = forms.candidate(&set) else { continue };
        if found.iter().any(|(_, s)| same(&s.function, &function)) {
            continue;
        }
        let less = judge.cost(&function);
        if less < cost {
            let by = set.iter().map(|p| p.name()).collect();
            found.push((less, Step { by, function }));
        }
    }
    found.sort_by_key(|(less, _)| *less);
    found
}

/// The first proposal that the judge accepts. Once one with a hard pass was refused, no other with one is tried.
fn first_accepted(
    now: &Function,
    proposals: Vec<(usize, Step)>,
    passes: &[Box<dyn Pass>],
    judge: &mut dyn Judge,
) -> Option<(usize, Step)> {
    let is_hard = |s: &Step| passes.iter().any(|p| p.is_hard() && s.by.contains(&p.name()));
    let (mut attempts, mut small, mut only_easy) = (0, 0, false);
    for (less, step) in proposals {
        if only_easy && is_hard(&step) {
            continue;
        }
        // Small steps have their own number of attempts: they are easier to prove, and never the best.
        let tried = if step.by.len() <= 1 { &mut small } else { &mut attempts };
        if *tried == ATTEMPTS {
            continue;
        }
        *tried += 1;
        if judge.accepts(now, &step.function) {
            return Some((less, step));
        }
        only_easy |= is_hard(&step);
    }
    None
}

fn same(a: &Function, b: &Function) -> bool {
    a.blocks == b.blocks && a.layout == b.layout
}

/// What the detours make of a function, each with values where the function has them: so it is easily compared with it.
pub fn detours_of(f: &Function, env: &Env<'_>) -> Vec<Function> {
    let over = crate::passes::detours();
    over.iter().filter_map(|over| over_detour(f, env, over.as_ref())).collect()
}

fn over_detour(f: &Function, env: &Env<'_>, over: &dyn Pass) -> Option<Function> {
    let mut ssa = lift(f, env, true).or_else(|_| lift(f, env, false)).ok()?;
    over.run(&mut ssa, env).then(|| in_place(&ssa, f)).flatten()
}

/// Two steps: to something longer, and from there to something shorter than what there is.
fn detour(
    now: &Function,
    env: &Env<'_>,
    passes: &[Box<dyn Pass>],
    cost: usize,
    judge: &mut dyn Judge,
) -> Option<(usize, [Step; 2])> {
    for over in crate::passes::detours() {
        // Only to where one of the passes goes.
        if !passes.iter().any(|p| over.name().starts_with(p.name())) {
            continue;
        }
        let Some(function) = over_detour(now, env, over.as_ref()) else { continue };
        let then = proposals(&function, env, passes, cost, judge);
        if then.is_empty() || !judge.accepts(now, &function) {
            continue;
        }
        let first = Step { by: vec![over.name()], function };
        if let Some((less, step)) = first_accepted(&first.function, then, passes, judge) {
            return Some((less, [first, step]));
        }
    }
    None
}

/// Slots of a function of which more is tried.
const SMALL: usize = 150;
/// Proofs that are tried of one step, at most; and as many of those by a single pass.
const ATTEMPTS: usize = 3;
/// Rounds of steps, at most.
const ROUNDS: usize = 6;
