//! Where the kernel puts the values of maps: what `bpf_platform::maps` says of it, asked of the running kernel.

use bpf_isa::{encode_all, parse_listing};
use bpf_kernel::testing::permitted;
use bpf_kernel::{Map, ProgramType, RawOptions, RawProgram};
use bpf_platform::maps;

/// Bytes of a value, so that elements side by side are aligned only if the kernel pads them.
const VALUE: u32 = 12;
/// Elements that are looked at.
const ELEMENTS: u8 = 3;

/// The address of the value under a key, as a program sees it: it stores it to another map.
fn address_of_value(map: &Map, key: &[u8]) -> u64 {
    let sink = Map::create(maps::ARRAY, 4, 8, 1).expect("an array");
    let mut bytes = [0; 16];
    bytes[..key.len()].copy_from_slice(key);
    let words: Vec<u32> = bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().expect("four"))).collect();
    let [map_fd, sink_fd] = [map, &sink].map(|m| format!("map_fd[{}] ll", m.fd()));
    let key: String = (0..4).map(|i| format!("*(u32 *)(r10 - {}) = {}\n", 16 - 4 * i, words[i] as i32)).collect();
    let text = format!(
        "{key}r2 = r10\nr2 += -16\nr1 = {map_fd}\ncall 1\nif r0 == 0 goto +10\nr6 = r0\n\
         *(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = {sink_fd}\ncall 1\nif r0 == 0 goto +2\n\
         *(u64 *)(r0 + 0) = r6\nr0 = 0\nexit"
    );
    let code = encode_all(&parse_listing(&text).expect("a listing")).expect("it encodes");
    let program = RawProgram::load(ProgramType::XDP, &code, &RawOptions::default()).unwrap_or_else(|r| panic!("{r}"));
    program.test_run(&[0; 64], None, 1).expect("it runs");
    let stored = sink.lookup(&0u32.to_le_bytes()).expect("a lookup").expect("element 0");
    u64::from_le_bytes(stored.try_into().expect("eight bytes"))
}

/// The addresses of some values of a new map of this type.
fn addresses(map_type: u32, key_size: u32) -> Vec<u64> {
    const NO_PREALLOC: u32 = 1;
    let flags = if map_type == maps::LPM_TRIE { NO_PREALLOC } else { 0 };
    let map = Map::create_with(map_type, key_size, VALUE, 8, flags, None).expect("a map");
    let key = |n: u8| {
        let mut key = vec![0; key_size as usize];
        // Of a trie's key the first four bytes are how many bits count.
        let bits = 8 * (key_size.saturating_sub(4)).min(4) as u8;
        let (at, bits) = if map_type == maps::LPM_TRIE { (4, bits) } else { (0, n) };
        (key[0], key[at]) = (bits, n);
        key
    };
    (0..ELEMENTS)
        .map(|n| {
            map.update(&key(n), &vec![n; map.value_len()]).expect("an update");
            address_of_value(&map, &key(n))
        })
        .collect()
}

#[test]
fn values_are_aligned_in_the_maps_of_which_the_table_says_so() {
    if !permitted() {
        return;
    }
    for map_type in [maps::HASH, maps::LRU_HASH, maps::PERCPU_HASH, maps::LRU_PERCPU_HASH] {
        for key_size in [4, 5, 8, 12] {
            assert_eq!(maps::value_zero_bits(map_type, Some(key_size)), 3);
            let found = addresses(map_type, key_size);
            assert!(found.iter().all(|a| *a != 0 && a % 8 == 0), "type {map_type}, key {key_size}: {found:x?}");
        }
    }
    for map_type in [maps::ARRAY, maps::PERCPU_ARRAY] {
        assert_eq!(maps::value_zero_bits(map_type, Some(4)), 3);
        let found = addresses(map_type, 4);
        assert!(found.iter().all(|a| *a != 0 && a % 8 == 0), "type {map_type}: {found:x?}");
    }
}

#[test]
fn values_of_a_trie_are_where_its_keys_end() {
    if !permitted() {
        return;
    }
    for (key_size, place) in [(5, 1), (6, 2), (7, 3), (8, 4), (12, 0), (14, 2), (16, 4)] {
        let found = addresses(maps::LPM_TRIE, key_size);
        assert!(found.iter().all(|a| *a != 0 && a % 8 == place), "key {key_size}: {found:x?}");
        let zero_bits = maps::value_zero_bits(maps::LPM_TRIE, Some(key_size));
        assert_eq!(zero_bits, (place | 8).trailing_zeros(), "key {key_size}");
    }
    assert_eq!([None, Some(0), Some(4)].map(|key| maps::value_zero_bits(maps::LPM_TRIE, key)), [0; 3]);
}

#[test]
fn values_of_device_maps_are_words() {
    if !permitted() {
        return;
    }
    // The device with this number is there in every network namespace.
    const LOOPBACK: u32 = 1;
    for map_type in [maps::DEVMAP, maps::DEVMAP_HASH] {
        for value in [4, 8] {
            let map = Map::create_with(map_type, 4, value, 8, 0, None).expect("a map");
            let key = 3u32.to_le_bytes();
            let mut bytes = vec![0; value as usize];
            bytes[..4].copy_from_slice(&LOOPBACK.to_le_bytes());
            map.update(&key, &bytes).expect("an update");
            let found = address_of_value(&map, &key);
            assert!(found != 0 && found.is_multiple_of(4), "type {map_type}: {found:x}");
        }
        assert_eq!(maps::value_zero_bits(map_type, Some(4)), 2);
    }
}
