//! The operations of the instruction semantics, as terms.

use bpf_semantics::Domain;

use super::Sym;
use crate::term::TermId;

impl Domain for Sym<'_, '_> {
    type V = TermId;
    type B = TermId;

    fn constant(&mut self, bits: u32, v: u64) -> TermId {
        self.cx.terms.constant(bits, v)
    }
    fn add(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.add(*a, *b)
    }
    fn sub(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.sub(*a, *b)
    }
    fn mul(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.mul(*a, *b)
    }
    fn udiv(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.udiv(*a, *b)
    }
    fn urem(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.urem(*a, *b)
    }
    fn sdiv(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.sdiv(*a, *b)
    }
    fn srem(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.srem(*a, *b)
    }
    fn and(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.and(*a, *b)
    }
    fn or(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.or(*a, *b)
    }
    fn xor(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.xor(*a, *b)
    }
    fn shl(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.shl(*a, *b)
    }
    fn lshr(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.lshr(*a, *b)
    }
    fn ashr(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ashr(*a, *b)
    }
    fn extract(&mut self, a: &TermId, lo: u32, bits: u32) -> TermId {
        self.cx.terms.extract(*a, lo, bits)
    }
    fn zext(&mut self, a: &TermId, bits: u32) -> TermId {
        // A 32-bit context field may be a 64-bit packet pointer: it is that wide already.
        if self.cx.terms.width(*a) >= bits { *a } else { self.cx.terms.zext(*a, bits) }
    }
    fn sext(&mut self, a: &TermId, bits: u32) -> TermId {
        self.cx.terms.sext(*a, bits)
    }
    fn concat(&mut self, high: &TermId, low: &TermId) -> TermId {
        self.cx.terms.concat(&[*low, *high])
    }
    fn ite(&mut self, c: &TermId, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ite(*c, *a, *b)
    }
    fn eq(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.eq(*a, *b)
    }
    fn ult(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.ult(*a, *b)
    }
    fn slt(&mut self, a: &TermId, b: &TermId) -> TermId {
        self.cx.terms.slt(*a, *b)
    }
    fn not(&mut self, a: &TermId) -> TermId {
        self.cx.terms.not(*a)
    }
}
