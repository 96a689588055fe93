//! What can be wrong with a capture file, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A capture that could not be read or written any further. What was read or written before is valid.
///
/// The text names the file, the packet and the byte: `trace.pcap: truncated in packet 17 at byte 4711: 60 bytes are
/// needed, 12 are there`.
#[derive(Debug)]
pub struct Error {
    pub(crate) path: PathBuf,
    pub(crate) packet: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) kind: ErrorKind,
}

/// A fault found by a reader, which knows neither the file's name nor how many packets came before.
#[derive(Debug)]
pub struct Fault {
    /// Bytes from the beginning, behind decompression.
    pub offset: u64,
    /// What is wrong there.
    pub kind: ErrorKind,
}

impl Error {
    /// The file, as it was named when it was opened (`-`: the standard input or output).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the packet that could not be read or written, from 1; nothing if the file's header is to blame.
    pub fn packet(&self) -> Option<u64> {
        self.packet
    }

    /// Where in the file, in bytes from its beginning (of a compressed one: in what it holds). Of a truncated file it is
    /// its end, otherwise the beginning of the record that is wrong.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let place = match self.packet {
            Some(packet) => format!("in packet {packet} at byte {}", self.offset),
            None => format!("in the file's header at byte {}", self.offset),
        };
        match &self.kind {
            ErrorKind::Open(why) => write!(f, "{path}: {why}"),
            ErrorKind::UnknownFormat => write!(f, "{path}: neither a pcap nor a pcapng file"),
            ErrorKind::Truncated { needed, found } => {
                write!(f, "{path}: truncated {place}: {needed} bytes are needed, {found} are there")
            }
            other => write!(f, "{path}: {place}: {other}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Open(why) | ErrorKind::Io(why) => Some(why),
            _ => None,
        }
    }
}

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file cannot be opened or created.
    #[error("{0}")]
    Open(io::Error),
    /// Reading, decompressing or writing failed.
    #[error("{0}")]
    Io(io::Error),
    /// The first bytes are those of no known format.
    #[error("neither a pcap nor a pcapng file")]
    UnknownFormat,
    /// The file ends within a header or a packet.
    #[error("truncated: {needed} bytes are needed, {found} are there")]
    Truncated {
        /// Length of the part that is not there as a whole, in bytes.
        needed: u64,
        /// How many of them are there.
        found: u64,
    },
    /// A version that nobody writes.
    #[error("version {major}.{minor} of the format is not known")]
    Version {
        /// The major number.
        major: u16,
        /// The minor number.
        minor: u16,
    },
    /// A pcap header with a link type above 65,535, or with bits set that are reserved.
    #[error("link type {0:#x} is not known")]
    LinkType(u32),
    /// A packet longer than any of its link type, or (pcapng) than the snapshot length.
    #[error("a captured length of {length} bytes, where {limit} are the most")]
    CapturedLength {
        /// What the record says.
        length: u32,
        /// The most it may say.
        limit: u32,
    },
    /// A pcapng block with an impossible length.
    #[error("a block of {length} bytes (at least {least}, at most {most}, a multiple of 4)")]
    BlockLength {
        /// What the block says.
        length: u32,
        /// The least it may say.
        least: u32,
        /// The most it may say.
        most: u32,
    },
    /// The two lengths of a pcapng block differ.
    #[error("a block says {head} bytes at its beginning and {tail} at its end")]
    BlockEnd {
        /// The length in front.
        head: u32,
        /// The length at the end.
        tail: u32,
    },
    /// A pcapng block ends before what it must hold.
    #[error("a block of type {0:#x} is too short for what it holds")]
    ShortBlock(u32),
    /// A pcapng section in no known byte order.
    #[error("a section whose byte order ({0:#010x}) is not known")]
    ByteOrder(u32),
    /// An option of a pcapng interface with a wrong length or value, or one that is there twice.
    #[error("option {0} of an interface is wrong or is there twice")]
    InterfaceOption(u16),
    /// A pcapng packet of an interface that its section does not describe.
    #[error("a packet of interface {0}, which the section does not describe")]
    NoInterface(u32),
    /// A pcapng file in which no interface is described.
    #[error("no interface is described")]
    NoInterfaces,
    /// More interfaces in a pcapng section than are kept.
    #[error("more than {0} interfaces in a section")]
    Interfaces(usize),
}
