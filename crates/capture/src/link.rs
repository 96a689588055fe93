//! Link types: the `LINKTYPE_` numbers of files, and the `DLT_` numbers that libpcap's functions take.
//!
//! They are the same but for a few, whose `DLT_` numbers differ between systems. The table is that of Linux: libpcap's
//! `pcap-common.c` and `pcap/dlt.h`.

/// Numbers that differ: (`LINKTYPE_`, `DLT_`).
const DIFFERENT: [(u16, u16); 6] = [
    (100, 11), // ATM_RFC1483
    (101, 12), // RAW
    (102, 15), // SLIP_BSDOS
    (103, 16), // PPP_BSDOS
    (106, 19), // ATM_CLIP
    (246, 18), // PFSYNC
];

const DBUS: u16 = 231;
const USBPCAP: u16 = 249;
const EBHSCR: u16 = 279;

/// The `DLT_` number of the link type of a file. Numbers that are not known stand for themselves.
pub fn dlt(link_type: u16) -> u16 {
    DIFFERENT.iter().find(|(link, _)| *link == link_type).map_or(link_type, |(_, dlt)| *dlt)
}

/// The link type that a file has for a `DLT_` number.
pub fn of_dlt(dlt: u16) -> u16 {
    DIFFERENT.iter().find(|(_, other)| *other == dlt).map_or(dlt, |(link, _)| *link)
}

/// The longest packet of a link type, in bytes; what claims to be longer is damaged. Source: libpcap's
/// `max_snaplen_for_dlt`.
pub fn longest_packet(link_type: u16) -> u32 {
    match link_type {
        DBUS => 128 << 20,
        EBHSCR => 8 << 20,
        USBPCAP => 1 << 20,
        _ => 262_144,
    }
}

/// The snapshot length to go by when a file says `stated`: 0 and what does not fit 31 bits stand for the longest packet.
pub(crate) fn snapshot(link_type: u16, stated: u32) -> u32 {
    if stated == 0 || stated > i32::MAX as u32 { longest_packet(link_type) } else { stated }
}
