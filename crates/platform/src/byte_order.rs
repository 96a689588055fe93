//! The byte order of the machine that a program is for.
//!
//! One idea: a value of several bytes in memory, and a part of it, meet in one function, [`ByteOrder::bit`]. Whoever cuts
//! values into bytes, puts bytes together or reads a part of a wider value asks it, and knows nothing else of byte orders.

/// In which order the bytes of a number stand in memory: a property of the machine that a program is compiled for
/// (`-target bpfel` or `bpfeb`), which the object file states (`EI_DATA`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ByteOrder {
    /// The lowest byte first.
    #[default]
    Little,
    /// The highest byte first.
    Big,
}

impl ByteOrder {
    /// That of the machine this program runs on, and so of its kernel.
    pub const HOST: ByteOrder = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    /// The lowest bit of a part of a value: of the `part` bytes that begin `at` bytes into a value of `size` bytes in
    /// memory.
    ///
    /// ```
    /// use bpf_platform::ByteOrder;
    ///
    /// // The two bytes at the beginning of a word of four.
    /// assert_eq!(ByteOrder::Little.bit(0, 2, 4), 0);
    /// assert_eq!(ByteOrder::Big.bit(0, 2, 4), 16);
    /// ```
    #[inline]
    pub const fn bit(self, at: u32, part: u32, size: u32) -> u32 {
        match self {
            ByteOrder::Little => at * 8,
            ByteOrder::Big => (size - at - part) * 8,
        }
    }

    /// The number that these bytes of memory are, at most eight.
    #[inline]
    pub fn number(self, bytes: &[u8]) -> u64 {
        let mut all = [0; 8];
        let n = bytes.len().min(8);
        match self {
            ByteOrder::Little => {
                all[..n].copy_from_slice(&bytes[..n]);
                u64::from_le_bytes(all)
            }
            ByteOrder::Big => {
                all[8 - n..].copy_from_slice(&bytes[..n]);
                u64::from_be_bytes(all)
            }
        }
    }

    /// The bytes of a number of `size` bytes (at most eight) as they stand in memory; those behind them are zero.
    #[inline]
    pub fn bytes(self, number: u64, size: usize) -> [u8; 8] {
        match self {
            ByteOrder::Little => {
                let mut bytes = number.to_le_bytes();
                bytes[size.min(8)..].fill(0);
                bytes
            }
            ByteOrder::Big => {
                let mut bytes = [0; 8];
                let n = size.min(8);
                bytes[..n].copy_from_slice(&number.to_be_bytes()[8 - n..]);
                bytes
            }
        }
    }

    /// As words of messages have it.
    pub const fn name(self) -> &'static str {
        match self {
            ByteOrder::Little => "little-endian",
            ByteOrder::Big => "big-endian",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_are_each_others_inverse() {
        let number = 0x0123_4567_89ab_cdef_u64;
        for (order, four) in [(ByteOrder::Little, [0xef, 0xcd, 0xab, 0x89]), (ByteOrder::Big, [0x89, 0xab, 0xcd, 0xef])]
        {
            assert_eq!(order.bytes(number, 4)[..4], four);
            for size in [1, 2, 4, 8] {
                let bytes = order.bytes(number, size);
                assert_eq!(order.number(&bytes[..size]), number & u64::MAX >> (64 - 8 * size), "{order:?} {size}");
                for at in 0..size as u32 {
                    let byte = number >> order.bit(at, 1, size as u32);
                    assert_eq!(bytes[at as usize], byte as u8, "{order:?}: byte {at} of {size}");
                }
            }
        }
    }
}
