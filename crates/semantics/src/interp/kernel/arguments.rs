//! Arguments of a call, as they stand in registers.

use bpf_isa::Reg;

use super::super::{Cpu, Fault};

pub(super) fn first3(cpu: &Cpu) -> Result<[u64; 3], Fault> {
    Ok([cpu.get(Reg::R1)?, cpu.get(Reg::R2)?, cpu.get(Reg::R3)?])
}

/// The three arguments behind the context.
pub(super) fn args3(cpu: &Cpu) -> Result<[u64; 3], Fault> {
    Ok([cpu.get(Reg::R2)?, cpu.get(Reg::R3)?, cpu.get(Reg::R4)?])
}

pub(super) fn args5(cpu: &Cpu) -> Result<[u64; 5], Fault> {
    Ok([cpu.get(Reg::R1)?, cpu.get(Reg::R2)?, cpu.get(Reg::R3)?, cpu.get(Reg::R4)?, cpu.get(Reg::R5)?])
}
