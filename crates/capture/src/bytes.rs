//! Numbers in the byte order of a file.

/// The byte order in which a file or section was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl ByteOrder {
    /// The order of the machine that this runs on.
    pub const HOST: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };

    /// The 16 bits at `at`.
    ///
    /// # Panics
    /// If `bytes` ends before.
    pub fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = bytes[at..at + 2].try_into().expect("two bytes");
        if self == Self::Little { u16::from_le_bytes(raw) } else { u16::from_be_bytes(raw) }
    }

    /// The 32 bits at `at`.
    ///
    /// # Panics
    /// If `bytes` ends before.
    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = bytes[at..at + 4].try_into().expect("four bytes");
        if self == Self::Little { u32::from_le_bytes(raw) } else { u32::from_be_bytes(raw) }
    }

    /// The 64 bits at `at`.
    ///
    /// # Panics
    /// If `bytes` ends before.
    pub fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let raw = bytes[at..at + 8].try_into().expect("eight bytes");
        if self == Self::Little { u64::from_le_bytes(raw) } else { u64::from_be_bytes(raw) }
    }
}
