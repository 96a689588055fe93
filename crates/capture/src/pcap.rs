//! The pcap format: a header of 24 bytes, then records. Sources: pcap-savefile(5), and libpcap's `sf-pcap.c` for what
//! old and patched writers did.

use crate::bytes::ByteOrder;
use crate::error::{ErrorKind, Fault};
use crate::link;
use crate::packet::{Record, Timestamp};
use crate::source::Source;

/// First number of a file with microseconds.
const MICROSECONDS: u32 = 0xa1b2_c3d4;
/// First number of a file with nanoseconds.
pub const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// First number of a file of Alexey Kuznetzov's libpcap, whose records have 8 more bytes in front of the data.
const PATCHED: u32 = 0xa1b2_cd34;
/// First number of a file with microseconds, for the writer.
pub const MAGIC: u32 = MICROSECONDS;
/// Length of the file's header in bytes.
const HEADER: usize = 24;
/// Link type of Ethernet.
const ETHERNET: u16 = 1;
/// Bits of the link type that hold the length of the frame check sequence; the type is in the lower 16.
const CHECK_SEQUENCE: u32 = 0xfc00_0000;

/// Where a record has its two lengths.
#[derive(Clone, Copy)]
enum Lengths {
    /// The captured length first: all that is written today.
    CapturedFirst,
    /// The length on the wire first: before version 2.3.
    WireFirst,
    /// Version 2.3 was written both ways; the smaller one is the captured length.
    SmallerIsCaptured,
}

/// Reads the records of one file.
pub struct Reader {
    order: ByteOrder,
    nanoseconds: bool,
    record_header: usize,
    lengths: Lengths,
    link_type: u16,
    snapshot: u32,
}

impl Reader {
    /// Reads the rest of the file's header, the first 4 bytes of which are in `buffer`.
    pub fn open(source: &mut Source, buffer: &mut Vec<u8>) -> Result<Self, Fault> {
        let known = |order: &ByteOrder| [MICROSECONDS, NANOSECONDS, PATCHED].contains(&order.u32(buffer, 0));
        let unknown = Fault { offset: 0, kind: ErrorKind::UnknownFormat };
        let order = [ByteOrder::Little, ByteOrder::Big].into_iter().find(known).ok_or(unknown)?;
        let magic = order.u32(buffer, 0);
        source.append_all(buffer, HEADER - 4)?;
        let lengths = lengths(order.u16(buffer, 4), order.u16(buffer, 6))?;
        let link_type = order.u32(buffer, 20);
        if link_type & !CHECK_SEQUENCE > u32::from(u16::MAX) {
            return Err(Fault { offset: 20, kind: ErrorKind::LinkType(link_type) });
        }
        let link_type = link_type as u16;
        let mut snapshot = link::snapshot(link_type, order.u32(buffer, 16));
        if magic == PATCHED && link_type == ETHERNET {
            // The header that was made up for cooked captures came on top of the snapshot length.
            snapshot = snapshot.saturating_add(14).min(i32::MAX as u32);
        }
        let record_header = if magic == PATCHED { 24 } else { 16 };
        Ok(Self { order, nanoseconds: magic == NANOSECONDS, record_header, lengths, link_type, snapshot })
    }

    /// The next record; nothing at the end. Its data is in `buffer`.
    pub fn next(&mut self, source: &mut Source, buffer: &mut Vec<u8>) -> Result<Option<Record>, Fault> {
        let start = source.offset();
        buffer.clear();
        match source.append(buffer, self.record_header)? {
            0 => return Ok(None),
            whole if whole == self.record_header => {}
            part => return Err(source.truncated(self.record_header, part)),
        }
        let word = |at| self.order.u32(buffer, at);
        let seconds = i64::from(word(0));
        let nanoseconds = u64::from(word(4)) * if self.nanoseconds { 1 } else { 1000 };
        let (captured, length) = self.lengths.of(word(8), word(12));
        let limit = link::longest_packet(self.link_type);
        if captured > limit {
            return Err(Fault { offset: start, kind: ErrorKind::CapturedLength { length: captured, limit } });
        }
        // Some writers stored more than the snapshot length they had stated: libpcap cuts it off.
        let kept = captured.min(self.snapshot) as usize;
        buffer.clear();
        source.append_all(buffer, kept)?;
        let rest = captured as usize - kept;
        let skipped = source.skip(rest)?;
        if skipped < rest {
            return Err(source.truncated(captured as usize, kept + skipped));
        }
        Ok(Some(Record {
            data: 0..kept,
            length,
            link_type: self.link_type,
            order: self.order,
            timestamp: Timestamp { seconds, nanoseconds },
            interface: 0,
        }))
    }

    /// The file's link type.
    pub fn link_type(&self) -> u16 {
        self.link_type
    }

    /// The file's snapshot length in bytes.
    pub fn snapshot(&self) -> u32 {
        self.snapshot
    }

    /// The file's byte order.
    pub fn order(&self) -> ByteOrder {
        self.order
    }
}

/// What a version of the format means. 543.0 was written by DG/UX.
fn lengths(major: u16, minor: u16) -> Result<Lengths, Fault> {
    match (major, minor) {
        (2, 0..3) | (543, 0) => Ok(Lengths::WireFirst),
        (2, 3) => Ok(Lengths::SmallerIsCaptured),
        (2, 4) => Ok(Lengths::CapturedFirst),
        _ => Err(Fault { offset: 4, kind: ErrorKind::Version { major, minor } }),
    }
}

impl Lengths {
    /// The captured length and that on the wire, of the two that a record has.
    fn of(self, first: u32, second: u32) -> (u32, u32) {
        match self {
            Self::WireFirst => (second, first),
            Self::SmallerIsCaptured if first > second => (second, first),
            Self::SmallerIsCaptured | Self::CapturedFirst => (first, second),
        }
    }
}
