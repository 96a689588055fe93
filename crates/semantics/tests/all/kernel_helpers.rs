//! The model of the kernel's helpers and contexts against the kernel itself.
//!
//! Each test is a program whose arguments come from the packet. It runs in the kernel with `BPF_PROG_TEST_RUN` and in
//! the interpreter; return value, packet and map contents must agree.

use std::collections::{BTreeMap, HashMap};

use bpf_isa::{decode_all, encode_all, parse_listing};
use bpf_kernel::testing::permitted;
use bpf_kernel::{Map, ProgramType, RawOptions, RawProgram};
use bpf_program::{ProgKind, build_from_insns};
use bpf_semantics::interp::{KernelHost, MapSpec};

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERF_EVENT_ARRAY: u32 = 4;
const PROG_ARRAY: u32 = 3;
const DEVMAP: u32 = 14;
const XDP: ProgramType = ProgramType::XDP;
const TC: ProgramType = ProgramType::SCHED_CLS;

/// r6 is the context, r9 the packet, of which 64 bytes may be accessed.
fn program(kind: ProgramType, text: &str) -> String {
    let (data, end) = if kind == XDP { (0, 4) } else { (76, 80) };
    format!(
        "r6 = r1\nr2 = *(u32 *)(r6 + {end})\nr9 = *(u32 *)(r6 + {data})\nr3 = r9\nr3 += 64\nif r3 <= r2 goto +2\n\
         r0 = 99\nexit\n{text}\nexit"
    )
}

struct Rng(fastrand::Rng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }
    fn packet(&mut self, len: usize) -> Vec<u8> {
        let mut p: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
        p[12..14].copy_from_slice(&[8, 0]);
        p
    }
    fn packets(&mut self, len: usize, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.packet(len)).collect()
    }
}

/// Runs the program on each packet in both worlds; returns how often each return value was seen. `MAP` in the text
/// is the map's descriptor.
fn agree(
    kind: ProgramType,
    map: Option<(u32, u32, u32, u32)>,
    text: &str,
    packets: &[Vec<u8>],
) -> BTreeMap<i32, usize> {
    let mut seen = BTreeMap::new();
    for packet in packets {
        let theirs_map = map.map(|(kind, key, value, entries)| Map::create(kind, key, value, entries).unwrap());
        let fd = theirs_map.as_ref().map_or(0, Map::fd);
        let text = program(kind, text).replace("MAP", &format!("map_fd[{fd}] ll"));
        let code = encode_all(&parse_listing(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap();
        let loaded =
            RawProgram::load(kind, &code, &RawOptions::default()).unwrap_or_else(|r| panic!("{r}\n{}\n{text}", r.log));
        let theirs = loaded.test_run(packet, None, 1).unwrap();

        let prog_kind = if kind == XDP { ProgKind::Xdp } else { ProgKind::Skb };
        let f = build_from_insns("f", prog_kind, &decode_all(&code).unwrap(), HashMap::new()).unwrap();
        let mut host = KernelHost::new(prog_kind, packet);
        if let Some((map_type, key_size, value_size, max_entries)) = map {
            let map = host.add_map(MapSpec { name: "m".into(), map_type, key_size, value_size, max_entries });
            host.bind_fd(fd as u32, map);
        }
        let mut interp = host.start();
        let ours = interp.run(&f, 1 << 16).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(theirs.retval as i32, ours.r0 as i32, "return value of\n{text}\non {packet:x?}");
        // XDP test runs give the metadata back too.
        let packet_after = [interp.host.metadata(), interp.host.packet()].concat();
        assert_eq!(theirs.data_out, packet_after, "packet after\n{text}\non {packet:x?}");
        if let Some(map) = theirs_map.filter(|m| [HASH, ARRAY].contains(&m.kind())) {
            let mut entries = map.entries().unwrap();
            entries.sort();
            if map.kind() == ARRAY {
                entries.retain(|(_, v)| v.iter().any(|b| *b != 0));
            }
            let mut model = interp.host.map_entries(0);
            if map.kind() == ARRAY {
                model.retain(|(_, v)| v.iter().any(|b| *b != 0));
            }
            model.sort();
            assert_eq!(entries, model, "map after\n{text}\non {packet:x?}");
        }
        *seen.entry(theirs.retval as i32).or_default() += 1;
    }
    seen
}

/// Sets bytes 16 … 24 of the packet.
fn with(packet: &[u8], word: u64) -> Vec<u8> {
    let mut p = packet.to_vec();
    p[16..24].copy_from_slice(&word.to_le_bytes());
    p
}

#[test]
fn checksum_difference() {
    if !permitted() {
        return;
    }
    let mut rng = Rng::new(1);
    let mut packets = rng.packets(64, 30);
    packets.extend([vec![0; 64], vec![0xff; 64]]);
    for (from, to) in [(16, 16), (4, 4), (4, 12), (0, 16), (16, 0), (0, 0), (6, 4)] {
        let text =
            format!("r1 = r9\nr1 += 16\nr2 = {from}\nr3 = r9\nr3 += 32\nr4 = {to}\nr5 = *(u32 *)(r9 + 56)\ncall 28");
        agree(XDP, None, &text, &packets);
    }
}

#[test]
fn checksum_replacement() {
    if !permitted() {
        return;
    }
    let mut packets = Rng::new(2).packets(64, 20);
    packets.extend([vec![0; 64], vec![0xff; 64]]);
    for helper in [10, 11] {
        for flags in [0, 2, 4, 3, 0x10, 0x12, 0x14, 0x22, 0x24, 0x64, 0x34, 0x400] {
            for (offset, from) in [(24, "*(u32 *)(r9 + 32)"), (24, "0"), (25, "0"), (63, "0")] {
                let text =
                    format!("r3 = {from}\nr4 = *(u32 *)(r9 + 36)\nr1 = r6\nr2 = {offset}\nr5 = {flags}\ncall {helper}");
                agree(TC, None, &text, &packets);
            }
        }
    }
}

#[test]
fn packet_resizing() {
    if !permitted() {
        return;
    }
    let packet = Rng::new(3).packet(100);
    let mut deltas: Vec<i32> = vec![i32::MIN, i32::MAX, 3776 - 256 - 100, 3776 - 256 - 99, 3776 - 256 - 101];
    for around in [0, -256, -216, 86, 100, -86, -100, -255, -252] {
        deltas.extend((-5..=5).map(|d| around + d));
    }
    let packets: Vec<_> = deltas.iter().map(|d| with(&packet, u64::from(*d as u32))).collect();
    for helper in [44, 65, 54] {
        let text = format!("r1 = r6\nr2 = *(u32 *)(r9 + 16)\ncall {helper}");
        let seen = agree(XDP, None, &text, &packets);
        assert!(seen[&0] > 5 && seen.len() > 1, "helper {helper}: {seen:?}");
    }
    // Metadata moves with the head, and the head not over it.
    let text = "r1 = r6\nr2 = -8\ncall 54\nr2 = *(u32 *)(r6 + 8)\nr3 = *(u32 *)(r6 + 0)\nr4 = r2\nr4 += 8\n\
                if r4 > r3 goto +1\n*(u64 *)(r2 + 0) = 77\nr4 = *(u32 *)(r6 + 4)\nr5 = r3\nr5 += 24\n\
                r0 = 98\nif r5 > r4 goto +12\nr2 = *(u32 *)(r3 + 16)\nr1 = r6\ncall 44\nr7 = r0\n\
                r2 = *(u32 *)(r6 + 8)\nr3 = *(u32 *)(r6 + 0)\nr4 = r2\nr4 += 8\nr0 = 97\nif r4 > r3 goto +2\n\
                r0 = *(u64 *)(r2 + 0)\nr0 += r7";
    let seen = agree(XDP, None, text, &packets);
    assert!(seen.contains_key(&77) && seen.contains_key(&55), "{seen:?}");
}

#[test]
fn packet_bytes_by_helper() {
    if !permitted() {
        return;
    }
    let packet = Rng::new(4).packet(80);
    let offsets = [0i32, 1, 40, 71, 72, 73, 79, 80, 81, 0xffff, 0x10000, -1, i32::MIN, i32::MAX];
    let packets: Vec<_> = offsets.iter().map(|o| with(&packet, u64::from(*o as u32))).collect();
    for (kind, load, store) in [(TC, 26, 9), (XDP, 189, 190)] {
        let text = format!(
            "*(u64 *)(r10 - 8) = 1234\nr1 = r6\nr2 = *(u32 *)(r9 + 16)\nr3 = r10\nr3 += -8\nr4 = 8\ncall {load}\n\
             r1 = *(u64 *)(r10 - 8)\nr0 ^= r1"
        );
        agree(kind, None, &text, &packets);
        for flags in [0, 1, 4] {
            let text = format!(
                "*(u64 *)(r10 - 8) = 1234\nr1 = r6\nr2 = *(u32 *)(r9 + 16)\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = {flags}\n\
                 call {store}"
            );
            agree(kind, None, &text, &packets);
        }
    }
    let pulls: Vec<_> = [0, 1, 79, 80, 81, 4000].iter().map(|n| with(&packet, *n)).collect();
    agree(TC, None, "r1 = r6\nr2 = *(u32 *)(r9 + 16)\ncall 39", &pulls);
}

#[test]
fn context_fields() {
    if !permitted() {
        return;
    }
    let mut rng = Rng::new(5);
    let mut packets = rng.packets(70, 5);
    packets.push(vec![0xff; 70]);
    packets.push(vec![0; 70]);
    for p in &mut packets[..3] {
        p[0] &= 0xfe;
    }
    packets[4][12] = 0x86;
    packets[4][13] = 0xdd;
    for field in [12, 16] {
        agree(XDP, None, &format!("r0 = *(u32 *)(r6 + {field})"), &packets);
    }
    agree(XDP, None, "r0 = *(u32 *)(r6 + 0)\nr1 = *(u32 *)(r6 + 8)\nr0 -= r1", &packets);
    agree(XDP, None, "r0 = *(u32 *)(r6 + 4)\nr1 = *(u32 *)(r6 + 0)\nr0 -= r1", &packets);
    agree(TC, None, "r0 = *(u32 *)(r6 + 80)\nr1 = *(u32 *)(r6 + 76)\nr0 -= r1", &packets);
    // len … ifindex, tc_index, cb, tc_classid, wire_len, gso_segs, gso_size
    for field in (0..48).step_by(4).chain([48, 52, 56, 60, 64, 72, 164, 160, 176]) {
        // hash (68) and napi_id (84) need a device.
        agree(TC, None, &format!("r0 = *(u32 *)(r6 + {field})"), &packets);
    }
    agree(TC, None, "r0 = *(u8 *)(r6 + 1)", &packets);
    agree(TC, None, "r1 = 5\n*(u32 *)(r6 + 52) = r1\nr0 = *(u64 *)(r6 + 48)\nr0 >>= 32", &packets);
}

#[test]
fn map_changes() {
    if !permitted() {
        return;
    }
    let mut rng = Rng::new(6);
    let mut packets = rng.packets(64, 60);
    // Few keys and the flags 0 … 3, so that keys meet.
    for p in &mut packets {
        for op in 0..5 {
            p[16 + 8 * op] %= 3;
            p[17 + 8 * op..20 + 8 * op].fill(0);
            p[20 + 8 * op] = p[20 + 8 * op] % 8 / 2;
            p[21 + 8 * op..24 + 8 * op].fill(0);
        }
    }
    let key = |op| format!("r1 = *(u32 *)(r9 + {})\n*(u32 *)(r10 - 8) = r1\nr2 = r10\nr2 += -8\n", 16 + 8 * op);
    let update = |op| {
        format!(
            "r4 = *(u32 *)(r9 + {})\n{}*(u64 *)(r10 - 16) = {}\nr3 = r10\nr3 += -16\nr1 = MAP\ncall 2\nr8 *= 31\nr8 += r0\n",
            20 + 8 * op,
            key(op),
            op + 1
        )
    };
    let delete = |op| format!("{}r1 = MAP\ncall 3\nr8 *= 31\nr8 += r0\n", key(op));
    let bump = |op| {
        format!(
            "{}r1 = MAP\ncall 1\nif r0 == 0 goto +4\nr1 = *(u64 *)(r0 + 0)\nr1 *= 7\n*(u64 *)(r0 + 0) = r1\nr8 += r1\n",
            key(op)
        )
    };
    let text = format!("r8 = 0\n{}{}{}{}{}r0 = r8", update(0), update(1), delete(2), update(3), bump(4));
    for (kind, entries) in [(HASH, 2), (HASH, 8), (ARRAY, 2), (ARRAY, 8)] {
        let seen = agree(XDP, Some((kind, 4, 8, entries)), &text, &packets);
        assert!(seen.len() > 5, "{seen:?}");
    }
}

#[test]
fn redirects() {
    if !permitted() {
        return;
    }
    let packet = Rng::new(7).packet(64);
    let packets: Vec<_> = [0u64, 1, 2, 3, 4, 8, 9, 16, 32, 1 << 40].iter().map(|f| with(&packet, *f)).collect();
    let flags = "r2 = *(u64 *)(r9 + 16)\nr1 = 1\ncall 23";
    agree(XDP, None, flags, &packets);
    agree(TC, None, flags, &packets);
    let text = "r3 = *(u64 *)(r9 + 16)\nr1 = MAP\nr2 = 0\ncall 51";
    agree(XDP, Some((DEVMAP, 4, 4, 1)), text, &packets);
}

#[test]
fn calls_without_anybody_listening() {
    if !permitted() {
        return;
    }
    let packets = Rng::new(8).packets(64, 1);
    let text = "*(u64 *)(r10 - 8) = 5\nr1 = r6\nr2 = MAP\nr3 = 0\nr4 = r10\nr4 += -8\nr5 = 8\ncall 25";
    agree(XDP, Some((PERF_EVENT_ARRAY, 4, 4, 1)), text, &packets);
    let text = "r1 = r6\nr2 = MAP\nr3 = 0\ncall 12\nr0 = 3";
    agree(XDP, Some((PROG_ARRAY, 4, 4, 1)), text, &packets);
    let text = "*(u64 *)(r10 - 8) = 5\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\ncall 113\nr1 = *(u64 *)(r10 - 8)\nr0 += r1";
    agree(XDP, None, text, &packets);
    // User addresses are refused differently from kernel addresses.
    for helper in [112, 113, 114, 115] {
        for address in ["0", "-1", "4096"] {
            let text = format!(
                "*(u64 *)(r10 - 8) = 5\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = {address}\ncall {helper}\n\
                 r1 = *(u64 *)(r10 - 8)\nr0 += r1"
            );
            agree(XDP, None, &text, &packets);
        }
        let text = format!(
            "*(u64 *)(r10 - 16) = 0x424344\n*(u64 *)(r10 - 8) = 5\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = r10\nr3 += -16\n\
             call {helper}\nr1 = *(u64 *)(r10 - 8)\nr0 += r1"
        );
        if [113, 115].contains(&helper) {
            agree(XDP, None, &text, &packets);
        }
    }
}
