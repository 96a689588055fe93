//! Where ways meet with a pointer into the packet at various places, its offset is computed anew and masked.
//!
//! ```text
//!                                     t = *(u32 *)(r1 + 0)      (unless some register holds it)
//!                                     r6 -= t
//! join: r2 = r6                  →    r6 &= 63
//!       …                             r6 += t
//!                               join: r2 = r6
//! ```
//! `data + 14`, `data + 18` and `data + 22` are three states for the verifier, and it walks what follows once for each
//! (`regsafe` in kernel/bpf/verifier.c asks for the same constant offset of a packet pointer). An offset that comes out of a mask is a
//! number in a range, the same on every way; what is known of it here, by the facts, is the mask. The verifier forgets what it
//! knew of the bytes behind the pointer, so this serves only where a check of the packet's end follows; the kernel tells.
//!
//! A difference of pointers takes `CAP_PERFMON`, as `bpf-opt` assumes elsewhere (docs/trust.md).

use bpf_facts::{Analysis, Kind, Live, Num, Region, StackSet, State, Value};
use bpf_isa::{AluOp, Insn, Reg, Size, Src};
use bpf_program::{BlockId, FieldKind, Function, Op, ProgKind, packet_pointer_offset, predecessors};

use super::edit::{Form, alu};

/// What it is called in reports.
pub(super) const NAME: &str = "packet-offset";
/// The furthest that a pointer may be moved by a number that the verifier does not know (`MAX_PACKET_OFF` in
/// kernel/bpf/verifier.c).
const FURTHEST: u64 = 0xffff;

/// All such forms: of each block that several ways lead to, with all pointers into the packet, then with each alone.
pub(super) fn forms<'a>(f: &'a Function, analysis: &'a Analysis) -> impl Iterator<Item = Form> + 'a {
    let preds = predecessors(f);
    let joins: Vec<BlockId> =
        f.layout.iter().copied().filter(|b| *b != f.entry() && preds[b.index()].len() > 1).collect();
    joins.into_iter().flat_map(move |b| at(f, analysis, b))
}

/// Those of one block.
fn at(f: &Function, analysis: &Analysis, b: BlockId) -> Vec<Form> {
    let live = analysis.live().entry(b);
    let states = analysis.facts().states(f, b);
    let Some(state) = states.first() else { return Vec::new() };
    let moved: Vec<(Reg, i32)> = live.regs.iter().filter_map(|r| Some((r, mask(state, r)?))).collect();
    if moved.is_empty() {
        return Vec::new();
    }
    let Some((start, load)) = start(f.kind, state, live) else { return Vec::new() };
    let form = |moved: &[(Reg, i32)]| {
        let mut new = load.clone();
        let start = Src::Reg(start);
        for &(r, mask) in moved {
            new.extend([alu(AluOp::Sub, r, start), alu(AluOp::And, r, Src::Imm(mask)), alu(AluOp::Add, r, start)]);
        }
        let origin = f.block(b).ops.first().and_then(|op| op.origin);
        Form::of_block(NAME, f, b, new.into_iter().map(|insn| Op::with_origin(insn, origin)).collect())
    };
    let alone = moved.iter().filter(|_| moved.len() > 1).map(|one| form(std::slice::from_ref(one)));
    std::iter::once(form(&moved)).chain(alone).collect()
}

/// The mask of what a register's offset into the packet may be, if it points there, at more than one place.
fn mask(state: &State, r: Reg) -> Option<i32> {
    let Num { umax, tnum, .. } = offset(state, r, &Region::Packet)?;
    let bits = u64::MAX.checked_shr(umax.leading_zeros()).unwrap_or(0) & (tnum.value | tnum.mask);
    (tnum.mask != 0 && bits <= FURTHEST).then_some(bits as i32)
}

/// How far behind the start of the region a register points, if it points there.
fn offset<'s>(state: &'s State, r: Reg, to: &Region) -> Option<&'s Num> {
    let value = state.reg(r);
    match &value.kind {
        Kind::Pointer { region, nullable: false, .. } if region == to => Some(&value.num),
        _ => None,
    }
}

/// A register that holds the packet's start, and what has to be done before it does. It may be in a register that nobody reads any more,
/// and so may the context; else the context is in the frame.
fn start(kind: ProgKind, state: &State, live: &Live) -> Option<(Reg, Vec<Insn>)> {
    let is_start = |r: &Reg, of: &Region| offset(state, *r, of).and_then(Num::as_const) == Some(0);
    let is_argument = |r: &Reg| matches!(state.reg(*r).kind, Kind::Pointer { base, .. } if base.is_argument());
    if let Some(r) = Reg::all().find(|r| is_start(r, &Region::Packet) && !is_argument(r)) {
        return Some((r, Vec::new()));
    }
    let field = i16::try_from(packet_pointer_offset(kind, FieldKind::PacketData)?).ok()?;
    let t = Reg::all().find(|r| *r != Reg::R10 && !live.regs.contains(*r))?;
    let load = |size, base, off| Insn::Load { size, sext: false, dst: t, base, off };
    if let Some(context) = Reg::all().find(|r| is_start(r, &Region::Ctx)) {
        return Some((t, vec![load(Size::W, context, field)]));
    }
    let is_context = |v: &Value| {
        v.num.bits == 64
            && v.num.as_const() == Some(0)
            && matches!(v.kind, Kind::Pointer { region: Region::Ctx, nullable: false, .. })
    };
    let is_live = |at: i64| StackSet::range(at, 8).minus(&live.stack).is_empty();
    let (at, _) = state.stack_values().find(|(at, v)| is_context(v) && is_live(*at))?;
    Some((t, vec![load(Size::DW, Reg::R10, i16::try_from(at).ok()?), load(Size::W, t, field)]))
}
