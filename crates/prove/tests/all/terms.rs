//! The term graph against plain numbers: whatever normalization makes of an expression, it must have
//! the value the definitions of its operations give it.

use bpf_prove::term::mask;

use crate::common::{Dag, Op, Rng, rounds};

const LANES: usize = 12;

/// Variables of a few widths, a few constants.
fn start(seed: u64) -> Dag {
    let mut d = Dag::new(seed, LANES);
    let usual = [1, 8, 8, 16, 32, 64, 64];
    for _ in 0..3 {
        let w = if d.rng.chance(3) { 1 + d.rng.below(64) as u32 } else { d.rng.one_of(&usual) };
        d.random_var(w);
    }
    let w = d.rng.one_of(&[1, 8, 32, 64]);
    d.some_constant(w);
    d
}

#[test]
fn expressions_keep_their_value() {
    let (mut checked, mut work) = (0, 0);
    for seed in 0..rounds(2_500) {
        let mut d = start(seed);
        let steps = 4 + d.rng.below(36);
        for _ in 0..steps {
            if d.too_large() {
                break;
            }
            d.grow(true);
        }
        d.check();
        checked += d.checked;
        work += d.terms.work();
    }
    println!("{checked} values of nodes checked, {work} steps");
    assert!(checked > 1_000_000, "{checked}");
}

#[test]
fn memories_keep_their_bytes() {
    let mut checked = 0;
    for seed in 0..rounds(1_500) {
        let mut d = start(seed ^ 0xa5a5_0000_0000);
        let pointers = d.pointers();
        d.mem_base(0, 0);
        if d.rng.chance(2) {
            d.mem_base(0, 1);
            d.mem_base(1, 0);
        }
        let steps = 4 + d.rng.below(16);
        for _ in 0..steps {
            if d.too_large() {
                break;
            }
            if d.rng.chance(4) {
                d.grow(false);
            }
            d.grow_memory(&pointers);
        }
        for m in 0..d.mems.len() {
            d.check_bytes(m);
        }
        d.check();
        checked += d.checked;
    }
    println!("{checked} values of nodes and bytes checked");
    assert!(checked > 500_000, "{checked}");
}

/// Every operation on every pair of small numbers, with each operand a constant or not.
#[test]
fn small_widths_exhaustively() {
    let all = [
        Op::Add,
        Op::Sub,
        Op::Mul,
        Op::Udiv,
        Op::Urem,
        Op::Sdiv,
        Op::Srem,
        Op::And,
        Op::Or,
        Op::Xor,
        Op::Eq,
        Op::Ult,
        Op::Slt,
    ];
    for w in 1..=4u32 {
        let n = 1u64 << w;
        let mut d = Dag::new(w.into(), (n * n) as usize);
        let x = d.var(w, (0..n * n).map(|i| i % n).collect());
        let y = d.var(w, (0..n * n).map(|i| i / n).collect());
        for k in 0..n {
            let k = d.constant(w, k);
            for op in all {
                let (p, q) = (d.op(op, x, k), d.op(op, k, y));
                d.op(Op::Eq, p, q_like(p, q, &d));
                if k & 1 == 0 {
                    d.op(op, x, y);
                }
                // The result compared with every constant.
                for j in 0..n {
                    let j = d.constant(d.width(p), j);
                    d.op(Op::Eq, p, j);
                    d.op(Op::Ult, q, j);
                    d.op(Op::Slt, j, p);
                }
            }
            if mask(w).count_ones().is_power_of_two() {
                for op in [Op::Shl, Op::Lshr, Op::Ashr] {
                    d.op(op, x, k);
                    d.op(op, x, y);
                    d.op(op, k, y);
                }
            }
        }
        d.check();
    }
}

fn q_like(p: usize, q: usize, d: &Dag) -> usize {
    if d.width(p) == d.width(q) { q } else { p }
}

/// Two addresses that cannot be equal are told apart; two that can be are not.
#[test]
fn addresses_in_one_object_and_in_several() {
    let mut rng = Rng::new(3);
    for _ in 0..rounds(300) {
        let mut d = Dag::new(rng.next(), LANES);
        let pointers = d.pointers();
        let m = d.mem_base(0, 0);
        let (p, q) = (pointers[0], pointers[1]);
        let bits = 1 + d.rng.below(5) as u32;
        let i = d.random_var(bits);
        let i = d.zext(i, 64);
        let b = d.random_var(8);
        let pi = d.op(Op::Add, p, i);
        // At the first offset past every index, the byte is what it was; one before, perhaps not.
        let end = 1i64 << bits;
        let stored = d.store(m, pi, 0, &[b]);
        let before = d.select(m, p, end);
        let past = d.select(stored, p, end);
        assert_eq!(d.nodes[before].term, d.nodes[past].term, "an address out of reach\n{}", d.history());
        let (before, last) = (d.select(m, p, end - 1), d.select(stored, p, end - 1));
        assert_ne!(d.nodes[before].term, d.nodes[last].term, "an address within reach\n{}", d.history());
        let other = d.store(m, q, 0, &[b]);
        let (x, y) = (d.select(m, p, 0), d.select(other, p, 0));
        assert_ne!(d.nodes[x].term, d.nodes[y].term, "two objects may be one\n{}", d.history());
        d.check();
    }
}
