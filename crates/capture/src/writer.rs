//! Writes pcap files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::packet::{Packet, Timestamp};
use crate::pcap;

/// How many bytes are gathered before they are written; always whole records.
const BUFFER: usize = 1 << 18;

/// A pcap file that is being written, in the byte order of this machine. It ends with a whole record at any time, so
/// that what was written is valid whenever writing stops.
pub struct Writer {
    path: PathBuf,
    output: Box<dyn Write + Send>,
    waiting: Vec<u8>,
    snapshot: u32,
    nanoseconds: bool,
    packets: u64,
    written: u64,
}

impl Writer {
    /// Creates the file at `path` (`-`: the standard output) and writes its header. `link_type` is a `LINKTYPE_` number,
    /// `snapshot` the greatest captured length in bytes (0: no limit); time stamps are written in nanoseconds or else in
    /// microseconds.
    ///
    /// # Errors
    /// If the file cannot be created or written.
    pub fn create(path: &Path, link_type: u16, snapshot: u32, nanoseconds: bool) -> Result<Self, Error> {
        let failed = |why| Error { path: path.to_owned(), packet: None, offset: 0, kind: ErrorKind::Open(why) };
        let output: Box<dyn Write + Send> = match path == Path::new("-") {
            true => Box::new(io::stdout()),
            false => Box::new(File::create(path).map_err(failed)?),
        };
        let mut writer =
            Self { path: path.to_owned(), output, waiting: vec![], snapshot, nanoseconds, packets: 0, written: 0 };
        let magic = if nanoseconds { pcap::NANOSECONDS } else { pcap::MAGIC };
        writer.waiting.extend(magic.to_ne_bytes());
        writer.waiting.extend([2u16, 4].map(u16::to_ne_bytes).as_flattened());
        let words = [0, 0, snapshot, u32::from(link_type)];
        writer.waiting.extend(words.map(u32::to_ne_bytes).as_flattened());
        writer.flush()?;
        Ok(writer)
    }

    /// Appends a packet, cut to the snapshot length, with its time stamp (seconds as far as 32 bits go, until 2106).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<(), Error> {
        let limit = if self.snapshot == 0 { usize::MAX } else { self.snapshot as usize };
        let captured = &packet.captured[..packet.captured.len().min(limit)];
        let (seconds, fraction) = self.stamp(packet.timestamp);
        let words = [seconds, fraction, captured.len() as u32, packet.length];
        self.waiting.extend(words.map(u32::to_ne_bytes).as_flattened());
        self.waiting.extend(captured);
        self.packets += 1;
        if self.waiting.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Seconds and fraction as the file has them. What a damaged file says beyond a second is kept if it fits; otherwise
    /// whole seconds go to the seconds.
    fn stamp(&self, timestamp: Timestamp) -> (u32, u32) {
        let Timestamp { seconds, nanoseconds } = timestamp;
        let units = if self.nanoseconds { 1 } else { 1000 };
        match u32::try_from(nanoseconds / units) {
            Ok(fraction) => (seconds as u32, fraction),
            Err(_) => {
                let whole = (nanoseconds / 1_000_000_000) as u32;
                ((seconds as u32).wrapping_add(whole), (nanoseconds % 1_000_000_000 / units) as u32)
            }
        }
    }

    /// Writes what waits to be written.
    ///
    /// # Errors
    /// If that fails; the packet that the error names is the last one given.
    pub fn flush(&mut self) -> Result<(), Error> {
        let done = self.output.write_all(&self.waiting).and_then(|()| self.output.flush());
        let packet = (self.packets > 0).then_some(self.packets);
        let offset = self.written;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        done.map_err(|why| Error { path: self.path.clone(), packet, offset, kind: ErrorKind::Io(why) })
    }

    /// How many packets have been given to it.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

impl Drop for Writer {
    /// Writes what waits. Who has to know whether that went well calls [`Writer::flush`] before.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}
