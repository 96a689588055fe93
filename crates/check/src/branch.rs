//! Conditional jumps: which ways are possible, and what each way teaches.

use bpf_isa::{Cond, Reg, Src, Width};
use bpf_platform::maps;

use crate::Stop;
use crate::scalar::Scalar;
use crate::state::{Kind, RegState, VerifierState};
use crate::walk::Walk;

/// A comparison: condition, width, operands.
type Test = (Cond, Width, Reg, Src);

/// `MAX_PACKET_OFF`.
const MAX_PACKET_OFFSET: i64 = 0xffff;

impl Walk<'_> {
    /// Goes on with the fall-through, puts the jump aside; or goes the only way possible.
    pub(crate) fn branch(
        &mut self,
        cond: Cond,
        width: Width,
        dst: Reg,
        src: Src,
        target: usize,
    ) -> Result<usize, Stop> {
        let next = self.at + 1;
        let test = (cond, width, dst, src);
        let a = self.read(dst)?;
        let b = match src {
            Src::Reg(r) => self.read(r)?,
            Src::Imm(i) => RegState::scalar(Scalar::constant(i64::from(i) as u64), 0),
        };
        let ways = [false, true].map(|taken| possible(cond, width, taken, &a, &b));
        if let [false, true] | [true, false] = ways {
            self.values.need(a.version);
            self.values.need(b.version);
            self.decide(ways[1]);
            if ways[1] {
                self.learn(test, &a, &b, true);
                return Ok(target);
            }
            self.learn(test, &a, &b, false);
            return Ok(next);
        }
        if target == next {
            return Ok(next);
        }
        if a.is_scalar() && b.is_scalar() && matches!(src, Src::Reg(_)) {
            // The bounds of each come from the other from now on.
            let version = self.values.new_value(a.version, b.version);
            for old in [a.version, b.version].into_iter().filter(|v| *v != 0) {
                self.state.update(|r| r.is_scalar() && r.version == old, |r| r.version = version);
            }
        }
        let before = self.state.clone();
        self.learn(test, &a, &b, true);
        let jump = std::mem::replace(&mut self.state, before);
        self.postpone(jump, target, true)?;
        self.decide(false);
        self.learn(test, &a, &b, false);
        Ok(next)
    }

    fn learn(&mut self, (cond, width, dst, src): Test, a: &RegState, b: &RegState, taken: bool) {
        match (a.is_scalar(), b.is_scalar()) {
            (true, true) => {
                if src == Src::Reg(dst) {
                    return;
                }
                let Some((x, y)) = Scalar::refine(cond, width, taken, &a.num, &b.num) else { return };
                self.settle(dst, x);
                if let Src::Reg(r) = src {
                    self.settle(r, y);
                }
            }
            (false, true) if width == Width::W64 && src == Src::Imm(0) && a.or_null => {
                let is_null = match cond {
                    Cond::Eq => taken,
                    Cond::Ne => !taken,
                    _ => return,
                };
                let version = self.values.new_value(0, 0);
                null_check(&mut self.state, a.id, is_null, version, &self.p.maps, self.shape.locks);
            }
            (false, false) if width == Width::W64 => {
                let cond = match (taken, cond.negate()) {
                    (true, _) => cond,
                    (false, Some(c)) => c,
                    _ => return,
                };
                packet_reaches(&mut self.state, cond, a, b);
                packet_reaches(&mut self.state, cond.swap(), b, a);
                self.equal_pointers(cond, a, b);
            }
            _ => {}
        }
    }

    /// A pointer equal to one that is not null is not null.
    fn equal_pointers(&mut self, cond: Cond, a: &RegState, b: &RegState) {
        if cond != Cond::Eq {
            return;
        }
        for (p, q) in [(a, b), (b, a)] {
            if p.or_null && !q.or_null && p.kind == q.kind {
                null_check(&mut self.state, p.id, false, 0, &self.p.maps, self.shape.locks);
            }
        }
    }

    /// Register `r` turns out to hold `num`; so do its copies, at their distances.
    fn settle(&mut self, r: Reg, num: Scalar) {
        let own = *self.state.reg(r);
        self.state.reg_mut(r).num = num;
        if own.id == 0 {
            return;
        }
        let version = own.version;
        let values = &mut self.values;
        self.state.update(
            |o| o.is_scalar() && o.id == own.id,
            |o| {
                let by = i64::from(o.off) - i64::from(own.off);
                if by != 0 {
                    o.version = values.new_value(o.version, version);
                    o.num = num.alu(bpf_isa::AluOp::Add, Width::W64, &Scalar::constant(by as u64));
                } else {
                    o.num = num;
                    o.version = version;
                }
            },
        );
    }
}

/// Can the comparison come out so?
fn possible(cond: Cond, width: Width, taken: bool, a: &RegState, b: &RegState) -> bool {
    match (a.is_scalar(), b.is_scalar()) {
        (true, true) => Scalar::refine(cond, width, taken, &a.num, &b.num).is_some(),
        (false, true) if width == Width::W64 && b.is_null() && never_null(a) => match cond {
            Cond::Eq => !taken,
            Cond::Ne => taken,
            _ => true,
        },
        (true, false) if width == Width::W64 && a.is_null() && never_null(b) => match cond {
            Cond::Eq => !taken,
            Cond::Ne => taken,
            _ => true,
        },
        _ => true,
    }
}

/// `reg_not_null` of the kernel.
fn never_null(r: &RegState) -> bool {
    !r.or_null
        && matches!(r.kind, Kind::Sock(_) | Kind::MapValue { .. } | Kind::Mem { .. } | Kind::Map(_) | Kind::InnerMap(_))
}

fn null_check(
    state: &mut VerifierState,
    id: u32,
    is_null: bool,
    version: u32,
    maps: &[crate::program::MapInfo],
    locks: bool,
) {
    if id == 0 {
        return;
    }
    if is_null {
        // What is not there need not be given back.
        state.held.retain(|h| h.id != id);
    }
    state.update(
        |r| r.or_null && r.id == id,
        |r| {
            if is_null {
                *r = RegState::scalar(Scalar::constant(0), version);
                return;
            }
            r.or_null = false;
            if let Kind::MapValue { map, inner: false } = r.kind {
                r.kind = found(map, maps);
            }
            if r.reference == 0 && !(locks && matches!(r.kind, Kind::MapValue { .. })) {
                r.id = 0;
            }
        },
    );
}

/// What a lookup in a map gives: an inner map, a socket, or a value.
fn found(map: u32, table: &[crate::program::MapInfo]) -> Kind {
    match table.get(map as usize).map_or(0, |m| m.kind) {
        maps::ARRAY_OF_MAPS | maps::HASH_OF_MAPS => Kind::InnerMap(map),
        maps::XSKMAP => Kind::Sock(crate::state::Sock::Xdp),
        maps::SOCKMAP | maps::SOCKHASH => Kind::Sock(crate::state::Sock::Full),
        _ => Kind::MapValue { map, inner: false },
    }
}

/// Learns from `p cond end` how far the packet reaches.
fn packet_reaches(state: &mut VerifierState, cond: Cond, p: &RegState, end: &RegState) {
    let beyond = match cond {
        Cond::Le | Cond::Eq => 0,
        Cond::Lt => 1,
        _ => return,
    };
    let pair = matches!((p.kind, end.kind), (Kind::Packet, Kind::PacketEnd) | (Kind::PacketMeta, Kind::Packet));
    // Metadata ends where the packet starts, and only there.
    let at_start = end.kind != Kind::Packet || (end.off == 0 && end.num.as_const() == Some(0));
    let off = i64::from(p.off);
    let far = i64::try_from(p.num.w.umax).unwrap_or(i64::MAX).saturating_add(off) > MAX_PACKET_OFFSET;
    if cond == Cond::Eq || !pair || !at_start || off <= 0 || far {
        return;
    }
    let range = (off + beyond) as u32;
    let (kind, id) = (p.kind, p.id);
    state.update(|r| r.kind == kind && r.id == id, |r| r.range = r.range.max(range));
}
