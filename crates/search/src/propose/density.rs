//! How likely a proposal is, forwards and back: the Hastings ratio (paper §3.3, equation 3).
//!
//! Each rule draws from the pool, so the probability of a change is a sum over the rules that make it, each a product of what they
//! draw ([`Pool::instruction`], `other_operand`, `exchanged`, read as densities here). Not counted is that the rule for two
//! neighbours may change one of them only. Windows with side exits, and operations that change places, are taken for symmetric.

use bpf_isa::{AluOp, AtomicOp, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::Op;

use super::Pool;
use crate::settings::Rules;
use crate::window::NOP;

/// How likely `x` is drawn from a list.
fn among<T: PartialEq>(list: &[T], x: &T) -> f64 {
    list.iter().filter(|y| *y == x).count() as f64 / list.len().max(1) as f64
}

fn is_shift(op: AluOp) -> bool {
    matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh)
}

impl Pool {
    /// The logarithm of tr(new → old) / tr(old → new), where `ops` is what the last proposal has made; minus infinity if no single
    /// proposal leads back.
    pub fn log_ratio(&self, ops: &[Op], rules: &Rules) -> f64 {
        if self.superblock {
            return 0.0;
        }
        let (forward, back) = match &self.undo[..] {
            [(at, old)] => {
                let last = at + 1 == ops.len();
                (self.single(old, &ops[*at], rules, last), self.single(&ops[*at], old, rules, last))
            }
            [(a, old_a), (b, old_b)] if *b == a + 1 && old_a.link.is_none() && old_b.link.is_none() => {
                let of = |x: &Op, y: &Op| rules.contiguous * self.replaced_by(x) * self.replaced_by(y);
                (of(&ops[*a], &ops[*b]), of(old_a, old_b))
            }
            _ => return 0.0,
        };
        if forward <= 0.0 { 0.0 } else { (back / forward).ln() }
    }

    /// Of the one operation `old` becoming `new`; `last`: no operation is behind it.
    fn single(&self, old: &Op, new: &Op, rules: &Rules, last: bool) -> f64 {
        let replace = if old.link.is_some() { 0.0 } else { self.replaced_by(new) };
        let mut p = rules.instruction * replace;
        if last {
            p += rules.contiguous * replace;
        }
        if new.insn == NOP {
            p += rules.nop;
        }
        if old.link.is_none() && new.link.is_none() {
            p += rules.operand * self.operand_density(old.insn, new.insn);
            p += rules.exchange1 * self.exchange_density(old.insn, new.insn, true);
            p += rules.exchange2 * self.exchange_density(old.insn, new.insn, false);
        }
        p
    }

    /// Of `new` as what `replace` draws.
    fn replaced_by(&self, new: &Op) -> f64 {
        let linked = if self.linked.is_empty() { 0.0 } else { 0.125 };
        match new.link {
            Some(_) => linked / self.linked.len().max(1) as f64,
            None => (1.0 - linked) * self.density(new.insn),
        }
    }

    fn p_target(&self, r: Reg) -> f64 {
        among(&self.targets, &r)
    }

    fn p_source(&self, r: Reg) -> f64 {
        among(&self.sources, &r)
    }

    fn p_operand(&self, s: Src) -> f64 {
        0.5 * self.p_same_type(s)
    }

    fn p_same_type(&self, s: Src) -> f64 {
        match s {
            Src::Reg(r) => self.p_source(r),
            Src::Imm(k) => among(&self.constants, &k),
        }
    }

    fn p_width(&self, w: Width) -> f64 {
        match (self.cpu >= 3, w) {
            (true, _) => 0.5,
            (false, Width::W64) => 1.0,
            (false, Width::W32) => 0.0,
        }
    }

    fn p_alu(&self, op: AluOp, s: Src) -> f64 {
        match (is_shift(op), s) {
            (true, Src::Imm(k)) => 5.0 / 6.0 * among(&self.amounts, &k),
            (true, Src::Reg(r)) => self.p_source(r) / 6.0,
            _ => self.p_operand(s),
        }
    }

    /// Of a new instruction.
    fn density(&self, i: Insn) -> f64 {
        let memory = if self.places.is_empty() { 0.0 } else { 1.0 };
        let place = |base: Reg, off: i16| among(&self.places, &(base, off));
        match i {
            _ if i == NOP => 0.0,
            Insn::Alu { op, width, dst, src } => {
                let more = f64::from(u8::from(self.wide.is_empty())) + 8.0 * (1.0 - memory);
                let own = self.p_width(width) * self.p_target(dst) * self.p_alu(op, src);
                (7.0 + more) / 20.0 * among(&self.alu, &op) * own
            }
            Insn::Mov { width, dst, src } => {
                3.0 / 20.0 * self.p_width(width) * self.p_target(dst) * self.p_operand(src)
            }
            Insn::Neg { width, dst } => self.p_width(width) * self.p_target(dst) / 60.0,
            Insn::MovSx { width, from, dst, src } => {
                let width = match (from, width) {
                    (Size::W, Width::W64) => 1.0,
                    (Size::W, _) => 0.0,
                    _ => self.p_width(width),
                };
                width / 3.0 * self.p_target(dst) * self.p_source(src) / 60.0
            }
            Insn::Endian { dst, .. } => self.p_target(dst) / 540.0,
            Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm } => self.p_target(dst) * among(&self.wide, &imm) / 20.0,
            Insn::Load { size, sext, dst, base, off } => {
                let sext = match (self.cpu >= 4 && size != Size::DW, sext) {
                    (true, true) => 0.25,
                    (true, false) => 0.75,
                    (false, s) => f64::from(u8::from(!s)),
                };
                memory * 4.0 / 20.0 * place(base, off) * 0.25 * sext * self.p_target(dst)
            }
            Insn::Store { base, off, src, .. } => memory * 3.0 / 20.0 * place(base, off) * 0.25 * self.p_operand(src),
            Insn::Atomic { op: AtomicOp::Add { fetch: false }, base, off, src, .. } => {
                memory / 20.0 * place(base, off) * 0.5 * self.p_source(src)
            }
            _ => 0.0,
        }
    }

    /// Of an instruction with another operand.
    fn operand_density(&self, old: Insn, new: Insn) -> f64 {
        let same = |b: bool, p: f64| if b { 0.5 * p } else { 0.0 };
        let kind = |a: Src, b: Src| matches!((a, b), (Src::Reg(_), Src::Reg(_)) | (Src::Imm(_), Src::Imm(_)));
        match (old, new) {
            (Insn::Alu { op, width, dst, src }, Insn::Alu { op: o, width: w, dst: d, src: s })
                if (op, width) == (o, w) =>
            {
                let value = match s {
                    Src::Imm(k) if is_shift(op) => among(&self.amounts, &k),
                    _ => self.p_same_type(s),
                };
                same(src == s, self.p_target(d)) + same(dst == d && kind(src, s), value)
            }
            (Insn::Mov { width, dst, src }, Insn::Mov { width: w, dst: d, src: s }) if width == w => {
                same(src == s, self.p_target(d)) + same(dst == d && kind(src, s), self.p_same_type(s))
            }
            (Insn::MovSx { width, from, dst, src }, Insn::MovSx { width: w, from: f, dst: d, src: s })
                if (width, from) == (w, f) =>
            {
                same(src == s, self.p_target(d)) + same(dst == d, self.p_source(s))
            }
            (Insn::Neg { width, .. }, Insn::Neg { width: w, dst }) if width == w => self.p_target(dst),
            (Insn::Endian { kind, bits, .. }, Insn::Endian { kind: k, bits: b, dst }) if (kind, bits) == (k, b) => {
                self.p_target(dst)
            }
            (Insn::LoadImm64 { dst, kind, imm }, Insn::LoadImm64 { dst: d, kind: k, imm: i }) if kind == k => {
                same(imm == i, self.p_target(d)) + same(dst == d, among(&self.wide, &i))
            }
            (Insn::Load { size, sext, dst, base, off }, Insn::Load { size: z, sext: x, dst: d, base: b, off: o })
                if (size, sext) == (z, x) =>
            {
                same((base, off) == (b, o), self.p_target(d)) + same(dst == d, among(&self.places, &(b, o)))
            }
            (Insn::Store { size, base, off, src }, Insn::Store { size: z, base: b, off: o, src: s }) if size == z => {
                same((base, off) == (b, o) && kind(src, s), self.p_same_type(s))
                    + same(src == s, among(&self.places, &(b, o)))
            }
            (Insn::Atomic { op, size, base, off, .. }, Insn::Atomic { op: p, size: z, base: b, off: o, src })
                if (op, size, base, off) == (p, z, b, o) =>
            {
                0.5 * self.p_source(src)
            }
            _ => 0.0,
        }
    }

    /// Of a memory instruction with another width and value.
    fn exchange_density(&self, old: Insn, new: Insn, value: bool) -> f64 {
        let v = |same: bool, p: f64| if value { p } else { f64::from(u8::from(same)) };
        match (old, new) {
            (Insn::Load { sext, dst, base, off, .. }, Insn::Load { size, sext: x, dst: d, base: b, off: o })
                if (base, off) == (b, o) && x == (sext && size != Size::DW) =>
            {
                0.25 * v(dst == d, self.p_target(d))
            }
            (Insn::Store { base, off, src, .. }, Insn::Store { base: b, off: o, src: s, .. })
                if (base, off) == (b, o) =>
            {
                0.25 * v(src == s, self.p_operand(s))
            }
            (Insn::Atomic { op, base, off, src, .. }, Insn::Atomic { op: p, size, base: b, off: o, src: s })
                if (op, base, off) == (p, b, o) =>
            {
                let width = if size == Size::DW { 0.25 } else { 0.75 };
                width * v(src == s, self.p_source(s))
            }
            _ => 0.0,
        }
    }
}
