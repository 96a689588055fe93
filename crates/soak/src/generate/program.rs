//! A generated program: parts with labels, which become instructions, bytes and graphs.
//!
//! One idea: jumps, calls and maps stay names until the program is used, so statements can be left out of it.

use std::collections::HashMap;
use std::sync::Arc;

use bpf_facts::MapInfo;
use bpf_isa::{Call, Imm64Kind, Insn, Reg};
use bpf_platform::maps;
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns};

/// The maps: name, `enum bpf_map_type`, bytes of key and value, room.
pub const MAPS: [(&str, u32, u32, u32, u32); 2] = [("array", maps::ARRAY, 4, 64, 4), ("hash", maps::HASH, 4, 32, 6)];

/// [`MAPS`] as the facts engine wants them.
pub fn map_infos() -> Vec<MapInfo> {
    MAPS.iter()
        .map(|(name, map_type, key, value, max)| MapInfo {
            name: (*name).into(),
            map_type: Some(*map_type),
            key_size: Some(*key),
            value_size: Some(*value),
            max_entries: Some(*max),
            ..MapInfo::default()
        })
        .collect()
}

/// A label within a function.
pub(super) type Label = usize;

/// A part of a function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Item {
    Insn(Insn),
    /// A jump whose offset is still open.
    Jump(Insn, Label),
    Label(Label),
    /// A call of the function with this number.
    Call(usize),
    /// The address of the map with this number.
    Map(Reg, usize),
    /// What was left out.
    Nothing,
}

/// A function's parts, and which of them make a statement; statements nest.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Body {
    pub(super) items: Vec<Item>,
    pub(super) statements: Vec<(usize, usize)>,
}

/// A program with its subprograms.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// XDP or classifier.
    pub kind: ProgKind,
    pub(super) functions: Vec<Body>,
}

impl Program {
    /// Instructions with their slots in the program; `fds` stand for the maps. The slot of each function comes second.
    fn resolve(&self, fds: [u64; 2]) -> (Vec<(usize, Insn)>, Vec<usize>) {
        let slots = |item: &Item| match item {
            Item::Insn(i) | Item::Jump(i, _) => i.slots(),
            Item::Label(_) | Item::Nothing => 0,
            Item::Call(_) => 1,
            Item::Map(..) => 2,
        };
        let mut starts = vec![];
        let mut at = 0;
        for f in &self.functions {
            starts.push(at);
            at += f.items.iter().map(slots).sum::<usize>();
        }
        let mut code = vec![];
        for (f, start) in self.functions.iter().zip(&starts) {
            let mut labels = HashMap::new();
            let mut at = *start;
            for item in &f.items {
                if let Item::Label(l) = item {
                    labels.insert(*l, at);
                }
                at += slots(item);
            }
            at = *start;
            for item in &f.items {
                let next = at + slots(item);
                let to = |slot: usize| slot as i32 - next as i32;
                match *item {
                    Item::Insn(i) => code.push((at, i)),
                    // Every label is placed; a program far too long keeps the offset it had, and is refused.
                    Item::Jump(i, l) => {
                        let off = labels.get(&l).map_or(0, |slot| to(*slot));
                        code.push((at, i.with_jump_offset(off).unwrap_or(i)));
                    }
                    Item::Call(f) => code.push((at, Insn::Call(Call::Local(to(starts[f]))))),
                    Item::Map(dst, m) => {
                        code.push((at, Insn::LoadImm64 { dst, kind: Imm64Kind::MapFd, imm: fds[m] }));
                    }
                    Item::Label(_) | Item::Nothing => {}
                }
                at = next;
            }
        }
        (code, starts)
    }

    /// The bytes for the kernel.
    pub fn encode(&self, fds: [u64; 2]) -> Result<Vec<u8>, String> {
        let insns: Vec<Insn> = self.resolve(fds).0.into_iter().map(|(_, i)| i).collect();
        bpf_isa::encode_all(&insns).map_err(|e| e.to_string())
    }

    /// The graphs, the main program first. What the interpreter runs has gone through encoder and decoder.
    pub fn graphs(&self) -> Result<Vec<Function>, String> {
        let (code, starts) = self.resolve([0, 1]);
        let end = code.last().map_or(0, |(s, i)| s + i.slots());
        let ends = starts.iter().skip(1).copied().chain([end]);
        let mut graphs = vec![];
        for (n, (start, end)) in starts.iter().copied().zip(ends).enumerate() {
            let own: Vec<Insn> = code.iter().filter(|(s, _)| (start..end).contains(s)).map(|(_, i)| *i).collect();
            let bytes = bpf_isa::encode_all(&own).map_err(|e| e.to_string())?;
            let decoded = bpf_isa::decode_all(&bytes).map_err(|e| e.to_string())?;
            let mut links = HashMap::new();
            for (slot, insn) in &decoded {
                let symbol = match *insn {
                    Insn::LoadImm64 { kind: Imm64Kind::MapFd, imm, .. } => {
                        Symbol::Map { name: Arc::from(MAPS[imm as usize].0), index: imm as usize }
                    }
                    Insn::Call(Call::Local(off)) => {
                        let target = (start + slot + 1).wrapping_add_signed(off as isize);
                        let callee = starts.iter().position(|s| *s == target).unwrap_or(0);
                        Symbol::Func { name: Arc::from(name(callee)) }
                    }
                    _ => continue,
                };
                links.insert(*slot, Link { slot: *slot, symbol });
            }
            let kind = if n == 0 { self.kind } else { ProgKind::Subprogram };
            graphs.push(build_from_insns(&name(n), kind, &decoded, links).map_err(|e| e.to_string())?);
        }
        Ok(graphs)
    }

    /// The program without its `n`-th statement; `None` past the last. Statements leave no pointers behind, so what
    /// is left is as comparable as the whole.
    pub fn without(&self, n: usize) -> Option<Program> {
        let mut program = self.clone();
        let mut n = n;
        for f in &mut program.functions {
            if let Some((from, to)) = f.statements.get(n) {
                f.items[*from..*to].fill(Item::Nothing);
                return Some(program);
            }
            n -= f.statements.len();
        }
        None
    }

    /// The listing, to be read and to be assembled again.
    pub fn listing(&self) -> String {
        self.resolve([0, 1]).0.iter().map(|(slot, insn)| format!("{slot:4}: {insn}\n")).collect()
    }
}

/// What the functions are called.
fn name(n: usize) -> String {
    if n == 0 { "main".into() } else { format!("sub{n}") }
}
