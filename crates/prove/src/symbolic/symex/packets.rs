//! Legacy packet loads: what they find, and how long the packet has to be for the program to go on.
//!
//! A legacy load whose bytes are not all there ends the function with 0 (`bpf_gen_ld_abs` in net/core/filter.c). It finds them
//! if the packet can be read up to the last of them: behind the linear part `skb_copy_bits` (net/core/skbuff.c) asks for that
//! and for nothing else, and a part that cannot be read is its end. So all that can be noticed of the loads between two things
//! that others notice is how far the farthest of them reaches. That length is kept as a number
//! ([`SymbolicState::reach`](crate::symbolic::state::SymbolicState::reach)) until something may be noticed that would not
//! happen if the program had ended; then it becomes part of the history. What is found are bytes, each with a name of its own,
//! whatever the width of the load.
//!
//! So it is with offsets in the packet. Negative ones mean other places (`bpf_skb_load_helper_convert_offset`): a load whose
//! offset may be one is an event, and equal only to a load of the same kind.

use bpf_isa::Size;

use super::{Stop, Sym};
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::{Meaning, VarKey};
use crate::term::TermId;

/// Offsets up to here are in the packet, and no sum of one and a width of some bytes overflows an `int`.
const FARTHEST: u64 = 1 << 30;

/// That a length which the packet is known to have is one that a load can have asked for.
pub(crate) fn is_reach(cx: &mut Context, length: TermId) -> TermId {
    let beyond = cx.terms.constant(64, FARTHEST + 5);
    cx.terms.ult(length, beyond)
}

/// The greater of two lengths that loads have asked for.
fn farther(cx: &mut Context, a: TermId, b: TermId) -> TermId {
    let ((base, k), (other, n)) = (cx.terms.split_offset(a), cx.terms.split_offset(b));
    if base == other {
        // Both are lengths, so their distance is that of the constants.
        return if n.wrapping_sub(k) > 0 { b } else { a };
    }
    if cx.terms.as_const(a) == Some(0) {
        return b;
    }
    let less = cx.terms.ult(a, b);
    cx.terms.ite(less, b, a)
}

impl Sym<'_, '_> {
    pub(super) fn packet_load(&mut self, size: Size, index: Option<&TermId>, imm: i32) -> Result<(), Stop> {
        let offset = self.load_offset(index.copied(), imm);
        let low = self.cx.terms.extract(offset, 0, 32);
        let int = self.cx.terms.zext(low, 64);
        let value = match [offset, int].into_iter().find(|o| self.is_in_packet(*o)) {
            Some(offset) => self.packet_bytes(size, offset),
            None => {
                let mems = self.outside();
                let id = self.event(EventKind::LegacyLoad(size.bytes()), vec![self.state.regs[6], low], mems);
                self.clobber(id);
                self.cx.var(VarKey::Written(id, 0, 0), size.bits(), Meaning::Scalar)
            }
        };
        self.state.regs[0] = self.cx.terms.zext(value, 64);
        Ok(())
    }

    /// The offset of a legacy load. The kernel makes a call of both forms, with a sum of 64 bits of which the helper takes an
    /// `int` (`bpf_gen_ld_abs`, `bpf_skb_load_helper_32_no_cache` in net/core/filter.c).
    pub(crate) fn load_offset(&mut self, index: Option<TermId>, imm: i32) -> TermId {
        match index {
            Some(index) => self.cx.terms.add_const(index, imm.into()),
            None => self.cx.terms.constant(64, i64::from(imm) as u64),
        }
    }

    /// Whether an offset surely is one in the packet of the context.
    fn is_in_packet(&mut self, offset: TermId) -> bool {
        if self.cx.lookup(&VarKey::CtxPointer) != Some(self.state.regs[6]) {
            return false;
        }
        let farthest = self.cx.terms.constant(64, FARTHEST);
        let beyond = self.cx.terms.ult(farthest, offset);
        matches!(self.cx.check_sat(self.guard, &[beyond]), SatResult::Unsat)
    }

    fn packet_bytes(&mut self, size: Size, offset: TermId) -> TermId {
        // Two loads find the same in the same place if nothing has happened between that may change the packet.
        let mems = self.outside();
        let (packet, first) = self.cx.packet_place(self.state.world, mems, offset, self.guard);
        let byte = |i: i64| VarKey::PacketByte(packet, first.wrapping_add(i));
        // In the order of the network, the last byte the lowest, whatever the machine's.
        let bytes: Vec<TermId> =
            (0..i64::from(size.bytes())).rev().map(|i| self.cx.var(byte(i), 8, Meaning::Scalar)).collect();
        let end = self.cx.terms.add_const(offset, size.bytes().into());
        self.state.reach = farther(self.cx, self.state.reach, end);
        // It is a call in what the kernel makes of the program: no read of shared memory is merged across it.
        self.state.recent = None;
        self.clobber_apart();
        self.cx.terms.concat(&bytes)
    }

    /// Before something that others may notice: that it happens says how long the packet is.
    pub(super) fn settle_reach(&mut self) {
        let reach = self.state.reach;
        if self.cx.terms.as_const(reach) == Some(0) {
            return;
        }
        self.state.reach = self.cx.terms.constant(64, 0);
        let mems = self.outside();
        self.event(EventKind::PacketReach, vec![reach], mems);
    }
}
