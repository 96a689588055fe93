//! The bit-blaster and the solver against plain numbers: an answer must be right, and so must its model.

use std::time::{Duration, Instant};

use bpf_prove::blast::{Answer, Blaster, Model};
use bpf_prove::term::{TermId, Terms};

use crate::common::{Dag, N, Op, rounds};

const CONFLICTS: u32 = 2_000;

fn solve(d: &mut Dag, all: &[TermId]) -> Answer {
    let mut b = Blaster::new(&mut d.terms, None);
    for t in all {
        b.assert(*t);
    }
    b.solve(CONFLICTS)
}

/// A model must make everything asserted true, without the values of the lanes.
fn confirm(d: &Dag, m: &Model, all: &[TermId]) {
    for t in all {
        assert_eq!(m.eval(&d.terms, *t), 1, "{m:x?} does not satisfy {:?}\n{}", d.terms.node(*t), d.history());
    }
}

/// Lanes in which everything is true.
fn satisfied(d: &Dag, all: &[N]) -> usize {
    (0..d.models.len()).filter(|k| all.iter().all(|n| d.nodes[*n].lanes[*k] == 1)).count()
}

fn grown(seed: u64, lanes: usize, widths: &[u32], steps: u64, heavy: bool) -> (Dag, Vec<N>) {
    let mut d = Dag::new(seed, lanes);
    let vars = (0..3)
        .map(|_| {
            let w = if d.rng.chance(3) { 1 + d.rng.below(64) as u32 } else { d.rng.one_of(widths) };
            d.random_var(w)
        })
        .collect();
    d.some_constant(8);
    let steps = 1 + d.rng.below(steps);
    for _ in 0..steps {
        if !d.too_large() {
            d.grow(heavy);
        }
    }
    (d, vars)
}

/// With every variable fixed, a term equals its value and nothing else.
#[test]
fn a_term_has_one_value() {
    let (mut sat, mut unsat) = (0, 0);
    for seed in 0..rounds(400) {
        let (mut d, vars) = grown(seed, 2, &[1, 8, 16, 32, 64], 12, true);
        for k in 0..2 {
            let mut fixed: Vec<TermId> = vec![];
            for v in &vars {
                let (t, w, x) = (d.nodes[*v].term, d.nodes[*v].width, d.nodes[*v].lanes[k]);
                let x = d.terms.constant(w, x);
                fixed.push(d.terms.eq(t, x));
            }
            for _ in 0..2 {
                let n = d.any();
                let (t, w, x) = (d.nodes[n].term, d.nodes[n].width, d.nodes[n].lanes[k]);
                // The value as a sum, so that equality does not look into the term's slices.
                let x = d.terms.constant(w, x);
                let e = d.terms.eq(t, x);
                let ne = d.terms.not(e);
                let mut q = fixed.clone();
                q.push(e);
                match solve(&mut d, &q) {
                    Answer::Sat(m) => confirm(&d, &m, &q),
                    other => panic!("n{n} in lane {k}: {other:?}\n{}", d.history()),
                }
                sat += 1;
                q.pop();
                q.push(ne);
                let answer = solve(&mut d, &q);
                assert!(matches!(answer, Answer::Unsat), "n{n} in lane {k}: {answer:?}\n{}", d.history());
                unsat += 1;
            }
        }
    }
    println!("{sat} satisfiable, {unsat} unsatisfiable");
}

/// Random questions: a model must satisfy them, and no lane may refute an "unsatisfiable".
#[test]
fn random_questions() {
    let (mut sat, mut unsat, mut unknown) = (0, 0, 0);
    for seed in 0..rounds(1_200) {
        let memory = seed % 2 == 0;
        let mut d;
        if memory {
            d = Dag::new(seed ^ 0x77_0000, 24);
            d.random_var(8);
            d.some_constant(8);
            let pointers = d.pointers();
            d.mem_base(0, 0);
            if d.rng.chance(3) {
                d.mem_base(1, 0);
            }
            let steps = 2 + d.rng.below(7);
            for _ in 0..steps {
                if !d.too_large() {
                    d.grow_memory(&pointers);
                }
            }
            d.grow(false);
        } else {
            d = grown(seed ^ 0x99_0000, 24, &[1, 4, 8, 16], 10, seed % 3 == 0).0;
        }
        let mut asked: Vec<N> = vec![];
        for _ in 0..1 + d.rng.below(3) {
            let t = d.truth();
            let t = if d.rng.chance(2) { d.not(t) } else { t };
            asked.push(t);
        }
        let q: Vec<TermId> = asked.iter().map(|n| d.nodes[*n].term).collect();
        match solve(&mut d, &q) {
            Answer::Sat(m) => {
                confirm(&d, &m, &q);
                sat += 1;
            }
            Answer::Unsat => {
                assert_eq!(satisfied(&d, &asked), 0, "{asked:?}\n{}", d.history());
                unsat += 1;
            }
            Answer::Unknown => unknown += 1,
        }
        d.check();
    }
    println!("{sat} satisfiable, {unsat} unsatisfiable, {unknown} unknown");
    assert!(sat > 100 && unsat > 50 && unknown < sat, "{sat} {unsat} {unknown}");
}

/// Few variable bits: the answer is known by trying all values.
#[test]
fn exhaustive_questions() {
    let (mut sat, mut unsat) = (0, 0);
    for seed in 0..rounds(250) {
        let bits = 10;
        let mut d = Dag::new(seed ^ 0x1234_0000, 1 << bits);
        let mut at = 0;
        while at < bits {
            let w = (1 + d.rng.below(6) as u32).min(bits - at);
            d.var(w, (0..1u64 << bits).map(|i| i >> at).collect());
            at += w;
        }
        // Something wide made of the variables.
        let w = d.rng.one_of(&[8, 16, 24, 64]);
        let n = d.any();
        if d.width(n) < w {
            d.coerce(n, w);
        }
        let steps = 2 + d.rng.below(10);
        for _ in 0..steps {
            if !d.too_large() {
                d.grow(true);
            }
        }
        for _ in 0..3 {
            let mut asked: Vec<N> = vec![d.truth()];
            if d.rng.chance(2) {
                // A rare value: a node equal to what it is in some lane, or one beside.
                let n = d.any();
                let k = d.rng.below(1 << bits) as usize;
                let x = d.nodes[n].lanes[k].wrapping_add(d.rng.below(2));
                let x = d.constant(d.width(n), x);
                asked.push(d.op(Op::Eq, n, x));
            }
            let t = d.truth();
            asked.push(d.not(t));
            let q: Vec<TermId> = asked.iter().map(|n| d.nodes[*n].term).collect();
            match solve(&mut d, &q) {
                Answer::Sat(m) => {
                    confirm(&d, &m, &q);
                    assert_ne!(satisfied(&d, &asked), 0, "{asked:?}\n{}", d.history());
                    sat += 1;
                }
                Answer::Unsat => {
                    assert_eq!(satisfied(&d, &asked), 0, "{asked:?}\n{}", d.history());
                    unsat += 1;
                }
                Answer::Unknown => {}
            }
        }
    }
    println!("{sat} satisfiable, {unsat} unsatisfiable");
    assert!(sat > 50 && unsat > 50, "{sat} {unsat}");
}

/// Equal addresses hold equal bytes, whichever the solver makes equal.
#[test]
fn equal_addresses_hold_equal_bytes() {
    let mut d = Dag::new(5, 1);
    let (p, q) = (d.random_var(64), d.random_var(64));
    let m = d.mem_base(0, 0);
    let (x, y) = (d.select(m, p, 0), d.select(m, q, 3));
    let (x, y) = (d.nodes[x].term, d.nodes[y].term);
    let q3 = d.add_const(q, 3);
    let (p, q3) = (d.nodes[p].term, d.nodes[q3].term);
    let same = d.terms.eq(x, y);
    let differ = d.terms.not(same);
    let meet = d.terms.eq(p, q3);
    assert!(matches!(solve(&mut d, &[differ, meet]), Answer::Unsat));
    let apart = d.terms.not(meet);
    match solve(&mut d, &[differ, apart]) {
        Answer::Sat(m) => confirm(&d, &m, &[differ, apart]),
        other => panic!("{other:?}"),
    }
}

/// The factors of a product of two primes are not found in a hundred years, nor are they looked for beyond a deadline.
#[test]
fn a_question_ends_at_its_deadline() {
    let mut terms = Terms::new();
    let [p, q] = [(); 2].map(|()| terms.fresh(32).1);
    let [wide_p, wide_q] = [p, q].map(|t| terms.zext(t, 64));
    let (product, known) = (terms.mul(wide_p, wide_q), terms.constant(64, 2_654_435_761 * 3_037_000_493));
    let one = terms.constant(32, 1);
    let asked = [terms.eq(product, known), terms.ult(one, p), terms.ult(one, q), terms.ult(p, q)];
    let deadline = Instant::now() + Duration::from_millis(100);
    let mut b = Blaster::new(&mut terms, Some(deadline));
    for t in asked {
        b.assert(t);
    }
    let answer = b.solve(1_000_000_000);
    assert!(matches!(answer, Answer::Unknown), "{answer:?}");
}

/// What is asked may be too large to be written down: that ends at the deadline, too, and then nothing is said.
#[test]
fn a_question_that_is_too_large_ends_at_its_deadline() {
    let product = |terms: &mut Terms, n: usize| {
        let mut all = terms.fresh(64).1;
        for _ in 0..n {
            let next = terms.fresh(64).1;
            all = terms.mul(all, next);
        }
        let known = terms.constant(64, 1);
        terms.eq(all, known)
    };
    let over = Some(Instant::now());
    let mut terms = Terms::new();
    let asked = product(&mut terms, 300);
    let mut b = Blaster::new(&mut terms, over);
    b.assert(asked);
    assert!(b.clauses() < 200_000, "{}", b.clauses());
    let answer = b.solve(1_000_000_000);
    assert!(matches!(answer, Answer::Unknown), "{answer:?}");
    // Without a wish it is the same, and a contradiction made meanwhile is none.
    let no = terms.constant(1, 0);
    let mut b = Blaster::new(&mut terms, over);
    b.assert(asked);
    b.assert(no);
    assert!(matches!(b.solve_with(&[], 1_000_000_000), Answer::Unknown));
}
