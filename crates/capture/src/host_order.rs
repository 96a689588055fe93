//! Headers that the capturing host wrote in its own byte order: they are turned into that of this host, as libpcap does
//! (`pcap-util.c`). Everything else in a packet is in network order.

use crate::bytes::ByteOrder;

const LINUX_SLL: u16 = 113;
const PFLOG: u16 = 117;
const USB_LINUX: u16 = 189;
const USB_LINUX_MMAPPED: u16 = 220;
const NFLOG: u16 = 239;
const LINUX_SLL2: u16 = 276;

/// Protocols of cooked captures that have a SocketCAN header behind: CAN and CAN FD.
const CAN: [u16; 2] = [0x000c, 0x000d];

/// Offsets in the header of a USB capture.
mod usb {
    /// Kind of event; `C`: complete.
    pub const EVENT: usize = 8;
    /// Kind of transfer; 0: isochronous.
    pub const TRANSFER: usize = 9;
    /// Endpoint; the highest bit: towards the host.
    pub const ENDPOINT: usize = 10;
    /// 0 if data follows.
    pub const DATA_FLAG: usize = 15;
    /// Length of the whole transfer's data.
    pub const TRANSFER_LENGTH: usize = 32;
    /// How many descriptors of isochronous packets follow.
    pub const DESCRIPTORS: usize = 60;
    /// Length of the long header.
    pub const HEADER: usize = 64;
    /// Length of a descriptor: status, offset, length, padding.
    pub const DESCRIPTOR: usize = 16;
    /// Numbers of both headers: offset, width.
    pub const NUMBERS: [(usize, usize); 7] = [(0, 8), (12, 2), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4)];
    /// Numbers that only isochronous transfers have.
    pub const ISOCHRONOUS: [(usize, usize); 2] = [(40, 4), (44, 4)];
    /// Numbers at the end of the long header.
    pub const LONG: [(usize, usize); 4] = [(48, 4), (52, 4), (56, 4), (60, 4)];
}

/// Turns what `captured` holds in the order of another host (`swapped`) into that of this one. Returns the packet's
/// length on the wire, which old captures of USB have wrong.
pub fn convert(link_type: u16, swapped: bool, captured: &mut [u8], length: u32) -> u32 {
    if swapped {
        match link_type {
            PFLOG => pflog(captured, length),
            LINUX_SLL => can(captured, length, 14, 16),
            LINUX_SLL2 => can(captured, length, 0, 20),
            USB_LINUX => usb_short(captured),
            USB_LINUX_MMAPPED => usb_long(captured),
            NFLOG => nflog(captured, length),
            _ => {}
        }
    }
    if link_type == USB_LINUX_MMAPPED { usb_length(captured, length) } else { length }
}

/// Reverses the number of `width` bytes at `at`, if it is there as a whole.
fn swap(bytes: &mut [u8], (at, width): (usize, usize)) {
    if let Some(number) = bytes.get_mut(at..at + width) {
        number.reverse();
    }
}

/// How much of a packet counts: what was captured and was on the wire.
fn both(captured: &[u8], length: u32) -> usize {
    captured.len().min(length as usize)
}

/// User and process of state and rule. The first byte is the header's length.
fn pflog(captured: &mut [u8], length: u32) {
    let there = both(captured, length).min(usize::from(*captured.first().unwrap_or(&0)));
    for at in [44, 48, 52, 56] {
        swap(&mut captured[..there], (at, 4));
    }
}

/// The identifier behind a cooked header of `header` bytes with its protocol at `protocol`.
fn can(captured: &mut [u8], length: u32, protocol: usize, header: usize) {
    let there = both(captured, length);
    if there >= header && CAN.contains(&ByteOrder::Big.u16(captured, protocol)) {
        swap(&mut captured[..there], (header, 4));
    }
}

/// The header of 48 bytes.
fn usb_short(captured: &mut [u8]) {
    for number in usb::NUMBERS {
        swap(captured, number);
    }
    if captured.get(usb::TRANSFER) == Some(&0) {
        for number in usb::ISOCHRONOUS {
            swap(captured, number);
        }
    }
}

/// The header of 64 bytes, and the descriptors of an isochronous transfer.
fn usb_long(captured: &mut [u8]) {
    usb_short(captured);
    for number in usb::LONG {
        swap(captured, number);
    }
    if captured.len() < usb::HEADER || captured[usb::TRANSFER] != 0 {
        return;
    }
    let count = ByteOrder::HOST.u32(captured, usb::DESCRIPTORS) as usize;
    for descriptor in captured[usb::HEADER..].chunks_mut(usb::DESCRIPTOR).take(count) {
        for at in [0, 4, 8] {
            swap(descriptor, (at, 4));
        }
    }
}

/// The length of a USB packet. Old versions of libpcap took the length of the transfer for that of the data; where
/// descriptors say how far the data of an isochronous transfer goes, it is the end of the last one (libpcap's
/// `pcap-usb-linux-common.c`).
fn usb_length(captured: &[u8], length: u32) -> u32 {
    if captured.len() < usb::HEADER || captured[usb::DATA_FLAG] != 0 {
        return length;
    }
    let word = |at| ByteOrder::HOST.u32(captured, at);
    let count = word(usb::DESCRIPTORS);
    let heads = count.wrapping_mul(usb::DESCRIPTOR as u32).wrapping_add(usb::HEADER as u32);
    let suspicious = length == heads.wrapping_add(word(usb::TRANSFER_LENGTH));
    let incoming = captured[usb::ENDPOINT] & 0x80 != 0;
    if !suspicious || captured[usb::TRANSFER] != 0 || captured[usb::EVENT] != b'C' || !incoming {
        return length;
    }
    let descriptors = captured[usb::HEADER..].chunks_exact(usb::DESCRIPTOR).take(count as usize);
    let ends = descriptors.map(|d| (ByteOrder::HOST.u32(d, 4), ByteOrder::HOST.u32(d, 8)));
    let data = ends.filter(|(_, size)| *size != 0).map(|(at, size)| at.wrapping_add(size)).max().unwrap_or(0);
    let (whole, least) = (heads.wrapping_add(data), captured.len() as u32);
    if whole >= least { whole } else { length.max(least) }
}

/// Lengths and types of the attributes behind the header of 4 bytes.
fn nflog(captured: &mut [u8], length: u32) {
    let there = both(captured, length);
    if there < 4 || captured[1] != 0 {
        return;
    }
    let mut at = 4;
    // As libpcap, an attribute's head is turned even if it is not there as a whole on the wire.
    while captured.len() >= at + 4 {
        swap(captured, (at, 2));
        swap(captured, (at + 2, 2));
        let size = ByteOrder::HOST.u16(captured, at);
        let padded = usize::from(size.wrapping_add(size.wrapping_neg() % 4));
        if padded < 4 || there < at + padded {
            return;
        }
        at += padded;
    }
}
