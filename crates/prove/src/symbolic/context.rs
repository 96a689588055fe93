//! What the two sides of a proof share: the term graph, what its variables mean, and the events.
//!
//! The idea behind the variables: everything a program cannot compute itself is a function of *where
//! it comes from*, so it gets a [`VarKey`] and both sides get the same variable for the same key. The
//! idea behind events: calls and the like form a history, the *world*; each event makes a new world
//! from the one before and from everything the callee can observe. Equal histories are equal numbers.

mod events;
mod provenance;
mod questions;

use std::cell::Cell;
use std::sync::Arc;

use bpf_facts::Num;
use bpf_isa::{Call, Insn};
use bpf_program::ByteOrder;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::options::{Budget, Limits, Options, Stats};
use crate::solver::assignments::Assignments;
use crate::solver::smt::Recorder;
use crate::symbolic::history::{COPIED, Event, EventKind};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{Node, TermId, Terms, VarId};

/// Work that beginning a proof takes ([`Budget`]).
const OF_A_CONTEXT: u64 = 100;
/// Rounds in which a random assignment is made one that fits.
const REPAIRS: usize = 8;

/// The shared side of a proof.
pub struct Context {
    /// The term graph.
    pub terms: Terms,
    /// The order of bytes of the machine that both sides are for.
    pub byte_order: ByteOrder,
    vars: FxHashMap<VarKey, TermId>,
    keys: FxHashMap<VarId, VarKey>,
    meanings: FxHashMap<VarId, Meaning>,
    regions: Vec<MemoryRegion>,
    region_ids: FxHashMap<MemoryRegion, u32>,
    /// Events by number − 1; world 0 is the entry.
    pub events: Vec<Event>,
    event_ids: FxHashMap<Event, u32>,
    by_before: FxHashMap<TermId, Vec<u32>>,
    by_kind: FxHashMap<EventKind, Vec<u32>>,
    /// The condition under which the two sides differ, once that was found possible.
    pub difference: Option<TermId>,
    /// The same, each thing in which they differ on its own.
    pub difference_parts: Vec<TermId>,
    /// What may be assumed: truth values.
    pub assumptions: Vec<TermId>,
    /// More to assume, found on the way: truth values with the term each speaks about. They come from
    /// facts of the old side, so they hold in each of its executions.
    lemmas: Vec<(TermId, TermId)>,
    /// Terms that lemmas or proofs made equal to a better one.
    learned: FxHashMap<TermId, TermId>,
    /// Questions already answered with no.
    never: FxHashSet<(TermId, TermId)>,
    /// What is tried before the solver is asked.
    assignments: Assignments,
    /// Others write shared memory while the program runs (`access.rs`). Off: it runs alone, as in the interpreter.
    pub concurrent: bool,
    /// Bytes of the packet that the old side has accessed before it began here, all in accesses of their own: of these only the
    /// places count.
    pub touched_before: Vec<crate::symbolic::access::Access>,
    /// Where both sides begin, a pointer to the packet's data is at hand: the verifier has let the program read the context's field
    /// that gives it, which the new side may read again.
    pub data_read_before: bool,
    /// It is assumed of some lookup that it finds an element, which no facts tell.
    pub found_element: bool,
    /// While others write: the old side's accesses, for the new side to consume.
    pub old_accesses: Option<crate::symbolic::access::OldAccesses>,
    /// Reads of the old side of what its very last access to shared memory has left are taken to find that.
    pub forward: bool,
    /// The old side makes such a read, so that asking again with `forward` may help.
    pub may_forward: bool,
    /// Registers where the old side starts.
    pub entry: Option<[TermId; 11]>,
    /// Some access was to memory that others may write.
    pub touched_shared: bool,
    /// Numbers given to reads and writes of the old side.
    pub reads: u32,
    /// Numbers given to bytes that reads of the new side take in, and the old side does not read.
    pub beside: u32,
    /// Whether provenance is given up: all memory is one region.
    pub one_memory: bool,
    /// Whether the values of all maps are one region.
    one_map: bool,
    /// With one memory: the frame's address never leaked, so that unknown pointers are elsewhere and
    /// the stack keeps a memory of its own.
    pub frame_apart: bool,
    /// The frame's address has not leaked so far on the side that runs: only values that visibly hold
    /// it lead there.
    pub frame_not_escaped: bool,
    /// An address of the frame may be spilled in the frame itself.
    pub frame_spilled: bool,
    /// Helpers of which all calls in a run give one number, and are no events.
    pub(crate) constant_calls: Vec<i32>,
    /// Numbers given to what calls and loads that are no events leave in registers.
    pub clobbered: u32,
    /// Take a repeated lookup of the old side for the first one.
    pub merge_lookups: bool,
    /// The old side repeats a lookup, so that asking again with `merge_lookups` may help.
    pub lookups_repeated: bool,
    /// Limits.
    pub limits: Limits,
    /// Work for this proof and others.
    budget: Option<Budget>,
    /// How much of the terms' work it has been told of.
    told: Cell<u64>,
    /// Sees every query with its answer.
    pub recorder: Option<Recorder>,
    /// Counters.
    pub stats: Stats,
    region_memo: FxHashMap<TermId, Option<MemoryRegion>>,
    stack_memo: FxHashMap<TermId, bool>,
    /// Variables for pointers that were moved by numbers of which nothing is known.
    moved: FxHashSet<TermId>,
    pointer_memo: FxHashMap<TermId, bool>,
    /// To what power of two values of maps begin at a multiple.
    aligned_maps: FxHashMap<Arc<str>, u32>,
    /// To what power of two sections of data begin at a multiple.
    sections: FxHashMap<String, u32>,
    /// Pointers at entry of which it is known, to what power of two they are a multiple.
    aligned: FxHashMap<TermId, u32>,
    /// How far into a map's value or a section of data pointers at entry lead, where that is known.
    places: FxHashMap<TermId, i64>,
}

impl Context {
    /// An empty context.
    pub fn new(limits: Limits) -> Context {
        Context {
            terms: Terms::new(),
            byte_order: ByteOrder::Little,
            vars: FxHashMap::default(),
            keys: FxHashMap::default(),
            meanings: FxHashMap::default(),
            regions: Vec::new(),
            region_ids: FxHashMap::default(),
            events: Vec::new(),
            event_ids: FxHashMap::default(),
            by_before: FxHashMap::default(),
            by_kind: FxHashMap::default(),
            difference: None,
            difference_parts: Vec::new(),
            assumptions: Vec::new(),
            lemmas: Vec::new(),
            learned: FxHashMap::default(),
            never: FxHashSet::default(),
            assignments: Assignments::random(),
            concurrent: true,
            touched_before: Vec::new(),
            data_read_before: false,
            found_element: false,
            old_accesses: None,
            forward: false,
            may_forward: false,
            entry: None,
            touched_shared: false,
            reads: 0,
            beside: 0,
            one_memory: false,
            one_map: false,
            frame_apart: false,
            frame_not_escaped: false,
            frame_spilled: true,
            constant_calls: Vec::new(),
            clobbered: 0,
            merge_lookups: false,
            lookups_repeated: false,
            limits,
            budget: None,
            told: Cell::new(0),
            recorder: None,
            stats: Stats::default(),
            region_memo: FxHashMap::default(),
            stack_memo: FxHashMap::default(),
            moved: FxHashSet::default(),
            pointer_memo: FxHashMap::default(),
            aligned_maps: FxHashMap::default(),
            sections: FxHashMap::default(),
            aligned: FxHashMap::default(),
            places: FxHashMap::default(),
        }
    }

    /// An empty context for a proof with these options.
    pub fn of(options: &Options) -> Context {
        let Options { limits, budget, switches, recorder, constant_calls, .. } = options;
        let mut cx = Context::new(*limits);
        cx.budget.clone_from(budget);
        cx.spend(OF_A_CONTEXT);
        cx.constant_calls.clone_from(constant_calls);
        cx.one_memory = !switches.regions;
        cx.one_map = !switches.maps;
        cx.terms.solver_offsets = !switches.offsets;
        cx.recorder.clone_from(recorder);
        cx
    }

    /// Has questions answered by what has answered others, with changes, where no answer is to be shown by a run.
    pub(crate) fn mend_answers(&mut self, mends: bool) {
        self.assignments.mends = mends;
    }

    /// Whether a call is no event, because all such calls of a run give one number.
    pub fn is_constant_call(&self, insn: &Insn) -> bool {
        matches!(insn, Insn::Call(Call::Helper(id)) if self.constant_calls.contains(id))
    }

    /// Whether the time or the work is over.
    pub fn exhausted(&self) -> bool {
        self.tell();
        self.terms.work() > self.limits.work
            || self.limits.deadline.is_some_and(|d| std::time::Instant::now() >= d)
            || self.budget.as_ref().is_some_and(Budget::is_spent)
    }

    /// Takes from what all proofs may do what has been done to the terms since.
    fn tell(&self) {
        let work = self.terms.work();
        self.spend(work - self.told.replace(work));
    }

    fn spend(&self, units: u64) {
        if let Some(budget) = &self.budget {
            budget.spend(units);
        }
    }

    /// The variable for `key`, made at first use with this width and meaning.
    pub fn var(&mut self, key: VarKey, width: u32, meaning: Meaning) -> TermId {
        if let Some(&t) = self.vars.get(&key) {
            return t;
        }
        let (v, t) = self.terms.fresh(width);
        self.vars.insert(key.clone(), t);
        self.keys.insert(v, key);
        self.meanings.insert(v, meaning);
        t
    }

    /// All variables: where their values come from, their terms, what they are known to be.
    pub fn variables(&self) -> Vec<(VarKey, TermId, Meaning)> {
        let meaning = |t: TermId| match self.terms.node(t) {
            Node::Var(v) => self.meanings.get(v).cloned().unwrap_or(Meaning::Unknown),
            _ => Meaning::Unknown,
        };
        self.vars.iter().map(|(k, t)| (k.clone(), *t, meaning(*t))).collect()
    }

    /// Where a variable's value comes from.
    pub fn key_of(&self, v: VarId) -> Option<&VarKey> {
        self.keys.get(&v)
    }

    /// Whether an argument of an event stands for one that the callee does not see: dead (`VarKey::Dead`), or the address of
    /// what it copies (`COPIED`).
    pub fn is_unseen(&self, t: TermId) -> bool {
        let is_dead = matches!(self.terms.node(t), Node::Var(v) if self.key_of(*v) == Some(&VarKey::Dead));
        is_dead || self.terms.as_const(t) == Some(COPIED)
    }

    /// The variable of a key, if it was made.
    pub fn lookup(&self, key: &VarKey) -> Option<TermId> {
        self.vars.get(key).copied()
    }

    /// The better term that is known to equal `t`, or `t` itself.
    pub fn better(&self, t: TermId) -> TermId {
        let mut t = t;
        while let Some(u) = self.learned.get(&t) {
            t = *u;
        }
        t
    }

    /// Remembers that `t`, made later than `better`, always equals it. The caller has a proof.
    pub fn replace(&mut self, t: TermId, better: TermId) {
        // Never in a circle.
        let (t, better) = (self.better(t), self.better(better));
        if t != better {
            self.learned.insert(t, better);
        }
    }

    /// Takes for granted that `t` equals `better`, by which it is replaced where it comes up from now on.
    pub fn equate(&mut self, t: TermId, better: TermId) {
        let e = self.terms.eq(t, better);
        match self.terms.as_const(e) {
            // That cannot be, so no execution gets here; nothing is to be concluded from it.
            Some(0) => return,
            Some(_) => {}
            None => self.lemmas.push((t, e)),
        }
        self.replace(t, better);
    }

    /// All that is assumed.
    pub fn assumed(&self) -> impl Iterator<Item = TermId> {
        self.assumptions.iter().copied().chain(self.lemmas.iter().map(|l| l.1))
    }

    /// What the facts of the old side know of its value `t`, as a term that shows it. The rest, ranges,
    /// goes into the lemmas.
    pub fn learn(&mut self, t: TermId, n: &Num) -> TermId {
        let t = self.better(t);
        if n.bits != 64 || self.terms.width(t) != 64 || self.terms.as_const(t).is_some() {
            return t;
        }
        let (zeros, ones) = self.terms.known(t);
        let r = if !n.tnum.mask & !(zeros | ones) == 0 { t } else { self.with_bits(t, n.tnum.value, n.tnum.mask) };
        if r != t {
            let e = self.terms.eq(t, r);
            if self.terms.as_const(e) == Some(0) {
                return t;
            }
            self.lemmas.push((t, e));
            self.replace(t, r);
        }
        let (zeros, ones) = self.terms.known(r);
        let bound = |s: &mut Self, k: u64, below: bool, signed: bool| {
            let k = s.terms.constant(64, k);
            let (x, y) = if below { (r, k) } else { (k, r) };
            let outside = if signed { s.terms.slt(x, y) } else { s.terms.ult(x, y) };
            if s.terms.as_const(outside).is_none() {
                let inside = s.terms.not(outside);
                s.lemmas.push((r, inside));
            }
        };
        if n.umin > ones {
            bound(self, n.umin, true, false);
        }
        if n.umax < !zeros {
            bound(self, n.umax, false, false);
        }
        if n.smin > i64::MIN && n.smin < 0 {
            bound(self, n.smin as u64, true, true);
        }
        if n.smax < i64::MAX && n.umax > i64::MAX as u64 {
            bound(self, n.smax as u64, false, true);
        }
        r
    }

    /// The `n` lower bytes of a value as they stand in memory, the one at the lowest address first.
    pub(crate) fn bytes_of(&mut self, value: TermId, n: u32) -> Vec<TermId> {
        (0..n).map(|i| self.terms.extract(value, self.byte_order.bit(i, 1, n), 8)).collect()
    }

    /// The value that these bytes of memory are: the other way round.
    pub(crate) fn value_of(&mut self, bytes: &[TermId]) -> TermId {
        match self.byte_order {
            ByteOrder::Little => self.terms.concat(bytes),
            ByteOrder::Big => self.terms.concat(&bytes.iter().rev().copied().collect::<Vec<_>>()),
        }
    }

    /// `t` with the bits outside `unknown` replaced by those of `value`.
    pub(crate) fn with_bits(&mut self, t: TermId, value: u64, unknown: u64) -> TermId {
        let mut pieces = Vec::new();
        let mut lo = 0u32;
        while lo < 64 {
            let free = unknown >> lo & 1;
            let mut hi = lo + 1;
            while hi < 64 && unknown >> hi & 1 == free {
                hi += 1;
            }
            pieces.push(match free {
                1 => self.terms.extract(t, lo, hi - lo),
                _ => self.terms.constant(hi - lo, value >> lo),
            });
            lo = hi;
        }
        self.terms.concat(&pieces)
    }
}

/// Answer to [`Context::check_sat`].
#[derive(Debug)]
pub enum SatResult {
    /// It cannot be.
    Unsat,
    /// It can, for instance so.
    Sat(crate::solver::blast::Model),
    /// Not found out within the limits.
    Unknown,
}
