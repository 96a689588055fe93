//! What an object does with a map: where it looks keys up, whether values are read, and whether anything in it could change
//! the map, lose an address of a value from sight, or tell an address in a table from one in the map.
//!
//! The one idea: an address of a value may be in registers and, whole, in the frame of its own function, where the facts follow
//! it; it may be read from, compared, and be the key of another lookup. All else is refused: a call that is given it, or could
//! read the bytes of the frame in which it is spilled; a store anywhere else; numbers computed of it; joins behind which it is
//! not known any more. So nobody else has one, and what is done with one is seen here.
//!
//! The kernel hands out addresses of values without a lookup to iterators alone. A program that may be one writes only where it
//! is known what is there.

use bpf_driver::Module;
use bpf_facts::{BaseId, Env, FRAME, Facts, Kind, Live, Liveness, Region, StackSet, State, Value};
use bpf_isa::{Cond, Insn, MemoryOperand, Reg, Src, Width};
use bpf_object::{FuncId, FuncKind, MapDef, RefKind};
use bpf_platform::effects::{Argument, Effects, Extent};
use bpf_platform::{maps, may_be_given_values};
use bpf_program::{BlockId, Function, Op, Symbol, Terminator};

use crate::lookup::is_lookup;

/// Of a call whose map this does not see.
const UNKNOWN_MAP: &str = "calls a helper with a map that is not known here";
/// Of an address that others may have.
const HANDED: &str = "hands it, or an address in a value of it, to somebody else";
/// Of an address that is not followed.
const LOST: &str = "computes with an address in a value of it, or mixes it with something else";

const ARGUMENTS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// What a conditional jump asks.
type Question = (Cond, Width, Reg, Src);

/// A lookup that can be put into a table's terms.
pub(crate) struct Lookup {
    pub(crate) function: usize,
    pub(crate) block: BlockId,
    pub(crate) index: usize,
    /// The address of the key is a multiple of this.
    pub(crate) key_alignment: u32,
}

/// What an object does with a map.
#[derive(Default)]
pub(crate) struct Use {
    pub(crate) lookups: Vec<Lookup>,
    /// Lookups whose key is not in a place that can be read otherwise.
    pub(crate) left: usize,
    /// Whether more is done with the address of a value than asking whether there is one.
    pub(crate) uses_values: bool,
    /// Whether the address of a value is compared with another one.
    pub(crate) compares: bool,
}

impl Use {
    /// What the object does with the map of this number.
    ///
    /// # Errors
    /// Who could change it, or why that is not known, in words.
    pub(crate) fn of(module: &Module, map: usize) -> Result<Use, String> {
        let mut found = Use::default();
        let object = &module.object;
        if object.fills_maps() {
            return Err("maps of this object are filled with maps or programs as it is loaded".into());
        }
        if let Some(outer) = object.maps().get(map).and_then(|m| object.maps().iter().find(|outer| may_hold(outer, m)))
        {
            return Err(format!("user space may put it into the map `{}`", outer.name));
        }
        for (id, graph) in module.graphs.iter().enumerate() {
            let name = &object.functions()[id].name;
            match graph {
                Ok(f) => {
                    module.with_env(|env| found.function(f, id, map, env)).map_err(|what| format!("`{name}` {what}"))?
                }
                Err(why) => {
                    // Without a name of it nobody can do anything with it.
                    let may_name = |r: &bpf_object::Ref| match r.kind {
                        RefKind::Map { map: m, .. } => m == map,
                        RefKind::Other { .. } => true,
                        _ => false,
                    };
                    if object.refs(FuncId(id)).iter().any(may_name) {
                        return Err(format!("`{name}` is not understood: {why}"));
                    }
                }
            }
        }
        given_values(module)?;
        Ok(found)
    }

    fn function(&mut self, f: &Function, id: usize, map: usize, env: &Env) -> Result<(), String> {
        let facts = Facts::of(f, env);
        let live = Liveness::of(f, env, &facts);
        for &b in &f.layout {
            let mut state = match facts.entry(b) {
                Some(entry) => entry.clone(),
                // No execution goes there.
                None => continue,
            };
            for (i, op) in f.block(b).ops.iter().enumerate() {
                let before = state.clone();
                state.step(op, (b, i), f.kind, env);
                let said = self
                    .operation(op, (&before, &state), map, (id, b, i), env)
                    .and_then(|()| written_over(op, (&before, &state), live.after(b, i), map));
                said.map_err(|what| format!("{what}{}", place(op)))?;
            }
            match f.block(b).term {
                Terminator::Exit { .. } if is_ours(state.reg(Reg::R0), map) => return Err(HANDED.into()),
                Terminator::Branch { cond, width, dst, src, .. } => {
                    self.branch((cond, width, dst, src), &state, map, env)?
                }
                _ => {}
            }
            let edges = match f.block(b).term {
                Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
                    vec![(true, taken), (false, fall)]
                }
                Terminator::Goto(to) => vec![(true, to)],
                Terminator::Exit { .. } => Vec::new(),
            };
            for (taken, to) in edges {
                if let (Some(from), Some(entry)) = (facts.edge(f, b, taken), facts.entry(to)) {
                    let needed = live.entry(to);
                    let lost = |r: Reg| is_ours(from.reg(r), map) && !is_ours(entry.reg(r), map);
                    let bytes = from.stack_values().any(|(off, v)| {
                        let is_needed = (off..off + 8).any(|at| needed.stack.contains(at));
                        is_ours(v, map) && is_needed && !is_ours(&entry.stack_bytes(off, 8), map)
                    });
                    if bytes || needed.regs.iter().any(lost) {
                        return Err(LOST.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// A value's address may be compared with null and with another one, each where its value begins or inside it: all else tells
    /// where values are.
    fn branch(
        &mut self,
        (cond, width, dst, src): Question,
        state: &State,
        map: usize,
        env: &Env,
    ) -> Result<(), String> {
        let (left, right) = (state.reg(dst), src.reg().map(|r| state.reg(r)));
        if !is_ours(left, map) && !right.is_some_and(|v| is_ours(v, map)) {
            return Ok(());
        }
        if width != Width::W64 || !matches!(cond, Cond::Eq | Cond::Ne) {
            return Err(LOST.into());
        }
        if src == Src::Imm(0) || right.is_some_and(|v| v.as_const() == Some(0)) || left.as_const() == Some(0) {
            return Ok(());
        }
        let size = i64::from(env.map(map).and_then(|m| m.value_size).unwrap_or_default());
        let inside = |v: &Value| is_value(v, map) && v.num.as_signed_const().is_some_and(|at| (0..size).contains(&at));
        if !inside(left) || !right.is_some_and(inside) {
            return Err(LOST.into());
        }
        self.uses_values = true;
        self.compares = true;
        Ok(())
    }

    fn operation(
        &mut self,
        op: &Op,
        (before, after): (&State, &State),
        map: usize,
        at: (usize, BlockId, usize),
        env: &Env,
    ) -> Result<(), String> {
        let ours = |r: Reg| is_ours(before.reg(r), map);
        if let Some(m) = op.insn.memory_operand() {
            let base = before.reg(m.base);
            if is_value(base, map) {
                if m.writes {
                    return Err("may write a value of it".into());
                }
                self.uses_values = true;
            }
            let stored = match op.insn {
                Insn::Store { src, .. } => src.reg(),
                Insn::StoreRelease { src, .. } | Insn::Atomic { src, .. } => Some(src),
                _ => None,
            };
            if stored.is_some_and(ours) {
                // Whole, in the own frame, it is followed.
                let kept = matches!(op.insn, Insn::Store { .. })
                    && match base.pointer_at() {
                        Some((Region::Stack, _, off)) => is_ours(&after.stack_bytes(off + i64::from(m.off), 8), map),
                        _ => false,
                    };
                if !kept {
                    return Err("stores its address, or one in a value of it, where it is not followed".into());
                }
                self.uses_values |= stored.is_some_and(|r| is_value(before.reg(r), map));
            }
            // Whoever reads bytes of one has to read it whole.
            let touched = accessed(op, m, before);
            if m.reads && before.stack_values().any(|(off, v)| is_ours(v, map) && overlap(&touched, off)) {
                let whole =
                    matches!(op.insn, Insn::Load { .. }) && op.insn.defs().iter().all(|r| is_ours(after.reg(r), map));
                if !whole {
                    return Err(LOST.into());
                }
            }
            return Ok(());
        }
        if matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) {
            return self.call(op, before, map, at, env);
        }
        // What it is computed to is followed, too, or nothing is.
        if op.insn.uses().iter().any(ours) {
            let is_copy = matches!(op.insn, Insn::Mov { width: Width::W64, .. });
            self.uses_values |= !is_copy;
            if !op.insn.defs().iter().all(|r| is_ours(after.reg(r), map)) {
                return Err(LOST.into());
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        op: &Op,
        state: &State,
        map: usize,
        at: (usize, BlockId, usize),
        env: &Env,
    ) -> Result<(), String> {
        let row = Effects::of(&op.insn, op.link.is_some());
        // What the frame holds of it must not be read by others.
        let spilled: Vec<i64> = state.stack_values().filter(|(_, v)| is_ours(v, map)).map(|(off, _)| off).collect();
        if !spilled.is_empty() {
            let reaches = |r: Reg| {
                let argument = row.arguments.iter().find(|a| a.register == r);
                let v = state.reg(r);
                let len = argument.and_then(|a| match a.extent {
                    Extent::Nothing => Some(0),
                    Extent::Key => map_of(state, row, env)?.key_size,
                    Extent::Value => map_of(state, row, env)?.value_bytes_read(),
                    Extent::Bytes(n) => Some(n),
                    Extent::Register(n) => u32::try_from(state.reg(n).num.umax).ok(),
                    Extent::Unknown => None,
                });
                let is_passed = argument.is_some() || row.touches_everything;
                match len.filter(|_| !row.touches_everything && !row.calls_back) {
                    Some(0) => false,
                    Some(len) => is_passed && spilled.iter().any(|off| overlap(&state.probed(v, len), *off)),
                    None => is_passed && (v.is_stack() || state.frame_leaked()),
                }
            };
            let everywhere = row.indirect || state.frame_leaked() && (row.touches_everything || row.is_tail_call());
            if everywhere || ARGUMENTS.into_iter().any(reaches) {
                return Err(HANDED.into());
            }
        }
        if is_lookup(op) {
            let key = state.reg(Reg::R2);
            self.uses_values |= is_value(key, map);
            return match state.reg(Reg::R1).region() {
                Some(Region::MapPtr { map: m }) if *m == map => {
                    let (function, block, index) = at;
                    match alignment(key) {
                        Some(key_alignment) => self.lookups.push(Lookup { function, block, index, key_alignment }),
                        None => self.left += 1,
                    }
                    Ok(())
                }
                None => Err(UNKNOWN_MAP.into()),
                _ => Ok(()),
            };
        }
        if ARGUMENTS.into_iter().any(|r| is_ours(state.reg(r), map)) {
            return Err(HANDED.into());
        }
        if row.map_register().is_some_and(|r| state.reg(r).region().is_none()) || row.name == "sys_bpf" {
            return Err(UNKNOWN_MAP.into());
        }
        Ok(())
    }
}

/// Says so where a program that may be given values of any map may write them: through each address that it did not look up
/// or make itself.
fn given_values(module: &Module) -> Result<(), String> {
    let object = &module.object;
    for (id, entry) in object.functions().iter().enumerate() {
        if entry.kind != FuncKind::Program || !may_be_given_values(&entry.section) {
            continue;
        }
        let section = entry.section.trim_start_matches('?');
        let is = match section.split('/').next() {
            Some("iter" | "iter.s") => "is an iterator".to_owned(),
            Some("freplace") => "may be part of an iterator".to_owned(),
            _ => format!("may be an iterator, as no type goes with its section `{section}`"),
        };
        for f in object.loaded_with([FuncId(id)]) {
            let name = if f.0 == id { String::new() } else { format!(" in `{}`", object.functions()[f.0].name) };
            let what = match &module.graphs[f.0] {
                Err(why) => format!("is not understood{name}: {why}"),
                Ok(f) => match module.with_env(|env| writes_what_it_was_given(f, env)) {
                    Some(op) => format!("writes where nobody knows what is there{name}{}", place(&op)),
                    None => continue,
                },
            };
            return Err(format!("`{}`, which may be given values of it because it {is}, {what}", entry.name));
        }
    }
    Ok(())
}

/// The first operation of a function that may write through an address which it was given, or has found there.
fn writes_what_it_was_given(f: &Function, env: &Env) -> Option<Op> {
    let facts = Facts::of(f, env);
    let writes = |op: &Op, state: &State| written_through(op, env).into_iter().any(|r| !is_own(state.reg(r)));
    f.layout.iter().find_map(|b| {
        let mut ops = f.block(*b).ops.iter().zip(facts.states(f, *b));
        ops.find(|(op, state)| writes(op, state)).map(|(op, _)| op.clone())
    })
}

/// The registers with addresses through which an operation may write by itself, not by functions of the program.
fn written_through(op: &Op, env: &Env) -> Vec<Reg> {
    if let Some(m) = op.insn.memory_operand() {
        return if m.writes { vec![m.base] } else { Vec::new() };
    }
    let is_of_program = matches!(&op.link, Some(link) if matches!(link.symbol, Symbol::Func { .. }));
    if !matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) || is_of_program {
        return Vec::new();
    }
    let row = Effects::of(&op.insn, op.link.is_some());
    if row.touches_everything && row.arguments.is_empty() {
        let count = op.link.as_ref().and_then(|link| env.arguments_of(&link.symbol)).unwrap_or(ARGUMENTS.len());
        return ARGUMENTS.into_iter().take(count).collect();
    }
    let may_write = |a: &Argument| a.access.writes() || row.touches_everything && a.access.is_memory();
    row.arguments.iter().filter(|a| may_write(a) && !a.access.kernel_object).map(|a| a.register).collect()
}

/// Whether an address is one that a program has made or looked up, or belongs to what every program has, or is no address at
/// all.
fn is_own(v: &Value) -> bool {
    match &v.kind {
        // None has so few bits.
        Kind::Scalar => v.num.umax <= u64::from(u32::MAX),
        Kind::Unknown => false,
        // What a call gives was looked up or made; all else of the kernel was found somewhere.
        Kind::Pointer { region: Region::Kernel, base, .. } => matches!(base, BaseId::Site(..)) && !base.is_argument(),
        Kind::Pointer { .. } => true,
    }
}

/// The bytes of the frame that an access may touch. Where the loader decides the offset, these are all.
fn accessed(op: &Op, m: MemoryOperand, state: &State) -> StackSet {
    let base = state.reg(m.base);
    if op.is_core() && (base.is_stack() || state.may_be_frame_address(base)) {
        return StackSet::range(-FRAME, FRAME as u32);
    }
    state.touched(base, m.off, m.size.bytes())
}

/// Says so where a store leaves bytes of a spilled address behind, which the facts forget and the program may read.
fn written_over(op: &Op, (before, after): (&State, &State), live: &Live, map: usize) -> Result<(), String> {
    let Some(m) = op.insn.memory_operand().filter(|m| m.writes) else { return Ok(()) };
    let touched = accessed(op, m, before);
    let place = match before.reg(m.base).pointer_at() {
        Some((Region::Stack, _, at)) if !op.is_core() => Some(at + i64::from(m.off)),
        _ => None,
    };
    let is_sure = |at: i64| place.is_some_and(|from| (from..from + i64::from(m.size.bytes())).contains(&at));
    for (off, v) in before.stack_values() {
        let is_left = |at: i64| live.stack.contains(at) && !is_sure(at);
        let is_there = || is_ours(&after.stack_bytes(off, 8), map);
        if is_ours(v, map) && overlap(&touched, off) && !is_there() && (off..off + 8).any(is_left) {
            return Err(LOST.into());
        }
    }
    Ok(())
}

/// The map that a call is given.
fn map_of<'e>(state: &State, row: &Effects, env: &'e Env) -> Option<&'e bpf_facts::MapInfo> {
    match state.reg(row.map_register()?).region()? {
        Region::MapPtr { map } => env.map(*map),
        _ => None,
    }
}

/// Whether some of the eight bytes from an offset on are in a set.
fn overlap(bytes: &StackSet, off: i64) -> bool {
    (off..off + 8).any(|at| bytes.contains(at))
}

/// Whether the inner maps of a map may be such a one.
fn may_hold(outer: &MapDef, m: &MapDef) -> bool {
    let holds_maps = outer.map_type.is_none_or(|kind| maps::element(kind) == maps::Element::Map);
    // What a definition does not say its loader may say.
    let agree = |a: Option<u32>, b: Option<u32>| a.is_none() || b.is_none() || a == b;
    let same = |inner: &MapDef| {
        agree(inner.map_type, m.map_type) && agree(inner.key_size, m.key_size) && agree(inner.value_size, m.value_size)
    };
    holds_maps && outer.inner.as_deref().is_none_or(same)
}

/// Where an operation is, for messages.
fn place(op: &Op) -> String {
    op.origin.map_or_else(String::new, |slot| format!(" (instruction {slot})"))
}

/// Whether it is an address in a value of the map, or may be: one of a value of some map.
fn is_value(v: &Value, map: usize) -> bool {
    match v.region() {
        Some(Region::MapValue { map: m }) => *m == map,
        Some(Region::AnyMapValue) => true,
        _ => false,
    }
}

/// Whether it is the address of the map, or in a value of it.
fn is_ours(v: &Value, map: usize) -> bool {
    is_value(v, map) || matches!(v.region(), Some(Region::MapPtr { map: m }) if *m == map)
}

/// What the address of a key is a multiple of; `None` if the key is where others may write it, or nobody knows where.
fn alignment(key: &Value) -> Option<u32> {
    match key.pointer_at()? {
        (Region::Stack, _, at) => Some(1 << at.trailing_zeros().min(3)),
        (Region::Packet, ..) => Some(1),
        _ => None,
    }
}
