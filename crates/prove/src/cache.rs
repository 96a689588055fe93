//! Verdicts remembered by the canonical form of the question (paper §5, optimization V).
//!
//! A window query is brought into a form in which accidents do not show: facts about places that
//! neither side reads are dropped, operations of the new side whose results nobody reads are dropped,
//! registers are numbered in the order of their first mention, and so are the sites that name pointer
//! bases. Two queries with the same form have the same answer. The form is compared in full, not by a
//! hash, so a collision cannot make a wrong answer.

use bpf_facts::{BaseId, Env, Kind, Live, StackSet, State, Value};
use bpf_isa::{AtomicOp, Cond, Insn, Reg, RegSet, Src, Width};
use bpf_program::{ByteOrder, Function, Op, ProgKind, Symbol, Terminator};
use rustc_hash::FxHashMap;

use crate::compare::verdict::Verdict;
use crate::options::{Options, Stats, Switches};
use crate::rewrite::{Known, Question, Rewrite};
use crate::superblock::is_side_exit;

/// Remembered verdicts of window queries of one object: names of maps and functions mean the same
/// throughout. Memory is bounded; when full, it starts over.
#[derive(Default)]
pub struct Cache {
    answers: FxHashMap<Form, bool>,
    /// Questions answered from memory.
    pub hits: u64,
    /// Questions that had to be proven.
    pub misses: u64,
}

/// Questions kept at most.
const CAPACITY: usize = 200_000;

impl Cache {
    /// An empty cache.
    pub fn new() -> Cache {
        Cache::default()
    }

    /// [`crate::ask`], remembering.
    ///
    /// # Errors
    /// The verdict that is not [`Verdict::Equal`]; one from memory is [`Verdict::Unknown`].
    pub fn ask(
        &mut self,
        f: &Function,
        env: &Env,
        known: &Known,
        rewrite: &Rewrite,
        options: &Options,
    ) -> Result<Stats, (Verdict, Stats)> {
        if !options.switches.cache || !options.switches.windows {
            return crate::rewrite::ask(f, env, known, rewrite, options);
        }
        let question = match Question::new(f, known, rewrite) {
            Ok(q) => q.without_the_irrelevant(),
            Err(why) => return Err((Verdict::Unknown(why.into()), Stats::default())),
        };
        let form = Form::of(f.kind, env.byte_order, &question, options);
        if let Some(equal) = self.answers.get(&form) {
            self.hits += 1;
            let stats = Stats { cached: 1, ..Stats::default() };
            return if *equal { Ok(stats) } else { Err((Verdict::Unknown("refused before".into()), stats)) };
        }
        self.misses += 1;
        let (verdict, stats) = question.ask(f.kind, env, options);
        // What was not decided for lack of time may be decided another time.
        if verdict.is_equal() || !options.is_over() {
            if self.answers.len() >= CAPACITY {
                self.answers.clear();
            }
            self.answers.insert(form, verdict.is_equal());
        }
        if verdict.is_equal() { Ok(stats) } else { Err((verdict, stats)) }
    }
}

impl Question<'_> {
    /// The same question with less in it: facts that neither side can use, and operations of the new
    /// side whose results nobody reads. An answer "equal" to this one is an answer to the other.
    pub fn without_the_irrelevant(mut self) -> Self {
        let tail = self.tail.as_ref().map_or([RegSet::EMPTY; 2], |(a, b)| [a.uses(), b.uses()]);
        // What neither side writes is the same afterwards, whatever it is.
        let writes = |ops: &[Op]| ops.iter().fold(RegSet::EMPTY, |w, o| w.union(o.insn.defs()));
        let written = writes(&self.old).union(writes(&self.new));
        self.live.regs = self.live.regs.intersect(written);
        for side in &mut self.sides {
            side.regs = side.regs.intersect(written);
        }
        let sides = self.sides.clone();
        // Side exits are counted from the end.
        let leaving = |n: usize| sides.iter().rev().nth(n).map_or(RegSet::EMPTY, |l| l.regs);
        let reads = |ops: &[Op], tail: RegSet| {
            let mut jumps = 0;
            ops.iter().rev().fold(tail, |live, o| {
                let live = live.minus(o.insn.defs()).union(o.insn.uses());
                if !is_side_exit(&o.insn) {
                    return live;
                }
                jumps += 1;
                live.union(leaving(jumps - 1))
            })
        };
        // What is live afterwards and written on one side only comes through from the start on the other.
        let through = |ops: &[Op], tail: RegSet| reads(ops, self.live.regs.union(tail));
        let regs = through(&self.old, tail[0]).union(through(&self.new, tail[1]));
        let looks = self.old.iter().chain(self.new.iter()).any(|o| !pure(&o.insn) || o.link.is_some());
        let stack = if looks { StackSet::ALL } else { StackSet::EMPTY };
        self.live.stack = self.live.stack.intersect(&stack);
        for side in &mut self.sides {
            side.stack = side.stack.intersect(&stack);
        }
        self.before.to_mut().retain(&Live { regs: regs.with(Reg::R10), stack });
        let mut wanted = self.live.regs.union(tail[1]);
        let mut kept: Vec<Op> = Vec::with_capacity(self.new.len());
        let (mut all, mut jumps) = (true, 0);
        for o in self.new.iter().rev() {
            if is_side_exit(&o.insn) {
                wanted = wanted.union(leaving(jumps));
                jumps += 1;
            }
            let sets = o.insn.defs();
            let idle = o.link.is_none() && pure(&o.insn) && sets.intersect(wanted.with(Reg::R10)).is_empty();
            all &= !idle;
            if !idle {
                wanted = wanted.minus(o.insn.defs()).union(o.insn.uses());
                kept.push(o.clone());
            }
        }
        if !all {
            kept.reverse();
            self.new = kept.into();
        }
        self
    }
}

/// Whether an operation does nothing but set a register from registers.
fn pure(i: &Insn) -> bool {
    matches!(
        i,
        Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Neg { .. }
            | Insn::Endian { .. }
            | Insn::LoadImm64 { .. }
    )
}

/// A question in canonical form.
#[derive(PartialEq, Eq, Hash)]
struct Form {
    kind: ProgKind,
    byte_order: ByteOrder,
    regs: Vec<(Reg, Value)>,
    stack: Vec<(i64, Value)>,
    frame: (bool, BaseId, u32),
    code: [Vec<(Insn, Option<Symbol>)>; 2],
    live: (RegSet, StackSet),
    sides: Vec<(RegSet, StackSet)>,
    tail: Option<[(Cond, Width, Reg, Src); 2]>,
    /// What the answer depends on beside the question.
    options: (bool, u32, u64, Switches, Vec<i32>),
}

impl Form {
    fn of(kind: ProgKind, byte_order: ByteOrder, q: &Question, options: &Options) -> Form {
        let names = Names::of(q);
        let mut sites: Vec<BaseId> = Vec::new();
        let mut value = |v: &Value| match &v.kind {
            Kind::Pointer { region, base, nullable } => {
                let base = site(&mut sites, *base);
                Value { kind: Kind::Pointer { region: region.clone(), base, nullable: *nullable }, num: v.num }
            }
            _ => v.clone(),
        };
        let before: &State = &q.before;
        let unknown = Value::unknown();
        let mut regs: Vec<(Reg, Reg)> =
            Reg::all().filter(|r| *before.reg(*r) != unknown).map(|r| (names.name(r), r)).collect();
        regs.sort_unstable();
        let regs = regs.into_iter().map(|(name, r)| (name, value(before.reg(r)))).collect();
        let stack = before.stack_values().map(|(off, v)| (off, value(v))).collect();
        let base = before.packet_base();
        let frame = (before.frame_leaked(), site(&mut sites, base), before.packet_range(base));
        let insn = |o: &Op| (o.insn.map_regs(|r| names.name(r)), o.link.as_ref().map(|l| l.symbol.clone()));
        let code = [q.old.iter().map(insn).collect(), q.new.iter().map(insn).collect()];
        let renamed = |l: &Live| (l.regs.iter().fold(RegSet::EMPTY, |s, r| s.with(names.name(r))), l.stack);
        let live = renamed(&q.live);
        let sides = q.sides.iter().map(renamed).collect();
        let jump = |t: &Terminator| match *t {
            Terminator::Branch { cond, width, dst, src, .. } => {
                let src = src.reg().map_or(src, |r| Src::Reg(names.name(r)));
                Some((cond, width, names.name(dst), src))
            }
            _ => None,
        };
        let tail = q.tail.as_ref().and_then(|(a, b)| Some([jump(a)?, jump(b)?]));
        let Options { limits, strict_shared_memory, switches, budget: _, recorder: _, constant_calls } = options;
        let options = (*strict_shared_memory, limits.conflicts, limits.work, *switches, constant_calls.clone());
        Form { kind, byte_order, regs, stack, frame, code, live, sides, tail, options }
    }
}

/// The canonical name of a pointer's base.
fn site(sites: &mut Vec<BaseId>, base: BaseId) -> BaseId {
    if matches!(base, BaseId::Fixed | BaseId::Unknown) {
        return base;
    }
    let n = sites.iter().position(|s| *s == base).unwrap_or_else(|| {
        sites.push(base);
        sites.len() - 1
    });
    // What a caller has passed may lie inside of an object; what a call here has given does not.
    if base.is_argument() { BaseId::argument(n as u32) } else { BaseId::Site(bpf_program::BlockId(u32::MAX), n as u32) }
}

/// New names of registers: 0, 1, 2 … in the order in which the code mentions them.
struct Names([Option<Reg>; 11]);

impl Names {
    fn of(q: &Question) -> Names {
        let mut names = [None; 11];
        names[Reg::R10.index()] = Some(Reg::R10);
        let fixed = |o: &Op| {
            let implicit = matches!(
                o.insn,
                Insn::Call(_)
                    | Insn::CallX { .. }
                    | Insn::LdAbs { .. }
                    | Insn::LdInd { .. }
                    | Insn::Atomic { op: AtomicOp::CmpXchg, .. }
            );
            // The prover takes the inputs of what CO-RE patches in the order of their numbers.
            implicit || matches!(&o.link, Some(l) if matches!(l.symbol, Symbol::Core { .. }))
        };
        if q.old.iter().chain(q.new.iter()).any(fixed) {
            Reg::all().for_each(|r| names[r.index()] = Some(r));
            return Names(names);
        }
        let mut next = 0u8;
        let mut mention = |r: Reg| {
            if names[r.index()].is_none() {
                names[r.index()] = Reg::new(next);
                next += 1;
            }
        };
        for o in q.old.iter().chain(q.new.iter()) {
            each_reg(&o.insn, &mut mention);
        }
        for t in q.tail.iter().flat_map(|(a, b)| [a, b]) {
            if let Terminator::Branch { dst, src, .. } = t {
                mention(*dst);
                src.reg().into_iter().for_each(&mut mention);
            }
        }
        Reg::all().for_each(&mut mention);
        Names(names)
    }

    fn name(&self, r: Reg) -> Reg {
        self.0[r.index()].unwrap_or(r)
    }
}

/// Calls `f` with each register the instruction names, in the order of its operands.
fn each_reg(i: &Insn, f: &mut impl FnMut(Reg)) {
    let f = std::cell::RefCell::new(f);
    let _ = i.map_regs(|r| {
        (*f.borrow_mut())(r);
        r
    });
}
