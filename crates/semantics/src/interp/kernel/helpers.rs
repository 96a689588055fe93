//! Helpers by name, and those of packets, maps, rings and texts.

use bpf_isa::Reg;
use bpf_program::{ByteOrder, ProgKind};

use super::super::maps::errno;
use super::super::{Cpu, Fault, Next};
use super::arguments::{args3, first3};
use super::probes::Space;
use super::{KernelHost, MAP_STEP, MAPS, Output, TASK};

impl KernelHost {
    /// Copies from the packet to memory; what the packet does not have becomes zeros and an error.
    fn packet_to(&mut self, cpu: &mut Cpu, limit: u64, error: i64) -> Result<i64, Fault> {
        let [offset, to, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        let found = if offset > limit { None } else { self.packet.part(offset, len).map(|p| p.to_vec()) };
        let ok = found.is_some();
        cpu.write(self, to, &found.unwrap_or_else(|| vec![0; len as usize]))?;
        Ok(if ok { 0 } else { error })
    }

    fn packet_from(&mut self, cpu: &mut Cpu, limit: u64, error: i64) -> Result<i64, Fault> {
        let [offset, from, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        let bytes = cpu.read_bytes(self, from, len)?;
        Ok(match self.packet.part(offset, len).filter(|_| offset <= limit) {
            Some(part) => {
                part.copy_from_slice(&bytes);
                0
            }
            None => error,
        })
    }

    fn strncmp(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let [a, size, b] = first3(cpu)?;
        for i in 0..u64::from(size as u32) {
            let (mut x, mut y) = ([0], [0]);
            cpu.read(self, a.wrapping_add(i), &mut x)?;
            cpu.read(self, b.wrapping_add(i), &mut y)?;
            if x != y {
                return Ok(if x < y { -1 } else { 1 });
            }
            if x == [0] {
                break;
            }
        }
        Ok(0)
    }

    fn redirect_map(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        // No device is in any map: what remains is the action in the flags' low bits.
        const ACTIONS: u64 = 3;
        const BROADCAST: u64 = 1 << 3;
        const EXCLUDE_INGRESS: u64 = 1 << 4;
        const XDP_ABORTED: i64 = 0;
        const XDP_REDIRECT: i64 = 4;
        let [_, _, flags] = first3(cpu)?;
        Ok(match flags {
            f if f & !(ACTIONS | BROADCAST | EXCLUDE_INGRESS) != 0 => XDP_ABORTED,
            f if f & BROADCAST != 0 => XDP_REDIRECT,
            f => (f & ACTIONS) as i64,
        })
    }

    fn redirect(&self, cpu: &Cpu) -> Result<i64, Fault> {
        let flags = cpu.get(Reg::R2)?;
        Ok(match self.kind {
            ProgKind::Xdp if flags == 0 => 4,
            ProgKind::Xdp => 0,
            _ if flags & !1 == 0 => 7,
            _ => 2,
        })
    }

    fn reserve(&mut self, cpu: &Cpu) -> Result<i64, Fault> {
        let map = self.map_arg(cpu, Reg::R1)?;
        let (size, flags) = (cpu.get(Reg::R2)?, cpu.get(Reg::R3)?);
        if flags != 0 || size > u64::from(self.maps[map].spec.max_entries) {
            return Ok(0);
        }
        let address = self.allocate(vec![0; size as usize], true);
        self.reserved.insert(address, map);
        Ok(address as i64)
    }

    fn finish_record(&mut self, cpu: &Cpu, submit: bool) -> Result<(), Fault> {
        let address = cpu.get(Reg::R1)?;
        let missing = Fault::Access { write: true, address, size: 0 };
        let map = self.reserved.remove(&address).ok_or(missing)?;
        if let (Some(region), true) = (self.regions.remove(&address), submit) {
            self.outputs.push(Output { map: self.maps[map].spec.name.clone(), bytes: region.bytes });
        }
        Ok(())
    }

    fn output(&mut self, map: usize, cpu: &Cpu, data: Reg, size: Reg) -> Result<(), Fault> {
        let bytes = cpu.read_bytes(self, cpu.get(data)?, cpu.get(size)?)?;
        self.outputs.push(Output { map: self.maps[map].spec.name.clone(), bytes });
        Ok(())
    }

    pub(super) fn for_each(&mut self, cpu: &Cpu) -> Result<Next, Fault> {
        let map = self.map_arg(cpu, Reg::R1)?;
        let [_, function, context] = first3(cpu)?;
        let mut rounds = vec![];
        for key in self.maps[map].keys() {
            let Some(value) = self.lookup(map, &key) else { continue };
            let key = self.allocate(key, false);
            rounds.push([MAPS + map as u64 * MAP_STEP, key, value, context, 0]);
        }
        Ok(Next::CallBack { function, rounds: Box::new(rounds.into_iter()) })
    }

    /// The effect of a helper and its result; `None` where r0 has no value afterwards.
    pub(super) fn helper(&mut self, cpu: &mut Cpu, name: &str) -> Result<Option<i64>, Fault> {
        let xdp = self.kind == ProgKind::Xdp;
        let skb = self.kind == ProgKind::Skb;
        // Sums are of words of memory, and this model of them is that of a little-endian machine.
        let sums = self.order == ByteOrder::Little;
        Ok(Some(match name {
            "map_lookup_elem" | "map_lookup_percpu_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                if name == "map_lookup_percpu_elem" && cpu.get(Reg::R3)? as u32 != 0 {
                    return Ok(Some(0));
                }
                self.lookup(map, &key).unwrap_or(0) as i64
            }
            "map_update_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                let size = self.maps[map].spec.value_size;
                let value = cpu.read_bytes(self, cpu.get(Reg::R3)?, size.into())?;
                self.update(map, &key, &value, cpu.get(Reg::R4)?)
            }
            "map_delete_elem" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                let key = self.key(cpu, map)?;
                self.maps[map].delete(&key)
            }
            "probe_read" => self.probe_read(cpu, Space::Either)?,
            "probe_read_kernel" => self.probe_read(cpu, Space::Kernel)?,
            "probe_read_user" => self.probe_read(cpu, Space::User)?,
            "probe_read_str" => self.probe_read_str(cpu, Space::Either)?,
            "probe_read_kernel_str" => self.probe_read_str(cpu, Space::Kernel)?,
            "probe_read_user_str" => self.probe_read_str(cpu, Space::User)?,
            "ktime_get_ns" | "ktime_get_boot_ns" | "ktime_get_coarse_ns" | "ktime_get_tai_ns" => self.tick(1000) as i64,
            "jiffies64" => (self.tick(1000) / 4_000_000) as i64,
            "trace_printk" | "trace_vprintk" => {
                let fmt = cpu.read_bytes(self, cpu.get(Reg::R1)?, u64::from(cpu.get(Reg::R2)? as u32))?;
                fmt.len() as i64
            }
            "get_prandom_u32" => i64::from(self.next_random()),
            "get_smp_processor_id" | "get_numa_node_id" => 0,
            "get_current_pid_tgid" => self.task.pid_tgid as i64,
            "get_current_uid_gid" => self.task.uid_gid as i64,
            "get_current_cgroup_id" => 1,
            "get_current_task" | "get_current_task_btf" => TASK as i64,
            "get_current_comm" => {
                let (to, size) = (cpu.get(Reg::R1)?, cpu.get(Reg::R2)? as u32 as usize);
                let mut bytes = vec![0; size];
                let n = size.min(self.task.comm.len());
                bytes[..n].copy_from_slice(&self.task.comm[..n]);
                // Like strscpy: always terminated.
                if let Some(last) = bytes.last_mut() {
                    *last = 0;
                }
                cpu.write(self, to, &bytes)?;
                0
            }
            "skb_load_bytes" if skb => self.packet_to(cpu, i32::MAX as u64, errno::EFAULT)?,
            "skb_store_bytes" if skb => {
                if cpu.get(Reg::R5)? & !3 != 0 {
                    return Ok(Some(errno::EINVAL));
                }
                self.packet_from(cpu, i32::MAX as u64, errno::EFAULT)?
            }
            "skb_pull_data" if skb => {
                let bytes = cpu.get(Reg::R2)? as u32;
                if u64::from(bytes) <= self.packet.len() {
                    self.packet.pull(bytes as usize);
                    0
                } else {
                    errno::ENOMEM
                }
            }
            "l3_csum_replace" if skb && sums => self.l3_csum_replace(cpu)?,
            "l4_csum_replace" if skb && sums => self.l4_csum_replace(cpu)?,
            "csum_diff" if sums => self.csum_diff(cpu)?,
            "redirect" => self.redirect(cpu)?,
            "redirect_map" if xdp => self.redirect_map(cpu)?,
            "xdp_adjust_head" if xdp => self.packet.adjust_head(cpu.get(Reg::R2)? as i32),
            "xdp_adjust_tail" if xdp => self.packet.adjust_tail(cpu.get(Reg::R2)? as i32),
            "xdp_adjust_meta" if xdp => self.packet.adjust_meta(cpu.get(Reg::R2)? as i32),
            "xdp_get_buff_len" if xdp => self.packet.len() as i64,
            "xdp_load_bytes" if xdp => match self.xdp_range(cpu)? {
                Some(e) => e,
                None => self.packet_to(cpu, 0xffff, errno::EFAULT)?,
            },
            "xdp_store_bytes" if xdp => match self.xdp_range(cpu)? {
                Some(e) => e,
                None => self.packet_from(cpu, 0xffff, errno::EFAULT)?,
            },
            "perf_event_output" => {
                let map = self.map_arg(cpu, Reg::R2)?;
                self.output(map, cpu, Reg::R4, Reg::R5)?;
                self.perf_result
            }
            "ringbuf_output" => {
                let map = self.map_arg(cpu, Reg::R1)?;
                if cpu.get(Reg::R4)? & !3 != 0 {
                    return Ok(Some(errno::EINVAL));
                }
                self.output(map, cpu, Reg::R2, Reg::R3)?;
                0
            }
            "ringbuf_reserve" => self.reserve(cpu)?,
            "ringbuf_submit" | "ringbuf_discard" => {
                self.finish_record(cpu, name == "ringbuf_submit")?;
                return Ok(None);
            }
            "tail_call" => errno::ENOENT,
            "strncmp" => self.strncmp(cpu)?,
            "spin_lock" | "spin_unlock" => return Ok(None),
            _ => return Err(Fault::Unmodelled(format!("helper bpf_{name} in a {:?} program", self.kind))),
        }))
    }

    /// The error of `xdp_load_bytes` and `xdp_store_bytes` on a range the packet does not have. They leave
    /// memory alone then.
    fn xdp_range(&self, cpu: &Cpu) -> Result<Option<i64>, Fault> {
        let [offset, _, len] = args3(cpu)?;
        let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
        if offset > 0xffff || len > 0xffff {
            return Ok(Some(errno::EFAULT));
        }
        Ok((offset + len > self.packet.len()).then_some(errno::EINVAL))
    }
}
