//! The pcapng format.

use bpf_capture::ErrorKind;

use crate::{read, words};

/// A block of this type.
fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = padded as u32 + 12;
    let mut bytes = words(big, &[kind, length]);
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes.extend(words(big, &[length]));
    bytes
}

fn section(big: bool) -> Vec<u8> {
    let mut body = words(big, &[0x1a2b_3c4d]);
    body.extend(if big { [0, 1, 0, 0] } else { [1, 0, 0, 0] });
    body.extend([0xff; 8]);
    block(big, 0x0a0d_0d0a, &body)
}

fn interface(big: bool, link_type: u16, snapshot: u32, options: &[u8]) -> Vec<u8> {
    let mut body = if big { link_type.to_be_bytes() } else { link_type.to_le_bytes() }.to_vec();
    body.extend([0, 0]);
    body.extend(words(big, &[snapshot]));
    body.extend(options);
    block(big, 1, &body)
}

fn enhanced(big: bool, interface: u32, stamp: [u32; 2], data: &[u8], length: u32) -> Vec<u8> {
    let mut body = words(big, &[interface, stamp[0], stamp[1], data.len() as u32, length]);
    body.extend(data);
    block(big, 6, &body)
}

#[test]
fn interfaces_and_sections_may_differ() {
    let nanoseconds = [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    let file = [
        section(false),
        interface(false, 1, 0, &[]),
        interface(false, 101, 100, &nanoseconds),
        enhanced(false, 0, [0, 2_000_001], &[1; 5], 60),
        enhanced(false, 1, [0, 2_000_001], &[2; 6], 6),
        section(true),
        interface(true, 0, 3, &[]),
        block(true, 0x0bad, &[1, 2, 3]),
        block(true, 3, &[&words(true, &[4])[..], &[7; 4]].concat()),
    ]
    .concat();
    let (seen, end) = read(&file);
    assert!(end.is_none(), "{end:?}");
    let summary: Vec<_> =
        seen.iter().map(|p| (p.captured.len(), p.length, p.link_type, p.interface, p.seconds, p.nanoseconds)).collect();
    assert_eq!(summary, [(5, 60, 1, 0, 2, 1_000), (6, 6, 101, 1, 0, 2_000_001), (3, 4, 0, 0, 0, 0)]);
    let little = cfg!(target_endian = "little");
    assert_eq!(seen.iter().map(|p| p.swapped).collect::<Vec<_>>(), [!little, !little, little]);
}

#[test]
fn reads_obsolete_packet_blocks() {
    let mut body = vec![0, 0, 0xff, 0xff];
    body.extend(words(false, &[0, 3, 2, 9]));
    body.extend([8, 9]);
    let (seen, end) = read(&[section(false), interface(false, 1, 0, &[]), block(false, 2, &body)].concat());
    assert!(end.is_none(), "{end:?}");
    assert_eq!((&seen[0].captured[..], seen[0].length, seen[0].nanoseconds), (&[8, 9][..], 9, 3_000));
}

#[test]
fn faults_are_named() {
    let head = [section(false), interface(false, 1, 60, &[])].concat();
    let with = |tail: &[u8]| read(&[&head[..], tail].concat()).1.expect("an error");
    let unknown = with(&enhanced(false, 1, [0, 0], &[], 0));
    assert!(matches!(unknown.kind(), ErrorKind::NoInterface(1)) && unknown.packet() == Some(1), "{unknown}");
    let long = with(&enhanced(false, 0, [0, 0], &[0; 61], 61));
    assert!(matches!(long.kind(), ErrorKind::CapturedLength { length: 61, limit: 60 }), "{long}");
    let mut other = enhanced(false, 0, [0, 0], &[], 0);
    *other.last_mut().unwrap() = 1;
    assert!(matches!(with(&other).kind(), ErrorKind::BlockEnd { .. }));
    let huge = with(&words(false, &[6, 0xffff_fff0]));
    assert!(matches!(huge.kind(), ErrorKind::BlockLength { .. }), "{huge}");
    let cut = with(&enhanced(false, 0, [0, 0], &[0; 8], 8)[..20]);
    assert_eq!(cut.to_string(), "test: truncated in packet 1 at byte 68: 32 bytes are needed, 12 are there");
    assert!(matches!(read(&section(false)).1.unwrap().kind(), ErrorKind::NoInterfaces));
    let early = read(&[section(false), enhanced(false, 0, [0, 0], &[], 0)].concat()).1.unwrap();
    assert!(matches!(early.kind(), ErrorKind::NoInterfaces), "{early}");
}

#[test]
fn time_stamps_of_any_unit_are_in_nanoseconds() {
    // `if_tsresol` 2^-2 and `if_tsoffset` of ten seconds before.
    let options = [&[9, 0, 1, 0, 0x82, 0, 0, 0, 14, 0, 8, 0][..], &(-10i64).to_le_bytes()].concat();
    let file = [section(false), interface(false, 1, 0, &options), enhanced(false, 0, [0, 7], &[], 0)].concat();
    let (seen, end) = read(&file);
    assert!(end.is_none(), "{end:?}");
    assert_eq!((seen[0].seconds, seen[0].nanoseconds), (-9, 750_000_000));
    let twice = [&options[..8], &options[..8]].concat();
    let (_, end) = read(&[section(false), interface(false, 1, 0, &twice)].concat());
    assert!(matches!(end.unwrap().kind(), ErrorKind::InterfaceOption(9)));
}
