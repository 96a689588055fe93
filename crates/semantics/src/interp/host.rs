//! The world around a program, as the interpreter sees it, and the memory that is stack or world.

use bpf_isa::{Imm64Kind, Insn, Size};
use bpf_program::{ByteOrder, Link, Op};

use super::{Cpu, Fault};

/// What the interpreter does after [`Host::call`].
pub enum Next {
    /// The call is over; r0 is set, or is left without a value.
    Done,
    /// Runs a function of the program once per item, with these r1 … r5, until it returns nonzero or the items
    /// end. r0 is then the number of times it ran.
    CallBack {
        /// The function's address.
        function: u64,
        /// The arguments of each round.
        rounds: Box<dyn Iterator<Item = [u64; 5]>>,
    },
}

/// Everything outside the registers and the stack.
pub trait Host {
    /// The order of the bytes of values in memory, here and in the stack.
    fn byte_order(&self) -> ByteOrder {
        ByteOrder::Little
    }

    /// Reads memory. The address is never in the stack.
    ///
    /// # Errors
    /// [`Fault::Access`] if some of the bytes do not exist.
    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// Writes memory. The address is never in the stack.
    ///
    /// # Errors
    /// [`Fault::Access`] if some of the bytes do not exist or are read-only.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// A call that is not into a function the interpreter has. The arguments are in r1 … r5; r0 has no value
    /// until the host gives it one, and r1 … r5 are lost afterwards.
    ///
    /// # Errors
    /// [`Fault::Unmodelled`], or the fault the callee runs into.
    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault>;

    /// The value of an `ld_imm64` that is not a plain number and not a function the interpreter has.
    ///
    /// # Errors
    /// [`Fault::Unmodelled`] for things the host does not have.
    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault>;

    /// A load by the program. Hosts whose context is not memory answer for its fields here.
    ///
    /// # Errors
    /// As [`Host::read`].
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..size.bytes() as usize])?;
        Ok(self.byte_order().number(&bytes[..size.bytes() as usize]))
    }

    /// A store by the program; `imm` tells that the source is an immediate.
    ///
    /// # Errors
    /// As [`Host::write`].
    fn store(&mut self, address: u64, size: Size, v: u64, imm: bool) -> Result<(), Fault> {
        let _ = imm;
        let n = size.bytes() as usize;
        let bytes = self.byte_order().bytes(v, n);
        self.write(address, &bytes[..n])
    }

    /// `ld_abs` and `ld_ind`: the packet bytes at `offset` as a big-endian number, or `None` if they are not
    /// there. `context` is r6.
    ///
    /// # Errors
    /// [`Fault::Unmodelled`] unless overridden.
    fn legacy_load(&mut self, context: u64, offset: i32, size: Size) -> Result<Option<u64>, Fault> {
        let _ = (context, offset, size);
        Err(Fault::Unmodelled("a legacy packet load".into()))
    }

    /// `addr_space_cast`.
    ///
    /// # Errors
    /// [`Fault::Unmodelled`] unless overridden.
    fn addr_space_cast(&mut self, v: u64, imm: u32) -> Result<u64, Fault> {
        let _ = (v, imm);
        Err(Fault::Unmodelled("addr_space_cast".into()))
    }

    /// The instruction that the loader makes of one with a CO-RE record.
    ///
    /// # Errors
    /// [`Fault::Unmodelled`] unless overridden.
    fn relocate(&mut self, op: &Op) -> Result<Insn, Fault> {
        Err(Fault::Unmodelled(format!("the CO-RE relocation of `{}`", op.insn)))
    }

    /// Key and value size of the map with this address, for recording what helpers read.
    fn map_sizes(&self, map: u64) -> Option<(u32, u32)> {
        let _ = map;
        None
    }
}

impl Cpu {
    /// Reads memory, stack or not.
    ///
    /// # Errors
    /// [`Fault::Access`]
    #[inline]
    pub fn read(&self, host: &mut (impl Host + ?Sized), address: u64, out: &mut [u8]) -> Result<(), Fault> {
        match self.place(address, out.len(), false)? {
            Some(at) => out.copy_from_slice(&self.stack[at..at + out.len()]),
            None => host.read(address, out)?,
        }
        Ok(())
    }

    /// Writes memory, stack or not.
    ///
    /// # Errors
    /// [`Fault::Access`]
    #[inline]
    pub fn write(&mut self, host: &mut (impl Host + ?Sized), address: u64, bytes: &[u8]) -> Result<(), Fault> {
        match self.place(address, bytes.len(), true)? {
            Some(at) => self.stack[at..at + bytes.len()].copy_from_slice(bytes),
            None => host.write(address, bytes)?,
        }
        Ok(())
    }

    /// Reads `size` bytes into a new buffer.
    ///
    /// # Errors
    /// [`Fault::Access`]
    pub fn read_bytes(&self, host: &mut (impl Host + ?Sized), address: u64, size: u64) -> Result<Vec<u8>, Fault> {
        if size > u64::from(u32::MAX) {
            return Err(Fault::Access { write: false, address, size });
        }
        let mut bytes = vec![0; size as usize];
        self.read(host, address, &mut bytes)?;
        Ok(bytes)
    }
}
