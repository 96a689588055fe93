//! The judge: did the two sides do the same, as far as it matters afterwards?

use bpf_facts::Live;
use tracing::{Level, enabled, trace};

use crate::compare::refinement;
use crate::compare::relation::{Location, Relocations};
use crate::options::Options;
use crate::presence::PACKET_STORE;
use crate::solver::blast::Model;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::state::memory_of;
use crate::symbolic::variables::{MemoryRegion, VarKey};
use crate::term::{TermId, show};

pub(crate) enum Judged {
    Equal,
    Different(Model),
    Unknown(String),
}

pub(crate) enum LiveOut<'a> {
    /// Registers and stack bytes that are live after a window of some function.
    Window(&'a Live),
    /// The same after a part of two functions that are compared as wholes.
    Block(&'a Live),
    /// A function's exit: r0.
    Exit,
}

/// Compares what the two sides did where they come under the condition `guard`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn judge(
    cx: &mut Context,
    guard: TermId,
    a: &Outcome,
    b: &Outcome,
    live: &LiveOut,
    moved: &Relocations,
    extra: Vec<TermId>,
    options: &Options,
) -> Judged {
    if b.misaligned && !a.misaligned {
        return Judged::Unknown("a stack access that is not aligned to its width".into());
    }
    if a.out_of_frame || b.out_of_frame {
        return Judged::Unknown("a stack access outside the frame".into());
    }
    // Whole functions have been compared as such.
    if b.stack_low < a.stack_low && matches!(live, LiveOut::Window(_)) {
        return Judged::Unknown("more stack than before".into());
    }
    let has_moved = |p: Location| moved.iter().any(|(q, _)| *q == p);
    let mut differ = extra;
    match live {
        LiveOut::Window(l) | LiveOut::Block(l) => {
            for r in l.regs.iter().filter(|r| !has_moved(Location::Reg(*r))) {
                push_difference(cx, a.exit.regs[r.index()], b.exit.regs[r.index()], &mut differ);
            }
        }
        LiveOut::Exit => push_difference(cx, a.exit.regs[0], b.exit.regs[0], &mut differ),
    }
    push_difference(cx, a.exit.world, b.exit.world, &mut differ);
    push_difference(cx, a.exit.reach, b.exit.reach, &mut differ);
    push_difference(cx, a.exit.ctx_version, b.exit.ctx_version, &mut differ);
    let frame = cx.lookup(&VarKey::Frame);
    let (mut sa, mut sb) = (a.exit.clone(), b.exit.clone());
    for r in 0..cx.region_count() {
        let (x, y) = (memory_of(cx, &mut sa, r), memory_of(cx, &mut sb, r));
        let private = matches!(cx.region(r), MemoryRegion::Stack | MemoryRegion::Anything);
        let relevant = |_: &mut Context, base: TermId, off: i64| -> bool {
            if !private || Some(base) != frame {
                return true;
            }
            match live {
                LiveOut::Window(l) | LiveOut::Block(l) => l.stack.contains(off) && !has_moved(Location::Byte(off)),
                LiveOut::Exit => false,
            }
        };
        // Dead stack bytes behind variable offsets are compared all the same: that is only stricter.
        if *cx.region(r) == MemoryRegion::Stack && matches!(live, LiveOut::Exit) {
            continue;
        }
        // What was done to shared memory while others write shows in the accesses, not in its contents.
        if cx.concurrent && cx.is_shared(r) {
            continue;
        }
        cx.memory_differences(x, y, &relevant, &mut differ);
    }
    match cx.check_sat(guard, &differ) {
        SatResult::Unsat => {}
        SatResult::Sat(m) => {
            if enabled!(Level::TRACE) {
                trace_difference(cx, &m, &differ, a, b);
            }
            let some = cx.terms.any(&differ);
            cx.difference = Some(cx.terms.all(&[guard, some]));
            // A call that is missing is a difference by itself, which may be none that a run shows.
            cx.difference_parts = differ.iter().map(|d| cx.terms.all(&[guard, *d])).collect();
            return Judged::Different(m);
        }
        SatResult::Unknown => return Judged::Unknown("the solver's limit was reached".into()),
    }
    if !cx.concurrent {
        return Judged::Equal;
    }
    if a.exit.packet_stored != b.exit.packet_stored {
        let mut stored = Vec::new();
        push_difference(cx, a.exit.packet_stored, b.exit.packet_stored, &mut stored);
        if !matches!(cx.check_sat(guard, &stored), SatResult::Unsat) {
            return Judged::Unknown(PACKET_STORE.into());
        }
    }
    match refinement::check(cx, &a.log, &b.log, options.strict_shared_memory) {
        Ok(()) => Judged::Equal,
        Err(why) => Judged::Unknown(why),
    }
}

/// Traces for a developer which terms differ under this model, after which events.
fn trace_difference(cx: &Context, m: &Model, differ: &[TermId], a: &Outcome, b: &Outcome) {
    let shown = |t: TermId, depth: u32| show(&cx.terms, t, depth);
    for d in differ.iter().filter(|d| m.eval(&cx.terms, **d) != 0) {
        trace!("differs: {}", shown(*d, 6));
    }
    for (i, e) in cx.events.iter().enumerate() {
        let args: Vec<String> = e.args.iter().map(|a| shown(*a, 3)).collect();
        let (number, before) = (i + 1, shown(e.before, 3));
        trace!("event {number}: before {before} {:?} args {} mems {:?}", e.what, args.join("; "), e.mems);
    }
    for (i, (x, y)) in a.exit.regs.iter().zip(&b.exit.regs).enumerate() {
        if x != y {
            trace!("r{i}: {} / {}", shown(*x, 4), shown(*y, 4));
        }
    }
}

fn push_difference(cx: &mut Context, x: TermId, y: TermId, out: &mut Vec<TermId>) {
    if x == y {
        cx.stats.trivial += 1;
        return;
    }
    let e = cx.terms.eq(x, y);
    out.push(cx.terms.not(e));
}
