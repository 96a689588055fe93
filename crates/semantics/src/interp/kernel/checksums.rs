//! Helpers that compute checksums.

use bpf_isa::Reg;

use super::super::maps::errno;
use super::super::packet::{csum_add, csum_fold_up, csum_partial, csum_replace_by_diff, csum_replace2, csum_replace4};
use super::super::{Cpu, Fault};
use super::KernelHost;
use super::arguments::{args3, args5};

impl KernelHost {
    pub(super) fn l3_csum_replace(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [offset, from, to] = args3(cpu)?;
        let flags = cpu.get(Reg::R5)?;
        let offset = u64::from(offset as u32);
        if flags & !0xf != 0 {
            return Ok(errno::EINVAL);
        }
        let check = if offset > 0xffff || offset & 1 != 0 { None } else { self.packet.part(offset, 2) };
        let Some(check) = check else { return Ok(errno::EFAULT) };
        let old = u16::from_le_bytes([check[0], check[1]]);
        let new = match flags & 0xf {
            0 if from == 0 => csum_replace_by_diff(old, to as u32),
            2 => csum_replace2(old, from as u16, to as u16),
            4 => csum_replace4(old, from as u32, to as u32),
            _ => return Ok(errno::EINVAL),
        };
        check.copy_from_slice(&new.to_le_bytes());
        Ok(0)
    }

    pub(super) fn l4_csum_replace(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        const MARK_MANGLED_0: u64 = 0x20;
        const MARK_ENFORCE: u64 = 0x40;
        const KNOWN: u64 = 0x1f | MARK_MANGLED_0 | MARK_ENFORCE;
        let [offset, from, to] = args3(cpu)?;
        let flags = cpu.get(Reg::R5)?;
        let offset = u64::from(offset as u32);
        if flags & !KNOWN != 0 {
            return Ok(errno::EINVAL);
        }
        let check = if offset > 0xffff || offset & 1 != 0 { None } else { self.packet.part(offset, 2) };
        let Some(check) = check else { return Ok(errno::EFAULT) };
        let old = u16::from_le_bytes([check[0], check[1]]);
        if flags & MARK_MANGLED_0 != 0 && flags & MARK_ENFORCE == 0 && old == 0 {
            return Ok(0);
        }
        let new = match flags & 0xf {
            0 if from == 0 => csum_replace_by_diff(old, to as u32),
            2 => csum_replace4(old, u32::from(from as u16), u32::from(to as u16)),
            4 => csum_replace4(old, from as u32, to as u32),
            _ => return Ok(errno::EINVAL),
        };
        let new = if flags & MARK_MANGLED_0 != 0 && new == 0 { 0xffff } else { new };
        check.copy_from_slice(&new.to_le_bytes());
        Ok(0)
    }

    /// As of Linux 6.13, which takes any length and always folds.
    pub(super) fn csum_diff(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [from, from_size, to, to_size, seed] = args5(cpu)?;
        let (from_size, to_size, seed) = (from_size as u32, to_size as u32, seed as u32);
        // A size of zero may come with a null pointer.
        let mut bytes =
            |address, size: u32| if size == 0 { Ok(vec![]) } else { cpu.read_bytes(self, address, size.into()) };
        let (from, to) = (bytes(from, from_size)?, bytes(to, to_size)?);
        Ok(match (from_size, to_size) {
            (0, 0) => csum_fold_up(seed).into(),
            (0, _) => csum_fold_up(csum_partial(&to, seed)).into(),
            (_, 0) => csum_fold_up(!csum_partial(&from, !seed)).into(),
            _ => csum_fold_up(csum_add(csum_partial(&to, seed), !csum_partial(&from, 0))).into(),
        })
    }
}
