//! Packets for the modern dialect: tags, extension headers, fragments, tunnels.

use fastrand::Rng;

fn among<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(0..all.len())]
}

/// An Ethernet frame with up to three tags.
pub fn frame(random: &mut Rng, tunnels: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..2 {
        bytes.extend([2, 0, 0, 0, 0, random.u8(0..3)]);
    }
    for _ in 0..among(random, &[0, 0, 0, 1, 1, 2, 3]) {
        let kind: u16 = among(random, &[0x8100, 0x8100, 0x88a8, 0x9100]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([random.u8(..) & 0xf0, random.u8(4..7)]);
    }
    let (kind, payload) = network(random, tunnels);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// IPv4, IPv6 or something else, with its type.
pub fn network(random: &mut Rng, tunnels: usize) -> (u16, Vec<u8>) {
    match random.u8(0..10) {
        0 => {
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
            arp.extend([0; 6]);
            arp.extend([10, 0, 0, random.u8(0..3)]);
            arp.extend([0; 6]);
            arp.extend([10, 0, 0, random.u8(0..3)]);
            (among(random, &[0x0806, 0x8035, 0x1234]), arp)
        }
        1..4 => {
            let (protocol, payload) = upper(random, tunnels);
            let words = among(random, &[5, 5, 6, 8]);
            let mut bytes = vec![0; usize::from(words) * 4];
            (bytes[0], bytes[8], bytes[9]) = (0x40 | words, random.u8(0..9), protocol);
            if random.u8(0..5) == 0 {
                (bytes[6], bytes[7]) = (random.u8(0..2) << 5, random.u8(0..2));
            }
            bytes[12..20].copy_from_slice(&[10, 0, 0, random.u8(0..3), 10, 0, random.u8(0..2), random.u8(0..3)]);
            bytes.extend(payload);
            (0x0800, bytes)
        }
        _ => {
            let (protocol, payload) = upper(random, tunnels);
            let headers = among(random, &[0, 0, 1, 1, 2, 3, 4, 5, 6, 7]);
            let mut kinds: Vec<u8> =
                (0..headers).map(|_| among(random, &[0, 43, 44, 44, 51, 60, 60, 135, 139, 140])).collect();
            kinds.push(protocol);
            let mut bytes = vec![0; 40];
            (bytes[0], bytes[6], bytes[7]) = (0x60, kinds[0], 64);
            for at in [8, 24] {
                bytes[at..at + 4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
                bytes[at + 15] = random.u8(0..3);
            }
            if random.u8(0..4) == 0 {
                bytes[24] = 0xff;
            }
            for (i, kind) in kinds.iter().take(headers).enumerate() {
                let length = random.u8(0..3);
                let size = match kind {
                    44 => 8,
                    51 => 8 + 4 * usize::from(length),
                    _ => 8 + 8 * usize::from(length),
                };
                let mut header: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
                (header[0], header[1]) = (kinds[i + 1], length);
                if *kind == 44 {
                    // Most are first fragments; what is reserved may be anything.
                    header[1] = random.u8(..);
                    (header[2], header[3]) = (0, if random.u8(0..4) == 0 { 0x51 } else { random.u8(0..8) });
                }
                bytes.extend(header);
            }
            bytes.extend(payload);
            (0x86dd, bytes)
        }
    }
}

/// A transport protocol with its number.
fn upper(random: &mut Rng, tunnels: usize) -> (u8, Vec<u8>) {
    let mut bytes: Vec<u8> = (0..random.usize(8..40)).map(|_| random.u8(..)).collect();
    let ports: [u16; 9] = [22, 53, 80, 80, 80, 80, 443, 1500, 4789];
    bytes[..2].copy_from_slice(&among(random, &ports).to_be_bytes());
    bytes[2..4].copy_from_slice(&among(random, &ports).to_be_bytes());
    let protocol = among(random, &[1, 2, 6, 6, 6, 6, 6, 17, 17, 50, 58, 58, 59, 103, 132, 132, 47]);
    if protocol == 58 {
        bytes[0] = random.u8(133..137);
    }
    let kind = random.u8(0..4);
    if tunnels == 0 || kind == 3 {
        return (protocol, bytes);
    }
    let inner = if random.u8(0..3) > 0 { (0x6558, frame(random, tunnels - 1)) } else { network(random, tunnels - 1) };
    let (vni, [high, low]) = (random.u8(4..7), inner.0.to_be_bytes());
    match kind {
        0 => {
            let flags = among(random, &[8, 8, 8, 0, 0x88]);
            bytes = vec![0x12, 0x34, 0x12, 0xb5, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, vni, 0];
            bytes.extend(frame(random, tunnels - 1));
            (17, bytes)
        }
        1 => {
            let options = random.u8(0..3);
            let first = options | among(random, &[0, 0, 0, 0x40]);
            bytes = vec![0x12, 0x34, 0x17, 0xc1, 0, 0, 0, 0, first, 0, high, low, 0, 0, vni, 0];
            bytes.extend(vec![7; usize::from(options) * 4]);
            bytes.extend(inner.1);
            (17, bytes)
        }
        _ => {
            let flags: u8 = among(random, &[0, 0x80, 0x20, 0x10, 0xb0, 0x40]);
            bytes = vec![flags, among(random, &[0, 0, 0, 1]), high, low];
            bytes.extend(vec![7; 4 * (flags & 0xb0).count_ones() as usize]);
            bytes.extend(inner.1);
            (47, bytes)
        }
    }
}

/// A frame as [`frame`] makes them, some with random bytes, some cut.
pub fn any(random: &mut Rng) -> Vec<u8> {
    let mut bytes = frame(random, 2);
    match random.u8(0..4) {
        0 => {
            for _ in 0..random.usize(1..4) {
                let at = random.usize(12..bytes.len());
                bytes[at] = among(random, &[0, 6, 8, 17, 43, 44, 51, 60, 255]);
            }
        }
        1 => bytes.truncate(random.usize(0..bytes.len())),
        _ => {}
    }
    bytes
}

/// An IPv4 packet to or from 10.0.0.1 behind a header of varying length: 802.11 with a receiver's header or none, or PFLOG.
pub(super) fn behind_a_varying_header(dlt: u16, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = match dlt {
        117 => [vec![random.u8(45..62), 2], vec![0; 62]].concat(),
        119 => vec![0, 0, 0, 0x44, 0, 0, 0, 144],
        127 => vec![0, 0, random.choice([8, 12, 24]).unwrap_or(8), 0],
        163 => vec![0x80, 0x21, 0x10, 1, 0, 0, 0, 16],
        192 => vec![0, 0, 8, 0, 105, 0, 0, 0],
        _ => Vec::new(),
    };
    match dlt {
        117 => bytes.truncate(usize::from(bytes[0]).next_multiple_of(4)),
        119 => bytes.resize(144, 0),
        127 => bytes.resize(usize::from(bytes[2]), 0),
        163 => bytes.resize(16, 0),
        _ => {}
    }
    if dlt != 117 {
        // A data frame, with QoS or without, its header, and LLC with SNAP.
        let has_qos = random.bool();
        bytes.push(if has_qos { 0x88 } else { 8 });
        bytes.extend(std::iter::repeat_n(0, if has_qos { 25 } else { 23 }));
        bytes.extend([0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    }
    let protocol = random.choice([6, 17, 1]).unwrap_or(6);
    bytes.extend([
        0x45,
        0,
        0,
        60,
        0,
        0,
        0,
        0,
        random.u8(50..70),
        protocol,
        0,
        0,
        10,
        0,
        0,
        random.u8(1..3),
        10,
        0,
        0,
        2,
    ]);
    bytes.extend([0, if random.bool() { 80 } else { 81 }, 0x30, 0x39]);
    bytes.extend(std::iter::repeat_n(0, 40));
    bytes
}
