//! Lane `facts`: what the facts engine claims against what is there.
//!
//! A function runs in the interpreter one operation at a time. Before each, every register that has a value, and
//! samples of the frame, must be described by the engine's state: number in range and bits, pointer in its region at
//! its offset, two pointers of one base at the distance their offsets say; after a branch, also by the state of the
//! edge that was taken. A point or an edge that is reached must not be claimed unreachable.
//!
//! Three kinds of functions: generated programs that the verifier would accept, functions that let addresses of
//! their own frame escape, and numbers, without rules, and the functions of real objects.

use bpf_driver::difftest::{self, Random};
use bpf_facts::{Env, Facts, Kind, Liveness, MapInfo, Region, State, Value};
use bpf_isa::{Imm64Kind, Reg, RegSet, Size};
use bpf_program::{BlockId, Function, Link, ProgKind, Symbol, Terminator};
use bpf_semantics::interp::{Host, Interp, KernelHost, MapSpec, Stop};

use crate::corpus::Corpus;
use crate::exec::world;
use crate::generate::{self, Abilities};
use crate::{Lane, Tally};

mod frame_escape;

/// Runs of one function.
const RUNS: u64 = 8;
/// Blocks of one run.
const STEPS: u64 = 600;
/// Generated functions of a unit.
const FUNCTIONS: u64 = 20;
/// Bytes of a frame.
const FRAME: i64 = 512;

/// The lane.
pub struct FactsLane {
    corpus: Corpus,
}

/// A function with its facts, and what its execution needs.
struct Subject<'a> {
    f: &'a Function,
    facts: &'a Facts,
    states: Vec<Vec<State>>,
    /// Whether an address of the frame has leaked is only promised for registers that are still read.
    live: Liveness,
    maps: &'a [MapInfo],
}

/// Where the regions of a run begin that the machine does not tell.
struct Places {
    frame: u64,
    context: Option<u64>,
}

impl FactsLane {
    /// The lane, with the functions of these objects.
    pub fn new(corpus: Corpus) -> FactsLane {
        FactsLane { corpus }
    }

    fn generated(&self, r: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let program = generate::program(r, Abilities { load_acquire: true });
        let graphs = program.graphs()?;
        let maps = generate::map_infos();
        let env = Env { maps: &maps, callee_args: &|_| Some(4), ..Env::empty() };
        let facts = Facts::of(&graphs[0], &env);
        let subject = Subject::new(&graphs[0], &facts, &env);
        for _ in 0..RUNS {
            let (packet, contents) = (generate::packet(r), generate::contents(r));
            let mut interp = world(program.kind, &packet, &contents).start();
            for f in &graphs[1..] {
                interp.add_function(f.clone());
            }
            subject.run(&mut interp, r, tally)?;
        }
        Ok(())
    }

    fn juggled(&self, r: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let f = frame_escape::function(r);
        let facts = Facts::of(&f, &Env::empty());
        let subject = Subject::new(&f, &facts, &Env::empty());
        for _ in 0..RUNS {
            let mut interp = Interp::new(KernelHost::new(ProgKind::Subprogram, &[]));
            for reg in Reg::all().filter(|reg| *reg != Reg::R10) {
                interp.cpu.set(reg, generate::number(r));
            }
            for byte in interp.cpu.frame_mut() {
                *byte = r.next() as u8;
            }
            subject.run(&mut interp, r, tally)?;
        }
        Ok(())
    }

    fn real(&self, which: usize, r: &mut Random, tally: &mut Tally) -> Result<(), String> {
        let Some((unit, f)) = self.corpus.function(which) else { return Ok(()) };
        let facts = unit.with_env(|env| Facts::of(f, env));
        let live = unit.with_env(|env| Liveness::of(f, env, &facts));
        let subject = Subject::with(f, &facts, live, &unit.maps);
        for _ in 0..RUNS * 4 {
            let packet = difftest::packet(r, &[]);
            let mut host = KernelHost::new(f.kind, &packet);
            host.core_as_compiled = true;
            host.seed(r.next());
            furnish(&mut host, unit.maps.iter(), f, r);
            if !matches!(f.kind, ProgKind::Xdp | ProgKind::Skb) {
                let context: Vec<u8> = (0..32).flat_map(|_| generate::number(r).to_le_bytes()).collect();
                host.set_context(&context);
            }
            let mut interp = host.start();
            if f.kind == ProgKind::Subprogram {
                for reg in RegSet::ARGS.iter() {
                    interp.cpu.set(reg, generate::number(r));
                }
            }
            for g in unit.graphs.iter().flatten().filter(|g| g.name != f.name) {
                interp.add_function(g.clone());
            }
            subject.run(&mut interp, r, tally).map_err(|e| format!("{}: {e}", self.corpus.name(which)))?;
        }
        Ok(())
    }
}

/// Gives the world the maps of an object, some elements in them, and zeros for the data it refers to.
fn furnish<'a>(host: &mut KernelHost, maps: impl Iterator<Item = &'a MapInfo>, f: &Function, r: &mut Random) {
    const DATA: usize = 1 << 16;
    const LARGEST: u32 = 1 << 16;
    for m in maps {
        let spec = MapSpec {
            name: m.name.clone(),
            map_type: m.map_type.unwrap_or(0),
            key_size: m.key_size.unwrap_or(0).min(LARGEST),
            value_size: m.value_size.unwrap_or(0).min(LARGEST),
            max_entries: m.max_entries.unwrap_or(0),
        };
        let (key, value) = (spec.key_size as usize, spec.value_size as usize);
        let map = host.add_map(spec);
        for i in 0..r.below(6) {
            let mut k = if r.one_in(2) { r.bytes(key) } else { vec![0; key] };
            if let Some(first) = k.first_mut() {
                *first = i as u8;
            }
            // Maps of programs and the like take nothing.
            let _ = host.map_update(map, &k, &r.bytes(value));
        }
    }
    for op in f.blocks.iter().flat_map(|b| &b.ops) {
        if let Some(Symbol::Data { section, .. }) = op.link.as_ref().map(|l| &l.symbol)
            && host.section(section).is_none()
        {
            host.add_section(section, &r.bytes(DATA), true);
        }
    }
}

impl<'a> Subject<'a> {
    fn new(f: &'a Function, facts: &'a Facts, env: &Env<'a>) -> Subject<'a> {
        Subject::with(f, facts, Liveness::of(f, env, facts), env.maps)
    }

    fn with(f: &'a Function, facts: &'a Facts, live: Liveness, maps: &'a [MapInfo]) -> Subject<'a> {
        let states = (0..f.blocks.len()).map(|i| facts.states(f, BlockId(i as u32))).collect();
        Subject { f, facts, states, live, maps }
    }

    /// One run; what cannot go on (a fault, a helper without a model) just ends it.
    fn run(&self, interp: &mut Interp<KernelHost>, r: &mut Random, tally: &mut Tally) -> Result<(), String> {
        interp.cpu.recording = false;
        let places = Places {
            frame: interp.cpu.register(Reg::R10).unwrap_or(0),
            context: interp.cpu.register(Reg::R1).filter(|_| self.f.kind != ProgKind::Subprogram),
        };
        let mut points = 0;
        let outcome = self.walk(interp, &places, r, &mut points);
        tally.count("points", points);
        tally.count("runs", 1);
        outcome.map_err(|what| format!("{what} in\n{}", self.f))
    }

    fn walk(
        &self,
        interp: &mut Interp<KernelHost>,
        places: &Places,
        r: &mut Random,
        points: &mut u64,
    ) -> Result<(), String> {
        let mut at = self.f.entry();
        for _ in 0..STEPS {
            let block = self.f.block(at);
            let states = &self.states[at.index()];
            if states.is_empty() {
                return Err(format!("{at} is reached and claimed unreachable"));
            }
            for (i, op) in block.ops.iter().enumerate() {
                self.check(&states[i], self.live.before(at, i).regs, interp, places, r)
                    .map_err(|e| format!("before {at}:{i}: {e}"))?;
                *points += 1;
                if interp.run_ops(std::slice::from_ref(op)).is_err() {
                    return Ok(());
                }
            }
            let last = &states[block.ops.len()];
            self.check(last, self.live.before(at, block.ops.len()).regs, interp, places, r)
                .map_err(|e| format!("before the end of {at}: {e}"))?;
            *points += 1;
            let (taken, next) = match block.term {
                Terminator::Exit { .. } => return Ok(()),
                Terminator::Goto(to) => (true, to),
                Terminator::MayGoto { taken, fall, .. } => {
                    let jump = r.one_in(8);
                    (jump, if jump { taken } else { fall })
                }
                Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
                    match bpf_semantics::branch(interp, cond, width, dst, src) {
                        Ok(jump) => (jump, if jump { taken } else { fall }),
                        Err(Stop::Exit | Stop::Fault(_)) => return Ok(()),
                    }
                }
            };
            let Some(edge) = self.facts.edge(self.f, at, taken) else {
                return Err(format!("the edge from {at} to {next} is taken and claimed impossible"));
            };
            self.check(&edge, self.live.entry(next).regs, interp, places, r)
                .map_err(|e| format!("on the edge from {at} to {next}: {e}"))?;
            *points += 1;
            at = next;
        }
        Ok(())
    }

    fn check(
        &self,
        state: &State,
        live: RegSet,
        interp: &mut Interp<KernelHost>,
        places: &Places,
        r: &mut Random,
    ) -> Result<(), String> {
        for reg in Reg::all() {
            let Some(bits) = interp.cpu.register(reg) else { continue };
            let v = state.reg(reg);
            let private = live.contains(reg) && !state.frame_leaked();
            self.describes(v, bits, private, state, interp, places)
                .map_err(|e| format!("{reg} = {bits:#x} is not {v:?}: {e}"))?;
        }
        self.distances(state, interp)?;
        for _ in 0..4 {
            let len = r.pick(&[1u32, 2, 4, 8, 8]);
            let off = if r.one_in(4) {
                -(r.below(FRAME as u64 - 8) as i64) - 8
            } else {
                -8 * (1 + r.below(16) as i64) + if len < 8 { r.below(u64::from(8 - len)) as i64 } else { 0 }
            };
            let from = (off + FRAME) as usize;
            let mut bytes = [0; 8];
            bytes[..len as usize].copy_from_slice(&interp.cpu.frame()[from..from + len as usize]);
            let (v, bits) = (state.stack_bytes(off, len), u64::from_le_bytes(bytes));
            self.describes(&v, bits, !state.frame_leaked(), state, interp, places)
                .map_err(|e| format!("stack {off}, {len} bytes, {bits:#x} is not {v:?}: {e}"))?;
        }
        Ok(())
    }

    /// Whether a value may be these bits; `private`: addresses of the frame may not be in it unless it says so.
    fn describes(
        &self,
        v: &Value,
        bits: u64,
        private: bool,
        state: &State,
        interp: &mut Interp<KernelHost>,
        places: &Places,
    ) -> Result<(), String> {
        let Kind::Pointer { region, base, nullable } = &v.kind else {
            let own = places.frame.wrapping_sub(bits).wrapping_sub(1) < FRAME as u64;
            return if !v.num.contains(bits) {
                Err("out of range or bits".to_owned())
            } else if own && v.num.bits == 64 && private {
                Err("an address of the frame that has not leaked".to_owned())
            } else {
                Ok(())
            };
        };
        if *nullable && bits == 0 {
            return Ok(());
        }
        let at = |start: u64| {
            let offset = bits.wrapping_sub(start);
            if v.num.contains(offset) { Ok(()) } else { Err(format!("the region is at {start:#x}")) }
        };
        match region {
            Region::Stack => at(places.frame),
            Region::Ctx => places.context.map_or(Ok(()), at),
            Region::Packet | Region::PacketMeta | Region::PacketEnd => {
                let Some([data, end, meta]) = packet_fields(self.f.kind, interp, places) else { return Ok(()) };
                let start = match region {
                    Region::Packet => data,
                    Region::PacketEnd => end,
                    _ => meta,
                };
                at(start)?;
                let readable = if *region == Region::Packet { state.packet_range(*base) } else { 0 };
                if data + u64::from(readable) > end {
                    return Err(format!("{readable} bytes are claimed readable of {}", end - data));
                }
                Ok(())
            }
            Region::MapValue { map } => {
                let size = self.maps.get(*map).and_then(|m| m.value_size).unwrap_or(0) as usize;
                let Some(offset) = v.num.as_const().filter(|_| (1..1 << 16).contains(&size)) else { return Ok(()) };
                // A whole value is there, from where the base must be.
                let mut value = vec![0; size];
                let start = bits.wrapping_sub(offset);
                interp.host.read(start, &mut value).map_err(|_| format!("no value of map {map} is at {start:#x}"))
            }
            Region::MapPtr { map } => {
                let Some(m) = self.maps.get(*map) else { return Err(format!("there is no map {map}")) };
                let symbol = Symbol::Map { name: m.name.as_str().into(), index: *map };
                address(interp, symbol).map_or(Ok(()), at)
            }
            Region::Data { section } => {
                address(interp, Symbol::Data { section: section.clone(), offset: 0 }).map_or(Ok(()), at)
            }
            Region::Func { .. } | Region::Mem | Region::CallerFrame | Region::Kernel | Region::AnyMapValue => {
                if interp.cpu.in_stack(bits) { Err("it points into the stack".to_owned()) } else { Ok(()) }
            }
        }
    }

    /// Pointers of one base are as far from each other as their offsets.
    fn distances(&self, state: &State, interp: &Interp<KernelHost>) -> Result<(), String> {
        let pointers: Vec<(Reg, &Value, u64)> = Reg::all()
            .filter_map(|reg| {
                let v = state.reg(reg);
                v.region()?;
                Some((reg, v, interp.cpu.register(reg)?))
            })
            .collect();
        for (i, (a, v, x)) in pointers.iter().enumerate() {
            for (b, w, y) in &pointers[i + 1..] {
                if v.same_base(w) && !v.num.sub(&w.num).contains(x.wrapping_sub(*y)) {
                    return Err(format!("{a} = {x:#x} and {b} = {y:#x} are not of one base: {v:?} and {w:?}"));
                }
            }
        }
        Ok(())
    }
}

fn address(interp: &mut Interp<KernelHost>, symbol: Symbol) -> Option<u64> {
    interp.host.address_of(Imm64Kind::Const, 0, Some(&Link { slot: 0, symbol })).ok()
}

/// Where the packet begins and ends, and its metadata begins, now.
fn packet_fields(kind: ProgKind, interp: &mut Interp<KernelHost>, places: &Places) -> Option<[u64; 3]> {
    let fields = match kind {
        ProgKind::Xdp => [0, 4, 8],
        ProgKind::Skb => [76, 80, 140],
        _ => return None,
    };
    let context = places.context?;
    let mut load = |off| interp.host.load(context + off, Size::W).ok();
    Some([load(fields[0])?, load(fields[1])?, load(fields[2])?])
}

impl Lane for FactsLane {
    fn name(&self) -> &'static str {
        "facts"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let mut r = Random::of(seed ^ 0xfac75, index);
        match index % 4 {
            0 | 1 => {
                for _ in 0..FUNCTIONS {
                    if let Err(what) = self.generated(&mut Random::new(r.next()), tally) {
                        tally.disagree(seed, index, what);
                    }
                }
            }
            2 => {
                for _ in 0..8 * FUNCTIONS {
                    if let Err(what) = self.juggled(&mut Random::new(r.next()), tally) {
                        tally.disagree(seed, index, what);
                    }
                }
            }
            _ => {
                let which = (index / 4) as usize % self.corpus.len().max(1);
                if let Err(what) = self.real(which, &mut r, tally) {
                    tally.disagree(seed, index, what);
                }
            }
        }
    }
}
