//! Reads machine code with an independent disassembler and follows it by abstract interpretation.
//!
//! A value is a symbol plus a number, and is at most `most`. Symbols are numbers that are not known; where two ways meet with
//! different values, the value is a new symbol. Known of a packet: how many bytes it has at least, from its start and from symbols
//! on. All jumps go forward, so that one pass in the order of addresses sees every way. [`check`] panics unless
//! - every instruction decodes and every jump goes forward to the start of an instruction;
//! - every read of the packet lies behind comparisons which show that it is inside;
//! - every read of a table is inside the image, behind the code; every write is to the own stack frame;
//! - the stack pointer and the registers that callers want back are restored; calls go to the one function that may be called,
//!   with the stack aligned.

use std::collections::{BTreeMap, HashMap};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

/// What a number is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Symbol {
    Zero,
    Packet,
    Captured,
    Known,
    /// What a register held when the code was entered.
    Entry(usize),
    /// The stack pointer at the entry.
    Stack,
    /// A place in the image.
    Image,
    Fresh(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    symbol: Symbol,
    plus: i64,
    most: u64,
}

/// What the last comparison compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flags {
    Other,
    /// The captured length with a number.
    Captured(u64),
    /// A sum with the captured length.
    SumWithCaptured(Value),
    /// The lower half of a register with a number.
    Number(usize, u64),
}

#[derive(Clone, Debug)]
struct State {
    registers: [Value; 16],
    /// By the distance from the stack pointer at the entry.
    stack: HashMap<i64, Value>,
    from_start: u64,
    from_symbol: HashMap<Symbol, u64>,
    flags: Flags,
}

struct Checker<'a> {
    image: &'a [u8],
    instructions: usize,
    callee: u64,
    fresh: usize,
    states: BTreeMap<u64, State>,
    packet_reads: usize,
}

/// Checks code; how many reads of the packet it has.
pub(super) fn check(image: &[u8], instructions: usize, callee: u64) -> usize {
    let mut checker = Checker { image, instructions, callee, fresh: 0, states: BTreeMap::new(), packet_reads: 0 };
    checker.run();
    checker.packet_reads
}

const RSP: usize = 4;

fn number(r: Register) -> Option<usize> {
    r.is_gpr().then(|| r.full_register().number())
}

impl Checker<'_> {
    fn fresh(&mut self, most: u64) -> Value {
        self.fresh += 1;
        Value { symbol: Symbol::Fresh(self.fresh), plus: 0, most }
    }

    fn entry() -> State {
        let mut registers: [Value; 16] =
            std::array::from_fn(|i| Value { symbol: Symbol::Entry(i), plus: 0, most: u64::MAX });
        registers[7].symbol = Symbol::Packet;
        registers[6].symbol = Symbol::Captured;
        registers[1].symbol = Symbol::Known;
        registers[RSP].symbol = Symbol::Stack;
        let from_symbol = HashMap::new();
        State { registers, stack: HashMap::new(), from_start: 0, from_symbol, flags: Flags::Other }
    }

    fn run(&mut self) {
        let mut decoder = Decoder::with_ip(64, &self.image[..self.instructions], 0, DecoderOptions::NONE);
        let mut factory = InstructionInfoFactory::new();
        let mut next = Some(Checker::entry());
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let at = instruction.ip();
            assert!(instruction.code() != Code::INVALID, "at {at:#x}: no instruction");
            let jumped = self.states.remove(&at);
            if let Some((skipped, _)) = self.states.first_key_value() {
                assert!(*skipped > at, "a jump goes into an instruction, to {skipped:#x}");
            }
            let state = match (next.take(), jumped) {
                (Some(a), Some(b)) => self.meet(a, &b),
                (Some(state), None) | (None, Some(state)) => state,
                // Not reached: what follows a jump and is jumped to by nothing.
                (None, None) => continue,
            };
            next = self.step(&instruction, state, &mut factory);
        }
        assert!(next.is_none(), "the code's end is run over");
        assert!(self.states.is_empty(), "jumps leave the code");
    }

    fn meet(&mut self, mut a: State, b: &State) -> State {
        assert_eq!(a.registers[RSP], b.registers[RSP], "one stack pointer on all ways");
        for i in 0..16 {
            a.registers[i] = self.meet_values(a.registers[i], b.registers[i]);
        }
        let keys: Vec<i64> = a.stack.keys().copied().collect();
        for key in keys {
            match b.stack.get(&key) {
                Some(other) => {
                    let value = self.meet_values(a.stack[&key], *other);
                    a.stack.insert(key, value);
                }
                None => {
                    a.stack.remove(&key);
                }
            }
        }
        a.from_start = a.from_start.min(b.from_start);
        a.from_symbol.retain(|symbol, end| {
            *end = (*end).min(b.from_symbol.get(symbol).copied().unwrap_or(0));
            *end > 0
        });
        a.flags = Flags::Other;
        a
    }

    fn meet_values(&mut self, a: Value, b: Value) -> Value {
        if (a.symbol, a.plus) == (b.symbol, b.plus) {
            return Value { most: a.most.max(b.most), ..a };
        }
        self.fresh(a.most.max(b.most))
    }

    fn step(&mut self, i: &Instruction, mut state: State, factory: &mut InstructionInfoFactory) -> Option<State> {
        self.memory(i, &state, factory);
        match i.flow_control() {
            FlowControl::Return => {
                assert_eq!(state.registers[RSP], Checker::entry().registers[RSP], "the stack pointer is restored");
                for saved in [3, 5, 12, 13, 14, 15] {
                    assert_eq!(
                        state.registers[saved],
                        Checker::entry().registers[saved],
                        "register {saved} is restored"
                    );
                }
                let verdict = state.registers[0];
                assert!(verdict.symbol == Symbol::Zero && matches!(verdict.plus, 0 | 1), "a verdict: {verdict:?}");
                None
            }
            FlowControl::UnconditionalBranch => {
                self.jump(i, state);
                None
            }
            FlowControl::ConditionalBranch => {
                let mut taken = state.clone();
                taken.flags = Flags::Other;
                self.jump(i, taken);
                Checker::passed(i.mnemonic(), &mut state);
                Some(state)
            }
            FlowControl::IndirectCall => {
                self.call(i, &mut state);
                Some(state)
            }
            FlowControl::Next => {
                self.effect(i, &mut state, factory);
                Some(state)
            }
            other => panic!("{other:?} at {:#x}", i.ip()),
        }
    }

    fn jump(&mut self, i: &Instruction, state: State) {
        let to = i.near_branch_target();
        assert!(to >= i.next_ip() && to < self.instructions as u64, "a jump from {:#x} to {to:#x}", i.ip());
        let state = match self.states.remove(&to) {
            Some(other) => self.meet(state, &other),
            None => state,
        };
        self.states.insert(to, state);
    }

    /// What a jump that was not taken tells.
    fn passed(jump: Mnemonic, state: &mut State) {
        match (jump, state.flags) {
            (Mnemonic::Jb, Flags::Captured(n)) => state.from_start = state.from_start.max(n),
            (Mnemonic::Ja, Flags::SumWithCaptured(Value { symbol: Symbol::Zero, plus, .. })) => {
                state.from_start = state.from_start.max(plus as u64);
            }
            (Mnemonic::Ja, Flags::SumWithCaptured(sum)) if sum.plus >= 0 => {
                let known = state.from_symbol.entry(sum.symbol).or_default();
                *known = (*known).max(sum.plus as u64);
            }
            (Mnemonic::Jae, Flags::Number(r, n)) => {
                state.registers[r].most = state.registers[r].most.min(n.saturating_sub(1));
            }
            _ => {}
        }
    }

    fn call(&mut self, i: &Instruction, state: &mut State) {
        let to = state.registers[number(i.op0_register()).expect("a register")];
        assert_eq!((to.symbol, to.plus as u64), (Symbol::Zero, self.callee), "a call of the one function");
        assert_eq!((state.registers[7].symbol, state.registers[6].symbol), (Symbol::Packet, Symbol::Captured));
        // 8 below a multiple of 16 at the entry.
        assert_eq!((state.registers[RSP].plus - 8) % 16, 0, "the stack is aligned");
        for clobbered in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
            state.registers[clobbered] = self.fresh(u64::MAX);
        }
        state.registers[0].most = u64::from(u32::MAX);
        state.flags = Flags::Other;
    }

    /// All memory that an instruction reads or writes may be read or written.
    fn memory(&mut self, i: &Instruction, state: &State, factory: &mut InstructionInfoFactory) {
        if matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Ret) {
            return;
        }
        for used in factory.info(i).used_memory() {
            let size = used.memory_size().size() as u64;
            if used.access() == OpAccess::NoMemAccess {
                continue;
            }
            let base = state.registers[number(used.base()).expect("a base")];
            let index = number(used.index()).map(|r| state.registers[r]);
            let displacement = used.displacement() as i64;
            let reads_only = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            match base.symbol {
                Symbol::Stack => {
                    let at = base.plus + displacement;
                    let lowest = state.registers[RSP].plus - if i.mnemonic() == Mnemonic::Push { 8 } else { 0 };
                    assert!(
                        index.is_none() && at >= lowest && at + size as i64 <= 0,
                        "{i} at {:#x}: stack {at}",
                        i.ip()
                    );
                }
                Symbol::Packet => {
                    assert!(reads_only && base.plus == 0, "{i} at {:#x}", i.ip());
                    self.packet_reads += 1;
                    Checker::packet_read(i, state, index, displacement, size);
                }
                Symbol::Image => {
                    let furthest = index.map_or(0, |v| v.most) * used.scale() as u64;
                    let at = base.plus as u64 + displacement as u64;
                    let inside = at >= self.instructions as u64 && at + furthest + size <= self.image.len() as u64;
                    assert!(reads_only && inside, "{i} at {:#x}: {at} + {furthest} of {}", i.ip(), self.image.len());
                }
                Symbol::Known => {
                    let at = base.plus + displacement;
                    assert!(reads_only && index.is_none() && at >= 0 && at + size as i64 <= 16, "{i} at {:#x}", i.ip());
                }
                _ => panic!("{i} at {:#x}: memory that is not the filter's: {base:?}", i.ip()),
            }
        }
    }

    fn packet_read(i: &Instruction, state: &State, index: Option<Value>, displacement: i64, size: u64) {
        let index = index.unwrap_or(Value { symbol: Symbol::Zero, plus: 0, most: 0 });
        let start = index.plus + displacement;
        let known = match index.symbol {
            Symbol::Zero => state.from_start,
            symbol => state.from_symbol.get(&symbol).copied().unwrap_or(0),
        };
        assert!(start >= 0, "{i} at {:#x}: before the packet", i.ip());
        assert!(start as u64 + size <= known, "{i} at {:#x}: {known} bytes are known, not {start} + {size}", i.ip());
    }

    /// What an instruction without jumps does to the state.
    fn effect(&mut self, i: &Instruction, state: &mut State, factory: &mut InstructionInfoFactory) {
        let register = |op: u32| (i.op_kind(op) == OpKind::Register).then(|| number(i.op_register(op))).flatten();
        let is_immediate = i.op_count() > 0 && i.op_count() == 2 && i.try_immediate(1).is_ok();
        let immediate = if is_immediate { i.immediate(1) } else { 0 };
        let is_wide = i.op0_register().size() == 8;
        let to = register(0);
        let old = to.map(|r| state.registers[r]);
        let from = (i.op_count() == 2).then(|| register(1)).flatten().map(|r| state.registers[r]);
        let slot =
            (i.memory_base() == Register::RSP).then(|| state.registers[RSP].plus + i.memory_displacement64() as i64);
        if i.rflags_modified() != 0 {
            state.flags = Flags::Other;
        }
        let narrow = u64::from(u32::MAX);
        let value = match (i.mnemonic(), to) {
            (Mnemonic::Push, Some(r)) => {
                state.registers[RSP].plus -= 8;
                state.stack.insert(state.registers[RSP].plus, state.registers[r]);
                return;
            }
            (Mnemonic::Pop, Some(_)) => {
                let value = state.stack.get(&state.registers[RSP].plus).copied();
                state.registers[RSP].plus += 8;
                value
            }
            (Mnemonic::Mov, None) => {
                let value = match from {
                    Some(value) => value,
                    None => Value { symbol: Symbol::Zero, plus: immediate as i64, most: immediate },
                };
                let value = if value.most > narrow { self.fresh(narrow) } else { value };
                state.stack.insert(slot.expect("a place in the stack"), value);
                return;
            }
            (Mnemonic::Mov, Some(_)) if is_immediate => {
                Some(Value { symbol: Symbol::Zero, plus: immediate as i64, most: immediate })
            }
            (Mnemonic::Mov, Some(_)) => {
                let value = slot.map_or(from, |at| state.stack.get(&at).copied());
                value.filter(|v| is_wide || v.most <= narrow)
            }
            (Mnemonic::Lea, Some(_)) if i.is_ip_rel_memory_operand() => {
                let plus = i.ip_rel_memory_address() as i64;
                Some(Value { symbol: Symbol::Image, plus, most: u64::MAX })
            }
            (Mnemonic::Lea, Some(_)) => {
                assert!(is_wide && i.memory_index() == Register::None);
                let base = state.registers[number(i.memory_base()).expect("a base")];
                let sums = matches!(base.symbol, Symbol::Zero) || base.most <= narrow;
                sums.then(|| Value { plus: base.plus + i.memory_displacement64() as i64, most: u64::MAX, ..base })
            }
            (Mnemonic::Add | Mnemonic::Sub, Some(r)) if is_wide && is_immediate => {
                let n = if i.mnemonic() == Mnemonic::Add { immediate as i64 } else { -(immediate as i64) };
                // A sum of a number of 32 bits does not wrap; the same one may be added to again.
                let value = state.registers[r];
                Some(Value { plus: value.plus + n, most: u64::MAX, ..value })
            }
            (Mnemonic::Xor, Some(r)) if register(1) == Some(r) => {
                Some(Value { symbol: Symbol::Zero, plus: 0, most: 0 })
            }
            (Mnemonic::Movzx, Some(_)) => {
                let size =
                    if i.memory_base() == Register::None { i.op1_register().size() } else { i.memory_size().size() };
                Some(self.fresh((1 << (8 * size)) - 1))
            }
            (Mnemonic::Shr, Some(_)) if is_immediate => {
                let most = old.map_or(narrow, |v| v.most.min(narrow)) >> immediate;
                Some(self.fresh(most))
            }
            (Mnemonic::And, Some(_)) if is_immediate => {
                let most = old.map_or(narrow, |v| v.most.min(narrow)).min(immediate & narrow);
                Some(self.fresh(most))
            }
            (Mnemonic::Cmp, _) => {
                state.flags = Checker::compared(i, state, is_wide, is_immediate.then_some(immediate));
                return;
            }
            _ => None,
        };
        match (value, to) {
            (Some(value), Some(to)) => state.registers[to] = value,
            _ => self.forget_written(i, state, factory),
        }
    }

    fn compared(i: &Instruction, state: &State, is_wide: bool, immediate: Option<u64>) -> Flags {
        let value = number(i.op0_register()).map(|r| state.registers[r]);
        let other = number(i.op1_register()).map(|r| state.registers[r].symbol);
        match (is_wide, value, immediate) {
            (true, Some(Value { symbol: Symbol::Captured, plus: 0, .. }), Some(n)) => Flags::Captured(n),
            (true, Some(sum), None) if other == Some(Symbol::Captured) => Flags::SumWithCaptured(sum),
            (false, Some(_), Some(n)) => Flags::Number(number(i.op0_register()).expect("a register"), n & 0xffff_ffff),
            _ => Flags::Other,
        }
    }

    /// Registers that an instruction writes hold what is not known; of 32 bits if it writes so many.
    fn forget_written(&mut self, i: &Instruction, state: &mut State, factory: &mut InstructionInfoFactory) {
        for used in factory.info(i).used_registers() {
            let is_written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            if let (true, Some(r)) = (is_written, number(used.register())) {
                assert!(r != RSP, "{i} at {:#x}", i.ip());
                // What writes 32 bits clears the others; what writes fewer leaves them.
                let most = match i.op0_register().size() {
                    8 => u64::MAX,
                    1 | 2 => state.registers[r].most.max(0xffff),
                    _ => u64::from(u32::MAX),
                };
                state.registers[r] = self.fresh(most);
            }
        }
    }
}
