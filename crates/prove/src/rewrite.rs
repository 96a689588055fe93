//! Proposed changes, and the questions they ask.
//!
//! A [`Rewrite`] is a plain value that anybody may make; under what is [`Known`] it asks a question of the judge
//! (`function/functions.rs`, `compare/window.rs`). The answer is a verdict and no more. What can be applied comes from [`crate::session`].

use std::borrow::Cow;

use bpf_facts::{Env, Live};
use bpf_isa::Reg;
use bpf_program::{BlockId, Function, Op, ProgKind, Terminator};

use crate::compare::verdict::Verdict;
use crate::compare::window::{along, exits_fit};
use crate::function::functions::functions;
use crate::function::whole::{fits_one_formula, whole};
use crate::options::Options;
use crate::options::Stats;
use crate::superblock::{Superblock, side_exits};

/// A proposed change of one block, or of a path through several. It proves nothing by itself.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// Block.
    pub block: BlockId,
    /// The blocks that the path goes through after it, if it goes on. Operations are then counted through all of
    /// them, the side exit between one and the next being one ([`Superblock`]), and a terminator is that of the last.
    pub path: Vec<BlockId>,
    /// First operation replaced.
    pub start: usize,
    /// One past the last operation replaced.
    pub end: usize,
    /// What takes their place.
    pub with: Vec<Op>,
    /// New terminator, if that changes, too; then `end` is the block's end.
    pub term: Option<Terminator>,
    /// Who proposed it.
    pub by: &'static str,
}

/// Makes the change. It must be one of this function ([`subject`]).
pub(crate) fn carry_out(rewrite: &Rewrite, f: &mut Function) {
    let Rewrite { block, path, start, end, with, term, .. } = rewrite;
    if path.is_empty() {
        f.block_mut(*block).ops.splice(*start..*end, with.iter().cloned());
    } else if let Some(new) = Superblock::of(f, *block, path).and_then(|old| old.replace(*start..*end, with)) {
        new.put_back(f);
    }
    if let Some(t) = term {
        f.block_mut(path.last().copied().unwrap_or(*block)).term = t.clone();
    }
}

/// What the judge is to assume about the block being rewritten. Anybody may fill it, so what follows from it is a
/// verdict, and nothing that could be applied: that needs [`crate::Points`] of a session.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// States before each operation and before the terminator.
    pub states: &'a [bpf_facts::State],
    /// What is live before each operation, before the terminator, and at the block's end.
    pub live: &'a [Live],
    /// On a path: what is live where each of its side exits leaves it.
    pub sides: &'a [Live],
}

/// Asks the judge about `rewrite` in `f`, should `known` be true.
///
/// # Errors
/// The verdict that is not [`Verdict::Equal`].
pub fn ask(
    f: &Function,
    env: &Env,
    known: &Known,
    rewrite: &Rewrite,
    options: &Options,
) -> Result<Stats, (Verdict, Stats)> {
    let (verdict, stats) = match options.switches.windows {
        false => ask_whole(f, env, rewrite, options),
        true => match Question::new(f, known, rewrite) {
            Ok(question) => question.ask(f.kind, env, options),
            Err(why) => (Verdict::Unknown(why.into()), Stats::default()),
        },
    };
    if verdict.is_equal() { Ok(stats) } else { Err((verdict, stats)) }
}

/// Asks about a change as one of the whole function.
fn ask_whole(f: &Function, env: &Env, rewrite: &Rewrite, options: &Options) -> (Verdict, Stats) {
    if let Err(why) = subject(f, rewrite) {
        return (Verdict::Unknown(why.into()), Stats::default());
    }
    let mut changed = f.clone();
    carry_out(rewrite, &mut changed);
    if fits_one_formula(f) { whole(f, &changed, env, options) } else { functions(f, &changed, env, options) }
}

/// The operations of the block or the path that a rewrite is about; or why it is about none.
fn subject<'f>(f: &'f Function, rewrite: &Rewrite) -> Result<Cow<'f, [Op]>, &'static str> {
    let Rewrite { block, path, start, end, with, term, .. } = rewrite;
    let exists = |b: BlockId| b.index() < f.blocks.len();
    if !exists(*block) || !term.iter().flat_map(Terminator::successors).all(exists) {
        return Err("a block that is not there");
    }
    let all = match path.is_empty() {
        true => Cow::Borrowed(&f.block(*block).ops[..]),
        false => Cow::Owned(Superblock::of(f, *block, path).ok_or("blocks that are no path")?.into_ops()),
    };
    let Some(old) = all.get(*start..*end) else { return Err("operations that are not there") };
    if term.is_some() && *end != all.len() {
        return Err("a new end that leaves out what stands before it");
    }
    exits_fit(old, with, side_exits(old))?;
    Ok(all)
}

/// What a rewrite of one block asks of the prover.
pub(crate) struct Question<'a> {
    /// Facts at its start.
    pub before: Cow<'a, bpf_facts::State>,
    /// What is replaced.
    pub old: Cow<'a, [Op]>,
    /// What takes its place.
    pub new: Cow<'a, [Op]>,
    /// What is live after it.
    pub live: Live,
    /// What is live where its side exits leave it, if it runs through several blocks.
    pub sides: Vec<Live>,
    /// Conditional jumps of both sides, of which the truth must agree.
    pub tail: Option<(Terminator, Terminator)>,
}

impl<'a> Question<'a> {
    /// The question that `rewrite` asks in `f`; or why there is none.
    pub fn new(f: &'a Function, known: &Known<'a>, rewrite: &'a Rewrite) -> Result<Question<'a>, &'static str> {
        let Rewrite { block, path, start, end, .. } = rewrite;
        let all = subject(f, rewrite)?;
        let unknown = "nothing is known there";
        if side_exits(&all) > known.sides.len() {
            return Err("nothing is known about where a jump leads");
        }
        let (first, n) = (side_exits(&all[..*start]), side_exits(&all[*start..*end]));
        let sides = known.sides[first..first + n].to_vec();
        let block = f.block(path.last().copied().unwrap_or(*block));
        let (live, tail) = match &rewrite.term {
            None => (*known.live.get(*end).ok_or(unknown)?, None),
            Some(new) => {
                let tail = match terminators(&block.term, new) {
                    Some(tail) => tail,
                    None => (block.term.clone(), constant_branch(&block.term, new)?),
                };
                (*known.live.get(*end + 1).ok_or(unknown)?, Some(tail))
            }
        };
        let before = Cow::Borrowed(known.states.get(*start).ok_or(unknown)?);
        let old = match all {
            Cow::Borrowed(all) => Cow::Borrowed(&all[*start..*end]),
            Cow::Owned(all) => Cow::Owned(all[*start..*end].to_vec()),
        };
        Ok(Question { before, old, new: Cow::Borrowed(&rewrite.with), live, sides, tail })
    }

    /// The answer.
    pub fn ask(&self, kind: ProgKind, env: &Env, options: &Options) -> (Verdict, Stats) {
        let tail = self.tail.as_ref().map(|(a, b)| (a, b));
        along(kind, env, &self.before, &self.old, &self.new, &self.sides, &self.live, tail, options)
    }
}

/// Two branches to the same places, the new one turned so that its condition must equal the old.
fn terminators(old: &Terminator, new: &Terminator) -> Option<(Terminator, Terminator)> {
    let (
        Terminator::Branch { taken, fall, .. },
        Terminator::Branch { taken: t, fall: g, cond, width, dst, src, origin },
    ) = (old, new)
    else {
        return None;
    };
    if (taken, fall) == (t, g) {
        return Some((old.clone(), new.clone()));
    }
    if (taken, fall) == (g, t) {
        let cond = cond.negate()?;
        let turned =
            Terminator::Branch { cond, width: *width, dst: *dst, src: *src, taken: *g, fall: *t, origin: *origin };
        return Some((old.clone(), turned));
    }
    None
}

/// A branch replaced by a `goto`: the branch with a constant condition that the old one must equal.
fn constant_branch(old: &Terminator, new: &Terminator) -> Result<Terminator, &'static str> {
    let (Terminator::Branch { taken, fall, origin, .. }, Terminator::Goto(to)) = (old, new) else {
        return Err("a change of control flow that has no local proof");
    };
    // The constant as a branch on the frame pointer, which equals itself.
    let cond = match to {
        t if t == taken => bpf_isa::Cond::Eq,
        t if t == fall => bpf_isa::Cond::Ne,
        _ => return Err("a jump to a new place"),
    };
    Ok(Terminator::Branch {
        cond,
        width: bpf_isa::Width::W64,
        dst: Reg::R10,
        src: bpf_isa::Src::Reg(Reg::R10),
        taken: *taken,
        fall: *fall,
        origin: *origin,
    })
}
