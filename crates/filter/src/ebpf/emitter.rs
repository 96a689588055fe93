//! eBPF: the filter as a program for a hook of the kernel, as assembly and as an object file.
//!
//! Packets are read directly: `r2` is where the packet begins, `r3` where it ends, and the verifier wants a comparison with the end
//! before each load, which the program's bounds are. `r5` is the address that was compared last, so that the next bound behind the
//! same base needs no copy. Fields that are only compared with constants stay in the packet's byte order; the constants are turned.

mod member;

use rustc_hash::{FxHashMap, FxHashSet};

use super::form::{EbpfForm, Ends};
use super::frame::Numbers;
use super::held::{EDGE, Held, Key, MANY, POOL, liveness, needed, stored};
use super::hook::{EbpfError, Hook};
use super::lookup::{LookupRegisters, Words, lookup, lookup_words};
use super::reach::{Address, Reach};
use super::text::{self, Text};
use crate::language::Binary;
use crate::program::{BasicBlock, BlockId, Comparison, End, Operand, Operation, Program, Register};
use crate::steps::Label;
use crate::tables::Table;

struct Emitter<'a> {
    program: &'a Program,
    /// Whose context there is, if there is one.
    hook: Option<Hook>,
    definitions: FxHashMap<Register, Operation>,
    /// How often a register is read in the whole program.
    reads: FxHashMap<Register, usize>,
    /// How many machine registers a number takes while it is computed.
    needed: FxHashMap<Register, usize>,
    /// Divisors that the program tests for 0 itself: an optimized one does so for all that may be.
    tested: FxHashSet<Register>,
    /// How large numbers are, and how far behind them the program reads.
    reach: Reach,
    /// Registers that are read in a block or behind it.
    live: Vec<FxHashSet<Register>>,
    /// Numbers that go to the stack, and where.
    stored: FxHashMap<Register, u32>,
    preferred: FxHashMap<Key, usize>,
    held: Held,
    /// The block at hand, and what of it is still to come.
    here: usize,
    pinned: Vec<usize>,
    text: Text,
}

/// The listing of a program.
pub(super) fn assembly(program: &Program, form: &EbpfForm) -> Result<String, EbpfError> {
    let mut definitions = FxHashMap::default();
    let mut tested = FxHashSet::default();
    let mut reads: FxHashMap<Register, usize> = FxHashMap::default();
    for block in &program.blocks {
        for operation in &block.operations {
            if let Operation::Copy { .. } = operation {
                let text = "where headers begin varies, and the filter stays as it stands \
                            (too many ways, no proof, or --no-optimize)";
                return Err(EbpfError::Unsupported(text.to_owned()));
            }
            if let Operation::NotZero { register } = operation {
                tested.insert(*register);
            }
            if let Some(to) = operation.writes() {
                definitions.insert(to, operation.clone());
            }
            operation.reads(&mut |r| *reads.entry(r).or_default() += 1);
        }
        block.end.reads(&mut |r| *reads.entry(r).or_default() += 1);
    }
    let live = liveness(program, &definitions);
    let ends = form.ends(program.predicates);
    let mut emitter = Emitter {
        program,
        hook: form.hook(),
        reach: Reach::of(program),
        stored: stored(&definitions, &reads, Numbers::behind_maps(program)),
        needed: needed(&definitions),
        definitions,
        reads,
        tested,
        live,
        preferred: FxHashMap::default(),
        held: Held::default(),
        here: 0,
        pinned: Vec::new(),
        text: Text::new(),
    };
    emitter.prologue();
    emitter.text.note(program.predicates, ends);
    let mut entry: Vec<Option<Held>> = vec![None; program.blocks.len()];
    entry[0] = Some(Held::default());
    for (i, block) in program.blocks.iter().enumerate() {
        // What only packets reach that are rejected on their way is not there: the verifier takes no such code.
        let Some(held) = entry[i].take() else { continue };
        emitter.held = held;
        emitter.here = i;
        emitter.text.block(i);
        emitter.block(block, ends)?;
        if emitter.text.is_over {
            continue;
        }
        for next in block.end.successors() {
            match &mut entry[next.0] {
                Some(held) => held.join(&emitter.held),
                none => *none = Some(emitter.held.clone()),
            }
        }
    }
    let length = emitter.length(text::LENGTH);
    emitter.text.finish(ends, length)
}

impl Emitter<'_> {
    fn line(&mut self, line: impl Into<String>) {
        self.text.line(line);
    }

    fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, EbpfError> {
        Err(EbpfError::Unsupported(what.into()))
    }

    /// Where the packet begins and ends.
    fn prologue(&mut self) {
        let Some((data, data_end)) = self.hook.and_then(Hook::data) else {
            self.line("r3 = r2");
            self.line("r2 = r1");
            return;
        };
        let read_ends = |s: &mut Self| {
            s.line(format!("r3 = *(u32 *)(r1 + {data_end})"));
            s.line(format!("r2 = *(u32 *)(r1 + {data})"));
        };
        read_ends(self);
        if !self.hook.is_some_and(Hook::pulls_data) {
            return;
        }
        // What of the packet the filter may read is brought together, if it is not.
        let Some(furthest) = self.reach.furthest(self.program) else { return };
        self.line("r4 = *(u32 *)(r1 + 0)");
        let (short, linear) = (self.text.label(), self.text.label());
        self.text.goto_if(format!("w4 <= {furthest}"), short);
        self.line(format!("w4 = {furthest}"));
        self.text.place(short);
        self.line("r5 = r2");
        self.line("r5 += r4");
        self.text.goto_if("r5 <= r3", linear);
        self.line("r6 = r1");
        self.line("r2 = r4");
        self.line("call bpf_skb_pull_data");
        self.line("r1 = r6");
        read_ends(self);
        self.text.place(linear);
    }

    /// How the packet's length comes to a register.
    fn length(&self, at: u8) -> Vec<String> {
        match self.hook {
            None | Some(Hook::Xdp) => vec![format!("r{at} = r3"), format!("r{at} -= r2")],
            Some(_) => vec![format!("r{at} = *(u32 *)(r1 + 0)")],
        }
    }

    fn block(&mut self, block: &BasicBlock, ends: Ends) -> Result<(), EbpfError> {
        for operation in &block.operations {
            match operation {
                Operation::Bound { base, end } => self.bound(*base, *end)?,
                Operation::NotZero { register } => {
                    let r = self.number(*register)?;
                    self.text.reject_if(format!("w{r} == 0"));
                }
                Operation::Note { predicate } => self.text.note(*predicate, ends),
                _ => {}
            }
            self.pinned.clear();
        }
        self.end(&block.end, ends)?;
        self.pinned.clear();
        Ok(())
    }

    /// Rejects a packet that does not reach so far.
    fn bound(&mut self, base: Option<Register>, end: u64) -> Result<(), EbpfError> {
        if self.reach.is_too_far(base, end) {
            self.text.reject_all();
            return Ok(());
        }
        let address = base.map(|base| self.reach.address(base, end));
        let at = match address {
            None => 2,
            Some(address) => self.pointer(address)?,
        };
        if self.held.reach.get(&address).is_some_and(|known| *known >= end) {
            return Ok(());
        }
        match self.held.edge {
            Some((of, distance)) if of == address && distance <= end => {
                if distance < end {
                    self.line(format!("r{EDGE} += {}", end - distance));
                }
            }
            _ => {
                self.line(format!("r{EDGE} = r{at}"));
                self.line(format!("r{EDGE} += {end}"));
            }
        }
        self.text.reject_if(format!("r{EDGE} > r3"));
        self.held.edge = Some((address, end));
        self.held.reach.insert(address, end);
        Ok(())
    }

    /// A machine register for a key, which is free.
    fn allocate(&mut self, key: Key) -> Result<usize, EbpfError> {
        let is_dead = |s: &Self, k: &Key| k.register().is_none_or(|r| !s.live[s.here].contains(&r));
        let open: Vec<usize> = (0..POOL.len()).filter(|i| !self.pinned.contains(i)).collect();
        let free = |s: &Self, i: &usize| s.held.registers[*i].as_ref().is_none_or(|k| is_dead(s, k));
        let preferred = self.preferred.get(&key).copied().filter(|i| open.contains(i) && free(self, i));
        let chosen = preferred
            .or_else(|| open.iter().copied().find(|i| free(self, i)))
            // Loads cost least to make anew.
            .or_else(|| {
                open.iter().copied().find(|i| matches!(self.held.registers[*i], Some(Key::Raw(_) | Key::Number(_))))
            })
            .or_else(|| open.first().copied());
        let Some(chosen) = chosen else {
            return self.unsupported("an expression that needs more registers than there are (programs of sockets keep numbers on the stack: --hook socket)");
        };
        self.put(chosen, Some(key));
        self.preferred.entry(key).or_insert(chosen);
        self.pinned.push(chosen);
        Ok(chosen)
    }

    /// Notes what a machine register holds from now on.
    fn put(&mut self, i: usize, key: Option<Key>) {
        if let Some(Key::Pointer(address)) = self.held.registers[i] {
            self.held.reach.remove(&Some(address));
        }
        for k in &mut self.held.registers {
            if key.is_some() && *k == key {
                *k = None;
            }
        }
        self.held.registers[i] = key;
    }

    /// The machine register that holds a number.
    fn number(&mut self, r: Register) -> Result<u8, EbpfError> {
        self.pinned_alone(|s| s.computed(r))
    }

    /// What is computed for an operand needs its register no longer: only the operand's own is kept.
    fn pinned_alone(&mut self, compute: impl FnOnce(&mut Self) -> Result<u8, EbpfError>) -> Result<u8, EbpfError> {
        let before = self.pinned.len();
        let at = compute(self)?;
        self.pinned.truncate(before);
        self.pinned.extend(POOL.iter().position(|p| *p == at));
        Ok(at)
    }

    fn computed(&mut self, r: Register) -> Result<u8, EbpfError> {
        let key = Key::Number(r);
        if let Some(i) = self.held.place(key) {
            self.pinned.push(i);
            return Ok(POOL[i]);
        }
        let slot = self.stored.get(&r).copied();
        if let Some(slot) = slot.filter(|_| self.held.stored.contains(&r)) {
            let i = self.allocate(key)?;
            self.line(format!("r{} = *(u64 *)(r10 - {slot})", POOL[i]));
            return Ok(POOL[i]);
        }
        let Some(definition) = self.definitions.get(&r).cloned() else {
            return self.unsupported("a value that is never computed");
        };
        let i = match definition {
            Operation::Load { size: 1, .. } => return self.raw(r),
            Operation::Load { size, .. } => {
                let at = self.raw(r)?;
                let i = POOL.iter().position(|p| *p == at).unwrap_or(0);
                self.line(format!("r{at} = be{} r{at}", u32::from(size) * 8));
                self.put(i, Some(key));
                i
            }
            Operation::Constant { n, .. } => {
                let i = self.allocate(key)?;
                self.line(format!("w{} = {}", POOL[i], n as i32));
                i
            }
            Operation::Length { .. } => {
                let i = self.allocate(key)?;
                self.length(POOL[i]).into_iter().for_each(|line| self.line(line));
                i
            }
            Operation::Ancillary { what, .. } => {
                let Some(hook) = self.hook else {
                    return self.unsupported(format!(
                        "{}: a function of data and data_end does not know it",
                        what.asked_for_by()
                    ));
                };
                let offset = hook.offset_of(what)?;
                let i = self.allocate(key)?;
                self.line(format!("r{} = *(u32 *)(r1 + {offset})", POOL[i]));
                i
            }
            Operation::HeaderLength { offset, .. } => {
                let i = self.allocate(key)?;
                let at = POOL[i];
                self.load(at, 1, 2, i64::from(offset));
                self.line(format!("w{at} &= 15"));
                self.line(format!("w{at} <<= 2"));
                i
            }
            Operation::Negate { a, .. } => {
                let i = self.copy(a, key)?;
                self.line(format!("w{0} = -w{0}", POOL[i]));
                i
            }
            Operation::Binary { op, a, b, .. } => self.binary(op, a, b, key)?,
            Operation::IsGreater { a, b, .. } => self.is_greater(a, b, key)?,
            Operation::Copy { .. } | Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. } => {
                return self.unsupported("an operation without a number");
            }
        };
        self.pinned.push(i);
        if let Some(slot) = slot {
            self.line(format!("*(u64 *)(r10 - {slot}) = r{}", POOL[i]));
            self.held.stored.insert(r);
        }
        Ok(POOL[i])
    }

    /// A number that may be changed: in its place if nobody reads it again, otherwise a copy.
    fn copy(&mut self, r: Register, key: Key) -> Result<usize, EbpfError> {
        let at = self.number(r)?;
        if self.reads.get(&r).is_some_and(|n| *n == 1) {
            let i = POOL.iter().position(|p| *p == at).unwrap_or(0);
            self.put(i, Some(key));
            return Ok(i);
        }
        let i = self.allocate(key)?;
        self.line(format!("w{} = w{at}", POOL[i]));
        Ok(i)
    }

    fn binary(&mut self, op: Binary, a: Operand, b: Operand, key: Key) -> Result<usize, EbpfError> {
        // A constant that stands in a register is one to the verifier, too ([`Text::arithmetic`]).
        let b = match (op, b) {
            (Binary::Add | Binary::Sub, Operand::Register(r)) => self.reach.constant(r).map_or(b, Operand::Constant),
            _ => b,
        };
        self.larger_first(a, b)?;
        let second = match b {
            Operand::Register(b) => Some(self.number(b)?),
            Operand::Constant(_) => None,
        };
        let i = match a {
            Operand::Register(a) if b != Operand::Register(a) => self.copy(a, key)?,
            Operand::Register(a) => {
                let at = self.number(a)?;
                let i = self.allocate(key)?;
                self.line(format!("w{} = w{at}", POOL[i]));
                i
            }
            Operand::Constant(n) => {
                let i = self.allocate(key)?;
                self.line(format!("w{} = {}", POOL[i], n as i32));
                i
            }
        };
        let at = POOL[i];
        if let (Binary::Div | Binary::Mod, Operand::Register(divisor), Some(b)) = (op, b, second)
            && !self.tested.contains(&divisor)
        {
            self.text.reject_if(format!("w{b} == 0"));
        }
        let second = match (b, second) {
            (Operand::Register(_), Some(b)) => format!("w{b}"),
            (Operand::Register(_), None) => return self.unsupported("an operand without a register"),
            (Operand::Constant(n), _) => format!("{}", n as i32),
        };
        self.text.arithmetic(op, at, b, &second);
        Ok(i)
    }

    /// Computes the first operand if it takes many registers, and more than the second: that would hold one meanwhile. A field that is
    /// not there rejects the packet, whichever comes first.
    fn larger_first(&mut self, a: Operand, b: Operand) -> Result<(), EbpfError> {
        if let (Operand::Register(a), Operand::Register(b)) = (a, b) {
            let of = |r| self.needed.get(&r).copied().unwrap_or_default();
            if of(a) >= MANY && of(a) > of(b) {
                self.number(a)?;
            }
        }
        Ok(())
    }

    fn is_greater(&mut self, a: Operand, b: Operand, key: Key) -> Result<usize, EbpfError> {
        let (Operand::Register(a), b) = (a, b) else { return self.unsupported("a comparison of a constant") };
        let a = self.number(a)?;
        let b = match b {
            Operand::Register(b) => format!("w{}", self.number(b)?),
            Operand::Constant(n) => format!("{}", n as i32),
        };
        let i = self.allocate(key)?;
        self.text.is_greater(POOL[i], a, &b);
        Ok(i)
    }

    /// The machine register that holds a load in the packet's byte order.
    fn raw(&mut self, r: Register) -> Result<u8, EbpfError> {
        self.pinned_alone(|s| s.loaded(r))
    }

    fn loaded(&mut self, r: Register) -> Result<u8, EbpfError> {
        let Some(Operation::Load { base, offset, size, .. }) = self.definitions.get(&r).cloned() else {
            return self.unsupported("only loads have a byte order");
        };
        let key = if size == 1 { Key::Number(r) } else { Key::Raw(r) };
        if let Some(i) = self.held.place(key) {
            self.pinned.push(i);
            return Ok(POOL[i]);
        }
        let end = u64::from(offset) + u64::from(size);
        // Mostly known already; an address that was computed anew must be compared anew.
        self.bound(base, end)?;
        if self.reach.is_too_far(base, end) {
            // Not reached.
            let i = self.allocate(key)?;
            self.line(format!("w{} = 0", POOL[i]));
            return Ok(POOL[i]);
        }
        let address = base.map(|base| self.reach.address(base, end));
        let (from, offset) = match (self.held.edge, address) {
            // From the address that was compared last, so that fields at different places are read alike.
            (Some((of, distance)), address) if of == address && is_near(i64::from(offset) - distance as i64) => {
                (EDGE, i64::from(offset) - distance as i64)
            }
            (_, None) => (2, i64::from(offset)),
            (_, Some(address)) => (self.pointer(address)?, i64::from(offset)),
        };
        let i = self.allocate(key)?;
        self.load(POOL[i], size, from, offset);
        Ok(POOL[i])
    }

    /// Reads from so far behind an address, which an instruction may not reach: then the address is computed where the field goes.
    fn load(&mut self, to: u8, size: u8, mut from: u8, mut offset: i64) {
        if !is_near(offset) {
            self.line(format!("r{to} = r{from}"));
            self.line(format!("r{to} += {offset}"));
            (from, offset) = (to, 0);
        }
        let (sign, distance) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
        self.line(format!("r{to} = *(u{} *)(r{from} {sign} {distance})", u32::from(size) * 8));
    }

    /// The machine register that holds the packet's address behind a base.
    fn pointer(&mut self, address: Address) -> Result<u8, EbpfError> {
        self.pinned_alone(|s| s.address(address))
    }

    fn address(&mut self, address: Address) -> Result<u8, EbpfError> {
        let Address { base, most } = address;
        let key = Key::Pointer(address);
        if let Some(i) = self.held.place(key) {
            self.pinned.push(i);
            return Ok(POOL[i]);
        }
        // Who has asked for the number itself must find it as it is.
        let is_wanted = self.held.place(Key::Number(base)).is_some_and(|i| self.pinned.contains(&i));
        let at = self.number(base)?;
        if self.reach.is_compared(address) {
            self.text.reject_if(format!("r{at} > {most}"));
        }
        let i = if is_wanted { self.allocate(key)? } else { POOL.iter().position(|p| *p == at).unwrap_or(0) };
        if is_wanted {
            self.line(format!("r{} = r{at}", POOL[i]));
        }
        let at = POOL[i];
        self.line(format!("r{at} += r2"));
        self.put(i, Some(key));
        self.held.reach.remove(&Some(address));
        if self.held.edge.is_some_and(|(of, _)| of == Some(address)) {
            self.held.edge = None;
        }
        Ok(at)
    }

    fn end(&mut self, end: &End, ends: Ends) -> Result<(), EbpfError> {
        match end {
            End::Accept => self.text.verdict(true, ends),
            End::Reject => self.text.verdict(false, ends),
            End::Goto(to) => self.text.goto(Label::Block(*to)),
            End::Branch { a, comparison, yes, no } => self.branch(*a, *comparison, *yes, *no)?,
            End::Lookup { keys, table, yes, no } => self.lookup(keys, *table, *yes, *no)?,
            End::Member { map, key, yes, no } => self.member(*map, key, (*yes, *no), ends)?,
            End::Chain { .. } => return Err(EbpfError::chain()),
        }
        Ok(())
    }

    fn lookup(&mut self, keys: &[Register], table: usize, yes: BlockId, no: BlockId) -> Result<(), EbpfError> {
        let (yes, no) = (Label::Block(yes), Label::Block(no));
        let program = self.program;
        let working = [0, 1].map(Key::Working);
        match (&program.tables[table], keys) {
            (Table::Tuples(tuples), keys) => {
                // Where a word is read the packet's end may be looked for, which takes the edge's register: what is kept from word to
                // word stands in another one.
                let (i, j) = (self.allocate(working[0])?, self.allocate(working[1])?);
                let mut words = PacketWords { pinned: self.pinned.clone(), emitter: self, keys, forks: Vec::new() };
                lookup_words(&mut words, (table, tuples), [POOL[i], POOL[j], EDGE], yes, no)?;
                let forks = words.forks;
                self.held.edge = None;
                forks.iter().for_each(|held| self.held.join(held));
                self.put(j, None);
                self.put(i, None);
            }
            (one, [key]) => {
                let number = self.number(*key)?;
                self.held.edge = None;
                let (i, j) = (self.allocate(working[0])?, self.allocate(working[1])?);
                let registers = LookupRegisters { number, free: [EDGE, POOL[i], POOL[j]] };
                lookup(&mut self.text, (table, one), registers, yes, no);
                self.put(j, None);
                self.put(i, None);
            }
            _ => return self.unsupported("a key of several words in a table of numbers"),
        }
        Ok(())
    }

    fn branch(&mut self, a: Register, comparison: Comparison, yes: BlockId, no: BlockId) -> Result<(), EbpfError> {
        let turned = |n: u32, size: u8| match size {
            2 => u32::from((n as u16).swap_bytes()),
            4 => n.swap_bytes(),
            _ => n,
        };
        let size = match self.definitions.get(&a) {
            Some(Operation::Load { size, .. }) => Some(*size),
            _ => None,
        };
        // In the packet's byte order, if it is not turned already.
        let as_raw = size.filter(|_| self.held.place(Key::Number(a)).is_none());
        let (left, symbol, right) = match (comparison, as_raw) {
            (Comparison::Equal(Operand::Constant(n)), Some(size)) => {
                (self.raw(a)?, "==", format!("{}", turned(n, size) as i32))
            }
            (Comparison::AnyBit(mask), Some(size)) => (self.raw(a)?, "&", format!("{}", turned(mask, size) as i32)),
            (Comparison::Equal(b), _) => {
                let left = self.number(a)?;
                (left, "==", self.operand(b)?)
            }
            (Comparison::Greater(b), _) => {
                let left = self.number(a)?;
                (left, ">", self.operand(b)?)
            }
            (Comparison::AtLeast(b), _) => {
                let left = self.number(a)?;
                (left, ">=", self.operand(b)?)
            }
            (Comparison::AnyBit(mask), None) => (self.number(a)?, "&", format!("{}", mask as i32)),
        };
        self.text.branch(&format!("w{left} {symbol} {right}"), Label::Block(yes), Label::Block(no));
        Ok(())
    }

    fn operand(&mut self, operand: Operand) -> Result<String, EbpfError> {
        Ok(match operand {
            Operand::Constant(n) => format!("{}", n as i32),
            Operand::Register(r) => format!("w{}", self.number(r)?),
        })
    }
}

/// Whether an instruction reaches so far from its address.
fn is_near(offset: i64) -> bool {
    i16::try_from(offset).is_ok()
}

/// The words of a key, each read from the packet where it is wanted, if no register holds it.
struct PacketWords<'a, 'b> {
    emitter: &'a mut Emitter<'b>,
    keys: &'a [Register],
    /// What must be kept besides.
    pinned: Vec<usize>,
    /// What is held where the lookup may be left.
    forks: Vec<Held>,
}

impl Words for PacketWords<'_, '_> {
    fn text(&mut self) -> &mut Text {
        &mut self.emitter.text
    }

    fn word(&mut self, i: usize) -> Result<u8, EbpfError> {
        // The lookup has worked in the edge's register.
        self.emitter.held.edge = None;
        self.emitter.pinned.clone_from(&self.pinned);
        self.emitter.number(self.keys[i])
    }

    fn fork(&mut self) {
        self.forks.push(Held { edge: None, ..self.emitter.held.clone() });
    }
}
