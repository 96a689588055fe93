//! Soundness of every operation on numbers: exhaustive at 4 bits, sampled at 5 and 64.

use bpf_isa::{Cond, Width};
use bpf_semantics::{Domain, compare};
use bpf_testgen::random::Rng;

use super::concrete::Concrete;
use crate::num::{Num, NumDomain, Tnum};
use crate::refine::refine;

type Binary<D> = fn(&mut D, &<D as Domain>::V, &<D as Domain>::V) -> <D as Domain>::V;
type Test<D> = fn(&mut D, &<D as Domain>::V, &<D as Domain>::V) -> <D as Domain>::B;

/// Name, abstract, concrete, and whether a zero second operand is excluded.
type Operation = (&'static str, Binary<NumDomain>, Binary<Concrete>, bool);

fn operations() -> Vec<Operation> {
    vec![
        ("add", NumDomain::add, Concrete::add, false),
        ("sub", NumDomain::sub, Concrete::sub, false),
        ("mul", NumDomain::mul, Concrete::mul, false),
        ("udiv", NumDomain::udiv, Concrete::udiv, true),
        ("urem", NumDomain::urem, Concrete::urem, true),
        ("sdiv", NumDomain::sdiv, Concrete::sdiv, true),
        ("srem", NumDomain::srem, Concrete::srem, true),
        ("and", NumDomain::and, Concrete::and, false),
        ("or", NumDomain::or, Concrete::or, false),
        ("xor", NumDomain::xor, Concrete::xor, false),
    ]
}

fn shifts() -> Vec<Operation> {
    vec![
        ("shl", NumDomain::shl, Concrete::shl, false),
        ("lshr", NumDomain::lshr, Concrete::lshr, false),
        ("ashr", NumDomain::ashr, Concrete::ashr, false),
    ]
}

fn tests() -> Vec<(&'static str, Test<NumDomain>, Test<Concrete>)> {
    vec![
        ("eq", NumDomain::eq, Concrete::eq),
        ("ult", NumDomain::ult, Concrete::ult),
        ("slt", NumDomain::slt, Concrete::slt),
    ]
}

fn members(n: &Num) -> Vec<u64> {
    (0..1 << n.bits).filter(|v| n.contains(*v)).collect()
}

fn signed_bounds(bits: u32) -> (i64, i64) {
    (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
}

/// All known-bits values, all unsigned and all signed ranges of that width.
fn simple(bits: u32) -> Vec<Num> {
    let mut all = Vec::new();
    for mask in 0..1u64 << bits {
        all.extend((0..1u64 << bits).filter(|v| v & mask == 0).map(|value| Num::with_bits(bits, Tnum { value, mask })));
    }
    for hi in 0..1u64 << bits {
        all.extend((0..=hi).map(|lo| Num::unsigned(bits, lo, hi)));
    }
    let (min, max) = signed_bounds(bits);
    for hi in min..=max {
        all.extend((min..=hi).map(|lo| Num::signed(bits, lo, hi)));
    }
    all.sort_by_key(|n| (n.tnum.mask, n.tnum.value, n.umin, n.umax, n.smin, n.smax));
    all.dedup();
    all
}

/// Non-empty intersections of three simple ones.
fn mixed(bits: u32, count: usize) -> Vec<Num> {
    let simple = simple(bits);
    let mut rng = Rng::new(7);
    let mut out = Vec::new();
    while out.len() < count {
        let [a, b, c] = std::array::from_fn(|_| simple[rng.below(simple.len() as u64) as usize]);
        if let Some(n) = a.meet(&b).and_then(|n| n.meet(&c))
            && !members(&n).is_empty()
        {
            out.push(n);
        }
    }
    out
}

fn check_pair(bits: u32, a: &Num, b: &Num, xs: &[u64], ys: &[u64]) {
    for (name, abs, conc, nonzero) in operations() {
        let r = abs(&mut NumDomain, a, b);
        for &x in xs {
            for &y in ys.iter().filter(|y| !nonzero || **y != 0) {
                let v = conc(&mut Concrete, &(bits, x), &(bits, y)).1;
                assert!(r.contains(v), "{x} {name} {y} = {v} not in {r:?}\nof {a:?}\nand {b:?}");
            }
        }
    }
    for (name, abs, conc, _) in shifts() {
        let r = abs(&mut NumDomain, a, b);
        for &x in xs {
            for &y in ys.iter().filter(|y| **y < u64::from(bits)) {
                let v = conc(&mut Concrete, &(bits, x), &(bits, y)).1;
                assert!(r.contains(v), "{x} {name} {y} = {v} not in {r:?}\nof {a:?}\nand {b:?}");
            }
        }
    }
    let (join, meet, wide) = (a.join(b), a.meet(b), a.widen(&a.join(b)));
    let concat = a.concat(b);
    for &x in xs {
        assert!(join.contains(x) && wide.contains(x), "{x} in {a:?}, not in the join or widening with {b:?}");
        for &y in ys {
            assert!(join.contains(y) && wide.contains(y), "{y} in {b:?}, not in the join or widening with {a:?}");
            assert!(concat.contains(x << bits | y));
            if x == y {
                assert!(meet.is_some_and(|m| m.contains(x)), "{x} is in both {a:?} and {b:?}");
            }
            for (name, abs, conc) in tests() {
                let told = abs(&mut NumDomain, a, b);
                let truth = conc(&mut Concrete, &(bits, x), &(bits, y));
                assert!(told.is_none_or(|t| t == truth), "{x} {name} {y} is {truth}\nfor {a:?}\nand {b:?}");
            }
        }
    }
}

fn check_refinement(bits: u32, a: &Num, b: &Num, xs: &[u64], ys: &[u64]) {
    for cond in Cond::ALL {
        for taken in [false, true] {
            let refined = refine(cond, Width::W64, taken, a, b);
            for &x in xs {
                for &y in ys {
                    if compare(&mut Concrete, cond, Width::W64, &(bits, x), &(bits, y)) == taken {
                        let inside = refined.is_some_and(|(p, q)| p.contains(x) && q.contains(y));
                        assert!(inside, "{x} {cond:?} {y} is {taken}, cut off from\n{a:?}\nand {b:?}\nto {refined:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn binary_operations_are_sound_at_4_bits() {
    let all = simple(4);
    let with_members: Vec<_> = all.iter().map(|n| (n, members(n))).collect();
    for (a, xs) in &with_members {
        for (b, ys) in &with_members {
            check_pair(4, a, b, xs, ys);
        }
    }
}

#[test]
fn binary_operations_are_sound_at_5_bits() {
    let all = mixed(5, 250);
    let with_members: Vec<_> = all.iter().map(|n| (n, members(n))).collect();
    for (a, xs) in &with_members {
        for (b, ys) in &with_members {
            check_pair(5, a, b, xs, ys);
        }
    }
}

#[test]
fn refinement_by_a_jump_is_sound() {
    for (bits, all) in [(3, simple(3)), (4, mixed(4, 150))] {
        let with_members: Vec<_> = all.iter().map(|n| (n, members(n))).collect();
        for (a, xs) in &with_members {
            for (b, ys) in &with_members {
                check_refinement(bits, a, b, xs, ys);
            }
        }
    }
}

#[test]
fn width_changes_are_sound() {
    for a in simple(5).into_iter().chain(mixed(5, 500)) {
        for x in members(&a) {
            for (lo, bits) in (0..5).flat_map(|lo| (1..=5 - lo).map(move |bits| (lo, bits))) {
                assert!(a.extract(lo, bits).contains(Concrete.extract(&(5, x), lo, bits).1), "{x} of {a:?}");
            }
            for bits in [5, 6, 8, 64] {
                assert!(a.zext(bits).contains(Concrete.zext(&(5, x), bits).1), "{x} of {a:?}");
                assert!(a.sext(bits).contains(Concrete.sext(&(5, x), bits).1), "{x} of {a:?}");
            }
        }
    }
}

/// A random number of 64 bits around `v`.
fn around(rng: &mut Rng, v: u64) -> Num {
    let mut n = Num::top(64);
    if rng.below(2) == 0 {
        let mask = rng.number(64);
        n = n.meet(&Num::with_bits(64, Tnum { value: v & !mask, mask })).unwrap();
    }
    if rng.below(2) == 0 {
        let (down, up) = (rng.number(64), rng.number(64));
        n = n.meet(&Num::unsigned(64, v.saturating_sub(down), v.saturating_add(up))).unwrap();
    }
    if rng.below(2) == 0 {
        let (down, up) = (rng.number(64) >> 1, rng.number(64) >> 1);
        let s = v as i64;
        n = n.meet(&Num::signed(64, s.saturating_sub(down as i64), s.saturating_add(up as i64))).unwrap();
    }
    if rng.below(6) == 0 { Num::constant(64, v) } else { n }
}

#[test]
fn operations_are_sound_at_64_bits() {
    let mut rng = Rng::new(1);
    for _ in 0..200_000 {
        let (x, y) = (rng.number(64), rng.number(64));
        let (a, b) = (around(&mut rng, x), around(&mut rng, y));
        assert!(a.contains(x) && b.contains(y));
        for (name, abs, conc, nonzero) in operations() {
            if !nonzero || y != 0 {
                let (r, v) = (abs(&mut NumDomain, &a, &b), conc(&mut Concrete, &(64, x), &(64, y)).1);
                assert!(r.contains(v), "{x:#x} {name} {y:#x} = {v:#x} not in {r:?}\nof {a:?}\nand {b:?}");
            }
        }
        let (k, amount) = (y & 63, NumDomain.and(&b, &Num::constant(64, 63)));
        for (name, abs, conc, _) in shifts() {
            let (r, v) = (abs(&mut NumDomain, &a, &amount), conc(&mut Concrete, &(64, x), &(64, k)).1);
            assert!(r.contains(v), "{x:#x} {name} {k} = {v:#x} not in {r:?}");
        }
        assert!(a.join(&b).contains(x) && a.join(&b).contains(y));
        assert!(a.widen(&a.join(&b)).contains(x) && a.widen(&a.join(&b)).contains(y));
        let (lo, bits) = (rng.below(64) as u32, 1 + rng.below(64) as u32);
        let bits = bits.min(64 - lo);
        let (part, v) = (a.extract(lo, bits), Concrete.extract(&(64, x), lo, bits));
        assert!(part.contains(v.1) && part.zext(64).contains(v.1));
        assert!(part.sext(64).contains(Concrete.sext(&v, 64).1));
        let rest = b.truncate(64 - bits.min(63));
        if part.bits + rest.bits <= 64 {
            let low = Concrete.extract(&(64, y), 0, rest.bits);
            assert!(part.concat(&rest).contains(Concrete.concat(&v, &low).1));
        }
        for width in [Width::W32, Width::W64] {
            for cond in Cond::ALL {
                let taken = compare(&mut Concrete, cond, width, &(64, x), &(64, y));
                let (p, q) = refine(cond, width, taken, &a, &b).expect("this edge is taken");
                assert!(p.contains(x) && q.contains(y), "{x:#x} {cond:?} {y:#x} {width:?}\n{a:?}\n{b:?}\n{p:?}\n{q:?}");
            }
        }
    }
}

#[test]
fn widening_soon_stands_still() {
    let mut rng = Rng::new(3);
    for _ in 0..2000 {
        let mut n = Num::constant(64, rng.number(64));
        let mut changes = 0;
        for _ in 0..500 {
            let next = n.join(&Num::constant(64, rng.number(64)));
            if next != n {
                n = n.widen(&next);
                changes += 1;
            }
        }
        assert!(changes <= 40, "{changes} changes up to {n:?}");
    }
}

#[test]
fn views_tighten_each_other() {
    let n = Num::unsigned(64, 0x1200, 0x12ff);
    assert_eq!(n.tnum, Tnum { value: 0x1200, mask: 0xff });
    assert_eq!((n.smin, n.smax), (0x1200, 0x12ff));
    let n = NumDomain.and(&Num::top(64), &Num::constant(64, 0xf0));
    assert_eq!((n.umin, n.umax, n.smin, n.smax), (0, 0xf0, 0, 0xf0));
    let n = Num::signed(32, -4, 3);
    assert_eq!((n.umin, n.umax), (0, 0xffff_ffff));
    assert_eq!(n.sext(64), Num::signed(64, -4, 3));
    assert_eq!(Num::unsigned(64, 5, 5).as_const(), Some(5));
}

#[test]
fn contradictions_are_seen() {
    assert_eq!(Num::unsigned(64, 0, 4).meet(&Num::unsigned(64, 5, 9)), None);
    assert_eq!(Num::with_bits(8, Tnum { value: 1, mask: 0xfe }).meet(&Num::constant(8, 2)), None);
    assert_eq!(Num::signed(64, -9, -1).meet(&Num::unsigned(64, 0, 9)), None);
}
