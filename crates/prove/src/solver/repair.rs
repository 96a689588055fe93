//! Assignments that satisfy demands, found without the solver.
//!
//! Most questions that are asked have an answer, and most demands that a random assignment misses are of the kind "this field
//! is that number": what such a demand wants is passed down from a term to its operands, against the operations, until a
//! variable or a byte takes it. What that breaks elsewhere is mended in the next round. (Invertibility of bit-vector operations:
//! A. Niemetz, M. Preiner, A. Biere, "Propagation based local search for bit-precise reasoning", 2017.)

use super::sample::{Sample, noise};
use crate::term::{Node, TermId, Terms, mask};

/// Rounds after which nothing is changed any more.
const ROUNDS: u64 = 24;
/// Terms that a round looks at, at most.
const STEPS: u32 = 256;

impl Sample {
    /// Changes the assignment until all of `demands` hold; whether they do.
    pub(crate) fn meet(&mut self, terms: &Terms, demands: &[TermId]) -> bool {
        let missed = |sample: &mut Sample| demands.iter().copied().find(|d| sample.value(terms, *d) == 0);
        for round in 0..ROUNDS {
            let Some(missed) = missed(self) else { return true };
            let mut repair = Repair { sample: self, terms, round, steps: STEPS };
            if !repair.want(missed, 1) {
                return false;
            }
            self.forget();
        }
        missed(self).is_none()
    }
}

/// One round.
struct Repair<'s> {
    sample: &'s mut Sample,
    terms: &'s Terms,
    /// Where there is a choice, its number makes it.
    round: u64,
    steps: u32,
}

impl Repair<'_> {
    /// Changes variables and bytes so that `t` becomes `v`, as far as one operand at a time can bring that about; whether
    /// something was found.
    fn want(&mut self, t: TermId, v: u64) -> bool {
        if self.now(t) == v {
            return true;
        }
        let Some(steps) = self.steps.checked_sub(1) else { return false };
        self.steps = steps;
        let terms = self.terms;
        let w = terms.width(t);
        let all = mask(w);
        let v = v & all;
        let is_even = self.round.is_multiple_of(2);
        match terms.node(t) {
            Node::Const(_) => false,
            Node::Var(x) => {
                self.sample.model.vars.insert(*x, v);
                true
            }
            Node::Select(m, a) => {
                let at = self.now(*a);
                self.sample.model.bytes.insert((*m, at), v as u8);
                true
            }
            Node::Not(a) => self.want(*a, 1 ^ v),
            Node::All(ts) if v == 1 => {
                let mut found = false;
                for x in ts.iter() {
                    if self.now(*x) == 0 {
                        found |= self.want(*x, 1);
                    }
                }
                found
            }
            Node::All(ts) => {
                let first = self.round as usize % ts.len();
                (0..ts.len()).any(|i| self.want(ts[(first + i) % ts.len()], 0))
            }
            Node::Eq(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                let all = mask(terms.width(*a));
                let other = |own: u64, die: u64| if own == die & all { own ^ 1 } else { die & all };
                match v {
                    1 => self.either((*a, y), (*b, x)),
                    _ => {
                        let die = if is_even { x ^ 1 } else { self.dice() };
                        self.either((*a, other(y, die)), (*b, other(x, die)))
                    }
                }
            }
            Node::Ult(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                self.order((*a, x), (*b, y), v == 1, mask(terms.width(*a)), 0)
            }
            Node::Slt(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                // In the order of unsigned numbers, with the sign turned.
                let sign = 1 << (terms.width(*a) - 1);
                self.order((*a, x ^ sign), (*b, y ^ sign), v == 1, mask(terms.width(*a)), sign)
            }
            Node::Concat(ts) => {
                let mut at = 0;
                let mut found = false;
                for x in ts.iter() {
                    let part = v >> at & mask(terms.width(*x));
                    // What does not fit a part that is a number may still be near enough.
                    found |= self.now(*x) != part && self.want(*x, part);
                    at += terms.width(*x);
                }
                found
            }
            Node::Extract(a, lo) => {
                let kept = self.now(*a) & !(all << lo);
                self.want(*a, kept | v << lo)
            }
            Node::SExt(a) => {
                let narrow = terms.width(*a);
                let extended = (((v << (64 - narrow)) as i64) >> (64 - narrow)) as u64 & all;
                extended == v && self.want(*a, v & mask(narrow))
            }
            Node::Ite(c, a, b) => {
                let now = self.now(*c);
                let (here, there) = if now != 0 { (*a, *b) } else { (*b, *a) };
                if self.now(there) == v && self.want(*c, 1 ^ now) {
                    return true;
                }
                match is_even {
                    true => self.want(here, v) || self.want(there, v) && self.want(*c, 1 ^ now),
                    false => self.want(there, v) && self.want(*c, 1 ^ now) || self.want(here, v),
                }
            }
            // The second gets the bits that are wanted, or loses those that are not; then the first decides.
            Node::And(a, b) => {
                let (a, b) = if is_even { (*a, *b) } else { (*b, *a) };
                let y = self.now(b) | v;
                let x = self.now(a) & !y | v;
                self.want(b, y) && self.want(a, x)
            }
            Node::Or(a, b) => {
                let (a, b) = if is_even { (*a, *b) } else { (*b, *a) };
                let y = self.now(b) & v;
                let x = self.now(a) & y | v & !y;
                self.want(b, y) && self.want(a, x)
            }
            Node::Xor(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                self.either((*a, v ^ y), (*b, v ^ x))
            }
            Node::Sum(ts, k) => {
                let sum = ts.iter().fold(*k, |s, (x, c)| s.wrapping_add(self.now(*x).wrapping_mul(*c)));
                let missing = v.wrapping_sub(sum);
                let first = self.round as usize % ts.len();
                (0..ts.len()).any(|i| {
                    let (x, c) = ts[(first + i) % ts.len()];
                    let by = missing.wrapping_mul(inverse(c));
                    let wanted = self.now(x).wrapping_add(by) & all;
                    self.want(x, wanted)
                })
            }
            Node::Mul(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                let by = |other: u64| (other & 1 == 1).then(|| v.wrapping_mul(inverse(other)) & all);
                self.either_of((*a, by(y)), (*b, by(x)))
            }
            Node::Udiv(a, b) => {
                let y = self.now(*b);
                let wanted = v.checked_mul(y).filter(|p| y != 0 && p & !all == 0);
                wanted.is_some_and(|p| self.want(*a, p))
            }
            Node::Urem(a, b) => {
                let (x, y) = (self.now(*a), self.now(*b));
                let wanted = x.checked_rem(y).and_then(|r| (x - r).checked_add(v)).filter(|p| v < y && p & !all == 0);
                wanted.is_some_and(|p| self.want(*a, p))
            }
            Node::Shl(a, b) => {
                let (x, by) = (self.now(*a), self.now(*b));
                let is_met = by < u64::from(w) && v & !(all << by) == 0;
                is_met && self.want(*a, v >> by | x & !(all >> by))
            }
            Node::Lshr(a, b) | Node::Ashr(a, b) => {
                let (x, by) = (self.now(*a), self.now(*b));
                let is_met = by < u64::from(w) && (v << by & all) >> by == v;
                is_met && self.want(*a, v << by & all | x & !(u64::MAX << by))
            }
        }
    }

    /// Makes the first less than the second, or not less: numbers of up to `most`, which are given as `n ^ turned`.
    fn order(&mut self, (a, x): (TermId, u64), (b, y): (TermId, u64), less: bool, most: u64, turned: u64) -> bool {
        // From `low` to `high`: an end, or any.
        let (die, is_even) = (self.dice(), self.round.is_multiple_of(2));
        let within = |low: u64, high: u64, near: u64| match is_even {
            true => near,
            false => (high - low).checked_add(1).map_or(die, |n| low + die % n),
        };
        let (below, above) = match less {
            true => {
                (y.checked_sub(1).map(|high| within(0, high, high)), (x < most).then(|| within(x + 1, most, x + 1)))
            }
            false => (Some(within(y, most, y)), Some(within(0, x, x))),
        };
        self.either_of((a, below.map(|n| n ^ turned)), (b, above.map(|n| n ^ turned)))
    }

    /// A number that looks random, another one at each step.
    fn dice(&self) -> u64 {
        noise(self.round << 32 | u64::from(self.steps))
    }

    /// One of two wishes, the second first in two rounds of four: both ends and chance ([`Repair::order`]) are tried with either.
    fn either(&mut self, x: (TermId, u64), y: (TermId, u64)) -> bool {
        self.either_of((x.0, Some(x.1)), (y.0, Some(y.1)))
    }

    /// The same where there may be nothing to wish for.
    fn either_of(&mut self, x: (TermId, Option<u64>), y: (TermId, Option<u64>)) -> bool {
        let order = if self.round % 4 < 2 { [x, y] } else { [y, x] };
        order.into_iter().any(|(t, v)| v.is_some_and(|v| self.want(t, v & mask(self.terms.width(t)))))
    }

    /// The value of a term; of variables and bytes what they have just been given.
    fn now(&mut self, t: TermId) -> u64 {
        let then = self.sample.value(self.terms, t);
        let given = match self.terms.node(t) {
            Node::Var(x) => self.sample.model.vars.get(x).copied(),
            Node::Select(m, a) => {
                let at = self.sample.value(self.terms, *a);
                self.sample.model.bytes.get(&(*m, at)).map(|b| u64::from(*b))
            }
            _ => None,
        };
        // A variable that nobody has given a value has more bits in the model than its width.
        given.unwrap_or(then) & mask(self.terms.width(t))
    }
}

/// What an odd number times this is 1, modulo 2^64 (Newton's iteration: each step doubles the bits that are right).
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::blast::Model;

    #[test]
    fn inverses() {
        for odd in [1, 3, 5, 7, 255, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            assert_eq!(odd.wrapping_mul(inverse(odd)), 1, "{odd}");
        }
    }

    /// Whether the demands are met, from each of a few assignments; where they are, by the model that is handed on.
    fn met(terms: &Terms, demands: &[TermId]) -> bool {
        let mut all = true;
        for seed in 0..6 {
            let mut sample = Sample::new(seed);
            let is_met = sample.meet(terms, demands);
            let holds = demands.iter().all(|d| sample.model.eval(terms, *d) != 0);
            assert!(holds || !is_met, "seed {seed}: the model does not meet what it is said to");
            all &= is_met;
        }
        all
    }

    #[test]
    fn demands_of_each_operation() {
        let mut t = Terms::new();
        let x = t.fresh(64).1;
        let y = t.fresh(64).1;
        let version = t.fresh(64).1;
        let mem = t.mem_base(0, version);
        let (narrow, byte) = (t.extract(x, 8, 16), t.select(mem, y, 3));
        let number = |t: &mut Terms, v| t.constant(64, v);
        let k = number(&mut t, 0x1234);
        let five = number(&mut t, 5);
        let shifted = [t.shl(x, five), t.lshr(x, five), t.ashr(x, five)];
        let wide = [t.zext(narrow, 64), t.sext(narrow, 64), t.zext(byte, 64)];
        let divided = [t.udiv(x, five), t.urem(x, k)];
        let mixed = [t.and(x, y), t.or(x, y), t.xor(x, y), t.add(x, y), t.sub(x, y), t.mul(x, y)];
        let is_odd = t.extract(y, 0, 1);
        let chosen = t.ite(is_odd, x, k);
        let terms: Vec<TermId> = [chosen].into_iter().chain(shifted).chain(wide).chain(divided).chain(mixed).collect();
        let zero = number(&mut t, 0);
        for a in terms {
            // A value that it has for some assignment.
            let v = Sample::new(77).value(&t, a);
            let v = number(&mut t, v);
            let (eq, less, signed) = (t.eq(a, v), t.ult(zero, a), t.slt(a, k));
            let not = t.not(eq);
            for demands in [vec![eq], vec![not], vec![less, not], vec![signed]] {
                let shown = || demands.iter().map(|d| crate::term::show(&t, *d, 8)).collect::<Vec<_>>();
                // A product is inverted where one side happens to be odd.
                assert!(met(&t, &demands) || matches!(t.node(a), Node::Mul(..)), "{:?}", shown());
            }
        }
    }

    #[test]
    fn narrow_variables_have_narrow_values() {
        let mut t = Terms::new();
        let (x, y, z) = (t.fresh(32).1, t.fresh(32).1, t.fresh(16).1);
        let five = t.constant(16, 5);
        let (is_five, less, signed) = (t.eq(z, five), t.ult(x, y), t.slt(x, y));
        let demands = [is_five, t.not(less), t.not(signed)];
        let mut sample = Sample::of(Model::default());
        assert!(sample.meet(&t, &demands));
        assert!(met(&t, &demands));
    }

    #[test]
    fn what_cannot_be_is_not_met() {
        let mut t = Terms::new();
        let x = t.fresh(64).1;
        let (low, high) = (t.constant(64, 3), t.constant(64, 2));
        let demands = [t.ult(x, high), t.ult(low, x)];
        assert!(!met(&t, &demands));
    }

    #[test]
    fn fields_of_a_header_at_once() {
        let mut t = Terms::new();
        let packet = t.fresh(64).1;
        let version = t.fresh(64).1;
        let mem = t.mem_base(0, version);
        let field = |t: &mut Terms, at: i64, v: u64| {
            let (high, low) = (t.select(mem, packet, at), t.select(mem, packet, at + 1));
            let value = t.concat(&[low, high]);
            let v = t.constant(16, v);
            t.eq(value, v)
        };
        let demands = [field(&mut t, 12, 0x0800), field(&mut t, 22, 0x4006), field(&mut t, 36, 443)];
        assert!(met(&t, &demands));
    }
}
