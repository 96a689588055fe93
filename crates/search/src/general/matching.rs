//! Whether a general rule fits a window, and what it makes of it.
//!
//! The order of facts: `a` implies `b` where every state that `a` describes is one that `b` describes.
//! One trap: a register of which nothing is known does not point into the frame unless the frame's
//! address has leaked (see [`bpf_facts::State`]), so "nothing known" is implied by any value *but* a
//! pointer to the frame. Pointers to the context are left out with it: the context is not memory.

use bpf_facts::{BaseId, Kind, Num, Region, State, Value};
use bpf_isa::{Reg, RegSet};
use bpf_program::{Op, ProgKind};

use super::{Condition, Expr, General, blank, immediate, mentioned};
use crate::canonical::WindowKey;

/// Values tried for parameters that the code does not tell.
const HIDDEN: i64 = 64;

/// Registers that only the new code mentions, at most: every choice of the window's is tried.
const MOST_FOREIGN: usize = 3;

impl General {
    /// The replacement of a window of this form, if the rule fits it.
    pub fn instance(&self, q: &WindowKey) -> Option<Vec<Op>> {
        let p = &self.window;
        let alike = p.cpu <= q.cpu && p.goal == q.goal && p.kind == q.kind && p.old.len() == q.old.len();
        if !alike || q.frame_leaked && !p.frame_leaked {
            return None;
        }
        let params = self.told_by_code(q)?;
        if !q.live.stack.minus(&p.live.stack).is_empty() {
            return None;
        }
        let own = mentioned(&p.old);
        let foreign = self.foreign(own);
        if foreign.len() > MOST_FOREIGN {
            return None;
        }
        let theirs: Vec<Reg> = q.regs.iter().map(|(r, _)| *r).filter(|r| !own.contains(*r)).collect();
        let before = q.before();
        each_choice(&theirs, foreign.len(), &mut Vec::new(), &mut |chosen| {
            let name = |r: Reg| foreign.iter().position(|f| *f == r).map_or(r, |i| chosen[i]);
            let back = |r: Reg| chosen.iter().position(|c| *c == r).map_or(r, |i| foreign[i]);
            let written = self.with.iter().fold(RegSet::EMPTY, |s, (o, _)| s.union(o.insn.defs()));
            // A register that only the new code mentions must be one that it may overwrite.
            let live = q.live.regs.iter().all(|r| {
                let r = back(r);
                p.live.regs.contains(r) || !own.contains(r) && !written.contains(r)
            });
            if !live || !self.implied(&before, q, &name, own) {
                return None;
            }
            let mut params = params.clone();
            self.told_by_registers(&before, &name, &mut params)?;
            let params = self.hidden(&mut params, &before, &name)?;
            let new = self.replacement(&params)?;
            Some(new.into_iter().map(|o| Op { insn: o.insn.map_regs(name), ..o }).collect())
        })
    }

    /// What the parameters are according to the code; `None` if the code is another.
    fn told_by_code(&self, q: &WindowKey) -> Option<Vec<Option<i64>>> {
        let mut params = vec![None; self.conditions.len()];
        for ((mine, theirs), site) in self.window.old.iter().zip(&q.old).zip(&self.sites) {
            if mine.link != theirs.link {
                return None;
            }
            let Some(i) = site else {
                if mine.insn != theirs.insn {
                    return None;
                }
                continue;
            };
            if mine.insn != blank(&theirs.insn) {
                return None;
            }
            let (value, _) = immediate(&theirs.insn)?;
            let param = params.get_mut(usize::from(*i))?;
            if param.is_some_and(|v| v != value) {
                return None;
            }
            *param = Some(value);
        }
        Some(params)
    }

    /// Registers of the rule that its old code does not mention.
    fn foreign(&self, own: RegSet) -> Vec<Reg> {
        let mut all = mentioned(self.with.iter().map(|(o, _)| o));
        self.window.regs.iter().map(|(r, _)| *r).chain(self.held.iter().map(|(r, _)| *r)).for_each(|r| all.insert(r));
        all.minus(own).without(Reg::R10).iter().collect()
    }

    /// Parameters that only a register tells.
    fn told_by_registers(&self, before: &State, name: &dyn Fn(Reg) -> Reg, params: &mut [Option<i64>]) -> Option<()> {
        for (r, e) in &self.held {
            if let Expr::Param(i) = e {
                let value = number_in(before, name(*r))?;
                params.get_mut(usize::from(*i))?.get_or_insert(value);
            }
        }
        Some(())
    }

    /// Finds parameters that nothing tells by trying; `None` if the conditions do not hold.
    fn hidden(
        &self,
        params: &mut Vec<Option<i64>>,
        before: &State,
        name: &dyn Fn(Reg) -> Reg,
    ) -> Option<Vec<Option<i64>>> {
        let unknown = (0..params.len()).find(|i| params[*i].is_none());
        let Some(i) = unknown else {
            return self.conditions_hold(params, before, name).then(|| params.clone());
        };
        match &self.conditions[i] {
            Condition::In(lo, hi) if hi.checked_sub(*lo).is_some_and(|n| n < HIDDEN) => {
                // There is at most one: `check` sees to it.
                for v in *lo..=*hi {
                    params[i] = Some(v);
                    if let Some(found) = self.hidden(params, before, name) {
                        return Some(found);
                    }
                    params[i] = None;
                }
                None
            }
            Condition::Is(e) => {
                params[i] = Some(e.eval(params)?);
                let found = self.hidden(params, before, name);
                params[i] = None;
                found
            }
            Condition::In(..) => None,
        }
    }

    fn conditions_hold(&self, params: &[Option<i64>], before: &State, name: &dyn Fn(Reg) -> Reg) -> bool {
        let conditions = self.conditions.iter().zip(params).all(|(c, v)| match (c, v) {
            (Condition::In(lo, hi), Some(v)) => (lo..=hi).contains(&v),
            (Condition::Is(e), Some(v)) => e.eval(params) == Some(*v),
            (_, None) => false,
        });
        conditions
            && self.held.iter().all(|(r, e)| number_in(before, name(*r)).is_some_and(|v| e.eval(params) == Some(v)))
    }

    /// Whether what is known at the window implies what the rule assumes.
    fn implied(&self, before: &State, q: &WindowKey, name: &dyn Fn(Reg) -> Reg, own: RegSet) -> bool {
        let p = &self.window;
        let mine = p.before();
        let context = p.kind != ProgKind::Other;
        let mut bases = Bases { leaked: p.frame_leaked, context, known: Vec::new() };
        let held = |r: Reg| self.held.iter().any(|(h, _)| *h == r);
        let foreign = self.foreign(own);
        let regs = own.iter().filter(|r| *r != Reg::R10).chain(foreign.iter().copied());
        for r in regs {
            if !held(r) && !bases.implies(before.reg(name(r)), mine.reg(r)) {
                return false;
            }
        }
        // Pieces of the frame: what the rule assumes, and that no pointer to the frame lies where it assumes none.
        let assumed = p.stack.iter().all(|(off, v)| {
            let theirs = before.stack_bytes(*off, v.num.bits / 8);
            let theirs =
                if v.num.bits == 64 { theirs } else { Value { num: theirs.num.truncate(v.num.bits), ..theirs } };
            bases.implies(&theirs, v)
        });
        let spilled = |v: &Value| matches!(v.region(), Some(Region::Stack | Region::Ctx));
        let alone = q.stack.iter().filter(|(_, v)| spilled(v) && !p.frame_leaked);
        assumed && alone.into_iter().all(|(off, v)| p.stack.iter().any(|(o, w)| o == off && w.region() == v.region()))
    }
}

/// The number that a register surely holds.
fn number_in(before: &State, r: Reg) -> Option<i64> {
    let v = before.reg(r);
    (v.kind == Kind::Scalar).then(|| v.num.as_const()).flatten().map(|v| v as i64)
}

/// Calls `f` with every way to choose `n` different registers, until it gives something.
fn each_choice<T>(from: &[Reg], n: usize, chosen: &mut Vec<Reg>, f: &mut impl FnMut(&[Reg]) -> Option<T>) -> Option<T> {
    if chosen.len() == n {
        return f(chosen);
    }
    for r in from {
        if !chosen.contains(r) {
            chosen.push(*r);
            let found = each_choice(from, n, chosen, f);
            chosen.pop();
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Which base of the window a base of the rule is, and how far it lies from it.
struct Bases {
    /// Whether the rule takes the frame's address for known to anybody.
    leaked: bool,
    /// Whether the context is in sight, which says where the packet begins.
    context: bool,
    known: Vec<((Region, BaseId), BaseId, i64)>,
}

impl Bases {
    /// Whether every value that `a`, of the window, describes is one that `b`, of the rule, describes.
    fn implies(&mut self, a: &Value, b: &Value) -> bool {
        match &b.kind {
            Kind::Unknown => {
                let special = matches!(a.region(), Some(Region::Stack | Region::Ctx));
                (!special || self.leaked && a.is_stack()) && includes(&b.num, &a.bits())
            }
            Kind::Scalar => a.kind == Kind::Scalar && includes(&b.num, &a.num),
            Kind::Pointer { region, base, nullable } => {
                let Kind::Pointer { region: r, base: c, nullable: n } = &a.kind else { return false };
                if r != region || *n && !nullable {
                    return false;
                }
                if *base == BaseId::Unknown || *nullable {
                    return (*base == BaseId::Unknown || self.base(region, *base, *c, 0).is_some())
                        && includes(&b.num, &a.num);
                }
                let apart = match (a.num.as_const(), b.num.as_const()) {
                    (Some(x), Some(y)) if self.movable(region) => x.wrapping_sub(y) as i64,
                    _ => 0,
                };
                let Some(apart) = self.base(region, *base, *c, apart) else { return false };
                includes(&b.num, &a.num.sub(&Num::constant(64, apart as u64)))
            }
        }
    }

    /// How far the rule's base lies from the window's: as it was found first.
    fn base(&mut self, region: &Region, mine: BaseId, theirs: BaseId, apart: i64) -> Option<i64> {
        let fixed = matches!(mine, BaseId::Fixed) || matches!(theirs, BaseId::Fixed);
        if !theirs.same(theirs) || fixed && mine != theirs || apart % 8 != 0 {
            return None;
        }
        let known = self.known.iter().find(|((r, b), ..)| r == region && *b == mine);
        if let Some((_, base, apart)) = known {
            return (*base == theirs).then_some(*apart);
        }
        // Different bases of the rule are different ones of the window.
        if self.known.iter().any(|((r, _), base, _)| r == region && *base == theirs) {
            return None;
        }
        self.known.push(((region.clone(), mine), theirs, apart));
        Some(apart)
    }

    /// Whether a rule about such memory holds a multiple of eight bytes further on as well.
    fn movable(&self, region: &Region) -> bool {
        match region {
            Region::Packet => !self.context,
            Region::MapValue { .. } | Region::AnyMapValue | Region::Mem | Region::Kernel => true,
            _ => false,
        }
    }
}

/// Whether every number of `a` is one of `b`.
pub(crate) fn includes(b: &Num, a: &Num) -> bool {
    a.bits == b.bits
        && a.tnum.mask & !b.tnum.mask == 0
        && a.tnum.value & !b.tnum.mask == b.tnum.value
        && a.umin >= b.umin
        && a.umax <= b.umax
        && a.smin >= b.smin
        && a.smax <= b.smax
}
