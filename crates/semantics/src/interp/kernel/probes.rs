//! Helpers that read any memory of the kernel or of user space.

use super::super::maps::errno;
use super::super::{Cpu, Fault};
use super::arguments::first3;
use super::{KernelHost, USER_END};

/// Whose memory a helper probes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    User,
    Kernel,
    /// Decided by the address.
    Either,
}

impl KernelHost {
    /// One byte for `probe_read` and its kin, or the error. Kernel memory is everything but
    /// [`KernelHost::add_user_memory`].
    fn probe(&mut self, cpu: &Cpu, address: u64, space: Space) -> Result<u8, i64> {
        let below = address < USER_END;
        let user = space == Space::User || space == Space::Either && self.user_memory_at(address);
        if user != self.user_memory_at(address) {
            return Err(if user || !below { errno::EFAULT } else { errno::ERANGE });
        }
        let mut b = [0];
        match cpu.read(self, address, &mut b) {
            Ok(()) => Ok(b[0]),
            Err(_) if below && space == Space::Kernel => Err(errno::ERANGE),
            Err(_) => Err(errno::EFAULT),
        }
    }

    fn user_memory_at(&mut self, address: u64) -> bool {
        address < USER_END && self.region(address, 1).is_some()
    }

    /// What is not mapped reads as zeros and an error.
    pub(super) fn probe_read(&mut self, cpu: &mut Cpu, space: Space) -> Result<i64, Fault> {
        let [to, size, from] = first3(cpu)?;
        let size = u64::from(size as u32);
        let found: Result<Vec<u8>, i64> = (0..size).map(|i| self.probe(cpu, from.wrapping_add(i), space)).collect();
        let error = found.as_ref().err().copied().unwrap_or(0);
        cpu.write(self, to, &found.unwrap_or_else(|_| vec![0; size as usize]))?;
        Ok(error)
    }

    pub(super) fn probe_read_str(&mut self, cpu: &mut Cpu, space: Space) -> Result<i64, Fault> {
        let [to, size, from] = first3(cpu)?;
        let size = u64::from(size as u32);
        let mut text = vec![];
        while (text.len() as u64) < size && text.last() != Some(&0) {
            match self.probe(cpu, from.wrapping_add(text.len() as u64), space) {
                Ok(b) => text.push(b),
                Err(e) => {
                    cpu.write(self, to, &vec![0; size as usize])?;
                    return Ok(e);
                }
            }
        }
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
        cpu.write(self, to, &text)?;
        Ok(text.len() as i64)
    }
}
