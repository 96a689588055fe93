//! Running the code of a lookup on all keys that count.
//!
//! It finds a key only where each word of the key is equal to that of a row. So it is enough to run it on the keys of all
//! rows and on all keys of the map: where it finds these alone, and the right values, it does so for every key.

use std::collections::HashMap;

use bpf_isa::{Call, Insn, Reg, Src, Width};
use bpf_program::{Block, BlockId, ByteOrder, Function, Link, Op, ProgKind, Symbol, Terminator};
use bpf_semantics::interp::{Host, Interp, KernelHost};

use crate::declared::Element;
use crate::lookup::{self, Place, Places, Site};
use crate::table::{Layout, Table};

/// The section of the table.
const SECTION: &str = "table";

/// Says what is wrong with the code of a lookup in a table, if anything is.
///
/// # Errors
/// A key for which it does not do what the map does.
pub(crate) fn check(table: &Table, elements: &[Element]) -> Result<(), String> {
    // Each way to load a key is code of its own.
    [1, 2, 4, 8].into_iter().try_for_each(|alignment| check_with(table, elements, alignment))
}

fn check_with(table: &Table, elements: &[Element], key_alignment: u32) -> Result<(), String> {
    let f = program(table, key_alignment);
    let mut host = KernelHost::new(ProgKind::Tracing, &[]);
    host.add_section(SECTION, &table.bytes, false);
    let mut interp = host.start();
    let start = interp.cpu.clone();
    let mut find = |key: &[u8], value: Option<&[u8]>| {
        interp.cpu = start.clone();
        interp.host.set_context(key);
        found(&mut interp, &f, table, value)
            .map_err(|what| format!("the table is wrong for the key {key:02x?}: {what}"))
    };
    if table.layout == Layout::Array {
        for row in 0..table.keys.len() {
            find(&(row as u32).to_le_bytes(), Some(table.value(row)))?;
        }
        for outside in [table.keys.len() as u32, u32::MAX] {
            find(&outside.to_le_bytes(), None)?;
        }
        return elements.iter().try_for_each(|(key, value)| find(key, Some(value)));
    }
    let map: HashMap<&[u8], &[u8]> = elements.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
    elements.iter().try_for_each(|(key, value)| find(key, Some(value)))?;
    let rows = table.bytes.chunks(table.stride.max(1) as usize).take(table.keys.len());
    rows.filter_map(|row| row.get(..table.key_size as usize)).try_for_each(|key| find(key, map.get(key).copied()))
}

/// Runs the code for the key that is there, and says what is wrong with what it finds.
fn found(interp: &mut Interp<KernelHost>, f: &Function, table: &Table, value: Option<&[u8]>) -> Result<(), String> {
    const FUEL: u64 = 100_000;
    let r0 = interp.run(f, FUEL).map_err(|fault| fault.to_string())?.r0;
    match value {
        None if r0 == 0 => Ok(()),
        None => Err("it is found".into()),
        Some(_) if r0 == 0 => Err("it is not found".into()),
        Some(value) if table.value_at > 0 || table.layout == Layout::Array => {
            let mut there = vec![0; value.len()];
            interp.host.read(r0, &mut there).map_err(|fault| fault.to_string())?;
            if there == value { Ok(()) } else { Err(format!("the value is {there:02x?}")) }
        }
        Some(_) => Ok(()),
    }
}

/// A program that looks up the key in its context and returns the address of the value.
fn program(table: &Table, key_alignment: u32) -> Function {
    let key = Op::new(Insn::Mov { width: Width::W64, dst: Reg::R2, src: Src::Reg(Reg::R1) });
    let ops = vec![key, Op::new(Insn::Call(Call::Helper(1)))];
    let blocks = vec![Block { ops, term: Terminator::Exit { origin: None } }];
    let layout = vec![BlockId(0)];
    let mut f = Function {
        name: "lookup".into(),
        kind: ProgKind::Tracing,
        arguments: None,
        byte_order: ByteOrder::Little,
        blocks,
        layout,
    };
    let mut places = Places::default();
    let site = Site { block: BlockId(0), index: 1, key_alignment, guard: None };
    lookup::put(&mut f, site, Some((table, Place { section: 0, offset: 0 })), &mut places);
    for op in f.blocks.iter_mut().flat_map(|b| &mut b.ops) {
        if let Some(place) = places.of(&op.insn) {
            let symbol = Symbol::Data { section: SECTION.into(), offset: i64::from(place.offset) };
            op.link = Some(Link { slot: 0, symbol });
        }
    }
    f
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn elements(n: u32, key: usize, value: usize) -> Vec<Element> {
        let mut random = fastrand::Rng::with_seed(u64::from(n) + key as u64);
        let mut bytes = |n: usize| (0..n).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let all: BTreeMap<Vec<u8>, Vec<u8>> = (0..n).map(|_| (bytes(key), bytes(value))).collect();
        all.into_iter().collect()
    }

    #[test]
    fn tables_of_all_sizes_find_their_elements_and_nothing_else() {
        for key in [1, 2, 3, 4, 6, 8, 13, 16, 40] {
            for n in [1, 2, 8, 9, 100, 1000] {
                for (with_values, only_hashes) in [(false, false), (false, true), (true, false), (true, true)] {
                    let elements = elements(n, key, 12);
                    let table = Table::of_hash(&elements, key as u32, with_values, only_hashes).unwrap();
                    assert_eq!(check(&table, &elements), Ok(()), "{n} keys of {key} bytes");
                    assert_eq!(table.layout == Layout::Few, !only_hashes && key <= 4 && elements.len() <= 8);
                }
            }
        }
    }

    /// The addresses of a network, as they stand in memory, and the same with the other end.
    #[test]
    fn keys_that_differ_in_one_byte_are_told_apart() {
        for at in 0..8 {
            let key = |n: u8| (0..8).map(|i| if i == at { n } else { 10 }).collect::<Vec<u8>>();
            let elements: Vec<Element> = (0..=255).map(|n| (key(n), vec![n; 4])).collect();
            let table = Table::of_hash(&elements, 8, true, false).expect("a table");
            assert_eq!(check(&table, &elements), Ok(()));
            let of =
                |word: &dyn Fn(u8) -> u32| (0..=255).map(|n| (word(n).to_le_bytes().to_vec(), vec![n; 4])).collect();
            let both: Vec<Element> = of(&|n| if n < 128 { u32::from(n) << (8 * (at % 4)) } else { u32::from(n) });
            let table = Table::of_hash(&both, 4, true, false).expect("a table");
            assert_eq!(check(&table, &both), Ok(()));
        }
    }

    #[test]
    fn a_damaged_table_is_found_out() {
        let elements = elements(50, 4, 4);
        let table = Table::of_hash(&elements, 4, true, false).unwrap();
        for at in 0..table.keys.len() * table.stride as usize {
            let mut damaged = table.clone();
            damaged.bytes[at] ^= 0x10;
            let row = at / table.stride as usize;
            // The other rows only must not be found, and the last four bytes are behind the value.
            if table.value(row) != [0; 4] && (at % 16 < 4 || (8..12).contains(&(at % 16))) {
                assert!(check(&damaged, &elements).is_err(), "byte {at}");
            }
        }
        // A row that nobody is sent to, with a key that is sent to it.
        let row = (0..table.keys.len()).find(|row| table.value(*row) == [0; 4]).unwrap();
        let stray = (0u32..).find(|key| table.layout.slot(&[*key]) == row).unwrap();
        let mut damaged = table.clone();
        damaged.bytes[row * 16..row * 16 + 4].copy_from_slice(&stray.to_le_bytes());
        assert!(check(&damaged, &elements).unwrap_err().contains("it is found"));
        let mut fewer = elements.clone();
        fewer.pop();
        assert!(check(&table, &fewer).is_err());
    }

    #[test]
    fn arrays_have_all_their_elements() {
        let elements = vec![(3u32.to_le_bytes().to_vec(), vec![9; 5])];
        let table = Table::of_array(&elements, 7, 5);
        assert_eq!(check(&table, &elements), Ok(()));
        let other = vec![(3u32.to_le_bytes().to_vec(), vec![8; 5])];
        assert!(check(&table, &other).is_err());
    }
}
