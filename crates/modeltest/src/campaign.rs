//! One round over the recipes, and what it showed, helper by helper.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use crate::compare;
use crate::kinds::{KINDS, Kind};
use crate::observe::{Baseline, Bench, Filling, Observation, Refusal};
use crate::recipe::{Argument, Call, Failure, Recipes};

/// What was seen of one helper.
#[derive(Debug, Default)]
pub struct Seen {
    /// Name in the recipes.
    pub name: String,
    /// Program types that made the call.
    pub kinds: BTreeSet<&'static str>,
    /// Calls that came back.
    pub calls: u64,
    /// Of those, by the helper's own account.
    pub succeeded: u64,
    /// Of those, by the helper's own account.
    pub failed: u64,
    /// Can it fail at all, as the recipe says?
    pub can_fail: bool,
    /// Effects the table declares for the calls made.
    pub declared: BTreeSet<String>,
    /// Those of them that were seen.
    pub observed: BTreeSet<String>,
    /// Error numbers that came back, a few.
    pub errors: BTreeSet<i32>,
    /// Reasons why calls were not made.
    pub refused: BTreeSet<String>,
    /// At least one program type is offered the helper.
    pub offered: bool,
}

/// Everything a round showed.
#[derive(Debug, Default)]
pub struct Report {
    /// By number.
    pub helpers: BTreeMap<i32, Seen>,
    /// Helpers without calls: number, name, reason.
    pub skipped: Vec<(i32, String, String)>,
    /// Declared effects that no run can show, with the reason.
    pub explained: BTreeMap<(i32, String), String>,
    /// What table and kernel disagree on.
    pub contradictions: BTreeMap<String, u64>,
    /// Recipes that could not be run at all, with the reason.
    pub broken: BTreeSet<String>,
    /// Runs made.
    pub runs: u64,
    /// Why program types that are offered the helper did not make the present call.
    refused: BTreeSet<String>,
    /// The present call was made.
    made: bool,
    /// Helpers and program types whose packet pointers the verifier was asked about.
    asked: BTreeSet<(i32, &'static str)>,
}

/// A seeded generator of numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }
}

impl Report {
    /// Makes every call of the recipes, as written, in every program type that takes it.
    pub fn as_written(&mut self, bench: &Bench, recipes: &Recipes) {
        self.begin(recipes);
        for call in &recipes.calls {
            for kind in kinds(call) {
                self.call(bench, call, kind);
            }
            self.note_refusals(call);
        }
    }

    /// A call that no program type makes, though it is offered the helper, is a recipe that does not work here.
    fn note_refusals(&mut self, call: &Call) {
        let refused = std::mem::take(&mut self.refused);
        if !self.made && !refused.is_empty() {
            self.broken.insert(format!("{} {}: {}", call.place, call.text, list(&refused)));
        }
        self.made = false;
    }

    /// Makes every call in the first few program types that take it, beginning with another one for each call.
    pub fn slice(&mut self, bench: &Bench, recipes: &Recipes, types: u64) {
        self.begin(recipes);
        for (i, call) in recipes.calls.iter().enumerate() {
            let mut kinds: Vec<&Kind> = kinds(call).collect();
            let first = i % kinds.len();
            kinds.rotate_left(first);
            let made = |report: &Report| report.helpers.get(&call.helper).map_or(0, |s| s.calls);
            let before = made(self);
            for kind in kinds {
                if made(self) - before >= 2 * types {
                    break;
                }
                self.call(bench, call, kind);
            }
        }
    }

    fn begin(&mut self, recipes: &Recipes) {
        self.skipped.clone_from(&recipes.skipped);
        self.explained.clone_from(&recipes.explained);
    }

    /// Makes varied calls until `until`.
    pub fn varied(&mut self, bench: &Bench, recipes: &Recipes, random: &mut Random, until: Instant) {
        while Instant::now() < until {
            let call = &recipes.calls[random.below(recipes.calls.len())];
            let kinds: Vec<&Kind> = kinds(call).collect();
            let kind = kinds[random.below(kinds.len())];
            let varied = vary(call, random);
            self.call(bench, &varied, kind);
        }
    }

    /// Makes one call in one program type and judges it.
    pub fn call(&mut self, bench: &Bench, call: &Call, kind: &Kind) {
        let seen = self.helpers.entry(call.helper).or_default();
        seen.name.clone_from(&call.name);
        seen.can_fail |= !matches!(call.failure, Failure::Never | Failure::Void);
        let baseline = bench.without(call, kind);
        let baseline = baseline.as_ref();
        let one = match bench.observe(call, kind, Filling::One, None, baseline) {
            Ok(one) => one,
            Err(Refusal::NotOffered) => return,
            Err(Refusal::Gone) if call.failure == Failure::Returning => {
                seen.offered = true;
                seen.calls += 1;
                seen.succeeded += 1;
                self.made = true;
                return;
            }
            Err(why) => {
                seen.offered = true;
                let text = format!("{}: {}", kind.name, tell(&why));
                self.refused.insert(text.clone());
                seen.refused.insert(text);
                return;
            }
        };
        seen.offered = true;
        self.runs += 1;
        self.made = true;
        let Ok(other) = bench.observe(call, kind, Filling::Other, None, baseline) else { return };
        self.runs += 1;
        let fields = &bench.fields[kind.name];
        let mut j = compare::judge(call, kind, fields, &one, &other);
        if call.unsteady && !compare::volatile(call) {
            self.runs += 1;
            if let Ok(again) = bench.observe(call, kind, Filling::One, None, baseline)
                && again.visible(&call.failure) != one.visible(&call.failure)
            {
                j.contradictions.push("undeclared: another run of the same gave another result".to_owned());
            }
        }
        let seen_reads = self.reads(bench, call, kind, (&one, baseline), &mut j);
        j.seen.extend(seen_reads);
        if self.asked.insert((call.helper, kind.name)) && bench.keeps_packet_pointers(call, kind) == Some(false) {
            if compare::moves_packet(call) {
                j.seen.insert("moves the packet".to_owned());
            } else {
                j.contradictions.push("undeclared: the verifier takes packet pointers for void after it".to_owned());
            }
        }
        let seen = self.helpers.entry(call.helper).or_default();
        seen.kinds.insert(kind.name);
        for o in [&one, &other] {
            seen.calls += 1;
            if o.failed(&call.failure) {
                seen.failed += 1;
                if (o.result as i32) < 0 && seen.errors.len() < 8 {
                    seen.errors.insert(o.result as i32);
                }
            } else {
                seen.succeeded += 1;
            }
        }
        if let Some(d) = compare::declared(call) {
            seen.declared.extend(compare::effects(&d));
        }
        seen.observed.extend(j.seen);
        for c in j.contradictions {
            *self
                .contradictions
                .entry(format!("{} {} in {}: {c} [{}]", call.helper, call.text, kind.name, call.place))
                .or_default() += 1;
        }
    }

    /// Flips prescribed bytes: those not declared read must not matter; of those declared read, one should.
    fn reads(
        &mut self,
        bench: &Bench,
        call: &Call,
        kind: &Kind,
        one: (&Observation, Option<&Baseline>),
        j: &mut compare::Judgement,
    ) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        if call.unsteady {
            return seen;
        }
        for at in compare::not_declared_read(call).into_iter().take(8) {
            self.runs += 1;
            if matters(bench, call, kind, one, at) {
                let place = at as i32 - call.frame as i32;
                j.contradictions.push(format!("undeclared read: frame byte {place} matters"));
            }
        }
        for (argument, bytes, copies) in compare::declared_read(call) {
            let effect = format!("copies argument {argument}");
            if copies && self.helpers.get(&call.helper).is_some_and(|s| s.observed.contains(&effect)) {
                continue;
            }
            self.runs += 1;
            let mut samples = (0..bytes.len().min(12)).map(|i| bytes[i * bytes.len() / bytes.len().min(12)]);
            if !samples.any(|at| matters(bench, call, kind, one, at)) {
                continue;
            }
            if !copies {
                j.contradictions.push(format!("undeclared: what is read from argument {argument} can be told"));
            }
            seen.insert(effect);
        }
        seen
    }

    /// Helpers of which at least one call came back.
    pub fn called(&self) -> usize {
        self.helpers.values().filter(|s| s.calls > 0).count()
    }

    /// Helpers seen both to succeed and to fail.
    pub fn both_ways(&self) -> usize {
        self.helpers.values().filter(|s| s.succeeded > 0 && s.failed > 0).count()
    }

    /// Declared effects that were not seen, of helpers that were called: number, name, effect, and why.
    pub fn unobserved(&self) -> Vec<(i32, &str, &str, Option<&str>)> {
        let why = |id: i32, effect: &str| self.explained.get(&(id, effect.to_owned())).map(String::as_str);
        self.helpers
            .iter()
            .filter(|(_, s)| s.calls > 0)
            .flat_map(|(id, s)| {
                s.declared.difference(&s.observed).map(move |e| (*id, s.name.as_str(), e.as_str(), why(*id, e)))
            })
            .collect()
    }

    /// Those of them that nothing explains.
    pub fn unexplained(&self) -> Vec<String> {
        let all = self.unobserved().into_iter().filter(|(.., why)| why.is_none());
        all.map(|(id, name, effect, _)| format!("{id} {name}: {effect}")).collect()
    }

    /// Helpers with recipes that some program type here may call.
    pub fn offered(&self) -> usize {
        self.helpers.values().filter(|s| s.offered).count()
    }
}

fn matters(
    bench: &Bench,
    call: &Call,
    kind: &Kind,
    (one, baseline): (&Observation, Option<&Baseline>),
    at: usize,
) -> bool {
    let Ok(flipped) = bench.observe(call, kind, Filling::One, Some(at), baseline) else { return false };
    // The flipped byte itself is no effect.
    let (mut a, mut b) = (one.visible(&call.failure), flipped.visible(&call.failure));
    a.written.retain(|(i, _)| *i != at);
    b.written.retain(|(i, _)| *i != at);
    a != b
}

fn tell(why: &Refusal) -> String {
    match why {
        Refusal::NotOffered => "not offered".to_owned(),
        Refusal::Rejected(reason) => format!("rejected: {reason}"),
        Refusal::Gone => "the call did not come back".to_owned(),
        Refusal::NotReached => "the call was not reached".to_owned(),
        Refusal::Broken(reason) => reason.clone(),
    }
}

fn kinds(call: &Call) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|k| call.kinds.is_empty() || call.kinds.iter().any(|n| n == k.name))
}

/// Numbers at which helpers change their minds.
pub const EDGES: [i64; 24] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    14,
    16,
    20,
    34,
    64,
    85,
    86,
    99,
    100,
    101,
    255,
    256,
    0xffff,
    0x1_0000,
    -1,
    i32::MAX as i64,
    i32::MIN as i64,
];

/// Changes a number, or prescribed bytes, of a call.
pub fn vary(call: &Call, random: &mut Random) -> Call {
    let mut varied = call.clone();
    if varied.arguments.is_empty() || varied.fixed {
        return varied;
    }
    for _ in 0..1 + random.below(2) {
        let which = random.below(varied.arguments.len());
        match &mut varied.arguments[which] {
            Argument::Number(n) => {
                *n = if random.below(4) == 0 { random.word() as i32 as i64 } else { EDGES[random.below(EDGES.len())] };
            }
            Argument::Buffer { content: Some(bytes), .. } if !bytes.is_empty() => {
                let at = random.below(bytes.len());
                bytes[at] = random.word() as u8;
            }
            _ => {}
        }
    }
    varied.text = format!("{} varied to {:?}", call.text, varied.arguments);
    varied
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, s) in self.helpers.iter().filter(|(_, s)| s.calls > 0) {
            let errors: Vec<String> = s.errors.iter().rev().map(i32::to_string).collect();
            let (name, kinds, errors) = (&s.name, list(&s.kinds), errors.join(" "));
            writeln!(f, "{id:4} {name:32} {:6} ok {:6} failed ({errors}) {kinds}", s.succeeded, s.failed)?;
        }
        writeln!(f, "\nnot reached:")?;
        for (id, s) in self.helpers.iter().filter(|(_, s)| s.calls == 0) {
            let why = if s.offered { list(&s.refused) } else { "no program type here may call it".to_owned() };
            writeln!(f, "{id:4} {:32} {why}", s.name)?;
        }
        for (id, name, why) in &self.skipped {
            writeln!(f, "{id:4} {name:32} {why}")?;
        }
        writeln!(f, "\ndeclared, not seen:")?;
        for (id, name, effect, why) in self.unobserved() {
            writeln!(f, "{id:4} {name:32} {effect}: {}", why.unwrap_or("NOT EXPLAINED"))?;
        }
        writeln!(f, "\ncontradictions: {}", self.contradictions.len())?;
        for (what, n) in &self.contradictions {
            writeln!(f, "{n:6} x {what}")?;
        }
        for b in &self.broken {
            writeln!(f, "no call came back: {b}")?;
        }
        let (called, both) = (self.called(), self.both_ways());
        let declared: usize = self.helpers.values().filter(|s| s.calls > 0).map(|s| s.declared.len()).sum();
        let (unseen, unexplained) = (self.unobserved().len(), self.unexplained().len());
        writeln!(
            f,
            "\n{called} of {} offered helpers called, {both} seen both to succeed and to fail, {} runs; of {declared} \
             declared effects {} seen, {} explained, {unexplained} not",
            self.offered(),
            self.runs,
            declared - unseen,
            unseen - unexplained
        )
    }
}

fn list<T: AsRef<str> + Ord>(set: &BTreeSet<T>) -> String {
    set.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}
