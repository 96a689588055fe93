//! One packet, for callers and between the readers of the formats and [`crate::Capture`].

use std::ops::Range;

use crate::bytes::ByteOrder;

/// One packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The bytes that were captured. Headers in the byte order of the capturing host (`LINKTYPE_USB_LINUX`, `_PFLOG`,
    /// `_NFLOG`, CAN frames) are in that of this host, as libpcap hands them out; the address family of
    /// `LINKTYPE_NULL` is as in the file.
    pub captured: &'a [u8],
    /// Length on the wire, in bytes.
    pub length: u32,
    /// The `LINKTYPE_` number of the packet's interface ([`crate::link::dlt`] gives libpcap's).
    pub link_type: u16,
    /// Whether the packet was written in another byte order than that of this machine.
    pub swapped: bool,
    /// When it was captured.
    pub timestamp: Timestamp,
    /// The interface within its pcapng section, from 0; 0 in pcap.
    pub interface: u32,
}

/// A moment, since the beginning of 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds on top of them. Damaged pcap files may say more than a second; it is kept, as libpcap does.
    pub nanoseconds: u64,
}

/// What a reader found: a packet whose bytes are in the buffer.
pub struct Record {
    /// Where in the buffer.
    pub data: Range<usize>,
    /// Length on the wire.
    pub length: u32,
    /// The `LINKTYPE_` number.
    pub link_type: u16,
    /// In what order the file has its numbers there.
    pub order: ByteOrder,
    /// When it was captured.
    pub timestamp: Timestamp,
    /// Which interface it came from.
    pub interface: u32,
}
