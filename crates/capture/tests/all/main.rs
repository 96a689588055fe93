//! Captures made by hand: formats, byte orders, old versions, damage.

mod pcap;
mod pcapng;

use bpf_capture::{Capture, Error};

/// A packet as the tests compare it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    captured: Vec<u8>,
    length: u32,
    link_type: u16,
    swapped: bool,
    seconds: i64,
    nanoseconds: u64,
    interface: u32,
}

/// What is read of a file with these bytes, and the error that ended it.
fn read(bytes: &[u8]) -> (Vec<Seen>, Option<Error>) {
    let input = std::io::Cursor::new(bytes.to_vec());
    let mut capture = match Capture::from_reader("test".as_ref(), input) {
        Ok(capture) => capture,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let mut seen = Vec::new();
    loop {
        match capture.next_packet() {
            Ok(Some(p)) => seen.push(Seen {
                captured: p.captured.to_vec(),
                length: p.length,
                link_type: p.link_type,
                swapped: p.swapped,
                seconds: p.timestamp.seconds,
                nanoseconds: p.timestamp.nanoseconds,
                interface: p.interface,
            }),
            Ok(None) => return (seen, None),
            Err(why) => {
                assert!(matches!(capture.next_packet(), Ok(None)), "an error ends a capture");
                return (seen, Some(why));
            }
        }
    }
}

/// Numbers of 32 bits, in little-endian order or the other.
fn words(big: bool, numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| if big { n.to_be_bytes() } else { n.to_le_bytes() }).collect()
}

/// Whatever the bytes are, reading ends without a panic.
#[test]
fn random_bytes_are_read_to_an_end() {
    let random = &mut fastrand::Rng::with_seed(14);
    let starts: [&[u8]; 5] = [
        &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0],
        &[0xa1, 0xb2, 0xcd, 0x34, 0, 2, 0, 3],
        &[0x0a, 0x0d, 0x0d, 0x0a],
        &[0x1f, 0x8b, 8, 0],
        &[],
    ];
    for round in 0..20_000 {
        let mut bytes = starts[round % starts.len()].to_vec();
        bytes.extend((0..random.usize(..200)).map(|_| if random.bool() { 0 } else { random.u8(..) }));
        read(&bytes);
    }
}
