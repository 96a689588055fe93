//! Packets of the test, and where their clocks stand.

use crate::network::{BACK_ADDRESS, IN_MAC};
use crate::programs::MARK;

/// Bytes of the shortest packet, without its checksum (RFC 2544, 9.1: 64 with it).
const SHORTEST: usize = 60;
/// Bytes of a mark and its clock.
const STAMP: usize = 16;

/// The address of the tester on the sending side, which nobody answers.
const FROM: [u8; 4] = [198, 18, 0, 2];

/// A packet, and where its clock stands.
#[derive(Clone, Debug)]
pub struct Packet {
    /// As it is sent, with a mark and no clock.
    pub bytes: Vec<u8>,
    /// Where the clock is put.
    pub stamp: usize,
}

impl Packet {
    /// The same packet with a mark and a clock behind it, and as long as a packet has to be.
    pub fn stamped(mut bytes: Vec<u8>) -> Packet {
        bytes.resize(bytes.len().max(SHORTEST - STAMP), 0);
        bytes.extend(MARK.to_le_bytes());
        let stamp = bytes.len();
        bytes.extend([0; 8]);
        Packet { bytes, stamp }
    }

    /// Where the clock stands in a packet that has come back; `None` without a mark.
    pub fn stamp_in(bytes: &[u8]) -> Option<usize> {
        let mark = MARK.to_le_bytes();
        bytes.windows(mark.len()).position(|window| window == mark).map(|at| at + mark.len())
    }
}

/// The destination of [`udp`], in the order of bytes on the wire.
pub fn destination() -> [u8; 4] {
    BACK_ADDRESS.parse().map_or([0; 4], |address: std::net::Ipv4Addr| address.octets())
}

/// The shortest packet of UDP over IPv4, to the network behind the device.
pub fn udp() -> Packet {
    let mut bytes = mac(IN_MAC).to_vec();
    bytes.extend(mac("02:00:00:00:00:03"));
    bytes.extend([0x08, 0x00]);
    let length = (SHORTEST - bytes.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(length.to_be_bytes());
    // Neither fragments nor a checksum yet; a lifetime of 64, UDP.
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(FROM);
    ip.extend(destination());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let payload = length - ip.len() as u16;
    bytes.extend(ip);
    // Port 9 discards. No checksum.
    bytes.extend([0x04, 0xd2, 0, 9]);
    bytes.extend(payload.to_be_bytes());
    bytes.extend([0, 0]);
    Packet::stamped(bytes)
}

/// A hardware address as bytes; what is no number counts as 0.
pub fn mac(text: &str) -> [u8; 6] {
    let mut bytes = [0; 6];
    for (byte, word) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(word, 16).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_udp_is_the_shortest_and_its_sum_is_right() {
        let packet = udp();
        assert_eq!(packet.bytes.len(), SHORTEST);
        let sum: u32 =
            packet.bytes[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(Packet::stamp_in(&packet.bytes), Some(packet.stamp));
        assert_eq!(packet.stamp + 8, packet.bytes.len());
    }

    #[test]
    fn a_clock_is_found_where_a_header_was_put_before_it() {
        let packet = udp();
        let longer = [vec![7; 20], packet.bytes.clone()].concat();
        assert_eq!(Packet::stamp_in(&longer), Some(packet.stamp + 20));
        assert_eq!(Packet::stamp_in(&packet.bytes[..40]), None);
    }
}
