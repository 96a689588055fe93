//! Registers, the stack with its frames, and the trace of calls.

use bpf_isa::Reg;

use super::{Event, Fault};

/// Bytes of one stack frame.
pub const STACK_BYTES: usize = 512;
/// Deepest nesting of frames (`MAX_CALL_FRAMES`).
pub(super) const FRAMES: usize = 8;
/// r10 of the outermost frame unless set otherwise.
const STACK_TOP: u64 = 0xffff_c900_0001_0000;

/// Registers and stack.
#[derive(Clone, Debug)]
pub struct Cpu {
    pub(super) regs: [Option<u64>; 11],
    /// All frames, the outermost at the end.
    pub(super) stack: Vec<u8>,
    pub(super) top: u64,
    pub(super) depth: usize,
    /// Every call that left the program so far.
    pub trace: Vec<Event>,
    /// Whether calls are added to [`Cpu::trace`].
    pub recording: bool,
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::with_frame_pointer(STACK_TOP)
    }
}

impl Cpu {
    /// No register has a value except r10, the stack is zero.
    pub fn with_frame_pointer(r10: u64) -> Cpu {
        let mut regs = [None; 11];
        regs[Reg::R10.index()] = Some(r10);
        Cpu { regs, stack: vec![0; STACK_BYTES * FRAMES], top: r10, depth: 0, trace: vec![], recording: true }
    }

    /// The value of a register, if it has one.
    #[inline]
    pub fn register(&self, r: Reg) -> Option<u64> {
        self.regs[r.index()]
    }

    /// The value of a register.
    ///
    /// # Errors
    /// [`Fault::Uninitialised`]
    #[inline]
    pub fn get(&self, r: Reg) -> Result<u64, Fault> {
        self.register(r).ok_or(Fault::Uninitialised(r))
    }

    /// Argument `n`, from 1, if it has a value.
    pub fn arg(&self, n: usize) -> Option<u64> {
        Reg::new(n as u8).and_then(|r| self.register(r))
    }

    /// Gives a register a value.
    #[inline]
    pub fn set(&mut self, r: Reg, v: u64) {
        self.regs[r.index()] = Some(v);
    }

    /// Takes a register's value away.
    #[inline]
    pub fn clear(&mut self, r: Reg) {
        self.regs[r.index()] = None;
    }

    /// The 512 bytes of the outermost frame; the last one is at r10 - 1.
    pub fn frame(&self) -> &[u8] {
        &self.stack[STACK_BYTES * (FRAMES - 1)..]
    }

    /// The same, for setting it up.
    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.stack[STACK_BYTES * (FRAMES - 1)..]
    }

    /// Whether the address is in a frame that is in use.
    #[inline]
    pub fn in_stack(&self, address: u64) -> bool {
        self.top.wrapping_sub(address).wrapping_sub(1) < (STACK_BYTES * (self.depth + 1)) as u64
    }

    /// Where `size` bytes at the address are in the stack; `None` if the address is not in it.
    #[inline]
    pub(super) fn place(&self, address: u64, size: usize, write: bool) -> Result<Option<usize>, Fault> {
        let last = address.wrapping_add(size.max(1) as u64 - 1);
        match (self.in_stack(address), self.in_stack(last)) {
            (true, true) => Ok(Some(self.stack.len() - self.top.wrapping_sub(address) as usize)),
            (false, false) => Ok(None),
            _ => Err(Fault::Access { write, address, size: size as u64 }),
        }
    }
}
