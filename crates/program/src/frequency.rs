//! How often the blocks of a function run, and which way its branches go: by counts of runs, or as guessed from its shape.
//!
//! Counts are of the graph that was built of the object ([`Profile`]). A function that was made of that one has other blocks, so counts
//! are carried over by where instructions come from ([`Op::origin`](crate::Op::origin)): a branch that descends from a counted one goes the same
//! ways as often, turned round if its condition is; of another branch the blocks behind it tell. From the branches alone follows how often
//! each block runs. What nobody has counted is guessed (`guess`). To compare forms of one function the guess has to be one, too:
//! [`Profile::guessed`] takes it for counts, since what is guessed of a form hangs on things that a rewrite changes (how short an end is).
//!
//! Promise: this only weighs. No proof asks it, and a wrong count costs time, never behaviour.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use bpf_isa::{Call, Cond, Insn, Reg, Src, Width};

use crate::{BlockId, Dominators, Function, Terminator, predecessors, reverse_postorder};

/// How often the parts of a function ran, by the slots of the object's code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    entries: u64,
    /// By slot of each instruction: how often its block began.
    slots: BTreeMap<usize, u64>,
    /// By slot of the jump.
    branches: BTreeMap<usize, Branch>,
}

/// A counted branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Branch {
    /// `None` of `may_goto`.
    cond: Option<Cond>,
    taken: u64,
    fell: u64,
}

impl Profile {
    /// Of the function as it was built, whose blocks ran, and whose branches were taken, so often.
    pub fn new(f: &Function, runs: impl Fn(BlockId) -> u64, taken: impl Fn(BlockId) -> u64) -> Profile {
        let mut profile = Profile { entries: runs(f.entry()), ..Profile::default() };
        for &b in &f.layout {
            let block = f.block(b);
            let origins = block.ops.iter().filter_map(|o| o.origin).chain(block.term.origin());
            profile.slots.extend(origins.map(|slot| (slot, runs(b))));
            let cond = match block.term {
                Terminator::Branch { cond, .. } => Some(cond),
                Terminator::MayGoto { .. } => None,
                _ => continue,
            };
            if let Some(slot) = block.term.origin() {
                let taken = taken(b);
                profile.branches.insert(slot, Branch { cond, taken, fell: runs(b).saturating_sub(taken) });
            }
        }
        profile
    }

    /// What is guessed of a function as it was built, as if it had been counted.
    pub fn guessed(f: &Function) -> Profile {
        const RUNS: f64 = 1e9;
        let guess = Frequencies::of(f, None);
        let times = |b: BlockId| guess.block(b) * RUNS;
        Profile::new(f, |b| times(b).round() as u64, |b| (times(b) * guess.taken[b.index()]).round() as u64)
    }

    /// How often it was entered; a block that leads back to the beginning counts, too.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The share of runs of this branch in which it is taken, if it descends from a counted one that ran.
    fn taken(&self, term: &Terminator) -> Option<f64> {
        let known = self.branches.get(&term.origin()?)?;
        let all = known.taken + known.fell;
        if all == 0 {
            return None;
        }
        let share = known.taken as f64 / all as f64;
        // A test of some bits stands in the place of a comparison of those with 0.
        let plain = |cond: Cond| if cond == Cond::Set { Cond::Ne } else { cond };
        match (term, known.cond.map(plain)) {
            (Terminator::MayGoto { .. }, None) => Some(share),
            (Terminator::Branch { cond, .. }, Some(counted)) if plain(*cond) == counted => Some(share),
            (Terminator::Branch { cond, .. }, Some(counted)) if Some(plain(*cond)) == counted.negate() => {
                Some(1.0 - share)
            }
            _ => None,
        }
    }

    /// The slot that a block's code begins with, jumps without condition followed.
    fn first(f: &Function, b: BlockId) -> Option<usize> {
        let mut at = b;
        for _ in 0..f.layout.len() {
            let block = f.block(at);
            let first = block.ops.iter().filter_map(|o| o.origin).chain(block.term.origin()).next();
            if first.is_some() {
                return first;
            }
            let Terminator::Goto(next) = block.term else { return None };
            at = next;
        }
        None
    }

    /// How often the code ran that a block begins with.
    fn behind(&self, f: &Function, b: BlockId) -> Option<u64> {
        self.slots.get(&Self::first(f, b)?).copied()
    }

    /// The same, as the blocks before and behind the branch tell. A block that is reached from elsewhere, too, or that has copies, tells
    /// nothing of this branch; where neither block does, it is the share of a branch that asked something else in its place, this way
    /// round or the other, as is closer to what the blocks ran.
    fn taken_by_blocks(&self, f: &Function, b: BlockId, around: &Around) -> Option<f64> {
        let (Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. }) = f.block(b).term else {
            return None;
        };
        let (t, l) = (self.behind(f, taken)?, self.behind(f, fall)?);
        let tells = |to: BlockId| around.preds[to.index()].len() == 1 && around.is_alone(f, to);
        let all = self.behind(f, b).filter(|all| *all > 0 && around.is_alone(f, b));
        let of_both = || (t + l > 0).then(|| t as f64 / (t + l) as f64);
        let share = match (tells(taken), tells(fall), all) {
            (true, true, _) => return of_both(),
            (true, false, Some(all)) => t.min(all) as f64 / all as f64,
            (false, true, Some(all)) => 1.0 - l.min(all) as f64 / all as f64,
            _ => {
                let counted = f.block(b).term.origin().and_then(|slot| self.branches.get(&slot));
                let by_blocks = of_both()?;
                let Some(Branch { taken, fell, .. }) = counted.filter(|c| c.taken + c.fell > 0) else {
                    return Some(by_blocks);
                };
                let share = *taken as f64 / (taken + fell) as f64;
                if (share - by_blocks).abs() <= (1.0 - share - by_blocks).abs() { share } else { 1.0 - share }
            }
        };
        Some(share)
    }
}

/// What of a function tells how far the count of a block is that of one way.
struct Around {
    preds: Vec<Vec<BlockId>>,
    /// How many instructions come from a slot.
    copies: BTreeMap<usize, usize>,
}

impl Around {
    fn of(f: &Function) -> Around {
        let mut copies = BTreeMap::new();
        for block in f.layout.iter().map(|b| f.block(*b)) {
            for slot in block.ops.iter().filter_map(|o| o.origin).chain(block.term.origin()) {
                *copies.entry(slot).or_default() += 1;
            }
        }
        Around { preds: predecessors(f), copies }
    }

    /// Whether the code that a block begins with stands nowhere else.
    fn is_alone(&self, f: &Function, b: BlockId) -> bool {
        Profile::first(f, b).is_some_and(|slot| self.copies.get(&slot) == Some(&1))
    }
}

/// How often each block of a function runs, and each branch is taken, for one run of the function.
#[derive(Clone, Debug)]
pub struct Frequencies {
    blocks: Vec<f64>,
    /// The share in which the branch at the end of a block is taken.
    taken: Vec<f64>,
}

/// Turns over the graph, at most: a loop that goes round often takes that many.
const TURNS: usize = 256;
/// What is closer than this does not count as a change.
const CLOSE: f64 = 1e-6;
/// No block counts for more.
const MOST: f64 = 1e6;

impl Frequencies {
    /// By this profile, if there is one and it was entered; otherwise as guessed.
    pub fn of(f: &Function, profile: Option<&Profile>) -> Frequencies {
        let profile = profile.filter(|p| p.entries > 0);
        let dominators = Dominators::of(f);
        // Only where a branch was not counted.
        let around = LazyCell::new(|| Around::of(f));
        let mut taken = vec![0.0; f.blocks.len()];
        for &b in &f.layout {
            let term = &f.block(b).term;
            let (Terminator::Branch { .. } | Terminator::MayGoto { .. }) = term else { continue };
            let counted = profile.and_then(|p| p.taken(term).or_else(|| p.taken_by_blocks(f, b, &around)));
            taken[b.index()] = counted.unwrap_or_else(|| guess(f, b, &dominators));
        }
        let mut frequencies = Frequencies { blocks: vec![0.0; f.blocks.len()], taken };
        // Where it begins decides how soon it ends, and not where.
        if let Some(p) = profile {
            for &b in &f.layout {
                frequencies.blocks[b.index()] = p.behind(f, b).map_or(0.0, |n| n as f64 / p.entries as f64);
            }
        }
        frequencies.solve(f);
        frequencies
    }

    fn solve(&mut self, f: &Function) {
        let (order, cyclic) = reverse_postorder(f);
        let preds = predecessors(f);
        for _ in 0..if cyclic { TURNS } else { 1 } {
            let mut changed = false;
            for &b in &order {
                let entered = if b == f.entry() { 1.0 } else { 0.0 };
                let runs = preds[b.index()].iter().map(|p| self.edge(f, *p, b)).sum::<f64>() + entered;
                let runs = runs.min(MOST);
                changed |= (runs - self.blocks[b.index()]).abs() > CLOSE * runs.max(1.0);
                self.blocks[b.index()] = runs;
            }
            if !changed {
                break;
            }
        }
    }

    /// How often control goes from one block to another.
    pub fn edge(&self, f: &Function, from: BlockId, to: BlockId) -> f64 {
        let runs = self.blocks[from.index()];
        match f.block(from).term {
            Terminator::Goto(t) if t == to => runs,
            Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
                let share = self.taken[from.index()];
                runs * (if taken == to { share } else { 0.0 } + if fall == to { 1.0 - share } else { 0.0 })
            }
            _ => 0.0,
        }
    }

    /// How often a block runs.
    pub fn block(&self, b: BlockId) -> f64 {
        self.blocks[b.index()]
    }
}

/// Shares of branches as they are in most code (Ball and Larus, "Branch prediction for free"; Wu and Larus for putting them together):
/// what leads back is taken, pointers are not null, calls succeed, things are not equal, and short ends are for errors.
fn guess(f: &Function, b: BlockId, dominators: &Dominators) -> f64 {
    let block = f.block(b);
    let (Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. }) = block.term else {
        return 0.0;
    };
    if let Terminator::MayGoto { .. } = block.term {
        const SPENT: f64 = 0.01;
        return SPENT;
    }
    let back = |to: BlockId| dominators.dominates(to, b);
    let mut share = 0.5;
    let mut say = |p: f64| share = share * p / (share * p + (1.0 - share) * (1.0 - p));
    match (back(taken), back(fall)) {
        (true, false) => say(0.88),
        (false, true) => say(0.12),
        _ => {}
    }
    match (is_short_end(f, taken), is_short_end(f, fall)) {
        (true, false) => say(0.28),
        (false, true) => say(0.72),
        _ => {}
    }
    if let Terminator::Branch { cond, width, dst, src, .. } = block.term {
        let null = width == Width::W64 && src == Src::Imm(0) && is_of_call(f, b, dst);
        match cond {
            Cond::Eq => say(if null { 0.1 } else { 0.35 }),
            Cond::Ne => say(if null { 0.9 } else { 0.65 }),
            Cond::Slt | Cond::Sle if matches!(src, Src::Imm(0 | -1)) => say(0.2),
            Cond::Sgt | Cond::Sge if matches!(src, Src::Imm(0 | -1)) => say(0.8),
            _ => {}
        }
    }
    share
}

/// Whether the function ends there with next to nothing done.
fn is_short_end(f: &Function, b: BlockId) -> bool {
    const SHORT: usize = 2;
    let mut at = b;
    for _ in 0..SHORT {
        let block = f.block(at);
        match block.term {
            _ if block.ops.len() > SHORT => return false,
            Terminator::Exit { .. } => return true,
            Terminator::Goto(next) => at = next,
            _ => return false,
        }
    }
    false
}

/// Whether the register holds what a helper has returned just before.
fn is_of_call(f: &Function, b: BlockId, reg: Reg) -> bool {
    let last = f.block(b).ops.iter().rev().find(|o| o.insn.defs().contains(reg));
    reg == Reg::R0 && last.is_some_and(|o| matches!(o.insn, Insn::Call(Call::Helper(_))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bpf_isa::{decode_all, encode_all, parse_listing};

    use super::*;
    use crate::{ProgKind, build_from_insns};

    fn function(text: &str) -> Function {
        let code = encode_all(&parse_listing(text).expect("instructions")).expect("code");
        build_from_insns("f", ProgKind::Xdp, &decode_all(&code).expect("code"), HashMap::new()).expect("a graph")
    }

    const LOOP: &str = "r0 = 0\nr0 += 1\nif r0 < 10 goto -2\nexit";

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    #[test]
    fn loops_are_guessed_to_go_round() {
        let f = function(LOOP);
        let body = f.layout[1];
        assert!(Frequencies::of(&f, None).block(body) > 4.0);
        assert!(close(Frequencies::of(&f, None).block(f.layout[2]), 1.0));
    }

    #[test]
    fn counts_say_how_often_blocks_run() {
        let f = function(LOOP);
        let body = f.layout[1];
        let profile = Profile::new(&f, |b| if b == body { 100 } else { 10 }, |_| 90);
        let found = Frequencies::of(&f, Some(&profile));
        assert!(close(found.block(body), 10.0), "{found:?}");
        assert!(close(found.edge(&f, body, body), 9.0));
    }

    #[test]
    fn a_branch_that_is_turned_round_goes_the_same_way() {
        let mut f = function("if r1 == 0 goto +2\nr0 = 1\nexit\nr0 = 2\nexit");
        let entry = f.entry();
        let profile = Profile::new(&f, |_| 10, |_| 9);
        let Terminator::Branch { cond, taken, fall, .. } = &mut f.block_mut(entry).term else { panic!("a branch") };
        let likely = *taken;
        *cond = Cond::Ne;
        std::mem::swap(taken, fall);
        assert!(close(Frequencies::of(&f, Some(&profile)).block(likely), 0.9));
        // Of one that asks something else the blocks behind it tell.
        let of_block = |b: BlockId| if b == likely { 3 } else { 1 };
        let profile = Profile::new(&f, of_block, |_| 0);
        let Terminator::Branch { cond, .. } = &mut f.block_mut(entry).term else { panic!("a branch") };
        *cond = Cond::Gt;
        assert!(close(Frequencies::of(&f, Some(&profile)).block(likely), 0.75));
    }

    #[test]
    fn a_test_of_bits_goes_the_way_of_the_comparison_that_it_stands_for() {
        for (counted, share) in [(Cond::Ne, 0.9), (Cond::Eq, 0.1), (Cond::Set, 0.9)] {
            let mut f = function("if r1 == 0 goto +2\nr0 = 1\nexit\nr0 = 2\nexit");
            let entry = f.entry();
            let with = |f: &mut Function, to: Cond| {
                let Terminator::Branch { cond, taken, .. } = &mut f.block_mut(entry).term else { panic!("a branch") };
                *cond = to;
                *taken
            };
            with(&mut f, counted);
            let profile = Profile::new(&f, |_| 10, |_| 9);
            let taken = with(&mut f, Cond::Set);
            assert!(close(Frequencies::of(&f, Some(&profile)).block(taken), share), "{counted:?}");
        }
    }

    /// An end that gets shorter is no less likely for that.
    #[test]
    fn forms_of_a_function_are_weighed_by_one_guess() {
        let long = function("if r1 > 7 goto +4\nr2 = 1\nr3 = 2\nr0 = 1\nexit\nr2 = 1\nr3 = 2\nr0 = 2\nexit");
        let guess = Profile::guessed(&long);
        let mut short = long.clone();
        let Terminator::Branch { taken, .. } = long.block(long.entry()).term else { panic!("a branch") };
        short.block_mut(taken).ops.drain(..2);
        let [of_itself, of_original] = [None, Some(&guess)].map(|p| Frequencies::of(&short, p).block(taken));
        assert!(close(of_original, 0.5) && of_itself < 0.3, "{of_itself} {of_original}");
        assert!(close(Frequencies::of(&long, Some(&guess)).block(taken), Frequencies::of(&long, None).block(taken)));
    }

    /// Two tests with one exit: of one that was put for the second, the block that only it leads to tells, not the exit they share.
    #[test]
    fn an_exit_that_other_branches_share_tells_nothing_of_this_one() {
        let mut f = function("if r1 > 7 goto +4\nr2 = 1\nif r2 > r1 goto +2\nr0 = 1\nexit\nr0 = 2\nexit");
        let [first, second, body, end] = f.layout[..] else { panic!("{:?}", f.layout) };
        let runs = |b: BlockId| {
            *[(first, 100), (second, 40), (body, 30), (end, 70)].iter().find(|x| x.0 == b).map(|x| &x.1).unwrap()
        };
        let profile = Profile::new(&f, runs, |b| if b == first { 60 } else { 10 });
        let Terminator::Branch { cond, .. } = &mut f.block_mut(second).term else { panic!("a branch") };
        *cond = Cond::Set;
        let found = Frequencies::of(&f, Some(&profile));
        assert!(close(found.block(body), 0.3) && close(found.block(end), 0.7), "{found:?}");
    }

    #[test]
    fn what_was_never_entered_is_guessed() {
        let f = function(LOOP);
        let profile = Profile::new(&f, |_| 0, |_| 0);
        let body = f.layout[1];
        assert!(close(Frequencies::of(&f, Some(&profile)).block(body), Frequencies::of(&f, None).block(body)));
    }

    #[test]
    fn null_is_unlikely_and_errors_are() {
        let f = function("call 1\nif r0 == 0 goto +2\nr1 = 1\nr0 = *(u32 *)(r0 + 0)\nexit");
        let end = f.layout[2];
        assert!(Frequencies::of(&f, None).edge(&f, f.entry(), end) < 0.2);
    }
}
