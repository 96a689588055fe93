//! Calls: helpers with their arguments and results, functions of the program, and the return from both.

mod arguments;

use std::rc::Rc;

use bpf_isa::{Call, Reg};
use bpf_object::ValueType;
use bpf_platform::helpers::{Arg, Helper, Ret};
use bpf_platform::maps;
use bpf_platform::permissions::{self, Forbidden};
use bpf_platform::verifier::Callback;

use crate::Stop;
use crate::memory::Use;
use crate::program::Target;
use crate::rules;
use crate::scalar::Scalar;
use crate::state::{Frame, Held, Kind, MAX_FRAMES, RegState, Sock};
use crate::walk::{Next, Walk, bad, unsure};

/// `BPF_MAX_VAR_SIZ`.
const MAX_SIZE: u64 = 1 << 29;
/// The largest number of a processor (`CONFIG_NR_CPUS` at most 8192).
const MOST_CPUS: u64 = 8191;
/// `MAX_ERRNO`.
const MAX_ERRNO: i64 = 4095;

/// What checking the arguments found out about a call.
#[derive(Default)]
struct Meta {
    /// The map argument; the flag says that it is the template of inner maps.
    map: Option<(u32, bool)>,
    /// The reference an argument carries.
    reference: u32,
    /// The key, if it is a constant.
    key: Option<u64>,
    /// The function called back, and what it is passed.
    function: Option<usize>,
    passed: Option<RegState>,
    /// The constant size argument of an allocation.
    size: Option<u64>,
    /// The longest a memory argument can be.
    longest: u64,
}

impl Walk<'_> {
    pub(crate) fn call(&mut self, call: Call) -> Result<usize, Stop> {
        match call {
            Call::Helper(id) => self.helper(id)?,
            Call::Local(_) => match &self.p.slots[self.at].target {
                Target::Func(start) => return self.enter(*start),
                Target::Unknown(what) => return unsure(format!("a call of {what}")),
                _ => return bad("call to a place where no function starts"),
            },
            Call::Kfunc { .. } => return unsure("kernel functions are described in the kernel's BTF only"),
        }
        Ok(self.at + 1)
    }

    fn enter(&mut self, start: usize) -> Result<usize, Stop> {
        let Some(sub) = self.p.sub_at(start) else { return bad("call to a place where no function starts") };
        if self.state.lock.is_some() && self.p.subs[sub].global {
            return bad("global function calls are not allowed while holding a lock");
        }
        if self.p.subs[sub].global {
            self.call_global(sub)?;
            return Ok(self.at + 1);
        }
        let depth = self.state.frames.len();
        if depth >= MAX_FRAMES {
            return bad(format!("the call stack of {depth} frames is too deep"));
        }
        let mut frame = Frame::new(sub, self.at, depth as u8);
        frame.regs[1..=5].copy_from_slice(&self.state.top().regs[1..=5]);
        self.clobber();
        self.state.frames.push(Rc::new(frame));
        self.stack_written(depth, u64::MAX);
        Ok(start)
    }

    /// A global function keeps to its signature, so only that counts.
    fn call_global(&mut self, sub: usize) -> Result<(), Stop> {
        let Some(proto) = &self.p.subs[sub].proto else {
            return unsure(format!("the global function {} has no BTF", self.p.subs[sub].name));
        };
        for (i, param) in proto.params.iter().enumerate().take(5) {
            let r = argument(i);
            let reg = self.read(r)?;
            match rules::parameter(&param.value, self.p.kind) {
                rules::Parameter::Number if !reg.is_scalar() => return bad(format!("R{} is not a scalar", r.index())),
                rules::Parameter::Number => {}
                rules::Parameter::Ctx => {
                    if reg.kind != Kind::Ctx {
                        return bad(format!("R{} expects pointer to ctx", r.index()));
                    }
                    self.unmodified(r, &reg)?;
                }
                rules::Parameter::Memory(_) if reg.is_null() => {}
                rules::Parameter::Memory(size) => {
                    // Null is as good as memory here, so it need not be excluded.
                    let known = RegState { or_null: false, ..reg };
                    self.helper_memory(r, &known, i64::from(size), Use::HelperRead, false, true)?;
                    self.helper_memory(r, &known, i64::from(size), Use::HelperWrite, false, true)?;
                }
                rules::Parameter::Unknown => return unsure("a global function with a parameter of unknown kind"),
            }
        }
        if self.shape.moves_packet[sub] {
            self.forget_packet();
        }
        self.clobber();
        *self.state.reg_mut(Reg::R0) = self.number(Scalar::TOP);
        Ok(())
    }

    /// r0 … r5 are gone.
    fn clobber(&mut self) {
        self.state.top_mut().regs[..=5].fill(RegState::NOT_INIT);
    }

    fn forget_packet(&mut self) {
        // The address is still there, as a number.
        let number = self.number(Scalar::TOP);
        self.state.update(RegState::is_packet, |r| *r = number);
    }

    pub(crate) fn exit(&mut self) -> Result<Next, Stop> {
        let r0 = *self.state.reg(Reg::R0);
        if self.depth() > 0 {
            if matches!(r0.kind, Kind::Stack(_)) {
                return bad("cannot return stack pointer to the caller");
            }
            let (callsite, callback) = (self.state.top().callsite, self.state.top().callback);
            if callback {
                let r0 = self.read(Reg::R0)?;
                if !r0.is_scalar() {
                    return bad(format!("At callback return the register R0 is not a known value ({})", r0.describe()));
                }
                self.values.need(r0.version);
                if r0.num.w.smin < 0 || r0.num.w.smax > 1 {
                    return bad("At callback return the register R0 should have been in [0, 1]");
                }
                self.state.frames.pop();
                self.state.top_mut().rounds += 1;
                self.widen(callsite);
                return Ok(Next::At(callsite));
            }
            self.state.frames.pop();
            *self.state.reg_mut(Reg::R0) = r0;
            return Ok(Next::At(callsite + 1));
        }
        if self.state.lock.is_some() {
            return bad("BPF_EXIT instruction in main prog cannot be used inside bpf_spin_lock-ed region");
        }
        if let Some(&Held { id, slot }) = self.state.held.first() {
            return bad(format!("Unreleased reference id={id} alloc_insn={slot}"));
        }
        let r0 = self.read(Reg::R0)?;
        if self.root != 0 {
            if !r0.is_scalar() {
                return bad(format!("At subprogram exit the register R0 is not a scalar value ({})", r0.describe()));
            }
            return Ok(Next::End);
        }
        if let Some((lo, hi)) = permissions::return_range(self.p.kind, self.p.attach) {
            if !r0.is_scalar() {
                return bad(format!("At program exit the register R0 is not a known value ({})", r0.describe()));
            }
            self.values.need(r0.version);
            // The hook reads an int, and the verifier asks for all 64 bits (`retval_range_within`); of LSM programs, which
            // have no range here, it asks for 32.
            let (smin, smax) = (r0.num.w.smin, r0.num.w.smax);
            if smin < lo || smax > hi {
                return bad(format!(
                    "At program exit the register R0 has smin={smin} smax={smax} should have been in [{lo}, {hi}]"
                ));
            }
        }
        Ok(Next::End)
    }

    fn helper(&mut self, id: i32) -> Result<(), Stop> {
        let Some(helper) = Helper::get(id) else { return bad(format!("invalid func unknown#{id}")) };
        let name = helper.name;
        match permissions::may_call(self.p.kind, self.p.attach, id, self.p.gpl) {
            Ok(()) => {}
            Err(Forbidden::Type) => {
                return bad(format!("program of this type cannot use helper bpf_{name}#{id}"));
            }
            Err(Forbidden::License) => {
                return bad("cannot call GPL-restricted function from non-GPL compatible program");
            }
        }
        if self.state.lock.is_some() && !helper.unlocks() {
            return bad("function calls are not allowed while holding a lock");
        }
        let mut meta = Meta::default();
        for (i, arg) in helper.args.iter().enumerate().take(5) {
            if *arg != Arg::Vararg {
                self.argument(helper, i, arg, &mut meta)?;
            }
        }
        if meta.map.is_some() && !maps::goes_with(self.map_of(&meta).kind, helper) {
            return bad(format!("cannot pass map_type {} into func bpf_{name}#{id}", self.map_of(&meta).kind));
        }
        if helper.effects.is_tail_call() && !self.state.held.is_empty() {
            return bad("tail_call would lead to reference leak");
        }
        if let (Some(kind), Some(start)) = (helper.callback(), meta.function) {
            self.call_back(kind, start, &meta)?;
        }
        if helper.releases() {
            self.release(meta.reference)?;
        }
        if helper.effects.moves_packet() {
            self.forget_packet();
        }
        self.clobber();
        let result = self.result(helper, &meta)?;
        *self.state.reg_mut(Reg::R0) = result;
        Ok(())
    }

    /// Puts aside the path on which the helper calls the function once more; this one goes on behind the helper.
    fn call_back(&mut self, kind: Callback, start: usize, meta: &Meta) -> Result<(), Stop> {
        let Some(sub) = self.p.sub_at(start) else { return bad("callback where no function starts") };
        let depth = self.state.frames.len();
        if depth >= MAX_FRAMES {
            return bad(format!("the call stack of {depth} frames is too deep"));
        }
        let rounds = std::mem::take(&mut self.state.top_mut().rounds);
        let passed = meta.passed.unwrap_or(RegState::NOT_INIT);
        let mut frame = Frame { callback: true, ..Frame::new(sub, self.at, depth as u8) };
        match kind {
            Callback::Loop => {
                // The count decides whether there is another round.
                let count = self.read(Reg::R1)?;
                self.values.need(count.version);
                if count.is_scalar() && rounds >= count.num.w.umax {
                    return Ok(());
                }
                frame.regs[1] = self.number(Scalar::TOP);
                frame.regs[2] = passed;
            }
            Callback::Elements => {
                let (map, inner) = meta.map.unwrap_or_default();
                let key_size = self.map(map, inner).key_size;
                frame.regs[1] = RegState::pointer(if inner { Kind::InnerMap(map) } else { Kind::Map(map) });
                frame.regs[2] = RegState::pointer(Kind::Mem { size: key_size, write: false, ringbuf: false });
                frame.regs[3] = RegState { id: self.fresh(), ..RegState::pointer(Kind::MapValue { map, inner }) };
                frame.regs[4] = passed;
            }
        }
        let mut state = self.state.clone();
        state.top_mut().rounds = rounds;
        state.frames.push(Rc::new(frame));
        self.stack_written(depth, u64::MAX);
        self.postpone(state, start, true)
    }

    fn map_of(&self, meta: &Meta) -> &crate::program::MapInfo {
        let (map, inner) = meta.map.unwrap_or_default();
        self.map(map, inner)
    }

    fn release(&mut self, reference: u32) -> Result<(), Stop> {
        if !self.state.held.iter().any(|h| h.id == reference) {
            return bad("release of a reference that is not held");
        }
        self.state.held.retain(|h| h.id != reference);
        let number = self.number(Scalar::TOP);
        self.state.update(|r| r.reference == reference, |r| *r = number);
        Ok(())
    }

    fn result(&mut self, helper: &Helper, meta: &Meta) -> Result<RegState, Stop> {
        let id = self.fresh();
        let or_null = |kind| RegState { or_null: true, id, ..RegState::pointer(kind) };
        Ok(match helper.ret {
            _ if helper.is_local_storage() => {
                let (map, inner) = meta.map.unwrap_or_default();
                RegState { id, ..RegState::pointer(Kind::MapValue { map, inner }) }
            }
            Ret::MapValueOrNull => {
                let Some((map, inner)) = meta.map else { return unsure("a lookup without a map") };
                let mut result = or_null(Kind::MapValue { map, inner });
                if maps::lookup_acquires(self.map_of(meta).kind) && helper.effects.is_lookup_by_key() {
                    result.reference = id;
                    self.state.held.push(Held { id, slot: self.at });
                }
                // Every element of an array is there.
                let info = self.map_of(meta);
                if helper.effects.is_lookup_by_key()
                    && maps::is_array(info.kind)
                    && meta.key.is_some_and(|k| k < u64::from(info.max_entries))
                {
                    result.or_null = false;
                }
                result
            }
            _ if helper.reserves() => {
                let size = u32::try_from(meta.size.unwrap_or(0)).unwrap_or(u32::MAX);
                self.state.held.push(Held { id, slot: self.at });
                RegState { reference: id, ..or_null(Kind::Mem { size, write: true, ringbuf: true }) }
            }
            Ret::SockOrNull => {
                let kind = match () {
                    () if helper.gives_tcp_socket() => Sock::Tcp,
                    () if helper.gives_common_socket() => Sock::Common,
                    () => Sock::Full,
                };
                let mut result = or_null(Kind::Sock(kind));
                if helper.acquires() {
                    self.state.held.push(Held { id, slot: self.at });
                    result.reference = id;
                } else if helper.casts_socket() {
                    // The same socket, seen as another: the same reference.
                    result.reference = meta.reference;
                }
                result
            }
            // `tail_call` is declared void: nothing may be read when it fails.
            Ret::Void | Ret::NoReturnOnSuccess => RegState::NOT_INIT,
            Ret::Ptr | Ret::Slice | Ret::MemOrNull | Ret::Unknown => {
                RegState { or_null: false, ..or_null(Kind::Opaque) }
            }
            Ret::Scalar => {
                let num = if helper.returns_length() {
                    Scalar::of_wide(bpf_facts::Num::signed(64, -MAX_ERRNO, meta.longest as i64))
                } else if helper.is_processor_id() {
                    // The kernel knows how many processors this machine has; this is the most there can be.
                    Scalar::of_wide(bpf_facts::Num::unsigned(64, 0, MOST_CPUS))
                } else {
                    Scalar::TOP
                };
                self.number(num)
            }
        })
    }

    /// The registers of a global function at its start.
    pub(crate) fn global_entry(&mut self) -> Result<(), Stop> {
        let sub = &self.p.subs[self.root];
        let Some(proto) = &sub.proto else { return unsure(format!("the global function {} has no BTF", sub.name)) };
        if !matches!(proto.returns, ValueType::Int { .. }) {
            return bad(format!("Global function {}() doesn't return scalar. Only those are supported.", sub.name));
        }
        if proto.params.len() > 5 {
            return bad(format!("Global function {}() with {} > 5 args", sub.name, proto.params.len()));
        }
        for (i, param) in proto.params.iter().enumerate() {
            let reg = match rules::parameter(&param.value, self.p.kind) {
                rules::Parameter::Number => self.number(Scalar::TOP),
                rules::Parameter::Ctx => RegState::pointer(Kind::Ctx),
                rules::Parameter::Memory(size) => {
                    let kind = Kind::Mem { size, write: true, ringbuf: false };
                    RegState { or_null: true, id: self.fresh(), ..RegState::pointer(kind) }
                }
                rules::Parameter::Unknown => return unsure("a global function with a parameter of unknown kind"),
            };
            *self.state.reg_mut(argument(i)) = reg;
        }
        Ok(())
    }
}

/// The register of argument `i`, counted from 0.
fn argument(i: usize) -> Reg {
    Reg::new(i as u8 + 1).unwrap_or(Reg::R5)
}
