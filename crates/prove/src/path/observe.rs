//! Terms as the run had them: each variable and byte of memory is what it was given.

use std::cell::RefCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::given::Given;
use super::place::{CTX, FRAME, Lookup, OBJECT_BYTES, OBJECTS, PACKET, Role, SYMBOLS, offset_of};
use crate::solver::blast::Model;
use crate::symbolic::context::Context;
use crate::symbolic::variables::{MemoryRegion, VarKey};
use crate::term::{MemId, MemNode, Node, TermId, VarId};

/// The values of a run.
pub(super) struct Observed {
    /// What variables are.
    roles: FxHashMap<VarId, Role>,
    /// Elements of maps that lookups have found.
    elements: FxHashSet<TermId>,
    /// Values of variables and bytes so far.
    pub model: Model,
    memo: FxHashMap<TermId, u64>,
    /// The first term for the byte at a place: others may find it by other ways.
    bytes: RefCell<FxHashMap<(MemId, u64), TermId>>,
}

impl Observed {
    pub fn new() -> Observed {
        Observed {
            roles: FxHashMap::default(),
            elements: FxHashSet::default(),
            model: Model::default(),
            memo: FxHashMap::default(),
            bytes: RefCell::default(),
        }
    }

    /// What a variable is, of which the value has been asked.
    pub fn role(&self, v: VarId) -> Role {
        self.roles.get(&v).copied().unwrap_or(Role::Unknown)
    }

    /// What a variable is.
    fn find_role(&mut self, cx: &Context, given: &dyn Given, v: VarId) -> Role {
        if let Some(role) = self.roles.get(&v) {
            return *role;
        }
        let role = match cx.key_of(v) {
            Some(VarKey::Frame) => Role::Fixed(FRAME),
            Some(VarKey::CtxPointer) => Role::Fixed(CTX),
            Some(VarKey::Symbol(_)) => Role::Fixed(SYMBOLS + v.index() as u64 * OBJECT_BYTES),
            Some(VarKey::CtxField(offset, bytes, version)) if cx.terms.as_const(*version) == Some(0) => {
                let value = field(cx, given, v);
                let all = (0..i64::from(*bytes)).all(|i| given.sets_context((offset + i) as u64));
                if all { Role::Input } else { Role::Environment(value) }
            }
            _ => Role::Unknown,
        };
        self.roles.insert(v, role);
        role
    }

    /// The term that stands for a byte of memory, whatever way its address was found; the value of the address must have been
    /// asked.
    pub fn byte_at(&self, m: MemId, address: TermId, t: TermId) -> TermId {
        match self.memo.get(&address) {
            Some(address) => *self.bytes.borrow_mut().entry((m, *address)).or_insert(t),
            None => t,
        }
    }

    /// Says what a variable is, if that is not known yet.
    pub fn set_role(&mut self, cx: &Context, t: TermId, role: Role) {
        if let Node::Var(v) = cx.terms.node(t) {
            self.roles.entry(*v).or_insert(role);
        }
    }

    /// Variables that follow from others, each after those that it follows from.
    pub fn derived(&self) -> Vec<(VarId, TermId)> {
        let derived = self.roles.iter().filter_map(|(v, role)| match role {
            Role::Derived(from) => Some((*v, *from)),
            _ => None,
        });
        let mut derived: Vec<(VarId, TermId)> = derived.collect();
        derived.sort_unstable_by_key(|(v, _)| v.index());
        derived
    }

    /// Says what an input of the run was.
    pub fn set_value(&mut self, cx: &Context, t: TermId, value: u64) {
        if let Node::Var(v) = cx.terms.node(t) {
            self.model.vars.insert(*v, value);
        }
    }

    /// Says that a variable is an element that a lookup found.
    pub fn set_element(&mut self, t: TermId) {
        self.elements.insert(t);
    }

    /// Whether it is one.
    pub fn is_element(&self, t: TermId) -> bool {
        self.elements.contains(&t)
    }

    /// Whether bytes of a region are part of what a run is given.
    pub fn knows(&self, region: &MemoryRegion) -> bool {
        matches!(
            region,
            MemoryRegion::Packet
                | MemoryRegion::CtxBytes
                | MemoryRegion::MapValue(_)
                | MemoryRegion::Data(_)
                | MemoryRegion::Stack
                | MemoryRegion::Fresh
        )
    }

    /// The value of a term in the run.
    pub fn value(&mut self, cx: &Context, given: &dyn Given, lookups: &[Lookup], t: TermId) -> u64 {
        let mut todo = vec![t];
        while let Some(&t) = todo.last() {
            if self.memo.contains_key(&t) {
                todo.pop();
                continue;
            }
            let before = todo.len();
            let mut need = |c: TermId, memo: &FxHashMap<TermId, u64>| {
                if !memo.contains_key(&c) {
                    todo.push(c);
                }
            };
            let node = cx.terms.node(t);
            crate::solver::blast::children(node, &mut |c| need(c, &self.memo));
            if let Node::Var(v) = node
                && let Role::Derived(from) = self.find_role(cx, given, *v)
            {
                need(from, &self.memo);
            }
            if let Node::Select(_, a) = node
                && let Some(address) = self.memo.get(a)
                && let Some(lookup) = lookup_at(lookups, *address)
            {
                lookup.key.iter().for_each(|k| need(*k, &self.memo));
            }
            if todo.len() > before {
                continue;
            }
            match *node {
                Node::Var(v) => {
                    let value = match self.role(v) {
                        Role::Fixed(k) | Role::Environment(k) => k,
                        Role::Derived(from) => self.memo[&from],
                        Role::Input => self.model.vars.get(&v).copied().unwrap_or_else(|| field(cx, given, v)),
                        Role::Unknown => 0,
                    };
                    self.model.vars.insert(v, value);
                }
                Node::Select(m, a) => {
                    let address = self.memo[&a];
                    if let MemNode::Base { region, .. } = cx.terms.mem(m) {
                        let byte = self.byte(cx.region(*region), given, lookups, address);
                        self.model.bytes.insert((m, address), byte);
                    }
                }
                _ => {}
            }
            self.model.eval_memo(&cx.terms, t, &mut self.memo);
            todo.pop();
        }
        self.memo[&t]
    }

    fn byte(&self, region: &MemoryRegion, given: &dyn Given, lookups: &[Lookup], address: u64) -> u8 {
        let at = |bytes: &[u8], start: u64| {
            let i = address.checked_sub(start).and_then(|i| usize::try_from(i).ok());
            i.and_then(|i| bytes.get(i)).copied().unwrap_or(0)
        };
        match region {
            MemoryRegion::Packet => at(given.packet(), PACKET),
            MemoryRegion::CtxBytes => at(given.context(), CTX),
            MemoryRegion::Data(section) => given.data(section, offset_of(address)),
            MemoryRegion::MapValue(map) => match lookup_at(lookups, address) {
                Some(lookup) => {
                    let key: Vec<u8> =
                        lookup.key.iter().map(|k| self.memo.get(k).copied().unwrap_or(0) as u8).collect();
                    given.value(map, &key, (address - OBJECTS) % OBJECT_BYTES)
                }
                None => 0,
            },
            _ => 0,
        }
    }
}

/// The lookup whose element is at an address.
pub(super) fn lookup_at(lookups: &[Lookup], address: u64) -> Option<&Lookup> {
    let offset = address.checked_sub(OBJECTS).filter(|_| address < SYMBOLS)?;
    lookups.get(usize::try_from(offset / OBJECT_BYTES).ok()?)
}

/// The value of a context field at entry.
fn field(cx: &Context, given: &dyn Given, v: VarId) -> u64 {
    match cx.key_of(v) {
        Some(VarKey::CtxField(offset, bytes, _)) => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let field = given.context().get(start..).unwrap_or_default();
            cx.byte_order.number(&field[..field.len().min(*bytes as usize)])
        }
        _ => 0,
    }
}
