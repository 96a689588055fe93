//! What a call may do with this function's frame, read off its row of effects.
//!
//! One idea: forward facts and backward liveness need the same answer (which stack bytes are read, perhaps written,
//! surely overwritten, and whether an address of the frame gets out), so it is computed once, here. A callee reaches
//! the frame only through an argument that points into it, or through an address of it that has leaked
//! ([`State::frame_leaked`]).
//!
//! An address of the frame gets out in three ways: it is passed where no memory is expected, so that it is a mere
//! number to the callee, which may store it; the callee keeps the address of an argument; or the callee copies stack
//! bytes in which an address is spilled.

use bpf_isa::{Insn, Reg, RegSet};
use bpf_platform::effects::{Argument, Effects, Extent};
use bpf_platform::helpers::Arg;
use bpf_platform::maps;
use bpf_program::{Op, Symbol};

use crate::{Env, FRAME, Kind, MapInfo, Region, StackSet, State, Value};

/// The map that a call is about, and the constant key that it reads from the function's frame, as far as these are known.
pub fn map_and_key<'e>(op: &Op, state: &State, env: &'e Env) -> (Option<&'e MapInfo>, Option<u64>) {
    let row = Effects::of(&op.insn, op.link.is_some());
    let map = row.map_register().and_then(|r| map_of(state.reg(r), env));
    let key = row.arguments.iter().find(|a| a.extent == Extent::Key);
    let key = key.and_then(|a| match state.reg(a.register).pointer_at() {
        Some((Region::Stack, _, at)) => state.stack_bytes(at, 4).as_const(),
        _ => None,
    });
    (map, key)
}

/// The effects of one call on registers and frame.
pub(crate) struct CallEffects {
    /// What a call like this may do in general.
    pub(crate) row: &'static Effects,
    /// Bytes that may be read.
    pub(crate) reads: StackSet,
    /// Bytes that may be written.
    pub(crate) writes: StackSet,
    /// Bytes that are overwritten whatever happens, and not read before.
    pub(crate) overwrites: StackSet,
    /// The callee may keep, or hand back, an address of the frame.
    pub(crate) leaks: bool,
}

/// The effects of the call `op` in `state`.
pub(crate) fn effects(state: &State, op: &Op, env: &Env<'_>) -> CallEffects {
    let row = row(op);
    if row.touches_everything {
        return anything(state, row, arguments(op, env));
    }
    let mut e =
        CallEffects { row, reads: StackSet::EMPTY, writes: StackSet::EMPTY, overwrites: StackSet::EMPTY, leaks: false };
    let map = row.map_register().and_then(|r| map_of(state.reg(r), env));
    for argument in &row.arguments {
        e.add(state, argument, map);
    }
    // Addresses of the frame inside the memory it reads: they are spilled there, or have leaked.
    if row.indirect && (state.frame_leaked() || state.frame_pointer_spilled()) {
        e.reads = StackSet::ALL;
        e.leaks = true;
    }
    // The program called runs in the same frame: whoever knows its address can read what is left there.
    if row.is_tail_call() && state.frame_leaked() {
        e.reads = StackSet::ALL;
    }
    e.overwrites = e.overwrites.minus(&e.reads);
    e
}

/// The row of a call; one that the loader patches is not the helper that its number says.
fn row(op: &Op) -> &'static Effects {
    Effects::of(&op.insn, op.link.is_some())
}

/// The argument registers a call reads.
pub(crate) fn arguments(op: &Op, env: &Env<'_>) -> RegSet {
    if Effects::helper(&op.insn, op.link.is_some()).is_some() {
        return RegSet::first_args(row(op).arguments.len());
    }
    match (&op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::Call(_), Some(symbol @ (Symbol::Func { .. } | Symbol::Extern { .. }))) => {
            env.arguments_of(symbol).map_or(RegSet::ARGS, |n| RegSet::first_args(n.min(5)))
        }
        (Insn::CallX { reg }, _) => RegSet::ARGS.with(*reg),
        _ => RegSet::ARGS,
    }
}

/// Whether a call does nothing that anyone could notice but leave its result in r0, so that it may go where nobody reads
/// that: by its row ([`Effects::may_be_left_out`]), or as a lookup by key in a map that holds plain bytes and does not
/// remember what was asked for, as those do that evict. Its arguments are what the helper wants, so that it cannot fail; a key
/// stands in the own frame.
pub fn has_no_effect(state: &State, op: &Op, env: &Env<'_>) -> bool {
    let row = row(op);
    if !row.may_have_no_effect() {
        return false;
    }
    let map = row.map_register().and_then(|r| map_of(state.reg(r), env));
    let is_right = |a: &Argument| match (a.class, state.reg(a.register).pointer_at()) {
        (Arg::Scalar, _) => true,
        (Arg::Ctx, Some((Region::Ctx, _, at))) => at == 0,
        (Arg::Map, Some((_, _, 0))) => {
            map.and_then(|m| m.map_type).is_some_and(|t| maps::holds_bytes(t) && !maps::evicts(t))
        }
        (Arg::Key, Some((Region::Stack, _, at))) => {
            map.and_then(|m| m.key_size).is_some_and(|n| (-FRAME..=-i64::from(n)).contains(&at))
        }
        _ => false,
    };
    row.arguments.iter().all(is_right)
}

/// Anything may happen to whatever the callee can reach.
fn anything(state: &State, row: &'static Effects, args: RegSet) -> CallEffects {
    let reaches = state.frame_leaked() || args.iter().any(|r| state.reg(r).is_stack());
    let touched = if reaches { StackSet::ALL } else { StackSet::EMPTY };
    CallEffects { row, reads: touched, writes: touched, overwrites: StackSet::EMPTY, leaks: reaches }
}

impl CallEffects {
    /// Adds what happens through one argument.
    fn add(&mut self, state: &State, argument: &Argument, map: Option<&MapInfo>) {
        let v = state.reg(argument.register);
        let access = argument.access;
        let (min, max) = match argument.extent {
            Extent::Nothing => {
                self.leaks |= v.is_stack();
                return;
            }
            // The verifier knows the object by its type; should it be the frame all the same, anything goes.
            Extent::Unknown if access.kernel_object => {
                let bytes = if v.is_stack() { StackSet::ALL } else { StackSet::EMPTY };
                self.writes = self.writes.union(&bytes);
                self.reads = self.reads.union(&bytes);
                self.leaks |= v.is_stack();
                return;
            }
            Extent::Unknown => (None, None),
            Extent::Key => sized(map.and_then(|m| m.key_size)),
            Extent::Value if access.writes() => sized(map.and_then(|m| m.value_size)),
            Extent::Value => sized(map.and_then(MapInfo::value_bytes_read)),
            Extent::Bytes(n) => sized(Some(n)),
            Extent::Register(r) => {
                let (min, max) = length(state, r);
                (max.filter(|max| *max == min), max)
            }
        };
        let most = max.unwrap_or(FRAME as u32);
        let bytes = match argument.extent {
            _ if argument.is_any_address() => state.probed(v, most),
            Extent::Unknown => object(state, v),
            _ => state.touched(v, 0, most),
        };
        // A value that is written is read only by bloom filters.
        let reads = access.reads && (argument.class != Arg::OutValue || map.is_none_or(MapInfo::may_be_bloom_filter));
        if reads {
            self.reads = self.reads.union(&bytes);
            self.leaks |= access.copies && state.frame_pointer_spilled_in(&bytes);
        }
        if access.writes() {
            self.writes = self.writes.union(&bytes);
        }
        if access.overwrites() && !reads {
            self.overwrites = self.overwrites.union(&exactly(v, min.unwrap_or(0)));
        }
        // What is printed is a number, too.
        self.leaks |= (access.keeps || argument.is_optional()) && v.is_stack();
    }
}

/// Least and greatest length, if it is known.
fn sized(len: Option<u32>) -> (Option<u32>, Option<u32>) {
    (len, len)
}

/// The map that a value certainly is.
pub(crate) fn map_of<'e>(v: &Value, env: &Env<'e>) -> Option<&'e MapInfo> {
    match v.kind {
        Kind::Pointer { region: Region::MapPtr { map }, .. } => env.maps.get(map),
        _ => None,
    }
}

/// Least and greatest length that the register holds; no greatest one means up to the end of the frame.
fn length(state: &State, register: Reg) -> (u32, Option<u32>) {
    let num = state.reg(register).bits();
    let small = |v: u64| u32::try_from(v).ok().filter(|v| i64::from(*v) <= FRAME);
    (small(num.umin).unwrap_or(0), small(num.umax))
}

/// The stack bytes surely touched by an access of `len` bytes through `v`.
fn exactly(v: &Value, len: u32) -> StackSet {
    match v.pointer_at() {
        Some((Region::Stack, _, off)) => StackSet::range(off, len),
        _ => StackSet::EMPTY,
    }
}

/// All that an object of unknown size and shape, pointed to by `v`, may cover.
fn object(state: &State, v: &Value) -> StackSet {
    if v.is_stack() || state.may_be_frame_address(v) { StackSet::ALL } else { StackSet::EMPTY }
}
