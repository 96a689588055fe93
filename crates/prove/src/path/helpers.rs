//! What calls make of an input: results and written bytes as terms, as far as it pays to know them.

use bpf_facts::MapInfo;
use bpf_isa::{Call, Insn, Size};
use bpf_platform::effects::Effects;
use bpf_platform::helpers::Ret;
use bpf_platform::maps;
use bpf_program::{FieldKind, Op, packet_pointer_offset};
use bpf_semantics::interp::Step;
use bpf_semantics::{Machine, exec};

use super::place::{Lookup, OBJECT_BYTES, OBJECTS, Role, Scripted};
use super::walk::{End, Walk};
use crate::symbolic::state::{SymbolicState, dead_value};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::{Node, TermId};

/// Bytes that are followed one by one.
const LONGEST: u64 = 256;
/// Lookups of one map that are compared with each other.
const COMPARED: usize = 6;
/// Made-up variables have numbers from here on.
const MADE_UP: u32 = 1 << 20;
/// Those of calls behind those of lookups.
const LOOKUPS: u32 = 1 << 20;
/// The address of an object that only a script hands out.
const SOME_OBJECT: u64 = 0x7000_0000_0000;

const EFAULT: i64 = -14;
const ENOMEM: i64 = -12;
const EINVAL: i64 = -22;

/// Helpers whose result follows from their arguments and the maps, so that no script may say another, but an error.
fn follows(name: &str) -> bool {
    matches!(name, "csum_diff" | "strncmp" | "tail_call" | "csum_update" | "get_hash_recalc" | "skb_under_cgroup")
}

impl Walk<'_, '_, '_> {
    /// A legacy packet load.
    pub(super) fn packet_load(&mut self, op: &Op) -> Result<(), End> {
        let (size, index, imm) = match op.insn {
            Insn::LdAbs { size, imm } => (size.bytes(), None, imm),
            Insn::LdInd { size, src, imm } => (size.bytes(), Some(self.sym.state.regs[src.index()]), imm),
            _ => return Err(End::Trail),
        };
        let offset = self.sym.load_offset(index, imm);
        let offset = self.sym.cx.terms.extract(offset, 0, 32);
        let Some(Step::Packet(found)) = self.next() else { return Err(End::Trail) };
        let dead = dead_value(self.sym.cx);
        self.sym.state.regs[..6].fill(dead);
        let known = Some(offset).filter(|o| self.observe(*o) as i32 >= 0);
        if let Some(offset) = known {
            let zero = self.sym.cx.terms.constant(32, 0);
            let negative = self.sym.cx.terms.slt(offset, zero);
            let positive = self.sym.cx.terms.not(negative);
            self.holds(positive, None);
            let size = self.sym.cx.terms.constant(64, size.into());
            let there = self.in_packet(offset, size);
            if let Some(there) = there {
                let there = if found.is_some() { there } else { self.sym.cx.terms.not(there) };
                self.holds(there, None);
            }
        }
        let Some(found) = found else { return Err(End::Exit) };
        let bytes = known.and_then(|offset| self.packet_bytes(offset, u64::from(size)));
        self.sym.state.regs[0] = match bytes {
            Some(mut bytes) => {
                bytes.reverse();
                let value = self.sym.cx.terms.concat(&bytes);
                let value = self.sym.cx.terms.zext(value, 64);
                if self.observe(value) == found { value } else { self.sym.cx.terms.constant(64, found) }
            }
            None => self.sym.cx.terms.constant(64, found),
        };
        Ok(())
    }

    /// A call of something outside of the program.
    pub(super) fn outside(&mut self, op: &Op) -> Result<(), End> {
        let number = self.calls;
        self.calls += 1;
        let effects = Effects::of(&op.insn, op.link.is_some());
        let name = if matches!(op.insn, Insn::Call(Call::Helper(_))) { effects.name } else { "" };
        let before = self.sym.state.clone();
        let map = effects.map_register().and_then(|r| self.map_in(before.regs[r.index()]));
        let key = map.filter(|_| effects.is_lookup_by_key()).and_then(|map| self.key(map, before.regs[2]));
        self.sym.state.lookups.clear();
        let known = exec(&mut self.sym, op).is_ok();
        let event = self.event();
        self.restore(&before, known && !effects.touches_everything);
        if !known {
            let dead = dead_value(self.sym.cx);
            self.sym.state.regs[..6].fill(dead);
        }
        while let Some(Step::Enter(Some(function))) = self.peek() {
            self.next();
            self.call_back(name, &before, function)?;
        }
        let Some(Step::Call(result)) = self.next() else { return Err(End::Trail) };
        let called_back = matches!(name, "loop" | "for_each_map_elem");
        let (Some(result), true, false) = (result, known, called_back) else {
            self.sym.state.regs[0] = match result {
                Some(result) => self.sym.cx.terms.constant(64, result),
                None => dead_value(self.sym.cx),
            };
            return Ok(());
        };
        if let (Some(map), Some(key)) = (map, key)
            && self.can_be_filled(map)
        {
            self.lookup(map, key, result);
            return Ok(());
        }
        if effects.changes_maps
            && let Some(map) = map
        {
            let name = self.map(map).name.as_str().into();
            self.changed.push(name);
        }
        self.result(name, effects, event, &before, number, result);
        Ok(())
    }

    /// The number of the latest event.
    fn event(&self) -> u32 {
        self.sym.cx.terms.as_const(self.sym.state.world).unwrap_or(0) as u32
    }

    fn call_back(&mut self, name: &str, before: &SymbolicState, function: usize) -> Result<(), End> {
        let dead = dead_value(self.sym.cx);
        let context = match name {
            "loop" => before.regs[3],
            "for_each_map_elem" => before.regs[3],
            _ => dead,
        };
        self.sym.state.regs = before.regs;
        self.sym.state.regs[..6].fill(dead);
        match name {
            "loop" => self.sym.state.regs[2] = context,
            _ => self.sym.state.regs[4] = context,
        }
        self.enter(function)
    }

    /// The map that a value is, by its place in the table.
    fn map_in(&mut self, value: TermId) -> Option<usize> {
        match self.sym.cx.region_of(value) {
            Some(MemoryRegion::Map(name)) => self.env.maps.iter().position(|m| *m.name == *name),
            _ => None,
        }
    }

    fn map(&self, map: usize) -> &MapInfo {
        &self.env.maps[map]
    }

    /// Bytes in memory, as far as they can be followed.
    fn bytes(&mut self, address: TermId, count: u64) -> Option<Vec<TermId>> {
        if count > LONGEST || self.sym.cx.region_of(address).is_none() {
            return None;
        }
        (0..count).map(|i| self.sym.load(&address, i as i16, Size::B).ok()).collect()
    }

    /// The bytes of a key.
    fn key(&mut self, map: usize, address: TermId) -> Option<Vec<TermId>> {
        let size = self.map(map).key_size?;
        self.map(map).map_type.filter(|kind| maps::element(*kind) == maps::Element::Value)?;
        let key = self.bytes(address, size.into())?;
        // What is not known counts as what it was; that is not known either, where nobody told.
        let known = |walk: &mut Self, t: TermId| {
            let found = walk.observe(t);
            match super::leaves::Leaves::of(walk.sym.cx, &walk.observed, t).unknown {
                true => walk.sym.cx.terms.constant(8, found),
                false => t,
            }
        };
        Some(key.into_iter().map(|t| known(self, t)).collect())
    }

    /// Whether what a lookup in a map finds is for the input to say.
    fn can_be_filled(&self, map: usize) -> bool {
        let kind = self.map(map).map_type.unwrap_or(0);
        maps::is_array(kind) || maps::holds_bytes(kind) && !self.changed.iter().any(|c| **c == *self.map(map).name)
    }

    /// A lookup by key: the element that the input has, or has not, put there.
    fn lookup(&mut self, map: usize, key: Vec<TermId>, result: u64) {
        let info = self.map(map).clone();
        let name: std::sync::Arc<str> = info.name.as_str().into();
        let number = self.lookups.len();
        let home = OBJECTS + number as u64 * OBJECT_BYTES;
        let kind = info.map_type.unwrap_or(0);
        let found = self.sym.state.regs[0];
        let settable = maps::holds_bytes(kind) && !self.changed.contains(&name);
        let cx = &mut *self.sym.cx;
        let (zero, here) = (cx.terms.constant(64, 0), cx.terms.constant(64, home));
        let base = if maps::is_array(kind) {
            let index = cx.value_of(&key);
            let limit = cx.terms.constant(32, info.max_entries.unwrap_or(0).into());
            let inside = if cx.terms.width(index) == 32 { cx.terms.ult(index, limit) } else { cx.terms.fls() };
            cx.terms.ite(inside, here, zero)
        } else {
            let chosen = cx.var(VarKey::EntryBase(MADE_UP + number as u32), 1, Meaning::Scalar);
            self.observed.set_role(cx, chosen, Role::Input);
            self.observed.set_value(cx, chosen, u64::from(result != 0));
            cx.terms.ite(chosen, here, zero)
        };
        let mut from = base;
        {
            let earlier: Vec<(Vec<TermId>, TermId)> = self
                .lookups
                .iter()
                .rev()
                .filter(|l| l.map == name && l.settable)
                .take(COMPARED)
                .map(|l| (l.key.clone(), l.result))
                .collect();
            for (other, its) in earlier.into_iter().rev() {
                let cx = &mut *self.sym.cx;
                let pairs: Vec<TermId> = key.iter().zip(&other).map(|(a, b)| cx.terms.eq(*a, *b)).collect();
                let same = cx.terms.all(&pairs);
                from = cx.terms.ite(same, its, from);
            }
        }
        self.observed.set_role(self.sym.cx, found, Role::Derived(from));
        self.observed.set_element(found);
        let before = self.conditions.len();
        self.lookups.push(Lookup { map: name, before, key, result: found, found: result != 0, settable });
        // The run knows better.
        if (self.observe(found) != 0) != (result != 0) {
            self.sym.state.regs[0] = self.sym.cx.terms.constant(64, result);
        }
    }

    /// The start of the packet as it is now.
    fn data(&mut self) -> Option<TermId> {
        let offset = packet_pointer_offset(self.sym.kind, FieldKind::PacketData)?;
        let version = self.sym.state.packet_version;
        Some(self.sym.cx.var(VarKey::PacketPointer(offset.into(), version), 64, Meaning::Pointer(MemoryRegion::Packet)))
    }

    /// The end of the packet as it is now.
    fn end(&mut self) -> Option<TermId> {
        let offset = packet_pointer_offset(self.sym.kind, FieldKind::PacketEnd)?;
        let version = self.sym.state.packet_version;
        let to = Meaning::Pointer(MemoryRegion::PacketEnd);
        Some(self.sym.cx.var(VarKey::PacketPointer(offset.into(), version), 64, to))
    }

    /// How long the packet is now.
    fn length(&mut self) -> Option<TermId> {
        let (data, end) = (self.data()?, self.end()?);
        Some(self.sym.cx.terms.sub(end, data))
    }

    /// How long the packet is, with what is not linear.
    fn whole_length(&mut self) -> Option<TermId> {
        match (self.packet, self.tail) {
            (Some([_, _, length]), Some(tail)) => Some(self.sym.cx.terms.add(length, tail)),
            _ => self.length(),
        }
    }

    /// Whether `size` bytes of the packet are there, from an offset of 32 bits.
    fn in_packet(&mut self, offset: TermId, size: TermId) -> Option<TermId> {
        let length = self.whole_length()?;
        let terms = &mut self.sym.cx.terms;
        let offset = terms.zext(offset, 64);
        let end = terms.add(offset, size);
        let beyond = terms.ult(length, end);
        Some(terms.not(beyond))
    }

    /// Bytes of the packet from an offset of 32 bits on.
    fn packet_bytes(&mut self, offset: TermId, count: u64) -> Option<Vec<TermId>> {
        let data = self.data()?;
        let offset = self.sym.cx.terms.zext(offset, 64);
        let from = self.sym.cx.terms.add(data, offset);
        let (base, k) = self.sym.cx.terms.split_address(from);
        if count > LONGEST {
            return None;
        }
        let (_, memory) = self.sym.memory(&MemoryRegion::Packet);
        Some((0..count as i64).map(|i| self.sym.cx.terms.select(memory, base, k + i)).collect())
    }

    /// A helper's result as a term, and what it has done to the packet and written.
    fn result(
        &mut self,
        name: &str,
        effects: &'static Effects,
        event: u32,
        before: &SymbolicState,
        number: usize,
        result: u64,
    ) {
        let found = self.sym.state.regs[0];
        let low = |walk: &mut Self, r: usize| walk.sym.cx.terms.extract(before.regs[r], 0, 32);
        let derived = match name {
            "skb_load_bytes" | "xdp_load_bytes" => {
                let (offset, size) = (low(self, 2), low(self, 4));
                let size = self.sym.cx.terms.zext(size, 64);
                let error = if name == "xdp_load_bytes" { EINVAL } else { EFAULT };
                self.in_packet(offset, size).map(|there| {
                    if let Some(count) = self.sym.cx.terms.as_const(size)
                        && let Some(bytes) = self.packet_bytes(offset, count)
                    {
                        let zero = self.sym.cx.terms.constant(8, 0);
                        for (i, byte) in bytes.into_iter().enumerate() {
                            if let Some(written) = self.sym.cx.lookup(&VarKey::Written(event, 3, i as u32)) {
                                let byte = self.sym.cx.terms.ite(there, byte, zero);
                                self.observed.set_role(self.sym.cx, written, Role::Derived(byte));
                            }
                        }
                    }
                    self.choose(there, error)
                })
            }
            "skb_store_bytes" | "xdp_store_bytes" => {
                let (offset, size) = (low(self, 2), low(self, 4));
                let size = self.sym.cx.terms.zext(size, 64);
                let error = if name == "xdp_store_bytes" { EINVAL } else { EFAULT };
                self.in_packet(offset, size).map(|there| {
                    if let (0, Some(count)) = (result, self.sym.cx.terms.as_const(size))
                        && let Some(bytes) = self.bytes(before.regs[3], count)
                        && let Some(data) = self.data()
                    {
                        let offset = self.sym.cx.terms.zext(offset, 64);
                        let to = self.sym.cx.terms.add(data, offset);
                        for (i, byte) in bytes.into_iter().enumerate() {
                            let _ = self.sym.store(&to, i as i16, Size::B, &byte, false);
                        }
                    }
                    self.choose(there, error)
                })
            }
            "skb_pull_data" => {
                let (zero, size) = (self.sym.cx.terms.constant(32, 0), low(self, 2));
                let size = self.sym.cx.terms.zext(size, 64);
                let there = self.in_packet(zero, size);
                if result == 0 {
                    self.pulled(size, event);
                }
                there.map(|there| self.choose(there, ENOMEM))
            }
            "xdp_get_buff_len" => self.length(),
            "xdp_adjust_head" | "xdp_adjust_tail" => self.adjust(name, before, event, result),
            _ => None,
        };
        if let Some(derived) = derived {
            self.observed.set_role(self.sym.cx, found, Role::Derived(derived));
            let fits = self.observe(found) == result;
            self.sym.state.regs[0] = if fits { derived } else { self.sym.cx.terms.constant(64, result) };
            return;
        }
        let scalar = matches!(effects.result, Ret::Scalar);
        let or_null = matches!(effects.result, Ret::MemOrNull | Ret::MapValueOrNull | Ret::SockOrNull);
        let Node::Var(_) = self.sym.cx.terms.node(found) else { return };
        if scalar && !follows(name) || or_null && result != 0 {
            self.observed.set_role(self.sym.cx, found, Role::Environment(result));
            let before = self.conditions.len();
            self.scripted.push(Scripted { number, before, result: found, chosen: None });
            return;
        }
        if or_null {
            // There might be one.
            let made_up = VarKey::EntryBase(MADE_UP + LOOKUPS + number as u32);
            let chosen = self.sym.cx.var(made_up, 1, Meaning::Scalar);
            self.observed.set_role(self.sym.cx, chosen, Role::Environment(0));
            let (zero, some) = (self.sym.cx.terms.constant(64, 0), self.sym.cx.terms.constant(64, SOME_OBJECT));
            let either = self.sym.cx.terms.ite(chosen, some, zero);
            self.observed.set_role(self.sym.cx, found, Role::Derived(either));
            let before = self.conditions.len();
            self.scripted.push(Scripted { number, before, result: found, chosen: Some(chosen) });
            return;
        }
        self.observed.set_role(self.sym.cx, found, Role::Fixed(result));
    }

    /// 0 or an error.
    fn choose(&mut self, fine: TermId, error: i64) -> TermId {
        let terms = &mut self.sym.cx.terms;
        let (zero, error) = (terms.constant(64, 0), terms.constant(64, error as u64));
        terms.ite(fine, zero, error)
    }

    /// So many bytes are linear from now on.
    fn pulled(&mut self, size: TermId, event: u32) -> Option<()> {
        let (data, end) = (self.data()?, self.end()?);
        let wanted = self.sym.cx.terms.add(data, size);
        let more = self.sym.cx.terms.ult(end, wanted);
        let new = self.sym.cx.terms.ite(more, wanted, end);
        self.sym.state.packet_version = self.sym.cx.world(event);
        let (new_data, new_end) = (self.data()?, self.end()?);
        self.observed.set_role(self.sym.cx, new_data, Role::Derived(data));
        self.observed.set_role(self.sym.cx, new_end, Role::Derived(new));
        Some(())
    }

    /// The packet gets another start or end. Gives the result.
    fn adjust(&mut self, name: &str, before: &SymbolicState, event: u32, result: u64) -> Option<TermId> {
        const SHORTEST: u64 = 14;
        let (data, end) = (self.data()?, self.end()?);
        let by = self.sym.cx.terms.extract(before.regs[2], 0, 32);
        let by = self.sym.cx.terms.sext(by, 64);
        let (mut start, mut stop) = (data, end);
        match name {
            "xdp_adjust_head" => start = self.sym.cx.terms.add(data, by),
            _ => stop = self.sym.cx.terms.add(end, by),
        }
        let least = self.sym.cx.terms.add_const(start, SHORTEST as i64);
        let short = self.sym.cx.terms.ult(stop, least);
        let fine = self.sym.cx.terms.not(short);
        if result == 0 {
            self.sym.state.packet_version = self.sym.cx.world(event);
            let (new_data, new_end) = (self.data()?, self.end()?);
            self.observed.set_role(self.sym.cx, new_data, Role::Derived(start));
            self.observed.set_role(self.sym.cx, new_end, Role::Derived(stop));
        }
        Some(self.choose(fine, EINVAL))
    }
}
