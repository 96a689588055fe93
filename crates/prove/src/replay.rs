//! From a formula's assignment to a run: a refutation only counts when the interpreter shows it.
//!
//! The assignment is solved once more with every object at a place of its own, so that addresses mean
//! something. The old function then runs in the interpreter, in a world that answers every call and
//! every context access as the assignment says, and is recorded; the new one runs in the same world as
//! long as it asks the same questions. The first event, byte or bit of the result in which they differ
//! is the witness.

mod assignment;
mod fields;
mod follow;
mod layout;
mod recording;
mod world;

use bpf_facts::{Env, Facts, Liveness};
use bpf_isa::{Reg, RegSet};
use bpf_program::Function;
use bpf_semantics::interp::{Event as Call, Fault};

use crate::compare::verdict::Difference;
use crate::solver::blast::Model;
use crate::symbolic::context::Context;
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{Node, TermId};
use crate::unread::Fewer;
use assignment::{is_entry, place};
use layout::{PACKET_START, Places};
use recording::{Recording, context_differs, words};
use world::{Follow, run};

/// Ways of taking calls for those of the old side that are tried.
const MAX_WAYS: u32 = 16;

/// Parts of a difference that are tried on their own, where a run does not show the whole.
const MAX_PARTS: usize = 24;

/// An input on which two functions were seen to differ, in words a BPF developer understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// What the input is: context, packet, results of calls.
    pub input: Vec<String>,
    /// The first difference.
    pub difference: String,
    /// How the old and the new function ended.
    pub outcomes: [String; 2],
}

impl Witness {
    /// One line each: difference, outcomes, input.
    pub fn lines(&self) -> Vec<String> {
        let [old, new] = &self.outcomes;
        let mut lines =
            vec![format!("first difference: {}", self.difference), format!("old: {old}"), format!("new: {new}")];
        lines.extend(self.input.iter().map(|l| format!("input: {l}")));
        lines
    }
}

/// Replays a refutation of `old` against `new`. `None` if the difference does not show in a run: then
/// the formula is coarser than the machine, and nothing is refuted.
pub fn replay(d: &mut Difference, old: &Function, new: &Function, env: &Env) -> Option<Witness> {
    // The formula is about these.
    let fewer = Fewer::of_functions(old, new);
    let original = old;
    let (old, new) = (&*fewer.without_of(old, env), &*fewer.without_of(new, env));
    let taken_out = Fewer::of_functions(original, old);
    let whole = d.context.difference?;
    let mut parts = vec![whole];
    // The solver likes differences that nobody sees, such as an atomic with another operand that ends
    // the same: then each byte or bit of the result on its own.
    parts.extend(disjuncts(&mut d.context, whole).into_iter().take(MAX_PARTS));
    if !fewer.is_empty() {
        parts.extend(d.context.difference_parts.iter().copied().take(MAX_PARTS));
    }
    let mut first_apart = |apart: bool| {
        parts.iter().find_map(|part| try_part(&mut d.context, *part, apart, (old, new), [&fewer, &taken_out], env))
    };
    first_apart(true).or_else(|| first_apart(false))
}

fn try_part(
    cx: &mut Context,
    part: TermId,
    apart: bool,
    (old, new): (&Function, &Function),
    without: [&Fewer; 2],
    env: &Env,
) -> Option<Witness> {
    let (model, places) = place(cx, old.kind, part, apart)?;
    let cx = &*cx;
    let mut recording = Recording::default();
    let a = run(cx, &model, env, old, &mut recording, None, without);
    // Of equal calls any may be the one that is left. What differs for each is different.
    let mut first = None;
    let mut ways = 1;
    let mut way = 0;
    while way < ways {
        let mut replayed = Recording::default();
        let follow = Follow { old: &recording, choices: way };
        let b = run(cx, &model, env, new, &mut replayed, Some(follow), without);
        let found = compare(&a, &b, &recording, &replayed, &places, without[0])?;
        ways = ways.max(1u32.checked_shl(replayed.choices)?);
        if ways > MAX_WAYS {
            return None;
        }
        first = first.or(Some((b, replayed, found)));
        way += 1;
    }
    let (b, replayed, found) = first?;
    let words = |r: &Result<u64, Fault>, rec: &Recording, state: &Option<String>| {
        let end = match r {
            Ok(r0) => format!("returns {r0:#x}"),
            Err(_) if rec.thrown => "throws".to_owned(),
            Err(f) if rec.diverged.is_some() => return format!("takes another way ({f})"),
            Err(f) => return format!("fails: {f}"),
        };
        let state = state.as_ref().map_or_else(String::new, |s| format!(", {s}"));
        format!("{end} after {} call(s){state}", rec.calls.len())
    };
    Some(Witness {
        input: describe(cx, &model, &recording, &places, read_at_entry(old, env).union(read_at_entry(new, env))),
        difference: found.difference,
        outcomes: [words(&a, &recording, &found.states[0]), words(&b, &replayed, &found.states[1])],
    })
}

/// The alternatives of a disjunction; none if it is not one.
fn disjuncts(cx: &mut Context, t: TermId) -> Vec<TermId> {
    let Node::Not(inner) = *cx.terms.node(t) else { return vec![] };
    let Node::All(parts) = cx.terms.node(inner).clone() else { return vec![] };
    parts.iter().map(|p| cx.terms.not(*p)).collect()
}

/// A difference, and how each side left what differs, where its result does not tell.
struct Found {
    difference: String,
    states: [Option<String>; 2],
}

impl Found {
    fn new(difference: impl Into<String>) -> Found {
        Found { difference: difference.into(), states: [None, None] }
    }
}

fn compare(
    a: &Result<u64, Fault>,
    b: &Result<u64, Fault>,
    old: &Recording,
    new: &Recording,
    places: &Places,
    fewer: &Fewer,
) -> Option<Found> {
    // The old program runs to its end on every input, or the world was not good enough for it.
    if !old.thrown {
        a.as_ref().ok()?;
    }
    let missing = old.calls.get(new.effects.len()..).unwrap_or_default();
    let optional = old.without_effect.get(new.effects.len()..).unwrap_or_default();
    // Nobody promises that such a number is another one; and of two equal calls, either may be the one that is left.
    let is_left = |call: &&Call| new.diverged.is_none() && !fewer.has_named(&call.call);
    let is_ambiguous = missing.iter().filter(is_left).any(|call| new.calls.contains(call));
    // What is passed over shows only if it is asked behind.
    let is_doubtful = new.diverged.is_none() && !new.passed_over.is_empty();
    // What others have written at a call that is left out may have been there before it, and behind it.
    let is_disturbed = new.others_wrote || old.is_disturbed(new.effects.len());
    if old.has_changing_constants() || is_ambiguous || is_doubtful || is_disturbed {
        return None;
    }
    if let Some(d) = &new.diverged {
        return Some(Found::new(d.clone()));
    }
    let y = match b {
        // Both have thrown, in the same call.
        Err(_) if new.thrown => &0,
        Ok(y) => y,
        Err(Fault::Unmodelled(_)) => return None,
        // What was read of a call that is taken out here is dead, and still there.
        Err(_) if !fewer.is_empty() => return None,
        Err(f) => return Some(Found::new(format!("the new function fails: {f}"))),
    };
    // What a call gives that is left out shows where it is needed.
    let mut all = (new.calls.len()..).zip(missing.iter().zip(optional));
    if let Some((n, (call, _))) = all.find(|(_, (_, optional))| !**optional) {
        return Some(Found::new(format!("call {} is missing: {}", n + 1, words(call))));
    }
    if let Some((calls, off)) = context_differs(old, new) {
        let at = |r: &Recording| match r.context(calls).get(&off) {
            Some(v) => format!("{v:#04x} in the byte of the context at {off} after {calls} call(s)"),
            None => format!("the byte of the context at {off} as it was after {calls} call(s)"),
        };
        let (p, q) = (at(old), at(new));
        return Some(Found {
            difference: format!("stores to the context leave {p}, and {q} in the new one"),
            states: [Some(format!("leaving {p}")), Some(format!("leaving {q}"))],
        });
    }
    if old.thrown {
        return None;
    }
    let x = a.as_ref().ok()?;
    let mut keys: Vec<&u64> = old.last.keys().chain(new.last.keys()).collect();
    keys.sort_unstable();
    for k in keys {
        let at = |r: &Recording| r.last.get(k).or(old.read.get(k)).or(new.read.get(k)).copied();
        let (p, q) = (at(old).unwrap_or(0), at(new).unwrap_or(0));
        if p != q {
            let place = places.words(*k);
            return Some(Found {
                difference: format!("the byte at {place} ends as {p:#04x}, and as {q:#04x} in the new one"),
                states: [p, q].map(|v| Some(format!("leaving {v:#04x} at {place}"))),
            });
        }
    }
    (x != y).then(|| Found::new(format!("the result is {x:#x}, and {y:#x} in the new one")))
}

/// The input in words, as far as the old function looked at it.
/// The registers that a function may read before it sets them.
fn read_at_entry(f: &Function, env: &Env) -> RegSet {
    Liveness::of(f, env, &Facts::of(f, env)).entry(f.entry()).regs
}

fn describe(cx: &Context, model: &Model, recording: &Recording, places: &Places, read: RegSet) -> Vec<String> {
    let mut out = Vec::new();
    let mut vars = cx.variables();
    vars.sort_by_key(|(_, t, _)| *t);
    for (key, t, meaning) in vars {
        let v = model.eval(&cx.terms, t);
        match key {
            VarKey::CtxField(off, n, _) => {
                let line = format!("context field of {n} bytes at {off} = {v:#x}");
                if !out.contains(&line) {
                    out.push(line);
                }
            }
            VarKey::PacketPointer(..) if meaning == Meaning::Pointer(MemoryRegion::PacketEnd) && is_entry(cx, &key) => {
                out.push(format!("packet of {} bytes", v.wrapping_sub(PACKET_START)));
            }
            VarKey::EntryReg(n) if Reg::new(n).is_some_and(|r| read.contains(r)) => out.push(format!("r{n} = {v:#x}")),
            _ => {}
        }
    }
    let mut bytes: Vec<(&u64, &u8)> = recording.read.iter().collect();
    bytes.sort_unstable();
    for (a, b) in bytes.into_iter().take(64) {
        out.push(format!("{} = {b:#04x}", places.words(*a)));
    }
    for (i, (call, (r0, _))) in recording.calls.iter().zip(&recording.effects).enumerate() {
        out.push(format!("call {} {} returns {r0:#x}", i + 1, words(call)));
    }
    out
}
