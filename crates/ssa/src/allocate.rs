//! Register allocation by coalescing and colouring.
//!
//! A move costs a slot and a register costs nothing, so the aim is few moves: every place where a value may have to
//! change its register (parameters of blocks, arguments of calls, results that replace an operand) is a *group of
//! moves* that happen at once; two registers joined by a move become one unless both are needed at the same time; then
//! the graph of what is needed at the same time is coloured with r0 … r9. Registers that calls demand are nodes of that
//! graph from the start.
//!
//! Nothing is ever spilled: a function for which no colouring is found stays as it was. Where joining too much is what
//! makes it impossible, the joined registers are taken apart again, one group at a time. Among several orders of
//! joining the caller takes the one that gives fewest slots.

use bpf_isa::{Reg, RegSet};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Block;
use crate::select::{Machine, MachineTerm, Source, Virtual};

/// r0 … r9, then the virtual registers.
pub(crate) const FIXED: usize = 10;

/// A register in the allocation: one of r0 … r9, or a virtual one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Node(u32);

impl Node {
    pub(crate) fn fixed(r: Reg) -> Node {
        Node(r.index() as u32)
    }
    pub(crate) fn of(v: Virtual) -> Node {
        Node(v.0 + FIXED as u32)
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a move takes its value from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    Node(Node),
    Const(i64),
    Frame(i32),
}

/// One step of a block, in order.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// All at once: every source is read before any register is set.
    Moves(Vec<(Node, From)>),
    /// Instruction `i` of the block: what it reads, sets, and leaves without a value.
    Inst { i: usize, reads: Vec<Node>, sets: Option<Node>, clobbers: RegSet },
}

/// A block, or the moves of one edge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    /// What the end reads.
    pub(crate) end: Vec<Node>,
    pub(crate) succs: Vec<usize>,
}

/// The function as steps: first a unit for each block, then one for each edge that needs moves.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    pub(crate) units: Vec<Steps>,
    /// The unit of an edge's moves.
    pub(crate) edges: FxHashMap<(Block, usize), usize>,
    /// What each unit's start needs.
    pub(crate) live_in: Vec<Bits>,
    nodes: usize,
}

impl Units {
    pub(crate) fn of(m: &Machine) -> Units {
        let mut units = vec![Steps::default(); m.blocks.len()];
        let mut edges = FxHashMap::default();
        for &b in &m.layout {
            let block = &m.blocks[b.index()];
            let mut steps = vec![];
            if Some(&b) == m.layout.first() {
                let moves = m.entry.iter().map(|(v, r)| (Node::of(*v), From::Node(Node::fixed(*r)))).collect();
                steps.push(Step::Moves(moves));
            }
            for (i, inst) in block.insts.iter().enumerate() {
                let mut before = vec![];
                let mut reads = vec![];
                for (n, u) in inst.uses.iter().enumerate() {
                    match (u.fixed, inst.tied, inst.def) {
                        (Some(r), ..) => {
                            before.push((Node::fixed(r), From::Node(Node::of(u.of))));
                            reads.push(Node::fixed(r));
                        }
                        (None, Some(t), Some(d)) if t == n => {
                            before.push((Node::of(d), From::Node(Node::of(u.of))));
                            reads.push(Node::of(d));
                        }
                        _ => reads.push(Node::of(u.of)),
                    }
                }
                if !before.is_empty() {
                    steps.push(Step::Moves(before));
                }
                let sets = match inst.def_in {
                    Some(r) => Some(Node::fixed(r)),
                    None => inst.def.map(Node::of),
                };
                steps.push(Step::Inst { i, reads, sets, clobbers: inst.clobbers });
                if let (Some(r), Some(d)) = (inst.def_in, inst.def) {
                    steps.push(Step::Moves(vec![(Node::of(d), From::Node(Node::fixed(r)))]));
                }
            }
            let mut end = vec![];
            match &block.term {
                MachineTerm::Branch { a, b, frame, .. } => {
                    end.extend((!frame[0]).then_some(Node::of(*a)));
                    end.extend(b.ok().filter(|_| !frame[1]).map(Node::of));
                }
                MachineTerm::Exit { value: Some(v), .. } => {
                    steps.push(Step::Moves(vec![(Node::fixed(Reg::R0), From::Node(Node::of(*v)))]));
                    end.push(Node::fixed(Reg::R0));
                }
                _ => {}
            }
            let mut succs = vec![];
            for (n, e) in block.term.edges().enumerate() {
                let moves: Vec<(Node, From)> = e
                    .moves
                    .iter()
                    .map(|(d, s)| {
                        let from = match s {
                            Source::Virtual(v) => From::Node(Node::of(*v)),
                            Source::Const(c) => From::Const(*c),
                            Source::Frame(n) => From::Frame(*n),
                        };
                        (Node::of(*d), from)
                    })
                    .collect();
                if moves.is_empty() {
                    succs.push(e.to.index());
                    continue;
                }
                let id = units.len();
                edges.insert((b, n), id);
                units.push(Steps { steps: vec![Step::Moves(moves)], end: vec![], succs: vec![e.to.index()] });
                succs.push(id);
            }
            units[b.index()] = Steps { steps, end, succs };
        }
        let mut all = Units { units, edges, live_in: vec![], nodes: m.homes.len() + FIXED };
        all.find_live();
        all
    }

    fn find_live(&mut self) {
        let mut live = vec![Bits::new(self.nodes); self.units.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for u in (0..self.units.len()).rev() {
                let mut now = self.live_before_end(u, &live);
                for s in self.units[u].steps.iter().rev() {
                    back(s, &mut now);
                }
                if now != live[u] {
                    live[u] = now;
                    changed = true;
                }
            }
        }
        self.live_in = live;
    }

    /// What is needed before the end of a unit's steps.
    pub(crate) fn live_end(&self, u: usize) -> Bits {
        self.live_before_end(u, &self.live_in)
    }

    fn live_before_end(&self, u: usize, live_in: &[Bits]) -> Bits {
        let mut now = Bits::new(self.nodes);
        for s in &self.units[u].succs {
            now.add(&live_in[*s]);
        }
        self.units[u].end.iter().for_each(|n| now.set(n.index()));
        now
    }
}

/// What is needed before a step, given what is needed behind it.
pub(crate) fn back(s: &Step, live: &mut Bits) {
    match s {
        Step::Moves(moves) => {
            moves.iter().for_each(|(d, _)| live.clear(d.index()));
            for (_, f) in moves {
                if let From::Node(n) = f {
                    live.set(n.index());
                }
            }
        }
        Step::Inst { reads, sets, clobbers, .. } => {
            sets.iter().for_each(|n| live.clear(n.index()));
            clobbers.iter().for_each(|r| live.clear(r.index()));
            reads.iter().for_each(|n| live.set(n.index()));
        }
    }
}

/// A set of nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    fn new(n: usize) -> Bits {
        Bits(vec![0; n.div_ceil(64)])
    }
    fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
    fn clear(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }
    fn add(&mut self, o: &Bits) {
        self.0.iter_mut().zip(&o.0).for_each(|(a, b)| *a |= b);
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        numbers(&self.0)
    }
}

/// The numbers in a set.
fn numbers(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(w, bits)| {
        let mut rest = *bits;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let n = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                w * 64 + n
            })
        })
    })
}

/// Which register each node has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Allocation(Vec<Option<Reg>>);

impl Allocation {
    pub(crate) fn reg(&self, n: Node) -> Reg {
        self.0[n.index()].unwrap_or(Reg::R0)
    }
    pub(crate) fn regs(&self, live: &Bits) -> RegSet {
        live.iter().filter_map(|n| self.0[n]).fold(RegSet::EMPTY, RegSet::with)
    }
}

/// What is needed at the same time as what: a square of bits, since it is copied for every try.
#[derive(Clone, Debug)]
pub(crate) struct Conflicts {
    /// Words of a row.
    width: usize,
    rows: Vec<u64>,
}

impl Conflicts {
    pub(crate) fn of(units: &Units) -> Conflicts {
        let width = units.nodes.div_ceil(64);
        let mut c = Conflicts { width, rows: vec![0; width * units.nodes] };
        for a in 0..FIXED {
            for b in 0..FIXED {
                c.add(a, b);
            }
        }
        for u in 0..units.units.len() {
            let mut live = units.live_end(u);
            for s in units.units[u].steps.iter().rev() {
                match s {
                    Step::Moves(moves) => {
                        for (i, (d, from)) in moves.iter().enumerate() {
                            let source = match from {
                                From::Node(n) => Some(n.index()),
                                _ => None,
                            };
                            live.iter().filter(|n| Some(*n) != source).for_each(|n| c.add(d.index(), n));
                            // Others that are set at once hold something else.
                            for (e, other) in &moves[..i] {
                                if other != from || source.is_none() {
                                    c.add(d.index(), e.index());
                                }
                            }
                        }
                    }
                    Step::Inst { sets, clobbers, .. } => {
                        for d in sets.iter().map(|n| n.index()).chain(clobbers.iter().map(Reg::index)) {
                            live.iter().for_each(|n| c.add(d, n));
                        }
                        // The result is not in a register that is left without a value.
                        if let Some(d) = sets {
                            clobbers.iter().for_each(|r| c.add(d.index(), r.index()));
                        }
                    }
                }
                back(s, &mut live);
            }
        }
        c
    }

    /// Whether more than ten values are seen to be needed at once: then no order of joining makes room for them. (Joining only adds
    /// conflicts; values that are copies of each other have none and are not counted twice.)
    pub(crate) fn are_too_many(&self, units: &Units) -> bool {
        let is_crowd = |live: &Bits| {
            let mut crowd: Vec<usize> = vec![];
            for n in live.iter() {
                if crowd.iter().all(|m| self.has(*m, n)) {
                    crowd.push(n);
                }
            }
            crowd.len() > FIXED
        };
        for (u, unit) in units.units.iter().enumerate() {
            let mut live = units.live_end(u);
            if is_crowd(&live) {
                return true;
            }
            for step in unit.steps.iter().rev() {
                if let Step::Inst { sets, clobbers, .. } = step {
                    let mut at_once = live.clone();
                    sets.iter().for_each(|n| at_once.set(n.index()));
                    clobbers.iter().for_each(|r| at_once.set(r.index()));
                    if is_crowd(&at_once) {
                        return true;
                    }
                }
                back(step, &mut live);
                if is_crowd(&live) {
                    return true;
                }
            }
        }
        false
    }

    /// What a node is in conflict with.
    fn of_node(&self, n: usize) -> &[u64] {
        &self.rows[n * self.width..][..self.width]
    }

    fn has(&self, a: usize, b: usize) -> bool {
        self.rows[a * self.width + b / 64] >> (b % 64) & 1 == 1
    }

    fn count(&self, n: usize) -> usize {
        self.of_node(n).iter().map(|w| w.count_ones() as usize).sum()
    }

    fn add(&mut self, a: usize, b: usize) {
        if a != b {
            self.rows[a * self.width + b / 64] |= 1 << (b % 64);
            self.rows[b * self.width + a / 64] |= 1 << (a % 64);
        }
    }

    fn join(&mut self, into: usize, gone: usize) {
        for word in 0..self.width {
            let mut rest = std::mem::take(&mut self.rows[gone * self.width + word]);
            while rest != 0 {
                let n = word * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                self.rows[n * self.width + gone / 64] &= !(1 << (gone % 64));
                self.add(into, n);
            }
        }
    }
}

/// Tries of taking joined registers apart.
const TRIES: usize = 40;

/// What allocation is to achieve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// Few moves; the number is the order in which they are tried to be avoided.
    FewMoves(u64),
    /// Values stay where the original has them.
    Homes,
}

/// Allocates. `None` if no colouring was found.
pub(crate) fn allocate(units: &Units, conflicts: &Conflicts, homes: &[Option<Reg>], aim: Aim) -> Option<Allocation> {
    let mut moves: Vec<(usize, usize)> = Vec::new();
    for u in &units.units {
        for s in &u.steps {
            if let Step::Moves(m) = s {
                moves.extend(m.iter().filter_map(|(d, f)| match f {
                    From::Node(n) => Some((d.index(), n.index())),
                    _ => None,
                }));
            }
        }
    }
    if let Aim::FewMoves(order) = aim {
        shuffle(&mut moves, order);
    }
    // Registers that are not to be joined with others.
    let mut apart: FxHashSet<usize> = FxHashSet::default();
    for _ in 0..TRIES {
        match colour(units, conflicts, homes, &moves, &apart, aim) {
            Ok(a) => return Some(a),
            Err(class) => {
                let before = apart.len();
                // The one with most conflicts of its own.
                let worst =
                    class.iter().filter(|n| **n >= FIXED && !apart.contains(n)).max_by_key(|n| conflicts.count(**n));
                apart.extend(worst);
                if apart.len() == before {
                    return None;
                }
            }
        }
    }
    None
}

/// Puts the list into one of many orders; number 0 leaves it.
fn shuffle<T>(list: &mut [T], order: u64) {
    let mut x = order.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if order == 0 {
        return;
    }
    if order == 1 {
        list.reverse();
        return;
    }
    for i in (1..list.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        list.swap(i, (x % (i as u64 + 1)) as usize);
    }
}

/// Nodes that are joined, as lists.
struct Classes {
    leader: Vec<usize>,
    /// Behind each node the next of its class; itself, where it is the last one.
    next: Vec<usize>,
    /// By leader.
    last: Vec<usize>,
}

impl Classes {
    /// Each node alone.
    fn new(n: usize) -> Classes {
        let alone: Vec<usize> = (0..n).collect();
        Classes { leader: alone.clone(), next: alone.clone(), last: alone }
    }

    /// The nodes of a leader, which is the first of them; of what is no leader, some of its class.
    fn members(&self, leader: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(leader), |m| Some(self.next[*m]).filter(|next| next != m))
    }

    fn join(&mut self, into: usize, gone: usize) {
        let mut member = gone;
        loop {
            self.leader[member] = into;
            match self.next[member] {
                next if next == member => break,
                next => member = next,
            }
        }
        self.next[self.last[into]] = gone;
        self.last[into] = member;
    }
}

/// Joins and colours; or the joined registers for which no colour was left.
fn colour(
    units: &Units,
    conflicts: &Conflicts,
    homes: &[Option<Reg>],
    moves: &[(usize, usize)],
    apart: &FxHashSet<usize>,
    aim: Aim,
) -> Result<Allocation, Vec<usize>> {
    let n = units.nodes;
    let mut c = conflicts.clone();
    let mut classes = Classes::new(n);
    let mut unjoined = Vec::new();
    for &(d, s) in moves {
        if apart.contains(&d) || apart.contains(&s) {
            unjoined.push((d, s));
            continue;
        }
        let (a, b) = (classes.leader[d], classes.leader[s]);
        if a == b {
            continue;
        }
        let moves_away = aim == Aim::Homes && {
            let home = |class: usize| {
                let mut all = classes.members(class);
                all.find_map(|m| if m < FIXED { Reg::new(m as u8) } else { homes[m - FIXED] })
            };
            matches!((home(a), home(b)), (Some(x), Some(y)) if x != y)
        };
        if c.has(a, b) || a < FIXED && b < FIXED || moves_away {
            unjoined.push((d, s));
            continue;
        }
        let (into, gone) = if b < FIXED { (b, a) } else { (a, b) };
        c.join(into, gone);
        classes.join(into, gone);
    }
    // Simplify: the one with fewest neighbours left goes first, and is coloured last.
    let mut degree: Vec<usize> = (0..n).map(|i| c.count(i)).collect();
    let most = degree.iter().max().copied().unwrap_or(0);
    let mut by_degree: Vec<Vec<usize>> = vec![vec![]; most + 1];
    (FIXED..n).filter(|i| classes.leader[*i] == *i).for_each(|i| by_degree[degree[i]].push(i));
    let mut gone = vec![false; n];
    let mut stack = Vec::with_capacity(n);
    let mut least = 0;
    while least <= most {
        let Some(node) = by_degree[least].pop() else {
            least += 1;
            continue;
        };
        if gone[node] || degree[node] != least {
            continue;
        }
        gone[node] = true;
        stack.push(node);
        for m in numbers(c.of_node(node)).filter(|m| *m >= FIXED && !gone[*m]) {
            degree[m] -= 1;
            by_degree[degree[m]].push(m);
            least = least.min(degree[m]);
        }
    }
    let mut partners_of: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    for (d, s) in &unjoined {
        let (a, b) = (classes.leader[*d], classes.leader[*s]);
        partners_of.entry(a).or_default().push(b);
        partners_of.entry(b).or_default().push(a);
    }
    let mut regs: Vec<Option<Reg>> = vec![None; n];
    regs.iter_mut().zip(Reg::all().take(FIXED)).for_each(|(r, own)| *r = Some(own));
    while let Some(node) = stack.pop() {
        let taken = numbers(c.of_node(node)).filter_map(|m| regs[m]).fold(RegSet::EMPTY, RegSet::with);
        let free = |r: &Reg| !taken.contains(*r);
        let partners: Vec<Reg> =
            partners_of.get(&node).into_iter().flatten().filter_map(|m| regs[*m]).filter(free).collect();
        let best = partners.iter().max_by_key(|r| partners.iter().filter(|x| x == r).count()).copied();
        let home = classes.members(node).filter(|m| *m >= FIXED).filter_map(|m| homes[m - FIXED]).find(free);
        // Not where a neighbour would like to be.
        let wanted = || {
            let uncoloured = numbers(c.of_node(node)).filter(|m| regs[*m].is_none());
            let all = uncoloured.flat_map(|m| classes.members(m)).filter(|m| *m >= FIXED);
            all.filter_map(|m| homes[m - FIXED]).fold(RegSet::EMPTY, RegSet::with)
        };
        let all = || (0..FIXED as u8).filter_map(Reg::new).filter(free);
        let any = || {
            let wanted = wanted();
            all().find(|r| !wanted.contains(*r)).or_else(|| all().next())
        };
        let chosen = if aim == Aim::Homes { home.or(best) } else { best.or(home) };
        match chosen.or_else(any) {
            Some(r) => regs[node] = Some(r),
            None => {
                let mut class: Vec<usize> = classes.members(node).collect();
                if class.len() == 1 {
                    // Not its fault: whoever is around it and joined.
                    let around = numbers(c.of_node(node)).filter(|m| classes.members(*m).nth(1).is_some());
                    class = around.flat_map(|m| classes.members(m)).collect();
                }
                return Err(class);
            }
        }
    }
    for i in FIXED..n {
        regs[i] = regs[classes.leader[i]];
    }
    Ok(Allocation(regs))
}
