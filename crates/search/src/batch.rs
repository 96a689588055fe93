//! A batch of tests: what the original does on a few inputs, and how far a candidate is from it.
//!
//! The batch holds the state before each operation of the *current* program, so that a proposal
//! which changes operation `i` is run from there only. Memory is one copy: the current program's
//! stores are taken back as far as needed, and made again if the proposal is refused.

pub(crate) mod parts;

use bpf_facts::{Live, Region, State};
use bpf_isa::{Insn, Reg, Size};
use bpf_program::{FieldKind, Op, Symbol, ctx_field};
use bpf_prove::superblock::is_side_exit;
use bpf_semantics::exec;

use crate::inputs::Input;
use crate::lanes::{File, LaneMachine, Lanes, Map, PLACES, Registers, SETS, TURNS, WORLD};
use crate::settings::Distance;
use crate::superblock::{Exit, Exits};
use crate::test_memory::{Access, Cell, READ, Segment, Sparse, TestMemory, WRITE, Write};
use crate::window::Window;

pub use crate::window::NOP;

/// State before an operation.
#[derive(Clone, Copy)]
struct Step {
    map: Map,
    faults: u32,
    writes: u32,
}

/// Bytes of memory that must be as the original leaves them.
struct Check<const N: usize> {
    at: [u32; N],
    mask: [u64; N],
    want: [u64; N],
}

/// How a candidate did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Score {
    /// Sum of the distances of all values.
    pub distance: u64,
    /// Tests with a wrong result.
    pub failed: u32,
    /// Accesses that were not allowed, lanes counted.
    pub faults: u32,
}

impl Score {
    /// Nothing wrong.
    pub fn perfect(&self) -> bool {
        *self == Score::default()
    }

    /// Adds another batch's.
    pub fn add(&mut self, o: Score) {
        self.distance += o.distance;
        self.failed += o.failed;
        self.faults += o.faults;
    }
}

/// Some tests, run in lanes.
pub struct Batch<const N: usize> {
    sandbox: TestMemory<N>,
    current: Vec<Step>,
    values: Vec<[u64; N]>,
    writes: Vec<Write<N>>,
    next: Vec<Step>,
    new_values: Vec<[u64; N]>,
    from: usize,
    checks: Vec<Check<N>>,
    /// Registers that must agree, and their values.
    want: Vec<(usize, [u64; N])>,
    /// Of a superblock: the exit that its inputs take, and how many operations are on the way.
    way: Option<(usize, usize)>,
}

/// Ranges of one lane that are this close become one.
const GAP: u64 = 16;
/// Bytes before the first segment of a lane, which catch what goes astray.
const TRASH: usize = 16;
/// Widest range of addresses kept.
const WIDEST: u64 = 4096;

impl<const N: usize> Batch<N> {
    /// The batch of these inputs; `None` if the original itself cannot be run on them, or they leave a
    /// superblock at different exits.
    pub fn new(w: &Window, inputs: &[Input; N]) -> Option<Batch<N>> {
        let number = w.superblock.and_then(|r| exit_of(w, r, &inputs[0]));
        let exit = w.superblock.and_then(|r| r.exits.get(number?));
        if w.superblock.is_some() && exit.is_none() {
            return None;
        }
        let way = number.zip(exit.map(|e| e.len));
        let live = exit.map_or(w.live, |e| &e.live);
        let private = private_accesses(w, exit);
        let logs: Vec<Vec<Access>> = inputs.iter().map(|i| watch(w, i, exit)).collect::<Option<_>>()?;
        let sandbox = build(w, live, inputs, &logs, &private)?;
        let mut values = vec![[0; N]; PLACES + SETS * w.old.len()];
        for (r, v) in values.iter_mut().enumerate().take(WORLD) {
            *v = std::array::from_fn(|l| inputs[l].regs[r]);
        }
        let step = Step { map: std::array::from_fn(|r| r as u16), faults: 0, writes: 0 };
        let mut b = Batch {
            sandbox,
            current: vec![step; w.old.len() + 1],
            new_values: values.clone(),
            values,
            writes: Vec::with_capacity(32),
            next: vec![step; w.old.len() + 1],
            from: 0,
            checks: Vec::new(),
            want: Vec::new(),
            way,
        };
        b.run(w.old, 0);
        b.accept();
        let end = b.current[w.old.len()];
        if end.faults != 0 {
            return None;
        }
        let turns = w.superblock.map(|_| TURNS);
        let counted = live.regs.iter().map(Reg::index).filter(|r| *r != 10).chain([WORLD]).chain(turns);
        b.want = counted.map(|r| (r, b.values[usize::from(end.map[r])])).collect();
        b.checks = checks(live, &b.sandbox);
        Some(b)
    }

    /// Runs a proposal that differs from the current program from operation `from` on. Must be
    /// followed by [`Batch::accept`] or [`Batch::reject`] before the next.
    pub fn run(&mut self, ops: &[Op], from: usize) {
        let Batch { sandbox, current, values, writes, next, new_values, way, .. } = self;
        let start = current[from];
        sandbox.undo(&writes[start.writes as usize..]);
        sandbox.journal.clear();
        sandbox.faults = start.faults;
        let fresh = PLACES + SETS * from;
        let file = File { old: values, new: new_values, fresh, map: start.map, next: fresh };
        let mut m = LaneMachine { regs: file, memory: sandbox };
        for (i, (op, step)) in ops.iter().zip(&mut next[1..]).enumerate().skip(from) {
            let (mine, jump) = way.map_or((true, false), |(_, len)| (i < len, is_side_exit(&op.insn)));
            if op.insn != NOP && mine {
                m.regs.at(i);
                if jump {
                    m.turn(op, i);
                } else {
                    let Ok(()) = exec(&mut m, op);
                }
            }
            let writes = start.writes + m.memory.journal.len() as u32;
            *step = Step { map: m.regs.map, faults: m.memory.faults, writes };
        }
        self.from = from;
    }

    /// The proposal is the current program from now on.
    pub fn accept(&mut self) {
        let from = self.from;
        self.writes.truncate(self.current[from].writes as usize);
        self.writes.extend_from_slice(&self.sandbox.journal);
        self.current[from + 1..].copy_from_slice(&self.next[from + 1..]);
        let fresh = PLACES + SETS * from;
        self.values[fresh..].copy_from_slice(&self.new_values[fresh..]);
        self.sandbox.journal.clear();
    }

    /// The proposal is forgotten.
    pub fn reject(&mut self) {
        self.sandbox.take_back();
        self.sandbox.redo(&self.writes[self.current[self.from].writes as usize..]);
    }

    /// How far what ran last is from the original.
    #[inline]
    pub fn score(&self, distance: Distance) -> Score {
        let fresh = PLACES + SETS * self.from;
        self.score_of(&self.next, fresh, distance)
    }

    /// How far the current program is, while no proposal is pending.
    pub fn score_current(&self, distance: Distance) -> Score {
        self.score_of(&self.current, usize::MAX, distance)
    }

    #[inline]
    fn score_of(&self, steps: &[Step], fresh: usize, distance: Distance) -> Score {
        match distance {
            Distance::Pop => self.score_by(steps, fresh, |x, y| (x ^ y).count_ones()),
            Distance::Abs => self.score_by(steps, fresh, |x, y| x.abs_diff(y).min(u64::from(FAREST)) as u32),
        }
    }

    #[inline(always)]
    fn score_by(&self, steps: &[Step], fresh: usize, far: impl Fn(u64, u64) -> u32) -> Score {
        let Some(end) = steps.last() else { return Score::default() };
        let mut wrong = [0u64; N];
        let mut distance = 0;
        for (r, want) in &self.want {
            let at = usize::from(end.map[*r]);
            let got = if at >= fresh { &self.new_values[at] } else { &self.values[at] };
            let mut any = 0;
            for l in 0..N {
                let d = got[l] ^ want[l];
                wrong[l] |= d;
                any |= d;
            }
            if any != 0 {
                distance += (0..N).map(|l| u64::from(far(got[l], want[l]))).sum::<u64>();
            }
        }
        for c in &self.checks {
            let got = self.sandbox.words(&c.at);
            let mut any = 0;
            for l in 0..N {
                let d = (got[l] ^ c.want[l]) & c.mask[l];
                wrong[l] |= d;
                any |= d;
            }
            if any != 0 {
                distance += (0..N).map(|l| u64::from(far(got[l] & c.mask[l], c.want[l] & c.mask[l]))).sum::<u64>();
            }
        }
        let failed = wrong.iter().filter(|w| **w != 0).count() as u32;
        Score { distance, failed, faults: end.faults }
    }

    /// Values of a register at the end of the current program.
    pub fn current(&self, r: Reg) -> [u64; N] {
        self.current.last().map_or([0; N], |s| self.values[usize::from(s.map[r.index()])])
    }

    /// The exit of a superblock that its inputs take; 0 in a straight window.
    pub fn exit(&self) -> usize {
        self.way.map_or(0, |w| w.0)
    }

    /// Takes `ops` as the current program, whatever it was.
    pub fn reset(&mut self, ops: &[Op]) {
        self.run(ops, 0);
        self.accept();
    }
}

/// Greatest distance of two numbers that counts.
const FAREST: u8 = 64;

/// For each access of the original, in the order of execution: whether it is to memory of its own
/// (packet, reservation), where reading and writing more often does no harm.
fn private_accesses(w: &Window, exit: Option<&Exit>) -> Vec<bool> {
    let mut state: State = w.before.clone();
    let mut v = Vec::new();
    for (i, op) in w.old[..exit.map_or(w.old.len(), |e| e.len)].iter().enumerate() {
        let base = match op.insn {
            _ if op.is_core() => None,
            Insn::Load { base, .. } | Insn::Store { base, .. } => Some((base, 1)),
            Insn::LoadAcquire { base, .. } | Insn::StoreRelease { base, .. } => Some((base, 1)),
            Insn::Atomic { base, .. } => Some((base, 2)),
            _ => None,
        };
        if let Some((base, n)) = base {
            let region = state.reg(base).region();
            let own = matches!(region, Some(Region::Packet | Region::PacketMeta | Region::Mem));
            v.extend(std::iter::repeat_n(own, n));
        }
        state.step(op, (bpf_program::BlockId(0), i), w.kind, w.env);
    }
    v
}

/// The exit by which the original leaves on this input.
pub fn exit_of(w: &Window, superblock: &Exits, input: &Input) -> Option<usize> {
    superblock.exits.iter().position(|e| watch(w, input, Some(e)).is_some())
}

/// Runs the original on one input and notes what it touches; `None` if it leaves a superblock another way.
fn watch(w: &Window, input: &Input, exit: Option<&Exit>) -> Option<Vec<Access>> {
    let mut memory = Sparse::new(input, w.kind);
    let mut values: Vec<[u64; 1]> = vec![[0]; PLACES + SETS * w.old.len()];
    input.regs.iter().zip(&mut values).for_each(|(r, v)| *v = [*r]);
    let map = std::array::from_fn(|r| r as u16);
    let file = File { old: &[], new: &mut values, fresh: 0, map, next: PLACES };
    let mut m = LaneMachine { regs: file, memory: &mut memory };
    for (i, op) in w.old[..exit.map_or(w.old.len(), |e| e.len)].iter().enumerate() {
        m.regs.at(i);
        match exit {
            Some(e) if is_side_exit(&op.insn) => {
                m.turn(op, i);
                let went = m.regs.read(TURNS)[0] >> (i % 64) & 1 == 1;
                if e.turns.iter().any(|(at, truth)| *at == i && *truth != went) {
                    return None;
                }
            }
            _ => {
                let Ok(()) = exec(&mut m, op);
            }
        }
    }
    Some(memory.log)
}

fn build<const N: usize>(
    w: &Window,
    live: &Live,
    inputs: &[Input; N],
    logs: &[Vec<Access>],
    private: &[bool],
) -> Option<TestMemory<N>> {
    let n = logs[0].len();
    if n != private.len() || logs.iter().any(|l| l.len() != n) {
        return None;
    }
    let in_frame = |l: usize, a: &Access| inputs[l].frame.wrapping_sub(a.addr) <= 512 && a.addr != inputs[l].frame;
    // How deep the frame is used: the same in all lanes for constant offsets, else the deepest.
    let depth = (0..N)
        .flat_map(|l| logs[l].iter().filter(move |a| a.field.is_none() && in_frame(l, a)).map(move |a| (l, a)))
        .map(|(l, a)| inputs[l].frame - a.addr)
        .max()
        .unwrap_or(0);
    let misaligned = (0..N).any(|l| {
        logs[l].iter().any(|a| {
            a.field.is_none() && in_frame(l, a) && !(inputs[l].frame - a.addr).is_multiple_of(u64::from(a.size.bytes()))
        })
    });
    let frame_at = TRASH as u64;
    let mut lanes: Vec<Vec<(u64, u64, u64)>> = Vec::new();
    let mut longest = 0;
    for (l, log) in logs.iter().enumerate() {
        let mut ranges: Vec<(u64, u64)> = log
            .iter()
            .filter(|a| a.field.is_none() && !in_frame(l, a))
            .map(|a| (a.addr, a.addr.wrapping_add(u64::from(a.size.bytes()))))
            .collect();
        if ranges.iter().any(|(lo, hi)| hi < lo) {
            return None;
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64, u64)> = Vec::new();
        for (lo, hi) in ranges {
            match merged.last_mut() {
                Some(last) if lo.saturating_sub(last.1) <= GAP => last.1 = last.1.max(hi),
                _ => merged.push((lo, hi, 0)),
            }
        }
        // Each lane has the frame first, then its ranges with a little room between.
        let mut at = frame_at + depth.next_multiple_of(8) + 8;
        for r in &mut merged {
            if r.1 - r.0 > WIDEST {
                return None;
            }
            r.2 = at;
            at += (r.1 - r.0).next_multiple_of(8) + 8;
        }
        longest = longest.max(at);
        lanes.push(merged);
    }
    let stride = (longest as usize + 8).next_multiple_of(8);
    let place = |l: usize, at: u64| (l * stride) as u32 + at as u32;
    let mut segments = Vec::new();
    if depth > 0 {
        segments.push(Segment {
            start: std::array::from_fn(|l| inputs[l].frame - depth),
            len: [depth; N],
            at: std::array::from_fn(|l| place(l, frame_at)),
            aligned: !misaligned,
        });
    }
    let mut sandbox = TestMemory {
        bytes: vec![0; stride * N],
        may: vec![0; stride * N],
        stride,
        segments: Vec::new(),
        ctx: std::array::from_fn(|l| inputs[l].ctx),
        order: inputs[0].order(),
        cells: Vec::new(),
        settable: Vec::new(),
        symbols: Vec::new(),
        journal: Vec::with_capacity(32),
        faults: 0,
    };
    for l in 0..N {
        let mut fill = |start: u64, len: u64, at: u64| {
            for i in 0..len {
                sandbox.bytes[place(l, at + i) as usize] = inputs[l].byte(start.wrapping_add(i));
            }
        };
        fill(inputs[l].frame.wrapping_sub(depth), depth, frame_at);
        lanes[l].iter().for_each(|(lo, hi, at)| fill(*lo, hi - lo, *at));
        // Of the frame, dead bytes are free to use; live ones that the original leaves alone are not.
        for i in 0..depth {
            let off = i as i64 - depth as i64;
            let free = if live.stack.contains(off) { READ } else { READ | WRITE };
            sandbox.may[place(l, frame_at + i) as usize] = free;
        }
    }
    for (i, own) in private.iter().enumerate() {
        let accesses: [Access; N] = std::array::from_fn(|l| logs[l][i]);
        if accesses[0].field.is_some() {
            context_cell(w, inputs, &accesses, &mut sandbox)?;
            continue;
        }
        let mut segment = Segment { start: [0; N], len: [0; N], at: [0; N], aligned: false };
        let mut frames = 0;
        for (l, a) in accesses.iter().enumerate() {
            let size = u64::from(a.size.bytes());
            let first = if in_frame(l, a) {
                frames += 1;
                frame_at + depth - (inputs[l].frame - a.addr)
            } else {
                let (lo, hi, at) = *lanes[l].iter().find(|(lo, hi, _)| *lo <= a.addr && a.addr < *hi)?;
                segment.start[l] = lo;
                segment.len[l] = hi - lo;
                segment.at[l] = place(l, at);
                at + (a.addr - lo)
            };
            let may = match (own, a.write) {
                (true, _) => READ | WRITE,
                (false, true) => WRITE,
                (false, false) => READ,
            };
            for b in 0..size {
                sandbox.may[place(l, first + b) as usize] |= may;
            }
        }
        let known = segments.iter().any(|s: &Segment<N>| s.at == segment.at);
        if frames < N && !known {
            segments.push(segment);
        }
    }
    sandbox.segments = segments;
    for op in w.old {
        if let Some(link) = &op.link {
            let known = sandbox.symbols.iter().any(|(s, _): &(Symbol, _)| *s == link.symbol);
            if !known {
                let v = std::array::from_fn(|l| inputs[l].symbol(&link.symbol));
                sandbox.symbols.push((link.symbol.clone(), v));
            }
        }
    }
    Some(sandbox)
}

/// Adds what one access to a context field allows.
fn context_cell<const N: usize>(
    w: &Window,
    inputs: &[Input; N],
    accesses: &[Access; N],
    sandbox: &mut TestMemory<N>,
) -> Option<()> {
    let (off, size) = (accesses[0].field?, accesses[0].size);
    if accesses.iter().any(|a| a.field != Some(off)) {
        return None;
    }
    if accesses[0].write {
        sandbox.settable.push((off, size));
        return Some(());
    }
    let mut allowed = vec![(off, size)];
    // A narrower load of the same field reads exactly those bytes of it.
    if let Some(f) = ctx_field(w.kind, i64::from(off))
        && f.kind == (FieldKind::Scalar { narrow: true })
    {
        for s in Size::ALL.into_iter().filter(|s| s.bytes() <= f.size) {
            allowed.extend((0..f.size).step_by(s.bytes() as usize).map(|o| (f.offset + o, s)));
        }
    }
    for (off, size) in allowed {
        if sandbox.cells.iter().any(|c| c.off == off && c.size == size) {
            continue;
        }
        let cell = |l: usize| inputs[l].cell(w.kind, off, size);
        let value = Lanes { bits: cell(0).0, v: std::array::from_fn(|l| cell(l).1) };
        sandbox.cells.push(Cell { off, size, value });
    }
    Some(())
}

/// The words of memory that count afterwards, as the original has left them.
fn checks<const N: usize>(live: &Live, s: &TestMemory<N>) -> Vec<Check<N>> {
    // Only the frame has its place right after the lane's first bytes.
    let frame = s.segments.first().filter(|f| f.at[0] as usize == TRASH);
    let counts = |l: usize, at: usize| -> bool {
        if s.may[l * s.stride + at] & WRITE == 0 {
            return false;
        }
        match frame {
            Some(f) if at < TRASH + f.len[l] as usize => {
                live.stack.contains(at as i64 - TRASH as i64 - f.len[l] as i64)
            }
            _ => true,
        }
    };
    let words: Vec<Vec<(u32, u64)>> = (0..N)
        .map(|l| {
            (0..s.stride / 8)
                .filter_map(|i| {
                    let mask = (0..8).filter(|b| counts(l, i * 8 + b)).fold(0u64, |m, b| m | 0xff << (8 * b));
                    (mask != 0).then_some(((l * s.stride + i * 8) as u32, mask))
                })
                .collect()
        })
        .collect();
    let most = words.iter().map(Vec::len).max().unwrap_or(0);
    (0..most)
        .map(|i| {
            let word = |l: usize| words[l].get(i).copied().unwrap_or(((l * s.stride) as u32, 0));
            let at = std::array::from_fn(|l| word(l).0);
            Check { at, mask: std::array::from_fn(|l| word(l).1), want: s.words(&at) }
        })
        .collect()
}
