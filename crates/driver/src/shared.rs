//! What came of functions in other objects of the same run, so that the work on twins is done once.
//!
//! Projects build one source many times, and include one header in many sources; so many objects hold the same functions.
//! What the passes make of a function, and whether a result is equal to it as a whole, depends on the function, on its
//! surroundings ([`Env`]: maps, global data, what is declared of functions elsewhere, how many arguments callees read) and on
//! the settings, and on nothing else but time. An answer is given again only where all of these are the same, compared in
//! full; a fingerprint only finds it. An answer that time has cut short is not kept.
//!
//! As with twins in one object ([`crate::twins`]), a name is for messages only. What is written is compared with each one's own
//! original all the same, and the kernel is asked about each.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bpf_facts::{Env, ExternInfo, MapInfo, SectionInfo};
use bpf_isa::Goal;
use bpf_passes::Settings;
use bpf_program::{Function, Symbol};
use bpf_prove::Derivation;
use lru::LruCache;
use rustc_hash::FxHasher;

use crate::global::Start;

/// Slots of the functions that are remembered, at most: some 100 MB with all that belongs to them.
const MOST: usize = 60_000;

/// What is remembered over the objects of a run with the same options.
#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    /// Somebody has come to an answer, or given up.
    done: Condvar,
}

struct State {
    known: LruCache<u64, (Box<Question>, Answer)>,
    /// Slots of all that is known.
    slots: usize,
    /// Questions that somebody works on.
    busy: HashSet<u64>,
    answered: u64,
}

impl Default for State {
    fn default() -> State {
        State { known: LruCache::unbounded(), slots: 0, busy: HashSet::new(), answered: 0 }
    }
}

/// What is asked about a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Topic {
    /// What the local passes make of it.
    Local,
    /// What the global ones make of that.
    Global,
    /// Whether the result is equal to it as a whole.
    Whole,
}

/// A question, with all that the answer depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    topic: Topic,
    original: Nameless,
    /// As it is now, if that is another.
    now: Option<Nameless>,
    maps: Arc<[MapInfo]>,
    sections: Arc<[SectionInfo]>,
    externs: Arc<[ExternInfo]>,
    /// How many arguments the functions read that it names.
    arguments: Vec<(Arc<str>, Option<usize>)>,
    settings: (u8, Goal, bool, Option<Vec<String>>),
}

/// A function without its name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Nameless(Function);

impl Nameless {
    fn of(f: &Function) -> Nameless {
        Nameless(Function { name: String::new(), ..f.clone() })
    }
}

impl Question {
    /// About a function that was `original` and is `now`.
    pub(crate) fn new(
        topic: Topic,
        original: &Function,
        now: &Function,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Question {
        let (original, now) = (Nameless::of(original), Nameless::of(now));
        let named = [&original, &now].into_iter().flat_map(|f| &f.0.blocks).flat_map(|b| &b.ops);
        let callees = named.filter_map(|o| match &o.link.as_ref()?.symbol {
            Symbol::Func { name } => Some(Arc::clone(name)),
            _ => None,
        });
        let callees: std::collections::BTreeSet<Arc<str>> = callees.collect();
        let arguments = callees.into_iter().map(|name| (Arc::clone(&name), (env.callee_args)(&name))).collect();
        Question {
            topic,
            now: Some(now).filter(|now| *now != original),
            original,
            maps: env.maps.into(),
            sections: env.sections.into(),
            externs: env.externs.into(),
            arguments,
            settings: (settings.cpu, settings.goal, settings.strict_shared_memory, settings.only.clone()),
        }
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.topic.hash(&mut hasher);
        for f in std::iter::once(&self.original).chain(&self.now) {
            (&f.0.blocks, &f.0.layout).hash(&mut hasher);
        }
        (&self.externs, &self.sections, self.maps.len(), &self.arguments).hash(&mut hasher);
        hasher.finish()
    }

    fn slots(&self) -> usize {
        let slots = |f: &Nameless| f.0.blocks.iter().map(|b| b.ops.len() + 1).sum::<usize>();
        std::iter::once(&self.original).chain(&self.now).map(slots).sum()
    }
}

/// What came of it.
#[derive(Clone)]
pub(crate) enum Answer {
    /// The steps of the local passes.
    Local {
        /// They lead from the original to what it is now.
        derivation: Box<Derivation>,
        /// Proposals proven and applied, refused, and questions to the solver.
        tally: [u64; 3],
    },
    /// What the global passes have made, if it is better.
    Global(Option<Box<(Start, Derivation)>>),
    /// It is equal.
    Equal,
}

/// A question that its holder works on; others wait for the answer.
pub(crate) struct Mine<'a> {
    shared: &'a Shared,
    fingerprint: u64,
    question: Option<Box<Question>>,
    /// Nobody else works on it.
    alone: bool,
}

impl Mine<'_> {
    /// Tells the others.
    pub(crate) fn answer(mut self, answer: Answer) {
        let Some(question) = self.question.take() else { return };
        let mut state = self.shared.state();
        let slots = question.slots();
        if slots > MOST {
            return;
        }
        if let Some((_, (other, _))) = state.known.push(self.fingerprint, (question, answer)) {
            state.slots -= other.slots();
        }
        state.slots += slots;
        while state.slots > MOST {
            let Some((_, (question, _))) = state.known.pop_lru() else { break };
            state.slots -= question.slots();
        }
    }
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        if self.alone {
            self.shared.state().busy.remove(&self.fingerprint);
        }
        self.shared.done.notify_all();
    }
}

impl Shared {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Shared {
        Shared::default()
    }

    /// How many questions were answered without work.
    pub fn answered(&self) -> u64 {
        self.state().answered
    }

    /// The answer, waited for until `deadline` if another works on it; or the question to work on.
    pub(crate) fn ask(&self, question: Question, deadline: Option<Instant>) -> Result<Answer, Mine<'_>> {
        let (fingerprint, question) = (question.fingerprint(), Box::new(question));
        let mut state = self.state();
        loop {
            if let Some((known, answer)) = state.known.get(&fingerprint)
                && *known == question
            {
                let answer = answer.clone();
                state.answered += 1;
                return Ok(answer);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let alone = state.busy.insert(fingerprint);
            if alone || left.is_some_and(|left| left.is_zero()) {
                drop(state);
                return Err(Mine { shared: self, fingerprint, question: Some(question), alone });
            }
            state = match left {
                Some(left) => self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bpf_object::Object;

    use super::*;
    use crate::module::Module;

    fn question(change: impl Fn(&mut Vec<MapInfo>, &mut Settings), topic: Topic) -> Question {
        let object = Object::parse(include_bytes!("../../../examples/globals.o").to_vec()).expect("a committed object");
        let module = Module::new(object);
        let f = module.graphs[0].as_ref().expect("a graph");
        let (mut maps, mut settings) = (module.maps.clone(), Settings::default());
        change(&mut maps, &mut settings);
        let renamed = Function { name: "another".into(), ..f.clone() };
        module.with_env(|env| Question::new(topic, &renamed, f, &Env { maps: &maps, ..*env }, &settings))
    }

    fn same() -> Question {
        question(|_, _| (), Topic::Whole)
    }

    #[test]
    fn an_answer_is_given_again_where_all_is_the_same() {
        let shared = Shared::new();
        let Err(mine) = shared.ask(same(), None) else { panic!("nothing is known yet") };
        mine.answer(Answer::Equal);
        assert!(matches!(shared.ask(same(), None), Ok(Answer::Equal)));
        assert!(shared.ask(question(|_, _| (), Topic::Local), None).is_err(), "another question");
        assert!(shared.ask(question(|_, s| s.cpu = 1, Topic::Whole), None).is_err(), "other settings");
        let more = |maps: &mut Vec<MapInfo>, _: &mut Settings| maps.push(MapInfo::default());
        assert!(shared.ask(question(more, Topic::Whole), None).is_err(), "another map");
        assert_eq!(shared.answered(), 1);
    }

    #[test]
    fn who_asks_the_same_waits_for_the_answer_and_no_longer_than_there_is_time() {
        let shared = Shared::new();
        let Err(mine) = shared.ask(same(), None) else { panic!("nothing is known yet") };
        let soon = Some(Instant::now() + Duration::from_millis(5));
        assert!(shared.ask(same(), soon).is_err(), "the time is over");
        std::thread::scope(|s| {
            let other = s.spawn(|| shared.ask(same(), None).is_ok());
            std::thread::sleep(Duration::from_millis(5));
            mine.answer(Answer::Equal);
            assert!(other.join().expect("it ends"));
        });
        // Who gives up lets the next one work.
        let shared = Shared::new();
        drop(shared.ask(same(), None));
        assert!(shared.ask(same(), None).is_err());
    }
}
