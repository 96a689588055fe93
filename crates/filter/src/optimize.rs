//! From the predicate graph to decisions: redundant predicates go (BPF+, section 6.1), and what can run off the packet is asked
//! for once.
//!
//! The graph is walked from its entry with what is known on the way: the set each value is in, and how far the packet reaches. A
//! test whose answer is known goes. What comes out is the same wherever the same is known, so that equal rests become one.
//!
//! A walk that knows everything can make many copies of a block. After [`Limits::copies`] ones only what is known of values that the
//! filter compares with few numbers counts (which protocol, not which host), and after [`Limits::kinds`] ones only what is known on *all* ways to
//! the block with as much known of the value that the filter asks for first, which one copy serves.

mod asked;
pub(crate) mod known;
mod resolved;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use known::Known;

pub(crate) use resolved::without_variables;

use crate::decision::{Decision, DecisionId, Decisions};
use crate::graph::{Block, Graph, Lookup, Target, Test};
use crate::intervals::Intervals;
use crate::language::Relation;
use crate::need::{Need, needs};
use crate::passes::{Pass, Passes};
use crate::question::{Question, question};
use crate::value::{Value, ValueId, Values, apply};

/// How much the optimizer may copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Copies of one block with all that is known.
    pub(crate) copies: usize,
    /// Copies of one block altogether, those with what is known of the packet's kind among them.
    pub(crate) kinds: usize,
    /// Blocks walked altogether. A filter that needs more is not optimized.
    pub(crate) walks: usize,
}

/// With so many numbers a value is compared that tells which kind of packet it is.
const FEW: usize = 8;

/// To pass so many questions by takes as long as to walk a block.
const PASSED: usize = 64;

/// The decisions of a graph without variables ([`without_variables`]), and where they begin. `None`: the limits do not allow it.
pub(crate) fn optimize(graph: &mut Graph, limits: Limits, passes: Passes) -> Option<(Decisions, DecisionId)> {
    let mut walk = Walk {
        values: std::mem::take(&mut graph.values),
        common: Vec::new(),
        first: None,
        questions: Vec::new(),
        needs: Vec::new(),
        only_answers: Vec::new(),
        decisions: Decisions::new(passes.has(Pass::Order)),
        done: FxHashMap::default(),
        visits: vec![0; graph.blocks.len()],
        walks: 0,
        passed: Cell::new(0),
        asked: Vec::new(),
        maps_asked: Vec::new(),
        compared: FxHashMap::default(),
        graph,
        limits,
        passes,
        is_over: false,
    };
    walk.maps_asked = walk.maps_asked_later();
    walk.questions = walk.questions_of_blocks();
    walk.needs = walk.graph.blocks.iter().map(|block| walk.needs_of(block)).collect();
    walk.only_answers = walk.questions.iter().map(|q| walk.only_answer(q.as_ref()?)).collect();
    walk.asked = walk.asked_later();
    walk.first = walk.first_asked();
    walk.common = walk.common_knowledge();
    walk.compared = walk.questions_by_value();
    walk.passed.set(0);
    let root = walk.target(walk.graph.entry, Known::default());
    let Walk { values, decisions, is_over, .. } = walk;
    graph.values = values;
    (!is_over).then_some((decisions, root))
}

/// What is known on all ways to a block, by what is known there of the value that the filter asks for first.
type Common = BTreeMap<Option<Rc<Intervals>>, Known>;

struct Walk<'a> {
    graph: &'a Graph,
    values: Values,
    /// Per block what it asks.
    questions: Vec<Option<Question>>,
    /// Per block what must be there for it, and the answer if there is but one.
    needs: Vec<Vec<Need>>,
    only_answers: Vec<Option<bool>>,
    common: Vec<Common>,
    /// The value that the filter asks for first: mostly which protocol follows the link's header.
    first: Option<ValueId>,
    /// Per block the values that are asked for there or later, in order.
    asked: Vec<Rc<Vec<ValueId>>>,
    /// Per block the questions to maps there or later; of graphs that have such.
    maps_asked: Vec<Rc<Vec<Lookup>>>,
    /// By value with how many sets it is compared.
    compared: FxHashMap<ValueId, usize>,
    decisions: Decisions,
    done: FxHashMap<(usize, Known), DecisionId>,
    visits: Vec<usize>,
    walks: usize,
    /// Questions that were passed by, since their answers were known.
    passed: Cell<usize>,
    limits: Limits,
    passes: Passes,
    is_over: bool,
}

impl Walk<'_> {
    fn target(&mut self, target: Target, known: Known) -> DecisionId {
        match self.threaded(target, &known) {
            Target::Accept => DecisionId::ACCEPT,
            Target::Reject => DecisionId::REJECT,
            Target::Block(i) => self.block(i, known),
        }
    }

    fn block(&mut self, i: usize, known: Known) -> DecisionId {
        if self.is_over || self.walks + self.passed.get() / PASSED > self.limits.walks {
            self.is_over = true;
            return DecisionId::REJECT;
        }
        let known = self.relevant(i, known);
        let key = (i, known);
        if let Some(id) = self.done.get(&key) {
            return *id;
        }
        let (_, known) = key;
        self.visits[i] += 1;
        let mut walked = known.clone();
        if self.visits[i] > self.limits.copies
            && let Some(common) = self.common_to(i, &known)
        {
            if self.visits[i] > self.limits.kinds {
                // No map may be asked twice, so that their answers are never left out.
                walked = Known { lookups: known.lookups.clone(), ..self.relevant(i, common.clone()) };
            } else {
                let is_kind = |v: &ValueId| self.first == Some(*v) || self.compared.get(v).is_none_or(|n| *n <= FEW);
                walked.facts.retain(|(v, _)| is_kind(v));
            }
            if let Some(id) = self.done.get(&(i, walked.clone())) {
                let id = *id;
                self.done.insert((i, known), id);
                return id;
            }
        }
        self.walks += 1;
        let id = self.walked(i, walked.clone());
        self.done.insert((i, walked), id);
        self.done.insert((i, known), id);
        id
    }

    fn walked(&mut self, i: usize, mut known: Known) -> DecisionId {
        let graph = self.graph;
        let block = &graph.blocks[i];
        let mut wanted = Vec::new();
        block.sets.iter().for_each(|(_, value)| self.want(*value, &mut known, &mut wanted));
        let rest = match &block.test {
            Test::Chain(chain) => {
                let (yes, no) = (self.target(block.yes, known.clone()), self.target(block.no, known));
                self.decisions.chain(*chain, yes, no)
            }
            Test::Among(words, members) => {
                if let Some(first) = words.first() {
                    self.want(*first, &mut known, &mut wanted);
                }
                let mut found = known.clone();
                words.iter().for_each(|word| self.want(*word, &mut found, &mut Vec::new()));
                let (yes, no) = (self.target(block.yes, found), self.target(block.no, known));
                self.decisions.among(words.clone(), members.clone(), yes, no)
            }
            Test::Lookup(lookup) => {
                lookup.key.iter().for_each(|value| self.want(*value, &mut known, &mut wanted));
                self.ask_map(lookup.clone(), block.yes, block.no, known)
            }
            Test::Member(value, set) => {
                self.want(*value, &mut known, &mut wanted);
                self.ask(Question { value: *value, set: (**set).clone() }, block.yes, block.no, known)
            }
            Test::Compare(relation, a, b) => {
                self.want(*a, &mut known, &mut wanted);
                self.want(*b, &mut known, &mut wanted);
                let question = self.question(*relation, *a, *b);
                self.ask(question, block.yes, block.no, known)
            }
        };
        let all = wanted.into_iter().rev().fold(rest, |rest, need| match need {
            Need::Bound(base, end) => {
                let rest = self.with_bound_first(base, end, rest);
                self.decisions.bound(base, end, rest)
            }
            Need::NotZero(value) => self.decisions.not_zero(value, rest),
        });
        block.predicate.map_or(all, |predicate| self.decisions.note(predicate, all))
    }

    /// Of two questions that lead to the same the one comes first whose field must be there anyway: its load is the check.
    fn with_bound_first(&mut self, base: Option<ValueId>, end: u64, rest: DecisionId) -> DecisionId {
        let question = |s: &Self, id: DecisionId| match s.decisions.get(id) {
            Decision::Switch { value, cases, default } if cases.len() == 1 => {
                Some((*value, cases[0].0.clone(), cases[0].1, *default))
            }
            _ => None,
        };
        let is_there = |s: &Self, value: ValueId| match s.values.get(value) {
            Value::Load { base: b, offset, size } => b == base && u64::from(offset) + u64::from(size) == end,
            _ => false,
        };
        if !self.passes.has(Pass::Order) {
            return rest;
        }
        let Some((v, set, to, next)) = question(self, rest) else { return rest };
        let Some((w, other, t, default)) = question(self, next) else { return rest };
        if t != to || is_there(self, v) || !is_there(self, w) {
            return rest;
        }
        let inner = self.decisions.switch(v, &set, to, default);
        self.decisions.switch(w, &other, to, inner)
    }

    fn want(&self, value: ValueId, known: &mut Known, wanted: &mut Vec<Need>) {
        let mut all = Vec::new();
        needs(&self.values, value, &mut all);
        for need in all {
            if !known.has(need) {
                if self.passes.has(Pass::Checks) {
                    known.note(need);
                }
                wanted.push(need);
            }
        }
    }

    fn ask(&mut self, question: Question, yes: Target, no: Target, known: Known) -> DecisionId {
        let Question { value, set } = question;
        let possible = self.possible(value, &known);
        let (inside, outside) = (possible.intersection(&set), possible.without(&set));
        if outside.is_empty() {
            return self.target(yes, known);
        }
        if inside.is_empty() {
            return self.target(no, known);
        }
        let yes = self.target(yes, self.behind(&known, value, inside));
        let no = self.target(no, self.behind(&known, value, outside));
        self.decisions.switch(value, &set, yes, no)
    }

    /// What is known behind a question.
    fn behind(&self, known: &Known, value: ValueId, set: Intervals) -> Known {
        if self.passes.has(Pass::Predicates) { known.with_fact(value, set) } else { known.clone() }
    }

    /// A map is asked once on each way.
    fn ask_map(&mut self, lookup: Lookup, yes: Target, no: Target, known: Known) -> DecisionId {
        if self.passes.has(Pass::Predicates)
            && let Some((_, answer)) = known.lookups.iter().find(|(l, _)| *l == lookup)
        {
            let to = if *answer { yes } else { no };
            return self.target(to, known);
        }
        let yes = self.target(yes, known.with_answer(&lookup, true));
        let no = self.target(no, known.with_answer(&lookup, false));
        self.decisions.lookup(lookup, yes, no)
    }

    /// The numbers that a value can be.
    fn possible(&self, value: ValueId, known: &Known) -> Intervals {
        possible(&self.values, value, known)
    }

    fn question(&mut self, relation: Relation, a: ValueId, b: ValueId) -> Question {
        question(&mut self.values, relation, a, b)
    }

    /// By value with how many sets it is compared.
    fn questions_by_value(&self) -> FxHashMap<ValueId, usize> {
        let mut sets: FxHashMap<ValueId, FxHashSet<Intervals>> = FxHashMap::default();
        for (block, question) in self.graph.blocks.iter().zip(&self.questions) {
            if let (Test::Compare(..), Some(Question { value, set })) = (&block.test, question) {
                let of = sets.entry(*value).or_default();
                if of.len() <= FEW {
                    of.insert(set.clone());
                }
            }
        }
        sets.into_iter().map(|(value, sets)| (value, sets.len())).collect()
    }

    /// What is known on all ways to a block that are like one.
    fn common_to(&self, i: usize, known: &Known) -> Option<&Known> {
        let common = self.common.get(i)?;
        common.get(&self.kind(known)).or_else(|| common.get(&None))
    }

    /// What is known of the value that is asked for first.
    fn kind(&self, known: &Known) -> Option<Rc<Intervals>> {
        known.fact(self.first?).cloned()
    }

    /// The value that the first block asks for whose answer is not always the same.
    fn first_asked(&self) -> Option<ValueId> {
        let mut at = self.graph.entry;
        while let Target::Block(i) = at {
            let block = &self.graph.blocks[i];
            at = match self.only_answers[i] {
                Some(true) => block.yes,
                Some(false) => block.no,
                None => return self.questions[i].as_ref().map(|q| q.value),
            };
        }
        None
    }

    /// Per block what it asks.
    fn questions_of_blocks(&mut self) -> Vec<Option<Question>> {
        let graph = self.graph;
        let question = |block: &Block| match &block.test {
            Test::Compare(relation, a, b) => Some(self.question(*relation, *a, *b)),
            Test::Member(value, set) => Some(Question { value: *value, set: (**set).clone() }),
            Test::Among(..) | Test::Chain(_) | Test::Lookup(_) => None,
        };
        graph.blocks.iter().map(question).collect()
    }

    /// Where a way leads whose next tests have answers that are known, and that look for nothing new.
    fn threaded(&self, mut target: Target, known: &Known) -> Target {
        while let Target::Block(i) = target
            && self.graph.blocks[i].predicate.is_none()
            && let Some(Some(question)) = self.questions.get(i)
            && let Some(answer) = self.answer(i, question, known)
        {
            let block = &self.graph.blocks[i];
            self.passed.set(self.passed.get() + 1);
            target = if answer { block.yes } else { block.no };
        }
        target
    }

    /// The answer to a block's question, if it is known and nothing is to be looked for.
    fn answer(&self, i: usize, question: &Question, known: &Known) -> Option<bool> {
        let answer = match (known.fact(question.value), self.values.get(question.value)) {
            // Facts hold no number that the value cannot be.
            (Some(fact), _) => question.answer(fact)?,
            (None, Value::Binary(_, a, _)) if known.fact(a).is_some() => {
                question.answer(&self.possible(question.value, known))?
            }
            (None, _) => self.only_answers[i]?,
        };
        self.needs[i].iter().all(|need| known.has(*need)).then_some(answer)
    }

    /// What must be there for a block.
    fn needs_of(&self, block: &Block) -> Vec<Need> {
        let mut all = Vec::new();
        let sets = block.sets.iter().map(|(_, value)| *value);
        sets.chain(block.test.values()).for_each(|value| needs(&self.values, value, &mut all));
        all
    }

    /// The answer to a question that has the same one whatever is known.
    fn only_answer(&self, question: &Question) -> Option<bool> {
        question.answer(&self.possible(question.value, &Known::default()))
    }

    /// Per block what is known on all ways to it.
    fn common_knowledge(&self) -> Vec<Common> {
        let graph = self.graph;
        let mut all: Vec<Common> = vec![Common::default(); graph.blocks.len()];
        self.join(&mut all, graph.entry, &Known::default());
        for i in 0..graph.blocks.len() {
            for known in all[i].values().cloned().collect::<Vec<Known>>() {
                self.join_from(&mut all, i, known);
            }
        }
        all
    }

    /// Adds what is known on a way to a target.
    fn join(&self, all: &mut [Common], target: Target, known: &Known) {
        /// More kinds are one.
        const MOST: usize = 16;
        let Target::Block(i) = self.threaded(target, known) else { return };
        let known = self.relevant(i, known.clone());
        let kind = self.kind(&known).filter(|kind| all[i].len() < MOST || all[i].contains_key(&Some(kind.clone())));
        match all[i].entry(kind) {
            Entry::Occupied(mut common) => common.get_mut().join(&known),
            Entry::Vacant(none) => {
                none.insert(known);
            }
        }
    }

    /// Adds what is known behind a block to its targets.
    fn join_from(&self, all: &mut [Common], i: usize, mut known: Known) {
        let block = &self.graph.blocks[i];
        block.sets.iter().for_each(|(_, value)| self.want(*value, &mut known, &mut Vec::new()));
        let Some(Question { value, set }) = self.questions[i].clone() else {
            let behind = |known: &Known, answer| match &block.test {
                Test::Lookup(lookup) if known.lookups.iter().any(|(l, a)| l == lookup && *a != answer) => None,
                Test::Lookup(lookup) => Some(known.with_answer(lookup, answer)),
                _ => Some(known.clone()),
            };
            behind(&known, true).iter().for_each(|known| self.join(all, block.yes, known));
            behind(&known, false).iter().for_each(|known| self.join(all, block.no, known));
            return;
        };
        block.test.values().into_iter().for_each(|value| self.want(value, &mut known, &mut Vec::new()));
        let possible = self.possible(value, &known);
        let (inside, outside) = (possible.intersection(&set), possible.without(&set));
        for (target, part) in [(block.yes, inside), (block.no, outside)] {
            if !part.is_empty() {
                // Long lists of what a value is not are not worth what they cost; but kinds must be those of the walk.
                let is_long = part.as_slice().len() > 8 && self.first != Some(value);
                let part = if is_long { possible.clone() } else { part };
                self.join(all, target, &self.behind(&known, value, part));
            }
        }
    }
}

fn possible(values: &Values, value: ValueId, known: &Known) -> Intervals {
    if let Some(n) = values.as_constant(value) {
        return Intervals::one(n);
    }
    let range = Intervals::range(0, values.greatest(value));
    if let Some(fact) = known.fact(value) {
        return fact.intersection(&range);
    }
    if let Value::Binary(op, a, b) = values.get(value)
        && let (Some(a), Some(b)) = (known.fact(a).and_then(|s| s.single()), values.as_constant(b))
        && let Some(n) = apply(op, a, b)
    {
        return Intervals::one(n);
    }
    range
}
