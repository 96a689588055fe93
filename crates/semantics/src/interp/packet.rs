//! Packet memory as `BPF_PROG_TEST_RUN` lays it out (`net/bpf/test_run.c`, `net/core/filter.c`), and the
//! Internet checksum.

use super::maps::errno::{EACCES, EINVAL};

/// Bytes in front of the packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Bytes behind it that hold `skb_shared_info`.
const TAILROOM: usize = 320;
/// Bytes at the very front that hold `xdp_frame`.
const FRAME_HEADER: usize = 40;
const PAGE: usize = 4096;
/// `ETH_HLEN`, below which no packet may shrink.
const ETHERNET: usize = 14;
/// Where the frame is. Below 4 GiB, so that the 32-bit context fields hold whole pointers.
const BASE: u64 = 0x1000_0000;

/// A packet in its frame.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    frame: Vec<u8>,
    meta: usize,
    data: usize,
    end: usize,
    /// Bytes before `data_end`, if those are not all.
    linear: Option<usize>,
}

impl Packet {
    pub fn new(bytes: &[u8]) -> Packet {
        let size = (HEADROOM + bytes.len() + TAILROOM).next_multiple_of(PAGE);
        let mut frame = vec![0; size];
        let end = HEADROOM + bytes.len();
        frame[HEADROOM..end].copy_from_slice(bytes);
        Packet { frame, meta: HEADROOM, data: HEADROOM, end, linear: None }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.frame[self.data..self.end]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.frame[self.data..self.end]
    }

    pub fn metadata(&self) -> &[u8] {
        &self.frame[self.meta..self.data]
    }

    pub fn len(&self) -> u64 {
        (self.end - self.data) as u64
    }

    pub fn data(&self) -> u64 {
        BASE + self.data as u64
    }

    pub fn data_end(&self) -> u64 {
        let linear = self.linear.map_or(self.end, |n| self.end.min(self.data + n));
        BASE + linear as u64
    }

    /// Only so many bytes are before `data_end`, until more are pulled there.
    pub fn set_linear(&mut self, bytes: usize) {
        self.linear = Some(bytes);
    }

    /// `skb_pull_data`: so many bytes are before `data_end` now, which there must be.
    pub fn pull(&mut self, bytes: usize) {
        self.linear = self.linear.map(|n| n.max(bytes));
    }

    pub fn data_meta(&self) -> u64 {
        BASE + self.meta as u64
    }

    /// The packet's and its metadata's bytes at an address, if all of them are.
    pub fn at(&mut self, address: u64, size: usize) -> Option<&mut [u8]> {
        let from = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let to = from.checked_add(size)?;
        (from >= self.meta && to <= self.end).then(|| &mut self.frame[from..to])
    }

    /// `len` bytes at `offset` from the start of the packet.
    pub fn part(&mut self, offset: u64, len: u64) -> Option<&mut [u8]> {
        let to = offset.checked_add(len)?;
        (to <= self.len()).then(|| &mut self.bytes_mut()[offset as usize..to as usize])
    }

    /// `bpf_xdp_adjust_head`
    pub fn adjust_head(&mut self, delta: i32) -> i64 {
        let metadata = self.data - self.meta;
        let data = self.data as i64 + i64::from(delta);
        if data < (FRAME_HEADER + metadata) as i64 || data > self.end as i64 - ETHERNET as i64 {
            return EINVAL;
        }
        let data = data as usize;
        self.frame.copy_within(self.meta..self.data, data - metadata);
        self.meta = data - metadata;
        self.data = data;
        0
    }

    /// `bpf_xdp_adjust_tail`
    pub fn adjust_tail(&mut self, delta: i32) -> i64 {
        let end = self.end as i64 + i64::from(delta);
        if end > (self.frame.len() - TAILROOM) as i64 || end < (self.data + ETHERNET) as i64 {
            return EINVAL;
        }
        let end = end as usize;
        if end > self.end {
            self.frame[self.end..end].fill(0);
        }
        self.end = end;
        0
    }

    /// `bpf_xdp_adjust_meta`
    pub fn adjust_meta(&mut self, delta: i32) -> i64 {
        let meta = self.meta as i64 + i64::from(delta);
        if meta < FRAME_HEADER as i64 || meta > self.data as i64 {
            return EINVAL;
        }
        let len = self.data - meta as usize;
        if !len.is_multiple_of(4) || len > usize::from(u8::MAX) {
            return EACCES;
        }
        self.meta = meta as usize;
        0
    }
}

/// `csum_add`: ones' complement sum of 32 bits.
pub(super) fn csum_add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u32::from(carry)
}

/// `csum_partial`: the sum over the bytes, as 32 bits that fold to the right 16.
pub(super) fn csum_partial(bytes: &[u8], seed: u32) -> u32 {
    bytes.chunks(4).fold(seed, |sum, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        csum_add(sum, u32::from_le_bytes(word))
    })
}

/// `csum_from32to16`: folded to 16 bits.
pub(super) fn csum_fold_up(sum: u32) -> u16 {
    let sum = sum.wrapping_add(sum.rotate_right(16));
    (sum >> 16) as u16
}

/// `csum_fold`: folded and complemented, as it stands in a header.
pub(super) fn csum_fold(sum: u32) -> u16 {
    !csum_fold_up(sum)
}

/// `csum_replace_by_diff`. The complement is taken of 32 bits, which decides which of the two zeros comes out.
pub(super) fn csum_replace_by_diff(check: u16, diff: u32) -> u16 {
    csum_fold(csum_add(diff, !u32::from(check)))
}

/// `csum_replace4`
pub(super) fn csum_replace4(check: u16, from: u32, to: u32) -> u16 {
    csum_fold(csum_add(csum_add(!u32::from(check), !from), to))
}

/// `csum_replace2`
pub(super) fn csum_replace2(check: u16, from: u16, to: u16) -> u16 {
    let add = |a: u16, b: u16| {
        let (sum, carry) = a.overflowing_add(b);
        sum + u16::from(carry)
    };
    !add(add(!check, !from), to)
}
