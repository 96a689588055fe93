//! Where pointers come from, as far as the verifier translates instructions by it.
//!
//! The verifier keeps what it knows of a pointer once for each *instruction* (`struct bpf_insn_aux_data`), and translates the
//! instruction by that. Where paths with pointers of several types lead to one instruction it refuses some mixtures
//! (`reg_type_mismatch`), merges others, and of the rest the path counts that it walks first or last. So it is part of what a
//! program does which instructions are one, and in which order the verifier walks the ways to them. For a load that
//! concerns one mixture: a pointer that may be any address, which the kernel has read itself (a field of one of its
//! objects, or `bpf_rdonly_cast`), so that a load through it must not fault (`BPF_PROBE_MEM`), with one to memory of the
//! program (`save_aux_ptr_type`, `convert_ctx_accesses` in kernel/bpf/verifier.c).
//!
//! Here a dataflow analysis says from which sources the pointer of each access may come. An access through a pointer of
//! more than one source *mixes*; a function in which none does may have its code shared, doubled and ordered at will.
//! Calls that the verifier translates in such a way are named in `platform/src/translation.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bpf_facts::{Env, Facts, Kind, Region, State, Value};
use bpf_isa::{AluOp, Call, Cond, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_platform::Effects;
use bpf_platform::effects::Argument;
use bpf_platform::helpers::Arg;
use bpf_program::{BlockId, Function, Op, ProgKind, Symbol, Terminator};
use rustc_hash::FxHashMap;

/// From where a value may have its address: a set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources(u16);

impl Sources {
    /// Of nothing: a number.
    pub const NONE: Sources = Sources(0);
    /// Memory of the program: map values, packets, frames, the context.
    pub const PLAIN: Sources = Sources(1);
    /// Read where the kernel, or who knows who, has put it.
    pub const LOADED: Sources = Sources(2);
    /// Given by a helper or kernel function.
    pub const GIVEN: Sources = Sources(4);
    /// A field of the context.
    pub const CONTEXT: Sources = Sources(8);
    /// Given to a callback, which may find pointers of its callers there.
    pub const CALLBACK: Sources = Sources(16);
    /// Passed in r1 to r5 to a function of which nobody asks what its callers pass, or that is verified alone: tags of its
    /// parameters say what each may be (`btf_prepare_func_args` in kernel/bpf/btf.c).
    pub const PASSED: [Sources; 5] = [Sources(32), Sources(64), Sources(128), Sources(256), Sources(512)];
    /// Read where that leads.
    const BEHIND: Sources = Sources(1024);
    /// A field of the context of eight bytes: not the packet, to which fields of four bytes lead.
    const CONTEXT_WIDE: Sources = Sources(2048);
    /// Read from memory of the program, where fields that the kernel manages hold pointers of several kinds.
    const HELD: Sources = Sources(4096);
    /// Nothing is known.
    pub const ANY: Sources = Sources(8191);

    fn is_one(self) -> bool {
        self.0.is_power_of_two() && self != Self::HELD
    }

    /// Whether there is more than one.
    pub fn is_several(self) -> bool {
        self.0.count_ones() > 1 || self == Self::HELD
    }

    fn meets(self, o: Sources) -> bool {
        self.0 & o.0 != 0
    }

    fn is_passed(self) -> bool {
        Self::PASSED.into_iter().any(|p| self.meets(p))
    }

    /// Either.
    #[must_use]
    pub fn or(self, o: Sources) -> Sources {
        Sources(self.0 | o.0)
    }
}

/// What the analysis of one function gives.
#[derive(Default, Debug)]
pub struct Provenance {
    /// Some access goes through a pointer of several sources.
    pub mixes: bool,
    /// Some call is translated by what the verifier has seen there.
    pub calls: bool,
    /// What may have been passed is added to what is no address, as far as is known.
    pub sums: bool,
    /// A word of an address is tested of which facts do not know where it leads.
    pub halves: bool,
    /// The same of what was loaded from where the program puts things, which may be an address only if the kernel manages
    /// fields there.
    pub halves_of_loaded: bool,
    /// Of what may be null it is asked whether it is equal to a pointer that may be any address.
    pub equals: bool,
    /// The same of what was loaded.
    pub equals_of_loaded: bool,
    /// A word of the context, what was passed, or what stands behind these is tested for null.
    pub tests_arguments: bool,
    /// What is passed in r1 to r5 to each function of the object that is called.
    pub passes: Vec<(Arc<str>, [Sources; 5])>,
}

/// Whether a call, which the verifier comes to in this state, is translated by what it has seen there.
pub(crate) fn is_translated_by_what_was_seen(op: &Op, seen: &State) -> bool {
    match (op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::Call(_), Some(Symbol::Extern { name })) => bpf_platform::is_kfunc_translated_by_type(name),
        // A number of which nobody knows which function of the kernel it is.
        (Insn::Call(Call::Kfunc { .. }), _) => true,
        _ => {
            let row = Effects::of(&op.insn, op.link.is_some());
            let does_more = |(r, most): (Reg, u64)| seen.reg(r).region().is_some() || seen.reg(r).num.umax > most;
            row.is_translated_by_type() || row.made_code_up_to().is_some_and(does_more)
        }
    }
}

/// Registers and frame at one point.
#[derive(Clone, PartialEq, Default)]
struct Places {
    regs: [Sources; 11],
    /// Words of the frame, by offset; the others may hold anything.
    slots: BTreeMap<i64, Sources>,
}

impl Places {
    fn join(&mut self, o: &Places) {
        for (a, b) in self.regs.iter_mut().zip(o.regs) {
            *a = a.or(b);
        }
        // A word that is not there may hold anything.
        for (at, here) in &mut self.slots {
            *here = here.or(o.slots.get(at).copied().unwrap_or(Sources::ANY));
        }
        for at in o.slots.keys() {
            self.slots.entry(*at).or_insert(Sources::ANY);
        }
    }

    fn get(&self, r: Reg) -> Sources {
        self.regs[r.index()]
    }

    fn set(&mut self, r: Reg, to: Sources) {
        self.regs[r.index()] = to;
    }
}

/// Memory of which the facts know that it is the program's own, whichever way led there.
fn is_plain(v: &Value) -> bool {
    v.region().is_some_and(|r| *r != Region::Kernel)
}

/// The sources of a function's pointers, if `arguments` are those of r1 to r5.
pub fn provenance(f: &Function, env: &Env, arguments: [Sources; 5]) -> Provenance {
    provenance_by(f, &Facts::of_every_way(f, env), arguments)
}

/// The same from the facts of every way ([`Facts::of_every_way`]).
pub(crate) fn provenance_by(f: &Function, facts: &Facts, arguments: [Sources; 5]) -> Provenance {
    let states: FxHashMap<BlockId, Vec<State>> = f.layout.iter().map(|b| (*b, facts.states(f, *b))).collect();
    let mut at_entry: FxHashMap<BlockId, Places> = FxHashMap::default();
    let mut first = Places::default();
    for (i, sources) in arguments.into_iter().enumerate() {
        first.regs[i + 1] = sources;
    }
    first.set(Reg::R10, Sources::PLAIN);
    at_entry.insert(f.entry(), first);
    let mut todo = vec![f.entry()];
    while let Some(b) = todo.pop() {
        let mut places = at_entry[&b].clone();
        let states = &states[&b];
        for (i, op) in f.block(b).ops.iter().enumerate() {
            // Where the verifier does not come.
            let (Some(before), Some(after)) = (states.get(i), states.get(i + 1)) else { break };
            step(&mut places, op, before, after);
        }
        for next in f.block(b).term.successors() {
            let changed = match at_entry.get_mut(&next) {
                None => {
                    at_entry.insert(next, places.clone());
                    true
                }
                Some(known) => {
                    let before = known.clone();
                    known.join(&places);
                    *known != before
                }
            };
            if changed && !todo.contains(&next) {
                todo.push(next);
            }
        }
    }
    let mut found = Provenance::default();
    for (b, mut places) in at_entry {
        let states = &states[&b];
        for (i, op) in f.block(b).ops.iter().enumerate() {
            let (Some(before), Some(after)) = (states.get(i), states.get(i + 1)) else { break };
            let through = |r: Reg| !is_plain(before.reg(r)) && !places.get(r).is_one();
            found.calls |= is_translated_by_what_was_seen(op, before);
            found.mixes |= op.insn.memory_operand().is_some_and(|m| through(m.base));
            if let Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Reg(src) } = op.insn {
                let from = places.get(src);
                let passed =
                    before.reg(src).kind == Kind::Unknown && (from.is_passed() || from.meets(Sources::CALLBACK));
                found.sums |= before.reg(dst).region().is_none() && passed;
            }
            if let (Insn::Call(Call::Local(_)), Some(Symbol::Func { name })) =
                (op.insn, op.link.as_ref().map(|l| &l.symbol))
            {
                let passed = |r: Reg| if is_plain(before.reg(r)) { Sources::PLAIN } else { places.get(r) };
                found.passes.push((name.clone(), ARGUMENTS.map(passed)));
            }
            step(&mut places, op, before, after);
        }
        let end = states.get(f.block(b).ops.len());
        if let (Terminator::Branch { width: Width::W32, dst, src, .. }, Some(state)) = (&f.block(b).term, end) {
            for r in [Some(*dst), src.reg()].into_iter().flatten().filter(|r| state.reg(*r).kind == Kind::Unknown) {
                match places.get(r) {
                    // Of packet pointers the verifier does not know that they are not null (`reg_not_null`).
                    Sources::NONE | Sources::CONTEXT => {}
                    Sources::ANY | Sources::HELD => found.halves_of_loaded = true,
                    s if s == Sources::HELD.or(Sources::LOADED) => found.halves_of_loaded = true,
                    // Words of a tracing program's context are numbers, or are given with their types.
                    Sources::CONTEXT_WIDE if f.kind == ProgKind::Tracing => {}
                    _ => found.halves = true,
                }
            }
        }
        if let (Terminator::Branch { cond: Cond::Eq | Cond::Ne, width: Width::W64, dst, src, .. }, Some(state)) =
            (&f.block(b).term, end)
        {
            let with_null = |o: Src| match o {
                Src::Imm(k) => k == 0,
                Src::Reg(r) => state.reg(r).num.contains(0) && state.reg(r).region().is_none(),
            };
            for (p, q) in [(*dst, *src)].into_iter().chain(src.reg().map(|src| (src, Src::Reg(*dst)))) {
                let from = places.get(p);
                let given = Sources::CONTEXT_WIDE.or(Sources::CALLBACK).or(Sources::BEHIND).or(Sources::LOADED);
                let unknown = state.reg(p).kind == Kind::Unknown || state.reg(p).region() == Some(&Region::Kernel);
                found.tests_arguments |= unknown && (from.is_passed() || from.meets(given)) && with_null(q);
            }
        }
        if let (
            Terminator::Branch { cond: Cond::Eq | Cond::Ne, width: Width::W64, dst, src: Src::Reg(src), .. },
            Some(state),
        ) = (&f.block(b).term, end)
        {
            for (p, q) in [(*dst, *src), (*src, *dst)] {
                let nothing = may_be_null(state.reg(p), places.get(p), f.kind);
                let any = may_be_any_address(state.reg(q), places.get(q), f.kind);
                found.equals |= nothing == Some(true) && any;
                found.equals_of_loaded |= nothing.is_some() && any;
            }
        }
    }
    found
}

/// Whether a value may be a pointer that may be null, and is none to a type of the kernel: for certain, or (`false`) if the
/// kernel manages fields of the program's memory.
fn may_be_null(v: &Value, from: Sources, kind: ProgKind) -> Option<bool> {
    match v.kind {
        Kind::Scalar => None,
        Kind::Pointer { nullable, .. } => nullable.then_some(true),
        // Words of a tracing program's context are numbers, or of the kernel's types.
        Kind::Unknown if from.meets(Sources::CONTEXT_WIDE) && kind != ProgKind::Tracing => Some(true),
        Kind::Unknown if from.meets(Sources::GIVEN.or(Sources::CALLBACK).or(Sources::BEHIND)) => Some(true),
        Kind::Unknown if from.is_passed() => Some(true),
        Kind::Unknown => from.meets(Sources::HELD).then_some(false),
    }
}

/// Whether a value may be a pointer that counts as one that is not null, though it may be null: any address that counts as one to
/// memory; a context, of which there is none in some test runs (`bpf_prog_test_run_raw_tp`); the packet of a context that has
/// none (`sock_ops_convert_ctx_access`, `sk_msg_convert_ctx_access`).
fn may_be_any_address(v: &Value, from: Sources, kind: ProgKind) -> bool {
    match v.region() {
        Some(Region::Ctx) => return true,
        Some(Region::Packet | Region::PacketEnd | Region::PacketMeta) if kind == ProgKind::Other => return true,
        Some(Region::Kernel) => {}
        _ if v.kind == Kind::Unknown => {}
        _ => return false,
    }
    let context = Sources::CONTEXT.or(Sources::CONTEXT_WIDE);
    from.is_passed()
        || from.meets(Sources::LOADED.or(Sources::CALLBACK).or(Sources::BEHIND))
        || kind != ProgKind::Tracing && from.meets(context)
}

const ARGUMENTS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// What one operation makes of them.
fn step(places: &mut Places, op: &Op, before: &State, after: &State) {
    let symbol = op.link.as_ref().map(|l| &l.symbol);
    let known = |r: Reg| is_plain(after.reg(r)).then_some(Sources::PLAIN);
    match op.insn {
        Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) } => places.set(dst, places.get(src)),
        Insn::Alu { width: Width::W64, dst, src, .. } => {
            let of = |r: Reg| match before.reg(r).kind {
                Kind::Scalar => Sources::NONE,
                _ => places.get(r),
            };
            let other = if let Src::Reg(r) = src { of(r) } else { Sources::NONE };
            let both = of(dst).or(other);
            places.set(dst, both);
        }
        Insn::Mov { dst, .. } | Insn::Alu { dst, .. } | Insn::MovSx { dst, .. } => places.set(dst, Sources::NONE),
        Insn::Neg { .. } | Insn::Endian { .. } => {}
        Insn::AddrSpaceCast { dst, .. } => places.set(dst, Sources::ANY),
        Insn::LoadImm64 { dst, kind, .. } => {
            let sources = match (kind, symbol) {
                (_, Some(Symbol::Extern { .. })) => Sources::GIVEN,
                (Imm64Kind::Const, None | Some(Symbol::Core { .. })) => Sources::NONE,
                (Imm64Kind::BtfId, _) => Sources::GIVEN,
                _ => Sources::PLAIN,
            };
            places.set(dst, sources);
        }
        Insn::Load { size, dst, base, off, .. } | Insn::LoadAcquire { size, dst, base, off } => {
            let sources = known(dst).unwrap_or_else(|| loaded(places, before, base, off, size));
            places.set(dst, sources);
        }
        Insn::Store { size, base, off, src: Src::Imm(_) } => stored(places, before, (base, off, size), Sources::NONE),
        Insn::Store { size, base, off, src: Src::Reg(r) } | Insn::StoreRelease { size, base, off, src: r } => {
            let sources = if is_plain(before.reg(r)) { Sources::PLAIN } else { places.get(r) };
            stored(places, before, (base, off, size), sources);
        }
        Insn::Atomic { size, base, off, .. } => stored(places, before, (base, off, size), Sources::NONE),
        Insn::Call(call) => {
            let row = Effects::of(&op.insn, op.link.is_some());
            let calls_back = |a: &Argument| a.class == Arg::Func;
            let helper = matches!(call, Call::Helper(_));
            // Functions of the program may store pointers where they were given the frame.
            if !helper || row.name.is_empty() || row.arguments.iter().any(calls_back) {
                places.slots.values_mut().for_each(|s| *s = Sources::ANY);
            }
            let result = match symbol {
                _ if helper => Sources::GIVEN,
                Some(Symbol::Extern { name }) if !bpf_platform::makes_any_address(name) => Sources::GIVEN,
                Some(Symbol::Extern { .. }) => Sources::LOADED,
                _ => Sources::ANY,
            };
            ARGUMENTS.into_iter().for_each(|r| places.set(r, Sources::NONE));
            places.set(Reg::R0, known(Reg::R0).unwrap_or(result));
        }
        Insn::CallX { .. } => {
            places.slots.values_mut().for_each(|s| *s = Sources::ANY);
            ARGUMENTS.into_iter().for_each(|r| places.set(r, Sources::NONE));
            places.set(Reg::R0, Sources::ANY);
        }
        _ => {}
    }
}

/// The offset in the frame where an access goes; `None` if it may be several.
fn slot(before: &State, base: Reg, off: i16) -> Option<i64> {
    before.reg(base).num.as_signed_const().map(|at| at.wrapping_add(off.into()))
}

/// The sources of what is read.
fn loaded(places: &Places, before: &State, base: Reg, off: i16, size: Size) -> Sources {
    let v = before.reg(base);
    match v.region() {
        // Contexts have pointers of four bytes; what is not known may be one.
        Some(r) if size != Size::DW && *r != Region::Ctx => Sources::NONE,
        None if !matches!(size, Size::W | Size::DW) => Sources::NONE,
        Some(Region::Stack) => match slot(before, base, off) {
            // What a callee or a helper has put there.
            Some(at) => places.slots.get(&at).copied().unwrap_or(Sources::ANY),
            None => Sources::ANY,
        },
        Some(Region::CallerFrame) => Sources::ANY,
        Some(Region::Ctx) if size == Size::DW => Sources::CONTEXT_WIDE,
        Some(Region::Ctx) => Sources::CONTEXT,
        Some(Region::Kernel) => Sources::HELD.or(Sources::LOADED),
        // Fields that the kernel manages hold pointers to its objects, and to memory of user space (`uptr`), which is plain.
        Some(_) => Sources::HELD,
        // Pointers of four bytes there are in contexts only.
        None if size == Size::W => Sources::CONTEXT,
        None if places.get(base).meets(Sources::CALLBACK) => Sources::ANY,
        None if places.get(base).meets(Sources::GIVEN.or(Sources::HELD)) => Sources::HELD.or(Sources::LOADED),
        None if v.kind == Kind::Scalar => Sources::ANY,
        None if places.get(base).is_passed() => Sources::BEHIND,
        None => Sources::LOADED,
    }
}

fn stored(places: &mut Places, before: &State, (base, off, size): (Reg, i16, Size), what: Sources) {
    if before.reg(base).region() != Some(&Region::Stack) {
        return;
    }
    let Some(at) = slot(before, base, off) else {
        places.slots.values_mut().for_each(|s| *s = s.or(what));
        return;
    };
    let end = at + i64::from(size.bytes());
    places.slots.retain(|word, _| *word + 8 <= at || end <= *word);
    if size == Size::DW {
        places.slots.insert(at, what);
    }
}
