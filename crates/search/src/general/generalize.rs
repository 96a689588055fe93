//! From a rule about one window to a general one.
//!
//! Everything is tried and proven, nothing is deduced: parameters for the immediates, expressions that
//! give the new numbers, conditions from the weakest up. The number of proofs is bounded, and each has
//! small limits, so that a rule costs milliseconds; what is proven at the end is the rule.

use bpf_facts::Kind;
use bpf_isa::{Insn, Size, Src};
use bpf_program::Op;

use super::prover::Prover;
use super::simplify::{core, enliven, weaken};
use super::{Condition, Expr, General, MOST_PARAMS, Two, blank, immediate, mentioned, with_immediate};
use crate::canonical::WindowKey;
use crate::rules::RuleBody;

/// Proofs that looking for parameters must leave.
const RESERVE: usize = 8;
/// Expressions tried in one place, at most.
const CHOICES: usize = 6;

/// The general rule behind a rule, if there is one and it can be proven with little effort.
pub fn generalize(key: &WindowKey, answer: &RuleBody) -> Option<General> {
    let mut prover = Prover::new();
    let mut g = core(key, answer.with.as_ref()?, &answer.by, &mut prover)?;
    let new: Vec<Op> = g.with.iter().map(|(o, _)| o.clone()).collect();
    weaken(&mut g, &mut prover);
    if let Some(other) = parameters(&g, &new, &mut prover) {
        g = other;
        if !g.window.regs.is_empty() || !g.window.stack.is_empty() {
            weaken(&mut g, &mut prover);
        }
    }
    enliven(&mut g, &mut prover);
    Some(g)
}

/// A place for a parameter in the old code.
#[derive(Clone)]
struct Site {
    at: usize,
    value: i64,
    range: (i64, i64),
}

/// Which parameters there are, what they were in the rule at hand, and what must hold of them.
#[derive(Clone, Default)]
struct Plan {
    values: Vec<i64>,
    conditions: Vec<Condition>,
    /// The parameter of each site.
    sites: Vec<Option<u8>>,
}

impl Plan {
    fn known(&self) -> Vec<Option<i64>> {
        self.values.iter().map(|v| Some(*v)).collect()
    }

    /// Adds a site: to a parameter with its value if `shared`, else with one of its own.
    fn add(&mut self, i: usize, s: &Site, shared: bool) {
        let same = (0..self.values.len()).find(|k| shared && self.values[*k] == s.value);
        let k = match same {
            Some(k) => {
                if let Condition::In(lo, hi) = &mut self.conditions[k] {
                    *lo = s.range.0.max(*lo);
                    *hi = s.range.1.min(*hi);
                }
                k
            }
            None if self.values.len() < MOST_PARAMS => {
                self.values.push(s.value);
                self.conditions.push(Condition::In(s.range.0, s.range.1));
                self.values.len() - 1
            }
            None => return,
        };
        self.sites[i] = Some(k as u8);
    }

    /// Parameters in the order in which others may depend on them: amounts of shifts first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_by_key(|k| match self.conditions[*k] {
            Condition::In(lo, hi) => hi.saturating_sub(lo),
            Condition::Is(_) => i64::MAX,
        });
        order
    }

    /// Binds parameters to others where the numbers at hand suggest it, or to one that nobody sees.
    fn bind(&mut self) {
        let order = self.order();
        for (n, k) in order.iter().enumerate() {
            let free: Vec<usize> =
                order[..n].iter().copied().filter(|j| matches!(self.conditions[*j], Condition::In(..))).collect();
            let bound = free.into_iter().flat_map(|j| related(j as u8, self.values[j]));
            if let Some(e) = bound.into_iter().find(|e| e.eval(&self.known()) == Some(self.values[*k])) {
                self.conditions[*k] = Condition::Is(e);
            }
        }
    }

    /// Makes the first parameter that is a power of two or a mask one of a number of bits that nobody sees.
    fn hide(&mut self) -> bool {
        if self.values.len() == MOST_PARAMS {
            return false;
        }
        let new = self.values.len() as u8;
        for k in 0..self.values.len() {
            let v = self.values[k];
            let wide = matches!(self.conditions[k], Condition::In(lo, hi) if hi.saturating_sub(lo) > 64);
            if !wide || (-1..=1).contains(&v) {
                continue;
            }
            let bits = if v > 0 && v & (v + 1) == 0 { v.count_ones() } else { v.trailing_zeros() };
            let suggested = related(new, bits.into()).into_iter().take(4).find(|e| {
                let mut known = self.known();
                known.push(Some(bits.into()));
                e.eval(&known) == Some(v)
            });
            if let Some(e) = suggested {
                self.conditions[k] = Condition::Is(e);
                self.values.push(bits.into());
                self.conditions.push(Condition::In(0, 30));
                return true;
            }
        }
        false
    }

    /// The same with narrower ranges around the numbers at hand; step 0 changes nothing.
    fn narrowed(&self, step: usize) -> Plan {
        let mut plan = self.clone();
        for (c, v) in plan.conditions.iter_mut().zip(&self.values) {
            let Condition::In(lo, hi) = c else { continue };
            let shift = *lo == 0 && *hi < 64;
            let digits = (1i64 << (64 - v.max(&0).leading_zeros()).min(62)) - 1;
            let ladder: &[(i64, i64)] = match (shift, step) {
                (_, 0) => &[],
                (true, 1) => &[(0, 31), (32, 63)],
                (true, _) => &[(1, 31), (33, 63), (32, 63)],
                (false, 1) => &[(0, i64::MAX), (i64::MIN, -1)],
                (false, _) => &[(1, digits.max(0xff)), (0, 0xff), (i64::MIN, -1)],
            };
            if let Some((l, h)) = ladder.iter().find(|(l, h)| (l..=h).contains(&v)) {
                (*lo, *hi) = ((*lo).max(*l), (*hi).min(*h));
            }
        }
        plan
    }
}

/// What a number may have to do with parameter `k`, whose value is `v`: most likely first.
fn related(k: u8, v: i64) -> Vec<Expr> {
    let k = || Expr::Param(k);
    let c = Expr::Const;
    let half = || c(0xffff_ffff);
    let mut out = Vec::new();
    if (0..64).contains(&v) {
        let one = || Expr::two(Two::Shl, c(1), k());
        let high = || Expr::two(Two::Shl, c(-1), k());
        out.extend([
            one(),
            Expr::two(Two::Sub, one(), c(1)),
            high(),
            Expr::two(Two::And, high(), half()),
            Expr::two(Two::Shr, half(), k()),
            Expr::two(Two::Shr, c(-1), k()),
            Expr::two(Two::Sub, c(64), k()),
            Expr::two(Two::Sub, c(32), k()),
        ]);
    }
    out.push(Expr::Neg(Box::new(k())));
    out.push(Expr::Not(Box::new(k())));
    out.push(Expr::two(Two::And, k(), half()));
    out.push(Expr::two(Two::Add, k(), c(1)));
    out.push(Expr::two(Two::Sub, k(), c(1)));
    out
}

/// The rule with as many parameters as can be proven.
fn parameters(g: &General, new: &[Op], prover: &mut Prover) -> Option<General> {
    let sites: Vec<Site> = g
        .window
        .old
        .iter()
        .enumerate()
        .filter(|(_, o)| o.link.is_none())
        .filter_map(|(at, o)| immediate(&o.insn).map(|(value, range)| Site { at, value, range }))
        .collect();
    let constant = |v: &bpf_facts::Value| v.kind == Kind::Scalar && v.num.as_const().is_some();
    if sites.is_empty() && !g.window.regs.iter().any(|(_, v)| constant(v)) {
        return None;
    }
    let all = |shared: bool| {
        let mut plan = Plan { sites: vec![None; sites.len()], ..Plan::default() };
        sites.iter().enumerate().for_each(|(i, s)| plan.add(i, s, shared));
        plan
    };
    let (apart, shared) = (all(false), all(true));
    let attempt = |plan: &Plan, choices: usize, prover: &mut Prover| {
        drafts(g, new, &sites, plan).take(choices).find(|d| prover.left > RESERVE && prover.holds(d))
    };
    if apart.values.len() != shared.values.len()
        && let Some(found) = attempt(&apart, 2, prover)
    {
        return Some(found);
    }
    if let Some(found) = attempt(&shared, 4, prover) {
        return Some(found);
    }
    let mut bound = shared.clone();
    bound.bind();
    let mut hidden = bound.clone();
    let hides = hidden.hide();
    // Narrower ranges are tried before bonds between parameters, which may be accidents; then both.
    let related = bound.conditions != shared.conditions;
    let tries = [
        (Some(&shared), 1),
        (Some(&bound).filter(|_| related), 0),
        (Some(&hidden).filter(|_| hides), 0),
        (Some(&bound).filter(|_| related), 1),
        (Some(&shared), 2),
        (Some(&bound).filter(|_| related), 2),
        (Some(&hidden).filter(|_| hides), 2),
    ];
    for (plan, step) in tries {
        let Some(plan) = plan else { continue };
        if let Some(found) = attempt(&plan.narrowed(step), 2, prover) {
            return Some(widened(found, plan, prover));
        }
    }
    // Not all at once: one after the other, as far as it goes.
    let mut plan = Plan { sites: vec![None; sites.len()], ..Plan::default() };
    let mut best = None;
    for (i, s) in sites.iter().enumerate() {
        if plan.sites[i].is_some() {
            continue;
        }
        let mut more = plan.clone();
        for (j, t) in sites.iter().enumerate().skip(i) {
            if t.value == s.value {
                more.add(j, t, true);
            }
        }
        let mut bound = more.clone();
        bound.bind();
        let mut tries = vec![more.clone()];
        if more.conditions != bound.conditions {
            tries.push(bound.clone());
        }
        if bound.hide() {
            tries.push(bound);
        }
        tries.push(more.narrowed(2));
        for plans in tries {
            if let Some(found) = attempt(&plans, 1, prover) {
                best = Some(found);
                plan = plans;
                break;
            }
        }
    }
    best
}

/// Gives every parameter its full range again, where the proof allows it.
fn widened(mut g: General, plan: &Plan, prover: &mut Prover) -> General {
    for k in 0..g.conditions.len() {
        if g.conditions[k] != plan.conditions[k] && prover.left > RESERVE / 2 {
            let mut other = g.clone();
            other.conditions[k] = plan.conditions[k].clone();
            prover.keep(&mut g, other);
        }
    }
    g
}

/// General rules with the parameters of a plan, likely ones first.
fn drafts<'a>(g: &'a General, new: &'a [Op], sites: &'a [Site], plan: &'a Plan) -> impl Iterator<Item = General> + 'a {
    let choices: Vec<Vec<Option<Expr>>> =
        new.iter().map(|o| if o.link.is_none() { choices(g, o, sites, plan) } else { vec![None] }).collect();
    let most: usize = choices.iter().map(|c| c.len() - 1).sum();
    let mut base = g.clone();
    for (site, param) in sites.iter().zip(&plan.sites) {
        if param.is_some() {
            base.sites[site.at] = *param;
            base.window.old[site.at].insn = blank(&base.window.old[site.at].insn);
        }
    }
    base.conditions.clone_from(&plan.conditions);
    hold(&mut base, plan);
    // All first choices, then all in which one place takes its second, and so on.
    (0..=most.min(3)).flat_map(move |steps| {
        let mut picks = Vec::new();
        spread(&choices, steps, &mut Vec::new(), &mut picks);
        let (base, choices) = (base.clone(), choices.clone());
        picks.into_iter().map(move |pick| {
            let mut draft = base.clone();
            for (n, (o, e)) in draft.with.iter_mut().enumerate() {
                e.clone_from(&choices[n][pick[n]]);
                if e.is_some() {
                    o.insn = blank(&o.insn);
                }
            }
            draft
        })
    })
}

/// All ways to take choices whose numbers add up to `steps`.
fn spread(choices: &[Vec<Option<Expr>>], steps: usize, pick: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
    let Some(here) = choices.get(pick.len()) else {
        if steps == 0 {
            out.push(pick.clone());
        }
        return;
    };
    for n in 0..here.len().min(steps + 1) {
        pick.push(n);
        spread(choices, steps - n, pick, out);
        pick.pop();
    }
}

/// What an immediate of the new code may be.
fn choices(g: &General, o: &Op, sites: &[Site], plan: &Plan) -> Vec<Option<Expr>> {
    let Some((value, _)) = immediate(&o.insn) else { return vec![None] };
    let known = plan.known();
    let mut direct: Vec<Expr> = merged(g, o, sites, plan).into_iter().collect();
    let params = 0..plan.values.len() as u8;
    direct.extend(params.clone().map(Expr::Param));
    let small = (-1..=1).contains(&value);
    let mut further: Vec<Expr> = params.clone().flat_map(|k| related(k, plan.values[usize::from(k)])).collect();
    for i in params.clone() {
        for j in params.clone().filter(|j| *j != i) {
            for op in [Two::Sub, Two::Shr, Two::Shl] {
                further.push(Expr::two(op, Expr::Param(i), Expr::Param(j)));
            }
            if i < j {
                for op in [Two::And, Two::Add, Two::Or, Two::Xor] {
                    further.push(Expr::two(op, Expr::Param(i), Expr::Param(j)));
                }
            }
        }
    }
    let gives = |e: &Expr| e.eval(&known).and_then(|v| with_immediate(&o.insn, v)) == Some(o.insn);
    let mut likely: Vec<Option<Expr>> = direct.into_iter().filter(gives).map(Some).collect();
    let further = further.into_iter().filter(gives).map(Some).take(CHOICES - 1);
    // 0, 1 and -1 come from anywhere: that they stand for themselves is likelier than that they are computed.
    if small {
        likely.push(None);
        likely.extend(further);
    } else {
        likely.extend(further);
        likely.push(None);
    }
    likely.dedup();
    likely.truncate(CHOICES + 1);
    likely
}

/// The number that a wide store puts where the old code has stores of parameters.
fn merged(g: &General, o: &Op, sites: &[Site], plan: &Plan) -> Option<Expr> {
    let Insn::Store { size, base, off, src: Src::Imm(_) } = o.insn else { return None };
    let mut parts: Vec<(i16, Size, u8)> = Vec::new();
    for (s, k) in sites.iter().zip(&plan.sites) {
        if let (Insn::Store { size: narrow, base: b, off: at, .. }, Some(k)) = (&g.window.old[s.at].insn, k)
            && *b == base
            && *at >= off
            && i32::from(*at) + narrow.bytes() as i32 <= i32::from(off) + size.bytes() as i32
        {
            // A later store to the same place counts.
            parts.retain(|(o, ..)| o != at);
            parts.push((*at, *narrow, *k));
        }
    }
    if parts.len() < 2 {
        return None;
    }
    parts.sort_by_key(|(at, ..)| *at);
    let last = parts.len() - 1;
    let pieces = parts.iter().enumerate().map(|(n, (at, narrow, k))| {
        let mut e = Expr::Param(*k);
        // The highest piece needs no mask: what is above it falls off, or is its sign.
        if n < last && *narrow != Size::DW {
            e = Expr::two(Two::And, e, Expr::Const((1i64 << narrow.bits()) - 1));
        }
        let shift = i64::from(*at - off) * 8;
        if shift > 0 { Expr::two(Two::Shl, e, Expr::Const(shift)) } else { e }
    });
    pieces.reduce(|a, b| Expr::two(Two::Or, a, b))
}

/// Registers that are known to hold a number at the entry: where it has to do with a parameter, they
/// hold that.
fn hold(g: &mut General, plan: &Plan) {
    let known = plan.known();
    let used = mentioned(g.window.old.iter().chain(g.with.iter().map(|(o, _)| o)));
    let expression = |v: i64| {
        let own = (0..plan.values.len() as u8).map(Expr::Param);
        let others = (0..plan.values.len() as u8).flat_map(|k| related(k, plan.values[usize::from(k)]));
        own.chain(others).find(|e| e.eval(&known) == Some(v))
    };
    let mut held = Vec::new();
    g.window.regs.retain(|(r, v)| {
        let number = if v.kind == Kind::Scalar { v.num.as_const() } else { None };
        let e = number.filter(|n| *n > 1 && used.contains(*r)).and_then(|n| expression(n as i64));
        let stays = e.is_none();
        held.extend(e.map(|e| (*r, e)));
        stays
    });
    g.held.append(&mut held);
}
