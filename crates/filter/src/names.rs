//! Names: those of the language, and those that files of the system give.

use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::language::Llc;

/// Bits of an 802.11 frame's first byte that hold its type.
pub(crate) const WLAN_TYPE_MASK: u32 = 0x0c;
/// Bits of an 802.11 frame's first byte that hold its subtype.
pub(crate) const WLAN_SUBTYPE_MASK: u32 = 0xf0;

/// Types of 802.11 frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TypeOfFrame {
    Management,
    Control,
    Data,
}

impl TypeOfFrame {
    const ALL: [TypeOfFrame; 3] = [TypeOfFrame::Management, TypeOfFrame::Control, TypeOfFrame::Data];

    /// The type that bits of the first byte say.
    pub(crate) fn of_bits(bits: u32) -> Option<TypeOfFrame> {
        TypeOfFrame::ALL.into_iter().find(|t| t.bits() == bits)
    }

    fn bits(self) -> u32 {
        match self {
            TypeOfFrame::Management => 0x00,
            TypeOfFrame::Control => 0x04,
            TypeOfFrame::Data => 0x08,
        }
    }

    fn subtypes(self) -> &'static [(&'static str, u32)] {
        match self {
            TypeOfFrame::Management => &[
                ("assocreq", 0x00),
                ("assoc-req", 0x00),
                ("assocresp", 0x10),
                ("assoc-resp", 0x10),
                ("reassocreq", 0x20),
                ("reassoc-req", 0x20),
                ("reassocresp", 0x30),
                ("reassoc-resp", 0x30),
                ("probereq", 0x40),
                ("probe-req", 0x40),
                ("proberesp", 0x50),
                ("probe-resp", 0x50),
                ("beacon", 0x80),
                ("atim", 0x90),
                ("disassoc", 0xa0),
                ("disassociation", 0xa0),
                ("auth", 0xb0),
                ("authentication", 0xb0),
                ("deauth", 0xc0),
                ("deauthentication", 0xc0),
            ],
            TypeOfFrame::Control => &[
                ("bar", 0x80),
                ("ba", 0x90),
                ("ps-poll", 0xa0),
                ("rts", 0xb0),
                ("cts", 0xc0),
                ("ack", 0xd0),
                ("cf-end", 0xe0),
                ("cf-end-ack", 0xf0),
            ],
            TypeOfFrame::Data => &[
                ("data", 0x00),
                ("data-cf-ack", 0x10),
                ("data-cf-poll", 0x20),
                ("data-cf-ack-poll", 0x30),
                ("null", 0x40),
                ("cf-ack", 0x50),
                ("cf-poll", 0x60),
                ("cf-ack-poll", 0x70),
                ("qos-data", 0x80),
                ("qos-data-cf-ack", 0x90),
                ("qos-data-cf-poll", 0xa0),
                ("qos-data-cf-ack-poll", 0xb0),
                ("qos", 0xc0),
                ("qos-cf-poll", 0xe0),
                ("qos-cf-ack-poll", 0xf0),
            ],
        }
    }
}

fn find(table: &[(&str, u32)], name: &str) -> Option<u32> {
    table.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| *v)
}

/// The bits of a type of 802.11 frames.
pub(crate) fn wlan_type(name: &str) -> Option<u32> {
    find(&[("data", 0x08), ("mgt", 0x00), ("management", 0x00), ("ctl", 0x04), ("control", 0x04)], name)
}

/// The bits of a subtype, given the type.
pub(crate) fn wlan_subtype(of: TypeOfFrame, name: &str) -> Option<u32> {
    find(of.subtypes(), name)
}

/// The bits of type and subtype that a subtype's name says.
pub(crate) fn wlan_any_subtype(name: &str) -> Option<u32> {
    [TypeOfFrame::Management, TypeOfFrame::Control, TypeOfFrame::Data]
        .into_iter()
        .find_map(|of| Some(wlan_subtype(of, name)? | of.bits()))
}

/// The bits of a direction of 802.11 frames.
pub(crate) fn wlan_direction(name: &str) -> Option<u32> {
    find(&[("nods", 0), ("tods", 1), ("fromds", 2), ("dstods", 3)], name)
}

/// Kinds of LLC frames by name.
pub(crate) fn llc(name: &str) -> Option<Llc> {
    match name.to_ascii_lowercase().as_str() {
        "i" => return Some(Llc::Information),
        "s" => return Some(Llc::Supervisory),
        "u" => return Some(Llc::Unnumbered),
        _ => {}
    }
    if let Some(v) = find(&[("rr", 0x01), ("rnr", 0x05), ("rej", 0x09)], name) {
        return Some(Llc::SupervisoryOf(v));
    }
    let unnumbered = [
        ("ui", 0x03),
        ("ua", 0x63),
        ("disc", 0x43),
        ("dm", 0x0f),
        ("sabme", 0x6f),
        ("test", 0xe3),
        ("xid", 0xaf),
        ("frmr", 0x87),
    ];
    find(&unnumbered, name).map(Llc::UnnumberedOf)
}

/// Why OpenBSD's packet filter has logged a packet.
pub(crate) fn pf_reason(name: &str) -> Option<u32> {
    let reasons = [
        "match",
        "bad-offset",
        "fragment",
        "short",
        "normalize",
        "memory",
        "bad-timestamp",
        "congestion",
        "ip-option",
        "proto-cksum",
        "state-mismatch",
        "state-insert",
        "state-limit",
        "src-limit",
        "synproxy",
    ];
    reasons.iter().position(|r| r.eq_ignore_ascii_case(name)).map(|i| i as u32)
}

/// What OpenBSD's packet filter has done.
pub(crate) fn pf_action(name: &str) -> Option<u32> {
    let actions = [
        ("pass", 0),
        ("accept", 0),
        ("drop", 1),
        ("block", 1),
        ("scrub", 2),
        ("noscrub", 3),
        ("nat", 4),
        ("nonat", 5),
        ("binat", 6),
        ("nobinat", 7),
        ("rdr", 8),
        ("nordr", 9),
        ("synproxy-drop", 10),
    ];
    find(&actions, name)
}

/// Ethernet types, and LLC's service access points, by name.
pub(crate) fn ether_protocol(name: &str) -> Option<u32> {
    Some(match name {
        "aarp" => 0x80f3,
        "arp" => 0x0806,
        "atalk" => 0x809b,
        "decnet" => 0x6003,
        "ip" => 0x0800,
        "ip6" => 0x86dd,
        "lat" => 0x6004,
        "lldp" => 0x88cc,
        "loopback" => 0x9000,
        "mopdl" => 0x6001,
        "moprc" => 0x6002,
        "rarp" => 0x8035,
        "sca" => 0x6007,
        "slow" => 0x8809,
        "iso" => 0xfe,
        "stp" => 0x42,
        "ipx" => 0xe0,
        "netbeui" => 0xf0,
        _ => return None,
    })
}

/// IP protocols that have a word of their own, for systems without `/etc/protocols`.
pub(crate) fn well_known_protocol(name: &str) -> Option<u32> {
    let known = [
        ("ip", 0),
        ("icmp", 1),
        ("igmp", 2),
        ("igp", 9),
        ("tcp", 6),
        ("udp", 17),
        ("ipv6", 41),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("ipv6-icmp", 58),
        ("ospf", 89),
        ("pim", 103),
        ("vrrp", 112),
        ("sctp", 132),
    ];
    // As in that file: other than words of 802.11, names of protocols are told apart by case.
    known.into_iter().find(|(n, _)| *n == name).map(|(_, number)| number)
}

/// Two to four numbers with dots: the address, and how many of its bits they give. `None`: one is above 255.
pub(crate) fn ipv4(text: &str) -> Option<(u32, u32)> {
    let mut address = 0u32;
    let mut bits = 0;
    for part in text.split('.') {
        address = address << 8 | part.parse::<u8>().ok().map(u32::from)?;
        bits += 8;
    }
    Some((address, bits))
}

/// A DECnet address: area and node, with a dot.
pub(crate) fn decnet(text: &str) -> Option<u32> {
    let (area, node) = text.split_once('.')?;
    let (area, node): (u32, u32) = (area.parse().ok()?, node.parse().ok()?);
    (area <= 63 && node <= 1023).then_some(area << 10 | node)
}

/// The text of a file, with spaces for comments, which go from `#` to the end of a line, and for a mark of byte order before it.
/// Comments may be in any encoding.
///
/// # Errors
/// If the file cannot be read, or what is no comment is not UTF-8.
pub fn text_of_file(path: &Path) -> io::Result<String> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut bytes = std::fs::read(path)?;
    if bytes.starts_with(MARK) {
        bytes[..MARK.len()].fill(b' ');
    }
    let mut is_comment = false;
    for byte in &mut bytes {
        is_comment = *byte != b'\n' && (is_comment || *byte == b'#');
        if is_comment {
            *byte = b' ';
        }
    }
    String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}

/// The lines of a file that holds a set: addresses, networks or ports, one a line, `#` before comments.
///
/// # Errors
/// If the file cannot be read.
pub fn set_of_file(path: &Path) -> io::Result<Vec<String>> {
    let text = text_of_file(path)?;
    Ok(text.lines().map(str::trim).filter(|e| !e.is_empty()).map(str::to_owned).collect())
}

/// An address as a filter writes it.
pub(crate) fn dotted(address: u32) -> impl Display {
    Ipv4Addr::from(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_few_numbers_give_few_bits() {
        assert_eq!(ipv4("10.1"), Some((0x0a01, 16)));
        assert_eq!(ipv4("1.2.3.256"), None);
        assert_eq!(decnet("1.2"), Some(1 << 10 | 2));
        assert_eq!(decnet("64.120"), None);
    }
}
