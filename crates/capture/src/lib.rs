//! Capture files: pcap and pcapng, plain or compressed with gzip, read as a stream and written as pcap.
//!
//! The one idea: a file means what libpcap says it means. Packets, lengths, time stamps and link types are those that
//! `pcap_open_offline` and `pcap_next_ex` give, with the tolerance of libpcap (old versions, wrong snapshot lengths) and
//! its limits (no record of a damaged file takes more memory than the largest packet of its link type).
//!
//! Where libpcap gives up, this crate goes on: interfaces and sections of one pcapng file may differ in link type,
//! snapshot length and byte order, since every [`Packet`] says its own.
//!
//! ```no_run
//! # fn main() -> Result<(), bpf_capture::Error> {
//! let mut capture = bpf_capture::Capture::open("trace.pcapng.gz".as_ref())?;
//! while let Some(packet) = capture.next_packet()? {
//!     println!("{} of {} bytes, link type {}", packet.captured.len(), packet.length, packet.link_type);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `capture`, `packet` | [`Capture`], [`Packet`]: what is the same for all formats |
//! | `pcap`, `pcapng` | the two formats |
//! | `host_order` | headers that captures hold in the byte order of the capturing host |
//! | [`link`] | link types of files, and libpcap's numbers for them |
//! | `source` | bytes of a file or of the standard input, decompressed |
//! | `writer` | [`Writer`] |
//!
//! No crate of crates.io was taken for the formats: `pcap-file` and `pcap-parser` refuse files that libpcap reads (old
//! versions, patched headers, records longer than the snapshot length), and say of a damaged one neither packet nor place.

mod bytes;
mod capture;
mod error;
mod host_order;
pub mod link;
mod packet;
mod pcap;
mod pcapng;
mod source;
mod writer;

pub use capture::Capture;
pub use error::{Error, ErrorKind};
pub use packet::{Packet, Timestamp};
pub use writer::Writer;
