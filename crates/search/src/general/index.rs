//! General rules by their code, and windows that hold a stretch to which one applies.
//!
//! The rules are found by what their operations are, apart from registers, numbers and offsets: one
//! look into a table for each stretch of a window. Only what is in the table is looked at closely.

use std::hash::{Hash, Hasher};

use bpf_facts::{Effect, Env, Live, State};
use bpf_isa::Reg;
use bpf_program::{BlockId, Op};
use rustc_hash::{FxHashMap, FxHasher};

use super::{General, blank};
use crate::canonical::{Renaming, WindowKey, canonical};
use crate::cost;
use crate::window::{Cost, Window};

/// Rules applied one after the other to one window, at most.
const STEPS: usize = 6;

/// General rules, to be found by their code.
#[derive(Default)]
pub(crate) struct Index {
    rules: Vec<General>,
    by_code: FxHashMap<u64, Vec<usize>>,
    by_key: FxHashMap<String, usize>,
}

impl Index {
    /// All rules.
    pub(crate) fn rules(&self) -> &[General] {
        &self.rules
    }

    /// The rule with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&General> {
        self.by_key.get(key).map(|i| &self.rules[*i])
    }

    /// Takes a rule, unless what is there under its key is as good. Whether it was taken.
    pub(crate) fn insert(&mut self, g: General) -> bool {
        let key = g.key();
        match self.by_key.get(&key) {
            Some(i) if !g.better_than(&self.rules[*i]) => false,
            Some(i) => {
                self.rules[*i] = g;
                true
            }
            None => {
                let i = self.rules.len();
                self.by_code.entry(g.window.old.iter().fold(0, next)).or_default().push(i);
                self.by_key.insert(key, i);
                self.rules.push(g);
                true
            }
        }
    }

    /// What the rules make of a window, if any applies to a stretch of it.
    pub(crate) fn apply(&self, p: &WindowKey) -> Option<Vec<Op>> {
        if self.rules.is_empty() {
            return None;
        }
        let mut now = p.clone();
        let mut applied = false;
        for _ in 0..STEPS {
            let Some(old) = self.step(&now) else { break };
            now.old = old;
            applied = true;
        }
        applied.then_some(now.old)
    }

    /// One rule applied where it saves most; of equals the first place and the longest stretch.
    fn step(&self, p: &WindowKey) -> Option<Vec<Op>> {
        let maps = p.map_table();
        let env = Env { maps: &maps, ..Env::empty() };
        let mut walk = None;
        let mut best: Option<(Cost, Vec<Op>)> = None;
        for start in 0..p.old.len() {
            let mut code = 0;
            let mut stretches: Vec<(usize, &Vec<usize>)> = Vec::new();
            for (end, op) in p.old.iter().enumerate().skip(start) {
                code = next(code, op);
                stretches.extend(self.by_code.get(&code).map(|rules| (end + 1, rules)));
            }
            for (end, rules) in stretches.into_iter().rev() {
                let walk = walk.get_or_insert_with(|| Walk::of(p, &env));
                let Some((form, names)) = walk.form(p, &env, start, end) else { continue };
                for i in rules {
                    let instance = self.rules[*i].instance(&form).and_then(|new| names.to_window(&new));
                    let Some(new) = instance else { continue };
                    let whole = [&p.old[..start], &new, &p.old[end..]].concat();
                    let cost = cost::of(&whole, p.goal);
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, whole));
                    }
                }
            }
        }
        let before = cost::of(&p.old, p.goal);
        best.filter(|(cost, _)| *cost < before).map(|(_, whole)| whole)
    }
}

/// What holds before and after every operation of a window.
pub(super) struct Walk {
    states: Vec<State>,
    live: Vec<Live>,
}

impl Walk {
    pub(super) fn of(p: &WindowKey, env: &Env) -> Walk {
        let mut states = vec![p.before()];
        for (i, o) in p.old.iter().enumerate() {
            let mut s = states[i].clone();
            s.step(o, (BlockId(0), i), p.kind, env);
            states.push(s);
        }
        let mut live = vec![p.live; p.old.len() + 1];
        for (i, o) in p.old.iter().enumerate().rev() {
            live[i] = Effect::of(&states[i], o, env).before(&live[i + 1]);
        }
        Walk { states, live }
    }

    /// The form of a stretch of it.
    pub(super) fn form(&self, p: &WindowKey, env: &Env, start: usize, end: usize) -> Option<(WindowKey, Renaming)> {
        canonical(&Window {
            kind: p.kind,
            env,
            before: &self.states[start],
            old: &p.old[start..end],
            live: &self.live[end],
            superblock: None,
            cpu: p.cpu,
            goal: p.goal,
            deadline: None,
        })
    }
}

/// The hash of a stretch with one more operation.
fn next(code: u64, op: &Op) -> u64 {
    let mut h = FxHasher::default();
    code.hash(&mut h);
    blank(&op.insn).map_regs(|_| Reg::R0).with_memory_offset(0).hash(&mut h);
    op.link.is_some().hash(&mut h);
    // So that a stretch is not found by the hash of nothing.
    h.finish() | 1
}
