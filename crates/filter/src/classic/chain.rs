//! The loop of `protochain`, as libpcap writes it: it jumps backward, which libpcap's interpreter takes and the kernel does not.

use super::code::*;
use super::layout::Item;
use crate::graph::Chain;
use crate::language::Binary;
use crate::steps::Label;

/// The word of memory that the loop writes.
pub(super) const WORD: u32 = MEMORY as u32 - 1;

/// The loop, and how many labels there are then; so many were there before.
pub(super) fn chain(chain: &Chain, (yes, no): (Label, Label), labels: usize) -> (Vec<Item>, usize) {
    let mut writer = Writer { items: Vec::new(), labels };
    writer.write(chain, yes, no);
    (writer.items, writer.labels)
}

struct Writer {
    items: Vec<Item>,
    labels: usize,
}

impl Writer {
    fn plain(&mut self, code: u16, k: u32) {
        self.items.push(Item::Plain((code, k)));
    }

    fn label(&mut self) -> Label {
        self.labels += 1;
        Label::Own(self.labels - 1)
    }

    fn write(&mut self, chain: &Chain, yes: Label, no: Label) {
        let start = chain.start;
        let branch =
            |s: &mut Self, k: u32, yes: Label, no: Label| s.items.push(Item::Branch { test: (JMP | JEQ, k), yes, no });
        if chain.is_ip6 {
            self.plain(LD | BYTE | ABS, start.wrapping_add(6));
            self.plain(LDX, 40);
        } else {
            self.plain(LD | BYTE | ABS, start.wrapping_add(9));
            self.plain(LDX | MSH | BYTE, start);
        }
        let (again, end) = (self.label(), self.label());
        self.items.push(Item::Here(again));
        let next = self.label();
        branch(self, chain.protocol, end, next);
        self.items.push(Item::Here(next));
        let next = self.label();
        branch(self, 59, end, next);
        self.items.push(Item::Here(next));
        if chain.is_ip6 {
            let (advance, other) = (self.label(), self.label());
            for header in [0, 60, 43, 44] {
                let next = if header == 44 { other } else { self.label() };
                branch(self, header, advance, next);
                if header != 44 {
                    self.items.push(Item::Here(next));
                }
            }
            self.items.push(Item::Here(advance));
            self.plain(LD | BYTE | IND, start);
            self.plain(ST, WORD);
            self.plain(LD | BYTE | IND, start.wrapping_add(1));
            self.plain(ALU | alu(Binary::Add), 1);
            self.plain(ALU | alu(Binary::Mul), 8);
            self.plain(ALU | alu(Binary::Add) | X, 0);
            self.plain(MISC | TAX, 0);
            self.plain(LD | MEM, WORD);
            self.items.push(Item::Jump(again));
            self.items.push(Item::Here(other));
        }
        let authentication = self.label();
        branch(self, 51, authentication, end);
        self.items.push(Item::Here(authentication));
        self.plain(LD | BYTE | IND, start);
        self.plain(ST, WORD);
        self.plain(MISC | TXA, 0);
        self.plain(ALU | alu(Binary::Add), 1);
        self.plain(MISC | TAX, 0);
        self.plain(LD | BYTE | IND, start);
        self.plain(ALU | alu(Binary::Add), 2);
        self.plain(ALU | alu(Binary::Mul), 4);
        self.plain(MISC | TAX, 0);
        self.plain(LD | MEM, WORD);
        self.items.push(Item::Jump(again));
        self.items.push(Item::Here(end));
        branch(self, chain.protocol, yes, no);
    }
}
