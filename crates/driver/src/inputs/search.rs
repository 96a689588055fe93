//! The search: runs that lead to new blocks and edges are kept; at a branch of which one side was never gone, the solver is asked
//! for an input that goes there.
//!
//! First each kept run is asked about its own branches with a side that nobody has seen (the *frontier*). Where no such question
//! helps, the path before may be to blame: then branches of a run that reaches the frontier are turned, those first that have to do
//! with the question, for other paths to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use bpf_facts::Env;
use bpf_program::{Dominators, Terminator};
use bpf_prove::Limits;
use bpf_prove::path::{Assignment, Branch, Freedom, OtherWay, Path};
use bpf_semantics::interp::Step;

use super::input::Input;
use super::world::{Block, Edge, World};

/// SAT conflicts of one question.
const CONFLICTS: u32 = 20_000;
/// The same of the first questions about one side of a branch, and how many these are.
const FEW_CONFLICTS: u32 = 1_000;
const FIRST: usize = 4;
/// Questions about one side of a branch, at most: first, and in each further round.
const ATTEMPTS: usize = 24;
/// The same while there are other sides with blocks that nobody has seen.
const FIRST_ATTEMPTS: usize = 8;
/// Sides of branches that are asked about before the next run is chosen.
const AT_ONCE: usize = 16;
/// Of one run, questions about one side of a branch.
const TURNS: usize = 2;
/// Steps of a run that are followed.
const LONGEST: usize = 60_000;
/// Inputs for one side of a branch by which other branches before it may be turned, too.
const BENDS: usize = 16;
/// Branches turned in a row to find another path to one place.
const DETOURS: usize = 48;

/// A run that is kept.
pub(super) struct Kept {
    pub input: Input,
    trail: Vec<Step>,
    pub blocks: Vec<Block>,
    edges: Vec<Edge>,
    /// Calls were answered by a script, or have no model.
    pub assumed: bool,
    /// Edges that were asked about from here.
    asked: HashSet<Edge>,
}

/// What came of the questions about one edge.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Asked {
    /// No input goes there on such a path.
    pub never: usize,
    /// Not found out within the limits.
    pub unknown: usize,
    /// An input was found, and led elsewhere.
    pub missed: usize,
    /// The condition does not hang on the input, as far as it was followed.
    pub not_followed: usize,
}

/// What comes of one question.
enum Asking {
    /// An input that is to go there.
    Found(Input),
    /// One that is to come by on another path.
    Bent(Input),
    Nothing,
}

/// The search for one program.
pub(super) struct Search<'a> {
    world: &'a World,
    env: &'a Env<'a>,
    /// Blocks of all functions that can be reached, by their shape.
    goals: &'a BTreeSet<Block>,
    pub kept: Vec<Kept>,
    pub reached: HashMap<Block, usize>,
    edges: HashSet<Edge>,
    paths: HashSet<u64>,
    pub asked: BTreeMap<Edge, Asked>,
    /// How runs ended short of their end, by their last block.
    pub faults: HashMap<Block, String>,
    attempts: HashMap<Edge, usize>,
    detours: HashMap<Edge, usize>,
    bends: HashMap<Edge, usize>,
    /// Of each block, how many goals lie behind it alone.
    behind: HashMap<Block, usize>,
    deadline: Instant,
    pub runs: u64,
    pub questions: u64,
}

impl<'a> Search<'a> {
    pub fn new(world: &'a World, env: &'a Env<'a>, goals: &'a BTreeSet<Block>, deadline: Instant) -> Search<'a> {
        Search {
            world,
            env,
            goals,
            kept: vec![],
            reached: HashMap::new(),
            edges: HashSet::new(),
            paths: HashSet::new(),
            asked: BTreeMap::new(),
            faults: HashMap::new(),
            attempts: HashMap::new(),
            detours: HashMap::new(),
            bends: HashMap::new(),
            behind: behind(world, goals),
            deadline,
            runs: 0,
            questions: 0,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Runs an input, and keeps it if it shows something new; whether it goes along `wanted`.
    pub fn try_input(&mut self, input: Input, wanted: Option<Edge>) -> bool {
        let run = self.world.run(&input, 1);
        self.runs += 1;
        let (blocks, edges) = self.world.blocks(&run.trail);
        let assumed = !run.assumed.is_empty() || !self.world.can_be_run(&input);
        if let (Err(fault), Some(last)) = (&run.outcome, blocks.last()) {
            self.faults.entry(*last).or_insert_with(|| fault.to_string());
        }
        let new_block = blocks.iter().any(|b| !self.reached.contains_key(b));
        let new_edge = edges.iter().any(|e| !self.edges.contains(e));
        // One that a test run can make is better than one that only the interpreter can.
        let better = !assumed && blocks.iter().any(|b| self.reached.get(b).is_some_and(|k| self.kept[*k].assumed));
        let goes = wanted.is_some_and(|w| edges.contains(&w));
        let mut hasher = DefaultHasher::new();
        blocks.hash(&mut hasher);
        let new_path = self.paths.insert(hasher.finish());
        let detour = wanted.is_some_and(|_| goes && new_path);
        if new_block || new_edge || better || detour {
            let number = self.kept.len();
            for b in &blocks {
                match self.reached.get(b) {
                    Some(k) if *k == number || assumed || !self.kept[*k].assumed => {}
                    _ => drop(self.reached.insert(*b, number)),
                }
            }
            self.edges.extend(edges.iter().copied());
            let edges = {
                let mut seen = HashSet::new();
                edges.into_iter().filter(|e| seen.insert(*e)).collect()
            };
            let blocks = {
                let mut seen = HashSet::new();
                blocks.into_iter().filter(|b| seen.insert(*b)).collect()
            };
            let mut trail = run.trail;
            trail.truncate(LONGEST);
            self.kept.push(Kept { input, trail, blocks, edges, assumed, asked: HashSet::new() });
        }
        goes
    }

    fn is_done(&self) -> bool {
        self.goals.iter().all(|b| self.reached.contains_key(b))
    }

    /// The other side of a branch that was gone along `edge`.
    fn other_side(&self, edge: Edge) -> Option<Edge> {
        let (function, from, to) = edge;
        match self.function(function)?.block(from).term {
            Terminator::Branch { taken, fall, .. } if taken != fall => {
                Some((function, from, if to == taken { fall } else { taken }))
            }
            _ => None,
        }
    }

    fn function(&self, number: usize) -> Option<&bpf_program::Function> {
        if number == self.world.own_number {
            return Some(&self.world.main);
        }
        let at = self.world.numbers.iter().position(|n| *n == number)?;
        Some(&self.world.others[at])
    }

    fn edge_of(&self, branch: Branch) -> Option<Edge> {
        let number = branch.function.map_or(self.world.own_number, |i| self.world.numbers[i]);
        match self.function(number)?.block(branch.block).term {
            Terminator::Branch { taken, fall, .. } => {
                Some((number, branch.block, if branch.taken { taken } else { fall }))
            }
            _ => None,
        }
    }

    /// Whether going along an edge would show something.
    fn is_frontier(&self, edge: Edge) -> bool {
        !self.edges.contains(&edge) && self.goals.contains(&(edge.0, edge.2))
    }

    /// Looks for inputs until there is nothing more to do, or no time.
    pub fn run(&mut self) {
        while !self.is_over() && !self.is_done() {
            if let Some(k) = self.most_open(true) {
                self.ask_frontier(k, true);
            } else if let Some(k) = self.most_open(false) {
                self.ask_frontier(k, false);
            } else if !self.detour() {
                break;
            }
        }
    }

    /// Whether nobody has seen the block that an edge leads to.
    fn is_new(&self, edge: Edge) -> bool {
        !self.reached.contains_key(&(edge.0, edge.2))
    }

    /// Whether a question about a side of a branch is still to be asked of a run; at first those alone of which a block is new.
    fn is_open(&self, kept: &Kept, edge: Edge, only_new: bool) -> bool {
        let most = if only_new { FIRST_ATTEMPTS } else { ATTEMPTS };
        self.is_frontier(edge)
            && !kept.asked.contains(&edge)
            && self.attempts.get(&edge).copied().unwrap_or(0) < most
            && (!only_new || self.is_new(edge))
    }

    /// What a side of a branch counts that nobody has seen: more if much lies behind it.
    fn gain(&self, edge: Edge) -> usize {
        8 + self.behind.get(&(edge.0, edge.2)).copied().unwrap_or(0)
    }

    /// The kept run with the most questions that were not asked; blocks count more than edges.
    fn most_open(&self, only_new: bool) -> Option<usize> {
        let score = |kept: &Kept| -> usize {
            let sides = kept.edges.iter().filter_map(|e| self.other_side(*e));
            let open = sides.filter(|e| self.is_open(kept, *e, only_new));
            open.map(|e| if self.is_new(e) { self.gain(e) } else { 1 }).sum()
        };
        let scores = self.kept.iter().enumerate().map(|(i, kept)| (score(kept), std::cmp::Reverse(i)));
        scores.filter(|(s, _)| *s > 0).max().map(|(_, i)| i.0)
    }

    /// Asks about the sides of a run's branches that nobody has seen.
    fn ask_frontier(&mut self, k: usize, only_new: bool) {
        let mut found: Vec<(Input, Edge)> = Vec::new();
        let mut bent = Vec::new();
        let Search { world, env, deadline, .. } = *self;
        let input = self.kept[k].input.clone();
        let trail = std::mem::take(&mut self.kept[k].trail);
        let whole = world.whole(&input);
        let limits = Limits { deadline: Some(deadline), ..Limits::default() };
        let mut path = Path::along(&world.main, &world.others, &trail, &whole, env, limits);
        let mut branches: Vec<(usize, Branch)> = path.branches().collect();
        let side = |s: &Self, branch: Branch| s.edge_of(branch).and_then(|e| s.other_side(e));
        branches.sort_by_cached_key(|(_, b)| std::cmp::Reverse(side(self, *b).map_or(0, |e| self.gain(e))));
        let mut followed: HashSet<Edge> = HashSet::new();
        let mut turns: HashMap<Edge, usize> = HashMap::new();
        for (at, branch) in branches {
            let Some(edge) = side(self, branch) else { continue };
            followed.insert(edge);
            if !self.is_open(&self.kept[k], edge, only_new) {
                continue;
            }
            let turn = turns.entry(edge).or_default();
            *turn += 1;
            if *turn > TURNS || self.is_over() {
                continue;
            }
            if turns.len() > AT_ONCE {
                turns.remove(&edge);
                continue;
            }
            match self.ask(&mut path, at, edge, &input) {
                Asking::Found(input) => found.push((input, edge)),
                Asking::Bent(input) => bent.push((input, edge)),
                Asking::Nothing => {}
            }
        }
        let open = self.kept[k].edges.iter().filter_map(|e| self.other_side(*e));
        let open: Vec<Edge> = open.filter(|e| self.is_frontier(*e) && (!only_new || self.is_new(*e))).collect();
        for edge in open {
            let is_followed = followed.contains(&edge);
            if is_followed && !turns.contains_key(&edge) {
                continue;
            }
            if self.kept[k].asked.insert(edge) && !is_followed {
                *self.attempts.entry(edge).or_default() += 1;
                self.asked.entry(edge).or_default().not_followed += 1;
            }
        }
        drop(path);
        self.kept[k].trail = trail;
        for (input, edge) in found {
            if !self.try_input(input, Some(edge)) {
                self.asked.entry(edge).or_default().missed += 1;
            }
        }
        // Wanted is another path that comes by; its own branches are asked about next.
        for (input, edge) in bent {
            let passing = self.other_side(edge);
            if !self.edges.contains(&edge) && self.try_input(input, passing) {
                self.attempts.insert(edge, 0);
            }
        }
    }

    /// Asks for an input that goes with a run up to the branch at condition `at`, and there to a side that nobody has seen.
    fn ask(&mut self, path: &mut Path<'_>, at: usize, edge: Edge, input: &Input) -> Asking {
        let (world, deadline) = (self.world, Some(self.deadline));
        let changed = |by: &Assignment| input.changed(by, |map| world.value_size(map));
        let attempts = self.attempts.entry(edge).or_default();
        *attempts += 1;
        let conflicts = if *attempts > FIRST { CONFLICTS } else { FEW_CONFLICTS };
        self.questions += 1;
        let mut answer = path.other_way(at, Freedom::TestRun, conflicts, deadline);
        let new_block = self.is_new(edge);
        if new_block && !matches!(answer, OtherWay::Input(_)) {
            self.questions += 1;
            let freer = path.other_way(at, Freedom::Anything, conflicts, deadline);
            if matches!(freer, OtherWay::Input(_)) {
                answer = freer;
            }
        }
        let asked = self.asked.entry(edge).or_default();
        match answer {
            OtherWay::Input(by) => return Asking::Found(changed(&by)),
            OtherWay::Unknown => asked.unknown += 1,
            OtherWay::Never(_) => {
                asked.never += 1;
                let bends = self.bends.entry(edge).or_default();
                if new_block && *bends < BENDS {
                    *bends += 1;
                    let by = path.bent(at, Freedom::TestRun, deadline);
                    let by = by.or_else(|| path.bent(at, Freedom::Anything, deadline));
                    return by.map_or(Asking::Nothing, |by| Asking::Bent(changed(&by)));
                }
            }
        }
        Asking::Nothing
    }

    /// Looks for another path to a place at the frontier; whether there was one to look for.
    fn detour(&mut self) -> bool {
        // The side that was tried least, with a run that comes by.
        let mut open: Vec<(usize, Edge, usize)> = Vec::new();
        for (k, kept) in self.kept.iter().enumerate() {
            for edge in kept.edges.iter().filter_map(|e| self.other_side(*e)) {
                let tried = self.detours.get(&edge).copied().unwrap_or(0);
                let wanted = self.is_frontier(edge) && self.is_new(edge);
                if wanted && tried < DETOURS {
                    open.push((tried, edge, k));
                }
            }
        }
        let Some(&(tried, target, _)) = open.iter().min() else { return false };
        let comers: Vec<usize> = open.iter().filter(|o| o.1 == target).map(|o| o.2).collect();
        let k = comers[tried % comers.len()];
        *self.detours.entry(target).or_default() += 1;
        self.turn_before(k, target);
        true
    }

    /// Turns branches of run `k` before it comes to where `target` begins.
    fn turn_before(&mut self, k: usize, target: Edge) {
        const TURNED: usize = 6;
        let Search { world, env, deadline, .. } = *self;
        let input = self.kept[k].input.clone();
        let trail = std::mem::take(&mut self.kept[k].trail);
        let whole = world.whole(&input);
        let limits = Limits { deadline: Some(deadline), ..Limits::default() };
        let mut path = Path::along(&world.main, &world.others, &trail, &whole, env, limits);
        let branches: Vec<(usize, Branch)> = path.branches().collect();
        let edge_of = |b: Branch| self.edge_of(b).and_then(|e| self.other_side(e));
        let there = branches.iter().find(|(_, b)| edge_of(*b) == Some(target)).map(|(at, _)| *at);
        let tried = self.detours.get(&target).copied().unwrap_or(0);
        // Those that have to do with it, latest first; else all before.
        let mut turned: Vec<usize> = match there {
            Some(at) => match path.other_way(at, Freedom::Anything, CONFLICTS, Some(deadline)) {
                OtherWay::Never(related) if !related.is_empty() && tried % 2 == 1 => related,
                _ => branches.iter().map(|(i, _)| *i).filter(|i| *i < at).collect(),
            },
            None => branches.iter().map(|(i, _)| *i).collect(),
        };
        turned.sort_unstable_by_key(|i| std::cmp::Reverse(*i));
        let mut random = crate::difftest::Random::of(tried as u64, turned.len() as u64);
        if turned.len() > TURNED {
            let from = random.below((turned.len() - TURNED) as u64) as usize;
            let from = if tried % 3 == 0 { 0 } else { from };
            turned = turned[from..from + TURNED].to_vec();
        }
        let mut found = Vec::new();
        for at in turned {
            if self.is_over() {
                break;
            }
            self.questions += 1;
            if let OtherWay::Input(by) = path.other_way(at, Freedom::TestRun, CONFLICTS, Some(deadline)) {
                found.push(input.changed(&by, |map| world.value_size(map)));
            }
        }
        drop(path);
        self.kept[k].trail = trail;
        // Wanted is a new path that comes by; its own branches are asked about next.
        for input in found {
            let passing = self.other_side(target);
            if self.try_input(input, passing) {
                self.attempts.insert(target, 0);
            }
        }
    }
}

/// Of each goal, how many goals every way to which goes through it.
fn behind(world: &World, goals: &BTreeSet<Block>) -> HashMap<Block, usize> {
    let functions =
        world.others.iter().zip(&world.numbers).map(|(f, n)| (f, *n)).chain([(&world.main, world.own_number)]);
    let mut counts = HashMap::new();
    for (f, number) in functions {
        let dominators = Dominators::of(f);
        for &b in f.layout.iter().filter(|b| goals.contains(&(number, **b))) {
            let mut at = Some(b);
            while let Some(above) = at {
                *counts.entry((number, above)).or_default() += 1;
                at = dominators.idom(above);
            }
        }
    }
    counts
}
