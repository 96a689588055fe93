//! Lane `mutants`: proven rewrites of real programs with something changed in the new side, and stretches of their
//! paths through several blocks with something changed.
//!
//! A mutant that is proven must be equal for Z3, too, in the plain encoding of [`bpf_prove::reference`]; where
//! that has no model, in many runs. A mutant that is refused should have a state that shows why: from Z3's
//! assignment or from random states, replayed in the interpreter. What has none is counted, with reasons.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bpf_facts::{Analysis, Env};
use bpf_isa::{Cond, Insn, Reg, Size, Src, Width};
use bpf_passes::{Proposal, Recorder, Settings, View, optimize, paths_of};
use bpf_program::{Function, Op, Terminator};
use bpf_prove::reference::{Encoding, Window, encode};
use bpf_prove::smt::Status;
use bpf_prove::superblock::{SideExit, is_side_exit};
use bpf_prove::{Limits, Options, Points, Verdict};
use bpf_testgen::random::Rng;
use bpf_testgen::windows::{listing, nearly, tweak};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::concrete::{Both, Entry, Random, World, both};
use crate::corpus::Corpus;
use crate::z3::{Z3, Z3Error};
use crate::{Lane, Tally};

/// What Z3 may take for one mutant.
const LIMIT: Duration = Duration::from_secs(2);
/// What optimizing a large function may take.
const HARVEST: Duration = Duration::from_millis(1500);
/// Proven rewrites kept of one function.
const KEPT: usize = 300;
/// Operations before and behind a jump.
const REACH: u64 = 8;
/// Mutants of one unit.
const BATCH: usize = 24;
/// What the mutants of one unit may take of Z3's time.
const SHARE: Duration = Duration::from_millis(1000);
/// Random states that are tried for one mutant.
const STATES: usize = 40;
/// Tries of a mutation until it is one.
const TRIES: usize = 8;

/// The lane.
pub struct Mutants {
    z3: Z3,
    corpus: Corpus,
    /// By function: proven rewrites of blocks, and stretches of paths.
    windows: FxHashMap<usize, Arc<[Vec<Window>; 2]>>,
    seen: FxHashSet<u64>,
}

impl Mutants {
    /// The lane over the usual objects.
    ///
    /// # Errors
    /// If there is no Z3.
    pub fn new() -> std::io::Result<Mutants> {
        Mutants::over(Corpus::usual())
    }

    /// The lane over these objects.
    ///
    /// # Errors
    /// If there is no Z3.
    pub fn over(corpus: Corpus) -> std::io::Result<Mutants> {
        Ok(Mutants { z3: Z3::new(LIMIT)?, corpus, windows: FxHashMap::default(), seen: FxHashSet::default() })
    }

    /// The rewrites of function `i` that are proven, those of blocks and those of paths; with the latter parts of
    /// its paths as they are.
    fn harvest(&mut self, i: usize) -> Arc<[Vec<Window>; 2]> {
        if let Some(w) = self.windows.get(&i) {
            return w.clone();
        }
        let proposed: Arc<Mutex<Vec<Window>>> = Arc::default();
        let (mut proven, mut paths) = (vec![], vec![]);
        if let Some((unit, original)) = self.corpus.function(i) {
            let sink = proposed.clone();
            let see = move |p: &Proposal| {
                if let (Some(w), Ok(mut all)) = (Window::of(p.function, p.known, p.rewrite), sink.lock()) {
                    all.push(w);
                }
            };
            unit.with_env(|env| {
                let settings = Settings {
                    recorder: Some(Recorder::new(see)),
                    deadline: Instant::now().checked_add(HARVEST),
                    ..Settings::default()
                };
                optimize(original.clone(), env, &settings);
                paths = unchanged(original, env, &mut Rng::new(i as u64));
                let all = proposed.lock().map(|mut p| std::mem::take(&mut *p)).unwrap_or_default();
                // Spread over the whole function.
                let step = (all.len() / (2 * KEPT)).max(1);
                proven.extend(all.into_iter().step_by(step).filter(|w| judge(w, env).is_equal()).take(KEPT));
            });
        }
        let (across, within): (Vec<Window>, Vec<Window>) = proven.into_iter().partition(|w| !w.sides.is_empty());
        paths.extend(across);
        let all = Arc::new([within, paths]);
        self.windows.insert(i, all.clone());
        all
    }
}

/// Parts of a function's paths, each of which is its own replacement.
fn unchanged(f: &Function, env: &Env, rng: &mut Rng) -> Vec<Window> {
    let analysis = Analysis::of(f, env);
    let settings = Settings::default();
    let mut out = vec![];
    for (block, path) in paths_of(f) {
        let Some(points) = Points::of_path(f, block, &path, &analysis, env) else { continue };
        let view = View::new(f, &points, env, &settings);
        let jumps: Vec<usize> = (0..view.ops.len()).filter(|j| is_side_exit(&view.ops[*j].insn)).collect();
        for &j in &jumps {
            if out.len() >= KEPT {
                return out;
            }
            let start = j.saturating_sub(rng.below(REACH) as usize);
            let end = view.ops.len().min(j + 1 + rng.below(REACH) as usize);
            let r = view.replace(start, end, view.ops[start..end].to_vec(), "nobody");
            out.extend(Window::of(f, &view.known(), &r));
        }
    }
    out
}

impl Lane for Mutants {
    fn name(&self) -> &'static str {
        "mutants"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let i = usize::try_from(index).unwrap_or(usize::MAX) % self.corpus.len().max(1);
        let [within, paths] = &*self.harvest(i);
        if within.is_empty() && paths.is_empty() {
            return;
        }
        let mut rng = Rng::of(seed, index);
        let begun = self.z3.spent;
        let name = self.corpus.name(i);
        for _ in 0..BATCH {
            if self.z3.spent - begun > SHARE {
                return;
            }
            let windows = if within.is_empty() || !paths.is_empty() && rng.chance(2) { paths } else { within };
            let w = &windows[rng.below(windows.len() as u64) as usize];
            let Some(m) = (0..TRIES).find_map(|_| mutate(w, &mut rng).filter(|m| m.new != w.new || m.tail != w.tail))
            else {
                continue;
            };
            let mut h = FxHasher::default();
            format!("{:?} {:?} {:?} {:?} {:?} {:?}", m.old, m.new, m.tail, m.live, m.sides, m.before).hash(&mut h);
            if !self.seen.insert(h.finish()) {
                tally.count("repeated", 1);
                continue;
            }
            let mut own = Rng::new(rng.next());
            let Some((unit, _)) = self.corpus.function(i) else { return };
            let outcome = unit.with_env(|env| ask(&mut self.z3, &m, env, &mut own));
            tally.count("mutants", 1);
            if !m.sides.is_empty() {
                tally.count("on_paths", 1);
                for c in &outcome.counts {
                    tally.count(&format!("on_paths: {c}"), 1);
                }
            }
            for c in &outcome.counts {
                tally.count(c, 1);
            }
            let unsettled = outcome.counts.first().is_some_and(|c| c == "unknown");
            if unsettled && std::env::var_os("BPF_OPT_TRACE").is_some() {
                eprintln!("{}", story(&m, &name, &outcome.counts.join(", ")));
            }
            if let Some(what) = &outcome.disagreement {
                tally.disagree(seed, index, story(&m, &name, what));
            }
        }
    }
}

/// A mutant with all that is needed to see it again.
fn story(m: &Window, from: &str, what: &str) -> String {
    let tails = m.tail.as_ref().map_or_else(String::new, |t| format!("ends {t:?}\n"));
    format!(
        "a mutant of a rewrite in {from}: {what}\nold\n{}new\n{}{tails}sides {:?}\nlive {:?}\nregisters {:?}\nframe {:?}",
        listing(&m.old),
        listing(&m.new),
        m.sides,
        m.live,
        Reg::all().map(|r| m.before.reg(r).clone()).collect::<Vec<_>>(),
        m.before.stack_values().collect::<Vec<_>>()
    )
}

/// What became of a mutant.
struct Outcome {
    counts: Vec<String>,
    disagreement: Option<String>,
}

impl Outcome {
    fn of(what: &str) -> Outcome {
        Outcome { counts: vec![what.to_owned()], disagreement: None }
    }

    fn and(mut self, what: &str) -> Outcome {
        self.counts.push(what.to_owned());
        self
    }
}

/// A reason without what is particular to one case.
fn kind_of(why: &str) -> String {
    why.split(['(', '`']).next().unwrap_or(why).trim().to_owned()
}

fn judge(w: &Window, env: &Env) -> Verdict {
    let options =
        Options { limits: Limits { conflicts: 2_000, work: 2_000_000, ..Limits::default() }, ..Options::default() };
    let tail = w.tail.as_ref().map(|(a, b)| (a, b));
    bpf_prove::along(w.kind, env, &w.before, &w.old, &w.new, &w.sides, &w.live, tail, &options).0
}

/// The first difference in runs from random states.
fn random_runs(w: &Window, env: &Env, rng: &mut Rng) -> Option<String> {
    (0..STATES).find_map(|_| {
        let mut world = Random::new(env, w.kind, rng.next());
        let entry = world.entry(w, rng)?;
        match both(w, &entry, &mut world) {
            Both::Differ(what) => Some(format!("{what}\nfrom {:x?}", entry.regs)),
            _ => None,
        }
    })
}

/// The world of Z3's assignment.
struct Assigned<'a> {
    z3: &'a mut Z3,
    memory: &'static str,
    symbols: BTreeMap<String, u64>,
    bytes: BTreeMap<u64, u8>,
    /// A packet pointer was loaded, of which the interpreter takes no more than 32 bits.
    cut: bool,
}

impl World for Assigned<'_> {
    fn byte(&mut self, address: u64) -> u8 {
        let (z3, memory) = (&mut *self.z3, self.memory);
        let ask = || z3.number(&format!("(select {memory} (_ bv{address} 64))")).unwrap_or(0) as u8;
        *self.bytes.entry(address).or_insert_with(ask)
    }
    fn symbol(&mut self, key: &str) -> Option<u64> {
        self.symbols.get(key).copied()
    }
    fn field(&mut self, address: u64, size: Size) -> Option<u64> {
        let at = address.wrapping_sub(*self.symbols.get("context")?);
        self.cut |= self.symbols.contains_key(&format!("packet pointer {at}"));
        self.symbols.iter().find_map(|(key, value)| {
            let (off, bytes) = key.strip_prefix("context ")?.strip_suffix(" after 0 stores")?.split_once(' ')?;
            let (off, bytes): (u64, u64) = (off.parse().ok()?, bytes.parse().ok()?);
            let inside = at.wrapping_sub(off);
            (inside < bytes && inside + u64::from(size.bytes()) <= bytes).then(|| value >> (8 * inside))
        })
    }
    fn tame(&self, _: u64) -> bool {
        true
    }
    fn map_sizes(&self, _: u64) -> Option<(u32, u32)> {
        None
    }
}

/// One change of the new side: operand, register, width, offset, constant, order, an operation more or less.
fn mutate(w: &Window, rng: &mut Rng) -> Option<Window> {
    let mut m = w.clone();
    let used: Vec<Reg> = w
        .old
        .iter()
        .chain(&w.new)
        .flat_map(|o| o.insn.uses().union(o.insn.defs()).iter().collect::<Vec<_>>())
        .collect();
    let register = |rng: &mut Rng| if used.is_empty() { Reg::R0 } else { rng.one_of(&used) };
    if let (true, Some((_, Terminator::Branch { cond, width, src, dst, .. }))) = (rng.chance(4), &mut m.tail) {
        match rng.below(4) {
            0 => *cond = cond.negate()?,
            1 => *dst = register(rng),
            2 => *width = if width.bits() == 64 { bpf_isa::Width::W32 } else { bpf_isa::Width::W64 },
            _ => *src = changed(*src, &register, rng),
        }
        return Some(m);
    }
    if !w.sides.is_empty() && rng.chance(3) {
        return across(m, rng);
    }
    if m.new.is_empty() {
        // Something where nothing is needed.
        let op = w.old.get(rng.below(w.old.len().max(1) as u64) as usize)?.clone();
        m.new.push(op);
        return Some(m);
    }
    let i = rng.below(m.new.len() as u64) as usize;
    let free = m.new[i].link.is_none() && !matches!(m.new[i].insn, Insn::Call(_) | Insn::CallX { .. });
    match rng.below(10) {
        0 => drop(m.new.remove(i)),
        1 if m.new.len() > 1 => {
            let j = (i + 1) % m.new.len();
            m.new.swap(i, j);
        }
        2 => {
            // The old operation in its place, if there is one.
            m.new[i] = w.old.get(i)?.clone();
        }
        3 if free => {
            let with = nearly(rng, m.new[i].insn)?;
            m.new.splice(i..=i, with.into_iter().map(Op::new));
        }
        4 | 5 if free && !is_side_exit(&m.new[i].insn) => m.new[i].insn = tweak(rng, m.new[i].insn),
        _ if free => m.new[i].insn = vary(m.new[i].insn, &register, rng),
        _ => return None,
    }
    Some(m)
}

/// An operation of a path moved over a jump, or a jump turned round.
fn across(mut m: Window, rng: &mut Rng) -> Option<Window> {
    let jumps: Vec<usize> = (0..m.new.len()).filter(|i| is_side_exit(&m.new[*i].insn)).collect();
    if jumps.is_empty() {
        return None;
    }
    let j = rng.one_of(&jumps);
    if rng.chance(4) {
        let leaves_if = rng.below(2) == 0;
        m.new[j].insn = SideExit { leaves_if, ..SideExit::of(&m.new[j].insn)? }.insn();
        return Some(m);
    }
    let i = rng.below(m.new.len() as u64) as usize;
    if is_side_exit(&m.new[i].insn) {
        return None;
    }
    let op = m.new.remove(i);
    // Right before the jump, or right behind it.
    let to = j - usize::from(j > i) + rng.below(2) as usize;
    m.new.insert(to, op);
    Some(m)
}

fn changed(s: Src, register: &dyn Fn(&mut Rng) -> Reg, rng: &mut Rng) -> Src {
    match s {
        Src::Reg(_) => Src::Reg(register(rng)),
        Src::Imm(k) => Src::Imm(match rng.below(4) {
            0 => k.wrapping_add(1),
            1 => k.wrapping_neg(),
            2 => k ^ 1 << rng.below(32),
            _ => rng.number(32) as i32,
        }),
    }
}

/// Another register, constant or offset of the same operation.
fn vary(insn: Insn, register: &dyn Fn(&mut Rng) -> Reg, rng: &mut Rng) -> Insn {
    let near = |rng: &mut Rng, off: i16| off.wrapping_add(rng.one_of(&[-8, -4, -2, -1, 1, 2, 4, 8]));
    if let Some(exit) = SideExit::of(&insn) {
        let other = match rng.below(5) {
            0 => SideExit { cond: exit.cond.negate().unwrap_or(Cond::Eq), ..exit },
            1 => SideExit { cond: rng.one_of(&Cond::ALL), ..exit },
            2 => SideExit { width: if exit.width == Width::W64 { Width::W32 } else { Width::W64 }, ..exit },
            3 => SideExit { dst: register(rng), ..exit },
            _ => SideExit { src: changed(exit.src, register, rng), ..exit },
        };
        return other.insn();
    }
    match insn {
        Insn::Alu { op, width, dst, src } if rng.chance(2) => {
            Insn::Alu { op, width, dst, src: changed(src, register, rng) }
        }
        Insn::Alu { op, width, src, .. } => Insn::Alu { op, width, dst: register(rng), src },
        Insn::Mov { width, dst, src } if rng.chance(2) => Insn::Mov { width, dst, src: changed(src, register, rng) },
        Insn::Mov { width, src, .. } => Insn::Mov { width, dst: register(rng), src },
        Insn::LoadImm64 { dst, kind, imm } => Insn::LoadImm64 { dst, kind, imm: imm ^ 1 << rng.below(64) },
        Insn::Load { size, sext, dst, base, off } => match rng.below(3) {
            0 => Insn::Load { size, sext, dst, base, off: near(rng, off) },
            1 => Insn::Load { size, sext, dst: register(rng), base, off },
            _ => Insn::Load { size: rng.one_of(&Size::ALL[..3]), sext, dst, base, off },
        },
        Insn::Store { size, base, off, src } => match rng.below(3) {
            0 => Insn::Store { size, base, off: near(rng, off), src },
            1 => Insn::Store { size, base, off, src: changed(src, register, rng) },
            _ => Insn::Store { size: rng.one_of(&Size::ALL), base, off, src },
        },
        other => tweak(rng, other),
    }
}

/// What both judges and the runs say of a mutant.
fn ask(z3: &mut Z3, m: &Window, env: &Env, rng: &mut Rng) -> Outcome {
    let verdict = judge(m, env);
    let encoding = encode(m, env);
    let plain = match &encoding {
        Ok(e) => z3.ask(&e.formula()),
        Err(why) => Err(Z3Error::Failed(why.clone())),
    };
    let shown = |o: Option<String>| o.map(|what| format!("called equal, but {what}"));
    let wrong = |out: Outcome, what: Option<String>| Outcome { disagreement: what, ..out };
    let z3_text = || encoding.as_ref().map(Encoding::formula).unwrap_or_default();
    match (&verdict, &plain) {
        (Verdict::Equal, Ok(Status::Unsat)) => {
            // Once in a while: the question is not settled by what it assumes.
            let empty = rng.chance(8) && encoding.as_ref().is_ok_and(|e| vacuous(z3, e));
            let outcome = Outcome::of("equal_by_z3");
            if empty { outcome.and("vacuous") } else { outcome }
        }
        (Verdict::Equal, Ok(Status::Sat)) => {
            wrong(Outcome::of("equal_wrong"), Some(format!("called equal, Z3 says sat\n{}", z3_text())))
        }
        (Verdict::Equal, _) => wrong(Outcome::of("equal_by_runs"), shown(random_runs(m, env, rng))),
        (_, Ok(Status::Sat)) => match replay(z3, m, encoding.as_ref().ok()) {
            Some(Both::Differ(_)) => Outcome::of("refuted").and("refuted_by_z3"),
            Some(Both::Same) => {
                let text = format!("Z3's difference does not show in a run\n{}", z3_text());
                wrong(Outcome::of("not_replayed"), Some(text))
            }
            _ => match random_runs(m, env, rng) {
                Some(_) => Outcome::of("refuted").and("refuted_by_runs"),
                None => Outcome::of("unknown").and("unknown: sat, not replayed"),
            },
        },
        (Verdict::Different(_), Ok(Status::Unsat)) => {
            let empty = encoding.as_ref().is_ok_and(|e| vacuous(z3, e));
            // An atomic is an event of its own, whatever it leaves behind.
            let atomic = m.old.iter().chain(&m.new).any(|o| matches!(o.insn, Insn::Atomic { .. }));
            let why = match (empty, atomic) {
                (true, _) => "unknown: no state is like this",
                (_, true) => "unknown: another atomic to the same effect",
                _ => "unknown: difference without effect",
            };
            Outcome::of("unknown").and(why)
        }
        (Verdict::Unknown(why), Ok(Status::Unsat)) => {
            Outcome::of("unknown").and("incomplete").and(&format!("incomplete: {}", kind_of(why)))
        }
        (_, unmodelled) => match random_runs(m, env, rng) {
            Some(_) => Outcome::of("refuted").and("refuted_by_runs"),
            None => {
                let why = match (&verdict, unmodelled) {
                    (Verdict::Unknown(why), _) => kind_of(why),
                    (_, Err(why)) => kind_of(&why.to_string()),
                    _ => "Z3 gave up".into(),
                };
                Outcome::of("unknown").and(&format!("unknown: {why}"))
            }
        },
    }
}

/// Whether no state satisfies what an encoding assumes.
fn vacuous(z3: &mut Z3, e: &Encoding) -> bool {
    z3.ask(&e.assumptions) == Ok(Status::Unsat)
}

/// Runs both sides from Z3's assignment; `None` where the interpreter cannot follow it.
fn replay(z3: &mut Z3, m: &Window, encoding: Option<&Encoding>) -> Option<Both> {
    let e = encoding?;
    let stores = e.unknowns.iter().any(|(k, _)| k.ends_with(" stores") && !k.ends_with(" after 0 stores"));
    if stores {
        return None;
    }
    let mut regs = [0; 11];
    for (r, name) in regs.iter_mut().zip(&e.registers) {
        *r = z3.number(name).ok()?;
    }
    let byte = |i: u64| format!("(select {} (bvsub frame (_ bv{} 64)))", e.memory, 512 - i);
    let all = (0..512).map(byte).reduce(|a, b| format!("(concat {a} {b})"))?;
    let frame = z3.value(&all).ok()?;
    let symbols = e.unknowns.iter().filter_map(|(k, n)| Some((k.clone(), z3.number(n).ok()?))).collect();
    let mut world = Assigned { z3, memory: e.memory, symbols, bytes: BTreeMap::new(), cut: false };
    let ran = both(m, &Entry { regs, frame }, &mut world);
    (!world.cut).then_some(ran)
}
