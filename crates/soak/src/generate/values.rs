//! Numbers, packets and contents of maps, of the kind at which arithmetic goes wrong.

use bpf_driver::difftest::Random;

use super::program::MAPS;

/// A number of the kind at which arithmetic goes wrong.
pub fn number(r: &mut Random) -> u64 {
    const EDGES: [u64; 10] =
        [0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX, 0x7fff_ffff_ffff_ffff];
    match r.below(5) {
        0 => r.next(),
        1 => r.next() >> r.below(64),
        2 => r.pick(&EDGES).wrapping_add(r.below(5)).wrapping_sub(2),
        3 => r.next() as i32 as i64 as u64,
        _ => r.below(70),
    }
}

/// A packet full of such numbers.
pub fn packet(r: &mut Random) -> Vec<u8> {
    let words = 16 + r.below(12);
    let mut p: Vec<u8> = (0..words).flat_map(|_| number(r).to_le_bytes()).collect();
    p.extend(r.bytes((words % 8) as usize));
    p
}

/// Contents of the maps: values of the array, elements of the hash.
pub fn contents(r: &mut Random) -> [Vec<(Vec<u8>, Vec<u8>)>; 2] {
    let value = |r: &mut Random, n: u32| (0..n / 8).flat_map(|_| number(r).to_le_bytes()).collect::<Vec<u8>>();
    let array = (0..MAPS[0].4).map(|i| (i.to_le_bytes().to_vec(), value(r, MAPS[0].3))).collect();
    let n = r.below(u64::from(MAPS[1].4));
    let hash = (0..n as u32).map(|i| (i.to_le_bytes().to_vec(), value(r, MAPS[1].3))).collect();
    [array, hash]
}
