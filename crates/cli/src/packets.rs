//! Where `run` and `difftest` get their packets from: digits, files, captures.

use std::path::Path;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::files;

/// First bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// What a program runs on if the user gives nothing: an empty Ethernet frame of the least length.
const DEFAULT_BYTES: usize = 64;

/// The packets the user asked for, in order; at least one.
pub fn packets(args: &RunArgs) -> Result<Vec<Vec<u8>>, Failure> {
    if let Some(digits) = &args.packet {
        return Ok(vec![hex(digits).map_err(|e| Failure::bad_input(format!("--packet: {e}")))?]);
    }
    if let Some(path) = &args.packet_file {
        return Ok(vec![files::read(path)?]);
    }
    match &args.pcap {
        Some(path) => capture(path),
        None => Ok(vec![vec![0; DEFAULT_BYTES]]),
    }
}

/// The bytes written as hexadecimal digits; white space, colons and a leading `0x` do not count.
pub fn hex(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    let text = text.strip_prefix("0x").unwrap_or(text);
    let digits = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != ':')
        .map(|c| c.to_digit(16).map(|d| d as u8).ok_or_else(|| format!("`{c}` is no hexadecimal digit")))
        .collect::<Result<Vec<u8>, String>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err(format!("{} digits are not a whole number of bytes", digits.len()));
    }
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The packets of a pcap or pcapng file; at least one.
pub fn capture(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let bytes = files::read(path)?;
    let bad = |e: &dyn std::fmt::Display| {
        Failure::bad_input(format!("{}: not a readable pcap or pcapng file: {e}", path.display()))
            .with_hint("captures are made with `tcpdump -w FILE`")
    };
    let mut packets = Vec::new();
    if bytes.starts_with(&PCAPNG) {
        let mut reader = PcapNgReader::new(&*bytes).map_err(|e| bad(&e))?;
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| bad(&e))? {
                Block::EnhancedPacket(p) => packets.push(p.data.into_owned()),
                Block::SimplePacket(p) => packets.push(p.data.into_owned()),
                Block::Packet(p) => packets.push(p.data.into_owned()),
                _ => {}
            }
        }
    } else {
        let mut reader = PcapReader::new(&*bytes).map_err(|e| bad(&e))?;
        while let Some(packet) = reader.next_packet() {
            packets.push(packet.map_err(|e| bad(&e))?.data.into_owned());
        }
    }
    if packets.is_empty() {
        return Err(Failure::bad_input(format!("{}: no packet in it", path.display())));
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_may_be_grouped() {
        assert_eq!(hex("0xde:ad be\nef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(hex(""), Ok(vec![]));
        assert!(hex("abc").is_err() && hex("zz").is_err());
    }
}
