//! What this kernel can do, found out by trying.
//!
//! Version numbers lie (distributions backport), so each [`Feature`] is a program of a few instructions that only a
//! kernel with the feature accepts.

use std::fs;

use crate::{KernelError, ProgramType, RawOptions, RawProgram, permitted, sys};

/// Something an optimizer may want to emit and an older kernel may not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Conditional jumps on 32 bits (ISA v3, Linux 5.1).
    Jump32,
    /// Atomic operations that return the old value (Linux 5.12).
    AtomicFetch,
    /// Signed division and remainder (ISA v4, Linux 6.6).
    SignedDivision,
    /// Sign-extending moves (ISA v4).
    SignExtendingMove,
    /// Sign-extending loads (ISA v4).
    SignExtendingLoad,
    /// Unconditional byte swaps (ISA v4).
    ByteSwap,
    /// Jumps with a 32-bit offset (ISA v4).
    LongJump,
    /// The bounded-loop instruction (Linux 6.9).
    MayGoto,
    /// Load-acquire and store-release (Linux 6.15).
    LoadAcquire,
    /// Reading stack bytes that were never written (Linux 6.3, privileged).
    UninitialisedStack,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Self; 10] = [
        Self::Jump32,
        Self::AtomicFetch,
        Self::SignedDivision,
        Self::SignExtendingMove,
        Self::SignExtendingLoad,
        Self::ByteSwap,
        Self::LongJump,
        Self::MayGoto,
        Self::LoadAcquire,
        Self::UninitialisedStack,
    ];

    /// The instructions that only a kernel with the feature accepts.
    fn probe(self) -> Vec<[u8; 8]> {
        const R0: u8 = 0;
        const R1: u8 = 1;
        const R10: u8 = 10;
        let zero = insn(0xb7, R0, 0, 0, 0); //              r0 = 0
        let one = insn(0xb7, R1, 0, 0, 1); //               r1 = 1
        let slot = insn(0x7a, R10, 0, -8, 0); //            *(u64 *)(r10 - 8) = 0
        let exit = insn(0x95, 0, 0, 0, 0); //               exit
        match self {
            Self::Jump32 => vec![zero, insn(0x16, R0, 0, 0, 0), exit], //           if w0 == 0 goto +0
            Self::AtomicFetch => vec![zero, one, slot, insn(0xdb, R10, R1, -8, 1), exit], // fetch_add
            Self::SignedDivision => vec![zero, insn(0x37, R0, 0, 1, 2), exit], //    r0 s/= 2
            Self::SignExtendingMove => vec![zero, insn(0xbf, R0, R0, 8, 0), exit], // r0 = (s8)r0
            Self::SignExtendingLoad => vec![slot, insn(0x91, R0, R10, -8, 0), exit], // r0 = *(s8 *)(r10 - 8)
            Self::ByteSwap => vec![zero, insn(0xd7, R0, 0, 0, 16), exit], //         r0 = bswap16 r0
            Self::LongJump => vec![zero, insn(0x06, 0, 0, 0, 0), exit], //           gotol +0
            Self::MayGoto => vec![zero, insn(0xe5, 0, 0, 1, 0), zero, exit], //      may_goto +1
            Self::LoadAcquire => vec![slot, insn(0xdb, R0, R10, -8, 0x100), exit], // r0 = load_acquire(r10 - 8)
            Self::UninitialisedStack => vec![insn(0x79, R0, R10, -8, 0), exit], //   r0 = *(u64 *)(r10 - 8)
        }
    }
}

fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> [u8; 8] {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = imm.to_le_bytes();
    [opcode, dst | src << 4, o0, o1, i0, i1, i2, i3]
}

/// Does this kernel take instructions that need `feature`?
pub fn supports(feature: Feature) -> Result<bool, KernelError> {
    permitted().require()?;
    let code = feature.probe().concat();
    Ok(RawProgram::load(ProgramType::SOCKET_FILTER, &code, &RawOptions::default()).is_ok())
}

/// Does this kernel load programs of type `kind`?
pub fn supports_program_type(kind: ProgramType) -> Result<bool, KernelError> {
    permitted().require()?;
    sys::probe_program_type(kind.0).map_err(KernelError::refused(format!("probing for {kind} programs")))
}

/// May programs of type `kind` call helper number `id` on this kernel? Types that need an attach target (fentry, lsm,
/// extensions) cannot be probed and give an error.
pub fn supports_helper(kind: ProgramType, id: u32) -> Result<bool, KernelError> {
    permitted().require()?;
    sys::probe_helper(kind.0, id).map_err(KernelError::refused(format!("probing for helper {id} in {kind} programs")))
}

/// The processor's name, as `/proc/cpuinfo` has it.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The kernel's release, such as `6.18.4`; empty when it does not tell.
pub fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
