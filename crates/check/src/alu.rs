//! Arithmetic: on numbers, and the little that the verifier allows on pointers.

use bpf_isa::{AluOp, Imm64Kind, Reg, Size, Src, Width};

use crate::Stop;
use crate::program::Target;
use crate::scalar::Scalar;
use crate::state::{Kind, RegState};
use crate::walk::{Walk, bad, unsure};

/// `BPF_MAX_VAR_OFF`: pointers stay closer to their object than this.
pub(crate) const MAX_OFFSET: i64 = 1 << 29;

impl Walk<'_> {
    /// A number computed from nothing the verifier follows.
    pub(crate) fn number(&mut self, num: Scalar) -> RegState {
        RegState::scalar(num, self.values.new_value(0, 0))
    }

    pub(crate) fn mov(&mut self, width: Width, dst: Reg, src: Src) -> Result<(), Stop> {
        let new = match src {
            Src::Imm(i) => {
                let v = if width == Width::W64 { i64::from(i) as u64 } else { u64::from(i as u32) };
                self.number(Scalar::constant(v))
            }
            Src::Reg(r) => {
                let mut reg = self.read(r)?;
                match (width, reg.is_scalar()) {
                    (Width::W64, false) => reg,
                    (Width::W64, true) => self.share_id(r),
                    (Width::W32, true) => {
                        let fits = reg.num.w.umax <= u64::from(u32::MAX);
                        if fits {
                            reg = self.share_id(r);
                        } else {
                            reg.id = 0;
                        }
                        reg.num = reg.num.cast(4, false);
                        reg
                    }
                    (Width::W32, false) => self.number(Scalar::of_bytes(4)),
                }
            }
        };
        *self.state.reg_mut(dst) = new;
        Ok(())
    }

    /// A copy of a number that shares its fate at comparisons.
    fn share_id(&mut self, r: Reg) -> RegState {
        let reg = *self.state.reg(r);
        if reg.id == 0 && reg.num.as_const().is_none() {
            let id = self.fresh();
            let source = self.state.reg_mut(r);
            source.id = id;
            source.off = 0;
        }
        *self.state.reg(r)
    }

    pub(crate) fn mov_sx(&mut self, width: Width, from: Size, dst: Reg, src: Reg) -> Result<(), Stop> {
        let reg = self.read(src)?;
        let new = if reg.is_scalar() {
            let version = self.values.new_value(reg.version, 0);
            let wide = reg.num.cast(from.bytes(), true);
            RegState::scalar(if width == Width::W32 { wide.cast(4, false) } else { wide }, version)
        } else {
            self.number(if width == Width::W32 { Scalar::of_bytes(4) } else { Scalar::TOP })
        };
        *self.state.reg_mut(dst) = new;
        Ok(())
    }

    pub(crate) fn negate(&mut self, width: Width, dst: Reg) -> Result<(), Stop> {
        let reg = self.read(dst)?;
        let version = self.values.new_value(reg.version, 0);
        let num = if reg.is_scalar() { Scalar::constant(0).alu(AluOp::Sub, width, &reg.num) } else { Scalar::TOP };
        *self.state.reg_mut(dst) = RegState::scalar(num, version);
        Ok(())
    }

    pub(crate) fn swap(&mut self, bits: u8, dst: Reg) -> Result<(), Stop> {
        let reg = self.read(dst)?;
        let version = self.values.new_value(reg.version, 0);
        *self.state.reg_mut(dst) = RegState::scalar(Scalar::of_bytes(u32::from(bits) / 8), version);
        Ok(())
    }

    pub(crate) fn load_imm64(&mut self, dst: Reg, kind: Imm64Kind, imm: u64) -> Result<(), Stop> {
        let new = match &self.p.slots[self.at].target {
            Target::None if kind == Imm64Kind::Const => self.number(Scalar::constant(imm)),
            Target::Map(map) if *map < self.p.maps.len() => RegState::pointer(Kind::Map(*map as u32)),
            Target::MapValue(map, off) if *map < self.p.maps.len() => {
                if self.p.maps[*map].kind != 2 {
                    return bad("direct value access on a map that is no array");
                }
                if *off >= u64::from(self.p.maps[*map].value_size) {
                    return bad("direct value offset is beyond the map value");
                }
                let kind = Kind::MapValue { map: *map as u32, inner: false };
                RegState { off: *off as i32, ..RegState::pointer(kind) }
            }
            Target::Func(slot) => RegState::pointer(Kind::Func(*slot as u32)),
            Target::Unknown(what) => return unsure(format!("nothing is known of {what}")),
            _ => return bad("fd is not pointing to valid bpf_map"),
        };
        *self.state.reg_mut(dst) = new;
        Ok(())
    }

    pub(crate) fn alu(&mut self, op: AluOp, width: Width, dst: Reg, src: Src) -> Result<(), Stop> {
        let a = self.read(dst)?;
        let b = match src {
            Src::Reg(r) => self.read(r)?,
            Src::Imm(i) => RegState::scalar(
                Scalar::constant(if width == Width::W64 { i64::from(i) as u64 } else { u64::from(i as u32) }),
                0,
            ),
        };
        let new = match (a.is_scalar(), b.is_scalar()) {
            (true, true) => {
                let version = self.values.new_value(a.version, b.version);
                let mut new = RegState::scalar(a.num.alu(op, width, &b.num), version);
                // `r1 = r0; r1 += 4` stays tied to r0.
                if let (AluOp::Add, Width::W64, Src::Imm(by)) = (op, width, src)
                    && a.id != 0
                    && new.num.as_const().is_none()
                    && let Some(off) = a.off.checked_add(by)
                {
                    (new.id, new.off) = (a.id, off);
                }
                new
            }
            (false, false) if op == AluOp::Sub => self.number(Scalar::TOP),
            (false, false) => {
                return bad(format!("R{} pointer {} pointer prohibited", dst.index(), symbol(op)));
            }
            (false, true) => {
                self.values.need(b.version);
                self.pointer_arithmetic(op, width, dst, &a, &b, false)?
            }
            (true, false) => {
                self.values.need(a.version);
                self.pointer_arithmetic(op, width, dst, &b, &a, true)?
            }
        };
        *self.state.reg_mut(dst) = new;
        Ok(())
    }

    /// `p op n`, or `n op p` if `swapped`.
    fn pointer_arithmetic(
        &mut self,
        op: AluOp,
        width: Width,
        dst: Reg,
        p: &RegState,
        n: &RegState,
        swapped: bool,
    ) -> Result<RegState, Stop> {
        let d = dst.index();
        let name = p.describe();
        if width == Width::W32 {
            if op == AluOp::Sub {
                return Ok(self.number(Scalar::of_bytes(4)));
            }
            return bad(format!("R{d} 32-bit pointer arithmetic prohibited"));
        }
        if p.or_null {
            return bad(format!("R{d} pointer arithmetic on {name} prohibited, null-check it first"));
        }
        let constant = n.num.w.as_signed_const();
        match p.kind {
            Kind::Map(_) | Kind::InnerMap(_) if constant == Some(0) && op == AluOp::Add => return Ok(*p),
            Kind::FlowKeys if constant.is_some() => {}
            Kind::Map(_) | Kind::InnerMap(_) | Kind::PacketEnd | Kind::Sock(_) | Kind::FlowKeys => {
                return bad(format!("R{d} pointer arithmetic on {name} prohibited"));
            }
            _ => {}
        }
        self.sane(p, &n.num, &name)?;
        let mut new = *p;
        match op {
            AluOp::Add => match constant.and_then(|c| i32::try_from(i64::from(p.off) + c).ok()) {
                Some(off) => new.off = off,
                None => {
                    new.num = p.num.alu(AluOp::Add, Width::W64, &n.num);
                    if p.is_packet() {
                        (new.id, new.range) = (self.fresh(), 0);
                    }
                }
            },
            AluOp::Sub => {
                if swapped {
                    return bad(format!("R{d} tried to subtract pointer from scalar"));
                }
                if matches!(p.kind, Kind::Stack(_)) {
                    return bad(format!("R{d} subtraction from stack pointer prohibited"));
                }
                match constant.and_then(|c| i32::try_from(i64::from(p.off) - c).ok()) {
                    Some(off) => new.off = off,
                    None => {
                        new.num = p.num.alu(AluOp::Sub, Width::W64, &n.num);
                        if p.is_packet() {
                            new.id = self.fresh();
                            // Subtracting a number that may be negative goes forward.
                            if n.num.w.smin < 0 {
                                new.range = 0;
                            }
                        }
                    }
                }
            }
            AluOp::And | AluOp::Or | AluOp::Xor => {
                return bad(format!("R{d} bitwise operator {} on pointer prohibited", symbol(op)));
            }
            _ => return bad(format!("R{d} pointer arithmetic with {} operator prohibited", symbol(op))),
        }
        self.sane(&new, &new.num, &name)?;
        Ok(new)
    }

    /// Refuses pointers far away from what they point into.
    fn sane(&self, p: &RegState, num: &Scalar, name: &str) -> Result<(), Stop> {
        if let Some(c) = num.w.as_signed_const()
            && (c >= MAX_OFFSET || c <= -MAX_OFFSET)
        {
            return bad(format!("math between {name} pointer and {c} is not allowed"));
        }
        if i64::from(p.off).abs() >= MAX_OFFSET {
            return bad(format!("{name} pointer offset {} is not allowed", p.off));
        }
        if num.w.smin == i64::MIN {
            return bad(format!("math between {name} pointer and register with unbounded min value is not allowed"));
        }
        if num.w.smin >= MAX_OFFSET || num.w.smin <= -MAX_OFFSET {
            return bad(format!("value {} makes {name} pointer be out of bounds", num.w.smin));
        }
        Ok(())
    }
}

fn symbol(op: AluOp) -> &'static str {
    match op {
        AluOp::Add => "+=",
        AluOp::Sub => "-=",
        AluOp::Mul => "*=",
        AluOp::Div => "/=",
        AluOp::SDiv => "s/=",
        AluOp::Mod => "%=",
        AluOp::SMod => "s%=",
        AluOp::Or => "|=",
        AluOp::And => "&=",
        AluOp::Xor => "^=",
        AluOp::Lsh => "<<=",
        AluOp::Rsh => ">>=",
        AluOp::Arsh => "s>>=",
    }
}
