//! Packets that look like traffic: enough of each protocol that parsers go down all their paths, and
//! enough nonsense that they fail everywhere they can.

/// A seeded generator: the same packets in every run.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// One for part `n` of a larger task: different parts have nothing in common.
    pub fn of(seed: u64, n: u64) -> Random {
        Random::new(Random::new(seed ^ n.wrapping_mul(0xd129_42f0_9f6c_4c8b)).next())
    }

    /// Any number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number less than `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the choices, of which there must be some.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
const PROTOCOLS: [u8; 10] = [TCP, TCP, UDP, UDP, ICMP, ICMPV6, IPIP, IPV6, GRE, SCTP];
/// Hop by hop, routing, fragment, destination options, authentication.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 60, 51];
const PORTS: [u16; 12] = [7, 9, 22, 53, 67, 80, 443, 3784, 4789, 6081, 8080, 11211];
/// Longest packet made here; a test run takes little more than a page.
const LONGEST: usize = 1500;

/// One packet. `words` are numbers the programs compare with, which now and then stand somewhere in it.
pub fn packet(r: &mut Random, words: &[Vec<u8>]) -> Vec<u8> {
    let mut p = Vec::with_capacity(128);
    if r.one_in(16) {
        let n = 14 + r.below(200) as usize;
        p = r.bytes(n);
    } else {
        ethernet(r, &mut p);
        let n = if r.one_in(20) { r.below(LONGEST as u64 - 200) } else { r.below(60) };
        let (filler, constant) = (r.next() as u8, r.one_in(2));
        p.extend((0..n).map(|i| if constant { filler } else { (i as u8).wrapping_mul(filler) }));
    }
    if !words.is_empty() && r.one_in(3) {
        for _ in 0..=r.below(3) {
            let word = &words[r.below(words.len() as u64) as usize];
            let at = r.below(p.len().min(96) as u64) as usize;
            let n = word.len().min(p.len() - at);
            p[at..at + n].copy_from_slice(&word[..n]);
        }
    }
    if r.one_in(5) {
        // The kernel's test runs take nothing below an Ethernet header.
        let cut = 14 + r.below(p.len() as u64 - 13) as usize;
        p.truncate(cut);
    }
    p
}

fn ethernet(r: &mut Random, p: &mut Vec<u8>) {
    let to = r.pick(&[[0xff; 6], [0x02, 0, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0; 6]]);
    p.extend(to);
    p.extend([0x02, 0, 0, 0, 0, r.below(4) as u8]);
    for _ in 0..r.below(6).saturating_sub(3) {
        p.extend(r.pick(&[[0x81, 0x00], [0x88, 0xa8]]));
        p.extend([r.next() as u8 & 0xef, r.below(8) as u8]);
    }
    match r.below(9) {
        0..=3 => {
            p.extend([0x08, 0x00]);
            ipv4(r, p, 0);
        }
        4..=6 => {
            p.extend([0x86, 0xdd]);
            ipv6(r, p, 0);
        }
        7 => {
            // ARP, request or reply.
            p.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, r.below(3) as u8]);
            p.extend(r.bytes(20));
        }
        _ => {
            p.extend(r.pick(&[[0x88, 0x47], [0x88, 0xcc], [0x88, 0x64], [0x00, 0x26]]));
            p.extend(r.bytes(20));
        }
    }
}

fn ipv4(r: &mut Random, p: &mut Vec<u8>, depth: u32) {
    let start = p.len();
    let options = if r.one_in(4) { r.below(11) as u8 } else { 0 };
    let version = if r.one_in(32) { r.next() as u8 } else { 0x45 + options };
    let protocol = if r.one_in(12) { r.next() as u8 } else { r.pick(&PROTOCOLS) };
    let fragment = match r.below(8) {
        0 => [0x20, 0],
        1 => [r.next() as u8 & 0x3f, r.next() as u8],
        2 | 3 => [0x40, 0],
        _ => [0, 0],
    };
    let ttl = r.pick(&[64, 64, 255, 1, 0, 2]);
    p.extend([version, r.next() as u8 & 0xfc, 0, 0, 0, r.next() as u8]);
    p.extend(fragment);
    p.extend([ttl, protocol, 0, 0]);
    for _ in 0..2 {
        let address =
            [r.pick(&[10, 192, 127, 224, 255, 172]), r.pick(&[0, 168, 16]), r.below(2) as u8, r.below(8) as u8];
        p.extend(address);
    }
    p.extend(r.bytes(usize::from(options) * 4));
    transport(r, p, protocol, depth);
    let total = p.len() - start + r.below(40) as usize;
    let total = if r.one_in(16) { r.next() as u16 } else { total as u16 };
    p[start + 2..start + 4].copy_from_slice(&total.to_be_bytes());
    let sum = if r.one_in(3) { r.next() as u16 } else { checksum(&p[start..start + 20]) };
    p[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
}

fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn ipv6(r: &mut Random, p: &mut Vec<u8>, depth: u32) {
    let start = p.len();
    let protocol = if r.one_in(12) { r.next() as u8 } else { r.pick(&PROTOCOLS) };
    let extensions: Vec<u8> = (0..r.below(6).saturating_sub(2)).map(|_| r.pick(&EXTENSIONS)).collect();
    let next = |i: usize| extensions.get(i).copied().unwrap_or(protocol);
    let version = if r.one_in(32) { r.next() as u8 } else { 0x60 };
    p.extend([version, r.next() as u8 & 0xf, 0, r.next() as u8, 0, 0, next(0), r.pick(&[64, 255, 1, 0])]);
    for _ in 0..2 {
        p.extend(r.pick(&[[0xfe, 0x80], [0x20, 0x01], [0xff, 0x02], [0xfc, 0x00]]));
        p.extend([0; 13]);
        p.push(r.below(8) as u8);
    }
    for (i, kind) in extensions.iter().enumerate() {
        let length = if *kind == 44 { 0 } else { r.below(3) as u8 };
        p.extend([next(i + 1), length]);
        let whole = if *kind == 51 { (usize::from(length) + 2) * 4 } else { (usize::from(length) + 1) * 8 };
        p.extend(r.bytes(whole - 2));
    }
    transport(r, p, protocol, depth);
    let payload = if r.one_in(16) { r.next() as u16 } else { (p.len() - start - 40) as u16 };
    p[start + 4..start + 6].copy_from_slice(&payload.to_be_bytes());
}

fn port(r: &mut Random) -> [u8; 2] {
    let n = if r.one_in(3) { r.next() as u16 } else { r.pick(&PORTS) };
    n.to_be_bytes()
}

fn transport(r: &mut Random, p: &mut Vec<u8>, protocol: u8, depth: u32) {
    match protocol {
        TCP => {
            p.extend(port(r));
            p.extend(port(r));
            p.extend(r.bytes(8));
            let options = if r.one_in(2) { r.below(6) as u8 } else { 0 };
            let flags = r.pick(&[0x02, 0x12, 0x10, 0x18, 0x11, 0x04, 0x3f, 0]);
            p.extend([(5 + options) << 4, flags, r.next() as u8, 0, r.next() as u8, r.next() as u8, 0, 0]);
            // Maximum segment size, window scale, timestamps and padding, as far as there is room.
            let real = [2, 4, 5, 0xb4, 1, 3, 3, 7, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0];
            p.extend(&real[..usize::from(options) * 4]);
        }
        UDP | SCTP => {
            p.extend(port(r));
            p.extend(port(r));
            p.extend([0, 8 + r.below(60) as u8, r.next() as u8, r.next() as u8]);
            if r.one_in(3) {
                // A question as in DNS.
                p.extend([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, b'w', b'w', b'w', 2, b'd', b'e', 0, 0, 1, 0, 1]);
            }
        }
        ICMP => p.extend([r.pick(&[0, 3, 8, 11, 5]), r.below(5) as u8, r.next() as u8, 0, 0, 1, 0, r.next() as u8]),
        ICMPV6 => {
            p.extend([r.pick(&[1, 2, 128, 129, 135, 136]), 0, r.next() as u8, 0, 0, 0, 0, 1]);
            p.extend(r.bytes(16));
        }
        IPIP if depth < 2 => ipv4(r, p, depth + 1),
        IPV6 if depth < 2 => ipv6(r, p, depth + 1),
        GRE if depth < 2 => {
            p.extend([0, 0, 0x08, 0]);
            ipv4(r, p, depth + 1);
        }
        _ => p.extend(r.bytes(8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_repeat_and_can_be_run() {
        let words = [vec![0xde, 0xad], vec![1, 2, 3, 4]];
        let all = |seed| (0..2000).map(|i| packet(&mut Random::of(seed, i), &words)).collect::<Vec<_>>();
        let (a, b) = (all(1), all(2));
        assert_eq!(a, all(1));
        assert_ne!(a, b);
        assert!(a.iter().all(|p| (14..2000).contains(&p.len())));
        // Every ethertype that a parser may know comes up.
        for kind in [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x08, 0x06], [0x88, 0x47]] {
            assert!(a.iter().filter(|p| p[12..14] == kind).count() > 10, "{kind:02x?}");
        }
    }

    #[test]
    fn most_ipv4_headers_have_a_good_checksum() {
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
    }
}
