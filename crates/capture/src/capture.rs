//! A capture that is read from its beginning to its end, whatever its format.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::bytes::ByteOrder;
use crate::error::{Error, ErrorKind, Fault};
use crate::packet::{Packet, Record};
use crate::source::Source;
use crate::{host_order, pcap, pcapng};

/// An open capture file. One packet is in memory at a time.
pub struct Capture {
    path: PathBuf,
    source: Source,
    format: Format,
    buffer: Vec<u8>,
    packets: u64,
    ended: bool,
}

enum Format {
    Pcap(pcap::Reader),
    PcapNg(pcapng::Reader),
}

impl Capture {
    /// Opens the file at `path` (`-`: the standard input) and reads its header (of pcapng up to the first interface).
    ///
    /// # Errors
    /// If it cannot be opened, is no capture, or ends in its header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why| Error { path: path.to_owned(), packet: None, offset: 0, kind: ErrorKind::Open(why) };
        Self::of_source(path, Source::open(path).map_err(failed)?)
    }

    /// Reads from `input`; errors name it `name`.
    ///
    /// # Errors
    /// If it is no capture or ends in its header.
    pub fn from_reader(name: &Path, input: impl Read + Send + 'static) -> Result<Self, Error> {
        let failed = |why| Error { path: name.to_owned(), packet: None, offset: 0, kind: ErrorKind::Io(why) };
        Self::of_source(name, Source::new(Box::new(input), None).map_err(failed)?)
    }

    fn of_source(path: &Path, mut source: Source) -> Result<Self, Error> {
        let mut buffer = Vec::new();
        let format = Format::open(&mut source, &mut buffer).map_err(|fault| Error {
            path: path.to_owned(),
            packet: None,
            offset: fault.offset,
            kind: fault.kind,
        })?;
        Ok(Self { path: path.to_owned(), source, format, buffer, packets: 0, ended: false })
    }

    /// The next packet; nothing at the end of the file, and after an error.
    ///
    /// # Errors
    /// If the rest cannot be read. All packets before are valid.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let found = match &mut self.format {
            Format::Pcap(reader) => reader.next(&mut self.source, &mut self.buffer),
            Format::PcapNg(reader) => reader.next(&mut self.source, &mut self.buffer),
        };
        let record = match found {
            Ok(Some(record)) => record,
            Ok(None) => {
                self.ended = true;
                return Ok(None);
            }
            Err(Fault { offset, kind }) => {
                self.ended = true;
                return Err(Error { path: self.path.clone(), packet: Some(self.packets + 1), offset, kind });
            }
        };
        self.packets += 1;
        let captured = &mut self.buffer[record.data.clone()];
        let swapped = record.order != ByteOrder::HOST;
        let length = host_order::convert(record.link_type, swapped, captured, record.length);
        let Record { link_type, timestamp, interface, .. } = record;
        Ok(Some(Packet { captured, length, link_type, swapped, timestamp, interface }))
    }

    /// How many packets have been read.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The `LINKTYPE_` number of the file; of pcapng that of its first interface. Each packet says its own.
    pub fn link_type(&self) -> u16 {
        match &self.format {
            Format::Pcap(reader) => reader.link_type(),
            Format::PcapNg(reader) => reader.first().link_type,
        }
    }

    /// The snapshot length of the file in bytes; of pcapng that of its first interface. Where the file has none, it is the
    /// length of the longest packet.
    pub fn snapshot(&self) -> u32 {
        match &self.format {
            Format::Pcap(reader) => reader.snapshot(),
            Format::PcapNg(reader) => reader.first().snapshot,
        }
    }

    /// Whether the file was written in another byte order than that of this machine; of pcapng its first section.
    pub fn swapped(&self) -> bool {
        let order = match &self.format {
            Format::Pcap(reader) => reader.order(),
            Format::PcapNg(reader) => reader.first_order(),
        };
        order != ByteOrder::HOST
    }

    /// How much of the file has been taken in, in bytes of [`Self::size`]; a buffer ahead of the packets read.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// Length of the file in bytes, as it is on disk; nothing for pipes.
    pub fn size(&self) -> Option<u64> {
        self.source.size()
    }
}

impl Format {
    fn open(source: &mut Source, buffer: &mut Vec<u8>) -> Result<Self, Fault> {
        source.append_all(buffer, 4)?;
        if *buffer == pcapng::SECTION.to_le_bytes() {
            return pcapng::Reader::open(source, buffer).map(Self::PcapNg);
        }
        pcap::Reader::open(source, buffer).map(Self::Pcap)
    }
}
