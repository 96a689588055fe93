//! Names that files of the system give: ports, protocols, Ethernet addresses, networks, hosts.
//!
//! libpcap asks glibc, which reads these files (`nss/nss_files`), so that a line means here what it means there: `getent` and libpcap
//! 1.10.3 over the same files were the model of each number that the tests below hold.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::names::well_known_protocol;

/// Where names are looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameFiles {
    /// Ports: `services(5)`.
    pub services: PathBuf,
    /// IP protocols: `protocols(5)`.
    pub protocols: PathBuf,
    /// Ethernet addresses: `ethers(5)`.
    pub ethers: PathBuf,
    /// Networks: `networks(5)`.
    pub networks: PathBuf,
    /// Hosts: `hosts(5)`.
    pub hosts: PathBuf,
    /// Ask the system's resolver, which may ask DNS, for hosts that no file names.
    pub resolve: bool,
}

impl Default for NameFiles {
    fn default() -> NameFiles {
        let etc = |name: &str| Path::new("/etc").join(name);
        NameFiles {
            services: etc("services"),
            protocols: etc("protocols"),
            ethers: etc("ethers"),
            networks: etc("networks"),
            hosts: etc("hosts"),
            resolve: false,
        }
    }
}

/// The protocol that a service's name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortProtocol {
    Tcp,
    Udp,
    /// Both, with the same number.
    Any,
}

impl NameFiles {
    /// The fields of each line of a file, without comments. A file that is not there is empty.
    fn lines(path: &Path) -> Vec<Vec<String>> {
        // A comment may be in any encoding.
        let text = std::fs::read(path).unwrap_or_default();
        let fields = |line: &str| -> Vec<String> {
            line.split('#').next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        String::from_utf8_lossy(&text).lines().map(fields).filter(|f| !f.is_empty()).collect()
    }

    /// The port of a service and its protocol; a number may stand for itself.
    pub(crate) fn port(&self, name: &str) -> Option<(u32, PortProtocol)> {
        if let Ok(n) = name.parse() {
            return Some((n, PortProtocol::Any));
        }
        let lines = NameFiles::lines(&self.services);
        let of = |protocol: &str| {
            lines.iter().find_map(|fields| {
                let (number, p) = fields.get(1)?.split_once('/')?;
                let named = fields[0] == name || fields[2..].iter().any(|alias| alias == name);
                // A port has 16 bits.
                (named && p.trim_start_matches('/') == protocol).then(|| Some(c_number(number)? & 0xffff)).flatten()
            })
        };
        match (of("tcp"), of("udp")) {
            (Some(t), Some(u)) if t == u => Some((t, PortProtocol::Any)),
            (Some(t), _) => Some((t, PortProtocol::Tcp)),
            (None, Some(u)) => Some((u, PortProtocol::Udp)),
            (None, None) => None,
        }
    }

    /// The number of an IP protocol.
    pub(crate) fn protocol(&self, name: &str) -> Option<u32> {
        let found = NameFiles::lines(&self.protocols).into_iter().find_map(|fields| {
            let named = fields[0] == name || fields.iter().skip(2).any(|alias| alias == name);
            named.then(|| unsigned(fields.get(1)?, 10)).flatten()
        });
        found.or_else(|| well_known_protocol(name))
    }

    /// The Ethernet address of a host.
    pub(crate) fn ether(&self, name: &str) -> Option<[u8; 6]> {
        NameFiles::lines(&self.ethers).into_iter().find_map(|fields| {
            if fields.get(1).is_none_or(|n| !n.eq_ignore_ascii_case(name)) {
                return None;
            }
            let mut mac = [0; 6];
            let mut parts = fields[0].split(':');
            for byte in &mut mac {
                *byte = u8::try_from(unsigned(parts.next()?, 16)?).ok()?;
            }
            parts.next().is_none().then_some(mac)
        })
    }

    /// The number of a network, in the host's order. One of fewer than four bytes ends with zeros.
    pub(crate) fn network(&self, name: &str) -> Option<u32> {
        NameFiles::lines(&self.networks).into_iter().find_map(|fields| {
            let mut names = fields.iter().enumerate().filter(|(i, _)| *i != 1);
            names.any(|(_, n)| n.eq_ignore_ascii_case(name)).then(|| fields.get(1).map(|n| network_number(n))).flatten()
        })
    }

    /// The addresses of a host; an address stands for itself, as it does to the resolver.
    pub(crate) fn host(&self, name: &str) -> Vec<IpAddr> {
        if let Some(address) = address(name) {
            return vec![address];
        }
        let mut found: Vec<IpAddr> = NameFiles::lines(&self.hosts)
            .into_iter()
            .filter(|fields| fields[1..].iter().any(|n| n.eq_ignore_ascii_case(name)))
            .filter_map(|fields| fields[0].parse().ok())
            .collect();
        if found.is_empty() && self.resolve {
            found = (name, 0).to_socket_addrs().map(|a| a.map(|a| a.ip()).collect()).unwrap_or_default();
        }
        found.dedup();
        found
    }
}

/// A number as `strtoul` reads it, all of the text; a sign of minus is taken for none.
fn unsigned(text: &str, base: u32) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_hexadecimal = base == 16 && digits.get(..2).is_some_and(|two| two.eq_ignore_ascii_case("0x"));
    let digits = if is_hexadecimal { &digits[2..] } else { digits };
    // `from_str_radix` would take a sign.
    digits.chars().all(|c| c.is_digit(base)).then(|| u32::from_str_radix(digits, base).ok()).flatten()
}

/// A number as C writes it: with `0x` in hexadecimal digits, with `0` in octal ones.
fn c_number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let base = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => 16,
        [b'0', ..] => 8,
        _ => 10,
    };
    unsigned(digits, base)
}

/// An address that is written as a number: as `inet_pton` reads IPv6, and as `inet_aton` reads IPv4: one to four numbers as C writes
/// them, of which the last one stands for all bytes that are left.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(IpAddr::V6(address));
    }
    let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    let parts: Vec<u32> = text.split('.').map(|p| c_number(p).filter(|_| is_number(p))).collect::<Option<_>>()?;
    let (last, bytes) = parts.split_last().filter(|(_, bytes)| bytes.len() <= 3)?;
    let left = 32 - 8 * bytes.len() as u32;
    let fits = bytes.iter().all(|byte| *byte <= 0xff) && u64::from(*last) < 1 << left;
    let first = bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    fits.then(|| IpAddr::V4(Ipv4Addr::from((first << left) as u32 | last)))
}

/// What glibc makes of a network's number: zeros behind it up to four bytes, then `inet_network`, whose answer for what is none is that
/// all bits are set.
fn network_number(text: &str) -> u32 {
    const NONE: u32 = u32::MAX;
    let parts: Vec<&str> = text.split('.').collect();
    let byte = |part: &&str| {
        // `x` alone stands for `0x`.
        let digits = match part.as_bytes() {
            [b'x' | b'X', ..] => &part[1..],
            _ if part.starts_with(['+', '-']) => return None,
            _ => return u8::try_from(c_number(part)?).ok(),
        };
        u8::try_from(unsigned(digits, 16)?).ok()
    };
    let bytes = parts.iter().map(byte).collect::<Option<Vec<u8>>>();
    let Some(mut bytes) = bytes.filter(|bytes| bytes.len() <= 4) else { return NONE };
    bytes.resize(4, 0);
    bytes.into_iter().fold(0, |n, byte| n << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each address is that of `getent ahosts` (glibc 2.36).
    #[test]
    fn addresses_are_those_of_the_resolver() {
        let addresses = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("10.1", Some("10.0.0.1")),
            ("1.2.3", Some("1.2.0.3")),
            ("80", Some("0.0.0.80")),
            ("0x7f000001", Some("127.0.0.1")),
            ("010.0x10.1", Some("8.16.0.1")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("::1", Some("::1")),
            ("::ffff:1.2.3.4", Some("::ffff:1.2.3.4")),
        ];
        let none = [
            "256.1.1.1",
            "1.2.65536",
            "1.2.3.256",
            "1.2.3.4.5",
            "4294967296",
            "08",
            "0x",
            "1..2",
            "1.",
            ".1",
            "+1",
            "",
        ];
        for (text, expected) in addresses.into_iter().chain(none.map(|text| (text, None))) {
            assert_eq!(address(text), expected.and_then(|e| e.parse().ok()), "{text}");
        }
    }

    /// Each number is that of `getent` (glibc 2.36) over the same lines.
    #[test]
    fn numbers_are_those_of_glibc() {
        let networks = [
            ("10", 0x0a00_0000),
            ("10.1", 0x0a01_0000),
            ("192.168.1", 0xc0a8_0100),
            ("10.1.2.3", 0x0a01_0203),
            ("0.10", 0x000a_0000),
            ("0.0.10.1", 0x0000_0a01),
            ("0x0a", 0x0a00_0000),
            ("0x0A.0X0b", 0x0a0b_0000),
            ("x0a", 0x0a00_0000),
            ("012", 0x0a00_0000),
            ("0", 0),
            ("08", u32::MAX),
            ("256", u32::MAX),
            ("1.2.3.4.5", u32::MAX),
            ("10.", u32::MAX),
            ("10a", u32::MAX),
            ("0x", u32::MAX),
            ("0x.1", u32::MAX),
            ("-1.0.0.0", u32::MAX),
            ("99999999999999999999", u32::MAX),
        ];
        for (text, number) in networks {
            assert_eq!(network_number(text), number, "{text}");
        }
        let ports = [("16", Some(16)), ("0x10", Some(16)), ("010", Some(8)), ("+5", Some(5)), ("0", Some(0))];
        for (text, number) in ports.into_iter().chain(["-5", "5x", "08", "0x", ""].map(|text| (text, None))) {
            assert_eq!(c_number(text), number, "{text}");
        }
        let protocols = [("300", Some(300)), ("+5", Some(5)), ("010", Some(10)), ("00012", Some(12))];
        for (text, number) in protocols.into_iter().chain(["0x10", "5x", "-1", "++1"].map(|text| (text, None))) {
            assert_eq!(unsigned(text, 10), number, "{text}");
        }
        for (text, number) in [("02", Some(2)), ("0x2", Some(2)), ("+2", Some(2)), ("zz", None), ("", None)] {
            assert_eq!(unsigned(text, 16), number, "{text}");
        }
    }
}
