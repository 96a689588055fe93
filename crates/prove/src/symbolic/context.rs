//! What the two sides of a proof share: the term graph, what its variables mean, and the events.
//!
//! The idea behind the variables: everything a program cannot compute itself is a function of *where
//! it comes from*, so it gets a [`VarKey`] and both sides get the same variable for the same key. The
//! idea behind events: calls and the like form a history, the *world*; each event makes a new world
//! from the one before and from everything the callee can observe. Equal histories are equal numbers.

use std::sync::Arc;

use bpf_facts::Num;
use bpf_program::Symbol;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::options::{Limits, Stats, Switches};
use crate::solver::blast::{Answer, Blaster};
use crate::solver::sample::Sample;
use crate::solver::smt::{Query, Status};
use crate::symbolic::history::{Event, EventKind, WORLD_BITS};
use crate::symbolic::variables::{Meaning, Region, VarKey};
use crate::term::{MemId, Node, TermId, Terms, VarId};

/// Rounds in which a random assignment is made one that fits.
const REPAIRS: usize = 8;

/// The shared side of a proof.
pub struct Context {
    /// The term graph.
    pub terms: Terms,
    vars: FxHashMap<VarKey, TermId>,
    keys: FxHashMap<VarId, VarKey>,
    meanings: FxHashMap<VarId, Meaning>,
    regions: Vec<Region>,
    region_ids: FxHashMap<Region, u32>,
    /// Events by number − 1; world 0 is the entry.
    pub events: Vec<Event>,
    event_ids: FxHashMap<Event, u32>,
    by_before: FxHashMap<TermId, Vec<u32>>,
    by_kind: FxHashMap<EventKind, Vec<u32>>,
    /// The condition under which the two sides differ, once that was found possible.
    pub difference: Option<TermId>,
    /// What may be assumed: truth values.
    pub assumptions: Vec<TermId>,
    /// More to assume, found on the way: truth values with the term each speaks about. They come from
    /// facts of the old side, so they hold in each of its executions.
    lemmas: Vec<(TermId, TermId)>,
    /// Terms that lemmas or proofs made equal to a better one.
    learned: FxHashMap<TermId, TermId>,
    /// Questions already answered with no.
    never: FxHashSet<(TermId, TermId)>,
    /// Assignments tried before the solver is asked.
    samples: [Sample; 3],
    /// Others write shared memory while the program runs (`access.rs`). Off: it runs alone, as in the interpreter.
    pub concurrent: bool,
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
    /// Take a repeated lookup of the old side for the first one.
    pub merge_lookups: bool,
    /// The old side repeats a lookup, so that asking again with `merge_lookups` may help.
    pub lookups_repeated: bool,
    /// Limits.
    pub limits: Limits,
    /// Counters.
    pub stats: Stats,
    region_memo: FxHashMap<TermId, Option<Region>>,
    stack_memo: FxHashMap<TermId, bool>,
    /// Variables for pointers that were moved by numbers of which nothing is known.
    moved: FxHashSet<TermId>,
    pointer_memo: FxHashMap<TermId, bool>,
    /// Maps whose values begin at a multiple of eight.
    aligned_maps: FxHashSet<Arc<str>>,
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
            assumptions: Vec::new(),
            lemmas: Vec::new(),
            learned: FxHashMap::default(),
            never: FxHashSet::default(),
            samples: [0, 1, 2].map(Sample::new),
            concurrent: true,
            old_accesses: None,
            forward: false,
            may_forward: false,
            entry: None,
            touched_shared: false,
            reads: 0,
            one_memory: false,
            one_map: false,
            frame_apart: false,
            frame_not_escaped: false,
            frame_spilled: true,
            merge_lookups: false,
            lookups_repeated: false,
            limits,
            stats: Stats::default(),
            region_memo: FxHashMap::default(),
            stack_memo: FxHashMap::default(),
            moved: FxHashSet::default(),
            pointer_memo: FxHashMap::default(),
            aligned_maps: FxHashSet::default(),
            sections: FxHashMap::default(),
            aligned: FxHashMap::default(),
            places: FxHashMap::default(),
        }
    }

    /// The same with these optimizations.
    pub fn with(mut self, switches: Switches) -> Context {
        self.one_memory = !switches.regions;
        self.one_map = !switches.maps;
        self.terms.solver_offsets = !switches.offsets;
        self
    }

    /// The values of this map begin at a multiple of eight.
    pub fn aligns_values(&mut self, map: Arc<str>) {
        self.aligned_maps.insert(map);
    }

    /// A section of data begins at a multiple of 2 to this power.
    pub fn aligns_section(&mut self, name: &str, zero_bits: u32) {
        self.sections.insert(name.to_owned(), zero_bits);
    }

    /// A pointer is a multiple of 2 to this power.
    pub fn is_multiple(&mut self, pointer: TermId, zero_bits: u32) {
        self.aligned.insert(pointer, zero_bits);
    }

    /// A pointer leads so far into a map's value or a section of data.
    pub fn is_inside(&mut self, pointer: TermId, offset: i64) {
        self.places.insert(pointer, offset);
    }

    /// How far into a map's value or a section of data a pointer leads, if that is known.
    pub fn place_inside(&self, pointer: TermId) -> Option<i64> {
        let Node::Var(v) = self.terms.node(pointer) else { return None };
        let in_value = matches!(self.meanings.get(v), Some(Meaning::Pointer(Region::MapValue(_))));
        match self.key_of(*v) {
            Some(VarKey::Symbol(Symbol::Data { offset, .. })) => Some(*offset),
            // Helpers give the start of a value.
            Some(VarKey::Ret(_)) if in_value => Some(0),
            _ => self.places.get(&pointer).copied(),
        }
    }

    /// To what power of two an address of an object is a multiple, as far as that is known.
    pub fn zero_bits(&self, pointer: TermId) -> u32 {
        if let Some(known) = self.aligned.get(&pointer) {
            return *known;
        }
        let Node::Var(v) = self.terms.node(pointer) else { return 0 };
        match (self.key_of(*v), self.meanings.get(v)) {
            (Some(VarKey::Symbol(Symbol::Data { section, .. })), _) => {
                self.sections.get(&**section).copied().unwrap_or(0)
            }
            (Some(VarKey::Ret(_)), Some(Meaning::Pointer(Region::MapValue(name))))
                if self.aligned_maps.contains(name) =>
            {
                3
            }
            _ => 0,
        }
    }

    /// From here on the values of all maps are one region: some pointer leads to one of several.
    pub fn confuse_maps(&mut self) {
        self.one_map = true;
        self.region_id(&Region::AnyMapValue);
    }

    /// Whether the work limit is spent.
    pub fn exhausted(&self) -> bool {
        self.terms.work() > self.limits.work || self.limits.deadline.is_some_and(|d| std::time::Instant::now() >= d)
    }

    /// The world at entry.
    pub fn entry_world(&mut self) -> TermId {
        self.terms.constant(WORLD_BITS, 0)
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

    /// The variable of a key, if it was made.
    pub fn lookup(&self, key: &VarKey) -> Option<TermId> {
        self.vars.get(key).copied()
    }

    /// Number of a region. With one memory, all regions but the context's fields share a number.
    pub fn region_id(&mut self, r: &Region) -> u32 {
        let r = self.effective(r);
        if let Some(&i) = self.region_ids.get(r) {
            return i;
        }
        let i = self.regions.len() as u32;
        self.regions.push(r.clone());
        self.region_ids.insert(r.clone(), i);
        i
    }

    /// The region with this number.
    pub fn region(&self, i: u32) -> &Region {
        &self.regions[i as usize]
    }

    /// Whether others may access a region at the same time.
    pub fn is_shared(&self, r: u32) -> bool {
        match &self.regions[r as usize] {
            Region::Anything => !self.concurrent,
            r => r.shared(),
        }
    }

    /// Whether a region has a number.
    pub fn is_registered(&self, r: &Region) -> bool {
        self.region_ids.contains_key(self.effective(r)) || *r == Region::Ctx
    }

    /// The region that stands for `r`: with one memory, most are the same.
    fn effective<'r>(&self, r: &'r Region) -> &'r Region {
        let apart = *r == Region::Ctx || (self.frame_apart && *r == Region::Stack);
        match r {
            _ if self.one_memory && !apart && !(self.concurrent && r.shared()) => &Region::Anything,
            Region::MapValue(_) if self.one_map => &Region::AnyMapValue,
            r => r,
        }
    }

    /// Whether the frame's address occurs in a term.
    pub fn holds_frame(&mut self, t: TermId) -> bool {
        let mut seen = FxHashSet::default();
        let mut todo = vec![t];
        while let Some(t) = todo.pop() {
            // The frame pointer itself, one plus an offset that the loader decides, one that may be null.
            if let Node::Var(v) = self.terms.node(t)
                && self.meanings.get(v) == Some(&Meaning::Pointer(Region::Stack))
            {
                return true;
            }
            if !seen.insert(t) {
                continue;
            }
            // Bytes of the stack as they were at entry may be a spilled frame address. Those that the facts know
            // are terms of the frame pointer; where they know that there is none, the rest is none either.
            if let Node::Select(m, _) = self.terms.node(t) {
                if self.frame_spilled
                    && let crate::term::MemNode::Base { region, .. } = self.terms.mem(*m)
                    && self.regions[*region as usize] == Region::Stack
                {
                    return true;
                }
                // What is read at an address does not hold the address.
                continue;
            }
            crate::solver::blast::children(&self.terms.node(t).clone(), &mut |c| todo.push(c));
        }
        false
    }

    /// Regions numbered so far.
    pub fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    /// The region an address points into, where its shape tells: one pointer plus numbers.
    pub fn region_of(&mut self, t: TermId) -> Option<Region> {
        if let Some(r) = self.region_memo.get(&t) {
            return r.clone();
        }
        let r = match self.terms.node(t).clone() {
            Node::Var(v) => match self.meanings.get(&v) {
                Some(Meaning::Pointer(r)) => Some(r.clone()),
                _ => None,
            },
            Node::Sum(ts, _) => {
                let mut found = None;
                let mut clean = true;
                for (x, c) in ts.iter() {
                    if let Some(r) = self.region_of(*x) {
                        clean &= found.is_none() && *c == 1;
                        found = Some(r);
                    }
                }
                found.filter(|_| clean)
            }
            Node::Ite(_, a, b) => {
                let (x, y) = (self.region_of(a), self.region_of(b));
                // A null on one side is never dereferenced in a program that was accepted.
                match (x, y) {
                    (Some(x), Some(y)) if x == y => Some(x),
                    (Some(x), None) if self.terms.as_const(b) == Some(0) => Some(x),
                    (None, Some(y)) if self.terms.as_const(a) == Some(0) => Some(y),
                    _ => None,
                }
            }
            _ => None,
        };
        self.region_memo.insert(t, r.clone());
        r
    }

    /// Whether an if-then-else term chooses between pointers (as opposed to offsets).
    pub fn holds_pointer(&mut self, t: TermId) -> bool {
        if let Some(&r) = self.pointer_memo.get(&t) {
            return r;
        }
        let r = match self.terms.node(t).clone() {
            Node::Var(v) => matches!(self.meanings.get(&v), Some(Meaning::Pointer(_))),
            Node::Sum(ts, _) => ts.iter().any(|(x, _)| self.holds_pointer(*x)),
            Node::Ite(_, a, b) => self.holds_pointer(a) || self.holds_pointer(b),
            _ => false,
        };
        self.pointer_memo.insert(t, r);
        r
    }

    /// Says of a variable for a pointer that the offset in it may be any: as a mere number it may be any address.
    pub fn leads_anywhere(&mut self, t: TermId) {
        self.moved.insert(t);
    }

    /// Whether a value may lead to this function's frame. Once the frame's address has leaked, any
    /// number may be it, for a helper that probes memory.
    pub fn may_reach_stack(&mut self, t: TermId) -> bool {
        if self.frame_not_escaped {
            return self.holds_frame(t);
        }
        if let Some(&r) = self.stack_memo.get(&t) {
            return r;
        }
        let r = match self.terms.node(t).clone() {
            Node::Const(_) => false,
            Node::Var(_) if self.moved.contains(&t) => true,
            Node::Var(v) => match self.meanings.get(&v) {
                Some(Meaning::Pointer(r)) => *r == Region::Stack,
                Some(Meaning::Foreign) => false,
                _ => true,
            },
            Node::Select(..) => true,
            n => {
                let mut kids = Vec::new();
                crate::solver::blast::children(&n, &mut |c| kids.push(c));
                kids.into_iter().any(|c| self.may_reach_stack(c))
            }
        };
        self.stack_memo.insert(t, r);
        r
    }

    /// The world after `event`: the number of an identical one, else of one in `known` that provably
    /// is the same when `guard` holds, else a new one.
    pub fn advance(&mut self, event: Event, guard: TermId, match_others: bool) -> u32 {
        if let Some(&i) = self.event_ids.get(&event) {
            return i;
        }
        // Not remembered under the new event's name: the sameness holds under this guard only.
        if match_others && let Some(i) = self.equivalent(&event, guard) {
            return i;
        }
        let i = self.events.len() as u32 + 1;
        self.by_before.entry(event.before).or_default().push(i);
        self.by_kind.entry(event.what.clone()).or_default().push(i);
        self.events.push(event.clone());
        self.event_ids.insert(event, i);
        i
    }

    /// Whether an identical event, or one that provably is the same under `guard`, is known already.
    pub fn find_event(&mut self, event: &Event, guard: TermId) -> Option<u32> {
        if let Some(&i) = self.event_ids.get(event) {
            return Some(i);
        }
        self.equivalent(event, guard)
    }

    /// An event that provably is the same as `event` whenever `guard` holds. Those with the very same
    /// world before are tried first; the worlds of others may be equal all the same, where paths meet
    /// in another order.
    fn equivalent(&mut self, event: &Event, guard: TermId) -> Option<u32> {
        let same_before = self.by_before.get(&event.before).cloned().unwrap_or_default();
        let alike = self.by_kind.get(&event.what).cloned().unwrap_or_default();
        let others: Vec<u32> = alike.iter().copied().filter(|i| !same_before.contains(i)).collect();
        for i in same_before.into_iter().filter(|i| alike.contains(i)).chain(others) {
            let other = self.events[i as usize - 1].clone();
            let e = self.terms.eq(other.before, event.before);
            if self.terms.as_const(e) != Some(0) && self.same_event(&other, event, guard) {
                return Some(i);
            }
        }
        None
    }

    /// The term for world number `i`.
    pub fn world(&mut self, i: u32) -> TermId {
        self.terms.constant(WORLD_BITS, u64::from(i))
    }

    fn same_event(&mut self, a: &Event, b: &Event, guard: TermId) -> bool {
        if a.args.len() != b.args.len() || a.mems.len() != b.mems.len() {
            return false;
        }
        let mut differ = Vec::new();
        if a.before != b.before {
            let e = self.terms.eq(a.before, b.before);
            differ.push(self.terms.not(e));
        }
        for (x, y) in a.args.iter().zip(&b.args) {
            if x != y {
                if self.terms.width(*x) != self.terms.width(*y) {
                    return false;
                }
                let e = self.terms.eq(*x, *y);
                differ.push(self.terms.not(e));
            }
        }
        for ((r, x), (s, y)) in a.mems.iter().zip(&b.mems) {
            if r != s || self.bases_differ(*x, *y).is_some_and(|c| self.terms.as_const(c) == Some(1)) {
                return false;
            }
            self.memory_differences(*x, *y, &|_, _, _| true, &mut differ);
        }
        matches!(self.check_sat(guard, &differ), SatResult::Unsat)
    }

    /// Adds to `out`, for every byte address written in either memory, the condition that the two
    /// disagree there. `relevant(self, base, offset)` filters addresses.
    pub fn memory_differences(
        &mut self,
        a: MemId,
        b: MemId,
        relevant: &dyn Fn(&mut Context, TermId, i64) -> bool,
        out: &mut Vec<TermId>,
    ) {
        if a == b {
            self.stats.trivial += 1;
            return;
        }
        let mut addrs = Vec::new();
        let mut seen = FxHashSet::default();
        self.terms.written(a, &mut addrs, &mut seen);
        self.terms.written(b, &mut addrs, &mut seen);
        // Base memories of different versions are different memories. The bytes are compared all the same: a run
        // shows those.
        out.extend(self.bases_differ(a, b));
        addrs.sort_unstable();
        addrs.dedup();
        for (base, off) in addrs {
            if !relevant(self, base, off) {
                continue;
            }
            let (x, y) = (self.terms.select(a, base, off), self.terms.select(b, base, off));
            if x != y {
                let e = self.terms.eq(x, y);
                out.push(self.terms.not(e));
            }
        }
    }

    /// When, away from all written addresses, two memories may disagree: their base memories are not the same
    /// one. `None` if that cannot be.
    fn bases_differ(&mut self, a: MemId, b: MemId) -> Option<TermId> {
        let (x, y) = (self.base_choice(a), self.base_choice(b));
        if x == y {
            return None;
        }
        let e = self.terms.eq(x, y);
        let differ = self.terms.not(e);
        let t = self.terms.tru();
        (!matches!(self.check_sat(t, &[differ]), SatResult::Unsat)).then_some(differ)
    }

    /// Which base memory is below, as a number that depends on the joins' conditions.
    fn base_choice(&mut self, m: MemId) -> TermId {
        let mut memo: FxHashMap<MemId, TermId> = FxHashMap::default();
        self.base_choice_memo(m, &mut memo)
    }

    fn base_choice_memo(&mut self, m: MemId, memo: &mut FxHashMap<MemId, TermId>) -> TermId {
        if let Some(&t) = memo.get(&m) {
            return t;
        }
        let r = match self.terms.mem(m).clone() {
            crate::term::MemNode::Base { .. } => self.terms.constant(WORLD_BITS, m.index() as u64),
            crate::term::MemNode::Chunk { prev, .. } => self.base_choice_memo(prev, memo),
            crate::term::MemNode::Ite(c, a, b) => {
                let (x, y) = (self.base_choice_memo(a, memo), self.base_choice_memo(b, memo));
                self.terms.ite(c, x, y)
            }
        };
        memo.insert(m, r);
        r
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

    /// Up to `n` assignments in which all that is assumed holds. Random ones, if there are; else such as are random
    /// where nothing is assumed, and the solver's elsewhere.
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
        let SatResult::Sat(model) = self.check_sat(tru, &[tru]) else { return samples };
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
        if let Some(recorder) = self.limits.recorder {
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
        // Most questions with an answer are answered by almost any assignment.
        for sample in &mut self.samples {
            let demands = [&guard, &some].into_iter().chain(&self.assumptions).chain(lemmas);
            if demands.into_iter().all(|t| sample.value(&self.terms, *t) != 0) {
                return SatResult::Sat(sample.model.clone());
            }
        }
        self.stats.sat_calls += 1;
        let assumptions = self.assumptions.clone();
        let mut b = Blaster::new(&mut self.terms);
        b.assert(guard);
        b.assert(some);
        for a in assumptions.iter().chain(lemmas) {
            b.assert(*a);
        }
        match b.solve(self.limits.conflicts, self.limits.deadline) {
            Answer::Unsat => SatResult::Unsat,
            Answer::Sat(m) => SatResult::Sat(m),
            Answer::Unknown => {
                self.stats.undecided += 1;
                SatResult::Unknown
            }
        }
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
