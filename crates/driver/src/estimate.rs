//! How long code takes, as a table of costs says.
//!
//! A processor starts what does not wait for anything, so two things bound the time of a program that runs again and again: what its
//! operations take one beside the other (the sum of [`Cost::independent`]), and its longest chain, in which each waits for the one before
//! (the sum of [`Cost::dependent`] along it). Chains go through registers, and through memory where a load finds what was stored before:
//! by the same base and offset, wherever the base is from. While a chain waits, the processor goes on with what comes behind, as far as
//! it has room ([`WINDOW`]): of a program that fits into it many times, the chain is hidden by as many others.
//!
//! A stretch is a block, of which each counts once ([`of_function`]) or as often as it runs ([`expected`]), or the path of a run
//! ([`along`]), on which it is known which jumps jump.
//!
//! [`Cost::independent`]: bpf_isa::Cost::independent
//! [`Cost::dependent`]: bpf_isa::Cost::dependent

use std::iter::Peekable;
use std::sync::Arc;

use bpf_isa::{AluOp, Call, Class, Costs, Insn, MemoryOperand, Reg, RegSet, Src, Width};
use bpf_passes::jumps;
use bpf_platform::{Effects, maps};
use bpf_program::{BlockId, Frequencies, Function, Op, Symbol, Terminator};
use bpf_semantics::interp::Step;

/// Nanoseconds of a picosecond.
const NANOSECONDS: f64 = 0.001;
/// Operations that a processor has before it: 448 in AMD's Zen 5; in others from 128 (Neoverse N1) to 512 (Intel's Golden Cove).
const WINDOW: f64 = 448.0;
/// Stores that a load may find before it.
const STORES: usize = 64;

/// What bounds the time of a stretch.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Estimate {
    /// All operations beside each other.
    pub beside_ns: f64,
    /// The longest chain.
    pub chain_ns: f64,
    /// How many operations there are.
    pub operations: f64,
}

impl Estimate {
    /// What comes of both.
    pub fn ns(self) -> f64 {
        self.beside_ns.max(self.chain_ns * (self.operations / WINDOW).min(1.0))
    }
}

/// Which type the map with this number has.
pub(crate) type MapTypes<'a> = &'a dyn Fn(usize) -> Option<u32>;

/// Estimated nanoseconds of a function: of its blocks, each counted once, as in the K2 paper's `perf_lat`; a chain ends with
/// its block.
pub(crate) fn of_function(f: &Function, costs: &Costs, maps: MapTypes<'_>) -> f64 {
    let block = |b: &BlockId| {
        let block = f.block(*b);
        let mut flow = Flow::new(costs, maps);
        block.ops.iter().for_each(|op| flow.operation(op));
        match block.term {
            Terminator::Goto(_) => {}
            Terminator::Branch { .. } | Terminator::MayGoto { .. } => flow.beside(Class::BranchNotTaken),
            Terminator::Exit { .. } => flow.beside(Class::Jump),
        }
        (flow.estimate(), 1.0)
    };
    f.layout.iter().map(block).fold(Estimate::default(), plus).ns()
}

/// Expected nanoseconds of a run of a function whose blocks run so often: what each takes, as often as it runs, and its jumps.
pub(crate) fn expected(f: &Function, frequencies: &Frequencies, costs: &Costs, maps: MapTypes<'_>) -> f64 {
    let block = |b: &BlockId| {
        let mut flow = Flow::new(costs, maps);
        f.block(*b).ops.iter().for_each(|op| flow.operation(op));
        (flow.estimate(), frequencies.block(*b))
    };
    let jumps = Estimate { beside_ns: jumps(f, frequencies, costs) * NANOSECONDS, ..Estimate::default() };
    f.layout.iter().map(block).fold(jumps, plus).ns()
}

/// A sum with so many more of an estimate.
fn plus(sum: Estimate, (e, times): (Estimate, f64)) -> Estimate {
    Estimate {
        beside_ns: sum.beside_ns + e.beside_ns * times,
        chain_ns: sum.chain_ns + e.chain_ns * times,
        operations: sum.operations + e.operations * times,
    }
}

/// What the instructions of a function weigh one by one, each counted once; a jump without condition weighs nothing.
pub(crate) fn weights(f: &Function, costs: &Costs) -> u64 {
    let block = |b: &BlockId| {
        let block = f.block(*b);
        let ops: u64 = block.ops.iter().map(|o| u64::from(costs.time(&o.insn))).sum();
        let jump = if matches!(block.term, Terminator::Goto(_)) { 0 } else { costs.class_time(Class::BranchNotTaken) };
        ops + u64::from(jump)
    };
    f.layout.iter().map(block).sum()
}

/// The estimate of a run that went these steps, beginning with that into `main`.
pub(crate) fn along(
    main: &Function,
    others: &[Arc<Function>],
    steps: &[Step],
    costs: &Costs,
    maps: MapTypes<'_>,
) -> Estimate {
    let mut flow = Flow::new(costs, maps);
    let of_path = |s: &Step| matches!(s, Step::Enter(_) | Step::Block(_) | Step::Leave);
    let mut steps = steps.iter().copied().filter(of_path).peekable();
    steps.next();
    walk(&mut flow, main, others, &mut steps);
    flow.estimate()
}

/// Goes through one function until it is left.
fn walk(flow: &mut Flow<'_>, f: &Function, others: &[Arc<Function>], steps: &mut Peekable<impl Iterator<Item = Step>>) {
    while let Some(step) = steps.next() {
        let Step::Block(at) = step else { return };
        let block = f.block(at);
        for op in &block.ops {
            flow.operation(op);
            while let Some(Step::Enter(callee)) = steps.peek().copied() {
                steps.next();
                let callee = callee.and_then(|n| others.get(n)).cloned();
                let caller = flow.enter();
                match callee {
                    Some(callee) => walk(flow, &callee, others, steps),
                    None => walk(flow, f, others, steps),
                }
                flow.leave(caller);
            }
        }
        let next = match steps.peek() {
            Some(Step::Block(next)) => Some(*next),
            _ => None,
        };
        flow.end(f, at, &block.term, next);
    }
}

/// Where a register points to, or what number it holds: something with a name, and an offset to it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Place {
    origin: u32,
    offset: i64,
    kind: Kind,
}

/// What is known of what a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Frame,
    MapValue,
    Map(usize),
    Other,
}

/// Something stored, and when it may be loaded.
struct Stored {
    origin: u32,
    from: i64,
    to: i64,
    ready: f64,
}

/// A stretch of code in the processor.
struct Flow<'a> {
    costs: &'a Costs,
    maps: MapTypes<'a>,
    /// When the value of a register is there.
    ready: [f64; 11],
    places: [Place; 11],
    stores: Vec<Stored>,
    named: u32,
    beside: f64,
    chain: f64,
    operations: u32,
}

impl<'a> Flow<'a> {
    fn new(costs: &'a Costs, maps: MapTypes<'a>) -> Flow<'a> {
        let place =
            |i: usize| Place { origin: i as u32, offset: 0, kind: if i == 10 { Kind::Frame } else { Kind::Other } };
        let places = std::array::from_fn(place);
        Flow {
            costs,
            maps,
            ready: [0.0; 11],
            places,
            stores: Vec::new(),
            named: 11,
            beside: 0.0,
            chain: 0.0,
            operations: 0,
        }
    }

    fn estimate(&self) -> Estimate {
        Estimate {
            beside_ns: self.beside * NANOSECONDS,
            chain_ns: self.chain * NANOSECONDS,
            operations: f64::from(self.operations),
        }
    }

    /// One operation of a class that nothing waits for.
    fn beside(&mut self, class: Class) {
        self.beside += f64::from(self.costs.of(class).independent);
        self.operations += 1;
    }

    fn waits(&self, regs: RegSet) -> f64 {
        regs.iter().map(|r| self.ready[r.index()]).fold(0.0, f64::max)
    }

    fn fresh(&mut self, kind: Kind) -> Place {
        self.named += 1;
        Place { origin: self.named, offset: 0, kind }
    }

    fn operation(&mut self, op: &Op) {
        let insn = &op.insn;
        match insn {
            Insn::Call(_) | Insn::CallX { .. } => return self.call(insn),
            Insn::Load { .. } | Insn::LoadAcquire { .. } => return self.load(insn),
            Insn::Store { .. } | Insn::StoreRelease { .. } => return self.store(insn),
            _ => {}
        }
        let class = Class::of(insn);
        self.beside(class);
        let done = self.waits(insn.uses()) + f64::from(self.costs.of(class).dependent);
        if let Some(operand) = insn.memory_operand() {
            // Of an atomic.
            self.keep(&operand, done);
        }
        self.define(insn.defs(), done);
        if let Some(dst) = insn.def() {
            self.places[dst.index()] = match (insn, op.link.as_ref().map(|l| &l.symbol)) {
                (Insn::Mov { width: Width::W64, src: Src::Reg(r), .. }, _) => self.places[r.index()],
                (Insn::Alu { op: AluOp::Add, width: Width::W64, src: Src::Imm(k), .. }, _) => {
                    let old = self.places[dst.index()];
                    Place { offset: old.offset + i64::from(*k), ..old }
                }
                (Insn::Alu { op: AluOp::Sub, width: Width::W64, src: Src::Imm(k), .. }, _) => {
                    let old = self.places[dst.index()];
                    Place { offset: old.offset - i64::from(*k), ..old }
                }
                // A pointer into a map's value stays one.
                (Insn::Alu { op: AluOp::Add, width: Width::W64, .. }, _) => {
                    let kind = self.places[dst.index()].kind;
                    self.fresh(kind)
                }
                (_, Some(Symbol::Map { index, .. })) => self.fresh(Kind::Map(*index)),
                (_, Some(Symbol::Data { .. })) => self.fresh(Kind::MapValue),
                _ => self.fresh(Kind::Other),
            };
        }
    }

    /// The registers get their values at this time.
    fn define(&mut self, regs: RegSet, done: f64) {
        self.chain = self.chain.max(done);
        for r in regs.iter() {
            self.ready[r.index()] = done;
        }
    }

    /// What an access is to.
    fn range(&self, operand: &MemoryOperand) -> (Place, i64, i64) {
        let place = self.places[operand.base.index()];
        let from = place.offset + i64::from(operand.off);
        (place, from, from + i64::from(operand.size.bytes()))
    }

    fn class(&self, insn: &Insn, place: Place) -> Class {
        let class = Class::of(insn);
        match place.kind {
            Kind::MapValue => class.in_map(),
            _ => class,
        }
    }

    fn keep(&mut self, operand: &MemoryOperand, ready: f64) {
        let (place, from, to) = self.range(operand);
        if self.stores.len() == STORES {
            self.stores.remove(0);
        }
        self.stores.push(Stored { origin: place.origin, from, to, ready });
    }

    fn store(&mut self, insn: &Insn) {
        let Some(operand) = insn.memory_operand() else { return };
        let (place, ..) = self.range(&operand);
        let class = self.class(insn, place);
        self.beside(class);
        let ready = self.waits(insn.uses());
        self.chain = self.chain.max(ready);
        self.keep(&operand, ready);
    }

    fn load(&mut self, insn: &Insn) {
        let Some(operand) = insn.memory_operand() else { return };
        let (place, from, to) = self.range(&operand);
        let class = self.class(insn, place);
        self.beside(class);
        let mut done = self.waits(insn.uses()) + f64::from(self.costs.of(class).dependent);
        let found = self.stores.iter().rev().find(|s| s.origin == place.origin && s.from < to && from < s.to);
        if let Some(stored) = found {
            let class = match (stored.from == from, stored.to == to) {
                (true, true) if place.kind == Kind::Frame => Class::ForwardStack,
                (true, true) => Class::ForwardSame,
                _ if stored.from <= from && to <= stored.to => Class::ForwardNarrower,
                _ => Class::ForwardWider,
            };
            let cost = self.costs.of(class);
            done = done.max(stored.ready + f64::from(cost.dependent));
            // A load that has to wait until stores are in the cache holds up others, too.
            self.beside += f64::from(cost.independent);
        }
        self.define(insn.defs(), done);
        if let Some(dst) = insn.def() {
            self.places[dst.index()] = self.fresh(Kind::Other);
        }
    }

    fn call(&mut self, insn: &Insn) {
        let map = match self.places[Reg::R1.index()].kind {
            Kind::Map(index) => (self.maps)(index),
            _ => None,
        };
        let class = called(insn, map);
        self.beside(class);
        let arguments = self.waits(insn.uses().intersect(RegSet::first_args(2)));
        self.define(insn.defs(), arguments + f64::from(self.costs.of(class).dependent));
        let is_lookup = matches!(insn, Insn::Call(Call::Helper(1)));
        for r in RegSet::CALLER_SAVED.iter() {
            self.places[r.index()] = self.fresh(Kind::Other);
        }
        self.places[0].kind = if is_lookup { Kind::MapValue } else { Kind::Other };
    }

    /// A function begins, with a frame of its own; what is to be known again afterwards.
    fn enter(&mut self) -> [Place; 11] {
        let caller = self.places;
        self.places[Reg::R10.index()] = self.fresh(Kind::Frame);
        caller
    }

    fn leave(&mut self, caller: [Place; 11]) {
        for r in RegSet::ALL.minus(RegSet::CALLER_SAVED).iter() {
            self.places[r.index()] = caller[r.index()];
        }
    }

    /// The end of a block, behind which this one came.
    fn end(&mut self, f: &Function, at: BlockId, term: &Terminator, next: Option<BlockId>) {
        let behind = || f.layout.iter().position(|b| *b == at).and_then(|i| f.layout.get(i + 1)).copied();
        match term {
            Terminator::Branch { taken, .. } | Terminator::MayGoto { taken, .. } if next == Some(*taken) => {
                self.beside(Class::BranchTaken);
            }
            Terminator::Branch { .. } | Terminator::MayGoto { .. } => self.beside(Class::BranchNotTaken),
            Terminator::Goto(to) if behind() != Some(*to) => self.beside(Class::Jump),
            Terminator::Goto(_) | Terminator::Exit { .. } => {}
        }
    }
}

/// The class of a call, with a map of this type as the first argument.
fn called(insn: &Insn, map: Option<u32>) -> Class {
    if matches!(insn, Insn::Call(Call::Local(_))) {
        return Class::CallLocal;
    }
    match (Effects::helper(insn, false).map(|h| h.name), map) {
        (Some("map_lookup_elem"), Some(maps::ARRAY)) => Class::CallLookupArray,
        (Some("map_lookup_elem"), Some(maps::PERCPU_ARRAY)) => Class::CallLookupPerCpu,
        (Some("map_lookup_elem"), _) => Class::CallLookupHash,
        (Some("map_update_elem"), Some(maps::ARRAY)) => Class::CallUpdateArray,
        (Some("map_update_elem" | "map_delete_elem"), _) => Class::CallUpdateHash,
        (Some("ktime_get_ns"), _) => Class::CallKtime,
        (Some("get_prandom_u32"), _) => Class::CallRandom,
        (Some("get_smp_processor_id"), _) => Class::CallProcessor,
        (Some("tail_call"), _) => Class::CallTail,
        (Some("csum_diff"), _) => Class::CallCsumDiff,
        _ => Class::CallHelper,
    }
}

#[cfg(test)]
mod tests {
    use bpf_isa::{Cost, Origin};
    use bpf_program::ProgKind;
    use bpf_testgen::listing;

    use super::*;

    /// A chain of arithmetic takes 1,000 an operation, a load 4,000, a load from several stores 20,000; beside each other all take 100.
    fn costs() -> Costs {
        Costs::new(Origin::default(), |class| {
            let dependent = match class {
                Class::Alu64 => 1000,
                Class::ForwardStack | Class::ForwardSame => 200,
                Class::ForwardWider => 20_000,
                Class::LoadStack8 | Class::LoadPacket8 => 4000,
                _ => 100,
            };
            Cost { dependent, independent: 100 }
        })
    }

    fn bounds(text: &str) -> (f64, f64) {
        let f = listing::function(ProgKind::Xdp, text);
        let costs = costs();
        let mut flow = Flow::new(&costs, &|_| None);
        f.block(f.layout[0]).ops.iter().for_each(|op| flow.operation(op));
        (flow.beside, flow.chain)
    }

    #[test]
    fn a_chain_takes_longer_than_the_same_operations_beside_each_other() {
        assert_eq!(bounds("r1 += 1\nr1 += 1\nr1 += 1\nr0 = r1\nexit"), (400.0, 3100.0));
        assert_eq!(bounds("r1 += 1\nr2 += 1\nr3 += 1\nr0 = r1\nexit"), (400.0, 1100.0));
    }

    #[test]
    fn what_was_stored_is_found_by_base_and_offset() {
        // The copy of the frame pointer leads to the same place.
        let spill = "*(u64 *)(r10 - 8) = r1\nr2 = r10\nr2 += -16\nr0 = *(u64 *)(r2 + 8)\nexit";
        let (beside, chain) = bounds(spill);
        assert_eq!((beside, chain), (500.0, 1000.0 + 100.0 + 4000.0));
        let halves = "*(u32 *)(r10 - 8) = r1\n*(u32 *)(r10 - 4) = r1\nr0 = *(u64 *)(r10 - 8)\nexit";
        assert_eq!(bounds(halves).1, 20_000.0);
        let elsewhere = "*(u32 *)(r10 - 16) = r1\nr0 = *(u64 *)(r10 - 8)\nexit";
        assert_eq!(bounds(elsewhere).1, 4000.0);
    }

    #[test]
    fn every_block_counts_once() {
        let f = listing::function(ProgKind::Xdp, "r0 = 1\nif r1 == 0 goto a\nr0 += 1\na: exit");
        let ns = of_function(&f, &costs(), &|_| None);
        // Constant, branch, addition and end, beside each other: four are far from filling the window.
        assert!((ns - 0.4).abs() < 1e-9, "{ns}");
    }

    #[test]
    fn a_chain_counts_as_far_as_it_fills_the_window() {
        let ns = |operations| Estimate { beside_ns: 10.0, chain_ns: 40.0, operations }.ns();
        assert_eq!([ns(8.0), ns(WINDOW / 2.0), ns(2.0 * WINDOW)], [10.0, 20.0, 40.0]);
    }

    #[test]
    fn lookups_cost_what_their_map_does() {
        let call = Insn::Call(Call::Helper(1));
        assert_eq!(called(&call, Some(maps::ARRAY)), Class::CallLookupArray);
        assert_eq!(called(&call, None), Class::CallLookupHash);
        assert_eq!(called(&Insn::Call(Call::Helper(99)), None), Class::CallHelper);
    }
}
