//! A dissector of its own for the modern dialect: what a packet has, read byte by byte.

use std::cell::Cell;

/// Whether something is so; `Cut`: the packet ends before it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truth {
    Yes,
    No,
    Cut,
}

use Truth::{Cut, No, Yes};

impl Truth {
    pub fn not(self) -> Truth {
        match self {
            Yes => No,
            No => Yes,
            Cut => Cut,
        }
    }

    /// The second is looked at only where the first may be so.
    pub fn and(self, other: impl FnOnce() -> Truth) -> Truth {
        match (self, if self == No { No } else { other() }) {
            (No, _) | (_, No) => No,
            (Yes, Yes) => Yes,
            _ => Cut,
        }
    }

    pub fn or(self, other: Truth) -> Truth {
        self.not().and(|| other.not()).not()
    }
}

/// The protocols of extension headers.
const EXTENSIONS: [u32; 8] = [0, 43, 44, 51, 60, 135, 139, 140];
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const IP: u32 = 0x0800;
const IP6: u32 = 0x86dd;

/// What a packet begins with.
#[derive(Clone, Copy)]
enum Begin {
    Ethernet(usize),
    /// IPv4 or IPv6, as its first bits say.
    Network,
    /// What has no header of a link: its type, and where it begins.
    Bare(u32, usize),
}

/// A packet, or the one in a tunnel.
pub struct View<'a> {
    bytes: &'a [u8],
    begin: Begin,
    /// A field was asked for that is behind the packet's end.
    pub missing: &'a Cell<bool>,
}

/// What is behind tags: its type and place.
struct Network {
    kind: u32,
    place: usize,
}

/// What is behind IPv4 or IPv6.
struct Upper {
    /// The protocol of the last header, which is not gone past.
    protocol: u32,
    is_later_fragment: bool,
    place: usize,
}

fn so(is: bool) -> Truth {
    if is { Yes } else { No }
}

impl<'a> View<'a> {
    pub fn of(bytes: &'a [u8], is_ethernet: bool, missing: &'a Cell<bool>) -> View<'a> {
        View { bytes, begin: if is_ethernet { Begin::Ethernet(0) } else { Begin::Network }, missing }
    }

    fn number(&self, at: usize, size: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at + size);
        self.missing.set(self.missing.get() || bytes.is_none());
        Some(bytes?.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    fn field(&self, at: usize, size: usize, is: impl FnOnce(u32) -> bool) -> Truth {
        self.number(at, size).map_or(Cut, |n| so(is(n)))
    }

    fn network(&self) -> Option<Network> {
        match self.begin {
            Begin::Network => {
                let kind = match self.number(0, 1)? >> 4 {
                    4 => IP,
                    6 => IP6,
                    _ => 0,
                };
                Some(Network { kind, place: 0 })
            }
            Begin::Bare(kind, place) => Some(Network { kind, place }),
            Begin::Ethernet(link) => {
                let mut at = link + 12;
                let mut tags = 0;
                loop {
                    let kind = self.number(at, 2)?;
                    if tags == 2 || !TAGS.contains(&kind) {
                        return Some(Network { kind, place: at + 2 });
                    }
                    tags += 1;
                    at += 4;
                }
            }
        }
    }

    pub fn is_kind(&self, kind: u32) -> Truth {
        self.network().map_or(Cut, |n| so(n.kind == kind))
    }

    /// A field of a network header of this type.
    pub fn of_kind(&self, kind: u32, at: usize, size: usize, is: impl FnOnce(u32) -> bool) -> Truth {
        let Some(network) = self.network() else { return Cut };
        so(network.kind == kind).and(|| self.field(network.place + at, size, is))
    }

    /// One of the tags.
    pub fn tag(&self, is_type: impl Fn(u32) -> bool, number: Option<u32>) -> Truth {
        let Begin::Ethernet(link) = self.begin else { return No };
        let mut any = No;
        for tag in 0..2 {
            let at = link + 12 + 4 * tag;
            let Some(kind) = self.number(at, 2) else { return any.or(Cut) };
            if !TAGS.contains(&kind) {
                break;
            }
            let of = |n| self.field(at + 2, 2, |tci| tci & 0xfff == n);
            any = any.or(so(is_type(kind)).and(|| number.map_or(Yes, of)));
        }
        any
    }

    /// What is behind IPv4 or IPv6. An error: the packet is neither of them, or ends.
    fn upper(&self, of: Option<u32>) -> Result<Upper, Truth> {
        self.upper_past(of, &mut Vec::new())
    }

    /// The same; notes the protocols of headers that are met, also if the packet ends behind them.
    fn upper_past(&self, of: Option<u32>, protocols: &mut Vec<u32>) -> Result<Upper, Truth> {
        let Network { kind, place: start, .. } = self.network().ok_or(Cut)?;
        if of.is_some_and(|of| of != kind) {
            return Err(No);
        }
        let number = |at, size| self.number(at, size).ok_or(Cut);
        match kind {
            IP => {
                protocols.push(number(start + 9, 1)?);
                Ok(Upper { protocol: protocols[0], is_later_fragment: false, place: start })
            }
            IP6 => {
                let mut next = number(start + 6, 1)?;
                protocols.push(next);
                let mut place = start + 40;
                while protocols.len() <= 6 && EXTENSIONS.contains(&next) {
                    let (following, length, third) = (number(place, 1)?, number(place + 1, 1)?, number(place + 2, 2)?);
                    place += match next {
                        44 => 8,
                        51 => 4 * (length as usize + 2),
                        _ => 8 * (length as usize + 1),
                    };
                    protocols.push(following);
                    if next == 44 && third >> 3 != 0 {
                        return Ok(Upper { protocol: following, is_later_fragment: true, place });
                    }
                    next = following;
                }
                Ok(Upper { protocol: next, is_later_fragment: false, place })
            }
            _ => Err(No),
        }
    }

    /// `proto`, over one network protocol or both.
    pub fn proto(&self, number: u32, of: Option<u32>) -> Truth {
        let mut protocols = Vec::new();
        match self.upper_past(of, &mut protocols) {
            _ if EXTENSIONS.contains(&number) && protocols.contains(&number) => Yes,
            Err(truth) => truth,
            Ok(upper) => so(upper.protocol == number),
        }
    }

    /// Where a protocol's header begins; not in later fragments.
    fn transport(&self, number: u32) -> Result<usize, Truth> {
        let upper = self.upper(None)?;
        if upper.protocol != number || upper.is_later_fragment {
            return Err(No);
        }
        if self.is_kind(IP) == Yes {
            let cut = |n: Option<u32>| n.ok_or(Cut);
            if cut(self.number(upper.place + 6, 2))? & 0x1fff != 0 {
                return Err(No);
            }
            return Ok(upper.place + 4 * (cut(self.number(upper.place, 1))? & 15) as usize);
        }
        Ok(upper.place)
    }

    /// A field of a transport header.
    pub fn transport_field(&self, number: u32, at: usize, size: usize, is: impl FnOnce(u32) -> bool) -> Truth {
        self.transport(number).map_or_else(|truth| truth, |place| self.field(place + at, size, is))
    }

    /// Source, destination or any of both ports of some protocols.
    pub fn port(&self, protocols: &[u32], sides: &[usize], is: impl Fn(u32) -> bool) -> Truth {
        let mut any = No;
        for protocol in protocols {
            for side in sides {
                any = any.or(self.transport_field(*protocol, *side, 2, &is));
            }
        }
        any
    }

    /// Any of IPv4, ARP and RARP addresses.
    pub fn host(&self, sides: &[bool], is: impl Fn(u32) -> bool) -> Truth {
        let mut any = No;
        for (kind, src, dst) in [(IP, 12, 16), (0x0806, 14, 24), (0x8035, 14, 24)] {
            for is_src in sides {
                any = any.or(self.of_kind(kind, if *is_src { src } else { dst }, 4, &is));
            }
        }
        any
    }

    pub fn host6(&self, sides: &[bool], words: [u32; 4]) -> Truth {
        let mut any = No;
        for is_src in sides {
            let at = if *is_src { 8 } else { 24 };
            let word = |i: usize| self.of_kind(IP6, at + 4 * i, 4, |n| n == words[i]);
            any = any.or(word(0).and(|| word(1)).and(|| word(2)).and(|| word(3)));
        }
        any
    }

    /// `ether host`
    pub fn mac(&self, sides: &[usize], mac: [u32; 2]) -> Truth {
        let Begin::Ethernet(link) = self.begin else { return No };
        let of =
            |at: usize| self.field(link + at, 2, |n| n == mac[0]).and(|| self.field(link + at + 2, 4, |n| n == mac[1]));
        sides.iter().fold(No, |any, at| any.or(of(*at)))
    }

    fn udp_tunnel(&self, port: u32, number: Option<u32>) -> Result<usize, Truth> {
        let place = self.transport(17)?;
        let is = self.field(place + 2, 2, |n| n == port);
        let is = is.and(|| match port {
            4789 => self.field(place + 8, 1, |n| n & 8 != 0),
            _ => self.field(place + 8, 1, |n| n & 0xc0 == 0),
        });
        let is = is.and(|| number.map_or(Yes, |vni| self.field(place + 12, 4, |n| n >> 8 == vni)));
        if is == Yes { Ok(place) } else { Err(is) }
    }

    fn inside(&self, begin: Begin, inner: &dyn Fn(&View) -> Truth) -> Truth {
        inner(&View { bytes: self.bytes, begin, missing: self.missing })
    }

    fn carried(&self, kind: u32, at: usize, inner: &dyn Fn(&View) -> Truth) -> Truth {
        self.inside(if kind == 0x6558 { Begin::Ethernet(at) } else { Begin::Bare(kind, at) }, inner)
    }

    pub fn vxlan(&self, number: Option<u32>, inner: &dyn Fn(&View) -> Truth) -> Truth {
        match self.udp_tunnel(4789, number) {
            Ok(place) => self.inside(Begin::Ethernet(place + 16), inner),
            Err(truth) => truth,
        }
    }

    pub fn geneve(&self, number: Option<u32>, inner: &dyn Fn(&View) -> Truth) -> Truth {
        let of = || {
            let place = self.udp_tunnel(6081, number)?;
            let kind = self.number(place + 10, 2).ok_or(Cut)?;
            let options = self.number(place + 8, 1).ok_or(Cut)? & 0x3f;
            Ok(self.carried(kind, place + 16 + 4 * options as usize, inner))
        };
        of().unwrap_or_else(|truth| truth)
    }

    pub fn gre(&self, inner: &dyn Fn(&View) -> Truth) -> Truth {
        let of = || {
            let place = self.transport(47)?;
            if self.number(place, 2).ok_or(Cut)? & 0x4007 != 0 {
                return Err(No);
            }
            let flags = self.number(place, 1).ok_or(Cut)?;
            let words = [7, 5, 4].into_iter().filter(|bit| flags >> bit & 1 == 1).count();
            let kind = self.number(place + 2, 2).ok_or(Cut)?;
            Ok(self.carried(kind, place + 4 + 4 * words, inner))
        };
        of().unwrap_or_else(|truth| truth)
    }
}
