//! Lookups in tables, which stand in read-only data.

use super::text::Text;
use crate::steps::Label;
use crate::tables::Table;

/// The machine's registers of a lookup.
#[derive(Clone, Copy)]
pub(super) struct LookupRegisters {
    /// The number that is looked up, which is kept.
    pub(super) number: u8,
    /// Three that are free.
    pub(super) free: [u8; 3],
}

/// Goes to `yes` if a number is a member of table `i`, and to `no` if it is not.
pub(super) fn lookup(text: &mut Text, (i, table): (usize, &Table), registers: LookupRegisters, yes: Label, no: Label) {
    let LookupRegisters { number: x, free: [n, t, p] } = registers;
    match table {
        Table::Bitmap { first, words } => {
            text.line(format!("w{n} = w{x}"));
            if *first != 0 {
                text.line(format!("w{n} -= {}", *first as i32));
            }
            text.goto_if(format!("w{n} > {}", words.len() * 32 - 1), no);
            text.line(format!("w{t} = w{n}"));
            text.line(format!("w{t} >>= 5"));
            text.line(format!("w{t} <<= 2"));
            text.line(format!("r{p} = {} ll", table_name(i, "bitmap")));
            text.line(format!("r{p} += r{t}"));
            text.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
            text.line(format!("w{n} &= 31"));
            text.line(format!("w{t} >>= w{n}"));
            text.branch(&format!("w{t} & 1"), yes, no);
        }
        Table::Hash(hash) => {
            text.line(format!("w{n} = w{x}"));
            text.line(format!("w{n} *= {}", hash.multiplier as i32));
            text.line(format!("w{t} = w{n}"));
            text.line(format!("w{t} >>= 15"));
            text.line(format!("w{n} ^= w{t}"));
            text.line(format!("w{t} = w{n}"));
            text.line(format!("w{t} >>= {}", hash.shift()));
            text.line(format!("w{t} <<= 1"));
            text.line(format!("r{p} = {} ll", table_name(i, "displacements")));
            text.line(format!("r{p} += r{t}"));
            text.line(format!("r{t} = *(u16 *)(r{p} + 0)"));
            text.line(format!("w{n} ^= w{t}"));
            text.line(format!("w{n} &= {}", hash.slots.len() - 1));
            text.line(format!("w{n} <<= 2"));
            text.line(format!("r{p} = {} ll", table_name(i, "slots")));
            text.line(format!("r{p} += r{n}"));
            text.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
            text.branch(&format!("w{t} == w{x}"), yes, no);
        }
    }
}

/// The variable that holds a part of a table.
pub(super) fn table_name(i: usize, part: &str) -> String {
    format!("{part}_{i}")
}
