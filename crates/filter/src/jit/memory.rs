//! Executable memory, and calls into it: the only `unsafe` code of this crate.

use memmap2::{Mmap, MmapMut};

use super::assembler::Code;
use crate::graph::Chain;
use crate::program::{Beside, Packet, run_chain};

/// What machine code reads of a packet besides its bytes and lengths.
#[repr(C)]
pub(super) struct Known {
    interface: u32,
    packet_type: u32,
    vlan_present: u32,
    vlan_tag: u32,
}

impl Known {
    pub(super) const INTERFACE: i32 = 0;
    pub(super) const PACKET_TYPE: i32 = 4;
    pub(super) const VLAN_PRESENT: i32 = 8;
    pub(super) const VLAN_TAG: i32 = 12;
}

/// The signature of translated filters: 1 accepts a packet, 0 does not.
type Entry =
    unsafe extern "sysv64" fn(captured: *const u8, captured_length: u64, length: u32, known: *const Known) -> u32;

/// Translated code in memory that may be executed and not written.
#[derive(Debug)]
pub(super) struct Machine {
    memory: Mmap,
    instructions: usize,
}

impl Machine {
    /// Maps code: first it may be written and not executed, then executed and not written.
    pub(super) fn new(code: &Code) -> std::io::Result<Machine> {
        let mut memory = MmapMut::map_anon(code.bytes.len())?;
        memory.copy_from_slice(&code.bytes);
        Ok(Machine { memory: memory.make_exec()?, instructions: code.instructions })
    }

    /// The instructions, without the tables behind them.
    pub(super) fn instructions(&self) -> &[u8] {
        &self.memory[..self.instructions]
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Whether the code accepts a packet.
    #[inline]
    pub(super) fn call(&self, packet: &Packet) -> bool {
        let Beside { interface, packet_type, vlan } = packet.beside;
        let known = Known {
            interface,
            packet_type,
            vlan_present: u32::from(vlan.is_some()),
            vlan_tag: vlan.map_or(0, u32::from),
        };
        // SAFETY: the memory holds what `translate` made, the only source of `Code`, and begins with the entry of a function with
        // this signature. Translated programs are verified: they end, read the packet only within the length given here, and
        // write nothing but their stack frame. The pointers live longer than the call.
        unsafe {
            let entry: Entry = std::mem::transmute(self.memory.as_ptr());
            entry(packet.captured.as_ptr(), packet.captured.len() as u64, packet.length, &known) == 1
        }
    }
}

/// What the code calls for chains of headers: 1 if the chain leads to its protocol, 0 if it does not, 2 if it leads off the packet.
///
/// # Safety
/// `captured` points to `captured_length` bytes.
pub(super) unsafe extern "sysv64" fn chain(
    captured: *const u8,
    captured_length: u64,
    is_ip6: u32,
    start: u32,
    protocol: u32,
) -> u32 {
    // SAFETY: translated code passes on what `Machine::call` gave it: a slice's start and length.
    let captured = unsafe { std::slice::from_raw_parts(captured, captured_length as usize) };
    let packet = Packet { captured, length: 0, beside: Beside::default() };
    let chain = Chain { is_ip6: is_ip6 != 0, start, protocol };
    run_chain(&chain, &packet, &mut 0).map_or(2, u32::from)
}
