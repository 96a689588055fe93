//! Likely paths straight: the order of blocks in which jumps take the least time, by how often each edge is gone.
//!
//! ```text
//! before                                   after, if r0 == 0 is rare
//!     if r0 != 0 goto found                    if r0 == 0 goto missed
//!     r0 = 1                               found:
//!     exit                                     r0 = *(u32 *)(r0 + 0)
//! found:                                       exit
//!     r0 = *(u32 *)(r0 + 0)                missed:
//!     exit                                     r0 = 1
//!                                              exit
//! ```
//!
//! Chains of blocks grow along the edges that gain most by falling through (Pettis and Hansen, "Profile guided code positioning"); chains
//! that hardly run come last, the others in the compiler's order. Only the order changes, so the prover needs no solver.

use bpf_isa::{Class, Costs};
use bpf_program::{BlockId, Frequencies, Function, Terminator, slot_count};

/// A chain whose blocks run in fewer of so many runs of the function comes last.
const RARE: f64 = 0.02;
/// What a slot counts, in picoseconds, where time does not tell.
const SLOT: f64 = 1e-3;
/// Picoseconds that an order has to save.
const LEAST: f64 = 1.0;

/// What the jumps of a run take in this order of blocks, in picoseconds.
pub fn jumps(f: &Function, frequencies: &Frequencies, costs: &Costs) -> f64 {
    let next = f.layout.iter().skip(1).map(|b| Some(*b)).chain([None]);
    f.layout.iter().zip(next).map(|(b, next)| end(f, *b, next, frequencies, costs).0).sum()
}

/// What the jumps at the end of a block take if this one comes next, and how many slots they have.
fn end(f: &Function, b: BlockId, next: Option<BlockId>, frequencies: &Frequencies, costs: &Costs) -> (f64, f64) {
    let time = |class: Class| f64::from(costs.of(class).independent);
    let (jump, jumped, passed) = (time(Class::Jump), time(Class::BranchTaken), time(Class::BranchNotTaken));
    match f.block(b).term {
        Terminator::Goto(to) if Some(to) == next => (0.0, 0.0),
        Terminator::Goto(_) => (frequencies.block(b) * jump, 1.0),
        Terminator::Exit { .. } => (0.0, 1.0),
        Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
            let (t, n) = if taken == fall {
                (0.0, frequencies.block(b))
            } else {
                (frequencies.edge(f, b, taken), frequencies.edge(f, b, fall))
            };
            let turns = matches!(f.block(b).term, Terminator::Branch { cond, .. } if cond.negate().is_some());
            match next {
                Some(next) if next == fall => (t * jumped + n * passed, 1.0),
                Some(next) if next == taken && turns => (n * jumped + t * passed, 1.0),
                _ => (t * jumped + n * (passed + jump), 2.0),
            }
        }
    }
}

/// The function with its blocks in a better order, if there is one of no more than so many slots.
pub fn straighten(f: &Function, frequencies: &Frequencies, costs: &Costs, most_slots: usize) -> Option<Function> {
    let mut new = f.clone();
    new.layout = order(f, frequencies, costs);
    let saved = jumps(f, frequencies, costs) - jumps(&new, frequencies, costs);
    (saved >= LEAST && slot_count(&new) <= most_slots.max(slot_count(f))).then_some(new)
}

fn order(f: &Function, frequencies: &Frequencies, costs: &Costs) -> Vec<BlockId> {
    let mut place = vec![usize::MAX; f.blocks.len()];
    for (i, b) in f.layout.iter().enumerate() {
        place[b.index()] = i;
    }
    let gain = |b: BlockId, to: BlockId| {
        let ((apart, more), (close, fewer)) =
            (end(f, b, None, frequencies, costs), end(f, b, Some(to), frequencies, costs));
        apart - close + SLOT * (more - fewer)
    };
    let mut edges: Vec<(f64, usize, usize)> = Vec::new();
    for &b in &f.layout {
        for to in f.block(b).term.successors().filter(|to| *to != f.entry() && *to != b) {
            edges.push((gain(b, to), place[b.index()], place[to.index()]));
        }
    }
    // Where it makes no difference the compiler's order stays.
    let is_near = |e: &(f64, usize, usize)| e.2 == e.1 + 1;
    edges.sort_by(|a, b| b.0.total_cmp(&a.0).then(is_near(b).cmp(&is_near(a))).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut chains: Vec<Vec<usize>> = (0..f.layout.len()).map(|i| vec![i]).collect();
    let mut chain_of: Vec<usize> = (0..f.layout.len()).collect();
    for (gain, from, to) in edges {
        let (a, b) = (chain_of[from], chain_of[to]);
        if gain <= 0.0 || a == b || chains[a].last() != Some(&from) || chains[b].first() != Some(&to) {
            continue;
        }
        let tail = std::mem::take(&mut chains[b]);
        tail.iter().for_each(|i| chain_of[*i] = a);
        chains[a].extend(tail);
    }
    chains.retain(|chain| !chain.is_empty());
    let is_rare = |chain: &Vec<usize>| chain.iter().all(|i| frequencies.block(f.layout[*i]) < RARE);
    chains.sort_by_key(|chain| (chain[0] != 0, is_rare(chain), chain[0]));
    chains.into_iter().flatten().map(|i| f.layout[i]).collect()
}

#[cfg(test)]
mod tests {
    use bpf_program::{Profile, ProgKind, lower};
    use bpf_testgen::listing;

    use super::*;

    fn text(f: &Function) -> Vec<String> {
        lower(f).expect("it lowers").listing.iter().map(|(_, i)| i.to_string()).collect()
    }

    const LOOKUP: &str = "if r1 != 0 goto found\nr0 = 1\nexit\nfound: r0 = 2\nexit";

    #[test]
    fn the_likely_side_falls_through() {
        let f = listing::function(ProgKind::Xdp, LOOKUP);
        let frequencies = |taken: u64| {
            let profile = Profile::new(&f, |b| if b == f.entry() { 100 } else { 50 }, |_| taken);
            Frequencies::of(&f, Some(&profile))
        };
        let costs = Costs::of_host();
        let new = straighten(&f, &frequencies(99), costs, 5).expect("it is better");
        assert_eq!(text(&new), ["if r1 == 0x0 goto +0x2", "r0 = 0x2", "exit", "r0 = 0x1", "exit"]);
        assert!(jumps(&new, &frequencies(99), costs) < jumps(&f, &frequencies(99), costs));
        // And stays where it does.
        assert!(straighten(&f, &frequencies(1), costs, 5).is_none());
        assert!(straighten(&new, &frequencies(99), costs, 5).is_none());
    }

    #[test]
    fn the_entry_stays_the_first_and_no_block_is_lost() {
        let text = "a: r1 += 1\nif r1 == 5 goto c\nif r1 == 6 goto a\nc: r0 = 1\nif r1 == 7 goto e\nr0 = 2\ne: exit";
        let f = listing::function(ProgKind::Xdp, text);
        let mut order = order(&f, &Frequencies::of(&f, None), Costs::of_host());
        assert_eq!(order[0], f.entry());
        let mut all = f.layout.clone();
        order.sort_unstable();
        all.sort_unstable();
        assert_eq!(order, all);
    }
}
