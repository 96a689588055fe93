//! Functions for the front door: how they are built, what is known about their paths, how they run.

use bpf_facts::{Effect, Env, Facts, Live, Liveness, State};
use bpf_isa::Reg;
use bpf_program::{BlockId, Function, ProgKind, Terminator};
use bpf_prove::Known;
use bpf_prove::superblock::{Superblock, side};
use bpf_semantics::interp::{Fault, Interp, Oracle};
use bpf_testgen::listing::linked;

use crate::common::{Rng, mix};

const CTX: u64 = 0x1000_0000;
const PACKET: u64 = 0x2000_0000;

pub fn function(text: &str) -> Option<Function> {
    linked(ProgKind::Xdp, text, |_| None).ok()
}

/// What analyses say about a path, in the form the prover takes.
pub struct About {
    pub states: Vec<State>,
    pub live: Vec<Live>,
    pub sides: Vec<Live>,
}

impl About {
    pub fn known(&self) -> Known<'_> {
        Known { states: &self.states, live: &self.live, sides: &self.sides }
    }

    pub fn of(f: &Function, env: &Env, block: BlockId, path: &[BlockId]) -> Option<About> {
        let facts = Facts::of(f, env);
        let live = Liveness::of(f, env, &facts);
        let mut about = About { states: vec![], live: vec![], sides: vec![] };
        let mut blocks = std::iter::once(block).chain(path.iter().copied()).peekable();
        while let Some(b) = blocks.next() {
            let mut state = facts.entry(b)?.clone();
            state.retain(live.entry(b));
            let from = about.states.len();
            for (i, op) in f.block(b).ops.iter().enumerate() {
                about.states.push(state.clone());
                state.step(op, (b, i), f.kind, env);
            }
            about.states.push(state);
            let term = &f.block(b).term;
            let end = live.end(b);
            let mut point = Live { regs: end.regs.union(term.uses()), ..*end };
            let mut points = vec![*end, point];
            for (op, s) in f.block(b).ops.iter().zip(&about.states[from..]).rev() {
                point = Effect::of(s, op, env).before(&point);
                points.push(point);
            }
            points.reverse();
            about.live.append(&mut points);
            if let Some(next) = blocks.peek() {
                about.live.pop();
                about.sides.push(*live.entry(side(term, *next)?));
            }
        }
        Some(about)
    }
}

/// All paths of two to four blocks.
pub fn paths(f: &Function) -> Vec<(BlockId, Vec<BlockId>)> {
    let mut out = vec![];
    for &b in &f.layout {
        let mut open = vec![vec![]];
        while let Some(p) = open.pop() {
            let at = p.last().copied().unwrap_or(b);
            let Terminator::Branch { taken, fall, .. } = f.block(at).term else { continue };
            for next in [taken, fall] {
                let mut longer = p.clone();
                longer.push(next);
                if p.len() < 3 && Superblock::of(f, b, &longer).is_some() {
                    out.push((b, longer.clone()));
                    open.push(longer);
                }
            }
        }
    }
    out
}

/// r0 as the hook reads it, memory written, and the number of calls.
pub type Effects = (u64, Vec<(u64, u8)>, u64);

/// Runs a function; `seed` chooses its input.
pub fn run(f: &Function, seed: u64) -> Result<Effects, Fault> {
    let some = |n: u64| {
        let mut rng = Rng::new(mix(seed ^ n));
        match rng.below(3) {
            0 => rng.number(32),
            _ => rng.one_of(&[0, 1, 2, 7, 8, 9, 30, 31, 32, 254, 255, 256, u64::MAX]),
        }
    };
    let calls = std::cell::Cell::new(0);
    let oracle = Oracle::new(move |a| some(a) as u8)
        .on_load(move |a, _| match a.wrapping_sub(CTX) {
            0 => Some(PACKET),
            4 => Some(PACKET + 0x100),
            off @ (12 | 16) => Some(some(off)),
            _ => None,
        })
        .on_call(|_, cpu, _| {
            calls.set(calls.get() + 1);
            cpu.set(Reg::R0, some(calls.get() << 20));
            Ok(())
        });
    let mut interp = Interp::new(oracle);
    (0..10).filter_map(Reg::new).for_each(|r| interp.cpu.set(r, mix(seed ^ r.index() as u64)));
    interp.cpu.set(Reg::R1, CTX);
    let r0 = interp.run(f, 5_000)?.r0;
    let memory = &mut interp.host.memory;
    let mut written = memory.written();
    written.retain(|(a, b)| memory.initial_byte(*a) != *b);
    Ok((r0, written, calls.get()))
}

fn operation(rng: &mut Rng) -> String {
    let reg = |rng: &mut Rng| rng.one_of(&[0, 0, 2, 3, 4, 5, 7]);
    let (d, s, k) = (reg(rng), reg(rng), rng.one_of(&[0, 1, 2, 7, 8, 31, 255, -1]));
    let w = rng.one_of(&["r", "r", "w"]);
    let op = rng.one_of(&["+=", "-=", "&=", "|=", "^=", "=", "="]);
    let slot = rng.one_of(&[8, 16, 24]);
    let at = rng.below(6);
    match rng.below(12) {
        0 | 1 => format!("{w}{d} {op} {w}{s}"),
        2..=4 => format!("{w}{d} {op} {k}"),
        5 => format!("{w}{d} {} {}", rng.one_of(&["<<=", ">>=", "s>>="]), rng.one_of(&[1, 8, 16, 31])),
        6 => format!("*(u64 *)(r10 - {slot}) = r{s}"),
        7 => format!("*(u32 *)(r10 - {slot}) = {}", k.max(0)),
        8 => format!("r{d} = *({} *)(r10 - {slot})", rng.one_of(&["u64", "u32", "u16"])),
        9 => format!("*({} *)(r6 + {at}) = r{s}", rng.one_of(&["u8", "u16", "u32"])),
        10 => format!("*(u8 *)(r6 + {at}) = {}", k.max(0)),
        _ => format!("r{d} = *({} *)(r6 + {at})", rng.one_of(&["u8", "u16", "u32"])),
    }
}

fn condition(rng: &mut Rng) -> String {
    let w = rng.one_of(&["r", "w"]);
    let cond = rng.one_of(&["==", "!=", "<", "<=", ">", ">=", "s<", "s>=", "s>", "&"]);
    let reg = |rng: &mut Rng| rng.one_of(&[0, 2, 3, 4, 5, 7]);
    let (d, s, k) = (reg(rng), reg(rng), rng.one_of(&[0, 1, 7, 8, 31, 255, -1]));
    if rng.chance(4) { format!("{w}{d} {cond} {w}{s}") } else { format!("{w}{d} {cond} {k}") }
}

/// Early exits, one-armed and two-armed branches, now and then a loop.
fn body(rng: &mut Rng, depth: u64, out: &mut Vec<String>) {
    for _ in 0..1 + rng.below(4) {
        match rng.below(if depth < 3 { 10 } else { 4 }) {
            0..=3 => out.push(operation(rng)),
            4 if rng.chance(3) => {
                out.push("call 5".into());
                out.extend((2..6).map(|r| format!("r{r} = {r}")));
            }
            4..=6 => {
                let mut yes = vec![];
                (0..rng.below(3)).for_each(|_| yes.push(operation(rng)));
                yes.push("exit".into());
                out.push(format!("if {} goto +{}", condition(rng), yes.len()));
                out.append(&mut yes);
            }
            7 | 8 => {
                let (mut yes, mut no) = (vec![], vec![]);
                body(rng, depth + 1, &mut yes);
                body(rng, depth + 1, &mut no);
                out.push(format!("if {} goto +{}", condition(rng), no.len() + 1));
                out.append(&mut no);
                out.push(format!("goto +{}", yes.len()));
                out.append(&mut yes);
            }
            _ if depth < 2 && rng.chance(3) => {
                let mut inner = vec![];
                body(rng, 2 + depth, &mut inner);
                out.push(format!("r{} = 0", 8 + depth));
                let n = inner.len();
                out.append(&mut inner);
                out.push(format!("r{} += 1", 8 + depth));
                out.push(format!("if r{} < {} goto -{}", 8 + depth, 1 + rng.below(3), n + 2));
            }
            _ => {
                let mut inner = vec![];
                body(rng, depth + 1, &mut inner);
                out.push(format!("if {} goto +{}", condition(rng), inner.len()));
                out.append(&mut inner);
            }
        }
    }
}

/// A random function, as text.
pub fn program(rng: &mut Rng) -> String {
    let mut p: Vec<String> =
        ["r6 = *(u32 *)(r1 + 0)", "r2 = *(u32 *)(r1 + 12)", "r3 = *(u32 *)(r1 + 16)", "r4 = *(u16 *)(r6 + 2)"]
            .map(String::from)
            .to_vec();
    p.extend([8, 16, 24].map(|s| format!("*(u64 *)(r10 - {s}) = {s}")));
    p.extend([0, 5, 7].map(|r| format!("r{r} = {r}")));
    body(rng, 0, &mut p);
    p.push("exit".into());
    p.join("\n")
}
