//! Flat memory and calls answered by callbacks: the world of a counterexample.

use bpf_isa::{Imm64Kind, Size};
use bpf_program::{ByteOrder, Link, Op};
use rustc_hash::FxHashMap;

use super::{Cpu, Fault, Host, Next};

/// Memory in which every address exists. A byte has its initial value until it is written.
pub struct FlatMemory<'a> {
    initial: Box<dyn FnMut(u64) -> u8 + 'a>,
    order: ByteOrder,
    written: FxHashMap<u64, u8>,
}

impl<'a> FlatMemory<'a> {
    /// Memory with these initial bytes, little-endian.
    pub fn new(initial: impl FnMut(u64) -> u8 + 'a) -> FlatMemory<'a> {
        FlatMemory { initial: Box::new(initial), order: ByteOrder::Little, written: FxHashMap::default() }
    }

    /// The same memory of a machine with this byte order.
    #[must_use]
    pub fn in_order(self, order: ByteOrder) -> FlatMemory<'a> {
        FlatMemory { order, ..self }
    }

    /// The byte at an address now.
    pub fn byte(&mut self, address: u64) -> u8 {
        match self.written.get(&address) {
            Some(b) => *b,
            None => (self.initial)(address),
        }
    }

    /// Sets the byte at an address.
    pub fn set_byte(&mut self, address: u64, v: u8) {
        self.written.insert(address, v);
    }

    /// The initial byte at an address, whatever was written since.
    pub fn initial_byte(&mut self, address: u64) -> u8 {
        (self.initial)(address)
    }

    /// Every address written so far with its value now, ascending. It may be the initial value.
    pub fn written(&self) -> Vec<(u64, u8)> {
        let mut all: Vec<(u64, u8)> = self.written.iter().map(|(a, v)| (*a, *v)).collect();
        all.sort_unstable();
        all
    }
}

type OnCall<'a> = dyn FnMut(&Op, &mut Cpu, &mut FlatMemory<'a>) -> Result<(), Fault> + 'a;
type OnLoad<'a> = dyn FnMut(u64, Size) -> Option<u64> + 'a;
type OnAddress<'a> = dyn FnMut(Imm64Kind, u64, Option<&Link>) -> Result<u64, Fault> + 'a;

/// A [`Host`] that knows nothing: callbacks say what memory holds at first, what calls do and what symbolic
/// addresses are. The stack is the interpreter's: [`Cpu::frame_mut`] sets it up.
pub struct Oracle<'a> {
    /// Everything but the stack.
    pub memory: FlatMemory<'a>,
    on_call: Box<OnCall<'a>>,
    on_load: Box<OnLoad<'a>>,
    on_address: Box<OnAddress<'a>>,
}

impl<'a> Oracle<'a> {
    /// A world with these initial bytes, in which calls and symbolic addresses have no model.
    pub fn new(initial_byte: impl FnMut(u64) -> u8 + 'a) -> Oracle<'a> {
        Oracle {
            memory: FlatMemory::new(initial_byte),
            on_call: Box::new(|op, _, _| Err(Fault::Unmodelled(format!("`{}`", op.insn)))),
            on_load: Box::new(|_, _| None),
            on_address: Box::new(|kind, _, _| Err(Fault::Unmodelled(format!("an address of kind {kind:?}")))),
        }
    }

    /// The same world of a machine with this byte order.
    #[must_use]
    pub fn in_order(self, order: ByteOrder) -> Oracle<'a> {
        Oracle { memory: self.memory.in_order(order), ..self }
    }

    /// Calls do this: the arguments are in r1 … r5 of the [`Cpu`] ([`Cpu::arg`]), the callback sets r0 and may
    /// change memory of both kinds ([`Cpu::write`] takes care of which).
    #[must_use]
    pub fn on_call(
        mut self,
        f: impl FnMut(&Op, &mut Cpu, &mut FlatMemory<'a>) -> Result<(), Fault> + 'a,
    ) -> Oracle<'a> {
        self.on_call = Box::new(f);
        self
    }

    /// Loads for which this returns something do not read memory: context fields. The value is truncated to the
    /// width of the load, so pointers in 32-bit fields must be below 4 GiB.
    #[must_use]
    pub fn on_load(mut self, f: impl FnMut(u64, Size) -> Option<u64> + 'a) -> Oracle<'a> {
        self.on_load = Box::new(f);
        self
    }

    /// `ld_imm64` of anything but a plain number gives this.
    #[must_use]
    pub fn on_address(mut self, f: impl FnMut(Imm64Kind, u64, Option<&Link>) -> Result<u64, Fault> + 'a) -> Oracle<'a> {
        self.on_address = Box::new(f);
        self
    }
}

impl Host for FlatMemory<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.order
    }

    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        for (i, b) in out.iter_mut().enumerate() {
            *b = self.byte(address.wrapping_add(i as u64));
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        for (i, b) in bytes.iter().enumerate() {
            self.set_byte(address.wrapping_add(i as u64), *b);
        }
        Ok(())
    }

    fn call(&mut self, _: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        Err(Fault::Unmodelled(format!("`{}`", op.insn)))
    }

    fn address_of(&mut self, kind: Imm64Kind, _: u64, _: Option<&Link>) -> Result<u64, Fault> {
        Err(Fault::Unmodelled(format!("an address of kind {kind:?}")))
    }
}

impl Host for Oracle<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.memory.order
    }

    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.memory.read(address, out)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.write(address, bytes)
    }

    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        match (self.on_load)(address, size) {
            Some(v) => Ok(v),
            None => self.memory.load(address, size),
        }
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        (self.on_call)(op, cpu, &mut self.memory).map(|()| Next::Done)
    }

    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault> {
        (self.on_address)(kind, imm, link)
    }
}
