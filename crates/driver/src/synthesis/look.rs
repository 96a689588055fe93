//! Searching one window: what is remembered first, then the enumerator, then the chains.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bpf_facts::Env;
use bpf_isa::{AluOp, Insn, Src};
use bpf_passes::View;
use bpf_program::Op;
use bpf_prove::{Cache, Options as ProofOptions, Rewrite, Verdict};
use bpf_search::enumerate::{Effort as Enumeration, Outcome as Enumerated, enumerate};
use bpf_search::{Answer, Budget, Found, Portfolio, Progress, SETTINGS, cost};
use rustc_hash::FxHasher;

use super::agenda::{Agenda, Analysed};
use super::context::{Search, over};
use super::item::{BY_ENUMERATOR, BY_RULE, Item, Outcome};
use super::memory::Memory;
use crate::pool;
use crate::window_selection::Text;

/// See [`price`]; a circuit for a division is large, and one for a product of registers hard.
const QUESTION: u64 = 512;
const DEAR: u64 = 16 * QUESTION;

/// Conflicts of a question where all is to end soon.
const SHORT_CONFLICTS: u32 = 250;

/// Worth of a replacement that saves no slots.
const NO_SLOTS: f64 = 0.1;

/// Searches these windows; `None` for those not reached in time. Nothing is learnt meanwhile, so what comes of a window
/// does not depend on the others, nor on the number of threads.
pub(super) fn look(search: &Search, items: &[Item], agenda: &Agenda, memory: &Memory) -> Vec<Option<Outcome>> {
    let Search { module, settings, options, observer, started, .. } = *search;
    let results: Vec<Mutex<Option<Outcome>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let open = AtomicUsize::new(items.len());
    let proposals = AtomicU64::new(0);
    pool::each(options.jobs, items.iter().zip(&results), |(item, result)| {
        if over(settings) {
            return;
        }
        let Some(a) = agenda.function(item.candidate) else { return };
        let look_at = || {
            let is_left_open = Cell::new(false);
            let mut outcome = module.with_env(|env| search_one(search, item, a, env, memory, &is_left_open))?;
            // A longer search may get an answer to what this one gave up soon.
            outcome.complete &= !(options.is_short() && is_left_open.get());
            // As the rule made of it would give it, down to the lines of source.
            if let (Some(f), Some((_, renaming, _))) = (&mut outcome.found, &item.window.form)
                && let Some(with) = renaming.to_canonical(&f.with).and_then(|c| renaming.to_window(&c))
            {
                f.with = with;
            }
            Some(outcome)
        };
        // A searcher that breaks has found nothing.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look_at)).ok().flatten();
        let left = open.fetch_sub(1, Ordering::Relaxed) - 1;
        if let Some(o) = &outcome {
            let all = proposals.fetch_add(o.progress.proposals, Ordering::Relaxed) + o.progress.proposals;
            observer.searching(left, all as f64 / started.elapsed().as_secs_f64().max(1e-3));
        }
        if let Ok(mut r) = result.lock() {
            *r = outcome;
        }
    });
    results.into_iter().map(|r| r.into_inner().ok().flatten()).collect()
}

/// Searches one window; `is_left_open` is told of questions that were given up.
fn search_one(
    search: &Search,
    item: &Item,
    a: &Analysed,
    env: &Env,
    memory: &Memory,
    is_left_open: &Cell<bool>,
) -> Option<Outcome> {
    let Search { settings, options, .. } = *search;
    let at = item.window;
    let points = a.points(at.block, &at.path, env)?;
    let view = View::new(&a.function, &points, env, settings);
    let text = Text::new(&view, at.start, at.end);
    let window = text.window(&view, at.start, settings);
    let known = view.known();
    let of_known = settings.proof_options(settings.deadline);
    let mut proof = of_known.clone();
    if options.is_short() {
        proof.limits.conflicts = proof.limits.conflicts.min(SHORT_CONFLICTS);
    }
    let mut cache = Cache::new();
    let mut ask = |new: &[Op], proof: &ProofOptions| match cache.ask(
        &a.function,
        env,
        &known,
        &rewrite(item, new.to_vec()),
        proof,
    ) {
        Ok(_) => Answer::Equal,
        Err((Verdict::Different(d), _)) => Answer::Different(Some(d)),
        Err((_, stats)) => {
            is_left_open.set(is_left_open.get() || stats.undecided > 0);
            Answer::Unknown
        }
    };
    let slots = |ops: &[Op]| ops.iter().map(|o| o.insn.slots()).sum::<usize>();
    let mut out = Outcome {
        found: None,
        others: Vec::new(),
        saved: 0.0,
        remembered: false,
        settled: false,
        complete: true,
        exhausted: None,
        steps: 0,
        questions: 0,
        progress: Progress::default(),
        payoff: memory.payoff.clone(),
    };
    if let (Some(rule), Some((_, renaming, _))) = (&item.rule, &at.form) {
        // The rule says what a search would find with this effort, and saves it.
        let best = slots(rule.with.as_deref().unwrap_or(window.old));
        let settled = settings.goal.puts_slots_first() && rule.excluded.is_some_and(|n| n as usize + 1 >= best);
        let known = |out: Outcome| Some(Outcome { remembered: true, settled, ..out });
        match &rule.with {
            Some(with) if rule.effort <= item.effort.total => {
                let instance = renaming.to_window(with);
                if let Some(with) = instance
                    && matches!(ask(&with, &of_known), Answer::Equal)
                {
                    let cost = cost::of(&with, settings.goal);
                    out.found = Some(Found { with, cost, by: BY_RULE });
                    return known(out);
                }
            }
            // Not with this effort yet: then the run would go another way than the one that found it.
            Some(_) => return Some(Outcome { remembered: true, ..out }),
            None if settled || rule.effort >= item.effort.total => return known(out),
            None => {}
        }
    }
    if !options.search {
        return Some(Outcome { remembered: true, settled: true, ..out });
    }
    let mut judge = |new: &[Op]| ask(new, &proof);
    // Regions are for the chains alone.
    let short = match window.superblock {
        Some(_) => Enumerated::default(),
        None => {
            let effort = Enumeration { slots: item.effort.short, steps: memory.steps(item.effort.candidates) };
            enumerate(&window, &mut judge, effort)
        }
    };
    out.steps = short.steps;
    out.questions = short.judged * price(window.old);
    out.exhausted = short.exhausted_to;
    let saved = |f: &Found| slots(window.old).saturating_sub(slots(&f.with)) as f64 + NO_SLOTS;
    let excluded = short.exhausted_to.map_or(0, |n| n + 1);
    out.found = short.found.map(|f| Found { by: BY_ENUMERATOR, ..f });
    out.saved = out.found.as_ref().map_or(0.0, saved);
    if let Some(f) = out.found.as_ref().filter(|_| settings.goal.puts_slots_first()) {
        // It is the shortest: lengths are tried in their order.
        out.settled = slots(&f.with) <= excluded;
        return Some(out);
    }
    if settings.goal.puts_slots_first() && excluded >= slots(window.old) {
        out.settled = true;
        return Some(out);
    }
    // A seed that depends on what the window is, not on where it stands.
    let mut h = FxHasher::default();
    (options.seed, item.effort.total).hash(&mut h);
    match &at.form {
        Some((.., text)) => text.hash(&mut h),
        None => window.old.iter().for_each(|o| o.insn.hash(&mut h)),
    }
    let Some(portfolio) = Portfolio::new(window, &SETTINGS, h.finish()) else { return Some(out) };
    let mut portfolio = portfolio.keeping(options.forms);
    let proposals = item.effort.candidates;
    let questions = (proposals / price(window.old)).max(1);
    let budget = Budget { proposals, questions, deadline: settings.deadline };
    let found = portfolio.run(budget, &mut out.payoff, &mut judge).cloned();
    out.progress = portfolio.progress();
    out.questions += out.progress.judged * price(window.old);
    out.complete = out.progress.proposals >= proposals || out.progress.judged >= questions;
    if let Some(f) = found
        && out.found.as_ref().is_none_or(|e| f.cost < e.cost)
    {
        out.saved = saved(&f);
        out.found = Some(f);
    }
    out.others = portfolio.kept();
    Some(out)
}

/// Candidates that take as long as a question to the prover about this window.
pub(super) fn price(ops: &[Op]) -> u64 {
    let is_dear = |o: &Op| match o.insn {
        Insn::Alu { op: AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, .. } => true,
        Insn::Alu { op: AluOp::Mul, src, .. } => matches!(src, Src::Reg(_)),
        _ => false,
    };
    if ops.iter().any(is_dear) { DEAR } else { QUESTION }
}

/// What was found for a window, as a change of its function.
pub(super) fn rewrite(item: &Item, with: Vec<Op>) -> Rewrite {
    let at = item.window;
    Rewrite { block: at.block, path: at.path.clone(), start: at.start, end: at.end, with, term: None, by: "search" }
}
