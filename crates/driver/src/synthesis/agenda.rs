//! What is left to search, and what comes next.
//!
//! The agenda holds the open windows of every function as it is now. A function is looked through anew only when it has
//! changed. Each round takes a batch: first the windows for which a replacement is known already, which cost next to
//! nothing, then those with the largest expected gain for their cost, until the round's budget is full. Windows of one
//! form are searched once ([`Batch::followers`]). What a batch holds depends on what was found so far and on nothing
//! else: not on the clock, the time limit or the number of threads.

use std::sync::Mutex;

use bpf_facts::{Analysis, Env};
use bpf_passes::{Settings, View, paths_of};
use bpf_program::{BlockId, Function};
use bpf_prove::Points;
use bpf_prove::superblock::side_exits;
use rustc_hash::{FxHashMap, FxHashSet};

use super::item::{Item, Window};
use super::memory::Memory;
use crate::candidate::Candidate;
use crate::module::Module;
use crate::options::Options;
use crate::pool;
use crate::window_selection::{stretches, superblocks};

/// Candidates of one round: at least, and at most, between which it is a share of all that is open.
const BUDGET: (u64, u64) = (1 << 20, 1 << 22);
/// The least where all is to end soon: the last round has brought nothing, so it should not be long.
const SHORT_BUDGET: u64 = 1 << 19;
/// The share of what is open: functions are analysed anew after a round, which takes longer the larger they are.
const SHARE: u64 = 16;
/// Windows of a round at least, so that several threads have work.
const WINDOWS: usize = 16;

/// A function with its facts. What is judged by them is proven again where it is applied.
pub(super) struct Analysed {
    pub(super) function: Function,
    analysis: Analysis,
    windows: Vec<Window>,
}

impl Analysed {
    fn new(function: &Function, candidate: usize, module: &Module, settings: &Settings) -> Analysed {
        module.with_env(|env| {
            let analysis = Analysis::of(function, env);
            let mut analysed = Analysed { function: function.clone(), analysis, windows: Vec::new() };
            analysed.windows = analysed.all_windows(candidate, env, settings);
            analysed
        })
    }

    /// What is known where a window stands.
    pub(super) fn points(&self, block: BlockId, path: &[BlockId], env: &Env) -> Option<Points> {
        match path.is_empty() {
            true => Points::of_block(&self.function, block, &self.analysis, env),
            false => Points::of_path(&self.function, block, path, &self.analysis, env),
        }
    }

    fn all_windows(&self, candidate: usize, env: &Env, settings: &Settings) -> Vec<Window> {
        let mut windows = Vec::new();
        let weights = settings.weights(&self.function);
        let weight = |block: BlockId| weights[block.index()];
        for &block in &self.function.layout {
            let Some(points) = self.points(block, &[], env) else { continue };
            let view = View::new(&self.function, &points, env, settings);
            windows.extend(
                stretches(view.ops).into_iter().map(|s| Window::new(&view, s, candidate, weight(block), settings)),
            );
        }
        let mut seen = FxHashSet::default();
        for (block, path) in paths_of(&self.function) {
            let Some(points) = self.points(block, &path, env) else { continue };
            let view = View::new(&self.function, &points, env, settings);
            // Paths that fork have their beginning in common.
            for (start, end) in superblocks(view.ops) {
                let blocks = side_exits(&view.ops[..end]);
                if seen.insert((block, path[..blocks].to_vec(), start, end)) {
                    windows.push(Window::new(&view, (start, end), candidate, weight(block), settings));
                }
            }
        }
        windows
    }
}

/// What a round looks at.
pub(super) struct Batch<'a> {
    /// In the order in which they are looked at.
    pub(super) leaders: Vec<Item<'a>>,
    /// Windows that have the form of a leader, and take what it found.
    pub(super) followers: Vec<Item<'a>>,
}

/// The open windows of all functions.
pub(super) struct Agenda {
    functions: Vec<Option<Analysed>>,
}

impl Agenda {
    /// Nothing yet, of so many functions.
    pub(super) fn new(count: usize) -> Agenda {
        Agenda { functions: (0..count).map(|_| None).collect() }
    }

    /// A function as it was looked through last.
    pub(super) fn function(&self, candidate: usize) -> Option<&Analysed> {
        self.functions[candidate].as_ref()
    }

    /// Looks through these functions.
    pub(super) fn open(
        &mut self,
        which: &[usize],
        candidates: &[Candidate],
        module: &Module,
        settings: &Settings,
        jobs: usize,
    ) {
        let slots: Vec<Mutex<Option<Analysed>>> = which.iter().map(|_| Mutex::new(None)).collect();
        pool::each(jobs, which.iter().zip(&slots), |(&id, slot)| {
            let Some(function) = candidates[id].function() else { return };
            let analysed = Analysed::new(function, id, module, settings);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(analysed);
            }
        });
        for (&id, slot) in which.iter().zip(slots) {
            self.functions[id] = slot.into_inner().ok().flatten();
        }
    }

    /// What comes next, if unknown windows are not to be searched only those for which a replacement is known; `None` if
    /// nothing is open.
    pub(super) fn next(&self, memory: &mut Memory, options: &Options) -> Option<Batch<'_>> {
        let mut items = self.open_items(memory);
        for item in &mut items {
            item.rule = memory.look_up(item);
        }
        items.retain(|item| options.search || item.is_known());
        if items.is_empty() {
            return None;
        }
        // What is known already comes first; among the others the largest expected gain for its cost.
        let rate = |item: &Item| {
            if item.is_known() {
                f64::INFINITY
            } else {
                memory.rate(item.window.class, item.effort) * item.window.weight
            }
        };
        let mut ranked: Vec<(f64, Item)> = items.into_iter().map(|item| (rate(&item), item)).collect();
        ranked.sort_by(|(r, a), (s, b)| s.total_cmp(r).then(a.effort.level.cmp(&b.effort.level)));
        let all: u64 = ranked.iter().map(|(_, item)| item.effort.candidates).sum();
        let least = if options.is_short() { SHORT_BUDGET } else { BUDGET.0 };
        let budget = (all / SHARE).clamp(least, BUDGET.1);
        let (mut leaders, mut followers, mut spent) = (Vec::new(), Vec::new(), 0);
        let mut forms: FxHashMap<(&str, usize), ()> = FxHashMap::default();
        for (_, item) in ranked {
            let form = item.window.form.as_ref().map(|(.., text)| (&**text, item.effort.level));
            if form.is_some_and(|form| forms.contains_key(&form)) {
                followers.push(item);
            } else if spent < budget || leaders.len() < WINDOWS {
                forms.extend(form.map(|form| (form, ())));
                spent += if item.is_known() { 0 } else { item.effort.candidates };
                leaders.push(item);
            }
        }
        Some(Batch { leaders, followers })
    }

    /// The windows on which more effort may be spent, function by function.
    fn open_items(&self, memory: &Memory) -> Vec<Item<'_>> {
        let functions = self.functions.iter().enumerate().filter_map(|(id, a)| Some((id, a.as_ref()?)));
        let items = functions.flat_map(|(candidate, a)| {
            a.windows.iter().filter_map(move |window| {
                let effort = memory.next_effort(window.key)?;
                Some(Item { candidate, window, effort, rule: None })
            })
        });
        items.collect()
    }
}
