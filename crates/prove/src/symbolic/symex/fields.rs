//! The context: cells that the verifier translates, and bytes where it does not.

use bpf_isa::Size;
use bpf_program::{FieldKind, access_matters, ctx_field};

use super::{Side, Stop, Sym};
use crate::symbolic::access::{Exact, Reason};
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::TermId;

impl<'c, 'e> Sym<'c, 'e> {
    pub(super) fn ctx_load(&mut self, off: i64, size: Size) -> Result<TermId, Stop> {
        let n = size.bytes();
        if access_matters(self.kind, off, n) {
            if self.asks_only {
                return Err(Stop::Unmodelled("a read of the context that changes the meaning of others".into()));
            }
            let args = vec![self.state.ctx_version];
            let id = self.event(EventKind::CtxRead(off, n), args, vec![]);
            return Ok(self.cx.var(VarKey::Written(id, 0, 0), n * 8, Meaning::Scalar));
        }
        let field = ctx_field(self.kind, off);
        // Not every kernel has every field, so that a program may first ask which it is: where the old side does not read
        // the field, the verifier may never have come.
        let place = field.map_or(off, |f| f.offset.into());
        let whole = field.is_some_and(|f| off == i64::from(f.offset) && n == f.size);
        let is_read_again = whole && self.cx.data_read_before && field.is_some_and(|f| f.kind == FieldKind::PacketData);
        if self.side == Side::Old || !is_read_again {
            let private = self.cx.region_id(&MemoryRegion::CtxBytes);
            let pointer = self.cx.var(VarKey::CtxPointer, 64, Meaning::Pointer(MemoryRegion::Ctx));
            self.record(private, pointer, place, &[pointer], false);
        }
        let Some(field) = field else { return Ok(self.ctx_unknown(off, n)) };
        let inside = off.saturating_add(i64::from(n)) <= i64::from(field.offset + field.size);
        let packet = |s: &mut Self, r: MemoryRegion| {
            let v = s.state.packet_version;
            Ok(s.cx.var(VarKey::PacketPointer(off, v), 64, Meaning::Pointer(r)))
        };
        match field.kind {
            FieldKind::PacketData if whole => packet(self, MemoryRegion::Packet),
            FieldKind::PacketMeta if whole => packet(self, MemoryRegion::Packet),
            FieldKind::PacketEnd if whole => packet(self, MemoryRegion::PacketEnd),
            FieldKind::Scalar { narrow: true } if inside => {
                let full = self.ctx_cell(i64::from(field.offset), field.size, Meaning::Scalar);
                // `bpf_ctx_narrow_access_offset` in include/linux/filter.h.
                let at = (off - i64::from(field.offset)) as u32;
                Ok(self.cx.terms.extract(full, self.env.byte_order.bit(at, n, field.size), n * 8))
            }
            FieldKind::Scalar { .. } if whole => Ok(self.ctx_cell(off, n, Meaning::Scalar)),
            FieldKind::Pointer if whole => Ok(self.ctx_cell(off, n, Meaning::Pointer(MemoryRegion::Kernel))),
            _ => Ok(self.ctx_unknown(off, n)),
        }
    }

    /// A read of a field that others may change: it is made as often as before, and in its place.
    pub(super) fn ctx_read(&mut self, base: TermId, off: i64, size: Size) -> Result<TermId, Stop> {
        // Nothing is known of a field that the table does not describe: it may be a packet pointer.
        let region = if ctx_field(self.kind, off).is_some() { MemoryRegion::Kernel } else { MemoryRegion::Unknown };
        let exact = Exact { size: size.bytes(), sees: vec![], droppable: true, reason: Reason::Translated };
        Ok(self.shared_access(&region, base, off, &[None], Some(exact))?[0])
    }

    /// A field of which nothing is known: four bytes of it may be a pointer of eight.
    fn ctx_unknown(&mut self, off: i64, n: u32) -> TermId {
        let v = self.state.ctx_version;
        let bits = if n == 4 { 64 } else { n * 8 };
        self.cx.var(VarKey::CtxField(off, n, v), bits, Meaning::Unknown)
    }

    fn ctx_cell(&mut self, off: i64, bytes: u32, meaning: Meaning) -> TermId {
        let v = self.state.ctx_version;
        self.cx.var(VarKey::CtxField(off, bytes, v), bytes * 8, meaning)
    }

    pub(super) fn ctx_bytes(&self, off: i64, n: u32) -> bool {
        (0..i64::from(n))
            .all(|i| ctx_field(self.kind, off.wrapping_add(i)).is_some_and(|f| f.kind == FieldKind::Memory))
    }
}
