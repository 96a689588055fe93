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
        let (at, bits) = if map_type == maps::LPM_TRIE { (4, 32) } else { (0, n) };
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
        assert!(maps::aligns_values(map_type));
        for key_size in [4, 5, 8, 12] {
            let found = addresses(map_type, key_size);
            assert!(found.iter().all(|a| *a != 0 && a % 8 == 0), "type {map_type}, key {key_size}: {found:x?}");
        }
    }
    for map_type in [maps::ARRAY, maps::PERCPU_ARRAY] {
        assert!(maps::aligns_values(map_type));
        let found = addresses(map_type, 4);
        assert!(found.iter().all(|a| *a != 0 && a % 8 == 0), "type {map_type}: {found:x?}");
    }
}

#[test]
fn values_of_a_trie_are_where_its_keys_end() {
    if !permitted() {
        return;
    }
    assert!(!maps::aligns_values(maps::LPM_TRIE));
    let found = addresses(maps::LPM_TRIE, 8);
    assert!(found.iter().all(|a| *a != 0 && a % 8 == 4), "{found:x?}");
}
