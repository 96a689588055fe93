//! Random filters and packets that fit them: expressions of the whole grammar, and captured packets that are changed where filters
//! look.
//!
//! Numbers are few, and those of the packets, so that tests hold about as often as they do not.

use std::fmt::Write as _;

use fastrand::Rng;

const PROTOCOLS: [&str; 34] = [
    "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "igrp", "pim", "vrrp", "carp", "ah",
    "esp", "atalk", "aarp", "decnet", "iso", "stp", "ipx", "netbeui", "lat", "moprc", "mopdl", "sca", "clnp", "esis",
    "isis", "l1", "l2", "iih", "psnp",
];
const INDEXED: [&str; 18] = [
    "ether", "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "igrp", "pim", "vrrp", "atalk",
    "decnet", "lat", "link",
];
const ADDRESSES: [&str; 8] =
    ["10.0.0.1", "10.1.2.3", "192.168.0.1", "192.168.1.2", "127.0.0.1", "224.0.0.1", "255.255.255.255", "172.16.0.3"];
const ADDRESSES6: [&str; 4] = ["fe80::1", "ff02::1", "2001:db8::1", "::1"];
const MACS: [&str; 4] = ["02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"];
const NETS: [&str; 6] =
    ["10.0.0.0/8", "192.168.0.0/16", "10.1", "172.16.0.0 mask 255.240.0.0", "192.168.1.0/24", "0.0.0.0/0"];
const NETS6: [&str; 3] = ["fe80::/16", "2001:db8::/32", "ff00::/8"];
const PORTS: [u32; 10] = [0, 22, 53, 67, 80, 123, 443, 4789, 6081, 65535];
const NAMED: [&str; 12] = [
    "tcpflags",
    "tcp-syn",
    "tcp-ack",
    "tcp-fin",
    "tcp-push",
    "icmptype",
    "icmpcode",
    "icmp-echo",
    "icmp-unreach",
    "icmp6-echo",
    "icmp6type",
    "tcp-cwr",
];
const LLC: [&str; 15] =
    ["", "i", "s", "u", "rr", "rnr", "rej", "ui", "ua", "disc", "dm", "sabme", "test", "xid", "frmr"];

/// Offsets that no packet has; to the kernel they are negative, and some of them stand for headers and for what is beside the packet.
const FAR: [&str; 9] = [
    "0x7ffffffc",
    "0x80000000",
    "0xffe00000",
    "0xfff00000",
    "0xfffff004",
    "0xffffeff6",
    "0xffffffff",
    "0 - 3",
    "0xfff00000 + len",
];
/// Numbers that are 0 once they are computed.
const ZEROS: [&str; 3] = ["33 & 80", "7 - 7", "12 >> 4"];

/// Random filters.
pub struct Expressions<'a> {
    /// What chance says.
    pub random: &'a mut Rng,
}

impl Expressions<'_> {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(0..of.len())]
    }

    /// True once in `n` times.
    fn rarely(&mut self, n: u32) -> bool {
        self.random.u32(0..n) == 0
    }

    /// A filter whose parts nest at most so deep.
    pub fn filter(&mut self, depth: u32) -> String {
        let parts = 1 + self.random.usize(0..4);
        let mut out = String::new();
        for i in 0..parts {
            if i > 0 {
                out.push_str(self.one(&[" and ", " or ", " && ", " || "]));
            }
            if self.rarely(4) {
                out.push_str(self.one(&["not ", "! "]));
            }
            if depth > 0 && self.rarely(3) {
                let inner = self.filter(depth - 1);
                let _ = write!(out, "({inner})");
            } else {
                out.push_str(&self.primitive());
            }
        }
        out
    }

    fn primitive(&mut self) -> String {
        match self.random.u32(0..20) {
            0..=2 => self.one(&PROTOCOLS).to_owned(),
            3..=5 => self.host(),
            6 => self.net(),
            7..=9 => self.port(),
            10 => self.proto(),
            11 => self.encapsulation(),
            12..=15 => self.relation(),
            16 => {
                let protocol = self.one(&["", "ether ", "ip ", "ip6 "]);
                let kind = if protocol == "ip6 " { "multicast" } else { self.one(&["broadcast", "multicast"]) };
                format!("{protocol}{kind}")
            }
            17 => {
                let n = self.one(&[0, 40, 60, 64, 100, 1000]);
                format!("{} {n}", self.one(&["less", "greater"]))
            }
            18 => {
                let (offset, n) = (self.random.u32(0..60), self.random.u32(0..256));
                format!("byte {offset} {} {n}", self.one(&["=", "<", ">"]))
            }
            _ => {
                let kind = self.one(&LLC);
                if self.rarely(3) { format!("llc {kind}") } else { self.one(&PROTOCOLS).to_owned() }
            }
        }
    }

    fn direction(&mut self) -> &'static str {
        self.one(&["", "", "src ", "dst ", "src or dst ", "src and dst "])
    }

    /// One id, or several that share their qualifiers.
    fn ids(&mut self, mut id: impl FnMut(&mut Self) -> String) -> String {
        if !self.rarely(4) {
            return id(self);
        }
        let all: Vec<String> = (0..2 + self.random.usize(0..10)).map(|_| id(self)).collect();
        format!("({})", all.join(" or "))
    }

    fn host(&mut self) -> String {
        let direction = self.direction();
        match self.random.u32(0..6) {
            0 => {
                let ids = self.ids(|s| s.one(&MACS).to_owned());
                format!("ether {}host {ids}", if direction.contains("and") { "" } else { direction })
            }
            1 => {
                let ids = self.ids(|s| s.one(&ADDRESSES6).to_owned());
                format!("{}{direction}host {ids}", self.one(&["", "ip6 "]))
            }
            _ => {
                let ids = self.ids(|s| s.one(&ADDRESSES).to_owned());
                format!("{}{direction}host {ids}", self.one(&["", "", "ip ", "arp ", "rarp "]))
            }
        }
    }

    fn net(&mut self) -> String {
        let direction = self.direction();
        if self.rarely(3) {
            format!("{direction}net {}", self.one(&NETS6))
        } else {
            format!("{direction}net {}", self.one(&NETS))
        }
    }

    fn port(&mut self) -> String {
        let (protocol, direction) = (self.one(&["", "tcp ", "udp ", "sctp "]), self.direction());
        if self.rarely(4) {
            let (a, b) = (self.one(&PORTS), self.one(&PORTS));
            return format!("{protocol}{direction}portrange {a}-{b}");
        }
        let ids = self.ids(|s| s.one(&PORTS).to_string());
        format!("{protocol}{direction}port {ids}")
    }

    fn proto(&mut self) -> String {
        match self.random.u32(0..4) {
            0 => format!("ether proto {}", self.one(&["\\ip", "0x806", "0x88cc", "\\stp", "\\ip6", "2048", "100"])),
            1 => format!("ip6 proto {}", self.one(&[6, 17, 44, 58])),
            _ => format!("{}proto {}", self.one(&["ip ", ""]), self.one(&[1, 6, 17, 50, 51, 132])),
        }
    }

    fn encapsulation(&mut self) -> String {
        let word = self.one(&["vlan", "vlan", "mpls", "pppoed", "pppoes", "geneve"]);
        let number = if word == "pppoed" || self.random.bool() { "" } else { self.one(&[" 1", " 7", " 100"]) };
        format!("{word}{number}")
    }

    fn relation(&mut self) -> String {
        let relation = self.one(&["=", "==", "!=", "<", "<=", ">", ">="]);
        if self.rarely(2) {
            // A field and a number, as people write them.
            let (field, size) = (self.one(&INDEXED), self.one(&["", ":1", ":2", ":4"]));
            let (offset, number) = (self.random.u32(0..30), self.number());
            let masked = if self.random.bool() { format!(" & {}", self.number()) } else { String::new() };
            return format!("{field}[{offset}{size}]{masked} {relation} {number}");
        }
        let (a, b) = (self.arithmetic(3), self.arithmetic(2));
        format!("{a} {relation} {b}")
    }

    fn number(&mut self) -> String {
        match self.random.u32(0..6) {
            0 => self.one(&NAMED).to_owned(),
            1 => format!("{:#x}", self.random.u32(..)),
            2 => self.one(&PORTS).to_string(),
            _ => self.random.u32(0..70).to_string(),
        }
    }

    fn arithmetic(&mut self, depth: u32) -> String {
        if depth == 0 || self.rarely(3) {
            return match self.random.u32(0..4) {
                0 => "len".to_owned(),
                1 => self.number(),
                _ => {
                    let (field, size) = (self.one(&INDEXED), self.one(&["", ":1", ":2", ":4"]));
                    let offset = match self.random.u32(0..24) {
                        0..4 => self.arithmetic(0),
                        4 => self.one(&FAR).to_owned(),
                        _ => self.random.u32(0..30).to_string(),
                    };
                    format!("{field}[{offset}{size}]")
                }
            };
        }
        let (a, b) = (self.arithmetic(depth - 1), self.arithmetic(depth - 1));
        match self.one(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "neg"]) {
            "neg" => format!("-({a})"),
            operator @ ("/" | "%") if self.rarely(8) => format!("({a}) {operator} ({})", self.one(&ZEROS)),
            operator if self.random.bool() => format!("({a}) {operator} ({b})"),
            operator => format!("{a} {operator} {b}"),
        }
    }
}

/// A packet with a few of its bytes changed, and mostly where filters look; once in three times it is cut.
pub fn changed(captured: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = captured.to_vec();
    bytes.truncate(200);
    for _ in 0..random.usize(0..4) {
        let at = random.usize(0..bytes.len().clamp(1, 64));
        let new: &[u8] = match random.u32(0..8) {
            0 => &[0x08, 0x00],
            1 => &[0x86, 0xdd],
            2 => &[0x81, 0x00],
            3 => &[0x88, 0x47],
            4 => &[10, 0, 0, 1],
            5 => &[0, 80],
            6 => &[6],
            _ => &[17],
        };
        for (byte, n) in bytes.iter_mut().skip(at).zip(new) {
            *byte = *n;
        }
        if let Some(byte) = bytes.get_mut(at)
            && random.bool()
        {
            *byte = random.u8(..);
        }
    }
    // Kinds that stand where Ethernet has them.
    if random.u32(0..4) == 0 && bytes.len() > 24 {
        let kind = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0x64], [0x08, 0x06]][random.usize(0..5)];
        bytes[12..14].copy_from_slice(&kind);
        bytes[14] = [0x45, 0x46, 0x60, 0x00][random.usize(0..4)];
        bytes[23] = [6, 17, 1, 51, 132][random.usize(0..5)];
    }
    if random.u32(0..3) == 0 {
        bytes.truncate(random.usize(0..=bytes.len()));
    }
    bytes
}
