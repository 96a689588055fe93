//! A second encoding of a window, as plain as can be, for a second opinion on whole proofs.
//!
//! The instruction semantics run over SMT-LIB expressions, one definition per operation, without any
//! simplification. Memory is one array from addresses to bytes; nothing here knows about the graph, its
//! canonical forms or the bit-blaster. `unsat` means that after both sequences every live register,
//! every live byte of the frame, all other memory, every store to the context and the condition of the
//! branch agree. Along a superblock ([`crate::superblock`]) so much is said of each side exit, in the
//! states that leave there, besides that the conditions agree wherever the old sequence comes to them.
//!
//! # What is assumed
//! - What the facts say of each register and each known byte of the frame at the start: bits and ranges,
//!   equal bases, pointers that cannot be null. Of a value of unknown kind nothing is assumed.
//! - The frame is 512 bytes below r10 that do not wrap around.
//! - Accesses of the *old* sequence go where the facts say: into the frame, or elsewhere, and those to
//!   regions that never overlap do not overlap. Of the new one's accesses only the next is assumed. Behind a
//!   jump all this holds where it was passed.
//! - Context fields are cells, named by offset, width and the number of context stores before; no access to
//!   memory is to the context.
//!
//! Calls, CO-RE instructions and the like are not modelled; then there is no encoding, and it says why.

mod machine;
mod text;

use std::rc::Rc;

use bpf_facts::{BaseId, Env, Kind, Live, Num, Region, State, Value};
use bpf_isa::{Cond, Insn, Reg, Src, Width};
use bpf_program::{BlockId, FieldKind, Function, Op, ProgKind, Terminator, packet_pointer_offset};
use bpf_semantics::{branch, exec};

use machine::Reference;
pub use text::symbol;
use text::{Access, Ended, Text, V, data_key, map_key};

use crate::rewrite::{Known, Rewrite};
use crate::solver::smt::number;
use crate::superblock::{SideExit, Superblock, side_exits};

/// Two sequences, from where, and what matters afterwards.
#[derive(Clone, Debug)]
pub struct Window {
    /// Kind of the program.
    pub kind: ProgKind,
    /// Facts at the start.
    pub before: State,
    /// The old sequence.
    pub old: Vec<Op>,
    /// The new one.
    pub new: Vec<Op>,
    /// What is live at the end.
    pub live: Live,
    /// What is live where their side exits leave them.
    pub sides: Vec<Live>,
    /// The two branches at the end, if the new sequence brings one, turned so that both jump to the
    /// same place when their conditions hold.
    pub tail: Option<(Terminator, Terminator)>,
}

impl Window {
    /// The question that a rewrite poses; `None` if it is about the graph.
    pub fn of(f: &Function, known: &Known, rewrite: &Rewrite) -> Option<Window> {
        let Rewrite { block, path, start, end, .. } = rewrite;
        let all = Superblock::of(f, *block, path)?;
        let old = all.ops().get(*start..*end)?.to_vec();
        let first = side_exits(all.ops().get(..*start)?);
        let last = f.block(path.last().copied().unwrap_or(*block));
        let point = rewrite.end + usize::from(rewrite.term.is_some());
        let tail = match &rewrite.term {
            None => None,
            Some(new) => Some((last.term.clone(), turned(&last.term, new)?)),
        };
        Some(Window {
            kind: f.kind,
            before: known.states.get(*start)?.clone(),
            live: *known.live.get(point)?,
            sides: known.sides.get(first..first + side_exits(&old))?.to_vec(),
            old,
            new: rewrite.with.clone(),
            tail,
        })
    }
}

/// `new` with its places in the order of `old`; a `goto` as a branch whose condition is constant.
fn turned(old: &Terminator, new: &Terminator) -> Option<Terminator> {
    let Terminator::Branch { taken, fall, origin, .. } = *old else { return None };
    let always = |cond| Terminator::Branch {
        cond,
        width: Width::W64,
        dst: Reg::R10,
        src: Src::Reg(Reg::R10),
        taken,
        fall,
        origin,
    };
    match *new {
        Terminator::Goto(to) if to == taken => Some(always(Cond::Eq)),
        Terminator::Goto(to) if to == fall => Some(always(Cond::Ne)),
        Terminator::Branch { taken: t, fall: g, .. } if (t, g) == (taken, fall) => Some(new.clone()),
        Terminator::Branch { taken: t, fall: g, cond, width, dst, src, .. } if (t, g) == (fall, taken) => {
            Some(Terminator::Branch { cond: cond.negate()?, width, dst, src, taken, fall, origin })
        }
        _ => None,
    }
}

/// An encoded window.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// Declarations, definitions and assumptions.
    pub assumptions: String,
    /// The assertion that the sequences differ.
    pub difference: String,
    /// Names of the registers at the start, r0 to r10.
    pub registers: [String; 11],
    /// Name of the memory at the start.
    pub memory: &'static str,
    /// What the other unknowns stand for, and their names.
    pub unknowns: Vec<(String, String)>,
}

impl Encoding {
    /// The question whether the two sequences can differ.
    pub fn formula(&self) -> String {
        format!("{}{}", self.assumptions, self.difference)
    }
}

/// Encodes a window.
///
/// # Errors
/// What has no model here.
pub fn encode(w: &Window, env: &Env) -> Result<Encoding, String> {
    let mut text = Text::new();
    let frame = text.named("frame", 64);
    text.assume(format!("(bvule {} {})", number(64, 512), frame.name));
    let mut entry = Entry { text: &mut text, before: &w.before, kind: w.kind, env, frame };
    let registers = Reg::all().map(|r| entry.value(w.before.reg(r), &format!("r{}", r.index()))).collect::<Vec<_>>();
    entry.stack();
    let registers: [V; 11] = registers.try_into().map_err(|_| "registers are missing")?;
    let (mut accesses, mut new) = (Vec::new(), Vec::new());
    let (a, ca) = side(&mut text, w, env, &registers, true, &mut accesses)?;
    let (b, cb) = side(&mut text, w, env, &registers, false, &mut new)?;
    apart(&mut text, &accesses);
    accesses.append(&mut new);
    beside_context(&mut text, &accesses);
    let ways = |s: &Walked| s.exits.iter().map(|t| t.leaves_if).collect::<Vec<_>>();
    if ways(&a) != ways(&b) || a.exits.len() != w.sides.len() {
        return Err("jumps that do not correspond".into());
    }
    let mut differ: Vec<String> = Vec::new();
    for ((x, y), live) in a.exits.iter().zip(&b.exits).zip(&w.sides) {
        differ.push(format!("(and {} (xor {} {}))", x.guard, x.condition, y.condition));
        let out = if x.leaves_if { x.condition.to_string() } else { format!("(not {})", x.condition) };
        let differ_there = differences(&mut text, &x.state, &y.state, live)?;
        differ.push(format!("(and {} {out} (or {} false))", x.guard, differ_there.join(" ")));
    }
    let mut at_end = differences(&mut text, &a.end, &b.end, &w.live)?;
    if let (Some(x), Some(y)) = (ca, cb) {
        at_end.push(format!("(xor {x} {y})"));
    }
    differ.push(format!("(and {} (or {} false))", a.guard, at_end.join(" ")));
    let difference = format!("(assert (or {} false))\n", differ.join(" "));
    let registers = registers.map(|v| v.name.to_string());
    let mut unknowns: Vec<(String, String)> =
        text.consts.iter().map(|(k, v)| (k.clone(), v.name.to_string())).collect();
    unknowns.sort_unstable();
    Ok(Encoding { assumptions: text.out, difference, registers, memory: "m0", unknowns })
}

/// In what two states differ, as far as `live` says that it matters.
fn differences(text: &mut Text, a: &Ended, b: &Ended, live: &Live) -> Result<Vec<String>, String> {
    let mut differ: Vec<String> = Vec::new();
    for r in live.regs.iter().filter(|r| *r != Reg::R10) {
        let (x, y) = (&a.regs[r.index()], &b.regs[r.index()]);
        if x.name != y.name {
            differ.push(format!("(distinct {} {})", x.name, y.name));
        }
    }
    if a.memory != b.memory {
        let probe = text.unknown("probe".into(), 64).name;
        let place = format!("(bvadd (bvsub {probe} frame) {})", number(64, 512));
        let mut seen = vec![format!("(bvuge {place} {})", number(64, 512))];
        for (off, len) in live.stack.runs() {
            let from = number(64, (off + 512) as u64);
            seen.push(format!("(bvult (bvsub {place} {from}) {})", number(64, len.into())));
        }
        let apart = format!("(distinct (select {} {probe}) (select {} {probe}))", a.memory, b.memory);
        differ.push(format!("(and (or {} false) {apart})", seen.join(" ")));
    }
    let shape = |s: &Ended| s.stores.iter().map(|(off, v)| (*off, v.bits)).collect::<Vec<_>>();
    if shape(a) != shape(b) {
        return Err("context stores that do not correspond".into());
    }
    for ((_, x), (_, y)) in a.stores.iter().zip(&b.stores) {
        differ.push(format!("(distinct {} {})", x.name, y.name));
    }
    Ok(differ)
}

/// What is known at the start, as unknowns and assumptions.
struct Entry<'a> {
    text: &'a mut Text,
    before: &'a State,
    kind: ProgKind,
    env: &'a Env<'a>,
    frame: V,
}

impl Entry<'_> {
    fn value(&mut self, v: &Value, own: &str) -> V {
        let own = format!("entry {own}");
        let (region, base, nullable) = match &v.kind {
            Kind::Unknown => return self.text.unknown(own, 64),
            Kind::Scalar => return self.number(&v.num, own),
            Kind::Pointer { region, base, nullable } => (region, *base, *nullable),
        };
        let Some(key) = base_key(region, base, self.before.packet_base(), self.kind, self.env) else {
            return self.text.unknown(own, 64);
        };
        let b = if *region == Region::Stack { self.frame.clone() } else { self.text.unknown(key, 64) };
        if nullable {
            return if v.num.as_const() == Some(0) { b } else { self.text.unknown(own, 64) };
        }
        self.text.assume(format!("(distinct {} {})", b.name, number(64, 0)));
        let offset = self.number(&v.num, own);
        self.text.bits(64, format!("(bvadd {} {})", b.name, offset.name))
    }

    fn number(&mut self, n: &Num, own: String) -> V {
        if let Some(k) = n.as_const() {
            return V { bits: 64, name: number(64, k).into() };
        }
        let v = self.text.unknown(own, 64);
        let x = &v.name;
        self.text.assume(format!("(= (bvand {x} {}) {})", number(64, !n.tnum.mask), number(64, n.tnum.value)));
        self.text.assume(format!("(and (bvule {} {x}) (bvule {x} {}))", number(64, n.umin), number(64, n.umax)));
        let (low, high) = (number(64, n.smin as u64), number(64, n.smax as u64));
        self.text.assume(format!("(and (bvsle {low} {x}) (bvsle {x} {high}))"));
        v
    }

    fn stack(&mut self) {
        for (off, v) in self.before.stack_values() {
            let bytes = v.num.bits / 8;
            let own = format!("frame {off}");
            let t = match bytes {
                8 => self.value(v, &own),
                _ => self.number(&v.num.zext(64), format!("entry {own}")),
            };
            for i in 0..bytes {
                let at = number(64, (off + i64::from(i)) as u64);
                let lo = self.env.byte_order.bit(i, 1, bytes);
                let byte = format!("((_ extract {} {lo}) {})", lo + 7, t.name);
                self.text.assume(format!("(= (select m0 (bvadd frame {at})) {byte})"));
            }
        }
    }
}

/// What names the base address of a pointer, if it has one that others may share.
fn base_key(region: &Region, base: BaseId, packet: BaseId, kind: ProgKind, env: &Env) -> Option<String> {
    let field = match region {
        Region::Packet => Some(FieldKind::PacketData),
        Region::PacketEnd => Some(FieldKind::PacketEnd),
        Region::PacketMeta => Some(FieldKind::PacketMeta),
        _ => None,
    };
    let off = field.and_then(|f| packet_pointer_offset(kind, f)).filter(|_| base.same(packet));
    Some(match (region, off) {
        (_, Some(off)) => format!("packet pointer {off}"),
        (Region::Ctx, _) => "context".into(),
        (Region::Data { section }, _) => data_key(section),
        (Region::MapPtr { map }, _) => map_key(&env.maps.get(*map)?.name),
        (Region::Kernel | Region::Func { .. }, _) => return None,
        _ if base.same(base) => format!("base {region:?} {base:?}"),
        _ => return None,
    })
}

/// Assumes that accesses go where the facts say.
fn apart(text: &mut Text, accesses: &[Access]) {
    let frame = number(64, 512);
    for (i, a) in accesses.iter().enumerate() {
        let start = &a.start.name;
        let len = number(64, a.len.into());
        let place = format!("(bvadd (bvsub {start} frame) {frame})");
        match &a.region {
            Some(Region::Stack) => {
                text.assume(a.when(format!("(bvule {place} {})", number(64, 512 - u64::from(a.len)))))
            }
            None if a.perhaps_frame => {}
            _ => {
                // Neither its first nor its last byte, nor the frame as a whole between them.
                text.assume(a.when(format!("(bvuge {place} {frame})")));
                let last = number(64, u64::from(a.len) - 1);
                text.assume(a.when(format!("(bvuge (bvadd {place} {last}) {frame})")));
            }
        }
        text.assume(a.when(format!("(bvule {start} (bvsub {} {len}))", number(64, u64::MAX))));
        for b in &accesses[..i] {
            let (Some(r), Some(s)) = (&a.region, &b.region) else { continue };
            if !r.may_overlap(s) {
                let (other, other_len) = (&b.start.name, number(64, b.len.into()));
                text.assume(a.when(b.when(format!(
                    "(or (bvule (bvadd {start} {len}) {other}) (bvule (bvadd {other} {other_len}) {start}))"
                ))));
            }
        }
    }
}

/// Assumes that no access to memory is to the context, whose fields are cells.
fn beside_context(text: &mut Text, accesses: &[Access]) {
    if !text.consts.contains_key("context") {
        return;
    }
    let context = text.unknown("context".into(), 64).name;
    let size = number(64, CONTEXT);
    text.assume(format!("(bvule {context} (bvsub {} {size}))", number(64, u64::MAX)));
    for a in accesses.iter().filter(|a| a.region != Some(Region::Ctx)) {
        let (start, last) = (&a.start.name, number(64, u64::from(a.len) - 1));
        text.assume(a.when(format!("(bvuge (bvsub {start} {context}) {size})")));
        text.assume(a.when(format!("(bvuge (bvsub (bvadd {start} {last}) {context}) {size})")));
    }
    text.assume(format!("(bvuge (bvsub (bvsub frame {}) {context}) {size})", number(64, 512)));
    text.assume(format!("(bvuge (bvsub (bvsub frame {}) {context}) {size})", number(64, 1)));
}

/// No context is longer.
const CONTEXT: u64 = 4096;

/// A side exit that one side comes to.
struct Arrival {
    guard: Rc<str>,
    condition: Rc<str>,
    /// What the condition is where it leaves.
    leaves_if: bool,
    state: Ended,
}

/// What one side does.
struct Walked {
    end: Ended,
    /// Under which condition it comes to the end.
    guard: Rc<str>,
    exits: Vec<Arrival>,
}

fn side(
    text: &mut Text,
    w: &Window,
    env: &Env,
    registers: &[V; 11],
    old: bool,
    accesses: &mut Vec<Access>,
) -> Result<(Walked, Option<Rc<str>>), String> {
    let end = Ended { regs: registers.clone(), memory: "m0".into(), stores: vec![] };
    let guard = Rc::from("true");
    let order = env.byte_order;
    let mut m = Reference { text, kind: w.kind, order, end, guard, place: None, perhaps_frame: false, accesses };
    let mut facts = w.before.clone();
    let mut exits = Vec::new();
    for (i, op) in if old { &w.old } else { &w.new }.iter().enumerate() {
        if let Some(SideExit { cond, width, dst, src, leaves_if }) = SideExit::of(&op.insn) {
            let condition = branch(&mut m, cond, width, dst, src)?;
            let on = if leaves_if { format!("(not {condition})") } else { condition.to_string() };
            let passed = m.text.define("Bool", format!("(and {} {on})", m.guard));
            let guard = std::mem::replace(&mut m.guard, passed);
            exits.push(Arrival { guard, condition, leaves_if, state: m.end.clone() });
            continue;
        }
        let place = match op.insn {
            Insn::Load { base, .. }
            | Insn::Store { base, .. }
            | Insn::Atomic { base, .. }
            | Insn::LoadAcquire { base, .. }
            | Insn::StoreRelease { base, .. } => Some(facts.reg(base).clone()),
            Insn::Jcc { .. } | Insn::Ja { .. } | Insn::MayGoto { .. } | Insn::Exit | Insn::Opaque(_) => {
                return Err("a jump".into());
            }
            _ => None,
        };
        // No kernel takes such an access, so no run shows what it gives.
        let outside = |v: &Value| {
            let at = v.num.as_signed_const().zip(op.insn.memory_operand());
            let inside = at.is_none_or(|(k, m)| (0..CONTEXT as i64).contains(&k.wrapping_add(m.off.into())));
            v.region() == Some(&Region::Ctx) && !inside
        };
        if place.as_ref().is_some_and(outside) {
            return Err("an access outside of the context".into());
        }
        m.perhaps_frame = place.as_ref().is_some_and(|v| facts.may_be_frame_address(v));
        m.place = place;
        exec(&mut m, op)?;
        facts.step(op, (BlockId(0), i), w.kind, env);
    }
    let tail = w.tail.as_ref().map(|(a, b)| if old { a } else { b });
    let condition = match tail {
        Some(Terminator::Branch { cond, width, dst, src, .. }) => Some(branch(&mut m, *cond, *width, *dst, *src)?),
        Some(_) => return Err("an end without a condition".into()),
        None => None,
    };
    Ok((Walked { end: m.end, guard: m.guard, exits }, condition))
}
