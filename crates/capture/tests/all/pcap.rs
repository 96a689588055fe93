//! The pcap format.

use std::fs;

use bpf_capture::{Capture, ErrorKind, Packet, Timestamp, Writer, link};

use crate::{read, words};

/// A file with this first number, version and link type, and records of 3 bytes each.
fn file(big: bool, magic: u32, version: [u16; 2], link_type: u32, records: &[[u32; 4]]) -> Vec<u8> {
    let mut bytes = words(big, &[magic]);
    bytes.extend(version.iter().flat_map(|n| if big { n.to_be_bytes() } else { n.to_le_bytes() }));
    bytes.extend(words(big, &[0, 0, 64, link_type]));
    for record in records {
        bytes.extend(words(big, record));
        if magic == 0xa1b2_cd34 {
            bytes.extend([0; 8]);
        }
        bytes.extend([1, 2, 3]);
    }
    bytes
}

#[test]
fn reads_both_byte_orders_and_units() {
    for (big, magic, nanoseconds) in [(false, 0xa1b2_c3d4, 5_000), (true, 0xa1b2_3c4d, 5), (true, 0xa1b2_cd34, 5_000)] {
        let (seen, end) = read(&file(big, magic, [2, 4], 1, &[[7, 5, 3, 60]]));
        assert!(end.is_none(), "{end:?}");
        let packet = &seen[0];
        assert_eq!((&packet.captured[..], packet.length, packet.link_type), (&[1, 2, 3][..], 60, 1));
        assert_eq!((packet.seconds, packet.nanoseconds), (7, nanoseconds));
        assert_eq!(packet.swapped, big == cfg!(target_endian = "little"));
    }
}

#[test]
fn lengths_of_old_versions_are_the_other_way_round() {
    for (version, lengths, expected) in
        [([2, 2], [60, 3], 60), ([2, 3], [60, 3], 60), ([2, 3], [3, 60], 60), ([543, 0], [60, 3], 60)]
    {
        let (seen, end) = read(&file(false, 0xa1b2_c3d4, version, 1, &[[0, 0, lengths[0], lengths[1]]]));
        assert!(end.is_none() && seen[0].length == expected, "{version:?} {end:?}");
    }
}

#[test]
fn the_upper_bits_of_the_link_type_are_no_part_of_it() {
    let (seen, _) = read(&file(false, 0xa1b2_c3d4, [2, 4], 0x4400_0000 | 101, &[[0, 0, 3, 3]]));
    assert_eq!((seen[0].link_type, link::dlt(101)), (101, 12));
    let (_, end) = read(&file(false, 0xa1b2_c3d4, [2, 4], 0x0010_0001, &[]));
    assert!(matches!(end.unwrap().kind(), ErrorKind::LinkType(0x0010_0001)));
}

#[test]
fn errors_name_packet_and_place() {
    let mut bytes = file(false, 0xa1b2_c3d4, [2, 4], 1, &[[0, 0, 3, 3], [0, 0, 9, 9]]);
    let (seen, end) = read(&bytes);
    assert_eq!(seen.len(), 1);
    assert_eq!(end.unwrap().to_string(), "test: truncated in packet 2 at byte 62: 9 bytes are needed, 3 are there");
    bytes[24 + 8..24 + 12].copy_from_slice(&[0xff; 4]);
    let end = read(&bytes).1.unwrap();
    let text = "test: in packet 1 at byte 24: a captured length of 4294967295 bytes, where 262144 are the most";
    assert_eq!((end.to_string().as_str(), end.packet(), end.offset()), (text, Some(1), 24));
    assert_eq!(read(b"hello").1.unwrap().to_string(), "test: neither a pcap nor a pcapng file");
    let missing = Capture::open("/no/such/file".as_ref()).err().unwrap();
    assert!(missing.to_string().starts_with("/no/such/file: No such file"), "{missing}");
}

#[test]
fn more_than_the_snapshot_length_is_cut_off() {
    let mut bytes = file(false, 0xa1b2_c3d4, [2, 4], 1, &[]);
    bytes.extend(words(false, &[0, 0, 100, 100]));
    bytes.extend([7; 100]);
    bytes.extend(words(false, &[0, 0, 3, 3]));
    bytes.extend([1, 2, 3]);
    let (seen, end) = read(&bytes);
    assert!(end.is_none());
    assert_eq!((seen[0].captured.len(), seen[0].length, &seen[1].captured[..]), (64, 100, &[1, 2, 3][..]));
}

#[test]
fn what_is_written_is_valid_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pcap");
    let mut writer = Writer::create(&path, 101, 10, true).unwrap();
    let data = [9; 40];
    let timestamp = Timestamp { seconds: 5, nanoseconds: 999_999_999 };
    let packet = Packet { captured: &data, length: 50, link_type: 101, swapped: false, timestamp, interface: 0 };
    for count in 1..20_000 {
        writer.write(&packet).unwrap();
        if count % 5_000 == 0 {
            let (seen, end) = read(&fs::read(&path).unwrap());
            assert!(end.is_none() && seen.len() <= count);
        }
    }
    writer.flush().unwrap();
    let (seen, end) = read(&fs::read(&path).unwrap());
    assert!(end.is_none());
    assert_eq!(seen.len(), 19_999);
    let last = &seen[19_998];
    assert_eq!((last.captured.len(), last.length, last.nanoseconds), (10, 50, 999_999_999));
    let capture = Capture::open(&path).unwrap();
    assert_eq!((capture.link_type(), capture.snapshot()), (101, 10));
    assert_eq!(capture.size(), Some(fs::metadata(&path).unwrap().len()));
    assert!(capture.position() > 0);
}

#[test]
fn numbers_of_link_types_go_there_and_back() {
    for link_type in 0..300 {
        let known = [11, 12, 15, 16, 18, 19].contains(&link_type);
        assert!(known || link::of_dlt(link::dlt(link_type)) == link_type, "{link_type}");
    }
    assert_eq!([0, 1, 50, 100, 104, 108, 246].map(link::dlt), [0, 1, 50, 11, 104, 108, 18]);
}
