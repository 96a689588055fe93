//! Lookups in tables, which stand in read-only data.

use super::hook::EbpfError;
use super::symbols::{BITMAP, DISPLACEMENTS, SLOTS, column_name, table_name};
use super::text::Text;
use crate::steps::Label;
use bpf_perfect_hash::PerfectHash;

use crate::tables::{Table, TupleHash};

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
            text.line(format!("r{p} = {} ll", table_name(i, BITMAP)));
            text.line(format!("r{p} += r{t}"));
            text.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
            text.line(format!("w{n} &= 31"));
            text.line(format!("w{t} >>= w{n}"));
            text.branch(&format!("w{t} & 1"), yes, no);
        }
        Table::Hash(hash) => {
            text.line(format!("w{n} = w{x}"));
            slot(text, i, hash, registers.free);
            entry(text, &table_name(i, SLOTS), registers.free);
            text.branch(&format!("w{t} == w{x}"), yes, no);
        }
        // These have several numbers.
        Table::Tuples(_) => text.goto(no),
    }
}

/// Four times the slot of a number, which stands in the first of three registers, in its place. The register's upper half is 0.
fn slot(text: &mut Text, i: usize, hash: &PerfectHash, [n, t, p]: [u8; 3]) {
    text.line(format!("r{n} *= {}", hash.multiplier));
    text.line(format!("w{t} = w{n}"));
    text.line(format!("w{t} >>= {}", hash.shift()));
    text.line(format!("w{t} <<= 1"));
    text.line(format!("r{p} = {} ll", table_name(i, DISPLACEMENTS)));
    text.line(format!("r{p} += r{t}"));
    text.line(format!("r{t} = *(u16 *)(r{p} + 0)"));
    text.line(format!("r{p} = r{n}"));
    text.line(format!("r{p} >>= 32"));
    text.line(format!("w{n} ^= w{p}"));
    text.line(format!("w{n} ^= w{t}"));
    text.line(format!("w{n} &= {}", hash.slots.len() - 1));
    text.line(format!("w{n} <<= 2"));
}

/// What stands in a variable at four times a slot, which is in the first of three registers: to the second one.
fn entry(text: &mut Text, variable: &str, [n, t, p]: [u8; 3]) {
    text.line(format!("r{p} = {variable} ll"));
    text.line(format!("r{p} += r{n}"));
    text.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
}

/// A lookup of a key of several words: where these are, whoever translates a program knows.
pub(super) trait Words {
    fn text(&mut self) -> &mut Text;

    /// The register that holds a word of the key. It is read before the next word is asked for; of the lookup's three registers the
    /// third may be changed.
    fn word(&mut self, i: usize) -> Result<u8, EbpfError>;

    /// The rest of the lookup may not be executed.
    fn fork(&mut self);
}

/// Goes to `yes` if a key is a member of table `i`, and to `no` if it is not. The first of the three registers is kept from word to
/// word.
pub(super) fn lookup_words(
    words: &mut impl Words,
    (i, tuples): (usize, &TupleHash),
    free: [u8; 3],
    yes: Label,
    no: Label,
) -> Result<(), EbpfError> {
    let [n, t, _] = free;
    let first = words.word(0)?;
    words.text().line(format!("w{n} = w{first}"));
    for word in 1..tuples.columns.len() {
        words.text().line(format!("w{n} *= {}", tuples.multiplier as i32));
        let word = words.word(word)?;
        words.text().line(format!("w{n} ^= w{word}"));
    }
    slot(words.text(), i, &tuples.hash, free);
    let last = tuples.columns.len() - 1;
    for word in 0..=last {
        let number = words.word(word)?;
        entry(words.text(), &table_name(i, &column_name(word)), free);
        let test = format!("w{t} == w{number}");
        if word == last {
            words.text().branch(&test, yes, no);
        } else {
            let equal = words.text().label();
            words.fork();
            words.text().branch(&test, equal, no);
            words.text().place(equal);
        }
    }
    Ok(())
}
