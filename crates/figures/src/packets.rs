//! Generated packets: sets of which a filter accepts all, half or none.
//!
//! The one idea: packets are drawn at random until enough of them are accepted, and enough rejected. So that neither is rare,
//! half of all addresses and ports are drawn from those that the filter's text names. What is accepted is said by the filter as it
//! stands, interpreted; tests hold it against libpcap. A seed gives the same packets each time.

use bpf_filter::{Beside, Filter, Options, Packet, compile};
use fastrand::Rng;

/// How many packets of a set a filter accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Matching {
    /// All.
    All,
    /// Half of them, in no order.
    Half,
    /// None.
    None,
}

impl Matching {
    /// All kinds of sets.
    pub const EACH: [Matching; 3] = [Matching::All, Matching::Half, Matching::None];

    /// How it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Matching::All => "match",
            Matching::Half => "half",
            Matching::None => "miss",
        }
    }
}

/// Packets of Ethernet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketSet {
    /// How many of them the filter accepts.
    pub matching: Matching,
    /// The packets, whole.
    pub packets: Vec<Vec<u8>>,
}

/// A packet as filters take it.
#[inline]
pub fn whole(captured: &[u8]) -> Packet<'_> {
    Packet { captured, length: captured.len() as u32, beside: Beside::default() }
}

/// A set of each kind, of `size` packets each.
///
/// # Errors
/// If the text is no filter, or packets that it accepts, or rejects, are too rare.
pub fn packet_sets(expression: &str, size: usize, seed: u64) -> Result<[PacketSet; 3], String> {
    /// So many packets are drawn for each that is wanted.
    const TRIES: usize = 4000;
    let options = Options { optimize: false, ..Options::default() };
    let filter = compile(expression, &options).map_err(|e| e.render(expression))?;
    let names = Named::of(expression);
    let mut rng = Rng::with_seed(seed);
    let (mut accepted, mut rejected) = (Vec::new(), Vec::new());
    for _ in 0..size.saturating_mul(TRIES) {
        let packet = names.packet(&mut rng);
        let packets = if accepts(&filter, &packet) { &mut accepted } else { &mut rejected };
        if packets.len() < size {
            packets.push(packet);
        }
        if accepted.len() == size && rejected.len() == size {
            let half = accepted.iter().take(size / 2).chain(rejected.iter().take(size - size / 2));
            let mut half: Vec<Vec<u8>> = half.cloned().collect();
            rng.shuffle(&mut half);
            let set = |matching, packets| PacketSet { matching, packets };
            return Ok([set(Matching::All, accepted), set(Matching::Half, half), set(Matching::None, rejected)]);
        }
    }
    let counts = format!("{} accepted, {} rejected, {size} wanted of each", accepted.len(), rejected.len());
    Err(format!("packets are too rare ({counts}): {expression:.200}"))
}

/// Whether a filter accepts a whole packet.
pub fn accepts(filter: &Filter, packet: &[u8]) -> bool {
    filter.count(&whole(packet)).accepted
}

/// The addresses and ports that a text names.
struct Named {
    /// Address and length of the prefix.
    networks: Vec<(u32, u32)>,
    ports: Vec<u16>,
}

impl Named {
    fn of(expression: &str) -> Named {
        let (mut networks, mut ports) = (Vec::new(), Vec::new());
        for word in expression.split(|c: char| !(c.is_ascii_alphanumeric() || "./".contains(c))) {
            let (address, length) = word.split_once('/').unwrap_or((word, "32"));
            if let Ok(port) = word.parse() {
                ports.push(port);
            } else if let (Ok(address), Ok(length)) = (address.parse::<std::net::Ipv4Addr>(), length.parse()) {
                networks.push((address.to_bits(), length));
            }
        }
        Named { networks, ports }
    }

    fn address(&self, rng: &mut Rng) -> u32 {
        let any = rng.u32(..);
        match rng.choice(&self.networks) {
            Some((address, length)) if rng.bool() => address | any.checked_shr(*length).unwrap_or(0),
            _ => any,
        }
    }

    fn port(&self, rng: &mut Rng) -> u16 {
        match rng.choice(&self.ports) {
            Some(port) if rng.bool() => *port,
            _ => rng.u16(1..),
        }
    }

    /// A packet: TCP mostly, beside UDP, ICMP, TCP over IPv6, and ARP.
    fn packet(&self, rng: &mut Rng) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..12).map(|_| rng.u8(..)).collect();
        // A station's address, no group's.
        packet[0] &= 0xfe;
        let (source, target) = (self.address(rng), self.address(rng));
        match rng.u32(0..100) {
            0..75 => self.over_ip4(&mut packet, 6, source, target, rng),
            75..90 => self.over_ip4(&mut packet, 17, source, target, rng),
            90..95 => self.over_ip4(&mut packet, 1, source, target, rng),
            95..98 => {
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
                packet.extend((0..32).map(|_| rng.u8(..)));
                self.transport(&mut packet, 6, rng);
            }
            _ => {
                packet.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, rng.u8(1..=2)]);
                packet.extend((0..6).map(|_| rng.u8(..)));
                packet.extend(source.to_be_bytes());
                packet.extend([0; 6]);
                packet.extend(target.to_be_bytes());
            }
        }
        // The least frame that Ethernet has.
        packet.resize(packet.len().max(60), 0);
        packet
    }

    fn over_ip4(&self, packet: &mut Vec<u8>, protocol: u8, source: u32, target: u32, rng: &mut Rng) {
        /// What is behind the header, in bytes.
        const BEHIND: u16 = 20;
        packet.extend([0x08, 0x00, 0x45, 0]);
        packet.extend((20 + BEHIND).to_be_bytes());
        packet.extend(rng.u16(..).to_be_bytes());
        packet.extend([0x40, 0, 64, protocol, 0, 0]);
        packet.extend(source.to_be_bytes());
        packet.extend(target.to_be_bytes());
        self.transport(packet, protocol, rng);
    }

    /// 20 bytes: a header with, if it is no TCP, data behind it.
    fn transport(&self, packet: &mut Vec<u8>, protocol: u8, rng: &mut Rng) {
        let begin = packet.len();
        if protocol != 1 {
            packet.extend(self.port(rng).to_be_bytes());
            packet.extend(self.port(rng).to_be_bytes());
        }
        packet.resize(begin + 20, 0);
        match protocol {
            6 => {
                packet[begin + 12] = 0x50;
                // ACK mostly; SYN, FIN and RST are rare.
                packet[begin + 13] =
                    if rng.u32(0..10) > 0 { 0x10 } else { *rng.choice(&[0x02, 0x11, 0x04]).expect("some") };
            }
            17 => packet[begin + 5] = 20,
            // An echo.
            _ => packet[begin] = 8,
        }
    }
}
