//! Questions to the solver, with what is assumed.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Context, REPAIRS, SatResult};
use crate::solver::blast::{Answer, Blaster, Model};
use crate::solver::sample::Sample;
use crate::solver::smt::{Query, Status};
use crate::term::{Node, TermId, VarId};

/// Terms that are evaluated for a unit of work ([`crate::options::Budget`]).
const EVALUATED: u64 = 2;

impl Context {
    /// Up to `n` assignments in which all that is assumed holds. Random ones, if there are; else such as are random
    /// where nothing is assumed, and those of one case elsewhere.
    pub fn samples(&mut self, n: usize) -> Vec<Sample> {
        let assumed: Vec<TermId> = self.assumed().collect();
        let mut samples: Vec<Sample> = (0..4 * n as u64)
            .map(Sample::new)
            .filter_map(|mut s| assumed.iter().all(|a| s.value(&self.terms, *a) != 0).then_some(s))
            .take(n)
            .collect();
        let tru = self.terms.tru();
        if samples.len() >= n.min(2) {
            return samples;
        }
        let Some(model) = self.case(tru) else { return samples };
        for seed in 0..n as u64 {
            let mut vars: FxHashSet<VarId> = FxHashSet::default();
            let mut bytes = false;
            // Each round takes over more of the model; it ends with all of it at the latest.
            for _ in 0..REPAIRS {
                let mut s = Sample::with(seed, &model, &vars, bytes);
                let failing: Vec<TermId> = assumed.iter().copied().filter(|a| s.value(&self.terms, *a) == 0).collect();
                if failing.is_empty() {
                    samples.push(s);
                    break;
                }
                let mut seen: FxHashSet<TermId> = FxHashSet::default();
                let mut todo = failing;
                while let Some(t) = todo.pop() {
                    if seen.insert(t) {
                        match *self.terms.node(t) {
                            Node::Var(v) => drop(vars.insert(v)),
                            Node::Select(..) => bytes = true,
                            _ => {}
                        }
                        crate::solver::blast::children(self.terms.node(t), &mut |c| todo.push(c));
                    }
                }
            }
        }
        samples
    }

    /// A case in which `guard` holds, with the assumptions.
    pub(crate) fn case(&mut self, guard: TermId) -> Option<Model> {
        let tru = self.terms.tru();
        match self.check_sat(guard, &[tru]) {
            SatResult::Sat(case) => Some(case),
            _ => None,
        }
    }

    /// How far `to` is from `from` if that is the same wherever `guard` holds: then it is what it is in this case.
    pub(crate) fn distance(&mut self, guard: TermId, case: &Model, from: TermId, to: TermId) -> Option<i64> {
        let distance = case.eval(&self.terms, to).wrapping_sub(case.eval(&self.terms, from)) as i64;
        let there = self.terms.add_const(from, distance);
        let same = self.terms.eq(there, to);
        let differ = self.terms.not(same);
        matches!(self.check_sat(guard, &[differ]), SatResult::Unsat).then_some(distance)
    }

    /// Whether `guard` can hold, with the assumptions, together with any of `any`.
    pub fn check_sat(&mut self, guard: TermId, any: &[TermId]) -> SatResult {
        let mut open = Vec::new();
        for t in any {
            match self.terms.as_const(*t) {
                Some(0) => {}
                _ => open.push(*t),
            }
        }
        open.sort_unstable();
        open.dedup();
        if open.is_empty() || self.terms.as_const(guard) == Some(0) {
            self.stats.trivial += 1;
            return SatResult::Unsat;
        }
        let some = self.terms.any(&open);
        if self.never.contains(&(guard, some)) {
            self.stats.trivial += 1;
            return SatResult::Unsat;
        }
        // The lemmas about what the question is about first; all only if those do not settle it.
        let (near, far) = self.relevant(&[guard, some]);
        let mut answer = self.ask(guard, some, &near);
        if let SatResult::Sat(m) = &answer
            && !far.is_empty()
        {
            let mut memo = FxHashMap::default();
            if far.iter().any(|l| m.eval_memo(&self.terms, *l, &mut memo) == 0) {
                let all: Vec<TermId> = self.lemmas.iter().map(|l| l.1).collect();
                answer = self.ask(guard, some, &all);
            }
        }
        if matches!(answer, SatResult::Unsat) {
            self.never.insert((guard, some));
        }
        answer
    }

    /// The lemmas about subterms of these, and the others.
    fn relevant(&self, roots: &[TermId]) -> (Vec<TermId>, Vec<TermId>) {
        if self.lemmas.is_empty() {
            return (vec![], vec![]);
        }
        let mut cone: FxHashSet<TermId> = FxHashSet::default();
        let mut todo = roots.to_vec();
        while let Some(t) = todo.pop() {
            if cone.insert(t) {
                crate::solver::blast::children(self.terms.node(t), &mut |c| todo.push(c));
            }
        }
        let pick = |inside: bool| {
            self.lemmas.iter().filter(|l| cone.contains(&l.0) == inside).map(|l| l.1).collect::<Vec<_>>()
        };
        (pick(true), pick(false))
    }

    fn ask(&mut self, guard: TermId, some: TermId, lemmas: &[TermId]) -> SatResult {
        if self.exhausted() {
            return SatResult::Unknown;
        }
        let solved = self.stats.sat_calls;
        let answer = self.decide(guard, some, lemmas);
        if let Some(recorder) = &self.recorder {
            let demands: Vec<TermId> =
                [guard, some].into_iter().chain(self.assumptions.iter().chain(lemmas).copied()).collect();
            let (status, model) = match &answer {
                SatResult::Unsat => (Status::Unsat, None),
                SatResult::Sat(m) => (Status::Sat, Some(m)),
                SatResult::Unknown => (Status::Unknown, None),
            };
            let by = if self.stats.sat_calls > solved { "solver" } else { "samples" };
            recorder.see(&Query {
                terms: &self.terms,
                demands: &demands,
                status,
                model,
                by,
                origins: Some(&self.keys),
            });
        }
        answer
    }

    fn decide(&mut self, guard: TermId, some: TermId, lemmas: &[TermId]) -> SatResult {
        let demands: Vec<TermId> =
            [guard, some].into_iter().chain(self.assumptions.iter().chain(lemmas).copied()).collect();
        let met = self.assignments.meet(&self.terms, &demands);
        let evaluated = self.assignments.evaluated();
        self.spend(evaluated / EVALUATED);
        if let Some(model) = met {
            return SatResult::Sat(model);
        }
        self.stats.sat_calls += 1;
        let mut b = Blaster::new(&mut self.terms, self.limits.deadline).within(self.budget.clone());
        for d in &demands {
            b.assert(*d);
        }
        match b.solve(self.limits.conflicts) {
            Answer::Unsat => SatResult::Unsat,
            Answer::Sat(m) => {
                self.assignments.keep(&m);
                SatResult::Sat(m)
            }
            Answer::Unknown => {
                self.stats.undecided += 1;
                SatResult::Unknown
            }
        }
    }
}
