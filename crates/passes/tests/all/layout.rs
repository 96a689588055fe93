//! The order of blocks: as few jumps as there can be, and every block once.

use bpf_isa::parse_listing;
use bpf_passes::cfg;
use bpf_program::{Function, ProgKind, slot_count};
use bpf_testgen::listing;

fn function(text: &str) -> Function {
    listing::function(ProgKind::Xdp, text)
}

/// A jump on bits has no opposite: what it does not lead to has to come next, and the rest goes around that.
const BITS: &str = "
    r2 = *(u32 *)(r1 + 12)
    r3 = *(u32 *)(r1 + 16)
    r0 = 1
    if r2 > 9 goto +5
    if r2 & 4 goto +1
    goto +2
    r3 <<= 2
    if r3 > 100 goto +1
    if r3 == 7 goto +3
    r3 += r2
    r0 = r3
    goto +2
    r3 ^= r2
    r0 = r3
    exit";

#[test]
fn blocks_stand_so_that_few_jumps_are_needed() {
    let f = function(BITS);
    let mut g = f.clone();
    cfg::simplify(&mut g, true);
    assert!(slot_count(&g) < slot_count(&f), "{g}");
    let sorted = |f: &Function| {
        let mut blocks = f.layout.clone();
        blocks.sort();
        blocks.dedup();
        blocks.len()
    };
    assert_eq!(sorted(&g), g.layout.len(), "each block once");
    assert_eq!(g.layout[0], f.layout[0], "the entry stays the first");
}

/// All orders of the blocks of small graphs: none is shorter than the one that was found.
#[test]
fn no_other_order_is_shorter() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        // Forward jumps only.
        let blocks = random.usize(4..7);
        let mut text = String::from("r2 = *(u32 *)(r1 + 12)\nr0 = 0\n");
        for b in 0..blocks {
            let room = blocks - b - 1;
            text += &format!("r0 += {b}\n");
            match random.usize(0..3) {
                0 if room > 1 => text += &format!("if r2 & {} goto +{}\n", 1 << b, 2 * random.usize(1..room)),
                1 if room > 1 => text += &format!("if r2 == {b} goto +{}\n", 2 * random.usize(1..room)),
                _ if room > 1 => text += &format!("goto +{}\n", 2 * random.usize(0..room)),
                _ => text += "goto +0\n",
            }
        }
        text += "r0 ^= r2\nexit";
        let Ok(decoded) = parse_listing(&text) else { continue };
        assert_eq!(decoded.len(), 2 + 2 * blocks + 2);
        let mut g = function(&text);
        while cfg::simplify(&mut g, true) {}
        let mut least = usize::MAX;
        let mut order: Vec<_> = g.layout[1..].to_vec();
        permute(&mut order, 0, &mut |order| {
            let mut other = g.clone();
            other.layout[1..].copy_from_slice(order);
            least = least.min(slot_count(&other));
        });
        assert_eq!(slot_count(&g), least.min(slot_count(&g)), "{g}");
    }
}

fn permute<T: Copy>(items: &mut [T], from: usize, done: &mut impl FnMut(&[T])) {
    if from == items.len() {
        return done(items);
    }
    for i in from..items.len() {
        items.swap(from, i);
        permute(items, from + 1, done);
        items.swap(from, i);
    }
}
