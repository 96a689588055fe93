//! What the kernel checks of the code's shape before it follows any path: encodings, jump targets, reachability; and
//! what the path walk needs to know beforehand: where to compare states, and which registers are live.

use bpf_isa::{AluOp, Call, Insn, Reg, RegSet, Size, Src, Width};
use bpf_platform::Effects;
use bpf_platform::helpers::Helper;

use crate::Stop;
use crate::program::{Program, Target};

/// Facts about the code as a graph.
#[derive(Debug, Default)]
pub struct Shape {
    /// Where states are remembered and compared.
    pub prune: Vec<bool>,
    /// Registers that may be read before they are written, at the start of each slot.
    pub live: Vec<RegSet>,
    /// Functions that may move packet data, themselves or by what they call.
    pub moves_packet: Vec<bool>,
    /// Whether it takes spin locks: then it matters which of several map values a pointer is to.
    pub locks: bool,
    /// Calls of helpers that call back at once.
    pub calls_back: Vec<bool>,
}

fn violation<T>(slot: usize, what: impl Into<String>) -> Result<T, (usize, Stop)> {
    Err((slot, Stop::Violation(what.into())))
}

/// Checks the shape of a program.
pub fn check(program: &Program) -> Result<Shape, (usize, Stop)> {
    for (at, slot) in program.slots.iter().enumerate() {
        if let Some(insn) = slot.insn {
            encoding(at, &insn)?;
        }
    }
    targets(program)?;
    let shape = reach(program)?;
    Ok(Shape { live: live_registers(program), moves_packet: packet_movers(program), ..shape })
}

/// Slots that are no instruction are refused wherever they are.
fn encoding(at: usize, insn: &Insn) -> Result<(), (usize, Stop)> {
    let Insn::Opaque(bits) = *insn else { return Ok(()) };
    let (code, dst, src) = (bits as u8, bits >> 8 & 0xf, bits >> 12 & 0xf);
    if dst > 10 || src > 10 {
        return violation(at, format!("R{} is invalid", dst.max(src)));
    }
    violation(at, format!("unknown opcode or reserved fields in use (opcode {code:#04x})"))
}

/// What the kernel refuses of an instruction when a path reaches it, whatever the registers hold.
pub fn operands(insn: &Insn) -> Result<(), Stop> {
    let bad = |what: String| Err(Stop::Violation(what));
    match *insn {
        Insn::Alu { op: AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, src: Src::Imm(0), .. } => {
            bad("div by zero".into())
        }
        Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, width, src: Src::Imm(by), .. }
            if by < 0 || by as u32 >= width.bits() =>
        {
            bad(format!("invalid shift {by}"))
        }
        Insn::Endian { bits, .. } if !matches!(bits, 16 | 32 | 64) => bad("BPF_END uses reserved fields".into()),
        Insn::MovSx { from: Size::W, width: Width::W32, .. } => bad("BPF_MOV uses reserved fields".into()),
        Insn::Atomic { size: Size::B | Size::H, .. } => bad("invalid atomic operand size".into()),
        _ if insn.def() == Some(Reg::R10) => bad("frame pointer is read only".into()),
        _ => Ok(()),
    }
}

/// Slots that may come after the one at `at`, within its function.
fn successors(at: usize, insn: &Insn) -> Vec<i64> {
    let next = (at + insn.slots()) as i64;
    match *insn {
        Insn::Exit => vec![],
        Insn::Ja { off, .. } => vec![next + i64::from(off)],
        Insn::Jcc { off, .. } | Insn::MayGoto { off } => vec![next, next + i64::from(off)],
        _ => vec![next],
    }
}

/// Slots from which a jump leads back to where the path has been (`check_cfg` in kernel/bpf/verifier.c before Linux 5.3: an
/// edge to an instruction that is being explored).
pub fn jumps_back(program: &Program) -> Vec<usize> {
    let mut found = Vec::new();
    let mut begun = vec![false; program.slots.len()];
    let mut ended = begun.clone();
    for sub in &program.subs {
        let mut path: Vec<(usize, Vec<i64>)> = Vec::new();
        let enter = |at: usize, begun: &mut Vec<bool>| {
            begun[at] = true;
            (at, program.slots[at].insn.map_or_else(Vec::new, |insn| successors(at, &insn)))
        };
        path.push(enter(sub.start, &mut begun));
        while let Some((at, left)) = path.last_mut() {
            let at = *at;
            match left.pop().map(|to| usize::try_from(to).unwrap_or(usize::MAX)) {
                None => {
                    ended[at] = true;
                    path.pop();
                }
                Some(to) if !(sub.start..sub.end).contains(&to) => {}
                Some(to) if begun[to] && !ended[to] => found.push(at),
                Some(to) if begun[to] => {}
                Some(to) => path.push(enter(to, &mut begun)),
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Every jump stays in its function and hits the start of an instruction; no function runs off its end.
fn targets(program: &Program) -> Result<(), (usize, Stop)> {
    for sub in &program.subs {
        let mut last = None;
        for at in sub.start..sub.end {
            let Some(insn) = program.slots[at].insn else { continue };
            last = Some((at, insn));
            if let Some(by) = insn.jump_offset() {
                let to = at as i64 + 1 + i64::from(by);
                if to < sub.start as i64 || to >= sub.end as i64 {
                    return violation(at, format!("jump out of range from insn {at} to {to}"));
                }
                if program.slots[to as usize].insn.is_none() {
                    return violation(at, "jump into the middle of ldimm64 insn");
                }
            }
            match (&insn, &program.slots[at].target) {
                (Insn::Call(Call::Local(_)), Target::Func(f)) if program.sub_at(*f).is_none() => {
                    return violation(at, "call to a place where no function starts");
                }
                _ => {}
            }
        }
        match last {
            Some((_, Insn::Exit | Insn::Ja { .. })) => {}
            Some((at, _)) => return violation(at, "last insn is not an exit or jmp"),
            None => return violation(sub.start, "no instructions"),
        }
    }
    Ok(())
}

fn reach(program: &Program) -> Result<Shape, (usize, Stop)> {
    let n = program.slots.len();
    let mut shape = Shape { prune: vec![false; n], calls_back: vec![false; n], ..Shape::default() };
    let mut seen = vec![false; n];
    let mut work = vec![0usize];
    while let Some(at) = work.pop() {
        if at >= n || std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let Some(insn) = program.slots[at].insn else { continue };
        if let (Insn::Call(Call::Local(_)) | Insn::LoadImm64 { .. }, Target::Func(f)) =
            (insn, &program.slots[at].target)
        {
            work.push(*f);
            if matches!(insn, Insn::Call(_)) {
                shape.prune[at] = true;
                if let Some(after) = shape.prune.get_mut(at + 1) {
                    *after = true;
                }
            }
        }
        let helper = Effects::helper(&insn, false);
        shape.locks |= helper.is_some_and(Helper::locks);
        if helper.is_some_and(|h| h.callback().is_some()) {
            (shape.calls_back[at], shape.prune[at]) = (true, true);
        }
        if matches!(insn, Insn::Jcc { .. } | Insn::MayGoto { .. }) {
            shape.prune[at] = true;
        }
        if let Some(by) = insn.jump_offset() {
            let to = (at as i64 + 1 + i64::from(by)) as usize;
            shape.prune[to] = true;
        }
        work.extend(successors(at, &insn).iter().map(|s| *s as usize));
    }
    match (0..n).find(|at| !seen[*at] && program.slots[*at].insn.is_some()) {
        Some(at) => violation(at, format!("unreachable insn {at}")),
        None => Ok(shape),
    }
}

fn live_registers(program: &Program) -> Vec<RegSet> {
    let mut live = vec![RegSet::EMPTY; program.slots.len()];
    for sub in &program.subs {
        loop {
            let mut changed = false;
            for at in (sub.start..sub.end).rev() {
                let Some(insn) = program.slots[at].insn else { continue };
                let after = successors(at, &insn)
                    .iter()
                    .fold(RegSet::EMPTY, |set, s| set.union(live.get(*s as usize).copied().unwrap_or_default()));
                let before = after.minus(insn.defs()).union(uses(&insn));
                if before != live[at] {
                    live[at] = before;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
    }
    live
}

fn uses(insn: &Insn) -> RegSet {
    match insn {
        Insn::Call(Call::Helper(id)) => {
            Helper::get(*id).map_or(RegSet::ARGS, |h| RegSet::first_args(h.args.len().min(5)))
        }
        _ => insn.uses(),
    }
}

fn packet_movers(program: &Program) -> Vec<bool> {
    let mut moves = vec![false; program.subs.len()];
    loop {
        let mut changed = false;
        for (index, sub) in program.subs.iter().enumerate() {
            let does = program.slots[sub.start..sub.end].iter().any(|slot| match (slot.insn, &slot.target) {
                (Some(Insn::Call(Call::Helper(id))), _) => Helper::get(id).is_some_and(|h| h.effects.moves_packet()),
                (Some(Insn::Call(Call::Local(_))), Target::Func(f)) => program.sub_at(*f).is_some_and(|s| moves[s]),
                _ => false,
            });
            changed |= does && !moves[index];
            moves[index] |= does;
        }
        if !changed {
            return moves;
        }
    }
}
