//! The pcapng format: blocks in sections, packets of interfaces. Source: draft-ietf-opsawg-pcapng; what libpcap's
//! `sf-pcapng.c` tolerates is tolerated, and what it refuses is refused, but for interfaces that differ.

use crate::bytes::ByteOrder;
use crate::error::{ErrorKind, Fault};
use crate::link;
use crate::packet::{Record, Timestamp};
use crate::source::Source;

/// Type of the block that begins a section; it reads the same in both byte orders.
pub const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// The number that tells the byte order of a section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Bytes in front of and behind what a block holds.
const FRAME: u32 = 12;
/// The least and the greatest length of the first section's block: libpcap takes others for text files.
const FIRST_SECTION: (u32, u32) = (28, 1 << 20);
/// The longest block, unless an interface has longer packets.
const LONGEST_BLOCK: u32 = 16 << 20;
/// How much longer a block may be than its packet.
const OPTIONS: u32 = 128 << 10;
/// How many interfaces of a section are kept: no capture has as many, and it bounds the memory.
const MOST_INTERFACES: usize = 1 << 16;

/// Options of an interface that tell what its time stamps mean.
const OPTION_END: u16 = 0;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

/// What is to be known of an interface.
#[derive(Clone, Copy)]
pub struct Interface {
    /// Its `LINKTYPE_` number.
    pub link_type: u16,
    /// The longest packet that it has, in bytes.
    pub snapshot: u32,
    /// Units of its time stamps in a second.
    resolution: u64,
    /// Seconds to be added to its time stamps (two's complement).
    offset: u64,
}

/// A block in the buffer.
struct Block {
    kind: u32,
    /// Where it begins in the file.
    start: u64,
    /// Length of the whole block; it begins with the buffer.
    length: usize,
}

/// Reads the packets of one file.
pub struct Reader {
    order: ByteOrder,
    first_order: ByteOrder,
    first: Interface,
    interfaces: Vec<Interface>,
    longest_block: u32,
}

/// A packet's fields, before its interface is looked at.
struct Fields {
    interface: u32,
    stamp: u64,
    /// Nothing if the block does not say.
    captured: Option<u32>,
    length: u32,
    /// Where the data begins in the block.
    data: usize,
}

impl Reader {
    /// Reads up to the first interface; the first 4 bytes of the file are in `buffer`.
    pub fn open(source: &mut Source, buffer: &mut Vec<u8>) -> Result<Self, Fault> {
        let order = first_section(source, buffer)?;
        let first = Interface { link_type: 0, snapshot: 0, resolution: 1, offset: 0 };
        let mut reader =
            Self { order, first_order: order, first, interfaces: Vec::new(), longest_block: LONGEST_BLOCK };
        loop {
            let start = source.offset();
            let none = Fault { offset: start, kind: ErrorKind::NoInterfaces };
            let block = reader.block(source, buffer)?.ok_or(none)?;
            match block.kind {
                INTERFACE => {
                    reader.interface(buffer, &block)?;
                    reader.first = reader.interfaces[0];
                    reader.first_order = reader.order;
                    return Ok(reader);
                }
                SECTION => reader.section(buffer, &block)?,
                OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET => return Err(block.fault(ErrorKind::NoInterfaces)),
                _ => {}
            }
        }
    }

    /// The next packet; nothing at the end. Its data is in `buffer`.
    pub fn next(&mut self, source: &mut Source, buffer: &mut Vec<u8>) -> Result<Option<Record>, Fault> {
        while let Some(block) = self.block(source, buffer)? {
            match block.kind {
                INTERFACE => self.interface(buffer, &block)?,
                SECTION => self.section(buffer, &block)?,
                _ => {
                    if let Some(fields) = self.fields(buffer, &block)? {
                        return self.record(&block, &fields).map(Some);
                    }
                }
            }
        }
        Ok(None)
    }

    /// The first interface of the file.
    pub fn first(&self) -> &Interface {
        &self.first
    }

    /// The byte order of the first interface's section.
    pub fn first_order(&self) -> ByteOrder {
        self.first_order
    }

    /// Reads a whole block into `buffer`; nothing at the end of the file.
    fn block(&mut self, source: &mut Source, buffer: &mut Vec<u8>) -> Result<Option<Block>, Fault> {
        let start = source.offset();
        buffer.clear();
        match source.append(buffer, 8)? {
            0 => return Ok(None),
            8 => {}
            part => return Err(source.truncated(8, part)),
        }
        let kind = self.order.u32(buffer, 0);
        if kind == SECTION {
            source.append_all(buffer, 4)?;
            self.order = section_order(buffer).map_err(|kind| Fault { offset: start, kind })?;
        }
        let length = self.order.u32(buffer, 4);
        let least = if kind == SECTION { FRAME + 4 } else { FRAME };
        let most = self.longest_block;
        if length < least || length > most || !length.is_multiple_of(4) {
            return Err(Fault { offset: start, kind: ErrorKind::BlockLength { length, least, most } });
        }
        let block = Block { kind, start, length: length as usize };
        source.append_all(buffer, block.length - buffer.len())?;
        let tail = self.order.u32(buffer, block.length - 4);
        if tail != length {
            return Err(block.fault(ErrorKind::BlockEnd { head: length, tail }));
        }
        Ok(Some(block))
    }

    /// Begins a section, whose byte order is known already.
    fn section(&mut self, buffer: &[u8], block: &Block) -> Result<(), Fault> {
        block.holds(8, 16)?;
        let (major, minor) = (self.order.u16(buffer, 12), self.order.u16(buffer, 14));
        if major != 1 {
            return Err(block.fault(ErrorKind::Version { major, minor }));
        }
        self.interfaces.clear();
        Ok(())
    }

    /// Takes in the description of an interface.
    fn interface(&mut self, buffer: &[u8], block: &Block) -> Result<(), Fault> {
        block.holds(8, 8)?;
        if self.interfaces.len() == MOST_INTERFACES {
            return Err(block.fault(ErrorKind::Interfaces(MOST_INTERFACES)));
        }
        let link_type = self.order.u16(buffer, 8);
        let snapshot = link::snapshot(link_type, self.order.u32(buffer, 12));
        let mut interface = Interface { link_type, snapshot, resolution: 1_000_000, offset: 0 };
        self.options(buffer, block, &mut interface)?;
        self.interfaces.push(interface);
        self.longest_block = self.longest_block.max(link::longest_packet(link_type) + OPTIONS + FRAME + 20);
        Ok(())
    }

    /// Reads the options that tell what time stamps mean. Each may be there once.
    fn options(&self, buffer: &[u8], block: &Block, interface: &mut Interface) -> Result<(), Fault> {
        let (mut at, mut seen) = (16, Vec::new());
        while at < block.end() {
            block.holds(at, 4)?;
            let (code, length) = (self.order.u16(buffer, at), usize::from(self.order.u16(buffer, at + 2)));
            block.holds(at + 4, length.next_multiple_of(4))?;
            let value = &buffer[at + 4..at + 4 + length];
            let wrong = || block.fault(ErrorKind::InterfaceOption(code));
            let expected = match code {
                OPTION_END => 0,
                OPTION_RESOLUTION => 1,
                OPTION_OFFSET => 8,
                _ => length,
            };
            if length != expected {
                return Err(wrong());
            }
            match code {
                OPTION_END => break,
                OPTION_RESOLUTION | OPTION_OFFSET if seen.contains(&code) => return Err(wrong()),
                OPTION_RESOLUTION => interface.resolution = resolution(value[0]).ok_or_else(wrong)?,
                OPTION_OFFSET => interface.offset = self.order.u64(value, 0),
                _ => {}
            }
            if [OPTION_RESOLUTION, OPTION_OFFSET].contains(&code) {
                seen.push(code);
            }
            at += 4 + length.next_multiple_of(4);
        }
        Ok(())
    }

    /// The fields of a packet; nothing if the block is none.
    fn fields(&self, buffer: &[u8], block: &Block) -> Result<Option<Fields>, Fault> {
        let word = |at| self.order.u32(buffer, at);
        let stamp = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        match block.kind {
            ENHANCED_PACKET | OBSOLETE_PACKET => {
                block.holds(8, 20)?;
                let short = u32::from(self.order.u16(buffer, 8));
                let interface = if block.kind == OBSOLETE_PACKET { short } else { word(8) };
                let (captured, length) = (Some(word(20)), word(24));
                Ok(Some(Fields { interface, stamp: stamp(12), captured, length, data: 28 }))
            }
            SIMPLE_PACKET => {
                block.holds(8, 4)?;
                Ok(Some(Fields { interface: 0, stamp: 0, captured: None, length: word(8), data: 12 }))
            }
            _ => Ok(None),
        }
    }

    /// The packet with these fields.
    fn record(&self, block: &Block, fields: &Fields) -> Result<Record, Fault> {
        let unknown = block.fault(ErrorKind::NoInterface(fields.interface));
        let interface = self.interfaces.get(fields.interface as usize).ok_or(unknown)?;
        let captured = fields.captured.unwrap_or(fields.length.min(interface.snapshot));
        if captured > interface.snapshot {
            let (length, limit) = (captured, interface.snapshot);
            return Err(block.fault(ErrorKind::CapturedLength { length, limit }));
        }
        block.holds(fields.data, captured as usize)?;
        let simple = block.kind == SIMPLE_PACKET;
        Ok(Record {
            data: fields.data..fields.data + captured as usize,
            length: fields.length,
            link_type: interface.link_type,
            order: self.order,
            timestamp: if simple { Timestamp::default() } else { interface.moment(fields.stamp) },
            interface: fields.interface,
        })
    }
}

impl Block {
    /// Where the block's contents end.
    fn end(&self) -> usize {
        self.length - 4
    }

    /// Whether the block has `length` bytes at `at`.
    fn holds(&self, at: usize, length: usize) -> Result<(), Fault> {
        let fits = at.checked_add(length).is_some_and(|end| end <= self.end());
        if fits { Ok(()) } else { Err(self.fault(ErrorKind::ShortBlock(self.kind))) }
    }

    fn fault(&self, kind: ErrorKind) -> Fault {
        Fault { offset: self.start, kind }
    }
}

impl Interface {
    /// What a time stamp of this interface means, rounded down to nanoseconds.
    fn moment(&self, stamp: u64) -> Timestamp {
        let seconds = (stamp / self.resolution).wrapping_add(self.offset) as i64;
        let fraction = u128::from(stamp % self.resolution) * 1_000_000_000 / u128::from(self.resolution);
        Timestamp { seconds, nanoseconds: fraction as u64 }
    }
}

/// Reads the block that begins the file, whose first 4 bytes are in `buffer`, and tells its byte order. As libpcap, it is
/// less strict here than with later blocks.
fn first_section(source: &mut Source, buffer: &mut Vec<u8>) -> Result<ByteOrder, Fault> {
    let header = |kind| Fault { offset: 0, kind };
    if source.append(buffer, 8)? < 8 {
        return Err(header(ErrorKind::UnknownFormat));
    }
    let order = section_order(buffer).map_err(|_| header(ErrorKind::UnknownFormat))?;
    let length = order.u32(buffer, 4);
    let (least, most) = FIRST_SECTION;
    if !(least..=most).contains(&length) {
        return Err(header(ErrorKind::BlockLength { length, least, most }));
    }
    source.append_all(buffer, length as usize - 12)?;
    match (order.u16(buffer, 12), order.u16(buffer, 14)) {
        (1, 0 | 2) => Ok(order),
        (major, minor) => Err(Fault { offset: 12, kind: ErrorKind::Version { major, minor } }),
    }
}

/// The byte order of a section whose block's first 12 bytes are in `buffer`.
fn section_order(buffer: &[u8]) -> Result<ByteOrder, ErrorKind> {
    let orders = [ByteOrder::Little, ByteOrder::Big];
    let unknown = ErrorKind::ByteOrder(ByteOrder::HOST.u32(buffer, 8));
    orders.into_iter().find(|order| order.u32(buffer, 8) == BYTE_ORDER).ok_or(unknown)
}

/// Units in a second that the option `if_tsresol` stands for; nothing if they do not fit 64 bits.
fn resolution(option: u8) -> Option<u64> {
    let exponent = u32::from(option & 0x7f);
    if option & 0x80 == 0 { 10u64.checked_pow(exponent) } else { 1u64.checked_shl(exponent) }
}
