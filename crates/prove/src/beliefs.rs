//! Where the verifier believes something wrong.
//!
//! It has code removed that it takes for impossible. Where it is wrong, what a program does is not what its instructions say,
//! and two programs with one meaning may do two things, or one that was right becomes wrong. So a program that holds
//! something of which a wrong belief is known (kernels up to 6.18 at least) stays as it is, with all functions connected to it
//! by calls, and no new version may hold what the old one does not hold. Known are, all of kernel/bpf/verifier.c:
//!
//! - *whose frame*: a number to which an address of a frame is added becomes an address of the *program's* frame
//!   (`adjust_ptr_min_max_vals` copies all of the address but `frameno`);
//! - *what was fetched*: a number that an atomic has fetched from a frame is taken for one that does not matter, though it
//!   decides a jump (`backtrack_insn` does not go on with the slot);
//! - *beyond the packet*: a pointer that has been found beyond the packet's end is so still when a number has been added
//!   (`raw` in `adjust_ptr_min_max_vals`, `mark_pkt_end`), and the next comparison with the end counts as decided
//!   (`is_pkt_ptr_branch_taken`);
//! - *spills with a sign*: what a load fills with its sign from a spilled number counts as that number
//!   (`check_stack_read_fixed_off` copies its `id`);
//! - *any address*: what is equal to a pointer that counts as one to memory is not null (`check_cond_jmp_op`), but what
//!   the kernel has read as an address, or `bpf_rdonly_cast` has made, may be null and counts as that, as does a context of
//!   which there is none;
//! - *half an address*: whether the lower half of an address that is not null is 0 counts as decided (`is_branch_taken`);
//! - *arguments*: what a hook of the kernel is given by its types counts as there, but for what is listed
//!   (`btf_ctx_access` in kernel/bpf/btf.c: `raw_tp_null_args`, `__nullable`), and is null at times; so does what stands in
//!   some of their members (`BTF_TYPE_SAFE_TRUSTED`);
//! - *inner maps*: an element that the template of inner maps has is there, though the map that takes its place may have
//!   fewer (`can_elide_value_nullness`); nor is it known which elements of a map are there of which its loader chooses the type,
//!   or that it makes longer, which the kernel is asked about, too ([`crate::hangs_on_lengths`]);
//! - *what counts still*: a slot of a caller's frame that a function overwrites counts as one that nobody reads any more, though
//!   the function may end before (a tail call that succeeds, a legacy load that fails: kernel/bpf/liveness.c knows no way from
//!   there), and the ways by which it holds something else are not followed;
//! - *open lengths*: nothing wrong is believed of a map whose keys or values are as long as its loader says, but the kernel
//!   cannot be asked with all that a loader may say. Where each length is held against constants only, what the kernel says of
//!   the shortest and the longest with which a program loads holds for all between (`kernel/src/loader/open_maps.rs`). It is
//!   held against something else where a helper writes a value, or finds a key or value anywhere but in a fixed place of the
//!   frame, and where an element is accessed at an offset, or over a length, that varies;
//! - calls and loads that `platform/src/beliefs.rs` names: what a system call writes, a buffer that is a slice, and numbers
//!   that have more bits than their loads.

use std::collections::BTreeMap;

use bpf_facts::{Env, Facts, Kind, MapInfo, Region, State, Value, map_and_key};
use bpf_isa::{AluOp, Call, Cond, Insn, Reg, Size, Src, Width};
use bpf_platform::effects::Extent;
use bpf_platform::helpers::Arg;
use bpf_platform::{Effects, hands_back_its_buffer, is_result_misjudged, reads_wider_than_believed};
use bpf_program::{BlockId, FieldKind, Function, Op, ProgKind, Symbol, Terminator, ctx_field};
use rustc_hash::FxHashMap;

use crate::sources::{Sources, provenance_by};

/// What a program's context may be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MayBe {
    /// A `bpf_sock_ops`.
    pub sock_ops: bool,
    /// What a function, tracepoint or hook of the kernel is given, which the verifier takes for what its types say.
    pub arguments: bool,
}

/// What functions hold of which the verifier believes something wrong, for certain or if others do something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Beliefs {
    /// Something of which that is known.
    wrong: bool,
    /// An address that was passed, or that nobody knows, is added to a number, in a function that is called: wrong if it may
    /// be of the frame of such a function.
    sums: bool,
    /// An address of a caller's frame is.
    sums_of_frames: bool,
    /// An atomic fetches, or a load fills with its sign, from where that leads: wrong if it may be a frame.
    fetches: bool,
    /// What may be a context, or a socket that was passed, is read where a `bpf_sock` has such a number; and sockets are to be
    /// had, as a context or from one.
    reads_wide: bool,
    sockets: bool,
    /// A context is read into its own register: wrong of `bpf_sock_ops`, where the register stays as it was if there is no full
    /// socket (`SOCK_OPS_GET_FIELD` in net/core/filter.c).
    overwrites: bool,
    /// A word of the context, what was passed, or what stands behind these is tested for null: wrong of hooks that are given
    /// what functions of the kernel are.
    tests_arguments: bool,
    /// A function that is called may end before it comes to what stands behind: wrong if it may have been given an address of a
    /// frame.
    ends_early: bool,
    /// A function gives the address of its frame to another; one does that is called itself.
    lends: bool,
    lends_as_callee: bool,
}

impl Beliefs {
    /// Of what is not understood.
    pub(crate) fn anything() -> Beliefs {
        Beliefs {
            wrong: true,
            sums: true,
            sums_of_frames: true,
            fetches: true,
            reads_wide: true,
            sockets: true,
            overwrites: true,
            tests_arguments: true,
            ends_early: true,
            lends: true,
            lends_as_callee: true,
        }
    }

    /// What two functions hold.
    #[must_use]
    pub(crate) fn or(self, o: Beliefs) -> Beliefs {
        Beliefs {
            wrong: self.wrong || o.wrong,
            sums: self.sums || o.sums,
            sums_of_frames: self.sums_of_frames || o.sums_of_frames,
            fetches: self.fetches || o.fetches,
            reads_wide: self.reads_wide || o.reads_wide,
            sockets: self.sockets || o.sockets,
            overwrites: self.overwrites || o.overwrites,
            tests_arguments: self.tests_arguments || o.tests_arguments,
            ends_early: self.ends_early || o.ends_early,
            lends: self.lends || o.lends,
            lends_as_callee: self.lends_as_callee || o.lends_as_callee,
        }
    }

    /// Whether a belief about a program that consists of functions with these is wrong.
    pub fn are_wrong(self, context: MayBe) -> bool {
        self.wrong
            || self.sums && self.lends_as_callee
            || (self.fetches || self.ends_early) && self.lends
            || self.reads_wide && self.sockets
            || self.overwrites && context.sock_ops
            || self.tests_arguments && context.arguments
    }

    /// Whether all that may be wrong of a new version may be so of the old one.
    pub(crate) fn are_among(self, old: Beliefs) -> bool {
        self.or(old) == old
    }

    /// Whether a function may hold something, as far as its instructions tell.
    pub(crate) fn may_be_held(f: &Function, env: &Env) -> bool {
        let op = |op: &Op| match op.insn {
            Insn::Alu { op: AluOp::Add, width: Width::W64, src: Src::Reg(_), .. } => f.is_called(),
            Insn::Atomic { .. } => op.insn.def().is_some(),
            Insn::LdAbs { .. } | Insn::LdInd { .. } => f.is_called(),
            Insn::Load { size, dst, base, off, sext } => {
                sext || f.kind != ProgKind::Tracing
                    && (dst == base || size == Size::DW || reads_wider_than_believed(off.into(), size.bytes()))
            }
            Insn::Call(_) | Insn::CallX { .. } => {
                let row = Effects::of(&op.insn, op.link.is_some());
                let looks_up = row.is_map_lookup();
                looks_up
                    || f.is_called() && row.is_tail_call()
                    || goes_on_in_the_program(op, row)
                    || row.writes_unseen()
                    || is_slice(op)
                    || gives_what_is_not_believed(op)
            }
            _ => false,
        };
        if env.maps.iter().any(|m| m.is_open) {
            return true;
        }
        let compares = |t: &Terminator| asks_whence(f.kind, t) || f.kind != ProgKind::Tracing && operands(t).is_some();
        f.layout.iter().map(|b| f.block(*b)).any(|b| b.ops.iter().any(op) || compares(&b.term))
    }

    /// What a function holds; `facts` are those of every way ([`Facts::of_every_way`]).
    pub(crate) fn of(f: &Function, env: &Env, facts: &Facts) -> Beliefs {
        let states: FxHashMap<BlockId, Vec<State>> = f.layout.iter().map(|b| (*b, facts.states(f, *b))).collect();
        let mut all = Beliefs {
            wrong: f.kind != ProgKind::Tracing && moves_what_is_beyond(f, env, &states),
            ..Beliefs::default()
        };
        all.sockets = f.kind == ProgKind::Other;
        for b in &f.layout {
            let (ops, states) = (&f.block(*b).ops, &states[b]);
            for (i, (op, state)) in ops.iter().zip(states).enumerate() {
                all = all.or(Beliefs::at(f.kind, f.is_called(), op, state));
                all.wrong |= looks_up_in_what_may_be_another(op, state, env) || leans_on_an_open_length(op, state, env);
                all.sockets |= states.get(i + 1).is_some_and(|after| gives_an_object(f.kind, op, state, after));
            }
            if let Some(state) = states.get(ops.len()) {
                all = all.or(Beliefs::at_jump(&f.block(*b).term, state));
            }
        }
        let tests = |b: &BlockId| asks_whence(f.kind, &f.block(*b).term);
        let from = (all.sums || f.layout.iter().any(tests)).then(|| provenance_by(f, facts, Sources::PASSED));
        all.sums = all.sums_of_frames || all.sums && from.as_ref().is_some_and(|from| from.sums);
        all.tests_arguments = may_have_arguments(f.kind) && from.as_ref().is_some_and(|from| from.tests_arguments);
        let managed = env.maps.iter().map(|m| &m.managed).chain(env.sections.iter().map(|s| &s.managed));
        let hold_pointers = || managed.into_iter().flat_map(|fields| fields.iter()).any(|f| f.is_pointer);
        all.wrong |= from.is_some_and(|from| {
            from.halves || from.equals || (from.halves_of_loaded || from.equals_of_loaded) && hold_pointers()
        });
        all
    }

    /// What a jump is, where the verifier comes to it in this state.
    fn at_jump(t: &Terminator, state: &State) -> Beliefs {
        // Of packet pointers the verifier does not know that they are not null (`reg_not_null`).
        let is_address = |r: Reg| state.reg(r).region().is_some_and(|region| !region.is_packet());
        match *t {
            Terminator::Branch { width: Width::W32, dst, src, .. } => {
                let wrong = is_address(dst) || matches!(src, Src::Reg(r) if is_address(r));
                Beliefs { wrong, ..Beliefs::default() }
            }
            _ => Beliefs::default(),
        }
    }

    /// What one operation is, where the verifier comes to it in this state, in a function that others call or in one that none
    /// does ([`Function::is_called`]).
    pub fn at(kind: ProgKind, is_called: bool, op: &Op, state: &State) -> Beliefs {
        let none = Beliefs::default();
        let of = |r: Reg| state.reg(r);
        let is_own = |r: Reg| of(r).is_stack();
        // Also where a way brings the address of the frame, and another something else.
        let may_be_own = |r: Reg| is_own(r) || state.may_be_frame_address(of(r));
        // The frame of a caller, or what may be one.
        let is_foreign = |r: Reg| of(r).kind == Kind::Unknown || of(r).region() == Some(&Region::CallerFrame);
        match op.insn {
            Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Reg(src) } => {
                let number = is_called && of(dst).region().is_none();
                let of_a_caller = of(src).region() == Some(&Region::CallerFrame);
                Beliefs {
                    wrong: number && may_be_own(src),
                    sums: number && is_foreign(src),
                    sums_of_frames: number && of_a_caller,
                    ..none
                }
            }
            Insn::Atomic { base, .. } if op.insn.def().is_some() => {
                Beliefs { wrong: may_be_own(base), fetches: is_foreign(base), ..none }
            }
            Insn::Load { base, sext: true, .. } if kind == ProgKind::Tracing => {
                Beliefs { wrong: may_be_own(base), fetches: is_foreign(base), ..none }
            }
            Insn::Load { size, dst, base, off, sext: signed } if kind != ProgKind::Tracing => {
                let is_kernels = of(base).region() == Some(&Region::Kernel);
                let may_be_context = match of(base).region() {
                    Some(Region::Ctx) => matches!(kind, ProgKind::Other | ProgKind::Subprogram),
                    Some(_) => false,
                    None => of(base).kind == Kind::Unknown,
                };
                let wide = reads_wider_than_believed(off.into(), size.bytes());
                Beliefs {
                    wrong: is_kernels && wide || signed && may_be_own(base),
                    fetches: signed && is_foreign(base),
                    reads_wide: may_be_context && wide,
                    overwrites: may_be_context && dst == base && size != Size::DW,
                    ..none
                }
            }
            Insn::LdAbs { .. } | Insn::LdInd { .. } => Beliefs { ends_early: is_called, ..none },
            Insn::Call(_) | Insn::CallX { .. } => {
                let row = Effects::of(&op.insn, op.link.is_some());
                let is_buffer = || is_own(Reg::R3) || is_foreign(Reg::R3);
                let lends = goes_on_in_the_program(op, row) && ARGUMENTS.into_iter().any(may_be_own);
                Beliefs {
                    wrong: row.writes_unseen() || is_slice(op) && is_buffer() || gives_what_is_not_believed(op),
                    ends_early: is_called && row.is_tail_call(),
                    lends,
                    lends_as_callee: lends && is_called,
                    ..none
                }
            }
            _ => none,
        }
    }
}

const ARGUMENTS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// Whether of what a jump tests it has to be known where it comes from.
fn asks_whence(kind: ProgKind, t: &Terminator) -> bool {
    tests_a_word(t) || tests_whether_equal(t) || tests_for_null(kind, t)
}

/// Whether a jump tests the lower halves of registers.
fn tests_a_word(t: &Terminator) -> bool {
    matches!(t, Terminator::Branch { width: Width::W32, .. })
}

/// Whether a jump asks if two registers are equal.
fn tests_whether_equal(t: &Terminator) -> bool {
    matches!(t, Terminator::Branch { cond: Cond::Eq | Cond::Ne, width: Width::W64, src: Src::Reg(_), .. })
}

/// Whether a jump asks if a register is null that may be an argument.
fn tests_for_null(kind: ProgKind, t: &Terminator) -> bool {
    may_have_arguments(kind)
        && matches!(t, Terminator::Branch { cond: Cond::Eq | Cond::Ne, width: Width::W64, src: Src::Imm(0), .. })
}

/// Whether a function may be a hook that is given what a function of the kernel is, or be passed that: no program with a packet is.
fn may_have_arguments(kind: ProgKind) -> bool {
    matches!(kind, ProgKind::Other | ProgKind::Subprogram)
}

/// Whether a call looks up an element in what may be a map that has fewer than the verifier believes (the element with the key
/// 0 is in every array); or whether it hangs on the map that a loader makes, what the verifier knows of it: it takes an element
/// with a constant key for there, in an array that is long enough.
fn looks_up_in_what_may_be_another(op: &Op, state: &State, env: &Env) -> bool {
    let row = Effects::of(&op.insn, op.link.is_some());
    if !matches!(op.insn, Insn::Call(_)) || !row.is_map_lookup() {
        return false;
    }
    let (map, key) = map_and_key(op, state, env);
    if map.is_none() && key != Some(0) && env.maps.iter().any(|m| m.inner_may_be_shorter) {
        return true;
    }
    let of = |m: &MapInfo| [m.first_key_of_longer(), m.first_inner_key_of_longer].into_iter().flatten().min();
    let first = match map {
        Some(map) => map.first_key_of_longer(),
        None => env.maps.iter().filter_map(of).min(),
    };
    // Of a map of any type, it counts also which keys are constant for the verifier and not for our facts.
    first.is_some_and(|first| first == 0 || key.is_some_and(|key| key >= first.into()))
}

/// Whether a length that only the loader of a map knows is held against something else than a constant: by a helper that is
/// handed a key or a value other than to read it from a fixed place of the function's frame; or by an access, of the program or
/// of a helper, to what may be an element of such a map, at an offset or over a length that varies.
fn leans_on_an_open_length(op: &Op, state: &State, env: &Env) -> bool {
    let any_is_open = || env.maps.iter().any(|m| m.is_open);
    if !any_is_open() {
        return false;
    }
    let may_be_in_an_element = |v: &Value| match v.region() {
        Some(Region::MapValue { map }) => env.map(*map).is_none_or(|m| m.is_open && m.value_size.is_none()),
        // Of an inner map, too.
        Some(Region::AnyMapValue | Region::Kernel) => true,
        Some(_) => false,
        None => v.kind == Kind::Unknown,
    };
    let varies = |v: &Value| may_be_in_an_element(v) && v.pointer_at().is_none();
    if let Some(memory) = op.insn.memory_operand() {
        return varies(state.reg(memory.base));
    }
    if !matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) {
        return false;
    }
    let row = Effects::of(&op.insn, op.link.is_some());
    let map = row.map_register().and_then(|r| match state.reg(r).region() {
        Some(Region::MapPtr { map }) => env.map(*map),
        _ => None,
    });
    row.arguments.iter().any(|a| {
        let v = state.reg(a.register);
        let is_open = match (a.extent, map) {
            (Extent::Key, Some(map)) => map.is_open && map.key_size.is_none(),
            (Extent::Value, Some(map)) => map.is_open && map.value_size.is_none(),
            (Extent::Key | Extent::Value, None) => true,
            _ => false,
        };
        let is_read_from_a_place = || !a.access.writes() && v.is_stack() && v.pointer_at().is_some();
        match a.extent {
            _ if is_open => !is_read_from_a_place(),
            Extent::Nothing => false,
            // The verifier holds nothing against it.
            _ if a.is_any_address() => false,
            Extent::Register(length) => {
                may_be_in_an_element(v) && (v.pointer_at().is_none() || state.reg(length).as_const().is_none())
            }
            // What is not known to be memory of the program's: objects of the kernel's, and all that a function is handed,
            // which is judged by what it does with it.
            Extent::Unknown => v.region().is_some_and(Region::is_map_value) && varies(v),
            Extent::Key | Extent::Value | Extent::Bytes(_) => varies(v),
        }
    })
}

/// Whether a call gives back its buffer ([`hands_back_its_buffer`]).
fn is_slice(op: &Op) -> bool {
    matches!(op.link.as_ref().map(|l| &l.symbol), Some(Symbol::Extern { name }) if hands_back_its_buffer(name))
}

/// Whether the verifier believes something wrong of a call's result ([`is_result_misjudged`]).
fn gives_what_is_not_believed(op: &Op) -> bool {
    matches!(op.link.as_ref().map(|l| &l.symbol), Some(Symbol::Extern { name }) if is_result_misjudged(name))
}

/// Whether an operation gives a pointer to an object of the kernel, which may be a socket: a call, or a field of a context.
fn gives_an_object(kind: ProgKind, op: &Op, before: &State, after: &State) -> bool {
    let is_object = |r: Reg| after.reg(r).region() == Some(&Region::Kernel);
    match op.insn {
        Insn::Call(_) | Insn::CallX { .. } => is_object(Reg::R0),
        // Of a context that came as an argument.
        Insn::Load { size: Size::DW, dst, base, off, .. } => {
            is_object(dst)
                || before.reg(base).kind == Kind::Unknown
                    && matches!(ctx_field(ProgKind::Skb, off.into()), Some(f) if f.kind == FieldKind::Pointer)
                || before.reg(base).region() == Some(&Region::Ctx) && kind == ProgKind::Subprogram
        }
        _ => false,
    }
}

/// Whether a call leads to a function of the program: itself, or as a callback.
pub(crate) fn goes_on_in_the_program(op: &Op, row: &Effects) -> bool {
    match (op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (_, Some(Symbol::Extern { .. })) => false,
        (Insn::Call(Call::Helper(_)), _) => row.name.is_empty() || row.arguments.iter().any(|a| a.class == Arg::Func),
        _ => true,
    }
}

/// A value may be a packet pointer; it has been found beyond the end; and been moved since.
const POINTER: u8 = 1;
const BEYOND: u8 = 2;
const MOVED: u8 = 4;

/// What is known of registers and words of the frame, by offset. Words that are not there may hold a pointer.
#[derive(Clone, PartialEq, Default)]
struct Places {
    regs: [u8; 11],
    slots: BTreeMap<i64, u8>,
}

impl Places {
    fn join(&mut self, o: &Places) {
        self.regs.iter_mut().zip(o.regs).for_each(|(a, b)| *a |= b);
        for (at, flags) in &o.slots {
            *self.slots.entry(*at).or_insert(POINTER) |= flags;
        }
        for (at, flags) in &mut self.slots {
            *flags |= o.slots.get(at).copied().unwrap_or(POINTER);
        }
    }

    fn any_beyond(&self) -> bool {
        self.slots.values().any(|flags| flags & (BEYOND | MOVED) != 0)
    }
}

/// The registers that a jump compares as the verifier compares packet pointers (`try_match_pkt_pointers`): the one that is the
/// greater or equal where the condition holds, and the other.
fn operands(t: &Terminator) -> Option<(Reg, Reg)> {
    match *t {
        Terminator::Branch { cond, width: Width::W64, dst, src: Src::Reg(src), .. } => match cond {
            Cond::Gt | Cond::Ge => Some((dst, src)),
            Cond::Lt | Cond::Le => Some((src, dst)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a pointer that may have been found beyond the packet's end may be moved, and then be compared with the end, or
/// given to another function.
fn moves_what_is_beyond(f: &Function, env: &Env, states: &FxHashMap<BlockId, Vec<State>>) -> bool {
    let mut first = Places::default();
    if f.is_called() {
        ARGUMENTS.into_iter().for_each(|r| first.regs[r.index()] = POINTER);
    }
    let mut at_entry: FxHashMap<BlockId, Places> = FxHashMap::default();
    at_entry.insert(f.entry(), first);
    let mut todo = vec![f.entry()];
    while let Some(b) = todo.pop() {
        let mut places = at_entry[&b].clone();
        let states = &states[&b];
        let block = f.block(b);
        for (op, state) in block.ops.iter().zip(states) {
            if step(&mut places, env, op, state) {
                return true;
            }
        }
        // Where the verifier does not come.
        let Some(last) = states.get(block.ops.len()) else { continue };
        let is_beyond = |places: &Places, r: Reg| places.regs[r.index()] & (BEYOND | MOVED) != 0;
        if matches!(block.term, Terminator::Exit { .. }) && f.is_called() && is_beyond(&places, Reg::R0) {
            return true;
        }
        let may_be = |r: Reg, regions: &[Region]| match last.reg(r).region() {
            Some(region) => regions.contains(region),
            None => last.reg(r).kind == Kind::Unknown && places.regs[r.index()] & POINTER != 0,
        };
        let compared = operands(&block.term);
        if let Some((a, b)) = compared {
            let decided = |p: Reg, end: Reg| places.regs[p.index()] & MOVED != 0 && may_be(end, &[Region::PacketEnd]);
            if decided(a, b) || decided(b, a) {
                return true;
            }
        }
        for (n, next) in block.term.successors().enumerate() {
            let mut there = places.clone();
            // The first successor is that where the condition holds.
            if let Some((a, b)) = compared {
                let (above, below) = if n == 0 { (a, b) } else { (b, a) };
                let is_end = may_be(above, &[Region::Packet]) && may_be(below, &[Region::PacketEnd])
                    || may_be(above, &[Region::PacketMeta]) && may_be(below, &[Region::Packet]);
                if is_end {
                    there.regs[above.index()] |= BEYOND;
                }
            }
            let changed = match at_entry.get_mut(&next) {
                None => {
                    at_entry.insert(next, there);
                    true
                }
                Some(known) => {
                    let before = known.clone();
                    known.join(&there);
                    *known != before
                }
            };
            if changed && !todo.contains(&next) {
                todo.push(next);
            }
        }
    }
    false
}

/// What one operation makes of them; whether something that may be beyond gets to where nobody follows it.
fn step(places: &mut Places, env: &Env, op: &Op, state: &State) -> bool {
    let of = |places: &Places, r: Reg| match state.reg(r).kind {
        Kind::Scalar => 0,
        Kind::Unknown => places.regs[r.index()],
        Kind::Pointer { ref region, .. } if region.is_packet() => places.regs[r.index()] | POINTER,
        Kind::Pointer { .. } => 0,
    };
    let lost = BEYOND | MOVED;
    match op.insn {
        Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) } => places.regs[dst.index()] = of(places, src),
        Insn::Alu { op: AluOp::Add | AluOp::Sub, width: Width::W64, dst, src } => {
            let both = of(places, dst) | if let Src::Reg(r) = src { of(places, r) } else { 0 };
            // What is moved on stays beyond.
            let is_on = matches!((op.insn, src), (Insn::Alu { op: AluOp::Add, .. }, Src::Imm(0..)));
            places.regs[dst.index()] = if both & BEYOND != 0 && !is_on { both | MOVED } else { both };
        }
        Insn::Load { size, dst, base, off, .. } | Insn::LoadAcquire { size, dst, base, off } => {
            let v = state.reg(base);
            let at = v.num.as_signed_const().map(|at| at.wrapping_add(off.into()));
            places.regs[dst.index()] = match (v.region(), size) {
                // Contexts have pointers of four bytes.
                (Some(Region::Ctx), _) => POINTER,
                (_, size) if size != Size::DW && v.kind != Kind::Unknown => 0,
                (Some(Region::Stack), _) => match at {
                    Some(at) => places.slots.get(&at).copied().unwrap_or(POINTER),
                    None => places.slots.values().fold(POINTER, |all, flags| all | flags),
                },
                (Some(Region::CallerFrame) | None, _) => POINTER,
                _ => 0,
            };
        }
        Insn::Store { .. } | Insn::StoreRelease { .. } => {
            let (size, base, off, flags) = match op.insn {
                Insn::Store { size, base, off, src: Src::Reg(r) } | Insn::StoreRelease { size, base, off, src: r } => {
                    (size, base, off, of(places, r))
                }
                Insn::Store { size, base, off, .. } => (size, base, off, 0),
                _ => return false,
            };
            let v = state.reg(base);
            let place = v.num.as_signed_const().map(|at| at.wrapping_add(off.into()));
            match (v.region(), place) {
                (Some(Region::Stack), Some(at)) => {
                    let end = at + i64::from(size.bytes());
                    places.slots.retain(|word, _| *word + 8 <= at || end <= *word);
                    if size == Size::DW {
                        places.slots.insert(at, flags);
                    }
                }
                _ => return flags & lost != 0,
            }
        }
        Insn::Call(_) | Insn::CallX { .. } => {
            let row = Effects::of(&op.insn, op.link.is_some());
            let goes_on = goes_on_in_the_program(op, row);
            let read = match op.link.as_ref().map(|l| &l.symbol) {
                Some(Symbol::Func { name }) => (env.callee_args)(name),
                _ => None,
            };
            let given = ARGUMENTS.into_iter().take(read.unwrap_or(5)).any(|r| of(places, r) & lost != 0);
            if goes_on && (given || places.any_beyond()) {
                return true;
            }
            if goes_on {
                places.slots.clear();
            }
            places.regs[..6].fill(0);
            places.regs[0] = if goes_on { POINTER } else { 0 };
        }
        _ => op.insn.defs().iter().for_each(|r| places.regs[r.index()] = 0),
    }
    false
}
