//! What is known of addresses: their regions, their alignment, and which terms may hold one.

use std::sync::Arc;

use bpf_program::Symbol;
use rustc_hash::FxHashSet;

use super::Context;
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{Node, TermId};

impl Context {
    /// The values of this map begin at a multiple of 2 to this power.
    pub fn aligns_values(&mut self, map: Arc<str>, zero_bits: u32) {
        self.aligned_maps.insert(map, zero_bits);
    }

    /// A section of data begins at a multiple of 2 to this power.
    pub fn aligns_section(&mut self, name: &str, zero_bits: u32) {
        self.sections.insert(name.to_owned(), zero_bits);
    }

    /// A pointer is a multiple of 2 to this power.
    pub fn is_multiple(&mut self, pointer: TermId, zero_bits: u32) {
        self.aligned.insert(pointer, zero_bits);
    }

    /// A pointer leads so far into a map's value or a section of data.
    pub fn is_inside(&mut self, pointer: TermId, offset: i64) {
        self.places.insert(pointer, offset);
    }

    /// How far into a map's value or a section of data a pointer leads, if that is known.
    pub fn place_inside(&self, pointer: TermId) -> Option<i64> {
        let Node::Var(v) = self.terms.node(pointer) else { return None };
        let in_value = matches!(self.meanings.get(v), Some(Meaning::Pointer(MemoryRegion::MapValue(_))));
        match self.key_of(*v) {
            Some(VarKey::Symbol(Symbol::Data { offset, .. })) => Some(*offset),
            // Helpers give the start of a value.
            Some(VarKey::Ret(_)) if in_value => Some(0),
            _ => self.places.get(&pointer).copied(),
        }
    }

    /// To what power of two an address of an object is a multiple, as far as that is known.
    pub fn zero_bits(&self, pointer: TermId) -> u32 {
        if let Some(known) = self.aligned.get(&pointer) {
            return *known;
        }
        let Node::Var(v) = self.terms.node(pointer) else { return 0 };
        match (self.key_of(*v), self.meanings.get(v)) {
            (Some(VarKey::Symbol(Symbol::Data { section, .. })), _) => {
                self.sections.get(&**section).copied().unwrap_or(0)
            }
            (Some(VarKey::Ret(_)), Some(Meaning::Pointer(MemoryRegion::MapValue(name)))) => {
                self.aligned_maps.get(name).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// From here on the values of all maps are one region: some pointer leads to one of several.
    pub fn confuse_maps(&mut self) {
        self.one_map = true;
        self.region_id(&MemoryRegion::AnyMapValue);
    }

    /// Number of a region. With one memory, all regions but the context's fields share a number.
    pub fn region_id(&mut self, r: &MemoryRegion) -> u32 {
        let r = self.effective(r);
        if let Some(&i) = self.region_ids.get(r) {
            return i;
        }
        let i = self.regions.len() as u32;
        self.regions.push(r.clone());
        self.region_ids.insert(r.clone(), i);
        i
    }

    /// The region with this number.
    pub fn region(&self, i: u32) -> &MemoryRegion {
        &self.regions[i as usize]
    }

    /// Whether others may access a region at the same time.
    pub fn is_shared(&self, r: u32) -> bool {
        match &self.regions[r as usize] {
            MemoryRegion::Anything => !self.concurrent,
            r => r.shared(),
        }
    }

    /// Whether a region has a number.
    pub fn is_registered(&self, r: &MemoryRegion) -> bool {
        self.region_ids.contains_key(self.effective(r)) || *r == MemoryRegion::Ctx
    }

    /// The region that stands for `r`: with one memory, most are the same.
    fn effective<'r>(&self, r: &'r MemoryRegion) -> &'r MemoryRegion {
        let apart = *r == MemoryRegion::Ctx || (self.frame_apart && *r == MemoryRegion::Stack);
        match r {
            _ if self.one_memory && !apart && !(self.concurrent && r.shared()) => &MemoryRegion::Anything,
            MemoryRegion::MapValue(_) if self.one_map => &MemoryRegion::AnyMapValue,
            r => r,
        }
    }

    /// Whether the frame's address occurs in a term.
    pub fn holds_frame(&mut self, t: TermId) -> bool {
        let mut seen = FxHashSet::default();
        let mut todo = vec![t];
        while let Some(t) = todo.pop() {
            // The frame pointer itself, one plus an offset that the loader decides, one that may be null.
            if let Node::Var(v) = self.terms.node(t)
                && self.meanings.get(v) == Some(&Meaning::Pointer(MemoryRegion::Stack))
            {
                return true;
            }
            if !seen.insert(t) {
                continue;
            }
            // Bytes of the stack as they were at entry may be a spilled frame address. Those that the facts know
            // are terms of the frame pointer; where they know that there is none, the rest is none either.
            if let Node::Select(m, _) = self.terms.node(t) {
                if self.frame_spilled
                    && let crate::term::MemNode::Base { region, .. } = self.terms.mem(*m)
                    && self.regions[*region as usize] == MemoryRegion::Stack
                {
                    return true;
                }
                // What is read at an address does not hold the address.
                continue;
            }
            crate::solver::blast::children(&self.terms.node(t).clone(), &mut |c| todo.push(c));
        }
        false
    }

    /// Regions numbered so far.
    pub fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    /// The region an address points into, where its shape tells: one pointer plus numbers.
    pub fn region_of(&mut self, t: TermId) -> Option<MemoryRegion> {
        if let Some(r) = self.region_memo.get(&t) {
            return r.clone();
        }
        let r = match self.terms.node(t).clone() {
            Node::Var(v) => match self.meanings.get(&v) {
                Some(Meaning::Pointer(r)) => Some(r.clone()),
                _ => None,
            },
            Node::Sum(ts, _) => {
                let mut found = None;
                let mut clean = true;
                for (x, c) in ts.iter() {
                    if let Some(r) = self.region_of(*x) {
                        clean &= found.is_none() && *c == 1;
                        found = Some(r);
                    }
                }
                found.filter(|_| clean)
            }
            Node::Ite(_, a, b) => {
                let (x, y) = (self.region_of(a), self.region_of(b));
                // A null on one side is never dereferenced in a program that was accepted.
                match (x, y) {
                    (Some(x), Some(y)) if x == y => Some(x),
                    (Some(x), None) if self.terms.as_const(b) == Some(0) => Some(x),
                    (None, Some(y)) if self.terms.as_const(a) == Some(0) => Some(y),
                    _ => None,
                }
            }
            _ => None,
        };
        self.region_memo.insert(t, r.clone());
        r
    }

    /// Whether an if-then-else term chooses between pointers (as opposed to offsets).
    pub fn holds_pointer(&mut self, t: TermId) -> bool {
        if let Some(&r) = self.pointer_memo.get(&t) {
            return r;
        }
        let r = match self.terms.node(t).clone() {
            Node::Var(v) => matches!(self.meanings.get(&v), Some(Meaning::Pointer(_))),
            Node::Sum(ts, _) => ts.iter().any(|(x, _)| self.holds_pointer(*x)),
            Node::Ite(_, a, b) => self.holds_pointer(a) || self.holds_pointer(b),
            _ => false,
        };
        self.pointer_memo.insert(t, r);
        r
    }

    /// Says of a variable for a pointer that the offset in it may be any: as a mere number it may be any address.
    pub fn leads_anywhere(&mut self, t: TermId) {
        self.moved.insert(t);
    }

    /// Whether a value may lead to this function's frame. Once the frame's address has leaked, any
    /// number may be it, for a helper that probes memory.
    pub fn may_reach_stack(&mut self, t: TermId) -> bool {
        if self.frame_not_escaped {
            return self.holds_frame(t);
        }
        if let Some(&r) = self.stack_memo.get(&t) {
            return r;
        }
        let r = match self.terms.node(t).clone() {
            Node::Const(_) => false,
            Node::Var(_) if self.moved.contains(&t) => true,
            Node::Var(v) => match self.meanings.get(&v) {
                Some(Meaning::Pointer(r)) => *r == MemoryRegion::Stack,
                Some(Meaning::Foreign) => false,
                _ => true,
            },
            Node::Select(..) => true,
            n => {
                let mut kids = Vec::new();
                crate::solver::blast::children(&n, &mut |c| kids.push(c));
                kids.into_iter().any(|c| self.may_reach_stack(c))
            }
        };
        self.stack_memo.insert(t, r);
        r
    }
}
