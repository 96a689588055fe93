//! What `bpf-capture` reads is what libpcap reads, of good captures and of damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use bpf_capture::{Capture, Writer, link};
use bpf_pcap_oracle::data::{self, Data, OwnedPacket};
use bpf_pcap_oracle::{Libpcap, Received};

/// What libpcap reads of a file: the packets, and the message that ended them.
fn reference(pcap: &Libpcap, path: &Path) -> (Vec<Received>, Option<String>) {
    let mut file = match pcap.open(path) {
        Ok(file) => file,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let mut packets = Vec::new();
    loop {
        match file.next_packet() {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return (packets, None),
            Err(why) => return (packets, Some(why)),
        }
    }
}

/// What `bpf-capture` reads of a file, and the message that ended it.
fn ours(path: &Path) -> (Vec<OwnedPacket>, Option<String>) {
    match data::read(path) {
        Ok((packets, why)) => (packets, why.map(|why| why.to_string())),
        Err(why) => (Vec::new(), Some(why.to_string())),
    }
}

/// Messages of libpcap where it gives up and `bpf-capture` goes on: interfaces and sections that differ.
const WE_GO_ON: [&str; 3] = ["different from the", "different byte orders", "bad byte order magic"];

fn same(theirs: &Received, ours: &OwnedPacket) -> bool {
    // libpcap has signed seconds or not, depending on the file's byte order.
    theirs.captured == ours.captured
        && theirs.length == ours.length
        && theirs.seconds as u32 == ours.timestamp.seconds as u32
        && theirs.nanoseconds as u32 == ours.timestamp.nanoseconds as u32
}

/// How the two differ on a file, if they do; otherwise how many packets were compared.
fn difference(pcap: &Libpcap, path: &Path) -> Result<usize, String> {
    let (theirs, their_end) = reference(pcap, path);
    let (ours, our_end) = ours(path);
    let unlike = theirs.iter().zip(&ours).position(|(theirs, ours)| !same(theirs, ours));
    if let Some(at) = unlike {
        return Err(format!("packet {}: {:?} instead of {:?}", at + 1, ours[at], theirs[at]));
    }
    let may_go_on = their_end.as_ref().is_some_and(|why| WE_GO_ON.iter().any(|known| why.contains(known)));
    let counts = if may_go_on { ours.len() >= theirs.len() } else { ours.len() == theirs.len() };
    let ends = may_go_on || our_end.is_some() == their_end.is_some();
    if counts && ends {
        return Ok(theirs.len());
    }
    Err(format!("{} packets, then {our_end:?}, instead of {}, then {their_end:?}", ours.len(), theirs.len()))
}

fn all_files(data: &Data) -> Vec<PathBuf> {
    data.captures().into_iter().map(|file| file.path).chain(data.savefiles()).collect()
}

#[test]
fn reads_what_libpcap_reads() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let files = all_files(&data);
    let mut packets = 0;
    for path in &files {
        if reserved_link_type(&fs::read(path).unwrap()) {
            continue;
        }
        packets += difference(&pcap, path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let (Ok(theirs), Ok(ours)) = (pcap.open(path), Capture::open(path)) else { continue };
        assert_eq!(u32::from(link::dlt(ours.link_type())), theirs.dlt(), "{}", path.display());
        assert_eq!((ours.snapshot(), ours.swapped()), (theirs.snapshot(), theirs.swapped()), "{}", path.display());
    }
    eprintln!("{} files, {packets} packets alike ({})", files.len(), pcap.version());
    assert!(files.len() > 900 && packets > 11_000, "only {} files, {packets} packets", files.len());
}

/// The table was made by another reader, which stops where the sections of a file differ, and goes on behind versions
/// and options that libpcap refuses.
#[test]
fn reads_as_many_packets_as_the_table_says() {
    let Some(data) = Data::for_test() else { return };
    let mut refused = 0;
    for file in data.captures() {
        let (packets, end) = ours(&file.path);
        match end {
            None => assert!(packets.len() >= file.packets, "{}", file.path.display()),
            Some(why) if packets.len() < file.packets => {
                eprintln!("{} of {} packets: {why}", packets.len(), file.packets);
                refused += 1;
            }
            Some(_) => {}
        }
    }
    assert!(refused <= 3, "{refused} files");
}

#[test]
fn compressed_files_are_the_same_captures() {
    use std::io::Write;
    let Some(data) = Data::for_test() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.gz");
    for plain in data.savefiles() {
        let mut encoder = flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
        encoder.write_all(&fs::read(&plain).unwrap()).unwrap();
        encoder.finish().unwrap();
        assert_eq!(ours(&path).0, ours(&plain).0, "{}", plain.display());
    }
}

#[test]
fn what_is_written_is_read_by_libpcap() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.pcap");
    for (at, file) in all_files(&data).into_iter().enumerate() {
        let Ok(mut capture) = Capture::open(&file) else { continue };
        let (link_type, nanoseconds) = (capture.link_type(), at % 2 == 0);
        let mut writer = Writer::create(&path, link_type, link::longest_packet(link_type), nanoseconds).unwrap();
        let mut expected = Vec::new();
        while let Ok(Some(packet)) = capture.next_packet() {
            if packet.link_type == link_type {
                writer.write(&packet).unwrap();
                let unit = if nanoseconds { 1 } else { 1000 };
                let moment = moment(packet.timestamp.seconds, packet.timestamp.nanoseconds / unit * unit);
                expected.push((packet.captured.to_vec(), packet.length, moment));
            }
        }
        drop(writer);
        let (packets, end) = reference(&pcap, &path);
        let read = packets.into_iter().map(|p| (p.captured, p.length, moment(p.seconds, p.nanoseconds as u64)));
        assert!(end.is_none() && read.collect::<Vec<_>>() == expected, "{}: {end:?}", file.display());
    }
}

/// Nanoseconds since 1970, of seconds in 32 bits.
fn moment(seconds: i64, nanoseconds: u64) -> u64 {
    u64::from(seconds as u32) * 1_000_000_000 + nanoseconds
}

/// Makes one to four changes to the bytes of a file: flips a bit, replaces a byte or a word, cuts the end off.
fn damage(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..=4) {
        if bytes.is_empty() {
            return;
        }
        // Headers stand in front, so that half of the changes are made there.
        let most = if random.bool() { bytes.len().min(96) } else { bytes.len() };
        let at = random.usize(..most);
        match random.u8(..8) {
            0..3 => bytes[at] ^= 1 << random.u8(..8),
            3..5 => bytes[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap(),
            5 => bytes.truncate(at),
            _ => {
                let word = random.choice([0, 1, 16, u32::from(u16::MAX), 0x7fff_ffff, u32::MAX]).unwrap();
                let end = bytes.len().min(at + 4);
                bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
            }
        }
    }
}

#[test]
fn damaged_files_are_read_as_far_as_libpcap_reads_them() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    let mut random = fastrand::Rng::with_seed(14);
    let rounds = std::env::var("BPF_OPT_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    let files: Vec<Vec<u8>> = all_files(&data)
        .into_iter()
        .map(|file| fs::read(file).unwrap())
        .filter(|bytes| bytes.len() < 100_000)
        .collect();
    let (mut read, mut stopped) = (0, 0);
    for round in 0..rounds {
        let mut bytes = random.choice(&files).unwrap().clone();
        damage(&mut random, &mut bytes);
        if reserved_link_type(&bytes) {
            continue;
        }
        fs::write(&path, &bytes).unwrap();
        match difference(&pcap, &path) {
            Ok(packets) => read += packets,
            Err(why) => {
                fs::write("/tmp/bpf-capture-damaged", &bytes).unwrap();
                panic!("round {round} (/tmp/bpf-capture-damaged): {why}");
            }
        }
        stopped += usize::from(ours(&path).1.is_some());
    }
    eprintln!("{rounds} damaged files, {read} packets alike, {stopped} files not read to their end");
    assert!(read > rounds && stopped > rounds / 5, "{read} packets, {stopped} errors");
}

/// Whether a pcap header has bits of the link type set that are reserved: libpcap 1.10 takes them for a part of the
/// number, later versions and `bpf-capture` refuse the file.
fn reserved_link_type(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<24>() else { return false };
    let little = [0xd4, 0x4d, 0x34].contains(&header[0]);
    header[..4] != [0x0a, 0x0d, 0x0d, 0x0a]
        && (if little { header[22] != 0 || header[23] & 3 != 0 } else { header[21] != 0 || header[20] & 3 != 0 })
}
