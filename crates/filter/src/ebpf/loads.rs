//! Hooks whose programs may not read packets directly: each field is read by a load that is a call.
//!
//! Operations are executed one by one, as the interpreter does. `r6` is the context; a load leaves `r6` to `r9` alone, puts its
//! result into `r0` and takes all others. There are two loads. The old instruction is short, but ends the program with 0 behind the
//! packet's end: it serves where a rejected packet's verdict is 0, nothing is counted, and no caller waits.
//!
//! ```text
//! r0 = *(u16 *)skb[12]               r1 = r6                          w2 = 12
//!                                    r3 = r10                         r3 += -8
//!                                    w4 = 2                           call bpf_skb_load_bytes
//!                                    if r0 != 0 goto reject           r0 = *(u16 *)(r10 - 8)
//!                                    r0 = be16 r0
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

use super::form::{EbpfForm, Ends};
use super::frame::{BUFFER, Numbers};
use super::hook::{EbpfError, Hook};
use super::lookup::{LookupRegisters, Words, lookup, lookup_words};
use super::text::{self, Text};
use crate::allocate::{Allocation, Home, Pool, allocate};
use crate::language::Binary;
use crate::program::{Comparison, End, LONGEST, Operand, Operation, Program, Register};
use crate::simplify::simplify;
use crate::steps::Label;
use crate::tables::Table;

/// Registers for values. `r0`, `r1`, `r2` and `r5` are working space.
const POOL: Pool<u8> = Pool { registers: &[3, 4, 7, 8, 9], kept: Some(&[7, 8, 9]), scratch: 0 };
/// Where the context has the packet's length (`struct __sk_buff`).
const LENGTH: u32 = 0;

/// How a field is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// By the instruction of classic BPF.
    Instruction,
    /// By `bpf_skb_load_bytes`.
    Helper,
}

struct LoadEmitter<'a> {
    program: &'a Program,
    hook: Hook,
    load: Load,
    allocation: Allocation<u8>,
    /// Places for those that no register has.
    numbers: Numbers,
    /// Where values of the block are.
    local: FxHashMap<Register, Home<u8>>,
    /// No number in the register is greater.
    greatest: FxHashMap<Register, u32>,
    /// Registers that were compared with 0 in the block.
    not_zero: FxHashSet<Register>,
    text: Text,
}

/// The listing of a program.
pub(super) fn assembly(program: &Program, form: &EbpfForm, hook: Hook) -> Result<String, EbpfError> {
    let program = &simplify(&program.with_checked_loads());
    let allocation = allocate(program, POOL);
    let numbers = Numbers::behind_loads(program);
    if allocation.slots > numbers.count() {
        let text = "the filter keeps more numbers at a time than a program's stack holds";
        return Err(EbpfError::Unsupported(text.to_owned()));
    }
    let ends = form.ends(program.predicates);
    let mut emitter = LoadEmitter {
        program,
        hook,
        load: if ends.may_be_by_load(form) { Load::Instruction } else { Load::Helper },
        allocation,
        numbers,
        local: FxHashMap::default(),
        greatest: greatest(program),
        not_zero: FxHashSet::default(),
        text: Text::new(),
    };
    emitter.text.line("r6 = r1");
    emitter.text.note(program.predicates, ends);
    // What only packets reach that are rejected on their way is not there: the verifier takes no such code.
    let mut is_reached = vec![false; program.blocks.len()];
    is_reached[0] = true;
    for (i, block) in program.blocks.iter().enumerate() {
        if !is_reached[i] {
            continue;
        }
        emitter.text.block(i);
        emitter.local.clear();
        emitter.not_zero.clear();
        for (at, operation) in block.operations.iter().enumerate() {
            emitter.operation(operation, emitter.allocation.writes[i][at], ends)?;
        }
        emitter.end(&block.end, ends)?;
        if !emitter.text.is_over {
            block.end.successors().iter().for_each(|next| is_reached[next.0] = true);
        }
    }
    emitter.text.finish(ends, vec![format!("r{} = *(u32 *)(r6 + {LENGTH})", text::LENGTH)])
}

/// The greatest number that each register may hold.
fn greatest(program: &Program) -> FxHashMap<Register, u32> {
    let mut greatest: FxHashMap<Register, u32> = FxHashMap::default();
    for operation in program.blocks.iter().flat_map(|b| &b.operations) {
        let Some(to) = operation.writes() else { continue };
        let most = match operation {
            Operation::Constant { n, .. } => *n,
            Operation::HeaderLength { .. } => 60,
            Operation::Load { size: 1, .. } => 0xff,
            Operation::Load { size: 2, .. } => 0xffff,
            _ => u32::MAX,
        };
        let known = greatest.entry(to).or_insert(most);
        *known = most.max(*known);
    }
    greatest
}

impl LoadEmitter<'_> {
    fn home(&self, r: Register) -> Home<u8> {
        // What is read was written on every way, so that it has a home.
        let home = self.allocation.shared.get(&r).or_else(|| self.local.get(&r));
        *home.unwrap_or(&Home::Register(POOL.scratch))
    }

    fn slot(&self, n: u32) -> String {
        format!("*(u32 *)(r10 - {})", self.numbers.place(n))
    }

    /// The machine register that holds a number: `scratch` if it is on the stack.
    fn read(&mut self, r: Register, scratch: u8) -> u8 {
        match self.home(r) {
            Home::Register(at) => at,
            Home::Slot(n) => {
                self.text.line(format!("r{scratch} = {}", self.slot(n)));
                scratch
            }
        }
    }

    /// An operand as it stands in an instruction.
    fn operand(&mut self, operand: Operand, scratch: u8) -> String {
        match operand {
            Operand::Constant(n) => format!("{}", n as i32),
            Operand::Register(r) => format!("w{}", self.read(r, scratch)),
        }
    }

    /// Brings a result to where it belongs.
    fn store(&mut self, home: Home<u8>, from: u8) {
        match home {
            Home::Register(to) if to == from => {}
            Home::Register(to) => self.text.line(format!("w{to} = w{from}")),
            Home::Slot(n) => self.text.line(format!("{} = r{from}", self.slot(n))),
        }
    }

    fn operation(&mut self, operation: &Operation, home: Option<Home<u8>>, ends: Ends) -> Result<(), EbpfError> {
        match operation {
            Operation::Bound { base, end } => self.bound(*base, *end),
            Operation::NotZero { register } => self.not_zero(*register),
            Operation::Note { predicate } => self.text.note(*predicate, ends),
            Operation::Load { base, offset, size, .. } => self.load(*base, *offset, *size),
            Operation::HeaderLength { offset, .. } => {
                self.load(None, *offset, 1);
                self.text.line("w0 &= 15");
                self.text.line("w0 <<= 2");
            }
            Operation::Binary { op: Binary::Div | Binary::Mod, b, .. } => match b {
                Operand::Constant(0) => self.text.reject_all(),
                Operand::Constant(_) => {}
                Operand::Register(b) => self.not_zero(*b),
            },
            _ => {}
        }
        let (Some(to), Some(home)) = (operation.writes(), home) else { return Ok(()) };
        let work = match home {
            Home::Register(to) => to,
            Home::Slot(_) => POOL.scratch,
        };
        let from = self.computed(operation, work)?;
        self.store(home, from);
        self.local.insert(to, home);
        Ok(())
    }

    /// Computes a number, mostly in `work`; where it is then.
    fn computed(&mut self, operation: &Operation, work: u8) -> Result<u8, EbpfError> {
        match operation {
            Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. } => {}
            Operation::Load { .. } | Operation::HeaderLength { .. } => return Ok(POOL.scratch),
            Operation::Constant { n, .. } => self.text.line(format!("w{work} = {}", *n as i32)),
            Operation::Copy { from, .. } => return Ok(self.read(*from, work)),
            Operation::Length { .. } => self.text.line(format!("r{work} = *(u32 *)(r6 + {LENGTH})")),
            Operation::Ancillary { what, .. } => {
                let offset = self.hook.offset_of(*what)?;
                self.text.line(format!("r{work} = *(u32 *)(r6 + {offset})"));
            }
            Operation::Negate { a, .. } => {
                self.bring(Operand::Register(*a), work);
                self.text.line(format!("w{work} = -w{work}"));
            }
            Operation::Binary { op, a, b, .. } => return Ok(self.binary(*op, *a, *b, work)),
            Operation::IsGreater { a, b, .. } => {
                let a = self.brought(*a, 1);
                let b = self.operand(*b, 2);
                self.text.is_greater(POOL.scratch, a, &b);
                return Ok(POOL.scratch);
            }
        }
        Ok(work)
    }

    /// Brings a number to a register, which is then changed.
    fn bring(&mut self, operand: Operand, to: u8) {
        match operand {
            Operand::Constant(n) => self.text.line(format!("w{to} = {}", n as i32)),
            Operand::Register(r) => {
                let from = self.read(r, to);
                self.store(Home::Register(to), from);
            }
        }
    }

    /// The register that holds an operand: `scratch` if it is in none.
    fn brought(&mut self, operand: Operand, scratch: u8) -> u8 {
        match operand {
            Operand::Constant(_) => {
                self.bring(operand, scratch);
                scratch
            }
            Operand::Register(r) => self.read(r, scratch),
        }
    }

    fn binary(&mut self, op: Binary, a: Operand, b: Operand, work: u8) -> u8 {
        let second = self.operand(b, 1);
        // The first operand must not come to where the second is.
        let work = if second == format!("w{work}") && a != b { POOL.scratch } else { work };
        self.bring(a, work);
        self.text.arithmetic(op, work, b, &second);
        work
    }

    fn not_zero(&mut self, register: Register) {
        if self.not_zero.insert(register) {
            let r = self.read(register, 1);
            self.text.reject_if(format!("w{r} == 0"));
        }
    }

    /// Rejects a packet that does not reach so far.
    fn bound(&mut self, base: Option<Register>, end: u64) {
        if end > LONGEST {
            self.text.reject_all();
            return;
        }
        self.text.line(format!("r2 = *(u32 *)(r6 + {LENGTH})"));
        match base {
            None => self.text.reject_if(format!("w2 < {end}")),
            Some(base) => {
                let base = self.read(base, 1);
                if base != 1 {
                    self.text.line(format!("r1 = r{base}"));
                }
                self.text.line(format!("r1 += {end}"));
                self.text.reject_if("r1 > r2");
            }
        }
    }

    /// Reads a field into `r0`, in the machine's byte order.
    fn load(&mut self, base: Option<Register>, offset: u32, size: u8) {
        let Some(most) = LONGEST.checked_sub(u64::from(offset) + u64::from(size)) else {
            self.text.reject_all();
            return;
        };
        let bits = u32::from(size) * 8;
        let base = base.map(|base| {
            let at = self.read(base, 1);
            if self.greatest.get(&base).is_none_or(|n| u64::from(*n) > most) {
                self.text.reject_if(format!("w{at} > {most}"));
            }
            at
        });
        match (self.load, base) {
            (Load::Instruction, None) => self.text.line(format!("r0 = *(u{bits} *)skb[{offset}]")),
            (Load::Instruction, Some(base)) => self.text.line(format!("r0 = *(u{bits} *)skb[r{base} + {offset}]")),
            (Load::Helper, base) => {
                match base {
                    None => self.text.line(format!("w2 = {offset}")),
                    Some(base) => {
                        self.text.line(format!("w2 = w{base}"));
                        self.text.line(format!("w2 += {offset}"));
                    }
                }
                self.text.line("r1 = r6");
                self.text.line("r3 = r10");
                self.text.line(format!("r3 += -{BUFFER}"));
                self.text.line(format!("w4 = {size}"));
                self.text.line("call bpf_skb_load_bytes");
                self.text.reject_if("r0 != 0");
                self.text.line(format!("r0 = *(u{bits} *)(r10 - {BUFFER})"));
                if size > 1 {
                    self.text.line(format!("r0 = be{bits} r0"));
                }
            }
        }
    }

    fn end(&mut self, end: &End, ends: Ends) -> Result<(), EbpfError> {
        match end {
            End::Accept => self.text.verdict(true, ends),
            End::Reject => self.text.verdict(false, ends),
            End::Goto(to) => self.text.goto(Label::Block(*to)),
            End::Branch { a, comparison, yes, no } => {
                let left = self.read(*a, 1);
                let (symbol, right) = match comparison {
                    Comparison::Equal(b) => ("==", *b),
                    Comparison::Greater(b) => (">", *b),
                    Comparison::AtLeast(b) => (">=", *b),
                    Comparison::AnyBit(mask) => ("&", Operand::Constant(*mask)),
                };
                let right = self.operand(right, 2);
                self.text.branch(&format!("w{left} {symbol} {right}"), Label::Block(*yes), Label::Block(*no));
            }
            End::Lookup { keys, table, yes, no } => {
                let (yes, no, free) = (Label::Block(*yes), Label::Block(*no), [5, 1, 2]);
                let program = self.program;
                match &program.tables[*table] {
                    Table::Tuples(tuples) => {
                        let mut words = HeldWords { emitter: self, keys };
                        lookup_words(&mut words, (*table, tuples), free, yes, no)?;
                    }
                    one => {
                        let registers = LookupRegisters { number: self.read(keys[0], 0), free };
                        lookup(&mut self.text, (*table, one), registers, yes, no);
                    }
                }
            }
            End::Member { map, key, yes, no } => {
                let map = &self.program.maps[*map];
                let mut left: u32 = map.field.words().iter().map(|bytes| u32::from(*bytes)).sum();
                self.text.prefix_length(map);
                for (register, bytes) in key.iter().zip(map.field.words()) {
                    let (at, bits) = (self.read(*register, 1), u32::from(*bytes) * 8);
                    // As it stands in the packet.
                    self.text.line(format!("r0 = r{at}"));
                    self.text.line(format!("r0 = be{bits} r0"));
                    self.text.line(format!("*(u{bits} *)(r10 - {left}) = r0"));
                    left -= u32::from(*bytes);
                }
                self.text.lookup_elem(&map.name, map.key_size());
                self.text.branch("r0 == 0", Label::Block(*no), Label::Block(*yes));
            }
            End::Chain { .. } => return Err(EbpfError::chain()),
        }
        Ok(())
    }
}

/// The words of a key, where the allocation has them.
struct HeldWords<'a, 'b> {
    emitter: &'a mut LoadEmitter<'b>,
    keys: &'a [Register],
}

impl Words for HeldWords<'_, '_> {
    fn text(&mut self) -> &mut Text {
        &mut self.emitter.text
    }

    fn word(&mut self, i: usize) -> Result<u8, EbpfError> {
        Ok(self.emitter.read(self.keys[i], POOL.scratch))
    }

    fn fork(&mut self) {}
}
