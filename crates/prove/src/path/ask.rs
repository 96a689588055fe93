//! Another way at one branch: the question to the solver, and the input that its answer is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bpf_platform::{Effects, ResultRange};
use rustc_hash::FxHashMap;

use super::fold::Folded;
use super::leaves::Leaves;
use super::observe::lookup_at;
use super::place::{CTX, LONGEST, OBJECT_BYTES, PACKET, Role, SHORTEST, offset_of};
use super::walk::Path;
use crate::solver::blast::{Answer, Blaster, Model};
use crate::symbolic::history::EventKind;
use crate::symbolic::variables::{MemoryRegion, VarKey, read_only};
use crate::term::{MemNode, Node, TermId};

/// SAT conflicts of a question about few parts of the input.
const FEW_CONFLICTS: u32 = 1000;
/// Conditions before a branch that are wished to hold as they did.
const MOST_WISHES: usize = 200;

/// What an input may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freedom {
    /// What a test run can set: packet, some fields of the context, maps.
    TestRun,
    /// Also results of helpers, other fields and constants that the loader sets, which only the interpreter can.
    Anything,
}

/// The answer.
#[derive(Debug)]
pub enum OtherWay {
    /// An input, as changes of the run's.
    Input(Box<Assignment>),
    /// No input goes with the run until there and then the other way; the branches before that have to do with it.
    Never(Vec<usize>),
    /// Not found out within the limits.
    Unknown,
}

/// Changes of a run's input.
#[derive(Clone, Default, Debug)]
pub struct Assignment {
    /// How long the packet is, and how much of it is linear.
    pub packet_len: Option<(usize, usize)>,
    /// Bytes of the packet.
    pub packet: BTreeMap<usize, u8>,
    /// Bytes of the context.
    pub context: BTreeMap<usize, u8>,
    /// Bytes of global data: section, offset.
    pub data: BTreeMap<(Arc<str>, u64), u8>,
    /// What the lookups on the way find, in their order.
    pub lookups: Vec<Looked>,
    /// What calls return, by their number.
    pub answers: BTreeMap<usize, Answered>,
}

/// What a call returns, against what it would.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Answered {
    /// This number.
    Number(u64),
    /// A pointer to an object of zeros.
    Object,
}

/// A lookup of an [`Assignment`].
#[derive(Clone, Debug)]
pub struct Looked {
    /// The map.
    pub map: Arc<str>,
    /// The key in the run.
    pub old_key: Vec<u8>,
    /// The key now.
    pub key: Vec<u8>,
    /// Whether it finds an element.
    pub found: bool,
    /// Whether that is for the input to say.
    pub settable: bool,
    /// Bytes of the value that must be so.
    pub value: BTreeMap<u64, u8>,
}

impl Path<'_> {
    /// An input that goes with the run up to condition `at`, and there the other way. First one that differs from the run's only
    /// in what that condition hangs on, then any.
    pub fn other_way(&mut self, at: usize, freedom: Freedom, conflicts: u32, deadline: Option<Instant>) -> OtherWay {
        let Some(condition) = self.conditions.get(at) else { return OtherWay::Unknown };
        let (term, own) = (condition.term, condition.leaves.clone());
        let turned = self.cx.terms.not(term);
        let before: Vec<usize> = (0..at).filter(|i| !self.conditions[*i].leaves.unknown).collect();
        let (near, mut far): (Vec<usize>, Vec<usize>) =
            before.into_iter().partition(|i| self.conditions[*i].leaves.meet(&own));
        let mut slice = own.clone();
        near.iter().for_each(|i| slice.add(&self.conditions[*i].leaves));
        let mut asserted = vec![turned];
        asserted.extend(near.iter().map(|i| self.conditions[*i].term));
        let all_own = slice.terms.iter().all(|t| own.terms.contains(t));
        if !all_own {
            let few = conflicts.min(FEW_CONFLICTS);
            if let Answer::Sat(model) = self.solve(&asserted, &[], &own, freedom, few, deadline) {
                return OtherWay::Input(Box::new(self.assignment(at, &own, &model)));
            }
        }
        // What has to do with it, directly or through others.
        let mut related: Vec<usize> = near.iter().copied().filter(|i| self.conditions[*i].branch.is_some()).collect();
        loop {
            let (near, rest): (Vec<usize>, Vec<usize>) =
                far.iter().partition(|i| self.conditions[**i].leaves.meet(&slice));
            if near.is_empty() {
                break;
            }
            for i in near {
                related.extend(self.conditions[i].branch.map(|_| i));
                asserted.push(self.conditions[i].term);
                slice.add(&self.conditions[i].leaves);
            }
            far = rest;
        }
        match self.solve(&asserted, &[], &slice, freedom, conflicts, deadline) {
            Answer::Unsat => OtherWay::Never(related),
            Answer::Unknown => OtherWay::Unknown,
            Answer::Sat(model) => OtherWay::Input(Box::new(self.assignment(at, &slice, &model))),
        }
    }

    /// An input by which condition `at` were turned, and of the conditions before it as many hold as do with those after them, the last
    /// ones first: where no input goes with the run until there. Where it leads only a run of it tells.
    pub fn bent(&mut self, at: usize, freedom: Freedom, deadline: Option<Instant>) -> Option<Box<Assignment>> {
        let condition = self.conditions.get(at)?;
        let (term, own) = (condition.term, condition.leaves.clone());
        let turned = self.cx.terms.not(term);
        // What has to do with it, directly or through others.
        let mut reach = own;
        let (mut related, mut open): (Vec<usize>, Vec<usize>) =
            (vec![], (0..at).filter(|i| !self.conditions[*i].leaves.unknown).collect());
        loop {
            let (near, rest): (Vec<usize>, Vec<usize>) =
                open.iter().partition(|i| self.conditions[**i].leaves.meet(&reach));
            if near.is_empty() {
                break;
            }
            near.iter().for_each(|i| reach.add(&self.conditions[*i].leaves));
            related.extend(near);
            open = rest;
        }
        related.sort_unstable_by_key(|i| std::cmp::Reverse(*i));
        let wishes: Vec<TermId> = related.iter().take(MOST_WISHES).map(|i| self.conditions[*i].term).collect();
        match self.solve(&[turned], &wishes, &reach, freedom, FEW_CONFLICTS, deadline) {
            Answer::Sat(model) => Some(Box::new(self.assignment(at, &reach, &model))),
            Answer::Unsat | Answer::Unknown => None,
        }
    }

    /// Whether all that is asserted can be, with as much of the wishes as can be, where only `free` parts of the input may be others
    /// than in the run.
    fn solve(
        &mut self,
        asserted: &[TermId],
        wishes: &[TermId],
        free: &Leaves,
        freedom: Freedom,
        conflicts: u32,
        deadline: Option<Instant>,
    ) -> Answer {
        let parts: Vec<TermId> = free.terms.iter().copied().collect();
        let wild = free.wild.clone();
        let free = parts.into_iter().filter(|t| self.may_change(*t, freedom)).collect();
        let mut folded = Folded::new(free, wild);
        let mut left: Vec<TermId> = Vec::with_capacity(asserted.len());
        for t in asserted {
            let t = self.fold(*t, &mut folded);
            match self.cx.terms.as_const(t) {
                Some(0) => return Answer::Unsat,
                Some(_) => {}
                None => left.push(t),
            }
        }
        let wishes: Vec<TermId> = wishes.iter().map(|t| self.fold(*t, &mut folded)).collect();
        let free: Vec<TermId> = folded.free.iter().copied().collect();
        for t in free {
            if let Node::Var(v) = *self.cx.terms.node(t) {
                let fits = match self.observed.role(v) {
                    Role::Environment(_) => self.possible(t),
                    _ => self.fitting(t),
                };
                left.push(fits);
            }
        }
        left.append(&mut folded.pinned);
        let mut blaster = Blaster::new(&mut self.cx.terms, deadline);
        left.iter().for_each(|t| blaster.assert(*t));
        blaster.solve_with(&wishes, conflicts)
    }

    /// Whether a part of the input may be another one than in the run.
    fn may_change(&mut self, t: TermId, freedom: Freedom) -> bool {
        if let Node::Var(v) = *self.cx.terms.node(t) {
            return match self.observed.role(v) {
                Role::Input => true,
                Role::Environment(_) => freedom == Freedom::Anything,
                _ => false,
            };
        }
        // At a place that hangs on the input it may be any byte.
        match self.place(t) {
            Some((MemoryRegion::CtxBytes, address)) => {
                freedom == Freedom::Anything || self.given.sets_context(address.wrapping_sub(CTX))
            }
            Some((MemoryRegion::Data(section), address)) => {
                !read_only(&section)
                    || freedom == Freedom::Anything && self.given.sets_constant(&section, offset_of(address))
            }
            Some((MemoryRegion::Stack | MemoryRegion::Fresh, _)) | None => false,
            Some(_) => true,
        }
    }

    /// Where a byte of memory is in the run.
    fn place(&mut self, t: TermId) -> Option<(MemoryRegion, u64)> {
        let Node::Select(m, address) = *self.cx.terms.node(t) else { return None };
        let MemNode::Base { region, .. } = *self.cx.terms.mem(m) else { return None };
        let address = self.observed.value(&self.cx, self.given, &self.lookups, address);
        Some((self.cx.region(region).clone(), address))
    }

    /// What a script may say that a helper returns.
    fn possible(&mut self, t: TermId) -> TermId {
        let Node::Var(v) = *self.cx.terms.node(t) else { return self.cx.terms.tru() };
        if self.tail == Some(t) {
            let most = self.cx.terms.constant(64, LONGEST);
            let above = self.cx.terms.ult(most, t);
            return self.cx.terms.not(above);
        }
        let Some(VarKey::Ret(event)) = self.cx.key_of(v).cloned() else { return self.cx.terms.tru() };
        let range = match self.cx.events.get((event as usize).wrapping_sub(1)).map(|e| &e.what) {
            Some(EventKind::Call(insn, link)) => Effects::of(insn, link.is_some()).result_range,
            _ => ResultRange::Any,
        };
        let low = self.cx.terms.extract(t, 0, 32);
        let number = match range {
            ResultRange::U32 => self.cx.terms.zext(low, 64),
            ResultRange::Int => self.cx.terms.sext(low, 64),
            ResultRange::Any => return self.cx.terms.tru(),
        };
        self.cx.terms.eq(t, number)
    }

    /// The packet is no shorter and no longer than test runs take.
    fn fitting(&mut self, t: TermId) -> TermId {
        match self.packet {
            Some([_, end, _]) if end == t => {
                let [least, most] = [PACKET + SHORTEST, PACKET + LONGEST].map(|k| self.cx.terms.constant(64, k));
                let (below, above) = (self.cx.terms.ult(t, least), self.cx.terms.ult(most, t));
                let (a, b) = (self.cx.terms.not(below), self.cx.terms.not(above));
                self.cx.terms.all(&[a, b])
            }
            _ => self.cx.terms.tru(),
        }
    }

    /// The run's input with what the model says of the slice.
    fn assignment(&mut self, at: usize, slice: &Leaves, model: &Model) -> Assignment {
        let mut out = Assignment::default();
        // The run's values, with the model's instead where it says something.
        let mut mixed = self.observed.model.clone();
        let mut memo = FxHashMap::default();
        for (v, value) in &model.vars {
            if !matches!(self.observed.role(*v), Role::Unknown) {
                mixed.vars.insert(*v, *value);
            }
        }
        mixed.bytes.extend(model.bytes.iter().map(|(k, v)| (*k, *v)));
        // What follows from others follows from the new ones.
        for (v, from) in self.observed.derived() {
            let value = mixed.eval(&self.cx.terms, from);
            mixed.vars.insert(v, value);
        }
        if let Some([_, end, _]) = self.packet
            && (slice.terms.contains(&end) || self.tail.is_some_and(|t| slice.terms.contains(&t)))
        {
            let end = mixed.eval_memo(&self.cx.terms, end, &mut memo);
            let tail = self.tail.map_or(0, |t| mixed.eval_memo(&self.cx.terms, t, &mut memo));
            let linear = end.saturating_sub(PACKET).min(LONGEST) as usize;
            out.packet_len = Some((linear + tail.min(LONGEST) as usize, linear));
        }
        let mut values: BTreeMap<usize, BTreeMap<u64, u8>> = BTreeMap::new();
        for ((m, address), byte) in &model.bytes {
            let MemNode::Base { region, .. } = self.cx.terms.mem(*m) else { continue };
            match self.cx.region(*region) {
                MemoryRegion::Packet => {
                    let place = address.checked_sub(PACKET).filter(|i| *i < 2 * LONGEST);
                    out.packet.extend(place.map(|i| (i as usize, *byte)));
                }
                MemoryRegion::CtxBytes => {
                    let place = address.checked_sub(CTX).filter(|i| *i < 4096);
                    out.context.extend(place.map(|i| (i as usize, *byte)));
                }
                MemoryRegion::Data(section) => {
                    let offset = offset_of(*address);
                    if !read_only(section) || self.given.sets_constant(section, offset) {
                        out.data.insert((section.clone(), offset), *byte);
                    }
                }
                MemoryRegion::MapValue(_) if lookup_at(&self.lookups, *address).is_some() => {
                    let offset = address - super::place::OBJECTS;
                    values.entry((offset / OBJECT_BYTES) as usize).or_default().insert(offset % OBJECT_BYTES, *byte);
                }
                _ => {}
            }
        }
        for t in &slice.terms {
            let Node::Var(v) = self.cx.terms.node(*t) else { continue };
            let value = mixed.vars.get(v).copied().unwrap_or(0);
            match self.cx.key_of(*v) {
                Some(VarKey::CtxField(offset, bytes, _)) => {
                    let n = (*bytes).min(8) as usize;
                    let bytes = self.cx.byte_order.bytes(value, n).into_iter().take(n);
                    let start = usize::try_from(*offset).unwrap_or(0);
                    out.context.extend(bytes.enumerate().map(|(i, b)| (start + i, b)));
                }
                Some(VarKey::Ret(_)) => {
                    let call = self.scripted.iter().find(|s| s.result == *t && s.before <= at);
                    if let (Some(call), Role::Environment(old)) = (call, self.observed.role(*v))
                        && value != old
                    {
                        out.answers.insert(call.number, Answered::Number(value));
                    }
                }
                Some(VarKey::EntryBase(_)) => {
                    let call = self.scripted.iter().find(|s| s.chosen == Some(*t) && s.before <= at);
                    if let Some(call) = call.filter(|_| value != 0) {
                        out.answers.insert(call.number, Answered::Object);
                    }
                }
                _ => {}
            }
        }
        for (i, lookup) in self.lookups.iter().enumerate().filter(|(_, l)| l.before <= at) {
            let mut memo = FxHashMap::default();
            let mut byte = |t: &TermId| mixed.eval_memo(&self.cx.terms, *t, &mut memo) as u8;
            let key: Vec<u8> = lookup.key.iter().map(&mut byte).collect();
            let old = |t: &TermId| self.observed.value(&self.cx, self.given, &[], *t) as u8;
            let result = match self.cx.terms.node(lookup.result) {
                Node::Var(v) => mixed.vars.get(v).copied(),
                _ => None,
            };
            out.lookups.push(Looked {
                map: lookup.map.clone(),
                old_key: lookup.key.iter().map(old).collect(),
                key,
                found: result.map_or(lookup.found, |r| r != 0),
                settable: lookup.settable,
                value: values.remove(&i).unwrap_or_default(),
            });
        }
        out
    }
}
