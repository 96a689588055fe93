//! The canonical form of a window: what is to be remembered of it, without the accidents.
//!
//! Registers are numbered in the order of their first mention, sites that name pointer bases and maps
//! likewise; facts that cannot matter are dropped; offsets into the frame count from where the window
//! uses it, offsets of other accesses from the lowest one through the same register (both keep their
//! alignment to eight bytes). [`Renaming`] is the way back: it turns a canonical replacement into one
//! for the window at hand.
//!
//! None of this needs to be right for soundness: an instance goes through the judge like any other
//! candidate. A wrong abstraction only costs time.

use bpf_facts::{BaseId, Env, Kind, Live, MapInfo, Num, Region, StackSet, State, Value};
use bpf_isa::{AtomicOp, Goal, Insn, MemoryOperand, Reg, RegSet, Src};
use bpf_program::{BlockId, ByteOrder, Link, Op, ProgKind, Symbol};

use crate::propose::readable;
use crate::window::{NOP, Window};

/// A window in canonical form: everything the prover needs to judge a replacement, and the key of what is known about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowKey {
    /// Kind of the function, where the window touches the context; else [`ProgKind::Other`].
    pub kind: ProgKind,
    /// Highest cpu level of new instructions.
    pub cpu: u8,
    /// What code is to have less of.
    pub goal: Goal,
    /// How many maps are mentioned; they are called `map0`, `map1` …
    pub maps: usize,
    /// Whether the frame's address may be anywhere.
    pub frame_leaked: bool,
    /// What is known of registers, ascending.
    pub regs: Vec<(Reg, Value)>,
    /// What is known of the frame, ascending.
    pub stack: Vec<(i64, Value)>,
    /// What stands there. A link's `slot` is its number among the links.
    pub old: Vec<Op>,
    /// Of a superblock: what is read where each of its side exits leaves it.
    pub sides: Vec<Live>,
    /// What is read afterwards.
    pub live: Live,
}

impl WindowKey {
    /// Facts before the window.
    pub fn before(&self) -> State {
        State::from_parts(self.regs.iter().cloned(), self.stack.iter().cloned(), self.frame_leaked, BaseId::Fixed)
    }

    /// The maps it mentions. A form does not say their types; that a search has found nothing with one is kept for all.
    pub fn map_table(&self) -> Vec<MapInfo> {
        // Of a type whose values are aligned, as those of nearly all are, and whose lookups are not plain.
        let map_type = Some(bpf_platform::maps::LRU_HASH);
        (0..self.maps).map(|i| MapInfo { name: map_name(i), map_type, ..MapInfo::default() }).collect()
    }

    /// What the prover says of `new` as its replacement.
    pub fn prove(&self, new: &[Op], options: &bpf_prove::Options) -> bpf_prove::Verdict {
        let maps = self.map_table();
        let env = Env { maps: &maps, ..Env::empty() };
        bpf_prove::along(self.kind, &env, &self.before(), &self.old, new, &self.sides, &self.live, None, options).0
    }
}

/// The canonical name of a map.
pub(crate) fn map_name(i: usize) -> String {
    format!("map{i}")
}

/// From a window to its canonical form and back.
#[derive(Clone, Debug)]
pub struct Renaming {
    /// Canonical name of each register, where it has one.
    names: [Option<Reg>; 11],
    /// What the window's offsets through each register are larger by.
    shifts: [i64; 11],
    /// The window's links, by their canonical number.
    links: Vec<Op>,
    /// Maps by their canonical number.
    maps: Vec<usize>,
    /// Line information for new operations.
    origin: Option<usize>,
    /// Registers that the problem does not mention: a replacement may use them for values of its own.
    spare: RegSet,
    /// Bytes of the frame that the window touches: of others the problem says nothing.
    touched: StackSet,
}

impl Renaming {
    /// The canonical name of `r`, if the problem mentions it.
    pub fn name(&self, r: Reg) -> Option<Reg> {
        self.names[r.index()]
    }

    /// A replacement of the window as one of the problem; `None` if it uses what the form leaves out.
    pub fn to_canonical(&self, ops: &[Op]) -> Option<Vec<Op>> {
        // What such a register holds before is no part of the problem.
        let mut unset = self.spare;
        for o in ops {
            if !o.insn.uses().intersect(unset).is_empty() {
                return None;
            }
            let frame = o.insn.memory_operand().filter(|m| m.base == Reg::R10);
            let bytes = frame.map(|m| StackSet::range(m.off.into(), m.size.bytes()));
            if bytes.is_some_and(|b| !b.minus(&self.touched).is_empty()) {
                return None;
            }
            unset = unset.minus(o.insn.defs());
        }
        let canonical: Vec<Op> = ops.iter().map(|o| self.canonical_op(o)).collect::<Option<_>>()?;
        // Only what finds its way back may be kept.
        let back = self.to_window(&canonical)?;
        let same = |(a, b): (&Op, &Op)| a.insn == b.insn && a.link == b.link;
        (back.len() == ops.len() && back.iter().zip(ops).all(same)).then_some(canonical)
    }

    /// A replacement of the problem as one of the window; `None` if it names what the window has not.
    pub fn to_window(&self, ops: &[Op]) -> Option<Vec<Op>> {
        let back = |r: Reg| Reg::all().find(|q| self.names[q.index()] == Some(r));
        ops.iter()
            .map(|o| {
                let insn = rename(&o.insn, back)?;
                let insn = self.shift(&insn, 1)?;
                let mut op = Op::with_origin(insn, self.origin);
                if let Some(l) = &o.link {
                    let known = self.links.get(l.slot)?;
                    op.link = known.link.clone();
                    op.origin = known.origin;
                }
                Some(op)
            })
            .collect()
    }

    fn canonical_op(&self, o: &Op) -> Option<Op> {
        let insn = self.shift(&o.insn, -1)?;
        let insn = rename(&insn, |r| self.names[r.index()])?;
        let link = match &o.link {
            None => None,
            Some(l) => {
                let slot = self.links.iter().position(|k| k.link.as_ref() == Some(l))?;
                let symbol = match &l.symbol {
                    Symbol::Map { index, .. } => {
                        let i = self.maps.iter().position(|m| m == index)?;
                        Symbol::Map { name: map_name(i).into(), index: i }
                    }
                    other => other.clone(),
                };
                Some(Link { slot, symbol })
            }
        };
        Some(Op { insn, origin: None, link })
    }

    /// Moves the offset of an access; a register that is shifted has no other use.
    fn shift(&self, i: &Insn, sign: i64) -> Option<Insn> {
        let touches_shifted = |regs: RegSet| regs.iter().any(|r| self.shifts[r.index()] != 0);
        let Some(MemoryOperand { base, off, .. }) = i.memory_operand() else {
            return (!touches_shifted(i.uses().union(i.defs()))).then_some(*i);
        };
        // In canonical code the base carries its canonical name until it is renamed: both directions
        // shift while the window's own names stand.
        if touches_shifted(other_operands(i)) {
            return None;
        }
        let off = i16::try_from(i64::from(off) + sign * self.shifts[base.index()]).ok()?;
        Some(i.with_memory_offset(off))
    }
}

/// Registers of an access other than its base as base.
fn other_operands(i: &Insn) -> RegSet {
    let source = match *i {
        Insn::Store { src: Src::Reg(r), .. } => RegSet::of(r),
        Insn::Atomic { src, .. } | Insn::StoreRelease { src, .. } => RegSet::of(src),
        _ => RegSet::EMPTY,
    };
    source.union(i.defs())
}

/// Renames all registers; `None` if one has no name.
fn rename(i: &Insn, name: impl Fn(Reg) -> Option<Reg>) -> Option<Insn> {
    let all = i.uses().union(i.defs());
    all.iter().all(|r| name(r).is_some()).then(|| i.map_regs(|r| name(r).unwrap_or(r)))
}

/// The canonical form of a window; `None` if it holds a call, a jump that is no side exit of its superblock or something
/// unknown, or if it may access fields that the kernel manages, of which the form says nothing. A superblock's room is not
/// part of it.
pub fn canonical(w: &Window) -> Option<(WindowKey, Renaming)> {
    // Texts of rules do not name the byte order: they are about little-endian machines.
    if w.env.byte_order != ByteOrder::Little {
        return None;
    }
    if !w.is_plain() || w.knows_managed_fields() {
        return None;
    }
    let look = Look::at(w);
    let mut r = Renaming {
        names: [None; 11],
        shifts: [0; 11],
        links: w.old.iter().filter(|o| o.link.is_some()).cloned().collect(),
        maps: Vec::new(),
        origin: w.old.iter().find_map(|o| o.origin),
        spare: RegSet::EMPTY,
        touched: look.touched,
    };
    name_registers(w, &look, &mut r.names);
    let known: Vec<Reg> = Reg::all().filter(|q| *q != Reg::R10 && look.facts.contains(*q)).collect();
    let frame = frame_shift(w, &look, &known);
    r.shifts[10] = -frame;
    let mut sites: Vec<(bool, BaseId)> = Vec::new();
    let context = known.iter().any(|q| w.before.reg(*q).region() == Some(&Region::Ctx));
    let mut mapping = Mapping { sites: &mut sites, maps: &mut r.maps, packet: w.before.packet_base(), frame };
    let mut regs: Vec<(Reg, Value)> = Vec::new();
    for q in &known {
        let v = w.before.reg(*q);
        let lowest = look.lowest[q.index()].filter(|_| look.only_base.contains(*q));
        let mut v = mapping.value(v);
        if let Some(shift) = lowest.and_then(|low| base_shift(&mut v, low)) {
            r.shifts[q.index()] = shift;
        }
        let name = r.names[q.index()]?;
        regs.push((name, v));
    }
    regs.sort_by_key(|(q, _)| *q);
    let stack = w.before.stack_values().filter(|(off, v)| {
        let bytes = StackSet::range(*off, v.num.bits / 8);
        !bytes.intersect(&look.touched).is_empty()
    });
    let stack: Vec<(i64, Value)> = stack.map(|(off, v)| (off + frame, mapping.value(v))).collect();
    for o in &r.links {
        if let Some(Symbol::Map { index, .. }) = o.link.as_ref().map(|l| &l.symbol)
            && !r.maps.contains(index)
        {
            r.maps.push(*index);
        }
    }
    origins_alike(&mut regs, context);
    regs.retain(|(_, v)| !v.is_unknown());
    let old: Vec<Op> = w.old.iter().filter(|o| o.insn != NOP).map(|o| r.canonical_op(o)).collect::<Option<_>>()?;
    let live = |l: &Live| {
        let mut live = Live::default();
        for (i, name) in r.names.iter().enumerate() {
            if let (Some(name), Some(q)) = (name, Reg::new(i as u8))
                && l.regs.contains(q)
                && q != Reg::R10
            {
                live.regs.insert(*name);
            }
        }
        for (off, len) in l.stack.intersect(&look.touched).runs() {
            live.stack.insert_range(off + frame, len);
        }
        live
    };
    let sides = w.superblock.map_or(vec![], |s| s.sides.iter().map(live).collect());
    let live = live(w.superblock.map_or(w.live, |s| &s.end));
    let key = WindowKey {
        kind: if context { w.kind } else { ProgKind::Other },
        cpu: w.cpu,
        goal: w.goal.order(),
        maps: r.maps.len(),
        frame_leaked: w.before.frame_leaked() && look.blind,
        regs,
        stack,
        old,
        sides,
        live,
    };
    r.spare = name_the_rest(w, &mut r.names);
    Some((key, r))
}

/// Names for registers that the window does not mention, so that a replacement may use them: those first that
/// are free. Which they are.
fn name_the_rest(w: &Window, names: &mut [Option<Reg>; 11]) -> RegSet {
    let busy = |q: &Reg| w.live.regs.contains(*q) || readable(w).contains(*q);
    let (taken, free): (Vec<Reg>, Vec<Reg>) = Reg::all().filter(|q| names[q.index()].is_none()).partition(busy);
    let mut spare = RegSet::EMPTY;
    for q in free.into_iter().chain(taken) {
        let unused = Reg::all().find(|n| !names.contains(&Some(*n)));
        names[q.index()] = unused;
        spare.insert(q);
    }
    spare
}

/// What the window does with registers and memory.
struct Look {
    /// Registers whose facts may matter.
    facts: RegSet,
    /// Registers that are never written and serve as bases only.
    only_base: RegSet,
    /// Lowest offset through each register.
    lowest: [Option<i16>; 11],
    /// Bytes of the frame that it may touch.
    touched: StackSet,
    /// Whether it goes through something not known to be a pointer.
    blind: bool,
    /// Whether registers have fixed roles.
    fixed: bool,
}

impl Look {
    fn at(w: &Window) -> Look {
        let mut written = RegSet::EMPTY;
        let (mut first, mut mentioned, mut not_base) = (RegSet::EMPTY, RegSet::EMPTY, RegSet::EMPTY);
        let mut look = Look {
            facts: RegSet::EMPTY,
            only_base: RegSet::EMPTY,
            lowest: [None; 11],
            touched: StackSet::EMPTY,
            blind: false,
            fixed: false,
        };
        let mut numbers: Vec<u64> = Vec::new();
        let mut state = w.before.clone();
        for (i, o) in w.old.iter().enumerate() {
            let (uses, defs) = (o.insn.uses(), o.insn.defs());
            mentioned = mentioned.union(uses).union(defs);
            first = first.union(uses.minus(written));
            written = written.union(defs);
            look.fixed |= o.is_core() || matches!(o.insn, Insn::Atomic { op: AtomicOp::CmpXchg, .. });
            numbers.extend(number_of(&o.insn));
            match o.insn.memory_operand() {
                Some(MemoryOperand { base, off, size, .. }) => {
                    let low = &mut look.lowest[base.index()];
                    *low = Some(low.map_or(off, |l| l.min(off)));
                    not_base = not_base.union(other_operands(&o.insn));
                    let v = state.reg(base);
                    look.blind |= v.region().is_none();
                    look.touched = look.touched.union(&if o.is_core() && (v.is_stack() || look.blind) {
                        StackSet::ALL
                    } else {
                        state.touched(v, off, size.bytes())
                    });
                }
                None => not_base = not_base.union(uses).union(defs),
            }
            state.step(o, (BlockId(0), i), w.kind, w.env);
        }
        look.only_base = mentioned.minus(written).minus(not_base);
        // Registers that are not read first, or not at all, may hold what the window wants.
        let read: Vec<&Value> = first.iter().map(|q| w.before.reg(q)).collect();
        let useful = |q: &Reg| {
            let v = w.before.reg(*q);
            match &v.kind {
                Kind::Pointer { region, .. } => *region != Region::Stack && read.iter().any(|r| r.same_base(v)),
                _ => v.as_const().is_some_and(|k| numbers.contains(&k)),
            }
        };
        look.facts = first;
        // What the window sets to the value it holds already need not be set.
        let same = |q: &Reg| !w.before.reg(*q).is_unknown() && w.before.reg(*q) == state.reg(*q);
        written.minus(first).iter().filter(same).for_each(|q| look.facts.insert(q));
        readable(w).minus(first).without(Reg::R10).iter().filter(useful).for_each(|q| look.facts.insert(q));
        look
    }
}

/// The number in an instruction, as a register would hold it.
fn number_of(i: &Insn) -> Option<u64> {
    match *i {
        Insn::Alu { src: Src::Imm(k), .. } | Insn::Store { src: Src::Imm(k), .. } => Some(i64::from(k) as u64),
        Insn::Mov { src: Src::Imm(k), width: bpf_isa::Width::W32, .. } => Some(u64::from(k as u32)),
        Insn::Mov { src: Src::Imm(k), .. } => Some(i64::from(k) as u64),
        Insn::LoadImm64 { imm, .. } => Some(imm),
        _ => None,
    }
}

/// Names in the order of mention, then those whose facts matter.
fn name_registers(w: &Window, look: &Look, names: &mut [Option<Reg>; 11]) {
    names[10] = Some(Reg::R10);
    let extra = look.facts.iter();
    if look.fixed {
        for o in w.old {
            o.insn.uses().union(o.insn.defs()).iter().for_each(|r| names[r.index()] = Some(r));
        }
        extra.for_each(|r| names[r.index()] = Some(r));
        return;
    }
    let next = std::cell::Cell::new(0u8);
    let cells = std::cell::RefCell::new(names);
    let mention = |r: Reg| {
        let mut names = cells.borrow_mut();
        if names[r.index()].is_none() {
            names[r.index()] = Reg::new(next.get());
            next.set(next.get() + 1);
        }
    };
    for o in w.old {
        let _ = o.insn.map_regs(|r| {
            mention(r);
            r
        });
    }
    extra.for_each(mention);
}

/// What is added to offsets into the frame so that the last byte used is the frame's last, as far as
/// alignment allows; 0 where the frame's address is used for more than accesses.
fn frame_shift(w: &Window, look: &Look, known: &[Reg]) -> i64 {
    let Some(end) = look.touched.iter().last().map(|o| o + 1) else { return 0 };
    let only_base = w.old.iter().all(|o| {
        let others = if o.insn.memory_operand().is_some() { other_operands(&o.insn) } else { o.insn.uses() };
        !others.contains(Reg::R10)
    });
    let frame_facts = known.iter().map(|r| w.before.reg(*r)).chain(w.before.stack_values().map(|(_, v)| v));
    let constant = frame_facts.filter(|v| v.is_stack()).all(|v| v.pointer_at().is_some());
    if !only_base || !constant || look.touched == StackSet::ALL {
        return 0;
    }
    let shift = -end & !7;
    let fits = |(off, v): (i64, &Value)| {
        let bytes = i64::from(v.num.bits / 8);
        StackSet::range(off, bytes as u32).intersect(&look.touched).is_empty() || off + bytes + shift <= 0
    };
    if w.before.stack_values().all(fits) { shift } else { 0 }
}

/// The shift of the offsets through a register, its value moved along; `None` for none.
fn base_shift(v: &mut Value, low: i16) -> Option<i64> {
    let shift = i64::from(low) & !7;
    if shift == 0 {
        return None;
    }
    match &v.kind {
        Kind::Pointer { region: Region::Stack | Region::Ctx, .. } => None,
        Kind::Pointer { nullable: false, .. } => {
            v.num = v.num.add(&Num::constant(64, shift as u64));
            Some(shift)
        }
        Kind::Unknown if v.num.is_top() => Some(shift),
        _ => None,
    }
}

/// Where the offsets of all pointers with one base are constants, they count from the lowest.
fn origins_alike(regs: &mut [(Reg, Value)], context: bool) {
    for i in 0..regs.len() {
        let Kind::Pointer { region, base, nullable: false } = regs[i].1.kind.clone() else { continue };
        let own = matches!(region, Region::MapValue { .. } | Region::AnyMapValue | Region::Mem | Region::Kernel);
        let packet = region.is_packet() && !context;
        if base == BaseId::Unknown && own {
            regs[i].1.num = Num::constant(64, 0);
        }
        if !base.same(base) || !(own || packet) {
            continue;
        }
        let alike =
            |v: &Value| matches!(&v.kind, Kind::Pointer { region: r, base: b, .. } if *r == region && *b == base);
        let offsets: Option<Vec<i64>> =
            regs.iter().filter(|(_, v)| alike(v)).map(|(_, v)| v.pointer_at().map(|(_, _, k)| k)).collect();
        let Some(low) = offsets.and_then(|o| o.into_iter().min()) else { continue };
        let by = low & !7;
        for (_, v) in regs.iter_mut().filter(|(_, v)| alike(v)) {
            v.num = v.num.sub(&Num::constant(64, by as u64));
        }
    }
}

/// New names for what facts mention.
struct Mapping<'a> {
    sites: &'a mut Vec<(bool, BaseId)>,
    maps: &'a mut Vec<usize>,
    packet: BaseId,
    frame: i64,
}

impl Mapping<'_> {
    fn value(&mut self, v: &Value) -> Value {
        let Kind::Pointer { region, base, nullable } = &v.kind else { return v.clone() };
        let mut map = |m: usize| {
            self.maps.iter().position(|k| *k == m).unwrap_or_else(|| {
                self.maps.push(m);
                self.maps.len() - 1
            })
        };
        let region = match region {
            Region::MapValue { map: m } => Region::MapValue { map: map(*m) },
            Region::MapPtr { map: m } => Region::MapPtr { map: map(*m) },
            other => other.clone(),
        };
        let packet = region.is_packet();
        let base = match base {
            BaseId::Unknown | BaseId::Fixed => *base,
            b if packet && *b == self.packet => BaseId::Fixed,
            b => {
                let k = (packet, *b);
                let n = self.sites.iter().position(|s| *s == k).unwrap_or_else(|| {
                    self.sites.push(k);
                    self.sites.len() - 1
                });
                BaseId::Site(BlockId(0), n as u32)
            }
        };
        let shift = if region == Region::Stack { self.frame } else { 0 };
        let num = if shift == 0 { v.num } else { v.num.add(&Num::constant(64, shift as u64)) };
        Value { kind: Kind::Pointer { region, base, nullable: *nullable }, num }
    }
}
