//! What the verifier has made of two programs that are equal.
//!
//! Proofs are about the programs that are loaded. What runs is what the verifier has left of them: it takes out what it
//! takes for impossible ([`bpf_kernel::Decided`]), and what it believes is not always true. Whatever the reason was, two
//! programs run as one if what is left of them is equal, and their calls and accesses are made the same, so that is shown, too.
//!
//! The one idea: a branch that the verifier has decided is one that both functions take in one direction only. With all
//! of them put in the place of the branches the two functions are compared as any others. Where that is no proof because
//! the verifier knows more of one function than of the other, it is enough to put in those for which there is no reason
//! that the facts know.
//!
//! Promise: functions are said to run as one only if that is proven, or what the verifier believes of them follows from
//! facts, which are proven.

mod known_facts;
mod made;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bpf_facts::{Env, Facts, Kind, Live, Region, State, Value, map_and_key};
use bpf_isa::{Call, Cond, Imm64Kind, Insn, Reg, Src, Width};
use bpf_kernel::{Decided, Made, ProgramVerdict};
use bpf_object::{FuncId, Object, RefKind};
use bpf_platform::helpers::Helper;
use bpf_platform::{Effects, maps};
use bpf_program::{Argument, Block, BlockId, Function, Op, Terminator, drop_unreachable, predecessors};
use bpf_prove::Options as ProofOptions;
use bpf_prove::superblock::{Superblock, side};
use known_facts::With;

pub(crate) use known_facts::KnownFacts;

/// Slots of branches of a function, and whether they are always taken (or never), in order.
pub(crate) type Jumps = Vec<(usize, bool)>;

/// What has become of a function: its decided branches, and its calls and accesses, with slots of the function, and
/// functions in the places of slots that are called.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct AsRun {
    jumps: Jumps,
    made: Vec<Made>,
    /// Its spills and fills that the verifier has taken out.
    gone: Vec<usize>,
    /// Bytes of its frame, as far as the kernel tells.
    depth: Option<u32>,
}

/// What has become of each function of a program: the program `entry` of an object, as libbpf links it. `None` if they do
/// not stand where they should.
fn of_functions(
    object: &Object,
    entry: FuncId,
    program: &ProgramVerdict,
    decided: &Decided,
) -> Option<BTreeMap<FuncId, AsRun>> {
    let mut starts: BTreeMap<usize, FuncId> = BTreeMap::new();
    let mut open = vec![(0, entry)];
    while let Some((start, f)) = open.pop() {
        if let Some(known) = starts.insert(start, f) {
            if known == f {
                continue;
            }
            return None;
        }
        for r in object.refs(f) {
            let (RefKind::Call { target } | RefKind::FuncAddr { target }) = r.kind else { continue };
            let slot = start + r.slot;
            let [_, _, _, _, distance @ ..] = *decided.linked.get(slot)?;
            let there = (slot + 1).checked_add_signed(i32::from_le_bytes(distance) as isize)?;
            open.push((there, target));
        }
    }
    let of = |slot: usize| {
        let (start, f) = starts.range(..=slot).next_back()?;
        let at = slot - start;
        (at < object.functions().get(f.0)?.slots).then_some((*f, at))
    };
    let mut functions: BTreeMap<FuncId, AsRun> = BTreeMap::new();
    for (slot, taken) in &decided.jumps {
        let (f, slot) = of(*slot)?;
        functions.entry(f).or_default().jumps.push((slot, *taken));
    }
    for made in &decided.made {
        let (f, slot) = of(made.slot)?;
        let calls = match made.calls {
            Some(start) => Some(starts.get(&start)?.0),
            None => None,
        };
        functions.entry(f).or_default().made.push(Made { slot, calls, ..made.clone() });
    }
    for slot in &decided.gone {
        let (f, slot) = of(*slot)?;
        functions.entry(f).or_default().gone.push(slot);
    }
    // Behind the program's own functions there may be one of the kernel's (`add_hidden_subprog`).
    let depths = stack_depths(program);
    if depths.len() < decided.functions.len() {
        return None;
    }
    for (start, depth) in decided.functions.iter().zip(depths) {
        functions.entry(*starts.get(start)?).or_default().depth = Some(*depth);
    }
    Some(functions)
}

/// How deep the kernel has made the frames of a program's functions, in the order of their code.
fn stack_depths(program: &ProgramVerdict) -> &[u32] {
    program.stats.as_ref().map(|stats| &stats.stack_depths[..]).unwrap_or_default()
}

/// Why two functions run as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Because {
    /// Not they are what runs, but what the verifier has left of them, which is equal. Otherwise what it has decided in them
    /// is true.
    what_is_left_is_equal: bool,
    /// That is so for what their callers pass.
    of_what_is_passed: bool,
}

impl Because {
    /// What is left of them is the same.
    const LEFT: Because = Because { what_is_left_is_equal: true, of_what_is_passed: false };
}

/// How functions of two programs are compared.
pub(crate) trait Pairs {
    /// The partner of a function of the first.
    fn partner(&self, f: FuncId) -> Option<FuncId>;
    /// Whether the two are the same instructions.
    fn are_the_same(&self, f: FuncId, g: FuncId) -> bool;
    /// What `ask` says of the two as graphs with common names; `None` if one is none.
    fn with_graphs<T>(&self, f: FuncId, g: FuncId, ask: impl FnOnce(&Function, &Function, &Env) -> T) -> Option<T>;
    /// How proofs are made.
    fn options(&self) -> &ProofOptions;
    /// The facts that are known already.
    fn facts(&self) -> &KnownFacts;
    /// What functions are looked at with.
    fn with<'a>(&'a self, env: &'a Env<'a>) -> With<'a> {
        With::new(env, self.options(), self.facts())
    }
}

/// What the verifier knew of read-only data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Constants {
    /// They are as the object holds them.
    Known,
    /// Nothing: the loader may have set them.
    Any,
}

/// Why it is not known what the kernel has made of two programs, or of the second one by itself, if it is not.
pub(crate) fn not_told(old: &ProgramVerdict, new: &ProgramVerdict) -> Option<&'static str> {
    let is_hidden = |p: &ProgramVerdict| p.decided.as_ref().is_some_and(|decided| decided.hidden);
    let pairs = old.pairs(new);
    if pairs.iter().any(|(p, q)| is_hidden(p) || is_hidden(q)) {
        return Some(HIDDEN);
    }
    pairs.iter().any(|(_, q)| q.decided.is_none()).then_some(ONLY_LIBBPF)
}

/// What is said where the kernel shows nothing.
pub(crate) const HIDDEN: &str = "the kernel does not show what it makes of it, so it is not known to run as before (no CAP_SYSLOG, or \
                      sysctls: kernel.kptr_restrict and net.core.bpf_jit_harden are 2)";

/// What is said of programs that libbpf alone can load.
const ONLY_LIBBPF: &str = "only libbpf can load it, so that nobody knows what the kernel has made of it";

/// Whether two programs, which are equal, run as one: each is its object, and what the kernel said of it.
pub(crate) fn run_as_one_program(
    old: (&Object, &ProgramVerdict),
    new: (&Object, &ProgramVerdict),
    pairs: &impl Pairs,
) -> bool {
    let as_judged = |p: &ProgramVerdict, q: &ProgramVerdict, constants: Constants| {
        run_as_one_as_judged((old.0, p), (new.0, q), pairs, constants)
    };
    let at_any_length = old.1.both_at_other_lengths(new.1).into_iter().flatten();
    let mut all = std::iter::once((old.1, new.1)).chain(at_any_length);
    // With hidden constants nobody was asked at other lengths: what of one of them is known at these, because it reads
    // no constants, has no partner.
    all.all(|(p, q)| as_judged(p, q, Constants::Known))
        && match old.1.both_with_any_constants(new.1) {
            Some((p, q)) if p.replaced_by(q) => as_judged(p, q, Constants::Any),
            _ => true,
        }
}

fn run_as_one_as_judged(
    old: (&Object, &ProgramVerdict),
    new: (&Object, &ProgramVerdict),
    pairs: &impl Pairs,
    constants: Constants,
) -> bool {
    // Nothing is known of either where both were loaded by libbpf (docs/trust.md).
    let are_as_deep = || stack_depths(old.1) == stack_depths(new.1);
    if old.1.decided == new.1.decided && (old.1.decided.is_none() || are_as_deep()) {
        return true;
    }
    let of = |(object, program): (&Object, &ProgramVerdict)| {
        let decided = program.decided.as_ref().filter(|decided| !decided.unclear)?;
        let [entry] = object.entries(&program.name, &program.section)[..] else { return None };
        Some((entry, of_functions(object, entry, program, decided)?))
    };
    let (Some((entry, before)), Some((_, mut after))) = (of(old), of(new)) else { return false };
    let first: BTreeMap<usize, usize> =
        old.0.loaded_with([entry]).into_iter().filter_map(|f| Some((pairs.partner(f)?.0, f.0))).collect();
    for made in after.values_mut().flat_map(|run| &mut run.made) {
        // Partners have one name.
        let Some(calls) = made.calls.map(|g| first.get(&g).copied()) else { continue };
        let Some(f) = calls else { return false };
        made.calls = Some(f);
    }
    let none = AsRun::default();
    let (mut found, mut not_as_loaded, mut of_what_is_passed) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    // Those that only the second program has decided branches in are among them.
    for f in old.0.loaded_with([entry]) {
        let Some(g) = pairs.partner(f) else { return false };
        found.insert(g);
        let [here, there] = [before.get(&f), after.get(&g)].map(|run| run.unwrap_or(&none));
        // They are taken out by how instructions stand.
        if here.gone != there.gone || !here.gone.is_empty() && !pairs.are_the_same(f, g) {
            return false;
        }
        let are_deep = || {
            let called = old.0.loaded_with(old.0.callees(f));
            let stay = |c: &FuncId| {
                pairs.with_graphs(*c, pairs.partner(*c)?, |a, b, env| [a, b].map(|f| stays_above(f, pairs.with(env))))
            };
            let callees_stay = called.iter().all(|c| stay(c) == Some([true; 2]));
            let are_deep = |a: &Function, b: &Function, env: &Env| {
                [(a, here), (b, there)]
                    .into_iter()
                    .all(|(f, run)| is_deep_enough(f, run, callees_stay, pairs.with(env)))
            };
            pairs.with_graphs(f, g, are_deep).unwrap_or(true)
        };
        if there.depth != here.depth && !are_deep() {
            return false;
        }
        let no_jumps = here.jumps.is_empty() && there.jumps.is_empty();
        let are_the_same = pairs.are_the_same(f, g);
        if no_jumps && (made::look_the_same(&here.made, &there.made) || here == there && are_the_same) {
            continue;
        }
        let object = (constants == Constants::Known).then_some(old.0);
        let run = |a: &Function, b: &Function, env: &Env| {
            run_as_one((a, here), (b, there), are_the_same, object, pairs.with(env))
        };
        let left = || (are_the_same && here == there).then_some(Because::LEFT);
        let Some(because) = pairs.with_graphs(f, g, run).unwrap_or_else(left) else { return false };
        not_as_loaded.extend(because.what_is_left_is_equal.then_some(f));
        of_what_is_passed.extend(because.of_what_is_passed.then_some(f));
    }
    // What runs may pass to functions that it calls what no caller passes as it was loaded.
    let called = old.0.loaded_with(not_as_loaded.iter().flat_map(|f| old.0.callees(*f)));
    let relies = |f: &FuncId| {
        let know = |g| pairs.with_graphs(*f, g, |a, b, _| knows_its_callers(a) || knows_its_callers(b));
        let needs = |g| !pairs.are_the_same(*f, g) && know(g).unwrap_or(true);
        of_what_is_passed.contains(f) || pairs.partner(*f).is_none_or(needs)
    };
    after.keys().all(|g| found.contains(g)) && !called.iter().any(relies)
}

/// Whether what runs of a program does what the program does that was loaded, by itself: what the verifier has decided in it
/// follows from facts or makes no difference, its frames are deep enough, and of its calls and accesses nothing was made that facts do not know, but all of a kind
/// one way. So it has to be where there is no other program to compare with, because the kernel refuses that.
pub(crate) fn runs_as_loaded(object: &Object, program: &ProgramVerdict, pairs: &impl Pairs) -> bool {
    program.pairs(program).into_iter().all(|(p, _)| {
        let constants = p.with_any_constants.is_none().then_some(object).filter(|_| std::ptr::eq(p, program));
        // Of what libbpf alone can load nothing is known.
        let Some(decided) = &p.decided else { return false };
        let [entry] = object.entries(&p.name, &p.section)[..] else { return false };
        let Some(functions) = of_functions(object, entry, p, decided).filter(|_| !decided.unclear) else {
            return false;
        };
        functions.iter().all(|(f, run)| {
            let stay =
                |c: &FuncId| pairs.with_graphs(*c, *c, |_, g, env| stays_above(g, pairs.with(env))) == Some(true);
            let callees_stay = object.loaded_with(object.callees(*f)).iter().all(stay);
            let is_right = |_: &Function, g: &Function, env: &Env| {
                let left = without(g, &run.jumps, &slots(&run.jumps));
                let is_left = || {
                    let unknown = without_reason(g, &run.jumps, constants, pairs.with(env));
                    let left = || without(g, &run.jumps, &unknown);
                    unknown.is_empty() || bpf_prove::functions_that_run(g, &left(), env, pairs.options()).0.is_equal()
                };
                (run.jumps.is_empty() || is_left())
                    && is_deep_enough(g, run, callees_stay, pairs.with(env))
                    && made::are_the_same((&left, &run.made), (&left, &run.made), pairs.with(env))
            };
            run.gone.is_empty() && pairs.with_graphs(*f, *f, is_right) == Some(true)
        })
    })
}

/// Whether anything is known of what the callers of a function pass.
fn knows_its_callers(f: &Function) -> bool {
    f.arguments.iter().flatten().any(|a| *a != Argument::Unknown)
}

/// Why two functions, which are equal, run as one after this has become of them, if it is shown that they do; `object` has
/// the sections that they name, if the verifier knew them, `same` are the same instructions.
fn run_as_one(
    old: (&Function, &AsRun),
    new: (&Function, &AsRun),
    same: bool,
    object: Option<&Object>,
    with: With<'_>,
) -> Option<Because> {
    let run = |with_callers: bool| {
        let [f, g] =
            [old.0, new.0].map(|f| Function { arguments: f.arguments.clone().filter(|_| with_callers), ..f.clone() });
        let what_is_left_is_equal = branches_run_as_one((&f, old.1), (&g, new.1), object, with)?;
        let are_made_the_same = || {
            let [left, right] = [(&f, old.1), (&g, new.1)].map(|(f, run)| without(f, &run.jumps, &slots(&run.jumps)));
            made::are_the_same((&left, &old.1.made), (&right, &new.1.made), with)
        };
        let are_one = same && old.1 == new.1 || made::look_the_same(&old.1.made, &new.1.made) || are_made_the_same();
        are_one.then_some(Because { what_is_left_is_equal, of_what_is_passed: with_callers })
    };
    run(false).or_else(|| (knows_its_callers(old.0) || knows_its_callers(new.0)).then(|| run(true))?)
}

/// Whether two functions run as one by their branches: true if what the verifier has left of them is equal, false if it is
/// right.
fn branches_run_as_one(
    (old, before): (&Function, &AsRun),
    (new, after): (&Function, &AsRun),
    object: Option<&Object>,
    with: With<'_>,
) -> Option<bool> {
    let equal = |f: &Function, g: &Function| bpf_prove::functions_that_run(f, g, with.env, with.options).0.is_equal();
    let left = |f: &Function, run: &AsRun, wanted: &BTreeSet<usize>| without(f, &run.jumps, wanted);
    let [here, there] = [(old, before), (new, after)].map(|(f, run)| match run.jumps.is_empty() {
        true => BTreeSet::new(),
        false => without_reason(f, &run.jumps, object, with),
    });
    if here.is_empty() && there.is_empty() {
        return Some(false);
    }
    let (all_here, all_there) = (slots(&before.jumps), slots(&after.jumps));
    let is_equal = equal(&left(old, before, &all_here), &left(new, after, &all_there))
        || (here.len(), there.len()) != (all_here.len(), all_there.len())
            && equal(&left(old, before, &here), &left(new, after, &there));
    is_equal.then_some(true)
}

/// Whether the kernel has given a function a frame as deep as its accesses go, and the addresses that it hands on: it counts
/// what its verifier has seen (`update_stack_depth` in kernel/bpf/verifier.c). Functions that it calls may go deeper than the
/// addresses that they are handed, unless it is known that they `stay` above them.
fn is_deep_enough(f: &Function, run: &AsRun, callees_stay: bool, with: With<'_>) -> bool {
    /// What code made of `bpf_loop` and jumps that count their turns keep there (`inline_bpf_loop`, `do_misc_fixups`).
    const LOOP: i64 = 24;
    const MAY_GOTO: i64 = 16;
    let Some(depth) = run.depth else { return true };
    let f = without(f, &run.jumps, &slots(&run.jumps));
    let has_loop = run.made.iter().any(|made| made.calls.is_some());
    let counts = f.layout.iter().any(|b| matches!(f.block(*b).term, Terminator::MayGoto { .. }));
    let depth = i64::from(depth) - LOOP * i64::from(has_loop) - MAY_GOTO * i64::from(counts);
    let is_inside = |op: &Op, state: &State| {
        // The only values that lead to the frame and are not known to.
        let is_open = |r: Reg| state.frame_leaked() && may_be_address(state.reg(r));
        let is_call = matches!(op.insn, Insn::Call(_) | Insn::CallX { .. });
        accesses(op, with.env).into_iter().all(|(r, off)| match state.reg(r) {
            _ if is_open(r) => false,
            value if value.is_stack() => {
                value.num.smin.saturating_add(off.into()) >= -depth && (callees_stay || !is_call)
            }
            _ => true,
        })
    };
    everywhere(&f, with, is_inside)
}

/// Whether a function accesses frames of its callers only at and above the addresses that it is handed, and hands on no others.
fn stays_above(f: &Function, with: With<'_>) -> bool {
    everywhere(f, with, |op, state| {
        let is_call = matches!(op.insn, Insn::Call(_) | Insn::CallX { .. });
        accesses(op, with.env).into_iter().all(|(r, off)| match &state.reg(r).kind {
            Kind::Pointer { region: Region::CallerFrame, base, .. } => {
                base.is_argument() && state.reg(r).num.smin.saturating_add(off.into()) >= 0
            }
            Kind::Pointer { .. } => true,
            // It may have been handed an address that it is not known of, or have found it in memory.
            Kind::Scalar | Kind::Unknown => is_call && !may_be_address(state.reg(r)),
        })
    })
}

/// Whether what is not known for a pointer may be one all the same, put together of its halves, say: none has so few bits.
fn may_be_address(v: &Value) -> bool {
    v.kind == Kind::Unknown || v.kind == Kind::Scalar && v.num.umax > u64::from(u32::MAX)
}

/// Whether this holds of each operation of a function and what is known before it.
fn everywhere(f: &Function, with: With<'_>, holds: impl Fn(&Op, &State) -> bool) -> bool {
    let facts = with.facts(f);
    f.layout.iter().all(|b| {
        let mut ops = f.block(*b).ops.iter().zip(facts.states(f, *b));
        ops.all(|(op, state)| holds(op, &state))
    })
}

/// The addresses that an operation accesses, or hands to a function: registers and offsets.
fn accesses(op: &Op, env: &Env) -> Vec<(Reg, i16)> {
    let handed = |registers: &[Reg]| registers.iter().map(|r| (*r, 0)).collect();
    match op.insn {
        Insn::Call(Call::Helper(id)) if op.link.is_none() && Helper::get(id).is_some() => {
            Effects::of(&op.insn, false).arguments.iter().map(|a| (a.register, 0)).collect()
        }
        Insn::Call(_) | Insn::CallX { .. } => {
            let count = op.link.as_ref().and_then(|link| env.arguments_of(&link.symbol)).unwrap_or(ARGUMENTS.len());
            handed(&ARGUMENTS[..count.min(ARGUMENTS.len())])
        }
        _ => op.insn.memory_operand().map(|m| (m.base, m.off)).into_iter().collect(),
    }
}

const ARGUMENTS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// The slots of branches.
fn slots(jumps: &Jumps) -> BTreeSet<usize> {
    jumps.iter().map(|(slot, _)| *slot).collect()
}

/// The decided branches of which facts do not know why. Of those behind them facts must know without them: what they tell
/// of the ways that are left need not be true.
fn without_reason(f: &Function, decided: &Jumps, object: Option<&Object>, with: With<'_>) -> BTreeSet<usize> {
    let mut unknown = BTreeSet::new();
    loop {
        let f = as_the_verifier_sees(&without(f, decided, &unknown), object, with);
        let facts = with.facts(&f);
        let explained = |slot: usize, taken: bool| {
            let branch = f.layout.iter().find(|b| f.block(**b).term.origin() == Some(slot));
            // One that is not there is one that nobody comes to.
            branch.is_none_or(|b| {
                facts.edge(&f, *b, !taken).is_none() || follows_on_its_path(&f, &facts, *b, taken, with)
            })
        };
        let open = decided.iter().filter(|(slot, _)| !unknown.contains(slot));
        let new: Vec<usize> = open.filter(|(slot, taken)| !explained(*slot, *taken)).map(|(slot, _)| *slot).collect();
        if new.is_empty() {
            return unknown;
        }
        unknown.extend(new);
    }
}

/// Longest path on which a reason is looked for why a branch is decided, in blocks.
const PATH: usize = 8;

/// Whether a branch is always taken (or never) after the blocks that alone lead there: the verifier knows how numbers
/// hang together, of which facts know each for itself.
fn follows_on_its_path(f: &Function, facts: &Facts, block: BlockId, always: bool, with: With<'_>) -> bool {
    let branch = &f.block(block).term;
    let Terminator::Branch { taken, fall, origin, .. } = *branch else { return false };
    let predecessors = predecessors(f);
    let (mut head, mut path) = (block, Vec::new());
    while let [before] = predecessors[head.index()][..]
        && path.len() < PATH
        && head != f.entry()
        && before != block
        && !path.contains(&before)
        && side(&f.block(before).term, head).is_some()
    {
        path.insert(0, head);
        head = before;
    }
    let (Some(state), Some(along)) = (facts.entry(head), Superblock::of(f, head, &path)) else { return false };
    let (cond, width, dst, src) = (if always { Cond::Eq } else { Cond::Ne }, Width::W64, Reg::R10, Src::Reg(Reg::R10));
    let decided = Terminator::Branch { cond, width, dst, src, taken, fall, origin };
    let (nothing, tail) = (Live::default(), Some((branch, &decided)));
    let (ops, sides) = (along.ops(), vec![nothing; path.len()]);
    bpf_prove::along(f.kind, with.env, state, ops, ops, &sides, &nothing, tail, with.options).0.is_equal()
}

/// A function without the ways that the verifier has taken out at the branches of these slots.
fn without(f: &Function, jumps: &Jumps, slots: &BTreeSet<usize>) -> Function {
    let mut g = f.clone();
    for (slot, always) in jumps.iter().filter(|(slot, _)| slots.contains(slot)) {
        for block in &mut g.blocks {
            let way = match block.term {
                Terminator::Branch { taken, fall, origin, .. } | Terminator::MayGoto { taken, fall, origin }
                    if origin == Some(*slot) =>
                {
                    if *always {
                        taken
                    } else {
                        fall
                    }
                }
                _ => continue,
            };
            block.term = Terminator::Goto(way);
        }
    }
    drop_unreachable(&mut g);
    g
}

/// A function with two things in it that the verifier knows and our facts do not: numbers in the place of loads from
/// sections that the loader freezes before the verifier looks at programs, as they are in the object
/// (`bpf_map_is_rdonly` in kernel/bpf/verifier.c); and that what is looked up in an array is there
/// (`can_elide_value_nullness`).
fn as_the_verifier_sees(f: &Function, object: Option<&Object>, with: With<'_>) -> Function {
    let facts = with.facts(f);
    let mut g = f.clone();
    let missing = BlockId(g.blocks.len() as u32);
    g.blocks.push(Block { ops: Vec::new(), term: Terminator::Exit { origin: None } });
    for &b in &f.layout {
        let states = facts.states(f, b);
        for (i, state) in states.iter().enumerate().take(f.block(b).ops.len()).rev() {
            let op = &mut g.block_mut(b).ops[i];
            if let Some(number) = object.and_then(|object| constant(op, state, object)) {
                *op = number;
            } else if surely_finds(op, state, with.env) {
                let ops = g.block_mut(b).ops.split_off(i + 1);
                let found = BlockId(g.blocks.len() as u32);
                let (dst, src) = (Reg::R0, Src::Imm(0));
                let (cond, width, origin) = (Cond::Eq, Width::W64, None);
                let test = Terminator::Branch { cond, width, dst, src, taken: missing, fall: found, origin };
                let term = std::mem::replace(&mut g.block_mut(b).term, test);
                g.blocks.push(Block { ops, term });
                g.layout.push(found);
            }
        }
    }
    g.layout.push(missing);
    g
}

/// What a load from a section that the loader freezes gives.
fn constant(op: &Op, state: &State, object: &Object) -> Option<Op> {
    let Insn::Load { size, sext, dst, base, off } = op.insn else { return None };
    let pointer = state.reg(base);
    let Some(Region::Data { section }) = pointer.region().filter(|_| !op.is_core()) else { return None };
    let (_, bytes) = object.section(section).filter(|_| section.starts_with(".rodata"))?;
    let at = usize::try_from(pointer.num.as_signed_const()? + i64::from(off)).ok()?;
    let bytes = bytes.get(at..at + size.bytes() as usize)?;
    let (number, shift) = (object.byte_order().number(bytes), 64 - size.bits());
    let imm = if sext { ((number << shift) as i64 >> shift) as u64 } else { number };
    Some(Op::with_origin(Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm }, op.origin))
}

/// Whether a call looks up an element of an array that has it.
fn surely_finds(op: &Op, state: &State, env: &Env) -> bool {
    let by_key = Effects::of(&op.insn, op.link.is_some()).is_lookup_by_key();
    let (map, key) = map_and_key(op, state, env);
    let count = map.filter(|m| by_key && m.map_type.is_some_and(maps::is_array)).and_then(|m| m.max_entries);
    key.zip(count).is_some_and(|(key, count)| key < count.into())
}
