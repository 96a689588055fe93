//! Pairs of terms that are equal for a reason which the canonical forms do not see.
//!
//! Most equal terms of real programs become one node and never reach the solver. These do: each
//! operation of one side is written on the other by another identity of bit vectors, so that the
//! solver has something to refute.

use bpf_prove::term::{TermId, Terms, mask};
use bpf_prove::{
    context::Context,
    variables::{Meaning, VarKey},
};

use bpf_testgen::random::Rng;

/// Asks the prover whether two terms that are equal by construction can differ, or, once in a while, two
/// that are nearly so.
pub fn ask(cx: &mut Context, rng: &mut Rng) {
    let width = rng.one_of(&[1, 4, 8, 8, 16, 16, 32, 64]);
    let vars: Vec<TermId> =
        (0..2 + rng.below(2) as u8).map(|i| cx.var(VarKey::EntryReg(i), width, Meaning::Scalar)).collect();
    // Wide and deep at once is too hard for any solver.
    let depth = if width > 16 { 1 } else { 1 + rng.below(2) as u32 };
    let (x, y) = pair(&mut cx.terms, rng, &vars, width, depth);
    let y = if rng.chance(5) {
        let k = cx.terms.constant(width, 1 << rng.below(width.into()));
        let z = rng.one_of(&vars);
        let slight = cx.terms.and(z, k);
        cx.terms.xor(y, slight)
    } else {
        y
    };
    let same = cx.terms.eq(x, y);
    let differ = cx.terms.not(same);
    let guard = if rng.chance(3) { condition(&mut cx.terms, rng, &vars) } else { cx.terms.tru() };
    let _ = cx.check_sat(guard, &[differ]);
}

fn condition(g: &mut Terms, rng: &mut Rng, vars: &[TermId]) -> TermId {
    let (a, b) = (rng.one_of(vars), rng.one_of(vars));
    let w = g.width(a);
    let k = g.constant(w, rng.number(w));
    match rng.below(4) {
        0 => g.ult(a, k),
        1 => g.slt(k, a),
        2 => g.ult(a, b),
        _ => {
            let e = g.eq(b, k);
            g.not(e)
        }
    }
}

/// Two terms of `w` bits that are always equal.
fn pair(g: &mut Terms, rng: &mut Rng, vars: &[TermId], w: u32, depth: u32) -> (TermId, TermId) {
    if depth == 0 {
        let t = if rng.chance(5) { g.constant(w, rng.number(w)) } else { rng.one_of(vars) };
        return (t, t);
    }
    let ((a, a2), (b, b2)) = (pair(g, rng, vars, w, depth - 1), pair(g, rng, vars, w, depth - 1));
    let ones = g.constant(w, mask(w));
    let one = g.constant(w, 1);
    let not = |g: &mut Terms, t| g.xor(t, ones);
    match rng.below(14) {
        0 => {
            // a + b = (a ^ b) + 2 (a & b)
            let (x, y) = (g.xor(a2, b2), g.and(a2, b2));
            let y = g.add(y, y);
            (g.add(a, b), g.add(x, y))
        }
        1 => {
            // a | b = a + b - (a & b)
            let (x, y) = (g.add(a2, b2), g.and(a2, b2));
            (g.or(a, b), g.sub(x, y))
        }
        2 => {
            // a ^ b = (a | b) - (a & b)
            let (x, y) = (g.or(a2, b2), g.and(a2, b2));
            (g.xor(a, b), g.sub(x, y))
        }
        3 => {
            // a - b = ~(~a + b)
            let x = not(g, a2);
            let x = g.add(x, b2);
            (g.sub(a, b), not(g, x))
        }
        4 => {
            // a & b = ~(~a | ~b)
            let (x, y) = (not(g, a2), not(g, b2));
            let x = g.or(x, y);
            (g.and(a, b), not(g, x))
        }
        5 => {
            // a < b is the top bit of (~a & b) | ((~a | b) & (a - b))
            let na = not(g, a2);
            let (x, y, d) = (g.and(na, b2), g.or(na, b2), g.sub(a2, b2));
            let y = g.and(y, d);
            let x = g.or(x, y);
            let top = g.extract(x, w - 1, 1);
            let less = g.ult(a, b);
            (g.zext(less, w), g.zext(top, w))
        }
        6 => {
            // Signed order is unsigned order with the top bits flipped.
            let top = g.constant(w, 1 << (w - 1));
            let (x, y) = (g.xor(a2, top), g.xor(b2, top));
            let (l, r) = (g.slt(a, b), g.ult(x, y));
            (g.sext(l, w), g.sext(r, w))
        }
        7 => {
            // if c then a else b = b ^ ((a ^ b) & -c)
            let c = condition(g, rng, vars);
            let m = g.sext(c, w);
            let x = g.xor(a2, b2);
            let x = g.and(x, m);
            (g.ite(c, a, b), g.xor(b2, x))
        }
        8 => {
            // a << k >> k = a & (ones >> k), for k below the width
            let k = below(g, b, w);
            let k2 = below(g, b2, w);
            let x = g.shl(a, k);
            let m = g.lshr(ones, k2);
            (g.lshr(x, k), g.and(a2, m))
        }
        9 => {
            // a >> k signed = ((a ^ top) >> k) - (top >> k)
            let (k, k2) = (below(g, b, w), below(g, b2, w));
            let top = g.constant(w, 1 << (w - 1));
            let x = g.xor(a2, top);
            let (x, y) = (g.lshr(x, k2), g.lshr(top, k2));
            (g.ashr(a, k), g.sub(x, y))
        }
        10 if w <= 8 => {
            // a = a / b * b + a % b
            let (q, r) = (g.udiv(a2, b2), g.urem(a2, b2));
            let p = g.mul(q, b2);
            let whole = g.add(p, r);
            (a, whole)
        }
        11 if w <= 16 => {
            // a * b = a * (b - 1) + a
            let b1 = g.sub(b2, one);
            let p = g.mul(a2, b1);
            (g.mul(a, b), g.add(p, a2))
        }
        12 if w <= 8 => {
            // The remainder is smaller than the divisor, or the divisor is 0.
            let r = g.urem(a, b);
            let less = g.ult(r, b);
            let zero = g.constant(w, 0);
            let none = g.eq(b2, zero);
            let fine = g.any(&[less, none]);
            (g.sext(fine, w), ones)
        }
        _ => {
            // The halves of a sum, with the carry by hand.
            let half = w.div_ceil(2);
            if half == w {
                let x = g.xor(a2, b2);
                return (g.add(a, b), x);
            }
            let (al, bl) = (g.extract(a2, 0, half), g.extract(b2, 0, half));
            let (ah, bh) = (g.extract(a2, half, w - half), g.extract(b2, half, w - half));
            let low = g.add(al, bl);
            let carry = g.ult(low, al);
            let carry = g.zext(carry, w - half);
            let high = g.add(ah, bh);
            let high = g.add(high, carry);
            (g.add(a, b), g.concat(&[low, high]))
        }
    }
}

/// Some number below `w` made of `t`.
fn below(g: &mut Terms, t: TermId, w: u32) -> TermId {
    let m = g.constant(w, u64::from(w.next_power_of_two() - 1).min(mask(w)));
    let k = g.and(t, m);
    if w.is_power_of_two() {
        return k;
    }
    let limit = g.constant(w, w.into());
    let inside = g.ult(k, limit);
    let zero = g.constant(w, 0);
    g.ite(inside, k, zero)
}
