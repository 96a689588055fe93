//! Changing a function, step by step, each step proven.
//!
//! A [`Session`] owns a function, what analysing it has told, and a version that counts changes and analyses. Proposals are
//! judged against the session's own facts, which nobody else can fill. What comes out is a [`Proven`] rewrite: a token
//! for this session at this version, used up by [`Session::apply`], worthless anywhere else and after any other change.
//! A change of the graph's shape is proven where it is made ([`Session::reshape`]).
//!
//! The steps made are kept in a [`Derivation`], with the function that they began with. It can be taken back to any
//! earlier step, which needs no new proof: the steps are the same, and so is what they are made to.
//!
//! **Why facts of an earlier version may be used.** A function is analysed once, then blocks are rewritten. A proven
//! rewrite keeps the values that are live where its block, or its path, is left, and reads at its start no register
//! that was not live there (checked here). So at the entry of every block what was live when it was analysed still has
//! the values of then, and nothing else matters: facts are cut down to it ([`Points::of_block`]). Two things break this
//! and are kept count of. A rewrite of a path moves values over its inner borders: of its blocks nothing is known any
//! more, save along the same path as a whole. A rewrite that used what is known of dead values may read them; after it
//! nothing is known until the next analysis.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf_facts::{Analysis, Env};
use bpf_isa::{Reg, RegSet};
use bpf_program::{BlockId, Function, Op, Terminator};
use thiserror::Error;

use crate::arena::{ARENA, may_use_arena};
use crate::cache::Cache;
use crate::compare::verdict::Verdict;
use crate::function::functions::by_way_of;
use crate::options::Options;
use crate::options::Stats;
use crate::points::{Points, Stamp};
use crate::rewrite::{Rewrite, carry_out};
use crate::shape::{ShapeDifference, same_behaviour};

/// A rewrite that has been shown equal in one session at one version. Nothing but [`Session::prove`] makes one, and it
/// is used up where it is applied:
///
/// ```compile_fail
/// fn twice(proof: bpf_prove::Proven) -> [bpf_prove::Proven; 2] {
///     [proof.clone(), proof]
/// }
/// ```
/// ```compile_fail
/// fn made_up(rewrite: bpf_prove::Rewrite) -> bpf_prove::Proven {
///     bpf_prove::Proven { rewrite }
/// }
/// ```
#[derive(Debug)]
pub struct Proven {
    rewrite: Rewrite,
    proof: Proof,
    stamp: Stamp,
    /// It was proven with what is known of dead values.
    revives: bool,
}

impl Proven {
    /// The rewrite.
    pub fn rewrite(&self) -> &Rewrite {
        &self.rewrite
    }
}

/// What a proof took. It is told to people; nothing depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// What was asked.
    pub stats: Stats,
    /// Wall-clock time.
    pub time: Duration,
}

/// A proof was to be used on something else than what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the proof is about another function, or about this one before it was changed")]
pub struct Stale;

/// One proven change.
#[derive(Clone, Debug)]
pub struct Step {
    change: Change,
    mark: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Rewrite(Rewrite, Proof),
    /// The graph cut and ordered anew.
    Shape(Arc<Function>),
}

impl Step {
    /// The rewrite; `None` for a change of shape.
    pub fn rewrite(&self) -> Option<&Rewrite> {
        match &self.change {
            Change::Rewrite(r, _) => Some(r),
            Change::Shape(_) => None,
        }
    }

    /// What its proof took; `None` for a change of shape, which is compared block by block.
    pub fn proof(&self) -> Option<Proof> {
        match &self.change {
            Change::Rewrite(_, proof) => Some(*proof),
            Change::Shape(_) => None,
        }
    }

    /// What whoever applied it wanted to know it by; 0 for a change of shape.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    fn carry_out(&self, f: &mut Function) {
        match &self.change {
            Change::Rewrite(r, _) => carry_out(r, f),
            Change::Shape(new) => new.as_ref().clone_into(f),
        }
    }
}

/// A function, what was made of it, and every proven step between the two.
#[derive(Clone, Debug)]
pub struct Derivation {
    original: Arc<Function>,
    steps: Vec<Step>,
    current: Function,
}

impl Derivation {
    /// Of no steps.
    pub fn new(original: Function) -> Derivation {
        Derivation { current: original.clone(), original: Arc::new(original), steps: Vec::new() }
    }

    /// What it began with.
    pub fn original(&self) -> &Function {
        &self.original
    }

    /// What it led to.
    pub fn current(&self) -> &Function {
        &self.current
    }

    /// The steps, in their order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Goes back to the first `n` steps.
    pub fn rewind(&mut self, n: usize) {
        if n >= self.steps.len() {
            return;
        }
        self.steps.truncate(n);
        // A change of shape is kept with its result.
        let from = self.steps.iter().rposition(|s| s.rewrite().is_none()).unwrap_or(0);
        self.current = self.original.as_ref().clone();
        self.steps[from..].iter().for_each(|s| s.carry_out(&mut self.current));
    }

    /// Tells each step again: what it was made of, the step, and what came of it.
    pub fn retell(&self, mut told: impl FnMut(&Function, &Step, &Function)) {
        let mut now = self.original.as_ref().clone();
        for step in &self.steps {
            let before = now.clone();
            step.carry_out(&mut now);
            told(&before, step, &now);
        }
    }

    /// Whether `new` does what this began with, by way of what it led to: the steps are proven, so only the rest of the way
    /// is left. Never [`Verdict::Different`].
    pub fn leads_to(&self, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
        by_way_of(&self.current, &self.original, new, env, options)
    }

    /// The same of a function that is called otherwise: names are for messages, and for what is known of functions by their names.
    #[must_use]
    pub fn named(mut self, name: &str) -> Derivation {
        if self.original.name != name {
            Arc::make_mut(&mut self.original).name = name.into();
            self.current.name = name.into();
            for step in &mut self.steps {
                if let Change::Shape(f) = &mut step.change {
                    Arc::make_mut(f).name = name.into();
                }
            }
        }
        self
    }

    /// What it led to, without the way.
    pub fn into_current(self) -> Function {
        self.current
    }
}

/// A function that is being changed.
pub struct Session<'e> {
    derivation: Derivation,
    env: &'e Env<'e>,
    id: u64,
    /// Counts changes and analyses.
    version: u64,
    /// What analysing has told, and at which version; `None`: nothing is known.
    analysis: Option<(Analysis, u64)>,
    /// Paths that were rewritten since.
    rewritten: Vec<(BlockId, Vec<BlockId>)>,
    cache: RefCell<Cache>,
    /// Pointers may be to an arena, of which nothing is proven.
    arena: bool,
}

/// Number of the next session.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl<'e> Session<'e> {
    /// Goes on with a derivation.
    pub fn new(derivation: Derivation, env: &'e Env<'e>) -> Session<'e> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let cache = RefCell::new(Cache::new());
        let arena = may_use_arena(derivation.current(), env);
        Session { derivation, env, id, version: 0, analysis: None, rewritten: Vec::new(), cache, arena }
    }

    /// The function as it stands.
    pub fn function(&self) -> &Function {
        &self.derivation.current
    }

    /// What the function is part of.
    pub fn env(&self) -> &'e Env<'e> {
        self.env
    }

    /// How it came about.
    pub fn derivation(&self) -> &Derivation {
        &self.derivation
    }

    /// Ends the session.
    pub fn finish(self) -> Derivation {
        self.derivation
    }

    /// Ends the session and begins one of another function of the same object. What the prover has answered is remembered: its
    /// questions are about windows, and name nothing of the function around them.
    #[must_use]
    pub fn then(self, next: Derivation) -> Session<'e> {
        Session { cache: self.cache, ..Session::new(next, self.env) }
    }

    /// Analyses the function as it stands.
    pub fn analyze(&mut self) {
        self.rewritten.clear();
        // Points of the analysis before go with another liveness.
        self.version += 1;
        self.analysis = Some((Analysis::of(self.function(), self.env), self.version));
    }

    /// Registers that were live into `block` at the last analysis.
    pub fn live_into(&self, block: BlockId) -> Option<RegSet> {
        let (analysis, _) = self.analysis.as_ref()?;
        (block.index() < self.function().blocks.len()).then(|| analysis.live().entry(block).regs)
    }

    /// What is known in a block. `None` if nothing is.
    pub fn block(&self, block: BlockId) -> Option<Points> {
        let (analysis, _) = self.analysis.as_ref()?;
        if self.is_rewritten(block) || block.index() >= self.function().blocks.len() {
            return None;
        }
        self.stamped(Points::of_block(self.function(), block, analysis, self.env))
    }

    /// The same with what is known of values that nobody reads; `None` also if anything has changed since the analysis.
    pub fn block_with_dead(&self, block: BlockId) -> Option<Points> {
        let (analysis, at) = self.analysis.as_ref()?;
        if *at != self.version || block.index() >= self.function().blocks.len() {
            return None;
        }
        self.stamped(Points::of_block_with_dead(self.function(), block, analysis, self.env))
    }

    /// What is known on a path. `None` if nothing is, or if it is no path.
    pub fn path(&self, block: BlockId, path: &[BlockId]) -> Option<Points> {
        let (analysis, _) = self.analysis.as_ref()?;
        if !std::iter::once(&block).chain(path).any(|b| self.is_rewritten(*b)) {
            return self.stamped(Points::of_path(self.function(), block, path, analysis, self.env));
        }
        // Rewritten as a whole, and no part of it as part of another.
        let meets = |(first, others): &&(BlockId, Vec<BlockId>)| {
            std::iter::once(first).chain(others).any(|b| *b == block || path.contains(b))
        };
        let same = |(first, others): &(BlockId, Vec<BlockId>)| *first == block && others == path;
        if !self.rewritten.iter().filter(meets).all(same) {
            return None;
        }
        self.stamped(Points::of_rewritten_path(self.function(), block, path, analysis, self.env))
    }

    fn is_rewritten(&self, b: BlockId) -> bool {
        self.rewritten.iter().any(|(first, others)| *first == b || others.contains(&b))
    }

    fn stamped(&self, points: Option<Points>) -> Option<Points> {
        let mut points = points?;
        points.stamp = Some(self.stamp());
        Some(points)
    }

    fn stamp(&self) -> Stamp {
        Stamp { session: self.id, version: self.version }
    }

    /// Whether a rewrite reads, at the start of its block or path, only registers that were live there. Others need
    /// not hold what they held when the function was analysed.
    pub fn reads_what_is_live(&self, points: &Points, rewrite: &Rewrite) -> bool {
        let (Some(live), true) = (self.live_into(points.block()), points.stamp == Some(self.stamp())) else {
            return false;
        };
        let last = points.path().last().copied().unwrap_or(points.block());
        let (ops, term) = (points.ops(self.function()), &self.function().block(last).term);
        let (Some(head), Some(tail)) = (ops.get(..rewrite.start), ops.get(rewrite.end..)) else { return false };
        // Calls are taken to read all arguments; those they read before are live or equally unread.
        let before = reads_first(ops, term);
        let after = reads_first(head.iter().chain(&rewrite.with).chain(tail), rewrite.term.as_ref().unwrap_or(term));
        after.minus(live.union(before)).minus(RegSet::of(Reg::R10)).is_empty()
    }

    /// Tries to prove `rewrite` from what `points` say, which must be this session's of now.
    ///
    /// # Errors
    /// The verdict that is not [`Verdict::Equal`].
    pub fn prove(
        &self,
        points: &Points,
        rewrite: Rewrite,
        options: &Options,
    ) -> Result<(Proven, Stats), (Verdict, Stats)> {
        let no = |why: &str| Err((Verdict::Unknown(why.into()), Stats::default()));
        let stamp = self.stamp();
        if self.arena {
            return no(ARENA);
        }
        if points.stamp != Some(stamp) {
            return no("facts of another function, or of this one before it was changed");
        }
        if rewrite.block != points.block() || rewrite.path != points.path() {
            return no("facts of another place");
        }
        let revives = points.with_dead();
        if !revives && !self.reads_what_is_live(points, &rewrite) {
            return no("it reads what was dead");
        }
        let started = Instant::now();
        let mut cache = self.cache.borrow_mut();
        let stats = cache.ask(self.function(), self.env, &points.known(), &rewrite, options)?;
        let proof = Proof { stats, time: started.elapsed() };
        Ok((Proven { rewrite, proof, stamp, revives }, stats))
    }

    /// Carries out a proven rewrite. `mark` is kept with the step.
    ///
    /// # Errors
    /// The proof is not about this function as it stands.
    pub fn apply(&mut self, proven: Proven, mark: u64) -> Result<(), Stale> {
        let Proven { rewrite, proof, stamp, revives } = proven;
        if stamp != self.stamp() {
            return Err(Stale);
        }
        carry_out(&rewrite, &mut self.derivation.current);
        self.version += 1;
        if revives {
            self.analysis = None;
        } else if !rewrite.path.is_empty() {
            self.rewritten.push((rewrite.block, rewrite.path.clone()));
        }
        self.derivation.steps.push(Step { change: Change::Rewrite(rewrite, proof), mark });
        Ok(())
    }

    /// Puts `new` in the place of the function, if it is the same with another shape ([`crate::shape`]). Nothing is
    /// known of it until the next analysis.
    ///
    /// # Errors
    /// Why it is not the same; then nothing changes.
    pub fn reshape(&mut self, new: Function) -> Result<(), ShapeDifference> {
        if self.arena {
            return Err(ShapeDifference::Arena);
        }
        same_behaviour(self.function(), &new)?;
        let name = std::mem::take(&mut self.derivation.current.name);
        let new = Function { name, ..new };
        self.derivation.steps.push(Step { change: Change::Shape(Arc::new(new.clone())), mark: 0 });
        self.derivation.current = new;
        self.version += 1;
        self.analysis = None;
        self.rewritten.clear();
        Ok(())
    }
}

/// Registers a sequence reads before it writes them.
fn reads_first<'o>(ops: impl IntoIterator<Item = &'o Op>, term: &Terminator) -> RegSet {
    let (mut defined, mut read) = (RegSet::EMPTY, RegSet::EMPTY);
    for op in ops {
        read = read.union(op.insn.uses().minus(defined));
        defined = defined.union(op.insn.defs());
    }
    read.union(term.uses().minus(defined))
}
