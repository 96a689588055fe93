//! What a call may do with this function's frame, read off the helper table.
//!
//! One idea: forward facts and backward liveness need the same answer (which stack bytes are read,
//! perhaps written, surely overwritten), so it is computed once, here. A callee reaches the frame only
//! through an argument that points into it, or through an address of it that has leaked
//! ([`State::frame_leaked`]).

use bpf_isa::{Call, Insn, Reg, RegSet};
use bpf_platform::helpers::{Arg, Helper, Len, TAIL_CALL};
use bpf_program::{Op, Symbol};

use crate::{Env, FRAME, Kind, MapInfo, Region, StackSet, State, Value};

/// The effects of one call on registers and frame.
pub(crate) struct CallEffects {
    /// The row of the table, if the call is a helper that has one.
    pub(crate) helper: Option<&'static Helper>,
    /// Bytes that may be read.
    pub(crate) reads: StackSet,
    /// Bytes that may be written.
    pub(crate) writes: StackSet,
    /// Bytes that are overwritten whatever happens, and not read before.
    pub(crate) overwrites: StackSet,
    /// The callee may keep, or hand back, an address of the frame.
    pub(crate) leaks: bool,
    /// Packet pointers die.
    pub(crate) moves_packet: bool,
}

/// The effects of the call `op` in `state`.
pub(crate) fn effects(state: &State, op: &Op, env: &Env<'_>) -> CallEffects {
    match table_row(op) {
        Some(helper) => helper_effects(state, helper, env),
        None => unmodelled(state, arguments(op, env)),
    }
}

/// The argument registers a call reads.
pub(crate) fn arguments(op: &Op, env: &Env<'_>) -> RegSet {
    if let Some(helper) = table_row(op) {
        return RegSet::first_args(helper.args.len().min(5));
    }
    match (&op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::Call(Call::Local(_)), Some(Symbol::Func { name })) => {
            (env.callee_args)(name).map_or(RegSet::ARGS, |n| RegSet::first_args(n.min(5)))
        }
        (Insn::CallX { reg }, _) => RegSet::ARGS.with(*reg),
        _ => RegSet::ARGS,
    }
}

/// A helper by number; one that the loader patches is no longer that helper.
fn table_row(op: &Op) -> Option<&'static Helper> {
    match (&op.insn, &op.link) {
        (Insn::Call(Call::Helper(id)), None) => Helper::get(*id),
        _ => None,
    }
}

/// Anything may happen to whatever the callee can reach.
fn unmodelled(state: &State, args: RegSet) -> CallEffects {
    let reaches = state.frame_leaked() || args.iter().any(|r| state.reg(r).is_stack());
    let touched = if reaches { StackSet::ALL } else { StackSet::EMPTY };
    CallEffects {
        helper: None,
        reads: touched,
        writes: touched,
        overwrites: StackSet::EMPTY,
        leaks: reaches,
        moves_packet: true,
    }
}

fn helper_effects(state: &State, helper: &'static Helper, env: &Env<'_>) -> CallEffects {
    if helper.calls_back {
        let args = RegSet::first_args(helper.args.len().min(5));
        return CallEffects { helper: Some(helper), ..unmodelled(state, args) };
    }
    let mut e = CallEffects {
        helper: Some(helper),
        reads: StackSet::EMPTY,
        writes: StackSet::EMPTY,
        overwrites: StackSet::EMPTY,
        leaks: false,
        moves_packet: helper.moves_packet,
    };
    if helper.id == TAIL_CALL {
        return e;
    }
    let map = helper.args.iter().position(|a| *a == Arg::Map).and_then(|i| map_of(state.reg(argument(i)), env));
    for (i, arg) in helper.args.iter().take(5).enumerate() {
        let v = state.reg(argument(i));
        match *arg {
            Arg::Key => e.reads = e.reads.union(&reach(state, v, map.and_then(|m| m.key_size))),
            Arg::Value => e.reads = e.reads.union(&reach(state, v, map.and_then(|m| m.value_size))),
            Arg::OutValue => {
                let bytes = reach(state, v, map.and_then(|m| m.value_size));
                e.writes = e.writes.union(&bytes);
                if map.is_none_or(MapInfo::may_be_bloom_filter) {
                    e.reads = e.reads.union(&bytes);
                }
            }
            Arg::Mem { len, read, write } => {
                let (min, max) = length(state, len);
                let bytes = reach(state, v, max);
                if read {
                    e.reads = e.reads.union(&bytes);
                }
                if write {
                    e.writes = e.writes.union(&bytes);
                    if !read && helper.overwrites && Some(min) == max {
                        e.overwrites = e.overwrites.union(&exactly(v, min));
                    }
                }
            }
            Arg::Probe { len } => e.reads = e.reads.union(&reach(state, v, length(state, len).1)),
            Arg::Vararg => e.reads = e.reads.union(&object(state, v)),
            Arg::Opaque | Arg::CallbackCtx => {
                let bytes = object(state, v);
                e.reads = e.reads.union(&bytes);
                e.writes = e.writes.union(&bytes);
            }
            Arg::Map | Arg::Ctx | Arg::Size | Arg::Scalar | Arg::Func => {}
        }
    }
    // Addresses of the frame inside the memory it reads: they are spilled there, or have leaked.
    if helper.indirect && (state.frame_leaked() || state.frame_pointer_spilled()) {
        e.reads = StackSet::ALL;
        if helper.map_write {
            e.writes = StackSet::ALL;
        }
    }
    e.overwrites = e.overwrites.minus(&e.reads);
    e
}

/// The register of the `i`-th argument, from 0.
fn argument(i: usize) -> Reg {
    Reg::new(i as u8 + 1).unwrap_or(Reg::R5)
}

/// The map that a value certainly is.
pub(crate) fn map_of<'e>(v: &Value, env: &Env<'e>) -> Option<&'e MapInfo> {
    match v.kind {
        Kind::Pointer { region: Region::MapPtr { map }, .. } => env.maps.get(map),
        _ => None,
    }
}

/// Least and greatest length; no greatest one means up to the end of the frame.
fn length(state: &State, len: Len) -> (u32, Option<u32>) {
    match len {
        Len::Bytes(n) => (n, Some(n)),
        Len::Arg(n) => {
            let num = state.reg(Reg::new(n).unwrap_or(Reg::R5)).bits();
            let small = |v: u64| u32::try_from(v).ok().filter(|v| i64::from(*v) <= FRAME);
            (small(num.umin).unwrap_or(0), small(num.umax))
        }
    }
}

/// The stack bytes that an access of up to `len` bytes through `v` may touch.
fn reach(state: &State, v: &Value, len: Option<u32>) -> StackSet {
    state.touched(v, 0, len.unwrap_or(FRAME as u32))
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
