//! What the kernel's verifier asks of the arguments of a helper (`check_func_arg` in kernel/bpf/verifier.c).

use bpf_isa::Reg;
use bpf_platform::helpers::{Arg, Helper, Len};
use bpf_platform::permissions;
use bpf_platform::verifier::Object;

use super::{MAX_SIZE, Meta, argument};
use crate::Stop;
use crate::memory::Use;
use crate::state::{Byte, Kind, RegState, STACK, Sock};
use crate::walk::{Walk, bad, unsure};

impl Walk<'_> {
    pub(super) fn argument(&mut self, helper: &Helper, i: usize, arg: &Arg, meta: &mut Meta) -> Result<(), Stop> {
        let r = argument(i);
        let reg = self.read(r)?;
        let n = r.index();
        if reg.reference != 0 && meta.reference == 0 {
            meta.reference = reg.reference;
        }
        let wrong = |expected: &str| bad(format!("R{n} type={} expected={expected}", reg.describe()));
        match arg {
            Arg::Map => match reg.kind {
                Kind::Map(map) => meta.map = Some((map, false)),
                Kind::InnerMap(map) if !reg.or_null => {
                    let outer = self.map(map, false);
                    if outer.inner.is_none() {
                        return unsure(format!("the definition of {} does not say what it holds", outer.name));
                    }
                    meta.map = Some((map, true));
                }
                _ => return wrong("map_ptr"),
            },
            Arg::Key => {
                if meta.map.is_none() {
                    return bad("invalid map_ptr to access map->key");
                }
                let size = i64::from(self.map_of(meta).key_size);
                self.helper_memory(r, &reg, size, Use::HelperRead, false, helper.takes_packet())?;
                meta.key = self.constant_key(&reg, size);
            }
            Arg::Value | Arg::OutValue => {
                if meta.map.is_none() {
                    return bad("invalid map_ptr to access map->value");
                }
                if reg.is_null() && helper.value_may_be_null() {
                    return Ok(());
                }
                let size = i64::from(self.map_of(meta).value_size);
                let why = if *arg == Arg::Value { Use::HelperRead } else { Use::HelperWrite };
                self.helper_memory(r, &reg, size, why, false, helper.takes_packet())?;
            }
            Arg::Ctx if reg.is_null() && helper.context_may_be_null() => {}
            Arg::Ctx => {
                if reg.kind != Kind::Ctx {
                    return wrong("ctx");
                }
                self.unmodified(r, &reg)?;
            }
            Arg::Mem { len: Len::Bytes(size), read, write } => {
                self.sized(helper, r, &reg, i64::from(*size), *read, *write, false)?;
            }
            Arg::Mem { len: Len::Arg(at), read, write } => {
                let size_arg = argument(usize::from(at.saturating_sub(1)).min(4));
                let size = self.read(size_arg)?;
                if reg.is_null() && helper.memory_may_be_null() {
                    // Then its length must be zero, which is seen there.
                    if size.num.w.umax != 0 && !size.is_pointer() && !helper.null_with_size() {
                        return bad(format!("R{n} type=scalar expected=fp, pkt, map_value, mem"));
                    }
                    return Ok(());
                }
                let longest = self.size(size_arg, &size, helper.size_may_be_zero())?;
                meta.longest = longest;
                let zero = helper.size_may_be_zero();
                self.sized(helper, r, &reg, longest as i64, *read, *write, zero)?;
                self.values.need(size.version);
            }
            Arg::Size => {
                if !reg.is_scalar() {
                    return wrong("scalar");
                }
            }
            Arg::Scalar => {
                if helper.constant_argument() == Some(n) {
                    let Some(size) = reg.num.as_const().filter(|_| reg.is_scalar()) else {
                        return bad(format!("R{n} is not a known constant"));
                    };
                    self.values.need(reg.version);
                    meta.size = Some(size);
                }
            }
            Arg::Probe { .. } => {}
            Arg::Opaque => self.object_argument(helper, r, &reg, meta)?,
            Arg::Func | Arg::CallbackCtx if helper.callback().is_none() => {
                return unsure("callbacks of this helper are not followed");
            }
            Arg::Func => match reg.kind {
                Kind::Func(start) => meta.function = Some(start as usize),
                _ => return wrong("func"),
            },
            Arg::CallbackCtx => {
                if !matches!(reg.kind, Kind::Stack(_)) && !reg.is_null() {
                    return wrong("fp");
                }
                meta.passed = Some(reg);
            }
            Arg::Vararg => {}
        }
        Ok(())
    }

    /// The key on the stack, if it is a constant number.
    fn constant_key(&mut self, reg: &RegState, size: i64) -> Option<u64> {
        let Kind::Stack(frame) = reg.kind else { return None };
        let off = i64::from(reg.off) + reg.num.as_const()? as i64;
        if size != 4 || !(-STACK..=-size).contains(&off) {
            return None;
        }
        let slot = self.state.frames[usize::from(frame)].slot(off);
        let first = (off + STACK) as usize % 8;
        if slot.bytes.get(first..first + 4)?.iter().all(|b| *b == Byte::Zero) {
            return Some(0);
        }
        let stored = slot.spilled.as_deref().filter(|r| r.is_scalar() && first == 0 && slot.spill_size() == 4)?;
        let (value, version) = (stored.num.as_const()?, stored.version);
        self.values.need(version);
        Some(value)
    }

    pub(super) fn unmodified(&self, r: Reg, reg: &RegState) -> Result<(), Stop> {
        let n = r.index();
        if reg.off != 0 {
            return bad(format!("dereference of modified ctx ptr R{n} off={} disallowed", reg.off));
        }
        if reg.num.as_const() != Some(0) {
            return bad(format!("variable ctx access var_off disallowed in R{n}"));
        }
        Ok(())
    }

    /// The largest value of a size argument.
    pub(super) fn size(&mut self, r: Reg, reg: &RegState, zero: bool) -> Result<u64, Stop> {
        let n = r.index();
        if !reg.is_scalar() {
            return bad(format!("R{n} type={} expected=scalar", reg.describe()));
        }
        let w = &reg.num.w;
        if w.smin < 0 {
            return bad(format!("R{n} min value is negative, either use unsigned or 'var &= const'"));
        }
        if w.umin == 0 && !zero {
            return bad(format!("R{n} invalid zero-sized read: u64=[{},{}]", w.umin, w.umax));
        }
        if w.umax >= MAX_SIZE {
            return bad(format!("R{n} unbounded memory access, use 'var &= const' or 'if (var < const)'"));
        }
        Ok(w.umax)
    }

    #[allow(clippy::too_many_arguments)]
    fn sized(
        &mut self,
        helper: &Helper,
        r: Reg,
        reg: &RegState,
        size: i64,
        read: bool,
        write: bool,
        zero: bool,
    ) -> Result<(), Stop> {
        let packet = helper.takes_packet();
        if read {
            self.helper_memory(r, reg, size, Use::HelperRead, zero, packet)?;
        }
        if write {
            self.helper_memory(r, reg, size, Use::HelperWrite, zero, packet)?;
        }
        Ok(())
    }

    /// A helper reads or writes `size` bytes at `reg`.
    pub(super) fn helper_memory(
        &mut self,
        r: Reg,
        reg: &RegState,
        size: i64,
        why: Use,
        zero: bool,
        packet: bool,
    ) -> Result<(), Stop> {
        let n = r.index();
        if zero && size == 0 && reg.is_null() {
            return Ok(());
        }
        let expected = "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_";
        match reg.kind {
            Kind::Stack(frame) if !reg.or_null => self.helper_on_stack(r, reg, usize::from(frame), size, why),
            Kind::Packet | Kind::PacketMeta if !reg.or_null => {
                if !packet || !permissions::packet_access(self.p.kind, why.writes()) {
                    return bad("helper access to the packet is not allowed");
                }
                crate::memory::packet(n, reg, 0, size)
            }
            Kind::MapValue { .. } | Kind::Mem { .. } if !reg.or_null => self.access(r, reg, 0, size, why),
            Kind::Opaque => unsure("kernel objects are not described here (BTF of the kernel needed)"),
            _ => bad(format!("R{n} type={} expected={expected}", reg.describe())),
        }
    }

    fn object_argument(&mut self, helper: &Helper, r: Reg, reg: &RegState, meta: &mut Meta) -> Result<(), Stop> {
        let n = r.index();
        match helper.object(n) {
            Object::Socket => {
                if reg.kind == Kind::Opaque {
                    return unsure("kernel objects are not described here (BTF of the kernel needed)");
                }
                if !matches!(reg.kind, Kind::Sock(Sock::Common | Sock::Full | Sock::Tcp)) || reg.or_null {
                    return bad(format!(
                        "R{n} type={} expected=sock_common, sock, tcp_sock, xdp_sock, ptr_",
                        reg.describe()
                    ));
                }
                if reg.reference == 0 && helper.releases() {
                    return bad(format!("R{n} must be referenced when passed to release function"));
                }
                meta.reference = reg.reference;
                Ok(())
            }
            Object::Reservation => {
                if !matches!(reg.kind, Kind::Mem { ringbuf: true, .. }) || reg.or_null {
                    return bad(format!("R{n} type={} expected=ringbuf_mem", reg.describe()));
                }
                if reg.off != 0 || reg.num.as_const() != Some(0) {
                    return bad(format!(
                        "R{n} must have zero offset when passed to release func or trusted arg to kfunc"
                    ));
                }
                meta.reference = reg.reference;
                Ok(())
            }
            Object::Lock => self.lock(helper, n, reg),
            Object::Unknown => unsure(format!("what {} wants in R{n} is not described here", helper.name)),
        }
    }

    pub(super) fn lock(&mut self, helper: &Helper, n: usize, reg: &RegState) -> Result<(), Stop> {
        if !matches!(reg.kind, Kind::MapValue { .. }) || reg.or_null {
            return bad(format!("R{n} type={} expected=map_value, ptr_", reg.describe()));
        }
        if reg.num.as_const().is_none() {
            return bad(format!("R{n} doesn't have constant offset. bpf_spin_lock has to be at the constant offset"));
        }
        if helper.locks() {
            if self.state.lock.is_some() {
                return bad("Locking two bpf_spin_locks are not allowed");
            }
            self.state.lock = Some(reg.id);
            return Ok(());
        }
        match self.state.lock.take() {
            None => bad("bpf_spin_unlock without taking a lock"),
            Some(held) if held != reg.id => bad("bpf_spin_unlock of different lock"),
            Some(_) => Ok(()),
        }
    }
}
