//! Two parts of a function that do the same are kept once, and a slot of the frame says in which of the two a run is.
//!
//! ```text
//! before:     if r1 > 9 goto b                    after:     if r1 > 9 goto b
//!             r2 = *(u32 *)(r6 + 8)                          r2 = *(u32 *)(r6 + 8)
//!             *(u32 *)(r10 - 4) = r2                         r3 = 0
//!             …                                              *(u64 *)(r10 - 16) = r3
//!             r0 = call map_lookup_elem                      goto on
//!             if r0 == 0 goto c                           b: r2 = *(u32 *)(r6 + 12)
//!             …                                              r3 = 1
//!             goto end                                       *(u64 *)(r10 - 16) = r3
//!          b: r2 = *(u32 *)(r6 + 12)                     on: *(u32 *)(r10 - 4) = r2
//!             *(u32 *)(r10 - 4) = r2                         …
//!             …                                              r0 = call map_lookup_elem
//!             r0 = call map_lookup_elem                      if r0 == 0 goto ask
//!             if r0 == 0 goto d                              …
//!             …                                              goto end
//!             goto end                                  ask: r0 = *(u64 *)(r10 - 16)
//!                                                            if r0 != 0 goto d
//!                                                            goto c
//! ```
//! This is control-flow melding, or the merging of functions within one: what a compiler has inlined twice, with another
//! constant argument, is found again. Blocks count as alike that have the same operations, whatever their registers and order, and
//! end alike; pairs grow along edges, forwards and backwards. Where paired blocks go on to others, the slot is asked, which
//! takes two slots of code; where a part is entered, it is set, which takes one or two. Pairs that cost more than they save are
//! let go of. Whether the two parts do the same is for the prover to say.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bpf_facts::{Effect, Env, Facts, Liveness, StackSet, deepest_frame_use};
use bpf_isa::{Call, Cond, Insn, Reg, Size, Src, Width};
use bpf_passes::cfg::merge_chains;
use bpf_program::{Block, BlockId, Function, Op, Terminator, drop_unreachable, predecessors, slot_count};

use super::one_side::{is_copy, of_both_kinds, without_registers};
use super::pass::Pass;
use crate::Ssa;

/// Forms of one way to cut blocks, at most: the best ones.
const FORMS: usize = 2;
/// Blocks that each block is compared with, at most: those of the same kind that come next.
const OTHERS: usize = 16;
/// Blocks and edges of pairs that are looked at in all, at most, each as often as it is: some tenths of a second.
const WORK: usize = 2_000_000;
/// Sets of pairs that are kept, at most, and forms that are made of them.
const SETS: usize = 64;
const ATTEMPTS: usize = 8;
/// Slots of a block to begin with, at least.
const SEED: usize = 3;
/// Operations that blocks have in common at their ends, at least, to be cut there.
const COMMON: usize = 3;
/// Slots that another order of blocks may save where parts were melded.
const JUMPS: usize = 3;
/// Slots of a function up to which parts may begin and end in more places: so small steps are many, and rarely proven in larger ones.
const FINE: usize = 1000;
/// Slots that a form must save as estimated.
const WORTH: usize = 3;

/// The pass.
pub struct Melding;

impl Pass for Melding {
    fn name(&self) -> &'static str {
        "ssa-melding"
    }

    fn run(&self, _: &mut Ssa, _: &Env<'_>) -> bool {
        false
    }

    fn is_of_graphs(&self) -> bool {
        true
    }

    fn is_for_any_size(&self) -> bool {
        true
    }

    fn is_last(&self) -> bool {
        true
    }

    fn graphs(&self, f: &Function, env: &Env<'_>) -> Vec<Function> {
        let coarse = cut_behind_calls(f);
        let fine = (slot_count(f) <= FINE).then(|| cut_at_ends(&coarse));
        let is_other = |g: &Function| g.blocks.len() > coarse.blocks.len();
        let mut all = forms(&coarse, env);
        all.extend(fine.filter(is_other).iter().flat_map(|g| forms(g, env)));
        all
    }
}

/// What becomes of a function whose blocks are cut like this.
fn forms(f: &Function, env: &Env<'_>) -> Vec<Function> {
    let parts = Parts::of(f);
    let mut found = parts.pairs();
    if found.is_empty() {
        return vec![];
    }
    found.sort_by_key(|(saved, _)| std::cmp::Reverse(*saved));
    let facts = Facts::of(f, env);
    let live = Liveness::of(f, env, &facts);
    let depth = deepest_frame_use(f, env);
    let melded = |pairs| Melded { parts: &parts, pairs, env, facts: &facts, live: &live, depth }.form();
    let most = slot_count(f) + JUMPS;
    let made = found.iter().take(ATTEMPTS).filter_map(|(_, pairs)| melded(pairs));
    made.filter(|g| slot_count(g) < most).take(FORMS).collect()
}

/// The function with blocks that end behind each call, so that parts may begin and end there.
fn cut_behind_calls(f: &Function) -> Function {
    cut(f, |b| {
        let ops = &f.block(b).ops;
        let calls = ops.iter().enumerate().filter(|(_, op)| matches!(op.insn, Insn::Call(_))).map(|(i, _)| i + 1);
        calls.filter(|i| *i < ops.len()).collect()
    })
}

/// The function with blocks that begin where what they have in common with another begins.
fn cut_at_ends(f: &Function) -> Function {
    let mut ends: HashMap<(Vec<String>, Option<String>), Vec<BlockId>> = HashMap::new();
    for &b in &f.layout {
        let block = f.block(b);
        if let Some(from) = block.ops.len().checked_sub(COMMON) {
            let last: Vec<String> = block.ops[from..].iter().map(signature).collect();
            ends.entry((last, end(&block.term))).or_default().push(b);
        }
    }
    // Where all of a block is at another's end, it stays whole.
    let mut longest: HashMap<BlockId, usize> = HashMap::new();
    for (a, b) in neighbours(ends.into_values()) {
        let (x, y) = (&f.block(a).ops, &f.block(b).ops);
        let n = x.iter().rev().zip(y.iter().rev()).take_while(|(p, q)| signature(p) == signature(q)).count();
        for (block, ops) in [(a, x), (b, y)] {
            let most = longest.entry(block).or_default();
            *most = if n == ops.len() { usize::MAX } else { n.max(*most) };
        }
    }
    cut(f, |b| {
        let begin = longest.get(&b).and_then(|n| f.block(b).ops.len().checked_sub(*n));
        begin.into_iter().filter(|at| *at > 0).collect()
    })
}

/// The function with its blocks cut in front of these operations, which rise.
fn cut(f: &Function, at: impl Fn(BlockId) -> Vec<usize>) -> Function {
    let mut g = f.clone();
    g.layout.clear();
    for &b in &f.layout {
        g.layout.push(b);
        let mut end = b;
        let mut done = 0;
        for from in at(b) {
            let next = BlockId(g.blocks.len() as u32);
            let block = g.block_mut(end);
            let ops = block.ops.split_off(from - done);
            let term = std::mem::replace(&mut block.term, Terminator::Goto(next));
            g.blocks.push(Block { ops, term });
            g.layout.push(next);
            (end, done) = (next, from);
        }
    }
    g
}

/// What is alike in two blocks.
#[derive(PartialEq, Eq, Hash)]
struct Shape {
    /// The operations without registers and copies, sorted.
    ops: Vec<String>,
    /// Its end without registers: alike for a condition and its opposite.
    end: String,
}

/// A function's blocks and what they have in common.
struct Parts<'a> {
    f: &'a Function,
    preds: Vec<Vec<BlockId>>,
    /// By block: the same number for the same shape; none for what must not be shared.
    shapes: Vec<Option<usize>>,
}

/// The second part's blocks by those of the first.
type Pairs = BTreeMap<BlockId, BlockId>;

impl<'a> Parts<'a> {
    fn of(f: &'a Function) -> Parts<'a> {
        let mut numbers: HashMap<Shape, usize> = HashMap::new();
        let mut shapes = vec![None; f.blocks.len()];
        for &b in f.layout.iter().skip(1) {
            shapes[b.index()] = shape(f.block(b)).map(|s| {
                let next = numbers.len();
                *numbers.entry(s).or_insert(next)
            });
        }
        Parts { f, preds: predecessors(f), shapes }
    }

    /// Slots of a block, but for a jump that may go.
    fn slots(&self, b: BlockId) -> usize {
        let block = self.f.block(b);
        let end = usize::from(!matches!(block.term, Terminator::Goto(_)));
        block.ops.iter().map(|o| o.insn.slots()).sum::<usize>() + end
    }

    /// Where a block leads to, in the order of its normal condition.
    fn successors(&self, b: BlockId) -> [Option<BlockId>; 2] {
        match self.f.block(b).term {
            Terminator::Goto(t) => [Some(t), None],
            Terminator::Branch { cond, taken, fall, .. } if is_turned(cond) => [Some(fall), Some(taken)],
            Terminator::Branch { taken, fall, .. } => [Some(taken), Some(fall)],
            _ => [None, None],
        }
    }

    /// Pairs that save slots, each set once, with what they save as estimated.
    fn pairs(&self) -> Vec<(usize, Pairs)> {
        let mut alike: HashMap<usize, Vec<BlockId>> = HashMap::new();
        for &b in self.f.layout.iter().filter(|b| self.slots(**b) >= SEED) {
            self.shapes[b.index()].into_iter().for_each(|shape| alike.entry(shape).or_default().push(b));
        }
        let mut seeds: Vec<(usize, BlockId, BlockId)> =
            neighbours(alike.into_values()).into_iter().map(|(a, b)| (self.slots(a), a, b)).collect();
        seeds.sort_by_key(|(slots, a, b)| (std::cmp::Reverse(*slots), *a, *b));
        let mut seen: BTreeSet<(BlockId, BlockId)> = BTreeSet::new();
        let mut found: Vec<(usize, Pairs)> = vec![];
        let mut left = WORK;
        for (_, a, b) in seeds {
            if left == 0 || found.len() == SETS {
                break;
            }
            if seen.contains(&(a.min(b), a.max(b))) {
                continue;
            }
            let grown = self.grow(a, b, &mut left);
            seen.extend(grown.iter().map(|(x, y)| (*x.min(y), *x.max(y))));
            let (saved, pairs) = self.pruned(grown, &mut left);
            if saved >= WORTH && !found.iter().any(|(_, known)| *known == pairs) {
                found.push((saved, pairs));
            }
        }
        found
    }

    /// Whether two blocks have one shape.
    fn are_alike(&self, a: BlockId, b: BlockId) -> bool {
        let shape = |b: BlockId| self.shapes[b.index()];
        a != b && shape(a).is_some() && shape(a) == shape(b)
    }

    /// The pairs that two blocks belong to.
    fn grow(&self, a: BlockId, b: BlockId, left: &mut usize) -> Pairs {
        let mut pairs = Pairs::new();
        let mut used = BTreeSet::new();
        let mut todo = std::collections::VecDeque::from([(a, b)]);
        while let Some((x, y)) = todo.pop_front() {
            if !self.are_alike(x, y) || used.contains(&x) || used.contains(&y) {
                continue;
            }
            used.extend([x, y]);
            pairs.insert(x, y);
            for (u, v) in self.successors(x).into_iter().zip(self.successors(y)) {
                todo.extend(u.zip(v));
            }
            for &p in &self.preds[x.index()] {
                for &q in &self.preds[y.index()] {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        return pairs;
                    }
                    let side = |from: BlockId, to: BlockId| self.successors(from).iter().position(|s| *s == Some(to));
                    let is_new = !used.contains(&p) && !used.contains(&q);
                    if is_new && self.are_alike(p, q) && side(p, x) == side(q, y) {
                        todo.push_back((p, q));
                    }
                }
            }
        }
        pairs
    }

    /// Without pairs that cost more than they save; and what the rest saves.
    fn pruned(&self, mut pairs: Pairs, left: &mut usize) -> (usize, Pairs) {
        let edges = |b: &BlockId| 1 + self.preds[b.index()].len();
        let work: usize = pairs.iter().map(|(x, y)| edges(x) + edges(y)).sum();
        let mut saved = self.saved(&pairs);
        loop {
            let before = saved;
            for (x, y) in pairs.clone() {
                *left = left.saturating_sub(work);
                if *left == 0 {
                    break;
                }
                pairs.remove(&x);
                let less = self.saved(&pairs);
                if less > saved {
                    saved = less;
                } else {
                    pairs.insert(x, y);
                }
            }
            if saved == before {
                return (usize::try_from(saved).unwrap_or(0), pairs);
            }
        }
    }

    /// What pairs save, in slots, as estimated.
    fn saved(&self, pairs: &Pairs) -> isize {
        let roles = Roles::of(pairs);
        let (mut saved, mut questions) = (0, 0);
        let mut entries = BTreeSet::new();
        for (&x, &y) in pairs {
            saved += self.slots(y) as isize;
            for (u, v) in self.successors(x).into_iter().zip(self.successors(y)) {
                let (Some(u), Some(v)) = (u, v) else { continue };
                questions += isize::from(roles.target(Part::First, u) != roles.target(Part::Second, v));
            }
            for b in [x, y] {
                let ways = self.preds[b.index()].iter().map(|p| roles.target(roles.part(*p), b));
                entries.extend(ways.filter(|(_, set)| set.is_some()));
            }
        }
        // Where nobody asks, nothing has to be set.
        let sets = if questions == 0 { 0 } else { entries.len() as isize };
        saved - 2 * questions - sets
    }
}

/// Each with those that come next.
fn neighbours(groups: impl Iterator<Item = Vec<BlockId>>) -> Vec<(BlockId, BlockId)> {
    let of = |group: Vec<BlockId>| {
        let pairs = |(i, a): (usize, &BlockId)| {
            let a = *a;
            group[i + 1..].iter().take(OTHERS).map(move |b| (a, *b)).collect::<Vec<_>>()
        };
        group.iter().enumerate().flat_map(pairs).collect::<Vec<_>>()
    };
    groups.flat_map(of).collect()
}

/// In which part a run is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Part {
    Neither,
    First,
    Second,
}

/// Which block is of which part.
struct Roles<'a> {
    pairs: &'a Pairs,
    /// The first part's block in the place of one of the second.
    first_of: BTreeMap<BlockId, BlockId>,
}

impl Roles<'_> {
    fn of(pairs: &Pairs) -> Roles<'_> {
        Roles { pairs, first_of: pairs.iter().map(|(x, y)| (*y, *x)).collect() }
    }

    fn part(&self, b: BlockId) -> Part {
        match (self.pairs.contains_key(&b), self.first_of.contains_key(&b)) {
            (true, _) => Part::First,
            (_, true) => Part::Second,
            _ => Part::Neither,
        }
    }

    /// Where an edge to `to` leads for a run in this part, and what the slot is set to on the way.
    fn target(&self, part: Part, to: BlockId) -> (BlockId, Option<Part>) {
        let of = self.part(to);
        (self.first_of.get(&to).copied().unwrap_or(to), (of != Part::Neither && of != part).then_some(of))
    }
}

/// The function on the way: what blocks of the second part had led to is led to by those of the first.
struct Led {
    g: Function,
    /// Blocks that set the slot, by where they lead to.
    entries: BTreeMap<(BlockId, Part), BlockId>,
    /// Blocks that ask for it, each behind the one that leads to it.
    asks: Vec<(BlockId, BlockId)>,
}

impl Led {
    fn add(&mut self, block: Block) -> BlockId {
        self.g.blocks.push(block);
        BlockId(self.g.blocks.len() as u32 - 1)
    }

    /// The way to a block, over one that sets the slot if it has to be.
    fn lead(&mut self, (to, set): (BlockId, Option<Part>)) -> BlockId {
        let Some(part) = set else { return to };
        if let Some(entry) = self.entries.get(&(to, part)) {
            return *entry;
        }
        let entry = self.add(Block { ops: vec![], term: Terminator::Goto(to) });
        self.entries.insert((to, part), entry);
        entry
    }

    /// The order of blocks: what sets the slot for a part stands where that part began, what asks behind where it is asked.
    fn layout(&self, before: &[BlockId], roles: &Roles<'_>) -> Vec<BlockId> {
        let mut layout = vec![];
        for &b in before {
            layout.extend(self.entries.get(&(b, Part::First)));
            match roles.first_of.get(&b) {
                Some(first) => layout.extend(self.entries.get(&(*first, Part::Second))),
                None => layout.push(b),
            }
            layout.extend(self.asks.iter().filter(|(from, _)| *from == b).map(|(_, ask)| *ask));
        }
        layout
    }
}

/// Leads an end to other blocks, in the order of [`Parts::successors`].
fn lead_to(term: &mut Terminator, to: [Option<BlockId>; 2]) -> Option<()> {
    match term {
        Terminator::Goto(t) => *t = to[0]?,
        Terminator::Branch { cond, taken, fall, .. } => {
            let [s, t] = if is_turned(*cond) { [to[1]?, to[0]?] } else { [to[0]?, to[1]?] };
            (*taken, *fall) = (s, t);
        }
        _ => {}
    }
    Some(())
}

/// A function with the second part led through the first.
struct Melded<'a> {
    parts: &'a Parts<'a>,
    pairs: &'a Pairs,
    env: &'a Env<'a>,
    facts: &'a Facts,
    live: &'a Liveness,
    depth: i64,
}

impl Melded<'_> {
    fn form(&self) -> Option<Function> {
        let mut led = Led { g: self.parts.f.clone(), entries: BTreeMap::new(), asks: vec![] };
        let roles = Roles::of(self.pairs);
        for &b in &self.parts.f.layout {
            let mut term = self.parts.f.block(b).term.clone();
            match (roles.part(b), self.pairs.get(&b)) {
                (Part::Neither, _) => term.map_successors(|s| led.lead(roles.target(Part::Neither, s))),
                (Part::First, Some(&second)) => {
                    let mut to = self.parts.successors(b);
                    for (to, other) in to.iter_mut().zip(self.parts.successors(second)) {
                        if let Some(ways) = to.zip(other) {
                            *to = Some(self.lead_on(&mut led, &roles, b, ways)?);
                        }
                    }
                    lead_to(&mut term, to)?;
                }
                _ => {}
            }
            led.g.block_mut(b).term = term;
        }
        self.place_slot(&mut led)?;
        led.g.layout = led.layout(&self.parts.f.layout, &roles);
        drop_unreachable(&mut led.g);
        merge_chains(&mut led.g);
        Some(led.g)
    }

    /// Where a block of the first part leads to: to the first of these for a run in that part, to the other for one in the second.
    fn lead_on(&self, led: &mut Led, roles: &Roles<'_>, from: BlockId, (u, v): (BlockId, BlockId)) -> Option<BlockId> {
        let (p, q) = (roles.target(Part::First, u), roles.target(Part::Second, v));
        let fall = led.lead(p);
        if p == q {
            return Some(fall);
        }
        let taken = led.lead(q);
        let used = self.live.entry(u).regs.union(self.live.entry(v).regs);
        let dst = Reg::all().find(|r| *r != Reg::R10 && !used.contains(*r))?;
        let (cond, width, src) = (Cond::Ne, Width::W64, Src::Imm(0));
        let term = Terminator::Branch { cond, width, dst, src, taken, fall, origin: None };
        let load = Insn::Load { size: Size::DW, sext: false, dst, base: Reg::R10, off: 0 };
        let ask = led.add(Block { ops: vec![Op::new(load)], term });
        led.asks.push((from, ask));
        Some(ask)
    }

    /// Has the slot set where it has to be, and read from its place, if anyone asks for it.
    fn place_slot(&self, led: &mut Led) -> Option<()> {
        let Led { g, entries, asks } = led;
        if asks.is_empty() {
            return Some(());
        }
        let (off, size) = self.slot(g, entries, asks)?;
        for (&(to, part), &b) in &*entries {
            let came = if part == Part::Second { *self.pairs.get(&to)? } else { to };
            g.block_mut(b).ops = self.set(came, part, off, size)?;
        }
        for &(_, b) in &*asks {
            if let Some(Insn::Load { size: s, off: o, .. }) = g.block_mut(b).ops.first_mut().map(|o| &mut o.insn) {
                (*s, *o) = (size, off);
            }
        }
        Some(())
    }

    /// Sets the slot in front of a block. From a register: kernels before 6.3 forget what number was stored otherwise
    /// (`check_stack_write_fixed_off` in kernel/bpf/verifier.c), and would follow the wrong part.
    fn set(&self, b: BlockId, part: Part, off: i16, size: Size) -> Option<Vec<Op>> {
        let is_it = |n: u64| if part == Part::First { n == 0 } else { n << (64 - size.bits()) != 0 };
        let known = self.facts.entry(b)?;
        let held = |r: &Reg| known.reg(*r).as_const().is_some_and(is_it);
        let store = |r: Reg| Op::new(Insn::Store { size, base: Reg::R10, off, src: Src::Reg(r) });
        if let Some(r) = Reg::all().filter(|r| *r != Reg::R10).find(held) {
            return Some(vec![store(r)]);
        }
        let live = self.live.entry(b).regs;
        let r = Reg::all().find(|r| *r != Reg::R10 && !live.contains(*r))?;
        let src = Src::Imm(i32::from(part == Part::Second));
        Some(vec![Op::new(Insn::Mov { width: Width::W64, dst: r, src }), store(r)])
    }

    /// A place in the frame that nobody uses from where it is set to where it is asked for.
    fn slot(
        &self,
        g: &Function,
        entries: &BTreeMap<(BlockId, Part), BlockId>,
        asks: &[(BlockId, BlockId)],
    ) -> Option<(i16, Size)> {
        let sets: BTreeSet<BlockId> = entries.values().copied().collect();
        let all: Vec<BlockId> = (0..g.blocks.len() as u32).map(BlockId).collect();
        // Blocks in front of which it may still be asked for.
        let mut asked = vec![false; g.blocks.len()];
        asks.iter().for_each(|(_, b)| asked[b.index()] = true);
        let mut changed = true;
        while changed {
            changed = false;
            for &b in all.iter().rev() {
                let comes = g.block(b).term.successors().any(|s| asked[s.index()]);
                if comes && !asked[b.index()] && !sets.contains(&b) {
                    asked[b.index()] = true;
                    changed = true;
                }
            }
        }
        let f = self.parts.f;
        let mut used = StackSet::EMPTY;
        for &b in all.iter().filter(|b| b.index() < f.blocks.len() && asked[b.index()]) {
            for b in [Some(b), self.pairs.get(&b).copied()].into_iter().flatten() {
                let ops = &f.block(b).ops;
                (0..=ops.len()).for_each(|i| used = used.union(&self.live.before(b, i).stack));
                used = used.union(&self.live.after(b, ops.len()).stack);
                for (op, state) in ops.iter().zip(self.facts.states(f, b)) {
                    let effect = Effect::of(&state, op, self.env);
                    used = used.union(&effect.uses.stack).union(&effect.kills.stack);
                }
            }
        }
        let places = (1..=-self.depth / 8).map(|i| -8 * i);
        let free = |off: i64, size: Size| used.intersect(&StackSet::range(off, size.bytes())).is_empty();
        let sizes = [Size::DW, Size::W, Size::H, Size::B];
        let found =
            sizes.into_iter().find_map(|size| places.clone().find(|off| free(*off, size)).map(|o| (o, size)))?;
        Some((i16::try_from(found.0).ok()?, found.1))
    }
}

/// Whether the opposite of a condition stands for both.
fn is_turned(cond: Cond) -> bool {
    of_both_kinds(cond) != cond
}

/// What must be the same in blocks that are paired. `None`: what must stand once for each instruction that there was.
fn shape(block: &Block) -> Option<Shape> {
    let is_kept = |op: &Op| op.is_core() || matches!(op.insn, Insn::Opaque(_) | Insn::Call(Call::Local(_)));
    if block.ops.iter().any(is_kept) {
        return None;
    }
    let mut ops: Vec<String> = block.ops.iter().filter(|o| !is_copy(&o.insn)).map(signature).collect();
    ops.sort_unstable();
    Some(Shape { ops, end: end(&block.term)? })
}

/// An operation without its registers.
fn signature(op: &Op) -> String {
    format!("{:?} {:?}", without_registers(&op.insn), op.link.as_ref().map(|l| &l.symbol))
}

/// The end of a block without its registers, alike for a condition and its opposite. `None`: such ends are not shared.
fn end(term: &Terminator) -> Option<String> {
    match *term {
        Terminator::Branch { cond, width, src, .. } => {
            Some(format!("{:?} {width:?} {:?}", of_both_kinds(cond), src.imm()))
        }
        Terminator::Goto(_) => Some(String::new()),
        Terminator::Exit { .. } => Some("exit".to_owned()),
        Terminator::MayGoto { .. } => None,
    }
}
