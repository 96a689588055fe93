//! Enumeration: all short replacements in the order of their length.
//!
//! A depth-first search over the instructions of [`crate::pool`] with every prefix run on test
//! inputs in lanes. A prefix is given up when it leaves the memory the original uses, when more places
//! differ from what is wanted than instructions are left (the last instruction must define a live-out
//! or store), or when an equally long one has led to the same values before (observational
//! equivalence). What passes all tests goes to the judge; a refutation becomes a test, and the length is
//! tried again. So, when a length is through, there is no such sequence in the subset: [`Outcome`] says
//! up to which length that holds.

use std::rc::Rc;
use std::time::Instant;

use bpf_isa::{Insn, Reg, RegSet};
use bpf_program::Op;
use bpf_semantics::exec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::batch::Batch;
use crate::batch::parts::{Parts, Word};
use crate::inputs::Input;
use crate::lanes::{LaneMachine, WORLD};
use crate::pointer_rules::well_typed;
use crate::pool::{Pool, Values};
use crate::propose::readable;
use crate::rng::mix;
use crate::settings::Distance;
use crate::test_memory::TestMemory;
use crate::window::{Answer, Cost, Found, Judge, NOP, Window};
use crate::{cost, counterexample};

/// Tests run at once.
const LANES: usize = 8;
/// Further batches a candidate must pass before the judge is asked.
const MORE: u64 = 4;
/// Refutations after which a length is given up.
const REFUTATIONS: usize = 64;
/// States remembered at most.
const STATES: usize = 1 << 22;

/// How much to search.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Most slots of a replacement.
    pub slots: usize,
    /// Instructions run at most.
    pub steps: u64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { slots: 4, steps: 50_000_000 }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The best replacement, if one was proven.
    pub found: Option<Found>,
    /// No sequence of at most that many slots does it, in this instruction subset; `None`: nothing was
    /// excluded, not even the empty one.
    pub exhausted_to: Option<usize>,
    /// Instructions run.
    pub steps: u64,
    /// Questions to the judge.
    pub judged: u64,
    /// Instructions in the subset.
    pub subset: usize,
}

/// Searches for a cheaper replacement of the window, shortest first.
pub fn enumerate(w: &Window, judge: &mut dyn Judge, effort: Effort) -> Outcome {
    let mut out = Outcome::default();
    let before = cost::of(w.old, w.goal);
    let old_slots: usize = w.old.iter().map(|o| o.insn.slots()).sum();
    let Some(mut tests) = Tests::new(w) else { return out };
    let mut refused: FxHashSet<Vec<Insn>> = FxHashSet::default();
    // For the size goal what is as long as the original is not searched.
    let longest = effort.slots.min(if w.goal.puts_slots_first() { old_slots.saturating_sub(1) } else { old_slots });
    let mut best = before;
    let mut sure = true;
    for slots in 0..=longest {
        let mut refutations = 0;
        loop {
            let Some(mut parts) = tests.parts(w) else { return out };
            let subset = tests.subset(w, &parts);
            out.subset = subset.ops.len();
            let left = effort.steps.saturating_sub(out.steps);
            let mut s = Search::new(w, &mut parts, &subset.ops, &refused, best, left);
            let end = s.run(slots);
            out.steps += s.steps;
            let Some(candidate) = s.found.take() else {
                // What was refused without a test may have stood for others that lead to the same values.
                sure &= end == End::Complete && s.vague == 0;
                if sure {
                    out.exhausted_to = Some(slots);
                }
                if end == End::OutOfTime || (!w.goal.puts_slots_first() && slots == longest) {
                    return out;
                }
                break;
            };
            let ops: Vec<Op> = candidate.iter().map(|i| subset.ops[*i].clone()).collect();
            if let Some(input) = tests.telling(w, &ops) {
                refutations += 1;
                tests.add(input);
                if refutations > REFUTATIONS {
                    return out;
                }
                continue;
            }
            out.judged += 1;
            match judge.judge(&ops) {
                Answer::Equal => {
                    let cost = cost::of(&ops, w.goal);
                    best = cost;
                    out.found = Some(Found { with: ops, cost, by: "enumerate" });
                    if w.goal.puts_slots_first() {
                        return out;
                    }
                    // Something as long may be faster.
                    continue;
                }
                Answer::Different(Some(d)) => {
                    refutations += 1;
                    let shown = counterexample::inputs(w, &d, out.judged).into_iter().find(|i| tells(w, i, &ops));
                    match shown {
                        Some(input) if refutations <= REFUTATIONS => tests.add(input),
                        _ => {
                            refused.insert(ops.iter().map(|o| o.insn).collect());
                        }
                    }
                }
                Answer::Different(None) | Answer::Unknown => {
                    refused.insert(ops.iter().map(|o| o.insn).collect());
                }
            }
        }
    }
    out
}

/// The instructions among which [`enumerate`] looks; `None` if the window cannot be tested.
pub fn subset(w: &Window) -> Option<Pool> {
    let tests = Tests::new(w)?;
    let parts = tests.parts(w)?;
    Some(tests.subset(w, &parts))
}

/// Whether the candidate goes wrong on this input.
fn tells(w: &Window, input: &Input, ops: &[Op]) -> bool {
    let alone: [Input; LANES] = std::array::from_fn(|_| input.clone());
    let Some(mut b) = Batch::<LANES>::new(w, &alone) else { return false };
    b.reset(w.old);
    fails(&mut b, w, ops)
}

fn fails(b: &mut Batch<LANES>, w: &Window, ops: &[Op]) -> bool {
    let mut padded = ops.to_vec();
    padded.resize(w.old.len().max(ops.len()), Op::new(NOP));
    if padded.len() > w.old.len() {
        return false;
    }
    b.run(&padded, 0);
    let wrong = !b.score(Distance::Pop).perfect();
    b.reject();
    wrong
}

/// The inputs in use.
struct Tests {
    inputs: [Input; LANES],
    next: usize,
    /// Inputs that only complete candidates see.
    reserve: Vec<[Input; LANES]>,
    batches: Vec<Batch<LANES>>,
}

impl Tests {
    fn new(w: &Window) -> Option<Tests> {
        let group =
            |g: u64| std::array::from_fn::<Input, LANES, _>(|l| Input::new(w, 0xe9, g * LANES as u64 + l as u64));
        let mut groups = (0..=MORE).map(group).filter(|g| Batch::<LANES>::new(w, g).is_some());
        let inputs = groups.next()?;
        let reserve: Vec<[Input; LANES]> = groups.collect();
        let batches = reserve.iter().filter_map(|g| Batch::<LANES>::new(w, g)).collect();
        Some(Tests { inputs, next: 0, reserve, batches })
    }

    fn parts(&self, w: &Window) -> Option<Parts<LANES>> {
        Batch::<LANES>::new(w, &self.inputs).map(Batch::into_parts)
    }

    /// The instruction subset; it does not depend on which tests are in use now.
    fn subset(&self, w: &Window, parts: &Parts<LANES>) -> Pool {
        let start: Vec<Vec<u64>> = parts.start.iter().map(|v| v.to_vec()).collect();
        let want: Vec<(usize, Vec<u64>)> = parts.want.iter().map(|(r, v)| (*r, v.to_vec())).collect();
        Pool::of(w, &Values { start: &start, want: &want })
    }

    /// An input of the reserve on which the candidate goes wrong.
    fn telling(&mut self, w: &Window, ops: &[Op]) -> Option<Input> {
        let g = self.batches.iter_mut().position(|b| fails(b, w, ops))?;
        self.reserve.get(g)?.iter().find(|i| tells(w, i, ops)).cloned()
    }

    /// Takes an input into use instead of the oldest.
    fn add(&mut self, input: Input) {
        self.inputs[self.next] = input;
        self.next = (self.next + 1) % LANES;
    }
}

/// How a search over one length ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Everything was looked at.
    Complete,
    /// A candidate was found.
    Found,
    /// Time or steps are used up.
    OutOfTime,
}

/// An instruction with what is needed to decide about it quickly.
struct Step<'o> {
    op: &'o Op,
    def: Option<usize>,
    uses: RegSet,
    slots: usize,
    time: u32,
    stores: bool,
}

struct Search<'a, 's> {
    w: &'a Window<'a>,
    steps_of: Vec<Step<'a>>,
    /// Instructions by the register they define; the last are those that store.
    by_def: Vec<Rc<[usize]>>,
    all: Rc<[usize]>,
    refused: &'a FxHashSet<Vec<Insn>>,
    best: Cost,
    machine: LaneMachine<'s, LANES, TestMemory<LANES>>,
    /// Registers that are set.
    set: RegSet,
    want: Vec<(usize, [u64; LANES])>,
    words: Vec<Word<LANES>>,
    seen: FxHashMap<u64, u8>,
    path: Vec<usize>,
    found: Option<Vec<usize>>,
    steps: u64,
    left: u64,
    /// Candidates passed over because the judge did not want them, or for other reasons than tests.
    vague: u64,
}

impl<'a, 's> Search<'a, 's> {
    fn new(
        w: &'a Window<'a>,
        parts: &'s mut Parts<LANES>,
        ops: &'a [Op],
        refused: &'a FxHashSet<Vec<Insn>>,
        best: Cost,
        left: u64,
    ) -> Search<'a, 's> {
        let costs = w.goal.costs();
        let step = |op: &'a Op| {
            let stores = matches!(op.insn, Insn::Store { .. } | Insn::Atomic { .. } | Insn::StoreRelease { .. });
            let def = op.insn.def().map(Reg::index);
            let (uses, slots) = (op.insn.uses(), op.insn.slots());
            Step { op, def, uses, slots, time: cost::time(op, costs), stores: stores || def.is_none() }
        };
        let steps_of: Vec<Step> = ops.iter().map(step).collect();
        let mut by_def = vec![Vec::new(); 12];
        for (i, s) in steps_of.iter().enumerate() {
            if let Some(d) = s.def {
                by_def[d].push(i);
            }
            if s.stores {
                by_def[11].push(i);
            }
        }
        Search {
            w,
            all: (0..steps_of.len()).collect(),
            steps_of,
            by_def: by_def.into_iter().map(Rc::from).collect(),
            refused,
            best,
            machine: LaneMachine { regs: parts.start, memory: &mut parts.sandbox },
            set: readable(w),
            want: parts.want.clone(),
            words: parts.words.clone(),
            seen: FxHashMap::default(),
            path: Vec::new(),
            found: None,
            steps: 0,
            left,
            vague: 0,
        }
    }

    /// Looks at all sequences of exactly `slots` slots (shorter ones have been looked at).
    fn run(&mut self, slots: usize) -> End {
        let words = self.wrong_words();
        self.deepen(slots, 0, words)
    }

    fn out_of_time(&self) -> bool {
        self.steps >= self.left || (self.steps & 0xfff == 0 && self.w.deadline.is_some_and(|d| Instant::now() >= d))
    }

    /// Which registers (and the history) differ from what is wanted.
    fn differing(&self) -> u16 {
        let wrong = self.want.iter().filter(|(r, want)| self.machine.regs[*r] != *want);
        wrong.fold(0, |set, (r, _)| set | 1 << r)
    }

    /// How many words of memory differ.
    fn wrong_words(&self) -> usize {
        let wrong = |(at, mask, want): &&Word<LANES>| {
            let got = self.machine.memory.words(at);
            (0..LANES).any(|l| (got[l] ^ want[l]) & mask[l] != 0)
        };
        self.words.iter().filter(wrong).count()
    }

    /// Everything that may follow a prefix, after which so many words of memory differ.
    fn deepen(&mut self, left: usize, time: u32, words: usize) -> End {
        let regs = self.differing();
        if left == 0 {
            return if regs == 0 && words == 0 { self.candidate(time) } else { End::Complete };
        }
        let events = usize::from(regs >> WORLD & 1 == 1);
        let in_regs = (regs & !(1 << WORLD)).count_ones() as usize;
        // An unaligned store reaches two words.
        let stores = words.div_ceil(2).max(events);
        // An exchanging atomic does both.
        if in_regs.max(stores) > left || (in_regs + stores > left && !self.exchanges()) {
            return End::Complete;
        }
        if left > 1 && !self.new_state(left) {
            return End::Complete;
        }
        if (left, in_regs, stores) == (1, 1, 0) {
            return self.last(regs.trailing_zeros() as usize, time);
        }
        // With one instruction left it must be one for the place that differs.
        let choice = match (left, in_regs, stores) {
            (1, 0, n) if n > 0 => self.by_def[11].clone(),
            (1, 1, _) => self.by_def[regs.trailing_zeros() as usize].clone(),
            _ => self.all.clone(),
        };
        for &i in choice.iter() {
            let end = self.step(i, left, time, words);
            if end != End::Complete {
                return end;
            }
        }
        End::Complete
    }

    /// The last instruction, where only register `d` is wrong: most of the time is spent here.
    fn last(&mut self, d: usize, time: u32) -> End {
        let Some(want) = self.want.iter().find(|(r, _)| *r == d).map(|(_, v)| *v) else { return End::Complete };
        let choice = self.by_def[d].clone();
        for &i in choice.iter() {
            let s = &self.steps_of[i];
            if s.stores || s.op.link.is_some() {
                let end = self.step(i, 1, time, 0);
                if end != End::Complete {
                    return end;
                }
                continue;
            }
            if s.slots > 1 || !s.uses.minus(self.set).is_empty() {
                continue;
            }
            let (op, takes) = (s.op, s.time);
            self.steps += 1;
            if self.out_of_time() {
                return End::OutOfTime;
            }
            let m = &mut self.machine;
            let old = m.regs[d];
            let Ok(()) = exec(m, op);
            let right = m.regs[d] == want && m.memory.faults == 0;
            m.memory.faults = 0;
            m.regs[d] = old;
            if right {
                self.path.push(i);
                let end = self.candidate(time + takes);
                self.path.pop();
                if end != End::Complete {
                    return end;
                }
            }
        }
        End::Complete
    }

    fn exchanges(&self) -> bool {
        self.by_def[11].iter().any(|i| self.steps_of[*i].def.is_some())
    }

    /// Runs one instruction and what may follow it.
    #[inline]
    fn step(&mut self, i: usize, left: usize, time: u32, words: usize) -> End {
        let s = &self.steps_of[i];
        if s.slots > left || !s.uses.minus(self.set).is_empty() {
            return End::Complete;
        }
        // What the loader patches stands once.
        if s.op.link.is_some() && self.path.contains(&i) {
            return End::Complete;
        }
        let (slots, takes, def, op) = (s.slots, s.time, s.def, s.op);
        self.steps += 1;
        if self.out_of_time() {
            return End::OutOfTime;
        }
        let m = &mut self.machine;
        let set = self.set;
        let old = def.map_or([0; LANES], |d| m.regs[d]);
        let old_world = m.regs[WORLD];
        let mark = m.memory.journal.len();
        let Ok(()) = exec(m, op);
        let mut idle = false;
        if let Some(d) = def {
            self.set = set.union(op.insn.defs());
            idle = m.regs[d] == old && set == self.set && m.memory.journal.len() == mark;
        }
        let mut end = End::Complete;
        // What changes nothing on any test is in vain: shorter sequences have been looked at.
        if m.memory.faults == 0 && !idle {
            let words = if self.machine.memory.journal.len() == mark { words } else { self.wrong_words() };
            self.path.push(i);
            end = self.deepen(left - slots, time + takes, words);
            self.path.pop();
        }
        let m = &mut self.machine;
        m.memory.faults = 0;
        if let Some(d) = def {
            m.regs[d] = old;
        }
        m.regs[WORLD] = old_world;
        self.set = set;
        while m.memory.journal.len() > mark {
            if let Some(last) = m.memory.journal.pop() {
                m.memory.undo(&[last]);
            }
        }
        end
    }

    /// Whether no sequence with as many slots left has led to these values.
    fn new_state(&mut self, left: usize) -> bool {
        let m = &self.machine;
        let mut h = u64::from(self.set.iter().fold(0u32, |a, r| a | 1 << r.index()));
        for r in 0..12 {
            let known = r == WORLD || Reg::new(r as u8).is_some_and(|q| self.set.contains(q));
            if known && (r == WORLD || self.by_def[r].len() + usize::from(r == 10) > 0) {
                m.regs[r].iter().for_each(|v| h = mix(h, *v));
            }
        }
        if !m.memory.journal.is_empty() {
            m.memory.bytes.chunks_exact(8).for_each(|c| h = mix(h, c.iter().fold(0, |a, b| a << 8 | u64::from(*b))));
        }
        // Instructions that stand once are part of the state.
        for i in self.path.iter().filter(|i| self.steps_of[**i].op.link.is_some()) {
            h = mix(h, *i as u64 + 1);
        }
        if self.seen.len() >= STATES {
            return true;
        }
        if self.seen.get(&h).is_some_and(|known| usize::from(*known) >= left) {
            return false;
        }
        // One that the verifier would refuse must not stand for others.
        let ops: Vec<Op> = self.path.iter().map(|i| self.steps_of[*i].op.clone()).collect();
        if !well_typed(self.w, &ops) {
            return false;
        }
        self.seen.insert(h, left as u8);
        true
    }

    fn candidate(&mut self, time: u32) -> End {
        let slots = self.path.iter().map(|i| self.steps_of[*i].slots as u32).sum();
        let cost = if self.w.goal.puts_slots_first() {
            Cost { first: slots, second: time }
        } else {
            Cost { first: time, second: slots }
        };
        if cost >= self.best {
            return End::Complete;
        }
        let insns: Vec<Insn> = self.path.iter().map(|i| self.steps_of[*i].op.insn).collect();
        let ops: Vec<Op> = self.path.iter().map(|i| self.steps_of[*i].op.clone()).collect();
        if !well_typed(self.w, &ops) {
            return End::Complete;
        }
        if self.refused.contains(&insns) {
            self.vague += 1;
            return End::Complete;
        }
        self.found = Some(self.path.clone());
        End::Found
    }
}
