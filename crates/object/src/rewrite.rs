//! Writing an object whose functions have new bodies.
//!
//! The one idea: each code section gets one [`Moves`], the answer to "where is this old slot
//! now?"; everything that names an instruction is then encoded again through it. Records that
//! belong to one instruction (relocations, CO-RE) follow `refs_from`, source lines and labels
//! follow `origin`. Promise: with no new bodies the input comes back byte for byte, and what is
//! written reads back with the same functions.

use std::collections::{BTreeMap, HashMap};

use crate::btf_ext::{BtfExt, CORE_RELO, FUNC_INFO, LINE_INFO, Record};
use crate::byte_order::from_little;
use crate::elf::{Elf, Patch, SHT_GROUP, SHT_LLVM_ADDRSIG, SHT_SYMTAB, put, u32_at};
use crate::error::ObjectError;
use crate::functions::{CALL, CodeRef, Form, LD_IMM64};
use crate::object::{NewInsn, Object, WriteOptions, Written};
use crate::symbols::{Reloc, STT_SECTION, SYM_SIZE};

/// A function with a new body.
struct Edit<'a> {
    old_start: usize,
    old_slots: usize,
    new_start: usize,
    new_slots: usize,
    /// For each old slot, where the next surviving instruction is, within the new body.
    labels: Vec<usize>,
    /// The new instructions with their slots within the new body.
    body: Vec<(usize, &'a NewInsn)>,
}

/// Where the slots of one code section go.
struct Moves<'a> {
    edits: Vec<Edit<'a>>,
    /// For old slots in edited functions: the new slots that carry their records.
    carried: HashMap<usize, Vec<usize>>,
    old_slots: usize,
}

impl<'a> Moves<'a> {
    fn new(object: &'a Object, section: usize) -> Self {
        let old_slots = object.layout.code.get(&section).map_or(0, |c| c.starts.len());
        let mut this = Self { edits: Vec::new(), carried: HashMap::new(), old_slots };
        let (mut old_end, mut new_end) = (0, 0);
        for &id in object.layout.functions_of(section) {
            let (Some(f), Some(body)) = (object.layout.functions.get(id), object.bodies.get(&id)) else { continue };
            let new_start = new_end + f.start.saturating_sub(old_end);
            let mut first: Vec<Option<usize>> = vec![None; f.slots];
            let mut placed = Vec::with_capacity(body.len());
            let mut slot = 0;
            for insn in body {
                if let Some(place) = insn.origin.or(insn.refs_from).and_then(|o| first.get_mut(o)) {
                    place.get_or_insert(slot);
                }
                if let Some(from) = insn.refs_from {
                    this.carried.entry(f.start + from).or_default().push(new_start + slot);
                }
                placed.push((slot, insn));
                slot += insn.bytes.len() / 8;
            }
            let mut next = slot;
            let mut labels: Vec<usize> = first
                .into_iter()
                .rev()
                .map(|place| {
                    next = place.unwrap_or(next);
                    next
                })
                .collect();
            labels.reverse();
            this.edits.push(Edit {
                old_start: f.start,
                old_slots: f.slots,
                new_start,
                new_slots: slot,
                labels,
                body: placed,
            });
            old_end = f.start + f.slots;
            new_end = new_start + slot;
        }
        this
    }

    fn edit_at(&self, old: usize) -> Option<&Edit<'a>> {
        let before = self.edits.partition_point(|e| e.old_start <= old);
        self.edits.get(before.checked_sub(1)?)
    }

    /// Where the instruction at an old slot, or the next surviving one, is now. A function's first
    /// slot stays its first slot.
    fn to_new(&self, old: usize) -> usize {
        let Some(edit) = self.edit_at(old) else { return old };
        match old - edit.old_start {
            0 => edit.new_start,
            inside if inside < edit.old_slots => edit.new_start + edit.labels.get(inside).copied().unwrap_or(0),
            behind => edit.new_start + edit.new_slots + (behind - edit.old_slots),
        }
    }

    /// The new slots that carry the records of an old slot.
    fn carriers(&self, old: usize) -> Vec<usize> {
        match self.edit_at(old) {
            Some(e) if old - e.old_start < e.old_slots => self.carried.get(&old).cloned().unwrap_or_default(),
            _ => vec![self.to_new(old)],
        }
    }

    fn code(&self, old: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(old.len());
        let mut done = 0;
        for e in &self.edits {
            out.extend_from_slice(old.get(done * 8..e.old_start * 8).unwrap_or(&[]));
            for (_, insn) in &e.body {
                out.extend_from_slice(&insn.bytes);
            }
            done = e.old_start + e.old_slots;
        }
        out.extend_from_slice(old.get(done * 8..).unwrap_or(&[]));
        out
    }
}

impl Object {
    /// Writes the object with all new bodies in place; without any, the input byte for byte.
    ///
    /// # Errors
    /// If some number does not fit its field any more.
    pub fn write(&self, options: &WriteOptions) -> Result<Written, ObjectError> {
        if self.bodies.is_empty() {
            return Ok(Written { bytes: from_little(self.elf.bytes.clone(), self.byte_order), notes: Vec::new() });
        }
        let mut rewrite = Rewrite::new(self);
        rewrite.symbol_values();
        rewrite.code()?;
        rewrite.data_refs()?;
        rewrite.code_relocs()?;
        rewrite.records()?;
        rewrite.drop_debug(options.keep_debug);
        rewrite.symbols_and_relocs();
        let bytes = from_little(self.elf.layout(&rewrite.patches), self.byte_order);
        let written = Written { bytes, notes: rewrite.notes };
        self.check(&written.bytes)?;
        Ok(written)
    }

    /// Reads the result back: the functions must be there, as long as they should be.
    fn check(&self, bytes: &[u8]) -> Result<(), ObjectError> {
        let bad = |problem: String| Err(ObjectError::Internal { problem });
        let again = match Object::parse(bytes.to_vec()) {
            Ok(object) => object,
            Err(e) => return bad(e.to_string()),
        };
        if again.functions().len() != self.functions().len() {
            return bad(format!("{} functions instead of {}", again.functions().len(), self.functions().len()));
        }
        for (id, (old, new)) in self.functions().iter().zip(again.functions()).enumerate() {
            let slots = self.bodies.get(&id).map_or(old.slots, |b| b.iter().map(|i| i.bytes.len() / 8).sum());
            if old.name != new.name || new.slots != slots {
                return bad(format!("function `{}` has {} slots instead of {slots}", old.name, new.slots));
            }
        }
        Ok(())
    }
}

struct Rewrite<'a> {
    object: &'a Object,
    elf: &'a Elf,
    moves: BTreeMap<usize, Moves<'a>>,
    /// New (value, size) of every symbol.
    values: Vec<(u64, u64)>,
    /// New relocations of every list in `Symbols::relocs`.
    relocs: Vec<Vec<Reloc>>,
    patches: Vec<Patch>,
    notes: Vec<String>,
}

impl<'a> Rewrite<'a> {
    fn new(object: &'a Object) -> Self {
        Self {
            object,
            elf: &object.elf,
            moves: object
                .layout
                .code
                .keys()
                .map(|&s| (s, Moves::new(object, s)))
                .filter(|(_, m)| !m.edits.is_empty())
                .collect(),
            values: Vec::new(),
            relocs: object.symbols.relocs.iter().map(|r| r.relocs.clone()).collect(),
            patches: object.elf.sections.iter().map(|s| Patch { data: None, info: s.info, keep: true }).collect(),
            notes: Vec::new(),
        }
    }

    fn to_new(&self, section: usize, slot: usize) -> usize {
        self.moves.get(&section).map_or(slot, |m| m.to_new(slot))
    }

    fn carriers(&self, section: usize, slot: usize) -> Vec<usize> {
        self.moves.get(&section).map_or_else(|| vec![slot], |m| m.carriers(slot))
    }

    fn symbol_values(&mut self) {
        for s in &self.object.symbols.all {
            let mut place = (s.value, s.size);
            if let Some(moves) = s.section().and_then(|i| self.moves.get(&i))
                && s.kind != STT_SECTION
            {
                let old_bytes = moves.old_slots as u64 * 8;
                let moved = |at: u64| moves.to_new((at / 8) as usize) as u64 * 8 + at % 8;
                if s.value <= old_bytes {
                    place.0 = moved(s.value);
                    if let Some(end) = s.value.checked_add(s.size).filter(|&e| s.size > 0 && e <= old_bytes) {
                        place.1 = moved(end).saturating_sub(place.0);
                    }
                }
            }
            self.values.push(place);
        }
    }

    fn symbol_value(&self, symbol: u32) -> i64 {
        self.values.get(symbol as usize).map_or(0, |v| v.0 as i64)
    }

    fn set(&mut self, section: usize, at: usize, bytes: &[u8]) {
        if let Some(patch) = self.patches.get_mut(section) {
            let data = patch.data.get_or_insert_with(|| self.elf.data(section).to_vec());
            // Positions were checked against the section when it was read, or come from its new layout.
            let done = put(data, at, bytes);
            debug_assert!(done.is_some());
        }
    }

    /// New code, with all immediates that point to code.
    fn code(&mut self) -> Result<(), ObjectError> {
        for (&section, moves) in &self.moves {
            if let Some(patch) = self.patches.get_mut(section) {
                patch.data = Some(moves.code(self.elf.data(section)));
            }
        }
        let object = self.object;
        for (&section, code) in &object.layout.code {
            for r in code.refs.values() {
                if !self.moves.contains_key(&section) && !self.moves.contains_key(&r.target_section) {
                    continue;
                }
                let explicit = code.relocs.get(&r.slot).is_some_and(|l| l.iter().any(|(_, r)| r.addend.is_some()));
                if explicit {
                    continue;
                }
                for new in self.carriers(section, r.slot) {
                    let imm = self.immediate(r, new).ok_or_else(|| {
                        ObjectError::corrupt(
                            self.elf.name(section),
                            r.slot as u64 * 8,
                            "a reference to code is out of reach",
                        )
                    })?;
                    let data = self
                        .patches
                        .get(section)
                        .and_then(|p| p.data.as_deref())
                        .unwrap_or_else(|| self.elf.data(section));
                    let wanted = if matches!(r.form, Form::Call { .. } | Form::DirectCall) { CALL } else { LD_IMM64 };
                    if data.get(new * 8) == Some(&wanted) {
                        self.set(section, new * 8 + 4, &imm.to_le_bytes());
                    }
                }
            }
        }
        Ok(())
    }

    fn immediate(&self, r: &CodeRef, new: usize) -> Option<i32> {
        let target = self.to_new(r.target_section, r.target) as i64;
        let imm = match r.form {
            Form::Call { symbol } => target - self.symbol_value(symbol) / 8 - 1,
            Form::Addr { symbol } => target * 8 - self.symbol_value(symbol),
            Form::DirectCall | Form::DirectAddr => target - new as i64 - 1,
        };
        i32::try_from(imm).ok()
    }

    /// Pointers to code in data sections.
    fn data_refs(&mut self) -> Result<(), ObjectError> {
        let object = self.object;
        for r in &object.layout.data_refs {
            if !self.moves.contains_key(&r.target_section) {
                continue;
            }
            let target = self.to_new(r.target_section, r.target) as i64;
            let addend = target * 8 - self.symbol_value(r.symbol);
            if let Some((list, n)) = r.rela {
                if let Some(reloc) = self.relocs.get_mut(list).and_then(|l| l.get_mut(n)) {
                    reloc.addend = Some(addend);
                }
            } else if r.width == 8 {
                self.set(r.section, r.offset, &addend.to_le_bytes());
            } else {
                let addend = i32::try_from(addend).map_err(|_| {
                    ObjectError::corrupt(
                        self.elf.name(r.section),
                        r.offset as u64,
                        "a reference to code is out of reach",
                    )
                })?;
                self.set(r.section, r.offset, &addend.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The relocations on moved code.
    fn code_relocs(&mut self) -> Result<(), ObjectError> {
        let object = self.object;
        for (i, list) in object.symbols.relocs.iter().enumerate() {
            let Some(code) = object.layout.code.get(&list.target) else { continue };
            let mut moved = Vec::with_capacity(list.relocs.len());
            for r in &list.relocs {
                let slot = (r.offset / 8) as usize;
                let mut new = *r;
                if let (Some(CodeRef { form: Form::Addr { symbol }, target_section, target, .. }), Some(_)) =
                    (code.refs.get(&slot), r.addend)
                {
                    new.addend = Some(self.to_new(*target_section, *target) as i64 * 8 - self.symbol_value(*symbol));
                }
                for slot in self.carriers(list.target, slot) {
                    moved.push(Reloc { offset: slot as u64 * 8 + r.offset % 8, ..new });
                }
            }
            if self.moves.contains_key(&list.target) {
                moved.sort_by_key(|r| r.offset);
            }
            if let Some(place) = self.relocs.get_mut(i) {
                *place = moved;
            }
        }
        Ok(())
    }

    /// `.BTF.ext` and the relocations on it.
    fn records(&mut self) -> Result<(), ObjectError> {
        let (Some(ext), Some(section)) = (&self.object.ext, self.object.ext_section) else {
            return Ok(());
        };
        let overflow = || ObjectError::corrupt(".BTF.ext", 0, "an instruction offset does not fit 32 bits");
        let mut ext: BtfExt = ext.clone();
        for (&code, moves) in &self.moves {
            for (kind, table) in ext.tables.iter_mut().enumerate() {
                let mut old: Vec<Record> = Vec::new();
                let mut first = None;
                for (i, sub) in table.subs.iter_mut().enumerate() {
                    if sub.section == Some(code) {
                        first.get_or_insert(i);
                        old.append(&mut sub.records);
                    }
                }
                let new = match kind {
                    LINE_INFO => lines(&old, moves),
                    CORE_RELO => {
                        old.iter().flat_map(|r| moves.carriers(r.slot()).into_iter().map(|s| r.at_slot(s))).collect()
                    }
                    FUNC_INFO => old.iter().map(|r| r.at_slot(moves.to_new(r.slot()))).collect(),
                    _ => None,
                };
                let mut new = new.ok_or_else(overflow)?;
                new.sort_by_key(|r| r.insn_off);
                if kind == LINE_INFO {
                    // Of several records at one instruction the last counts.
                    new.reverse();
                    new.dedup_by_key(|r| r.insn_off);
                    new.reverse();
                }
                if let Some(sub) = first.and_then(|i| table.subs.get_mut(i)) {
                    sub.records = new;
                }
            }
        }
        let (bytes, relocs) = ext.encode().ok_or_else(overflow)?;
        if let Some(patch) = self.patches.get_mut(section) {
            patch.data = Some(bytes);
        }
        if let Some(list) = self.object.symbols.relocs.iter().position(|r| r.target == section)
            && let Some(place) = self.relocs.get_mut(list)
        {
            *place = relocs;
        }
        Ok(())
    }

    /// DWARF describes the old code: leave it out, unless something that stays needs its symbols.
    fn drop_debug(&mut self, keep: bool) {
        let sections = &self.elf.sections;
        let names = |which: &dyn Fn(usize) -> bool| {
            let names: Vec<&str> = sections
                .iter()
                .enumerate()
                .filter(|&(i, s)| which(i) && !s.is_reloc())
                .map(|(_, s)| s.name.as_str())
                .collect();
            names.join(", ")
        };
        let mut dropped: Vec<bool> = sections.iter().map(|s| s.is_debug() && !s.is_reloc()).collect();
        if !dropped.contains(&true) {
            return;
        }
        if keep {
            let names = names(&|i| dropped.get(i) == Some(&true));
            self.notes.push(format!("warning: kept as they were, though the code has changed: {names}"));
            return;
        }
        loop {
            let mut needed: Vec<usize> = Vec::new();
            for list in &self.object.symbols.relocs {
                if dropped.get(list.target) == Some(&true) {
                    continue;
                }
                let symbols = list.relocs.iter().filter_map(|r| self.object.symbols.get(r.symbol)?.section());
                needed.extend(symbols.filter(|&s| dropped.get(s) == Some(&true)));
            }
            if needed.is_empty() {
                break;
            }
            for s in needed {
                if let Some(flag) = dropped.get_mut(s) {
                    *flag = false;
                }
            }
        }
        let is_dropped = |i: usize| dropped.get(i) == Some(&true);
        let count = (0..sections.len()).filter(|&i| is_dropped(i) && !sections[i].is_call_frames()).count();
        let frames = names(&|i| is_dropped(i) && sections[i].is_call_frames());
        let dwarf = (count > 0).then(|| format!("{count} DWARF section(s)"));
        let what: Vec<String> = dwarf.into_iter().chain((!frames.is_empty()).then_some(frames)).collect();
        if !what.is_empty() {
            self.notes.push(format!("left out, because it describes the old code: {}", what.join(", ")));
        }
        for (s, patch) in sections.iter().zip(&mut self.patches) {
            let target = if s.is_reloc() { s.info as usize } else { continue };
            patch.keep = dropped.get(target) != Some(&true);
        }
        for (patch, dropped) in self.patches.iter_mut().zip(dropped) {
            patch.keep &= !dropped;
        }
    }

    /// The symbol table and everything that counts symbols or sections.
    fn symbols_and_relocs(&mut self) {
        let sections = Elf::renumbering(&self.patches);
        let new_section = |i: usize| sections.get(i).copied().flatten();
        let mut next = 0u32;
        let renumber: Vec<Option<u32>> = self
            .object
            .symbols
            .all
            .iter()
            .map(|s| {
                let keep = s.section().is_none_or(|i| new_section(i).is_some());
                keep.then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let new_symbol = |i: u32| renumber.get(i as usize).copied().flatten();
        for (i, s) in self.elf.sections.iter().enumerate() {
            let Some(patch) = self.patches.get_mut(i).filter(|p| p.keep) else { continue };
            let old = self.elf.data(i);
            match s.kind {
                SHT_SYMTAB => {
                    let mut data = Vec::with_capacity(old.len());
                    for (n, raw) in old.chunks_exact(SYM_SIZE).enumerate() {
                        let (Some(Some(_)), Some(&(value, size)), Some(symbol)) =
                            (renumber.get(n), self.values.get(n), self.object.symbols.all.get(n))
                        else {
                            continue;
                        };
                        let shndx = symbol.section().and_then(new_section).map_or(symbol.shndx, |s| s as u16);
                        data.extend_from_slice(raw.get(..6).unwrap_or(&[]));
                        data.extend_from_slice(&shndx.to_le_bytes());
                        data.extend_from_slice(&value.to_le_bytes());
                        data.extend_from_slice(&size.to_le_bytes());
                    }
                    patch.data = Some(data);
                    let locals = renumber.iter().take(s.info as usize).filter(|r| r.is_some()).count();
                    patch.info = locals as u32;
                }
                SHT_LLVM_ADDRSIG if renumber.contains(&None) => match addrsig(old, new_symbol) {
                    Some(data) => patch.data = Some(data),
                    None => {
                        patch.data = Some(Vec::new());
                        self.notes.push(format!("emptied, because it is not well formed: {}", s.name));
                    }
                },
                SHT_GROUP => {
                    let mut data = old.get(..4).unwrap_or(&[]).to_vec();
                    for at in (4..old.len()).step_by(4) {
                        if let Some(member) = u32_at(old, at).and_then(|m| new_section(m as usize)) {
                            data.extend_from_slice(&(member as u32).to_le_bytes());
                        }
                    }
                    patch.data = Some(data);
                    patch.info = new_symbol(s.info).unwrap_or(0);
                }
                _ => {}
            }
        }
        for (list, relocs) in self.object.symbols.relocs.iter().zip(&self.relocs) {
            let Some(patch) = self.patches.get_mut(list.index).filter(|p| p.keep) else { continue };
            let mut data = Vec::new();
            for r in relocs {
                Reloc { symbol: new_symbol(r.symbol).unwrap_or(0), ..*r }.encode(&mut data);
            }
            patch.data = Some(data);
        }
    }
}

/// The line records of a code section, moved. In an edited function a record goes to the first new
/// instruction of each run which the record governed in the old code; the first instruction always
/// has one.
fn lines(old: &[Record], moves: &Moves) -> Option<Vec<Record>> {
    let mut sorted: Vec<&Record> = old.iter().collect();
    sorted.sort_by_key(|r| r.insn_off);
    let mut out = Vec::with_capacity(old.len());
    for r in &sorted {
        let edited = moves.edit_at(r.slot()).is_some_and(|e| r.slot() - e.old_start < e.old_slots);
        if !edited {
            out.push(r.at_slot(moves.to_new(r.slot()))?);
        }
    }
    for e in &moves.edits {
        let from = sorted.partition_point(|r| r.slot() < e.old_start);
        let to = sorted.partition_point(|r| r.slot() < e.old_start + e.old_slots);
        let own = sorted.get(from..to)?;
        if own.is_empty() {
            continue;
        }
        let governing = |insn: &NewInsn| {
            let origin = e.old_start + insn.origin?;
            own.partition_point(|r| r.slot() <= origin).checked_sub(1)
        };
        let mut current = None;
        for &(slot, insn) in &e.body {
            let mut line = governing(insn);
            if slot == 0 && line.is_none() {
                line = e.body.iter().find_map(|(_, i)| governing(i)).or(Some(0));
            }
            if let Some(line) = line
                && current != Some(line)
            {
                out.push(own.get(line)?.at_slot(e.new_start + slot)?);
                current = Some(line);
            }
        }
    }
    Some(out)
}

/// Renumbers a list of ULEB128 symbol numbers.
pub(crate) fn addrsig(data: &[u8], new_symbol: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(data.len());
    let mut bytes = data.iter();
    while !bytes.as_slice().is_empty() {
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 35)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let Some(mut rest) = new_symbol(u32::try_from(value).ok()?) else { continue };
        while rest >= 0x80 {
            out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_lists_are_renumbered() {
        let less_one = |i: u32| i.checked_sub(1);
        assert_eq!(addrsig(&[3, 0, 0x81, 0x01, 0x80, 0x01], less_one), Some(vec![2, 0x80, 0x01, 0x7f]));
        // A number without an end, and one too large.
        assert_eq!(addrsig(&[0x80], less_one), None);
        assert_eq!(addrsig(&[0xff; 12], less_one), None);
    }
}
