//! What an object does with a map: where it looks keys up, whether it reads values, and whether anything in it could
//! change the map or hand its values to somebody who could.

use bpf_driver::Module;
use bpf_facts::{Facts, Kind, Region, State, Value};
use bpf_isa::{Insn, Reg};
use bpf_object::{FuncId, RefKind};
use bpf_platform::effects::Effects;
use bpf_program::{BlockId, Op, Symbol};

use crate::lookup::is_lookup;

/// Of a call whose map this does not see.
const UNKNOWN_MAP: &str = "calls a helper with a map that is not known here";

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
    /// Whether values are read, or may be.
    pub(crate) reads_values: bool,
}

impl Use {
    /// What the object does with the map of this number.
    ///
    /// # Errors
    /// Who could change it, in words.
    pub(crate) fn of(module: &Module, map: usize) -> Result<Use, String> {
        let mut found = Use::default();
        if module.object.fills_maps() {
            return Err("maps of this object are filled with maps or programs as it is loaded".into());
        }
        for (id, graph) in module.graphs.iter().enumerate() {
            let name = &module.object.functions()[id].name;
            let names_it = |r: &bpf_object::Ref| matches!(r.kind, RefKind::Map { map: m, .. } if m == map);
            let f = match graph {
                Ok(f) => f,
                Err(why) if module.object.refs(FuncId(id)).iter().any(names_it) => {
                    return Err(format!("`{name}` uses it and is not understood: {why}"));
                }
                // It has no name of the map, and no values of it: nobody hands them out.
                Err(_) => continue,
            };
            module.with_env(|env| {
                let facts = Facts::of(f, env);
                for &b in &f.layout {
                    let states = facts.states(f, b);
                    for (i, (op, state)) in f.block(b).ops.iter().zip(&states).enumerate() {
                        let at = (id, b, i);
                        found.operation(op, state, map, at).map_err(|what| format!("`{name}` {what}{}", place(op)))?;
                    }
                    if matches!(f.block(b).term, bpf_program::Terminator::Exit { .. })
                        && let Some(end) = end_of(&states, f.block(b).ops.last(), f.kind, b, env)
                        && is_or_may_be(end.reg(Reg::R0), map)
                    {
                        return Err(format!("`{name}` returns an address in a value"));
                    }
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn operation(&mut self, op: &Op, state: &State, map: usize, at: (usize, BlockId, usize)) -> Result<(), String> {
        if let Some(m) = op.insn.memory_operand() {
            let base = state.reg(m.base);
            if m.writes && may_be_value(base, map) {
                return Err("may write a value of it".into());
            }
            self.reads_values |= m.reads && may_be_value(base, map);
            // A pointer that is kept in memory of others is lost from sight.
            let stored = match op.insn {
                Insn::Store { src, .. } => src.reg(),
                Insn::StoreRelease { src, .. } | Insn::Atomic { src, .. } => Some(src),
                _ => None,
            };
            let is_lost = |r: Reg| is_value(state.reg(r), map) || is_map(state.reg(r), map);
            if stored.is_some_and(is_lost) && !base.is_stack() {
                return Err("stores its address, or that of a value".into());
            }
            return Ok(());
        }
        if !matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) {
            return Ok(());
        }
        let arguments = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];
        if is_lookup(op) {
            return match state.reg(Reg::R1).region() {
                Some(Region::MapPtr { map: m }) if *m == map => {
                    let key = state.reg(Reg::R2);
                    if is_value(key, map) {
                        self.reads_values = true;
                    }
                    match alignment(key) {
                        Some(key_alignment) => {
                            let (function, block, index) = at;
                            self.lookups.push(Lookup { function, block, index, key_alignment });
                        }
                        None => self.left += 1,
                    }
                    Ok(())
                }
                Some(Region::MapPtr { .. }) => {
                    self.reads_values |= may_be_value(state.reg(Reg::R2), map);
                    Ok(())
                }
                None => Err(UNKNOWN_MAP.into()),
                _ => Ok(()),
            };
        }
        let row = Effects::of(&op.insn, op.link.is_some());
        for r in arguments {
            let v = state.reg(r);
            if is_map(v, map) || is_value(v, map) {
                return Err("hands it, or a value of it, to a call other than bpf_map_lookup_elem".into());
            }
        }
        if row.map_register().is_some_and(|r| state.reg(r).region().is_none()) {
            return Err(UNKNOWN_MAP.into());
        }
        let is_local = matches!(op.link.as_ref().map(|l| &l.symbol), Some(Symbol::Func { .. }));
        let writes =
            |a: &bpf_platform::effects::Argument| a.access.writes() && may_be_value(state.reg(a.register), map);
        // Of a function of this object it is seen there.
        let unknown = row.touches_everything && !is_local;
        if row.arguments.iter().any(writes) || unknown && arguments.iter().any(|r| may_be_value(state.reg(*r), map)) {
            return Err("hands memory that is not known here to a call that may write it".into());
        }
        Ok(())
    }
}

/// Where an operation is, for messages.
fn place(op: &Op) -> String {
    op.origin.map_or_else(String::new, |slot| format!(" (instruction {slot})"))
}

fn is_map(v: &Value, map: usize) -> bool {
    matches!(v.region(), Some(Region::MapPtr { map: m }) if *m == map)
}

fn is_value(v: &Value, map: usize) -> bool {
    match v.region() {
        Some(Region::MapValue { map: m }) => *m == map,
        Some(Region::AnyMapValue) => true,
        _ => false,
    }
}

fn may_be_value(v: &Value, map: usize) -> bool {
    is_value(v, map) || v.kind == Kind::Unknown
}

fn is_or_may_be(v: &Value, map: usize) -> bool {
    is_value(v, map) || is_map(v, map)
}

/// The state behind a block's operations.
fn end_of(
    states: &[State],
    last: Option<&Op>,
    kind: bpf_program::ProgKind,
    block: BlockId,
    env: &bpf_facts::Env,
) -> Option<State> {
    let mut state = states.last()?.clone();
    if let Some(op) = last {
        state.step(op, (block, states.len().saturating_sub(1)), kind, env);
    }
    Some(state)
}

/// What the address of a key is a multiple of; `None` if the key is where others may write it, or nobody knows where.
fn alignment(key: &Value) -> Option<u32> {
    match key.pointer_at()? {
        (Region::Stack, _, at) => Some(1 << at.trailing_zeros().min(3)),
        (Region::Packet, ..) => Some(1),
        _ => None,
    }
}
