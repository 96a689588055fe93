//! The concrete [`Machine`]: functions run on registers, stack and call frames.

use std::sync::Arc;

use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, Size};
use bpf_program::{ByteOrder, Function, Link, Op, Symbol, Terminator};
use rustc_hash::FxHashMap;

use super::bv::concrete_domain;
use super::cpu::{Cpu, FRAMES, STACK_BYTES};
use super::trail::{Step, Trail};
use super::{Bv, Event, Fault, Host, Next};
use crate::{Machine, atomic_new, branch, exec};

/// How often `may_goto` falls through per frame before it jumps (`BPF_MAX_LOOPS`).
pub const MAY_GOTO_BUDGET: u64 = 8 << 20;
/// Addresses of the functions whose address is taken.
const FUNCTIONS: u64 = 0xffff_ffff_a000_0000;
const FUNCTION_STEP: u64 = 16;

/// How an execution ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The return value. A subprogram may return nothing: then it is 0.
    pub r0: u64,
    /// Instructions executed; `goto` is not counted, since a graph does not tell it from falling through.
    pub steps: u64,
}

/// Why [`exec`](crate::exec) stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A legacy packet load failed: the function returns 0.
    Exit,
    /// The execution is not possible.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(f: Fault) -> Self {
        Stop::Fault(f)
    }
}

/// A processor in a world.
#[derive(Clone, Debug)]
pub struct Interp<H> {
    /// Registers and stack.
    pub cpu: Cpu,
    /// The rest.
    pub host: H,
    /// How often `may_goto` falls through in each frame.
    pub may_goto_budget: u64,
    functions: Vec<Arc<Function>>,
    by_name: FxHashMap<String, usize>,
    fuel: u64,
    steps: u64,
    trail: Trail,
}

impl<H: Host> Interp<H> {
    /// A processor of which only r10 has a value.
    pub fn new(host: H) -> Interp<H> {
        Interp::with_cpu(Cpu::default(), host)
    }

    /// A processor in the given state.
    pub fn with_cpu(cpu: Cpu, host: H) -> Interp<H> {
        Interp {
            cpu,
            host,
            may_goto_budget: MAY_GOTO_BUDGET,
            functions: vec![],
            by_name: FxHashMap::default(),
            fuel: 0,
            steps: 0,
            trail: Trail::default(),
        }
    }

    /// Makes a function callable by its name and gives it an address. Calls to functions that are not here go
    /// to the host.
    pub fn add_function(&mut self, f: impl Into<Arc<Function>>) {
        let f = f.into();
        self.by_name.insert(f.name.clone(), self.functions.len());
        self.functions.push(f);
    }

    /// Notes from here on where runs go.
    pub fn leave_trail(&mut self) {
        self.trail.begin();
    }

    /// Where they went since then.
    pub fn take_trail(&mut self) -> Vec<Step> {
        self.trail.take()
    }

    /// Executes a function from its entry until it exits, in at most `fuel` steps.
    ///
    /// # Errors
    /// What stops it short of its `exit`.
    pub fn run(&mut self, f: &Function, fuel: u64) -> Result<Outcome, Fault> {
        self.can_run(f)?;
        self.fuel = fuel;
        self.steps = 0;
        self.trail.note(Step::Enter(None));
        let r0 = self.walk(f)?;
        self.trail.note(Step::Leave);
        let r0 = match r0 {
            Some(r0) => r0,
            None if f.is_called() => 0,
            None => return Err(Fault::Uninitialised(Reg::R0)),
        };
        Ok(Outcome { r0, steps: self.steps })
    }

    /// Whether the world is one of the byte order that a function is for.
    fn can_run(&self, f: &Function) -> Result<(), Fault> {
        if f.byte_order == self.host.byte_order() {
            return Ok(());
        }
        let (is, world) = (f.byte_order.name(), self.host.byte_order().name());
        Err(Fault::Unmodelled(format!("{}, a {is} function, in a {world} world", f.name)))
    }

    /// Executes straight-line instructions.
    ///
    /// # Errors
    /// As [`exec`](crate::exec).
    pub fn run_ops(&mut self, ops: &[Op]) -> Result<(), Stop> {
        // Callees need fuel even where the window itself does not.
        self.fuel = self.fuel.max(1 << 20);
        ops.iter().try_for_each(|op| exec(self, op))
    }

    fn burn(&mut self) -> Result<(), Fault> {
        self.fuel = self.fuel.checked_sub(1).ok_or(Fault::OutOfFuel)?;
        Ok(())
    }

    /// Runs `f` in the current frame and returns r0.
    fn walk(&mut self, f: &Function) -> Result<Option<u64>, Fault> {
        let mut at = f.entry();
        let mut budget = self.may_goto_budget;
        loop {
            let block = f.block(at);
            self.trail.note(Step::Block(at));
            for op in &block.ops {
                self.burn()?;
                self.steps += 1;
                match exec(self, op) {
                    Ok(()) => {}
                    Err(Stop::Exit) => return Ok(Some(0)),
                    Err(Stop::Fault(fault)) => return Err(fault),
                }
            }
            self.burn()?;
            self.steps += u64::from(!matches!(block.term, Terminator::Goto(_)));
            at = match block.term {
                Terminator::Goto(to) => to,
                Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
                    match branch(self, cond, width, dst, src) {
                        Ok(true) => taken,
                        Ok(false) => fall,
                        Err(Stop::Exit) => return Ok(Some(0)),
                        Err(Stop::Fault(fault)) => return Err(fault),
                    }
                }
                Terminator::MayGoto { taken, fall, .. } => match budget.checked_sub(1) {
                    Some(rest) => {
                        budget = rest;
                        fall
                    }
                    None => taken,
                },
                Terminator::Exit { .. } => return Ok(self.cpu.register(Reg::R0)),
            };
        }
    }

    /// Runs a function in a frame of its own; r1 … r5 are its arguments.
    fn enter(&mut self, number: usize) -> Result<(), Fault> {
        let f = self.functions[number].clone();
        self.can_run(&f)?;
        if self.cpu.depth + 1 == FRAMES {
            return Err(Fault::CallDepth);
        }
        let saved = self.cpu.regs;
        self.cpu.depth += 1;
        for r in [Reg::R0, Reg::R6, Reg::R7, Reg::R8, Reg::R9] {
            self.cpu.clear(r);
        }
        let below = STACK_BYTES * self.cpu.depth;
        self.cpu.set(Reg::R10, self.cpu.top.wrapping_sub(below as u64));
        let low = self.cpu.stack.len() - below - STACK_BYTES;
        self.cpu.stack[low..low + STACK_BYTES].fill(0);
        self.trail.note(Step::Enter(Some(number)));
        let r0 = self.walk(&f);
        self.cpu.depth -= 1;
        self.cpu.regs = saved;
        self.cpu.regs[Reg::R0.index()] = r0?;
        self.trail.note(Step::Leave);
        self.forget_arguments();
        Ok(())
    }

    fn forget_arguments(&mut self) {
        for r in bpf_isa::RegSet::ARGS.iter() {
            self.cpu.clear(r);
        }
    }

    /// The function a call's relocation names, if it is here.
    fn callee(&self, op: &Op) -> Option<usize> {
        match (&op.insn, op.link.as_ref()?) {
            (Insn::Call(_), Link { symbol: Symbol::Func { name }, .. }) => self.by_name.get(&**name).copied(),
            _ => None,
        }
    }

    fn function_at(&self, address: u64) -> Result<usize, Fault> {
        let offset = address.wrapping_sub(FUNCTIONS);
        usize::try_from(offset / FUNCTION_STEP)
            .ok()
            .filter(|_| offset.is_multiple_of(FUNCTION_STEP))
            .filter(|i| *i < self.functions.len())
            .ok_or_else(|| Fault::Unmodelled(format!("a call of address {address:#x}")))
    }

    fn call_back(&mut self, function: u64, rounds: impl Iterator<Item = [u64; 5]>) -> Result<(), Fault> {
        let f = self.function_at(function)?;
        let mut ran = 0;
        for args in rounds {
            self.burn()?;
            for (r, v) in bpf_isa::RegSet::ARGS.iter().zip(args) {
                self.cpu.set(r, v);
            }
            self.enter(f)?;
            ran += 1;
            if self.cpu.get(Reg::R0)? != 0 {
                break;
            }
        }
        self.cpu.set(Reg::R0, ran);
        Ok(())
    }
}

concrete_domain!([H: Host] Interp<H>);

impl<H: Host> Machine for Interp<H> {
    type Stop = Stop;

    #[inline]
    fn byte_order(&self) -> ByteOrder {
        self.host.byte_order()
    }

    #[inline]
    fn get(&mut self, r: Reg) -> Result<Bv, Stop> {
        Ok(Bv { bits: 64, v: self.cpu.get(r)? })
    }

    #[inline]
    fn set(&mut self, r: Reg, v: Bv) {
        self.cpu.set(r, v.v);
    }

    #[inline]
    fn load(&mut self, base: &Bv, off: i16, size: Size) -> Result<Bv, Stop> {
        let address = base.v.wrapping_add_signed(off.into());
        let n = size.bytes() as usize;
        let v = match self.cpu.place(address, n, false)? {
            Some(at) => self.host.byte_order().number(&self.cpu.stack[at..at + n]),
            None => self.host.load(address, size)?,
        };
        self.trail.note(Step::Load(v));
        Ok(Bv::new(size.bits(), v))
    }

    #[inline]
    fn store(&mut self, base: &Bv, off: i16, size: Size, v: &Bv, imm: bool) -> Result<(), Stop> {
        let address = base.v.wrapping_add_signed(off.into());
        let n = size.bytes() as usize;
        match self.cpu.place(address, n, true)? {
            Some(at) => {
                let bytes = self.host.byte_order().bytes(v.v, n);
                self.cpu.stack[at..at + n].copy_from_slice(&bytes[..n]);
            }
            None => self.host.store(address, size, v.v, imm)?,
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        op: AtomicOp,
        base: &Bv,
        off: i16,
        size: Size,
        operand: &Bv,
        compare: Option<&Bv>,
    ) -> Result<Bv, Stop> {
        let old = self.load(base, off, size)?;
        let new = atomic_new(self, op, &old, operand, compare);
        self.store(base, off, size, &new, false)?;
        Ok(old)
    }

    fn fence(&mut self, _: &Self::V, _: i16, _: Size, _: Option<&Self::V>) -> Result<(), Stop> {
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Result<(), Stop> {
        if let Some(f) = self.callee(op) {
            return Ok(self.enter(f)?);
        }
        if self.cpu.recording {
            let event = Event::of(&self.cpu, &mut self.host, op);
            self.cpu.trace.push(event);
        }
        self.cpu.clear(Reg::R0);
        match self.host.call(&mut self.cpu, op)? {
            Next::Done => {}
            Next::CallBack { function, rounds } => self.call_back(function, rounds)?,
        }
        self.trail.note(Step::Call(self.cpu.register(Reg::R0)));
        self.forget_arguments();
        Ok(())
    }

    fn legacy_load(&mut self, size: Size, index: Option<&Bv>, imm: i32) -> Result<(), Stop> {
        let context = self.cpu.get(Reg::R6)?;
        // The kernel adds in 64 bits and hands an `int` to `bpf_skb_load_helper_*`.
        let offset = index.map_or(0, |i| i.v as i32).wrapping_add(imm);
        let loaded = self.host.legacy_load(context, offset, size)?;
        self.trail.note(Step::Packet(loaded));
        self.forget_arguments();
        match loaded {
            Some(v) => {
                self.cpu.set(Reg::R0, v);
                Ok(())
            }
            None => Err(Stop::Exit),
        }
    }

    fn load_imm64(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<Bv, Stop> {
        if kind == Imm64Kind::Const && link.is_none() {
            return Ok(Bv { bits: 64, v: imm });
        }
        if let Some(Link { symbol: Symbol::Func { name }, .. }) = link
            && let Some(i) = self.by_name.get(&**name)
        {
            return Ok(Bv { bits: 64, v: FUNCTIONS + *i as u64 * FUNCTION_STEP });
        }
        Ok(Bv { bits: 64, v: self.host.address_of(kind, imm, link)? })
    }

    fn addr_space_cast(&mut self, v: &Bv, imm: u32) -> Result<Bv, Stop> {
        Ok(Bv { bits: 64, v: self.host.addr_space_cast(v.v, imm)? })
    }

    fn core_op(&mut self, op: &Op) -> Result<(), Stop> {
        let insn = self.host.relocate(op)?;
        exec(self, &Op { insn, origin: op.origin, link: None })
    }
}
