//! The loop: analyze, propose, prove, apply, until nothing improves.
//!
//! The function lives in a [`Session`], which alone can say what is known of it, prove a proposal and carry it out.
//! It is analyzed once a round; inside a round each block is rewritten until no proposal lowers its cost, with its own
//! facts replayed after every change; why the facts of the other blocks may be used all the same, the session says. It
//! refuses what would read dead registers, except as the first thing after an analysis (`Engine::revive`).

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Instant;

use bpf_facts::Env;
use bpf_isa::Reg;
use bpf_program::{BlockId, Function, Terminator, lower, predecessors, slot_count};
use bpf_prove::superblock::side_exits;
use bpf_prove::{Derivation, Points, Proven, Rewrite, Session, Sources, provenance, unreachable_operations};
use rustc_hash::FxHashSet;

use crate::quiet::Quiet;
use crate::settings::{Proposal, Recorder, Settings};
use crate::straight::straighten;
use crate::view::{Cost, View, cost, time_along};
use crate::{Pass, all_passes, cfg, tails, threads};

/// Counters of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Proofs that succeeded.
    pub proofs: usize,
    /// Proposals refused or not decided.
    pub refused: usize,
    /// Changes of the graph's shape that were refused; none, unless [`mod@cfg`] is wrong.
    pub shapes_refused: usize,
    /// Solver calls.
    pub sat_calls: u64,
    /// Whether the deadline cut the run short.
    pub timed_out: bool,
}

/// One run over one function.
pub struct Engine<'a> {
    settings: &'a Settings,
    passes: Vec<Box<dyn Pass>>,
    /// Rewrites not to make again: the kernel refused what they led to.
    banned: &'a FxHashSet<u64>,
    /// Slots analysed anew for the sake of one rewrite each.
    analysed: usize,
    /// Refused proposals, by block contents and replacement, so that none is tried twice.
    refused: FxHashSet<u64>,
    quiet: Quiet,
    /// Ways past tests were looked for, and none of them was proven.
    unanswered: bool,
    /// Counters.
    pub tally: Tally,
}

impl<'a> Engine<'a> {
    /// An engine that applies none of the rewrites `banned`.
    pub fn new(settings: &'a Settings, banned: &'a FxHashSet<u64>) -> Engine<'a> {
        let chosen = |p: &dyn Pass| settings.only.as_ref().is_none_or(|o| o.iter().any(|n| n == p.name()));
        let passes = all_passes().into_iter().filter(|p| chosen(p.as_ref())).collect();
        Engine::with_passes(passes, settings, banned)
    }

    /// One with other passes.
    pub fn with_passes(passes: Vec<Box<dyn Pass>>, settings: &'a Settings, banned: &'a FxHashSet<u64>) -> Engine<'a> {
        let (refused, quiet) = Default::default();
        Engine { settings, passes, banned, analysed: 0, refused, quiet, unanswered: false, tally: Tally::default() }
    }

    /// The same one, which passes over what an earlier one with these passes and settings has looked at in vain.
    pub fn knowing(self, quiet: Quiet) -> Engine<'a> {
        Engine { quiet, ..self }
    }

    /// What it has looked at in vain.
    pub fn into_quiet(self) -> Quiet {
        self.quiet
    }

    /// Rewrites the function until nothing improves, or time ends. Code that nothing leads to any more goes in any case: the
    /// kernel refuses a program that has some.
    pub fn run(&mut self, session: &mut Session) {
        let shape = self.settings.only.as_ref().is_none_or(|o| o.iter().any(|n| n == cfg::NAME));
        for _round in 0..MAX_ROUNDS {
            if self.spent() || !self.round(session, shape) {
                break;
            }
        }
        if shape && self.tally.timed_out && unreachable_operations(session.function()) > 0 {
            self.tidy(session);
        }
        if shape && !self.settings.goal.puts_slots_first() {
            self.straighten(session);
        }
    }

    /// Puts blocks in the order in which jumps take the least time, if that costs no slots that the original did not have.
    fn straighten(&mut self, session: &mut Session) {
        let f = session.function();
        let most = slot_count(session.derivation().original());
        let frequencies = self.settings.frequencies(f);
        let Some(new) = straighten(f, &frequencies, self.settings.goal.costs(), most) else { return };
        if self.is_banned(session, &new) || !reaches(&new) {
            return;
        }
        let done = session.reshape(new);
        self.tally.shapes_refused += usize::from(done.is_err());
    }

    /// Each pass on each block and path once; whether there may be more to find.
    fn round(&mut self, session: &mut Session, shape: bool) -> bool {
        let mut changed = shape && self.tidy(session);
        session.analyze();
        for b in session.function().layout.clone() {
            changed |= self.block(session, b);
            if self.spent() {
                return false;
            }
        }
        changed
            || shape && self.thread(session)
            || self.paths(session)
            || self.revive(session)
            || shape && self.share_tails(session)
    }

    /// Simplifies the graph, if that changes anything and is proven to change nothing else.
    fn tidy(&mut self, session: &mut Session) -> bool {
        let mut new = session.function().clone();
        if !cfg::simplify(&mut new, true) {
            return false;
        }
        if mixes_more(session, &new) || !reaches(&new) {
            new = session.function().clone();
            if !cfg::simplify(&mut new, false) {
                return false;
            }
        }
        if self.is_banned(session, &new) || !reaches(&new) {
            return false;
        }
        let done = session.reshape(new);
        self.tally.shapes_refused += usize::from(done.is_err());
        done.is_ok()
    }

    /// Whether the graph is not to be cut and ordered like this.
    fn is_banned(&self, session: &Session, new: &Function) -> bool {
        !self.banned.is_empty() && self.banned.contains(&shape_mark(session.function(), new))
    }

    /// Leads ways past tests that they answer.
    fn thread(&mut self, session: &mut Session) -> bool {
        let chosen = |only: &Vec<String>| only.iter().any(|n| n == threads::NAME);
        if self.unanswered || self.spent() || !self.settings.only.as_ref().is_none_or(chosen) {
            return false;
        }
        let may_cost = !self.settings.goal.puts_slots_first();
        let Some((new, copies)) = threads::copy(session.function(), session.env(), may_cost) else { return false };
        if self.is_banned(session, &new) || !reaches(&new) {
            return false;
        }
        let before = session.function().clone();
        let done = session.reshape(new);
        self.tally.shapes_refused += usize::from(done.is_err());
        if done.is_err() {
            return false;
        }
        session.analyze();
        let mut any = false;
        for c in &copies {
            let (path, with, term) = (Vec::new(), Vec::new(), Some(Terminator::Goto(c.to)));
            let rewrite = Rewrite { block: c.block, path, start: 0, end: 0, with, term, by: threads::NAME };
            any |= self.adopt(session, rewrite);
        }
        if !any {
            self.unanswered = true;
            let done = session.reshape(before);
            self.tally.shapes_refused += usize::from(done.is_err());
        }
        any
    }

    /// Shares common ends of blocks, where fewer slots are what counts.
    fn share_tails(&mut self, session: &mut Session) -> bool {
        if self.spent() || !self.settings.goal.puts_slots_first() {
            return false;
        }
        let Some(new) = tails::share(session).filter(|new| !mixes_more(session, new) && reaches(new)) else {
            return false;
        };
        if self.is_banned(session, &new) {
            return false;
        }
        let done = session.reshape(new);
        self.tally.shapes_refused += usize::from(done.is_err());
        done.is_ok()
    }

    /// Rewrites of paths through several blocks: what is known before a jump is known behind it. Only those
    /// proposals are looked at that need it, because a jump stands between their operations. The analysis is
    /// that of the function as it stands; a path that was changed makes it stale for its own blocks.
    fn paths(&mut self, session: &mut Session) -> bool {
        let mut touched: FxHashSet<BlockId> = FxHashSet::default();
        for (block, path) in paths_of(session.function()) {
            if self.spent() {
                break;
            }
            if std::iter::once(&block).chain(&path).any(|b| touched.contains(b)) {
                continue;
            }
            while self.improve_path(session, block, &path) {
                touched.insert(block);
                touched.extend(&path);
                if self.spent() {
                    break;
                }
            }
        }
        !touched.is_empty()
    }

    /// Applies the first proposal across a side exit of this path that is cheaper and proven.
    fn improve_path(&mut self, session: &mut Session, block: BlockId, path: &[BlockId]) -> bool {
        let Some(points) = session.path(block, path) else { return false };
        let view = View::new(session.function(), &points, session.env(), self.settings);
        if self.quiet.is(&view) {
            return false;
        }
        let across = |r: &Rewrite| view.ops.get(r.start..r.end).is_some_and(|ops| side_exits(ops) > 0);
        let proposals: Vec<Rewrite> = self.passes.iter().flat_map(|p| p.propose(&view)).filter(across).collect();
        let winner = proposals.into_iter().find_map(|r| self.consider(session, &view, r));
        self.note(&view, winner.is_some());
        self.carry_out(session, winner)
    }

    /// Remembers that nothing was found, if all was asked, the last proof was not cut short, and the answer follows from the view.
    fn note(&mut self, view: &View, found: bool) {
        if !found && view.is_all() && !self.spent() {
            self.quiet.note(view);
        }
    }

    /// Rewrites that may read what was dead: a register that still holds the number needed. Each is sound only right after
    /// an analysis, before anything else changes, and calls for a new one. The other blocks have their turn before the
    /// whole function is looked at again, which takes much longer than an analysis.
    ///
    /// On a very large function there is an end to that: the time is better spent on the rest.
    fn revive(&mut self, session: &mut Session) -> bool {
        let mut changed = false;
        for b in session.function().layout.clone() {
            while !self.spent() && self.analysed < ANALYSED {
                let winner = session.block_with_dead(b).and_then(|points| self.winner(session, &points, &mut 0));
                if !self.carry_out(session, winner) {
                    break;
                }
                changed = true;
                session.analyze();
                self.analysed += slot_count(session.function());
            }
        }
        changed
    }

    fn spent(&mut self) -> bool {
        let stopped = self.settings.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed));
        if stopped || self.settings.deadline.is_some_and(|d| Instant::now() >= d) {
            self.tally.timed_out = true;
        }
        self.tally.timed_out
    }

    fn block(&mut self, session: &mut Session, b: BlockId) -> bool {
        let mut changed = false;
        let mut again = true;
        while again && !self.spent() {
            again = false;
            let mut p = 0;
            while p < self.passes.len() {
                let Some(points) = session.block(b) else { break };
                let winner = self.winner(session, &points, &mut p);
                if self.carry_out(session, winner) {
                    again = true;
                    changed = true;
                    if self.spent() {
                        return true;
                    }
                }
            }
        }
        changed
    }

    /// The first proposal of pass `p` or one after it that is cheaper and proven; `p` becomes that pass.
    fn winner(&mut self, session: &Session, points: &Points, p: &mut usize) -> Option<(Proven, u64)> {
        let view = View::new(session.function(), points, session.env(), self.settings);
        let all = *p == 0;
        if all && self.quiet.is(&view) {
            *p = self.passes.len();
            return None;
        }
        while *p < self.passes.len() {
            let proposals = self.passes[*p].propose(&view);
            let winner = proposals.into_iter().find_map(|r| self.consider(session, &view, r));
            if winner.is_some() {
                return winner;
            }
            *p += 1;
        }
        if all {
            self.note(&view, false);
        }
        None
    }

    /// Applies a rewrite that somebody else proposes, if it is cheaper and proven from the last analysis.
    pub fn adopt(&mut self, session: &mut Session, rewrite: Rewrite) -> bool {
        let points = place(session, &rewrite);
        self.take(session, points, rewrite, Engine::consider)
    }

    /// The same of a rewrite that need not be cheaper than what is there.
    pub fn replace(&mut self, session: &mut Session, rewrite: Rewrite) -> bool {
        let points = place(session, &rewrite);
        self.take(session, points, rewrite, Engine::judge)
    }

    /// The same of a rewrite of one block that may read what was dead; afterwards the function is to be analysed anew.
    pub fn replace_with_dead(&mut self, session: &mut Session, rewrite: Rewrite) -> bool {
        let points = session.block_with_dead(rewrite.block);
        self.take(session, points, rewrite, Engine::judge)
    }

    fn take(
        &mut self,
        session: &mut Session,
        points: Option<Points>,
        rewrite: Rewrite,
        judge: impl Fn(&mut Self, &Session, &View, Rewrite) -> Option<(Proven, u64)>,
    ) -> bool {
        let Some(points) = points else { return false };
        let view = View::new(session.function(), &points, session.env(), self.settings);
        let winner = judge(self, session, &view, rewrite);
        self.carry_out(session, winner)
    }

    /// Has a rewrite proven, if it is worth it.
    fn consider(&mut self, session: &Session, view: &View, rewrite: Rewrite) -> Option<(Proven, u64)> {
        if self.tally.timed_out || !self.cheaper(view, &rewrite) {
            return None;
        }
        self.judge(session, view, rewrite)
    }

    /// Has a rewrite proven, unless the answer is known.
    fn judge(&mut self, session: &Session, view: &View, rewrite: Rewrite) -> Option<(Proven, u64)> {
        // The session would refuse it; this is no answer of the prover that is worth remembering.
        if !view.fresh && !session.reads_what_is_live(view.points, &rewrite) {
            return None;
        }
        let fingerprint = fingerprint(view, &rewrite);
        if self.banned.contains(&fingerprint) {
            return None;
        }
        if self.refused.contains(&fingerprint) {
            // Perhaps with less known than is now.
            view.look_beyond();
            return None;
        }
        if self.settings.deadline.is_some_and(|d| Instant::now() >= d) {
            self.tally.timed_out = true;
            return None;
        }
        let options = self.settings.proof_options(self.settings.deadline);
        let known = view.known();
        if let Some(Recorder(see)) = &self.settings.recorder {
            see(&Proposal {
                function: session.function(),
                env: view.env,
                known: &known,
                rewrite: &rewrite,
                options: &options,
            });
        }
        match session.prove(view.points, rewrite, &options) {
            Ok((proven, stats)) => {
                self.tally.proofs += 1;
                self.tally.sat_calls += stats.sat_calls;
                Some((proven, fingerprint))
            }
            Err((_, stats)) => {
                self.tally.refused += 1;
                self.tally.sat_calls += stats.sat_calls;
                self.refused.insert(fingerprint);
                None
            }
        }
    }

    fn carry_out(&mut self, session: &mut Session, winner: Option<(Proven, u64)>) -> bool {
        let Some((proven, fingerprint)) = winner else { return false };
        session.apply(proven, fingerprint).is_ok()
    }

    fn cheaper(&self, view: &View, r: &Rewrite) -> bool {
        let level = |t: &Terminator| match t {
            Terminator::Branch { width: bpf_isa::Width::W32, .. } => 3,
            _ => 1,
        };
        let too_new = r.with.iter().any(|o| o.insn.cpu() > self.settings.cpu && o.link.is_none());
        if too_new || r.term.as_ref().is_some_and(|t| level(t) > self.settings.cpu.max(level(view.term))) {
            return false;
        }
        let Some(replaced) = view.ops.get(r.start..r.end) else { return false };
        let costs = self.settings.goal.costs();
        let mut old = cost(replaced, r.term.as_ref().map(|_| view.term), costs);
        let mut new = cost(&r.with, r.term.as_ref(), costs);
        if !self.settings.goal.puts_slots_first() && side_exits(replaced) > 0 {
            let runs = view.runs();
            let before = side_exits(&view.ops[..r.start]);
            old.time = time_along(replaced, r.term.as_ref().map(|_| view.term), costs, &runs[before..]);
            new.time = time_along(&r.with, r.term.as_ref(), costs, &runs[before..]);
        }
        let rank = |c: Cost| {
            if self.settings.goal.puts_slots_first() {
                (c.slots as u32, c.time, c.reads)
            } else {
                (c.time, c.slots as u32, c.reads)
            }
        };
        rank(new) < rank(old)
    }
}

/// Whether accesses of the function have become one that the kernel may translate by the types of pointers that either was
/// made with ([`bpf_prove::provenance`]): the whole function would be refused.
fn mixes_more(session: &Session, new: &Function) -> bool {
    let accesses = |f: &Function| {
        let ops = f.layout.iter().flat_map(|b| &f.block(*b).ops);
        ops.filter(|o| o.insn.memory_operand().is_some_and(|m| m.base != Reg::R10)).count()
    };
    let mixes = |f: &Function| provenance(f, session.env(), Sources::PASSED).mixes;
    accesses(new) < accesses(session.function()) && mixes(new) && !mixes(session.function())
}

/// What is known where a rewrite stands.
fn place(session: &Session, rewrite: &Rewrite) -> Option<Points> {
    match rewrite.path.is_empty() {
        true => session.block(rewrite.block),
        false => session.path(rewrite.block, &rewrite.path),
    }
}

/// What all passes make of a function, and how.
pub fn optimize(f: Function, env: &Env, settings: &Settings) -> Derivation {
    let banned = FxHashSet::default();
    let mut session = Session::new(Derivation::new(f), env);
    Engine::new(settings, &banned).run(&mut session);
    session.finish()
}

/// Operations of a path at most.
const LONGEST: usize = 64;
/// Blocks of a path at most.
const BLOCKS: usize = 4;

/// The longest paths: each starts in a block that is not the only way on from another, or is too far from
/// such a one. Where a path forks, there is one for each way.
pub fn paths_of(f: &Function) -> Vec<(BlockId, Vec<BlockId>)> {
    let preds = predecessors(f);
    let next = |b: BlockId| -> Vec<BlockId> {
        let Terminator::Branch { taken, fall, .. } = f.block(b).term else { return vec![] };
        let only = |s: &BlockId| preds[s.index()][..] == [b] && *s != f.entry() && *s != b;
        [fall, taken].into_iter().filter(|s| taken != fall && only(s)).collect()
    };
    let mut out = Vec::new();
    let mut starts: Vec<BlockId> = f.layout.clone();
    starts.retain(|b| preds[b.index()].len() != 1 || !next(preds[b.index()][0]).contains(b));
    let mut seen: FxHashSet<BlockId> = starts.iter().copied().collect();
    while let Some(start) = starts.pop() {
        let mut open = vec![(vec![], f.block(start).ops.len())];
        while let Some((path, n)) = open.pop() {
            let at = path.last().copied().unwrap_or(start);
            let mut whole = true;
            for s in next(at).into_iter().filter(|s| *s != start && !path.contains(s)) {
                let more = n + 1 + f.block(s).ops.len();
                if path.len() + 1 < BLOCKS && more <= LONGEST {
                    let mut longer = path.clone();
                    longer.push(s);
                    open.push((longer, more));
                    whole = false;
                } else if !path.is_empty() && seen.insert(at) {
                    // The rest starts here again, so that no jump is left out.
                    starts.push(at);
                } else if path.is_empty() && more <= 4 * LONGEST {
                    open.push((vec![s], 4 * LONGEST));
                    whole = false;
                }
            }
            if whole && !path.is_empty() {
                out.push((start, path));
            }
        }
    }
    out
}

/// Rounds after which a function is left alone. Each either changes something or is the last.
const MAX_ROUNDS: usize = 200;
/// Slots that are analysed anew, in one run, for the sake of one rewrite each.
const ANALYSED: usize = 1_000_000;

/// Identity of a rewrite: the pass, the code it replaces with its context, and the replacement.
/// Whether all jumps reach where they lead to, which they may not in a very large function.
fn reaches(f: &Function) -> bool {
    slot_count(f) <= i16::MAX as usize || lower(f).is_ok()
}

/// What a change of shape is banned by.
pub fn shape_mark(before: &Function, after: &Function) -> u64 {
    let mut h = rustc_hash::FxHasher::default();
    for f in [before, after] {
        f.layout.hash(&mut h);
        for b in f.layout.iter().map(|b| f.block(*b)) {
            b.ops.iter().for_each(|o| (o.insn, o.origin).hash(&mut h));
            b.term.hash(&mut h);
        }
    }
    h.finish()
}

fn fingerprint(view: &View, r: &Rewrite) -> u64 {
    let mut h = rustc_hash::FxHasher::default();
    (r.by, view.fresh).hash(&mut h);
    (r.start, r.end).hash(&mut h);
    view.ops.iter().for_each(|o| (o.insn, o.origin).hash(&mut h));
    view.term.hash(&mut h);
    r.with.iter().for_each(|o| o.insn.hash(&mut h));
    r.term.hash(&mut h);
    h.finish()
}
