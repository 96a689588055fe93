//! Lookups in tables, which stand in read-only data.

use super::emitter::Emitter;
use super::held::{Key, POOL};
use super::hook::EbpfError;
use crate::program::{BlockId, Register};
use crate::tables::Table;

impl Emitter<'_> {
    pub(super) fn lookup(
        &mut self,
        a: Register,
        table: usize,
        yes: BlockId,
        no: BlockId,
        next: usize,
    ) -> Result<(), EbpfError> {
        let x = self.number(a)?;
        // The edge's register and one more are working space.
        self.held.edge = None;
        let i = self.allocate(Key::Number(Register(u32::MAX)))?;
        let t = POOL[i];
        match &self.program.tables[table] {
            Table::Bitmap { first, words } => {
                self.line(format!("w5 = w{x}"));
                if *first != 0 {
                    self.line(format!("w5 -= {}", *first as i32));
                }
                self.line(format!("if w5 > {} goto b{}", words.len() * 32 - 1, no.0));
                self.line(format!("w{t} = w5"));
                self.line(format!("w{t} >>= 5"));
                self.line(format!("w{t} <<= 2"));
                // The table's address needs a register: x may be read again, so that the count waits in w5.
                let j = self.allocate(Key::Number(Register(u32::MAX - 1)))?;
                let p = POOL[j];
                self.line(format!("r{p} = {} ll", table_name(table, "bitmap")));
                self.line(format!("r{p} += r{t}"));
                self.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
                self.line("w5 &= 31");
                self.line(format!("w{t} >>= w5"));
                self.put(j, None);
                self.line(format!("if w{t} & 1 goto b{}", yes.0));
            }
            Table::Hash(hash) => {
                let j = self.allocate(Key::Number(Register(u32::MAX - 1)))?;
                let p = POOL[j];
                self.line(format!("w5 = w{x}"));
                self.line(format!("w5 *= {}", hash.multiplier as i32));
                self.line(format!("w{t} = w5"));
                self.line(format!("w{t} >>= 15"));
                self.line(format!("w5 ^= w{t}"));
                self.line(format!("w{t} = w5"));
                self.line(format!("w{t} >>= {}", hash.shift()));
                self.line(format!("w{t} <<= 1"));
                self.line(format!("r{p} = {} ll", table_name(table, "displacements")));
                self.line(format!("r{p} += r{t}"));
                self.line(format!("r{t} = *(u16 *)(r{p} + 0)"));
                self.line(format!("w5 ^= w{t}"));
                self.line(format!("w5 &= {}", hash.slots.len() - 1));
                self.line("w5 <<= 2");
                self.line(format!("r{p} = {} ll", table_name(table, "slots")));
                self.line(format!("r{p} += r5"));
                self.line(format!("r{t} = *(u32 *)(r{p} + 0)"));
                self.put(j, None);
                self.line(format!("if w{t} == w{x} goto b{}", yes.0));
            }
        }
        self.put(i, None);
        self.goto(no, next);
        Ok(())
    }
}

/// The variable that holds a part of a table.
pub(super) fn table_name(i: usize, part: &str) -> String {
    format!("{part}_{i}")
}
